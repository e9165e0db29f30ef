//! Socket addresses as the kernel has them (`sockaddr_in`, `sockaddr_in6`), without a pointer.

use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// Octets of the longer one: family, port, flow information, address, scope.
pub const ROOM: usize = size_of::<libc::sockaddr_in6>();
const SHORTER: usize = size_of::<libc::sockaddr_in>();

const _: () = assert!(ROOM == 28 && SHORTER == 16);

/// A socket address.
#[derive(Clone, Copy, Debug)]
pub struct Name {
    /// What the kernel reads or writes.
    pub octets: [u8; ROOM],
    /// Octets of it that are used.
    pub len: usize,
}

impl Name {
    /// Room for any.
    pub const ROOM: Name = Name { octets: [0; ROOM], len: ROOM };

    /// The name of an address; an address that is valid on one network alone is on the network with this number.
    pub fn new(address: SocketAddr, scope: u32) -> Name {
        let mut octets = [0; ROOM];
        octets[2..4].copy_from_slice(&address.port().to_be_bytes());
        let (family, len) = match address.ip() {
            IpAddr::V4(ip) => {
                octets[4..8].copy_from_slice(&ip.octets());
                (libc::AF_INET, SHORTER)
            }
            IpAddr::V6(ip) => {
                octets[8..24].copy_from_slice(&ip.octets());
                let scope = if ip.is_unicast_link_local() { scope } else { 0 };
                octets[24..28].copy_from_slice(&scope.to_ne_bytes());
                (libc::AF_INET6, ROOM)
            }
        };
        octets[..2].copy_from_slice(&(family as u16).to_ne_bytes());
        Name { octets, len }
    }

    /// The address, without a scope, if it is one.
    pub fn address(&self) -> Option<SocketAddr> {
        let port = u16::from_be_bytes([self.octets[2], self.octets[3]]);
        let family = i32::from(u16::from_ne_bytes([self.octets[0], self.octets[1]]));
        match (family, self.len) {
            (libc::AF_INET, SHORTER..=ROOM) => {
                let ip: [u8; 4] = std::array::from_fn(|at| self.octets[4 + at]);
                Some(SocketAddr::new(IpAddr::from(ip), port))
            }
            (libc::AF_INET6, ROOM) => {
                let ip: [u8; 16] = std::array::from_fn(|at| self.octets[8 + at]);
                Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, 0).into())
            }
            _ => None,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn addresses_stay_what_they_are() {
        for address in ["10.9.0.1:500", "[fd00::1]:65535", "[fe80::1]:1"] {
            let address: SocketAddr = address.parse().unwrap();
            assert_eq!(Name::new(address, 7).address(), Some(address));
        }
        assert_eq!(Name::new("[fe80::1]:1".parse().unwrap(), 7).octets[24..28], 7u32.to_ne_bytes());
        assert_eq!(Name::new("[fd00::1]:1".parse().unwrap(), 7).octets[24..28], [0; 4]);
        let mut name = Name::new("10.9.0.1:500".parse().unwrap(), 0);
        name.len = 15;
        assert_eq!((name.address(), Name::ROOM.address()), (None, None));
    }
}
