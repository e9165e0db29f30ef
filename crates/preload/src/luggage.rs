//! What a process hands on to the program that it executes: its fast connections, so that the new program image, when it
//! finds such a socket among its descriptors, goes on where the old one stood.
//!
//! The luggage is one variable in the new environment: the number of the family's table of ends, which of its members the
//! process is (if it stays the same process), and for each connection its cookie, its index, how the statistics have it and (where the
//! old image may be the last to know) the whole end in hexadecimal. One that is not joined yet goes along as well: the family may join it while the new image uses it.
//! The new image looks a socket up by its cookie, so it does not matter under which number it arrives.

use crate::connection::{self, Connection};
use crate::program::Program;
use crate::{epoll, memory, process, seccomp, table};
use core::cell::Cell;
use core::ffi::{CStr, c_char};
use core::fmt::Write;
use core::str::Split;
use underpass_segment::clock;
use underpass_segment::end::{End, Family, Stage};
use underpass_segment::kernel;
use underpass_segment::lock::Entered;
use underpass_segment::meeting::Meeting;
use underpass_segment::raw::Errno;
use underpass_segment::reason::Reason;
use underpass_segment::sync::{AcqRel, Acquire, AtomicPtr, Relaxed, Release};

const NAME: &str = "UNDERPASS_LUGGAGE";
/// What the name of this library's file has in it.
const LIBRARY: &str = "libunderpass";
/// Longest luggage: the kernel refuses a variable of more than 128 KiB (MAX_ARG_STRLEN).
const MOST: usize = 120 << 10;

/// A new image that has not begun to run after so long will not come.
const LENT_NS: u64 = 5_000_000_000;

/// The variable's value in this image's own first environment.
static BROUGHT: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Takes the luggage out of the environment, so that it is not handed on again by itself.
pub fn unpack() {
    let name = c"UNDERPASS_LUGGAGE";
    // SAFETY: called once, by the constructor. The string itself stays where the kernel put it.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if !value.is_null() {
            BROUGHT.store(value, Release);
            libc::unsetenv(name.as_ptr());
        }
    }
}

/// Takes over what was brought along, before the program begins: its first call on a connection may be one that only
/// asks, such as poll; it may hand it on unused, so that those that come must share one end; and stdin, stdout and stderr
/// it may use without a call to this library.
pub fn claim() {
    /// Without /proc, descriptors are looked for up to here.
    const LIKELY: i32 = 1024;
    if BROUGHT.load(Acquire).is_null() {
        return;
    }
    if !kernel::for_each_descriptor(connection::claim) {
        (0..LIKELY).for_each(connection::claim);
    }
    if (0..table::highest()).any(|fd| connection::known(fd).is_some()) {
        kernel::for_each_descriptor(epoll::claim);
    }
    if let Some(((family, Some(member)), _)) = contents() {
        connection::keep_claimed(family, member);
    }
    // What comes back later, from a process that it was passed to, is not as the old image left it any more.
    BROUGHT.store(core::ptr::null_mut(), Release);
}

/// A family, and which of its members this process was before it executed its program, if it is the same process.
pub type Origin = (i32, Option<u32>);

/// What was brought along: whence, and the connections.
fn contents() -> Option<(Origin, Split<'static, char>)> {
    let brought = BROUGHT.load(Acquire);
    if brought.is_null() {
        return None;
    }
    // SAFETY: a string of the initial environment, which is never unmapped.
    let text = unsafe { CStr::from_ptr(brought) }.to_str().ok()?;
    let mut parts = text.split(';');
    let mut origin = parts.next()?.split(':');
    let family = origin.next()?.parse().ok()?;
    Some(((family, origin.next().and_then(|member| member.parse().ok())), parts))
}

