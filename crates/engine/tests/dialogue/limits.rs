//! How much an entity holds for each peer, and for how long; and what it says of that to its user.

use super::entity::{Entity, THEIRS, cr};
use super::{MS, OTHER, SECOND, config, dr};
use underpass_engine::service::{Cep, Details, Fate, Indication, Peer, Request};
use underpass_engine::transport::{Config, Times};
use underpass_engine::wire::tpdu::*;
use underpass_link::arena::Geometry;

/// A peer that asks for connections and takes that back at once holds no more than its share of what rests, and others
/// get theirs.
#[test]
#[cfg_attr(miri, ignore = "two thousand connections")]
fn a_flood_of_cr_and_dr_leaves_connections_for_others() {
    let mut entity = Entity::new(Config { pending: 64, ..config() });
    for src_ref in 1..=1000 {
        entity.hear(OTHER, &Tpdu::Cr(Connect { src_ref, ..cr() }), &[]);
        entity.hear(OTHER, &Tpdu::Dr(DisconnectRequest { src_ref, ..dr(0) }), &[]);
    }
    let indicated = |entity: &mut Entity| {
        let told = entity.told.drain(..);
        told.filter(|it| matches!(it, Indication::Connect { .. })).count()
    };
    assert_eq!((indicated(&mut entity), entity.connections()), (32, 0));
    // Another peer's is indicated, and of this one's as many again when those have rested.
    entity.hear(Peer(1), &Tpdu::Cr(cr()), &[]);
    assert_eq!(indicated(&mut entity), 1);
    entity.run(2 * Times::default().l);
    (1..=1000).for_each(|src_ref| entity.hear(OTHER, &Tpdu::Cr(Connect { src_ref, ..cr() }), &[]));
    assert_eq!(indicated(&mut entity), 32);
}

/// A DT is sent for I before the connection is given up, by an end that goes on saying what it expects: what the
/// network below has not let go of yet was not sent. An ED may wait for a user that reads nothing.
#[test]
fn what_has_not_left_yet_is_no_attempt() {
    for is_expedited in [false, true] {
        let times = Times { i: 4 * SECOND, ..Times::default() };
        let mut entity = Entity::new(Config { times, ..config() });
        let (cep, ours) = entity.opened(OTHER, 4);
        entity.keeps = true;
        match is_expedited {
            false => entity.send(cep, b"data"),
            true => entity.send_expedited(cep, b"!"),
        }
        let is_sent = |it: &&String| it.starts_with(if is_expedited { "ED" } else { "DT" });
        let hears = |entity: &mut Entity, seconds: u32| {
            for _ in 0..seconds {
                entity.run(SECOND);
                entity.acknowledge(ours, 0, 4, None);
            }
            entity.said().iter().filter(is_sent).count()
        };
        assert_eq!(hears(&mut entity, 10), 1);
        assert!(entity.told.is_empty(), "{:?}", entity.told);
        entity.keeps = false;
        entity.complete(entity.lent.len());
        let sent = hears(&mut entity, 4);
        assert!(sent > 8 && entity.told.is_empty(), "{sent}, {:?}", entity.told);
        hears(&mut entity, 8);
        assert_eq!(entity.told.len(), usize::from(!is_expedited), "{:?}", entity.told);
        entity.run(5 * SECOND);
        assert!(matches!(entity.told[..], [Indication::Disconnect { .. }]), "{:?}", entity.told);
    }
}

