//! `underpass pin` and `underpass unpin`: a live connection to the kernel path and up again, from outside.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use serde_json::{Value, json};
use underpass_segment::kernel;
use underpass_segment::reason::Reason;
use underpass_segment::watch::{Outcome, Seen, Subject, Whose, hold, let_go, look, ordered};

use super::ss::{holders, holders_to_json};
use super::{Connection, Images, View, by_cookie, path, refused};
use crate::cli::{PinArguments, UnpinArguments, Which};
use crate::failure::Failure;
use crate::output::{NotPrinted, print, printable};
use crate::say;

/// Between two looks whether all have gone down.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What was named is not there, or not so.
#[derive(Debug, thiserror::Error)]
enum WrongSubject {
    /// There is no such process.
    #[error("there is no process {0}; `underpass ss` lists the processes under Underpass and their connections")]
    NoProcess(u32),
    /// The process belongs to another user.
    #[error("process {pid} belongs to user {user}, and connections are moved by their own user: say it as that user")]
    Foreign {
        /// Its number.
        pid: u32,
        /// Its user's number.
        user: u32,
    },
    /// It has not loaded the library.
    #[error(
        "process {0} does not run under Underpass, or under another version of it: its connections are on kernel TCP; \
         `underpass doctor {0}` says why"
    )]
    Plain(u32),
    /// It has no such descriptor.
    #[error("process {pid} has no descriptor {fd}; `underpass ss` lists those that are connections")]
    NoDescriptor {
        /// Its number.
        pid: u32,
        /// The descriptor.
        fd: u32,
    },
    /// The descriptor is none of a socket.
    #[error("descriptor {fd} of process {pid} is no connection but {what}; `underpass ss` lists those that are")]
    NoSocket {
        /// Its number.
        pid: u32,
        /// The descriptor.
        fd: u32,
        /// What it is open to, for a terminal.
        what: String,
    },
    /// Or of another one.
    #[error(
        "descriptor {fd} of process {pid} is a socket, but not of a TCP connection (it may listen, or be a UDP or Unix \
         socket); `underpass ss` lists those that are"
    )]
    NoConnection {
        /// Its number.
        pid: u32,
        /// The descriptor.
        fd: u32,
    },
    /// Or of a connection that is not seen from here.
    #[error(
        "descriptor {fd} of process {pid} is no TCP connection of this network namespace; `nsenter -t {pid} -n` enters \
         that of the process"
    )]
    Elsewhere {
        /// Its number.
        pid: u32,
        /// The descriptor.
        fd: u32,
    },
    /// The connection will stay on kernel TCP.
    #[error("{what} is on kernel TCP for good, and nothing brings it up: {key} ({sentence})")]
    ForGood {
        /// The connection, for people.
        what: String,
        /// The reason's word.
        key: &'static str,
        /// The reason.
        sentence: &'static str,
    },
}

impl From<WrongSubject> for Failure {
    fn from(error: WrongSubject) -> Failure {
        Failure::WrongUse(error.into())
    }
}

/// A connection that is to be moved.
struct Pair<'a> {
    end: &'a Connection,
    /// Its other end, if that is in one of this user's accelerated programs.
    other: Option<&'a Connection>,
}

/// How it stands now.
struct State {
    /// The directions out and in: whether the stream is in the ring.
    fast: [bool; 2],
    /// Why it is on the kernel path for good.
    for_good: Option<Reason>,
    held: bool,
}

