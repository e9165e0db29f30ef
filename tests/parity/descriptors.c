/* Descriptors as names of one connection: duplicates, closing, reuse, and what ioctl and fcntl say. */
#include "harness.h"

#include <linux/sockios.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static _Thread_local char in[64 * KIB], out[64 * KIB];

/* The connection lives as long as one of its names does. */
static void names_a(struct side *side) {
    int fd = side->fd;
    int plain = (int)MUST(dup(fd));
    int second = (int)MUST(dup2(fd, 200)), third = (int)MUST(dup3(fd, 201, O_CLOEXEC));
    int low = (int)MUST(fcntl(fd, F_DUPFD, 300)), cloexec = (int)MUST(fcntl(fd, F_DUPFD_CLOEXEC, 300));
    say("numbers %d %d %d %d", second, third, low, cloexec);
    say("close on exec %d %d %d %d", fcntl(second, F_GETFD), fcntl(third, F_GETFD), fcntl(low, F_GETFD),
        fcntl(cloexec, F_GETFD));
    SHOW(dup2(fd, fd) == fd);
    SHOW(dup3(fd, fd, 0));
    SHOW(dup3(fd, 210, O_APPEND));
    SHOW(dup2(fd, -1));
    SHOW(dup2(999, 210));
    int order[] = {plain, fd, second, third, low, cloexec};
    for (size_t i = 0; i < COUNT(order); i++) {
        hear(side);
        await_bytes(order[i], 3);
        SHOW(recv(order[i], in, 2, 0));
        SHOW(recv(order[i + 1 < COUNT(order) ? i + 1 : i], in + 2, 100, 0));
        say_bytes("joined", in, 3);
        SHOW(send(order[i], "ok", 2, 0));
        SHOW(close(order[i]));
        SHOW(recv(order[i], in, 1, MSG_DONTWAIT));
        tell(side);
    }
}
static void names_b(struct side *side) {
    for (int left = 5; left >= 0; left--) {
        send_all(side->fd, "abc", 3);
        tell(side);
        hear(side);
        SHOW(recv(side->fd, in, 100, 0));
        SHOW(recv(side->fd, in, 1, left > 0 ? MSG_DONTWAIT : 0));
    }
}
static void names(void) { two_processes(AF_INET, names_a, names_b); }

/* dup2 over a connection ends it as close does; dup2 of one over the other swaps what a number means. */
static void over_a(struct side *side) {
    int one = side->fd, two = another(side), three = another(side);
    int file = (int)MUST(memfd_create("file", 0));
    SHOW(dup2(one, two) == two);
    SHOW(send(two, "via two", 7, 0));
    SHOW(dup3(file, three, 0) == three);
    SHOW(write(three, "file", 4));
    SHOW(send(three, "x", 1, 0));
    SHOW(dup2(two, three) == three);
    SHOW(send(three, "via three", 9, 0));
    hear(side);
    SHOW(close(one));
    SHOW(close(two));
    SHOW(recv(three, in, 5, MSG_WAITALL));
    SHOW(close(three));
}
static void over_b(struct side *side) {
    int one = side->fd, two = another(side), three = another(side);
    SHOW(recv(two, in, 1, 0));
    SHOW(recv(three, in, 1, 0));
    long got = (long)receive_all(one, in, 16);
    say_bytes("one", in, got);
    SHOW(recv(one, in, 1, MSG_DONTWAIT));
    tell(side);
    send_all(one, "still", 5);
    SHOW(recv(one, in, 1, 0));
}
static void over(void) { two_processes(AF_INET, over_a, over_b); }