/// The connection with this cookie, if it was brought along: whence, its index, how it was counted, and perhaps the end
/// itself.
pub fn find(cookie: u64) -> Option<(Origin, u32, u32, Option<&'static str>)> {
    let (origin, mut parts) = contents()?;
    parts.find_map(|part| {
        let mut fields = part.split(':');
        let found = u64::from_str_radix(fields.next()?, 16).ok()? == cookie;
        let mut number = || fields.next()?.parse().ok();
        let (index, counted) = (number()?, number()?);
        found.then_some((origin, index, counted, fields.next()))
    })
}

/// Fills `end` from its hexadecimal form; false when that is not one.
pub fn restore(end: &End, text: &str) -> bool {
    let bytes = text.as_bytes();
    if bytes.len() != 2 * size_of::<End>() || !bytes.iter().all(u8::is_ascii_hexdigit) {
        return false;
    }
    let digit = |b: u8| (b as char).to_digit(16).unwrap_or(0) as u8;
    fill(end, bytes.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])));
    // Nobody is in a send of the kernel's any more, on this end or on another copy of it: the direction may go up again. (Where
    // another family gives an end away, somebody there may be.)
    end.sending.in_kernel.store(0, Relaxed);
    end.stage() <= Stage::Joined
}

/// Makes `end`, which this process has just taken for itself, what `bytes` say of one that no thread is inside of.
fn fill(end: &End, bytes: impl Iterator<Item = u8>) {
    let mine = end.references.load(Relaxed);
    for (index, byte) in bytes.take(size_of::<End>()).enumerate() {
        // SAFETY: below the size of an end, which nobody else looks at yet; any bytes are a valid end.
        unsafe { (end as *const End as *mut u8).add(index).write(byte) };
    }
    if end.references.swap(mine, Relaxed) > 1 {
        // Whoever has it too has an end of his own for it by now.
        end.pin(Reason::Shared);
    }
    // Whoever was inside is gone with the old image, or goes on with the old end: what it left half done is mended.
    end.reading.lock.forsake_all();
    end.reading.in_kernel.store(0, Relaxed);
    end.reading.taking.store(0, Relaxed);
    end.sending.lock.forsake_all();
    // Nobody else can come for it.
    end.lent_until.store(0, Relaxed);
}

/// The bytes of `end`; one that changes meanwhile is either the old one or the new one.
fn bytes(end: &End) -> impl Iterator<Item = u8> {
    // SAFETY: within the end.
    (0..size_of::<End>()).map(move |at| unsafe { (end as *const End as *const u8).add(at).read_volatile() })
}

/// Fills `end` from end number `index` of family `id`, which is another than this process's and has passed the socket here:
/// to that family the connection is plain TCP from then on. False if that cannot be.
pub fn take_over(end: &End, id: i32, index: u32, cookie: u64) -> bool {
    let Ok(lender) = Family::open(id, kernel::user_id()) else { return false };
    let old = lender.end(index);
    let is_there = old.cookie.load(Relaxed) == cookie && !old.needs_no_segment() && old.add_reference();
    let copy = || {
        fill(end, bytes(old));
        // Nobody was inside but this thread.
        end.reading.lock.open();
        end.sending.lock.open();
    };
    let taken = is_there && kernel::undisturbed(|| old.give_away(process::thread(), copy));
    if taken {
        end.forget_watchers();
    }
    if is_there && old.references.fetch_sub(1, AcqRel) == 1 && taken {
        lender.give_back(index);
    }
    // SAFETY: the reference to the end was the only one, and is not used any more.
    unsafe { lender.detach() };
    taken
}

/// An environment for a new program image.
pub struct Packed {
    memory: *mut u8,
    len: usize,
    envp: *const *const c_char,
    /// This process has let go of its ends: the new image does not know of them.
    gone: bool,
    _held: Held,
}

