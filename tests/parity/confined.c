/* A process that lives with the system calls of its own alone: it is killed for any other. */
#include "harness.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static char in[4 * MIB], out[4 * MIB];
static const int frugal[] = {SYS_read, SYS_write, SYS_poll, SYS_close, SYS_exit_group, SYS_rt_sigreturn, -1};
static const int by_epoll[] = {SYS_read, SYS_write, SYS_epoll_wait, SYS_close, SYS_exit_group, -1};
static const int by_new_set[] = {SYS_read,       SYS_write, SYS_epoll_create1, SYS_epoll_ctl,
                                 SYS_epoll_wait, SYS_close, SYS_exit_group,    -1};
static const int by_number[] = {SYS_read, SYS_write, SYS_ppoll, SYS_pselect6, SYS_select, SYS_exit_group, -1};
static const int by_pwait[] = {SYS_read, SYS_write, SYS_epoll_pwait, SYS_exit_group, -1};
static const int by_dup[] = {SYS_read, SYS_write, SYS_dup2, SYS_dup3, SYS_exit_group, -1};
static const int by_many[] = {SYS_recvmmsg, SYS_sendmmsg, SYS_write, SYS_exit_group, -1};
static const int by_recv[] = {SYS_recvfrom, SYS_recvmsg, SYS_readv, SYS_sendto, SYS_write, SYS_exit_group, -1};

enum way { BY_PRCTL, BY_SECCOMP, BY_SYSCALL };

/* No descriptor is free when the filter is installed: without one the library cannot copy the other end's socket, by
 * which it puts
   what is unread on kernel TCP. So that stays in the ring. */
static bool stays_in_ring;

static size_t allow(struct sock_filter *code, int call) {
    code[0] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)call, 0, 1);
    code[1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    return 2;
}
static void confine(const int *calls, enum way way) {
    struct sock_filter code[64] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    struct rlimit descriptors, none;
    size_t length = 1;
    for (; *calls != -1; calls++) length += allow(code + length, *calls);
    if (stays_in_ring) {
        length += allow(code + length, SYS_prlimit64);
        MUST(getrlimit(RLIMIT_NOFILE, &descriptors));
        none = (struct rlimit){0, descriptors.rlim_max};
        MUST(setrlimit(RLIMIT_NOFILE, &none));
    }
    code[length++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    struct sock_fprog program = {(unsigned short)length, code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    switch (way) {
    case BY_PRCTL: MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)); break;
    case BY_SECCOMP: MUST(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program)); break;
    case BY_SYSCALL: MUST(syscall(SYS_prctl, PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)); break;
    }
    if (stays_in_ring) MUST(setrlimit(RLIMIT_NOFILE, &descriptors));
}

/* By write and read alone. */
static void write_all(int fd, const char *from, size_t count) {
    for (ssize_t done; count > 0; from += done, count -= (size_t)done) done = MUST(write(fd, from, count));
}
static size_t read_all(int fd, char *to, size_t count, size_t most) {
    size_t got = 0;
    while (got < count) {
        ssize_t more = MUST(read(fd, to + got, count - got < most ? count - got : most));
        if (more == 0) break;
        got += (size_t)more;
    }
    return got;
}

/* Echoes many small messages and a large one. */
static void echo(int fd, bool polls) {
    size_t total = 0;
    while (total < 300 * 100 + 100 * KIB) {
        struct pollfd ready = {fd, POLLIN, 0};
        if (polls && MUST(poll(&ready, 1, -1)) != 1) fail("poll");
        ssize_t got = MUST(read(fd, in, sizeof(in)));
        if (got == 0) fail("end");
        total += (size_t)got;
        write_all(fd, in, (size_t)got);
    }
    say("echoed %zu", total);
}
static void ask(int fd) {
    for (uint64_t i = 0; i < 300; i++) {
        fill(out, 100, i, 0);
        send_all(fd, out, 100);
        if (receive_all(fd, in, 100) != 100 || differs(in, 100, i, 0) != -1) fail("echo");
    }
    fill(out, 100 * KIB, 1, 0);
    send_all(fd, out, 100 * KIB);
    size_t got = receive_all(fd, in, 100 * KIB);
    say("%zu came back, first difference %ld", got, differs(in, got, 1, 0));
}

