/* A sender that does not block, and a reader that is slower: every way to wait for room. */
#include "harness.h"

#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>

enum { ALL = 12 * MIB, PIECE = 24 * KIB, SEED = 21 };

static char out[PIECE], in[64 * KIB];
static size_t sent;
static int set, outer;
static uint32_t kind;

/* Sends until it is refused, or all is sent; fails where there is no room although `told` of some. */
static bool send_what_fits(int fd, bool told) {
    while (sent < ALL) {
        size_t want = ALL - sent < PIECE ? ALL - sent : PIECE;
        fill(out, want, SEED, sent);
        ssize_t n = send(fd, out, want, MSG_NOSIGNAL);
        if (n == -1 && errno != EAGAIN) fail("send");
        if (n == -1 && told) fail("told of room where there is none");
        if (n == -1) return false;
        told = false;
        sent += (size_t)n;
    }
    return true;
}

static void by_poll(int fd) {
    struct pollfd it = {fd, POLLIN | POLLOUT, 0};
    if (poll(&it, 1, -1) != 1 || it.revents != POLLOUT) fail("poll");
}
static void by_ppoll(int fd) {
    struct pollfd it[] = {{-1, 0, 0}, {fd, POLLIN | POLLOUT, 0}};
    if (ppoll(it, 2, &(struct timespec){60, 0}, NULL) != 1 || it[1].revents != POLLOUT) fail("ppoll");
}
/* More than are copied. */
static void by_poll_of_many(int fd) {
    static struct pollfd many[200];
    for (size_t i = 0; i < COUNT(many); i++) many[i] = (struct pollfd){i == 150 ? fd : -1, POLLIN | POLLOUT, 0};
    if (poll(many, COUNT(many), -1) != 1 || many[150].revents != POLLOUT) fail("poll of many");
}
static void by_select(int fd) {
    fd_set read, write;
    FD_ZERO(&read);
    FD_ZERO(&write);
    FD_SET(fd, &read);
    FD_SET(fd, &write);
    if (select(fd + 1, &read, &write, NULL, NULL) != 1 || !FD_ISSET(fd, &write)) fail("select");
}
static void in_set(uint32_t wanted) {
    struct epoll_event it;
    if (epoll_wait(set, &it, 1, -1) != 1 || !(it.events & wanted) || it.events & (EPOLLERR | EPOLLHUP))
        fail("epoll_wait");
}
static void by_epoll(int fd) {
    (void)fd;
    in_set(EPOLLOUT);
}
/* Asks for room only while it waits for some. */
static void by_change(int fd) {
    struct epoll_event it = {.events = EPOLLIN | EPOLLOUT};
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &it));
    in_set(EPOLLOUT);
    it.events = EPOLLIN;
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &it));
}
static void by_one_shot(int fd) {
    struct epoll_event it = {.events = EPOLLOUT | EPOLLONESHOT};
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &it));
    in_set(EPOLLOUT);
}
static void by_outer(int fd) {
    (void)fd;
    struct epoll_event it;
    if (epoll_wait(outer, &it, 1, -1) != 1 || it.events != EPOLLIN) fail("epoll_wait");
    in_set(EPOLLOUT);
}
static void by_poll_of_set(int fd) {
    (void)fd;
    struct pollfd it = {set, POLLIN, 0};
    if (poll(&it, 1, -1) != 1 || it.revents != POLLIN) fail("poll");
    in_set(EPOLLOUT);
}

static void (*wait_for_room)(int fd);

