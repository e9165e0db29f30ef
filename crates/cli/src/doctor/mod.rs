//! `underpass doctor`: whether a program or a process can be accelerated here, and what to do where it cannot.

mod process;
mod program;
mod system;

use std::fmt;
use std::io::{self, Write};

use serde_json::{Value, json};

use crate::cli::DoctorArguments;
use crate::output::table;
use crate::settings::Settings;

/// Exit code when something keeps the program on kernel TCP.
const BARRED: i32 = 1;

/// What one look has shown.
struct Finding {
    /// What was looked at.
    subject: &'static str,
    verdict: Verdict,
    /// What is so.
    text: String,
    /// What to do about it; nothing where all is well, or where nothing can be done.
    remedy: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// As it should be.
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
        Finding { subject, verdict: Verdict::Fine, text: text.into(), remedy: String::new() }
    }

    fn mind(subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Mind, text: text.into(), remedy: remedy.into() }
    }

    fn bars(subject: &'static str, text: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Finding { subject, verdict: Verdict::Bars, text: text.into(), remedy: remedy.into() }
    }
}

/// Looks, and says what it has found. The value is the exit code.
///
/// # Errors
/// Wrong settings, no such program or process, or no standard output.
pub fn doctor(arguments: &DoctorArguments) -> anyhow::Result<i32> {
    let settings = Settings::gather(arguments.settings.config.as_deref(), &arguments.settings.set)?;
    let (name, mut findings) = match process::number(&arguments.subject) {
        Some(pid) => process::look(pid)?,
        None => program::look(&arguments.subject)?,
    };
    findings.extend(system::look(&settings));
    let barred = findings.iter().any(|it| it.verdict == Verdict::Bars);
    let shown = if arguments.json {
        format!("{:#}\n", to_json(&name, barred, &findings))
    } else {
        to_text(&name, barred, &findings)
    };
    io::stdout().write_all(shown.as_bytes())?;
    Ok(if barred { BARRED } else { 0 })
}

fn to_text(name: &str, barred: bool, findings: &[Finding]) -> String {
    let mut rows = Vec::new();
    for it in findings {
        rows.push(vec![it.verdict.to_string(), it.subject.into(), it.text.clone()]);
        if !it.remedy.is_empty() {
            rows.push(vec![String::new(), String::new(), format!("→ {}", it.remedy)]);
        }
    }
    let verdict = if barred {
        "stays on kernel TCP, at its speed"
    } else {
        "can go fast, wherever the other end runs under Underpass too: here, as this user"
    };
    format!("{name}: {verdict}\n{}", table(&rows, &[]))
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
