/* Socket options and addresses: timeouts, low-water mark, linger, what the kernel says about the connection. */
#include "harness.h"

#include <linux/filter.h>

static _Thread_local char in[64 * KIB];

static void set_timeout(int fd, int option, long milliseconds) {
    struct timeval timeout = {milliseconds / 1000, milliseconds % 1000 * 1000};
    SHOW(setsockopt(fd, SOL_SOCKET, option, &timeout, sizeof(timeout)));
}

/* Says only that a wait was no shorter than wanted; how much longer is the machine's affair. */
static void say_waited(long since, long wanted) {
    long waited = now_ms() - since;
    say("waited at least %ld ms: %d", wanted, waited >= wanted - 1);
}

/* SO_RCVTIMEO ends a wait with EAGAIN, not before its time; data in time is returned at once; 0 waits for ever. */
static void receive_timeout_a(struct side *side) {
    int fd = side->fd;
    set_timeout(fd, SO_RCVTIMEO, 80);
    struct timeval timeout;
    socklen_t size = sizeof(timeout);
    SHOW(getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, &size));
    say("%ld.%06ld, %u bytes", (long)timeout.tv_sec, (long)timeout.tv_usec, size);
    long since = now_ms();
    SHOW(recv(fd, in, 10, 0));
    say_waited(since, 80);
    since = now_ms();
    SHOW(read(fd, in, 10));
    say_waited(since, 80);
    since = now_ms();
    struct iovec part = {in, 10};
    SHOW(readv(fd, &part, 1));
    say_waited(since, 80);
    since = now_ms();
    SHOW(recv(fd, in, 10, MSG_PEEK));
    say_waited(since, 80);
    SHOW(recv(fd, in, 10, MSG_DONTWAIT));
    set_timeout(fd, SO_RCVTIMEO, 15000);
    tell(side);
    SHOW(recv(fd, in, 10, 0));
    set_timeout(fd, SO_RCVTIMEO, 0);
    tell(side);
    SHOW(recv(fd, in, 10, 0));
    /* The option belongs to the connection, not to the descriptor. */
    int twin = (int)MUST(dup(fd));
    set_timeout(twin, SO_RCVTIMEO, 50);
    since = now_ms();
    SHOW(recv(fd, in, 10, 0));
    say_waited(since, 50);
    close(twin);
    struct timeval wrong = {0, 2000000};
    SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wrong, sizeof(wrong)));
    SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wrong, 3));
    tell(side);
}
static void receive_timeout_b(struct side *side) {
    for (int i = 0; i < 2; i++) {
        hear(side);
        await_asleep(side->other);
        send_all(side->fd, "in time", 7);
    }
    hear(side);
}
static void receive_timeout(void) { two_processes(AF_INET, receive_timeout_a, receive_timeout_b); }
static void receive_timeout_threads(void) { two_threads(AF_INET, receive_timeout_a, receive_timeout_b); }

/* SO_SNDTIMEO: a send into full buffers ends with EAGAIN, one that moved a part ends with the part. */
static void send_timeout_a(struct side *side) {
    int fd = side->fd;
    size_t size = 32 * MIB;
    char *bytes = calloc(1, size);
    set_timeout(fd, SO_SNDTIMEO, 150);
    long since = now_ms();
    long part = send(fd, bytes, size, 0);
    say("a part: %d", part > 0 && part < (long)size);
    say_waited(since, 150);
    stuff(fd, 1); /* what the last acknowledgement made room for */
    since = now_ms();
    SHOW(send(fd, bytes, size, 0));
    say_waited(since, 150);
    SHOW(write(fd, bytes, size));
    SHOW(send(fd, bytes, size, MSG_DONTWAIT));
    free(bytes);
    tell(side);
    hear(side);
    SHOW(send(fd, "x", 1, 0));
}
static void send_timeout_b(struct side *side) {
    hear(side);
    while (recv(side->fd, in, sizeof(in), MSG_DONTWAIT) > 0) {}
    nap_ms(1);
    while (recv(side->fd, in, sizeof(in), MSG_DONTWAIT) > 0) {}
    tell(side);
    SHOW(recv(side->fd, in, sizeof(in), 0) > 0);
}
static void send_timeout(void) { two_processes(AF_INET, send_timeout_a, send_timeout_b); }

