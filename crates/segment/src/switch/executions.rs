//! An end is away while its process executes a program, between ends on a real socket: what it had sent before, and
//! what the other end does meanwhile.
#![allow(unsafe_code, reason = "lays a buffer out as the library has it")]

use super::deaths::receive;
use super::leaving::{Fate, Leave};
use super::lies::{Ends, PATIENCE, Sent, send, some_left_unread};
use super::{Departure, LeftRing, Port, Ready, Recipient};
use crate::channel::{Pool, Shape, Side};
use crate::end::SHUT_OUT;
use crate::kernel;
use crate::raw::{Answer, Errno};
use crate::reason::Reason;
use crate::ring::Record;
use crate::sync::{Relaxed, SeqCst};
use crate::vector::Cursor;
use crate::words::{ALONE, AWAY, DOZING, GIVING, NO_MORE_BELLS, ORPHANED};
use std::io::Read;
use std::net::Shutdown;
use std::sync::mpsc;
use std::thread;
use std::time::Instant;

/// The second end hands its socket over in a thread of its own: whether the socket is plain TCP then.
fn hand_over(it: &Ends) -> mpsc::Receiver<bool> {
    hand_over_to(it, Recipient::Alone)
}

fn hand_over_to(it: &Ends, recipient: Recipient) -> mpsc::Receiver<bool> {
    let (tell, told) = mpsc::channel();
    let port = Sent(it.port(1));
    thread::spawn(move || {
        let Sent(port) = { port };
        let port = Port { me: kernel::thread_id(), ..port };
        // The test may have given up.
        let _ = tell.send(port.hand_over(Reason::Inherited, recipient, false));
    });
    told
}

/// What one receive by `port` in a thread of its own says: see [`receive`].
fn receive_beside(port: Port<'static>, most: usize, flags: i32) -> mpsc::Receiver<Result<Vec<u8>, Errno>> {
    let (tell, told) = mpsc::channel();
    let port = Sent(port);
    thread::spawn(move || {
        let Sent(mut port) = { port };
        tell.send(receive(&mut port, most, flags))
    });
    told
}

/// The sender's process executes a program that goes on with the connection, and the reader's a program that knows
/// nothing of it: before, while and after the sender is away. Fails if `Port::come_back` does not take the mark of
/// going down back.
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

/// The image sends in the ring behind what was sent before, and the reader gets it in order; the doorbells of both
/// times are counted.
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

/// An image without the library has sent something, and has executed one with it. Fails if `Port::come_back` does not
/// ask the kernel whether anything was sent.
#[test]
fn a_mark_stays_behind_which_something_was_sent() {
    let (it, mut left) = some_left_unread();
    assert_eq!(it.port(0).go_away(|| true), Departure::Gone);
    assert_eq!(it.port(1).fate_of_unread(), Fate::Awaited);
    assert_eq!(kernel::send(it.port(0).fd, b"plain"), Ok(5));
    assert_eq!(it.port(1).fate_of_unread(), Fate::Lost);
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
        self.reader_in_copy_after(|_| {}, meanwhile)
    }

    /// As `reader_in_copy`, after `before`, while the reader is away.
    fn reader_in_copy_after(
        &self,
        before: impl FnOnce(Port<'static>),
        meanwhile: impl FnOnce(),
    ) -> (Port<'static>, bool) {
        let reader = self.port(1);
        let is_gone = reader.go_away(|| true) == Departure::Gone;
        assert_eq!(is_gone, reader.end.is_away());
        before(self.port(1));
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

    /// What an image reads of the second end's socket: `n` bytes, by the library, which counts them, or past it.
    fn image_reads(&self, n: usize, counted: bool) -> Vec<u8> {
        if counted {
            return receive(&mut self.port(1), n, libc::MSG_WAITALL).unwrap();
        }
        let mut got = vec![0u8; n];
        (&self.sockets[1]).read_exact(&mut got).unwrap();
        got
    }
}

/// All that `port` receives, and with what its receives end: the end of the stream, or an error.
fn receive_all(mut port: Port<'_>) -> (Vec<u8>, Answer) {
    let (mut all, mut got) = (Vec::new(), vec![0u8; 5000]);
    loop {
        let vector = libc::iovec { iov_base: got.as_mut_ptr().cast(), iov_len: got.len() };
        // SAFETY: one buffer, writable.
        match port.receive(unsafe { Cursor::new(&vector, 1) }, 0) {
            Ok(n @ 1..) => all.extend(&got[..n]),
            end => return (all, end),
        }
    }
}

/// Fails if what such an end receives goes past the library: it may come back to the ring meanwhile, and the plain
/// receive would take a doorbell for data.
#[test]
fn an_end_that_is_away_is_not_read_plainly() {
    let it = Ends::joined(true);
    let reader = it.port(1);
    reader.end.shut_gate(&reader.end.read_gate);
    assert_eq!(reader.go_away(|| true), Departure::Gone);
    reader.channel.incoming().flags.waiting.fetch_or(GIVING, Relaxed);
    assert!(!reader.reads_plainly() && reader.end.is_away());
    assert_eq!(kernel::send(it.port(0).fd, b"by the kernel"), Ok(13));
    it.assert_receives(b"by the kernel");
}

/// A receive begins while its end is away, and the end comes back to a ring that has something, of which no doorbell
/// tells. Fails, by its time, if the receive sleeps in the kernel.
#[test]
fn a_receive_finds_what_its_end_comes_back_to() {
    let it = Ends::joined(true);
    assert_eq!(it.send(b"x"), Ok(1));
    let reader = it.port_of(1, 4);
    assert_eq!(reader.go_away(|| true), Departure::Gone);
    let told = receive_beside(it.port(1), 1, 0);
    let began = Instant::now();
    while !reader.end.reading.lock.is_asleep() {
        assert!(began.elapsed() < PATIENCE, "no sleep");
        thread::yield_now();
    }
    reader.come_back();
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap(), b"x");
}

