/* Many epoll sets, many descriptors: nesting, sharing, exclusive waiters, duplicates, fairness, other kinds of
 * files. */
#include "harness.h"

#include <spawn.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/timerfd.h>

static _Thread_local char in[64 * KIB];

static void add(int set, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

/* The data of what is ready, in order, and the events. */
static void report(const char *when, int set, int timeout) {
    struct epoll_event events[32];
    char text[400] = "";
    int count = epoll_wait(set, events, COUNT(events), timeout);
    for (uint64_t data = 0; data < 64; data++) {
        for (int i = 0; i < count; i++) {
            if (events[i].data.u64 != data) continue;
            size_t length = strlen(text);
            snprintf(text + length, sizeof(text) - length, " %d:%x", (int)data, events[i].events);
        }
    }
    say("%s: %d%s", when, count, text);
}

/* The same until `sockets` sockets have been told: not within one call. A set in which some are on the fast path tells
 * of those first, and asks the kernel for the others by the clock. */
static void report_all(const char *when, int set, int sockets) {
    uint32_t told[64] = {0};
    char text[400] = "";
    for (int seen = 0; seen < sockets;) {
        struct epoll_event events[32];
        int count = (int)MUST(epoll_wait(set, events, COUNT(events), -1));
        for (int i = 0; i < count; i++) {
            seen += told[events[i].data.u64] == 0;
            told[events[i].data.u64] |= events[i].events;
        }
    }
    for (size_t data = 0; data < COUNT(told); data++) {
        size_t length = strlen(text);
        if (told[data]) snprintf(text + length, sizeof(text) - length, " %d:%x", (int)data, told[data]);
    }
    say("%s:%s", when, text);
}

static void ten_when_told(struct side *side) {
    for (;;) {
        char what;
        if (read(side->turn, &what, 1) != 1 || what == 'q') return;
        if (what == 'l') {
            tell(side);
            await_asleep(side->other);
        }
        send_all(side->fd, "0123456789", 10);
        if (what != 'l') tell(side);
    }
}
static void ten_now(struct side *side) {
    MUST(write(side->turn, "s", 1));
    hear(side);
}
static void ten_later(struct side *side) {
    MUST(write(side->turn, "l", 1));
    hear(side);
}
static void quit(struct side *side) { MUST(write(side->turn, "q", 1)); }

/* A set in a set in a set; poll and select on a set. */
static void nested_a(struct side *side) {
    int inner = (int)MUST(epoll_create1(0)), middle = (int)MUST(epoll_create1(0)), outer = (int)MUST(epoll_create1(0));
    struct pollfd ready = {outer, POLLIN, 0};
    add(inner, side->fd, EPOLLIN, 1);
    add(middle, inner, EPOLLIN, 2);
    add(outer, middle, EPOLLIN, 3);
    report("idle", outer, 20);
    SHOW(poll(&ready, 1, 20));
    ten_now(side);
    await_bytes(side->fd, 10);
    report("outer", outer, -1);
    report("middle", middle, -1);
    report("inner", inner, -1);
    SHOW(poll(&ready, 1, -1));
    fd_set set;
    FD_ZERO(&set);
    FD_SET(outer, &set);
    SHOW(select(outer + 1, &set, NULL, NULL, NULL));
    SHOW(recv(side->fd, in, 100, 0));
    report("read", outer, 20);
    SHOW(poll(&ready, 1, 0));
    ten_later(side);
    report("woken", outer, -1);
    SHOW(recv(side->fd, in, 100, 0));
    ten_later(side);
    SHOW(poll(&ready, 1, -1));
    SHOW(recv(side->fd, in, 100, 0));
    ten_later(side);
    SHOW(select(outer + 1, &set, NULL, NULL, NULL));
    SHOW(recv(side->fd, in, 100, 0));
    quit(side);
}
static void nested(void) { two_processes(AF_INET, nested_a, ten_when_told); }
static void nested_threads(void) { two_threads(AF_INET, nested_a, ten_when_told); }

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

/* A thread sleeps on a set while another changes what it asks for: what is true at once is told at once. */
struct listener {
    int set;
    atomic_int told;
    atomic_bool over;
};
static void *listen_for_room(void *argument) {
    struct listener *listener = argument;
    struct epoll_event event;
    while (!listener->over)
        if (epoll_wait(listener->set, &event, 1, 100) == 1 && event.events & EPOLLOUT) listener->told++;
    return NULL;
}
static void armed(struct side *side, uint32_t kind) {
    struct listener listener = {.set = (int)MUST(epoll_create1(0))};
    pthread_t thread;
    add(listener.set, side->fd, EPOLLIN | kind, 1);
    start_thread(&thread, listen_for_room, &listener);
    for (int round = 0; round < 300; round++) {
        struct epoll_event event = {.events = EPOLLIN | kind, .data.u64 = 1};
        MUST(epoll_ctl(listener.set, EPOLL_CTL_MOD, side->fd, &event));
        if (round % 3) nap_ms(1);
        int before = listener.told;
        event.events |= EPOLLOUT;
        MUST(epoll_ctl(listener.set, EPOLL_CTL_MOD, side->fd, &event));
        for (int waited = 0; listener.told == before && waited < 1000; waited++) nap_ms(1);
        if (listener.told == before) say("not told in round %d", round);
    }
    listener.over = true;
    pthread_join(thread, NULL);
    quit(side);
}
static void armed_once_a(struct side *side) { armed(side, EPOLLONESHOT); }
static void armed_edge_a(struct side *side) { armed(side, EPOLLET); }
static void armed_once(void) { two_processes(AF_INET, armed_once_a, ten_when_told); }
static void armed_edge(void) { two_processes(AF_INET, armed_edge_a, ten_when_told); }

/* Two threads wait, each with an exclusive set or both on one set: each message is taken, none is lost. */
struct waiter {
    int set, fd;
    atomic_bool *done;
    pthread_t thread;
    atomic_int *taken;
};
static void *wait_and_take(void *argument) {
    struct waiter *waiter = argument;
    struct epoll_event event;
    char byte;
    while (!*waiter->done) {
        if (epoll_wait(waiter->set, &event, 1, 10) != 1) continue;
        while (recv(waiter->fd, &byte, 1, MSG_DONTWAIT) == 1) (*waiter->taken)++;
    }
    return NULL;
}
static void share(struct side *side, uint32_t events, bool one_set) {
    atomic_bool done = false;
    atomic_int taken = 0;
    struct waiter waiters[3];
    for (size_t i = 0; i < COUNT(waiters); i++) {
        int set = one_set && i > 0 ? waiters[0].set : (int)MUST(epoll_create1(0));
        waiters[i] = (struct waiter){set, side->fd, &done, 0, &taken};
        if (i == 0 || !one_set) add(set, side->fd, events, i);
        start_thread(&waiters[i].thread, wait_and_take, &waiters[i]);
    }
    for (int sent = 0; sent < 300; sent += 10) {
        ten_now(side);
        while (taken < sent + 10) nap_ms(1);
    }
    say("taken %d", taken);
    done = true;
    for (size_t i = 0; i < COUNT(waiters); i++) pthread_join(waiters[i].thread, NULL);
    quit(side);
}
static void exclusive_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLEXCLUSIVE};
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &event));
    event.events = EPOLLIN;
    SHOW(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, side->fd, &event));
    event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT;
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    event.events = EPOLLIN | EPOLLEXCLUSIVE | EPOLLRDHUP;
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    share(side, EPOLLIN | EPOLLEXCLUSIVE, false);
}
static void one_set_a(struct side *side) { share(side, EPOLLIN | EPOLLET, true); }
static void each_set_a(struct side *side) { share(side, EPOLLIN, false); }
static void exclusive(void) { two_processes(AF_INET, exclusive_a, ten_when_told); }
static void one_set(void) { two_processes(AF_INET, one_set_a, ten_when_told); }
static void each_set(void) { two_processes(AF_INET, each_set_a, ten_when_told); }

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

