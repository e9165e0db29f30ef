//! ED and EA TPDUs (X.224 §13.8, §13.10).
//!
//! ```text
//! ED  2 0x10  3-4 DST-REF  5 or 5-8 EOT, which is always set, and ED-TPDU-NR  - 1 to 16 octets of user data
//! EA  2 0x20  3-4 DST-REF  5 or 5-8 0, YR-EDTU-NR
//! ```

use super::{Code, Format, Header, Malformed, number, number_octets, parameter, reference};
use crate::wire::{NoRoom, Writer};
use std::fmt::{self, Display, Formatter};
use underpass_checksum::fletcher::Sums;

/// An ED TPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpeditedData<'a> {
    /// The destination reference.
    pub dst_ref: u16,
    /// ED-TPDU-NR, of a sequence of its own.
    pub number: u32,
    /// Whether it carries a checksum.
    pub checksum: bool,
    /// 1 to 16 octets.
    pub user_data: &'a [u8],
}

impl<'a> ExpeditedData<'a> {
    /// Octets of user data at most.
    pub const MOST: usize = 16;

    pub(super) fn parse(header: &[u8], user_data: &'a [u8], format: Format) -> Result<ExpeditedData<'a>, Malformed> {
        let (number, eot) = number(header, 4, format)?;
        if !eot {
            return Err(Malformed::Value { at: 5 });
        }
        if !(1..=ExpeditedData::MOST).contains(&user_data.len()) {
            return Err(Malformed::UserData(user_data.len()));
        }
        let checksum = parameter::checksum_alone(header, 4 + format.width())?;
        Ok(ExpeditedData { dst_ref: reference(header, 2), number, checksum, user_data })
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`NoRoom`], also without user data or with more than 16 octets of it.
    pub fn emit(&self, format: Format, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        if !(1..=ExpeditedData::MOST).contains(&self.user_data.len()) {
            return Err(NoRoom);
        }
        begin(to, Code::Ed, self.dst_ref, self.number, self.checksum, format)?.end_with(self.user_data)
    }
}

impl Display for ExpeditedData<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "ED → {:#06x}, number {}, {} octets", self.dst_ref, self.number, self.user_data.len())
    }
}

/// An EA TPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpeditedAcknowledge {
    /// The destination reference.
    pub dst_ref: u16,
    /// YR-EDTU-NR: the number of the ED that came.
    pub number: u32,
    /// Whether it carries a checksum.
    pub checksum: bool,
}

impl ExpeditedAcknowledge {
    pub(super) fn parse(header: &[u8], format: Format) -> Result<ExpeditedAcknowledge, Malformed> {
        let (number, set) = number(header, 4, format)?;
        if set {
            return Err(Malformed::Value { at: 5 });
        }
        let checksum = parameter::checksum_alone(header, 4 + format.width())?;
        Ok(ExpeditedAcknowledge { dst_ref: reference(header, 2), number, checksum })
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn emit(&self, format: Format, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        begin(to, Code::Ea, self.dst_ref, self.number, self.checksum, format)?.end(Sums::default(), 0)
    }
}

impl Display for ExpeditedAcknowledge {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "EA → {:#06x}, number {}", self.dst_ref, self.number)
    }
}

fn begin<'t, 'w>(
    to: &'t mut Writer<'w>,
    code: Code,
    dst_ref: u16,
    number: u32,
    checksum: bool,
    format: Format,
) -> Result<Header<'t, 'w>, NoRoom> {
    let (number, width) = number_octets(number, code == Code::Ed, format);
    let [high, low] = dst_ref.to_be_bytes();
    let fixed = [code as u8, high, low, number[0], number[1], number[2], number[3]];
    let mut header = Header::begin(to, &fixed[..3 + width])?;
    header.checksum(checksum)?;
    Ok(header)
}
