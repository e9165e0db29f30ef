// A soak test of connections that are shared by, or handed between, processes and threads.
//
//     processes SEED SECONDS [ROUND]
//
// Each round opens a few connections over loopback and plays a script on each: phases in which one side sends so many
// bytes, or both do at once. Which process or thread makes the next call, by which call, and on which descriptor, is
// drawn at random: a side forks, executes itself, passes the descriptor on, sleeps in it, is killed, and goes on. At
// any time only one of a side's processes reads and only one writes, so the stream is well defined on kernel TCP. Both
// ends check every byte against a pattern, and what the calls return against what kernel TCP returns.
//
// A side's position in its script lies in memory that all processes of a round share, so that the next process goes on
// where the last one stopped. A round that stands still is reported with its seed and the last events of every
// connection. With ROUND only that round is played. The environment:
//
//     PROCESSES_SKIP=word,word   leave these choices out (the words of the tables here and in processes/unable.c)
//     PROCESSES_CONNS=n          so many connections in each round
//     PROCESSES_HOLD=1           leave a round that is stuck as it is, for a debugger
//     PROCESSES_TRACE=1          print the events of a failed round in full
//
// Its last line counts images that could not go on with the library, and resets that came of them: processes/unable.c.
// Exit code 0 only if everything agreed.
#include "processes/play.h"
#include "processes/unable.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
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
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---------------------------------------------------------------------------------------------------------- choices

// The possible choices; the words are for PROCESSES_SKIP and for the events.
enum { FORK, KILLED, CREW, THREAD, EXEC, REPLACE, PASS, DUP, CHURN, NONBLOCK, IDLE, UNABLE, SILENT, HANDS };
static const char *const HAND[HANDS] = {"fork", "killed", "crew", "thread", "exec", "replace", "pass", "dup", "churn",
                                        "nonblock", "idle", "unable", "silent"};
enum { SEND, WRITE, WRITEV, SENDMSG, SENDMMSG, SEND_DONTWAIT, MORE, SENDFILE, FWRITE, SPLICE_IN, SENDS };
static const char *const SENDER[SENDS] = {"send", "write", "writev", "sendmsg", "sendmmsg", "send-dontwait",
                                          "more", "sendfile", "fwrite", "splice-in"};
enum { RECV, READ, READV, RECVMSG, RECVMMSG, WAITALL, PEEK, RECV_DONTWAIT, COUNTED, FREAD, SPLICE_OUT, RECEIVES };
static const char *const RECEIVER[RECEIVES] = {"recv", "read", "readv", "recvmsg", "recvmmsg", "waitall", "peek",
                                               "recv-dontwait", "fionread", "fread", "splice-out"};
enum { BY_THREADS, BY_FORK, BY_FORK_SENDING, BY_EXEC, BY_POLL, DUPLEXES };
static const char *const DUPLEX[DUPLEXES] = {"duplex-threads", "duplex-fork", "duplex-fork-sending", "duplex-exec",
                                             "duplex-poll"};
static const char *const END[ENDS] = {"end-close", "end-half", "end-reset", "end-unread", "end-shutdown", "end-kill"};
enum { SERVE_FORK, SERVE_PREFORK, SERVE_EXCLUSIVE, SERVE_PASS, SERVE_PASS_STRANGER, SERVE_THREADS, SERVES };
static const char *const SERVE[SERVES] = {"serve-fork", "serve-prefork", "serve-exclusive", "serve-pass",
                                          "serve-pass-stranger", "serve-threads"};
enum { CALL_THREADS, CALL_FORK, CALL_CONNECT_FORK, CALLS };
static const char *const CALL[CALLS] = {"call-threads", "call-fork", "call-connect-fork"};
enum { ONE_PROCESS, FORKED, EXECUTED, EXECUTED_CLIENT, PLACES };
static const char *const PLACE[PLACES] = {"one-process", "forked", "executed", "executed-client"};
enum { QUIET, RESTARTING, INTERRUPTING, NOISES };
static const char *const NOISE[NOISES] = {"quiet", "restarting", "interrupting"};
enum { BY_RECV, BY_WAIT, BY_KILLED_CHILD, BY_TIMEOUT, BY_SIGNAL, IDLES };
static const char *const IDLER[IDLES] = {"idle-recv", "idle-wait", "idle-killed", "idle-timeout", "idle-signal"};

// -------------------------------------------------------------------------------------------------------- signals

static _Thread_local volatile int signals_heard;

static void heard(int signal)
{
    (void)signal;
    signals_heard++;
}

static void listen_to_signals(void)
{
    struct sigaction action = {.sa_handler = heard, .sa_flags = SA_RESTART};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags = 0;
    sigaction(SIGUSR2, &action, NULL);
    signal(SIGPIPE, SIG_IGN);
}

// A thread that sends signals to another.
struct noise {
    pthread_t thread, target;
    long us;
    int signal;
    bool on;
    _Atomic bool over;
};

static void *make_noise(void *argument)
{
    struct noise *it = argument;
    while (!it->over) {
        nap(it->us);
        pthread_kill(it->target, it->signal);
    }
    return NULL;
}

// Signals for this thread until `calm`.
static void noise(struct actor *a, _Atomic uint64_t *rng, struct noise *it)
{
    *it = (struct noise){.target = pthread_self(), .us = 50 + under(rng, 1500),
                         .signal = a->conn->noise == RESTARTING ? SIGUSR1 : SIGUSR2};
    it->on = a->conn->noise != QUIET && one_in(rng, 4) && pthread_create(&it->thread, NULL, make_noise, it) == 0;
}

static void calm(struct noise *it)
{
    int error = errno;
    if (it->on) {
        it->over = true;
        pthread_join(it->thread, NULL);
        syscall(SYS_gettid); // a signal that is still on its way from another processor ends no later call
    }
    errno = error;
}

// May a call that failed be made again? Fails if kernel TCP would not have failed in this way.
static void again(struct actor *a, const char *how, bool noisy)
{
    struct conn *c = a->conn;
    // With a timeout set, kernel TCP ends a call for any signal, also for a SIGCHLD that another thread takes
    // (signal(7)).
    if (errno == EINTR && (c->timeout_ms || (noisy && c->noise == INTERRUPTING)))
        return;
    if (errno == EAGAIN && (c->timeout_ms || atomic_load(&c->side[a->me].nonblock)))
        return;
    fail(a, "%s fails: %s (%d signals heard)", how, strerror(errno), signals_heard);
}

// ------------------------------------------------------------------------------------------------ sending, receiving

uint64_t left_to_send(struct actor *a)
{
    struct side *s = &a->conn->side[a->me];
    return a->conn->upto[a->me][s->phase + 1] - s->sent;
}

uint64_t left_to_receive(struct actor *a)
{
    struct side *s = &a->conn->side[a->me];
    return a->conn->upto[!a->me][s->phase + 1] - s->received;
}

static size_t portion(_Atomic uint64_t *rng, uint64_t left)
{
    static const uint32_t most[] = {1, 16, 200, 1500, 5000, 20000, 70000, LARGE};
    uint64_t n = 1 + under(rng, most[under(rng, 8)]);
    if (n < left / 50) // a bulk in not too many calls
        n = left / 50;
    if (n > LARGE)
        n = LARGE;
    return n < left ? n : left;
}

// Waits until the connection is readable or writable, in one of several ways.
static void wait_ready(struct actor *a, _Atomic uint64_t *rng, bool out)
{
    for (;;) {
        int n;
        short events = out ? POLLOUT : POLLIN;
        uint32_t way = under(rng, 4);
        if (way == 0) {
            struct pollfd p = {a->fd, events, 0};
            n = poll(&p, 1, -1);
            // While a reset is being taken in, the kernel shows the error alone.
            if (n == 1 && !(p.revents & (events | POLLERR)))
                fail(a, "poll: %#x instead of %#x", (unsigned)p.revents, (unsigned)events);
        } else if (way == 1) {
            fd_set set;
            FD_ZERO(&set);
            FD_SET(a->fd, &set);
            n = select(a->fd + 1, out ? NULL : &set, out ? &set : NULL, NULL, NULL);
        } else {
            int ep = epoll_create1(EPOLL_CLOEXEC);
            struct epoll_event e = {.events = (out ? EPOLLOUT : EPOLLIN) | (way == 3 ? (uint32_t)EPOLLET : 0)};
            if (ep < 0 || epoll_ctl(ep, EPOLL_CTL_ADD, a->fd, &e))
                fail(a, "epoll_ctl");
            n = epoll_wait(ep, &e, 1, -1);
            int error = errno;
            close(ep);
            errno = error;
        }
        if (n == 1)
            return;
        if (n != -1 || errno != EINTR)
            fail(a, "waiting in way %u: %d", way, n);
    }
}

static int scratch_file(struct actor *a, const void *bytes, size_t n)
{
    int file = memfd_create("scratch", MFD_CLOEXEC);
    if (file < 0 || pwrite(file, bytes, n, 0) != (ssize_t)n)
        fail(a, "scratch file");
    return file;
}

