//! One end of a connection: the state that all processes sharing the socket need, and the other end must not have.
//!
//! Ends lie in the table of their [family](crate::family) of processes.

use crate::layout::{Spare, laid_out};
use crate::link::{Shape, Side};
use crate::lock::{Entered, Lock};
use crate::raw::Errno;
use crate::reason::Reason;
use crate::sync::{AcqRel, Acquire, AtomicI32, AtomicU8, AtomicU32, AtomicU64, Relaxed, Release};
use crate::tap::Name;
use crate::words::ALONE;

/// How far an end has come. It only moves forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Stage {
    /// Plain kernel TCP; may go up one day.
    Plain = 0,
    /// Known in the directory, waiting for the other end.
    Waiting = 1,
    /// It has a segment; every call goes through the library.
    Joined = 2,
    /// Plain kernel TCP for good; the reason says why.
    Pinned = 3,
    /// The other end broke the rules; every call fails.
    Broken = 4,
}

laid_out! {
    /// Counts the calls that are inside a plain kernel read (or write) of the socket, and can be shut behind them.
    #[repr(C)]
    pub struct Gate(AtomicU32);
}

const SHUT: u32 = 1 << 31;

impl Gate {
    /// Enters for one plain call; false when the gate is shut.
    #[inline]
    pub fn enter(&self) -> bool {
        if self.0.fetch_add(1, AcqRel) & SHUT == 0 {
            return true;
        }
        self.0.fetch_sub(1, AcqRel);
        false
    }

    /// Leaves after the plain call.
    #[inline]
    pub fn leave(&self) {
        self.0.fetch_sub(1, AcqRel);
    }

    /// Shuts the gate if nobody is inside; true when it is shut now.
    pub fn shut(&self) -> bool {
        match self.0.compare_exchange(0, SHUT, AcqRel, Acquire) {
            Ok(_) => true,
            Err(now) => now & SHUT != 0,
        }
    }

    /// Opens it again.
    pub fn open(&self) {
        self.0.fetch_and(!SHUT, AcqRel);
    }

    /// Whether it is shut.
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.0.load(Acquire) & SHUT != 0
    }
}

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
        /// Bytes of the stream taken from the kernel so far. With [`Reading::all_bells`] the position in the kernel stream.
        pub kernel: AtomicU64,
        /// [`Reading::all_bells`] when the direction last went up.
        pub bells_before_up: AtomicU64,
        /// The thread that is receiving from the kernel, so that another receive on top of it knows; 0: none.
        pub in_kernel: AtomicU32,
        /// Receives so far that ran on top of another of their thread.
        pub nested: AtomicU64,
        /// What the waiting flag was raised to; 0 once it was found taken.
        pub armed: AtomicU32,
        /// Who is to be woken by the waiting flag.
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
        /// Doorbells up to this number of [`Reading::all_bells`] are to be thrown away before kernel data goes on (after going
        /// down).
        pub discard_to: AtomicU64,
        /// The thread that is taking doorbells, until they are counted, by itself or by a receive on top of it; 0: none.
        pub taking: AtomicU32,
        /// What it takes.
        pub fresh: [AtomicU8; 16],
        /// Bytes last taken from the kernel as doorbells, kept until it is sure that they were: number n of
        /// [`Reading::all_bells`] at n modulo the length.
        pub held: [AtomicU8; 32],
        /// Number of the first that was kept.
        pub held_from: AtomicU64,
        /// How many of them are data, to be delivered before more is read from the kernel path.
        pub stash: AtomicU32,
        /// 1: this end has left the ring for good, as the waiting flag says in the segment, which may be gone. 2: it is
        /// [away](crate::switch::Port::go_away).
        pub left: AtomicU8,
        /// An error of the kernel socket that came before the ring was empty.
        pub error: AtomicI32,
        /// Mean of the last waits, in ticks, times 8.
        pub mean_wait: AtomicU64,
        /// Waits so far.
        pub waits: AtomicU32,
        /// What became of the last dozes: in the upper half how many in a row were in vain, in the lower one how many sleeps are
        /// to begin without one.
        pub dozes: AtomicU32,
        /// See [`crate::wait::Memory`].
        pub bells_before: AtomicU32,
        /// [`Sending::tail`] when the last wait began.
        pub sent_before: AtomicU64,
        /// Bytes that the last receive took from the ring.
        pub last: AtomicU32,
        /// When the kernel socket was last asked for end-of-file, in ticks.
        pub asked: AtomicU64,
        /// Data received by the fast path, in bytes.
        pub fast_bytes: AtomicU64,
        /// Data received by the kernel path, in bytes.
        pub kernel_bytes: AtomicU64,
    }
}

