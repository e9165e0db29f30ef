// Datagrams: the client sends messages of --size bytes over UDP to the server in another network namespace for
// --seconds. With --port the client. A system call carries --count messages: by send and recv if that is 1, else by
// sendmmsg and recvmmsg, or with --gso as segments of one large datagram. The server checks every message and says how
// many came in what time; a number that comes twice, or late, is an error.
#include "common.h"
#include <netinet/udp.h>

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif

enum { MOST = 64, LONGEST_DATAGRAM = 65507, BACKLOG = 8 << 20, ENDS = 100, ANSWER_US = 50000 };
// The end of all; what one word has more than the last.
static const uint64_t END = UINT64_MAX, STEP = 0x9e3779b97f4a7c15;

struct result {
    uint64_t delivered, ns, used_ns;
};

static const char *const SERVER = "10.9.0.2"; // as the rig has it

static unsigned char *buffers;
static struct mmsghdr calls[MOST];
static struct iovec pieces[MOST];

// The first word is the number, each further one follows from the number and its place.
static void write_message(unsigned char *at, size_t size, uint64_t number) {
    uint64_t *words = (uint64_t *)at;
    words[0] = number;
    uint64_t value = number * STEP;
    for (size_t i = 1; i < size / 8; i++) words[i] = value += STEP;
}

static uint64_t check_message(const unsigned char *at, size_t size) {
    const uint64_t *words = (const uint64_t *)at;
    uint64_t value = words[0] * STEP, different = 0;
    for (size_t i = 1; i < size / 8; i++) different |= words[i] ^ (value += STEP);
    if (different) wrong("a message is not as it was sent");
    return words[0];
}

static void prepare(size_t count, size_t room) {
    buffers = allocate(count * room);
    for (size_t i = 0; i < count; i++) {
        pieces[i] = (struct iovec){.iov_base = buffers + i * room, .iov_len = room};
        calls[i].msg_hdr = (struct msghdr){.msg_iov = &pieces[i], .msg_iovlen = 1};
    }
}

static int udp(void) {
    int fd = socket(AF_INET, SOCK_DGRAM, 0), room = BACKLOG;
    if (fd < 0) fail("socket");
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room); // the benchmark runs as root anyway
    return fd;
}

static struct sockaddr_in server_at(int port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    inet_pton(AF_INET, SERVER, &address.sin_addr);
    return address;
}

static void serve(const struct options *o) {
    int fd = udp(), on = 1;
    struct sockaddr_in address = server_at(0);
    socklen_t length = sizeof address;
    if (bind(fd, (struct sockaddr *)&address, length) < 0) fail("bind");
    if (o->gso && setsockopt(fd, IPPROTO_UDP, UDP_GRO, &on, sizeof on) < 0) fail("UDP_GRO");
    if (getsockname(fd, (struct sockaddr *)&address, &length) < 0) fail("getsockname");
    printf("listening %d\n", ntohs(address.sin_port));
    fflush(stdout);

    size_t count = o->gso ? 1 : o->count, room = (o->gso ? LONGEST_DATAGRAM : o->size) / 8 * 8 + 8;
    prepare(count, room);
    uint64_t delivered = 0, next = 0, begin = 0, end = 0, used = 0;
    for (bool over = false; !over;) {
        int n = 1;
        if (count == 1) {
            ssize_t got = recv(fd, buffers, room, 0);
            if (got < 0) fail("recv");
            calls[0].msg_len = (unsigned)got;
        } else if ((n = recvmmsg(fd, calls, (unsigned)count, MSG_WAITFORONE, NULL)) < 0) {
            fail("recvmmsg");
        }
        if (!begin) begin = now_ns(), used = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
        for (int i = 0; i < n && !over; i++) {
            const unsigned char *at = pieces[i].iov_base;
            over = calls[i].msg_len == sizeof END;
            for (size_t left = over ? 0 : calls[i].msg_len; left; left -= o->size, at += o->size) {
                if (left < o->size) wrong("a message is shorter than it was");
                uint64_t number = check_message(at, o->size);
                if (number < next) wrong("a message has come twice, or late");
                next = number + 1;
                delivered++;
            }
        }
        if (!over) end = now_ns();
    }
    struct result result = {delivered, end - begin, clock_ns(CLOCK_PROCESS_CPUTIME_ID) - used};
    // The end is told until it is answered.
    uint64_t again;
    if (recvfrom(fd, &again, sizeof again, 0, (struct sockaddr *)&address, &length) < 0) fail("recvfrom");
    if (sendto(fd, &result, sizeof result, 0, (struct sockaddr *)&address, length) < 0) fail("sendto");
}

static void measure(const struct options *o) {
    int fd = udp();
    struct sockaddr_in address = server_at(o->port);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0) fail("connect");
    size_t count = o->count < MOST ? o->count : MOST;
    if (o->gso) {
        int size = (int)o->size;
        if (setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &size, sizeof size) < 0) fail("UDP_SEGMENT");
        while (count > 1 && count * o->size > LONGEST_DATAGRAM) count--;
    }
    prepare(count, o->size);
    uint64_t sent = 0, last = now_ns() + (uint64_t)(o->seconds * 1e9), used = clock_ns(CLOCK_PROCESS_CPUTIME_ID);
    for (uint64_t rounds = 0; rounds % 16 || now_ns() < last; rounds++) {
        for (size_t i = 0; i < count; i++) write_message(buffers + i * o->size, o->size, sent + i);
        ssize_t n;
        if (count == 1 || o->gso) {
            n = send(fd, buffers, count * o->size, 0) < 0 ? -1 : (ssize_t)count;
        } else {
            n = sendmmsg(fd, calls, (unsigned)count, 0);
        }
        if (n < 0 && errno != ENOBUFS && errno != EINTR) fail("send");
        if (n > 0) sent += (uint64_t)n;
    }
    used = clock_ns(CLOCK_PROCESS_CPUTIME_ID) - used;
    struct timeval patience = {.tv_usec = ANSWER_US};
    struct result result;
    int off = 0, ends = 0;
    if (o->gso && setsockopt(fd, IPPROTO_UDP, UDP_SEGMENT, &off, sizeof off) < 0) fail("UDP_SEGMENT");
    if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) < 0) fail("SO_RCVTIMEO");
    do {
        if (ends++ == ENDS) wrong("the server does not answer");
        if (send(fd, &END, sizeof END, 0) < 0) fail("send");
    } while (recv(fd, &result, sizeof result, 0) != sizeof result);
    printf("{\"sent\":%" PRIu64 ",\"sender_ns\":%" PRIu64 ",", sent, used);
    printf("\"delivered\":%" PRIu64 ",\"ns\":%" PRIu64 ",\"receiver_ns\":%" PRIu64 "}\n", result.delivered, result.ns,
           result.used_ns);
}

int main(int argc, char **argv) { return play(argc, argv, serve, measure); }