static _Thread_local unsigned char buffer[LARGE];

static int split(_Atomic uint64_t *rng, unsigned char *bytes, size_t n, struct iovec *vector, int most)
{
    int parts = 0;
    while (n > 0) {
        size_t part = ++parts == most ? n : 1 + under(rng, (uint32_t)n);
        vector[parts - 1] = (struct iovec){bytes, part};
        bytes += part;
        n -= part;
    }
    return parts;
}

static ssize_t send_batch(struct actor *a, struct iovec *vector, int parts, int flags)
{
    struct mmsghdr batch[4] = {0};
    for (int i = 0; i < parts; i++)
        batch[i].msg_hdr = (struct msghdr){.msg_iov = &vector[i], .msg_iovlen = 1};
    int n = sendmmsg(a->fd, batch, (unsigned)parts, flags);
    if (n <= 0)
        return n;
    ssize_t sum = 0;
    for (int i = 0; i < n; i++) {
        if (i < n - 1 && batch[i].msg_len != vector[i].iov_len)
            fail(a, "sendmmsg goes on behind a message cut short");
        sum += batch[i].msg_len;
    }
    return sum;
}

static void send_step(struct actor *a, _Atomic uint64_t *rng, int only)
{
    struct conn *c = a->conn;
    struct side *s = &c->side[a->me];
    size_t n = portion(rng, left_to_send(a));
    bool last = n == left_to_send(a);
    int way = only >= 0 ? only : choose(rng, SENDER, SENDS);
    if ((way == SPLICE_IN && !c->splices) || (way == FWRITE && (!c->calm || s->nonblock)) || (way == MORE && last))
        way = SEND;
    fill(buffer, n, c->key[a->me], s->sent);
    note(a, SENDER[way], (long)n);
    mark_ahead(a, n);
    struct iovec vector[4];
    int parts = way == WRITEV || way == SENDMSG || way == SENDMMSG ? split(rng, buffer, n, vector, 4) : 0;
    struct noise around;
    noise(a, rng, &around);
    bool noisy = around.on;
    ssize_t done = -1;
    errno = 0;
    switch (way) {
    case WRITE: done = write(a->fd, buffer, n); break;
    case WRITEV: done = writev(a->fd, vector, parts); break;
    case SENDMSG: done = sendmsg(a->fd, &(struct msghdr){.msg_iov = vector, .msg_iovlen = (size_t)parts}, 0); break;
    case SENDMMSG: done = send_batch(a, vector, parts, 0); break;
    case MORE: done = send(a->fd, buffer, n, MSG_MORE); break;
    case SEND_DONTWAIT:
        if (one_in(rng, 2))
            wait_ready(a, rng, true);
        while ((done = send(a->fd, buffer, n, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
            wait_ready(a, rng, true);
        break;
    case SENDFILE: {
        int file = scratch_file(a, buffer, n);
        off_t at = 0;
        done = sendfile(a->fd, file, one_in(rng, 2) ? &at : NULL, n);
        int error = errno;
        close(file);
        errno = error;
        break;
    }
    case FWRITE: {
        s->pinned = 1;
        FILE *stream = fdopen(dup(a->fd), "w");
        if (!stream || fwrite(buffer, 1, n, stream) != n || fclose(stream))
            fail(a, "fwrite");
        done = (ssize_t)n;
        break;
    }
    case SPLICE_IN: {
        s->pinned = 1;
        int ends[2];
        if (pipe2(ends, O_CLOEXEC))
            fail(a, "pipe");
        if (n > 60000)
            n = 60000;
        if (write(ends[1], buffer, n) != (ssize_t)n)
            fail(a, "write to a pipe");
        done = splice(ends[0], NULL, a->fd, NULL, n, 0);
        int error = errno;
        close(ends[0]);
        close(ends[1]);
        errno = error;
        break;
    }
    default: done = send(a->fd, buffer, n, 0);
    }
    calm(&around);
    if (done > (ssize_t)n || done == 0)
        fail(a, "%s of %zu: %zd", SENDER[way], n, done);
    bool whole = !noisy && !c->timeout_ms && !s->nonblock && way != SEND_DONTWAIT && way != SPLICE_IN;
    if (done > 0 && (size_t)done < n && whole)
        fail(a, "%s of %zu blocks, and sends only %zd", SENDER[way], n, done);
    if (done > 0) {
        atomic_fetch_add(&s->sent, (uint64_t)done);
    } else {
        again(a, SENDER[way], noisy);
        if (errno == EAGAIN)
            wait_ready(a, rng, true);
    }
}

static ssize_t receive_batch(struct actor *a, struct iovec *vector, int parts, int flags, unsigned char *to)
{
    // Messages may come short: what was received is moved together.
    struct mmsghdr batch[4] = {0};
    for (int i = 0; i < parts; i++)
        batch[i].msg_hdr = (struct msghdr){.msg_iov = &vector[i], .msg_iovlen = 1};
    int n = recvmmsg(a->fd, batch, (unsigned)parts, flags, NULL);
    if (n <= 0)
        return n;
    size_t sum = 0;
    for (int i = 0; i < n; i++) {
        if (batch[i].msg_len == 0)
            fail(a, "recvmmsg: false end in message %d of %d", i, n);
        memmove(to + sum, vector[i].iov_base, batch[i].msg_len);
        sum += batch[i].msg_len;
    }
    return (ssize_t)sum;
}

static ssize_t receive_whole(struct actor *a, size_t n, bool noisy)
{
    struct conn *c = a->conn;
    ssize_t done = recv(a->fd, buffer, n, MSG_WAITALL);
    if (done >= 0 && (size_t)done < n && !noisy && !c->timeout_ms && !c->side[a->me].nonblock)
        fail(a, "MSG_WAITALL: %zd of %zu", done, n);
    return done;
}

// Looks at bytes first, then receives as many, which must be the same.
static ssize_t receive_peeked(struct actor *a, size_t n, int flags)
{
    struct side *s = &a->conn->side[a->me];
    ssize_t seen = recv(a->fd, buffer, n, MSG_PEEK);
    if (seen <= 0)
        return seen;
    check(a, buffer, (size_t)seen, s->received, "MSG_PEEK");
    memset(buffer, 0, (size_t)seen);
    ssize_t done = recv(a->fd, buffer, (size_t)seen, flags);
    if (done != seen && !s->input)
        fail(a, "%zd bytes peeked at, %zd received", seen, done);
    return done;
}

// Receives without waiting in the call: where it was said to be readable, something must be there.
static ssize_t receive_when_ready(struct actor *a, _Atomic uint64_t *rng, size_t n)
{
    bool ready = one_in(rng, 2);
    if (ready)
        wait_ready(a, rng, false);
    ssize_t done;
    while ((done = recv(a->fd, buffer, n, MSG_DONTWAIT)) < 0 && errno == EAGAIN) {
        if (ready && !a->conn->side[a->me].input)
            fail(a, "readable, but recv says EAGAIN");
        wait_ready(a, rng, false);
        ready = true;
    }
    return done;
}

// Asks how many bytes are unread: a receive must not find fewer.
static ssize_t receive_counted(struct actor *a, _Atomic uint64_t *rng, size_t n, int flags)
{
    struct side *s = &a->conn->side[a->me];
    int count = 0, failed;
    do {
        wait_ready(a, rng, false);
        failed = ioctl(a->fd, FIONREAD, &count);
    } while (!failed && count == 0 && s->input && !is_over(a));
    if (failed || count <= 0)
        fail(a, "readable, but FIONREAD says %d", count);
    size_t most = (size_t)count < n ? (size_t)count : n;
    ssize_t done = recv(a->fd, buffer, n, flags);
    if (done < (ssize_t)most && !s->input)
        fail(a, "FIONREAD %d, recv of %zu says %zd", count, n, done);
    return done;
}

static ssize_t receive_by_stream(struct actor *a, size_t n)
{
    a->conn->side[a->me].pinned = 1;
    FILE *stream = fdopen(dup(a->fd), "r");
    if (!stream || setvbuf(stream, NULL, _IONBF, 0) || fread(buffer, 1, n, stream) != n || fclose(stream))
        fail(a, "fread");
    return (ssize_t)n;
}

static ssize_t receive_by_pipe(struct actor *a, size_t n)
{
    a->conn->side[a->me].pinned = 1;
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        fail(a, "pipe");
    ssize_t done = splice(a->fd, NULL, ends[1], NULL, n < 60000 ? n : 60000, 0);
    int error = errno;
    if (done > 0 && read(ends[0], buffer, (size_t)done) != done)
        fail(a, "read from a pipe");
    close(ends[0]);
    close(ends[1]);
    errno = error;
    return done;
}

static void receive_step(struct actor *a, _Atomic uint64_t *rng, int only)
{
    struct conn *c = a->conn;
    struct side *s = &c->side[a->me];
    size_t n = portion(rng, left_to_receive(a));
    int way = only >= 0 ? only : choose(rng, RECEIVER, RECEIVES);
    if ((way == SPLICE_OUT && !c->splices) || (way == FREAD && (!c->calm || s->nonblock)))
        way = RECV;
    // Linux keeps the signal that ended a recvmmsg behind its first message as the socket's error, 512 (ERESTARTSYS).
    if (way == RECVMMSG && c->noise != QUIET)
        way = RECVMSG;
    note(a, RECEIVER[way], (long)n);
    struct iovec vector[4];
    int parts = way == READV || way == RECVMSG || way == RECVMMSG ? split(rng, buffer, n, vector, 4) : 0;
    struct noise around;
    noise(a, rng, &around);
    bool noisy = around.on;
    ssize_t done = -1;
    // A process that makes it its standard input leaves the ring: what another one has seen there comes back by the
    // kernel.
    int flags = s->input ? 0 : MSG_DONTWAIT;
    errno = 0;
    switch (way) {
    case READ: done = read(a->fd, buffer, n); break;
    case READV: done = readv(a->fd, vector, parts); break;
    case RECVMSG: done = recvmsg(a->fd, &(struct msghdr){.msg_iov = vector, .msg_iovlen = (size_t)parts}, 0); break;
    case RECVMMSG: done = receive_batch(a, vector, parts, one_in(rng, 2) ? MSG_WAITFORONE : 0, buffer); break;
    case WAITALL: done = receive_whole(a, n, noisy); break;
    case PEEK: done = receive_peeked(a, n, flags); break;
    case RECV_DONTWAIT: done = receive_when_ready(a, rng, n); break;
    case COUNTED: done = receive_counted(a, rng, n, flags); break;
    case FREAD: done = receive_by_stream(a, n); break;
    case SPLICE_OUT: done = receive_by_pipe(a, n); break;
    default: done = recv(a->fd, buffer, n, 0);
    }
    calm(&around);
    if (done > (ssize_t)n)
        fail(a, "%s of %zu: %zd", RECEIVER[way], n, done);
    if (done == 0)
        fail(a, "%s: false end of stream at %llu, %llu to come in this phase", RECEIVER[way],
             (unsigned long long)s->received, (unsigned long long)left_to_receive(a));
    if (done > 0) {
        check(a, buffer, (size_t)done, s->received, RECEIVER[way]);
        atomic_fetch_add(&s->received, (uint64_t)done);
    } else {
        again(a, RECEIVER[way], noisy);
        if (errno == EAGAIN)
            wait_ready(a, rng, false);
    }
}

// All of one direction of this phase.
static void half(struct actor *a, bool out, uint64_t seed)
{
    _Atomic uint64_t rng = seed;
    while (out ? left_to_send(a) : left_to_receive(a))
        (out ? send_step : receive_step)(a, &rng, -1);
}

// ------------------------------------------------------------------------------------------- processes and threads

void close_others(_Atomic uint64_t *rng, int keep, int keep_too)
{
    bool ranges = one_in(rng, 2);
    for (int fd = 3; fd < TOP_FD; fd++) {
        int end = fd;
        if (fd == keep || fd == keep_too)
            continue;
        while (ranges && end + 1 < TOP_FD && end + 1 != keep && end + 1 != keep_too)
            end++;
        if (ranges)
            close_range((unsigned)fd, (unsigned)end, 0);
        else
            close(fd);
        fd = end;
    }
}

void judge(struct actor *a, int status, bool killed)
{
    bool dead = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    bool may_be_dead = killed || (a && a->conn->end == END_KILL && a->conn->side[a->me].done);
    if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) && !(dead && may_be_dead))
        fail(a, "a child ends with status %#x", (unsigned)status);
}

void reap(struct actor *a, pid_t pid, bool killed)
{
    int status;
    pid_t got;
    while ((got = waitpid(pid, &status, 0)) < 0 && errno == EINTR) {
    }
    if (got != pid)
        fail(a, "waitpid");
    judge(a, status, killed);
}

__attribute__((noreturn)) static void leave(struct actor *a, _Atomic uint64_t *rng)
{
    if (one_in(rng, 2) && a->fd > 2)
        close(a->fd);
    note(a, "leave", 0);
    _exit(0);
}

static void play(struct actor *a, int budget);

static char *text_of(char *to, long n)
{
    sprintf(to, "%ld", n);
    return to;
}

// Executes this program again as `role` with some numbers; `fd` becomes `as` there. Three ways of doing so.
static pid_t execute(struct actor *a, int way, const char *role, const long *numbers, int count, int fd, int as)
{
    char text[8][24];
    char *words[12] = {"processes", (char *)role};
    for (int i = 0; i < count; i++)
        words[2 + i] = text_of(text[i], numbers[i]);
    pid_t pid;
    if (as == 0 && a)
        a->conn->side[a->me].input = 1;
    if (way == 0) {
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, as);
        if (as == 0)
            posix_spawn_file_actions_adddup2(&actions, fd, 1);
        if (posix_spawn(&pid, "/proc/self/exe", &actions, NULL, words, environ))
            fail(a, "posix_spawn");
        posix_spawn_file_actions_destroy(&actions);
        return pid;
    }
    pid = way == 1 ? fork() : vfork();
    if (pid == 0) {
        if (fd == as)
            fcntl(fd, F_SETFD, 0);
        else
            dup2(fd, as);
        if (as == 0)
            dup2(fd, 1);
        if (way == 1)
            execve("/proc/self/exe", words, environ);
        else
            execv("/proc/self/exe", words);
        _exit(127);
    }
    if (pid < 0)
        fail(a, "fork");
    return pid;
}

