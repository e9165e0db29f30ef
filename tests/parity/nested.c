/* Epoll sets in sets, and polls of sets. */
#include "sets.h"

#include <stdatomic.h>
#include <sys/select.h>

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

const struct scenario scenarios[] = {
    {"nested", nested, 0}, {"nested-threads", nested_threads, 0}, {"nested-early", nested_early, 0},
    {"nested-read", nested_read, 0}, {"polled", polled, 0}, {"nested-onlooker", nested_onlooker, 0},
    {"stuffed-nested", stuffed_nested, 0}, {"nested-many", nested_many, 0},
    {0},
};
