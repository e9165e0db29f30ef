//! One entity, and TPDUs made by hand: what it says to an end that is not of its kind.

mod entity;
mod limits;
mod losses;
mod setup;
mod withdrawal;

use entity::{Entity, THEIRS, cr};
use underpass_checksum::fletcher::{Sums, check_octets};
use underpass_engine::service::{Cep, Details, Indication, Peer, Request};
use underpass_engine::transport::{Config, Times};
use underpass_engine::wire::Writer;
use underpass_engine::wire::tpdu::*;
use underpass_link::arena::Geometry;

const MS: u64 = 1_000_000;
const SECOND: u64 = 1000 * MS;
const OTHER: Peer = Peer(0);

fn config() -> Config {
    Config { tpdu_size: 256, credit: 8, ..Config::default() }
}

/// A DR of the other end's.
fn dr(dst_ref: u16) -> DisconnectRequest<'static> {
    let reason = Reason::NORMAL;
    DisconnectRequest { dst_ref, src_ref: THEIRS, reason, checksum: true, additional: None, user_data: &[] }
}

/// A TPDU that comes twice is answered twice, and acted on once (X.224 §12.2.2.2, §6.18).
#[test]
fn what_comes_twice() {
    let mut entity = Entity::new(config());
    let dr = Tpdu::Dr(dr(1));
    for _ in 0..2 {
        entity.hear(OTHER, &Tpdu::Cr(cr()), &[]);
    }
    let [Indication::Connect { cep, .. }] = entity.told[..] else { panic!("{:?}", entity.told) };
    entity.told.clear();
    entity.request(Request::Accept { cep, user_data: Vec::new() });
    entity.hear(OTHER, &Tpdu::Cr(cr()), &[]);
    assert_eq!(entity.said(), ["CC 0x0001 → 0x004d, class 4 extended, credit 8"; 2]);
    for _ in 0..2 {
        entity.data_comes(OTHER, 1, 0);
    }
    entity.hear(OTHER, &Tpdu::Cr(cr()), &[]);
    assert_eq!(entity.said(), ["AK → 0x004d, expects 1, credit 7"; 2]);
    assert_eq!((entity.data.len(), entity.counters().data_duplicate), (1, 1));
    for _ in 0..2 {
        entity.hear(OTHER, &dr, &[]);
    }
    assert_eq!(entity.said(), ["DC 0x0001 → 0x004d"; 2]);
    let [Indication::Disconnect { .. }] = entity.told[..] else { panic!("{:?}", entity.told) };
    entity.hear(OTHER, &Tpdu::Cc(Connect { dst_ref: 1, ..cr() }), &[]);
    assert_eq!(entity.said(), ["DR 0x0001 → 0x004d, references do not belong together"]);
    entity.read(1);
    assert_eq!((entity.connections(), entity.data.len()), (0, 0));
}

/// Among AKs with the same number, the one with the highest subsequence counts; among those, the one with the highest
/// credit (X.224 §12.2.3.7).
#[test]
fn an_ak_of_the_past_changes_nothing() {
    let mut entity = Entity::new(config());
    let (cep, ours) = entity.opened(OTHER, 1);
    (0..9).for_each(|_| entity.send(cep, b"data"));
    entity.said();
    for (number, credit, subsequence, sent) in [
        (1, 2, None, 2),
        (1, 1, None, 0),
        (0, 9, None, 0),
        (1, 1, Some(2), 0),
        (1, 4, Some(1), 0),
        (1, 3, Some(2), 1),
        (5, 9, None, 0),
        (4, 1, None, 1),
    ] {
        entity.acknowledge(ours, number, credit, subsequence);
        assert_eq!(entity.said().len(), sent, "{number}, {credit}, {subsequence:?}");
    }
}

