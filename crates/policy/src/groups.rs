//! The groups that are kept of a process.

/// Supplementary groups of a process. A process may have 65,536 (NGROUPS_MAX), and any user may give them to itself who
/// has as many subordinate ones (/etc/subgid).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Groups {
    pub(crate) numbers: Vec<u32>,
    /// Whether the process is in no other group, as far as is known.
    pub(crate) are_all: bool,
}

impl Groups {
    /// Of a process that has more, none is kept: the kernel would take long to tell them.
    pub const MOST: usize = 1024;

    /// These groups of a process, which has no others; of more than [`Groups::MOST`] none.
    pub fn of(mut numbers: Vec<u32>) -> Groups {
        let are_all = numbers.len() <= Groups::MOST;
        if !are_all {
            numbers.clear();
        }
        numbers.shrink_to_fit();
        Groups { numbers, are_all }
    }

    /// The same, of a process that may have given up others: in a user namespace that has subordinate groups
    /// (/etc/subgid), a process may do so (setgroups(2)) of which this namespace says that it is in them.
    pub fn and_perhaps_others(self) -> Groups {
        Groups { are_all: false, ..self }
    }

    /// Whether the process is in no other group, as far as is known.
    pub fn are_all(&self) -> bool {
        self.are_all
    }

    /// Those that are kept.
    pub fn numbers(&self) -> &[u32] {
        &self.numbers
    }
}
