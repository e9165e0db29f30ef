//! What the reader of a direction keeps to itself.

use crate::layout::laid_out;
use crate::lock::Lock;
use crate::sync::{AcqRel, Acquire, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Relaxed, Release};
use crate::words::ALONE;

laid_out! {
    /// What a direction's reader keeps to itself. Changed under `lock`.
    #[repr(C, align(64))]
    pub struct Reading {
        /// Guards the rest.
        pub lock: Lock,
        /// 1: the stream comes from the ring.
        pub fast: AtomicU32,
        /// Packed [`crate::ring::Place`].
        pub place: AtomicU64,
        /// Bytes of the stream taken from the kernel so far. With [`Reading::all_bells`] the position in the kernel
        /// stream.
        pub kernel: AtomicU64,
        /// [`Reading::all_bells`] when the direction last went up.
        pub bells_before_up: AtomicU64,
        /// The thread that is receiving from the kernel, so that a receive of a signal handler that interrupts it
        /// knows; 0: none.
        pub receiver: AtomicU32,
        /// How many receives of signal handlers have interrupted another receive of their thread.
        pub nested: AtomicU64,
        /// What the waiting flag was raised to; 0 once it was found taken.
        pub armed: AtomicU32,
        /// The sleepers that the waiting flag is to wake.
        pub resting: Resting,
        /// Bytes taken from the kernel as doorbells since the beginning.
        pub all_bells: AtomicU64,
        /// How many of them were data.
        pub mistaken: AtomicU64,
        /// Doorbells until then lie in the kernel behind what comes before the ring; none will be sent
        /// any more. See [`Port::confine`].
        ///
        /// [`Port::confine`]: crate::switch::Port::confine
        pub last_bell: AtomicU64,
        /// Doorbells up to this number of [`Reading::all_bells`] are to be thrown away before kernel data goes on
        /// (after going down).
        pub discard_to: AtomicU64,
        /// The thread that is taking doorbells, until they are counted, by itself or by a receive that interrupts it;
        /// 0: none.
        pub taking: AtomicU32,
        /// What it takes.
        pub fresh: [AtomicU8; 16],
        /// Bytes last taken from the kernel as doorbells, kept until it is sure that they were doorbells: number n of
        /// [`Reading::all_bells`] at n modulo the length.
        pub kept: [AtomicU8; 32],
        /// Number of the first that was kept.
        pub kept_from: AtomicU64,
        /// How many of the kept bytes are data, which the program gets before more is read from the kernel path.
        pub stash: AtomicU32,
        /// A [`Whereabouts`].
        whereabouts: AtomicU8,
        /// Of an end whose channel is a copy: bits [`GIVEN_FIRST`], [`HAD_ALL`] and [`IN_COPY`].
        pub(crate) copied: AtomicU8,
        /// Bytes that were unread in the ring when this end last went away.
        pub(crate) left: AtomicU64,
        /// [`Reading::kernel_position`] when this end last went away. What an image reads on the kernel path while the
        /// sender gives back may be counted there, or not.
        pub(crate) away_at: AtomicU64,
        /// Where in the kernel stream all is given back that this end has left in its ring for good; 0: it has left
        /// nothing, or has read up to there.
        pub(crate) given_at: AtomicU64,
        /// How many times a thread has looked in vain, since this end went away or left, for what is given back.
        pub(crate) vain_looks: AtomicU8,
        /// An error of the kernel socket that came before the ring was empty.
        pub error: AtomicI32,
        /// Mean of the last waits, in ticks, times 8.
        pub mean_wait: AtomicU64,
        /// Waits so far.
        pub waits: AtomicU32,
        /// What became of the last dozes: in the upper half how many in a row were in vain, in the lower one how many
        /// sleeps are to begin without one.
        pub dozes: AtomicU32,
        /// See [`crate::wait::Memory`].
        pub bells_before: AtomicU32,
        /// [`Sending::tail`](super::Sending::tail) when the last wait began.
        pub sent_before: AtomicU64,
        /// Bytes that the last receive took from the ring.
        pub last: AtomicU32,
        /// When the kernel socket was last asked for end-of-file, in ticks.
        pub asked: AtomicU64,
        /// Data received by the fast path, in bytes, which no process has reported yet.
        pub fast_bytes: AtomicU64,
        /// Octets of a stream to another host that were taken from the ring since the reader last entered it.
        pub(crate) got: AtomicU64,
        /// Data received by the kernel path, in bytes.
        pub kernel_bytes: AtomicU64,
    }
}

/// Bit of [`Reading::copied`]: what the sender has given back comes by the kernel, between what lies there before the
/// mark of going up and what follows, and is in the ring as well.
pub(crate) const GIVEN_FIRST: u8 = 1;
/// Bit of [`Reading::copied`]: when the copy was made, the other end had taken from its ring all that this end had put
/// there.
pub(crate) const HAD_ALL: u8 = 2;
/// Bit of [`Reading::copied`]: the channel is a copy.
pub(crate) const IN_COPY: u8 = 4;

