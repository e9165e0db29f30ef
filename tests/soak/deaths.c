/* deaths: a soak test of ends that die, stop and execute other programs at random points.
 *
 *   deaths SEED SECONDS [PORT]
 *
 * Lanes side by side; in each a driver, a survivor that lives through many connections, and for each connection a
 * victim that is made for it: a forked process, an executed one, or a child of the survivor's. Both ends send and
 * check streams of known bytes, in small or large pieces, in one of several manners (by turns, two threads, poll,
 * epoll, without waiting). At times one of the ends is shared with a forked child, which uses it by turns with its
 * parent or keeps it and does nothing.
 *
 * At a random point the victim (or one of two that share an end) is killed, aborts, _exits or executes this program
 * anew: by the driver, after a random time; by a signal handler of its own, so in the middle of any instruction; or
 * between two calls. The connection is closed by the execution, or goes on in the new image, by its number or as
 * standard input; an image that has not the library keeps it for a while. Meanwhile processes are stopped and continued
 * at random. A process that goes on with an end that another has left in the middle of a call begins an epoch of its
 * stream, and finds out what was read last.
 *
 * Each send says in memory of all how far it goes, before it is made and when it has returned. Checked: that the
 * survivor gets every byte that a send has returned for, in order, and no other; then an end, or a reset if the
 * victim had not read all, and that the victim sees neither, while the survivor lives; that all that waits is woken
 * within 60 s (the kernel of a busy host may take 15 s to end a killed process); that nobody crashes; that the
 * survivor has as many descriptors as before. At the end, that no segment of System V is left without a process, and
 * nothing in /dev/shm. Exit code 0 if all that held.
 *
 * Variables: DEATHS_COUNT (ends after so many deaths), DEATHS_LANES, DEATHS_PLAN (LANE:GENERATION, repeated for
 * ever), DEATHS_FATES (a mask of what may happen: 1 kill, 2 abort, 4 _exit, 8 exec, 16 nothing), DEATHS_STOP (a
 * failure stays for gdb), DEATHS_BESIDE (programs are also executed while another thread is in a call on the same
 * connection). As root: DEATHS_USERS (VICTIM:SURVIVOR, of group 1, which the two ends are), DEATHS_HOSTS (their
 * addresses, a space between), DEATHS_NETS (files of their network namespaces, a space between; each end has System V
 * memory of its own as well).
 */
#include "seeded.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST_LANES = 8, HANDS = 2, EPOCHS = 8, LIMIT_MS = 60000, LIVES = 60, MOST_PIDS = 1 << 22, MOST_FILES = 64 };
enum { PATTERN = 65521, BIGGEST = 300 * 1024, READ = 60000, TAIL = 24 };
enum { VICTIM, SURVIVOR };
enum { PING, THREADS, POLL, LEVEL, EDGE, SPIN, STYLES };
enum { FORKED, EXECUTED, KIN };
/* How much an end sends: nothing, as much as it gets, with pauses, all the time. */
enum { NOTHING, ANSWERS, PAUSES, ALWAYS };
enum { NEVER, SLOWLY, AT_ONCE };
enum { BY_DRIVER, BY_HANDLER, BY_COUNT };
enum { KILL, ABORT, EXIT, EXEC, ORDERLY, FATES };
enum { CLOSED, BY_NUMBER, AS_STDIN, WITHOUT };
enum { ALONE, BY_TURNS, IDLE };
static const char *const STYLE[] = {"ping", "threads", "poll", "level", "edge", "spin"};
static const char *const FATE[] = {"kill", "abort", "exit", "exec", "orderly"};
static const char *const IMAGE[] = {"closed", "by number", "stdin", "without the library"};

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* One direction at one end. */
struct half {
    _Atomic int owner; /* 1 + the hand that is in a call or between two steps of one */
    _Atomic uint32_t epoch;
    _Atomic uint64_t at, want; /* what is done of the epoch's stream, and what the call may do beside */
    _Atomic bool over, mark;
    _Atomic int error;
    _Atomic uint64_t done[EPOCHS], tried[EPOCHS]; /* of a sender */
    _Atomic uint64_t slack;                       /* of a reader: what a dead one may have read beyond `at` */
    unsigned char tail[TAIL];
    _Atomic uint32_t tail_size;
};

struct side {
    _Atomic pid_t pid[HANDS];
    _Atomic bool dead[HANDS], connected;
    struct half out, in;
};

struct plan {
    int family, style[2], drive[2], reads[2], big[2], nodelay;
    bool connects; /* the victim does */
    int shared_side, share, fork_after;
    int target_side, target_hand, fate, how, image, second, stops;
    bool early; /* the time begins before they are connected */
    uint32_t when, later;
};

struct lane {
    _Atomic uint32_t generation, over, number;
    _Atomic int port;
    _Atomic uint32_t host; /* of who listens */
    _Atomic bool leave, finish, given_up, imaged, unborn;
    struct plan plan;
    struct side side[2];
    _Atomic uint64_t survivor_sent;
    _Atomic bool certain; /* the victim's last process died with something unread */
};

static struct shared {
    struct lane lanes[MOST_LANES];
    _Atomic uint64_t generations, deaths, by_fate[FATES], stops, bytes, ends, unread, resets, false_resets, lost;
    _Atomic bool stop, failed;
    _Atomic uint8_t ours[MOST_PIDS / 8];
    int port;
    unsigned fates;
    bool beside;
    uint32_t hosts[2];
} *shared;

static uint32_t seed;
static int memory = -1, port, lane_index;
static struct lane *lane;
static unsigned char pattern[PATTERN + BIGGEST];
static char *bare[512]; /* the environment without the library */
/* Settings of the driver, which is root then: the users of the two ends, and their namespaces. */
static unsigned users[2];
static int nets[2] = {-1, -1};

static void rest(long microseconds) {
    struct timespec time = {microseconds / 1000000, microseconds % 1000000 * 1000};
    nanosleep(&time, NULL);
}

