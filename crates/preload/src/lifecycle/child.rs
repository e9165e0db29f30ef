//! A process is forked: the child has a reference to every end that it knows, and none of its parent's other threads.

use super::{adopt, exit};
use crate::connection::handle::{HIGHEST, handle};
use crate::connection::insiders::Kept;
use crate::connection::look::{for_each_end, forget_looks};
use crate::connection::references::{drop_reference, take_back_what_is_left};
use crate::connection::share::set_made_input;
use crate::connection::state::{Attachment, Usage};
use crate::connection::{lines, lost, unclaimed};
use crate::guest::departure::{self, Lending};
use crate::guest::table::{self, Known};
use crate::guest::{family, forked, kernel_table, memory, statistics, thread, turn};
use crate::watch::{epoll, set};
use core::ptr::NonNull;
use libc::pid_t;
use underpass_segment::sync::{AtomicU64, Relaxed};
use underpass_segment::{kernel, lock, of_each_thread, sysv, tap};

of_each_thread! {
    /// What this thread has counted for the child that it is forking; `None` if it is not forking, or could not count.
    static COUNTED: Option<NonNull<Counted>> = None;
}

/// `call` makes a process with a copy of this one's memory, and returns in both, or in this one alone.
pub fn forked(call: impl FnOnce() -> pid_t) -> pid_t {
    forked::check();
    adopt::recognise_all();
    epoll::tell_kernel();
    // The child's references are counted before it exists: the parent may close its own before the child runs. Other
    // threads are not kept out meanwhile (a handler of pthread_atfork may wait for them): the child corrects the
    // difference.
    let lending = Lending::begin();
    let counted = Counted::for_child();
    let outer = COUNTED.replace(counted.as_ref().map(NonNull::from));
    let pid = call();
    if pid == 0 {
        forked::check();
    } else if let Some(counted) = &counted {
        counted.conclude(u32::try_from(pid).ok());
    }
    COUNTED.set(outer);
    drop(lending);
    pid
}

/// What a forked child does before anything else: see [`forked::check`].
pub fn become_child() {
    let before = thread::after_fork();
    lock::note_forker(before);
    departure::after_fork();
    exit::after_fork();
    // A child does not inherit its parent's mlockall(2).
    sysv::set_locking(false);
    family::after_fork();
    lines::after_fork();
    tap::after_fork();
    set::after_fork(before);
    turn::after_fork();
    // SAFETY: a value in the frame of `forked`, which this thread is inside.
    set_up_child(COUNTED.get().map(|it| unsafe { it.as_ref() }));
    epoll::after_fork();
    kernel_table::after_fork();
    statistics::identify();
}

/// The ends of which a fork has counted the child's references: a bit for each, in memory that the child gets a copy
/// of.
///
/// Meanwhile other threads of the parent use new connections and close old ones. The child drops the references that
/// were counted and whose ends are not in its table. An end that is in its table and was not counted may have ended
/// before the child runs, so the child does not use it. (The forking thread cannot have passed such a connection on to
/// the child.)
pub struct Counted {
    words: *const AtomicU64,
    count: usize,
    /// The child's place among the members of the family.
    member: Option<u32>,
}

impl Counted {
    /// Counts; `None` without address space.
    pub fn for_child() -> Option<Counted> {
        let highest = HIGHEST.load(Relaxed) as usize;
        let nothing = Counted { words: core::ptr::null(), count: 0, member: None };
        let Some(family) = family::existing().filter(|_| highest > 0) else { return Some(nothing) };
        let count = highest.div_ceil(64);
        let words: *const AtomicU64 = memory::reserve(count * size_of::<u64>()).cast();
        if words.is_null() {
            return None;
        }
        let mut member = family.expect();
        if member.is_none() {
            take_back_what_is_left(family);
            member = family.expect();
        }
        let counted = Counted { words, count, member };
        let count_all = || {
            for fd in 0..table::highest() {
                if let Known::Connection(index) = table::get(fd)
                    && let Some((word, bit)) = counted.place(index)
                    && word.load(Relaxed) & bit == 0
                    // Another thread may have closed it just now.
                    && family.add_reference(index, member)
                {
                    word.fetch_or(bit, Relaxed);
                }
            }
        };
        // Inside the meeting: an end that another thread joins has either joined before, so that the child has its
        // channel, or not at all.
        if family::with_meeting_surely(|_| count_all()).is_none() {
            count_all();
        }
        Some(counted)
    }

