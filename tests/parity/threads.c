/* Threads on one connection: blocked readers and writers beside others, closing under them, cancellation. */
#include "harness.h"

#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/stat.h>

static _Thread_local char in[64 * KIB], out[64 * KIB];

/* A helper thread that makes one blocking call and says what it returned. */
struct helper {
    struct side *side;
    char letter;
    atomic_int task;
    pthread_t thread;
};
static void begin(struct helper *helper, struct side *side, char letter, void *(*body)(void *)) {
    helper->side = side;
    helper->letter = letter;
    helper->task = 0;
    start_thread(&helper->thread, body, helper);
    while (helper->task == 0) nap_ms(1);
}
static struct side *introduce(void *argument) {
    struct helper *helper = argument;
    role = helper->letter;
    helper->task = this_task();
    return helper->side;
}
static void end(struct helper *helper) { pthread_join(helper->thread, NULL); }

static void *blocked_recv(void *argument) {
    struct side *side = introduce(argument);
    SHOW(recv(side->fd, in, 100, 0));
    return NULL;
}
/* The other side does what it is told, a letter at a time. */
static void obey(struct side *side) {
    for (;;) {
        char what;
        if (read(side->turn, &what, 1) != 1 || what == 'q') return;
        switch (what) {
        case '1': send_all(side->fd, "x", 1); break;
        case 'e':
            while (recv(side->fd, in, 1, 0) == 1) send_all(side->fd, in, 1);
            break;
        case 'r': SHOW(recv(side->fd, in, 1, 0)); break;
        case 'g':
            for (uint64_t at = 0; at < 8 * MIB; at += sizeof(in)) {
                if (receive_all(side->fd, in, sizeof(in)) != sizeof(in)) fail("the end came early");
                if (differs(in, sizeof(in), 5, at) != -1) fail("wrong byte");
            }
            say("all that was gathered");
            break;
        case 'w': shutdown(side->fd, SHUT_WR); break;
        case 'd':
            SHOW(receive_all(side->fd, in, 5000));
            say("first difference %ld", differs(in, 5000, 2, 0));
            break;
        default: break;
        }
        tell(side);
    }
}
static void order(struct side *side, char what) {
    MUST(write(side->turn, &what, 1));
    hear(side);
}
static void quit(struct side *side) { MUST(write(side->turn, "q", 1)); }

/* One thread sleeps in recv while another writes on the same connection. */
static void reader_writer_a(struct side *side) {
    struct helper reader;
    begin(&reader, side, 'C', blocked_recv);
    await_asleep(reader.task);
    fill(out, 5000, 2, 0);
    for (int i = 0; i < 10; i++) SHOW(send(side->fd, out + 500 * i, 500, 0));
    order(side, 'd');
    order(side, '1');
    end(&reader);
    quit(side);
}
static void reader_writer(void) { two_processes(AF_INET, reader_writer_a, obey); }

/* Two and three threads asleep in recv on one connection: each byte wakes one, the end wakes all. */
static atomic_int bytes_seen, ends_seen;
static void *count_recv(void *argument) {
    struct side *side = introduce(argument);
    ssize_t got = recv(side->fd, in, 100, 0);
    if (got == 1) bytes_seen++;
    if (got == 0) ends_seen++;
    return NULL;
}
static void readers_a(struct side *side) {
    struct helper readers[3];
    for (int i = 0; i < 3; i++) begin(&readers[i], side, 'C', count_recv);
    for (int i = 0; i < 3; i++) await_asleep(readers[i].task);
    order(side, '1');
    order(side, 'w');
    for (int i = 0; i < 3; i++) end(&readers[i]);
    say("%d byte, %d ends", bytes_seen, ends_seen);
    quit(side);
}
static void readers(void) { two_processes(AF_INET, readers_a, obey); }

