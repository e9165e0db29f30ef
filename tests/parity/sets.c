/* Registrations of epoll sets: several, changed, removed, alike, and beside other kinds of files. */
#include "sets.h"

#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/timerfd.h>

/* One connection in several sets, in one set under two numbers. */
static void several_a(struct side *side) {
    int fd = side->fd, one = (int)MUST(epoll_create1(0)), two = (int)MUST(epoll_create1(0)), twin = (int)MUST(dup(fd));
    add(one, fd, EPOLLIN, 1);
    add(one, twin, EPOLLIN | EPOLLET, 2);
    add(two, fd, EPOLLIN | EPOLLOUT | EPOLLET, 3);
    add(two, twin, EPOLLIN | EPOLLONESHOT, 4);
    report("one", one, 0);
    report("two", two, 0);
    for (int rounds = 0; rounds < 3; rounds++) {
        ten_now(side);
        await_bytes(fd, 10);
        report("one", one, -1);
        report("one again", one, -1);
        report_all("two", two, rounds == 0 ? 2 : 1);
        report("two again", two, 0);
        SHOW(recv(rounds % 2 ? fd : twin, in, 100, 0));
        report("one read", one, 0);
    }
    SHOW(epoll_ctl(one, EPOLL_CTL_DEL, fd, NULL));
    ten_later(side);
    report("one without fd", one, -1);
    report("two", two, -1);
    SHOW(close(fd)); /* its place in the second set goes on until the duplicate is closed too */
    ten_now(side);
    await_bytes(twin, 20);
    report("one", one, -1);
    report("two", two, -1);
    SHOW(receive_all(twin, in, 20)); /* some of it lies in the ring, some in the kernel */
    SHOW(close(twin));
    report("one empty", one, 0);
    report("two empty", two, 0);
    quit(side);
}
static void several(void) { two_processes(AF_INET, several_a, ten_when_told); }

/* A registration that was changed just before its descriptor is closed goes on as changed while the socket has
 * another. */
static void close_changed(struct side *side, uint32_t before, uint32_t after) {
    int set = (int)MUST(epoll_create1(0)), twin = (int)MUST(dup(side->fd));
    struct epoll_event event = {.events = after, .data.u64 = 1};
    add(set, side->fd, before, 1);
    add(set, twin, EPOLLIN, 2);
    SHOW(epoll_ctl(set, after ? EPOLL_CTL_MOD : EPOLL_CTL_DEL, side->fd, &event));
    SHOW(close(side->fd));
    report("closed", set, after & EPOLLOUT ? -1 : 0);
    ten_now(side);
    await_bytes(twin, 10);
    report_all("with ten", set, after ? 2 : 1);
    SHOW(receive_all(twin, in, 10));
    quit(side);
}
static void close_out_a(struct side *side) { close_changed(side, EPOLLIN, EPOLLOUT); }
static void close_in_a(struct side *side) { close_changed(side, EPOLLOUT, EPOLLIN); }
static void close_none_a(struct side *side) { close_changed(side, EPOLLIN, 0); }
static void close_out(void) { two_processes(AF_INET, close_out_a, ten_when_told); }
static void close_in(void) { two_processes(AF_INET, close_in_a, ten_when_told); }
static void close_none(void) { two_processes(AF_INET, close_none_a, ten_when_told); }

/* A descriptor is closed that was to tell of what is there already; its set tells of it nevertheless. */
static void close_unread_by(struct side *side, uint32_t events) {
    int set = (int)MUST(epoll_create1(0)), twin = (int)MUST(dup(side->fd));
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT, .data.u64 = 1};
    add(set, side->fd, events, 1);
    for (int rounds = 0; rounds < 20; rounds++) {
        ten_now(side);
        report("ten", set, -1);
        SHOW(receive_all(side->fd, in, 10));
    }
    ten_now(side);
    await_bytes(side->fd, 10);
    SHOW(close(side->fd));
    report("closed", set, -1);
    SHOW(receive_all(twin, in, 10));
    report("read", set, 0);
    SHOW(epoll_ctl(set, EPOLL_CTL_MOD, twin, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, twin, &event));
    for (int rounds = 0; rounds < 3; rounds++) {
        ten_now(side);
        report("ten more", set, -1);
        SHOW(receive_all(twin, in, 10));
        report("read", set, 0);
    }
    add(set, twin, EPOLLIN, 2);
    ten_now(side);
    await_bytes(twin, 10);
    report_all("both", set, 2);
    SHOW(receive_all(twin, in, 10));
    quit(side);
}
static void close_unread_a(struct side *side) { close_unread_by(side, EPOLLIN); }
static void close_unread_edge_a(struct side *side) { close_unread_by(side, EPOLLIN | EPOLLET); }
static void close_unread(void) { two_processes(AF_INET, close_unread_a, ten_when_told); }
static void close_unread_edge(void) { two_processes(AF_INET, close_unread_edge_a, ten_when_told); }

