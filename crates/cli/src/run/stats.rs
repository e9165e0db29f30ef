//! The statistics of `run --stats`: a table for people, JSON for programs.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use serde_json::{Value, json};
use underpass_lab::unit::{Unit, thousands};
use underpass_segment::stats::{ProcessStats, Region};

use super::RunError;
use super::inspect::Obstacle;
use super::supervise::End;
use crate::output::{plural, table};
use crate::sys;

/// Where the statistics go.
pub enum Sink {
    /// Standard error.
    Stderr,
    /// A file, opened before the program runs so that a mistake shows at once.
    File(File, PathBuf),
}

impl Sink {
    /// The file, or standard error without one.
    ///
    /// # Errors
    /// Those of open(2); ENXIO for a FIFO that nobody reads, because the program would not start before somebody does.
    pub fn open(path: Option<&Path>) -> io::Result<Sink> {
        let Some(path) = path else { return Ok(Sink::Stderr) };
        let wait_for_nobody = OFlags::NONBLOCK.bits().cast_signed();
        let file = File::options().write(true).create(true).truncate(true).custom_flags(wait_for_nobody).open(path)?;
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
        Ok(Sink::File(sys::clear_of_standard_streams(file)?, path.into()))
    }

    /// Writes the text.
    pub fn write(&mut self, text: &str) -> Result<(), RunError> {
        match self {
            Sink::Stderr => {
                // If that fails, there is no other place for the message.
                let _ = io::stderr().write_all(text.as_bytes());
                Ok(())
            }
            Sink::File(file, path) => {
                file.write_all(text.as_bytes()).map_err(|error| RunError::StatsFile { path: path.clone(), error })
            }
        }
    }
}

/// What the library has counted in a run.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// The processes that counted a connection.
    pub processes: Vec<ProcessStats>,
    /// Program starts that loaded the library and reached the counters.
    pub programs: u64,
    /// Processes that had a connection and found no room for their counters.
    pub uncounted: u64,
}

impl Counted {
    /// What the region holds now.
    pub fn read(region: &Region) -> Counted {
        Counted { processes: region.processes(), programs: region.programs(), uncounted: region.uncounted() }
    }
}

/// Why a program may be missing in the statistics; whether one is missing cannot be known.
pub const MISSING: &str = "\
Nothing is known of a program that loads no library (`underpass doctor PROGRAM` says why), or that cannot attach the
counters: as another user, in another IPC namespace (a container), with another version of the library, or where a
seccomp filter or a limit of its address space (ulimit -v) forbids it.
";

/// What is said of a program when it has ended. `obstacle` keeps it from loading the library.
pub fn text(program: &str, end: End, counted: &Counted, obstacle: Option<&Obstacle>) -> String {
    report(&format!("\nunderpass: {program} {}", ending(end)), counted, obstacle)
}

/// The table, with one row per process that had connections, and the reasons below.
pub fn report(heading: &str, counted: &Counted, obstacle: Option<&Obstacle>) -> String {
    let mut text = format!("{heading}\n");
    let busy: Vec<&ProcessStats> = counted.processes.iter().collect();
    if busy.is_empty() {
        return text
            + &match (counted.programs, obstacle) {
                (0, Some(obstacle)) => format!("It ran on kernel TCP because {obstacle}.\n"),
                (0, None) => {
                    format!("No program reached the counters, so nothing is known of its connections.\n{MISSING}")
                }
                (n, _) => {
                    let programs = plural(n, "program", "programs");
                    format!("No TCP connection in {programs} that reached the counters.\n{MISSING}")
                }
            };
    }
    let mut rows = vec![HEADINGS.map(String::from).to_vec()];
    rows.extend(busy.iter().map(|p| row(p.pid.to_string(), p.command.clone(), p)));
    if busy.len() > 1 {
        rows.push(row("all".into(), String::new(), &total(&busy)));
    }
    text += &table(&rows, &[2, 3, 4, 5, 6, 7, 8, 9, 10]);
    let reasons = reasons(&busy);
    if reasons.len() > 1 {
        text += &format!("\n{}", table(&reasons, &[2]));
    }
    if counted.uncounted > 0 {
        let more = plural(counted.uncounted, "more process", "more processes");
        text += &format!("\nNot counted, for want of room: {more} with connections.\n");
    }
    text
}

/// What the table says, and everything that it leaves out.
pub fn json(command: &[String], end: End, counted: &Counted) -> String {
    let mut value = to_json(counted);
    value["command"] = command.into();
    value["end"] = match end {
        End::Code(code) => json!({ "code": code }),
        End::Signal(signal) => json!({ "signal": signal }),
    };
    format!("{value:#}\n")
}

