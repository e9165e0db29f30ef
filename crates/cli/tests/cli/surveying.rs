//! `underpass survey` and `underpass agent`: mistakes, and surveys that are interrupted or killed.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::{UNDERPASS, is_root, kill, output, skip, state, stderr, stdout, underpass, wait_for};

#[test]
fn mistakes_in_options_and_files_are_told_before_anything_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |arguments: &[&str], code: i32| {
        let refused = underpass(arguments).current_dir(folder.path()).output().unwrap();
        assert_eq!(refused.status.code(), Some(code), "{arguments:?}: {}", stderr(&refused));
        stderr(&refused)
    };
    assert!(refused(&["survey", "none.toml"], 2).contains("cannot read none.toml"));
    assert!(refused(&["survey", "none.toml", "--local"], 2).contains("cannot be used with"));
    assert!(refused(&["survey", "none.toml", "--quick"], 2).contains("cannot be used with"));
    assert!(refused(&["survey", "none.toml", "--percentiles"], 2).contains("cannot be used with"));
    assert!(refused(&["agent", "--ports", "80"], 2).contains("20000-20015"));
    assert!(refused(&["agent", "--stdio", "--token", "t"], 2).contains("cannot be used with"));
    fs::write(folder.path().join("e.toml"), "[[endpoint]]\nname = \"a\"\nkind = \"toaster\"\naddress = \"10.0.0.1\"")
        .unwrap();
    let kind = refused(&["survey", "e.toml"], 2);
    assert!(kind.contains("e.toml") && kind.contains("toaster") && kind.contains("smartnic"), "{kind}");
    let token = folder.path().join("underpass.token");
    fs::write(&token, "a secret that everybody can read").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(refused(&["agent", "--listen", "127.0.0.1:0"], 2).contains("chmod 600"));
    fs::write(folder.path().join("survey.json"), "{}").unwrap();
    write_endpoints(folder.path());
    assert!(refused(&["survey", "endpoints.toml"], 2).contains("not a whole survey"));
    // What can be written to and keeps nothing: it would be read without end, for what it may have of a survey.
    for device in ["/dev/full", "/dev/null"] {
        let device = refused(&["survey", "endpoints.toml", "--json", device], 2);
        assert!(device.contains("is not a file") && device.contains("name a file with --json"), "{device}");
    }
    fs::remove_file(folder.path().join("survey.json")).unwrap();
    // What has no end, or no writer.
    assert!(Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap().success());
    for (file, what) in [("pipe", "a pipe"), ("/dev/zero", "a device"), (".", "a folder")] {
        let refusal = format!("it is {what} and no regular file; save in a file what it has to say, and name that");
        for (command, code) in [(["survey", file], 2), (["advise", file], 1), (["report", file], 1)] {
            let said = refused(&command, code);
            assert!(said.contains(file) && said.contains(&refusal), "{command:?}: {said}");
        }
    }
    fs::write(folder.path().join("survey.json.journal"), "a diary").unwrap();
    assert!(refused(&["survey", "endpoints.toml"], 2).contains("line 1 of the journal survey.json.journal is damaged"));
    assert_eq!(fs::read_to_string(folder.path().join("survey.json.journal")).unwrap(), "a diary");
}

#[test]
fn an_endpoint_that_is_not_there_is_named_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let token = folder.path().join("underpass.token");
    fs::write(&token, "a secret of our own").unwrap();
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let endpoints = format!(
        "token = \"underpass.token\"\n\
         [[endpoint]]\nname = \"a\"\nkind = \"host\"\naddress = \"127.0.0.1\"\nagent = \"{free}\"\n\
         [[endpoint]]\nname = \"b\"\nkind = \"host\"\naddress = \"127.0.0.1\"\nstart = [\"/no/such/ssh\", \"b\"]\n"
    );
    fs::write(folder.path().join("endpoints.toml"), endpoints).unwrap();
    let refused = underpass(&["survey", "endpoints.toml"]).current_dir(folder.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let message = stderr(&refused);
    assert!(message.contains(&format!("a: cannot reach the agent at {free}")), "{message}");
    assert!(message.contains("b: cannot start \"/no/such/ssh\""), "{message}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "token and endpoints");
}

#[test]
fn a_survey_that_was_killed_or_interrupted_goes_on_with_what_it_had() {
    if !["iperf3", "sockperf"].iter().all(|tool| Command::new(tool).arg("--version").output().is_ok()) {
        return skip("a survey needs iperf3 and sockperf");
    }
    let folder = tempfile::tempdir().unwrap();
    write_endpoints(folder.path());
    let begin =
        || underpass(&["survey", "endpoints.toml"]).current_dir(folder.path()).stderr(Stdio::piped()).spawn().unwrap();
    let mut killed = begin();
    let agents = wait_for("agents", || Some(children(&killed)).filter(|agents| agents.len() == 2));
    wait_for("two samples", || (lines(folder.path()).len() >= 3).then_some(()));
    kill("KILL", killed.id());
    killed.wait().unwrap();
    agents
        .iter()
        .for_each(|agent| wait_for("the end of an agent", || state(*agent).is_none_or(|it| it == 'Z').then_some(())));
    let before = lines(folder.path());

    let interrupted = begin();
    wait_for("another sample", || (lines(folder.path()).len() > before.len()).then_some(()));
    kill("INT", interrupted.id());
    let end = interrupted.wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(1), "{}", stderr(&end));
    assert!(
        stderr(&end).contains("samples are kept in survey.json.journal, and the same command takes the rest"),
        "{}",
        stderr(&end)
    );
    assert!(lines(folder.path()).starts_with(&before), "nothing is lost");
    let record = fs::read_to_string(folder.path().join("survey.json")).unwrap();
    assert!(record.contains("\"complete\": false"));
}

