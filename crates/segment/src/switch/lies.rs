//! What the other end may write, or leave behind, at the worst moment, between ends on a real socket: a receive still
//! sleeps, and ends when the connection does; a poll finds that the rules were broken; a reset is taken for what it is.
#![allow(unsafe_code, reason = "lays ends and buffers out as the library has them")]

use super::leaving::Leave;
use super::{Departure, LeftRing, Port, Ready, Recipient, Sleep, Waiting, micros};
use crate::channel::{Pool, Shape, Side};
use crate::clock::ticks;
use crate::end::{End, SHUT_OUT, Stage};
use crate::kernel;
use crate::raw::Answer;
use crate::reason::Reason;
use crate::ring::{Place, Record};
use crate::sync::{Relaxed, SeqCst};
use crate::vector::Cursor;
use crate::words::{ALONE, CLOSED, DOZING, LEAVING, LEFT, ORPHANED, RECEIVING, RINGING};
use std::io::Read;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

pub(super) static WAITING: Waiting = Waiting {
    keep_socket: |_| {},
    // SAFETY: passed on to the caller.
    recv: |port, to, len, flags, _| unsafe { kernel::recv(port.fd, to, len, flags) },
    call: |_, call| call(),
    give_back_everywhere: || true,
    looks: |_| false,
    ring: |_| {},
    refused: |_| {},
};
/// Longer than anything here takes that ends at all.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// Both ends of a connection; the first sends.
pub(super) struct Ends {
    pub(super) ends: [&'static End; 2],
    pub(super) sockets: [TcpStream; 2],
    pool: Pool,
}

pub(super) struct Sent(pub(super) Port<'static>);

/// Zeroed memory that the processes have in common which are forked from now on.
pub(super) fn shared<T>() -> &'static T {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping, of which this is the only use. It is never unmapped.
    unsafe {
        let at = libc::mmap(core::ptr::null_mut(), size_of::<T>(), access, kind, -1, 0);
        assert!(at != libc::MAP_FAILED);
        &*at.cast::<T>()
    }
}

// SAFETY: the pool stays attached, and the ends are never freed; both are made for several threads.
unsafe impl Send for Sent {}

impl Ends {
    /// Both know of each other; with `fast` the direction has gone up.
    pub(super) fn joined(fast: bool) -> Ends {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let sockets = [client, listener.accept().unwrap().0];
        // Zeroed memory is an unused end.
        let ends = [0, 1].map(|_| shared::<End>());
        let it = Ends { ends, sockets, pool: Pool::create(Shape { ring_bytes: 1 << 16, slots: 4 }).unwrap() };
        it.port(0).channel.prepare([1, 2]);
        for number in [0, 1] {
            it.ends[number].advance(Stage::Joined);
            assert!(it.port(number).become_ready());
        }
        if fast {
            assert!(it.port(0).can_wake());
            it.port(1).pass_due_marks();
            assert!(it.port(1).receives_fast());
        }
        it
    }

    /// The first end has sent `before` on the kernel path, and `behind` in the ring. The second has read neither, and
    /// no doorbell came.
    pub(super) fn before_ring(before: &[u8], behind: &[u8]) -> Ends {
        let it = Ends::joined(false);
        assert_eq!(kernel::send(it.port(0).fd, before), Ok(before.len()));
        it.port(1).channel.incoming().flags.waiting.store(0, Relaxed);
        assert_eq!(it.send(behind), Ok(behind.len()));
        assert!(it.port(0).sends_fast() && !it.port(1).receives_fast());
        it
    }

    pub(super) fn port(&self, number: usize) -> Port<'static> {
        self.port_of(number, 1 + number as u32)
    }

