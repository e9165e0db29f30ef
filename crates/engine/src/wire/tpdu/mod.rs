//! Transport protocol data units of classes 0, 2 and 4 (X.224 §13, RFC 905 §13), and those that only other classes
//! send.
//!
//! ```text
//!  1  length indicator (LI): octets of the header, itself not counted; at most 254
//!  2  code, and in some a credit of four bits
//!  3- fixed part: references, numbers
//!  -  parameters: code, length, value; in any order, the last of two alike counts
//!  -  user data
//! ```
//! Which format a connection's numbers have was negotiated, so that a TPDU is looked up by its DST-REF ([`Envelope`])
//! before it is parsed.

mod acknowledge;
mod connect;
mod data;
mod disconnect;
mod error;
mod expedited;
mod parameter;

pub use acknowledge::{Acknowledge, Confirmation, Reject, Selective};
pub use connect::{AdditionalOptions, Connect, Parameters, TpduSize};
pub use data::{BasicData, Data};
pub use disconnect::{DisconnectConfirm, DisconnectRequest, Reason};
pub use error::{Cause, ErrorReport};
pub use expedited::{ExpeditedAcknowledge, ExpeditedData};

use super::{NoRoom, Writer};
use std::fmt::{self, Display, Formatter};
use underpass_checksum::fletcher::{Sums, seal};

/// Protocol class (X.224 §5.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Simple: nothing but segmenting.
    Zero,
    /// Basic error recovery.
    One,
    /// Multiplexing and flow control, over a network that loses nothing.
    Two,
    /// Error recovery and multiplexing.
    Three,
    /// Error detection and recovery, over a network that may lose.
    Four,
}

impl Class {
    /// The class of this number.
    pub fn new(number: u8) -> Option<Class> {
        [Class::Zero, Class::One, Class::Two, Class::Three, Class::Four].get(usize::from(number)).copied()
    }
}

/// How wide numbers and credit of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Numbers of 7 bits, credit of 4.
    Normal,
    /// Numbers of 31 bits, credit of 16.
    Extended,
}

impl Format {
    /// The bits of a number.
    #[inline]
    pub fn mask(self) -> u32 {
        match self {
            Format::Normal => 0x7f,
            Format::Extended => 0x7fff_ffff,
        }
    }

    /// Octets of a number.
    pub(crate) fn width(self) -> usize {
        match self {
            Format::Normal => 1,
            Format::Extended => 4,
        }
    }
}

/// What kind of TPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Code {
    /// Connection request.
    Cr = 0xe0,
    /// Connection confirm.
    Cc = 0xd0,
    /// Disconnect request.
    Dr = 0x80,
    /// Disconnect confirm.
    Dc = 0xc0,
    /// Data.
    Dt = 0xf0,
    /// Expedited data.
    Ed = 0x10,
    /// Data acknowledgement.
    Ak = 0x60,
    /// Expedited data acknowledgement.
    Ea = 0x20,
    /// Reject (classes 1 and 3).
    Rj = 0x50,
    /// TPDU error.
    Er = 0x70,
}

impl Code {
    /// The code in octet 2. The low bits of some are a credit or the request of acknowledgement, those of the others
    /// zero.
    #[inline]
    fn of(octet: u8) -> Option<Code> {
        let (code, free) = match octet & 0xf0 {
            0xe0 => (Code::Cr, 0x0f),
            0xd0 => (Code::Cc, 0x0f),
            0x60 => (Code::Ak, 0x0f),
            0x50 => (Code::Rj, 0x0f),
            0xf0 => (Code::Dt, 0x01),
            0x80 => (Code::Dr, 0),
            0xc0 => (Code::Dc, 0),
            0x10 => (Code::Ed, 0),
            0x20 => (Code::Ea, 0),
            0x70 => (Code::Er, 0),
            _ => return None,
        };
        (octet & 0x0f & !free == 0).then_some(code)
    }

    /// Whether user data may follow the header, so that no other TPDU can.
    #[inline]
    pub fn has_user_data(self) -> bool {
        matches!(self, Code::Cr | Code::Cc | Code::Dr | Code::Dt | Code::Ed)
    }
}

