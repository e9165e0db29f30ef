// A differential fuzzer: fuzz SEED STEPS [SKIP...] makes up to three TCP connections between two processes and carries
// out a random script on them. What it prints on kernel TCP depends on SEED and STEPS alone, so any other stack must
// print the same. Steps named by SKIP are planned, but not carried out; that serves to shorten a script.
//
// A driver without sockets keeps a model of every connection and tells the two sides A and B what to do, one operation
// at a time. Before a side acts, it waits until all that the other one did has come to it (`settle`).
//
// Marks in the output: `id=bits` is an event of a level-triggered registration, and must agree. `id~bits` is one of an
// edge-triggered registration: a further one does no harm, as long as its bits are true, but none of data or an end may be
// missing.
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <linux/sockios.h>

enum { SLOTS = 3, DUPS = 3, SETS = 3, LEVEL = 0, EDGE = 1, NEST = 2, NESTED_ID = 99, PARTS = 4 };
enum { SMALL = 20000, LARGE = 300000, CHUNK = 65536, LATE_MS = 3000, HANG_MS = 12000 };

// What differs and is known can be left out of the scripts, by its bit of AVOID at build time: empty receives and errors
// in recvmmsg; nested sets; what an end does that has shut down both halves; a second question to the kernel within
// microseconds; MSG_PEEK with MSG_WAITALL.
#ifndef AVOID
#define AVOID 0
#endif
#define AVOIDED(what) ((AVOID) >> (what)&1)
enum { EMPTY, NESTING, TO_DEAF, ASKING, PEEK_ALL };

// What a side can be told to do.
enum { LISTEN, CONNECT, ACCEPT, SEND, RECEIVE, POLL, CONTROL, EPOLL, INQUIRE, OPTION, BLOCKING, SHUTDOWN, CLOSE, DUP, NAME,
       OUTQ, SETTLE, WRITABLE, FILL, DRAIN, QUIT };
enum { WRITE, WRITEV, SENDC, SENDTO, SENDMSG, SENDMMSG, SENDFILE, PWRITEV2, SPLICE_IN, SEND_ALL };
enum { READ, READV, RECV, RECVFROM, RECVMSG, RECVMMSG, PREADV2, SPLICE_OUT, RECV_ALL };
enum { BY_POLL, BY_PPOLL, BY_SELECT, BY_PSELECT };
enum { HERE, IN_THREAD, IN_CHILD };

struct command {
    int what, slot, k, call, flags, via, a, b;
    uint32_t stream;   // which bytes are sent or expected
    uint64_t position; // of the first one
    size_t length;
    int shape; // how `length` is divided among buffers
};

struct reply {
    long value;
    int error;
    char text[400];
};

// ---------------------------------------------------------------------------------------------------- both roles

static uint8_t byte_at(uint32_t stream, uint64_t position)
{
    uint64_t x = (position + 1) * 0x9E3779B97F4A7C15u ^ (stream + 7) * 0xD1B54A32D192ED03u;
    return (uint8_t)(x >> 56 ^ x >> 31);
}

static double now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void die(const char *what)
{
    perror(what);
    exit(2);
}

static bool whole(ssize_t (*call)(int, void *, size_t), int fd, void *at, size_t size)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = call(fd, (char *)at + done, size - done);
        if (n <= 0)
            return false;
        done += (size_t)n;
    }
    return true;
}

static ssize_t write_any(int fd, void *at, size_t size)
{
    return write(fd, at, size);
}

// ---------------------------------------------------------------------------------------------------- one side

static int fds[SLOTS][DUPS], sets[SETS], listener, file;
static uint32_t kinds[SETS][SLOTS][DUPS]; // the events of each registration
static uint8_t bytes[LARGE + 64];
static volatile sig_atomic_t pipes_broken;

static void on_sigpipe(int number)
{
    (void)number;
    pipes_broken++;
}

static void say(struct reply *r, const char *format, ...)
{
    size_t used = strlen(r->text);
    va_list list;
    va_start(list, format);
    vsnprintf(r->text + used, sizeof r->text - used, format, list);
    va_end(list);
}

static const char *bits(int events)
{
    static const struct { int bit; char name; } names[] = {
        {POLLIN, 'i'}, {POLLPRI, 'p'}, {POLLOUT, 'o'}, {POLLERR, 'e'}, {POLLHUP, 'h'}, {POLLRDHUP, 'r'}, {POLLNVAL, 'n'},
        {POLLRDNORM, 'I'}, {POLLWRNORM, 'O'},
    };
    static _Thread_local char texts[4][16];
    static _Thread_local int turn;
    char *text = texts[turn++ % 4], *end = text;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (events & names[i].bit)
            *end++ = names[i].name;
    if (end == text)
        *end++ = '-';
    *end = 0;
    return text;
}

// Divides `length` bytes at `base` among PARTS buffers, some of them empty.
static int divide(struct iovec *parts, uint8_t *base, size_t length, int shape)
{
    size_t done = 0;
    for (int i = 0; i < PARTS; i++) {
        size_t n = i == PARTS - 1 ? length - done : (shape >> (i * 3) & 7) * length / 16;
        if (n > length - done)
            n = length - done;
        parts[i] = (struct iovec){base + done, n};
        done += n;
    }
    return PARTS;
}

static void do_send(const struct command *c, struct reply *r)
{
    int fd = fds[c->slot][c->k], before = pipes_broken;
    struct iovec parts[PARTS];
    for (size_t i = 0; i < c->length; i++)
        bytes[i] = byte_at(c->stream, c->position + i);
    int count = divide(parts, bytes, c->length, c->shape);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
    errno = 0;
    switch (c->call) {
    case WRITE: r->value = write(fd, bytes, c->length); break;
    case WRITEV: r->value = writev(fd, parts, count); break;
    case PWRITEV2: r->value = pwritev2(fd, parts, count, -1, 0); break;
    case SENDC: r->value = send(fd, bytes, c->length, c->flags); break;
    case SENDTO: r->value = sendto(fd, bytes, c->length, c->flags, NULL, 0); break;
    case SENDMSG: r->value = sendmsg(fd, &message, c->flags); break;
    case SENDMMSG: {
        struct mmsghdr many[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}},
                                  {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = (size_t)count - 2}}};
        int got = sendmmsg(fd, many, 2, c->flags);
        r->value = got;
        r->error = errno;
        if (got >= 0) {
            say(r, " messages=%d", got);
            r->value = 0;
            for (int i = 0; i < got; i++)
                r->value += many[i].msg_len;
        }
        errno = r->error;
        break;
    }
    case SENDFILE: {
        // At a new place each time: the kernel does not copy, so what has been sent must not be written over.
        off_t begin = lseek(file, 0, SEEK_END), from = begin;
        if (pwrite(file, bytes, c->length, from) != (ssize_t)c->length)
            die("file");
        errno = 0;
        r->value = sendfile(fd, file, &from, c->length + 50); // more than the file has
        say(r, " moved=%ld", (long)(from - begin));
        break;
    }
    case SPLICE_IN: {
        int ends[2];
        if (pipe(ends) || write(ends[1], bytes, c->length) != (ssize_t)c->length)
            die("pipe");
        close(ends[1]);
        size_t done = 0;
        ssize_t n = 0;
        errno = 0;
        while (done < c->length && (n = splice(ends[0], NULL, fd, NULL, c->length - done, 0)) > 0)
            done += (size_t)n;
        r->value = done ? (long)done : n;
        r->error = errno;
        close(ends[0]);
        errno = r->error;
        break;
    }
    case SEND_ALL: {
        size_t done = 0;
        ssize_t n = 0;
        while (done < c->length) {
            n = send(fd, bytes + done, c->length - done < (size_t)c->a ? c->length - done : (size_t)c->a, c->flags);
            if (n > 0)
                done += (size_t)n;
            else if (n < 0 && errno == EAGAIN)
                poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, HANG_MS);
            else
                break;
        }
        r->value = done == c->length ? (long)done : n;
        if (done == c->length)
            errno = 0;
        break;
    }
    }
    r->error = r->value < 0 ? errno : 0;
    if (pipes_broken != before)
        say(r, " SIGPIPE");
}