static void read_test_data(int fd, size_t count, uint64_t seed, uint64_t at) {
    size_t got = read_all(fd, in, count, 7000);
    say("%zu were there, first difference %ld", got, differs(in, got, seed, at));
}

/* The child confines itself with `count` bytes unread; the parent goes on when it has ended. */
static void child_with(struct side *side, size_t count, enum way way, bool polls) {
    if (count > 0) {
        hear(side);
        await_bytes(side->fd, (int)(count < 40000 ? count : 40000));
    }
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        confine(frugal, way);
        struct pollfd ready = {side->fd, POLLIN, 0};
        if (count > 0) SHOW(poll(&ready, 1, -1));
        read_test_data(side->fd, count, 5, 0);
        echo(side->fd, polls);
        _exit(0);
    }
    say("child %d", ended(child));
    echo(side->fd, polls);
}
static void ask_both(struct side *side, size_t count) {
    if (count > 0) {
        tell(side);
        fill(out, count, 5, 0);
        send_all(side->fd, out, count);
    }
    ask(side->fd);
    ask(side->fd);
}
static void read_a(struct side *side) { child_with(side, 0, BY_PRCTL, false); }
static void read_polls_a(struct side *side) { child_with(side, 0, BY_SYSCALL, true); }
static void read_b(struct side *side) { ask_both(side, 0); }
static void all_read(void) { two_processes(AF_INET, read_a, read_b); }
static void all_read_polls(void) { two_processes(AF_INET, read_polls_a, read_b); }
static void few_a(struct side *side) { child_with(side, 700, BY_SECCOMP, true); }
static void few_b(struct side *side) { ask_both(side, 700); }
static void few(void) { two_processes(AF_INET, few_a, few_b); }
static void many_a(struct side *side) { child_with(side, 100 * KIB, BY_PRCTL, true); }
static void many_b(struct side *side) { ask_both(side, 100 * KIB); }
static void many(void) { two_processes(AF_INET, many_a, many_b); }
/* More than a ring holds. */
static void ahead_a(struct side *side) { child_with(side, 3 * MIB, BY_PRCTL, true); }
static void ahead_b(struct side *side) { ask_both(side, 3 * MIB); }
static void ahead(void) { two_processes(AF_INET, ahead_a, ahead_b); }

/* The other end has only just found this one: part of what is unread is in the kernel, and the rest behind it. */
static void young_a(struct side *side) {
    int fd = (int)MUST(accept(side->listener, NULL, NULL));
    hear(side);
    for (int i = 0; i < 20; i++) say("%zu", receive_all(fd, in, 10));
    tell(side);
    hear(side);
    await_bytes(fd, 20 * 100 - 200 + 5 * 500);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        confine(frugal, BY_PRCTL);
        read_test_data(fd, 20 * 100 - 200 + 5 * 500, 5, 200);
        echo(fd, true);
        _exit(0);
    }
    say("child %d", ended(child));
    echo(fd, false);
}
static void young_b(struct side *side) {
    int fd = connect_to(&side->address);
    fill(out, 20 * 100 + 5 * 500, 5, 0);
    for (int i = 0; i < 20; i++) send_all(fd, out + 100 * i, 100);
    tell(side);
    hear(side);
    for (int i = 0; i < 5; i++) send_all(fd, out + 20 * 100 + 500 * i, 500);
    tell(side);
    ask(fd);
    ask(fd);
}
static void young(void) { two_processes(AF_INET, young_a, young_b); }

