/* Names and flags that few programs use: other names of calls that the library stands in front of, and requests that it
 * has to understand or to pass on. */
#include "harness.h"

#include <aio.h>
#include <linux/errqueue.h>
#include <sched.h>
#include <spawn.h>
#include <stdarg.h>
#include <utmp.h>
#include <wordexp.h>

/* See socket.h of the kernel. */
#define MSG_PROBE_ONLY 0x10

/* Functions that no header declares. */
extern pid_t __fork(void);
extern pid_t __vfork(void) __attribute__((returns_twice));
extern int __clone(int (*body)(void *), void *stack, int flags, void *argument, ...);
extern int __connect(int fd, const struct sockaddr *address, socklen_t size);
extern FILE *_IO_popen(const char *command, const char *mode);
extern int _IO_fclose(FILE *stream);

extern char **environ;

/* The connection gets a number of one digit, since shells know no others. */
enum { HANDED = 9 };

/* Says what comes back of `text`, which was sent just now. */
static void expect(struct side *side, const char *text) {
    char got[64] = {0};
    size_t count = receive_all(side->fd, got, strlen(text));
    for (char *end; (end = strchr(got, '\n')) != NULL;) *end = '/';
    say("%zu bytes back: %s", count, got);
}

static void forks_a(struct side *side) {
    pid_t child = (pid_t)MUST(_Fork());
    if (child == 0) _exit(write(side->fd, "_Fork", 5) != 5);
    say("_Fork %d", ended(child));
    expect(side, "_Fork");
    child = (pid_t)MUST(__fork());
    if (child == 0) _exit(write(side->fd, "__fork", 6) != 6);
    say("__fork %d", ended(child));
    expect(side, "__fork");
    child = (pid_t)MUST(__vfork());
    if (child == 0) _exit(0);
    say("__vfork %d", ended(child));
    SHOW(send(side->fd, "after", 5, 0));
    expect(side, "after");
}
static void forks(void) { two_processes(AF_INET, forks_a, echo_until_end); }

static int cloned(void *argument) {
    struct side *side = argument;
    return write(side->fd, "cloned", 6) != 6;
}
static void clones_a(struct side *side) {
    static char stack[64 * KIB] __attribute__((aligned(16)));
    pid_t child = (pid_t)MUST(__clone(cloned, stack + sizeof(stack), SIGCHLD, side));
    say("__clone %d", ended(child));
    expect(side, "cloned");
    SHOW(send(side->fd, "after", 5, 0));
    expect(side, "after");
}
static void clones(void) { two_processes(AF_INET, clones_a, echo_until_end); }

static void executions_a(struct side *side) {
    char *words[] = {"echo", "executed", NULL};
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        MUST(dup2(side->fd, STDOUT_FILENO));
        execvpe("echo", words, environ);
        _exit(1);
    }
    say("execvpe %d", ended(child));
    expect(side, "executed\n");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, side->fd, STDOUT_FILENO);
    words[1] = "spawned";
    SHOW(posix_spawnp(&child, "echo", &actions, NULL, words, environ));
    say("posix_spawnp %d", ended(child));
    expect(side, "spawned\n");
#if __GLIBC_PREREQ(2, 39)
    for (int searches = 0; searches < 2; searches++) {
        int process = -1;
        siginfo_t end = {0};
        int failed = searches ? pidfd_spawnp(&process, "echo", &actions, NULL, words, environ)
                              : pidfd_spawn(&process, "/bin/echo", &actions, NULL, words, environ);
        MUST(failed ? -1 : waitid(P_PIDFD, (id_t)process, &end, WEXITED));
        say("pidfd_spawn %d", end.si_status);
        expect(side, "spawned\n");
        close(process);
    }
#endif
    posix_spawn_file_actions_destroy(&actions);
    SHOW(send(side->fd, "after", 5, 0));
    expect(side, "after");
}
static void executions(void) { two_processes(AF_INET, executions_a, echo_until_end); }

static void shells_a(struct side *side) {
    MUST(dup2(side->fd, HANDED));
    FILE *shell = _IO_popen("echo opened >&9", "r");
    say("_IO_popen %d", shell ? pclose(shell) : -1);
    expect(side, "opened\n");
    wordexp_t words;
    SHOW(wordexp("a$(echo expanded >&9; echo b)", &words, 0));
    say("%zu word: %s", words.we_wordc, words.we_wordv[0]);
    wordfree(&words);
    expect(side, "expanded\n");
    SHOW(send(side->fd, "after", 5, 0));
    expect(side, "after");
    close(HANDED);
}
static void shells(void) { two_processes(AF_INET, shells_a, echo_until_end); }

