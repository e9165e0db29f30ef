/* Streams in both directions at once, in random pieces by every call, compared byte for byte. */
#include "harness.h"

#include <sys/mman.h>
#include <sys/sendfile.h>

struct flow {
    int fd;
    uint64_t seed;
    size_t total;
    size_t largest; /* piece */
    char letter;
};

/* Sends one piece by a call chosen at random; may move less than asked. */
static ssize_t send_piece(int fd, char *piece, size_t count, unsigned choice) {
    struct iovec halves[] = {{piece, count / 2}, {piece + count / 2, count - count / 2}};
    struct msghdr message = {.msg_iov = halves, .msg_iovlen = 2};
    struct mmsghdr many = {.msg_hdr = message};
    switch (choice % 7) {
    case 0: return write(fd, piece, count);
    case 1: return send(fd, piece, count, MSG_NOSIGNAL);
    case 2: return writev(fd, halves, 2);
    case 3: return sendmsg(fd, &message, MSG_NOSIGNAL);
    case 4: return sendto(fd, piece, count, MSG_MORE, NULL, 0);
    case 5: return sendmmsg(fd, &many, 1, 0) == 1 ? (ssize_t)many.msg_len : -1;
    default: return pwritev2(fd, halves, 2, -1, 0);
    }
}

static ssize_t receive_piece(int fd, char *piece, size_t count, unsigned choice) {
    struct iovec halves[] = {{piece, count / 2}, {piece + count / 2, count - count / 2}};
    struct msghdr message = {.msg_iov = halves, .msg_iovlen = 2};
    struct mmsghdr many = {.msg_hdr = message};
    switch (choice % 8) {
    case 0: return read(fd, piece, count);
    case 1: return recv(fd, piece, count, 0);
    case 2: return readv(fd, halves, 2);
    case 3: return recvmsg(fd, &message, 0);
    case 4: return recvfrom(fd, piece, count, 0, NULL, NULL);
    case 5: return recvmmsg(fd, &many, 1, MSG_WAITFORONE, NULL) == 1 ? (ssize_t)many.msg_len : -1;
    case 6: return recv(fd, piece, count, MSG_PEEK) > 0 ? recv(fd, piece, count, 0) : 0;
    default: return preadv2(fd, halves, 2, -1, 0);
    }
}

/* Mostly small pieces, now and then the largest. */
static size_t piece_size(uint64_t *state, size_t largest, size_t left) {
    uint64_t random = next_random(state);
    size_t limit = random % 8 == 0 ? largest : largest / 64 + 1;
    size_t size = (size_t)(random >> 8) % limit + 1;
    return size < left ? size : left;
}

static void *send_flow(void *argument) {
    struct flow *flow = argument;
    role = flow->letter;
    char *piece = malloc(flow->largest);
    uint64_t state = flow->seed;
    for (size_t at = 0; at < flow->total;) {
        size_t size = piece_size(&state, flow->largest, flow->total - at);
        fill(piece, size, flow->seed, at);
        for (size_t done = 0; done < size;) {
            ssize_t sent = send_piece(flow->fd, piece + done, size - done, (unsigned)next_random(&state));
            if (sent <= 0) fail("send_flow");
            done += (size_t)sent;
        }
        at += size;
    }
    free(piece);
    say("sent %zu", flow->total);
    return NULL;
}

static void *receive_flow(void *argument) {
    struct flow *flow = argument;
    role = flow->letter;
    char *piece = malloc(flow->largest);
    uint64_t state = flow->seed + 1;
    size_t at = 0;
    while (at < flow->total) {
        size_t size = piece_size(&state, flow->largest, flow->total - at);
        ssize_t got = receive_piece(flow->fd, piece, size, (unsigned)next_random(&state));
        if (got <= 0) fail("receive_flow");
        long wrong = differs(piece, (size_t)got, flow->seed, at);
        if (wrong != -1) {
            say("wrong byte at %zu", at + (size_t)wrong);
            _exit(5);
        }
        at += (size_t)got;
    }
    free(piece);
    say("received %zu, all as sent", at);
    return NULL;
}

/* Both directions at once: one thread sends while this one receives. */
static void exchange(struct side *side, size_t total, size_t largest) {
    struct flow outward = {side->fd, side->leader ? 1 : 2, total, largest, side->leader ? 'a' : 'b'};
    struct flow inward = {side->fd, side->leader ? 2 : 1, total, largest, role};
    pthread_t sender;
    start_thread(&sender, send_flow, &outward);
    receive_flow(&inward);
    pthread_join(sender, NULL);
}