// Says whether `got` bytes are those of the stream.
static void judge(const struct command *c, struct reply *r, const uint8_t *from, size_t got)
{
    for (size_t i = 0; i < got; i++)
        if (from[i] != byte_at(c->stream, c->position + i)) {
            say(r, " WRONG at %zu of %zu (position %llu)", i, got, (unsigned long long)c->position);
            return;
        }
    say(r, " right");
}

static void do_receive(const struct command *c, struct reply *r)
{
    int fd = fds[c->slot][c->k];
    struct iovec parts[PARTS];
    struct sockaddr_storage address;
    socklen_t address_length = sizeof address;
    memset(bytes, 0xA5, c->length + 64);
    int count = divide(parts, bytes, c->length, c->shape);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count, .msg_name = &address,
                             .msg_namelen = sizeof address};
    errno = 0;
    switch (c->call) {
    case READ: r->value = read(fd, bytes, c->length); break;
    case READV: r->value = readv(fd, parts, count); break;
    case PREADV2: r->value = preadv2(fd, parts, count, -1, c->flags & MSG_DONTWAIT ? RWF_NOWAIT : 0); break;
    case RECV: r->value = recv(fd, bytes, c->length, c->flags); break;
    case RECVFROM:
        r->value = recvfrom(fd, bytes, c->length, c->flags, (struct sockaddr *)&address, &address_length);
        if (r->value >= 0)
            say(r, " address=%u", address_length);
        break;
    case RECVMSG:
        r->value = recvmsg(fd, &message, c->flags);
        if (r->value >= 0)
            say(r, " flags=%x address=%u", (unsigned)message.msg_flags, message.msg_namelen);
        break;
    case RECVMMSG: {
        struct mmsghdr many[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}},
                                  {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = (size_t)count - 2}}};
        int got = recvmmsg(fd, many, 2, c->flags, NULL);
        r->value = got;
        r->error = errno;
        if (got >= 0) {
            // The second message may begin behind a gap, where the first one was not filled.
            size_t first = got > 0 ? many[0].msg_len : 0, second = got > 1 ? many[1].msg_len : 0;
            say(r, " messages=%d %zu %zu", got, first, second);
            r->value = (long)(first + second);
            if (second && !(c->flags & MSG_PEEK))
                memmove(bytes + first, parts[2].iov_base, second);
            else if (second)
                r->value = (long)first; // the same bytes again
        }
        errno = r->error;
        break;
    }
    case SPLICE_OUT: {
        int ends[2];
        if (pipe(ends))
            die("pipe");
        size_t done = 0;
        ssize_t n = 0;
        errno = 0;
        while (done < c->length && (n = splice(fd, NULL, ends[1], NULL, c->length - done, SPLICE_F_NONBLOCK)) > 0) {
            if (read(ends[0], bytes + done, (size_t)n) != n)
                die("read of pipe");
            done += (size_t)n;
        }
        r->value = done ? (long)done : n;
        r->error = errno;
        close(ends[0]);
        close(ends[1]);
        errno = r->error;
        break;
    }
    case RECV_ALL: {
        size_t done = 0;
        ssize_t n = 0;
        while (done < c->length) {
            n = recv(fd, bytes + done, c->length - done < (size_t)c->a ? c->length - done : (size_t)c->a, c->flags);
            if (n > 0)
                done += (size_t)n;
            else if (n < 0 && errno == EAGAIN)
                poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, HANG_MS);
            else
                break;
        }
        r->value = done == c->length ? (long)done : n;
        if (done != c->length)
            say(r, " after %zu", done);
        break;
    }
    }
    r->error = r->value < 0 ? errno : 0;
    if (r->value > 0 && !(c->flags & (MSG_TRUNC | MSG_OOB)))
        judge(c, r, bytes, (size_t)r->value);
    // What was not received must be untouched.
    bool none = r->value <= 0 || (c->flags & MSG_TRUNC && c->call != READ && c->call != READV && c->call != PREADV2);
    if (c->call != RECVMMSG && c->call != RECV_ALL)
        for (size_t i = none ? 0 : (size_t)r->value; i < c->length + 64; i++)
            if (bytes[i] != 0xA5) {
                say(r, " TOUCHED at %zu", i);
                break;
            }
    if (c->flags & MSG_OOB && r->value == 1)
        say(r, " urgent=%c", bytes[0]);
}

// Asks for the readiness of one descriptor, or of all.
static void do_poll(const struct command *c, struct reply *r)
{
    if (AVOIDED(ASKING))
        usleep(100);
    if (c->call == BY_POLL || c->call == BY_PPOLL) {
        struct pollfd all[SLOTS * DUPS + 1];
        int count = 0;
        for (int s = 0; s < SLOTS; s++)
            for (int k = 0; k < DUPS; k++)
                if (c->slot < 0 || (s == c->slot && k == c->k))
                    all[count++] = (struct pollfd){.fd = fds[s][k], .events = (short)(c->slot < 0 ? c->a >> k : c->a)};
        if (c->slot < 0 && !AVOIDED(NESTING))
            all[count++] = (struct pollfd){.fd = sets[c->b], .events = POLLIN};
        errno = 0;
        if (c->call == BY_POLL)
            r->value = poll(all, (nfds_t)count, c->flags);
        else
            r->value = ppoll(all, (nfds_t)count, &(struct timespec){c->flags / 1000, c->flags % 1000 * 1000000}, NULL);
        r->error = r->value < 0 ? errno : 0;
        for (int i = 0; i < count; i++)
            if (all[i].revents)
                say(r, " %d=%s", i, bits(all[i].revents));
        return;
    }
    fd_set in, out, except;
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&except);
    int top = 0;
    for (int s = 0; s < SLOTS; s++)
        for (int k = 0; k < DUPS; k++) {
            int fd = fds[s][k];
            if (fd < 0 || (c->slot >= 0 && (s != c->slot || k != c->k)))
                continue;
            if (c->a & POLLIN)
                FD_SET(fd, &in);
            if (c->a & POLLOUT)
                FD_SET(fd, &out);
            if (c->a & POLLPRI)
                FD_SET(fd, &except);
            top = fd >= top ? fd + 1 : top;
        }
    errno = 0;
    if (c->call == BY_SELECT)
        r->value = select(top, &in, &out, &except, &(struct timeval){c->flags / 1000, c->flags % 1000 * 1000});
    else
        r->value = pselect(top, &in, &out, &except, &(struct timespec){c->flags / 1000, c->flags % 1000 * 1000000}, NULL);
    r->error = r->value < 0 ? errno : 0;
    for (int s = 0; s < SLOTS && r->value > 0; s++)
        for (int k = 0; k < DUPS; k++) {
            int fd = fds[s][k];
            if (fd >= 0 && (FD_ISSET(fd, &in) || FD_ISSET(fd, &out) || FD_ISSET(fd, &except)))
                say(r, " %d.%d=%s%s%s", s, k, FD_ISSET(fd, &in) ? "i" : "", FD_ISSET(fd, &out) ? "o" : "",
                    FD_ISSET(fd, &except) ? "p" : "");
        }
}

