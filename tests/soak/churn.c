/* churn: connections are opened, used and closed for as long as one likes, and nothing may grow.
 *
 *   churn SEED SECONDS [RATE [PORT]]
 *
 * A server and a client, each a family of its own under the library. The client opens connections, RATE (100) a
 * second, some of them beside others, has a few messages echoed on each, enough that it goes fast, and ends it: by a
 * close of either end, by a half that is shut down first, or by a reset. All the while the server keeps one
 * connection that it was opened first, and the client talks on it. Every so often both say how much memory they have
 * in use (RSS), how many descriptors, and how many segments of System V.
 *
 * Checked: every byte; that each connection gets on within 15 s; and that none of these grows: what was seen of it in
 * the last tenth of the time (at most a minute) is held against a tenth at the beginning, which comes behind a
 * warm-up of four tenths (at most a minute). Memory may be more by 4 MiB, since a slot of the library's pools takes
 * memory when it is first used for large messages, the others by 8. The last line says the figures. Exit code 0 if
 * all that held.
 */
#include "seeded.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { BESIDE = 12, MOST_FD = 1024, LIMIT_MS = 15000, MESSAGES = 40, BIGGEST = 20000 };
enum { CLIENT, SERVER };
enum { BY_CLIENT, BY_SERVER, BY_HALF, BY_RESET, ENDINGS };

/* The state of one process. */
struct figures {
    long memory, descriptors, segments;
};

static struct {
    struct figures first[2], last[2];
    _Atomic uint64_t connections, messages;
    _Atomic int port, pid[2];
    _Atomic bool stop;
} *shared;

static unsigned char pattern[65521 + BIGGEST];

static long must(long value, const char *what) {
    if (value >= 0) return value;
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    exit(1);
}

static void alarmed(int number) {
    (void)number;
    static const char text[] = "stuck\n";
    if (write(2, text, sizeof(text) - 1) > 0) _exit(1);
    _exit(1);
}

static int open_descriptors(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    if (!folder) exit(1);
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

/* Memory in kilobytes, descriptors, and segments that this process has attached. */
static struct figures look(void) {
    struct figures now = {0, open_descriptors(), 0};
    char line[512];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof(line), file)) sscanf(line, "VmRSS: %ld", &now.memory);
    if (file) fclose(file);
    file = fopen("/proc/self/maps", "r");
    while (file && fgets(line, sizeof(line), file)) now.segments += strstr(line, "/SYSV") != NULL;
    if (file) fclose(file);
    return now;
}

static void most(struct figures *of, struct figures now) {
    if (now.memory > of->memory) of->memory = now.memory;
    if (now.descriptors > of->descriptors) of->descriptors = now.descriptors;
    if (now.segments > of->segments) of->segments = now.segments;
}

/* Looks ten times in the first part and ten times in the last. */
struct watch {
    long begin, end, part, next;
};

static void watch(struct watch *w, int side) {
    long at = now();
    if (at < w->next) return;
    w->next = at + w->part / 10;
    if (at <= w->begin + w->part) most(&shared->first[side], look());
    if (at >= w->end - w->part) most(&shared->last[side], look());
}

static void write_all(int fd, const unsigned char *from, size_t size) {
    for (ssize_t done; size > 0; from += done, size -= (size_t)done) done = must(write(fd, from, size), "write");
}

/* The server echoes. A message that begins with 1 has it close first. */
static void serve(struct watch w) {
    static unsigned char bytes[65536];
    static bool closing[MOST_FD];
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)shared->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof(address);
    int listener = (int)must(socket(AF_INET, SOCK_STREAM, 0), "socket"), on = 1,
        set = (int)must(epoll_create1(0), "epoll");
    must(setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)), "SO_REUSEADDR");
    must(bind(listener, (struct sockaddr *)&address, size), "bind");
    must(listen(listener, 128), "listen");
    must(getsockname(listener, (struct sockaddr *)&address, &size), "getsockname");
    shared->port = ntohs(address.sin_port);
    shared->pid[SERVER] = getpid();
    struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
    must(epoll_ctl(set, EPOLL_CTL_ADD, listener, &event), "epoll_ctl");
    while (!shared->stop) {
        watch(&w, SERVER);
        if (epoll_wait(set, &event, 1, 20) < 1) continue;
        int fd = event.data.fd;
        if (fd == listener) {
            if ((fd = accept(listener, NULL, NULL)) == -1) continue;
            event = (struct epoll_event){.events = EPOLLIN, .data.fd = fd};
            must(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
            closing[fd] = false;
            continue;
        }
        ssize_t got = read(fd, bytes, sizeof(bytes));
        if (got > 0 && !closing[fd]) {
            write_all(fd, bytes, (size_t)got);
            closing[fd] = memchr(bytes, 1, (size_t)got) != NULL;
            if (closing[fd]) shutdown(fd, SHUT_WR);
        } else if (got <= 0) {
            close(fd);
        }
    }
    exit(0);
}

static int opened(uint64_t *random) {
    /* From one of several addresses: those that have been used rest for a minute. */
    struct sockaddr_in from = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1 + pick(random, 200))};
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)shared->port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = (int)must(socket(AF_INET, SOCK_STREAM, 0), "socket"), on = 1;
    must(setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof(on)), "IP_BIND_ADDRESS_NO_PORT");
    must(bind(fd, (struct sockaddr *)&from, sizeof(from)), "bind");
    must(connect(fd, (struct sockaddr *)&to, sizeof(to)), "connect");
    shared->connections++;
    return fd;
}

