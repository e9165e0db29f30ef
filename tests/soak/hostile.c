/* hostile: a soak test against a peer that writes anything into the memory that the two ends of a connection share.
 *
 *   hostile SEED SECONDS
 *
 * Three kinds of processes, each a family of its own under the library, and this one, which watches them:
 *
 * - The victim accepts connections and does everything to them that a program can, from several threads.
 * - Hostile peers, one after the other, connect to it and talk, so that channels are made honestly; meanwhile a thread
 *   finds the pools in /proc/self/maps and overwrites words of them: at random and chosen places, with random and
 *   chosen values. Then the peer closes, exits or is killed.
 * - An honest peer plays ping-pong with the victim, on connections that share threads and epoll sets with the hostile
 *   ones.
 *
 * Checked: that nobody crashes (the victim puts guard pages beside each System V segment and its buffers end at one);
 * that each call of the victim ends, within 15 s, that cannot wait, and each that can, once its peer is gone; that no
 * call says what it could not say on kernel TCP; that the honest peer's bytes are right and come in time. Exit code 0
 * if all that held; the last line says how many words were overwritten.
 *
 * Variables: HOSTILE_STOP (a failure stays for gdb), HOSTILE_ONLY (a mask of what the peer may overwrite; 0: it is
 * honest), HOSTILE_OFTEN (a kind of call of the victim's that every eighth is).
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORKERS = 4, MINE = 4, WATCHED = 6, HONEST = 3, HANDED = 8, TALKERS = 2, TALKS = 5, GENERATIONS = 64 };
enum { LIMIT_MS = 15000, ROOM = 256 * 1024, PAGE = 4096, MOST_POOLS = 64, MOST_GUARDS = 4096 };
/* Where each process's heartbeat is counted. */
enum { BEAT_SET = WORKERS, BEAT_ECHO, BEAT_HONEST, BEATS = BEAT_HONEST + HONEST };

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* A call that is being made. */
struct beat {
    _Atomic long since; /* 0: none */
    _Atomic int name;   /* of `operations`, or -1 */
    _Atomic bool waits; /* it may wait for the peer */
    _Atomic uint32_t generation;
};

static struct {
    struct beat beats[BEATS];
    _Atomic uint32_t generation;
    _Atomic long gone_at[GENERATIONS];
    _Atomic uint64_t overwritten, calls, connections, errors, trips;
    _Atomic bool stop, failed;
    _Atomic int ready;
    _Atomic int hostile_port, honest_port;
} *shared;

static uint32_t pick(uint64_t *random, uint32_t below) {
    *random ^= *random >> 12, *random ^= *random << 25, *random ^= *random >> 27;
    return (uint32_t)((*random * 0x2545f4914f6cdd1du) >> 32) % below;
}

static uint64_t word(uint64_t *random) { return (uint64_t)pick(random, ~0u) << 32 | pick(random, ~0u); }

static long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void nap(long us) {
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    nanosleep(&t, NULL);
}

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...) {
    va_list list;
    va_start(list, format);
    char text[512];
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    fprintf(stderr, "process %d: %s\n", getpid(), text);
    shared->failed = true;
    if (getenv("HOSTILE_STOP"))
        for (;;) pause();
    _exit(1);
}

/* ---- The victim. ---- */

struct conn {
    int fd;
    uint32_t generation;
    int left; /* calls until it is closed */
};

struct worker {
    int number;
    uint64_t random;
    unsigned char *end; /* of ROOM bytes, before a page that cannot be touched */
    struct conn mine[MINE];
};

static int hostile_listener, honest_listener, file;
static pthread_t threads[WORKERS];
static pthread_mutex_t handing = PTHREAD_MUTEX_INITIALIZER;
static struct conn handed[HANDED];
static int handed_count;

static unsigned char *room(void) {
    unsigned char *at = mmap(NULL, ROOM + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED || mprotect(at + ROOM, PAGE, PROT_NONE)) fail("no memory: %m");
    return at + ROOM;
}

static void begin(int number, int name, bool waits, uint32_t generation) {
    struct beat *beat = &shared->beats[number];
    beat->name = name;
    beat->waits = waits;
    beat->generation = generation;
    beat->since = now();
}

static void done(int number) {
    shared->beats[number].since = 0;
    shared->calls++;
}

/* How large a call is. */
static size_t size(struct worker *w) {
    static const uint32_t most[] = {16, 16, 300, 5000, 70000, ROOM - 64};
    return 1 + pick(&w->random, most[pick(&w->random, COUNT(most))]);
}

static void set_blocking(int fd, bool blocking) {
    int flags = fcntl(fd, F_GETFL);
    fcntl(fd, F_SETFL, blocking ? flags & ~O_NONBLOCK : flags | O_NONBLOCK);
}

/* Operations: they return what the call did. `waits` says whether it may wait for the other end. */
typedef ssize_t operation(struct worker *w, int fd, bool waits);

static ssize_t op_recv(struct worker *w, int fd, bool waits) {
    size_t n = size(w);
    return recv(fd, w->end - n, n, waits ? 0 : MSG_DONTWAIT);
}

static ssize_t op_waitall(struct worker *w, int fd, bool waits) {
    size_t n = size(w);
    return recv(fd, w->end - n, n, MSG_WAITALL | (waits ? 0 : MSG_DONTWAIT));
}