/* A number that is closed and taken by the next connection at once, many times over. */
static void reuse_a(struct side *side) {
    int number = side->fd;
    for (unsigned char i = 0; i < 60; i++) {
        int fd = (int)MUST(accept(side->listener, NULL, NULL));
        if (i > 0 && side->peer != 0 && fd != number) fail("another number");
        number = fd;
        for (int turns = 0; turns < i % 13; turns++) {
            if (receive_all(fd, in, 100) != 100 || differs(in, 100, i, 0) != -1) fail("stale bytes");
            send_all(fd, in, 100);
        }
        /* Some are closed by both at once, some by this side first. */
        if (i % 3 == 0 && receive_all(fd, in, 4) != 4) fail("last bytes");
        MUST(close(fd));
    }
    say("all bytes belonged");
}
static void reuse_b(struct side *side) {
    for (unsigned char i = 0; i < 60; i++) {
        int fd = connect_to(&side->address);
        fill(out, 100, i, 0);
        for (int turns = 0; turns < i % 13; turns++) {
            send_all(fd, out, 100);
            if (receive_all(fd, in, 100) != 100 || differs(in, 100, i, 0) != -1) fail("stale bytes");
        }
        if (i % 3 == 0) {
            send_all(fd, "last", 4);
            if (recv(fd, in, 1, 0) != 0) fail("end");
        }
        MUST(close(fd));
    }
    say("all bytes belonged");
}
static void reuse(void) { two_processes(AF_INET, reuse_a, reuse_b); }
static void reuse_threads(void) { two_threads(AF_INET, reuse_a, reuse_b); }

/* Programs that close everything, by each of the means. */
static void close_all_a(struct side *side) {
    int first = another(side), second = another(side), third = another(side);
    int twin = (int)MUST(dup2(third, 400));
    say("first");
    SHOW(close_range((unsigned)first, (unsigned)first, 0));
    SHOW(recv(first, in, 1, 0));
    hear(side);
    say("second");
    int keep = (int)MUST(dup2(side->turn, 300));
    MUST(dup2(side->fd, 301));
    SHOW(close_range((unsigned)third, (unsigned)third, CLOSE_RANGE_CLOEXEC));
    say("close on exec %d", fcntl(third, F_GETFD));
    closefrom(302);
    side->turn = keep;
    SHOW(recv(twin, in, 1, 0));
    SHOW(send(third, "third", 5, 0));
    SHOW(close_range(3, 299, CLOSE_RANGE_UNSHARE));
    SHOW(recv(second, in, 1, 0));
    SHOW(recv(third, in, 1, 0));
    hear(side);
    SHOW(send(301, "kept", 4, 0));
    SHOW(close_range(10, 9, 0));
    SHOW(close_range(301, ~0u, 0));
    hear(side);
    closefrom(3);
    SHOW(recv(300, in, 1, 0));
}
static void close_all_b(struct side *side) {
    int first = another(side), second = another(side), third = another(side);
    SHOW(recv(first, in, 1, 0));
    tell(side);
    SHOW(recv(third, in, 100, MSG_WAITALL));
    SHOW(recv(second, in, 1, 0));
    tell(side);
    SHOW(recv(side->fd, in, 100, MSG_WAITALL));
    tell(side);
    char end;
    SHOW(read(side->turn, &end, 1));
}
static void close_all(void) { two_processes(AF_INET, close_all_a, close_all_b); }

static int asked(int fd, unsigned long request) {
    int value = -1;
    MUST(ioctl(fd, request, &value));
    return value;
}

/* Bytes that are queued, at each end, at rest. SIOCOUTQ counts what the peer's kernel has not yet acknowledged: 0
 * soon. */