/* Four threads write records, one thread of the other side reads them: none is torn, each writer's are in order. */
struct record {
    uint32_t writer, number;
    char bytes[56];
};
static void *write_records(void *argument) {
    struct side *side = introduce(argument);
    struct record record = {.writer = (uint32_t)role};
    for (record.number = 0; record.number < 2000; record.number++) {
        fill(record.bytes, sizeof(record.bytes), record.writer, record.number);
        if (send(side->fd, &record, sizeof(record), 0) != sizeof(record)) fail("a record was torn");
    }
    return NULL;
}
static void writers_a(struct side *side) {
    struct helper writers[4];
    for (int i = 0; i < 4; i++) begin(&writers[i], side, (char)('C' + i), write_records);
    for (int i = 0; i < 4; i++) end(&writers[i]);
    say("written");
    hear(side);
}
static void writers_b(struct side *side) {
    uint32_t next[4] = {0};
    struct record record;
    for (int i = 0; i < 8000; i++) {
        if (receive_all(side->fd, &record, sizeof(record)) != sizeof(record)) fail("record");
        if (record.writer - 'C' > 3 || record.number != next[record.writer - 'C']++) fail("order of records");
        if (differs(record.bytes, sizeof(record.bytes), record.writer, record.number) != -1) fail("wrong byte");
    }
    say("all in order");
    tell(side);
}
static void writers(void) { two_processes(AF_INET, writers_a, writers_b); }

/* Many threads take from one stream: together they get every byte once. */
static atomic_long sum_taken, count_taken;
static void *take_bytes(void *argument) {
    struct side *side = introduce(argument);
    ssize_t got;
    while ((got = recv(side->fd, in, 777, 0)) > 0) {
        for (ssize_t i = 0; i < got; i++) sum_taken += (unsigned char)in[i];
        count_taken += got;
    }
    say("the end: %zd", got);
    return NULL;
}
static void takers_a(struct side *side) {
    struct helper takers[4];
    for (int i = 0; i < 4; i++) begin(&takers[i], side, 'C', take_bytes);
    hear(side);
    for (int i = 0; i < 4; i++) end(&takers[i]);
    say("%ld bytes, sum %ld", count_taken, sum_taken);
}
static void takers_b(struct side *side) {
    for (size_t at = 0; at < MIB; at += 1024) {
        fill(out, 1024, 9, at);
        send_all(side->fd, out, 1024);
    }
    shutdown(side->fd, SHUT_WR);
    tell(side);
}
static void takers(void) { two_processes(AF_INET, takers_a, takers_b); }

/* shutdown by another thread ends a blocked recv; a blocked send ends with what it had moved. */
static void shut_a(struct side *side) {
    struct helper reader;
    begin(&reader, side, 'C', blocked_recv);
    await_asleep(reader.task);
    SHOW(shutdown(side->fd, SHUT_RD));
    end(&reader);
    SHOW(send(side->fd, "x", 1, 0));
    int second = another(side);
    struct side other = *side;
    other.fd = second;
    begin(&reader, &other, 'D', blocked_recv);
    await_asleep(reader.task);
    SHOW(shutdown(second, SHUT_RDWR));
    end(&reader);
    tell(side);
}
static void shut_b(struct side *side) {
    int second = another(side);
    hear(side);
    SHOW(recv(side->fd, in, 10, 0));
    SHOW(recv(second, in, 10, 0));
}
static void shut(void) { two_processes(AF_INET, shut_a, shut_b); }

static void *blocked_send(void *argument) {
    struct side *side = introduce(argument);
    size_t size = 32 * MIB;
    char *bytes = malloc(size);
    fill(bytes, size, 3, 0);
    long part = send(side->fd, bytes, size, MSG_NOSIGNAL);
    say("a part: %d", part > 0 && part < (long)size);
    SHOW(send(side->fd, bytes, size, MSG_NOSIGNAL));
    free(bytes);
    MUST(write(side->turn, &part, sizeof(part)));
    return NULL;
}
static void shut_writer_a(struct side *side) {
    struct helper writer;
    begin(&writer, side, 'C', blocked_send);
    await_asleep(writer.task);
    SHOW(shutdown(side->fd, SHUT_WR));
    end(&writer);
}
static void shut_writer_b(struct side *side) {
    long part = 0, at = 0;
    MUST(read(side->turn, &part, sizeof(part)));
    for (ssize_t got; (got = recv(side->fd, in, sizeof(in), 0)) > 0; at += got) {
        if (differs(in, (size_t)got, 3, (uint64_t)at) != -1) fail("wrong byte");
    }
    say("all of the part, then the end: %d", at == part);
}
static void shut_writer(void) { two_processes(AF_INET, shut_writer_a, shut_writer_b); }

/* close by another thread does not end a blocked recv: the next byte does, and the number is free meanwhile. */
static void close_a(struct side *side) {
    struct helper reader;
    int number = side->fd;
    struct side other = *side;
    begin(&reader, &other, 'C', blocked_recv);
    await_asleep(reader.task);
    SHOW(close(number));
    SHOW(recv(number, in, 1, MSG_DONTWAIT));
    int pipes[2];
    MUST(pipe(pipes));
    say("number taken again: %d", pipes[0] == number);
    order(side, '1');
    end(&reader);
    MUST(write(pipes[1], "pipe", 4));
    SHOW(read(pipes[0], in, 10));
    side->fd = -1;
    quit(side);
}
static void closed(void) { two_processes(AF_INET, close_a, obey); }

