//! io_uring, which carries bytes past every libc call. Where this process may have one, its connections stay on the
//! kernel path.
//!
//! Programs set up a ring in three ways. Calls through libc's `syscall` and through liburing's functions come to this
//! library, which refuses them as a kernel without io_uring does. System call instructions of the program's own do not
//! come here. For the program that it runs, the command looks for such code beforehand and installs a filter. In all
//! other programs the library looks for the code, and for a ring, before a connection looks for its other end, and pins
//! all connections if it finds either.

use super::Connection;
use super::look::for_each;
use crate::guest::family;
use crate::guest::memory::Reserved;
use underpass_segment::directory::Directory;
use underpass_segment::io_uring;
use underpass_segment::kernel::{self, Code};
use underpass_segment::layout::{START, fold};
use underpass_segment::raw::{self, Errno};
use underpass_segment::reason::Reason;
use underpass_segment::sync::{AtomicBool, AtomicU32, AtomicU64, Relaxed};

/// Whether this process, or a process that forked it, may have an io_uring.
static HAS_RING: AtomicBool = AtomicBool::new(false);
/// How many connections have asked.
static ASKED: AtomicU32 = AtomicU32::new(0);
/// A sum over the code that was mapped at the last look, and its addresses.
static LOOKED_AT: AtomicU64 = AtomicU64::new(START);

/// Whether this process is known to have an io_uring, by which calls on any connection may bypass the library.
pub fn is_known() -> bool {
    HAS_RING.load(Relaxed)
}

/// Whether this process may have an io_uring. Each connection that has met its other end asks this. Pins all
/// connections if so.
pub fn is_possible() -> bool {
    const ALWAYS: u32 = 16;
    if is_known() {
        return true;
    }
    // A ring, or code for one, may come later: the looks become rare, so that they cost a server of many connections
    // little.
    let asked = ASKED.fetch_add(1, Relaxed).wrapping_add(1);
    // The list of what is mapped takes longer than that of descriptors.
    let looks_at_code = asked.is_power_of_two();
    let found = (asked <= ALWAYS || looks_at_code) && kernel::has_io_uring();
    if found || looks_at_code && may_be_set_up_unseen() {
        pin_all();
    }
    is_known()
}

/// There is an io_uring: pins all connections, also those to come.
pub fn pin_all() {
    if !HAS_RING.swap(true, Relaxed)
        && let Some(family) = family::existing()
    {
        for_each(|index, fd| Connection::at(family, index, fd).pin(Reason::Asynchronous));
    }
}

/// Whether code that has been loaded since the last look can set up a ring past the library, and the kernel lets it.
///
/// Where the code cannot be read, /proc cannot be read either, and no connection meets its other end anyway.
fn may_be_set_up_unseen() -> bool {
    let last = LOOKED_AT.load(Relaxed);
    if last != START {
        let mut now = START;
        let listed = kernel::for_each_code(|code| now = with(now, &code));
        if listed.is_err() || last == now {
            return false;
        }
    }
    let Some(mut search) = Search::new() else { return false };
    let mut now = START;
    let listed = kernel::for_each_code(|code| {
        now = with(now, &code);
        search.look_at(&code);
    });
    if listed.is_err() || !search.is_found && !search.all_seen {
        return false;
    }
    LOOKED_AT.store(now, Relaxed);
    search.is_found && is_offered()
}

/// `sum` with `code` added to what it tells apart: see [`LOOKED_AT`].
fn with(sum: u64, code: &Code<'_>) -> u64 {
    [code.begin, code.len].into_iter().chain(code.path.bytes().map(u64::from)).fold(sum, fold)
}

/// A search through this process's code for what sets up a ring.
struct Search {
    /// Read into.
    piece: Reserved<u8>,
    /// Remembers what need not be searched again. To read code takes 0.2 ms for each MB.
    directory: Option<Directory>,
    is_found: bool,
    /// Whether there were descriptors for all that was to be looked at.
    all_seen: bool,
}

impl Search {
    /// `None` if there is no memory for it.
    fn new() -> Option<Search> {
        const PIECE: usize = 64 << 10;
        let directory = family::with_meeting(|meeting| meeting.directory(kernel::user_id())).flatten();
        Some(Search { piece: Reserved::zeros(PIECE)?, directory, is_found: false, all_seen: true })
    }

    fn look_at(&mut self, code: &Code<'_>) {
        let is_own = (is_possible as *const () as u64).checked_sub(code.begin).is_some_and(|at| at < code.len);
        if self.is_found || is_own || is_harmless(code.path) {
            return;
        }
        let known = self.directory.zip(code.mark());
        if known.is_some_and(|(directory, mark)| directory.is_harmless(mark)) {
            return;
        }
        // Code that was unmapped meanwhile cannot be read: the next look finds another list.
        let Ok(open) = code.open() else { return self.all_seen = false };
        let answer = io_uring::is_set_up_in(code.len, self.piece.items_mut(), |at, to| open.read(at, to));
        self.is_found = answer == Some(true);
        if let Some((directory, mark)) = known.filter(|_| answer == Some(false)) {
            directory.set_harmless(mark);
        }
    }
}

/// liburing, whose functions are refused (`calls::io_uring`), and libc, which has none for it.
fn is_harmless(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or_default().as_bytes();
    io_uring::HARMLESS.iter().any(|it| name.starts_with(it))
}

/// Whether the kernel would set up a ring at all: its error shows that, for a call without a place for the answer.
fn is_offered() -> bool {
    // SAFETY: the kernel refuses a null pointer.
    let refused = unsafe { raw::syscall(libc::SYS_io_uring_setup, [0; 6]) };
    !matches!(refused, Err(Errno(libc::ENOSYS | libc::EPERM)))
}
