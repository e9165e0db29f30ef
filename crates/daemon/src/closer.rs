//! Lets go of clients' connections in which packets may lie unread.
//!
//! The kernel closes the sockets in such packets with the connection. If one of them lingers (SO_LINGER, socket(7)),
//! that takes as long as the client likes, except in a process that exits. So a process of the daemon's own gets the
//! connections, hands them to a child, and the child exits. It is forked before any client comes, so that it has
//! nothing else of them: the daemon itself may hold a file whose close waits for another program.
//!
//! Even a child that exits may wait for a client: for the end of a lock of a file in an unread packet, whose file
//! system is a program (FUSE). So a child gets connections of one user, and users have their turns: a user whose close
//! waits keeps no connection of another user's open.
#![allow(unsafe_code, reason = "forks")]

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::collections::{HashMap, VecDeque};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

/// Connections at a time. A packet brings 253 descriptors at most (SCM_MAX_FD, unix(7)).
const BATCH: usize = 250;

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
                // SIGHUP asks the daemon to read its policy anew, and means only the daemon.
                // SAFETY: no handler is set.
                unsafe { libc::signal(libc::SIGHUP, libc::SIG_IGN) };
                serve(from.as_fd())
            }
            _ => Ok(Closer::to(to)),
        }
    }

    fn to(to: OwnedFd) -> Closer {
        Closer { to, pending: HashMap::new(), turns: VecDeque::new(), owes_word: false }
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
    pub fn flush(&mut self) -> io::Result<()> {
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
            match sendmsg(&self.to, &[IoSlice::new(&[0])], &mut beside, flags) {
                Ok(_) => self.owes_word = batch > 0,
                // Later: other clients leave too many descriptors unread, or there is no memory.
                Err(Errno::AGAIN | Errno::TOOMANYREFS | Errno::NOBUFS | Errno::NOMEM) => return Ok(()),
                Err(error) => return Err(error.into()),
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

/// What the process does, until the daemon is gone. Wherever it cannot go on it exits, which lets go of what it has.
fn serve(from: BorrowedFd<'_>) -> ! {
    loop {
        let Some(batch) = receive(from) else { exit() };
        let (Some(_), Ok((mut parent_is_done, done))) = (receive(from), UnixStream::pair()) else { exit() };
        // SAFETY: one thread.
        match unsafe { libc::fork() } {
            // The limit of processes is reached. The daemon notices the exit, and ends with a message.
            -1 => exit(),
            0 => {
                drop(done);
                let _ = parent_is_done.read(&mut [0]);
                // This child has the last references now.
                exit()
            }
            _ => drop((batch, done)),
        }
    }
}

fn exit() -> ! {
    // SAFETY: ends the process, without what the daemon does at its end.
    unsafe { libc::_exit(0) }
}

/// The next packet's descriptors; `None` when the daemon is gone.
fn receive(from: BorrowedFd<'_>) -> Option<Vec<OwnedFd>> {
    let mut octet = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(BATCH))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let it = recvmsg(from, &mut [IoSliceMut::new(&mut octet)], &mut beside, RecvFlags::CMSG_CLOEXEC).ok()?;
    let descriptors = beside.drain().flat_map(|message| match message {
        RecvAncillaryMessage::ScmRights(it) => it.collect(),
        _ => Vec::new(),
    });
    let descriptors = descriptors.collect();
    (it.bytes > 0).then_some(descriptors)
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
            let batch = receive(from.as_fd()).filter(|batch| !batch.is_empty())?;
            // The word that the daemon has dropped its own references.
            assert_eq!(receive(from.as_fd()).map(|it| it.len()), Some(0));
            Some(batch.iter().map(|it| user_of(it, &others)).collect::<Vec<_>>())
        });
        let batches: Vec<_> = batches.take(4).collect();
        assert_eq!(batches, [vec![1; BATCH], vec![2, 2], vec![3], vec![1]]);
    }
}
