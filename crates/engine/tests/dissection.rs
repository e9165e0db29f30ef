//! The emitted packets, as tshark reads them. tshark's verdict on checksums of COTP is not asked for: it finds right
//! and wrong ones bad alike.

use pcap_file::DataLink;
use pcap_file::pcap::{PcapHeader, PcapPacket, PcapWriter};
use std::process::Command;
use std::time::Duration;
use underpass_engine::wire::Writer;
use underpass_engine::wire::clnp::{Clnp, Discard, Header, Nsap, Report, Segment};
use underpass_engine::wire::llc::{Llc, Mac};
use underpass_engine::wire::tpdu::{
    Acknowledge, AdditionalOptions, Cause, Class, Confirmation, Connect, Data, DisconnectConfirm, DisconnectRequest,
    ErrorReport, ExpeditedAcknowledge, ExpeditedData, Format, Parameters, Reason, Reject, Selective, Tpdu, TpduSize,
};

/// A frame, and what tshark is to say of it: fields and their values.
struct Case {
    frame: Vec<u8>,
    wanted: Vec<(&'static str, String)>,
}

fn frame(clnp: Clnp<'_>, tpdu: &[u8]) -> Vec<u8> {
    let packet = clnp.header_len() + tpdu.len();
    let (destination, source) = (Mac([2, 0, 0, 0, 0, 2]), Mac([2, 0, 0, 0, 0, 1]));
    let mut headers = vec![0; Llc::LEN + clnp.header_len()];
    let mut to = Writer::new(&mut headers);
    Llc { destination, source, len: packet }.emit(&mut to).unwrap();
    clnp.emit(&mut to).unwrap();
    let mut frame = [&headers[..], tpdu].concat();
    frame.resize(frame.len().max(60), 0);
    frame
}

fn octets(tpdu: &Tpdu<'_>, format: Format, user_data: &[u8]) -> Vec<u8> {
    let mut room = [0; 300];
    let mut to = Writer::new(&mut room);
    tpdu.emit(format, user_data, &mut to).unwrap();
    [to.written(), user_data].concat()
}

/// In the inactive subset.
fn case(tpdu: &Tpdu<'_>, format: Format, user_data: &[u8], wanted: &[(&'static str, &str)]) -> Case {
    let octets = octets(tpdu, format, user_data);
    let mut wanted: Vec<_> = wanted.iter().map(|&(field, value)| (field, value.to_string())).collect();
    wanted.push(("cotp.li", octets[0].to_string()));
    wanted.push(("clnp.nlpi", "0x00".to_string()));
    Case { frame: frame(Clnp::Inactive, &octets), wanted }
}

