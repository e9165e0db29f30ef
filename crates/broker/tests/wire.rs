//! Records are what they were when they arrive, and any other octets are refused.

use proptest::prelude::*;
use underpass_broker::{
    Abilities, Answer, Ask, Counts, Freed, Inquiry, Knock, LONGEST, Line, Refusal, Shape, Side, State, Verdict,
    WireError, answer, ask, header, knock, state,
};

fn ring_bytes() -> impl Strategy<Value = u32> {
    (16u32..=24).prop_map(|it| 1 << it)
}

fn asks() -> impl Strategy<Value = Ask> {
    let freed =
        proptest::option::of((1u64.., 0..64u32, 1u64..).prop_map(|(pool, slot, maker)| Freed { pool, slot, maker }));
    (any::<u64>(), any::<u64>(), ring_bytes(), freed).prop_map(|(token, mark, ring_bytes, freed)| Ask {
        token,
        mark,
        ring_bytes,
        freed,
    })
}

fn verdicts() -> impl Strategy<Value = Verdict> {
    let met = (1u64.., ring_bytes(), 1u32..=64, any::<u16>(), any::<bool>(), 1u64.., 1u64..).prop_filter_map(
        "cookies differ",
        |(pool, ring_bytes, slots, slot, makes, one, other)| {
            let shape = Shape::new(ring_bytes, slots).ok()?;
            let side = if makes { Side::Maker } else { Side::Joiner };
            let met = Verdict::Met { pool, shape, slot: slot % slots as u16, side, cookies: [one, other] };
            (one != other).then_some(met)
        },
    );
    let carried = (1u64.., ring_bytes(), any::<[u64; 2]>(), 1u64.., 1u64..).prop_filter_map(
        "cookies differ",
        |(pool, ring_bytes, [first, second], one, other)| {
            let shape = Shape::new(ring_bytes, 1).ok()?;
            let verdict = Verdict::Carried { pool, shape, cookies: [one, other], key: [first.max(1), second] };
            (one != other).then_some(verdict)
        },
    );
    let refused = proptest::sample::select(Refusal::ALL).prop_map(Verdict::Refused);
    let here = (1u64..).prop_map(|daemon| Verdict::Here { daemon });
    prop_oneof![Just(Verdict::Waiting), here, met, carried, refused]
}

fn counts() -> impl Strategy<Value = Counts> {
    (any::<[u64; 10]>(), any::<[u64; Counts::REFUSALS]>()).prop_map(|(it, refused)| Counts {
        asks: it[0],
        meetings: it[1],
        turned_away: it[2],
        policies_taken: it[3],
        policies_wrong: it[4],
        waiting: it[5],
        clients: it[6],
        processes: it[7],
        pools: it[8],
        memory: it[9],
        refused,
    })
}

fn states() -> impl Strategy<Value = State> {
    let counts = proptest::option::of(counts());
    let network = proptest::option::of(1u64..);
    (any::<(u64, u64, u64, u64)>(), any::<[bool; 3]>(), network, counts).prop_map(|(words, can, network, counts)| {
        let (token, mark, policy, seconds) = words;
        let [numbers, addresses, pidfd] = can;
        State { token, mark, abilities: Abilities { numbers, addresses, pidfd }, policy, network, seconds, counts }
    })
}

/// An octet of the record is another, or the record has another length.
fn damage(record: &[u8], at: usize, octet: u8, len: usize) -> Vec<u8> {
    let mut record = record.to_vec();
    let at = at % record.len();
    record[at] ^= octet;
    record.resize(len % (2 * LONGEST), octet);
    record
}

proptest! {
    #[test]
    fn an_ask_is_the_same_when_it_arrives(it in asks()) {
        prop_assert_eq!(Ask::parse(&it.emit().unwrap()), Ok(it));
    }

    #[test]
    fn a_knock_is_the_same_when_it_arrives(token: u64, mark: u64, at: usize, octet: u8, len: usize) {
        let it = Knock { token, mark };
        prop_assert_eq!(Knock::parse(&it.emit()), Ok(it));
        let damaged = damage(&it.emit(), at, octet, len);
        if let Ok(it) = Knock::parse(&damaged) {
            prop_assert_eq!(&it.emit()[..], &damaged[..]);
        }
    }

    #[test]
    fn a_line_is_the_same_when_it_arrives(number in 1u64.., mark: u64, at: usize, octet: u8, len: usize) {
        let it = Line { number, mark };
        prop_assert_eq!(Line::parse(&it.emit()), Ok(it));
        let damaged = damage(&it.emit(), at, octet, len);
        if let Ok(it) = Line::parse(&damaged) {
            prop_assert_eq!(&it.emit()[..], &damaged[..]);
        }
    }

    #[test]
    fn an_answer_is_the_same_when_it_arrives(token: u64, mark: u64, verdict in verdicts()) {
        let it = Answer { token, mark, verdict };
        let (record, len) = it.emit().unwrap();
        prop_assert_eq!(Answer::parse(&record[..len]), Ok(it));
    }

    #[test]
    fn a_state_is_the_same_when_it_arrives(it in states(), at: usize, octet: u8, len: usize) {
        prop_assert_eq!(State::parse(&it.emit()), Ok(it));
        let mut damaged = it.emit().to_vec();
        let at = at % damaged.len();
        damaged[at] ^= octet;
        if let Ok(other) = State::parse(&damaged) {
            prop_assert_eq!(&other.emit()[..], &damaged[..]);
        }
        damaged.resize(len % (2 * state::LEN), octet);
        prop_assert!(damaged.len() == state::LEN || State::parse(&damaged).is_err());
    }

    #[test]
    fn an_inquiry_is_the_same_when_it_arrives(token: u64, mark: u64, at: usize, octet: u8, len: usize) {
        let it = Inquiry { token, mark };
        prop_assert_eq!(Inquiry::parse(&it.emit()), Ok(it));
        let damaged = damage(&it.emit(), at, octet, len);
        if let Ok(it) = Inquiry::parse(&damaged) {
            prop_assert_eq!(&it.emit()[..], &damaged[..]);
        }
    }

    /// A record that parses is the only spelling of its meaning, so nothing can hide in a record.
    #[test]
    fn what_parses_has_one_spelling(it in asks(), verdict in verdicts(), at: usize, octet: u8, len: usize) {
        let damaged = damage(&it.emit().unwrap(), at, octet, len);
        if let Ok(it) = Ask::parse(&damaged) {
            prop_assert_eq!(&it.emit().unwrap()[..], &damaged[..]);
        }
        let (record, longest) = Answer { token: 1, mark: 2, verdict }.emit().unwrap();
        let damaged = damage(&record[..longest], at, octet, len);
        if let Ok(it) = Answer::parse(&damaged) {
            let (record, len) = it.emit().unwrap();
            prop_assert_eq!(&record[..len], &damaged[..]);
        }
    }

    #[test]
    fn any_octets_are_parsed_without_harm(octets in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = (Ask::parse(&octets), Knock::parse(&octets), Answer::parse(&octets), header::Header::read(&octets));
        let _ = (Inquiry::parse(&octets), State::parse(&octets));
    }
}

