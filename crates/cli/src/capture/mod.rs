//! `underpass capture`: the bytes of fast connections as packets, for Wireshark and its kin.
//!
//! Senders copy what they publish to a tap while this command runs: see [`underpass_segment::tap`]. Here the records
//! are put back together into [`streams`], of which packets are made for a [`mod@file`].

mod file;
mod filter;
mod streams;
mod taps;

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::{self, BufWriter, IsTerminal, Write, stdout};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::Context;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use underpass_segment::raw::Errno;
use underpass_segment::tap::Head;
use underpass_segment::watch::NoTapping;
use underpass_segment::{clock, kernel};

use crate::cli::CaptureArguments;
use crate::failure::Failure;
use crate::output::{plural, printable};
use crate::watch::{Images, Names, Spaces, name_of};
use crate::{say, sys};
use file::File;
use filter::Filter;
use streams::{Packet, Streams};
use taps::Taps;

/// Longest nap while nothing comes.
const IDLE: Duration = Duration::from_millis(5);
/// How often it is looked whether sockets are gone whose senders did not say so.
const LOOK: Duration = Duration::from_millis(500);
/// How often, at most, the tables are read to find which processes have a new connection.
const ASK: Duration = Duration::from_millis(100);
/// The name of a process that is gone, or not known yet.
const UNKNOWN: &str = "?";
/// A sender that has found the tap before it was taken back has put its record within this time, if it gets a
/// processor.
const LAST: Duration = Duration::from_millis(5);

/// Captures until the user, or one of the limits, ends it.
///
/// # Errors
/// A filter that is none, a file that cannot be written, shared memory that cannot be had.
pub fn capture(arguments: &CaptureArguments) -> Result<(), Failure> {
    let filter = Filter::parse(&arguments.filter)?;
    filter.check(kernel::user_id())?;
    sys::ignore_broken_pipes();
    let mut capture = Capture::begin(arguments, filter)?;
    match capture.go_on(arguments) {
        // The reader of the pipe has seen enough.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        other => other.with_context(|| cannot_write(&arguments.write))?,
    }
    capture.tell(arguments);
    Ok(())
}

/// The file, for a terminal.
fn name_of_target(path: &Path) -> String {
    if path == Path::new("-") { "standard output".into() } else { printable(&path.to_string_lossy()) }
}

fn cannot_write(path: &Path) -> String {
    format!("cannot write all of it to {}; what is there is not whole", name_of_target(path))
}

struct Capture {
    taps: Taps,
    images: Images,
    file: File<BufWriter<Box<dyn Write>>>,
    streams: Streams,
    people: People,
    filter: Filter,
    asked: Arc<AtomicBool>,
    /// Packets written.
    count: u64,
}