static void exchange_tiny(struct side *side) { exchange(side, 60 * KIB, 16); }
static void exchange_mixed(struct side *side) { exchange(side, 4 * MIB, 64 * KIB); }
static void exchange_large(struct side *side) { exchange(side, 12 * MIB, 4 * MIB); }
static void exchange_small_buffer(struct side *side) {
    int size = 16 * KIB;
    MUST(setsockopt(side->fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof(size)));
    exchange(side, MIB, 50 * KIB);
}
/* Fails if `sender.mark(Record::Up(position))` names the next position (crates/segment/src/switch/path.rs): bytes keep
 * their place where a direction goes up. */
static void tiny(void) { two_processes(AF_INET, exchange_tiny, exchange_tiny); }
static void mixed(void) { two_processes(AF_INET, exchange_mixed, exchange_mixed); }
static void mixed_v6(void) { two_processes(AF_INET6, exchange_mixed, exchange_mixed); }
static void mixed_threads(void) { two_threads(AF_INET, exchange_mixed, exchange_mixed); }
static void large(void) { two_processes(AF_INET, exchange_large, exchange_large); }
static void small_buffer(void) { two_processes(AF_INET, exchange_small_buffer, exchange_small_buffer); }

/* A message of every order of size there and back. */
static const size_t sizes[] = {1,    2,    7,     64,    65,    1000,  4095,      4096,    4097,
                               8191, 16385, 65535, 65536, 65537, MIB,   MIB + 13,  2 * MIB, 4 * MIB};
static void ask(struct side *side) {
    char *bytes = malloc(4 * MIB);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        fill(bytes, sizes[i], i, 0);
        send_all(side->fd, bytes, sizes[i]);
        memset(bytes, 0, sizes[i]);
        size_t got = receive_all(side->fd, bytes, sizes[i]);
        say("%zu came back, first difference %ld", got, differs(bytes, got, i, 0));
    }
    free(bytes);
}
/* Echoed as it comes, while more is being sent. */
static void ask_at_once(struct side *side) {
    struct flow outward = {side->fd, 9, 4 * MIB, 300 * KIB, 'a'}, inward = {side->fd, 9, 4 * MIB, 5 * KIB, 'A'};
    pthread_t sender;
    start_thread(&sender, send_flow, &outward);
    receive_flow(&inward);
    pthread_join(sender, NULL);
    shutdown(side->fd, SHUT_WR);
}
static void echo_all(struct side *side) {
    static char bytes[100 * KIB];
    ssize_t got;
    while ((got = read(side->fd, bytes, sizeof(bytes))) > 0) send_all(side->fd, bytes, (size_t)got);
    say("end of echo %zd", got);
}
static void answer(struct side *side) {
    char *bytes = malloc(4 * MIB);
    for (size_t i = 0; i < COUNT(sizes); i++) {
        if (receive_all(side->fd, bytes, sizes[i]) != sizes[i]) fail("answer");
        send_all(side->fd, bytes, sizes[i]);
    }
    free(bytes);
}
static void every_size(void) { two_processes(AF_INET, ask, answer); }
static void every_size_threads(void) { two_threads(AF_INET6, ask, answer); }
static void echo(void) { two_processes(AF_INET, ask_at_once, echo_all); }

/* One thread, nonblocking, poll says when: full duplex without a helper. */
static void juggle(struct side *side) {
    static _Thread_local char piece[32 * KIB];
    const size_t total = 3 * MIB;
    uint64_t mine = side->leader ? 3 : 4, theirs = side->leader ? 4 : 3, state = mine;
    size_t sent = 0, received = 0;
    set_nonblocking(side->fd, true);
    while (sent < total || received < total) {
        struct pollfd ready = {side->fd, (short)((sent < total ? POLLOUT : 0) | (received < total ? POLLIN : 0)), 0};
        if (poll(&ready, 1, -1) != 1) fail("poll");
        if (ready.revents & POLLOUT) {
            size_t size = piece_size(&state, sizeof(piece), total - sent);
            fill(piece, size, mine, sent);
            ssize_t moved = send_piece(side->fd, piece, size, (unsigned)next_random(&state));
            if (moved > 0) sent += (size_t)moved;
            else if (errno != EAGAIN) fail("send_piece");
        }
        if (ready.revents & POLLIN) {
            size_t size = piece_size(&state, sizeof(piece), total - received);
            ssize_t moved = receive_piece(side->fd, piece, size, (unsigned)next_random(&state));
            if (moved <= 0) fail("readable, but nothing came");
            if (differs(piece, (size_t)moved, theirs, received) != -1) fail("wrong byte");
            received += (size_t)moved;
        }
    }
    say("sent %zu, received %zu", sent, received);
}
static void nonblocking(void) { two_processes(AF_INET, juggle, juggle); }
static void nonblocking_threads(void) { two_threads(AF_INET, juggle, juggle); }

