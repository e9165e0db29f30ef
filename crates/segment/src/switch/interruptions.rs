//! A signal handler runs before each step of going up and of coming down, and sends or receives on the connection that
//! its thread is in the middle of a call on.
//!
//! A step is a change of a word or a system call: see [`crate::sync::mortal`]. A signal that comes while signals are
//! held back is handled afterwards, as it is in a program.
#![allow(unsafe_code, reason = "installs a signal handler")]

use super::Port;
use super::deaths::{SAID, await_that, receive, receive_all, say};
use super::lies::{Ends, PATIENCE, Sent, send, shared};
use crate::kernel;
use crate::raw::Errno;
use crate::sync::mortal;
use std::cell::RefCell;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// No other test uses it.
const SIGNAL: i32 = libc::SIGVTALRM;
/// What a handler sends.
const ASIDE: &[u8] = b"<aside>";

thread_local! {
    /// What the handler does on this thread, once.
    static ASIDES: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

extern "C" fn handle(_: i32) {
    if let Some(aside) = ASIDES.take() {
        aside();
    }
}

/// Has this thread do `aside` before step number `step`.
fn interrupt(step: u32, aside: impl FnOnce() + 'static) {
    // SAFETY: a valid handler; an all-zero mask holds nothing back.
    unsafe {
        let mut action: libc::sigaction = core::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        assert_eq!(libc::sigaction(SIGNAL, &raw const action, core::ptr::null_mut()), 0);
    }
    ASIDES.set(Some(Box::new(aside)));
    mortal::signal_at(step, SIGNAL);
}

/// The call is over. Whether it was interrupted: if not, it takes fewer steps.
fn was_interrupted() -> bool {
    let was = mortal::is_signalled();
    mortal::signal_at(0, 0);
    ASIDES.take();
    was
}

/// A handler sends before step `step` of a sender of [`SAID`]. Whether there are so many steps.
fn sender_is_interrupted(step: u32, in_turn: bool) -> bool {
    let ends = Ends::joined(false);
    let received = shared::<AtomicUsize>();
    let told = receive_all(&ends, 1, received);
    let port = Port { me: kernel::thread_id(), ..ends.port(0) };
    let sent = Arc::new(AtomicUsize::new(0));
    let (asides, port_of_handler) = (sent.clone(), Sent(port));
    interrupt(step, move || {
        let Sent(port) = { port_of_handler };
        assert_eq!(send(&port, ASIDE), Ok(ASIDE.len()));
        asides.fetch_add(ASIDE.len(), SeqCst);
    });
    for (part, bytes) in SAID.iter().enumerate() {
        say(&port, part);
        sent.fetch_add(bytes.len(), SeqCst);
        if in_turn {
            await_that(|| received.load(SeqCst) == sent.load(SeqCst));
        }
    }
    let was = was_interrupted();
    ends.sockets[0].shutdown(Shutdown::Write).unwrap();
    let (got, end) = told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("step {step}: the reader hangs"));
    assert_eq!(end, Ok(0), "step {step}");
    let parts = |asides_before: usize| -> Vec<u8> {
        let before = &SAID[..asides_before];
        [before.concat(), if was { ASIDE.to_vec() } else { vec![] }, SAID[asides_before..].concat()].concat()
    };
    let is_whole = (0..=SAID.len()).any(|before| parts(before) == got);
    assert!(is_whole, "step {step}: {:?}", String::from_utf8_lossy(&got));
    was
}

#[test]
fn a_handler_sends_at_any_step_of_a_senders_switch() {
    for in_turn in [true, false] {
        let steps = (1..).take_while(|&step| sender_is_interrupted(step, in_turn)).count();
        assert!(steps > 50, "{steps} steps are too few for two ways up and one down");
    }
}

/// A handler receives before step `step` of a reader of [`SAID`], which lies there. Whether there are so many steps.
fn reader_is_interrupted(step: u32) -> bool {
    let ends = Ends::joined(false);
    let sender = ends.port(0);
    // All but what would have to wait for the reader.
    (0..5).for_each(|part| say(&sender, part));
    let said = SAID[..5].concat();
    let reader = Port { me: kernel::thread_id(), ..ends.port(1) };
    let read_aside: Arc<std::sync::Mutex<Vec<u8>>> = Arc::default();
    let (asides, reader_of_handler) = (read_aside.clone(), Sent(reader));
    interrupt(step, move || {
        let Sent(mut port) = { reader_of_handler };
        match receive(&mut port, 3, libc::MSG_DONTWAIT) {
            Ok(bytes) => *asides.lock().unwrap() = bytes,
            Err(error) => assert_eq!(error, Errno(libc::EAGAIN)),
        }
    });
    let (mut port, mut got) = (reader, 0);
    while got < said.len() {
        let bytes = receive(&mut port, 5, libc::MSG_DONTWAIT);
        let aside = core::mem::take(&mut *read_aside.lock().unwrap());
        // The handler may have read all that was left.
        let bytes = bytes.unwrap_or_else(|error| {
            assert!(error == Errno(libc::EAGAIN) && !aside.is_empty(), "step {step}: {error:?} at {got}");
            Vec::new()
        });
        // The handler has read before this receive took something, or after that.
        let is_next = [[&bytes[..], &aside].concat(), [&aside[..], &bytes].concat()]
            .iter()
            .any(|both| said[got..].starts_with(both));
        let both = [&bytes[..], &aside].map(String::from_utf8_lossy);
        assert!(bytes.len() + aside.len() > 0 && is_next, "step {step}: {both:?} at {got}");
        got += bytes.len() + aside.len();
    }
    was_interrupted()
}