/// Where a reader is. Its waiting flag says so too, in the channel, which may be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Whereabouts {
    /// It reads the kernel path or the ring, as [`Reading::fast`] says.
    Here = 0,
    /// It has left the ring for good.
    Left = 1,
    /// It is [away](crate::switch::Port::go_away), and read the kernel path before.
    AwayFromKernel = 2,
    /// It is away, and read the ring before.
    AwayFromRing = 3,
}

impl Reading {
    /// Whether the reader is in the ring.
    #[inline]
    pub fn is_fast(&self) -> bool {
        self.fast.load(Relaxed) != 0
    }

    /// Where the reader is. What it left is in place before it says that it is not here.
    #[inline]
    pub fn whereabouts(&self) -> Whereabouts {
        match self.whereabouts.load(Acquire) {
            0 => Whereabouts::Here,
            2 => Whereabouts::AwayFromKernel,
            3 => Whereabouts::AwayFromRing,
            _ => Whereabouts::Left,
        }
    }

    /// The reader is there from now on.
    pub(crate) fn set_whereabouts(&self, whereabouts: Whereabouts) {
        self.whereabouts.store(whereabouts as u8, Release);
    }

    /// Doorbells still to be thrown away before kernel data goes on. A doorbell that is counted has been thrown away.
    #[inline]
    pub fn to_discard(&self) -> u64 {
        self.discard_to.load(Relaxed).saturating_sub(self.all_bells.load(Relaxed))
    }

    /// Sets how many doorbells are to be thrown away.
    pub fn discard(&self, bells: u64) {
        self.discard_to.store(self.all_bells.load(Relaxed).saturating_add(bells), Relaxed);
    }

    /// Doorbells up to number `last` are to be thrown away, as far as they are not taken by then.
    pub fn discard_up_to(&self, last: u64) {
        self.discard_to.store(last.saturating_add(self.mistaken.load(Relaxed)), Relaxed);
    }

    /// Whether a program that reads the socket itself goes on where the library stands: no doorbell is still to be
    /// thrown away, and no data was taken for doorbells.
    pub fn is_where_kernel_is(&self) -> bool {
        self.to_discard() == 0 && self.stash.load(Relaxed) == 0
    }

    /// Position in the kernel stream: bytes taken from the kernel so far, doorbells included.
    pub fn kernel_position(&self) -> u64 {
        self.kernel.load(Relaxed).wrapping_add(self.all_bells.load(Relaxed))
    }
}

laid_out! {
    /// The sleepers that rely on the waiting flag: polls that sleep in the kernel, and epoll sets that have left the
    /// connection to it. While there are any, a receive that finds the flag taken raises it again before it takes a
    /// doorbell.
    #[repr(C)]
    pub struct Resting(AtomicU32);
}

impl Resting {
    const COUNT: u32 = 0xffff;
    const NUMBER_AT: u32 = 16;
    const STRAY: u32 = 1 << 31;

    /// Whether there is a sleeper, or [`Resting::is_stray`].
    #[inline]
    pub fn any(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// The number of the flag that wakes all sleepers; 0 if there are none.
    pub fn number(&self) -> u32 {
        (self.0.load(Relaxed) & !Self::STRAY) >> Self::NUMBER_AT
    }

    /// Counts one more sleeper, which `number` wakes.
    pub fn add(&self, number: u32) {
        let _ = self.0.fetch_update(AcqRel, Relaxed, |word| {
            let (count, others) = (word & Self::COUNT, (word & !Self::STRAY) >> Self::NUMBER_AT);
            let number = if count == 0 || others == number { number } else { ALONE };
            (count < Self::COUNT).then_some(word & Self::STRAY | number << Self::NUMBER_AT | (count + 1))
        });
    }

    /// Counts one sleeper less.
    pub fn remove(&self) {
        let _ = self.0.fetch_update(AcqRel, Relaxed, |word| match word & Self::COUNT {
            0 => None,
            1 => Some(word & Self::STRAY),
            _ => Some(word - 1),
        });
    }

    /// Counts no sleeper any more.
    pub(super) fn clear(&self) {
        self.0.store(0, Relaxed);
    }

    /// Whether the flag is down, and there is data for which the sleepers were not woken.
    #[inline]
    pub fn is_stray(&self) -> bool {
        self.0.load(Relaxed) & Self::STRAY != 0
    }

    /// See [`Resting::is_stray`].
    pub fn set_stray(&self, stray: bool) {
        if stray {
            self.0.fetch_or(Self::STRAY, AcqRel);
        } else {
            self.0.fetch_and(!Self::STRAY, AcqRel);
        }
    }
}