/* Close-on-exec by ioctl. */
static void close_on_exec_a(struct side *side) {
    MUST(dup2(side->fd, HANDED));
    SHOW(ioctl(HANDED, FIOCLEX));
    SHOW(fcntl(HANDED, F_GETFD));
    say("closed: %d", WEXITSTATUS(system("exec 2>/dev/null; echo lost >&9")));
    SHOW(send(HANDED, "mine", 4, 0));
    expect(side, "mine");
    SHOW(ioctl(HANDED, FIONCLEX));
    SHOW(fcntl(HANDED, F_GETFD));
    say("kept: %d", WEXITSTATUS(system("echo kept >&9")));
    expect(side, "kept\n");
    SHOW(send(side->fd, "after", 5, 0));
    expect(side, "after");
    close(HANDED);
}
static void close_on_exec(void) { two_processes(AF_INET, close_on_exec_a, echo_until_end); }

static void terminal_a(struct side *side) {
    pid_t child = (pid_t)MUST(fork());
    if (child == 0) {
        SHOW(login_tty(side->fd));
        _exit(write(side->fd, "no terminal", 11) != 11);
    }
    say("login_tty %d", ended(child));
    expect(side, "no terminal");
}
static void terminal(void) { two_processes(AF_INET, terminal_a, echo_until_end); }

static int print(int fd, const char *format, ...) {
    va_list values;
    va_start(values, format);
    int length = vdprintf(fd, format, values);
    va_end(values);
    return length;
}
static void streams_a(struct side *side) {
    SHOW(print(side->fd, "%s %d", "printed", 7));
    expect(side, "printed 7");
    FILE *stream = fdopen((int)MUST(dup(side->fd)), "w");
    SHOW(fputs("closed", stream) >= 0);
    SHOW(_IO_fclose(stream));
    expect(side, "closed");
    stream = fdopen((int)MUST(dup(side->fd)), "w");
    SHOW(fputs("replaced", stream) >= 0);
    stream = freopen64("/dev/null", "w", stream);
    expect(side, "replaced");
    fclose(stream);
    /* The last descriptor: the other side sees the end. */
    stream = fdopen(side->fd, "w");
    SHOW(fputs("last", stream) >= 0);
    SHOW(_IO_fclose(stream));
    side->fd = -1;
}
static void streams_b(struct side *side) {
    char bytes[23];
    for (const char *size = "\x9\x6\x8"; *size; size++) {
        receive_all(side->fd, bytes, (size_t)*size);
        send_all(side->fd, bytes, (size_t)*size);
    }
    say("at the end %zu", receive_all(side->fd, bytes, sizeof(bytes)));
}
static void streams(void) { two_processes(AF_INET, streams_a, streams_b); }

static void descriptors_a(struct side *side) {
    char byte;
    int copy = (int)MUST(fcntl64(side->fd, F_DUPFD, 50));
    SHOW(write(copy, "copied", 6));
    expect(side, "copied");
    MUST(close(copy));
    SHOW(fcntl64(side->fd, F_SETFL, O_NONBLOCK));
    SHOW(recv(side->fd, &byte, 1, 0));
    SHOW(fcntl64(side->fd, F_SETFL, 0));
    SHOW(send(side->fd, "after", 5, 0));
    expect(side, "after");
}
static void descriptors(void) { two_processes(AF_INET, descriptors_a, echo_until_end); }

static void vectors_a(struct side *side) {
    char got[16] = {0};
    struct iovec out = {"vector", 6}, in = {got, 6};
    SHOW(pwritev64v2(side->fd, &out, 1, -1, 0));
    await_bytes(side->fd, 6);
    SHOW(preadv64v2(side->fd, &in, 1, -1, 0));
    say("got %s", got);
    SHOW(preadv64v2(side->fd, &in, 1, -1, RWF_NOWAIT));
    SHOW(pwritev64v2(side->fd, &out, 1, 5, 0));
    /* Flags, of which a socket heeds RWF_NOWAIT alone. */
    SHOW(pwritev2(side->fd, &out, 1, -1, RWF_HIPRI));
    SHOW(pwritev2(side->fd, &out, 1, -1, RWF_DSYNC));
    SHOW(pwritev2(side->fd, &out, 1, -1, RWF_APPEND));
    SHOW(pwritev2(side->fd, &out, 1, -1, 0x40000000));
    SHOW(send(side->fd, "end", 3, 0));
    expect(side, "vectorvectorvectorend");
    SHOW(pwritev2(side->fd, &out, 1, -1, 0));
    await_bytes(side->fd, 6);
    SHOW(preadv2(side->fd, &in, 1, -2, 0));
    SHOW(preadv2(side->fd, &in, 1, -1, RWF_HIPRI));
    SHOW(preadv2(side->fd, &in, 1, -1, RWF_NOWAIT));
}
static void vectors(void) { two_processes(AF_INET, vectors_a, echo_until_end); }