impl Capture {
    fn begin(arguments: &CaptureArguments, filter: Filter) -> Result<Capture, Failure> {
        let target = Target::open(&arguments.write)?;
        // Signals are caught only now: opening a pipe lasts until its reader comes, and a signal must be able to end
        // that.
        let asked = Arc::<AtomicBool>::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // A second one ends the command at once.
            signal_hook::flag::register_conditional_shutdown(signal, 128 + signal, asked.clone())?;
            signal_hook::flag::register(signal, asked.clone())?;
        }
        let no_memory = |Errno(code)| {
            anyhow::Error::from(io::Error::from_raw_os_error(code)).context(
                "cannot make the buffer in shared memory (shmget; try a smaller --buffer, or raise kernel.shmmax, or \
                 ulimit -v)",
            )
        };
        let mut taps = Taps::begin(u64::from(arguments.buffer) << 20).map_err(|error| match error {
            NoTapping::Another => anyhow::anyhow!(
                "another `underpass capture` of this user is under way; end it first, or filter its file instead"
            ),
            NoTapping::Memory(error) => no_memory(error),
        })?;
        let file = (target.begin())
            .and_then(|it| File::new(BufWriter::with_capacity(1 << 20, it)))
            .with_context(|| cannot_write(&arguments.write))?;
        let mut images = Images::default();
        follow(&mut taps, &mut images);
        let people = People::there();
        say(format_args!("capturing to {}; Ctrl-C ends it", name_of_target(&arguments.write)));
        Ok(Capture { taps, images, file, streams: Streams::default(), people, filter, asked, count: 0 })
    }

    fn go_on(&mut self, arguments: &CaptureArguments) -> io::Result<()> {
        let most = arguments.count.unwrap_or(u64::MAX);
        let until = arguments.duration.map(|seconds| Instant::now() + Duration::from_secs(seconds.into()));
        let is_over = |it: &Capture| {
            it.count >= most || it.asked.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until)
        };
        let (mut nap, mut looked) = (IDLE, Instant::now());
        while !is_over(self) {
            if looked.elapsed() >= LOOK {
                follow(&mut self.taps, &mut self.images);
                self.end_gone(most)?;
                looked = Instant::now();
            }
            if self.drain(most)? {
                nap = Duration::from_micros(100);
            } else {
                self.file.flush()?;
                sleep(nap);
                nap = (nap * 2).min(IDLE);
            }
        }
        self.taps.end();
        sleep(LAST);
        while self.drain(most)? {}
        self.end_gone(most)?;
        self.file.flush()
    }

    /// Writes what is in the tap, some of it at a time; false if there was nothing.
    fn drain(&mut self, most: u64) -> io::Result<bool> {
        const AT_A_TIME: usize = 1000;
        let (mut bytes, mut packets) = (Vec::new(), Vec::new());
        let before = self.taps.damaged();
        for done in 0..AT_A_TIME {
            if self.count >= most {
                return Ok(false);
            }
            let Some(head) = self.taps.next(&mut bytes) else { return Ok(done > 0 || self.taps.damaged() != before) };
            let (people, filter) = (&mut self.people, &self.filter);
            let mut describe = |ends: [SocketAddr; 2], head: &Head| people.describe(ends, head, filter);
            self.streams.packets(&head, &bytes, &mut describe, &mut packets);
            self.write(&mut packets, most)?;
        }
        Ok(true)
    }

    fn write(&mut self, packets: &mut Vec<Packet>, most: u64) -> io::Result<()> {
        for packet in packets.drain(..) {
            if self.count < most {
                self.file.add(&packet)?;
                self.count += 1;
            }
        }
        Ok(())
    }

    /// Ends the directions of sockets that are gone. What they have sent was in the tap by then.
    fn end_gone(&mut self, most: u64) -> io::Result<()> {
        self.streams.begin_listing();
        let known = self.people.known();
        let Ok(there) = Spaces::now(&mut self.images).and_then(|it| it.cookies()) else { return Ok(()) };
        // And no further, or it would never end while others send.
        let behind = self.taps.mark();
        while self.taps.is_before(&behind) && self.drain(most)? {}
        let mut packets = Vec::new();
        self.streams.end_all_but(clock::nanoseconds(), |cookie| there.contains(&cookie), &mut packets);
        self.people.forget_all_but(|cookie| there.contains(&cookie) || !known.contains(&cookie));
        self.write(&mut packets, most)
    }

    /// Prints the totals at the end, as tcpdump does.
    fn tell(&self, arguments: &CaptureArguments) {
        let (lost, damaged) = (self.taps.lost(), self.taps.damaged() + self.streams.damaged);
        let Streams { captured, missing, .. } = self.streams;
        if arguments.json {
            let said = json!({
                "packets": self.count,
                "bytes": captured,
                "dropped_bytes": lost,
                "missing_bytes": missing,
                "damaged_records": damaged,
            });
            let _ = writeln!(io::stderr(), "{said}");
            return;
        }
        say(format_args!(
            "{} captured, {} of streams; {} dropped",
            plural(self.count, "packet", "packets"),
            plural(captured, "byte", "bytes"),
            plural(lost, "byte", "bytes"),
        ));
        if self.count == 0 {
            say(format_args!(
                "nothing went through shared memory that was asked for; `underpass ss` lists the connections and their \
                 paths"
            ));
        }
        if lost > 0 {
            say(format_args!(
                "what is dropped did not fit the buffer, or would have kept its sender waiting: try a larger --buffer, \
                 or a filter"
            ));
        }
        if missing > lost {
            say(format_args!(
                "{} or more between captured ones went by kernel TCP, where tcpdump sees them",
                plural(missing - lost, "byte", "bytes")
            ));
        }
        if damaged > 0 {
            say(format_args!("{} made no sense and were left out", plural(damaged, "record", "records")));
        }
    }
}

/// Has users captured who have come since.
fn follow(taps: &mut Taps, images: &mut Images) {
    if let Ok(spaces) = Spaces::now(images) {
        taps.follow(&spaces).into_iter().for_each(|it| say(format_args!("{it}")));
    }
}

