/* Nonblocking sockets: how they become so, which descriptors share it, EAGAIN, full buffers, connecting. */
#include "harness.h"
#include <stdatomic.h>

static char in[64 * KIB];

static void blocking_or_not(const char *when, int fd) {
    int flags = fcntl(fd, F_GETFL);
    say("%s: flags %o, recv %s", when, flags, recv(fd, in, 1, flags & O_NONBLOCK ? 0 : MSG_DONTWAIT) == -1
        ? error_name(errno) : "something");
}

/* Every way to switch O_NONBLOCK on and off, seen from a duplicate and from a child too. */
static void switches_a(struct side *side) {
    int fd = side->fd, on = 1, off = 0;
    int twin = (int)MUST(dup(fd));
    blocking_or_not("at first", fd);
    SHOW(fcntl(fd, F_SETFL, O_NONBLOCK));
    blocking_or_not("F_SETFL", fd);
    blocking_or_not("its duplicate", twin);
    SHOW(fcntl(twin, F_SETFL, 0));
    blocking_or_not("cleared by the duplicate", fd);
    SHOW(ioctl(fd, FIONBIO, &on));
    blocking_or_not("FIONBIO 1", fd);
    SHOW(ioctl(twin, FIONBIO, &off));
    blocking_or_not("FIONBIO 0 by the duplicate", fd);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) _exit(fcntl(fd, F_SETFL, O_NONBLOCK | O_APPEND) == 0 ? 0 : 1);
    waitpid(child, NULL, 0);
    blocking_or_not("set by a child", fd);
    tell(side);
    hear(side);
    await_bytes(twin, 5);
    SHOW(recv(fd, in, 100, 0));
    SHOW(recv(fd, in, 100, 0));
    SHOW(read(twin, in, 100));
    SHOW(recv(fd, in, 100, MSG_PEEK));
    SHOW(recv(fd, in, 100, MSG_WAITALL));
    SHOW(fcntl(fd, F_SETFL, 0));
    tell(side);
    SHOW(recv(fd, in, 5, MSG_WAITALL)); /* blocks again */
}
static void switches_b(struct side *side) {
    hear(side);
    send_all(side->fd, "12345", 5);
    tell(side);
    hear(side);
    await_asleep(side->other);
    send_all(side->fd, "67890", 5);
}
static void switches(void) { two_processes(AF_INET, switches_a, switches_b); }

