// Carries out a program of socket operations: play FILE, where FILE is as below. What it prints on kernel TCP depends
// on the program alone, so any other stack must print the same.
//
// A driver without sockets keeps a model of every connection and tells the two sides A and B what to do, one operation
// at a time. Before a side acts, it waits until all that the other one did has come to it (`settle`): so the kernel has
// no choice but one. Where it has (how much a full buffer takes, how bytes are joined), only what is sure is told:
// bytes in order, and sums. A line that makes no sense in the state that the ones before have led to is passed over. So
// any part of a program is a program, which serves to shorten one that fails.
//
// A line is a side, the number of a connection (0 to 2), a word and what more there is to say: `A0 send call=writev
// len=300`. A small letter is a child that its side has forked and that lives on, if there is one. What is left out has
// a default. fd= chooses one of three descriptors; via=thread or via=child lets another thread or a child do it; look=
// is how to settle.
//
//   A0 connect nodelay= nonblock=            made by A. nonblock: accept4 with SOCK_NONBLOCK
//   A0 send call= len= flags= shape=         shape: how the bytes are divided among buffers
//   A0 receive call= len=N|rest flags= shape= timed=
//                                            where it would wait for ever it has MSG_DONTWAIT or a time limit
//   A0 poll call= events= all= nest=         events: letters, see `bits`. all: every descriptor, and a set
//   A0 ctl op=add|mod|del set=level|edge events= shot=
//   A wait set=level|edge|nest call=wait|pwait|pwait2
//   A0 option get=N | lowat=N | linger=1     the last one closes with a reset
//   A0 inquire what=unread|mark|pread|pwrite|lseek|fsync|ftruncate      a socket refuses all but the first two
//   A0 outq / name peer= / blocking set= ioctl= / shutdown how=wr|rd|rdwr
//   A0 close fd= / dup call=dup|dupfd|dup2|dup3|mail over=N
//                                            over: in the place of a descriptor of another connection
//   A0 bulk len= piece= take= dontwait= waitall= before=    all is sent while B takes it, or before B does
//   A0 fill take=                            as much as the kernel takes, then all is received
//   A0 chat turns= len=                      messages to and fro
//   A0 urgent                                MSG_OOB
//   A0 sleep in=receive|poll|wait call= len= shape= set= restart= via=    until a later line wakes it
//   A kick                                   a signal to the sleeper; restart: it has SA_RESTART
//   A fork                                   a child that lives on
//   A leave how=exit|_exit|kill              its end
//   A succeed how=                           its parent's end: the child takes its place
//   pause us=
//
// If an operation does not return for PLAY_PATIENCE_MS, 12000 without it, it hangs. With PLAY_HOLD the processes then
// stay, to be looked at.
//
// Marks in the output: `id=bits` is an event of a level-triggered registration, and must agree. `id~bits` is one of an
// edge-triggered registration: a further one does no harm, as long as its bits are true, but none of data or an end may
// be missing.
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
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <linux/sockios.h>

enum { SLOTS = 3, DUPS = 3, SETS = 3, LEVEL = 0, EDGE = 1, NEST = 2, NESTED_ID = 99, PARTS = 4, NODES = 4 };
enum { SMALL = 20000, LARGE = 1 << 20, CHUNK = 65536, LATE_MS = 3000, HANG_MS = 12000 };
// So much the kernel takes whole without a reader, sent in large pieces.
enum { UNREAD = 150000 };

// The operations that a side can do.
enum { LISTEN, CONNECT, ACCEPT, SEND, RECEIVE, POLL, CONTROL, EPOLL, INQUIRE, OPTION, BLOCKING, SHUTDOWN, CLOSE, DUP,
       NAME, OUTQ, SETTLE, WRITABLE, FILL, DRAIN, QUIT, FORK, REAP, JOIN };
enum { WRITE, WRITEV, SENDC, SENDTO, SENDMSG, SENDMMSG, SENDFILE, PWRITEV2, SPLICE_IN, SEND_ALL };
enum { READ, READV, RECV, RECVFROM, RECVMSG, RECVMMSG, PREADV2, SPLICE_OUT, RECV_ALL };
enum { BY_POLL, BY_PPOLL, BY_SELECT, BY_PSELECT };
enum { BY_WAIT, BY_PWAIT, BY_PWAIT2 };
enum { UNREAD_BYTES, MARK, PREAD, PWRITE, LSEEK, FSYNC, FTRUNCATE };
enum { HERE, IN_THREAD, IN_CHILD, IN_BACKGROUND };

struct command {
    int what, slot, k, call, flags, via, a, b;
    uint32_t stream;   // which bytes are sent or expected
    uint64_t position; // of the first one
    size_t length;
    int shape;   // how `length` is divided among buffers
    int restart; // how SIGUSR1 is to be handled from now on; below 0: as before
};

struct reply {
    long value;
    int error;
    char text[400];
};

// Shared by the driver and the processes of both sides: side 0 is the nodes 0 and 1, side 1 is 2 and 3.
static struct {
    int pipes[NODES][2];
    struct reply reply[NODES];
    int kicked[NODES];
} *shared;
static int node;
static void perform(const struct command *c, struct reply *r);

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
static uint8_t main_bytes[LARGE + 64];
static _Thread_local uint8_t *bytes = main_bytes; // a thread in the background has its own
static _Thread_local volatile sig_atomic_t pipes_broken;
static struct job *background;

static void on_sigpipe(int number)
{
    (void)number;
    pipes_broken++;
}

static void on_kick(int number)
{
    (void)number;
    shared->kicked[node]++;
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
        {POLLIN, 'i'}, {POLLPRI, 'p'}, {POLLOUT, 'o'}, {POLLERR, 'e'}, {POLLHUP, 'h'}, {POLLRDHUP, 'r'},
        {POLLNVAL, 'n'},
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

static void receive_messages(const struct command *c, struct reply *r, struct iovec *parts, int count)
{
    struct mmsghdr many[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 2}},
                              {.msg_hdr = {.msg_iov = parts + 2, .msg_iovlen = (size_t)count - 2}}};
    int got = recvmmsg(fds[c->slot][c->k], many, 2, c->flags, NULL);
    int error = errno;
    r->value = got;
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
    errno = error;
}

static void receive_by_pipe(const struct command *c, struct reply *r)
{
    int ends[2];
    if (pipe(ends))
        die("pipe");
    int fd = fds[c->slot][c->k];
    size_t done = 0;
    ssize_t n = 0;
    errno = 0;
    while (done < c->length && (n = splice(fd, NULL, ends[1], NULL, c->length - done, SPLICE_F_NONBLOCK)) > 0) {
        if (read(ends[0], bytes + done, (size_t)n) != n)
            die("read of pipe");
        done += (size_t)n;
    }
    int error = errno;
    r->value = done ? (long)done : n;
    close(ends[0]);
    close(ends[1]);
    errno = error;
}

