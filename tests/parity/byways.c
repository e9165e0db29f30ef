/* Ways to a connection that pass libc's usual functions by: system calls by number, asynchronous calls, signals. */
#include "harness.h"

#include <aio.h>
#include <limits.h>
#include <linux/aio_abi.h>
#include <linux/io_uring.h>
#include <linux/sched.h>
#include <sched.h>
#include <semaphore.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

extern char **environ;
static char out[64 * KIB], in[64 * KIB];

/* A system call by its number. */
#define BY(name, ...) syscall(SYS_##name, __VA_ARGS__)

static int file_of(const char *text) {
    int file = (int)MUST(memfd_create("file", 0));
    MUST(write(file, text, strlen(text)));
    return file;
}

static void numbers_send(struct side *side) {
    int fd = side->fd;
    fill(out, sizeof(out), 1, 0);
    SHOW(BY(write, fd, out, 100));
    SHOW(BY(sendto, fd, out + 100, 500, MSG_NOSIGNAL, NULL, 0));
    struct iovec parts[] = {{out + 600, 10}, {out + 610, 0}, {out + 610, 90}, {out + 700, 300}};
    SHOW(BY(writev, fd, parts, 4));
    struct iovec more[] = {{out + 1000, 500}, {out + 1500, 1}};
    SHOW(BY(pwritev2, fd, more, 2, -1L, -1L, 0));
    SHOW(BY(pwritev2, fd, more, 2, 0L, 0L, 0));
    struct iovec last[] = {{out + 1501, 99}, {out + 1600, 400}};
    struct msghdr message = {.msg_iov = last, .msg_iovlen = 2};
    SHOW(BY(sendmsg, fd, &message, 0));
    struct iovec each[] = {{out + 2000, 50}, {out + 2050, 1000}, {out + 3050, 46}};
    struct mmsghdr many[3] = {0};
    for (int i = 0; i < 3; i++) many[i].msg_hdr = (struct msghdr){.msg_iov = &each[i], .msg_iovlen = 1};
    SHOW(BY(sendmmsg, fd, many, 3, 0));
    for (int i = 0; i < 3; i++) say("part %d: %u bytes", i, many[i].msg_len);
    off_t at = 2;
    SHOW(BY(sendfile, fd, file_of("a file"), &at, 100));
    say("offset %ld", (long)at);
    int copy = (int)MUST(BY(dup, fd));
    SHOW(BY(write, copy, "copy", 4));
    MUST(BY(dup3, fd, copy, O_CLOEXEC));
    SHOW(BY(write, copy, "copy", 4));
    int another_copy = (int)MUST(BY(fcntl, fd, F_DUPFD, 50));
    SHOW(BY(write, another_copy, "copy", 4));
    SHOW(BY(close, copy));
    SHOW(BY(close, another_copy));
    SHOW(BY(shutdown, fd, SHUT_WR));
    SHOW(BY(sendto, fd, out, 1, MSG_NOSIGNAL, NULL, 0));
    hear(side);
}
static void receive_once(struct side *side) {
    long got = (long)receive_all(side->fd, in, sizeof(in));
    say_bytes("all", in, got);
    say("first difference %ld", differs(in, 3096, 1, 0));
    say("%.*s", (int)got - 3096, in + 3096);
    tell(side);
}
static void number_sends(void) { two_processes(AF_INET, numbers_send, receive_once); }

static void numbers_receive(struct side *side) {
    int fd = side->fd, count = 0;
    hear(side);
    while (MUST(BY(ioctl, fd, FIONREAD, &count)) == 0 && count < 3000) nap_ms(1);
    SHOW(BY(read, fd, in, 100));
    struct sockaddr_storage from;
    socklen_t size = sizeof(from);
    SHOW(BY(recvfrom, fd, in + 100, 500, 0, &from, &size));
    say("address of %u bytes", size);
    struct iovec parts[] = {{in + 600, 10}, {in + 610, 0}, {in + 610, 90}, {in + 700, 300}};
    SHOW(BY(readv, fd, parts, 4));
    struct iovec more[] = {{in + 1000, 500}, {in + 1500, 1}};
    SHOW(BY(preadv2, fd, more, 2, -1L, -1L, 0));
    SHOW(BY(preadv2, fd, more, 2, 0L, 0L, 0));
    struct iovec last[] = {{in + 1501, 99}, {in + 1600, 400}};
    struct msghdr message = {.msg_iov = last, .msg_iovlen = 2};
    SHOW(BY(recvmsg, fd, &message, 0));
    struct iovec each[] = {{in + 2000, 50}, {in + 2050, 900}, {in + 2950, 46}};
    struct mmsghdr many[3] = {0};
    for (int i = 0; i < 3; i++) many[i].msg_hdr = (struct msghdr){.msg_iov = &each[i], .msg_iovlen = 1};
    struct timespec forever = {100, 0};
    SHOW(BY(recvmmsg, fd, many, 3, 0, &forever));
    say("most of the time is left: %d", forever.tv_sec > 50);
    SHOW(BY(recvfrom, fd, in + 2996, 100, 0, NULL, NULL));
    say_bytes("all", in, 3000);
    say("first difference %ld", differs(in, 3000, 2, 0));
    SHOW(BY(recvfrom, fd, in, 1, MSG_DONTWAIT, NULL, NULL));
    MUST(BY(fcntl, fd, F_SETFL, O_RDWR | O_NONBLOCK));
    SHOW(BY(read, fd, in, 1));
    int one = 1, error = -1;
    size = sizeof(error);
    SHOW(BY(setsockopt, fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)));
    SHOW(BY(getsockopt, fd, SOL_SOCKET, SO_ERROR, &error, &size));
    say("error %d", error);
    SHOW(BY(read, -1, in, 1));
    SHOW(BY(fcntl, fd, F_GETFL, 0) & O_NONBLOCK);
    tell(side);
}
static void send_once(struct side *side) {
    fill(out, 3000, 2, 0);
    send_all(side->fd, out, 3000);
    tell(side);
    hear(side);
}
static void number_receives(void) { two_processes(AF_INET, numbers_receive, send_once); }
static void number_receives_threads(void) { two_threads(AF_INET, numbers_receive, send_once); }