/* Sockets that are born nonblocking. */
static void born_a(struct side *side) {
    hear(side);
    int quick = (int)MUST(accept4(side->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    say("accept4: flags %o, descriptor flags %x", fcntl(quick, F_GETFL), fcntl(quick, F_GETFD));
    SHOW(recv(quick, in, 1, 0));
    set_nonblocking(side->listener, true);
    int slow = (int)MUST(accept(side->listener, NULL, NULL));
    say("accept: flags %o, descriptor flags %x", fcntl(slow, F_GETFL), fcntl(slow, F_GETFD));
    SHOW(accept(side->listener, NULL, NULL));
    tell(side);
    set_nonblocking(quick, false);
    warm(quick, true);
    set_nonblocking(quick, true);
    SHOW(recv(quick, in, 1, 0));
    tell(side);
    await_events(quick, POLLIN);
    SHOW(recv(quick, in, 100, 0));
    await_events(slow, POLLIN);
    SHOW(recv(slow, in, 1, 0));
    close(quick);
}
static void born_b(struct side *side) {
    int first = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    say("socket: flags %o, descriptor flags %x", fcntl(first, F_GETFL), fcntl(first, F_GETFD));
    SHOW(connect(first, (struct sockaddr *)&side->address, address_size(&side->address)));
    await_events(first, POLLOUT);
    int error = -1;
    socklen_t size = sizeof(error);
    SHOW(getsockopt(first, SOL_SOCKET, SO_ERROR, &error, &size));
    say("SO_ERROR %d", error);
    /* One more connect is how programs ask whether it is done. */
    SHOW(connect(first, (struct sockaddr *)&side->address, address_size(&side->address)));
    SHOW(connect(first, (struct sockaddr *)&side->address, address_size(&side->address)));
    SHOW(recv(first, in, 1, 0));
    int second = connect_to(&side->address);
    tell(side);
    hear(side);
    set_nonblocking(first, false);
    warm(first, false);
    hear(side);
    send_all(first, "now", 3);
    send_all(second, "x", 1);
    SHOW(recv(first, in, 1, 0));
}
static void born(void) { two_processes(AF_INET, born_a, born_b); }

/* O_NONBLOCK as it was made before the first call: by which descriptor and process, before and after connecting. */
enum { BY_FCNTL, BY_IOCTL, BY_FLAG, BY_COPY, BY_CHILD, BY_VFORK, TAKEN_BACK, TAKEN_BACK_BY_IOCTL, BY_NOBODY, MAKERS };
static const char *const MAKER[MAKERS] = {
    "fcntl", "ioctl", "flag", "copy", "child", "vfork", "taken back", "taken back by ioctl", "nobody"};
static void make(int maker, int fd) {
    int on = 1, off = 0;
    if (maker == BY_FCNTL) MUST(fcntl(fd, F_SETFL, O_NONBLOCK));
    if (maker == BY_IOCTL) MUST(ioctl(fd, FIONBIO, &on));
    if (maker == BY_COPY) {
        int copy = (int)MUST(dup(fd));
        MUST(fcntl(copy, F_SETFL, O_NONBLOCK));
        MUST(close(copy));
    }
    if (maker == BY_CHILD || maker == BY_VFORK) {
        pid_t child = maker == BY_CHILD ? fork() : vfork();
        if (child == 0) _exit(fcntl(fd, F_SETFL, O_NONBLOCK) == 0 ? 0 : 1);
        say("a child: %d", ended(child));
    }
    if (maker == TAKEN_BACK) MUST(fcntl(fd, F_SETFL, 0));
    if (maker == TAKEN_BACK_BY_IOCTL) MUST(ioctl(fd, FIONBIO, &off));
}
static int born_with(int maker) {
    return maker == BY_FLAG || maker == TAKEN_BACK || maker == TAKEN_BACK_BY_IOCTL ? SOCK_NONBLOCK : 0;
}
static void first_call(struct side *side, int maker, int fd) {
    bool blocks = maker >= TAKEN_BACK;
    say("%s: flags %o", MAKER[maker], fcntl(fd, F_GETFL));
    if (!blocks) SHOW(recv(fd, in, 1, 0));
    for (int round = 0; round < 40; round++) {
        MUST(send(fd, "x", 1, 0));
        if (!blocks) await_bytes(fd, 1);
        MUST(recv(fd, in, 1, 0));
    }
    /* It goes fast by now, where it can: the library says whether it blocks. */
    if (!blocks) SHOW(recv(fd, in, 1, 0));
    tell(side);
    if (!blocks) await_bytes(fd, 1);
    SHOW(recv(fd, in, 1, 0));
    MUST(close(fd));
}
static void answer(struct side *side, int maker, int fd) {
    for (int round = 0; round < 40; round++) {
        MUST(recv(fd, in, 1, 0));
        MUST(send(fd, "y", 1, 0));
    }
    hear(side);
    if (maker >= TAKEN_BACK) await_asleep(side->other);
    SHOW(send(fd, "z", 1, 0));
    SHOW(recv(fd, in, 1, 0));
    MUST(close(fd));
}
static void first_accepted_a(struct side *side) {
    for (int maker = 0; maker < MAKERS; maker++) {
        int fd = (int)MUST(accept4(side->listener, NULL, NULL, born_with(maker)));
        make(maker, fd);
        first_call(side, maker, fd);
    }
}
static void first_accepted_b(struct side *side) {
    for (int maker = 0; maker < MAKERS; maker++) answer(side, maker, connect_to(&side->address));
}
static void first_accepted(void) { two_processes(AF_INET, first_accepted_a, first_accepted_b); }

static void first_connected_a(struct side *side) {
    for (int maker = 0; maker < MAKERS * 2; maker++)
        answer(side, maker % MAKERS, (int)MUST(accept(side->listener, NULL, NULL)));
}
static void first_connected_b(struct side *side) {
    for (int round = 0; round < MAKERS * 2; round++) {
        int maker = round % MAKERS, early = round / MAKERS;
        int fd = (int)MUST(socket(side->address.ss_family, SOCK_STREAM | born_with(maker), 0));
        if (early) make(maker, fd);
        int answer = connect(fd, (struct sockaddr *)&side->address, address_size(&side->address));
        if (answer && errno != EINPROGRESS) fail("connect");
        await_events(fd, POLLOUT);
        if (!early) make(maker, fd);
        first_call(side, maker, fd);
    }
}
static void first_connected(void) { two_processes(AF_INET6, first_connected_a, first_connected_b); }

/* A socket gets its second name while another thread changes O_NONBLOCK: one connection, by whichever name. */
enum { NAMED = 150 };
static atomic_int named, naming;
static void *change(void *nothing) {
    for (int on = 0; naming; on = !on) {
        int fd = named;
        /* Fails where the number is none any more. */
        if (fd >= 0) ioctl(fd, FIONBIO, &on);
    }
    return nothing;
}
static void named_beside_a(struct side *side) {
    for (int round = 0; round < NAMED; round++) {
        int fd = (int)MUST(accept(side->listener, NULL, NULL));
        while (receive_all(fd, in, 4) == 4) send_all(fd, in, 4);
        MUST(close(fd));
    }
}
static void named_beside_b(struct side *side) {
    for (int round = 0; round < NAMED; round++) {
        pthread_t thread;
        int fd = (int)MUST(socket(side->address.ss_family, SOCK_STREAM, 0));
        named = fd;
        naming = 1;
        start_thread(&thread, change, NULL);
        while (fcntl(fd, F_GETFL) == O_RDWR) continue; /* until it does */
        int twin = (int)MUST(dup(fd));
        naming = 0;
        pthread_join(thread, NULL);
        set_nonblocking(fd, false);
        MUST(connect(fd, (struct sockaddr *)&side->address, address_size(&side->address)));
        for (int i = 0; i < 12; i++) {
            unsigned char sent[4] = {(unsigned char)round, (unsigned char)i, 1, 2}, got[4] = {0};
            send_all(i & 1 ? twin : fd, sent, 4);
            if (receive_all(i & 2 ? twin : fd, got, 4) != 4 || memcmp(sent, got, 4) != 0) fail("wrong bytes");
        }
        MUST(close(fd));
        MUST(close(twin));
    }
}
static void named_beside(void) { two_processes(AF_INET, named_beside_a, named_beside_b); }

/* Full: not writable until the other side reads; every byte that was taken arrives. */
static size_t taken;
static void full_a(struct side *side) {
    set_nonblocking(side->fd, true);
    taken = stuff_for_good(side->fd, 7);
    say("more than nothing: %d", taken > 0);
    SHOW(send(side->fd, in, 1, 0));
    SHOW(write(side->fd, in, sizeof(in)));
    struct pollfd ready = {side->fd, POLLIN | POLLOUT, 0};
    SHOW(poll(&ready, 1, 0));
    SHOW(poll(&ready, 1, 30));
    MUST(write(side->turn, &taken, sizeof(taken)));
    SHOW(poll(&ready, 1, -1));
    say("events %x", ready.revents);
    set_nonblocking(side->fd, false);
    char last = 0;
    send_all(side->fd, "end", 3);
    SHOW(recv(side->fd, &last, 1, 0));
}
static void full_b(struct side *side) {
    size_t count = 0, at = 0;
    MUST(read(side->turn, &count, sizeof(count)));
    while (at < count) {
        size_t want = count - at < sizeof(in) ? count - at : sizeof(in);
        size_t got = receive_all(side->fd, in, want);
        if (got != want || differs(in, got, 7, at) != -1) fail("wrong bytes");
        at += got;
    }
    long got = (long)receive_all(side->fd, in, 3);
    say_bytes("after all that was taken", in, got);
    send_all(side->fd, "!", 1);
}
static void full(void) { two_processes(AF_INET, full_a, full_b); }
static void full_threads(void) { two_threads(AF_INET, full_a, full_b); }

/* A blocking send larger than all buffers waits; a nonblocking one takes a part. */
static void larger_a(struct side *side) {
    size_t size = 16 * MIB;
    char *bytes = malloc(size);
    fill(bytes, size, 8, 0);
    hear(side);
    SHOW(send(side->fd, bytes, size, 0));
    hear(side);
    set_nonblocking(side->fd, true);
    long part = send(side->fd, bytes, size, 0);
    say("a part: %d", part > 0 && part < (long)size);
    MUST(write(side->turn, &part, sizeof(part)));
    hear(side);
    free(bytes);
}
static void larger_b(struct side *side) {
    size_t size = 16 * MIB;
    char *bytes = malloc(size);
    pid_t sender = side->other;
    tell(side);
    await_asleep(sender);
    SHOW(receive_all(side->fd, bytes, size));
    say("first difference %ld", differs(bytes, size, 8, 0));
    tell(side);
    long part = 0;
    MUST(read(side->turn, &part, sizeof(part)));
    size_t got = receive_all(side->fd, bytes, (size_t)part);
    say("all of the part: %d, first difference %ld", (long)got == part, differs(bytes, got, 8, 0));
    SHOW(recv(side->fd, bytes, 1, MSG_DONTWAIT));
    tell(side);
    free(bytes);
}
static void larger(void) { two_processes(AF_INET, larger_a, larger_b); }

/* A connect that is refused, asked about in each way. */
static void refused(void) {
    struct sockaddr_storage address;
    close(listen_on(AF_INET, &address));
    int fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    SHOW(connect(fd, (struct sockaddr *)&address, address_size(&address)));
    struct pollfd ready = {fd, POLLIN | POLLOUT, 0};
    SHOW(poll(&ready, 1, -1));
    say("events %x", ready.revents);
    int error = -1;
    socklen_t size = sizeof(error);
    SHOW(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size));
    say("SO_ERROR %s", error_name(error));
    SHOW(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size));
    say("SO_ERROR %s", error_name(error));
    SHOW(recv(fd, in, 1, 0));
    SHOW(send(fd, in, 1, MSG_NOSIGNAL));
}

const struct scenario scenarios[] = {
    {"switches", switches, 0},
    {"born", born, 0},
    {"first-accepted", first_accepted, 0},
    {"first-connected", first_connected, 0},
    {"named-beside", named_beside, 0},
    {"full", full, 0},
    {"full-threads", full_threads, 0},
    {"larger", larger, 0},
    {"refused", refused, true},
    {0},
};