// Receives until all has come, in pieces of at most `a` bytes.
static void receive_all(const struct command *c, struct reply *r)
{
    int fd = fds[c->slot][c->k];
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
    case RECVMMSG: receive_messages(c, r, parts, count); break;
    case SPLICE_OUT: receive_by_pipe(c, r); break;
    case RECV_ALL: receive_all(c, r); break;
    }
    r->error = r->value < 0 ? errno : 0;
    if (r->value > 0 && !(c->flags & (MSG_TRUNC | MSG_OOB)))
        judge(c, r, bytes, (size_t)r->value);
    // The part of the buffer behind what was received must be untouched.
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
    if (c->call == BY_POLL || c->call == BY_PPOLL) {
        struct pollfd all[SLOTS * DUPS + 1];
        int count = 0;
        for (int s = 0; s < SLOTS; s++)
            for (int k = 0; k < DUPS; k++)
                if (c->slot < 0 || (s == c->slot && k == c->k))
                    all[count++] = (struct pollfd){.fd = fds[s][k], .events = (short)(c->slot < 0 ? c->a >> k : c->a)};
        if (c->slot < 0)
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
        r->value =
            pselect(top, &in, &out, &except, &(struct timespec){c->flags / 1000, c->flags % 1000 * 1000000}, NULL);
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
        else
            r->value = poll(&(struct pollfd){.fd = sets[c->a], .events = POLLIN}, 1, 0);
        return;
    }
    errno = 0;
    struct timespec limit = {c->flags / 1000, c->flags % 1000 * 1000000};
    int count = c->call == BY_PWAIT2  ? epoll_pwait2(sets[c->a], events, 32, &limit, NULL)
                : c->call == BY_PWAIT ? epoll_pwait(sets[c->a], events, 32, c->flags, NULL)
                                      : epoll_wait(sets[c->a], events, 32, c->flags);
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

// A copy that has travelled over a Unix socket.
static int by_mail(int from)
{
    int ends[2];
    char letter = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&letter, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends))
        die("socketpair");
    struct cmsghdr *enclosed = CMSG_FIRSTHDR(&message);
    *enclosed = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof from)};
    memcpy(CMSG_DATA(enclosed), &from, sizeof from);
    int made = -1;
    if (sendmsg(ends[0], &message, 0) == 1 && recvmsg(ends[1], &message, 0) == 1)
        memcpy(&made, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof made);
    int error = errno;
    close(ends[0]);
    close(ends[1]);
    errno = error;
    return made;
}