static ssize_t op_peek(struct worker *w, int fd, bool waits) {
    size_t n = size(w);
    return recv(fd, w->end - n, n, MSG_PEEK | (waits ? 0 : MSG_DONTWAIT));
}

static ssize_t op_trunc(struct worker *w, int fd, bool waits) {
    size_t n = size(w);
    ssize_t got = recv(fd, NULL, n, MSG_TRUNC | (waits ? 0 : MSG_DONTWAIT));
    if (got > (ssize_t)n) fail("MSG_TRUNC of %zu says %zd", n, got);
    return got;
}

static ssize_t op_read(struct worker *w, int fd, bool waits) {
    size_t n = size(w);
    set_blocking(fd, waits);
    return read(fd, w->end - n, n);
}

static ssize_t op_write(struct worker *w, int fd, bool waits) {
    size_t n = size(w);
    set_blocking(fd, waits);
    return write(fd, w->end - n, n);
}

static ssize_t op_send(struct worker *w, int fd, bool waits) {
    size_t n = size(w);
    return send(fd, w->end - n, n, MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT));
}

static int pieces(struct worker *w, struct iovec *vector) {
    int count = 1 + pick(&w->random, 4);
    for (int i = 0; i < count; i++) {
        size_t n = pick(&w->random, 3000);
        vector[i] = (struct iovec){w->end - (3 - i) * 3000 - n, n};
    }
    return count;
}

static ssize_t op_readv(struct worker *w, int fd, bool waits) {
    struct iovec vector[4];
    int count = pieces(w, vector);
    set_blocking(fd, waits);
    return readv(fd, vector, count);
}

static ssize_t op_writev(struct worker *w, int fd, bool waits) {
    struct iovec vector[4];
    int count = pieces(w, vector);
    set_blocking(fd, waits);
    return writev(fd, vector, count);
}

static ssize_t op_recvmsg(struct worker *w, int fd, bool waits) {
    struct iovec vector[4];
    char control[256];
    struct msghdr message = {.msg_iov = vector, .msg_control = control, .msg_controllen = sizeof control};
    message.msg_iovlen = pieces(w, vector);
    return recvmsg(fd, &message, waits ? 0 : MSG_DONTWAIT);
}

static ssize_t op_sendmsg(struct worker *w, int fd, bool waits) {
    struct iovec vector[4];
    struct msghdr message = {.msg_iov = vector};
    message.msg_iovlen = pieces(w, vector);
    return sendmsg(fd, &message, MSG_NOSIGNAL | (waits ? 0 : MSG_DONTWAIT));
}

static ssize_t op_mmsg(struct worker *w, int fd, bool waits) {
    struct iovec vector[4];
    struct mmsghdr message[2] = {{.msg_hdr.msg_iov = vector}, {.msg_hdr.msg_iov = vector}};
    message[0].msg_hdr.msg_iovlen = message[1].msg_hdr.msg_iovlen = pieces(w, vector);
    (void)waits;
    return pick(&w->random, 2) ? sendmmsg(fd, message, 2, MSG_NOSIGNAL | MSG_DONTWAIT)
                               : recvmmsg(fd, message, 2, MSG_DONTWAIT, NULL);
}

static ssize_t op_sendfile(struct worker *w, int fd, bool waits) {
    off_t from = pick(&w->random, 1000);
    set_blocking(fd, waits);
    return sendfile(fd, file, &from, size(w));
}

static ssize_t op_poll(struct worker *w, int fd, bool waits) {
    static const short events[] = {POLLIN, POLLOUT, POLLIN | POLLOUT, POLLIN | POLLRDHUP, 0};
    struct pollfd it = {fd, events[pick(&w->random, waits ? 4 : 5)], 0};
    return poll(&it, 1, waits ? -1 : (int)pick(&w->random, 3));
}

static ssize_t op_select(struct worker *w, int fd, bool waits) {
    fd_set in, out;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_SET(fd, &in);
    if (pick(&w->random, 2)) FD_SET(fd, &out);
    struct timeval time = {0, pick(&w->random, 3000)};
    return fd < FD_SETSIZE ? select(fd + 1, &in, &out, NULL, waits ? NULL : &time) : 0;
}

static ssize_t op_epoll(struct worker *w, int fd, bool waits) {
    int set = epoll_create1(EPOLL_CLOEXEC);
    uint32_t how = (pick(&w->random, 2) ? EPOLLET : 0) | (pick(&w->random, 4) ? 0 : EPOLLONESHOT);
    struct epoll_event it = {.events = EPOLLIN | (pick(&w->random, 3) ? 0 : EPOLLOUT) | how}, got[2];
    ssize_t n = epoll_ctl(set, EPOLL_CTL_ADD, fd, &it);
    for (int i = pick(&w->random, 3); n >= 0 && i >= 0; i--) {
        n = epoll_wait(set, got, 2, waits && i == 0 && how == 0 ? -1 : (int)pick(&w->random, 3));
        if (pick(&w->random, 2)) recv(fd, w->end - 100, 100, MSG_DONTWAIT);
    }
    if (pick(&w->random, 2)) epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
    close(set);
    return n;
}