/* A set changed by one thread while another sleeps in it. */
static void *wait_once(void *argument) {
    struct waiter *waiter = argument;
    role = 'C';
    atomic_int *task = waiter->taken;
    *task = this_task();
    report("the sleeper", waiter->set, -1);
    return NULL;
}
static void changed_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0));
    for (int rounds = 0; rounds < 3; rounds++) {
        atomic_int task = 0;
        struct waiter waiter = {.set = set, .taken = &task};
        if (rounds > 0) add(set, side->fd, 0, 1);
        start_thread(&waiter.thread, wait_once, &waiter);
        while (task == 0) nap_ms(1);
        await_asleep(task);
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = (uint64_t)rounds};
        if (rounds == 0) ten_now(side);
        SHOW(epoll_ctl(set, rounds ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, side->fd, &event));
        if (rounds > 0) ten_now(side);
        pthread_join(waiter.thread, NULL);
        SHOW(recv(side->fd, in, 100, 0));
        SHOW(epoll_ctl(set, EPOLL_CTL_DEL, side->fd, NULL));
    }
    quit(side);
}
static void changed(void) { two_processes(AF_INET, changed_a, ten_when_told); }

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

/* A sleeper is woken by what arrives for it, whatever other threads take from the same connection or set. */
struct sleeper {
    int set, fd;
    char letter;
    atomic_int task;
    pthread_t thread;
};
static void *sleep_in_set(void *argument) {
    struct sleeper *sleeper = argument;
    struct epoll_event event;
    role = sleeper->letter;
    sleeper->task = this_task();
    if (epoll_wait(sleeper->set, &event, 1, -1) != 1) fail("epoll_wait");
    return NULL;
}
static void *sleep_in_poll(void *argument) {
    struct sleeper *sleeper = argument;
    struct pollfd ready = {sleeper->fd, POLLIN, 0};
    role = sleeper->letter;
    sleeper->task = this_task();
    if (poll(&ready, 1, -1) != 1) fail("poll");
    return NULL;
}
static void put_to_sleep(struct sleeper *sleeper, void *(*body)(void *)) {
    sleeper->task = 0;
    start_thread(&sleeper->thread, body, sleeper);
    while (sleeper->task == 0) nap_ms(1);
    await_asleep(sleeper->task);
}

/* Two sets watch one connection. The thread of the second has looked and gone; the first must be woken. */
static void two_sets_a(struct side *side) {
    int one = (int)MUST(epoll_create1(0)), two = (int)MUST(epoll_create1(0));
    struct sleeper sleeper = {.set = one, .letter = 'C'};
    add(one, side->fd, EPOLLIN, 1);
    add(two, side->fd, EPOLLIN, 2);
    for (int rounds = 0; rounds < 3; rounds++) {
        put_to_sleep(&sleeper, sleep_in_set);
        report("the second", two, 20);
        ten_now(side);
        pthread_join(sleeper.thread, NULL);
        report("the second", two, -1);
        SHOW(recv(side->fd, in, 100, 0));
    }
    quit(side);
}
static void two_sets(void) { two_processes(AF_INET, two_sets_a, ten_when_told); }