/// A poll sleeps, and the thread that went away has taken its doorbell. What is unread stays in the ring: on the kernel
/// path it would be lost with a sender that is killed.
#[test]
fn a_failed_execution_wakes_polls() {
    for goes_down in [false, true] {
        let (it, left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        reader.end.watch();
        assert_eq!(reader.go_away(|| true), Departure::Gone);
        assert_eq!(kernel::poll_now(reader.fd, libc::POLLIN), 0);
        assert_eq!(reader.unread(), left.len() as u64, "a program may ask before it receives");
        reader.come_back_beside_polls();
        while kernel::poll_now(reader.fd, libc::POLLIN) == 0 {
            thread::yield_now();
        }
        assert!(reader.receives_fast() && kernel::inq(reader.fd) == Ok(1), "a doorbell, and nothing else");
        // The sender counts the doorbell as one of its own.
        if goes_down {
            sender.go_down_for_now(Reason::Met, false);
        }
        assert_eq!(it.send(b"and more"), Ok(8));
        it.assert_receives(&[&left[..], b"and more"].concat());
    }
}

/// Behind a mark of going down the stream goes on in the kernel, and a doorbell would be data there.
#[test]
fn a_failed_execution_rings_no_bell_behind_the_ring() {
    let (it, left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    reader.end.watch();
    reader.come_back_beside_polls();
    sender.go_down_for_now(Reason::Met, false);
    reader.come_back_beside_polls();
    assert_eq!(it.send(b"and more"), Ok(8));
    reader.come_back_beside_polls();
    it.assert_receives(&[&left[..], b"and more"].concat());
}

/// Each execution that fails takes back a mark of going down, which is a filler then. Fails if the other end takes many
/// of them for a breach of the rules.
#[test]
fn executions_fail_again_and_again() {
    for times in (0..40).chain([5000]) {
        let (it, mut left) = some_left_unread();
        for _ in 0..times {
            assert_eq!(it.port(0).go_away(|| true), Departure::Gone);
            it.port(0).come_back();
        }
        assert_eq!(it.send(b"and more"), Ok(8));
        left.extend(b"and more");
        if times < 40 {
            assert!(hand_over(&it).recv_timeout(PATIENCE).unwrap(), "{times} marks were taken back");
            it.assert_kernel_has(&left);
        } else {
            it.assert_receives(&left);
        }
    }
}

/// The sender has given back all, and has not said so. Fails if a receive waits for it all the same.
#[test]
fn what_has_come_is_not_awaited() {
    let (it, left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    assert_eq!(reader.go_away(|| true), Departure::Gone);
    assert!(!reader.has_been_given_all());
    assert!(sender.give_back_if_due());
    while !reader.has_been_given_all() {
        thread::yield_now();
    }
    reader.channel.incoming().flags.waiting.store(AWAY | GIVING, SeqCst);
    it.assert_kernel_has(&left);
    assert!(reader.has_been_given_all());
    assert_eq!(receive(&mut it.port(1), 1, libc::MSG_DONTWAIT), Err(Errno(libc::EAGAIN)));
    assert_eq!(reader.end.reading.vain_looks.load(Relaxed), 0, "it has waited");
}

/// The thread that left the ring for good was killed before it gave back what it had left there. Fails if the next
/// reader does not do so: both ends would wait for ever.
#[test]
fn what_a_killed_thread_has_left_is_given_back() {
    for flags in [0, libc::MSG_DONTWAIT] {
        let (it, left) = some_left_unread();
        assert_eq!(it.port(1).leave(Leave::UnlessLost, u64::MAX), LeftRing::Unread);
        let told = receive_beside(it.port(1), left.len(), libc::MSG_WAITALL | flags);
        assert!(told.recv_timeout(PATIENCE).unwrap().unwrap() == left);
    }
}

/// A call that the ring does not carry pins the end while something is unread, and more comes. Fails if the sender goes
/// down behind that at once: then it could never be given back to a program without the library.
#[test]
fn a_pinned_end_goes_down_once_it_has_read() {
    for is_handed_over in [true, false] {
        let (it, mut left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        reader.pin_once_read(Reason::Stdio);
        assert_eq!(it.send(b"and more"), Ok(8));
        assert!(sender.sends_fast() && !reader.sends_fast());
        left.extend(b"and more");
        if is_handed_over {
            assert_eq!(hand_over(&it).recv_timeout(PATIENCE), Ok(true));
            it.assert_kernel_has(&left);
        } else {
            it.assert_receives(&left);
        }
        assert_eq!(it.send(b"plain"), Ok(5));
        assert!(!sender.sends_fast() && !sender.can_go_up());
        it.assert_kernel_has(b"plain");
    }
}

/// The reader has still to read what comes before the ring. Fails if the pin raises its flag: the next send rings a
/// doorbell behind what is unread in the kernel, and the ring cannot be left any more.
#[test]
fn a_pin_before_the_ring_brings_no_doorbell() {
    let it = Ends::before_ring(b"before", b"and more");
    let (sender, reader) = (it.port(0), it.port(1));
    reader.pin_once_read(Reason::Stdio);
    assert_eq!(it.send(b"and even more"), Ok(13));
    assert!(sender.sends_fast() && sender.bells_since_up() == 0);
    assert_eq!(hand_over(&it).recv_timeout(PATIENCE), Ok(true));
    let _ = sender.give_back_if_due();
    it.assert_kernel_has(b"beforeand moreand even more");
}

/// The reader is to go to the kernel path while the sender is away, or while nothing would wake the sender. Fails if it
/// asks the sender for that path: the sender would go down behind what is unread, and could not give that back.
#[test]
fn a_reader_asks_for_the_kernel_path_once_it_has_left() {
    let offer = |reader: &Port<'_>| reader.offer(Reason::Passed);
    let hand_over_unsure = |reader: &Port<'_>| assert!(!reader.hand_over(Reason::Stdio, Recipient::Unsure, false));
    for (is_away, is_offered) in [(true, true), (false, false), (false, true)] {
        let (it, mut left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        assert_eq!(reader.fate_of_unread(), Fate::Open);
        let ready = &sender.channel.incoming().flags.ready;
        if is_away {
            assert_eq!(sender.go_away(|| true), Departure::Gone);
            assert_eq!(reader.fate_of_unread(), Fate::Awaited);
        } else {
            ready.store(0, SeqCst);
        }
        if is_offered {
            offer(&reader)
        } else {
            hand_over_unsure(&reader)
        }
        if is_away {
            sender.come_back()
        } else {
            ready.store(1, SeqCst)
        }
        assert!(sender.sends_fast());
        assert_eq!(it.send(b"and more"), Ok(8));
        left.extend(b"and more");
        assert_eq!(hand_over(&it).recv_timeout(PATIENCE), Ok(true), "{is_away} {is_offered}");
        // The sender gives back with its next call, if the reader has not done so itself.
        assert!(sender.give_back_if_due());
        it.assert_kernel_has(&left);
    }
}

/// A process makes the connection its standard input while the sender is away. Fails if it does not wait for the
/// sender: the program would read from a stream of libc's, which does not know of the ring.
#[test]
fn a_reader_that_may_hand_over_awaits_the_sender() {
    let (it, left) = some_left_unread();
    let sender = it.port(0);
    assert_eq!(sender.go_away(|| true), Departure::Gone);
    let told = hand_over_to(&it, Recipient::Unsure);
    assert!(told.recv_timeout(std::time::Duration::from_millis(20)).is_err());
    sender.come_back();
    assert_eq!(told.recv_timeout(PATIENCE), Ok(true));
    assert!(sender.give_back_if_due());
    it.assert_kernel_has(&left);
}

/// The reader has gone away, and has not said yet that it is not ready. Fails if the sender goes up: it would give back
/// anew what it sends then, and the reader would come back in the middle of that, because all was given before.
#[test]
fn a_sender_does_not_go_up_beside_a_reader_that_goes_away() {
    let it = Ends::joined(false);
    it.port(1).channel.incoming().flags.waiting.store(AWAY, SeqCst);
    assert!(it.port(0).can_go_up() && !it.port(0).can_wake());
    it.port(1).channel.incoming().flags.waiting.store(0, SeqCst);
    assert!(it.port(0).can_wake());
}

/// The reader is about to come back, and has allowed doorbells. Fails if the sender rings as it goes down, and then
/// gives back: the reader stays away, and would take the doorbell for data.
#[test]
fn a_reader_that_is_about_to_come_back_gets_no_doorbell() {
    let (it, mut left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    assert_eq!(reader.go_away(|| true), Departure::Gone);
    reader.channel.incoming().sender.announced.fetch_and(!NO_MORE_BELLS, SeqCst);
    sender.go_down_for_now(Reason::Met, true);
    reader.come_back();
    assert_eq!(it.send(b"and more"), Ok(8));
    left.extend(b"and more");
    it.assert_kernel_has(&left);
}

/// The reader has shut down its half, and is about to come back. Fails if a sender that asks whether it lives rings.
#[test]
fn a_look_at_life_rings_no_reader_that_is_about_to_come_back() {
    let (it, mut left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    reader.end.shut.store(SHUT_OUT, Relaxed);
    it.sockets[1].shutdown(Shutdown::Write).unwrap();
    while kernel::poll_now(sender.fd, libc::POLLRDHUP) == 0 {
        thread::yield_now();
    }
    assert_eq!(reader.go_away(|| true), Departure::Gone);
    reader.channel.incoming().sender.announced.fetch_and(!NO_MORE_BELLS, SeqCst);
    assert!(sender.kernel_says_alive());
    assert_eq!(it.send(b"and more"), Ok(8));
    reader.come_back();
    left.extend(b"and more");
    it.assert_kernel_has(&left);
}

/// A poll finds what a receive would. Fails if it asks the kernel alone, where nothing has come yet.
#[test]
fn a_poll_finds_what_an_end_that_is_away_has_left() {
    let (it, left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    assert_eq!(reader.go_away(|| true), Departure::Gone);
    assert_eq!(reader.ready(), Ready::Yes);
    // The sender begins to give it back.
    reader.channel.incoming().flags.waiting.fetch_or(GIVING, SeqCst);
    assert_eq!(reader.unread(), 1);
    assert!(sender.give_back_if_due());
    assert_eq!(reader.ready(), Ready::AskKernel);
    it.assert_kernel_has(&left);
}

/// The socket has a time of its own, and the receive asks for more than one byte at once. Fails if each look of the
/// receive counts that time anew.
#[test]
fn a_receive_that_is_away_waits_as_long_as_its_socket_says() {
    let (it, _) = some_left_unread();
    let fd = it.port(1).fd;
    assert_eq!(it.port(1).go_away(|| true), Departure::Gone);
    assert_eq!(kernel::set_int_option(fd, libc::SOL_SOCKET, libc::SO_RCVLOWAT, 2), Ok(()));
    it.sockets[1].set_read_timeout(Some(std::time::Duration::from_millis(30))).unwrap();
    let told = receive_beside(it.port(1), 1, 0);
    assert_eq!(told.recv_timeout(PATIENCE), Ok(Err(Errno(libc::EAGAIN))));
}

/// A doze in a receive takes no doorbell. Fails if the thread that goes away does not end the doze: it would leave the
/// ring for good after 5 s, and the doorbell in the kernel as data.
#[test]
fn a_doorbell_is_taken_beside_a_doze() {
    let it = Ends::joined(true);
    // A doze begins with the flag down.
    it.port(1).channel.incoming().flags.waiting.store(0, Relaxed);
    it.ends[1].reading.armed.store(0, Relaxed);
    let told = receive_beside(Port { doze_us: 30_000_000, ..it.port(1) }, 1, 0);
    let (sender, reader) = (it.port(0), it.port_of(1, 4));
    let began = Instant::now();
    while reader.flag().0 != DOZING || !reader.end.reading.lock.is_asleep() {
        assert!(began.elapsed() < PATIENCE, "no doze");
        thread::yield_now();
    }
    assert!(sender.announce_bell());
    assert_eq!(kernel::send_bell(sender.fd), Ok(1));
    assert_eq!(reader.go_away(|| true), Departure::Gone);
    assert!(reader.end.is_away());
    assert_eq!(kernel::inq(reader.fd), Ok(0));
    reader.come_back();
    assert_eq!(it.send(b"x"), Ok(1));
    assert_eq!(told.recv_timeout(PATIENCE).unwrap().unwrap(), b"x");
}

/// The sender has gone down behind what is unread, has given it back, or is gone. Fails if `Port::pass_given` does not
/// pass what was given back.
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
            "gone" => it.sockets[0].shutdown(Shutdown::Both).unwrap(),
            _ => {}
        });
        assert!(goes_on, "{case}");
        if case != "gone" {
            assert_eq!(kernel::send(sender.fd, b"and more"), Ok(8));
            left.extend(b"and more");
            it.sockets[0].shutdown(Shutdown::Write).unwrap();
        }
        assert!(receive_all(port) == (left, Ok(0)), "{case}");
    }
}

/// The sender was killed before it gave back what the reader has left in its ring, all of it or a part. Fails if the
/// end of the stream is not compared with what was left.
#[test]
fn a_reader_that_has_left_its_ring_learns_that_the_rest_does_not_come() {
    for given in [0, 3000] {
        let (it, left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        assert_eq!(reader.leave(Leave::IfGivenBack, u64::MAX), LeftRing::Unread);
        assert_eq!(kernel::send(sender.fd, &left[..given]), Ok(given));
        it.sockets[0].shutdown(Shutdown::Write).unwrap();
        assert!(receive_all(reader) == (left[..given].to_vec(), Err(Errno(libc::ECONNRESET))), "{given}");
    }
}

/// Fails if what a reader has left, and the kernel has, is taken for something that a close would lose: the close would
/// reset the connection of another process that has the socket.
#[test]
fn what_a_reader_has_left_is_not_lost_with_its_close() {
    let (it, left) = some_left_unread();
    let (sender, reader) = (it.port(0), it.port(1));
    assert!(reader.has_unread_past_kernel());
    assert_eq!(reader.leave(Leave::IfGivenBack, u64::MAX), LeftRing::Unread);
    assert!(sender.give_back_if_due() && reader.unread() == left.len() as u64);
    assert!(!reader.has_unread_past_kernel());
    it.assert_kernel_has(&left);
}

/// Another process, without the library, has sent something behind what a sender that was killed did not give back.
/// Fails if `Port::pass_given_piece` does not compare what has come with the copy.
#[test]
fn an_image_does_not_take_other_bytes_for_those_in_its_copy() {
    let (it, _) = some_left_unread();
    let (_, goes_on) = it.reader_in_copy(|| assert_eq!(kernel::send(it.port(0).fd, &[0xaa; 9]), Ok(9)));
    assert!(!goes_on);
}

/// The sender gives back, in parts, while the reader is away: the image that comes first reads some of that on the
/// kernel path, and executes another one. Fails if `Port::come_back_to_copy` does not call `pass_read_while_away`.
#[test]
fn an_image_does_not_await_what_an_image_before_it_has_read() {
    let (it, left) = some_left_unread();
    let sender = it.port(0);
    let by_kernel = |bytes: &[u8]| assert_eq!(kernel::send(sender.fd, bytes), Ok(bytes.len()));
    let read_some = |reader: Port<'static>| {
        reader.channel.incoming().flags.waiting.fetch_or(GIVING, SeqCst);
        by_kernel(&left[..3000]);
        assert_eq!(it.image_reads(1000, false), left[..1000]);
    };
    let (port, goes_on) = it.reader_in_copy_after(read_some, || {
        by_kernel(&left[3000..]);
        it.sockets[0].shutdown(Shutdown::Write).unwrap();
    });
    assert!(goes_on);
    assert!(receive_all(port) == (left[1000..].to_vec(), Ok(0)));
}

/// The sender gives back to a reader that was on the kernel path, with more there before the ring. The first image
/// reads some of that, all of it, or some of what was given back too, through the library or not. Fails if
/// `Port::pass_read_while_away` takes what comes before the ring for what was given back, or goes by what was counted.
#[test]
fn an_image_goes_on_where_an_image_before_it_has_stopped() {
    for (read, counted) in [(0, false), (1000, false), (1000, true), (5000, false), (5500, false), (5500, true)] {
        let it = Ends::joined(false);
        let early: Vec<u8> = (0..5000u32).map(|n| (n * 5 / 3) as u8).collect();
        let by_kernel = |bytes: &[u8]| assert_eq!(kernel::send(it.port(0).fd, bytes), Ok(bytes.len()));
        by_kernel(&early);
        it.port(1).channel.incoming().flags.waiting.store(0, Relaxed);
        assert!(it.port(0).can_wake());
        let left: Vec<u8> = (0..20_000u32).map(|n| (n * 7 / 3) as u8).collect();
        for piece in left.chunks(4500) {
            assert_eq!(it.send(piece), Ok(piece.len()));
        }
        let all = [early, left.clone()].concat();
        let read_some = |reader: Port<'static>| {
            reader.channel.incoming().flags.waiting.fetch_or(GIVING, SeqCst);
            by_kernel(&left[..3000]);
            assert!(it.image_reads(read, counted) == all[..read]);
        };
        let (port, goes_on) = it.reader_in_copy_after(read_some, || it.sockets[0].shutdown(Shutdown::Write).unwrap());
        assert!(goes_on, "{read} {counted}");
        assert!(receive_all(port) == (all[read..].to_vec(), Ok(0)), "{read} {counted}");
    }
}

/// The first image has read some of what was given back, through the library or not, when a reset ends the connection,
/// whose kernel does not tell that. Fails if `Port::read_on` does not look whether something was read that is not
/// counted, or if `Port::pass_read_while_away` does not pass what is: the second image would read the same again.
#[test]
fn an_image_repeats_nothing_where_the_kernel_does_not_tell() {
    for (read, counted) in [(3000, false), (3000, true), (2000, true), (1, true)] {
        let (it, left) = some_left_unread();
        let sender = it.port(0);
        let read_some = |reader: Port<'static>| {
            reader.channel.incoming().flags.waiting.fetch_or(GIVING, SeqCst);
            assert_eq!(kernel::send(sender.fd, &left[..3000]), Ok(3000));
            assert!(it.image_reads(read, counted) == left[..read]);
        };
        let (port, goes_on) = it.reader_in_copy_after(read_some, || kernel::reset(sender.fd));
        assert_eq!(goes_on, counted, "{read}");
        if counted {
            assert_eq!(receive_all(port), (left[read..].to_vec(), Err(Errno(libc::ECONNRESET))), "{read}");
        }
    }
}

/// The sender was killed with the doorbell unread that the reader rang when it went away, so its kernel has reset the
/// connection. On kernel TCP the stream would have ended, unless something was unread that the reader had sent. Fails
/// if `Port::is_reset_by_bell` does not tell the two apart, and if a connection that is over counts as a connection
/// that others have read.
#[test]
fn a_killed_sender_leaves_all_of_its_stream_to_an_image() {
    for (had_all, has_channel) in [(true, true), (true, false), (false, true), (false, false)] {
        let (it, left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        assert!(reader.can_wake());
        sender.pass_due_marks();
        assert!(sender.arm(ALONE));
        if !had_all {
            assert_eq!(send(&reader, b"unread"), Ok(6));
        }
        let dies = || {
            assert_eq!(kernel::inq(sender.fd), Ok(1), "a doorbell");
            kernel::reset(sender.fd);
        };
        let port = if has_channel {
            assert_eq!(reader.go_away(|| true), Departure::Gone);
            dies();
            reader.come_back();
            reader
        } else {
            let (port, goes_on) = it.reader_in_copy(dies);
            assert!(goes_on);
            port
        };
        let end = if had_all { Ok(0) } else { Err(Errno(libc::ECONNRESET)) };
        assert!(receive_all(port) == (left, end), "{had_all} {has_channel}");
    }
}

/// The sender was killed before the reader executed, so nobody would give back what is unread, and the reader did not
/// go away. Fails if an end that was here forgets in its copy whether the sender had had all.
#[test]
fn a_sender_killed_before_leaves_all_of_its_stream_to_an_image() {
    for (had_all, marked) in [(true, false), (true, true), (false, false)] {
        let (it, left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        assert!(reader.announce_bell());
        assert_eq!(kernel::send_bell(reader.fd), Ok(1));
        if !had_all {
            assert_eq!(send(&reader, b"unread"), Ok(6));
        }
        kernel::reset(sender.fd);
        if marked {
            reader.channel.outgoing().flags.closed.store(ORPHANED, Relaxed);
        }
        let (port, goes_on) = it.reader_in_copy(|| {});
        assert!(goes_on && !reader.end.is_away());
        let end = if had_all { Ok(0) } else { Err(Errno(libc::ECONNRESET)) };
        assert!(receive_all(port) == (left, end), "{had_all} {marked}");
    }
}

/// What comes before the ring lies unread in the kernel when the reader goes away, and what of the ring was given back
/// lies behind it. Fails if the reader comes to the ring without a look at that, and if a look or FIONREAD shows it.
#[test]
fn an_image_reads_what_comes_before_its_copy() {
    let before = vec![7u8; 3000];
    let reset = || Err(Errno(libc::ECONNRESET));
    for (case, end) in [("given", Ok(0)), ("part", Ok(0)), ("gone", Ok(0)), ("reset", reset()), ("other", reset())] {
        let left: Vec<u8> = (0..9000u32).map(|n| (n * 7 / 3) as u8).collect();
        let it = Ends::before_ring(&before, &left);
        let sender = it.port(0);
        let by_kernel = |bytes: &[u8]| assert_eq!(kernel::send(sender.fd, bytes), Ok(bytes.len()));
        let (port, goes_on) = it.reader_in_copy(|| {
            match case {
                "given" => {
                    assert!(sender.give_back_if_due());
                    by_kernel(b"and more");
                }
                "part" => by_kernel(&left[..5000]),
                "reset" => return kernel::reset(sender.fd),
                "other" => by_kernel(&[0xaa; 9]),
                _ => {}
            }
            it.sockets[0].shutdown(Shutdown::Write).unwrap();
        });
        assert!(goes_on, "{case}");
        if case == "given" {
            assert_eq!(port.unread(), before.len() as u64);
            assert_looks(&port, &before);
        }
        let parts =
            [&before[..], if case == "other" { b"" } else { &left }, if case == "given" { b"and more" } else { b"" }];
        assert!(receive_all(port) == (parts.concat(), end), "{case}");
    }
}

/// A sender that asks whether the reader lives announces its doorbell after the reader has looked for one. Fails if the
/// reader leaves all the same: the doorbell would be data to a reader of the kernel path.
#[test]
fn a_reader_does_not_leave_before_a_doorbell_behind_data() {
    let it = Ends::before_ring(b"before", b"and more");
    let (sender, reader) = (it.port(0), it.port(1));
    assert!(!reader.leave_beside_switch(|flag| {
        if sender.bells_since_up() == 0 {
            assert!(sender.announce_bell());
        }
        Some(flag.0 | AWAY)
    }));
    assert!(!sender.reader_is_absent() && sender.bells_since_up() == 1);
    assert_eq!(kernel::send_bell(sender.fd), Ok(1));
    assert_eq!(reader.go_away(|| true), Departure::Stuck);
    it.assert_receives(b"beforeand more");
    assert!(sender.announce_bell(), "no more bells");
    // Without a doorbell it leaves, and refuses those that come.
    let it = Ends::before_ring(b"before", b"and more");
    let (sender, reader) = (it.port(0), it.port(1));
    assert_eq!(reader.go_away(|| true), Departure::Gone);
    assert!(!sender.announce_bell() && sender.give_back_if_due());
    it.assert_kernel_has(b"beforeand more");
}

/// Without a channel an end goes on where it has left nothing in one, whether it has shut down its half or not.
#[test]
fn what_was_left_in_a_channel_is_needed() {
    for is_read in [false, true] {
        let (it, left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        if is_read {
            it.assert_receives(&left);
        }
        assert!(reader.can_wake());
        sender.pass_due_marks();
        sender.arm(ALONE);
        reader.end.shut.store(SHUT_OUT, Relaxed);
        reader.between_sends(|| it.sockets[1].shutdown(Shutdown::Write).map_or(-1, |()| 0));
        assert_eq!(reader.go_away(|| true), Departure::Gone);
        // Behind the FIN no doorbell comes, which the sender would await.
        assert_eq!(reader.bells_since_up(), 0);
        assert_eq!(reader.end.needs_no_channel(), is_read);
        assert_eq!(reader.end.stay_away(reader.fd, left.len() as u64), is_read);
        // The sender has read to the end of the stream, and goes on sending until an execution.
        sender.leave_if_read(u64::MAX);
        sender.go_away(|| true);
        assert!(!sender.end.is_away() && !sender.end.needs_no_channel());
        assert!(sender.end.stay_away(sender.fd, 0) && sender.end.needs_no_channel());
    }
}

/// A sender that does not sleep looks at the flag with its next call. Fails if the reader rings all the same, or if the
/// sender leaves the doorbell of a reader that has taken it for a sleeper unread: either would make a reset of the
/// sender's death.
#[test]
fn a_departure_leaves_no_doorbell_with_a_sender_that_is_awake() {
    for may_sleep in [false, true] {
        let (it, mut left) = some_left_unread();
        let (sender, reader) = (it.port(0), it.port(1));
        assert!(reader.can_wake());
        sender.pass_due_marks();
        if may_sleep {
            assert!(sender.arm(ALONE));
        } else {
            sender.channel.incoming().flags.waiting.store(0, Relaxed);
        }
        assert_eq!(reader.go_away(|| true), Departure::Gone);
        assert_eq!(kernel::inq(sender.fd), Ok(may_sleep.into()));
        // The sender looks for a doorbell once in a while. It finds that the reader is away, and gives back before it
        // goes on: what it puts into the ring after that would be out of order.
        thread::sleep(std::time::Duration::from_millis(1));
        let in_ring = it.ends[0].sending.fast_bytes.load(Relaxed);
        assert_eq!(it.send(b"and more"), Ok(8));
        assert!(!may_sleep || it.ends[0].sending.fast_bytes.load(Relaxed) == in_ring);
        assert_eq!(kernel::inq(sender.fd), Ok(0));
        left.extend(b"and more");
        it.assert_kernel_has(&left);
    }
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
    assert_looks(&it.port(1), &left);
    sender.come_back();
    assert_eq!(it.send(b"and more"), Ok(8));
    left.extend(b"and more");
    assert_looks(&it.port(1), &left);
    it.assert_receives(&left);
}

/// A look of `port` sees `bytes`, and nothing else.
fn assert_looks(port: &Port<'_>, bytes: &[u8]) {
    let mut got = vec![0u8; bytes.len() + 100];
    let vector = libc::iovec { iov_base: got.as_mut_ptr().cast(), iov_len: got.len() };
    // SAFETY: one buffer, writable.
    let into = unsafe { Cursor::new(&vector, 1) };
    let mut port = *port;
    assert_eq!(port.receive(into, libc::MSG_DONTWAIT | libc::MSG_PEEK), Ok(bytes.len()));
    assert!(got[..bytes.len()] == *bytes, "other bytes");
}

/// A thread sleeps in a receive on the kernel path, and another process of its family is about to leave the ring, when
/// the other end goes up and down for a doorbell. Fails if `Port::leave_if_read` does not look for the mark: the
/// sleeper takes the doorbell for data.
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

/// One end hands its socket over, and tells the other of it by a doorbell, when the other is just about to be closed.
/// Fails if `Port::prepare_to_close` does not refuse doorbells: that socket's kernel would answer its close with a
/// reset.
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
