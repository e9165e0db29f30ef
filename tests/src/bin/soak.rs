//! Runs the stress programs of `tests/soak` under Underpass for as long as one likes, seed after seed, in every mode.
//!
//! A stress program checks itself: it ends with 0 if every byte, event and end was right. The fuzzer says what every call
//! returned, which must be what it says on the kernel. All are run on the kernel as well, without which a failure would say
//! nothing.

use anyhow::{Context, Result, bail};
use clap::Parser;
use comfy_table::Table;
use indicatif::{ProgressBar, ProgressStyle};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};
use underpass_segment::reason::Reason;
use underpass_tests::compiler::cc;
use underpass_tests::group::Group;
use underpass_tests::library::{self, Run};
use underpass_tests::mode::{MODES, Mode};

/// What is run: a program of `tests/soak`, and the arguments behind the seed and the seconds.
const PROGRAMS: &[(&str, &[&str])] =
    &[("sets", &["both"]), ("sets", &["two"]), ("processes", &[]), ("deaths", &[]), (HOSTILE, &[]), (FUZZER, &[])];
/// What is run only where it is asked for by name: it wants minutes.
const LONG: &[(&str, &[&str])] = &[("churn", &[])];
/// The program whose last line begins with how many words of shared memory it has overwritten.
const HOSTILE: &str = "hostile";
/// The program whose output has to be the kernel's. Its second argument is a number of steps.
const FUZZER: &str = "fuzz";
const STEPS: u32 = 150;
/// A program that goes on for so much longer than it was told to hangs.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Parser)]
#[command(about = "Run the stress programs of tests/soak seed after seed, in every mode")]
struct Options {
    /// Minutes after which no further run begins
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Seconds of each run
    #[arg(long, default_value_t = 8)]
    seconds: u32,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u32,
    /// Only this program
    #[arg(long)]
    program: Option<String>,
    /// Only this mode (kernel, default, "at once", asleep, "small ring")
    #[arg(long)]
    mode: Option<String>,
}

/// One program in one mode, and what came of it.
struct Row {
    name: &'static str,
    arguments: &'static [&'static str],
    /// `None`: kernel TCP.
    mode: Option<&'static Mode>,
    program: PathBuf,
    runs: u32,
    failures: u32,
    connections: u64,
    fast: u64,
    /// Connections that were ended because the other end broke the rules.
    broken: u64,
    overwritten: u64,
}

