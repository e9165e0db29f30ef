#include "harness.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

_Thread_local char role = 'A';

/* Begins anew behind a filter by which no connection finds its other end: the kernel says nothing of sockets
 * (sock_diag). */
static void begin_unmet(char **arguments) {
    struct sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
                                 BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
                                 BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
                                 BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {sizeof(code) / sizeof(*code), code};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
    unsetenv("PARITY_UNMET");
    MUST(execv("/proc/self/exe", arguments));
}

int main(int count, char **arguments) {
    if (getenv("PARITY_UNMET")) begin_unmet(arguments);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (const struct scenario *s = scenarios; s->name; s++) {
        if (count < 2) {
            printf("%s %s\n", s->name, s->stays_on_kernel ? "kernel" : "fast");
        } else if (strcmp(arguments[1], s->name) == 0) {
            s->run();
            say("end");
            return 0;
        }
    }
    return count < 2 ? 0 : 2;
}

void say(const char *format, ...) {
    char line[512];
    int length = snprintf(line, sizeof(line), "%c ", role);
    va_list values;
    va_start(values, format);
    length += vsnprintf(line + length, sizeof(line) - (size_t)length, format, values);
    va_end(values);
    if (length > (int)sizeof(line) - 1) length = sizeof(line) - 1;
    line[length++] = '\n';
    /* One system call for the line: lines of two processes never mix, and errno stays for the caller. */
    int kept = errno;
    if (syscall(SYS_write, STDOUT_FILENO, line, length) != length) _exit(3);
    errno = kept;
}

long show(const char *call, long value) {
    int number = errno;
    if (number != 0) {
        say("%s = %ld %s", call, value, error_name(number));
    } else {
        say("%s = %ld", call, value);
    }
    errno = number;
    return value;
}

void say_bytes(const char *what, const void *bytes, long count) {
    say("%s: %ld bytes, digest %016llx", what, count, (unsigned long long)digest(bytes, count < 0 ? 0 : (size_t)count));
}

const char *error_name(int number) {
    const char *name = strerrorname_np(number);
    return name ? name : "unknown errno";
}

void fail(const char *what) {
    say("FAILED %s: %s", what, error_name(errno));
    _exit(4);
}

long must(const char *call, long value) {
    if (value == -1) fail(call);
    return value;
}

/* Sides and turns */

socklen_t address_size(const struct sockaddr_storage *address) {
    return address->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
}

int listen_on(int family, struct sockaddr_storage *address) {
    memset(address, 0, sizeof(*address));
    address->ss_family = (sa_family_t)family;
    if (family == AF_INET6) {
        ((struct sockaddr_in6 *)address)->sin6_addr = in6addr_loopback;
    } else {
        ((struct sockaddr_in *)address)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    }
    int listener = (int)MUST(socket(family, SOCK_STREAM, 0));
    MUST(bind(listener, (struct sockaddr *)address, address_size(address)));
    MUST(listen(listener, 64));
    socklen_t size = sizeof(*address);
    MUST(getsockname(listener, (struct sockaddr *)address, &size));
    return listener;
}

int connect_to(const struct sockaddr_storage *address) {
    int fd = (int)MUST(socket(address->ss_family, SOCK_STREAM, 0));
    MUST(connect(fd, (const struct sockaddr *)address, address_size(address)));
    return fd;
}

int another(struct side *side) {
    int fd = side->leader ? (int)MUST(accept(side->listener, NULL, NULL)) : connect_to(&side->address);
    warm(fd, side->leader);
    return fd;
}

void warm(int fd, bool leader) {
    const char *wanted = getenv("PARITY_WARM");
    int messages = wanted ? atoi(wanted) : 40;
    for (int i = 0; i < messages; i++) {
        unsigned char sent = (unsigned char)i, got = 0;
        if (leader) send_all(fd, &sent, 1);
        if (receive_all(fd, &got, 1) != 1 || got != sent) fail("warm-up");
        if (!leader) send_all(fd, &sent, 1);
        /* Many messages are to give a broker time, which may have no processor meanwhile. */
        if (i % 500 == 499) nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

void tell(struct side *side) {
    MUST(write(side->turn, "t", 1));
}

void hear(struct side *side) {
    char turn;
    if (MUST(read(side->turn, &turn, 1)) != 1) fail("the other side has ended");
}

static void play(struct side *side, part *body) {
    side->fd = another(side);
    body(side);
    close(side->fd);
}

static void prepare(int family, struct side *a, struct side *b) {
    int turns[2];
    memset(a, 0, sizeof(*a));
    a->listener = listen_on(family, &a->address);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, turns));
    *b = *a;
    a->turn = turns[0];
    b->turn = turns[1];
    a->leader = true;
}

void two_processes(int family, part *a, part *b) {
    struct side sides[2];
    prepare(family, &sides[0], &sides[1]);
    sides[1].other = this_task();
    sides[0].other = sides[0].peer = (pid_t)MUST(fork());
    if (sides[0].peer == 0) {
        role = 'B';
        close(sides[0].listener);
        close(sides[0].turn);
        sides[1].listener = -1;
        play(&sides[1], b);
        say("end");
        _exit(0);
    }
    close(sides[1].turn);
    play(&sides[0], a);
    int status = 0;
    MUST(waitpid(sides[0].peer, &status, 0));
    say("B ended: exit %d, signal %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1,
        WIFSIGNALED(status) ? WTERMSIG(status) : 0);
}

struct voice {
    struct side *sides;
    part *body;
};

static void *thread_b(void *argument) {
    struct voice *voice = argument;
    role = 'B';
    voice->sides[0].other = this_task();
    play(&voice->sides[1], voice->body);
    say("end");
    return NULL;
}

