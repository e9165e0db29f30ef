//! Credit that is taken back, by either end.

use super::entity::{Entity, THEIRS};
use super::{MS, OTHER, SECOND, config};
use underpass_engine::service::{Cep, Details, Indication, Peer, Request};
use underpass_engine::transport::Config;
use underpass_engine::wire::tpdu::{Format, Tpdu};

/// What was sent beyond credit that is taken back waits for credit, and takes no part of the window that the
/// connections to a peer share.
#[test]
fn what_was_sent_beyond_the_credit_keeps_no_other_connection_from_sending() {
    let mut entity = Entity::new(Config { credit: 64, ..config() });
    let (a, ours_a) = entity.opened(OTHER, 15);
    let (b, ours_b) = entity.opened(OTHER, 15);
    entity.acknowledge(ours_a, 0, 64, None);
    entity.acknowledge(ours_b, 0, 64, None);
    (0..16).for_each(|_| entity.send(a, b"data"));
    entity.run(100_000);
    entity.acknowledge(ours_a, 1, 0, None);
    entity.run(100_000);
    // A DT of the other connection is lost, which makes the window of both small.
    entity.send(b, b"data");
    entity.run(20 * MS);
    entity.acknowledge(ours_b, 1, 64, None);
    entity.said();
    (0..4).for_each(|_| entity.send(b, b"data"));
    let mut acknowledged = 1;
    for _ in 0..10 {
        entity.run(SECOND);
        acknowledged += entity.said().iter().filter(|it| it.starts_with("DT")).count() as u32;
        entity.acknowledge(ours_a, 1, 0, None);
        entity.acknowledge(ours_b, acknowledged.min(5), 64, None);
    }
    assert!(acknowledged >= 5, "{acknowledged} of 5 DTs");
}

/// A DT whose credit is taken back is sent again as soon as there is credit, however long that takes. Only the time for
/// which it was tried counts.
#[test]
fn what_waits_for_credit_is_not_given_up_and_goes_at_once() {
    let mut entity = Entity::new(config());
    let (cep, ours) = entity.opened(OTHER, 15);
    (0..2).for_each(|_| entity.send(cep, b"data"));
    entity.run(30 * MS);
    assert!(entity.said().len() > 3, "it was tried");
    for _ in 0..3 {
        entity.acknowledge(ours, 0, 0, Some(1));
        entity.run(8 * SECOND);
    }
    entity.said();
    entity.acknowledge(ours, 0, 2, Some(2));
    let said = entity.said();
    entity.run(100 * MS);
    assert!(entity.told.is_empty(), "{:?}", entity.told);
    assert!(said.iter().any(|it| it == "DT → 0x004d, number 0, EOT"), "{said:?}");
    entity.said();
    entity.acknowledge(ours, 1, 1, None);
    let said = entity.said();
    assert!(said.iter().any(|it| it == "DT → 0x004d, number 1, EOT"), "{said:?}");
}

/// Octets that each of two entities says to the other; how many TPDUs.
fn exchange(a: &mut Entity, b: &mut Entity) -> usize {
    let (from_a, from_b) = (a.octets(), b.octets());
    let count = from_a.len() + from_b.len();
    from_a.iter().for_each(|it| b.hear_octets(Peer(0), it));
    from_b.iter().for_each(|it| a.hear_octets(Peer(0), it));
    count
}

/// Time goes on for both.
fn run_both(a: &mut Entity, b: &mut Entity, nanoseconds: u64) {
    a.run(nanoseconds);
    b.run(nanoseconds);
}

/// Two entities with a connection between them, and the sender's number of it. The second grants 8 of 14 promises.
fn connected() -> (Entity, Entity, Cep) {
    let (mut a, mut b) = (Entity::new(config()), Entity::new(Config { receive: 16, ..config() }));
    a.connect(Peer(0), Details::default());
    exchange(&mut a, &mut b);
    let Some(Indication::Connect { cep, .. }) = b.told.pop() else { panic!("no request") };
    b.request(Request::Accept { cep, user_data: Vec::new() });
    while exchange(&mut a, &mut b) > 0 {}
    let Some(Indication::Confirm { cep, .. }) = a.told.pop() else { panic!("no confirmation") };
    (a, b, cep)
}

/// A window that is opened in two steps, of which the other end confirms the first alone, is idle like any other one.
#[test]
fn a_window_that_was_opened_in_steps_is_given_back() {
    for steps in [vec![8], vec![1, 7]] {
        let (mut a, mut b, cep) = connected();
        for _ in 0..8 {
            a.send(cep, b"data");
            run_both(&mut a, &mut b, 10_000);
            exchange(&mut a, &mut b);
        }
        for _ in 0..20 {
            run_both(&mut a, &mut b, 100_000);
            exchange(&mut a, &mut b);
        }
        // All AKs are under way before the first has come.
        let mut under_way = Vec::new();
        for count in steps {
            b.read(count);
            run_both(&mut a, &mut b, 300_000);
            under_way.extend(b.octets());
        }
        under_way.iter().for_each(|it| a.hear_octets(Peer(0), it));
        // Another connection wants 8 of the 6 that are left, and goes on.
        let other = b.opened(Peer(1), 4).1;
        let mut granted = 0;
        for number in 0..100 {
            b.data_comes(Peer(1), other, number);
            b.read(1);
            run_both(&mut a, &mut b, 100 * MS);
            a.octets().iter().for_each(|it| b.hear_octets(Peer(0), it));
            for octets in b.octets() {
                match Tpdu::parse(&octets, Format::Extended).unwrap().0 {
                    Tpdu::Ak(ak) if ak.dst_ref == THEIRS => granted = granted.max(ak.credit),
                    _ => a.hear_octets(Peer(0), &octets),
                }
            }
        }
        assert!(granted >= 8, "{granted} of 8");
    }
}
