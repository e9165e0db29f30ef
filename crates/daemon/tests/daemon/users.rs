//! Processes of several users in one network namespace.

use super::actor::{Actor, join, meet};
use super::daemon::{Daemon, GROUP, is_root};

/// Users and groups that need not exist: the kernel knows numbers alone.
const ONE: u32 = 61_001;
const OTHER: u32 = 61_002;

fn members_meet(arguments: &[&str]) {
    let daemon = Daemon::start(arguments);
    let [mut server, mut client] = [ONE, OTHER].map(|uid| Actor::of_user(&daemon, uid, GROUP.1));
    for host in ["127.0.0.1", "[::1]"] {
        join(&mut server, &mut client, host);
        meet(&mut server, &mut client);
    }
    drop((server, client));
    daemon.finish();
}

#[test]
fn two_members_of_the_group_meet_by_sequence_numbers() {
    if is_root() {
        members_meet(&[]);
    }
}

#[test]
fn two_members_of_the_group_meet_by_addresses() {
    if is_root() {
        members_meet(&["--no-bpf"]);
    }
}

#[test]
fn connections_older_than_the_daemon_are_proven_by_addresses() {
    if !is_root() {
        return;
    }
    let mut daemon = Daemon::start(&[]);
    let [mut server, mut client] = [ONE, OTHER].map(|uid| Actor::of_user(&daemon, uid, GROUP.1));
    join(&mut server, &mut client, "127.0.0.1");
    daemon.replace(&[]);
    meet(&mut server, &mut client);
    daemon.finish();
}

#[test]
fn strangers_stay_on_kernel_tcp() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    for [one, other] in [[ONE, ONE], [ONE, GROUP.1]] {
        let (mut server, mut client) = (Actor::of_user(&daemon, ONE, one), Actor::of_user(&daemon, OTHER, other));
        join(&mut server, &mut client, "127.0.0.1");
        assert_eq!(client.ask(), "waiting");
        assert_eq!(server.ask(), "refused policy");
        assert_eq!(client.tell("answer"), "refused policy");
    }
    // One user needs no group.
    let [mut server, mut client] = [ONE, ONE].map(|uid| Actor::of_user(&daemon, uid, uid));
    join(&mut server, &mut client, "127.0.0.1");
    meet(&mut server, &mut client);
    // Two versions of the library.
    join(&mut server, &mut client, "127.0.0.1");
    client.tell("ask as-version 78");
    assert_eq!(client.tell("answer"), "waiting");
    assert_eq!(server.ask(), "refused layout");
    daemon.finish();
}

#[test]
fn an_answer_that_was_missed_is_given_again() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let [mut server, mut client] = [ONE, OTHER].map(|uid| Actor::of_user(&daemon, uid, GROUP.1));
    join(&mut server, &mut client, "127.0.0.1");
    assert_eq!(client.ask(), "waiting");
    client.tell("leave");
    let told = server.ask();
    assert!(told.starts_with("met"), "{told}");
    let late = client.ask();
    assert_eq!(late.rsplit_once(' ').unwrap().0, told.rsplit_once(' ').unwrap().0);
    server.tell("write 5000 7");
    assert_eq!(client.tell("read 5000"), "7");
    daemon.finish();
}

/// Memory and what else is kept for a process goes with it, however it ends.
#[test]
fn nothing_is_left_of_a_killed_process() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let before = daemon.descriptors();
    let mut server = Actor::of_user(&daemon, ONE, GROUP.1);
    for _ in 0..3 {
        let mut client = Actor::of_user(&daemon, OTHER, GROUP.1);
        join(&mut server, &mut client, "127.0.0.1");
        meet(&mut server, &mut client);
        client.kill();
        // The server's process and its connection remain.
        daemon.await_descriptors(before + 2);
    }
    server.kill();
    daemon.await_descriptors(before);
    daemon.finish();
}
