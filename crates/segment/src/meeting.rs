//! How the two ends of a connection come to share a channel.
//!
//! An end that wants to go up asks the kernel for the socket at the other end ([`kernel::peer`]): its cookie, inode and
//! user. If it is this user's, the end asks the [`Directory`]; the first end leaves its name, the second makes the
//! channel and offers it. Each end believes the other only if the kernel shows that the process which claims to hold
//! the other socket really has it among its descriptors, and that this process made the pool, for this user alone.
//!
//! An end that cannot find its other end so asks the broker, if there is one (`brokered`). So does an end for which no
//! other end comes to the directory, because each IPC namespace has a directory of its own.
//!
//! A [`Meeting`] is what one process needs for that. It is used by one thread at a time; a thread that finds it in
//! use goes on with kernel TCP and comes back later.
#![allow(unsafe_code, reason = "detaches pools that nothing uses")]

mod broker;
mod brokered;

use crate::channel::{Channel, Pool, Shape, Side};
use crate::clock;
use crate::config::SocketPath;
use crate::directory::{Directory, Found, Holder, Key, Lent, Offer, holder};
use crate::end::{Asked, End, Stage};
use crate::kernel::{self, NoPeer, Peer};
use crate::raw::{Errno, is_quiet};
use crate::reason::Reason;
use crate::sync::{Relaxed, Release};
use crate::sysv;
use crate::words::CLOSED;
use broker::Broker;
pub use broker::is_asking;
use brokered::Given;

/// Most pools that one process has attached.
const POOLS: usize = 1024;
/// Slots of the first pool towards a process. What is mapped counts in a program's virtual size, used or not.
const FIRST_SLOTS: u32 = 1;
/// How many times as many slots the next pool has, up to [`Shape::MAX_SLOTS`]. Less would make more pools of as many
/// connections, and a sleeping epoll set may be rung once for each pool.
const GROWTH: u32 = 8;
/// Where memory is limited by a cgroup, a pool is made only if so many times its size is left: rings take memory as
/// they are used, and when nothing is left the kernel kills a process.
const RESERVE: u64 = 4;
/// The same for the process that joins the pool. Less is left free, because the pool's maker, which may be in the same
/// cgroup, has looked just before.
const RESERVE_TO_JOIN: u64 = 2;
/// How long a pool that nothing uses stays attached, for threads that close a socket under one another.
const LINGER_NS: u64 = 1_000_000_000;
/// The same if the broker is to be told of its slots with the next ask.
const LINGER_TO_TELL_NS: u64 = 60_000_000_000;

/// In place of the family for which a pool was made: for this process alone.
const ITSELF: i32 = -1;

#[derive(Clone, Copy)]
struct Attached {
    pool: Pool,
    /// Process that made it, as the kernel attests.
    creator: i32,
    /// Ends of this process in it, without ends that another process of its family has joined.
    users: u32,
    unused_since: u64,
    /// For a pool that this process made: the family it was made for, and the slots taken.
    made_for: Option<(i32, u64)>,
    /// For a pool of the broker's.
    given: Option<Given>,
    /// The number of the daemon that gave it.
    daemon: u64,
}

