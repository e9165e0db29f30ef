//! One end of a connection: the state that all processes sharing the socket need, and the other end must not have.
//!
//! Ends lie in the table of their [family](crate::family) of processes.

mod gate;
mod heed;
mod owners;
mod reading;
mod remote;
mod sending;
mod watching;

pub use gate::Gate;
pub use owners::{IMAGE_WITHIN_NS, Owners};
pub(crate) use reading::{GIVEN_FIRST, HAD_ALL, IN_COPY};
pub use reading::{Reading, Resting, Whereabouts};
pub use remote::Remote;
pub use sending::{NO_PIECE, Sending};

use crate::channel::{Shape, Side};
use crate::layout::{Spare, laid_out};
use crate::lock::Entered;
use crate::raw::Errno;
use crate::reason::Reason;
use crate::sync::{AcqRel, Acquire, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Relaxed, SeqCst, fence};

/// How far an end has come. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Plain kernel TCP; may go up one day.
    Plain = 0,
    /// Its name is in the directory, or with the broker, and it waits for the other end.
    Waiting = 1,
    /// It has a channel; every call goes through the library.
    Joined = 2,
    /// Plain kernel TCP for good; the reason says why.
    Pinned = 3,
    /// The other end broke the rules; every call fails.
    Broken = 4,
}

/// Bit of [`End::was_fast`]: the direction out.
const FAST_OUT: u8 = 1;
/// Bit of [`End::was_fast`]: the other end has put something into its ring.
const MET: u8 = 4;
/// Bit of [`End::was_fast`]: the direction in.
const FAST_IN: u8 = 2;

/// What a doorbell has told of the other end after its FIN: see [`Port::reader_is_gone`].
///
/// [`Port::reader_is_gone`]: crate::switch::Port::reader_is_gone
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Probed {
    /// No doorbell has asked.
    NotYet = 0,
    /// It lives.
    Lives = 1,
    /// It is gone, and its kernel has answered with a reset.
    Gone = 2,
}

/// How far an end has come with the broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Asked {
    /// Nothing.
    Nothing = 0,
    /// A process is about to ask, once the broker has shown that it is at work.
    Knocking = 1,
    /// A process has asked, and the end has not taken note of an answer. A copy of the socket may lie with the broker.
    Pending = 2,
    /// The broker has given it a place in a pool. The other end has not made it ready, or there is no memory for it.
    Place = 3,
}

