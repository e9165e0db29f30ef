/* Bad pointers, bad descriptors, sockets in the wrong state. */
#include "harness.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>

static char in[KIB];
static char *volatile nowhere = (char *)8;

/* EFAULT takes nothing from the stream and puts nothing into it. */
static void pointers_a(struct side *side) {
    int fd = side->fd;
    struct iovec bad = {nowhere, 10}, partly[] = {{in, 4}, {nowhere, 10}};
    struct msghdr message = {.msg_iov = &bad, .msg_iovlen = 1};
    hear(side);
    await_bytes(fd, 10);
    SHOW(read(fd, nowhere, 10));
    SHOW(recv(fd, nowhere, 10, 0));
    SHOW(recv(fd, nowhere, 10, MSG_PEEK));
    SHOW(recv(fd, (void *)-1, 10, 0));
    SHOW(recv(fd, (char *)(1UL << 60), 10, MSG_DONTWAIT));
    SHOW(read(fd, (char *)(1UL << 60), 10));
    SHOW(readv(fd, &bad, 1));
    SHOW(recvmsg(fd, &message, 0));
    SHOW(readv(fd, (struct iovec *)nowhere, 1));
    SHOW(recvmsg(fd, (struct msghdr *)nowhere, 0));
    SHOW(recvmmsg(fd, (struct mmsghdr *)nowhere, 1, 0, NULL));
    SHOW(recv(fd, nowhere, 0, 0));
    SHOW(read(fd, nowhere, 0));
    SHOW(write(fd, nowhere, 10));
    SHOW(send(fd, nowhere, 10, 0));
    SHOW(sendto(fd, nowhere, 10, MSG_DONTWAIT, NULL, 0));
    SHOW(writev(fd, &bad, 1));
    SHOW(sendmsg(fd, &message, 0));
    SHOW(writev(fd, (struct iovec *)nowhere, 1));
    SHOW(sendmsg(fd, (struct msghdr *)nowhere, 0));
    SHOW(sendmmsg(fd, (struct mmsghdr *)nowhere, 1, 0));
    SHOW(send(fd, nowhere, 0, 0));
    SHOW(ioctl(fd, FIONREAD, nowhere));
    SHOW(poll((struct pollfd *)nowhere, 1, 0));
    SHOW(select(fd + 1, (fd_set *)nowhere, NULL, NULL, NULL));
    SHOW(sendfile(fd, fd, (off_t *)nowhere, 1));
    SHOW(recv(fd, in, 100, 0));
    say_bytes("still there", in, 10);
    SHOW(recv(fd, nowhere, 10, MSG_DONTWAIT));
    SHOW(send(fd, (void *)-1, 10, 0));
    SHOW(writev(fd, partly, 2));
    tell(side);
    hear(side);
    await_bytes(fd, 3);
    SHOW(readv(fd, partly, 2));
    tell(side);
    hear(side);
    await_bytes(fd, 5);
    SHOW(readv(fd, partly, 2));
    SHOW(recv(fd, in, 100, 0));
}
static void pointers_b(struct side *side) {
    send_all(side->fd, "0123456789", 10);
    tell(side);
    hear(side);
    send_all(side->fd, "abc", 3);
    tell(side);
    hear(side);
    send_all(side->fd, "abcde", 5);
    shutdown(side->fd, SHUT_WR);
    tell(side);
    SHOW(recv(side->fd, in, 100, 0));
}
static void pointers(void) { two_processes(AF_INET, pointers_a, pointers_b); }
static void pointers_threads(void) { two_threads(AF_INET, pointers_a, pointers_b); }

/* Memory that is there and may not be written to. */
static void read_only_a(struct side *side) {
    char *read_only = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    hear(side);
    await_bytes(side->fd, 10);
    SHOW(recv(side->fd, read_only, 10, 0));
    SHOW(recv(side->fd, in, 100, 0));
    say_bytes("still there", in, 10);
    SHOW(send(side->fd, read_only, 10, 0));
    tell(side);
}
static void read_only_b(struct side *side) {
    send_all(side->fd, "0123456789", 10);
    tell(side);
    hear(side);
    SHOW(recv(side->fd, in, 100, 0));
    say_bytes("zeros", in, 10);
}
static void read_only(void) { two_processes(AF_INET, read_only_a, read_only_b); }

