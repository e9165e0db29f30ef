//! A descriptor that is a TCP connection: how each call on it goes, and what this process keeps of it.

mod ending;
mod find;
mod share;

pub use ending::{forget, leave_all};
pub use find::{claim, give_up, known, of};
pub use share::{duplicate, recognise_all, reference_all};

use crate::memory::{PIECE, Sparse};
use crate::table::{self, Known};
use crate::{process, seccomp};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use find::{count_once, unsuitable};
use underpass_segment::clock;
use underpass_segment::end::{End, MAX_ENDS, Stage};
use underpass_segment::kernel;
use underpass_segment::link::Link;
use underpass_segment::raw::{Answer, Errno};
use underpass_segment::reason::Reason;
use underpass_segment::switch::Port;
use underpass_segment::sync::{AcqRel, Acquire, AtomicBool, AtomicU32, Relaxed, Release};

/// What this process keeps of an end, beside the end itself.
struct Handle {
    /// Descriptors of this process that refer to it; 0: not in use.
    descriptors: AtomicU32,
    /// Threads asleep in a receive on it. If its last descriptor is closed under one, it is that thread's to let go of.
    sleepers: AtomicU32,
    left_to_sleeper: AtomicBool,
    /// 1: it is in a list of file actions, so a child that is spawned may get it.
    given: AtomicU32,
    /// [`ABSENT`], [`WORKING`] or [`PRESENT`]: whether `link` is there.
    attached: AtomicU32,
    /// 1: this process, or the one that forked it, has counted the connection.
    counted: AtomicU32,
    link: UnsafeCell<MaybeUninit<Link>>,
}

const ABSENT: u32 = 0;
const WORKING: u32 = 1;
const PRESENT: u32 = 2;

static HANDLES: Sparse<Handle, { MAX_ENDS / PIECE }> = Sparse::new();

#[inline(always)]
fn handle(index: u32) -> Option<&'static Handle> {
    // SAFETY: handles are never unmapped; zeroed memory is an unused one.
    HANDLES.need(index as usize).map(|handle| unsafe { handle.as_ref() })
}

/// A connection in the hands of one call.
#[derive(Clone, Copy)]
pub struct Connection {
    /// Its end.
    pub end: &'static End,
    index: u32,
    /// The descriptor by which the program named it.
    pub fd: i32,
}

/// How a call on a connection has to go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// libc's call, counted.
    Plain,
    /// Through the segment, by [`Connection::port`].
    Joined,
    /// Nothing goes any more.
    Broken,
}

impl Connection {
    /// Index of its end in the family's table.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Decides how the next call goes; looks for the other end when the time has come.
    #[inline(always)]
    pub fn way(&self) -> Way {
        if matches!(self.end.stage(), Stage::Plain | Stage::Waiting) {
            self.consider();
        }
        match self.end.stage() {
            Stage::Joined if self.has_segment() => Way::Joined,
            Stage::Joined => self.without_segment(),
            Stage::Plain | Stage::Waiting | Stage::Pinned => Way::Plain,
            Stage::Broken => Way::Broken,
        }
    }

    #[inline(always)]
    fn has_segment(&self) -> bool {
        handle(self.index).is_some_and(|handle| self.attached(handle))
    }

    #[inline(always)]
    fn attached(&self, handle: &Handle) -> bool {
        // A signal handler that comes here in the middle of it would wait for ever.
        handle.attached.load(Acquire) == PRESENT || kernel::undisturbed(|| self.attach(handle))
    }

    /// Other processes of the family had the segment, and it went with them: whoever makes one may end before the other
    /// end has come.
    #[cold]
    fn without_segment(&self) -> Way {
        let end = self.end;
        if !end.read_gate.is_shut() && !end.write_gate.is_shut() {
            return Way::Plain;
        }
        let unused = end.was_fast.load(Relaxed) == 0
            && process::with_meeting_surely(|meeting| meeting.is_unmet(end, self.fd)).unwrap_or(false);
        if !unused {
            // What was in it is lost.
            return Way::Broken;
        }
        end.set_reason(Reason::Unproven);
        end.advance(Stage::Pinned);
        end.read_gate.open();
        end.write_gate.open();
        Way::Plain
    }

    #[cold]
    fn consider(&self) {
        let end = self.end;
        count_once(self.index);
        if seccomp::is_confined() {
            return end.pin(Reason::Seccomp);
        }
        let config = process::config();
        let calls = end.calls.fetch_add(1, Relaxed) + 1;
        if end.stage() == Stage::Waiting {
            if process::with_meeting(|meeting| meeting.is_offered(end)) == Some(true) {
                kernel::undisturbed(|| process::with_meeting(|meeting| meeting.take_offer(end, self.fd)));
            }
            return;
        }
        let proven = calls > config.go_up_messages || end.bytes.load(Relaxed) >= config.go_up_bytes;
        if !proven || calls < end.next_try.load(Relaxed) {
            return;
        }
        end.next_try.store(calls.saturating_mul(2), Relaxed);
        if let Some(reason) = unsuitable(self.fd) {
            return end.pin(reason);
        }
        kernel::undisturbed(|| process::with_meeting(|meeting| meeting.seek(end, self.fd)));
        if end.stage() == Stage::Plain {
            end.next_try.store(calls + 1 + calls / 4, Relaxed);
        }
    }

