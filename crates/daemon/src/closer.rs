//! Lets go of clients' connections in which packets may lie unread.
//!
//! The kernel closes the sockets in such packets with the connection. If one of them lingers (SO_LINGER, socket(7)),
//! that takes as long as the client likes, except in a process that exits. So a process of the daemon's own gets the
//! connections, hands them to a child, and the child exits. It is forked before any client comes, so that it has
//! nothing else of them: the daemon itself may hold a file whose close waits for another program.
//!
//! Even a child that exits may wait for a client: for the end of a lock of a file in an unread packet, whose file
//! system is a program (FUSE). So a child gets connections of one user, and users have their turns: a user whose close
//! waits keeps no connection of another user's open. A user gets few children that wait: what comes then stays open,
//! with what the user keeps waiting anyway, until one of them has ended or there is much of it.
#![allow(unsafe_code, reason = "forks")]

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use rustix::process::{Pid, PidfdFlags, Resource, Rlimit, getrlimit, pidfd_open, setrlimit};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Connections at a time. A packet brings 253 descriptors at most (SCM_MAX_FD, unix(7)).
const BATCH: usize = 250;
/// Children of a user that wait, before further connections wait for one of them to end.
const CHILDREN: usize = 8;
/// So many connections of a user get a further child all the same.
const KEPT: usize = 1000;
/// Where no child could be started for so long, the process ends: its own end lets go of what it keeps.
const FAILING: Duration = Duration::from_secs(10);

/// The process is gone, and the daemon goes with it: it could not let go of connections any more.
#[derive(Debug, thiserror::Error)]
#[error(
    "its process that closes clients' connections has ended; if that has not said why, another program has killed it"
)]
pub struct Gone;

/// The channel to that process.
#[derive(Debug)]
pub struct Closer {
    to: OwnedFd,
    /// Connections that it is to get, by user.
    pending: HashMap<u32, Vec<Arc<OwnedFd>>>,
    /// Users who have such connections; the first one has its turn.
    turns: VecDeque<u32>,
    /// That process has got connections, and does not know yet that the daemon has dropped its own references.
    owes_word: bool,
}

impl Closer {
    /// Forks the process.
    ///
    /// # Errors
    /// Those of fork(2) and socketpair(2).
    ///
    /// # Safety
    /// The calling process has one thread.
    pub unsafe fn start() -> io::Result<Closer> {
        let (to, from) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // Children are not waited for, by this process or that one.
        // SAFETY: no handler is set.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        // SAFETY: with one thread, the child can do whatever its parent can.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(to);
                // These mean only the daemon. This process ends when the daemon has ended.
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
                    // SAFETY: no handler is set.
                    unsafe { libc::signal(signal, libc::SIG_IGN) };
                }
                serve(from.as_fd())
            }
            _ => Ok(Closer::to(to)),
        }
    }

    fn to(to: OwnedFd) -> Closer {
        Closer { to, pending: HashMap::new(), turns: VecDeque::new(), owes_word: false }
    }

    /// Becomes readable when the process is gone.
    pub fn end(&self) -> BorrowedFd<'_> {
        self.to.as_fd()
    }

    /// Lets go of a connection of this user's, at the next [`Closer::flush`].
    pub fn close(&mut self, user: u32, connection: Arc<OwnedFd>) {
        let of_user = self.pending.entry(user).or_default();
        if of_user.is_empty() {
            self.turns.push_back(user);
        }
        of_user.push(connection);
    }

    /// Whether there is something to flush.
    pub fn is_due(&self) -> bool {
        self.owes_word || !self.turns.is_empty()
    }

    /// Whether a user has more than goes at a time.
    pub fn is_crowded(&self) -> bool {
        self.pending.values().any(|of_user| of_user.len() >= BATCH)
    }

    /// Hands over the connections that are to be closed, as far as that is possible at this moment.
    ///
    /// # Errors
    /// The process is gone.
    pub fn flush(&mut self) -> Result<(), Gone> {
        while self.is_due() {
            let user = self.turns.front().copied().filter(|_| !self.owes_word);
            let of_user = user.and_then(|user| self.pending.get(&user)).into_iter().flatten();
            let descriptors: Vec<BorrowedFd<'_>> = of_user.take(BATCH).map(|it| it.as_fd()).collect();
            let batch = descriptors.len();
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
            let mut beside = SendAncillaryBuffer::new(&mut space);
            if batch > 0 {
                beside.push(SendAncillaryMessage::ScmRights(&descriptors));
            }
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let name = user.unwrap_or_default().to_ne_bytes();
            match sendmsg(&self.to, &[IoSlice::new(&name)], &mut beside, flags) {
                Ok(_) => self.owes_word = batch > 0,
                // Later: other clients leave too many descriptors unread, or there is no memory.
                Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => return Ok(()),
                Err(_) => return Err(Gone),
            }
            if let Some(user) = user {
                self.drop_first(user, batch);
            }
        }
        Ok(())
    }

    /// Drops the first `batch` connections of the user whose turn it is; the next turn is another user's. These
    /// references are not the last ones: the next, empty message says that they are gone.
    fn drop_first(&mut self, user: u32, batch: usize) {
        self.turns.pop_front();
        if let Some(of_user) = self.pending.get_mut(&user)
            && batch < of_user.len()
        {
            of_user.drain(..batch);
            self.turns.push_back(user);
        } else {
            self.pending.remove(&user);
        }
    }
}