impl Attached {
    /// For how long it stays attached once nothing uses it, in nanoseconds.
    fn lingers(&self) -> u64 {
        if self.given.is_some_and(|given| given.is_any()) { LINGER_TO_TELL_NS } else { LINGER_NS }
    }
}

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

    /// In a forked child whose parent was changing this in another thread. No word of it can be relied on, so segments
    /// are attached once more when they are needed. Pools that are in use stay where they are.
    pub fn begin_anew(&mut self) {
        self.directory = None;
        self.broker.begin_anew();
        self.pools.fill(None);
    }

    /// A connection has proven itself: looks for its other end. Moves `end` to [`Stage::Waiting`], [`Stage::Joined`]
    /// or [`Stage::Pinned`], or leaves it where it is for a later try.
    pub fn seek(&mut self, end: &End, fd: i32) {
        // The entry in its old place may be the other end's by now.
        end.entry.store(0, Relaxed);
        let uid = kernel::user_id();
        let (counters, cookie) = match (kernel::counters(fd), kernel::cookie(fd)) {
            (Ok(c), _) if c.fast_open => return end.pin(Reason::FastOpen),
            (Ok(c), Ok(cookie)) if kernel::carries(c.state) => (c, cookie),
            _ => return,
        };
        // An active opener's SYN counts as one acknowledged byte.
        let unheard = counters.acked <= 1 && counters.received == 0;
        // Also of a connection that stays on kernel TCP: `underpass ss` finds it by the cookie.
        end.cookie.store(cookie, Relaxed);
        let peer = match kernel::peer(fd) {
            // Not accepted yet: it has no owner that could prove anything.
            Ok(peer) if peer.inode == 0 => return,
            Ok(peer) if peer.uid == uid && !ALWAYS_BROKERED => peer,
            Ok(_) => return self.seek_by_broker(end, fd, Reason::OtherUser),
            // A crowded listener answers with a SYN cookie (RFC 4987, 3.6): it has no socket for the connection before it
            // has taken data of it.
            Err(NoPeer::Elsewhere) if unheard => return,
            Err(NoPeer::Elsewhere) => match unless_closed(fd, Reason::Remote) {
                Reason::Remote => return self.seek_by_broker(end, fd, Reason::Remote),
                closed => return end.pin(closed),
            },
            Err(NoPeer::NoAnswer(e)) if passes(e) => return,
            Err(NoPeer::NoAnswer(_)) => return end.pin(Reason::NoSockDiag),
        };
        let Some(directory) = self.directory(uid) else { return end.pin(Reason::NoMemory) };
        let (key, me) = (Key::of(cookie, peer.cookie), holder(fd, self.family));
        end.peer_cookie.store(peer.cookie, Relaxed);
        match directory.ask(key, me) {
            Found::Nobody(index) => {
                end.entry.store(index + 1, Relaxed);
                end.set_reason(Reason::PeerSilent);
                end.advance(Stage::Waiting);
            }
            Found::Waiter(index, waiter) => {
                if !holds(waiter, &peer) || !kernel::is_dumpable() && self.has_broker() {
                    return self.send_both_on(end, fd, (directory, index, key));
                }
                let Ok((pool, slot)) = self.make(waiter.family, self.ring_bytes) else {
                    return end.pin(Reason::NoMemory);
                };
                let Some(channel) = pool.slot(slot, Side::Maker) else { return };
                channel.prepare([cookie, peer.cookie]);
                let offer = Offer { maker: me, pool: pool.id(), slot, shape: pool.shape() };
                end.entry.store(index + 1, Relaxed);
                if !directory.offer(index, key, offer) && channel.claim(peer.cookie) {
                    // The table was busy, or the other end has gone: the next try will tell. Nobody will ever join it: both
                    // sides count as closed, so the slot is free again.
                    channel.outgoing().flags.closed.store(CLOSED, Relaxed);
                    channel.incoming().flags.closed.store(CLOSED, Release);
                    return self.forget_user(pool.id());
                }
                self.join(end, fd, pool, slot, &channel);
            }
            // Other ends will have left by a later try.
            Found::Full => end.set_reason(Reason::NoMemory),
            Found::Busy => {}
        }
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

    fn answer_of_directory(&mut self, end: &End) -> Answer {
        match self.entry(end) {
            Some((directory, index, key)) if directory.offered(index, key).is_some() => Answer::Offer,
            Some((directory, index, key)) if directory.is_sent_on(index, key) => Answer::Offer,
            Some((directory, index, key)) if directory.is_there(index, key) => Answer::None,
            _ => Answer::Forgotten,
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
            _ => self.heed_broker(end, fd),
        }
    }

    fn take_offer_of_directory(&mut self, end: &End, fd: i32, entry: (Directory, u32, Key), offer: Offer) {
        let ((directory, index, key), pid) = (entry, kernel::process_id());
        match self.prove(end, fd, directory.uid(), offer) {
            // The maker may have closed, or the table is busy: a later call looks again.
            Ok((pool, channel)) => {
                if directory.clear(index, key, pid) && channel.claim(end.cookie.load(Relaxed)) {
                    if end.asked() != Asked::Nothing {
                        self.leave_broker(end);
                    }
                    if let Some(it) = self.attached(offer.pool) {
                        it.users += 1;
                    }
                    self.join(end, fd, pool, offer.slot, &channel);
                }
            }
            Err(e) if passes(e) => {}
            Err(e) => {
                directory.clear(index, key, pid);
                end.pin(if e == FORGED { unless_closed(fd, Reason::Unproven) } else { Reason::NoMemory });
            }
        }
    }

    /// The offered pool, attached, and its slot, if the offer proves to be right.
    fn prove(&mut self, end: &End, fd: i32, uid: u32, offer: Offer) -> Result<(Pool, Channel), Errno> {
        let peer = kernel::peer(fd).map_err(|no| match no {
            NoPeer::NoAnswer(e) if passes(e) => e,
            _ => FORGED,
        })?;
        let cookies = [peer.cookie, end.cookie.load(Relaxed)];
        if peer.uid != uid || peer.cookie != end.peer_cookie.load(Relaxed) || !holds(offer.maker, &peer) {
            return Err(FORGED);
        }
        let maker = process_of(offer.maker).ok_or(FORGED)?;
        let pool = match self.attached(offer.pool) {
            // The process that made a pool for another connection may offer it for this one.
            Some(it) if it.pool.shape() == offer.shape && it.creator == maker => it.pool,
            Some(_) => return Err(FORGED),
            None => {
                if !has_memory_for(offer.shape, RESERVE_TO_JOIN) {
                    return Err(Errno(libc::ENOMEM));
                }
                let (pool, attested) = Pool::open(offer.pool, offer.shape, uid).map_err(|e| match e.0 {
                    // An offer of a segment that does not exist is a lie as well.
                    libc::EINVAL | libc::EIDRM => FORGED,
                    // EAGAIN means RLIMIT_MEMLOCK here, which does not pass.
                    libc::EAGAIN => Errno(libc::ENOMEM),
                    _ => e,
                })?;
                if attested.creator != maker {
                    // SAFETY: nothing refers into it.
                    unsafe { pool.detach() };
                    return Err(FORGED);
                }
                self.remember(pool, attested.creator, None)?;
                pool
            }
        };
        let channel = pool.slot(offer.slot, Side::Joiner).ok_or(FORGED)?;
        if !channel.is_for(cookies) {
            return Err(FORGED);
        }
        Ok((pool, channel))
    }

    fn join(&mut self, end: &End, fd: i32, pool: Pool, slot: u32, channel: &Channel) {
        end.pool.store(pool.id(), Relaxed);
        end.slot.store(slot, Relaxed);
        end.set_shape(pool.shape());
        end.side.store(channel.side() as u8, Relaxed);
        end.set_reason(Reason::Young);
        if let Some(name) = self.directory.and_then(|directory| directory.tap()) {
            end.set_tap(name);
        }
        end.advance(Stage::Joined);
        // After the end has joined: if the program changes SO_LINGER from now on, that call tells the other end.
        channel.tell_of_close(fd);
    }

    /// The channel of a joined end. It is attached to this process if it was not (another process of the family may
    /// have joined the end), and this process then counts as a user of its pool. A pool that the broker gave, the
    /// broker gives again for `fd`, a descriptor of the socket.
    pub fn channel(&mut self, end: &End, fd: Option<i32>) -> Option<Channel> {
        let id = end.pool.load(Relaxed);
        let pool = match self.attached(id) {
            Some(it) => it.pool,
            None => {
                let pool = match (self.open(end), fd) {
                    (Some((pool, creator)), _) => {
                        self.remember(pool, creator, None).ok()?;
                        pool
                    }
                    (None, Some(fd)) if end.is_brokered() => self.fetch(end, fd)?,
                    _ => return None,
                };
                if let Some(it) = self.attached(id) {
                    it.users = 1;
                }
                pool
            }
        };
        pool.slot(end.slot.load(Relaxed), end.side())
    }

    /// A slot in place of the channel of a joined end, if no process has that channel any more. Only this process knows of
    /// the slot, which the caller [fills](Channel::copy_from).
    pub fn replace_channel(&mut self, end: &End) -> Option<Channel> {
        if end.is_brokered() || !sysv::is_freed(end.pool.load(Relaxed)) {
            return None;
        }
        let (pool, slot) = self.make(ITSELF, end.shape().ring_bytes).ok()?;
        end.pool.store(pool.id(), Relaxed);
        end.slot.store(slot, Relaxed);
        end.set_shape(pool.shape());
        pool.slot(slot, end.side())
    }

    /// How many processes have the channel of a joined end, which this one has attached; `None` when the kernel does not
    /// say.
    pub fn company(&mut self, end: &End) -> Option<u64> {
        self.attached(end.pool.load(Relaxed))?.pool.attached()
    }

    /// Whether a process is between two program images, and the second one comes for a channel that no third process has.
    pub fn keeps_for_images(&self) -> bool {
        // The first image may still have it.
        let is_kept = |pool: &Pool| pool.attached().is_some_and(|attached| attached > 2);
        self.shared_pools().any(|pool| pool.channels().any(|it| it.is_awaited_by_image()) && !is_kept(pool))
    }

    /// Such images were awaited for long enough.
    pub fn forget_images(&self) {
        let channels = self.shared_pools().flat_map(Pool::channels);
        channels.filter(Channel::is_awaited_by_image).for_each(|it| it.forget_image());
    }

    fn shared_pools(&self) -> impl Iterator<Item = &Pool> {
        self.pools.iter().flatten().map(|it| &it.pool).filter(|pool| !pool.is_brokered())
    }

    /// Tells all processes that talk to this one that a reader may have left something unread.
    pub fn tell_of_departure(&self) {
        self.pools.iter().flatten().for_each(|it| it.pool.tell_of_departure());
    }

    /// Whether another program image in this process could attach the pools that this image has attached.
    pub fn can_attach_again(&mut self) -> bool {
        let uid = kernel::user_id();
        let is_there = |it: &Attached| it.users == 0 || it.pool.is_brokered() || it.pool.is_there(uid);
        self.pools.iter().flatten().all(is_there) && self.would_be_given_again()
    }

    /// The pool of a joined end, attached, and the process that made it. A pool of the broker's is there if this
    /// process, or its parent before the fork, has mapped it.
    fn open(&self, end: &End) -> Option<(Pool, i32)> {
        if end.is_brokered() {
            return Some((Pool::of_number(end.pool.load(Relaxed), end.shape())?, 0));
        }
        let uid = self.directory.map_or_else(kernel::user_id, |directory| directory.uid());
        let (pool, attested) = Pool::open(end.pool.load(Relaxed), end.shape(), uid).ok()?;
        Some((pool, attested.creator))
    }

    /// Whether the other end never came for the channel of `end`, which is gone: the offer still stands, or the other
    /// end lives (and would have kept the channel).
    pub fn is_unmet(&mut self, end: &End, fd: i32) -> bool {
        let key = Key::of(end.cookie.load(Relaxed), end.peer_cookie.load(Relaxed));
        let entry = end.entry.load(Relaxed).checked_sub(1);
        let directory = self.directory(kernel::user_id());
        let stands = directory.zip(entry).is_some_and(|(directory, entry)| directory.offered(entry, key).is_some());
        stands || kernel::peer(fd).is_ok_and(|peer| peer.inode != 0)
    }

    /// This process lets go of a joined end.
    pub fn release(&mut self, end: &End) {
        self.forget_user(end.pool.load(Relaxed));
    }

    /// A joined end is closed in all processes.
    pub fn close(&mut self, end: &End, channel: &Channel) {
        channel.outgoing().sender.ended.store(1, Relaxed);
        channel.incoming().flags.closed.store(CLOSED, Release);
        end.pin_sending();
        self.end_lending(end);
        if channel.side() == Side::Maker && channel.claim(end.peer_cookie.load(Relaxed)) {
            // The other end never came, so it will never close.
            channel.outgoing().flags.closed.store(CLOSED, Release);
            self.withdraw(end);
        }
    }

    /// A joined or waiting end has been closed in all processes that had it; this process never had it.
    pub fn bury(&mut self, end: &End) {
        if !end.has_channel() {
            return self.withdraw(end);
        }
        let attached = self.attached(end.pool.load(Relaxed)).map(|it| it.pool);
        let Some(pool) = attached.or_else(|| Some(self.open(end)?.0)) else { return };
        if let Some(channel) = pool.slot(end.slot.load(Relaxed), end.side()) {
            self.close(end, &channel);
        }
        if attached.is_none() && !pool.is_brokered() {
            // SAFETY: nobody else knows of this mapping.
            unsafe { pool.detach() };
        }
    }

    /// An end that waits for its other end, or did once, is closed in all processes: its name, or its offer, goes.
    pub fn withdraw(&mut self, end: &End) {
        if !is_quiet()
            && let Some((directory, index, key)) = self.entry(end)
        {
            directory.clear(index, key, kernel::process_id());
        }
    }

    /// Where `end` has left its name, or its offer.
    fn entry(&mut self, end: &End) -> Option<(Directory, u32, Key)> {
        let index = end.entry.load(Relaxed).checked_sub(1)?;
        let key = Key::of(end.cookie.load(Relaxed), end.peer_cookie.load(Relaxed));
        // Another process may have left it, or another image of this one.
        let directory = self.directory.or_else(|| self.directory(kernel::user_id()))?;
        Some((directory, index, key))
    }

    /// Makes an entry in the directory for a joined end whose socket is being passed to another process; false if that
    /// fails.
    pub fn lend(&mut self, end: &End, index: u32, fd: i32) -> bool {
        let me = holder(fd, self.family);
        let directory = self.directory(kernel::user_id());
        let depends = end.stage() == Stage::Joined && !end.needs_no_channel();
        let word = directory.and_then(|directory| directory.lend(end.cookie.load(Relaxed), me, index, depends));
        if let Some(word) = word {
            end.word.store(word + 1, Relaxed);
        }
        word.is_some()
    }

    /// Takes that entry back: whoever is passed the socket from now on finds plain TCP.
    pub fn end_lending(&mut self, end: &End) {
        if !is_quiet()
            && let Some(entry) = end.word.load(Relaxed).checked_sub(1)
            && let Some(directory) = self.directory(kernel::user_id())
            && directory.clear(entry, Key::lent(end.cookie.load(Relaxed)), kernel::process_id())
        {
            end.word.store(0, Relaxed);
        }
    }

    /// What was left about a socket that was passed to this process.
    pub fn borrow(&mut self, cookie: u64) -> Option<Lent> {
        self.directory(kernel::user_id())?.borrow(cookie, kernel::process_id())
    }

    /// Takes back what was left about the socket with this cookie, because the table that it names is gone.
    pub fn forget_lent(&mut self, lent: Lent, cookie: u64) {
        if let Some(directory) = self.directory(kernel::user_id()) {
            directory.end_lending(lent, cookie, kernel::process_id());
        }
    }

    /// The directory of user `uid`.
    pub fn directory(&mut self, uid: u32) -> Option<Directory> {
        if self.directory.is_none_or(|d| d.uid() != uid) {
            self.directory = Directory::open(uid).ok();
        }
        self.directory
    }

    fn attached(&mut self, id: i32) -> Option<&mut Attached> {
        self.pools.iter_mut().flatten().find(|it| it.pool.id() == id)
    }

    /// A free slot in a pool that this process made for `family`, or for itself ([`ITSELF`]).
    fn make(&mut self, family: i32, ring_bytes: u32) -> Result<(Pool, u32), Errno> {
        let mut slots = FIRST_SLOTS;
        for it in self.pools.iter_mut().flatten() {
            let Some((made_for, mut taken)) = it.made_for else { continue };
            if made_for != family || it.pool.shape().ring_bytes != ring_bytes {
                continue;
            }
            let count = it.pool.shape().slots;
            slots = slots.max(count * GROWTH).min(Shape::MAX_SLOTS);
            for slot in 0..count {
                if taken & (1 << slot) != 0 && it.pool.slot(slot, Side::Maker).is_some_and(|l| l.is_over()) {
                    taken &= !(1 << slot);
                }
            }
            let free = (!taken).trailing_zeros();
            if free < count {
                it.made_for = Some((family, taken | 1 << free));
                it.users += 1;
                return Ok((it.pool, free));
            }
            it.made_for = Some((family, taken));
        }
        let sizes =
            core::iter::successors(Some(slots), |slots| Some(slots / GROWTH).filter(|&slots| slots >= FIRST_SLOTS));
        let mut shapes = sizes.map(|slots| Shape { ring_bytes, slots });
        let shape = shapes.find(|&shape| has_memory_for(shape, RESERVE)).ok_or(Errno(libc::ENOMEM))?;
        let pool = Pool::create(shape)?;
        self.remember(pool, kernel::process_id(), Some((family, 1)))?;
        if let Some(it) = self.attached(pool.id()) {
            it.users = 1;
        }
        Ok((pool, 0))
    }

    fn remember(&mut self, pool: Pool, creator: i32, made_for: Option<(i32, u64)>) -> Result<(), Errno> {
        let now = clock::nanoseconds();
        for place in self.pools.iter_mut() {
            if let Some(it) = place
                && it.users == 0
                && now.saturating_sub(it.unused_since) > it.lingers()
            {
                if !(self.let_go)(it.pool.id(), it.pool.begin()) {
                    it.unused_since = now;
                    continue;
                }
                // SAFETY: no end of this process is in it, and none was for so long that no thread can be inside
                // a call on an end that was closed under it.
                unsafe { it.pool.detach() };
                *place = None;
            }
        }
        let entry = Attached { pool, creator, users: 0, unused_since: now, made_for, given: None, daemon: 0 };
        match self.pools.iter_mut().find(|p| p.is_none()) {
            Some(place) => {
                *place = Some(entry);
                Ok(())
            }
            None => {
                // SAFETY: nothing refers into it.
                unsafe { pool.detach() };
                Err(Errno(libc::ENOSPC))
            }
        }
    }

    fn forget_user(&mut self, id: i32) {
        if let Some(it) = self.attached(id) {
            it.users = it.users.saturating_sub(1);
            if it.users == 0 {
                it.unused_since = clock::nanoseconds();
            }
        }
    }
}