/// Bit of [`End::shut`]: nothing more is to be received.
pub const SHUT_IN: u8 = 1;
/// Bit of [`End::shut`]: nothing more is to be sent.
pub const SHUT_OUT: u8 = 2;
laid_out! {
    /// One end of a connection. Zeroed memory is an unused end.
    #[repr(C, align(64))]
    pub struct End {
        /// The processes that have it.
        pub owners: Owners,
        pub(crate) next_free: AtomicU32,
        stage: AtomicU8,
        reason: AtomicU8,
        /// 1: the socket does not block, as far as the library was told.
        pub nonblocking: AtomicU8,
        /// What a send looks at before it goes into the ring: bits of `heed`.
        heed: AtomicU8,
        /// The watchers that the socket may have; 0: none. See `watching`.
        watched: AtomicU8,
        /// What the program has set of TCP_NODELAY and TCP_CORK, once the direction out was fast
        /// ([`End::was_sent_fast`]): a doorbell must not be held back, so in the kernel the first is on and the second
        /// off from then on.
        pub no_delay: AtomicU8,
        /// See [`End::no_delay`].
        pub cork: AtomicU8,
        /// 1: a send was refused for want of room, and no event of room has been reported since.
        pub refused: AtomicU8,
        /// 1: every recvmsg says how many bytes are left (TCP_INQ).
        pub tells_unread: AtomicU8,
        /// Directions that were ever fast: [`FAST_OUT`], [`FAST_IN`]; and [`MET`].
        was_fast: AtomicU8,
        /// A [`Probed`].
        probed: AtomicU8,
        /// Directions that the program has shut down: [`SHUT_IN`], [`SHUT_OUT`].
        pub shut: AtomicU8,
        /// Calls and bytes so far, while plain.
        pub calls: AtomicU32,
        /// Number of calls at which it looks for its other end (again).
        pub next_try: AtomicU32,
        /// Bytes so far, while plain.
        pub bytes: AtomicU64,
        /// Index of its entry in the directory, plus 1; 0 if none.
        pub entry: AtomicU32,
        /// Index of the directory's entry that says that the socket was passed on, plus 1; 0 if it never was.
        pub passed_entry: AtomicU32,
        /// The socket's cookie.
        pub cookie: AtomicU64,
        /// The other end's cookie.
        pub peer_cookie: AtomicU64,
        /// Pool and slot of its channel, once joined.
        pub pool: AtomicI32,
        /// Slot of its channel.
        pub slot: AtomicU32,
        /// Ring bytes and slots of the pool; no slots: it never had a channel.
        shape: [AtomicU32; 2],
        /// Which side of the channel it is.
        pub side: AtomicU8,
        /// 1: the program asks for the time at which received bytes came (SO_TIMESTAMP).
        pub stamped: AtomicU8,
        /// How the process that has the end began the connection; 0: not known. The library's own.
        pub origin: AtomicU8,
        /// 1: a process has counted it for the statistics.
        pub counted: AtomicU8,
        /// How often a process has shut down only sending, modulo 256. Each time the kernel reports once more to all
        /// watchers what is there, but it does not know of the ring. Where receiving is shut down as well, the kernel
        /// reports something to read.
        pub shutdowns: AtomicU8,
        /// An [`Asked`].
        asked: AtomicU8,
        /// How often the broker has known no other end.
        asks_in_vain: AtomicU8,
        /// Doorbells sent and sleeps so far, for statistics.
        pub bells_sent: AtomicU64,
        /// The [`Name`](crate::tap::Name) of the tap; 0 if there is none.
        tap: AtomicU64,
        /// Times a receive slept.
        pub sleeps: AtomicU64,
        /// [`crate::channel::Channel::departures`] when a thread last went to sleep on it.
        pub departures: AtomicU32,
        /// Plain reads in progress.
        pub read_gate: Gate,
        /// Plain writes in progress.
        pub write_gate: Gate,
        /// The direction in.
        pub reading: Reading,
        /// The direction out.
        pub sending: Sending,
        /// Of a stream to another host.
        pub remote: Remote,
        spare: Spare,
    }
}

impl End {
    /// Takes the error that the kernel has reported already and the program does not know of.
    #[inline]
    pub fn take_kept_error(&self) -> Option<Errno> {
        let error = &self.reading.error;
        (error.load(Relaxed) != 0).then(|| Errno(error.swap(0, Relaxed))).filter(|error| error.0 != 0)
    }

    /// Whether there is an error of which the program has not been told.
    pub fn keeps_error(&self) -> bool {
        self.reading.error.load(Relaxed) != 0
    }

    /// Keeps `error`, with which a call of the library's own failed, for the program, if it is an error of the
    /// connection.
    pub fn keep_error(&self, error: Errno) {
        if error.ends_connection() {
            self.reading.error.store(error.0, Relaxed);
        }
    }

    /// Thread `me` has just executed a program, whatever it was doing with this end.
    pub fn forsake(&self, me: u32) {
        self.reading.lock.forsake(me);
        self.sending.lock.forsake(me);
    }

    /// Whether either direction was ever fast.
    #[inline]
    pub fn was_fast(&self) -> bool {
        self.was_fast.load(Relaxed) & (FAST_OUT | FAST_IN) != 0
    }

    /// Whether the direction out was ever fast.
    #[inline]
    pub fn was_sent_fast(&self) -> bool {
        self.was_fast.load(Relaxed) & FAST_OUT != 0
    }

    /// Whether the other end is known to have come for the channel.
    pub fn has_met(&self) -> bool {
        self.was_fast.load(Relaxed) != 0
    }

    /// Something of the other end's lies in the ring.
    pub(crate) fn note_met(&self) {
        self.was_fast.fetch_or(MET, Relaxed);
    }

    /// The direction out is fast.
    pub(crate) fn note_sent_fast(&self) {
        self.was_fast.fetch_or(FAST_OUT, Relaxed);
    }

    /// The direction in is fast.
    pub(crate) fn note_received_fast(&self) {
        self.was_fast.fetch_or(FAST_IN, Relaxed);
    }

    /// What a doorbell has told of the other end.
    pub fn probed(&self) -> Probed {
        match self.probed.load(Relaxed) {
            0 => Probed::NotYet,
            1 => Probed::Lives,
            _ => Probed::Gone,
        }
    }

