//! What the kernel says of the way to an address (rtnetlink(7)): the interface that packets leave by, the neighbour
//! that they go to first, and whether the interface keeps times.

use crate::netlink::Netlink;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;

/// The queueing discipline that has packets leave at their time, and the discipline that consists of others, one for
/// each queue.
const KEEPS_TIMES: &str = "fq";
const OF_OTHERS: &str = "mq";

/// Where packets go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The number of the interface by which they leave.
    pub interface: u32,
    /// The neighbour there: the receiver itself, or a router.
    pub next: IpAddr,
    /// Packets go to one other host as they are: not to this host, not to many hosts, and not within packets of another
    /// kind.
    pub plain: bool,
}

/// What the kernel knows of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Its Ethernet address.
    pub address: [u8; 6],
    /// The neighbour was not heard from for a while; the kernel asks it only when it sends a packet there itself.
    pub stale: bool,
}

impl Neighbour {
    /// What a message says; none where the neighbour has no Ethernet address, or is not to be reached.
    pub fn of(message: &NeighbourMessage) -> Option<Neighbour> {
        let stale = match message.header.state {
            NeighbourState::Reachable | NeighbourState::Delay | NeighbourState::Probe => false,
            NeighbourState::Permanent | NeighbourState::Noarp => false,
            NeighbourState::Stale => true,
            _ => return None,
        };
        let address = message.attributes.iter().find_map(|it| match it {
            NeighbourAttribute::LinkLayerAddress(octets) => <[u8; 6]>::try_from(octets.as_slice()).ok(),
            _ => None,
        })?;
        // A group's is for the kernel to send to.
        (address[0] & 1 == 0 && address != [0; 6]).then_some(Neighbour { address, stale })
    }

    /// The neighbour that a message is about: the number of the interface, and the address.
    pub fn named(message: &NeighbourMessage) -> Option<(u32, IpAddr)> {
        let ip = message.attributes.iter().find_map(|it| match it {
            NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::from(*ip)),
            NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::from(*ip)),
            _ => None,
        })?;
        Some((message.header.ifindex, ip))
    }
}

/// The family of an address, as the kernel has it.
pub fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

/// A socket that asks, in the network namespace of the thread that has opened it.
#[derive(Debug)]
pub struct Routes {
    netlink: Netlink,
}

impl Routes {
    /// Opens one.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn open() -> io::Result<Routes> {
        Ok(Routes { netlink: Netlink::open()? })
    }

    /// Where packets from one address to another go first. `interface` is the number of the interface whose addresses
    /// these are, if they are link-local, which every interface has.
    ///
    /// # Errors
    /// There is no way.
    pub fn hop(&self, from: IpAddr, to: IpAddr, interface: u32) -> io::Result<Hop> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(to);
        message.header.destination_prefix_length = if to.is_ipv4() { 32 } else { 128 };
        message.header.source_prefix_length = message.header.destination_prefix_length;
        message.attributes = vec![RouteAttribute::Destination(to.into()), RouteAttribute::Source(from.into())];
        if matches!(to, IpAddr::V6(it) if it.is_unicast_link_local()) {
            message.attributes.push(RouteAttribute::Oif(interface));
        }
        let (mut interface, mut next, mut plain) = (None, to, false);
        self.netlink.ask(0, RouteNetlinkMessage::GetRoute(message), |answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return };
            plain = route.header.kind == RouteType::Unicast;
            for attribute in route.attributes {
                match attribute {
                    RouteAttribute::Oif(it) => interface = Some(it),
                    RouteAttribute::Gateway(RouteAddress::Inet(it)) | RouteAttribute::Via(RouteVia::Inet(it)) => {
                        next = it.into();
                    }
                    RouteAttribute::Gateway(RouteAddress::Inet6(it)) | RouteAttribute::Via(RouteVia::Inet6(it)) => {
                        next = it.into();
                    }
                    RouteAttribute::EncapType(_) | RouteAttribute::Encap(_) => plain = false,
                    _ => {}
                }
            }
        })?;
        let interface = interface.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))?;
        Ok(Hop { interface, next, plain })
    }

    /// What the kernel knows of a neighbour; none where it knows no address of it.
    ///
    /// # Errors
    /// The kernel does not tell: it is older than Linux 5.0.
    pub fn neighbour(&self, interface: u32, ip: IpAddr) -> io::Result<Option<Neighbour>> {
        let mut message = NeighbourMessage::default();
        (message.header.family, message.header.ifindex) = (family(ip), interface);
        message.attributes.push(NeighbourAttribute::Destination(ip.into()));
        let mut found = None;
        let asked = self.netlink.ask(0, RouteNetlinkMessage::GetNeighbour(message), |answer| {
            if let RouteNetlinkMessage::NewNeighbour(it) = answer {
                found = Neighbour::of(&it);
            }
        });
        match asked {
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            asked => asked.map(|()| found),
        }
    }

    /// Whether an interface is an end of a cable within this host (veth(4)).
    ///
    /// # Errors
    /// There is no such interface, or the kernel does not tell.
    pub fn is_within(&self, interface: u32) -> io::Result<bool> {
        let mut message = LinkMessage::default();
        message.header.index = interface;
        let mut within = false;
        self.netlink.ask(0, RouteNetlinkMessage::GetLink(message), |answer| {
            let RouteNetlinkMessage::NewLink(link) = answer else { return };
            let infos = link.attributes.into_iter().filter_map(|it| match it {
                LinkAttribute::LinkInfo(infos) => Some(infos),
                _ => None,
            });
            within |= infos.flatten().any(|it| matches!(it, LinkInfo::Kind(InfoKind::Veth)));
        })?;
        Ok(within)
    }

    /// Whether packets that leave by an interface do so at the time that stands beside them: whether each of its queues
    /// has the discipline fq (tc-fq(8)).
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn keeps_times(&self, interface: u32) -> io::Result<bool> {
        let mut all = Vec::new();
        self.netlink.ask(NLM_F_DUMP, RouteNetlinkMessage::GetQueueDiscipline(TcMessage::default()), |answer| {
            let RouteNetlinkMessage::NewQueueDiscipline(it) = answer else { return };
            let kind = it.attributes.into_iter().find_map(|it| match it {
                TcAttribute::Kind(kind) => Some(kind),
                _ => None,
            });
            if let (true, Some(kind)) = (it.header.index as u32 == interface, kind) {
                all.push((it.header.parent, it.header.handle, kind));
            }
        })?;
        let Some((_, root, kind)) = all.iter().find(|it| it.0 == TcHandle::ROOT) else { return Ok(false) };
        let mut queues = all.iter().filter(|it| it.0.major == root.major && it.0 != TcHandle::ROOT).peekable();
        Ok(match kind.as_str() {
            OF_OTHERS => queues.peek().is_some() && queues.all(|it| it.2 == KEEPS_TIMES),
            kind => kind == KEEPS_TIMES,
        })
    }
}