/* Lengths and counts at and beyond what the kernel takes. */
static volatile size_t longest = SIZE_MAX, too_long = (size_t)1 << 50;
static volatile int minus_one = -1;
static char *volatile room = in; /* of which the compiler knows no size */
static struct iovec parts[1025];
static struct mmsghdr messages[2000];
static void limits_a(struct side *side) {
    int fd = side->fd;
    struct sockaddr_storage name;
    struct iovec negative = {in, (size_t)-1}, sum[] = {{in, (size_t)1 << 62}, {in, (size_t)1 << 62}, {in, 0}};
    struct iovec large[] = {{in, (size_t)1 << 40}, {in, (size_t)1 << 40}}, one = {in, 1};
    struct msghdr message = {.msg_iov = &negative, .msg_iovlen = 1};
    socklen_t size = (socklen_t)-1;
    for (size_t i = 0; i < COUNT(parts); i++) parts[i] = one;
    for (size_t i = 0; i < COUNT(messages); i++)
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &one, .msg_iovlen = 1};
    hear(side);
    await_bytes(fd, 2000);
    SHOW(readv(fd, &negative, 1));
    SHOW(writev(fd, &negative, 1));
    SHOW(recvmsg(fd, &message, 0));
    SHOW(sendmsg(fd, &message, 0));
    SHOW(readv(fd, sum, 2));
    SHOW(writev(fd, sum, 2));
    message = (struct msghdr){.msg_iov = sum, .msg_iovlen = 2};
    SHOW(recvmsg(fd, &message, MSG_DONTWAIT));
    SHOW(sendmsg(fd, &message, 0));
    SHOW(readv(fd, parts, 1025));
    SHOW(readv(fd, parts, minus_one));
    SHOW(writev(fd, parts, 1025));
    SHOW(writev(fd, parts, minus_one));
    message = (struct msghdr){.msg_iov = parts, .msg_iovlen = 1025};
    SHOW(recvmsg(fd, &message, 0));
    SHOW(sendmsg(fd, &message, 0));
    message.msg_iovlen = (size_t)-1;
    SHOW(recvmsg(fd, &message, 0));
    SHOW(sendmsg(fd, &message, 0));
    SHOW(read(fd, room, longest));
    SHOW(read(fd, room, longest / 2));
    SHOW(read(fd, room, too_long));
    SHOW(readv(fd, sum + 1, 2));
    SHOW(write(fd, room, longest));
    message = (struct msghdr){.msg_iov = &one, .msg_iovlen = 1, .msg_name = &name, .msg_namelen = (socklen_t)-1};
    SHOW(recvmsg(fd, &message, 0));
    SHOW(sendmsg(fd, &message, 0));
    message.msg_name = nowhere;
    message.msg_namelen = 16;
    SHOW(sendmsg(fd, &message, 0));
    SHOW(sendto(fd, in, 1, 0, (struct sockaddr *)&name, 200));
    SHOW(sendto(fd, in, 1, 0, (struct sockaddr *)&name, (socklen_t)-1));
    SHOW(sendto(fd, in, 1, 0, (struct sockaddr *)nowhere, 16));
    say("what moves");
    fill(in, sizeof(in), 1, 0);
    SHOW(sendto(fd, in, 1, 0, NULL, 200));
    SHOW(sendto(fd, in, 1, 0, (struct sockaddr *)nowhere, 0));
    message = (struct msghdr){.msg_iov = &one, .msg_iovlen = 1, .msg_namelen = 77};
    SHOW(sendmsg(fd, &message, 0));
    SHOW(sendmmsg(fd, messages, 2000, 0));
    SHOW(recvmsg(fd, &message, 0));
    say("name of %u", message.msg_namelen);
    message.msg_name = &name;
    SHOW(recvmsg(fd, &message, 0));
    say("name of %u", message.msg_namelen);
    SHOW(recvfrom(fd, in, 2, 0, (struct sockaddr *)&name, NULL));
    SHOW(recvfrom(fd, in, 2, 0, (struct sockaddr *)&name, &size));
    SHOW(recvfrom(fd, in, 2, 0, NULL, &size));
    say("size %d", (int)size);
    SHOW(recvmmsg(fd, messages, 2000, MSG_DONTWAIT, NULL));
    tell(side);
    hear(side);
    await_bytes(fd, 10);
    SHOW(recv(fd, NULL, 4, MSG_TRUNC));
    SHOW(recv(fd, room, longest, 0));
    tell(side);
    hear(side);
    await_bytes(fd, 10);
    SHOW(readv(fd, large, 2));
    tell(side);
}
static void limits_b(struct side *side) {
    static char bytes[2000];
    send_all(side->fd, bytes, sizeof(bytes));
    for (int i = 0; i < 2; i++) {
        tell(side);
        hear(side);
        send_all(side->fd, bytes, 10);
    }
    tell(side);
    hear(side);
    shutdown(side->fd, SHUT_WR);
    await_bytes(side->fd, 1027);
    SHOW(recv(side->fd, bytes, sizeof(bytes), 0));
}
static void limits(void) { two_processes(AF_INET, limits_a, limits_b); }

