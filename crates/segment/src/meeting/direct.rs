//! Ends that find each other in the directory, where the kernel shows to each what the other one says.

use super::pools::{RESERVE_TO_JOIN, has_memory_for};
use super::{Answer, Meeting, unless_closed};
use crate::channel::{Channel, Pool, Side};
use crate::directory::{Directory, Found, Holder, Key, Offer, holder};
use crate::end::{Asked, End, Stage};
use crate::kernel::{self, NoPeer, Peer};
use crate::raw::{Errno, is_quiet};
use crate::reason::Reason;
use crate::sync::{Relaxed, Release};
use crate::words::CLOSED;

/// In a build for tests alone, the broker leads all ends to each other: `RUSTFLAGS="--cfg underpass_always_brokered"`.
const ALWAYS_BROKERED: bool = cfg!(underpass_always_brokered);

/// The offer does not prove to be right.
const FORGED: Errno = Errno(libc::EACCES);

impl Meeting {
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
            Ok(peer) if peer.inode == 0 => return end.set_reason(Reason::NotAccepted),
            Ok(peer) if peer.uid == uid && !ALWAYS_BROKERED => peer,
            Ok(_) => return self.seek_by_broker(end, fd, Reason::OtherUser),
            // A crowded listener answers with a SYN cookie (RFC 4987, 3.6): it has no socket for the connection before
            // it has taken data of it.
            Err(NoPeer::Elsewhere) if unheard => return end.set_reason(Reason::NotAccepted),
            Err(NoPeer::Elsewhere) => match unless_closed(fd, Reason::Remote) {
                Reason::Remote => return self.seek_by_broker(end, fd, Reason::Remote),
                closed => return end.pin(closed),
            },
            Err(NoPeer::NoAnswer(e)) if passes(e) => return end.set_reason(Reason::NoDescriptor),
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
                    // The table was busy, or the other end has gone: the next try will tell. Nobody will ever join it:
                    // both sides count as closed, so the slot is free again.
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

    pub(super) fn answer_of_directory(&mut self, end: &End) -> Answer {
        match self.entry(end) {
            Some((directory, index, key)) if directory.offered(index, key).is_some() => Answer::Offer,
            Some((directory, index, key)) if directory.is_sent_on(index, key) => Answer::Offer,
            Some((directory, index, key)) if directory.is_there(index, key) => Answer::None,
            _ => Answer::Forgotten,
        }
    }

    pub(super) fn take_offer_of_directory(&mut self, end: &End, fd: i32, entry: (Directory, u32, Key), offer: Offer) {
        let ((directory, index, key), pid) = (entry, kernel::process_id());
        match self.prove(end, fd, directory.uid(), offer) {
            // The maker may have closed, or the table is busy: a later call looks again.
            Ok((pool, channel)) => {
                if directory.clear(index, key, pid) && channel.claim(end.cookie.load(Relaxed)) {
                    if end.asked() != Asked::Nothing {
                        self.leave_broker(end, true);
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

    /// Whether the other end never came for the channel of `end`, which is gone: the offer still stands, or the other
    /// end lives (and would have kept the channel).
    pub fn is_unmet(&mut self, end: &End, fd: i32) -> bool {
        let key = Key::of(end.cookie.load(Relaxed), end.peer_cookie.load(Relaxed));
        let entry = end.entry.load(Relaxed).checked_sub(1);
        let directory = self.directory(kernel::user_id());
        let stands = directory.zip(entry).is_some_and(|(directory, entry)| directory.offered(entry, key).is_some());
        stands || kernel::peer(fd).is_ok_and(|peer| peer.inode != 0)
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
    pub(super) fn entry(&mut self, end: &End) -> Option<(Directory, u32, Key)> {
        let index = end.entry.load(Relaxed).checked_sub(1)?;
        let key = Key::of(end.cookie.load(Relaxed), end.peer_cookie.load(Relaxed));
        // Another process may have left it, or another image of this one.
        let directory = self.directory.or_else(|| self.directory(kernel::user_id()))?;
        Some((directory, index, key))
    }
}

/// Whether the error passes: no descriptor or buffer was free to ask the kernel with.
fn passes(error: Errno) -> bool {
    matches!(error, Errno(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::EAGAIN))
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