/* dup2 over a descriptor in which a thread sleeps. */
static void replace_a(struct side *side) {
    struct helper reader;
    int second = another(side);
    struct side other = *side;
    begin(&reader, &other, 'C', blocked_recv);
    await_asleep(reader.task);
    SHOW(dup2(second, side->fd) == side->fd);
    tell(side);
    end(&reader);
    SHOW(recv(side->fd, in, 10, MSG_WAITALL));
    close(second);
}
static void replace_b(struct side *side) {
    int second = another(side);
    hear(side);
    send_all(side->fd, "x", 1);
    send_all(second, "0123456789", 10);
    SHOW(recv(side->fd, in, 1, 0));
    SHOW(recv(second, in, 1, 0));
}
static void replaced(void) { two_processes(AF_INET, replace_a, replace_b); }

/* One more connection, never used. */
static int unused(struct side *side) {
    if (side->leader) return (int)MUST(accept(side->listener, NULL, NULL));
    return connect_to(&side->address);
}

/* Closed under threads that sleep in recv, each time of another kind, and the number is another connection's at once.
 * What is sent afterwards they receive, nothing of the other connection, and then the other side sees the end. */
static int close_under(struct side *side, struct helper *sleeper, void *(*body)(void *), int count) {
    for (int i = 0; i < count; i++) begin(&sleeper[i], side, 'C', body);
    for (int i = 0; i < count; i++) await_asleep(sleeper[i].task);
    tell(side);
    int fresh = unused(side);
    hear(side);
    MUST(dup2(fresh, side->fd));
    close(fresh);
    await_bytes(side->fd, 20);
    return side->fd;
}
static void close_under_a(struct side *side, void *(*body)(void *), int count, const char *orders) {
    struct helper sleepers[3];
    int number = close_under(side, sleepers, body, count);
    for (const char *what = orders; *what; what++) order(side, *what);
    for (int i = 0; i < count; i++) end(&sleepers[i]);
    order(side, 'r');
    SHOW(receive_all(number, in, 20));
    say("first difference %ld", differs(in, 20, 4, 0));
    SHOW(send(number, "x", 1, 0));
    quit(side);
}
static void close_under_b(struct side *side) {
    hear(side);
    int fresh = unused(side);
    fill(out, 20, 4, 0);
    send_all(fresh, out, 20);
    tell(side);
    obey(side);
    SHOW(recv(fresh, in, 1, 0));
}
static void *whole_recv(void *argument) {
    struct side *side = introduce(argument);
    SHOW(recv(side->fd, in, 6, MSG_WAITALL));
    say_bytes("whole", in, 6);
    return NULL;
}
static void *look(void *argument) {
    struct side *side = introduce(argument);
    SHOW(recv(side->fd, in, 3, MSG_PEEK | MSG_WAITALL));
    return NULL;
}
/* More pieces than the library hands to the kernel at a time. */
static void *gather(void *argument) {
    struct side *side = introduce(argument);
    enum { PARTS = 32, PART = 8 * MIB / PARTS };
    char *bytes = malloc(8 * MIB);
    struct iovec parts[PARTS];
    fill(bytes, 8 * MIB, 5, 0);
    for (size_t i = 0; i < PARTS; i++) parts[i] = (struct iovec){bytes + i * PART, PART};
    SHOW(writev(side->fd, parts, PARTS));
    free(bytes);
    return NULL;
}
static void closed_writer_a(struct side *side) { close_under_a(side, gather, 1, "g"); }
static void closed_writer(void) { two_processes(AF_INET, closed_writer_a, close_under_b); }
/* Closed under a thread that sends much by one call, on a connection that nothing was sent on: all of it is sent. */
static void *pour(void *argument) {
    struct side *side = introduce(argument);
    char *bytes = malloc(32 * MIB);
    fill(bytes, 32 * MIB, 5, 0);
    SHOW(send(side->fd, bytes, 32 * MIB, 0));
    free(bytes);
    return NULL;
}
static void closed_pouring_a(struct side *side) {
    struct helper writer;
    struct side other = *side;
    other.fd = unused(side);
    begin(&writer, &other, 'C', pour);
    await_asleep(writer.task);
    SHOW(close(other.fd));
    tell(side);
    end(&writer);
}
static void closed_pouring_b(struct side *side) {
    int fd = unused(side);
    size_t total = 0;
    hear(side);
    for (ssize_t got; (got = MUST(recv(fd, in, sizeof(in), 0))) > 0; total += (size_t)got)
        if (differs(in, (size_t)got, 5, total) != -1) fail("wrong byte");
    say("%zu came", total);
}
static void closed_pouring(void) { two_processes(AF_INET, closed_pouring_a, closed_pouring_b); }
static void closed_watched_a(struct side *side) {
    int set = (int)MUST(epoll_create1(0));
    struct epoll_event event = {.events = EPOLLIN};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event));
    close_under_a(side, blocked_recv, 1, "1");
    SHOW(epoll_wait(set, &event, 1, 0));
}
static void closed_watched(void) { two_processes(AF_INET, closed_watched_a, close_under_b); }
static void closed_readers_a(struct side *side) {
    close_under_a(side, count_recv, 3, "1w");
    say("%d byte, %d ends", bytes_seen, ends_seen);
}
static void closed_readers(void) { two_processes(AF_INET, closed_readers_a, close_under_b); }
static void closed_whole_a(struct side *side) { close_under_a(side, whole_recv, 1, "111111"); }
static void closed_whole(void) { two_processes(AF_INET, closed_whole_a, close_under_b); }
static void closed_look_a(struct side *side) { close_under_a(side, look, 1, "111"); }
static void closed_look(void) { two_processes(AF_INET, closed_look_a, close_under_b); }

