/* Signals: interrupted and restarted calls, masks, handlers that use the connection, a storm of timers. */
#include "harness.h"

#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/time.h>

static _Thread_local char in[64 * KIB], out[64 * KIB];
static volatile sig_atomic_t caught;
static int handler_fd;

static void count(int number) {
    (void)number;
    caught++;
}
static void handle(void (*handler)(int), int flags) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    MUST(sigaction(SIGUSR1, &action, NULL));
    caught = 0;
}

/* B's help: a signal while A sleeps, then (if asked) bytes. */
static void signaller(struct side *side) {
    for (;;) {
        char what;
        if (read(side->turn, &what, 1) != 1 || what == 'q') return;
        await_asleep(side->other);
        if (what != 'b') kill(getppid(), SIGUSR1);
        if (what != 's') {
            if (what == 'r') await_asleep(side->other);
            send_all(side->fd, "0123456789", 10);
        }
    }
}
static void ask(struct side *side, char what) { MUST(write(side->turn, &what, 1)); }

/* Without SA_RESTART every sleeping call ends with EINTR; what had been moved before is not lost. */
static void interrupted_a(struct side *side) {
    int fd = side->fd, set = (int)MUST(epoll_create1(0));
    struct iovec part = {in, 10};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    struct pollfd ready = {fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    handle(count, 0);
    ask(side, 's');
    SHOW(recv(fd, in, 10, 0));
    ask(side, 's');
    SHOW(read(fd, in, 10));
    ask(side, 's');
    SHOW(readv(fd, &part, 1));
    ask(side, 's');
    SHOW(recvmsg(fd, &message, 0));
    ask(side, 's');
    SHOW(recv(fd, in, 10, MSG_PEEK));
    ask(side, 's');
    SHOW(recv(fd, in, 10, MSG_WAITALL));
    ask(side, 's');
    SHOW(poll(&ready, 1, -1));
    ask(side, 's');
    SHOW(ppoll(&ready, 1, NULL, NULL));
    ask(side, 's');
    SHOW(select(fd + 1, &readable, NULL, NULL, NULL));
    ask(side, 's');
    SHOW(pselect(fd + 1, &readable, NULL, NULL, NULL, NULL));
    ask(side, 's');
    SHOW(epoll_wait(set, &event, 1, -1));
    ask(side, 's');
    SHOW(epoll_pwait(set, &event, 1, -1, NULL));
    say("caught %d", caught);
    ask(side, 'b');
    SHOW(recv(fd, in, 4, 0));
    ask(side, 's');
    SHOW(recv(fd, in, 100, MSG_WAITALL)); /* six are there */
    say("caught %d", caught);
    ask(side, 'q');
}
static void interrupted(void) { two_processes(AF_INET, interrupted_a, signaller); }

/* With SA_RESTART a read goes on by itself; poll and its kin do not, nor a read with a timeout. */
static void restarted_a(struct side *side) {
    int fd = side->fd, set = (int)MUST(epoll_create1(0));
    struct pollfd ready = {fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    handle(count, SA_RESTART);
    for (int i = 0; i < 3; i++) {
        ask(side, 'r');
        SHOW(recv(fd, in, 100, 0));
        say("caught %d", caught);
    }
    ask(side, 'r');
    SHOW(read(fd, in, 100));
    ask(side, 'b');
    SHOW(recv(fd, in, 4, 0));
    ask(side, 's');
    SHOW(recv(fd, in, 100, MSG_WAITALL)); /* six are there, and end it */
    ask(side, 's');
    SHOW(poll(&ready, 1, -1));
    ask(side, 's');
    SHOW(epoll_wait(set, &event, 1, -1));
    struct timeval timeout = {15, 0};
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)));
    ask(side, 's');
    SHOW(recv(fd, in, 100, 0));
    say("caught %d", caught);
    ask(side, 'q');
}
static void restarted(void) { two_processes(AF_INET, restarted_a, signaller); }