/* Two threads in one set, room for one event each: what the first has not taken is for the second. */
static void crew_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), second = another(side);
    struct sleeper sleepers[2] = {{.set = set, .letter = 'C'}, {.set = set, .letter = 'D'}};
    add(set, side->fd, EPOLLIN | EPOLLET, 1);
    add(set, second, EPOLLIN | EPOLLET, 2);
    for (int rounds = 0; rounds < 5; rounds++) {
        put_to_sleep(&sleepers[0], sleep_in_set);
        put_to_sleep(&sleepers[1], sleep_in_set);
        tell(side);
        for (size_t i = 0; i < COUNT(sleepers); i++) pthread_join(sleepers[i].thread, NULL);
        SHOW(recv(side->fd, in, 100, 0));
        SHOW(recv(second, in, 100, 0));
    }
    hear(side);
}
static void crew_b(struct side *side) {
    int second = another(side);
    for (int rounds = 0; rounds < 5; rounds++) {
        hear(side);
        send_all(side->fd, "0123456789", 10);
        send_all(second, "0123456789", 10);
    }
    tell(side);
}
static void crew(void) { two_processes(AF_INET, crew_a, crew_b); }

/* One thread takes all it can get from a connection on which another sleeps, in a set with a second connection. */
static void beside_a(struct side *side, void *(*body)(void *)) {
    int set = (int)MUST(epoll_create1(0)), second = another(side);
    add(set, side->fd, EPOLLIN | EPOLLET, 1);
    add(set, second, EPOLLIN | EPOLLET, 2);
    for (int rounds = 0; rounds < 20; rounds++) {
        struct sleeper sleeper = {.set = set, .fd = side->fd, .letter = 'C'};
        put_to_sleep(&sleeper, body);
        tell(side);
        int taken = 0;
        while (taken < 100) {
            ssize_t got = recv(side->fd, in, 100, MSG_DONTWAIT);
            if (got > 0) taken += (int)got;
        }
        if (taken != 100) fail("too much");
        tell(side);
        pthread_join(sleeper.thread, NULL);
        if (receive_all(side->fd, in, 1) != 1 || receive_all(second, in, 1) != 1) fail("the last byte");
    }
    say("always woken");
}
static void beside_b(struct side *side) {
    int second = another(side);
    for (int rounds = 0; rounds < 20; rounds++) {
        hear(side);
        for (int i = 0; i < 10; i++) send_all(side->fd, "0123456789", 10);
        hear(side);
        send_all(second, "x", 1);
        send_all(side->fd, "x", 1);
    }
}
static void beside_set_a(struct side *side) { beside_a(side, sleep_in_set); }
static void beside_poll_a(struct side *side) { beside_a(side, sleep_in_poll); }
static void beside_set(void) { two_processes(AF_INET, beside_set_a, beside_b); }
static void beside_poll(void) { two_processes(AF_INET, beside_poll_a, beside_b); }

/* A set that a child inherits: both may wait in it. */
static void inherited_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), status = 0;
    add(set, side->fd, EPOLLIN, 5);
    ten_now(side);
    await_bytes(side->fd, 10);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        report("child", set, -1);
        SHOW(recv(side->fd, in, 4, 0));
        report("child again", set, -1);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    report("parent", set, -1);
    SHOW(recv(side->fd, in, 100, 0));
    report("read", set, 0);
    ten_later(side);
    report("woken", set, -1);
    quit(side);
}
static void inherited(void) { two_processes(AF_INET, inherited_a, ten_when_told); }

/* A registration is changed, and then again beside a child that has closed the socket, or waited for it: what the child
 * does leaves the parent's registration alone. The kernel knows of the first change by then, so that another program
 * does. */
static unsigned as_a_program_sees(int set) {
    char command[100], events[20] = "";
    int ends[2], status = 0;
    pid_t child;
    MUST(pipe2(ends, O_CLOEXEC));
    snprintf(command, sizeof(command), "sed -n 's/^tfd.*events: *\\([0-9a-f]*\\).*/\\1/p' /proc/self/fdinfo/%d", set);
    char *arguments[] = {"sh", "-c", command, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (posix_spawn(&child, "/bin/sh", &actions, NULL, arguments, environ) != 0) say("no shell");
    close(ends[1]);
    MUST(read(ends[0], events, sizeof(events) - 1));
    MUST(waitpid(child, &status, 0));
    close(ends[0]);
    return (unsigned)strtoul(events, NULL, 16) & 0xffff;
}
static void changed_twice_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), go[2], status = 0;
    struct epoll_event for_input = {EPOLLIN, {.u64 = 5}}, for_room = {EPOLLOUT, {.u64 = 5}};
    MUST(pipe(go));
    add(set, side->fd, EPOLLIN, 5);
    for (int way = 0; way < 4; way++) {
        bool removed = way & 1, waits = way & 2;
        ten_now(side);
        report("before", set, -1);
        SHOW(recv(side->fd, in, 100, 0));
        MUST(epoll_ctl(set, removed ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, side->fd, removed ? NULL : &for_room));
        say("told of %x", as_a_program_sees(set));
        MUST(epoll_ctl(set, removed ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, side->fd, &for_input));
        report("nothing", set, 0);
        MUST(epoll_ctl(set, removed ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, side->fd, removed ? NULL : &for_room));
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            struct epoll_event event;
            char word;
            MUST(read(go[0], &word, 1));
            if (waits) MUST(epoll_wait(set, &event, 1, 0));
            close(side->fd);
            _exit(0);
        }
        MUST(epoll_ctl(set, removed ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, side->fd, &for_input));
        MUST(write(go[1], "g", 1));
        MUST(waitpid(child, &status, 0));
        report("nothing", set, 0);
        ten_later(side);
        report("woken", set, -1);
        SHOW(recv(side->fd, in, 100, 0));
    }
    quit(side);
}
static void changed_twice(void) { two_processes(AF_INET, changed_twice_a, ten_when_told); }

