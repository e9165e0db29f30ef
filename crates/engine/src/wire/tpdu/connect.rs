//! CR and CC TPDUs (X.224 §13.3, §13.4).
//!
//! ```text
//! CR  2 0xE0 | CDT  3-4 0        5-6 SRC-REF  7 class and options  - up to 32 octets of user data
//! CC  2 0xD0 | CDT  3-4 DST-REF  5-6 SRC-REF  7 class and options  - up to 32 octets of user data
//! ```
//! A CR has 128 octets at most in all.
//!
//! The credit has four bits whatever the format: a larger window is opened by the first AKs.

use super::parameter::{self, Parameter};
use super::{Class, Code, Header, Malformed, reference};
use crate::wire::{NoRoom, Writer};
use std::fmt::{self, Display, Formatter};

/// Bits of octet 7.
const EXTENDED: u8 = 0x02;
const NO_FLOW_CONTROL: u8 = 0x01;

/// A CR or CC TPDU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connect<'a> {
    /// CDT: how many DT TPDUs may be sent at first, 0 to 15.
    pub credit: u8,
    /// The destination reference; 0 in CR.
    pub dst_ref: u16,
    /// The source reference.
    pub src_ref: u16,
    /// The class that is preferred, or chosen.
    pub class: Class,
    /// Whether formats are extended.
    pub extended: bool,
    /// Whether class 2 does without explicit flow control.
    pub no_flow_control: bool,
    /// Whether it carries a checksum; a CR that proposes class 4 has to.
    pub checksum: bool,
    /// What else is negotiated.
    pub parameters: Parameters<'a>,
    /// Up to 32 octets, not in class 0.
    pub user_data: &'a [u8],
}

/// Parameters of CR and CC, besides the checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parameters<'a> {
    /// Longest TPDU.
    pub tpdu_size: Option<TpduSize>,
    /// Longest TPDU in units of 128 octets, of up to four octets.
    pub preferred_size: Option<u32>,
    /// TSAP-ID of the calling side.
    pub calling: Option<&'a [u8]>,
    /// TSAP-ID of the called side.
    pub called: Option<&'a [u8]>,
    /// Version of the protocol: 1.
    pub version: Option<u8>,
    /// Protection, as the users define it.
    pub protection: Option<&'a [u8]>,
    /// Additional options; absent, [`AdditionalOptions::default`].
    pub options: Option<AdditionalOptions>,
    /// Other classes that will do, one an octet.
    pub alternatives: Option<&'a [u8]>,
    /// How long an acknowledgement may be put off, in ms.
    pub acknowledge_time: Option<u16>,
    /// Residual error rate: target and least acceptable as powers of ten, and the TSDU size that they are for.
    pub residual_errors: Option<[u8; 3]>,
    /// 0 is the highest.
    pub priority: Option<u16>,
    /// Target and most acceptable, calling to called and back, in ms.
    pub transit_delay: Option<[u16; 4]>,
    /// Numbers of 24 bits, octets a second: 12 octets, or 24 with averages.
    pub throughput: Option<&'a [u8]>,
    /// How long a network connection may be missing, in s (classes 1 and 3).
    pub reassignment_time: Option<u16>,
    /// When a silent peer is given up, in ms.
    pub inactivity_time: Option<u32>,
}

/// Longest TPDU by its logarithm, header counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TpduSize(u8);

impl TpduSize {
    /// The size that holds if none is given.
    pub const DEFAULT: TpduSize = TpduSize(7);

    /// 128 to 8,192 octets, a power of two.
    pub fn new(octets: usize) -> Option<TpduSize> {
        (octets.is_power_of_two() && (128..=8192).contains(&octets)).then(|| TpduSize(octets.trailing_zeros() as u8))
    }

    /// In octets.
    pub fn octets(self) -> usize {
        1 << self.0
    }
}

/// Additional options (parameter 0xC6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdditionalOptions(pub u8);

