//! The link over UDP sockets: over loopback, which needs no privilege, and over a cable between two namespaces.

mod delivery;
mod hostile;
mod mtu;
mod offload;
mod opening;
mod pacing;
mod queues;

use super::support::{End, cable, inside, wait};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use underpass_link::arena::Geometry;
use underpass_link::ip::Header;
use underpass_link::rig::{Cable, INTERFACE};
use underpass_link::udp::{Config, Udp};

/// Frames that an Ethernet's packet fits.
const GEOMETRY: Geometry = Geometry { frames: 512, frame_size: 2048, headroom: 128 };
/// The addresses of the ends, with each version of IP; the rig gives the first two.
const FOUR: [&str; 2] = ["10.9.0.1:700", "10.9.0.2:700"];
const SIX: [&str; 2] = ["[fd09::1]:700", "[fd09::2]:700"];

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address and a port")
}

/// A cable whose ends have addresses of both versions, and over which packets go: for a while after it was laid the kernel throws
/// them away, until it has noticed that the other end is up.
fn dual_cable(mtu: usize) -> Option<Cable> {
    let cable = cable(mtu)?;
    for (end, own) in cable.ends.iter().zip(SIX) {
        end.add_address(INTERFACE, address(own).ip(), 64).expect("an address of IPv6");
    }
    for at in [FOUR, SIX] {
        let bind = |end: usize| inside(&cable.ends[end], || UdpSocket::bind(at[end])).expect("an address of its own");
        let ends = [bind(0), bind(1)];
        for (from, to) in [(0, 1), (1, 0)] {
            ends[to].set_nonblocking(true).expect("it is a socket");
            wait("a packet over the cable", || {
                ends[from].send_to(&[], at[to]).ok()?;
                ends[to].recv(&mut []).ok()
            });
        }
    }
    Some(cable)
}

/// Both ends of a cable, each at its address, and half of the buffers lent to receive into.
fn ends(cable: &Cable, at: [&str; 2], config: &Config) -> [End<Udp>; 2] {
    let mut number = 0;
    cable.ends.each_ref().map(|end| {
        number += 1;
        let mut end = End::udp(end, GEOMETRY, address(at[number - 1]), config).expect("every user may open it");
        end.listen(256);
        end
    })
}

/// From one end to the other.
fn header(from: &End<Udp>, to: &End<Udp>, class: u8) -> Header {
    Header { source: from.link.local(), destination: to.link.local(), class }
}

/// Two ends at an address of this host, with ports that the kernel chooses.
fn local_ends(ip: IpAddr, geometry: Geometry, config: &Config) -> [End<Udp>; 2] {
    use underpass_link::arena::Arena;
    [(); 2].map(|()| {
        let (arena, free) = Arena::new(geometry);
        let link = Udp::open(SocketAddr::new(ip, 0), &arena, config).expect("every user may open it");
        let mut end = End::new(arena, free, link);
        end.listen(geometry.frames as usize / 2);
        end
    })
}
