// A soak test of two ends that hand their connection on while the other end does the same, or dies.
//
//     executions SEED SECONDS [ROUND]
//
// A round is one connection over loopback. Each end walks at random: it sends or receives a piece of any size, by calls
// that wait or do not, polls, naps, shuts down once all is sent, and makes one of the round's moves: it executes this
// program, in its own place, in a spawned process, or in a child of vfork; executes it without the library, which the
// next execution loads again; has an execution fail; passes the socket to a forked child, or forks and leaves the rest
// to the child; spawns or forks a bystander that has the socket for a while. Where another process goes on, the old one
// exits, with or without a close, or executes a bystander. In some rounds only one end moves. In some the first end
// only sends, and is killed at a random time.
//
// An end's position lies in memory that all processes of the round share, so that the next process goes on where the
// last one stopped. Checked: every byte, that no end sees the end of the stream early, that no call fails, that a
// receiver gets all that a killed sender's calls have returned for, and that all processes end. Two things may end in a
// reset (docs/limits.md), which the last line counts: an image without the library, because no such image can read what
// is left in a ring; and an end that is killed, which may be one round in ten of these at most. If an end is killed
// that was to send what such an image is to read, the image may miss it: one round in a hundred of these at most. A
// failed round says its number and the moves of both ends: a letter each, as in MOVES. With ROUND only that round is
// played. The environment:
//
//     EXECUTIONS_MOVES=letters   make these moves alone
//     EXECUTIONS_DEATHS=0        kill no end
//     EXECUTIONS_HOLD=1          leave a round that has failed as it is, for a debugger
//
// Exit code 0 only if everything agreed.
#include "seeded.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MEMORY = 8, SOCKET = 9, LIMIT_MS = 15000, TRACE = 160, BIGGEST = 300000, PATTERN = 65521 };
enum { EXECUTE, FAIL, PLAIN, SPAWN, VFORK, PASS, FORK, BYSTANDER, IDLE, MOVES };
/* x execute, f fail, p plain, s spawn, v vfork, P pass, F fork, b bystander, i idle. */
static const char LETTER[] = "xfpsvPFbi";
/* The variable that keeps LD_PRELOAD for an image that is to have the library again. */
static const char *const KEPT = "EXECUTIONS_PRELOAD";

extern char **environ;

struct end {
    _Atomic uint64_t sent, received;
    _Atomic uint32_t moves;
    _Atomic pid_t process;
    _Atomic bool has_shut, has_all, is_plain, was_reset;
    char trace[TRACE];
};

static struct round {
    uint64_t total; /* bytes in each direction */
    uint32_t moves; /* that may be made */
    int still;      /* the end that makes none, or -1 */
    int plain;      /* the end that may execute without the library */
    bool dies;
    _Atomic bool has_failed;
    char failure[300];
    struct end ends[2];
} *round_;

static int me;
static uint64_t chance;
static const char *program;
static unsigned char pattern[PATTERN + BIGGEST];

static void fill_pattern(void) {
    for (size_t i = 0; i < sizeof(pattern); i++) pattern[i] = (unsigned char)mix(i % PATTERN);
}

/* What the stream of end `from` has from position `at` on. */
static const unsigned char *stream(int from, uint64_t at) { return pattern + (at + 1000 * (uint64_t)from) % PATTERN; }

static _Noreturn void fail(const char *what, int error) {
    if (!atomic_exchange(&round_->has_failed, true)) {
        const struct end *mine = &round_->ends[me], *its = &round_->ends[!me];
        snprintf(round_->failure, sizeof(round_->failure), "end %d: %s%s%s; sent %llu, received %llu of %llu sent", me,
                 what, error ? ": " : "", error ? strerror(error) : "", (unsigned long long)mine->sent,
                 (unsigned long long)mine->received, (unsigned long long)its->sent);
    }
    if (getenv("EXECUTIONS_HOLD")) pause();
    _exit(1);
}

/* Whether this image has the library, or is not to have it. */
static bool has_library = true;

/* A call on the connection has succeeded: no image without the library, which may have made no call, has cost the
 * connection. */
static void note_success(void) {
    if (has_library) round_->ends[me].is_plain = false;
}