static void do_dup(const struct command *c, struct reply *r)
{
    int from = fds[c->slot][c->k], to = c->a < 0 ? -1 : fds[c->b][c->a], made = -1;
    int number = to < 0 ? free_number(60 + c->slot * DUPS + c->shape) : to;
    errno = 0;
    switch (c->call) {
    case 0: made = dup(from); break;
    case 1: made = fcntl(from, F_DUPFD_CLOEXEC, 3); break;
    case 4: made = by_mail(from); break;
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

static void do_inquire(const struct command *c, struct reply *r)
{
    int fd = fds[c->slot][c->k], value = 0;
    errno = 0;
    switch (c->call) {
    case UNREAD_BYTES: r->value = ioctl(fd, FIONREAD, &value); break;
    case MARK: r->value = ioctl(fd, SIOCATMARK, &value); break;
    case PREAD: r->value = pread(fd, bytes, 1, 0); break;
    case PWRITE: r->value = pwrite(fd, bytes, 1, 0); break;
    case LSEEK: r->value = lseek(fd, 0, SEEK_CUR); break;
    case FSYNC: r->value = fsync(fd); break;
    case FTRUNCATE: r->value = ftruncate(fd, 0); break;
    }
    r->error = r->value ? errno : 0;
    say(r, " is %d", value);
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
    case INQUIRE: do_inquire(c, r); break;
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

// A command that another thread carries out.
struct job {
    struct command c;
    struct reply r;
    pthread_t thread;
    pid_t tid;
    bool own_bytes;
};

static void *in_thread(void *at)
{
    struct job *job = at;
    if (job->own_bytes && !(bytes = malloc(LARGE + 64)))
        die("malloc");
    __atomic_store_n(&job->tid, gettid(), __ATOMIC_RELEASE);
    perform(&job->c, &job->r);
    if (job->own_bytes)
        free(bytes);
    return NULL;
}

static void start(struct job *job, const struct command *c)
{
    job->c = *c;
    if (pthread_create(&job->thread, NULL, in_thread, job))
        die("pthread_create");
}

static void by_child(const struct command *c, struct reply *r)
{
    memset(&shared->reply[node], 0, sizeof *r);
    pid_t child = fork();
    if (!child) {
        perform(c, &shared->reply[node]);
        _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    *r = shared->reply[node];
    if (status)
        say(r, " CHILD DIED %x", (unsigned)status);
}

static void new_sets(void)
{
    for (int i = 0; i < SETS; i++)
        sets[i] = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event nested = {.events = EPOLLIN, .data.u64 = NESTED_ID};
    epoll_ctl(sets[NEST], EPOLL_CTL_ADD, sets[LEVEL], &nested);
    memset(kinds, 0, sizeof kinds);
}

// A child that lives on and is told what to do over pipes of its own. It shares the connections, and makes sets of its
// own.
static long lasting_child(int number)
{
    pid_t child = fork();
    if (child)
        return child;
    node = number;
    background = NULL;
    for (int i = 0; i < SETS; i++)
        close(sets[i]);
    new_sets();
    return 0;
}

static _Noreturn void side(int number)
{
    struct command c;
    node = number;
    memset(fds, -1, sizeof fds);
    FILE *made = tmpfile();
    if (!made)
        die("tmpfile");
    file = fileno(made);
    new_sets();
    sigaction(SIGPIPE, &(struct sigaction){.sa_handler = on_sigpipe}, NULL);
    while (whole(read, shared->pipes[node][0], &c, sizeof c) && c.what != QUIT) {
        struct reply r = {0};
        if (c.restart >= 0)
            sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_kick, .sa_flags = c.restart ? SA_RESTART : 0},
                      NULL);
        switch (c.what == FORK ? HERE : c.via) {
        case IN_THREAD: {
            struct job job = {0};
            start(&job, &c);
            pthread_join(job.thread, NULL);
            r = job.r;
            break;
        }
        case IN_CHILD: by_child(&c, &r); break;
        case IN_BACKGROUND:
            background = calloc(1, sizeof *background);
            background->own_bytes = true;
            start(background, &c);
            while (!(r.value = __atomic_load_n(&background->tid, __ATOMIC_ACQUIRE)))
                usleep(20);
            break;
        default:
            if (c.what == FORK) {
                if (!(r.value = lasting_child(c.a)))
                    continue;
            } else if (c.what == REAP) {
                int status = 0;
                if (c.b)
                    kill(c.a, SIGKILL);
                waitpid(c.a, &status, 0);
                r.value = status;
            } else if (c.what == JOIN) {
                pthread_join(background->thread, NULL);
                r = background->r;
                free(background);
                background = NULL;
            } else {
                perform(&c, &r);
            }
        }
        whole(write_any, shared->pipes[node][1], &r, sizeof r);
    }
    if (c.what == QUIT && c.a)
        _exit(0);
    exit(0);
}

// ---------------------------------------------------------------------------------------------------- the driver

// A process of a side.
struct actor {
    int node;
    pid_t pid;
    bool alive;
};

struct half {
    uint64_t sent, got;          // bytes, as the model counts them
    int open;                    // how many descriptors
    bool has[2][DUPS];           // which, in the main process and in its child
    bool nonblocking, fin, deaf; // deaf: shut down for reading
    bool killed;                 // a process that had it
    int lowat;
    uint32_t kinds[2][2][DUPS];  // registrations in the sets LEVEL and EDGE of each process, 0 if there is none
    bool dirty;
};

static struct connection {
    bool up, reset;
    uint32_t number;
    struct half half[2];
} connections[SLOTS];

// An operation that waits for what a later line does.
static struct sleeper {
    bool is, here; // here: the process does nothing else meanwhile
    int slot, process, step, tid, restart;
    struct command order;
} sleepers[2];

static struct actor actors[2][2];
static int to_side[NODES], from_side[NODES], step, actor_of_line;
static long operations;
static double patience_ms = HANG_MS;
static uint32_t numbers;

static _Noreturn void quit(int code)
{
    fflush(stdout);
    for (int i = 0; i < NODES; i++) {
        struct actor *a = &actors[i / 2][i % 2];
        if (code && a->alive)
            kill(a->pid, SIGKILL);
        close(to_side[i]);
    }
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    exit(code);
}

static void begin(int who, int process, const struct command *c)
{
    operations += c->what != SETTLE;
    if (!whole(write_any, to_side[actors[who][process].node], (void *)(uintptr_t)c, sizeof *c))
        quit(3);
}

static struct reply finish(int who, int process, const struct command *c)
{
    struct reply r;
    struct actor *a = &actors[who][process];
    struct pollfd p = {.fd = from_side[a->node], .events = POLLIN};
    siginfo_t end = {0};
    double limit = now_ms() + patience_ms;
    while (poll(&p, 1, 200) != 1 && now_ms() < limit && !end.si_pid)
        waitid(P_PID, (id_t)a->pid, &end, WEXITED | WNOHANG | WNOWAIT);
    if (poll(&p, 1, 0) != 1 || !whole(read, p.fd, &r, sizeof r)) {
        printf("%d %c%d %s in %d call %d flags %x length %zu via %d (%d)\n", step, (process ? 'a' : 'A') + who, c->slot,
               end.si_pid ? "DIED" : "HANG", c->what, c->call, (unsigned)c->flags, c->length, c->via, end.si_status);
        fflush(stdout);
        if (getenv("PLAY_HOLD"))
            pause();
        quit(3);
    }
    return r;
}

static struct reply ask(int who, int process, const struct command *c)
{
    begin(who, process, c);
    return finish(who, process, c);
}

// One line of the log.
static void tell(int who, int process, int slot, const struct reply *r, const char *format, ...)
{
    char name[16] = "";
    if (slot >= 0)
        snprintf(name, sizeof name, "%d", slot);
    printf("%d %c%s ", step, (process ? 'a' : 'A') + who, name);
    va_list list;
    va_start(list, format);
    vprintf(format, list);
    va_end(list);
    printf(" -> %ld %s%s\n", r->value, r->error ? strerrorname_np(r->error) : "", r->text);
}

// ---------------------------------------------------------------------------------------------------- a line

static char line[1000], *words[40];
static int word_count;

static _Noreturn void wrong(const char *what, const char *word)
{
    fprintf(stderr, "play: line %d: %s: %s\n", step, what, word);
    quit(2);
}

static const char *value_of(const char *key)
{
    size_t length = strlen(key);
    for (int i = 0; i < word_count; i++)
        if (!strncmp(words[i], key, length) && words[i][length] == '=')
            return words[i] + length + 1;
    return NULL;
}

static long number(const char *key, long otherwise)
{
    const char *text = value_of(key);
    char *end;
    if (!text)
        return otherwise;
    long value = strtol(text, &end, 10);
    if (*end || end == text || value < 0 || value > LARGE)
        wrong("no number from 0 to 1048576", text);
    return value;
}

// Which of `names` it is; 0 if it is not said.
static int choice(const char *key, const char *const *names)
{
    const char *text = value_of(key);
    if (!text)
        return 0;
    for (int i = 0; names[i]; i++)
        if (!strcmp(text, names[i]))
            return i;
    wrong("not known", text);
}
#define CHOICE(key, ...) choice(key, (const char *const[]){__VA_ARGS__, NULL})

static int flags_of(void)
{
    static const struct { const char *name; int flag; } names[] = {
        {"dontwait", MSG_DONTWAIT}, {"nosignal", MSG_NOSIGNAL}, {"eor", MSG_EOR}, {"more", MSG_MORE},
        {"peek", MSG_PEEK},
        {"waitall", MSG_WAITALL}, {"trunc", MSG_TRUNC}, {"errqueue", MSG_ERRQUEUE},
    };
    const char *text = value_of("flags");
    int flags = 0;
    while (text && *text) {
        size_t length = strcspn(text, ","), i = 0;
        while (i < sizeof names / sizeof *names && (strncmp(text, names[i].name, length) || names[i].name[length]))
            i++;
        if (i == sizeof names / sizeof *names)
            wrong("no such flag", text);
        flags |= names[i].flag;
        text += length + (text[length] == ',');
    }
    return flags;
}

static int events_of(void)
{
    static const struct { char name; int bit; } names[] = {
        {'i', POLLIN}, {'o', POLLOUT}, {'p', POLLPRI}, {'r', POLLRDHUP}, {'I', POLLRDNORM}, {'O', POLLWRNORM},
    };
    const char *text = value_of("events");
    int events = 0;
    for (; text && *text; text++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (names[i].name == *text)
                events |= names[i].bit;
    return events;
}

// ---------------------------------------------------------------------------------------------------- the model

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

// A process of the side that has the connection, `process` if it can be; below 0: none.
static int process_with(int slot, int who, int process)
{
    for (int turn = 0; turn < 2; turn++, process = !process)
        for (int k = 0; k < DUPS && actors[who][process].alive; k++)
            if (connections[slot].half[who].has[process][k] &&
                !(sleepers[who].here && sleepers[who].process == process))
                return process;
    return -1;
}

// A descriptor of the connection in that process, the one that the line names if it can be.
static int descriptor(int slot, int who, int process)
{
    int k = (int)number("fd", 0) % DUPS;
    while (!connections[slot].half[who].has[process][k])
        k = (k + 1) % DUPS;
    return k;
}

static void settle(int slot, int who)
{
    struct connection *c = &connections[slot];
    struct half *h = &c->half[who];
    int process = process_with(slot, who, actor_of_line);
    if (!c->up || !h->open || !h->dirty || process < 0)
        return;
    h->dirty = false;
    struct command look = {.what = SETTLE, .slot = slot, .k = 0, .call = (int)number("look", 0) % 3,
                           .a = expected_state(c, who), .restart = -1};
    look.length = unread(c, who);
    look.stream = c->number * 2 + (uint32_t)!who;
    if ((look.call == 1 && h->lowat > 1) || look.length > SMALL)
        look.call = 0;
    while (!h->has[process][look.k])
        look.k++;
    struct reply r = ask(who, process, &look);
    if (*r.text)
        tell(who, process, slot, &r, "settle");
}

static void settle_side(int who)
{
    for (int s = 0; s < SLOTS; s++)
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

// Updates the model after a successful send of n bytes.
static void sent(struct connection *c, int who, long n)
{
    struct half *other = &c->half[!who];
    if (n <= 0)
        return;
    if (!other->open || (other->fin && other->deaf)) { // no process will read it: the kernel answers with a reset
        c->reset = true;
        changed(c);
        return;
    }
    c->half[who].sent += (uint64_t)n;
    other->dirty = true;
}

static struct command of(int what, int slot, int who, int process)
{
    struct command c = {.what = what, .slot = slot, .restart = -1};
    if (slot >= 0) {
        c.k = descriptor(slot, who, process);
        c.stream = connections[slot].number * 2 + (uint32_t)who;
    }
    return c;
}

static void wake(int who)
{
    struct sleeper *s = &sleepers[who];
    struct connection *c = &connections[s->slot];
    struct command join = {.what = JOIN, .slot = s->slot, .restart = -1};
    if (!s->here)
        begin(who, s->process, &join);
    struct reply r = finish(who, s->process, &s->order);
    int was = step;
    step = s->step;
    tell(who, s->process, s->slot, &r, "slept in %d call %d length %zu", s->order.what, s->order.call, s->order.length);
    step = was;
    if (s->order.what == RECEIVE && r.value > 0)
        c->half[who].got += (uint64_t)r.value;
    s->is = s->here = false;
}

// The sleeper whose time has come.
static void wake_whom_something_came(void)
{
    for (int who = 0; who < 2; who++)
        if (sleepers[who].is &&
            (unread(&connections[sleepers[who].slot], who) || ended(&connections[sleepers[who].slot], who)))
            wake(who);
}

// Has the other end send something.
static void rouse(int who)
{
    struct sleeper *s = &sleepers[who];
    if (!s->is)
        return;
    if (sleepers[!who].here)
        rouse(!who);
    int process = process_with(s->slot, !who, 0);
    struct command push = of(SEND, s->slot, !who, process);
    push.position = connections[s->slot].half[!who].sent;
    push.call = SENDC;
    push.length = 3;
    push.flags = MSG_NOSIGNAL;
    struct reply r = ask(!who, process, &push);
    tell(!who, process, s->slot, &r, "push");
    sent(&connections[s->slot], !who, r.value);
    wake(who);
}

static void rouse_all(void)
{
    rouse(0);
    rouse(1);
}

static void control(int slot, int who, int process, int k, int set, int call, uint32_t events)
{
    struct command order = of(CONTROL, slot, who, process);
    order.k = k;
    order.a = set;
    order.call = call;
    order.flags = (int)events;
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "epoll_ctl %d set %d by %d events %x", call, set, k, events);
    if (!r.value)
        connections[slot].half[who].kinds[process][set][k] = call == EPOLL_CTL_DEL ? 0 : events | EPOLLERR;
}

static void drop(int slot, int who, int process, int k)
{
    struct half *h = &connections[slot].half[who];
    h->has[process][k] = false;
    h->open--;
    h->kinds[process][LEVEL][k] = h->kinds[process][EDGE][k] = 0;
}

// A registration outlives its descriptor if the socket has another one: that is a known difference.
static void forget(int slot, int who, int process, int k)
{
    struct half *h = &connections[slot].half[who];
    for (int set = LEVEL; set <= EDGE; set++)
        if (h->kinds[process][set][k] && (h->open > 1 || number("forget", 0)))
            control(slot, who, process, k, set, EPOLL_CTL_DEL, 0);
}

// Updates the model after the last descriptor has gone.
static void gone(int slot, int who)
{
    struct connection *c = &connections[slot];
    if (c->half[who].open)
        return;
    if (unread(c, who) && !(c->half[who].fin && c->half[!who].fin))
        c->reset = true;
    c->half[who].fin = c->half[who].deaf = true;
    changed(c);
    if (!c->half[!who].open)
        c->up = false;
}

static void close_one(int slot, int who, int process, int k)
{
    settle_both(slot);
    forget(slot, who, process, k);
    struct command order = of(CLOSE, slot, who, process);
    order.k = k;
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "close %d with %llu unread", k, (unsigned long long)unread(&connections[slot], who));
    drop(slot, who, process, k);
    gone(slot, who);
}

// ---------------------------------------------------------------------------------------------------- the lines

static void connect_line(int slot, int who, int process)
{
    (void)process; // the main process connects, whichever was named
    struct connection *c = &connections[slot];
    if (c->up && !c->reset && !(ended(c, 0) || ended(c, 1)))
        return; // it is still good
    for (int w = 0; w < 2; w++)
        for (int p = 0; p < 2; p++)
            for (int k = 0; k < DUPS; k++)
                if (c->up && c->half[w].has[p][k])
                    close_one(slot, w, p, k);
    long nodelay = number("nodelay", 1);
    memset(c, 0, sizeof *c);
    struct command order = {.what = LISTEN, .slot = -1, .restart = -1};
    struct reply r = ask(!who, 0, &order);
    order = (struct command){.what = CONNECT, .slot = slot, .a = (int)r.value, .restart = -1};
    r = ask(who, 0, &order);
    tell(who, 0, slot, &r, "connect");
    order = (struct command){
        .what = ACCEPT, .slot = slot, .flags = number("nonblock", 0) ? SOCK_NONBLOCK : 0, .restart = -1};
    c->half[!who].nonblocking = order.flags;
    r = ask(!who, 0, &order);
    tell(!who, 0, slot, &r, "accept nonblocking=%d", order.flags != 0);
    c->up = true;
    c->number = ++numbers;
    for (int w = 0; w < 2; w++) {
        c->half[w].open = 1;
        c->half[w].has[0][0] = true;
        order = (struct command){.what = OPTION, .slot = slot, .a = 8, .b = (int)nodelay, .restart = -1};
        ask(w, 0, &order);
    }
}

static const char *const SEND_NAMES[] = {"write",    "writev",   "send",     "sendto", "sendmsg",
                                         "sendmmsg", "sendfile", "pwritev2", "splice", NULL};
static const char *const RECEIVE_NAMES[] = {"read", "readv", "recv", "recvfrom", "recvmsg", "recvmmsg", "preadv2",
                                            "splice", NULL};
static const char *const POLL_NAMES[] = {"poll", "ppoll", "select", "pselect", NULL};
static const char *const VIA_NAMES[] = {"here", "thread", "child", NULL};
static const char *const SET_NAMES[] = {"level", "edge", "nest", NULL};

static void send_line(int slot, int who, int process)
{
    struct connection *c = &connections[slot];
    struct half *h = &c->half[who];
    uint64_t waiting = unread(c, !who);
    struct command order = of(SEND, slot, who, process);
    if (c->half[!who].killed && !c->half[!who].open) // this side learns later that no process reads it
        return;
    order.call = choice("call", SEND_NAMES);
    order.via = choice("via", VIA_NAMES);
    order.shape = (int)number("shape", 0);
    order.position = h->sent;
    order.length = (size_t)number("len", 1);
    if (waiting + order.length > SMALL) // beyond that the kernel may take a part
        order.length = waiting >= SMALL ? 0 : SMALL - waiting;
    if (order.call >= SENDC && order.call <= SENDMMSG)
        order.flags = flags_of() & (MSG_NOSIGNAL | MSG_DONTWAIT | MSG_EOR | MSG_MORE);
    if (order.call == SPLICE_IN && !order.length)
        order.length = 1;
    if (sleepers[!who].is &&
        sleepers[!who].slot == slot) { // in one piece, or what he gets depends on how soon he looks
        order.flags &= ~MSG_MORE;
        order.length = order.length > 2000 ? 2000 : order.length;
        order.call = order.call == SENDMMSG || order.call == SENDFILE || order.call == SPLICE_IN ? SENDMSG : order.call;
    }
    settle(slot, who);
    if (order.flags & MSG_MORE) { // and the rest at once
        struct reply r = ask(who, process, &order);
        tell(who, process, slot, &r, "send more %zu flags %x", order.length, (unsigned)order.flags);
        sent(c, who, r.value);
        order.position = h->sent;
        order.flags &= ~MSG_MORE;
        order.length = 1 + order.length % 7;
        if (c->reset)
            settle(slot, who);
    }
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "%s %zu flags %x via %d by %d", SEND_NAMES[order.call], order.length,
         (unsigned)order.flags, order.via, order.k);
    sent(c, who, r.value);
}

static void receive_line(int slot, int who, int process)
{
    struct connection *c = &connections[slot];
    struct half *h = &c->half[who];
    uint64_t waiting = unread(c, who);
    struct command order = of(RECEIVE, slot, who, process);
    const char *length = value_of("len");
    order.stream = c->number * 2 + (uint32_t)!who;
    order.position = h->got;
    order.call = choice("call", RECEIVE_NAMES);
    order.via = choice("via", VIA_NAMES);
    order.shape = (int)number("shape", 0);
    order.length = length && !strcmp(length, "rest") ? waiting : (size_t)number("len", 100);
    bool flagged = order.call >= RECV && order.call <= RECVMMSG;
    if (flagged)
        order.flags = flags_of() & (MSG_DONTWAIT | MSG_PEEK | MSG_WAITALL | MSG_TRUNC | MSG_ERRQUEUE);
    if (order.call == RECVMMSG)
        order.flags = (order.flags & ~(MSG_TRUNC | MSG_WAITALL)) | MSG_WAITFORONE;
    if (order.flags & MSG_ERRQUEUE)
        order.flags &= ~MSG_TRUNC;
    if (order.call == SPLICE_OUT) {
        order.length = order.length > waiting ? waiting : order.length;
        order.length = order.length > 60000 ? 60000 : order.length ? order.length : 1; // a pipe holds no more
    }
    // If it would wait for ever, it must not wait, or only for a short time.
    uint64_t need = h->lowat > 1 ? (uint64_t)h->lowat : 1;
    if (order.flags & MSG_WAITALL && order.length > need)
        need = order.length;
    bool waits = !h->nonblocking && !(order.flags & (MSG_DONTWAIT | MSG_ERRQUEUE)) && !ended(c, who) && waiting < need;
    bool zero = !order.length && (order.call == READ || order.call == READV || order.call == PREADV2);
    bool timed = false;
    if (waits && !zero) {
        timed = order.call == READ || order.call == READV || order.call == SPLICE_OUT || number("timed", 0);
        if (order.call == PREADV2)
            timed = false;
        if (!timed)
            order.flags |= MSG_DONTWAIT;
    }
    bool lazy = flagged && order.flags & MSG_WAITALL && order.length <= waiting && order.length && number("lazy", 0);
    if (!lazy || timed || order.flags & (MSG_PEEK | MSG_DONTWAIT) || h->nonblocking)
        settle(slot, who);
    struct command timeout = of(OPTION, slot, who, process);
    timeout.a = 9;
    timeout.b = 4;
    if (timed) {
        struct reply r = ask(who, process, &timeout);
        tell(who, process, slot, &r, "timeout");
    }
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "%s %zu of %llu flags %x via %d by %d", RECEIVE_NAMES[order.call], order.length,
         (unsigned long long)waiting, (unsigned)order.flags, order.via, order.k);
    if (timed) {
        timeout.b = 0;
        ask(who, process, &timeout);
    }
    if (r.value > 0 && !(order.flags & (MSG_PEEK | MSG_ERRQUEUE)))
        h->got += (uint64_t)r.value;
}