    /// The port of an end for thread `me`.
    pub(super) fn port_of(&self, number: usize, me: u32) -> Port<'static> {
        Port {
            end: self.ends[number],
            channel: self.pool.slot(0, [Side::Maker, Side::Joiner][number]).unwrap(),
            fd: self.sockets[number].as_raw_fd(),
            keeps_socket: false,
            me,
            token: 0,
            spin_us: 0,
            doze_us: 0,
            waiting: &WAITING,
        }
    }

    /// The first end sends all of `bytes`, by whichever path.
    pub(super) fn send(&self, bytes: &[u8]) -> Answer {
        send(&self.port(0), bytes)
    }

    /// What the second end's kernel has to read, which is `bytes` and nothing else.
    pub(super) fn assert_kernel_has(&self, bytes: &[u8]) {
        let mut got = vec![0; bytes.len()];
        (&self.sockets[1]).read_exact(&mut got).unwrap();
        assert!(got == bytes, "{} bytes are others", got.iter().zip(bytes).filter(|(a, b)| a != b).count());
        assert_eq!(kernel::inq(self.sockets[1].as_raw_fd()), Ok(0));
    }

    /// What the second end receives at once is `bytes`, or more.
    pub(super) fn assert_receives(&self, bytes: &[u8]) {
        let mut got = vec![0u8; bytes.len()];
        let vector = libc::iovec { iov_base: got.as_mut_ptr().cast(), iov_len: got.len() };
        // SAFETY: one buffer, writable.
        let into = unsafe { Cursor::new(&vector, 1) };
        assert_eq!(self.port(1).receive(into, libc::MSG_DONTWAIT), Ok(bytes.len()));
        assert!(got == bytes, "other bytes");
    }

    /// What a receive of the second end says, when it ends.
    fn receive(&self) -> Receiver<Answer> {
        let (tell, told) = mpsc::channel();
        let port = Sent(self.port(1));
        thread::spawn(move || {
            let Sent(mut port) = { port };
            let mut byte = 0u8;
            let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
            // SAFETY: one buffer, writable.
            let into = unsafe { Cursor::new(&vector, 1) };
            tell.send(port.receive(into, 0))
        });
        told
    }
}

/// Sends all of `bytes`, by whichever path.
pub(super) fn send(port: &Port<'_>, bytes: &[u8]) -> Answer {
    let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: one buffer, only read.
    let from = unsafe { Cursor::new(&vector, 1) };
    port.send(from, 0, |sent| kernel::send(port.fd, &bytes[sent..]))
}

/// Runs for ever if `Port::arm` does not raise anew what no sender writes (`is_lie`).
#[test]
fn a_lie_in_the_waiting_flag_keeps_no_receive_from_its_end() {
    for lie in [2, DOZING, 77, RINGING | 5] {
        let it = Ends::joined(true);
        it.port(1).arm(ALONE);
        it.port(0).channel.outgoing().flags.waiting.store(lie, Relaxed);
        let told = it.receive();
        it.sockets[0].shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(0)), "{lie}");
    }
}

/// Fails if `Port::pass_marks` passes over a mark of going up on the fast path.
#[test]
fn a_second_mark_of_going_up_is_found_by_a_poll() {
    let it = Ends::joined(true);
    it.port(0).sender().mark(Record::Up(0));
    let port = it.port(1);
    assert!(matches!(port.prepare_to_sleep(ALONE), Sleep::No));
    assert_eq!((port.ready(), port.end.stage(), port.end.reason()), (Ready::Yes, Stage::Broken, Reason::PeerFault));
}

/// Never sleeps if `Port::sleep` does not ask `Port::awaits_rest`, and keeps every other thread and process out
/// meanwhile: the second if that does not ask for doorbells.
#[test]
fn a_receive_sleeps_before_what_never_comes() {
    for (fast, marks) in [(false, &[Record::Up(1000)][..]), (true, &[Record::Down(5), Record::Up(0)])] {
        let it = Ends::joined(fast);
        marks.iter().for_each(|&mark| it.port(0).sender().mark(mark));
        let told = it.receive();
        let began = Instant::now();
        while !it.ends[1].reading.lock.is_asleep() {
            assert!(began.elapsed() < PATIENCE, "{marks:?}");
            thread::yield_now();
        }
        it.sockets[0].shutdown(std::net::Shutdown::Both).unwrap();
        assert_eq!(told.recv_timeout(PATIENCE), Ok(Ok(0)), "{marks:?}");
    }
}