/// A buffer that comes back says over which connection it was to go, and how far that has come.
#[test]
fn a_buffer_comes_back_with_its_connection_and_its_fate() {
    let mut entity = Entity::new(config());
    let (one, ours) = entity.opened(OTHER, 4);
    let (two, _) = entity.opened(Peer(1), 4);
    let fates = |entity: &mut Entity| std::mem::take(&mut entity.fates);
    (0..6).for_each(|_| entity.send(one, b"data"));
    entity.send(two, b"data");
    entity.acknowledge(ours, 3, 1, None);
    assert_eq!(fates(&mut entity), [(Some(one), Fate::Acknowledged); 3]);
    entity.send(one, &[0; 300]);
    entity.send(Cep(77), b"data");
    assert_eq!(fates(&mut entity), [one, Cep(77)].map(|it| (Some(it), Fate::Refused)));
    entity.request(Request::Disconnect { cep: one, reason: Reason::NORMAL });
    assert_eq!(fates(&mut entity), [(Some(one), Fate::Abandoned); 3]);
    // Lent below when it was acknowledged, or when the connection ended: it says so when it is back.
    let (three, ours) = entity.opened(Peer(2), 4);
    entity.keeps = true;
    (0..2).for_each(|_| entity.send(three, b"data"));
    let ak = Acknowledge {
        dst_ref: ours,
        number: 1,
        credit: 4,
        checksum: true,
        subsequence: None,
        confirmation: None,
        selective: None,
        marks: None,
    };
    entity.hear(Peer(2), &Tpdu::Ak(ak), &[]);
    entity.request(Request::Disconnect { cep: three, reason: Reason::NORMAL });
    assert_eq!(fates(&mut entity), []);
    entity.complete(2);
    assert_eq!(fates(&mut entity), [Fate::Acknowledged, Fate::Abandoned].map(|it| (Some(three), it)));

    // Class 2 retains nothing: the network says whether it has sent it.
    let mut entity = Entity::new(Config { class: Class::Two, checksum: false, ..config() });
    let (cep, _) = entity.opened(OTHER, 4);
    entity.keeps = true;
    (0..2).for_each(|_| entity.send(cep, b"data"));
    entity.complete_as(1, Fate::Sent);
    entity.complete_as(1, Fate::Refused);
    assert_eq!(fates(&mut entity), [Fate::Sent, Fate::Refused].map(|it| (Some(cep), it)));
}

/// If a connection does not get on, a bounded number of requests waits, and the user can see how many.
#[test]
fn what_waits_is_bounded_and_told() {
    let mut entity = Entity::new(Config { queue: 10, ..config() });
    let (cep, ours) = entity.opened(OTHER, 4);
    assert_eq!((entity.room(cep), entity.room(Cep(77))), (4, 0));
    (0..3).for_each(|_| entity.send(cep, b"data"));
    assert_eq!(entity.room(cep), 1);
    (0..20).for_each(|_| entity.send(cep, b"data"));
    // Three and one were sent, ten wait.
    assert_eq!((entity.room(cep), entity.fates.len()), (-10, 9));
    (0..20).for_each(|_| entity.send_expedited(cep, b"!"));
    // One of the expedited requests was sent.
    assert_eq!(entity.fates.len(), 9 + 9);
    assert!(entity.fates.iter().all(|it| *it == (Some(cep), Fate::Refused)));
    let ea = ExpeditedAcknowledge { dst_ref: ours, number: 0, checksum: true };
    entity.hear(OTHER, &Tpdu::Ea(ea), &[]);
    entity.send_expedited(cep, b"!");
    entity.acknowledge(ours, 4, 3, None);
    assert_eq!(entity.fates.iter().filter(|it| it.1 == Fate::Refused).count(), 18);
}

/// The credit of all connections together is no more than there are buffers for. A connection that got less gets more
/// when buffers are free again.
#[test]
fn credit_promises_no_more_than_there_are_buffers() {
    let mut entity = Entity::new(Config { receive: 16, ..config() });
    let ours = [0, 1, 2].map(|peer| entity.opened(Peer(peer), 4).1);
    // The AKs share out 14 buffers: 8 and 6, and none for the third connection.
    (0..4).for_each(|number| entity.data_comes(Peer(0), ours[0], number));
    entity.run(MS);
    assert_eq!(entity.said().last().unwrap(), "AK → 0x004d, expects 4, credit 4");
    (0..7).for_each(|number| entity.data_comes(Peer(1), ours[1], number));
    entity.data_comes(Peer(2), ours[2], 0);
    entity.run(MS);
    assert_eq!((entity.data.len(), entity.counters().data_outside_window), (10, 2));
    entity.said();
    // The third is the first whose turn it is.
    entity.read(1);
    assert_eq!(entity.peers(), [Peer(1)]);
    entity.read(1);
    assert_eq!(entity.peers(), [Peer(2)]);
    entity.data_comes(Peer(2), ours[2], 0);
    assert_eq!(entity.data.len(), 9);
    // Buffers that were promised to a connection that is gone go to others, except those that its user keeps.
    entity.hear(OTHER, &Tpdu::Dr(dr(ours[0])), &[]);
    entity.read(9);
    entity.run(2 * SECOND);
    entity.said();
    entity.data_comes(Peer(2), ours[2], 1);
    entity.run(MS);
    assert_eq!(entity.said(), ["AK → 0x004d, expects 2, credit 6"]);
}