/* Closed under a thread that sleeps in recv and is then cancelled, or the other way round: the other side sees the
 * end. */
static void *cancelled_recv(void *argument) {
    struct side *side = introduce(argument);
    recv(side->fd, in, 10, 0);
    say("not cancelled");
    return NULL;
}
static void closed_cancelled_a(struct side *side) {
    for (int first = 0; first < 2; first++) {
        struct helper sleeper;
        struct side other = *side;
        other.fd = another(side);
        begin(&sleeper, &other, 'C', cancelled_recv);
        await_asleep(sleeper.task);
        if (first) SHOW(close(other.fd));
        pthread_cancel(sleeper.thread);
        end(&sleeper);
        if (!first) SHOW(close(other.fd));
        hear(side);
    }
}
static void closed_cancelled_b(struct side *side) {
    for (int first = 0; first < 2; first++) {
        int fd = another(side);
        SHOW(recv(fd, in, 1, 0));
        tell(side);
        close(fd);
    }
}
static void closed_cancelled(void) { two_processes(AF_INET, closed_cancelled_a, closed_cancelled_b); }

/* A child that is forked after the close does not have the socket. */
static void closed_forked_a(struct side *side) {
    struct helper sleeper;
    struct side other = *side;
    int pipes[2];
    MUST(pipe(pipes));
    begin(&sleeper, &other, 'C', blocked_recv);
    await_asleep(sleeper.task);
    SHOW(close(side->fd));
    side->fd = -1;
    pid_t child = fork();
    if (child == 0) {
        char byte;
        close(pipes[1]);
        _exit(read(pipes[0], &byte, 1) == 0 ? 0 : 1);
    }
    order(side, '1');
    end(&sleeper);
    order(side, 'r');
    close(pipes[1]);
    int status;
    MUST(waitpid(child, &status, 0));
    say("child %d", status);
    quit(side);
}
static void closed_forked(void) { two_processes(AF_INET, closed_forked_a, obey); }

/* A range of descriptors closed under a thread that sleeps in recv, and what was open meanwhile tried one by one. */
static void closed_range_a(struct side *side) {
    struct helper sleeper;
    struct side other = *side;
    other.fd = another(side);
    begin(&sleeper, &other, 'C', blocked_recv);
    await_asleep(sleeper.task);
    int last = other.fd, open = 0;
    SHOW(close_range((unsigned)last, ~0U, 0));
    for (int fd = last; fd < 1100; fd++) open += close(fd) == 0;
    say("still open: %d", open);
    SHOW(close_range((unsigned)last, ~0U, 0));
    tell(side);
    end(&sleeper);
    tell(side);
    hear(side);
}
static void closed_range_b(struct side *side) {
    int fd = another(side);
    hear(side);
    send_all(fd, "x", 1);
    hear(side);
    SHOW(recv(fd, in, 1, 0));
    tell(side);
}
static void closed_range(void) { two_processes(AF_INET, closed_range_a, closed_range_b); }

