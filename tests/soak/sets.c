/* sets: a soak test of epoll sets that are shared by threads.
 *
 *   sets SEED SECONDS ROLE [PORT]
 *
 * ROLE is both (server and clients in one process), two (the clients in a forked child) or apart (the child executes
 * the program anew). Clients send messages that can be foretold from the connection's id and a sequence number, the
 * server echoes them, and both verify every byte. The seed decides how many threads wait on how many sets and in what
 * manner, and for each connection how it is registered (level-triggered, edge-triggered, one-shot, exclusive, in two
 * sets), how it is read and written, and how it ends. Meanwhile meddlers copy, move and look at descriptors.
 *
 * All that is done is right on kernel TCP: a connection's descriptor is used and closed only under its own lock, and a
 * thread that was told of a connection that has been closed since can tell that by what it registered.
 *
 * Checked, beside the bytes: that no end or error is told that nobody caused; that no event is told of a socket that
 * was closed before the wait began; that what is told readable can be read; that poll, select, FIONREAD and MSG_PEEK
 * agree; that nothing is told while all is quiet; and that each connection gets on. Exit code 0 if all that held.
 *
 * To narrow a failure down, variables: SETS_OPERATIONS (a mask of what meddlers may do; 0: nothing), SETS_DIRECT (all
 * threads wait on the sets themselves), SETS_NO_NESTED, SETS_AGAIN (a short read says nothing), SETS_STOP (a failure
 * stays for gdb).
 */
#include "seeded.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CLIENT, SERVER };
enum { MOST = 24, MAX_SETS = 3, MAX_THREADS = 4, LINES = 4096, ROOM = 256 * 1024, BIGGEST = 200 * 1024, MAX_FD = 4096 };
enum { STUCK_MS = 10000, PATTERN = 65521, HEADER = 16 };
/* Types of messages. After HALF the client shuts down its half, after CLOSE the server closes at once. */
enum { DATA = 0x5e75, HALF, CLOSE };
/* How a connection ends. */
enum { BY_HALF, BY_CLOSE, BY_CLIENT_ABRUPTLY, BY_SERVER_ABRUPTLY };
/* What an event's data holds: the slot and its generation, the slot alone, or the descriptor. */
enum { TELL_UNIQUE, TELL_SLOT, TELL_FD };
static const uint64_t LISTENER = 1000000, STOP = 1000001, INNER = 2000000;

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* What the two ends of a connection report to each other and to the watchdog. */
struct line {
    _Atomic uint32_t id;
    _Atomic bool abrupt;
    struct {
        _Atomic bool open, shut;
        _Atomic long progress;
        _Atomic uint64_t in, out;
        _Atomic uint32_t told, asked;
        _Atomic long told_at;
        _Atomic int fd, state;
        _Atomic unsigned kind;
    } side[2];
};

static struct {
    struct line lines[LINES];
    _Atomic uint32_t by_port[65536]; /* the connection of a client's port */
    _Atomic uint32_t ids;
    _Atomic uint64_t waits, moved, connections, moves, stale;
    _Atomic bool quiet, calm, stop, failed;
    _Atomic int open[2];
} *shared;

/* How far the stream of a connection has been read. */
struct reader {
    uint32_t id, seq, length, type;
    size_t at; /* within the message, header included */
    unsigned char header[HEADER];
};

struct conn {
    pthread_mutex_t lock;
    int side, slot;
    int fd, spare; /* -1: none. Two descriptors of the same socket, of which `fd` is registered */
    uint32_t generation;
    _Atomic uint64_t closed_at; /* the moment after the last close */
    uint64_t random;
    struct line *line;
    unsigned ending;
    /* The registration. */
    bool edge, once, exclusive, rdhup, greedy, meddled;
    int sets[2], set_count;
    uint32_t asked;
    /* The stream. */
    bool connecting, can_read, can_write, over, ended, shut, last_sent;
    struct reader in;
    unsigned char *out;
    size_t from, to, window, chunk;
    uint32_t next, most;
    uint64_t sent, received; /* what a client has composed, and what a server has sent */
    long resume_at;
};

static uint32_t seed, operations = ~0u; /* which of the meddlers' operations are allowed (SETS_OPERATIONS) */
static unsigned tell_by;
static int port = 20000, listener = -1;
static int set_count[2], thread_count[2], sets[2][MAX_SETS], outer[2], stopper;
static int set_threads[2][MAX_SETS]; /* how many threads wait on it, by whatever way */
static struct conn conns[2][MOST];
static _Atomic int by_fd[MAX_FD]; /* side * MOST + slot + 1 */
static _Atomic uint64_t moment;
static unsigned char pattern[PATTERN + BIGGEST];

static void pause_us(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

/* The report. */

static void show_all(void) {
    long t = now();
    for (size_t i = 0; i < LINES; i++) {
        struct line *line = &shared->lines[i];
        for (int side = 0; side < 2; side++) {
            if (!line->side[side].open) continue;
            fprintf(
                stderr,
                "  connection %u %s: fd %d kind %x state %x in %lu out %lu asked %x told %x %ld ms ago, "
                "progress %ld ms ago%s%s\n",
                line->id, side == SERVER ? "server" : "client", line->side[side].fd, line->side[side].kind,
                (unsigned)line->side[side].state, line->side[side].in, line->side[side].out, line->side[side].asked,
                line->side[side].told, t - line->side[side].told_at, t - line->side[side].progress,
                line->side[!side].open ? "" : ", the other end is closed", line->abrupt ? ", abrupt" : "");
        }
    }
}

__attribute__((format(printf, 2, 3), noreturn)) static void fail(const struct conn *c, const char *format, ...) {
    if (!atomic_exchange(&shared->failed, true)) {
        int error = errno;
        fprintf(stderr, "sets: seed %u pid %d: ", seed, getpid());
        va_list list;
        va_start(list, format);
        vfprintf(stderr, format, list);
        va_end(list);
        fprintf(stderr, " (errno %d)", error);
        if (c && c->line)
            fprintf(stderr, ", connection %u %s fd %d", c->line->id, c->side == SERVER ? "server" : "client", c->fd);
        fprintf(stderr, "\n");
        show_all();
        if (getenv("SETS_STOP")) {
            fprintf(stderr, "stopped for a debugger\n");
            for (;;) pause();
        }
    }
    _exit(1);
}

#define MUST(call) ({ \
    long answer_ = (call); \
    if (answer_ < 0) fail(NULL, "%s:%d %s", __FILE__, __LINE__, #call); \
    answer_; \
})

