//! One packet of a client, taken from its socket.

use crate::facts::{Facts, NotConnection};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use underpass_broker::{Ask, Bell, Inquiry, Knock, Refusal, WireError, ask, header};

/// Most descriptors that a packet brings (SCM_MAX_FD, unix(7)). There is room for all of them, because the kernel
/// closes what finds no room, and that may wait.
const MOST_DESCRIPTORS: usize = 253;

/// What a client has sent.
#[derive(Debug)]
pub enum Packet {
    /// Nothing yet.
    Nothing,
    /// It has closed its connection, or has sent an empty packet.
    End,
    /// The client wants to know whether the daemon is at work.
    Knock(Knock),
    /// The client has put something into a ring whose other end is on another host.
    Bell,
    /// The client wants to know how the daemon fares.
    Inquiry(Inquiry),
    /// An ask for this connection.
    Ask(Ask, Facts),
    /// An ask for the socket with this cookie, which is no established connection, or not any more.
    Over(Ask, u64),
    /// Something else, with the token and the mark that its header names.
    Fault { fault: Fault, token: u64, mark: u64 },
}

/// What is wrong with a packet.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It is no record.
    #[error("{0}")]
    Wire(#[from] WireError),
    /// An ask has exactly one descriptor beside it, anything else none.
    #[error("{0} descriptors came with it")]
    Descriptors(usize),
    /// The descriptor is no established connection.
    #[error("{0}")]
    NotConnection(#[from] NotConnection),
}

impl Fault {
    /// The refusal that the client gets.
    pub fn refusal(&self) -> Refusal {
        match self {
            Fault::Wire(WireError::Version(_)) => Refusal::Version,
            Fault::Wire(_) | Fault::Descriptors(_) => Refusal::Malformed,
            Fault::NotConnection(_) => Refusal::NotConnection,
        }
    }

    /// Whether a library may have sent it: a connection may end while it is asked for.
    pub fn is_honest(&self) -> bool {
        matches!(self, Fault::NotConnection(NotConnection::Unknown(_)))
    }
}

impl Packet {
    /// Takes one packet, asks the kernel what came with it, and closes that. May wait for as long as the client likes:
    /// see [`crate::facts`].
    ///
    /// # Errors
    /// What recvmsg(2) says; EMFILE where not all descriptors could be taken.
    pub fn take(client: BorrowedFd<'_>) -> Result<Packet, Errno> {
        // With room for one octet more than an ask has, a packet that is too long is seen to be.
        let mut octets = [0; ask::LEN + 1];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let it = match recvmsg(client, &mut [IoSliceMut::new(&mut octets)], &mut beside, flags) {
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Packet::Nothing),
            result => result?,
        };
        let descriptors: Vec<OwnedFd> = beside
            .drain()
            .flat_map(|message| match message {
                RecvAncillaryMessage::ScmRights(it) => it.collect(),
                _ => Vec::new(),
            })
            .collect();
        if it.flags.contains(ReturnFlags::CTRUNC) {
            return Err(Errno::MFILE);
        }
        // An empty packet cannot be told from the end, and a client that sends one need not go on.
        if it.bytes == 0 {
            return Ok(Packet::End);
        }
        let octets = &octets[..it.bytes.min(ask::LEN + 1)];
        Ok(parse(octets, &descriptors).unwrap_or_else(|fault| {
            let header = header::Header::read(octets).ok();
            Packet::Fault { fault, token: header.map_or(0, |it| it.token), mark: header.map_or(0, |it| it.mark) }
        }))
    }
}

fn parse(octets: &[u8], descriptors: &[OwnedFd]) -> Result<Packet, Fault> {
    let alone = |packet| if descriptors.is_empty() { Ok(packet) } else { Err(Fault::Descriptors(descriptors.len())) };
    if let Ok(knock) = Knock::parse(octets) {
        return alone(Packet::Knock(knock));
    }
    if Bell::parse(octets).is_ok() {
        return alone(Packet::Bell);
    }
    if let Ok(inquiry) = Inquiry::parse(octets) {
        return alone(Packet::Inquiry(inquiry));
    }
    let ask = Ask::parse(octets)?;
    let [socket] = descriptors else { return Err(Fault::Descriptors(descriptors.len())) };
    match Facts::of(socket.as_fd()) {
        Ok(facts) => Ok(Packet::Ask(ask, facts)),
        Err(NotConnection::State { cookie, .. }) => Ok(Packet::Over(ask, cookie)),
        Err(other) => Err(other.into()),
    }
}