/* One direction has carried nothing yet. */
static void silent_a(struct side *side) {
    int fd = (int)MUST(accept(side->listener, NULL, NULL));
    for (int i = 0; i < 30; i++) {
        if (receive_all(fd, in, 100) != 100) fail("end");
        tell(side);
    }
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        confine(frugal, BY_PRCTL);
        echo(fd, false);
        _exit(0);
    }
    say("child %d", ended(child));
    echo(fd, true);
}
static void silent_b(struct side *side) {
    int fd = connect_to(&side->address);
    for (int i = 0; i < 30; i++) {
        send_all(fd, out, 100);
        hear(side);
    }
    ask(fd);
    ask(fd);
}
static void silent(void) { two_processes(AF_INET, silent_a, silent_b); }

/* The other end has sent all, and is gone. */
static void gone_a(struct side *side) {
    hear(side);
    await_events(side->fd, POLLRDHUP);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        confine(frugal, BY_PRCTL);
        read_test_data(side->fd, 30000, 5, 0);
        SHOW(read(side->fd, in, 1));
        SHOW(close(side->fd));
        _exit(0);
    }
    say("child %d", ended(child));
}
static void gone_b(struct side *side) {
    fill(out, 30000, 5, 0);
    send_all(side->fd, out, 30000);
    tell(side);
}
static void gone(void) { two_processes(AF_INET, gone_a, gone_b); }

/* Calls other than read, with their flags, on what is unread and on what comes. */
static void calls_a(struct side *side) {
    hear(side);
    await_bytes(side->fd, 3000);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        int fd = side->fd;
        confine(by_recv, BY_SECCOMP);
        struct iovec parts[2] = {{in, 100}, {in + 100, 300}};
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        SHOW(recv(fd, in, 100, MSG_PEEK));
        say("first difference %ld", differs(in, 100, 5, 0));
        SHOW(recv(fd, in, 100, MSG_DONTWAIT));
        say("first difference %ld", differs(in, 100, 5, 0));
        SHOW(readv(fd, parts, 2));
        say("first difference %ld", differs(in, 400, 5, 100));
        SHOW(recvmsg(fd, &message, MSG_WAITALL));
        say("first difference %ld, flags %x", differs(in, 400, 5, 500), message.msg_flags);
        SHOW(recv(fd, NULL, 100, MSG_TRUNC));
        SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW(recv(fd, in, 7000, MSG_WAITALL));
        say("first difference %ld", differs(in, 7000, 5, 1000));
        SHOW(recv(fd, in, 1, MSG_DONTWAIT));
        _exit(0);
    }
    say("child %d", ended(child));
    tell(side);
}
static void calls_b(struct side *side) {
    fill(out, 8000, 5, 0);
    send_all(side->fd, out, 3000);
    tell(side);
    SHOW(recv(side->fd, in, 1, 0));
    send_all(side->fd, out + 3000, 5000);
    hear(side);
}
static void calls(void) { two_processes(AF_INET6, calls_a, calls_b); }

/* A child plays the part, while 700 bytes are unread. */
static void child_with_unread(struct side *side, part *play) {
    hear(side);
    await_bytes(side->fd, 700);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        play(side);
        _exit(0);
    }
    say("child %d", ended(child));
}

