/* Pointers to memory that is not there, or that cannot be written: calls on pipes, Unix sockets, datagram sockets,
 * listeners and TCP connections, in a process without a fast connection, beside one, and on one. Each call is made in a
 * child, so that one that kills is told as such. */
#include "harness.h"

#include <linux/aio_abi.h>
#include <linux/sched.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

static void *volatile bad;            /* cannot be read */
static char *volatile constant;       /* a page that can be read */
static char *volatile edge; /* the end of a page that can be written; behind it lies one that cannot be read */
static volatile int one = 1, none = 0; /* which the compiler does not know */
static volatile nfds_t too_many = (nfds_t)1 << 30;
static volatile int too_large = INT32_MAX;
static char in[KIB];
static const struct timespec soon = {0, 1000000};

#define TRY(call) \
    do { \
        pid_t child = (pid_t)MUST(fork()); \
        if (child == 0) { \
            alarm(10); \
            SHOW(call); \
            _exit(0); \
        } \
        int status = ended(child); \
        if (status != 0) say("%s ends with %d", #call, status); \
    } while (0)

static void prepare(void) {
    signal(SIGPIPE, SIG_IGN);
    char *pages = mmap(NULL, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    bad = pages + 4096;
    edge = pages + 4096;
    constant = pages + 2 * 4096;
    MUST(mprotect(pages + 4096, 4096, PROT_NONE));
}
/* A copy of it where it can only be read. */
static void *fixed(const void *what, size_t size) {
    MUST(mprotect(constant, 4096, PROT_READ | PROT_WRITE));
    memcpy(constant, what, size);
    MUST(mprotect(constant, 4096, PROT_READ));
    return constant;
}

/* poll, select */

static void polls(int fd) {
    struct pollfd it = {fd, POLLIN, 0}, *last = (struct pollfd *)edge - 1;
    struct timespec wait = soon;
    struct timeval time = {0, 1000};
    uint64_t mask = 0;
    void *masks[] = {&mask, (void *)8}, *bad_mask[] = {bad, (void *)8}, *wrong_size[] = {bad, (void *)4};
    fd_set set, empty;
    FD_ZERO(&set);
    FD_ZERO(&empty);
    FD_SET(fd, &set);
    *last = it;
    TRY(poll(bad, 1, 0));
    TRY(poll(bad, 1, -1));
    TRY(poll(bad, (nfds_t)none, 0));
    TRY(poll(last, 2, 0));
    TRY(poll(&it, too_many, 0));
    TRY(poll((void *)-8, 2, 0));
    TRY(ppoll(bad, 1, &wait, NULL));
    TRY(ppoll(&it, 1, bad, NULL));
    TRY(ppoll(&it, 1, &wait, bad));
    TRY(ppoll(&it, 1, &(struct timespec){-1, 0}, bad));
    TRY(poll(fixed(&it, sizeof(it)), 1, 0));
    TRY(select(fd + 1, bad, NULL, NULL, &time));
    TRY(select(fd + 1, NULL, bad, NULL, &time));
    TRY(select(fd + 1, NULL, NULL, bad, &time));
    TRY(select(fd + 1, &set, bad, NULL, &time));
    TRY(select(fd + 1, &set, NULL, NULL, bad));
    TRY(select(fd + 1, fixed(&set, sizeof(set)), NULL, NULL, &time));
    TRY(select(fd + 1, fixed(&empty, sizeof(empty)), NULL, NULL, &time));
    TRY(select(none, bad, NULL, NULL, &time));
    TRY(select(-one, bad, NULL, NULL, &time));
    TRY(pselect(fd + 1, bad, NULL, NULL, &wait, NULL));
    TRY(pselect(fd + 1, &set, NULL, NULL, bad, NULL));
    TRY(pselect(fd + 1, &set, NULL, NULL, &wait, bad));
    TRY(syscall(SYS_poll, bad, 1, 0));
    TRY(syscall(SYS_ppoll, bad, 1, &wait, NULL, 8));
    TRY(syscall(SYS_ppoll, &it, 1, bad, NULL, 8));
    TRY(syscall(SYS_ppoll, &it, 1, &wait, bad, 8));
    TRY(syscall(SYS_ppoll, &it, 1, &wait, bad, 4));
    TRY(syscall(SYS_ppoll, &it, 1, fixed(&wait, sizeof(wait)), &mask, 8));
    TRY(syscall(SYS_select, fd + 1, bad, NULL, NULL, &time));
    TRY(syscall(SYS_select, fd + 1, &set, NULL, NULL, bad));
    TRY(syscall(SYS_select, fd + 1, &set, NULL, NULL, fixed(&time, sizeof(time))));
    TRY(syscall(SYS_pselect6, fd + 1, bad, NULL, NULL, &wait, masks));
    TRY(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, bad, masks));
    TRY(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &wait, bad));
    TRY(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &wait, bad_mask));
    TRY(syscall(SYS_pselect6, fd + 1, &set, NULL, NULL, &wait, wrong_size));
}