/* Every call that waits, for nothing and for something; the kernel counts the times of some down, where it can
 * write. */
static const struct timespec briefly = {0, 20000000}, nothing = {0, 0};
enum { POLL, PPOLL, SELECT, PSELECT, EPOLL_WAIT, EPOLL_PWAIT, EPOLL_PWAIT2, CALLS };
static long wait_by(int call, int fd, int set, bool long_enough) {
    struct pollfd polled = {fd, POLLIN, 0};
    struct timespec time = long_enough ? (struct timespec){100, 0} : briefly;
    struct timeval value = {time.tv_sec, time.tv_nsec / 1000};
    int ms = long_enough ? 100000 : 20;
    struct epoll_event event;
    fd_set read;
    FD_ZERO(&read);
    FD_SET(fd, &read);
    uint64_t mask = 1ull << (SIGUSR1 - 1);
    struct {
        const void *mask;
        size_t size;
    } pair = {&mask, 8};
    long answer = -1;
    switch (call) {
#ifdef SYS_poll
    case POLL: answer = BY(poll, &polled, 1, ms); break;
    case SELECT: answer = BY(select, fd + 1, &read, NULL, NULL, &value); break;
    case EPOLL_WAIT: answer = BY(epoll_wait, set, &event, 1, ms); break;
#else
    case POLL: answer = poll(&polled, 1, ms); break;
    case SELECT: answer = select(fd + 1, &read, NULL, NULL, &value); break;
    case EPOLL_WAIT: answer = epoll_wait(set, &event, 1, ms); break;
#endif
    case PPOLL: answer = BY(ppoll, &polled, 1, &time, &mask, 8); break;
    case PSELECT: answer = BY(pselect6, fd + 1, &read, NULL, NULL, &time, &pair); break;
    case EPOLL_PWAIT: answer = BY(epoll_pwait, set, &event, 1, ms, &mask, 8); break;
    case EPOLL_PWAIT2: answer = BY(epoll_pwait2, set, &event, 1, &time, &mask, 8); break;
    }
    if (call == SELECT) time = (struct timespec){value.tv_sec, value.tv_usec * 1000};
    if (call == SELECT || call == PPOLL || call == PSELECT) {
        if (long_enough) say("most of the time is left: %d", time.tv_sec > 50);
        else if (answer == 0) say("left: %ld %ld", (long)time.tv_sec, time.tv_nsec);
        say("in the set: %d", FD_ISSET(fd, &read));
    } else if (call == EPOLL_PWAIT2) {
        say("untouched: %d", time.tv_nsec == (long_enough ? 0 : briefly.tv_nsec));
    }
    return answer;
}
static void numbers_wait(struct side *side) {
    int fd = side->fd, set = (int)MUST(BY(epoll_create1, 0));
    struct epoll_event event = {.events = EPOLLIN};
    SHOW(BY(epoll_ctl, set, EPOLL_CTL_ADD, fd, &event));
    for (int call = 0; call < CALLS; call++) {
        char byte;
        SHOW(wait_by(call, fd, set, false));
        tell(side);
        SHOW(wait_by(call, fd, set, true));
        SHOW(BY(read, fd, &byte, 1));
        SHOW(wait_by(call, fd, set, false));
    }
    /* Sizes that the kernel refuses, and times that it cannot write to. */
    struct pollfd polled = {fd, POLLIN, 0};
    uint64_t mask = 0;
    struct {
        const void *mask;
        size_t size;
    } pair = {&mask, 128};
    SHOW(BY(ppoll, &polled, 1, &briefly, &mask, 128));
    SHOW(BY(ppoll, &polled, 1, &briefly, NULL, 128));
    SHOW(BY(pselect6, 0, NULL, NULL, NULL, &briefly, &pair));
    SHOW(BY(pselect6, 0, NULL, NULL, NULL, &briefly, NULL));
    SHOW(BY(epoll_pwait, set, &event, 1, 0, &mask, 128));
    SHOW(BY(epoll_pwait2, set, &event, 1, &nothing, &mask, 128));
    SHOW(BY(ppoll, &polled, 1, &nothing, NULL, 8));
    struct timespec wrong = {0, 2000000000};
    SHOW(BY(ppoll, &polled, 1, &wrong, NULL, 8));
    say("%ld", wrong.tv_nsec);
    SHOW(BY(epoll_ctl, set, EPOLL_CTL_DEL, fd, NULL));
    SHOW(BY(close, set));
}
static void wake_often(struct side *side) {
    for (int call = 0; call < CALLS; call++) {
        hear(side);
        await_asleep(side->other);
        send_all(side->fd, "x", 1);
    }
}
static void number_waits(void) { two_threads(AF_INET, numbers_wait, wake_often); }

