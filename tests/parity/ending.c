/* How connections end: shutdown each way, close with and without unread bytes, linger, death of a process. */
#include "harness.h"

#include <sched.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>

static _Thread_local char in[64 * KIB], out[64 * KIB];

static short events_now(int fd) {
    struct pollfd ready = {fd, POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    MUST(poll(&ready, 1, 0));
    return ready.revents;
}

static const char *pending_error(int fd) {
    int error = -1;
    socklen_t size = sizeof(error);
    MUST(getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size));
    return error_name(error);
}

/* One direction ends, the other goes on; then it ends too. */
static void half_a(struct side *side) {
    int fd = side->fd;
    signal(SIGPIPE, SIG_IGN);
    SHOW(send(fd, "last words", 10, 0));
    SHOW(shutdown(fd, SHUT_WR));
    SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
    SHOW(write(fd, out, 0));
    say("events %x", events_now(fd));
    tell(side);
    hear(side);
    say("received %zu", receive_all(fd, in, 5000));
    say("first difference %ld", differs(in, 5000, 1, 0));
    tell(side);
    SHOW(recv(fd, in, 10, 0)); /* asleep when the end comes */
    say("events %x", events_now(fd));
    SHOW(recv(fd, in, 10, 0));
    SHOW(shutdown(fd, SHUT_WR));
    SHOW(shutdown(fd, SHUT_RD));
    SHOW(shutdown(fd, 7));
}
static void half_b(struct side *side) {
    int fd = side->fd;
    hear(side);
    await_events(fd, POLLRDHUP);
    say("events %x", events_now(fd));
    SHOW(recv(fd, in, 5, 0));
    say("events %x", events_now(fd));
    SHOW(recv(fd, in, 100, 0));
    SHOW(recv(fd, in, 100, 0));
    SHOW(recv(fd, in, 100, MSG_DONTWAIT));
    say("events %x", events_now(fd));
    fill(out, 5000, 1, 0);
    for (int i = 0; i < 10; i++) send_all(fd, out + 500 * i, 500);
    tell(side);
    hear(side);
    await_asleep(side->other);
    SHOW(shutdown(fd, SHUT_WR));
    say("events %x", events_now(fd));
}
/* Fails if `shutdown` leaves out its call of `real::shutdown(fd, how)` (crates/preload/src/calls/descriptor.rs): a
 * connection stays a real one of the kernel's. */
static void half(void) { two_processes(AF_INET, half_a, half_b); }
static void half_threads(void) { two_threads(AF_INET6, half_a, half_b); }