static ssize_t op_ask(struct worker *w, int fd, bool waits) {
    int n = 0;
    socklen_t length = sizeof n;
    char info[256];
    socklen_t room = sizeof info;
    (void)waits;
    switch (pick(&w->random, 6)) {
        case 0: return ioctl(fd, FIONREAD, &n);
        case 1: return ioctl(fd, TIOCOUTQ, &n);
        case 2: return getsockopt(fd, SOL_SOCKET, SO_ERROR, &n, &length);
        case 3: return getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &room);
        case 4: return getpeername(fd, (struct sockaddr *)info, &room);
        default: return fcntl(fd, F_GETFL);
    }
}

static ssize_t op_set(struct worker *w, int fd, bool waits) {
    int n = pick(&w->random, 2), low = 1 + pick(&w->random, 2000);
    struct timeval time = {0, 1000 * (1 + pick(&w->random, 20))};
    (void)waits;
    switch (pick(&w->random, 4)) {
        case 0: return setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &n, sizeof n);
        case 1: return setsockopt(fd, IPPROTO_TCP, TCP_CORK, &n, sizeof n);
        case 2: return setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low);
        default: return setsockopt(fd, SOL_SOCKET, n ? SO_RCVTIMEO : SO_SNDTIMEO, &time, sizeof time);
    }
}

static ssize_t op_urgent(struct worker *w, int fd, bool waits) {
    (void)waits;
    return pick(&w->random, 2) ? send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL | MSG_DONTWAIT)
                               : recv(fd, w->end - 1, 1, MSG_OOB | MSG_DONTWAIT);
}

static ssize_t op_shutdown(struct worker *w, int fd, bool waits) {
    static const int how[] = {SHUT_WR, SHUT_WR, SHUT_RD, SHUT_RDWR};
    (void)waits;
    return shutdown(fd, how[pick(&w->random, COUNT(how))]);
}

static ssize_t op_dup(struct worker *w, int fd, bool waits) {
    (void)waits;
    int other = pick(&w->random, 2) ? dup(fd) : fcntl(fd, F_DUPFD_CLOEXEC, 40);
    if (other < 0) return other;
    ssize_t n = recv(other, w->end - 50, 50, MSG_DONTWAIT);
    int error = errno;
    close(other);
    errno = error;
    return n;
}

static ssize_t op_fork(struct worker *w, int fd, bool waits) {
    (void)waits;
    pid_t child = fork();
    if (child < 0) return child;
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (pick(&w->random, 4) == 0) {
            execl("/bin/true", "true", NULL);
            _exit(0);
        }
        for (int i = pick(&w->random, 4); i >= 0; i--) {
            if (pick(&w->random, 2)) send(fd, w->end - 700, 700, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (pick(&w->random, 2)) recv(fd, w->end - 700, 700, MSG_DONTWAIT);
        }
        if (pick(&w->random, 3) == 0) raise(SIGKILL);
        _exit(0);
    }
    if (pick(&w->random, 2)) recv(fd, w->end - 700, 700, MSG_DONTWAIT);
    int status;
    while (waitpid(child, &status, 0) < 0)
        if (errno != EINTR) fail("waitpid: %m");
    if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
        fail("a forked child was killed by signal %d", WTERMSIG(status));
    return 0;
}

/* Passes the descriptor to itself over a Unix socket. */
static ssize_t op_pass(struct worker *w, int fd, bool waits) {
    int pair[2];
    char control[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
    struct iovec one = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &one, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    (void)waits;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return -1;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &fd, sizeof fd);
    ssize_t n = sendmsg(pair[0], &message, 0);
    if (n > 0 && recvmsg(pair[1], &message, 0) > 0 && (header = CMSG_FIRSTHDR(&message))) {
        int other;
        memcpy(&other, CMSG_DATA(header), sizeof other);
        recv(other, w->end - 10, 10, MSG_DONTWAIT);
        close(other);
    }
    close(pair[0]), close(pair[1]);
    return 0;
}

static ssize_t op_splice(struct worker *w, int fd, bool waits) {
    int ends[2];
    set_blocking(fd, waits);
    if (pipe(ends)) return -1;
    ssize_t n = splice(fd, NULL, ends[1], NULL, size(w), SPLICE_F_NONBLOCK);
    int error = errno;
    close(ends[0]), close(ends[1]);
    errno = error;
    return n;
}

static const struct {
    const char *name;
    operation *run;
    int weight;
    bool can_wait;
} operations[] = {
    {"recv", op_recv, 20, true},         {"recv MSG_WAITALL", op_waitall, 5, true},
    {"recv MSG_PEEK", op_peek, 8, true}, {"recv MSG_TRUNC", op_trunc, 3, true},
    {"read", op_read, 8, true},          {"write", op_write, 8, true},
    {"send", op_send, 20, true},         {"readv", op_readv, 6, true},
    {"writev", op_writev, 6, true},      {"recvmsg", op_recvmsg, 5, true},
    {"sendmsg", op_sendmsg, 5, true},    {"sendmmsg, recvmmsg", op_mmsg, 4, false},
    {"sendfile", op_sendfile, 4, true},  {"poll", op_poll, 8, true},
    {"select", op_select, 5, true},      {"epoll", op_epoll, 8, true},
    {"ioctl, getsockopt", op_ask, 6, false}, {"setsockopt", op_set, 3, false},
    {"MSG_OOB", op_urgent, 1, false},    {"shutdown", op_shutdown, 1, false},
    {"dup", op_dup, 3, false},           {"fork", op_fork, 1, false},
    {"SCM_RIGHTS", op_pass, 1, false},   {"splice", op_splice, 1, true},
    {"close", NULL, 0, false},           {"accept", NULL, 0, false},
    {"epoll set", NULL, 0, false},       {"honest trip", NULL, 0, false},
};
enum { CLOSE = COUNT(operations) - 4, ACCEPT, SET, TRIP };