/* Processes made by number, each of which uses the connection. */
static void ask(const char *who, int fd, size_t count, uint64_t seed) {
    fill(out, count, seed, 0);
    send_all(fd, out, count);
    size_t got = receive_all(fd, in, count);
    say("%s: %zu came back, first difference %ld", who, got, differs(in, got, seed, 0));
}
static long make_process(int way) {
    struct clone_args arguments = {.exit_signal = SIGCHLD};
    switch (way) {
#ifdef SYS_fork
    case 0: return BY(fork, 0);
#endif
    case 1: return BY(clone3, &arguments, sizeof(arguments));
    default: return BY(clone, SIGCHLD, 0, 0, 0, 0);
    }
}
static void numbers_fork(struct side *side) {
    for (int way = 0; way < 3; way++) {
        int unused = (int)MUST(accept(side->listener, NULL, NULL));
        ask("parent", side->fd, 1000, (uint64_t)way);
        pid_t child = (pid_t)MUST(make_process(way));
        if (child == 0) {
            ask("child", side->fd, 30000, 10 + (uint64_t)way);
            if (way != 1) ask("child, first use", unused, 3000, 20 + (uint64_t)way);
            BY(exit_group, 5);
        }
        int status = 0;
        MUST(waitpid(child, &status, 0));
        say("child %d", WEXITSTATUS(status));
        ask("parent, other connection", unused, 3000, 30 + (uint64_t)way);
        close(unused);
    }
    ask("parent", side->fd, 50000, 99);
}
static void *echo_beside(void *argument) {
    struct side *side = argument;
    role = 'E';
    echo_until_end(side);
    return NULL;
}
static void numbers_fork_b(struct side *side) {
    for (int way = 0; way < 3; way++) {
        struct side other = *side;
        other.fd = connect_to(&side->address);
        pthread_t thread;
        start_thread(&thread, echo_beside, &other);
        size_t wanted = 1000 + 30000, got = 0;
        while (got < wanted) {
            ssize_t part = recv(side->fd, in, sizeof(in), 0);
            if (part <= 0) fail("recv");
            send_all(side->fd, in, (size_t)part);
            got += (size_t)part;
        }
        pthread_join(thread, NULL);
        close(other.fd);
    }
    echo_until_end(side);
}
static void number_forks(void) { two_processes(AF_INET, numbers_fork, numbers_fork_b); }

/* A program executed by number, which has the connection as its input and output. */
static void numbers_exec(struct side *side) {
    char *arguments[] = {"cat", "-", NULL};
    for (int way = 0; way < 2; way++) {
        int fd = way == 0 ? side->fd : another(side);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            MUST(BY(dup3, fd, STDIN_FILENO, 0));
            MUST(BY(dup3, fd, STDOUT_FILENO, 0));
            MUST(BY(close, fd));
            if (way == 0) BY(execve, "/bin/cat", arguments, environ);
            else BY(execveat, MUST(open("/bin/cat", O_PATH)), "", arguments, environ, AT_EMPTY_PATH);
            _exit(9);
        }
        if (way == 1) close(fd);
        else MUST(BY(close, fd));
        int status = 0;
        MUST(waitpid(child, &status, 0));
        say("child %d", WEXITSTATUS(status));
    }
    side->fd = (int)MUST(open("/dev/null", O_RDWR));
}
static void numbers_exec_b(struct side *side) {
    ask("program", side->fd, 30000, 1);
    shutdown(side->fd, SHUT_WR);
    SHOW(recv(side->fd, in, 1, 0));
    int fd = another(side);
    ask("program", fd, 30000, 2);
    shutdown(fd, SHUT_WR);
    SHOW(recv(fd, in, 1, 0));
    close(fd);
}
static void number_execs(void) { two_processes(AF_INET, numbers_exec, numbers_exec_b); }

