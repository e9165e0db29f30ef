/* The flags of send and recv. */
#include "harness.h"

#include <sys/epoll.h>

static char out[8 * KIB], in[8 * KIB];

/* MSG_PEEK: the same bytes again and again, any length, by every call, and then the read. */
static void peek_a(struct side *side) {
    int fd = side->fd;
    SHOW(recv(fd, in, 10, MSG_PEEK | MSG_DONTWAIT));
    tell(side);
    SHOW(recv(fd, in, 1, MSG_PEEK)); /* blocks until there is something */
    await_bytes(fd, 300);
    SHOW(recv(fd, in, 100, MSG_PEEK));
    say_bytes("peeked", in, 100);
    SHOW(recv(fd, in, 5000, MSG_PEEK));
    say_bytes("peeked beyond", in, 300);
    SHOW(recvfrom(fd, in, 0, MSG_PEEK, NULL, NULL));
    struct iovec parts[] = {{in, 3}, {in + 3, 4}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    SHOW(recvmsg(fd, &message, MSG_PEEK | MSG_DONTWAIT));
    say_bytes("peeked parts", in, 7);
    struct mmsghdr many[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
    SHOW(recvmmsg(fd, many, 2, MSG_PEEK, NULL));
    SHOW(recv(fd, in, 50, 0));
    say_bytes("read", in, 50);
    SHOW(recv(fd, in, 50, MSG_PEEK));
    say_bytes("peeked after a read", in, 50);
    SHOW(recv(fd, in, 5000, 0));
    say_bytes("rest", in, 250);
    SHOW(recv(fd, in, 10, MSG_PEEK | MSG_DONTWAIT));
    tell(side);
    hear(side);
    await_events(fd, POLLRDHUP);
    SHOW(recv(fd, in, 10, MSG_PEEK));
    say_bytes("peeked before the end", in, 4);
    SHOW(recv(fd, in, 10, 0));
    SHOW(recv(fd, in, 10, MSG_PEEK));
    SHOW(recv(fd, in, 10, MSG_PEEK | MSG_DONTWAIT));
}
static void peek_b(struct side *side) {
    fill(out, 300, 1, 0);
    hear(side);
    send_all(side->fd, out, 300);
    hear(side);
    send_all(side->fd, "tail", 4);
    shutdown(side->fd, SHUT_WR);
    tell(side);
}
static void peek(void) { two_processes(AF_INET, peek_a, peek_b); }
static void peek_threads(void) { two_threads(AF_INET6, peek_a, peek_b); }

/* MSG_WAITALL: everything, or what came before the end. */
static void whole_a(struct side *side) {
    int fd = side->fd;
    tell(side);
    SHOW(recv(fd, in, 4000, MSG_WAITALL)); /* arrives in pieces, each after this side has gone to sleep */
    say("first difference %ld", differs(in, 4000, 1, 0));
    SHOW(recv(fd, in, 6000, MSG_WAITALL | MSG_PEEK));
    say("first difference %ld", differs(in, 6000, 1, 4000));
    struct iovec parts[] = {{in, 1000}, {in + 1000, 5000}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    SHOW(recvmsg(fd, &message, MSG_WAITALL));
    say("flags %x, first difference %ld", message.msg_flags, differs(in, 6000, 1, 4000));
    tell(side);
    hear(side);
    await_bytes(fd, 10);
    SHOW(recv(fd, in, 20, MSG_WAITALL | MSG_DONTWAIT));
    tell(side);
    SHOW(recv(fd, in, 5000, MSG_WAITALL)); /* 100 bytes and the end */
    say("first difference %ld", differs(in, 100, 2, 0));
    SHOW(recv(fd, in, 5000, MSG_WAITALL));
}
static void whole_b(struct side *side) {
    char block[500];
    hear(side);
    for (int i = 0; i < 20; i++) {
        if (i % 5 == 0) await_asleep(side->other);
        fill(block, sizeof(block), 1, (uint64_t)i * 500);
        send_all(side->fd, block, sizeof(block));
    }
    hear(side);
    send_all(side->fd, block, 10);
    tell(side);
    hear(side);
    fill(block, 100, 2, 0);
    send_all(side->fd, block, 60);
    await_asleep(side->other);
    send_all(side->fd, block + 60, 40);
    shutdown(side->fd, SHUT_WR);
}
static void whole(void) { two_processes(AF_INET, whole_a, whole_b); }

/* MSG_WAITALL gives up with what it has when the receive timeout passes. */
static void whole_timeout_a(struct side *side) {
    struct timeval timeout = {0, 100000};
    MUST(setsockopt(side->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)));
    hear(side);
    await_bytes(side->fd, 10);
    SHOW(recv(side->fd, in, 20, MSG_WAITALL));
    SHOW(recv(side->fd, in, 20, MSG_WAITALL));
    tell(side);
}
static void ten_bytes(struct side *side) {
    send_all(side->fd, "0123456789", 10);
    tell(side);
    hear(side);
}
static void whole_timeout(void) { two_processes(AF_INET, whole_timeout_a, ten_bytes); }

/* The timeout is that of the whole call, however often something comes. */
static void whole_slowly_a(struct side *side) {
    struct timeval timeout = {0, 400000};
    MUST(setsockopt(side->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)));
    await_bytes(side->fd, 1);
    for (int flags = 0; flags <= MSG_PEEK; flags += MSG_PEEK) {
        long got = recv(side->fd, in, 20, MSG_WAITALL | flags);
        say("a part: %d", got > 0 && got < 20);
    }
    tell(side);
}
static void whole_slowly_b(struct side *side) {
    for (int i = 0; i < 60; i++) {
        if (send(side->fd, "0", 1, MSG_NOSIGNAL) != 1) break;
        nap_ms(100);
    }
    hear(side);
}
static void whole_slowly(void) { two_processes(AF_INET, whole_slowly_a, whole_slowly_b); }

/* A look at bytes that came before the connection was used by both, after that, and by another name of the socket whose
 * first one, registered in a set, is closed. */
static int unused(struct side *side) {
    if (side->leader) return (int)MUST(accept(side->listener, NULL, NULL));
    return connect_to(&side->address);
}
static void peek_across_a(struct side *side) {
    struct iovec parts[] = {{in, 1}, {in + 1, 0}, {in + 1, 4}, {in + 5, 4}, {in + 9, 91}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = COUNT(parts)};
    int fd = unused(side);
    tell(side);
    await_bytes(fd, 7);
    SHOW(recv(fd, in, 5, 0));
    tell(side);
    hear(side);
    await_bytes(fd, 12);
    for (size_t most = 1; most < 20; most++) {
        memset(in, 0, 20);
        SHOW(recv(fd, in, most, MSG_PEEK));
        say_bytes("peeked", in, 20);
    }
    memset(in, 0, 20);
    SHOW(recvmsg(fd, &message, MSG_PEEK));
    say_bytes("peeked parts", in, 20);
    SHOW(recv(fd, NULL, 100, MSG_PEEK | MSG_TRUNC));
    SHOW(recv(fd, in, 12, MSG_WAITALL));
    say_bytes("read", in, 12);
    close(fd);
}
static void peek_across_b(struct side *side) {
    int fd = unused(side), set = (int)MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP};
    hear(side);
    send_all(fd, "0123456", 7);
    hear(side);
    int twin = (int)MUST(dup(fd));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    send_all(twin, "abcdefghi", 9);
    close(fd);
    send_all(twin, "X", 1);
    tell(side);
    SHOW(recv(twin, in, 1, 0));
}
static void peek_across(void) { two_processes(AF_INET, peek_across_a, peek_across_b); }

