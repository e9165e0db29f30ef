//! Runs over a grid of faults.

use crate::wire::Faults;
use crate::{Script, run};
use underpass_engine::transport::Config;
use underpass_engine::wire::tpdu::Class;

const US: u64 = 1000;

fn script(seed: u64, faults: Faults) -> Script {
    let lazy = if seed.is_multiple_of(3) { 20_000 * US } else { 0 };
    Script {
        seed,
        faults,
        config: Config::default(),
        tsdus: 60,
        longest: 20_000,
        lazy,
        expedited: 5,
        layers: 1,
        turns: false,
    }
}

/// 20 µs from end to end, 8 Gbit/s.
fn fast() -> Faults {
    Faults { delay: 20 * US, octet: 1, ..Faults::NONE }
}

#[test]
fn where_nothing_goes_wrong_nothing_is_sent_again() {
    let outcome = run(&script(1, fast()));
    assert_eq!(outcome.wrong, 0);
    assert!(outcome.counters.iter().all(|it| it.data_sent_again + it.given_up + it.no_buffer == 0), "{outcome:?}");
}

/// Every TSDU arrives once, in order and as it was, and the connection is released, whatever the wire does.
#[test]
fn every_fault() {
    let mut packets = 0;
    for seed in 0..28 {
        for lost in [0, 10, 100] {
            for repeated in [0, 50] {
                for changed in [0, 20] {
                    for late in [0, 100] {
                        let faults = Faults { lost, repeated, changed, late, late_by: 500 * US, ..fast() };
                        let config = Config {
                            extended: seed % 2 == 0,
                            credit: if seed % 4 < 2 { 64 } else { 8 },
                            selective: seed != 5,
                            ..Config::default()
                        };
                        let outcome = run(&Script { config, ..script(seed, faults) });
                        assert_eq!(outcome.wrong, 0, "{faults:?}");
                        packets += outcome.packets;
                    }
                }
            }
        }
    }
    assert!(packets > 1_000_000, "{packets} TPDUs");
}

/// The simulation sees what a checksum is for.
#[test]
fn without_a_checksum_corruption_gets_through() {
    let faults = Faults { changed: 100, changed_from: 40, ..fast() };
    for (checksum, gets_through) in [(false, true), (true, false)] {
        let config = Config { checksum, ..Config::default() };
        let outcome = run(&Script { config, ..script(1, faults) });
        assert_eq!(outcome.wrong > 0, gets_through, "checksum {checksum}: {outcome:?}");
    }
}

/// Class 2, over a network that loses nothing: nothing is retained, and no timer is needed.
#[test]
fn class_2_where_nothing_is_lost() {
    for seed in 0..6 {
        let config = Config { class: Class::Two, credit: [4, 64][seed as usize % 2], ..Config::default() };
        let faults = Faults { pause: 300 * US, pause_every: 1000 * US, ..fast() };
        let outcome = run(&Script { config, ..script(seed, faults) });
        assert_eq!(outcome.wrong, 0);
        assert!(outcome.counters.iter().all(|it| it.data_sent_again == 0), "{outcome:?}");
    }
}

/// Questions and answers: an AK goes with the answer rather than by itself, whatever gets lost.
#[test]
fn taking_turns() {
    for (lost, alone) in [(0, 50), (50, 1000)] {
        for class in [Class::Two, Class::Four] {
            for extended in [true, false] {
                if class == Class::Two && lost > 0 {
                    continue;
                }
                let config = Config { class, extended, ..Config::default() };
                // An answer takes longer than an AK is put off.
                let faults = Faults { lost, delay: 150 * US, ..fast() };
                let script =
                    Script { config, tsdus: 200, longest: 200, expedited: 0, turns: true, ..script(1, faults) };
                let outcome = run(&script);
                assert_eq!(outcome.wrong, 0);
                for it in outcome.counters {
                    let by_itself = it.acknowledges_sent - it.acknowledges_with_data;
                    assert!(by_itself * 1000 <= it.data_sent * alone, "{script:?}: {it:?}");
                }
            }
        }
    }
}

/// A queue that is short for what comes: what does not fit is lost, and the window shrinks to what does.
#[test]
fn a_short_queue() {
    for seed in 0..4 {
        let faults = Faults { queue: 20_000, octet: 8, ..fast() };
        let config = Config { credit: 100, ..Config::default() };
        let outcome = run(&Script { config, tsdus: 300, ..script(seed, faults) });
        assert_eq!(outcome.wrong, 0);
    }
}

/// Nothing arrives for longer than T1, again and again.
#[test]
fn pauses() {
    for seed in 0..4 {
        let faults = Faults { pause: 30_000 * US, pause_every: 70_000 * US, lost: 10, ..fast() };
        let outcome = run(&Script { tsdus: 200, ..script(seed, faults) });
        assert_eq!(outcome.wrong, 0);
    }
}

/// The same transport on itself: every layer mends what its own network does.
#[test]
fn layers_on_each_other() {
    for layers in 2..=4 {
        for seed in 0..6 {
            for lost in [0, 10, 50] {
                let faults =
                    Faults { lost, repeated: lost, changed: lost / 5, late: lost, late_by: 500 * US, ..fast() };
                let outcome = run(&Script { layers, ..script(seed, faults) });
                assert_eq!(outcome.wrong, 0, "{layers} layers, {faults:?}");
            }
        }
    }
}

/// A user that reads nothing for longer than T1 and N allow does not keep the acknowledgements of its own data out of
/// any layer.
#[test]
fn readers_that_pause_for_long() {
    for layers in 1..=3 {
        for seed in 0..4 {
            let script = Script { layers, lazy: 3_000_000 * US, ..script(seed, fast()) };
            assert_eq!(run(&script).wrong, 0, "{layers} layers");
        }
    }
}
