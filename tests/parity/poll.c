/* poll, ppoll, select and pselect: the readiness bits of every state, timeouts, many descriptors, mixed kinds. */
#include "harness.h"

#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/timerfd.h>

static _Thread_local char in[64 * KIB];

#define ALL (POLLIN | POLLPRI | POLLOUT | POLLRDHUP | POLLRDNORM | POLLRDBAND | POLLWRNORM | POLLWRBAND)

/* The answer of every call about one descriptor at this moment. */
static void look(const char *state, int fd) {
    struct pollfd all = {fd, ALL, -1}, none = {fd, 0, -1}, reading = {fd, POLLIN, -1};
    struct timespec now = {0, 0};
    struct timeval instant = {0, 0};
    int a = poll(&all, 1, 0), b = poll(&none, 1, 0), c = ppoll(&reading, 1, &now, NULL);
    fd_set readable, writable, special;
    FD_ZERO(&readable);
    FD_ZERO(&writable);
    FD_ZERO(&special);
    FD_SET(fd, &readable);
    FD_SET(fd, &writable);
    FD_SET(fd, &special);
    fd_set r = readable, w = writable, s = special;
    int d = select(fd + 1, &readable, &writable, &special, &instant), e = pselect(fd + 1, &r, &w, &s, &now, NULL);
    say("%s: poll %d %x, nothing %d %x, in %d %x, select %d %d%d%d, pselect %d %d%d%d", state, a, all.revents, b,
        none.revents, c, reading.revents, d, !!FD_ISSET(fd, &readable), !!FD_ISSET(fd, &writable),
        !!FD_ISSET(fd, &special), e, !!FD_ISSET(fd, &r), !!FD_ISSET(fd, &w), !!FD_ISSET(fd, &s));
}

