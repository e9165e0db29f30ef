//! Which neighbour packets to a peer go to first, as the kernel knows it, and whether the kernel has to send them
//! itself.

use super::frame::{self, HEADER};
use crate::netlink::{CHANGES, Listener};
use crate::route::{Neighbour, Routes};
use crate::table::{MOST, Table};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::neighbour::NeighbourMessage;
use std::io;
use std::net::{IpAddr, SocketAddr};

/// How packets get to a peer.
#[derive(Debug)]
struct Way {
    peer: SocketAddr,
    /// The neighbour on this interface that they go to, if they leave by it as they are.
    next: Option<IpAddr>,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// The kernel has to be asked.
    Unknown,
    /// The kernel sends packets to this peer: by another interface, or to a neighbour that has to be found first.
    Kernel,
    /// Packets go behind this header. With `asks`, the kernel sends the next packet, and so asks whether the neighbour
    /// is still there.
    Direct { header: [u8; HEADER], asks: bool },
}

/// The ways to peers.
#[derive(Debug)]
pub struct Ways {
    table: Table<SocketAddr, Way>,
    routes: Routes,
    listener: Listener,
    /// The interface: its number and its address.
    interface: u32,
    own: [u8; 6],
    local: SocketAddr,
}

impl Ways {
    /// Ways from an address, which the kernel has, by the interface of this number and address.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn new(interface: u32, own: [u8; 6], local: SocketAddr) -> io::Result<Ways> {
        // Listening begins before the first question, so that no change in between is missed.
        let listener = Listener::open(&CHANGES)?;
        Ok(Ways { table: Table::default(), routes: Routes::open()?, listener, interface, own, local })
    }

    /// Whether the interface is an end of a cable within this host.
    ///
    /// # Errors
    /// The kernel does not tell.
    pub fn is_within(&self) -> io::Result<bool> {
        self.routes.is_within(self.interface)
    }

    /// What goes in front of the next packet to a peer; none if the kernel is to send it.
    #[inline]
    pub fn header(&mut self, peer: SocketAddr) -> Option<[u8; HEADER]> {
        let number = match self.table.find(peer) {
            Some(number) => number,
            None => {
                let way = Way { peer, next: None, state: State::Unknown };
                self.table.add_or_replace(MOST, peer, way, |_| false)
            }
        };
        let way = self.table.get_mut(number)?;
        if let State::Direct { header, asks: false } = way.state {
            return Some(header);
        }
        self.unusual(number)
    }

    #[cold]
    fn unusual(&mut self, number: u32) -> Option<[u8; HEADER]> {
        let Ways { table, routes, interface, own, local, .. } = self;
        let way = table.get_mut(number)?;
        if let State::Unknown = way.state {
            let hop = routes.hop(local.ip(), way.peer.ip(), *interface);
            way.next = hop.ok().filter(|it| it.plain && it.interface == *interface).map(|it| it.next);
            let neighbour = way.next.and_then(|next| routes.neighbour(*interface, next).ok().flatten());
            way.state = State::of(neighbour, *own, *local);
        }
        match &mut way.state {
            State::Direct { asks: asks @ true, .. } => {
                *asks = false;
                None
            }
            State::Direct { header, .. } => Some(*header),
            State::Unknown | State::Kernel => None,
        }
    }

    /// Takes what the kernel says of neighbours, routes, addresses and interfaces; whether anything but neighbours has
    /// changed.
    pub fn hear(&mut self) -> bool {
        let Ways { table, listener, interface, own, local, .. } = self;
        let mut changed = false;
        let mut neighbour = |message: NeighbourMessage, is_there: bool| {
            let Some((at, ip)) = Neighbour::named(&message) else { return };
            let state = State::of(Neighbour::of(&message).filter(|_| is_there), *own, *local);
            let concerned =
                |it: &&mut Way| at == *interface && it.next == Some(ip) && !matches!(it.state, State::Unknown);
            table.iter_mut().filter(concerned).for_each(|it| it.state = state);
        };
        let is_all = listener.hear(|message| match message {
            RouteNetlinkMessage::NewNeighbour(it) => neighbour(it, true),
            RouteNetlinkMessage::DelNeighbour(it) => neighbour(it, false),
            _ => changed = true,
        });
        changed |= !is_all;
        if changed {
            self.table.iter_mut().for_each(|it| it.state = State::Unknown);
        }
        changed
    }
}