/* SO_RCVLOWAT: a read and poll wait for so many bytes; a nonblocking read takes what is there. */
static void low_water_a(struct side *side) {
    int fd = side->fd, mark = 100;
    SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof(mark)));
    mark = 0;
    socklen_t size = sizeof(mark);
    SHOW(getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &mark, &size));
    say("mark %d", mark);
    tell(side);
    hear(side);
    await_bytes(fd, 40);
    struct pollfd ready = {fd, POLLIN, 0};
    SHOW(poll(&ready, 1, 20));
    tell(side);
    SHOW(poll(&ready, 1, -1));
    SHOW(recv(fd, in, 30, 0));
    SHOW(recv(fd, in, 5000, MSG_DONTWAIT));
    tell(side);
    hear(side);
    await_bytes(fd, 40);
    SHOW(recv(fd, in, 5000, MSG_DONTWAIT));
    tell(side);
    SHOW(recv(fd, in, 5000, 0)); /* 60 and 60: wakes at 120 */
    tell(side);
    SHOW(recv(fd, in, 5000, 0)); /* 40 and the end */
}
static void low_water_b(struct side *side) {
    hear(side);
    send_all(side->fd, in, 40);
    tell(side);
    hear(side);
    await_asleep(side->other);
    send_all(side->fd, in, 60);
    hear(side);
    send_all(side->fd, in, 40);
    tell(side);
    hear(side);
    /* Asleep first: the kernel forgets to wake a reader that has already taken 60 and wants 40 more. */
    await_asleep(side->other);
    send_all(side->fd, in, 60);
    await_asleep(side->other);
    send_all(side->fd, in, 60);
    hear(side);
    send_all(side->fd, in, 40);
    await_asleep(side->other);
    shutdown(side->fd, SHUT_WR);
}
static void low_water(void) { two_processes(AF_INET, low_water_a, low_water_b); }

/* The kernel's view of the TCP connection, which still exists. */
static void about_a(struct side *side) {
    int fd = side->fd;
    static const struct {
        const char *name;
        int level, option;
    } numbers[] = {
        {"SO_ERROR", SOL_SOCKET, SO_ERROR},         {"SO_TYPE", SOL_SOCKET, SO_TYPE},
        {"SO_DOMAIN", SOL_SOCKET, SO_DOMAIN},       {"SO_PROTOCOL", SOL_SOCKET, SO_PROTOCOL},
        {"SO_ACCEPTCONN", SOL_SOCKET, SO_ACCEPTCONN}, {"SO_KEEPALIVE", SOL_SOCKET, SO_KEEPALIVE},
        {"SO_REUSEADDR", SOL_SOCKET, SO_REUSEADDR}, {"SO_BROADCAST", SOL_SOCKET, SO_BROADCAST},
        {"SO_OOBINLINE", SOL_SOCKET, SO_OOBINLINE}, {"TCP_NODELAY", IPPROTO_TCP, TCP_NODELAY},
        {"TCP_CORK", IPPROTO_TCP, TCP_CORK},        {"TCP_KEEPIDLE", IPPROTO_TCP, TCP_KEEPIDLE},
        {"TCP_DEFER_ACCEPT", IPPROTO_TCP, TCP_DEFER_ACCEPT}, {"TCP_USER_TIMEOUT", IPPROTO_TCP, TCP_USER_TIMEOUT},
        {"nonsense", SOL_SOCKET, 9999},             {"nonsense", 9999, 1},
    };
    for (size_t i = 0; i < COUNT(numbers); i++) {
        int value = -1;
        socklen_t size = sizeof(value);
        int result = getsockopt(fd, numbers[i].level, numbers[i].option, &value, &size);
        say("%s: %d %s, %d in %u bytes", numbers[i].name, result, result ? error_name(errno) : "", value, size);
    }
    int on = 1;
    SHOW(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
    SHOW(setsockopt(fd, IPPROTO_TCP, TCP_QUICKACK, &on, sizeof(on)));
    SHOW(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on)));
    SHOW(setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &on, sizeof(on)));
    SHOW(setsockopt(fd, SOL_SOCKET, 9999, &on, sizeof(on)));
    int size_wanted = 128 * KIB;
    SHOW(setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size_wanted, sizeof(size_wanted)));
    SHOW(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size_wanted, sizeof(size_wanted)));
    int size_given = 0;
    socklen_t size = sizeof(size_given);
    SHOW(getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size_given, &size));
    say("receive buffer %d", size_given);
    SHOW(getsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size_given, &size));
    say("send buffer %d", size_given);
    struct linger linger = {1, 3}, back = {0, 0};
    size = sizeof(back);
    SHOW(setsockopt(fd, SOL_SOCKET, SO_LINGER, &linger, sizeof(linger)));
    SHOW(getsockopt(fd, SOL_SOCKET, SO_LINGER, &back, &size));
    say("linger %d %d", back.l_onoff, back.l_linger);
    struct tcp_info info;
    size = sizeof(info);
    SHOW(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size));
    say("state %d, size %d", info.tcpi_state, size == sizeof(info));
    tell(side);
    SHOW(recv(fd, in, 100, MSG_WAITALL));
    hear(side);
    send_all(fd, in, 100);
}
static void about_b(struct side *side) {
    hear(side);
    send_all(side->fd, in, 100);
    tell(side);
    SHOW(recv(side->fd, in, 100, MSG_WAITALL));
}
static void about(void) { two_processes(AF_INET, about_a, about_b); }
static void about_v6(void) { two_processes(AF_INET6, about_a, about_b); }

