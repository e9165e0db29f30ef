//! The parity fuzzer: random programs of socket operations, which must say under Underpass what they say on the kernel.
//!
//! `tests/fuzz/play.c` carries a program out, and says what there is to write in one. Here programs are made from
//! seeds, both runs are compared, and a program that differs is made as short as it can be while it still does.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::compiler::cc;
use crate::group::Group;
use crate::library::{self, Fast, Run};
use crate::mode::Mode;

/// A program that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes a program of so many lines. The same seed makes the same program.
pub fn program(seed: u64, lines: usize) -> String {
    let rng = Rng::with_seed(seed);
    let mut maker = Maker { connections: 1 + rng.clone().u32(0..3), pins: false, rng };
    maker.pins = maker.one_in(4);
    let mut text = String::new();
    for slot in 0..maker.connections {
        let _ = writeln!(text, "{}", maker.connect(slot));
    }
    for _ in 0..lines {
        let _ = writeln!(text, "{}", maker.line());
    }
    text
}

/// Chooses the lines of one program.
struct Maker {
    rng: Rng,
    connections: u32,
    /// Whether it does what keeps a connection on the kernel path for good.
    pins: bool,
}

impl Maker {
    fn one_in(&mut self, n: u32) -> bool {
        self.rng.u32(0..n) == 0
    }

    fn pick(&mut self, from: &[&str]) -> String {
        from[self.rng.usize(0..from.len())].to_owned()
    }

    /// ` key=1` once in `n` times.
    fn flag(&mut self, key: &str, n: u32) -> String {
        if self.one_in(n) { format!(" {key}=1") } else { String::new() }
    }

    /// Some of the words, each once in so many times.
    fn flags(&mut self, from: &[(&str, u32)]) -> String {
        let chosen: Vec<&str> = from.iter().filter(|(_, n)| self.one_in(*n)).map(|(name, _)| *name).collect();
        if chosen.is_empty() { String::new() } else { format!(" flags={}", chosen.join(",")) }
    }

    fn length(&mut self) -> u32 {
        match self.rng.u32(0..10) {
            0 => self.rng.u32(0..3),
            1..=3 => self.rng.u32(1..17),
            4 | 5 => self.rng.u32(1..301),
            6 | 7 => self.rng.u32(1..4097),
            8 => [63, 64, 65, 127, 128, 4095, 4096, 4097, 8192][self.rng.usize(0..9)],
            _ => self.rng.u32(1..20001),
        }
    }

    fn via(&mut self) -> String {
        if self.one_in(10) { " via=".to_owned() + &self.pick(&["thread", "child"]) } else { String::new() }
    }

    fn events(&mut self) -> String {
        let mut text = String::from(" events=");
        for (letter, percent) in [('i', 85), ('o', 60), ('r', 40), ('p', 20)] {
            if self.rng.u32(0..100) < percent {
                text.push(letter);
            }
        }
        if self.one_in(12) {
            text.push_str("IO");
        }
        text
    }

    fn connect(&mut self, slot: u32) -> String {
        let side = self.pick(&["A", "B"]);
        let nodelay = if self.one_in(12) { " nodelay=0" } else { "" };
        format!("{side}{slot} connect{nodelay}{}", self.flag("nonblock", 2))
    }

    fn bulk(&mut self) -> String {
        let before = self.one_in(2);
        // If more is sent before a read than a small ring holds, the direction goes down to the kernel path, and up
        // again.
        let length = match (before, self.rng.u32(0..4)) {
            (true, 0..=2) => self.rng.u32(60_000..150_000),
            (false, 0) => self.rng.u32(1..=1 << 20),
            _ => self.rng.u32(1..100_000),
        };
        let (piece, take) =
            (self.pick(&["0", "15000", "65536", "1048576"]), self.pick(&["0", "15000", "65536", "1048576"]));
        let flags = self.flag("dontwait", 2) + &self.flag("waitall", 2);
        format!("bulk len={length} piece={piece} take={take}{flags}{}", if before { " before=1" } else { "" })
    }

