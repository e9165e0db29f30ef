//! What a process says of an end in one word: an enum, in memory that is zeroed at first.

use core::marker::PhantomData;
use core::sync::atomic::Ordering;
use underpass_segment::sync::AtomicU32;

/// Whether the channel of an end is there for this process, and may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Attachment {
    /// The channel is not attached.
    Absent = 0,
    /// A thread attaches it.
    Working,
    /// The channel is attached.
    Present,
    /// The channel is attached, but this process has gone to the kernel path for good.
    Confined,
    /// As [`Attachment::Present`], but no send or receive has used it yet.
    Untouched,
}

/// Whether the connection of an end is in the statistics: see [`super::count`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Usage {
    /// This process has not used it.
    Unused = 0,
    /// This process has used it, and will report how it fared.
    Counted,
    /// The process that forked this one has used it.
    Elsewhere,
    /// The process that handed it to this one has used it. If this process uses it, this process counts it too: the
    /// last process that has the connection may not know of it.
    Brought,
    /// This process has reported how it fared.
    Reported,
}

impl From<u32> for Attachment {
    #[inline(always)]
    fn from(word: u32) -> Attachment {
        match word {
            1 => Attachment::Working,
            2 => Attachment::Present,
            3 => Attachment::Confined,
            4 => Attachment::Untouched,
            _ => Attachment::Absent,
        }
    }
}

impl From<Attachment> for u32 {
    fn from(state: Attachment) -> u32 {
        state as u32
    }
}

impl From<u32> for Usage {
    fn from(word: u32) -> Usage {
        match word {
            1 => Usage::Counted,
            2 => Usage::Elsewhere,
            3 => Usage::Brought,
            4 => Usage::Reported,
            _ => Usage::Unused,
        }
    }
}

impl From<Usage> for u32 {
    fn from(state: Usage) -> u32 {
        state as u32
    }
}

/// A word that has one of the states. Zeroed memory is the first of them.
#[repr(transparent)]
pub struct State<T>(AtomicU32, PhantomData<T>);

impl<T: Copy + From<u32> + Into<u32>> State<T> {
    #[inline(always)]
    pub fn load(&self, order: Ordering) -> T {
        self.0.load(order).into()
    }

    pub fn store(&self, state: T, order: Ordering) {
        self.0.store(state.into(), order);
    }

    pub fn swap(&self, state: T, order: Ordering) -> T {
        self.0.swap(state.into(), order).into()
    }

    pub fn compare_exchange(&self, from: T, to: T, success: Ordering, failure: Ordering) -> Result<T, T> {
        self.0.compare_exchange(from.into(), to.into(), success, failure).map(T::from).map_err(T::from)
    }
}
