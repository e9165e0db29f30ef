// The sums of packets on a GPU: a block to each packet, whose threads add up what they load and then each other's sums
// through shared memory. `packaging/ptx` compiles it to kernels.ptx, which is what is shipped.

struct Packet {
    unsigned long long address;  // of its first octet, as the GPU sees it
    unsigned int length;         // in octets
    unsigned int before;         // the Internet checksum's sum of what is not here, such as a pseudo-header
};

// At most this many threads to a block, a power of two.
static const unsigned THREADS = 256;
static const unsigned CHUNK = 16;

// The octets of a 32-bit word at `at` that lie in [from, to), the others being zero; all count from the first chunk.
__device__ unsigned masked(unsigned word, unsigned at, unsigned from, unsigned to)
{
    if (at + 4 <= from || at >= to)
        return 0;
    if (at < from)
        word &= 0xffffffffu << 8 * (from - at);
    if (at + 4 > to)
        word &= 0xffffffffu >> 8 * (at + 4 - to);
    return word;
}

// A packet in 16-octet chunks on their natural boundaries: the first and the last may hold octets that are not its own.
// No chunk crosses a boundary of memory, so that reading them whole is safe.
struct Chunks {
    const uint4 *first;
    unsigned from, to;

    __device__ explicit Chunks(const Packet &packet)
    {
        from = (unsigned)(packet.address % CHUNK);
        to = from + packet.length;
        first = (const uint4 *)(packet.address - from);
    }

    __device__ unsigned count() const { return packed(to) / CHUNK; }
    __device__ static unsigned packed(unsigned octets) { return (octets + CHUNK - 1) / CHUNK * CHUNK; }

    __device__ uint4 get(unsigned number) const
    {
        uint4 chunk = first[number];
        unsigned at = number * CHUNK;
        if (at < from || at + CHUNK > to) {
            chunk.x = masked(chunk.x, at, from, to);
            chunk.y = masked(chunk.y, at + 4, from, to);
            chunk.z = masked(chunk.z, at + 8, from, to);
            chunk.w = masked(chunk.w, at + 12, from, to);
        }
        return chunk;
    }
};

// The sum of all threads' values, for thread 0.
__device__ unsigned reduced(unsigned *values, unsigned value)
{
    values[threadIdx.x] = value;
    for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            values[threadIdx.x] += values[threadIdx.x + half];
    }
    return values[threadIdx.x];
}

// The ones' complement sum of 16-bit words; zero only for zero.
__device__ unsigned folded(unsigned long long sum)
{
    sum = (sum & 0xffffffffu) + (sum >> 32);
    sum = (sum & 0xffffu) + (sum >> 16 & 0xffffu) + (sum >> 32);
    sum = (sum & 0xffffu) + (sum >> 16);
    return (unsigned)((sum & 0xffffu) + (sum >> 16));
}

// One store of a packet's whole answer, with the batch's number in its high half: who sees the number has the sum.
__device__ void answer(unsigned long long *answers, unsigned batch, unsigned sum)
{
    *(volatile unsigned long long *)(answers + blockIdx.x) = (unsigned long long)batch << 32 | sum;
}

extern "C" __global__ void __launch_bounds__(THREADS)
internet(const Packet *packets, unsigned long long *answers, unsigned batch)
{
    __shared__ unsigned sums[THREADS];
    const Packet packet = packets[blockIdx.x];
    const Chunks chunks(packet);
    unsigned long long sum = 0;
#pragma unroll 4
    for (unsigned number = threadIdx.x; number < chunks.count(); number += blockDim.x) {
        const uint4 chunk = chunks.get(number);
        sum += (unsigned long long)chunk.x + chunk.y + chunk.z + chunk.w;
    }
    const unsigned total = folded(reduced(sums, folded(sum)));
    if (threadIdx.x == 0) {
        // Words were taken from even addresses, low octet first.
        const unsigned swapped = (total << 8 | total >> 8) & 0xffffu;
        answer(answers, batch, folded((unsigned long long)packet.before + (packet.address % 2 ? total : swapped)));
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
fletcher(const Packet *packets, unsigned long long *answers, unsigned batch)
{
    __shared__ unsigned firsts[THREADS], seconds[THREADS];
    const Packet packet = packets[blockIdx.x];
    const Chunks chunks(packet);
    unsigned long long first = 0, second = 0;
#pragma unroll 4
    for (unsigned number = threadIdx.x; number < chunks.count(); number += blockDim.x) {
        const uint4 chunk = chunks.get(number);
        const unsigned ones = 0x01010101u;
        const unsigned sum =
            __dp4a(chunk.x, ones, __dp4a(chunk.y, ones, __dp4a(chunk.z, ones, __dp4a(chunk.w, ones, 0u))));
        // An octet counts as often as there are octets from it to the end: as often as the chunk's first does, less
        // its place.
        const unsigned placed = __dp4a(chunk.x, 0x03020100u, __dp4a(chunk.y, 0x07060504u,
            __dp4a(chunk.z, 0x0b0a0908u, __dp4a(chunk.w, 0x0f0e0d0cu, 0u))));
        first += sum;
        second += (unsigned long long)(chunks.to - number * CHUNK) * sum - placed;
    }
    const unsigned c0 = reduced(firsts, (unsigned)(first % 255)) % 255;
    const unsigned c1 = reduced(seconds, (unsigned)(second % 255)) % 255;
    if (threadIdx.x == 0)
        answer(answers, batch, c1 << 8 | c0);
}