/* Poured out as fast as the buffers take it, by a sender that never waits for the reader to catch up. */
static void pour(struct side *side) {
    const size_t total = 32 * MIB, most = 300 * KIB;
    char *piece = malloc(most);
    set_nonblocking(side->fd, true);
    for (size_t sent = 0; sent < total;) {
        size_t size = most < total - sent ? most : total - sent;
        fill(piece, size, 5, sent);
        await_events(side->fd, POLLOUT);
        ssize_t moved = write(side->fd, piece, size);
        if (moved > 0) sent += (size_t)moved;
        else if (errno != EAGAIN) fail("write");
    }
    free(piece);
    hear(side);
}
/* A reader that believes FIONREAD: what it promises is there, also for a look at it. */
static void scoop(struct side *side) {
    const size_t total = 32 * MIB;
    static char piece[8 * KIB];
    int size = 32 * KIB;
    MUST(setsockopt(side->fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof(size)));
    set_nonblocking(side->fd, true);
    for (size_t received = 0; received < total;) {
        await_events(side->fd, POLLIN);
        for (int promised = 1; promised > 0;) {
            struct iovec halves[] = {{piece, sizeof(piece) / 2}, {piece + sizeof(piece) / 2, sizeof(piece) / 2}};
            struct msghdr message = {.msg_iov = halves, .msg_iovlen = 2};
            ssize_t seen = recvmsg(side->fd, &message, MSG_PEEK);
            if (seen > 0 && differs(piece, (size_t)seen, 5, received) != -1) fail("wrong byte looked at");
            ssize_t moved = read(side->fd, piece, sizeof(piece));
            if (seen < (promised < (int)sizeof(piece) ? promised : (int)sizeof(piece)))
                fail("promised, but not to be seen");
            if (moved < (promised < (int)sizeof(piece) ? promised : (int)sizeof(piece)))
                fail("promised, but not there");
            if (differs(piece, (size_t)moved, 5, received) != -1) fail("wrong byte");
            received += (size_t)moved;
            MUST(ioctl(side->fd, FIONREAD, &promised));
        }
        nap_ms(1);
    }
    say("received all");
    tell(side);
}
static void promised(void) { two_processes(AF_INET, pour, scoop); }

/* If the first of several messages does not fit, those after it must not be sent. */
static void short_a(struct side *side) {
    char *bytes = calloc(1, 16 * MIB);
    struct iovec parts[] = {{bytes, 16 * MIB}, {bytes, 1000}};
    struct mmsghdr messages[] = {{.msg_hdr = {.msg_iov = &parts[0], .msg_iovlen = 1}},
                                 {.msg_hdr = {.msg_iov = &parts[1], .msg_iovlen = 1}}};
    set_nonblocking(side->fd, true);
    SHOW(sendmmsg(side->fd, messages, 2, 0));
    say("short %d", messages[0].msg_len < 16 * MIB);
    free(bytes);
    tell(side);
    hear(side);
}
static void short_b(struct side *side) {
    hear(side);
    char byte;
    SHOW(recv(side->fd, &byte, 1, 0));
    tell(side);
}
static void short_of_several(void) { two_processes(AF_INET, short_a, short_b); }