static int number_for(struct actor *a, _Atomic uint64_t *rng)
{
    if (one_in(rng, 5) && !skipped("stdin"))
        return 0;
    return one_in(rng, 2) && a->fd > 2 ? a->fd : 10 + (int)under(rng, 100);
}

struct order {
    int conn, side, budget, depth;
    bool back, wait;
};

static void pass(struct actor *a, int sock, const struct order *order, int fd)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct msghdr message = {.msg_iov = &(struct iovec){(void *)order, sizeof *order}, .msg_iovlen = 1};
    if (fd >= 0) {
        message.msg_control = control.bytes;
        message.msg_controllen = sizeof control.bytes;
        *CMSG_FIRSTHDR(&message) =
            (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &fd, sizeof fd);
    }
    if (sendmsg(sock, &message, MSG_NOSIGNAL) != sizeof *order)
        fail(a, "passing a descriptor");
}

// The descriptor that comes with an order; -1 at the end.
static int take(int sock, struct order *order)
{
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } control;
    struct msghdr message = {.msg_iov = &(struct iovec){order, sizeof *order}, .msg_iovlen = 1,
                             .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    ssize_t n;
    while ((n = recvmsg(sock, &message, MSG_CMSG_CLOEXEC)) < 0 && errno == EINTR) {
    }
    struct cmsghdr *header = n == sizeof *order ? CMSG_FIRSTHDR(&message) : NULL;
    int fd = -1;
    if (header)
        memcpy(&fd, CMSG_DATA(header), sizeof fd);
    return fd;
}

__attribute__((noreturn)) static void worker(int sock)
{
    struct order order;
    int fd;
    while ((fd = take(sock, &order)) >= 0) {
        struct actor a = {.conn = &shared->conn[order.conn], .me = order.side, .fd = fd, .depth = order.depth,
                          .worker = -1};
        note(&a, "taken", order.budget);
        char go;
        if (order.wait && recv(sock, &go, 1, 0) != 1)
            fail(&a, "no word to begin");
        play(&a, order.budget);
        note(&a, "worker done", order.back);
        if (order.back)
            pass(&a, sock, &order, a.fd);
        if (a.fd >= 0)
            close(a.fd);
        if (!order.back && order.budget >= 0 && send(sock, "", 1, MSG_NOSIGNAL) != 1)
            fail(&a, "no answer possible");
    }
    _exit(0);
}

// Starts a worker that has nothing but its end of a Unix socket; `stranger` is of another family.
static pid_t start_worker(struct actor *a, _Atomic uint64_t *rng, bool stranger, int *sock)
{
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends))
        fail(a, "socketpair");
    pid_t pid;
    if (stranger) {
        pid = execute(a, (int)under(rng, 3), "worker", (long[]){20}, 1, ends[1], 20);
    } else if ((pid = fork()) == 0) {
        close_others(rng, ends[1], -1);
        close(ends[0]); // 0, where a connection had been that number
        worker(ends[1]);
    }
    if (pid < 0)
        fail(a, "fork");
    close(ends[1]);
    *sock = ends[0];
    return pid;
}