static void queued_a(struct side *side) {
    int fd = side->fd;
    say("FIONREAD %d, SIOCOUTQ %d", asked(fd, FIONREAD), asked(fd, SIOCOUTQ));
    tell(side);
    hear(side);
    await_bytes(fd, 1234);
    say("FIONREAD %d, SIOCINQ %d", asked(fd, FIONREAD), asked(fd, SIOCINQ));
    SHOW(recv(fd, in, 34, 0));
    say("FIONREAD %d", asked(fd, FIONREAD));
    SHOW(recv(fd, in, 200, MSG_PEEK));
    say("FIONREAD %d", asked(fd, FIONREAD));
    SHOW(recv(fd, in, 5000, 0));
    say("FIONREAD %d", asked(fd, FIONREAD));
    send_all(fd, out, 500);
    /* Whether the other end's program has read it is another matter. */
    while (asked(fd, SIOCOUTQ) != 0) nap_ms(1);
    tell(side);
    hear(side);
    say("SIOCOUTQNSD %d", asked(fd, SIOCOUTQNSD));
    hear(side);
    await_bytes(fd, 7);
    await_events(fd, POLLRDHUP);
    say("FIONREAD before the end %d", asked(fd, FIONREAD));
    SHOW(recv(fd, in, 7, 0));
    say("FIONREAD at the end %d", asked(fd, FIONREAD));
    SHOW(recv(fd, in, 7, 0));
}
static void queued_b(struct side *side) {
    hear(side);
    send_all(side->fd, out, 1234);
    tell(side);
    hear(side);
    SHOW(receive_all(side->fd, in, 500));
    tell(side);
    send_all(side->fd, out, 7);
    shutdown(side->fd, SHUT_WR);
    tell(side);
    SHOW(recv(side->fd, in, 1, 0));
}
static void queued(void) { two_processes(AF_INET, queued_a, queued_b); }

/* The kernel's own view: what kind of file, what status, which process gets its signals. */
static void nature_a(struct side *side) {
    int fd = side->fd, value = 0;
    struct stat status;
    SHOW(fstat(fd, &status));
    say("socket %d, size %ld", S_ISSOCK(status.st_mode), (long)status.st_size);
    SHOW(isatty(fd));
    SHOW(fcntl(fd, F_GETFL));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(fcntl(fd, F_SETFD, FD_CLOEXEC));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK | O_ASYNC));
    SHOW(fcntl(fd, F_GETFL));
    SHOW(fcntl(fd, F_SETFL, O_RDWR));
    SHOW(fcntl(fd, F_GETOWN));
    SHOW(fcntl(fd, 9999));
    SHOW(fcntl(fd, F_GETPIPE_SZ));
    SHOW(fcntl(fd, F_DUPFD, -1));
    SHOW(ioctl(fd, SIOCATMARK, &value));
    SHOW(ioctl(fd, TCGETS, in));
    SHOW(ioctl(fd, 0x12345678, in));
    SHOW(sockatmark(fd));
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    long length = readlink(path, in, sizeof(in));
    say("%.7s", length > 7 ? in : "nothing");
    SHOW(open(path, O_RDWR));
    tell(side);
}
static void idle(struct side *side) { hear(side); }
static void nature(void) { two_processes(AF_INET6, nature_a, idle); }

/* connect() to AF_UNSPEC resets a connection; its socket may be connected again, under the same names, in the same
 * sets, in the same processes. */
static long dissolve(int fd) {
    struct sockaddr none = {.sa_family = AF_UNSPEC};
    return connect(fd, &none, sizeof(none));
}
static void connect_again(struct side *side) {
    SHOW(connect(side->fd, (struct sockaddr *)&side->address, address_size(&side->address)));
}
/* A's other end is reset; then A has the next connection. */
static void be_reset(struct side *side) {
    hear(side);
    for (int i = 0; i < 4; i++) SHOW(recv(side->fd, in, sizeof(in), 0));
    SHOW(send(side->fd, "late", 4, MSG_NOSIGNAL));
    close(side->fd);
    tell(side);
    side->fd = (int)MUST(accept(side->listener, NULL, NULL));
}
static void talk_again(struct side *side) {
    warm(side->fd, side->leader);
    for (int i = 0; i < 3; i++) {
        if (side->leader) send_all(side->fd, "question", 8);
        SHOW(receive_all(side->fd, in, 8));
        say_bytes("heard", in, 8);
        if (!side->leader) send_all(side->fd, "response", 8);
    }
}

