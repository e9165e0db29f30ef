//! A descriptor that is a TCP connection: from its first use to its end.

use crate::memory::{PIECE, Sparse};
use crate::table::{self, Known};
use crate::{luggage, process, seccomp};
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use underpass_segment::clock;
use underpass_segment::end::{End, Family, MAX_ENDS, Stage};
use underpass_segment::kernel;
use underpass_segment::link::Link;
use underpass_segment::raw::{Answer, Errno, syscall};
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

/// The connection that `fd` is; `None` if libc's own call is all there is to do.
#[inline(always)]
pub fn of(fd: i32) -> Option<Connection> {
    // Plain numbers on all branches: a connection that one of them returned in memory would be copied on every call.
    let index = match table::get(fd) {
        Known::Other => return None,
        Known::Connection(index) => {
            process::check_fork();
            index
        }
        known => classify(fd, known)?,
    };
    Some(Connection { end: process::existing_family()?.end(index), index, fd })
}

/// The connection that `fd` is already known to be.
#[inline]
pub fn known(fd: i32) -> Option<Connection> {
    if let Known::Connection(_) = table::get(fd) { of(fd) } else { None }
}

#[cold]
fn classify(fd: i32, known: Known) -> Option<u32> {
    if fd < 0 || process::borrowed() {
        return None;
    }
    if seccomp::is_confined() {
        disown(fd, known);
        if known == Known::Socket {
            seen(Reason::Seccomp);
        }
        return None;
    }
    if !kernel::is_tcp(fd) {
        // A number that is free or not yet a socket of ours stays open to be something else.
        disown(fd, known);
        return None;
    }
    let state = kernel::counters(fd).ok()?.state;
    if state != kernel::ESTABLISHED && state != kernel::CLOSE_WAIT {
        return None;
    }
    if known == Known::Nothing
        && let Some(index) = brought(fd)
    {
        return Some(index);
    }
    if known == Known::Nothing {
        // It came by exec or over a Unix socket; another program may use it without our knowing.
        disown(fd, known);
        seen(Reason::Inherited);
        return None;
    }
    let Some(family) = process::family() else {
        if let Some(reason) = process::no_family() {
            disown(fd, known);
            seen(reason);
        }
        return None;
    };
    let index = family.take()?;
    let end = family.end(index);
    end.nonblocking.store(kernel::is_nonblocking(fd).into(), Relaxed);
    let handle = handle(index)?;
    handle.attached.store(ABSENT, Relaxed);
    handle.given.store(0, Relaxed);
    handle.counted.store(0, Relaxed);
    handle.descriptors.store(1, Release);
    if !table::replace(fd, known, Known::Connection(index)) {
        // Another thread was faster.
        handle.descriptors.store(0, Relaxed);
        family.give_back(index);
        return match table::get(fd) {
            Known::Connection(index) => Some(index),
            _ => None,
        };
    }
    let connection = Connection { end, index, fd };
    crate::epoll::watch(connection);
    connection.mind_stdio();
    Some(index)
}

/// Makes the connection that `fd` was when this program image was executed known.
pub fn claim(fd: i32) {
    if table::get(fd) == Known::Nothing && kernel::is_tcp(fd) {
        brought(fd);
    }
}

/// Leaves `fd`, so far `known` as something else, to the kernel. Epoll sets forget it: what the program changes of its
/// registration from now on passes them by.
fn disown(fd: i32, known: Known) {
    if table::replace(fd, known, Known::Other) && known == Known::Socket {
        crate::epoll::disown(fd);
    }
}

/// The connection that `fd` is, if it was fast when this program image was executed.
fn brought(fd: i32) -> Option<u32> {
    let cookie = kernel::cookie(fd).ok()?;
    let lent =
        process::with_meeting_surely(|m| m.borrow(cookie)).flatten().map(|(family, index)| (family, index, None));
    let (family_id, index, whole) = lent.or_else(|| luggage::find(cookie))?;
    let shared = process::adopt_family(family_id).filter(|family| {
        let end = family.end(index);
        end.cookie.load(Relaxed) == cookie && end.stage() == Stage::Joined && end.add_reference()
    });
    let (family, index) = match shared {
        Some(family) => (family, index),
        None => {
            let family = process::family()?;
            let index = family.take()?;
            let end = family.end(index);
            if !whole.is_some_and(|text| luggage::restore(end, text)) || end.cookie.load(Relaxed) != cookie {
                family.give_back(index);
                return None;
            }
            (family, index)
        }
    };
    let handle = handle(index)?;
    if handle.descriptors.fetch_add(1, AcqRel) > 0 {
        // Known already, under another number.
        family.end(index).references.fetch_sub(1, AcqRel);
    }
    table::set(fd, Known::Connection(index));
    count_once(index);
    Connection { end: family.end(index), index, fd }.mind_stdio();
    Some(index)
}