static void get_on(struct conn *c) {
    if (!c->line) return;
    c->line->side[c->side].progress = now();
    c->line->side[c->side].fd = c->fd;
    c->line->side[c->side].state = c->connecting | c->can_read << 1 | c->can_write << 2 | c->over << 3 | c->ended << 4 |
        c->shut << 5 | c->last_sent << 6 | (c->to > c->from) << 7;
}

static unsigned kind_of(const struct conn *c) {
    return c->edge | (unsigned)c->once << 1 | (unsigned)c->exclusive << 2 | (unsigned)c->rdhup << 3 |
        (unsigned)c->greedy << 4 | (unsigned)c->meddled << 5 | (unsigned)c->set_count << 8 | c->ending << 12 |
        (unsigned)(c->spare >= 0) << 16;
}

/* Messages. */

static uint32_t length_of(uint32_t id, uint32_t seq) {
    uint64_t x = mix(((uint64_t)id << 32 | seq) + seed);
    uint32_t y = (uint32_t)(x >> 20);
    switch (x % 32) {
    case 0: return 1 + y % BIGGEST;
    case 1: case 2: case 3: return 1 + y % 20000;
    case 4: case 5: case 6: case 7: case 8: return 1 + y % 2000;
    default: return 1 + y % 100;
    }
}

static const unsigned char *payload_of(uint32_t id, uint32_t seq) {
    return pattern + mix((uint64_t)id << 32 | seq) % PATTERN;
}

static void put(unsigned char *to, uint32_t id, uint32_t seq, uint32_t length, uint32_t type) {
    uint32_t words[4] = {id, seq, length, type};
    memcpy(to, words, HEADER);
}

/* Verifies what was received; NULL, or what is wrong with it. */
static const char *verify(struct reader *in, const unsigned char *bytes, size_t count) {
    while (count > 0) {
        size_t n;
        if (in->at < HEADER) {
            if (in->type == HALF || in->type == CLOSE) return "bytes behind the last message";
            n = HEADER - in->at < count ? HEADER - in->at : count;
            memcpy(in->header + in->at, bytes, n);
            if (in->at + n == HEADER) {
                uint32_t words[4];
                memcpy(words, in->header, HEADER);
                if (in->id == 0) in->id = words[0];
                if (words[0] != in->id) return "bytes of another connection, or garbled";
                if (words[1] != in->seq) return "another message than the next";
                in->type = words[3];
                if (in->type != DATA && in->type != HALF && in->type != CLOSE) return "garbled type";
                in->length = words[2];
                if (in->length != (in->type == DATA ? length_of(in->id, in->seq) : 0)) return "garbled length";
            }
        } else {
            size_t offset = in->at - HEADER;
            n = in->length - offset < count ? in->length - offset : count;
            if (memcmp(bytes, payload_of(in->id, in->seq) + offset, n) != 0) return "garbled bytes";
        }
        in->at += n;
        bytes += n;
        count -= n;
        if (in->at >= HEADER && in->at == HEADER + (size_t)in->length) {
            in->at = 0;
            in->seq++;
        }
    }
    return NULL;
}

/* Registrations. */

static uint64_t data_of(const struct conn *c) {
    uint64_t place = (uint64_t)(c->side * MOST + c->slot);
    if (tell_by == TELL_FD) return (uint64_t)c->fd;
    return tell_by == TELL_UNIQUE ? (uint64_t)c->generation << 32 | place : place;
}

/* What the connection waits for now. */
static uint32_t wanted(const struct conn *c) {
    uint32_t in = EPOLLIN | (c->rdhup ? (uint32_t)EPOLLRDHUP : 0);
    uint32_t flags = (c->edge ? (uint32_t)EPOLLET : 0) | (c->once ? (uint32_t)EPOLLONESHOT : 0) |
        (c->exclusive ? (uint32_t)EPOLLEXCLUSIVE : 0);
    if (c->connecting) return EPOLLOUT | flags;
    if (c->edge && !c->once) return in | EPOLLOUT | flags;
    bool full = c->side == SERVER && c->to == ROOM;
    return (c->ended || full ? 0 : in) | (c->to > c->from && !c->can_write ? (uint32_t)EPOLLOUT : 0) | flags;
}

static void control(struct conn *c, int operation) {
    struct epoll_event event = {.events = c->asked, .data.u64 = data_of(c)};
    for (int i = 0; i < c->set_count; i++) {
        if (epoll_ctl(sets[c->side][c->sets[i]], operation, c->fd, &event) != 0) fail(c, "epoll_ctl %d", operation);
    }
}

static void enroll(struct conn *c) {
    by_fd[c->fd] = c->side * MOST + c->slot + 1;
    c->asked = wanted(c);
    if (c->line) c->line->side[c->side].asked = c->asked;
    control(c, EPOLL_CTL_ADD);
}

static void leave(struct conn *c) {
    control(c, EPOLL_CTL_DEL);
    by_fd[c->fd] = 0;
}

/* Changes the registration if need be; arms a one-shot again. */
static void ask_for(struct conn *c) {
    uint32_t events = wanted(c);
    if (events == c->asked && !c->once) return;
    if (c->exclusive) {
        control(c, EPOLL_CTL_DEL);
        c->asked = events;
        control(c, EPOLL_CTL_ADD);
    } else {
        c->asked = events;
        control(c, EPOLL_CTL_MOD);
    }
    if (c->line) c->line->side[c->side].asked = events;
}