static void again_a(struct side *side) {
    int on = 1, off = 0;
    socklen_t size = sizeof(on);
    for (int round = 0; round < 3; round++) {
        /* Unread in both directions, in the second round. */
        if (round == 1) send_all(side->fd, "unread there", 12);
        tell(side);
        be_reset(side);
        talk_again(side);
    }
    SHOW(setsockopt(side->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
    tell(side);
    be_reset(side);
    SHOW(getsockopt(side->fd, IPPROTO_TCP, TCP_NODELAY, &off, &size));
    say("no delay %d", off);
    talk_again(side);
}
static void again_b(struct side *side) {
    int fd = side->fd, on = 1, cork = 0;
    socklen_t size = sizeof(cork);
    for (int round = 0; round < 4; round++) {
        hear(side);
        if (round == 1) {
            await_bytes(fd, 12);
            send_all(fd, "unread here", 11);
        }
        if (round == 2)
            SHOW(syscall(SYS_connect, fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, sizeof(struct sockaddr)));
        else SHOW(dissolve(fd));
        SHOW(recv(fd, in, 10, MSG_PEEK));
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW(recv(fd, in, 10, 0));
        SHOW(dissolve(fd));
        SHOW(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &cork, &size));
        say("no delay %d", cork);
        SHOW(getsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, &size));
        say("cork %d", cork);
        tell(side);
        hear(side);
        connect_again(side);
        SHOW(connect(fd, (struct sockaddr *)&side->address, address_size(&side->address)));
        SHOW(connect(fd, NULL, 16));
        talk_again(side);
        if (round == 2) SHOW(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
    }
}
static void again(void) { two_processes(AF_INET, again_a, again_b); }
static void again_threads(void) { two_threads(AF_INET6, again_a, again_b); }

/* A listener in a set, from which connections were accepted, becomes a connection itself. */
static void listener_a(struct side *side) {
    int fd = side->listener, set = (int)MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 7}, told;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    for (int i = 0; i < 2; i++) {
        SHOW(epoll_wait(set, &told, 1, 0));
        tell(side);
        SHOW(epoll_wait(set, &told, 1, -1));
        MUST(close((int)MUST(accept(fd, NULL, NULL))));
    }
    struct sockaddr_storage there;
    tell(side);
    receive_all(side->fd, (char *)&there, sizeof(there));
    SHOW(dissolve(fd));
    SHOW(connect(fd, (struct sockaddr *)&there, address_size(&there)));
    for (int i = 0; i < 300; i++) {
        send_all(fd, "question", 8);
        if (MUST(epoll_wait(set, &told, 1, -1)) != 1 || told.data.u64 != 7) fail("told");
        if (MUST(recv(fd, in, sizeof(in), MSG_DONTWAIT)) != 8) fail("answer");
    }
    SHOW(epoll_wait(set, &told, 1, 0));
    tell(side);
}
static void listener_b(struct side *side) {
    for (int i = 0; i < 2; i++) {
        hear(side);
        int other = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
        MUST(connect(other, (struct sockaddr *)&side->address, address_size(&side->address)));
        MUST(close(other));
    }
    hear(side);
    struct sockaddr_storage here = side->address;
    socklen_t size = sizeof(here);
    ((struct sockaddr_in *)&here)->sin_port = 0;
    int listener = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    MUST(bind(listener, (struct sockaddr *)&here, address_size(&here)));
    MUST(listen(listener, 1));
    MUST(getsockname(listener, (struct sockaddr *)&here, &size));
    send_all(side->fd, (char *)&here, sizeof(here));
    int fd = (int)MUST(accept(listener, NULL, NULL));
    for (int i = 0; i < 300; i++) {
        if (receive_all(fd, in, 8) != 8) fail("question");
        send_all(fd, "response", 8);
    }
    hear(side);
}
static void listener(void) { two_processes(AF_INET, listener_a, listener_b); }