/* A call on the connection has failed. */
static void fail_call(const char *what) {
    const bool may_be_lost = round_->dies || round_->ends[0].is_plain || round_->ends[1].is_plain;
    if (!may_be_lost || (errno != ECONNRESET && errno != ENOTCONN && errno != EPIPE)) fail(what, errno);
    round_->ends[me].was_reset = true;
    exit(0);
}

static long must(long answer, const char *what) {
    if (answer < 0) fail(what, errno);
    return answer;
}

// ------------------------------------------------------------------------------------------------------ the next
// process

static char seed_text[24], end_text[2];
static char *arguments[5];

/* The arguments with which this program goes on as this end. */
static char **go_on(void) {
    snprintf(seed_text, sizeof(seed_text), "%llu", (unsigned long long)mix(chance));
    snprintf(end_text, sizeof(end_text), "%d", me);
    arguments[0] = (char *)program, arguments[1] = "-", arguments[2] = end_text, arguments[3] = seed_text;
    return arguments;
}

/* Whether the next image is to have the library. */
static void load_library(bool is_to) {
    const char *here = getenv("LD_PRELOAD"), *kept = getenv(KEPT);
    if (is_to && !here && kept) setenv("LD_PRELOAD", kept, 1);
    if (!is_to && here) {
        setenv(KEPT, here, 1);
        unsetenv("LD_PRELOAD");
    }
}

/* A process that has nothing to do with the connection, `ms` long. */
static char **idle_for(const char *ms) {
    static char *idle[4];
    idle[0] = (char *)program, idle[1] = "idle", idle[2] = (char *)ms;
    return idle;
}

/* Another process goes on as this end. */
static _Noreturn void leave(void) {
    if (pick(&chance, 3) == 0) {
        close(SOCKET);
        close(MEMORY);
        execv(program, idle_for("20"));
        fail("execute a bystander", errno);
    }
    if (pick(&chance, 2)) close(SOCKET);
    exit(0);
}

static void begin_process(void) {
    round_->ends[me].process = getpid();
    if (!has_library) round_->ends[me].is_plain = true;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    const int flags = (int)must(fcntl(SOCKET, F_GETFL), "ask for the flags");
    must(fcntl(SOCKET, F_SETFL, pick(&chance, 2) ? flags | O_NONBLOCK : flags & ~O_NONBLOCK), "set the flags");
}

static void pass_on(void) {
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), "make a pair");
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr header;
    } control = {.header = {.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS}};
    char byte = 0;
    struct iovec one = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &one, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof(control.bytes)};
    if (must(fork(), "fork")) {
        const int fd = SOCKET;
        memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
        must(sendmsg(pair[0], &message, 0), "pass the socket");
        close(pair[0]);
        close(pair[1]);
        leave();
    }
    close(pair[0]);
    close(SOCKET);
    /* The process that was to pass it may have been killed before. */
    if (must(recvmsg(pair[1], &message, 0), "take the socket") == 0) exit(0);
    int fd;
    memcpy(&fd, CMSG_DATA(&control.header), sizeof(fd));
    close(pair[1]);
    if (fd != SOCKET) {
        must(dup2(fd, SOCKET), "number the socket");
        close(fd);
    }
}

static void fail_to_execute(void) {
    static char long_text[200000]; /* longer than one argument may be */
    memset(long_text, 'a', sizeof(long_text) - 1);
    char *refused[] = {(char *)program, long_text, NULL};
    execv(program, refused);
    if (errno != E2BIG) fail("an execution with too much", errno);
}

static void make(int move) {
    pid_t child;
    load_library(move != PLAIN);
    switch (move) {
    case EXECUTE: execv(program, go_on()); fail("execute", errno);
    case PLAIN:
        /* The old image may reset the connection already. */
        round_->ends[me].is_plain = true;
        execv(program, go_on());
        fail("execute", errno);
    case FAIL: fail_to_execute(); break;
    case SPAWN:
        if ((errno = posix_spawn(&child, program, NULL, NULL, go_on(), environ))) fail("spawn", errno);
        leave();
    case VFORK:
        go_on();
        if (must(vfork(), "vfork") == 0) {
            execv(program, arguments);
            _exit(1);
        }
        leave();
    case PASS: pass_on(); break;
    case FORK:
        if (must(fork(), "fork")) leave();
        break;
    case BYSTANDER:
        if ((errno = posix_spawn(&child, program, NULL, NULL, idle_for("2"), environ)))
            fail("spawn a bystander", errno);
        return;
    case IDLE:
        if (must(fork(), "fork") == 0) {
            usleep(pick(&chance, 3000));
            if (pick(&chance, 2)) _exit(0);
            execv(program, idle_for("1"));
            _exit(1);
        }
        return;
    }
    begin_process();
}