/* The sleeper is woken by the end of the other side. */
static void woken_a(struct side *side) {
    tell(side);
    SHOW(recv(side->fd, in, 10, 0));
    say("SO_ERROR %s", pending_error(side->fd));
}
static void woken_by_shutdown(struct side *side) {
    hear(side);
    await_asleep(side->other);
    shutdown(side->fd, SHUT_WR);
    SHOW(recv(side->fd, in, 10, 0));
}
static void woken_by_close(struct side *side) {
    hear(side);
    await_asleep(side->other);
    close(side->fd);
}
static void woken_by_exit(struct side *side) {
    hear(side);
    await_asleep(side->other);
    say("end");
    exit(0);
}
static void woken_by_kill(struct side *side) {
    hear(side);
    await_asleep(side->other);
    kill(getpid(), SIGKILL);
}
static void woken_by_reset(struct side *side) {
    struct linger at_once = {1, 0};
    hear(side);
    await_asleep(side->other);
    SHOW(setsockopt(side->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
    SHOW(close(side->fd));
}
static void sleeper_shutdown(void) { two_processes(AF_INET, woken_a, woken_by_shutdown); }
static void sleeper_close(void) { two_processes(AF_INET, woken_a, woken_by_close); }
static void sleeper_exit(void) { two_processes(AF_INET, woken_a, woken_by_exit); }
static void sleeper_kill(void) { two_processes(AF_INET, woken_a, woken_by_kill); }
static void sleeper_reset(void) { two_processes(AF_INET, woken_a, woken_by_reset); }

/* The same of a side that has read all that came, having looked for it without a pause just when it came. */
static void eager_b(struct side *side) {
    struct pollfd readable = {side->fd, POLLIN, 0};
    SHOW(poll(&readable, 1, 1));
    tell(side);
    while (recv(side->fd, in, 1, MSG_DONTWAIT) != 1) {}
    await_asleep(side->other);
    kill(getpid(), SIGKILL);
}
static void eager_recv_a(struct side *side) {
    hear(side);
    SHOW(send(side->fd, "x", 1, 0));
    SHOW(recv(side->fd, in, 10, 0));
    SHOW(recv(side->fd, in, 10, 0));
    say("SO_ERROR %s", pending_error(side->fd));
}
static void eager_poll_a(struct side *side) {
    struct pollfd readable = {side->fd, POLLIN | POLLRDHUP, 0};
    hear(side);
    SHOW(send(side->fd, "x", 1, 0));
    SHOW(poll(&readable, 1, -1));
    say("events %x", readable.revents);
    SHOW(recv(side->fd, in, 10, 0));
}
static void eager_epoll_a(struct side *side) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
    int set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    hear(side);
    SHOW(send(side->fd, "x", 1, 0));
    SHOW(epoll_wait(set, &event, 1, -1));
    say("events %x", event.events);
    SHOW(recv(side->fd, in, 10, 0));
}
static void eager_recv(void) { two_processes(AF_INET, eager_recv_a, eager_b); }
static void eager_poll(void) { two_processes(AF_INET, eager_poll_a, eager_b); }
static void eager_epoll(void) { two_processes(AF_INET, eager_epoll_a, eager_b); }

/* SHUT_RD: nothing more is waited for, what comes can still be read. */
static void deaf_a(struct side *side) {
    int fd = side->fd;
    SHOW(shutdown(fd, SHUT_RD));
    say("events %x", events_now(fd));
    SHOW(recv(fd, in, 10, 0));
    tell(side);
    hear(side);
    await_bytes(fd, 5);
    say("events %x", events_now(fd));
    SHOW(recv(fd, in, 3, 0));
    SHOW(recv(fd, in, 10, 0));
    SHOW(recv(fd, in, 10, 0));
    SHOW(send(fd, "still talking", 13, 0));
    SHOW(shutdown(fd, SHUT_RDWR));
    SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
    hear(side);
    say("events %x", events_now(fd));
}
static void deaf_b(struct side *side) {
    int fd = side->fd;
    hear(side);
    SHOW(send(fd, "hello", 5, 0));
    tell(side);
    say("received %zu", receive_all(fd, in, 100));
    SHOW(shutdown(fd, SHUT_RDWR));
    say("events %x", events_now(fd));
    tell(side);
}
static void deaf(void) { two_processes(AF_INET, deaf_a, deaf_b); }

/* A side that shuts down both ways lives on: what has come for it and what it has sent can still be read. Only bytes
 * that come afterwards are answered with a reset. */
static void both_ways_a(struct side *side, bool polls) {
    int fd = side->fd;
    signal(SIGPIPE, SIG_IGN);
    send_all(fd, out, 1000);
    hear(side);
    if (polls) {
        await_events(fd, POLLRDHUP);
        say("events %x", events_now(fd));
    }
    SHOW(recv(fd, in, 100, 0));
    SHOW(recv(fd, in, 1000, 0));
    SHOW(recv(fd, in, 100, 0));
    say("events %x", events_now(fd));
    SHOW(send(fd, "x", 1, 0));
    await_events(fd, POLLHUP); /* the reset has come */
    say("events %x", events_now(fd));
    say("SO_ERROR %s", pending_error(fd));
    SHOW(recv(fd, in, 100, 0));
    SHOW(send(fd, "x", 1, 0));
    tell(side);
    hear(side);
}
static void both_ways_recv_a(struct side *side) { both_ways_a(side, false); }
static void both_ways_poll_a(struct side *side) { both_ways_a(side, true); }
static void both_ways_b(struct side *side, int first, int second) {
    int fd = side->fd;
    await_bytes(fd, 1000);
    SHOW(recv(fd, in, 100, 0));
    send_all(fd, out, 600);
    SHOW(shutdown(fd, first));
    if (second != first) SHOW(shutdown(fd, second));
    tell(side);
    hear(side);
    say("events %x", events_now(fd));
    SHOW(recv(fd, in, 500, 0));
    SHOW(recv(fd, in, 500, 0));
    SHOW(recv(fd, in, 500, 0));
    SHOW(recv(fd, in, 500, 0));
    tell(side);
}
static void shut_at_once(struct side *side) { both_ways_b(side, SHUT_RDWR, SHUT_RDWR); }
static void shut_in_turn(struct side *side) { both_ways_b(side, SHUT_RD, SHUT_WR); }
static void both_ways_recv(void) { two_processes(AF_INET, both_ways_recv_a, shut_at_once); }
static void both_ways_poll(void) { two_processes(AF_INET, both_ways_poll_a, shut_at_once); }
static void both_ways_threads(void) { two_threads(AF_INET6, both_ways_poll_a, shut_in_turn); }
/* The same the moment the first byte has come: what the other side has sent before it could know is answered by no
 * reset. */
enum { SHUT_DOWNS = 12 };
static void shut_late_a(struct side *side) {
    for (int round = 0; round < SHUT_DOWNS; round++) {
        int fd = another(side);
        hear(side);
        send_all(fd, out, 1000);
        hear(side);
        SHOW(receive_all(fd, in, 600));
        SHOW(recv(fd, in, 100, 0));
        say("events %x, SO_ERROR %s", events_now(fd), pending_error(fd));
        tell(side);
        hear(side);
        close(fd);
    }
}
static void shut_late_b(struct side *side) {
    for (int round = 0; round < SHUT_DOWNS; round++) {
        int fd = another(side);
        struct pollfd readable = {fd, POLLIN, 0};
        if (MUST(poll(&readable, 1, 1)) != 0) fail("too early");
        tell(side);
        while (recv(fd, in, 1, MSG_DONTWAIT) != 1) {}
        send_all(fd, out, 600);
        SHOW(shutdown(fd, SHUT_RDWR));
        tell(side);
        hear(side);
        SHOW(receive_all(fd, in, 999));
        tell(side);
        close(fd);
    }
}
static void both_ways_late(void) { two_processes(AF_INET, shut_late_a, shut_late_b); }
static void child_recv_a(struct side *side) {
    int fd = side->fd;
    send_all(fd, out, 1000);
    hear(side);
    SHOW(recv(fd, in, 100, 0)); /* the end: what the other side sent afterwards was refused */
    say("events %x", events_now(fd));
    SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
    await_events(fd, POLLHUP);
    tell(side);
    hear(side);
}
static void shut_with_child(struct side *side) {
    int fd = side->fd;
    await_bytes(fd, 1000);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        shutdown(fd, SHUT_WR);
        _exit(0);
    }
    waitpid(child, NULL, 0);
    SHOW(shutdown(fd, SHUT_RD));
    tell(side);
    hear(side);
    SHOW(recv(fd, in, 2000, 0));
    SHOW(recv(fd, in, 2000, 0));
    tell(side);
}
static int unused(struct side *side) {
    if (side->leader) return (int)MUST(accept(side->listener, NULL, NULL));
    return connect_to(&side->address);
}
/* The first half was shut down before anything else was done with the socket. */
static void early_a(struct side *side) {
    int fd = unused(side);
    signal(SIGPIPE, SIG_IGN);
    SHOW(shutdown(fd, SHUT_RD));
    tell(side);
    for (int round = 0; round < 60; round++) {
        await_bytes(fd, 10);
        receive_all(fd, in, 10);
        send_all(fd, out, 10);
    }
    await_bytes(fd, 1000);
    SHOW(recv(fd, in, 100, 0));
    SHOW(shutdown(fd, SHUT_WR));
    tell(side);
    hear(side);
    say("events %x", events_now(fd));
    SHOW(recv(fd, in, 2000, 0));
    tell(side);
}
static void early_b(struct side *side) {
    int fd = unused(side);
    hear(side);
    for (int round = 0; round < 60; round++) {
        send_all(fd, out, 10);
        receive_all(fd, in, 10);
    }
    send_all(fd, out, 1000);
    hear(side);
    await_events(fd, POLLRDHUP);
    for (int round = 0; round < 3; round++) say("events %x", events_now(fd));
    SHOW(recv(fd, in, 100, 0));
    tell(side);
    hear(side);
}
static void both_ways_early(void) { two_processes(AF_INET, early_a, early_b); }
static void both_ways_child(void) { two_processes(AF_INET, child_recv_a, shut_with_child); }