/* A set that has gone quiet, of which only a child is left. */
static void bequeath(struct side *side, atomic_int *over) {
    int fd = another(side), set = (int)MUST(epoll_create1(0));
    add(set, fd, EPOLLIN, 5);
    for (int i = 0; i < 3; i++) {
        tell(side);
        report("before", set, -1);
        SHOW(recv(fd, in, 10, 0));
    }
    for (int i = 0; i < 5; i++) report("quiet", set, 20);
    pid_t parent = getpid();
    if (MUST(fork()) != 0) _exit(0);
    while (getppid() == parent) nap_ms(1);
    role = 'C';
    for (int i = 0; i < 2; i++) {
        tell(side);
        report("the child", set, -1);
        SHOW(recv(fd, in, 10, 0));
    }
    *over = 1;
    _exit(0);
}
static void heir_a(struct side *side) {
    atomic_int *over = mmap(NULL, sizeof *over, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) bequeath(side, over);
    say("the parent %d", ended(child));
    while (!*over) nap_ms(1);
}
static void heir_b(struct side *side) {
    int fd = another(side);
    for (int i = 0; i < 5; i++) {
        hear(side);
        nap_ms(5); /* It is woken, rather than finds it. */
        send_all(fd, "0123456789", 10);
    }
    SHOW(recv(fd, in, 10, 0));
}
static void heir(void) { two_processes(AF_INET, heir_a, heir_b); }

/* Children come and go, and have nothing to do with what their parent's other thread waits for. */
enum { CHILDREN = 400 };
static void *fork_often(void *done) {
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) _exit(0);
        if (ended(child) != 0) fail("a child");
    }
    *(atomic_int *)done = 1;
    return NULL;
}
static void passers_by_a(struct side *side) {
    static atomic_int done;
    int set = (int)MUST(epoll_create1(0));
    pthread_t thread;
    add(set, side->fd, EPOLLIN, 5);
    start_thread(&thread, fork_often, &done);
    for (char more = 1; more;) {
        struct epoll_event event;
        MUST(epoll_wait(set, &event, 1, -1));
        MUST(recv(side->fd, in, 1, 0));
        more = !done;
        send_all(side->fd, &more, 1);
    }
    pthread_join(thread, NULL);
    say("all have answers");
}
static void passers_by_b(struct side *side) {
    uint64_t random = 1;
    for (char more = 1; more;) {
        send_all(side->fd, "x", 1);
        if (receive_all(side->fd, &more, 1) != 1) fail("no answer");
        if (next_random(&random) % 4 == 0) usleep(next_random(&random) % 3000);
    }
}
static void passers_by(void) { two_processes(AF_INET, passers_by_a, passers_by_b); }

/* A server with a process for each connection, which it accepted itself; each process has a set of its own. */
enum { SIBLINGS = 4, SIBLING_ROUNDS = 200 };
static void sibling(int fd) {
    struct epoll_event event;
    int set = (int)MUST(epoll_create1(0));
    add(set, fd, EPOLLIN, 0);
    send_all(fd, "ready", 5);
    for (;;) {
        MUST(epoll_wait(set, &event, 1, -1));
        ssize_t got = MUST(read(fd, in, sizeof(in)));
        if (got == 0) _exit(0);
        send_all(fd, in, (size_t)got);
    }
}
static void siblings_a(struct side *side) {
    pid_t children[SIBLINGS];
    for (int i = 0; i < SIBLINGS; i++) {
        int fd = (int)MUST(accept(side->listener, NULL, NULL));
        if ((children[i] = (pid_t)MUST(fork())) == 0) sibling(fd);
        close(fd);
    }
    /* All have used their connections before the other end does: they make no channels, they are offered some. */
    for (int i = 0; i < SIBLINGS; i++) await_asleep(children[i]);
    tell(side);
    hear(side);
    for (int i = 0; i < SIBLINGS; i++) {
        int status = -1;
        MUST(waitpid(children[i], &status, 0));
        say("a sibling ended with %d", status);
    }
}
static void siblings_b(struct side *side) {
    struct pollfd fds[SIBLINGS];
    for (int i = 0; i < SIBLINGS; i++) fds[i] = (struct pollfd){.fd = connect_to(&side->address), .events = POLLIN};
    hear(side);
    for (int i = 0; i < SIBLINGS; i++) {
        if (receive_all(fds[i].fd, in, 5) != 5) fail("greeting");
    }
    for (int round = 0; round < SIBLING_ROUNDS; round++) {
        /* Now all of them, now one. */
        int first = round % 5 ? 0 : round % SIBLINGS, count = round % 5 ? SIBLINGS : 1;
        for (int i = first; i < first + count; i++) send_all(fds[i].fd, &round, sizeof(round));
        for (int left = count; left > 0;) {
            MUST(poll(fds, SIBLINGS, -1));
            for (int i = 0; i < SIBLINGS; i++) {
                int answer = -1;
                if (!(fds[i].revents & POLLIN)) continue;
                if (receive_all(fds[i].fd, &answer, sizeof(answer)) != sizeof(answer) || answer != round) fail("echo");
                left--;
            }
        }
    }
    say("%d rounds", SIBLING_ROUNDS);
    for (int i = 0; i < SIBLINGS; i++) close(fds[i].fd);
    tell(side);
}
static void siblings(void) { two_processes(AF_INET, siblings_a, siblings_b); }

