//! `underpass bench` and `demo` that are ended before their end: what was measured until then is kept, and says that it
//! is not all.

use std::fs;
use std::path::Path;
use std::process::{Child, Output, Stdio};

use serde_json::Value;

use crate::support::{kill, output, stderr, stdout, underpass, wait_for};

/// A run that takes a while, needs no program, and keeps its record here.
fn begin(json: &Path) -> Child {
    let mut command = underpass(&["bench", "layers", "--quick", "--samples", "3", "--json"]);
    command.arg(json).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// The record, once it has a measurement. A file that is not whole fails the test.
fn first(json: &Path) -> Value {
    let read = || Some(serde_json::from_str::<Value>(&fs::read_to_string(json).ok()?).expect("a whole record"));
    wait_for("a measurement", || read().filter(|it| !it["measurements"].as_array().unwrap().is_empty()))
}

fn end(run: Child, signal: &str) -> Output {
    kill(signal, run.id());
    run.wait_with_output().unwrap()
}

#[test]
fn a_run_that_is_interrupted_leaves_what_it_has_measured() {
    for signal in ["INT", "TERM"] {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("record.json");
        let run = begin(&json);
        first(&json);
        let end = end(run, signal);
        assert_eq!(end.status.code(), Some(1), "{}", stderr(&end));
        assert!(stderr(&end).contains("ended before all was measured"), "{}", stderr(&end));
        let record = first(&json);
        assert_eq!(record["complete"], false);
        let skipped = record["skipped"].as_array().unwrap().last().unwrap();
        assert_eq!(skipped["reason"], "the run was interrupted");
        assert!(skipped["name"].as_str().unwrap().contains("and what follows: "), "{skipped}");

        let html = folder.path().join("report.html");
        let (record, page) = (json.to_str().unwrap(), html.to_str().unwrap());
        assert!(output(&["report", "--output", page, record]).status.success());
        assert!(fs::read_to_string(&html).unwrap().contains("record: not complete"));
        let advice = output(&["advise", record]);
        assert!(stdout(&advice).contains("Not complete, as they were ended before all was measured: record\n"));
    }
}

#[test]
fn a_run_that_is_killed_leaves_a_whole_record() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("record.json");
    let run = begin(&json);
    first(&json);
    end(run, "KILL");
    assert_eq!(first(&json)["complete"], false);
}

#[test]
fn a_record_stays_where_nothing_was_measured() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("record.json");
    fs::write(&json, "what was there").unwrap();
    let refused = output(&["bench", "layers", "--quick", "--only", "nosuch", "--json", json.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert_eq!(fs::read_to_string(&json).unwrap(), "what was there");
    let new = folder.path().join("new.json");
    output(&["bench", "layers", "--quick", "--only", "nosuch", "--json", new.to_str().unwrap()]);
    assert!(!new.exists(), "nobody finds an empty record");
}