/* By other names: both know the next connection. */
static void again_names_a(struct side *side) {
    be_reset(side);
    talk_again(side);
    talk_again(side);
    hear(side);
    SHOW(recv(side->fd, in, 10, 0));
    SHOW(send(side->fd, "back", 4, 0));
    SHOW(recv(side->fd, in, 10, 0));
}
static void again_names_b(struct side *side) {
    int twin = (int)MUST(dup(side->fd)), first = side->fd;
    SHOW(dissolve(twin));
    SHOW(send(first, "x", 1, MSG_NOSIGNAL));
    SHOW(recv(twin, in, 10, 0));
    tell(side);
    hear(side);
    connect_again(side);
    talk_again(side);
    side->fd = twin;
    talk_again(side);
    SHOW(close(first));
    SHOW(send(twin, "forth", 5, 0));
    tell(side);
    SHOW(recv(twin, in, 10, 0));
    side->fd = -1;
    SHOW(close(twin));
}
static void again_names(void) { two_processes(AF_INET, again_names_a, again_names_b); }

/* In another process that has the socket too. */
static void again_forked_b(struct side *side) {
    int turns[2];
    char turn;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, turns));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        close(turns[0]);
        MUST(read(turns[1], &turn, 1));
        talk_again(side);
        MUST(write(turns[1], "t", 1));
        MUST(read(turns[1], &turn, 1));
        SHOW(send(side->fd, "forth", 5, 0));
        tell(side);
        SHOW(recv(side->fd, in, 10, 0));
        _exit(0);
    }
    SHOW(dissolve(side->fd));
    tell(side);
    hear(side);
    connect_again(side);
    talk_again(side);
    MUST(write(turns[0], "t", 1));
    MUST(read(turns[0], &turn, 1));
    close(side->fd);
    MUST(write(turns[0], "t", 1));
    MUST(waitpid(child, NULL, 0));
}
static void again_forked(void) { two_processes(AF_INET, again_names_a, again_forked_b); }

/* In an epoll set, whose registration stays. */
static void again_set(struct side *side, uint32_t edge) {
    int set = (int)MUST(epoll_create1(0)), fd = side->fd;
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | edge, .data.u64 = 7};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    for (int i = 0; i < 5; i++) {
        tell(side);
        SHOW(epoll_wait(set, &event, 1, -1));
        say("%x, %d", event.events, (int)event.data.u64);
        SHOW(recv(fd, in, sizeof(in), 0));
    }
    tell(side);
    await_bytes(fd, 8);
    SHOW(dissolve(fd));
    SHOW(epoll_wait(set, &event, 1, -1));
    say("%x", event.events);
    SHOW(recv(fd, in, 1, MSG_DONTWAIT));
    tell(side);
    hear(side);
    connect_again(side);
    if (edge) epoll_wait(set, &event, 1, 0); /* what comes before the first byte */
    warm(fd, false);
    if (edge) epoll_wait(set, &event, 1, 0);
    SHOW(epoll_wait(set, &event, 1, 20));
    for (int i = 0; i < 20; i++) {
        if (i % 5 == 0) tell(side);
        else send_all(fd, "next", 4);
        SHOW(epoll_wait(set, &event, 1, -1));
        say("%x, %d", event.events, (int)event.data.u64);
        SHOW(recv(fd, in, sizeof(in), 0));
    }
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    close(set);
    tell(side);
}
static void again_set_a(struct side *side) {
    for (int i = 0; i < 6; i++) {
        hear(side);
        if (i < 5) await_asleep(side->other);
        send_all(side->fd, "question", 8);
    }
    be_reset(side);
    warm(side->fd, true);
    for (int i = 0; i < 20; i++) {
        if (i % 5 == 0) {
            hear(side);
            await_asleep(side->other);
        } else {
            receive_all(side->fd, in, 4);
        }
        send_all(side->fd, "question", 8);
    }
    hear(side);
}
static void again_level_b(struct side *side) { again_set(side, 0); }
static void again_edge_b(struct side *side) { again_set(side, EPOLLET); }
static void again_level(void) { two_processes(AF_INET, again_set_a, again_level_b); }
static void again_edge(void) { two_processes(AF_INET, again_set_a, again_edge_b); }

