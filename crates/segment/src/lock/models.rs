//! Every order of the steps of threads that enter, or die inside.

use super::*;
use crate::model;
use loom::cell::UnsafeCell;
use std::sync::Arc;

struct Guarded {
    lock: Lock,
    count: UnsafeCell<u32>,
}

// SAFETY: the cell is reached under the lock only; loom finds out where that does not hold.
#[allow(unsafe_code, reason = "shares what the lock is to guard")]
unsafe impl Sync for Guarded {}

impl Guarded {
    fn new() -> Arc<Guarded> {
        let lock = Lock { owner: AtomicU32::new(0), asleep: AtomicU32::new(0) };
        let it = Arc::new(Guarded { lock, count: UnsafeCell::new(0) });
        it.lock.owner.share();
        it.lock.asleep.share();
        it
    }

    #[allow(unsafe_code, reason = "as above")]
    fn count(&self) -> u32 {
        // SAFETY: as above.
        self.count.with_mut(|it| unsafe {
            *it += 1;
            *it
        })
    }
}

/// Fails if `Lock::exit` opens it with Relaxed, or `Lock::enter` takes it so.
#[test]
fn one_is_inside() {
    model::check(3, || {
        let it = Guarded::new();
        let enter = |it: &Guarded, me| {
            let entered = it.lock.enter(me);
            it.count();
            it.lock.exit(entered);
            assert_eq!(entered, Entered::Alone);
        };
        let other = it.clone();
        let thread = loom::thread::spawn(move || enter(&other, 2));
        enter(&it, 1);
        thread.join().unwrap();
        assert_eq!(it.count(), 3);
    });
}

/// Fails if `Lock::inherit` takes the lock by a store, even if another thread has taken it meanwhile.
#[test]
fn one_inherits_from_the_dead() {
    model::check(2, || {
        let it = Guarded::new();
        let survive = |it: &Guarded, me| {
            let entered = it.lock.enter(me);
            it.count();
            it.lock.exit(entered);
            entered == Entered::AfterDeath
        };
        let (first, second) = (it.clone(), it.clone());
        let killed = loom::thread::spawn(move || {
            assert!(matches!(first.lock.enter(2), Entered::Alone));
            first.count();
            model::die(2);
        });
        killed.join().unwrap();
        let thread = loom::thread::spawn(move || survive(&second, 3));
        let inherited = survive(&it, 1);
        assert!(thread.join().unwrap() ^ inherited, "one of them mends");
        assert_eq!(it.count(), 4);
    });
}
