// Ping-pong: one message goes to the server and comes back, again and again. With --port the client, else the server.
// The client prints the distribution of round trips. Every returned byte is checked, outside the timed part.
#include "common.h"

enum { DURATIONS = 1 << 21 };

struct end {
    int fd;
    int set; // epoll set, where the mode has one
    enum mode mode;
};

static struct end end_of(int fd, enum mode mode) {
    struct end end = {.fd = fd, .set = -1, .mode = mode};
    if (mode != BLOCKING) non_blocking(fd);
    if (mode >= EPOLL) {
        end.set = epoll_create1(0);
        if (end.set < 0) fail("epoll_create1");
        epoll_add(end.set, fd, mode == EPOLL_EDGE ? EPOLLIN | EPOLLET : EPOLLIN, 0);
    }
    return end;
}

static void wait_readable(const struct end *end) {
    struct epoll_event event;
    struct pollfd one = {.fd = end->fd, .events = POLLIN};
    if (end->mode == POLL) {
        if (poll(&one, 1, -1) < 0 && errno != EINTR) fail("poll");
    } else if (end->mode >= EPOLL) {
        epoll_wait_for(end->set, &event, 1, -1);
    }
}

// An edge-triggered program reads until there is no more; here a message is all there can be.
static void expect_no_more(const struct end *end) {
    char more;
    ssize_t n = recv(end->fd, &more, 1, 0);
    if (n > 0) wrong("more bytes came than were sent");
    if (n < 0 && errno != EAGAIN) fail("recv");
}

static bool receive(const struct end *end, char *data, size_t size) {
    if (end->mode == BLOCKING) return recv_all(end->fd, data, size);
    for (size_t done = 0; done < size;) {
        wait_readable(end);
        while (done < size) {
            ssize_t n = recv(end->fd, data + done, size - done, 0);
            if (n < 0 && errno == EINTR) continue;
            if (n < 0 && errno == EAGAIN) break;
            if (n < 0) fail("recv");
            if (n == 0 && done == 0) return false;
            if (n == 0) wrong("the connection ended inside a message");
            done += (size_t)n;
            if (end->mode != EPOLL_EDGE) break;
        }
    }
    if (end->mode == EPOLL_EDGE) expect_no_more(end);
    return true;
}

static void transmit(const struct end *end, const char *data, size_t size) {
    for (size_t done = 0; done < size;) {
        ssize_t n = send(end->fd, data + done, size - done, MSG_NOSIGNAL);
        if (n >= 0) {
            done += (size_t)n;
        } else if (errno == EAGAIN) {
            struct pollfd one = {.fd = end->fd, .events = POLLOUT};
            if (poll(&one, 1, -1) < 0 && errno != EINTR) fail("poll");
        } else if (errno != EINTR) {
            fail("send");
        }
    }
}

static void serve(const struct options *o) {
    int listener = listen_anywhere(o);
    struct end end = end_of(accept_one(listener), o->mode);
    char *message = allocate(o->size);
    while (receive(&end, message, o->size)) transmit(&end, message, o->size);
}

// The message carries its number at both ends, so that an old one is not taken for a new one.
static void stamp(char *message, size_t size, uint64_t number) {
    size_t n = size < sizeof number ? size : sizeof number;
    memcpy(message, &number, n);
    memcpy(message + size - n, &number, n);
}

static uint64_t round_trip(const struct end *end, char *message, char *answer, size_t size, uint64_t number) {
    stamp(message, size, number);
    uint64_t before = now_ns();
    transmit(end, message, size);
    if (!receive(end, answer, size)) wrong("the server closed the connection");
    uint64_t duration = now_ns() - before;
    if (memcmp(message, answer, size) != 0) wrong("the answer is not what was sent");
    return duration;
}

static void measure(const struct options *o) {
    struct end end = end_of(connect_to(o), o->mode);
    char *message = allocate(o->size), *answer = allocate(o->size);
    for (size_t i = 0; i < o->size; i++) message[i] = (char)(i * 31);
    uint32_t *durations = allocate(DURATIONS * sizeof *durations);
    uint64_t number = 0;
    while (number < o->warm_up) round_trip(&end, message, answer, o->size, number++);

    if (o->start_at > now_ns()) sleep_ns(o->start_at - now_ns());
    uint64_t start = now_ns(), last = start + (uint64_t)(o->seconds * 1e9);
    size_t n = 0;
    // Once at least: on a busy machine the time may be over before the first.
    do {
        uint64_t duration = round_trip(&end, message, answer, o->size, number++);
        durations[n++] = duration > UINT32_MAX ? UINT32_MAX : (uint32_t)duration;
    } while (n < DURATIONS && now_ns() < last);
    print_durations(durations, n, (double)(now_ns() - start) / 1e9);
    close(end.fd);
}

int main(int argc, char **argv) { return play(argc, argv, serve, measure); }
