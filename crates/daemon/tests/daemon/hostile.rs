//! Clients that lie, flood, fall silent, or hand over what keeps the daemon waiting.
#![allow(unsafe_code, reason = "socket options that rustix does not have, and threads that leave a namespace")]

use super::client::{ASK, Client, MOST};
use super::daemon::{Daemon, is_root};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd};
use rustix::process::Signal;
use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};
use underpass_broker::{Ask, Refusal, Verdict};

/// Both ends of a connection.
fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    [client, server]
}

/// An honest process of another user than the hostile one meets itself.
fn others_are_served(daemon: &Daemon) {
    let client = Client::connect(&daemon.path()).unwrap();
    let [one, other] = connection();
    client.ask(ASK, &one);
    assert_eq!(client.answer().unwrap().0.verdict, Verdict::Waiting);
    client.ask(Ask { token: 2, ..ASK }, &other);
    let mut tokens = [client.answer(), client.answer()].map(|it| {
        let (answer, memory) = it.unwrap();
        assert!(matches!(answer.verdict, Verdict::Met { .. }) && memory.is_some(), "{answer:?}");
        answer.token
    });
    tokens.sort();
    assert_eq!(tokens, [1, 2]);
}

fn refused(daemon: &Daemon, octets: &[u8], descriptors: &[BorrowedFd<'_>]) -> Refusal {
    let client = Client::connect(&daemon.path()).unwrap();
    client.send(octets, descriptors).unwrap();
    let Some((answer, None)) = client.answer() else { panic!("no refusal") };
    let Verdict::Refused(refusal) = answer.verdict else { panic!("{answer:?}") };
    if refusal != Refusal::NotConnection {
        assert!(client.answer().is_none(), "and the connection is over");
    }
    refusal
}

#[test]
fn wrong_descriptors_are_refused() {
    let daemon = Daemon::start(&[]);
    let before = daemon.descriptors();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (unix, _unix) = UnixStream::pair().unwrap();
    let file = File::open("/proc/self/exe").unwrap();
    let memory = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let own = Client::connect(&daemon.path()).unwrap();
    let ask = ASK.emit().unwrap();
    let wrong = [listener.as_fd(), udp.as_fd(), unix.as_fd(), file.as_fd(), memory.as_fd(), own.socket.as_fd()];
    for it in wrong {
        assert_eq!(refused(&daemon, &ask, &[it]), Refusal::NotConnection);
    }
    let [one, other] = connection();
    drop(other);
    while std::io::Read::read(&mut &one, &mut [0]).unwrap() > 0 {}
    assert_eq!(refused(&daemon, &ask, &[one.as_fd()]), Refusal::NotConnection);
    let [one, _other] = connection();
    assert_eq!(refused(&daemon, &ask, &[]), Refusal::Malformed);
    assert_eq!(refused(&daemon, &ask, &[one.as_fd(); 2]), Refusal::Malformed);
    assert_eq!(refused(&daemon, &ask, &[one.as_fd(); MOST]), Refusal::Malformed);
    others_are_served(&daemon);
    drop(own);
    // This process is known, and has a pool with itself.
    daemon.await_descriptors(before + 2);
    daemon.finish();
}

#[test]
fn packets_that_are_no_records_are_refused() {
    let daemon = Daemon::start(&[]);
    let [one, _other] = connection();
    let ask = ASK.emit().unwrap();
    for len in 1..ask.len() {
        assert_eq!(refused(&daemon, &ask[..len], &[one.as_fd()]), Refusal::Malformed);
    }
    let longer = [&ask[..], &[0; 200]].concat();
    assert_eq!(refused(&daemon, &longer, &[one.as_fd()]), Refusal::Malformed);
    assert_eq!(refused(&daemon, &[longer.clone(), ask.to_vec()].concat(), &[]), Refusal::Malformed);
    let mut later = ask;
    later[4] += 1;
    assert_eq!(refused(&daemon, &later, &[one.as_fd()]), Refusal::Version);
    let mut other_kind = ask;
    other_kind[6] = 16;
    assert_eq!(refused(&daemon, &other_kind, &[one.as_fd()]), Refusal::Malformed);
    others_are_served(&daemon);
    daemon.finish();
}

/// Not even the last close of a socket that lingers keeps others waiting, nor one that is left unread, nor one too many.
#[test]
fn a_close_that_waits_keeps_nobody_else_waiting() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let before = daemon.descriptors();
    let mut keep = Vec::new();
    let lingering = || {
        let [one, other] = connection();
        rustix::net::sockopt::set_socket_linger(&one, Some(Duration::from_secs(600))).unwrap();
        one.set_nonblocking(true).unwrap();
        while (&one).write(&[0; 1 << 16]).is_ok() {}
        (one, other)
    };
    // Meanwhile it takes nothing, so that its references are the last ones.
    daemon.signal(Signal::STOP);
    as_user(61_003, || {
        for packets in [1, 3] {
            let client = Client::connect(&daemon.path()).unwrap();
            for _ in 0..packets {
                let (one, other) = lingering();
                client.ask(ASK, &one);
                keep.push(other);
            }
        }
        let client = Client::connect(&daemon.path()).unwrap();
        let (one, other) = lingering();
        client.send(b"no record", &[one.as_fd()]).unwrap();
        keep.push(other);
    });
    daemon.signal(Signal::CONT);
    for _ in 0..20 {
        others_are_served(&daemon);
    }
    // The hostile user waits for itself alone.
    let waits = as_user(61_003, || {
        let client = Client::connect(&daemon.path()).unwrap();
        let [one, _other] = connection();
        client.ask(ASK, &one);
        // It is not answered for now.
        let mut ready = [rustix::event::PollFd::new(&client.socket, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ready, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 50_000_000 })).unwrap() == 0
    });
    assert!(waits);
    drop(keep);
    // This process is known as two users, of which one has asked, and the other has pools of 1, 8 and 64 slots.
    daemon.await_descriptors(before + 5);
    daemon.finish();
}

