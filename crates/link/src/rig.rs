//! Two network namespaces with an interface each, and a cable between: for tests and measurements of drivers. All of it
//! goes with its value, or with the process, however that ends. Needs root, and no program: the kernel is asked by
//! rtnetlink(7).
#![allow(unsafe_code, reason = "a thread leaves its network namespace")]

use crate::interface::Interface;
use crate::netlink::Netlink;
use crate::route::family;
use netlink_packet_core::{DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::link::{AfSpecInet6, AfSpecUnspec, In6AddrGenMode, InfoData, InfoKind, InfoVeth};
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::neighbour::{NeighbourAttribute, NeighbourMessage, NeighbourState};
use netlink_packet_route::route::{RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType};
use netlink_packet_route::tc::{TcAttribute, TcHandle, TcMessage, TcOption};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::thread;

/// The interface at either end of the cable.
pub const INTERFACE: &str = "up0";
/// Their addresses, and the bits of these that name the network.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
const NETWORK: u8 = 24;

/// Why there is no rig.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// No namespace could be made.
    #[error("a network namespace cannot be made ({0}); run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN")]
    Namespace(io::Error),
    /// What it takes is kept for others.
    #[error("{doing} {interface} is not permitted; run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN")]
    NoPermission {
        /// What was tried.
        doing: &'static str,
        /// With which interface.
        interface: String,
    },
    /// The kernel did not do what it was asked for.
    #[error("{doing} {interface}: {error}")]
    Refused {
        /// What it was asked for.
        doing: &'static str,
        /// Of which interface.
        interface: String,
        /// What it said.
        error: io::Error,
    },
}

/// A network namespace. It lasts as long as it is open somewhere or a thread is in it.
#[derive(Debug)]
pub struct Namespace {
    file: File,
}

