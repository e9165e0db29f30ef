//! What this process keeps of an end, beside the end itself.

use super::insiders::Insiders;
use super::state::{Attachment, State, Usage};
use crate::guest::memory::{PIECE, Sparse};
use crate::guest::table;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use underpass_segment::channel::Channel;
use underpass_segment::family::MAX_ENDS;
use underpass_segment::sync::{Acquire, AtomicBool, AtomicU32, AtomicU64, Relaxed};

/// What this process keeps of an end.
pub struct Handle {
    /// Descriptors of this process that refer to it; 0: not in use.
    pub descriptors: AtomicU32,
    /// Threads of this process that are inside a call on it.
    pub inside: Insiders,
    /// Looks at it that have not ended: see [`super::look`].
    pub lookers: AtomicU32,
    /// This process has no reference any more, though it has descriptors: see [`relinquish`].
    ///
    /// [`relinquish`]: super::references::relinquish
    pub relinquished: AtomicBool,
    /// Both directions were on the kernel path for good when this process relinquished the end.
    pub was_plain: AtomicBool,
    /// The event in which the connection was found: see [`super::Connection::is_as_of`].
    pub found: AtomicU64,
    /// Whether `channel` is there, and may be used.
    pub attachment: State<Attachment>,
    /// Whether the connection is in the statistics: see [`super::count`].
    pub usage: State<Usage>,
    /// What the end's counters said when this process began to use it.
    pub before: [AtomicU64; COUNTERS],
    /// What the kernel had sent and received of it when it was settled: see [`super::Connection::settle`].
    pub settled: [AtomicU64; 2],
    /// What is remembered of it while nobody has claimed it.
    pub unclaimed: Unclaimed,
    /// Its channel.
    pub channel: UnsafeCell<MaybeUninit<Channel>>,
}

/// What a process remembers of an end that it has let go of. Zeroed memory is nothing.
pub struct Unclaimed {
    /// [`underpass_segment::end::Owners::lent_until`] when it was let go of.
    pub until: AtomicU64,
    /// 1: it is in the list.
    pub listed: AtomicU32,
    /// The next in the list: index + 1; 0: none.
    pub next: AtomicU32,
}

/// Counters of an end that are reported.
pub const COUNTERS: usize = 6;

static HANDLES: Sparse<Handle, { MAX_ENDS / PIECE }> = Sparse::new();
/// One more than the highest index of an end that this process ever had.
pub static HIGHEST: AtomicU32 = AtomicU32::new(0);

/// What this process keeps of the end with this index; `None` without address space.
#[inline(always)]
pub fn handle(index: u32) -> Option<&'static Handle> {
    // SAFETY: handles are never unmapped; zeroed memory is an unused one.
    HANDLES.need(index as usize).map(|handle| unsafe { handle.as_ref() })
}

impl Handle {
    /// Whether the channel is there, and may be used.
    pub fn is_attached(&self) -> bool {
        matches!(self.attachment.load(Acquire), Attachment::Present | Attachment::Untouched)
    }

    /// This process has the end from now on.
    pub fn begin(&self) {
        self.relinquished.store(false, Relaxed);
        // A connection that comes back after this process had reported it, or another connection with the same end, is
        // counted anew.
        let _ = self.usage.compare_exchange(Usage::Reported, Usage::Unused, Relaxed, Relaxed);
        self.before.iter().for_each(|counter| counter.store(0, Relaxed));
        self.found.store(table::next_event(), Relaxed);
    }
}