/* A blocked send: interrupted with a part, interrupted with nothing, restarted. */
static void sending_a(struct side *side) {
    size_t size = 16 * MIB;
    char *bytes = calloc(1, size);
    handle(count, 0);
    ask(side, 's');
    long part = send(side->fd, bytes, size, 0);
    say("a part: %d, caught %d", part > 0 && part < (long)size, caught);
    ask(side, 'd');
    hear(side);
    struct iovec all[64];
    for (size_t i = 0; i < COUNT(all); i++) all[i] = (struct iovec){bytes, size / 16};
    handle(count, SA_RESTART);
    ask(side, 's');
    part = writev(side->fd, all, COUNT(all));
    say("a part: %d, caught %d", part > 0 && part < (long)size * 4, caught);
    handle(count, 0);
    stuff(side->fd, 0);
    ask(side, 's');
    SHOW(send(side->fd, bytes, size, 0));
    say("caught %d", caught);
    handle(count, SA_RESTART);
    ask(side, 's');
    ask(side, 'q');
    SHOW(send(side->fd, bytes, 100, 0));
    say("caught %d", caught);
    free(bytes);
    shutdown(side->fd, SHUT_WR);
}
/* Reads what has come, so that there is room again. */
static void drain(struct side *side) {
    await_bytes(side->fd, 1);
    while (recv(side->fd, in, sizeof(in), MSG_DONTWAIT) > 0) {}
}
static void sending_b(struct side *side) {
    for (char what; MUST(read(side->turn, &what, 1)) == 1 && what != 'q';) {
        if (what == 'd') {
            drain(side);
            tell(side);
        } else {
            await_asleep(side->other);
            kill(getppid(), SIGUSR1);
        }
    }
    await_asleep(side->other);
    while (recv(side->fd, in, sizeof(in), 0) > 0) {}
    say("end");
}
static void sending(void) { two_processes(AF_INET, sending_a, sending_b); }

/* A signal that comes in the middle of a large send, which need not sleep just then, ends it at the latest when it
 * would. */
enum { MIDWAYS = 12 };
static void midway_a(struct side *side) {
    size_t size = 64 * MIB;
    char *bytes = calloc(1, size);
    for (int round = 0; round < MIDWAYS; round++) {
        handle(count, round % 2 == 0 ? 0 : SA_RESTART);
        tell(side);
        long part = send(side->fd, bytes, size, 0);
        say("a part: %d, caught %d", part > 0 && part < (long)size, caught);
        MUST(write(side->turn, &part, sizeof(part)));
    }
    free(bytes);
}
static void midway_b(struct side *side) {
    static char bytes[256 * KIB];
    uint64_t random = 5;
    for (int round = 0; round < MIDWAYS; round++) {
        long got = 0, part, enough = (long)(next_random(&random) % (12 * MIB));
        hear(side);
        do got += MUST(recv(side->fd, bytes, sizeof(bytes), 0));
        while (got < enough);
        kill(getppid(), SIGUSR1);
        if (MUST(read(side->turn, &part, sizeof(part))) != sizeof(part)) fail("part");
        while (got < part)
            got += MUST(
                recv(side->fd, bytes, (size_t)(part - got) < sizeof(bytes) ? (size_t)(part - got) : sizeof(bytes), 0));
    }
}
static void midway(void) { two_processes(AF_INET, midway_a, midway_b); }

/* A blocked signal stays pending through recv; ppoll, pselect and epoll_pwait let it in. */
static void masks_a(struct side *side) {
    int fd = side->fd, set = (int)MUST(epoll_create1(0));
    struct pollfd ready = {fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    sigset_t usr1, open;
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(fd, &readable);
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    handle(count, SA_RESTART);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, &open);
    ask(side, 'r');
    SHOW(recv(fd, in, 100, 0));
    say("caught %d", caught);
    SHOW(ppoll(&ready, 1, NULL, &open));
    say("caught %d", caught);
    SHOW(raise(SIGUSR1));
    SHOW(pselect(fd + 1, &readable, NULL, NULL, NULL, &open));
    say("caught %d", caught);
    SHOW(raise(SIGUSR1));
    SHOW(epoll_pwait(set, &event, 1, -1, &open));
    say("caught %d", caught);
    SHOW(raise(SIGUSR1));
    SHOW(epoll_pwait2(set, &event, 1, NULL, &open));
    say("caught %d", caught);
    ask(side, 's');
    SHOW(ppoll(&ready, 1, NULL, &open));
    say("caught %d", caught);
    ask(side, 's');
    SHOW(epoll_pwait(set, &event, 1, -1, &open));
    say("caught %d", caught);
    /* Bytes and a pending signal at once: the bytes are told, the signal is taken as the call ends or later. */
    ask(side, 'b');
    SHOW(ppoll(&ready, 1, NULL, &open));
    SHOW(recv(fd, in, 100, 0));
    sigprocmask(SIG_SETMASK, &open, NULL);
    say("caught %d", caught);
    ask(side, 'q');
}
static void masks(void) { two_processes(AF_INET, masks_a, signaller); }