fn connects() -> Vec<Case> {
    let parameters = Parameters {
        tpdu_size: TpduSize::new(2048),
        preferred_size: Some(11),
        calling: Some(b"left"),
        called: Some(b"right1"),
        version: Some(1),
        options: Some(AdditionalOptions(AdditionalOptions::EXPEDITED)),
        acknowledge_time: Some(10),
        residual_errors: Some([7, 8, 9]),
        priority: Some(3),
        transit_delay: Some([10, 20, 30, 40]),
        throughput: Some(&[0, 0, 1, 0, 0, 2, 0, 0, 3, 0, 0, 4]),
        reassignment_time: Some(60),
        inactivity_time: Some(30_000),
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
        user_data: b"",
    };
    let negotiated = [
        ("cotp.srcref", "0x1234"),
        ("cotp.class", "4"),
        ("cotp.opts.extended_formats", "1"),
        ("cotp.opts.no_explicit_flow_control", "0"),
        ("cotp.tpdu_size", "2048"),
        ("cotp.preferred_maximum_tpdu_size", "1408"),
        ("cotp.src-tsap", "left"),
        ("cotp.dst-tsap", "right1"),
        ("cotp.vp_version_nr", "1"),
        ("cotp.ack_time", "10"),
        ("cotp.vp_priority", "3"),
        ("cotp.transit_delay.targ_calling_called", "10"),
        ("cotp.transit_delay.max_accept_calling_called", "20"),
        ("cotp.transit_delay.targ_called_calling", "30"),
        ("cotp.transit_delay.max_accept_called_calling", "40"),
        ("cotp.max_throughput.targ_calling_called", "1"),
        ("cotp.max_throughput.min_accept_called_calling", "4"),
        ("cotp.reassignment_time", "60"),
        ("cotp.inactivity_timer", "30000"),
        ("cotp.parameter_code", "0xc3,0xc0,0xc1,0xc2,0xc4,0xc6,0x85,0x86,0x87,0x88,0x89,0x8b,0xf0,0xf2"),
    ];
    let with = |more: &[(&'static str, &'static str)]| [&negotiated[..], more].concat();
    let cc = Connect { dst_ref: 0x4321, ..cr };
    vec![
        case(&Tpdu::Cr(cr), Format::Normal, b"", &with(&[("cotp.type", "0x0e"), ("cotp.destref", "0x0000")])),
        case(&Tpdu::Cc(cc), Format::Normal, b"", &with(&[("cotp.type", "0x0d"), ("cotp.destref", "0x4321")])),
        case(
            &Tpdu::Cr(Connect {
                class: Class::Two,
                extended: false,
                no_flow_control: true,
                checksum: false,
                parameters: Parameters::default(),
                ..cr
            }),
            Format::Normal,
            b"",
            &[
                ("cotp.class", "2"),
                ("cotp.opts.extended_formats", "0"),
                ("cotp.opts.no_explicit_flow_control", "1"),
                ("cotp.parameter_code", ""),
            ],
        ),
    ]
}

fn data() -> Vec<Case> {
    let mut all = Vec::new();
    for (format, number, shown) in
        [(Format::Normal, 5, "0x05"), (Format::Normal, 127, "0x7f"), (Format::Extended, 70_000, "0x00011170")]
    {
        for checksum in [false, true] {
            for eot in [false, true] {
                let dt = Data { dst_ref: 0x5678, number, eot, roa: false, checksum, expedited: None };
                let wanted = [
                    ("cotp.type", "0x0f"),
                    ("cotp.destref", "0x5678"),
                    ("cotp.tpdu-number", shown),
                    ("cotp.eot", if eot { "1" } else { "0" }),
                ];
                all.push(case(&Tpdu::Dt(dt), format, b"HELLO-TP4", &wanted));
            }
        }
        let ak = Acknowledge {
            dst_ref: 0x1234,
            number,
            credit: 9,
            checksum: true,
            subsequence: None,
            confirmation: None,
            selective: None,
            marks: None,
        };
        let seen =
            [("cotp.type", "0x06"), ("cotp.destref", "0x1234"), ("cotp.next-tpdu-number", shown), ("cotp.credit", "9")];
        all.push(case(&Tpdu::Ak(ak), format, b"", &seen));
        let rj = Reject { dst_ref: 0x1234, number, credit: 9 };
        let seen =
            [("cotp.type", "0x05"), ("cotp.destref", "0x1234"), ("cotp.next-tpdu-number", shown), ("cotp.credit", "9")];
        all.push(case(&Tpdu::Rj(rj), format, b"", &seen));
        let ed = ExpeditedData { dst_ref: 0x5678, number, checksum: true, user_data: b"exp" };
        let seen = [("cotp.type", "0x01"), ("cotp.destref", "0x5678"), ("cotp.tpdu-number", shown)];
        all.push(case(&Tpdu::Ed(ed), format, b"", &seen));
        let ea = ExpeditedAcknowledge { dst_ref: 0x1234, number, checksum: true };
        let seen = [("cotp.type", "0x02"), ("cotp.destref", "0x1234"), ("cotp.next-tpdu-number", shown)];
        all.push(case(&Tpdu::Ea(ea), format, b"", &seen));
    }
    let confirmation = Some(Confirmation { lower_edge: 70_000, subsequence: 2, credit: 256 });
    let ak = Acknowledge {
        dst_ref: 0x1234,
        number: 70_001,
        credit: 512,
        checksum: true,
        subsequence: Some(3),
        confirmation,
        selective: None,
        marks: None,
    };
    let wanted = [
        ("cotp.credit", "512,256"),
        ("cotp.sequence_number", "3,2"),
        ("cotp.lower_window_edge", "0x00011170"),
        ("cotp.parameter_code", "0xc3,0x8a,0x8c"),
    ];
    all.push(case(&Tpdu::Ak(ak), Format::Extended, b"", &wanted));
    let mut room = [0; 8];
    let selective = Some(Selective::new([(70_003, 70_005)].into_iter(), Format::Extended, &mut room));
    let ak = Acknowledge { subsequence: None, confirmation: None, selective, ..ak };
    let wanted = [("cotp.credit", "512"), ("cotp.parameter_code", "0xc3,0x8f"), ("cotp.parameter_length", "2,8")];
    all.push(case(&Tpdu::Ak(ak), Format::Extended, b"", &wanted));
    all
}

