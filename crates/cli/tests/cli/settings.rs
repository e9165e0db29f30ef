//! Flags before the environment before the file before defaults; mistakes are named with their place.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::support::{is_root, output, skip, stderr, stdout, underpass};

fn file(text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("u.toml");
    fs::write(&path, text).unwrap();
    (directory, path)
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", stderr(output));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn each_value_says_where_it_came_from() {
    let (_directory, path) = file("# a comment\nspin_us = 1\nring_bytes = 65536\nmode = \"off\"\n");
    let mut command = underpass(&["config", "--json", "--set", "spin_us=3"]);
    let shown = json(&command.env("UNDERPASS_CONFIG", &path).env("UNDERPASS_RING_BYTES", "131072").output().unwrap());
    let setting = |name: &str| {
        let setting = &shown["settings"][name];
        (setting["value"].as_str().unwrap().to_string(), setting["from"].as_str().unwrap().to_string())
    };
    assert_eq!(setting("spin_us"), ("3".into(), "flag".into()));
    assert_eq!(setting("ring_bytes"), ("131072".into(), "environment".into()));
    assert_eq!(setting("mode"), ("off".into(), "file".into()));
    assert_eq!(setting("go_up_bytes"), ("16384".into(), "default".into()));
    assert_eq!(shown["settings"]["mode"]["line"], 4);
    assert_eq!(shown["file"].as_str(), path.to_str());
}

#[test]
fn the_users_file_is_found() {
    let directory = tempfile::tempdir().unwrap();
    for (variable, place) in [("XDG_CONFIG_HOME", "underpass"), ("HOME", ".config/underpass")] {
        let folder = directory.path().join(place);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("underpass.toml"), "spin_us = 9\n").unwrap();
        let mut command = underpass(&["config"]);
        command.env_remove("UNDERPASS_CONFIG").env_remove("XDG_CONFIG_HOME").env(variable, directory.path());
        let text = stdout(&command.output().unwrap());
        assert!(text.contains(&format!("{}:1", folder.join("underpass.toml").display())), "{text}");
    }
}

#[test]
fn the_table_names_every_setting() {
    let text = stdout(&output(&["config"]));
    for name in ["mode", "go_up_messages", "ring_bytes", "spin_us", "io_uring", "default", "--set mode=on"] {
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn mistakes_are_named_with_place_and_remedy() {
    let (_directory, path) = file("mode = \"on\"\nspin_su = 3\n");
    let path = path.to_str().unwrap();
    for command in [["config"].as_slice(), &["run", "--", "true"]] {
        let (verb, rest) = command.split_first().unwrap();
        let refused = output(&[&[*verb, "--config", path], rest].concat());
        assert_eq!(refused.status.code(), Some(2));
        assert_eq!(
            stderr(&refused),
            format!("underpass: {path}:2: there is no setting spin_su; did you mean spin_us?\n")
        );

        let refused = output(&[&[*verb, "--set", "mode=maybe"], rest].concat());
        assert_eq!(refused.status.code(), Some(2));
        assert_eq!(stderr(&refused), "underpass: --set mode=maybe: \"maybe\" does not fit mode, which is: on | off\n");

        let refused = underpass(command).env("UNDERPASS_SPINUS", "3").output().unwrap();
        assert_eq!(refused.status.code(), Some(2));
        let words =
            "underpass: in the environment: there is no setting UNDERPASS_SPINUS; did you mean UNDERPASS_SPIN_US?\n";
        assert_eq!(stderr(&refused), words);
    }
    for nothing in ["mode", "=5", " =on"] {
        assert!(
            stderr(&output(&["config", "--set", nothing]))
                .contains("is written KEY=VALUE, for instance --set mode=off")
        );
    }
}

#[test]
fn a_file_that_was_asked_for_has_to_be_there() {
    let flag = output(&["config", "--config", "/no/file.toml"]);
    assert_eq!(flag.status.code(), Some(2));
    assert!(stderr(&flag).ends_with("/no/file.toml (named by --config): No such file or directory\n"));
    let variable = underpass(&["config"]).env("UNDERPASS_CONFIG", "/no/file.toml").output().unwrap();
    assert!(stderr(&variable).contains("/no/file.toml (named by UNDERPASS_CONFIG)"));
}

#[test]
fn what_is_no_file_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let refused = output(&["config", "--config", pipe.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).ends_with("pipe (named by --config): it is not a regular file\n"), "{}", stderr(&refused));
}

/// Fails if `settings::read` asks the name alone what it is, and opens it without O_NONBLOCK.
#[test]
fn a_file_that_becomes_another_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::write(at("plain"), "spin_us = 7\n").unwrap();
    assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
    let point = |to: &str| {
        std::os::unix::fs::symlink(at(to), at("next")).unwrap();
        fs::rename(at("next"), at("file")).unwrap();
    };
    point("plain");
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                point("pipe");
                point("plain");
            }
        });
        let answers: Vec<_> = (0..100)
            .map(|_| {
                let command = underpass(&["config", "--config", at("file").to_str().unwrap()]);
                let mut words = std::process::Command::new("timeout");
                words.arg("20").arg(command.get_program()).args(command.get_args());
                words.output().unwrap().status.code()
            })
            .collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(answers.iter().all(|it| matches!(it, Some(0 | 2))), "{answers:?}");
    });
}