static void sender(struct side *side) {
    set_nonblocking(side->fd, true);
    set = (int)MUST(epoll_create1(0)), outer = (int)MUST(epoll_create1(0));
    struct epoll_event it = {.events = EPOLLIN}, of_set = {.events = EPOLLIN};
    if (kind) MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &it));
    if (wait_for_room == by_outer) MUST(epoll_ctl(outer, EPOLL_CTL_ADD, set, &of_set));
    /* Something to sleep for, so that it is known how this side waits. */
    struct pollfd first = {side->fd, POLLIN, 0};
    tell(side);
    if (kind) in_set(EPOLLIN);
    else SHOW(poll(&first, 1, -1));
    SHOW(recv(side->fd, in, 10, 0));
    it.events = kind;
    if (kind) MUST(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &it));
    for (bool told = false; !send_what_fits(side->fd, told); told = true) wait_for_room(side->fd);
    hear(side);
    say("all is there");
}
/* Receives what there is, which is to be the stream from `at` on; how much. */
static size_t read_some(int fd, size_t at) {
    ssize_t got = recv(fd, in, sizeof(in), 0);
    if (got <= 0 || differs(in, (size_t)got, SEED, at) != -1) fail("wrong bytes");
    return (size_t)got;
}
static void read_all(int fd, size_t all) {
    for (size_t at = 0; at < all;) at += read_some(fd, at);
}
static void reader(struct side *side) {
    hear(side);
    await_asleep(side->other);
    send_all(side->fd, "go", 2);
    size_t at = 0;
    while (at < ALL) {
        at += read_some(side->fd, at);
        /* Slower than its sender, and at times much so. */
        if (at % 7 == 0) nap_ms(1);
    }
    tell(side);
}
static void stream(void (*way)(int fd), uint32_t events) {
    wait_for_room = way, kind = events;
    two_processes(AF_INET, sender, reader);
}
static void polls(void) { stream(by_poll, 0); }
static void ppolls(void) { stream(by_ppoll, 0); }
static void polls_many(void) { stream(by_poll_of_many, 0); }
static void selects(void) { stream(by_select, 0); }
static void level(void) { stream(by_epoll, EPOLLIN | EPOLLOUT); }
static void changes(void) { stream(by_change, EPOLLIN); }
static void edge(void) { stream(by_epoll, EPOLLIN | EPOLLOUT | EPOLLET); }
static void edge_of_room(void) { stream(by_epoll, EPOLLIN | EPOLLOUT | EPOLLET | EPOLLRDHUP); }
static void one_shot(void) { stream(by_one_shot, EPOLLOUT | EPOLLONESHOT); }
static void inner(void) { stream(by_outer, EPOLLIN | EPOLLOUT); }
static void inner_edge(void) { stream(by_outer, EPOLLIN | EPOLLOUT | EPOLLET); }
static void polled_set(void) { stream(by_poll_of_set, EPOLLIN | EPOLLOUT); }

/* One thread sends what fits, again and again; another sleeps on the set meanwhile, and is told of the room. */
static struct side *mine;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *told_of_room(void *none) {
    (void)none;
    for (bool all = false; !all;) {
        struct epoll_event it;
        if (epoll_wait(set, &it, 1, -1) != 1) fail("epoll_wait");
        pthread_mutex_lock(&lock);
        all = send_what_fits(mine->fd, false);
        pthread_mutex_unlock(&lock);
    }
    /* An edge goes to one of the threads: another, for the next. */
    struct epoll_event again = {.events = kind};
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, mine->fd, &again));
    return NULL;
}
static void crew_sender(struct side *side) {
    set_nonblocking(side->fd, true);
    mine = side, set = (int)MUST(epoll_create1(0));
    struct epoll_event it = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &it));
    tell(side);
    in_set(EPOLLIN);
    SHOW(recv(side->fd, in, 10, 0));
    it.events = kind;
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, side->fd, &it));
    /* The edge that is there already. */
    if (kind & EPOLLET) in_set(EPOLLOUT);
    pthread_t threads[2];
    for (size_t i = 0; i < COUNT(threads); i++) start_thread(&threads[i], told_of_room, NULL);
    nap_ms(20);
    pthread_mutex_lock(&lock);
    send_what_fits(side->fd, false);
    pthread_mutex_unlock(&lock);
    hear(side);
    tell(side);
    for (size_t i = 0; i < COUNT(threads); i++) pthread_join(threads[i], NULL);
    say("all is there");
}
static void crew_reader(struct side *side) {
    reader(side);
    hear(side);
    MUST(shutdown(side->fd, SHUT_WR));
}
static void crew(uint32_t events) {
    kind = events;
    two_processes(AF_INET, crew_sender, crew_reader);
}
static void crew_level(void) { crew(EPOLLIN | EPOLLOUT); }
static void crew_edge(void) { crew(EPOLLIN | EPOLLOUT | EPOLLET); }

