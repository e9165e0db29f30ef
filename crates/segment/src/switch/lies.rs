//! What the other end may write, or leave behind, at the worst moment, between ends on a real socket: a receive still sleeps,
//! and ends when the connection does; a poll finds that the rules were broken; a reset is taken for what it is.
#![allow(unsafe_code, reason = "lays ends and buffers out as the library has them")]

use super::*;
use crate::link::{ALONE, Pool, RINGING, Shape, Side};
use crate::vector::Cursor;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

static WAITING: Waiting = Waiting {
    hold: |_| {},
    // SAFETY: passed on to the caller.
    recv: |port, to, len, flags, _| unsafe { kernel::recv(port.fd, to, len, flags) },
    call: |_, call| call(),
};
/// Longer than anything here takes that ends at all.
const PATIENCE: Duration = Duration::from_secs(60);

/// Both ends of a connection; the first sends.
struct Ends {
    ends: [&'static End; 2],
    sockets: [TcpStream; 2],
    pool: Pool,
}

struct Sent(Port<'static>);

// SAFETY: the pool stays attached, and the ends are never freed; both are made for several threads.
unsafe impl Send for Sent {}

impl Ends {
    /// Both know of each other; with `fast` the direction has gone up.
    fn joined(fast: bool) -> Ends {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let sockets = [client, listener.accept().unwrap().0];
        // SAFETY: zeroed memory is an unused end.
        let ends = [0, 1].map(|_| &*Box::leak(unsafe { Box::new(core::mem::zeroed::<End>()) }));
        let it = Ends { ends, sockets, pool: Pool::create(Shape { ring_bytes: 1 << 16, slots: 4 }).unwrap() };
        it.port(0).link.prepare([1, 2]);
        for number in [0, 1] {
            it.ends[number].advance(Stage::Joined);
            assert!(it.port(number).become_ready());
        }
        if fast {
            assert!(it.port(0).can_wake());
            it.port(1).settle();
            assert!(it.port(1).is_fast());
        }
        it
    }

    fn port(&self, number: usize) -> Port<'static> {
        Port {
            end: self.ends[number],
            link: self.pool.slot(0, [Side::Maker, Side::Joiner][number]).unwrap(),
            fd: self.sockets[number].as_raw_fd(),
            is_held: false,
            me: 1 + number as u32,
            token: 0,
            spin_us: 0,
            waiting: &WAITING,
        }
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

/// Runs for ever if `Port::arm` does not raise anew what no sender writes (`is_lie`).
#[test]
fn a_lie_in_the_waiting_flag_keeps_no_receive_from_its_end() {
    for lie in [2, 77, RINGING | 5] {
        let it = Ends::joined(true);
        it.port(1).arm(ALONE);
        it.port(0).link.outgoing().flags.waiting.store(lie, Relaxed);
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

/// Never sleeps if `Port::sleep` does not ask `Port::awaits_rest`, and keeps every other thread and process out meanwhile: the
/// second if that does not ask for doorbells.
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

/// A reader that is killed between the ring and the doorbell had read everything: kernel TCP ends the stream. Unless it had
/// asked for a reset; the last fails if `Port::heed_reset` does not look at `ReaderFlags::resets`.
#[test]
fn a_reset_is_a_doorbells_doing_unless_the_reader_had_asked_for_one() {
    for (asked_before, asked) in [(false, false), (true, false), (false, true)] {
        let it = Ends::joined(true);
        let (sender, reader) = (it.port(0), it.port(1));
        // The other direction has gone up too: nothing that the reader has sent can be missing.
        assert!(reader.can_wake());
        sender.settle();
        for asked in [asked_before, asked] {
            let linger = libc::linger { l_onoff: asked.into(), l_linger: 0 };
            let size = size_of_val(&linger) as libc::socklen_t;
            let at = (&raw const linger).cast();
            // SAFETY: the kernel reads the structure.
            let set = unsafe { libc::setsockopt(reader.fd, libc::SOL_SOCKET, libc::SO_LINGER, at, size) };
            assert_eq!(set, 0);
            reader.link.tell_of_close(reader.fd);
        }
        reader.arm(ALONE);
        let vector = libc::iovec { iov_base: c"x".as_ptr().cast_mut().cast(), iov_len: 1 };
        // SAFETY: one buffer, only read.
        let from = unsafe { Cursor::new(&vector, 1) };
        assert_eq!(sender.send(from, 0, |_| unreachable!("it went up")), Ok(1));
        assert_eq!(sender.link.outgoing().sender.bells.load(Relaxed), 1);
        // The last that it does.
        sender.link.outgoing().head.head.store(it.ends[0].sending.tail.load(Relaxed), Relaxed);
        let Ends { sockets: [_mine, others], .. } = it;
        drop(others);
        assert_eq!(kernel::poll_now(sender.fd, 0), libc::POLLERR | libc::POLLHUP);
        assert_eq!(sender.heed_reset(), !asked);
    }
}
