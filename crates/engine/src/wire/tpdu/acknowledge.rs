//! AK and RJ TPDUs (X.224 §13.9, §13.11).
//!
//! ```text
//! normal    2 0x60 | CDT  3-4 DST-REF  5 0, YR-TU-NR of 7 bits
//! extended  2 0x60        3-4 DST-REF  5-8 0, YR-TU-NR of 31 bits  9-10 CDT
//! ```
//! RJ is the same with 0x50 and without parameters.

use super::{Code, Format, Header, Malformed, number, number_octets, parameter, reference};
use crate::wire::{NoRoom, Writer};
use std::fmt::{self, Display, Formatter};
use underpass_checksum::fletcher::Sums;

/// An AK TPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledge<'a> {
    /// The destination reference.
    pub dst_ref: u16,
    /// YR-TU-NR: the number that is expected next.
    pub number: u32,
    /// CDT: how many from that on may be sent.
    pub credit: u16,
    /// Whether it carries a checksum.
    pub checksum: bool,
    /// Which of several with the same number is the later one; absent, it is 0.
    pub subsequence: Option<u16>,
    /// What it confirms of an AK that came.
    pub confirmation: Option<Confirmation>,
    /// What came behind a gap.
    pub selective: Option<Selective<'a>>,
    /// How many DTs have come that a router had marked, since the connection began, modulo 256; absent while none has.
    /// No standard has it: an end says so only where the other has agreed ([`super::AdditionalOptions::MARKS`]).
    pub marks: Option<u8>,
}

/// Flow control confirmation: what an AK said that has come, so that its sender knows that the window is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmation {
    /// Its YR-TU-NR, the lower window edge.
    pub lower_edge: u32,
    /// Its subsequence.
    pub subsequence: u16,
    /// Its credit.
    pub credit: u16,
}

impl Confirmation {
    fn parse(value: [u8; 8]) -> Confirmation {
        let [a, b, c, d, s, t, e, f] = value;
        Confirmation {
            lower_edge: u32::from_be_bytes([a, b, c, d]),
            subsequence: u16::from_be_bytes([s, t]),
            credit: u16::from_be_bytes([e, f]),
        }
    }

    fn octets(self) -> [u8; 8] {
        let ([a, b, c, d], [s, t], [e, f]) =
            (self.lower_edge.to_be_bytes(), self.subsequence.to_be_bytes(), self.credit.to_be_bytes());
        [a, b, c, d, s, t, e, f]
    }
}

/// Selective acknowledgement: runs of DT TPDUs that have come out of sequence. The upper end of a run is taken as
/// inclusive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Selective<'a> {
    octets: &'a [u8],
    format: Format,
}

impl<'a> Selective<'a> {
    /// Runs at most: no header has room for more, whatever else is in it.
    pub const MOST: usize = 16;

    /// Writes runs, first and last number of each, into `room`, and is what was written; of more than there is room for
    /// or than [`Selective::MOST`] the first ones.
    pub fn new(runs: impl Iterator<Item = (u32, u32)>, format: Format, room: &'a mut [u8]) -> Selective<'a> {
        let mut to = Writer::new(room);
        for (first, last) in runs.take(Selective::MOST) {
            let (mut both, width) = ([0; 8], format.width());
            both[..width].copy_from_slice(&number_octets(first, false, format).0[..width]);
            both[width..2 * width].copy_from_slice(&number_octets(last, false, format).0[..width]);
            if to.put(&both[..2 * width]).is_err() {
                break;
            }
        }
        let len = to.len();
        Selective { octets: &room[..len], format }
    }

    /// The runs: first and last number of each.
    pub fn runs(&self) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        let format = self.format;
        // The length was looked at when it was parsed.
        let numbers = self.octets.chunks_exact(format.width());
        let mut numbers = numbers.map(move |it| number(it, 0, format).map_or(0, |it| it.0));
        std::iter::from_fn(move || Some((numbers.next()?, numbers.next()?)))
    }
}

impl fmt::Debug for Selective<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.runs()).finish()
    }
}