impl Reading {
    /// Doorbells still to be thrown away before kernel data goes on. Whoever counts one has thrown it away.
    #[inline]
    pub fn to_discard(&self) -> u64 {
        self.discard_to.load(Relaxed).saturating_sub(self.all_bells.load(Relaxed))
    }

    /// Position in the kernel stream: bytes taken from the kernel so far, doorbells included.
    pub fn kernel_position(&self) -> u64 {
        self.kernel.load(Relaxed).wrapping_add(self.all_bells.load(Relaxed))
    }

    /// So many are, from now on.
    pub fn discard(&self, bells: u64) {
        self.discard_to.store(self.all_bells.load(Relaxed).saturating_add(bells), Relaxed);
    }
}

laid_out! {
    /// Those who rely on the waiting flag: polls that sleep in the kernel, and epoll sets that have left the connection to
    /// it. While there are any, a receive raises the flag again if it was taken down, before it takes a doorbell.
    #[repr(C)]
    pub struct Resting(AtomicU32);
}

impl Resting {
    const COUNT: u32 = 0xffff;
    const NUMBER_AT: u32 = 16;
    const STRAY: u32 = 1 << 31;

    /// Whether there is anybody, or [`Resting::is_stray`].
    #[inline]
    pub fn any(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// The number of the flag that wakes them all; 0 if there is nobody.
    pub fn number(&self) -> u32 {
        (self.0.load(Relaxed) & !Self::STRAY) >> Self::NUMBER_AT
    }

    /// One more, who is woken by `number`.
    pub fn add(&self, number: u32) {
        let _ = self.0.fetch_update(AcqRel, Relaxed, |word| {
            let (count, others) = (word & Self::COUNT, (word & !Self::STRAY) >> Self::NUMBER_AT);
            let number = if count == 0 || others == number { number } else { ALONE };
            (count < Self::COUNT).then_some(word & Self::STRAY | number << Self::NUMBER_AT | (count + 1))
        });
    }

    /// One less.
    pub fn leave(&self) {
        let _ = self.0.fetch_update(AcqRel, Relaxed, |word| match word & Self::COUNT {
            0 => None,
            1 => Some(word & Self::STRAY),
            _ => Some(word - 1),
        });
    }

    /// Whether the flag is down, and there is data that they were not woken for.
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
        /// [`crate::words::SenderWords::bells`] when the direction last went up.
        pub bells: AtomicU64,
        /// Packed [`crate::ring::Place`] from which the piece was taken that was last given back to the kernel path;
        /// [`NO_PIECE`] if there was none since the direction last went up.
        pub giving: AtomicU64,
        /// Calls that are inside a kernel send.
        pub in_kernel: AtomicU32,
        /// The waiting flag that the next of them was to wake: see [`Port::send`]. 0: none.
        ///
        /// [`Port::send`]: crate::switch::Port::send
        pub took: AtomicU32,
        /// Sends on the kernel path since it last tried to go up.
        pub tries: AtomicU32,
        /// Head when the reader was last seen to move, and when that was, in ticks.
        pub progress: [AtomicU64; 2],
        /// 1: the program was refused room in the ring, and told of none since. Once it has put something there, that is over too.
        pub full: AtomicU32,
        /// [`Sending::tail`] when that was.
        pub full_at: AtomicU64,
        /// When that was, in ticks.
        pub full_since: AtomicU64,
        /// Head when the reader was last seen to move since then, and when that was, in ticks.
        pub full_progress: [AtomicU64; 2],
        /// Tail when the reader was last known to live.
        pub alive: AtomicU64,
        /// Stretch of the ring in which it was when the reader was last thought of.
        pub looked: AtomicU64,
        /// [`Reading::place`] at the last send.
        pub read_before: AtomicU64,
        /// Data sent by the fast path, in bytes.
        pub fast_bytes: AtomicU64,
        /// Data sent by the kernel path, in bytes.
        pub kernel_bytes: AtomicU64,
    }
}