/* Has a message echoed. Its bytes are 2 to 127; the mark is 1. */
static void talk(int fd, uint64_t *random, bool last) {
    static unsigned char back[BIGGEST];
    size_t size = 1 + pick(random, pick(random, 4) ? 200 : BIGGEST - 1);
    const unsigned char *from = pattern + pick(random, 65521);
    static const unsigned char mark = 1;
    write_all(fd, last ? &mark : from, last ? 1 : size);
    for (size_t done = 0; done < (last ? 1 : size);) {
        ssize_t got = must(read(fd, back + done, sizeof(back) - done), "read");
        if (got == 0 || memcmp(back + done, last ? &mark : from + done, (size_t)got) != 0) {
            fprintf(stderr, got ? "wrong bytes\n" : "an early end\n");
            exit(1);
        }
        done += (size_t)got;
    }
    shared->messages++;
}

static void end(int fd, uint64_t *random) {
    unsigned char byte;
    struct linger hard = {1, 0};
    switch (pick(random, ENDINGS)) {
    case BY_SERVER: talk(fd, random, true); break;
    case BY_HALF: shutdown(fd, SHUT_WR); break;
    case BY_RESET: setsockopt(fd, SOL_SOCKET, SO_LINGER, &hard, sizeof(hard)); close(fd); return;
    default: close(fd); return;
    }
    if (must(read(fd, &byte, 1), "read at the end") != 0) {
        fprintf(stderr, "bytes behind the end\n");
        exit(1);
    }
    close(fd);
}

static void ask(struct watch w, uint64_t random, long rate) {
    int fds[BESIDE], left[BESIDE];
    for (int i = 0; i < BESIDE; i++) fds[i] = -1;
    shared->pid[CLIENT] = getpid();
    while (shared->port == 0 || shared->pid[SERVER] == 0) usleep(1000);
    int kept = opened(&random);
    signal(SIGALRM, alarmed);
    for (long begin = now(), count = 0; now() < w.end;) {
        alarm(LIMIT_MS / 1000);
        watch(&w, CLIENT);
        int i = (int)pick(&random, BESIDE);
        if (fds[i] == -1) {
            if (now() - begin < count * 1000 / rate) {
                usleep(1000);
                continue;
            }
            count++;
            fds[i] = opened(&random);
            left[i] = pick(&random, MESSAGES);
        } else if (left[i]-- > 0) {
            talk(fds[i], &random, false);
        } else {
            end(fds[i], &random);
            fds[i] = -1;
            talk(kept, &random, false);
        }
    }
    shared->stop = true;
    exit(0);
}

static bool grown(const char *name, long first, long last, long allowed) {
    if (last <= first + allowed) return false;
    printf("%s: %ld at first, %ld at last\n", name, first, last);
    return true;
}

int main(int count, char **words) {
    if (count < 3) {
        fprintf(stderr, "usage: churn SEED SECONDS [RATE [PORT]]\n");
        return 2;
    }
    uint64_t random = strtoull(words[1], NULL, 10);
    long seconds = atol(words[2]), rate = count > 3 ? atol(words[3]) : 100;
    if (seconds < 1 || rate < 1) return 2;
    signal(SIGPIPE, SIG_IGN);
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) return 1;
    shared->port = count > 4 ? atoi(words[4]) : 0;
    uint64_t fixed = 7;
    for (size_t i = 0; i < sizeof(pattern); i++) pattern[i] = (unsigned char)(2 + pick(&fixed, 126));
    /* Costs that arise only once arise at the beginning: the first part takes them in. */
    long begin = now(), part = seconds * 100 < 60000 ? seconds * 100 : 60000;
    long warm = seconds * 400 < 60000 ? seconds * 400 : 60000;
    struct watch w = {begin + warm, begin + seconds * 1000, part, begin + warm};
    pid_t processes[2];
    for (int side = 0; side < 2; side++) {
        if ((processes[side] = fork()) != 0) continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (side == SERVER) serve(w);
        ask(w, random, rate);
    }
    bool failed = false;
    for (int i = 0; i < 2; i++) {
        int status = 0;
        pid_t pid = wait(&status);
        if (status != 0) {
            printf("the %s ended with status %#x\n", pid == processes[SERVER] ? "server" : "client", (unsigned)status);
            failed = true;
            for (int other = 0; other < 2; other++) {
                if (processes[other] != pid) kill(processes[other], SIGKILL);
            }
        }
    }
    for (int side = 0; side < 2; side++) {
        struct figures *a = &shared->first[side], *b = &shared->last[side];
        failed |= grown("memory in kB", a->memory, b->memory, 4096);
        failed |= grown("descriptors", a->descriptors, b->descriptors, 8);
        failed |= grown("segments", a->segments, b->segments, 8);
    }
    printf("%lu connections, %lu messages", shared->connections, shared->messages);
    for (int side = 0; side < 2; side++) {
        struct figures *a = &shared->first[side], *b = &shared->last[side];
        printf("; %s: %ld then %ld kB, %ld then %ld descriptors, %ld then %ld segments",
               side == CLIENT ? "client" : "server", a->memory, b->memory, a->descriptors, b->descriptors, a->segments,
               b->segments);
    }
    printf("\n");
    return failed;
}