/// What was counted, for a script.
pub fn to_json(counted: &Counted) -> Value {
    let all = total(&counted.processes.iter().collect::<Vec<_>>());
    json!({
        "total": numbers(&all),
        "processes": counted.processes.iter().map(process).collect::<Vec<_>>(),
        "programs": counted.programs,
        "uncounted": counted.uncounted,
    })
}

const HEADINGS: [&str; 11] = [
    "PID",
    "COMMAND",
    "CONNECTIONS",
    "FAST",
    "SENT RING",
    "RECEIVED RING",
    "SENT KERNEL",
    "RECEIVED KERNEL",
    "DOORBELLS",
    "SLEEPS",
    "POLL SLEEPS",
];

/// One row per process and reason.
fn reasons(busy: &[&ProcessStats]) -> Vec<Vec<String>> {
    let heading = ["PID", "COMMAND", "CONNECTIONS", "REASON", ""].map(String::from).to_vec();
    let told = |p: &ProcessStats| p.reasons.iter().map(|(it, n)| (*n, it.key(), it.sentence())).collect::<Vec<_>>();
    let rows = busy.iter().flat_map(|p| {
        let untold = Some((untold(p), "-", UNTOLD)).filter(|&(n, ..)| n > 0);
        told(p).into_iter().chain(untold).map(move |row| (p, row))
    });
    let cells = rows.map(|(p, (connections, key, sentence))| {
        vec![p.pid.to_string(), p.command.clone(), thousands(connections), key.into(), sentence.into()]
    });
    [heading].into_iter().chain(cells).collect()
}

/// Why a connection is in no other column than CONNECTIONS.
const UNTOLD: &str = "Not known: the process was killed, or still has it.";

/// Connections of which the process has not told how they fared.
fn untold(p: &ProcessStats) -> u64 {
    let on_kernel: u64 = p.reasons.iter().map(|(_, connections)| connections).sum();
    p.connections.saturating_sub(p.fast + on_kernel)
}

fn row(pid: String, command: String, p: &ProcessStats) -> Vec<String> {
    let mut row = vec![pid, command, thousands(p.connections), thousands(p.fast)];
    row.extend([p.fast_sent, p.fast_received].map(|n| Unit::Bytes.show(n as f64)));
    row.extend([p.kernel_sent, p.kernel_received].map(|n| match on_kernel(p, n) {
        Some(n) if p.unfollowed > 0 => format!("≥ {}", Unit::Bytes.show(n as f64)),
        Some(n) => Unit::Bytes.show(n as f64),
        None => "-".into(),
    }));
    row.extend([p.bells, p.sleeps, p.poll_sleeps].map(thousands));
    row
}

/// Bytes on the kernel path; `None` if no connection is followed so far that they could be counted.
fn on_kernel(p: &ProcessStats, counted: u64) -> Option<u64> {
    (p.unfollowed == 0 || p.unfollowed < p.connections).then_some(counted)
}

/// How it ended, in words that follow its name.
pub fn ending(end: End) -> String {
    match end {
        End::Code(0) => "ended".into(),
        End::Code(code) => format!("ended with exit code {code}"),
        End::Signal(signal) => format!("was ended by signal {signal} ({})", sys::signal_words(signal)),
    }
}

fn process(p: &ProcessStats) -> Value {
    let reasons = p.reasons.iter().map(|(reason, connections)| {
        json!({ "reason": reason.key(), "sentence": reason.sentence(), "connections": connections })
    });
    let mut value = numbers(p);
    value["pid"] = p.pid.into();
    value["command"] = p.command.clone().into();
    value["reasons"] = reasons.collect();
    value["untold"] = untold(p).into();
    value
}

fn numbers(p: &ProcessStats) -> Value {
    let ring = json!({ "sent": p.fast_sent, "received": p.fast_received });
    json!({
        "connections": p.connections,
        "fast": p.fast,
        "bytes": {
            "ring": ring,
            // The key's old name, for scripts that were written before `ring`.
            "fast": ring,
            "kernel": { "sent": on_kernel(p, p.kernel_sent), "received": on_kernel(p, p.kernel_received) },
        },
        "doorbells": p.bells,
        "sleeps": p.sleeps,
        "poll_sleeps": p.poll_sleeps,
        "unfollowed": p.unfollowed,
    })
}