/* A pending signal that the mask lets in, by timeout: no time, hardly any, some; with nothing to read and with
 * bytes. */
static void masks_timeout_a(struct side *side) {
    int fd = side->fd, set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    struct pollfd ready = {fd, POLLIN, 0};
    struct timespec times[] = {{0, 0}, {0, 1}, {0, 20000}, {0, 20000000}};
    sigset_t usr1, open;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
    handle(count, SA_RESTART);
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    sigprocmask(SIG_BLOCK, &usr1, &open);
    for (int bytes = 0; bytes < 2; bytes++) {
        for (size_t i = 0; i < COUNT(times); i++) {
            fd_set readable;
            FD_ZERO(&readable);
            FD_SET(fd, &readable);
            MUST(raise(SIGUSR1));
            SHOW(ppoll(&ready, 1, &times[i], &open));
            say("caught %d", caught);
            MUST(raise(SIGUSR1));
            SHOW(pselect(fd + 1, &readable, NULL, NULL, &times[i], &open));
            say("caught %d, %d", caught, !!FD_ISSET(fd, &readable));
            MUST(raise(SIGUSR1));
            SHOW(epoll_pwait2(set, &event, 1, &times[i], &open));
            say("caught %d", caught);
            MUST(raise(SIGUSR1));
            SHOW(epoll_pwait(set, &event, 1, (int)i, &open));
            say("caught %d", caught);
            SHOW(ppoll(&ready, 1, &times[i], NULL));
            say("caught %d", caught);
        }
        if (bytes > 0) break;
        ask(side, 'b');
        await_bytes(fd, 10);
    }
    sigprocmask(SIG_SETMASK, &open, NULL);
    say("caught %d", caught);
    ask(side, 'q');
}
static void masks_timeout(void) { two_processes(AF_INET, masks_timeout_a, signaller); }

/* A handler that writes to, and reads from, the connection in whose calls its thread is. */
static void talk(int number) {
    (void)number;
    int kept = errno;
    if (send(handler_fd, "H", 1, MSG_NOSIGNAL | MSG_DONTWAIT) == 1) caught++;
    errno = kept;
}
static void talking_a(struct side *side) {
    handler_fd = side->fd;
    handle(talk, SA_RESTART);
    for (int i = 0; i < 5; i++) {
        ask(side, 's');
        SHOW(recv(side->fd, in, 1, 0)); /* the echo of what the handler sent */
    }
    say("caught %d", caught);
    ask(side, 'q');
}
static void talking_b(struct side *side) {
    for (;;) {
        char what;
        if (read(side->turn, &what, 1) != 1 || what == 'q') return;
        await_asleep(side->other);
        kill(getppid(), SIGUSR1);
        if (receive_all(side->fd, in, 1) != 1) fail("what the handler sent");
        await_asleep(side->other);
        send_all(side->fd, in, 1);
    }
}
static void talking(void) { two_processes(AF_INET, talking_a, talking_b); }

/* A handler that takes the bytes for which its thread sleeps. */
static void listen_in(int number) {
    (void)number;
    int kept = errno;
    char byte;
    while (recv(handler_fd, &byte, 1, MSG_DONTWAIT) == 1) caught++;
    errno = kept;
}
static void stealing_a(struct side *side) {
    handler_fd = side->fd;
    handle(listen_in, 0);
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    for (int i = 0; i < 3; i++) {
        sigprocmask(SIG_BLOCK, &usr1, NULL);
        tell(side);
        hear(side);
        await_bytes(side->fd, 5);
        sigprocmask(SIG_UNBLOCK, &usr1, NULL);
        say("caught %d", caught);
        SHOW(recv(side->fd, in, 10, MSG_DONTWAIT));
    }
    tell(side);
}
static void stealing_b(struct side *side) {
    for (int i = 0; i < 3; i++) {
        hear(side);
        send_all(side->fd, "12345", 5);
        kill(getppid(), SIGUSR1);
        tell(side);
    }
    hear(side);
}
static void stealing(void) { two_processes(AF_INET, stealing_a, stealing_b); }

/* A handler that receives what has come, or comes, for the receive in which its thread sleeps; that goes on to sleep,
 * and is woken by what comes next, or has what the handler has left. */
static const char *ways[] = {"all",    "a part", "all, waiting", "a part, waiting",
                             "a look", "poll",   "all there is", "epoll"};
