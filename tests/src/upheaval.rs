//! Busy connections between users or containers, while the daemon that they meet through is killed, stopped and
//! replaced.
//!
//! Beside them the same programs do the same without Underpass. So what the machine is busy with delays both, and what
//! is left is the library's.

use std::fmt;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::broker::{Broker, User, meetings};
use crate::compiler::cc;
use crate::container::{Bridge, HOSTS};
use crate::group::Group;
use crate::library::{self, AT_ONCE, is_kernel_only};
use crate::net::{await_listening_beside, free_port};
use crate::stage::Stage;
use crate::yard::{Place, Yard, guest_of};

/// Calls that must not wait may take so much longer than the longest on kernel TCP.
const LONGER_MS: usize = 50;
/// How long something that must happen may take.
const PATIENCE: Duration = Duration::from_secs(300);

/// Where the two ends are, and which process keeps the daemon's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    /// Two users of one host; the daemon makes its socket itself.
    Users,
    /// Two users of one host, with a service manager that keeps the socket.
    Kept,
    /// Two containers on a bridge.
    Containers,
}

impl Ground {
    /// All of them.
    pub const ALL: [Ground; 3] = [Ground::Users, Ground::Kept, Ground::Containers];
}

impl fmt::Display for Ground {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str(match self {
            Ground::Users => "users",
            Ground::Kept => "users, kept socket",
            Ground::Containers => "containers",
        })
    }
}

/// What is to happen.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Where.
    pub ground: Ground,
    /// For how long something happens to the daemon.
    pub lasting: Duration,
    /// How often.
    pub pace: Duration,
    /// Connections that are kept, that come and go, and that have a thread of their own each.
    pub connections: [u32; 3],
    /// The seed of all random choices.
    pub seed: u64,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    plan: Plan,
    faults: u64,
    kernel: Notes,
    underpass: Notes,
    /// Kept connections that were fast before, and at the end.
    expected: u64,
    fast: u64,
    again: Duration,
}

impl Outcome {
    /// Times that something happened to the daemon.
    pub fn faults(&self) -> u64 {
        self.faults
    }

    /// What is not as it must be; empty if all is.
    pub fn complaints(&self) -> Vec<String> {
        // Slow messages that faults cause come with many faults. A few in a long time are chance, on a machine that
        // does other things too.
        let allowed = 1 + self.faults / 20;
        let (slow, usual) = (self.underpass.slow, self.kernel.slow);
        let late = self.late();
        let mut all = Vec::new();
        if slow > usual + allowed {
            all.push(format!("{slow} calls waited that must not wait, against {usual} on kernel TCP"));
        }
        if late > allowed {
            all.push(format!("{late} exchanges took over {LONGER_MS} ms longer than the longest on kernel TCP"));
        }
        if self.fast < self.expected && !is_kernel_only() {
            all.push(format!("{} connections were fast, and {} are", self.expected, self.fast));
        }
        all
    }

    /// Exchanges of threads that took longer than any on kernel TCP, and 50 ms.
    fn late(&self) -> u64 {
        self.underpass.waits.beyond(self.kernel.waits.longest() + LONGER_MS)
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let Outcome { plan, faults, kernel, underpass, expected, fast, again } = self;
        writeln!(
            out,
            "{}: {faults} faults; {} connections, {} exchanges, {} MB (kernel TCP beside: {}, {}, {} MB)",
            plan.ground,
            underpass.connections,
            underpass.exchanges,
            underpass.octets >> 20,
            kernel.connections,
            kernel.exchanges,
            kernel.octets >> 20,
        )?;
        writeln!(
            out,
            "  calls that must not wait: {} that did, for {} ms at most, and the longest took {} ms (kernel TCP: {}, \
             {}, {})",
            underpass.slow,
            underpass.slowest_us / 1000,
            underpass.calls.longest(),
            kernel.slow,
            kernel.slowest_us / 1000,
            kernel.calls.longest(),
        )?;
        write!(
            out,
            "  exchanges of threads: the longest took {} ms (kernel TCP: {}), {} over {LONGER_MS} ms longer; {fast} of \
             {} kept connections fast at the end, {expected} or more before; new ones met again after {} ms",
            underpass.waits.longest(),
            kernel.waits.longest(),
            self.late(),
            plan.connections[0],
            again.as_millis(),
        )
    }
}

/// How many took so many milliseconds.
#[derive(Clone, Debug)]
struct Histogram(Vec<u32>);

const BUCKETS: usize = 8192;

