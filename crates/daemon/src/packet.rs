//! One packet of a client, taken from its socket.

use crate::facts::{Facts, NotConnection};
use crate::sys;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SocketType, recvmsg, sockopt,
};
use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use underpass_broker::{Ask, Inquiry, Knock, Line, Refusal, WireError, ask, header};

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
    /// A line of this number, by which the client rings and is rung.
    Line(u64, OwnedFd),
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
    /// The descriptor is no end of a pair that the client has made.
    #[error("a line that the client has not made")]
    NotLine,
}

impl Fault {
    /// The refusal that the client gets.
    pub fn refusal(&self) -> Refusal {
        match self {
            Fault::Wire(WireError::Version(_)) => Refusal::Version,
            Fault::Wire(_) | Fault::Descriptors(_) | Fault::NotLine => Refusal::Malformed,
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
        Ok(parse(client, octets, descriptors).unwrap_or_else(|fault| {
            let header = header::Header::read(octets).ok();
            Packet::Fault { fault, token: header.map_or(0, |it| it.token), mark: header.map_or(0, |it| it.mark) }
        }))
    }
}

fn parse(client: BorrowedFd<'_>, octets: &[u8], mut descriptors: Vec<OwnedFd>) -> Result<Packet, Fault> {
    let alone = |packet| if descriptors.is_empty() { Ok(packet) } else { Err(Fault::Descriptors(descriptors.len())) };
    if let Ok(knock) = Knock::parse(octets) {
        return alone(Packet::Knock(knock));
    }
    if let Ok(inquiry) = Inquiry::parse(octets) {
        return alone(Packet::Inquiry(inquiry));
    }
    if let Ok(line) = Line::parse(octets) {
        let count = descriptors.len();
        let socket = descriptors.pop().filter(|_| count == 1).ok_or(Fault::Descriptors(count))?;
        return if is_line_of(client, socket.as_fd()) {
            Ok(Packet::Line(line.number, socket))
        } else {
            Err(Fault::NotLine)
        };
    }
    let ask = Ask::parse(octets)?;
    let [socket] = &descriptors[..] else { return Err(Fault::Descriptors(descriptors.len())) };
    match Facts::of(socket.as_fd()) {
        Ok(facts) => Ok(Packet::Ask(ask, facts)),
        Err(NotConnection::State { cookie, .. }) => Ok(Packet::Over(ask, cookie)),
        Err(other) => Err(other.into()),
    }
}

/// Whether this is an end of a pair that the client has made. The other end of any other socket may be a service that
/// would take a ring for a word of this daemon's.
fn is_line_of(client: BorrowedFd<'_>, socket: BorrowedFd<'_>) -> bool {
    let maker = |fd| sys::peer_credentials(fd).map(|[pid, uid, _]| (pid, uid)).ok();
    sockopt::socket_domain(socket).is_ok_and(|it| it == AddressFamily::UNIX)
        && sockopt::socket_type(socket).is_ok_and(|it| it == SocketType::STREAM)
        && sockopt::socket_acceptconn(socket).is_ok_and(|listens| !listens)
        && maker(client).is_some_and(|it| maker(socket) == Some(it))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, sendmsg};
    use std::io::{IoSlice, Read};
    use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
    use underpass_segment::config::SocketPath;
    use underpass_segment::line::{Heard, Line as OwnLine};

    /// What a library does that makes a line, and what the daemon gets. Fails if the two do not ring each other.
    #[test]
    fn the_librarys_line_is_taken() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broker");
        let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        rustix::net::bind(&listener, &address).unwrap();
        rustix::net::listen(&listener, 1).unwrap();
        let line = OwnLine::open(&SocketPath::of(path.to_str().unwrap()).unwrap()).unwrap();
        let client = rustix::net::accept(&listener).unwrap();
        let Ok(Packet::Line(number, socket)) = Packet::take(client.as_fd()) else { panic!("no line") };
        assert_eq!(number, line.number());
        assert!(matches!(Packet::take(client.as_fd()), Ok(Packet::End)), "the library has hung up");
        let mut daemon = UnixStream::from(socket);
        line.ring();
        let mut octets = [0; 8];
        assert_eq!((daemon.read(&mut octets).unwrap(), octets[0]), (1, underpass_broker::line::RING));
        assert_eq!(line.hear(), Heard::Rings);
        drop(daemon);
        assert_eq!(line.hear(), Heard::Gone);
        line.close();
        assert!(!line.is_there());
    }

    fn take_with(beside: BorrowedFd<'_>) -> Packet {
        let (client, daemon) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let record = Line { number: 5, mark: 0 }.emit();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        let beside = [beside];
        assert!(control.push(SendAncillaryMessage::ScmRights(&beside)));
        sendmsg(&client, &[IoSlice::new(&record)], &mut control, SendFlags::empty()).unwrap();
        Packet::take(daemon.as_fd()).unwrap()
    }

    /// Fails if the daemon would send a ring to somebody who may take it for something else.
    #[test]
    fn what_is_no_line_of_the_clients_is_refused() {
        let is_line = |beside: BorrowedFd<'_>| matches!(take_with(beside), Packet::Line(5, _));
        let (own, _other) = UnixStream::pair().unwrap();
        assert!(is_line(own.as_fd()));
        let datagrams = UnixDatagram::pair().unwrap();
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let file = tempfile::tempfile().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("listener")).unwrap();
        let others = [datagrams.0.as_fd(), tcp.as_fd(), file.as_fd(), listener.as_fd()];
        assert!(others.into_iter().all(|it| !is_line(it)));
    }
}
