/* Programs rely on this when they wait: that a call which timed out says so, that nothing starves, that every edge
 * comes. */
#include "harness.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

static _Thread_local char piece[64 * KIB];

static int set_of(int fd, uint32_t events) {
    int set = (int)MUST(epoll_create1(0));
    struct epoll_event event = {.events = events, .data.fd = fd};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    return set;
}
static void receive_within(int fd, long milliseconds) {
    struct timeval time = {.tv_usec = milliseconds * 1000};
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof(time)));
}

/* The answer is late, and the server has read the request in two halves: that is no end of the stream. */
static void late_a(struct side *side) {
    receive_within(side->fd, 5);
    for (int i = 0; i < 20; i++) {
        hear(side);
        nap_ms(1);
        send_all(side->fd, "requests", 8);
        hear(side);
        SHOW(recv(side->fd, piece, 1, 0));
        SHOW(recv(side->fd, piece, 1, 0));
        tell(side);
        await_bytes(side->fd, 1);
        SHOW(recv(side->fd, piece, 1, 0));
    }
}
static void late_b(struct side *side) {
    int set = set_of(side->fd, EPOLLIN);
    for (int i = 0; i < 20; i++) {
        struct epoll_event event;
        tell(side);
        MUST(epoll_wait(set, &event, 1, -1));
        receive_all(side->fd, piece, 4);
        receive_all(side->fd, piece, 4);
        tell(side);
        hear(side);
        send_all(side->fd, "!", 1);
    }
    close(set);
}
static void late(void) { two_processes(AF_INET, late_a, late_b); }

/* A receive waits on its own, beside an edge-triggered registration whose event was not taken. */
static void beside_a(struct side *side) {
    int set = set_of(side->fd, EPOLLIN | EPOLLET);
    for (int i = 0; i < 5; i++) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.fd = side->fd};
        receive_within(side->fd, 0);
        MUST(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &event));
        tell(side);
        SHOW(epoll_wait(set, &event, 1, -1));
        receive_all(side->fd, piece, 4);
        receive_all(side->fd, piece, 4);
        SHOW(epoll_wait(set, &event, 1, 5));
        receive_within(side->fd, 5);
        SHOW(recv(side->fd, piece, 4, 0));
    }
    close(set);
}
static void beside_b(struct side *side) {
    for (int i = 0; i < 5; i++) {
        hear(side);
        nap_ms(2);
        send_all(side->fd, "messages", 8);
    }
    SHOW(recv(side->fd, piece, 1, 0));
}
static void beside(void) { two_processes(AF_INET, beside_a, beside_b); }

/* One connection can always be written; what comes of the other is told nevertheless. */
static void starved_a(struct side *side) {
    int other = another(side);
    for (int kind = 0; kind < 3; kind++) {
        struct pollfd both[] = {{side->fd, POLLOUT, 0}, {other, POLLIN, 0}, {-1, POLLIN, POLLIN}};
        tell(side);
        do {
            MUST(poll(both, COUNT(both), -1));
            send_all(side->fd, "more", 4);
        } while (!both[1].revents);
        say("%d: %x, none %x", kind, both[1].revents, both[2].revents);
        if (kind < 2) SHOW(recv(other, piece, 100, 0));
    }
    shutdown(side->fd, SHUT_WR);
    close(other);
}
static void *drain(void *argument) {
    while (recv(*(int *)argument, piece, sizeof(piece), 0) > 0) {}
    return NULL;
}
static void starved_b(struct side *side) {
    int other = another(side);
    pthread_t drainer;
    start_thread(&drainer, drain, &side->fd);
    for (int kind = 0; kind < 3; kind++) {
        hear(side);
        nap_ms(20);
        if (kind < 2) send_all(other, "news", 4);
        else SHOW(shutdown(other, SHUT_WR));
    }
    pthread_join(drainer, NULL);
    close(other);
}
static void starved(void) { two_processes(AF_INET, starved_a, starved_b); }

/* An edge-triggered writer waits after a short send (epoll(7)), while its reader is slow. */
static void edge_out_a(struct side *side) {
    const size_t total = 24 * MIB;
    int set = set_of(side->fd, EPOLLIN | EPOLLOUT | EPOLLET);
    set_nonblocking(side->fd, true);
    for (size_t sent = 0; sent < total;) {
        size_t size = sizeof(piece) < total - sent ? sizeof(piece) : total - sent;
        fill(piece, size, 1, sent);
        ssize_t moved = write(side->fd, piece, size);
        if (moved < 0 && errno != EAGAIN) fail("write");
        sent += moved > 0 ? (size_t)moved : 0;
        if (moved == (ssize_t)size) continue;
        for (struct epoll_event event = {0}; !(event.events & EPOLLOUT);) MUST(epoll_wait(set, &event, 1, -1));
    }
    hear(side);
    close(set);
}
static void edge_out_b(struct side *side) {
    uint64_t random = 7;
    for (size_t got = 0; got < 24 * MIB;) {
        ssize_t moved = recv(side->fd, piece, sizeof(piece), 0);
        if (moved <= 0 || differs(piece, (size_t)moved, 1, got) != -1) fail("recv");
        got += (size_t)moved;
        if (next_random(&random) % 64 == 0) nap_ms(1);
    }
    say("received all");
    tell(side);
}
static void edge_out(void) { two_processes(AF_INET, edge_out_a, edge_out_b); }