/* Twenty connections between the same two processes, each with bytes of its own. */
static void several(struct side *side) {
    int fds[20];
    static char bytes[20 * KIB];
    for (size_t i = 0; i < COUNT(fds); i++) fds[i] = another(side);
    for (int rounds = 0; rounds < 5; rounds++) {
        for (size_t i = 0; i < COUNT(fds); i++) {
            fill(bytes, sizeof(bytes), i + 100 * side->leader, 0);
            send_all(fds[i], bytes, sizeof(bytes));
        }
        for (size_t i = COUNT(fds); i-- > 0;) {
            size_t got = receive_all(fds[i], bytes, sizeof(bytes));
            if (differs(bytes, got, i + 100 * !side->leader, 0) != -1) fail("another connection's bytes");
        }
    }
    say("%zu connections", COUNT(fds));
    for (size_t i = 0; i < COUNT(fds); i++) SHOW(close(fds[i]));
}
static void several_connections(void) { two_processes(AF_INET, several, several); }

/* One more connection, never used. */
static int unused(struct side *side) {
    if (side->leader) return (int)MUST(accept(side->listener, NULL, NULL));
    return connect_to(&side->address);
}

/* All of a huge block by one call, on a connection that nothing was sent on, while the other side reads: a connection
 * goes up under the call. */
enum { HUGE = 12 * MIB, KINDS = 9 };
static long send_whole(int fd, char *bytes, int file, int kind) {
    struct iovec parts[] = {{bytes, 1}, {bytes + 1, 9 * MIB}, {NULL, 0}, {bytes + 1 + 9 * MIB, HUGE - 1 - 9 * MIB}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = COUNT(parts)};
    struct mmsghdr many[] = {{.msg_hdr = message}, {.msg_hdr = message}};
    off_t offset = 0;
    long sent;
    switch (kind) {
    case 0: return SHOW(write(fd, bytes, HUGE));
    case 1: return SHOW(send(fd, bytes, HUGE, MSG_EOR));
    case 2: return SHOW(sendto(fd, bytes, HUGE, MSG_MORE, NULL, 0));
    case 3: return SHOW(writev(fd, parts, COUNT(parts)));
    case 4: return SHOW(sendmsg(fd, &message, MSG_NOSIGNAL));
    case 5:
        SHOW(sendmmsg(fd, many, 2, 0));
        say("%u and %u", many[0].msg_len, many[1].msg_len);
        return (long)many[0].msg_len + many[1].msg_len;
    case 6:
        sent = SHOW(sendfile(fd, file, &offset, HUGE));
        say("offsets %ld %ld", (long)offset, (long)MUST(lseek(file, 0, SEEK_CUR)));
        return sent;
    case 7:
        sent = SHOW(sendfile(fd, file, NULL, HUGE));
        say("offset %ld", (long)MUST(lseek(file, 0, SEEK_SET)));
        return sent;
    default: /* more than the file has */
        offset = HUGE - 5 * MIB - 3;
        sent = SHOW(sendfile(fd, file, &offset, 2 * (size_t)HUGE));
        say("offset %ld", (long)offset);
        return sent;
    }
}
static void huge_a(struct side *side) {
    char *bytes = malloc(HUGE);
    int file = (int)MUST(memfd_create("huge", 0));
    fill(bytes, HUGE, 6, 0);
    for (size_t at = 0; at < HUGE;) at += (size_t)MUST(write(file, bytes + at, HUGE - at));
    MUST(lseek(file, 0, SEEK_SET));
    for (int kind = 0; kind < KINDS; kind++) {
        int fd = unused(side);
        send_whole(fd, bytes, file, kind);
        SHOW(send(fd, "end", 3, 0));
        SHOW(close(fd));
        hear(side);
    }
    free(bytes);
}
static void huge_b(struct side *side) {
    char *bytes = malloc(2 * HUGE + 65 * KIB);
    for (int kind = 0; kind < KINDS; kind++) {
        int fd = unused(side);
        size_t total = 0;
        ssize_t got;
        while ((got = recv(fd, bytes + total, 64 * KIB, 0)) > 0) total += (size_t)got;
        say("%zu came, then %zd", total, got);
        for (size_t at = 0; at + 3 < total; at += HUGE)
            say("first difference %ld", differs(bytes + at, total - 3 < HUGE ? total - 3 : HUGE, 6,
                                                total - 3 < HUGE ? HUGE - (total - 3) : 0));
        say_bytes("last", bytes + total - 3, 3);
        close(fd);
        tell(side);
    }
    free(bytes);
}
static void huge(void) { two_processes(AF_INET, huge_a, huge_b); }
static void huge_threads(void) { two_threads(AF_INET6, huge_a, huge_b); }

/* A huge send that does not come to its end: the other side reads some of it, and then there is a signal, the time is
 * over, the connection is reset, or the thread is cancelled. */
