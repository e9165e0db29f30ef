//! A program wakes the daemon.

use crate::error::WireError;
use crate::header::{self, Header};

/// Kind of a [`Bell`].
const KIND: u16 = 4;
/// Octets of a [`Bell`].
pub const LEN: usize = header::LEN;

/// A program has put something into a ring whose other end is on another host, and the daemon sleeps. A header alone,
/// with nothing beside it; there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bell {
    /// Any number.
    pub token: u64,
    /// Mark of its layout, as in an ask.
    pub mark: u64,
}

impl Bell {
    /// The record.
    pub fn emit(&self) -> [u8; LEN] {
        Header::begin::<LEN>(LEN, KIND, self.mark, self.token).finish().0
    }

    /// What a packet says.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn parse(packet: &[u8]) -> Result<Bell, WireError> {
        let (header, _) = Header::parse_as(packet, KIND, LEN)?;
        Ok(Bell { token: header.token, mark: header.mark })
    }
}