impl AdditionalOptions {
    /// Transport expedited data service.
    pub const EXPEDITED: u8 = 0x01;
    /// Class 4 without checksum.
    pub const NO_CHECKSUM: u8 = 0x02;
    /// Receipt confirmation (class 1).
    pub const RECEIPT_CONFIRMATION: u8 = 0x04;
    /// Network expedited (class 1).
    pub const NETWORK_EXPEDITED: u8 = 0x08;
    /// Selective acknowledgement (class 4).
    pub const SELECTIVE: u8 = 0x10;
    /// Request of acknowledgement (classes 1, 3 and 4).
    pub const ROA: u8 = 0x20;
    /// Non-blocking expedited data (class 4).
    pub const NON_BLOCKING_EXPEDITED: u8 = 0x40;
    /// Not in a standard, in a bit that X.224 reserves: AKs say how many DTs a router has marked (class 4). An entity
    /// that does not know the bit answers without it.
    pub const MARKS: u8 = 0x80;

    /// Whether all of these are among them.
    pub fn has(self, options: u8) -> bool {
        self.0 & options == options
    }
}

impl Default for AdditionalOptions {
    /// What holds where the parameter is absent (X.224 §13.3.4).
    fn default() -> AdditionalOptions {
        AdditionalOptions(AdditionalOptions::EXPEDITED)
    }
}

impl<'a> Connect<'a> {
    /// Octets of user data at most.
    pub const MOST: usize = 32;
    const FIXED: usize = 7;

    pub(super) fn parse(header: &'a [u8], user_data: &'a [u8]) -> Result<Connect<'a>, Malformed> {
        let &[_, code, _, _, _, _, class, ..] = header else { return Err(Malformed::HeaderLength) };
        let is_request = code & 0xf0 == Code::Cr as u8;
        if user_data.len() > Connect::MOST {
            return Err(Malformed::UserData(user_data.len()));
        }
        let mut it = Connect {
            credit: code & 0x0f,
            dst_ref: reference(header, 2),
            src_ref: reference(header, 4),
            class: Class::new(class >> 4).ok_or(Malformed::Value { at: 7 })?,
            extended: class & EXTENDED != 0,
            no_flow_control: class & NO_FLOW_CONTROL != 0,
            checksum: false,
            parameters: Parameters::default(),
            user_data,
        };
        parameter::for_each(header, Connect::FIXED, |parameter| match parameter.code {
            parameter::CHECKSUM => parameter.exactly::<2>().map(|_| it.checksum = true),
            _ => it.parameters.take(&parameter, is_request),
        })?;
        Ok(it)
    }

    /// Writes it.
    ///
    /// # Errors
    /// [`NoRoom`], also with more than 32 octets of user data.
    pub fn emit(&self, code: Code, to: &mut Writer<'_>) -> Result<(), NoRoom> {
        if self.user_data.len() > Connect::MOST {
            return Err(NoRoom);
        }
        let ([a, b], [c, d]) = (self.dst_ref.to_be_bytes(), self.src_ref.to_be_bytes());
        let flag = |is: bool, bit: u8| if is { bit } else { 0 };
        let options = flag(self.extended, EXTENDED) | flag(self.no_flow_control, NO_FLOW_CONTROL);
        let fixed = [code as u8 | self.credit.min(15), a, b, c, d, (self.class as u8) << 4 | options];
        let mut header = Header::begin(to, &fixed)?;
        header.checksum(self.checksum)?;
        self.parameters.emit(&mut header)?;
        header.end_with(self.user_data)
    }
}

impl<'a> Parameters<'a> {
    /// The additional options that hold.
    pub fn options(&self) -> AdditionalOptions {
        self.options.unwrap_or_default()
    }

    /// Octets of the longest TPDU, as they say it: in units of 128 octets where they do, and 128 where they do not at
    /// all (X.224 §13.3.4).
    pub fn longest_tpdu(&self) -> u32 {
        let power = || self.tpdu_size.map_or(128, |it| it.octets() as u32);
        self.preferred_size.map_or_else(power, |units| units.saturating_mul(128))
    }