impl Namespace {
    /// A new one, with nothing in it but a loopback interface.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new() -> Result<Namespace, RigError> {
        let make = || {
            // SAFETY: the thread, which is ours, shares memory and descriptors as before.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
            File::open("/proc/thread-self/ns/net")
        };
        let file = thread::spawn(make).join().unwrap_or_else(|_| Err(io::Error::other("its thread failed")));
        file.map(|file| Namespace { file }).map_err(RigError::Namespace)
    }

    /// Moves the calling thread into it, with whatever that starts from then on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Makes a cable with an end here and the `other` there, each with so many queues, for IP packets of so many
    /// octets.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn lay(&self, name: &str, other: (&Namespace, &str), queues: u32, mtu: usize) -> Result<(), RigError> {
        let end = |name: &str| {
            let (name, mtu) = (LinkAttribute::IfName(name.to_string()), LinkAttribute::Mtu(mtu as u32));
            vec![name, mtu, LinkAttribute::NumRxQueues(queues), LinkAttribute::NumTxQueues(queues)]
        };
        let (there, other) = other;
        let (mut message, mut peer) = (LinkMessage::default(), LinkMessage::default());
        peer.attributes = end(other);
        peer.attributes.push(LinkAttribute::NetNsFd(there.file.as_raw_fd()));
        message.attributes = end(name);
        let veth = [LinkInfo::Kind(InfoKind::Veth), LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer)))];
        message.attributes.push(LinkAttribute::LinkInfo(veth.into()));
        self.ask("making", name, NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewLink(message))
    }

    /// Makes a switch (a bridge of the kernel) that is up.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn bridge(&self, name: &str) -> Result<(), RigError> {
        let mut message = named(name);
        message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Bridge)]));
        self.ask("making", name, NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewLink(message))?;
        self.set_up(name, true)
    }

    /// Makes an interface a port of a switch of this namespace.
    ///
    /// # Errors
    /// There is no such switch, or the kernel refuses.
    pub fn attach_to(&self, bridge: &str, name: &str) -> Result<(), RigError> {
        let doing = "attaching to a switch";
        let index = self.index(bridge).map_err(refused(doing, name))?;
        let mut message = named(name);
        message.attributes.push(LinkAttribute::Controller(index));
        self.ask(doing, name, 0, RouteNetlinkMessage::SetLink(message))
    }

    /// Brings an interface up with an address of its own; IPv6 says nothing on it of its own accord.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn equip(&self, name: &str, address: Ipv4Addr) -> Result<(), RigError> {
        self.silence(name)?;
        self.add_address(name, address.into(), NETWORK)?;
        self.set_up(name, true)
    }

    /// Brings an interface up, or down.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_up(&self, name: &str, up: bool) -> Result<(), RigError> {
        let mut message = named(name);
        message.header.change_mask = LinkFlags::Up;
        message.header.flags = if up { LinkFlags::Up } else { LinkFlags::empty() };
        self.ask("bringing up or down", name, 0, RouteNetlinkMessage::SetLink(message))
    }

    /// Has an interface carry IP packets of so many octets.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_mtu(&self, name: &str, mtu: usize) -> Result<(), RigError> {
        let mut message = named(name);
        message.attributes.push(LinkAttribute::Mtu(mtu as u32));
        self.ask("setting the MTU of", name, 0, RouteNetlinkMessage::SetLink(message))
    }

    /// Gives an interface an IP address, whose first so many bits name its network. The address may be used at once:
    /// the kernel does not ask first whether another host has it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn add_address(&self, name: &str, address: IpAddr, network: u8) -> Result<(), RigError> {
        let doing = "giving an address to";
        let mut message = AddressMessage::default();
        message.header.index = self.index(name).map_err(refused(doing, name))?;
        message.header.family = family(address);
        message.header.prefix_len = network;
        message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        self.ask(doing, name, NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewAddress(message))
    }

    /// Takes an IP address from an interface.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_address(&self, name: &str, address: IpAddr, network: u8) -> Result<(), RigError> {
        let doing = "taking an address from";
        let mut message = AddressMessage::default();
        message.header.index = self.index(name).map_err(refused(doing, name))?;
        message.header.family = family(address);
        message.header.prefix_len = network;
        message.attributes = vec![AddressAttribute::Local(address)];
        self.ask(doing, name, 0, RouteNetlinkMessage::DelAddress(message))
    }

    /// Has packets to a network, whose addresses begin with so many bits of this one, go by way of a router.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn route(&self, network: IpAddr, bits: u8, router: IpAddr) -> Result<(), RigError> {
        self.route_by(
            "making a route by way of",
            &router.to_string(),
            (network, bits),
            RouteAttribute::Gateway(router.into()),
        )
    }

    /// Has packets to a network, whose addresses begin with so many bits of this one, go where an attribute says.
    fn route_by(
        &self,
        doing: &'static str,
        name: &str,
        (network, bits): (IpAddr, u8),
        hop: RouteAttribute,
    ) -> Result<(), RigError> {
        let mut message = RouteMessage::default();
        message.header = RouteHeader {
            address_family: family(network),
            destination_prefix_length: bits,
            table: RouteHeader::RT_TABLE_MAIN,
            protocol: RouteProtocol::Static,
            scope: RouteScope::Universe,
            kind: RouteType::Unicast,
            ..RouteHeader::default()
        };
        message.attributes = vec![RouteAttribute::Destination(network.into()), hop];
        self.ask(doing, name, NLM_F_CREATE | NLM_F_EXCL, RouteNetlinkMessage::NewRoute(message))
    }

    /// Has packets to a network go by way of several routers behind an interface, some to each.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn route_by_several(
        &self,
        network: (IpAddr, u8),
        name: &str,
        routers: &[IpAddr],
    ) -> Result<(), RigError> {
        use netlink_packet_route::route::RouteNextHop;
        let doing = "making a route by several routers behind";
        let interface_index = self.index(name).map_err(refused(doing, name))?;
        let hop = |router: &IpAddr| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = interface_index;
            hop.attributes = vec![RouteAttribute::Gateway((*router).into())];
            hop
        };
        self.route_by(doing, name, network, RouteAttribute::MultiPath(routers.iter().map(hop).collect()))
    }

    /// Has packets to a network go by the next hop of this number.
    #[cfg(all(test, not(loom)))]
    pub(crate) fn route_by_hop(&self, network: (IpAddr, u8), number: u32) -> Result<(), RigError> {
        self.route_by("making a route by a next hop,", &number.to_string(), network, RouteAttribute::NhId(number))
    }

    /// Makes a next hop that routes name by its number, or changes it: a router behind an interface (`struct nhmsg` and
    /// attributes of linux/nexthop.h; Linux 5.3).
    #[cfg(all(test, not(loom)))]
    pub(crate) fn set_hop(&self, number: u32, name: &str, router: Ipv4Addr) -> Result<(), RigError> {
        const RTM_NEWNEXTHOP: u16 = 104;
        let (doing, [id, out, gateway]) = ("making a next hop behind", [1u16, 5, 6]);
        let index = self.index(name).map_err(refused(doing, name))?;
        let mut body = vec![libc::AF_INET as u8, 0, 0, 0, 0, 0, 0, 0];
        for (kind, octets) in [(id, number.to_ne_bytes()), (out, index.to_ne_bytes()), (gateway, router.octets())] {
            body.extend([8u16, kind].map(u16::to_ne_bytes).as_flattened());
            body.extend(octets);
        }
        let ask = || Netlink::open()?.ask_for(RTM_NEWNEXTHOP, NLM_F_CREATE | NLM_F_REPLACE, &body);
        self.inside(ask).map_err(refused(doing, name))
    }

    /// Gives an interface a queueing discipline, by its name, e.g. `fq`.
    ///
    /// # Errors
    /// The kernel has none of that name, or refuses.
    pub fn set_queueing(&self, name: &str, discipline: &str) -> Result<(), RigError> {
        let kind = TcAttribute::Kind(discipline.to_string());
        self.queue_by("setting the queueing discipline of", name, vec![kind])
    }

    /// Has what leaves by an interface go no faster than this.
    ///
    /// # Errors
    /// The kernel has no token bucket filter (`CONFIG_NET_SCH_TBF`), or refuses.
    pub fn narrow(&self, name: &str, bottleneck: Bottleneck) -> Result<(), RigError> {
        let options = bottleneck.options().map(|(kind, octets)| TcOption::Other(DefaultNla::new(kind, octets)));
        let attributes = vec![TcAttribute::Kind("tbf".to_string()), TcAttribute::Options(options.into())];
        self.queue_by("setting the rate of", name, attributes)
    }

    /// The number of an interface.
    fn index(&self, name: &str) -> io::Result<u32> {
        self.inside(|| Interface::named(name).map(|it| it.index()).map_err(io::Error::other))
    }

    /// Gives an interface the queueing discipline of these attributes.
    fn queue_by(&self, doing: &'static str, name: &str, attributes: Vec<TcAttribute>) -> Result<(), RigError> {
        let mut message = TcMessage::with_index(self.index(name).map_err(refused(doing, name))? as i32);
        message.header.parent = TcHandle::ROOT;
        message.attributes = attributes;
        self.ask(doing, name, NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewQueueDiscipline(message))
    }

    /// Sets a parameter of the network, as sysctl(8) does, e.g. `ipv4/ip_forward`.
    ///
    /// # Errors
    /// There is no such parameter, or the kernel refuses.
    pub fn set_parameter(&self, path: &str, word: &str) -> io::Result<()> {
        // The file shows the parameters of the namespace of the process that opens it.
        self.inside(|| std::fs::write(format!("/proc/sys/net/{path}"), word))
    }

    /// Gives an interface another Ethernet address.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_link_address(&self, name: &str, address: [u8; 6]) -> Result<(), RigError> {
        let mut message = named(name);
        message.attributes.push(LinkAttribute::Address(address.to_vec()));
        self.ask("setting the address of", name, 0, RouteNetlinkMessage::SetLink(message))
    }

    /// Has the kernel know a neighbour of an interface by this Ethernet address: heard of just now, or not for a while.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn set_neighbour(&self, name: &str, ip: IpAddr, address: [u8; 6], is_stale: bool) -> Result<(), RigError> {
        let doing = "setting a neighbour of";
        let mut message = NeighbourMessage::default();
        message.header.family = family(ip);
        message.header.ifindex = self.index(name).map_err(refused(doing, name))?;
        message.header.state = if is_stale { NeighbourState::Stale } else { NeighbourState::Reachable };
        message.attributes.push(NeighbourAttribute::Destination(ip.into()));
        message.attributes.push(NeighbourAttribute::LinkLayerAddress(address.to_vec()));
        self.ask(doing, name, NLM_F_CREATE | NLM_F_REPLACE, RouteNetlinkMessage::NewNeighbour(message))
    }

    /// Removes an interface, and with it the other end of its cable.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove(&self, name: &str) -> Result<(), RigError> {
        self.ask("removing", name, 0, RouteNetlinkMessage::DelLink(named(name)))
    }

    /// Writes a word to a file of sysfs, as this namespace has it, e.g. `class/net/up0/gro_flush_timeout`.
    ///
    /// # Errors
    /// There is no such file, or the kernel refuses.
    pub fn write(&self, path: &str, word: &str) -> io::Result<()> {
        self.inside(|| {
            // A sysfs of one's own, which is seen nowhere.
            let sysfs = fsopen("sysfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&sysfs)?;
            let root = fsmount(&sysfs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
            let file = openat(&root, path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            File::from(file).write_all(word.as_bytes())
        })
    }

    /// Attaches an XDP program to an interface, or takes away what is there, as programs do that know no links of BPF.
    #[cfg(test)]
    pub(crate) fn attach(&self, name: &str, program: Option<std::os::fd::BorrowedFd<'_>>) -> Result<(), RigError> {
        use netlink_packet_route::link::LinkXdp;
        let mut message = named(name);
        let descriptor = program.map_or(-1, |program| program.as_raw_fd());
        message.attributes.push(LinkAttribute::Xdp(vec![LinkXdp::Fd(descriptor)]));
        self.ask("attaching an XDP program to", name, 0, RouteNetlinkMessage::SetLink(message))
    }

    /// Keeps IPv6 from giving an interface an address, of which it would tell the other end.
    fn silence(&self, name: &str) -> Result<(), RigError> {
        let mut message = named(name);
        let none = AfSpecInet6::AddrGenMode(In6AddrGenMode::None);
        message.attributes.push(LinkAttribute::AfSpecUnspec(vec![AfSpecUnspec::Inet6(vec![none])]));
        match self.ask("silencing IPv6 on", name, 0, RouteNetlinkMessage::SetLink(message)) {
            // There is no IPv6.
            Err(RigError::Refused { error, .. }) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => Ok(()),
            result => result,
        }
    }

    /// Asks the kernel for something that concerns this namespace, and waits until it is done.
    fn ask(&self, doing: &'static str, name: &str, flags: u16, message: RouteNetlinkMessage) -> Result<(), RigError> {
        // A socket is its namespace's for good.
        let ask = || Netlink::open()?.ask(NLM_F_ACK | flags, message, |_| ());
        self.inside(ask).map_err(refused(doing, name))
    }

    /// Does something in it, by another thread.
    fn inside<R: Send>(&self, what: impl FnOnce() -> io::Result<R> + Send) -> io::Result<R> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| self.enter().and_then(|()| what()));
            thread.join().unwrap_or_else(|_| Err(io::Error::other("its thread failed")))
        })
    }
}

