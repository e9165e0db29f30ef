// Hand-overs to program images that cannot go on with a fast connection: it must be plain TCP by then, or be reset at
// once.
//
// A reset is legal only where what lies unread in the ring cannot be put on the kernel path (docs/limits.md): the other
// side has ended its direction, has sent more than the ring takes, has handed its own side to such an image, had a
// process killed, or was passed on or became an image's standard input, so that it sends by the kernel, or either side
// was used in a way that the library leaves to the kernel. Each side that hears of one stops there, and the round is
// over when all sides have. An image that gets another socket in its place, beside processes that go on with the
// connection, stops too, and with it the round. PROCESSES_SKIP=kept leaves out what is handed over while a process goes
// on having a descriptor of it.
#include "unable.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// Why the image cannot go on. The first few are about the image, the others change the process before it executes.
enum {
    BARE, PRELOADS_OTHER, SWITCHED_OFF, STATIC, FEW_ADDRESSES, CONFINED, REAL_USER, EFFECTIVE_USER, REAL_GROUP,
    ANOTHER_USER, NEW_IPC, NEW_ROOT,
    CAUSES
};
static const char *const CAUSE[CAUSES] = {"bare",          "preloads-other", "switched-off", "static",
                                          "few-addresses", "confined",       "real-user",    "effective-user",
                                          "real-group",    "another-user",   "new-ipc",      "new-root"};
enum { BY_SPAWN, BY_FORKING, BY_VFORK, BY_SYSTEM, IN_PLACE, WAYS };
static const char *const WAY[WAYS] = {"unable-spawn", "unable-fork", "unable-vfork", "unable-system", "unable-replace"};
enum { SOMEBODY = 1000 };

// In the folder of this program: a file that is no library of ours, a static image, and a root with a program alone.
static char folder[300], other_library[340], static_image[340], root[340];

// The index of resets by a process that was killed.
enum { KILLED = 3 };
static uint64_t images, replaced, resets, reset_for[8];

// --------------------------------------------------------------------------------------------------- what images need

static bool copy_file(const char *from, const char *to)
{
    char aside[420], bytes[65536];
    snprintf(aside, sizeof aside, "%s.%d", to, getpid());
    int in = open(from, O_RDONLY | O_CLOEXEC), out = open(aside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0755);
    ssize_t n = -1;
    while (in >= 0 && out >= 0 && (n = read(in, bytes, sizeof bytes)) > 0 && write(out, bytes, (size_t)n) == n) {
    }
    close(in);
    close(out);
    return n == 0 && !rename(aside, to);
}

static bool copy_into_root(const char *from, const char *path)
{
    char to[700];
    snprintf(to, sizeof to, "%s%s", root, path);
    for (char *slash = to + strlen(root); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(to, 0755);
        *slash = '/';
    }
    return copy_file(from, to);
}

// The file that is mapped here and whose path has `part` in it.
static bool mapped_file(const char *part, char *path, size_t room)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[500];
    bool found = false;
    while (maps && !found && fgets(line, sizeof line, maps)) {
        char *begin = strchr(line, '/');
        if (begin)
            begin[strcspn(begin, "\n")] = 0;
        found = begin && strstr(begin, part);
        if (found)
            snprintf(path, room, "%s", begin);
    }
    if (maps)
        fclose(maps);
    return found;
}

void prepare_images(void)
{
    char program[280] = "", libc[300];
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        return; // in a root of its own
    snprintf(static_image, sizeof static_image, "%s-static", program);
    if (access(static_image, X_OK))
        static_image[0] = 0;
    char *slash = strrchr(program, '/');
    snprintf(folder, sizeof folder, "%.*s", (int)(slash - program), program);
    snprintf(other_library, sizeof other_library, "%s/libunderpass-extras.so", folder);
    snprintf(root, sizeof root, "%s/root-of-processes", folder);
    if (getenv("PROCESSES_IMAGES"))
        return;
    const char *loader = "/lib64/ld-linux-x86-64.so.2";
    bool whole = mapped_file("libc.so.6", libc, sizeof libc) && (!symlink(libc, other_library) || errno == EEXIST);
    // There is no /proc in that root: a file takes the place of what this program executes.
    whole = whole && !access(loader, R_OK) && copy_into_root(loader, loader) && copy_into_root(libc, libc) &&
            copy_into_root("/proc/self/exe", "/proc/self/exe");
    setenv("PROCESSES_IMAGES", whole ? "whole" : "none", 1);
}

