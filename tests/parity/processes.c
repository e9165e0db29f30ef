/* One connection in several processes: fork, vfork, posix_spawn, system, exec, passing it over a Unix socket. */
#include "harness.h"

#include <link.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pty.h>
#include <sched.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

extern char **environ;
static char in[64 * KIB], out[64 * KIB];

/* Echoes what comes until the end, in a thread of its own, which closes the connection. */
static void *echo_alone(void *argument) {
    int fd = (int)(intptr_t)argument;
    char bytes[4 * KIB];
    ssize_t got;
    while ((got = recv(fd, bytes, sizeof(bytes), 0)) > 0) send_all(fd, bytes, (size_t)got);
    close(fd);
    return NULL;
}
/* Sends test data and receives its echo. */
static void ask(const char *who, int fd, size_t count, uint64_t seed) {
    fill(out, count, seed, 0);
    send_all(fd, out, count);
    size_t got = receive_all(fd, in, count);
    say("%s: %zu came back, first difference %ld", who, got, differs(in, got, seed, 0));
}

/* Parent and children use the connection in turn; a child's end does not end it. */
static void forks_a(struct side *side) {
    for (uint64_t i = 0; i < 5; i++) {
        ask("parent", side->fd, 1000 + i, i);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            ask("child", side->fd, 3000 + i, 10 + i);
            pid_t grandchild = (pid_t)MUST(fork());
            if (grandchild == 0) {
                ask("grandchild", side->fd, 500, 20 + i);
                _exit(0);
            }
            ended(grandchild);
            if (i % 2) exit(0);
            _exit(0);
        }
        say("child %d", ended(child));
    }
    ask("parent", side->fd, 50000, 99);
}
static void forks(void) { two_processes(AF_INET, forks_a, echo_until_end); }

/* A process is forked while another thread is inside the loader's list of objects, whose lock the child never gets. */
static int loader_turn[2][2];
static int stay_in_loader(struct dl_phdr_info *object, size_t size, void *unused) {
    (void)object, (void)size, (void)unused;
    char byte;
    MUST(write(loader_turn[0][1], "", 1));
    MUST(read(loader_turn[1][0], &byte, 1));
    return 1;
}
static void *be_in_loader(void *unused) {
    dl_iterate_phdr(stay_in_loader, unused);
    return NULL;
}
static void loader_locked_a(struct side *side) {
    pthread_t thread;
    char byte;
    MUST(pipe(loader_turn[0]));
    MUST(pipe(loader_turn[1]));
    pthread_create(&thread, NULL, be_in_loader, NULL);
    MUST(read(loader_turn[0][0], &byte, 1));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        ask("child", another(side), 20000, 1);
        _exit(0);
    }
    say("child %d", ended(child));
    MUST(write(loader_turn[1][1], "", 1));
    pthread_join(thread, NULL);
    ask("parent", side->fd, 3000, 2);
}
static void loader_locked_b(struct side *side) {
    echo_alone((void *)(intptr_t)another(side));
    echo_until_end(side);
}
static void loader_locked(void) { two_processes(AF_INET, loader_locked_a, loader_locked_b); }

/* A child shuts its parent's connection down while the parent sleeps on an edge-triggered set, which has told of what
 * lies unread: it tells of that once more. */
static const int directions[] = {SHUT_WR, SHUT_RD, SHUT_RDWR};
static void shut_by_child_a(struct side *side) {
    for (size_t i = 0; i < COUNT(directions); i++) {
        int fd = another(side), set = (int)MUST(epoll_create1(0));
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
        MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
        tell(side);
        SHOW(epoll_wait(set, &event, 1, 5000));
        SHOW(event.events);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            close(set);
            await_asleep(getppid());
            _exit(shutdown(fd, directions[i]) ? 1 : 0);
        }
        event.events = 0;
        SHOW(epoll_wait(set, &event, 1, 5000));
        SHOW(event.events);
        say("child %d", ended(child));
        SHOW(recv(fd, in, 10, 0));
        tell(side);
        close(set);
        close(fd);
    }
}
static void shut_by_child_b(struct side *side) {
    for (size_t i = 0; i < COUNT(directions); i++) {
        int fd = another(side);
        hear(side);
        send_all(fd, "once more", 9);
        hear(side);
        close(fd);
    }
}
static void shut_by_child(void) { two_processes(AF_INET, shut_by_child_a, shut_by_child_b); }

/* The parent closes, the child goes on; the end comes when the last one closes. */
static void handed_a(struct side *side) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        ask("child", side->fd, 20000, 1);
        await_asleep(getppid());
        ask("child, parent waiting", side->fd, 20000, 2);
        _exit(0);
    }
    close(side->fd);
    say("child %d", ended(child));
}
static void handed(void) { two_processes(AF_INET, handed_a, echo_until_end); }

/* A word that processes share. */
static atomic_int *shared_word(void) {
    return (atomic_int *)MUST(
        mmap(NULL, sizeof(atomic_int), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
}
static void await_word(atomic_int *word, int value) {
    while (atomic_load(word) < value) nap_ms(1);
}

/* Every other way to fork. The parent closes before the child has made any call on the connection: the child goes on,
 * and the end comes when it ends. */
enum { BY_FORKPTY, BY_CLONE, BY_SYSCALL, BY_SYSCALL_CLONE, WAYS };
static atomic_int *closed;
static int go_on(void *argument) {
    int fd = (int)(intptr_t)argument;
    await_word(closed, 1);
    fill(out, 3000, 5, 0);
    send_all(fd, out, 3000);
    size_t got = receive_all(fd, in, 3000);
    return got == 3000 && differs(in, got, 5, 0) == -1 ? 0 : 1;
}
static pid_t fork_by(int way, int fd) {
    static char stack[256 * KIB] __attribute__((aligned(16)));
    int terminal;
    pid_t child = -1;
    switch (way) {
    case BY_FORKPTY: child = forkpty(&terminal, NULL, NULL, NULL); break;
    case BY_CLONE: return clone(go_on, stack + sizeof(stack), SIGCHLD, (void *)(intptr_t)fd);
#ifdef SYS_fork
    case BY_SYSCALL: child = (pid_t)syscall(SYS_fork); break;
#else
    case BY_SYSCALL: child = fork(); break;
#endif
    case BY_SYSCALL_CLONE: child = (pid_t)syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL); break;
    }
    if (child == 0) _exit(go_on((void *)(intptr_t)fd));
    return child;
}
static void fork_ways_a(struct side *side) {
    closed = shared_word();
    for (int way = 0; way < WAYS; way++) {
        int fd = another(side);
        ask("before", fd, 3000, 1);
        atomic_store(closed, 0);
        pid_t child = (pid_t)MUST(fork_by(way, fd));
        close(fd);
        atomic_store(closed, 1);
        say("%d: %d", way, ended(child));
    }
}
static void fork_ways_b(struct side *side) {
    struct side own = *side;
    for (int way = 0; way < WAYS; way++) {
        own.fd = another(side);
        echo_until_end(&own);
        close(own.fd);
    }
}
static void fork_ways(void) { two_processes(AF_INET, fork_ways_a, fork_ways_b); }

/* A process becomes a daemon: the parent ends, and the daemon alone has the connection, which it closes with bytes
 * unread. */
static void daemon_a(struct side *side) {
    atomic_int *gone = shared_word();
    int fd = another(side);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        MUST(daemon(1, 1));
        await_word(gone, 1);
        ask("the daemon", fd, 3000, 1);
        tell(side);
        await_bytes(fd, 3);
        close(fd);
        atomic_store(gone, 2);
        _exit(0);
    }
    close(fd);
    say("child %d", ended(child));
    atomic_store(gone, 1);
    await_word(gone, 2);
    tell(side);
}
static void daemon_b(struct side *side) {
    int fd = another(side);
    send_all(fd, in, receive_all(fd, in, 3000));
    hear(side);
    send_all(fd, "end", 3);
    hear(side);
    SHOW(recv(fd, in, 1, 0));
    close(fd);
}
static void becomes_daemon(void) { two_processes(AF_INET, daemon_a, daemon_b); }

/* A child that shares its parent's memory closes the connection, and executes. */
static int execute_true(void *argument) {
    char *arguments[] = {"true", NULL};
    close((int)(intptr_t)argument);
    execv("/bin/true", arguments);
    return 9;
}
static void clone_vfork_a(struct side *side) {
    static char stack[256 * KIB] __attribute__((aligned(16)));
    for (uint64_t round = 0; round < 3; round++) {
        int flags = CLONE_VM | CLONE_VFORK | SIGCHLD;
        pid_t child = (pid_t)MUST(clone(execute_true, stack + sizeof(stack), flags, (void *)(intptr_t)side->fd));
        say("child %d", ended(child));
        ask("parent", side->fd, 3000, round);
    }
}
static void clone_vfork(void) { two_processes(AF_INET, clone_vfork_a, echo_until_end); }

/* A server in the old style: accept, fork, the child serves. Both ends fork. */
static void per_child_a(struct side *side) {
    for (int i = 0; i < 4; i++) {
        int fd = (int)MUST(accept(side->listener, NULL, NULL));
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            struct side own = *side;
            own.fd = fd;
            role = 'C';
            warm(fd, true);
            echo_until_end(&own);
            _exit(0);
        }
        close(fd);
        say("child %d", ended(child));
    }
}
static void per_child_b(struct side *side) {
    for (uint64_t i = 0; i < 4; i++) {
        int fd = connect_to(&side->address);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            warm(fd, false);
            ask("client's child", fd, 30000, i);
            _exit(0);
        }
        ended(child);
        close(fd);
    }
}
static void per_child(void) { two_processes(AF_INET6, per_child_a, per_child_b); }

/* Parent writes, child reads, at the same time. */
static void split_a(struct side *side) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        for (size_t at = 0; at < 4 * MIB;) {
            size_t got = receive_all(side->fd, in, sizeof(in));
            if (got == 0 || differs(in, got, 7, at) != -1) fail("wrong byte");
            at += got;
        }
        say("all as sent");
        _exit(0);
    }
    for (size_t at = 0; at < 4 * MIB; at += sizeof(out)) {
        fill(out, sizeof(out), 7, at);
        send_all(side->fd, out, sizeof(out));
    }
    say("child %d", ended(child));
}
static void split(void) { two_processes(AF_INET, split_a, echo_until_end); }

/* Threads make connections, use them and close them, while another forks children that close what they inherit, or
 * leave that to their end. */
enum { LANES = 3, TURNS = 100, MESSAGES = 30 };
static atomic_int lanes_left;
static void *serve_one(void *argument) {
    int fd = (int)(intptr_t)argument;
    char bytes[40];
    while (receive_all(fd, bytes, sizeof(bytes)) == sizeof(bytes)) send_all(fd, bytes, sizeof(bytes));
    close(fd);
    return NULL;
}
static void beside_threads_a(struct side *side) {
    static pthread_t threads[LANES * TURNS];
    for (int i = 0; i < LANES * TURNS; i++) {
        start_thread(&threads[i], serve_one, (void *)(intptr_t)MUST(accept(side->listener, NULL, NULL)));
    }
    for (int i = 0; i < LANES * TURNS; i++) pthread_join(threads[i], NULL);
    say("all served");
}
static void *lane(void *argument) {
    struct side *side = argument;
    char bytes[40];
    for (uint64_t turn = 0; turn < TURNS; turn++) {
        int fd = connect_to(&side->address);
        for (uint64_t i = 0; i < MESSAGES; i++) {
            fill(bytes, sizeof(bytes), turn, i);
            send_all(fd, bytes, sizeof(bytes));
            if (receive_all(fd, bytes, sizeof(bytes)) != sizeof(bytes)) fail("end of stream");
            if (differs(bytes, sizeof(bytes), turn, i) != -1) fail("another's bytes");
        }
        MUST(shutdown(fd, SHUT_WR));
        if (receive_all(fd, bytes, 1) != 0) fail("more than was sent");
        close(fd);
    }
    lanes_left--;
    return NULL;
}
static void beside_threads_b(struct side *side) {
    pthread_t threads[LANES];
    lanes_left = LANES;
    for (int i = 0; i < LANES; i++) start_thread(&threads[i], lane, side);
    for (int i = 0; lanes_left > 0; i++) {
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            if (i % 2) close_range(3, 1000, 0);
            _exit(0);
        }
        if (ended(child) != 0) fail("child");
    }
    for (int i = 0; i < LANES; i++) pthread_join(threads[i], NULL);
    say("all done");
}
static void beside_threads(void) { two_processes(AF_INET, beside_threads_a, beside_threads_b); }