/* Closed under a thread that sleeps in recv, and then every number from there on given to something else, or closed one
 * by one, as daemons do. The thread receives what comes, and the numbers are what they were made. */
static void closed_taken_a(struct side *side) {
    struct helper sleeper;
    struct side other = *side;
    struct stat file, now;
    other.fd = another(side);
    begin(&sleeper, &other, 'C', blocked_recv);
    await_asleep(sleeper.task);
    int last = other.fd, null = (int)MUST(open("/dev/null", O_RDWR)), taken = 0, kept = 0, closed = 0, open_numbers = 0;
    MUST(fstat(null, &file));
    SHOW(close(last));
    for (int fd = last + 2; fd < 1010; fd++)
        open_numbers += fcntl(fd, F_GETFD) != -1 || dup(fd) != -1 || dup2(fd, null) != -1;
    say("open %d", open_numbers);
    for (int fd = last + 2; fd < 1010; fd++) taken += (fd % 2 ? dup2(null, fd) : dup3(null, fd, O_CLOEXEC)) == fd;
    tell(side);
    end(&sleeper);
    for (int fd = last + 2; fd < 1010; fd++)
        kept += fstat(fd, &now) == 0 && now.st_rdev == file.st_rdev && write(fd, "x", 1) == 1;
    say("taken %d, kept %d", taken, kept);
    for (int fd = last + 2; fd < 1010; fd++) closed += close(fd) == 0;
    say("closed %d", closed);
    tell(side);
    hear(side);
    close(null);
}
static void closed_taken(void) { two_processes(AF_INET, closed_taken_a, closed_range_b); }

/* A connection is closed under a thread that sleeps in poll: later bytes wake the thread, and the number is free. */
static void *blocked_poll(void *argument) {
    struct side *side = introduce(argument);
    struct pollfd it = {.fd = side->fd, .events = POLLIN};
    SHOW(poll(&it, 1, -1));
    say("events %x", it.revents);
    return NULL;
}
static void *blocked_select(void *argument) {
    struct side *side = introduce(argument);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(side->fd, &set);
    SHOW(select(side->fd + 1, &set, NULL, NULL, NULL));
    return NULL;
}
static void closed_polled_a(struct side *side) {
    for (int i = 0; i < 2; i++) {
        struct helper sleeper;
        struct side other = *side;
        other.fd = another(side);
        begin(&sleeper, &other, 'C', i == 0 ? blocked_poll : blocked_select);
        await_asleep(sleeper.task);
        SHOW(close(other.fd));
        tell(side);
        end(&sleeper);
        tell(side);
        hear(side);
    }
}
static void closed_polled_b(struct side *side) {
    for (int i = 0; i < 2; i++) {
        int fd = another(side);
        hear(side);
        SHOW(send(fd, "x", 1, 0));
        hear(side);
        SHOW(recv(fd, in, 1, 0));
        close(fd);
        tell(side);
    }
}
static void closed_polled(void) { two_processes(AF_INET, closed_polled_a, closed_polled_b); }

/* The same for connections that have never been used: what the sleeping thread leaves behind is not the next one's. */
static void *blocked_bulk(void *argument) {
    struct side *side = introduce(argument);
    size_t size = 8 * MIB;
    char *bytes = malloc(size);
    fill(bytes, size, 3, 0);
    SHOW(send(side->fd, bytes, size, MSG_NOSIGNAL));
    free(bytes);
    return NULL;
}
static void closed_unused_a(struct side *side) {
    static void *(*const calls[])(void *) = {blocked_recv, blocked_bulk};
    for (int i = 0; i < 6; i++) {
        struct helper blocked;
        struct side first = *side;
        first.fd = unused(side);
        begin(&blocked, &first, 'C', calls[i % 2]);
        await_asleep(blocked.task);
        SHOW(close(first.fd));
        tell(side);
        int second = unused(side);
        say("number taken again: %d", second == first.fd);
        send_all(second, "y", 1);
        tell(side);
        end(&blocked);
        for (int round = 0; round < 20; round++) {
            SHOW(receive_all(second, in, 100));
            send_all(second, in, 100);
        }
        SHOW(recv(second, in, 1, 0));
        close(second);
    }
}
static void closed_unused_b(struct side *side) {
    for (int i = 0; i < 6; i++) {
        int first = unused(side);
        hear(side);
        int second = unused(side);
        SHOW(recv(second, in, 1, 0));
        hear(side);
        if (i % 2 == 0) send_all(first, "x", 1);
        else for (size_t left = 8 * MIB; left > 0; left -= receive_all(first, in, sizeof(in))) {}
        for (int round = 0; round < 20; round++) {
            send_all(second, out, 100);
            SHOW(receive_all(second, in, 100));
        }
        close(first);
        close(second);
    }
}
static void closed_unused(void) { two_processes(AF_INET, closed_unused_a, closed_unused_b); }