static void describe(void) {
    struct plan *p = &lane->plan;
    dprintf(
        2,
        "seed %u, DEATHS_PLAN=%d:%u: %s family %d, %s, share %d of side %d after %d; %s by %d of %d.%d when %u%s, %s, "
        "second %s after %u, %d stops\n",
        seed, lane_index, lane->number, p->connects ? "connects," : "accepts,", p->family,
        p->nodelay ? "nodelay" : "nagle", p->share, p->shared_side, p->fork_after, FATE[p->fate], p->how,
        p->target_side, p->target_hand, p->when, p->early ? " early" : "", IMAGE[p->image], FATE[p->second], p->later,
        p->stops);
    for (int i = 0; i < 2; i++) {
        struct side *s = &lane->side[i];
        dprintf(2,
                "  %s: %d%s %d%s %s, drive %d, reads %d, up to %d; out %u:%lu +%lu owner %d over %d error %d; "
                "in %u:%lu +%lu slack %lu owner %d over %d error %d\n",
                i == VICTIM ? "victim  " : "survivor", s->pid[0], s->dead[0] ? " dead" : "", s->pid[1],
                s->dead[1] ? " dead" : "", STYLE[p->style[i]], p->drive[i], p->reads[i], p->big[i], s->out.epoch,
                (unsigned long)s->out.at, (unsigned long)s->out.want, s->out.owner, s->out.over, s->out.error,
                s->in.epoch, (unsigned long)s->in.at, (unsigned long)s->in.want, (unsigned long)s->in.slack,
                s->in.owner, s->in.over, s->in.error);
    }
    dprintf(2, "  the survivor had sent %lu%s; given up %d, finish %d, imaged %d\n", (unsigned long)lane->survivor_sent,
            lane->certain ? ", not all read" : "", lane->given_up, lane->finish, lane->imaged);
}

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...) {
    char text[300];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    if (!atomic_exchange(&shared->failed, true)) {
        dprintf(2, "%d: %s\n", getpid(), text);
        if (lane) describe();
        if (getenv("DEATHS_STOP")) {
            for (int i = 0; lane && i < 4; i++) {
                pid_t it = lane->side[i / 2].pid[i % 2];
                if (it > 0 && it != getpid()) kill(it, SIGSTOP);
            }
            for (;;) pause();
        }
    }
    shared->stop = true;
    _exit(1);
}

static long must(long value, const char *what) {
    if (value == -1) fail("%s: %s", what, strerror(errno));
    return value;
}

static void note_pid(pid_t pid) {
    atomic_fetch_or(&shared->ours[pid % MOST_PIDS / 8], (uint8_t)(1 << pid % 8));
}

/* ---- The streams ---- */

static const unsigned char *bytes_of(int side, uint32_t epoch, uint64_t at) {
    uint64_t key = (uint64_t)lane->number << 8 | (uint64_t)lane_index << 4 | epoch << 1 | (unsigned)side;
    return pattern + (mix(key * 0x9e3779b97f4a7c15u + seed) + at) % PATTERN;
}

/* Takes one direction; true: from a process that has died in the middle of a call, or executed another image. */
static bool take(struct side *s, struct half *h, int hand) {
    for (;;) {
        int owner = 0;
        if (atomic_compare_exchange_strong(&h->owner, &owner, hand + 1)) return false;
        if (owner == hand + 1) return true;
        if (s->dead[owner - 1] && atomic_compare_exchange_strong(&h->owner, &owner, hand + 1)) return true;
        /* The driver does not say any more which process is dead. */
        if (shared->stop) _exit(0);
        rest(30);
    }
}

static void release(struct half *h) { h->owner = 0; }

/* Takes a side's direction out; behind a dead sender it begins an epoch. */
static void take_out(struct side *s, int hand) {
    struct half *h = &s->out;
    if (!take(s, h, hand)) return;
    if (h->epoch + 1 >= EPOCHS) fail("too many epochs");
    h->at = 0;
    h->mark = true;
    h->epoch++;
    h->want = 0;
}

/* Accounts for its direction; what a dead reader has read is not known. */
static void take_in(struct side *s, int hand) {
    struct half *h = &s->in;
    if (!take(s, h, hand)) return;
    /* A reader that died while it did this may have read as much again. */
    h->slack += h->want + h->tail_size;
    h->tail_size = 0;
    h->want = 0;
}

/* Sends some bytes; what the call says. */
static ssize_t step_out(int side, int hand, int fd, size_t size, uint64_t *random, int flags) {
    struct side *s = &lane->side[side];
    struct half *h = &s->out;
    take_out(s, hand);
    if (h->over) {
        release(h);
        errno = EPIPE;
        return -1;
    }
    unsigned char mark = 0x80 | (unsigned char)h->epoch;
    unsigned char *bytes = (unsigned char *)bytes_of(side, h->epoch, h->at);
    struct iovec pieces[3] = {{&mark, h->mark ? 1 : 0}, {bytes, size / 3}, {bytes + size / 3, size - size / 3}};
    h->want = size;
    h->tried[h->epoch] = h->at + size;
    ssize_t n;
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 3};
    switch (h->mark || flags ? 0 : pick(random, 4)) {
    case 0: n = sendmsg(fd, &message, MSG_NOSIGNAL | flags); break;
    case 1: n = write(fd, bytes, size); break;
    case 2: n = writev(fd, pieces + 1, 2); break;
    default: n = send(fd, bytes, size, MSG_NOSIGNAL); break;
    }
    int error = errno;
    if (n > 0) {
        ssize_t data = n - (h->mark ? 1 : 0);
        h->mark = false;
        h->at += (uint64_t)data;
        h->done[h->epoch] = h->at;
        shared->bytes += (uint64_t)data;
    } else if (error != EAGAIN && error != EINTR) {
        h->error = error;
        h->over = true;
        if (error != EPIPE && error != ECONNRESET) fail("side %d: send: %s", side, strerror(error));
        if (side == VICTIM && !shared->stop && !lane->finish) fail("the victim's send: %s", strerror(error));
    }
    h->tried[h->epoch] = h->at;
    h->want = 0;
    release(h);
    errno = error;
    return n;
}

/* Bytes that came, of the other side's stream. */
static void check(int side, struct half *h, const unsigned char *bytes, size_t size) {
    struct half *writer = &lane->side[!side].out;
    for (size_t i = 0; i < size;) {
        if (bytes[i] & 0x80) {
            uint32_t next = bytes[i] & 0x7f;
            if (next <= h->epoch || next >= EPOCHS)
                fail("side %d: mark %u in epoch %u at %lu", side, next, h->epoch, (unsigned long)h->at);
            for (; h->epoch < next; h->epoch++) {
                if (h->at < writer->done[h->epoch] || h->at > writer->tried[h->epoch]) {
                    fail("side %d: %lu bytes of epoch %u, which had %lu to %lu", side, (unsigned long)h->at, h->epoch,
                         (unsigned long)writer->done[h->epoch], (unsigned long)writer->tried[h->epoch]);
                }
                h->at = 0;
            }
            i++;
            continue;
        }
        size_t run = 1;
        while (i + run < size && !(bytes[i + run] & 0x80)) run++;
        if (memcmp(bytes + i, bytes_of(!side, h->epoch, h->at), run) != 0) {
            const unsigned char *right = bytes_of(!side, h->epoch, h->at);
            size_t at = 0;
            while (bytes[i + at] == right[at]) at++;
            fail("side %d: wrong byte at %u:%lu, %zu of %zu", side, h->epoch, (unsigned long)(h->at + at), i + at,
                 size);
        }
        h->at += run;
        i += run;
        if (h->at > writer->tried[h->epoch]) fail("side %d: bytes that nobody sent", side);
    }
}

