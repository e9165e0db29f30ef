/* One thread executes or spawns programs while others make, use and close connections: it looks at connections that end
 * meanwhile. */
#include "harness.h"
#include <spawn.h>

enum { CONNECTIONS = 40, EXCHANGES = 20, RECORD = 64, COMPUTING = 2 };

static volatile bool over;
/* An execution that fails late resets what its image could not have read: bytes in a ring whose sender has closed
 * (docs/limits.md). */
static bool resets;
static char *const no_environment[] = {NULL};

/* The kernel finds that there is nothing to execute. */
static void *executes_nothing(void *arguments) {
    while (!over) {
        if (execve("./nothing", arguments, no_environment) != -1 || errno != ENOENT) say("ENOENT, not %d", errno);
        usleep(50);
    }
    return NULL;
}

/* The kernel finds only then that the file is no program, and the library does not know what will load it. */
static void *executes_garbage(void *arguments) {
    while (!over) {
        if (execve("./garbage", arguments, no_environment) != -1 || errno != ENOEXEC) say("ENOEXEC, not %d", errno);
        usleep(500);
    }
    return NULL;
}

/* The program has no library, and whatever is not closed on execution. */
static void *spawns(void *arguments) {
    while (!over) {
        pid_t child;
        if (posix_spawn(&child, "/bin/true", NULL, NULL, arguments, no_environment)) say("no child");
        MUST(waitpid(child, NULL, 0));
    }
    return NULL;
}

/* So that threads are interrupted in the middle of everything. */
static void *computes(void *unused) {
    while (!over) {}
    return unused;
}

static void exchange(int fd, bool leads) {
    char out[RECORD], in[RECORD];
    for (int i = 0; i < EXCHANGES; i++) {
        memset(out, leads ? i : ~i, RECORD);
        if (leads) send_all(fd, out, RECORD);
        if (receive_all(fd, in, RECORD) != RECORD || in[0] != (char)(leads ? ~i : i) || memcmp(in, in + 1, RECORD - 1))
            say("wrong in %d", i);
        if (!leads) send_all(fd, out, RECORD);
    }
}

static void all_connections(struct side *side) {
    for (int i = 0; i < CONNECTIONS; i++) {
        int fd = another(side);
        exchange(fd, side->leader);
        long last = side->leader ? recv(fd, &(char){0}, 1, 0) : 0;
        if (last != 0 && !(resets && errno == ECONNRESET))
            say("no end: %ld %s", last, last < 0 ? error_name(errno) : "");
        MUST(close(fd));
    }
}

static void beside(struct side *side, void *(*runs)(void *)) {
    static char *arguments[] = {"true", NULL};
    pthread_t runner, computing[COMPUTING];
    int file = (int)MUST(open("garbage", O_CREAT | O_WRONLY | O_CLOEXEC, 0755));
    MUST(write(file, "ab\0cd", 5));
    MUST(close(file));
    pthread_create(&runner, NULL, runs, arguments);
    for (int i = 0; i < COMPUTING; i++) pthread_create(&computing[i], NULL, computes, NULL);
    all_connections(side);
    over = true;
    pthread_join(runner, NULL);
    for (int i = 0; i < COMPUTING; i++) pthread_join(computing[i], NULL);
    say("all is there");
}

static void nothing_a(struct side *side) { beside(side, executes_nothing); }
static void garbage_a(struct side *side) {
    resets = true;
    beside(side, executes_garbage);
}
static void spawns_a(struct side *side) { beside(side, spawns); }
/* Fails if `Look::begin` (crates/preload/src/connection/look.rs) does not count the look. */
static void nothing(void) { two_processes(AF_INET, nothing_a, all_connections); }
/* Fails if `leave` (crates/segment/src/switch/leaving.rs) does not wait for the sleeper that comes to the ring. */
static void garbage(void) { two_processes(AF_INET, garbage_a, all_connections); }
static void spawned(void) { two_processes(AF_INET, spawns_a, all_connections); }

const struct scenario scenarios[] = {{"nothing", nothing, 0}, {"garbage", garbage, 0}, {"spawned", spawned, 0}, {0}};
