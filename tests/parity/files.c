/* Bytes that go between the connection and a file, a pipe or stdio. */
#include "harness.h"

#include <sys/mman.h>
#include <sys/sendfile.h>

static _Thread_local char in[64 * KIB];

static int file_of(size_t size, uint64_t seed) {
    int file = (int)MUST(memfd_create("file", 0));
    MUST(ftruncate(file, (off_t)size));
    char *bytes = mmap(NULL, size, PROT_WRITE, MAP_SHARED, file, 0);
    if (bytes == MAP_FAILED) fail("mmap");
    fill(bytes, size, seed, 0);
    munmap(bytes, size);
    return file;
}

/* Receives exactly count bytes of the stream that begins at `at` in the test data. */
static void expect(struct side *side, size_t count, uint64_t seed, size_t at) {
    size_t got = 0;
    while (got < count) {
        size_t part = receive_all(side->fd, in, count - got < sizeof(in) ? count - got : sizeof(in));
        long wrong = differs(in, part, seed, at + got);
        if (part == 0 || wrong != -1) {
            say("at %zu: %zu bytes, first difference %ld", got, part, wrong);
            return;
        }
        got += part;
    }
    say("%zu bytes as sent", got);
}

/* With an offset the file's position stays, without one it moves; the end of the file is the end. */
static void from_file_a(struct side *side) {
    int fd = side->fd, file = file_of(100000, 1);
    off_t offset = 1000;
    SHOW(sendfile(fd, file, &offset, 5000));
    say("offset %ld, position %ld", (long)offset, (long)lseek(file, 0, SEEK_CUR));
    SHOW(sendfile(fd, file, NULL, 700));
    say("position %ld", (long)lseek(file, 0, SEEK_CUR));
    SHOW(sendfile64(fd, file, NULL, 300));
    SHOW(send(fd, "between", 7, MSG_MORE));
    offset = 99990;
    SHOW(sendfile(fd, file, &offset, 5000));
    say("offset %ld", (long)offset);
    SHOW(sendfile(fd, file, &offset, 5000));
    offset = 200000;
    SHOW(sendfile(fd, file, &offset, 10));
    offset = -1;
    SHOW(sendfile(fd, file, &offset, 10));
    SHOW(sendfile(fd, file, NULL, 0));
    SHOW(sendfile(fd, -1, NULL, 10));
    SHOW(sendfile(-1, file, NULL, 10));
    SHOW(sendfile(fd, fd, NULL, 10));
    SHOW(sendfile(fd, side->turn, NULL, 10));
    hear(side);
}
static void from_file_b(struct side *side) {
    expect(side, 5000, 1, 1000);
    expect(side, 1000, 1, 0);
    long got = (long)receive_all(side->fd, in, 7);
    say_bytes("between", in, got);
    expect(side, 10, 1, 99990);
    SHOW(recv(side->fd, in, 1, MSG_DONTWAIT));
    tell(side);
}
static void from_file(void) { two_processes(AF_INET, from_file_a, from_file_b); }

/* A file larger than all buffers, blocking and not, from any offset. */
static void large_file_a(struct side *side) {
    size_t size = 12 * MIB;
    int fd = side->fd, file = file_of(size, 2);
    off_t offset = 12345;
    size_t left = size - (size_t)offset;
    while (left > 0) {
        ssize_t sent = sendfile(fd, file, &offset, left);
        if (sent <= 0) fail("sendfile");
        left -= (size_t)sent;
    }
    say("offset %ld", (long)offset);
    hear(side);
    set_nonblocking(fd, true);
    offset = 0;
    bool refused = false;
    while ((size_t)offset < size) {
        if (sendfile(fd, file, &offset, size) == -1) {
            if (errno != EAGAIN) fail("sendfile");
            refused = true;
            tell(side);
            await_events(fd, POLLOUT);
        }
    }
    say("offset %ld, was full %d", (long)offset, refused);
    hear(side);
}
static void large_file_b(struct side *side) {
    expect(side, 12 * MIB - 12345, 2, 12345);
    tell(side);
    hear(side); /* full */
    expect(side, 12 * MIB, 2, 0);
    tell(side);
}
static void large_file(void) { two_processes(AF_INET, large_file_a, large_file_b); }