/* An error that kernel TCP has for a connection whose other end may do anything. */
static bool is_fair(int error) {
    switch (error) {
        case EAGAIN: case ECONNRESET: case EPIPE: case ENOTCONN: case EINTR: case ETIMEDOUT: case EINVAL: case ENOBUFS:
        case EINPROGRESS: case ENOMEM: return true;
        default: return false;
    }
}

static void close_conn(struct worker *w, struct conn *conn) {
    begin(w->number, CLOSE, false, conn->generation);
    if (close(conn->fd)) fail("close: %m");
    done(w->number);
    conn->fd = -1;
}

static void take_conn(struct worker *w, struct conn *conn) {
    uint32_t generation = shared->generation;
    pthread_mutex_lock(&handing);
    bool got = handed_count > 0 && pick(&w->random, 2);
    if (got) *conn = handed[--handed_count];
    pthread_mutex_unlock(&handing);
    if (!got) {
        int how = (pick(&w->random, 2) ? SOCK_CLOEXEC : 0) | (pick(&w->random, 2) ? SOCK_NONBLOCK : 0);
        begin(w->number, ACCEPT, false, generation);
        int fd = accept4(hostile_listener, NULL, NULL, how);
        done(w->number);
        if (fd < 0) return;
        shared->connections++;
        *conn = (struct conn){fd, generation, 0};
        if (pick(&w->random, 3) == 0) {
            pthread_mutex_lock(&handing);
            if (handed_count < HANDED) {
                handed[handed_count] = (struct conn){dup(fd), generation, 0};
                if (handed[handed_count++].fd < 0) fail("dup: %m");
            }
            pthread_mutex_unlock(&handing);
        }
    }
    conn->left = 1 + pick(&w->random, pick(&w->random, 3) ? 60 : 600);
}

static int choose(struct worker *w) {
    static int sum;
    const char *often = getenv("HOSTILE_OFTEN");
    for (size_t i = 0; often && i < COUNT(operations); i++)
        if (pick(&w->random, 8) == 0 && !strcmp(operations[i].name, often)) return i;
    if (sum == 0)
        for (size_t i = 0; i < COUNT(operations); i++) sum += operations[i].weight;
    int at = pick(&w->random, sum), i = 0;
    while ((at -= operations[i].weight) >= 0) i++;
    return i;
}

static void *work(void *argument) {
    struct worker *w = argument;
    for (int i = 0; i < MINE; i++) w->mine[i].fd = -1;
    while (!shared->stop) {
        struct conn *conn = &w->mine[pick(&w->random, MINE)];
        if (conn->fd < 0) take_conn(w, conn);
        if (conn->fd < 0) {
            nap(500);
            continue;
        }
        int i = choose(w);
        bool waits = operations[i].can_wait && pick(&w->random, 40) == 0;
        /* Whether the socket blocks, another thread that has it may change. */
        begin(w->number, i, operations[i].can_wait, conn->generation);
        ssize_t n = operations[i].run(w, conn->fd, waits);
        int error = errno;
        done(w->number);
        if (n < 0 && !is_fair(error)) fail("%s fails: %s", operations[i].name, strerror(error));
        if (n > ROOM) fail("%s says %zd", operations[i].name, n);
        bool over = n < 0 && error != EAGAIN && error != EINTR && error != EINVAL;
        if (over) shared->errors++;
        if (--conn->left <= 0 || (over && pick(&w->random, 4) == 0) || conn->generation + 2 < shared->generation)
            close_conn(w, conn);
    }
    for (int i = 0; i < MINE; i++)
        if (w->mine[i].fd >= 0) close_conn(w, &w->mine[i]);
    return NULL;
}

