/* Every call that moves bytes, in its plain form: values, positions, zero lengths, gather and scatter. */
#include "harness.h"

#include <limits.h>

static char out[64 * KIB], in[64 * KIB];

/* Lets the other side send `count` bytes and shows them whole. */
static void show_received(struct side *side, const char *what, long count) {
    long got = (long)receive_all(side->fd, in, (size_t)count);
    say_bytes(what, in, got);
}

static void send_forms(struct side *side) {
    int fd = side->fd;
    fill(out, sizeof(out), 1, 0);
    SHOW(write(fd, out, 100));
    SHOW(send(fd, out + 100, 200, 0));
    SHOW(sendto(fd, out + 300, 300, 0, NULL, 0));
    struct iovec parts[] = {{out + 600, 10}, {out + 610, 0}, {out + 610, 90}, {out + 700, 300}};
    SHOW(writev(fd, parts, 4));
    struct iovec more[] = {{out + 1000, 500}, {out + 1500, 1}};
    SHOW(pwritev2(fd, more, 2, -1, 0));
    struct iovec last[] = {{out + 1501, 99}, {out + 1600, 400}};
    struct msghdr message = {.msg_iov = last, .msg_iovlen = 2};
    SHOW(sendmsg(fd, &message, 0));
    struct iovec each[] = {{out + 2000, 50}, {out + 2050, 1000}, {out + 3050, 46}};
    struct mmsghdr many[3] = {0};
    for (int i = 0; i < 3; i++) many[i].msg_hdr = (struct msghdr){.msg_iov = &each[i], .msg_iovlen = 1};
    SHOW(sendmmsg(fd, many, 3, 0));
    for (int i = 0; i < 3; i++) say("part %d: %u bytes", i, many[i].msg_len);
    hear(side);
}
static void receive_once(struct side *side) {
    show_received(side, "all forms", 3096);
    say("first difference %ld", differs(in, 3096, 1, 0));
    tell(side);
}
static void sends(void) { two_processes(AF_INET, send_forms, receive_once); }
static void sends_v6(void) { two_processes(AF_INET6, send_forms, receive_once); }
static void sends_threads(void) { two_threads(AF_INET, send_forms, receive_once); }

static void receive_forms(struct side *side) {
    int fd = side->fd;
    hear(side);
    await_bytes(fd, 3000);
    memset(in, 0, sizeof(in));
    SHOW(read(fd, in, 100));
    SHOW(recv(fd, in + 100, 200, 0));
    struct sockaddr_storage from;
    socklen_t size = sizeof(from);
    SHOW(recvfrom(fd, in + 300, 300, 0, (struct sockaddr *)&from, &size));
    say("address of %u bytes", size);
    struct iovec parts[] = {{in + 600, 10}, {in + 610, 0}, {in + 610, 90}, {in + 700, 300}};
    SHOW(readv(fd, parts, 4));
    struct iovec more[] = {{in + 1000, 500}, {in + 1500, 1}};
    SHOW(preadv2(fd, more, 2, -1, 0));
    char control[64];
    struct iovec last[] = {{in + 1501, 99}, {in + 1600, 400}};
    struct msghdr message = {.msg_name = &from, .msg_namelen = sizeof(from), .msg_iov = last, .msg_iovlen = 2,
                             .msg_control = control, .msg_controllen = sizeof(control), .msg_flags = -1};
    SHOW(recvmsg(fd, &message, 0));
    say("name %u, control %zu, flags %x", message.msg_namelen, message.msg_controllen, message.msg_flags);
    struct iovec each[] = {{in + 2000, 50}, {in + 2050, 900}, {in + 2950, 46}};
    struct mmsghdr many[3] = {0};
    for (int i = 0; i < 3; i++) many[i].msg_hdr = (struct msghdr){.msg_iov = &each[i], .msg_iovlen = 1};
    SHOW(recvmmsg(fd, many, 3, 0, NULL));
    for (int i = 0; i < 3; i++) say("part %d: %u bytes", i, many[i].msg_len);
    SHOW(recv(fd, in + 2996, 100, 0));
    say_bytes("all forms", in, 3000);
    say("first difference %ld", differs(in, 3000, 2, 0));
}
static void send_once(struct side *side) {
    fill(out, 3000, 2, 0);
    SHOW(send(side->fd, out, 3000, 0));
    tell(side);
}
static void receives(void) { two_processes(AF_INET, receive_forms, send_once); }
static void receives_v6(void) { two_processes(AF_INET6, receive_forms, send_once); }
static void receives_threads(void) { two_threads(AF_INET, receive_forms, send_once); }