/* A system call by number is no cancellation point. */
static void *uncancelled(void *argument) {
    struct side *side = argument;
    role = 'C';
    pthread_cancel(pthread_self());
    char byte;
    SHOW(BY(read, side->fd, &byte, 1));
    SHOW(BY(write, side->fd, "y", 1));
    struct pollfd polled = {side->fd, POLLIN, 0};
    SHOW(BY(ppoll, &polled, 1, &briefly, NULL, 8));
    pthread_testcancel();
    say("not cancelled");
    return NULL;
}
static void numbers_cancel(struct side *side) {
    pthread_t thread;
    start_thread(&thread, uncancelled, side);
    void *answer = NULL;
    pthread_join(thread, &answer);
    say("cancelled %d", answer == PTHREAD_CANCELED);
    tell(side);
}
static void numbers_cancel_b(struct side *side) {
    send_all(side->fd, "x", 1);
    hear(side);
    SHOW(recv(side->fd, in, 10, 0));
}
static void number_cancels(void) { two_processes(AF_INET, numbers_cancel, numbers_cancel_b); }

/* Older names of libc's functions. */
ssize_t __read(int, void *, size_t), __write(int, const void *, size_t), __send(int, const void *, size_t, int);
int __fcntl(int, int, ...), __dup2(int, int), __close(int), __poll(struct pollfd *, nfds_t, int);
int __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
FILE *_IO_fdopen(int, const char *);
static void aliases_a(struct side *side) {
    int fd = side->fd;
    hear(side);
    await_bytes(fd, 5);
    struct pollfd polled = {fd, POLLIN, 0};
    SHOW(__poll(&polled, 1, -1));
    fd_set read;
    FD_ZERO(&read);
    FD_SET(fd, &read);
    struct timeval briefly = {0, 20000};
    SHOW(__select(fd + 1, &read, NULL, NULL, &briefly));
    SHOW(__read(fd, in, 5));
    SHOW(__select(fd + 1, &read, NULL, NULL, &briefly));
    int copy = (int)MUST(__fcntl(fd, F_DUPFD, 50)), other = (int)MUST(dup(0));
    SHOW(__write(copy, "abc", 3));
    MUST(__dup2(fd, other));
    SHOW(__close(copy));
    SHOW(__send(other, "def", 3, 0));
    FILE *stream = _IO_fdopen(other, "w");
    fputs("ghi", stream);
    SHOW(fclose(stream));
    hear(side);
}
static void aliases_b(struct side *side) {
    send_all(side->fd, "hello", 5);
    tell(side);
    long got = (long)receive_all(side->fd, in, 9);
    say("%.*s", (int)got, in);
    tell(side);
}
static void aliases(void) { two_processes(AF_INET, aliases_a, aliases_b); }

/* POSIX asynchronous calls */

static struct aiocb request(int fd, int operation, void *bytes, size_t count) {
    struct aiocb it = {.aio_fildes = fd, .aio_lio_opcode = operation, .aio_buf = bytes, .aio_nbytes = count};
    it.aio_sigevent.sigev_notify = SIGEV_NONE;
    return it;
}
static long await_request(struct aiocb *it) {
    const struct aiocb *list[] = {it};
    while (aio_suspend(list, 1, NULL) == -1 && errno == EINTR) {}
    int error = aio_error(it);
    long answer = (long)aio_return(it);
    say("%s, %ld", error_name(error), answer);
    return answer;
}

/* A request that waits, one for what is there, and writes; usual calls before, between and after. */
static void aio_a(struct side *side) {
    int fd = side->fd;
    struct aiocb it = request(fd, 0, in, 100);
    SHOW(aio_read(&it));
    SHOW(aio_error(&it));
    tell(side);
    say_bytes("first", in, await_request(&it));
    tell(side);
    hear(side);
    await_bytes(fd, 10);
    it = request(fd, 0, in, 4);
    SHOW(aio_read(&it));
    say_bytes("second", in, await_request(&it));
    SHOW(recv(fd, in, 100, 0));
    SHOW(send(fd, "before", 6, 0));
    it = request(fd, 0, "aio", 3);
    SHOW(aio_write(&it));
    await_request(&it);
    SHOW(send(fd, "behind", 6, 0));
    it = request(fd, 0, in, 100);
    it.aio_reqprio = -1;
    SHOW(aio_read(&it));
    it = request(-1, 0, in, 100);
    SHOW(aio_read(&it));
    await_request(&it);
    it = request(fd, 0, in, 0);
    SHOW(aio_read(&it));
    await_request(&it);
    it = request(fd, 0, in, 100);
    SHOW(aio_read(&it));
    tell(side);
    say_bytes("last", in, await_request(&it));
    it = request(fd, 0, in, 100);
    SHOW(aio_fsync(O_SYNC, &it));
    await_request(&it);
}
static void aio_b(struct side *side) {
    hear(side);
    await_asleep(side->other);
    SHOW(send(side->fd, "0123456789", 10, 0));
    hear(side);
    SHOW(send(side->fd, "abcdefghij", 10, 0));
    tell(side);
    long got = (long)receive_all(side->fd, in, 15);
    say("%.*s", (int)got, in);
    hear(side);
    SHOW(recv(side->fd, in, 10, MSG_DONTWAIT));
    await_asleep(side->other);
    SHOW(send(side->fd, "!", 1, 0));
}
static void aio(void) { two_processes(AF_INET, aio_a, aio_b); }

