// Calls: what read and write of one byte cost on descriptors that are no sockets. Prints nanoseconds per call, the
// median of --count batches.
#include "common.h"

enum { BATCH = 20000 };

static double median_ns(uint32_t *batches, uint64_t count) {
    qsort(batches, count, sizeof *batches, by_value);
    return (double)batches[count / 2] / BATCH;
}

int main(int argc, char **argv) {
    struct options o = parse(argc, argv);
    int null = open("/dev/null", O_WRONLY), zero = open("/dev/zero", O_RDONLY);
    if (null < 0 || zero < 0) fail("/dev/null and /dev/zero");
    uint32_t *writes = allocate(o.count * sizeof *writes), *reads = allocate(o.count * sizeof *reads);
    char byte = 1;
    for (uint64_t i = 0; i < o.count; i++) {
        uint64_t start = now_ns();
        for (int n = 0; n < BATCH; n++)
            if (write(null, "", 1) != 1) fail("write");
        uint64_t middle = now_ns();
        for (int n = 0; n < BATCH; n++)
            if (read(zero, &byte, 1) != 1) fail("read");
        writes[i] = (uint32_t)(middle - start);
        reads[i] = (uint32_t)(now_ns() - middle);
    }
    if (byte != 0) wrong("/dev/zero gave something else");
    printf("{\"write_ns\":%.2f,\"read_ns\":%.2f}\n", median_ns(writes, o.count), median_ns(reads, o.count));
}