static int by_value(const void *a, const void *b)
{
    const struct epoll_event *x = a, *y = b;
    return (x->data.u64 > y->data.u64) - (x->data.u64 < y->data.u64);
}

static void do_epoll(const struct command *c, struct reply *r)
{
    struct epoll_event events[32];
    if (c->b) { // only asks whether anything is ready; forgets edges
        if (c->a == EDGE)
            epoll_wait(sets[c->a], events, 32, 0);
        else if (AVOIDED(NESTING))
            r->value = epoll_wait(sets[c->a], events, 32, 0) > 0;
        else
            r->value = poll(&(struct pollfd){.fd = sets[c->a], .events = POLLIN}, 1, 0);
        return;
    }
    if (AVOIDED(ASKING))
        usleep(100);
    errno = 0;
    int count = c->call ? epoll_pwait(sets[c->a], events, 32, c->flags, NULL) : epoll_wait(sets[c->a], events, 32, c->flags);
    r->error = count < 0 ? errno : 0;
    r->value = c->a == EDGE && count > 0 ? 0 : count;
    if (count > 0)
        qsort(events, (size_t)count, sizeof *events, by_value);
    for (int i = 0; i < count; i++) {
        int id = (int)events[i].data.u64, told = (int)events[i].events;
        say(r, " %d%s%s", id, c->a == EDGE ? "~" : "=", bits(told));
        if (id == NESTED_ID || fds[id / DUPS][id % DUPS] < 0)
            continue;
        struct pollfd truth = {.fd = fds[id / DUPS][id % DUPS], .events = (short)told};
        poll(&truth, 1, 0);
        if (told & ~truth.revents)
            say(r, "(FALSE, in truth %s)", bits(truth.revents));
    }
}

static int tcp_state(int fd)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) ? -errno : info.tcpi_state;
}

// Waits until `length` bytes have come and the connection is in the state `a`; `call` is how to look.
static void do_settle(const struct command *c, struct reply *r)
{
    int fd = fds[c->slot][c->k], have = -1, state = -1;
    double end = now_ms() + LATE_MS;
    if (c->length && c->call == 1)
        poll(&(struct pollfd){.fd = fd, .events = POLLIN}, 1, LATE_MS);
    for (int turn = 0; now_ms() < end; turn++) {
        if (c->call == 2 && turn % 16 < 8)
            have = c->length ? (int)recv(fd, bytes, c->length, MSG_PEEK | MSG_DONTWAIT) : 0;
        else if (ioctl(fd, FIONREAD, &have))
            have = -errno;
        state = tcp_state(fd);
        if (have >= (int)c->length && state == c->a)
            return;
        if (turn > 4)
            usleep(turn < 100 ? 30 : 1000);
    }
    say(r, " LATE: %d of %zu bytes, state %d of %d", have, c->length, state, c->a);
}

static void do_option(const struct command *c, struct reply *r)
{
    int fd = fds[c->slot][c->k], value = c->b;
    struct timeval t = {0, c->b * 1000};
    struct linger linger = {1, 0};
    socklen_t length = sizeof value;
    errno = 0;
    switch (c->a) {
    case 0: r->value = getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &length); break;
    case 1: r->value = getsockopt(fd, SOL_SOCKET, SO_TYPE, &value, &length); break;
    case 2: r->value = getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, &length); break;
    case 3: r->value = getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &length); break;
    case 4: r->value = 0, value = tcp_state(fd); break;
    case 5:
    case 6:
        length = sizeof t;
        r->value = getsockopt(fd, SOL_SOCKET, c->a == 5 ? SO_RCVTIMEO : SO_SNDTIMEO, &t, &length);
        value = (int)t.tv_usec;
        break;
    case 7: r->value = getsockopt(fd, IPPROTO_TCP, TCP_CORK, &value, &length); break;
    case 8: r->value = setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, sizeof value); break;
    case 9: r->value = setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t); break;
    case 10: r->value = setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value); break;
    case 11: r->value = setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof linger); break;
    case 12: r->value = 0, value = fcntl(fd, F_GETFL) & O_NONBLOCK; break;
    }
    r->error = r->value ? errno : 0;
    if (c->a <= 7 || c->a == 12)
        say(r, " is %d", value);
}

// A number that no connection has: one that was duplicated over another keeps that one's number.
static int free_number(int from)
{
    for (int i = 0; i < SLOTS * DUPS; i++)
        if (fds[i / DUPS][i % DUPS] == from)
            return free_number(from + 1);
    return from;
}

static void do_dup(const struct command *c, struct reply *r)
{
    int from = fds[c->slot][c->k], to = c->a < 0 ? -1 : fds[c->b][c->a], made = -1;
    int number = to < 0 ? free_number(60 + c->slot * DUPS + c->shape) : to;
    errno = 0;
    switch (c->call) {
    case 0: made = dup(from); break;
    case 1: made = fcntl(from, F_DUPFD_CLOEXEC, 3); break;
    case 2: made = dup2(from, number); break;
    default: made = dup3(from, number, O_CLOEXEC); break;
    }
    r->value = made < 0 ? -1 : 0;
    r->error = made < 0 ? errno : 0;
    if (to >= 0) {
        fds[c->b][c->a] = -1;
        for (int e = 0; e < SETS; e++)
            kinds[e][c->b][c->a] = 0;
    }
    fds[c->slot][c->shape] = made;
}

// Sends until the kernel takes no more, and not after a while either.
static void do_fill(const struct command *c, struct reply *r)
{
    int fd = fds[c->slot][c->k];
    uint64_t sent = 0;
    for (int refused = 0; refused < 3;) {
        for (size_t i = 0; i < CHUNK; i++)
            bytes[i] = byte_at(c->stream, c->position + sent + i);
        ssize_t n = send(fd, bytes, CHUNK, MSG_DONTWAIT);
        if (n > 0) {
            sent += (uint64_t)n;
            refused = 0;
        } else if (errno != EAGAIN) {
            r->error = errno;
            break;
        } else {
            refused++;
            usleep(15000);
        }
    }
    r->value = (long)sent;
}

static void do_drain(const struct command *c, struct reply *r)
{
    struct command at = *c;
    uint64_t got = 0;
    while (got < c->length) {
        ssize_t n = recv(fds[c->slot][c->k], bytes, c->length - got < (size_t)c->a ? c->length - got : (size_t)c->a, 0);
        if (n < 0 && errno == EAGAIN) {
            poll(&(struct pollfd){.fd = fds[c->slot][c->k], .events = POLLIN}, 1, HANG_MS);
            continue;
        }
        if (n <= 0) {
            r->error = n < 0 ? errno : 0;
            say(r, " ENDED early");
            break;
        }
        struct reply part = {0};
        at.position = c->position + got;
        judge(&at, &part, bytes, (size_t)n);
        if (strcmp(part.text, " right")) {
            say(r, "%s", part.text);
            break;
        }
        got += (uint64_t)n;
    }
    r->value = (long)got;
}