/// What can be told of a TPDU before its connection is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// What kind.
    pub code: Code,
    /// Octets of its header, LI counted.
    pub header_len: usize,
    /// The destination reference; `None` in the data of classes 0 and 1.
    pub dst_ref: Option<u16>,
}

impl Envelope {
    /// Looks at the TPDU at the beginning of `octets`.
    ///
    /// # Errors
    /// [`Malformed`] where the header is cut or of no known kind.
    #[inline]
    pub fn peek(octets: &[u8]) -> Result<Envelope, Malformed> {
        let &[indicator, second, ref rest @ ..] = octets else { return Err(Malformed::Short) };
        let header_len = usize::from(indicator) + 1;
        if indicator == 255 || header_len > octets.len() {
            return Err(Malformed::HeaderLength);
        }
        let code = Code::of(second).ok_or(Malformed::Code)?;
        if code == Code::Dt && header_len == BasicData::LEN {
            return Ok(Envelope { code, header_len, dst_ref: None });
        }
        match *rest {
            [high, low, ..] if header_len > 4 => {
                Ok(Envelope { code, header_len, dst_ref: Some(u16::from_be_bytes([high, low])) })
            }
            _ => Err(Malformed::HeaderLength),
        }
    }
}

/// A TPDU, or its header where user data follows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tpdu<'a> {
    /// Connection request.
    Cr(Connect<'a>),
    /// Connection confirm.
    Cc(Connect<'a>),
    /// Disconnect request.
    Dr(DisconnectRequest<'a>),
    /// Disconnect confirm.
    Dc(DisconnectConfirm),
    /// Data of classes 2 to 4.
    Dt(Data),
    /// Data of classes 0 and 1.
    BasicDt(BasicData),
    /// Expedited data.
    Ed(ExpeditedData<'a>),
    /// Expedited data acknowledgement.
    Ea(ExpeditedAcknowledge),
    /// Data acknowledgement.
    Ak(Acknowledge<'a>),
    /// Reject.
    Rj(Reject),
    /// TPDU error.
    Er(ErrorReport<'a>),
}

impl<'a> Tpdu<'a> {
    /// The TPDU at the beginning of `octets`, and the octets after it: the user data of a DT; further TPDUs after a
    /// TPDU without user data; none where user data is part of the value.
    ///
    /// A checksum is not looked at: user data may lie in several pieces. See [`is_intact`].
    ///
    /// # Errors
    /// [`Malformed`].
    #[inline]
    pub fn parse(octets: &'a [u8], format: Format) -> Result<(Tpdu<'a>, &'a [u8]), Malformed> {
        let envelope = Envelope::peek(octets)?;
        let (header, rest) = octets.split_at(envelope.header_len);
        Ok(match envelope.code {
            Code::Dt if envelope.dst_ref.is_none() => (Tpdu::BasicDt(BasicData::parse(header)), rest),
            Code::Dt => (Tpdu::Dt(Data::parse(header, format)?), rest),
            Code::Ak => (Tpdu::Ak(Acknowledge::parse(header, format)?), rest),
            Code::Cr => (Tpdu::Cr(Connect::parse(header, rest)?), &[]),
            Code::Cc => (Tpdu::Cc(Connect::parse(header, rest)?), &[]),
            Code::Dr => (Tpdu::Dr(DisconnectRequest::parse(header, rest)?), &[]),
            Code::Dc => (Tpdu::Dc(DisconnectConfirm::parse(header)?), rest),
            Code::Ed => (Tpdu::Ed(ExpeditedData::parse(header, rest, format)?), &[]),
            Code::Ea => (Tpdu::Ea(ExpeditedAcknowledge::parse(header, format)?), rest),
            Code::Rj => (Tpdu::Rj(Reject::parse(header, format)?), rest),
            Code::Er => (Tpdu::Er(ErrorReport::parse(header)?), rest),
        })
    }

    /// Writes the TPDU. Of a DT it writes only the header, and `user_data` is what follows it.
    ///
    /// # Errors
    /// [`NoRoom`], also where the header gets longer than 254 octets.
    pub fn emit(&self, format: Format, user_data: &[u8], to: &mut Writer<'_>) -> Result<(), NoRoom> {
        match self {
            Tpdu::Cr(it) => it.emit(Code::Cr, to),
            Tpdu::Cc(it) => it.emit(Code::Cc, to),
            Tpdu::Dr(it) => it.emit(to),
            Tpdu::Dc(it) => it.emit(to),
            Tpdu::Dt(it) => it.emit(format, Sums::of(user_data), user_data.len(), to),
            Tpdu::BasicDt(it) => it.emit(to),
            Tpdu::Ed(it) => it.emit(format, to),
            Tpdu::Ea(it) => it.emit(format, to),
            Tpdu::Ak(it) => it.emit(format, to),
            Tpdu::Rj(it) => it.emit(format, to),
            Tpdu::Er(it) => it.emit(to),
        }
    }

    /// Whether it carries a checksum.
    #[inline]
    pub fn has_checksum(&self) -> bool {
        match self {
            Tpdu::Cr(it) | Tpdu::Cc(it) => it.checksum,
            Tpdu::Dr(it) => it.checksum,
            Tpdu::Dc(it) => it.checksum,
            Tpdu::Dt(it) => it.checksum,
            Tpdu::Ed(it) => it.checksum,
            Tpdu::Ea(it) => it.checksum,
            Tpdu::Ak(it) => it.checksum,
            Tpdu::Er(it) => it.checksum,
            Tpdu::BasicDt(_) | Tpdu::Rj(_) => false,
        }
    }
}

impl Display for Tpdu<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Tpdu::Cr(it) => write!(f, "CR {it}"),
            Tpdu::Cc(it) => write!(f, "CC {it}"),
            Tpdu::Dr(it) => it.fmt(f),
            Tpdu::Dc(it) => it.fmt(f),
            Tpdu::Dt(it) => it.fmt(f),
            Tpdu::BasicDt(it) => it.fmt(f),
            Tpdu::Ed(it) => it.fmt(f),
            Tpdu::Ea(it) => it.fmt(f),
            Tpdu::Ak(it) => it.fmt(f),
            Tpdu::Rj(it) => it.fmt(f),
            Tpdu::Er(it) => it.fmt(f),
        }
    }
}

/// Whether a TPDU that carries a checksum, from LI to its last octet of user data, is as it was sent (X.224 §6.17).
#[inline]
pub fn is_intact(octets: &[u8]) -> bool {
    Sums::of(octets).is_zero()
}

/// The TPDUs of one NSDU, each with its user data (X.224 §6.4, concatenation). What is malformed comes as the last one.
pub fn separate(nsdu: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = nsdu;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let len = match Envelope::peek(rest) {
            Ok(it) if !it.code.has_user_data() => it.header_len,
            _ => rest.len(),
        };
        let (first, others) = rest.split_at(len);
        rest = others;
        Some(first)
    })
}

