// How the processes of a round draw, note, fail, and make and check bytes.
#include "play.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

struct shared *shared;

bool skipped(const char *word)
{
    const char *list = getenv("PROCESSES_SKIP");
    size_t length = strlen(word);
    for (const char *at = list; at && (at = strstr(at, word)); at += length)
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == 0))
            return true;
    return false;
}

int choose(_Atomic uint64_t *rng, const char *const *table, int n)
{
    for (int tries = 0; tries < 64; tries++) {
        int it = (int)under(rng, (uint32_t)n);
        if (!skipped(table[it]))
            return it;
    }
    return 0;
}

void note(struct actor *a, const char *what, long n)
{
    struct conn *c = a->conn;
    struct event *e = &c->event[atomic_fetch_add(&c->events, 1) % EVENTS];
    *e = (struct event){.pid = getpid(), .tid = (int)syscall(SYS_gettid), .fd = a->fd, .side = "cs"[a->me],
                        .us = now_us() - shared->started_us, .n = n};
    snprintf(e->word, sizeof e->word, "%s", what);
    atomic_fetch_add(&shared->progress, 1);
}

void blame(struct actor *a, const char *format, ...)
{
    int error = errno, none = 0;
    if (atomic_compare_exchange_strong(&shared->failed, &none, 1)) {
        char text[300];
        va_list list;
        va_start(list, format);
        vsnprintf(text, sizeof text, format, list);
        va_end(list);
        snprintf(shared->message, sizeof shared->message, "connection %d, %s, pid %d, fd %d: %s (errno %d)",
                 a ? (int)(a->conn - shared->conn) : -1, a ? (a->me ? "server" : "client") : "nobody", getpid(),
                 a ? a->fd : -1, text, error);
        atomic_store(&shared->failed, 2);
    }
    if (a)
        note(a, "FAILED", 0);
    _exit(1);
}

void mark_ahead(struct actor *a, size_t n)
{
    // Each record has a head, so that many small ones fill a ring before as many bytes as it is long.
    static uint64_t most;
    struct side *s = &a->conn->side[a->me];
    const char *ring = getenv("UNDERPASS_RING_BYTES");
    if (!most)
        most = (ring ? strtoull(ring, NULL, 10) : 1 << 20) / 4;
    s->begun = s->sent + n;
    if (s->sent + n > a->conn->side[!a->me].received + most)
        s->ahead = s->sent + n;
}

void nap(long us)
{
    struct timespec t = {us / 1000000, us % 1000000 * 1000};
    while (nanosleep(&t, &t) && errno == EINTR) {
    }
}

// -------------------------------------------------------------------------------------------------------- pattern

static unsigned char pattern(uint64_t key, uint64_t at) { return (unsigned char)(mix(key + at / 8) >> at % 8 * 8); }

void fill(unsigned char *to, size_t n, uint64_t key, uint64_t at)
{
    for (size_t i = 0; i < n;) {
        if ((at + i) % 8 == 0 && n - i >= 8) {
            uint64_t word = mix(key + (at + i) / 8);
            memcpy(to + i, &word, 8);
            i += 8;
        } else {
            to[i] = pattern(key, at + i);
            i++;
        }
    }
}

void check(struct actor *a, const unsigned char *bytes, size_t n, uint64_t at, const char *how)
{
    uint64_t key = a->conn->key[!a->me];
    for (size_t i = 0; i < n;) {
        uint64_t word = mix(key + (at + i) / 8);
        if ((at + i) % 8 == 0 && n - i >= 8 && memcmp(bytes + i, &word, 8) == 0) {
            i += 8;
        } else if (bytes[i] == pattern(key, at + i)) {
            i++;
        } else {
            // Where in the stream do these bytes belong?
            uint64_t end = a->conn->upto[!a->me][a->conn->phases];
            unsigned char want[16];
            size_t length = n - i < 16 ? n - i : 16;
            for (uint64_t place = 0; length >= 6 && place + length <= end; place++) {
                fill(want, length, key, place);
                if (memcmp(want, bytes + i, length) == 0)
                    blame(a, "%s: at %llu the byte of %llu (%zu of %zu were right)", how, (unsigned long long)(at + i),
                         (unsigned long long)place, i, n);
            }
            blame(a, "%s: foreign byte %#x at %llu (%zu of %zu were right)", how, bytes[i],
                 (unsigned long long)(at + i), i, n);
        }
    }
}