/* A child is killed while it sleeps in a receive; the parent goes on by poll. */
static void killed_asleep_a(struct side *side) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) _exit((int)recv(side->fd, in, 1, 0));
    await_asleep(child);
    MUST(kill(child, SIGKILL));
    say("child %d", ended(child));
    tell(side);
    SHOW(poll(&(struct pollfd){side->fd, POLLIN, 0}, 1, 5000));
    SHOW(recv(side->fd, in, 1, MSG_DONTWAIT));
    ask("parent", side->fd, 20000, 1);
}
static void killed_asleep_b(struct side *side) {
    hear(side);
    send_all(side->fd, "x", 1);
    echo_until_end(side);
}
static void killed_asleep(void) { two_processes(AF_INET, killed_asleep_a, killed_asleep_b); }

/* vfork, posix_spawn, system and popen in a process with a live connection that they have nothing to do with. */
static void bystanders_a(struct side *side) {
    char *arguments[] = {"true", NULL};
    pid_t child = 0;
    ask("before", side->fd, 5000, 1);
    child = vfork();
    if (child == 0) {
        close(side->fd);
        execv("/bin/true", arguments);
        _exit(9);
    }
    say("vfork %d", ended(child));
    ask("after vfork", side->fd, 5000, 2);
    SHOW(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ));
    say("posix_spawn %d", ended(child));
    ask("after posix_spawn", side->fd, 5000, 3);
    SHOW(system("exit 3"));
    ask("after system", side->fd, 5000, 4);
    FILE *pipe = popen("echo from a shell", "r");
    if (!fgets(in, 100, pipe)) fail("fgets");
    say("%.*s", (int)strcspn(in, "\n"), in);
    SHOW(pclose(pipe));
    ask("after popen", side->fd, 5000, 5);
    child = vfork();
    if (child == 0) _exit(execv("/nonexistent", arguments) == -1 ? 7 : 8);
    say("failed exec %d", ended(child));
    ask("after a failed exec", side->fd, 5000, 6);
}
static void bystanders(void) { two_processes(AF_INET, bystanders_a, echo_until_end); }

/* The connection becomes the standard input and output of cat, which need not know where it came from. */
static void to_cat(struct side *side, char **environment) {
    send_all(side->fd, "first ", 6);
    char *arguments[] = {"cat", NULL};
    MUST(dup2(side->fd, 0));
    MUST(dup2(side->fd, 1));
    close(side->fd);
    close(side->turn);
    execve("/bin/cat", arguments, environment);
    _exit(9);
}
static void exec_inherit(struct side *side) { to_cat(side, environ); }
static void exec_clean(struct side *side) {
    char *none[] = {NULL};
    to_cat(side, none);
}
static void cat_user(struct side *side) {
    long got = (long)receive_all(side->fd, in, 6);
    say_bytes("before exec", in, got);
    ask("cat", side->fd, 100, 1);
    ask("cat", side->fd, 60000, 2);
    send_all(side->fd, "tail", 4);
    SHOW(shutdown(side->fd, SHUT_WR));
    got = (long)receive_all(side->fd, in, 100);
    say_bytes("tail", in, got);
}
static void exec_cat(void) { two_processes(AF_INET, cat_user, exec_inherit); }
static void exec_cat_clean(void) { two_processes(AF_INET, cat_user, exec_clean); }

/* The same with bytes that were sent before the exec and not yet read. */
static void unread_user(struct side *side) {
    fill(out, 30000, 3, 0);
    send_all(side->fd, out, 30000);
    tell(side);
    long got = (long)receive_all(side->fd, in, 6);
    say_bytes("before exec", in, got);
    shutdown(side->fd, SHUT_WR);
    got = (long)receive_all(side->fd, in, 30000);
    say("%ld came back, first difference %ld", got, differs(in, 29000, 3, 1000));
}
static void exec_unread(struct side *side) {
    hear(side);
    await_bytes(side->fd, 30000);
    SHOW(receive_all(side->fd, in, 1000));
    exec_clean(side);
}
static void exec_cat_unread(void) { two_processes(AF_INET, unread_user, exec_unread); }

/* The same, and the sender has more to say: it hears the rest of its echo first, asleep in poll. */
static void ahead_user(struct side *side) {
    fill(out, 30000, 3, 0);
    send_all(side->fd, out, 30000);
    tell(side);
    long got = (long)receive_all(side->fd, in, 6);
    say_bytes("before exec", in, got);
    await_events(side->fd, POLLIN);
    got = (long)receive_all(side->fd, in, 29000);
    say("%ld came back, first difference %ld", got, differs(in, 29000, 3, 1000));
    ask("cat", side->fd, 40000, 4);
    SHOW(shutdown(side->fd, SHUT_WR));
    SHOW(recv(side->fd, in, 1, 0));
}
static void exec_cat_ahead(void) { two_processes(AF_INET, ahead_user, exec_unread); }

/* Executions that fail, and a program that reads nothing of what it is given, while more lies unread than a ring holds:
 * it can all be read afterwards. */