/* An epoll set with honest connections, which are echoed, and hostile ones, from which is taken what comes. */
static void *watch(void *argument) {
    int *honest = argument, set = epoll_create1(EPOLL_CLOEXEC);
    uint64_t random = 0x9e3779b97f4a7c15u ^ honest[0];
    unsigned char *end = room();
    struct conn conns[WATCHED];
    for (int i = 0; i < HONEST - 1; i++) {
        struct epoll_event it = {.events = EPOLLIN | (i ? EPOLLET : 0), .data.u32 = 1000 + i};
        if (epoll_ctl(set, EPOLL_CTL_ADD, honest[i], &it)) fail("epoll_ctl: %m");
    }
    for (int i = 0; i < WATCHED; i++) conns[i].fd = -1;
    int open = HONEST - 1;
    while (open > 0) {
        for (int i = 0; i < WATCHED && !shared->stop; i++) {
            if (conns[i].fd >= 0) continue;
            int fd = accept4(hostile_listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
            if (fd < 0) break;
            conns[i] = (struct conn){fd, shared->generation, 1 + pick(&random, 2000)};
            uint32_t how = EPOLLIN | (pick(&random, 2) ? EPOLLET : 0) | (pick(&random, 4) ? 0 : EPOLLOUT);
            struct epoll_event it = {.events = how, .data.u32 = i};
            if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &it)) fail("epoll_ctl: %m");
            shared->connections++;
        }
        struct epoll_event got[8];
        begin(BEAT_SET, SET, false, 0);
        int n = epoll_wait(set, got, 8, 20);
        for (int i = 0; i < n; i++) {
            uint32_t at = got[i].data.u32;
            int fd = at >= 1000 ? honest[at - 1000] : conns[at].fd;
            /* Closed here, but a forked child still has it. */
            if (fd < 0) continue;
            for (;;) {
                ssize_t length = recv(fd, end - 4096, 4096, MSG_DONTWAIT);
                if (at >= 1000) {
                    if (length < 0 && errno != EAGAIN) fail("an honest connection fails: %m");
                    if (length == 0) {
                        if (!shared->stop) fail("an honest connection ends");
                        epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL);
                        open--;
                    }
                    if (length <= 0) break;
                    ssize_t sent = send(fd, end - 4096, length, MSG_NOSIGNAL);
                    if (sent != length) fail("an echo to an honest peer: %zd of %zd, %m", sent, length);
                } else {
                    int error = errno;
                    if (length < 0 && !is_fair(error)) fail("recv in a set fails: %s", strerror(error));
                    if (length > 0) send(fd, end - 4096, length, MSG_NOSIGNAL | MSG_DONTWAIT);
                    bool over = length == 0 || (length < 0 && error != EAGAIN);
                    if (over && length) shared->errors++;
                    if (over || --conns[at].left <= 0) {
                        close(fd);
                        conns[at].fd = -1;
                        break;
                    }
                    /* A liar's data has no end. */
                    if (length < 0 || pick(&random, 8) == 0) break;
                }
            }
        }
        done(BEAT_SET);
        if (n < 0 && errno != EINTR) fail("epoll_wait: %m");
        for (int i = 0; i < WATCHED; i++)
            if (conns[i].fd >= 0 && (conns[i].generation + 2 < shared->generation || shared->stop)) {
                close(conns[i].fd);
                conns[i].fd = -1;
            }
    }
    return NULL;
}

static void *echo(void *argument) {
    int fd = *(int *)argument;
    unsigned char *end = room();
    for (;;) {
        ssize_t length = recv(fd, end - 8192, 8192, 0);
        if (length < 0 && errno == EINTR) continue;
        if (length == 0 && shared->stop) return NULL;
        if (length <= 0) fail("an honest connection ends: %zd, %m", length);
        begin(BEAT_ECHO, TRIP, false, 0);
        if (send(fd, end - 8192, length, MSG_NOSIGNAL) != length) fail("an echo to an honest peer: %m");
        done(BEAT_ECHO);
    }
}

/* The System V segments and memory of the broker that this process has: where each begins and ends. */
static int segments(uintptr_t (*found)[2], int most) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    int count = 0;
    while (maps && count < most && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        bool ours = strstr(line, "/SYSV00000000") || strstr(line, "/memfd:underpass");
        if (ours && sscanf(line, "%lx-%lx", &from, &to) == 2)
            found[count][0] = from, found[count++][1] = to;
    }
    if (maps) fclose(maps);
    return count;
}

/* Puts pages that cannot be touched beside each segment, and takes those away that are beside none any more. */
static void guard(void) {
    static uintptr_t guards[MOST_GUARDS];
    static int count;
    uintptr_t found[256][2];
    int n = segments(found, 256);
    for (int i = 0; i < n; i++)
        for (int after = 0; after < 2 && count < MOST_GUARDS; after++) {
            uintptr_t at = after ? found[i][1] : found[i][0] - PAGE;
            int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
            if (mmap((void *)at, PAGE, PROT_NONE, flags, -1, 0) != MAP_FAILED) guards[count++] = at;
        }
    for (int g = 0; g < count; g++) {
        bool needed = false;
        for (int i = 0; i < n; i++) needed |= guards[g] + PAGE == found[i][0] || guards[g] == found[i][1];
        if (!needed) {
            munmap((void *)guards[g], PAGE);
            guards[g--] = guards[--count];
        }
    }
}

static void nothing(int signal) { (void)signal; }

/* Listens at a port of the kernel's choice, and says which. */
static int listen_anywhere(_Atomic int *port, int how) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | how, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    if (bind(fd, (struct sockaddr *)&address, length) || listen(fd, 128)) fail("listen: %m");
    if (getsockname(fd, (struct sockaddr *)&address, &length)) fail("getsockname: %m");
    *port = ntohs(address.sin_port);
    return fd;
}

static void victim(uint64_t seed) {
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = nothing}, NULL);
    file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    hostile_listener = listen_anywhere(&shared->hostile_port, SOCK_NONBLOCK);
    honest_listener = listen_anywhere(&shared->honest_port, 0);
    shared->ready = 1;
    static int honest[HONEST];
    for (int i = 0; i < HONEST; i++)
        if ((honest[i] = accept4(honest_listener, NULL, NULL, SOCK_CLOEXEC)) < 0) fail("accept: %m");
    static struct worker workers[WORKERS];
    pthread_t set, blocking;
    pthread_create(&set, NULL, watch, honest);
    pthread_create(&blocking, NULL, echo, &honest[HONEST - 1]);
    for (int i = 0; i < WORKERS; i++) {
        workers[i] = (struct worker){.number = i, .random = seed * 1000 + i + 1, .end = room()};
        pthread_create(&threads[i], NULL, work, &workers[i]);
    }
    shared->ready = 2;
    uint64_t random = seed + 77;
    while (!shared->stop) {
        guard();
        nap(2000 + pick(&random, 20000));
        if (pick(&random, 4) == 0) pthread_kill(threads[pick(&random, WORKERS)], SIGUSR1);
    }
    for (int i = 0; i < WORKERS; i++) pthread_join(threads[i], NULL);
    pthread_join(set, NULL), pthread_join(blocking, NULL);
    exit(0);
}