impl Default for Meeting {
    fn default() -> Meeting {
        Meeting::new()
    }
}

/// In a build for tests alone, the broker leads all ends to each other: `RUSTFLAGS="--cfg underpass_always_brokered"`.
const ALWAYS_BROKERED: bool = cfg!(underpass_always_brokered);

/// The offer does not prove to be right.
const FORGED: Errno = Errno(libc::EACCES);

/// Whether the memory cgroups of this process have `times` the size of a pool of this shape left.
fn has_memory_for(shape: Shape, times: u64) -> bool {
    // A shape that is not sane is refused later, and its size means nothing.
    !shape.is_sane() || kernel::is_left_by_cgroups(times * shape.pool_bytes() as u64)
}

/// Whether the error passes: no descriptor or buffer was free to ask the kernel with.
fn passes(error: Errno) -> bool {
    matches!(error, Errno(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::EAGAIN))
}

/// The reason for an other end that was not found where it should be: `suspicion`, unless it has closed meanwhile.
fn unless_closed(fd: i32, suspicion: Reason) -> Reason {
    let open = kernel::counters(fd).is_ok_and(|it| it.state == kernel::ESTABLISHED);
    if open { suspicion } else { Reason::Closed }
}

/// Whether the kernel shows that `holder` has the other end's socket.
fn holds(holder: Holder, peer: &Peer) -> bool {
    // A number of another PID namespace means another process here.
    let pid = process_of(holder).filter(|&pid| pid > 0 && holder.fd >= 0);
    pid.is_some_and(|pid| kernel::socket_inode(pid, holder.fd) == Some(peer.inode.into()))
}

/// The process of `holder`, if it is of this PID namespace.
fn process_of(holder: Holder) -> Option<i32> {
    Some(kernel::own(holder.pid as u32)? as i32)
}

#[cfg(all(test, not(loom)))]
mod tests;