static long *amount;
static void much_unread(struct side *side) {
    char *arguments[] = {"true", NULL}, *none[] = {NULL};
    hear(side);
    SHOW(execve("/nonexistent", arguments, none));
    for (int round = 0; round < 2; round++) {
        pid_t child;
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, side->fd, 0);
        SHOW(posix_spawn(&child, "/bin/true", &actions, NULL, arguments, none));
        posix_spawn_file_actions_destroy(&actions);
        say("child %d", ended(child));
    }
    tell(side);
    long at = 0, got, wrong = -1;
    while ((got = recv(side->fd, in, 50000, 0)) > 0) {
        if (wrong == -1 && differs(in, (size_t)got, 5, (uint64_t)at) != -1)
            wrong = at + differs(in, (size_t)got, 5, (uint64_t)at);
        at += got;
    }
    say("first difference %ld, end %ld, missing %ld", wrong, got, *amount - at);
}
static void much_sent(struct side *side) {
    *amount = (long)stuff(side->fd, 5);
    tell(side);
    hear(side);
    SHOW(shutdown(side->fd, SHUT_WR));
}
static void exec_fails(void) {
    amount = mmap(NULL, sizeof(*amount), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    two_processes(AF_INET, much_unread, much_sent);
}

/* posix_spawn, system and popen give it to a child, with and without the library's environment. */
/* The same, and the connection has only just gone up behind bytes that are unread on the kernel path: they and what
 * follows them are cat's. */
enum { FRESH = 200 * KIB, SEEN = 100 * KIB, AFTERWARDS = 2000 };
static char fresh[FRESH + AFTERWARDS];
static void fresh_user(struct side *side) {
    fill(fresh, sizeof(fresh), 5, 0);
    send_all(side->fd, fresh, FRESH);
    tell(side);
    hear(side);
    send_all(side->fd, fresh + FRESH, AFTERWARDS / 2);
    send_all(side->fd, fresh + FRESH + AFTERWARDS / 2, AFTERWARDS / 2);
    tell(side);
    long got = (long)receive_all(side->fd, in, 6);
    say_bytes("before exec", in, got);
    got = (long)receive_all(side->fd, fresh, FRESH - SEEN + AFTERWARDS);
    say("%ld came back, first difference %ld", got, differs(fresh, FRESH - SEEN + AFTERWARDS, 5, SEEN));
    ask("cat", side->fd, 40000, 6);
    SHOW(shutdown(side->fd, SHUT_WR));
    SHOW(recv(side->fd, in, 1, 0));
}
static void fresh_cat(struct side *side) {
    hear(side);
    SHOW(receive_all(side->fd, fresh, SEEN));
    /* It is told once, and sleeps on. */
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    int set = (int)MUST(epoll_create1(EPOLL_CLOEXEC));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    SHOW(epoll_wait(set, &event, 1, -1));
    SHOW(epoll_wait(set, &event, 1, 20));
    tell(side);
    hear(side);
    close(set);
    exec_clean(side);
}
static void exec_cat_fresh(void) { two_processes(AF_INET, fresh_user, fresh_cat); }

/* A connection becomes the standard input with bytes unread, at both ends at once, and is read by its descriptor. */
static void become_stdin(struct side *side, int kept, size_t count, uint64_t seed) {
    static char bytes[300 * KIB];
    MUST(dup2(side->fd, 0));
    size_t got = receive_all(0, bytes, count);
    say("%zu bytes, first difference %ld", got, differs(bytes, got, seed, 0));
    MUST(dup2(kept, 0));
    close(kept);
}
static void stdin_unread(struct side *side, bool first) {
    int kept = (int)MUST(dup(0));
    for (int i = 0; i < 10; i++) {
        if (first) send_all(side->fd, "x", 1);
        if (receive_all(side->fd, in, 1) != 1) fail("answer");
        if (!first) send_all(side->fd, "y", 1);
    }
    fill(out, 5000, first, 0);
    send_all(side->fd, out, 5000);
    tell(side);
    hear(side);
    become_stdin(side, kept, 5000, !first);
    tell(side);
    hear(side);
}
static void stdin_unread_a(struct side *side) { stdin_unread(side, true); }
static void stdin_unread_b(struct side *side) { stdin_unread(side, false); }
static void stdin_both(void) { two_processes(AF_INET, stdin_unread_a, stdin_unread_b); }

/* The same for an end whose other end has never received, and sleeps in poll: nothing can tell that one. */
static void stdin_mute_a(struct side *side) {
    int fd = (int)MUST(accept(side->listener, NULL, NULL));
    for (int i = 0; i < 40; i++) {
        send_all(fd, out, 100);
        hear(side);
    }
    fill(out, 5000, 1, 0);
    send_all(fd, out, 5000);
    tell(side);
    await_events(fd, POLLIN);
    SHOW(recv(fd, in, 1, 0));
    close(fd);
}
static void stdin_mute_b(struct side *side) {
    int fd = connect_to(&side->address), kept = (int)MUST(dup(0));
    for (int i = 0; i < 40; i++) {
        receive_all(fd, in, 100);
        tell(side);
    }
    hear(side);
    await_asleep(side->other);
    struct side mute = {.fd = fd};
    become_stdin(&mute, kept, 5000, 1);
    send_all(fd, "z", 1);
}
static void stdin_mute(void) { two_processes(AF_INET, stdin_mute_a, stdin_mute_b); }

/* The same with more unread than a small ring holds: the sender has gone down behind it. */
static void stdin_much_a(struct side *side) {
    static char bytes[300 * KIB];
    fill(bytes, sizeof(bytes), 7, 0);
    send_all(side->fd, "x", 1);
    if (receive_all(side->fd, in, 1) != 1) fail("answer");
    send_all(side->fd, bytes, sizeof(bytes));
    tell(side);
    if (receive_all(side->fd, in, 1) != 1) fail("the end");
}
static void stdin_much_b(struct side *side) {
    int kept = (int)MUST(dup(0));
    if (receive_all(side->fd, in, 1) != 1) fail("first");
    send_all(side->fd, "y", 1);
    hear(side);
    become_stdin(side, kept, 300 * KIB, 7);
    send_all(side->fd, "z", 1);
}
static void stdin_much(void) { two_processes(AF_INET, stdin_much_a, stdin_much_b); }

static void spawn_b(struct side *side) {
    char *arguments[] = {"cat", NULL}, *none[] = {NULL};
    for (int rounds = 0; rounds < 2; rounds++) {
        int fd = another(side);
        pid_t child;
        posix_spawn_file_actions_t actions;
        posix_spawn_file_actions_init(&actions);
        posix_spawn_file_actions_adddup2(&actions, fd, 0);
        posix_spawn_file_actions_adddup2(&actions, fd, 1);
        SHOW(posix_spawn(&child, "/bin/cat", &actions, NULL, arguments, rounds ? none : environ));
        posix_spawn_file_actions_destroy(&actions);
        close(fd);
        say("cat %d", ended(child));
    }
    int fd = another(side), low = (int)MUST(dup2(fd, 9));
    SHOW(system("echo question >&9; read answer <&9; test \"$answer\" = answer"));
    ask("after the shell", low, 300, 5);
    FILE *shell = popen("echo another >&9; read answer <&9; echo \"$answer\"", "r");
    say_bytes("from the shell", in, (long)fread(in, 1, 100, shell));
    SHOW(pclose(shell));
    ask("after both", low, 300, 6);
}
static void spawn_a(struct side *side) {
    for (int rounds = 0; rounds < 2; rounds++) {
        int fd = another(side);
        ask("spawned cat", fd, 40000, 4);
        shutdown(fd, SHUT_WR);
        SHOW(recv(fd, in, 1, 0));
    }
    int fd = another(side);
    long got = (long)receive_all(fd, in, 9);
    say_bytes("question", in, got);
    send_all(fd, "answer\n", 7);
    got = (long)receive_all(fd, in, 300);
    send_all(fd, in, (size_t)got);
    got = (long)receive_all(fd, in, 8);
    say_bytes("another question", in, got);
    send_all(fd, "another answer\n", 15);
    got = (long)receive_all(fd, in, 300);
    send_all(fd, in, (size_t)got);
}
static void spawn(void) { two_processes(AF_INET, spawn_a, spawn_b); }

/* Threads that each give their connection to shells, by popen, system and posix_spawn at once. */
enum { SHELLS = 3, COMMANDS = 12 };
static int shell_fds[SHELLS];
static void *use_shells(void *argument) {
    int number = (int)(intptr_t)argument, fd = shell_fds[number];
    char command[200], line[100], *arguments[] = {"sh", "-c", command, NULL};
    for (int i = 0; i < COMMANDS; i++) {
        int status = -1;
        snprintf(command, sizeof(command), "echo %d %d >&%d; read answer <&%d; test \"$answer $MARK\" = '%d %d here'",
                 number, i, fd, fd, number, i);
        if (i % 3 == 0) {
            status = system(command);
        } else if (i % 3 == 1) {
            pid_t child;
            if (posix_spawn(&child, "/bin/sh", NULL, NULL, arguments, environ) != 0) fail("posix_spawn");
            status = ended(child);
        } else {
            strcat(command, " && echo right");
            FILE *pipe = popen(command, "r");
            if (!pipe || !fgets(line, sizeof(line), pipe) || strcmp(line, "right\n") != 0) fail("popen");
            status = pclose(pipe);
        }
        if (status != 0) fail(command);
        if (!getenv("MARK")) fail("getenv");
    }
    return NULL;
}
static void shells_a(struct side *side) {
    pthread_t threads[SHELLS];
    struct sigaction action;
    setenv("MARK", "here", 1);
    for (int i = 0; i < SHELLS; i++) {
        int fd = another(side);
        /* The shell knows one digit. */
        shell_fds[i] = fd < 7 ? (int)MUST(fcntl(fd, F_DUPFD, 7)) : fd;
        if (fd != shell_fds[i]) close(fd);
    }
    for (int i = 0; i < SHELLS; i++) start_thread(&threads[i], use_shells, (void *)(intptr_t)i);
    for (int i = 0; i < SHELLS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < SHELLS; i++) close(shell_fds[i]);
    MUST(sigaction(SIGINT, NULL, &action));
    say("SIGINT is %s", action.sa_handler == SIG_DFL ? "as it was" : "another's");
    for (char **variable = environ; *variable; variable++) {
        if (strncmp(*variable, "UNDERPASS_HANDOFF", 17) == 0) say("%s", *variable);
    }
}
static void shells_b(struct side *side) {
    pthread_t threads[SHELLS];
    for (int i = 0; i < SHELLS; i++) {
        start_thread(&threads[i], echo_alone, (void *)(intptr_t)another(side));
    }
    for (int i = 0; i < SHELLS; i++) pthread_join(threads[i], NULL);
}
static void shells(void) { two_processes(AF_INET, shells_a, shells_b); }

/* Results of popen, pclose, fclose and system, which are not libc's own here; and a thread is cancelled inside
 * system. */
static void *sleep_in_shell(void *argument) {
    (void)argument;
    if (system("exec sleep 100") == -1) fail("system");
    return NULL;
}
static void streams_a(struct side *side) {
    struct sigaction action;
    pthread_t thread;
    void *result;
    ask("before", side->fd, 3000, 1);
    SHOW(popen("true", "") != NULL);
    SHOW(popen("true", "rw") != NULL);
    SHOW(popen("true", "rx") != NULL);
    FILE *first = popen("cat; exit 4", "w"), *second = popen("cat >&2; exit 5", "we");
    say("close-on-exec %d %d", fcntl(fileno(first), F_GETFD), fcntl(fileno(second), F_GETFD));
    SHOW(fprintf(first, "through the first\n"));
    /* The second shell does not have the first stream, so the first one ends. */
    SHOW(pclose(first));
    SHOW(pclose(second));
    FILE *dead = popen("kill -9 $$", "r");
    SHOW(fgetc(dead));
    SHOW(pclose(dead));
    FILE *other = popen("exit 6", "r");
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) _exit(pclose(other) == -1 && errno == ECHILD ? 0 : 1);
    say("another's stream: %d", ended(child));
    SHOW(pclose(other));
    SHOW(system(NULL));
    SHOW(system("exit 7"));
    SHOW(system("kill -9 $$"));
    start_thread(&thread, sleep_in_shell, NULL);
    do {
        MUST(sigaction(SIGINT, NULL, &action));
        nap_ms(1);
    } while (action.sa_handler != SIG_IGN);
    nap_ms(50);
    pthread_cancel(thread);
    pthread_join(thread, &result);
    MUST(sigaction(SIGINT, NULL, &action));
    say("cancelled %d, SIGINT %s, left behind %d", result == PTHREAD_CANCELED,
        action.sa_handler == SIG_DFL ? "as it was" : "ignored", waitpid(-1, NULL, WNOHANG) > 0);
    ask("after", side->fd, 3000, 2);
}
static void streams(void) { two_processes(AF_INET, streams_a, echo_until_end); }

/* Every other call that executes, and programs that execute the next without having used the connection. */
enum { CALLS = 11 };
/* A program that loads no libraries, beside this one. */
static const char *fixed_cat(void) {
    static char path[4096];
    ssize_t length = (ssize_t)MUST(readlink("/proc/self/exe", path, sizeof(path) - 20));
    strcpy(memrchr(path, '/', (size_t)length), "/static-cat");
    return path;
}
static void execute(int call) {
    char *arguments[] = {"cat", NULL}, *command = "dd bs=1 count=3 status=none; env one=1 cat";
    switch (call) {
    case 0: execl("/bin/cat", "cat", "-", NULL); break;
    case 1: execlp("cat", "cat", "-u", "-u", "-u", "-u", "-u", "-", NULL); break;
    case 2: execle("/bin/cat", "cat", NULL, environ); break;
    case 3: execveat(AT_FDCWD, "/bin/cat", arguments, environ, 0); break;
    case 4: fexecve((int)MUST(open("/bin/cat", O_RDONLY | O_CLOEXEC)), arguments, environ); break;
    case 5: execvp("cat", arguments); break;
    case 6: execlp("sh", "sh", "-c", "exec env one=1 cat", NULL); break;
    case 7: execlp("sh", "sh", "-c", command, NULL); break;
    case 8: execl(fixed_cat(), "cat", NULL); break;
    case 9: execlp("env", "env", fixed_cat(), NULL); break;
    case 10: execlp("env", "env", "-i", "cat", NULL); break;
    }
}
static void calls_b(struct side *side) {
    for (int call = 0; call < CALLS; call++) {
        int fd = another(side);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            MUST(dup2(fd, 0));
            MUST(dup2(fd, 1));
            close(fd);
            execute(call);
            _exit(9);
        }
        close(fd);
        say("%d: %d", call, ended(child));
    }
    SHOW(execl("/nonexistent", "it", NULL));
    SHOW(execlp("/nonexistent", "it", "1", "2", "3", "4", "5", "6", "7", NULL));
    SHOW(execle("/nonexistent", "it", NULL, environ));
}
static void calls_a(struct side *side) {
    for (uint64_t call = 0; call < CALLS; call++) {
        int fd = another(side);
        ask("cat", fd, 3000, call);
        ask("cat", fd, 50, 10 + call);
        SHOW(shutdown(fd, SHUT_WR));
        SHOW(recv(fd, in, 1, 0));
        close(fd);
    }
}
static void exec_calls(void) { two_processes(AF_INET, calls_a, calls_b); }

static bool give_by_many; /* by sendmmsg, behind a message without a descriptor */
static void give(int socket, int fd) {
    char space[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {"x", 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &fd, sizeof(int));
    if (give_by_many) {
        struct mmsghdr two[] = {{.msg_hdr = {.msg_iov = &part, .msg_iovlen = 1}}, {.msg_hdr = message}};
        if (MUST(sendmmsg(socket, two, 2, 0)) != 2 || two[1].msg_len != 1) fail("sendmmsg");
        return;
    }
    if (MUST(sendmsg(socket, &message, 0)) != 1) fail("sendmsg");
}
static int take(int socket) {
    char space[CMSG_SPACE(sizeof(int))], byte;
    if (give_by_many && receive_all(socket, &byte, 1) != 1) fail("recv");
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = space, .msg_controllen = sizeof(space)};
    if (MUST(recvmsg(socket, &message, 0)) != 1) fail("recvmsg");
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(int));
    return fd;
}

/* This program again, in the middle of the scenario: four numbers tell it what it has. */
static void execute_itself(const char *scenario, int a, int b, int c, int d) {
    char text[60];
    snprintf(text, sizeof(text), "%d %d %d %d", a, b, c, d);
    setenv("PARITY_OWN", text, 1);
    MUST(execl("/proc/self/exe", "processes", scenario, NULL));
}
static bool is_executed(int own[4]) {
    const char *text = getenv("PARITY_OWN");
    if (!text) return false;
    role = 'C';
    return sscanf(text, "%d %d %d %d", &own[0], &own[1], &own[2], &own[3]) == 4;
}