/// A reader that is killed between the ring and the doorbell had read everything: kernel TCP ends the stream. Unless it
/// had asked for a reset; the last fails if `Port::judge_reset` does not look at `ReaderFlags::resets`.
#[test]
fn a_reset_is_a_doorbells_doing_unless_the_reader_had_asked_for_one() {
    for (asked_before, asked) in [(false, false), (true, false), (false, true)] {
        let it = Ends::joined(true);
        let (sender, reader) = (it.port(0), it.port(1));
        // The other direction has gone up too: nothing that the reader has sent can be missing.
        assert!(reader.can_wake());
        sender.pass_due_marks();
        for asked in [asked_before, asked] {
            let linger = libc::linger { l_onoff: asked.into(), l_linger: 0 };
            let size = size_of_val(&linger) as libc::socklen_t;
            let at = (&raw const linger).cast();
            // SAFETY: the kernel reads the structure.
            let set = unsafe { libc::setsockopt(reader.fd, libc::SOL_SOCKET, libc::SO_LINGER, at, size) };
            assert_eq!(set, 0);
            reader.channel.tell_of_close(reader.fd);
        }
        reader.arm(ALONE);
        let vector = libc::iovec { iov_base: c"x".as_ptr().cast_mut().cast(), iov_len: 1 };
        // SAFETY: one buffer, only read.
        let from = unsafe { Cursor::new(&vector, 1) };
        assert_eq!(sender.send(from, 0, |_| unreachable!("it went up")), Ok(1));
        assert_eq!(sender.channel.outgoing().sender.announced.load(Relaxed), 1);
        // The last that it does.
        sender.channel.outgoing().head.head.store(it.ends[0].sending.tail.load(Relaxed), Relaxed);
        let Ends { sockets: [_mine, others], .. } = it;
        drop(others);
        assert_eq!(kernel::poll_now(sender.fd, 0), libc::POLLERR | libc::POLLHUP);
        assert_eq!(sender.judge_reset(), !asked);
    }
}

/// Another process of the family has found that the processes of the other end were killed, and ended it for them.
/// Fails if that counts as a close of their own, before which an end takes its doorbells.
#[test]
fn an_end_that_was_ended_for_killed_processes_may_have_a_doorbell_unread() {
    for (closed, by_bell) in [(0, true), (ORPHANED, true), (CLOSED, false)] {
        let it = Ends::joined(true);
        let (sender, reader) = (it.port(0), it.port(1));
        assert!(reader.can_wake());
        sender.pass_due_marks();
        sender.send_bell();
        reader.channel.incoming().flags.closed.store(closed, Relaxed);
        let Ends { sockets: [_mine, others], .. } = it;
        drop(others);
        assert_eq!(kernel::poll_now(sender.fd, 0), libc::POLLERR | libc::POLLHUP);
        assert_eq!(sender.judge_reset(), by_bell, "{closed}");
    }
}

/// The reader has not come to the ring yet when the sender is killed, and rings behind the FIN. Fails if its receives
/// end with EPIPE, before what the kernel and the ring still have.
#[test]
fn a_doorbell_behind_the_end_of_the_stream_hides_nothing_of_it() {
    let it = Ends::before_ring(b"before ", b"and behind");
    let reader = it.port(1);
    assert!(reader.can_wake() && reader.announce_bell());
    let Ends { sockets: [others, _mine], .. } = it;
    drop(others);
    assert_eq!(kernel::send(reader.fd, &[0]), Ok(1));
    reader.go_down_for_now(Reason::Met, false);
    while kernel::poll_now(reader.fd, 0) & libc::POLLERR == 0 {
        thread::yield_now();
    }
    // As recvmmsg(2) does before it receives.
    assert_eq!(reader.take_error(), None);
    assert_eq!(super::deaths::receive(&mut { reader }, 17, libc::MSG_WAITALL), Ok(b"before and behind".to_vec()));
}

/// Fails if the mark of going down brings a doorbell: the reader's kernel would answer with a reset.
#[test]
fn an_end_that_has_shut_down_both_ways_gets_no_doorbell() {
    let it = Ends::joined(true);
    let (sender, reader) = (it.port(0), it.port(1));
    reader.prepare_to_shut();
    it.sockets[1].shutdown(Shutdown::Both).unwrap();
    sender.go_down_for_now(Reason::Met, true);
    assert!(!sender.sends_fast() && sender.bells_since_up() == 0);
    // Not a reset, of which poll would say POLLERR.
    assert_eq!(kernel::poll_now(sender.fd, libc::POLLRDHUP), libc::POLLRDHUP);
}