const ASK: Ask = Ask { token: 7, mark: 9, ring_bytes: 1 << 20, freed: None };

const STATE: State = State {
    token: 1,
    mark: 2,
    abilities: Abilities { numbers: true, addresses: true, pidfd: true },
    policy: 3,
    network: None,
    seconds: 4,
    counts: None,
};

/// Counts that are marked as absent are not read, and no ability is taken for another version's.
#[test]
fn a_state_has_no_hidden_counts_and_no_unknown_abilities() {
    let mut hidden = STATE.emit();
    *hidden.last_mut().unwrap() = 1;
    assert_eq!(State::parse(&hidden), Err(WireError::Value("counts")));
    let mut unknown = STATE.emit();
    unknown[header::LEN] |= 1 << 3;
    assert_eq!(State::parse(&unknown), Err(WireError::Value("abilities")));
    let mut counts = Counts::default();
    counts.refuse(Refusal::Policy);
    let counted = State { counts: Some(counts), ..STATE };
    assert_eq!(State::parse(&counted.emit()).unwrap().counts.unwrap().refused(Refusal::Policy), 1);
}

#[test]
fn another_version_can_be_told_and_answered() {
    let mut record = ASK.emit().unwrap();
    record[4] = 4;
    assert_eq!(Ask::parse(&record), Err(WireError::Version(4)));
    assert_eq!(header::Header::read(&record).unwrap().token, 7);
}

#[test]
fn a_record_goes_one_way_only() {
    assert!(matches!(Answer::parse(&ASK.emit().unwrap()), Err(WireError::Kind(_))));
    let (record, len) = Answer { token: 1, mark: 1, verdict: Verdict::Waiting }.emit().unwrap();
    assert!(matches!(Ask::parse(&record[..len]), Err(WireError::Kind(_))));
    assert!(matches!(Knock::parse(&record[..len]), Err(WireError::Kind(_))));
    assert!(matches!(Answer::parse(&Knock { token: 1, mark: 1 }.emit()), Err(WireError::Kind(_))));
    let inquiry = Inquiry { token: 1, mark: 1 }.emit();
    assert!(matches!(Knock::parse(&inquiry), Err(WireError::Kind(_))));
    assert!(matches!(State::parse(&inquiry), Err(WireError::Kind(_))));
    assert!(matches!(Answer::parse(&STATE.emit()), Err(WireError::Kind(_))));
}

#[test]
fn values_that_never_are_cannot_be_sent() {
    let wrong = [
        Ask { ring_bytes: 0, ..ASK },
        Ask { ring_bytes: 3 << 16, ..ASK },
        Ask { ring_bytes: 1 << 25, ..ASK },
        Ask { freed: Some(Freed { pool: 0, slot: 1, maker: 1 }), ..ASK },
        Ask { freed: Some(Freed { pool: 1, slot: 64, maker: 1 }), ..ASK },
        Ask { freed: Some(Freed { pool: 1, slot: 0, maker: 0 }), ..ASK },
    ];
    wrong.iter().for_each(|it| assert!(matches!(it.emit(), Err(WireError::Value(_))), "{it:?}"));
    let shape = Shape::new(1 << 16, 8).unwrap();
    let met = |pool, slot, cookies| {
        let verdict = Verdict::Met { pool, shape, slot, side: Side::Maker, cookies };
        Answer { token: 1, mark: 1, verdict }.emit()
    };
    assert!(met(1, 7, [1, 2]).is_ok());
    for it in [met(0, 7, [1, 2]), met(1, 8, [1, 2]), met(1, 7, [1, 1]), met(1, 7, [0, 1])] {
        assert!(matches!(it, Err(WireError::Value(_))));
    }
}

/// The lengths are part of the wire: a change needs another version.
#[test]
fn lengths_are_those_of_version_3() {
    assert_eq!((header::VERSION, header::LEN, ask::LEN, knock::LEN), (3, 24, 48, 24));
    assert_eq!((state::INQUIRY_LEN, state::LEN), (24, 264));
    assert_eq!((answer::WAITING, answer::HERE, answer::REFUSED, answer::MET, LONGEST), (24, 32, 32, 64, 72));
}
