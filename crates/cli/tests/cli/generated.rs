//! The manual pages and completions in `packaging/` are those of this command; `make generate` writes them anew.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use underpass_segment::config::KEYS;
use underpass_segment::reason::Reason;

use crate::support::{output, stdout};

fn packaging(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(folder)
}

fn files(folder: &Path) -> BTreeMap<String, String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    entries.map(|e| (e.file_name().into_string().unwrap(), fs::read_to_string(e.path()).unwrap())).collect()
}

#[test]
fn manual_pages_are_up_to_date() {
    let directory = tempfile::tempdir().unwrap();
    assert!(output(&["man", "--output", directory.path().to_str().unwrap()]).status.success());
    let (fresh, mut kept) = (files(directory.path()), files(&packaging("man")));
    // The page of underpassd is made by its own crate.
    kept.retain(|name, _| name.ends_with(".1"));
    assert!(fresh == kept, "packaging/man is out of date: run `make generate`");
    assert_eq!(stdout(&output(&["man"])), kept["underpass.1"]);
    assert_eq!(stdout(&output(&["man", "run"])), kept["underpass-run.1"]);
}

#[test]
fn completions_are_up_to_date() {
    let kept = files(&packaging("completions"));
    for (shell, file) in [("bash", "underpass.bash"), ("zsh", "_underpass"), ("fish", "underpass.fish")] {
        assert!(kept[file] == stdout(&output(&["completions", shell])), "{file} is out of date: run `make generate`");
    }
    assert_eq!(kept.len(), 3);
}

/// The advice in the repository is what this command says of the records.
#[test]
fn the_advice_is_up_to_date() {
    let records = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
    let kept = |name: &str| fs::read_to_string(records.join(name)).unwrap();
    let file = |suite: &str| records.join(format!("{suite}-2026-11-30.json")).into_os_string().into_string().unwrap();
    let measured = ["survey", "pingpong", "stream", "broker", "layers", "driver", "checksum"].map(file);
    let directory = tempfile::tempdir().unwrap();
    let placement = directory.path().join("placement.toml");
    let advise = |options: &[&str]| {
        let arguments =
            ["advise"].into_iter().chain(options.iter().copied()).chain(measured.iter().map(String::as_str));
        stdout(&output(&arguments.collect::<Vec<&str>>()))
    };
    advise(&["--output", placement.to_str().unwrap()]);
    let said = advise(&[]);
    assert!(said == kept("advice-2026-11-30.txt"), "the advice is out of date: run `make generate`");
    assert!(
        fs::read_to_string(&placement).unwrap() == kept("placement-2026-11-30.toml"),
        "the placement is out of date: run `make generate`"
    );
}

#[test]
fn bash_offers_what_may_follow() {
    let script = packaging("completions").join("underpass.bash");
    let offered = |words: &[&str]| {
        let ask = "source \"$1\"; shift; COMP_WORDS=(underpass \"$@\"); COMP_CWORD=$#; \
                   _underpass underpass \"${COMP_WORDS[-1]}\" \"${COMP_WORDS[-2]}\"; printf '%s\\n' \
                   \"${COMPREPLY[@]}\"";
        let mut bash = std::process::Command::new("bash");
        bash.args(["--norc", "-c", ask, "ask"]).arg(&script).args(words);
        let offered = stdout(&bash.output().unwrap());
        offered.lines().map(String::from).collect::<Vec<_>>()
    };
    assert_eq!(offered(&["run", "--set", "mo"]), ["mode=on", "mode=off"]);
    assert_eq!(offered(&["man", "ru"]), ["run"]);
    for before in [["run"].as_slice(), &["run", "--"], &["run", "--quiet"], &["diff", "--at-once"], &["doctor"]] {
        assert!(offered(&[before, &["slee"]].concat()).contains(&"sleep".to_string()), "{before:?}");
    }
    assert!(offered(&["run", "--st"]).contains(&"--stats".to_string()));
}

#[test]
fn an_unknown_page_names_those_that_exist() {
    let output = output(&["man", "walk"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(crate::support::stderr(&output).contains("there is no page underpass-walk; there are those of run, "));
}

/// The cells of each row of the tables in a file of `docs`.
fn table(file: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(file)).unwrap();
    let rows = text.lines().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(String::from).collect()).collect()
}

#[test]
fn the_documents_say_what_the_command_says() {
    let rows = table("reasons.md");
    for reason in Reason::ALL {
        // Behind these stands the remedy.
        let row = [format!("`{}`", reason.key()), reason.sentence().into()];
        assert!(rows.iter().any(|it| it.len() == 3 && it.starts_with(&row)), "{row:?}");
    }
    let rows = table("configuration.md");
    for key in KEYS {
        let (name, default, help) = (format!("`{}`", key.name), key.default.to_string(), key.help.to_string());
        assert!(
            rows.iter().any(|it| it.first() == Some(&name) && it.ends_with(&[default.clone(), help.clone()])),
            "{name}"
        );
    }
}
