//! What the daemon says of itself, and to which users.

use super::actor::{Actor, join, meet};
use super::client::{ASK, Client};
use super::daemon::{Daemon, GROUP, is_root};
use std::net::{TcpListener, TcpStream};
use underpass_broker::{Inquiry, Refusal, Verdict};

#[test]
fn its_own_user_is_told_all() {
    let daemon = Daemon::start(&["--no-bpf"]);
    let client = Client::connect(&daemon.path()).unwrap();
    let state = client.state();
    assert!(!state.abilities.numbers && state.abilities.addresses);
    assert!(state.network.is_some());
    let counts = state.counts.unwrap();
    assert_eq!((counts.asks, counts.meetings, counts.clients, counts.processes, counts.pools), (0, 0, 1, 1, 0));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let other = listener.accept().unwrap().0;
    client.ask(ASK, &one);
    assert_eq!(client.answer().unwrap().0.verdict, Verdict::Waiting);
    assert_eq!(client.state().counts.unwrap().waiting, 1);
    client.ask(ASK, &other);
    for _ in 0..2 {
        assert!(matches!(client.answer().unwrap().0.verdict, Verdict::Met { .. }));
    }
    client.ask(ASK, &listener);
    assert_eq!(client.answer().unwrap().0.verdict, Verdict::Refused(Refusal::NotConnection));
    let counts = client.state().counts.unwrap();
    assert_eq!((counts.asks, counts.meetings, counts.waiting, counts.pools), (3, 1, 0, 1));
    assert!(counts.memory > 1 << 17);
    assert_eq!(counts.refused(Refusal::NotConnection), 1);
    // Not even a socket comes beside it.
    client.send(&Inquiry { token: 1, mark: 1 }.emit(), &[std::os::fd::AsFd::as_fd(&one)]).unwrap();
    assert_eq!(client.answer().unwrap().0.verdict, Verdict::Refused(Refusal::Malformed));
    assert!(client.answer().is_none());
    daemon.finish();
}

#[test]
fn other_users_learn_nothing_of_one_another() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let [mut server, mut client] = [61_001, 61_002].map(|uid| Actor::of_user(&daemon, uid, GROUP.1));
    join(&mut server, &mut client, "127.0.0.1");
    meet(&mut server, &mut client);
    assert_eq!(client.tell("state"), "no counts");
    let mut root = Actor::of_user(&daemon, 0, 0);
    assert_eq!(root.tell("state"), "counts 1 0");
    daemon.finish();
}

/// The daemon says at the start which abilities are missing, and goes on with the others.
#[test]
fn a_daemon_without_capabilities_says_what_it_cannot_do() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start_by(&["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"], &[]);
    let log = daemon.log();
    assert!(log.contains("no BPF program (CAP_BPF and CAP_NET_ADMIN are needed, "), "{log}");
    let state = Client::connect(&daemon.path()).unwrap().state();
    assert!(!state.abilities.numbers && state.abilities.addresses);
    let [mut server, mut client] = [61_001, 61_002].map(|uid| Actor::of_user(&daemon, uid, GROUP.1));
    join(&mut server, &mut client, "127.0.0.1");
    meet(&mut server, &mut client);
    daemon.finish();
}

/// Few descriptors are said to be few.
#[test]
fn few_descriptors_are_told() {
    let daemon = Daemon::start_by(&["prlimit", "--nofile=512:512"], &[]);
    assert!(daemon.log().contains("that is few for many programs"), "{}", daemon.log());
    daemon.finish();
}