/// What several processes did together, without the reasons.
pub fn total(processes: &[&ProcessStats]) -> ProcessStats {
    let sum = |number: fn(&ProcessStats) -> u64| processes.iter().map(|p| number(p)).sum();
    ProcessStats {
        pid: 0,
        began: 0,
        command: String::new(),
        connections: sum(|p| p.connections),
        fast: sum(|p| p.fast),
        fast_sent: sum(|p| p.fast_sent),
        fast_received: sum(|p| p.fast_received),
        kernel_sent: sum(|p| p.kernel_sent),
        kernel_received: sum(|p| p.kernel_received),
        bells: sum(|p| p.bells),
        sleeps: sum(|p| p.sleeps),
        poll_sleeps: sum(|p| p.poll_sleeps),
        unfollowed: sum(|p| p.unfollowed),
        reasons: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use underpass_segment::reason::Reason;

    use super::*;

    fn process(pid: u32, connections: u64, fast: u64) -> ProcessStats {
        let reasons = if connections > fast { vec![(Reason::Remote, connections - fast)] } else { Vec::new() };
        let none = total(&[]);
        ProcessStats { pid, command: "worker".into(), connections, fast, fast_sent: 3 << 20, reasons, ..none }
    }

    fn counted(processes: &[ProcessStats]) -> Counted {
        Counted { processes: processes.to_vec(), ..Counted::default() }
    }

    #[test]
    fn busy_processes_have_a_row_each_and_a_sum() {
        let counted = Counted { uncounted: 2000, ..counted(&[process(7, 1200, 1199), process(8, 1, 1)]) };
        let text = text("server", End::Code(3), &counted, None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[1], "underpass: server ended with exit code 3");
        let words = |line: usize| lines[line].split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(3)[..6], ["7", "worker", "1,200", "1,199", "3.00", "MiB"]);
        assert_eq!(words(5)[..5], ["all", "1,201", "1,200", "6.00", "MiB"]);
        assert_eq!(words(8)[..4], ["7", "worker", "1", "remote"]);
        assert!(lines[8].ends_with(Reason::Remote.sentence()));
        assert_eq!(lines[10], "Not counted, for want of room: 2,000 more processes with connections.");
    }

    /// Whether a program that did not reach the counters had connections cannot be known.
    #[test]
    fn what_is_not_known_is_not_said_to_be_none() {
        let none = text("server", End::Signal(15), &counted(&[]), None);
        let said = "was ended by signal 15 (Terminated)\nNo program reached the counters, so nothing is known";
        assert!(none.contains(said) && none.ends_with(MISSING), "{none}");
        let quiet = Counted { programs: 2, ..counted(&[]) };
        let quiet = text("sh", End::Code(0), &quiet, None);
        assert!(quiet.contains("\nNo TCP connection in 2 programs that reached the counters.\n"), "{quiet}");
        assert!(quiet.ends_with(MISSING), "{quiet}");
        let other = text("hello", End::Code(0), &counted(&[]), Some(&Obstacle::Go));
        assert!(
            other.ends_with(
                "\nIt ran on kernel TCP because it is a Go program, and Go makes its system calls itself.\n"
            )
        );
    }

    #[test]
    fn uncounted_bytes_are_not_reported_as_none() {
        let off = ProcessStats { unfollowed: 2, fast_sent: 0, ..process(7, 2, 0) };
        let partly = ProcessStats { unfollowed: 1, kernel_sent: 2048, ..process(8, 2, 1) };
        let shown = text("server", End::Code(0), &counted(&[off.clone(), partly.clone()]), None);
        let words = |line: usize| shown.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
        assert_eq!(words(3)[4..], ["0", "B", "0", "B", "-", "-", "0", "0", "0"]);
        assert_eq!(words(4)[8..14], ["≥", "2.00", "KiB", "≥", "0", "B"]);
        let json = json(&["server".into()], End::Code(0), &counted(&[off, partly]));
        let value: Value = serde_json::from_str(&json).unwrap();
        assert_eq!(value["processes"][0]["bytes"]["kernel"]["sent"], Value::Null);
        assert_eq!(value["processes"][1]["bytes"]["kernel"]["sent"], 2048);
        assert_eq!(value["total"]["unfollowed"], 3);
    }

    #[test]
    fn connections_of_a_process_that_was_killed_are_not_said_to_be_on_the_kernel_path() {
        let killed = ProcessStats { reasons: vec![(Reason::Remote, 1)], ..process(7, 4, 1) };
        let shown = text("server", End::Signal(9), &counted(std::slice::from_ref(&killed)), None);
        let line = shown.lines().last().unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>()[..6], ["7", "worker", "2", "-", "Not", "known:"]);
        let value: Value =
            serde_json::from_str(&json(&["server".into()], End::Signal(9), &counted(&[killed]))).unwrap();
        assert_eq!(value["processes"][0]["untold"], 2);
    }

    #[test]
    fn json_has_sums_and_sentences() {
        let text = json(&["server".into()], End::Code(0), &Counted { programs: 3, ..counted(&[process(7, 2, 1)]) });
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&value["total"]["connections"], &value["programs"]), (&2.into(), &3.into()));
        let bytes = &value["processes"][0]["bytes"];
        assert_eq!((&bytes["ring"]["sent"], &bytes["fast"]), (&(3 << 20).into(), &bytes["ring"]));
        assert_eq!(value["processes"][0]["reasons"][0]["reason"], "remote");
        assert_eq!(value["end"]["code"], 0);
    }
}
