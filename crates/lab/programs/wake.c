// Wake: a receiver sleeps at least 100 ms on a connection; how long after the send does its call return? With --port
// the sender, which prints the distribution. The receiver sleeps in recv (blocking) or in epoll_wait (epoll).
#include "common.h"

enum { PAUSE_NS = 110 * 1000 * 1000, WARM_UP = 100 };

struct message {
    uint64_t sent;   // CLOCK_MONOTONIC just before the send; one clock for all processes of the host
    uint64_t asleep; // nanoseconds from there to the receiver's return
};

static void serve(const struct options *o) {
    int fd = accept_one(listen_anywhere(o));
    int set = epoll_create1(0);
    if (set < 0) fail("epoll_create1");
    if (o->mode == EPOLL) epoll_add(set, fd, EPOLLIN, 0);
    struct message message;
    for (;;) {
        struct epoll_event event;
        while (o->mode == EPOLL && epoll_wait_for(set, &event, 1, -1) == 0) {}
        if (!recv_all(fd, &message, sizeof message)) return;
        message.asleep = now_ns() - message.sent;
        send_all(fd, &message, sizeof message);
    }
}

static uint64_t wake(int fd) {
    struct message message = {.sent = now_ns()}, answer;
    send_all(fd, &message, sizeof message);
    if (!recv_all(fd, &answer, sizeof answer)) wrong("the receiver closed the connection");
    if (answer.sent != message.sent) wrong("the answer is not to what was sent");
    return answer.asleep;
}

static void measure(const struct options *o) {
    int fd = connect_to(o);
    uint32_t *durations = allocate(o->count * sizeof *durations);
    for (int i = 0; i < WARM_UP; i++) wake(fd);
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < o->count; i++) {
        sleep_ns(PAUSE_NS);
        durations[i] = (uint32_t)wake(fd);
    }
    print_durations(durations, o->count, (double)(now_ns() - start) / 1e9);
}

int main(int argc, char **argv) { return play(argc, argv, serve, measure); }
