//! The policy's file: at the start, at SIGHUP, and checked.

use super::actor::{Actor, join, meet};
use super::client::Client;
use super::daemon::{Daemon, UNDERPASSD, is_root};
use rustix::process::Signal;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const TAKEN: &str = "the policy is read anew";
const WRONG: &str = "the policy is wrong, and the old one stays in force";

/// A file with a policy.
struct File {
    _folder: tempfile::TempDir,
    path: PathBuf,
}

impl File {
    fn new(text: &str) -> File {
        let folder = tempfile::tempdir().unwrap();
        let it = File { path: folder.path().join("policy.toml"), _folder: folder };
        it.write(text);
        it
    }

    fn write(&self, text: &str) {
        fs::write(&self.path, text).unwrap();
        fs::set_permissions(&self.path, Permissions::from_mode(0o644)).unwrap();
    }

    fn start(&self) -> Daemon {
        Daemon::start(&["--policy", self.path.to_str().unwrap()])
    }
}

/// Two processes of different users, who are in no group together, and a connection between them.
fn strangers(daemon: &Daemon) -> [Actor; 2] {
    let mut actors = [61_001, 61_002].map(|uid| Actor::of_user(daemon, uid, uid));
    let [server, client] = &mut actors;
    join(server, client, "127.0.0.1");
    actors
}

fn refused([server, client]: &mut [Actor; 2]) {
    assert_eq!(client.ask(), "waiting");
    assert_eq!(server.ask(), "refused policy");
    assert_eq!(client.tell("answer"), "refused policy");
}

#[test]
fn a_rule_lets_two_users_meet_at_a_port() {
    if !is_root() {
        return;
    }
    let rule = |port: &str| {
        format!("[[allow]]\nname = \"test\"\nbetween = [{{ user = 61001, ports = [{port}] }}, {{ user = 61002 }}]\n")
    };
    let file = File::new(&rule("1"));
    let daemon = file.start();
    let mut actors = strangers(&daemon);
    refused(&mut actors);
    assert!(daemon.log().contains("the policy refuses"), "{}", daemon.log());
    let port = actors[0].tell("addresses").split(' ').next().unwrap().rsplit_once(':').unwrap().1.to_string();
    file.write(&rule(&port));
    daemon.signal(Signal::HUP);
    daemon.await_said(TAKEN, 1);
    let [server, client] = &mut actors;
    meet(server, client);
    daemon.finish();
}

/// Ends that have met stay together, and a wrong policy changes nothing.
#[test]
fn sighup_reads_it_anew() {
    if !is_root() {
        return;
    }
    let allow = "[[allow]]\nbetween = [{ user = 61001 }, { user = 61002 }]\n";
    let file = File::new("");
    let daemon = file.start();
    let before = Client::connect(&daemon.path()).unwrap().state();
    let mut actors = strangers(&daemon);
    refused(&mut actors);
    file.write(allow);
    daemon.signal(Signal::HUP);
    daemon.await_said(TAKEN, 1);
    let [server, client] = &mut actors;
    meet(server, client);
    // None of these is taken.
    file.write("group = ");
    daemon.signal(Signal::HUP);
    daemon.await_said(WRONG, 1);
    fs::set_permissions(&file.path, Permissions::from_mode(0o666)).unwrap();
    daemon.signal(Signal::HUP);
    daemon.await_said(WRONG, 2);
    fs::remove_file(&file.path).unwrap();
    daemon.signal(Signal::HUP);
    daemon.await_said(WRONG, 3);
    join(server, client, "127.0.0.1");
    meet(server, client);
    let met = server.ask();
    // A policy that denies is taken, for connections to come.
    file.write(&format!("{allow}[[deny]]\nbetween = [{{ user = 61001 }}, {{}}]\n"));
    daemon.signal(Signal::HUP);
    daemon.await_said(TAKEN, 2);
    assert_eq!(server.ask(), met);
    join(server, client, "127.0.0.1");
    refused(&mut actors);
    let after = Client::connect(&daemon.path()).unwrap().state();
    assert_ne!(after.policy, before.policy);
    let counts = after.counts.unwrap();
    assert_eq!((counts.policies_taken, counts.policies_wrong), (2, 3));
    daemon.finish();
}

