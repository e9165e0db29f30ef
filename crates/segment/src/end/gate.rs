//! A gate behind which plain kernel calls are kept.

use crate::layout::laid_out;
use crate::sync::{AcqRel, Acquire, AtomicU32};

laid_out! {
    /// Counts the calls that are inside a plain kernel read (or write) of the socket, and can be shut behind them.
    #[repr(C)]
    pub struct Gate(AtomicU32);
}

const SHUT: u32 = 1 << 31;

impl Gate {
    /// Enters for one plain call; false when the gate is shut.
    #[inline]
    pub fn enter(&self) -> bool {
        if self.0.fetch_add(1, AcqRel) & SHUT == 0 {
            return true;
        }
        self.0.fetch_sub(1, AcqRel);
        false
    }

    /// Exits after the plain call.
    #[inline]
    pub fn exit(&self) {
        self.0.fetch_sub(1, AcqRel);
    }

    /// Shuts the gate if no call is inside; true when it is shut now.
    pub fn shut(&self) -> bool {
        match self.0.compare_exchange(0, SHUT, AcqRel, Acquire) {
            Ok(_) => true,
            Err(now) => now & SHUT != 0,
        }
    }

    /// Opens it again.
    pub fn open(&self) {
        self.0.fetch_and(!SHUT, AcqRel);
    }

    /// Whether it is shut.
    #[inline]
    pub fn is_shut(&self) -> bool {
        self.0.load(Acquire) & SHUT != 0
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::model;
    use loom::cell::UnsafeCell;
    use std::sync::Arc;

    struct Socket {
        gate: Gate,
        plain: UnsafeCell<()>,
    }

    // SAFETY: what the gate is to keep apart; loom finds out where it does not.
    #[allow(unsafe_code, reason = "shares what the gate is to keep apart")]
    unsafe impl Sync for Socket {}

    /// Fails if `Gate::exit` counts with Relaxed, or if `Gate::shut` shuts it while a call is inside.
    #[test]
    fn nobody_is_inside_a_plain_call_once_the_gate_is_shut() {
        model::check(3, || {
            let socket = Arc::new(Socket { gate: Gate(AtomicU32::new(0)), plain: UnsafeCell::new(()) });
            socket.gate.0.share();
            let other = socket.clone();
            let thread = loom::thread::spawn(move || {
                for _ in 0..2 {
                    if other.gate.enter() {
                        other.plain.with_mut(|_| {});
                        other.gate.exit();
                    }
                }
            });
            let shut = socket.gate.shut();
            if shut {
                socket.plain.with_mut(|_| {});
                assert!(socket.gate.is_shut() && !socket.gate.enter());
            }
            thread.join().unwrap();
            assert!(shut || socket.gate.shut());
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use crate::end::{End, Stage};
    use crate::sync::{AtomicU32, Relaxed};
    use std::sync::Barrier;

    /// Fails if `End::shut_gate` does not look whether the end has become plain: every plain call would try for ever.
    #[test]
    #[allow(unsafe_code, reason = "makes an unused end")]
    fn the_gates_of_a_plain_end_are_open() {
        const ROUNDS: usize = 20_000;
        // SAFETY: zeroed memory is an unused end.
        let ends: Vec<Box<End>> = (0..ROUNDS).map(|_| unsafe { Box::new_zeroed().assume_init() }).collect();
        ends.iter().for_each(|end| _ = end.advance(Stage::Joined));
        let (start, turn) = (Barrier::new(2), AtomicU32::new(0));
        let each = |act: &dyn Fn(&End)| {
            start.wait();
            for (end, round) in ends.iter().zip(1u32..) {
                // Both come to each end at the same moment.
                let before = turn.fetch_add(1, Relaxed) + 1;
                while before < 2 * round && turn.load(Relaxed) < 2 * round {
                    core::hint::spin_loop();
                }
                act(end);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| each(&|end| _ = end.shut_gate(&end.read_gate)));
            each(&End::become_plain);
        });
        assert_eq!(ends.iter().filter(|end| end.read_gate.is_shut()).count(), 0);
    }
}
