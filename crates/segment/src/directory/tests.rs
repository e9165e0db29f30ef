//! Ends that meet, sockets that are lent, and tables that are made at one moment.

use super::*;
use crate::clock;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The directory is the user's: while one test keeps it busy, another would find nothing there.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails if a process goes on with the table that it has made: sockets that it passes on would not be found.
#[cfg(not(loom))]
#[test]
fn of_two_tables_that_were_made_at_the_same_moment_one_counts() {
    let _alone = alone();
    let user = kernel::user_id();
    let made = [(); 2].map(|()| Directory::make(user).unwrap());
    let numbers = made.map(|it| it.id());
    let counts = made.map(|it| it.unless_another_counts().id());
    assert!(counts[0] == counts[1] && numbers.iter().all(|&it| counts[0] <= it), "{numbers:?} {counts:?}");
}

#[test]
fn two_ends_meet_once() {
    let _alone = alone();
    let directory = Directory::open(kernel::user_id()).unwrap();
    let again = Directory::open(kernel::user_id()).unwrap();
    let key = Key::of(u64::MAX - 5, u64::MAX - 9);
    let (one, other) = (holder(3, 100), holder(4, 200));
    let Found::Nobody(index) = directory.ask(key, one) else { panic!("somebody is there") };
    assert_eq!(directory.offered(index, key), None);
    assert_eq!(again.ask(Key::of(u64::MAX - 9, u64::MAX - 5), other), Found::Waiter(index, one));
    let offer = Offer { maker: other, pool: 1, slot: 2, shape: Shape { ring_bytes: 1 << 16, slots: 4 } };
    assert!(again.offer(index, key, offer));
    assert!(!again.offer(index, key, offer));
    assert_eq!(directory.offered(index, key), Some(offer));
    assert_eq!(directory.offered(index, Key::of(1, 2)), None);
    assert!(directory.clear(index, key, one.pid));
    assert_eq!(directory.offered(index, key), None);
    assert!(!again.clear(index, key, other.pid));
}

/// The directory is found by its length, and other segments of that length must not hide it.
#[test]
fn nothing_else_is_as_long() {
    let shapes =
        (16..=24).flat_map(|bits| [1, 8, Shape::MAX_SLOTS].map(|slots| Shape { ring_bytes: 1 << bits, slots }));
    let pages = |len: usize| len.div_ceil(4096);
    assert!(shapes.into_iter().all(|shape| shape.is_sane() && pages(shape.pool_bytes()) != pages(LEN)));
    assert_ne!(pages(LEN), pages(crate::family::Family::LEN));
}

#[cfg(not(loom))]
#[test]
fn what_is_harmless_is_remembered_beside_others() {
    let directory = Directory::private(kernel::user_id());
    let same_place = |step: u64| 7 + step * CODES as u64;
    for step in 0..8 {
        assert!(!directory.is_harmless(same_place(step)));
        directory.set_harmless(same_place(step));
    }
    assert!((0..8).all(|step| directory.is_harmless(same_place(step))));
    directory.set_harmless(same_place(8));
    assert!(directory.is_harmless(same_place(8)) && !directory.is_harmless(same_place(0)), "the ninth of a place");
    directory.set_harmless(u64::MAX);
    assert!(directory.is_harmless(u64::MAX), "behind the last place is the first");
}

#[test]
fn word_is_left_and_found_however_busy_the_table_is() {
    let _alone = alone();
    let directory = Directory::open(kernel::user_id()).unwrap();
    let (me, cookie) = (holder(3, 100), u64::MAX - 21);
    let busy = |what: &(dyn Fn() + Sync)| {
        let locked = directory.lock_patiently(me.pid).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(what);
            clock::nap(20_000);
            drop(locked);
        });
    };
    busy(&|| assert!(directory.lend(cookie, me, 7, true).is_some()));
    let borrowed = || directory.borrow(cookie, me.pid).map(|it| (it.lender, it.index, it.depends));
    busy(&|| assert_eq!(borrowed(), Some((me, 7, true))));
    assert_eq!(borrowed(), Some((me, 7, true)), "several may come");
    let word = directory.lend(cookie, me, 8, false).unwrap();
    assert_eq!(borrowed(), Some((me, 8, false)));
    directory.clear(word, Key::lent(cookie), me.pid);
    assert_eq!(borrowed(), None);
    assert!(directory.lend(cookie, me, 9, true).is_some());
    directory.end_lending(directory.borrow(cookie, me.pid).unwrap(), cookie, me.pid);
    assert_eq!(borrowed(), None);
}
