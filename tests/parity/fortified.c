/* The calls by the names that a fortified build gives them (__recv_chk and others): lengths unknown to the compiler. */
#include "harness.h"

#include <sys/select.h>

static _Thread_local char in[KIB];

/* Hides a value from the compiler. */
static volatile size_t hidden;
static size_t hide(size_t value) {
    hidden = value;
    return hidden;
}

static void aliases_a(struct side *side) {
    int fd = side->fd;
    struct pollfd ready[] = {{fd, POLLIN, 0}};
    struct timespec now = {0, 0};
    struct timeval instant = {0, 0};
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(hide((size_t)fd), &readable);
    SHOW(poll(ready, hide(1), 0));
    SHOW(ppoll(ready, hide(1), &now, NULL));
    tell(side);
    hear(side);
    await_bytes(fd, 400);
    SHOW(poll(ready, hide(1), -1));
    SHOW(ppoll(ready, hide(1), NULL, NULL));
    SHOW(select(fd + 1, &readable, NULL, NULL, &instant));
    SHOW(FD_ISSET(hide((size_t)fd), &readable) != 0);
    SHOW(read(fd, in, hide(100)));
    say("first difference %ld", differs(in, 100, 1, 0));
    SHOW(recv(fd, in, hide(100), 0));
    say("first difference %ld", differs(in, 100, 1, 100));
    SHOW(recvfrom(fd, in, hide(100), MSG_PEEK, NULL, NULL));
    SHOW(recvfrom(fd, in, hide(1000), 0, NULL, NULL));
    say("first difference %ld", differs(in, 200, 1, 200));
    SHOW(pread(fd, in, hide(10), 0));
    SHOW(pread64(fd, in, hide(10), 0));
    SHOW(dprintf(fd, "%zu bytes\n", hide(8)));
    FILE *writer = fdopen(fd, "w");
    SHOW(fprintf(writer, "%zu more\n", hide(7)));
    SHOW(fflush(writer));
    hear(side);
}
static void aliases_b(struct side *side) {
    fill(in, 400, 1, 0);
    hear(side);
    send_all(side->fd, in, 400);
    tell(side);
    long got = (long)receive_all(side->fd, in, 15);
    say_bytes("printed", in, got);
    tell(side);
}
static void aliases(void) { two_processes(AF_INET, aliases_a, aliases_b); }
static void aliases_threads(void) { two_threads(AF_INET, aliases_a, aliases_b); }

const struct scenario scenarios[] = {{"aliases", aliases, 0}, {"aliases-threads", aliases_threads, 0}, {0}};
