//! What the library knows of the process it is a guest in.

use core::cell::UnsafeCell;
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ops::Deref;
use core::ptr;
use underpass_segment::clock;
use underpass_segment::config::{Config, KEYS};
use underpass_segment::family::Family;
use underpass_segment::kernel;
use underpass_segment::meeting::Meeting;
use underpass_segment::of_each_thread;
use underpass_segment::raw::Errno;
use underpass_segment::reason::Reason;
use underpass_segment::stats::{Counters, Process, Record};
use underpass_segment::sync::{Acquire, AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Relaxed, Release};
use underpass_segment::sysv;

/// Set up once, by the constructor; read by every call.
struct Fixed {
    config: Config,
    counters: Option<Counters>,
}

struct Shared<T>(UnsafeCell<T>);

// SAFETY: each static below says how access to it is ordered.
unsafe impl<T> Sync for Shared<T> {}

/// Written by the constructor before [`READY`] is set, only read afterwards.
static FIXED: Shared<Option<Fixed>> = Shared(UnsafeCell::new(None));
/// Written by the thread that has [`MEETING_TAKEN`] before [`HAS_FAMILY`] is set, only read afterwards. (A child that is
/// forked while another thread sets a OnceLock would wait for that thread for ever.)
static FAMILY: Shared<MaybeUninit<Family>> = Shared(UnsafeCell::new(MaybeUninit::uninit()));
static HAS_FAMILY: AtomicBool = AtomicBool::new(false);
/// 1 + the errno with which it could not be made; 0: it was not tried.
static NO_FAMILY: AtomicI32 = AtomicI32::new(0);
static READY: AtomicBool = AtomicBool::new(false);
/// 1 + the number of this process among the members of the family; 0: it is none.
static MEMBER: AtomicU32 = AtomicU32::new(0);
/// Used only by the thread that has set [`MEETING_TAKEN`].
static MEETING: Shared<Meeting> = Shared(UnsafeCell::new(Meeting::new()));
static MEETING_TAKEN: AtomicBool = AtomicBool::new(false);
/// The [`Process`] as which this one counts, and the row of the statistics that it has taken.
static COUNTS_AS: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];
static ROW: AtomicPtr<Record> = AtomicPtr::new(core::ptr::null_mut());

/// A page that the kernel zeroes in every forked child, however it was forked: its first word is 1 in a process whose
/// state has been set up.
static FRESH: AtomicPtr<AtomicU32> = AtomicPtr::new(core::ptr::null_mut());
/// Number of this process among those forked from one another; tells a thread's cached number from its parent's.
static GENERATION: AtomicU32 = AtomicU32::new(1);

of_each_thread! {
    static THREAD: (u32, u32) = (0, 0);
    /// In the child of a vfork, which runs in its parent's memory.
    static BORROWED: bool = false;
}

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = construct;

extern "C" fn construct() {
    if READY.load(Acquire) {
        return;
    }
    crate::guest::real::find_all();
    clock::begin();
    let mut config = Config::default();
    for key in KEYS {
        if let Some(text) = variable(key.name) {
            // The command has checked the values; whoever preloads the library by hand gets the default for a bad one.
            let _ = config.set(key.name, text);
        }
    }
    let region = variable("stats").and_then(|text| text.parse().ok());
    let counters = region.and_then(|id| Counters::open(id, kernel::user_id()));
    crate::guest::table::set_up();
    crate::lifecycle::handoff::unpack();
    crate::lifecycle::handoff::set_up();
    wipe_on_fork();
    leave_at_exit();
    // SAFETY: no other thread runs the constructor, and nobody reads before READY.
    unsafe { *FIXED.0.get() = Some(Fixed { config, counters }) };
    READY.store(true, Release);
    identify();
    crate::lifecycle::handoff::claim();
}

/// Value of `UNDERPASS_<NAME>`.
fn variable(name: &str) -> Option<&'static str> {
    let mut text = [0u8; 64];
    for (to, from) in text.iter_mut().zip("UNDERPASS_".bytes().chain(name.bytes())).take(63) {
        *to = from.to_ascii_uppercase();
    }
    // SAFETY: NUL-terminated; the environment is not changed while constructors run.
    unsafe {
        let value = libc::getenv(text.as_ptr().cast());
        if value.is_null() { None } else { core::ffi::CStr::from_ptr(value).to_str().ok() }
    }
}