void two_threads(int family, part *a, part *b) {
    struct side sides[2];
    prepare(family, &sides[0], &sides[1]);
    sides[1].other = this_task();
    struct voice voice = {sides, b};
    pthread_t thread;
    start_thread(&thread, thread_b, &voice);
    play(&sides[0], a);
    pthread_join(thread, NULL);
}

void start_thread(pthread_t *thread, void *(*body)(void *), void *argument) {
    errno = pthread_create(thread, NULL, body, argument);
    if (errno != 0) fail("pthread_create");
}

int ended(pid_t child) {
    int status = 0;
    MUST(waitpid(child, &status, 0));
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

/* Data */

static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint8_t byte_at(uint64_t seed, uint64_t at) {
    return (uint8_t)(mix(seed * 0x9e3779b97f4a7c15u + at / 8) >> (at % 8 * 8));
}

void fill(void *bytes, size_t count, uint64_t seed, uint64_t at) {
    for (size_t i = 0; i < count; i++) ((uint8_t *)bytes)[i] = byte_at(seed, at + i);
}

long differs(const void *bytes, size_t count, uint64_t seed, uint64_t at) {
    for (size_t i = 0; i < count; i++) {
        if (((const uint8_t *)bytes)[i] != byte_at(seed, at + i)) return (long)i;
    }
    return -1;
}

uint64_t digest(const void *bytes, size_t count) {
    uint64_t sum = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < count; i++) sum = (sum ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3u;
    return sum;
}

uint64_t next_random(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15u;
    return mix(*state);
}

void send_all(int fd, const void *bytes, size_t count) {
    const char *next = bytes;
    while (count > 0) {
        ssize_t sent = send(fd, next, count, MSG_NOSIGNAL);
        if (sent == -1 && errno == EINTR) continue;
        if (sent <= 0) fail("send_all");
        next += sent;
        count -= (size_t)sent;
    }
}

size_t receive_all(int fd, void *bytes, size_t count) {
    size_t done = 0;
    while (done < count) {
        ssize_t got = recv(fd, (char *)bytes + done, count - done, 0);
        if (got == -1 && errno == EINTR) continue;
        if (got == -1) fail("receive_all");
        if (got == 0) break;
        done += (size_t)got;
    }
    return done;
}

/* Whether the other side's kernel was asked for room and had none. Before, a part of its window may be left that is too
 * small for a segment: after 200 ms that is filled, and there is room for one more here. */
static bool has_asked_in_vain(int fd) {
    struct tcp_info about;
    socklen_t size = sizeof(about);
    MUST(getsockopt(fd, IPPROTO_TCP, TCP_INFO, &about, &size));
    return about.tcpi_backoff > 0 && about.tcpi_unacked == 0;
}

/* Sends until that has been refused so often in a row, 15 ms apart, and `enough` says that this will do. */
static size_t stuff_until(int fd, uint64_t seed, int refusals_enough, bool (*enough)(int fd)) {
    static char block[16 * KIB];
    size_t total = 0;
    for (int refusals = 0; refusals < refusals_enough || (enough && !enough(fd));) {
        fill(block, sizeof(block), seed, total);
        ssize_t sent = send(fd, block, sizeof(block), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent > 0) {
            total += (size_t)sent;
            refusals = 0;
            continue;
        }
        if (errno != EAGAIN) fail("stuff");
        struct pollfd writable = {fd, POLLOUT, 0};
        refusals = MUST(poll(&writable, 1, 15)) == 0 ? refusals + 1 : 0;
    }
    return total;
}

/* Full only when it still is after the last delayed acknowledgement (40 ms). */
size_t stuff(int fd, uint64_t seed) { return stuff_until(fd, seed, 8, NULL); }

size_t stuff_for_good(int fd, uint64_t seed) { return stuff_until(fd, seed, 8, has_asked_in_vain); }

/* Conditions */

void nap_ms(long milliseconds) {
    struct timespec left = {milliseconds / 1000, milliseconds % 1000 * 1000000};
    while (nanosleep(&left, &left) == -1 && errno == EINTR) {}
}

long now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

void await_bytes(int fd, int count) {
    int ready = 0;
    while (MUST(ioctl(fd, FIONREAD, &ready)) == 0 && ready < count) nap_ms(1);
}

void await_events(int fd, short events) {
    struct pollfd wanted = {fd, events, 0};
    while (poll(&wanted, 1, -1) == -1) {
        if (errno != EINTR) fail("await_events");
    }
}

void await_asleep(pid_t task) {
    char path[64], text[256];
    snprintf(path, sizeof(path), "/proc/%d/stat", task);
    for (int in_a_row = 0; in_a_row < 4;) {
        nap_ms(5);
        FILE *file = fopen(path, "r");
        if (!file) fail("await_asleep");
        size_t length = fread(text, 1, sizeof(text) - 1, file);
        fclose(file);
        text[length] = 0;
        const char *state = strrchr(text, ')');
        in_a_row = state && state[2] == 'S' ? in_a_row + 1 : 0;
    }
}

pid_t this_task(void) {
    return (pid_t)syscall(SYS_gettid);
}

void set_nonblocking(int fd, bool on) {
    int flags = (int)MUST(fcntl(fd, F_GETFL));
    MUST(fcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK));
}

void echo_until_end(struct side *side) {
    char bytes[64 * KIB];
    ssize_t got;
    size_t total = 0;
    while ((got = recv(side->fd, bytes, sizeof(bytes), 0)) > 0) {
        send_all(side->fd, bytes, (size_t)got);
        total += (size_t)got;
    }
    say("echoed %zu, then %zd", total, got);
}
