//! How fast a transfer is and how it recovers, to be compared with what was committed: a change of behaviour shows.

use crate::wire::Faults;
use crate::{Script, run};
use std::fmt::Write;
use underpass_engine::transport::Config;
use underpass_engine::wire::tpdu::Class;

const US: u64 = 1000;
const COMMITTED: &str = include_str!("snapshot.txt");

/// 20 µs from end to end, 8 Gbit/s.
const WIRE: Faults = Faults { delay: 20 * US, octet: 1, ..Faults::NONE };

/// Both directions at a time, medians of five seeds.
fn line(name: &str, faults: Faults, config: Config, turns: bool) -> String {
    let longest = if turns { 200 } else { 20_000 };
    let script = Script { seed: 0, faults, config, tsdus: 200, longest, lazy: 0, expedited: 0, layers: 1, turns };
    let mut all: Vec<_> = (1..=5).map(|seed| run(&Script { seed, ..script.clone() })).collect();
    assert!(all.iter().all(|it| it.wrong == 0));
    all.sort_by_key(|it| it.took * 1_000_000 / it.octets);
    let median = &all[2];
    let sum = |what: fn(&underpass_engine::transport::Counters) -> u64| median.counters.iter().map(what).sum::<u64>();
    let (sent, again) = (sum(|it| it.data_sent), sum(|it| it.data_sent_again));
    format!(
        "{name:<28}{:>10}{:>12}{:>12}{:>12}{:>12}{:>12}\n",
        median.octets * 1000 / median.took,
        median.took / US,
        again * 1000 / sent,
        sum(|it| it.data_late) * 1000 / sent,
        sum(|it| it.acknowledges_sent) * 1000 / sent,
        median.packets * 1000 / sent
    )
}

#[test]
fn behaviour_is_as_committed() {
    let class_4 = Config::default();
    let mut text =
        format!("{:<28}{:>10}{:>12}{:>12}{:>12}{:>12}\n", "wire", "MB/s", "took, us", "again, ‰", "AKs, ‰", "NSDUs, ‰");
    let lines = [
        ("clean", WIRE, class_4),
        ("clean, class 2", WIRE, Config { class: Class::Two, ..class_4 }),
        ("clean, credit 8", WIRE, Config { credit: 8, ..class_4 }),
        ("clean, normal format", WIRE, Config { extended: false, ..class_4 }),
        ("1 % lost", Faults { lost: 10, ..WIRE }, class_4),
        ("1 % lost, no selection", Faults { lost: 10, ..WIRE }, Config { selective: false, ..class_4 }),
        ("10 % lost", Faults { lost: 100, ..WIRE }, class_4),
        ("5 % repeated", Faults { repeated: 50, ..WIRE }, class_4),
        ("2 % changed", Faults { changed: 20, ..WIRE }, class_4),
        ("10 % late by up to 0.5 ms", Faults { late: 100, late_by: 500 * US, ..WIRE }, class_4),
        ("10 % late by up to 20 us", Faults { late: 100, late_by: 20 * US, ..WIRE }, class_4),
        ("late by 0.5 ms, 1 % lost", Faults { lost: 10, late: 100, late_by: 500 * US, ..WIRE }, class_4),
        ("queue of 20 kB", Faults { queue: 20_000, octet: 8, ..WIRE }, class_4),
        ("pauses, 30 of 70 ms", Faults { pause: 30_000 * US, pause_every: 70_000 * US, ..WIRE }, class_4),
    ];
    for (name, faults, config) in lines {
        write!(text, "{}", line(name, faults, config, false)).unwrap();
    }
    for (name, faults) in [
        ("in turns", WIRE),
        ("in turns, 0.3 ms", Faults { delay: 150 * US, ..WIRE }),
        ("in turns, 1 % lost", Faults { lost: 10, ..WIRE }),
    ] {
        write!(text, "{}", line(name, faults, class_4, true)).unwrap();
    }
    if text != COMMITTED {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/simulation/snapshot.txt");
        if std::env::var_os("UNDERPASS_SNAPSHOT").is_some() {
            return std::fs::write(path, text).unwrap();
        }
        panic!(
            "committed:\n{COMMITTED}now:\n{text}If that is meant: UNDERPASS_SNAPSHOT=1 cargo test -p underpass-engine"
        );
    }
}
