//! Which hosts are reached over a link of this daemon, as the administrator has written it in a file.
//!
//! ```toml
//! # Where this host is reached by others' daemons: a UDP port of an address of its own.
//! listen = "10.9.0.1:7471"
//!
//! [[route]]
//! to = "10.9.0.0/24"
//! ```

use serde::Deserialize;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

/// The routes of this host.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Routes {
    /// The address of the UDP socket by which daemons talk. The daemons of all hosts use its port.
    pub listen: SocketAddr,
    #[serde(default, rename = "route")]
    routes: Vec<Route>,
}

#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
struct Route {
    to: Prefix,
}

/// Addresses that begin with the same bits.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(try_from = "String")]
struct Prefix {
    address: IpAddr,
    bits: u8,
}

/// Why a file of routes is none.
#[derive(Debug, thiserror::Error)]
pub enum RoutesError {
    /// It cannot be read.
    #[error("{path}: {error}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why.
        error: std::io::Error,
    },
    /// It is no file of routes.
    #[error("{path}: {error}")]
    Wrong {
        /// The file.
        path: String,
        /// What is wrong, and where.
        error: toml::de::Error,
    },
}

impl TryFrom<String> for Prefix {
    type Error = String;

    fn try_from(text: String) -> Result<Prefix, String> {
        let wrong = || format!("{text:?} is no prefix such as 10.9.0.0/24 or fd00::/8");
        let (address, bits) = text.split_once('/').ok_or_else(wrong)?;
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { 32 } else { 128 };
        let bits = bits.parse().ok().filter(|bits| *bits <= most).ok_or_else(wrong)?;
        let prefix = Prefix { address, bits };
        if prefix.bits_of(address) << bits.min(127) << u8::from(bits == 128) != 0 {
            return Err(format!("{text:?} has bits behind the first {bits}, which mean nothing"));
        }
        Ok(prefix)
    }
}

impl Prefix {
    /// The address, from the highest bit of a number of 128 bits on.
    fn bits_of(&self, address: IpAddr) -> u128 {
        match address {
            IpAddr::V4(it) => u128::from(it.to_bits()) << 96,
            IpAddr::V6(it) => it.to_bits(),
        }
    }

    fn has(&self, address: IpAddr) -> bool {
        let differs = self.bits_of(address) ^ self.bits_of(self.address);
        address.is_ipv4() == self.address.is_ipv4() && differs.leading_zeros() >= u32::from(self.bits)
    }
}

impl Routes {
    /// Reads a file.
    ///
    /// # Errors
    /// See [`RoutesError`].
    pub fn read(path: &Path) -> Result<Routes, RoutesError> {
        let named = path.display().to_string();
        let text =
            std::fs::read_to_string(path).map_err(|error| RoutesError::Unreadable { path: named.clone(), error })?;
        toml::from_str(&text).map_err(|error| RoutesError::Wrong { path: named, error })
    }

    /// Where the daemon of the host with this address listens, if a route leads there.
    pub fn daemon_of(&self, address: IpAddr) -> Option<SocketAddr> {
        let is_other = address != self.listen.ip() && self.routes.iter().any(|it| it.to.has(address));
        is_other.then(|| SocketAddr::new(address, self.listen.port()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routes(to: &[&str]) -> Result<Routes, String> {
        let routes: String = to.iter().map(|to| format!("[[route]]\nto = {to:?}\n")).collect();
        toml::from_str(&format!("listen = \"10.9.0.1:7471\"\n{routes}")).map_err(|error| error.message().into())
    }

    #[test]
    fn a_route_leads_to_the_addresses_of_its_prefix() {
        let routes = routes(&["10.9.0.0/24", "fd00::/8", "192.0.2.1/32"]).unwrap();
        let daemon_of = |address: &str| routes.daemon_of(address.parse().unwrap());
        assert_eq!(daemon_of("10.9.0.2"), Some("10.9.0.2:7471".parse().unwrap()));
        assert_eq!(daemon_of("fd12::1"), Some("[fd12::1]:7471".parse().unwrap()));
        assert!(daemon_of("192.0.2.1").is_some());
        // Itself, and others.
        for other in ["10.9.0.1", "10.9.1.2", "fe80::1", "192.0.2.2", "::10.9.0.2"] {
            assert_eq!(daemon_of(other), None, "{other}");
        }
        assert!(super::tests::routes(&["0.0.0.0/0"]).unwrap().daemon_of("8.8.8.8".parse().unwrap()).is_some());
    }

    #[test]
    fn what_is_no_prefix_is_named() {
        for (wrong, part) in [
            ("10.9.0.0", "no prefix"),
            ("10.9.0.0/33", "no prefix"),
            ("::/129", "no prefix"),
            ("10.9.0.1/24", "bits behind the first 24"),
        ] {
            assert!(routes(&[wrong]).unwrap_err().contains(part), "{wrong}");
        }
    }
}
