//! `underpass ss --stats`: what `underpass run --stats` says at the end of a program, as far as it is known now.

use std::fs;

use serde_json::{Value, json};
use underpass_segment::kernel;
use underpass_segment::stats::{ProcessStats, Region};
use underpass_segment::watch::{Seen, look};

use super::refused;
use crate::failure::Failure;
use crate::output::{print, printable};
use crate::run::stats::{self, Counted};
use crate::say;

/// Programs whose connections are counted together.
struct Run {
    /// The process that counts, if it still runs: the `underpass run` that has started the programs.
    pid: Option<u32>,
    /// Its command line.
    command_line: Vec<String>,
    counted: Counted,
}

/// Shows the statistics of all runs of this user.
///
/// # Errors
/// The kernel does not let the counters be looked at, or there is no standard output.
pub fn show(as_json: bool) -> Result<(), Failure> {
    let runs = gather()?;
    let shown = if as_json {
        format!("{:#}\n", json!({ "runs": runs.iter().map(to_json).collect::<Vec<_>>() }))
    } else if runs.is_empty() {
        let user = kernel::user_id();
        say(format_args!(
            "user {user} has no program under `underpass run --stats` here; look as the user that runs it"
        ));
        return Ok(());
    } else {
        runs.iter().map(to_text).collect::<Vec<_>>().join("\n")
    };
    Ok(print(shown)?)
}

fn gather() -> anyhow::Result<Vec<Run>> {
    let user = kernel::user_id();
    let regions = Region::all(user).map_err(|error| {
        anyhow::Error::from(error)
            .context("cannot attach the counters (shmat; is the address space limited, ulimit -v?)")
    })?;
    // Before the ends, whose counters a process takes away when it tells of them: what it tells meanwhile is missing
    // for once, and is not there twice.
    let counted: Vec<(Counted, u32)> = regions.iter().map(|(it, pid)| (Counted::read(it), *pid)).collect();
    let ends = look(user).map_err(refused)?;
    let lives = |it: &ProcessStats| match kernel::process(it.pid) {
        kernel::Process::Began(began) => it.began == 0 || it.began == began,
        kernel::Process::Gone | kernel::Process::Unknown => false,
    };
    let run = |(mut counted, pid): (Counted, u32)| {
        add_untold(&mut counted.processes, &ends, lives);
        let command_line = command_line(pid);
        Run { pid: command_line.as_ref().map(|_| pid), command_line: command_line.unwrap_or_default(), counted }
    };
    let mut runs: Vec<Run> = counted.into_iter().map(run).collect();
    runs.sort_by_key(|it| it.pid);
    Ok(runs)
}

/// Adds what the processes have not reported yet: the figures of the connections which they still have. If several
/// processes have a connection, the process that came last is taken for its user: a server's child, a shell's program.
fn add_untold(processes: &mut [ProcessStats], ends: &[Seen], lives: impl Fn(&ProcessStats) -> bool) {
    let living: Vec<bool> = processes.iter().map(lives).collect();
    for end in ends {
        let mut rows = processes.iter_mut().zip(&living).rev();
        let has_it = |row: &&mut ProcessStats| end.processes.contains(&row.pid);
        let Some(row) = rows.find_map(|(row, lives)| Some(row).filter(|_| *lives).filter(has_it)) else { continue };
        let (out, back) = (&end.sending, &end.receiving);
        let was_fast = [out, back].iter().any(|way| way.fast || way.ring_bytes > 0);
        row.fast = (row.fast + u64::from(was_fast)).min(row.connections);
        row.fast_sent += out.ring_bytes;
        row.fast_received += back.ring_bytes;
        row.kernel_sent += out.kernel_bytes;
        row.kernel_received += back.kernel_bytes;
        row.bells += end.bells;
        row.sleeps += end.sleeps;
    }
}

/// The command line of a process; `None` if there is none of this number.
fn command_line(pid: u32) -> Option<Vec<String>> {
    let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words = words.strip_suffix(b"\0").unwrap_or(&words).split(|&byte| byte == 0);
    Some(words.map(|word| String::from_utf8_lossy(word).into_owned()).collect())
}

fn to_text(run: &Run) -> String {
    let who = match run.pid {
        Some(pid) => format!("Process {pid} ({})", printable(&run.command_line.join(" "))),
        None => "A process that has ended".into(),
    };
    stats::report(&format!("{who}, so far:"), &run.counted, None)
}

fn to_json(run: &Run) -> Value {
    let mut value = stats::to_json(&run.counted);
    value["pid"] = run.pid.into();
    value["command_line"] = run.command_line.clone().into();
    value
}

#[cfg(test)]
mod tests {
    use underpass_segment::watch::Way;

    use super::super::example;
    use super::*;

    fn row(pid: u32, connections: u64) -> ProcessStats {
        ProcessStats { pid, connections, ..stats::total(&[]) }
    }

    /// One end, of which a process has reported nothing.
    fn end(processes: &[u32], ring_bytes: u64) -> Seen {
        let sending = Way { fast: ring_bytes > 0, ring_bytes, kernel_bytes: 5, position: 0 };
        let receiving = Way::default();
        Seen { processes: processes.to_vec(), sending, receiving, bells: 3, sleeps: 2, ..example::end(4, 0, None) }
    }

    #[test]
    fn what_live_connections_carry_counts_once_for_the_newest_process() {
        let mut rows = [row(7, 2), row(8, 1), row(9, 0)];
        let ends = [end(&[7, 8], 100), end(&[7], 0), end(&[6], 50), end(&[9], 20)];
        add_untold(&mut rows, &ends, |_| true);
        let told = rows.each_ref().map(|it| (it.fast, it.fast_sent, it.kernel_sent, it.bells, it.sleeps));
        assert_eq!(told, [(0, 0, 5, 3, 2), (1, 100, 5, 3, 2), (0, 20, 5, 3, 2)]);
        add_untold(&mut rows, &ends[..1], |it| it.pid != 8);
        assert_eq!((rows[0].fast_sent, rows[1].fast_sent), (100, 100), "one that is gone has nothing");
    }
}