/* Closes the connection, in one of several ways. */
static void finish(struct conn *c) {
    uint32_t way = pick(&c->random, 4);
    if (c->line) c->line->side[c->side].shut = true;
    bool late = c->spare >= 0 && pick(&c->random, 2);
    if (c->spare >= 0 && !late) close(c->spare);
    if (late || way == 0) control(c, EPOLL_CTL_DEL);
    by_fd[c->fd] = 0;
    if (way == 1) {
        int null = open("/dev/null", O_RDWR | O_CLOEXEC);
        MUST(dup2(null, c->fd));
        close(null);
    }
    if (close(c->fd) != 0) fail(c, "close");
    if (late) close(c->spare);
    c->fd = c->spare = -1;
    c->generation++;
    c->closed_at = ++moment;
    if (c->line) {
        get_on(c);
        c->line->side[c->side].open = false;
    }
    c->line = NULL;
    shared->open[c->side]--;
}

/* Whether an end or an error is no surprise. */
static bool is_abrupt(struct conn *c) {
    if (!c->line) {
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        /* Nothing has come yet. A socket that was reset has no peer any more. */
        if (getpeername(c->fd, (struct sockaddr *)&peer, &length) != 0) return true;
        uint32_t id = shared->by_port[ntohs(peer.sin_port)];
        return id == 0 || shared->lines[id % LINES].abrupt;
    }
    return c->line->abrupt;
}

/* The stream of a connection. */