static void perform(const struct command *c, struct reply *r)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = c->slot >= 0 ? fds[c->slot][c->k] : -1, value = 0;
    errno = 0;
    switch (c->what) {
    case LISTEN:
        listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4))
            die("listen");
        getsockname(listener, (struct sockaddr *)&address, &length);
        r->value = ntohs(address.sin_port);
        break;
    case CONNECT:
        address.sin_port = htons((uint16_t)c->a);
        fds[c->slot][0] = socket(AF_INET, SOCK_STREAM, 0);
        r->value = connect(fds[c->slot][0], (struct sockaddr *)&address, sizeof address);
        r->error = r->value ? errno : 0;
        break;
    case ACCEPT:
        fds[c->slot][0] = accept4(listener, NULL, NULL, c->flags);
        r->value = fds[c->slot][0] < 0 ? -1 : 0;
        r->error = r->value ? errno : 0;
        close(listener);
        break;
    case SEND: do_send(c, r); break;
    case RECEIVE: do_receive(c, r); break;
    case POLL: do_poll(c, r); break;
    case EPOLL: do_epoll(c, r); break;
    case SETTLE: do_settle(c, r); break;
    case OPTION: do_option(c, r); break;
    case DUP: do_dup(c, r); break;
    case FILL: do_fill(c, r); break;
    case DRAIN: do_drain(c, r); break;
    case CONTROL: {
        struct epoll_event event = {.events = (uint32_t)c->flags, .data.u64 = (uint64_t)(c->slot * DUPS + c->k)};
        r->value = epoll_ctl(sets[c->a], c->call, fd, &event);
        r->error = r->value ? errno : 0;
        break;
    }
    case INQUIRE:
        r->value = ioctl(fd, FIONREAD, &value);
        r->error = r->value ? errno : 0;
        say(r, " is %d", value);
        break;
    case BLOCKING:
        r->value = c->call ? fcntl(fd, F_SETFL, c->a ? O_NONBLOCK : 0) : ioctl(fd, FIONBIO, &c->a);
        r->error = r->value ? errno : 0;
        break;
    case SHUTDOWN:
        r->value = shutdown(fd, c->a);
        r->error = r->value ? errno : 0;
        break;
    case CLOSE:
        r->value = close(fd);
        r->error = r->value ? errno : 0;
        fds[c->slot][c->k] = -1;
        break;
    case NAME:
        r->value = c->a ? getpeername(fd, (struct sockaddr *)&address, &length)
                        : getsockname(fd, (struct sockaddr *)&address, &length);
        r->error = r->value ? errno : 0;
        say(r, " length=%u family=%d", length, address.sin_family);
        break;
    case OUTQ:
        for (double end = now_ms() + LATE_MS; now_ms() < end; usleep(300))
            if ((r->value = ioctl(fd, SIOCOUTQ, &value)) || !value)
                break;
        r->error = r->value ? errno : 0;
        say(r, " is %d", value);
        break;
    case WRITABLE:
        r->value = poll(&(struct pollfd){.fd = fd, .events = POLLOUT}, 1, LATE_MS);
        break;
    }
}

struct job {
    const struct command *c;
    struct reply *r;
};

static void *in_thread(void *at)
{
    struct job *job = at;
    perform(job->c, job->r);
    return NULL;
}

static void side(int in, int out)
{
    struct reply *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct command c;
    memset(fds, -1, sizeof fds);
    FILE *made = tmpfile();
    if (!made || shared == MAP_FAILED)
        die("tmpfile");
    file = fileno(made);
    for (int i = 0; i < SETS; i++)
        sets[i] = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event nested = {.events = EPOLLIN, .data.u64 = NESTED_ID};
    epoll_ctl(sets[NEST], EPOLL_CTL_ADD, sets[LEVEL], &nested);
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = on_sigpipe}, NULL);
    while (whole(read, in, &c, sizeof c) && c.what != QUIT) {
        struct reply r = {0};
        if (c.via == HERE) {
            perform(&c, &r);
        } else if (c.via == IN_THREAD) {
            pthread_t thread;
            if (pthread_create(&thread, NULL, in_thread, &(struct job){&c, &r}))
                die("pthread_create");
            pthread_join(thread, NULL);
        } else {
            memset(shared, 0, sizeof *shared);
            pid_t child = fork();
            if (!child) {
                perform(&c, shared);
                _exit(0);
            }
            int status;
            waitpid(child, &status, 0);
            r = *shared;
            if (status)
                say(&r, " CHILD DIED %x", (unsigned)status);
        }
        whole(write_any, out, &r, sizeof r);
    }
    exit(0);
}

// ---------------------------------------------------------------------------------------------------- the driver

struct half {
    uint64_t sent, got;           // bytes, as the model counts them
    int open;                     // how many descriptors
    bool has[DUPS];               // which
    bool nonblocking, fin, deaf;  // deaf: shut down for reading
    int lowat;
    uint32_t kinds[2][DUPS];      // registrations in the sets LEVEL and EDGE, 0 if there is none
    bool spent[DUPS];             // a one-shot registration that may have been used up
    bool dirty;
};

static struct connection {
    bool up, reset;
    uint32_t number;
    struct half half[2];
} connections[SLOTS];

static int to_side[2], from_side[2], step, slots;
static pid_t pids[2];
static uint32_t numbers;
static uint64_t dice;

static uint32_t roll(uint32_t below)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(dice >> 33) % below;
}

static bool chance(uint32_t percent)
{
    return roll(100) < percent;
}

static int pick_int(int count, const int *from)
{
    return from[roll((uint32_t)count)];
}
#define PICK(...) pick_int((int)(sizeof(int[]){__VA_ARGS__} / sizeof(int)), (int[]){__VA_ARGS__})

static void quit(int code)
{
    fflush(stdout);
    for (int i = 0; i < 2; i++) {
        if (code)
            kill(pids[i], SIGKILL);
        close(to_side[i]);
    }
    for (int i = 0; i < 2; i++)
        waitpid(pids[i], NULL, 0);
    exit(code);
}

static void begin(int who, const struct command *c)
{
    if (!whole(write_any, to_side[who], (void *)(uintptr_t)c, sizeof *c))
        quit(3);
}

static struct reply finish(int who, const struct command *c)
{
    struct reply r;
    struct pollfd p = {.fd = from_side[who], .events = POLLIN};
    if (poll(&p, 1, HANG_MS) != 1) {
        printf("%d %c%d HANG in %d call %d flags %x length %zu via %d\n", step, 'A' + who, c->slot, c->what, c->call,
               (unsigned)c->flags, c->length, c->via);
        quit(3);
    }
    if (!whole(read, from_side[who], &r, sizeof r)) {
        printf("%d %c%d DIED in %d call %d flags %x length %zu via %d\n", step, 'A' + who, c->slot, c->what, c->call,
               (unsigned)c->flags, c->length, c->via);
        quit(4);
    }
    return r;
}

static struct reply ask(int who, const struct command *c)
{
    begin(who, c);
    return finish(who, c);
}