/* Finds out what the dead reader had read, by what comes: of what it may be, the most. */
static bool find_out(int side, struct half *h) {
    uint64_t tried = lane->side[!side].out.tried[h->epoch], size = h->tail_size;
    if (tried < h->at + size) return false;
    uint64_t most = tried - h->at - size;
    for (uint64_t skipped = (h->slack < most ? h->slack : most) + 1; skipped-- > 0;) {
        if (memcmp(h->tail, bytes_of(!side, h->epoch, h->at + skipped), size) == 0) {
            h->at += skipped + size;
            h->slack = 0;
            h->tail_size = 0;
            return true;
        }
    }
    return false;
}

static ssize_t step_in(int side, int hand, int fd, size_t size, uint64_t *random, int flags) {
    static _Thread_local unsigned char bytes[READ];
    struct side *s = &lane->side[side];
    struct half *h = &s->in;
    take_in(s, hand);
    if (h->over) {
        release(h);
        return 0;
    }
    if (h->slack > 0 && size > TAIL - h->tail_size) size = TAIL - h->tail_size;
    h->want = size;
    struct iovec pieces[2] = {{bytes, size / 2}, {bytes + size / 2, size - size / 2}};
    ssize_t n;
    switch (flags ? 0 : pick(random, 3)) {
    case 0: n = recv(fd, bytes, size, flags); break;
    case 1: n = read(fd, bytes, size); break;
    default: n = readv(fd, pieces, 2); break;
    }
    int error = errno;
    if (n > 0 && h->slack > 0) {
        memcpy(h->tail + h->tail_size, bytes, (size_t)n);
        h->tail_size += (uint32_t)n;
        if (h->tail_size == TAIL && !find_out(side, h))
            fail("side %d: what comes after a death is not what was sent", side);
    } else if (n > 0) {
        check(side, h, bytes, (size_t)n);
    } else if (n == 0 || (error != EAGAIN && error != EINTR)) {
        if (n == 0 && h->slack > 0 && !find_out(side, h)) fail("side %d: the last bytes are not what was sent", side);
        if (side == VICTIM && !lane->finish && !shared->stop) {
            fail("the victim's receive: %s", n == 0 ? "an end" : strerror(error));
        }
        if (n == -1 && error != ECONNRESET) fail("side %d: receive: %s", side, strerror(error));
        h->error = n == 0 ? 0 : error;
        h->over = true;
    }
    h->want = 0;
    release(h);
    errno = error;
    return n;
}

/* ---- Fates ---- */

/* The bytes that the survivor has certainly sent before the target dies. */
static void sample(void) { lane->survivor_sent = lane->side[SURVIVOR].out.done[lane->side[SURVIVOR].out.epoch]; }

static int fate_fd = -1, fate_hand;

static void execute(const char *role, int hand, int fd, char **environment) {
    char words[7][16];
    int numbers[] = {0, (int)seed, memory, lane_index, VICTIM, hand, fd};
    for (int i = 1; i < 7; i++) {
        /* No stdio here: this may be a signal handler. */
        unsigned value = (unsigned)numbers[i];
        char *at = words[i] + 15;
        *at = 0;
        do *--at = (char)('0' + value % 10);
        while ((value /= 10) > 0);
        memmove(words[i], at, (size_t)(words[i] + 16 - at));
    }
    char name[] = "deaths", role_word[16];
    strcpy(role_word, role);
    char *arguments[] = {name, words[1], role_word, words[2], words[3], words[4], words[5], words[6], NULL};
    execve("/proc/self/exe", arguments, environment);
    _exit(99);
}

extern char **environ;

static void meet_fate(void) {
    int image = lane->plan.image, fd = fate_fd;
    sample();
    switch (lane->plan.fate) {
    case KILL: kill(getpid(), SIGKILL); break;
    case ABORT: abort();
    case EXIT: _exit(0);
    default:
        if (fd == -1) _exit(0); /* not connected yet */
        if (image == AS_STDIN) fd = dup2(fd, 0);
        execute(image == BY_NUMBER || image == AS_STDIN ? "hand" : "idle", fate_hand, fd,
                image == WITHOUT ? bare : environ);
    }
}

static void on_alarm(int number) {
    (void)number;
    meet_fate();
}

/* The target's own clock, if it has one. */
static void arm(int side, int hand) {
    struct plan *p = &lane->plan;
    if (p->how != BY_HANDLER || p->target_side != side || p->target_hand != hand) return;
    signal(SIGALRM, on_alarm);
    struct itimerval time = {.it_value = {p->when / 1000000, p->when % 1000000 + 1}};
    setitimer(ITIMER_REAL, &time, NULL);
}

static void count_call(int side, int hand, uint32_t *calls) {
    struct plan *p = &lane->plan;
    ++*calls;
    if (p->how == BY_COUNT && p->target_side == side && p->target_hand == hand && *calls == p->when % 400 + 1)
        meet_fate();
}

/* ---- An end ---- */

static size_t some(uint64_t *random, int big) {
    uint32_t kind = pick(random, 8);
    return 1 + pick(random, kind < 3 ? 40 : kind < 6 ? (uint32_t)(big / 8 + 1) : (uint32_t)big);
}

/* The data of one process at one end. */
struct work {
    int side, hand, fd;
    uint64_t random;
    uint32_t calls;
    bool beside; /* another has or had the same end */
};

static bool leaving(struct work *w) {
    if (shared->stop) _exit(0);
    return w->side == SURVIVOR ? lane->side[SURVIVOR].in.over : lane->finish;
}

/* The victim's orderly end, if no process died: it sends no more, and reads all. */
static void finish(struct work *w) {
    if (w->side != VICTIM) return;
    int flags = fcntl(w->fd, F_GETFL);
    fcntl(w->fd, F_SETFL, flags & ~O_NONBLOCK);
    shutdown(w->fd, SHUT_WR);
    while (step_in(VICTIM, w->hand, w->fd, READ, &w->random, 0) > 0) {}
    struct half *sent = &lane->side[SURVIVOR].out, *read = &lane->side[VICTIM].in;
    if (read->slack == 0 && read->error == 0 && read->at < sent->done[read->epoch]) {
        fail("the victim read %lu of %lu and the end", (unsigned long)read->at, (unsigned long)sent->done[read->epoch]);
    }
}

static void slow_down(struct work *w) {
    if (lane->plan.reads[w->side] == SLOWLY) rest(pick(&w->random, 700));
}

static void ping(struct work *w) {
    struct half *in = &lane->side[w->side].in;
    bool client = w->side == (int)(lane->number & 1);
    int limit = lane->plan.big[w->side] < 16000 ? lane->plan.big[w->side] : 16000;
    while (!leaving(w)) {
        size_t size = client ? some(&w->random, limit) : 0, done = 0;
        while (client && done < size) {
            ssize_t n = step_out(w->side, w->hand, w->fd, size - done, &w->random, 0);
            count_call(w->side, w->hand, &w->calls);
            if (n <= 0) break;
            done += (size_t)n;
        }
        size_t got = 0;
        do {
            ssize_t n = step_in(w->side, w->hand, w->fd, 20000, &w->random, 0);
            count_call(w->side, w->hand, &w->calls);
            if (n <= 0) {
                if (!in->over) continue;
                return;
            }
            got += (size_t)n;
        } while (got < done);
        for (done = 0; !client && done < got;) {
            ssize_t n = step_out(w->side, w->hand, w->fd, got - done, &w->random, 0);
            count_call(w->side, w->hand, &w->calls);
            if (n <= 0) break;
            done += (size_t)n;
        }
        if (w->side == VICTIM && w->hand == 0 && lane->plan.shared_side == VICTIM && lane->plan.share != ALONE &&
            lane->side[VICTIM].pid[1] == 0 && w->calls >= (uint32_t)lane->plan.fork_after) {
            return;
        }
    }
}