/* While a thread sleeps on a set it is told of a second connection, though something comes for the first, which it has
 * stopped asking about. */
static void muted_a(struct side *side) {
    for (int i = 0; i < 4; i++) {
        int second = another(side), set = (int)MUST(epoll_create1(0));
        add(set, side->fd, EPOLLIN, 1);
        add(set, second, EPOLLIN, 2);
        /* Both are quiet, and asked for. */
        report("both asleep", set, 5);
        tell(side);
        report("the second", set, -1);
        receive_all(second, in, 1);
        struct epoll_event event = {.events = i % 2 ? EPOLLOUT | EPOLLET : 0, .data.u64 = 1};
        MUST(epoll_ctl(set, i < 2 ? EPOLL_CTL_MOD : EPOLL_CTL_DEL, side->fd, &event));
        if (i == 1) report("room", set, -1);
        tell(side);
        report("the second again", set, 5000);
        receive_all(second, in, 1);
        receive_all(side->fd, in, 1);
        close(set);
        close(second);
    }
}
static void muted_b(struct side *side) {
    for (int i = 0; i < 4; i++) {
        int second = another(side);
        hear(side);
        await_asleep(side->other);
        send_all(second, "b", 1);
        hear(side);
        await_asleep(side->other);
        send_all(side->fd, "a", 1);
        send_all(second, "b", 1);
        SHOW(recv(second, in, 1, 0));
        close(second);
    }
}
static void muted(void) { two_processes(AF_INET, muted_a, muted_b); }

/* A set that is put into another while it is empty. */
static void nested_early_a(struct side *side) {
    int inner = (int)MUST(epoll_create1(0)), outer = (int)MUST(epoll_create1(0));
    add(outer, inner, EPOLLIN, 1);
    add(inner, side->fd, EPOLLIN, 2);
    for (int i = 0; i < 40; i++) {
        if (i % 2) ten_later(side);
        else ten_now(side);
        report("outer", outer, -1);
        report("inner", inner, 0);
        receive_all(side->fd, in, 10);
        report("outer when read", outer, 0);
        ten_now(side);
        await_bytes(side->fd, 10);
        report("outer at once", outer, 0);
        receive_all(side->fd, in, 10);
    }
    quit(side);
}
static void nested_early(void) { two_processes(AF_INET, nested_early_a, ten_when_told); }

/* Sets that are polled, or nested, after what they were ready for was read. */
static void nested_read_a(struct side *side) {
    static const uint32_t kinds[] = {EPOLLIN, EPOLLIN | EPOLLONESHOT, EPOLLIN | EPOLLET};
    int inner = (int)MUST(epoll_create1(0)), outer = (int)MUST(epoll_create1(0));
    struct pollfd ready[] = {{inner, POLLIN, 0}, {outer, POLLIN, 0}};
    add(outer, inner, EPOLLIN, 1);
    for (int i = 0; i < 60; i++) {
        bool before = i % 2;
        if (before) add(inner, side->fd, kinds[i % 3], 2);
        ten_now(side);
        await_bytes(side->fd, 10);
        if (!before) add(inner, side->fd, kinds[i % 3], 2);
        SHOW(poll(ready, COUNT(ready), 0));
        receive_all(side->fd, in, 10);
        SHOW(poll(ready, COUNT(ready), 0));
        report("outer when read", outer, 0);
        MUST(epoll_ctl(inner, EPOLL_CTL_DEL, side->fd, NULL));
    }
    quit(side);
}
static void nested_read(void) { two_processes(AF_INET, nested_read_a, ten_when_told); }

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

/* A thread polls a set; another waits on it, takes what comes first and goes its own way. What comes next wakes the
 * first. */