impl Row {
    fn mode(&self) -> &'static str {
        self.mode.map_or("kernel", |mode| mode.name)
    }

    fn command(&self, seed: u32, seconds: u32) -> Command {
        let mut command = Command::new(&self.program);
        let amount = if self.name == FUZZER { STEPS } else { seconds };
        command.args([seed.to_string(), amount.to_string()]).args(self.arguments);
        command
    }

    /// Where the fuzzer's output on the kernel, which it must say in this mode too, differs from `said`.
    fn difference(&self, seed: u32, said: &str) -> Result<Option<String>> {
        if self.name != FUZZER {
            return Ok(None);
        }
        let mut command = self.command(seed, STEPS);
        library::plain(&mut command);
        let output = command.output().with_context(|| format!("run {}", self.program.display()))?.stdout;
        let kernel = String::from_utf8_lossy(&output).into_owned();
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let (kernel, said) = (lines(&kernel), lines(said));
        let at = kernel.iter().zip(&said).take_while(|(a, b)| agrees(a, b)).count();
        let line = |lines: &[String]| lines.get(at).cloned().unwrap_or("(nothing)".into());
        Ok((at < kernel.len().max(said.len()))
            .then(|| format!("differs\n    kernel:    {}\n    underpass: {}", line(&kernel), line(&said))))
    }

    /// Runs the program once; what to show if it fails.
    fn run(&mut self, seed: u32, seconds: u32, logs: &Path) -> Result<Option<String>> {
        let run = Run::new();
        let mut command = self.command(seed, seconds);
        match self.mode {
            Some(mode) => run.accelerate(&mut command, mode.settings),
            None => library::plain(&mut command),
        }
        let log = logs.join([self.name, &self.arguments.concat(), self.mode(), &seed.to_string()].join("-"));
        let mut group = Group::start(command, &log);
        let status = group.wait(Duration::from_secs(seconds.into()) + PATIENCE);
        self.runs += 1;
        for process in run.processes() {
            self.connections += process.connections;
            self.fast += process.fast;
            let broken = process.reasons.iter().filter(|(reason, _)| *reason == Reason::PeerFault);
            self.broken += broken.map(|(_, connections)| connections).sum::<u64>();
        }
        if self.name == HOSTILE {
            let words = group.said().lines().last().and_then(|line| line.split(' ').next()?.parse::<u64>().ok());
            self.overwritten += words.unwrap_or(0);
        }
        let difference = self.difference(seed, &group.said())?;
        if status.is_some_and(|status| status.success()) && difference.is_none() {
            fs::remove_file(&log).with_context(|| format!("remove {}", log.display()))?;
            return Ok(None);
        }
        self.failures += 1;
        let how = match (status, difference) {
            (None, _) => format!("hangs\n{}", group.where_it_is()),
            (Some(_), Some(difference)) => difference + "\n",
            (Some(status), None) => format!("{status}\n"),
        };
        let mut words: Vec<String> = Vec::new();
        if let Some(mode) = self.mode {
            words.extend(mode.settings.iter().map(|(name, value)| format!("{name}={value}")));
            words.push(format!("LD_PRELOAD={}", library::path().display()));
        }
        let amount = if self.name == FUZZER { STEPS } else { seconds };
        words.push(format!("{} {seed} {amount} {}", self.program.display(), self.arguments.join(" ")));
        let mut text = format!("{} {}, {}, seed {seed}: {how}", self.name, self.arguments.join(" "), self.mode());
        let said = group.said();
        let lines: Vec<&str> = said.lines().collect();
        for line in &lines[lines.len().saturating_sub(20)..] {
            writeln!(text, "    {line}")?;
        }
        write!(text, "  again: {}\n  all it said: {}", words.join(" "), log.display())?;
        Ok(Some(text))
    }
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let folder = library::target().join("soak");
    fs::create_dir_all(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
    let mut rows = rows(&options, &folder);
    if rows.is_empty() {
        bail!("no such program or mode; see --help");
    }
    library::path();
    let bar = ProgressBar::new((options.minutes * 60.0) as u64);
    bar.set_style(ProgressStyle::with_template("{bar:30} {elapsed} of {len} s  {msg}")?);
    let begin = Instant::now();
    let mut seed = options.seed;
    'all: loop {
        for row in &mut rows {
            if begin.elapsed().as_secs_f64() > options.minutes * 60.0 {
                break 'all;
            }
            bar.set_position(begin.elapsed().as_secs());
            bar.set_message(format!("{} {}, {}, seed {seed}", row.name, row.arguments.join(" "), row.mode()));
            if let Some(failure) = row.run(seed, options.seconds, &folder)? {
                bar.suspend(|| println!("{failure}"));
            }
        }
        seed += 1;
    }
    bar.finish_and_clear();
    let failures = report(&rows, seed - options.seed);
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn rows(options: &Options, folder: &Path) -> Vec<Row> {
    let chosen = |given: &Option<String>, name: &str| given.as_ref().is_none_or(|given| given == name);
    let modes = || std::iter::once(None).chain(MODES.iter().filter(|mode| mode.warm).map(Some));
    let mut rows = Vec::new();
    let long = LONG.iter().filter(|(name, _)| options.program.as_deref() == Some(name));
    for &(name, arguments) in PROGRAMS.iter().filter(|(name, _)| chosen(&options.program, name)).chain(long) {
        let program = folder.join(name);
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("soak").join(format!("{name}.c"));
        cc(&program, &["-O2"], &[source]);
        for mode in modes() {
            let program = program.clone();
            let (runs, failures, connections, fast, broken, overwritten) = (0, 0, 0, 0, 0, 0);
            let row = Row { name, arguments, mode, program, runs, failures, connections, fast, broken, overwritten };
            if chosen(&options.mode, row.mode()) {
                rows.push(row);
            }
        }
    }
    rows
}

/// Whether the fuzzer may say `said` where it says `kernel` on the kernel. A further edge does no harm, but none may be
/// missing; of room (`o`) the kernel tells with every edge, and whoever was not refused does not wait for it.
fn agrees(kernel: &str, said: &str) -> bool {
    let others = |line: &str| line.split(' ').filter(|word| !word.contains('~')).collect::<Vec<_>>().join(" ");
    let told = |id: &str, bit: char| edges(said).any(|(it, bits)| it == id && bits.contains(bit));
    others(kernel) == others(said)
        && edges(kernel).all(|(id, bits)| bits.chars().all(|bit| bit == 'o' || told(id, bit)))
}

/// The edge-triggered registrations of which a line tells, and the bits of each.
fn edges(line: &str) -> impl Iterator<Item = (&str, &str)> {
    line.split(' ').filter_map(|word| word.split_once('~'))
}

/// Prints the table; returns how many runs failed.
fn report(rows: &[Row], seeds: u32) -> u32 {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::NOTHING);
    table.set_header(["Program", "Mode", "Runs", "Failed", "Connections", "Fast"]);
    for row in rows {
        let fast = (row.fast * 100).checked_div(row.connections).map_or("-".into(), |percent| format!("{percent} %"));
        let name = format!("{} {}", row.name, row.arguments.join(" "));
        let numbers = [row.runs.to_string(), row.failures.to_string(), row.connections.to_string(), fast];
        table.add_row([name, row.mode().into()].into_iter().chain(numbers));
    }
    println!("{table}\n{seeds} whole rounds");
    let (broken, overwritten) = rows.iter().fold((0, 0), |sum, row| (sum.0 + row.broken, sum.1 + row.overwritten));
    if overwritten > 0 {
        println!("{overwritten} words of shared memory overwritten by liars, {broken} connections ended for that");
    }
    let failures = rows.iter().map(|row| row.failures).sum();
    println!("{} passed, {failures} failed", rows.iter().map(|row| row.runs).sum::<u32>() - failures);
    failures
}