static void *sender(void *argument) {
    struct work *w = argument;
    struct plan *p = &lane->plan;
    struct half *out = &lane->side[w->side].out;
    while (!out->over && !leaving(w)) {
        if (p->drive[w->side] == NOTHING) {
            rest(200);
            continue;
        }
        step_out(w->side, w->hand, w->fd, some(&w->random, p->big[w->side]), &w->random, 0);
        count_call(w->side, w->hand, &w->calls);
        if (p->drive[w->side] != ALWAYS) rest(pick(&w->random, 300));
    }
    if (w->side == VICTIM && lane->finish) shutdown(w->fd, SHUT_WR);
    return NULL;
}

static void threads(struct work *w) {
    pthread_t thread;
    struct work other = *w;
    other.random ^= 1;
    if (pthread_create(&thread, NULL, sender, &other) != 0) fail("pthread_create");
    while (!lane->side[w->side].in.over) {
        if (lane->plan.reads[w->side] == NEVER && !leaving(w)) {
            rest(300);
            continue;
        }
        if (shared->stop) _exit(0);
        slow_down(w);
        step_in(w->side, w->hand, w->fd, some(&w->random, READ - 1), &w->random, 0);
        count_call(w->side, w->hand, &w->calls);
    }
    pthread_join(thread, NULL);
}

static void become_hand(struct work *w);

/* One thread that never sleeps in a send or receive. */
static void events(struct work *w, int style) {
    struct plan *p = &lane->plan;
    struct side *s = &lane->side[w->side];
    bool writes = p->drive[w->side] != NOTHING, reads = p->reads[w->side] != NEVER;
    bool can_read = true, can_write = true;
    /* O_NONBLOCK belongs to the open file, so a process that shares it with a sleeping reader gives MSG_DONTWAIT with
     * each call. */
    int set = -1, flags = MSG_DONTWAIT;
    bool shares = w->side == p->shared_side && p->share != ALONE;
    if (pick(&w->random, 2) && !shares && !w->beside) {
        flags = 0;
        must(fcntl(w->fd, F_SETFL, fcntl(w->fd, F_GETFL) | O_NONBLOCK), "O_NONBLOCK");
    }
    uint32_t turns = 0;
    size_t budget = p->drive[w->side] == ANSWERS ? 1000 : 0;
    struct epoll_event event = {.events = EPOLLIN, .data.fd = w->fd};
    if (style == LEVEL || style == EDGE) {
        set = (int)must(epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
        if (style == EDGE) event.events |= EPOLLET | EPOLLOUT;
        must(epoll_ctl(set, EPOLL_CTL_ADD, w->fd, &event), "epoll_ctl");
    }
    while (!s->in.over && !(w->side == VICTIM && lane->finish)) {
        if (shared->stop) _exit(0);
        if (shares && !w->beside && s->pid[1] == 0 && w->calls >= (uint32_t)p->fork_after) {
            become_hand(w);
        }
        bool wants = writes && !s->out.over && (p->drive[w->side] != ANSWERS || budget > 0);
        if (reads && can_read) {
            slow_down(w);
            ssize_t n = step_in(w->side, w->hand, w->fd, some(&w->random, READ - 1), &w->random, flags);
            count_call(w->side, w->hand, &w->calls);
            if (n > 0) budget += (size_t)n;
            if (n == -1 && errno == EAGAIN) can_read = false;
            if (s->in.over) break;
        }
        if (wants && can_write) {
            size_t size = some(&w->random, p->big[w->side]);
            if (p->drive[w->side] == ANSWERS && size > budget) size = budget;
            ssize_t n = step_out(w->side, w->hand, w->fd, size, &w->random, flags);
            count_call(w->side, w->hand, &w->calls);
            /* A mark is one byte more than it wanted. */
            if (n > 0 && p->drive[w->side] == ANSWERS) budget -= (size_t)n < budget ? (size_t)n : budget;
            if (n == -1 && errno == EAGAIN) can_write = false;
            if (p->drive[w->side] == PAUSES) rest(pick(&w->random, 300));
        }
        if (style == SPIN) {
            can_read = can_write = true;
            sched_yield();
            continue;
        }
        bool busy = (reads && can_read) || (wants && can_write);
        if (busy && ++turns % 8 != 0) continue;
        /* Alone, it sleeps until it is woken; beside others, who may take what it was woken for, it looks now and
         * then. */
        int limit = busy ? 0 : shares || w->beside || w->side == VICTIM ? 3 : -1;
        if (style == POLL) {
            struct pollfd it = {w->fd, (short)((reads ? POLLIN : 0) | (wants ? POLLOUT : 0)), 0};
            poll(&it, 1, limit);
            if (it.revents & (POLLIN | POLLHUP | POLLERR) || limit != -1) can_read = true;
            if (it.revents & (POLLOUT | POLLHUP | POLLERR)) can_write = true;
            if (!reads) rest(200);
            continue;
        }
        if (style == LEVEL) {
            event.events = (reads ? EPOLLIN : 0) | (wants ? EPOLLOUT : 0);
            event.data.fd = w->fd;
            must(epoll_ctl(set, EPOLL_CTL_MOD, w->fd, &event), "epoll_ctl");
        }
        struct epoll_event told = {0, {0}};
        int n = epoll_wait(set, &told, 1, limit);
        count_call(w->side, w->hand, &w->calls);
        if (n == 1 && told.data.fd != w->fd) fail("an event of what is not registered");
        if (told.events & (EPOLLIN | EPOLLHUP | EPOLLERR) || (limit != -1 && n == 0)) can_read = true;
        if (told.events & (EPOLLOUT | EPOLLHUP | EPOLLERR) || (limit != -1 && n == 0)) can_write = true;
        if (!reads) rest(200);
    }
    if (set != -1) close(set);
    finish(w);
}

/* A process that has the end of another that has died, or has it beside: each call says that it does not wait. */
static void go_on(struct work *w) {
    struct side *s = &lane->side[w->side];
    s->connected = true;
    w->random = mix(w->random + (uint64_t)getpid());
    w->beside = true;
    /* A direction that the program was in the middle of is still this image's. Others wait for it, and may have the
     * other one. */
    if (s->out.owner == w->hand + 1) take_out(s, w->hand), release(&s->out);
    if (s->in.owner == w->hand + 1) take_in(s, w->hand), release(&s->in);
    events(w, (int)(POLL + pick(&w->random, STYLES - POLL)));
}

/* The second process of an end. */
static void be_child(struct work *w) {
    struct side *s = &lane->side[w->side];
    w->hand = fate_hand = 1;
    w->calls = 0;
    s->pid[1] = getpid();
    note_pid(getpid());
    struct itimerval none = {.it_value = {0, 0}};
    setitimer(ITIMER_REAL, &none, NULL);
    arm(w->side, 1);
    while (lane->plan.share == IDLE && !s->dead[0] && !s->in.over) {
        if (shared->stop || lane->given_up) _exit(0);
        count_call(w->side, 1, &w->calls);
        rest(100);
    }
    if (lane->plan.share != IDLE || (s->dead[0] && lane->number % 2)) {
        go_on(w);
    } else {
        while (!s->in.over && !shared->stop) rest(200);
    }
    _exit(0);
}

static void become_hand(struct work *w) {
    /* Known before any other hand is in a call; the child says its number itself. */
    lane->side[w->side].pid[1] = -1;
    pid_t child = (pid_t)must(fork(), "fork");
    if (child == 0) be_child(w);
    lane->side[w->side].pid[1] = child;
    note_pid(child);
}

static void talk(struct work *w) {
    struct plan *p = &lane->plan;
    bool shares = p->share != ALONE && p->shared_side == w->side;
    int on = 1;
    if (p->nodelay) must(setsockopt(w->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)), "TCP_NODELAY");
    if (w->side == VICTIM && p->fate == EXEC && p->image == CLOSED)
        must(fcntl(w->fd, F_SETFD, FD_CLOEXEC), "FD_CLOEXEC");
    fate_fd = w->fd;
    fate_hand = 0;
    lane->side[w->side].connected = true;
    if (!p->early) arm(w->side, 0);
    int style = p->style[w->side];
    if (style == PING) {
        ping(w);
        if (!shares || lane->side[w->side].in.over) return finish(w);
        style = POLL;
    }
    if (style == THREADS) {
        if (shares) become_hand(w);
        return threads(w);
    }
    events(w, style);
}

