//! An end is away while its process executes a program, between ends on a real socket: what it had sent before, and what the other
//! end does meanwhile.
#![allow(unsafe_code, reason = "lays a buffer out as the library has it")]

use super::lies::{Ends, PATIENCE, Sent, send, some_left_unread};
use super::{Departure, Port, Recipient};
use crate::channel::{Pool, Shape, Side};
use crate::kernel;
use crate::reason::Reason;
use crate::ring::Record;
use crate::sync::Relaxed;
use crate::vector::Cursor;
use std::io::Read;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

/// The second end hands its socket over in a thread of its own: whether the socket is plain TCP then.
fn hand_over(it: &Ends) -> mpsc::Receiver<bool> {
    let (tell, told) = mpsc::channel();
    let port = Sent(it.port(1));
    thread::spawn(move || {
        let Sent(port) = { port };
        let port = Port { me: kernel::thread_id(), ..port };
        // The test may have given up.
        let _ = tell.send(port.hand_over(Reason::Inherited, Recipient::Alone, false));
    });
    told
}

/// The sender's process executes a program that goes on with the connection, and the reader's one that knows nothing of it: before,
/// while and after the sender is away. Fails if `Port::come_back` does not take the mark of going down back.
#[test]
fn what_was_sent_before_an_execution_can_be_given_back() {
    for comes_back_first in [true, false] {
        let (it, mut left) = some_left_unread();
        let sender = it.port(0);
        assert_eq!(sender.go_away(|| true), Departure::Gone);
        assert!(!sender.sends_fast(), "a program without the library would find plain TCP");
        let told = if comes_back_first {
            sender.come_back();
            hand_over(&it)
        } else {
            let told = hand_over(&it);
            // Not before the image is there.
            assert!(told.recv_timeout(std::time::Duration::from_millis(20)).is_err());
            sender.come_back();
            told
        };
        assert_eq!(told.recv_timeout(PATIENCE), Ok(true), "{comes_back_first}");
        left.extend(b"and more");
        assert_eq!(it.send(b"and more"), Ok(8));
        it.assert_kernel_has(&left);
    }
}

/// The image sends in the ring behind what was sent before, and the reader gets it in order; the doorbells of both times are counted.
#[test]
fn an_image_goes_on_in_the_ring() {
    let (it, mut left) = some_left_unread();
    for more in [&b"one image"[..], b"another"] {
        assert_eq!(it.port(0).go_away(|| true), Departure::Gone);
        it.port(0).come_back();
        assert!(it.port(0).sends_fast());
        assert_eq!(it.send(more), Ok(more.len()));
        left.extend(more);
    }
    it.assert_receives(&left);
    assert!(it.port(1).receives_fast());
    // All is read: the mark is passed before the image is there.
    assert_eq!(it.port(0).go_away(|| true), Departure::Gone);
    it.port(1).pass_due_marks();
    it.port(0).come_back();
    assert!(!it.port(0).sends_fast() && !it.port(1).receives_fast());
    assert_eq!(it.send(b"by a new mark"), Ok(13));
    assert!(it.port(0).sends_fast());
    it.assert_receives(b"by a new mark");
}

/// An image without the library has sent something, and has executed one with it. Fails if `Port::come_back` does not ask the kernel
/// whether anything was sent.
#[test]
fn a_mark_stays_behind_which_something_was_sent() {
    let (it, mut left) = some_left_unread();
    assert_eq!(it.port(0).go_away(|| true), Departure::Gone);
    assert_eq!(kernel::send(it.port(0).fd, b"plain"), Ok(5));
    it.port(0).come_back();
    assert!(!it.port(0).sends_fast());
    assert!(!it.port(1).hand_over(Reason::Inherited, Recipient::Alone, false));
    left.extend(b"plain");
    it.assert_receives(&left);
}

