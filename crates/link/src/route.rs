//! What the kernel says of the way to an address (rtnetlink(7)): the interface that packets leave by, and whether that keeps times.

use crate::netlink::Netlink;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::route::{RouteAttribute, RouteMessage};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use std::io;
use std::net::IpAddr;

/// The queueing discipline that has packets leave at their time, and the one that is made of others, one for each queue.
const KEEPS_TIMES: &str = "fq";
const OF_OTHERS: &str = "mq";

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

    /// The number of the interface by which packets from one address to another leave.
    ///
    /// # Errors
    /// There is no way.
    pub fn egress(&self, from: IpAddr, to: IpAddr) -> io::Result<u32> {
        let mut message = RouteMessage::default();
        (message.header.address_family, message.header.destination_prefix_length) = match to {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        message.header.source_prefix_length = message.header.destination_prefix_length;
        message.attributes = vec![RouteAttribute::Destination(to.into()), RouteAttribute::Source(from.into())];
        let mut egress = None;
        self.netlink.ask(0, RouteNetlinkMessage::GetRoute(message), |answer| {
            let RouteNetlinkMessage::NewRoute(route) = answer else { return };
            egress = route.attributes.into_iter().find_map(|it| match it {
                RouteAttribute::Oif(interface) => Some(interface),
                _ => None,
            });
        })?;
        egress.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))
    }

    /// Whether packets that leave by an interface do so at the time that stands beside them: whether each of its queues has the
    /// discipline fq (tc-fq(8)).
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