fn refused(doing: &'static str, interface: &str) -> impl Fn(io::Error) -> RigError {
    move |error| {
        let interface = interface.to_string();
        match error.kind() {
            io::ErrorKind::PermissionDenied => RigError::NoPermission { doing, interface },
            _ => RigError::Refused { doing, interface, error },
        }
    }
}

/// A message about an interface.
fn named(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_string()));
    message
}

/// How fast packets leave, and how many wait that come faster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bottleneck {
    /// Octets in a second, Ethernet's header counted.
    pub rate: u32,
    /// Octets that wait. What does not fit is thrown away.
    pub queue: u32,
}

impl Bottleneck {
    /// Octets that leave together at most: a packet of an Ethernet's. Longer ones are segments of one, and are parted
    /// first, as a device parts them, so that each waits, or is thrown away, by itself.
    const BURST: u32 = 1600;

    /// Attributes of the kernel's token bucket filter: `TCA_TBF_PARMS` with a `struct tc_tbf_qopt`, and `TCA_TBF_BURST`
    /// (linux/pkt_sched.h).
    fn options(self) -> [(u16, Vec<u8>); 2] {
        const PARAMETERS: u16 = 1;
        const BURST: u16 = 6;
        // The second octet of a `struct tc_ratespec`, with which the kernel asks for no table of times.
        const ETHERNET: u8 = 1;
        let mut parameters = vec![0; 36];
        parameters[1] = ETHERNET;
        parameters[8..12].copy_from_slice(&self.rate.to_ne_bytes());
        parameters[24..28].copy_from_slice(&self.queue.to_ne_bytes());
        [(PARAMETERS, parameters), (BURST, Bottleneck::BURST.to_ne_bytes().to_vec())]
    }
}

/// Two namespaces, in each an interface named [`INTERFACE`] that is up, and a cable between.
#[derive(Debug)]
pub struct Cable {
    /// The namespaces.
    pub ends: [Namespace; 2],
}

impl Cable {
    /// A new one, for IP packets of so many octets. The ends have the addresses 10.9.0.1 and 10.9.0.2, and IPv6 says
    /// nothing of its own accord.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(mtu: usize) -> Result<Cable, RigError> {
        let ends = [Namespace::new()?, Namespace::new()?];
        ends[0].lay(INTERFACE, (&ends[1], INTERFACE), 1, mtu)?;
        for (end, address) in ends.iter().zip(ADDRESSES) {
            end.set_up("lo", true)?;
            end.equip(INTERFACE, address)?;
        }
        Ok(Cable { ends })
    }

    /// As [`Cable::new`], for a test that is skipped where there can be none, and says why.
    #[cfg(test)]
    pub(crate) fn for_test(mtu: usize) -> Option<Cable> {
        Cable::new(mtu).inspect_err(|error| println!("SKIPPED: {error}")).ok()
    }
}
