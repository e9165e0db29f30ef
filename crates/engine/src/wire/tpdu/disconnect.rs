//! DR and DC TPDUs (X.224 §13.5, §13.6).
//!
//! ```text
//! DR  2 0x80  3-4 DST-REF  5-6 SRC-REF, 0 for none  7 reason  - up to 64 octets of user data
//! DC  2 0xC0  3-4 DST-REF  5-6 SRC-REF
//! ```

use super::{Code, Header, Malformed, parameter, reference};
use crate::wire::{NoRoom, Writer};
use std::fmt::{self, Display, Formatter};
use underpass_checksum::fletcher::Sums;

/// Why a connection is released, or refused (X.224 §13.5.3). Any number may come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reason(pub u8);

impl Reason {
    /// Not said.
    pub const UNSPECIFIED: Reason = Reason(0);
    /// Congestion at the TSAP.
    pub const CONGESTION: Reason = Reason(1);
    /// No session entity is attached to the TSAP.
    pub const NOT_ATTACHED: Reason = Reason(2);
    /// The address is not known.
    pub const ADDRESS_UNKNOWN: Reason = Reason(3);
    /// The user has asked for it.
    pub const NORMAL: Reason = Reason(128);
    /// The remote entity was congested at connect request time.
    pub const REMOTE_CONGESTION: Reason = Reason(129);
    /// The classes proposed cannot be supported.
    pub const NEGOTIATION_FAILED: Reason = Reason(130);
    /// A SRC-REF twice for the same pair of NSAPs.
    pub const DUPLICATE_REFERENCE: Reason = Reason(131);
    /// References that do not belong together.
    pub const MISMATCHED_REFERENCES: Reason = Reason(132);
    /// A protocol error.
    pub const PROTOCOL_ERROR: Reason = Reason(133);
    /// No reference is left.
    pub const REFERENCE_OVERFLOW: Reason = Reason(135);
    /// The request was refused on this network connection.
    pub const REFUSED: Reason = Reason(136);
    /// A header or parameter of invalid length.
    pub const HEADER_LENGTH: Reason = Reason(138);
}

impl Display for Reason {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Reason::UNSPECIFIED => "no reason given",
            Reason::CONGESTION => "congestion at the TSAP",
            Reason::NOT_ATTACHED => "nobody attached to the TSAP",
            Reason::ADDRESS_UNKNOWN => "address unknown",
            Reason::NORMAL => "normal release",
            Reason::REMOTE_CONGESTION => "the remote transport entity is congested",
            Reason::NEGOTIATION_FAILED => "negotiation failed",
            Reason::DUPLICATE_REFERENCE => "source reference in use",
            Reason::MISMATCHED_REFERENCES => "references do not belong together",
            Reason::PROTOCOL_ERROR => "protocol error",
            Reason::REFERENCE_OVERFLOW => "no reference left",
            Reason::REFUSED => "request refused",
            Reason::HEADER_LENGTH => "invalid length of a header or parameter",
            Reason(other) => return write!(f, "reason {other}"),
        })
    }
}

/// A DR TPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisconnectRequest<'a> {
    /// The destination reference; 0 in answer to a CR that is refused by an initiator that has heard nothing yet.
    pub dst_ref: u16,
    /// The source reference; 0 where no reference was given.
    pub src_ref: u16,
    /// Why.
    pub reason: Reason,
    /// Whether it carries a checksum.
    pub checksum: bool,
    /// Additional information of the user.
    pub additional: Option<&'a [u8]>,
    /// Up to 64 octets, which may get lost.
    pub user_data: &'a [u8],
}

impl<'a> DisconnectRequest<'a> {
    /// Octets of user data at most.
    pub const MOST: usize = 64;
    const FIXED: usize = 7;

    pub(super) fn parse(header: &'a [u8], user_data: &'a [u8]) -> Result<DisconnectRequest<'a>, Malformed> {
        if header.len() < DisconnectRequest::FIXED {
            return Err(Malformed::HeaderLength);
        }
        if user_data.len() > DisconnectRequest::MOST {
            return Err(Malformed::UserData(user_data.len()));
        }
        let (mut checksum, mut additional) = (false, None);
        parameter::for_each(header, DisconnectRequest::FIXED, |parameter| {
            match parameter.code {
                parameter::CHECKSUM => checksum = parameter.exactly::<2>().map(|_| true)?,
                parameter::ADDITIONAL => additional = Some(parameter.value),
                _ => return Err(parameter.misplaced()),
            }
            Ok(())
        })?;
        let (dst_ref, src_ref, reason) = (reference(header, 2), reference(header, 4), Reason(header[6]));
        Ok(DisconnectRequest { dst_ref, src_ref, reason, checksum, additional, user_data })
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`NoRoom`], also with more than 64 octets of user data.
    pub fn emit(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        if self.user_data.len() > DisconnectRequest::MOST {
            return Err(NoRoom);
        }
        let ([a, b], [c, d]) = (self.dst_ref.to_be_bytes(), self.src_ref.to_be_bytes());
        let mut header = Header::begin(to, &[Code::Dr as u8, a, b, c, d, self.reason.0])?;
        header.checksum(self.checksum)?;
        if let Some(it) = self.additional {
            header.parameter(parameter::ADDITIONAL, it)?;
        }
        header.end_with(self.user_data)
    }
}

impl Display for DisconnectRequest<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "DR {:#06x} → {:#06x}, {}", self.src_ref, self.dst_ref, self.reason)
    }
}

/// A DC TPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DisconnectConfirm {
    /// The destination reference.
    pub dst_ref: u16,
    /// The source reference.
    pub src_ref: u16,
    /// Whether it carries a checksum.
    pub checksum: bool,
}

impl DisconnectConfirm {
    const FIXED: usize = 6;

    pub(super) fn parse(header: &[u8]) -> Result<DisconnectConfirm, Malformed> {
        if header.len() < DisconnectConfirm::FIXED {
            return Err(Malformed::HeaderLength);
        }
        let checksum = parameter::checksum_alone(header, DisconnectConfirm::FIXED)?;
        Ok(DisconnectConfirm { dst_ref: reference(header, 2), src_ref: reference(header, 4), checksum })
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn emit(&self, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        let ([a, b], [c, d]) = (self.dst_ref.to_be_bytes(), self.src_ref.to_be_bytes());
        let mut header = Header::begin(to, &[Code::Dc as u8, a, b, c, d])?;
        header.checksum(self.checksum)?;
        header.end(Sums::default(), 0)
    }
}

impl Display for DisconnectConfirm {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "DC {:#06x} → {:#06x}", self.src_ref, self.dst_ref)
    }
}