/* MSG_PEEK with it: the timeout ends the wait as well, and so does a signal, with what has come by then. */
static void handle(int number) {
    (void)number;
}
static void whole_peek_a(struct side *side) {
    struct timeval timeout = {0, 100000}, none = {0, 0};
    struct sigaction action = {.sa_handler = handle, .sa_flags = SA_RESTART};
    int fd = side->fd;
    sigaction(SIGUSR1, &action, NULL);
    hear(side);
    await_bytes(fd, 10);
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)));
    SHOW(recv(fd, in, 20, MSG_PEEK | MSG_WAITALL));
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none)));
    tell(side);
    SHOW(recv(fd, in, 20, MSG_PEEK | MSG_WAITALL));
    say_bytes("peeked", in, 15);
    tell(side);
    SHOW(recv(fd, in, 20, MSG_PEEK | MSG_WAITALL));
    say_bytes("peeked", in, 20);
    tell(side);
    SHOW(recv(fd, in, 30, MSG_PEEK | MSG_WAITALL));
    SHOW(recv(fd, in, 30, MSG_WAITALL));
    say_bytes("read", in, 25);
}
static void whole_peek_b(struct side *side) {
    send_all(side->fd, "0123456789", 10);
    tell(side);
    hear(side);
    await_asleep(side->other);
    send_all(side->fd, "abcde", 5);
    await_asleep(side->other);
    kill(side->other, SIGUSR1);
    hear(side);
    await_asleep(side->other);
    send_all(side->fd, "fghij", 5);
    hear(side);
    await_asleep(side->other);
    send_all(side->fd, "klmno", 5);
    await_asleep(side->other);
    shutdown(side->fd, SHUT_WR);
}
static void whole_peek(void) { two_processes(AF_INET, whole_peek_a, whole_peek_b); }