static void say_address(const char *what, struct sockaddr_storage *address, socklen_t size, in_port_t known) {
    char text[INET6_ADDRSTRLEN] = "";
    struct sockaddr_in6 *six = (struct sockaddr_in6 *)address;
    struct sockaddr_in *four = (struct sockaddr_in *)address;
    bool is_six = address->ss_family == AF_INET6;
    inet_ntop(address->ss_family, is_six ? (void *)&six->sin6_addr : (void *)&four->sin_addr, text, sizeof(text));
    say("%s: family %d, %s, %u bytes, port of the listener %d", what, address->ss_family, text, size,
        (is_six ? six->sin6_port : four->sin_port) == known);
}

/* Names of both ends, with room and without, at birth, during and after the other end has gone. */
static void addresses(struct side *side) {
    struct sockaddr_storage address;
    in_port_t known = ((struct sockaddr_in *)&side->address)->sin_port; /* at the same place in both families */
    for (int rounds = 0; rounds < 2; rounds++) {
        socklen_t size = sizeof(address);
        SHOW(getsockname(side->fd, (struct sockaddr *)&address, &size));
        say_address("own", &address, size, known);
        size = sizeof(address);
        SHOW(getpeername(side->fd, (struct sockaddr *)&address, &size));
        say_address("peer", &address, size, known);
        size = 4;
        SHOW(getpeername(side->fd, (struct sockaddr *)&address, &size));
        say("needs %u bytes", size);
        if (rounds > 0) break;
        shutdown(side->fd, SHUT_WR);
        SHOW(recv(side->fd, in, 1, 0));
        tell(side);
        hear(side);
    }
}
static void addresses_v4(void) { two_processes(AF_INET, addresses, addresses); }
static void addresses_v6(void) { two_processes(AF_INET6, addresses, addresses); }

/* A v6 socket that talks to a v4 one. */
static void mapped_a(struct side *side) {
    int six = (int)MUST(socket(AF_INET6, SOCK_STREAM, 0)), off = 0;
    struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
    socklen_t size = sizeof(any);
    MUST(setsockopt(six, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off)));
    MUST(bind(six, (struct sockaddr *)&any, size));
    MUST(listen(six, 1));
    MUST(getsockname(six, (struct sockaddr *)&any, &size));
    MUST(write(side->turn, &any.sin6_port, sizeof(any.sin6_port)));
    struct sockaddr_storage from;
    size = sizeof(from);
    int fd = (int)MUST(accept(six, (struct sockaddr *)&from, &size));
    say_address("accepted", &from, size, any.sin6_port);
    warm(fd, true);
    SHOW(send(fd, "mapped", 6, 0));
    SHOW(recv(fd, in, 6, MSG_WAITALL));
}
static void mapped_b(struct side *side) {
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    MUST(read(side->turn, &four.sin_port, sizeof(four.sin_port)));
    int fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(connect(fd, (struct sockaddr *)&four, sizeof(four)));
    warm(fd, false);
    SHOW(recv(fd, in, 6, MSG_WAITALL));
    SHOW(send(fd, "mapped", 6, 0));
}
static void mapped(void) { two_processes(AF_INET, mapped_a, mapped_b); }

/* Options that only the kernel can honour, set before the connection is fast and while it is. */
static void set_number(int fd, int level, int option, int value) {
    SHOW(setsockopt(fd, level, option, &value, sizeof(value)));
}
/* A reader with `option`, set on the listener, on itself before its first byte, or later. */
enum when { ON_LISTENER, AT_FIRST, LATER };
static int reader_with(struct side *side, enum when when, int level, int option, int value) {
    if (when == LATER) {
        set_number(side->fd, level, option, value);
        return side->fd;
    }
    if (when == ON_LISTENER) set_number(side->listener, level, option, value);
    tell(side);
    int fd = (int)MUST(accept(side->listener, NULL, NULL));
    if (when == AT_FIRST) set_number(fd, level, option, value);
    warm(fd, true);
    return fd;
}
static int writer_for(struct side *side, enum when when) {
    if (when == LATER) return side->fd;
    hear(side);
    return another(side);
}

