/* Shared by the parity programs of epoll sets. */
#ifndef SETS_H
#define SETS_H

#include "harness.h"

#include <sys/epoll.h>

static _Thread_local char in[64 * KIB] __attribute__((unused));


static inline void add(int set, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
}

/* The data of what is ready, in order, and the events. */
static inline void report(const char *when, int set, int timeout) {
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
static inline void report_all(const char *when, int set, int sockets) {
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

static inline void ten_when_told(struct side *side) {
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
static inline void ten_now(struct side *side) {
    MUST(write(side->turn, "s", 1));
    hear(side);
}
static inline void ten_later(struct side *side) {
    MUST(write(side->turn, "l", 1));
    hear(side);
}
static inline void quit(struct side *side) { MUST(write(side->turn, "q", 1)); }

#endif