/* Descriptors that are duplicated onto others, among these the connection's. */
static void dup_child(struct side *side) {
    enum { NOTHING = 900, FIRST = 100, SECOND, THIRD };
    int ends[2];
    MUST(pipe(ends));
    MUST(write(ends[1], "pipe", 4));
    confine(by_dup, BY_PRCTL);
    SHOW(dup2(NOTHING, FIRST));
    SHOW(dup2(NOTHING, side->fd));
    read_test_data(side->fd, 100, 5, 0);
    SHOW(dup2(side->fd, FIRST));
    SHOW(dup2(FIRST, FIRST));
    read_test_data(FIRST, 100, 5, 100);
    SHOW(dup3(FIRST, SECOND, O_CLOEXEC));
    SHOW(dup3(SECOND, SECOND, 0));
    SHOW(dup2(ends[0], THIRD));
    SHOW(dup2(ends[0], SECOND));
    /* The connection's first descriptor becomes another's. */
    if (dup2(ends[0], side->fd) != side->fd) fail("dup2");
    SHOW((int)read(side->fd, in, 4));
    read_test_data(FIRST, 400, 5, 200);
    write_all(FIRST, "x", 1);
    read_test_data(FIRST, 100, 5, 600);
    SHOW(dup2(THIRD, FIRST));
}
static void dup_a(struct side *side) { child_with_unread(side, dup_child); }
static void dup_b(struct side *side) {
    tell(side);
    fill(out, 700, 5, 0);
    send_all(side->fd, out, 700);
    SHOW((int)receive_all(side->fd, in, 1));
    SHOW((int)receive_all(side->fd, in, 1));
}
static void duplicates(void) { two_processes(AF_INET, dup_a, dup_b); }

/* Several messages by one call: of what is unread, of what comes behind it, and over a Unix socket. */
static void many_messages_child(struct side *side) {
    int ends[2], channel[2];
    struct iovec parts[2] = {{in, 100}, {in + 100, 200}};
    struct mmsghdr messages[2] = {{.msg_hdr = {.msg_iov = parts, .msg_iovlen = 1}},
                                  {.msg_hdr = {.msg_iov = parts + 1, .msg_iovlen = 1}}};
    MUST(pipe(ends));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    confine(by_many, BY_PRCTL);
    SHOW(recvmmsg(side->fd, messages, 2, 0, NULL));
    say("%u, %u, first difference %ld", messages[0].msg_len, messages[1].msg_len, differs(in, 300, 5, 0));
    SHOW(sendmmsg(side->fd, messages, 2, 0));
    parts[0].iov_len = 600;
    parts[1] = (struct iovec){in + 600, 500};
    SHOW(recvmmsg(side->fd, messages, 2, MSG_WAITALL, NULL));
    say("%u, %u, first difference %ld", messages[0].msg_len, messages[1].msg_len, differs(in, 1100, 5, 300));
    parts[1].iov_len = 300;
    SHOW(recvmmsg(side->fd, messages + 1, 1, MSG_WAITALL | MSG_WAITFORONE, NULL));
    say("%u, first difference %ld", messages[1].msg_len, differs(in + 600, 300, 5, 1400));
    SHOW(recvmmsg(side->fd, messages, 2, MSG_DONTWAIT, NULL));
    union {
        struct cmsghdr header;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {.header = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS}};
    memcpy(CMSG_DATA(&control.header), ends, sizeof(int));
    parts[0].iov_len = parts[1].iov_len = 1;
    messages[1].msg_hdr.msg_control = &control;
    messages[1].msg_hdr.msg_controllen = sizeof(control);
    SHOW(sendmmsg(channel[0], messages, 2, 0));
}
static void many_messages_a(struct side *side) { child_with_unread(side, many_messages_child); }
static void many_messages_b(struct side *side) {
    tell(side);
    fill(out, 1700, 5, 0);
    send_all(side->fd, out, 700);
    SHOW((int)receive_all(side->fd, in, 300));
    send_all(side->fd, out + 700, 1000);
    SHOW((int)receive_all(side->fd, in, 1));
}
static void many_messages(void) { two_processes(AF_INET, many_messages_a, many_messages_b); }

/* Fifty questions, answered by way of an epoll set, which is returned. */
static int answer_by_set(struct side *side) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = side->fd};
    int set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    for (int i = 0; i < 50; i++) {
        MUST(epoll_wait(set, &event, 1, -1));
        ssize_t got = MUST(read(side->fd, in, sizeof(in)));
        send_all(side->fd, in, (size_t)got);
    }
    return set;
}