/* All is sent, and its sender gone, before the first request; each tells when it is done. */
static void on_done(union sigval value) {
    sem_post(value.sival_ptr);
}
static void aio_unread_a(struct side *side) {
    int fd = side->fd;
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    hear(side);
    await_events(fd, POLLRDHUP);
    struct aiocb it = request(fd, 0, in, 10000);
    it.aio_sigevent.sigev_notify = SIGEV_SIGNAL;
    it.aio_sigevent.sigev_signo = SIGRTMIN;
    it.aio_sigevent.sigev_value.sival_int = 7;
    SHOW(aio_read(&it));
    siginfo_t about;
    say("signal %d", sigwaitinfo(&mask, &about) == SIGRTMIN);
    say("code %d, value %d", about.si_code, about.si_value.sival_int);
    await_request(&it);
    sem_t done;
    sem_init(&done, 0, 0);
    it = request(fd, 0, in + 10000, 10000);
    it.aio_sigevent.sigev_notify = SIGEV_THREAD;
    it.aio_sigevent.sigev_notify_function = on_done;
    it.aio_sigevent.sigev_value.sival_ptr = &done;
    SHOW(aio_read(&it));
    while (sem_wait(&done) == -1) {}
    await_request(&it);
    it = request(fd, 0, in + 20000, 40000);
    SHOW(aio_read(&it));
    await_request(&it);
    SHOW(aio_cancel(fd, &it));
    say("first difference %ld", differs(in, 30000, 3, 0));
    it = request(fd, 0, in, 10);
    SHOW(aio_read(&it));
    await_request(&it);
}
static void aio_unread_b(struct side *side) {
    fill(out, 30000, 3, 0);
    send_all(side->fd, out, 30000);
    shutdown(side->fd, SHUT_WR);
    tell(side);
}
static void aio_unread(void) { two_processes(AF_INET, aio_unread_a, aio_unread_b); }

/* Only waiting for a request is a cancellation point. */
static void *aio_uncancelled(void *argument) {
    struct side *side = argument;
    role = 'C';
    await_bytes(side->fd, 5);
    pthread_cancel(pthread_self());
    struct aiocb it = request(side->fd, 0, in, 5), other = request(side->fd, 0, "answer", 6);
    struct aiocb *list[] = {&other};
    other.aio_lio_opcode = LIO_WRITE;
    SHOW(aio_read(&it));
    SHOW(lio_listio(LIO_NOWAIT, list, 1, NULL));
    while (aio_error(&it) == EINPROGRESS || aio_error(&other) == EINPROGRESS) {}
    SHOW(aio_return(&it));
    say("%.5s", in);
    pthread_testcancel();
    return NULL;
}
static void aio_cancel_a(struct side *side) {
    pthread_t thread;
    start_thread(&thread, aio_uncancelled, side);
    void *answer = NULL;
    pthread_join(thread, &answer);
    say("cancelled %d", answer == PTHREAD_CANCELED);
    hear(side);
}
static void aio_cancel_b(struct side *side) {
    send_all(side->fd, "hello", 5);
    long got = (long)receive_all(side->fd, in, 6);
    say("%.*s", (int)got, in);
    tell(side);
}
static void aio_cancels(void) { two_processes(AF_INET, aio_cancel_a, aio_cancel_b); }

