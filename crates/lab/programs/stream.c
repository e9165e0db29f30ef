// Stream: the client writes --size bytes at a time for --seconds, the server reads to the end, and rests for --pause
// microseconds after each receive. With --port the client.
// Measured where the bytes arrive: bytes over the time from the end of the warm-up to the end of the stream.
#include "common.h"

enum { LEAST_BUFFER = 64 * 1024 };

struct result {
    uint64_t total; // bytes received, the warm-up included
    uint64_t bytes; // bytes received while the clock ran
    uint64_t ns;    // how long it ran
};

static void serve(const struct options *o) {
    int fd = accept_one(listen_anywhere(o));
    size_t room = o->size > LEAST_BUFFER ? o->size : LEAST_BUFFER;
    unsigned char *buffer = allocate(room);
    struct meter meter = {0};
    for (;;) {
        ssize_t n = recv(fd, buffer, room, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail("recv");
        if (n == 0) break;
        meter_received(&meter, buffer, (size_t)n);
        if (o->pause_us) usleep(o->pause_us);
    }
    struct result result = {
        .ns = meter_ns(&meter), .total = meter.position, .bytes = meter.position - meter.begin_position};
    send_all(fd, &result, sizeof result);
}

static void measure(const struct options *o) {
    int fd = connect_to(o);
    unsigned char *pattern = pattern_for(o->size);
    uint64_t last = now_ns() + WARM_UP_NS + (uint64_t)(o->seconds * 1e9);
    uint64_t sent = 0, look_at_clock = 0;
    for (;;) {
        if (sent >= look_at_clock) {
            if (now_ns() >= last) break;
            look_at_clock = sent + LEAST_BUFFER;
        }
        send_all(fd, pattern + sent % PERIOD, o->size);
        sent += o->size;
    }
    if (shutdown(fd, SHUT_WR) < 0) fail("shutdown");
    struct result result;
    if (!recv_all(fd, &result, sizeof result)) wrong("the server closed the connection");
    if (result.total != sent) wrong("not as many bytes arrived as were sent");
    print_throughput(result.bytes, result.ns, result.total);
}

int main(int argc, char **argv) { return play(argc, argv, serve, measure); }