static void peek_off_a(struct side *side) {
    for (enum when when = ON_LISTENER; when <= LATER; when++) {
        int fd = reader_with(side, when, SOL_SOCKET, SO_PEEK_OFF, 0);
        tell(side);
        await_events(fd, POLLIN);
        hear(side);
        for (int i = 0; i < 3; i++) {
            SHOW(recv(fd, in, 2, MSG_PEEK));
            say("%.2s", in);
        }
        SHOW(recv(fd, in, 3, 0));
        SHOW(recv(fd, in, 3, MSG_PEEK));
        say("%.3s", in);
        SHOW(recv(fd, in, 10, 0));
        tell(side);
        SHOW(recv(fd, in, 10, MSG_PEEK));
        SHOW(recv(fd, in, 10, 0));
        if (when < LATER) close(fd);
    }
}
static void peek_off_b(struct side *side) {
    for (enum when when = ON_LISTENER; when <= LATER; when++) {
        int fd = writer_for(side, when);
        hear(side);
        send_all(fd, "abcdefghij", 10);
        tell(side);
        hear(side);
        await_asleep(side->other);
        send_all(fd, "later", 5);
        if (when < LATER) close(fd);
    }
}
static void peek_off(void) { two_processes(AF_INET, peek_off_a, peek_off_b); }

/* Receives with control data; what it says. */
static void say_control(int fd, size_t room, int flags) {
    _Alignas(struct cmsghdr) char control[256];
    struct iovec part = {in, 4};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = room};
    if (SHOW(recvmsg(fd, &message, flags)) < 0) return;
    say("flags %x, control %zu", (unsigned)message.msg_flags, message.msg_controllen);
    for (struct cmsghdr *it = CMSG_FIRSTHDR(&message); it; it = CMSG_NXTHDR(&message, it)) {
        int number = 0;
        memcpy(&number, CMSG_DATA(it), sizeof(number));
        say("level %d, type %d, length %zu, %d", it->cmsg_level, it->cmsg_type, it->cmsg_len,
            it->cmsg_level == IPPROTO_TCP ? number : 0);
    }
}

/* The kernel needs some time before it begins to take times: the first bytes may have none. */
static bool has_time(int fd) {
    char control[256];
    struct iovec part = {in, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = 256};
    return MUST(recvmsg(fd, &message, 0)) == 1 && message.msg_controllen > 0;
}
static void timestamps_a(struct side *side) {
    static const int options[] = {SO_TIMESTAMP, SO_TIMESTAMPNS, SO_TIMESTAMPING};
    /* Keeps the kernel taking them. */
    int other = (int)MUST(socket(AF_INET, SOCK_DGRAM, 0));
    set_number(other, SOL_SOCKET, SO_TIMESTAMP, 1);
    for (size_t i = 0; i < COUNT(options); i++) {
        for (enum when when = AT_FIRST; when <= LATER; when++) {
            bool times = options[i] == SO_TIMESTAMPING;
            int fd = reader_with(side, when, SOL_SOCKET, options[i], times ? 1 << 3 | 1 << 4 : 1);
            do tell(side);
            while (!has_time(fd));
            MUST(write(side->turn, "q", 1));
            hear(side);
            say_control(fd, 256, 0);
            if (when == LATER) set_number(fd, SOL_SOCKET, options[i], 0);
            else close(fd);
        }
    }
}
static void timestamps_b(struct side *side) {
    for (int i = 0; i < 3; i++) {
        for (enum when when = AT_FIRST; when <= LATER; when++) {
            int fd = writer_for(side, when);
            for (char turn = 0; MUST(read(side->turn, &turn, 1)) == 1 && turn != 'q';) send_all(fd, "t", 1);
            send_all(fd, "time", 4);
            tell(side);
            if (when < LATER) close(fd);
        }
    }
}
static void timestamps(void) { two_processes(AF_INET, timestamps_a, timestamps_b); }

/* A filter throws away what arrives: here, everything. */
static void filter_a(struct side *side) {
    struct sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
    struct sock_fprog program = {1, &nothing};
    SHOW(setsockopt(side->fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof(program)));
    tell(side);
    hear(side);
    SHOW(recv(side->fd, in, 10, MSG_DONTWAIT));
    SHOW(setsockopt(side->fd, SOL_SOCKET, SO_DETACH_FILTER, &program, sizeof(program)));
    SHOW(recv(side->fd, in, 10, MSG_WAITALL)); /* sent once more */
    say("%.10s", in);
}
static void filter_b(struct side *side) {
    hear(side);
    send_all(side->fd, "once", 4);
    send_all(side->fd, " again", 6);
    tell(side);
}
static void filter(void) { two_processes(AF_INET, filter_a, filter_b); }