/* A thread that is cancelled while it sleeps in recv, read, poll or epoll_wait leaves the connection usable. */
static void cleanup(void *argument) {
    (void)argument;
    say("cancelled");
}
static void *cancelled_call(void *argument) {
    struct helper *helper = argument;
    struct side *side = introduce(argument);
    struct pollfd ready = {side->fd, POLLIN, 0};
    struct iovec part = {in, 10};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
    int set = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN};
    epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event);
    long result;
    pthread_cleanup_push(cleanup, NULL);
    switch (helper->letter) {
    case 'C': result = recv(side->fd, in, 10, 0); break;
    case 'D': result = read(side->fd, in, 10); break;
    case 'E': result = recvmsg(side->fd, &message, 0); break;
    case 'F': result = poll(&ready, 1, -1); break;
    case 'G': result = epoll_wait(set, &event, 1, -1); break;
    default: result = readv(side->fd, &part, 1);
    }
    pthread_cleanup_pop(0);
    say("not cancelled: %ld", result);
    return NULL;
}
static void cancel_a(struct side *side) {
    for (char letter = 'C'; letter <= 'H'; letter++) {
        struct helper sleeper;
        void *result = NULL;
        begin(&sleeper, side, letter, cancelled_call);
        await_asleep(sleeper.task);
        SHOW(pthread_cancel(sleeper.thread));
        pthread_join(sleeper.thread, &result);
        say("cancelled %d", result == PTHREAD_CANCELED);
        order(side, '1');
        SHOW(recv(side->fd, in, 10, 0));
        SHOW(send(side->fd, "abc", 3, 0));
    }
    order(side, 'w');
    SHOW(recv(side->fd, in, 10, 0));
    quit(side);
}
static void cancel_b(struct side *side) {
    obey(side);
    long got = (long)receive_all(side->fd, in, 18);
    say_bytes("all six", in, got);
}
static void cancel(void) { two_processes(AF_INET, cancel_a, cancel_b); }

/* Threads are cancelled inside calls before the connection was used in any other way: it goes as any other afterwards,
 * in both directions, and so does one that has its number later. */
static void *cancelled_first(void *argument) {
    struct helper *helper = argument;
    struct side *side = introduce(argument);
    if (helper->letter == 'C') recv(side->fd, in, 10, 0);
    else for (;;) send(side->fd, out, sizeof(out), 0);
    say("not cancelled");
    return NULL;
}
static void cancel_first_a(struct side *side) {
    for (int round = 0; round < 2; round++) {
        struct side fresh = *side;
        struct helper sleeper;
        fresh.fd = MUST(accept(side->listener, NULL, NULL));
        for (char letter = 'C'; letter <= 'D'; letter++) {
            begin(&sleeper, &fresh, letter, cancelled_first);
            await_asleep(sleeper.task);
            SHOW(pthread_cancel(sleeper.thread));
            end(&sleeper);
        }
        tell(side);
        for (int left = 1; left > 0; nap_ms(1)) MUST(ioctl(fresh.fd, TIOCOUTQ, &left));
        tell(side);
        hear(side);
        for (int i = 0; i < 200; i++) {
            send_all(fresh.fd, out, 100);
            if (receive_all(fresh.fd, in, 100) != 100) fail("less than was sent");
        }
        close(fresh.fd);
        hear(side);
    }
}
static void cancel_first_b(struct side *side) {
    for (int round = 0; round < 2; round++) {
        int fd = connect_to(&side->address);
        struct pollfd any[2] = {{fd, POLLIN, 0}, {side->turn, POLLIN, 0}};
        hear(side);
        while (MUST(poll(any, 2, -1)) > 0 && (any[0].revents != 0 || any[1].revents == 0)) {
            if (any[0].revents != 0) MUST(recv(fd, in, sizeof(in), 0));
        }
        hear(side);
        tell(side);
        for (int i = 0; i < 200; i++) {
            if (receive_all(fd, in, 100) != 100) fail("less than was sent");
            send_all(fd, out, 100);
        }
        close(fd);
        tell(side);
    }
}
static void cancel_first(void) { two_processes(AF_INET, cancel_first_a, cancel_first_b); }