fn ends() -> Vec<Case> {
    let dr = DisconnectRequest {
        dst_ref: 0x5678,
        src_ref: 0x1234,
        reason: Reason::NORMAL,
        checksum: true,
        additional: None,
        user_data: b"bye",
    };
    let dc = DisconnectConfirm { dst_ref: 0x1234, src_ref: 0x5678, checksum: true };
    let er = ErrorReport { dst_ref: 0x1234, cause: Cause::Type, checksum: false, rejected: Some(&[4, 0x90]) };
    let references = [("cotp.destref", "0x5678"), ("cotp.srcref", "0x1234")];
    vec![
        case(&Tpdu::Dr(dr), Format::Normal, b"", &[&references[..], &[("cotp.type", "0x08")]].concat()),
        case(
            &Tpdu::Dc(dc),
            Format::Normal,
            b"",
            &[("cotp.type", "0x0c"), ("cotp.destref", "0x1234"), ("cotp.srcref", "0x5678")],
        ),
        case(&Tpdu::Er(er), Format::Normal, b"", &[("cotp.type", "0x07"), ("cotp.destref", "0x1234")]),
    ]
}

/// The full header, whose checksum tshark does judge, also of a frame too long for a length field.
fn full() -> Vec<Case> {
    let address = |number| Nsap::new(&[0x49, 0, 1, 2, 0, 0, 0, 0, number, Nsap::TRANSPORT]).unwrap();
    let dt = Data { dst_ref: 0x5678, number: 5, eot: true, roa: false, checksum: true, expedited: None };
    let part = Segment { identifier: 0x0102, offset: 0, total: 0, more: false };
    let mut all = Vec::new();
    for (len, segment) in [(9, None), (9, Some(part)), (4000, None)] {
        let tpdu = octets(&Tpdu::Dt(dt), Format::Normal, &vec![0x55; len]);
        let mut header = Header {
            lifetime: 64,
            reports_errors: true,
            destination: address(2),
            source: address(1),
            segment,
            options: &[],
            len: tpdu.len(),
        };
        let header_len = Clnp::Full(header).header_len();
        if let Some(it) = &mut header.segment {
            it.total = (header_len + tpdu.len()) as u16;
        }
        let wanted = [
            ("clnp.nlpi", "0x81".to_string()),
            ("clnp.len", header_len.to_string()),
            ("clnp.version", "0x01".to_string()),
            ("clnp.pdu.len", (header_len + tpdu.len()).to_string()),
            ("clnp.cnf.report_error", "1".to_string()),
            ("clnp.cnf.segmentation", if segment.is_some() { "1" } else { "0" }.to_string()),
            ("clnp.cnf.more_segments", "0".to_string()),
            ("clnp.data_unit_identifier", if segment.is_some() { "258" } else { "" }.to_string()),
            ("clnp.dsap", "49000102000000000221".to_string()),
            ("clnp.ssap", "49000102000000000121".to_string()),
            ("clnp.checksum.status", "1".to_string()),
            ("cotp.tpdu-number", "0x05".to_string()),
        ];
        all.push(Case { frame: frame(Clnp::Full(header), &tpdu), wanted: wanted.to_vec() });
    }
    let (destination, source) = (address(1), address(2));
    let report = Report { lifetime: 4, destination, source, discard: Discard::LIFETIME, location: 4, len: 0 };
    let header_len = Clnp::Report(report).header_len();
    let wanted = [
        ("clnp.nlpi", "0x81".to_string()),
        ("clnp.len", header_len.to_string()),
        ("clnp.type", "0x01".to_string()),
        ("clnp.pdu.len", header_len.to_string()),
        ("clnp.dsap", "49000102000000000121".to_string()),
        ("clnp.ssap", "49000102000000000221".to_string()),
        ("clnp.checksum.status", "1".to_string()),
    ];
    all.push(Case { frame: frame(Clnp::Report(report), &[]), wanted: wanted.to_vec() });
    all
}