/// Moves connections down.
///
/// # Errors
/// [`WrongSubject`], or what the kernel does not allow.
pub fn pin(arguments: &PinArguments) -> Result<(), Failure> {
    let (view, user) = (View::gather_own(&mut Images::default())?, kernel::user_id());
    let pairs = pairs(&view, &arguments.which)?;
    let subjects: Vec<Subject> = (pairs.iter().flat_map(Pair::ends))
        .map(|it| Subject { cookie: it.socket.cookie, processes: it.holders.iter().map(|holder| holder.pid).collect() })
        .collect();
    let is_there = |cookie| view.connections.iter().any(|it| it.socket.cookie == cookie);
    let deadline = deadline(arguments.wait);
    let outcomes = hold(user, &subjects, is_there).map_err(refused)?;
    let mut rest = outcomes.into_iter();
    let outcomes: Vec<Vec<Outcome>> = pairs.iter().map(|it| rest.by_ref().take(it.ends().count()).collect()).collect();
    let states = states_when(&pairs, user, deadline, |it| it.fast == [false; 2])?;
    let done = pairs.iter().zip(&states).zip(&outcomes);
    let failed = |outcomes: &[Outcome]| outcomes.iter().all(|it| matches!(it, Outcome::Full | Outcome::Unknown));
    let lines = done.clone().map(|((pair, state), outcomes)| match state.for_good {
        Some(reason) => format!("on kernel TCP for good: {}", reason.key()),
        None if outcomes.contains(&Outcome::Full) && failed(outcomes) => {
            "not held: too many that were never used are held already; unpin some of those".into()
        }
        None if failed(outcomes) => {
            "not held: none of its processes has used a connection yet, or they are numbered in another namespace; \
             say it again once one has, and from where `ps` shows them"
                .into()
        }
        None => pair.so_far(state, false),
    });
    show(arguments.which.json, &pairs, &states, lines)?;
    let failures = done.filter(|((_, state), outcomes)| state.for_good.is_none() && failed(outcomes)).count();
    if failures > 0 {
        return Err(anyhow!("{failures} of {} not held", pairs.len()).into());
    }
    Ok(())
}

/// Lets connections go up again.
///
/// # Errors
/// As for [`pin`].
pub fn unpin(arguments: &UnpinArguments) -> Result<(), Failure> {
    let (view, user) = (View::gather_own(&mut Images::default())?, kernel::user_id());
    let pairs = pairs(&view, &arguments.which)?;
    let (before, deadline) = (states(&pairs, user)?, deadline(arguments.wait));
    let cookies: Vec<u64> = pairs.iter().flat_map(Pair::ends).map(|it| it.socket.cookie).collect();
    let_go(user, &cookies).map_err(refused)?;
    if let ([pair], Some(reason), false) = (&pairs[..], before.first().and_then(|it| it.for_good), arguments.which.all)
    {
        let (key, sentence) = (reason.key(), reason.sentence().trim_end_matches('.'));
        return Err(WrongSubject::ForGood { what: pair.to_string(), key, sentence }.into());
    }
    let is_up = |it: &State| it.fast == [true; 2] || it.for_good.is_some();
    let states = if before.iter().any(|it| it.held) {
        states_when(&pairs, user, deadline, is_up)?
    } else {
        states(&pairs, user)?
    };
    let lines = before.iter().zip(&states).zip(&pairs).map(|((before, state), pair)| match before.for_good {
        Some(reason) => format!("stays on kernel TCP for good: {}", reason.key()),
        None if !before.held => "was not held".into(),
        None => pair.so_far(state, true),
    });
    Ok(show(arguments.which.json, &pairs, &states, lines)?)
}

fn show(
    as_json: bool,
    pairs: &[Pair<'_>],
    states: &[State],
    lines: impl Iterator<Item = String>,
) -> Result<(), NotPrinted> {
    let text = if as_json {
        let connections: Vec<Value> = pairs.iter().zip(states).map(|(pair, state)| to_json(pair, state)).collect();
        format!("{:#}\n", json!({ "connections": connections }))
    } else {
        pairs.iter().zip(lines).map(|(pair, line)| format!("{pair}: {line}\n")).collect()
    };
    print(text)
}

fn to_json(pair: &Pair<'_>, state: &State) -> Value {
    let [out, back] = state.fast.map(path);
    json!({
        "local": pair.end.socket.local.to_string(),
        "peer": pair.end.socket.peer.to_string(),
        "processes": holders_to_json(pair.end),
        "out": out,
        "in": back,
        "held": state.held,
        // The key's old name, for scripts that were written before `held`; as a stage in `ss` the word means something
        // else.
        "pinned": state.held,
        "for_good": state.for_good.map(|reason| reason.key()),
    })
}

impl Pair<'_> {
    fn ends(&self) -> impl Iterator<Item = &Connection> {
        std::iter::once(self.end).chain(self.other)
    }

    /// What has become of it after it was let `up`, or held.
    fn so_far(&self, state: &State, up: bool) -> String {
        let who = |end: Option<&Connection>| end.map_or("the other end".into(), holders);
        let ways = ["out", "in"].into_iter().zip(state.fast).zip([Some(self.end), self.other]);
        let becomes = if up { "may go up" } else { "will go down" };
        let waits: Vec<String> = ways
            .filter(|((_, fast), _)| *fast != up)
            .map(|((way, _), sender)| format!("{way} {becomes} with the next byte that {} sends", who(sender)))
            .collect();
        match waits.is_empty() {
            true if up => "fast both ways".into(),
            true => "on kernel TCP both ways".into(),
            false => waits.join("; "),
        }
    }
}

