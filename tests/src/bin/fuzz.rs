//! Runs random programs of socket operations on the kernel and under Underpass, seed after seed, in every mode.
//!
//! A program that differs is made as short as it can be, printed, and saved among those that `make test` replays.

use anyhow::{Context, Result, bail};
use clap::Parser;
use comfy_table::Table;
use indicatif::{ProgressBar, ProgressStyle};
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use underpass_tests::fuzz::{self, Player};
use underpass_tests::library;
use underpass_tests::mode::{self, Mode};

/// How often a program that has differed is repeated, to see how often it does.
const REPEATS: u32 = 6;

#[derive(Parser)]
#[command(
    about = "Run random programs of socket operations on kernel TCP and under Underpass, and compare all that they say",
    after_help = "Example: fuzz --minutes 10 --seed 1000    Again: fuzz tests/fuzz/corpus/NAME"
)]
struct Options {
    /// Minutes after which no further program begins
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Lines of a program
    #[arg(long, default_value_t = 200)]
    lines: usize,
    /// Only this mode (default, "at once", asleep, "small ring")
    #[arg(long)]
    mode: Option<String>,
    /// Programs that run at the same time
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// Longest time to make one program short, in seconds
    #[arg(long, default_value_t = 120)]
    shrink: u64,
    /// How many programs that differ are made short and saved; of further ones only the seed is told
    #[arg(long, default_value_t = 10)]
    keep: u64,
    /// Where they are saved
    #[arg(long, default_value_os_t = fuzz::corpus())]
    corpus: PathBuf,
    /// Replay these programs instead
    files: Vec<PathBuf>,
}

/// One mode, and what came of it.
#[derive(Clone, Default)]
struct Row {
    programs: u64,
    operations: u64,
    connections: u64,
    fast: u64,
    unsteady: u64,
    failures: u64,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let modes: Vec<&Mode> = mode::all()
        .filter(|mode| mode.is_fast() && options.mode.as_ref().is_none_or(|only| only == mode.name))
        .collect();
    if modes.is_empty() || options.jobs == 0 {
        bail!("no such mode, or no job; see --help");
    }
    let folder = library::target().join("fuzz");
    fs::create_dir_all(&folder).with_context(|| format!("make the folder {}", folder.display()))?;
    let given = options.files.iter().map(|file| {
        let text = fs::read_to_string(file).with_context(|| format!("read the program {}", file.display()))?;
        Ok((file.display().to_string(), text))
    });
    let given: Vec<(String, String)> = given.collect::<Result<_>>()?;
    let fuzzer = Fuzzer {
        player: Player::new(&folder),
        bar: ProgressBar::new((options.minutes * 60.0) as u64),
        rows: Mutex::new(vec![Row::default(); modes.len()]),
        found: AtomicU64::new(0),
        folder,
        modes,
        options,
    };
    library::path();
    fuzzer.bar.set_style(ProgressStyle::with_template("{bar:30} {elapsed} of {len} s  {msg}")?);
    let begin = Instant::now();
    let next = AtomicU64::new(0);
    let work = || -> Result<()> {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if given.is_empty() {
                if begin.elapsed().as_secs_f64() > fuzzer.options.minutes * 60.0 {
                    return Ok(());
                }
                fuzzer.bar.set_position(begin.elapsed().as_secs());
                let seed = fuzzer.options.seed + number;
                fuzzer.bar.set_message(format!("seed {seed}"));
                fuzzer.run(&format!("seed-{seed}"), &fuzz::program(seed, fuzzer.options.lines))?;
            } else {
                let Some((name, text)) = given.get(number as usize) else { return Ok(()) };
                fuzzer.run(name, text)?;
            }
        }
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..fuzzer.options.jobs).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker"))
    })?;
    fuzzer.bar.finish_and_clear();
    Ok(if fuzzer.report() == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Fuzzer<'a> {
    options: Options,
    modes: Vec<&'a Mode>,
    player: Player,
    folder: PathBuf,
    bar: ProgressBar,
    rows: Mutex<Vec<Row>>,
    found: AtomicU64,
}