/* epoll */

static void epolls(int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLOUT}, *last = (struct epoll_event *)edge - 1;
    uint64_t mask = 0;
    int set = (int)MUST(epoll_create1(0)), quiet = (int)MUST(epoll_create1(0));
    TRY(epoll_ctl(set, EPOLL_CTL_ADD, fd, bad));
    TRY(epoll_ctl(set, EPOLL_CTL_MOD, fd, bad));
    TRY(epoll_ctl(set, EPOLL_CTL_DEL, fd, bad));
    TRY(epoll_ctl(-1, EPOLL_CTL_ADD, fd, bad));
    TRY(epoll_ctl(set, EPOLL_CTL_ADD, -1, bad));
    TRY(epoll_ctl(set, EPOLL_CTL_ADD, fd, (struct epoll_event *)((char *)last + 4)));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    TRY(epoll_ctl(set, EPOLL_CTL_ADD, fd, bad));
    TRY(epoll_ctl(set, EPOLL_CTL_MOD, fd, bad));
    TRY(epoll_wait(quiet, bad, 1, 0));
    TRY(epoll_wait(set, bad, 1, 0));
    TRY(epoll_wait(set, fixed("", 1), 1, 0));
    TRY(epoll_wait(set, (void *)-16, 1, 0));
    TRY(epoll_wait(quiet, (void *)-16, 1, 0));
    TRY(epoll_wait(set, bad, -one, 0));
    TRY(epoll_wait(set, bad, too_large, 0));
    TRY(epoll_wait(-1, bad, 1, 0));
    TRY(epoll_pwait(set, &event, 1, 0, bad));
    TRY(epoll_pwait(set, bad, -one, 0, bad));
    TRY(epoll_pwait2(set, &event, 1, bad, NULL));
    TRY(epoll_pwait2(set, &event, 1, &soon, bad));
    TRY(epoll_pwait2(set, bad, 1, &soon, NULL));
    TRY(syscall(SYS_epoll_wait, set, bad, 1, 0));
    TRY(syscall(SYS_epoll_pwait, set, &event, 1, 0, bad, 8));
    TRY(syscall(SYS_epoll_pwait, set, &event, 1, 0, bad, 4));
    TRY(syscall(SYS_epoll_pwait2, set, &event, 1, bad, &mask, 8));
    TRY(syscall(SYS_epoll_pwait2, set, &event, 1, &soon, bad, 8));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, bad));
    close(set);
    close(quiet);
}

/* Sending and receiving. The buffers themselves are not among what a fast connection finds out. */