/* ---- The honest peer. ---- */

static int connect_to(int port, int how) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address)) {
        close(fd);
        return -1;
    }
    if (how) fcntl(fd, F_SETFL, how);
    return fd;
}

static void *play(void *argument) {
    int number = (int)(intptr_t)argument, fd = connect_to(shared->honest_port, 0);
    uint64_t random = number + 12345;
    unsigned char *end = room(), *back = room();
    if (fd < 0) fail("connect: %m");
    while (!shared->stop) {
        uint32_t n = 1 + pick(&random, pick(&random, 4) ? 100 : 4000);
        for (uint32_t i = 0; i < n; i++) end[(int)i - (int)n] = pick(&random, 256);
        begin(BEAT_HONEST + number, TRIP, false, 0);
        if (send(fd, end - n, n, MSG_NOSIGNAL) != n) fail("an honest send: %m");
        ssize_t got = recv(fd, back - n, n, MSG_WAITALL);
        done(BEAT_HONEST + number);
        if (got != n) fail("an honest connection: %zd of %u, %m", got, n);
        if (memcmp(end - n, back - n, n)) fail("an honest connection has other bytes");
        shared->trips++;
        if (pick(&random, 16) == 0) nap(pick(&random, 3000));
    }
    close(fd);
    return NULL;
}

static void honest(void) {
    pthread_t players[HONEST];
    for (int i = 0; i < HONEST; i++) pthread_create(&players[i], NULL, play, (void *)(intptr_t)i);
    for (int i = 0; i < HONEST; i++) pthread_join(players[i], NULL);
    exit(0);
}

/* ---- The hostile peer. ---- */

/* The parts of crates/segment/src/channel.rs, words.rs and ring.rs that a liar has to know. */
static const char POOL_MARK[] = "loopPU"; /* how "UPpool.." lies in memory as a word */
enum { MARK_AT = 2, GROUPS_BYTES = 2 * 14 * 64 + 64, FLAGS = 128 };
enum { HEAD = 128 + 128, WORDS = 128 + 256, DIRECTION = 384 };

struct pool {
    unsigned char *base;
    size_t bytes, slot;
    uint32_t ring, slots;
};

static struct pool pools[MOST_POOLS];
static int pool_count;

/* The library may unmap a pool while the liar looks at it or overwrites it. It forgets all pools then, and looks for
 * them again. */
static __thread volatile sig_atomic_t touches_pools;
static sigjmp_buf after_fault;

static void pool_is_gone(int number) {
    if (touches_pools) siglongjmp(after_fault, 1);
    signal(number, SIG_DFL);
}

static void find_pools(void) {
    uintptr_t found[256][2];
    int n = segments(found, 256);
    touches_pools = 1;
    for (int i = 0; i < n && pool_count < MOST_POOLS; i++) {
        unsigned char *base = (void *)found[i][0];
        uint32_t shape[2];
        bool known = false;
        for (int p = 0; p < pool_count; p++) known |= pools[p].base == base;
        if (known || memcmp(base + MARK_AT, POOL_MARK, strlen(POOL_MARK))) continue;
        memcpy(shape, base + 8, sizeof shape);
        size_t slot = PAGE + 2 * (size_t)shape[0];
        if (shape[0] < 65536 || PAGE + shape[1] * slot > found[i][1] - found[i][0] + PAGE) continue;
        pools[pool_count++] = (struct pool){base, found[i][1] - found[i][0], slot, shape[0], shape[1]};
    }
    touches_pools = 0;
}

static uint64_t chosen(uint64_t *random, uint64_t old, uint64_t ring) {
    switch (pick(random, 16)) {
        case 0: return 0;
        case 1: return 1;
        case 2: return ~0ull;
        case 3: return old + 1;
        case 4: return old - 1;
        case 5: return old + 8;
        case 6: return old - 8;
        case 7: return old + ring;
        case 8: return old - ring;
        case 9: return old ^ 1ull << pick(random, 64);
        case 10: return 2 + pick(random, 20);
        case 11: return 1u << 31;
        case 12: return 1u << 30 | pick(random, 20);
        case 13: return 1ull << 63 | pick(random, 100);
        case 14: return pick(random, 5);
        default: return word(random);
    }
}

static uint64_t lying_header(uint64_t *random, uint64_t lap) {
    const uint64_t lengths[] = {0, 1, 7, 8, 9, 64, 32 << 10, (32 << 10) + 1, lap - 16, lap - 8, lap, lap + 8,
                                (1ull << 56) - 1, pick(random, 40000), word(random) >> 8};
    uint64_t kind = pick(random, 8) ? 1 + pick(random, 5) : pick(random, 256);
    return kind << 56 | lengths[pick(random, COUNT(lengths))];
}