static socklen_t meeting_place(int number, struct sockaddr_un *address) {
    memset(address, 0, sizeof(*address));
    address->sun_family = AF_UNIX;
    int len = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "parity %d", number);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)len);
}
static int door_of(int number) {
    struct sockaddr_un address;
    socklen_t len = meeting_place(number, &address);
    int door = (int)MUST(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    MUST(bind(door, (struct sockaddr *)&address, len));
    MUST(listen(door, 1));
    return door;
}
static int to_door_of(int number) {
    struct sockaddr_un address;
    socklen_t len = meeting_place(number, &address);
    int channel = (int)MUST(socket(AF_UNIX, SOCK_STREAM, 0));
    MUST(connect(channel, (struct sockaddr *)&address, len));
    return channel;
}

/* The scenario whose image the child becomes first, where it has a connection of its own before it is given this
 * one. */
static const char *apart;
static bool apart_comes; /* and makes the channel itself */
static bool apart_from_all; /* and does not load what this one may have been made to load */
/* A child that will be given the connection over the returned channel, and does with it what `use` says. */
static int to_child(struct side *side, pid_t *child, void (*use)(int fd, int channel)) {
    int channel[2], self = getpid(), door = apart_comes ? door_of(self) : -1;
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    *child = (pid_t)MUST(fork());
    if (*child == 0) {
        role = 'C';
        close(side->fd);
        close(channel[0]);
        if (apart) {
            if (apart_from_all) unsetenv("LD_PRELOAD");
            execute_itself(apart, channel[1], self, 0, 0);
        }
        use(take(channel[1]), channel[1]);
        _exit(0);
    }
    close(channel[1]);
    if (apart_comes) channel[0] = (int)MUST(accept(door, NULL, NULL));
    char byte;
    if (apart && receive_all(channel[0], &byte, 1) != 1) fail("the image");
    return channel[0];
}
static void hand_over(struct side *side, int channel) {
    give(channel, side->fd);
    close(side->fd);
}

/* The connection is given to another process and back, with bytes under way. */
static void use_and_return(int fd, int channel) {
    long got = (long)receive_all(fd, in, 700);
    say("%ld of the echo, first difference %ld", got, differs(in, 700, 1, 300));
    ask("the taker", fd, 40000, 2);
    give(channel, fd);
}
static void passed_a(struct side *side) {
    pid_t child;
    int channel = to_child(side, &child, use_and_return);
    fill(out, 1000, 1, 0);
    send_all(side->fd, out, 1000);
    say("%zu", receive_all(side->fd, in, 300));
    await_bytes(side->fd, 700);
    hand_over(side, channel);
    int back = take(channel);
    say("child %d", ended(child));
    ask("back again", back, 40000, 3);
    close(back);
}
static void passed(void) { two_processes(AF_INET, passed_a, echo_until_end); }
static void passed_among_a(struct side *side) {
    give_by_many = true;
    passed_a(side);
}
static void passed_among(void) { two_processes(AF_INET, passed_among_a, echo_until_end); }

static void say_more(int fd, size_t count, uint64_t at) {
    size_t got = receive_all(fd, in, count);
    say("%zu more, first difference %ld", got, differs(in, got, 1, at));
}

/* The same from child to child. Each child has inherited the connection too, and closes that descriptor when the sender
 * of the message has closed its own: so for a moment only the message has the connection. */
static void pass_on(int fd, int left) {
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    atomic_int *is_closed = shared_word();
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = (char)('E' - left);
        await_word(is_closed, 1);
        close(fd);
        fd = take(channel[1]);
        say_more(fd, 200, 1000 - 200 * ((uint64_t)left + 1));
        if (left > 0) {
            pass_on(fd, left - 1);
        } else {
            ask("the last", fd, 40000, 2);
            close(fd);
        }
        _exit(0);
    }
    give(channel[0], fd);
    close(fd);
    *is_closed = 1;
    say("child %d", ended(child));
}
static void passed_on_a(struct side *side) {
    fill(out, 1000, 1, 0);
    send_all(side->fd, out, 1000);
    say("%zu", receive_all(side->fd, in, 400));
    await_bytes(side->fd, 600);
    pass_on(side->fd, 2);
}
static void passed_on(void) { two_processes(AF_INET, passed_on_a, echo_until_end); }

/* The same when this end has said that it will send no more, and waits for the rest; or when the other end has sent it
 * all, and has closed. */
static void read_to_the_end(int fd, int channel) {
    (void)channel;
    size_t got = receive_all(fd, in, sizeof(in));
    say("%zu of the echo, first difference %ld, then %zd", got, differs(in, got, 1, 300), recv(fd, in, 1, 0));
}
static void pass_half(struct side *side, bool over) {
    pid_t child;
    int channel = to_child(side, &child, read_to_the_end);
    fill(out, 40000, 1, 0);
    send_all(side->fd, out, 40000);
    say("%zu", receive_all(side->fd, in, 300));
    SHOW(shutdown(side->fd, SHUT_WR));
    if (over) await_events(side->fd, POLLHUP);
    else await_bytes(side->fd, 10000);
    hand_over(side, channel);
    say("child %d", ended(child));
}
static void passed_half_a(struct side *side) { pass_half(side, false); }
static void passed_over_a(struct side *side) { pass_half(side, true); }
static void passed_half(void) { two_processes(AF_INET, passed_half_a, echo_until_end); }
static void passed_over(void) { two_processes(AF_INET, passed_over_a, echo_until_end); }

/* The same three with a taker that does not share what it has with the giver. */
static bool is_apart(const char *scenario, void (*use)(int fd, int channel)) {
    int own[4];
    apart = scenario;
    if (!is_executed(own)) return false;
    struct sockaddr_storage address;
    int listener = listen_on(AF_INET, &address), one = connect_to(&address);
    int other = (int)MUST(accept(listener, NULL, NULL));
    for (int i = 0; i < 100; i++) {
        send_all(one, "x", 1);
        if (receive_all(other, in, 1) != 1) fail("recv");
    }
    int channel = apart_comes ? to_door_of(own[1]) : own[0];
    send_all(channel, "x", 1);
    use(take(channel), channel);
    return true;
}
static void passed_apart(void) {
    if (!is_apart("passed-apart", use_and_return)) two_processes(AF_INET, passed_a, echo_until_end);
}
static void passed_apart_all_a(struct side *side) {
    /* The other end is to be woken by a doorbell, which a receive that has begun on the kernel path would not know. */
    for (int i = 0; i < 40; i++) {
        send_all(side->fd, "x", 1);
        if (receive_all(side->fd, in, 1) != 1) fail("recv");
    }
    apart_from_all = true;
    passed_a(side);
}
static void passed_apart_all(void) {
    if (!is_apart("passed-apart-all", use_and_return)) two_processes(AF_INET, passed_apart_all_a, echo_until_end);
}
static void passed_apart_half(void) {
    if (!is_apart("passed-apart-half", read_to_the_end)) two_processes(AF_INET, passed_half_a, echo_until_end);
}
static void passed_apart_comes(void) {
    apart_comes = true;
    if (!is_apart("passed-apart-comes", read_to_the_end)) two_processes(AF_INET, passed_half_a, echo_until_end);
}
static void passed_apart_over(void) {
    if (!is_apart("passed-apart-over", read_to_the_end)) two_processes(AF_INET, passed_over_a, echo_until_end);
}

/* The number under which it arrives was a file's, which was read, and which libc has closed by itself. */
static void passed_number_a(struct side *side) {
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        close(side->fd);
        int number = (int)MUST(open("/dev/null", O_RDONLY));
        SHOW(read(number, in, 1));
        fclose(fdopen(number, "r"));
        int fd = take(channel[1]);
        say("the same number %d", fd == number);
        use_and_return(fd, channel[1]);
        _exit(0);
    }
    fill(out, 1000, 1, 0);
    send_all(side->fd, out, 1000);
    say("%zu", receive_all(side->fd, in, 300));
    await_bytes(side->fd, 700);
    hand_over(side, channel[0]);
    int back = take(channel[0]);
    say("child %d", ended(child));
    ask("back again", back, 40000, 3);
    close(back);
}
static void passed_number(void) { two_processes(AF_INET, passed_number_a, echo_until_end); }

/* Two connections that an image was handed share memory: it stays when one of them is closed, and new ones need memory
 * of their own more than a second later. */
enum { HANDED = 3, LATER = 6 };
static void close_one(int one, int other, int listener, int turn) {
    ask("one", one, 200, 1);
    ask("the other", other, 200, 2);
    close(one);
    nap_ms(1200);
    MUST(write(turn, "x", 1));
    for (uint64_t i = 0; i < LATER; i++) {
        int later = (int)MUST(accept(listener, NULL, NULL));
        warm(later, true);
        ask("a later one", later, 300, 10 + i);
    }
    ask("the other again", other, 30000, 3);
}
static void exec_two_a(struct side *side) {
    /* With a third, and the sides' own, the memory that the ends have first is full. */
    int one = another(side), other = another(side), third = another(side);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) execute_itself("exec-two", one, other, side->listener, side->turn);
    close(one);
    close(other);
    close(third);
    say("child %d", ended(child));
}
static void exec_two_b(struct side *side) {
    pthread_t threads[HANDED + LATER];
    for (int i = 0; i < HANDED + LATER; i++) {
        if (i == HANDED) hear(side);
        start_thread(&threads[i], echo_alone, (void *)(intptr_t)another(side));
    }
    for (int i = 0; i < HANDED + LATER; i++) pthread_join(threads[i], NULL);
    say("all echoed");
}
static void exec_two(void) {
    int own[4];
    if (is_executed(own)) close_one(own[0], own[1], own[2], own[3]);
    else two_processes(AF_INET, exec_two_a, exec_two_b);
}

/* The end of a child, of which no handler hears, ends no sleep of another thread, whatever its parent is in the middle
 * of. */
struct pairs {
    int fd;
    atomic_int task, whole, count;
};
static void *receive_pairs(void *argument) {
    struct pairs *pairs = argument;
    char two[2];
    ssize_t got;
    pairs->task = this_task();
    while ((got = recv(pairs->fd, two, 2, MSG_WAITALL)) > 0) {
        pairs->whole += got == 2;
        if (got == 1) receive_all(pairs->fd, two, 1);
        pairs->count++;
    }
    return NULL;
}
static void meet_briefly(struct side *side) {
    char byte;
    int one = connect_to(&side->address), other = (int)MUST(accept(side->listener, NULL, NULL));
    for (int i = 0; i < 2; i++) {
        send_all(one, "x", 1);
        receive_all(other, &byte, 1);
        send_all(other, "x", 1);
        receive_all(one, &byte, 1);
    }
    close(one);
    close(other);
}
static void child_ends_a(struct side *side) {
    enum { CHILDREN = 60 };
    int ends[2];
    pthread_t thread;
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
    struct pairs pairs = {.fd = ends[0]};
    start_thread(&thread, receive_pairs, &pairs);
    for (int i = 0; i < CHILDREN; i++) {
        MUST(write(ends[1], "a", 1));
        while (pairs.task == 0) sched_yield();
        await_asleep(pairs.task);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            usleep((useconds_t)(i * 7 % 400));
            _exit(0);
        }
        do meet_briefly(side);
        while (MUST(waitpid(child, NULL, WNOHANG)) == 0);
        MUST(write(ends[1], "b", 1));
        while (pairs.count <= i) sched_yield();
    }
    close(ends[1]);
    pthread_join(thread, NULL);
    say("%d of %d were whole", pairs.whole, CHILDREN);
}
static void child_ends(void) { two_processes(AF_INET, child_ends_a, echo_until_end); }

/* The first call of a new owner on a connection with unread bytes only asks for something, or changes how it goes
 * on. */
