/* epoll on one set: level, edge and one-shot; adding, changing, removing; states; timeouts; fairness. */
#include "harness.h"

#include <sys/epoll.h>

static _Thread_local char in[64 * KIB];

static void add(int set, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

static void modify(int set, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
}

/* Says what epoll_wait reports, in order of the data. */
static int report(const char *when, int set, int timeout) {
    struct epoll_event events[16];
    int count = epoll_wait(set, events, COUNT(events), timeout);
    if (count <= 0) say("%s: %d %s", when, count, count ? error_name(errno) : "");
    for (uint64_t data = 0; data < 1000; data++) {
        for (int i = 0; i < count; i++) {
            if (events[i].data.u64 == data) say("%s: %d, data %d, events %x", when, count, (int)data, events[i].events);
        }
    }
    return count;
}

/* The other side sends n bytes or ends, and says when it has; this side waits until they are there. */
static void order(struct side *side, char what) {
    MUST(write(side->turn, &what, 1));
    hear(side);
}
static void obey(struct side *side) {
    for (char what = 0; what != 'q';) {
        if (MUST(read(side->turn, &what, 1)) != 1) fail("the other side has ended");
        switch (what) {
        case 's': send_all(side->fd, "0123456789", 10); break;
        case 'l': /* later: the other side sleeps in its wait */
            tell(side);
            await_asleep(side->other);
            send_all(side->fd, "0123456789", 10);
            continue;
        case 'r': receive_all(side->fd, in, 10); break;
        case 'w': shutdown(side->fd, SHUT_WR); break;
        case 'c': close(side->fd); break;
        default: break;
        }
        tell(side);
    }
}
static void arrived(struct side *side, int count) { await_bytes(side->fd, count); }

static void level_a(struct side *side) {
    int fd = side->fd, set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    add(set, fd, EPOLLIN, 7);
    report("idle", set, 0);
    order(side, 's');
    arrived(side, 10);
    report("readable", set, -1);
    report("again", set, -1);
    SHOW(recv(fd, in, 5, 0));
    report("partly read", set, -1);
    SHOW(recv(fd, in, 100, 0));
    report("read", set, 20);
    modify(set, fd, EPOLLIN | EPOLLOUT, 8);
    report("writable", set, -1);
    report("writable again", set, -1);
    modify(set, fd, 0, 9);
    order(side, 's');
    arrived(side, 10);
    report("no interest", set, 20);
    modify(set, fd, EPOLLIN | EPOLLRDHUP, 10);
    report("interest again", set, -1);
    SHOW(recv(fd, in, 100, 0));
    for (int i = 0; i < 5; i++) {
        order(side, 'l');
        report("woken", set, -1);
        SHOW(recv(fd, in, 100, 0));
    }
    order(side, 'w');
    await_events(fd, POLLRDHUP);
    report("end", set, -1);
    report("end again", set, -1);
    SHOW(recv(fd, in, 100, 0));
    report("end read", set, -1);
    shutdown(fd, SHUT_WR);
    report("both ends", set, -1);
    modify(set, fd, 0, 11);
    report("no interest", set, -1);
    order(side, 'q');
}
static void level(void) { two_processes(AF_INET, level_a, obey); }
static void level_threads(void) { two_threads(AF_INET6, level_a, obey); }

/* An edge is told once; new bytes are a new edge, read or not; a change of the registration tells again. */
static void edge_a(struct side *side) {
    int fd = side->fd, set = (int)MUST(epoll_create1(0));
    add(set, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, 1);
    report("added", set, -1);
    report("told already", set, 20);
    order(side, 's');
    arrived(side, 10);
    report("bytes", set, -1);
    report("told already", set, 20);
    SHOW(recv(fd, in, 4, 0));
    report("partly read", set, 20);
    order(side, 's');
    arrived(side, 16);
    report("more bytes", set, -1);
    order(side, 's');
    order(side, 's');
    arrived(side, 36);
    report("two messages at once", set, -1);
    report("told already", set, 20);
    SHOW(recv(fd, in, 100, 0));
    report("all read", set, 20);
    send_all(fd, in, 10);
    order(side, 'r');
    report("the other side read", set, 20);
    order(side, 's');
    arrived(side, 10);
    report("bytes", set, -1);
    modify(set, fd, EPOLLIN | EPOLLET, 2);
    report("changed", set, -1);
    report("told already", set, 20);
    SHOW(recv(fd, in, 100, 0));
    modify(set, fd, EPOLLIN | EPOLLET, 3);
    report("changed while empty", set, 20);
    for (int i = 0; i < 5; i++) {
        order(side, 'l');
        report("woken", set, -1);
        report("told already", set, 0);
        if (i % 2) SHOW(recv(fd, in, 100, 0));
    }
    order(side, 'w');
    await_events(fd, POLLRDHUP);
    report("end", set, -1);
    report("told already", set, 20);
    order(side, 'q');
}
static void edge(void) { two_processes(AF_INET, edge_a, obey); }
static void edge_threads(void) { two_threads(AF_INET, edge_a, obey); }

/* Room after full is an edge for a writer that was refused. */
static void edge_out_a(struct side *side) {
    int fd = side->fd, set = (int)MUST(epoll_create1(0));
    set_nonblocking(fd, true);
    add(set, fd, EPOLLOUT | EPOLLET, 1);
    report("added", set, -1);
    for (uint64_t rounds = 0; rounds < 3; rounds++) {
        size_t taken = stuff(fd, rounds);
        report("full", set, 20);
        MUST(write(side->turn, &taken, sizeof(taken)));
        report("room", set, -1);
        hear(side);
        while (epoll_wait(set, &(struct epoll_event){0}, 1, 60) > 0) {} /* one edge or several while it empties */
    }
}
static void edge_out_b(struct side *side) {
    for (uint64_t rounds = 0; rounds < 3; rounds++) {
        size_t taken = 0, at = 0;
        MUST(read(side->turn, &taken, sizeof(taken)));
        await_asleep(side->other);
        while (at < taken) {
            size_t got = receive_all(side->fd, in, taken - at < sizeof(in) ? taken - at : sizeof(in));
            if (differs(in, got, rounds, at) != -1) fail("wrong byte");
            at += got;
        }
        tell(side);
    }
}
static void edge_out(void) { two_processes(AF_INET, edge_out_a, edge_out_b); }

/* One event, then silence until it is armed again. */
static void oneshot_a(struct side *side) {
    int fd = side->fd, set = (int)MUST(epoll_create1(0));
    add(set, fd, EPOLLIN | EPOLLONESHOT, 1);
    order(side, 's');
    arrived(side, 10);
    report("first", set, -1);
    report("spent", set, 20);
    order(side, 's');
    arrived(side, 20);
    report("spent, new bytes", set, 20);
    modify(set, fd, EPOLLIN | EPOLLONESHOT, 2);
    report("armed", set, -1);
    report("spent", set, 20);
    SHOW(recv(fd, in, 100, 0));
    modify(set, fd, EPOLLIN | EPOLLONESHOT | EPOLLET, 3);
    report("armed while empty", set, 20);
    order(side, 'l');
    report("woken", set, -1);
    order(side, 's');
    arrived(side, 20);
    report("spent", set, 20);
    modify(set, fd, EPOLLOUT | EPOLLONESHOT, 4);
    report("armed for writing", set, -1);
    report("spent", set, 0);
    order(side, 'w');
    await_events(fd, POLLRDHUP);
    report("spent, end", set, 20);
    modify(set, fd, EPOLLIN | EPOLLRDHUP | EPOLLONESHOT, 5);
    report("armed at the end", set, -1);
    order(side, 'q');
}
static void oneshot(void) { two_processes(AF_INET, oneshot_a, obey); }
static void oneshot_threads(void) { two_threads(AF_INET, oneshot_a, obey); }

/* The calls' own errors, removing and adding again, waiting with odd arguments. */
static void control_a(struct side *side) {
    int fd = side->fd, set = (int)MUST(epoll_create(1)), file = open("/proc/self/exe", O_RDONLY);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1}, events[4];
    SHOW(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    SHOW(epoll_ctl(set, 99, fd, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, set, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, file, &event));
    SHOW(epoll_ctl(fd, EPOLL_CTL_ADD, set, &event));
    SHOW(epoll_ctl(-1, EPOLL_CTL_ADD, fd, &event));
    SHOW(epoll_create(0));
    SHOW(epoll_create1(12345));
    SHOW(epoll_wait(fd, events, 4, 0));
    SHOW(epoll_wait(-1, events, 4, 0));
    volatile int none = 0;
    struct epoll_event *volatile nowhere = (struct epoll_event *)8;
    SHOW(epoll_wait(set, events, none, 0));
    order(side, 's');
    arrived(side, 10);
    for (int i = 0; i < 20; i++) {
        nowhere = (struct epoll_event *)(uintptr_t)(i % 2 * 8); /* any other bad array is SIGSEGV if a ring has news */
        SHOW(epoll_wait(set, nowhere, 4, -1));
        report("still there", set, -1);
    }
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    report("removed", set, 20);
    add(set, fd, EPOLLIN, 2);
    report("added with bytes waiting", set, -1);
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, &event));
    add(set, fd, EPOLLIN | EPOLLET, 3);
    report("added with bytes waiting, edge", set, -1);
    SHOW(recv(fd, in, 100, 0));
    long since = now_ms();
    report("nothing", set, 40);
    SHOW(epoll_pwait(set, events, 4, 40, NULL));
    SHOW(epoll_pwait2(set, events, 4, &(struct timespec){0, 40000000}, NULL));
    say("long enough: %d", now_ms() - since >= 3 * 40 - 1);
    order(side, 'l');
    SHOW(epoll_pwait2(set, events, 4, NULL, NULL));
    say("data %d", (int)events[0].data.u64);
    order(side, 'l');
    SHOW(epoll_pwait(set, events, 4, -1, NULL));
    event.data.ptr = &event;
    modify(set, fd, EPOLLIN, 0);
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &event));
    SHOW(epoll_wait(set, events, 4, -1));
    say("pointer kept %d", events[0].data.ptr == &event);
    SHOW(close(set));
    SHOW(epoll_wait(set, events, 4, 0));
    SHOW(recv(fd, in, 100, 0));
    order(side, 'q');
}
static void control(void) { two_processes(AF_INET, control_a, obey); }