struct onlooker {
    int set, fd;
    void (*look)(struct onlooker *onlooker);
    atomic_int task;
    pthread_t thread;
};
static void look_by_poll(struct onlooker *onlooker) {
    struct pollfd ready = {onlooker->set, POLLIN, 0};
    MUST(poll(&ready, 1, -1));
}
static void look_from_outside(struct onlooker *onlooker) {
    static _Thread_local int outer = -1;
    struct epoll_event event;
    if (outer == -1) add(outer = (int)MUST(epoll_create1(0)), onlooker->set, EPOLLIN, 1);
    MUST(epoll_wait(outer, &event, 1, -1));
}
static void *look_on(void *argument) {
    struct onlooker *onlooker = argument;
    char last = 0;
    role = 'C';
    onlooker->task = this_task();
    while (last != 'z') {
        onlooker->look(onlooker);
        recv(onlooker->fd, &last, 1, MSG_PEEK | MSG_DONTWAIT);
    }
    return NULL;
}
static void looked_on_a(struct side *side, void (*look)(struct onlooker *onlooker)) {
    int set = (int)MUST(epoll_create1(0));
    struct epoll_event event;
    char byte = 0;
    add(set, side->fd, EPOLLIN, 1);
    for (int rounds = 0; rounds < 200; rounds++) {
        struct onlooker onlooker = {.set = set, .fd = side->fd, .look = look};
        start_thread(&onlooker.thread, look_on, &onlooker);
        while (onlooker.task == 0) nap_ms(1);
        await_asleep(onlooker.task);
        tell(side);
        while (MUST(epoll_wait(set, &event, 1, 0)) == 0) {}
        if (MUST(recv(side->fd, &byte, 1, 0)) != 1 || byte != 'a') fail("the first byte");
        tell(side);
        pthread_join(onlooker.thread, NULL);
        if (MUST(recv(side->fd, &byte, 1, 0)) != 1 || byte != 'z') fail("the last byte");
    }
    say("always woken");
}
static void looked_on_b(struct side *side) {
    for (int rounds = 0; rounds < 200; rounds++) {
        hear(side);
        send_all(side->fd, "a", 1);
        hear(side);
        send_all(side->fd, "z", 1);
    }
}
static void polled_a(struct side *side) { looked_on_a(side, look_by_poll); }
static void nested_onlooker_a(struct side *side) { looked_on_a(side, look_from_outside); }
static void polled(void) { two_processes(AF_INET, polled_a, looked_on_b); }
static void nested_onlooker(void) { two_processes(AF_INET, nested_onlooker_a, looked_on_b); }

/* The other end reads nothing before it was answered, and no more fits into the connection: what it sends is reported
 * all the same to a thread that looks at the set from outside. */
static void stuffed_nested_a(struct side *side) {
    int inner = (int)MUST(epoll_create1(0)), outer = (int)MUST(epoll_create1(0));
    add(outer, inner, EPOLLIN, 1);
    add(inner, side->fd, EPOLLIN, 2);
    size_t sent = stuff(side->fd, 1);
    for (int rounds = 0; rounds < 5; rounds++) {
        for (int i = 0; i < 3; i++) {
            tell(side);
            hear(side);
            report("outer", outer, -1);
            report("inner", inner, -1);
            receive_all(side->fd, in, 1);
        }
        tell(side);
        hear(side);
        struct pollfd ready = {outer, POLLIN, 0};
        SHOW(poll(&ready, 1, -1));
        receive_all(side->fd, in, 1);
        report("outer when read", outer, 0);
    }
    tell(side);
    MUST(write(side->turn, &sent, sizeof(sent)));
}
static void stuffed_b(struct side *side) {
    size_t left;
    for (int i = 0; i < 20; i++) {
        hear(side);
        send_all(side->fd, "x", 1);
        tell(side);
    }
    hear(side);
    if (MUST(read(side->turn, &left, sizeof(left))) != sizeof(left)) fail("how much");
    while (left > 0) {
        size_t got = receive_all(side->fd, in, left < sizeof(in) ? left : sizeof(in));
        if (got == 0) fail("the end");
        left -= got;
    }
}
static void stuffed_nested(void) { two_processes(AF_INET, stuffed_nested_a, stuffed_b); }

/* More sets in a set than one would think. */
static void nested_many_a(struct side *side) {
    int outer = (int)MUST(epoll_create1(0)), inner[20], fds[20];
    for (size_t i = 0; i < COUNT(inner); i++) {
        add(outer, inner[i] = (int)MUST(epoll_create1(0)), EPOLLIN, i);
        add(inner[i], fds[i] = another(side), EPOLLIN, i);
    }
    for (int rounds = 0; rounds < 4; rounds++) {
        for (size_t i = 0; i < COUNT(inner); i++) {
            tell(side);
            hear(side);
            report("outer", outer, -1);
            report("inner", inner[i], -1);
            receive_all(fds[i], in, 1);
        }
    }
    tell(side);
}
static void nested_many_b(struct side *side) {
    int fds[20];
    for (size_t i = 0; i < COUNT(fds); i++) fds[i] = another(side);
    for (int rounds = 0; rounds < 4; rounds++) {
        for (size_t i = 0; i < COUNT(fds); i++) {
            hear(side);
            send_all(fds[i], "x", 1);
            tell(side);
        }
    }
    hear(side);
}
static void nested_many(void) { two_processes(AF_INET, nested_many_a, nested_many_b); }

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

/* A thread sleeps on a set without sockets and others poll it, when a socket with data unread is added for one event:
 * one of them is told of it, once. */