/// Credit may be reduced (X.224 §12.2.3.6): data beyond it is not sent again until credit covers it, and neither end
/// gives up.
#[test]
fn nothing_is_sent_again_beyond_the_window() {
    let mut entity = Entity::new(config());
    let (cep, ours) = entity.opened(OTHER, 4);
    (0..4).for_each(|_| entity.send(cep, b"data"));
    entity.acknowledge(ours, 0, 2, Some(1));
    entity.said();
    entity.run(40 * MS);
    let is_data = |it: &String, number: u32| it.contains(&format!("DT → 0x004d, number {number},"));
    let said = entity.said();
    assert!(said.iter().any(|it| is_data(it, 0)) && !said.iter().any(|it| is_data(it, 2)), "{said:?}");
    entity.acknowledge(ours, 2, 0, None);
    entity.said();
    for _ in 0..60 {
        entity.run(SECOND);
        let said = entity.said();
        assert!(said.iter().all(|it| it.starts_with("AK")), "{said:?}");
        entity.acknowledge(ours, 2, 0, None);
    }
    entity.acknowledge(ours, 2, 2, None);
    // T1 was too short three times, and no round trip was measured since.
    entity.run(50 * MS);
    let said = entity.said();
    assert!(said.iter().any(|it| is_data(it, 2)), "{said:?}");
    assert!(entity.told.is_empty(), "{:?}", entity.told);
}

/// An end whose user keeps more than half of its credit grants the rest at once, without waiting for W.
#[test]
fn a_window_that_is_closed_is_opened_for_less_than_half_of_the_credit() {
    for class in [Class::Two, Class::Four] {
        let mut entity = Entity::new(Config { class, checksum: false, ..config() });
        let (_, ours) = entity.opened(OTHER, 4);
        (0..8).for_each(|number| entity.data_comes(OTHER, ours, number));
        entity.run(MS);
        assert_eq!(entity.said().last().unwrap(), "AK → 0x004d, expects 8, credit 0");
        entity.read(2);
        entity.run(2 * MS);
        assert_eq!(entity.said(), ["AK → 0x004d, expects 8, credit 2"], "class {class:?}");
    }
}

/// A user may give back what came over a connection when that is gone, and another one has its number.
#[test]
fn a_buffer_of_a_connection_that_is_gone_is_no_credit_of_another() {
    let mut entity = Entity::new(config());
    let (cep, ours) = entity.opened(OTHER, 4);
    (0..6).for_each(|number| entity.data_comes(OTHER, ours, number));
    entity.hear(OTHER, &Tpdu::Dr(dr(ours)), &[]);
    entity.told.clear();
    entity.run(10 * SECOND);
    let (another, theirs) = entity.opened(Peer(1), 4);
    assert_eq!((another, theirs), (cep, ours), "or this shows nothing");
    (0..8).for_each(|number| entity.data_comes(Peer(1), theirs, number));
    entity.run(MS);
    assert_eq!(entity.said().last().unwrap(), "AK → 0x004d, expects 8, credit 0");
    entity.read(6);
    entity.run(2 * MS);
    assert_eq!(entity.said(), [""; 0]);
}

/// A user that answers in the buffer that it was given, as an echo does, has read it.
#[test]
fn a_buffer_that_is_sent_on_is_credit_again() {
    let mut entity = Entity::new(config());
    let (cep, ours) = entity.opened(OTHER, 15);
    for number in 0..30 {
        entity.data_comes(OTHER, ours, number);
        let buffer = entity.data.pop().expect("there is credit for it");
        let request =
            if number % 2 == 0 { Request::Data { cep, buffer, end: true } } else { Request::Expedited { cep, buffer } };
        entity.request(request);
        entity.acknowledge(ours, number / 2 + 1, 15, None);
        let ea = ExpeditedAcknowledge { dst_ref: ours, number: number / 2, checksum: true };
        entity.hear(OTHER, &Tpdu::Ea(ea), &[]);
    }
    entity.run(MS);
    let said = entity.said();
    let last = said.iter().rfind(|it| it.contains("AK")).unwrap();
    assert!(last.starts_with("AK → 0x004d, expects 30, credit 8"), "{last}");
}

