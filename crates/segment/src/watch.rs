//! What a watcher (`underpass ss`, `underpass top`) sees of the connections of a user's processes, and how `underpass
//! pin` asks for the kernel path.
//!
//! The tables of ends are attached to be read only, and for as long as it takes to copy what is in use. No watched process
//! is asked, stopped or traced, and no lock is taken.
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

use crate::clock;
use crate::directory::Directory;
use crate::end::{End, SHUT_OUT, Stage, Whereabouts};
use crate::family::Family;
use crate::kernel;
use crate::raw::Errno;
use crate::reason::Reason;
use crate::ring::{POSITION_BITS, Place};
use crate::sync::{Acquire, AtomicU64, Relaxed, SeqCst, fence};
use crate::tap::Name;

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
    /// Mean of the last waits, without what waking a sleeper took: while it is above `spin_us`, a receive sleeps at once.
    pub mean_wait_ns: u64,
}

/// How many bytes of ring lie between its sender and its reader, headers included; `None` where the two were not seen at one
/// time, or do not say what can be.
pub fn fill(sender: &Way, reader: &Way, ring_size: u32) -> Option<u64> {
    let between = crate::ring::distance(reader.position, sender.position);
    (between <= ring_size.into()).then_some(between)
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

/// The same for the tables of `whose`. `name` translates a process's number in given namespaces (as
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

/// The cookies among these for which orders wait, with errors as for [`look`].
///
/// # Errors
/// As for [`look`].
pub fn ordered(whose: Whose, cookies: &[u64]) -> Result<Vec<u64>, Errno> {
    let mut waits = vec![false; cookies.len()];
    each_table(whose, Family::open_to_read, |table| {
        cookies.iter().zip(&mut waits).for_each(|(&cookie, waits)| *waits |= table.0.is_ordered(cookie));
    })?;
    Ok(cookies.iter().zip(waits).filter(|it| it.1).map(|it| *it.0).collect())
}

/// A socket that is to be kept on the kernel path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its cookie.
    pub cookie: u64,
    /// The processes that have it.
    pub processes: Vec<u32>,
}

/// The result of an attempt to hold a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its end is held.
    Held,
    /// It will be held as soon as it is used.
    Ordered,
    /// Too many that were never used are held there already.
    Full,
    /// None of its processes has a table.
    Unknown,
}

/// Asks that the sockets of `subjects`, which are user `uid`'s, stay on the kernel path until [`let_go`]: each goes down with
/// its next send. `is_there` says of a cookie whether there is still such a socket.
///
/// # Errors
/// As for [`look`].
pub fn hold(uid: u32, subjects: &[Subject], is_there: impl Fn(u64) -> bool) -> Result<Vec<Outcome>, Errno> {
    let tables = tables(uid)?;
    let hold = |cookie| tables.iter().filter(|table| table.change(cookie, End::hold)).count() > 0;
    let one = |it: &Subject| {
        if hold(it.cookie) {
            return Outcome::Held;
        }
        let outcome = order(&tables, it, &is_there);
        // The end may have learnt its cookie meanwhile. The order is left before this look, and an end has its cookie
        // before it looks for orders.
        fence(SeqCst);
        if outcome == Outcome::Ordered && hold(it.cookie) {
            tables.iter().for_each(|table| _ = table.0.take_back_order(it.cookie));
            return Outcome::Held;
        }
        outcome
    };
    Ok(subjects.iter().map(one).collect())
}

fn order(tables: &[Table], subject: &Subject, is_there: impl Fn(u64) -> bool) -> Outcome {
    let Some(namespaces) = kernel::namespaces() else { return Outcome::Unknown };
    let of = |table: &&Table| subject.processes.iter().any(|&process| table.0.is_of(process, namespaces));
    let outcomes = tables.iter().filter(of).map(|Table(family, _)| {
        if family.order(subject.cookie) {
            return Outcome::Ordered;
        }
        family.forget_orders(&is_there);
        if family.order(subject.cookie) { Outcome::Ordered } else { Outcome::Full }
    });
    // Each end of the cookie: any of its processes may use the connection.
    outcomes.fold(Outcome::Unknown, |all, it| if all == Outcome::Ordered { all } else { it })
}