impl std::fmt::Display for Pair<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} > {} ({})", self.end.socket.local, self.end.socket.peer, holders(self.end))
    }
}

/// The connections that are meant.
fn pairs<'a>(view: &'a View, which: &Which) -> Result<Vec<Pair<'a>>, WrongSubject> {
    let is_meant = |it: &&Connection| {
        it.holders.iter().any(|holder| holder.pid == which.pid && (which.all || holder.fd == which.fd))
    };
    let mut meant: Vec<&Connection> = view.connections.iter().filter(is_meant).collect();
    meant.dedup_by_key(|it| it.socket.cookie);
    if meant.is_empty() {
        diagnose(view, which)?;
        say(format_args!("process {} has no TCP connection in this network namespace", which.pid));
    }
    let ends = |it: &Connection| [it.socket.local, it.socket.peer].map(canonical);
    let other = |it: &Connection| {
        let [local, peer] = ends(it);
        view.connections.iter().find(|other| ends(other) == [peer, local])
    };
    Ok(meant.into_iter().map(|end| Pair { end, other: other(end) }).collect())
}

/// The address in its own family: a socket for IPv6 may carry IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Why nothing was found.
fn diagnose(view: &View, which: &Which) -> Result<(), WrongSubject> {
    let (pid, process) = (which.pid, Path::new("/proc").join(which.pid.to_string()));
    let Ok(status) = fs::metadata(&process) else { return Err(WrongSubject::NoProcess(pid)) };
    let (user, me) = (status.uid(), kernel::user_id());
    if user != me {
        return Err(WrongSubject::Foreign { pid, user });
    }
    if !view.processes.contains_key(&pid) {
        return Err(WrongSubject::Plain(pid));
    }
    let Some(fd) = which.fd else { return Ok(()) };
    let Ok(what) = fs::read_link(process.join("fd").join(fd.to_string())) else {
        return Err(WrongSubject::NoDescriptor { pid, fd });
    };
    let what = what.to_string_lossy();
    if !what.starts_with("socket:") {
        return Err(WrongSubject::NoSocket { pid, fd, what: printable(&what) });
    }
    let network = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    if network(&process) != network(Path::new("/proc/self")) {
        return Err(WrongSubject::Elsewhere { pid, fd });
    }
    Err(WrongSubject::NoConnection { pid, fd })
}

fn deadline(seconds: f64) -> Instant {
    Instant::now() + Duration::from_secs_f64(seconds)
}

/// How all of them stand, as soon as each is as `is_done` wants it, or at the deadline.
fn states_when(
    pairs: &[Pair<'_>],
    user: u32,
    deadline: Instant,
    is_done: impl Fn(&State) -> bool,
) -> anyhow::Result<Vec<State>> {
    loop {
        let states = states(pairs, user)?;
        if states.iter().all(&is_done) || Instant::now() >= deadline {
            return Ok(states);
        }
        sleep(LOOK_EVERY);
    }
}

/// How all of them stand, by one look.
fn states(pairs: &[Pair<'_>], user: u32) -> anyhow::Result<Vec<State>> {
    let cookies: Vec<u64> = pairs.iter().flat_map(Pair::ends).map(|it| it.socket.cookie).collect();
    let seen = look(user).map_err(refused)?;
    let ordered = ordered(Whose::User(user), &cookies).map_err(refused)?;
    let seen = by_cookie(&seen);
    let state = |pair: &Pair<'_>| {
        let of = |end: &Connection| seen.get(&end.socket.cookie).copied();
        let (end, other): (Option<&Seen>, Option<&Seen>) = (of(pair.end), pair.other.and_then(of));
        let both = [end, other].into_iter().flatten();
        State {
            // The sender says it first.
            fast: [
                end.is_some_and(|it| it.sending.fast),
                other.map_or_else(|| end.is_some_and(|it| it.receiving.fast), |it| it.sending.fast),
            ],
            for_good: both.clone().find(|it| it.pinned).map(|it| it.reason),
            held: both.clone().any(|it| it.held) || pair.ends().any(|it| ordered.contains(&it.socket.cookie)),
        }
    };
    Ok(pairs.iter().map(state).collect())
}
