//! What was seen on each side, and whether it is the same.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek};
use std::time::Duration;

use regex::bytes::RegexSet;
use similar::TextDiff;
use underpass_segment::stats::ProcessStats;

use super::ignored;
use super::round::{Ending, Round};

/// Longer outputs are compared, but not shown side by side.
const SHOWN: u64 = 4 << 20;
/// How long may be looked for the shortest difference.
const PATIENCE: Duration = Duration::from_secs(2);

/// The standard streams that are compared.
pub const STREAMS: [&str; 2] = ["stdout", "stderr"];

/// All runs of one side. Of what is the same one is kept.
#[derive(Default)]
pub struct Side {
    /// Wall time of each run.
    pub times: Vec<Duration>,
    /// The ways in which it ended.
    pub endings: Vec<Ending>,
    /// What it wrote to each stream.
    pub outputs: [Vec<File>; 2],
    /// What all processes of all runs counted.
    pub processes: Vec<ProcessStats>,
    /// Program starts that reached the counters.
    pub programs: u64,
}

impl Side {
    /// Takes note of one run.
    pub fn add(&mut self, round: Round, ignore: &RegexSet) -> io::Result<()> {
        self.times.push(round.took);
        if !self.endings.contains(&round.ending) {
            self.endings.push(round.ending);
        }
        for (outputs, output) in self.outputs.iter_mut().zip(round.streams) {
            if !has(outputs, &output, ignore)? {
                outputs.push(output);
            }
        }
        self.processes.extend(round.counted.processes);
        self.programs += round.counted.programs;
        Ok(())
    }
}

/// What differs.
pub struct Outcome {
    /// The unified difference of each stream, or words instead of one; `None` if it is the same.
    pub streams: [Option<String>; 2],
    /// Whether it ended differently.
    pub ending: bool,
    /// Whether all runs on kernel TCP did the same.
    pub steady: bool,
}

impl Outcome {
    /// Whether nothing differs.
    pub fn is_same(&self) -> bool {
        self.streams.iter().all(Option::is_none) && !self.ending
    }
}

/// What the runs under Underpass did that none on kernel TCP did.
pub fn outcome(kernel: &Side, underpass: &Side, ignore: &RegexSet) -> io::Result<Outcome> {
    let mut streams = [None, None];
    for (index, difference) in streams.iter_mut().enumerate() {
        for output in &underpass.outputs[index] {
            if difference.is_none() && !has(&kernel.outputs[index], output, ignore)? {
                *difference = Some(shown(STREAMS[index], &kernel.outputs[index][0], output, ignore)?);
            }
        }
    }
    Ok(Outcome {
        streams,
        ending: underpass.endings.iter().any(|it| !kernel.endings.contains(it)),
        steady: kernel.endings.len() == 1 && kernel.outputs.iter().all(|outputs| outputs.len() == 1),
    })
}

fn has(outputs: &[File], output: &File, ignore: &RegexSet) -> io::Result<bool> {
    for it in outputs {
        if same(it, output, ignore)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn same(one: &File, other: &File, ignore: &RegexSet) -> io::Result<bool> {
    let (mut one, mut other) = (Lines::of(one, ignore)?, Lines::of(other, ignore)?);
    loop {
        match (one.next().transpose()?, other.next().transpose()?) {
            (None, None) => return Ok(true),
            (a, b) if a != b => return Ok(false),
            _ => {}
        }
    }
}

fn shown(stream: &str, kernel: &File, underpass: &File, ignore: &RegexSet) -> io::Result<String> {
    if kernel.metadata()?.len().max(underpass.metadata()?.len()) > SHOWN {
        return Ok(format!("{stream} differs, and is too long to be shown; let the program write it to a file\n"));
    }
    let text = |file| Lines::of(file, ignore)?.collect::<io::Result<Vec<_>>>().map(|lines| lines.concat());
    let (kernel, underpass) = (text(kernel)?, text(underpass)?);
    let difference = TextDiff::configure().timeout(PATIENCE).diff_lines(&kernel[..], &underpass[..]);
    let names = (format!("{stream} on kernel TCP"), format!("{stream} under Underpass"));
    Ok(difference.unified_diff().header(&names.0, &names.1).to_string())
}

/// The lines of a file but those that are ignored, each with its end.
struct Lines<'a> {
    reader: BufReader<&'a File>,
    ignore: &'a RegexSet,
}

impl<'a> Lines<'a> {
    fn of(mut file: &'a File, ignore: &'a RegexSet) -> io::Result<Lines<'a>> {
        file.rewind()?;
        Ok(Lines { reader: BufReader::new(file), ignore })
    }
}

impl Iterator for Lines<'_> {
    type Item = io::Result<Vec<u8>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let mut line = Vec::new();
            match self.reader.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) if ignored(self.ignore, &line) => {}
                Ok(_) => return Some(Ok(line)),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