/// Those that owe an AK get a buffer for it in the order in which they came to owe it.
#[test]
fn buffers_for_acknowledgements_go_by_turns() {
    let geometry = Geometry { frames: 64, frame_size: 512, headroom: 128 };
    let mut entity = Entity::over(config(), geometry, 1);
    let references = [0, 1, 2].map(|peer| entity.opened(Peer(peer), 4).1);
    entity.keeps = true;
    for (peer, first) in [(2, 0), (1, 0), (0, 0), (2, 4)] {
        (first..first + 4).for_each(|number| entity.data_comes(Peer(peer), references[peer as usize], number));
    }
    for peer in [2, 1, 0, 2] {
        assert_eq!(entity.peers(), [Peer(peer)]);
        entity.complete(1);
    }
}

/// A CC gives the longest TPDU in the parameter that the CR has used (X.224 §13.4.3): an entity that does not know F0
/// gets C0.
#[test]
fn the_longest_tpdu_is_answered_as_it_was_asked() {
    let size = TpduSize::new;
    for (asked, preferred, answered, answered_preferred, most) in [
        (None, None, None, None, 128),
        (size(128), None, size(128), None, 128),
        (size(2048), None, size(1024), None, 1024),
        (size(2048), Some(3), None, Some(3), 384),
        (None, Some(300), None, Some(11), 1408),
    ] {
        let geometry = Geometry { frames: 32, frame_size: 2048, headroom: 128 };
        let mut entity = Entity::over(Config::default(), geometry, 4);
        let parameters = Parameters { tpdu_size: asked, preferred_size: preferred, ..cr().parameters };
        entity.hear(OTHER, &Tpdu::Cr(Connect { parameters, ..cr() }), &[]);
        let Some(Indication::Connect { cep, most: is, .. }) = entity.told.pop() else { panic!("{:?}", entity.told) };
        assert_eq!(is, most - 12);
        entity.request(Request::Accept { cep, user_data: Vec::new() });
        let cc = entity.octets().pop().unwrap();
        let Ok((Tpdu::Cc(cc), _)) = Tpdu::parse(&cc, Format::Normal) else { panic!("{cc:?}") };
        let parameters = cc.parameters;
        assert_eq!((parameters.tpdu_size, parameters.preferred_size), (answered, answered_preferred));
    }
}

/// An entity that does not know F0 learns of the longest TPDU from C0, and answers with C0.
#[test]
fn a_cr_says_the_longest_tpdu_in_both_ways() {
    for (size, power, units) in [(1408, 1024, 11), (128, 128, 1), (65_408, 8192, 511)] {
        let geometry = Geometry { frames: 8, frame_size: 65_536, headroom: 128 };
        let mut entity = Entity::over(Config { tpdu_size: size, ..Config::default() }, geometry, 4);
        entity.connect(OTHER, Details::default());
        let octets = entity.octets().pop().unwrap();
        let Ok((Tpdu::Cr(cr), _)) = Tpdu::parse(&octets, Format::Normal) else { panic!("{octets:?}") };
        assert_eq!((cr.parameters.tpdu_size, cr.parameters.preferred_size), (TpduSize::new(power), Some(units)));
        let options = Some(AdditionalOptions(0));
        let parameters = Parameters { tpdu_size: cr.parameters.tpdu_size, options, ..Parameters::default() };
        let cc = Connect { dst_ref: cr.src_ref, src_ref: THEIRS, parameters, ..cr };
        entity.hear(OTHER, &Tpdu::Cc(cc), &[]);
        let Some(Indication::Confirm { most, .. }) = entity.told.pop() else { panic!("{:?}", entity.told) };
        assert_eq!(most as usize, power - 12);
    }
}

/// A CR has 128 octets at most (X.224 §13.3.1), also with all that a user may say in it.
#[test]
fn a_cr_is_not_too_long() {
    let mut entity = Entity::new(config());
    let long = vec![b'A'; 32];
    let details = Details { calling: long.clone(), called: long.clone(), user_data: long, expedited: true };
    entity.connect(OTHER, details);
    let octets = entity.octets().pop().unwrap();
    assert!(octets.len() <= 128, "{}", octets.len());
    let Ok((Tpdu::Cr(cr), _)) = Tpdu::parse(&octets, Format::Normal) else { panic!("{octets:?}") };
    assert_eq!((cr.parameters.called.map(<[u8]>::len), cr.user_data.len()), (Some(32), 32));
}