/// Takes back what was asked by [`hold`] of the sockets with these cookies: they may go up with their next send. Says of each
/// whether anything was asked.
///
/// # Errors
/// As for [`look`].
pub fn let_go(uid: u32, cookies: &[u64]) -> Result<Vec<bool>, Errno> {
    let tables = tables(uid)?;
    let one = |&cookie: &u64| {
        // Orders first: a thread that carries one out meanwhile holds the end before it looks whether the order still
        // stands.
        let ordered = tables.iter().filter(|table| table.0.take_back_order(cookie)).count() > 0;
        fence(SeqCst);
        let held = |end: &End| end.is_held() && (end.let_go_up(), true).1;
        let mut any = ordered;
        tables.iter().for_each(|table| _ = table.change(cookie, |end| any |= held(end)));
        any
    };
    Ok(cookies.iter().map(one).collect())
}

/// The tables of user `uid`, all of them attached, to be written.
fn tables(uid: u32) -> Result<Vec<Table>, Errno> {
    let mut all = Vec::new();
    each_table(Whose::User(uid), Family::open, |table| all.push(table))?;
    Ok(all)
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

/// While this lives, what the connections of a user's processes put into their rings is copied to a tap.
///
/// This is the other way in which a watcher changes a table: a word of each end, which its senders look at.
#[derive(Debug)]
pub struct Tapping {
    directory: Directory,
    name: Name,
}

/// Why there is no [`Tapping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTapping {
    /// Another capture is under way.
    Another,
    /// What shmget or shmat says.
    Memory(Errno),
}

impl From<Errno> for NoTapping {
    fn from(error: Errno) -> NoTapping {
        NoTapping::Memory(error)
    }
}

impl Tapping {
    /// Names the tap to all processes of user `uid`, those to come as well.
    ///
    /// # Errors
    /// See [`NoTapping`].
    pub fn begin(uid: u32, name: Name) -> Result<Tapping, NoTapping> {
        let directory = Directory::open(uid)?;
        if !directory.set_tap(name) {
            return Err(NoTapping::Another);
        }
        let tapping = Tapping { directory, name };
        // An end that joins later finds the tap in the directory.
        tapping.for_each_end(|end| end.set_tap(name))?;
        Ok(tapping)
    }