/* A read takes what is there and no more; the rest stays in order. */
static void read_little(struct side *side) {
    hear(side);
    await_bytes(side->fd, 1000);
    SHOW(recv(side->fd, in, 1, 0));
    SHOW(recv(side->fd, in + 1, 7, 0));
    SHOW(read(side->fd, in + 8, 500));
    SHOW(read(side->fd, in + 508, 5000));
    say_bytes("partial reads", in, 1000);
    tell(side);
    hear(side);
    await_bytes(side->fd, 30);
    SHOW(read(side->fd, in, 5000));
    say_bytes("joined messages", in, 30);
}
static void write_little(struct side *side) {
    fill(out, 1000, 3, 0);
    send_all(side->fd, out, 1000);
    tell(side);
    hear(side);
    for (int i = 0; i < 3; i++) SHOW(write(side->fd, out + 10 * i, 10));
    tell(side);
}
static void partial(void) { two_processes(AF_INET, read_little, write_little); }

/* Nothing to move: no byte is taken or sent, nothing blocks, no end-of-file is made. */
static void zero_a(struct side *side) {
    int fd = side->fd;
    struct iovec nothing[] = {{out, 0}, {NULL, 0}};
    struct msghdr message = {.msg_iov = nothing, .msg_iovlen = 2}, bare = {0};
    SHOW(write(fd, out, 0));
    SHOW(send(fd, out, 0, 0));
    SHOW(send(fd, NULL, 0, 0));
    SHOW(writev(fd, nothing, 2));
    SHOW(writev(fd, nothing, 0));
    SHOW(sendmsg(fd, &message, 0));
    SHOW(sendmsg(fd, &bare, 0));
    SHOW(sendmmsg(fd, NULL, 0, 0));
    SHOW(read(fd, in, 0));
    SHOW(readv(fd, nothing, 2));
    SHOW(readv(fd, nothing, 0));
    SHOW(recv(fd, in, 0, MSG_DONTWAIT));
    SHOW(recvmsg(fd, &message, MSG_DONTWAIT));
    SHOW(recvmmsg(fd, NULL, 0, 0, NULL));
    tell(side);
    hear(side);
    await_bytes(fd, 5);
    SHOW(read(fd, in, 0));
    SHOW(recv(fd, in, 0, 0));
    SHOW(readv(fd, nothing, 2));
    SHOW(recvmsg(fd, &message, 0));
    SHOW(recv(fd, in, 10, 0));
    say_bytes("after zero reads", in, 5);
    hear(side);
    await_events(fd, POLLRDHUP);
    SHOW(read(fd, in, 0));
    SHOW(recv(fd, in, 0, 0));
    SHOW(recv(fd, in, 10, 0));
    SHOW(recv(fd, in, 0, 0));
}
static void zero_b(struct side *side) {
    hear(side);
    SHOW(recv(side->fd, in, 10, MSG_DONTWAIT));
    send_all(side->fd, "hello", 5);
    tell(side);
    shutdown(side->fd, SHUT_WR);
    tell(side);
}
static void zero(void) { two_processes(AF_INET, zero_a, zero_b); }

static volatile int negative = -1;

