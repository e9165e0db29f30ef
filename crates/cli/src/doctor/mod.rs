//! `underpass doctor`: whether a program or a process can be accelerated here, and what to do where it cannot.

mod broker;
mod process;
mod program;
mod system;

use std::fmt;
use std::time::Duration;

use serde_json::{Value, json};
use underpass_policy::User;

use crate::broker::{Contact, ask};
use crate::cli::DoctorArguments;
use crate::failure::Failure;
use crate::output::{print, printable, table, without_codes};
use crate::settings::Settings;

pub use process::{configuration, loaded};

/// A daemon that does not answer within this time is stopped, or has more to do than it can.
const PATIENCE: Duration = Duration::from_secs(1);
/// Exit code when something keeps the program on kernel TCP.
const BARRED: i32 = 1;

/// What one look has shown.
struct Finding {
    /// What was looked at.
    subject: &'static str,
    verdict: Verdict,
    /// What is so.
    text: String,
    /// What to do about it; nothing where all is well.
    remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// All is as it should be.
    Fine,
    /// Some connections stay on kernel TCP for it.
    Mind,
    /// All do.
    Bars,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Fine => "ok",
            Verdict::Mind => "mind",
            Verdict::Bars => "no",
        })
    }
}

impl Finding {
    fn fine(subject: &'static str, text: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Fine, text: without_codes(&text.into()), remedy: String::new() }
    }

    fn mind(subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Mind, text: without_codes(&text.into()), remedy: remedy.into() }
    }

    /// What bars a process by itself is the daemon's to prove.
    fn leave_to_the_broker(&mut self) {
        self.verdict = Verdict::Mind;
        self.text += "; underpassd proves them, for ends that its policy lets share memory";
    }

    fn bars(subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Bars, text: without_codes(&text.into()), remedy: remedy.into() }
    }
}

/// Looks, and says what it has found. The value is the exit code.
///
/// # Errors
/// Wrong settings, no such program or process, or no standard output.
pub fn doctor(arguments: &DoctorArguments) -> Result<i32, Failure> {
    let settings = Settings::gather(arguments.settings.config.as_deref(), &arguments.settings.set)?;
    let process = process::number(&arguments.subject);
    let (name, mut findings, config) = match process {
        Some(pid) => {
            let it = process::look(pid).map_err(|error| Failure::WrongUse(error.into()))?;
            (it.name, it.findings, it.config)
        }
        None => {
            let found = program::look(&arguments.subject);
            let (name, findings) = found.map_err(|error| Failure::WrongUse(error.into()))?;
            (name, findings, None)
        }
    };
    let broker = config.as_ref().map_or(settings.typed.broker, |config| config.broker);
    // A process under Underpass goes by the settings it was started with, and not by those of this command.
    if config.is_none() {
        findings.extend(system::settings(&settings));
    }
    findings.extend(system::look());
    let contact = ask(&broker, PATIENCE);
    findings.push(broker::look(&contact, &broker));
    if let Contact::Answers(_) = contact {
        findings.iter_mut().filter(|it| it.subject == process::DESCRIPTORS).for_each(Finding::leave_to_the_broker);
    }
    let user = process.and_then(|pid| User::of_process(pid.parse().ok()?).ok());
    findings.extend(user.and_then(|user| broker::policy(&contact, &user)));
    let barred = findings.iter().any(|it| it.verdict == Verdict::Bars);
    let shown = if arguments.json {
        format!("{:#}\n", to_json(&name, barred, &findings))
    } else {
        to_text(&name, barred, process.is_some(), &findings)
    };
    print(shown).map_err(|error| Failure::Broken(error.into()))?;
    Ok(if barred { BARRED } else { 0 })
}

fn to_text(name: &str, barred: bool, is_running: bool, findings: &[Finding]) -> String {
    let mut rows = Vec::new();
    for it in findings {
        rows.push(vec![it.verdict.to_string(), it.subject.into(), printable(&it.text)]);
        if !it.remedy.is_empty() {
            rows.push(vec![String::new(), String::new(), format!("→ {}", printable(&it.remedy))]);
        }
    }
    let verdict = if barred {
        "stays on kernel TCP, at its speed"
    } else {
        "can go fast, wherever the other end runs under Underpass too: here, as the same user, or as underpassd allows"
    };
    let name = printable(name);
    // What shows only once there are connections.
    let after = match (barred, is_running) {
        (true, _) => "",
        (false, true) => "\n`underpass ss` says of each of its connections how it fares now.\n",
        (false, false) => "\nOnce it has run, `underpass run --stats` says of each connection how it fared.\n",
    };
    format!("{name}: {verdict}\n{}{after}", table(&rows, &[]))
}

fn to_json(name: &str, barred: bool, findings: &[Finding]) -> Value {
    let findings: Vec<Value> = findings
        .iter()
        .map(|it| {
            let remedy = Some(&it.remedy).filter(|text| !text.is_empty());
            json!({ "subject": it.subject, "verdict": it.verdict.to_string(), "text": it.text, "remedy": remedy })
        })
        .collect();
    json!({ "name": name, "can_go_fast": !barred, "findings": findings })
}