/// The first rule that denies a group, or that names a control group, comes while clients are connected, one of which
/// waits for its other end. Fails if what such a rule asks for is known only of processes that connect later.
#[test]
fn a_rule_of_a_new_kind_holds_for_clients_that_are_connected() {
    if !is_root() {
        return;
    }
    let allow = "[[allow]]\nbetween = [{ user = 61001 }, { user = 61002 }]\n";
    let deny = |who: &str| format!("{allow}[[deny]]\nbetween = [{{ {who} }}, {{}}]\n");
    let file = File::new(allow);
    let daemon = file.start();
    let mut actors = strangers(&daemon);
    // What is not known fits a rule that denies.
    let is_known = fs::read_to_string("/proc/self/cgroup").unwrap().lines().any(|line| line.starts_with("0::"));
    let kinds = [("group = 61005", true), ("cgroup = \"/no/such.slice\"", is_known), ("group = 61001", false)];
    for (times, (who, meets)) in kinds.into_iter().enumerate() {
        let [server, client] = &mut actors;
        join(server, client, "127.0.0.1");
        assert_eq!(client.ask(), "waiting");
        file.write(&deny(who));
        daemon.signal(Signal::HUP);
        daemon.await_said(TAKEN, times + 1);
        let told = [server.ask(), client.tell("answer")];
        let begins = if meets { "met " } else { "refused policy" };
        assert!(told.iter().all(|it| it.starts_with(begins)), "{who}: {told:?}");
    }
    daemon.finish();
}

/// A control group is that of the process when it connected.
#[test]
fn cgroups_are_told_apart() {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap();
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::")).filter(|path| path.starts_with("/")) else {
        return println!("SKIPPED: this process is in no control group of cgroup2");
    };
    if !is_root() {
        return;
    }
    for (path, meets) in [(own, true), ("/no/such.slice", false)] {
        let side = |uid: u32| format!("{{ user = {uid}, cgroup = \"{path}\" }}");
        let file = File::new(&format!("[[allow]]\nbetween = [{}, {}]\n", side(61_001), side(61_002)));
        let daemon = file.start();
        let mut actors = strangers(&daemon);
        if meets {
            let [server, client] = &mut actors;
            meet(server, client);
        } else {
            refused(&mut actors);
        }
        daemon.finish();
    }
}

/// A process may give up a group in a user namespace that has subordinate groups: what its group is denied, it is
/// denied there too.
#[test]
fn a_group_that_is_denied_cannot_be_left() {
    if !is_root() {
        return;
    }
    let file = File::new("[[deny]]\nbetween = [{ group = 61005 }, {}]\n");
    let daemon = file.start();
    let mut guests = ["61005", "61006"].map(|group| {
        let groups = format!("--groups={group}");
        Actor::start(&daemon, &["setpriv", "--reuid=61001", "--regid=61001", &groups])
    });
    let [guest, other] = &mut guests;
    join(guest, other, "127.0.0.1");
    refused(&mut guests);
    let [_, other] = &mut guests;
    let mut another = Actor::of_user(&daemon, 61_001, 61_001);
    join(other, &mut another, "127.0.0.1");
    meet(other, &mut another);
    let leaves: &[&str] = &["setpriv", "--reuid=61001", "--regid=61001", "--clear-groups"];
    let Some(fled) = in_namespace(&daemon, &[], ("0 0 65534\n", "allow"), leaves) else { return };
    // As newuidmap(1) and newgidmap(1) make one for a user who has subordinate ones. In another one below it nobody may
    // leave a group, but the process has done so before.
    let own = "0 61001 1\n1 100000 9\n";
    let user = ["setpriv", "--reuid=61001", "--regid=61001", "--groups=61005"];
    let leaves = ["setpriv", "--clear-groups", "unshare", "--user", "--map-root-user"];
    let below = in_namespace(&daemon, &user, (own, "allow"), &leaves).unwrap();
    for fled in [fled, below] {
        let mut ends = [fled, Actor::of_user(&daemon, 61_001, 61_001)];
        let [fled, another] = &mut ends;
        join(fled, another, "127.0.0.1");
        refused(&mut ends);
    }
    daemon.finish();
}