static int handler_turn, handler_set;
static void take_away(int number) {
    (void)number;
    int kept = errno;
    struct pollfd ready = {handler_fd, POLLIN, 0};
    struct epoll_event event;
    char bytes[16], what = 'h';
    MUST(write(handler_turn, &what, 1)); /* B may send now */
    const char *way = ways[caught++];
    long count = strncmp(way, "a part", 6) == 0 ? 1 : 2;
    if (way == ways[0] || way == ways[1]) await_bytes(handler_fd, 2);
    if (strcmp(way, "a look") == 0 && recv(handler_fd, bytes, 2, MSG_PEEK) < 1) fail("a look");
    if (strcmp(way, "poll") == 0 && poll(&ready, 1, -1) != 1) fail("poll");
    if (strcmp(way, "epoll") == 0 && epoll_wait(handler_set, &event, 1, -1) != 1) fail("epoll_wait");
    bool there = strcmp(way, "all there is") == 0;
    for (long got = 0; got < count;) {
        ssize_t n = recv(handler_fd, bytes, (size_t)(count - got), there ? MSG_DONTWAIT : MSG_WAITALL);
        if (n == -1 && (!there || errno != EAGAIN)) fail("recv");
        if (n > 0) got += n;
    }
    if (there && recv(handler_fd, bytes, 2, MSG_DONTWAIT) != -1) fail("more");
    what = 'd';
    MUST(write(handler_turn, &what, 1));
    errno = kept;
}
static void taken_away_a(struct side *side) {
    handler_fd = side->fd;
    handler_turn = side->turn;
    handle(take_away, SA_RESTART);
    for (int i = 0; i < (int)COUNT(ways); i++) {
        if (strcmp(ways[i], "epoll") == 0) {
            struct epoll_event event = {.events = EPOLLIN};
            handler_set = (int)MUST(epoll_create1(0));
            MUST(epoll_ctl(handler_set, EPOLL_CTL_ADD, side->fd, &event));
        }
        say("%s", ways[i]);
        tell(side);
        memset(in, 0, sizeof(in));
        if (SHOW(recv(side->fd, in, 10, 0)) > 0) say("%s", in);
        say("caught %d", caught);
        tell(side);
    }
}
static void taken_away_b(struct side *side) {
    for (int i = 0; i < (int)COUNT(ways); i++) {
        bool part = strncmp(ways[i], "a part", 6) == 0;
        hear(side);
        await_asleep(side->other);
        kill(getppid(), SIGUSR1);
        hear(side);
        if (i >= 2 && strcmp(ways[i], "all there is") != 0) await_asleep(side->other);
        send_all(side->fd, "12", 2);
        hear(side);
        if (!part) {
            await_asleep(side->other);
            send_all(side->fd, "345", 3);
        }
        hear(side);
    }
}
static void taken_away(void) { two_processes(AF_INET, taken_away_a, taken_away_b); }

/* The same while another thread looks whether there is something: it need not wait for the one that sleeps again. */
static int spoken[2];
static void receive_two(int number) {
    (void)number;
    int kept = errno;
    char bytes[2] = "";
    MUST(write(handler_turn, bytes, 1));
    if (recv(handler_fd, bytes, 2, MSG_WAITALL) != 2) fail("recv");
    MUST(write(spoken[1], bytes, 1));
    errno = kept;
}
static void *look_beside(void *argument) {
    pid_t sleeper = *(pid_t *)argument;
    char byte = 0;
    sigset_t usr1;
    sigemptyset(&usr1);
    sigaddset(&usr1, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &usr1, NULL);
    MUST(write(handler_turn, &byte, 1));
    MUST(read(spoken[0], &byte, 1));
    await_asleep(sleeper);
    role = 'C';
    SHOW(recv(handler_fd, &byte, 1, MSG_DONTWAIT));
    MUST(write(handler_turn, &byte, 1));
    return NULL;
}
static void looked_beside_a(struct side *side) {
    pid_t self = this_task();
    pthread_t thread;
    handler_fd = side->fd;
    handler_turn = side->turn;
    MUST(pipe(spoken));
    handle(receive_two, SA_RESTART);
    start_thread(&thread, look_beside, &self);
    SHOW(recv(side->fd, in, 10, 0));
    pthread_join(thread, NULL);
    tell(side);
}
static void looked_beside_b(struct side *side) {
    hear(side); /* the thread holds the signal back */
    await_asleep(side->other);
    kill(getppid(), SIGUSR1);
    hear(side);
    await_asleep(side->other);
    send_all(side->fd, "12", 2);
    hear(side);
    send_all(side->fd, "345", 3);
    hear(side);
}
static void looked_beside(void) { two_processes(AF_INET, looked_beside_a, looked_beside_b); }