/// A CC that takes what the CR has not offered is refused, or not taken at its word.
#[test]
fn a_cc_gets_no_more_than_was_offered() {
    let mut entity = Entity::new(config());
    entity.connect(OTHER, Details::default());
    entity.said();
    // No checksums, where they were not done without.
    let parameters = Parameters { options: Some(AdditionalOptions(2)), preferred_size: Some(2), ..cr().parameters };
    let cc = Connect { dst_ref: 1, checksum: false, parameters, ..cr() };
    entity.hear(OTHER, &Tpdu::Cc(cc), &[]);
    assert!(
        matches!(entity.told[..], [Indication::Refused { reason: Reason::NEGOTIATION_FAILED, .. }]),
        "{:?}",
        entity.told
    );
    entity.told.clear();

    // Expedited data, which nobody has asked for, and which is meant where no options are.
    entity.connect(OTHER, Details::default());
    entity.said();
    let parameters = Parameters { options: None, preferred_size: Some(2), ..cr().parameters };
    entity.hear(OTHER, &Tpdu::Cc(Connect { dst_ref: 2, parameters, ..cr() }), &[]);
    assert!(matches!(entity.told[..], [Indication::Confirm { .. }]), "{:?}", entity.told);
    let ed = ExpeditedData { dst_ref: 2, number: 0, checksum: true, user_data: b"!" };
    entity.hear(OTHER, &Tpdu::Ed(ed), &[]);
    assert_eq!((entity.data.len(), entity.counters().unexpected), (0, 1));
}

/// A TSAP-ID that could not be said in the CC is refused instead of accepted in vain.
#[test]
fn a_cr_with_a_tsap_id_that_is_too_long_is_refused() {
    let mut entity = Entity::new(config());
    let long = [b'A'; 110];
    let parameters = Parameters { calling: Some(&long), called: Some(&long), ..cr().parameters };
    entity.hear(OTHER, &Tpdu::Cr(Connect { parameters, ..cr() }), &[]);
    assert_eq!(entity.said(), ["DR 0x0000 → 0x004d, invalid length of a header or parameter"]);
    assert!(entity.told.is_empty() && entity.connections() == 0);
}

/// The shortest TPDUs that may be negotiated, in frames that have no room for more.
#[test]
fn no_tpdu_is_longer_than_was_negotiated() {
    let geometry = Geometry { frames: 128, frame_size: 256, headroom: 128 };
    let mut entity = Entity::over(Config { tpdu_size: 128, credit: 64, ..Config::default() }, geometry, 4);
    let (_, ours) = entity.opened(OTHER, 15);
    entity.acknowledge(ours, 0, 15, None);
    // Every second one is lost.
    (0..40).for_each(|at| entity.data_comes(OTHER, ours, at * 2 + 1));
    // A CR with a parameter at its end that is too long.
    let protection = [1; 100];
    let parameters = Parameters { protection: Some(&protection), ..cr().parameters };
    let mut octets = [0; 200];
    let mut to = Writer::new(&mut octets);
    Tpdu::Cr(Connect { parameters, ..cr() }).emit(Format::Normal, &[], &mut to).unwrap();
    let mut octets = to.written().to_vec();
    octets.extend([0xc4, 0, 0]);
    octets[0] += 3;
    let at = octets.windows(2).position(|it| it == [0xc3, 2]).unwrap() + 2;
    octets[at..at + 2].fill(0);
    let sums = Sums::of(&octets);
    let right = check_octets(sums, octets.len(), at + 1);
    octets[at..at + 2].copy_from_slice(&right);
    entity.hear_octets(OTHER, &octets);
    let said = entity.octets();
    assert!(said.iter().all(|it| it.len() <= 128), "{:?}", said.iter().map(Vec::len).collect::<Vec<_>>());
    assert_eq!(said.last().map(|it| it[1]), Some(Code::Er as u8));
}

