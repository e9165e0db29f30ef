//! Whether the daemon is at work.

use crate::error::WireError;
use crate::header::{self, Header};

/// Kind of a [`Knock`].
const KIND: u16 = 2;
/// Octets of a [`Knock`].
pub const LEN: usize = header::LEN;

/// Is the daemon at work? It answers [`Here`](crate::Verdict::Here). A socket in a packet that the daemon has not taken
/// stays open though its program is killed, so the library hands one over only to a daemon that has just answered. A
/// header alone, with nothing beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knock {
    /// Number by which the asking process knows the answer.
    pub token: u64,
    /// Mark of its layout, as in an ask.
    pub mark: u64,
}

impl Knock {
    /// The record.
    pub fn emit(&self) -> [u8; LEN] {
        Header::begin::<LEN>(LEN, KIND, self.mark, self.token).finish().0
    }

    /// What a packet says.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn parse(packet: &[u8]) -> Result<Knock, WireError> {
        let (header, _) = Header::parse_as(packet, KIND, LEN)?;
        Ok(Knock { token: header.token, mark: header.mark })
    }
}