impl Histogram {
    /// In milliseconds, rounded down.
    fn longest(&self) -> usize {
        self.0.iter().rposition(|count| *count > 0).unwrap_or(0)
    }

    fn beyond(&self, milliseconds: usize) -> u64 {
        self.0.iter().skip(milliseconds + 1).map(|count| u64::from(*count)).sum()
    }

    fn add(&mut self, other: &Histogram) {
        self.0.iter_mut().zip(&other.0).for_each(|(sum, it)| *sum += it);
    }
}

/// What a program has noted: `struct book` of `busy.c`.
#[derive(Clone, Debug)]
struct Notes {
    exchanges: u64,
    connections: u64,
    octets: u64,
    slow: u64,
    slowest_us: u64,
    passing: u64,
    calls: Histogram,
    waits: Histogram,
}

/// A file of such notes.
struct Book(PathBuf);

/// What programs are told.
const LAST: u64 = 1;
const END: u64 = 2;
/// Words before the histograms.
const WORDS: usize = 7;

impl Book {
    fn new(stage: &Stage, name: &str) -> Book {
        let file = stage.file(name, vec![0; WORDS * 8 + 2 * BUCKETS * 4]);
        fs::set_permissions(&file, Permissions::from_mode(0o666)).expect("a file for all users");
        Book(file)
    }

    fn tell(&self, what: u64) {
        let file = File::options().write(true).open(&self.0).expect("the book");
        file.write_all_at(&what.to_ne_bytes(), 0).expect("write to the book");
    }

    fn read(&self) -> Notes {
        let octets = fs::read(&self.0).expect("the book");
        let word = |at: usize| u64::from_ne_bytes(octets[at * 8..at * 8 + 8].try_into().expect("eight octets"));
        let histogram = |at: usize| {
            let from = WORDS * 8 + at * BUCKETS * 4;
            let counts = octets[from..from + BUCKETS * 4].chunks_exact(4);
            Histogram(counts.map(|it| u32::from_ne_bytes(it.try_into().expect("four octets"))).collect())
        };
        let [_, exchanges, connections, octets_sent, slow, slowest_us, passing] = std::array::from_fn(word);
        let (calls, waits) = (histogram(0), histogram(1));
        Notes { exchanges, connections, octets: octets_sent, slow, slowest_us, passing, calls, waits }
    }
}

/// A server and its client.
struct Pair {
    server: Group,
    client: Group,
    books: [Book; 2],
}

impl Pair {
    /// Starts both; without the library unless `is_fast`.
    fn start(yard: &Yard, places: &[Place<'_>; 2], host: &str, plan: &Plan, is_fast: bool) -> Pair {
        let port = free_port();
        let books = ["served", "asked"].map(|name| Book::new(&yard.stage, &format!("{name}-{port}")));
        let command = |place: &Place<'_>, words: &str| -> Command {
            let mut command = yard.command(place, words, AT_ONCE);
            if !is_fast {
                command.env_remove("LD_PRELOAD");
            }
            command
        };
        let mut server =
            yard.stage.start(command(&places[0], &format!("serve {port} {host} {}", books[0].0.display())));
        await_listening_beside(&places[0].process(), &mut server, port);
        let [lasting, passing, threads] = plan.connections;
        let words = format!("ask {port} {host} {} {} {lasting} {passing} {threads}", books[1].0.display(), plan.seed);
        let client = yard.stage.start(command(&places[1], &words));
        Pair { server, client, books }
    }

    /// Waits for something; fails when either has ended.
    fn wait_until(&mut self, what: &str, mut is_so: impl FnMut(&Pair) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !is_so(self) {
            for end in [&mut self.server, &mut self.client] {
                let ended = end.wait(Duration::from_millis(5));
                assert!(ended.is_none(), "{what}: it has ended with {ended:?}:\n{}", end.said());
            }
            assert!(Instant::now() < deadline, "{what}: not yet\n{}", self.client.where_it_is());
        }
    }

    /// Passing connections have passed, and only those are left that last.
    fn calm_down(&mut self) {
        self.books[1].tell(LAST);
        self.wait_until("no further connections", |it| it.books[1].read().passing == 0);
    }

    /// Ends both. What both have noted; connections as the client counts them.
    fn end(self) -> Notes {
        let Pair { server, client, books: [served, asked] } = self;
        asked.tell(END);
        client.succeed(PATIENCE);
        server.stop(libc::SIGTERM);
        let (server, mut all) = (served.read(), asked.read());
        all.slow += server.slow;
        all.slowest_us = all.slowest_us.max(server.slowest_us);
        all.calls.add(&server.calls);
        all
    }
}