/* The first receive after the end has come reports it, also where a program asks again and again. */
static bool has_ended(int fd) {
    struct tcp_info info;
    socklen_t size = sizeof(info);
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size));
    return info.tcpi_state == TCP_CLOSE_WAIT;
}
static void at_once_a(struct side *side) {
    bool over;
    long got;
    tell(side);
    do {
        over = has_ended(side->fd);
        errno = 0;
        got = recv(side->fd, in, 10, MSG_DONTWAIT);
    } while (!over);
    show("recv", got);
}
static void end_by_shutdown(struct side *side) {
    hear(side);
    nap_ms(5);
    shutdown(side->fd, SHUT_WR);
    hear(side);
}
static void end_by_close(struct side *side) {
    hear(side);
    nap_ms(5);
    close(side->fd);
}
static void end_by_exit(struct side *side) {
    hear(side);
    nap_ms(5);
    say("end");
    exit(0);
}
static void own_end_a(struct side *side) {
    at_once_a(side);
    tell(side);
    struct side twin = *side;
    twin.fd = another(side);
    SHOW(recv(twin.fd, in, 10, MSG_DONTWAIT));
    SHOW(shutdown(twin.fd, SHUT_RD));
    SHOW(recv(twin.fd, in, 10, MSG_DONTWAIT));
    tell(side);
}
static void own_end_b(struct side *side) {
    end_by_shutdown(side);
    another(side);
    hear(side);
}
static void at_once(void) { two_processes(AF_INET, own_end_a, own_end_b); }