static void hand_pass(struct actor *a, _Atomic uint64_t *rng, int budget)
{
    struct side *s = &a->conn->side[a->me];
    bool early = a->worker >= 0 && one_in(rng, 2);
    bool stranger = !early && s->sent == 0 && s->received == 0 && one_in(rng, 2);
    int sock = a->worker;
    pid_t pid = early ? a->worker_pid : start_worker(a, rng, stranger, &sock);
    bool gone = one_in(rng, 2); // the original is closed
    bool back = gone && budget >= 0;
    struct order order = {(int)(a->conn - shared->conn), a->me, budget, a->depth + 1, back, gone && one_in(rng, 2)};
    s->passed = 1;
    note(a, early ? "pass early" : stranger ? "pass stranger" : "pass", budget);
    s->keepers += !gone;
    pass(a, sock, &order, a->fd);
    if (gone) {
        close(a->fd);
        a->fd = -1;
    }
    if (order.wait && send(sock, "", 1, MSG_NOSIGNAL) != 1)
        fail(a, "send to a worker");
    char answer;
    if (back && !(a->fd = take(sock, &order), a->fd >= 0) && !s->done)
        fail(a, "the descriptor does not come back");
    if (!back && budget >= 0 && recv(sock, &answer, 1, 0) != 1 && !s->done)
        fail(a, "no answer of a worker");
    if (!early || budget < 0) {
        close(sock);
        reap(a, pid, false);
        if (early)
            a->worker = -1;
    }
    s->keepers -= !gone;
    note(a, "passed", a->fd);
}

struct task {
    struct actor *actor;
    int budget, token; // an eventfd, whose count is 1 while no thread has it
    uint64_t seed;
};

static void *play_here(void *argument)
{
    struct task *task = argument;
    play(task->actor, task->budget);
    return NULL;
}

// One of a crew: makes a step whenever it has the token.
static void *crew_member(void *argument)
{
    struct task *task = argument;
    for (int i = 0; i < task->budget; i++) {
        eventfd_t one;
        if (eventfd_read(task->token, &one))
            fail(task->actor, "token");
        play(task->actor, 1);
        if (eventfd_write(task->token, one))
            fail(task->actor, "token");
    }
    return NULL;
}

static void start_thread(struct actor *a, pthread_t *thread, void *(*body)(void *), void *argument)
{
    if (pthread_create(thread, NULL, body, argument))
        fail(a, "pthread_create");
}

static void hand_crew(struct actor *a, _Atomic uint64_t *rng)
{
    bool threads = one_in(rng, 2) || skipped("crew-forks");
    int n = 2 + (int)under(rng, 2);
    struct task task = {.actor = a, .budget = 1 + (int)under(rng, 6), .token = eventfd(0, EFD_CLOEXEC)};
    if (task.token < 0)
        fail(a, "eventfd");
    note(a, threads ? "crew threads" : "crew forks", task.budget);
    pthread_t thread[3];
    pid_t pid[3];
    bool killed[3];
    // Members play steps only.
    struct actor member = *a;
    member.depth = DEPTH;
    member.own = false;
    member.worker = -1;
    task.actor = &member;
    for (int i = 0; i < n; i++) {
        killed[i] = one_in(rng, 3);
        if (threads) {
            start_thread(a, &thread[i], crew_member, &task);
        } else if ((pid[i] = fork()) == 0) {
            close_others(rng, member.fd, task.token);
            crew_member(&task);
            if (killed[i]) {
                member.conn->killed = 1; // a thread of this child may have the stack that `a` was on
                raise(SIGKILL);
            }
            leave(&member, rng);
        }
    }
    if (eventfd_write(task.token, 1))
        fail(a, "token");
    for (int i = 0; i < n; i++) {
        if (threads)
            pthread_join(thread[i], NULL);
        else
            reap(a, pid[i], killed[i]);
    }
    close(task.token);
}

static int listener(int family, int *port)
{
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    if (family == AF_INET)
        ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        ((struct sockaddr_in6 *)&address)->sin6_addr = in6addr_loopback;
    socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, length) || listen(fd, 64) ||
        getsockname(fd, (struct sockaddr *)&address, &length))
        fail(NULL, "listener");
    *port = ntohs(((struct sockaddr_in *)&address)->sin_port); // at the same place in both
    return fd;
}

static int dial(int family, int port)
{
    struct sockaddr_storage address = {.ss_family = (sa_family_t)family};
    if (family == AF_INET)
        ((struct sockaddr_in *)&address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        ((struct sockaddr_in6 *)&address)->sin6_addr = in6addr_loopback;
    ((struct sockaddr_in *)&address)->sin_port = htons((uint16_t)port);
    socklen_t length = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, length))
        fail(NULL, "connect");
    return fd;
}

static void exchange(struct actor *a, int from, int to, unsigned char byte, size_t n)
{
    unsigned char bytes[300];
    memset(bytes, byte, n);
    if (send(from, bytes, n, 0) != (ssize_t)n)
        fail(a, "churn: send");
    memset(bytes, ~byte, n);
    if (recv(to, bytes, n, MSG_WAITALL) != (ssize_t)n)
        fail(a, "churn: recv");
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != byte)
            fail(a, "churn: a foreign byte");
}

// Connections that come and go, so that descriptor numbers are used again; this one gets a new number first.
static void hand_churn(struct actor *a, _Atomic uint64_t *rng)
{
    int port, listening = listener(shared->family, &port);
    note(a, "churn", 0);
    if (a->fd > 2) {
        int old = a->fd;
        a->fd = fcntl(old, F_DUPFD_CLOEXEC, 3 + under(rng, 60));
        close(old);
        a->conn->side[a->me].pinned = 1; // as by a dup
    }
    for (uint32_t rounds = 1 + under(rng, 4); rounds > 0; rounds--) {
        int one = dial(shared->family, port), two = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        char end;
        for (uint32_t i = under(rng, 14); i > 0; i--) {
            exchange(a, one, two, (unsigned char)under(rng, 256), 1 + under(rng, 300));
            exchange(a, two, one, (unsigned char)under(rng, 256), 1 + under(rng, 300));
        }
        if (one_in(rng, 2)) {
            int other = one;
            one = two;
            two = other;
        }
        bool reset = one_in(rng, 3);
        if (reset)
            setsockopt(one, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
        close(one);
        errno = 0;
        ssize_t n = recv(two, &end, 1, 0);
        if (reset ? n != -1 || errno != ECONNRESET : n != 0)
            fail(a, "churn: %s is followed by %zd", reset ? "a reset" : "close", n);
        close(two);
    }
    close(listening);
}

static void hand_dup(struct actor *a, _Atomic uint64_t *rng)
{
    int old = a->fd, to = 3 + (int)under(rng, 120);
    switch (under(rng, 3)) {
    case 0: a->fd = dup(old); break;
    case 1: a->fd = fcntl(old, F_DUPFD_CLOEXEC, to); break;
    default:
        // A number that is free; other threads may be taking numbers too, so it is reserved first.
        to = fcntl(old, F_DUPFD_CLOEXEC, to);
        a->fd = one_in(rng, 2) ? dup2(old, to) : dup3(old, to, O_CLOEXEC);
    }
    if (a->fd < 0 || a->fd >= TOP_FD)
        fail(a, "dup");
    if (old > 2)
        close(old);
    a->conn->side[a->me].pinned = 1; // where a set had the number that is closed
    note(a, "dup", old);
}

// ------------------------------------------------------------------------------------------------------ sleepers

struct sleeper {
    struct actor *actor;
    _Atomic int ended, asleep;
    ssize_t result;
    int error;
};

static void *sleep_in_recv(void *argument)
{
    struct sleeper *sleeper = argument;
    char byte;
    sleeper->asleep = 1;
    sleeper->result = recv(sleeper->actor->fd, &byte, 1, 0);
    sleeper->error = errno;
    sleeper->ended = 1;
    return NULL;
}

// Nothing can come now, since the other side waits for bytes of ours: so nothing may be seen, in any of these ways.

static void idle_in_wait(struct actor *a, _Atomic uint64_t *rng)
{
    struct pollfd p = {a->fd, POLLIN | POLLRDHUP, 0};
    int n = poll(&p, 1, (int)under(rng, 3));
    if (n)
        fail(a, "idle: poll says %#x", (unsigned)p.revents);
    int ep = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP};
    epoll_ctl(ep, EPOLL_CTL_ADD, a->fd, &e);
    n = epoll_wait(ep, &e, 1, (int)under(rng, 3));
    if (n > 0 || (n < 0 && errno != EINTR)) // as in duplex
        fail(a, "idle: epoll_wait says %#x", e.events);
    close(ep);
}

static void idle_in_killed_child(struct actor *a, _Atomic uint64_t *rng)
{
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        close_others(rng, a->fd, -1);
        if (one_in(rng, 3))
            wait_ready(a, rng, false);
        while (recv(a->fd, &byte, 1, 0) < 0) {
        }
        fail(a, "idle: a sleeping child receives a byte");
    }
    nap(under(rng, 3000));
    a->conn->killed = 1;
    kill(pid, SIGKILL);
    reap(a, pid, true);
}

