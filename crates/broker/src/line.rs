//! A program gives the daemon a line.

use crate::error::WireError;
use crate::header::{self, Header};

/// Kind of a [`Line`].
const KIND: u16 = 4;
/// Octets of a [`Line`].
pub const LEN: usize = header::LEN;

/// An octet on a line: there is something to look at.
pub const RING: u8 = b'!';
/// An octet on a line: the daemon has too many lines of this user.
pub const REFUSED: u8 = b'-';
/// The first octet on a line, from the daemon. Its number follows in 8 octets, as in an answer to a knock. A stream
/// that another daemon has given is carried no more.
pub const HELLO: u8 = b'=';
/// Octets of a greeting.
pub const GREETING: usize = 1 + size_of::<u64>();

/// A line: one end of a pair of Unix sockets of type SOCK_STREAM, which the program has made. It comes beside this
/// record (SCM_RIGHTS), which is a header alone; there is no answer. Each octet [`RING`] on the line is a ring: the
/// program rings the daemon about a ring whose other end is on another host, and the daemon a sleeper of the program's.
/// A line that the daemon cannot have ends with [`REFUSED`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// The number by which channels name the line: random, and not 0.
    pub number: u64,
    /// Mark of its layout, as in an ask.
    pub mark: u64,
}

impl Line {
    /// The record.
    pub fn emit(&self) -> [u8; LEN] {
        Header::begin::<LEN>(LEN, KIND, self.mark, self.number).finish().0
    }

    /// What a packet says.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn parse(packet: &[u8]) -> Result<Line, WireError> {
        let (header, _) = Header::parse_as(packet, KIND, LEN)?;
        if header.token == 0 {
            return Err(WireError::Value("number"));
        }
        Ok(Line { number: header.token, mark: header.mark })
    }
}
