//! The initial sequence numbers of connections, which a BPF program (`sock_ops`) notes when they are established.
//!
//! Two sockets are the ends of one connection if the numbers of one are those of the other mirrored, and no third
//! socket has either. These are 64 bits that both hosts choose at random (RFC 6528), and no translation of addresses
//! changes them. A proxy has two connections with numbers of their own. A middlebox that changes numbers, and data in
//! the SYN (TCP Fast Open), leave ends that are not mirrored, and so not proven. A container may forge a third socket
//! with the numbers of another one (TCP_REPAIR, in a user namespace of its own); then none of the three is proven.

mod bpf;
mod program;

use super::{Evidence, Other};
use crate::facts::Facts;
use bpf::{Attached, Map};
use rustix::fd::AsFd;
use std::fs::File;
use std::io;
use std::path::Path;

/// Connections of which the numbers are known; the least recently used are forgotten, and are then not proven.
const MOST: u32 = 1 << 16;
/// Stands in place of a cookie if several sockets have the same numbers.
const SEVERAL: u64 = 0;

/// `snd_nxt` and `rcv_nxt` of a socket when it was established.
type Pair = [u32; 2];

/// Notes the numbers of all connections that are established from now on in a cgroup and those below it.
#[derive(Debug)]
pub struct Numbers {
    /// By cookie.
    numbers: Map<u64, Pair>,
    /// The cookie of the socket that has these numbers, or [`SEVERAL`].
    holders: Map<Pair, u64>,
    _attached: Attached,
}

impl Numbers {
    /// Attaches the program to the cgroup at this path, of a cgroup2 file system.
    ///
    /// # Errors
    /// EPERM without CAP_BPF and CAP_NET_ADMIN; otherwise what the kernel says.
    pub fn attach(cgroup: &Path) -> io::Result<Numbers> {
        let numbers = Map::new(MOST)?;
        let holders = Map::new(MOST)?;
        let program = bpf::Program::load(&program::program(numbers.descriptor(), holders.descriptor()))?;
        let attached = program.attach(File::open(cgroup)?.as_fd())?;
        Ok(Numbers { numbers, holders, _attached: attached })
    }
}

impl Evidence for Numbers {
    fn other_end(&self, of: &Facts) -> Other {
        let Ok(Some(own @ [sent, received])) = self.numbers.get(&of.cookie) else { return Other::Unknown };
        match (self.holders.get(&own), self.holders.get(&[received, sent])) {
            (Ok(Some(me)), Ok(Some(other))) if me == of.cookie && other != SEVERAL => Other::End(other),
            (Ok(Some(me)), Ok(None)) if me == of.cookie => Other::Nowhere,
            // Forgotten, as so many connections have come since.
            (Ok(None), Ok(_)) => Other::Unknown,
            (Ok(_), Ok(_)) => Other::Several,
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "the kernel does not tell sequence numbers");
                Other::Unknown
            }
        }
    }
}

/// Where the cgroup2 file system is mounted, as /proc/self/mounts says.
///
/// # Errors
/// The file cannot be read.
pub fn cgroup2() -> io::Result<Option<std::path::PathBuf>> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let found = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| place.into())
    });
    Ok(found)
}