/* The other side answers instead of reading; then it is killed with all unread, or goes on after a rest. */
enum { ANSWERS, IS_KILLED, RESTS };
static int fate;
static void stuck_sender(struct side *side) {
    set_nonblocking(side->fd, true);
    struct pollfd it = {side->fd, POLLIN, 0};
    tell(side);
    SHOW(poll(&it, 1, -1));
    SHOW(recv(side->fd, in, 10, 0));
    size_t before = sent;
    send_what_fits(side->fd, false);
    say("some was sent: %d", sent > before);
    it.events = POLLIN | POLLOUT;
    SHOW(poll(&it, 1, 0));
    SHOW(poll(&it, 1, 50));
    if (fate == IS_KILLED) {
        MUST(kill(side->peer, SIGKILL));
        it.events = POLLOUT;
        SHOW(poll(&it, 1, -1));
        say("events %x", it.revents);
        SHOW(send(side->fd, out, 1, MSG_NOSIGNAL));
        return;
    }
    tell(side);
    SHOW(poll(&it, 1, -1));
    say("events %x", it.revents);
    SHOW(recv(side->fd, in, 10, 0));
    tell(side);
    while (!send_what_fits(side->fd, false)) by_poll(side->fd);
    hear(side);
}
static void stuck_reader(struct side *side) {
    hear(side);
    await_asleep(side->other);
    send_all(side->fd, "go", 2);
    hear(side);
    send_all(side->fd, "answer", 6);
    hear(side);
    if (fate == RESTS) nap_ms(1500);
    read_all(side->fd, ALL);
    tell(side);
}
static void stuck(int what) {
    fate = what;
    two_processes(AF_INET, stuck_sender, stuck_reader);
}
static void answers(void) { stuck(ANSWERS); }
static void is_killed(void) { stuck(IS_KILLED); }
static void rests(void) { stuck(RESTS); }

/* Things that a program may do between a send that is refused and its wait for room. After each, it learns of room,
 * unless it was told by its own set meanwhile. */
static bool was_told;
static void looks_first(int fd) {
    (void)fd;
    struct epoll_event it;
    was_told = MUST(epoll_wait(set, &it, 1, 1)) == 1;
}
static void asks_by_poll(int fd) {
    struct pollfd it = {fd, POLLOUT, 0};
    MUST(poll(&it, 1, 5000));
}
static void asks_by_select(int fd) {
    fd_set write;
    FD_ZERO(&write);
    FD_SET(fd, &write);
    MUST(select(fd + 1, NULL, &write, NULL, &(struct timeval){5, 0}));
}
static void asks_by_number(int fd) {
    struct pollfd it = {fd, POLLOUT, 0};
    MUST(syscall(SYS_poll, &it, 1, 5000));
}
static void asks_another_set(int fd) {
    int other = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event it = {.events = EPOLLOUT | EPOLLET};
    MUST(epoll_ctl(other, EPOLL_CTL_ADD, fd, &it));
    MUST(epoll_wait(other, &it, 1, 5000));
    close(other);
}
static void asks_outer_set(int fd) {
    looks_first(fd);
    int other = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event it = {.events = EPOLLIN};
    MUST(epoll_ctl(other, EPOLL_CTL_ADD, set, &it));
    if (!was_told && MUST(epoll_wait(other, &it, 1, 5000)) != 1) fail("the outer set is not told of room");
    close(other);
}
static void asks_for_less(int fd) {
    struct epoll_event it = {.events = kind & ~(uint32_t)EPOLLOUT};
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &it));
    MUST(epoll_wait(set, &it, 1, 1));
    it.events = kind;
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &it));
}
static void asks_anew(int fd) {
    struct epoll_event it = {.events = kind};
    MUST(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &it));
}
static void forks(int fd) {
    (void)fd;
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) _exit(0);
    ended(child);
}
static void by_an_heir(int fd) {
    looks_first(fd);
    int heir = (int)MUST(dup(fd));
    close(fd);
    MUST(dup2(heir, fd));
    close(heir);
}
static void by_kernel(int fd) {
    looks_first(fd);
    /* From then on the stream is the kernel's. */
    int ends[2];
    MUST(pipe(ends));
    char byte;
    fill(&byte, 1, SEED, sent);
    MUST(write(ends[1], &byte, 1));
    set_nonblocking(fd, false);
    if (MUST(splice(ends[0], NULL, fd, NULL, 1, 0)) != 1) fail("splice");
    set_nonblocking(fd, true);
    sent++;
    close(ends[0]);
    close(ends[1]);
}
static void (*between)(int fd);