/* Timers on both sides interrupt everything, thousands of times, while their handlers put bytes into the stream. */
static void interject(int number) {
    (void)number;
    int kept = errno;
    if (caught < 3000 && send(handler_fd, "\xff", 1, MSG_DONTWAIT) == 1) caught++;
    errno = kept;
}
static void storm(struct side *side, void (*handler)(int)) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = side->leader ? SA_RESTART : 0};
    struct itimerval often = {{0, 200}, {0, 200}}, never = {0};
    sigset_t alarm;
    sigemptyset(&alarm);
    sigaddset(&alarm, SIGALRM);
    handler_fd = side->fd;
    caught = 0;
    MUST(sigaction(SIGALRM, &action, NULL));
    MUST(setitimer(ITIMER_REAL, &often, NULL));
    size_t sent = 0, received = 0, interjected = 0;
    while (sent < 2 * MIB || received < 2 * MIB) {
        if (sent < 2 * MIB) {
            for (size_t i = 0; i < 8192; i++) out[i] = (char)((sent + i) % 251);
            send_all(side->fd, out, 8192);
            sent += 8192;
        }
        size_t target = received + 8192;
        while (received < target) {
            ssize_t got = recv(side->fd, in, target - received, 0);
            if (got == -1 && errno == EINTR) continue;
            if (got <= 0) fail("recv");
            for (ssize_t i = 0; i < got; i++) {
                if (in[i] == '\xff') interjected++;
                else if ((unsigned char)in[i] != received++ % 251) fail("wrong byte");
            }
        }
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL));
    shutdown(side->fd, SHUT_WR);
    for (ssize_t got; (got = recv(side->fd, in, sizeof(in), 0)) != 0;) {
        for (ssize_t i = 0; i < got; i++) interjected += in[i] == '\xff';
    }
    say("sent %zu, received %zu", sent, received);
    /* Each tells the other how often its handler spoke. */
    int own = handler == interject ? caught : 0, other = 0;
    MUST(write(side->turn, &own, sizeof(own)));
    MUST(read(side->turn, &other, sizeof(other)));
    say("every word of the other's handler: %d", (size_t)other == interjected);
}
static void storm_quiet(struct side *side) { storm(side, count); }
static void storm_loud(struct side *side) { storm(side, interject); }
static void storm_count(void) { two_processes(AF_INET, storm_quiet, storm_quiet); }
static void storm_talk(void) { two_processes(AF_INET, storm_loud, storm_loud); }

/* A timer's handler receives in the middle of its thread's receives, while the path changes: every byte comes once, and
 * those of one receive follow one another. */