/// An end goes up to be able to wake the other one, and down again, and the other one is killed with the doorbell
/// unread. Fails if only a single mark may be left in the ring.
#[test]
fn marks_left_in_the_ring_are_no_unread_data() {
    let it = Ends::joined(false);
    let (sender, reader) = (it.port(0), it.port(1));
    assert!(reader.can_wake());
    sender.pass_due_marks();
    assert!(sender.can_wake());
    sender.send_bell();
    sender.go_down_for_now(Reason::Met, false);
    assert!(!sender.sends_fast() && sender.sender().used(true).unwrap() > 16);
    let Ends { sockets: [_mine, others], .. } = it;
    drop(others);
    assert_eq!(kernel::poll_now(sender.fd, 0), libc::POLLERR | libc::POLLHUP);
    assert!(sender.judge_reset());
}

/// A liar, or a reader that was killed. Fails if `Port::step_down` takes an absent reader for one for which the kernel
/// has no room.
#[test]
fn a_reader_that_is_absent_and_never_done_with_leaving_is_not_awaited() {
    let it = Ends::joined(true);
    let reader = it.port(1);
    let flags = &reader.channel.incoming().flags;
    flags.waiting.fetch_or(LEFT, Relaxed);
    flags.in_kernel.store(LEAVING, Relaxed);
    let (tell, told) = mpsc::channel();
    let port = Sent(it.port(0));
    thread::spawn(move || {
        let Sent(port) = { port };
        port.go_down_for_good(Reason::Asked, true, u64::MAX);
        tell.send(())
    });
    assert_eq!(told.recv_timeout(PATIENCE), Ok(()));
    assert_eq!((it.ends[0].stage(), it.ends[0].reason()), (Stage::Broken, Reason::PeerFault));
}