static bool is_fast;
static void sends(int fd) {
    const int flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    struct sockaddr_in address = {.sin_family = AF_INET};
    off_t start = 0;
    int file = memfd_create("file", 0);
    MUST(write(file, "0123456789", 10));
    struct iovec part = {in, 1}, bad_part = {bad, 1}, *last = (struct iovec *)edge - 1;
    *last = part;
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1}, parts = message, buffer = message, control = message;
    struct msghdr name = message, many = message;
    parts.msg_iov = bad;
    buffer.msg_iov = &bad_part;
    control.msg_control = bad;
    control.msg_controllen = 64;
    name.msg_name = bad;
    name.msg_namelen = 16;
    many.msg_iov = last;
    many.msg_iovlen = 2;
    struct mmsghdr messages[] = {{.msg_hdr = message}, {.msg_hdr = parts}}, *tail = (struct mmsghdr *)edge - 1;
    *tail = messages[0];
    if (!is_fast) {
        TRY(send(fd, bad, 1, flags));
        TRY(write(fd, bad, 1));
        TRY(writev(fd, &bad_part, 1));
        TRY(sendmsg(fd, &buffer, flags));
    }
    TRY(writev(fd, bad, 1));
    TRY(writev(fd, last, 2));
    TRY(writev(fd, bad, none));
    TRY(writev(fd, bad, -one));
    TRY(pwritev2(fd, bad, 1, -1, 0));
    TRY(sendmsg(fd, bad, flags));
    TRY(sendmsg(fd, (struct msghdr *)(edge - 8), flags));
    TRY(sendmsg(fd, &parts, flags));
    TRY(sendmsg(fd, &many, flags));
    TRY(sendmsg(fd, &control, flags));
    TRY(sendmsg(fd, &name, flags));
    TRY(sendmsg(-1, bad, flags));
    TRY(sendto(fd, "x", 1, flags, bad, 16));
    TRY(sendto(fd, "x", 1, flags, bad, 1000));
    TRY(sendmmsg(fd, bad, 1, flags));
    TRY(sendmmsg(fd, bad, (unsigned)none, flags));
    TRY(sendmmsg(fd, tail, 2, flags));
    TRY(sendmmsg(fd, messages, 2, flags));
    TRY(sendmmsg(fd, fixed(messages, sizeof(messages)), 2, flags));
    TRY(sendfile(fd, file, bad, 1));
    TRY(sendfile(fd, file, fixed(&start, sizeof(start)), 1));
    TRY(connect(fd, bad, sizeof(address)));
    TRY(connect(fd, (struct sockaddr *)(edge - 2), sizeof(address)));
    TRY(bind(fd, bad, sizeof(address)));
    close(file);
}

