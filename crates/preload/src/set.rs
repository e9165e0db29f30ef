//! The library's copy of an epoll set: which stream sockets the program has registered, how, and which are active.

use crate::memory::{PIECE, Sparse, reserve};
use crate::process;
use crate::table;
use core::cell::UnsafeCell;
use underpass_segment::clock::give_way;
use underpass_segment::kernel;
use underpass_segment::link::{ALONE, Group, Link};
use underpass_segment::sync::{
    AcqRel, Acquire, AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Relaxed, Release, SeqCst, pause,
};
use underpass_segment::wait::Memory;

const MAX_INNER: usize = 8;
const BUCKETS: usize = 1 << 12;
/// Pools of one set whose connections sleep as a group; those of further pools are woken one by one.
const MAX_POOLS: usize = 512;
/// End of a chain.
pub const NONE: u32 = 0;

/// One registration. Kept by descriptor number; zeroed memory is none.
#[derive(Clone, Copy)]
pub struct Item {
    /// As the program gave them.
    pub events: u32,
    /// As the program gave it.
    pub data: u64,
    /// End of the ring's data that was last reported (edge-triggered).
    pub seen: u64,
    /// When there last were news, in ticks.
    pub last_news: u64,
    /// The kernel's registration asks for more, to wake a sleeper.
    pub kicked: bool,
    /// The set is counted among those who rely on the connection's waiting flag.
    pub resting: bool,
    /// One-shot, and used up.
    disarmed: bool,
    live: bool,
    generation: u32,
    /// The kernel has an older registration.
    stale: bool,
    /// Removed, and the kernel does not know.
    gone: bool,
    active: bool,
    next: u32,
}

impl Item {
    /// Whether any of `events` is to be reported now.
    pub fn wants(&self, events: u32) -> bool {
        self.live && !self.gone && !self.disarmed && self.events & events != 0
    }

    fn is_current(&self, fd: i32) -> bool {
        self.live && self.generation == table::generation(fd)
    }

    /// See [`Item::seen`].
    pub fn set_seen(&mut self, seen: u64) {
        self.seen = seen;
    }

    /// See [`Item::last_news`].
    pub fn set_last_news(&mut self, ticks: u64) {
        self.last_news = ticks;
    }

    /// See [`Item::resting`]; returns what it was.
    pub fn set_resting(&mut self, resting: bool) -> bool {
        core::mem::replace(&mut self.resting, resting)
    }

    /// See [`Item::kicked`].
    pub fn set_kicked(&mut self, kicked: bool) {
        self.kicked = kicked;
    }

    /// One-shot: used up, or armed again.
    pub fn set_disarmed(&mut self, disarmed: bool) {
        self.disarmed = disarmed;
    }
}

/// A pool in which the set has connections, and which descriptors they are.
#[derive(Clone, Copy)]
struct Members {
    pool: *const u8,
    group: *const Group,
    number: u32,
    fds: [i32; 64],
}

struct Inside {
    members: *mut Members,
    member_count: usize,
    items: Sparse<Item, { table::MAX_FDS / PIECE }>,
    buckets: *mut u32,
    count: u32,
    active: Sparse<i32, { table::MAX_FDS / PIECE }>,
    active_count: usize,
    stale_count: usize,
    turn: usize,
}

/// What a look at an active socket says of its future.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scan {
    /// It stays active.
    Keep,
    /// It is left to the kernel.
    Leave,
    /// It stays active, and no more need be looked at.
    Enough,
}

/// What becomes of a change of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Later {
    /// It is made; the kernel will be told.
    Done,
    /// There is no such registration for the program, though the kernel has one.
    Absent,
    /// It is the kernel's to make.
    Now,
}

/// The right to make a connection a member of its set's group, while the set is scanned.
pub struct Joining<'a>(&'a mut Inside);

