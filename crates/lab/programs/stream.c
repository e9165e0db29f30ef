// Stream: the client writes --size bytes at a time for --seconds, the server reads to the end, and rests for --pause
// microseconds after each receive. With --port the client.
// Measured where the bytes arrive: bytes over the time from the end of the warm-up to the end of the stream.
#include "common.h"

enum { LEAST_BUFFER = 64 * 1024 };

static struct metered receive(int fd, unsigned char *buffer, size_t room, const struct options *o) {
    struct meter meter = {0};
    for (;;) {
        ssize_t n = recv(fd, buffer, room, 0);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) fail("recv");
        if (n == 0) break;
        meter_received(&meter, buffer, (size_t)n);
        if (o->pause_us) usleep(o->pause_us);
    }
    return meter_result(&meter);
}

static void serve(const struct options *o) {
    int listener = listen_anywhere(o);
    size_t room = o->size > LEAST_BUFFER ? o->size : LEAST_BUFFER;
    unsigned char *buffer = allocate(room);
    struct metered result;
    do {
        int fd = accept_one(listener);
        result = receive(fd, buffer, room, o);
        send_all(fd, &result, sizeof result);
        close(fd);
    } while (!is_measured(&result, o));
}

static struct metered stream(const unsigned char *pattern, double seconds, const struct options *o) {
    int fd = connect_to(o);
    uint64_t last = now_ns() + WARM_UP_NS + (uint64_t)(seconds * 1e9);
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
    struct metered result;
    if (!recv_all(fd, &result, sizeof result)) wrong("the server closed the connection");
    if (result.total != sent) wrong("not as many bytes arrived as were sent");
    close(fd);
    return result;
}

static void measure(const struct options *o) {
    unsigned char *pattern = pattern_for(o->size);
    struct metered result;
    uint64_t total = 0;
    double seconds = o->seconds;
    do {
        result = stream(pattern, seconds, o);
        total += result.total;
        seconds *= 2;
    } while (!is_measured(&result, o));
    print_throughput(result.bytes, result.ns, total);
}

int main(int argc, char **argv) { return play(argc, argv, serve, measure); }