/* ---- Making connections ---- */

static int listener_at(int at, int side) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)at), .sin_addr.s_addr = shared->hosts[side]};
    socklen_t size = sizeof(address);
    int fd = (int)must(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"), on = 1;
    must(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), "SO_REUSEADDR");
    must(bind(fd, (struct sockaddr *)&address, size), "bind");
    must(listen(fd, 8), "listen");
    must(getsockname(fd, (struct sockaddr *)&address, &size), "getsockname");
    lane->host = shared->hosts[side];
    lane->port = ntohs(address.sin_port);
    return fd;
}

/* -1: the other end has died. */
static int accepted(int listener) {
    struct pollfd it = {listener, POLLIN, 0};
    while (poll(&it, 1, 5) != 1) {
        if (shared->stop) _exit(0);
        if (lane->given_up) return -1;
    }
    return (int)must(accept(listener, NULL, NULL), "accept");
}

static int connected(void) {
    while (lane->port == 0) {
        if (shared->stop) _exit(0);
        if (lane->given_up) return -1;
        rest(50);
    }
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)lane->port), .sin_addr.s_addr = lane->host};
    int fd = (int)must(socket(AF_INET, SOCK_STREAM, 0), "socket");
    if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == -1) {
        /* The listener may be gone: then the driver says so. */
        int error = errno;
        for (long since = now(); !lane->given_up && now() < since + LIMIT_MS;) rest(100);
        if (!lane->given_up) fail("connect: %s", strerror(error));
        close(fd);
        return -1;
    }
    return fd;
}

static void be_victim(int fd) {
    struct work w = {VICTIM, 0, fd, mix(seed + lane->number * 77 + 5), 0, false};
    prctl(PR_SET_PDEATHSIG, 0);
    fate_hand = 0;
    fate_fd = -1;
    if (lane->plan.early) arm(VICTIM, 0);
    if (fd == -1 && lane->plan.connects) w.fd = connected();
    if (fd == -1 && !lane->plan.connects) {
        int listener = listener_at(port ? port + 2 * lane_index + 1 : 0, VICTIM);
        w.fd = accepted(listener);
        close(listener);
    }
    if (w.fd != -1) talk(&w);
    _exit(0);
}

/* ---- The survivor ---- */

static int descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) fail("/proc/self/fd");
    int count = 0;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* Whether all came that had to, and the end is one that kernel TCP would tell. */
static void judge(void) {
    struct half *in = &lane->side[SURVIVOR].in, *out = &lane->side[SURVIVOR].out;
    struct half *sent = &lane->side[VICTIM].out, *read = &lane->side[VICTIM].in;
    /* A process that was just seen to end has written all its numbers, but only the driver can say that no process
     * follows it. */
    uint64_t missing = sent->done[in->epoch] > in->at ? sent->done[in->epoch] - in->at : 0;
    for (uint32_t epoch = in->epoch + 1; epoch < EPOCHS; epoch++) missing += sent->done[epoch];
    /* A reset is told once, to whichever call comes first. */
    if (in->error == 0 && out->error != ECONNRESET) {
        shared->ends++;
        if (missing > 0) fail("an end, and %lu bytes are missing", (unsigned long)missing);
        /* Rarely so on kernel TCP: what is sent may be on its way still. */
        if (lane->certain && lane->plan.nodelay) shared->unread++;
        return;
    }
    shared->resets++;
    shared->lost += missing;
    /* A victim that dies before it accepts resets too. A reset discards what the kernel has not sent yet. */
    if (!lane->side[VICTIM].connected) return;
    bool known = read->slack + read->tail_size + read->want == 0 && read->epoch == out->epoch && !out->mark;
    if (known && read->at >= out->tried[out->epoch]) {
        /* Under the library so if a doorbell lay unread, and what the victim sent may be lost for that. */
        shared->false_resets++;
        if (!getenv("LD_PRELOAD")) fail("a reset, where the victim had read all");
    }
}

/* No process ends otherwise than planned. */
static void see_status(pid_t pid, int status) {
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    if (WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGABRT)) return;
    if (!shared->stop) fail("%d ended with status %#x", pid, (unsigned)status);
}

static void see_end(pid_t pid) {
    int status = 0;
    if (waitpid(pid, &status, 0) == -1) fail("waitpid: %s", strerror(errno));
    see_status(pid, status);
}

