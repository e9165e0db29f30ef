/* busy: connections that are always busy, while something happens to the daemon that they meet through.
 *
 *   busy serve PORT HOST FILE
 *   busy ask PORT HOST FILE SEED LASTING PASSING THREADS
 *
 * The server echoes. The client keeps LASTING connections, and PASSING ones that it closes and makes anew after some
 * messages, all in one epoll set, and THREADS more, each with a thread that waits in read. It has messages of 1 octet
 * to 48 KiB echoed and checks every octet: each connection sends at another place of the same pattern.
 *
 * FILE is what others see of it, and tell it: see `struct book`. Of every call that must not wait it notes how long it
 * took, and of every exchange of a thread. A call that took long although its thread ran and was not waiting was only
 * kept from the processor by others; one that gave up the processor itself, or used it all the time, is `slow`.
 *
 * Ends with 0 when it is told to and every octet was right. The server ends by a signal.
 */
#include "seeded.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PATTERN = 65521, BIGGEST = 48 * 1024, EVENTS = 64, MOST = 4096 };
enum { BUCKETS = 8192, SLOW_US = 50000, SPUN_US = 25000 };
/* What the client is told: to go on, to let passing connections pass, to end. */
enum { ON, LAST, END };

/* `upheaval.rs` has the same. */
struct book {
    _Atomic uint64_t told, exchanges, connections, octets, slow, slowest_us, passing;
    _Atomic uint32_t calls[BUCKETS], waits[BUCKETS]; /* by milliseconds, rounded down */
};

static struct book *book;
static struct sockaddr_in address;
static unsigned char pattern[PATTERN + BIGGEST];
static int set;

__attribute__((noreturn)) static void fail(const char *what, long value) {
    fprintf(stderr, "busy: %s: %ld, %s\n", what, value, strerror(errno));
    exit(1);
}

static long must(long value, const char *what) {
    if (value < 0) fail(what, value);
    return value;
}