// One line of the log.
static void tell(int who, int slot, const struct reply *r, const char *format, ...)
{
    char name[16] = "";
    if (slot >= 0)
        snprintf(name, sizeof name, "%d", slot);
    printf("%d %c%s ", step, 'A' + who, name);
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf(" -> %ld %s%s\n", r->value, r->error ? strerrorname_np(r->error) : "", r->text);
}

static uint64_t unread(const struct connection *c, int who)
{
    return c->half[!who].sent - c->half[who].got;
}

// A receive would not wait for ever: something is there, or nothing will come.
static bool ended(const struct connection *c, int who)
{
    return c->reset || c->half[!who].fin || c->half[who].deaf;
}

static int expected_state(const struct connection *c, int who)
{
    if (c->reset)
        return TCP_CLOSE;
    bool mine = c->half[who].fin, theirs = c->half[!who].fin;
    return mine ? theirs ? TCP_CLOSE : TCP_FIN_WAIT2 : theirs ? TCP_CLOSE_WAIT : TCP_ESTABLISHED;
}

static int some_descriptor(const struct half *h)
{
    int k = (int)roll(DUPS);
    while (!h->has[k])
        k = (k + 1) % DUPS;
    return k;
}

static void settle(int slot, int who)
{
    struct connection *c = &connections[slot];
    struct half *h = &c->half[who];
    int call = (int)roll(3);
    if (!c->up || !h->open || !h->dirty)
        return;
    h->dirty = false;
    struct command look = {.what = SETTLE, .slot = slot, .k = 0, .call = call, .a = expected_state(c, who)};
    look.length = unread(c, who);
    look.stream = c->number * 2 + (uint32_t)!who;
    if (call == 1 && h->lowat > 1)
        look.call = 0;
    while (!h->has[look.k])
        look.k++;
    struct reply r = ask(who, &look);
    if (*r.text)
        tell(who, slot, &r, "settle");
}

static void settle_side(int who)
{
    for (int s = 0; s < slots; s++)
        settle(s, who);
}

static void settle_both(int slot)
{
    settle(slot, 0);
    settle(slot, 1);
}

// One side has said that nothing more comes, or there was a reset: both see something new.
static void changed(struct connection *c)
{
    c->half[0].dirty = c->half[1].dirty = true;
}

static void connect_slot(int slot)
{
    struct connection *c = &connections[slot];
    int caller = (int)roll(2);
    bool nodelay = !chance(8);
    memset(c, 0, sizeof *c);
    struct command order = {.what = LISTEN, .slot = -1};
    struct reply r = ask(!caller, &order);
    order = (struct command){.what = CONNECT, .slot = slot, .a = (int)r.value};
    r = ask(caller, &order);
    tell(caller, slot, &r, "connect");
    order = (struct command){.what = ACCEPT, .slot = slot, .flags = chance(50) ? SOCK_NONBLOCK : 0};
    c->half[!caller].nonblocking = order.flags;
    r = ask(!caller, &order);
    tell(!caller, slot, &r, "accept nonblocking=%d", order.flags != 0);
    c->up = true;
    c->number = ++numbers;
    for (int who = 0; who < 2; who++) {
        c->half[who].open = 1;
        c->half[who].has[0] = true;
        order = (struct command){.what = OPTION, .slot = slot, .a = 8, .b = nodelay};
        ask(who, &order);
    }
}

// What a successful send of n bytes does to the model.
static void sent(struct connection *c, int who, long n)
{
    struct half *other = &c->half[!who];
    if (n <= 0)
        return;
    if (!other->open || (other->fin && other->deaf)) { // nobody will read it: the kernel answers with a reset
        c->reset = true;
        changed(c);
        return;
    }
    c->half[who].sent += (uint64_t)n;
    other->dirty = true;
}

static const char *const SEND_NAMES[] = {"write", "writev", "send", "sendto", "sendmsg", "sendmmsg", "sendfile", "pwritev2",
                                         "splice in", "send all"};
static const char *const RECEIVE_NAMES[] = {"read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg", "preadv2",
                                            "splice out", "recv all"};

static size_t some_length(void)
{
    switch (roll(10)) {
    case 0: return roll(3);
    case 1:
    case 2:
    case 3: return 1 + roll(16);
    case 4:
    case 5: return 1 + roll(300);
    case 6:
    case 7: return 1 + roll(4096);
    case 8: return (size_t)PICK(63, 64, 65, 127, 128, 4095, 4096, 4097, 8192);
    default: return 1 + roll(SMALL);
    }
}

// `single`: what is sent comes in one piece.
static void some_send(int slot, int who, size_t limit, bool single)
{
    struct connection *c = &connections[slot];
    if (AVOIDED(TO_DEAF) && c->half[!who].open && c->half[!who].fin && c->half[!who].deaf)
        return;
    struct half *h = &c->half[who];
    uint64_t waiting = unread(c, !who);
    struct command order = {.what = SEND, .slot = slot, .k = some_descriptor(h), .stream = c->number * 2 + (uint32_t)who,
                            .position = h->sent, .shape = (int)roll(512)};
    order.call = PICK(WRITE, WRITE, WRITEV, SENDC, SENDC, SENDC, SENDTO, SENDMSG, SENDMMSG, PWRITEV2, SENDFILE);
    if (single)
        order.call = PICK(WRITE, WRITEV, SENDC, SENDTO, SENDMSG);
    order.via = chance(90) ? HERE : PICK(IN_THREAD, IN_CHILD);
    order.length = some_length();
    if (order.length > limit)
        order.length = limit;
    if (chance(1) && chance(30) && !single)
        order.call = SPLICE_IN;
    if (waiting + order.length > SMALL)
        order.length = waiting >= SMALL ? 0 : SMALL - waiting;
    if (order.call == SENDC || order.call == SENDTO || order.call == SENDMSG || order.call == SENDMMSG)
        order.flags = (chance(50) ? MSG_NOSIGNAL : 0) | (chance(40) ? MSG_DONTWAIT : 0) | (chance(3) ? MSG_EOR : 0);
    if (order.call == SPLICE_IN && !order.length)
        order.length = 1;
    settle(slot, who);
    if (order.call == SENDC && chance(8) && !single) { // MSG_MORE, and the rest at once
        order.flags |= MSG_MORE;
        struct reply r = ask(who, &order);
        tell(who, slot, &r, "send more %zu flags %x", order.length, (unsigned)order.flags);
        sent(c, who, r.value);
        order.position = h->sent;
        order.flags &= ~MSG_MORE;
        order.length = 1 + order.length % 7;
        if (c->reset)
            settle(slot, who);
    }
    struct reply r = ask(who, &order);
    tell(who, slot, &r, "%s %zu flags %x via %d by %d", SEND_NAMES[order.call], order.length, (unsigned)order.flags, order.via,
         order.k);
    sent(c, who, r.value);
}