static ssize_t receive(struct conn *c, unsigned char *to, size_t room) {
    int fd = c->spare >= 0 && pick(&c->random, 2) ? c->spare : c->fd;
    size_t first = room / 3;
    struct iovec parts[2] = {{to, first}, {to + first, room - first}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (pick(&c->random, 4)) {
    case 0: return read(fd, to, room);
    case 1: return readv(fd, parts, 2);
    case 2: return recvmsg(fd, &message, MSG_DONTWAIT);
    default: return recv(fd, to, room, 0);
    }
}

static ssize_t transmit(struct conn *c, unsigned char *from, size_t count) {
    int fd = c->spare >= 0 && pick(&c->random, 2) ? c->spare : c->fd;
    size_t first = count / 3;
    struct iovec parts[2] = {{from, first}, {from + first, count - first}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (pick(&c->random, 4)) {
    case 0: return write(fd, from, count);
    case 1: return writev(fd, parts, 2);
    case 2: return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    default: return send(fd, from, count, MSG_NOSIGNAL);
    }
}

static void adopt_line(struct conn *c, uint32_t id) {
    c->line = &shared->lines[id % LINES];
    if (c->line->id != id) fail(c, "no such connection: %u", id);
    c->ending = mix((uint64_t)id + seed) % 16;
    c->ending = c->ending < 9    ? BY_HALF
                : c->ending < 13 ? BY_CLOSE
                : c->ending < 15 ? BY_CLIENT_ABRUPTLY
                                 : BY_SERVER_ABRUPTLY;
    c->line->side[c->side].in = c->line->side[c->side].out = 0;
    c->line->side[c->side].shut = false;
    c->line->side[c->side].told = 0;
    c->line->side[c->side].asked = c->asked;
    c->line->side[c->side].kind = kind_of(c);
    c->line->side[c->side].progress = now();
    c->line->side[c->side].open = true;
}

static void end_abruptly(struct conn *c) {
    c->line->abrupt = true;
    if (pick(&c->random, 2)) {
        struct linger linger = {1, 0};
        MUST(setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger));
    }
    finish(c);
}

/* The end of the stream was told by an event, or found. False: the connection is closed. */
static bool survive_error(struct conn *c, const char *what) {
    if (!is_abrupt(c)) fail(c, "%s", what);
    finish(c);
    return false;
}

/* Receives as long as it may. False: the connection is closed. */
static bool read_some(struct conn *c, bool told_readable) {
    static _Thread_local unsigned char bytes[ROOM];
    bool first = true;
    while (c->can_read && !c->ended) {
        size_t room = 1 + pick(&c->random, pick(&c->random, 4) ? 65536 : 64);
        if (c->side == SERVER) {
            if (c->from == c->to) c->from = c->to = 0;
            if (room > ROOM - c->to) room = ROOM - c->to;
            if (room == 0) return true;
        }
        errno = 0;
        ssize_t n = receive(c, bytes, room);
        if (n < 0 && errno == EAGAIN) {
            if (first && told_readable) fail(c, "told readable and nothing there");
            c->can_read = false;
            return true;
        }
        first = false;
        if (n < 0) return survive_error(c, "recv failed");
        if (n == 0) {
            if (c->in.at != 0 || c->in.type == DATA || c->in.type == 0) {
                return survive_error(c, "end of stream in the middle");
            }
            if (!c->line->side[!c->side].shut) fail(c, "end of stream before it was sent");
            c->ended = true;
            get_on(c);
            return true;
        }
        const char *trouble = verify(&c->in, bytes, (size_t)n);
        if (trouble)
            fail(c, "%s: message %u at %zu of %u, %zd bytes received", trouble, c->in.seq, c->in.at, c->in.length, n);
        if (c->side == SERVER) {
            if (!c->line && c->in.id != 0) adopt_line(c, c->in.id);
            memcpy(c->out + c->to, bytes, (size_t)n);
            c->to += (size_t)n;
        }
        c->received += (uint64_t)n;
        if (c->line) c->line->side[c->side].in += (uint64_t)n;
        shared->moved += (uint64_t)n;
        get_on(c);
        /* A short read has emptied the socket; later bytes come with a new edge. */
        if (c->rdhup && !c->over && (size_t)n < room) c->can_read = false;
        /* The level will tell of the rest. */
        if (!c->greedy && !c->edge) c->can_read = false;
    }
    return true;
}

/* Sends as long as it may. False: the connection is closed. */
static bool write_some(struct conn *c) {
    while (c->can_write && c->from < c->to) {
        size_t count = c->to - c->from;
        if (count > c->chunk) count = c->chunk;
        ssize_t n = transmit(c, c->out + c->from, count);
        if (n < 0 && errno == EAGAIN) {
            c->can_write = false;
            return true;
        }
        if (n < 0) return survive_error(c, "send failed");
        if (n == 0) fail(c, "send says 0");
        c->from += (size_t)n;
        if (c->side == SERVER) c->sent += (uint64_t)n;
        if (c->line) c->line->side[c->side].out += (uint64_t)n;
        get_on(c);
        if ((size_t)n < count) c->can_write = false;
    }
    if (c->from == c->to) c->from = c->to = 0;
    return true;
}

/* A client's next messages. */
static void compose(struct conn *c) {
    if (c->last_sent || c->connecting || now() < c->resume_at) return;
    if (shared->quiet && !shared->calm) {
        if (c->sent == c->received) c->resume_at = now() + 1;
        return;
    }
    while (!c->last_sent) {
        bool last = c->next >= c->most || shared->calm;
        uint32_t length = last ? 0 : length_of(c->line->id, c->next);
        if (c->to + HEADER + length > ROOM ||
            (c->sent > c->received && c->sent + HEADER + length - c->received > c->window))
            return;
        if (!last && c->sent == c->received && pick(&c->random, 4) == 0) {
            c->resume_at = now() + pick(&c->random, pick(&c->random, 8) ? 10 : 100);
            if (c->resume_at > now()) return;
        }
        put(c->out + c->to, c->line->id, c->next, length, !last ? DATA : c->ending == BY_HALF ? HALF : CLOSE);
        memcpy(c->out + c->to + HEADER, payload_of(c->line->id, c->next), length);
        c->to += HEADER + length;
        c->sent += HEADER + length;
        c->next++;
        c->last_sent = last;
    }
}

/* Does what there is to do. `reading`: by a thread that was told. */
static void drive(struct conn *c, bool reading, bool told_readable) {
    for (;;) {
        bool full = c->side == SERVER && c->to == ROOM;
        if (reading && !read_some(c, told_readable)) return;
        told_readable = false;
        if (c->side == CLIENT) compose(c);
        size_t before = c->from;
        if (!write_some(c)) return;
        if (c->side == CLIENT && c->ending == BY_CLIENT_ABRUPTLY && (c->next > c->most / 2) &&
            pick(&c->random, 4) == 0) {
            end_abruptly(c);
            return;
        }
        if (c->side == SERVER && c->line && c->ending == BY_SERVER_ABRUPTLY && c->in.seq > 5 &&
            pick(&c->random, 4) == 0) {
            end_abruptly(c);
            return;
        }
        if (c->from == c->to && c->last_sent && c->ending == BY_HALF && !c->shut) {
            c->line->side[c->side].shut = true;
            if (shutdown(c->fd, SHUT_WR) != 0) {
                survive_error(c, "shutdown failed");
                return;
            }
            c->shut = true;
            get_on(c);
        }
        if (c->from == c->to && c->in.at == 0) {
            if (c->side == SERVER && (c->in.type == CLOSE || (c->in.type == HALF && c->ended))) {
                if (c->received != c->sent) fail(c, "lost count");
                finish(c);
                return;
            }
            if (c->side == CLIENT && c->ended && (c->in.type == CLOSE || c->in.type == HALF)) {
                if (c->sent != c->received) fail(c, "bytes are missing at the end");
                finish(c);
                return;
            }
        }
        /* There is room again, or something to send: else wait for what is told. */
        bool more = reading && c->can_read && !c->ended && (full || c->edge || c->greedy) &&
                    (c->side == CLIENT || c->to < ROOM) && (c->from != before || c->from == c->to);
        more |= c->side == CLIENT && c->can_write && c->to > c->from;
        if (!more) break;
    }
    if (c->line) c->line->side[c->side].kind = kind_of(c);
    ask_for(c);
}

static void establish(struct conn *c, uint32_t id) {
    struct sockaddr_in own;
    socklen_t length = sizeof own;
    MUST(getsockname(c->fd, (struct sockaddr *)&own, &length));
    shared->by_port[ntohs(own.sin_port)] = id;
}

/* A thread was told `events` of `c`, which is locked. */
static void handle(struct conn *c, uint32_t events, bool strict) {
    if (events & ~(uint32_t)(EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) fail(c, "told %x", events);
    if (tell_by != TELL_UNIQUE && events & ~(uint32_t)(EPOLLIN | EPOLLOUT)) {
        /* It may be of the connection that had the slot or the number before. */
        struct pollfd one = {.fd = c->fd, .events = POLLRDHUP};
        MUST(poll(&one, 1, 0));
        events &= EPOLLIN | EPOLLOUT | (uint32_t)one.revents;
    }
    if (c->line) {
        c->line->side[c->side].told = events;
        c->line->side[c->side].told_at = now();
    }
    if (events & EPOLLERR) {
        int error = 0;
        socklen_t length = sizeof error;
        if (is_abrupt(c)) {
            finish(c);
            return;
        }
        if (c->line && !c->line->abrupt) {
            getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &length);
            errno = error;
            fail(c, "told of an error: %x", events);
        }
    }
    if (c->connecting) {
        if (!(events & (EPOLLOUT | EPOLLHUP))) {
            ask_for(c);
            return;
        }
        int error = 0;
        socklen_t length = sizeof error;
        MUST(getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &length));
        errno = error;
        if (error) fail(c, "connect failed");
        c->connecting = false;
        c->can_write = true;
        establish(c, c->line->id);
    }
    if (events & (EPOLLRDHUP | EPOLLHUP)) {
        if (c->line && !c->line->abrupt && !c->line->side[!c->side].shut)
            fail(c, "told of an end before it was sent: %x", events);
        c->over = true;
    }
    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP)) c->can_read = true;
    if (events & EPOLLOUT) c->can_write = true;
    drive(c, true, strict && events & EPOLLIN && !(events & EPOLLERR));
}