enum { ONE_SHOTS = 300, LOOKERS = 3 };
static struct {
    int set;
    atomic_int told, looks, over;
} one_shot;
static void *look_for_one_shot(void *sleeps) {
    struct epoll_event event;
    while (!one_shot.over) {
        int count = (int)MUST(epoll_wait(one_shot.set, &event, 1, sleeps ? -1 : 0));
        if (count > 0 && event.data.u64 == 1) one_shot.told++;
        if (!sleeps) one_shot.looks++;
    }
    return NULL;
}
static void one_shots_a(struct side *side) {
    int wrong = 0;
    for (int round = 0; round < ONE_SHOTS; round++) {
        pthread_t threads[LOOKERS];
        int waker = (int)MUST(eventfd(1, 0));
        one_shot.set = (int)MUST(epoll_create1(0));
        one_shot.told = one_shot.looks = one_shot.over = 0;
        for (size_t i = 0; i < LOOKERS; i++) pthread_create(&threads[i], NULL, look_for_one_shot, i ? NULL : side);
        tell(side);
        await_events(side->fd, POLLIN);
        while (one_shot.looks < 4) {}
        usleep((useconds_t)(round * 37 % 120)); /* so that the sleeper sleeps, or is about to */
        add(one_shot.set, side->fd, EPOLLIN | EPOLLET | EPOLLONESHOT, 1);
        while (!one_shot.told) usleep(1);
        for (int before = one_shot.looks; one_shot.looks < before + 8;) usleep(1);
        one_shot.over = 1;
        add(one_shot.set, waker, EPOLLIN, 2);
        for (size_t i = 0; i < LOOKERS; i++) pthread_join(threads[i], NULL);
        wrong += one_shot.told != 1;
        MUST(read(side->fd, in, 1));
        close(waker);
        close(one_shot.set);
    }
    say("told not once: %d", wrong);
    MUST(write(side->turn, "q", 1));
}
static void one_shots_b(struct side *side) {
    for (char what = 0; MUST(read(side->turn, &what, 1)) == 1 && what != 'q';) send_all(side->fd, "1", 1);
}
static void one_shots(void) { two_processes(AF_INET, one_shots_a, one_shots_b); }
/* Both descriptors of a set are closed at once, again and again: sets that are made afterwards are not one. */
static pthread_barrier_t at_once;
static int closed_at_once;
static void *close_other(void *argument) {
    for (;;) {
        pthread_barrier_wait(&at_once);
        if (closed_at_once < 0) return argument;
        MUST(close(closed_at_once));
        pthread_barrier_wait(&at_once);
    }
}
static void closed_together_a(struct side *side) {
    int sets[8], fds[] = {side->fd, (int)MUST(dup(side->fd))}, wrong = 0;
    struct epoll_event event = {.events = EPOLLIN}, told;
    pthread_t thread;
    pthread_barrier_init(&at_once, NULL, 2);
    start_thread(&thread, close_other, NULL);
    for (int round = 0; round < 20000; round++) {
        int set = (int)MUST(epoll_create1(0));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fds[0], &event));
        closed_at_once = (int)MUST(dup(set));
        pthread_barrier_wait(&at_once);
        MUST(close(set));
        pthread_barrier_wait(&at_once);
        if (round % 100 != 0) continue;
        for (size_t i = 0; i < COUNT(sets); i++) {
            sets[i] = (int)MUST(epoll_create1(0));
            MUST(epoll_ctl(sets[i], EPOLL_CTL_ADD, fds[i % 2], &event));
        }
        for (size_t i = 0; i < COUNT(sets); i++) {
            wrong += epoll_wait(sets[i], &told, 1, 0) != 0 || epoll_ctl(sets[i], EPOLL_CTL_DEL, fds[i % 2], NULL) != 0;
            MUST(close(sets[i]));
        }
    }
    closed_at_once = -1;
    pthread_barrier_wait(&at_once);
    pthread_join(thread, NULL);
    say("wrong %d", wrong);
    close(fds[1]);
    tell(side);
}
static void closed_together(void) { two_processes(AF_INET, closed_together_a, hear); }

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

/* A thread sleeps on a set of connections that are all on kernel TCP. The descriptor that it sleeps on is closed, and a
 * connection with something unread is registered by another descriptor of the set. */
struct asleep {
    int set;
    pthread_t sleeper;
    atomic_int thread;
    int count;
    struct epoll_event event;
};
static void *sleep_on_set(void *argument) {
    struct asleep *asleep = argument;
    asleep->thread = gettid();
    asleep->count = epoll_wait(asleep->set, &asleep->event, 1, -1);
    return NULL;
}
/* Returns once the thread sleeps. */
static void begin_sleep(struct asleep *asleep, int set) {
    *asleep = (struct asleep){.set = set};
    start_thread(&asleep->sleeper, sleep_on_set, asleep);
    while (!asleep->thread) nap_ms(1);
    await_asleep(asleep->thread);
}
static void say_what_woke(struct asleep *asleep) {
    pthread_join(asleep->sleeper, NULL);
    say("woken: %d %d:%x", asleep->count, (int)asleep->event.data.u64, asleep->event.events);
}
static void closed_asleep_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), cold = connect_to(&side->address);
    int other = (int)MUST(accept(side->listener, NULL, NULL));
    add(set, cold, EPOLLIN, 1);
    struct asleep asleep;
    begin_sleep(&asleep, (int)MUST(dup(set)));
    MUST(close(asleep.set));
    ten_now(side);
    add(set, side->fd, EPOLLIN, 2);
    say_what_woke(&asleep);
    MUST(close(other));
    quit(side);
}
static void closed_asleep(void) { two_processes(AF_INET, closed_asleep_a, ten_when_told); }

/* The only descriptor of a set is closed under a sleeper, and its number is another set's at once, which has a
 * socket of its own: the sleeper is told of the first set's events alone. With `has_fast` the first set watches a fast
 * connection too, from which nothing comes. */