    fn line(&mut self) -> String {
        let (side, slot) = (self.pick(&["A", "B", "A", "B", "a", "b"]), self.rng.u32(0..self.connections));
        let fd = self.rng.u32(0..4);
        let fd = if fd == 0 { String::new() } else { format!(" fd={}", fd - 1) };
        let what = match self.rng.u32(0..1000) {
            0..230 => self.send() + &fd,
            230..480 => self.receive() + &fd,
            480..570 => self.poll() + &fd,
            570..640 => {
                let set = self.pick(&["level", "level", "edge", "edge", "nest"]);
                let call = self.pick(&["wait", "wait", "pwait", "pwait2"]);
                format!("wait set={set} call={call}{}", self.via())
            }
            640..700 => {
                let (op, set) = (self.pick(&["fit", "fit", "fit", "add", "mod", "del"]), self.pick(&["level", "edge"]));
                format!("ctl op={op} set={set}{}{}{fd}", self.events(), self.flag("shot", 5))
            }
            700..730 => match self.rng.u32(0..20) {
                0 => format!("option linger=1{fd}"),
                1 if self.pins => format!("option lowat={}{fd}", self.rng.u32(1..10)),
                _ => format!("option get={}{fd}", self.rng.u32(0..9)),
            },
            730..750 => {
                let rare = ["mark", "pread", "pwrite", "lseek", "fsync", "ftruncate"];
                let what = if self.one_in(2) { "unread".into() } else { self.pick(&rare) };
                format!("inquire what={what}{fd}")
            }
            750..765 => format!("blocking set={}{}{fd}", self.rng.u32(0..2), self.flag("ioctl", 2)),
            765..777 => format!("shutdown how={}{fd}", self.pick(&["wr", "wr", "rd", "rdwr"])),
            777..790 => format!("close{}{fd}", self.flag("forget", 3)),
            790..812 => self.duplicate() + &fd,
            812..820 => format!("name{}{fd}", self.flag("peer", 2)),
            820..826 => format!("outq{fd}"),
            826..846 => self.bulk() + &fd,
            846..848 => format!("fill take={}{fd}", self.pick(&["4096", "65536", "1048576"])),
            848..890 => self.sleep() + &fd,
            890..908 => "kick".into(),
            908..910 if self.pins => format!("urgent{fd}"),
            908..948 => format!("chat turns={} len={}{fd}", self.rng.u32(1..12), self.rng.u32(0..200)),
            948..956 => "fork".into(),
            956..960 => format!("leave how={}", self.pick(&["exit", "_exit", "kill"])),
            960..964 => format!("succeed how={}", self.pick(&["exit", "_exit", "kill"])),
            964..974 => return format!("pause us={}", self.rng.u32(0..3000)),
            _ => return self.connect(slot),
        };
        format!("{side}{slot} {what}")
    }

    fn send(&mut self) -> String {
        let rare = if self.pins && self.one_in(20) { "splice" } else { "sendfile" };
        let calls = ["write", "write", "writev", "send", "send", "sendto", "sendmsg", "sendmmsg", "pwritev2", rare];
        let (call, length, via) = (self.pick(&calls), self.length(), self.via());
        let flags = self.flags(&[("nosignal", 2), ("dontwait", 3), ("eor", 30), ("more", 20)]);
        format!("send call={call} len={length} shape={}{flags}{via}", self.rng.u32(0..512))
    }

    fn receive(&mut self) -> String {
        let rare = if self.pins && self.one_in(20) { "splice" } else { "preadv2" };
        let calls = ["read", "read", "readv", "recv", "recv", "recv", "recvfrom", "recvmsg", "recvmmsg", rare];
        let (call, via) = (self.pick(&calls), self.via());
        let length = if self.one_in(2) { "rest".into() } else { self.length().to_string() };
        let flags = [("dontwait", 3), ("peek", 7), ("waitall", 8), ("trunc", 25), ("errqueue", 100)];
        let flags = self.flags(&flags) + &self.flag("timed", 4) + &self.flag("lazy", 3);
        format!("receive call={call} len={length} shape={}{flags}{via}", self.rng.u32(0..512))
    }

    fn poll(&mut self) -> String {
        let call = self.pick(&["poll", "poll", "ppoll", "select", "pselect"]);
        let more = self.flag("all", 3) + &self.flag("nest", 2);
        format!("poll call={call}{}{more}{}", self.events(), self.via())
    }