/// Value of [`Sending::giving`], which no place has.
pub const NO_PIECE: u64 = u64::MAX;

/// Bit of [`End::heed`]: this end sends on the kernel path for good.
const PINNED: u8 = 1;
/// Bit of [`End::heed`]: what it puts into the ring is copied to a tap.
const TAPPED: u8 = 2;
/// Bit of [`End::heed`]: somebody asks from outside that this end sends on the kernel path; see [`crate::watch`].
const HELD: u8 = 4;

/// Bit of [`End::shut`]: nothing more is to be received.
pub const SHUT_IN: u8 = 1;
/// Bit of [`End::shut`]: nothing more is to be sent.
pub const SHUT_OUT: u8 = 2;
/// Value of [`End::watched`] once more than one may: then none is woken by a group.
pub const WATCHED_BY_SEVERAL: u8 = 2;
/// Value of [`End::watched`] while whoever watches does so by system calls of his own, as far as can be told, and is counted
/// at [`Reading::resting`].
const UNSEEN: u8 = 3;

laid_out! {
    /// One end of a connection. Zeroed memory is an unused one.
    #[repr(C, align(64))]
    pub struct End {
        /// References: one per process and handle. 0: unused.
        pub references: AtomicU32,
        pub(crate) next_free: AtomicU32,
        stage: AtomicU8,
        reason: AtomicU8,
        /// 1: the socket does not block, as far as the library was told.
        pub nonblocking: AtomicU8,
        /// [`PINNED`], [`TAPPED`] and [`HELD`]: what a send looks at before it goes into the ring.
        heed: AtomicU8,
        /// Not 0: a poll, select or epoll set may be watching the socket; [`WATCHED_BY_SEVERAL`].
        pub watched: AtomicU8,
        /// What the program has set of TCP_NODELAY and TCP_CORK, once [`End::was_fast`] says that the direction out was
        /// fast: a doorbell must not be held back, so in the kernel the first is on and the second off from then on.
        pub no_delay: AtomicU8,
        /// See [`End::no_delay`].
        pub cork: AtomicU8,
        /// 1: a send was refused for want of room, and no event of room has been reported since.
        pub refused: AtomicU8,
        /// 1: every recvmsg says how many bytes are left (TCP_INQ).
        pub tells_unread: AtomicU8,
        /// 1: the direction out was ever fast; 2: the direction in; 3: both.
        pub was_fast: AtomicU8,
        /// What a doorbell has told of the other end after its FIN; see [`Port::reader_is_gone`]. 1: it lives; 2: it is gone,
        /// and its kernel has answered with a reset.
        ///
        /// [`Port::reader_is_gone`]: crate::switch::Port::reader_is_gone
        pub probed: AtomicU8,
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
        /// Index of the word in the directory that it was passed on, plus 1; 0 if it never was.
        pub word: AtomicU32,
        /// The socket's cookie.
        pub cookie: AtomicU64,
        /// The other end's cookie.
        pub peer_cookie: AtomicU64,
        /// Until when (CLOCK_MONOTONIC, ns) a program image that is being executed may come for it.
        pub lent_until: AtomicU64,
        /// How many may still come.
        loans: AtomicU32,
        /// Pool and slot of its segment, once joined.
        pub pool: AtomicI32,
        /// Slot of its segment.
        pub slot: AtomicU32,
        /// Ring bytes and slots of the pool; no slots: it never had a segment.
        shape: [AtomicU32; 2],
        /// Which side of the segment it is.
        pub side: AtomicU8,
        /// 1: what comes has the time at which it came, for a recvmsg that wants to know (SO_TIMESTAMP).
        pub stamped: AtomicU8,
        /// 1: a process has counted it for the statistics.
        pub counted: AtomicU8,
        /// 1: a program that knows nothing of the ring may have the socket.
        pub outsider: AtomicU8,
        /// How often a process has shut down sending alone, modulo 256. Each time the kernel tells all who watch of what is there
        /// once more, and of the ring it does not know; where receiving is shut down as well, there is something to read.
        pub shutdowns: AtomicU8,
        /// Doorbells sent and sleeps so far, for statistics.
        pub bells: AtomicU64,
        /// The [`Name`] of the tap; 0 if there is none.
        tap: AtomicU64,
        /// Times a receive slept.
        pub sleeps: AtomicU64,
        /// [`crate::link::Link::departures`] when somebody last went to sleep on it.
        pub departures: AtomicU32,
        /// Plain reads in progress.
        pub read_gate: Gate,
        /// Plain writes in progress.
        pub write_gate: Gate,
        /// The direction in.
        pub reading: Reading,
        /// The direction out.
        pub sending: Sending,
        spare: Spare,
    }
}

