//! `underpass policy`: what the administrator's policy lets programs do.
//!
//! `process` is what /proc says of the two processes, `verdict` what follows from that, the daemon's state and the
//! policy.

mod process;
mod verdict;

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use underpass_policy::{Policy, PolicyError};

use crate::broker::{self, Contact};
use crate::cli::{ExplainArguments, PolicyArguments, PolicyCommand};
use crate::failure::Failure;
use crate::output::{print, printable};
use crate::settings::Settings;
use crate::sys;
use process::Seen;
use verdict::{Here, Verdict};

/// A daemon that does not answer within this time is stopped, or has more to do than it can.
const PATIENCE: Duration = Duration::from_secs(1);
/// Exit code when connections stay on kernel TCP.
const SLOW: i32 = 1;

impl From<PolicyError> for Failure {
    fn from(error: PolicyError) -> Failure {
        Failure::WrongUse(error.into())
    }
}

/// Says what was asked for. The value is the exit code.
///
/// # Errors
/// Wrong settings, a wrong policy, no such process, or no standard output.
pub fn policy(arguments: &PolicyArguments) -> Result<i32, Failure> {
    match &arguments.command {
        PolicyCommand::Explain(arguments) => explain(arguments),
    }
}

fn explain(arguments: &ExplainArguments) -> Result<i32, Failure> {
    let settings = Settings::gather(arguments.settings.config.as_deref(), &arguments.settings.set)?;
    let look = |(pid, port)| process::look(pid, port).map_err(|error| Failure::WrongUse(error.into()));
    let ends = [look(arguments.one)?, look(arguments.other)?];
    let (policy, file) = read(arguments.policy.as_deref())?;
    // A process under Underpass goes by what it was started with.
    let socket = ends.iter().find_map(|it| it.broker).unwrap_or(settings.typed.broker);
    let contact = broker::ask(&socket, PATIENCE);
    let here = Here {
        contact: &contact,
        socket: broker::place(&socket),
        policy: &policy,
        file: file.as_deref(),
        network: network(),
    };
    let verdict = here.judge([&ends[0], &ends[1]]);
    let shown =
        if arguments.json { format!("{:#}\n", to_json(&ends, &verdict, &here)) } else { to_text(&ends, &verdict) };
    print(shown)?;
    Ok(if verdict.may_be_fast == Some(false) { SLOW } else { 0 })
}

fn read(named: Option<&Path>) -> Result<(Policy, Option<PathBuf>), PolicyError> {
    let trusted = [0, rustix::process::geteuid().as_raw()];
    match named {
        Some(path) => Ok((underpass_policy::read(path, &trusted)?, Some(path.into()))),
        None => underpass_policy::usual(&trusted).map(|(policy, file)| (policy, file.map(PathBuf::from))),
    }
}

/// The cookie of this command's network namespace, and its inode.
fn network() -> Option<(u64, u64)> {
    sys::network_cookie().zip(process::namespace(std::process::id(), "net"))
}

fn to_text(ends: &[Seen; 2], verdict: &Verdict) -> String {
    let said = match (verdict.may_be_fast, verdict.reason) {
        (Some(true), _) => "may be fast".to_string(),
        (None, _) => "may be fast or not".to_string(),
        (Some(false), reason) => format!("stay on kernel TCP ({})", reason.unwrap_or("unknown")),
    };
    let [one, other] = ends.each_ref().map(Seen::to_string);
    let mut text = format!("{one} and {other}: their connections {said}\n  {}\n", verdict.text);
    if let Some(remedy) = &verdict.remedy {
        text += &format!("  → {remedy}\n");
    }
    for note in &verdict.notes {
        text += &format!("  note: {note}\n");
    }
    let lines: Vec<String> = text.lines().map(printable).collect();
    lines.join("\n") + "\n"
}

fn to_json(ends: &[Seen; 2], verdict: &Verdict, here: &Here<'_>) -> Value {
    let processes = ends.each_ref().map(|it| {
        json!({
            "pid": it.pid,
            "name": it.name,
            "uid": it.user.uid,
            "gid": it.user.gid,
            "groups": it.user.groups.numbers(),
            "cgroup": it.user.cgroup,
            "port": it.port,
        })
    });
    let in_force = match here.contact {
        Contact::Answers(state) => Some(state.policy == here.policy.mark()),
        _ => None,
    };
    json!({
        "may_be_fast": verdict.may_be_fast,
        "reason": verdict.reason,
        "by": verdict.by,
        "rule": verdict.rule.as_ref().map(|it| json!({ "name": it.name, "line": it.line, "text": it.text })),
        "text": verdict.text,
        "remedy": verdict.remedy,
        "notes": verdict.notes,
        "policy": { "file": here.file.map(|it| it.to_string_lossy()), "in_force": in_force },
        "processes": processes,
    })
}