/* TCP_INQ: each receive says how many bytes are left, 1 at the end. */
static void left_over_a(struct side *side) {
    for (enum when when = ON_LISTENER; when <= LATER; when++) {
        /* A listener has it for itself only. */
        int fd = reader_with(side, when, IPPROTO_TCP, TCP_INQ, 1);
        tell(side);
        hear(side);
        await_bytes(fd, 10);
        say_control(fd, 256, MSG_PEEK);
        say_control(fd, 256, 0);
        say_control(fd, CMSG_LEN(sizeof(int)), 0);
        say_control(fd, 256, 0);
        tell(side);
        say_control(fd, 256, 0);
        say_control(fd, 256, MSG_DONTWAIT);
        if (when == LATER) {
            set_number(fd, IPPROTO_TCP, TCP_INQ, 2);
            set_number(fd, IPPROTO_TCP, TCP_INQ, 0);
        }
        tell(side);
        hear(side);
        await_events(fd, POLLRDHUP);
        say_control(fd, 256, 0);
        say_control(fd, 256, 0);
        if (when < LATER) close(fd);
    }
}
static void left_over_b(struct side *side) {
    for (enum when when = ON_LISTENER; when <= LATER; when++) {
        int fd = writer_for(side, when);
        hear(side);
        send_all(fd, "0123456789", 10);
        tell(side);
        hear(side);
        await_asleep(side->other);
        send_all(fd, "more", 4);
        hear(side);
        send_all(fd, "last", 4);
        shutdown(fd, SHUT_WR);
        tell(side);
        if (when < LATER) close(fd);
    }
}
static void left_over(void) { two_processes(AF_INET, left_over_a, left_over_b); }

/* Small buffers press back: only few bytes can be sent that are not read. */
static void small_buffers_a(struct side *side) {
    for (enum when when = ON_LISTENER; when <= LATER; when++) {
        int fd = reader_with(side, when, SOL_SOCKET, SO_RCVBUF, 4096);
        tell(side);
        size_t sent;
        MUST(read(side->turn, &sent, sizeof(sent)));
        char *bytes = malloc(sent);
        say("all: %d", receive_all(fd, bytes, sent) == sent && differs(bytes, sent, 7, 0) < 0);
        free(bytes);
        if (when < LATER) close(fd);
    }
}
static void small_buffers_b(struct side *side) {
    for (enum when when = ON_LISTENER; when <= LATER; when++) {
        int fd = writer_for(side, when);
        set_number(fd, SOL_SOCKET, SO_SNDBUF, 4096);
        hear(side);
        size_t sent = stuff(fd, 7);
        say("little: %d", sent < 128 * KIB);
        MUST(write(side->turn, &sent, sizeof(sent)));
        if (when < LATER) close(fd);
    }
}
static void small_buffers(void) { two_processes(AF_INET, small_buffers_a, small_buffers_b); }

/* A listener that accepts no connection before there is data: until then the other end has none. */
static void deferred(void) {
    struct sockaddr_storage address;
    int listener = listen_on(AF_INET, &address), seconds = 5;
    char byte;
    MUST(setsockopt(listener, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof(seconds)));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        int fd = connect_to(&address);
        send_all(fd, "1", 1);
        send_all(fd, "2", 1);
        warm(fd, false);
        _exit(0);
    }
    int fd = (int)MUST(accept(listener, NULL, NULL));
    SHOW(recv(fd, &byte, 1, 0));
    SHOW(recv(fd, &byte, 1, 0));
    warm(fd, true);
    SHOW(recv(fd, &byte, 1, 0));
    MUST(waitpid(child, NULL, 0));
}

const struct scenario scenarios[] = {
    {"receive-timeout", receive_timeout, 0},
    {"receive-timeout-threads", receive_timeout_threads, 0},
    {"send-timeout", send_timeout, 0},
    {"low-water", low_water, 0},
    {"about", about, 0},
    {"about-v6", about_v6, 0},
    {"addresses-v4", addresses_v4, 0},
    {"addresses-v6", addresses_v6, 0},
    {"mapped", mapped, 0},
    {"peek-off", peek_off, 0},
    {"timestamps", timestamps, 0},
    {"filter", filter, 0},
    {"left-over", left_over, 0},
    {"small-buffers", small_buffers, 0},
    {"deferred", deferred, 0},
    {0},
};