static void idle_until_timeout(struct actor *a, _Atomic uint64_t *rng)
{
    int ms = 1 + (int)under(rng, 8), usual = a->conn->timeout_ms;
    char byte;
    setsockopt(a->fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, ms * 1000}, sizeof(struct timeval));
    long began = now_us();
    ssize_t n = recv(a->fd, &byte, 1, 0);
    if (n != -1 || errno != EAGAIN)
        fail(a, "idle: recv with a time limit says %zd", n);
    if (now_us() - began < ms * 1000L - 900)
        fail(a, "idle: a time limit of %d ms is over after %ld us", ms, now_us() - began);
    setsockopt(a->fd, SOL_SOCKET, SO_RCVTIMEO, &(struct timeval){0, usual * 1000}, sizeof(struct timeval));
}

static void idle_until_signal(struct actor *a, _Atomic uint64_t *rng)
{
    struct sleeper sleeper = {.actor = a};
    pthread_t thread;
    start_thread(a, &thread, sleep_in_recv, &sleeper);
    while (!sleeper.asleep)
        nap(50);
    for (uint32_t i = under(rng, 4); i > 0; i--) {
        nap(under(rng, 600));
        pthread_kill(thread, SIGUSR1);
        if (sleeper.ended)
            fail(a, "idle: SA_RESTART does not restart: %zd, errno %d", sleeper.result, sleeper.error);
    }
    for (int i = 0; !sleeper.ended; i++) {
        pthread_kill(thread, SIGUSR2);
        nap(100);
        if (i == 20000)
            fail(a, "idle: a signal does not end recv");
    }
    pthread_join(thread, NULL);
    if (sleeper.result != -1 || sleeper.error != EINTR)
        fail(a, "idle: a signal ends recv with %zd, errno %d", sleeper.result, sleeper.error);
}

static void hand_idle(struct actor *a, _Atomic uint64_t *rng)
{
    struct conn *c = a->conn;
    struct side *s = &c->side[a->me];
    int way = choose(rng, IDLER, IDLES), count = 0;
    note(a, IDLER[way], 0);
    if (way == BY_WAIT)
        idle_in_wait(a, rng);
    else if (way == BY_KILLED_CHILD)
        idle_in_killed_child(a, rng);
    else if (way == BY_TIMEOUT && !s->nonblock)
        idle_until_timeout(a, rng);
    else if (way == BY_SIGNAL && !s->nonblock && !c->timeout_ms)
        idle_until_signal(a, rng);
    char byte;
    errno = 0;
    ssize_t n = recv(a->fd, &byte, 1, MSG_DONTWAIT | (one_in(rng, 2) ? MSG_PEEK : 0));
    if (n != -1 || errno != EAGAIN)
        fail(a, "idle: recv says %zd", n);
    if (ioctl(a->fd, FIONREAD, &count) || count)
        fail(a, "idle: FIONREAD says %d", count);
}

// ------------------------------------------------------------------------------------------------------ hand-overs

// Two ends that are single processes and execute programs at the same time, or one that does so when the other has
// closed, lose what lies in shared memory (docs/limits.md): so one waits for the other, and neither does so once one
// has ended.
static bool begin_replacing(struct conn *c, int who)
{
    int nobody = 0;
    while (!atomic_compare_exchange_strong(&c->replacing, &nobody, who)) {
        if (nobody == -1)
            return false;
        nobody = 0;
        nap(100);
    }
    return true;
}

static void end_replacing(struct actor *a)
{
    if (a->conn->replacing == getpid()) {
        // By now the new image has the shared memory: its first call on the connection has come for it.
        poll(&(struct pollfd){a->fd, POLLIN, 0}, 1, 0);
        a->conn->replacing = 0;
    }
}

// The player that goes on for this one, in another process or thread.
static struct actor successor(const struct actor *a)
{
    struct actor next = *a;
    next.depth++;
    next.worker = -1;
    next.own = false;
    return next;
}

// Waits for a child that goes on with the connection, and counts no keeper any more. Where the child has it to the
// end, this process may close its own descriptor first.
static void await_successor(struct actor *a, _Atomic uint64_t *rng, pid_t pid, int budget)
{
    struct side *s = &a->conn->side[a->me];
    if (budget < 0 && one_in(rng, 2) && a->fd > 2) {
        close(a->fd);
        a->fd = -1;
        s->keepers--;
    }
    reap(a, pid, false);
    s->keepers -= a->fd >= 0;
}

static void hand_fork(struct actor *a, _Atomic uint64_t *rng, int budget)
{
    struct actor next = successor(a);
    note(a, "fork", budget);
    a->conn->side[a->me].keepers++;
    pid_t pid = fork();
    if (pid == 0) {
        close_others(rng, next.fd, -1);
        next.own = true;
        play(&next, budget);
        leave(&next, rng);
    }
    if (pid < 0)
        fail(a, "fork");
    await_successor(a, rng, pid, budget);
}

// The child is killed when it has played its steps.
static void hand_killed(struct actor *a, _Atomic uint64_t *rng, int budget)
{
    struct side *s = &a->conn->side[a->me];
    struct actor next = successor(a);
    int ends[2];
    char byte;
    if (pipe2(ends, O_CLOEXEC))
        fail(a, "pipe");
    note(a, "fork to kill", budget);
    s->keepers++;
    pid_t pid = fork();
    if (pid == 0) {
        close_others(rng, next.fd, ends[1]);
        play(&next, budget);
        if (write(ends[1], "", 1) != 1)
            fail(a, "write to a pipe");
        for (;;)
            pause();
    }
    close(ends[1]);
    if (read(ends[0], &byte, 1) != 1 && !s->done)
        fail(a, "a child says nothing");
    close(ends[0]);
    a->conn->killed = 1;
    kill(pid, SIGKILL);
    reap(a, pid, true);
    s->keepers--;
}

static void hand_thread(struct actor *a, int budget)
{
    struct actor next = successor(a);
    struct task task = {.actor = &next, .budget = budget};
    pthread_t thread;
    note(a, "thread", budget);
    start_thread(a, &thread, play_here, &task);
    pthread_join(thread, NULL);
    a->fd = next.fd;
}

// Executes this program again, in this process's own place, to play with these numbers; the descriptor becomes `as`
// there.
__attribute__((noreturn)) static void replace(struct actor *a, const long numbers[5], int as)
{
    char text[5][24];
    char *words[8] = {"processes", "play"};
    for (int i = 0; i < 5; i++)
        words[2 + i] = text_of(text[i], numbers[i]);
    note(a, "replace", a->budget);
    if (as == 0)
        a->conn->side[a->me].input = 1;
    if (as == a->fd)
        fcntl(as, F_SETFD, 0);
    else
        dup2(a->fd, as);
    if (as == 0)
        dup2(a->fd, 1);
    if (as != a->fd)
        close(a->fd);
    execv("/proc/self/exe", words);
    fail(a, "execv");
}

// Hands over to an image of this program in a child (EXEC) or, if this process may, in its own place (REPLACE).
// Returns which of them it was in the end.
static int hand_image(struct actor *a, _Atomic uint64_t *rng, int budget, int hand)
{
    struct conn *c = a->conn;
    int as = number_for(a, rng);
    if (hand == REPLACE && a->fd > 2 && !begin_replacing(c, getpid()))
        hand = EXEC;
    long numbers[] = {c - shared->conn, a->me, as, hand == REPLACE ? a->budget : budget, a->depth + 1};
    if (hand == REPLACE && a->fd > 2)
        replace(a, numbers, as);
    int way = (int)under(rng, 3);
    note(a, way == 0 ? "spawn" : way == 1 ? "fork and exec" : "vfork and exec", as);
    c->side[a->me].keepers++;
    pid_t pid = execute(a, way, "play", numbers, 5, a->fd, as);
    await_successor(a, rng, pid, budget);
    return hand;
}

static void hand_nonblock(struct actor *a)
{
    struct side *s = &a->conn->side[a->me];
    int flags = fcntl(a->fd, F_GETFL) ^ O_NONBLOCK;
    fcntl(a->fd, F_SETFL, flags);
    s->nonblock = !!(flags & O_NONBLOCK);
    note(a, "nonblock", s->nonblock);
}

static void hand_over(struct actor *a, _Atomic uint64_t *rng)
{
    struct conn *c = a->conn;
    int budget = one_in(rng, 5) ? -1 : 1 + (int)under(rng, 8);
    int hand = choose(rng, HAND, HANDS);
    if ((hand == REPLACE && !a->own) || (hand == UNABLE && !c->unable))
        hand = EXEC;
    if (hand != UNABLE && c->unable && left_to_send(a) && left_to_receive(a) && one_in(rng, 3))
        send_until_full(a);
    switch (hand) {
    case FORK: hand_fork(a, rng, budget); break;
    case KILLED: hand_killed(a, rng, budget); break;
    case CREW: hand_crew(a, rng); break;
    case THREAD: hand_thread(a, budget); break;
    case EXEC:
    case REPLACE: hand = hand_image(a, rng, budget, hand); break;
    case UNABLE: hand_unable(a, rng, budget); break;
    case SILENT: nap(under(rng, 100000)); break;
    case PASS: hand_pass(a, rng, budget); break;
    case DUP: hand_dup(a, rng); break;
    case CHURN: hand_churn(a, rng); break;
    case NONBLOCK: hand_nonblock(a); break;
    default:
        if (left_to_send(a) && !left_to_receive(a))
            hand_idle(a, rng);
    }
    note(a, "back", hand);
}

