/* Epoll sets, and children of their process. */
#include "sets.h"

#include <spawn.h>
#include <stdatomic.h>
#include <sys/mman.h>

/* A set that a child inherits: both may wait in it. */
static void inherited_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), status = 0;
    add(set, side->fd, EPOLLIN, 5);
    ten_now(side);
    await_bytes(side->fd, 10);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        report("child", set, -1);
        SHOW(recv(side->fd, in, 4, 0));
        report("child again", set, -1);
        _exit(0);
    }
    MUST(waitpid(child, &status, 0));
    report("parent", set, -1);
    SHOW(recv(side->fd, in, 100, 0));
    report("read", set, 0);
    ten_later(side);
    report("woken", set, -1);
    quit(side);
}
static void inherited(void) { two_processes(AF_INET, inherited_a, ten_when_told); }

/* A registration is changed, and then again beside a child that has closed the socket, or waited for it: what the child
 * does leaves the parent's registration alone. The kernel knows of the first change by then, so that another program
 * does. */
static unsigned as_a_program_sees(int set) {
    char command[100], events[20] = "";
    int ends[2], status = 0;
    pid_t child;
    MUST(pipe2(ends, O_CLOEXEC));
    snprintf(command, sizeof(command), "sed -n 's/^tfd.*events: *\\([0-9a-f]*\\).*/\\1/p' /proc/self/fdinfo/%d", set);
    char *arguments[] = {"sh", "-c", command, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    if (posix_spawn(&child, "/bin/sh", &actions, NULL, arguments, environ) != 0) say("no shell");
    close(ends[1]);
    MUST(read(ends[0], events, sizeof(events) - 1));
    MUST(waitpid(child, &status, 0));
    close(ends[0]);
    return (unsigned)strtoul(events, NULL, 16) & 0xffff;
}
static void changed_twice_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0)), go[2], status = 0;
    struct epoll_event for_input = {EPOLLIN, {.u64 = 5}}, for_room = {EPOLLOUT, {.u64 = 5}};
    MUST(pipe(go));
    add(set, side->fd, EPOLLIN, 5);
    for (int way = 0; way < 4; way++) {
        bool removed = way & 1, waits = way & 2;
        ten_now(side);
        report("before", set, -1);
        SHOW(recv(side->fd, in, 100, 0));
        MUST(epoll_ctl(set, removed ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, side->fd, removed ? NULL : &for_room));
        say("told of %x", as_a_program_sees(set));
        MUST(epoll_ctl(set, removed ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, side->fd, &for_input));
        report("nothing", set, 0);
        MUST(epoll_ctl(set, removed ? EPOLL_CTL_DEL : EPOLL_CTL_MOD, side->fd, removed ? NULL : &for_room));
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            struct epoll_event event;
            char word;
            MUST(read(go[0], &word, 1));
            if (waits) MUST(epoll_wait(set, &event, 1, 0));
            close(side->fd);
            _exit(0);
        }
        MUST(epoll_ctl(set, removed ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, side->fd, &for_input));
        MUST(write(go[1], "g", 1));
        MUST(waitpid(child, &status, 0));
        report("nothing", set, 0);
        ten_later(side);
        report("woken", set, -1);
        SHOW(recv(side->fd, in, 100, 0));
    }
    quit(side);
}
static void changed_twice(void) { two_processes(AF_INET, changed_twice_a, ten_when_told); }

/* A set that has gone quiet, of which only a child is left. */
static void bequeath(struct side *side, atomic_int *over) {
    int fd = another(side), set = (int)MUST(epoll_create1(0));
    add(set, fd, EPOLLIN, 5);
    for (int i = 0; i < 3; i++) {
        tell(side);
        report("before", set, -1);
        SHOW(recv(fd, in, 10, 0));
    }
    for (int i = 0; i < 5; i++) report("quiet", set, 20);
    pid_t parent = getpid();
    if (MUST(fork()) != 0) _exit(0);
    while (getppid() == parent) nap_ms(1);
    role = 'C';
    for (int i = 0; i < 2; i++) {
        tell(side);
        report("the child", set, -1);
        SHOW(recv(fd, in, 10, 0));
    }
    *over = 1;
    _exit(0);
}
static void heir_a(struct side *side) {
    atomic_int *over = mmap(NULL, sizeof *over, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) bequeath(side, over);
    say("the parent %d", ended(child));
    while (!*over) nap_ms(1);
}
static void heir_b(struct side *side) {
    int fd = another(side);
    for (int i = 0; i < 5; i++) {
        hear(side);
        nap_ms(5); /* It is woken, rather than finds it. */
        send_all(fd, "0123456789", 10);
    }
    SHOW(recv(fd, in, 10, 0));
}
static void heir(void) { two_processes(AF_INET, heir_a, heir_b); }