/// A DT may be as long as was negotiated, and no longer, whatever a frame has room for.
#[test]
fn a_dt_that_is_longer_than_was_negotiated_is_not_taken() {
    for class in [Class::Four, Class::Two] {
        let mut entity = Entity::new(Config { class, checksum: false, ..config() });
        let (_, ours) = entity.opened(OTHER, 4);
        let dt =
            |number| Tpdu::Dt(Data { dst_ref: ours, number, eot: true, roa: false, checksum: false, expedited: None });
        // With a header of eight octets.
        entity.hear(OTHER, &dt(0), &[7; 256 - 8]);
        assert_eq!(entity.data.len(), 1);
        entity.said();
        entity.hear(OTHER, &dt(1), &[7; 256 - 7]);
        assert_eq!((entity.data.len(), entity.counters().malformed), (1, 1), "{class:?}");
        let expected =
            if class == Class::Two { vec![format!("DR {ours:#06x} → 0x004d, protocol error")] } else { vec![] };
        assert_eq!(entity.said(), expected);
    }
}

/// A user that learns behind the last octet that its TSDU ends says so by a buffer of none.
#[test]
fn a_tsdu_may_end_with_an_empty_part_and_not_be_one() {
    let mut entity = Entity::new(config());
    let (cep, ours) = entity.opened(OTHER, 15);
    for (octets, end, sent) in [
        (&b"data"[..], false, Some("number 0")),
        (b"", false, None),
        (b"", true, Some("number 1, EOT")),
        (b"", true, None),
        (b"data", true, Some("number 2, EOT")),
        (b"", true, None),
    ] {
        let before = entity.unused();
        entity.send_part(cep, octets, end);
        let said = entity.said();
        assert_eq!(said.first().map(|it| it.trim_start_matches("DT → 0x004d, ")), sent);
        assert_eq!(entity.unused(), before - said.len(), "what is not sent comes back");
    }
    // And so does the other end.
    let dt = |number, eot| Tpdu::Dt(Data { dst_ref: ours, number, eot, roa: false, checksum: true, expedited: None });
    entity.hear(OTHER, &dt(0, false), b"data");
    entity.hear(OTHER, &dt(1, true), b"");
    assert_eq!(entity.data.iter().map(|it| it.len()).collect::<Vec<_>>(), [4, 0]);
}

/// An end that puts its AKs off for longer, or gives up sooner, says so, and is waited for, or spoken to, as it needs.
#[test]
fn the_timers_of_the_other_end_are_heeded_and_ours_are_told() {
    let times = Times { al: 7 * MS, ..Times::default() };
    let mut entity = Entity::new(Config { times, ..config() });
    let parameters = Parameters {
        acknowledge_time: Some(40),
        inactivity_time: Some(800),
        preferred_size: Some(2),
        ..cr().parameters
    };
    entity.hear(OTHER, &Tpdu::Cr(Connect { parameters, ..cr() }), &[]);
    let Some(Indication::Connect { cep, .. }) = entity.told.pop() else { panic!("{:?}", entity.told) };
    entity.request(Request::Accept { cep, user_data: Vec::new() });
    let cc = entity.octets().pop().unwrap();
    let Ok((Tpdu::Cc(cc), _)) = Tpdu::parse(&cc, Format::Normal) else { panic!("{cc:?}") };
    assert_eq!((cc.parameters.acknowledge_time, cc.parameters.inactivity_time), (Some(7), Some(16_000)));
    entity.acknowledge(1, 0, 9, None);
    entity.said();
    // A round trip of nothing, so that T1 is the other end's AL.
    entity.send(cep, b"data");
    entity.acknowledge(1, 1, 9, None);
    entity.said();
    entity.send(cep, b"data");
    entity.run(39 * MS);
    assert_eq!(entity.said(), ["DT → 0x004d, number 1, EOT"]);
    entity.run(5 * MS);
    assert_eq!(entity.said(), ["DT → 0x004d, number 1, EOT"]);
    entity.acknowledge(1, 2, 9, None);
    entity.said();
    for _ in 0..4 {
        entity.run(210 * MS);
        assert_eq!(entity.said(), ["AK → 0x004d, expects 0, credit 8"], "it hears something four times in 800 ms");
    }
}