/// A busy connection whose AKs go first takes no promise from one that waits for it.
#[test]
fn a_connection_that_waits_for_a_promise_gets_its_turn() {
    let mut entity = Entity::new(Config { receive: 8, credit: 7, ..config() });
    let busy = entity.opened(OTHER, 4).1;
    let waits = entity.opened(Peer(1), 4).1;
    entity.data_comes_and_is_read(OTHER, busy, 0);
    assert_eq!(entity.said_to(Peer(1)), ["AK → 0x004d, expects 0, credit 1"]);
    entity.data_comes(Peer(1), waits, 0);
    assert_eq!(entity.data.len(), 1);
}

/// Connections that come and go while there is nothing to promise leave nothing behind.
#[test]
#[cfg_attr(miri, ignore = "five hundred connections")]
fn connections_that_waited_for_promises_are_forgotten_at_their_end() {
    let mut entity = Entity::new(Config { receive: 8, ..config() });
    let ours = entity.opened(OTHER, 4).1;
    // Its user keeps all that may be promised.
    (0..7).for_each(|number| entity.data_comes(OTHER, ours, number));
    for _ in 0..500 {
        let (cep, ours) = entity.opened(OTHER, 4);
        entity.request(Request::Disconnect { cep, reason: Reason::NORMAL });
        entity.hear(OTHER, &Tpdu::Dc(DisconnectConfirm { dst_ref: ours, src_ref: THEIRS, checksum: true }), &[]);
    }
    assert_eq!(entity.connections(), 1);
    assert!(entity.short().len() < 50, "{}", entity.short());
}

/// What was promised to a connection that ends goes to those that wait for it, at once and to as many as it is for: in
/// class 2 nothing else would tell them.
#[test]
fn promises_of_a_connection_that_is_gone_go_to_those_that_wait() {
    let mut entity = Entity::new(Config { receive: 16, ..config() });
    let ours = [0, 1, 2, 3].map(|peer| entity.opened(Peer(peer), 4).1);
    // 14 buffers: 8 and 6, and none for the others, which say so.
    (0..2).for_each(|at| (0..4).for_each(|number| entity.data_comes(Peer(at as u32), ours[at], number)));
    (2..4).for_each(|at| entity.data_comes(Peer(at as u32), ours[at], 0));
    entity.run(MS);
    entity.said();
    // The first user keeps four; four more were promised.
    entity.hear(Peer(0), &Tpdu::Dr(dr(ours[0])), &[]);
    entity.run(MS);
    let said = entity.said();
    assert!(said.iter().any(|it| it.starts_with("AK") && it.ends_with("credit 4")), "{said:?}");
}

/// A connection over which nothing comes keeps one of the buffers that others wait for, and says so in order, until its
/// other end sends: X.224 §12.2.3.8 lets class 4 take credit back, and §10.2.4.2 does not let class 2.
#[test]
fn an_idle_connection_gives_back_what_others_wait_for() {
    let ak_of = |entity: &mut Entity, peer: u32| {
        let all = entity.said_to(Peer(peer));
        all.into_iter().rfind(|it| it.starts_with("AK")).unwrap_or_default()
    };
    let mut entity = Entity::new(Config { receive: 16, ..config() });
    let ours = [0, 1].map(|peer| entity.opened(Peer(peer), 4).1);
    entity.run(5 * SECOND / 2);
    // 14 buffers: 8, and 6 for one that would like 8. Both are idle, and nobody waits.
    assert_eq!(ak_of(&mut entity, 0), "AK → 0x004d, expects 0, credit 8");
    let third = entity.opened(Peer(2), 4).1;
    entity.data_comes(Peer(2), third, 0);
    assert_eq!(entity.data.len(), 0);
    entity.said();
    // The second gives five, and the first the rest.
    entity.run(2 * SECOND);
    assert_eq!(ak_of(&mut entity, 0), "AK → 0x004d, expects 0, credit 1, subsequence 1");
    entity.data_comes(Peer(2), third, 0);
    assert_eq!(entity.data.len(), 1);
    entity.read(1);
    // Sent before the AK had come there: not taken, but it shows that there is something to send.
    entity.said();
    entity.data_comes(Peer(0), ours[0], 3);
    let ak = ak_of(&mut entity, 0);
    assert!(ak.starts_with("AK → 0x004d, expects 0, credit ") && ak.ends_with(", subsequence 2"), "{ak}");
    entity.data_comes(Peer(0), ours[0], 0);
    entity.run(MS);
    let ak = ak_of(&mut entity, 0);
    assert!(ak.starts_with("AK → 0x004d, expects 1, credit ") && !ak.contains("subsequence"), "{ak}");

    let mut entity = Entity::new(Config { receive: 16, class: Class::Two, checksum: false, ..config() });
    let ours = [0, 1, 2].map(|peer| entity.opened(Peer(peer), 4).1);
    entity.run(3 * SECOND);
    entity.said();
    (0..8).for_each(|number| entity.data_comes(Peer(0), ours[0], number));
    assert_eq!(entity.data.len(), 8);
}