static void receives(int fd) {
    struct sockaddr_storage address;
    struct iovec part = {in, 1}, bad_part = {bad, 1}, *last = (struct iovec *)edge - 1;
    *last = part;
    socklen_t size = sizeof(address);
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1}, parts = message, buffer = message, control = message;
    struct msghdr name = message, many = message;
    parts.msg_iov = bad;
    buffer.msg_iov = &bad_part;
    control.msg_control = bad;
    control.msg_controllen = 64;
    name.msg_name = bad;
    name.msg_namelen = 16;
    many.msg_iov = last;
    many.msg_iovlen = 2;
    struct mmsghdr messages[] = {{.msg_hdr = message}, {.msg_hdr = parts}}, *tail = (struct mmsghdr *)edge - 1;
    *tail = messages[0];
    if (!is_fast) {
        TRY(recv(fd, bad, 1, MSG_DONTWAIT));
        TRY(recvmsg(fd, &buffer, MSG_DONTWAIT));
        /* The kernel keeps the error of the second for the next call. */
        TRY(recvmmsg(fd, tail, 2, MSG_DONTWAIT, NULL));
    }
    TRY(readv(fd, bad, 1));
    TRY(readv(fd, last, 2));
    TRY(readv(fd, bad, none));
    TRY(preadv2(fd, bad, 1, -1, 0));
    TRY(recvmsg(fd, bad, MSG_DONTWAIT));
    TRY(recvmsg(fd, (struct msghdr *)(edge - 8), MSG_DONTWAIT));
    TRY(recvmsg(fd, &parts, MSG_DONTWAIT));
    TRY(recvmsg(fd, &many, MSG_DONTWAIT));
    TRY(recvmsg(fd, &control, MSG_DONTWAIT));
    TRY(recvmsg(fd, &name, MSG_DONTWAIT));
    TRY(recvmsg(fd, fixed(&message, sizeof(message)), MSG_DONTWAIT));
    TRY(recvmsg(-1, bad, MSG_DONTWAIT));
    TRY(recvmmsg(fd, bad, 1, MSG_DONTWAIT, NULL));
    TRY(recvmmsg(fd, messages, 1, MSG_DONTWAIT, bad));
    TRY(recvmmsg(fd, messages, (unsigned)none, MSG_DONTWAIT, bad));
    TRY(recvmmsg(fd, fixed(messages, sizeof(messages)), 1, MSG_DONTWAIT, NULL));
    TRY(recvmmsg(fd, messages, 1, MSG_DONTWAIT, fixed(&soon, sizeof(soon))));
    TRY(recvfrom(fd, in, 1, MSG_DONTWAIT, (struct sockaddr *)&address, bad));
    TRY(recvfrom(fd, in, 1, MSG_DONTWAIT, (struct sockaddr *)&address, fixed(&size, sizeof(size))));
    TRY(recvfrom(fd, in, 1, MSG_DONTWAIT, bad, &size));
    TRY(accept(fd, bad, bad));
    TRY(accept(fd, (struct sockaddr *)&address, bad));
}

/* Options and the like */

static void options(int fd) {
    static const int of_socket[] = {SO_LINGER, SO_RCVTIMEO,  SO_RCVLOWAT,     SO_OOBINLINE, SO_SNDBUF,
                                    SO_RCVBUF, SO_TIMESTAMP, SO_TIMESTAMPING, SO_PEEK_OFF,  SO_ATTACH_FILTER};
    static const int of_tcp[] = {TCP_NODELAY, TCP_CORK, TCP_INQ, TCP_ULP, TCP_REPAIR};
    int value = 1;
    socklen_t size = sizeof(value);
    for (size_t i = 0; i < COUNT(of_socket); i++) {
        say("option %d", of_socket[i]);
        TRY(setsockopt(fd, SOL_SOCKET, of_socket[i], bad, 16));
        TRY(setsockopt(fd, SOL_SOCKET, of_socket[i], edge - 2, 16));
        TRY(setsockopt(fd, SOL_SOCKET, of_socket[i], bad, (socklen_t)none));
        TRY(setsockopt(fd, SOL_SOCKET, of_socket[i], bad, (socklen_t)-one));
    }
    for (size_t i = 0; i < COUNT(of_tcp); i++) {
        say("option %d of TCP", of_tcp[i]);
        TRY(setsockopt(fd, IPPROTO_TCP, of_tcp[i], bad, 4));
        TRY(setsockopt(fd, IPPROTO_TCP, of_tcp[i], bad, (socklen_t)none));
        TRY(getsockopt(fd, IPPROTO_TCP, of_tcp[i], bad, &size));
        TRY(getsockopt(fd, IPPROTO_TCP, of_tcp[i], &value, bad));
    }
    TRY(getsockopt(fd, SOL_SOCKET, SO_ERROR, bad, &size));
    TRY(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, bad));
    TRY(getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, bad, &size));
    TRY(getsockopt(fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &value, bad));
    TRY(getsockname(fd, bad, &size));
    TRY(getpeername(fd, (struct sockaddr *)in, bad));
    TRY(ioctl(fd, FIONREAD, bad));
    TRY(ioctl(fd, FIONBIO, bad));
    TRY(ioctl(fd, FIOASYNC, bad));
    TRY(ioctl(fd, TIOCOUTQ, bad));
    TRY(ioctl(fd, SIOCATMARK, bad));
    TRY(fcntl(fd, F_SETLK, bad));
    TRY(fcntl(fd, F_GETOWN_EX, bad));
}

