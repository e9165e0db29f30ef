//! A process is killed before each step of going up and of coming down, as the sender and as the reader. Its peer
//! neither hangs nor loses what was delivered, and another process that has the same end goes on where the killed one
//! was.
//!
//! A step is a change of a word or a system call: see [`crate::sync::mortal`].
#![allow(unsafe_code, reason = "forks processes and lays out buffers")]

use super::lies::{Ends, PATIENCE, Sent, send, shared};
use super::{Departure, Port};
use crate::kernel;
use crate::raw::{Answer, Errno};
use crate::reason::Reason;
use crate::sync::mortal;
use crate::vector::Cursor;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::net::Shutdown;
use std::process::Command;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

/// What one process sends: on the kernel path, going up, in the ring, coming down, and going up again.
pub(super) const SAID: [&[u8]; 6] =
    [b"by the kernel; ", b"going up; ", b"in the ring, ", b"and once more; ", b"coming down; ", b"up again."];
/// What another says when that one is dead.
const MORE: &[u8] = b" The other goes on.";

fn all_said() -> Vec<u8> {
    SAID.concat()
}

/// Sends a part of [`SAID`]: the first and the fifth while the connection is held on the kernel path.
pub(super) fn say(port: &Port<'_>, part: usize) {
    match part {
        0 | 4 => port.end.hold(),
        1 | 5 => port.end.let_go_up(),
        _ => {}
    }
    assert_eq!(send(port, SAID[part]), Ok(SAID[part].len()));
}

/// What is received in one piece of this length at most.
pub(super) fn receive(port: &mut Port<'_>, most: usize, flags: i32) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0u8; most];
    let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most };
    // SAFETY: one buffer, writable.
    let into = unsafe { Cursor::new(&vector, 1) };
    let count = port.receive(into, flags)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Receives in a thread of its own until the stream ends: what came, and how it ended.
pub(super) fn receive_all(ends: &Ends, number: usize, received: &'static AtomicUsize) -> Receiver<(Vec<u8>, Answer)> {
    let (tell, told) = mpsc::channel();
    let port = Sent(ends.port(number));
    thread::spawn(move || {
        let Sent(port) = { port };
        let mut port = Port { me: kernel::thread_id(), ..port };
        let mut all = Vec::new();
        let end = loop {
            match receive(&mut port, 7, 0) {
                Ok(bytes) if bytes.is_empty() => break Ok(0),
                Ok(bytes) => all.extend(bytes),
                Err(error) => break Err(error),
            }
            received.store(all.len(), SeqCst);
        };
        // The test may have given up.
        let _ = tell.send((all, end));
    });
    told
}

/// Does `what` in a thread of its own, and fails if it does not end.
fn in_time<T: Send + 'static>(what: &str, port: Port<'static>, act: impl FnOnce(Port<'_>) -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    let port = Sent(port);
    thread::spawn(move || {
        let Sent(port) = { port };
        let _ = tell.send(act(Port { me: kernel::thread_id(), ..port }));
    });
    told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{what} does not end"))
}

/// What became of a process that was to die before a step.
#[derive(PartialEq, Eq)]
enum Fate {
    Killed,
    /// It has done everything in fewer steps.
    Survived,
}

/// Forks a process that does `prepare`, and then `act`, in which it dies before step number `step`.
fn fork(step: u32, prepare: impl FnOnce(), act: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child makes system calls and changes memory of its own and of the test, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: no pointer among the arguments. A child that hangs ends by SIGALRM, which is not what is awaited.
        unsafe { libc::alarm(PATIENCE.as_secs() as u32) };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            prepare();
            mortal::die_at(step);
            act();
            mortal::die_at(0);
        }));
        // SAFETY: nothing of the test's is to be done by the child.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    child
}

fn fate(child: libc::pid_t) -> Fate {
    let mut status = 0;
    // SAFETY: the status is writable.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGKILL {
        return Fate::Killed;
    }
    assert_eq!(status, 0, "the child was neither killed nor done");
    Fate::Survived
}

/// Waits for what another process or thread does. It takes no step.
pub(super) fn await_that(what: impl Fn() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < PATIENCE);
        thread::sleep(Duration::from_micros(20));
    }
}

/// Tries every step until the process survives; how many there were.
fn each_step(test: impl Fn(u32) -> Fate) -> u32 {
    let last = (1..).find(|&step| test(step) == Fate::Survived);
    last.map_or(0, |step| step - 1)
}