static void survive(void) {
    signal(SIGPIPE, SIG_IGN);
    pid_t kin = 0;
    for (;;) {
        while (lane->generation == lane->over) {
            if (lane->leave || shared->stop) {
                if (kin != 0 && !shared->stop) see_end(kin);
                exit(0);
            }
            rest(50);
        }
        uint32_t this = lane->generation;
        if (kin != 0) see_end(kin);
        kin = 0;
        struct plan *p = &lane->plan;
        int before = descriptors();
        struct work w = {SURVIVOR, 0, -1, mix(seed + lane->number * 91 + 7), 0, false};
        if (p->family == KIN) {
            int listener = listener_at(port ? port + 2 * lane_index : 0, SURVIVOR);
            int fd = connected(), other = accepted(listener);
            close(listener);
            w.fd = p->connects ? other : fd;
            int victims = p->connects ? fd : other;
            pid_t child = (pid_t)must(fork(), "fork");
            if (child == 0) {
                close(w.fd);
                lane->side[VICTIM].pid[0] = getpid();
                be_victim(victims);
            }
            note_pid(child);
            kin = lane->side[VICTIM].pid[0] = child;
            close(victims);
        } else if (p->connects) {
            int listener = listener_at(port ? port + 2 * lane_index : 0, SURVIVOR);
            w.fd = accepted(listener);
            close(listener);
        } else {
            w.fd = connected();
        }
        if (w.fd != -1) {
            talk(&w);
            close(w.fd);
        }
        /* A child that shares the end sees it too. */
        if (lane->side[SURVIVOR].pid[1] > 0) see_end(lane->side[SURVIVOR].pid[1]);
        if (w.fd != -1) {
            while (!lane->given_up && !shared->stop) rest(30);
            if (shared->stop) exit(0);
            judge();
        }
        int after = descriptors();
        if (after != before) fail("%d descriptors, where there were %d", after, before);
        lane->over = this;
    }
}

/* ---- The driver ---- */

/* A forked process becomes the user of one side, where that side is. */
static void become(int side) {
    if (nets[side] != -1) {
        must(setns(nets[side], CLONE_NEWNET), "setns");
        must(unshare(CLONE_NEWIPC), "unshare");
    }
    if (users[side] == 0) return;
    must(setgroups(0, NULL), "setgroups");
    must(setgid(1), "setgid");
    must(setuid(users[side]), "setuid");
}

static void find_places(void) {
    const char *of_users = getenv("DEATHS_USERS"), *hosts = getenv("DEATHS_HOSTS"), *files = getenv("DEATHS_NETS");
    char words[2][200] = {"127.0.0.1", "127.0.0.1"};
    if (of_users && sscanf(of_users, "%u:%u", &users[0], &users[1]) != 2) exit(2);
    if (hosts && sscanf(hosts, "%199s %199s", words[0], words[1]) != 2) exit(2);
    for (int i = 0; i < 2; i++) {
        if (inet_pton(AF_INET, words[i], &shared->hosts[i]) != 1) exit(2);
    }
    if (!files) return;
    if (sscanf(files, "%199s %199s", words[0], words[1]) != 2) exit(2);
    for (int i = 0; i < 2; i++) {
        nets[i] = open(words[i], O_RDONLY | O_CLOEXEC);
        if (nets[i] == -1) exit(2);
    }
}

static struct plan plan_of(uint64_t random) {
    struct plan p = {0};
    p.family = (int)pick(&random, 4) % 3;
    p.connects = pick(&random, 2);
    p.nodelay = pick(&random, 4) > 0;
    for (int i = 0; i < 2; i++) {
        p.style[i] = THREADS + (int)pick(&random, STYLES - THREADS);
        p.drive[i] = (int)pick(&random, 4);
        p.reads[i] = AT_ONCE - (int)(pick(&random, 5) < 2);
        static const int sizes[] = {100, 3000, 40000, BIGGEST - 1};
        p.big[i] = sizes[pick(&random, COUNT(sizes))];
    }
    if (pick(&random, 4) == 0) p.style[0] = p.style[1] = PING;
    if (pick(&random, 8) == 0 && p.style[0] != PING) p.reads[VICTIM] = NEVER;
    /* One of the ends has to begin. */
    if (p.drive[0] <= ANSWERS && p.drive[1] <= ANSWERS) p.drive[pick(&random, 2)] = PAUSES + (int)pick(&random, 2);
    p.fork_after = (int)pick(&random, 60);
    switch (pick(&random, 8)) {
    case 0: case 1: p.shared_side = VICTIM; p.share = BY_TURNS + (int)(pick(&random, 3) == 0); break;
    case 2: p.shared_side = SURVIVOR; p.share = BY_TURNS + (int)(pick(&random, 3) == 0); break;
    }
    /* Ends that several have are served by events; see `talk`. */
    if (p.shared_side == SURVIVOR && p.style[0] == PING) p.style[0] = p.style[1] = POLL;
    p.target_side = VICTIM;
    if (p.share != ALONE && pick(&random, 2)) {
        p.target_hand = 1;
        p.target_side = p.shared_side;
    }
    static const int fates[] = {KILL, KILL, KILL, ABORT, EXIT, EXIT, EXEC, EXEC, ORDERLY};
    do p.fate = fates[pick(&random, COUNT(fates))];
    while (!(shared->fates >> p.fate & 1));
    p.image = (int)pick(&random, 4);
    p.how = p.fate == KILL ? (int)pick(&random, 3) : BY_HANDLER + (int)pick(&random, 2);
    if (p.fate == ORDERLY) p.how = BY_DRIVER;
    p.early = pick(&random, 8) == 0;
    /* As many points in the first 100 µs as between 1 and 10 ms. */
    uint32_t most = 20u << pick(&random, 11);
    p.when = pick(&random, most) + 1;
    p.later = pick(&random, 3000);
    p.second = pick(&random, 2) ? KILL : ORDERLY;
    p.stops = pick(&random, 3) == 0 ? 1 + (int)pick(&random, 4) : 0;
    /* The driver does not know of an image that a handler in a survivor's child executes. */
    if (p.target_side == SURVIVOR && p.fate == EXEC) p.fate = EXIT;
    if (p.fate == EXEC && p.style[VICTIM] == THREADS && !shared->beside) p.style[VICTIM] = POLL + (int)pick(&random, 4);
    return p;
}

/* A process that has ended, perhaps without having been waited for. */
static bool is_gone(pid_t pid) {
    char path[40], text[300];
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    for (;;) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd == -1) return true;
        ssize_t size = read(fd, text, sizeof(text) - 1);
        close(fd);
        if (size <= 0) return true;
        text[size] = 0;
        char *name_end = strrchr(text, ')'), state = 'X';
        int threads = 0;
        if (name_end) {
            sscanf(name_end + 2, "%c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %d", &state,
                   &threads);
        }
        /* If another thread executes a program, it takes the first thread's place; a report from that moment may be
         * about the first. */
        if (threads > 0 && state != 'X') return state == 'Z' && threads == 1;
    }
}

/* The victim died, or executed a program, as it forked. The child, if there is one, says who it is. */
static void forget_child(void) {
    int none = -1;
    if (atomic_compare_exchange_strong(&lane->side[VICTIM].pid[1], &none, 0)) lane->unborn = true;
}

