//! The header with which each record begins.
//!
//! | Octets | Field |
//! |---|---|
//! | 0..4 | length of the record with this header, in octets |
//! | 4..6 | version of the wire |
//! | 6..8 | kind of the record |
//! | 8..16 | mark of the layout of the memory that the two ends share |
//! | 16..24 | token: the asking side's own number of the ask, repeated in the answer |
//!
//! Octets 0..24 mean the same in every version, so that a version which is not spoken can be answered.

use crate::error::WireError;
use crate::fields::{Reader, Writer};

/// Version of the wire that this crate speaks.
pub const VERSION: u16 = 3;
/// Octets of a header.
pub const LEN: usize = 24;

/// The fields of a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Length of the record in octets.
    pub len: u32,
    /// Version of the wire.
    pub version: u16,
    /// Kind of the record.
    pub kind: u16,
    /// Mark of the layout of shared memory.
    pub mark: u64,
    /// Number of the ask.
    pub token: u64,
}

impl Header {
    /// The header at the beginning of `packet`, whatever its version.
    ///
    /// # Errors
    /// [`WireError::Short`].
    pub fn read(packet: &[u8]) -> Result<Header, WireError> {
        if packet.len() < LEN {
            return Err(WireError::Short);
        }
        let mut from = Reader(packet);
        let (len, version, kind) = (from.u32()?, from.u16()?, from.u16()?);
        Ok(Header { len, version, kind, mark: from.u64()?, token: from.u64()? })
    }

    /// The header of a whole record of this version, and the record's body.
    pub(crate) fn parse(packet: &[u8]) -> Result<(Header, Reader<'_>), WireError> {
        let header = Header::read(packet)?;
        if header.version != VERSION {
            return Err(WireError::Version(header.version));
        }
        if header.len as usize != packet.len() {
            return Err(WireError::Length);
        }
        Ok((header, Reader(&packet[LEN..])))
    }

    /// The header and the body of a record that has to be of this kind, and as long as a record of that kind is.
    pub(crate) fn parse_as(packet: &[u8], kind: u16, len: usize) -> Result<(Header, Reader<'_>), WireError> {
        let (header, from) = Header::parse(packet)?;
        if header.kind != kind {
            return Err(WireError::Kind(header.kind));
        }
        if packet.len() != len {
            return Err(WireError::Length);
        }
        Ok((header, from))
    }

    /// Begins a record of this kind.
    pub(crate) fn begin<const N: usize>(len: usize, kind: u16, mark: u64, token: u64) -> Writer<N> {
        let mut to = Writer::new();
        to.u32(len as u32);
        to.u16(VERSION);
        to.u16(kind);
        to.u64(mark);
        to.u64(token);
        to
    }
}
