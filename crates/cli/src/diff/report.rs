//! What was found, for people and for programs.

use std::time::Duration;

use serde_json::{Value, json};
use underpass_lab::statistic::median;
use underpass_lab::unit::{Unit, digits, thousands};
use underpass_segment::stats::ProcessStats;

use super::compare::{Outcome, STREAMS, Side};
use super::round::Ending;
use crate::cli::DiffArguments;
use crate::output::{plural, printable, table};
use crate::run::stats::{ending, total};
use crate::run::supervise::End;

/// More lines of a difference are not shown on a terminal.
const LINES: usize = 200;

/// The table, what it proves, and the differences.
pub fn text(name: &str, arguments: &DiffArguments, kernel: &Side, underpass: &Side, outcome: &Outcome) -> String {
    let same = |is_same: bool| if is_same { "same" } else { "different" }.to_string();
    let mut rows = Vec::new();
    for (stream, difference) in STREAMS.iter().zip(&outcome.streams) {
        rows.push(vec![same(difference.is_none()), stream.to_string()]);
    }
    let ends = if outcome.ending {
        format!("{} on kernel TCP; {} under Underpass", endings(kernel), endings(underpass))
    } else {
        endings(underpass)
    };
    rows.push(vec![same(!outcome.ending), "end".into(), ends]);
    let (ours, its) = (seconds(underpass), seconds(kernel));
    let show = |seconds: f64| Unit::Nanoseconds.show(seconds * 1e9);
    let times = format!("{} on kernel TCP, {} under Underpass: {}×", show(its), show(ours), digits(its / ours));
    rows.push(vec!["".into(), "time".into(), times]);
    let sum = sum(underpass);
    let fast = format!(
        "{} of {}, {} sent through shared memory",
        thousands(sum.fast),
        plural(sum.connections, "connection", "connections"),
        Unit::Bytes.show(sum.fast_sent as f64)
    );
    rows.push(vec!["".into(), "fast".into(), fast]);
    let verdict = if outcome.is_same() { "the same on both" } else { "different" };
    let rounds = plural(arguments.rounds.into(), "round", "rounds");
    let mut text =
        format!("{}: {verdict} (kernel TCP and Underpass, {rounds})\n{}", printable(name), table(&rows, &[]));
    for note in notes(arguments, underpass, outcome) {
        text += &format!("\n{note}\n");
    }
    for difference in outcome.streams.iter().flatten() {
        text.push('\n');
        for line in difference.lines().take(LINES) {
            text += &line.split('\t').map(printable).collect::<Vec<_>>().join("\t");
            text.push('\n');
        }
        let more = difference.lines().count().saturating_sub(LINES);
        if more > 0 {
            text += &format!("… and {}; --json has all\n", plural(more as u64, "more line", "more lines"));
        }
    }
    text
}

/// What the text says, and everything that it leaves out.
pub fn json(
    command: &[String],
    arguments: &DiffArguments,
    kernel: &Side,
    underpass: &Side,
    outcome: &Outcome,
) -> String {
    let side = |side: &Side| {
        let ends: Vec<Value> = side.endings.iter().map(|&it| end(it)).collect();
        let times: Vec<f64> = side.times.iter().map(Duration::as_secs_f64).collect();
        json!({ "ends": ends, "seconds": times, "median_seconds": seconds(side) })
    };
    let sum = sum(underpass);
    let mut ours = side(underpass);
    ours["connections"] = sum.connections.into();
    ours["fast"] = sum.fast.into();
    // The second is its name in scripts that were written before.
    ours["ring_bytes_sent"] = sum.fast_sent.into();
    ours["fast_bytes_sent"] = sum.fast_sent.into();
    let streams = STREAMS.iter().zip(&outcome.streams);
    let differences: serde_json::Map<String, Value> =
        streams.filter_map(|(name, text)| Some((name.to_string(), text.as_ref()?.as_str().into()))).collect();
    let value = json!({
        "command": command,
        "rounds": arguments.rounds,
        "same": outcome.is_same(),
        "same_end": !outcome.ending,
        "differences": differences,
        "steady_on_kernel": outcome.steady,
        "went_fast": sum.fast > 0,
        "kernel": side(kernel),
        "underpass": ours,
        "ratio": seconds(kernel) / seconds(underpass),
        "notes": notes(arguments, underpass, outcome),
    });
    format!("{value:#}\n")
}

/// What is to be known before anything is concluded, and what to do.
fn notes(arguments: &DiffArguments, underpass: &Side, outcome: &Outcome) -> Vec<String> {
    let mut notes = Vec::new();
    let sum = sum(underpass);
    if sum.fast == 0 {
        let remedy = match (underpass.programs, sum.connections) {
            (0, _) => "no program loaded the library and reached the counters: `underpass doctor` says why",
            (_, 0) => "no program that loaded the library had a TCP connection: let it be one that makes some",
            _ if arguments.program.at_once => "`underpass run --stats` says why",
            _ => "--at-once lets short connections go fast too, and `underpass run --stats` says why others did not",
        };
        notes.push(format!("Nothing went fast, so this proves nothing about Underpass; {remedy}."));
    }
    if !outcome.is_same() && !outcome.steady {
        notes.push(
            "On kernel TCP alone it differs from run to run as well: --ignore REGEX leaves lines out that do by \
             nature, and more --rounds show more of what is usual."
                .into(),
        );
    }
    notes
}

fn endings(side: &Side) -> String {
    let words = side.endings.iter().map(|it| match it {
        Ending::Itself(End::Code(0)) => "ended with exit code 0".into(),
        Ending::Itself(end) => ending(*end),
        Ending::TimedOut | Ending::Interrupted(_) => "did not end in time".into(),
    });
    words.collect::<Vec<_>>().join(", or ")
}

fn end(ending: Ending) -> Value {
    match ending {
        Ending::Itself(End::Code(code)) => json!({ "code": code }),
        Ending::Itself(End::Signal(signal)) => json!({ "signal": signal }),
        Ending::TimedOut | Ending::Interrupted(_) => json!({ "timed_out": true }),
    }
}

fn seconds(side: &Side) -> f64 {
    median(&side.times.iter().map(Duration::as_secs_f64).collect::<Vec<_>>()).unwrap_or_default()
}

fn sum(side: &Side) -> ProcessStats {
    total(&side.processes.iter().collect::<Vec<_>>())
}