/// Why octets are no TPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// There are fewer than two of them.
    #[error("the TPDU ends within its first octets")]
    Short,
    /// LI is 255, or more than there is, or less than the kind of TPDU needs.
    #[error("the header's length does not fit")]
    HeaderLength,
    /// This kind of TPDU is not known.
    #[error("the code of the TPDU is not known")]
    Code,
    /// A parameter that this kind of TPDU does not have.
    #[error("parameter {code:#04x} at octet {at} does not belong there")]
    Parameter {
        /// Its code.
        code: u8,
        /// Number of the octet that it begins with.
        at: u8,
    },
    /// A parameter whose length is not that of its kind, or reaches beyond the header.
    #[error("parameter {code:#04x} at octet {at} has a wrong length")]
    ParameterLength {
        /// Its code.
        code: u8,
        /// Number of the octet that it begins with.
        at: u8,
    },
    /// A field or a parameter with a value that is not allowed.
    #[error("octet {at} has a value that is not allowed")]
    Value {
        /// Number of the octet.
        at: u8,
    },
    /// User data that is missing, or more than this kind of TPDU takes.
    #[error("the TPDU has {0} octets of user data")]
    UserData(usize),
}

impl Malformed {
    /// What an ER TPDU says of it (X.224 §13.12.3).
    pub fn cause(self) -> Cause {
        match self {
            Malformed::Code => Cause::Type,
            Malformed::Parameter { .. } => Cause::ParameterCode,
            Malformed::ParameterLength { .. } | Malformed::Value { .. } => Cause::ParameterValue,
            Malformed::Short | Malformed::HeaderLength | Malformed::UserData(_) => Cause::Unspecified,
        }
    }

