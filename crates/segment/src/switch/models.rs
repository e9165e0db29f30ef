//! Models of the two ends of one connection, with one direction looked at: the code is that of the library, the kernel
//! is [`crate::model`]. `make loom` checks them. Each names a line with which it fails when that is weakened.

#![allow(unsafe_code, reason = "lays ends and buffers out as the library has them")]

use super::leaving::Leave;
use super::{AGAIN, Departure, Dozed, Port, Waiting};
use crate::channel::{Pool, Shape, Side};
use crate::end::{End, Stage};
use crate::kernel;
use crate::model::{self, FD};
use crate::reason::Reason;
use crate::sync::Relaxed;
use crate::vector::Cursor;
use crate::words::{ALONE, DOZING, Direction};
use std::sync::Arc;

static WAITING: Waiting = Waiting {
    keep_socket: |_| {},
    recv: |port, to, len, flags, _| {
        loop {
            // SAFETY: passed on to the caller.
            match unsafe { kernel::recv(port.fd, to, len, flags) } {
                Err(AGAIN) => crate::sync::pause(),
                answer => return answer,
            }
        }
    },
    call: |_, call| call(),
    give_back_everywhere: || true,
    looks: |_| false,
    ring: |_| {},
    refused: |_| {},
};

/// The end that sends, and the end that receives.
#[derive(Clone)]
struct Ends([Arc<End>; 2]);

impl Ends {
    fn port(&self, number: usize) -> Port<'_> {
        thread_local! {
            // All threads of a model run in the thread that checks it.
            static POOL: Pool = Pool::create(Shape { ring_bytes: 4096, slots: 1 }).unwrap();
        }
        let pool = POOL.with(|pool| *pool);
        let side = [Side::Maker, Side::Joiner][number];
        Port {
            end: &self.0[number],
            channel: pool.slot(0, side).unwrap(),
            fd: FD + number as i32,
            keeps_socket: false,
            me: 1 + number as u32,
            token: 0,
            spin_us: 0,
            doze_us: 0,
            waiting: &WAITING,
        }
    }

    /// Both know of each other; with `fast` the direction has gone up.
    fn joined(fast: bool) -> Ends {
        // SAFETY: zeroed memory is an unused end.
        let end = || Arc::new(unsafe { core::mem::zeroed::<End>() });
        let ends = Ends([end(), end()]);
        ends.port(0).channel.prepare([1, 2]);
        for number in [0, 1] {
            let port = ends.port(number);
            port.end.advance(Stage::Joined);
            // Not worth polling.
            port.end.reading.mean_wait.store(1 << 40, Relaxed);
            assert!(port.become_ready());
        }
        if fast {
            assert!(ends.port(0).can_wake());
            ends.port(1).pass_due_marks();
            assert!(ends.port(1).receives_fast());
        }
        ends.share();
        ends
    }

    /// The words of the direction, and the ring's first lines.
    fn share(&self) {
        let channel = self.port(0).channel;
        let Direction { flags, head, sender } = channel.outgoing();
        for word in
            [&flags.waiting, &flags.in_kernel, &flags.want_down, &flags.consumed, &sender.ended, &sender.switching]
        {
            word.share();
        }
        for word in [&flags.position, &head.head, &head.bells_taken, &sender.announced] {
            word.share();
        }
        channel.outgoing_ring().share(RING);
    }
}

/// Bytes of the ring that a model uses.
const RING: u64 = 128;

impl Port<'_> {
    fn say(&self, bytes: &[u8]) {
        let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: one buffer, only read.
        let from = unsafe { Cursor::new(&vector, 1) };
        let plain = |sent| kernel::send(self.fd, &bytes[sent..]);
        assert_eq!(self.send(from, 0, plain), Ok(bytes.len()));
    }

    fn hear(&mut self, most: usize) -> Vec<u8> {
        let mut bytes = vec![0; most];
        let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most };
        // SAFETY: one buffer, writable.
        let into = unsafe { Cursor::new(&vector, 1) };
        let n = self.receive(into, 0).unwrap();
        bytes.truncate(n);
        bytes
    }
}

fn both(preemptions: usize, fast: bool, sends: fn(&mut Port<'_>), receives: fn(&mut Port<'_>)) {
    model::check(preemptions, move || {
        let ends = Ends::joined(fast);
        let reader = ends.clone();
        let reader = loom::thread::spawn(move || receives(&mut reader.port(1)));
        sends(&mut ends.port(0));
        reader.join().unwrap();
    });
}

/// Fails if `Sender::put` publishes a record with Relaxed: then the reader finds the header before the bytes. Fails if
/// it does so with `store(.., Release)` and `Port::wake_reader` looks with Acquire: then neither end sees the other,
/// and the reader sleeps on.
#[test]
fn a_reader_that_goes_to_sleep_is_woken() {
    let receives = |port: &mut Port<'_>| {
        assert_eq!(port.hear(1), b"a");
        assert_eq!(port.hear(1), b"b");
    };
    let sends = |port: &mut Port<'_>| {
        port.say(b"a");
        port.say(b"b");
    };
    both(2, true, sends, receives);
}