/* Calls on descriptors that are no connections are left to the kernel, with any pointers. */
static void foreign(void) {
    int ends[2], sockets[2];
    struct iovec *gone = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(pipe(ends));
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
    MUST(write(ends[1], "0123456789", 10));
    MUST(write(sockets[1], "0123456789", 10));
    SHOW(read(ends[0], gone, 10));
    SHOW(readv(ends[0], gone, 1));
    SHOW(write(ends[1], gone, 10));
    SHOW(writev(ends[1], gone, 1));
    SHOW(recv(sockets[0], gone, 10, 0));
    SHOW(recvmsg(sockets[0], (struct msghdr *)gone, 0));
    SHOW(recvmmsg(sockets[0], (struct mmsghdr *)gone, 1, 0, NULL));
    SHOW(recvmmsg(sockets[0], (struct mmsghdr *)gone, 1, 0, (struct timespec *)gone));
    SHOW(send(sockets[0], gone, 10, 0));
    SHOW(sendmsg(sockets[0], (struct msghdr *)nowhere, 0));
    SHOW(sendmmsg(sockets[0], (struct mmsghdr *)gone, 1, 0));
    SHOW(readv(-1, gone, 1));
    SHOW(recvmsg(-1, (struct msghdr *)gone, 0));
}

/* A bad pointer is not looked at before there is something to copy. */
static void lazy_a(struct side *side) {
    int fd = side->fd;
    SHOW(recv(fd, nowhere, 10, MSG_DONTWAIT));
    tell(side);
    hear(side);
    await_events(fd, POLLRDHUP);
    SHOW(recv(fd, nowhere, 10, 0));
    SHOW(read(fd, nowhere, 10));
}
static void lazy_b(struct side *side) {
    hear(side);
    shutdown(side->fd, SHUT_WR);
    tell(side);
}
static void lazy(void) { two_processes(AF_INET, lazy_a, lazy_b); }