/// Class 2 has no AK that shows that a CC has come, and sends nothing twice (X.224 §6.6, §10).
#[test]
fn class_2_is_open_when_it_has_answered() {
    let mut entity = Entity::new(Config { class: Class::Two, checksum: false, ..config() });
    let cr = Connect { class: Class::Two, checksum: false, ..cr() };
    entity.hear(OTHER, &Tpdu::Cr(cr), &[]);
    let Some(Indication::Connect { cep, .. }) = entity.told.pop() else { panic!("{:?}", entity.told) };
    entity.request(Request::Accept { cep, user_data: Vec::new() });
    entity.run(60 * SECOND);
    let said = entity.said();
    assert_eq!(said.iter().filter(|it| it.starts_with("CC")).count(), 1, "{said:?}");
    entity.send(cep, b"data");
    assert_eq!(entity.said(), ["DT → 0x004d, number 0, EOT"]);
    assert!(entity.told.is_empty(), "{:?}", entity.told);
}

/// Expedited data has no credit: from a user that reads nothing, the other end waits for the EA.
#[test]
fn unread_expedited_data_takes_little_more_than_the_credit() {
    for class in [Class::Two, Class::Four] {
        let mut entity = Entity::new(Config { class, checksum: false, ..config() });
        let (_, ours) = entity.opened(OTHER, 4);
        let expedited = |entity: &mut Entity, number| {
            let ed = ExpeditedData { dst_ref: ours, number, checksum: false, user_data: b"!" };
            entity.hear(OTHER, &Tpdu::Ed(ed), &[]);
            entity.said()
        };
        for number in 0..8 {
            assert_eq!(expedited(&mut entity, number), [format!("EA → 0x004d, number {number}")]);
        }
        // A repetition, which is right where an EA may be lost; then, in class 4, an ED out of turn: its sender has had
        // no EA.
        let others: &[u32] = if class == Class::Four { &[8, 8, 9] } else { &[8] };
        for &number in others {
            assert_eq!(expedited(&mut entity, number), [""; 0]);
        }
        assert_eq!(entity.data.len(), 9);
        entity.read(1);
        assert_eq!(entity.said(), ["EA → 0x004d, number 8"]);
        entity.read(8);
        assert_eq!(entity.said(), [""; 0]);
    }
}

/// What the other end says to a connection, by its reference.
type Wrong = fn(&mut Entity, u16);

/// If the network of class 2 cannot have caused an error, the other end has: the connection is released (X.224 §10.2,
/// §6.22).
#[test]
fn class_2_is_released_by_an_end_that_takes_something_back_or_says_it_twice() {
    const fn ed(dst_ref: u16, number: u32) -> ExpeditedData<'static> {
        ExpeditedData { dst_ref, number, checksum: false, user_data: b"!" }
    }
    let wrongs: [(&str, Wrong); 5] = [
        ("a lower number", |entity, ours| entity.acknowledge(ours, 1, 9, None)),
        ("a smaller window", |entity, ours| entity.acknowledge(ours, 2, 1, None)),
        ("what was not sent", |entity, ours| entity.acknowledge(ours, 5, 4, None)),
        ("an ED again", |entity, ours| entity.hear(OTHER, &Tpdu::Ed(ed(ours, 0)), &[])),
        ("an ED too early", |entity, ours| entity.hear(OTHER, &Tpdu::Ed(ed(ours, 2)), &[])),
    ];
    for (what, wrong) in wrongs {
        let mut entity = Entity::new(Config { class: Class::Two, checksum: false, ..config() });
        let (cep, ours) = entity.opened(OTHER, 4);
        (0..4).for_each(|_| entity.send(cep, b"data"));
        entity.acknowledge(ours, 2, 2, None);
        entity.acknowledge(ours, 2, 3, None);
        entity.hear(OTHER, &Tpdu::Ed(ed(ours, 0)), &[]);
        entity.said();
        assert!(entity.told.is_empty(), "{:?}", entity.told);
        wrong(&mut entity, ours);
        assert_eq!(entity.said(), [format!("DR {ours:#06x} → 0x004d, protocol error")], "{what}");
        assert!(matches!(entity.told[..], [Indication::Disconnect { reason: Reason::PROTOCOL_ERROR, .. }]), "{what}");
    }
}