    /// Takes a parameter in. In a CR, unknown parameters are passed over (X.224 §13.2.3).
    fn take(&mut self, it: &Parameter<'a>, is_request: bool) -> Result<(), Malformed> {
        match it.code {
            parameter::TPDU_SIZE => {
                let [size @ 7..=13] = it.exactly()? else { return Err(it.wrong_value()) };
                self.tpdu_size = Some(TpduSize(size));
            }
            parameter::PREFERRED_SIZE => {
                if !(1..=4).contains(&it.value.len()) {
                    return Err(it.wrong_length());
                }
                self.preferred_size = Some(it.value.iter().fold(0, |sum, &octet| sum << 8 | u32::from(octet)));
            }
            parameter::CALLING => self.calling = Some(it.value),
            parameter::CALLED => self.called = Some(it.value),
            parameter::VERSION => self.version = Some(it.exactly::<1>()?[0]),
            parameter::PROTECTION => self.protection = Some(it.value),
            parameter::OPTIONS => self.options = Some(AdditionalOptions(it.exactly::<1>()?[0])),
            parameter::ALTERNATIVES => self.alternatives = Some(it.value),
            parameter::ACKNOWLEDGE_TIME => self.acknowledge_time = Some(u16::from_be_bytes(it.exactly()?)),
            parameter::RESIDUAL_ERRORS => self.residual_errors = Some(it.exactly()?),
            parameter::PRIORITY => self.priority = Some(u16::from_be_bytes(it.exactly()?)),
            parameter::TRANSIT_DELAY => {
                let [a, b, c, d, e, f, g, h] = it.exactly()?;
                self.transit_delay = Some([[a, b], [c, d], [e, f], [g, h]].map(u16::from_be_bytes));
            }
            parameter::THROUGHPUT if matches!(it.value.len(), 12 | 24) => self.throughput = Some(it.value),
            parameter::THROUGHPUT => return Err(it.wrong_length()),
            parameter::REASSIGNMENT => self.reassignment_time = Some(u16::from_be_bytes(it.exactly()?)),
            parameter::INACTIVITY => self.inactivity_time = Some(u32::from_be_bytes(it.exactly()?)),
            _ if is_request => {}
            _ => return Err(it.misplaced()),
        }
        Ok(())
    }

    fn emit(&self, header: &mut Header<'_, '_>) -> Result<(), NoRoom> {
        let octets = |header: &mut Header<'_, '_>, code, value: Option<&[u8]>| {
            value.map_or(Ok(()), |value| header.parameter(code, value))
        };
        header.optional(parameter::TPDU_SIZE, self.tpdu_size.map(|it| [it.0]))?;
        octets(header, parameter::CALLING, self.calling)?;
        octets(header, parameter::CALLED, self.called)?;
        header.optional(parameter::VERSION, self.version.map(|it| [it]))?;
        octets(header, parameter::PROTECTION, self.protection)?;
        header.optional(parameter::OPTIONS, self.options.map(|it| [it.0]))?;
        header.optional(parameter::ACKNOWLEDGE_TIME, self.acknowledge_time.map(u16::to_be_bytes))?;
        header.optional(parameter::RESIDUAL_ERRORS, self.residual_errors)?;
        header.optional(parameter::PRIORITY, self.priority.map(u16::to_be_bytes))?;
        if let Some(it) = self.transit_delay {
            header.parameter(parameter::TRANSIT_DELAY, it.map(u16::to_be_bytes).as_flattened())?;
        }
        octets(header, parameter::THROUGHPUT, self.throughput)?;
        header.optional(parameter::REASSIGNMENT, self.reassignment_time.map(u16::to_be_bytes))?;
        match self.preferred_size {
            // An even length keeps the parity of LI, by which tshark guesses formats.
            Some(it @ 0..=0xffff) => header.parameter(parameter::PREFERRED_SIZE, &(it as u16).to_be_bytes())?,
            Some(it) => header.parameter(parameter::PREFERRED_SIZE, &it.to_be_bytes())?,
            None => {}
        }
        header.optional(parameter::INACTIVITY, self.inactivity_time.map(u32::to_be_bytes))?;
        octets(header, parameter::ALTERNATIVES, self.alternatives)
    }
}

impl Display for Connect<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:#06x} → {:#06x}, class {}", self.src_ref, self.dst_ref, self.class as u8)?;
        f.write_str(if self.extended { " extended" } else { "" })?;
        write!(f, ", credit {}", self.credit)
    }
}
