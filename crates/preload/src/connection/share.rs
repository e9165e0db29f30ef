//! A connection that several descriptors or several processes have.

use super::count::{ELSEWHERE, UNCOUNTED};
use super::ending::{drop_reference, forget_kept, release, take_back_what_is_left};
use super::find::end_lost;
use super::inside::Kept;
use super::look::{forget_looks, look_at};
use super::{ABSENT, Connection, HIGHEST, Handle, WORKING, handle, known, recognise};
use crate::guest::table::{self, Known};
use crate::guest::{family, forked, memory, thread};
use underpass_segment::family::Family;
use underpass_segment::kernel;
use underpass_segment::switch::Ready;
use underpass_segment::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};

impl Connection {
    /// Whether it has several descriptors in this process.
    pub fn has_duplicates(&self) -> bool {
        handle(self.index).is_some_and(|handle| handle.descriptors.load(Relaxed) > 1)
    }

    /// Its descriptors in this process.
    pub fn descriptors(&self) -> impl Iterator<Item = i32> {
        let others = if self.has_duplicates() { table::highest() } else { 0 };
        (0..others).filter(|&fd| fd != self.fd && self.is_at(fd)).chain([self.fd])
    }

    fn is_at(&self, fd: i32) -> bool {
        table::get(fd) == Known::Connection(self.index)
    }

    /// A descriptor of the socket at this time: see [`open_descriptor`].
    pub fn open_descriptor(&self) -> Option<i32> {
        open_descriptor(self.index, self.fd)
    }

    /// The connection by another descriptor of the socket.
    pub fn by(&self, fd: i32) -> Connection {
        Connection { fd, ..*self }
    }

    /// Whether its descriptor is the standard input that this process, or its child of vfork, has made for the program that it is
    /// about to execute. What a process was given as its own, its children have without a purpose.
    pub fn is_made_input(&self) -> bool {
        // The table is this process's, also for its child of vfork.
        let was_its_own = || table::get(libc::STDIN_FILENO) == Known::Connection(self.index);
        self.fd == libc::STDIN_FILENO && (INPUT.load(Relaxed) == self.index + 1 || !was_its_own())
    }

    /// Learns the cookie of its socket, unless it is known: from then on the connection can be looked for by that.
    pub fn learn_cookie(&self) {
        let known = &self.end.cookie;
        if known.load(Relaxed) == 0
            && !thread::is_vfork_child()
            && let Ok(cookie) = kernel::cookie(self.fd)
        {
            known.store(cookie, Relaxed);
        }
    }

    /// Whether no other process has it.
    pub fn is_last(&self) -> bool {
        self.end.references.load(Relaxed) == 1
    }

    /// Once it was to be handed over: whether something is unread that nobody can put on the kernel path.
    pub fn has_unread_out_of_reach(&self) -> bool {
        let is_over = || kernel::counters(self.fd).is_ok_and(|it| it.state == kernel::CLOSED);
        self.port_even_confined().is_some_and(|port| !port.has_left()) && !is_over()
    }

    /// Whether something lies unread in its ring, or may.
    pub fn has_unread(&self) -> bool {
        self.joined_port().is_some_and(|port| !port.has_left() && port.ready() != Ready::No)
    }
}

/// 1 + the index of the connection that this process has made its standard input since it was forked; 0: none.
static INPUT: AtomicU32 = AtomicU32::new(0);

/// `copy` is a new descriptor for what `fd` is.
pub fn duplicate(fd: i32, copy: i32) {
    if thread::is_vfork_child() || copy < 0 {
        return;
    }
    forget_closed(copy);
    let it = match recognise(fd) {
        Some(connection) => Known::Connection(connection.index),
        None => table::get(fd),
    };
    if let Known::Connection(index) = it
        && let Some(handle) = handle(index)
    {
        handle.descriptors.fetch_add(1, AcqRel);
    }
    table::set(copy, it);
    if matches!(it, Known::Nothing | Known::Other) {
        crate::watch::epoll::duplicate(fd, copy);
    }
    if let Some(connection) = known(copy) {
        if copy == libc::STDIN_FILENO {
            INPUT.store(connection.index + 1, Relaxed);
        }
        connection.mind_stdio();
    }
    if let Some(connection) = known(fd).filter(|it| it.end.watched.load(Relaxed) != 0 && !it.end.is_watched_unseen()) {
        crate::watch::epoll::wake_by_itself(connection);
    }
}

/// The kernel has just given out the number `fd`: whatever it was known as is closed. libc closes some descriptors by calls
/// of its own.
pub fn forget_closed(fd: i32) {
    if thread::is_vfork_child() {
        return;
    }
    if !crate::watch::epoll::forget_set(fd) && table::get(fd) == Known::Nothing {
        return;
    }
    forked::check();
    table::next_generation(fd);
    if let Known::Connection(index) = table::set(fd, Known::Nothing) {
        release(index, None);
    }
}

/// Another descriptor of the same connection.
pub(super) fn twin(connection: Connection) -> Option<i32> {
    (0..table::highest()).find(|&fd| fd != connection.fd && connection.is_at(fd))
}

/// A descriptor of the connection at this time: `fd`, or another if that was closed, and may be something else by now.
pub(super) fn open_descriptor(index: u32, fd: i32) -> Option<i32> {
    let is_open = |&fd: &i32| table::get(fd) == Known::Connection(index);
    Some(fd).filter(is_open).or_else(|| (0..table::highest()).find(is_open))
}

/// A fork is about to share every socket.
pub fn recognise_all() {
    for fd in 0..table::highest() {
        if let Known::Socket(_) = table::get(fd) {
            recognise(fd);
        }
    }
}