/* And every look from then on reports it, also where a program asks for room as well and finds room. */
static void every_look(int fd) {
    enum { LOOKS = 50 };
    struct pollfd ready = {fd, POLLIN | POLLOUT, 0};
    int told = 0;
    for (int i = 0; i < LOOKS; i++) {
        MUST(poll(&ready, 1, 0));
        told += ready.revents == (POLLIN | POLLOUT);
    }
    say("poll: %d of %d", told, LOOKS);
    for (unsigned wanted = EPOLLIN; wanted <= EPOLLRDHUP; wanted *= EPOLLRDHUP / EPOLLIN) {
        struct epoll_event event = {.events = wanted | EPOLLOUT};
        int set = (int)MUST(epoll_create1(0));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        told = 0;
        for (int i = 0; i < LOOKS; i++) {
            told += MUST(epoll_wait(set, &event, 1, 0)) == 1 && event.events == (wanted | EPOLLOUT);
        }
        say("epoll %x: %d of %d", wanted, told, LOOKS);
        close(set);
    }
}
static void looks_b(struct side *side) {
    hear(side);
    int fd = another(side);
    while (!has_ended(fd)) {}
    every_look(fd);
    tell(side);
}
static void looks_a(struct side *side) {
    SHOW(shutdown(side->fd, SHUT_RD));
    every_look(side->fd);
    tell(side);
    SHOW(shutdown(another(side), SHUT_WR));
    hear(side);
}
static void looks_at_end(void) { two_processes(AF_INET, looks_a, looks_b); }
static void at_once_close(void) { two_processes(AF_INET, at_once_a, end_by_close); }
static void at_once_exit(void) { two_processes(AF_INET, at_once_a, end_by_exit); }

static volatile sig_atomic_t broken_pipes;
static void count_broken_pipe(int number) {
    (void)number;
    broken_pipes++;
}