/// Nothing comes over a connection but AKs that close its window and open it again, which are confirmed each time: it
/// gives its buffers back as if it was silent.
#[test]
fn a_connection_that_only_confirms_gives_back_what_others_wait_for() {
    let mut entity = Entity::new(Config { receive: 8, credit: 7, ..config() });
    let (cep, ours) = entity.opened(OTHER, 1);
    entity.opened(Peer(1), 4);
    for number in 1..11 {
        entity.send(cep, b"data");
        entity.acknowledge(ours, number, 0, None);
        entity.run(300 * MS);
        entity.acknowledge(ours, number, 1, None);
    }
    assert_eq!(entity.said_to(Peer(1)).last().unwrap(), "AK → 0x004d, expects 0, credit 7");
}

/// More connections than there are buffers: an idle one keeps none that another waits for, and waits for its turn when
/// its other end sends.
#[test]
fn an_idle_connection_keeps_no_buffer_that_another_waits_for() {
    let mut entity = Entity::new(Config { receive: 2, credit: 1, ..config() });
    let ours = [0, 1, 2].map(|peer| {
        entity.run(10 * MS);
        entity.opened(Peer(peer), 4).1
    });
    entity.data_comes(Peer(2), ours[2], 0);
    assert_eq!(entity.said_to(Peer(2)), ["AK → 0x004d, expects 0, credit 0"]);
    entity.run(5 * SECOND / 2);
    assert_eq!(entity.said_to(Peer(2)).last().unwrap(), "AK → 0x004d, expects 0, credit 1");
    entity.data_comes(Peer(2), ours[2], 0);
    assert_eq!(entity.data.len(), 1);
    entity.said();
    // The first has given its buffer back, though not its credit.
    entity.data_comes(Peer(0), ours[0], 0);
    assert_eq!(entity.data.len(), 1);
    assert_eq!(entity.said_to(Peer(0)), ["AK → 0x004d, expects 0, credit 0, subsequence 1"]);
    entity.run(SECOND);
    assert_eq!(entity.said_to(Peer(0)).last().unwrap(), "AK → 0x004d, expects 0, credit 1, subsequence 2");
    entity.data_comes(Peer(0), ours[0], 0);
    assert_eq!(entity.data.len(), 2);
    assert_eq!(entity.said_to(Peer(0)), ["AK → 0x004d, expects 1, credit 0"]);
    // So has the second by now. It waited before those whose buffers are read, and so is before them.
    entity.data_comes(Peer(1), ours[1], 0);
    assert_eq!(entity.data.len(), 2);
    entity.read(2);
    entity.data_comes(Peer(1), ours[1], 0);
    assert_eq!(entity.data.len(), 1);
}

/// A connection whose turn has come takes a DT in the buffer that it was promised, also before an AK could say so.
#[test]
fn a_turn_that_was_not_told_yet_takes_a_dt() {
    let geometry = Geometry { frames: 256, frame_size: 512, headroom: 128 };
    let mut entity = Entity::over(Config { receive: 2, credit: 1, ..config() }, geometry, 1);
    let ours = [0, 1, 2].map(|peer| {
        entity.run(10 * MS);
        entity.opened(Peer(peer), 4).1
    });
    entity.data_comes(Peer(2), ours[2], 0);
    entity.run(5 * SECOND / 2);
    entity.data_comes(Peer(2), ours[2], 0);
    assert_eq!(entity.data.len(), 1);
    // The first has given its buffer back. It waits for one again when a DT comes that it had not the credit for.
    entity.data_comes(Peer(0), ours[0], 3);
    // What it says next finds no buffer to say it in.
    entity.keeps = true;
    entity.data_comes(Peer(1), ours[1], 0x7fff_ffff);
    assert_eq!(entity.lent.len(), 1);
    entity.read(1);
    entity.data_comes(Peer(0), ours[0], 0);
    assert_eq!(entity.data.len(), 1);
}

