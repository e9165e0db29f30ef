//! Clients that lie, flood, fall silent, or hand over what keeps the daemon waiting.
use super::client::{ASK, Client, MOST};
use super::daemon::{Daemon, is_root};
use rustix::fd::{AsFd, BorrowedFd};
use rustix::process::{Resource, Signal, kill_process};
use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};
use underpass_broker::{Ask, Knock, Refusal, Verdict};

/// Both ends of a connection.
pub fn connection() -> [TcpStream; 2] {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    [client, server]
}

/// An honest process of another user than the hostile one meets itself.
pub fn others_are_served(daemon: &Daemon) {
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

/// Not even the last close of a socket that lingers keeps others waiting, nor a socket that is left unread, nor one too
/// many.
#[test]
fn a_close_that_waits_delays_no_other_client() {
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
        // The daemon does not answer for now.
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

/// What a hostile user does for as long as it may, each in a way of its own.
const MISDEEDS: [fn(&Path); 6] = [
    // Asks, until the daemon stops to read, or lets go.
    |path| {
        let [one, _other] = connection();
        flood(path, &ASK.emit().unwrap(), &[one.as_fd()]);
    },
    // Knocks.
    |path| flood(path, &Knock { token: 1, mark: 1 }.emit(), &[]),
    // Hands over as many descriptors at once as the kernel takes.
    |path| {
        let [one, _other] = connection();
        flood(path, &ASK.emit().unwrap(), &[one.as_fd(); MOST]);
    },
    // Halves of records.
    |path| {
        let [one, _other] = connection();
        flood(path, &ASK.emit().unwrap()[..20], &[one.as_fd()]);
    },
    // Connects and says nothing.
    |path| drop((0..200).map(|_| Client::connect(path)).collect::<Vec<_>>()),
    // Meets itself, and leaves the answers where they are.
    |path| {
        let Ok(client) = Client::connect(path) else { return };
        let all: Vec<_> = (0..20).map(|_| connection()).collect();
        let asked = |socket: &TcpStream| client.send(&ASK.emit().unwrap(), &[socket.as_fd()]).is_ok();
        let _ = all.iter().flatten().take_while(|it| asked(it)).count();
        std::thread::sleep(Duration::from_millis(20));
    },
];

fn flood(path: &Path, octets: &[u8], descriptors: &[BorrowedFd<'_>]) {
    let Ok(client) = Client::connect(path) else { return };
    for _ in 0..50 {
        if client.send(octets, descriptors).is_err() {
            break;
        }
    }
}

/// Median and 95th percentile of how long it takes an honest process to meet itself, by each of two daemons in turns.
fn times(daemons: [&Daemon; 2]) -> [[Duration; 2]; 2] {
    let mut all = [const { Vec::new() }; 2];
    for _ in 0..200 {
        for (all, daemon) in all.iter_mut().zip(daemons) {
            let began = Instant::now();
            others_are_served(daemon);
            all.push(began.elapsed());
        }
    }
    all.map(|mut all| {
        all.sort();
        [all[all.len() / 2], all[all.len() * 95 / 100]]
    })
}

/// How many times as long everything takes for a daemon as the processor time that it needs, meanwhile.
fn slowness<R>(daemon: &Daemon, meanwhile: impl FnOnce() -> R) -> (f64, R) {
    let before = daemon.scheduled();
    let result = meanwhile();
    let after = daemon.scheduled();
    let [had, waited] = [0, 1].map(|at| (after[at] - before[at]) as f64);
    (1.0 + waited / had.max(1.0), result)
}

/// The test measures how long the daemon keeps other users waiting. So the hostile users get the processors only when
/// no other process wants them, and what else delays the honest process on a busy machine is told by a second daemon,
/// which the hostile users leave alone. Where other programs leave the daemon next to no processor time, nothing can be
/// told.
#[test]
fn hostile_users_delay_no_other_user() {
    /// What the first daemon may make later, where it never waits for a processor.
    const LATER: Duration = Duration::from_millis(10);
    const TOO_SLOW: f64 = 10.0;
    const SKIPPED: &str = "SKIPPED: other programs leave too little processor time";
    if !is_root() {
        return;
    }
    let [daemon, quiet] = [(); 2].map(|()| Daemon::start(&[]));
    if slowness(&daemon, || (0..20).for_each(|_| others_are_served(&daemon))).0 > TOO_SLOW {
        return println!("{SKIPPED}");
    }
    let over = AtomicBool::new(false);
    let path = daemon.path();
    let begun = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for (misdeed, uid) in MISDEEDS.into_iter().zip(61_010..) {
            let (over, path, begun) = (&over, &path, &begun);
            scope.spawn(move || {
                rustix::process::setpriority_process(None, 19).unwrap();
                as_user(uid, || {
                    misdeed(path);
                    begun.fetch_add(1, Relaxed);
                    while !over.load(Relaxed) {
                        misdeed(path);
                    }
                });
            });
        }
        // However this ends.
        let _over = Over(&over);
        while begun.load(Relaxed) < MISDEEDS.len() {
            others_are_served(&daemon);
        }
        // Other programs on the machine delay them too, now and then.
        let is_undelayed = (0..5).any(|_| {
            let (slowness, [alone, beside]) = slowness(&daemon, || times([&quiet, &daemon]));
            let later = LATER.mul_f64(slowness);
            println!("median and 95th percentile: {alone:?}, with hostile users {beside:?}; {later:?} may be between");
            if slowness > TOO_SLOW {
                println!("{SKIPPED}");
            }
            slowness > TOO_SLOW || alone.iter().zip(beside).all(|(alone, beside)| beside < *alone + later)
        });
        assert!(is_undelayed, "too late in each of five rounds");
    });
    daemon.finish();
    quiet.finish();
}

/// A user has as much memory as it may have: there is no more for it, and others have theirs.
#[test]
fn memory_is_shared_out() {
    // A user may have 128 GiB of pools; in each of these pools it is both sides.
    const POOL: u64 = 64 << 25;
    const ALL: u64 = (128 << 30) / 2 / POOL * 64 + 64;
    if !is_root() {
        return;
    }
    let mut limit = rustix::process::getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    let _ = rustix::process::setrlimit(Resource::Nofile, limit);
    if limit.maximum.is_some_and(|most| most < 4 * ALL) {
        return println!("SKIPPED: a process may have too few descriptors");
    }
    let daemon = Daemon::start_by(&["prlimit", "--nofile=4096"], &[]);
    let all = as_user(61_020, || {
        let client = Client::connect(&daemon.path()).unwrap();
        let ask = Ask { ring_bytes: 1 << 24, ..ASK };
        let mut keep = Vec::new();
        let refused = (0..ALL).any(|_| {
            let [one, other] = connection();
            client.ask(ask, &one);
            assert_eq!(client.answer().unwrap().0.verdict, Verdict::Waiting);
            client.ask(ask, &other);
            let verdicts = [client.answer(), client.answer()].map(|it| it.unwrap().0.verdict);
            keep.push([one, other]);
            verdicts == [Verdict::Refused(Refusal::Limit); 2]
        });
        assert!(refused, "{} connections, and no limit", keep.len());
        keep
    });
    others_are_served(&daemon);
    drop(all);
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

/// No descriptor is left at all: a client that comes is turned away at once, and the daemon goes on.
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

/// A user leaves answers with memory unread, each of which counts as a descriptor of the daemon's user: it is given no
/// more, and others are.
#[test]
fn unread_memory_is_shared_out() {
    const UNREAD: usize = 50;
    if !is_root() {
        return;
    }
    let daemon = Daemon::start_by(&["prlimit", "--nofile=800:800"], &[]);
    let (client, _ends) = as_user(61_022, || {
        let client = Client::connect(&daemon.path()).unwrap();
        let [one, other] = connection();
        client.ask(ASK, &one);
        client.ask(Ask { token: 2, ..ASK }, &other);
        let answers = [client.answer(), client.answer(), client.answer()];
        assert!(answers.iter().flatten().filter(|(_, memory)| memory.is_some()).count() == 2, "{answers:?}");
        (0..2 * UNREAD).for_each(|_| client.ask(ASK, &one));
        (client, [one, other])
    });
    let inquirer = Client::connect(&daemon.path()).unwrap();
    while inquirer.state().counts.unwrap().asks < 2 + 2 * UNREAD as u64 {
        std::thread::yield_now();
    }
    others_are_served(&daemon);
    let verdicts: Vec<Verdict> = (0..2 * UNREAD).map(|_| client.answer().unwrap().0.verdict).collect();
    let refused = verdicts.iter().filter(|it| **it == Verdict::Refused(Refusal::Limit)).count();
    assert!((UNREAD / 2..2 * UNREAD - 1).contains(&refused), "{refused}");
    daemon.finish();
}

/// A client that does not read its answers loses its connection, and no other client notices.
#[test]
fn a_client_that_does_not_read_is_disconnected() {
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

/// The daemon's own process that closes connections ends. Fails if the daemon goes on without it until a client leaves,
/// or does not say what has happened.
#[test]
fn the_end_of_the_process_that_closes_connections_is_told_at_once() {
    let mut daemon = Daemon::start(&[]);
    let closer = daemon.closer();
    // A user's Ctrl-C is for the daemon, as its other signals are.
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        kill_process(closer, signal).unwrap();
    }
    others_are_served(&daemon);
    kill_process(closer, Signal::KILL).unwrap();
    assert_eq!(daemon.status().code(), Some(1));
    let log = daemon.log();
    assert!(log.contains("its process that closes clients' connections has ended"), "{log}");
}

/// That process can start no other one. Fails if it does not say so, or tries for ever.
#[test]
fn where_no_process_can_be_started_that_is_told() {
    if !is_root() {
        return;
    }
    // The limit does not hold for root, and counts threads. The daemon has three, and this process. The fifth word of
    // its own is its socket.
    let user = "setpriv --reuid=61023 --regid=61023 --clear-groups";
    let as_user = format!("chown 61023 \"${{5%/*}}\" && exec prlimit --nproc=4 {user} \"$0\" \"$@\"");
    let mut daemon = Daemon::start_by(&["sh", "-c", &as_user], &[]);
    drop(Client::connect(&daemon.path()).unwrap());
    daemon.await_said("no process can be started to close clients' connections: raise TasksMax", 1);
    assert_eq!(daemon.status().code(), Some(1));
    daemon.await_said("no process could be started to close clients' connections", 1);
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