fn wipe_on_fork() {
    const MADV_WIPEONFORK: i32 = 18;
    // SAFETY: a private anonymous page of our own.
    unsafe {
        let page = libc::mmap(
            core::ptr::null_mut(),
            4096,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        );
        if page == libc::MAP_FAILED || libc::madvise(page, 4096, MADV_WIPEONFORK) != 0 {
            return;
        }
        let word = page as *mut AtomicU32;
        (*word).store(1, Relaxed);
        FRESH.store(word, Release);
    }
}

fn fixed() -> Option<&'static Fixed> {
    if !READY.load(Acquire) {
        return None;
    }
    // SAFETY: written before READY and not changed afterwards.
    unsafe { (*FIXED.0.get()).as_ref() }
}

/// The configuration; the default before the constructor has run.
#[inline]
pub fn config() -> &'static Config {
    fixed().map_or(&Config::DEFAULT, |f| &f.config)
}

/// The table of ends, made when the first connection needs it. `None` when acceleration is off or impossible here.
pub fn family() -> Option<&'static Family> {
    existing_family().or_else(|| settle_family(Family::create, None))
}

/// The table of ends of the program image that executed this one, if somebody still has it and this one has none of
/// its own. That image was `member` of it, if this process is the same.
pub fn adopt_family(id: i32, member: Option<u32>) -> Option<&'static Family> {
    let family = existing_family().or_else(|| settle_family(|| Family::open(id, kernel::user_id()), member));
    family.filter(|family| family.id() == id)
}

fn settle_family(make: impl FnOnce() -> Result<Family, Errno>, member: Option<u32>) -> Option<&'static Family> {
    let fixed = fixed()?;
    if !fixed.config.enabled || FRESH.load(Acquire).is_null() {
        return None;
    }
    let settle = |meeting: &mut Meeting| {
        // The meeting is this thread's, so only one comes here at a time.
        if existing_family().is_none() {
            let family = make().map_err(|Errno(e)| NO_FAMILY.store(1 + e, Relaxed)).ok()?;
            meeting.set_up(family.id(), fixed.config.ring_bytes, let_go_of_pool);
            // SAFETY: the meeting makes this thread the only writer, and nobody reads before HAS_FAMILY.
            let family: &Family = unsafe { (*FAMILY.0.get()).write(family) };
            HAS_FAMILY.store(true, Release);
            become_member(member.and_then(|member| family.stay(member)).or_else(|| family.join()));
        }
        existing_family()
    };
    // Another thread may be making it just now: a descriptor that got no end for that reason could be copied, and each
    // copy would then get one of its own.
    with_meeting_surely(settle).flatten()
}

/// Nothing of this process refers to the pool any more, unless it returns false.
fn let_go_of_pool(id: i32, begin: *const u8) -> bool {
    // Nor one that a look at a set, below this signal handler, may be using.
    let unused = !crate::connection::is_pool_used(id) && !crate::watch::set::is_looking();
    if unused {
        crate::watch::set::forget_pool(begin);
    }
    unused
}

/// Why there is no hope of a table of ends; `None` when there is.
pub fn no_family() -> Option<Reason> {
    match NO_FAMILY.load(Relaxed) - 1 {
        _ if !config().enabled => Some(Reason::Disabled),
        // shmget itself never answers so to who makes a segment of his own (shmget(2)).
        libc::EPERM => Some(Reason::Seccomp),
        -1 if !FRESH.load(Acquire).is_null() => None,
        _ => Some(Reason::NoMemory),
    }
}

/// The table of ends, if there is one.
#[inline]
pub fn existing_family() -> Option<&'static Family> {
    // SAFETY: written before HAS_FAMILY and not changed afterwards.
    if HAS_FAMILY.load(Acquire) { Some(unsafe { (*FAMILY.0.get()).assume_init_ref() }) } else { None }
}