static void asynchronous_a(struct side *side) {
    static char got[4];
    struct aiocb64 reads = {.aio_fildes = side->fd, .aio_buf = got, .aio_nbytes = sizeof(got)};
    struct aiocb64 writes = {.aio_fildes = side->fd, .aio_buf = "aiow", .aio_nbytes = 4};
    const struct aiocb64 *waited[] = {&reads};
    /* One descriptor's are done one after another. */
    SHOW(aio_write64(&writes));
    SHOW(aio_read64(&reads));
    while (aio_error64(&reads) == EINPROGRESS) aio_suspend64(waited, 1, NULL);
    say("wrote %zd", aio_return64(&writes));
    say("read %zd: %.4s", aio_return64(&reads), got);
    struct aiocb64 listed = {.aio_fildes = side->fd, .aio_buf = "list", .aio_nbytes = 4, .aio_lio_opcode = LIO_WRITE};
    struct aiocb64 *list[] = {&listed};
    SHOW(lio_listio64(LIO_WAIT, list, 1, NULL));
    say("wrote %zd", aio_return64(&listed));
    expect(side, "list");
}
static void asynchronous(void) { two_processes(AF_INET, asynchronous_a, echo_until_end); }

static void flags_a(struct side *side) {
    int value = 50;
    socklen_t size = sizeof(value);
    SHOW(setsockopt(side->fd, SOL_SOCKET, SO_BUSY_POLL, &value, size));
    SHOW(getsockopt(side->fd, SOL_SOCKET, SO_BUSY_POLL, &value, &size));
    say("busy poll %d", value);
    SHOW(send(side->fd, "probe", 5, MSG_PROBE_ONLY));
    SHOW(send(side->fd, "end", 3, 0));
    expect(side, "probeend");
    /* Not asked for by an option, the flag is without meaning. */
    SHOW(send(side->fd, "plain", 5, MSG_ZEROCOPY));
    expect(side, "plain");
}
static void flags(void) { two_processes(AF_INET, flags_a, echo_until_end); }

static void zero_copy_a(struct side *side) {
    static char bytes[32 * KIB], back[32 * KIB], control[256];
    int on = 1;
    SHOW(setsockopt(side->fd, SOL_SOCKET, SO_ZEROCOPY, &on, sizeof(on)));
    /* As gRPC does, which has the option on all its sockets: nothing is asked for yet. */
    for (int i = 0; i < 50; i++) {
        MUST(send(side->fd, "before", 6, 0));
        expect(side, "before");
    }
    fill(bytes, sizeof(bytes), 1, 0);
    SHOW(send(side->fd, bytes, sizeof(bytes), MSG_ZEROCOPY));
    say_bytes("back", back, (long)receive_all(side->fd, back, sizeof(back)));
    await_events(side->fd, POLLERR);
    struct msghdr message = {.msg_control = control, .msg_controllen = sizeof(control)};
    SHOW(recvmsg(side->fd, &message, MSG_ERRQUEUE));
    struct cmsghdr *note = CMSG_FIRSTHDR(&message);
    const struct sock_extended_err *done = note ? (const void *)CMSG_DATA(note) : NULL;
    say("flags %x, from %d", message.msg_flags, done ? done->ee_origin : -1);
    SHOW(send(side->fd, "after", 5, 0));
    expect(side, "after");
}
static void zero_copy(void) { two_processes(AF_INET, zero_copy_a, echo_until_end); }

static void connects_a(struct side *side) {
    int fd = (int)MUST(accept(side->listener, NULL, NULL));
    warm(fd, true);
    SHOW(send(fd, "connected", 9, 0));
    hear(side);
    close(fd);
}
static void connects_b(struct side *side) {
    int fd = (int)MUST(socket(AF_INET, SOCK_STREAM, 0));
    SHOW(__connect(fd, (const struct sockaddr *)&side->address, address_size(&side->address)));
    warm(fd, false);
    char got[16] = {0};
    SHOW(recv(fd, got, 9, MSG_WAITALL));
    say("got %s", got);
    tell(side);
    close(fd);
}
static void connects(void) { two_processes(AF_INET, connects_a, connects_b); }

const struct scenario scenarios[] = {
    {"forks", forks, 0},
    {"clones", clones, 0},
    {"executions", executions, 0},
    {"shells", shells, 0},
    {"close-on-exec", close_on_exec, 0},
    {"terminal", terminal, 0},
    {"streams", streams, 0},
    {"descriptors", descriptors, 0},
    {"vectors", vectors, 0},
    {"asynchronous", asynchronous, 0},
    {"flags", flags, 0},
    {"zero-copy", zero_copy, 0},
    {"connects", connects, 0},
    {0},
};
