// What the helper programs share. They are ordinary socket programs that know nothing of Underpass:
// what they measure is what a user's program sees.
#pragma once
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static inline _Noreturn void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static inline _Noreturn void wrong(const char *what) {
    fprintf(stderr, "wrong result: %s\n", what);
    exit(2);
}

static inline uint64_t clock_ns(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline uint64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

static inline void sleep_ns(uint64_t ns) {
    struct timespec t = {.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
    while (nanosleep(&t, &t) < 0 && errno == EINTR) {}
}

static inline void *allocate(size_t bytes) {
    void *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!memory) fail("out of memory");
    memset(memory, 0, (bytes + 4095) / 4096 * 4096); // no page fault while the clock runs
    return memory;
}

// Options: one table for all programs; each uses what concerns it.

enum mode { BLOCKING, POLL, EPOLL, EPOLL_EDGE };

struct options {
    enum mode mode;
    int port;          // of the server to connect to; 0: be the server
    int family;        // AF_INET or AF_INET6
    int cpu;           // processor to run on; -1: any
    int peer_cpu;      // the other process's, where one program makes both
    size_t size;       // bytes of a message or a write
    uint64_t count;    // repetitions or connections
    uint64_t warm_up;  // repetitions before the clock runs
    double seconds;    // how long the clock runs
    unsigned pause_us; // microseconds that a reader rests after each receive
    bool gso;          // datagrams as segments of larger ones
    uint64_t start_at; // CLOCK_MONOTONIC nanoseconds at which the clock starts; 0: at once
};

static inline void pin(int cpu) {
    if (cpu < 0) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) < 0) fail("sched_setaffinity");
}

static inline enum mode mode_named(const char *name) {
    static const char *const names[] = {"blocking", "poll", "epoll", "epoll-edge"};
    for (unsigned i = 0; i < 4; i++)
        if (!strcmp(name, names[i])) return (enum mode)i;
    fprintf(stderr, "unknown mode %s\n", name);
    exit(64);
}

static inline struct options parse(int argc, char **argv) {
    static const struct option known[] = {
        {"mode", 1, 0, 'm'},    {"port", 1, 0, 'p'},    {"family", 1, 0, 'f'},   {"cpu", 1, 0, 'c'},
        {"size", 1, 0, 's'},    {"count", 1, 0, 'n'},   {"warm-up", 1, 0, 'w'},  {"peer-cpu", 1, 0, 'C'},
        {"seconds", 1, 0, 't'}, {"start-at", 1, 0, 'a'}, {"gso", 0, 0, 'g'},   {"pause", 1, 0, 'P'},
        {0, 0, 0, 0},
    };
    struct options o = {.family = AF_INET, .cpu = -1, .peer_cpu = -1, .size = 1, .count = 1000, .seconds = 1};
    for (int c; (c = getopt_long(argc, argv, "", known, NULL)) != -1;) {
        switch (c) {
        case 'm': o.mode = mode_named(optarg); break;
        case 'p': o.port = atoi(optarg); break;
        case 'f': o.family = atoi(optarg) == 6 ? AF_INET6 : AF_INET; break;
        case 'c': o.cpu = atoi(optarg); break;
        case 'C': o.peer_cpu = atoi(optarg); break;
        case 's': o.size = strtoull(optarg, NULL, 10); break;
        case 'n': o.count = strtoull(optarg, NULL, 10); break;
        case 'w': o.warm_up = strtoull(optarg, NULL, 10); break;
        case 't': o.seconds = atof(optarg); break;
        case 'P': o.pause_us = (unsigned)strtoul(optarg, NULL, 10); break;
        case 'g': o.gso = true; break;
        case 'a': o.start_at = strtoull(optarg, NULL, 10); break;
        default: exit(64);
        }
    }
    pin(o.cpu);
    return o;
}

// With --port the client, else the server.
static inline int play(int argc, char **argv, void (*serve)(const struct options *),
                       void (*measure)(const struct options *)) {
    struct options o = parse(argc, argv);
    (o.port ? measure : serve)(&o);
    return 0;
}

// Sockets.

static inline socklen_t loopback(struct sockaddr_storage *address, int family, int port) {
    memset(address, 0, sizeof *address);
    if (family == AF_INET6) {
        struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)address;
        *v6 = (struct sockaddr_in6){
            .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
        return sizeof *v6;
    }
    struct sockaddr_in *v4 = (struct sockaddr_in *)address;
    *v4 = (struct sockaddr_in){
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return sizeof *v4;
}

static inline void no_delay(int fd) {
    int on = 1;
    if (setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0) fail("TCP_NODELAY");
}

// Listens on a free port and prints its number: the parent waits for that line.
static inline int listen_anywhere(const struct options *o) {
    int fd = socket(o->family, SOCK_STREAM, 0);
    struct sockaddr_storage address;
    socklen_t length = loopback(&address, o->family, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) < 0 || listen(fd, 4096) < 0) fail("listen");
    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0) fail("getsockname");
    printf("listening %d\n", ntohs(((struct sockaddr_in *)&address)->sin_port)); // same place in both families
    fflush(stdout);
    return fd;
}