/* A connection that never stops being ready does not hide a pipe, an eventfd, a timer, a listener or another
 * connection. */
static void starving_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), second = another(side), pipes[2], event = eventfd(0, EFD_NONBLOCK),
        timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec often = {{0, 1000000}, {0, 1000000}};
    MUST(pipe2(pipes, O_NONBLOCK));
    MUST(timerfd_settime(timer, 0, &often, NULL));
    add(set, side->fd, EPOLLIN, 0);
    add(set, pipes[0], EPOLLIN, 1);
    add(set, event, EPOLLIN, 2);
    add(set, timer, EPOLLIN, 3);
    add(set, second, EPOLLIN, 4);
    add(set, side->listener, EPOLLIN, 5);
    tell(side);
    int seen[6] = {0}, sum = 0;
    for (int rounds = 0; seen[1] < 50 || seen[2] < 50 || seen[3] < 50 || seen[4] < 50 || seen[5] < 5; rounds++) {
        struct epoll_event ready = {0};
        uint64_t count = 1;
        if (rounds % 100 == 0) {
            MUST(write(pipes[1], "p", 1));
            MUST(write(event, &count, 8));
        }
        /* One at a time, and only a little of what the busy one has. */
        if (MUST(epoll_wait(set, &ready, 1, -1)) != 1) continue;
        seen[ready.data.u64]++;
        switch (ready.data.u64) {
        case 0: sum += (int)MUST(recv(side->fd, in, 100, 0)); break;
        case 1: MUST(read(pipes[0], in, 100)); break;
        case 2: MUST(read(event, &count, 8)); break;
        case 3: MUST(read(timer, &count, 8)); break;
        case 4: MUST(recv(second, in, 1, 0)); break;
        default: MUST(close((int)MUST(accept(side->listener, NULL, NULL))));
        }
    }
    say("none starved, the busy one neither: %d", seen[0] > 50 && sum > 5000);
    tell(side);
    while (recv(side->fd, in, sizeof(in), 0) > 0) {}
}
static void starving_b(struct side *side) {
    struct pollfd told = {side->turn, POLLIN, 0};
    int second = another(side);
    hear(side);
    for (int rounds = 0; poll(&told, 1, 0) == 0; rounds++) {
        if (send(side->fd, in, 20000, MSG_DONTWAIT | MSG_NOSIGNAL) == -1) nap_ms(1);
        if (rounds % 10 == 0) send(second, "x", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (rounds % 100 == 0) close(connect_to(&side->address));
    }
    hear(side);
    shutdown(side->fd, SHUT_WR);
    close(second);
}
static void starving(void) { two_processes(AF_INET, starving_a, starving_b); }

/* With little room each call, every ready descriptor is told although the others stay ready. Not within as many calls
 * as there are: where some are on the fast path, the kernel is asked for the others by the clock. */
static void fair_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), fds[12];
    for (size_t i = 0; i < COUNT(fds); i++) add(set, fds[i] = another(side), EPOLLIN, i);
    tell(side);
    hear(side);
    for (size_t i = 0; i < COUNT(fds); i++) await_bytes(fds[i], 1);
    for (int rooms = 1; rooms <= 5; rooms += 2) {
        unsigned seen = 0;
        for (int calls = 0; calls < 1000000 && seen != (1u << COUNT(fds)) - 1; calls++) {
            struct epoll_event events[5];
            int count = (int)MUST(epoll_wait(set, events, rooms, -1));
            for (int i = 0; i < count; i++) seen |= 1u << events[i].data.u64;
        }
        say("room for %d: %s", rooms, seen == (1u << COUNT(fds)) - 1 ? "all were told" : "some were not told");
    }
    tell(side);
}
static void fair_b(struct side *side) {
    int fds[12];
    for (size_t i = 0; i < COUNT(fds); i++) fds[i] = another(side);
    hear(side);
    for (size_t i = 0; i < COUNT(fds); i++) send_all(fds[i], "x", 1);
    tell(side);
    hear(side);
}
static void fair(void) { two_processes(AF_INET, fair_a, fair_b); }