/* The child waits in an epoll set, made before. */
static void epoll_a(struct side *side) {
    struct epoll_event event;
    int set = answer_by_set(side);
    hear(side);
    await_bytes(side->fd, 2000);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        confine(by_epoll, BY_PRCTL);
        for (size_t total = 0; total < 2000 + 300 * 100 + 100 * KIB;) {
            MUST(epoll_wait(set, &event, 1, -1));
            ssize_t got = MUST(read(side->fd, in, sizeof(in)));
            if (got == 0) fail("end");
            write_all(side->fd, in, (size_t)got);
            total += (size_t)got;
        }
        _exit(0);
    }
    say("child %d", ended(child));
}
static void epoll_b(struct side *side) {
    for (int i = 0; i < 50; i++) {
        send_all(side->fd, out, 100);
        receive_all(side->fd, in, 100);
    }
    fill(out, 2000, 5, 0);
    send_all(side->fd, out, 2000);
    tell(side);
    size_t got = receive_all(side->fd, in, 2000);
    say("%zu came back, first difference %ld", got, differs(in, 2000, 5, 0));
    ask(side->fd);
}
static void epoll(void) { two_processes(AF_INET, epoll_a, epoll_b); }

/* A set that is made behind the filter, while something is unread. */
static void new_set_child(struct side *side) {
    confine(by_new_set, BY_PRCTL);
    int set = (int)MUST(epoll_create1(0)), first = (int)MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1}, events[2];
    MUST(epoll_ctl(first, EPOLL_CTL_ADD, side->fd, &event));
    MUST(close(first));
    event.events = EPOLLOUT;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    SHOW(epoll_wait(set, events, 2, 0));
    say("%x", events[0].events);
    event = (struct epoll_event){.events = EPOLLIN | EPOLLET, .data.u64 = 2};
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &event));
    for (int i = 0; i < 2; i++) SHOW(epoll_wait(set, events, 2, 0));
    say("%x %d", events[0].events, (int)events[0].data.u64);
    event = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.u64 = 3};
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &event));
    for (int i = 0; i < 2; i++) SHOW(epoll_wait(set, events, 2, 0));
    say("%x %d", events[0].events, (int)events[0].data.u64);
    event = (struct epoll_event){.events = EPOLLIN | EPOLLOUT, .data.u64 = 4};
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &event));
    for (int i = 0; i < 2; i++) SHOW(epoll_wait(set, events, 2, -1));
    say("%x %d", events[0].events, (int)events[0].data.u64);
    read_test_data(side->fd, 700, 5, 0);
    SHOW(epoll_wait(set, events, 2, 0));
    say("%x", events[0].events);
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, side->fd, NULL));
    SHOW(epoll_wait(set, events, 2, 0));
    echo(side->fd, false);
}
static void new_set_a(struct side *side) { child_with_unread(side, new_set_child); }
static void new_set_b(struct side *side) {
    tell(side);
    fill(out, 700, 5, 0);
    send_all(side->fd, out, 700);
    ask(side->fd);
}
static void new_set(void) { two_processes(AF_INET, new_set_a, new_set_b); }

/* Sets that were made before the filter, and one of them in another; the sender has ended its direction. */
static void old_sets_child(struct side *side) {
    enum { LEVEL, EDGE, ONCE, OUTER, KINDS };
    static const uint32_t wanted[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLIN};
    int set[KINDS];
    struct epoll_event events[2];
    for (int kind = 0; kind < KINDS; kind++) {
        struct epoll_event event = {.events = wanted[kind], .data.u64 = (uint64_t)kind};
        set[kind] = (int)MUST(epoll_create1(0));
        MUST(epoll_ctl(set[kind], EPOLL_CTL_ADD, kind == OUTER ? set[LEVEL] : side->fd, &event));
    }
    confine(by_epoll, BY_PRCTL);
    for (int round = 0; round < 2; round++) {
        for (int kind = 0; kind < KINDS; kind++) {
            events[0] = (struct epoll_event){0};
            int count = epoll_wait(set[kind], events, 2, 0);
            say("%d: %d %x %d", kind, count, events[0].events, (int)events[0].data.u64);
        }
    }
    read_test_data(side->fd, 700, 5, 0);
    SHOW((int)read(side->fd, in, 10));
    write_all(side->fd, "end", 3);
}
static void old_sets_a(struct side *side) { child_with_unread(side, old_sets_child); }
static void old_sets_b(struct side *side) {
    tell(side);
    fill(out, 700, 5, 0);
    send_all(side->fd, out, 700);
    MUST(shutdown(side->fd, SHUT_WR));
    SHOW((int)receive_all(side->fd, in, 3));
}
static void old_sets(void) { two_processes(AF_INET, old_sets_a, old_sets_b); }