static void meddler(struct side *side) {
    int fd = side->fd;
    set_nonblocking(fd, true);
    set = (int)MUST(epoll_create1(0));
    struct epoll_event it = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &it));
    tell(side);
    in_set(EPOLLIN);
    SHOW(recv(fd, in, 10, 0));
    it.events = kind;
    MUST(epoll_ctl(set, EPOLL_CTL_MOD, fd, &it));
    while (!send_what_fits(fd, false)) {
        was_told = false;
        between(fd);
        if (!was_told && epoll_wait(set, &it, 1, 5000) != 1) fail("nobody tells of room");
    }
    hear(side);
    say("all is there");
}
static void meddles(void (*what)(int fd), uint32_t events) {
    between = what, kind = events;
    two_processes(AF_INET, meddler, reader);
}
#define LEVEL(name) static void name##_level(void) { meddles(name, EPOLLIN | EPOLLOUT); }
#define EDGE(name) static void name##_edge(void) { meddles(name, EPOLLIN | EPOLLOUT | EPOLLET); }
LEVEL(asks_by_poll) EDGE(asks_by_poll) LEVEL(asks_by_select) EDGE(asks_by_select) EDGE(asks_by_number)
LEVEL(asks_another_set) EDGE(asks_another_set) LEVEL(asks_outer_set) LEVEL(asks_for_less) EDGE(asks_for_less)
LEVEL(asks_anew) EDGE(asks_anew) LEVEL(forks) EDGE(forks) LEVEL(looks_first) LEVEL(by_an_heir) EDGE(by_an_heir)
LEVEL(by_kernel) EDGE(by_kernel)

/* One piece for each time that it is told of room: there is room then. */
static void one_by_one(struct side *side) {
    set_nonblocking(side->fd, true);
    struct pollfd it = {side->fd, POLLIN, 0};
    tell(side);
    SHOW(poll(&it, 1, -1));
    SHOW(recv(side->fd, in, 10, 0));
    while (sent < ALL) {
        by_poll(side->fd);
        size_t want = ALL - sent < 4 * KIB ? ALL - sent : 4 * KIB;
        fill(out, want, SEED, sent);
        ssize_t n = send(side->fd, out, want, MSG_NOSIGNAL);
        if (n <= 0) fail("told of room where there is none");
        sent += (size_t)n;
    }
    hear(side);
    say("all is there");
}
static void pieces(void) { two_processes(AF_INET, one_by_one, reader); }

/* A program that only sends, and waits by a poll or select for room alone: what it is told to have room for is taken
 * whole. */
enum { LARGE = 100 * KIB };
static void by_poll_for_room(int fd) {
    struct pollfd it = {fd, POLLOUT, 0};
    if (poll(&it, 1, -1) != 1 || it.revents != POLLOUT) fail("poll");
}
static void by_select_for_room(int fd) {
    fd_set write;
    FD_ZERO(&write);
    FD_SET(fd, &write);
    if (select(fd + 1, NULL, &write, NULL, NULL) != 1) fail("select");
}
static void only_sends(struct side *side) {
    static char large[LARGE];
    set_nonblocking(side->fd, true);
    for (; sent < ALL; sent += LARGE) {
        size_t want = ALL - sent < LARGE ? ALL - sent : LARGE;
        wait_for_room(side->fd);
        fill(large, want, SEED, sent);
        if (send(side->fd, large, want, MSG_NOSIGNAL) != (ssize_t)want) fail("part of a call");
    }
    hear(side);
    say("all is there");
}
static void reads_with_rests(struct side *side) {
    for (size_t at = 0; at < ALL;) {
        at += read_some(side->fd, at);
        if (at % 7 == 0) nap_ms(1);
    }
    tell(side);
}
static void only(void (*way)(int fd)) {
    wait_for_room = way;
    two_processes(AF_INET, only_sends, reads_with_rests);
}
static void only_polls(void) { only(by_poll_for_room); }
static void only_selects(void) { only(by_select_for_room); }

/* More than a ring takes, and less than the kernel, before the other side reads. The sender asks again and again, for a
 * short time or none. */