/* Requests by io_submit, and clone3, which libc has no functions for. */
static void requests(int fd) {
    aio_context_t context = 0;
    struct io_event event;
    struct iocb write = {
        .aio_fildes = (uint32_t)fd, .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_buf = (uintptr_t)in, .aio_nbytes = 1};
    struct iocb *list[] = {&write, bad}, *first[] = {bad}, **last = (struct iocb **)edge - 1;
    *last = &write;
    MUST(syscall(SYS_io_setup, 4, &context));
    SHOW(syscall(SYS_io_submit, context, 1, bad));
    SHOW(syscall(SYS_io_submit, context, 0, bad));
    SHOW(syscall(SYS_io_submit, context, -1, bad));
    SHOW(syscall(SYS_io_submit, context, 1, first));
    SHOW(syscall(SYS_io_submit, context, 2, list));
    SHOW(syscall(SYS_io_getevents, context, 1, 1, &event, NULL));
    say("moved %lld", (long long)event.res);
    SHOW(syscall(SYS_io_submit, context, 2, last));
    SHOW(syscall(SYS_io_getevents, context, 1, 1, &event, NULL));
    MUST(syscall(SYS_io_destroy, context));
    SHOW(syscall(SYS_clone3, bad, sizeof(struct clone_args)));
}

/* Descriptors that are passed, where a header has a wrong length. */
static long pass(int channel, int fd, size_t length, size_t room) {
    struct cmsghdr header = {.cmsg_len = length, .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    struct iovec part = {in, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = edge - room, .msg_controllen = room};
    memset(message.msg_control, 0, room);
    memcpy(message.msg_control, &header, sizeof(header));
    if (room > sizeof(header)) memcpy((char *)message.msg_control + sizeof(header), &fd, sizeof(fd));
    return sendmsg(channel, &message, MSG_DONTWAIT);
}
static void passes(int fd) {
    const size_t right = CMSG_LEN(sizeof(int)), whole = CMSG_SPACE(sizeof(int));
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    TRY(pass(channel[0], fd, right, right));
    TRY(pass(channel[0], fd, right, whole));
    TRY(pass(channel[0], fd, right, sizeof(struct cmsghdr)));
    TRY(pass(channel[0], fd, CMSG_LEN(1000 * sizeof(int)), whole));
    TRY(pass(channel[0], fd, (size_t)1 << 40, whole));
    TRY(pass(channel[0], fd, (size_t)-one, whole));
    TRY(pass(channel[0], fd, 0, whole));
    TRY(pass(fd, fd, (size_t)1 << 40, whole));
    close(channel[0]);
    close(channel[1]);
}

/* Programs that are executed; none of these calls comes so far. */
static void executes(int fd) {
    char *arguments[] = {"true", NULL}, *environment[] = {"A=1", NULL}, *of_bad[] = {bad, NULL},
         **last = (char **)edge - 1;
    char *open_ended = edge - 3;
    char *of_open_ended[] = {open_ended, NULL};
    pid_t spawned;
    *last = "A=1";
    memcpy(open_ended, "B=2", 3);
    TRY(execve(bad, arguments, environment));
    TRY(execve("/bin/true", bad, environment));
    TRY(execve("/bin/true", arguments, bad));
    TRY(execve("/bin/true", arguments, of_bad));
    TRY(execve("/bin/true", arguments, of_open_ended));
    TRY(execve("/bin/true", arguments, last));
    TRY(execve("/none", arguments, bad));
    TRY(execveat(AT_FDCWD, bad, arguments, environment, 0));
    TRY(execveat(AT_FDCWD, "/bin/true", arguments, bad, 0));
    TRY(syscall(SYS_execve, "/bin/true", arguments, bad));
    TRY(posix_spawn(&spawned, bad, NULL, NULL, arguments, environment));
    TRY(posix_spawn(&spawned, "/bin/true", NULL, NULL, arguments, bad));
    (void)fd;
}

/* Cases without a fast connection, or with one that the call is not about. */

typedef void cases(int fd);
static void on_each(cases *what, bool with_pipe) {
    struct sockaddr_storage address;
    int unix_sockets[2], pipes[2];
    int listener = listen_on(AF_INET, &address), slow = connect_to(&address),
        other = (int)MUST(accept(listener, NULL, NULL));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, unix_sockets));
    MUST(pipe(pipes));
    struct {
        const char *name;
        int fd;
    } kinds[] = {{"Unix", unix_sockets[0]}, {"datagram", (int)MUST(socket(AF_INET, SOCK_DGRAM, 0))},
                 {"listener", listener}, {"slow", slow}, {"fresh", (int)MUST(socket(AF_INET, SOCK_STREAM, 0))},
                 {"pipe", pipes[0]}};
    for (size_t i = 0; i < COUNT(kinds) - !with_pipe; i++) {
        say("%s", kinds[i].name);
        set_nonblocking(kinds[i].fd, true);
        what(kinds[i].fd);
    }
    close(other);
}
static void polls_alone(void) { prepare(), on_each(polls, true); }
static void epolls_alone(void) { prepare(), on_each(epolls, true); }
static void sends_alone(void) { prepare(), on_each(sends, false); }
static void receives_alone(void) { prepare(), on_each(receives, false); }
static void options_alone(void) { prepare(), on_each(options, false); }
static void passes_alone(void) { prepare(), on_each(passes, true); }