/* Every call on a descriptor that is no connection; it must not block. `set` is an epoll descriptor. */
static void every_call(int fd, int set) {
    struct iovec part = {in, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct mmsghdr many = {.msg_hdr = message};
    struct epoll_event event = {.events = EPOLLIN};
    int value = 0;
    socklen_t size = sizeof(value);
    struct sockaddr_storage address;
    socklen_t length = sizeof(address);
    SHOW(read(fd, in, 1));
    SHOW(write(fd, in, 1));
    SHOW(readv(fd, &part, 1));
    SHOW(writev(fd, &part, 1));
    SHOW(preadv2(fd, &part, 1, -1, 0));
    SHOW(pwritev2(fd, &part, 1, -1, 0));
    SHOW(recv(fd, in, 1, MSG_DONTWAIT));
    SHOW(send(fd, in, 1, MSG_NOSIGNAL));
    SHOW(recvfrom(fd, in, 1, MSG_DONTWAIT, NULL, NULL));
    SHOW(sendto(fd, in, 1, MSG_NOSIGNAL, NULL, 0));
    SHOW(recvmsg(fd, &message, MSG_DONTWAIT));
    SHOW(sendmsg(fd, &message, MSG_NOSIGNAL));
    SHOW(recvmmsg(fd, &many, 1, MSG_DONTWAIT, NULL));
    SHOW(sendmmsg(fd, &many, 1, MSG_NOSIGNAL));
    SHOW(shutdown(fd, SHUT_WR));
    SHOW(getsockopt(fd, SOL_SOCKET, SO_ERROR, &value, &size));
    SHOW(setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, size));
    SHOW(getpeername(fd, (struct sockaddr *)&address, &length));
    SHOW(getsockname(fd, (struct sockaddr *)&address, &length));
    SHOW(accept4(fd, NULL, NULL, SOCK_NONBLOCK));
    SHOW(listen(fd, 1));
    SHOW(fcntl(fd, F_GETFL) >= 0);
    SHOW(ioctl(fd, FIONREAD, &value));
    SHOW(dup2(fd, fd) == fd);
    SHOW(dup3(fd, fd, 0));
    SHOW(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, &event));
    struct pollfd ready = {fd, POLLIN, 0};
    SHOW(poll(&ready, 1, 0));
    say("events %x", ready.revents);
}

/* Never opened, just closed (and known to the library until then), negative, far too large. */
static void closed_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0));
    close(side->fd);
    every_call(side->fd, set);
    SHOW(close(side->fd));
    every_call(-1, set);
    SHOW(close(-1));
    every_call(987654321, set);
    hear(side);
}
static void closed_b(struct side *side) {
    SHOW(recv(side->fd, in, 1, 0));
    tell(side);
}
static void closed(void) { two_processes(AF_INET, closed_a, closed_b); }

/* The number of a closed connection goes to a pipe, a file, a Unix socket: theirs are the answers. */
static void reused_a(struct side *side) {
    int fd = side->fd, pipes[2];
    int set = (int)MUST(epoll_create1(0));
    close(fd);
    MUST(pipe(pipes));
    say("same number: %d", pipes[0] == fd);
    SHOW(recv(pipes[0], in, 1, 0));
    MUST(write(pipes[1], "pipe", 4));
    SHOW(read(pipes[0], in, 100));
    say_bytes("pipe", in, 4);
    close(pipes[0]);
    close(pipes[1]);
    int memory = memfd_create("reused", 0);
    say("same number: %d", memory == fd);
    SHOW(write(memory, "memory", 6));
    SHOW(pread(memory, in, 100, 0));
    SHOW(send(memory, "x", 1, 0));
    close(memory);
    MUST(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, pipes));
    say("same number: %d", pipes[0] == fd);
    SHOW(send(pipes[0], "packet", 6, 0));
    SHOW(recv(pipes[1], in, 3, MSG_TRUNC));
    set_nonblocking(pipes[0], true);
    every_call(pipes[0], set);
    hear(side);
}
static void reused(void) { two_processes(AF_INET, reused_a, closed_b); }

/* Sockets that are not connected. */
static void unconnected(void) {
    struct sockaddr_storage address;
    signal(SIGPIPE, SIG_IGN);
    int set = (int)MUST(epoll_create1(0));
    int listener = listen_on(AF_INET, &address);
    say("listener");
    set_nonblocking(listener, true);
    every_call(listener, set);
    say("fresh");
    every_call((int)MUST(socket(AF_INET6, SOCK_STREAM | SOCK_NONBLOCK, 0)), set);
    say("datagram");
    every_call((int)MUST(socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0)), set);
    int refused = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    close(listener);
    say("refused");
    SHOW(connect(refused, (struct sockaddr *)&address, address_size(&address)));
    set_nonblocking(refused, true);
    every_call(refused, set);
}

const struct scenario scenarios[] = {
    {"pointers", pointers, 0},
    {"pointers-threads", pointers_threads, 0},
    {"read-only", read_only, 0},
    {"limits", limits, 0},
    {"foreign", foreign, true},
    {"lazy", lazy, 0},
    {"closed", closed, 0},
    {"reused", reused, 0},
    {"unconnected", unconnected, true},
    {0},
};
