//! The link over UDP sockets: over loopback, which needs no privilege, and over a cable between two namespaces.

mod delivery;
mod hostile;
mod mtu;
mod offload;
mod opening;
mod pacing;
pub mod queues;
mod refused;

use super::support::{End, FOUR, SIX, address, dual_cable};
use std::net::{IpAddr, SocketAddr};
use underpass_link::arena::Geometry;
use underpass_link::ip::Header;
use underpass_link::rig::Cable;
use underpass_link::udp::{Config, Udp};

/// Frames that an Ethernet's packet fits.
const GEOMETRY: Geometry = Geometry { frames: 512, frame_size: 2048, headroom: 128 };

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