/* As many parts as there may be, and one more. */
static void many_a(struct side *side) {
    static struct iovec parts[IOV_MAX + 1];
    fill(out, sizeof(out), 4, 0);
    for (int i = 0; i <= IOV_MAX; i++) parts[i] = (struct iovec){out + i * 16, (size_t)(i % 17)};
    for (int i = 0, at = 0; i < IOV_MAX; at += (int)parts[i].iov_len, i++) parts[i].iov_base = out + at;
    SHOW(writev(side->fd, parts, IOV_MAX));
    SHOW(writev(side->fd, parts, IOV_MAX + 1));
    SHOW(writev(side->fd, parts, negative));
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = IOV_MAX};
    SHOW(sendmsg(side->fd, &message, 0));
    message.msg_iovlen = IOV_MAX + 1;
    SHOW(sendmsg(side->fd, &message, 0));
    hear(side);
}
static void many_b(struct side *side) {
    static struct iovec parts[IOV_MAX + 1];
    for (int i = 0; i <= IOV_MAX; i++) parts[i] = (struct iovec){in + i * 8, 8};
    await_bytes(side->fd, 16332);
    SHOW(readv(side->fd, parts, IOV_MAX + 1));
    SHOW(readv(side->fd, parts, negative));
    long first = SHOW(readv(side->fd, parts, IOV_MAX));
    say_bytes("first", in, first);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = IOV_MAX + 1};
    SHOW(recvmsg(side->fd, &message, 0));
    message.msg_iovlen = IOV_MAX;
    long second = SHOW(recvmsg(side->fd, &message, 0));
    say_bytes("second", in, second);
    tell(side);
}
static void many_parts(void) { two_processes(AF_INET, many_a, many_b); }

/* Calls that a stream socket refuses, and requests longer than any buffer. */
static void refused_a(struct side *side) {
    int fd = side->fd;
    volatile size_t endless = SIZE_MAX;
    char *volatile unsized = in; /* so that no fortified alias stops the call */
    struct iovec part = {in, 10};
    hear(side);
    await_bytes(fd, 10);
    SHOW(pread(fd, in, 10, 0));
    SHOW(pwrite(fd, out, 10, 0));
    SHOW(preadv(fd, &part, 1, 0));
    SHOW(pwritev(fd, &part, 1, 0));
    SHOW(preadv2(fd, &part, 1, 0, 0));
    SHOW(pwritev2(fd, &part, 1, 0, 0));
    SHOW(preadv2(fd, &part, 1, -1, 0x4000));
    SHOW(lseek(fd, 0, SEEK_CUR));
    SHOW(ftruncate(fd, 0));
    SHOW(fsync(fd));
    SHOW(read(fd, unsized, endless));
    SHOW(recv(fd, unsized, endless, MSG_PEEK));
    struct iovec wrong[] = {{in, 1}, {in, endless}};
    SHOW(readv(fd, wrong, 2));
    SHOW(writev(fd, wrong, 2));
    SHOW(recv(fd, in, 10, 0));
    say_bytes("still there", in, 10);
}
static void refused_b(struct side *side) {
    send_all(side->fd, "0123456789", 10);
    tell(side);
}
static void refused(void) { two_processes(AF_INET, refused_a, refused_b); }