impl End {
    /// An error that the kernel has told already and the program does not know of, which is none from then on.
    #[inline]
    pub fn take_kept_error(&self) -> Option<Errno> {
        let error = &self.reading.error;
        (error.load(Relaxed) != 0).then(|| Errno(error.swap(0, Relaxed))).filter(|error| error.0 != 0)
    }

    /// Whether there is an error of which the program has not been told.
    pub fn keeps_error(&self) -> bool {
        self.reading.error.load(Relaxed) != 0
    }

    /// A call failed with `error`, if that is one of the connection's, and the program was not told.
    pub fn keep_error(&self, error: Errno) {
        if matches!(error.0, libc::ECONNRESET | libc::EPIPE | libc::ETIMEDOUT) {
            self.reading.error.store(error.0, Relaxed);
        }
    }

    /// Thread `me` has just executed a program, whatever it was doing with this end.
    pub fn forsake(&self, me: u32) {
        self.reading.lock.forsake(me);
        self.sending.lock.forsake(me);
    }

    /// A poll, select or epoll set may be watching the socket from now on.
    pub fn watch(&self) {
        let is_new = |now| matches!(now, 0 | UNSEEN);
        if is_new(self.watched.load(Relaxed)) {
            let seen = |now| is_new(now).then_some(1);
            if self.watched.fetch_update(AcqRel, Relaxed, seen) == Ok(UNSEEN) {
                self.reading.resting.leave();
            }
        }
    }

    /// More than one poll, select or epoll set may; true if that is new.
    pub fn watch_by_several(&self) -> bool {
        let before = self.watched.swap(WATCHED_BY_SEVERAL, AcqRel);
        if before == UNSEEN {
            self.reading.resting.leave();
        }
        before != WATCHED_BY_SEVERAL
    }

    /// Whether a single poll, select or epoll set of this process watches it, as far as is known, and by calls of this library.
    pub fn is_watched_by_one(&self) -> bool {
        self.watched.load(Relaxed) == 1 && self.references.load(Relaxed) <= 1
    }

    /// Somebody may be watching it by system calls of his own.
    pub fn watch_unseen(&self) {
        // Whoever finds that it is so takes one off.
        self.reading.resting.add(ALONE);
        if self.watched.compare_exchange(0, UNSEEN, AcqRel, Relaxed).is_err() {
            self.reading.resting.leave();
        }
    }

    /// Whoever watched by system calls of his own waits in a receive by now.
    #[inline]
    pub fn unwatch_unseen(&self) {
        if self.is_watched_unseen() && self.watched.compare_exchange(UNSEEN, 0, AcqRel, Relaxed).is_ok() {
            self.reading.resting.leave();
        }
    }

    /// Whether [`End::watch_unseen`] was called, and what ends that was not since.
    pub fn is_watched_unseen(&self) -> bool {
        self.watched.load(Relaxed) == UNSEEN
    }

    /// Whether both directions are on the kernel path for good, and this end has taken whatever the library had of the
    /// stream: then nothing is lost with the segment.
    pub fn needs_no_segment(&self) -> bool {
        let reading = &self.reading;
        reading.left.load(Acquire) != 0
            && reading.to_discard() == 0
            && reading.stash.load(Relaxed) == 0
            && self.is_pinned()
            && self.sending.fast.load(Relaxed) == 0
    }

    /// What a send has to heed before it goes into the ring: 0, mostly.
    #[inline]
    pub(crate) fn heed(&self) -> u8 {
        self.heed.load(Relaxed)
    }