/* One side walks the connection through its states, the other looks. */
static void states_a(struct side *side) {
    int fd = side->fd;
    look("idle", fd);
    tell(side);
    hear(side);
    await_bytes(fd, 10);
    look("readable", fd);
    SHOW(recv(fd, in, 4, 0));
    look("partly read", fd);
    SHOW(recv(fd, in, 100, MSG_PEEK));
    look("peeked", fd);
    SHOW(recv(fd, in, 100, 0));
    look("read", fd);
    size_t taken = stuff(fd, 1);
    look("full", fd);
    MUST(write(side->turn, &taken, sizeof(taken)));
    await_events(fd, POLLOUT);
    hear(side);
    look("emptied", fd);
    tell(side);
    hear(side);
    await_events(fd, POLLRDHUP);
    look("end after data", fd);
    SHOW(recv(fd, in, 100, 0));
    look("end", fd);
    SHOW(recv(fd, in, 100, 0));
    look("end read", fd);
    shutdown(fd, SHUT_WR);
    look("both ended", fd);
    int second = another(side);
    shutdown(second, SHUT_WR);
    look("own end only", second);
    shutdown(second, SHUT_RD);
    look("own ends both", second);
    int third = another(side);
    hear(side);
    await_events(third, POLLERR);
    look("reset", third);
    SHOW(recv(third, in, 1, 0));
    look("reset read", third);
    tell(side);
}
static void states_b(struct side *side) {
    int fd = side->fd;
    struct linger at_once = {1, 0};
    hear(side);
    send_all(fd, "0123456789", 10);
    tell(side);
    size_t taken = 0;
    MUST(read(side->turn, &taken, sizeof(taken)));
    while (taken > 0) taken -= receive_all(fd, in, taken < sizeof(in) ? taken : sizeof(in));
    tell(side);
    hear(side);
    send_all(fd, "data", 4);
    shutdown(fd, SHUT_WR);
    tell(side);
    int second = another(side), third = another(side);
    MUST(setsockopt(third, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
    close(third);
    tell(side);
    hear(side);
    SHOW(recv(second, in, 1, 0));
}
static void states(void) { two_processes(AF_INET, states_a, states_b); }
static void states_v6(void) { two_processes(AF_INET6, states_a, states_b); }

/* Each call wakes for what comes while it sleeps, and for nothing else. */
static void wakes_a(struct side *side) {
    int fd = side->fd;
    struct pollfd ready = {fd, POLLIN, 0};
    struct timespec long_time = {15, 0};
    struct timeval long_enough = {15, 0};
    fd_set set;
    tell(side);
    SHOW(poll(&ready, 1, -1));
    say("events %x", ready.revents);
    SHOW(recv(fd, in, 100, 0));
    tell(side);
    SHOW(poll(&ready, 1, 15000));
    SHOW(recv(fd, in, 100, 0));
    tell(side);
    SHOW(ppoll(&ready, 1, NULL, NULL));
    SHOW(recv(fd, in, 100, 0));
    tell(side);
    SHOW(ppoll(&ready, 1, &long_time, NULL));
    SHOW(recv(fd, in, 100, 0));
    FD_ZERO(&set);
    FD_SET(fd, &set);
    tell(side);
    SHOW(select(fd + 1, &set, NULL, NULL, NULL));
    SHOW(recv(fd, in, 100, 0));
    tell(side);
    SHOW(select(fd + 1, &set, NULL, NULL, &long_enough));
    say("time left %d", long_enough.tv_sec < 15 && long_enough.tv_sec > 0);
    SHOW(recv(fd, in, 100, 0));
    tell(side);
    SHOW(pselect(fd + 1, &set, NULL, NULL, &long_time, NULL));
    say("time untouched %d", long_time.tv_sec == 15);
    SHOW(recv(fd, in, 100, 0));
    ready.events = POLLRDHUP;
    tell(side);
    SHOW(poll(&ready, 1, 100)); /* data is not what it waits for */
    SHOW(recv(fd, in, 100, 0));
    tell(side);
    SHOW(poll(&ready, 1, -1));
    say("events %x", ready.revents);
}
static void wakes_b(struct side *side) {
    for (int i = 0; i < 8; i++) {
        hear(side);
        await_asleep(side->other);
        send_all(side->fd, "wake", 4);
    }
    hear(side);
    await_asleep(side->other);
    shutdown(side->fd, SHUT_WR);
}
static void wakes(void) { two_processes(AF_INET, wakes_a, wakes_b); }
static void wakes_threads(void) { two_threads(AF_INET, wakes_a, wakes_b); }

/* Timeouts: nothing comes, the wait is not too short; odd arguments. */
static void timeouts_a(struct side *side) {
    int fd = side->fd;
    struct pollfd ready = {fd, POLLIN, -1};
    struct timespec wait = {0, 40000000}, wrong = {0, -1};
    struct timeval time = {0, 40000}, negative = {-1, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    long since = now_ms();
    SHOW(poll(&ready, 1, 40));
    SHOW(ppoll(&ready, 1, &wait, NULL));
    SHOW(select(fd + 1, &set, NULL, NULL, &time));
    say("set %d, left %ld", !!FD_ISSET(fd, &set), (long)time.tv_usec);
    FD_SET(fd, &set);
    SHOW(pselect(fd + 1, &set, NULL, NULL, &wait, NULL));
    SHOW(poll(NULL, 0, 40));
    SHOW(select(0, NULL, NULL, NULL, &(struct timeval){0, 40000}));
    say("long enough: %d", now_ms() - since >= 6 * 40 - 1);
    SHOW(ppoll(&ready, 1, &wrong, NULL));
    SHOW(select(fd + 1, &set, NULL, NULL, &negative));
    volatile int minus = -1;
    SHOW(select(minus, &set, NULL, NULL, &time));
    struct pollfd several[] = {{-1, POLLIN, 77}, {fd, POLLOUT, 77}, {-fd, POLLIN, 77}, {fd, POLLIN, 77}, {900, 1, 77}};
    SHOW(poll(several, 5, -1));
    for (int i = 0; i < 5; i++) say("%d: %x", i, several[i].revents);
    FD_ZERO(&set);
    FD_SET(60, &set);
    SHOW(select(61, &set, NULL, NULL, NULL));
    tell(side);
}
static void idle(struct side *side) { hear(side); }
static void timeouts(void) { two_processes(AF_INET, timeouts_a, idle); }

/* Sockets, pipes, eventfds and timers in one call; all that is ready is reported. */
static void mixed_a(struct side *side) {
    int second = another(side), pipes[2], event = eventfd(0, 0), timer = timerfd_create(CLOCK_MONOTONIC, 0);
    MUST(pipe(pipes));
    struct pollfd set[] = {{side->fd, POLLIN, 0}, {pipes[0], POLLIN, 0}, {second, POLLIN, 0}, {event, POLLIN, 0},
                           {timer, POLLIN, 0},    {pipes[1], 0, 0},      {side->listener, POLLIN, 0}};
    struct itimerspec soon = {.it_value = {0, 30000000}};
    uint64_t one = 1;
    SHOW(poll(set, COUNT(set), 0));
    MUST(timerfd_settime(timer, 0, &soon, NULL));
    SHOW(poll(set, COUNT(set), -1));
    say("timer %x", set[4].revents);
    SHOW(read(timer, &one, 8));
    MUST(write(pipes[1], "p", 1));
    SHOW(poll(set, COUNT(set), -1));
    say("pipe %x", set[1].revents);
    one = 1;
    MUST(write(event, &one, 8));
    tell(side);
    hear(side);
    await_bytes(side->fd, 1);
    await_bytes(second, 1);
    await_events(side->listener, POLLIN);
    SHOW(poll(set, COUNT(set), -1));
    for (size_t i = 0; i < COUNT(set); i++) say("%zu: %x", i, set[i].revents);
    SHOW(recv(side->fd, in, 9, 0));
    SHOW(read(pipes[0], in, 9));
    SHOW(poll(set, COUNT(set), 0));
    tell(side);
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(second, &readable);
    FD_SET(pipes[0], &readable);
    FD_SET(event, &readable);
    FD_SET(side->fd, &readable);
    SHOW(select(200, &readable, NULL, NULL, NULL));
    say("%d%d%d%d", !!FD_ISSET(second, &readable), !!FD_ISSET(pipes[0], &readable), !!FD_ISSET(event, &readable),
        !!FD_ISSET(side->fd, &readable));
    tell(side);
}
static void mixed_b(struct side *side) {
    int second = another(side);
    hear(side);
    send_all(side->fd, "x", 1);
    send_all(second, "x", 1);
    int third = connect_to(&side->address);
    tell(side);
    hear(side);
    hear(side);
    close(third);
}
static void mixed(void) { two_processes(AF_INET, mixed_a, mixed_b); }

/* Many connections: exactly those with data are reported, wherever they are in the list. */
static void many_a(struct side *side) {
    struct pollfd set[100];
    for (size_t i = 0; i < COUNT(set); i++) set[i] = (struct pollfd){another(side), POLLIN, 0};
    for (size_t picks = 0; picks < 20; picks++) {
        tell(side);
        hear(side);
        for (size_t i = picks; i < COUNT(set); i += 17) await_bytes(set[i].fd, 1);
        int ready = poll(set, COUNT(set), -1), right = 0;
        for (size_t i = 0; i < COUNT(set); i++) {
            bool expected = i >= picks && (i - picks) % 17 == 0;
            if ((set[i].revents == POLLIN) == expected) right++;
            if (set[i].revents & POLLIN) MUST(read(set[i].fd, in, 100));
        }
        say("%d ready, %d as expected", ready, right);
    }
    tell(side);
}
static void many_b(struct side *side) {
    int fds[100];
    for (size_t i = 0; i < COUNT(fds); i++) fds[i] = another(side);
    for (size_t picks = 0; picks < 20; picks++) {
        hear(side);
        for (size_t i = picks; i < COUNT(fds); i += 17) send_all(fds[i], "x", 1);
        tell(side);
    }
    hear(side);
}
static void many(void) { two_processes(AF_INET, many_a, many_b); }

/* select beyond what an fd_set holds, by programs that bring larger ones or have always passed a large number. */
union large {
    fd_set set;
    unsigned long words[64];
};
static void mark(union large *set, int fd) { set->words[fd / 64] |= 1UL << fd % 64; }
static bool is_marked(const union large *set, int fd) { return set->words[fd / 64] >> fd % 64 & 1; }
static void large_a(struct side *side) {
    int low = side->fd, pipes[2];
    struct timeval instant = {0, 0};
    MUST(pipe(pipes));
    /* So few descriptors are open that the kernel looks at no more than an fd_set has, whatever number it is told. */
    struct {
        fd_set set;
        unsigned char behind[4096];
    } small;
    memset(&small, 0xff, sizeof(small));
    FD_ZERO(&small.set);
    FD_SET(low, &small.set);
    SHOW(select(30000, &small.set, NULL, NULL, &instant));
    FD_SET(low, &small.set);
    tell(side);
    SHOW(select(30000, &small.set, NULL, NULL, NULL));
    say("%d, behind it %d", !!FD_ISSET(low, &small.set), small.behind[0]);
    SHOW(recv(low, in, 100, 0));
    int high = (int)MUST(fcntl(low, F_DUPFD, 2000));
    for (int i = 0; i < 3; i++) {
        union large readable = {.words = {0}}, writable = {.words = {0}};
        mark(&readable, high);
        mark(&readable, pipes[0]);
        if (i > 0) mark(&readable, low);
        mark(&writable, high);
        SHOW(select(high + 1, &readable.set, &writable.set, NULL, &instant));
        say("%d%d%d %d", is_marked(&readable, high), is_marked(&readable, low), is_marked(&readable, pipes[0]),
            is_marked(&writable, high));
        memset(&readable, 0, sizeof(readable));
        mark(&readable, high);
        if (i > 0) mark(&readable, low);
        tell(side);
        SHOW(pselect(high + 1, &readable.set, NULL, NULL, NULL, NULL));
        say("%d%d", is_marked(&readable, high), is_marked(&readable, low));
        SHOW(recv(high, in, 100, 0));
        mark(&readable, high + 1);
        SHOW(select(high + 1, &readable.set, NULL, NULL, &instant));
        say("%d%d", is_marked(&readable, high), is_marked(&readable, high + 1));
        mark(&readable, high + 1);
        SHOW(select(high + 2, &readable.set, NULL, NULL, &instant));
        SHOW(select(high, &readable.set, NULL, NULL, &instant));
    }
    /* As many as there is no room for on a stack. */
    union large readable = {.words = {0}};
    for (int i = 0; i < 1500; i++) mark(&readable, (int)MUST(dup(pipes[0])));
    mark(&readable, high);
    SHOW(select(high + 1, &readable.set, NULL, NULL, &instant));
    for (int rounds = 0; rounds < 3; rounds++) {
        for (int fd = 100; fd < 400 + 500 * rounds; fd++) mark(&readable, fd);
        mark(&readable, high);
        tell(side);
        SHOW(select(high + 1, &readable.set, NULL, NULL, NULL));
        say("%d%d", is_marked(&readable, high), is_marked(&readable, 200));
        SHOW(recv(high, in, 100, 0));
    }
    tell(side);
}
static void large_b(struct side *side) {
    for (int i = 0; i < 7; i++) {
        hear(side);
        await_asleep(side->other);
        send_all(side->fd, "x", 1);
    }
    hear(side);
}
static void large(void) { two_processes(AF_INET, large_a, large_b); }

/* The same calls in a thread that has hardly any stack. */
static void *cramped(void *argument) {
    struct side *side = argument;
    struct pollfd ready = {side->fd, POLLIN, 0};
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(side->fd, &readable);
    long selected = select(side->fd + 1, &readable, NULL, NULL, NULL);
    long polled = poll(&ready, 1, -1), received = recv(side->fd, in, 1, 0);
    return (void *)(selected + 10 * polled + 100 * received);
}
static void cramped_a(struct side *side) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    /* The stack's size includes the thread-local variables, which leave less stack. */
    MUST(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN + sizeof(in)));
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        void *answer;
        MUST(pthread_create(&thread, &attributes, cramped, side));
        tell(side);
        pthread_join(thread, &answer);
        say("%ld", (long)answer);
    }
}
static void cramped_b(struct side *side) {
    for (int i = 0; i < 3; i++) {
        hear(side);
        send_all(side->fd, "x", 1);
    }
}
static void small_stack(void) { two_processes(AF_INET, cramped_a, cramped_b); }

