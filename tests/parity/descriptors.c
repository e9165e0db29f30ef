/* Descriptors as names of one connection: duplicates, closing, reuse, and what ioctl and fcntl say. */
#include "harness.h"

#include <linux/sockios.h>
#include <sys/mman.h>
#include <sys/stat.h>

static _Thread_local char in[64 * KIB], out[64 * KIB];

/* The connection lives as long as one of its names does. */
static void names_a(struct side *side) {
    int fd = side->fd;
    int plain = (int)MUST(dup(fd));
    int second = (int)MUST(dup2(fd, 200)), third = (int)MUST(dup3(fd, 201, O_CLOEXEC));
    int low = (int)MUST(fcntl(fd, F_DUPFD, 300)), cloexec = (int)MUST(fcntl(fd, F_DUPFD_CLOEXEC, 300));
    say("numbers %d %d %d %d", second, third, low, cloexec);
    say("close on exec %d %d %d %d", fcntl(second, F_GETFD), fcntl(third, F_GETFD), fcntl(low, F_GETFD),
        fcntl(cloexec, F_GETFD));
    SHOW(dup2(fd, fd) == fd);
    SHOW(dup3(fd, fd, 0));
    SHOW(dup3(fd, 210, O_APPEND));
    SHOW(dup2(fd, -1));
    SHOW(dup2(999, 210));
    int order[] = {plain, fd, second, third, low, cloexec};
    for (size_t i = 0; i < COUNT(order); i++) {
        hear(side);
        await_bytes(order[i], 3);
        SHOW(recv(order[i], in, 2, 0));
        SHOW(recv(order[i + 1 < COUNT(order) ? i + 1 : i], in + 2, 100, 0));
        say_bytes("joined", in, 3);
        SHOW(send(order[i], "ok", 2, 0));
        SHOW(close(order[i]));
        SHOW(recv(order[i], in, 1, MSG_DONTWAIT));
        tell(side);
    }
}
static void names_b(struct side *side) {
    for (int left = 5; left >= 0; left--) {
        send_all(side->fd, "abc", 3);
        tell(side);
        hear(side);
        SHOW(recv(side->fd, in, 100, 0));
        SHOW(recv(side->fd, in, 1, left > 0 ? MSG_DONTWAIT : 0));
    }
}
static void names(void) { two_processes(AF_INET, names_a, names_b); }

/* dup2 over a connection ends it as close does; dup2 of one over the other swaps what a number means. */
static void over_a(struct side *side) {
    int one = side->fd, two = another(side), three = another(side);
    int file = (int)MUST(memfd_create("file", 0));
    SHOW(dup2(one, two) == two);
    SHOW(send(two, "via two", 7, 0));
    SHOW(dup3(file, three, 0) == three);
    SHOW(write(three, "file", 4));
    SHOW(send(three, "x", 1, 0));
    SHOW(dup2(two, three) == three);
    SHOW(send(three, "via three", 9, 0));
    hear(side);
    SHOW(close(one));
    SHOW(close(two));
    SHOW(recv(three, in, 5, MSG_WAITALL));
    SHOW(close(three));
}
static void over_b(struct side *side) {
    int one = side->fd, two = another(side), three = another(side);
    SHOW(recv(two, in, 1, 0));
    SHOW(recv(three, in, 1, 0));
    long got = (long)receive_all(one, in, 16);
    say_bytes("one", in, got);
    SHOW(recv(one, in, 1, MSG_DONTWAIT));
    tell(side);
    send_all(one, "still", 5);
    SHOW(recv(one, in, 1, 0));
}
static void over(void) { two_processes(AF_INET, over_a, over_b); }

/* A number that is closed and taken by the next connection at once, many times over. */
static void reuse_a(struct side *side) {
    int number = side->fd;
    for (unsigned char i = 0; i < 60; i++) {
        int fd = (int)MUST(accept(side->listener, NULL, NULL));
        if (i > 0 && side->peer != 0 && fd != number) fail("another number");
        number = fd;
        for (int turns = 0; turns < i % 13; turns++) {
            if (receive_all(fd, in, 100) != 100 || differs(in, 100, i, 0) != -1) fail("stale bytes");
            send_all(fd, in, 100);
        }
        /* Some are closed by both at once, some by this side first. */
        if (i % 3 == 0 && receive_all(fd, in, 4) != 4) fail("last bytes");
        MUST(close(fd));
    }
    say("all bytes belonged");
}
static void reuse_b(struct side *side) {
    for (unsigned char i = 0; i < 60; i++) {
        int fd = connect_to(&side->address);
        fill(out, 100, i, 0);
        for (int turns = 0; turns < i % 13; turns++) {
            send_all(fd, out, 100);
            if (receive_all(fd, in, 100) != 100 || differs(in, 100, i, 0) != -1) fail("stale bytes");
        }
        if (i % 3 == 0) {
            send_all(fd, "last", 4);
            if (recv(fd, in, 1, 0) != 0) fail("end");
        }
        MUST(close(fd));
    }
    say("all bytes belonged");
}
static void reuse(void) { two_processes(AF_INET, reuse_a, reuse_b); }
static void reuse_threads(void) { two_threads(AF_INET, reuse_a, reuse_b); }