enum { AHEAD = 2 * MIB };

static bool poll_says(int fd) { return poll(&(struct pollfd){fd, POLLIN | POLLOUT, 0}, 1, 20) == 1; }
static bool select_says(int fd) {
    fd_set write;
    FD_ZERO(&write);
    FD_SET(fd, &write);
    return select(fd + 1, NULL, &write, NULL, &(struct timeval){0, 20000}) == 1;
}
static bool set_says(int fd) {
    struct epoll_event it;
    (void)fd;
    return epoll_wait(set, &it, 1, 0) == 1;
}
static bool (*says)(int fd);

static void sends_ahead(struct side *side) {
    set_nonblocking(side->fd, true);
    if (kind) {
        set = (int)MUST(epoll_create1(0));
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &(struct epoll_event){.events = kind}));
    }
    /* A poll that sleeps is known of. */
    if (!kind) poll(&(struct pollfd){side->fd, POLLIN, 0}, 1, 20);
    if (!says(side->fd)) fail("no room at first");
    while (sent < AHEAD) {
        size_t want = AHEAD - sent < PIECE ? AHEAD - sent : PIECE;
        fill(out, want, SEED, sent);
        ssize_t n = send(side->fd, out, want, MSG_NOSIGNAL);
        if (n == -1 && errno != EAGAIN) fail("send");
        if (n > 0) sent += (size_t)n;
        while (n == -1 && !says(side->fd)) {}
    }
    tell(side);
    hear(side);
    say("all is there");
}
static void reads_behind(struct side *side) {
    hear(side);
    read_all(side->fd, AHEAD);
    tell(side);
}
static void ahead(bool (*by)(int fd), uint32_t events) {
    says = by;
    kind = events;
    two_processes(AF_INET, sends_ahead, reads_behind);
}
/* Fail if `keeps_waiting` (crates/segment/src/switch/room.rs) does not have the direction go down. */
static void ahead_poll(void) { ahead(poll_says, 0); }
static void ahead_select(void) { ahead(select_says, 0); }
static void ahead_level(void) { ahead(set_says, EPOLLOUT); }
static void ahead_edge(void) { ahead(set_says, EPOLLIN | EPOLLOUT | EPOLLET); }

const struct scenario scenarios[] = {
    {"polls", polls, 0},       {"ppolls", ppolls, 0},         {"polls-many", polls_many, 0}, {"selects", selects, 0},
    {"level", level, 0}, {"changes", changes, 0}, {"edge", edge, 0}, {"edge-of-room", edge_of_room, 0},
    {"one-shot", one_shot, 0}, {"inner", inner, 0}, {"inner-edge", inner_edge, 0}, {"polled-set", polled_set, 0},
    {"crew-level", crew_level, 0}, {"crew-edge", crew_edge, 0},
    {"answers", answers, 0},   {"is-killed", is_killed, 0},   {"rests", rests, 0},           {"pieces", pieces, 0},
    {"poll-level", asks_by_poll_level, 0}, {"poll-edge", asks_by_poll_edge, 0},
    {"select-level", asks_by_select_level, 0}, {"select-edge", asks_by_select_edge, 0},
    {"number-edge", asks_by_number_edge, 0},
    {"other-level", asks_another_set_level, 0}, {"other-edge", asks_another_set_edge, 0},
    {"outer-level", asks_outer_set_level, 0},
    {"less-level", asks_for_less_level, 0}, {"less-edge", asks_for_less_edge, 0},
    {"anew-level", asks_anew_level, 0}, {"anew-edge", asks_anew_edge, 0},
    {"forks-level", forks_level, 0}, {"forks-edge", forks_edge, 0}, {"looks-level", looks_first_level, 0},
    {"heir-level", by_an_heir_level, 0}, {"heir-edge", by_an_heir_edge, 0},
    {"kernel-level", by_kernel_level, 0}, {"kernel-edge", by_kernel_edge, 0},
    {"ahead-poll", ahead_poll, 0}, {"ahead-select", ahead_select, 0}, {"ahead-level", ahead_level, 0},
    {"ahead-edge", ahead_edge, 0},
    {"only-polls", only_polls, 0}, {"only-selects", only_selects, 0}, {0},
};