/// In a namespace as systemd makes one for a service with `PrivateUsers=`, no group can be left: what is known of the
/// process's groups is all.
#[test]
fn in_a_namespace_of_roots_that_keeps_groups_they_are_known() {
    if !is_root() {
        return;
    }
    let file = File::new("[[deny]]\nbetween = [{ group = 61005 }, {}]\n");
    let daemon = file.start();
    for (groups, is_denied) in [("--groups=61006", false), ("--groups=61005", true)] {
        let map = "0 0 1\n61001 61001 1\n";
        let service = ["setpriv", "--reuid=61001", "--regid=61001", "--keep-groups"];
        let actor = in_namespace(&daemon, &["setpriv", groups], (map, "deny"), &service);
        let Some(actor) = actor else { return };
        let mut ends = [actor, Actor::of_user(&daemon, 61_001, 61_001)];
        let [service, another] = &mut ends;
        join(service, another, "127.0.0.1");
        if is_denied {
            refused(&mut ends);
        } else {
            meet(service, another);
        }
    }
    daemon.finish();
}

/// Where /proc hides other users' processes, nobody knows whether they have left a group that is denied. The daemon
/// says why it refuses them.
#[test]
fn what_proc_hides_is_named() {
    const MOUNT: &str = "mount -t proc -o hidepid=2 proc /proc";
    const HIDDEN: &str = "/proc hides processes of other users (hidepid, proc(5))";
    let tried = Command::new("unshare").args(["--mount", "sh", "-c", MOUNT]).status();
    if !is_root() || !tried.is_ok_and(|it| it.success()) {
        return println!("SKIPPED: /proc cannot be mounted");
    }
    let script = format!("{MOUNT} && exec \"$@\"");
    // Neither members of group 0 nor tracers are kept from it.
    let as_others = ["--regid=61009", "--clear-groups", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"];
    let by = [&["unshare", "--mount", "sh", "-c", &script, "sh", "setpriv"], &as_others[..]].concat();
    let file = File::new("");
    let daemon = Daemon::start_by(&by, &["--policy", file.path.to_str().unwrap()]);
    let mut actors = [(); 2].map(|()| Actor::of_user(&daemon, 61_001, 61_001));
    let [server, client] = &mut actors;
    join(server, client, "127.0.0.1");
    meet(server, client);
    assert!(!daemon.log().contains(HIDDEN));
    file.write("[[deny]]\nbetween = [{ group = 61005 }, {}]\n");
    daemon.signal(Signal::HUP);
    daemon.await_said(TAKEN, 1);
    assert!(daemon.log().contains(HIDDEN), "{}", daemon.log());
    join(server, client, "127.0.0.1");
    refused(&mut actors);
    daemon.finish();
}

/// An actor in a user namespace with this map of users and of groups, which allows setgroups(2) or denies it. The words
/// `around` are run before the namespace is made, and the words `inside` in it. `None`, said aloud, where there can be
/// none.
fn in_namespace(daemon: &Daemon, around: &[&str], (map, setgroups): (&str, &str), inside: &[&str]) -> Option<Actor> {
    if !Command::new("unshare").args(["--user", "true"]).status().is_ok_and(|it| it.success()) {
        println!("SKIPPED: no user namespace can be had");
        return None;
    }
    let awaits = "until grep -q . /proc/$$/uid_map; do :; done; exec \"$@\"";
    let words = [around, &["unshare", "--user", "sh", "-c", awaits, "sh"], inside].concat();
    let mut actor = Actor::start(daemon, &words);
    let of_actor = |file: &str| format!("/proc/{}/{file}", actor.pid());
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    while fs::read_link(of_actor("ns/user")).unwrap() == own {
        std::thread::yield_now();
    }
    for (file, text) in [("setgroups", setgroups), ("gid_map", map), ("uid_map", map)] {
        fs::write(of_actor(file), text).unwrap();
    }
    assert_eq!(actor.tell("ready"), "");
    Some(actor)
}

fn underpassd(arguments: &[&str]) -> Output {
    Command::new(UNDERPASSD).args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn said(octets: &[u8]) -> String {
    String::from_utf8(octets.to_vec()).unwrap()
}

#[test]
fn it_is_checked_without_a_daemon() {
    let file = File::new(
        "group = \"root\"\n\n[[allow]]\nbetween = [{ user = \"root\" }, { user = 7, network = \"other\" }]\n",
    );
    let path = file.path.to_str().unwrap();
    let fine = underpassd(&["--check", "--policy", path]);
    let expected = format!(
        "{path} is in order\nmay share memory:\n  processes of one user with one another\n  members of the group root \
         (0) with one another\n  rule of line 3: user root (0) with user 7 in another network\n"
    );
    assert_eq!((fine.status.code(), said(&fine.stdout)), (Some(0), expected));
    file.write("group = \"no-such-group-here\"");
    let wrong = underpassd(&["--check", "--policy", path]);
    assert_eq!((wrong.status.code(), said(&wrong.stdout).as_str()), (Some(1), ""));
    let expected = format!(
        "underpassd: {path}:1: there is no group no-such-group-here; make it (groupadd), or correct the name\n"
    );
    assert_eq!(said(&wrong.stderr), expected);
    let missing = underpassd(&["--check", "--policy", "/no/such/policy"]);
    assert_eq!(missing.status.code(), Some(1));
    assert!(said(&missing.stderr).contains("there is no policy /no/such/policy; write it"));
    let group = underpassd(&["--check", "--group", "root"]);
    assert!(said(&group.stdout).starts_with("no policy file is read\nmay share memory:\n"));
    for wrong in [&["--check", "--foreground"][..], &[], &["--check", "--group", "root", "--policy", path]] {
        assert_eq!(underpassd(wrong).status.code(), Some(2), "{wrong:?}");
    }
    if !Path::new("/etc/underpass/policy.toml").exists() {
        let default = said(&underpassd(&["--check"]).stdout);
        assert!(default.starts_with("there is no /etc/underpass/policy.toml, so the default holds\n"), "{default}");
        assert!(default.contains("members of the group underpass"), "{default}");
    }
}

/// The policy may deny what the default allows, so the default does not take its place.
#[test]
fn without_its_policy_a_daemon_does_not_start() {
    let file = File::new("alow = []");
    let path = file.path.to_str().unwrap();
    let socket = file.path.with_file_name("socket");
    let start = || underpassd(&["--foreground", "--policy", path, "--socket", socket.to_str().unwrap()]);
    // A service manager starts it again after an exit with 1 alone.
    let refused = start();
    assert_eq!(refused.status.code(), Some(3));
    assert!(said(&refused.stderr).contains("policy.toml:1: unknown field `alow`"), "{}", said(&refused.stderr));
    assert!(said(&refused.stderr).contains("Without a policy underpassd does not start") && !socket.exists());
    file.write("");
    fs::set_permissions(&file.path, Permissions::from_mode(0o622)).unwrap();
    let refused = start();
    assert_eq!(refused.status.code(), Some(3));
    assert!(said(&refused.stderr).contains("chmod go-w"), "{}", said(&refused.stderr));
    // The server that knows this user may not answer yet.
    fs::set_permissions(&file.path, Permissions::from_mode(0o644)).unwrap();
    file.write("[[allow]]\nbetween = [{ user = \"underpass-nobody\" }, {}]\n");
    assert_eq!(start().status.code(), Some(1));
}
