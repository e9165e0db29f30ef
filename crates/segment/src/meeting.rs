//! How the two ends of a connection come to share a channel.
//!
//! An end that wants to go up asks the kernel for the socket at the other end ([`kernel::peer`]): its cookie, inode and
//! user. If it is this user's, the end asks the [`Directory`]; the first end leaves its name, the second makes the
//! channel and offers it. Each end believes the other only if the kernel shows that the process which claims to hold
//! the other socket really has it among its descriptors, and that this process made the pool, for this user alone.
//!
//! An end that cannot find its other end so asks the broker, if there is one (`brokered`). So does an end for which no
//! other end comes to the directory (`direct`), because each IPC namespace has a directory of its own.
//!
//! A [`Meeting`] is what one process needs for that. It is used by one thread at a time; a thread that finds it in
//! use goes on with kernel TCP and comes back later.
#![allow(unsafe_code, reason = "detaches pools that nothing uses")]

mod broker;
mod brokered;
mod direct;
mod lending;
mod pools;

use crate::channel::{Channel, Pool, Side};
use crate::config::SocketPath;
use crate::directory::Directory;
use crate::end::{Asked, End, Stage};
use crate::kernel;
use crate::reason::Reason;
use crate::sync::{Relaxed, Release};
use crate::words::{CLOSED, ORPHANED};
use broker::Broker;
pub use broker::is_asking;
use pools::{Attached, POOLS};

/// What the directory says to an end that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing yet.
    None,
    /// The other end has offered a channel.
    Offer,
    /// The directory does not know the end. It goes with the last process that has it, which may have executed a
    /// program. The other end asks a new directory, so this end asks again.
    Forgotten,
}

/// What this process needs to meet others.
pub struct Meeting {
    family: i32,
    ring_bytes: u32,
    directory: Option<Directory>,
    let_go: fn(i32, *const u8) -> bool,
    broker: Broker,
    /// How often in a row an end that waits in the directory has asked the broker as well, and did not meet its other
    /// end there.
    asked_in_vain: u32,
    /// [`Meeting::fetch`] has waited for a descriptor, and none became free.
    lacks_descriptors: bool,
    /// How often in a row memory of the broker was [withheld](broker::Outcome::Withheld).
    withheld: u32,
    pools: [Option<Attached>; POOLS],
}

impl Meeting {
    /// For a process none of whose ends has met its other end yet.
    pub const fn new() -> Meeting {
        Meeting {
            family: 0,
            ring_bytes: 1 << 20,
            directory: None,
            let_go: |_, _| true,
            broker: Broker::new(SocketPath::NONE),
            asked_in_vain: 0,
            lacks_descriptors: false,
            withheld: 0,
            pools: [const { None }; POOLS],
        }
    }

    /// Says which family the ends of this process belong to, how large its rings are to be, and where the broker
    /// listens. `let_go` is asked before a pool (by its number and its address) is detached, and returns true if
    /// nothing uses the pool.
    pub fn set_up(&mut self, family: i32, ring_bytes: u32, broker: SocketPath, let_go: fn(i32, *const u8) -> bool) {
        self.let_go = let_go;
        self.family = family;
        self.ring_bytes = ring_bytes;
        self.broker = Broker::new(broker);
    }

    /// In a forked child: the pools that the parent made stay attached, but only the parent gives their slots away.
    pub fn after_fork(&mut self) {
        self.broker.after_fork();
        for pool in self.pools.iter_mut().flatten() {
            pool.made_for = None;
            pool.given = None;
        }
    }

    /// In a forked child whose parent was changing this in another thread, or where a child of vfork was killed while
    /// it changed this. No word of it can be relied on, so segments are attached once more when they are needed. Pools
    /// that are in use stay where they are.
    pub fn begin_anew(&mut self) {
        self.directory = None;
        self.broker.begin_anew();
        self.pools.fill(None);
    }

    /// What the directory, or the broker, says to an end that waits. Mostly a few loads.
    pub fn answer(&mut self, end: &End) -> Answer {
        let answer = self.answer_of_directory(end);
        match (answer, end.asked()) {
            (Answer::Offer, _) => Answer::Offer,
            (Answer::None, Asked::Nothing) if self.is_left_alone(end) => Answer::Offer,
            (_, Asked::Nothing) => answer,
            _ => match self.answer_of_broker(end) {
                Answer::Forgotten if answer == Answer::None => {
                    end.set_asked(Asked::Nothing);
                    Answer::None
                }
                of_broker => of_broker,
            },
        }
    }