static uint64_t clock_us(clockid_t which) {
    struct timespec t;
    clock_gettime(which, &t);
    return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

static void note(_Atomic uint32_t *histogram, uint64_t us) {
    histogram[us / 1000 < BUCKETS ? us / 1000 : BUCKETS - 1]++;
}

/* ---- Calls that must not wait ---- */

struct mark {
    uint64_t wall, own;
    long waits;
};

static long waits_so_far(void) {
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return usage.ru_nvcsw;
}

static struct mark begin_call(void) {
    long waits = waits_so_far();
    return (struct mark){clock_us(CLOCK_MONOTONIC), clock_us(CLOCK_THREAD_CPUTIME_ID), waits};
}

static void end_call(struct mark begin) {
    int error = errno;
    uint64_t us = clock_us(CLOCK_MONOTONIC) - begin.wall;
    note(book->calls, us);
    if (us > SLOW_US && (waits_so_far() > begin.waits || clock_us(CLOCK_THREAD_CPUTIME_ID) - begin.own > SPUN_US)) {
        book->slow++;
        uint64_t slowest = book->slowest_us;
        while (us > slowest && !atomic_compare_exchange_weak(&book->slowest_us, &slowest, us)) {}
    }
    errno = error;
}

#define TIMED(call) ({ struct mark begin = begin_call(); long result = (call); end_call(begin); result; })

/* ---- Server ---- */

static void serve(void) {
    static char octets[65536];
    int listener = (int)must(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), "socket"), on = 1;
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    must(bind(listener, (struct sockaddr *)&address, sizeof(address)), "bind");
    must(listen(listener, 1024), "listen");
    struct epoll_event events[EVENTS] = {{.events = EPOLLIN, .data.fd = listener}};
    must(epoll_ctl(set, EPOLL_CTL_ADD, listener, events), "epoll_ctl");
    for (;;) {
        int count = (int)must(epoll_wait(set, events, EVENTS, -1), "epoll_wait");
        for (int i = 0; i < count; i++) {
            int fd = events[i].data.fd;
            if (fd == listener) {
                int fresh = (int)TIMED(accept(listener, NULL, NULL));
                if (fresh == -1) continue;
                setsockopt(fresh, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
                struct epoll_event event = {.events = EPOLLIN, .data.fd = fresh};
                must(epoll_ctl(set, EPOLL_CTL_ADD, fresh, &event), "epoll_ctl");
                book->connections++;
                continue;
            }
            ssize_t got = TIMED(recv(fd, octets, sizeof(octets), MSG_DONTWAIT));
            if (got == -1 && errno == EAGAIN) continue;
            if (got <= 0) {
                if (got == -1) fail("the server's read", got);
                TIMED(close(fd));
                continue;
            }
            /* This waits for the client, who reads whatever happens. */
            for (ssize_t sent = 0; sent < got;)
                sent += must(send(fd, octets + sent, (size_t)(got - sent), MSG_NOSIGNAL), "the server's write");
            book->octets += (uint64_t)got;
        }
    }
}

/* ---- Client ---- */

struct end {
    int fd;
    bool lasts, wants_out;
    uint64_t random, left; /* exchanges until it passes */
    size_t from, size, sent, got;
};

static struct end ends[MOST];

static void next_message(struct end *e) {
    static const uint32_t most[] = {64, 64, 1024, BIGGEST};
    e->from = (e->from + e->size) % PATTERN;
    e->size = 1 + pick(&e->random, most[pick(&e->random, 4)]);
    e->sent = e->got = 0;
}

static int fresh_socket(int flags) {
    int fd = (int)must(socket(AF_INET, SOCK_STREAM | flags, 0), "socket"), on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    return fd;
}

static void watch(struct end *e, int operation) {
    struct epoll_event event = {.events = EPOLLIN | (e->wants_out ? EPOLLOUT : 0), .data.ptr = e};
    must(epoll_ctl(set, operation, e->fd, &event), "epoll_ctl");
}

static void begin(struct end *e) {
    e->fd = fresh_socket(SOCK_NONBLOCK);
    if (TIMED(connect(e->fd, (struct sockaddr *)&address, sizeof(address))) == -1 && errno != EINPROGRESS)
        fail("connect", -1);
    e->left = 1 + pick(&e->random, 400);
    e->wants_out = true;
    next_message(e);
    watch(e, EPOLL_CTL_ADD);
    book->connections++;
}

/* Sends what it can of the message. */
static void put(struct end *e) {
    while (e->sent < e->size) {
        ssize_t done = TIMED(send(e->fd, pattern + e->from + e->sent, e->size - e->sent, MSG_DONTWAIT | MSG_NOSIGNAL));
        if (done == -1 && errno != EAGAIN) fail("send", done);
        if (done == -1) break;
        e->sent += (size_t)done;
    }
    bool wants_out = e->sent < e->size;
    if (wants_out != e->wants_out) {
        e->wants_out = wants_out;
        watch(e, EPOLL_CTL_MOD);
    }
}

static void check(struct end *e, const unsigned char *octets, ssize_t got) {
    if (got == 0) fail("an end came early, at", (long)e->got);
    if (e->got + (size_t)got > e->sent) fail("more came back than was sent", got);
    if (memcmp(octets, pattern + e->from + e->got, (size_t)got) != 0) fail("other octets came back, at", (long)e->got);
    e->got += (size_t)got;
    book->octets += (uint64_t)got;
}

static bool is_over(struct end *e) { return --e->left == 0 || book->told == END; }

/* Takes what has come, and goes on with the next message once this one has come back. */
static void take(struct end *e) {
    static unsigned char octets[BIGGEST];
    ssize_t got = TIMED(recv(e->fd, octets, sizeof(octets), MSG_DONTWAIT));
    if (got == -1) {
        if (errno != EAGAIN) fail("recv", got);
        return;
    }
    check(e, octets, got);
    if (e->got < e->size) return;
    book->exchanges++;
    if (e->lasts || !is_over(e)) {
        next_message(e);
        return put(e);
    }
    TIMED(close(e->fd));
    e->fd = -1;
    if (book->told == ON) begin(e);
    else book->passing--;
}

/* A connection of a thread's own, by calls that wait. */
static void *wait_alone(void *argument) {
    struct end *e = argument;
    static _Thread_local unsigned char octets[BIGGEST];
    while (book->told == ON) {
        e->fd = fresh_socket(0);
        must(connect(e->fd, (struct sockaddr *)&address, sizeof(address)), "connect");
        book->connections++;
        e->left = 1 + pick(&e->random, 3000);
        do {
            next_message(e);
            uint64_t since = clock_us(CLOCK_MONOTONIC);
            while (e->sent < e->size) {
                e->sent +=
                    (size_t)must(send(e->fd, pattern + e->from + e->sent, e->size - e->sent, MSG_NOSIGNAL), "send");
            }
            while (e->got < e->size) check(e, octets, must(recv(e->fd, octets, e->size - e->got, 0), "recv"));
            note(book->waits, clock_us(CLOCK_MONOTONIC) - since);
            book->exchanges++;
        } while (!is_over(e) && book->told == ON);
        TIMED(close(e->fd));
    }
    book->passing--;
    return NULL;
}

static void ask(uint32_t seed, int lasting, int passing, int threads) {
    if (lasting < 0 || passing < 0 || threads < 0 || lasting + passing + threads > MOST) fail("so many", MOST);
    pthread_t all[64];
    if (threads > (int)(sizeof(all) / sizeof(*all))) fail("so many threads", threads);
    for (int i = 0; i < lasting + passing + threads; i++) {
        struct end *e = &ends[i];
        e->random = mix((uint64_t)seed << 32 | (uint32_t)i);
        e->from = (size_t)i * 7919 % PATTERN;
        e->lasts = i < lasting;
    }
    book->passing = (uint64_t)(passing + threads);
    for (int i = 0; i < lasting + passing; i++) begin(&ends[i]);
    for (int i = 0; i < threads; i++) {
        if (pthread_create(&all[i], NULL, wait_alone, &ends[lasting + passing + i]) != 0) fail("pthread_create", i);
    }
    struct epoll_event events[EVENTS];
    while (book->told != END) {
        int count = epoll_wait(set, events, EVENTS, 100);
        if (count == -1 && errno != EINTR) fail("epoll_wait", count);
        for (int i = 0; i < count; i++) {
            struct end *e = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) put(e);
            if (e->fd != -1 && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR)) take(e);
        }
    }
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
}

int main(int count, char **words) {
    bool asks = count == 9 && strcmp(words[1], "ask") == 0;
    if (!asks && (count != 5 || strcmp(words[1], "serve") != 0)) {
        fprintf(stderr, "usage: see busy.c\n");
        return 2;
    }
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    address = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(words[2]))};
    if (inet_pton(AF_INET, words[3], &address.sin_addr) != 1) return 2;
    int file = (int)must(open(words[4], O_RDWR), words[4]);
    book = mmap(NULL, sizeof(*book), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (book == MAP_FAILED) fail("mmap", -1);
    close(file);
    uint64_t random = 7;
    for (size_t i = 0; i < PATTERN; i++) pattern[i] = (unsigned char)pick(&random, 256);
    for (size_t i = PATTERN; i < sizeof(pattern); i++) pattern[i] = pattern[i - PATTERN];
    set = (int)must(epoll_create1(0), "epoll_create1");
    if (!asks) serve();
    ask((uint32_t)strtoul(words[5], NULL, 10), atoi(words[6]), atoi(words[7]), atoi(words[8]));
    return 0;
}