static void move(void) {
    struct end *mine = &round_->ends[me];
    const int move = (int)pick(&chance, MOVES);
    if (!(round_->moves >> move & 1) || round_->still == me || (move == PLAIN && round_->plain != me)) return;
    mine->trace[mine->moves++ % TRACE] = LETTER[move];
    make(move);
}

// -------------------------------------------------------------------------------------------------------------- a walk

static void send_piece(void) {
    struct end *mine = &round_->ends[me];
    size_t piece = 1 + pick(&chance, pick(&chance, 4) ? 300 : 200000);
    if (piece > round_->total - mine->sent) piece = round_->total - mine->sent;
    const bool waits = !(fcntl(SOCKET, F_GETFL) & O_NONBLOCK);
    if (waits) {
        /* The other end may be about to send as well, and two that wait for room would wait for ever. */
        struct pollfd room = {.fd = SOCKET, .events = POLLOUT};
        if (poll(&room, 1, 0) <= 0) return;
        if (piece > 3000) piece = 3000;
    }
    const ssize_t sent = send(SOCKET, stream(me, mine->sent), piece, waits ? 0 : MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) fail_call("send");
    if (sent > 0) {
        mine->sent += (uint64_t)sent;
        note_success();
    }
    if (mine->sent == round_->total) {
        if (shutdown(SOCKET, SHUT_WR)) fail_call("shut down");
        mine->has_shut = true;
    }
}

/* Says where in the stream what came instead lies, as far as that is to be seen. */
static _Noreturn void fail_for_bytes(const unsigned char *bytes, size_t count) {
    enum { ENOUGH = 8, SHOWN = 12 };
    const uint64_t at = round_->ends[me].received;
    size_t right = 0;
    while (bytes[right] == stream(!me, at)[right]) right++;
    size_t zeros = 0;
    while (right + zeros < count && bytes[right + zeros] == 0) zeros++;
    static char text[190];
    int length =
        snprintf(text, sizeof(text), "%zu bytes are right, the next %zu are not, of which %zu are 0; they begin with",
                 right, count - right, zeros);
    for (size_t i = right; i < count && i < right + SHOWN; i++)
        length += snprintf(text + length, sizeof(text) - (size_t)length, " %02x", bytes[i]);
    /* A foreign byte may stand before those of the stream. */
    for (size_t from = right; from + ENOUGH <= count && from <= right + SHOWN; from++)
        for (uint64_t place = 0; place < PATTERN; place++) {
            if (memcmp(bytes + from, stream(!me, place), ENOUGH) != 0) continue;
            const int64_t ahead = (int64_t)place - (int64_t)((at + right) % PATTERN);
            snprintf(text, sizeof(text),
                     "%zu bytes are right, after %zu others the next %zu lie %lld further on, modulo %d", right,
                     from - right, count - from, (long long)ahead, PATTERN);
            fail(text, 0);
        }
    fail(text, 0);
}

static void receive_piece(void) {
    static unsigned char bytes[BIGGEST];
    struct end *mine = &round_->ends[me];
    if (pick(&chance, 4) == 0) {
        struct pollfd data = {.fd = SOCKET, .events = POLLIN};
        must(poll(&data, 1, (int)pick(&chance, 3)), "poll");
    }
    const ssize_t got = recv(SOCKET, bytes, 1 + pick(&chance, pick(&chance, 4) ? 400 : BIGGEST - 1), MSG_DONTWAIT);
    if (got < 0) {
        if (errno != EAGAIN) fail_call("receive");
        return;
    }
    if (got == 0) {
        /* What a killed end has sent, the driver knows once that is gone. */
        if (!round_->dies && mine->received != round_->total) fail("the stream ends early", 0);
        mine->has_all = true;
        return;
    }
    if (memcmp(bytes, stream(!me, mine->received), (size_t)got) != 0) fail_for_bytes(bytes, (size_t)got);
    mine->received += (uint64_t)got;
    note_success();
}