impl State {
    fn of(neighbour: Option<Neighbour>, own: [u8; 6], local: SocketAddr) -> State {
        neighbour
            .map_or(State::Kernel, |it| State::Direct { header: frame::header(it.address, own, local), asks: it.stale })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::interface::Interface;
    use crate::rig::{Cable, INTERFACE};
    use std::net::Ipv4Addr;
    use std::time::Duration;

    const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
    /// Two routers, and their addresses on the cable.
    const ROUTERS: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 2), Ipv4Addr::new(10, 9, 0, 3)];
    const ADDRESSES: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 2], [2, 0, 0, 0, 0, 3]];

    /// A cable with both routers behind it, and the ways over it.
    fn cable() -> Option<(Cable, Ways)> {
        let cable = Cable::for_test(1500)?;
        let here = &cable.ends[0];
        for (router, address) in ROUTERS.into_iter().zip(ADDRESSES) {
            here.set_neighbour(INTERFACE, router.into(), address, false).expect("root may");
        }
        let open = || {
            here.enter().expect("it can be entered");
            let interface = Interface::named(INTERFACE).expect("it is there").index();
            Ways::new(interface, OWN, "10.9.0.1:700".parse().expect("an address")).expect("a descriptor is left")
        };
        let mut ways = std::thread::scope(|scope| scope.spawn(open).join()).expect("it does not panic");
        // Until the kernel has noticed that the other end is up, and has said all that it has to say of that.
        let mut quiet = 0;
        while quiet < 20 {
            std::thread::sleep(Duration::from_millis(10));
            quiet = if ways.hear() { 0 } else { quiet + 1 };
        }
        Some((cable, ways))
    }

    /// To which Ethernet address packets to this host go.
    fn first(ways: &mut Ways, host: [u8; 4]) -> Option<[u8; 6]> {
        ways.hear();
        ways.header(SocketAddr::new(host.into(), 700)).and_then(|it| it[..6].try_into().ok())
    }

    #[test]
    fn a_route_by_several_routers_has_each_host_behind_one() {
        let Some((cable, mut ways)) = cable() else { return };
        let network = ([10, 6, 0, 0].into(), 24);
        let routers = ROUTERS.map(IpAddr::from);
        if let Err(error) = cable.ends[0].route_by_several(network, INTERFACE, &routers) {
            return println!("SKIPPED: {error}");
        }
        let mut count = [0; 2];
        for host in 1..=100 {
            let to = first(&mut ways, [10, 6, 0, host]).expect("a router");
            count[ADDRESSES.iter().position(|it| *it == to).expect("one of them")] += 1;
            assert_eq!(first(&mut ways, [10, 6, 0, host]), Some(to));
        }
        assert!(count.iter().all(|it| *it > 10), "{count:?}");
    }

    /// The route stays as it is, and its next hop, which it names by a number, is another router from now on. The
    /// kernel is told not to report the route then, as it does for programs that know no next hops.
    #[test]
    fn a_next_hop_that_changes_is_heard_of() {
        let Some((cable, mut ways)) = cable() else { return };
        let here = &cable.ends[0];
        if let Err(error) = here.set_hop(7, INTERFACE, ROUTERS[0]) {
            return println!("SKIPPED: {error}");
        }
        here.set_parameter("ipv4/nexthop_compat_mode", "0").expect("root may");
        here.route_by_hop(([10, 7, 0, 0].into(), 24), 7).expect("root may");
        for at in [0, 1, 0] {
            here.set_hop(7, INTERFACE, ROUTERS[at]).expect("root may");
            assert_eq!(first(&mut ways, [10, 7, 0, 1]), Some(ADDRESSES[at]));
        }
    }

    /// What the kernel has said is incomplete, and what it says of this neighbour is not in it.
    #[test]
    fn everything_is_asked_for_again_behind_an_overrun() {
        let Some((cable, mut ways)) = cable() else { return };
        let here = &cable.ends[0];
        let peer = ROUTERS[0].octets();
        assert_eq!(first(&mut ways, peer), Some(ADDRESSES[0]));
        for round in 0..1000u32 {
            let address = [2, 0, 0, 0, 1, round as u8];
            here.set_neighbour(INTERFACE, [10, 9, 0, 9].into(), address, false).expect("root may");
        }
        let moved = [2, 0, 0, 0, 7, 7];
        here.set_neighbour(INTERFACE, peer.into(), moved, false).expect("root may");
        assert!(ways.hear(), "an overrun may hide any change");
        assert_eq!(first(&mut ways, peer), Some(moved));
    }

    /// The kernel has more to say than there is room for, and says so before what there was room for.
    #[test]
    fn an_overrun_is_told_once_and_hides_nothing_that_follows() {
        let Some(cable) = Cable::for_test(1500) else { return };
        let here = &cable.ends[0];
        let open = || here.enter().and_then(|()| Listener::open(&CHANGES));
        let mut listener = std::thread::scope(|scope| scope.spawn(open).join()).unwrap().unwrap();
        let change =
            |last: u8| here.set_neighbour(INTERFACE, [10, 9, 0, 9].into(), [2, 0, 0, 0, 1, last], false).unwrap();
        (0..1000u32).for_each(|it| change(it as u8));
        let mut heard = 0;
        assert!(!listener.hear(|_| heard += 1), "{heard} changes");
        assert!((1..1000).contains(&heard), "{heard}");
        assert!(listener.hear(|message| panic!("{message:?}")));
        change(77);
        heard = 0;
        assert!(listener.hear(|_| heard += 1) && heard > 0);
    }

    #[test]
    fn a_link_local_address_is_reached_by_its_interface() {
        let Some(cable) = Cable::for_test(1500) else { return };
        let [here, there] = &cable.ends;
        here.lay("up1", (there, "up1"), 1, 1500).expect("root may lay it");
        let [own, other] = ["fe80::1", "fe80::2"].map(|it| it.parse().expect("an address"));
        for name in [INTERFACE, "up1"] {
            for end in [here, there] {
                end.set_up(name, true).expect("root may");
            }
            here.add_address(name, own, 64).expect("root may");
        }
        let hops = std::thread::scope(|scope| {
            let ask = || {
                here.enter().expect("it can be entered");
                let routes = Routes::open().expect("a descriptor is left");
                [INTERFACE, "up1"].map(|name| {
                    let interface = Interface::named(name).expect("it is there").index();
                    (interface, routes.hop(own, other, interface).expect("a way"))
                })
            };
            scope.spawn(ask).join().expect("it does not panic")
        });
        for (interface, hop) in hops {
            assert_eq!((hop.interface, hop.next, hop.plain), (interface, other, true));
        }
    }
}