/// The reader went away in the middle of the sender's going down, and what lay before the mark was given back. Fails if
/// `Port::take_mark_back` does not look whether that is so: the sender would go on in a ring that its reader has left.
#[test]
fn a_mark_that_was_given_back_stays() {
    let (it, left) = some_left_unread();
    assert_eq!(it.port(1).go_away(|| true), Departure::Gone);
    let sender = it.port(0);
    sender.sender().mark(Record::Down(sender.bells_since_up()));
    assert!(sender.give_back_if_due() && !sender.sends_fast());
    sender.go_up_again();
    assert!(!sender.sends_fast());
    it.assert_kernel_has(&left);
}

impl Ends {
    /// The reader's process executes a program that finds the channel gone, after `meanwhile`: the end in its copy, and
    /// whether it can go on.
    fn reader_in_copy(&self, meanwhile: impl FnOnce()) -> (Port<'static>, bool) {
        let reader = self.port(1);
        let is_gone = reader.go_away(|| true) == Departure::Gone;
        assert_eq!(is_gone, reader.end.is_away());
        let unread = reader.unread_for_image().unwrap();
        let [words, ring, rest] = {
            let [ring, rest] = reader.channel.incoming_ring().pieces(unread.from, unread.to);
            // SAFETY: so many bytes of the pool.
            [reader.channel.words(), ring, rest]
                .map(|(at, len)| unsafe { std::slice::from_raw_parts(at, len) }.to_vec())
        };
        meanwhile();
        let pool = Pool::create(Shape { ring_bytes: 1 << 16, slots: 1 }).unwrap();
        let port = Port { channel: pool.slot(0, Side::Joiner).unwrap(), ..reader };
        assert!(port.channel.copy_from(&words, unread.from, &[ring, rest].concat()));
        (port, port.go_on_in_copy(unread))
    }
}

/// All that `port` receives until `count` bytes or the end of the stream have come.
fn receive_by(mut port: Port<'_>, count: usize) -> Vec<u8> {
    let mut got = vec![0u8; count];
    let mut have = 0;
    while have < count {
        let rest = &mut got[have..];
        let vector = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        // SAFETY: one buffer, writable.
        match port.receive(unsafe { Cursor::new(&vector, 1) }, 0) {
            Ok(n @ 1..) => have += n,
            _ => break,
        }
    }
    got.truncate(have);
    got
}

/// The sender has gone down behind what is unread, has given it back, or is gone. Fails if `Port::pass_given` does not pass what
/// was given back.
#[test]
fn an_image_reads_on_in_a_copy() {
    for case in ["down", "given", "gone"] {
        let (it, mut left) = some_left_unread();
        let sender = it.port(0);
        if case == "down" {
            sender.go_away(|| true);
        }
        let (port, goes_on) = it.reader_in_copy(|| match case {
            "given" => assert!(sender.give_back_if_due()),
            "gone" => it.sockets[0].shutdown(std::net::Shutdown::Both).unwrap(),
            _ => {}
        });
        assert!(goes_on, "{case}");
        if case != "gone" {
            assert_eq!(kernel::send(sender.fd, b"and more"), Ok(8));
            left.extend(b"and more");
            it.sockets[0].shutdown(std::net::Shutdown::Write).unwrap();
        }
        assert!(receive_by(port, left.len() + 1) == left, "{case}");
    }
}

/// Another process, without the library, has sent something behind what a sender that was killed did not give back. Fails if
/// `Port::pass_given_piece` does not compare what has come with the copy.
#[test]
fn an_image_does_not_take_other_bytes_for_those_in_its_copy() {
    let (it, _) = some_left_unread();
    let (_, goes_on) = it.reader_in_copy(|| assert_eq!(kernel::send(it.port(0).fd, &[0xaa; 9]), Ok(9)));
    assert!(!goes_on);
}

/// More may come into the ring: no copy is made.
#[test]
fn a_ring_that_its_reader_has_not_left_is_not_copied() {
    let (it, _) = some_left_unread();
    assert_eq!(it.port(1).unread_for_image(), None);
}

