//! What the kernel is asked for, and says of its own accord, by rtnetlink(7).

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use std::io;

/// Octets of an answer; the kernel sends more than one if it has more to say.
const ANSWER: usize = 32 << 10;

/// A socket that asks, in the network namespace of the thread that has opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
}

impl Netlink {
    /// Opens a socket for requests.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn open() -> io::Result<Netlink> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink { socket })
    }

    /// Sends a request, and hands each answer on. With `NLM_F_ACK` it waits until the request is done, with
    /// `NLM_F_DUMP` until the answers are complete.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn ask(
        &self,
        flags: u16,
        question: RouteNetlinkMessage,
        mut hear: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        let mut message = NetlinkMessage::new(header, question.into());
        message.finalize();
        let mut request = vec![0; message.buffer_len()];
        message.serialize(&mut request);
        self.socket.send(&request, 0)?;
        loop {
            let mut answers = Vec::with_capacity(ANSWER);
            self.socket.recv(&mut answers, 0)?;
            for message in messages(&answers) {
                match message?.payload {
                    NetlinkPayload::InnerMessage(it) => hear(it),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    _ => return Ok(()),
                }
            }
            if flags & NLM_F_DUMP == 0 {
                return Ok(());
            }
        }
    }
}

/// Errors of a listener at a time. An overrun is one; with so many the socket itself fails.
const FAILURES: u32 = 16;

/// Groups of what the kernel says of its own accord (`enum rtnetlink_groups` of linux/rtnetlink.h): of interfaces,
/// neighbours, addresses, routes, rules by which a route is chosen, and next hops that routes name (Linux 5.3).
pub const CHANGES: [u32; 9] = [1, 3, 5, 7, 8, 9, 11, 19, 32];

/// A socket that hears what the kernel says of its own accord, in the network namespace of the thread that has opened
/// it.
#[derive(Debug)]
pub struct Listener {
    socket: Socket,
    room: Vec<u8>,
}

impl Listener {
    /// Opens a listener for these groups.
    ///
    /// # Errors
    /// There is no descriptor left, or the kernel knows no such group.
    pub fn open(groups: &[u32]) -> io::Result<Listener> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        groups.iter().try_for_each(|group| socket.add_membership(*group))?;
        Ok(Listener { socket, room: Vec::with_capacity(ANSWER) })
    }

    /// Hands on what was said since; whether that is all of it. Otherwise anything may have changed. What has come is
    /// taken in either case: the kernel says no more before, and what lies there is older than what is asked for then.
    pub fn hear(&mut self, mut hear: impl FnMut(RouteNetlinkMessage)) -> bool {
        let (mut is_all, mut failed) = (true, 0);
        loop {
            self.room.clear();
            match self.socket.recv(&mut self.room, libc::MSG_DONTWAIT) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return is_all,
                // ENOBUFS: the kernel had more to say than there was room for. It comes before what there was room for.
                Err(_) => {
                    (is_all, failed) = (false, failed + 1);
                    if failed > FAILURES {
                        return false;
                    }
                }
            }
            for message in messages(&self.room) {
                match message.map(|it| it.payload) {
                    Ok(NetlinkPayload::InnerMessage(it)) => hear(it),
                    Ok(_) => {}
                    Err(_) => is_all = false,
                }
            }
        }
    }
}

/// The messages of a datagram, up to the first that cannot be read.
fn messages(datagram: &[u8]) -> impl Iterator<Item = io::Result<NetlinkMessage<RouteNetlinkMessage>>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other);
        let len = message.as_ref().map_or(rest.len(), |it| (it.header.length as usize).next_multiple_of(4));
        rest = &rest[len.clamp(1, rest.len())..];
        Some(message)
    })
}
