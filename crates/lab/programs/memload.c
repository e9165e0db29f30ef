// A memcached client that keeps --count connections busy with one request each: nine gets to one set, over the text
// protocol, from one epoll loop. Every answer is compared with what must come, byte for byte. Prints requests per
// second.
#include "common.h"

enum { KEYS = 1000, VALUE = 100, SET_EVERY = 10, EVENTS = 256, ROOM = 256 };

struct text {
    char bytes[ROOM];
    size_t size;
};

static struct text gets[KEYS], values[KEYS], sets[KEYS];
static const struct text stored = {.bytes = "STORED\r\n", .size = 8};

static void prepare(void) {
    char value[VALUE + 1] = {0};
    for (int k = 0; k < KEYS; k++) {
        for (int i = 0; i < VALUE; i++) value[i] = (char)('a' + (k + i) % 26);
        gets[k].size = (size_t)sprintf(gets[k].bytes, "get key-%04d\r\n", k);
        sets[k].size = (size_t)sprintf(sets[k].bytes, "set key-%04d 0 0 %d\r\n%s\r\n", k, VALUE, value);
        values[k].size = (size_t)sprintf(values[k].bytes, "VALUE key-%04d 0 %d\r\n%s\r\nEND\r\n", k, VALUE, value);
    }
}

struct client {
    int fd;
    uint64_t requests;
    const struct text *expected;
    char answer[ROOM];
    size_t got;
};

static void request(struct client *client, bool set, int key) {
    const struct text *text = set ? &sets[key] : &gets[key];
    client->expected = set ? &stored : &values[key];
    client->got = 0;
    ssize_t n = send(client->fd, text->bytes, text->size, MSG_NOSIGNAL); // fits: the answer before it has been read
    if (n != (ssize_t)text->size) fail("send");
}

// True when the whole answer is there.
static bool receive(struct client *client) {
    ssize_t n = recv(client->fd, client->answer + client->got, ROOM - client->got, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return false;
    if (n < 0) fail("recv");
    if (n == 0) wrong("memcached closed the connection");
    client->got += (size_t)n;
    const struct text *expected = client->expected;
    if (client->got > expected->size || memcmp(client->answer, expected->bytes, client->got) != 0)
        wrong("memcached's answer is not the expected one");
    return client->got == expected->size;
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    prepare();
    struct client *clients = allocate(o.count * sizeof *clients);
    struct epoll_event *events = allocate(EVENTS * sizeof *events);
    int set = epoll_create1(0);
    for (uint64_t c = 0; c < o.count; c++) {
        clients[c].fd = connect_to(&o);
        if (c == 0) { // fill the store, before any get
            for (int k = 0; k < KEYS; k++) {
                request(&clients[0], true, k);
                while (!receive(&clients[0])) {}
            }
        }
        non_blocking(clients[c].fd);
        epoll_add(set, clients[c].fd, EPOLLIN, c);
    }
    for (uint64_t c = 0; c < o.count; c++) request(&clients[c], false, (int)(c % KEYS));

    const uint64_t warm_up = 100000000, begin = now_ns() + warm_up, last = begin + (uint64_t)(o.seconds * 1e9);
    uint64_t counted = 0, now = 0;
    while ((now = now_ns()) < last) {
        int n = epoll_wait_for(set, events, EVENTS, 100);
        for (int e = 0; e < n; e++) {
            uint64_t c = events[e].data.u64;
            struct client *client = &clients[c];
            if (!receive(client)) continue;
            client->requests++;
            counted += now >= begin;
            request(client, client->requests % SET_EVERY == 0, (int)((c * 131 + client->requests * 7) % KEYS));
        }
    }
    double seconds = (double)(now - begin) / 1e9;
    printf("{\"count\":%" PRIu64 ",\"seconds\":%.9f,\"per_second\":%.1f}\n", counted, seconds,
           (double)counted / seconds);
}