impl<'a> Acknowledge<'a> {
    #[inline]
    pub(super) fn parse(header: &'a [u8], format: Format) -> Result<Acknowledge<'a>, Malformed> {
        let (mut it, fixed) = fixed_part(header, format)?;
        parameter::for_each(header, fixed, |parameter| {
            match parameter.code {
                parameter::CHECKSUM => it.checksum = parameter.exactly::<2>().map(|_| true)?,
                parameter::SUBSEQUENCE => it.subsequence = Some(u16::from_be_bytes(parameter.exactly()?)),
                parameter::CONFIRMATION => it.confirmation = Some(Confirmation::parse(parameter.exactly()?)),
                parameter::SELECTIVE => {
                    if !parameter.value.len().is_multiple_of(2 * format.width()) {
                        return Err(parameter.wrong_length());
                    }
                    it.selective = Some(Selective { octets: parameter.value, format });
                }
                parameter::MARKS => it.marks = Some(u8::from_be_bytes(parameter.exactly()?)),
                _ => return Err(parameter.misplaced()),
            }
            Ok(())
        })?;
        Ok(it)
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn emit(&self, format: Format, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        let (fixed, len) = fixed_octets(Code::Ak, self.dst_ref, self.number, self.credit, format);
        let mut header = Header::begin(to, &fixed[..len])?;
        header.checksum(self.checksum)?;
        header.optional(parameter::SUBSEQUENCE, self.subsequence.map(u16::to_be_bytes))?;
        header.optional(parameter::CONFIRMATION, self.confirmation.map(Confirmation::octets))?;
        header.optional(parameter::MARKS, self.marks.map(u8::to_be_bytes))?;
        if let Some(it) = self.selective {
            header.parameter(parameter::SELECTIVE, it.octets)?;
        }
        header.end(Sums::default(), 0)
    }
}

impl Display for Acknowledge<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "AK → {:#06x}, expects {}, credit {}", self.dst_ref, self.number, self.credit)?;
        if let Some(it) = self.subsequence {
            write!(f, ", subsequence {it}")?;
        }
        if let Some(it) = self.confirmation {
            write!(f, ", confirms {} + {} ({})", it.lower_edge, it.credit, it.subsequence)?;
        }
        if let Some(it) = self.marks {
            write!(f, ", {it} marked")?;
        }
        for (first, last) in self.selective.iter().flat_map(Selective::runs) {
            write!(f, ", has {first}-{last}")?;
        }
        Ok(())
    }
}

/// An RJ TPDU: all from its number on are to be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// The destination reference.
    pub dst_ref: u16,
    /// YR-TU-NR: the number that is expected next.
    pub number: u32,
    /// CDT.
    pub credit: u16,
}

impl Reject {
    pub(super) fn parse(header: &[u8], format: Format) -> Result<Reject, Malformed> {
        let (it, fixed) = fixed_part(header, format)?;
        parameter::for_each(header, fixed, |parameter| Err(parameter.misplaced()))?;
        Ok(Reject { dst_ref: it.dst_ref, number: it.number, credit: it.credit })
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`NoRoom`].
    pub fn emit(&self, format: Format, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        let (fixed, len) = fixed_octets(Code::Rj, self.dst_ref, self.number, self.credit, format);
        Header::begin(to, &fixed[..len])?.end(Sums::default(), 0)
    }
}

impl Display for Reject {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "RJ → {:#06x}, expects {}, credit {}", self.dst_ref, self.number, self.credit)
    }
}

/// An AK with what is in its fixed part, and the length of that.
#[inline]
fn fixed_part(header: &[u8], format: Format) -> Result<(Acknowledge<'static>, usize), Malformed> {
    let (number, set) = number(header, 4, format)?;
    if set {
        return Err(Malformed::Value { at: 5 });
    }
    let (credit, fixed) = match (format, header.get(8..10)) {
        (Format::Normal, _) => (u16::from(header[1] & 0x0f), 5),
        (Format::Extended, Some(&[high, low])) if header[1] & 0x0f == 0 => (u16::from_be_bytes([high, low]), 10),
        (Format::Extended, Some(_)) => return Err(Malformed::Value { at: 2 }),
        (Format::Extended, None) => return Err(Malformed::HeaderLength),
    };
    let dst_ref = reference(header, 2);
    let it = Acknowledge {
        dst_ref,
        number,
        credit,
        checksum: false,
        subsequence: None,
        confirmation: None,
        selective: None,
        marks: None,
    };
    Ok((it, fixed))
}

/// The fixed part from octet 2 on, and its length. A credit beyond what the normal format can say is cut to 15.
#[inline]
fn fixed_octets(code: Code, dst_ref: u16, number: u32, credit: u16, format: Format) -> ([u8; 9], usize) {
    let ([high, low], [a, b, c, d]) = (dst_ref.to_be_bytes(), number_octets(number, false, format).0);
    match format {
        Format::Normal => ([code as u8 | credit.min(15) as u8, high, low, a, 0, 0, 0, 0, 0], 4),
        Format::Extended => {
            let [e, g] = credit.to_be_bytes();
            ([code as u8, high, low, a, b, c, d, e, g], 9)
        }
    }
}