/* A file that is shorter than asked for, again and again; a source that sendfile refuses, which moves nothing. */
static void short_file_a(struct side *side) {
    int fd = side->fd, file = file_of(5000, 5), pipes[2];
    for (int i = 0; i < 50; i++) {
        off_t offset = i * 100;
        if (sendfile(fd, file, &offset, 4096 * KIB) != 5000 - i * 100 || offset != 5000) fail("sendfile");
        if (sendfile(fd, file, &offset, 100) != 0) fail("sendfile at the end");
    }
    MUST(pipe(pipes));
    fill(in, 3000, 6, 0);
    SHOW(send(fd, in, 1000, 0));
    MUST(write(pipes[1], in + 1000, 1000));
    SHOW(sendfile(fd, pipes[0], NULL, 1000));
    SHOW(send(fd, in + 1000, 2000, 0));
    hear(side);
}
static void short_file_b(struct side *side) {
    for (int i = 0; i < 50; i++) expect(side, 5000 - (size_t)i * 100, 5, (size_t)i * 100);
    expect(side, 3000, 6, 0);
    tell(side);
}
static void short_file(void) { two_processes(AF_INET, short_file_a, short_file_b); }

/* splice and tee move bytes inside the kernel: out of a pipe, into a pipe. */
static void splice_a(struct side *side) {
    int fd = side->fd, pipes[2];
    MUST(pipe(pipes));
    set_nonblocking(fd, true);
    SHOW(splice(fd, NULL, pipes[1], NULL, 100, 0));
    set_nonblocking(fd, false);
    tell(side);
    hear(side);
    await_bytes(fd, 1000);
    SHOW(recv(fd, in, 100, 0));
    say("first difference %ld", differs(in, 100, 3, 0));
    SHOW(splice(fd, NULL, pipes[1], NULL, 500, 0));
    SHOW(read(pipes[0], in, 1000));
    say("first difference %ld", differs(in, 500, 3, 100));
    SHOW(recv(fd, in, 1000, 0));
    say("first difference %ld", differs(in, 400, 3, 600));
    fill(in, 2000, 4, 0);
    SHOW(send(fd, in, 500, 0));
    MUST(write(pipes[1], in + 500, 1000));
    SHOW(splice(pipes[0], NULL, fd, NULL, 1000, SPLICE_F_MORE));
    SHOW(send(fd, in + 1500, 500, 0));
    SHOW(splice(fd, NULL, pipes[1], &(off_t){0}, 1, 0));
    hear(side);
}
static void splice_b(struct side *side) {
    hear(side);
    fill(in, 1000, 3, 0);
    send_all(side->fd, in, 1000);
    tell(side);
    expect(side, 2000, 4, 0);
    tell(side);
}
static void spliced(void) { two_processes(AF_INET, splice_a, splice_b); }

/* splice with bytes already under way on the fast path, and back again. */
static void splice_late_a(struct side *side) {
    int pipes[2];
    MUST(pipe(pipes));
    tell(side);
    size_t at = 0;
    while (at < 200000) {
        ssize_t moved = splice(side->fd, NULL, pipes[1], NULL, 30000, 0);
        if (moved <= 0) fail("splice");
        if (read(pipes[0], in, (size_t)moved) != moved) fail("pipe");
        if (differs(in, (size_t)moved, 5, at) != -1) fail("wrong byte");
        at += (size_t)moved;
        if (at >= 200000) break;
        size_t want = 200000 - at < 1000 ? 200000 - at : 1000;
        if (receive_all(side->fd, in, want) != want || differs(in, want, 5, at) != -1) fail("wrong byte");
        at += want;
    }
    say("%zu bytes as sent", at);
}
static void splice_late_b(struct side *side) {
    hear(side);
    for (size_t at = 0; at < 200000; at += 2000) {
        fill(in, 2000, 5, at);
        send_all(side->fd, in, 2000);
    }
    SHOW(recv(side->fd, in, 1, 0));
}
static void splice_late(void) { two_processes(AF_INET, splice_late_a, splice_late_b); }