    /// An end that waits takes the channel that it has been offered, or goes on with its ask of the broker.
    pub fn take_offer(&mut self, end: &End, fd: i32) {
        let pid = kernel::process_id();
        if let Some((directory, index, key)) = self.entry(end) {
            if directory.is_sent_on(index, key) {
                if directory.clear(index, key, pid) {
                    end.entry.store(0, Relaxed);
                    if end.asked() == Asked::Nothing {
                        self.seek_by_broker(end, fd, Reason::Unproven);
                    }
                }
                return;
            }
            if let Some(offer) = directory.offered(index, key) {
                return self.take_offer_of_directory(end, fd, (directory, index, key), offer);
            }
        }
        match end.asked() {
            Asked::Nothing => self.ask_broker_as_well(end, fd),
            _ => self.follow_broker(end, fd),
        }
    }

    fn join(&mut self, end: &End, fd: i32, pool: Pool, slot: u32, channel: &Channel) {
        end.pool.store(pool.id(), Relaxed);
        end.slot.store(slot, Relaxed);
        end.set_shape(pool.shape());
        end.side.store(channel.side() as u8, Relaxed);
        end.set_reason(Reason::Met);
        if let Some(name) = self.directory.and_then(|directory| directory.tap()) {
            end.set_tap(name);
        }
        end.advance(Stage::Joined);
        if end.owners.is_lent() {
            // An image that was lent it before knows nothing of the ring.
            kernel::set_tagged(fd, true);
        }
        // After the end has joined: if the program changes SO_LINGER from now on, that call tells the other end.
        channel.tell_of_close(fd);
    }

    /// A joined end is closed in all processes.
    pub fn close(&mut self, end: &End, channel: &Channel) {
        self.close_as(CLOSED, end, channel);
    }

    /// All processes that had a joined end are gone, and none of them has closed it.
    pub fn close_for_killed(&mut self, end: &End, channel: &Channel) {
        self.close_as(ORPHANED, end, channel);
    }

    fn close_as(&mut self, how: u32, end: &End, channel: &Channel) {
        channel.outgoing().sender.ended.store(1, Relaxed);
        channel.incoming().flags.closed.store(how, Release);
        end.pin_sending();
        self.end_lending(end);
        if channel.side() == Side::Maker && channel.claim(end.peer_cookie.load(Relaxed)) {
            // The other end never came, so it will never close.
            channel.outgoing().flags.closed.store(CLOSED, Release);
            self.withdraw(end);
        }
    }

    /// The processes that had a joined or waiting end are gone; this process never had it.
    pub fn close_orphan(&mut self, end: &End) {
        if !end.has_channel() {
            return self.withdraw(end);
        }
        let attached = self.attached(end.pool.load(Relaxed)).map(|it| it.pool);
        let Some(pool) = attached.or_else(|| Some(self.open(end)?.0)) else { return };
        if let Some(channel) = pool.slot(end.slot.load(Relaxed), end.side()) {
            self.close_for_killed(end, &channel);
        }
        if attached.is_none() && !pool.is_brokered() {
            // SAFETY: nobody else knows of this mapping.
            unsafe { pool.detach() };
        }
    }

    /// The directory of user `uid`.
    pub fn directory(&mut self, uid: u32) -> Option<Directory> {
        if self.directory.is_none_or(|d| d.uid() != uid) {
            self.directory = Directory::open(uid).ok();
        }
        self.directory
    }
}

impl Default for Meeting {
    fn default() -> Meeting {
        Meeting::new()
    }
}

/// The reason for an other end that was not found where it should be: `suspicion`, unless it has closed meanwhile.
fn unless_closed(fd: i32, suspicion: Reason) -> Reason {
    let open = kernel::counters(fd).is_ok_and(|it| it.state == kernel::ESTABLISHED);
    if open { suspicion } else { Reason::Closed }
}

#[cfg(all(test, not(loom)))]
mod asking;
#[cfg(all(test, not(loom)))]
mod tests;