static void poll_line(int slot, int who, int process)
{
    struct command order = of(POLL, slot, who, process);
    order.call = choice("call", POLL_NAMES);
    order.a = events_of();
    if (order.call >= BY_SELECT)
        order.a &= ~(POLLRDNORM | POLLWRNORM);
    order.b = number("nest", 0) ? NEST : LEVEL;
    order.via = choice("via", VIA_NAMES);
    if (number("all", 0))
        order.slot = -1;
    settle_side(who);
    struct reply r = ask(who, process, &order);
    tell(who, process, order.slot, &r, "poll %d events %s", order.call, bits(order.a));
}

static void ctl_line(int slot, int who, int process)
{
    struct half *h = &connections[slot].half[who];
    int k = descriptor(slot, who, process), set = CHOICE("set", "level", "edge");
    uint32_t events = (uint32_t)events_of() | (set == EDGE ? EPOLLET : 0) | (number("shot", 0) ? EPOLLONESHOT : 0);
    events &= ~(uint32_t)(POLLRDNORM | POLLWRNORM);
    int op = CHOICE("op", "fit", "add", "mod", "del");
    static const int calls[] = {0, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL};
    settle(slot, who);
    control(slot, who, process, k, set,
            op ? calls[op] : h->kinds[process][set][k] ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, events);
}