    /// The segment's port, for a joined end.
    #[inline(always)]
    pub fn port(&self) -> Option<Port<'static>> {
        let handle = handle(self.index)?;
        if !self.attached(handle) {
            return None;
        }
        // SAFETY: written before PRESENT was stored; not written again while the handle is in use.
        let link = unsafe { (*handle.link.get()).assume_init() };
        Some(Port {
            end: self.end,
            link,
            fd: self.fd,
            me: process::thread(),
            token: self.index,
            spin_us: process::config().spin_us,
            sleep: sleeping_recv,
        })
    }

    #[cold]
    fn attach(&self, handle: &Handle) -> bool {
        if handle.attached.compare_exchange(ABSENT, WORKING, AcqRel, Acquire).is_err() {
            while handle.attached.load(Acquire) == WORKING {
                clock::give_way();
            }
            return handle.attached.load(Acquire) == PRESENT;
        }
        let link = process::with_meeting_surely(|meeting| meeting.link(self.end)).flatten();
        if let Some(link) = link {
            // SAFETY: WORKING makes this thread the only writer, and nobody reads before PRESENT.
            unsafe { (*handle.link.get()).write(link) };
        }
        handle.attached.store(if link.is_some() { PRESENT } else { ABSENT }, Release);
        link.is_some()
    }

    /// The port, if every read of the socket goes through it.
    #[inline]
    pub fn ready_port(&self) -> Option<Port<'static>> {
        if self.end.stage() != Stage::Joined || !self.end.read_gate.is_shut() {
            return None;
        }
        self.port()
    }

    /// The direction out is about to end: what a reader has left in the ring could not follow behind the FIN.
    pub fn attend(&self) {
        if self.end.stage() == Stage::Joined
            && let Some(port) = self.port()
        {
            port.attend();
        }
    }

    /// Counts a plain call's bytes.
    #[inline]
    pub fn count_received(&self, answer: isize) {
        if answer > 0 {
            self.end.reading.kernel_bytes.fetch_add(answer as u64, Relaxed);
            self.end.bytes.fetch_add(answer as u64, Relaxed);
        }
    }

    /// One plain send, counted; `None` when the connection has a segment by now and none may be begun.
    #[inline]
    pub fn send_plainly(&self, plain: impl FnOnce() -> isize) -> Option<isize> {
        if !self.end.write_gate.enter() {
            return None;
        }
        let answer = plain();
        self.end.write_gate.leave();
        if answer > 0 {
            self.end.sending.kernel_bytes.fetch_add(answer as u64, Relaxed);
            self.end.bytes.fetch_add(answer as u64, Relaxed);
        }
        Some(answer)
    }

    /// Keeps the connection on the kernel path for good, whatever it is on now.
    pub fn pin(&self, reason: Reason) {
        if let Some(port) = self.pinned_port(reason) {
            port.pin(reason);
        }
    }

    /// The same, for a socket that goes to somebody who does not know what lies in the ring.
    pub fn hand_over(&self, reason: Reason) {
        if let Some(port) = self.pinned_port(reason) {
            port.hand_over(reason);
        }
    }

    /// stdin, stdout and stderr pass the library by.
    fn mind_stdio(&self) {
        if self.fd <= libc::STDERR_FILENO {
            self.hand_over(Reason::Stdio);
        }
    }

    fn pinned_port(&self, reason: Reason) -> Option<Port<'static>> {
        self.end.pin(reason);
        if self.end.stage() == Stage::Joined { self.port() } else { None }
    }
}

/// Sleeps in libc's own recv: a cancellation point, and restarted after signals as the program asked.
unsafe fn sleeping_recv(port: &Port<'_>, to: *mut u8, len: usize, flags: i32) -> Answer {
    const CLOSED: Errno = Errno(libc::EBADF);
    let handle = handle(port.token).ok_or(CLOSED)?;
    // Counted before the table is looked at; whoever closes looks at the count afterwards.
    handle.sleepers.fetch_add(1, AcqRel);
    if port.end.reading.resting.is_stray() {
        crate::epoll::take_back(port.fd);
    }
    let answer = if table::get(port.fd) == Known::Connection(port.token) {
        let before = crate::errno();
        // SAFETY: passed on to the caller.
        let answer = crate::from_c(unsafe { crate::real::recv(port.fd, to.cast(), len, flags) });
        crate::set_errno(before);
        answer
    } else {
        // Closed, or another's by now, while this thread was on its way.
        Err(CLOSED)
    };
    handle.sleepers.fetch_sub(1, AcqRel);
    answer
}

/// The error of every call on a broken connection.
pub const BROKEN: Errno = Errno(libc::ECONNRESET);