/// Requests of the user of a connection that is gone do not reach the next connection.
#[test]
fn the_number_of_a_connection_rests_as_its_reference_does() {
    let mut entity = Entity::new(config());
    let (cep, ours) = entity.opened(OTHER, 4);
    entity.hear(OTHER, &Tpdu::Dr(dr(ours)), &[]);
    entity.told.clear();
    assert_eq!(entity.connections(), 0);
    assert_ne!(entity.opened(OTHER, 4).0, cep);
    assert_eq!(entity.connections(), 1);
    entity.run(2 * Times::default().l);
    assert_eq!(entity.opened(Peer(1), 4).0, cep);
}

/// An AK that opens a closed window is sent until it has shown to have come (X.224 §12.2.3.8.3), which what comes twice
/// does not.
#[test]
fn a_duplicate_does_not_show_that_the_window_is_open() {
    let mut entity = Entity::new(config());
    let (_, ours) = entity.opened(OTHER, 4);
    (0..8).for_each(|number| entity.data_comes(OTHER, ours, number));
    entity.read(8);
    entity.data_comes(OTHER, ours, 7);
    entity.said();
    entity.run(8 * MS);
    assert_eq!(entity.said(), ["AK → 0x004d, expects 8, credit 8"]);
    entity.data_comes(OTHER, ours, 8);
    entity.run(100 * MS);
    assert_eq!(entity.said(), ["AK → 0x004d, expects 9, credit 7"]);
}

/// Round trips: one beyond the other and what it may take, and neither of a wide network, where a delay cuts no window.
const SHORT: u64 = MS / 20;
const LONG: u64 = MS * 9 / 10;

/// An end whose answers take any time.
struct Answers {
    entity: Entity,
    cep: Cep,
    ours: u16,
    number: u32,
}

impl Answers {
    fn new() -> Answers {
        let times = Times { t1: 100 * MS, t1_least: 100 * MS, ..Times::default() };
        let mut entity = Entity::new(Config { times, extended: false, ..config() });
        let (cep, ours) = entity.opened(OTHER, 15);
        Answers { entity, cep, ours, number: 0 }
    }

    /// Sends so many DTs, and acknowledges them after a round trip; returns how many went before that.
    fn exchange(&mut self, data: u32, round_trip: u64) -> usize {
        (0..data).for_each(|_| self.entity.send(self.cep, b"data"));
        let sent = self.entity.said().len();
        self.entity.run(round_trip);
        self.number = (self.number + sent as u32) & 0x7f;
        self.entity.acknowledge(self.ours, self.number, 15, None);
        let rest = self.entity.said().len() as u32;
        assert_eq!(sent as u32 + rest, data, "one window more is enough");
        self.number = (self.number + rest) & 0x7f;
        self.entity.acknowledge(self.ours, self.number, 15, None);
        sent
    }
}

/// The window is cut once a round trip, however many numbers ago it was cut before: they come again.
#[test]
fn a_cut_of_long_ago_keeps_no_other_off() {
    let mut answers = Answers::new();
    answers.exchange(1, SHORT);
    answers.exchange(1, LONG);
    for _ in 0..20 {
        assert_eq!(answers.exchange(4, SHORT), 4);
    }
    answers.exchange(1, LONG);
    assert!((1..9).contains(&answers.exchange(15, SHORT)));
}

/// A way that has become longer is no queue for ever: what a TPDU by itself takes is the shortest there is.
#[test]
fn a_round_trip_that_is_longer_from_now_on_closes_no_window() {
    let mut answers = Answers::new();
    answers.exchange(1, SHORT);
    for _ in 0..6 {
        answers.exchange(1, LONG);
    }
    assert_eq!(answers.exchange(2, LONG), 1);
    // A window that is not used does not grow.
    for data in [1, 2] {
        for _ in 0..20 {
            answers.exchange(data, LONG);
        }
    }
    let at_once = answers.exchange(8, LONG);
    assert!(at_once >= 4, "{at_once}");
}