    fn duplicate(&mut self) -> String {
        let mut call = self.pick(&["dup", "dupfd", "dup2", "dup3"]);
        if self.pins && self.one_in(8) {
            call = "mail".into();
        }
        let over = self.rng.u32(0..8);
        let over = if over < 3 { format!(" over={over}") } else { String::new() };
        format!("dup call={call}{over}{}", self.flag("forget", 3))
    }

    fn sleep(&mut self) -> String {
        let (kind, set) = (self.pick(&["receive", "receive", "poll", "wait"]), self.pick(&["level", "edge"]));
        let call = match kind.as_str() {
            "receive" => " call=".to_owned() + &self.pick(&["read", "readv", "recv", "recvmsg"]),
            "poll" => " call=".to_owned() + &self.pick(&["poll", "ppoll", "select", "pselect"]),
            _ => format!(" set={set}"),
        };
        // A word is of the kind receive or poll; a socket that does not block is polled instead.
        let via = if self.one_in(2) { " via=thread" } else { "" };
        format!("sleep in={kind}{call} len={}{}{via}", self.length(), self.flag("restart", 2))
    }
}

/// Carries programs out.
#[derive(Clone)]
pub struct Player {
    program: PathBuf,
    /// An operation that takes longer hangs.
    patience: Duration,
}

/// What a run said.
pub struct Said {
    lines: Vec<String>,
    /// Calls that the sides were told to make.
    pub operations: u64,
    /// Ends of connections, and how much of them went fast.
    pub connections: u64,
    /// What went fast.
    pub fast: Fast,
}

