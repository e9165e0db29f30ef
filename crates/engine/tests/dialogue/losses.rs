//! What an entity takes for lost, and what for late.

use super::entity::{Entity, cr};
use super::{MS, OTHER, config};
use underpass_engine::service::{Indication, Request};
use underpass_engine::transport::Config;
use underpass_engine::wire::tpdu::*;

const US: u64 = 1000;

/// An AK has room for 16 runs: one that says nothing new may answer a DT behind all of them, and does not show that
/// what was sent again was late.
#[test]
fn an_ak_that_has_no_room_for_more_gaps_shows_nothing_late() {
    let mut entity = Entity::new(Config { credit: 64, ..config() });
    let (cep, ours) = entity.opened(OTHER, 15);
    entity.acknowledge(ours, 0, 200, None);
    (0..100).for_each(|_| entity.send(cep, b"data"));
    entity.run(100 * US);
    // The window doubles.
    for number in 1..=24 {
        entity.acknowledge(ours, number, 200, None);
        entity.run(US);
    }
    let sent = entity.said().len();
    assert!(sent >= 24 + 40, "{sent} DTs");
    let gaps: Vec<_> = (0..16).map(|it| (25 + 2 * it, 25 + 2 * it)).collect();
    entity.selects(ours, 24, 200, &gaps);
    assert!(entity.said().len() >= 10, "all that is missing before the last is sent again");
    for _ in 0..3 {
        entity.selects(ours, 24, 200, &gaps);
    }
    assert_eq!(entity.counters().data_late, 0);
    // There would have been room.
    entity.selects(ours, 24, 200, &gaps[..15]);
    assert_eq!(entity.counters().data_late, 1);
}

/// Two connections lose something of what was under way together, for which their common window is cut once. It is as
/// it was when both have shown that what they lost was late.
#[test]
fn what_was_late_on_one_connection_undoes_no_cut_for_another() {
    let mut entity = Entity::new(config());
    let both = [(); 2].map(|()| entity.opened(OTHER, 15));
    for (cep, ours) in both {
        entity.acknowledge(ours, 0, 100, None);
        (0..8).for_each(|_| entity.send(cep, b"data"));
    }
    assert_eq!(entity.said().len(), 16);
    entity.run(100 * US);
    // The window is 8 then, and 10 are under way.
    both.iter().for_each(|it| entity.selects(it.1, 0, 100, &[(1, 3)]));
    assert_eq!((entity.said().len(), entity.room(both[0].0)), (2, 0));
    let rooms = [1, 0].map(|at| {
        entity.selects(both[at].1, 0, 100, &[(1, 3)]);
        entity.room(both[0].0)
    });
    assert_eq!((entity.counters().data_late, rooms), (2, [0, 6]));
}

/// T1 counts the time for which the other end may put an AK off, also before a round trip was measured.
#[test]
fn the_first_dt_is_not_sent_again_before_the_other_end_has_to_acknowledge() {
    for (acknowledge_time, waits) in [(None, 4), (Some(40), 44)] {
        let mut entity = Entity::new(config());
        let parameters = Parameters { acknowledge_time, preferred_size: Some(2), ..cr().parameters };
        entity.hear(OTHER, &Tpdu::Cr(Connect { parameters, ..cr() }), &[]);
        let Some(Indication::Connect { cep, .. }) = entity.told.pop() else { panic!("{:?}", entity.told) };
        entity.request(Request::Accept { cep, user_data: Vec::new() });
        entity.acknowledge(1, 0, 9, None);
        entity.said();
        entity.send(cep, b"data");
        entity.run(waits * MS);
        assert_eq!(entity.said(), ["DT → 0x004d, number 0, EOT"]);
        entity.run(2 * MS);
        assert_eq!(entity.said(), ["DT → 0x004d, number 0, EOT"]);
    }
}

/// Three AKs show that a DT is missing, which may be late, and too little was selected to show what else is: when it
/// was awaited for long enough, it is sent again, and not the whole window.
#[test]
fn a_wait_with_few_behind_the_gap_sends_one_again() {
    let mut entity = Entity::new(config());
    let (cep, ours) = entity.opened(OTHER, 15);
    entity.acknowledge(ours, 0, 100, None);
    entity.send(cep, b"data");
    entity.run(400 * US);
    entity.acknowledge(ours, 1, 100, None);
    // One that is late, so that the next one is awaited for a quarter of a round trip more.
    (0..4).for_each(|_| entity.send(cep, b"data"));
    entity.run(400 * US);
    entity.selects(ours, 1, 100, &[(2, 4)]);
    entity.run(10 * US);
    entity.acknowledge(ours, 5, 100, None);
    assert_eq!((entity.counters().data_sent_again, entity.counters().data_late), (1, 1));
    (0..8).for_each(|_| entity.send(cep, b"data"));
    entity.said();
    entity.run(300 * US);
    (0..4).for_each(|_| entity.selects(ours, 5, 100, &[(6, 6)]));
    assert_eq!(entity.said(), [""; 0]);
    entity.run(250 * US);
    assert_eq!(entity.said(), ["DT → 0x004d, number 5, EOT"]);
}