#[test]
fn a_survey_on_one_computer_says_that_it_is_emulated_and_leaves_no_namespace() {
    if !is_root() {
        return skip("network namespaces and control groups need root");
    }
    let folder = tempfile::tempdir().unwrap();
    let mut command = underpass(&["survey", "--local", "--quick", "--seed", "7"]);
    command.current_dir(folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let survey = command.spawn().unwrap();
    let id = survey.id();
    let mut ended = false;
    wait_for("a sample", || {
        ended = state(id).is_none_or(|it| it == 'Z');
        (ended || lines(folder.path()).len() >= 2).then_some(())
    });
    if !ended {
        kill("INT", id);
    }
    let end = survey.wait_with_output().unwrap();
    if ended {
        return skip(&format!("no endpoints can be made here: {}", stderr(&end)));
    }
    assert_eq!(end.status.code(), Some(1), "{}", stderr(&end));
    assert!(stderr(&end).contains("seed 7: 100 samples"), "{}", stderr(&end));
    let printed = stdout(&end);
    assert!(
        printed.contains("nic-b: a network namespace on the coordinator's computer, with 30 % of a processor"),
        "{printed}"
    );
    let groups =
        ["/sys/fs/cgroup", "/sys/fs/cgroup/cpu"].map(|mount| fs::read_dir(mount).into_iter().flatten().flatten());
    let ours = format!("underpass-survey-{id}-");
    assert!(groups.into_iter().flatten().all(|it| !it.file_name().to_string_lossy().starts_with(&ours)));
}

#[test]
fn an_agent_makes_its_token_once_and_listens_on_loopback() {
    let folder = tempfile::tempdir().unwrap();
    let token = folder.path().join("underpass.token");
    let agent = || {
        let mut agent = underpass(&["agent", "--listen", "127.0.0.1:0"])
            .current_dir(folder.path())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        wait_for("a token", || fs::read_to_string(&token).ok().filter(|it| it.len() == 65));
        let mut said = agent.stderr.take().unwrap();
        let mut text = String::new();
        let mut octet = [0];
        while !text.contains("the token is in") {
            assert_eq!(std::io::Read::read(&mut said, &mut octet).unwrap(), 1, "{text}");
            text.push(octet[0].into());
        }
        kill("TERM", agent.id());
        assert!(agent.wait().unwrap().success(), "it ends in order");
        text
    };
    assert!(agent().contains("listening at 127.0.0.1:"));
    let made = fs::read_to_string(&token).unwrap();
    assert_eq!(fs::metadata(&token).unwrap().permissions().mode() & 0o777, 0o600);
    agent();
    assert_eq!(fs::read_to_string(&token).unwrap(), made);
    assert!(!stdout(&output(&["agent", "--help"])).contains("--token <TOKEN>"), "a token is never on a command line");
}

/// Two endpoints whose agents the survey starts.
fn write_endpoints(folder: &Path) {
    let endpoint = |name: &str| {
        format!(
            "[[endpoint]]\nname = \"{name}\"\nkind = \"namespace\"\naddress = \"127.0.0.1\"\n\
             start = [\"{UNDERPASS}\", \"agent\", \"--stdio\"]\n"
        )
    };
    let plan = "[plan]\nsizes = [64]\nflows = [1]\ntls = []\nunderpass = false\n";
    fs::write(folder.join("endpoints.toml"), format!("{}{}{plan}", endpoint("a"), endpoint("b"))).unwrap();
}

/// The whole lines of the journal.
fn lines(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("survey.json.journal")).unwrap_or_default();
    text.split_inclusive('\n').filter(|line| line.ends_with('\n')).map(str::to_string).collect()
}

fn children(parent: &Child) -> Vec<u32> {
    let text = fs::read_to_string(format!("/proc/{0}/task/{0}/children", parent.id())).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}
