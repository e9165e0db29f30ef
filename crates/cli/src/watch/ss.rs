//! The list, once.

use serde_json::{Value, json};
use underpass_lab::unit::Unit;
use underpass_segment::end::Stage;
use underpass_segment::kernel;
use underpass_segment::watch::{Way, Whose};

use super::{Connection, Images, View, path, runs, spaces};
use crate::cli::SsArguments;
use crate::failure::Failure;
use crate::output::{plural, print, table};
use crate::say;

const HEADING: [&str; 15] = [
    "LOCAL",
    "PEER",
    "PROCESS",
    "OUT",
    "IN",
    "UNREAD OUT",
    "UNREAD IN",
    "SENT RING",
    "SENT KERNEL",
    "RECEIVED RING",
    "RECEIVED KERNEL",
    "DOORBELLS",
    "WAITS/SLEEPS",
    "MEAN WAIT",
    "REASON",
];

/// Lists the connections, or what was counted of each program.
///
/// # Errors
/// The kernel does not say what there is, or there is no standard output.
pub fn ss(arguments: &SsArguments) -> Result<(), Failure> {
    if arguments.stats {
        return runs::show(arguments.json);
    }
    let view = View::gather(&mut Images::default())?;
    let shown = if arguments.json {
        let connections: Vec<Value> = view.connections.iter().map(to_json).collect();
        format!("{:#}\n", json!({ "connections": connections }))
    } else if view.connections.is_empty() {
        say(format_args!("{}", nothing(&view)));
        return Ok(());
    } else {
        let heading = HEADING.map(String::from).to_vec();
        let rows: Vec<_> = std::iter::once(heading).chain(view.connections.iter().map(row)).collect();
        table(&rows, &[5, 6, 7, 8, 9, 10, 11, 12])
    };
    Ok(print(shown)?)
}

/// What to say where there is no connection.
pub fn nothing(view: &View) -> String {
    if view.processes.is_empty() && spaces::whose() == Whose::All {
        return "nobody has a program under Underpass on this host; start one by `underpass run -- PROGRAM`".into();
    }
    if view.processes.is_empty() {
        let user = kernel::user_id();
        return format!(
            "user {user} has no program under Underpass here; start one by `underpass run -- PROGRAM`, and look as the \
             same user"
        );
    }
    let processes = plural(view.processes.len() as u64, "process", "processes");
    let place = if spaces::whose() == Whose::All { "" } else { " in this network namespace" };
    format!("{processes} under Underpass, without a TCP connection{place}")
}

fn row(it: &Connection) -> Vec<String> {
    let size = |n: Option<u64>| n.map_or("-".into(), |n| Unit::Bytes.show(n as f64));
    let end = it.end.as_ref();
    let [out, back] = ways(it);
    vec![
        it.socket.local.to_string(),
        it.socket.peer.to_string(),
        holders(it),
        path(out.is_some_and(|way| way.fast)).into(),
        path(back.is_some_and(|way| way.fast)).into(),
        size(it.unread[0]),
        size(it.unread[1]),
        size(out.map(|way| way.ring_bytes)),
        size(out.map(|way| way.kernel_bytes)),
        size(back.map(|way| way.ring_bytes)),
        size(back.map(|way| way.kernel_bytes)),
        end.map_or("-".into(), |end| end.bells.to_string()),
        end.map_or("-".into(), |end| format!("{}/{}", end.waits, end.sleeps)),
        mean_wait(it),
        reason(it),
    ]
}

/// The mean of the last waits, by which receives decide whether to poll.
pub fn mean_wait(it: &Connection) -> String {
    waited(it).map_or("-".into(), |mean_ns| Unit::Nanoseconds.show(mean_ns as f64))
}

fn waited(it: &Connection) -> Option<u64> {
    it.end.as_ref().filter(|end| end.waits > 0).map(|end| end.mean_wait_ns)
}

/// The directions out and in, where the library knows of them.
pub fn ways(it: &Connection) -> [Option<&Way>; 2] {
    let end = it.end.as_ref();
    [end.map(|end| &end.sending), end.map(|end| &end.receiving)]
}

/// The first of those that have the connection, and how many more do.
pub fn holders(it: &Connection) -> String {
    let Some(first) = it.holders.first() else { return "-".into() };
    let fd = first.fd.map_or(String::new(), |fd| format!(" fd {fd}"));
    let more = match it.holders.len() - 1 {
        0 => String::new(),
        more => format!(" +{more}"),
    };
    format!("{} {}{fd}{more}", first.name, first.pid)
}

/// All that have the connection, for a script.
pub fn holders_to_json(it: &Connection) -> Vec<Value> {
    it.holders.iter().map(|it| json!({ "name": it.name, "pid": it.pid, "fd": it.fd })).collect()
}

/// Why the connection is on kernel TCP, if it is; "-" where nobody knows.
pub fn reason(it: &Connection) -> String {
    match it.reason {
        Some(reason) => reason.key().into(),
        None if it.end.is_none() => "-".into(),
        None => String::new(),
    }
}

/// The connection for scripts.
pub fn to_json(it: &Connection) -> Value {
    let end = it.end.as_ref();
    let ways = ways(it);
    let way = |index: usize| {
        let way = ways[index];
        json!({
            "path": path(way.is_some_and(|way| way.fast)),
            "unread": it.unread[index],
            "ring_bytes": way.map(|way| way.ring_bytes),
            "kernel_bytes": way.map(|way| way.kernel_bytes),
        })
    };
    json!({
        "local": it.socket.local.to_string(),
        "peer": it.socket.peer.to_string(),
        "state": it.socket.state,
        "processes": holders_to_json(it),
        "stage": end.map(|end| stage(end.stage)),
        "reason": it.reason.map(|reason| reason.key()),
        "held": it.held,
        "ring_size": end.and_then(|end| end.ring_size),
        "out": way(0),
        "in": way(1),
        "doorbells": end.map(|end| end.bells),
        "waits": end.map(|end| end.waits),
        "sleeps": end.map(|end| end.sleeps),
        "mean_wait_ns": waited(it),
        "kernel_queues": { "in": it.socket.queues[0], "out": it.socket.queues[1] },
    })
}

/// How far a connection has come.
pub fn stage(stage: Stage) -> &'static str {
    match stage {
        Stage::Plain => "plain",
        Stage::Waiting => "waiting",
        Stage::Joined => "joined",
        Stage::Pinned => "pinned",
        Stage::Broken => "broken",
    }
}
