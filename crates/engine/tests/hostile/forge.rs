//! Octets that no honest end sends then: random ones, what was sent before, changed, and TPDUs with any values.

use underpass_checksum::fletcher::{Sums, check_octets};
use underpass_engine::wire::Writer;
use underpass_engine::wire::tpdu::*;

const CHECKSUM: u8 = 0xc3;

/// What the hostile octets are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Random,
    /// Octets that went over the wire, with some changed, left out or added.
    Changed,
    /// Octets that went over the wire, unchanged.
    Replayed,
    /// TPDUs with references that may be in use, and a checksum that is right: what a hostile peer sends.
    Forged,
}

pub const KINDS: [Kind; 4] = [Kind::Random, Kind::Changed, Kind::Replayed, Kind::Forged];

/// An NSDU.
pub fn nsdu(kind: Kind, random: &mut fastrand::Rng, seen: &[Vec<u8>], checksum: bool) -> Vec<u8> {
    let mut octets = match kind {
        Kind::Random => return octets(random, 200),
        Kind::Changed | Kind::Replayed if seen.is_empty() => return octets(random, 20),
        Kind::Changed | Kind::Replayed => seen[random.usize(..seen.len())].clone(),
        // Several TPDUs at times.
        Kind::Forged => (0..random.usize(1..4)).flat_map(|_| forged(random, checksum)).collect(),
    };
    if kind == Kind::Changed {
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..octets.len());
            match random.u32(..6) {
                0 => octets.truncate(at.max(1)),
                1 => octets.insert(at, random.u8(..)),
                _ => octets[at] ^= random.u8(1..),
            }
        }
    }
    octets.truncate(380);
    // A change that the checksum cannot see (RFC 905 Annex B), such as a zero at the end, is not this test's concern.
    if kind == Kind::Changed && separate(&octets).any(is_intact) {
        octets[0] ^= 1;
    }
    octets
}

fn octets(random: &mut fastrand::Rng, most: usize) -> Vec<u8> {
    (0..random.usize(..most)).map(|_| random.u8(..)).collect()
}

/// A TPDU with references that may be in use, and any values.
fn forged(random: &mut fastrand::Rng, checksum: bool) -> Vec<u8> {
    let checksum = checksum ^ (random.u32(..20) == 0);
    // References are small in the beginning.
    let (dst_ref, src_ref) = (random.u16(..5), random.u16(..5));
    let format = if random.bool() { Format::Extended } else { Format::Normal };
    let most = if random.bool() { 12 } else { 1 << 31 };
    let number = random.u32(..most) & format.mask();
    let user_data = octets(random, 34);
    let mut runs = [0; 8 * Selective::MOST];
    let selective = selective(random, number, format, &mut runs);
    let tpdu = Forgery { dst_ref, src_ref, format, number, checksum }.tpdu(random, selective);
    let mut to = [0; 300];
    let mut writer = Writer::new(&mut to);
    tpdu.emit(format, &user_data, &mut writer).unwrap();
    let mut whole = writer.written().to_vec();
    if let Tpdu::Dt(_) = tpdu {
        whole.extend(user_data);
    }
    if random.u32(..4) == 0 {
        spoil(random, &mut whole);
    }
    whole
}

/// Some runs of DTs that came out of order, behind `number`.
fn selective<'a>(random: &mut fastrand::Rng, number: u32, format: Format, to: &'a mut [u8]) -> Selective<'a> {
    let mut last = number;
    let runs = (0..random.usize(..4)).map(|_| {
        let first = last + 1;
        last += random.u32(1..3);
        (first, last)
    });
    Selective::new(runs, format, to)
}

/// What all forged TPDUs of one moment have in common.
struct Forgery {
    dst_ref: u16,
    src_ref: u16,
    format: Format,
    number: u32,
    checksum: bool,
}

impl Forgery {
    /// A TPDU of any kind.
    fn tpdu<'a>(&self, random: &mut fastrand::Rng, selective: Selective<'a>) -> Tpdu<'a> {
        let Forgery { dst_ref, src_ref, number, checksum, .. } = *self;
        match random.u32(..11) {
            0 => Tpdu::Cr(Connect { dst_ref: if random.u32(..9) > 0 { 0 } else { dst_ref }, ..self.connect() }),
            1 => Tpdu::Cc(self.connect()),
            2 => {
                let reason = Reason(random.u8(..));
                Tpdu::Dr(DisconnectRequest { dst_ref, src_ref, reason, checksum, additional: None, user_data: &[] })
            }
            3 => Tpdu::Dc(DisconnectConfirm { dst_ref, src_ref, checksum }),
            4 => {
                let expedited = random.bool().then_some(3);
                Tpdu::Dt(Data { dst_ref, number, eot: random.bool(), roa: random.bool(), checksum, expedited })
            }
            5 => Tpdu::BasicDt(BasicData { number: 3, eot: true }),
            6 => Tpdu::Ed(ExpeditedData { dst_ref, number, checksum, user_data: &[1, 2, 3] }),
            7 => Tpdu::Ea(ExpeditedAcknowledge { dst_ref, number, checksum }),
            8 => Tpdu::Rj(Reject { dst_ref, number, credit: 4 }),
            9 => Tpdu::Er(ErrorReport { dst_ref, cause: Cause::Type, checksum, rejected: None }),
            _ => Tpdu::Ak(Acknowledge {
                dst_ref,
                number,
                credit: random.u16(..20),
                checksum,
                subsequence: random.bool().then(|| random.u16(..3)),
                confirmation: random.bool().then_some(Confirmation { lower_edge: number, subsequence: 0, credit: 4 }),
                selective: Some(selective).filter(|_| random.bool()),
                marks: random.bool().then(|| random.u8(..)),
            }),
        }
    }

    /// The fields of a CR or CC.
    fn connect(&self) -> Connect<'static> {
        let no_checksum = if self.checksum { 0 } else { AdditionalOptions::NO_CHECKSUM };
        Connect {
            credit: 7,
            dst_ref: self.dst_ref,
            src_ref: self.src_ref,
            class: Class::Four,
            extended: self.format == Format::Extended,
            no_flow_control: false,
            checksum: self.checksum,
            parameters: Parameters {
                preferred_size: Some(3),
                called: Some(b"B"),
                options: Some(AdditionalOptions(0x31 | no_checksum)),
                ..Parameters::default()
            },
            user_data: &[],
        }
    }
}

/// Changes a TPDU to one with a value that is not allowed, or a parameter that no end knows, and makes its checksum
/// right.
fn spoil(random: &mut fastrand::Rng, whole: &mut [u8]) {
    let header_len = usize::from(whole[0]) + 1;
    whole[random.usize(1..header_len)] ^= random.u8(1..);
    let checksum = whole[..header_len].windows(2).position(|it| it == [CHECKSUM, 2]);
    if let Some(at) = checksum.filter(|at| at + 3 < header_len) {
        whole[at + 2..at + 4].fill(0);
        let right = check_octets(Sums::of(whole), whole.len(), at + 3);
        whole[at + 2..at + 4].copy_from_slice(&right);
    }
}