/* An edge-triggered reader stops when it has read more than FIONREAD promised: more has come, so there will be an
 * edge. */
static void edge_in_a(struct side *side) {
    const size_t total = 24 * MIB;
    set_nonblocking(side->fd, true);
    for (size_t sent = 0; sent < total;) {
        size_t size = sizeof(piece) < total - sent ? sizeof(piece) : total - sent;
        fill(piece, size, 2, sent);
        await_events(side->fd, POLLOUT);
        ssize_t moved = write(side->fd, piece, size);
        sent += moved > 0 ? (size_t)moved : 0;
    }
    hear(side);
}
static void edge_in_b(struct side *side) {
    const size_t total = 24 * MIB, count = 4 * KIB;
    uint64_t random = 7;
    int set = set_of(side->fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
    set_nonblocking(side->fd, true);
    for (size_t got = 0; got < total;) {
        struct epoll_event event;
        MUST(epoll_wait(set, &event, 1, -1));
        for (int promised = -1; got < total;) {
            ssize_t moved = recv(side->fd, piece, count, 0);
            if (moved < 0) break;
            if (moved == 0 || differs(piece, (size_t)moved, 2, got) != -1) fail("recv");
            got += (size_t)moved;
            if (promised >= 0) {
                promised -= (int)moved;
                if (promised < 0) break;
            } else if (moved == (ssize_t)count) {
                MUST(ioctl(side->fd, FIONREAD, &promised));
            }
            if (moved < (ssize_t)count) break;
            if (next_random(&random) % 128 == 0) nap_ms(1);
        }
    }
    say("received all");
    close(set);
    tell(side);
}
static void edge_in(void) { two_processes(AF_INET, edge_in_a, edge_in_b); }

/* Both ends of a connection in one process, one thread and one set. */
static void within_a(struct side *side) {
    (void)side;
    struct sockaddr_storage address;
    int listener = listen_on(AF_INET, &address), ends[2], next[2] = {0, 1};
    ends[0] = connect_to(&address);
    ends[1] = (int)MUST(accept(listener, NULL, NULL));
    int set = (int)MUST(epoll_create1(0));
    for (int i = 0; i < 2; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u32 = (uint32_t)i};
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, ends[i], &event));
        set_nonblocking(ends[i], true);
    }
    for (int i = 0; i < 2000; i++) {
        int count = 0;
        struct epoll_event none;
        if (i % 100 == 0 && MUST(epoll_wait(set, &none, 1, 3)) != 0) fail("nothing was to come");
        MUST(send(ends[i % 2], &i, sizeof(i), 0));
        for (struct epoll_event event; count != i + 1;) {
            MUST(epoll_wait(set, &event, 1, -1));
            int reader = (int)event.data.u32;
            if (recv(ends[reader], &next[reader], sizeof(i), 0) != sizeof(i) || next[reader] != i) fail("recv");
            if (reader != 1 - i % 2) fail("the other end");
            count = i + 1;
        }
    }
    say("2000 messages");
    close(ends[0]);
    close(ends[1]);
    close(set);
    close(listener);
}
static void within_b(struct side *side) { (void)side; }
static void within(void) { two_processes(AF_INET, within_a, within_b); }

/* A program that waits by system calls of its own, which no library stands in front of. On the kernel each answer takes
 * 40 ms, as
   Nagle's algorithm has it. */