enum { BY_POLL, BY_SELECT, BY_EPOLL, BY_COUNT, BY_BLOCKING, FIRSTS };
static void own(int fd, int first, int turn) {
    struct epoll_event event = {.events = EPOLLIN};
    struct timeval limit = {5, 0};
    fd_set set;
    int count = 0;
    switch (first) {
    case BY_POLL: SHOW(poll(&(struct pollfd){fd, POLLIN, 0}, 1, 5000)); break;
    case BY_SELECT:
        FD_ZERO(&set);
        FD_SET(fd, &set);
        SHOW(select(fd + 1, &set, NULL, NULL, &limit));
        break;
    case BY_EPOLL: {
        int epoll = (int)MUST(epoll_create1(0));
        SHOW(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event));
        SHOW(epoll_wait(epoll, &event, 1, 5000));
        break;
    }
    case BY_COUNT:
        SHOW(ioctl(fd, FIONREAD, &count));
        say("%d to read", count);
        break;
    default: set_nonblocking(fd, false); break;
    }
    SHOW(receive_all(fd, in, 50));
    say("first difference %ld", differs(in, 50, 9, 0));
    if (first == BY_BLOCKING) {
        MUST(write(turn, "x", 1));
        SHOW(recv(fd, in, 1, 0));
    }
    send_all(fd, "done", 4);
}
static int unread(struct side *side, int first) {
    int fd = another(side);
    if (first == BY_BLOCKING) set_nonblocking(fd, true);
    await_bytes(fd, 50);
    return fd;
}
static void owned_b(struct side *side) {
    for (int first = 0; first < FIRSTS; first++) {
        int fd = another(side);
        fill(out, 51, 9, 0);
        send_all(fd, out, 50);
        if (first == BY_BLOCKING) {
            hear(side);
            nap_ms(30);
            send_all(fd, out + 50, 1);
        }
        say("%zu", receive_all(fd, in, 5));
        close(fd);
    }
}
static void exec_asks_a(struct side *side) {
    for (int first = 0; first < FIRSTS; first++) {
        int fd = unread(side, first);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) execute_itself("exec-asks", fd, first, side->turn, 0);
        close(fd);
        say("child %d", ended(child));
    }
}
static void exec_asks(void) {
    int taken[4];
    if (is_executed(taken)) own(taken[0], taken[1], taken[2]);
    else two_processes(AF_INET, exec_asks_a, owned_b);
}
static int taken_first, taken_turn;
static void take_over(int fd, int channel) {
    (void)channel;
    own(fd, taken_first, taken_turn);
}
static void passed_asks_a(struct side *side) {
    for (taken_first = 0; taken_first < FIRSTS; taken_first++) {
        pid_t child;
        taken_turn = side->turn;
        int channel = to_child(side, &child, take_over);
        int fd = unread(side, taken_first);
        give(channel, fd);
        close(fd);
        say("child %d", ended(child));
    }
}
static void passed_asks(void) { two_processes(AF_INET, passed_asks_a, owned_b); }

/* The taker is a program that was started by itself and does not load what this one may have been made to load. */
static void be_stranger(int number) {
    int fd = take(to_door_of(number));
    long got = (long)receive_all(fd, in, 39700);
    say("%ld of the echo, first difference %ld", got, differs(in, (size_t)got, 1, 300));
    ask("the stranger", fd, 40000, 2);
    SHOW(shutdown(fd, SHUT_WR));
    SHOW(recv(fd, in, 1, 0));
}
static void passed_away_a(struct side *side) {
    int self = getpid(), door = door_of(self);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        close(side->fd);
        unsetenv("LD_PRELOAD");
        execute_itself("passed-away", self, 0, 0, 0);
    }
    int channel = (int)MUST(accept(door, NULL, NULL));
    fill(out, 40000, 1, 0);
    send_all(side->fd, out, 40000);
    say("%zu", receive_all(side->fd, in, 300));
    await_bytes(side->fd, 10000);
    give(channel, side->fd);
    close(side->fd);
    say("child %d", ended(child));
}
static void passed_away(void) {
    int own[4];
    if (is_executed(own)) be_stranger(own[0]);
    else two_processes(AF_INET, passed_away_a, echo_until_end);
}

/* What was given away ends as its last owner leaves it: by FIN where all was read, otherwise by a reset. The giver
 * closes its descriptor before the taker comes, or afterwards, or it ends; it may be a child behind a filter. The taker
 * is a child, an image that loads what this one may have been made to load, or an image that does not. */
enum taker { CHILD, IMAGE, STRANGER };
enum fate { READ_AT_ONCE, READ_LATE, READ_AS_IT_COMES, GIVER_ENDS, GIVER_CONFINED, UNREAD, GIVER_LAST, KILLED, FATES };
enum { GIVEN_UNREAD = 500 };
static int fates = FATES;
static void take_and_end(int number, enum fate fate) {
    char byte;
    int channel = to_door_of(number);
    while (fate == KILLED) pause();
    if (fate == READ_LATE || fate == GIVER_CONFINED) await_bytes(channel, 2);
    int fd = take(channel);
    if (fate == READ_AS_IT_COMES && receive_all(channel, &byte, 1) != 1) fail("recv");
    size_t got = fate == UNREAD || fate == GIVER_LAST ? 0 : receive_all(fd, in, GIVEN_UNREAD);
    say("%d: %zu read, first difference %ld", fate, got, differs(in, got, 1, 0));
    close(fd);
}
static void give_in_child(int channel, int fd, bool confined) {
    struct sock_filter code[] = {BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    struct sock_fprog program = {COUNT(code), code};
    pid_t giver = (pid_t)MUST(fork());
    if (giver == 0) {
        if (confined) {
            MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
            MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
        }
        give(channel, fd);
        exit(0);
    }
    if (!confined) close(fd);
    say("giver %d", ended(giver));
    if (confined) close(fd);
}
static void give_away(struct side *side, int channel, int fd, enum fate fate) {
    if (fate == GIVER_ENDS || fate == GIVER_CONFINED) give_in_child(channel, fd, fate == GIVER_CONFINED);
    else give(channel, fd);
    if (fate == READ_AS_IT_COMES) {
        tell(side);
        await_bytes(fd, GIVEN_UNREAD);
    }
    if (fate != GIVER_ENDS && fate != GIVER_CONFINED && fate != GIVER_LAST) close(fd);
    if (fate == READ_LATE || fate == READ_AS_IT_COMES || fate == GIVER_CONFINED) send_all(channel, "x", 1);
}
static void given_a(struct side *side, enum taker to, const char *scenario) {
    int self = getpid();
    for (enum fate fate = 0; (int)fate < fates; fate++) {
        int door = door_of(self);
        pid_t taker = (pid_t)MUST(fork());
        if (taker == 0) {
            role = 'C';
            close(side->fd);
            if (to == STRANGER) unsetenv("LD_PRELOAD");
            if (to != CHILD) execute_itself(scenario, self, (int)fate, 0, 0);
            take_and_end(self, fate);
            _exit(0);
        }
        int channel = (int)MUST(accept(door, NULL, NULL)), fd = another(side);
        close(door);
        if (fate != READ_AS_IT_COMES) await_bytes(fd, GIVEN_UNREAD);
        give_away(side, channel, fd, fate);
        close(channel);
        if (fate == KILLED) MUST(kill(taker, SIGKILL));
        say("%d: taker %d", fate, ended(taker));
        if (fate == GIVER_LAST) close(fd);
    }
}
static void given_b(struct side *side) {
    fill(out, GIVEN_UNREAD, 1, 0);
    for (enum fate fate = 0; (int)fate < fates; fate++) {
        int fd = another(side);
        if (fate == READ_AS_IT_COMES) hear(side);
        send_all(fd, out, GIVEN_UNREAD);
        SHOW(recv(fd, in, 1, 0));
        close(fd);
    }
}
static void given_to_child_a(struct side *side) { given_a(side, CHILD, NULL); }
static void given_to_child(void) { two_processes(AF_INET, given_to_child_a, given_b); }
static void given_to_image_a(struct side *side) { given_a(side, IMAGE, "given-to-image"); }
static void given_to_image(void) {
    int own[4];
    /* The end of a process may wait 20 s for such a taker, and does not learn that it was killed. */
    fates = KILLED;
    if (is_executed(own)) take_and_end(own[0], (enum fate)own[1]);
    else two_processes(AF_INET, given_to_image_a, given_b);
}
static void given_to_stranger_a(struct side *side) { given_a(side, STRANGER, "given-to-stranger"); }
static void given_to_stranger(void) {
    int own[4];
    if (is_executed(own)) take_and_end(own[0], (enum fate)own[1]);
    else two_processes(AF_INET, given_to_stranger_a, given_b);
}

/* The giver takes the socket out of its connection, and connects it again. The taker still shares the socket, and reads
 * what comes on the new connection. */
static void read_renewed(int number) {
    char byte;
    int channel = to_door_of(number), fd = take(channel);
    if (receive_all(channel, &byte, 1) != 1) fail("recv");
    size_t got = receive_all(fd, in, GIVEN_UNREAD);
    say("%zu read, first difference %ld", got, differs(in, got, 1, 0));
}
static int connect_with_traffic(struct side *side, int fd) {
    char byte;
    SHOW(connect(fd, (struct sockaddr *)&side->address, address_size(&side->address)));
    int other = (int)MUST(accept(side->listener, NULL, NULL));
    for (int i = 0; i < 60; i++) {
        send_all(fd, "x", 1);
        if (receive_all(other, &byte, 1) != 1) fail("recv");
        send_all(other, "x", 1);
        if (receive_all(fd, &byte, 1) != 1) fail("recv");
    }
    return other;
}
static void given_renewed_a(struct side *side) {
    int self = getpid(), door = door_of(self);
    pid_t taker = (pid_t)MUST(fork());
    if (taker == 0) {
        unsetenv("LD_PRELOAD");
        execute_itself("given-renewed", self, 0, 0, 0);
    }
    int channel = (int)MUST(accept(door, NULL, NULL)), fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    int other = connect_with_traffic(side, fd);
    give(channel, fd);
    SHOW(connect(fd, &(struct sockaddr){.sa_family = AF_UNSPEC}, sizeof(struct sockaddr)));
    close(other);
    other = connect_with_traffic(side, fd);
    fill(out, GIVEN_UNREAD, 1, 0);
    send_all(other, out, GIVEN_UNREAD);
    send_all(channel, "x", 1);
    say("taker %d", ended(taker));
}
static void given_renewed(void) {
    int own[4];
    if (is_executed(own)) read_renewed(own[0]);
    else two_processes(AF_INET, given_renewed_a, echo_until_end);
}

/* It is given to two takers, one after the other, and before either comes for it an image that is executed has it
 * too. */
static pid_t taker(struct side *side, char name, int channel, atomic_int *turn, int mine) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = name;
        close(side->fd);
        await_word(turn, mine);
        int fd = take(channel);
        say_more(fd, 200, 100 + 200 * (uint64_t)mine);
        close(fd);
        _exit(0);
    }
    return child;
}
static void passed_several_a(struct side *side) {
    int channels[2][2];
    pid_t takers[2];
    atomic_int *turn = shared_word();
    for (int i = 0; i < 2; i++) {
        MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, channels[i]));
        takers[i] = taker(side, (char)('C' + i), channels[i][1], turn, i + 1);
    }
    fill(out, 1000, 1, 0);
    send_all(side->fd, out, 1000);
    say("%zu", receive_all(side->fd, in, 300));
    await_bytes(side->fd, 700);
    for (int i = 0; i < 2; i++) give(channels[i][0], side->fd);
    pid_t image = (pid_t)MUST(fork());
    if (image == 0) execute_itself("passed-several", side->fd, 0, 0, 0);
    say("image %d", ended(image));
    for (int i = 0; i < 2; i++) {
        *turn = i + 1;
        say("taker %d", ended(takers[i]));
    }
    say_more(side->fd, 300, 700);
    ask("the giver", side->fd, 40000, 2);
}
static void passed_several(void) {
    int own[4];
    if (is_executed(own)) await_bytes(own[0], 700);
    else two_processes(AF_INET, passed_several_a, echo_until_end);
}