static void wait_line(int slot, int who, int process)
{
    (void)slot;
    struct command order = of(EPOLL, -1, who, process);
    order.a = choice("set", SET_NAMES);
    order.call = CHOICE("call", "wait", "pwait", "pwait2");
    order.via = choice("via", VIA_NAMES) == IN_THREAD ? IN_THREAD : HERE;
    settle_side(who);
    struct reply r = ask(who, process, &order);
    tell(who, process, -1, &r, "epoll set %d", order.a);
}

static void dup_line(int slot, int who, int process)
{
    struct half *h = &connections[slot].half[who];
    int from = descriptor(slot, who, process), to = 0;
    while (to < DUPS && h->has[process][to])
        to++;
    if (to == DUPS) {
        close_one(slot, who, process, from);
        return;
    }
    struct command order = of(DUP, slot, who, process);
    order.call = CHOICE("call", "dup", "dupfd", "dup2", "dup3", "mail");
    order.a = -1;
    order.shape = to;
    int victim = (int)number("over", slot) % SLOTS, lost = -1;
    struct connection *v = &connections[victim];
    if ((order.call == 2 || order.call == 3) && victim != slot && v->up) {
        for (int k = 0; k < DUPS; k++)
            if (v->half[who].has[process][k])
                lost = k;
        if (lost >= 0) {
            settle_both(victim);
            forget(victim, who, process, lost);
            order.a = lost;
            order.b = victim;
        }
    }
    settle(slot, who);
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "dup %d by %d over %d.%d", order.call, from, lost < 0 ? -1 : victim, lost);
    h->has[process][to] = true;
    h->open++;
    if (lost >= 0) {
        drop(victim, who, process, lost);
        gone(victim, who);
    }
}