/* Under a thread that sleeps in a receive, which then has the error. */
static void *sleep_in_receive(void *argument) {
    struct side *side = argument;
    role = 'T';
    side->peer = this_task();
    tell(side);
    long got = recv(side->fd, in, 10, 0);
    say("ended without data: %d", got <= 0);
    return NULL;
}
static void again_asleep_b(struct side *side) {
    int turns[2];
    char turn;
    pthread_t thread;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, turns));
    struct side sleeper = {.fd = side->fd, .turn = turns[1]};
    start_thread(&thread, sleep_in_receive, &sleeper);
    MUST(read(turns[0], &turn, 1));
    await_asleep(sleeper.peer);
    SHOW(dissolve(side->fd));
    pthread_join(thread, NULL);
    tell(side);
    hear(side);
    connect_again(side);
    talk_again(side);
}
static void again_asleep_a(struct side *side) {
    be_reset(side);
    talk_again(side);
}
static void again_asleep(void) { two_processes(AF_INET, again_asleep_a, again_asleep_b); }

/* A socket that has two names before it is connected. */
static void named_before_a(struct side *side) {
    side->fd = (int)MUST(accept(side->listener, NULL, NULL));
    talk_again(side);
    talk_again(side);
}
static void named_connected(struct side *side, int twin) {
    connect_again(side);
    talk_again(side);
    side->fd = twin;
    talk_again(side);
}
static void named_before_b(struct side *side) {
    side->fd = (int)MUST(socket(side->address.ss_family, SOCK_STREAM, 0));
    named_connected(side, (int)MUST(dup(side->fd)));
}
static void named_before(void) { two_processes(AF_INET, named_before_a, named_before_b); }

/* The same for a process that was forked before, and for one more name of a socket that is out of its connection. */
static void forked_before_b(struct side *side) {
    int turns[2];
    char turn;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, turns));
    side->fd = (int)MUST(socket(side->address.ss_family, SOCK_STREAM, 0));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        close(turns[0]);
        MUST(read(turns[1], &turn, 1));
        talk_again(side);
        _exit(0);
    }
    connect_again(side);
    talk_again(side);
    MUST(write(turns[0], "t", 1));
    MUST(waitpid(child, NULL, 0));
}
static void forked_before(void) { two_processes(AF_INET, named_before_a, forked_before_b); }
static void named_between_a(struct side *side) {
    tell(side);
    be_reset(side);
    talk_again(side);
    talk_again(side);
}
static void named_between_b(struct side *side) {
    hear(side);
    SHOW(dissolve(side->fd));
    tell(side);
    hear(side);
    named_connected(side, (int)MUST(dup(side->fd)));
}
static void named_between(void) { two_processes(AF_INET, named_between_a, named_between_b); }