/// Says so to others when it is dropped.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

#[test]
fn a_flood_delays_nobody_else() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let over = AtomicBool::new(false);
    let path = daemon.path();
    let (mut worst, mut served) = (Duration::ZERO, 0);
    std::thread::scope(|scope| {
        for uid in [61_004, 61_005] {
            let (over, path) = (&over, &path);
            scope.spawn(move || {
                as_user(uid, || {
                    let [one, _other] = connection();
                    while !over.load(Relaxed) {
                        let Ok(client) = Client::connect(path) else { continue };
                        let ask = ASK.emit().unwrap();
                        // Until the daemon stops to read, or lets go.
                        for _ in 0..50 {
                            if client.send(&ask, &[one.as_fd()]).is_err() {
                                break;
                            }
                        }
                    }
                });
            });
        }
        // However this ends.
        let _over = Over(&over);
        let end = Instant::now() + Duration::from_secs(2);
        while Instant::now() < end {
            let began = Instant::now();
            others_are_served(&daemon);
            (worst, served) = (worst.max(began.elapsed()), served + 1);
        }
    });
    println!("{served} meetings beside the flood, the longest within {worst:?}");
    daemon.finish();
}

/// A user takes all the descriptors that it may have, and keeps them: others have theirs.
#[test]
fn descriptors_are_shared_out() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start_by(&["prlimit", "--nofile=800:800"], &[]);
    let before = daemon.descriptors();
    let all: Vec<_> = as_user(61_006, || (0..100).map(|_| Client::connect(&daemon.path()).unwrap()).collect());
    let refused = |it: &Client| match it.answer() {
        Some((answer, _)) => assert_eq!(answer.verdict, Verdict::Refused(Refusal::Limit)),
        None => panic!("a reason is told"),
    };
    all.iter().skip(50).for_each(refused);
    for _ in 0..10 {
        others_are_served(&daemon);
    }
    drop(all);
    // As above.
    daemon.await_descriptors(before + 4);
    daemon.finish();
}

/// No descriptor is left at all: who comes is turned away at once, and the daemon goes on.
#[test]
fn without_descriptors_clients_are_turned_away() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let before = daemon.descriptors();
    let scarce = |at_most| {
        let pid = rustix::process::Pid::from_raw(daemon.pid() as i32);
        let limit = rustix::process::Rlimit { current: Some(at_most), maximum: Some(4096) };
        rustix::process::prlimit(pid, rustix::process::Resource::Nofile, limit).unwrap();
    };
    scarce(40);
    let all: Vec<_> = (0..100).map(|_| Client::connect(&daemon.path()).unwrap()).collect();
    all.iter().skip(40).for_each(|it| assert!(it.answer().is_none()));
    drop(all);
    daemon.await_descriptors(before);
    others_are_served(&daemon);
    daemon.finish();
}

/// A client that does not read its answers loses its connection, and nobody else notices.
#[test]
fn who_does_not_read_is_let_go() {
    let daemon = Daemon::start(&[]);
    let client = Client::connect(&daemon.path()).unwrap();
    let [one, _other] = connection();
    let ask = ASK.emit().unwrap();
    let mut sent = 0;
    while client.send(&ask, &[one.as_fd()]).is_ok() {
        sent += 1;
        assert!(sent < 1_000_000, "it is never let go");
    }
    others_are_served(&daemon);
    daemon.finish();
}

#[test]
fn a_daemon_that_was_killed_is_replaced() {
    let mut daemon = Daemon::start(&[]);
    let client = Client::connect(&daemon.path()).unwrap();
    let [one, other] = connection();
    client.ask(ASK, &one);
    assert_eq!(client.answer().unwrap().0.verdict, Verdict::Waiting);
    daemon.replace(&[]);
    assert!(client.answer().is_none());
    let client = Client::connect(&daemon.path()).unwrap();
    client.ask(ASK, &other);
    assert_eq!(client.answer().unwrap().0.verdict, Verdict::Waiting);
    client.ask(ASK, &one);
    assert!(matches!(client.answer().unwrap().0.verdict, Verdict::Met { .. }));
    others_are_served(&daemon);
    daemon.finish();
}

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

/// A third socket has the right sequence numbers, made by someone who saw the handshake: none of the three meets another.
#[test]
fn a_third_socket_with_the_right_numbers_makes_it_unproven() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    if !daemon.has_numbers() {
        return;
    }
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

/// Runs this as another user, by a thread of its own.
fn as_user<R: Send>(uid: u32, what: impl FnOnce() -> R + Send) -> R {
    use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_uid};
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            set_thread_gid(Gid::from_raw(uid)).unwrap();
            set_thread_uid(Uid::from_raw(uid)).unwrap();
            what()
        });
        thread.join().unwrap()
    })
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

/// An established socket in a network namespace of its own, with addresses and numbers of one's choice, and nobody at the
/// other end.
fn forge(remote: std::net::SocketAddr, local: std::net::SocketAddr, [sent, received]: [u32; 2]) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // SAFETY: the thread, which is ours, shares memory and descriptors as before.
            unsafe { unshare_unsafe(UnshareFlags::NEWNET) }.unwrap();
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
        });
        thread.join().unwrap()
    })
}