#[test]
fn what_never_ends_is_not_read_to_its_end() {
    let (_folder, path) = file(&"# A line.\n".repeat(200_000));
    let refused = output(&["config", "--config", path.to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).ends_with("(named by --config): it has more than 1 MiB\n"), "{}", stderr(&refused));
}

#[test]
fn broken_toml_is_named_with_its_line() {
    let (_directory, path) = file("mode = \"on\"\nspin_us == 3\n");
    let broken = output(&["config", "--config", path.to_str().unwrap()]);
    assert_eq!(broken.status.code(), Some(2));
    assert!(stderr(&broken).starts_with(&format!("underpass: {}:2: ", path.display())), "{}", stderr(&broken));
}

#[test]
fn what_is_no_text_is_called_so() {
    let (_directory, path) = file("");
    fs::write(&path, b"mode = \"\xff\"\n").unwrap();
    let broken = output(&["config", "--config", path.to_str().unwrap()]);
    assert_eq!(broken.status.code(), Some(2));
    assert!(
        stderr(&broken).ends_with("(named by --config): it is not text in UTF-8, as TOML is\n"),
        "{}",
        stderr(&broken)
    );
}

#[test]
fn an_empty_variable_is_none() {
    let shown = json(&underpass(&["config", "--json"]).env("UNDERPASS_MODE", "").output().unwrap());
    assert_eq!(shown["settings"]["mode"]["from"], "default");
}

#[test]
fn a_figure_that_there_is_not_is_a_mistake() {
    let refused = output(&["bench", "stream", "--quick", "--only", "nosuch"]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    assert!(
        stderr(&refused).contains("--only \"nosuch\": no figure of this suite has that in its name; there are\n  64 B")
    );
}

#[test]
fn what_cannot_be_measured_here_is_told_where_no_figure_is_found() {
    let mut command = underpass(&["bench", "driver", "--quick", "--only", "nosuch"]);
    // Its own temporary folder: /tmp need not be one for every user.
    let folder = tempfile::tempdir().unwrap();
    if is_root() {
        std::os::unix::fs::chown(folder.path(), Some(65534), Some(65534)).unwrap();
        command.uid(65534).gid(65534).current_dir("/").env("TMPDIR", folder.path());
    }
    let refused = match command.output() {
        Ok(refused) => refused,
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => {
            return skip("the build lies in a directory that other users cannot enter");
        }
        Err(error) => panic!("{error}"),
    };
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    let reason = "link drivers: not measured, a network namespace cannot be made (Operation not permitted";
    assert!(stderr(&refused).contains(reason), "{}", stderr(&refused));
}

#[test]
fn the_benchmarks_take_the_same_settings_and_check_them_first() {
    let refused = output(&["bench", "pingpong", "--set", "spin_su=1"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("did you mean spin_us?"));
    let refused = output(&["demo", "--samples", "0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("a whole number from 1 to 1000 is needed"));
    let unwritable = output(&["bench", "pingpong", "--json", "/no/folder/record.json"]);
    assert_eq!(unwritable.status.code(), Some(1));
    assert!(stderr(&unwritable).contains("cannot write /no/folder/record.json"));
    // No file can be made in /dev/fd; the command notices that before it measures.
    let unwritable = output(&["demo", "--output", "/dev/fd"]);
    assert_eq!(unwritable.status.code(), Some(1));
    assert!(stderr(&unwritable).contains("cannot write /dev/fd/"), "{}", stderr(&unwritable));
}