/* MSG_TRUNC: TCP throws the bytes away and counts them. */
static void discard_a(struct side *side) {
    int fd = side->fd;
    hear(side);
    await_bytes(fd, 1000);
    memset(in, 'x', sizeof(in));
    SHOW(recv(fd, in, 400, MSG_TRUNC));
    say_bytes("untouched", in, 400);
    SHOW(recv(fd, NULL, 100, MSG_TRUNC | MSG_PEEK));
    SHOW(recv(fd, NULL, 100, MSG_TRUNC));
    struct iovec part = {in, 100};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    SHOW(recvmsg(fd, &message, MSG_TRUNC | MSG_DONTWAIT));
    say("flags %x", message.msg_flags);
    SHOW(recv(fd, in, 5000, 0));
    say("first difference %ld", differs(in, 400, 3, 600));
    SHOW(recv(fd, in, 10, MSG_TRUNC | MSG_DONTWAIT));
    tell(side);
    hear(side);
    SHOW(recv(fd, NULL, 2000, MSG_TRUNC | MSG_WAITALL));
    tell(side);
}
static void discard_b(struct side *side) {
    fill(out, 2000, 3, 0);
    send_all(side->fd, out, 1000);
    tell(side);
    hear(side);
    send_all(side->fd, out, 2000);
    tell(side);
    hear(side);
}
static void discard(void) { two_processes(AF_INET, discard_a, discard_b); }

/* Looks at bytes of which some were sent in another way than the others. */
static void mixed_a(struct side *side) {
    int fd = side->fd;
    hear(side);
    await_bytes(fd, 1100);
    SHOW(recv(fd, in, 8000, MSG_PEEK));
    SHOW(recv(fd, in, 8000, MSG_PEEK | MSG_TRUNC));
    SHOW(recv(fd, NULL, 500, MSG_PEEK | MSG_TRUNC));
    SHOW(recv(fd, NULL, 1100, MSG_PEEK | MSG_TRUNC | MSG_WAITALL));
    SHOW(recv(fd, in, 50, 0));
    SHOW(recv(fd, in, 8000, MSG_PEEK | MSG_TRUNC));
    SHOW(recv(fd, in, 8000, 0));
    say("first difference %ld", differs(in, 1050, 5, 50));
    SHOW(recv(fd, in, 8000, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT));
    tell(side);
}
static void mixed_b(struct side *side) {
    int ends[2];
    fill(out, 1100, 5, 0);
    MUST(pipe(ends));
    MUST(write(ends[1], out + 100, 1000));
    send_all(side->fd, out, 100);
    SHOW(splice(ends[0], NULL, side->fd, NULL, 1000, 0));
    tell(side);
    hear(side);
}
static void mixed(void) { two_processes(AF_INET, mixed_a, mixed_b); }

/* Flags of sending: the bytes arrive the same, together or one by one. */
static void sending_a(struct side *side) {
    int fd = side->fd;
    fill(out, 100, 4, 0);
    SHOW(send(fd, out, 10, MSG_MORE));
    SHOW(send(fd, out + 10, 10, MSG_MORE));
    SHOW(send(fd, out + 20, 10, 0));
    SHOW(send(fd, out + 30, 10, MSG_NOSIGNAL));
    SHOW(send(fd, out + 40, 10, MSG_DONTWAIT));
    SHOW(send(fd, out + 50, 10, MSG_EOR));
    SHOW(send(fd, out + 60, 10, MSG_CONFIRM));
    SHOW(send(fd, out + 70, 10, MSG_DONTROUTE));
    struct iovec part = {out + 80, 10};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    SHOW(sendmsg(fd, &message, MSG_MORE | MSG_NOSIGNAL | MSG_DONTWAIT));
    struct mmsghdr many = {.msg_hdr = {.msg_iov = &(struct iovec){out + 90, 10}, .msg_iovlen = 1}};
    SHOW(sendmmsg(fd, &many, 1, MSG_NOSIGNAL));
    hear(side);
    int on = 1;
    SHOW(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)));
    SHOW(send(fd, out, 10, 0));
    SHOW(send(fd, out + 10, 10, 0));
    on = 0;
    SHOW(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)));
    on = 1;
    SHOW(setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on)));
    SHOW(send(fd, out + 20, 10, 0));
    hear(side);
}
static void sending_b(struct side *side) {
    say("got %zu", receive_all(side->fd, in, 100));
    say("first difference %ld", differs(in, 100, 4, 0));
    tell(side);
    say("got %zu", receive_all(side->fd, in, 30));
    say("first difference %ld", differs(in, 30, 4, 0));
    tell(side);
}
static void sending(void) { two_processes(AF_INET, sending_a, sending_b); }