impl Fuzzer<'_> {
    /// Runs one program on the kernel and in every mode.
    fn run(&self, name: &str, text: &str) -> Result<()> {
        let kernel = self.player.play(text, None);
        for (at, mode) in self.modes.iter().enumerate() {
            let said = self.player.play(text, Some(mode));
            let difference = fuzz::difference(&kernel, &said);
            let steady = difference.is_none() || self.player.is_steady(text, &kernel);
            {
                let mut rows = self.rows.lock().expect("no worker panics");
                let row = &mut rows[at];
                row.programs += 1;
                row.operations += if difference.is_none() { said.operations } else { 0 };
                row.connections += said.connections;
                row.fast += said.fast.connections;
                row.unsteady += u64::from(!steady);
                row.failures += u64::from(steady && difference.is_some());
            }
            match difference {
                Some(difference) if steady => self.tell(name, text, mode, &difference)?,
                Some(difference) => self.say(&format!(
                    "{name}: the kernel does not say the same twice, so the program proves nothing\n{difference}"
                )),
                None => {}
            }
        }
        Ok(())
    }

    /// Tells of a program that differs, and saves it, made short.
    fn tell(&self, name: &str, text: &str, mode: &Mode, difference: &str) -> Result<()> {
        let again = (0..REPEATS).filter(|_| self.player.difference(text, mode, 1).is_some()).count() as u32;
        self.say(&format!("{name}, {}: differs, and again in {again} of {REPEATS} runs\n{difference}", mode.name));
        let name = format!("{name}-{}", mode.name.replace(' ', "-"));
        if !self.options.files.is_empty() || self.found.fetch_add(1, Ordering::Relaxed) >= self.options.keep {
            return Ok(());
        }
        if again == 0 {
            let file = self.folder.join(&name);
            fs::write(&file, text).with_context(|| format!("write {}", file.display()))?;
            self.say(&format!("  to be run many times: {}", self.player.again(&file, mode)));
            return Ok(());
        }
        let (tries, limit) = (REPEATS.div_ceil(again), Duration::from_secs(self.options.shrink));
        let short = self.player.shrink(text, mode, tries, limit);
        let how = self.player.difference(&short, mode, tries * 4).unwrap_or_default();
        let file = self.options.corpus.join(&name);
        fs::create_dir_all(&self.options.corpus).context("make the folder of the corpus")?;
        fs::write(&file, format!("# Found in the mode {}, as {name}.\n{short}", mode.name))
            .with_context(|| format!("write {}", file.display()))?;
        self.say(&format!("{short}{how}\n  again: {}", self.player.again(&file, mode)));
        Ok(())
    }

    fn say(&self, text: &str) {
        self.bar.suspend(|| println!("{text}"));
    }

    /// Prints the table; returns how many programs differed.
    fn report(&self) -> u64 {
        let rows = self.rows.lock().expect("no worker panics");
        let mut table = Table::new();
        table.load_style(comfy_table::presets::NOTHING);
        table.set_header(["Mode", "Programs", "Operations that agree", "Differ", "Unsteady", "Connections", "Fast"]);
        for (row, mode) in rows.iter().zip(&self.modes) {
            let fast =
                (row.fast * 100).checked_div(row.connections).map_or("-".into(), |percent| format!("{percent} %"));
            let numbers =
                [row.programs, row.operations, row.failures, row.unsteady, row.connections].map(|n| n.to_string());
            table.add_row([mode.name.into()].into_iter().chain(numbers).chain([fast]));
        }
        let sum = |of: fn(&Row) -> u64| rows.iter().map(of).sum::<u64>();
        println!(
            "{table}\n{} operations agree, {} programs differ",
            sum(|row| row.operations),
            sum(|row| row.failures)
        );
        sum(|row| row.failures)
    }
}
