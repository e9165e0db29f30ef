//! Runs a parity program on the kernel and under Underpass and compares what it says, line by line.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::compiler::cc;
use crate::group::Group;
use crate::library::{self, Run};
use crate::mode::{self, Mode};

/// A scenario that takes longer hangs. At rest they take 3 s at most; the rest is for a busy host.
const LIMIT: Duration = Duration::from_secs(60);

/// How a program is compiled.
#[derive(Clone, Copy, Debug)]
pub enum Flavour {
    /// Compiled as most programs are.
    Plain,
    /// With the checked aliases of libc (`__recv_chk` and others).
    Fortified,
}

/// Scenarios that differ from kernel TCP today, and why: the list of what is left to do. Any way in which they fail is
/// accepted; a scenario that agrees in every mode must leave the list.
const KNOWN: &[(&str, &str)] = &[
    ("faults/read-only", "the copy to or from a bad buffer is this process's own: SIGSEGV, not the kernel's EFAULT"),
    ("pointers/gone", "memory that an earlier call found is taken to be there still: SIGSEGV, not the kernel's EFAULT"),
];

/// Known differences that come and go with timing, of a scenario or of a scenario in one setting: they may agree.
const UNSTEADY: &[(&str, &str)] = &[
    ("beside/garbage", "a close in the moment of a hand-over that comes to nothing may be told a reset"),
    ("ending/eager-epoll, cold", "killed before it took the doorbell of what it had read: the kernel resets"),
    ("ending/eager-poll, cold", "the same"),
    ("ending/eager-recv, cold", "the same"),
    ("nonblocking/full-threads", "on a busy machine the kernel finds room once more after its first window probe"),
    ("flags/held-back", "a ring holds nothing back; the kernel neither, on a machine so busy that its 200 ms are over"),
    (
        "pointers/executes-fast, brokered",
        "no process copies a stranger's socket: what is unread waits for a call of its sender's",
    ),
    ("pointers/passes-fast, brokered", "the same"),
    ("processes/exec-cat-unread", "a FIN sent before the exec: what is unread in the ring cannot follow it"),
    ("room/is-killed", "where the kill takes long, the waiting sender goes down meanwhile: the kernel has room"),
    ("threads/behind, dozing", "a receive that dozes heeds an SO_RCVTIMEO that another thread sets meanwhile"),
    ("threads/replaced", "the kernel ends a replaced socket before the receive that it woke has emptied the ring"),
];

/// Runs every scenario of `family`; fails with all differences.
pub fn check(family: &str, flavour: Flavour) {
    let program = compile(family, flavour);
    let modes: Vec<&Mode> = match flavour {
        Flavour::Plain => mode::tested().collect(),
        Flavour::Fortified => vec![&mode::MODES[1]],
    };
    let only = std::env::var("UNDERPASS_TEST_SCENARIO").ok();
    let mut report = String::new();
    for (scenario, stays_on_kernel) in scenarios(&program) {
        if only.as_ref().is_some_and(|only| *only != scenario) {
            continue;
        }
        let kernel = play(&program, &scenario, None);
        if !kernel.ends() {
            let _ =
                writeln!(report, "{family}/{scenario} does not even end on the kernel:\n{}", kernel.lines.join("\n"));
            continue;
        }
        let mut kernel = vec![kernel.lines];
        let name = format!("{family}/{scenario}");
        let known = KNOWN.iter().any(|(it, _)| *it == name);
        let mut agrees = true;
        for mode in &modes {
            let mut judge = || difference(&program, &scenario, mode, stays_on_kernel, &mut kernel);
            // When to go up is a policy: a scenario of few calls may be over before both ends have met.
            let is_slow = |it: &Option<Trouble>| it.as_ref().is_some_and(|it| it.text.starts_with(NOT_FAST));
            let mut judged = judge();
            for _ in 0..2 {
                judged = if is_slow(&judged) { judge() } else { judged };
            }
            let Some(trouble) = judged else { continue };
            agrees = false;
            let here = format!("{name}, {}", mode.name);
            if known || UNSTEADY.iter().any(|(it, _)| *it == name) {
                break;
            }
            if UNSTEADY.iter().any(|(it, _)| *it == here) {
                continue;
            }
            let _ = writeln!(report, "{here}: {}", trouble.text);
            let _ = writeln!(report, "  again: {}", again(&program, &scenario, mode));
            if trouble.hangs {
                break;
            }
        }
        if known && agrees && !library::is_kernel_only() && matches!(flavour, Flavour::Plain) {
            let _ = writeln!(report, "{name} agrees with the kernel now: take it off the list of known differences");
        }
    }
    assert!(report.is_empty(), "{report}");
}

const NOT_FAST: &str = "nothing went fast";

struct Trouble {
    text: String,
    hangs: bool,
}