enum { TORN = 4 * MIB, MOST_RECEIVES = 1 << 16 };
static struct receive {
    char *bytes;
    size_t count;
} received[2][MOST_RECEIVES];
static size_t receives[2];
static char *next_bytes[2];
static volatile bool is_over;
static uint64_t dice[2] = {7, 8};
static ssize_t receive_some(int who, int flags) {
    uint64_t chance = next_random(&dice[who]);
    size_t size = 1 + (chance >> 8) % (chance % 4 == 0 ? 65536 : chance % 4 == 1 ? 1000 : 60);
    ssize_t got = recv(handler_fd, next_bytes[who], size, flags);
    if (got > 0) {
        if (receives[who] == MOST_RECEIVES) fail("receives");
        received[who][receives[who]++] = (struct receive){next_bytes[who], (size_t)got};
        next_bytes[who] += got;
    }
    if (got == 0) is_over = true;
    return got;
}
static void receive_between(int number) {
    (void)number;
    int kept = errno;
    for (int i = 0; i < 3 && !is_over; i++) {
        if (receive_some(1, MSG_DONTWAIT) == -1) {
            if (errno != EAGAIN) fail("recv in the handler");
            break;
        }
    }
    errno = kept;
}
/* Whether the receives of the two, each one's in their order, make up the stream. */
static bool make_up(const char *expected) {
    static struct { size_t place, at[2]; } either[MOST_RECEIVES]; /* where both fitted, and the first was tried */
    size_t place = 0, at[2] = {0, 0}, choices = 0;
    while (place < TORN || at[0] < receives[0] || at[1] < receives[1]) {
        bool fits[2];
        for (int who = 0; who < 2; who++) {
            struct receive *next = &received[who][at[who]];
            fits[who] = at[who] < receives[who] && next->count <= TORN - place
                        && memcmp(expected + place, next->bytes, next->count) == 0;
        }
        int who = fits[0] ? 0 : 1;
        if (fits[0] && fits[1]) {
            if (choices == COUNT(either)) return false;
            either[choices].place = place;
            memcpy(either[choices++].at, at, sizeof(at));
        } else if (!fits[0] && !fits[1]) {
            if (choices == 0) return false;
            place = either[--choices].place;
            memcpy(at, either[choices].at, sizeof(at));
            who = 1;
        }
        place += received[who][at[who]++].count;
    }
    return true;
}
static void torn_a(struct side *side) {
    struct itimerval often = {{0, 211}, {0, 211}}, never = {0};
    char *expected = malloc(TORN);
    for (int who = 0; who < 2; who++) next_bytes[who] = malloc(2 * TORN);
    fill(expected, TORN, 5, 0);
    handler_fd = side->fd;
    struct sigaction action = {.sa_handler = receive_between, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL));
    MUST(setitimer(ITIMER_REAL, &often, NULL));
    tell(side);
    while (!is_over) {
        if (receive_some(0, receives[0] % 4 ? 0 : MSG_DONTWAIT) == -1 && errno != EAGAIN) fail("recv");
    }
    MUST(setitimer(ITIMER_REAL, &never, NULL));
    say("the stream, torn and whole: %d", make_up(expected));
}
static void torn_b(struct side *side) {
    static char bytes[512 * KIB];
    uint64_t chance = 9;
    hear(side);
    for (size_t sent = 0; sent < TORN;) {
        int kind = (int)(next_random(&chance) % 16);
        size_t count = 1 + next_random(&chance) % (kind < 9 ? 200 : kind < 14 ? 8000 : sizeof(bytes));
        if (count > TORN - sent) count = TORN - sent;
        fill(bytes, count, 5, sent);
        send_all(side->fd, bytes, count);
        sent += count;
        if (kind % 4 == 0) usleep((useconds_t)(next_random(&chance) % 400));
    }
    shutdown(side->fd, SHUT_WR);
    while (recv(side->fd, bytes, 1, 0) > 0) {}
}
static void torn(void) { two_processes(AF_INET, torn_a, torn_b); }
/* A handler polls, waits, registers and closes on top of an epoll_wait of the same set. */
static struct {
    int set, talk, beside, listener, wrong;
    struct sockaddr_storage address;
} above;
static void expect(bool right) { above.wrong += !right; }
static void meddle(int number) {
    int before = errno;
    struct pollfd ready = {above.talk, POLLIN, 0}, set = {above.set, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 2}, told = {0};
    fd_set readable;
    (void)number;
    switch (caught++ % 8) {
    case 0:
        expect(poll(&ready, 1, 0) >= 0);
        expect(poll(&set, 1, 0) >= 0);
        break;
    case 1:
        FD_ZERO(&readable);
        FD_SET(above.talk, &readable);
        FD_SET(above.set, &readable);
        expect(select(above.set + above.talk + 1, &readable, NULL, NULL, &(struct timeval){0, 0}) >= 0);
        break;
    case 2: expect(epoll_ctl(above.set, EPOLL_CTL_MOD, above.beside, &event) == 0); break;
    case 3:
        expect(epoll_ctl(above.set, EPOLL_CTL_DEL, above.beside, NULL) == 0);
        expect(epoll_ctl(above.set, EPOLL_CTL_ADD, above.beside, &event) == 0);
        break;
    case 4: {
        int copies[] = {dup(above.talk), dup(above.beside), dup(above.set)};
        expect(poll(&(struct pollfd){copies[2], POLLIN, 0}, 1, 1) >= 0);
        for (size_t i = 0; i < COUNT(copies); i++) expect(close(copies[i]) == 0);
        break;
    }
    case 5:
        expect(epoll_wait(above.set, &told, 1, 0) == 0 || told.data.u64 == 1);
        expect(poll(&set, 1, 1) >= 0);
        break;
    default: {
        int one = connect_to(&above.address), other = accept(above.listener, NULL, NULL);
        event.data.u64 = 3;
        expect(epoll_ctl(above.set, EPOLL_CTL_ADD, other, &event) == 0);
        for (int i = 0; i < 12; i++) {
            char byte = (char)i;
            expect(send(one, &byte, 1, 0) == 1);
            expect(poll(&(struct pollfd){other, POLLIN, 0}, 1, -1) == 1);
            expect(epoll_wait(above.set, &told, 1, -1) == 1 && told.data.u64 != 2);
            expect(recv(other, &byte, 1, 0) == 1 && byte == i);
            expect(send(other, &byte, 1, 0) == 1 && recv(one, &byte, 1, 0) == 1);
        }
        expect(close(other) == 0 && close(one) == 0);
    }
    }
    /* However long this took, the thread goes on for a while. */
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 200}}, NULL);
    errno = before;
}
static void meddling_a(struct side *side) {
    struct itimerval first = {.it_value = {0, 200}}, never = {0};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1}, told;
    above.talk = side->fd;
    above.beside = another(side);
    above.listener = listen_on(AF_INET, &above.address);
    above.set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(above.set, EPOLL_CTL_ADD, above.talk, &event));
    event.data.u64 = 2;
    MUST(epoll_ctl(above.set, EPOLL_CTL_ADD, above.beside, &event));
    caught = 0;
    struct sigaction action = {.sa_handler = meddle, .sa_flags = SA_RESTART};
    MUST(sigaction(SIGALRM, &action, NULL));
    MUST(setitimer(ITIMER_REAL, &first, NULL));
    for (long rounds = 0; rounds < 1000 || caught < 1000; rounds++) {
        char byte = (char)rounds, answer;
        send_all(above.talk, &byte, 1);
        for (;;) {
            int count = epoll_wait(above.set, &told, 1, -1);
            if (count == -1 && errno == EINTR) continue;
            expect(count == 1 && told.data.u64 == 1);
            break;
        }
        if (receive_all(above.talk, &answer, 1) != 1 || answer != byte) fail("wrong byte");
    }
    MUST(sigaction(SIGALRM, &(struct sigaction){.sa_handler = SIG_IGN}, NULL));
    MUST(setitimer(ITIMER_REAL, &never, NULL));
    say("wrong %d", above.wrong);
    shutdown(above.talk, SHUT_WR);
}
static void meddling_b(struct side *side) {
    another(side);
    for (char byte; receive_all(side->fd, &byte, 1) == 1;) send_all(side->fd, &byte, 1);
}
static void meddling(void) { two_processes(AF_INET, meddling_a, meddling_b); }

