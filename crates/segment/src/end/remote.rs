//! What an end keeps of a stream to another host.

use crate::layout::laid_out;
use crate::sync::{AtomicU64, Relaxed};

laid_out! {
    /// What an end keeps of a stream to another host. Zeroed, the other end is on this host. The words of a direction
    /// are changed under its lock.
    #[repr(C)]
    pub struct Remote {
        /// The key of the stream: see `switch::remote`.
        key: [AtomicU64; 2],
        /// The number of the daemon that carries it.
        daemon: AtomicU64,
        /// Sender: how often it has gone up.
        pub(crate) went_up: AtomicU64,
        /// Reader: how often the sender had gone up when the reader last entered the ring.
        pub(crate) entered: AtomicU64,
        /// Reader: the number in the mark of going up for which it waits, having heard the statement; 0: none.
        pub(crate) awaited: AtomicU64,
        /// Reader: octets that it has read from the ring, and that come next by the kernel again.
        pub(crate) repeated: AtomicU64,
        /// Reader: octets that come next by the kernel because they were put into the ring.
        pub(crate) owed: AtomicU64,
    }
}

impl Remote {
    /// Whether the other end is on another host.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.key[0].load(Relaxed) != 0
    }

    /// The key of the stream.
    pub fn key(&self) -> [u64; 2] {
        self.key.each_ref().map(|it| it.load(Relaxed))
    }

    /// The number of the daemon that carries it.
    pub fn daemon(&self) -> u64 {
        self.daemon.load(Relaxed)
    }

    /// The other end is on another host, and the daemon of this number carries the stream. The first word of the key is
    /// not 0.
    pub fn begin(&self, key: [u64; 2], daemon: u64) {
        self.daemon.store(daemon, Relaxed);
        self.key[1].store(key[1], Relaxed);
        self.key[0].store(key[0], Relaxed);
    }
}