/* The other side's view after a close: data, the end, then errors for a writer, and one SIGPIPE for each. */
static void after_close_a(struct side *side) {
    int fd = side->fd;
    struct sigaction action = {.sa_handler = count_broken_pipe};
    sigaction(SIGPIPE, &action, NULL);
    hear(side);
    await_events(fd, POLLRDHUP);
    say("events %x", events_now(fd));
    SHOW(recv(fd, in, 100, 0));
    SHOW(recv(fd, in, 100, 0));
    SHOW(send(fd, "into the void", 13, 0));
    await_events(fd, POLLHUP); /* the reset has come */
    say("events %x", events_now(fd));
    SHOW(send(fd, "x", 1, 0));
    say("SIGPIPE %d", broken_pipes);
    SHOW(write(fd, "x", 1));
    say("SIGPIPE %d", broken_pipes);
    SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
    say("SIGPIPE %d", broken_pipes);
    struct iovec part = {out, 1};
    SHOW(writev(fd, &part, 1));
    say("SIGPIPE %d", broken_pipes);
    SHOW(recv(fd, in, 100, 0));
    say("SO_ERROR %s", pending_error(fd));
    say("events %x", events_now(fd));
    SHOW(shutdown(fd, SHUT_WR));
}
static void after_close_b(struct side *side) {
    SHOW(send(side->fd, "goodbye", 7, 0));
    SHOW(close(side->fd));
    tell(side);
}
static void after_kill_b(struct side *side) {
    SHOW(send(side->fd, "goodbye", 7, 0));
    tell(side);
    kill(getpid(), SIGKILL);
}
static void after_close(void) { two_processes(AF_INET, after_close_a, after_close_b); }
static void after_kill(void) { two_processes(AF_INET, after_close_a, after_kill_b); }