/// The number of this process among the members of the family, if it has one.
pub fn member() -> Option<u32> {
    MEMBER.load(Relaxed).checked_sub(1)
}

/// Says what number this process has among the members of the family.
pub fn become_member(number: Option<u32>) {
    MEMBER.store(number.map_or(0, |number| number + 1), Relaxed);
}

/// Does `what` with this process's [`Meeting`]; `None` when another thread (or this one, under a signal handler) is at
/// it.
pub fn with_meeting<T>(what: impl FnOnce(&mut Meeting) -> T) -> Option<T> {
    if MEETING_TAKEN.compare_exchange(false, true, Acquire, Relaxed).is_err() {
        return None;
    }
    // SAFETY: the flag makes this thread the only one.
    let result = what(unsafe { &mut *MEETING.0.get() });
    MEETING_TAKEN.store(false, Release);
    Some(result)
}

/// The same, waiting for the other thread. A signal handler on top of this one would wait for ever, so none runs.
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

/// Number of this thread in the kernel.
#[inline]
pub fn thread() -> u32 {
    let generation = GENERATION.load(Relaxed);
    match THREAD.get() {
        (known, tid) if known == generation => tid,
        _ => {
            let tid = kernel::thread_id();
            THREAD.set((generation, tid));
            tid
        }
    }
}

/// Whether this code runs in the child of a vfork: then descriptors are the child's, but all memory is the parent's.
#[inline]
pub fn borrowed() -> bool {
    BORROWED.get()
}

/// Says so.
pub fn set_borrowed(child: bool) {
    BORROWED.set(child);
}

/// Whether this process is a forked child that has not been set up yet; sets it up. Every call that finds a connection
/// asks.
#[inline]
pub fn check_fork() {
    let fresh = FRESH.load(Relaxed);
    // SAFETY: the page is never unmapped.
    if !fresh.is_null() && unsafe { (*fresh).load(Relaxed) } == 0 {
        become_child();
    }
}

#[cold]
fn become_child() {
    // SAFETY: the page is never unmapped.
    unsafe { (*FRESH.load(Relaxed)).store(1, Relaxed) };
    GENERATION.fetch_add(1, Relaxed);
    // A child locks nothing, whatever its parent does (mlockall(2)).
    sysv::set_locking(false);
    // Another thread of the parent may have been in the middle of it.
    let torn = MEETING_TAKEN.swap(false, Relaxed);
    with_meeting(if torn { Meeting::begin_anew } else { Meeting::after_fork });
    underpass_segment::tap::after_fork();
    crate::watch::set::after_fork();
    crate::calls::shell::after_fork();
    crate::calls::fork::in_child();
    crate::watch::epoll::after_fork();
    crate::watch::poll::after_fork();
    identify();
}

/// Settles as whom this process counts, so that no system call is needed when it takes a row: that may be in a signal handler,
/// or under a seccomp filter. A child that is forked under one goes on counting as its parent.
fn identify() {
    if counters().is_none() || crate::calls::seccomp::is_confined() {
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

fn counters() -> Option<Counters> {
    fixed()?.counters
}

/// This process's counters, if somebody wants them and can be told.
pub fn record() -> Option<Row> {
    counters().map(Row)
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

/// The destructors of all libraries run in a function that libc registers for exit(3) once the constructors have run. They may
/// still send; so what this constructor registers is called behind them. quick_exit(3) has a list of its own.
fn leave_at_exit() {
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
    }
    extern "C" fn at_exit(_status: c_int, _: *mut c_void) {
        leave();
    }
    extern "C" fn at_quick_exit(_: *mut c_void) {
        leave();
    }
    // SAFETY: this library is not unloaded.
    unsafe {
        on_exit(at_exit, core::ptr::null_mut());
        __cxa_at_quick_exit(at_quick_exit, core::ptr::null_mut());
    }
}

/// The process ends: lets go of its connections, whose family may live on.
pub fn leave() {
    static LEFT: AtomicBool = AtomicBool::new(false);
    check_fork();
    if borrowed() || LEFT.swap(true, Acquire) {
        return;
    }
    crate::connection::leave_all();
    crate::watch::set::leave();
}