static bool is_possible(int cause)
{
    const char *prepared = getenv("PROCESSES_IMAGES");
    bool whole = prepared && !strcmp(prepared, "whole");
    if (cause == STATIC)
        return static_image[0];
    if (cause == NEW_ROOT)
        return whole && !geteuid();
    if (cause == PRELOADS_OTHER)
        return whole;
    return cause < REAL_USER || (!geteuid() && !getuid());
}

// The environment of the image; false if there is no room for it.
static bool environment(int cause, char *to[], int room)
{
    static char preload[360], off[] = "UNDERPASS_MODE=off";
    int n = 0;
    for (char **it = environ; *it && n < room - 2; it++)
        if (strncmp(*it, "LD_PRELOAD=", 11) || (cause != BARE && cause != PRELOADS_OTHER))
            to[n++] = *it;
    if (n == room - 2)
        return false;
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", other_library);
    if (cause == PRELOADS_OTHER)
        to[n++] = preload;
    if (cause == SWITCHED_OFF)
        to[n++] = off;
    to[n] = NULL;
    return true;
}

// Installs a seccomp filter that forbids nothing.
static int confine(void)
{
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &allow};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0);
}

// What happens to this process before it executes the image.
static void befall(struct actor *a, int cause)
{
    int failed = 0, null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    // The loader complains there of a library that it does not find.
    dup2(null, 2);
    close(null);
    switch (cause) {
    case FEW_ADDRESSES: failed = setrlimit(RLIMIT_AS, &(struct rlimit){300 << 20, 300 << 20}); break;
    case CONFINED: failed = confine(); break;
    case REAL_USER: failed = setresuid(SOMEBODY, 0, 0); break;
    case EFFECTIVE_USER: failed = setresuid(0, SOMEBODY, 0); break;
    case REAL_GROUP: failed = setresgid(SOMEBODY, 0, 0); break;
    case ANOTHER_USER: failed = setgid(SOMEBODY) || setuid(SOMEBODY); break;
    case NEW_IPC: failed = unshare(CLONE_NEWIPC); break;
    case NEW_ROOT: failed = chroot(root) || chdir("/"); break;
    default: break;
    }
    if (failed)
        fail(a, "%s", CAUSE[cause]);
}

// ------------------------------------------------------------------------------------------------------- hand-overs

struct image {
    const char *program;
    char *words[8], *variables[500], text[5][24];
    int as; // the descriptor's number there
};

// Executes the image in place of this process, or of a child of vfork.
__attribute__((noreturn)) static void become(struct actor *a, const struct image *it)
{
    if (it->as == a->fd)
        fcntl(a->fd, F_SETFD, 0);
    else
        dup2(a->fd, it->as);
    if (it->as == 0)
        dup2(a->fd, 1);
    execve(it->program, it->words, it->variables);
    _exit(127);
}

static pid_t spawn(struct actor *a, const struct image *it)
{
    pid_t pid;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, a->fd, it->as);
    if (it->as == 0)
        posix_spawn_file_actions_adddup2(&actions, a->fd, 1);
    if (posix_spawn(&pid, it->program, &actions, NULL, it->words, it->variables))
        fail(a, "posix_spawn");
    posix_spawn_file_actions_destroy(&actions);
    return pid;
}

// A shell with the library executes the image, as its standard input and output.
static void by_shell(struct actor *a, int cause, const struct image *it)
{
    char command[900], program[300] = "";
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        fail(a, "readlink");
    // Which the shell inherits: dash names no descriptor above 9. Without a free number so low, bash does.
    int plain = fcntl(a->fd, F_DUPFD, 3);
    const char *shell = plain > 9 ? "exec bash -c '" : "";
    const char *before = cause == BARE           ? "unset LD_PRELOAD;"
                         : cause == SWITCHED_OFF ? "export UNDERPASS_MODE=off;"
                                                 : "";
    int n = snprintf(command, sizeof command, "%s", shell);
    n += cause == PRELOADS_OTHER
             ? snprintf(command + n, sizeof command - (size_t)n, "export LD_PRELOAD=%s;", other_library)
             : snprintf(command + n, sizeof command - (size_t)n, "%s", before);
    n += snprintf(command + n, sizeof command - (size_t)n, "exec %s", cause == STATIC ? static_image : program);
    for (int i = 1; it->words[i]; i++)
        n += snprintf(command + n, sizeof command - (size_t)n, " %s", it->words[i]);
    snprintf(command + n, sizeof command - (size_t)n, " <&%d >&%d%s", plain, plain, *shell ? "'" : "");
    judge(a, system(command), false);
    close(plain);
}