/* A close with unread bytes, or with linger 0, is a reset: bytes that had come are still read, then ECONNRESET once. */
static void reset_a(struct side *side) {
    int fd = side->fd;
    signal(SIGPIPE, SIG_IGN);
    send_all(fd, out, 1000);
    tell(side);
    hear(side);
    await_events(fd, POLLERR);
    say("events %x", events_now(fd));
    SHOW(recv(fd, in, 100, 0));
    SHOW(recv(fd, in, 100, 0));
    SHOW(recv(fd, in, 100, 0));
    say("events %x", events_now(fd));
    SHOW(send(fd, "x", 1, 0));
    say("SO_ERROR %s", pending_error(fd));
}
static void unread_b(struct side *side) {
    SHOW(send(side->fd, "before", 6, 0));
    hear(side);
    await_bytes(side->fd, 1000);
    SHOW(recv(side->fd, in, 10, 0));
    SHOW(close(side->fd));
    tell(side);
}
static void linger_b(struct side *side) {
    struct linger at_once = {1, 0};
    SHOW(send(side->fd, "before", 6, 0));
    hear(side);
    SHOW(receive_all(side->fd, in, 1000));
    SHOW(setsockopt(side->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
    SHOW(close(side->fd));
    tell(side);
}
static void reset_unread(void) { two_processes(AF_INET, reset_a, unread_b); }
static void reset_linger(void) { two_processes(AF_INET, reset_a, linger_b); }

/* A process is killed while bytes for it are unread: a reset as well, whatever the survivor sleeps in. */
static void killed_unread_b(struct side *side) {
    SHOW(send(side->fd, "before", 6, 0));
    hear(side);
    await_bytes(side->fd, 1000);
    SHOW(recv(side->fd, in, 10, 0));
    tell(side);
    kill(getpid(), SIGKILL);
}
static void forsaken(struct side *side) {
    signal(SIGPIPE, SIG_IGN);
    send_all(side->fd, out, 1000);
    tell(side);
}
static void forsaken_after(int fd) {
    SHOW(recv(fd, in, 10, 0));
    SHOW(recv(fd, in, 10, MSG_DONTWAIT));
    say("events %x", events_now(fd));
    SHOW(send(fd, "x", 1, 0));
    say("SO_ERROR %s", pending_error(fd));
}
static void forsaken_recv(struct side *side) {
    forsaken(side);
    forsaken_after(side->fd);
}
static void forsaken_poll(struct side *side) {
    struct pollfd readable = {side->fd, POLLIN, 0};
    forsaken(side);
    SHOW(poll(&readable, 1, -1));
    say("events %x", readable.revents);
    forsaken_after(side->fd);
}
static void forsaken_epoll(struct side *side) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
    int set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    forsaken(side);
    SHOW(epoll_wait(set, &event, 1, -1));
    say("events %x", event.events);
    forsaken_after(side->fd);
}
static void forsaken_b(struct side *side) {
    hear(side);
    await_bytes(side->fd, 1000);
    SHOW(recv(side->fd, in, 10, 0));
    await_asleep(side->other);
    kill(getpid(), SIGKILL);
}
static void killed_unread(void) { two_processes(AF_INET, reset_a, killed_unread_b); }
static void killed_unread_recv(void) { two_processes(AF_INET, forsaken_recv, forsaken_b); }
static void killed_unread_poll(void) { two_processes(AF_INET, forsaken_poll, forsaken_b); }
static void killed_unread_epoll(void) { two_processes(AF_INET, forsaken_epoll, forsaken_b); }

/* A reset seen first by a writer, and by SO_ERROR. */
static void reset_writer_a(struct side *side) {
    signal(SIGPIPE, SIG_IGN);
    hear(side);
    await_events(side->fd, POLLERR);
    SHOW(send(side->fd, "x", 1, 0));
    SHOW(send(side->fd, "x", 1, 0));
    SHOW(recv(side->fd, in, 10, 0));
    int second = another(side);
    hear(side);
    await_events(second, POLLERR);
    say("SO_ERROR %s", pending_error(second));
    say("SO_ERROR %s", pending_error(second));
    SHOW(recv(second, in, 10, 0));
    SHOW(send(second, "x", 1, 0));
}
static void reset_writer_b(struct side *side) {
    struct linger at_once = {1, 0};
    MUST(setsockopt(side->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
    close(side->fd);
    tell(side);
    int second = another(side);
    MUST(setsockopt(second, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
    close(second);
    tell(side);
}
static void reset_writer(void) { two_processes(AF_INET, reset_writer_a, reset_writer_b); }

/* A reset that was told of by a receive, or by a poll, ends sends too, whichever way the directions go. The other side
 * is killed with linger 0. */
static void refused_a(struct side *side) {
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 4; i++) {
        int fd = MUST(accept(side->listener, NULL, NULL));
        for (int k = 0; k < 40; k++) {
            send_all(fd, out, 100);
            hear(side);
        }
        receive_all(fd, in, 1);
        await_events(fd, POLLHUP);
        if (i % 2) SHOW(recv(fd, in, 10, 0));
        if (i > 1) SHOW(recv(fd, in, 10, MSG_DONTWAIT));
        SHOW(send(fd, "x", 1, 0));
        SHOW(send(fd, "x", 1, 0));
        close(fd);
    }
}
static void refused_b(struct side *side) {
    struct linger at_once = {1, 0};
    for (int i = 0; i < 4; i++) {
        pid_t child = MUST(fork());
        if (child == 0) {
            int fd = connect_to(&side->address);
            for (int k = 0; k < 40; k++) {
                receive_all(fd, in, 100);
                tell(side);
            }
            send_all(fd, "y", 1);
            MUST(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once)));
            kill(getpid(), SIGKILL);
        }
        ended(child);
    }
}
static void refused(void) { two_processes(AF_INET, refused_a, refused_b); }

/* Killed with everything read, when the other side has gone on to the kernel's path behind what was read last. A poll
 * woke for all of it. */
static void killed_behind_mark_a(struct side *side) {
    for (int i = 0; i < 4; i++) {
        struct epoll_event event = {.events = EPOLLIN};
        int fd = (int)MUST(accept(side->listener, NULL, NULL));
        warm(fd, true);
        hear(side);
        send_all(fd, out, 100);
        tell(side);
        hear(side);
        int set = (int)MUST(epoll_create1(0)), twin = (int)MUST(dup(fd));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, twin, &event));
        SHOW(epoll_wait(set, &event, 1, 0));
        MUST(close(twin));
        tell(side);
        SHOW(recv(fd, in, 1, 0));
        SHOW(recv(fd, in, 1, 0));
        close(set);
        close(fd);
    }
}
static void killed_behind_mark_b(struct side *side) {
    for (int i = 0; i < 4; i++) {
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            int fd = connect_to(&side->address);
            warm(fd, false);
            SHOW(recv(fd, in, 1, MSG_DONTWAIT));
            tell(side);
            hear(side);
            await_events(fd, POLLIN);
            SHOW(recv(fd, in, 50, 0));
            tell(side);
            hear(side);
            SHOW(recv(fd, in, i % 2 ? 100 : 50, 0));
            kill(getpid(), SIGKILL);
        }
        say("ended %d", ended(child));
    }
}
static void killed_behind_mark(void) { two_processes(AF_INET, killed_behind_mark_a, killed_behind_mark_b); }