    fn for_each_end(&self, what: impl Fn(&End)) -> Result<(), Errno> {
        for (id, uid) in numbers(Whose::User(self.directory.uid())) {
            match Family::open(id, uid) {
                Ok(family) => {
                    let ends = (0..family.used()).map(|index| family.end(index));
                    ends.filter(|end| end.owners.are_any()).for_each(&what);
                    // SAFETY: nothing of it is kept.
                    unsafe { family.detach() };
                }
                Err(Errno(libc::EINVAL | libc::EIDRM | libc::EACCES)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}

impl Drop for Tapping {
    fn drop(&mut self) {
        self.directory.forget_tap(self.name);
        // If that fails, the next sender sees that the tap is gone.
        let _ = self.for_each_end(|end| end.end_tap(self.name));
    }
}

/// A table of ends that is attached for a moment, and its user. Only those functions of [`Family`] may be used that
/// change nothing, besides the changes named above.
struct Table(Family, u32);

impl Table {
    /// Does `what` to the ends with this cookie; false if there is none.
    fn change(&self, cookie: u64, mut what: impl FnMut(&End)) -> bool {
        let is_it = |end: &End| end.owners.are_any() && end.cookie.load(Acquire) == cookie;
        let mut any = false;
        for end in (0..self.0.used()).map(|index| self.0.end(index)).filter(|end| cookie != 0 && is_it(end)) {
            what(end);
            fence(SeqCst);
            if is_it(end) {
                any = true;
            } else {
                // The end is another connection's by now.
                end.let_go_up();
            }
        }
        any
    }

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
mod tests {
    use super::*;
    use crate::channel::Shape;

    #[test]
    fn what_is_in_use_is_seen_and_nothing_is_left() {
        let family = Family::create().unwrap();
        let member = family.join();
        let (kept, gone) = (family.take(member).unwrap(), family.take(member).unwrap());
        family.end(gone).owners.leave();
        family.free(gone);
        let end = family.end(kept);
        end.cookie.store(0xfeed_0001, Relaxed);
        end.set_shape(Shape { ring_bytes: 1 << 16, slots: 4 });
        end.sending.fast.store(1, Relaxed);
        end.sending.tail.store(u64::MAX, Relaxed);
        end.sending.fast_bytes.store(77, Relaxed);
        let mine = || {
            let all = look(kernel::user_id()).unwrap();
            all.into_iter().filter(|it| it.cookie == 0xfeed_0001).collect::<Vec<_>>()
        };
        let seen = mine();
        assert_eq!((seen.len(), &seen[0].processes, seen[0].stage), (1, &vec![std::process::id()], Stage::Plain));
        assert!(!seen[0].sending.fast && seen[0].user == kernel::user_id(), "not joined");
        assert_eq!(seen[0].sending.position, (1 << POSITION_BITS) - 1);
        assert_eq!(fill(&seen[0].sending, &seen[0].receiving, 1 << 16), None);

        end.advance(Stage::Joined);
        end.sending.tail.store(4096, Relaxed);
        // A shape that is not sane is not believed.
        end.set_shape(Shape { ring_bytes: 12345, slots: 4 });
        let seen = mine();
        assert_eq!((seen[0].sending.fast, seen[0].sending.ring_bytes, seen[0].ring_size), (true, 77, None));
        assert_eq!(fill(&seen[0].sending, &seen[0].receiving, 1 << 16), Some(4096));
        assert!(look(kernel::user_id() + 1).unwrap().iter().all(|it| it.cookie != 0xfeed_0001));
        family.await_attached(1);
    }

    #[test]
    fn what_is_held_is_let_go_of_again() {
        let family = Family::create().unwrap();
        let (user, member) = (kernel::user_id(), family.join());
        let [known, young] = [0xfeed_0002, 0].map(|cookie| {
            let end = family.end(family.take(member).unwrap());
            end.cookie.store(cookie, Relaxed);
            end
        });
        let cookies = [0xfeed_0002, 0xfeed_0003, 0xfeed_0004];
        let subject = |cookie, process| Subject { cookie, processes: vec![process] };
        let me = std::process::id();
        let subjects = [subject(cookies[0], me), subject(cookies[1], me), subject(cookies[2], u32::MAX)];
        for _ in 0..2 {
            assert_eq!(
                hold(user, &subjects, |_| true),
                Ok(vec![Outcome::Held, Outcome::Ordered, Outcome::Unknown]),
                "and once more"
            );
        }
        assert_eq!((known.is_held(), young.is_held(), known.reason()), (true, false, Reason::Asked));
        assert_eq!(ordered(Whose::User(user), &cookies), Ok(vec![cookies[1]]));
        let seen = look(user).unwrap().into_iter().find(|it| it.cookie == cookies[0]).unwrap();
        assert_eq!((seen.held, seen.pinned, seen.reason), (true, false, Reason::Asked));

        // It learns its cookie.
        young.cookie.store(cookies[1], Relaxed);
        family.carry_out_order(young);
        assert!(young.is_held() && !family.has_orders());
        assert_eq!(let_go(user, &cookies), Ok(vec![true, true, false]));
        assert_eq!((known.is_held(), young.is_held(), known.reason()), (false, false, Reason::Unused));
        assert_eq!(let_go(user, &cookies), Ok(vec![false; 3]));

        // What is pinned for good says why.
        known.hold();
        known.pin(Reason::Urgent);
        assert_eq!((known.reason(), known.stage()), (Reason::Urgent, Stage::Pinned));
        family.await_attached(1);
    }

    #[test]
    fn who_watches_is_no_relative() {
        let family = Family::create().unwrap();
        let me = family.join();
        assert!(!family.has_others(me));
        let watching = Table(Family::open_to_read(family.id(), kernel::user_id()).unwrap(), 0);
        family.await_attached(2);
        assert!(!family.has_others(me));
        let child = family.expect();
        assert!(family.has_others(me));
        family.forked(child.unwrap(), None);
        assert!(!family.has_others(me));
        drop(watching);
    }
}