/* The same by epoll_pwait, which lets signals in, and with a time. */
static void pwait_a(struct side *side) {
    struct epoll_event event = {.events = EPOLLIN, .data.fd = side->fd};
    int set = (int)MUST(epoll_create1(0));
    sigset_t none;
    sigemptyset(&none);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    for (int i = 0; i < 50; i++) {
        MUST(epoll_pwait(set, &event, 1, -1, &none));
        ssize_t got = MUST(read(side->fd, in, sizeof(in)));
        send_all(side->fd, in, (size_t)got);
    }
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        confine(by_pwait, BY_PRCTL);
        SHOW(epoll_pwait(set, &event, 1, 0, &none));
        SHOW(epoll_pwait(set, &event, 1, 1, &none));
        SHOW(epoll_pwait(set, &event, 1, 20, &none));
        write_all(side->fd, "+", 1);
        SHOW(epoll_pwait(set, &event, 1, -1, &none));
        read_test_data(side->fd, 700, 5, 0);
        _exit(0);
    }
    say("child %d", ended(child));
}
static void pwait_b(struct side *side) {
    for (int i = 0; i < 50; i++) {
        send_all(side->fd, out, 100);
        receive_all(side->fd, in, 100);
    }
    receive_all(side->fd, in, 1);
    fill(out, 700, 5, 0);
    send_all(side->fd, out, 700);
}
static void pwait(void) { two_processes(AF_INET, pwait_a, pwait_b); }

/* The child polls the set. */
static void poll_set_a(struct side *side) {
    int set = answer_by_set(side);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        struct pollfd ready = {set, POLLIN, 0};
        confine(frugal, BY_PRCTL);
        SHOW(poll(&ready, 1, 0));
        write_all(side->fd, "+", 1);
        SHOW(poll(&ready, 1, -1));
        read_test_data(side->fd, 700, 5, 0);
        SHOW(poll(&ready, 1, 20));
        _exit(0);
    }
    say("child %d", ended(child));
}
static void poll_set(void) { two_processes(AF_INET, poll_set_a, pwait_b); }

/* A thread sleeps in a read while another confines both. */
static pid_t echoer;
static void *echoing(void *side) {
    role = 'C';
    __atomic_store_n(&echoer, this_task(), __ATOMIC_RELEASE);
    echo(((struct side *)side)->fd, false);
    _exit(0);
}
static void sleeper_a(struct side *side) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        pthread_t thread;
        start_thread(&thread, echoing, side);
        while (__atomic_load_n(&echoer, __ATOMIC_ACQUIRE) == 0) nap_ms(1);
        await_asleep(echoer);
        confine(frugal, BY_SECCOMP);
        tell(side);
        for (;;) poll(NULL, 0, -1);
    }
    say("child %d", ended(child));
    echo(side->fd, true);
}
static void sleeper_b(struct side *side) {
    hear(side);
    ask(side->fd);
    ask(side->fd);
}
static void sleeper(void) { two_processes(AF_INET, sleeper_a, sleeper_b); }

