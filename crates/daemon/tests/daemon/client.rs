//! A client of the daemon: what the library does, step by step.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::Path;
use underpass_broker::{Answer, Ask, Inquiry, LONGEST, State, state};

/// How long something that must happen may take, in seconds.
pub const PATIENCE_S: i64 = 120;

pub const ASK: Ask = Ask { token: 1, mark: 77, ring_bytes: 1 << 16, freed: None };

/// Most descriptors of a packet (SCM_MAX_FD).
pub const MOST: usize = 253;

/// A connection to the daemon.
pub struct Client {
    pub socket: OwnedFd,
}

impl Client {
    pub fn connect(path: &Path) -> io::Result<Client> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Ok(Client { socket })
    }

    pub fn send(&self, octets: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(beside.push(SendAncillaryMessage::ScmRights(descriptors)));
        }
        sendmsg(&self.socket, &[IoSlice::new(octets)], &mut beside, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    pub fn ask(&self, ask: Ask, socket: impl AsFd) {
        self.send(&ask.emit().unwrap(), &[socket.as_fd()]).unwrap();
    }

    /// How the daemon says that it fares.
    pub fn state(&self) -> State {
        self.send(&Inquiry { token: 5, mark: 6 }.emit(), &[]).unwrap();
        self.await_packet();
        let mut octets = [0; state::LEN + 1];
        let len = rustix::io::read(&self.socket, &mut octets[..]).unwrap();
        let state = State::parse(&octets[..len]).unwrap();
        assert_eq!((state.token, state.mark), (5, 6));
        state
    }

    fn await_packet(&self) {
        let mut ready = [PollFd::new(&self.socket, PollFlags::IN)];
        let patience = Timespec { tv_sec: PATIENCE_S, tv_nsec: 0 };
        assert_ne!(poll(&mut ready, Some(&patience)).unwrap(), 0, "no answer");
    }

    /// The next answer and what comes with it; `None` when the daemon has closed the connection.
    pub fn answer(&self) -> Option<(Answer, Option<OwnedFd>)> {
        self.await_packet();
        let mut octets = [0; LONGEST + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(&self.socket, &mut [IoSliceMut::new(&mut octets)], &mut beside, RecvFlags::CMSG_CLOEXEC);
        let got = match got {
            Err(rustix::io::Errno::CONNRESET) => return None,
            result => result.unwrap(),
        };
        let mut descriptors: Vec<OwnedFd> = beside
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(it) => it.collect(),
                _ => Vec::new(),
            })
            .collect();
        if got.bytes == 0 {
            return None;
        }
        assert!(descriptors.len() <= 1);
        Some((Answer::parse(&octets[..got.bytes]).unwrap(), descriptors.pop()))
    }
}