/// The other end says nothing of one connection: others to the same peer go on.
#[test]
fn a_silent_connection_keeps_no_other_from_sending() {
    for attempts_for in [20 * MS, SECOND] {
        let mut entity = Entity::new(config());
        let [(silent, _), (other, ours)] = [(); 2].map(|()| entity.opened(OTHER, 15));
        entity.send(silent, b"data");
        entity.run(attempts_for);
        entity.said();
        for number in 1..40 {
            entity.send(other, b"data");
            let said = entity.said();
            assert!(said.iter().any(|it| it.starts_with("DT")), "{number}: {said:?}");
            entity.acknowledge(ours, number, 15, None);
            entity.run(100_000);
            entity.said();
        }
    }
}

/// A network that has become too small for what was negotiated: the user is told at once, and the next connection has
/// what fits.
#[test]
fn a_network_that_takes_no_long_packets_any_more_is_told() {
    let mut entity = Entity::new(config());
    let (cep, _) = entity.opened(OTHER, 4);
    entity.keeps = true;
    (0..2).for_each(|_| entity.send(cep, &[7; 240]));
    entity.complete_as(2, Fate::Refused);
    assert!(matches!(entity.stalls[..], [Indication::Stalled { cep: it }] if it == cep), "{:?}", entity.stalls);
    assert_eq!(entity.counters().not_taken, 2);
    entity.keeps = false;
    entity.resize(200);
    entity.said();
    entity.connect(Peer(1), Details::default());
    let octets = entity.octets().pop().unwrap();
    let Ok((Tpdu::Cr(cr), _)) = Tpdu::parse(&octets, Format::Normal) else { panic!("{octets:?}") };
    assert_eq!(cr.parameters.preferred_size, Some(1));
}

/// After some 10 ms without an acknowledgement the user is told, once, and again when there is one: it may go another
/// way meanwhile.
#[test]
fn a_stall_is_told_at_once_and_so_is_its_end() {
    for keeps in [false, true] {
        let mut entity = Entity::new(config());
        let (cep, ours) = entity.opened(OTHER, 15);
        for number in 1..20 {
            entity.send(cep, b"data");
            entity.run(100_000);
            entity.acknowledge(ours, number, 15, None);
        }
        // Also where it is the link that does not let go of it.
        entity.keeps = keeps;
        (0..3).for_each(|_| entity.send(cep, b"data"));
        entity.run(9 * MS);
        assert!(entity.stalls.is_empty(), "{:?}", entity.stalls);
        entity.run(41 * MS);
        assert!(matches!(entity.stalls[..], [Indication::Stalled { cep: it }] if it == cep), "{:?}", entity.stalls);
        entity.run(5 * SECOND);
        assert_eq!(entity.stalls.len(), 1, "{:?}", entity.stalls);
        entity.acknowledge(ours, 20, 15, None);
        assert!(matches!(entity.stalls[1..], [Indication::Resumed { cep: it }] if it == cep), "{:?}", entity.stalls);
        entity.run(MS);
        assert_eq!(entity.stalls.len(), 2, "{:?}", entity.stalls);
    }
}

/// A cable that is out for less than I, after round trips that were as short as a local network's.
#[test]
fn silence_for_less_than_the_inactivity_time_ends_no_connection() {
    let mut entity = Entity::new(config());
    let (cep, ours) = entity.opened(OTHER, 15);
    for number in 1..20 {
        entity.send(cep, b"data");
        entity.run(10_000);
        entity.acknowledge(ours, number, 15, None);
    }
    entity.send(cep, b"data");
    entity.run(15 * SECOND);
    let sent = entity.said().iter().filter(|it| it.starts_with("DT")).count();
    assert!((100..1000).contains(&sent) && entity.told.is_empty(), "{sent}, {:?}", entity.told);
    entity.acknowledge(ours, 20, 15, None);
    entity.send(cep, b"data");
    assert!(entity.said().last().unwrap().starts_with("DT → 0x004d, number 20"));
    entity.run(17 * SECOND);
    assert!(matches!(entity.told[..], [Indication::Disconnect { .. }]), "{:?}", entity.told);
}