static _Noreturn void walk(void) {
    struct end *mine = &round_->ends[me];
    const bool sends = !round_->dies || me == 0, receives = !round_->dies || me == 1;
    begin_process();
    while ((sends && !mine->has_shut) || (receives && !mine->has_all)) {
        const uint32_t step = pick(&chance, 100);
        if (step < 35) {
            if (sends && !mine->has_shut) send_piece();
        } else if (step < 75) {
            if (receives && !mine->has_all) receive_piece();
        } else if (step < 80) {
            usleep(pick(&chance, pick(&chance, 8) ? 300 : 4000));
        } else if (step < 84) {
            move();
        }
    }
    close(SOCKET);
    exit(0);
}

// ---------------------------------------------------------------------------------------------------------- the driver

static void exchange(int fd, bool begins, uint32_t times) {
    char message[64] = {0};
    for (uint32_t half = 0; half < 2 * times; half++) {
        const bool sends = begins == (half % 2 == 0);
        if (sends) must(send(fd, message, sizeof(message), 0), "greet");
        else if (recv(fd, message, sizeof(message), MSG_WAITALL) != sizeof(message)) fail("no greeting", errno);
    }
}

static void begin_end(int which, int listener, const struct sockaddr_in *address, uint64_t seed) {
    if (must(fork(), "fork")) return;
    me = which;
    chance = mix(seed + (uint64_t)which);
    const int fd = (int)must(which ? accept(listener, NULL, NULL) : socket(AF_INET, SOCK_STREAM, 0), "have a socket");
    if (!which) must(connect(fd, (const struct sockaddr *)address, sizeof(*address)), "connect");
    must(dup2(fd, SOCKET), "number the socket");
    if (fd != SOCKET) close(fd);
    if (listener != SOCKET) close(listener);
    exchange(SOCKET, which == 0, (uint32_t)(seed % 4 * 20));
    walk();
}

/* Reaps the processes of the round, also those whose parents are gone: whether all have ended in time. */
static bool await_all(long kill_at) {
    const long began = now();
    bool is_killed = !round_->dies;
    for (;;) {
        int status;
        const pid_t gone = waitpid(-1, &status, WNOHANG);
        if (gone < 0) return true;
        if (gone > 0) {
            const bool was_meant = round_->dies && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
            if (WIFSIGNALED(status) && !was_meant) {
                char text[40];
                snprintf(text, sizeof(text), "a process died of signal %d", WTERMSIG(status));
                if (!atomic_exchange(&round_->has_failed, true)) strcpy(round_->failure, text);
            }
            continue;
        }
        if (!is_killed && now() - began >= kill_at && round_->ends[0].process > 0) {
            kill(round_->ends[0].process, SIGKILL);
            is_killed = true;
        }
        const long patience = round_->has_failed ? 2000 : LIMIT_MS;
        if (now() - began > patience && !getenv("EXECUTIONS_HOLD")) return false;
        usleep(500);
    }
}

/* Ends what is left of a round that failed. */
static void end_all(void) {
    for (int which = 0; which < 2; which++)
        if (round_->ends[which].process > 0) kill(round_->ends[which].process, SIGKILL);
    const long began = now();
    while (waitpid(-1, NULL, WNOHANG) >= 0 && now() - began < 5000) usleep(1000);
}

/* The moves that may be made at all. */
static uint32_t allowed(void) {
    const char *letters = getenv("EXECUTIONS_MOVES");
    uint32_t all = 0;
    for (int move = 0; move < MOVES; move++) all |= (uint32_t)(!letters || strchr(letters, LETTER[move])) << move;
    return all;
}

static long longest_ms;
static uint32_t longest;

static uint32_t plain_resets, plain_killed_rounds, plain_losses, killed_rounds, killed_resets;

