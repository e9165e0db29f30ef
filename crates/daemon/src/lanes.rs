//! Work that clients can make last: taking their packets, looking at what came with them, and closing it.
//!
//! A descriptor that a client hands over can keep any call on it waiting (see [`crate::facts`]), even its close. So
//! this work is done by threads, one piece at a time for each user. A user whose client keeps a thread waiting delays
//! no other user: the others have the other threads, and the loop of the daemon never touches what a client has sent.

use crate::packet::Packet;
use crate::sys;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

/// Threads at most. So many users would have to keep one waiting each before others had to.
const MOST: usize = 64;

/// A packet that is to be taken.
#[derive(Debug)]
struct Job {
    client: u64,
    socket: Arc<OwnedFd>,
}

/// A packet that has been taken from a client's socket.
#[derive(Debug)]
pub struct Taken {
    /// Number of the client.
    pub client: u64,
    /// What it has sent.
    pub packet: Result<Packet, Errno>,
}

#[derive(Debug, Default)]
struct Lane {
    jobs: VecDeque<Job>,
    is_busy: bool,
}

/// The users' work.
#[derive(Debug)]
pub struct Lanes {
    /// By user.
    lanes: HashMap<u32, Lane>,
    /// Users that have work and wait for a thread.
    due: VecDeque<u32>,
    threads: usize,
    busy: usize,
    to_do: Sender<(u32, Job)>,
    done: Receiver<(u32, Taken)>,
    shared: Shared,
}

/// What the threads have.
#[derive(Clone, Debug)]
struct Shared {
    to_do: Arc<Mutex<Receiver<(u32, Job)>>>,
    done: Sender<(u32, Taken)>,
    bell: Arc<OwnedFd>,
}

impl Lanes {
    /// No work yet, and no thread.
    ///
    /// # Errors
    /// No descriptor for the bell could be had.
    pub fn new() -> io::Result<Lanes> {
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (to_do, jobs) = channel();
        let (done_by, done) = channel();
        let shared = Shared { to_do: Arc::new(Mutex::new(jobs)), done: done_by, bell };
        let (lanes, due) = (HashMap::new(), VecDeque::new());
        Ok(Lanes { lanes, due, threads: 0, busy: 0, to_do, done, shared })
    }

    /// Becomes readable when work is done.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.shared.bell.as_fd()
    }

    /// Has a packet taken of a user's client, behind those that are to be taken of the same user's.
    pub fn take(&mut self, user: u32, client: u64, socket: Arc<OwnedFd>) {
        let lane = self.lanes.entry(user).or_default();
        lane.jobs.push_back(Job { client, socket });
        if !lane.is_busy {
            lane.is_busy = true;
            self.due.push_back(user);
            self.dispatch();
        }
    }

    /// A user's client has gone: nothing is to be taken of it any more.
    pub fn cancel(&mut self, user: u32, client: u64) {
        if let Some(lane) = self.lanes.get_mut(&user) {
            lane.jobs.retain(|job| job.client != client);
        }
    }

    /// What has been taken so far, by user.
    pub fn finished(&mut self) -> Vec<(u32, Taken)> {
        sys::quiet(&self.shared.bell);
        let mut taken = Vec::new();
        while let Ok((user, it)) = self.done.try_recv() {
            taken.push((user, it));
            self.busy -= 1;
            match self.lanes.get_mut(&user) {
                Some(lane) if !lane.jobs.is_empty() => self.due.push_back(user),
                _ => drop(self.lanes.remove(&user)),
            }
        }
        self.dispatch();
        taken
    }

    fn dispatch(&mut self) {
        while let Some(user) = self.due.pop_front() {
            if self.busy == MOST {
                tracing::warn!(users = MOST, "so many users keep descriptors waiting; others wait for them");
                return self.due.push_front(user);
            }
            let Some(job) = self.lanes.get_mut(&user).and_then(|lane| lane.jobs.pop_front()) else {
                // Its clients have gone meanwhile.
                self.lanes.remove(&user);
                continue;
            };
            if self.busy == self.threads && self.start() {
                self.threads += 1;
            }
            self.busy += 1;
            // A thread holds the other end as long as the daemon runs.
            let _ = self.to_do.send((user, job));
        }
    }

    fn start(&self) -> bool {
        let shared = self.shared.clone();
        let started = thread::Builder::new().name("lane".into()).stack_size(256 << 10).spawn(move || shared.work());
        if let Err(error) = &started {
            tracing::warn!(%error, "no further thread; users wait for one another");
        }
        started.is_ok()
    }
}