/* Lists of requests, waiting and not. */
static void aio_list_a(struct side *side) {
    int fd = side->fd, other = another(side);
    hear(side);
    await_bytes(fd, 3000);
    struct aiocb its[] = {request(fd, LIO_READ, in, 1000), request(fd, LIO_WRITE, "to one", 6),
                          request(other, LIO_WRITE, "to two", 6), request(other, LIO_NOP, in, 7),
                          request(fd, LIO_READ, in + 1000, 5000)};
    struct aiocb *list[] = {&its[0], NULL, &its[1], &its[2], &its[3], &its[4]};
    SHOW(lio_listio(LIO_WAIT, list, COUNT(list), NULL));
    for (size_t i = 0; i < COUNT(its); i++) {
        if (i != 3) await_request(&its[i]);
    }
    say("first difference %ld", differs(in, 3000, 4, 0));
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    await_bytes(other, 10);
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    its[0] = request(other, LIO_READ, in, 6);
    its[1] = request(other, LIO_READ, in + 6, 6);
    struct aiocb *two[] = {&its[0], &its[1]};
    SHOW(lio_listio(LIO_NOWAIT, two, 2, &event));
    siginfo_t about;
    say("signal %d", sigwaitinfo(&mask, &about) == SIGRTMIN);
    await_request(&its[0]);
    await_request(&its[1]);
    say("%.10s", in);
    SHOW(lio_listio(9, two, 2, &event));
    SHOW(lio_listio(LIO_WAIT, two, 0, NULL));
    ask("usual calls", fd, 30000, 5);
    close(other);
}
static void aio_list_b(struct side *side) {
    int other = another(side);
    fill(out, 3000, 4, 0);
    send_all(side->fd, out, 3000);
    send_all(other, "0123456789", 10);
    tell(side);
    long got = (long)receive_all(side->fd, in, 6);
    say("%.*s", (int)got, in);
    got = (long)receive_all(other, in, 6);
    say("%.*s", (int)got, in);
    echo_until_end(side);
}
static void aio_list(void) { two_processes(AF_INET, aio_list_a, aio_list_b); }

/* Refused for its mode, however long the list is said to be: nothing is received. */
static void aio_refused_a(struct side *side) {
    int fd = side->fd;
    await_bytes(fd, 5);
    struct aiocb it = request(fd, LIO_READ, in, 5), *list[] = {&it};
    SHOW(lio_listio(9, list, 1, NULL));
    SHOW(lio_listio(9, list, INT_MAX, NULL));
    SHOW(lio_listio(9, list, INT_MIN, NULL));
    SHOW(lio_listio(LIO_WAIT, list, -1, NULL));
    SHOW(recv(fd, in, 5, MSG_DONTWAIT));
    say("%.5s", in);
    tell(side);
}
static void aio_refused_b(struct side *side) {
    send_all(side->fd, "hello", 5);
    hear(side);
}
static void aio_refused(void) { two_processes(AF_INET, aio_refused_a, aio_refused_b); }

/* The kernel's own asynchronous calls. */
static void submit(aio_context_t context, struct iocb it) {
    struct iocb *list[] = {&it};
    struct io_event event;
    SHOW(BY(io_submit, context, 1, list));
    MUST(BY(io_getevents, context, 1, 1, &event, NULL));
    say("%lld", (long long)event.res);
}
static void aio_kernel_a(struct side *side) {
    aio_context_t context = 0;
    MUST(BY(io_setup, 4, &context));
    uint32_t fd = (uint32_t)side->fd;
    tell(side);
    submit(
        context,
        (struct iocb){.aio_lio_opcode = IOCB_CMD_PREAD, .aio_fildes = fd, .aio_buf = (uintptr_t)in, .aio_nbytes = 10});
    say("%.10s", in);
    submit(context,
           (struct iocb){
               .aio_lio_opcode = IOCB_CMD_PWRITE, .aio_fildes = fd, .aio_buf = (uintptr_t)"abc", .aio_nbytes = 3});
    submit(context, (struct iocb){.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = fd, .aio_buf = POLLIN});
    SHOW(recv(side->fd, in, 10, 0));
    BY(io_destroy, context);
}
static void aio_kernel_b(struct side *side) {
    hear(side);
    await_asleep(side->other);
    send_all(side->fd, "0123456789", 10);
    SHOW(recv(side->fd, in, 10, 0));
    await_asleep(side->other);
    send_all(side->fd, "x", 1);
    SHOW(recv(side->fd, in, 10, 0));
}
static void aio_kernel(void) { two_processes(AF_INET, aio_kernel_a, aio_kernel_b); }