/* An address given with a send on a connection is left unread; a timeout of recvmmsg is honoured between messages. */
static void mmsg_a(struct side *side) {
    int fd = side->fd;
    struct sockaddr_in elsewhere = {.sin_family = AF_INET, .sin_port = htons(9)};
    SHOW(sendto(fd, "abc", 3, 0, (struct sockaddr *)&elsewhere, sizeof(elsewhere)));
    struct iovec part = {"def", 3};
    struct msghdr message = {
        .msg_name = &elsewhere, .msg_namelen = sizeof(elsewhere), .msg_iov = &part, .msg_iovlen = 1};
    SHOW(sendmsg(fd, &message, 0));
    tell(side);
    hear(side);
    await_bytes(fd, 10);
    struct iovec each[] = {{in, 5}, {in + 5, 5}, {in + 10, 5}};
    struct mmsghdr many[3] = {0};
    for (int i = 0; i < 3; i++) many[i].msg_hdr = (struct msghdr){.msg_iov = &each[i], .msg_iovlen = 1};
    struct timespec forever = {100, 0}, wrong = {0, 2000000000};
    SHOW(recvmmsg(fd, many, 3, 0, &wrong));
    SHOW(recvmmsg(fd, many, 2, 0, &forever));
    say("%u and %u bytes", many[0].msg_len, many[1].msg_len);
    SHOW(recvmmsg(fd, many, 3, MSG_DONTWAIT, NULL));
    tell(side);
    hear(side);
    await_bytes(fd, 10);
    SHOW(recvmmsg(fd, many, 3, MSG_DONTWAIT, NULL));
    tell(side);
    SHOW(recvmmsg(fd, many, 3, MSG_WAITFORONE, NULL));
    say_bytes("last", in, 1);
    tell(side);
}
static void mmsg_b(struct side *side) {
    hear(side);
    show_received(side, "ignored address", 6);
    for (int turns = 0; turns < 2; turns++) {
        send_all(side->fd, "0123456789", 10);
        tell(side);
        hear(side);
    }
    send_all(side->fd, "X", 1);
    hear(side);
}
static void messages(void) { two_processes(AF_INET, mmsg_a, mmsg_b); }

/* The error of a connection that was reset comes before what is left to read, and once. */
static void mmsg_error_a(struct side *side) {
    int fd = side->fd;
    struct iovec each[] = {{in, 5}, {in + 5, 5}};
    struct mmsghdr many[2] = {0};
    for (int i = 0; i < 2; i++) many[i].msg_hdr = (struct msghdr){.msg_iov = &each[i], .msg_iovlen = 1};
    send_all(fd, "left unread", 11);
    await_bytes(fd, 12);
    tell(side);
    await_events(fd, POLLHUP);
    for (int i = 0; i < 4; i++) {
        SHOW(recvmmsg(fd, many, 2, MSG_WAITFORONE, NULL));
        say("%u and %u bytes", many[0].msg_len, many[1].msg_len);
    }
}
static void mmsg_error_b(struct side *side) {
    await_bytes(side->fd, 11);
    send_all(side->fd, "0123456789ab", 12);
    hear(side);
    close(side->fd);
}
static void messages_reset(void) { two_processes(AF_INET, mmsg_error_a, mmsg_error_b); }

/* A call that succeeds leaves errno as it was. Fails if recvmmsg leaves out `errno::set(before);`
 * (crates/preload/src/calls/receive.rs). */
static void untouched_a(struct side *side) {
    struct iovec parts[2] = {{in, 100}, {in + 100, 100}};
    struct mmsghdr many[2] = {0};
    for (int i = 0; i < 2; i++) many[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    await_bytes(side->fd, 11);
    errno = ERANGE;
    long received = recvmmsg(side->fd, many, 2, MSG_DONTWAIT, NULL);
    say("recvmmsg %ld, %s", received, error_name(errno));
    errno = ERANGE;
    long sent = send(side->fd, out, 100, 0);
    say("send %ld, %s", sent, error_name(errno));
    hear(side);
    errno = ERANGE;
    received = recv(side->fd, in, 7, 0);
    say("recv %ld, %s", received, error_name(errno));
}
static void untouched_b(struct side *side) {
    send_all(side->fd, out, 11);
    SHOW(receive_all(side->fd, in, 100));
    send_all(side->fd, out, 7);
    tell(side);
}
static void untouched(void) { two_processes(AF_INET, untouched_a, untouched_b); }

const struct scenario scenarios[] = {
    {"sends", sends, 0},
    {"sends-v6", sends_v6, 0},
    {"sends-threads", sends_threads, 0},
    {"receives", receives, 0},
    {"receives-v6", receives_v6, 0},
    {"receives-threads", receives_threads, 0},
    {"partial", partial, 0},
    {"zero", zero, 0},
    {"many-parts", many_parts, 0},
    {"refused", refused, 0},
    {"messages", messages, 0},
    {"messages-reset", messages_reset, 0},
    {"untouched", untouched, 0},
    {0},
};