/* New connections. */

static void begin(struct conn *c, int fd, uint64_t random) {
    unsigned char *out = c->out;
    c->random = random;
    c->fd = fd;
    c->spare = -1;
    uint32_t kind = pick(&c->random, 8);
    c->edge = kind == 1 || kind == 2 || kind == 4 || kind == 7;
    c->once = kind == 3 || kind == 4;
    c->exclusive = kind == 5 || kind == 7;
    c->rdhup = !c->exclusive && pick(&c->random, 2);
    if (getenv("SETS_AGAIN")) c->rdhup = false; /* no read that is short says that there is no more */
    c->greedy = pick(&c->random, 2);
    c->meddled = pick(&c->random, 2);
    c->set_count = set_count[c->side] > 1 && pick(&c->random, 3) == 0 ? 2 : 1;
    c->sets[0] = (int)pick(&c->random, (uint32_t)set_count[c->side]);
    c->sets[1] = (c->sets[0] + 1) % set_count[c->side];
    c->connecting = c->can_read = c->over = c->ended = c->shut = c->last_sent = false;
    c->can_write = true;
    memset(&c->in, 0, sizeof c->in);
    c->out = out;
    c->from = c->to = 0;
    static const size_t windows[] = {1, 5000, 60000, 400000}, chunks[] = {ROOM, ROOM, 5000, 100};
    c->window = windows[pick(&c->random, COUNT(windows))];
    c->chunk = chunks[pick(&c->random, COUNT(chunks))];
    c->next = 0;
    c->most = 1 + pick(&c->random, pick(&c->random, 3) ? 60 : 600);
    c->sent = c->received = 0;
    c->resume_at = 0;
    c->line = NULL;
    static const int sizes[] = {4096, 16384, 100000};
    for (int option = 0; option < 2; option++) {
        int size = sizes[pick(&c->random, COUNT(sizes))];
        if (pick(&c->random, 3) == 0) setsockopt(fd, SOL_SOCKET, option ? SO_SNDBUF : SO_RCVBUF, &size, sizeof size);
    }
    shared->open[c->side]++;
}

static struct conn *free_conn(int side) {
    for (int i = 0; i < MOST; i++) {
        struct conn *c = &conns[side][i];
        if (pthread_mutex_trylock(&c->lock) != 0) continue;
        if (c->fd < 0) return c;
        pthread_mutex_unlock(&c->lock);
    }
    return NULL;
}

/* All threads that are told of the listener try. */
static void accept_some(uint64_t *random) {
    for (int i = 0; i < 4; i++) {
        int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EAGAIN || errno == ECONNABORTED)) return;
        MUST(fd);
        struct conn *c;
        while (!(c = free_conn(SERVER))) pause_us(100);
        begin(c, fd, *random);
        pick(random, 2);
        enroll(c);
        pthread_mutex_unlock(&c->lock);
    }
}

static void connect_one(uint64_t *random) {
    struct conn *c = free_conn(CLIENT);
    if (!c) return;
    bool nonblocking = pick(random, 2);
    int fd = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | (nonblocking ? SOCK_NONBLOCK : 0), 0));
    begin(c, fd, *random);
    uint32_t id = ++shared->ids;
    struct line *line = &shared->lines[id % LINES];
    memset(line, 0, sizeof *line);
    line->id = id;
    adopt_line(c, id);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
        if (!nonblocking || errno != EINPROGRESS) fail(c, "connect");
        c->connecting = true;
        c->can_write = false;
    } else {
        establish(c, id);
        if (!nonblocking) MUST(fcntl(fd, F_SETFL, O_NONBLOCK));
    }
    shared->connections++;
    enroll(c);
    if (!c->connecting) drive(c, false, false);
    pthread_mutex_unlock(&c->lock);
}

/* The threads that wait. */

struct worker {
    int side, set;
    uint64_t random;
    /* Waits on the set itself, on one that contains all sets, or by poll or select on it. */
    enum { DIRECTLY, NESTED, BY_POLL, BY_SELECT } manner;
    int most;
    bool impatient;
};

static struct worker workers[2][MAX_THREADS];

static void deal(struct worker *w, const struct epoll_event *event, uint64_t began, bool alone) {
    uint64_t data = event->data.u64;
    if (data == LISTENER) return accept_some(&w->random);
    if (data == STOP) return;
    uint64_t place = data & 0xffffffff;
    if (tell_by == TELL_FD) {
        int at = data < MAX_FD ? by_fd[data] : 0;
        if (at == 0) {
            shared->stale++;
            return;
        }
        place = (uint64_t)at - 1;
    }
    if (place >= 2 * MOST) fail(NULL, "told of what was never registered: %lx", (unsigned long)data);
    struct conn *c = &conns[place / MOST][place % MOST];
    pthread_mutex_lock(&c->lock);
    bool stale = c->fd < 0 || data_of(c) != data;
    if (stale) {
        shared->stale++;
        if (tell_by == TELL_UNIQUE && began > c->closed_at)
            fail(c, "told %x of a connection that was closed before", event->events);
    } else {
        bool strict = tell_by == TELL_UNIQUE && alone && c->set_count == 1 && !c->edge;
        handle(c, event->events, strict);
    }
    pthread_mutex_unlock(&c->lock);
}

static int wait_on(struct worker *w, int set, struct epoll_event *events, int timeout) {
    struct timespec limit = {timeout / 1000, timeout % 1000 * 1000000L};
    int n;
    switch (pick(&w->random, 4)) {
    case 0: n = epoll_pwait(set, events, w->most, timeout, NULL); break;
    case 1:
        n = epoll_pwait2(set, events, w->most, timeout < 0 ? NULL : &limit, NULL);
        if (n >= 0 || errno != ENOSYS) break;
        /* fall through */
    default: n = epoll_wait(set, events, w->most, timeout);
    }
    if (n > 0) shared->waits++;
    return (int)MUST(n);
}