/* A process killed in the middle of a stream: a correct beginning, then the end or an error. */
static void mid_stream_a(struct side *side) {
    size_t at = 0;
    ssize_t got;
    while ((got = recv(side->fd, in, sizeof(in), 0)) > 0) {
        if (differs(in, (size_t)got, 5, at) != -1) fail("wrong byte");
        at += (size_t)got;
        if (at > 3 * MIB) kill(side->peer, SIGKILL);
    }
    say("at least what was read before the kill: %d", at >= 3 * MIB);
    say("the end: %d", got == 0 || errno == ECONNRESET);
}
static void mid_stream_b(struct side *side) {
    for (size_t at = 0;; at += sizeof(out)) {
        fill(out, sizeof(out), 5, at);
        send_all(side->fd, out, sizeof(out));
    }
}
static void mid_stream(void) { two_processes(AF_INET, mid_stream_a, mid_stream_b); }

/* The reader is killed: the writer ends with EPIPE or ECONNRESET, not before and not never. */
static void reader_dies_a(struct side *side) {
    signal(SIGPIPE, SIG_IGN);
    size_t sent = 0;
    ssize_t got;
    while ((got = send(side->fd, out, sizeof(out), 0)) > 0) sent += (size_t)got;
    say("sent some: %d, then %s", sent > 0, errno == EPIPE || errno == ECONNRESET ? "an end" : error_name(errno));
}
static void reader_dies_b(struct side *side) {
    SHOW(receive_all(side->fd, in, sizeof(in)));
    await_asleep(side->other); /* all buffers full */
    kill(getpid(), SIGKILL);
}
static void reader_dies(void) { two_processes(AF_INET, reader_dies_a, reader_dies_b); }

/* The error of a reset is told once, by whichever call comes first: a receive that has had something does not take
 * it. */
static void error_once_a(struct side *side) {
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 4; i++) {
        int fd = another(side);
        SHOW(send(fd, out, 94, 0));
        await_bytes(fd, 13);
        tell(side);
        await_events(fd, POLLHUP);
        SHOW(recv(fd, in, 254, i % 2 ? MSG_WAITALL : 0));
        if (i < 2) SHOW(send(fd, "x", 1, 0));
        say("SO_ERROR %s", pending_error(fd));
        SHOW(send(fd, "x", 1, 0));
        SHOW(recv(fd, in, 254, 0));
    }
}
static void error_once_b(struct side *side) {
    for (int i = 0; i < 4; i++) {
        int fd = another(side), twin = dup(fd);
        SHOW(shutdown(fd, SHUT_RD));
        send_all(fd, out, 13);
        await_bytes(fd, 94);
        hear(side);
        close(fd);
        close(twin);
    }
}
static void error_once(void) { two_processes(AF_INET, error_once_a, error_once_b); }

/* All that was sent before a close arrives, also when it is more than buffers hold and the sender is gone at once. */
static void farewell_a(struct side *side) {
    size_t total = 0;
    hear(side);
    for (ssize_t got; (got = recv(side->fd, in, sizeof(in), 0)) > 0; total += (size_t)got) {
        if (differs(in, (size_t)got, 6, total) != -1) fail("wrong byte");
    }
    say("%zu bytes", total);
}
static void farewell_b(struct side *side) {
    for (size_t at = 0; at < 8; at++) {
        fill(out, sizeof(out), 6, at * sizeof(out));
        send_all(side->fd, out, sizeof(out));
    }
    close(side->fd);
    tell(side);
}
static void farewell(void) { two_processes(AF_INET, farewell_a, farewell_b); }

/* A process is killed with something unread, and what it has sent is lost on its way in part: a reset, not an end, also
 * if more was sent behind that. */
