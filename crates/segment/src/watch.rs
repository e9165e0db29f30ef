//! What somebody who only watches sees of the connections of a user's processes: `underpass ss` and `underpass top`.
//!
//! The tables of ends are attached to be read only, and for as long as it takes to copy what is in use. No watched process
//! is asked, stopped or traced, and no lock is taken.
//!
//! A watcher counts among the processes that have a table attached while it looks. Two decisions look at that number.
//! What members have left that are gone is taken back only if no unknown process has the table: one that watches puts that
//! off to the next time. Whether a socket that is passed on may go to a relative: that looks at the members, of whom a watcher
//! is none ([`Family::has_others`]). The number of processes that have a pool decides more, so pools are not attached: how
//! much is in a ring follows from the two ends.
//!
//! What is read may be any value: another process of the user may write to a table at any time.
#![allow(unsafe_code, reason = "detaches the table that nothing refers to any more")]

use crate::end::{End, Family, Stage};
use crate::kernel;
use crate::raw::Errno;
use crate::reason::Reason;
use crate::ring::{POSITION_BITS, Place};
use crate::sync::{Acquire, AtomicU64, Relaxed, fence};

/// Most segments that a system can have (IPCMNI).
const MOST_SEGMENTS: usize = 1 << 15;

/// One direction as one end knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// The stream is in the ring.
    pub fast: bool,
    /// Bytes so far by the ring, of which --stats has not told yet.
    pub ring_bytes: u64,
    /// Bytes so far by kernel TCP, of which --stats has not told yet.
    pub kernel_bytes: u64,
    /// Where in the ring this end stands: behind what it has sent, or before what it has not read.
    pub position: u64,
}

/// One end of a connection, as it was a moment ago.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its socket's cookie; 0: it has not looked for its other end yet, which is what asks for the cookie.
    pub cookie: u64,
    /// The cookie of the socket at the other end; 0: not known.
    pub other_cookie: u64,
    /// How far it has come.
    pub stage: Stage,
    /// Why it is on the kernel path, while it is.
    pub reason: Reason,
    /// The processes that have it, as numbered here; empty where those are numbered in other namespaces.
    pub processes: Vec<u32>,
    /// Size of each ring; `None` without a segment.
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
}

/// How many bytes of ring lie between its sender and its reader, headers included; `None` where the two were not seen at one
/// time, or do not say what can be.
pub fn fill(sender: &Way, reader: &Way, ring_size: u32) -> Option<u64> {
    let between = crate::ring::distance(reader.position, sender.position);
    (between <= ring_size.into()).then_some(between)
}

/// Everything in the tables of user `uid` that is in use. A table of another version of the library is not seen.
///
/// # Errors
/// What shmat says, except that a table was gone meanwhile.
pub fn look(uid: u32) -> Result<Vec<Seen>, Errno> {
    let mut ids = vec![0; MOST_SEGMENTS];
    let found = Family::find(uid, &mut ids);
    let namespaces = kernel::namespaces();
    let mut seen = Vec::new();
    for &id in &ids[..found] {
        match Table::attach(id, uid) {
            Ok(table) => table.read(namespaces, &mut seen),
            // EACCES: the number is another segment's by now.
            Err(Errno(libc::EINVAL | libc::EIDRM | libc::EACCES)) => {}
            Err(other) => return Err(other),
        }
    }
    Ok(seen)
}

/// A table of ends that is attached for a moment. Of what [`Family`] offers, only what changes nothing may be used.
struct Table(Family);

impl Table {
    fn attach(id: i32, uid: u32) -> Result<Table, Errno> {
        Family::open_to_read(id, uid).map(Table)
    }

    fn read(&self, namespaces: Option<u64>, to: &mut Vec<Seen>) {
        for index in 0..self.0.used() {
            let end = self.0.end(index);
            let Some(mut seen) = copy(end) else { continue };
            if let Some(namespaces) = namespaces {
                let members = self.0.holders(index).iter();
                seen.processes = members.filter_map(|member| self.0.process(member, namespaces)).collect();
            }
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

/// `None` if nobody has the end.
fn copy(end: &End) -> Option<Seen> {
    if end.references.load(Acquire) == 0 {
        return None;
    }
    let get = |word: &AtomicU64| word.load(Relaxed);
    let (out, back) = (&end.sending, &end.reading);
    let stage = end.stage();
    let (joined, shape) = (stage == Stage::Joined, end.shape());
    // The reader's first: it never passes its sender.
    let place = Place::unpack(get(&back.place));
    Some(Seen {
        cookie: get(&end.cookie),
        other_cookie: get(&end.peer_cookie),
        stage,
        reason: end.reason(),
        processes: Vec::new(),
        ring_size: shape.is_sane().then_some(shape.ring_bytes),
        sending: Way {
            fast: joined && out.fast.load(Relaxed) != 0,
            ring_bytes: get(&out.fast_bytes),
            kernel_bytes: get(&out.kernel_bytes),
            position: get(&out.tail) & ((1 << POSITION_BITS) - 1),
        },
        receiving: Way {
            fast: joined && back.fast.load(Relaxed) != 0 && back.left.load(Relaxed) == 0,
            ring_bytes: get(&back.fast_bytes),
            kernel_bytes: get(&back.kernel_bytes),
            position: place.head,
        },
        bells: get(&end.bells),
        waits: back.waits.load(Relaxed),
        sleeps: get(&end.sleeps),
    })
}

/// Whether the end was not given to another connection meanwhile, as far as can be told.
fn is_as_copied(end: &End, seen: &Seen) -> bool {
    fence(Acquire);
    end.references.load(Relaxed) != 0 && end.cookie.load(Relaxed) == seen.cookie
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::Shape;

    #[test]
    fn what_is_in_use_is_seen_and_nothing_is_left() {
        let family = Family::create().unwrap();
        let member = family.join();
        let (kept, gone) = (family.take(member).unwrap(), family.take(member).unwrap());
        family.end(gone).references.store(0, Relaxed);
        family.give_back(gone);
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
        assert!(!seen[0].sending.fast, "not joined");
        assert_eq!(seen[0].sending.position, (1 << POSITION_BITS) - 1);
        assert_eq!(fill(&seen[0].sending, &seen[0].receiving, 1 << 16), None);

        end.advance(Stage::Joined);
        end.sending.tail.store(4096, Relaxed);
        // A shape that is none is not believed.
        end.set_shape(Shape { ring_bytes: 12345, slots: 4 });
        let seen = mine();
        assert_eq!((seen[0].sending.fast, seen[0].sending.ring_bytes, seen[0].ring_size), (true, 77, None));
        assert_eq!(fill(&seen[0].sending, &seen[0].receiving, 1 << 16), Some(4096));
        assert!(look(kernel::user_id() + 1).unwrap().iter().all(|it| it.cookie != 0xfeed_0001));
        assert_eq!(family.attached(), Some(1));
    }

    #[test]
    fn who_watches_is_no_relative() {
        let family = Family::create().unwrap();
        let me = family.join();
        assert!(!family.has_others(me));
        let watching = Table::attach(family.id(), kernel::user_id()).unwrap();
        assert_eq!(family.attached(), Some(2));
        assert!(!family.has_others(me));
        let child = family.expect();
        assert!(family.has_others(me));
        family.forked(child.unwrap(), None);
        assert!(!family.has_others(me));
        drop(watching);
    }
}