/// The copy. Made once per epoll descriptor in use, never unmapped, used again.
pub struct Set {
    /// Number of the thread that is inside; 0 if none is.
    lock: AtomicU32,
    inside: UnsafeCell<Inside>,
    next_free: AtomicPtr<Set>,
    inner: [AtomicI32; MAX_INNER],
    epfd: AtomicI32,
    is_inner: AtomicU32,
    /// What `inside` says of the registered and of the active sockets, for a look without the lock.
    count: AtomicU32,
    active_count: AtomicU32,
    /// Pools in which it has a group.
    groups: AtomicU32,
    /// All sets ever made, linked.
    next_made: AtomicPtr<Set>,
    mean_wait: AtomicU64,
    waits: AtomicU32,
    bells_before: AtomicU32,
    asked: AtomicU64,
    others_first: AtomicBool,
}

// SAFETY: `inside` is used only by the thread that holds `lock`.
unsafe impl Sync for Set {}

static FREE: AtomicPtr<Set> = AtomicPtr::new(core::ptr::null_mut());
static MADE: AtomicPtr<Set> = AtomicPtr::new(core::ptr::null_mut());

/// In a forked child: the groups are the parent's. Inherited sets take groups of the child's own when they need them.
pub fn after_fork() {
    for set in made() {
        set.groups.store(0, Relaxed);
        set.lock.store(0, Relaxed);
        set.locked(|inside| inside.member_count = 0);
    }
}

/// The process ends: others may have its groups.
pub fn leave() {
    // Not one that this thread is inside, below the signal handler that ends the process.
    for set in made().filter(|set| set.lock.load(Relaxed) == 0) {
        set.locked(Inside::leave_groups);
    }
}

/// A pool is about to be detached.
pub fn forget_pool(pool: *const u8) {
    for set in made() {
        set.locked(|inside| {
            for index in (0..inside.member_count).rev() {
                if inside.members_at(index).pool == pool {
                    inside.members_at(index).give_back();
                    set.groups.fetch_sub(1, Relaxed);
                    let last = inside.member_count - 1;
                    *inside.members_at(index) = *inside.members_at(last);
                    inside.member_count = last;
                }
            }
        });
    }
}

/// All sets of this process.
pub fn made() -> impl Iterator<Item = &'static Set> {
    // SAFETY: sets are never unmapped.
    core::iter::successors(unsafe { MADE.load(Acquire).as_ref() }, |set| unsafe {
        set.next_made.load(Acquire).as_ref()
    })
}

impl Set {
    /// An empty set; `None` without address space.
    pub fn make() -> Option<*mut Set> {
        let free = FREE.swap(core::ptr::null_mut(), AcqRel);
        // SAFETY: sets are never unmapped.
        if let Some(set) = unsafe { free.as_ref() } {
            // The rest of the list goes back.
            let rest = set.next_free.swap(core::ptr::null_mut(), Relaxed);
            if !rest.is_null() {
                // SAFETY: as above.
                Set::push_free(unsafe { &*rest });
            }
            return Some(free);
        }
        let set: *mut Set = reserve(size_of::<Set>()).cast();
        let buckets: *mut u32 = reserve(BUCKETS * size_of::<u32>()).cast();
        let members: *mut Members = reserve(MAX_POOLS * size_of::<Members>()).cast();
        if set.is_null() || buckets.is_null() || members.is_null() {
            return None;
        }
        // SAFETY: fresh memory of our own; zeroed memory is a valid set.
        unsafe {
            let inside = (*set).inside.get();
            (*inside).buckets = buckets;
            (*inside).members = members;
            let mut first = MADE.load(Acquire);
            loop {
                (*set).next_made.store(first, Relaxed);
                match MADE.compare_exchange(first, set, AcqRel, Acquire) {
                    Ok(_) => break,
                    Err(now) => first = now,
                }
            }
        }
        Some(set)
    }

    /// Empties the set for another epoll descriptor.
    pub fn give_back(set: &Set) {
        set.locked(|inside| {
            inside.leave_groups();
            // SAFETY: all are this set's own, and `inside` is this thread's; BUCKETS buckets.
            unsafe {
                inside.items.clear();
                inside.buckets.write_bytes(0, BUCKETS);
            }
            (inside.count, inside.active_count, inside.turn) = (0, 0, 0);
            inside.stale_count = 0;
        });
        for inner in &set.inner {
            inner.store(0, Relaxed);
        }
        set.mean_wait.store(0, Relaxed);
        set.is_inner.store(0, Relaxed);
        set.groups.store(0, Relaxed);
        Set::push_free(set);
    }

