// Churn: connect, one exchange of --size bytes, close; --count times. With --port the client, else the server.
#include "common.h"

static void serve(const struct options *o) {
    int listener = listen_anywhere(o);
    char *message = allocate(o->size);
    for (uint64_t i = 0; i < o->warm_up + o->count; i++) {
        int fd = accept_one(listener);
        if (!recv_all(fd, message, o->size)) wrong("no request came");
        send_all(fd, message, o->size);
        if (recv_all(fd, message, 1)) wrong("a byte came after the request");
        close(fd);
    }
}

static void exchange(const struct options *o, char *message, char *answer, uint64_t number) {
    int fd = connect_to(o);
    memcpy(message, &number, o->size < sizeof number ? o->size : sizeof number);
    send_all(fd, message, o->size);
    if (!recv_all(fd, answer, o->size)) wrong("the server closed the connection");
    if (memcmp(message, answer, o->size) != 0) wrong("the answer is not what was sent");
    close(fd);
}

static void measure(const struct options *o) {
    char *message = allocate(o->size), *answer = allocate(o->size);
    uint64_t number = 0;
    while (number < o->warm_up) exchange(o, message, answer, number++);
    uint64_t start = now_ns();
    while (number < o->warm_up + o->count) exchange(o, message, answer, number++);
    double seconds = (double)(now_ns() - start) / 1e9;
    printf("{\"count\":%" PRIu64 ",\"seconds\":%.9f,\"per_second\":%.1f}\n", o->count, seconds,
           (double)o->count / seconds);
}

int main(int argc, char **argv) { return play(argc, argv, serve, measure); }