static void reused_under_sleeper(struct side *side, int has_fast) {
    int set = (int)MUST(epoll_create1(0));
    int first = connect_to(&side->address), first_end = (int)MUST(accept(side->listener, NULL, NULL));
    int second = connect_to(&side->address), second_end = (int)MUST(accept(side->listener, NULL, NULL));
    add(set, first, EPOLLIN, 1);
    if (has_fast) add(set, side->fd, EPOLLIN, 3);
    struct asleep asleep;
    begin_sleep(&asleep, set);
    MUST(close(set));
    int again = (int)MUST(epoll_create1(0));
    add(again, second, EPOLLIN, 2);
    say("the same number: %d", again == set);
    MUST(send(second_end, "no", 2, 0));
    MUST(send(first_end, "yes", 3, 0));
    say_what_woke(&asleep);
    report("the other set", again, 1000);
    for (int i = 0; i < 5; i++) MUST(close((int[]){again, first, first_end, second, second_end}[i]));
    ten_now(side);
    SHOW(receive_all(side->fd, in, 10));
    quit(side);
}
static void reused_asleep_a(struct side *side) { reused_under_sleeper(side, 0); }
static void reused_asleep(void) { two_processes(AF_INET, reused_asleep_a, ten_when_told); }
static void reused_beside_a(struct side *side) { reused_under_sleeper(side, 1); }
static void reused_beside(void) { two_processes(AF_INET, reused_beside_a, ten_when_told); }

/* A set is slept on by one of two descriptors, which is closed and its number another set's at once: the sleeper goes
 * on, and is told of the fast connection. */
static void renamed_asleep_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), kept = (int)MUST(dup(set));
    add(set, side->fd, EPOLLIN, 1);
    struct asleep asleep;
    begin_sleep(&asleep, set);
    MUST(close(set));
    int again = (int)MUST(epoll_create1(0)), ends[2];
    say("the same number: %d", again == set);
    MUST(pipe(ends));
    add(again, ends[0], EPOLLIN, 2);
    MUST(write(ends[1], "x", 1));
    ten_now(side);
    say_what_woke(&asleep);
    SHOW(receive_all(side->fd, in, 10));
    report("the other set", again, 1000);
    for (int i = 0; i < 4; i++) MUST(close((int[]){again, kept, ends[0], ends[1]}[i]));
    quit(side);
}
static void renamed_asleep(void) { two_processes(AF_INET, renamed_asleep_a, ten_when_told); }

/* A thread sleeps on a set of a connection that is on kernel TCP, and another set watches that connection too: the
 * sleeper is told of what comes, and of nothing else. */
static void watched_asleep_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), other = (int)MUST(epoll_create1(0));
    int cold = connect_to(&side->address), end = (int)MUST(accept(side->listener, NULL, NULL));
    add(set, cold, EPOLLIN | EPOLLET, 1);
    struct asleep asleep;
    begin_sleep(&asleep, set);
    add(other, cold, EPOLLIN, 2);
    report("the other set", other, 0);
    MUST(send(end, "yes", 3, 0));
    say_what_woke(&asleep);
    SHOW(receive_all(cold, in, 3));
    for (int i = 0; i < 4; i++) MUST(close((int[]){set, other, cold, end}[i]));
    ten_now(side);
    SHOW(receive_all(side->fd, in, 10));
    quit(side);
}
static void watched_asleep(void) { two_processes(AF_INET, watched_asleep_a, ten_when_told); }

const struct scenario scenarios[] = {
    {"nested", nested, 0},       {"nested-threads", nested_threads, 0}, {"several", several, 0},
    {"close-out", close_out, 0}, {"close-in", close_in, 0},             {"close-none", close_none, 0},
    {"close-unread", close_unread, 0},
    {"close-unread-edge", close_unread_edge, 0},
    {"armed-once", armed_once, 0},
    {"armed-edge", armed_edge, 0},
    {"exclusive", exclusive, 0}, {"one-set", one_set, 0},               {"each-set", each_set, 0},
    {"starving", starving, 0}, {"fair", fair, 0}, {"changed", changed, 0}, {"changed-twice", changed_twice, 0},
    {"inherited", inherited, 0}, {"heir", heir, 0}, {"passers-by", passers_by, 0}, {"two-sets", two_sets, 0},
    {"crew", crew, 0},
    {"beside-set", beside_set, 0}, {"beside-poll", beside_poll, 0},
    {"siblings", siblings, 0},   {"changed-beside", changed_beside, 0}, {"changed-ends", changed_ends, 0},
    {"removed", removed, 0},     {"muted", muted, 0},                   {"nested-early", nested_early, 0},
    {"nested-read", nested_read, 0},
    {"same-data", same_data, 0}, {"changed-below", changed_below, 0},
    {"polled", polled, 0},       {"nested-onlooker", nested_onlooker, 0},
    {"stuffed-nested", stuffed_nested, 0}, {"nested-many", nested_many, 0},
    {"copies", copies, 0},       {"one-shots", one_shots, 0},
    {"closed-together", closed_together, 0}, {"reused", reused, 0}, {"alike", alike, 0},
    {"closed-asleep", closed_asleep, 0}, {"reused-asleep", reused_asleep, 0},
    {"reused-beside", reused_beside, 0}, {"renamed-asleep", renamed_asleep, 0},
    {"watched-asleep", watched_asleep, 0},
    {0},
};
