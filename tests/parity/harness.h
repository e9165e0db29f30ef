/* Shared by the parity programs.
 *
 * A scenario makes its own TCP connection between two sides, A (which accepted) and B (which connected), and says every
 * return value, errno and digest as lines of text. The same scenario on kernel TCP and under Underpass must say the
 * same. Nothing depends on time: a side waits for conditions, and the runner ends a scenario that hangs.
 */
#ifndef HARNESS_H
#define HARNESS_H

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB 1024
#define MIB (1024 * 1024)
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* One end of the connection and the means to take turns with the other. */
struct side {
    int fd;       /* this end of the TCP connection, already warm */
    int turn;     /* a Unix stream to the other side: see tell() and hear() */
    int listener; /* A's, still listening; -1 in B of another process */
    struct sockaddr_storage address; /* of the listener */
    pid_t peer;   /* B's process, in A; 0 where both sides are threads of one process */
    pid_t other;  /* the thread that plays the other side, for await_asleep() */
    bool leader;  /* true in A */
};
typedef void part(struct side *side);

/* The scenarios of a program, in a table that ends with an empty name. */
struct scenario {
    const char *name;
    void (*run)(void);
    bool stays_on_kernel; /* no connection of this scenario can be on the fast path */
};
extern const struct scenario scenarios[];

/* Runs the two parts, B in a child process or in a thread. Each side's fd is closed when its part returns, whatever
 * else it opened is not. Ends when both have ended and says how B ended. */
void two_processes(int family, part *a, part *b);
void two_threads(int family, part *a, part *b);

/* One more connection between the sides, made by both calling this; warm as the first. */
int another(struct side *side);
/* The same in steps, for scenarios about how a connection is made. */
int listen_on(int family, struct sockaddr_storage *address);
socklen_t address_size(const struct sockaddr_storage *address);
int connect_to(const struct sockaddr_storage *address);
/* Forty small messages each way, so that both directions are on the fast path. PARITY_WARM=0 leaves them out. */
void warm(int fd, bool leader);

/* Turns: hear() returns once the other side has called tell(). */
void tell(struct side *side);
void hear(struct side *side);

/* One line of output, marked with the letter of the thread that says it. */
extern _Thread_local char role;
void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Says a call as written with its value and errno, and returns the value. */
#define SHOW(call) show(#call, (errno = 0, (long)(call)))
long show(const char *call, long value);
/* Says the length and digest of bytes. */
void say_bytes(const char *what, const void *bytes, long count);
/* The name of an errno, "0" for none. */
const char *error_name(int number);

/* Ends the scenario with a message that appears on no correct path. */
void fail(const char *what) __attribute__((noreturn));
/* For calls that are not the subject: fails on -1. */
#define MUST(call) must(#call, (long)(call))
long must(const char *call, long value);

/* Test data: any byte of a stream can be computed from its seed and position. */
void fill(void *bytes, size_t count, uint64_t seed, uint64_t at);
/* Index of the first byte that is not as fill() makes it, or -1. */
long differs(const void *bytes, size_t count, uint64_t seed, uint64_t at);
uint64_t digest(const void *bytes, size_t count);
uint64_t next_random(uint64_t *state);

/* Moves exactly count bytes; receive_all returns less only at end-of-file. */
void send_all(int fd, const void *bytes, size_t count);
size_t receive_all(int fd, void *bytes, size_t count);
/* Sends back what comes until the end, and says how much that was. */
void echo_until_end(struct side *side);
/* Takes a nonblocking socket to where a send would block; returns how much it took. */
size_t stuff(int fd, uint64_t seed);
/* The same of a socket whose other side has as much memory as window: no room comes any more. It takes half a
 * second. */
size_t stuff_for_good(int fd, uint64_t seed);

/* Conditions. */
void await_bytes(int fd, int count); /* FIONREAD reports at least count */
void await_events(int fd, short events); /* poll reports one of them */
void await_asleep(pid_t task);       /* the thread sleeps in the kernel */
pid_t this_task(void);
/* Waits for a child: its exit code, or 1000 and the signal that ended it. */
int ended(pid_t child);
void nap_ms(long milliseconds);
long now_ms(void);

void set_nonblocking(int fd, bool on);
void start_thread(pthread_t *thread, void *(*body)(void *), void *argument);

#endif