/// Counts a connection that the library does not follow.
fn seen(reason: Reason) {
    if let Some(record) = process::record() {
        record.connections.fetch_add(1, Relaxed);
        record.count_reason(reason);
    }
}

/// Counts the connection whose end has this index where it is first used: a server may leave it to what it forks.
#[inline]
fn count_once(index: u32) {
    if let Some(handle) = handle(index)
        && handle.counted.load(Relaxed) == 0
        && handle.counted.swap(1, Relaxed) == 0
        && let Some(record) = process::record()
    {
        record.connections.fetch_add(1, Relaxed);
    }
}

impl Connection {
    /// Index of its end in the family's table.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Whether it has several descriptors in this process.
    pub fn has_duplicates(&self) -> bool {
        handle(self.index).is_some_and(|handle| handle.descriptors.load(Relaxed) > 1)
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

    /// The last descriptor of this process is about to be closed: what kernel TCP would do about unread data, it does.
    fn hush(&self) {
        self.attend();
        if self.end.references.load(Relaxed) == 1
            && let Some(port) = self.ready_port()
        {
            port.hush();
            // A program that was given the socket closes it later, and perhaps in another way.
            let shared = self.end.lent_until.load(Relaxed) != 0 || self.end.reason() == Reason::Inherited;
            if !shared && port.unread() > 0 {
                kernel::reset_at_close(self.fd);
            }
        }
    }

    /// The last descriptor is closed: whether a thread sleeps in a receive on it, which goes on until something arrives.
    fn leave_to_sleeper(&self) -> bool {
        let Some(handle) = handle(self.index) else { return false };
        if handle.sleepers.load(Acquire) == 0 || handle.descriptors.load(Relaxed) > 1 {
            return false;
        }
        handle.left_to_sleeper.store(true, Release);
        self.end.reading.resting.set_stray(true);
        // It may have woken meanwhile.
        handle.sleepers.load(Acquire) > 0 || !handle.left_to_sleeper.swap(false, AcqRel)
    }

    /// After a receive that found the waiting flag down for others, or its last descriptor closed.
    #[cold]
    pub fn after_stray(&self) {
        if handle(self.index).is_some_and(|handle| handle.left_to_sleeper.swap(false, AcqRel)) {
            release(self.index);
        } else {
            crate::epoll::take_back(self.fd);
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

    /// A child that is spawned may get it.
    pub fn give(&self) {
        if let Some(handle) = handle(self.index) {
            handle.given.store(1, Relaxed);
        }
    }

    /// Whether a child that is spawned may get it.
    pub fn is_given(&self) -> bool {
        handle(self.index).is_some_and(|it| it.given.load(Relaxed) != 0)
    }

    /// Whether no other process has it.
    pub fn is_last(&self) -> bool {
        self.end.references.load(Relaxed) == 1
    }

    /// The connection by another descriptor of the socket.
    pub fn by(&self, fd: i32) -> Connection {
        Connection { fd, ..*self }
    }
}

/// The library cannot follow what the program does with `fd`: it stays on the kernel path.
#[cold]
pub fn give_up(fd: i32, reason: Reason) {
    match of(fd) {
        Some(connection) => connection.pin(reason),
        None => disown(fd, Known::Socket),
    }
}

/// Why the connection of `fd` cannot be carried, as its options say.
fn unsuitable(fd: i32) -> Option<Reason> {
    let set = |level, name| kernel::int_option(fd, level, name);
    if set(libc::SOL_SOCKET, libc::SO_OOBINLINE).is_ok_and(|v| v != 0) {
        return Some(Reason::Urgent);
    }
    if set(libc::SOL_SOCKET, libc::SO_RCVLOWAT).is_ok_and(|v| v > 1) {
        return Some(Reason::SocketOption);
    }
    if set(libc::SOL_SOCKET, libc::SO_ZEROCOPY).is_ok_and(|v| v != 0) {
        return Some(Reason::ZeroCopy);
    }
    const TCP_ULP: i32 = 31;
    let mut name = [0u8; 16];
    let mut len = name.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    let ulp = unsafe {
        syscall(
            libc::SYS_getsockopt,
            [
                fd as usize,
                libc::IPPROTO_TCP as usize,
                TCP_ULP as usize,
                name.as_mut_ptr() as usize,
                &raw mut len as usize,
                0,
            ],
        )
    };
    (ulp.is_ok() && len > 0 && name[0] != 0).then_some(Reason::SocketOption)
}

/// Sleeps in libc's own recv: a cancellation point, and restarted after signals as the program asked.
unsafe fn sleeping_recv(port: &Port<'_>, to: *mut u8, len: usize, flags: i32) -> Answer {
    const CLOSED: Errno = Errno(libc::EBADF);
    let handle = handle(port.token).ok_or(CLOSED)?;
    // Counted before the table is looked at; whoever closes looks at the count afterwards.
    handle.sleepers.fetch_add(1, AcqRel);
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

/// `fd` is about to be closed or replaced: forgets what it was. To be called before the number can be used again.
pub fn forget(fd: i32) {
    if process::borrowed() {
        return;
    }
    if let Some(connection) = known(fd) {
        // Before the number's next generation, to which nothing of this one is known.
        if connection.has_duplicates() || !connection.is_last() {
            crate::epoll::settle_socket(connection, || twin(connection));
        }
        crate::epoll::forget_socket(connection);
    }
    table::next_generation(fd);
    crate::epoll::forget_set(fd);
    if let Known::Connection(index) = table::get(fd)
        && let Some(family) = process::existing_family()
    {
        process::check_fork();
        let connection = Connection { end: family.end(index), index, fd };
        if handle(index).is_some_and(|h| h.descriptors.load(Relaxed) == 1) {
            connection.hush();
        } else if connection.end.watched.load(Relaxed) != 0 {
            // Its registrations go on in the kernel, which alone has to see what arrives from now on.
            connection.pin(Reason::Unsupported);
        }
        if table::replace(fd, Known::Connection(index), Known::Nothing) && !connection.leave_to_sleeper() {
            release(index);
        }
    } else {
        table::set(fd, Known::Nothing);
    }
}

/// Another descriptor of the same connection.
fn twin(connection: Connection) -> Option<i32> {
    let known = Known::Connection(connection.index);
    (0..table::highest()).find(|&fd| fd != connection.fd && table::get(fd) == known)
}

/// `copy` is a new descriptor for what `fd` is.
pub fn duplicate(fd: i32, copy: i32) {
    if process::borrowed() || copy < 0 {
        return;
    }
    // A socket must be recognised before it has two names.
    let known = match of(fd) {
        Some(connection) => Known::Connection(connection.index),
        None => table::get(fd),
    };
    if let Known::Connection(index) = known
        && let Some(handle) = handle(index)
    {
        handle.descriptors.fetch_add(1, AcqRel);
    }
    table::set(copy, known);
    if let Some(connection) = crate::connection::known(copy) {
        connection.mind_stdio();
    }
    if let Some(connection) = crate::connection::known(fd).filter(|it| it.end.watched.load(Relaxed) != 0) {
        crate::epoll::wake_by_itself(connection);
    }
}

/// One descriptor less.
fn release(index: u32) {
    let (Some(family), Some(handle)) = (process::existing_family(), handle(index)) else { return };
    if handle.descriptors.fetch_sub(1, AcqRel) == 1 {
        let attached = handle.attached.swap(ABSENT, AcqRel) == PRESENT;
        // SAFETY: it was PRESENT, and the last descriptor is gone.
        let link = attached.then(|| unsafe { (*handle.link.get()).assume_init() });
        drop_reference(family, index, link);
    }
}

/// One process less.
fn drop_reference(family: &Family, index: u32, link: Option<Link>) {
    let end = family.end(index);
    let joined = matches!(end.stage(), Stage::Joined | Stage::Broken) && end.pool.load(Relaxed) != 0;
    let last = end.references.fetch_sub(1, AcqRel) == 1;
    reap(family);
    if last && joined && end.lent_until.load(Acquire) > clock::nanoseconds() && keep(index) {
        return;
    }
    if last {
        finish(family, index, link);
    }
    if joined {
        process::with_meeting_surely(|m| m.release(end));
    }
    if last {
        family.give_back(index);
    }
}

/// The last reference is gone: tells the other end.
fn finish(family: &Family, index: u32, link: Option<Link>) {
    let end = family.end(index);
    count(end, index);
    if end.pool.load(Relaxed) != 0 {
        process::with_meeting_surely(|m| {
            if let Some(link) = link.or_else(|| m.link(end)) {
                m.close(end, &link);
            }
        });
    } else if end.entry.load(Relaxed) != 0 {
        process::with_meeting_surely(|m| m.withdraw(end));
    }
}

/// Ends that this process has let go of and that a program image to come may still claim: index + 1 each.
static KEPT: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];

fn keep(index: u32) -> bool {
    KEPT.iter().any(|place| place.compare_exchange(0, index + 1, AcqRel, Relaxed).is_ok())
}

/// Ends what was kept for an image that has come, or has not come in time.
fn reap(family: &Family) {
    for place in &KEPT {
        let Some(index) = place.load(Relaxed).checked_sub(1) else { continue };
        let end = family.end(index);
        let claimed = end.references.load(Acquire) > 0;
        if !claimed && end.lent_until.load(Acquire) > clock::nanoseconds() {
            continue;
        }
        if place.compare_exchange(index + 1, 0, AcqRel, Relaxed).is_ok() {
            process::with_meeting_surely(|m| m.release(end));
            end.lent_until.store(0, Release);
            // The image that claimed it after all ends it itself.
            if end.references.load(Acquire) == 0 {
                finish(family, index, None);
                family.give_back(index);
            }
        }
    }
}

/// A fork is about to share every socket: a connection that was not used yet has to be known by then, or each process
/// would make an end of its own for it.
pub fn recognise_all() {
    for fd in 0..table::highest() {
        if table::get(fd) == Known::Socket {
            of(fd);
        }
    }
}

/// Adds (or takes back) a reference to every end, around a fork.
pub fn reference_all(add: bool) {
    if let Some(family) = process::existing_family() {
        for_each(|index, _| {
            let references = &family.end(index).references;
            if add {
                references.fetch_add(1, AcqRel)
            } else {
                references.fetch_sub(1, AcqRel)
            };
        });
    }
}

/// Calls `what` for every end that this process has, once.
fn for_each(mut what: impl FnMut(u32, i32)) {
    for fd in 0..table::highest() {
        if let Known::Connection(index) = table::get(fd) {
            // An end with several descriptors comes up at the first of them only.
            let first = handle(index).is_some_and(|h| h.descriptors.load(Relaxed) == 1)
                || (0..fd).all(|earlier| table::get(earlier) != Known::Connection(index));
            if first {
                what(index, fd);
            }
        }
    }
}

/// At exit: counts what is still open and lets go of it, leaving no doorbell unread.
pub fn leave_all() {
    if let Some(family) = process::existing_family() {
        for_each(|index, fd| {
            let end = family.end(index);
            let connection = Connection { end, index, fd };
            connection.hush();
            crate::epoll::forget_socket(connection);
            if end.references.fetch_sub(1, AcqRel) == 1 {
                count(end, index);
                end.references.store(1, Release);
            }
        });
    }
}

fn count(end: &End, index: u32) {
    let Some(record) = process::record() else { return };
    count_once(index);
    if end.was_fast.load(Relaxed) != 0 {
        record.fast.fetch_add(1, Relaxed);
    } else {
        record.count_reason(end.reason());
    }
    record.fast_sent.fetch_add(end.sending.fast_bytes.swap(0, Relaxed), Relaxed);
    record.fast_received.fetch_add(end.reading.fast_bytes.swap(0, Relaxed), Relaxed);
    record.kernel_sent.fetch_add(end.sending.kernel_bytes.swap(0, Relaxed), Relaxed);
    record.kernel_received.fetch_add(end.reading.kernel_bytes.swap(0, Relaxed), Relaxed);
    record.bells.fetch_add(end.bells.swap(0, Relaxed), Relaxed);
    record.sleeps.fetch_add(end.sleeps.swap(0, Relaxed), Relaxed);
}

/// The error of every call on a broken connection.
pub const BROKEN: Errno = Errno(libc::ECONNRESET);
