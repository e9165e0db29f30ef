//! Runs the stress programs of `tests/soak` under Underpass for as long as one likes, seed after seed, in every mode.
//!
//! A stress program checks itself: it ends with 0 if every byte, event and end was right. All are run on the kernel as
//! well, without which a failure would say nothing.

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
use underpass_tests::broker;
use underpass_tests::compiler::cc;
use underpass_tests::container::Bridge;
use underpass_tests::group::Group;
use underpass_tests::library::{self, AT_ONCE, Run};
use underpass_tests::mode::{self, Mode};
use underpass_tests::stage::Stage;

/// What is run: a program of `tests/soak`, and the arguments behind the seed and the seconds.
const PROGRAMS: &[(&str, &[&str])] =
    &[("sets", &["both"]), ("sets", &["two"]), (PROCESSES, &[]), ("executions", &[]), (DEATHS, &[]), (HOSTILE, &[])];
/// What is run only where it is asked for by name: it wants minutes.
const LONG: &[(&str, &[&str])] = &[("churn", &[])];
/// The program whose last line says how many images could not go on with the library, and how many connections were
/// reset for that.
const PROCESSES: &str = "processes";
/// The program whose ends can be of two users and in two containers, and whose last line begins with how many
/// connections it had.
const DEATHS: &str = "deaths";
/// The program whose last line begins with how many words of shared memory it has overwritten.
const HOSTILE: &str = "hostile";
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
    /// Only this mode (kernel, default, "at once", asleep, "small ring", brokered, users, containers)
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
    /// The daemon that counts what meets, where the programs' own counters are other users'.
    daemon: Option<&'static str>,
    /// Images that could not go on with the library, connections that were reset for that, and those in whose place an
    /// image had another socket.
    unable: [u64; 3],
}