/// The other end has gone to a program without the library: an image of this end waits for nobody.
#[test]
fn a_ring_whose_sender_has_left_has_all_that_comes() {
    let (it, left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    assert!(!reader.has_all_that_comes());
    assert!(sender.hand_over(Reason::Inherited, Recipient::Alone, false));
    assert!(reader.has_all_that_comes());
    it.assert_receives(&left);
}

/// A look beyond the mark finds no doorbell.
#[test]
fn a_look_beyond_a_mark_that_is_taken_back_shows_no_doorbell() {
    let (it, mut left) = some_left_unread();
    let sender = it.port(0);
    assert!(sender.announce_bell());
    assert_eq!(kernel::send(sender.fd, &[0]), Ok(1));
    assert_eq!(sender.go_away(|| true), Departure::Gone);
    it.assert_looks(&left);
    sender.come_back();
    assert_eq!(it.send(b"and more"), Ok(8));
    left.extend(b"and more");
    it.assert_looks(&left);
    it.assert_receives(&left);
}

impl Ends {
    /// A look of the second end sees `bytes`, and nothing else.
    fn assert_looks(&self, bytes: &[u8]) {
        let mut got = vec![0u8; bytes.len() + 100];
        let vector = libc::iovec { iov_base: got.as_mut_ptr().cast(), iov_len: got.len() };
        // SAFETY: one buffer, writable.
        let into = unsafe { Cursor::new(&vector, 1) };
        assert_eq!(self.port(1).receive(into, libc::MSG_DONTWAIT | libc::MSG_PEEK), Ok(bytes.len()));
        assert!(got[..bytes.len()] == *bytes, "other bytes");
    }
}

/// A thread sleeps in a receive on the kernel path, and another process of its family is about to leave the ring, when the other end
/// goes up and down for a doorbell. Fails if `Port::leave_if_read` does not look for the mark: the sleeper takes the doorbell for data.
#[test]
fn nothing_is_left_beside_a_sleeper_that_is_being_woken() {
    let it = Ends::joined(false);
    let (tell, told) = mpsc::channel();
    let port = Sent(it.port(1));
    thread::spawn(move || {
        let Sent(mut port) = { port };
        let mut byte = 1u8;
        let vector = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        // SAFETY: one buffer, writable.
        let answer = port.receive(unsafe { Cursor::new(&vector, 1) }, 0);
        tell.send((answer, byte))
    });
    let began = Instant::now();
    while !it.ends[1].reading.lock.is_asleep() {
        assert!(began.elapsed() < PATIENCE);
        thread::yield_now();
    }
    let sender = it.port(0);
    assert!(sender.can_wake() && sender.announce_bell());
    // So long it waits for the sleeper.
    it.port_of(1, 3).leave_if_read(1);
    sender.sender().mark(Record::Down(sender.bells_since_up()));
    sender.end.sending.fast.store(0, Relaxed);
    sender.end.hold();
    assert_eq!(kernel::send(sender.fd, &[0]), Ok(1));
    assert_eq!(send(&sender, b"x"), Ok(1));
    assert_eq!(told.recv_timeout(PATIENCE), Ok((Ok(1), b'x')));
}

/// One end hands its socket over, and tells the other of it by a doorbell, when the other is just about to be closed. Fails if
/// `Port::prepare_to_close` does not refuse doorbells: that socket's kernel would answer its close with a reset.
#[test]
fn an_end_that_is_about_to_be_closed_is_told_of_nothing() {
    for fast in [true, false] {
        let it = Ends::joined(fast);
        let (sender, reader) = (it.port(0), it.port(1));
        reader.prepare_to_close(true);
        sender.go_down_for_now(Reason::Inherited, true);
        assert_eq!(kernel::inq(reader.fd), Ok(0));
        let Ends { sockets: [mut mine, others], .. } = it;
        drop(others);
        assert_eq!(mine.read(&mut [0; 9]).unwrap(), 0);
    }
}