/* A thread that sleeps in recv behind another is interrupted, cancelled and timed out as the first one is. */
static atomic_int handled;
static void count_signal(int signal) {
    (void)signal;
    handled++;
}
static void interrupt(struct helper *helper, int signal) {
    int before = handled;
    MUST(pthread_kill(helper->thread, signal));
    while (handled == before) nap_ms(1);
}
static void begin_asleep(struct helper *helper, struct side *side, char letter, void *(*body)(void *)) {
    begin(helper, side, letter, body);
    await_asleep(helper->task);
}
static void set_timeout(int fd, long ms) {
    struct timeval timeout = {ms / 1000, ms % 1000 * 1000};
    MUST(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)));
}
static void behind_a(struct side *side) {
    struct helper first, second;
    MUST(sigaction(SIGUSR1, &(struct sigaction){.sa_handler = count_signal}, NULL));
    MUST(sigaction(SIGUSR2, &(struct sigaction){.sa_handler = count_signal, .sa_flags = SA_RESTART}, NULL));
    begin_asleep(&first, side, 'C', blocked_recv);
    begin_asleep(&second, side, 'D', blocked_recv);
    interrupt(&second, SIGUSR2);
    await_asleep(second.task);
    interrupt(&second, SIGUSR1);
    end(&second);
    begin_asleep(&second, side, 'E', cancelled_call);
    MUST(pthread_cancel(second.thread));
    end(&second);
    set_timeout(side->fd, 20);
    begin(&second, side, 'F', blocked_recv);
    end(&second);
    set_timeout(side->fd, 100000);
    begin_asleep(&second, side, 'G', blocked_recv);
    interrupt(&second, SIGUSR2);
    end(&second);
    set_timeout(side->fd, 0);
    begin_asleep(&second, side, 'H', blocked_recv);
    interrupt(&first, SIGUSR1);
    end(&first);
    order(side, '1');
    end(&second);
    order(side, '1');
    SHOW(recv(side->fd, in, 10, 0));
    quit(side);
}
static void behind(void) { two_processes(AF_INET, behind_a, obey); }

/* A cancel that was asked for before a call that need not wait. */
static void *cancelled_early(void *argument) {
    struct side *side = introduce(argument);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cancel(pthread_self());
    SHOW(recv(side->fd, in, 4, MSG_WAITALL));
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    recv(side->fd, in, 4, 0);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    say("not cancelled");
    return NULL;
}
static void *cancelled_polls(void *argument) {
    struct helper *helper = argument;
    struct side *side = introduce(argument);
    struct pollfd ready = {side->fd, POLLIN, 0};
    struct epoll_event event = {.events = EPOLLIN};
    fd_set readable;
    FD_ZERO(&readable);
    FD_SET(side->fd, &readable);
    int set = epoll_create1(0);
    epoll_ctl(set, EPOLL_CTL_ADD, side->fd, &event);
    SHOW(epoll_wait(set, &event, 1, -1));
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    pthread_cancel(pthread_self());
    long told = 0;
    for (int i = 0; i < 100; i++) told += epoll_wait(set, &event, 1, -1) + poll(&ready, 1, -1);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
    switch (helper->letter) {
    case 'D': epoll_wait(set, &event, 1, -1); break;
    case 'E': epoll_wait(set, &event, 1, 0); break;
    case 'F': epoll_pwait(set, &event, 1, -1, NULL); break;
    case 'G': poll(&ready, 1, -1); break;
    case 'H': poll(&ready, 1, 0); break;
    case 'I': ppoll(&ready, 1, NULL, NULL); break;
    case 'J': select(side->fd + 1, &readable, NULL, NULL, NULL); break;
    default: pselect(side->fd + 1, &readable, NULL, NULL, NULL, NULL);
    }
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
    say("not cancelled, told %ld", told);
    return NULL;
}
static void early_a(struct side *side) {
    struct helper helper;
    for (int i = 0; i < 8; i++) order(side, '1');
    await_bytes(side->fd, 8);
    for (char letter = 'D'; letter <= 'K'; letter++) {
        begin(&helper, side, letter, cancelled_polls);
        end(&helper);
    }
    begin(&helper, side, 'C', cancelled_early);
    end(&helper);
    SHOW(recv(side->fd, in, 100, 0));
    quit(side);
}
static void cancel_early(void) { two_processes(AF_INET, early_a, obey); }