/// A sender of [`SAID`] dies before step `step`. The reader is in a receive all the time; the sender awaits it after
/// each part if `in_turn`. With `heir` the test has the same end, and goes on.
fn sender_dies(step: u32, in_turn: bool, heir: bool) -> Fate {
    let mut ends = Ends::joined(false);
    let (sent, received) = (shared::<AtomicUsize>(), shared::<AtomicUsize>());
    let told = receive_all(&ends, 1, received);
    let sender = ends.port(0);
    let act = || {
        let port = Port { me: kernel::thread_id(), ..sender };
        for (part, bytes) in SAID.iter().enumerate() {
            say(&port, part);
            let all = sent.fetch_add(bytes.len(), SeqCst) + bytes.len();
            if in_turn {
                await_that(|| received.load(SeqCst) == all);
            }
        }
    };
    let child = fork(step, || (), act);
    if !heir {
        close(&mut ends, 0);
    }
    let fate = fate(child);
    let mut said = all_said();
    if heir {
        let answer = in_time("a send", sender, |port| send(&port, MORE));
        assert_eq!(answer, Ok(MORE.len()), "step {step}");
        ends.sockets[0].shutdown(Shutdown::Write).unwrap();
    }
    let (got, end) = told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("step {step}: the reader hangs"));
    let own = if heir { got.strip_suffix(MORE).unwrap_or_else(|| panic!("step {step}: {got:?}")) } else { &got[..] };
    said.truncate(own.len());
    let delivered = sent.load(SeqCst);
    assert!(
        own == said && own.len() >= delivered,
        "step {step}: of {delivered} bytes {:?}",
        String::from_utf8_lossy(own)
    );
    assert!(matches!(end, Ok(0) | Err(Errno(libc::ECONNRESET))), "step {step}: {end:?}");
    assert!(!ends.port(1).has_something(), "step {step}: the end was told before what lies in the ring");
    fate
}

/// The test has this end's socket no more.
fn close(ends: &mut Ends, number: usize) {
    // SAFETY: /dev/null takes the number, and the socket goes if no other process has it.
    let null = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    let fd = ends.port(number).fd;
    // SAFETY: as above.
    assert!(null >= 0 && unsafe { libc::dup3(null, fd, libc::O_CLOEXEC) == fd && libc::close(null) == 0 });
}

#[test]
#[ignore = "forks often: in_a_process_of_their_own runs it"]
fn a_sender_dies_at_any_step_of_a_switch() {
    for in_turn in [true, false] {
        let steps = each_step(|step| sender_dies(step, in_turn, false));
        assert!(steps > 50, "{steps} steps are too few for two ways up and one down");
    }
}

#[test]
#[ignore = "forks often: in_a_process_of_their_own runs it"]
fn another_sender_goes_on_where_one_has_died() {
    for in_turn in [true, false] {
        each_step(|step| sender_dies(step, in_turn, true));
    }
}

/// What the reader has said before it dies.
const ANSWER: &[u8] = b"I listen.";

/// A reader of [`SAID`], which lies there, dies before step `step` in receives of a few bytes. With `heir` the test has
/// the same end, and reads on.
fn reader_dies(step: u32, heir: bool) -> Fate {
    let mut ends = Ends::joined(false);
    let received = shared::<AtomicUsize>();
    let (sender, reader) = (ends.port(0), ends.port(1));
    // All but what would have to wait for the reader.
    (0..5).for_each(|part| say(&sender, part));
    let said = SAID[..5].concat();
    let length = said.len();
    let act = || {
        let mut port = Port { me: kernel::thread_id(), ..reader };
        while received.load(SeqCst) < length {
            let bytes = receive(&mut port, 5, libc::MSG_DONTWAIT).unwrap();
            let all = received.load(SeqCst) + bytes.len();
            assert!(!bytes.is_empty() && said[..all].ends_with(&bytes));
            received.store(all, SeqCst);
        }
    };
    let answer = || assert_eq!(send(&Port { me: kernel::thread_id(), ..reader }, ANSWER), Ok(ANSWER.len()));
    let child = fork(step, answer, act);
    if !heir {
        close(&mut ends, 1);
    }
    let fate = fate(child);
    if heir {
        ends.sockets[0].shutdown(Shutdown::Write).unwrap();
        let told = receive_all(&ends, 1, shared::<AtomicUsize>());
        let (got, end) = told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("step {step}: the heir hangs"));
        // What the dead one was about to report is its own.
        let begin = length.checked_sub(got.len()).expect("nothing twice");
        let told = received.load(SeqCst);
        let missing = format!("step {step}: {told} were received, and then {:?}", String::from_utf8_lossy(&got));
        assert!(got == said[begin..] && (told..=told + 5).contains(&begin), "{missing}");
        assert_eq!(end, Ok(0), "step {step}");
        return fate;
    }
    let (got, end) = receive_all(&ends, 0, shared::<AtomicUsize>()).recv_timeout(PATIENCE).expect("an end");
    assert_eq!(got, ANSWER, "step {step}");
    assert!(matches!(end, Ok(0) | Err(Errno(libc::ECONNRESET))), "step {step}: {end:?}");
    // Neither a send nor a change of the path waits for a dead process.
    let sends_to_the_dead = |port: Port<'_>| while send(&port, b"anybody there?").is_ok() {};
    in_time("a send to the dead", sender, sends_to_the_dead);
    in_time("going down", sender, |port| port.go_down_for_good(Reason::Asked, true, u64::MAX));
    fate
}

