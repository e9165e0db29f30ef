// Baseline: a bare ring in shared memory between two processes, one copy in and one copy out, no sockets and no
// sleeping. Written, read, checked and timed as in stream.c.
#include "common.h"
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { RING = 1 << 20, PIECE = 64 * 1024 };

struct ring {
    _Alignas(128) _Atomic uint64_t written;
    _Alignas(128) _Atomic uint64_t read;
    _Alignas(128) _Atomic bool closed;
    _Alignas(4096) unsigned char data[RING];
};

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// Publishes every piece, so that the reader copies out while the writer copies in.
static void write_all(struct ring *ring, const unsigned char *data, size_t size, uint64_t *seen_read) {
    uint64_t written = atomic_load_explicit(&ring->written, memory_order_relaxed);
    while (size > 0) {
        while (written - *seen_read == RING) {
            *seen_read = atomic_load_explicit(&ring->read, memory_order_acquire);
            if (written - *seen_read == RING) relax();
        }
        size_t at = written % RING;
        size_t n = least(least(size, PIECE), least(RING - (written - *seen_read), RING - at));
        memcpy(ring->data + at, data, n);
        data += n, size -= n, written += n;
        atomic_store_explicit(&ring->written, written, memory_order_release);
    }
}

static size_t read_some(struct ring *ring, unsigned char *data, size_t room) {
    uint64_t read = atomic_load_explicit(&ring->read, memory_order_relaxed), written;
    while ((written = atomic_load_explicit(&ring->written, memory_order_acquire)) == read) {
        // A last look: `closed` may have been set after a last write.
        if (atomic_load(&ring->closed) && atomic_load(&ring->written) == read) return 0;
        relax();
    }
    size_t at = read % RING, n = least(least(room, PIECE), least(written - read, RING - at));
    memcpy(data, ring->data + at, n);
    atomic_store_explicit(&ring->read, read + n, memory_order_release);
    return n;
}

static _Noreturn void writer(struct ring *ring, double seconds, const struct options *o) {
    pin(o->peer_cpu);
    unsigned char *pattern = pattern_for(o->size);
    uint64_t last = now_ns() + WARM_UP_NS + (uint64_t)(seconds * 1e9), sent = 0, look_at_clock = 0, seen_read = 0;
    for (;;) {
        if (sent >= look_at_clock) {
            if (now_ns() >= last) break;
            look_at_clock = sent + PIECE;
        }
        write_all(ring, pattern + sent % PERIOD, o->size, &seen_read);
        sent += o->size;
    }
    atomic_store(&ring->closed, true);
    _exit(0);
}

static struct metered stream(unsigned char *buffer, size_t room, double seconds, const struct options *o) {
    struct ring *ring = mmap(NULL, sizeof *ring, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED) fail("mmap");
    memset(ring->data, 0, RING);
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) writer(ring, seconds, o);
    struct meter meter = {0};
    for (size_t n; (n = read_some(ring, buffer, room)) > 0;) meter_received(&meter, buffer, n);
    struct metered result = meter_result(&meter);
    int status;
    if (waitpid(child, &status, 0) != child || status != 0) wrong("the writer failed");
    if (meter.position != atomic_load(&ring->written)) wrong("not as many bytes arrived as were sent");
    if (munmap(ring, sizeof *ring) < 0) fail("munmap");
    return result;
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    size_t room = o.size > PIECE ? o.size : PIECE;
    unsigned char *buffer = allocate(room);
    struct metered result;
    double seconds = o.seconds;
    do {
        result = stream(buffer, room, seconds, &o);
        seconds *= 2;
    } while (!is_measured(&result, &o));
    print_throughput(result.bytes, result.ns, result.total);
}