/// A thread that sleeps on another connection would wait for a thread that waits for what that sleep is for.
#[test]
fn what_is_left_unread_is_not_given_back_beside_a_thread_that_sends() {
    let (it, left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    assert_eq!(reader.leave(Leave::IfGivenBack, u64::MAX), LeftRing::Unread);
    let lock = &sender.end.sending.lock;
    let sending = lock.enter(kernel::marked(kernel::thread_id()));
    assert!(!sender.give_back_unless_busy());
    assert_eq!(kernel::inq(reader.fd), Ok(0));
    lock.exit(sending);
    // A sender that was killed while it sent is not awaited.
    lock.enter(NOBODY);
    assert!(sender.give_back_unless_busy());
    it.assert_kernel_has(&left);
}

/// Some records, one of which the reader has read in part.
pub(super) fn some_left_unread() -> (Ends, Vec<u8>) {
    let it = Ends::joined(true);
    let all: Vec<u8> = (0..20_000u32).map(|n| (n * 7 / 3) as u8).collect();
    for piece in all.chunks(4500) {
        assert_eq!(it.send(piece), Ok(piece.len()));
    }
    it.assert_receives(&all[..1234]);
    (it, all[1234..].to_vec())
}

#[test]
fn a_reader_that_hands_over_gives_what_is_unread_itself() {
    let (it, mut left) = some_left_unread();
    assert!(it.port(1).hand_over(Reason::Inherited, Recipient::Alone, false));
    it.assert_kernel_has(&left);
    // The sender, which has done nothing meanwhile, goes on behind that.
    left = b"and more".to_vec();
    assert_eq!(it.send(&left), Ok(left.len()));
    it.assert_kernel_has(&left);
    assert!(!it.port(0).sends_fast() && it.port(0).unsent() == 0);
}

/// A thread takes for doorbells what the sender has sent behind its mark of going down. The program reads a part of it.
/// Fails if the recipient would go on behind that.
#[test]
fn what_was_taken_for_doorbells_is_not_handed_over() {
    let it = Ends::joined(true);
    it.ends[0].hold();
    assert_eq!(it.send(b"abc"), Ok(3));
    let reader = it.port(1);
    while reader.take_waiting_bells(16) != Ok(3) {}
    it.assert_receives(b"a");
    assert!(!reader.hand_over(Reason::Inherited, Recipient::Alone, false));
    it.assert_receives(b"bc");
    assert!(reader.hand_over(Reason::Inherited, Recipient::Alone, false));
}

/// The other end's socket is on its way over a Unix socket, so nobody can copy it, and the end sleeps in front of a
/// mark that a doorbell cannot follow. What is left to it would never come.
#[test]
fn nothing_is_left_to_a_sleeper_that_cannot_be_woken() {
    for passed in [false, true] {
        let (it, left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        assert!(reader.can_wake());
        reader.go_down_for_now(Reason::Unsupported, false);
        if passed {
            sender.pass_due_marks();
        }
        assert!(sender.arm(ALONE) == passed);
        let (way, _other) = UnixStream::pair().unwrap();
        pass_and_close(&way, it.sockets[0].as_raw_fd());
        assert_eq!(reader.hand_over(Reason::Inherited, Recipient::Alone, false), passed);
        assert_eq!(reader.is_absent(), passed);
        if !passed {
            it.assert_receives(&left);
        }
        core::mem::forget(it.sockets);
    }
}

/// An end that has shut down its half is in the middle of taking the doorbell that came with the mark of going down.
/// Another byte behind that mark would be data to it. Fails if `Port::wakes_or_will_wake` asks by a doorbell whether it
/// lives.
#[test]
fn an_end_that_is_being_woken_gets_no_further_doorbell() {
    let it = Ends::joined(true);
    let (sender, reader) = (it.port(0), it.port(1));
    assert!(reader.can_wake());
    reader.go_down_for_now(Reason::Unsupported, true);
    assert_eq!((&it.sockets[0]).read(&mut [0; 2]).unwrap(), 1);
    let words = sender.channel.incoming();
    words.head.bells_taken.store(1, Relaxed);
    words.flags.in_kernel.store(RECEIVING, Relaxed);
    it.sockets[0].shutdown(std::net::Shutdown::Write).unwrap();
    while !reader.has_ended() {
        thread::yield_now();
    }
    assert!(!reader.wakes_or_will_wake(), "it does not pass the mark");
    assert_eq!(kernel::inq(sender.fd), Ok(0));
}

/// Passes `fd` over `way`, and gives its number to another file.
fn pass_and_close(way: &UnixStream, fd: i32) {
    #[repr(C)]
    struct Control(libc::cmsghdr, [i32; 2]);
    let header = libc::cmsghdr { cmsg_len: 20, cmsg_level: libc::SOL_SOCKET, cmsg_type: libc::SCM_RIGHTS };
    let mut control = Control(header, [fd, 0]);
    let mut byte = libc::iovec { iov_base: (&raw mut control).cast(), iov_len: 1 };
    // SAFETY: all-zero is a valid msghdr; what it names lives as long as the call.
    unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut byte, 1);
        (message.msg_control, message.msg_controllen) = ((&raw mut control).cast(), size_of::<Control>());
        assert_eq!(libc::sendmsg(way.as_raw_fd(), &message, 0), 1);
        let nothing = libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
        assert!(libc::dup2(nothing, fd) == fd);
        libc::close(nothing);
    }
}

/// A reader goes away, and a process with the library takes its place.
#[test]
fn a_reader_that_is_away_comes_back_behind_what_it_gave() {
    let (it, left) = some_left_unread();
    it.port(1).offer(Reason::Passed);
    assert_eq!(kernel::inq(it.port(1).fd), Ok(left.len() as u32));
    it.port(1).come_back();
    assert!(it.ends[1].is_away(), "until the sender knows");
    it.assert_receives(&left);
    assert_eq!(it.send(b"and more"), Ok(8));
    it.assert_receives(b"and more");
    assert_eq!(it.ends[1].stage(), Stage::Joined);
}

/// No thread has it: the largest there can be.
const NOBODY: u32 = (1 << 22) - 1;