/// What the process has of a user.
#[derive(Debug, Default)]
struct Share {
    /// Children that have not ended (pidfd_open(2)).
    children: Vec<OwnedFd>,
    /// Connections that the next child gets.
    kept: Vec<OwnedFd>,
}

impl Share {
    /// Whether there is to be a child now. A user whose closes wait, in many children, gets further ones for many
    /// connections alone.
    fn is_due(&self) -> bool {
        !self.kept.is_empty() && (self.children.len() < CHILDREN || self.kept.len() >= KEPT)
    }
}

/// What the process does, until the daemon is gone. Where it cannot go on it says why and exits, which lets go of what
/// it has.
fn serve(from: BorrowedFd<'_>) -> ! {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let most = limit.maximum.map_or(usize::MAX, |it| it as usize);
    // Beside a further batch, and what the process itself has.
    let room = most.saturating_sub(BATCH + 32).max(most / 2);
    let mut shares: HashMap<u32, Share> = HashMap::new();
    let mut failing_since = None;
    loop {
        await_event(from, &mut shares);
        if is_ready(from) {
            let (Some((user, batch)), Some(_)) = (receive(from), receive(from)) else { exit() };
            shares.entry(user).or_default().kept.extend(batch);
        }
        let started = due(&shares, room).into_iter().try_for_each(|user| start_child(user, &mut shares, from));
        match started {
            Ok(()) => failing_since = None,
            Err(error) => {
                let since: &mut Instant = failing_since.get_or_insert_with(|| {
                    tracing::warn!(%error, "no process can be started to close clients' connections: {MORE_PROCESSES}");
                    Instant::now()
                });
                if since.elapsed() > FAILING {
                    tracing::error!(%error, "no process could be started to close clients' connections");
                    exit();
                }
            }
        }
        // The kernel itself would close connections for which there is no descriptor, in this process.
        if held(&shares) > room {
            tracing::error!("no descriptor is left for connections that clients keep from being closed: {MORE}");
            exit();
        }
        shares.retain(|_, it| !it.children.is_empty() || !it.kept.is_empty());
    }
}

/// What helps where there are no processes or no descriptors.
const MORE_PROCESSES: &str = "raise TasksMax, or ulimit -u";
const MORE: &str = "raise LimitNOFILE, or ulimit -Hn";

/// How many descriptors these shares are.
fn held(shares: &HashMap<u32, Share>) -> usize {
    shares.values().map(|it| it.kept.len() + it.children.len()).sum()
}

/// The users of whom there is to be a child now. Where so much is kept that there is no room for more, these are all of
/// whom something is kept.
fn due(shares: &HashMap<u32, Share>, room: usize) -> Vec<u32> {
    let is_full = held(shares) > room;
    let is_due = |it: &Share| it.is_due() || is_full && !it.kept.is_empty();
    shares.iter().filter(|(_, it)| is_due(it)).map(|(user, _)| *user).collect()
}

/// Waits until something comes or a child ends, and forgets children that have ended. Where a child could not be
/// started, this waits only for a while.
fn await_event(from: BorrowedFd<'_>, shares: &mut HashMap<u32, Share>) {
    const A_WHILE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let children = shares.values().flat_map(|it| &it.children).map(|it| it.as_fd());
    let mut all: Vec<PollFd<'_>> = std::iter::once(from).chain(children).map(poll_for).collect();
    let is_left = shares.values().any(Share::is_due);
    match poll(&mut all, is_left.then_some(&A_WHILE)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(_) => exit(),
    }
    drop(all);
    shares.values_mut().for_each(|it| it.children.retain(|child| !is_ready(child.as_fd())));
}

fn poll_for(it: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(it, PollFlags::IN)
}

