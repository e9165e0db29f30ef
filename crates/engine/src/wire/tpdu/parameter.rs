//! Parameters: code, length, value.

use super::Malformed;

pub(super) const TPDU_SIZE: u8 = 0xc0;
/// In ER the rejected TPDU.
pub(super) const CALLING: u8 = 0xc1;
pub(super) const CALLED: u8 = 0xc2;
pub(super) const CHECKSUM: u8 = 0xc3;
pub(super) const VERSION: u8 = 0xc4;
pub(super) const PROTECTION: u8 = 0xc5;
pub(super) const OPTIONS: u8 = 0xc6;
pub(super) const ALTERNATIVES: u8 = 0xc7;
pub(super) const ACKNOWLEDGE_TIME: u8 = 0x85;
pub(super) const RESIDUAL_ERRORS: u8 = 0x86;
pub(super) const PRIORITY: u8 = 0x87;
pub(super) const TRANSIT_DELAY: u8 = 0x88;
pub(super) const THROUGHPUT: u8 = 0x89;
pub(super) const SUBSEQUENCE: u8 = 0x8a;
pub(super) const REASSIGNMENT: u8 = 0x8b;
/// Not 0x8B, as RFC 905 §13.9.4 has it: that is the reassignment time.
pub(super) const CONFIRMATION: u8 = 0x8c;
pub(super) const SELECTIVE: u8 = 0x8f;
/// Not in any standard: how many DTs were marked. It is sent if both ends have agreed on it.
pub(super) const MARKS: u8 = 0x9f;
pub(super) const EXPEDITED_NUMBER: u8 = 0x90;
pub(super) const ADDITIONAL: u8 = 0xe0;
pub(super) const PREFERRED_SIZE: u8 = 0xf0;
pub(super) const INACTIVITY: u8 = 0xf2;

/// One of them.
#[derive(Clone, Copy)]
pub(super) struct Parameter<'a> {
    pub code: u8,
    pub value: &'a [u8],
    /// Number of its first octet in the TPDU.
    at: u8,
}

impl<'a> Parameter<'a> {
    /// The value, if it is as long as it must be.
    #[inline]
    pub fn exactly<const N: usize>(&self) -> Result<[u8; N], Malformed> {
        self.value.try_into().map_err(|_| self.wrong_length())
    }

    pub fn wrong_length(&self) -> Malformed {
        Malformed::ParameterLength { code: self.code, at: self.at }
    }

    /// Its value is not allowed.
    pub fn wrong_value(&self) -> Malformed {
        Malformed::Value { at: self.at.saturating_add(2) }
    }

    /// It does not belong where it is.
    pub fn misplaced(&self) -> Malformed {
        Malformed::Parameter { code: self.code, at: self.at }
    }
}

/// Calls `what` for each parameter of a header whose fixed part, LI counted, is `fixed` octets long.
#[inline]
pub(super) fn for_each<'a>(
    header: &'a [u8],
    fixed: usize,
    mut what: impl FnMut(Parameter<'a>) -> Result<(), Malformed>,
) -> Result<(), Malformed> {
    let mut rest = header.get(fixed..).ok_or(Malformed::HeaderLength)?;
    while let [code, behind @ ..] = rest {
        // A header is at most 255 octets long.
        let at = (header.len() - rest.len() + 1) as u8;
        let wrong = Malformed::ParameterLength { code: *code, at };
        let (&len, behind) = behind.split_first().ok_or(wrong)?;
        let (value, behind) = behind.split_at_checked(usize::from(len)).ok_or(wrong)?;
        what(Parameter { code: *code, value, at })?;
        rest = behind;
    }
    Ok(())
}

/// Whether a TPDU that may have no other parameter carries a checksum.
#[inline]
pub(super) fn checksum_alone(header: &[u8], fixed: usize) -> Result<bool, Malformed> {
    let mut checksum = false;
    for_each(header, fixed, |it| match it.code {
        CHECKSUM => it.exactly::<2>().map(|_| checksum = true),
        _ => Err(it.misplaced()),
    })?;
    Ok(checksum)
}
