// What the parts of the stress program `processes` share: what its processes share, and how they draw, note and fail.
#ifndef PLAY_H
#define PLAY_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

// How a connection ends.
enum { END_CLOSE, END_HALF, END_RESET, END_UNREAD, END_SHUTDOWN, END_KILL, ENDS };

enum {
    CONNS = 5,        // most connections in a round
    PHASES = 40,      // most phases of a script
    EVENTS = 256,     // remembered of each connection
    DEPTH = 3,        // most hand-overs inside one another
    LARGE = 256 << 10, // most bytes in one call
    SHARED_FD = 200,  // where every process has the shared memory
    TOP_FD = 160,     // above all descriptors of connections
    STUCK_MS = 12000, // a round that stands still for so long is stuck
};

struct event {
    int pid, tid, fd;
    char side;
    long us, n;
    const char *what; // an address in this very program, the same in each of its images only after an exec without ASLR
    char word[24];
};

struct side {
    _Atomic uint64_t sent, received;
    _Atomic uint64_t rng;
    _Atomic int phase, done, closed, nonblock;
    _Atomic uint64_t ahead; // up to where bytes were sent that the ring may not have taken
    _Atomic uint64_t begun; // up to where it has begun to send
    _Atomic int unable;     // how often it was handed to an image that cannot go on
    _Atomic int keepers;    // processes that wait for others, and keep a descriptor of it meanwhile
    _Atomic int ended;      // nothing more will come from it
    _Atomic int
        passed; // it was passed to another process, so it sends by the kernel behind what lies unread in the ring
    _Atomic int input;      // it became an image's standard input, so it sends by the kernel likewise
    _Atomic int
        pinned; // it was used in a way that the library leaves to the kernel, so both send by the kernel likewise
    _Atomic uint64_t filtered; // 1 + what it had received when it was handed to an image behind a filter
    _Atomic int reset;      // it has heard of a reset that may have been
    _Atomic int replaced;   // an image had another socket in its place
};

struct conn {
    uint64_t key[2]; // of the bytes that side 0 and side 1 send
    int phases, end, first, noise, timeout_ms, buffer, splices, calm, prompt, unable;
    uint64_t upto[2][PHASES + 1]; // position at which each phase begins
    _Atomic int port;             // the client's, until the server has found the connection by it
    _Atomic int killed;           // a process that had it was killed
    _Atomic int replacing;        // the process that executes another in its own place; -1 once a side ends
    struct side side[2];
    _Atomic unsigned events;
    struct event event[EVENTS];
};

struct shared {
    uint64_t seed;
    long round, started_us;
    int family, conns, place, serve, call;
    _Atomic int port, failed;
    _Atomic uint64_t progress;
    char message[400];
    struct conn conn[CONNS];
};

extern struct shared *shared;

// A player: one side of one connection, on one descriptor, in one thread.
struct actor {
    struct conn *conn;
    int me, fd, depth;
    int budget;  // steps that this process has still to make; negative: to the end
    bool own;    // this process does nothing else, so it may execute itself
    int worker;  // a worker that was forked before the connection existed, or -1
    pid_t worker_pid;
};

static inline long now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

static inline uint32_t under(_Atomic uint64_t *rng, uint32_t n)
{
    return (uint32_t)(mix(atomic_fetch_add(rng, 0x632be59bd9b4e019)) >> 33) % n;
}

static inline bool one_in(_Atomic uint64_t *rng, uint32_t n) { return under(rng, n) == 0; }

// Whether PROCESSES_SKIP names this word.
bool skipped(const char *word);
// One of a table's choices that is not left out; the first if all are.
int choose(_Atomic uint64_t *rng, const char *const *table, int n);
void nap(long us);
// Remembers an event.
void note(struct actor *a, const char *what, long n);
// Ends the round, which has failed.
__attribute__((format(printf, 2, 3), noreturn)) void blame(struct actor *a, const char *format, ...);
// The same, unless the cause is a reset that may have been.
#define fail(a, ...) (stop_if_reset(a), blame(a, __VA_ARGS__))
// If the socket was reset, and may have been, this thread sleeps until the round is over.
void stop_if_reset(struct actor *a);
// Whether the connection is over for this process by a reset, or since an image had another socket in its place.
bool is_over(struct actor *a);
// So many bytes are about to be sent.
void mark_ahead(struct actor *a, size_t n);
// The rest of this phase.
uint64_t left_to_send(struct actor *a);
uint64_t left_to_receive(struct actor *a);
// Closes what else this process has inherited, as a careful program does.
void close_others(_Atomic uint64_t *rng, int keep, int keep_too);
// Fails unless a child has ended with 0, or was killed as it may be.
void judge(struct actor *a, int status, bool killed);
// Waits for a child, and judges it.
void reap(struct actor *a, pid_t pid, bool killed);
// The bytes that a side sends from position `at` on.
void fill(unsigned char *to, size_t n, uint64_t key, uint64_t at);
// Fails unless they are those that the other side has sent there.
void check(struct actor *a, const unsigned char *bytes, size_t n, uint64_t at, const char *how);

#endif