/* A registration changed while the connection is fast, for news that come on the kernel path (data, the end); beside a
 * socket that is always ready, so that the set never sleeps. */
static void changed_beside_a(struct side *side) {
    int changed = another(side), set = (int)MUST(epoll_create1(0));
    struct epoll_event events[8];
    bool told = false;
    add(set, changed, EPOLLOUT, 2);
    report("room", set, -1);
    add(set, side->fd, EPOLLIN, 1);
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, changed, NULL));
    add(set, changed, EPOLLIN, 2);
    tell(side);
    while (!told) {
        int count = (int)MUST(epoll_wait(set, events, COUNT(events), -1));
        for (int i = 0; i < count; i++) told |= events[i].data.u64 == 2;
    }
    say("told beside what is always ready");
    SHOW(recv(changed, in, sizeof(in), 0));
    tell(side);
}
static void changed_beside_b(struct side *side) {
    int changed = another(side), on = 1;
    hear(side);
    send_all(side->fd, "0123456789", 10);
    /* A connection with this option is not carried. */
    MUST(setsockopt(changed, SOL_SOCKET, SO_OOBINLINE, &on, sizeof(on)));
    send_all(changed, "abc", 3);
    hear(side);
}
static void changed_ends_b(struct side *side) {
    int changed = another(side);
    hear(side);
    send_all(side->fd, "0123456789", 10);
    close(changed);
    hear(side);
}
static void changed_beside(void) { two_processes(AF_INET, changed_beside_a, changed_beside_b); }
static void changed_ends(void) { two_processes(AF_INET, changed_beside_a, changed_ends_b); }

/* A socket is taken out of its set while it is fast, and closed: the set still goes to sleep. */
static void removed_a(struct side *side) {
    int second = another(side), set = (int)MUST(epoll_create1(0));
    add(set, side->fd, EPOLLIN, 1);
    add(set, second, EPOLLIN, 2);
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, second, NULL));
    close(second);
    ten_later(side);
    report("woken", set, -1);
    quit(side);
}
static void removed_b(struct side *side) {
    close(another(side));
    ten_when_told(side);
}
static void removed(void) { two_processes(AF_INET, removed_a, removed_b); }

/* Several sockets and a pipe are registered with the same data: each is told, and none uses up another's
 * registration. */
static void same_data_a(struct side *side) {
    static const uint32_t kinds[] = {0, EPOLLET, EPOLLONESHOT, EPOLLET | EPOLLONESHOT};
    for (size_t i = 0; i < COUNT(kinds); i++) {
        int second = another(side), set = (int)MUST(epoll_create1(0)), pipes[2];
        MUST(pipe(pipes));
        add(set, pipes[0], EPOLLIN | kinds[i], 0);
        add(set, side->fd, EPOLLIN | kinds[i], 0);
        add(set, second, EPOLLIN | kinds[i], 0);
        report("nothing", set, 0);
        MUST(write(pipes[1], "p", 1));
        report("the pipe", set, -1);
        MUST(read(pipes[0], in, 1));
        tell(side);
        hear(side);
        report("the first", set, -1);
        receive_all(side->fd, in, 10);
        tell(side);
        hear(side);
        report("the second", set, -1);
        close(second);
        struct epoll_event again = {.events = EPOLLIN | kinds[i]};
        MUST(epoll_ctl(set, EPOLL_CTL_MOD, pipes[0], &again));
        MUST(write(pipes[1], "p", 1));
        report("the pipe again", set, 5000);
        close(set);
        close(pipes[0]);
        close(pipes[1]);
    }
}
static void same_data_b(struct side *side) {
    for (int i = 0; i < 4; i++) {
        int second = another(side);
        hear(side);
        send_all(side->fd, "0123456789", 10);
        tell(side);
        hear(side);
        send_all(second, "s", 1);
        tell(side);
        SHOW(recv(second, in, 1, 0));
        close(second);
    }
}
static void same_data(void) { two_processes(AF_INET, same_data_a, same_data_b); }