#[test]
fn a_handler_receives_at_any_step_of_a_readers_switch() {
    let steps = (1..).take_while(|&step| reader_is_interrupted(step)).count();
    assert!(steps > 50, "{steps} steps are too few for one way up and one down");
}

/// All that can be received at once.
fn receive_what_is_there(port: &mut Port<'_>) -> Vec<u8> {
    let mut all = Vec::new();
    loop {
        match receive(port, 7, libc::MSG_DONTWAIT) {
            Ok(bytes) if bytes.is_empty() => return all,
            Ok(bytes) => all.extend(bytes),
            Err(error) => {
                assert_eq!(error, Errno(libc::EAGAIN));
                return all;
            }
        }
    }
}

/// A handler sends, up and down, before step `step` of a reader of [`SAID`], which lies there. Whether there are so
/// many steps.
fn reader_is_interrupted_by_a_send(step: u32) -> bool {
    let ends = Ends::joined(false);
    let sender = ends.port(0);
    (0..5).for_each(|part| say(&sender, part));
    let said = SAID[..5].concat();
    let mut reader = Port { me: kernel::thread_id(), ..ends.port(1) };
    let port_of_handler = Sent(reader);
    interrupt(step, move || {
        let Sent(port) = { port_of_handler };
        (0..5).for_each(|part| say(&port, part));
    });
    let mut got = Vec::new();
    while got.len() < said.len() {
        let bytes = receive(&mut reader, 5, libc::MSG_DONTWAIT);
        got.extend(bytes.unwrap_or_else(|error| panic!("step {step}: {error:?} at {}", got.len())));
        assert!(said.starts_with(&got), "step {step}: {:?}", String::from_utf8_lossy(&got));
    }
    let was = was_interrupted();
    let expected = if was { &said[..] } else { &[] };
    let answer = receive_what_is_there(&mut Port { me: kernel::thread_id(), ..sender });
    assert!(answer == expected, "step {step}: {:?}", String::from_utf8_lossy(&answer));
    was
}

#[test]
fn a_handler_sends_at_any_step_of_a_readers_switch() {
    let steps = (1..).take_while(|&step| reader_is_interrupted_by_a_send(step)).count();
    assert!(steps > 50, "{steps} steps are too few for one way up and one down");
}

/// A handler receives all of [`SAID`] but the end, which lies there, before step `step` of a sender of [`SAID`].
/// Whether there are so many steps.
fn sender_is_interrupted_by_a_receive(step: u32, in_turn: bool) -> bool {
    let ends = Ends::joined(false);
    (0..5).for_each(|part| say(&ends.port(1), part));
    let received = shared::<AtomicUsize>();
    let told = receive_all(&ends, 1, received);
    let port = Port { me: kernel::thread_id(), ..ends.port(0) };
    let read_aside: Arc<std::sync::Mutex<Vec<u8>>> = Arc::default();
    let (asides, port_of_handler) = (read_aside.clone(), Sent(port));
    interrupt(step, move || {
        let Sent(mut port) = { port_of_handler };
        *asides.lock().unwrap() = receive_what_is_there(&mut port);
    });
    let mut sent = 0;
    for (part, bytes) in SAID.iter().enumerate() {
        say(&port, part);
        sent += bytes.len();
        if in_turn {
            await_that(|| received.load(SeqCst) == sent);
        }
    }
    let was = was_interrupted();
    let mut all = read_aside.lock().unwrap().clone();
    assert!(!was || !all.is_empty(), "step {step}: the handler finds nothing");
    all.extend(receive_what_is_there(&mut Port { ..port }));
    assert!(all == SAID[..5].concat(), "step {step}: {:?}", String::from_utf8_lossy(&all));
    ends.sockets[0].shutdown(Shutdown::Write).unwrap();
    let (got, end) = told.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("step {step}: the reader hangs"));
    assert_eq!((got == SAID.concat(), end), (true, Ok(0)), "step {step}: {:?}", String::from_utf8_lossy(&got));
    was
}

#[test]
fn a_handler_receives_at_any_step_of_a_senders_switch() {
    for in_turn in [true, false] {
        let steps = (1..).take_while(|&step| sender_is_interrupted_by_a_receive(step, in_turn)).count();
        assert!(steps > 50, "{steps} steps are too few for two ways up and one down");
    }
}