    /// Whether this end sends on the kernel path for good.
    pub fn is_pinned(&self) -> bool {
        self.heed() & PINNED != 0
    }

    /// Whether it does so, for good or as long as it is held.
    #[inline]
    pub(crate) fn sends_by_kernel(&self) -> bool {
        self.heed() & (PINNED | HELD) != 0
    }

    /// Whether somebody asks from outside that it stays on the kernel path: with a segment, that it sends there; without one,
    /// that it looks for none.
    #[inline]
    pub fn is_held(&self) -> bool {
        self.heed() & HELD != 0
    }

    /// Somebody asks for that from now on.
    pub fn hold(&self) {
        self.heed.fetch_or(HELD, Release);
    }

    /// Nobody does any more.
    pub fn let_go_up(&self) {
        self.heed.fetch_and(!HELD, Release);
    }

    /// It sends on the kernel path for good from now on.
    pub fn pin_sending(&self) {
        self.heed.fetch_or(PINNED, AcqRel);
    }

    /// The tap to which what it sends is copied, if any.
    pub fn tap(&self) -> Option<Name> {
        Name::of(self.tap.load(Relaxed)).filter(|_| self.is_tapped())
    }

    /// Whether there is a tap, or was one until a moment ago.
    pub fn is_tapped(&self) -> bool {
        self.heed() & TAPPED != 0
    }

    /// From now on what it puts into the ring is copied there.
    pub fn set_tap(&self, name: Name) {
        self.tap.store(name.word(), Relaxed);
        self.heed.fetch_or(TAPPED, AcqRel);
    }

    /// No more, if it was to that one. Its next sender shall still see that there was one, and let go of it.
    pub fn end_tap(&self, name: Name) {
        let _ = self.tap.compare_exchange(name.word(), 0, AcqRel, Relaxed);
    }

    /// No more, if it was to that one, or to one that has ended.
    pub fn forget_tap(&self, name: Option<Name>) {
        if self.tap.compare_exchange(name.map_or(0, Name::word), 0, AcqRel, Relaxed).is_ok() {
            self.heed.fetch_and(!TAPPED, AcqRel);
            if self.tap.load(Acquire) != 0 {
                // Another, meanwhile.
                self.heed.fetch_or(TAPPED, AcqRel);
            }
        }
    }

    /// How far the streams out and in have come, in bytes, as far as nobody has told of them in the statistics.
    pub fn positions(&self) -> [u64; 2] {
        let (out, back) = (&self.sending, &self.reading);
        [[&out.fast_bytes, &out.kernel_bytes], [&back.fast_bytes, &back.kernel_bytes]]
            .map(|counters| counters.into_iter().fold(0u64, |sum, counter| sum.wrapping_add(counter.load(Relaxed))))
    }

    /// How far it has come.
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
    pub fn has_segment(&self) -> bool {
        self.shape[1].load(Relaxed) != 0
    }

    /// The number of its segment's pool, if it was ever joined.
    pub fn pool_id(&self) -> Option<i32> {
        self.has_segment().then(|| self.pool.load(Relaxed))
    }

    /// Shape of the pool of its segment.
    pub fn shape(&self) -> Shape {
        Shape { ring_bytes: self.shape[0].load(Relaxed), slots: self.shape[1].load(Relaxed) }
    }

    /// Says what [`End::shape`] is.
    pub fn set_shape(&self, shape: Shape) {
        self.shape[0].store(shape.ring_bytes, Relaxed);
        self.shape[1].store(shape.slots, Relaxed);
    }