/// `kernel`: what was said on kernel TCP. That may depend on timing too, beside heavy load: so where the library
/// differs, the kernel is asked once more.
fn difference(
    program: &Path,
    scenario: &str,
    mode: &Mode,
    stays_on_kernel: bool,
    kernel: &mut Vec<Vec<String>>,
) -> Option<Trouble> {
    let run = Run::new();
    let played = play(program, scenario, Some((&run, mode)));
    let mut text = String::new();
    if !kernel.contains(&played.lines) {
        kernel.extend(Some(play(program, scenario, None)).filter(Played::ends).map(|it| it.lines));
    }
    if !kernel.contains(&played.lines) {
        text = first_difference(&kernel[0], &played.lines);
    } else if mode.is_fast() && !stays_on_kernel && !library::is_kernel_only() && run.fast(None).bytes == 0 {
        text = format!("{NOT_FAST}\n{}", run.table());
    }
    if played.hangs {
        text = format!("HANGS. {text}{}", played.where_it_was);
    }
    (!text.is_empty()).then_some(Trouble { text, hangs: played.hangs })
}

struct Played {
    lines: Vec<String>,
    hangs: bool,
    where_it_was: String,
}

impl Played {
    /// Whether the scenario came to its end.
    fn ends(&self) -> bool {
        !self.hangs && self.lines.iter().any(|line| line == "A end")
    }
}

fn play(program: &Path, scenario: &str, under: Option<(&Run, &Mode)>) -> Played {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = Command::new(program);
    command.arg(scenario).current_dir(folder.path());
    match under {
        Some((run, mode)) => {
            run.accelerate(&mut command, mode.settings);
            command.env("PARITY_WARM", mode.warm.to_string());
        }
        None => library::plain(&mut command),
    }
    let mut group = Group::start(command, &folder.path().join("said"));
    let status = group.wait(LIMIT);
    let where_it_was = if status.is_none() { group.where_it_is() } else { String::new() };
    let said = group.said();
    drop(group);
    // The order of lines is given within a thread of the program only; its letter comes first.
    let mut lines: Vec<String> = said.lines().map(String::from).collect();
    lines.sort_by_key(|line| line.chars().next());
    if let Some(status) = status {
        lines.push(format!("{status}"));
    }
    Played { lines, hangs: status.is_none(), where_it_was }
}

/// The lines around the first that differs.
fn first_difference(kernel: &[String], under: &[String]) -> String {
    let at = kernel.iter().zip(under).take_while(|(a, b)| a == b).count();
    let mut text = String::from("differs\n");
    for line in &kernel[at.saturating_sub(2)..at] {
        let _ = writeln!(text, "    both:      {line}");
    }
    for (who, lines) in [("kernel:   ", kernel), ("underpass:", under)] {
        for line in lines.iter().skip(at).take(3) {
            let _ = writeln!(text, "    {who} {line}");
        }
    }
    text
}

/// The command line that repeats a run by hand.
fn again(program: &Path, scenario: &str, mode: &Mode) -> String {
    let mut words: Vec<String> = mode.settings.iter().map(|(name, value)| format!("{name}={value}")).collect();
    words.push(format!("PARITY_WARM={}", mode.warm));
    if !mode.settings.iter().any(|(name, _)| *name == "LD_PRELOAD") {
        words.push(format!("LD_PRELOAD={}", library::path().display()));
    }
    format!("{} {} {scenario}", words.join(" "), program.display())
}

/// Name of each scenario, and whether it has no connection that could go fast.
fn scenarios(program: &Path) -> Vec<(String, bool)> {
    let mut command = Command::new(program);
    library::plain(&mut command);
    let list = command.output().expect("the list of scenarios").stdout;
    let list = String::from_utf8(list).expect("names are ASCII");
    let entry = |line: &str| line.split_once(' ').map(|(name, path)| (name.to_owned(), path == "kernel"));
    list.lines().map(|line| entry(line).expect("a name and a path")).collect()
}

/// Compiles one program; it stays in the build folder, so that a failure can be repeated by hand.
pub fn compile(family: &str, flavour: Flavour) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("parity");
    let folder = library::target().join("parity");
    std::fs::create_dir_all(&folder).expect("a folder in the build folder");
    let (suffix, flags): (_, &[&str]) = match flavour {
        Flavour::Plain => ("", &["-O1"]),
        Flavour::Fortified => ("-fortified", &["-O2", "-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"]),
    };
    let program = folder.join(format!("{family}{suffix}"));
    if family == "processes" {
        // The program that it executes where the library cannot follow.
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/static-cat.c");
        cc(&folder.join("static-cat"), &["-O1", "-static"], &[source]);
    }
    cc(&program, flags, &[sources.join(format!("{family}.c")), sources.join("harness.c")]);
    program
}