static void shutdown_line(int slot, int who, int process)
{
    struct connection *c = &connections[slot];
    struct half *h = &c->half[who];
    static const int kinds_of_end[] = {SHUT_WR, SHUT_RD, SHUT_RDWR};
    struct command order = of(SHUTDOWN, slot, who, process);
    order.a = kinds_of_end[CHOICE("how", "wr", "rd", "rdwr")];
    settle_both(slot);
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "shutdown %d", order.a);
    if (order.a != SHUT_RD)
        h->fin = true;
    if (order.a != SHUT_WR)
        h->deaf = true;
    changed(c);
}

static void option_line(int slot, int who, int process)
{
    struct half *h = &connections[slot].half[who];
    struct command order = of(OPTION, slot, who, process);
    order.a = (int)number("get", 0) % 9;
    if (order.a == 8)
        order.a = 12;
    if (number("lowat", 0)) {
        if (unread(&connections[slot], who)) // for what is there already it need not hold: see docs/limits.md
            return;
        order.a = 10, order.b = h->lowat = (int)number("lowat", 0) % 100;
    }
    if (number("linger", 0)) {
        if (h->open > 1)
            return;
        order.a = 11;
    }
    settle(slot, who);
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "option %d", order.a);
    if (order.a == 11) { // a close that resets
        close_one(slot, who, process, order.k);
        connections[slot].reset = true;
    }
}

// The size of each piece of a transfer: small ones take more of the kernel's buffers.
static int piece(const char *key)
{
    long size = number(key, CHUNK);
    return size < 1000 ? 1000 : (int)size;
}

// Many bytes at once: the one sends while the other receives, or before.
static void bulk_line(int slot, int who, int process)
{
    struct connection *c = &connections[slot];
    int reader_process = process_with(slot, !who, 0);
    bool before = number("before", 0);
    size_t length = (size_t)number("len", 1000);
    if (before && length > UNREAD)
        length = UNREAD;
    if (!length || reader_process < 0 || length + unread(c, !who) > LARGE || ended(c, !who) || c->half[who].fin)
        return;
    struct command out = of(SEND, slot, who, process), in = of(RECEIVE, slot, !who, reader_process);
    out.length = length;
    out.call = SEND_ALL;
    out.position = c->half[who].sent;
    out.a = piece("piece");
    out.flags = number("dontwait", 0) ? MSG_DONTWAIT : 0;
    in.call = RECV_ALL;
    in.stream = out.stream;
    in.position = c->half[!who].got;
    in.length = length + unread(c, !who);
    in.a = piece("take");
    in.flags = number("waitall", 0) ? MSG_WAITALL : 0;
    settle_both(slot);
    begin(who, process, &out);
    struct reply sender, reader;
    if (before)
        sender = finish(who, process, &out);
    reader = ask(!who, reader_process, &in);
    if (!before)
        sender = finish(who, process, &out);
    tell(who, process, slot, &sender, "bulk %zu by %d flags %x before=%d", length, out.a, (unsigned)out.flags, before);
    tell(!who, reader_process, slot, &reader, "takes %zu by %d flags %x", in.length, in.a, (unsigned)in.flags);
    sent(c, who, sender.value);
    if (reader.value > 0)
        c->half[!who].got += (uint64_t)reader.value;
}

// Sends until nothing more goes, then has all received. How much that is differs from run to run and is not told.
static void fill_line(int slot, int who, int process)
{
    struct connection *c = &connections[slot];
    int reader = process_with(slot, !who, 0);
    if (ended(c, !who) || ended(c, who) || c->half[who].fin || reader < 0 || c->half[!who].lowat > 1)
        return;
    settle_both(slot);
    struct command order = of(FILL, slot, who, process);
    order.position = c->half[who].sent;
    uint32_t stream = order.stream;
    struct reply r = ask(who, process, &order);
    sent(c, who, r.value);
    r.value = r.value > 0;
    tell(who, process, slot, &r, "fill");
    order = of(POLL, slot, who, process);
    order.a = POLLOUT;
    ask(who, process, &order); // by now there may be room again
    order = of(DRAIN, slot, !who, reader);
    order.position = c->half[!who].got;
    order.stream = stream;
    order.length = unread(c, !who);
    order.a = piece("take");
    r = ask(!who, reader, &order);
    bool all = r.value == (long)order.length;
    c->half[!who].got += (uint64_t)r.value;
    r.value = all;
    tell(!who, reader, slot, &r, "drain by %d", order.a);
    order = of(WRITABLE, slot, who, process);
    r = ask(who, process, &order);
    tell(who, process, slot, &r, "writable again");
}

static void sleep_line(int slot, int who, int process)
{
    struct connection *c = &connections[slot];
    struct half *h = &c->half[who];
    struct sleeper *s = &sleepers[who];
    int in = CHOICE("in", "receive", "poll", "wait"), set = CHOICE("set", "level", "edge");
    if (s->is || unread(c, who) || ended(c, who) || h->lowat > 1 || process_with(slot, !who, 0) < 0)
        return;
    settle_side(who);
    settle_both(slot);
    struct command order = of(RECEIVE, slot, who, process);
    if (in == 2) {
        bool told = false;
        for (int k = 0; k < DUPS; k++) {
            uint32_t kind = h->kinds[process][set][k];
            told |= kind & EPOLLIN && !(kind & (EPOLLONESHOT | EPOLLOUT));
        }
        order = of(EPOLL, -1, who, process);
        order.a = set;
        order.b = 1;
        struct reply r = told ? ask(who, process, &order) : (struct reply){0};
        if (!told || r.value)
            return; // the set is not quiet
        order.b = 0;
        order.flags = LATE_MS;
    } else if (in == 1 || h->nonblocking) {
        order.what = POLL;
        order.a = POLLIN;
        order.call = choice("call", POLL_NAMES);
        order.flags = LATE_MS;
    } else {
        order.stream = c->number * 2 + (uint32_t)!who;
        order.position = h->got;
        order.call =
            CHOICE("call", "read", "readv", "recv", "recvfrom", "recvmsg", "ppoll", "select", "pselect", "poll") % 5;
        order.length = 1 + (size_t)number("len", 100) % SMALL;
        order.shape = (int)number("shape", 0);
    }
    order.restart = (int)number("restart", 0) & 1;
    bool here = choice("via", VIA_NAMES) == HERE && !sleepers[!who].here;
    order.via = here ? HERE : IN_BACKGROUND;
    *s = (struct sleeper){.is = true, .here = here, .slot = slot, .process = process, .step = step,
                          .restart = order.restart, .order = order};
    begin(who, process, &order);
    s->tid = here ? actors[who][process].pid : (int)finish(who, process, &order).value;
}

