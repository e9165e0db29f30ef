//! The row of this process in the statistics of `underpass run --stats`.

use super::filter::is_confined;
use super::settings::counters;
use core::ops::Deref;
use core::ptr;
use underpass_segment::kernel;
use underpass_segment::stats::{Counters, Process, Record};
use underpass_segment::sync::{Acquire, AtomicPtr, AtomicU64, Relaxed, Release};

/// The [`Process`] under which this process counts, and the row of the statistics that it has taken.
static COUNTS_AS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static ROW: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());

/// Finds out under which number and name this process counts, so that no system call is needed when it takes a row:
/// that may be in a signal handler, or under a seccomp filter. A child that is forked under a filter goes on counting
/// as its parent.
pub fn identify() {
    if counters().is_none() || is_confined() {
        return;
    }
    let mut name = [0u8; 16];
    // SAFETY: PR_GET_NAME writes at most 16 bytes.
    unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
    let pid = kernel::process_id() as u32;
    let began = if let kernel::Process::Began(when) = kernel::process(pid) { when } else { 0 };
    let Process(words) = Process::new(pid, began, name);
    COUNTS_AS.iter().zip(words).for_each(|(to, word)| to.store(word, Relaxed));
    ROW.store(core::ptr::null_mut(), Release);
}

/// This process's counters, if the statistics are wanted and their memory can be attached.
pub fn record() -> Option<Row> {
    counters().map(Row)
}

/// A poll, a select or an epoll set is about to sleep in the kernel with a connection of the library's. A process that
/// has counted nothing has no connection of its own yet, and takes no row for this.
pub fn count_poll_sleep() {
    // SAFETY: null or a record that is never unmapped.
    if let Some(taken) = unsafe { ROW.load(Acquire).as_ref() } {
        taken.poll_sleeps.fetch_add(1, Relaxed);
    }
}

/// A process's row of the statistics, which it takes when it first counts something.
pub struct Row(Counters);

impl Deref for Row {
    type Target = Record;

    fn deref(&self) -> &Record {
        // SAFETY: null or a record that is never unmapped.
        if let Some(taken) = unsafe { ROW.load(Acquire).as_ref() } {
            return taken;
        }
        let row = self.0.row(Process(COUNTS_AS.each_ref().map(|word| word.load(Relaxed))));
        ROW.store(ptr::from_ref(row).cast_mut(), Release);
        row
    }
}
