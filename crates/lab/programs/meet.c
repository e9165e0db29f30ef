// Meet: --count connections one after another, each of which carries some messages of 64 B there and back. With --port
// the client, which prints how long each round trip of each connection took, and all of them together; else the server.
#include "common.h"

enum { ROUNDS = 128, SIZE = 64 };

static void serve(const struct options *o) {
    int listener = listen_anywhere(o);
    char message[SIZE];
    for (uint64_t i = 0; i < o->count; i++) {
        int fd = accept_one(listener);
        while (recv_all(fd, message, SIZE)) send_all(fd, message, SIZE);
        close(fd);
    }
}

static void measure(const struct options *o) {
    uint32_t(*took)[ROUNDS] = allocate(o->count * sizeof *took);
    char message[SIZE], answer[SIZE];
    while (now_ns() < o->start_at) sleep_ns(100000);
    uint64_t start = now_ns();
    for (uint64_t i = 0; i < o->count; i++) {
        int fd = connect_to(o);
        for (int round = 0; round < ROUNDS; round++) {
            memset(message, (int)(i + (uint64_t)round), SIZE);
            uint64_t begin = now_ns();
            send_all(fd, message, SIZE);
            if (!recv_all(fd, answer, SIZE)) wrong("the server closed the connection");
            took[i][round] = (uint32_t)(now_ns() - begin);
            if (memcmp(message, answer, SIZE) != 0) wrong("the answer is not what was sent");
        }
        close(fd);
    }
    double seconds = (double)(now_ns() - start) / 1e9;
    printf("{\"seconds\":%.9f,\"round_trips\":[", seconds);
    for (uint64_t i = 0; i < o->count; i++) {
        for (int round = 0; round < ROUNDS; round++) printf("%s%" PRIu32, round ? "," : i ? ",[" : "[", took[i][round]);
        printf("]");
    }
    printf("]}\n");
}

int main(int argc, char **argv) { return play(argc, argv, serve, measure); }
