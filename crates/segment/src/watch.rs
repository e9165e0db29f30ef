//! What a watcher (`underpass ss`, `underpass top`) sees of the connections of a user's processes, and how `underpass
//! pin` asks for the kernel path.
//!
//! The tables of ends are attached to be read only, and for as long as it takes to copy what is in use. No watched
//! process is asked, stopped or traced, and no lock is taken.
//!
//! [`hold`] and [`let_go`] attach the tables to be written. They write only two words, each by one atomic step, after
//! which every other value in the table is as right as before: a bit of the byte at which a sender looks with each
//! message anyway (the sender then goes down as it does where the ring is full), and the cookies of
//! [orders](crate::family). If an end is given to another connection just then, the command lets go of it again. So no
//! process of the connection has to answer, and a command that is killed in between has pinned its connection, or has
//! not.
//!
//! A watcher counts among the processes that have a table attached while it looks. Two decisions depend on that number.
//! First, what dead members have left is taken back only if no unknown process has the table attached: a watcher puts
//! that off to the next time. Second, whether a passed socket may go to a process of the same family: that depends on
//! the members, and a watcher is not a member ([`Family::has_others`]). The number of processes that have a pool
//! decides more, so a watcher attaches no pools: how much is in a ring follows from the two ends.
//!
//! What is read may be any value: another process of the user may write to a table at any time.
#![allow(unsafe_code, reason = "detaches the table that nothing refers to any more")]

mod holding;
mod tapping;

use crate::clock;
use crate::end::{End, SHUT_OUT, Stage, Whereabouts};
use crate::family::Family;
use crate::kernel;
use crate::raw::Errno;
use crate::reason::Reason;
use crate::ring::{POSITION_BITS, Place};
use crate::sync::{Acquire, AtomicU64, Relaxed, fence};
pub use holding::{Outcome, Subject, hold, let_go, ordered};
pub use tapping::{NoTapping, Tapping};

/// Most System V segments that a system can have (IPCMNI).
const MOST_SEGMENTS: usize = 1 << 15;

/// One direction as one end knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// The stream is in the ring.
    pub fast: bool,
    /// Bytes so far by the ring, without those that `--stats` has reported.
    pub ring_bytes: u64,
    /// Bytes so far by kernel TCP, without those that `--stats` has reported.
    pub kernel_bytes: u64,
    /// Where in the ring this end stands: behind what it has sent, or before what it has not read.
    pub position: u64,
}

/// One end of a connection, as it was a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The user whose table it is in.
    pub user: u32,
    /// Its socket's cookie; 0: it has not looked for its other end yet, which is what asks for the cookie.
    pub cookie: u64,
    /// The cookie of the socket at the other end; 0: not known.
    pub other_cookie: u64,
    /// How far it has come.
    pub stage: Stage,
    /// Why it is on the kernel path, while it is.
    pub reason: Reason,
    /// Whether `underpass pin` asks that it stays there: see [`hold`].
    pub held: bool,
    /// Whether it stays there for good, whatever is asked from outside, and not because the program sends no more.
    pub pinned: bool,
    /// The processes that have it, by their numbers here; without processes that have no known number here.
    pub processes: Vec<u32>,
    /// Size of each ring; `None` without a channel.
    pub ring_size: Option<u32>,
    /// The direction out.
    pub sending: Way,
    /// The direction in.
    pub receiving: Way,
    /// Doorbells sent.
    pub bells: u64,
    /// Times a receive waited, by polling at first, modulo 2^32.
    pub waits: u32,
    /// Times such a wait ended in a sleep.
    pub sleeps: u64,
    /// Mean of the last waits, without what waking a sleeper took: while it is above `spin_us`, a receive sleeps at
    /// once.
    pub mean_wait_ns: u64,
}

/// How many bytes a reader has not taken out of its ring yet; `None` where the two were not seen at one time, or do not
/// say what can be.
///
/// What lies between sender and reader in the ring bounds it, but has headers too, and the whole rest of the ring where
/// the sender has begun at the front again. What the two have counted bounds it too, but counts what was put on kernel
/// TCP after all, and begins anew where a process has reported it. The lesser of the two is meant.
pub fn unread(sender: &Way, reader: &Way, ring_size: u32) -> Option<u64> {
    let between = crate::ring::distance(reader.position, sender.position);
    let counted = sender.ring_bytes.checked_sub(reader.ring_bytes).unwrap_or(between);
    (between <= ring_size.into()).then_some(between.min(counted))
}

/// The users whose tables are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// One user's.
    User(u32),
    /// All users' of this IPC namespace, as far as the kernel lets this process attach them (CAP_IPC_OWNER).
    All,
}