// Whether the thread sleeps in the kernel.
static bool is_asleep(pid_t pid, int tid)
{
    char path[64], text[300] = "", *state;
    snprintf(path, sizeof path, "/proc/%d/task/%d/stat", pid, tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    return n > 0 && (state = strrchr(text, ')')) && state[2] == 'S';
}

static void kick_line(int slot, int who, int process)
{
    (void)slot, (void)process;
    struct sleeper *s = &sleepers[who];
    if (!s->is)
        return;
    struct actor *a = &actors[who][s->process];
    int before = shared->kicked[a->node], seen = 0;
    double end = now_ms() + LATE_MS;
    // It may do something short before it sleeps for what it came for.
    for (int looks = 0; looks < 4 && now_ms() < end; usleep(300))
        looks = is_asleep(a->pid, s->tid) ? looks + 1 : 0;
    syscall(SYS_tgkill, a->pid, s->tid, SIGUSR1);
    while (!seen && now_ms() < end) {
        usleep(50);
        seen = *(volatile int *)&shared->kicked[a->node] - before;
    }
    struct reply r = {.value = seen};
    operations++;
    tell(who, s->process, s->slot, &r, "kick restart=%d", s->restart);
    if (!s->restart || s->order.what != RECEIVE)
        wake(who);
}

static void urgent_line(int slot, int who, int process)
{
    struct connection *c = &connections[slot];
    int reader = process_with(slot, !who, 0);
    if (ended(c, !who) || c->half[who].fin || unread(c, !who) || reader < 0)
        return;
    settle_both(slot);
    struct command order = of(SEND, slot, who, process);
    order.call = SENDC;
    order.flags = MSG_OOB;
    order.length = 1;
    order.stream = 0;
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "urgent");
    order = of(POLL, slot, !who, reader);
    order.a = POLLPRI;
    order.flags = LATE_MS;
    r = ask(!who, reader, &order);
    tell(!who, reader, slot, &r, "poll for urgent data");
    order = of(RECEIVE, slot, !who, reader);
    order.call = RECV;
    order.flags = MSG_OOB;
    order.length = 1;
    r = ask(!who, reader, &order);
    tell(!who, reader, slot, &r, "recv urgent");
    order.flags = MSG_DONTWAIT;
    order.length = 10;
    r = ask(!who, reader, &order);
    tell(!who, reader, slot, &r, "recv behind it");
}

// Messages to and fro, as programs send them.
static void chat_line(int slot, int who, int process)
{
    struct connection *c = &connections[slot];
    int processes[2], turns = 1 + (int)number("turns", 4) % 100;
    size_t length = 1 + (size_t)number("len", 10) % SMALL;
    processes[who] = process;
    processes[!who] = process_with(slot, !who, 0);
    if (ended(c, 0) || ended(c, 1) || processes[!who] < 0)
        return;
    settle_both(slot);
    for (int i = 0; i < turns; i++, who = !who) {
        struct command out = of(SEND, slot, who, processes[who]);
        out.call = SENDC;
        out.length = length;
        out.position = c->half[who].sent;
        struct reply r = ask(who, processes[who], &out);
        sent(c, who, r.value);
        struct command in = of(RECEIVE, slot, !who, processes[!who]);
        in.call = RECV_ALL;
        in.length = unread(c, !who);
        in.stream = out.stream;
        in.position = c->half[!who].got;
        in.a = LARGE;
        r = ask(!who, processes[!who], &in);
        if (r.value != (long)in.length || strcmp(r.text, " right"))
            tell(!who, processes[!who], slot, &r, "chat %d of %zu", i, in.length);
        if (r.value > 0)
            c->half[!who].got += (uint64_t)r.value;
    }
    printf("%d chat %d x %zu\n", step, turns, length);
}

static void fork_line(int slot, int who, int process)
{
    (void)slot, (void)process;
    struct actor *main_one = &actors[who][0], *child = &actors[who][1];
    if (child->alive)
        return;
    *child = (struct actor){.node = main_one->node ^ 1, .alive = true};
    struct command order = {.what = FORK, .slot = -1, .a = child->node, .restart = -1};
    struct reply r = ask(who, 0, &order);
    child->pid = (pid_t)r.value;
    r.value = r.value > 0;
    tell(who, 0, -1, &r, "fork");
    for (int s = 0; s < SLOTS; s++) {
        struct half *h = &connections[s].half[who];
        for (int k = 0; k < DUPS; k++)
            if ((h->has[1][k] = h->has[0][k]))
                h->open++;
        memset(h->kinds[1], 0, sizeof h->kinds[1]);
    }
}

// One of the two processes of a side goes, and its descriptors with it.
static void end_process(int who, int process)
{
    struct actor *a = &actors[who][process];
    if (!actors[who][1].alive)
        return;
    int how = CHOICE("how", "exit", "_exit", "kill");
    for (int s = 0; s < SLOTS; s++) {
        const struct half *h = &connections[s].half[who];
        bool last =
            connections[s].up && h->open && h->open == h->has[process][0] + h->has[process][1] + h->has[process][2];
        // If a process is killed with bytes unread, the other end learns that later: see docs/limits.md.
        if (how == 2 && last && unread(&connections[s], who))
            return;
    }
    for (int s = 0; s < SLOTS; s++)
        settle_both(s);
    for (int s = 0; s < SLOTS; s++) // a set that others have told of it may outlive the process
        for (int k = 0; k < DUPS; k++)
            if (connections[s].half[who].has[process][k])
                forget(s, who, process, k);
    struct command bye = {.what = QUIT, .slot = -1, .a = how, .restart = -1};
    if (how < 2)
        begin(who, process, &bye);
    struct reply r = {0};
    if (process) {
        struct command reap = {.what = REAP, .slot = -1, .a = a->pid, .b = how == 2, .restart = -1};
        r = ask(who, 0, &reap);
    } else {
        int status = 0;
        if (how == 2)
            kill(a->pid, SIGKILL);
        waitpid(a->pid, &status, 0);
        r.value = status;
    }
    if (how == 2) // which says nothing: the other end asks its kernel within a millisecond
        usleep(2000);
    tell(who, process, -1, &r, "ends %d", how);
    for (int s = 0; s < SLOTS; s++) {
        struct half *h = &connections[s].half[who];
        bool had = false;
        for (int k = 0; k < DUPS; k++)
            if (h->has[process][k]) {
                drop(s, who, process, k);
                had = true;
            }
        if (!process) {
            memcpy(h->has[0], h->has[1], sizeof h->has[0]);
            memcpy(h->kinds[0], h->kinds[1], sizeof h->kinds[0]);
            memset(h->has[1], 0, sizeof h->has[1]);
            memset(h->kinds[1], 0, sizeof h->kinds[1]);
        }
        if (had)
            gone(s, who);
        h->killed |= how == 2 && had;
    }
    if (!process)
        actors[who][0] = actors[who][1];
    actors[who][1].alive = false;
}

static void leave_line(int slot, int who, int process)
{
    (void)slot, (void)process;
    end_process(who, 1);
}

static void succeed_line(int slot, int who, int process)
{
    (void)slot, (void)process;
    end_process(who, 0);
}

static void inquire_line(int slot, int who, int process)
{
    struct command order = of(INQUIRE, slot, who, process);
    order.call = CHOICE("what", "unread", "mark", "pread", "pwrite", "lseek", "fsync", "ftruncate");
    settle(slot, who);
    struct reply r = ask(who, process, &order);
    unsigned long long waiting = unread(&connections[slot], who);
    tell(who, process, slot, &r, "inquire %d, unread %llu", order.call, waiting);
}