/* Waits for children, the survivor excepted, and sees who is dead. */
static void look_around(pid_t survivor) {
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        if (shared->stop) _exit(1);
        see_status(pid, status);
        if (pid == survivor) fail("the survivor is gone, status %#x", (unsigned)status);
    }
    for (int i = 0; i < 4; i++) {
        struct side *s = &lane->side[i / 2];
        if (s->pid[i % 2] > 0 && !s->dead[i % 2] && is_gone(s->pid[i % 2])) s->dead[i % 2] = true;
    }
    if (lane->side[VICTIM].dead[0]) forget_child();
}

static void stop_somebody(uint64_t *random) {
    pid_t pid = lane->side[pick(random, 2)].pid[pick(random, 4) == 0];
    if (pid <= 0 || is_gone(pid)) return;
    shared->stops++;
    kill(pid, SIGSTOP);
    rest(pick(random, 4) == 0 ? pick(random, 30000) : pick(random, 3000));
    kill(pid, SIGCONT);
}

#define AWAIT(condition, what) \
    for (long since = now(); !(condition);) { \
        look_around(survivor); \
        if (shared->stop) _exit(1); \
        if (now() > since + LIMIT_MS) fail("stuck: %s", what); \
        rest(30); \
    }

static bool everybody_dead(struct side *s) {
    return (s->pid[0] == 0 || s->dead[0]) && (s->pid[1] == 0 || s->dead[1]) && s->pid[1] != -1;
}

static void kill_all(struct side *s, pid_t survivor) {
    for (long since = now(); !everybody_dead(s); rest(30)) {
        /* One may just have forked another. */
        for (int i = 0; i < HANDS; i++) {
            if (s->pid[i] > 0 && !s->dead[i]) kill(s->pid[i], SIGKILL);
        }
        look_around(survivor);
        if (shared->stop) _exit(1);
        if (now() > since + LIMIT_MS) fail("stuck: a killed process");
    }
}

/* The victim's end is dead: what the survivor may see is known. */
static void settle(void) {
    struct side *victim = &lane->side[VICTIM];
    struct half *read = &victim->in, *sent = &lane->side[SURVIVOR].out;
    lane->certain = !lane->unborn && read->slack == 0 && read->tail_size == 0 && victim->connected &&
                    sent->epoch == 0 && lane->survivor_sent > read->at + read->want;
    lane->given_up = true;
}

/* The first death. A victim that does not die by itself is killed. */
static void first_death(pid_t survivor) {
    struct plan *p = &lane->plan;
    struct side *victim = &lane->side[VICTIM], *target = &lane->side[p->target_side];
    if (p->fate == ORDERLY) {
        rest(p->when);
        return;
    }
    if (p->how == BY_DRIVER) rest(p->when);
    long since = now();
    while (!target->dead[p->target_hand] && !lane->imaged) {
        bool not_there = target->pid[p->target_hand] <= 0;
        if (not_there && (everybody_dead(victim) || now() > since + 100)) break; /* it was not forked */
        if (!not_there && (p->how == BY_DRIVER || now() > since + 200)) {
            sample();
            kill(target->pid[p->target_hand], SIGKILL);
            AWAIT(target->dead[p->target_hand], "a killed process");
            break;
        }
        look_around(survivor);
        rest(30);
    }
    if (target->dead[p->target_hand] || lane->imaged) {
        shared->deaths++;
        shared->by_fate[p->fate]++;
    }
}

/* The process that is left goes on, and ends at last. */
static void second_end(pid_t survivor, uint32_t number) {
    struct plan *p = &lane->plan;
    struct side *victim = &lane->side[VICTIM];
    if (p->fate != ORDERLY) rest(p->later);
    bool active = !victim->dead[0] || (p->share == BY_TURNS || number % 2);
    bool closed = lane->imaged && p->image == CLOSED, idle = closed || (lane->imaged && p->image == WITHOUT);
    if (closed && p->share == ALONE) {
        /* The execution itself ends the connection. */
        settle();
        AWAIT(lane->over == lane->generation, "the survivor of an execution that closes");
        kill_all(victim, survivor);
    } else if (p->second == ORDERLY && active && !idle && victim->connected && !lane->unborn) {
        lane->finish = true;
        bool beside = p->shared_side == VICTIM && p->share == IDLE && !victim->dead[0];
        if (beside && victim->pid[1] > 0 && !victim->dead[1]) kill(victim->pid[1], SIGKILL);
        AWAIT(everybody_dead(victim) || lane->side[SURVIVOR].in.over, "an orderly end");
        lane->given_up = true;
        shared->by_fate[ORDERLY]++;
    } else {
        sample();
        if (p->fate == ORDERLY) {
            shared->deaths++;
            shared->by_fate[KILL]++;
        }
        kill_all(victim, survivor);
        settle();
    }
}

static void generation(pid_t survivor, uint32_t number) {
    uint64_t random = mix((uint64_t)seed << 32 | (uint32_t)lane_index << 24 | number);
    struct side *victim = &lane->side[VICTIM];
    memset(lane->side, 0, sizeof(lane->side));
    lane->side[SURVIVOR].pid[0] = survivor;
    lane->number = number;
    lane->port = 0;
    lane->finish = lane->given_up = lane->imaged = lane->unborn = lane->certain = false;
    lane->survivor_sent = 0;
    lane->plan = plan_of(mix(random));
    struct plan *p = &lane->plan;
    lane->generation++;
    if (p->family != KIN) {
        pid_t pid = (pid_t)must(fork(), "fork");
        if (pid == 0) {
            victim->pid[0] = getpid();
            signal(SIGPIPE, SIG_IGN);
            become(VICTIM);
            /* Memory of an IPC namespace that a process leaves is nothing that a container has. */
            if (p->family == EXECUTED || nets[VICTIM] != -1) execute("victim", 0, 0, environ);
            be_victim(-1);
        }
        victim->pid[0] = pid;
        note_pid(pid);
    }
    AWAIT(victim->pid[0] > 0, "the victim is not there");
    if (!p->early) AWAIT((victim->connected && lane->side[SURVIVOR].connected) || victim->dead[0], "not connected");
    for (int i = 0; i < p->stops; i++) {
        rest(pick(&random, 1000));
        stop_somebody(&random);
        look_around(survivor);
    }
    first_death(survivor);
    AWAIT(victim->pid[1] != -1, "forking");
    if (everybody_dead(victim)) {
        settle();
    } else {
        second_end(survivor, number);
    }
    while (lane->over != lane->generation) {
        if (lane->unborn && victim->pid[1] > 0) kill_all(victim, survivor);
        AWAIT(lane->over == lane->generation || (lane->unborn && victim->pid[1] > 0 && !victim->dead[1]),
              "the survivor");
    }
    kill_all(victim, survivor);
    look_around(survivor);
    shared->generations++;
}

static pid_t new_survivor(uint64_t *random) {
    lane->leave = false;
    pid_t survivor = (pid_t)must(fork(), "fork");
    if (survivor == 0) {
        become(SURVIVOR);
        /* A process that has changed its user may count its own descriptors only after an execution. */
        if (pick(random, 2) || users[SURVIVOR]) execute("survivor", 0, 0, environ);
        survive();
    }
    note_pid(survivor);
    return survivor;
}

