// Baseline: a bare cache line's round trip between two processors. Two processes take turns on one line of shared memory;
// timed as in pingpong.c, so that the clock's own cost is in both.
#include "common.h"
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { DURATIONS = 1 << 21, WARM_UP = 10000 };

struct line {
    _Alignas(128) _Atomic uint64_t turn; // odd: the child's; all bits set: the end
};

static void await(struct line *line, uint64_t turn) {
    while (atomic_load_explicit(&line->turn, memory_order_acquire) != turn) {}
}

static void answer(struct line *line) {
    for (uint64_t expected = 1;;) {
        uint64_t turn = atomic_load_explicit(&line->turn, memory_order_acquire);
        if (turn == UINT64_MAX) return;
        if (turn != expected) continue;
        atomic_store_explicit(&line->turn, expected + 1, memory_order_release);
        expected += 2;
    }
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    struct line *line = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (line == MAP_FAILED) fail("mmap");
    pid_t child = fork();
    if (child < 0) fail("fork");
    if (child == 0) {
        pin(o.peer_cpu);
        answer(line);
        _exit(0);
    }
    uint32_t *durations = allocate(DURATIONS * sizeof *durations);
    uint64_t turn = 0, start = 0, last = UINT64_MAX;
    size_t n = 0;
    for (uint64_t i = 0; n < DURATIONS; i++) {
        if (i == WARM_UP) start = now_ns(), last = start + (uint64_t)(o.seconds * 1e9);
        uint64_t before = now_ns();
        if (before >= last) break;
        atomic_store_explicit(&line->turn, turn + 1, memory_order_release);
        await(line, turn + 2);
        uint64_t duration = now_ns() - before;
        turn += 2;
        if (i >= WARM_UP) durations[n++] = (uint32_t)duration;
    }
    atomic_store(&line->turn, UINT64_MAX);
    waitpid(child, NULL, 0);
    print_durations(durations, n, (double)(now_ns() - start) / 1e9);
}
