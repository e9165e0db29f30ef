//! The name of a stream between hosts: the addresses of its TCP connection.

use std::net::{IpAddr, SocketAddr};
use underpass_engine::service::Details;

/// A TCP connection, as one of its ends sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// The address of the end on this host.
    pub local: SocketAddr,
    /// The address of the other end.
    pub remote: SocketAddr,
}

impl Name {
    /// Whether this host's daemon opens the transport connection.
    pub fn opens(&self) -> bool {
        self.local < self.remote
    }

    /// What the other daemon is asked: this end calls the other one, and the key is the user's data.
    pub fn details(&self, key: [u64; 2]) -> Details {
        let user_data = key.map(u64::to_le_bytes).concat();
        Details { calling: octets(self.local), called: octets(self.remote), user_data, expedited: false }
    }

    /// The name of the stream that another daemon asks for, as this host sees it, and its key. `None` if they are not
    /// such.
    pub fn asked(details: &Details) -> Option<(Name, [u64; 2])> {
        let name = Name { local: address(&details.called)?, remote: address(&details.calling)? };
        let (first, second) = details.user_data.split_at_checked(8)?;
        let key = [first.try_into().ok()?, second.try_into().ok()?].map(u64::from_le_bytes);
        Some((name, key)).filter(|_| key[0] != 0)
    }
}

/// An address as TSAP-ID: 4 or 16 octets, and the port, in network order.
fn octets(address: SocketAddr) -> Vec<u8> {
    let mut octets = match address.ip() {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    octets.extend(address.port().to_be_bytes());
    octets
}

fn address(octets: &[u8]) -> Option<SocketAddr> {
    let (ip, port) = octets.split_last_chunk::<2>()?;
    let ip = match ip.len() {
        4 => IpAddr::from(<[u8; 4]>::try_from(ip).ok()?),
        _ => IpAddr::from(<[u8; 16]>::try_from(ip).ok()?),
    };
    Some(SocketAddr::new(ip, u16::from_be_bytes(*port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_daemon_hears_the_mirrored_name() {
        for [one, other] in [["10.0.0.1:80", "10.0.0.2:40000"], ["[fe80::1]:80", "[fe80::2]:40000"]] {
            let name = Name { local: one.parse().unwrap(), remote: other.parse().unwrap() };
            let (heard, key) = Name::asked(&name.details([1, 2])).unwrap();
            assert_eq!((heard, key), (Name { local: name.remote, remote: name.local }, [1, 2]));
            assert_ne!(name.opens(), heard.opens());
            let mut short = name.details([1, 2]);
            short.called.pop();
            assert!(Name::asked(&short).is_none() && Name::asked(&name.details([0, 2])).is_none());
        }
    }
}