static _Atomic size_t *stuffed;
static void lost_a(struct side *side) {
    hear(side);
    /* So that there is room for more, behind what is still in the buffers. */
    for (size_t left = *stuffed / 2, got; left > 0; left -= got) {
        got = receive_all(side->fd, in, left < sizeof(in) ? left : sizeof(in));
    }
    tell(side);
    hear(side);
    SHOW(send(side->fd, "unread", 6, 0));
    tell(side);
    await_events(side->fd, POLLHUP);
    while (recv(side->fd, in, sizeof(in), MSG_WAITALL) > 0) {}
    say("then %s", error_name(errno));
    SHOW(recv(side->fd, in, sizeof(in), 0));
    SHOW(send(side->fd, "x", 1, MSG_NOSIGNAL));
}
static void lost_b(struct side *side) {
    *stuffed = stuff(side->fd, 8);
    tell(side);
    hear(side);
    for (int i = 0; i < 16; i++) send(side->fd, "more", 4, MSG_DONTWAIT);
    SHOW(recv(side->fd, in, 10, MSG_DONTWAIT));
    tell(side);
    hear(side);
    kill(getpid(), SIGKILL);
}
static void lost(void) {
    stuffed = mmap(NULL, sizeof(*stuffed), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    two_processes(AF_INET, lost_a, lost_b);
}

/* One thread shuts down a direction while another sends: what that was told to be sent arrives, and nothing is sent
 * later. */
struct talker {
    int fd, error;
    _Atomic uint64_t sent;
};
static void *talk(void *argument) {
    struct talker *it = argument;
    for (ssize_t sent; (sent = send(it->fd, out, 10, MSG_NOSIGNAL)) > 0;) it->sent += (uint64_t)sent;
    it->error = errno;
    return NULL;
}
static void shut_beside_a(struct side *side) {
    for (int i = 0; i < 20; i++) {
        int fd = another(side);
        uint64_t total = 0;
        for (ssize_t got; (got = recv(fd, in, sizeof(in), 0)) > 0;) total += (uint64_t)got;
        send_all(fd, &total, sizeof(total));
        close(fd);
    }
}
static void shut_beside_b(struct side *side) {
    for (int i = 0; i < 20; i++) {
        struct talker it = {.fd = another(side)};
        pthread_t thread;
        uint64_t total = 0;
        start_thread(&thread, talk, &it);
        while (it.sent < 10000) sched_yield();
        SHOW(shutdown(it.fd, SHUT_WR));
        pthread_join(thread, NULL);
        receive_all(it.fd, &total, sizeof(total));
        say("all that was sent: %d, then %s", total == it.sent, error_name(it.error));
        close(it.fd);
    }
}
static void shut_beside(void) { two_processes(AF_INET, shut_beside_a, shut_beside_b); }

const struct scenario scenarios[] = {
    {"half", half, 0},
    {"half-threads", half_threads, 0},
    {"refused", refused, 0},
    {"sleeper-shutdown", sleeper_shutdown, 0},
    {"sleeper-close", sleeper_close, 0},
    {"sleeper-exit", sleeper_exit, 0},
    {"sleeper-kill", sleeper_kill, 0},
    {"sleeper-reset", sleeper_reset, 0},
    {"eager-recv", eager_recv, 0},
    {"eager-poll", eager_poll, 0},
    {"eager-epoll", eager_epoll, 0},
    {"deaf", deaf, 0},
    {"both-ways-recv", both_ways_recv, 0},
    {"both-ways-poll", both_ways_poll, 0},
    {"both-ways-threads", both_ways_threads, 0},
    {"both-ways-child", both_ways_child, 0},
    {"both-ways-early", both_ways_early, 0},
    {"both-ways-late", both_ways_late, 0},
    {"at-once", at_once, 0},
    {"looks-at-end", looks_at_end, 0},
    {"at-once-close", at_once_close, 0},
    {"at-once-exit", at_once_exit, 0},
    {"after-close", after_close, 0},
    {"after-kill", after_kill, 0},
    {"reset-unread", reset_unread, 0},
    {"killed-unread", killed_unread, 0},
    {"killed-unread-recv", killed_unread_recv, 0},
    {"killed-unread-poll", killed_unread_poll, 0},
    {"killed-unread-epoll", killed_unread_epoll, 0},
    {"killed-behind-mark", killed_behind_mark, 0},
    {"reset-linger", reset_linger, 0},
    {"reset-writer", reset_writer, 0},
    {"mid-stream", mid_stream, 0},
    {"reader-dies", reader_dies, 0},
    {"error-once", error_once, 0},
    {"farewell", farewell, 0},
    {"lost", lost, 0},
    {"shut-beside", shut_beside, 0},
    {0},
};