/// The ends of which a fork has counted the child's references: a bit for each, in memory that the child gets a copy of.
///
/// Meanwhile other threads of the parent use new connections and close old ones. What is counted and not in the child's
/// table the child lets go of; what is there and was not counted may have ended before the child runs, and the child
/// does not have it. (It cannot be one that the thread which forked could have told it of.)
pub struct Counted {
    words: *const AtomicU64,
    count: usize,
    /// What the child will be.
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
                    && family.end(index).add_reference_if_used()
                {
                    word.fetch_or(bit, Relaxed);
                    family.hold(index, member);
                }
            }
        };
        // In the meeting: an end that another thread joins is joined before, so the child has its segment, or not at all.
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

    /// What became of the fork: the child's number, here, or there is none.
    pub fn settle(&self, child: Option<u32>) {
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
            family.let_go(index, self.member);
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

/// In a forked child, of whose ends the parent has `counted` the references or left that to it: puts right what other
/// threads were in the middle of, none of which it has.
pub fn settle_child(counted: Option<&Counted>) {
    INPUT.store(0, Relaxed);
    forget_kept();
    forget_looks();
    let handles = || (0..HIGHEST.load(Relaxed)).filter_map(|index| Some((index, handle(index)?)));
    for (_, handle) in handles() {
        handle.descriptors.store(0, Relaxed);
        if let Kept::Descriptor(kept) = handle.inside.clear() {
            table::set(kept, Known::Nothing);
            kernel::close(kept);
        }
        handle.lookers.store(0, Relaxed);
        handle.parted.store(false, Relaxed);
        if handle.counted.load(Relaxed) != UNCOUNTED {
            handle.counted.store(ELSEWHERE, Relaxed);
        }
        let _ = handle.attached.compare_exchange(WORKING, ABSENT, Relaxed, Relaxed);
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
        handle.attached.store(ABSENT, Relaxed);
    }
    match counted {
        Some(counted) => {
            counted.let_go_unless(|index| handle(index).is_some_and(|it| it.descriptors.load(Relaxed) > 0));
        }
        None => for_each_end(|family, index, _| {
            family.end(index).references.fetch_add(1, AcqRel);
        }),
    }
    let Some(family) = family::existing() else { return };
    let expected = counted.and_then(|it| it.member);
    let member = expected.or_else(|| family.join());
    family::become_member(member);
    match expected {
        Some(member) => family.begin(member),
        None => for_each_end(|family, index, _| family.hold(index, member)),
    }
}

/// Whether any end that this process has is in pool `id`.
pub fn is_pool_used(id: i32) -> bool {
    let Some(family) = family::existing() else { return false };
    (0..HIGHEST.load(Relaxed)).any(|index| {
        let has = |it: &Handle| it.descriptors.load(Relaxed) > 0;
        handle(index).is_some_and(has) && family.end(index).pool_id() == Some(id)
    })
}

/// Lets go of every end (or takes it back), around an execution.
pub fn reference_all(add: bool) {
    for_each_end(|family, index, fd| {
        let connection = Connection::at(family, index, fd);
        if add {
            return rejoin(&connection, family);
        }
        connection.heed_deaths();
        if connection.part() {
            connection.leave_no_gap();
        }
    });
}

/// This process lets go of an end of which it keeps the descriptors: they will be closed without its knowing. The last
/// process keeps its reference until it is gone. Whether it is the last; `None` if it has let go of it already.
pub(super) fn part(family: &Family, index: u32) -> Option<bool> {
    let handle = handle(index)?;
    if handle.parted.swap(true, AcqRel) {
        return None;
    }
    let member = family::member();
    family.let_go(index, member);
    let one_less = |n: u32| (n > 1).then(|| n - 1);
    let last = family.end(index).references.fetch_update(AcqRel, Acquire, one_less).is_err();
    if last {
        family.hold(index, member);
        handle.parted.store(false, Release);
    }
    Some(last)
}

/// Takes the end back: nothing came of what [`part`] was for.
fn rejoin(connection: &Connection, family: &'static Family) {
    let (end, index) = (connection.end, connection.index);
    let Some(handle) = handle(index).filter(|it| it.parted.load(Acquire)) else { return };
    // Of another connection that has the end by now, if the others have ended this one.
    let is_there = end.add_reference_if_used() && {
        let is_same = kernel::cookie(connection.fd) == Ok(end.cookie.load(Relaxed));
        if !is_same {
            drop_reference(family, index, None, None);
        }
        is_same
    };
    if is_there {
        handle.parted.store(false, Release);
        family.hold(index, family::member());
        return;
    }
    // To the others it is over; what there was of it in the ring is lost, if anything.
    for fd in connection.descriptors() {
        if table::replace(fd, Known::Connection(index), Known::Other) {
            crate::watch::epoll::disown(fd);
        }
    }
    handle.descriptors.store(0, Relaxed);
    handle.attached.store(ABSENT, Release);
    if !handle.was_plain.load(Relaxed) {
        end_lost(connection.fd);
    }
}

fn for_each_end(mut what: impl FnMut(&'static Family, u32, i32)) {
    if let Some(family) = family::existing() {
        for_each(|index, fd| what(family, index, fd));
    }
}

/// Calls `what` for every end that this process has, once.
pub fn for_each(mut what: impl FnMut(u32, i32)) {
    for fd in 0..table::highest() {
        if let Known::Connection(index) = table::get(fd) {
            // An end with several descriptors comes up at the first of them only.
            let first = handle(index).is_some_and(|h| h.descriptors.load(Relaxed) == 1)
                || (0..fd).all(|earlier| table::get(earlier) != Known::Connection(index));
            if first {
                look_at(fd, |_| what(index, fd));
            }
        }
    }
}
