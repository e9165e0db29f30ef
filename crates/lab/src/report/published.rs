//! What the five papers printed in words and tables. Values that their figures alone have are not here: the papers'
//! text does not give them.

/// A paper, for the head of its part of the page.
#[derive(Clone, Copy, Debug)]
pub struct Paper {
    /// Authors and title.
    pub title: &'static str,
    /// What it was measured on.
    pub host: &'static str,
    /// What it found.
    pub found: &'static str,
}

/// System A.
pub const BYPASS: Paper = Paper {
    title: "R. Nakai, S. Kusakabe, K. Araki: Bypassing Protocol Stack in Socket Communication on Myrinet (figure 5)",
    host: "Pentium III 1.26 GHz, Linux 2.4.0, Myrinet and 100Base-TX, two hosts",
    found: "Sockets past the protocol stack take 72 µs for a round trip of 1 B where TCP/IP on the same link takes 98 \
            µs, and 138 µs instead of 179 µs for 1,024 B.",
};

/// A round trip of the paper's figure 5.
#[derive(Clone, Copy, Debug)]
pub struct RoundTrip {
    /// Bytes of the message.
    pub size: u64,
    /// Past the protocol stack, in nanoseconds.
    pub bypass: f64,
    /// TCP/IP over the same link.
    pub kernel: f64,
    /// TCP/IP over 100Base-TX.
    pub ethernet: f64,
}

/// Both sizes that the text has.
pub const ROUND_TRIPS: [RoundTrip; 2] = [
    RoundTrip { size: 1, bypass: 72e3, kernel: 98e3, ethernet: 118e3 },
    RoundTrip { size: 1024, bypass: 138e3, kernel: 179e3, ethernet: 456e3 },
];

/// System B.
pub const LAYERS: Paper = Paper {
    title: "T. Sato, T. Kato, K. Suzuki: An experiment of communication protocol program using processor-per-layer \
            parallel processing method through HIPPI interface (figures 2 and 3)",
    host: "SGI ONYX with 4 processors, IRIX 5.3, HIPPI looped back",
    found: "Without a copy of user data, one, two and three layers of TP4 carry the same as HIPPI alone: about 135 \
            Mbit/s with 64 KB and 310 Mbit/s with 1 MB of user data. With memcpy in each layer about 150 Mbit/s, with \
            a copy byte by byte 25, with a checksum 15.",
};

const MEGABIT: f64 = 1e6 / 8.0;

/// Throughput of the paper's figure 2, for any number of layers and for the link alone: user data in bytes, bytes per
/// second.
pub const NO_COPY: [(u64, f64); 2] = [(64 << 10, 135.0 * MEGABIT), (1 << 20, 310.0 * MEGABIT)];
/// Throughput of the paper's figure 3 with memcpy, flat from about 60 KB on.
pub const MEMCPY: [(u64, f64); 2] = [(64 << 10, 150.0 * MEGABIT), (1 << 20, 150.0 * MEGABIT)];
/// With a copy byte by byte, flat from 4 KB on.
pub const OCTET_COPY: [(u64, f64); 2] = [(4 << 10, 25.0 * MEGABIT), (1 << 20, 25.0 * MEGABIT)];
/// With a checksum, flat from 4 KB on.
pub const CHECKSUM: [(u64, f64); 2] = [(4 << 10, 15.0 * MEGABIT), (1 << 20, 15.0 * MEGABIT)];

/// System C.
pub const DRIVER: Paper = Paper {
    title: "Adaptive device driver for over-Gbps links (figures 1, 7, 8 and 9)",
    host: "PCs with FreeBSD and Linux, OC-48c (2.4 Gbit/s) and 10GbE cards",
    found: "Freeing sent buffers without interrupts while there is room, and with them when there is little, gave up \
            to 70 % more packets a second with short packets (on Linux 50 %). Copying the first pieces of a packet \
            into one area gave about 10 % with 4 KB, and nothing or less with 64 KB. Pieces cost 17 % of the \
            throughput at 64 KB, and the list of buffers 12 % at 16 KB.",
};

/// More packets per second by switching the algorithm of completion, short packets, FreeBSD; a share of 1.
pub const SWITCHING: f64 = 0.70;
/// More packets per second by switching the algorithm of completion, short packets, Linux; a share of 1.
pub const SWITCHING_LINUX: f64 = 0.50;
/// More throughput by the bounce buffer at 4 KB.
pub const BOUNCE_4K: f64 = 0.10;
/// More throughput with a dummy in one piece, at 64 KB: what scatter/gather costs.
pub const DUMMY_64K: f64 = 0.17;

/// System D.
pub const CHECKSUM_GPU: Paper = Paper {
    title: "Y. Tsubouchi, G. Hasegawa, Y. Taniguchi, H. Nakano, M. Matsuoka: A GPU Offloading method for improving \
            performance of checksum computation in the TCP/IP stack (figure 5, tables 4 and 5)",
    host: "Core i5 3470, GeForce GTX 680, 10 Gbit/s Ethernet, raw sockets, 10,000 packets, mean of 10 runs",
    found: "Summing received packets on a GPU, 1,024 at a time, gave up to 13 % more throughput than summing them on \
            the processor, close to not summing at all, and left 21 to 28 % of the processor idle instead of none.",
};

/// More throughput by the GPU than by the processor, at best.
pub const GPU_OVER_CPU: f64 = 0.13;

/// A row of the paper's tables 4 and 5: shares of the receiver's processor, in per cent, at 1,480 and at 9,480 B.
#[derive(Clone, Copy, Debug)]
pub struct Receiver {
    /// The paper's name of the way.
    pub way: &'static str,
    /// Idle during the transfer (table 4); the paper has none for the way that skips.
    pub idle: Option<[f64; 2]>,
    /// Checksum.
    pub checksum: [f64; 2],
    /// Copies between kernel and program.
    pub copies: [f64; 2],
    /// Calls of CUDA.
    pub gpu: [f64; 2],
}

/// Sizes of those tables, in bytes.
pub const RECEIVER_SIZES: [u64; 2] = [1480, 9480];
/// The three ways.
pub const RECEIVERS: [Receiver; 3] = [
    Receiver { way: "CPU", idle: Some([0.0, 0.99]), checksum: [35.5, 42.8], copies: [17.2, 19.7], gpu: [0.0, 0.0] },
    Receiver { way: "GPU", idle: Some([21.2, 28.0]), checksum: [0.0, 0.0], copies: [16.2, 21.0], gpu: [36.7, 28.2] },
    Receiver { way: "skipped", idle: None, checksum: [0.0, 0.0], copies: [22.1, 34.2], gpu: [0.0, 0.0] },
];

/// System E.
pub const SURVEY: Paper = Paper {
    title: "D. Miyagawa, T. Fukai, Y. Li, T. Hirofuchi, M. Sugaya: comparison of SmartNIC and CPU network performance \
            for offloading I/O (figures 1 and 3 to 6)",
    host: "Core i7-6700K and Xeon Gold 6212U with NVIDIA BlueField-2 (25GbE), Ubuntu 22.04, iperf and qperf",
    found: "How throughput grows with the size of a message follows the kind of the sender, its maximum the kind of \
            the receiver. Latency is a few to some tens of µs higher where the receiver is the SmartNIC. TLS on the \
            SmartNIC made a file transfer slower. The paper's text gives no further numbers, so there are none to \
            compare with.",
};