/* A handler waits on a set while its thread registers ever more in it, and closes it. */
static volatile int growing_set = -1;
static void look_inside(int number) {
    int before = errno;
    struct epoll_event told;
    (void)number;
    caught++;
    if (growing_set >= 0 && epoll_wait(growing_set, &told, 1, 0) != 0) above.wrong++;
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {0, 30 + caught % 64}}, NULL);
    errno = before;
}
static void growing_a(struct side *side) {
    enum { SOCKETS = 200 };
    int sockets[SOCKETS], rounds = 0;
    struct itimerval first = {.it_value = {0, 30}}, never = {0};
    struct sigaction action = {.sa_handler = look_inside, .sa_flags = SA_RESTART};
    struct epoll_event event = {.events = EPOLLIN};
    for (int i = 0; i < SOCKETS; i++) sockets[i] = (int)MUST(fcntl(side->fd, F_DUPFD, 0));
    caught = 0;
    MUST(sigaction(SIGALRM, &action, NULL));
    MUST(setitimer(ITIMER_REAL, &first, NULL));
    for (; rounds < 200 || caught < 2000; rounds++) {
        int set = (int)MUST(epoll_create1(0));
        growing_set = set;
        for (int i = 0; i < SOCKETS; i++) MUST(epoll_ctl(set, EPOLL_CTL_ADD, sockets[i], &event));
        growing_set = -1;
        MUST(close(set));
    }
    MUST(sigaction(SIGALRM, &(struct sigaction){.sa_handler = SIG_IGN}, NULL));
    MUST(setitimer(ITIMER_REAL, &never, NULL));
    say("wrong %d", above.wrong);
    for (int i = 0; i < SOCKETS; i++) close(sockets[i]);
    tell(side);
}
static void growing(void) { two_processes(AF_INET, growing_a, hear); }

/* A handler removes, registers and closes many connections on top of an epoll_wait of the same set: it comes when that
 * writes to its array. The kernel says EFAULT instead, and the same is done then. */