/* A registration is changed while the connection is fast, which then goes back to the kernel for good. */
static void changed_below_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), low = 5;
    struct epoll_event event = {.events = EPOLLOUT, .data.u64 = 2};
    add(set, side->fd, EPOLLIN, 1);
    report("nothing", set, 0);
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &(struct epoll_event){.events = EPOLLIN | EPOLLOUT, .data.u64 = 1}));
    report("room", set, 0);
    event.data.u64 = 1;
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &event));
    MUST(setsockopt(side->fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof(low)));
    report("room again", set, 0);
    report("and again", set, 0);
    close(set);
}
static void idle_b(struct side *side) { SHOW(recv(side->fd, in, 1, 0)); }
static void changed_below(void) { two_processes(AF_INET, changed_below_a, idle_b); }

/* A set by several descriptors: each of them is the set, until the last is closed. */
static void copies_step(struct side *side, const char *when, int set) {
    for (int i = 0; i < 3; i++) {
        i == 1 ? ten_later(side) : ten_now(side);
        report(when, set, -1);
        report(when, set, 0);
        SHOW(recv(side->fd, in, 100, 0));
    }
}
static void *copies_sleeper(void *argument) {
    int *copy = argument;
    struct epoll_event event;
    role = 'S';
    SHOW(epoll_wait(*copy, &event, 1, -1));
    return NULL;
}
static void copies_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), early = (int)MUST(dup(set));
    add(set, side->fd, EPOLLIN, 1);
    copies_step(side, "made before", early);
    int copies[] = {(int)MUST(dup(set)), (int)MUST(dup2(set, 100)), (int)MUST(dup3(set, 101, O_CLOEXEC)),
                    (int)MUST(fcntl(set, F_DUPFD, 1200)), (int)MUST(fcntl(early, F_DUPFD_CLOEXEC, 1200))};
    for (size_t i = 0; i < COUNT(copies); i++) {
        copies_step(side, "copy", copies[i]);
        copies_step(side, "set", set);
    }
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = 2};
    SHOW(epoll_ctl(copies[0], EPOLL_CTL_ADD, side->fd, &event));
    SHOW(epoll_ctl(copies[0], EPOLL_CTL_MOD, side->fd, &event));
    copies_step(side, "edge", set);
    SHOW(epoll_ctl(copies[1], EPOLL_CTL_DEL, side->fd, NULL));
    ten_now(side);
    report("removed", early, 0);
    event.events = EPOLLIN;
    SHOW(epoll_ctl(copies[3], EPOLL_CTL_ADD, side->fd, &event));
    report("added", early, -1);
    SHOW(recv(side->fd, in, 100, 0));
    /* A thread sleeps on one, and another takes what comes by another. */
    int rest = 0;
    for (int i = 0; i < 5; i++) {
        pthread_t sleeper;
        start_thread(&sleeper, copies_sleeper, &copies[i]);
        ten_now(side);
        report("beside", set, -1);
        SHOW(recv(side->fd, in, 10, 0));
        ten_now(side);
        pthread_join(sleeper, NULL);
        rest += (int)MUST(recv(side->fd, in, 100, 0));
    }
    say("rest %d", rest);
    /* In another set, by a descriptor that is closed. */
    int outer = (int)MUST(epoll_create1(0));
    add(outer, set, EPOLLIN, 3);
    copies_step(side, "outer", outer);
    close(set);
    copies_step(side, "closed in outer", outer);
    copies_step(side, "left", copies[2]);
    struct pollfd polled = {copies[4], POLLIN, 0};
    for (int i = 0; i < 3; i++) {
        i == 1 ? ten_later(side) : ten_now(side);
        SHOW(poll(&polled, 1, -1));
        SHOW(recv(side->fd, in, 100, 0));
        SHOW(poll(&polled, 1, 0));
    }
    close(early);
    for (size_t i = 0; i < COUNT(copies) - 1; i++) SHOW(close(copies[i]));
    copies_step(side, "last", copies[4]);
    copies_step(side, "last in outer", outer);
    if (fork() == 0) {
        role = 'C';
        int copy = (int)MUST(dup(copies[4]));
        close(copies[4]);
        copies_step(side, "child", copy);
        close(copy);
        _exit(0);
    }
    wait(NULL);
    copies_step(side, "after it", copies[4]);
    SHOW(close(copies[4]));
    ten_now(side);
    report("outer alone", outer, 0);
    SHOW(epoll_wait(copies[4], &event, 1, 0));
    quit(side);
}
static void copies(void) { two_processes(AF_INET, copies_a, ten_when_told); }