static void *work(void *argument) {
    struct worker *w = argument;
    struct epoll_event events[32], inner[32];
    while (!shared->stop) {
        int set = sets[w->side][w->set];
        uint64_t began = ++moment;
        int timeout = w->impatient ? (int)pick(&w->random, 20) : -1;
        if (w->manner == BY_POLL) {
            struct pollfd one = {.fd = set, .events = POLLIN};
            MUST(poll(&one, 1, timeout));
            timeout = 0;
        } else if (w->manner == BY_SELECT) {
            fd_set readable;
            FD_ZERO(&readable);
            FD_SET(set, &readable);
            struct timeval limit = {0, timeout * 1000L};
            MUST(select(set + 1, &readable, NULL, NULL, timeout < 0 ? NULL : &limit));
            timeout = 0;
        }
        int n = wait_on(w, w->manner == NESTED ? outer[w->side] : set, events, timeout);
        for (int i = 0; i < n; i++) {
            if (w->manner != NESTED || events[i].data.u64 < INNER) {
                deal(w, &events[i], began, set_threads[w->side][w->set] == 1);
                continue;
            }
            int number = (int)(events[i].data.u64 - INNER);
            began = ++moment;
            int m = wait_on(w, sets[w->side][number], inner, 0);
            for (int k = 0; k < m; k++) deal(w, &inner[k], began, set_threads[w->side][number] == 1);
        }
    }
    return NULL;
}

/* What other threads do to connections meanwhile. */

/* All ways to ask whether there is something must agree: no other thread reads meanwhile. */
static void compare(struct conn *c) {
    static _Thread_local unsigned char bytes[65536];
    struct pollfd one = {.fd = c->fd, .events = POLLIN};
    fd_set readable;
    FD_ZERO(&readable);
    if (c->fd < FD_SETSIZE) FD_SET(c->fd, &readable);
    struct timeval none = {0, 0};
    int unread = -1;
    bool polled = false, selected = false;
    uint32_t what = pick(&c->random, 8);
    if (what & 1) polled = MUST(poll(&one, 1, 0)) > 0 && one.revents & POLLIN;
    if (what & 2) selected = MUST(select(c->fd + 1, &readable, NULL, NULL, &none)) > 0;
    if (what & 4) MUST(ioctl(c->fd, FIONREAD, &unread));
    errno = 0;
    ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_PEEK | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN) return;
    if (n < 0 && (polled || selected || unread > 0)) {
        fail(c, "nothing to peek at: poll %d select %d FIONREAD %d", polled, selected, unread);
    }
    if (n == 0 && unread > 0) fail(c, "an end, and FIONREAD %d", unread);
    if (n > 0) {
        struct reader copy = c->in;
        const char *trouble = verify(&copy, bytes, (size_t)n);
        if (trouble) fail(c, "peeked: %s", trouble);
        one.revents = 0;
        if (poll(&one, 1, 0) != 1 || !(one.revents & POLLIN))
            fail(c, "peeked at %zd, and poll says %x", n, one.revents);
    }
}

/* A set that comes and goes, beside those in which the connection is. */
static void watch_beside(struct conn *c) {
    int set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    bool edge = pick(&c->random, 2);
    struct epoll_event event = {.events = EPOLLIN | (edge ? (uint32_t)EPOLLET : 0), .data.u64 = 77};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, c->fd, &event));
    int n = (int)MUST(epoll_wait(set, &event, 1, 0));
    char byte;
    if (n == 1 && event.data.u64 != 77) fail(c, "told of another");
    if (n == 1 && !edge && recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN) {
        struct pollfd one = {.fd = c->fd, .events = POLLIN};
        int unread = -1, polled = poll(&one, 1, 0), later = 0;
        ioctl(c->fd, FIONREAD, &unread);
        pause_us(10000);
        if (recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0) later = 1;
        if (recv(c->fd, &byte, 1, MSG_DONTWAIT) > 0) later += 2;
        fail(c, "a set beside (%s) tells of nothing: poll %d FIONREAD %d, later %d", edge ? "edge" : "level", polled,
             unread, later);
    }
    if (pick(&c->random, 2)) MUST(epoll_ctl(set, EPOLL_CTL_DEL, c->fd, NULL));
    close(set);
}

/* The connection goes on under another number. */
static void move(struct conn *c) {
    int to = pick(&c->random, 2) ? open("/dev/null", O_RDONLY | O_CLOEXEC) : socket(AF_INET, SOCK_STREAM, 0);
    MUST(to);
    if (to >= MAX_FD) {
        close(to);
        return;
    }
    bool first = pick(&c->random, 2);
    if (first) leave(c);
    MUST(dup2(c->fd, to));
    if (!first) leave(c);
    close(c->fd);
    c->fd = to;
    enroll(c);
    shared->moves++;
}