/* Overwrites one word, sometimes only for a moment. */
static void overwrite(uint64_t *random, struct pool *pool, size_t at, uint64_t value, bool half) {
    at &= half ? ~3ull : ~7ull;
    if (at + 8 > pool->bytes) return;
    bool back = pick(random, 3) == 0;
    if (half) {
        _Atomic uint32_t *to = (void *)(pool->base + at);
        uint32_t old = atomic_exchange(to, (uint32_t)value);
        if (back) for (volatile int i = pick(random, 300); i > 0; i--) {}
        if (back) *to = old;
    } else {
        _Atomic uint64_t *to = (void *)(pool->base + at);
        uint64_t old = atomic_exchange(to, value);
        if (back) for (volatile int i = pick(random, 300); i > 0; i--) {}
        if (back) *to = old;
    }
}

static uint64_t lie(uint64_t *random, unsigned allowed) {
    struct pool *pool = &pools[pick(random, pool_count)];
    size_t slot = PAGE + pick(random, pick(random, 2) ? 4 : pool->slots) % pool->slots * pool->slot;
    unsigned way = pick(random, 2);
    size_t control = slot + way * DIRECTION, ring = slot + PAGE + way * (size_t)pool->ring;
    uint64_t head, old;
    unsigned kind;
    do kind = pick(random, 9);
    while (!(allowed >> kind & 1));
    switch (kind) {
        case 0: /* anything anywhere */
            overwrite(random, pool, pick(random, pool->bytes), word(random), false);
            return 1;
        case 1: { /* a flag of the reader */
            size_t at = control + FLAGS + 4 * pick(random, 10);
            overwrite(random, pool, at, chosen(random, *(_Atomic uint32_t *)(pool->base + at), 1), true);
            return 1;
        }
        case 2: { /* the head and the doorbells taken */
            size_t at = control + HEAD + 8 * pick(random, 2);
            overwrite(random, pool, at, chosen(random, *(_Atomic uint64_t *)(pool->base + at), pool->ring), false);
            return 1;
        }
        case 3: { /* what the sender says beside the ring */
            size_t at = control + WORDS + 4 * pick(random, 6);
            overwrite(random, pool, at, chosen(random, *(_Atomic uint32_t *)(pool->base + at), 1), true);
            return 1;
        }
        case 4: case 5: /* a header where the reader looks, or near it */
            memcpy(&head, pool->base + control + HEAD, sizeof head);
            head = (head + (pick(random, 2) ? 0 : 8 * pick(random, 64))) & (pool->ring - 8);
            overwrite(random, pool, ring + head, lying_header(random, pool->ring - head), false);
            if (pick(random, 2) == 0)
                overwrite(random, pool, ring + ((head + 8) & (pool->ring - 8)), chosen(random, head, 8), false);
            return 2;
        case 6: { /* the pool's first page: its shape, the groups */
            size_t at = pick(random, 8) ? 64 + 4 * pick(random, GROUPS_BYTES / 4) : 4 * pick(random, 16);
            old = *(_Atomic uint32_t *)(pool->base + at);
            overwrite(random, pool, at, chosen(random, old, 1), true);
            return 1;
        }
        case 7: { /* a reader that has shut down both ways, and never comes out of a receive or out of leaving */
            *(_Atomic uint32_t *)(pool->base + control + FLAGS + 8) = 2;
            *(_Atomic uint32_t *)(pool->base + control + FLAGS + 16) = 1 + pick(random, 2);
            return 2;
        }
        default: { /* many at once: a ring, the control words, or both of another slot */
            size_t from = pick(random, 3) ? ring + 8 * pick(random, pool->ring / 8) : slot + 8 * pick(random, 112);
            size_t n = 1 + pick(random, 600);
            uint64_t value = chosen(random, word(random), 8);
            for (size_t i = 0; i < n; i++)
                if (from + 8 * i + 8 <= pool->bytes) *(_Atomic uint64_t *)(pool->base + from + 8 * i) = value;
            return n;
        }
    }
}

/* Honest traffic, if it can be had. */
static void *talk(void *argument) {
    uint64_t random = (uintptr_t)argument;
    int fds[TALKS];
    unsigned char *end = room();
    for (int i = 0; i < TALKS; i++) fds[i] = -1;
    for (;;) {
        int *fd = &fds[pick(&random, TALKS)];
        if (*fd < 0 && (*fd = connect_to(shared->hostile_port, O_RDWR | O_NONBLOCK)) < 0) {
            nap(1000);
            continue;
        }
        size_t n = 1 + pick(&random, pick(&random, 3) ? 200 : 60000);
        ssize_t done = pick(&random, 2) ? send(*fd, end - n, n, MSG_NOSIGNAL) : recv(*fd, end - n, n, 0);
        bool over = done < 0 ? errno != EAGAIN : done == 0;
        if (pick(&random, 30) == 0) {
            struct pollfd it = {*fd, POLLIN, 0};
            poll(&it, 1, 1);
        }
        if (over || pick(&random, 500) == 0) {
            close(*fd);
            *fd = -1;
        }
    }
    return NULL;
}