/* Children come and go, and have nothing to do with what their parent's other thread waits for. */
enum { CHILDREN = 400 };
static void *fork_often(void *done) {
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) _exit(0);
        if (ended(child) != 0) fail("a child");
    }
    *(atomic_int *)done = 1;
    return NULL;
}
static void passers_by_a(struct side *side) {
    static atomic_int done;
    int set = (int)MUST(epoll_create1(0));
    pthread_t thread;
    add(set, side->fd, EPOLLIN, 5);
    start_thread(&thread, fork_often, &done);
    for (char more = 1; more;) {
        struct epoll_event event;
        MUST(epoll_wait(set, &event, 1, -1));
        MUST(recv(side->fd, in, 1, 0));
        more = !done;
        send_all(side->fd, &more, 1);
    }
    pthread_join(thread, NULL);
    say("all have answers");
}
static void passers_by_b(struct side *side) {
    uint64_t random = 1;
    for (char more = 1; more;) {
        send_all(side->fd, "x", 1);
        if (receive_all(side->fd, &more, 1) != 1) fail("no answer");
        if (next_random(&random) % 4 == 0) usleep(next_random(&random) % 3000);
    }
}
static void passers_by(void) { two_processes(AF_INET, passers_by_a, passers_by_b); }

/* A server with a process for each connection, which it accepted itself; each process has a set of its own. */
enum { SIBLINGS = 4, SIBLING_ROUNDS = 200 };
static void sibling(int fd) {
    struct epoll_event event;
    int set = (int)MUST(epoll_create1(0));
    add(set, fd, EPOLLIN, 0);
    send_all(fd, "ready", 5);
    for (;;) {
        MUST(epoll_wait(set, &event, 1, -1));
        ssize_t got = MUST(read(fd, in, sizeof(in)));
        if (got == 0) _exit(0);
        send_all(fd, in, (size_t)got);
    }
}
static void siblings_a(struct side *side) {
    pid_t children[SIBLINGS];
    for (int i = 0; i < SIBLINGS; i++) {
        int fd = (int)MUST(accept(side->listener, NULL, NULL));
        if ((children[i] = (pid_t)MUST(fork())) == 0) sibling(fd);
        close(fd);
    }
    /* All have used their connections before the other end does: they make no channels, they are offered some. */
    for (int i = 0; i < SIBLINGS; i++) await_asleep(children[i]);
    tell(side);
    hear(side);
    for (int i = 0; i < SIBLINGS; i++) {
        int status = -1;
        MUST(waitpid(children[i], &status, 0));
        say("a sibling ended with %d", status);
    }
}
static void siblings_b(struct side *side) {
    struct pollfd fds[SIBLINGS];
    for (int i = 0; i < SIBLINGS; i++) fds[i] = (struct pollfd){.fd = connect_to(&side->address), .events = POLLIN};
    hear(side);
    for (int i = 0; i < SIBLINGS; i++) {
        if (receive_all(fds[i].fd, in, 5) != 5) fail("greeting");
    }
    for (int round = 0; round < SIBLING_ROUNDS; round++) {
        /* Now all of them, now one. */
        int first = round % 5 ? 0 : round % SIBLINGS, count = round % 5 ? SIBLINGS : 1;
        for (int i = first; i < first + count; i++) send_all(fds[i].fd, &round, sizeof(round));
        for (int left = count; left > 0;) {
            MUST(poll(fds, SIBLINGS, -1));
            for (int i = 0; i < SIBLINGS; i++) {
                int answer = -1;
                if (!(fds[i].revents & POLLIN)) continue;
                if (receive_all(fds[i].fd, &answer, sizeof(answer)) != sizeof(answer) || answer != round) fail("echo");
                left--;
            }
        }
    }
    say("%d rounds", SIBLING_ROUNDS);
    for (int i = 0; i < SIBLINGS; i++) close(fds[i].fd);
    tell(side);
}
static void siblings(void) { two_processes(AF_INET, siblings_a, siblings_b); }

const struct scenario scenarios[] = {
    {"inherited", inherited, 0}, {"changed-twice", changed_twice, 0}, {"heir", heir, 0},
    {"passers-by", passers_by, 0}, {"siblings", siblings, 0},
    {0},
};