/* A reset, a close by the other side, and an own close: what the set says, and that it forgets closed descriptors. */
static void gone_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), second = another(side), third = another(side);
    add(set, side->fd, EPOLLIN | EPOLLRDHUP, 1);
    add(set, second, EPOLLIN | EPOLLRDHUP, 2);
    add(set, third, EPOLLOUT, 3);
    tell(side);
    hear(side);
    await_events(side->fd, POLLRDHUP);
    await_events(second, POLLERR);
    report("closed and reset", set, -1);
    SHOW(recv(second, in, 1, 0));
    nap_ms(1); /* beside what is fast and ready, the kernel is asked every 50 us */
    report("reset told", set, -1);
    SHOW(close(second));
    SHOW(close(third));
    report("after closing them", set, -1);
    int twin = (int)MUST(dup(side->fd));
    SHOW(close(side->fd));
    report("a duplicate keeps it", set, -1);
    struct epoll_event event = {0};
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, side->fd, &event));
    SHOW(close(twin));
    report("empty", set, 20);
}
static void gone_b(struct side *side) {
    struct linger at_once = {1, 0};
    int second = another(side), third = another(side);
    hear(side);
    MUST(setsockopt(second, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
    close(second);
    close(side->fd);
    tell(side);
    SHOW(recv(third, in, 1, 0));
}
static void gone(void) { two_processes(AF_INET, gone_a, gone_b); }

/* Edge-triggered, an event that was reported is reported again when a direction is shut down: to a thread that asks,
 * and to a thread that sleeps. */
static void *shut_later(void *argument) {
    struct side *side = argument;
    await_asleep(side->other);
    MUST(shutdown(side->fd, SHUT_WR));
    return NULL;
}
static void edge_shut_a(struct side *side) {
    for (int sleeps = 0; sleeps < 2; sleeps++) {
        struct epoll_event event = {0};
        struct side own = {.fd = another(side), .other = this_task()};
        pthread_t thread;
        int set = (int)MUST(epoll_create1(0));
        add(set, own.fd, EPOLLIN | EPOLLET, 1);
        tell(side);
        SHOW(epoll_wait(set, &event, 1, -1));
        await_bytes(own.fd, 10);
        SHOW(epoll_wait(set, &event, 1, 0));
        if (sleeps) start_thread(&thread, shut_later, &own);
        else SHOW(shutdown(own.fd, SHUT_WR));
        SHOW(epoll_wait(set, &event, 1, -1));
        say("events %x", event.events);
        tell(side);
        if (sleeps) pthread_join(thread, NULL);
        close(set);
        SHOW(receive_all(own.fd, in, 10));
        close(own.fd);
    }
}
static void edge_shut_b(struct side *side) {
    for (int round = 0; round < 2; round++) {
        int fd = another(side);
        hear(side);
        send_all(fd, "0123456789", 10);
        hear(side);
        close(fd);
    }
}
static void edge_shut(void) { two_processes(AF_INET, edge_shut_a, edge_shut_b); }

/* Edge-triggered, the end is told once: a receive that then says that there is nothing would never be asked again. */
static void edge_ends(struct side *side) {
    enum { ROUNDS = 400 };
    int ends = 0;
    uint64_t state = 1 + side->leader;
    for (int round = 0; round < ROUNDS; round++) {
        int fd = another(side), set = (int)MUST(epoll_create1(0));
        if (!side->leader) {
            hear(side);
            for (uint64_t wait = next_random(&state) % 60000; wait > 0; wait--) __asm__ volatile("");
            send_all(fd, "0123456789", 10);
            for (uint64_t wait = next_random(&state) % 20000; wait > 0; wait--) __asm__ volatile("");
            MUST(shutdown(fd, SHUT_WR));
            hear(side);
        } else {
            set_nonblocking(fd, true);
            add(set, fd, EPOLLIN | EPOLLRDHUP | EPOLLET, 1);
            tell(side);
            for (ssize_t got = -1; got != 0; ends += got == 0) {
                struct epoll_event event;
                while ((got = recv(fd, in, sizeof(in), 0)) > 0) {}
                if (got == -1) MUST(epoll_wait(set, &event, 1, -1));
            }
            tell(side);
        }
        close(set);
        close(fd);
    }
    if (side->leader) say("%d ends", ends);
}
static void edge_ends_processes(void) { two_processes(AF_INET, edge_ends, edge_ends); }

/* A connection that is reported as readable is readable: programs such as wrk take EAGAIN after EPOLLIN for a broken
 * connection. */
static void truthful(struct side *side) {
    enum { CONNECTIONS = 8, MESSAGE = 12, ROUNDS = 6000 };
    int set = (int)MUST(epoll_create1(0)), fds[CONNECTIONS], received[CONNECTIONS] = {0}, done = 0, lies = 0;
    uint64_t state = side->leader;
    for (int i = 0; i < CONNECTIONS; i++) {
        add(set, fds[i] = another(side), EPOLLIN, (uint64_t)i);
        set_nonblocking(fds[i], true);
        MUST(setsockopt(fds[i], IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int)));
    }
    for (int i = 0; side->leader && i < CONNECTIONS; i++) send_all(fds[i], in, MESSAGE);
    while (done < ROUNDS) {
        struct epoll_event events[3];
        int count = (int)MUST(epoll_wait(set, events, COUNT(events), -1));
        for (int k = 0; k < count && done < ROUNDS; k++) {
            int i = (int)events[k].data.u64;
            if (events[k].events & EPOLLIN) {
                ssize_t got = recv(fds[i], in, 100, 0);
                if (got == 0 || (got == -1 && errno == ECONNRESET)) done = ROUNDS; /* the other side has seen enough */
                if (got == -1 && errno == EAGAIN) lies++;
                if (got <= 0 || (received[i] += (int)got) < MESSAGE) continue;
                received[i] = 0;
                done++;
                modify(set, fds[i], EPOLLIN | EPOLLOUT, (uint64_t)i);
            } else if (events[k].events & EPOLLOUT) {
                /* In two pieces: the first wakes the reader, who may have both when the second would wake it. */
                bool sent = send(fds[i], in, 5, MSG_NOSIGNAL) == 5;
                for (uint64_t wait = next_random(&state) % 30000; wait > 0; wait--) __asm__ volatile("");
                if (!sent || send(fds[i], in, MESSAGE - 5, MSG_NOSIGNAL) != MESSAGE - 5) done = ROUNDS;
                modify(set, fds[i], EPOLLIN, (uint64_t)i);
            }
        }
    }
    say("readable, but nothing there: %d times", lies);
    for (int i = 0; i < CONNECTIONS; i++) close(fds[i]);
}
static void truthful_processes(void) { two_processes(AF_INET, truthful, truthful); }
static void truthful_threads(void) { two_threads(AF_INET, truthful, truthful); }

/* Edges of a connection that has become stdin with something unread, which has been read since. */
static void edge_stdin_a(struct side *side) {
    char in[10];
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    await_bytes(side->fd, 3);
    SHOW(dup2(side->fd, 0));
    SHOW(recv(side->fd, in, 3, MSG_WAITALL));
    int ep = MUST(epoll_create1(EPOLL_CLOEXEC));
    SHOW(epoll_ctl(ep, EPOLL_CTL_ADD, side->fd, &event));
    SHOW(epoll_wait(ep, &event, 1, 0));
    SHOW(send(side->fd, "go", 2, 0));
    SHOW(epoll_wait(ep, &event, 1, -1));
    SHOW(recv(side->fd, in, 10, 0));
    SHOW(epoll_wait(ep, &event, 1, 0));
    tell(side);
    close(ep);
    close(0);
}
static void edge_stdin_b(struct side *side) {
    char in[2];
    send_all(side->fd, "one", 3);
    if (receive_all(side->fd, in, 2) != 2) fail("receive");
    send_all(side->fd, "two!", 4);
    hear(side);
}
static void edge_stdin(void) { two_processes(AF_INET, edge_stdin_a, edge_stdin_b); }

/* Sends until there is no room, and once more as soon as all was read, which the reader's kernel may not have
 * acknowledged yet. */
enum { AT_ONCE_ROUNDS = 30 };
static void at_once_a(struct side *side) {
    MUST(setsockopt(side->fd, SOL_SOCKET, SO_SNDBUF, &(int){8 * KIB}, sizeof(int)));
    set_nonblocking(side->fd, true);
    for (int i = 0; i < AT_ONCE_ROUNDS; i++) {
        long total = 0, sent;
        while ((sent = send(side->fd, in, 16 * KIB, 0)) > 0) total += sent;
        MUST(write(side->turn, &total, sizeof(total)));
        hear(side);
        await_asleep(side->other);
        while ((sent = send(side->fd, in, 1, 0)) == -1 && errno == EAGAIN) await_events(side->fd, POLLOUT);
        if (sent != 1) fail("send");
        hear(side);
    }
}
static void at_once_b(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), told = 0;
    size_t got = 0;
    struct epoll_event event;
    add(set, side->fd, EPOLLIN, 1);
    for (int i = 0; i < AT_ONCE_ROUNDS; i++) {
        long total;
        MUST(read(side->turn, &total, sizeof(total)));
        /* From now on it acknowledges late. */
        MUST(setsockopt(side->fd, IPPROTO_TCP, TCP_QUICKACK, &(int){0}, sizeof(int)));
        while (total > 0) total -= MUST(recv(side->fd, in, sizeof(in), 0));
        tell(side);
        told += (int)MUST(epoll_wait(set, &event, 1, -1));
        got += receive_all(side->fd, in, 1);
        tell(side);
    }
    say("told %d times, received %zu", told, got);
}
static void at_once(void) { two_processes(AF_INET, at_once_a, at_once_b); }

