//! The lines of this process: each thread that sleeps on streams to other hosts has one, and each epoll set. The daemon
//! rings a sleeper by its line, and is rung by that of the thread that has put something into a ring.

use super::look::look_at_all;
use crate::guest::{family, thread};
use core::ptr::from_ref;
use underpass_segment::line::{Heard, Line};
use underpass_segment::raw::Errno;
use underpass_segment::switch::Port;
use underpass_segment::sync::{Acquire, AtomicBool, AtomicI32, AtomicU64, Relaxed, Release, SeqCst};
use underpass_segment::{clock, kernel};

/// Most lines of a process. Where a sleeper has none, it looks again after a while.
const MOST: usize = 256;

/// Sleeps on streams to other hosts last no longer, in nanoseconds: where two sleep at one stream, the daemon rings the
/// one that has come last.
pub const LONGEST_NS: u64 = 250_000_000;
/// A sleep without a line lasts no longer.
pub const BRIEFLY_NS: u64 = 10_000_000;

/// A line, or a place for one.
struct Place {
    /// Number of a thread, or address of a set; 0: nobody.
    owner: AtomicU64,
    /// The descriptor, plus 1; 0: there is no line; [`BEING_MADE`].
    fd: AtomicI32,
    cookie: AtomicU64,
    number: AtomicU64,
    /// The number of the daemon that has it; 0: not known yet.
    daemon: AtomicU64,
}

/// A thread makes a line. Another one that uses the same set does without meanwhile.
const BEING_MADE: i32 = -1;

static PLACES: [Place; MOST] = [const {
    Place {
        owner: AtomicU64::new(0),
        fd: AtomicI32::new(0),
        cookie: AtomicU64::new(0),
        number: AtomicU64::new(0),
        daemon: AtomicU64::new(0),
    }
}; MOST];

/// Whether this process has had streams to other hosts.
static IS_ANY: AtomicBool = AtomicBool::new(false);

/// This process has the channel of a stream to another host.
pub fn note_remote() {
    IS_ANY.store(true, Relaxed);
}

/// Whether this process has streams to other hosts, or had.
#[inline]
pub fn has_remote() -> bool {
    IS_ANY.load(Relaxed)
}

/// No line is made before this time (CLOCK_MONOTONIC, ns).
static NOT_BEFORE: AtomicU64 = AtomicU64::new(0);

impl Place {
    fn line(&self) -> Option<Line> {
        let fd = self.fd.load(Acquire);
        (fd > 0).then(|| Line::of((fd - 1, self.cookie.load(Relaxed), self.number.load(Relaxed))))
    }

    fn put(&self, line: Option<Line>) {
        let (fd, cookie, number) = line.map_or((-1, 0, 0), |it| it.parts());
        self.cookie.store(cookie, Relaxed);
        self.daemon.store(0, Relaxed);
        self.number.store(number, Relaxed);
        self.fd.store(fd + 1, Release);
    }
}

/// Whose a line is.
#[derive(Clone, Copy)]
pub struct Owner(u64);

impl Owner {
    /// This thread.
    pub fn thread() -> Owner {
        Owner(thread::number().into())
    }

    /// An epoll set.
    pub fn set<S>(set: &S) -> Owner {
        Owner(from_ref(set) as u64)
    }
}

/// The place of this owner, if it has one.
fn place_of(owner: u64) -> Option<&'static Place> {
    PLACES.iter().find(|it| it.owner.load(Relaxed) == owner)
}

/// Whether this is no owner any more: its thread has ended.
fn is_gone(owner: u64) -> bool {
    let thread = u32::try_from(owner).ok();
    owner == 0 || thread.is_some_and(|it| !kernel::own(it).is_some_and(kernel::is_thread_of_this_process))
}

/// A place that becomes this owner's.
fn take_place(owner: u64) -> Option<&'static Place> {
    PLACES.iter().find(|it| {
        let before = it.owner.load(Relaxed);
        is_gone(before) && it.owner.compare_exchange(before, owner, SeqCst, Relaxed).is_ok()
    })
}

/// The line of this owner, if it has one.
pub fn existing(owner: Owner) -> Option<Line> {
    place_of(owner.0)?.line()
}

/// The line of this owner, made if need be. `None` where that is not possible now.
#[cold]
pub fn of(owner: Owner) -> Option<Line> {
    if thread::is_vfork_child() {
        return None;
    }
    let place = place_of(owner.0).or_else(|| take_place(owner.0))?;
    if let Some(line) = place.line().filter(Line::is_there) {
        return Some(line);
    }
    let before = place.fd.load(Relaxed);
    if before == BEING_MADE || clock::nanoseconds() < NOT_BEFORE.load(Relaxed) {
        return None;
    }
    place.fd.compare_exchange(before, BEING_MADE, Acquire, Relaxed).ok()?;
    let opened = family::with_meeting(|meeting| meeting.open_line());
    let line = opened.as_ref().and_then(|it| it.as_ref().ok()).copied();
    place.put(line);
    if let Some(Err(error)) = opened {
        make_none_for_now();
        if matches!(error, Errno(libc::ENOENT | libc::ECONNREFUSED)) {
            // The daemon is gone, and no line tells that.
            forsake(|_| true);
        }
    }
    line
}

/// All those streams to other hosts go down.
fn forsake(is_such: impl Fn(&Port<'_>) -> bool) {
    look_at_all(|it| {
        let port = it.joined_port().filter(|port| port.end.is_remote() && is_such(port));
        port.iter().for_each(Port::forsake);
    });
}

/// Before this owner sleeps on a stream to another host: the daemon rings by its line. False if it may not sleep now.
pub fn be_rung(owner: Owner, port: &Port<'_>) -> bool {
    let line = of(owner);
    let daemon = line.and_then(|_| place_of(owner.0)).map_or(0, |it| it.daemon.load(Relaxed));
    port.be_rung_by(line.map_or(0, |it| it.number()), daemon)
}

/// The broker is not there, or has too many lines.
fn make_none_for_now() {
    const PAUSE_NS: u64 = 1_000_000_000;
    NOT_BEFORE.store(clock::nanoseconds() + PAUSE_NS, Relaxed);
}

/// Wakes the daemon, which carries streams of this process, by the line of this thread or by any other one: the daemon
/// looks at all streams.
pub fn ring() {
    let others = || PLACES.iter().filter_map(Place::line).find(Line::is_there);
    if let Some(line) = of(Owner::thread()).or_else(others) {
        line.ring();
    }
}

/// The daemon has rung by this line, or is gone: then all streams to other hosts go down. False if the line is over.
pub fn hear(line: Line) -> bool {
    match line.hear() {
        Heard::Rings => return true,
        Heard::Hello(daemon) => {
            let place = PLACES.iter().find(|it| it.number.load(Relaxed) == line.number());
            place.into_iter().for_each(|it| it.daemon.store(daemon, Relaxed));
            // Streams of a daemon before this one.
            forsake(|port| port.end.remote.daemon() != daemon);
            return true;
        }
        // Without a greeting it is not known whose end it was.
        Heard::Gone if is_known(line) => forsake(|_| true),
        Heard::Refused | Heard::Gone => make_none_for_now(),
    }
    line.close();
    false
}

/// Whether the daemon has said its number on the line.
fn is_known(line: Line) -> bool {
    PLACES.iter().any(|it| it.number.load(Relaxed) == line.number() && it.daemon.load(Relaxed) != 0)
}

/// In a forked child: the lines are its parent's.
pub fn after_fork() {
    for place in &PLACES {
        place.line().inspect(Line::close);
        place.put(None);
        place.owner.store(0, Relaxed);
    }
}