static void peer(uint64_t seed, unsigned milliseconds) {
    uint64_t random = seed * 0x9e3779b97f4a7c15u + 1;
    volatile uint64_t written = 0;
    const char *only = getenv("HOSTILE_ONLY");
    unsigned allowed = only ? strtoul(only, NULL, 0) : ~0u;
    for (int i = 0; i < TALKERS; i++) {
        pthread_t talker;
        pthread_create(&talker, NULL, talk, (void *)(uintptr_t)(word(&random) | 1));
    }
    struct sigaction action = {.sa_handler = pool_is_gone};
    sigaction(SIGSEGV, &action, NULL), sigaction(SIGBUS, &action, NULL);
    long until = now() + milliseconds;
    volatile long look = 0;
    if (sigsetjmp(after_fault, 1)) touches_pools = 0, pool_count = 0, look = 0;
    while (now() < until) {
        if (allowed & 511 && now() >= look) find_pools(), look = now() + 20;
        static const long pauses[] = {0, 0, 20, 200, 2000};
        long rest = pauses[pick(&random, COUNT(pauses))], change = now() + 30;
        if (pool_count == 0) nap(1000);
        while (pool_count > 0 && now() < change) {
            touches_pools = 1;
            for (int i = 0; i < (rest ? 1 + (int)pick(&random, 4) : 5000); i++) written += lie(&random, allowed);
            touches_pools = 0;
            if (rest) nap(rest);
        }
        shared->overwritten += written;
        written = 0;
    }
    if (pick(&random, 3) == 0)
        for (int fd = 3; fd < 64; fd++) {
            int type;
            socklen_t length = sizeof type;
            if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &length) == 0) close(fd);
        }
    _exit(0);
}

/* ---- Who watches. ---- */

static pid_t start(const char *role, uint64_t seed, unsigned amount, int memory) {
    pid_t child = fork();
    if (child) return child;
    char words[2][32];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(words[0], sizeof words[0], "%llu", (unsigned long long)seed);
    snprintf(words[1], sizeof words[1], "%u", amount);
    fcntl(memory, F_SETFD, 0);
    if (memory != 3) dup2(memory, 3);
    execl("/proc/self/exe", "hostile", words[0], words[1], role, NULL);
    _exit(127);
}

static void look_at_hearts(void) {
    for (int i = 0; i < BEATS; i++) {
        struct beat *beat = &shared->beats[i];
        long since = beat->since, gone = shared->gone_at[beat->generation % GENERATIONS];
        if (since == 0) continue;
        /* A peer that lives may let a call wait. */
        if (beat->waits && gone == 0) continue;
        if (beat->waits && gone > since) since = gone;
        if (now() - since > LIMIT_MS && beat->since) fail("%s of heart %d hangs", operations[beat->name].name, i);
    }
}

static void see_alive(pid_t process, const char *what) {
    int status;
    if (waitpid(process, &status, WNOHANG) != process) return;
    if (shared->stop && WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    fail("the %s has ended: status %x", what, status);
}

/* Waits for it to end well. */
static void finish(pid_t process, const char *what) {
    int status;
    for (long until = now() + 2 * LIMIT_MS; waitpid(process, &status, WNOHANG) != process; nap(2000)) {
        look_at_hearts();
        if (now() > until) fail("the %s does not end", what);
    }
    if (status) fail("the %s ends with status %x", what, status);
}

int main(int count, char **words) {
    if (count < 3) {
        fprintf(stderr, "usage: hostile SEED SECONDS\n");
        return 2;
    }
    uint64_t seed = strtoull(words[1], NULL, 0);
    unsigned amount = strtoul(words[2], NULL, 0);
    signal(SIGPIPE, SIG_IGN);
    const char *role = count > 3 ? words[3] : NULL;
    int memory = role ? 3 : memfd_create("hostile", MFD_CLOEXEC);
    if (!role && ftruncate(memory, sizeof *shared)) return 2;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (shared == MAP_FAILED) return 2;
    if (role) {
        close(memory);
        if (!strcmp(role, "victim")) victim(seed);
        if (!strcmp(role, "honest")) honest();
        peer(seed, amount);
    }
    long until = now() + 1000l * amount;
    uint64_t random = seed * 0x9e3779b97f4a7c15u + 1;
    pid_t the_victim = start("victim", seed, 0, memory);
    while (shared->ready < 1) see_alive(the_victim, "victim"), nap(1000);
    pid_t the_honest = start("honest", seed, 0, memory);
    while (shared->ready < 2) see_alive(the_victim, "victim"), see_alive(the_honest, "honest peer"), nap(1000);
    while (now() < until) {
        uint32_t generation = shared->generation + 1;
        unsigned milliseconds = 50 + pick(&random, 600);
        shared->gone_at[generation % GENERATIONS] = 0;
        shared->generation = generation;
        pid_t process = start("peer", seed * 1000003 + generation, milliseconds, memory);
        bool kills = pick(&random, 3) == 0;
        long kill_at = now() + (kills ? milliseconds * (long)pick(&random, 100) / 100 : milliseconds + 300);
        int status;
        while (waitpid(process, &status, WNOHANG) != process) {
            if (now() > kill_at) kill(process, SIGKILL);
            look_at_hearts();
            see_alive(the_victim, "victim"), see_alive(the_honest, "honest peer");
            nap(2000);
        }
        shared->gone_at[generation % GENERATIONS] = now();
        if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL)
            fail("a liar crashes by its own lies: status %x", status);
        if (shared->failed) return 1;
    }
    shared->stop = true;
    finish(the_honest, "honest peer");
    finish(the_victim, "victim");
    printf("%llu words overwritten, %llu calls on %llu connections, %llu errors, %llu honest round trips\n",
           (unsigned long long)shared->overwritten, (unsigned long long)shared->calls,
           (unsigned long long)shared->connections, (unsigned long long)shared->errors,
           (unsigned long long)shared->trips);
    return shared->failed || shared->trips == 0 ? 1 : 0;
}
