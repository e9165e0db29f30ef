// Idle: --count connections that have exchanged a dozen messages each, or --warm-up ones more in groups of 64, and then
// rest for --seconds, all of them in an epoll set at both ends. With --port the client, which prints for both processes
// what the rest cost in processor time and what the connections hold in memory.
#include "common.h"

enum { ROUNDS = 12, GROUP = 64, EVENTS = 1024 };

enum kind { ECHO, REST, REPORT };

struct message {
    uint32_t kind;
    uint32_t number;
    uint64_t cpu_ns;    // REPORT: processor time used since REST
    uint64_t memory;    // REPORT: bytes by which the proportional set (PSS) grew from start to REST
    uint64_t resident;  // REPORT: the same for the resident set (RSS), shared pages counted in full
};

static uint64_t smaps(const char *field) {
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    if (!file) fail("/proc/self/smaps_rollup");
    char line[256];
    uint64_t kib = UINT64_MAX;
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, field, strlen(field))) kib = strtoull(line + strlen(field), NULL, 10);
    fclose(file);
    if (kib == UINT64_MAX) wrong("smaps_rollup lacks the field");
    return kib * 1024;
}

struct cost {
    uint64_t memory, resident, cpu;
};

static struct cost cost_now(void) {
    struct cost cost = {.memory = smaps("Pss:"), .resident = smaps("Rss:")};
    cost.cpu = clock_ns(CLOCK_PROCESS_CPUTIME_ID); // last, so that reading the memory is not counted
    return cost;
}

static void report(struct message *message, const struct cost *start, const struct cost *rest) {
    message->cpu_ns = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - rest->cpu;
    message->memory = rest->memory > start->memory ? rest->memory - start->memory : 0;
    message->resident = rest->resident > start->resident ? rest->resident - start->resident : 0;
}

static void allow_many_files(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) < 0) fail("getrlimit");
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) < 0) fail("setrlimit");
}

static void serve(const struct options *o) {
    allow_many_files();
    int listener = listen_anywhere(o), set = epoll_create1(0);
    struct epoll_event *events = allocate(EVENTS * sizeof *events);
    epoll_add(set, listener, EPOLLIN, (uint64_t)listener);
    struct cost start = cost_now(), rest = start;
    for (uint64_t open = 0, seen = 0; seen < o->count || open > 0;) {
        int n = epoll_wait_for(set, events, EVENTS, -1);
        for (int i = 0; i < n; i++) {
            int fd = (int)events[i].data.u64;
            struct message message;
            if (fd == listener) {
                int fresh = accept_one(listener);
                epoll_add(set, fresh, EPOLLIN, (uint64_t)fresh);
                open++, seen++;
            } else if (!recv_all(fd, &message, sizeof message)) {
                close(fd);
                open--;
            } else {
                if (message.kind == REST) rest = cost_now();
                if (message.kind == REPORT) report(&message, &start, &rest);
                send_all(fd, &message, sizeof message);
            }
        }
    }
}

static struct message ask(int fd, enum kind kind) {
    struct message message = {.kind = kind}, answer;
    send_all(fd, &message, sizeof message);
    if (!recv_all(fd, &answer, sizeof answer) || answer.kind != kind) wrong("the server did not answer");
    return answer;
}

// One message on every connection from the one to the other, then all the answers in the order in which they come.
static void exchange(const int *fds, uint64_t from, uint64_t to, int set, struct epoll_event *events, uint32_t round) {
    for (uint32_t i = (uint32_t)from; i < to; i++) {
        struct message message = {.kind = ECHO, .number = i ^ round << 20};
        send_all(fds[i], &message, sizeof message);
    }
    for (uint64_t answered = 0; answered < to - from;) {
        int n = epoll_wait_for(set, events, EVENTS, -1);
        for (int e = 0; e < n; e++, answered++) {
            uint32_t i = (uint32_t)events[e].data.u64;
            struct message answer;
            if (!recv_all(fds[i], &answer, sizeof answer)) wrong("the server closed the connection");
            if (answer.number != (i ^ round << 20)) wrong("a connection got another one's answer");
        }
    }
}

static void measure(const struct options *o) {
    allow_many_files();
    int set = epoll_create1(0), *fds = allocate(o->count * sizeof *fds);
    struct epoll_event *events = allocate(EVENTS * sizeof *events);
    struct cost start = cost_now();
    for (uint32_t i = 0; i < o->count; i++) {
        fds[i] = connect_to(o);
        epoll_add(set, fds[i], EPOLLIN, i);
        // What many connections begin at once would take many messages more.
        uint64_t from = i / GROUP * GROUP;
        if (o->warm_up && (i % GROUP == GROUP - 1 || i + 1 == o->count))
            for (uint32_t round = 0; round < o->warm_up; round++) exchange(fds, from, i + 1, set, events, round);
    }
    for (uint32_t round = 0; round < ROUNDS; round++) exchange(fds, 0, o->count, set, events, round);

    ask(fds[0], REST);
    struct cost rest = cost_now();
    uint64_t begin = now_ns(), last = begin + (uint64_t)(o->seconds * 1e9);
    for (uint64_t now = begin; now < last; now = now_ns())
        if (epoll_wait_for(set, events, EVENTS, (int)((last - now) / 1000000 + 1)) != 0)
            wrong("an idle connection became ready");
    struct message mine, theirs;
    report(&mine, &start, &rest);
    double ns = (double)(now_ns() - begin), connections = (double)o->count;
    theirs = ask(fds[0], REPORT);
    exchange(fds, 0, o->count, set, events, ROUNDS); // still alive, all of them
    printf("{\"client_cpu_percent\":%.4f,\"server_cpu_percent\":%.4f,\"client_memory\":%.1f,\"server_memory\":%.1f,"
           "\"client_resident\":%.1f,\"server_resident\":%.1f}\n",
           100 * (double)mine.cpu_ns / ns, 100 * (double)theirs.cpu_ns / ns, (double)mine.memory / connections,
           (double)theirs.memory / connections, (double)mine.resident / connections,
           (double)theirs.resident / connections);
}

int main(int argc, char **argv) { return play(argc, argv, serve, measure); }