impl Row {
    fn mode(&self) -> &'static str {
        self.mode.map_or("kernel", |mode| mode.name)
    }

    fn command(&self, seed: u32, seconds: u32) -> Command {
        let mut command = Command::new(&self.program);
        command.args([seed.to_string(), seconds.to_string()]).args(self.arguments);
        command
    }

    /// Adds up what the last line of a run counts.
    fn count(&mut self, said: &str) {
        let numbers = said.lines().last().into_iter().flat_map(|line| line.split(' ').filter_map(|it| it.parse().ok()));
        match (self.name, numbers.collect::<Vec<u64>>().as_slice()) {
            (HOSTILE, [words, ..]) => self.overwritten += words,
            (DEATHS, [connections, ..]) if self.daemon.is_some() => self.connections += connections,
            (PROCESSES, [images, resets, .., replaced]) => {
                self.unable.iter_mut().zip([images, resets, replaced]).for_each(|(sum, it)| *sum += it);
            }
            _ => {}
        }
    }

    /// Runs the program once; what to show if it fails.
    fn run(&mut self, seed: u32, seconds: u32, logs: &Path) -> Result<Option<String>> {
        let run = Run::new();
        let met = || self.daemon.map_or(0, broker::meetings);
        let met_before = met();
        let mut command = self.command(seed, seconds);
        match self.mode {
            Some(mode) => run.accelerate(&mut command, mode.settings),
            None => library::plain(&mut command),
        }
        let log = logs.join([self.name, &self.arguments.concat(), self.mode(), &seed.to_string()].join("-"));
        let mut group = Group::start(command, &log);
        let status = group.wait(Duration::from_secs(seconds.into()) + PATIENCE);
        self.fast += met() - met_before;
        self.runs += 1;
        for process in run.processes().iter().filter(|_| self.daemon.is_none()) {
            self.connections += process.connections;
            self.fast += process.fast;
            let broken = process.reasons.iter().filter(|(reason, _)| *reason == Reason::PeerFault);
            self.broken += broken.map(|(_, connections)| connections).sum::<u64>();
        }
        let said = group.said();
        if status.is_some_and(|status| status.success()) {
            self.count(&said);
            fs::remove_file(&log).with_context(|| format!("remove {}", log.display()))?;
            return Ok(None);
        }
        self.failures += 1;
        let how = match status {
            None => format!("hangs\n{}", group.where_it_is()),
            Some(status) => format!("{status}\n"),
        };
        let mut words: Vec<String> = Vec::new();
        if let Some(mode) = self.mode {
            words.extend(mode.settings.iter().map(|(name, value)| format!("{name}={value}")));
            words.push(format!("LD_PRELOAD={}", library::path().display()));
        }
        words.push(format!("{} {seed} {seconds} {}", self.program.display(), self.arguments.join(" ")));
        let mut text = format!("{} {}, {}, seed {seed}: {how}", self.name, self.arguments.join(" "), self.mode());
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
    let apart = Apart::new(&options)?;
    let mut rows = rows(&options, &folder, &apart);
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
    drop(apart);
    let failures = report(&rows, seed - options.seed);
    Ok(if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Two users, and two containers, where this process may make them.
struct Apart {
    bridge: Option<(Bridge, Stage)>,
    modes: Vec<&'static Mode>,
    daemon: Option<&'static str>,
}

/// The two ends that [`DEATHS`] has.
const USERS: (&str, &str) = ("DEATHS_USERS", "61001:61002");

impl Apart {
    fn new(options: &Options) -> Result<Apart> {
        let mut apart = Apart { bridge: None, modes: Vec::new(), daemon: None };
        let is_wanted = |name: &str| options.mode.as_deref().is_none_or(|only| only == name);
        let is_played = options.program.as_deref().is_none_or(|only| only == DEATHS);
        if !is_played || !(is_wanted("users") || is_wanted("containers")) || !broker::is_root() {
            return Ok(apart);
        }
        let socket = broker::of_this_process();
        apart.daemon = Some(socket);
        let ends = [AT_ONCE, &[("UNDERPASS_BROKER", socket), USERS]].concat();
        let mode = |name, settings: Vec<(&'static str, &'static str)>| -> &'static Mode {
            Box::leak(Box::new(Mode { name, settings: settings.leak(), warm: 1000, meets: true }))
        };
        if is_wanted("users") {
            apart.modes.push(mode("users", ends.clone()));
        }
        if let Some(stage) = Stage::with(&["unshare", "nsenter", "ip"]).filter(|_| is_wanted("containers")) {
            let bridge = Bridge::new(&stage);
            let containers = bridge.deaths().map(|(name, value)| (name, &*value.leak()));
            apart.modes.push(mode("containers", [&ends[..], &containers].concat()));
            apart.bridge = Some((bridge, stage));
        }
        Ok(apart)
    }
}

fn rows(options: &Options, folder: &Path, apart: &Apart) -> Vec<Row> {
    let chosen = |given: &Option<String>, name: &str| given.as_ref().is_none_or(|given| given == name);
    let modes = || std::iter::once(None).chain(mode::all().filter(|mode| mode.is_fast()).map(Some));
    let mut rows = Vec::new();
    let long = LONG.iter().filter(|(name, _)| options.program.as_deref() == Some(name));
    for &(name, arguments) in PROGRAMS.iter().filter(|(name, _)| chosen(&options.program, name)).chain(long) {
        let program = folder.join(name);
        cc(&program, &["-O2"], &sources(name));
        if name == PROCESSES {
            link_statically(&folder.join("processes-static"), &sources(name));
        }
        let between = apart.modes.iter().filter(|_| name == DEATHS).map(|mode| (Some(*mode), apart.daemon));
        for (mode, daemon) in modes().map(|mode| (mode, None)).chain(between) {
            let program = program.clone();
            let (runs, failures, connections, fast, broken, overwritten, unable) = (0, 0, 0, 0, 0, 0, [0; 3]);
            let row = Row {
                name,
                arguments,
                mode,
                program,
                runs,
                failures,
                connections,
                fast,
                broken,
                overwritten,
                daemon,
                unable,
            };
            if chosen(&options.mode, row.mode()) {
                rows.push(row);
            }
        }
    }
    rows
}

/// Compiles the program without a loader, where there is a C library for that.
fn link_statically(program: &Path, sources: &[PathBuf]) {
    let aside = program.with_extension(std::process::id().to_string());
    let mut cc = Command::new("cc");
    cc.args(["-std=gnu17", "-D_GNU_SOURCE", "-pthread", "-O2", "-static", "-o"]).arg(&aside).args(sources);
    if cc.output().is_ok_and(|output| output.status.success()) && fs::rename(&aside, program).is_ok() {
        return;
    }
    println!("SKIPPED: static images, because cc links none");
    let _ = fs::remove_file(program);
}

/// `NAME.c`, and its parts in the folder NAME, if it has any.
fn sources(name: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("soak");
    let parts = fs::read_dir(folder.join(name)).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let parts = parts.filter(|path| path.extension().is_some_and(|extension| extension == "c"));
    std::iter::once(folder.join(format!("{name}.c"))).chain(parts).collect()
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
    let unable = |which: usize| rows.iter().map(|row| row.unable[which]).sum::<u64>();
    if unable(0) > 0 {
        let [images, resets, replaced] = [0, 1, 2].map(unable);
        println!(
            "{images} images could not go on with the library, {resets} connections reset for that, {replaced} replaced"
        );
    }
    let failures = rows.iter().map(|row| row.failures).sum();
    println!("{} passed, {failures} failed", rows.iter().map(|row| row.runs).sum::<u32>() - failures);
    failures
}