/* Threads that come and go, each with one exchange on the same connection. */
static void *exchange_once(void *argument) {
    struct side *side = introduce(argument);
    send_all(side->fd, "?", 1);
    if (receive_all(side->fd, in, 1) != 1) fail("echo");
    return NULL;
}
static void passing_a(struct side *side) {
    MUST(write(side->turn, "e", 1));
    for (int i = 0; i < 100; i++) {
        struct helper helper;
        begin(&helper, side, 'C', exchange_once);
        end(&helper);
    }
    say("a hundred threads");
    shutdown(side->fd, SHUT_WR);
    hear(side);
    quit(side);
}
static void passing(void) { two_processes(AF_INET, passing_a, obey); }

/* One thread sleeps in a receive while another asks without waiting, and the other side goes over to kernel TCP. */
static void beside_a(struct side *side) {
    struct helper helper;
    begin(&helper, side, 'C', blocked_recv);
    await_asleep(helper.task);
    SHOW(recv(side->fd, in, 100, MSG_DONTWAIT));
    tell(side);
    hear(side);
    SHOW(recv(side->fd, in, 100, MSG_DONTWAIT));
    SHOW(recv(side->fd, in, 0, MSG_DONTWAIT));
    tell(side);
    end(&helper);
}
static void beside_b(struct side *side) {
    int inline_urgent = 1;
    hear(side);
    MUST(setsockopt(side->fd, SOL_SOCKET, SO_OOBINLINE, &inline_urgent, sizeof inline_urgent));
    tell(side);
    hear(side);
    SHOW(send(side->fd, "x", 1, 0));
}
static void beside(void) { two_processes(AF_INET, beside_a, beside_b); }

/* The same where the sleeping process is stopped in its sleep: what comes goes to the other one. */
static void beside_stopped_a(struct side *side) {
    int status;
    pid_t child = MUST(fork());
    if (child == 0) {
        role = 'C';
        SHOW(recv(side->fd, in, 100, 0));
        _exit(0);
    }
    await_asleep(child);
    MUST(kill(child, SIGSTOP));
    if (MUST(waitpid(child, &status, WUNTRACED)) != child || !WIFSTOPPED(status)) fail("not stopped");
    tell(side);
    hear(side);
    await_bytes(side->fd, 3);
    SHOW(recv(side->fd, in, 1, MSG_DONTWAIT | MSG_PEEK));
    SHOW(recv(side->fd, in, 2, MSG_DONTWAIT));
    SHOW(recv(side->fd, in, 100, MSG_DONTWAIT));
    SHOW(recv(side->fd, in, 100, MSG_DONTWAIT));
    MUST(kill(child, SIGCONT));
    await_asleep(child);
    tell(side);
    MUST(waitpid(child, &status, 0));
    say_bytes("taken", in, 1);
}
static void beside_stopped_b(struct side *side) {
    hear(side);
    SHOW(send(side->fd, "abc", 3, 0));
    tell(side);
    hear(side);
    SHOW(send(side->fd, "defg", 4, 0));
}
static void beside_stopped(void) { two_processes(AF_INET, beside_stopped_a, beside_stopped_b); }

const struct scenario scenarios[] = {
    {"reader-writer", reader_writer, 0}, {"readers", readers, 0}, {"writers", writers, 0},
    {"takers", takers, 0},   {"shut", shut, 0},                 {"shut-writer", shut_writer, 0},
    {"closed", closed, 0},   {"replaced", replaced, 0}, {"closed-unused", closed_unused, 0}, {"cancel", cancel, 0},
    {"cancel-first", cancel_first, 0},   {"cancel-early", cancel_early, 0},
    {"closed-watched", closed_watched, 0}, {"closed-readers", closed_readers, 0}, {"closed-whole", closed_whole, 0},
    {"closed-look", closed_look, 0}, {"closed-cancelled", closed_cancelled, 0}, {"closed-forked", closed_forked, 0},
    {"closed-range", closed_range, 0}, {"closed-taken", closed_taken, 0}, {"closed-polled", closed_polled, 0},
    {"closed-writer", closed_writer, 0}, {"closed-pouring", closed_pouring, 0}, {"behind", behind, 0},
    {"passing", passing, 0}, {"beside", beside, 0}, {"beside-stopped", beside_stopped, 0}, {0},
};