static sig_atomic_t broken_pipes;
static void handle(int number) {
    if (number == SIGPIPE) broken_pipes++;
}
enum { FAR = 32 * MIB };
static void expect(int number, int flags) {
    struct sigaction action = {.sa_handler = handle, .sa_flags = flags};
    MUST(sigaction(number, &action, NULL));
}
static long cut_short(struct side *side, int fd, char *bytes, int file) {
    long sent = file >= 0 ? sendfile(fd, file, NULL, FAR) : write(fd, bytes, FAR);
    say("%s, errno %s", sent <= 0 ? "nothing" : sent < FAR ? "a part" : "all", sent < 0 ? error_name(errno) : "0");
    MUST(write(side->turn, &sent, sizeof(sent)));
    return sent;
}
static void cut_a(struct side *side) {
    char *bytes = malloc(FAR);
    int file = (int)MUST(memfd_create("huge", 0));
    struct timeval timeout = {0, 200000};
    fill(bytes, FAR, 7, 0);
    for (size_t at = 0; at < FAR;) at += (size_t)MUST(write(file, bytes + at, FAR - at));
    expect(SIGPIPE, 0);
    for (int kind = 0; kind < 8; kind++) {
        int fd = unused(side), by_file = kind % 2 ? file : -1;
        MUST(lseek(file, 0, SEEK_SET));
        tell(side);
        if (kind / 2 < 2) { /* a signal */
            expect(SIGUSR1, kind / 2 == 0 ? SA_RESTART : 0);
            long sent = cut_short(side, fd, bytes, by_file);
            if (by_file >= 0) say("offset as sent %d", MUST(lseek(file, 0, SEEK_CUR)) == sent);
        } else if (kind / 2 == 2) {
            MUST(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof(timeout)));
            cut_short(side, fd, bytes, by_file);
        } else { /* a reset, which the next call tells of; sendfile may have lost the error */
            cut_short(side, fd, bytes, by_file);
            if (by_file < 0) {
                SHOW(send(fd, "x", 1, 0));
                say("%d broken pipes", (int)broken_pipes);
                SHOW(recv(fd, bytes, 1, 0));
                SHOW(send(fd, "x", 1, 0));
                say("%d broken pipes", (int)broken_pipes);
            }
            await_events(fd, POLLHUP);
        }
        SHOW(close(fd));
        hear(side);
    }
    free(bytes);
}
static void cut_b(struct side *side) {
    static char bytes[64 * KIB];
    for (int kind = 0; kind < 8; kind++) {
        int fd = unused(side);
        hear(side);
        long total = 0, got, sent = 0;
        while (total < 3 * MIB) {
            got = MUST(recv(fd, bytes, sizeof(bytes), 0));
            if (differs(bytes, (size_t)got, 7, (uint64_t)total) != -1) fail("wrong byte");
            total += got;
        }
        await_asleep(side->other);
        if (kind / 2 < 2) MUST(kill(side->other, SIGUSR1));
        if (kind / 2 == 3) MUST(close(fd));
        MUST(read(side->turn, &sent, sizeof(sent)));
        if (kind / 2 < 3) {
            while ((got = MUST(recv(fd, bytes, sizeof(bytes), 0))) > 0) {
                if (differs(bytes, (size_t)got, 7, (uint64_t)total) != -1) fail("wrong byte");
                total += got;
            }
            say("as many as sent: %d", total == sent);
            MUST(close(fd));
        }
        tell(side);
    }
}
static void cut(void) { two_processes(AF_INET, cut_a, cut_b); }

const struct scenario scenarios[] = {
    {"tiny", tiny, 0},
    {"mixed", mixed, 0},
    {"mixed-v6", mixed_v6, 0},
    {"mixed-threads", mixed_threads, 0},
    {"large", large, 0},
    {"small-buffer", small_buffer, 0},
    {"every-size", every_size, 0},
    {"every-size-threads", every_size_threads, 0},
    {"echo", echo, 0},
    {"nonblocking", nonblocking, 0},
    {"nonblocking-threads", nonblocking_threads, 0},
    {"promised", promised, 0},
    {"short-of-several", short_of_several, 0},
    {"several-connections", several_connections, 0},
    {"huge", huge, 0},
    {"huge-threads", huge_threads, 0},
    {"cut", cut, 0},
    {0},
};