    /// Notes what a doorbell has told of the other end.
    pub(crate) fn set_probed(&self, probed: Probed) {
        self.probed.store(probed as u8, Relaxed);
    }

    /// Whether both directions are on the kernel path for good, and this end has taken all that the library had of the
    /// stream. Then nothing is lost with the channel.
    pub fn needs_no_channel(&self) -> bool {
        self.is_pinned() && self.has_left_nothing()
    }

    /// Whether both directions are on the kernel path, and this end, which is away from its ring or has left it, has
    /// left nothing there that the sender would not put on the kernel path before it lets go of the channel.
    pub(crate) fn has_left_nothing(&self) -> bool {
        let reading = &self.reading;
        let is_in_kernel = match reading.whereabouts() {
            Whereabouts::Here => false,
            Whereabouts::Left => true,
            // A killed sender gives nothing back.
            Whereabouts::AwayFromKernel | Whereabouts::AwayFromRing => reading.left.load(Relaxed) == 0,
        };
        is_in_kernel && reading.is_where_kernel_is() && !self.sending.is_fast()
    }

    /// Whether no process reads or sends anything past the kernel any more: it does not matter then what others do with
    /// the end.
    pub fn is_plain_for_good(&self) -> bool {
        self.stage() != Stage::Joined || self.needs_no_channel() && !self.is_away()
    }

    /// How far the streams out and in have come, in bytes, without what a process has reported in the statistics.
    pub fn positions(&self) -> [u64; 2] {
        let (out, back) = (&self.sending, &self.reading);
        [[&out.fast_bytes, &out.kernel_bytes], [&back.fast_bytes, &back.kernel_bytes]]
            .map(|counters| counters.into_iter().fold(0u64, |sum, counter| sum.wrapping_add(counter.load(Relaxed))))
    }

    /// The stage that the end has reached.
    #[inline]
    pub fn stage(&self) -> Stage {
        match self.stage.load(Acquire) {
            0 => Stage::Plain,
            1 => Stage::Waiting,
            2 => Stage::Joined,
            3 => Stage::Pinned,
            _ => Stage::Broken,
        }
    }

    /// Whether it was ever joined, whatever has become of it.
    pub fn has_channel(&self) -> bool {
        self.shape[1].load(Relaxed) != 0
    }

    /// The number of its channel's pool, if it was ever joined.
    pub fn pool_id(&self) -> Option<i32> {
        self.has_channel().then(|| self.pool.load(Relaxed))
    }

    /// Whether the other end is on another host, and daemons carry what goes by the ring.
    #[inline]
    pub fn is_remote(&self) -> bool {
        self.remote.is_any()
    }

    /// Whether its channel lies in memory of the broker: the other end may be another user's, and in other namespaces,
    /// where numbers of processes and threads mean nothing.
    pub fn is_brokered(&self) -> bool {
        self.pool_id().is_some_and(|id| id < 0)
    }

    /// What it has of the broker.
    pub fn asked(&self) -> Asked {
        match self.asked.load(Relaxed) {
            0 => Asked::Nothing,
            1 => Asked::Knocking,
            2 => Asked::Pending,
            _ => Asked::Place,
        }
    }

    pub(crate) fn set_asked(&self, asked: Asked) {
        self.asked.store(asked as u8, Relaxed);
    }

    /// The broker could not lead this end to its other end. The end asks again after some calls; the more often it has
    /// asked in vain, the later.
    pub(crate) fn ask_later(&self) {
        const MOST: u8 = 5;
        let before = self.asks_in_vain.load(Relaxed).min(MOST);
        self.asks_in_vain.store(before + 1, Relaxed);
        self.next_try.store(self.calls.load(Relaxed).saturating_mul(2 << before), Relaxed);
    }

    /// Shape of the pool of its channel.
    pub fn shape(&self) -> Shape {
        Shape { ring_bytes: self.shape[0].load(Relaxed), slots: self.shape[1].load(Relaxed) }
    }

    /// Sets the shape of the pool of its channel.
    pub fn set_shape(&self, shape: Shape) {
        self.shape[0].store(shape.ring_bytes, Relaxed);
        self.shape[1].store(shape.slots, Relaxed);
    }

    /// Which end of its channel it is.
    pub fn side(&self) -> Side {
        if self.side.load(Relaxed) == 0 { Side::Maker } else { Side::Joiner }
    }

