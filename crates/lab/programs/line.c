// Baseline: a bare cache line's round trip between two processors. Two processes take turns on one line of shared
// memory; timed as in pingpong.c, so that the clock's own cost is in both. With a --size above 1 each turn copies so
// many bytes in and out beside the line: what a ping-pong through shared memory cannot be faster than without its own
// protocol. The copies hand their lines over and ask for the next ones as the ring does (segment's ring.rs).
#include "common.h"
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { DURATIONS = 1 << 21, WARM_UP = 10000, SLOTS = 16, LINE = 64, MOST_DEMOTED = 32, MOST_AHEAD = 256 };

struct line {
    _Alignas(128) _Atomic uint64_t turn; // odd: the child's; all bits set: the end
    _Alignas(4096) char data[];          // the turns' messages, one behind the other, SLOTS of them
};

static char *slot(struct line *line, uint64_t turn, size_t size) {
    return line->data + turn % SLOTS * ((size + 63) & ~(size_t)63);
}

static void hand_over(const char *at, size_t size) {
#ifdef __x86_64__
    for (size_t i = 0; i < size && i < MOST_DEMOTED * LINE; i += LINE)
        __asm__ volatile("cldemote (%0)" : : "r"(at + i));
#else
    (void)at, (void)size;
#endif
}

static void ask_for(const char *at, size_t size) {
    for (size_t i = 0; i < size && i < MOST_AHEAD * LINE; i += LINE) __builtin_prefetch(at + i, 1);
}

static void pass(struct line *line, uint64_t turn, const char *message, size_t size) {
    if (size > 1) memcpy(slot(line, turn, size), message, size);
    atomic_store_explicit(&line->turn, turn, memory_order_release);
    if (size == 1) return;
    hand_over(slot(line, turn, size), size);
    ask_for(slot(line, turn + 2, size), size);
}

static void take(struct line *line, uint64_t turn, char *message, size_t size) {
    while (atomic_load_explicit(&line->turn, memory_order_acquire) != turn) {}
    if (size > 1) memcpy(message, slot(line, turn, size), size);
}

static void answer(struct line *line, char *message, size_t size) {
    for (uint64_t expected = 1;;) {
        uint64_t turn = atomic_load_explicit(&line->turn, memory_order_acquire);
        if (turn == UINT64_MAX) return;
        if (turn != expected) continue;
        take(line, turn, message, size);
        pass(line, expected + 1, message, size);
        expected += 2;
    }
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    size_t size = sizeof(struct line) + SLOTS * (o.size + 63);
    char *message = allocate(o.size);
    struct line *line = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (line == MAP_FAILED) fail("mmap");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        pin(o.peer_cpu);
        answer(line, message, o.size);
        _exit(0);
    }
    uint32_t *durations = allocate(DURATIONS * sizeof *durations);
    uint64_t turn = 0, start = 0, last = UINT64_MAX;
    size_t n = 0;
    for (uint64_t i = 0; n < DURATIONS; i++) {
        if (i == WARM_UP) start = now_ns(), last = start + (uint64_t)(o.seconds * 1e9);
        uint64_t before = now_ns();
        if (n > 0 && before >= last) break;
        pass(line, turn + 1, message, o.size);
        take(line, turn + 2, message, o.size);
        uint64_t duration = now_ns() - before;
        turn += 2;
        if (i >= WARM_UP) durations[n++] = duration > UINT32_MAX ? UINT32_MAX : (uint32_t)duration;
    }
    atomic_store(&line->turn, UINT64_MAX);
    waitpid(child, NULL, 0);
    print_durations(durations, n, (double)(now_ns() - start) / 1e9);
}
