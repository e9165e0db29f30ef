//! DT TPDUs (X.224 §13.7).
//!
//! ```text
//! normal    2 0xF0 | ROA  3-4 DST-REF  5 EOT, TPDU-NR of 7 bits
//! extended  2 0xF0 | ROA  3-4 DST-REF  5-8 EOT, TPDU-NR of 31 bits
//! class 0   2 0xF0        3 EOT
//! ```
//! EOT is bit 8 of octet 5 in both formats; RFC 905 §13.7.3 has it in octet 8 of the extended one, which no
//! implementation does.

use super::{Code, Format, Header, Malformed, number, number_octets, parameter, reference};
use crate::wire::{NoRoom, Writer};
use std::fmt::{self, Display, Formatter};
use underpass_checksum::fletcher::Sums;

/// The header of a DT TPDU of classes 2 to 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The destination reference.
    pub dst_ref: u16,
    /// TPDU-NR.
    pub number: u32,
    /// Whether it ends its TSDU.
    pub eot: bool,
    /// Whether an acknowledgement is asked for at once (ROA).
    pub roa: bool,
    /// Whether it carries a checksum.
    pub checksum: bool,
    /// Number of the ED TPDU that was sent before it (non-blocking expedited data).
    pub expedited: Option<u16>,
}

impl Data {
    /// Octets of the longest header, without the parameter for expedited data.
    pub const MOST: usize = 8 + 4;

    /// Octets of the header.
    #[inline]
    pub fn header_len(&self, format: Format) -> usize {
        let parameters = if self.checksum { 4 } else { 0 } + if self.expedited.is_some() { 4 } else { 0 };
        4 + format.width() + parameters
    }

    #[inline]
    pub(super) fn parse(header: &[u8], format: Format) -> Result<Data, Malformed> {
        let (number, eot) = number(header, 4, format)?;
        let mut it = Data {
            dst_ref: reference(header, 2),
            number,
            eot,
            roa: header[1] & 1 != 0,
            checksum: false,
            expedited: None,
        };
        parameter::for_each(header, 4 + format.width(), |parameter| {
            match parameter.code {
                parameter::CHECKSUM => it.checksum = parameter.exactly::<2>().map(|_| true)?,
                parameter::EXPEDITED_NUMBER => it.expedited = Some(u16::from_be_bytes(parameter.exactly()?)),
                _ => return Err(parameter.misplaced()),
            }
            Ok(())
        })?;
        Ok(it)
    }

    /// Writes the header of a TPDU whose user data, of so many octets with these sums, follows.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn emit(&self, format: Format, user_data: Sums, len: usize, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        let (number, width) = number_octets(self.number, self.eot, format);
        let [high, low] = self.dst_ref.to_be_bytes();
        let fixed = [Code::Dt as u8 | u8::from(self.roa), high, low, number[0], number[1], number[2], number[3]];
        let mut header = Header::begin(to, &fixed[..3 + width])?;
        header.checksum(self.checksum)?;
        header.optional(parameter::EXPEDITED_NUMBER, self.expedited.map(u16::to_be_bytes))?;
        header.end(user_data, len)
    }
}

impl Display for Data {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "DT → {:#06x}, number {}", self.dst_ref, self.number)?;
        f.write_str(if self.eot { ", EOT" } else { "" })?;
        f.write_str(if self.roa { ", ROA" } else { "" })
    }
}

/// The header of a DT TPDU of classes 0 and 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BasicData {
    /// TPDU-NR of 7 bits; 0 in class 0.
    pub number: u8,
    /// Whether it ends its TSDU.
    pub eot: bool,
}

impl BasicData {
    /// Octets of the header.
    pub const LEN: usize = 3;

    pub(super) fn parse(header: &[u8]) -> BasicData {
        BasicData { number: header[2] & 0x7f, eot: header[2] & 0x80 != 0 }
    }

    /// Writes the header.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn emit(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        to.put(&[2, Code::Dt as u8, self.number & 0x7f | u8::from(self.eot) << 7])
    }
}

impl Display for BasicData {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "DT, number {}{}", self.number, if self.eot { ", EOT" } else { "" })
    }
}
