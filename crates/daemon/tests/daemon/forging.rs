//! Sockets that pretend to be an end of a connection.
#![allow(unsafe_code, reason = "socket options that rustix does not have, and threads that leave a namespace")]

use super::actor::Actor;
use super::client::{ASK, Client};
use super::daemon::{Daemon, is_root};
use super::hostile::{connection, others_are_served};
use rustix::fd::AsRawFd;
use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::net::{SocketAddr, TcpStream};
use underpass_broker::{Refusal, Verdict};

/// A socket in a network namespace of its own has the addresses of another connection.
#[test]
fn mirrored_addresses_of_another_namespace_prove_nothing() {
    if !is_root() {
        return;
    }
    for arguments in [&[][..], &["--no-bpf"]] {
        let daemon = Daemon::start(arguments);
        let [one, other] = connection();
        let forged = forge(one.local_addr().unwrap(), other.local_addr().unwrap(), [1, 2]);
        let client = Client::connect(&daemon.path()).unwrap();
        client.ask(ASK, &one);
        assert_eq!(client.answer().unwrap().0.verdict, Verdict::Waiting);
        client.ask(ASK, &forged);
        let verdict = client.answer().unwrap().0.verdict;
        assert!(matches!(verdict, Verdict::Refused(Refusal::Elsewhere | Refusal::Unproven)), "{verdict:?}");
        client.ask(ASK, &other);
        assert!(matches!(client.answer().unwrap().0.verdict, Verdict::Met { .. }));
        daemon.finish();
    }
}

/// A third socket has the right sequence numbers, made by someone who saw the handshake: none of the three meets
/// another.
#[test]
fn a_third_socket_with_the_right_numbers_makes_it_unproven() {
    let Some(daemon) = Daemon::with_numbers() else { return };
    let [one, other] = connection();
    let client = Client::connect(&daemon.path()).unwrap();
    client.ask(ASK, &one);
    assert_eq!(client.answer().unwrap().0.verdict, Verdict::Waiting);
    let [sent, received] = numbers(&other);
    let forged = forge(one.local_addr().unwrap(), other.local_addr().unwrap(), [sent, received]);
    for it in [&forged, &other, &one] {
        client.ask(ASK, it);
        let verdict = client.answer().unwrap().0.verdict;
        assert_eq!(verdict, Verdict::Refused(Refusal::Unproven));
    }
    others_are_served(&daemon);
    daemon.finish();
}

/// Any user can do this: it is root in a user namespace of its own, and of the network namespace in there.
#[test]
fn a_user_forges_a_third_socket_in_a_namespace_of_its_own() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let apart = ["--user", "--map-root-user", "--net"];
    let user = ["setpriv", "--reuid=61021", "--regid=61021", "--clear-groups", "unshare"];
    let words = [&user[..], &apart].concat();
    let is_possible = std::process::Command::new(words[0]).args(&words[1..]).arg("true").status().unwrap().success();
    if !daemon.has_numbers() || !is_possible {
        return println!("SKIPPED: users may make no namespaces here");
    }
    let [one, other] = connection();
    let client = Client::connect(&daemon.path()).unwrap();
    client.ask(ASK, &one);
    assert_eq!(client.answer().unwrap().0.verdict, Verdict::Waiting);
    let [sent, received] = numbers(&other);
    let (remote, local) = (one.local_addr().unwrap(), other.local_addr().unwrap());
    let forged = |sent: u32| {
        let mut forger = Actor::start(&daemon, &words);
        forger.tell(&format!("forge {remote} {local} {sent} {received}"));
        (forger.ask(), forger)
    };
    // With wrong numbers the forged socket is no socket's other end, and does no harm.
    assert_eq!(forged(sent.wrapping_add(1)).0, "refused remote");
    client.ask(ASK, &one);
    assert_eq!(client.answer().unwrap().0.verdict, Verdict::Waiting);
    let (told, _forger) = forged(sent);
    assert_eq!(told, "refused unproven");
    for it in [&other, &one] {
        client.ask(ASK, it);
        assert_eq!(client.answer().unwrap().0.verdict, Verdict::Refused(Refusal::Unproven));
    }
    others_are_served(&daemon);
    daemon.finish();
}

/// The true other end is not on this host, or was forgotten, and somebody forges it who has found out both numbers:
/// that takes time.
#[test]
fn an_end_that_is_forged_later_is_not_the_other_end() {
    let Some(daemon) = Daemon::with_numbers() else { return };
    let [one, other] = ["127.0.0.1:47001", "127.0.0.1:47002"].map(|it| it.parse().unwrap());
    let first = forge(one, other, [0x1357_9bdf, 0x0246_8ace]);
    std::thread::sleep(std::time::Duration::from_millis(1050));
    let second = forge(other, one, [0x0246_8ace, 0x1357_9bdf]);
    let client = Client::connect(&daemon.path()).unwrap();
    for it in [&first, &second, &first] {
        client.ask(ASK, it);
        assert_eq!(client.answer().unwrap().0.verdict, Verdict::Refused(Refusal::Unproven));
    }
    others_are_served(&daemon);
    daemon.finish();
}

const TCP_REPAIR: i32 = 19;
const TCP_REPAIR_QUEUE: i32 = 20;
const TCP_QUEUE_SEQ: i32 = 21;
const RECEIVE: u32 = 1;
const SEND: u32 = 2;

fn set(socket: &impl AsRawFd, name: i32, value: u32) {
    // SAFETY: four octets, which the kernel reads.
    let result = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            name,
            (&raw const value).cast(),
            size_of::<u32>() as u32,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// The next sequence numbers that a socket sends and receives, which no other test ever uses again.
fn numbers(socket: &TcpStream) -> [u32; 2] {
    set(socket, TCP_REPAIR, 1);
    let numbers = [SEND, RECEIVE].map(|queue| {
        set(socket, TCP_REPAIR_QUEUE, queue);
        let (mut value, mut len) = (0u32, size_of::<u32>() as u32);
        // SAFETY: the kernel writes four octets.
        let result = unsafe {
            let at = (&raw mut value).cast();
            libc::getsockopt(socket.as_raw_fd(), libc::IPPROTO_TCP, TCP_QUEUE_SEQ, at, &raw mut len)
        };
        assert_eq!(result, 0);
        value
    });
    set(socket, TCP_REPAIR, 0);
    numbers
}

/// An established socket in a network namespace of its own, with chosen addresses and numbers, and nothing at the other
/// end.
fn forge(remote: SocketAddr, local: SocketAddr, numbers: [u32; 2]) -> TcpStream {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the thread, which is ours, shares memory and descriptors as before.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
            forge_here(remote, local, numbers)
        });
        thread.join().unwrap()
    })
}

/// An established socket in this network namespace, which is new, with chosen addresses and numbers, and nothing at the
/// other end.
pub fn forge_here(remote: SocketAddr, local: SocketAddr, [sent, received]: [u32; 2]) -> TcpStream {
    let up = std::process::Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap();
    assert!(up.success());
    let it = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    set(&it, TCP_REPAIR, 1);
    for (queue, number) in [(SEND, sent), (RECEIVE, received)] {
        set(&it, TCP_REPAIR_QUEUE, queue);
        set(&it, TCP_QUEUE_SEQ, number);
    }
    bind(&it, &local).unwrap();
    connect(&it, &remote).unwrap();
    TcpStream::from(it)
}