static void some_receive(int slot, int who)
{
    struct connection *c = &connections[slot];
    struct half *h = &c->half[who];
    uint64_t waiting = unread(c, who);
    struct command order = {.what = RECEIVE, .slot = slot, .k = some_descriptor(h), .stream = c->number * 2 + (uint32_t)!who,
                            .position = h->got, .shape = (int)roll(512)};
    order.call = PICK(READ, READ, READV, RECV, RECV, RECV, RECVFROM, RECVMSG, RECVMMSG, PREADV2);
    order.via = chance(90) ? HERE : PICK(IN_THREAD, IN_CHILD);
    order.length = chance(40) ? waiting : chance(40) && waiting ? 1 + roll((uint32_t)waiting) : some_length();
    if (chance(1) && chance(30) && order.length)
        order.call = SPLICE_OUT;
    if (AVOIDED(EMPTY) && !order.length && (order.call == PREADV2 || !waiting))
        order.length = 1;
    bool flagged = order.call >= RECV && order.call <= RECVMMSG;
    if (flagged) {
        order.flags = (chance(40) ? MSG_DONTWAIT : 0) | (chance(15) ? MSG_PEEK : 0) | (chance(10) ? MSG_WAITALL : 0) |
                      (chance(4) ? MSG_TRUNC : 0) | (chance(1) ? MSG_ERRQUEUE : 0);
        if (AVOIDED(PEEK_ALL) && order.flags & MSG_PEEK)
            order.flags &= ~MSG_WAITALL;
        if (order.call == RECVMMSG)
            order.flags = (order.flags & ~(MSG_TRUNC | MSG_WAITALL)) | MSG_WAITFORONE;
        if (order.flags & MSG_ERRQUEUE)
            order.flags &= ~MSG_TRUNC;
    }
    if (order.call == SPLICE_OUT && order.length > waiting)
        order.length = waiting ? waiting : 1;
    bool lazy = flagged && order.flags & MSG_WAITALL && order.length <= waiting && order.length && chance(50);
    // Where it would wait for ever it must not wait, or only for a short time.
    uint64_t need = h->lowat > 1 ? (uint64_t)h->lowat : 1;
    if (order.flags & MSG_WAITALL && order.length > need)
        need = order.length;
    bool waits = !h->nonblocking && !(order.flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) && !ended(c, who) && waiting < need;
    bool zero = !order.length && (order.call == READ || order.call == READV || order.call == PREADV2);
    bool timed = false;
    if (waits && !zero) {
        timed = order.call == READ || order.call == READV || order.call == SPLICE_OUT || chance(30);
        if (order.call == PREADV2)
            timed = false;
        if (AVOIDED(EMPTY) && !order.length)
            timed = false;
        if (!timed)
            order.flags |= MSG_DONTWAIT;
    }
    if (!lazy || timed || order.flags & (MSG_PEEK | MSG_DONTWAIT) || h->nonblocking)
        settle(slot, who);
    if (AVOIDED(ASKING) && !waiting && ended(c, who))
        usleep(1500);
    if (AVOIDED(EMPTY) && order.call == RECVMMSG) {
        order.length |= 64, order.shape |= 7;
        if (c->reset)
            order.call = RECVMSG, order.flags &= ~MSG_WAITFORONE;
    }
    struct command timeout = {.what = OPTION, .slot = slot, .k = order.k, .a = 9, .b = 4};
    if (timed) {
        struct reply r = ask(who, &timeout);
        tell(who, slot, &r, "timeout");
    }
    struct reply r = ask(who, &order);
    tell(who, slot, &r, "%s %zu of %llu flags %x via %d by %d", RECEIVE_NAMES[order.call], order.length,
         (unsigned long long)waiting, (unsigned)order.flags, order.via, order.k);
    if (timed) {
        timeout.b = 0;
        ask(who, &timeout);
    }
    if (r.value > 0 && !(order.flags & (MSG_PEEK | MSG_ERRQUEUE)))
        h->got += (uint64_t)r.value;
}

static int some_events(void)
{
    return (chance(85) ? POLLIN : 0) | (chance(60) ? POLLOUT : 0) | (chance(40) ? POLLRDHUP : 0) | (chance(20) ? POLLPRI : 0);
}

static void some_poll(int slot, int who)
{
    struct half *h = &connections[slot].half[who];
    struct command order = {.what = POLL, .slot = chance(60) ? slot : -1, .k = some_descriptor(h),
                            .call = PICK(BY_POLL, BY_POLL, BY_PPOLL, BY_SELECT, BY_PSELECT), .a = some_events(),
                            .b = PICK(LEVEL, NEST)};
    if (order.call < BY_SELECT && chance(10))
        order.a |= POLLRDNORM | POLLWRNORM;
    order.via = chance(95) ? HERE : PICK(IN_THREAD, IN_CHILD);
    settle_side(who);
    struct reply r = ask(who, &order);
    tell(who, order.slot, &r, "poll %d events %s", order.call, bits(order.a));
}

static void control(int slot, int who, int k, int set, int call, uint32_t events)
{
    struct command order = {.what = CONTROL, .slot = slot, .k = k, .a = set, .call = call, .flags = (int)events};
    struct reply r = ask(who, &order);
    tell(who, slot, &r, "epoll_ctl %d set %d by %d events %x", call, set, k, events);
    if (!r.value)
        connections[slot].half[who].kinds[set][k] = call == EPOLL_CTL_DEL ? 0 : events | EPOLLERR;
}

static void some_control(int slot, int who)
{
    struct half *h = &connections[slot].half[who];
    int k = some_descriptor(h), set = (int)roll(2);
    uint32_t events = (uint32_t)some_events() | (set == EDGE ? EPOLLET : 0) | (chance(20) ? EPOLLONESHOT : 0);
    int call = h->kinds[set][k] ? PICK(EPOLL_CTL_MOD, EPOLL_CTL_MOD, EPOLL_CTL_DEL) : EPOLL_CTL_ADD;
    if (chance(4))
        call = PICK(EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL);
    settle(slot, who);
    control(slot, who, k, set, call, events);
}

static void some_epoll(int who)
{
    struct command order = {.what = EPOLL, .slot = -1, .a = PICK(LEVEL, LEVEL, EDGE, EDGE, NEST), .call = (int)roll(2)};
    order.via = chance(95) ? HERE : IN_THREAD;
    if (AVOIDED(NESTING) && order.a == NEST)
        order.a = LEVEL;
    settle_side(who);
    struct reply r = ask(who, &order);
    tell(who, -1, &r, "epoll set %d", order.a);
}

static void drop(int slot, int who, int k)
{
    struct half *h = &connections[slot].half[who];
    h->has[k] = false;
    h->open--;
    h->kinds[LEVEL][k] = h->kinds[EDGE][k] = 0;
}

// A registration outlives its descriptor if the socket has another one: that is a known difference.
static void forget(int slot, int who, int k)
{
    struct half *h = &connections[slot].half[who];
    for (int set = LEVEL; set <= EDGE; set++)
        if (h->kinds[set][k] && (h->open > 1 || chance(30)))
            control(slot, who, k, set, EPOLL_CTL_DEL, 0);
}

// What the model says once the last descriptor has gone.
static void gone(int slot, int who)
{
    struct connection *c = &connections[slot];
    if (unread(c, who) && !(c->half[who].fin && c->half[!who].fin))
        c->reset = true;
    c->half[who].fin = c->half[who].deaf = true;
    changed(c);
    if (!c->half[!who].open)
        c->up = false;
}

static void close_one(int slot, int who, int k)
{
    settle_both(slot);
    forget(slot, who, k);
    struct command order = {.what = CLOSE, .slot = slot, .k = k};
    struct reply r = ask(who, &order);
    tell(who, slot, &r, "close %d with %llu unread", k, (unsigned long long)unread(&connections[slot], who));
    drop(slot, who, k);
    if (!connections[slot].half[who].open)
        gone(slot, who);
}

