//! The words of this crate under the model checker (loom): those that a model shares between its threads are loom's,
//! which tries every order of their changes and every value that a load may see; all others are plain.
//!
//! So the real code runs in a model, over memory as it lies in a System V segment: a shared word is known by its
//! address. In one point a model is stronger than some processors (not x86-64): loom knows of no total order of SeqCst
//! accesses, so each is given a whole fence before it.

use core::sync::atomic as plain;
use plain::Ordering::{self, Relaxed, SeqCst};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Shared words of the model that runs in this thread, by address.
#[derive(Default)]
struct Words {
    halves: HashMap<usize, Rc<loom::sync::atomic::AtomicU32>>,
    wholes: HashMap<usize, Rc<loom::sync::atomic::AtomicU64>>,
}

thread_local! {
    // All threads of a model run in the thread that checks it.
    static WORDS: RefCell<Option<Words>> = const { RefCell::new(None) };
}

macro_rules! atomic {
    ($name:ident, $int:ty, $words:ident) => {
        /// See [`core::sync::atomic`].
        #[repr(transparent)]
        #[derive(Debug, Default)]
        pub struct $name(plain::$name);

        #[allow(missing_docs, reason = "as core's")]
        impl $name {
            pub const fn new(value: $int) -> Self {
                Self(plain::$name::new(value))
            }

            pub fn as_ptr(&self) -> *mut $int {
                self.0.as_ptr()
            }

            /// From now on it is one of the words that the threads of this model share.
            pub fn share(&self) {
                let word = Rc::new(loom::sync::atomic::$name::new(self.0.load(Relaxed)));
                WORDS.with_borrow_mut(|words| {
                    words.as_mut().expect("in a model").$words.insert(self.as_ptr() as usize, word)
                });
            }

            fn shared(&self, order: Ordering) -> Option<Rc<loom::sync::atomic::$name>> {
                let at = self.as_ptr() as usize;
                let word = WORDS.with_borrow(|words| words.as_ref()?.$words.get(&at).cloned())?;
                if order == SeqCst {
                    fence(SeqCst);
                }
                Some(word)
            }

            pub fn load(&self, order: Ordering) -> $int {
                self.shared(order).map_or_else(|| self.0.load(order), |word| word.load(order))
            }

            pub fn store(&self, value: $int, order: Ordering) {
                self.shared(order).map_or_else(|| self.0.store(value, order), |word| word.store(value, order));
            }

            pub fn swap(&self, value: $int, order: Ordering) -> $int {
                self.shared(order).map_or_else(|| self.0.swap(value, order), |word| word.swap(value, order))
            }

            pub fn fetch_add(&self, n: $int, order: Ordering) -> $int {
                self.shared(order).map_or_else(|| self.0.fetch_add(n, order), |word| word.fetch_add(n, order))
            }

            pub fn fetch_sub(&self, n: $int, order: Ordering) -> $int {
                self.shared(order).map_or_else(|| self.0.fetch_sub(n, order), |word| word.fetch_sub(n, order))
            }

            pub fn fetch_or(&self, bits: $int, order: Ordering) -> $int {
                self.shared(order).map_or_else(|| self.0.fetch_or(bits, order), |word| word.fetch_or(bits, order))
            }

            pub fn fetch_and(&self, bits: $int, order: Ordering) -> $int {
                self.shared(order).map_or_else(|| self.0.fetch_and(bits, order), |word| word.fetch_and(bits, order))
            }

            pub fn fetch_max(&self, n: $int, order: Ordering) -> $int {
                self.shared(order).map_or_else(|| self.0.fetch_max(n, order), |word| word.fetch_max(n, order))
            }

            pub fn compare_exchange(&self, old: $int, new: $int, yes: Ordering, no: Ordering) -> Result<$int, $int> {
                match self.shared(yes) {
                    Some(word) => word.compare_exchange(old, new, yes, no),
                    None => self.0.compare_exchange(old, new, yes, no),
                }
            }

            pub fn compare_exchange_weak(
                &self,
                old: $int,
                new: $int,
                yes: Ordering,
                no: Ordering,
            ) -> Result<$int, $int> {
                self.compare_exchange(old, new, yes, no)
            }

            pub fn fetch_update(
                &self,
                yes: Ordering,
                no: Ordering,
                change: impl FnMut($int) -> Option<$int>,
            ) -> Result<$int, $int> {
                match self.shared(yes) {
                    Some(word) => word.fetch_update(yes, no, change),
                    None => self.0.fetch_update(yes, no, change),
                }
            }
        }
    };
}

atomic!(AtomicU32, u32, halves);
atomic!(AtomicU64, u64, wholes);

/// See [`core::sync::atomic::fence`].
pub fn fence(order: Ordering) {
    if in_model() { loom::sync::atomic::fence(order) } else { plain::fence(order) }
}

fn in_model() -> bool {
    WORDS.with_borrow(Option::is_some)
}

/// Lets the other threads of a model go on; true in a model.
pub fn give_way() -> bool {
    let in_model = in_model();
    if in_model {
        loom::thread::yield_now();
    }
    in_model
}

/// Checks what `body` asserts in all orders of its threads' steps that have at most `preemptions` switches from a
/// thread which could go on.
pub fn model(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(preemptions);
    builder.max_branches = 5_000;
    builder.check(move || {
        WORDS.set(Some(Words::default()));
        body();
        WORDS.set(None);
    });
}

/// memcpy, where either end may lie among the shared words: then in whole words, as a ring has them.
///
/// # Safety
/// `from` and `to` must be valid for `n` bytes.
pub unsafe fn copy(from: *const u8, to: *mut u8, n: usize) {
    let shared =
        |at: usize| WORDS.with_borrow(|words| words.as_ref().and_then(|words| words.wholes.get(&(at & !7)).cloned()));
    let mut bytes = Vec::with_capacity(n);
    while bytes.len() < n {
        let at = from as usize + bytes.len();
        match shared(at) {
            Some(word) => {
                let word = word.load(Relaxed).to_ne_bytes();
                bytes.extend(word[at % 8..].iter().take(n - bytes.len()));
            }
            // SAFETY: below `n`.
            None => bytes.push(unsafe { from.add(bytes.len()).read() }),
        }
    }
    let mut done = 0;
    while done < n {
        match shared(to as usize + done) {
            Some(word) => {
                let mut whole = [0; 8];
                let len = (n - done).min(8);
                whole[..len].copy_from_slice(&bytes[done..done + len]);
                word.store(u64::from_ne_bytes(whole), Relaxed);
                done += len;
            }
            None => {
                // SAFETY: below `n`.
                unsafe { to.add(done).write(bytes[done]) };
                done += 1;
            }
        }
    }
}