static void choose_image(struct actor *a, _Atomic uint64_t *rng, int *cause, int *way)
{
    *way = choose(rng, WAY, WAYS);
    if (*way == BY_SYSTEM && skipped("kept"))
        *way = IN_PLACE;
    do
        *cause = choose(rng, CAUSE, CAUSES);
    while (!is_possible(*cause));
    if (*way == IN_PLACE && (!a->own || a->fd <= 2))
        *way = BY_FORKING;
    // Only a process of its own can be changed.
    if (*cause >= FEW_ADDRESSES && *way != IN_PLACE)
        *way = BY_FORKING;
}

void hand_unable(struct actor *a, _Atomic uint64_t *rng, int budget)
{
    struct conn *c = a->conn;
    int cause, way;
    choose_image(a, rng, &cause, &way);
    if (skipped(WAY[way]) || (skipped("kept") && (c->side[a->me].keepers || a->fd <= 2)))
        return;
    struct image it = {.program = cause == STATIC ? static_image : "/proc/self/exe", .words = {"processes", "play"}};
    // A connection that this process keeps is given on purpose: as standard input, or in a file action.
    bool keeps = way != IN_PLACE && (way == BY_SYSTEM || a->fd <= 2 || (!skipped("kept") && one_in(rng, 2)));
    bool gives = way != IN_PLACE && !keeps;
    it.as = way == BY_SPAWN ? 10 + (int)under(rng, 100) : keeps || a->fd <= 2 ? 0 : a->fd;
    if (!keeps)
        budget = gives ? -1 : a->budget;
    long numbers[] = {c - shared->conn, a->me, it.as, budget, DEPTH};
    for (int i = 0; i < 5; i++) {
        snprintf(it.text[i], sizeof it.text[i], "%ld", numbers[i]);
        it.words[2 + i] = it.text[i];
    }
    if (!environment(cause, it.variables, 500))
        fail(a, "too many variables");
    if (left_to_send(a) && one_in(rng, 2))
        send_until_full(a);
    note(a, WAY[way], budget);
    note(a, CAUSE[cause], it.as);
    if (it.as == 0)
        a->conn->side[a->me].input = 1;
    c->side[a->me].unable++;
    // Such an image inherits all that is not closed by its execution.
    for (int i = 0; i < shared->conns && (way == BY_SPAWN || way == BY_VFORK || way == BY_SYSTEM); i++)
        shared->conn[i].side[a->me].pinned |= &shared->conn[i] != c;
    if (cause == CONFINED)
        c->side[a->me].filtered = 1 + c->side[a->me].received;
    pid_t pid = 0;
    if (way == IN_PLACE) {
        befall(a, cause);
        become(a, &it);
    } else if (way == BY_SYSTEM) {
        by_shell(a, cause, &it);
    } else if (way == BY_SPAWN) {
        pid = spawn(a, &it);
    } else if (way == BY_VFORK) {
        if ((pid = vfork()) == 0)
            become(a, &it);
    } else if ((pid = fork()) == 0) {
        close_others(rng, a->fd, -1);
        befall(a, cause);
        become(a, &it);
    }
    if (pid < 0)
        fail(a, "fork");
    if (gives) {
        close(a->fd);
        a->fd = -1;
    }
    if (pid > 0)
        reap(a, pid, false);
}

void send_until_full(struct actor *a)
{
    static _Thread_local unsigned char bytes[65536];
    struct side *s = &a->conn->side[a->me];
    while (left_to_send(a)) {
        size_t n = left_to_send(a) < sizeof bytes ? left_to_send(a) : sizeof bytes;
        fill(bytes, n, a->conn->key[a->me], s->sent);
        mark_ahead(a, n);
        ssize_t sent = send(a->fd, bytes, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR))
            break;
        if (sent <= 0)
            fail(a, "send until full: %zd", sent);
        atomic_fetch_add(&s->sent, (uint64_t)sent);
    }
    note(a, "full", (long)left_to_send(a));
}

// ----------------------------------------------------------------------------------------------------------- resets

