//! Lets go of clients' connections in which packets may lie unread.
//!
//! The kernel closes the sockets in such packets with the connection. If one of them lingers (SO_LINGER, socket(7)),
//! that takes as long as the client likes, except in a process that exits. So a process of the daemon's own gets the
//! connections, hands them to a child, and the child exits. It is forked before any client comes, so that it has
//! nothing else of them: the daemon itself may hold a file whose close waits for another program.
#![allow(unsafe_code, reason = "forks")]

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
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
    /// Connections that it is to get.
    pending: Vec<Arc<OwnedFd>>,
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
            _ => Ok(Closer { to, pending: Vec::new(), owes_word: false }),
        }
    }

    /// Lets go of a connection, at the next [`Closer::flush`].
    pub fn close(&mut self, connection: Arc<OwnedFd>) {
        self.pending.push(connection);
    }

    /// Whether there is something to flush.
    pub fn is_due(&self) -> bool {
        self.owes_word || !self.pending.is_empty()
    }

    /// Whether there is more than goes at a time.
    pub fn is_crowded(&self) -> bool {
        self.pending.len() >= BATCH
    }

    /// Hands over the connections that are to be closed, as far as that is possible at this moment.
    ///
    /// # Errors
    /// The process is gone.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.is_due() {
            let batch = if self.owes_word { 0 } else { self.pending.len().min(BATCH) };
            let descriptors: Vec<BorrowedFd<'_>> = self.pending[..batch].iter().map(|it| it.as_fd()).collect();
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
            // These references are not the last ones: the next, empty message says that they are gone.
            self.pending.drain(..batch);
        }
        Ok(())
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
