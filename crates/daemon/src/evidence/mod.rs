//! What proves which socket is at the other end of a connection. Only the kernel's word counts.
//!
//! [`numbers`] knows the initial sequence numbers of both directions, which two true ends alone have mirrored, through
//! any translation of addresses. Where the kernel does not allow that, or a connection is older than the daemon,
//! [`addresses`] finds the socket with the mirrored addresses; that proves something in the daemon's own network
//! namespace alone, since other namespaces may have the same addresses.

pub mod addresses;
pub mod numbers;

use crate::facts::Facts;
use addresses::Addresses;
use numbers::Numbers;

/// The socket at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Other {
    /// The one with this cookie.
    End(u64),
    /// Several could be.
    Several,
    /// The other end is not on this host, as far as the kernel shows it.
    Nowhere,
    /// Nothing can be told of this connection.
    Unknown,
}

/// A source of evidence about the other end.
pub trait Evidence {
    /// The other end of the connection of this socket.
    fn other_end(&self, of: &Facts) -> Other;
}

/// What the kernel offers here.
#[derive(Debug)]
pub struct Kernel {
    /// Sequence numbers, where BPF is allowed.
    pub numbers: Option<Numbers>,
    /// Addresses, where the kernel answers questions about sockets.
    pub addresses: Option<Addresses>,
}

impl Evidence for Kernel {
    fn other_end(&self, of: &Facts) -> Other {
        let numbers = self.numbers.as_ref().map_or(Other::Unknown, |it| it.other_end(of));
        match numbers {
            // The other end may be older than the daemon, while this one is not.
            Other::Nowhere | Other::Unknown => {
                match self.addresses.as_ref().map_or(Other::Unknown, |it| it.other_end(of)) {
                    Other::Unknown => numbers,
                    other => other,
                }
            }
            told => told,
        }
    }
}
