//! What the sender of a direction keeps to itself.

use crate::layout::laid_out;
use crate::lock::Lock;
use crate::sync::{AtomicU32, AtomicU64, Relaxed};

laid_out! {
    /// What a direction's sender keeps to itself. Changed under `lock`.
    #[repr(C, align(64))]
    pub struct Sending {
        /// Guards the rest.
        pub lock: Lock,
        /// 1: the stream goes into the ring.
        pub fast: AtomicU32,
        /// Position of the kernel stream, modulo 2^32, when the direction last went up, and what was given back since.
        pub position: AtomicU32,
        /// See [`crate::ring::Sender`].
        pub tail: AtomicU64,
        /// See [`crate::ring::Sender`].
        pub seen_head: AtomicU64,
        /// See [`crate::ring::Sender`].
        pub hole: [AtomicU64; 2],
        /// See [`crate::ring::Sender`].
        pub behind: AtomicU64,
        /// Position behind the last mark; the reader has seen it when its head is there.
        pub mark: AtomicU64,
        /// [`crate::words::SenderWords::announced`] when the direction last went up.
        pub announced_before_up: AtomicU64,
        /// Packed [`crate::ring::Place`] from which the piece was taken that was last given back to the kernel path;
        /// [`NO_PIECE`] if there was none since the direction last went up.
        pub piece: AtomicU64,
        /// Calls that are inside a kernel send.
        pub kernel_sends: AtomicU32,
        /// The waiting flag that was taken down because the next kernel send wakes its reader: see [`Port::send`]. 0:
        /// none.
        ///
        /// [`Port::send`]: crate::switch::Port::send
        pub flag_taken: AtomicU32,
        /// Sends on the kernel path since it last tried to go up.
        pub tries: AtomicU32,
        /// Head when the reader was last seen to move, and when that was, in ticks.
        pub progress: [AtomicU64; 2],
        /// 1: the program was refused room in the ring, no room was reported to it since, and it has put nothing there
        /// since.
        pub full: AtomicU32,
        /// [`Sending::tail`] when that was.
        pub full_at: AtomicU64,
        /// When that was, in ticks.
        pub full_since: AtomicU64,
        /// Where the reader was when it was last seen to move since then (see `switch::room`), and when that was, in
        /// ticks.
        pub full_progress: [AtomicU64; 2],
        /// Tail when the reader was last known to live.
        pub alive: AtomicU64,
        /// The stretch of the ring in which the tail was when the sender last checked that the reader lives.
        pub looked: AtomicU64,
        /// [`Reading::place`](super::Reading::place) at the last send.
        pub read_before: AtomicU64,
        /// Data sent by the fast path, in bytes, which no process has reported yet.
        pub fast_bytes: AtomicU64,
        /// Octets of a stream to another host that were put into the ring since it last went up.
        pub(crate) put: AtomicU64,
        /// Data sent by the kernel path, in bytes.
        pub kernel_bytes: AtomicU64,
        /// When a doorbell was last sent to see whether the kernel path carries, in ticks, and how much was
        /// acknowledged then.
        pub probed: [AtomicU64; 2],
        /// 1: the direction went down for want of room before the reader had come as far as the ring.
        pub outran: AtomicU32,
        /// 1: the program waits only for room on the connection. A send that has begun is not refused room in the ring.
        pub only_sends: AtomicU32,
        /// 1: the reader was awaited in vain when it was about to leave its ring, and is still about to.
        pub reader_is_late: AtomicU32,
    }
}

/// Value of [`Sending::piece`], which no place has.
pub const NO_PIECE: u64 = u64::MAX;

impl Sending {
    /// Whether the stream goes into the ring.
    #[inline]
    pub fn is_fast(&self) -> bool {
        self.fast.load(Relaxed) != 0
    }
}