static void *send_half(void *argument)
{
    struct task *task = argument;
    half(task->actor, true, task->seed);
    return NULL;
}

// Both directions at once.
static void duplex(struct actor *a, _Atomic uint64_t *rng)
{
    struct side *s = &a->conn->side[a->me];
    uint64_t seed = mix(s->rng), other = mix(seed);
    int way = choose(rng, DUPLEX, DUPLEXES);
    note(a, DUPLEX[way], (long)left_to_send(a));
    switch (way) {
    case BY_THREADS: {
        struct task task = {.actor = a, .seed = seed};
        pthread_t thread;
        start_thread(a, &thread, send_half, &task);
        half(a, false, other);
        pthread_join(thread, NULL);
        break;
    }
    case BY_FORK:
    case BY_FORK_SENDING: {
        bool sends = way == BY_FORK;
        pid_t pid = fork();
        if (pid == 0) {
            struct actor child = *a;
            close_others(rng, a->fd, -1);
            half(&child, sends, seed);
            leave(&child, rng);
        }
        half(a, !sends, other);
        reap(a, pid, false);
        break;
    }
    case BY_EXEC: {
        int as = number_for(a, rng);
        bool sends = one_in(rng, 2);
        long numbers[] = {a->conn - shared->conn, a->me, as, sends, (long)(seed >> 1)};
        pid_t pid = execute(a, (int)under(rng, 3), "half", numbers, 5, a->fd, as);
        half(a, !sends, other);
        reap(a, pid, false);
        break;
    }
    default:
        while (left_to_send(a) || left_to_receive(a)) {
            short want = (short)((left_to_send(a) ? POLLOUT : 0) | (left_to_receive(a) ? POLLIN : 0)), got = 0;
            if (one_in(rng, 2)) {
                struct pollfd p = {a->fd, want, 0};
                if (poll(&p, 1, -1) != 1)
                    fail(a, "poll");
                got = p.revents;
            } else {
                int ep = epoll_create1(EPOLL_CLOEXEC);
                struct epoll_event e = {.events = (uint32_t)want};
                epoll_ctl(ep, EPOLL_CTL_ADD, a->fd, &e);
                int n;
                // EINTR without a handler: a SIGCHLD that another thread had blocked for a moment, in a fork say.
                while ((n = epoll_wait(ep, &e, 1, -1)) < 0 && errno == EINTR) {
                }
                if (n != 1)
                    fail(a, "epoll_wait");
                got = (short)e.events;
                close(ep);
            }
            if (!(got & want) || got & ~want)
                fail(a, "ready with %#x, asked for %#x", (unsigned)got, (unsigned)want);
            if (got & POLLIN)
                receive_step(a, rng, RECV_DONTWAIT);
            else
                send_step(a, rng, SEND_DONTWAIT);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------- endings

static ssize_t receive_one(struct actor *a, _Atomic uint64_t *rng)
{
    char byte;
    for (;;) {
        if (one_in(rng, 3))
            wait_ready(a, rng, false);
        ssize_t n = recv(a->fd, &byte, 1, 0);
        if (n >= 0 || (errno != EAGAIN && errno != EINTR))
            return n;
        again(a, "recv", false);
        wait_ready(a, rng, false);
    }
}

static void expect_end(struct actor *a, _Atomic uint64_t *rng)
{
    struct conn *c = a->conn;
    note(a, "await end", 0);
    for (int i = 0; i < 2; i++) {
        errno = 0;
        ssize_t n = receive_one(a, rng);
        // A process that is killed with a doorbell untaken resets the connection, and the last bytes may have gone the
        // kernel path: docs/limits.md, "Endings and killed processes". Nothing is missing: all phases are done.
        if (i == 0 && n == -1 && errno == ECONNRESET && c->end == END_KILL) {
            note(a, "reset by a kill", 0);
            continue;
        }
        if (n != 0)
            fail(a, "end of stream awaited, look %d: recv says %zd", i, n);
    }
    note(a, "end", 0);
}

static void expect_reset(struct actor *a, _Atomic uint64_t *rng)
{
    note(a, "await reset", 0);
    errno = 0;
    ssize_t n = receive_one(a, rng);
    if (n != -1 || errno != ECONNRESET)
        fail(a, "reset awaited: recv says %zd", n);
    n = receive_one(a, rng);
    if (n != 0)
        fail(a, "after a reset recv says %zd", n);
    n = send(a->fd, "", 1, MSG_NOSIGNAL);
    if (n != -1 || errno != EPIPE)
        fail(a, "after a reset send says %zd", n);
    note(a, "reset", 0);
}

// The end after the last phase. Side `first` begins; when it is done all its descriptors are closed.
static void finish(struct actor *a, _Atomic uint64_t *rng)
{
    struct conn *c = a->conn;
    struct side *s = &c->side[a->me];
    bool first = a->me == c->first;
    note(a, END[c->end], first);
    if (first) {
        s->ended = 1;
        begin_replacing(c, -1);
    }
    switch (c->end) {
    case END_HALF: {
        // One phase more, in the other direction only: its length is in the script's last entry.
        if (first) {
            if (shutdown(a->fd, SHUT_WR))
                fail(a, "shutdown");
            while (left_to_receive(a))
                receive_step(a, rng, -1);
            expect_end(a, rng);
        } else {
            expect_end(a, rng);
            while (left_to_send(a))
                send_step(a, rng, -1);
        }
        break;
    }
    case END_RESET:
        // A reset throws away what the other side has not received yet.
        while (first && c->side[!a->me].received < s->sent) {
            // Bytes that an image without the library awaits are given back in a call on the connection.
            poll(&(struct pollfd){a->fd, POLLIN | POLLOUT, 0}, 1, 0);
            stop_if_reset(a);
            nap(100);
        }
        if (first)
            setsockopt(a->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
        else
            expect_reset(a, rng);
        break;
    case END_UNREAD:
        if (first) {
            wait_ready(a, rng, false);
        } else {
            char bytes[50] = "";
            wait_ready(a, rng, true);
            if (send(a->fd, bytes, sizeof bytes, MSG_DONTWAIT) != sizeof bytes)
                fail(a, "send");
            expect_reset(a, rng);
        }
        break;
    case END_SHUTDOWN:
        if (first && !s->nonblock && !c->timeout_ms) {
            struct sleeper sleeper = {.actor = a};
            pthread_t thread;
            start_thread(a, &thread, sleep_in_recv, &sleeper);
            nap(under(rng, 1500));
            if (shutdown(a->fd, SHUT_RDWR))
                fail(a, "shutdown");
            pthread_join(thread, NULL);
            if (sleeper.result != 0)
                fail(a, "shutdown ends recv with %zd, errno %d", sleeper.result, sleeper.error);
        } else if (!first) {
            expect_end(a, rng);
        }
        break;
    case END_KILL:
        if (first && a->own) {
            s->done = 1;
            c->killed = 1;
            raise(SIGKILL);
        }
        if (!first)
            expect_end(a, rng);
        break;
    default:
        if (!first)
            expect_end(a, rng);
    }
    s->done = 1;
}

// Goes on with the script for so many steps, or to its end.
static void play(struct actor *a, int budget)
{
    struct conn *c = a->conn;
    struct side *s = &c->side[a->me];
    _Atomic uint64_t *rng = &s->rng;
    while (!s->done) {
        while (s->phase < c->phases && !left_to_send(a) && !left_to_receive(a))
            s->phase++;
        if (s->phase == c->phases) {
            finish(a, rng);
            break;
        }
        if (budget == 0)
            break;
        if (budget > 0)
            budget--;
        a->budget = budget;
        if (a->depth < DEPTH && one_in(rng, 9))
            hand_over(a, rng);
        else if (left_to_send(a) && left_to_receive(a))
            duplex(a, rng);
        else if (left_to_send(a))
            send_step(a, rng, -1);
        else
            receive_step(a, rng, -1);
    }
}

// -------------------------------------------------------------------------------------------- servers and clients

static void prepare(struct actor *a)
{
    struct conn *c = a->conn;
    if (c->prompt)
        setsockopt(a->fd, IPPROTO_TCP, TCP_NODELAY, &c->prompt, sizeof c->prompt);
    if (c->timeout_ms) {
        struct timeval limit = {0, c->timeout_ms * 1000};
        setsockopt(a->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
        setsockopt(a->fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    }
    if (c->buffer) {
        // A receive buffer below the loopback's segments would only crawl.
        int room = c->buffer < 131072 ? 131072 : c->buffer;
        setsockopt(a->fd, SOL_SOCKET, SO_SNDBUF, &c->buffer, sizeof c->buffer);
        setsockopt(a->fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    }
}

// Plays a connection from its beginning to its end. `own`: this process does nothing else.
static void whole(int conn, int me, int fd, int early, pid_t early_pid, bool own)
{
    struct actor a = {.conn = &shared->conn[conn], .me = me, .fd = fd, .own = own, .worker = early,
                      .worker_pid = early_pid};
    prepare(&a);
    note(&a, me ? "accepted" : "connected", conn);
    play(&a, -1);
    if (a.fd >= 0)
        close(a.fd);
    note(&a, "closed", 0);
    if (a.worker >= 0) {
        close(a.worker);
        reap(&a, a.worker_pid, false);
    }
    a.conn->side[me].closed = 1;
}

// Which connection has been accepted: the client says its port.
static int which(int fd)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (getpeername(fd, (struct sockaddr *)&address, &length)) {
        // A client that resets what was never used is gone already; but each uses its connection.
        fail(NULL, "getpeername");
    }
    int port = ntohs(((struct sockaddr_in *)&address)->sin_port);
    for (int tries = 0; tries < 100000; tries++) {
        for (int i = 0; i < shared->conns; i++) {
            int expected = port;
            if (atomic_compare_exchange_strong(&shared->conn[i].port, &expected, -1))
                return i;
        }
        nap(100);
    }
    fail(NULL, "nobody knows port %d", port);
}

struct call {
    int conn, fd;
    bool own;
};

static void *client_connection(void *argument)
{
    struct call *call = argument;
    struct conn *c = &shared->conn[call->conn];
    int early = -1;
    pid_t pid = 0;
    if (call->fd < 0) {
        if (c->key[0] % 4 == 0 && !skipped("early-worker"))
            pid = start_worker(NULL, &c->side[0].rng, false, &early);
        call->fd = dial(shared->family, shared->port);
        struct sockaddr_storage address;
        socklen_t length = sizeof address;
        getsockname(call->fd, (struct sockaddr *)&address, &length);
        c->port = ntohs(((struct sockaddr_in *)&address)->sin_port);
    }
    whole(call->conn, 0, call->fd, early, pid, call->own);
    return NULL;
}

static void clients(void)
{
    struct call call[CONNS];
    pthread_t thread[CONNS];
    pid_t pid[CONNS];
    for (int i = 0; i < shared->conns; i++) {
        _Atomic uint64_t *rng = &shared->conn[i].side[0].rng;
        call[i] = (struct call){i, -1, shared->call != CALL_THREADS};
        if (shared->call == CALL_THREADS) {
            start_thread(NULL, &thread[i], client_connection, &call[i]);
            continue;
        }
        if (shared->call == CALL_CONNECT_FORK) {
            call[i].fd = dial(shared->family, shared->port);
            struct sockaddr_storage address;
            socklen_t length = sizeof address;
            getsockname(call[i].fd, (struct sockaddr *)&address, &length);
            shared->conn[i].port = ntohs(((struct sockaddr_in *)&address)->sin_port);
        }
        if ((pid[i] = fork()) == 0) {
            close_others(rng, call[i].fd, -1);
            client_connection(&call[i]);
            _exit(0);
        }
        if (pid[i] < 0)
            fail(NULL, "fork");
        if (call[i].fd >= 0)
            close(call[i].fd);
    }
    for (int i = 0; i < shared->conns; i++) {
        struct actor a = {.conn = &shared->conn[i], .fd = -1};
        if (shared->call == CALL_THREADS)
            pthread_join(thread[i], NULL);
        else
            reap(&a, pid[i], false);
    }
}

static void *server_connection(void *argument)
{
    struct call *call = argument;
    whole(call->conn, 1, call->fd, -1, 0, call->own);
    return NULL;
}

// One of several that accept from the same listener, until they are killed.
__attribute__((noreturn)) static void acceptor(int listening, bool exclusive)
{
    int ep = -1;
    if (exclusive) {
        ep = epoll_create1(EPOLL_CLOEXEC);
        struct epoll_event e = {.events = EPOLLIN | EPOLLEXCLUSIVE};
        if (epoll_ctl(ep, EPOLL_CTL_ADD, listening, &e))
            fail(NULL, "epoll_ctl");
    }
    for (;;) {
        struct epoll_event e;
        if (exclusive && epoll_wait(ep, &e, 1, -1) != 1)
            continue;
        int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno != EAGAIN && errno != EINTR)
                fail(NULL, "accept");
            continue;
        }
        whole(which(fd), 1, fd, -1, 0, false);
    }
}

static void serve(void)
{
    int port, listening = listener(shared->family, &port), n = shared->conns;
    pid_t pid[CONNS];
    pthread_t thread[CONNS];
    struct call call[CONNS];
    int sock[2];
    bool several = shared->serve == SERVE_PREFORK || shared->serve == SERVE_EXCLUSIVE;
    bool passing = shared->serve == SERVE_PASS || shared->serve == SERVE_PASS_STRANGER;
    _Atomic uint64_t rng = mix(shared->seed + 77);
    if (shared->serve == SERVE_EXCLUSIVE)
        fcntl(listening, F_SETFL, O_NONBLOCK);
    if (passing)
        for (int i = 0; i < 2; i++)
            pid[i] = start_worker(NULL, &rng, shared->serve == SERVE_PASS_STRANGER, &sock[i]);
    if (several)
        for (int i = 0; i < 3; i++)
            if ((pid[i] = fork()) == 0) {
                close_others(&rng, listening, -1);
                acceptor(listening, shared->serve == SERVE_EXCLUSIVE);
            }
    shared->port = port;
    if (several) {
        for (int i = 0; i < n && !shared->failed;) {
            if (shared->conn[i].side[1].closed)
                i++;
            else
                nap(1000);
        }
        for (int i = 0; i < 3; i++) {
            kill(pid[i], SIGKILL);
            reap(NULL, pid[i], true);
        }
        close(listening);
        return;
    }
    for (int i = 0; i < n; i++) {
        int fd = accept4(listening, NULL, NULL, one_in(&rng, 2) ? SOCK_CLOEXEC : 0);
        if (fd < 0)
            fail(NULL, "accept");
        call[i] = (struct call){which(fd), fd, shared->serve == SERVE_FORK};
        if (shared->serve == SERVE_THREADS) {
            start_thread(NULL, &thread[i], server_connection, &call[i]);
        } else if (passing) {
            struct actor a = {.conn = &shared->conn[call[i].conn], .me = 1, .fd = fd};
            struct order order = {.conn = call[i].conn, .side = 1, .budget = -1};
            note(&a, SERVE[shared->serve], i);
            pass(&a, sock[i % 2], &order, fd);
            close(fd);
        } else {
            if ((pid[i] = fork()) == 0) {
                close_others(&rng, fd, -1);
                server_connection(&call[i]);
                _exit(0);
            }
            if (pid[i] < 0)
                fail(NULL, "fork");
            close(fd);
        }
    }
    close(listening);
    for (int i = 0; i < (passing ? 2 : n); i++) {
        struct actor a = {.conn = &shared->conn[passing ? i : call[i].conn], .me = 1, .fd = -1};
        if (passing)
            close(sock[i]);
        if (shared->serve == SERVE_THREADS)
            pthread_join(thread[i], NULL);
        else
            reap(&a, pid[i], false);
    }
}

static void *serve_in_thread(void *argument)
{
    (void)argument;
    serve();
    return NULL;
}

static void await_port(void)
{
    while (!shared->port)
        nap(200);
}

// -------------------------------------------------------------------------------------------------------- rounds

static void prepare_round(uint64_t seed, long round)
{
    memset(shared, 0, sizeof *shared);
    shared->seed = seed;
    shared->round = round;
    shared->started_us = now_us();
    _Atomic uint64_t rng = mix(seed * 1000003 + (uint64_t)round);
    const char *conns = getenv("PROCESSES_CONNS");
    shared->conns = conns ? atoi(conns) : 1 + (int)under(&rng, CONNS);
    if (shared->conns < 1 || shared->conns > CONNS)
        shared->conns = 1;
    shared->family = one_in(&rng, 3) ? AF_INET6 : AF_INET;
    shared->place = choose(&rng, PLACE, PLACES);
    shared->serve = choose(&rng, SERVE, SERVES);
    shared->call = choose(&rng, CALL, CALLS);
    for (int i = 0; i < shared->conns; i++) {
        struct conn *c = &shared->conn[i];
        for (int side = 0; side < 2; side++) {
            c->key[side] = mix(rng++) << 20;
            c->side[side].rng = mix(rng++);
        }
        c->key[0] |= under(&rng, 1 << 20);
        c->noise = one_in(&rng, 2) ? QUIET : choose(&rng, NOISE, NOISES);
        c->timeout_ms = one_in(&rng, 4) && !skipped("timeout") ? 1 + (int)under(&rng, 30) : 0;
        c->buffer = one_in(&rng, 6) && !skipped("buffer") ? 8192 << under(&rng, 6) : 0;
        c->splices = one_in(&rng, 8);
        c->prompt = !one_in(&rng, 5);
        c->calm = c->noise == QUIET && !c->timeout_ms;
        c->end = choose(&rng, END, ENDS);
        c->unable = one_in(&rng, 2) && !skipped("unable");
        c->first = (int)under(&rng, 2);
        c->phases = 3 + (int)under(&rng, PHASES - 4);
        for (int p = 0; p <= c->phases; p++) {
            uint64_t n[2] = {0, 0};
            uint32_t kind = under(&rng, 20);
            uint32_t size = kind < 13   ? 1 + under(&rng, 3000)
                            : kind < 18 ? 1 + under(&rng, 100000)
                                        : 1 + under(&rng, 600000);
            n[under(&rng, 2)] = size;
            if (kind % 5 == 4 && !skipped("duplex"))
                n[0] = size, n[1] = 1 + under(&rng, size);
            if (c->unable && one_in(&rng, 40)) // more than fits in anywhere
                n[0] = n[1] = 8 << 20;
            if (p == c->phases) { // behind a half close
                n[c->first] = 0;
                n[!c->first] = c->end == END_HALF ? size : 0;
            }
            if (p < PHASES)
                for (int side = 0; side < 2; side++)
                    c->upto[side][p + 1] = c->upto[side][p] + n[side];
        }
    }
}

static void play_round(void)
{
    struct actor nobody = {.conn = &shared->conn[0], .fd = -1};
    if (shared->place == ONE_PROCESS) {
        pthread_t thread;
        start_thread(NULL, &thread, serve_in_thread, NULL);
        await_port();
        clients();
        pthread_join(thread, NULL);
        return;
    }
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    pid_t server, client;
    if (shared->place == EXECUTED) {
        server = execute(&nobody, 0, "server", NULL, 0, null, null);
    } else if ((server = fork()) == 0) {
        serve();
        _exit(0);
    }
    if (shared->place == EXECUTED || shared->place == EXECUTED_CLIENT) {
        client = execute(&nobody, 1, "client", NULL, 0, null, null);
    } else if ((client = fork()) == 0) {
        await_port();
        clients();
        _exit(0);
    }
    reap(&nobody, client, false);
    reap(&nobody, server, false);
}

// What the processes of a group are doing, as far as the kernel tells.
static void tell_processes(pid_t group)
{
    DIR *proc = opendir("/proc");
    for (struct dirent *entry; proc && (entry = readdir(proc));) {
        pid_t pid = atoi(entry->d_name);
        if (pid <= 0 || getpgid(pid) != group)
            continue;
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/task", pid);
        DIR *tasks = opendir(path);
        for (struct dirent *task; tasks && (task = readdir(tasks));) {
            if (atoi(task->d_name) <= 0)
                continue;
            char call[100] = "?", stat[300] = "", long_path[400];
            const char *name[2] = {"syscall", "stat"};
            char *to[2] = {call, stat};
            for (int i = 0; i < 2; i++) {
                snprintf(long_path, sizeof long_path, "/proc/%d/task/%s/%s", pid, task->d_name, name[i]);
                FILE *file = fopen(long_path, "r");
                if (file && fgets(to[i], i ? 300 : 100, file))
                    to[i][strcspn(to[i], "\n")] = 0;
                if (file)
                    fclose(file);
            }
            char *state = strrchr(stat, ')');
            int parent = 0;
            char letter = '?';
            if (state)
                sscanf(state + 1, " %c %d", &letter, &parent);
            fprintf(stderr, "  process %d thread %s parent %d state %c syscall %s\n", pid, task->d_name, parent, letter,
                    call);
        }
        if (tasks)
            closedir(tasks);
    }
    if (proc)
        closedir(proc);
}

static void tell(const char *what, pid_t group)
{
    fprintf(stderr, "seed %llu round %ld %s: %s, %s, %s, %s, %d connections. %s\n", (unsigned long long)shared->seed,
            shared->round, what, PLACE[shared->place], SERVE[shared->serve], CALL[shared->call],
            shared->family == AF_INET ? "IPv4" : "IPv6", shared->conns, shared->message);
    for (int i = 0; i < shared->conns; i++) {
        struct conn *c = &shared->conn[i];
        fprintf(stderr, " connection %d: %s by %s, %s, timeout %d ms, buffer %d,%s %d phases%s\n", i, END[c->end],
                c->first ? "server" : "client", NOISE[c->noise], c->timeout_ms, c->buffer, c->splices ? " splice," : "",
                c->phases, c->killed ? ", a process was killed" : "");
        for (int me = 0; me < 2; me++)
            fprintf(stderr, "  %s: phase %d%s, sent %llu, received %llu%s%s\n", me ? "server" : "client",
                    c->side[me].phase, c->side[me].done ? " (done)" : "", (unsigned long long)c->side[me].sent,
                    (unsigned long long)c->side[me].received, c->side[me].nonblock ? ", non-blocking" : "", "");
        bool both = c->side[0].done && c->side[1].done;
        unsigned end = c->events, most = getenv("PROCESSES_TRACE") ? EVENTS : both ? 0 : 30;
        for (unsigned e = end > most ? end - most : 0; e < end; e++) {
            struct event *it = &c->event[e % EVENTS];
            fprintf(stderr, "   %8ld us %c %d/%d fd %d %s %ld\n", it->us, it->side, it->pid, it->tid, it->fd, it->word,
                    it->n);
        }
    }
    tell_processes(group);
}

// Plays one round in a group of processes of its own; false if it failed or was stuck.
static bool round_passes(uint64_t seed, long round)
{
    prepare_round(seed, round);
    pid_t pid = fork();
    if (pid == 0) {
        setpgid(0, 0);
        play_round();
        _exit(0);
    }
    setpgid(pid, pid);
    uint64_t progress = 0;
    long moved = now_us();
    int status = 0;
    for (;;) {
        if (is_over_by_reset()) {
            count_resets();
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return true;
        }
        if (waitpid(pid, &status, WNOHANG) == pid)
            break;
        if (shared->progress != progress) {
            progress = shared->progress;
            moved = now_us();
        }
        bool stuck = now_us() - moved > STUCK_MS * 1000L;
        if (stuck || shared->failed == 2) {
            if (!stuck)
                nap(20000);
            tell(stuck ? "IS STUCK" : "FAILED", pid);
            while (stuck && getenv("PROCESSES_HOLD"))
                sleep(1);
            kill(-pid, SIGKILL);
            waitpid(pid, &status, 0);
            return false;
        }
        nap(1000);
    }
    bool good = WIFEXITED(status) && WEXITSTATUS(status) == 0 && !shared->failed;
    for (int i = 0; i < shared->conns; i++)
        for (int me = 0; me < 2; me++)
            good = good && shared->conn[i].side[me].done;
    if (!good)
        tell("FAILED", pid);
    kill(-pid, SIGKILL);
    count_resets();
    return good;
}

static void map_shared(bool make)
{
    if (make) {
        int fd = memfd_create("shared", 0);
        if (fd < 0 || ftruncate(fd, sizeof *shared) || dup2(fd, SHARED_FD) != SHARED_FD)
            exit(2);
        close(fd);
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, SHARED_FD, 0);
    if (shared == MAP_FAILED)
        exit(2);
}

// This program, executed by itself in the middle of a round.
static int image(int argc, char **argv)
{
    long n[6] = {0};
    for (int i = 2; i < argc && i < 8; i++)
        n[i - 2] = atol(argv[i]);
    map_shared(false);
    const char *role = argv[1];
    _Atomic uint64_t rng = mix((uint64_t)getpid());
    bool playing = strcmp(role, "play") == 0 || strcmp(role, "half") == 0;
    close_others(&rng, playing ? (int)n[2] : strcmp(role, "worker") == 0 ? (int)n[0] : -1, -1);
    if (playing) {
        struct actor a = {.conn = &shared->conn[n[0]], .me = (int)n[1], .fd = (int)n[2], .depth = (int)n[4],
                          .worker = -1, .own = true};
        note(&a, "executed", n[3]);
        end_replacing(&a);
        if (strcmp(role, "play") == 0)
            play(&a, (int)n[3]);
        else
            half(&a, n[3], (uint64_t)n[4]);
        leave(&a, &a.conn->side[a.me].rng);
    }
    if (strcmp(role, "worker") == 0)
        worker((int)n[0]);
    if (strcmp(role, "server") == 0) {
        serve();
    } else {
        await_port();
        clients();
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: processes SEED SECONDS [ROUND]\n");
        return 2;
    }
    listen_to_signals();
    prepare_images();
    if (argv[1][0] >= 'a')
        return image(argc, argv);
    uint64_t seed = strtoull(argv[1], NULL, 10);
    long seconds = argc > 2 ? atol(argv[2]) : 5, only = argc > 3 ? atol(argv[3]) : -1;
    map_shared(true);
    long until = now_us() + seconds * 1000000L, rounds = 0;
    for (long round = only < 0 ? 0 : only; rounds == 0 || now_us() < until; round += only < 0) {
        if (!round_passes(seed, round)) {
            fprintf(stderr, "again: processes %llu 0 %ld\n", (unsigned long long)seed, round);
            return 1;
        }
        rounds++;
    }
    printf("seed %llu: %ld rounds\n", (unsigned long long)seed, rounds);
    tell_resets();
    return 0;
}