    /// Moves on to `stage`; false when it was there or further already.
    pub fn advance(&self, stage: Stage) -> bool {
        self.stage.fetch_max(stage as u8, AcqRel) < stage as u8
    }

    /// Why it is not fast (or was not, until it was).
    pub fn reason(&self) -> Reason {
        if self.is_held() && !self.is_pinned() && self.stage() <= Stage::Joined {
            return Reason::Asked;
        }
        match Reason::ALL.get(self.reason.load(Relaxed) as usize).copied().unwrap_or(Reason::Unsupported) {
            Reason::Young | Reason::NotAccepted | Reason::PeerSilent | Reason::Met if !self.has_carried() => {
                Reason::Unused
            }
            reason => reason,
        }
    }

    /// What a process lacks that could not attach the channel of this joined end, if it has found out.
    pub fn lack(&self) -> Option<Reason> {
        Some(self.reason()).filter(|it| matches!(it, Reason::NoDescriptor | Reason::NoMemory))
    }

    /// Whether anything has been sent or received by the kernel path.
    fn has_carried(&self) -> bool {
        let counters = [&self.bytes, &self.sending.kernel_bytes, &self.reading.kernel_bytes];
        counters.iter().any(|counter| counter.load(Relaxed) > 0)
    }

    /// Records why it is not fast.
    pub fn set_reason(&self, reason: Reason) {
        self.reason.store(reason as u8, Relaxed);
    }

    /// Transfers the end by `copy` to thread `me` of another family. To this family the connection is plain kernel TCP
    /// from then on, without a channel. False, and nothing is done, if the end has no channel, or another thread is
    /// inside a lock.
    pub fn transfer(&self, me: u32, copy: impl FnOnce()) -> bool {
        let locks = [&self.reading.lock, &self.sending.lock];
        let entered = locks.map(|lock| lock.enter_if_free(me));
        let given = entered == [true; 2] && self.stage() == Stage::Joined;
        if given {
            copy();
            // The new end tells the other end when the connection ends.
            self.set_shape(Shape { ring_bytes: 0, slots: 0 });
            self.entry.store(0, Relaxed);
            self.passed_entry.store(0, Relaxed);
            self.owners.end_loans();
            self.become_plain();
        }
        locks.into_iter().zip(entered).filter(|it| it.1).for_each(|(lock, _)| lock.exit(Entered::Alone));
        given
    }

    /// Whether the directory has an entry for a process to which the socket was passed.
    pub fn is_passed(&self) -> bool {
        self.passed_entry.load(Relaxed) != 0
    }

    /// The end is about to be closed with bytes that a process may still come for, to which the socket was passed: its
    /// entry in the directory stays, and tells that process of the loss.
    pub fn keep_entry(&self) {
        self.passed_entry.store(0, Relaxed);
    }

    /// From now on the connection is plain kernel TCP, in every process of the family.
    pub fn become_plain(&self) {
        self.advance(Stage::Pinned);
        // SeqCst: see `shut_gate`.
        fence(SeqCst);
        self.read_gate.open();
        self.write_gate.open();
    }

    /// Shuts a gate of this end, unless the end has become plain: then no thread would open it again. Whether it is
    /// shut.
    pub(crate) fn shut_gate(&self, gate: &Gate) -> bool {
        if !gate.shut() {
            return false;
        }
        // SeqCst: this thread shuts, then looks. A thread that makes the end plain says so, then opens.
        fence(SeqCst);
        let is_plain = self.stage() == Stage::Pinned;
        if is_plain {
            gate.open();
        }
        !is_plain
    }

    /// Forgets the watchers and sleepers of this family: only processes of another family watch the socket from now on.
    pub fn forget_watchers(&self) {
        self.watched.store(0, Relaxed);
        self.reading.resting.clear();
        self.reading.armed.store(0, Relaxed);
    }

    /// Keeps a connection without a channel on kernel TCP for good.
    pub fn pin(&self, reason: Reason) {
        if self.stage() < Stage::Joined && self.advance_if_unjoined() {
            self.set_reason(reason);
        }
    }

    fn advance_if_unjoined(&self) -> bool {
        self.stage.fetch_update(AcqRel, Acquire, |s| (s < Stage::Joined as u8).then_some(Stage::Pinned as u8)).is_ok()
    }
}

impl PartialOrd for Stage {
    fn partial_cmp(&self, other: &Stage) -> Option<core::cmp::Ordering> {
        (*self as u8).partial_cmp(&(*other as u8))
    }
}