    /// Which end of its segment it is.
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
            Reason::Young | Reason::PeerSilent if !self.has_carried() => Reason::Unused,
            reason => reason,
        }
    }

    /// Whether anything has been sent or received by the kernel path.
    fn has_carried(&self) -> bool {
        let counters = [&self.bytes, &self.sending.kernel_bytes, &self.reading.kernel_bytes];
        counters.iter().any(|counter| counter.load(Relaxed) > 0)
    }

    /// A program image, or a process that the socket is passed to, may come for it until then (CLOCK_MONOTONIC, ns).
    pub fn lend(&self, until: u64) {
        self.loans.fetch_add(1, AcqRel);
        self.lent_until.store(until, Release);
    }

    /// One of those has come. Once all have, nobody else is awaited.
    pub fn take_up_loan(&self) {
        let until = self.lent_until.load(Acquire);
        let one_less = |n: u32| n.checked_sub(1);
        if self.loans.fetch_update(AcqRel, Acquire, one_less).is_ok_and(|before| before == 1) {
            let _ = self.lent_until.compare_exchange(until, 0, AcqRel, Relaxed);
        }
    }

    /// Nobody can come for it any more.
    pub fn end_loans(&self) {
        self.loans.store(0, Relaxed);
        self.lent_until.store(0, Release);
    }

    /// One more process refers to it; false when none does any more, and it is not kept for one to come.
    pub fn add_reference(&self) -> bool {
        let lent = self.lent_until.load(Acquire) != 0;
        self.references.fetch_update(AcqRel, Acquire, |n| (n > 0 || lent).then_some(n + 1)).is_ok()
    }

    /// One more process refers to it; false when none does any more.
    pub fn add_reference_if_used(&self) -> bool {
        self.references.fetch_update(AcqRel, Acquire, |n| (n > 0).then_some(n + 1)).is_ok()
    }

    /// Records why it is not fast.
    pub fn set_reason(&self, reason: Reason) {
        self.reason.store(reason as u8, Relaxed);
    }

    /// Gives the end away by `copy`, to thread `me` of another family: to this one the connection is plain kernel TCP from then
    /// on, without a segment. False, without that, if it has none, or somebody is inside.
    pub fn give_away(&self, me: u32, copy: impl FnOnce()) -> bool {
        let locks = [&self.reading.lock, &self.sending.lock];
        let entered = locks.map(|lock| lock.enter_if_free(me));
        let given = entered == [true; 2] && self.stage() == Stage::Joined;
        if given {
            copy();
            // What is to be said of it at the end, and where, is the new one's.
            self.set_shape(Shape { ring_bytes: 0, slots: 0 });
            self.entry.store(0, Relaxed);
            self.word.store(0, Relaxed);
            self.end_loans();
            self.leave_to_kernel();
        }
        locks.into_iter().zip(entered).filter(|it| it.1).for_each(|(lock, _)| lock.leave(Entered::Alone));
        given
    }

    /// Whatever the socket is from now on goes the kernel path, in every process of the family.
    pub fn leave_to_kernel(&self) {
        self.advance(Stage::Pinned);
        self.read_gate.open();
        self.write_gate.open();
    }

    /// Nobody watches it, nor sleeps on it, but processes of another family.
    pub fn forget_watchers(&self) {
        self.watched.store(0, Relaxed);
        self.reading.resting.0.store(0, Relaxed);
        self.reading.armed.store(0, Relaxed);
    }

    /// Keeps a connection without segment on kernel TCP for good.
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

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::model;
    use loom::cell::UnsafeCell;
    use std::sync::Arc;

    struct Socket {
        gate: Gate,
        plain: UnsafeCell<()>,
    }

    // SAFETY: what the gate is to keep apart; loom finds out where it does not.
    #[allow(unsafe_code, reason = "shares what the gate is to keep apart")]
    unsafe impl Sync for Socket {}

    /// Fails if `Gate::leave` counts with Relaxed, or if `Gate::shut` shuts it whoever is inside.
    #[test]
    fn nobody_is_inside_a_plain_call_once_the_gate_is_shut() {
        model::check(3, || {
            let socket = Arc::new(Socket { gate: Gate(AtomicU32::new(0)), plain: UnsafeCell::new(()) });
            socket.gate.0.share();
            let other = socket.clone();
            let thread = loom::thread::spawn(move || {
                for _ in 0..2 {
                    if other.gate.enter() {
                        other.plain.with_mut(|_| {});
                        other.gate.leave();
                    }
                }
            });
            let shut = socket.gate.shut();
            if shut {
                socket.plain.with_mut(|_| {});
                assert!(socket.gate.is_shut() && !socket.gate.enter());
            }
            thread.join().unwrap();
            assert!(shut || socket.gate.shut());
        });
    }
}