static void drive(uint32_t only, bool repeated, long deadline, uint64_t most) {
    must(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER");
    uint64_t random = seed;
    for (uint32_t number = repeated ? only : 0; !shared->stop;) {
        pid_t survivor = new_survivor(&random);
        for (int life = 0; life < LIVES && !shared->stop && now() < deadline && shared->deaths < most; life++) {
            generation(survivor, number);
            number += !repeated;
        }
        lane->leave = true;
        int status = 0;
        for (long since = now(); waitpid(survivor, &status, WNOHANG) == 0; rest(100)) {
            if (now() > since + LIMIT_MS) fail("the survivor does not leave");
        }
        if (status != 0) fail("the survivor's status %#x", (unsigned)status);
        if (now() >= deadline || shared->deaths >= most) break;
    }
    _exit(shared->failed);
}

/* ---- What is left ---- */

/* Segments of the library's lengths that one of our processes has made and no process has attached; a process that is
 * killed while it makes one leaves it to the next process. */
static int left(bool say) {
    FILE *table = fopen("/proc/sysvipc/shm", "r");
    char line[512];
    int count = 0, id;
    unsigned long size, users;
    pid_t maker;
    while (table && fgets(line, sizeof(line), table)) {
        if (sscanf(line, "%*d %d %*o %lu %d %*d %lu", &id, &size, &maker, &users) != 4 || users > 0 || maker < 0 ||
            size % 4096 != 1993)
            continue;
        if (!(shared->ours[maker % MOST_PIDS / 8] & 1 << maker % 8)) continue;
        count++;
        if (say) printf("left behind: segment %d of %lu bytes, made by %d\n", id, size, maker);
    }
    if (table) fclose(table);
    return count;
}

/* The next process under Underpass that looks for its user's directory removes them: this runs one. */
static void be_next_process(void) {
    pid_t driver = (pid_t)must(fork(), "fork");
    if (driver == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        shared->stop = false;
        shared->fates = 1U << ORDERLY;
        lane_index = 0;
        lane = &shared->lanes[0];
        drive(0, false, now() + 200, UINT64_MAX);
    }
    waitpid(driver, NULL, 0);
    shared->stop = true;
}

static int shared_files(void) {
    DIR *folder = opendir("/dev/shm");
    int count = 0;
    for (struct dirent *entry; folder && (entry = readdir(folder));) {
        count += strncmp(entry->d_name, "PostgreSQL.", 11) != 0;
    }
    if (folder) closedir(folder);
    return count;
}

static void map(void) {
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (shared == MAP_FAILED) {
        perror("mmap");
        _exit(1);
    }
    uint64_t random = 7;
    for (size_t i = 0; i < PATTERN; i++) pattern[i] = (unsigned char)pick(&random, 128);
    for (size_t i = PATTERN; i < sizeof(pattern); i++) pattern[i] = pattern[i - PATTERN];
    size_t kept = 0;
    for (char **each = environ; *each && kept + 1 < COUNT(bare); each++) {
        if (strncmp(*each, "LD_PRELOAD=", 11) != 0) bare[kept++] = *each;
    }
}

/* deaths SEED ROLE MEMORY LANE SIDE HAND FD: an image of one of those above. */
static int image(char **words) {
    memory = atoi(words[3]);
    map();
    lane_index = atoi(words[4]);
    lane = &shared->lanes[lane_index];
    port = shared->port;
    signal(SIGPIPE, SIG_IGN);
    if (strcmp(words[2], "survivor") == 0) survive();
    if (strcmp(words[2], "victim") == 0) be_victim(-1);
    struct work w = {VICTIM, atoi(words[6]), atoi(words[7]), mix(seed + lane->number), 0, false};
    forget_child();
    lane->imaged = true;
    /* Its parent may have armed the clock of a connection that goes on here. */
    lane->plan.how = BY_DRIVER;
    if (strcmp(words[2], "hand") == 0) {
        go_on(&w);
        _exit(0);
    }
    while (!shared->stop && getppid() != 1) rest(500);
    return 0;
}

int main(int count, char **words) {
    if (count < 3) {
        fprintf(stderr, "usage: deaths SEED SECONDS [PORT]\n");
        return 2;
    }
    seed = (uint32_t)strtoul(words[1], NULL, 10);
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    if (words[2][0] > '9') return image(words);
    port = count > 3 ? atoi(words[3]) : 0;
    memory = memfd_create("deaths", 0);
    if (memory == -1 || ftruncate(memory, sizeof(*shared)) == -1) {
        perror("memory");
        return 1;
    }
    map();
    shared->port = port;
    shared->beside = getenv("DEATHS_BESIDE") != NULL;
    const char *mask = getenv("DEATHS_FATES");
    find_places();
    shared->fates = mask ? (unsigned)strtoul(mask, NULL, 0) : ~0u;
    if (!(shared->fates & ((1 << FATES) - 1))) return 2;
    const char *variable = getenv("DEATHS_LANES"), *chosen = getenv("DEATHS_PLAN");
    int lanes = chosen ? 1 : variable ? atoi(variable) : 3, only_lane = 0;
    uint32_t only = 0;
    if (chosen && sscanf(chosen, "%d:%u", &only_lane, &only) != 2) return 2;
    if (lanes < 1 || lanes > MOST_LANES || only_lane < 0 || only_lane >= MOST_LANES) return 2;
    uint64_t most = (variable = getenv("DEATHS_COUNT")) ? strtoull(variable, NULL, 10) : UINT64_MAX;
    int files = shared_files();
    long deadline = now() + atol(words[2]) * 1000;
    pid_t drivers[MOST_LANES];
    for (int i = 0; i < lanes; i++) {
        drivers[i] = fork();
        if (drivers[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            lane_index = only_lane + i;
            lane = &shared->lanes[lane_index];
            drive(only, chosen != NULL, deadline, most);
        }
    }
    bool failed = false;
    for (int i = 0; i < lanes; i++) {
        int status;
        waitpid(drivers[i], &status, 0);
        failed |= status != 0;
    }
    failed |= shared->failed;
    shared->stop = true;
    if (!failed) {
        for (long since = now(); (left(false) > 0 || shared_files() > files) && now() < since + 5000;)
            be_next_process();
        if (left(true) > 0) failed = true;
        if (shared_files() > files) {
            printf("%d files in /dev/shm, where there were %d\n", shared_files(), files);
            failed = true;
        }
    }
    printf("%lu connections, %lu deaths (", shared->generations, shared->deaths);
    for (int i = 0; i < FATES; i++) printf("%s%s %lu", i ? ", " : "", FATE[i], shared->by_fate[i]);
    printf("), %lu stops, %lu ends, %lu of them with something unread, %lu resets (%lu though all had been read) with "
           "%lu bytes lost, %lu MB\n",
           shared->stops, shared->ends, shared->unread, shared->resets, shared->false_resets, shared->lost,
           shared->bytes >> 20);
    return failed;
}