static void meddle(struct conn *c) {
    int on = 1, off = 0, error = 0;
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    uint32_t what = pick(&c->random, 14);
    if (!(operations >> what & 1)) return;
    switch (what) {
    case 0: close((int)MUST(dup(c->fd))); break;
    case 1:
        if (c->spare < 0) {
            c->spare = (int)MUST(fcntl(c->fd, F_DUPFD_CLOEXEC, 3));
        } else {
            close(c->spare);
            c->spare = -1;
        }
        break;
    case 2: if (c->meddled) move(c); break;
    case 3:
        if (c->meddled) {
            leave(c);
            enroll(c);
        }
        break;
    case 4: if (c->meddled && !c->exclusive) control(c, EPOLL_CTL_MOD); break;
    case 5: setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, pick(&c->random, 2) ? &on : &off, sizeof on); break;
    case 6:
        setsockopt(c->fd, IPPROTO_TCP, TCP_CORK, &on, sizeof on);
        setsockopt(c->fd, IPPROTO_TCP, TCP_CORK, &off, sizeof off);
        break;
    case 7:
        MUST(getsockname(c->fd, (struct sockaddr *)&address, &length));
        length = sizeof error;
        if (pick(&c->random, 4) == 0) MUST(setsockopt(c->fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
        break;
    case 8: watch_beside(c); break;
    case 9:
        /* Sends from beside what another thread may be about to send. */
        drive(c, false, false);
        break;
    default: compare(c); break;
    }
    if (c->line) c->line->side[c->side].fd = c->fd;
}

static void *meddler(void *argument) {
    uint64_t random = mix(seed + (uint64_t)(uintptr_t)argument * 7919);
    int side = (int)(uintptr_t)argument;
    while (!shared->stop) {
        if (!shared->quiet && !shared->calm) {
            struct conn *c = &conns[side][pick(&random, MOST)];
            pthread_mutex_lock(&c->lock);
            if (c->fd >= 0 && !c->connecting) meddle(c);
            pthread_mutex_unlock(&c->lock);
        }
        pause_us(pick(&random, 2000));
    }
    return NULL;
}

/* What this process can say of a connection that does not get on: asked of libc, and of the kernel itself. */
static void examine(uint32_t id) {
    for (int i = 0; i < 2 * MOST; i++) {
        struct conn *c = &conns[i / MOST][i % MOST];
        if (!c->out || !c->line || c->line->id != id || c->fd < 0) continue;
        struct pollfd one = {.fd = c->fd, .events = POLLIN | POLLOUT}, other = one;
        int unread = -1, queued = -1;
        char byte;
        syscall(SYS_ioctl, c->fd, FIONREAD, &queued);
        syscall(SYS_poll, &other, 1, 0);
        ioctl(c->fd, FIONREAD, &unread);
        poll(&one, 1, 0);
        errno = 0;
        ssize_t n = recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
        fprintf(
            stderr,
            "  %u %s: can_read %d can_write %d over %d to send %zu; poll %x, kernel's %x; FIONREAD %d, kernel's %d; "
            "peek %zd errno %d; set %d of %d, %d threads wait on it, %d threads:",
            id, c->side == SERVER ? "server" : "client", c->can_read, c->can_write, c->over, c->to - c->from,
            (unsigned)one.revents, (unsigned)other.revents, unread, queued, n, errno, c->sets[0], set_count[c->side],
            set_threads[c->side][c->sets[0]], thread_count[c->side]);
        for (int k = 0; k < thread_count[c->side]; k++) {
            fprintf(stderr, " %d%s on %d", workers[c->side][k].manner,
                    workers[c->side][k].impatient ? " impatient" : "", workers[c->side][k].set);
        }
        fprintf(stderr, "\n");
    }
}

/* Ends the program when a connection does not get on. */
static void *watchdog(void *argument) {
    (void)argument;
    while (!shared->stop) {
        pause_us(200000);
        long t = now();
        for (size_t i = 0; i < LINES; i++) {
            struct line *line = &shared->lines[i];
            bool open = false, stuck = true;
            for (int side = 0; side < 2; side++) {
                open |= line->side[side].open;
                stuck &= t - line->side[side].progress > STUCK_MS;
            }
            if (!open || !stuck) continue;
            examine(line->id);
            pause_us(1500000);
            fail(NULL, "connection %u is stuck", line->id);
        }
    }
    return NULL;
}

/* If no end sends, no event may be reported. */
static void keep_quiet(void) {
    shared->quiet = true;
    pause_us(150000);
    uint64_t moved = shared->moved, waits = shared->waits;
    struct timespec before, after;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    pause_us(200000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    long ms = (after.tv_sec - before.tv_sec) * 1000 + (after.tv_nsec - before.tv_nsec) / 1000000;
    if (shared->moved == moved && shared->waits - waits > 100) {
        fail(NULL, "told %lu times while nothing came", shared->waits - waits);
    }
    if (shared->moved == moved && ms > 100) fail(NULL, "%ld ms of the processor in 200 ms while nothing came", ms);
    shared->quiet = false;
}

/* A set and its manner of waiting for each thread of one side. */
static void start(int side, uint64_t *random, pthread_t *threads) {
    for (int i = 0; i < MOST; i++) {
        struct conn *c = &conns[side][i];
        pthread_mutex_init(&c->lock, NULL);
        c->side = side;
        c->slot = i;
        c->fd = c->spare = -1;
        c->out = malloc(ROOM);
    }
    thread_count[side] = 1 + (int)pick(random, MAX_THREADS);
    set_count[side] = 1 + (int)pick(random, MAX_SETS);
    if (set_count[side] > thread_count[side]) set_count[side] = thread_count[side];
    outer[side] = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = STOP};
    MUST(epoll_ctl(outer[side], EPOLL_CTL_ADD, stopper, &event));
    for (int i = 0; i < set_count[side]; i++) {
        sets[side][i] = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
        event = (struct epoll_event){.events = EPOLLIN, .data.u64 = STOP};
        MUST(epoll_ctl(sets[side][i], EPOLL_CTL_ADD, stopper, &event));
    }
    bool nested = pick(random, 3) == 0 && !getenv("SETS_NO_NESTED");
    for (int i = 0; i < thread_count[side]; i++) {
        uint32_t manner = pick(random, 6);
        struct worker *w = &workers[side][i];
        /* Several sets in one outer set: each has a thread of its own beside. */
        *w = (struct worker){.side = side, .set = i % set_count[side], .random = mix(*random + (uint64_t)i)};
        w->manner = manner == 0                                       ? BY_POLL
                    : manner == 1                                     ? BY_SELECT
                    : nested && (i >= set_count[side] || manner == 2) ? NESTED
                                                                      : DIRECTLY;
        if (getenv("SETS_DIRECT")) w->manner = DIRECTLY;
        w->most = 1 + (int)pick(random, 32);
        w->impatient = pick(random, 4) == 0;
        if (w->manner == NESTED && i < set_count[side] && set_count[side] > 1) w->manner = DIRECTLY;
        for (int k = 0; k < set_count[side]; k++) set_threads[side][k] += w->manner == NESTED || k == w->set;
    }
    for (int k = 0; k < set_count[side]; k++) {
        event = (struct epoll_event){.events = EPOLLIN, .data.u64 = INNER + (uint64_t)k};
        if (nested) MUST(epoll_ctl(outer[side], EPOLL_CTL_ADD, sets[side][k], &event));
    }
    for (int i = 0; i < thread_count[side]; i++) MUST(-pthread_create(&threads[i], NULL, work, &workers[side][i]));
    MUST(-pthread_create(&threads[thread_count[side]], NULL, meddler, (void *)(uintptr_t)side));
}

static void join(int side, pthread_t *threads) {
    for (int i = 0; i <= thread_count[side]; i++) pthread_join(threads[i], NULL);
}

/* Opens connections, goes on with those that have rested, and ends them when the time is over. */
static void run_clients(long seconds, uint64_t *random) {
    int most = pick(random, 3) ? MOST - 4 : 1 + (int)pick(random, 3);
    long end = now() + seconds * 1000, quiet = now() + 1500;
    while (now() < end) {
        if (shared->open[CLIENT] < most) connect_one(random);
        for (int i = 0; i < MOST; i++) {
            struct conn *c = &conns[CLIENT][i];
            pthread_mutex_lock(&c->lock);
            if (c->fd >= 0 && !c->connecting && c->resume_at && now() >= c->resume_at) {
                c->resume_at = 0;
                drive(c, false, false);
            }
            pthread_mutex_unlock(&c->lock);
        }
        pause_us(1000 + pick(random, 4000));
        if (now() > quiet) {
            keep_quiet();
            quiet = now() + 1500 + pick(random, 1000);
        }
    }
    shared->calm = true;
    while (shared->open[CLIENT] > 0 || shared->open[SERVER] > 0) {
        for (int i = 0; i < MOST; i++) {
            struct conn *c = &conns[CLIENT][i];
            pthread_mutex_lock(&c->lock);
            if (c->fd >= 0 && !c->connecting && c->resume_at) {
                c->resume_at = 0;
                drive(c, false, false);
            }
            pthread_mutex_unlock(&c->lock);
        }
        pause_us(2000);
    }
    shared->stop = true;
}

static void stop_threads(void) {
    uint64_t one = 1;
    MUST(write(stopper, &one, sizeof one));
}

static void begin_to_listen(void) {
    listener = (int)MUST(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    int on = 1;
    MUST(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on));
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(bind(listener, (struct sockaddr *)&address, sizeof address));
    MUST(listen(listener, 64));
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: sets SEED SECONDS both|two|apart [PORT]\n");
        return 2;
    }
    seed = (uint32_t)strtoul(argv[1], NULL, 10);
    long seconds = strtol(argv[2], NULL, 10);
    const char *role = argv[3];
    if (argc > 4) port = atoi(argv[4]);
    if (getenv("SETS_OPERATIONS")) operations = (uint32_t)strtoul(getenv("SETS_OPERATIONS"), NULL, 0);
    signal(SIGPIPE, SIG_IGN);
    uint64_t random = mix(seed + 1);
    for (size_t i = 0; i < sizeof pattern; i++)
        pattern[i] = i < PATTERN ? (unsigned char)pick(&random, 256) : pattern[i - PATTERN];
    random = mix(seed + 2);
    tell_by = pick(&random, 4) == 0 ? TELL_SLOT : pick(&random, 3) == 0 ? TELL_FD : TELL_UNIQUE;

    bool executed = strcmp(role, "client") == 0;
    int memory = executed ? atoi(argv[5]) : (int)MUST(memfd_create("sets", 0));
    if (!executed) MUST(ftruncate(memory, sizeof *shared));
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (shared == MAP_FAILED) return 2;
    bool client = executed || strcmp(role, "both") == 0, server = !executed;
    pid_t child = 0;
    if (server) begin_to_listen();
    if (server && !client) {
        pid_t parent = getpid();
        child = (pid_t)MUST(fork());
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) return 1;
            if (strcmp(role, "apart") == 0) {
                char number[16];
                snprintf(number, sizeof number, "%d", memory);
                char port_text[16];
                snprintf(port_text, sizeof port_text, "%d", port);
                execl("/proc/self/exe", "sets", argv[1], argv[2], "client", port_text, number, (char *)NULL);
                return 1;
            }
            close(listener);
            client = true;
            server = false;
        }
    }
    if (client) random = mix(seed + 3);
    stopper = (int)MUST(eventfd(0, EFD_CLOEXEC));
    static pthread_t threads[2][MAX_THREADS + 1], guard;
    if (server) {
        start(SERVER, &random, threads[SERVER]);
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = LISTENER};
        if (tell_by == TELL_FD) by_fd[listener] = 0;
        MUST(epoll_ctl(sets[SERVER][0], EPOLL_CTL_ADD, listener, &event));
    }
    pthread_create(&guard, NULL, watchdog, NULL);
    if (client) {
        start(CLIENT, &random, threads[CLIENT]);
        run_clients(seconds, &random);
    }
    if (server && !client) {
        int status = 0;
        MUST(waitpid(child, &status, 0));
        if (status != 0) {
            fprintf(stderr, "sets: seed %u: the clients ended with status %x\n", seed, (unsigned)status);
            return 1;
        }
    }
    stop_threads();
    if (server) join(SERVER, threads[SERVER]);
    if (client) join(CLIENT, threads[CLIENT]);
    pthread_join(guard, NULL);
    if (server) {
        printf("sets: seed %u %s: %lu connections, %lu MB, %lu waits, %lu moves, %lu stale\n", seed, role,
               shared->connections, shared->moved >> 20, shared->waits, shared->moves, shared->stale);
    }
    return shared->failed;
}
