//! What the kernel is asked for, and says of its own accord, by rtnetlink(7).

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use std::cell::Cell;
use std::io;

/// Octets of an answer; the kernel sends more than one if it has more to say.
const ANSWER: usize = 32 << 10;

/// A socket that asks, in the network namespace of the thread that has opened it.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    /// The number of the last request, by which its answers are known.
    asked: Cell<u32>,
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
        Ok(Netlink { socket, asked: Cell::new(0) })
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
        let number = self.asked.get().wrapping_add(1);
        self.asked.set(number);
        self.send(number, flags, question)?;
        loop {
            let mut answers = Vec::with_capacity(ANSWER);
            self.socket.recv(&mut answers, 0)?;
            let mut is_answered = false;
            for (asked, message) in messages(&answers) {
                // What is left of an earlier request, whose caller did not wait for all of it. It may be unreadable.
                if asked != number {
                    continue;
                }
                is_answered = true;
                match message?.payload {
                    NetlinkPayload::InnerMessage(it) => hear(it),
                    NetlinkPayload::Error(error) if error.code.is_some() => return Err(error.to_io()),
                    _ => return Ok(()),
                }
            }
            if is_answered && flags & NLM_F_DUMP == 0 {
                return Ok(());
            }
        }
    }

    /// Sends the request of this number.
    fn send(&self, number: u32, flags: u16, question: RouteNetlinkMessage) -> io::Result<()> {
        let mut header = NetlinkHeader::default();
        (header.flags, header.sequence_number) = (NLM_F_REQUEST | flags, number);
        let mut message = NetlinkMessage::new(header, question.into());
        message.finalize();
        let mut request = vec![0; message.buffer_len()];
        message.serialize(&mut request);
        self.socket.send(&request, 0).map(drop)
    }
}

#[cfg(all(test, not(loom)))]
impl Netlink {
    /// Has the kernel do something for which there is no type: the kind of the request, and all that follows its
    /// header.
    pub fn ask_for(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        self.send_as(kind, netlink_packet_core::NLM_F_ACK | flags, body)?;
        let mut answers = Vec::with_capacity(ANSWER);
        self.socket.recv(&mut answers, 0)?;
        match messages(&answers).next().map(|it| it.1).transpose()?.map(|it| it.payload) {
            Some(NetlinkPayload::Error(error)) if error.code.is_some() => Err(error.to_io()),
            _ => Ok(()),
        }
    }

    /// Sends such a request, with number 0.
    fn send_as(&self, kind: u16, flags: u16, body: &[u8]) -> io::Result<()> {
        let mut request = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
        request.extend([kind, NLM_F_REQUEST | flags].map(u16::to_ne_bytes).as_flattened());
        request.extend([0; 8]);
        request.extend(body);
        self.socket.send(&request, 0).map(drop)
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
            for (_, message) in messages(&self.room) {
                match message.map(|it| it.payload) {
                    Ok(NetlinkPayload::InnerMessage(it)) => hear(it),
                    Ok(_) => {}
                    Err(_) => is_all = false,
                }
            }
        }
    }
}

/// Octets of a message's header (`nlmsghdr` of linux/netlink.h): its length, its kind and flags, its number, and whose
/// it is.
const HEADER: usize = 16;

/// The messages of a datagram, each with the number of the request that it answers, also where it cannot be read.
fn messages(datagram: &[u8]) -> impl Iterator<Item = (u32, io::Result<NetlinkMessage<RouteNetlinkMessage>>)> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let word = |at: usize| rest.get(at..).and_then(|it| it.first_chunk()).map_or(0, |it| u32::from_ne_bytes(*it));
        let (len, number) = (word(0) as usize, word(8));
        let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest).map_err(io::Error::other);
        // Where the length is none, nobody knows what follows.
        let len = if len < HEADER { rest.len() } else { len.next_multiple_of(4).min(rest.len()) };
        rest = &rest[len..];
        Some((number, message))
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use netlink_packet_route::link::{LinkAttribute, LinkMessage};

    /// The interfaces that the kernel names when it is asked for this one, or for all.
    fn named(netlink: &Netlink, flags: u16, name: Option<&str>) -> io::Result<Vec<String>> {
        let mut message = LinkMessage::default();
        message.attributes.extend(name.map(|it| LinkAttribute::IfName(it.to_string())));
        let mut names = Vec::new();
        netlink.ask(flags, RouteNetlinkMessage::GetLink(message), |answer| {
            let RouteNetlinkMessage::NewLink(link) = answer else { return };
            names.extend(link.attributes.into_iter().filter_map(|it| match it {
                LinkAttribute::IfName(it) => Some(it),
                _ => None,
            }));
        })?;
        Ok(names)
    }

    /// A request whose answer nobody has awaited: the next one is not taken for answered by that.
    #[test]
    fn an_answer_is_that_of_its_request() {
        let netlink = Netlink::open().unwrap();
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName("none-such".to_string()));
        let ask = || netlink.send(u32::MAX, 0, RouteNetlinkMessage::GetLink(message.clone())).unwrap();
        ask();
        assert_eq!(named(&netlink, 0, Some("lo")).unwrap(), ["lo"]);
        ask();
        assert!(named(&netlink, NLM_F_DUMP, None).unwrap().contains(&"lo".to_string()));
        let error = named(&netlink, 0, Some("none-such")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }

    /// What is left of an earlier request may be of a kind that cannot be read.
    #[test]
    fn an_unreadable_answer_of_an_earlier_request_fails_no_other() {
        let netlink = Netlink::open().unwrap();
        // RTM_GETNETCONF, whose answers there is no type for.
        netlink.send_as(82, NLM_F_DUMP, &[libc::AF_INET as u8, 0, 0, 0]).unwrap();
        assert_eq!(named(&netlink, 0, Some("lo")).unwrap(), ["lo"]);
    }
}