static bool play(uint64_t seed, uint32_t number) {
    chance = mix(seed * 1000003 + number);
    memset(round_, 0, sizeof(*round_));
    round_->total = 1000 + pick(&chance, pick(&chance, 3) ? 3000000 : 100000);
    round_->moves = (1u << EXECUTE | pick(&chance, 1u << MOVES)) & allowed();
    round_->still = pick(&chance, 3) ? -1 : (int)pick(&chance, 2);
    round_->plain = (int)pick(&chance, 2);
    const char *deaths = getenv("EXECUTIONS_DEATHS");
    round_->dies = pick(&chance, 3) == 0 && (!deaths || strcmp(deaths, "0"));
    const uint64_t ends_seed = mix(chance);
    const long kill_at = 3 + (long)pick(&chance, 60);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof(address);
    const int listener = (int)must(socket(AF_INET, SOCK_STREAM, 0), "make a socket");
    must(bind(listener, (struct sockaddr *)&address, length), "bind");
    must(listen(listener, 1), "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &length), "ask for the port");
    for (int which = 0; which < 2; which++) begin_end(which, listener, &address, ends_seed);
    close(listener);
    const long began = now();
    const bool have_ended = await_all(kill_at);
    if (now() - began > longest_ms) longest_ms = now() - began, longest = number;
    const struct end *first = &round_->ends[0], *second = &round_->ends[1];
    const char *what = round_->has_failed ? round_->failure : NULL;
    if (!what && !have_ended) what = "it stands still";
    const bool is_missing = round_->dies && second->received < first->sent && !second->was_reset;
    if (!what && is_missing && !second->is_plain) what = "bytes of the killed end are missing";
    const bool was_reset = first->was_reset || second->was_reset, is_plain = first->is_plain || second->is_plain;
    plain_killed_rounds += round_->dies && is_plain;
    plain_losses += is_missing && second->is_plain;
    killed_rounds += round_->dies && !is_plain;
    plain_resets += was_reset && is_plain;
    killed_resets += was_reset && !is_plain;
    if (!what) return true;
    printf("round %u: %s\n  of %llu bytes: sent %llu and %llu, received %llu and %llu%s; moves %.*s | %.*s\n", number,
           what, (unsigned long long)round_->total, (unsigned long long)first->sent, (unsigned long long)second->sent,
           (unsigned long long)first->received, (unsigned long long)second->received,
           round_->dies ? ", the first end killed" : "", TRACE, first->trace, TRACE, second->trace);
    fflush(stdout);
    if (!have_ended) end_all();
    return false;
}

int main(int count, char **arguments_) {
    program = arguments_[0];
    fill_pattern();
    if (count > 2 && !strcmp(arguments_[1], "idle")) {
        usleep((useconds_t)atoi(arguments_[2]) * 1000);
        return 0;
    }
    const bool goes_on = count > 3 && !strcmp(arguments_[1], "-");
    if (count < 3) {
        fprintf(stderr, "usage: executions SEED SECONDS [ROUND]\n");
        return 2;
    }
    if (!goes_on) {
        const int memory = memfd_create("executions", 0);
        if (memory < 0 || ftruncate(memory, sizeof(*round_)) || dup2(memory, MEMORY) < 0) return perror("memory"), 2;
        if (memory != MEMORY) close(memory);
    }
    round_ = mmap(NULL, sizeof(*round_), PROT_READ | PROT_WRITE, MAP_SHARED, MEMORY, 0);
    if (round_ == MAP_FAILED) return perror("mmap"), 2;
    if (goes_on) {
        /* Before a failed execution changes the environment. */
        has_library = getenv("LD_PRELOAD") || !getenv(KEPT);
        me = atoi(arguments_[2]);
        chance = strtoull(arguments_[3], NULL, 10);
        walk();
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    const uint64_t seed = strtoull(arguments_[1], NULL, 10);
    const long until = now() + 1000 * atol(arguments_[2]);
    uint32_t rounds = 0, failed = 0;
    if (count > 3) return play(seed, (uint32_t)atoi(arguments_[3])) ? 0 : 1;
    while (now() < until) failed += !play(seed, rounds++);
    printf("%u rounds, %u failed, %u reset before an image without the library, %u of %u with a killed end reset; "
           "%u of %u with a killed end and such an image missed bytes; the longest, %u, took %ld ms\n",
           rounds, failed, plain_resets, killed_resets, killed_rounds, plain_losses, plain_killed_rounds, longest,
           longest_ms);
    return failed > 0 || killed_resets > 10 + killed_rounds / 10 || plain_losses > 2 + plain_killed_rounds / 100;
}