enum { CROWD = 50 };
static struct {
    int set, gone[CROWD][2], fresh[CROWD][2], ended[CROWD][2];
    struct epoll_event *events;
} crowd;
static void pair_up(int (*pairs)[2]) {
    for (int i = 0; i < CROWD; i++) {
        pairs[i][1] = connect_to(&above.address);
        pairs[i][0] = (int)MUST(accept(above.listener, NULL, NULL));
        for (int n = 0; n < 40; n++) {
            char byte = (char)n;
            for (int way = 0; way < 2; way++) {
                MUST(send(pairs[i][way], &byte, 1, 0));
                MUST(recv(pairs[i][!way], &byte, 1, 0));
            }
        }
    }
}
static void change_crowd(int number) {
    (void)number;
    for (int i = 0; i < CROWD; i++) {
        struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1000 + (uint64_t)i};
        MUST(epoll_ctl(crowd.set, EPOLL_CTL_DEL, crowd.gone[i][0], NULL));
        MUST(epoll_ctl(crowd.set, EPOLL_CTL_ADD, crowd.fresh[i][0], &event));
        MUST(close(crowd.ended[i][0]));
    }
    MUST(mprotect(crowd.events, 4096, PROT_READ | PROT_WRITE));
}
static void crowded_a(struct side *side) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = 1};
    struct sigaction action = {.sa_handler = change_crowd};
    bool told[CROWD] = {false};
    int fresh = 0, others = 0, ends = 0;
    above.listener = listen_on(AF_INET, &above.address);
    pair_up(crowd.gone);
    pair_up(crowd.fresh);
    pair_up(crowd.ended);
    crowd.set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(crowd.set, EPOLL_CTL_ADD, side->fd, &event));
    for (int i = 0; i < CROWD; i++) {
        event.data.u64 = 2000 + (uint64_t)i;
        MUST(epoll_ctl(crowd.set, EPOLL_CTL_ADD, crowd.gone[i][0], &event));
        MUST(epoll_ctl(crowd.set, EPOLL_CTL_ADD, crowd.ended[i][0], &event));
    }
    crowd.events = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    MUST(sigaction(SIGSEGV, &action, NULL));
    tell(side);
    await_bytes(side->fd, 1);
    int count = -1;
    for (int tries = 0; tries < 20 && count == -1; tries++) {
        for (int i = 0; i < 3; i++) MUST(epoll_wait(crowd.set, &event, 1, -1));
        count = epoll_wait(crowd.set, crowd.events, 8, -1);
    }
    if (count == -1) {
        change_crowd(0);
        count = epoll_wait(crowd.set, crowd.events, 8, -1);
    }
    say("%d: %d", count, (int)crowd.events[0].data.u64);
    SHOW(receive_all(side->fd, in, 1));
    for (int i = 0; i < CROWD; i++) {
        MUST(send(crowd.gone[i][1], "g", 1, 0));
        MUST(send(crowd.fresh[i][1], "f", 1, 0));
    }
    while (fresh < CROWD) {
        count = (int)MUST(epoll_wait(crowd.set, crowd.events, 8, -1));
        for (int i = 0; i < count; i++) {
            uint64_t which = crowd.events[i].data.u64 - 1000;
            if (which >= CROWD || told[which]) {
                others++;
                continue;
            }
            told[which] = true;
            fresh++;
            MUST(recv(crowd.fresh[which][0], in, 1, MSG_DONTWAIT));
        }
    }
    say("others %d, then %ld", others, MUST(epoll_wait(crowd.set, crowd.events, 8, 0)));
    for (int i = 0; i < CROWD; i++) ends += recv(crowd.ended[i][1], in, 1, 0) == 0;
    say("ends %d", ends);
    tell(side);
}
static void crowded_b(struct side *side) {
    hear(side);
    send_all(side->fd, "x", 1);
    hear(side);
}
static void crowded(void) { two_processes(AF_INET, crowded_a, crowded_b); }

const struct scenario scenarios[] = {
    {"interrupted", interrupted, 0}, {"restarted", restarted, 0}, {"sending", sending, 0}, {"midway", midway, 0},
    {"masks", masks, 0},
    {"masks-timeout", masks_timeout, 0},
    {"talking", talking, 0}, {"stealing", stealing, 0}, {"storm", storm_count, 0}, {"storm-talk", storm_talk, 0},
    {"taken-away", taken_away, 0},   {"looked-beside", looked_beside, 0},
    {"torn", torn, 0},
    {"meddling", meddling, 0},       {"growing", growing, 0}, {"crowded", crowded, 0},
    {0},
};
