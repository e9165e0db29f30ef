//! The members of a family, and which of them have an end: see [`membership`](super::membership).

use crate::kernel::{self, Process};
use crate::layout::laid_out;
use crate::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed};

/// Most members that a family has at one time. What further processes leave is not taken back.
pub(super) const MEMBERS: usize = 512;
/// Value of [`Member::process`] in a place that is being taken, perhaps for a process that is yet to be forked.
pub(super) const TAKEN: u32 = u32::MAX;

laid_out! {
    /// A process of the family. Zeroed memory is a free place.
    #[repr(C)]
    pub(super) struct Member {
        /// Its number; 0: free.
        pub(super) process: AtomicU32,
        /// Its [mappings](super::Family::mappings) when they were last noted: never more than it has. 0: it
        /// executes a program, or ends.
        pub(super) mappings: AtomicU32,
        /// The namespaces in which the number and the time are valid: see [`kernel::namespaces`].
        pub(super) namespaces: AtomicU64,
        /// When it began, in the kernel's terms; 0: not looked up yet.
        pub(super) began: AtomicU64,
        /// While it has no mappings: 1 if a program image takes its place and comes for its ends.
        pub(super) returns: AtomicU32,
    }
}

impl Member {
    /// Whether the process has ended, or its number is another's by now.
    pub(super) fn is_gone(&self, namespaces: u64) -> bool {
        let process = self.process.load(Acquire);
        if matches!(process, 0 | TAKEN) || self.namespaces.load(Relaxed) != namespaces {
            return false;
        }
        match kernel::process(process) {
            Process::Gone => true,
            Process::Unknown => false,
            Process::Began(at) => match self.began.compare_exchange(0, at, AcqRel, Acquire) {
                Ok(_) => false,
                Err(began) => began != at,
            },
        }
    }
}

laid_out! {
    /// The members of a family. Zeroed memory is nobody.
    #[repr(C, align(64))]
    pub(super) struct Members {
        pub(super) places: [Member; MEMBERS],
        /// Where the next free place may be.
        pub(super) next: AtomicU32,
        /// PID namespace and number of the process that takes back what others have left; 0: none does.
        pub(super) sweeper: AtomicU64,
        /// When a process last found that no member was gone.
        pub(super) swept: AtomicU64,
    }
}

laid_out! {
    /// The members that have an end, a bit for each.
    #[repr(C, align(64))]
    pub(crate) struct Holders([AtomicU64; MEMBERS / 64]);
}

impl Holders {
    /// 64 members in each.
    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.0
    }

    /// The word and the bit of `member`.
    pub(super) fn place(&self, member: u32) -> (&AtomicU64, u64) {
        (&self.0[member as usize / 64 % self.0.len()], 1 << (member % 64))
    }

    /// Leaves only `member`, or none.
    pub(super) fn reset(&self, member: Option<u32>) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
        if let Some((word, bit)) = member.map(|member| self.place(member)) {
            word.store(bit, Relaxed);
        }
    }

    pub(super) fn has(&self, member: u32) -> bool {
        let (word, bit) = self.place(member);
        word.load(Acquire) & bit != 0
    }

    /// The members, as indices.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let words = self.0.iter().zip((0..).step_by(64)).map(|(word, first)| (word.load(Acquire), first));
        words.flat_map(|(word, first)| (0..64).filter(move |bit| word >> bit & 1 != 0).map(move |bit| first + bit))
    }

    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|word| word.load(Acquire).count_ones()).sum()
    }
}