    fn push_free(set: &Set) {
        let mut last = set;
        // SAFETY: sets are never unmapped.
        while let Some(next) = unsafe { last.next_free.load(Relaxed).as_ref() } {
            last = next;
        }
        let mut head = FREE.load(Acquire);
        loop {
            last.next_free.store(head, Relaxed);
            match FREE.compare_exchange(head, set as *const Set as *mut Set, AcqRel, Acquire) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    fn locked<T>(&self, what: impl FnOnce(&mut Inside) -> T) -> T {
        let mut rounds = 0u32;
        while self.lock.compare_exchange_weak(0, process::thread(), Acquire, Relaxed).is_err() {
            rounds += 1;
            if rounds.is_multiple_of(64) { give_way() } else { pause() }
        }
        // SAFETY: the lock makes this thread the only one.
        let inside = unsafe { &mut *self.inside.get() };
        let result = what(inside);
        self.count.store(inside.count, Relaxed);
        self.active_count.store(inside.active_count as u32, Relaxed);
        self.lock.store(0, Release);
        result
    }

    /// Sockets registered.
    pub fn count(&self) -> u32 {
        self.count.load(Relaxed)
    }

    /// Registers `fd`, or changes its registration. False without address space.
    #[must_use]
    pub fn put(&self, fd: i32, events: u32, data: u64) -> bool {
        self.locked(|inside| {
            // No more sockets can be active than there are registrations.
            if inside.items.need(fd as u32 as usize).is_none() || inside.active.need(inside.count as usize).is_none() {
                return false;
            }
            let Some(item) = inside.item(fd) else { return false };
            if item.live {
                // It may also be left over from a descriptor of this number that was closed.
                inside.unlink(fd);
            } else {
                inside.count += 1;
            }
            let Some(item) = inside.item(fd) else { return false };
            let active = item.active;
            *item = Item {
                events,
                data,
                seen: item.seen,
                last_news: item.last_news,
                kicked: false,
                resting: item.resting,
                stale: false,
                gone: false,
                disarmed: false,
                live: true,
                generation: table::generation(fd),
                active,
                next: NONE,
            };
            inside.link(fd);
            true
        })
    }

    /// Changes the registration of `fd` (adds, changes, or with `None` removes it) without the kernel, if neither the old
    /// one nor the new one is of a special kind.
    pub fn change_later(&self, fd: i32, wanted: Option<(u32, u64)>, add: bool) -> Later {
        /// Bits of registrations that are level-triggered and of no special kind.
        const PLAIN: u32 = 0xffff;
        self.locked(|inside| {
            let Some(item) = inside.item(fd).filter(|it| it.is_current(fd) && !it.disarmed && !it.kicked) else {
                return Later::Now;
            };
            let (events, data) = wanted.unwrap_or((0, item.data));
            if (item.events | events) & !PLAIN != 0 || item.data != data {
                return Later::Now;
            }
            if item.gone != add {
                // Added twice the kernel has the answer; what is removed, it believes to be there.
                return if item.gone { Later::Absent } else { Later::Now };
            }
            (item.events, item.gone) = (events, wanted.is_none());
            if !core::mem::replace(&mut item.stale, true) {
                inside.stale_count += 1;
            }
            inside.activate(fd);
            Later::Done
        })
    }

    /// Tells the kernel of `fd`'s registration, if it has another.
    pub fn tell(&self, fd: i32, tell: impl FnOnce(Option<(u32, u64)>)) {
        self.locked(|inside| inside.tell(fd, |_, change| tell(change)));
    }

    /// Tells the kernel of every registration of which it has another.
    pub fn tell_all(&self, mut tell: impl FnMut(i32, Option<(u32, u64)>)) {
        self.locked(|inside| {
            if inside.stale_count == 0 {
                return;
            }
            // A changed registration is active until it has been told.
            for index in 0..inside.active_count {
                inside.tell(inside.active_at(index), &mut tell);
            }
            inside.stale_count = 0;
            inside.drop_inactive();
        });
    }

    /// Forgets `fd`.
    pub fn remove(&self, fd: i32) {
        self.locked(|inside| {
            if inside.item(fd).is_some_and(|it| it.live) {
                inside.unlink(fd);
                inside.count -= 1;
                if let Some(item) = inside.item(fd) {
                    (item.live, item.active) = (false, false);
                }
                inside.drop_inactive();
            }
        });
    }

    /// The registration of `fd`.
    pub fn item(&self, fd: i32) -> Option<Item> {
        self.locked(|inside| inside.item(fd).filter(|it| it.is_current(fd)).copied())
    }

    /// Changes the registration of `fd`; not in a signal handler that runs on top of a look at the set.
    pub fn with_item(&self, fd: i32, change: impl FnOnce(&mut Item)) {
        if self.lock.load(Relaxed) == process::thread() {
            return;
        }
        self.locked(|inside| {
            if let Some(item) = inside.item(fd).filter(|it| it.is_current(fd)) {
                change(item);
            }
        });
    }

    /// The socket registered with `data`, if there is exactly one.
    pub fn only_item_with(&self, data: u64) -> Option<i32> {
        self.locked(|inside| {
            let mut found = None;
            let mut at = inside.bucket(data);
            while at != NONE {
                let fd = at as i32 - 1;
                let item = inside.item(fd)?;
                at = item.next;
                if item.is_current(fd) && item.data == data {
                    if found.is_some() {
                        return None;
                    }
                    found = Some(fd);
                }
            }
            found
        })
    }

    /// Has every socket registered with `data` looked at in user space from now on.
    pub fn activate_with(&self, data: u64) {
        self.locked(|inside| {
            let mut at = inside.bucket(data);
            while at != NONE {
                let fd = at as i32 - 1;
                let Some(item) = inside.item(fd) else { return };
                at = item.next;
                if item.data == data {
                    inside.activate(fd);
                }
            }
        });
    }

    /// Has `fd` looked at in user space from now on.
    pub fn activate(&self, fd: i32) {
        self.locked(|inside| inside.activate(fd));
    }

    /// Whether any socket is looked at in user space.
    pub fn is_active(&self) -> bool {
        self.active_count.load(Relaxed) > 0
    }

    /// Shows the active sockets to `look`, until it has seen enough. Those that it says so of are left to the kernel from
    /// then on.
    pub fn scan(&self, look: impl FnMut(i32, &mut Item, &mut Joining<'_>) -> Scan) {
        self.scan_from(|_| 0, look);
    }

    /// The same, going on where the last such scan has seen enough: all have their turn, however few are told at once.
    pub fn scan_in_turn(&self, look: impl FnMut(i32, &mut Item, &mut Joining<'_>) -> Scan) {
        let stopped = self.scan_from(|inside| inside.turn, look);
        self.locked(|inside| inside.turn = stopped);
    }

    /// Where it stopped.
    fn scan_from(
        &self,
        start: impl FnOnce(&Inside) -> usize,
        mut look: impl FnMut(i32, &mut Item, &mut Joining<'_>) -> Scan,
    ) -> usize {
        self.locked(|inside| {
            let count = inside.active_count;
            if count == 0 {
                return 0;
            }
            let start = start(inside) % count;
            let mut stopped = start + 1;
            let mut left = false;
            for step in 0..count {
                let index = if start + step < count { start + step } else { start + step - count };
                let fd = inside.active_at(index);
                let Some(mut item) = inside.item(fd).copied() else { continue };
                let verdict = if item.is_current(fd) { look(fd, &mut item, &mut Joining(inside)) } else { Scan::Leave };
                item.active = verdict != Scan::Leave || item.stale;
                if let Some(kept) = inside.item(fd) {
                    *kept = item;
                }
                match verdict {
                    Scan::Keep => {}
                    Scan::Leave => left = true,
                    Scan::Enough => {
                        stopped = index;
                        break;
                    }
                }
            }
            if left {
                inside.drop_inactive();
            }
            stopped
        })
    }

    /// Looks whether any group of the set was rung, and makes the sockets it was rung for active. Many at once.
    pub fn answer_bells(&self) -> bool {
        if self.groups.load(Relaxed) == 0 {
            return false;
        }
        self.locked(|inside| {
            let mut any = false;
            for index in 0..inside.member_count {
                let members = inside.members_at(index);
                // SAFETY: the pool is attached: `forget_pool` is told before it is not.
                let group = unsafe { &*members.group };
                if group.rung.load(Relaxed) == 0 {
                    continue;
                }
                any = true;
                let mut rung = group.rung.swap(0, AcqRel);
                let fds = members.fds;
                while rung != 0 {
                    inside.activate(fds[rung.trailing_zeros() as usize] - 1);
                    rung &= rung - 1;
                }
            }
            any
        })
    }

    /// The number to raise the waiting flag of `fd`'s segment to, so that it wakes this set.
    pub fn number_for(&self, inside: &mut Joining<'_>, fd: i32, link: &Link) -> u32 {
        if self.is_inner() {
            return ALONE;
        }
        let number = inside.0.join(fd, link);
        self.groups.store(inside.0.member_count as u32, Relaxed);
        number
    }

    /// Tells every group whether this set sleeps. Going to sleep: false when one has been rung.
    pub fn set_asleep(&self, asleep: bool) -> bool {
        if self.groups.load(Relaxed) == 0 {
            return true;
        }
        self.locked(|inside| {
            let mut quiet = true;
            for index in 0..inside.member_count {
                // SAFETY: as in `answer_bells`.
                let group = unsafe { &*inside.members_at(index).group };
                if asleep {
                    // SeqCst: asleep before rung is looked at; the sender rings before it looks whether any sleeps.
                    group.asleep.swap(1, SeqCst);
                    quiet &= group.rung.load(SeqCst) == 0;
                } else {
                    group.asleep.store(0, Relaxed);
                }
            }
            quiet
        })
    }

    /// Notes that another set is registered in this one.
    pub fn add_inner(&self, epfd: i32) {
        for place in &self.inner {
            if place.load(Relaxed) == epfd + 1 || place.compare_exchange(0, epfd + 1, Relaxed, Relaxed).is_ok() {
                return;
            }
        }
    }

    /// Sets registered in this one.
    pub fn inner(&self) -> impl Iterator<Item = i32> {
        self.inner.iter().map(|place| place.load(Relaxed)).filter(|&it| it > 0).map(|it| it - 1)
    }

    /// Whether another set is registered in this one.
    pub fn has_inner(&self) -> bool {
        self.inner().next().is_some()
    }

    /// Somebody sleeps on the set from outside: the kernel must know every registration as it is.
    pub fn set_inner(&self) {
        if self.is_inner.swap(1, Relaxed) != 0 {
            return;
        }
        // Those that sleep as members of the group are to be woken one by one from now on.
        self.locked(|inside| {
            for index in 0..inside.member_count {
                for fd in inside.members_at(index).fds {
                    inside.activate(fd - 1);
                }
            }
            inside.leave_groups();
            self.groups.store(0, Relaxed);
        });
    }

    /// See [`Set::set_inner`].
    pub fn is_inner(&self) -> bool {
        self.is_inner.load(Relaxed) != 0
    }

    /// Its descriptor.
    pub fn epfd(&self) -> i32 {
        self.epfd.load(Relaxed)
    }

    /// Says which its descriptor is.
    pub fn set_epfd(&self, epfd: i32) {
        self.epfd.store(epfd, Relaxed);
    }

    /// What it remembers of its waits.
    pub fn memory(&self) -> Memory<'_> {
        Memory { mean: &self.mean_wait, waits: &self.waits, bells: &self.bells_before }
    }

    /// When the kernel was last asked, in ticks.
    pub fn asked(&self) -> &AtomicU64 {
        &self.asked
    }

    /// The kernel's descriptors have filled the last answer: the active sockets come first in the next.
    pub fn others_first(&self) -> &AtomicBool {
        &self.others_first
    }
}

impl Members {
    fn give_back(&self) {
        // SAFETY: the pool is attached: `forget_pool` is told before it is not.
        unsafe { &*self.group }.give_back();
    }
}

impl Inside {
    fn members_at(&mut self, index: usize) -> &mut Members {
        debug_assert!(index < MAX_POOLS);
        // SAFETY: MAX_POOLS entries; zeroed memory is never looked at.
        unsafe { &mut *self.members.add(index) }
    }

    fn tell(&mut self, fd: i32, tell: impl FnOnce(i32, Option<(u32, u64)>)) {
        let Some(item) = self.item(fd).filter(|it| it.is_current(fd) && it.stale) else { return };
        item.stale = false;
        if item.gone {
            (item.live, item.active) = (false, false);
            let _ = item;
            self.unlink(fd);
            self.count -= 1;
            tell(fd, None);
        } else {
            tell(fd, Some((item.events, item.data)));
        }
    }

    fn leave_groups(&mut self) {
        for index in 0..self.member_count {
            self.members_at(index).give_back();
        }
        self.member_count = 0;
    }

    fn join(&mut self, fd: i32, link: &Link) -> u32 {
        let slot = link.slot() as usize & 63;
        for index in 0..self.member_count {
            let members = self.members_at(index);
            if members.pool == link.pool() {
                members.fds[slot] = fd + 1;
                return members.number;
            }
        }
        if self.member_count == MAX_POOLS {
            return ALONE;
        }
        let Some((number, group)) = link.take_group(kernel::process_id() as u32) else { return ALONE };
        let mut fds = [0; 64];
        fds[slot] = fd + 1;
        self.member_count += 1;
        *self.members_at(self.member_count - 1) = Members { pool: link.pool(), group, number, fds };
        number
    }

    fn item(&mut self, fd: i32) -> Option<&mut Item> {
        // SAFETY: items are this set's own; zeroed memory is a valid one. A negative number is beyond the end.
        self.items.get(fd as u32 as usize).map(|mut item| unsafe { item.as_mut() })
    }

    fn bucket_of(&mut self, data: u64) -> &mut u32 {
        let index = (data.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % BUCKETS;
        // SAFETY: below BUCKETS.
        unsafe { &mut *self.buckets.add(index) }
    }

    fn bucket(&mut self, data: u64) -> u32 {
        *self.bucket_of(data)
    }

    fn link(&mut self, fd: i32) {
        let Some(data) = self.item(fd).map(|it| it.data) else { return };
        let head = core::mem::replace(self.bucket_of(data), fd as u32 + 1);
        if let Some(item) = self.item(fd) {
            item.next = head;
        }
    }

    fn unlink(&mut self, fd: i32) {
        let Some((data, next)) = self.item(fd).map(|it| (it.data, it.next)) else { return };
        let mut at = self.bucket(data);
        if at == fd as u32 + 1 {
            *self.bucket_of(data) = next;
            return;
        }
        while at != NONE {
            let Some(item) = self.item(at as i32 - 1) else { return };
            if item.next == fd as u32 + 1 {
                item.next = next;
                return;
            }
            at = item.next;
        }
    }

    fn active_at(&self, index: usize) -> i32 {
        // SAFETY: the list is this set's own.
        self.active.get(index).map_or(-1, |fd| unsafe { fd.read() })
    }

    /// False beyond what `put` has made room for: never, since each descriptor is in the list once at most.
    fn set_active_at(&mut self, index: usize, fd: i32) -> bool {
        // SAFETY: the list is this set's own.
        self.active.get(index).map(|place| unsafe { place.write(fd) }).is_some()
    }

    fn activate(&mut self, fd: i32) {
        let count = self.active_count;
        if let Some(item) = self.item(fd).filter(|it| it.is_current(fd) && !it.active) {
            item.active = true;
            self.active_count += usize::from(self.set_active_at(count, fd));
        }
    }

    fn drop_inactive(&mut self) {
        let mut kept = 0;
        for index in 0..self.active_count {
            let fd = self.active_at(index);
            if self.item(fd).is_some_and(|it| it.active) {
                kept += usize::from(self.set_active_at(kept, fd));
            }
        }
        self.active_count = kept;
    }
}
