/* Threads that sleep on epoll sets which others use, change or close. */
#include "sets.h"

#include <stdatomic.h>
#include <sys/eventfd.h>

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
    {"armed-once", armed_once, 0}, {"armed-edge", armed_edge, 0}, {"exclusive", exclusive, 0},
    {"one-set", one_set, 0}, {"each-set", each_set, 0}, {"changed", changed, 0}, {"two-sets", two_sets, 0},
    {"crew", crew, 0}, {"beside-set", beside_set, 0}, {"beside-poll", beside_poll, 0}, {"muted", muted, 0},
    {"one-shots", one_shots, 0}, {"closed-together", closed_together, 0}, {"closed-asleep", closed_asleep, 0},
    {"reused-asleep", reused_asleep, 0}, {"reused-beside", reused_beside, 0}, {"renamed-asleep", renamed_asleep, 0},
    {"watched-asleep", watched_asleep, 0},
    {0},
};