static inline int accept_one(int listener) {
    int fd = accept(listener, NULL, NULL);
    if (fd < 0) fail("accept");
    no_delay(fd);
    return fd;
}

static inline int connect_to(const struct options *o) {
    struct sockaddr_storage address;
    socklen_t length = loopback(&address, o->family, o->port);
    int fd = socket(o->family, SOCK_STREAM, 0);
    if (fd < 0) fail("socket");
    if (connect(fd, (struct sockaddr *)&address, length) < 0) fail("connect");
    no_delay(fd);
    return fd;
}

static inline void non_blocking(int fd) {
    if (fcntl(fd, F_SETFL, O_NONBLOCK) < 0) fail("O_NONBLOCK");
}

static inline void send_all(int fd, const void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = send(fd, (const char *)data + done, size - done, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail("send");
        done += (size_t)n;
    }
}

// False at an end of file before the first byte.
static inline bool recv_all(int fd, void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = recv(fd, (char *)data + done, size - done, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail("recv");
        if (n == 0 && done == 0) return false;
        if (n == 0) wrong("the connection ended inside a message");
        done += (size_t)n;
    }
    return true;
}

static inline void epoll_add(int set, int fd, uint32_t events, uint64_t data) {
    struct epoll_event event = {.events = events, .data.u64 = data};
    if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &event) < 0) fail("epoll_ctl");
}

static inline int epoll_wait_for(int set, struct epoll_event *events, int room, int timeout_ms) {
    int n = epoll_wait(set, events, room, timeout_ms);
    if (n < 0 && errno != EINTR) fail("epoll_wait");
    return n < 0 ? 0 : n;
}

// A stream whose bytes tell their position. The period is a prime, so that no lost, repeated or displaced piece
// of a buffer's size goes unseen.

enum { PERIOD = 251 };

// Room for writes of `size` bytes from any position: send from `pattern + position % PERIOD`.
static inline unsigned char *pattern_for(size_t size) {
    unsigned char *pattern = allocate(size + PERIOD);
    for (size_t i = 0; i < size + PERIOD; i++) pattern[i] = (unsigned char)(i % PERIOD);
    return pattern;
}

// Looks at the first and last byte of what was received at `position`, and at one byte in 4,096 between.
static inline void check_pattern(const unsigned char *data, size_t size, uint64_t position) {
    for (size_t i = 0; i < size; i += 4096)
        if (data[i] != (position + i) % PERIOD) wrong("the stream's bytes are not those that were sent");
    if (data[size - 1] != (position + size - 1) % PERIOD) wrong("the stream's bytes are not those that were sent");
}

struct metered {
    uint64_t total; // bytes received, the warm-up included
    uint64_t bytes; // bytes received while the clock ran
    uint64_t ns;    // how long it ran
};

// Bytes over time at the receiver, from the end of the warm-up to the end of the stream.
struct meter {
    uint64_t position;       // bytes so far
    uint64_t first;          // when the first came
    uint64_t begin;          // when the clock began to run
    uint64_t begin_position; // bytes until then
};

enum { WARM_UP_NS = 50 * 1000 * 1000 };

static inline void meter_received(struct meter *meter, const unsigned char *data, size_t size) {
    check_pattern(data, size, meter->position);
    meter->position += size;
    if (meter->begin) return;
    uint64_t now = now_ns();
    if (!meter->first) meter->first = now;
    if (now - meter->first < WARM_UP_NS) return;
    meter->begin = now;
    meter->begin_position = meter->position;
}

// At the end of the stream.
static inline struct metered meter_result(const struct meter *meter) {
    struct metered result = {.total = meter->position};
    if (meter->begin) result.ns = now_ns() - meter->begin, result.bytes = meter->position - meter->begin_position;
    return result;
}

// Whether the clock has run for half of the time that it was to run, at least. It has not where other programs had the
// receiver's processor meanwhile, and the rest of the stream came within the warm-up. The stream is sent again then,
// for longer.
static inline bool is_measured(const struct metered *result, const struct options *o) {
    return result->bytes > 0 && (double)result->ns >= o->seconds * 1e9 / 2;
}

// Figures.

// `bytes` in `ns` nanoseconds, of `total` bytes with the warm-up.
static inline void print_throughput(uint64_t bytes, uint64_t ns, uint64_t total) {
    printf("{\"bytes\":%" PRIu64 ",\"total\":%" PRIu64 ",\"seconds\":%.9f,\"bytes_per_second\":%.1f}\n", bytes, total,
           (double)ns / 1e9, (double)bytes * 1e9 / (double)ns);
}

static inline int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

// Prints the distribution of `n` durations in nanoseconds as one JSON object; sorts them.
static inline void print_durations(uint32_t *ns, size_t n, double seconds) {
    if (n == 0) wrong("nothing was measured");
    double sum = 0;
    for (size_t i = 0; i < n; i++) sum += ns[i];
    qsort(ns, n, sizeof *ns, by_value);
    printf("{\"count\":%zu,\"seconds\":%.9f,\"min_ns\":%u,\"p50_ns\":%u,\"p99_ns\":%u,\"mean_ns\":%.1f}\n", n, seconds,
           ns[0], ns[n / 2], ns[n - 1 - n / 100], sum / (double)n);
}
