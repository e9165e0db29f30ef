//! How many threads of this process are inside calls on a connection, and what is kept for them.

use underpass_segment::sync::{AtomicU64, SeqCst};

/// How many threads of this process are inside, and what is kept for them: in one word, so that the last of them knows.
pub struct Insiders(AtomicU64);

/// What is kept for those inside.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    Nothing,
    /// A descriptor of the library's own.
    Descriptor(i32),
    /// The end, of which this process has no descriptor any more.
    End,
}

impl Insiders {
    const KEPT_AT: u32 = 32;
    const END: u32 = u32::MAX;

    fn count(word: u64) -> u32 {
        word as u32
    }

    fn kept(word: u64) -> Kept {
        match (word >> Self::KEPT_AT) as u32 {
            0 => Kept::Nothing,
            Self::END => Kept::End,
            above => Kept::Descriptor(above as i32 - 1),
        }
    }

    pub fn any(&self) -> bool {
        Self::count(self.0.load(SeqCst)) > 0
    }

    pub fn enter(&self) {
        self.0.fetch_add(1, SeqCst);
    }

    /// One thread comes out. Returns what the last one has to let go of.
    pub fn come_out(&self) -> Kept {
        let less = |word| match Self::count(word) {
            // A child that a signal handler has forked during the call does not count it.
            0 => None,
            1 => Some(0),
            _ => Some(word - 1),
        };
        let before = self.0.fetch_update(SeqCst, SeqCst, less).unwrap_or(0);
        if Self::count(before) == 1 { Self::kept(before) } else { Kept::Nothing }
    }

    /// Keeps this for those inside, in place of what was kept; false if there are none.
    pub fn keep(&self, kept: Kept) -> bool {
        let kept = match kept {
            Kept::Nothing => 0,
            Kept::Descriptor(fd) => fd as u32 + 1,
            Kept::End => Self::END,
        };
        let kept = u64::from(kept) << Self::KEPT_AT;
        let keep = |word| (Self::count(word) > 0).then_some(kept | u64::from(Self::count(word)));
        self.0.fetch_update(SeqCst, SeqCst, keep).is_ok()
    }

    pub fn keeps(&self, fd: i32) -> bool {
        Self::kept(self.0.load(SeqCst)) == Kept::Descriptor(fd)
    }

    /// Notes that no thread is inside, and returns what was kept.
    pub fn clear(&self) -> Kept {
        Self::kept(self.0.swap(0, SeqCst))
    }
}