#[test]
#[ignore = "forks often: in_a_process_of_their_own runs it"]
fn a_reader_dies_at_any_step_of_a_switch() {
    let steps = each_step(|step| reader_dies(step, false));
    assert!(steps > 50, "{steps} steps are too few for one way up and one down");
}

#[test]
#[ignore = "forks often: in_a_process_of_their_own runs it"]
fn another_reader_goes_on_where_one_has_died() {
    each_step(|step| reader_dies(step, true));
}

/// What `receive_all` tells is `parts` of [`SAID`], what was sent behind them, and the end.
fn assert_all_arrives(told: &Receiver<(Vec<u8>, Answer)>, parts: usize, step: u32) {
    let (got, end) = told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("step {step}: the reader hangs"));
    let said = [SAID[..parts].concat(), MORE.to_vec()].concat();
    assert!(got == said, "step {step}: {:?}", String::from_utf8_lossy(&got));
    assert_eq!(end, Ok(0), "step {step}");
}

/// A reader goes away from `parts` of [`SAID`], which it has not read, and comes back; it dies before step `step`.
/// Another process that has the same end comes for it, and reads on.
fn departing_reader_dies(step: u32, parts: usize) -> Fate {
    let ends = Ends::joined(false);
    let (sender, reader) = (ends.port(0), ends.port(1));
    (0..parts).for_each(|part| say(&sender, part));
    let act = || {
        let port = Port { me: kernel::thread_id(), ..reader };
        assert_eq!(port.go_away(|| true), Departure::Gone);
        port.come_back();
    };
    let fate = fate(fork(step, || (), act));
    in_time("coming back", reader, |port| port.come_back());
    assert_eq!(in_time("a send", sender, |port| send(&port, MORE)), Ok(MORE.len()), "step {step}");
    ends.sockets[0].shutdown(Shutdown::Write).unwrap();
    let told = receive_all(&ends, 1, shared::<AtomicUsize>());
    assert_all_arrives(&told, parts, step);
    fate
}

#[test]
#[ignore = "forks often: in_a_process_of_their_own runs it"]
fn another_reader_comes_back_where_one_has_died() {
    // With the next one the mark of going down lies behind what is unread, and nobody can put that on the kernel path.
    for parts in 1..=4 {
        let steps = each_step(|step| departing_reader_dies(step, parts));
        assert!(steps > 10, "{steps} steps are too few for going away and coming back");
    }
}

/// A sender that has sent `parts` of [`SAID`] goes down for good, and dies before step `step`. Another process that has
/// the same end sends on.
fn pinning_sender_dies(step: u32, parts: usize) -> Fate {
    let ends = Ends::joined(false);
    let told = receive_all(&ends, 1, shared::<AtomicUsize>());
    let sender = ends.port(0);
    (0..parts).for_each(|part| say(&sender, part));
    let act = || Port { me: kernel::thread_id(), ..sender }.go_down_for_good(Reason::Asked, true, u64::MAX);
    let fate = fate(fork(step, || (), act));
    assert_eq!(in_time("a send", sender, |port| send(&port, MORE)), Ok(MORE.len()), "step {step}");
    assert!(fate == Fate::Killed || !sender.sends_fast());
    ends.sockets[0].shutdown(Shutdown::Write).unwrap();
    assert_all_arrives(&told, parts, step);
    fate
}

#[test]
#[ignore = "forks often: in_a_process_of_their_own runs it"]
fn another_sender_goes_on_where_one_has_died_that_was_going_down_for_good() {
    for parts in 1..=6 {
        let steps = each_step(|step| pinning_sender_dies(step, parts));
        assert!(steps > 2, "{steps} steps are too few for a way down");
    }
}

/// Whatever other tests have attached, a child that is forked beside them has too, and those look at how many have it.
#[test]
fn in_a_process_of_their_own() {
    let tests = std::env::current_exe().expect("the tests themselves");
    let run = Command::new(tests).args(["--ignored", "switch::deaths::"]).output().expect("a process");
    let said = String::from_utf8_lossy(&run.stdout);
    assert!(
        run.status.success() && said.contains(" 6 passed; 0 failed"),
        "{said}{}",
        String::from_utf8_lossy(&run.stderr)
    );
}