    /// Octets of the TPDU up to and with the octet that is to blame.
    pub fn through(self) -> usize {
        match self {
            Malformed::Short => 0,
            Malformed::HeaderLength => 1,
            Malformed::Code => 2,
            Malformed::UserData(_) => usize::from(u8::MAX),
            Malformed::Parameter { at, .. } | Malformed::Value { at } => usize::from(at),
            Malformed::ParameterLength { at, .. } => usize::from(at) + 1,
        }
    }
}

/// A header that is being written: LI and the checksum are filled in at its end.
struct Header<'t, 'w> {
    to: &'t mut Writer<'w>,
    begin: usize,
    /// Number of the first octet of the checksum, if there is one.
    checksum: Option<usize>,
}

impl<'t, 'w> Header<'t, 'w> {
    /// Begins a header with its fixed part from octet 2 on.
    #[inline]
    fn begin(to: &'t mut Writer<'w>, fixed: &[u8]) -> Result<Header<'t, 'w>, NoRoom> {
        let begin = to.len();
        to.octet(0)?;
        to.put(fixed)?;
        Ok(Header { to, begin, checksum: None })
    }

    /// The checksum is the first parameter, so that its place is always the same.
    #[inline]
    fn checksum(&mut self, carried: bool) -> Result<(), NoRoom> {
        if carried {
            self.to.put(&[parameter::CHECKSUM, 2, 0, 0])?;
            self.checksum = Some(self.to.len() - self.begin - 1);
        }
        Ok(())
    }

    #[inline]
    fn parameter(&mut self, code: u8, value: &[u8]) -> Result<(), NoRoom> {
        let len = u8::try_from(value.len()).map_err(|_| NoRoom)?;
        self.to.put(&[code, len])?;
        self.to.put(value)
    }

    #[inline]
    fn optional<const N: usize>(&mut self, code: u8, value: Option<[u8; N]>) -> Result<(), NoRoom> {
        value.map_or(Ok(()), |value| self.parameter(code, &value))
    }

    /// Ends the header of a TPDU whose user data, of so many octets with these sums, follows.
    #[inline]
    fn end(self, user_data: Sums, len: usize) -> Result<(), NoRoom> {
        let header = &mut self.to.written()[self.begin..];
        let header_len = header.len();
        if header_len > 255 {
            return Err(NoRoom);
        }
        header[0] = header_len as u8 - 1;
        if let Some(at) = self.checksum {
            seal(header, at, user_data, len);
        }
        Ok(())
    }

    /// Ends the header, and writes the user data behind it.
    fn end_with(self, user_data: &[u8]) -> Result<(), NoRoom> {
        let Header { to, begin, checksum } = self;
        Header { to: &mut *to, begin, checksum }.end(Sums::of(user_data), user_data.len())?;
        to.put(user_data)
    }
}

/// Number and first bit of the field at `from` of a header: EOT in DT, which other kinds have too and always set or
/// always clear.
#[inline]
fn number(header: &[u8], from: usize, format: Format) -> Result<(u32, bool), Malformed> {
    let word = match (format, header.get(from..)) {
        (Format::Normal, Some([octet, ..])) => u32::from(octet & 0x7f) | u32::from(octet & 0x80) << 24,
        (Format::Extended, Some([a, b, c, d, ..])) => u32::from_be_bytes([*a, *b, *c, *d]),
        _ => return Err(Malformed::HeaderLength),
    };
    Ok((word & 0x7fff_ffff, word >> 31 != 0))
}

/// As [`number`], for writing; as many octets as are said.
#[inline]
fn number_octets(number: u32, first: bool, format: Format) -> ([u8; 4], usize) {
    let number = number & format.mask();
    match format {
        Format::Normal => ([number as u8 | u8::from(first) << 7, 0, 0, 0], 1),
        Format::Extended => ((number | u32::from(first) << 31).to_be_bytes(), 4),
    }
}

/// The reference at octets `at` and `at + 1`, counted from 0, of a header that is long enough.
#[inline]
fn reference(header: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([header[at], header[at + 1]])
}

#[cfg(test)]
mod tests;