/* The parent reads what the confined child has asked for, and sleeps when the child confines itself. */
static void split_a(struct side *side) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        await_asleep(getppid());
        confine(frugal, BY_PRCTL);
        fill(out, 100 * KIB, 3, 0);
        write_all(side->fd, out, 100 * KIB);
        _exit(0);
    }
    size_t got = read_all(side->fd, in, 100 * KIB, 100 * KIB);
    say("%zu came back, first difference %ld", got, differs(in, 100 * KIB, 3, 0));
    say("child %d", ended(child));
    echo(side->fd, true);
}
static void split_b(struct side *side) {
    for (size_t total = 0; total < 100 * KIB;) {
        ssize_t got = MUST(read(side->fd, in, sizeof(in)));
        write_all(side->fd, in, (size_t)got);
        total += (size_t)got;
    }
    ask(side->fd);
}
static void split(void) { two_processes(AF_INET, split_a, split_b); }

/* Polls whose time the kernel counts down. */
static void number_child(struct side *side) {
    confine(by_number, BY_PRCTL);
    for (int round = 0; round < 2; round++) {
        struct timespec time = {100, 0};
        struct pollfd ready = {side->fd, POLLIN, 0};
        SHOW(syscall(SYS_ppoll, &ready, 1, &time, NULL, 8));
        say("%s", time.tv_sec < 100 ? "counted down" : "as it was");
        fd_set readable;
        FD_ZERO(&readable);
        FD_SET(side->fd, &readable);
        time = (struct timespec){100, 0};
        SHOW(syscall(SYS_pselect6, side->fd + 1, &readable, NULL, NULL, &time, NULL));
        say("%s", time.tv_sec < 100 ? "counted down" : "as it was");
        struct timeval old = {100, 0};
        FD_SET(side->fd, &readable);
        SHOW(syscall(SYS_select, side->fd + 1, &readable, NULL, NULL, &old));
        say("%s", old.tv_sec < 100 ? "counted down" : "as it was");
        read_test_data(side->fd, 700, 5 + (uint64_t)round, 0);
        write_all(side->fd, "+", 1);
    }
}
static void number_a(struct side *side) { child_with_unread(side, number_child); }
static void number_b(struct side *side) {
    tell(side);
    for (uint64_t seed = 5; seed < 7; seed++) {
        fill(out, 700, seed, 0);
        send_all(side->fd, out, 700);
        SHOW((int)receive_all(side->fd, in, 1));
    }
}
static void number(void) { two_processes(AF_INET, number_a, number_b); }

/* Each once more with what is unread in the ring. */
#define IN_RING(play) \
    static void play##_in_ring(void) { \
        stays_in_ring = true; \
        play(); \
    }
IN_RING(all_read)
IN_RING(all_read_polls)
IN_RING(few)
IN_RING(many)
IN_RING(ahead)
IN_RING(young)
IN_RING(silent)
IN_RING(gone)
IN_RING(calls)
IN_RING(duplicates)
IN_RING(many_messages)
IN_RING(epoll)
IN_RING(sleeper)
IN_RING(split)
IN_RING(number)
IN_RING(pwait)
IN_RING(poll_set)
IN_RING(new_set)
IN_RING(old_sets)
#undef IN_RING
#define TWICE(name, play) {name, play, 0}, {name "-in-ring", play##_in_ring, 0}

const struct scenario scenarios[] = {
    TWICE("all-read", all_read),
    TWICE("all-read-polls", all_read_polls),
    TWICE("few", few),
    TWICE("many", many),
    TWICE("ahead", ahead),
    TWICE("young", young),
    TWICE("silent", silent),
    TWICE("gone", gone),
    TWICE("calls", calls),
    TWICE("duplicates", duplicates),
    TWICE("many-messages", many_messages),
    TWICE("epoll", epoll),
    TWICE("sleeper", sleeper),
    TWICE("split", split),
    TWICE("number", number),
    TWICE("pwait", pwait),
    TWICE("poll-set", poll_set),
    TWICE("new-set", new_set),
    TWICE("old-sets", old_sets),
    {0},
};
