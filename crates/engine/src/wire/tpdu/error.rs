//! ER TPDUs (X.224 §13.12).
//!
//! ```text
//! 2 0x70  3-4 DST-REF  5 reject cause  - parameter 0xC1: the rejected TPDU, up to and with the octet that is to blame
//! ```

use super::{Code, Header, Malformed, parameter, reference};
use crate::wire::{NoRoom, Writer};
use std::fmt::{self, Display, Formatter};
use underpass_checksum::fletcher::Sums;

/// Why a TPDU was rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Not said.
    Unspecified,
    /// A parameter's code.
    ParameterCode,
    /// The kind of TPDU.
    Type,
    /// A parameter's value.
    ParameterValue,
}

/// An ER TPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorReport<'a> {
    /// The destination reference.
    pub dst_ref: u16,
    /// Why.
    pub cause: Cause,
    /// Whether it carries a checksum.
    pub checksum: bool,
    /// What was rejected, up to and with the octet that is to blame.
    pub rejected: Option<&'a [u8]>,
}

impl<'a> ErrorReport<'a> {
    /// Octets of what was rejected at most: with them and a checksum it is as long as any TPDU may be, which is 128
    /// octets.
    pub const MOST: usize = 128 - ErrorReport::FIXED - 4 - 2;
    const FIXED: usize = 5;

    pub(super) fn parse(header: &'a [u8]) -> Result<ErrorReport<'a>, Malformed> {
        // An envelope has 5 octets at least.
        let causes = [Cause::Unspecified, Cause::ParameterCode, Cause::Type, Cause::ParameterValue];
        let cause = *causes.get(usize::from(header[4])).ok_or(Malformed::Value { at: 5 })?;
        let (mut checksum, mut rejected) = (false, None);
        parameter::for_each(header, ErrorReport::FIXED, |parameter| {
            match parameter.code {
                parameter::CHECKSUM => checksum = parameter.exactly::<2>().map(|_| true)?,
                parameter::CALLING => rejected = Some(parameter.value),
                _ => return Err(parameter.misplaced()),
            }
            Ok(())
        })?;
        Ok(ErrorReport { dst_ref: reference(header, 2), cause, checksum, rejected })
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn emit(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        let [high, low] = self.dst_ref.to_be_bytes();
        let mut header = Header::begin(to, &[Code::Er as u8, high, low, self.cause as u8])?;
        header.checksum(self.checksum)?;
        if let Some(it) = self.rejected {
            header.parameter(parameter::CALLING, it)?;
        }
        header.end(Sums::default(), 0)
    }
}

impl Display for ErrorReport<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let cause = match self.cause {
            Cause::Unspecified => "no cause given",
            Cause::ParameterCode => "parameter code",
            Cause::Type => "TPDU type",
            Cause::ParameterValue => "parameter value",
        };
        write!(f, "ER → {:#06x}, {cause}", self.dst_ref)
    }
}