/* Signals for input: asked for before the first use, when all was read, and when something is unread. */
static void await_signal(int fd) {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN);
    siginfo_t about;
    /* Others tell of room to send. */
    do MUST(sigwaitinfo(&mask, &about));
    while (!(about.si_band & POLLIN));
    say("input on the socket: %d", about.si_fd == fd);
}
static void drain_signals(void) {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN);
    while (sigtimedwait(&mask, NULL, &nothing) > 0) {}
}
static void ask_for_signals(int fd, int way, bool on) {
    SHOW(fcntl(fd, F_SETOWN, getpid()));
    SHOW(fcntl(fd, F_SETSIG, SIGRTMIN));
    int flags = (int)MUST(fcntl(fd, F_GETFL)), number = on;
    flags = on ? flags | O_ASYNC : flags & ~O_ASYNC;
    switch (way) {
    case 0: SHOW(fcntl(fd, F_SETFL, flags)); break;
    case 1: SHOW(ioctl(fd, FIOASYNC, &number)); break;
    case 2: SHOW(BY(fcntl, fd, F_SETFL, flags)); break;
    }
}
static void signals_a(struct side *side) {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGRTMIN);
    pthread_sigmask(SIG_BLOCK, &mask, NULL);
    for (int way = 0; way < 4; way++) {
        int fd;
        if (way < 3) {
            fd = another(side);
        } else {
            fd = (int)MUST(accept(side->listener, NULL, NULL));
            ask_for_signals(fd, 0, true);
            warm(fd, true);
        }
        bool unread = way == 1;
        tell(side);
        if (unread) await_bytes(fd, 3);
        if (way < 3) ask_for_signals(fd, way, true);
        if (unread) SHOW(recv(fd, in, 3, 0));
        drain_signals();
        for (int i = 0; i < 3; i++) {
            tell(side);
            await_signal(fd);
            SHOW(recv(fd, in, 10, MSG_DONTWAIT));
            SHOW(recv(fd, in, 10, MSG_DONTWAIT));
            drain_signals();
        }
        ask("still", fd, 10000, 6);
        ask_for_signals(fd, way % 3, false);
        drain_signals();
        ask("again", fd, 10000, 7);
        close(fd);
    }
}
static void signals_b(struct side *side) {
    for (int way = 0; way < 4; way++) {
        int fd = way < 3 ? another(side) : connect_to(&side->address);
        if (way == 3) warm(fd, false);
        if (way == 1) send_all(fd, "abc", 3);
        hear(side);
        for (int i = 0; i < 3; i++) {
            hear(side);
            await_asleep(side->other);
            send_all(fd, "x", 1);
        }
        struct side it = *side;
        it.fd = fd;
        echo_until_end(&it);
        close(fd);
    }
}
static void input_signals(void) { two_processes(AF_INET, signals_a, signals_b); }

/* io_uring, where it is allowed: by connections that were fast before, and by new ones. */
static struct {
    int fd;
    char *memory;
    struct io_uring_params params;
    struct io_uring_sqe *entries;
} ring;
static bool make_ring(void) {
    struct io_uring_params *params = &ring.params;
    ring.fd = (int)SHOW(BY(io_uring_setup, 4, params));
    if (ring.fd < 0) return false;
    size_t size = params->cq_off.cqes + params->cq_entries * sizeof(struct io_uring_cqe);
    ring.memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
    size = params->sq_entries * sizeof(struct io_uring_sqe);
    ring.entries = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES);
    return ring.memory != MAP_FAILED && ring.entries != MAP_FAILED;
}
static unsigned *word(unsigned offset) {
    return (unsigned *)(ring.memory + offset);
}
static void by_ring(int operation, int fd, void *bytes, unsigned count) {
    const struct io_uring_params *params = &ring.params;
    unsigned *tail = word(params->sq_off.tail), place = *tail & *word(params->sq_off.ring_mask);
    ring.entries[place] = (struct io_uring_sqe){
        .opcode = (uint8_t)operation, .fd = fd, .addr = (uintptr_t)bytes, .len = count};
    word(params->sq_off.array)[place] = place;
    __atomic_store_n(tail, *tail + 1, __ATOMIC_RELEASE);
    MUST(BY(io_uring_enter, ring.fd, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0));
    unsigned *head = word(params->cq_off.head);
    struct io_uring_cqe *done = (struct io_uring_cqe *)(ring.memory + params->cq_off.cqes);
    say("%d", done[*head & *word(params->cq_off.ring_mask)].res);
    __atomic_store_n(head, *head + 1, __ATOMIC_RELEASE);
}
static void ring_a(struct side *side) {
    bool made = make_ring();
    for (int turns = 0; turns < 2; turns++) {
        int fd = turns == 0 ? side->fd : another(side);
        tell(side);
        if (made) by_ring(IORING_OP_RECV, fd, in, 100);
        else SHOW(recv(fd, in, 100, 0));
        say("%.5s", in);
        if (made) by_ring(IORING_OP_SEND, fd, "answer", 6);
        else SHOW(send(fd, "answer", 6, 0));
        ask("usual calls", fd, 10000, 9);
        if (turns == 1) close(fd);
    }
}
static void ring_b(struct side *side) {
    for (int turns = 0; turns < 2; turns++) {
        struct side it = *side;
        if (turns == 1) it.fd = another(side);
        hear(side);
        await_asleep(side->other);
        send_all(it.fd, "hello", 5);
        long got = (long)receive_all(it.fd, in, 6);
        say("%.*s", (int)got, in);
        got = (long)receive_all(it.fd, in, 10000);
        send_all(it.fd, in, (size_t)got);
        if (turns == 1) close(it.fd);
    }
}
static void io_uring(void) {
    if (!getenv("UNDERPASS_IO_URING")) {
        setenv("UNDERPASS_IO_URING", "allow", 1);
        execl("/proc/self/exe", "byways", "io-uring", NULL);
    }
    two_processes(AF_INET, ring_a, ring_b);
}

