/* Shared by stress programs that go by a seed: their random numbers, and their clock. */
#ifndef SEEDED_H
#define SEEDED_H

#include <stdint.h>
#include <time.h>

static inline uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint32_t pick(uint64_t *random, uint32_t below) {
    *random += 0x9e3779b97f4a7c15u;
    return (uint32_t)(mix(*random) >> 32) % below;
}

/* In milliseconds. */
static inline long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

#endif