fn is_ready(it: BorrowedFd<'_>) -> bool {
    poll(&mut [poll_for(it)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

/// Has a child let go of what is kept of a user. Where none can be started, it stays.
fn start_child(user: u32, shares: &mut HashMap<u32, Share>, from: BorrowedFd<'_>) -> io::Result<()> {
    let (mut ours, mut its) = UnixStream::pair()?;
    let Some(share) = shares.get_mut(&user) else { return Ok(()) };
    let kept = std::mem::take(&mut share.kept);
    // SAFETY: one thread.
    match unsafe { libc::fork() } {
        -1 => {
            let error = io::Error::last_os_error();
            share.kept = kept;
            return Err(error);
        }
        0 => {
            // Connections of other users are not for this child: it lets go of them while they are its parent's too. So
            // it does of the channel, by whose end the daemon notices that the parent is gone.
            shares.clear();
            // SAFETY: nobody uses it any more in this child.
            unsafe { libc::close(from.as_raw_fd()) };
            drop(ours);
            let _ = its.write(&[0]);
            let _ = its.read(&mut [0]);
            // This child has the last references now.
            exit()
        }
        child => {
            drop(its);
            let _ = ours.read(&mut [0]);
            let child = Pid::from_raw(child).map(|child| pidfd_open(child, PidfdFlags::empty()));
            // One that was killed has ended.
            if let Some(Ok(child)) = child {
                share.children.push(child);
            }
            drop((kept, ours));
        }
    }
    Ok(())
}

fn exit() -> ! {
    // SAFETY: ends the process, without what the daemon does at its end.
    unsafe { libc::_exit(0) }
}

/// The user that the next packet names, and its descriptors; `None` when the daemon is gone.
fn receive(from: BorrowedFd<'_>) -> Option<(u32, Vec<OwnedFd>)> {
    let mut name = [0; 4];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let it = recvmsg(from, &mut [IoSliceMut::new(&mut name)], &mut beside, RecvFlags::CMSG_CLOEXEC).ok()?;
    let descriptors = beside.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(it) => it.collect(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    (it.bytes > 0).then_some((u32::from_ne_bytes(name), descriptors))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn closer() -> (Closer, OwnedFd) {
        // Where something is missing, the test is to fail, and not to wait for it.
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (to, from) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        (Closer::to(to), from)
    }

    /// Whose connection this is, by what comes out at the other ends.
    fn user_of(connection: &OwnedFd, others: &[UnixStream]) -> u32 {
        rustix::io::write(connection, &[0]).unwrap();
        let is_it = |mut other: &UnixStream| matches!(other.read(&mut [0]), Ok(1));
        others.iter().position(is_it).unwrap() as u32
    }

    /// Fails if a batch has connections of several users, or if a user with many is served before the others.
    #[test]
    fn a_child_gets_connections_of_one_user_and_users_have_their_turns() {
        let (mut closer, from) = closer();
        let (ours, others): (Vec<_>, Vec<_>) = (0..4).map(|_| UnixStream::pair().unwrap()).unzip();
        let ours = ours.into_iter().map(|it| Arc::new(OwnedFd::from(it))).collect::<Vec<_>>();
        others.iter().for_each(|it| it.set_nonblocking(true).unwrap());
        for user in [vec![1; BATCH], vec![2, 3, 1, 2]].concat() {
            closer.close(user, ours[user as usize].clone());
        }
        assert!(closer.is_due() && closer.is_crowded());
        closer.flush().unwrap();
        assert!(!closer.is_due() && !closer.is_crowded() && closer.pending.is_empty());
        let batches = std::iter::from_fn(|| {
            let (user, batch) = receive(from.as_fd()).filter(|(_, batch)| !batch.is_empty())?;
            // The word that the daemon has dropped its own references.
            assert_eq!(receive(from.as_fd()).map(|(_, batch)| batch.len()), Some(0));
            let users: Vec<u32> = batch.iter().map(|it| user_of(it, &others)).collect();
            assert_eq!(user, users[0]);
            Some(users)
        });
        let batches: Vec<_> = batches.take(4).collect();
        assert_eq!(batches, [vec![1; BATCH], vec![2, 2], vec![3], vec![1]]);
    }

    fn connections(count: usize) -> impl Iterator<Item = OwnedFd> {
        (0..count).map(|_| OwnedFd::from(std::fs::File::open("/dev/null").unwrap()))
    }

    /// Under a low limit of descriptors there is room for fewer connections than a user may keep waiting. Fails if the
    /// process keeps them until there is no room, and has to end.
    #[test]
    fn where_there_is_no_room_for_more_children_get_all_that_is_kept() {
        let (mut shares, room) = (HashMap::<u32, Share>::new(), CHILDREN + 20);
        let share = shares.entry(1).or_default();
        share.children.extend(connections(CHILDREN));
        share.kept.extend(connections(20));
        assert_eq!((held(&shares), due(&shares, room)), (room, vec![]));
        shares.entry(2).or_default().children.extend(connections(1));
        assert_eq!(due(&shares, room), [1]);
        shares.entry(1).or_default().kept.clear();
        assert_eq!(due(&shares, room), []);
    }

    /// Fails if a user whose closes wait gets a child for each further connection.
    #[test]
    fn a_user_whose_closes_wait_gets_few_children() {
        let mut share = Share::default();
        assert!(!share.is_due());
        share.kept.extend(connections(1));
        assert!(share.is_due());
        share.children.extend(connections(CHILDREN));
        assert!(!share.is_due());
        share.kept.extend(connections(KEPT - 2));
        assert!(!share.is_due());
        share.kept.extend(connections(1));
        assert!(share.is_due());
        share.kept.truncate(1);
        share.children.pop();
        assert!(share.is_due());
    }
}