/* A poll that waits for a reset reports all of it. The kernel sets the error, the end and the readability one after
 * another, and a single look may fall between: once in 40,000 resets on a quiet machine, up to 3 times in 200 on a busy
 * one (kernel TCP, ten runs), in bursts. Where a program looks again and again, 1 in 25 does. */
enum { RESETS = 1000 };
static void resets_a(struct side *side) {
    static const short asked[] = {POLLIN, POLLRDHUP, POLLIN | POLLRDNORM | POLLRDHUP, 0};
    int in_part = 0;
    for (int i = 0; i < RESETS; i++) {
        int fd = another(side);
        hear(side);
        send_all(fd, in, 15000); /* which B leaves unread */
        struct pollfd it = {fd, asked[i % COUNT(asked)], 0};
        MUST(poll(&it, 1, -1));
        in_part += it.revents != (it.events | POLLERR | POLLHUP);
        close(fd);
    }
    say("told in part: %s", in_part < RESETS / 50 ? "never, or hardly ever" : "often");
}
static void resets_b(struct side *side) {
    for (int i = 0; i < RESETS; i++) {
        int fd = another(side), there = 0;
        tell(side);
        /* Awake, so that A meets the reset while it is still polling. */
        while (there < 15000)
            MUST(ioctl(fd, FIONREAD, &there));
        for (volatile int pause = 0; pause < i % 20 * 1000; pause++)
            ;
        close(fd);
    }
}
static void resets(void) { two_processes(AF_INET, resets_a, resets_b); }

const struct scenario scenarios[] = {
    {"states", states, 0},     {"states-v6", states_v6, 0}, {"wakes", wakes, 0}, {"wakes-threads", wakes_threads, 0},
    {"timeouts", timeouts, 0}, {"mixed", mixed, 0},         {"many", many, 0},
    {"large", large, 0},       {"small-stack", small_stack, 0}, {"resets", resets, 0},
    {0},
};