impl Player {
    /// Compiles what carries programs out into `folder`.
    pub fn new(folder: &Path) -> Player {
        let program = folder.join("play");
        cc(&program, &["-O2"], &[Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/play.c")]);
        Player { program, patience: Duration::from_secs(12) }
    }

    /// Runs a program in one mode, or on the kernel.
    pub fn play(&self, text: &str, mode: Option<&Mode>) -> Said {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("program");
        fs::write(&file, text).expect("write the program");
        let run = Run::new();
        let mut command = Command::new(&self.program);
        command.arg(&file).env("PLAY_PATIENCE_MS", self.patience.as_millis().to_string());
        match mode {
            Some(mode) => run.accelerate(&mut command, mode.settings),
            None => library::plain(&mut command),
        }
        let mut group = Group::start(command, &folder.path().join("said"));
        let status = group.wait(PATIENCE);
        let mut lines: Vec<String> = group.said().lines().map(str::to_owned).collect();
        match status {
            None => lines.push(format!("HANGS\n{}", group.where_it_is())),
            Some(status) if !status.success() => lines.push(status.to_string()),
            Some(_) => {}
        }
        let last = lines.last().and_then(|line| line.strip_prefix("done: ")?.split(' ').next()?.parse().ok());
        let connections = run.processes().iter().map(|process| process.connections).sum();
        Said { lines, operations: last.unwrap_or(0), connections, fast: run.fast(None) }
    }

    /// The command that repeats a run of the program in `file`.
    pub fn again(&self, file: &Path, mode: &Mode) -> String {
        let settings: String = mode.settings.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        format!("{settings}LD_PRELOAD={} {} {}", library::path().display(), self.program.display(), file.display())
    }

    /// The difference between a run and a run on the kernel, if one of `tries` pairs of runs shows one.
    pub fn difference(&self, text: &str, mode: &Mode, tries: u32) -> Option<String> {
        (0..tries).find_map(|_| {
            let (kernel, said) = (self.play(text, None), self.play(text, Some(mode)));
            difference(&kernel, &said).filter(|_| self.is_steady(text, &kernel))
        })
    }

    /// Whether a second run on the kernel says the same, and ended by itself; otherwise the program proves nothing.
    pub fn is_steady(&self, text: &str, kernel: &Said) -> bool {
        let again = self.play(text, None);
        kernel.operations > 0 && difference(kernel, &again).is_none()
    }

    /// Makes a program that differs as short as it can be, and its numbers small; stops after `limit`.
    pub fn shrink(&self, text: &str, mode: &Mode, tries: u32, limit: Duration) -> String {
        let deadline = Instant::now() + limit;
        let hasty = Player { patience: Duration::from_secs(3), ..self.clone() };
        let fails = |lines: &[String]| {
            Instant::now() < deadline && hasty.difference(&(lines.join("\n") + "\n"), mode, tries).is_some()
        };
        let mut lines = shorter(text.lines().map(str::to_owned).collect(), &fails);
        for at in 0..lines.len() {
            // Words first: without a word its default holds.
            let mut word = 2;
            while word < lines[at].split(' ').count() {
                let less: Vec<&str> =
                    lines[at].split(' ').enumerate().filter(|(i, _)| *i != word).map(|(_, word)| word).collect();
                let mut candidate = lines.clone();
                candidate[at] = less.join(" ");
                if fails(&candidate) {
                    lines = candidate;
                } else {
                    word += 1;
                }
            }
            for word in 2..lines[at].split(' ').count() {
                for smaller in [|n: u32| n.min(1), |n| n / 16, |n| n / 4, |n| n / 2] {
                    let mut words: Vec<String> = lines[at].split(' ').map(str::to_owned).collect();
                    let Some((key, Ok(number))) = words[word].split_once('=').map(|(k, n)| (k, n.parse::<u32>()))
                    else {
                        break;
                    };
                    if smaller(number) == number {
                        continue;
                    }
                    words[word] = format!("{key}={}", smaller(number));
                    let mut candidate = lines.clone();
                    candidate[at] = words.join(" ");
                    if fails(&candidate) {
                        lines = candidate;
                        break;
                    }
                }
            }
        }
        lines.join("\n") + "\n"
    }
}

/// Delta debugging: leaves out ever smaller parts of the lines, as long as what remains fails.
fn shorter(mut lines: Vec<String>, fails: &dyn Fn(&[String]) -> bool) -> Vec<String> {
    let mut size = lines.len().div_ceil(2);
    loop {
        let mut at = 0;
        let before = lines.len();
        while at < lines.len() {
            let end = (at + size).min(lines.len());
            let rest = [&lines[..at], &lines[end..]].concat();
            if fails(&rest) {
                lines = rest;
            } else {
                at = end;
            }
        }
        if size == 1 && lines.len() == before {
            return lines;
        }
        size = size.div_ceil(2).max(1);
    }
}

/// The first line in which a run differs from the kernel's.
pub fn difference(kernel: &Said, said: &Said) -> Option<String> {
    let at = kernel.lines.iter().zip(&said.lines).take_while(|(a, b)| agrees(a, b)).count();
    let line = |lines: &[String]| lines.get(at).cloned().unwrap_or("(nothing)".into());
    (at < kernel.lines.len().max(said.lines.len()))
        .then(|| format!("    kernel:    {}\n    underpass: {}", line(&kernel.lines), line(&said.lines)))
}

/// Whether a run may say `said` where it says `kernel` on the kernel. A further edge does no harm, but none may be
/// missing. An edge of room (`o`) may be missing: the kernel reports room with every edge, and a program that was not
/// refused does not wait for it.
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

/// The programs that once differed.
pub fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_further_edge_does_no_harm_and_a_missing_one_does() {
        assert!(agrees("7 A epoll set 1 -> 0  0~io", "7 A epoll set 1 -> 0  0~i"));
        assert!(agrees("7 A epoll set 1 -> 0 ", "7 A epoll set 1 -> 0  0~i"));
        assert!(!agrees("7 A epoll set 1 -> 0  0~ior", "7 A epoll set 1 -> 0  0~io"));
        assert!(!agrees("7 A epoll set 0 -> 1  0=i", "7 A epoll set 0 -> 0 "));
    }

    #[test]
    fn what_fails_is_made_as_short_as_it_can_be() {
        let lines: Vec<String> = (0..100).map(|n| n.to_string()).collect();
        let fails = |lines: &[String]| ["17", "18", "90"].iter().all(|it| lines.iter().any(|line| line == it));
        assert_eq!(shorter(lines, &fails), ["17", "18", "90"]);
    }

    #[test]
    fn a_seed_makes_one_program() {
        assert_eq!(program(5, 100), program(5, 100));
        assert_ne!(program(5, 100), program(6, 100));
    }
}