/// What was named to write to is nothing for that.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("a capture is not for a terminal: pipe it on, as in `underpass capture -w - | tshark -r -`")]
    Terminal,
    #[error(
        "cannot write {} ({error}); -w needs a file that this user may write to, in a folder that is there, or \"-\"",
        path.display()
    )]
    Refused { path: PathBuf, error: io::Error },
}

impl From<FileError> for Failure {
    fn from(error: FileError) -> Failure {
        Failure::WrongUse(error.into())
    }
}

/// Where the packets go.
enum Target {
    Output,
    File(fs::File),
}

impl Target {
    /// What a file has in it stays there: it may be another capture's.
    fn open(path: &Path) -> Result<Target, FileError> {
        if path != Path::new("-") {
            let file = fs::OpenOptions::new().write(true).create(true).truncate(false).open(path);
            return file.map(Target::File).map_err(|error| FileError::Refused { path: path.into(), error });
        }
        if stdout().is_terminal() { Err(FileError::Terminal) } else { Ok(Target::Output) }
    }

    /// Empty now, where it can be.
    fn begin(self) -> io::Result<Box<dyn Write>> {
        Ok(match self {
            Target::Output => Box::new(stdout()),
            Target::File(file) => {
                if file.metadata()?.is_file() {
                    file.set_len(0)?;
                }
                Box::new(file)
            }
        })
    }
}

/// Which processes have the sockets of connections, by name. It is kept, because some are gone before what they sent is
/// read.
struct People {
    images: Images,
    spaces: Option<Spaces>,
    by_cookie: HashMap<u64, Names>,
    asked: Option<Instant>,
}

impl People {
    /// The users that there are now. Those who come later may be looked for at once.
    fn there() -> People {
        let mut people = People { images: Images::default(), spaces: None, by_cookie: HashMap::new(), asked: None };
        people.ask();
        people
    }

    /// What was known of other sockets stays: their processes may be gone, and what they sent be read later.
    fn ask(&mut self) {
        self.spaces = Spaces::now(&mut self.images).ok();
        self.by_cookie.extend(self.spaces.as_ref().map(sockets).unwrap_or_default());
    }

    /// The cookies of the sockets that are known.
    fn known(&self) -> HashSet<u64> {
        self.by_cookie.keys().copied().collect()
    }

    /// All that sockets have sent was read, except those of which `is_there` says that they are still there.
    fn forget_all_but(&mut self, is_there: impl Fn(u64) -> bool) {
        self.by_cookie.retain(|&cookie, _| is_there(cookie));
    }

    /// What is said of a new connection; `None` if it is not wanted.
    fn describe(&mut self, ends: [SocketAddr; 2], head: &Head, filter: &Filter) -> Option<String> {
        let holders = head.cookies.map(|cookie| self.holders(cookie));
        // A record has the sender's process number in the sender's namespace, which may be another one.
        let sending = self.spaces.as_ref().and_then(|it| it.number_in(head.space, head.pid));
        let has = |pid: u32| Some(pid) == sending || holders.iter().any(|it| it.contains_key(&pid));
        if !filter.wants(ends, has) {
            return None;
        }
        let [mut sender, reader] = holders;
        if let Some(pid) = sending {
            sender.entry(pid).or_insert_with(|| name_if_alive(pid));
        }
        let side = |address: SocketAddr, names: &Names| {
            let names: Vec<String> = names.iter().map(|(pid, name)| format!("{name} {pid}")).collect();
            format!("{address}: {}", if names.is_empty() { UNKNOWN.into() } else { names.join(", ") })
        };
        Some(format!("{}; {} (this handshake is made up)", side(ends[0], &sender), side(ends[1], &reader)))
    }

    fn holders(&mut self, cookie: u64) -> Names {
        if !self.by_cookie.contains_key(&cookie) && self.asked.is_none_or(|asked| asked.elapsed() >= ASK) {
            self.ask();
            self.asked = Some(Instant::now());
        }
        self.by_cookie.get(&cookie).cloned().unwrap_or_default()
    }
}

/// The processes that have each socket, by its cookie.
fn sockets(spaces: &Spaces) -> HashMap<u64, Names> {
    let mut by_cookie = HashMap::<u64, Names>::new();
    let mut names = Names::new();
    for end in spaces.ends().unwrap_or_default() {
        for pid in end.processes {
            let name = names.entry(pid).or_insert_with(|| name_if_alive(pid));
            by_cookie.entry(end.cookie).or_default().insert(pid, name.clone());
        }
    }
    by_cookie
}

fn name_if_alive(pid: u32) -> String {
    name_of(pid).unwrap_or_else(|| UNKNOWN.into())
}