/// A sender that is killed while it gives, and another process has its end: what it had not counted yet the reader does
/// not give again.
#[test]
fn what_a_killed_sender_has_given_is_not_given_again() {
    for given in [0, 1, 2000, 4096] {
        let (it, mut left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        assert_eq!(reader.leave(Leave::UnlessLost, u64::MAX), LeftRing::Unread);
        sender.end.sending.lock.enter(NOBODY);
        let head = sender.channel.outgoing().head.head.load(Relaxed);
        sender.end.sending.piece.store(Place { head, consumed: 1234 }.pack(), Relaxed);
        sender.channel.outgoing().flags.giver.store(NOBODY, Relaxed);
        assert_eq!(kernel::send(sender.fd, &left[..given]), Ok(given));
        assert_eq!(reader.leave_to(Recipient::Alone), LeftRing::Unread);
        left.extend(b"and more");
        assert_eq!(it.send(b"and more"), Ok(8));
        it.assert_kernel_has(&left);
        assert_eq!(it.ends[0].stage(), Stage::Joined);
    }
}

/// A sender that is killed before it has sent a doorbell that it had announced: the reader does not wait for ever, and
/// what it would give could not be told from that.
#[test]
fn a_reader_gives_nothing_behind_a_doorbell_that_is_missing() {
    let (it, mut left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    sender.end.sending.lock.enter(NOBODY);
    sender.channel.outgoing().sender.announced.fetch_add(1, Relaxed);
    assert_eq!(reader.leave(Leave::UnlessLost, 1), LeftRing::Unread);
    assert_eq!(reader.leave_to(Recipient::Alone), LeftRing::Unread);
    left.extend(b"and more");
    assert_eq!(it.send(b"and more"), Ok(8));
    it.assert_kernel_has(&left);
}

/// The sender has given all just before the reader would, and another reader comes back to the ring.
#[test]
fn a_reader_gives_nothing_of_a_ring_that_begins_anew() {
    let (it, left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    assert_eq!(reader.go_away(|| true), Departure::Gone);
    assert!(sender.give_back_if_due());
    assert!(!reader.give_itself());
    it.assert_receives(&left);
    reader.return_to_ring();
    assert!(!it.ends[1].is_away());
    assert!(sender.can_wake());
    let more = b"what comes later";
    assert_eq!(it.send(more), Ok(more.len()));
    assert!(it.port(1).hand_over(Reason::Inherited, Recipient::Alone, false));
    it.assert_kernel_has(more);
}

/// A reader that is killed while it gives, wherever: nothing is lost, and nothing comes twice.
#[test]
fn what_a_killed_reader_has_given_is_not_given_again() {
    for given in [0, 1, 2000, 3265, 3266, 3267, 7766, 18_765, 18_766] {
        let (it, mut left) = some_left_unread();
        let port = it.port(1);
        assert_eq!(port.leave(Leave::UnlessLost, u64::MAX), LeftRing::Unread);
        let giver = &port.channel.incoming().flags.giver;
        giver.store(crate::words::BY_READER | NOBODY, Relaxed);
        assert_eq!(kernel::send(it.sockets[0].as_raw_fd(), &left[..given]), Ok(given));
        left.extend(b"and more");
        assert_eq!(it.send(b"and more"), Ok(8));
        it.assert_kernel_has(&left);
        assert_eq!(giver.load(Relaxed), 0, "{given}");
        assert_eq!(it.ends[0].stage(), Stage::Joined);
    }
}

/// A reader goes away beside a sender that has sent its FIN, or sends it at that moment. Fails if the sender, which
/// cannot count any more what the reader has given, takes the reader for a liar.
#[test]
fn a_sender_that_has_sent_its_fin_counts_nothing() {
    for is_unread in [false, true] {
        let (it, left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        if !is_unread {
            it.assert_receives(&left);
        }
        assert_eq!(reader.go_away(|| true), Departure::Gone);
        assert!(reader.give_itself());
        it.ends[0].shut.store(SHUT_OUT, Relaxed);
        it.sockets[0].shutdown(Shutdown::Write).unwrap();
        assert!(sender.give_back_if_due());
        assert_eq!(it.ends[0].stage(), Stage::Joined);
        let mut got = Vec::new();
        (&it.sockets[1]).read_to_end(&mut got).unwrap();
        assert!(got == if is_unread { &left[..] } else { &[] });
    }
}

/// A reader that says that it gives and does not stop, or has given more than there was, ends the connection. A reader
/// that names a thread of another PID namespace is not awaited for long: it may lie so on each connection.
#[test]
fn a_reader_that_lies_about_giving_ends_the_connection() {
    use crate::words::BY_READER;
    let forever = kernel::thread_id();
    let foreign = kernel::marked(1) ^ 1 << 22;
    let soon = Duration::from_secs(4);
    for (giver, given, within) in
        [(BY_READER | forever, 0, PATIENCE), (BY_READER | foreign, 0, soon), (BY_READER, 18_767, PATIENCE)]
    {
        let (it, left) = some_left_unread();
        let port = it.port(1);
        assert_eq!(port.leave(Leave::UnlessLost, u64::MAX), LeftRing::Unread);
        port.channel.incoming().flags.giver.store(giver, Relaxed);
        let lie = [&left[..], b"x"].concat();
        assert_eq!(kernel::send(it.sockets[0].as_raw_fd(), &lie[..given]), Ok(given));
        let began = Instant::now();
        it.port(0).give_back_if_due();
        assert_eq!((it.ends[0].stage(), it.ends[0].reason()), (Stage::Broken, Reason::PeerFault));
        assert!(began.elapsed() < within, "{giver:x}");
    }
}

/// A reader stays where it says that it is about to leave: it is awaited once, not with each call on the connection.
#[test]
fn a_reader_that_never_leaves_is_awaited_once() {
    let (it, left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    assert_eq!(reader.leave(Leave::IfGivenBack, u64::MAX), LeftRing::Unread);
    reader.channel.incoming().flags.in_kernel.store(crate::words::LEAVING, SeqCst);
    sender.await_departure();
    let began = Instant::now();
    for _ in 0..100 {
        sender.await_departure();
    }
    assert!(began.elapsed() < Duration::from_secs(5), "100 times 100 ms");
    assert!(sender.give_back_if_due());
    it.assert_kernel_has(&left);
    reader.channel.incoming().flags.in_kernel.store(0, SeqCst);
    sender.await_departure();
    assert_eq!(it.ends[0].sending.reader_is_late.load(Relaxed), 0, "the next time it is awaited again");
}

/// A reader that was late once, beside heavy load, is awaited when it leaves the next time: it may come back for a
/// doorbell until it is out. Fails if the sender remembers that it was late.
#[test]
fn a_reader_that_was_late_once_is_awaited_again() {
    for gives in [true, false] {
        let (it, left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        let in_kernel = &reader.channel.incoming().flags.in_kernel;
        assert_eq!(reader.go_away(|| true), Departure::Gone);
        in_kernel.store(LEAVING, SeqCst);
        if gives {
            assert!(sender.give_back_if_due());
            it.assert_kernel_has(&left);
        } else {
            sender.await_departure();
            reader.come_back();
            assert!(sender.give_back() == super::give::Gave::Nothing);
        }
        // It is out, and is about to leave again.
        in_kernel.store(0, SeqCst);
        in_kernel.store(LEAVING, SeqCst);
        let began = Instant::now();
        sender.await_departure();
        let waited = began.elapsed();
        assert!(waited >= Duration::from_millis(50), "{gives}: {waited:?}");
    }
}

/// Until when a reader may be inside a receive. A reader that has sent its FIN and takes no doorbells says nothing
/// more: it is held for a liar sooner, but not before its thread can have got a processor beside heavy load.
#[test]
fn a_reader_that_tells_nothing_more_has_less_time() {
    for silent in [false, true] {
        let it = Ends::joined(true);
        let (sender, reader) = (it.port(0), it.port(1));
        it.sockets[1].shutdown(std::net::Shutdown::Write).unwrap();
        while kernel::poll_now(sender.fd, libc::POLLRDHUP) & libc::POLLRDHUP == 0 {
            thread::yield_now();
        }
        if silent {
            reader.refuse_bells();
        }
        let is_stuck_after = |ms: u64| sender.is_stuck(ticks().wrapping_sub(micros(ms * 1000)), 5_000_000);
        assert!(!is_stuck_after(0) && is_stuck_after(5001), "{silent}");
        assert_eq!(is_stuck_after(3000), silent);
    }
}