/* Bytes that are held back until more come: here they arrive before. */
static void held_back_a(struct side *side) {
    int fd = side->fd, on = 1, off = 0;
    fill(out, 100, 4, 0);
    SHOW(send(fd, out, 10, MSG_MORE));
    tell(side);
    hear(side);
    SHOW(send(fd, out + 10, 1, 0));
    hear(side);
    SHOW(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &on, sizeof(on)));
    SHOW(send(fd, out + 11, 10, 0));
    tell(side);
    hear(side);
    SHOW(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &off, sizeof(off)));
    hear(side);
}
static void held_back_b(struct side *side) {
    for (size_t from = 0, count = 11; from < 21; from += count, count = 10) {
        hear(side);
        usleep(20000);
        long got = SHOW(recv(side->fd, in, 100, MSG_DONTWAIT));
        tell(side);
        if (got < 0) got = 0;
        receive_all(side->fd, in + got, count - (size_t)got);
        say("first difference %ld", differs(in, count, 4, from));
        if (from == 0) tell(side);
    }
    tell(side);
}
static void held_back(void) { two_processes(AF_INET, held_back_a, held_back_b); }

/* Bytes that are held back wake a sleeper even if nothing more comes, and the program is told what it has set. */
static void held_alone_a(struct side *side) {
    int fd = side->fd, cork = 1;
    socklen_t size = sizeof(cork);
    fill(out, 100, 4, 0);
    await_asleep(side->other);
    SHOW(send(fd, out, 10, MSG_MORE));
    hear(side);
    SHOW(setsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, sizeof(cork)));
    await_asleep(side->other);
    SHOW(send(fd, out + 10, 10, MSG_MORE));
    hear(side);
    cork = 7;
    SHOW(getsockopt(fd, IPPROTO_TCP, TCP_CORK, &cork, &size));
    say("cork %d", cork);
}
static void held_alone_b(struct side *side) {
    for (size_t from = 0; from < 20; from += 10) {
        say("got %zu", receive_all(side->fd, in, 10));
        say("first difference %ld", differs(in, 10, 4, from));
        tell(side);
    }
}
static void held_alone(void) { two_processes(AF_INET, held_alone_a, held_alone_b); }

/* Flags of receiving that change nothing, and those that ask for what is not there. */
static void receiving_a(struct side *side) {
    int fd = side->fd;
    char control[200];
    struct iovec part = {in, 10};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = 200};
    hear(side);
    await_bytes(fd, 10);
    SHOW(recv(fd, in, 10, MSG_ERRQUEUE));
    SHOW(recvmsg(fd, &message, MSG_ERRQUEUE));
    SHOW(recv(fd, in, 1, MSG_CMSG_CLOEXEC));
    SHOW(recv(fd, in, 1, MSG_NOSIGNAL));
    SHOW(recv(fd, in, 1, MSG_OOB));
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    SHOW(recvmsg(fd, &message, MSG_CMSG_CLOEXEC));
    say("flags %x, control %zu", message.msg_flags, message.msg_controllen);
    tell(side);
}
static void receiving(void) { two_processes(AF_INET, receiving_a, ten_bytes); }