static void beside(struct side *side, cases *what, bool with_pipe) {
    prepare();
    on_each(what, with_pipe);
    send_all(side->fd, "x", 1);
}
static void polls_beside_a(struct side *side) { beside(side, polls, true); }
static void epolls_beside_a(struct side *side) { beside(side, epolls, true); }
static void sends_beside_a(struct side *side) { beside(side, sends, false); }
static void receives_beside_a(struct side *side) { beside(side, receives, false); }
static void options_beside_a(struct side *side) { beside(side, options, false); }
static void beside_b(struct side *side) { SHOW(recv(side->fd, in, 1, 0)); }
static void polls_beside(void) { two_processes(AF_INET, polls_beside_a, beside_b); }
static void epolls_beside(void) { two_processes(AF_INET, epolls_beside_a, beside_b); }
static void sends_beside(void) { two_processes(AF_INET, sends_beside_a, beside_b); }
static void receives_beside(void) { two_processes(AF_INET, receives_beside_a, beside_b); }
static void options_beside(void) { two_processes(AF_INET, options_beside_a, beside_b); }

/* On the fast connection, which has something to read. Nothing of it is lost, and nothing but what is said sent. */

static void on_it(struct side *side, cases *what) {
    prepare();
    is_fast = true;
    hear(side);
    await_bytes(side->fd, 100);
    set_nonblocking(side->fd, true);
    what(side->fd);
    set_nonblocking(side->fd, false);
    SHOW(recv(side->fd, in, 100, 0));
    say_bytes("unread", in, 10);
    shutdown(side->fd, SHUT_WR);
    tell(side);
}
static void polls_a(struct side *side) { on_it(side, polls); }
static void epolls_a(struct side *side) { on_it(side, epolls); }
static void sends_a(struct side *side) { on_it(side, sends); }
static void receives_a(struct side *side) { on_it(side, receives); }
static void options_a(struct side *side) { on_it(side, options); }
static void on_it_b(struct side *side) {
    char bytes[100];
    fill(bytes, sizeof(bytes), 1, 0);
    send_all(side->fd, bytes, sizeof(bytes));
    tell(side);
    hear(side);
    SHOW(receive_all(side->fd, in, sizeof(in)));
}
static void polls_fast(void) { two_processes(AF_INET, polls_a, on_it_b); }
static void epolls_fast(void) { two_processes(AF_INET, epolls_a, on_it_b); }
static void sends_fast(void) { two_processes(AF_INET, sends_a, on_it_b); }
static void receives_fast(void) { two_processes(AF_INET, receives_a, on_it_b); }
static void options_fast(void) { two_processes(AF_INET, options_a, on_it_b); }
static void passes_a(struct side *side) { on_it(side, passes); }
static void executes_a(struct side *side) { on_it(side, executes); }
static void passes_fast(void) { two_processes(AF_INET, passes_a, on_it_b); }
static void executes_fast(void) { two_processes(AF_INET, executes_a, on_it_b); }

