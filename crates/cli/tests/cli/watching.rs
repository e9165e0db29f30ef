//! What `underpass top` and `underpass metrics` need and refuse.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;

use crate::support::{kill, output, stderr, underpass, wait_for};

#[test]
fn top_needs_a_terminal_and_says_what_does_not() {
    let refused = output(&["top"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        stderr(&refused),
        "underpass: top draws on a terminal, and standard input or output is none; `underpass top --once` (or --json) prints the \
         rates once\n"
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