/* Many registrations with the same data, half of them removed before anything comes. */
static void alike_a(struct side *side) {
    enum { CROWD = 40 };
    int set = (int)MUST(epoll_create1(0)), pairs[CROWD][2];
    for (int i = 0; i < CROWD; i++) {
        pairs[i][1] = connect_to(&side->address);
        pairs[i][0] = (int)MUST(accept(side->listener, NULL, NULL));
        for (int n = 0; n < 80; n++) {
            MUST(send(pairs[i][n % 2], "x", 1, 0));
            MUST(recv(pairs[i][!(n % 2)], in, 1, 0));
        }
        add(set, pairs[i][0], EPOLLIN, 2);
    }
    report("nothing yet", set, 0);
    for (int i = 0; i < CROWD; i += 2) SHOW(epoll_ctl(set, EPOLL_CTL_DEL, pairs[i][0], NULL));
    for (int i = 0; i < CROWD; i += 2) MUST(send(pairs[i][1], "x", 1, 0));
    for (int i = 0; i < CROWD; i += 2) await_bytes(pairs[i][0], 1);
    report("removed", set, 0);
    for (int i = 1; i < CROWD; i += 2) {
        MUST(send(pairs[i][1], "x", 1, 0));
        report("one", set, -1);
        SHOW(recv(pairs[i][0], in, 1, 0));
        report("read", set, 0);
    }
    tell(side);
}
static void alike(void) { two_processes(AF_INET, alike_a, hear); }

/* The number of a set that libc has closed by itself is another set's, and then a socket's. */
static void reused_a(struct side *side) {
    ten_now(side);
    await_bytes(side->fd, 10);
    for (int round = 0; round < 2; round++) {
        int set = (int)MUST(epoll_create1(0));
        add(set, side->fd, EPOLLIN, 1);
        report("the old set", set, -1);
        fclose(fdopen(set, "r"));
        if (round == 0) {
            int next = (int)MUST(epoll_create1(0));
            say("the same number %d", next == set);
            report("nothing registered", next, 0);
            add(next, side->fd, EPOLLIN, 2);
            report("the new set", next, -1);
            SHOW(close(next));
        } else {
            int next = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
            struct pollfd ready = {next, POLLIN, 0};
            say("the same number %d", next == set);
            SHOW(poll(&ready, 1, 0));
            say("events %x", ready.revents);
            SHOW(close(next));
        }
    }
    SHOW(receive_all(side->fd, in, 10));
    quit(side);
}
static void reused(void) { two_processes(AF_INET, reused_a, ten_when_told); }

const struct scenario scenarios[] = {
    {"several", several, 0}, {"close-out", close_out, 0}, {"close-in", close_in, 0}, {"close-none", close_none, 0},
    {"close-unread", close_unread, 0}, {"close-unread-edge", close_unread_edge, 0}, {"starving", starving, 0},
    {"fair", fair, 0}, {"changed-beside", changed_beside, 0}, {"changed-ends", changed_ends, 0},
    {"removed", removed, 0}, {"same-data", same_data, 0}, {"changed-below", changed_below, 0}, {"copies", copies, 0},
    {"alike", alike, 0}, {"reused", reused, 0},
    {0},
};