/* Bytes that are moved inside the kernel, and calls for that which a socket refuses. */
static void inside_a(struct side *side) {
    int fd = side->fd, pipes[2], file = file_of("a file"), other = another(side);
    MUST(pipe(pipes));
    signal(SIGPIPE, SIG_IGN);
    hear(side);
    await_bytes(fd, 3000);
    SHOW(sendfile(file, fd, NULL, 10));
    SHOW(sendfile(other, fd, NULL, 10));
    SHOW(splice(fd, NULL, file, NULL, 10, 0));
    SHOW(splice(fd, NULL, other, NULL, 10, 0));
    SHOW(splice(fd, NULL, pipes[0], NULL, 10, 0));
    SHOW(splice(fd, NULL, -1, NULL, 10, 0));
    SHOW(splice(fd, NULL, pipes[1], NULL, 10, 0x100));
    SHOW(splice(fd, NULL, pipes[1], NULL, 0, 0));
    SHOW(splice(fd, &(off64_t){0}, pipes[1], NULL, 10, 0));
    SHOW(tee(fd, pipes[1], 10, 0));
    SHOW(tee(pipes[0], fd, 10, 0));
    SHOW(vmsplice(fd, &(struct iovec){in, 10}, 1, 0));
    SHOW(copy_file_range(fd, NULL, file, NULL, 10, 0));
    SHOW(copy_file_range(file, NULL, fd, NULL, 10, 0));
    SHOW(sendfile(pipes[1], fd, &(off_t){0}, 10));
    long count = SHOW(sendfile(pipes[1], fd, NULL, 1000));
    SHOW(read(pipes[0], in, sizeof(in)));
    say("first difference %ld", differs(in, (size_t)count, 8, 0));
    SHOW(splice(fd, NULL, pipes[1], NULL, 1000, 0));
    SHOW(splice(pipes[0], NULL, other, NULL, 1000, 0));
    SHOW(recv(fd, in, 1000, 0));
    say("first difference %ld", differs(in, 1000, 8, 2000));
    tell(side);
    /* The pipe does not wait, the socket does. */
    SHOW(splice(fd, NULL, pipes[1], NULL, 1000, SPLICE_F_NONBLOCK));
    SHOW(read(pipes[0], in, 10));
    tell(side);
    SHOW(sendfile(pipes[1], fd, NULL, 1000));
    SHOW(read(pipes[0], in, 10));
    SHOW(sendfile(pipes[1], fd, NULL, 1000));
    tell(side);
    hear(side);
    close(other);
}
static void inside_b(struct side *side) {
    int other = another(side);
    fill(out, 3000, 8, 0);
    send_all(side->fd, out, 3000);
    tell(side);
    for (int turns = 0; turns < 2; turns++) {
        hear(side);
        await_asleep(side->other);
        send_all(side->fd, "x", 1);
    }
    shutdown(side->fd, SHUT_WR);
    hear(side);
    size_t got = receive_all(other, in, 1000);
    say("first difference %ld", differs(in, got, 8, 1000));
    tell(side);
    SHOW(recv(other, in, 1, 0));
    close(other);
}
static void inside(void) { two_processes(AF_INET, inside_a, inside_b); }

/* A getsockopt that receives: of less than a page it says how much is to be received otherwise. */
static void mapped_a(struct side *side) {
    struct {
        uint64_t address;
        uint32_t length, skip;
    } zero_copy;
    for (int turns = 0; turns < 2; turns++) {
        tell(side);
        await_bytes(side->fd, 1000);
        memset(&zero_copy, 0, sizeof(zero_copy));
        zero_copy.length = 4096;
        socklen_t size = sizeof(zero_copy);
        SHOW(getsockopt(side->fd, IPPROTO_TCP, TCP_ZEROCOPY_RECEIVE, &zero_copy, &size));
        say("%u, %u", zero_copy.length, zero_copy.skip);
        SHOW(recv(side->fd, in, 2000, 0));
    }
    tell(side);
}
static void mapped_b(struct side *side) {
    for (int turns = 0; turns < 2; turns++) {
        hear(side);
        send_all(side->fd, out, 1000);
    }
    hear(side);
}
static void mapped(void) { two_processes(AF_INET, mapped_a, mapped_b); }

const struct scenario scenarios[] = {
    {"number-sends", number_sends, 0},
    {"number-receives", number_receives, 0},
    {"number-receives-threads", number_receives_threads, 0},
    {"number-waits", number_waits, 0},
    {"number-forks", number_forks, 0},
    {"number-execs", number_execs, 0},
    {"number-cancels", number_cancels, 0},
    {"aliases", aliases, 0},
    {"aio", aio, 0},
    {"aio-unread", aio_unread, 0},
    {"aio-cancels", aio_cancels, 0},
    {"aio-list", aio_list, 0}, {"aio-refused", aio_refused, 0},
    {"aio-kernel", aio_kernel, 0},
    {"input-signals", input_signals, 0},
    {"io-uring", io_uring, 0},
    {"inside", inside, 0},
    {"mapped", mapped, 0},
    {0},
};