/* The giver is its own taker, and the other end calls nothing that could give back what is unread. */
static void passed_self_a(struct side *side) {
    int channel[2];
    await_bytes(side->fd, 700);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    give(channel[0], side->fd);
    say("%zu by the old number", receive_all(side->fd, in, 300));
    int taken = take(channel[1]);
    say("%zu by the new one", receive_all(taken, in + 300, 400));
    say("first difference %ld", differs(in, 700, 1, 0));
    tell(side);
    ask("the giver", side->fd, 40000, 2);
    ask("the taker", taken, 40000, 3);
    close(taken);
}
static void passed_self_b(struct side *side) {
    fill(out, 700, 1, 0);
    send_all(side->fd, out, 700);
    hear(side);
    echo_until_end(side);
}
static void passed_self(void) { two_processes(AF_INET, passed_self_a, passed_self_b); }

/* A connection that was not used yet is handed on by exec, and its old owner uses it first. */
static void exec_fresh_a(struct side *side) {
    int go[2], fd = (int)MUST(accept(side->listener, NULL, NULL));
    MUST(pipe(go));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) execute_itself("exec-fresh", fd, go[0], 0, 0);
    warm(fd, true);
    ask("the old owner", fd, 3000, 1);
    MUST(write(go[1], "x", 1));
    say("child %d", ended(child));
    ask("the old owner", fd, 3000, 3);
    close(fd);
}
static void exec_fresh_b(struct side *side) {
    int fd = connect_to(&side->address);
    warm(fd, false);
    echo_alone((void *)(intptr_t)fd);
}
static void exec_fresh(void) {
    int taken[4];
    if (!is_executed(taken)) {
        two_processes(AF_INET, exec_fresh_a, exec_fresh_b);
        return;
    }
    char byte;
    MUST(read(taken[1], &byte, 1));
    ask("the new image", taken[0], 3000, 2);
}

/* The image that this child executes is held before its first instruction, until its parent, which awaits that, lets it
 * go on. */
static void execute_held(const char *scenario, int a, int b, int c, int d) {
    MUST(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
    execute_itself(scenario, a, b, c, d);
}
static void await_held(pid_t child) {
    int status;
    MUST(waitpid(child, &status, 0));
    if (!WIFSTOPPED(status)) fail("not held");
}
static void let_go_on(pid_t child) { MUST(ptrace(PTRACE_DETACH, child, NULL, NULL)); }

/* A connection that is handed on by exec goes to kernel TCP for good before the new image has begun: it does for
 * both. */
static void exec_pinned_a(struct side *side) {
    int pipe_ends[2], fd = (int)MUST(accept(side->listener, NULL, NULL));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) execute_held("exec-pinned", fd, 0, 0, 0);
    await_held(child);
    MUST(pipe(pipe_ends));
    fill(out, 100, 1, 0);
    MUST(write(pipe_ends[1], out, 100));
    SHOW(splice(pipe_ends[0], NULL, fd, NULL, 100, 0));
    SHOW(receive_all(fd, in, 100));
    let_go_on(child);
    say("child %d", ended(child));
    ask("the old owner", fd, 3000, 3);
    close(fd);
}
static void exec_pinned_b(struct side *side) { echo_alone((void *)(intptr_t)connect_to(&side->address)); }
static void exec_pinned(void) {
    int taken[4];
    if (!is_executed(taken)) two_processes(AF_INET, exec_pinned_a, exec_pinned_b);
    else for (uint64_t i = 0; i < 40; i++) ask("the new image", taken[0], 100 + i, i);
}

/* A forked child uses a connection that its parent never has, and ends, while the other end executes a program: then no
 * process has both. Some of what the child has sent is unread by then. The parent goes on. */
static void exec_left_a(struct side *side) {
    int fd = (int)MUST(accept(side->listener, NULL, NULL));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        for (uint64_t i = 0; i < 40; i++) ask("the child", fd, 100, i);
        fill(out, 500, 50, 0);
        send_all(fd, out, 500);
        hear(side);
        _exit(0);
    }
    say("child %d", ended(child));
    say("%zu", receive_all(fd, in, 500));
    say("first difference %ld", differs(in, 500, 50, 0));
    ask("the parent", fd, 3000, 51);
    close(fd);
}
static void exec_left_b(struct side *side) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        int fd = connect_to(&side->address);
        for (int i = 0; i < 40; i++) {
            if (receive_all(fd, in, 100) != 100) fail("the end");
            send_all(fd, in, 100);
        }
        await_bytes(fd, 500);
        execute_held("exec-left", fd, 0, 0, 0);
    }
    await_held(child);
    tell(side);
    nap_ms(100); /* what ends may wait for the image */
    let_go_on(child);
    say("child %d", ended(child));
}
static void exec_left(void) {
    int own[4];
    if (is_executed(own)) echo_alone((void *)(intptr_t)own[0]);
    else two_processes(AF_INET, exec_left_a, exec_left_b);
}

/* The same without an execution: the other end sends its last and is gone, before the parent looks. */
static void child_left_a(struct side *side) {
    int fd = (int)MUST(accept(side->listener, NULL, NULL));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        role = 'C';
        for (uint64_t i = 0; i < 40; i++) ask("the child", fd, 100, i);
        _exit(0);
    }
    say("child %d", ended(child));
    tell(side);
    siginfo_t info;
    MUST(waitid(P_PID, (id_t)side->peer, &info, WEXITED | WNOWAIT));
    say("%zu", receive_all(fd, in, 501));
    say("first difference %ld", differs(in, 500, 50, 0));
    close(fd);
}
static void child_left_b(struct side *side) {
    int fd = connect_to(&side->address);
    for (int i = 0; i < 40; i++) {
        if (receive_all(fd, in, 100) != 100) fail("the end");
        send_all(fd, in, 100);
    }
    hear(side);
    fill(out, 500, 50, 0);
    send_all(fd, out, 500);
    close(fd);
}
static void child_left(void) { two_processes(AF_INET, child_left_a, child_left_b); }

/* A process that has both ends of its connections executes itself, with bytes unread in both directions. Of the second
 * connection the new image has one end only. */
static void exec_both_a(struct side *side) {
    int ends[4];
    for (int i = 0; i < 4; i += 2) {
        ends[i] = connect_to(&side->address);
        ends[i + 1] = (int)MUST(accept(side->listener, NULL, NULL));
        for (int round = 0; round < 40; round++) {
            for (int way = 0; way < 2; way++) {
                fill(out, 100, 5, 0);
                send_all(ends[i + way], out, 100);
                if (receive_all(ends[i + 1 - way], in, 100) != 100 || differs(in, 100, 5, 0) != -1) fail("warming");
            }
        }
        for (int way = 0; way < 2 - i / 2; way++) {
            fill(out, 20000, 6, 0);
            send_all(ends[i + 1 - way], out, 20000);
            say("%zu", receive_all(ends[i + way], in, 7000));
        }
    }
    MUST(fcntl(ends[3], F_SETFD, FD_CLOEXEC));
    execute_itself("exec-both", ends[0], ends[1], ends[2], side->peer);
}
static void say_what_comes(int fd, size_t count, uint64_t seed, uint64_t at) {
    size_t got = receive_all(fd, in, count);
    say("%zu, first difference %ld", got, differs(in, got, seed, at));
}
static void use_both(int one, int other, int half, pid_t peer) {
    role = 'A';
    fill(out, 3000, 7, 0);
    for (int way = 0; way < 2; way++) {
        int to = way ? one : other, from = way ? other : one;
        send_all(to, out, 3000);
        say_what_comes(from, 13000, 6, 7000);
        send_all(to, out, 3000);
        say_what_comes(from, 3000, 7, 0);
        say_what_comes(from, 3000, 7, 0);
    }
    say_what_comes(half, 14000, 6, 7000);
    close(one);
    SHOW(recv(other, in, 1, 0));
    say("B ended %d", ended(peer));
}
static void do_nothing(struct side *side) { (void)side; }
static void exec_both(void) {
    int own[4];
    if (is_executed(own)) use_both(own[0], own[1], own[2], own[3]);
    else two_processes(AF_INET, exec_both_a, do_nothing);
}

/* An image that is handed a connection under two numbers, with bytes unread, and has no process beside it: they stay
 * one connection. */
static void exec_numbers_a(struct side *side) {
    fill(out, 1000, 1, 0);
    send_all(side->fd, out, 1000);
    say("%zu", receive_all(side->fd, in, 400));
    await_bytes(side->fd, 600);
    execute_itself("exec-numbers", side->fd, (int)MUST(dup(side->fd)), side->peer, 0);
}
static void use_numbers(int one, int other, pid_t peer) {
    role = 'A';
    say_more(other, 200, 400);
    say_more(one, 200, 600);
    close(other);
    say_more(one, 200, 800);
    ask("by one number", one, 30000, 2);
    close(one);
    say("B ended %d", ended(peer));
}
static void exec_numbers(void) {
    int own[4];
    if (is_executed(own)) use_numbers(own[0], own[1], own[2]);
    else two_processes(AF_INET, exec_numbers_a, echo_until_end);
}

/* An image is handed a connection and the epoll set that it is registered in. */
static void use_set(int set, int fd, pid_t peer) {
    role = 'A';
    for (int i = 0; i < 50; i++) {
        struct epoll_event event;
        send_all(fd, "ping", 4);
        for (int left = 4; left > 0;) {
            if (MUST(epoll_wait(set, &event, 1, -1)) != 1 || event.data.u32 != 7) fail("an event");
            ssize_t got = recv(fd, in, (size_t)left, MSG_DONTWAIT);
            if (got > 0) left -= (int)got;
        }
    }
    say("answers by the set");
    SHOW(epoll_ctl(set, EPOLL_CTL_DEL, fd, NULL));
    send_all(fd, "ping", 4);
    await_bytes(fd, 4);
    SHOW(epoll_wait(set, &(struct epoll_event){0}, 1, 0));
    close(fd);
    say("B ended %d", ended(peer));
}
static void exec_set_a(struct side *side, uint32_t how) {
    struct epoll_event event = {.events = EPOLLIN | how, .data.u32 = 7};
    int set = (int)MUST(epoll_create1(0));
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    for (int i = 0; i < 3; i++) {
        send_all(side->fd, "ping", 4);
        MUST(epoll_wait(set, &event, 1, -1));
        say("%zu", receive_all(side->fd, in, 4));
    }
    /* Quiet for a while. */
    for (int i = 0; i < 3; i++) SHOW(epoll_wait(set, &event, 1, 10));
    execute_itself(how ? "exec-set-edge" : "exec-set", set, side->fd, side->peer, 0);
}
static void exec_set_level_a(struct side *side) { exec_set_a(side, 0); }
static void exec_set_edge_a(struct side *side) { exec_set_a(side, EPOLLET); }
static void exec_set_by(part *a) {
    int own[4];
    if (is_executed(own)) use_set(own[0], own[1], own[2]);
    else two_processes(AF_INET, a, echo_until_end);
}
static void exec_set(void) { exec_set_by(exec_set_level_a); }
static void exec_set_edge(void) { exec_set_by(exec_set_edge_a); }

/* An image takes over a connection that is on kernel TCP for good, and whose other end has sent its last and is
 * gone. */