/// Carries a plan out; `None`, said aloud, where this machine cannot.
///
/// # Panics
/// An octet was lost or changed, something hangs, or does not come back.
pub fn upheave(plan: &Plan) -> Option<Outcome> {
    let stage = Stage::with(&["cc", "unshare", "nsenter", "ip"])?;
    let broker = match plan.ground {
        Ground::Kept => Broker::start_by_manager(&stage, &[])?,
        Ground::Users | Ground::Containers => Broker::start(&stage, &[])?,
    };
    if plan.ground == Ground::Containers && !broker.has_numbers() {
        return None;
    }
    let program = stage.path("busy");
    cc(&program, &["-O2"], &[Path::new(env!("CARGO_MANIFEST_DIR")).join("soak/busy.c")]);
    let mut yard = Yard { broker, program: program.display().to_string(), stage };
    let bridge = (plan.ground == Ground::Containers).then(|| Bridge::new(&yard.stage));
    let outcome = match &bridge {
        Some(bridge) => {
            let places =
                [(&bridge.ends[1], 61_001), (&bridge.ends[0], 61_002)].map(|(it, uid)| Place::inside(it, uid, 1));
            endure(&mut yard, &places, HOSTS[1], plan)
        }
        None => endure(&mut yard, &[61_001, 61_002].map(|uid| Place::host(User::member(uid))), "127.0.0.1", plan),
    };
    drop(bridge);
    let Yard { broker, stage, .. } = yard;
    drop(broker);
    stage.finish();
    Some(outcome)
}

fn endure(yard: &mut Yard, places: &[Place<'_>; 2], host: &str, plan: &Plan) -> Outcome {
    let mut fast = Pair::start(yard, places, host, plan, true);
    let kernel = Pair::start(yard, places, host, plan, false);
    let socket = yard.broker.socket().display().to_string();
    let (client, lasting) = (guest_of(&fast.client), u64::from(plan.connections[0]));
    let mut at_first = 0;
    fast.wait_until("all meet at first", |_| {
        at_first = fast_connections(client);
        is_kernel_only() || at_first >= lasting
    });
    // Connections that come and go may have been counted.
    let [_, passing, threads] = plan.connections;
    let expected = at_first.saturating_sub(u64::from(passing + threads));

    let mut random = fastrand::Rng::with_seed(plan.seed);
    let (mut faults, end) = (0, Instant::now() + plan.lasting);
    while Instant::now() < end {
        let next = Instant::now() + plan.pace;
        befall(yard, &mut random, plan.pace);
        faults += 1;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
    let (since, before) = (Instant::now(), meetings(&socket));
    let more = u64::from(plan.connections[1]).max(1);
    fast.wait_until("new ones meet again", |_| is_kernel_only() || meetings(&socket) >= before + more);
    let again = since.elapsed();

    fast.calm_down();
    let mut count = 0;
    let deadline = Instant::now() + Duration::from_secs(20);
    while count < lasting && Instant::now() < deadline && !is_kernel_only() {
        count = fast_connections(client);
    }
    let [underpass, kernel] = [fast, kernel].map(Pair::end);
    Outcome { plan: *plan, faults, kernel, underpass, expected, fast: count, again }
}

/// Something happens to the daemon, which is at work afterwards.
fn befall(yard: &mut Yard, random: &mut fastrand::Rng, pace: Duration) {
    let Yard { broker, stage, .. } = yard;
    let (what, share) = (random.u8(..4), random.f64());
    let rest = || std::thread::sleep(pace.mul_f64(0.6 * share));
    match what {
        0 => {
            broker.kill();
            rest();
            broker.start_anew(stage);
        }
        // As in an upgrade.
        1 => {
            broker.end();
            broker.start_anew(stage);
        }
        2 => {
            broker.signal(libc::SIGSTOP);
            rest();
            broker.signal(libc::SIGCONT);
        }
        _ => {
            broker.signal(libc::SIGSTOP);
            rest();
            broker.replace(stage);
        }
    }
}

/// Connections of this process that are fast in both directions.
fn fast_connections(pid: u32) -> u64 {
    let output = Command::new(library::command()).args(["ss", "--json"]).output().expect("underpass");
    let said: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let is_ours = |row: &Value| row["processes"].as_array().is_some_and(|all| all.iter().any(|it| it["pid"] == pid));
    let is_fast = |row: &Value| row["out"]["path"] == "ring" && row["in"]["path"] == "ring";
    said["connections"]
        .as_array()
        .map_or(0, |rows| rows.iter().filter(|row| is_ours(row) && is_fast(row)).count() as u64)
}