/* stdio over the connection: lines both ways, buffers, the end. */
static void stdio_a(struct side *side) {
    FILE *reader = fdopen(dup(side->fd), "r"), *writer = fdopen(dup(side->fd), "w");
    char line[100];
    SHOW(fileno(reader) >= 0 && fileno(writer) >= 0);
    SHOW(fcntl(fileno(reader), F_GETFD));
    SHOW(fseek(reader, 0, SEEK_SET));
    for (int i = 0; i < 20; i++) {
        SHOW(fprintf(writer, "line %d\n", i));
        SHOW(fflush(writer));
        if (!fgets(line, sizeof(line), reader)) fail("fgets");
        line[strcspn(line, "\n")] = 0;
        say("%s", line);
    }
    SHOW(dprintf(side->fd, "without a %s, %d, %.2f\n", "buffer", 7, 0.25));
    SHOW(fputs("last", writer) >= 0);
    SHOW(fclose(writer));
    SHOW(shutdown(side->fd, SHUT_WR));
    size_t got = fread(in, 1, 50000, reader);
    say("%zu, first difference %ld, end %d, error %d", got, differs(in, got, 6, 0), feof(reader) != 0, ferror(reader));
    SHOW(fclose(reader));
}
static void stdio_b(struct side *side) {
    FILE *both = fdopen(side->fd, "r+");
    char line[100];
    setvbuf(both, NULL, _IOLBF, 200);
    for (int i = 0; i < 20; i++) {
        if (!fgets(line, sizeof(line), both)) fail("fgets");
        fseek(both, 0, SEEK_CUR);
        fprintf(both, "echo of %s", line);
        fflush(both);
    }
    while (fgets(line, sizeof(line), both)) say("%.*s", (int)strcspn(line, "\n"), line);
    say("end %d", feof(both) != 0);
    clearerr(both);
    fill(in, 50000, 6, 0);
    send_all(side->fd, in, 50000);
    SHOW(fclose(both));
}
static void stdio(void) { two_processes(AF_INET, stdio_a, stdio_b); }

/* Text for a thread that sleeps in a receive comes whole, whatever woke the thread. */
static void stdio_asleep_a(struct side *side) {
    for (int i = 0; i < 2; i++) {
        memset(in, 0, 20);
        SHOW(recv(side->fd, in, 20, 0));
        say("%s", (char *)in);
        tell(side);
    }
}
static void stdio_asleep_b(struct side *side) {
    await_asleep(side->other);
    SHOW(dprintf(side->fd, "%d bytes", 7));
    hear(side);
    await_asleep(side->other);
    SHOW(dprintf(side->fd, "and %d", 5));
    hear(side);
}
static void stdio_asleep(void) { two_processes(AF_INET, stdio_asleep_a, stdio_asleep_b); }

/* stdio on one end only, after plain calls have moved bytes and with bytes still to read. */
static void stdio_late_a(struct side *side) {
    hear(side);
    await_bytes(side->fd, 14);
    SHOW(recv(side->fd, in, 6, 0));
    FILE *reader = fdopen(side->fd, "r");
    char line[100];
    for (int i = 0; i < 2; i++) {
        if (!fgets(line, sizeof(line), reader)) fail("fgets");
        say("%.*s", (int)strcspn(line, "\n"), line);
        tell(side);
    }
    SHOW(fgetc(reader));
    SHOW(getc(reader));
}
static void stdio_late_b(struct side *side) {
    send_all(side->fd, "first\nsecond\nt", 14);
    tell(side);
    hear(side);
    send_all(side->fd, "hird\n", 5);
    hear(side);
    SHOW(write(side->fd, "!", 1));
}
static void stdio_late(void) { two_processes(AF_INET, stdio_late_a, stdio_late_b); }

/* The connection becomes stdin and stdout of a child, as under inetd. */
static void standard_a(struct side *side) {
    pid_t child = (pid_t)MUST(fork());
    int status;
    if (child == 0) {
        char line[100] = "";
        MUST(dup2(side->fd, 0));
        MUST(dup2(side->fd, 1));
        close(side->fd);
        if (!fgets(line, sizeof(line), stdin)) _exit(1);
        printf("printed: %s", line);
        fflush(stdout);
        send_all(1, "written\n", 8);
        printf("printed again\n");
        fflush(stdout);
        _exit(0);
    }
    tell(side);
    MUST(waitpid(child, &status, 0));
    say("the child ended with %d", status);
    hear(side);
}
static void standard_b(struct side *side) {
    send_all(side->fd, "a line\n", 7);
    hear(side);
    size_t got = receive_all(side->fd, in, 38);
    say("%.*s", (int)got, in);
    tell(side);
}
static void standard(void) { two_processes(AF_INET, standard_a, standard_b); }

