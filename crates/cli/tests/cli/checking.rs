//! `underpass advise --check`: advice from a small record, put to the test, ended and gone on with.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::{output, stderr, stdout, underpass};

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// A check in this folder.
fn checking(folder: &Path, samples: &str) -> Command {
    let arguments = ["advise", "--check", "--quick", "--samples", samples, "--seed", "3", "--minutes", "5"];
    let mut command = underpass(&arguments);
    command.args(["--json", "check.json", "--record", "checked.json", "layers.json"]).current_dir(folder);
    command
}

/// Its exit code, and what it printed.
fn check(folder: &Path, samples: &str) -> (Option<i32>, String, String) {
    let done = checking(folder, samples).output().unwrap();
    (done.status.code(), stdout(&done), stderr(&done))
}

#[test]
fn a_check_goes_on_where_it_was_ended_and_measures_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let layers = at("layers.json");
    let bench =
        ["bench", "layers", "--quick", "--samples", "2", "--only", "× memcpy", "--json", layers.to_str().unwrap()];
    assert!(output(&bench).status.success());

    let (code, printed, said) = check(folder.path(), "2");
    assert_eq!(code, Some(0), "{said}");
    // Three layers that copy, in line and by threads, between 1 KiB, 64 KiB and 1 MiB.
    assert!(printed.contains("all: 2 cases") && printed.contains("layers: 2 cases"), "{printed}");
    let whole = read(&at("check.json"));
    assert_eq!((&whole["format"], &whole["complete"]), (&"underpass-check".into(), &true.into()));
    let cases = whole["cases"].as_array().unwrap();
    assert_eq!(cases.iter().map(|it| it["size"].as_u64().unwrap()).collect::<Vec<_>>(), [8 << 10, 256 << 10]);
    for case in cases {
        assert_eq!((&case["record"], case["ways"].as_array().unwrap().len()), (&"layers".into(), 2));
    }

    // Half of it is there, as if it had been killed.
    let mut half = read(&at("checked.json"));
    let all = half["measurements"].as_array().unwrap().clone();
    let first: Vec<Value> = all.iter().filter(|it| it["size"] == all[0]["size"]).cloned().collect();
    assert!(first.len() < all.len());
    (half["measurements"], half["complete"]) = (first.clone().into(), false.into());
    fs::write(at("checked.json"), half.to_string()).unwrap();
    fs::remove_file(at("check.json")).unwrap();
    // The reader of its output goes away meanwhile.
    let mut running = checking(folder.path(), "2").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let printed = BufReader::new(running.stdout.take().unwrap());
    assert!(printed.lines().map_while(Result::ok).any(|line| line == "CHECK, seed 3"));
    let end = running.wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(1), "{}", stderr(&end));
    let written = read(&at("check.json"));
    assert_eq!((&written["complete"], written["cases"].as_array().unwrap().len()), (&true.into(), 2));
    let again = read(&at("checked.json"));
    assert_eq!((&again["complete"], again["measurements"].as_array().unwrap().len()), (&true.into(), all.len()));
    assert_eq!(again["measurements"].as_array().unwrap()[..first.len()], first, "it is as it was");

    let (code, _, said) = check(folder.path(), "3");
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("its number of samples is 2, not 3") && said.contains("name another file"), "{said}");
    assert_eq!(read(&at("checked.json")), again, "and is not touched");

    let page = at("report.html");
    let (page, json) = (page.to_str().unwrap(), at("check.json"));
    assert!(output(&["report", "--output", page, json.to_str().unwrap()]).status.success());
    assert!(fs::read_to_string(page).unwrap().contains("Advice against measurements at sizes that no record has"));
}

#[test]
fn endpoints_that_no_survey_is_of_are_a_mistake() {
    let folder = tempfile::tempdir().unwrap();
    let layers = folder.path().join("layers.json");
    let bench = ["bench", "layers", "--quick", "--samples", "1", "--only", "TPDU", "--json", layers.to_str().unwrap()];
    assert!(output(&bench).status.success());
    let endpoint = |name: &str| {
        format!("[[endpoint]]\nname = \"{name}\"\nkind = \"host\"\naddress = \"127.0.0.1\"\nstart = [\"true\"]\n")
    };
    fs::write(folder.path().join("endpoints.toml"), endpoint("a") + &endpoint("b")).unwrap();
    let mut command = underpass(&["advise", "--check", "--quick", "--endpoints", "endpoints.toml", "layers.json"]);
    let refused = command.current_dir(folder.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    assert!(stderr(&refused).contains("no survey among the records"), "{}", stderr(&refused));
}

/// A record of layers that is kept here, changed and written into a folder.
fn layers(folder: &Path, change: impl FnOnce(&mut Value)) -> PathBuf {
    let mut record = read(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records/layers-2026-11-23.json"));
    change(&mut record);
    let file = folder.join("layers.json");
    fs::write(&file, record.to_string()).unwrap();
    file
}

#[test]
fn nothing_in_a_record_does_something_to_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let file = layers(folder.path(), |record| record["host"]["processor"] = "a \u{1b}[2J processor".into());
    let advice = output(&["advise", file.to_str().unwrap()]);
    assert!(advice.status.success(), "{}", stderr(&advice));
    assert!(!stdout(&advice).contains('\u{1b}') && stdout(&advice).contains("a \\u{1b}[2J processor"));
    let missing = output(&["report", "a\u{1b}[2J.json"]);
    assert!(!stderr(&missing).contains('\u{1b}') && stderr(&missing).contains("a\\u{1b}[2J.json"));
    let page = folder.path().join("a\u{1b}[2J.html");
    let written = output(&["report", "--output", page.to_str().unwrap(), file.to_str().unwrap()]);
    assert!(written.status.success() && page.exists(), "{}", stderr(&written));
    assert!(!stdout(&written).contains('\u{1b}') && stdout(&written).contains("a\\u{1b}[2J.html"));
}

/// The page is there; that nobody was told is an error, and no crash.
#[test]
fn a_full_standard_output_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let (file, page) = (layers(folder.path(), |_| {}), folder.path().join("report.html"));
    let mut report = underpass(&["report", "--output", page.to_str().unwrap(), file.to_str().unwrap()]);
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let report = report.stdout(full).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(report.status.code(), Some(1), "{}", stderr(&report));
    assert!(stderr(&report).contains("cannot write all of it to standard output"), "{}", stderr(&report));
    assert!(fs::read_to_string(page).unwrap().ends_with("</html>"));
}

#[test]
fn no_file_is_written_over_that_is_read_or_written_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = layers(folder.path(), |_| {});
    let before = fs::read_to_string(&file).unwrap();
    for arguments in [
        &["report", "--output", "./layers.json", "layers.json"][..],
        &["advise", "--output", "layers.json", "layers.json"],
        &["advise", "--check", "--record", "layers.json", "layers.json"],
        &["advise", "--check", "--record", "one", "--json", "one", "layers.json"],
        &["bench", "layers", "--json", "one", "--html", "./one"],
        &["survey", "layers.json", "--csv", "layers.json"],
        &["survey", "--local", "--json", "one", "--csv", "one.journal"],
    ] {
        let refused = underpass(arguments).current_dir(folder.path()).output().unwrap();
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}: {}", stderr(&refused));
        assert!(stderr(&refused).contains("would be written over; name another file"), "{}", stderr(&refused));
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), before);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    let nowhere = ["report", "--output", "/dev/null", file.to_str().unwrap()];
    assert!(output(&nowhere).status.success());
}