// The first reason for which a side's end, handed to an image that cannot go on, may have been reset; -1: none.
static int reason(const struct conn *c)
{
    for (int me = 0; me < 2; me++) {
        const struct side *mine = &c->side[me], *other = &c->side[!me];
        if (!mine->unable)
            continue;
        if (other->ended)
            return 0;
        if (other->ahead > mine->received)
            return 1;
        // What was sent before the connection went fast went by the kernel, and a doorbell may lie behind it.
        if (!getenv("UNDERPASS_GO_UP_MESSAGES") && other->begun > mine->received)
            return 1;
        if (other->unable)
            return 2;
        if (c->killed)
            return KILLED;
        if (other->passed)
            return 4;
        if (other->input)
            return 5;
        if (mine->pinned || other->pinned || mine->passed || mine->input || mine->unable > 1)
            return 6;
        // Behind a filter nobody copies the other end's socket. That end has to be woken, which it may not come to in
        // time, and what it sends meanwhile is behind what is unread.
        if (mine->filtered == 1 + mine->received && other->begun > mine->received)
            return 7;
    }
    return -1;
}

static bool is_reset(int fd)
{
    struct tcp_info about;
    socklen_t length = sizeof about;
    return fd >= 0 && !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &about, &length) && about.tcpi_state == TCP_CLOSE;
}

// Whether the other side has ended its direction.
static bool is_at_end(int fd)
{
    struct tcp_info about;
    socklen_t length = sizeof about;
    return fd >= 0 && !getsockopt(fd, IPPROTO_TCP, TCP_INFO, &about, &length) && about.tcpi_state == TCP_CLOSE_WAIT;
}

// Whether an image does not have the connection: the library has given it a socket that was never connected, or, where
// a process with several threads executed it, nothing.
static bool is_replaced(int fd)
{
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (fd < 0)
        return false;
    if (getsockname(fd, (struct sockaddr *)&address, &length))
        return errno == EBADF;
    return address.ss_family == AF_INET && ((struct sockaddr_in *)&address)->sin_port == 0;
}

// If the other side's image has another socket, the connection ends when the processes close it that had it beside the
// image.
bool is_over(struct actor *a)
{
    struct side *other = &a->conn->side[!a->me];
    for (int i = 0; i < 100 && other->unable && !other->replaced && is_at_end(a->fd); i++)
        nap(2000); // the image may not have looked yet
    return is_reset(a->fd) || is_replaced(a->fd) || other->replaced;
}

__attribute__((noreturn)) static void stop(struct actor *a)
{
    bool replaced = is_replaced(a->fd);
    struct side *s = &a->conn->side[a->me];
    note(a, replaced ? "is replaced" : "is reset", reason(a->conn));
    *(replaced ? &s->replaced : &s->reset) = 1;
    for (;;)
        pause();
}

// Whether the other side's last process has killed itself, perhaps with a doorbell untaken: then the connection is
// reset, and what it had sent by the kernel is lost (docs/limits.md, "Endings and killed processes").
static bool has_other_killed_itself(const struct actor *a)
{
    const struct conn *c = a->conn;
    return c->end == END_KILL && c->side[!a->me].done && !c->side[a->me].done;
}

void stop_if_reset(struct actor *a)
{
    int error = errno;
    // The reset itself, not the end of the stream that the kernel tells once it has told the reset.
    if (a && error == ECONNRESET && has_other_killed_itself(a))
        stop(a);
    if (a && is_over(a) && reason(a->conn) >= 0)
        stop(a);
    errno = error;
}

bool is_over_by_reset(void)
{
    bool any = false;
    for (int i = 0; i < shared->conns; i++) {
        struct side *side = shared->conn[i].side;
        bool replaced = side[0].replaced || side[1].replaced;
        any = any || replaced;
        for (int me = 0; me < 2 && !replaced; me++) {
            if (!side[me].done && !side[me].reset)
                return false;
            any = any || side[me].reset;
        }
    }
    return any;
}

void count_resets(void)
{
    for (int i = 0; i < shared->conns; i++) {
        struct conn *c = &shared->conn[i];
        images += (uint64_t)(c->side[0].unable + c->side[1].unable);
        if (c->side[0].replaced || c->side[1].replaced)
            replaced++;
        if (!c->side[0].reset && !c->side[1].reset)
            continue;
        resets++;
        int why = reason(c);
        reset_for[why < 0 ? KILLED : why]++;
    }
}

void tell_resets(void)
{
    printf("%llu images that could not go on, %llu connections reset (%llu ended, %llu ahead, %llu both, %llu killed, "
           "%llu passed, %llu input, %llu pinned, %llu behind a filter), %llu replaced\n",
           (unsigned long long)images, (unsigned long long)resets, (unsigned long long)reset_for[0],
           (unsigned long long)reset_for[1], (unsigned long long)reset_for[2], (unsigned long long)reset_for[3],
           (unsigned long long)reset_for[4], (unsigned long long)reset_for[5], (unsigned long long)reset_for[6],
           (unsigned long long)reset_for[7], (unsigned long long)replaced);
}