static void requests_a(struct side *side) {
    prepare();
    requests(side->fd);
    tell(side);
}
static void requests_b(struct side *side) {
    hear(side);
    SHOW(receive_all(side->fd, in, 2));
}
static void requests_fast(void) { two_processes(AF_INET, requests_a, requests_b); }

/* Events that epoll_wait could not write come with the next call: an edge, and a registration for one event. It comes
 * to a thread that sleeps, or is there already. */
static const uint32_t registrations[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
static void told_later_a(struct side *side) {
    prepare();
    struct epoll_event *volatile nowhere = NULL;
    for (size_t i = 0; i < 2 * COUNT(registrations); i++) {
        bool sleeps = i % 2 == 0;
        struct epoll_event event = {.events = registrations[i / 2]};
        int set = (int)MUST(epoll_create1(0));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
        SHOW(epoll_wait(set, bad, 1, 0));
        tell(side);
        if (!sleeps) await_bytes(side->fd, 10);
        SHOW(epoll_wait(set, bad, 1, -1));
        SHOW(epoll_wait(set, nowhere, 1, -1));
        await_bytes(side->fd, 10);
        SHOW(epoll_wait(set, &event, 1, -1));
        say("events %x", event.events);
        SHOW(epoll_wait(set, &event, 1, 0));
        SHOW(recv(side->fd, in, sizeof(in), 0));
        SHOW(epoll_wait(set, bad, 1, 1));
        close(set);
    }
}
static void told_later_b(struct side *side) {
    for (size_t i = 0; i < 2 * COUNT(registrations); i++) {
        hear(side);
        if (i % 2 == 0) await_asleep(side->other);
        send_all(side->fd, "0123456789", 10);
    }
}
static void told_later(void) { two_processes(AF_INET, told_later_a, told_later_b); }

/* Memory that was there in an earlier call. */
static void gone_a(struct side *side) {
    prepare();
    struct pollfd *it = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    *it = (struct pollfd){side->fd, POLLIN, 0};
    SHOW(poll(it, 1, 0));
    MUST(mprotect(it, 4096, PROT_NONE));
    TRY(poll(it, 1, 0));
    MUST(munmap(it, 4096));
    TRY(poll(it, 1, 0));
    send_all(side->fd, "x", 1);
}
static void gone(void) { two_processes(AF_INET, gone_a, beside_b); }

const struct scenario scenarios[] = {
    {"polls", polls_alone, true},
    {"polls-beside", polls_beside, 0},
    {"polls-fast", polls_fast, 0},
    {"epolls", epolls_alone, true},
    {"epolls-beside", epolls_beside, 0},
    {"epolls-fast", epolls_fast, 0},
    {"sends", sends_alone, true},
    {"sends-beside", sends_beside, 0},
    {"sends-fast", sends_fast, 0},
    {"receives", receives_alone, true},
    {"receives-beside", receives_beside, 0},
    {"receives-fast", receives_fast, 0},
    {"options", options_alone, true},
    {"options-beside", options_beside, 0},
    {"options-fast", options_fast, 0},
    {"passes", passes_alone, true},
    {"passes-fast", passes_fast, 0},
    {"executes-fast", executes_fast, 0},
    {"requests-fast", requests_fast, 0},
    {"told-later", told_later, 0},
    {"gone", gone, 0},
    {0},
};