/* Programs that close everything, by each of the means. */
static void close_all_a(struct side *side) {
    int first = another(side), second = another(side), third = another(side);
    int twin = (int)MUST(dup2(third, 400));
    say("first");
    SHOW(close_range((unsigned)first, (unsigned)first, 0));
    SHOW(recv(first, in, 1, 0));
    hear(side);
    say("second");
    int keep = (int)MUST(dup2(side->turn, 300));
    MUST(dup2(side->fd, 301));
    SHOW(close_range((unsigned)third, (unsigned)third, CLOSE_RANGE_CLOEXEC));
    say("close on exec %d", fcntl(third, F_GETFD));
    closefrom(302);
    side->turn = keep;
    SHOW(recv(twin, in, 1, 0));
    SHOW(send(third, "third", 5, 0));
    SHOW(close_range(3, 299, CLOSE_RANGE_UNSHARE));
    SHOW(recv(second, in, 1, 0));
    SHOW(recv(third, in, 1, 0));
    hear(side);
    SHOW(send(301, "kept", 4, 0));
    SHOW(close_range(10, 9, 0));
    SHOW(close_range(301, ~0u, 0));
    hear(side);
    closefrom(3);
    SHOW(recv(300, in, 1, 0));
}
static void close_all_b(struct side *side) {
    int first = another(side), second = another(side), third = another(side);
    SHOW(recv(first, in, 1, 0));
    tell(side);
    SHOW(recv(third, in, 100, MSG_WAITALL));
    SHOW(recv(second, in, 1, 0));
    tell(side);
    SHOW(recv(side->fd, in, 100, MSG_WAITALL));
    tell(side);
    char end;
    SHOW(read(side->turn, &end, 1));
}
static void close_all(void) { two_processes(AF_INET, close_all_a, close_all_b); }

static int asked(int fd, unsigned long request) {
    int value = -1;
    MUST(ioctl(fd, request, &value));
    return value;
}

/* What is queued, at each end, at rest. SIOCOUTQ counts what the peer's kernel has not yet acknowledged: 0 soon. */
static void queued_a(struct side *side) {
    int fd = side->fd;
    say("FIONREAD %d, SIOCOUTQ %d", asked(fd, FIONREAD), asked(fd, SIOCOUTQ));
    tell(side);
    hear(side);
    await_bytes(fd, 1234);
    say("FIONREAD %d, SIOCINQ %d", asked(fd, FIONREAD), asked(fd, SIOCINQ));
    SHOW(recv(fd, in, 34, 0));
    say("FIONREAD %d", asked(fd, FIONREAD));
    SHOW(recv(fd, in, 200, MSG_PEEK));
    say("FIONREAD %d", asked(fd, FIONREAD));
    SHOW(recv(fd, in, 5000, 0));
    say("FIONREAD %d", asked(fd, FIONREAD));
    send_all(fd, out, 500);
    /* Whether the other end's program has read it is another matter. */
    while (asked(fd, SIOCOUTQ) != 0) nap_ms(1);
    tell(side);
    hear(side);
    say("SIOCOUTQNSD %d", asked(fd, SIOCOUTQNSD));
    hear(side);
    await_bytes(fd, 7);
    await_events(fd, POLLRDHUP);
    say("FIONREAD before the end %d", asked(fd, FIONREAD));
    SHOW(recv(fd, in, 7, 0));
    say("FIONREAD at the end %d", asked(fd, FIONREAD));
    SHOW(recv(fd, in, 7, 0));
}
static void queued_b(struct side *side) {
    hear(side);
    send_all(side->fd, out, 1234);
    tell(side);
    hear(side);
    SHOW(receive_all(side->fd, in, 500));
    tell(side);
    send_all(side->fd, out, 7);
    shutdown(side->fd, SHUT_WR);
    tell(side);
    SHOW(recv(side->fd, in, 1, 0));
}
static void queued(void) { two_processes(AF_INET, queued_a, queued_b); }

/* The kernel's own view: what kind of file, what status, who owns its signals. */
static void nature_a(struct side *side) {
    int fd = side->fd, value = 0;
    struct stat status;
    SHOW(fstat(fd, &status));
    say("socket %d, size %ld", S_ISSOCK(status.st_mode), (long)status.st_size);
    SHOW(isatty(fd));
    SHOW(fcntl(fd, F_GETFL));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(fcntl(fd, F_SETFD, FD_CLOEXEC));
    SHOW(fcntl(fd, F_GETFD));
    SHOW(fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK | O_ASYNC));
    SHOW(fcntl(fd, F_GETFL));
    SHOW(fcntl(fd, F_SETFL, O_RDWR));
    SHOW(fcntl(fd, F_GETOWN));
    SHOW(fcntl(fd, 9999));
    SHOW(fcntl(fd, F_GETPIPE_SZ));
    SHOW(fcntl(fd, F_DUPFD, -1));
    SHOW(ioctl(fd, SIOCATMARK, &value));
    SHOW(ioctl(fd, TCGETS, in));
    SHOW(ioctl(fd, 0x12345678, in));
    SHOW(sockatmark(fd));
    char path[32];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    long length = readlink(path, in, sizeof(in));
    say("%.7s", length > 7 ? in : "nothing");
    SHOW(open(path, O_RDWR));
    tell(side);
}
static void idle(struct side *side) { hear(side); }
static void nature(void) { two_processes(AF_INET6, nature_a, idle); }

const struct scenario scenarios[] = {
    {"names", names, 0},
    {"over", over, 0},
    {"reuse", reuse, 0},
    {"reuse-threads", reuse_threads, 0},
    {"close-all", close_all, 0},
    {"queued", queued, 0},
    {"nature", nature, 0},
    {0},
};