/// As futex(2) on the flag: sleeps while it is up. If nobody takes it down, a model does not end.
fn dozes(port: &Port<'_>) -> Dozed {
    let port = Port { doze_us: 1, ..*port };
    let waiting = &port.channel.incoming().flags.waiting;
    // It is up for a doorbell at first.
    let _ = waiting.compare_exchange(ALONE, 0, Relaxed, Relaxed);
    port.doze_in_poll(None, |_| {
        while waiting.load(Relaxed) == DOZING {
            loom::thread::yield_now();
        }
        Ok(0)
    })
}

/// Fails if `Port::doze` looks at the ring before it raises the flag, or `Port::wake` does not take the flag down: then
/// the reader dozes on beside what was published.
#[test]
fn a_reader_that_dozes_is_woken() {
    let receives = |port: &mut Port<'_>| {
        dozes(port);
        assert_eq!(port.hear(1), b"a");
    };
    both(2, true, |port| port.say(b"a"), receives);
}

/// Fails if `Port::go_down_and_wake` does not rouse: then the reader dozes on beside what comes by the kernel.
#[test]
fn a_reader_that_dozes_is_woken_where_the_stream_goes_down() {
    let receives = |port: &mut Port<'_>| {
        dozes(port);
        assert_eq!(port.hear(1), b"a");
    };
    let sends = |port: &mut Port<'_>| {
        assert_eq!(port.send_by_kernel(Reason::Unsupported, || kernel::send(port.fd, b"a")), Ok(1));
    };
    both(2, true, sends, receives);
}

/// Fails if `Port::end_sending` does not rouse, or does so before it says that the direction ends: then the reader
/// dozes on, or anew, beside the end of the stream.
#[test]
fn a_reader_that_dozes_is_woken_at_the_end() {
    let receives = |port: &mut Port<'_>| {
        dozes(port);
        assert_eq!(dozes(port), Dozed::Over);
        assert_eq!(port.hear(1), b"");
    };
    let sends = |port: &mut Port<'_>| {
        port.end_sending();
        kernel::shut_down(port.fd);
    };
    both(2, true, sends, receives);
}

/// Fails if `Port::end_sending` does not say that it ends the direction, or `Port::can_be_given_back` does not look at
/// `ended`: then the reader leaves what nobody gives back.
#[test]
fn what_a_reader_leaves_while_the_other_end_closes_is_not_lost() {
    let sends = |port: &mut Port<'_>| {
        port.say(b"a");
        port.end_sending();
        kernel::shut_down(port.fd);
    };
    let receives = |port: &mut Port<'_>| {
        port.leave(Leave::IfGivenBack, u64::MAX);
        assert_eq!(port.hear(8), b"a");
        assert_eq!(port.hear(8), b"");
    };
    both(2, true, sends, receives);
}

/// Fails if `Port::go_down_and_wake` names another number of doorbells in its mark: then a doorbell is read as data.
/// With two preemptions it did not end within 30 s.
#[test]
fn bytes_keep_their_order_across_switches() {
    let receives = |port: &mut Port<'_>| {
        let mut heard = vec![];
        while heard.len() < 3 {
            heard.extend(port.hear(8));
        }
        assert_eq!(heard, b"abc");
    };
    let down_and_up = |port: &mut Port<'_>| {
        port.say(b"a");
        assert_eq!(port.send_by_kernel(Reason::Unsupported, || kernel::send(port.fd, b"b")), Ok(1));
        port.say(b"c");
    };
    let up_and_down = |port: &mut Port<'_>| {
        assert_eq!(kernel::send(port.fd, b"a"), Ok(1));
        port.say(b"b");
        assert_eq!(port.send_by_kernel(Reason::Unsupported, || kernel::send(port.fd, b"c")), Ok(1));
    };
    both(1, true, down_and_up, receives);
    both(1, false, up_and_down, receives);
}

/// Bytes keep their order if another process asks again and again for the connection to be held, which only a sender
/// looks at. Fails if `Port::go_up` does not note how many doorbells there were before: then the second mark of going
/// down names too many, and the reader waits for them.
#[test]
fn bytes_keep_their_order_where_a_connection_is_held_again_and_again() {
    let receives = |port: &mut Port<'_>| {
        let mut heard = vec![];
        while heard.len() < 4 {
            heard.extend(port.hear(8));
        }
        assert_eq!(heard, b"abcd");
    };
    let sends = |port: &mut Port<'_>| {
        port.say(b"a");
        port.end.hold();
        port.say(b"b");
        port.end.let_go_up();
        port.say(b"c");
        port.end.hold();
        port.say(b"d");
    };
    both(1, true, sends, receives);
}

/// A sender goes away for a moment, as for an execution, and takes its mark of going down back if the reader has not
/// passed it. Fails if `Ring::pass_down` lets the reader pass a mark that was taken back: then it awaits what goes into
/// the ring by the kernel.
#[test]
fn bytes_keep_their_order_where_a_mark_is_taken_back() {
    let receives = |port: &mut Port<'_>| {
        let mut heard = vec![];
        while heard.len() < 3 {
            heard.extend(port.hear(8));
        }
        assert_eq!(heard, b"abc");
    };
    let sends = |port: &mut Port<'_>| {
        port.say(b"a");
        assert_eq!(port.go_away(|| true), Departure::Gone);
        port.come_back();
        port.say(b"b");
        port.say(b"c");
    };
    both(1, true, sends, receives);
}