    fn place(&self, index: u32) -> Option<(&AtomicU64, u64)> {
        let at = index as usize / 64;
        // SAFETY: there are `count` words; zeroed memory is a valid one.
        (at < self.count).then(|| (unsafe { &*self.words.add(at) }, 1 << (index % 64)))
    }

    fn has(&self, index: u32) -> bool {
        self.place(index).is_some_and(|(word, bit)| word.load(Relaxed) & bit != 0)
    }

    /// The fork is over: `child` is the child's number in the parent, or `None` if there is no child.
    pub fn conclude(&self, child: Option<u32>) {
        if child.is_none() {
            self.let_go_unless(|_| false);
        }
        if let (Some(family), Some(member)) = (family::existing(), self.member) {
            family.forked(member, child);
        }
    }

    fn let_go_unless(&self, is_had: impl Fn(u32) -> bool) {
        let Some(family) = family::existing() else { return };
        for index in (0..self.count as u32 * 64).filter(|&index| self.has(index) && !is_had(index)) {
            family.forget_reference(index, self.member);
            drop_reference(family, index, None, None);
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: the mapping is this value's own.
            unsafe { memory::release(self.words.cast_mut().cast(), self.count * size_of::<u64>()) };
        }
    }
}

/// In a forked child: the parent has `counted` the references to its ends, or has left that to the child. Repairs what
/// the parent's other threads were in the middle of.
pub fn set_up_child(counted: Option<&Counted>) {
    set_made_input(None);
    unclaimed::forget();
    lost::forget();
    forget_looks();
    let handles = || (0..HIGHEST.load(Relaxed)).filter_map(|index| Some((index, handle(index)?)));
    for (_, handle) in handles() {
        handle.descriptors.store(0, Relaxed);
        if let Kept::Descriptor(kept) = handle.inside.clear() {
            table::set(kept, Known::Nothing);
            kernel::close(kept);
        }
        handle.lookers.store(0, Relaxed);
        handle.relinquished.store(false, Relaxed);
        if handle.usage.load(Relaxed) != Usage::Unused {
            handle.usage.store(Usage::Elsewhere, Relaxed);
        }
        let _ = handle.attachment.compare_exchange(Attachment::Working, Attachment::Absent, Relaxed, Relaxed);
    }
    for fd in 0..table::highest() {
        let Known::Connection(index) = table::get(fd) else { continue };
        match handle(index) {
            Some(handle) if counted.is_none_or(|it| it.has(index)) => {
                handle.descriptors.fetch_add(1, Relaxed);
            }
            _ => {
                table::set(fd, Known::Nothing);
            }
        }
    }
    for (_, handle) in handles().filter(|(_, handle)| handle.descriptors.load(Relaxed) == 0) {
        handle.attachment.store(Attachment::Absent, Relaxed);
    }
    match counted {
        Some(counted) => {
            counted.let_go_unless(|index| handle(index).is_some_and(|it| it.descriptors.load(Relaxed) > 0));
        }
        None => for_each_end(|family, index, _| {
            family.end(index).owners.add_child();
        }),
    }
    let Some(family) = family::existing() else { return };
    let expected = counted.and_then(|it| it.member);
    let member = expected.or_else(|| family.join());
    family::become_member(member);
    match expected {
        Some(member) => family.begin(member),
        None => for_each_end(|family, index, _| family.note_reference(index, member)),
    }
}
