//! `underpass policy explain`: what decides, and what is refused. The daemon is tested in `crates/daemon`, and its
//! answers are judged in unit tests; here there is no daemon.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output};

use serde_json::Value;

use crate::support::{is_root, output, skip, stderr, stdout, underpass, wait_for};

/// A process that is ended with the test.
struct Ends(Child);

impl Ends {
    /// Ends of this user, or, for root, of another user.
    fn start(uid: Option<u32>) -> Ends {
        let mut command = match uid {
            None => Command::new("sleep"),
            Some(uid) => {
                let mut command = Command::new("setpriv");
                command.args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups", "sleep"]);
                command
            }
        };
        let it = Ends(command.arg("1000").spawn().unwrap());
        wait_for("the program", || {
            let name = fs::read_to_string(format!("/proc/{}/comm", it.0.id())).ok()?;
            (name == "sleep\n").then_some(())
        });
        it
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn explain(arguments: &[&str]) -> Output {
    let nobody = ["policy", "explain", "--set", "broker=/no/such/folder/socket"];
    output(&[&nobody[..], arguments].concat())
}

fn json(arguments: &[&str], code: i32) -> Value {
    let said = explain(&[arguments, &["--json"]].concat());
    assert_eq!(said.status.code(), Some(code), "{}{}", stdout(&said), stderr(&said));
    serde_json::from_slice(&said.stdout).unwrap()
}

#[test]
fn one_user_needs_no_underpassd() {
    let ends = [Ends::start(None), Ends::start(None)];
    let [one, other] = ends.each_ref().map(Ends::pid);
    let value = json(&[&one, &format!("{other}:80")], 0);
    assert_eq!(
        (&value["may_be_fast"], &value["by"], &value["reason"]),
        (&true.into(), &"directory".into(), &Value::Null)
    );
    assert_eq!((&value["processes"][1]["port"], &value["processes"][0]["name"]), (&80.into(), &"sleep".into()));
    let notes = value["notes"].to_string();
    assert!(notes.contains("runs without Underpass"), "{notes}");
    let text = stdout(&explain(&[&one, &other]));
    assert!(text.contains("their connections may be fast\n  both are of user "), "{text}");
}

#[test]
fn two_users_need_underpassd() {
    if !is_root() {
        return skip("only root can be other users");
    }
    let ends = [Ends::start(Some(61_001)), Ends::start(Some(61_002))];
    let [one, other] = ends.each_ref().map(Ends::pid);
    let value = json(&[&one, &other], 1);
    assert_eq!((&value["may_be_fast"], &value["reason"]), (&false.into(), &"no-broker".into()));
    assert!(value["remedy"].as_str().unwrap().contains("systemctl enable"), "{value}");
    let text = stdout(&explain(&[&one, &other]));
    assert!(text.contains("stay on kernel TCP (no-broker)") && text.contains("\n  → "), "{text}");
}

#[test]
fn what_is_wrong_is_wrong_use() {
    let refused = |arguments: &[&str]| {
        let said = explain(arguments);
        assert_eq!((said.status.code(), stdout(&said).as_str()), (Some(2), ""), "{arguments:?}");
        stderr(&said)
    };
    let me = std::process::id().to_string();
    assert!(refused(&[&me, "web"]).contains("the number of a process is needed"));
    for port in ["0", "65536", "http", ""] {
        assert!(refused(&[&me, &format!("{me}:{port}")]).contains("a number from 1 to 65535"), "{port}");
    }
    assert!(refused(&[&me, "4294967295"]).contains("there is no process 4294967295"));
    assert!(refused(&[&me]).contains("required"));
    assert!(
        refused(&["--policy", "/no/such/policy", &me, &me]).contains("there is no policy /no/such/policy; write it")
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("policy.toml");
    fs::write(&file, "\ngrup = \"a\"").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
    let said = refused(&["--policy", file.to_str().unwrap(), &me, &me]);
    assert!(said.contains("policy.toml:2: unknown field `grup`"), "{said}");
    let said = underpass(&["policy"]).output().unwrap();
    assert_eq!(said.status.code(), Some(2));
}
