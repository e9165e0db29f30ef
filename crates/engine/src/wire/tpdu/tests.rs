//! Published octets, and any others.

use super::*;
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::strategy::Union;

fn octets(hexadecimal: &str) -> Vec<u8> {
    let digits: Vec<u8> = hexadecimal.bytes().map(|it| (it as char).to_digit(16).unwrap() as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

fn emitted(tpdu: &Tpdu<'_>, format: Format, user_data: &[u8]) -> Vec<u8> {
    let mut room = [0; 300];
    let mut to = Writer::new(&mut room);
    tpdu.emit(format, user_data, &mut to).unwrap();
    [to.written(), user_data].concat()
}

/// What is emitted is what was published, is intact, and is parsed to what it was made of.
fn is_published(hexadecimal: &str, tpdu: Tpdu<'_>, format: Format, user_data: &[u8]) {
    let published = octets(hexadecimal);
    assert_eq!(Tpdu::parse(&published, format), Ok((tpdu, user_data)), "{tpdu}");
    assert_eq!(emitted(&tpdu, format, user_data), published, "{tpdu}");
    assert!(is_intact(&published), "{tpdu}");
}

/// Checksums of these were verified with 4.4BSD's iso_check_csum.
#[test]
fn published_connects() {
    let parameters = Parameters {
        tpdu_size: TpduSize::new(2048),
        calling: Some(b"AA"),
        called: Some(b"BB"),
        version: Some(1),
        options: Some(AdditionalOptions(1)),
        acknowledge_time: Some(10),
        preferred_size: Some(11),
        inactivity_time: Some(30_000),
        alternatives: Some(&[0x20]),
        ..Parameters::default()
    };
    let cr = Connect {
        credit: 8,
        dst_ref: 0,
        src_ref: 0x1234,
        class: Class::Four,
        extended: true,
        no_flow_control: false,
        checksum: true,
        parameters,
        user_data: b"hi",
    };
    let hexadecimal = "2ce80000123442c302c108c0010bc1024141c2024242c40101c601018502000af002000bf20400007530c701206869";
    is_published(hexadecimal, Tpdu::Cr(cr), Format::Normal, b"");
    assert_eq!(Tpdu::Cr(cr).to_string(), "CR 0x1234 → 0x0000, class 4 extended, credit 8");
    let parameters =
        Parameters { tpdu_size: TpduSize::new(2048), options: Some(AdditionalOptions(1)), ..Parameters::default() };
    let cc = Connect { credit: 8, dst_ref: 0x1234, src_ref: 0x5678, parameters, user_data: b"", ..cr };
    is_published("10d81234567842c3021351c0010bc60101", Tpdu::Cc(cc), Format::Normal, b"");
}

#[test]
fn published_data() {
    let data = Data { dst_ref: 0x5678, number: 5, eot: true, roa: false, checksum: true, expedited: None };
    let extended = Data { number: 70_000, ..data };
    let text = b"HELLO-TP4";
    is_published("08f0567885c3028ee248454c4c4f2d545034", Tpdu::Dt(data), Format::Normal, text);
    is_published("0bf0567880011170c3028b6548454c4c4f2d545034", Tpdu::Dt(extended), Format::Extended, text);
    let roa = Data { number: 70_003, roa: true, ..data };
    is_published("0bf1567880011173c302757748454c4c4f2d545034", Tpdu::Dt(roa), Format::Extended, text);
    assert_eq!(Tpdu::Dt(roa).to_string(), "DT → 0x5678, number 70003, EOT, ROA");
    for changed in ["08f0567886c3028ae448454c4c4f2d545034", "0bf0567880011171c302876948454c4c4f2d545034"] {
        assert!(!is_intact(&octets(changed)), "{changed}");
    }
}

#[test]
fn published_acknowledgements() {
    let normal = Acknowledge {
        dst_ref: 0x1234,
        number: 6,
        credit: 8,
        checksum: true,
        subsequence: None,
        confirmation: None,
        selective: None,
        marks: None,
    };
    is_published("0868123406c3020c71", Tpdu::Ak(normal), Format::Normal, b"");
    let extended = Acknowledge { number: 70_001, credit: 512, ..normal };
    is_published("0d601234000111710200c3027f81", Tpdu::Ak(extended), Format::Extended, b"");
    let confirming = Acknowledge {
        subsequence: Some(3),
        confirmation: Some(Confirmation { lower_edge: 70_000, subsequence: 2, credit: 256 }),
        ..extended
    };
    let hexadecimal = "1b601234000111710200c3027dcb8a0200038c080001117000020100";
    is_published(hexadecimal, Tpdu::Ak(confirming), Format::Extended, b"");
    let mut room = [0; 8];
    let selective = Some(Selective::new([(70_003, 70_005)].into_iter(), Format::Extended, &mut room));
    let selecting = Tpdu::Ak(Acknowledge { selective, ..extended });
    is_published("17601234000111710200c302e26f8f080001117300011175", selecting, Format::Extended, b"");
    // An extension of ours, and no standard's.
    let marked = Tpdu::Ak(Acknowledge { marks: Some(3), ..extended });
    is_published("10601234000111710200c30203579f0103", marked, Format::Extended, b"");
    assert_eq!(selecting.to_string(), "AK → 0x1234, expects 70001, credit 512, has 70003-70005");
}

#[test]
fn published_expedited_data() {
    let ed = ExpeditedData { dst_ref: 0x5678, number: 0, checksum: true, user_data: b"exp" };
    is_published("0810567880c302453f657870", Tpdu::Ed(ed), Format::Normal, b"");
    is_published("0b10567880000000c302ed93657870", Tpdu::Ed(ed), Format::Extended, b"");
    let ea = ExpeditedAcknowledge { dst_ref: 0x1234, number: 0, checksum: true };
    is_published("0820123400c3021ead", Tpdu::Ea(ea), Format::Normal, b"");
    is_published("0b20123400000000c302b117", Tpdu::Ea(ea), Format::Extended, b"");
}

#[test]
fn published_ends() {
    let dr = DisconnectRequest {
        dst_ref: 0x5678,
        src_ref: 0x1234,
        reason: Reason::NORMAL,
        checksum: true,
        additional: None,
        user_data: b"bye",
    };
    is_published("0a805678123480c302dbfc627965", Tpdu::Dr(dr), Format::Normal, b"");
    let dc = DisconnectConfirm { dst_ref: 0x1234, src_ref: 0x5678, checksum: true };
    is_published("09c012345678c302104b", Tpdu::Dc(dc), Format::Normal, b"");
    let er = ErrorReport {
        dst_ref: 0x1234,
        cause: Cause::ParameterValue,
        checksum: true,
        rejected: Some(&[0x08, 0xf0, 0x12]),
    };
    is_published("0d70123403c302b5edc10308f012", Tpdu::Er(er), Format::Normal, b"");
}

/// X.224 §6.4.
#[test]
fn concatenated_ones_are_separated() {
    let both = octets("0868222206c302067908f0567888c30282eb48454c4c4f2d545034");
    let parts: Vec<_> = separate(&both).collect();
    assert_eq!(parts, [&both[..9], &both[9..]]);
    assert!(parts.iter().all(|part| is_intact(part)));
    // What cannot be told apart is one, and malformed.
    let cut = [&both[..9], &[0xff, 0x60]].concat();
    let parts: Vec<_> = separate(&cut).collect();
    assert_eq!(parts, [&cut[..9], &cut[9..]]);
    assert_eq!(Envelope::peek(parts[1]), Err(Malformed::HeaderLength));
}

/// X.224 §13.2.3: an unknown parameter is passed over in CR and an error elsewhere; of two alike the last one counts.
#[test]
fn unknown_parameters_and_repeated_parameters() {
    let parse = |hexadecimal: &str| Tpdu::parse(&octets(hexadecimal), Format::Normal).map(|it| it.0.to_string());
    assert!(parse("0ae0000012344077020102").is_ok());
    assert_eq!(parse("0ad0123412344077020102"), Err(Malformed::Parameter { code: 0x77, at: 8 }));
    assert_eq!(parse("0ad01234123440c6020102"), Err(Malformed::ParameterLength { code: 0xc6, at: 8 }));
    assert_eq!(parse("09d01234123440c00106"), Err(Malformed::Value { at: 10 }));
    let twice = octets("0cd01234123440c00107c00109");
    let Ok((Tpdu::Cc(cc), _)) = Tpdu::parse(&twice, Format::Normal) else { panic!("no CC") };
    assert_eq!(cc.parameters.tpdu_size, TpduSize::new(512));
}

#[test]
fn what_is_malformed_is_told() {
    let parse = |hexadecimal: &str, format| Tpdu::parse(&octets(hexadecimal), format).unwrap_err();
    for (hexadecimal, why, through) in [
        ("04", Malformed::Short, 0),
        ("ff", Malformed::Short, 0),
        ("ff70123401", Malformed::HeaderLength, 1),
        ("0570123401", Malformed::HeaderLength, 1),
        ("0370123401", Malformed::HeaderLength, 1),
        ("0490123401", Malformed::Code, 2),
        ("0471123401", Malformed::Code, 2),
        ("0470123404", Malformed::Value { at: 5 }, 5),
        ("0620123480c302", Malformed::Value { at: 5 }, 5),
        ("0810123400c3020000", Malformed::Value { at: 5 }, 5),
        ("0410123480", Malformed::UserData(0), 255),
        ("07f0123480c30300", Malformed::ParameterLength { code: 0xc3, at: 6 }, 7),
        ("05f0123480c3", Malformed::ParameterLength { code: 0xc3, at: 6 }, 7),
        ("06f0123480770000", Malformed::Parameter { code: 0x77, at: 6 }, 6),
        ("06601234018f0100", Malformed::ParameterLength { code: 0x8f, at: 6 }, 7),
    ] {
        assert_eq!(parse(hexadecimal, Format::Normal), why, "{hexadecimal}");
        assert_eq!(why.through(), through);
    }
    assert_eq!(parse("0460123401", Format::Extended), Malformed::HeaderLength);
    assert_eq!(parse("0961123400000001000f", Format::Extended), Malformed::Value { at: 2 });
    assert_eq!(Malformed::Code.cause(), Cause::Type);
}

fn format() -> impl Strategy<Value = Format> {
    prop_oneof![Just(Format::Normal), Just(Format::Extended)]
}

/// Whatever is in it, in owned memory.
#[derive(Clone, Debug)]
struct Parts {
    references: [u16; 2],
    number: u32,
    wide: u32,
    small: [u8; 4],
    flags: [bool; 6],
    texts: [Option<Vec<u8>>; 4],
    numbers: [Option<u16>; 4],
    runs: Vec<(u32, u32)>,
}

fn parts() -> impl Strategy<Value = Parts> {
    let text = || option::of(vec(any::<u8>(), 0..=16));
    (
        any::<[u16; 2]>(),
        any::<u32>(),
        any::<u32>(),
        any::<[u8; 4]>(),
        any::<[bool; 6]>(),
        [text(), text(), text(), text()],
        any::<[Option<u16>; 4]>(),
        vec((any::<u32>(), any::<u32>()), 0..=12),
    )
        .prop_map(|(references, number, wide, small, flags, texts, numbers, runs)| Parts {
            references,
            number,
            wide,
            small,
            flags,
            texts,
            numbers,
            runs,
        })
}

/// A TPDU of each kind from the same parts.
fn each<'a>(parts: &'a Parts, format: Format, room: &'a mut [u8]) -> Vec<Tpdu<'a>> {
    let [dst_ref, src_ref] = parts.references;
    let [checksum, eot, roa, extended, no_flow_control, _] = parts.flags;
    let number = parts.number & format.mask();
    let text = |at: usize| parts.texts[at].as_deref();
    let user_data = text(0).unwrap_or_default();
    let credit =
        if format == Format::Normal { parts.numbers[3].unwrap_or(0) & 15 } else { parts.numbers[3].unwrap_or(7) };
    let selective = parts.flags[5].then(|| Selective::new(parts.runs.iter().copied(), format, room));
    let confirmation = parts.numbers[1].map(|it| Confirmation { lower_edge: parts.wide, subsequence: it, credit: !it });
    let parameters = Parameters {
        tpdu_size: TpduSize::new(128 << (parts.small[0] % 7)),
        preferred_size: parts.numbers[0].map(|it| u32::from(it) * 3),
        calling: text(1),
        called: text(2),
        version: parts.flags[0].then_some(parts.small[1]),
        protection: text(3),
        options: parts.flags[1].then_some(AdditionalOptions(parts.small[2])),
        alternatives: text(0),
        acknowledge_time: parts.numbers[1],
        residual_errors: parts.flags[2].then_some([1, 2, parts.small[3]]),
        priority: parts.numbers[2],
        transit_delay: parts.numbers[3].map(|it| [it, 1, !it, 7]),
        throughput: parts.flags[3].then_some(&[9; 24]),
        reassignment_time: parts.numbers[0],
        inactivity_time: Some(parts.wide),
    };
    let connect = Connect {
        credit: parts.small[0] & 15,
        dst_ref,
        src_ref,
        class: Class::new(parts.small[1] % 5).unwrap(),
        extended,
        no_flow_control,
        checksum,
        parameters,
        user_data,
    };
    let mut all = vec![
        Tpdu::Cr(connect),
        Tpdu::Cc(connect),
        Tpdu::Dr(DisconnectRequest {
            dst_ref,
            src_ref,
            reason: Reason(parts.small[0]),
            checksum,
            additional: text(1),
            user_data,
        }),
        Tpdu::Dc(DisconnectConfirm { dst_ref, src_ref, checksum }),
        Tpdu::Dt(Data { dst_ref, number, eot, roa, checksum, expedited: parts.numbers[0] }),
        Tpdu::BasicDt(BasicData { number: parts.small[0] & 0x7f, eot }),
        Tpdu::Ea(ExpeditedAcknowledge { dst_ref, number, checksum }),
        Tpdu::Ak(Acknowledge {
            dst_ref,
            number,
            credit,
            checksum,
            subsequence: parts.numbers[2],
            confirmation,
            selective,
            marks: parts.flags[5].then_some(parts.small[3]),
        }),
        Tpdu::Rj(Reject { dst_ref, number, credit }),
        Tpdu::Er(ErrorReport {
            dst_ref,
            cause: [Cause::Unspecified, Cause::ParameterCode, Cause::Type, Cause::ParameterValue]
                [usize::from(parts.small[0] % 4)],
            checksum,
            rejected: text(2),
        }),
    ];
    if !user_data.is_empty() {
        all.push(Tpdu::Ed(ExpeditedData { dst_ref, number, checksum, user_data }));
    }
    all
}

/// Octets that look like a TPDU of some kind, so that more than the first look is tried.
fn plausible() -> impl Strategy<Value = Vec<u8>> {
    let codes = Union::new([0xe3u8, 0xd0, 0x80, 0xc0, 0xf0, 0xf1, 0x10, 0x60, 0x65, 0x20, 0x50, 0x70].map(Just));
    let parameters = vec(
        (
            Union::new(
                [
                    0xc0u8, 0xc1, 0xc2, 0xc3, 0xc4, 0xc5, 0xc6, 0xc7, 0x85, 0x86, 0x87, 0x88, 0x89, 0x8a, 0x8b, 0x8c,
                    0x8f, 0x90, 0xe0, 0xf0, 0xf2,
                ]
                .map(Just),
            ),
            prop_oneof![Just(1usize), Just(2), Just(4), Just(8), Just(12), 0usize..=24],
            any::<u8>(),
        ),
        0..5,
    );
    (codes, vec(any::<u8>(), 2..=8), parameters, vec(any::<u8>(), 0..40), any::<u8>()).prop_map(
        |(code, fixed, parameters, user_data, spoil)| {
            let mut header = vec![0, code];
            header.extend(fixed);
            for (code, len, value) in parameters {
                header.extend([code, len as u8]);
                header.extend(std::iter::repeat_n(value, len));
            }
            header[0] = (header.len() as u8).wrapping_sub(if spoil < 16 { spoil } else { 1 });
            header.extend(user_data);
            header
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn what_is_emitted_is_parsed_again(parts in parts(), format in format(), user_data in vec(any::<u8>(), 1..100)) {
        let mut room = [0; 200];
        for tpdu in each(&parts, format, &mut room) {
            let has_rest = matches!(tpdu, Tpdu::Dt(_) | Tpdu::BasicDt(_));
            let user_data = if has_rest { &user_data[..] } else { &[] };
            let octets = emitted(&tpdu, format, user_data);
            prop_assert_eq!(Tpdu::parse(&octets, format), Ok((tpdu, user_data)));
            prop_assert!(!tpdu.has_checksum() || is_intact(&octets), "{}", tpdu);
            prop_assert_eq!(separate(&octets).count(), 1);
            prop_assert!(!tpdu.to_string().is_empty());
        }
    }

    #[test]
    fn any_octets_are_parsed_or_refused(
        octets in prop_oneof![vec(any::<u8>(), 0..60), plausible()],
        format in format(),
    ) {
        match Tpdu::parse(&octets, format) {
            Ok((tpdu, rest)) => {
                let is_data = matches!(tpdu, Tpdu::Dt(_) | Tpdu::BasicDt(_));
                let again = emitted(&tpdu, format, if is_data { rest } else { &[] });
                prop_assert_eq!(Tpdu::parse(&again, format).map(|it| it.0), Ok(tpdu));
            }
            Err(why) => prop_assert!(why.through() <= octets.len().max(255)),
        }
        prop_assert_eq!(separate(&octets).map(<[u8]>::len).sum::<usize>(), octets.len());
    }
}