static void some_dup(int slot, int who)
{
    struct half *h = &connections[slot].half[who];
    int from = some_descriptor(h), to = 0;
    while (to < DUPS && h->has[to])
        to++;
    if (to == DUPS) {
        close_one(slot, who, from);
        return;
    }
    struct command order = {.what = DUP, .slot = slot, .k = from, .call = (int)roll(4), .a = -1, .shape = to};
    int victim = (int)roll((uint32_t)slots), lost = -1;
    struct connection *v = &connections[victim];
    if (order.call >= 2 && chance(25) && victim != slot && v->up && v->half[who].open) {
        lost = some_descriptor(&v->half[who]);
        settle_both(victim);
        forget(victim, who, lost);
        order.a = lost;
        order.b = victim;
    }
    settle(slot, who);
    struct reply r = ask(who, &order);
    tell(who, slot, &r, "dup %d by %d over %d.%d", order.call, from, lost < 0 ? -1 : victim, lost);
    h->has[to] = true;
    h->open++;
    if (lost >= 0) {
        drop(victim, who, lost);
        if (!v->half[who].open)
            gone(victim, who);
    }
}

static void some_shutdown(int slot, int who)
{
    struct connection *c = &connections[slot];
    struct half *h = &c->half[who];
    struct command order = {.what = SHUTDOWN, .slot = slot, .k = some_descriptor(h), .a = PICK(SHUT_WR, SHUT_WR, SHUT_RD, SHUT_RDWR)};
    settle_both(slot);
    if (AVOIDED(TO_DEAF) && (h->fin || order.a != SHUT_RD) && (h->deaf || order.a != SHUT_WR))
        return;
    struct reply r = ask(who, &order);
    tell(who, slot, &r, "shutdown %d", order.a);
    if (order.a != SHUT_RD)
        h->fin = true;
    if (order.a != SHUT_WR)
        h->deaf = true;
    changed(c);
}

static void some_option(int slot, int who)
{
    struct half *h = &connections[slot].half[who];
    struct command order = {.what = OPTION, .slot = slot, .k = some_descriptor(h), .a = (int)roll(8)};
    if (chance(10))
        order.a = 12;
    if (chance(2))
        order.a = 10, order.b = h->lowat = h->lowat ? 1 : 5;
    if (chance(4) && h->open == 1)
        order.a = 11;
    settle(slot, who);
    struct reply r = ask(who, &order);
    tell(who, slot, &r, "option %d", order.a);
    if (order.a == 11) { // a close that resets
        settle_both(slot);
        close_one(slot, who, order.k);
        connections[slot].reset = true;
    }
}

// Many bytes at once: the one sends while the other receives, or before.
static void bulk(int slot, int who)
{
    struct connection *c = &connections[slot];
    size_t length = 1 + roll(LARGE);
    bool before = chance(40) && length < 150000;
    struct command out = {.what = SEND, .slot = slot, .k = some_descriptor(&c->half[who]), .length = length, .call = SEND_ALL,
                          .stream = c->number * 2 + (uint32_t)who, .position = c->half[who].sent,
                          .a = PICK(1000, 16384, 65536, LARGE), .flags = chance(50) ? MSG_DONTWAIT : 0};
    struct command in = {.what = RECEIVE, .slot = slot, .k = some_descriptor(&c->half[!who]), .call = RECV_ALL,
                         .stream = out.stream, .position = c->half[!who].got, .length = length + unread(c, !who),
                         .a = PICK(1000, 16384, 65536, LARGE), .flags = chance(50) ? MSG_WAITALL : 0};
    if (in.length > LARGE || ended(c, !who) || c->half[who].fin)
        return;
    settle_both(slot);
    begin(who, &out);
    struct reply sender, reader;
    if (before)
        sender = finish(who, &out);
    reader = ask(!who, &in);
    if (!before)
        sender = finish(who, &out);
    tell(who, slot, &sender, "bulk %zu by %d flags %x before=%d", length, out.a, (unsigned)out.flags, before);
    tell(!who, slot, &reader, "takes %zu by %d flags %x", in.length, in.a, (unsigned)in.flags);
    sent(c, who, sender.value);
    if (reader.value > 0)
        c->half[!who].got += (uint64_t)reader.value;
}

// Sends until nothing more goes, then has all received. How much that is differs from run to run and is not told.
static void fill(int slot, int who)
{
    struct connection *c = &connections[slot];
    if (ended(c, !who) || ended(c, who) || c->half[who].fin)
        return;
    settle_both(slot);
    int k = some_descriptor(&c->half[who]);
    struct command order = {.what = FILL, .slot = slot, .k = k, .stream = c->number * 2 + (uint32_t)who,
                            .position = c->half[who].sent};
    struct reply r = ask(who, &order);
    sent(c, who, r.value);
    r.value = r.value > 0;
    tell(who, slot, &r, "fill");
    struct command look = {.what = POLL, .slot = slot, .k = k, .a = POLLOUT};
    r = ask(who, &look);
    tell(who, slot, &r, "poll when full");
    order = (struct command){.what = DRAIN, .slot = slot, .k = some_descriptor(&c->half[!who]), .position = c->half[!who].got,
                             .stream = order.stream, .length = unread(c, !who), .a = PICK(4096, 65536, LARGE)};
    r = ask(!who, &order);
    bool all = r.value == (long)order.length;
    c->half[!who].got += (uint64_t)r.value;
    r.value = all;
    tell(!who, slot, &r, "drain by %d", order.a);
    look = (struct command){.what = WRITABLE, .slot = slot, .k = k};
    r = ask(who, &look);
    tell(who, slot, &r, "writable again");
}

// One side sleeps; then the other does what wakes it.
static void asleep(int slot, int who)
{
    struct connection *c = &connections[slot];
    struct half *h = &c->half[who];
    if (unread(c, who) || ended(c, who) || h->lowat > 1 || !c->half[!who].open)
        return;
    settle_side(who);
    int k = some_descriptor(h), how = (int)roll(5), set = -1;
    struct command order = {.slot = slot, .k = k, .stream = c->number * 2 + (uint32_t)!who, .position = h->got};
    uint32_t wanted = EPOLLIN;
    for (int i = 0; i < DUPS; i++)
        for (int s = LEVEL; s <= EDGE; s++)
            if ((how == 3 || how == 4) && h->has[i] && h->kinds[s][i] & wanted && !(h->kinds[s][i] & (EPOLLONESHOT | EPOLLOUT)))
                set = s;
    if (how < 2 && !h->nonblocking) {
        order.what = RECEIVE;
        order.call = PICK(READ, RECV, RECVMSG, READV);
            order.length = 1 + roll(2000);
        order.shape = (int)roll(512);
    } else if (set >= 0) {
        order = (struct command){.what = EPOLL, .slot = -1, .a = set, .b = 1};
        struct reply r = ask(who, &order);
        tell(who, -1, &r, "set %d before", set);
        if (r.value)
            return;
        order.b = 0;
        order.flags = LATE_MS;
    } else {
        order.what = POLL;
        order.a = POLLIN;
        order.call = PICK(BY_POLL, BY_PPOLL, BY_SELECT, BY_PSELECT);
        order.flags = LATE_MS;
    }
    order.via = chance(85) ? HERE : IN_THREAD;
    begin(who, &order);
    usleep(roll(4) * 700);
    some_send(slot, !who, 2000, true);
    int was = step;
    if (!unread(c, who) && !c->reset) { // it sent nothing
        struct command push = {.what = SEND, .slot = slot, .k = some_descriptor(&c->half[!who]), .call = SENDC, .length = 3,
                               .stream = c->number * 2 + (uint32_t)!who, .position = c->half[!who].sent, .flags = MSG_NOSIGNAL};
        struct reply r = ask(!who, &push);
        tell(!who, slot, &r, "push");
        sent(c, !who, r.value);
    }
    struct reply r = finish(who, &order);
    step = was;
    tell(who, order.slot, &r, "woken from %d call %d set %d length %zu", order.what, order.call, order.a, order.length);
    if (order.what == RECEIVE && r.value > 0)
        h->got += (uint64_t)r.value;
}