/* A pipe without room is not waited for, when that is not wanted. */
static void splice_full_a(struct side *side) {
    int pipes[2];
    MUST(pipe(pipes));
    hear(side);
    await_bytes(side->fd, 1000);
    set_nonblocking(pipes[1], true);
    while (write(pipes[1], in, KIB) > 0) {}
    set_nonblocking(pipes[1], false);
    SHOW(splice(side->fd, NULL, pipes[1], NULL, 500, SPLICE_F_NONBLOCK));
    SHOW(recv(side->fd, in, 1000, 0));
    say("first difference %ld", differs(in, 1000, 7, 0));
}
static void splice_full_b(struct side *side) {
    fill(in, 1000, 7, 0);
    send_all(side->fd, in, 1000);
    tell(side);
}
static void splice_full(void) { two_processes(AF_INET, splice_full_a, splice_full_b); }

/* sendfile may be asked for more than the rest of the file. A reader that has read that rest has read everything:
 * nothing is left for a further look, and its close is no reset. */
static void rest_of_file_a(struct side *side) {
    off_t offset = 0;
    SHOW(sendfile(side->fd, file_of(13878, 4), &offset, 13878 + 50));
    tell(side);
    hear(side);
    await_events(side->fd, POLLRDHUP);
    SHOW(recv(side->fd, in, 100, MSG_DONTWAIT));
    SHOW(recv(side->fd, in, 100, 0));
}
static void rest_of_file_b(struct side *side) {
    struct timeval timeout = {0, 50000};
    hear(side);
    await_bytes(side->fd, 13878);
    SHOW(recv(side->fd, in, 13878, 0));
    say("first difference %ld", differs(in, 13878, 4, 0));
    MUST(setsockopt(side->fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)));
    SHOW(recv(side->fd, in, 100, MSG_PEEK));
    SHOW(recv(side->fd, in, 100, MSG_PEEK | MSG_DONTWAIT));
    close(side->fd);
    tell(side);
}
static void rest_of_file(void) { two_processes(AF_INET, rest_of_file_a, rest_of_file_b); }
static void read_file_b(struct side *side) {
    hear(side);
    await_bytes(side->fd, 13878);
    SHOW(recv(side->fd, in, 13878, 0));
    close(side->fd);
    tell(side);
}
static void read_file(void) { two_processes(AF_INET, rest_of_file_a, read_file_b); }

/* A stream over a connection that becomes one over a file: the connection ends, its number stays. */
extern FILE *_IO_fdopen(int fd, const char *mode);
static void reopened_a(struct side *side) {
    static const char *const paths[] = {"/dev/null", "/nonexistent/file", NULL};
    for (size_t i = 0; i < COUNT(paths); i++) {
        int fd = another(side);
        FILE *stream = _IO_fdopen(fd, "r+");
        send_all(side->fd, "1", 1);
        await_bytes(fd, 3);
        SHOW(fgetc(stream));
        SHOW(fseek(stream, 0, SEEK_CUR));
        SHOW(ftell(stream));
        SHOW(fputs("written", stream) >= 0);
        FILE *again = freopen(paths[i], "r+", stream);
        say("reopened: %d", again == stream);
        if (again) {
            SHOW(fileno(again) == fd);
            SHOW(fgetc(again));
            SHOW(write(fd, "to the file", 11));
            SHOW(fclose(again));
        }
        SHOW(write(fd, "x", 1));
    }
}
static void reopened_b(struct side *side) {
    for (int i = 0; i < 3; i++) {
        int fd = another(side);
        char bytes[100];
        receive_all(side->fd, bytes, 1);
        send_all(fd, "abc", 3);
        size_t got = receive_all(fd, bytes, sizeof(bytes));
        say_bytes("to the connection", bytes, (long)got);
        close(fd);
    }
}
static void reopened(void) { two_processes(AF_INET, reopened_a, reopened_b); }

const struct scenario scenarios[] = {
    {"from-file", from_file, 0}, {"large-file", large_file, 0}, {"short-file", short_file, 0},
    {"splice", spliced, 0},      {"splice-late", splice_late, 0}, {"stdio", stdio, 0},
    {"stdio-late", stdio_late, 0}, {"standard", standard, 0},    {"splice-full", splice_full, 0},
    {"stdio-asleep", stdio_asleep, 0},
    {"rest-of-file", rest_of_file, 0}, {"read-file", read_file, 0},
    {"reopened", reopened, 0},
    {0},
};