/// X.224 §6.4: an AK in front of a DT.
fn concatenated() -> Case {
    let ak = Acknowledge {
        dst_ref: 0x2222,
        number: 6,
        credit: 8,
        checksum: true,
        subsequence: None,
        confirmation: None,
        selective: None,
        marks: None,
    };
    let dt = Data { dst_ref: 0x5678, number: 8, eot: true, roa: false, checksum: true, expedited: None };
    let both =
        [octets(&Tpdu::Ak(ak), Format::Normal, b""), octets(&Tpdu::Dt(dt), Format::Normal, b"HELLO-TP4")].concat();
    let wanted = [("cotp.type", "0x06,0x0f"), ("cotp.destref", "0x2222,0x5678"), ("cotp.li", "8,8")];
    Case {
        frame: frame(Clnp::Inactive, &both),
        wanted: wanted.iter().map(|&(field, value)| (field, value.to_string())).collect(),
    }
}

/// Whether two lists of values are equal: tshark shows one field in hexadecimal here and in decimal there.
fn same(a: &str, b: &str) -> bool {
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let equal = |(a, b): (&str, &str)| a == b || number(a).is_some_and(|it| number(b) == Some(it));
    a.split(',').count() == b.split(',').count() && a.split(',').zip(b.split(',')).all(equal)
}

#[test]
fn tshark_reads_what_was_meant() {
    if Command::new("tshark").arg("--version").output().is_err() {
        assert!(std::env::var_os("UNDERPASS_TEST_REQUIRE").is_none(), "tshark is not installed");
        return println!("skipped: tshark is not installed");
    }
    let mut cases = connects();
    cases.extend(data());
    cases.extend(ends());
    cases.extend(full());
    cases.push(concatenated());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("emitted.pcap");
    let header = PcapHeader { datalink: DataLink::ETHERNET, ..PcapHeader::default() };
    let mut file = PcapWriter::with_header(std::fs::File::create(&path).unwrap(), header).unwrap();
    for (at, case) in cases.iter().enumerate() {
        let len = case.frame.len() as u32;
        file.write_packet(&PcapPacket::new(Duration::from_millis(at as u64), len, &case.frame)).unwrap();
    }
    drop(file);
    let mut fields: Vec<&str> = cases.iter().flat_map(|it| it.wanted.iter().map(|it| it.0)).collect();
    fields.sort_unstable();
    fields.dedup();
    let mut tshark = Command::new("tshark");
    tshark.args(["-o", "clnp.reassemble:FALSE", "-o", "cotp.reassemble:FALSE", "--disable-protocol", "t125"]);
    tshark.arg("-r").arg(&path).args(["-T", "fields", "-E", "separator=|", "-E", "occurrence=a"]);
    for field in &fields {
        tshark.args(["-e", field]);
    }
    let output = tshark.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), cases.len(), "{}", String::from_utf8_lossy(&output.stderr));
    let mut wrong = String::new();
    for (at, (case, line)) in cases.iter().zip(lines).enumerate() {
        let values: Vec<&str> = line.split('|').collect();
        for (field, wanted) in &case.wanted {
            let value = values[fields.binary_search(field).unwrap()];
            if !same(value, wanted) {
                wrong += &format!("{at}: {field} is {value:?}, not {wanted:?}\n");
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