static void urgent(int slot, int who)
{
    struct connection *c = &connections[slot];
    if (ended(c, !who) || c->half[who].fin || unread(c, !who))
        return;
    settle_both(slot);
    int k = some_descriptor(&c->half[!who]);
    struct command order = {.what = SEND, .slot = slot, .k = some_descriptor(&c->half[who]), .call = SENDC, .flags = MSG_OOB,
                            .length = 1, .stream = 0, .position = 0};
    struct reply r = ask(who, &order);
    tell(who, slot, &r, "urgent");
    order = (struct command){.what = POLL, .slot = slot, .k = k, .a = POLLPRI, .flags = LATE_MS};
    r = ask(!who, &order);
    tell(!who, slot, &r, "poll for urgent data");
    order = (struct command){.what = RECEIVE, .slot = slot, .k = k, .call = RECV, .flags = MSG_OOB, .length = 1};
    r = ask(!who, &order);
    tell(!who, slot, &r, "recv urgent");
    order = (struct command){.what = RECEIVE, .slot = slot, .k = k, .call = RECV, .flags = MSG_DONTWAIT, .length = 10};
    r = ask(!who, &order);
    tell(!who, slot, &r, "recv behind it");
}

// Messages to and fro, as programs send them.
static void chat(int slot)
{
    struct connection *c = &connections[slot];
    if (ended(c, 0) || ended(c, 1))
        return;
    int who = (int)roll(2), turns = 2 + (int)roll(10);
    size_t length = 1 + roll(200);
    settle_both(slot);
    for (int i = 0; i < turns; i++, who = !who) {
        struct command out = {.what = SEND, .slot = slot, .k = some_descriptor(&c->half[who]), .call = SENDC, .length = length,
                              .stream = c->number * 2 + (uint32_t)who, .position = c->half[who].sent, .a = LARGE};
        struct reply r = ask(who, &out);
        sent(c, who, r.value);
        struct command in = {.what = RECEIVE, .slot = slot, .k = some_descriptor(&c->half[!who]), .call = RECV_ALL,
                             .length = unread(c, !who), .stream = out.stream, .position = c->half[!who].got, .a = LARGE};
        r = ask(!who, &in);
        if (r.value != (long)in.length || strcmp(r.text, " right"))
            tell(!who, slot, &r, "chat %d of %zu", i, in.length);
        if (r.value > 0)
            c->half[!who].got += (uint64_t)r.value;
    }
    printf("%d chat %d x %zu\n", step, turns, length);
}

static void one_step(void)
{
    int slot = (int)roll((uint32_t)slots), who = (int)roll(2);
    struct connection *c = &connections[slot];
    if (!c->up) {
        connect_slot(slot);
        return;
    }
    struct half *h = &c->half[who];
    if (!h->open)
        h = &c->half[who = !who];
    if (c->reset || (ended(c, 0) && ended(c, 1)) ? chance(40) : (ended(c, 0) || ended(c, 1)) && chance(6)) {
        while (h->open && (h->open < 2 || chance(70))) // make room for a new one
            close_one(slot, who, some_descriptor(h));
        return;
    }
    uint32_t n = roll(1000);
    bool both = c->half[!who].open;
    if (n < 240) {
        some_send(slot, who, LARGE, false);
    } else if (n < 500) {
        some_receive(slot, who);
    } else if (n < 600) {
        some_poll(slot, who);
    } else if (n < 680) {
        some_epoll(who);
    } else if (n < 750) {
        some_control(slot, who);
    } else if (n < 790) {
        some_option(slot, who);
    } else if (n < 820) {
        struct command order = {.what = INQUIRE, .slot = slot, .k = some_descriptor(h)};
        settle(slot, who);
        struct reply r = ask(who, &order);
        tell(who, slot, &r, "FIONREAD of %llu", (unsigned long long)unread(c, who));
    } else if (n < 840) {
        struct command order = {.what = BLOCKING, .slot = slot, .k = some_descriptor(h), .a = !h->nonblocking,
                                .call = (int)roll(2)};
        struct reply r = ask(who, &order);
        tell(who, slot, &r, "nonblocking=%d", order.a);
        h->nonblocking = order.a;
    } else if (n < 850) {
        some_shutdown(slot, who);
    } else if (n < 860) {
        close_one(slot, who, some_descriptor(h));
    } else if (n < 890) {
        some_dup(slot, who);
    } else if (n < 900 && h->open > 1) {
        close_one(slot, who, some_descriptor(h));
    } else if (n < 910) {
        struct command order = {.what = NAME, .slot = slot, .k = some_descriptor(h), .a = (int)roll(2)};
        settle(slot, who);
        struct reply r = ask(who, &order);
        tell(who, slot, &r, "name %d", order.a);
    } else if (n < 915 && both && !unread(c, !who)) {
        struct command order = {.what = OUTQ, .slot = slot, .k = some_descriptor(h)};
        settle_both(slot);
        struct reply r = ask(who, &order);
        tell(who, slot, &r, "SIOCOUTQ");
    } else if (n < 930 && both) {
        bulk(slot, who);
    } else if (n < 932 && both) {
        fill(slot, who);
    } else if (n < 960 && both) {
        asleep(slot, who);
    } else if (n < 962 && both) {
        urgent(slot, who);
    } else if (both) {
        chat(slot);
    }
}

int main(int count, char **values)
{
    if (count < 3) {
        fprintf(stderr, "usage: fuzz SEED STEPS [SKIP...]\n");
        return 2;
    }
    uint64_t seed = strtoull(values[1], NULL, 0);
    int steps = atoi(values[2]);
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 2; i++) {
        int there[2], back[2];
        if (pipe2(there, O_CLOEXEC) || pipe2(back, O_CLOEXEC))
            die("pipe");
        if (!(pids[i] = fork())) {
            if (i)
                close(to_side[0]);
            close(there[1]);
            close(back[0]);
            side(there[0], back[1]);
        }
        close(there[0]);
        close(back[1]);
        to_side[i] = there[1];
        from_side[i] = back[0];
    }
    dice = seed * 0x9E3779B97F4A7C15u + 1;
    slots = 1 + (int)roll(SLOTS);
    for (step = 1; step <= steps; step++) {
        bool skip = false;
        dice = (seed << 20 | (uint64_t)step) * 0x9E3779B97F4A7C15u; // a step's choices do not depend on those before
        roll(2);
        for (int i = 3; i < count; i++)
            skip |= atoi(values[i]) == step;
        if (!skip)
            one_step();
    }
    printf("done\n");
    quit(0);
}