/// Ends that go along whole, and from which other threads are kept until the new image has them: it would know nothing of
/// what they do meanwhile. Which locks, the reader's and the sender's, this thread has taken for that.
struct Held([Option<HeldEnd>; MOST / (2 * size_of::<End>())]);
type HeldEnd = (&'static End, [Option<Entered>; 2]);

impl Held {
    const NOTHING: Self = Self([None; _]);

    fn hold(&mut self, connection: &Connection) {
        let end = connection.end;
        if let Some(free) = self.0.iter_mut().find(|it| it.is_none()) {
            if let Some(port) = connection.ready_port() {
                // What this thread itself is in the middle of is counted: then only what one takes that sleeps is not.
                port.settle();
            }
            let me = process::thread();
            *free = Some((end, [&end.reading.lock, &end.sending.lock].map(|lock| lock.keep_out(me))));
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        for (end, [reading, sending]) in self.0.iter_mut().filter_map(Option::take) {
            reading.inspect(|&it| end.reading.lock.let_in(it));
            sending.inspect(|&it| end.sending.lock.let_in(it));
        }
    }
}

impl Packed {
    /// The environment to execute with.
    pub fn envp(&self) -> *const *const c_char {
        self.envp
    }
}

impl Drop for Packed {
    fn drop(&mut self) {
        if self.gone {
            // Still here: the execution has failed.
            connection::reference_all(true);
        }
        if !self.memory.is_null() {
            LEFT.set((core::ptr::null_mut(), 0));
            // SAFETY: the mapping is this value's own.
            unsafe { memory::release(self.memory, self.len) };
        }
    }
}

thread_local! {
    /// What a child of this thread's vfork has packed: its execution gives nothing back in this process.
    static LEFT: Cell<(*mut u8, usize)> = const { Cell::new((core::ptr::null_mut(), 0)) };
}

/// A child of vfork has executed a program, or is gone.
pub fn put_away_left() {
    let (memory, len) = LEFT.get();
    drop(Packed { memory, len, envp: core::ptr::null(), gone: false, _held: Held::NOTHING });
}

/// How a program is executed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Execution {
    /// In place of this image.
    Alone,
    /// In place of a child of vfork, which runs in this image's memory.
    Borrowed,
    /// In a new process, beside this image.
    Spawned,
}

/// Packs for the execution of `program` with environment `envp`.
///
/// # Safety
/// `envp` must be null or an environment.
pub unsafe fn pack(program: Program, envp: *const *const c_char, how: Execution) -> Packed {
    let nothing = Packed { memory: core::ptr::null_mut(), len: 0, envp, gone: false, _held: Held::NOTHING };
    if !has_luggage() {
        if how == Execution::Alone {
            connection::count_before_execution(|_| false);
        }
        return nothing;
    }
    let Some(family) = process::existing_family() else { return nothing };
    // SAFETY: passed on to the caller.
    let (count, environment_loads_us) = unsafe { inspect(envp) };
    let loads_us = environment_loads_us && program.loads_libraries();
    if how == Execution::Alone {
        connection::for_each(|index, fd| Connection::at(family, index, fd).leave_sets());
        inherited(how, Connection::outlast_image);
        let goes_along = |it: &Connection| it.end.stage() <= Stage::Joined && it.descriptors().any(stays_open);
        connection::count_before_execution(|it| loads_us && goes_along(it));
    }
    if !loads_us {
        hand_over_inherited(how);
        let gone = how == Execution::Alone;
        if gone {
            connection::reference_all(false);
        }
        return Packed { memory: core::ptr::null_mut(), len: 0, envp, gone, _held: Held::NOTHING };
    }
    let len = (count + 2) * size_of::<*const c_char>() + NAME.len() + MOST;
    let memory = memory::reserve(len);
    if memory.is_null() {
        return nothing;
    }
    let pointers = memory as *mut *const c_char;
    let mut held = Held::NOTHING;
    // SAFETY: the memory holds count + 2 pointers and the text behind them.
    unsafe {
        core::ptr::copy_nonoverlapping(envp, pointers, count);
        let text = memory.add((count + 2) * size_of::<*const c_char>());
        *pointers.add(count) = text.cast();
        *pointers.add(count + 1) = core::ptr::null();
        let text = core::slice::from_raw_parts_mut(text, NAME.len() + MOST);
        write_text(text, family, how, &mut held);
    }
    if how == Execution::Borrowed {
        LEFT.set((memory, len));
    }
    Packed { memory, len, envp: pointers, gone: false, _held: held }
}

/// Whether this process has anything to hand on.
fn has_luggage() -> bool {
    connection::recognise_all();
    process::existing_family().is_some() && connections().any(|it| it.end.stage() <= Stage::Joined)
}

/// A socket is about to be passed to another process over `channel`: one of the same family finds its end again, any
/// other sees plain TCP.
pub fn lend(connection: &Connection, channel: i32) {
    connection.end.pin(Reason::Passed);
    if connection.end.stage() == Stage::Joined && !seccomp::is_confined() {
        match taker(channel) {
            Taker::Relative => connection.pin(Reason::Passed),
            Taker::Unknown => connection.hand_over_if_possible(Reason::Passed),
            Taker::Stranger => connection.hand_over(Reason::Passed),
        }
        connection.end.lent_until.store(clock::nanoseconds() + LENT_NS, Release);
        let lend = |meeting: &mut Meeting| meeting.lend(connection.end, connection.index(), connection.fd);
        if process::with_meeting_surely(lend) != Some(true) {
            // Nobody will find its end.
            connection.hand_over(Reason::Passed);
        }
    }
}

/// Who will take what is passed.
enum Taker {
    /// One that has this family's ends, as far as can be told; perhaps this process itself.
    Relative,
    /// One that has none of them yet, and may know how to come to them.
    Unknown,
    /// One without the library.
    Stranger,
}

/// Who takes what is sent over a Unix socket: whoever made its other end. A process that is gone may have left it to its
/// children, and this one to whatever they have executed.
fn taker(channel: i32) -> Taker {
    let Some(family) = process::existing_family() else { return Taker::Stranger };
    let maker = kernel::maker_of_peer(channel).ok().filter(|&pid| pid > 0);
    let asked = maker.map_or(Ok(true), |pid| kernel::has_segment(pid, family.id()));
    match asked {
        Ok(true) | Err(Errno(libc::ENOENT)) if family.has_others(process::member()) => Taker::Relative,
        Ok(true)
            if maker == Some(kernel::process_id()) && kernel::unix_peer(channel).is_some_and(kernel::has_alone) =>
        {
            Taker::Relative
        }
        Ok(true) | Err(Errno(libc::ENOENT)) => Taker::Unknown,
        _ if maker.is_some_and(|pid| kernel::has_file(pid, LIBRARY)) => Taker::Unknown,
        _ => Taker::Stranger,
    }
}

fn connections() -> impl Iterator<Item = Connection> {
    (0..table::highest()).filter_map(connection::known)
}

/// A program is about to be spawned that will know nothing of this library.
pub fn leave_to_spawned() {
    if has_luggage() {
        hand_over_inherited(Execution::Spawned);
    }
}

/// The new image will know nothing of this library: what it inherits is plain TCP by then.
fn hand_over_inherited(how: Execution) {
    inherited(how, |connection| {
        let meant = match how {
            Execution::Spawned => connection.is_given(),
            // Standard input and output are meant for the image, and so is what nobody else can read.
            _ => connection.fd <= libc::STDERR_FILENO || how == Execution::Alone && connection.is_last(),
        };
        if meant { connection.hand_over(Reason::Inherited) } else { connection.pin(Reason::Inherited) }
    });
}

fn stays_open(fd: i32) -> bool {
    kernel::descriptor_flags(fd).is_some_and(|flags| flags & libc::FD_CLOEXEC == 0)
}

/// Calls `what` for each connection that the new image inherits, for each of its descriptors there.
fn inherited(how: Execution, mut what: impl FnMut(Connection)) {
    if how != Execution::Borrowed {
        // What a spawned child gets besides shows in its file actions only; that was noted when they were made.
        let is_given = |it: &Connection| how == Execution::Spawned && it.is_given();
        return connections().filter(|it| stays_open(it.fd) || is_given(it)).for_each(what);
    }
    // The descriptors of a vfork's child are its own, and the table is its parent's: the socket says which end it is.
    let mut look = |fd| {
        if stays_open(fd)
            && kernel::is_tcp(fd)
            && let Ok(cookie) = kernel::cookie(fd)
            && let Some(connection) = connections().find(|it| it.end.cookie.load(Relaxed) == cookie)
        {
            what(connection.by(fd));
        }
    };
    if !kernel::for_each_descriptor(&mut look) {
        (0..table::highest()).for_each(look);
    }
}

/// The cookie of a connection is known from when it may be looked for by that.
pub fn learn_cookies() {
    connections().for_each(|it| learn_cookie(&it));
}

/// The same for one.
pub fn learn_cookie(connection: &Connection) {
    let known = &connection.end.cookie;
    if known.load(Relaxed) == 0
        && !process::borrowed()
        && let Ok(cookie) = kernel::cookie(connection.fd)
    {
        known.store(cookie, Relaxed);
    }
}

/// Number of variables, and whether they name this library to the loader.
///
/// # Safety
/// `envp` must be null or an environment.
unsafe fn inspect(envp: *const *const c_char) -> (usize, bool) {
    let (mut count, mut loads_us) = (0, false);
    if envp.is_null() {
        return (0, false);
    }
    // SAFETY: passed on to the caller.
    unsafe {
        while !(*envp.add(count)).is_null() {
            let variable = CStr::from_ptr(*envp.add(count)).to_bytes();
            loads_us |= variable.starts_with(b"LD_PRELOAD=")
                && variable.windows(LIBRARY.len()).any(|part| part == LIBRARY.as_bytes());
            count += 1;
        }
    }
    (count, loads_us)
}

struct Text<'a>(&'a mut [u8], usize);