/* An epoll_wait that does not wait reports all that is there, each time: also what only the kernel knows of, beside a
 * socket that is always writable. */
static void all_a(struct side *side) {
    enum { LOOKS = 50 };
    int set = (int)MUST(epoll_create1(0)), pipe_ends[2], told = 0;
    struct epoll_event events[4];
    add(set, side->fd, EPOLLIN | EPOLLOUT, 1);
    MUST(pipe(pipe_ends));
    MUST(write(pipe_ends[1], "x", 1));
    for (int i = 0; i < 2 * LOOKS; i++) {
        if (i == LOOKS) add(set, pipe_ends[0], EPOLLIN, 2);
        told += epoll_wait(set, events, COUNT(events), 0);
    }
    say("told %d", told);
    hear(side);
    struct side twin = *side;
    twin.fd = another(side);
    hear(side);
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, pipe_ends[0], NULL));
    add(set, twin.fd, EPOLLIN, 3);
    await_bytes(twin.fd, 100);
    told = 0;
    for (int i = 0; i < LOOKS; i++) told += epoll_wait(set, events, COUNT(events), 0);
    say("told %d", told);
    tell(side);
}
static void all_b(struct side *side) {
    tell(side);
    int fd = another(side), small = 1;
    /* A connection with so small a buffer stays on the kernel path. */
    MUST(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof(small)));
    send_all(fd, "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
             100);
    tell(side);
    hear(side);
}
static void all_at_once(void) { two_processes(AF_INET, all_a, all_b); }

const struct scenario scenarios[] = {
    {"level", level, 0},     {"level-threads", level_threads, 0},     {"edge-shut", edge_shut, 0},
    {"edge", edge, 0},
    {"edge-threads", edge_threads, 0}, {"edge-out", edge_out, 0},     {"oneshot", oneshot, 0},
    {"oneshot-threads", oneshot_threads, 0}, {"control", control, 0}, {"gone", gone, 0},
    {"truthful", truthful_processes, 0}, {"truthful-threads", truthful_threads, 0},
    {"edge-ends", edge_ends_processes, 0},
    {"edge-stdin", edge_stdin, 0},
    {"at-once", at_once, 0},
    {"all-at-once", all_at_once, 0},
    {0},
};