static void outq_line(int slot, int who, int process)
{
    const struct connection *c = &connections[slot];
    if (unread(c, !who) || c->reset || process_with(slot, !who, 0) < 0)
        return;
    struct command order = of(OUTQ, slot, who, process);
    settle_both(slot);
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "SIOCOUTQ");
}

static void name_line(int slot, int who, int process)
{
    struct command order = of(NAME, slot, who, process);
    order.a = (int)number("peer", 0);
    settle(slot, who);
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "name %d", order.a);
}

static void blocking_line(int slot, int who, int process)
{
    struct command order = of(BLOCKING, slot, who, process);
    order.a = !number("set", 0);
    order.call = !number("ioctl", 0);
    struct reply r = ask(who, process, &order);
    tell(who, process, slot, &r, "nonblocking=%d", order.a);
    connections[slot].half[who].nonblocking = order.a;
}

static void close_line(int slot, int who, int process)
{
    close_one(slot, who, process, descriptor(slot, who, process));
}

enum { NEEDS_SIDE, NEEDS_NUMBER, NEEDS_CONNECTION };
static const struct verb {
    const char *name;
    int needs; // a side, or also the number of a connection, or also that this connection is up
    void (*carry_out)(int slot, int who, int process);
} verbs[] = {
    {"connect", NEEDS_NUMBER, connect_line}, {"send", NEEDS_CONNECTION, send_line},
    {"receive", NEEDS_CONNECTION, receive_line}, {"poll", NEEDS_CONNECTION, poll_line},
    {"ctl", NEEDS_CONNECTION, ctl_line}, {"wait", NEEDS_SIDE, wait_line},
    {"option", NEEDS_CONNECTION, option_line}, {"inquire", NEEDS_CONNECTION, inquire_line},
    {"outq", NEEDS_CONNECTION, outq_line}, {"name", NEEDS_CONNECTION, name_line},
    {"blocking", NEEDS_CONNECTION, blocking_line}, {"shutdown", NEEDS_CONNECTION, shutdown_line},
    {"close", NEEDS_CONNECTION, close_line}, {"dup", NEEDS_CONNECTION, dup_line},
    {"bulk", NEEDS_CONNECTION, bulk_line}, {"fill", NEEDS_CONNECTION, fill_line},
    {"chat", NEEDS_CONNECTION, chat_line}, {"urgent", NEEDS_CONNECTION, urgent_line},
    {"sleep", NEEDS_CONNECTION, sleep_line}, {"kick", NEEDS_SIDE, kick_line},
    {"fork", NEEDS_SIDE, fork_line}, {"leave", NEEDS_SIDE, leave_line},
    {"succeed", NEEDS_SIDE, succeed_line},
};

static const struct verb *verb_called(const char *name)
{
    for (size_t i = 0; i < sizeof verbs / sizeof *verbs; i++)
        if (!strcmp(name, verbs[i].name))
            return &verbs[i];
    wrong("no such operation", name);
}

static bool is_one_of(const char *word, const char *list)
{
    size_t length = strlen(word);
    const char *at = strstr(list, word);
    return at && (at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length]);
}

// Operations that may happen while a thread sleeps, without its noticing more than the model does. For all others it is
// woken first.
static bool goes_on_beside(const struct sleeper *s, int sleeper, const char *verb, int who, int slot)
{
    const char *harmless = "send inquire name option outq shutdown poll";
    if (!strcmp(verb, "kick"))
        return true;
    if (number("linger", 0) || number("lowat", 0) || number("all", 0))
        return false;
    if (who != sleeper)
        return slot == s->slot && (is_one_of(verb, harmless) || is_one_of(verb, "receive close"));
    if (s->here)
        return false;
    if (slot == s->slot)
        return is_one_of(verb, harmless) || (!strcmp(verb, "fork") && s->order.what != EPOLL);
    return s->order.what != EPOLL && is_one_of(verb, "send receive inquire name option outq poll ctl fork chat dup");
}

// Reads who is to do it: the side, and the number of the connection, or -1 where none is named.
static int read_place(const char *place, int *slot)
{
    int side = strchr("Aa", place[0]) ? 0 : strchr("Bb", place[0]) ? 1 : -1;
    *slot = place[1] ? place[1] - '0' : -1;
    if (side < 0 || *slot >= SLOTS || (place[1] && place[2]))
        wrong("neither A nor B with a number from 0 to 2", place);
    return side;
}

static void one_line(void)
{
    char *rest = NULL;
    word_count = 0;
    for (char *word = strtok_r(line, " \t\n", &rest); word && word_count < 40; word = strtok_r(NULL, " \t\n", &rest))
        words[word_count++] = word;
    if (!word_count || *words[0] == '#')
        return;
    if (!strcmp(words[0], "pause")) {
        usleep((useconds_t)number("us", 0));
        return;
    }
    const char *place = words[0];
    int slot, side = read_place(place, &slot);
    const struct verb *verb = verb_called(word_count > 1 ? words[1] : "");
    if (verb->needs != NEEDS_SIDE && slot < 0)
        wrong("which connection? A0, for example", place);
    int process = place[0] >= 'a' && actors[side][1].alive;
    actor_of_line = process;
    for (int w = 0; w < 2; w++)
        if (sleepers[w].is && !goes_on_beside(&sleepers[w], w, verb->name, side, slot))
            rouse(w);
    if (verb->needs == NEEDS_CONNECTION) {
        if (!connections[slot].up || (process = process_with(slot, side, process)) < 0)
            return;
        actor_of_line = process;
    }
    verb->carry_out(slot, side, process);
    wake_whom_something_came();
}

int main(int count, char **values)
{
    FILE *program = count == 2 ? fopen(values[1], "re") : NULL;
    if (!program) {
        fprintf(stderr, count == 2 ? "play: cannot read %s\n" : "usage: play FILE\n", values[count - 1]);
        return 2;
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    if (getenv("PLAY_PATIENCE_MS"))
        patience_ms = atof(getenv("PLAY_PATIENCE_MS"));
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    for (int n = 0; n < NODES; n++) {
        int there[2], back[2];
        if (pipe2(there, O_CLOEXEC) || pipe2(back, O_CLOEXEC))
            die("pipe");
        shared->pipes[n][0] = there[0];
        shared->pipes[n][1] = back[1];
        to_side[n] = there[1];
        from_side[n] = back[0];
    }
    for (int who = 0; who < 2; who++) {
        pid_t pid = fork();
        if (!pid) {
            for (int n = 0; n < NODES; n++) {
                close(to_side[n]);
                close(from_side[n]);
                if (n / 2 != who) {
                    close(shared->pipes[n][0]);
                    close(shared->pipes[n][1]);
                }
            }
            side(who * 2);
        }
        actors[who][0] = (struct actor){.node = who * 2, .pid = pid, .alive = true};
    }
    for (int n = 0; n < NODES; n++) {
        close(shared->pipes[n][0]);
        close(shared->pipes[n][1]);
    }
    for (step = 1; fgets(line, sizeof line, program); step++)
        one_line();
    rouse_all();
    printf("done: %ld operations\n", operations);
    quit(0);
}
