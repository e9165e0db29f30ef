//! What `underpass top` and `underpass metrics` need and refuse.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use crate::support::{kill, output, stderr, underpass, wait_for};

#[test]
fn top_needs_a_terminal_and_says_what_does_not() {
    let refused = output(&["top"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        stderr(&refused),
        "underpass: top draws on a terminal, and standard input or output is none; `underpass top --once` (or --json) \
         prints the rates once\n"
    );
}

#[test]
fn an_interval_is_a_number_of_seconds() {
    for wrong in ["0", "0.01", "-1", "3601", "NaN", "inf", "soon"] {
        let refused = output(&["top", "--once", &format!("--interval={wrong}")]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
        assert!(stderr(&refused).contains("a number of seconds from 0.1 to 3600 is needed"), "{wrong}");
    }
    let fine = output(&["top", "--once", "--json", "--interval=0.1"]);
    assert!(fine.status.success(), "{}", stderr(&fine));
    assert!(serde_json::from_slice::<serde_json::Value>(&fine.stdout).unwrap()["connections"].is_array());
}

#[test]
fn metrics_are_for_this_host_only() {
    for (wrong, why) in [
        ("0.0.0.0:9464", "only loopback addresses"),
        ("[::]:9464", "only loopback addresses"),
        ("192.0.2.1:9464", "only loopback addresses"),
        ("9464", "an address and a port are needed"),
        ("localhost:9464", "an address and a port are needed"),
    ] {
        let refused = output(&["metrics", "--listen", wrong]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
        assert!(stderr(&refused).contains(why), "{wrong}: {}", stderr(&refused));
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let refused = output(&["metrics", "--listen", &taken.local_addr().unwrap().to_string()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("another port may be free"), "{}", stderr(&refused));
}

#[test]
fn metrics_need_a_folder_to_write_to() {
    let refused = output(&["metrics", "--file", "/no/such/folder/underpass.prom"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        stderr(&refused)
            .starts_with("underpass: cannot write /no/such/folder/underpass.prom (No such file or directory"),
        "{}",
        stderr(&refused)
    );
    assert_eq!(output(&["metrics", "--interval", "1"]).status.code(), Some(2));
    assert_eq!(output(&["metrics", "--file", "a", "--listen", "127.0.0.1:0"]).status.code(), Some(2));
}

#[test]
fn the_file_of_metrics_is_kept_and_goes_with_the_command() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("underpass.prom");
    let mut keeper = underpass(&["metrics", "--interval=0.1", "--file", file.to_str().unwrap()]).spawn().unwrap();
    for _ in 0..2 {
        wait_for("the file", || file.exists().then_some(()));
        assert!(std::fs::read_to_string(&file).unwrap().contains("\nunderpass_processes "));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        std::fs::remove_file(&file).unwrap();
    }
    wait_for("the file", || file.exists().then_some(()));
    kill("TERM", keeper.id());
    assert_eq!(keeper.wait().unwrap().signal(), Some(15));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn metrics_replace_no_device_pipe_or_folder() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/dev/null", &link).unwrap();
    for (path, what) in [
        ("/", "is a directory"),
        ("/dev/null", "/dev/null is no regular file"),
        (pipe.to_str().unwrap(), "is no regular file"),
        (link.to_str().unwrap(), "/dev/null is no regular file"),
    ] {
        let refused = output(&["metrics", "--file", path]);
        assert_eq!(refused.status.code(), Some(2), "{path}");
        assert!(stderr(&refused).contains(what), "{path}: {}", stderr(&refused));
        assert!(std::fs::symlink_metadata(path).is_ok_and(|it| !it.is_file()));
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// The file of a link is kept, and the link.
#[test]
fn metrics_go_where_a_link_leads() {
    let folder = tempfile::tempdir().unwrap();
    let (file, link) = (folder.path().join("file.prom"), folder.path().join("link.prom"));
    std::fs::write(&file, "").unwrap();
    std::os::unix::fs::symlink(&file, &link).unwrap();
    let mut keeper = underpass(&["metrics", "--file", link.to_str().unwrap()]).spawn().unwrap();
    wait_for("the metrics", || std::fs::read_to_string(&file).unwrap().contains("underpass_processes").then_some(()));
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    kill("TERM", keeper.id());
    keeper.wait().unwrap();
    assert!(!file.exists());
}

#[test]
fn numbers_of_processes_and_descriptors_are_asked_for_in_words() {
    for (arguments, said) in [
        (&["pin", "web", "3"][..], "the number of a process is needed; `underpass ss` lists them"),
        (&["pin", "-1", "3"], "the number of a process is needed"),
        (&["unpin", "4294967296", "3"], "the number of a process is needed"),
        (&["pin", "1", "-1"], "the number of a descriptor is needed"),
        (&["pin", "1", "x"], "the number of a descriptor is needed"),
        (&["pin", "--wait", "-1", "1", "3"], "a number of seconds from 0 to 3600 is needed"),
        (&["top", "--interval", "-1"], "a number of seconds from 0.1 to 3600 is needed"),
        (&["metrics", "--interval", "-1", "--file", "x"], "a number of seconds from 0.1 to 3600 is needed"),
    ] {
        let refused = output(arguments);
        assert_eq!(refused.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&refused).contains(said), "{arguments:?}: {}", stderr(&refused));
    }
}

/// No words of the system alone: what was to be written, and that it is not whole.
#[test]
fn a_full_disk_is_told_of() {
    for (arguments, code) in [
        (&["metrics"][..], 1),
        (&["top", "--json", "--interval", "0.1"], 1),
        (&["ss", "--json"], 1),
        (&["config"], 1),
        (&["completions", "bash"], 1),
        (&["man"], 1),
        (&["doctor", "sh"], 125),
        (&["doctor", "--json", "sh"], 125),
    ] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let said = underpass(arguments).stdout(full).output().unwrap();
        let expected = "underpass: cannot write all of it to standard output (No space left on device); what is there \
                        is not whole\n";
        assert_eq!((said.status.code(), stderr(&said).as_str()), (Some(code), expected), "{arguments:?}");
    }
}