static void unseen_a(struct side *side) {
    long (*own)(long, ...) = (long (*)(long, ...))dlsym(dlopen("libc.so.6", RTLD_NOW), "syscall");
    int set = (int)MUST(own(SYS_epoll_create1, 0));
    struct epoll_event event = {.events = EPOLLIN};
    MUST(own(SYS_epoll_ctl, set, EPOLL_CTL_ADD, side->fd, &event));
    set_nonblocking(side->fd, true);
    for (int i = 0; i < 100; i++) {
        send_all(side->fd, "ask", 3);
        for (int got = 0; got < 6;) {
            ssize_t moved = recv(side->fd, piece, 4, 0);
            if (moved > 0) got += (int)moved;
            else if (errno != EAGAIN) fail("recv");
            else MUST(own(SYS_epoll_wait, set, &event, 1, -1));
        }
        if (recv(side->fd, piece, 1, 0) != -1 || errno != EAGAIN) fail("nothing was to come");
    }
    say("100 answers");
    own(SYS_close, set);
}
static void unseen_b(struct side *side) {
    for (int i = 0; i < 100; i++) {
        receive_all(side->fd, piece, 3);
        if (i % 30 == 0) nap_ms(5);
        send_all(side->fd, "ans", 3);
        if (i % 7 == 0) nap_ms(2);
        send_all(side->fd, "wer", 3);
    }
    SHOW(recv(side->fd, piece, 1, 0));
}
static void unseen(void) { two_processes(AF_INET, unseen_a, unseen_b); }

/* Two sockets are registered with the same data. */
static void alike_a(struct side *side) {
    int other = another(side);
    int set = (int)MUST(epoll_create1(0));
    hear(side);
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, other, &event));
    SHOW(epoll_wait(set, &event, 1, -1));
    say("events %x", event.events);
    SHOW(recv(side->fd, piece, 100, 0));
    SHOW(recv(other, piece, 100, 0));
    for (int i = 0; i < 5; i++) SHOW(epoll_wait(set, &event, 1, 5));
    for (int i = 0; i < 2; i++) {
        tell(side);
        SHOW(epoll_wait(set, &event, 1, -1));
        say("events %x", event.events);
        SHOW(recv(i ? other : side->fd, piece, 100, 0));
        SHOW(epoll_wait(set, &event, 1, 5));
    }
    close(other);
    close(set);
}
static void alike_b(struct side *side) {
    int other = another(side);
    send_all(side->fd, "one", 3);
    send_all(other, "other", 5);
    tell(side);
    for (int i = 0; i < 2; i++) {
        hear(side);
        nap_ms(3);
        send_all(i ? other : side->fd, "late", 4);
    }
    SHOW(recv(side->fd, piece, 1, 0));
    close(other);
}
static void alike(void) { two_processes(AF_INET, alike_a, alike_b); }

/* Three threads on exclusive registrations. */
struct work {
    int set, fds[4];
    atomic_int left;
};
static void *serve(void *argument) {
    struct work *work = argument;
    while (atomic_load(&work->left) > 0) {
        struct epoll_event event;
        if (MUST(epoll_wait(work->set, &event, 1, 20)) == 0) continue;
        ssize_t got = recv(event.data.fd, piece, 8, MSG_DONTWAIT);
        if (got == 8) {
            send_all(event.data.fd, piece, 8);
            atomic_fetch_sub(&work->left, 1);
        } else if (got > 0 || (got < 0 && errno != EAGAIN)) {
            fail("recv");
        }
    }
    return NULL;
}
static void exclusive_a(struct side *side) {
    struct work work = {.set = (int)MUST(epoll_create1(0)), .left = 4 * 200};
    for (size_t i = 0; i < COUNT(work.fds); i++) {
        work.fds[i] = another(side);
        struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE, .data.fd = work.fds[i]};
        MUST(epoll_ctl(work.set, EPOLL_CTL_ADD, work.fds[i], &event));
    }
    pthread_t threads[3];
    for (size_t i = 0; i < COUNT(threads); i++) start_thread(&threads[i], serve, &work);
    for (size_t i = 0; i < COUNT(threads); i++) pthread_join(threads[i], NULL);
    for (size_t i = 0; i < COUNT(work.fds); i++) SHOW(epoll_ctl(work.set, EPOLL_CTL_DEL, work.fds[i], NULL));
}
static void exclusive_b(struct side *side) {
    int fds[4];
    for (size_t i = 0; i < COUNT(fds); i++) fds[i] = another(side);
    for (int round = 0; round < 200; round++) {
        for (size_t i = 0; i < COUNT(fds); i++) send_all(fds[i], "question", 8);
        for (size_t i = 0; i < COUNT(fds); i++)
            if (receive_all(fds[i], piece, 8) != 8) fail("no answer");
    }
    say("800 answers");
}
static void exclusive(void) { two_processes(AF_INET, exclusive_a, exclusive_b); }

const struct scenario scenarios[] = {
    {"late", late, 0},         {"beside", beside, 0}, {"starved", starved, 0}, {"edge-out", edge_out, 0},
    {"edge-in", edge_in, 0},   {"within", within, 0}, {"unseen", unseen, 0},   {"alike", alike, 0},
    {"exclusive", exclusive, 0}, {0},
};