impl Shared {
    fn work(self) {
        loop {
            let next = self.to_do.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok((user, job)) = next else { return };
            let taken = Taken { client: job.client, packet: Packet::take(job.socket.as_fd()) };
            // If its client has gone meanwhile, this closes the connection.
            drop(job);
            if self.done.send((user, taken)).is_err() {
                return;
            }
            sys::ring(&self.bell);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    use std::io::{IoSlice, Write};
    use std::mem::MaybeUninit;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixDatagram;

    fn await_finished(lanes: &mut Lanes) -> Vec<(u32, Taken)> {
        let mut it = [PollFd::from_borrowed_fd(lanes.bell(), PollFlags::IN)];
        poll(&mut it, None).unwrap();
        lanes.finished()
    }

    /// A socket of which the close waits until all is acknowledged that was sent, which its reader does not read.
    fn lingering() -> (TcpStream, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        rustix::net::sockopt::set_socket_linger(&socket, Some(std::time::Duration::from_secs(600))).unwrap();
        socket.set_nonblocking(true).unwrap();
        while (&socket).write(&[0; 1 << 16]).is_ok() {}
        (socket, listener)
    }

    #[test]
    fn a_user_whose_close_waits_waits_alone() {
        let mut lanes = Lanes::new().unwrap();
        let [slow, fast] = [(); 2].map(|()| UnixDatagram::pair().unwrap());
        let (socket, reader) = lingering();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let sockets = [socket.as_fd()];
        beside.push(SendAncillaryMessage::ScmRights(&sockets));
        sendmsg(&slow.1, &[IoSlice::new(b"no record")], &mut beside, SendFlags::empty()).unwrap();
        drop(socket);
        fast.1.send(b"no record").unwrap();
        let [slow, fast] = [slow.0, fast.0].map(|it| Arc::new(OwnedFd::from(it)));
        // While that close lasts, the same user's packets wait behind it, and another user's do not.
        lanes.take(1, 6, slow.clone());
        lanes.take(1, 7, slow.clone());
        lanes.take(1, 9, slow);
        lanes.take(2, 8, fast);
        let taken = await_finished(&mut lanes);
        assert_eq!((taken.len(), taken[0].0, taken[0].1.client), (1, 2, 8));
        assert!(matches!(taken[0].1.packet, Ok(Packet::Fault { .. })));
        assert_eq!(lanes.busy, 1);
        lanes.cancel(1, 7);
        // The reader goes: the close is over, and the first user's turn has come.
        drop(reader);
        let mut rest = Vec::new();
        while rest.len() < 2 {
            rest.extend(await_finished(&mut lanes));
        }
        assert_eq!([(rest[0].0, rest[0].1.client), (rest[1].0, rest[1].1.client)], [(1, 6), (1, 9)]);
        assert!(matches!(rest[1].1.packet, Ok(Packet::Nothing)));
        assert_eq!(lanes.busy, 0);
    }

    #[test]
    fn a_user_whose_client_goes_while_it_waits_for_a_thread_comes_again() {
        let mut lanes = Lanes::new().unwrap();
        let (socket, sender) = UnixDatagram::pair().unwrap();
        let socket = Arc::new(OwnedFd::from(socket));
        // All threads are taken by others.
        lanes.busy = MOST;
        lanes.take(1, 6, socket.clone());
        lanes.cancel(1, 6);
        lanes.busy = 0;
        lanes.dispatch();
        sender.send(b"no record").unwrap();
        lanes.take(1, 7, socket);
        assert_eq!(await_finished(&mut lanes).first().map(|(user, it)| (*user, it.client)), Some((1, 7)));
    }
}