static void exec_over_a(struct side *side) {
    int channel[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, channel));
    give(channel[0], side->fd);
    int fd = take(channel[1]);
    close(side->fd);
    ask("this end", fd, 200, 1);
    tell(side);
    siginfo_t info;
    MUST(waitid(P_PID, (id_t)side->peer, &info, WEXITED | WNOWAIT));
    execute_itself("exec-over", fd, side->peer, 0, 0);
}
static void exec_over_b(struct side *side) {
    say("%zu", receive_all(side->fd, in, 200));
    send_all(side->fd, in, 200);
    hear(side);
    fill(out, 500, 2, 0);
    send_all(side->fd, out, 500);
}
static void use_what_is_left(int fd, pid_t peer) {
    role = 'A';
    say("%zd", recv(fd, in, 500, MSG_WAITALL));
    say("first difference %ld", differs(in, 500, 2, 0));
    SHOW(recv(fd, in, 1, 0));
    close(fd);
    say("B ended %d", ended(peer));
}
static void exec_over(void) {
    int own[4];
    if (is_executed(own)) use_what_is_left(own[0], own[1]);
    else two_processes(AF_INET, exec_over_a, exec_over_b);
}

/* An image gets a connection that was not used yet, and gives it to a child, which uses it; the image goes on
 * itself. */
static void use_it(int fd, int channel) {
    (void)channel;
    warm(fd, true);
    ask("the taker", fd, 3000, 1);
}
static void exec_passed_a(struct side *side) {
    int fd = (int)MUST(accept(side->listener, NULL, NULL));
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) execute_itself("exec-passed", fd, 0, 0, 0);
    say("child %d", ended(child));
    close(fd);
}
static void exec_passed(void) {
    int taken[4];
    if (!is_executed(taken)) {
        two_processes(AF_INET, exec_passed_a, exec_fresh_b);
        return;
    }
    struct side side = {.fd = taken[0]};
    pid_t child;
    int channel = to_child(&side, &child, use_it);
    give(channel, side.fd);
    say("child %d", ended(child));
    ask("the image", side.fd, 3000, 2);
}

/* Executes in a child of vfork, in which `to` is what `from` is here. */
static int in_vfork(const char *path, char **arguments, char **environment, int from, int to) {
    pid_t child = vfork();
    if (child == 0) {
        if (from != to) dup2(from, to);
        execve(path, arguments, environment);
        _exit(9);
    }
    return ended(child);
}

/* A child of vfork executes with a busy connection in the place of one that was not used yet; the second round's
 * program does not load what this one may have been made to load. The old owner then uses both. */
static void vfork_dup_a(struct side *side) {
    for (int round = 0; round < 2; round++) {
        int young = (int)MUST(accept(side->listener, NULL, NULL)), busy = another(side);
        char own[60], *arguments[] = {"processes", "vfork-dup", NULL}, *plain[] = {own, NULL};
        ask("busy", busy, 3000, 1);
        snprintf(own, sizeof(own), "PARITY_OWN=%d %d 0 0", young, round);
        putenv(own);
        say("child %d", in_vfork("/proc/self/exe", arguments, round ? plain : environ, busy, young));
        unsetenv("PARITY_OWN");
        warm(young, true);
        ask("young", young, 3000, 3);
        ask("busy", busy, 3000, 4);
        close(young);
        close(busy);
    }
}
static void vfork_dup_b(struct side *side) {
    for (int round = 0; round < 2; round++) {
        pthread_t threads[2];
        int young = connect_to(&side->address);
        int busy = another(side);
        start_thread(&threads[0], echo_alone, (void *)(intptr_t)busy);
        warm(young, false);
        start_thread(&threads[1], echo_alone, (void *)(intptr_t)young);
        for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    }
    say("all echoed");
}
static void vfork_dup(void) {
    int taken[4];
    if (!is_executed(taken)) two_processes(AF_INET, vfork_dup_a, vfork_dup_b);
    else ask("the new image", taken[0], 2000, 2);
}

/* Many children of vfork execute: this process does not grow. */
static long pages(void) {
    long count = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%ld", &count) != 1) fail("statm");
    fclose(file);
    return count;
}
static void vfork_room_a(struct side *side) {
    char *arguments[] = {"true", NULL};
    ask("before", side->fd, 3000, 1);
    long before = 0;
    for (int round = 0; round < 64; round++) {
        if (round == 4) before = pages();
        if (in_vfork("/bin/true", arguments, environ, 0, 0) != 0) fail("true");
    }
    say("grown %d", pages() - before > 256);
    ask("after", side->fd, 3000, 2);
}
static void vfork_room(void) { two_processes(AF_INET, vfork_room_a, echo_until_end); }

/* Programs that were executed did not get the connection: it ends at its close, which resets it as bytes lie unread. */
static void not_given_a(struct side *side) {
    char *arguments[] = {"true", NULL};
    pid_t child;
    for (int way = 0; way < 2; way++) {
        int fd = another(side);
        MUST(fcntl(fd, F_SETFD, FD_CLOEXEC));
        if (way == 0) {
            MUST(posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ));
            say("child %d", ended(child));
        } else {
            say("child %d", in_vfork("/bin/true", arguments, environ, 0, 0));
        }
        tell(side);
        await_bytes(fd, 3);
        SHOW(close(fd));
        tell(side);
    }
}
static void not_given_b(struct side *side) {
    for (int way = 0; way < 2; way++) {
        int fd = another(side);
        hear(side);
        send_all(fd, "end", 3);
        hear(side);
        SHOW(recv(fd, in, 1, 0));
        close(fd);
    }
}
static void not_given(void) { two_processes(AF_INET, not_given_a, not_given_b); }

/* Programs that get the connection do not begin: their execution fails, for words that are too long, or they are killed
 * before. The connection ends at its close, which resets it as bytes lie unread. */
enum { NOT_BEGUN = 4, TOO_LONG = 256 * KIB };
static void do_not_begin(int way) {
    static char words[TOO_LONG];
    memset(words, 'x', sizeof(words) - 1);
    char *arguments[] = {"true", words, NULL}, *short_ones[] = {"true", NULL};
    pid_t child;
    if (way == 0) say("posix_spawn %d", posix_spawn(&child, "/bin/true", NULL, NULL, arguments, environ) == E2BIG);
    if (way == 1) say("vfork %d", in_vfork("/bin/true", arguments, environ, 0, 0));
    if (way == 2) say("system %#x", system(words));
    if (way == 3) {
        if ((child = vfork()) == 0) {
            ptrace(PTRACE_TRACEME, 0, NULL, NULL);
            execve("/bin/true", short_ones, environ);
            _exit(9);
        }
        await_held(child);
        MUST(kill(child, SIGKILL));
        say("killed %d", ended(child));
    }
}
static void not_begun_a(struct side *side) {
    for (int way = 0; way < NOT_BEGUN; way++) {
        int fd = another(side);
        tell(side);
        await_bytes(fd, 3);
        do_not_begin(way);
        SHOW(close(fd));
        tell(side);
    }
}
static void not_begun_b(struct side *side) {
    for (int way = 0; way < NOT_BEGUN; way++) {
        int fd = another(side);
        hear(side);
        send_all(fd, "end", 3);
        hear(side);
        SHOW(recv(fd, in, 1, 0));
        close(fd);
    }
}
static void not_begun(void) { two_processes(AF_INET, not_begun_a, not_begun_b); }

/* Code that runs after the destructors of a process reads unread bytes, and sends, on its connection; at quick_exit,
 * too. */
static int last_fd = -1;
static void use_last(void) {
    SHOW(recv(last_fd, in, 3, 0));
    SHOW(send(last_fd, "bye", 3, 0));
}
static void behind_destructors(int status, void *argument) {
    (void)status;
    (void)argument;
    use_last();
}
__attribute__((destructor)) static void destructor(void) {
    if (last_fd >= 0) on_exit(behind_destructors, NULL);
}
static void last_words_a(struct side *side) {
    for (int way = 0; way < 3; way++) {
        int fd = another(side);
        hear(side);
        await_bytes(fd, 3);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            role = 'C';
            hear(side);
            last_fd = fd;
            if (way == 0) exit(0);
            if (way == 1) {
                at_quick_exit(use_last);
                quick_exit(0);
            }
            use_last();
            syscall(SYS_exit_group, 0);
        }
        close(fd);
        tell(side);
        say("child %d", ended(child));
    }
}
static void last_words_b(struct side *side) {
    for (int way = 0; way < 3; way++) {
        int fd = another(side);
        send_all(fd, "xyz", 3);
        tell(side);
        hear(side);
        tell(side);
        say("%zu", receive_all(fd, in, 3));
        SHOW(recv(fd, in, 1, 0));
        close(fd);
    }
}
static void last_words(void) { two_processes(AF_INET, last_words_a, last_words_b); }

/* A connection ends by a FIN, behind all that was sent, also where a process that had it was killed or has executed a
 * program, and the last one closes it the moment it has read what came. */
enum { ENDINGS = 12 };
static void close_at_once(int fd, int turn) {
    struct pollfd readable = {fd, POLLIN, 0};
    size_t sent = stuff(fd, 1);
    if (MUST(poll(&readable, 1, 1)) != 0) fail("too early");
    MUST(write(turn, &sent, sizeof(sent)));
    while (recv(fd, in, 1, MSG_DONTWAIT) != 1) {}
    close(fd);
}
static void end_killed_a(struct side *side) {
    for (int round = 0; round < ENDINGS; round++) {
        int fd = another(side);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) pause();
        kill(child, SIGKILL);
        ended(child);
        close_at_once(fd, side->turn);
    }
}
static void end_executed_a(struct side *side) {
    for (int round = 0; round < ENDINGS; round++) {
        int fd = another(side);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) execute_itself("end-executed", fd, side->turn, 0, 0);
        close(fd);
        if (ended(child) != 0) fail("end-executed");
    }
}
static void end_b(struct side *side) {
    for (int round = 0; round < ENDINGS; round++) {
        int fd = another(side);
        size_t sent = 0, at = 0;
        ssize_t got;
        if (MUST(read(side->turn, &sent, sizeof(sent))) != sizeof(sent)) fail("sent");
        send_all(fd, "x", 1);
        nap_ms(20);
        while ((got = recv(fd, in, sizeof(in), 0)) > 0) {
            if (differs(in, (size_t)got, 1, at) != -1) fail("wrong byte");
            at += (size_t)got;
        }
        say("missing %zu, the end %zd", sent - at, got);
        close(fd);
    }
}
/* A connection that one process has closed, and with which another was killed: a sender that sends on is told at once.
 * */
static void gone_a(struct side *side) {
    for (int unread = 0; unread < 2; unread++) {
        int fd = another(side);
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) for (;;) pause();
        hear(side);
        if (unread) await_bytes(fd, 5);
        else SHOW(receive_all(fd, in, 5));
        kill(child, SIGKILL);
        ended(child);
        close(fd);
        tell(side);
        hear(side);
    }
}
static void gone_b(struct side *side) {
    for (int unread = 0; unread < 2; unread++) {
        int fd = another(side);
        send_all(fd, "hello", 5);
        tell(side);
        hear(side);
        await_events(fd, unread ? POLLERR | POLLHUP : POLLRDHUP);
        if (!unread) SHOW(send(fd, "x", 1, MSG_NOSIGNAL));
        SHOW(send(fd, "y", 1, MSG_NOSIGNAL));
        SHOW(send(fd, "z", 1, MSG_NOSIGNAL));
        close(fd);
        tell(side);
    }
}
static void end_gone(void) { two_processes(AF_INET, gone_a, gone_b); }
static void end_killed(void) { two_processes(AF_INET, end_killed_a, end_b); }
static void end_executed(void) {
    int taken[4];
    if (is_executed(taken)) close_at_once(taken[0], taken[1]);
    else two_processes(AF_INET, end_executed_a, end_b);
}

/* The reader's descriptor becomes its standard input with bytes unread, and a process that looks at the other end is
 * killed: before and after each of its system calls in turn, each time on another connection. The reader gets every
 * byte once, whether the other end sends on or awaits the answer. */