/* One of several names is polled, or was in a set, and is then closed, as FTP servers do: the others go on. */
static void polled_a(struct side *side) {
    char bytes[10];
    int fd = side->fd;
    for (int round = 0; round < 20; round++) {
        struct pollfd ready = {fd, POLLOUT, 0};
        if (round % 4 == 3) {
            struct epoll_event event = {.events = EPOLLOUT};
            int set = (int)MUST(epoll_create1(0));
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
            SHOW(epoll_wait(set, &event, 1, -1));
            MUST(close(set));
        } else {
            SHOW(poll(&ready, 1, -1));
        }
        int twin = (int)MUST(dup(fd));
        MUST(close(fd));
        ready = (struct pollfd){twin, POLLIN, 0};
        tell(side);
        SHOW(poll(&ready, 1, -1));
        say("events %x", ready.revents);
        SHOW(recv(twin, bytes, sizeof(bytes), 0));
        say_bytes("came", bytes, 5);
        SHOW(send(twin, "answer", 6, 0));
        fd = twin;
    }
    SHOW(shutdown(fd, SHUT_WR));
    SHOW(recv(fd, bytes, 1, 0));
    close(fd);
}
static void polled_b(struct side *side) {
    char bytes[10];
    for (int round = 0; round < 20; round++) {
        hear(side);
        if (round % 2) await_asleep(side->other);
        SHOW(send(side->fd, "query", 5, 0));
        SHOW(recv(side->fd, bytes, sizeof(bytes), 0));
    }
    SHOW(recv(side->fd, bytes, 1, 0));
}
static void polled(void) { two_processes(AF_INET, polled_a, polled_b); }

/* One of several names is closed while another thread, or a child, sleeps in a poll: by another name at first, by the
 * very one in the end. */
struct poller {
    struct pollfd what;
    _Atomic pid_t task;
    int found;
};
static void *sleep_in_poll(void *argument) {
    struct poller *poller = argument;
    poller->task = this_task();
    poller->found = poll(&poller->what, 1, -1);
    return NULL;
}
static void slept_on_a(struct side *side) {
    char bytes[10];
    int fd = side->fd;
    for (int round = 0; round < 21; round++) {
        int twin = (int)MUST(dup(fd));
        struct poller poller = {.what = {round < 20 ? fd : twin, POLLIN, 0}};
        pthread_t thread;
        start_thread(&thread, sleep_in_poll, &poller);
        while (poller.task == 0) nap_ms(1);
        await_asleep(poller.task);
        MUST(close(twin));
        tell(side);
        pthread_join(thread, NULL);
        say("found %d, events %x", poller.found, poller.what.revents);
        SHOW(recv(fd, bytes, sizeof(bytes), 0));
        SHOW(send(fd, "answer", 6, 0));
    }
    int more = another(side), twin = (int)MUST(dup(more));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        close(twin);
        for (int round = 0; round < 20; round++) {
            await_events(more, POLLIN);
            MUST(recv(more, bytes, 5, 0));
            MUST(send(more, "answer", 6, 0));
        }
        _exit(0);
    }
    await_asleep(child);
    MUST(close(twin));
    MUST(close(more));
    tell(side);
    SHOW(ended(child));
}
static void slept_on_b(struct side *side) {
    char bytes[10];
    for (int round = 0; round < 21; round++) {
        hear(side);
        SHOW(send(side->fd, "query", 5, 0));
        SHOW(recv(side->fd, bytes, sizeof(bytes), 0));
    }
    int more = another(side);
    hear(side);
    for (int round = 0; round < 20; round++) {
        SHOW(send(more, "query", 5, 0));
        SHOW(recv(more, bytes, sizeof(bytes), 0));
    }
    SHOW(recv(more, bytes, 1, 0));
    close(more);
}
static void slept_on(void) { two_processes(AF_INET, slept_on_a, slept_on_b); }

const struct scenario scenarios[] = {
    {"names", names, 0},
    {"over", over, 0},
    {"reuse", reuse, 0},
    {"reuse-threads", reuse_threads, 0},
    {"close-all", close_all, 0},
    {"queued", queued, 0},
    {"nature", nature, 0},
    {"again", again, 0},
    {"again-threads", again_threads, 0},
    {"listener", listener, 0},
    {"again-names", again_names, 0},
    {"again-forked", again_forked, 0},
    {"again-level", again_level, 0},
    {"again-edge", again_edge, 0},
    {"again-asleep", again_asleep, 0},
    {"named-before", named_before, 0},
    {"forked-before", forked_before, 0},
    {"named-between", named_between, 0},
    {"polled", polled, 0},
    {"slept-on", slept_on, 0},
    {0},
};
