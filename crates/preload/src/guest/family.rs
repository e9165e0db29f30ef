//! The family of this process: the table of ends that it shares with the processes forked from one another, and its
//! [`Meeting`].

use super::{forked, settings, thread};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use underpass_segment::clock;
use underpass_segment::family::Family;
use underpass_segment::kernel;
use underpass_segment::meeting::Meeting;
use underpass_segment::raw::Errno;
use underpass_segment::reason::Reason;
use underpass_segment::sync::{Acquire, AtomicBool, AtomicI32, AtomicU32, Relaxed, Release};

struct Shared<T>(UnsafeCell<T>);

// SAFETY: each static below says how access to it is ordered.
unsafe impl<T> Sync for Shared<T> {}

/// Written by the thread that has [`MEETING_TAKEN`] before [`HAS_FAMILY`] is set, only read afterwards. (A child that
/// is forked while another thread sets a OnceLock would wait for that thread for ever.)
static FAMILY: Shared<MaybeUninit<Family>> = Shared(UnsafeCell::new(MaybeUninit::uninit()));
static HAS_FAMILY: AtomicBool = AtomicBool::new(false);
/// 1 + the error with which the table could not be made; 0: it was not tried.
static NO_FAMILY: AtomicI32 = AtomicI32::new(0);
/// 1 + the number of this process among the members of the family; 0: it is not a member.
static MEMBER: AtomicU32 = AtomicU32::new(0);
/// Used only by the thread that has set [`MEETING_TAKEN`].
static MEETING: Shared<Meeting> = Shared(UnsafeCell::new(Meeting::new()));
/// What [`taker`] says of the thread that uses the meeting; 0: none.
static MEETING_TAKEN: AtomicU32 = AtomicU32::new(0);

/// Bit of [`taker`]: it is a child of vfork of the thread.
const OF_CHILD: u32 = 1;

/// This thread, or its child of vfork, which has the thread's number.
fn taker() -> u32 {
    thread::number() << 1 | if thread::is_vfork_child() { OF_CHILD } else { 0 }
}

/// Whether nothing of this process refers to this pool of channels any more. A [`Meeting`] asks before it detaches the
/// pool.
pub type LetGoOfPool = fn(i32, *const u8) -> bool;

/// The table of ends, made when the first connection needs it. `None` when acceleration is off or impossible here.
pub fn family(let_go_of_pool: LetGoOfPool) -> Option<&'static Family> {
    existing().or_else(|| make(Family::create, None, let_go_of_pool))
}

/// The table of ends of the program image that executed this one, if a process still has it and this image has no table
/// of its own. That image was `member` of it, if the process is the same.
pub fn adopt(id: i32, member: Option<u32>, let_go_of_pool: LetGoOfPool) -> Option<&'static Family> {
    let open = || Family::open(id, kernel::user_id());
    let family = existing().or_else(|| make(open, member, let_go_of_pool));
    family.filter(|family| family.id() == id)
}

fn make(
    open: impl FnOnce() -> Result<Family, Errno>,
    member: Option<u32>,
    let_go_of_pool: LetGoOfPool,
) -> Option<&'static Family> {
    if !settings::are_read() || !settings::config().enabled || !forked::is_found_out() {
        return None;
    }
    let make = |meeting: &mut Meeting| {
        // This thread has the meeting, so only one thread comes here at a time.
        if existing().is_none() {
            let family = open().map_err(|Errno(e)| NO_FAMILY.store(1 + e, Relaxed)).ok()?;
            let config = settings::config();
            meeting.set_up(family.id(), config.ring_bytes, config.broker, let_go_of_pool);
            // SAFETY: the meeting makes this thread the only writer, and nobody reads before HAS_FAMILY.
            let family: &Family = unsafe { (*FAMILY.0.get()).write(family) };
            HAS_FAMILY.store(true, Release);
            become_member(member.filter(|&member| family.was(member)).or_else(|| family.join()));
        }
        existing()
    };
    // Another thread may be making the table just now. A descriptor that got no end for that reason could be copied,
    // and each copy would then get an end of its own.
    with_meeting_surely(make).flatten()
}

/// The reason why there will be no table of ends; `None` if there may be one.
pub fn none() -> Option<Reason> {
    match NO_FAMILY.load(Relaxed) - 1 {
        _ if !settings::config().enabled => Some(Reason::Disabled),
        // shmget itself never answers so to a process that makes a segment of its own (shmget(2)).
        libc::EPERM => Some(Reason::Seccomp),
        -1 if forked::is_found_out() => None,
        _ => Some(Reason::NoMemory),
    }
}

/// The table of ends, if there is one.
#[inline]
pub fn existing() -> Option<&'static Family> {
    // SAFETY: written before HAS_FAMILY and not changed afterwards.
    if HAS_FAMILY.load(Acquire) { Some(unsafe { (*FAMILY.0.get()).assume_init_ref() }) } else { None }
}

/// The number of this process among the members of the family, if it has one.
pub fn member() -> Option<u32> {
    MEMBER.load(Relaxed).checked_sub(1)
}

/// Sets the number of this process among the members of the family.
pub fn become_member(number: Option<u32>) {
    MEMBER.store(number.map_or(0, |number| number + 1), Relaxed);
}

/// Does `what` with this process's [`Meeting`]; `None` when another thread uses it, or this one, where a signal handler
/// has interrupted that.
pub fn with_meeting<T>(what: impl FnOnce(&mut Meeting) -> T) -> Option<T> {
    take_meeting_from(0, what)
}

/// Does `what` with this process's [`Meeting`] in place of the thread that `before` names; `None` when it does not use
/// it.
fn take_meeting_from<T>(before: u32, what: impl FnOnce(&mut Meeting) -> T) -> Option<T> {
    if MEETING_TAKEN.compare_exchange(before, taker(), Acquire, Relaxed).is_err() {
        return None;
    }
    // SAFETY: the flag makes this thread the only one.
    let result = what(unsafe { &mut *MEETING.0.get() });
    MEETING_TAKEN.store(0, Release);
    Some(result)
}

/// Does `what` with this process's [`Meeting`], and waits for the other thread. A signal handler that interrupted this
/// would wait for ever, so signals are held back.
pub fn with_meeting_surely<T>(what: impl FnOnce(&mut Meeting) -> T) -> Option<T> {
    let mut what = Some(what);
    for round in 0..10_000 {
        let mut result = None;
        if kernel::undisturbed(|| with_meeting(|m| result = what.take().map(|w| w(m)))).is_some() {
            return result;
        }
        if round < 100 { clock::give_way() } else { clock::nap(100) }
    }
    None
}

/// In a forked child: another thread of its parent may have been in the middle of the meeting.
pub fn after_fork() {
    let torn = MEETING_TAKEN.swap(0, Relaxed) != 0;
    with_meeting(if torn { Meeting::begin_anew } else { Meeting::after_fork });
}

/// A child of vfork of this thread has executed a program, or ended. It may have been killed in the middle of the
/// meeting.
pub fn after_vfork() {
    kernel::undisturbed(|| take_meeting_from(taker() | OF_CHILD, Meeting::begin_anew));
}