enum { LEFT_UNREAD = 20000, SENT_ON = 1000 };
/* Lets the child, which has stopped, go on to its stop number `stop`, and kills it there; false if it has ended
 * before. */
static bool is_killed_at(pid_t child, int stop) {
    int status;
    MUST(waitpid(child, &status, 0));
    while (stop-- > 0 && WIFSTOPPED(status)) {
        MUST(ptrace(PTRACE_SYSCALL, child, NULL, NULL));
        MUST(waitpid(child, &status, 0));
    }
    if (!WIFSTOPPED(status)) return false;
    MUST(kill(child, SIGKILL));
    return ended(child) == 1000 + SIGKILL;
}
static pid_t stopped_child(void) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        MUST(ptrace(PTRACE_TRACEME, 0, NULL, NULL));
        raise(SIGSTOP);
    }
    return child;
}
static void say_if_wrong(int fd, size_t count, uint64_t seed) {
    static char bytes[2 * (LEFT_UNREAD + SENT_ON)];
    size_t got = receive_all(fd, bytes, count);
    long first = differs(bytes, got, seed, 0);
    if (got != LEFT_UNREAD + SENT_ON || first != -1) say("%zu bytes, first difference %ld", got, first);
}
static void killed_giving_a(struct side *side) {
    for (int stop = 1, killed = 1; killed; stop++) {
        int fd = another(side);
        fill(out, LEFT_UNREAD + SENT_ON, 1, 0);
        send_all(fd, out, LEFT_UNREAD);
        tell(side);
        hear(side);
        pid_t child = stopped_child();
        if (child == 0) _exit(recv(fd, in, 1, MSG_PEEK | MSG_DONTWAIT) == 1);
        killed = is_killed_at(child, stop);
        if (stop % 3 == 0) await_events(fd, POLLIN);
        if (stop % 3 == 1) send_all(fd, out + LEFT_UNREAD, SENT_ON);
        if (recv(fd, in, 1, 0) != 1) say("no answer");
        if (stop % 3 != 1) send_all(fd, out + LEFT_UNREAD, SENT_ON);
        close(fd);
        MUST(write(side->turn, killed ? "a" : "z", 1));
    }
}
static void killed_giving_b(struct side *side) {
    int kept = (int)MUST(dup(0));
    for (char more = 'a'; more == 'a'; MUST(read(side->turn, &more, 1))) {
        int fd = another(side);
        hear(side);
        MUST(dup2(fd, 0));
        tell(side);
        if (recv(0, in, LEFT_UNREAD, MSG_PEEK | MSG_WAITALL) != LEFT_UNREAD) say("not all that was left");
        MUST(write(0, "x", 1));
        say_if_wrong(0, 2 * (LEFT_UNREAD + SENT_ON), 1);
        MUST(dup2(kept, 0));
        close(fd);
    }
    close(kept);
}
static void killed_giving(void) { two_processes(AF_INET, killed_giving_a, killed_giving_b); }

/* The same for a process that makes its end the standard input, with bytes unread: it takes both directions back to the
 * kernel. The other process that has the end goes on. */
static void killed_leaving_a(struct side *side) {
    for (int stop = 1, killed = 1; killed; stop++) {
        int fd = another(side);
        tell(side);
        hear(side);
        fill(out, LEFT_UNREAD + SENT_ON, 1, 0);
        send_all(fd, out, LEFT_UNREAD);
        pid_t child = stopped_child();
        if (child == 0) _exit(dup2(fd, 0) != 0);
        killed = is_killed_at(child, stop);
        send_all(fd, out + LEFT_UNREAD, SENT_ON);
        tell(side);
        say_if_wrong(fd, LEFT_UNREAD + SENT_ON, 2);
        close(fd);
        MUST(write(side->turn, killed ? "a" : "z", 1));
    }
}
static void killed_leaving_b(struct side *side) {
    for (char more = 'a'; more == 'a'; MUST(read(side->turn, &more, 1))) {
        int fd = another(side);
        hear(side);
        fill(out, LEFT_UNREAD + SENT_ON, 2, 0);
        send_all(fd, out, LEFT_UNREAD);
        tell(side);
        hear(side);
        send_all(fd, out + LEFT_UNREAD, SENT_ON);
        say_if_wrong(fd, LEFT_UNREAD + SENT_ON, 1);
        if (recv(fd, in, 1, 0) != 0) say("no end");
        close(fd);
    }
}
static void killed_leaving(void) { two_processes(AF_INET, killed_leaving_a, killed_leaving_b); }

/* A child of vfork puts another file on the number of the connection, and uses that. */
static void vfork_number_a(struct side *side) {
    int file = (int)MUST(memfd_create("beside", 0));
    MUST(pwrite(file, "begin", 5, 0));
    ask("before", side->fd, 5000, 1);
    send_all(side->fd, "more", 4);
    await_bytes(side->fd, 4);
    pid_t child = vfork();
    if (child == 0) {
        char bytes[5];
        bool same = dup2(file, side->fd) != -1 && read(side->fd, bytes, 5) == 5 && memcmp(bytes, "begin", 5) == 0;
        _exit(same && write(side->fd, "line", 4) == 4 ? 0 : 9);
    }
    say("child %d, %ld bytes in the file", ended(child), (long)lseek(file, 0, SEEK_END));
    say("%zu bytes came back", receive_all(side->fd, in, 4));
    ask("after", side->fd, 5000, 2);
    close(file);
}
static void vfork_number(void) { two_processes(AF_INET, vfork_number_a, echo_until_end); }

/* The program is looked for in PATH, and only the effective user, not the real one, may execute it. */
static void exec_path_child(struct side *side) {
    int program = (int)MUST(memfd_create("processes", 0)), from = (int)MUST(open("/proc/self/exe", O_RDONLY));
    for (ssize_t got; (got = read(from, in, sizeof(in))) > 0;) MUST(write(program, in, (size_t)got));
    close(from);
    MUST(fchmod(program, 0700));
    char name[12], own[60];
    snprintf(name, sizeof(name), "%d", program);
    snprintf(own, sizeof(own), "PARITY_OWN=%d 0 0 0", side->fd);
    setenv("PATH", "/proc/self/fd", 1);
    putenv(own);
    if (geteuid() == 0) MUST(setresuid(65534, 0, 0));
    execlp(name, "processes", "exec-path", NULL);
    fail("execlp");
}
static void exec_path_a(struct side *side) {
    ask("before", side->fd, 3000, 1);
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) exec_path_child(side);
    close(side->fd);
    say("image %d", ended(child));
}
static void exec_path(void) {
    int taken[4];
    if (is_executed(taken)) ask("the new image", taken[0], 2000, 2);
    else two_processes(AF_INET, exec_path_a, echo_until_end);
}

/* An epoll set goes along with an execution: the image is told of nothing that the program did not ask for. */
enum { TOLD_ROUNDS = 12 };
static int is_told_right(int fd, int set) {
    for (int told = 0;; told++) {
        struct epoll_event event;
        int count = epoll_wait(set, &event, 1, told ? 50 : 5000);
        if (count == 0) return told == 1 ? 0 : 8;
        if (event.events != EPOLLIN || told) return 7;
        if (recv(fd, in, 7, 0) != 7) return 6;
    }
}
static void exec_told_a(struct side *side) {
    for (int round = 0; round < TOLD_ROUNDS; round++) {
        pid_t child = (pid_t)MUST(fork());
        if (child == 0) {
            int fd = another(side), set = (int)MUST(epoll_create1(0));
            char own[60], *arguments[] = {"processes", "exec-told", NULL}, *plain[] = {own, NULL};
            tell(side);
            hear(side);
            struct epoll_event event = {.events = EPOLLIN};
            MUST(epoll_ctl(set, EPOLL_CTL_ADD, fd, &event));
            snprintf(own, sizeof(own), "PARITY_OWN=%d %d 0 0", fd, set);
            execve("/proc/self/exe", arguments, plain);
            _exit(9);
        }
        say("image %d", ended(child));
    }
}
static void exec_told_b(struct side *side) {
    for (int round = 0; round < TOLD_ROUNDS; round++) {
        int fd = another(side);
        hear(side);
        send_all(fd, "seventh", 7);
        tell(side);
        say("%ld at the end", (long)recv(fd, in, 1, 0));
        close(fd);
    }
}
static void exec_told(void) {
    int taken[4];
    if (is_executed(taken)) exit(is_told_right(taken[0], taken[1]));
    two_processes(AF_INET, exec_told_a, exec_told_b);
}

const struct scenario scenarios[] = {
    {"forks", forks, 0}, {"loader-locked", loader_locked, 0}, {"shut-by-child", shut_by_child, 0},
    {"handed", handed, 0}, {"per-child", per_child, 0},
    {"split", split, 0},         {"beside-threads", beside_threads, 0},
    {"bystanders", bystanders, 0},         {"exec-cat", exec_cat, 0},
    {"exec-cat-clean", exec_cat_clean, 0}, {"exec-cat-unread", exec_cat_unread, 0},
    {"exec-cat-ahead", exec_cat_ahead, 0},
    {"exec-cat-fresh", exec_cat_fresh, 0}, {"exec-fails", exec_fails, 0}, {"stdin-both", stdin_both, 0},
    {"stdin-mute", stdin_mute, 0},
    {"stdin-much", stdin_much, 0}, {"exec-calls", exec_calls, 0}, {"spawn", spawn, 0}, {"passed", passed, 0},
    {"passed-among", passed_among, 0},
    {"passed-half", passed_half, 0}, {"passed-on", passed_on, 0}, {"passed-over", passed_over, 0},
    {"exec-asks", exec_asks, 0}, {"child-ends", child_ends, 0},
    {"passed-asks", passed_asks, 0}, {"exec-two", exec_two, 0}, {"killed-asleep", killed_asleep, 0},
    {"passed-away", passed_away, 0}, {"exec-fresh", exec_fresh, 0}, {"exec-numbers", exec_numbers, 0},
    {"exec-over", exec_over, 0}, {"exec-passed", exec_passed, 0},
    {"exec-set", exec_set, 0}, {"exec-set-edge", exec_set_edge, 0},
    {"exec-pinned", exec_pinned, 0}, {"exec-both", exec_both, 0},
    {"exec-left", exec_left, 0}, {"child-left", child_left, 0}, {"end-killed", end_killed, 0},
    {"end-gone", end_gone, 0},
    {"end-executed", end_executed, 0}, {"fork-ways", fork_ways, 0}, {"daemon", becomes_daemon, 0},
    {"clone-vfork", clone_vfork, 0}, {"shells", shells, 0}, {"vfork-dup", vfork_dup, 0}, {"vfork-room", vfork_room, 0},
    {"vfork-number", vfork_number, 0}, {"exec-path", exec_path, 0}, {"exec-told", exec_told, 0},
    {"not-given", not_given, 0},
    {"not-begun", not_begun, 0},
    {"last-words", last_words, 0}, {"passed-number", passed_number, 0}, {"passed-several", passed_several, 0},
    {"passed-self", passed_self, 0},         {"given-to-child", given_to_child, 0},
    {"given-to-image", given_to_image, 0},   {"given-to-stranger", given_to_stranger, 0},
    {"given-renewed", given_renewed, 0},
    {"streams", streams, 0}, {"killed-giving", killed_giving, 0}, {"killed-leaving", killed_leaving, 0},
    {"passed-apart", passed_apart, 0}, {"passed-apart-half", passed_apart_half, 0},
    {"passed-apart-over", passed_apart_over, 0}, {"passed-apart-all", passed_apart_all, 0},
    {"passed-apart-comes", passed_apart_comes, 0}, {0},
};