/* Flags that a receive from TCP ignores, and one that the calls refuse. */
static void ignored_a(struct side *side) {
    const int ignored[] = {MSG_WAITFORONE, MSG_DONTROUTE, MSG_MORE, MSG_CONFIRM, MSG_EOR, MSG_FASTOPEN, 0x800000};
    const int compat = (int)0x80000000; /* MSG_CMSG_COMPAT */
    int fd = side->fd;
    struct iovec part = {in, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    hear(side);
    await_bytes(fd, 10);
    for (size_t i = 0; i < COUNT(ignored); i++) {
        say("flag %x", ignored[i]);
        SHOW(recv(fd, in, 1, ignored[i] | MSG_PEEK));
        SHOW(recvmsg(fd, &message, ignored[i] | MSG_PEEK));
        say("flags %x", message.msg_flags);
    }
    SHOW(recv(fd, in, 1, MSG_WAITFORONE));
    SHOW(recv(fd, in, 1, compat));
    SHOW(recvfrom(fd, in, 1, compat, NULL, NULL));
    SHOW(recvmsg(fd, &message, compat));
    struct mmsghdr many = {.msg_hdr = message};
    SHOW(recvmmsg(fd, &many, 1, compat, NULL));
    long got = SHOW(recv(fd, in, 10, MSG_DONTWAIT));
    say_bytes("rest", in, got);
    SHOW(recv(fd, in, 10, MSG_DONTWAIT | MSG_MORE));
    tell(side);
}
static void ignored(void) { two_processes(AF_INET, ignored_a, ten_bytes); }

/* Receives of nothing: read, readv and preadv2 do not ask, the others wait once for something and take nothing. */
static void nothing_calls(int fd) {
    struct iovec none[] = {{in, 0}, {in, 0}};
    struct msghdr message = {.msg_iov = none, .msg_iovlen = 2}, empty = {0};
    SHOW(read(fd, in, 0));
    SHOW(readv(fd, none, 2));
    SHOW(readv(fd, none, 0));
    SHOW(preadv2(fd, none, 2, -1, 0));
    SHOW(preadv2(fd, none, 0, -1, 0));
    SHOW(preadv2(fd, none, 2, -1, RWF_NOWAIT));
    SHOW(recv(fd, in, 0, MSG_DONTWAIT));
    SHOW(recv(fd, in, 0, MSG_DONTWAIT | MSG_PEEK));
    SHOW(recv(fd, in, 0, MSG_DONTWAIT | MSG_WAITALL));
    SHOW(recvmsg(fd, &message, MSG_DONTWAIT));
    SHOW(recvmsg(fd, &empty, MSG_DONTWAIT));
}
static void nothing_a(struct side *side) {
    struct timeval timeout = {0, 50000}, none = {0, 0};
    struct sigaction action = {.sa_handler = handle};
    int fd = side->fd;
    nothing_calls(fd);
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)));
    SHOW(recv(fd, in, 0, 0));
    SHOW(recv(fd, in, 0, MSG_PEEK | MSG_WAITALL));
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof(none)));
    sigaction(SIGUSR1, &action, NULL);
    tell(side);
    SHOW(recv(fd, in, 0, 0)); /* a signal */
    tell(side);
    SHOW(recv(fd, in, 0, 0)); /* bytes */
    await_bytes(fd, 10);
    nothing_calls(fd);
    SHOW(recv(fd, in, 10, 0));
    tell(side);
    hear(side);
    await_events(fd, POLLRDHUP);
    nothing_calls(fd);
    SHOW(recv(fd, in, 0, 0));
}
static void nothing_b(struct side *side) {
    hear(side);
    await_asleep(side->other);
    kill(side->other, SIGUSR1);
    hear(side);
    await_asleep(side->other);
    send_all(side->fd, "0123456789", 10);
    hear(side);
    shutdown(side->fd, SHUT_WR);
    tell(side);
}
static void nothing(void) { two_processes(AF_INET, nothing_a, nothing_b); }

/* Urgent data: the mark, the byte out of line, and the stream around it. */
static void urgent_a(struct side *side) {
    int fd = side->fd;
    SHOW(send(fd, "before", 6, 0));
    SHOW(send(fd, "!", 1, MSG_OOB));
    SHOW(send(fd, "after", 5, 0));
    tell(side);
    hear(side);
}
static void urgent_b(struct side *side) {
    int fd = side->fd;
    hear(side);
    await_events(fd, POLLPRI);
    await_bytes(fd, 6);
    SHOW(recv(fd, in, 100, 0));
    say_bytes("before the mark", in, 6);
    SHOW(recv(fd, in, 1, MSG_OOB));
    say("urgent %c", in[0]);
    long got = (long)receive_all(fd, in, 5);
    say_bytes("after the mark", in, got);
    SHOW(recv(fd, in, 1, MSG_DONTWAIT));
    tell(side);
}
static void urgent(void) { two_processes(AF_INET, urgent_a, urgent_b); }

const struct scenario scenarios[] = {
    {"peek", peek, 0},
    {"peek-threads", peek_threads, 0},
    {"whole", whole, 0},
    {"whole-timeout", whole_timeout, 0},
    {"whole-slowly", whole_slowly, 0},
    {"peek-across", peek_across, 0},
    {"whole-peek", whole_peek, 0},
    {"discard", discard, 0},
    {"mixed", mixed, 0},
    {"sending", sending, 0},
    {"held-back", held_back, 0},
    {"held-alone", held_alone, 0},
    {"receiving", receiving, 0},
    {"ignored", ignored, 0},
    {"nothing", nothing, 0},
    {"urgent", urgent, 0},
    {0},
};