/// Everything in the tables of user `uid` that is in use. A table of another version of the library is not seen.
///
/// # Errors
/// What shmat says, except that a table was gone meanwhile.
pub fn look(uid: u32) -> Result<Vec<Seen>, Errno> {
    let mine = kernel::namespaces();
    look_at(Whose::User(uid), &|namespaces, number| (mine == Some(namespaces)).then_some(number))
}

/// Everything in the tables of `whose` that is in use. `name` translates a process's number in given namespaces (as
/// [`kernel::namespaces`] has them) into its number here.
///
/// # Errors
/// As for [`look`].
pub fn look_at(whose: Whose, name: &dyn Fn(u64, u32) -> Option<u32>) -> Result<Vec<Seen>, Errno> {
    let mut seen = Vec::new();
    each_table(whose, Family::open_to_read, |table| table.read(name, &mut seen))?;
    Ok(seen)
}

/// The users that have tables in this IPC namespace, as far as this process may know.
pub fn users() -> Vec<u32> {
    let mut users = Vec::new();
    Family::find_of_all(|_, uid| users.push(uid));
    users.sort_unstable();
    users.dedup();
    users
}

/// Calls `what` with each table of `whose`, attached by `open`: one after another, since many take much address space.
fn each_table(
    whose: Whose,
    open: fn(i32, u32) -> Result<Family, Errno>,
    mut what: impl FnMut(Table),
) -> Result<(), Errno> {
    for (id, uid) in numbers(whose) {
        match open(id, uid) {
            Ok(family) => what(Table(family, uid)),
            // EACCES: the number is another segment's by now.
            Err(Errno(libc::EINVAL | libc::EIDRM | libc::EACCES)) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(())
}

/// The numbers of the tables, each with its user.
fn numbers(whose: Whose) -> Vec<(i32, u32)> {
    let mut numbers = Vec::new();
    match whose {
        Whose::All => Family::find_of_all(|id, uid| numbers.push((id, uid))),
        Whose::User(uid) => {
            let mut ids = vec![0; MOST_SEGMENTS];
            let found = Family::find(uid, &mut ids);
            numbers.extend(ids[..found].iter().map(|&id| (id, uid)));
        }
    }
    numbers
}

/// A table of ends that is attached for a moment, and its user. Only those functions of [`Family`] may be used that
/// change nothing, besides the changes named above.
struct Table(Family, u32);

impl Table {
    fn read(&self, name: &dyn Fn(u64, u32) -> Option<u32>, to: &mut Vec<Seen>) {
        for index in 0..self.0.used() {
            let end = self.0.end(index);
            let Some(mut seen) = copy(end) else { continue };
            seen.user = self.1;
            let members = self.0.holders(index).iter().filter_map(|member| self.0.process(member));
            seen.processes = members.filter_map(|(namespaces, number)| name(namespaces, number)).collect();
            if is_as_copied(end, &seen) {
                to.push(seen);
            }
        }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // SAFETY: `read` hands out copies only.
        unsafe { self.0.detach() };
    }
}

/// `None` if no process has the end.
fn copy(end: &End) -> Option<Seen> {
    if !end.owners.are_any() {
        return None;
    }
    let get = |word: &AtomicU64| word.load(Relaxed);
    let (out, back) = (&end.sending, &end.reading);
    let stage = end.stage();
    let (joined, shape) = (stage == Stage::Joined, end.shape());
    // The reader's position first, because it never passes its sender's.
    let place = Place::unpack(get(&back.place));
    Some(Seen {
        user: 0,
        cookie: get(&end.cookie),
        other_cookie: get(&end.peer_cookie),
        stage,
        reason: end.reason(),
        held: end.is_held(),
        pinned: stage > Stage::Joined || end.is_pinned() && end.shut.load(Relaxed) & SHUT_OUT == 0,
        processes: Vec::new(),
        ring_size: shape.is_sane().then_some(shape.ring_bytes),
        sending: Way {
            fast: joined && out.fast.load(Relaxed) != 0,
            ring_bytes: get(&out.fast_bytes),
            kernel_bytes: get(&out.kernel_bytes),
            position: get(&out.tail) & ((1 << POSITION_BITS) - 1),
        },
        receiving: Way {
            fast: joined && back.fast.load(Relaxed) != 0 && back.whereabouts() == Whereabouts::Here,
            ring_bytes: get(&back.fast_bytes),
            kernel_bytes: get(&back.kernel_bytes),
            position: place.head,
        },
        bells: get(&end.bells_sent),
        waits: back.waits.load(Relaxed),
        sleeps: get(&end.sleeps),
        mean_wait_ns: (get(&end.reading.mean_wait) / 8).saturating_mul(1000) / clock::measured_ticks_per_microsecond(),
    })
}

/// Whether the end was not given to another connection meanwhile, as far as can be told.
fn is_as_copied(end: &End, seen: &Seen) -> bool {
    fence(Acquire);
    end.owners.are_any() && end.cookie.load(Relaxed) == seen.cookie
}

#[cfg(test)]
mod tests;