impl Write for Text<'_> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let end = self.1 + s.len();
        // One byte stays for the NUL.
        if end >= self.0.len() {
            return Err(core::fmt::Error);
        }
        self.0[self.1..end].copy_from_slice(s.as_bytes());
        self.1 = end;
        Ok(())
    }
}

fn write_text(to: &mut [u8], family: &'static Family, how: Execution, held: &mut Held) {
    let mut text = Text(to, 0);
    // Otherwise the new image has the ends as they are by then.
    let holds = how == Execution::Alone && !family.has_others(process::member());
    let _ = write!(text, "{NAME}={}", family.id());
    let member = process::member().filter(|_| how == Execution::Alone);
    if let Some(member) = member {
        let _ = write!(text, ":{member}");
    }
    inherited(how, |connection| {
        if connection.end.stage() > Stage::Joined {
            return;
        }
        let before = text.1;
        if holds {
            held.hold(&connection);
        }
        if member.is_none() {
            // Whoever closes the connection here must not end it before the new image has come for it. A member's image finds
            // its old one's reference.
            connection.end.lent_until.store(clock::nanoseconds() + LENT_NS, Release);
        }
        if write_one(&mut text, &connection, how == Execution::Alone).is_err() {
            // No room: this one goes plain.
            text.1 = before;
            connection.pin(Reason::Inherited);
        }
    });
    let end = text.1;
    text.0[end] = 0;
}

fn write_one(text: &mut Text<'_>, connection: &Connection, whole: bool) -> core::fmt::Result {
    learn_cookie(connection);
    write!(text, ";{:x}:{}:{}", connection.end.cookie.load(Relaxed), connection.index(), connection.counted())?;
    if whole {
        text.write_char(':')?;
        for byte in bytes(connection.end) {
            write!(text, "{byte:02x}")?;
        }
    }
    Ok(())
}
