//! Owners that die, sleep, are visited or execute a program.

use super::*;

#[test]
fn a_killed_owner_is_found_out() {
    let lock = Lock { owner: AtomicU32::new(0), asleep: AtomicU32::new(0) };
    let mut child = std::process::Command::new("true").spawn().unwrap();
    let dead = child.id();
    // Not reaped yet: a zombie counts as dead.
    while alive(dead) {
        clock::nap(1000);
    }
    assert_eq!(lock.enter(dead), Entered::Alone);
    assert_eq!(lock.enter(dead), Entered::Nested);
    assert_eq!(lock.enter(std::process::id()), Entered::AfterDeath);
    lock.exit(Entered::AfterDeath);
    assert_eq!(lock.enter(dead), Entered::Alone);
    lock.fall_asleep();
    assert_eq!(lock.enter(std::process::id()), Entered::AfterDeath);
    // A visitor that was killed is no more.
    lock.fall_asleep();
    assert!(lock.visit(dead) && !lock.visit(dead) && lock.visit(std::process::id()));
    lock.end_visit();
    assert!(lock.visit(dead));
    lock.wake(false);
    assert_eq!(lock.asleep.load(Relaxed), 0);
    child.wait().unwrap();
    assert!(alive(std::process::id()));
}

#[test]
fn an_owner_that_executed_a_program_is_found_out() {
    let lock = Lock { owner: AtomicU32::new(0), asleep: AtomicU32::new(0) };
    let (me, other) = (std::process::id(), 1);
    lock.forsake(me);
    assert_eq!(lock.enter(me), Entered::Alone);
    lock.forsake(other);
    assert_eq!(lock.enter(me), Entered::Nested);
    lock.forsake(me);
    assert_eq!(lock.enter(me), Entered::AfterDeath);
    // As an owner that sleeps inside, and as a visitor.
    lock.fall_asleep();
    assert!(lock.visit(me));
    lock.forsake(me);
    assert!(!lock.visit(me) && lock.visit(me));
    lock.end_visit();
    assert_eq!(lock.enter(me), Entered::AfterDeath);
    lock.forsake_all();
    assert_eq!(lock.enter(me), Entered::AfterDeath);
    lock.exit(Entered::AfterDeath);
    lock.forsake_all();
    assert_eq!(lock.enter(me), Entered::Alone);
}

#[test]
fn where_others_were_kept_out_nothing_needs_repair() {
    let lock = Lock { owner: AtomicU32::new(0), asleep: AtomicU32::new(0) };
    let me = std::process::id();
    let kept = || assert_eq!(lock.keep_out(me), Some(Entered::Alone));
    let is_open = || (lock.owner(), lock.asleep.load(Relaxed)) == (0, 0);
    kept();
    lock.let_in(Entered::Alone);
    assert!(is_open());
    kept();
    lock.forsake_all();
    assert!(is_open());
    kept();
    lock.forsake(me);
    assert!(is_open());
    // A signal handler that sleeps inside, and a thread that was inside before.
    kept();
    assert_eq!(lock.enter(me), Entered::Nested);
    lock.fall_asleep();
    lock.forsake_all();
    assert_eq!(lock.enter(me), Entered::AfterDeath);
    assert_eq!(lock.keep_out(me), None);
    lock.forsake_all();
    assert_eq!(lock.enter(me), Entered::AfterDeath);
    lock.exit(Entered::AfterDeath);
    // A thread that is killed meanwhile.
    assert_eq!(lock.keep_out(1 << 28), Some(Entered::Alone));
    lock.forsake(1);
    assert_eq!(lock.owner(), 1 << 28);
}

#[test]
fn an_impatient_one_does_not_wait_for_a_sleeper() {
    let lock = Lock { owner: AtomicU32::new(0), asleep: AtomicU32::new(0) };
    assert_eq!(lock.enter(std::process::id()), Entered::Alone);
    assert!(!lock.fall_asleep());
    assert_eq!(lock.enter(1), Entered::Asleep);
    // A signal handler that has interrupted the sleep, and a second handler that has interrupted the first.
    let me = std::process::id();
    assert_eq!((lock.enter(me), lock.enter(me)), (Entered::AboveSleep, Entered::Nested));
    assert!(!lock.visit(1) && lock.fall_asleep() && lock.visit(1));
    lock.end_visit();
    lock.wake(true);
    assert!(!lock.visit(1));
    lock.exit(Entered::AboveSleep);
    assert!(lock.visit(1));
    lock.end_visit();
    lock.wake(false);
    lock.exit(Entered::Alone);
    assert_eq!(lock.enter(1), Entered::Alone);
}

#[test]
fn who_sleeps_behind_a_sleeper_is_woken_or_gives_up() {
    let lock = Lock { owner: AtomicU32::new(0), asleep: AtomicU32::new(0) };
    let me = kernel::thread_id();
    lock.enter(me);
    lock.fall_asleep();
    assert_eq!(lock.sleep_behind(Some(clock::nanoseconds())), Err(Errno(libc::EAGAIN)));
    assert!(lock.visit(me));
    lock.end_visit();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            while lock.enter(1) == Entered::Asleep {
                lock.sleep_behind(None).unwrap();
            }
            lock.exit(Entered::Alone);
        });
        // The handler sleeps too, and a second one as well.
        clock::nap(20_000);
        assert_eq!(lock.enter(me), Entered::AboveSleep);
        let above = lock.fall_asleep();
        lock.wake(above);
        lock.exit(Entered::AboveSleep);
        clock::nap(20_000);
        assert!(above && !other.is_finished());
        lock.wake(false);
        lock.exit(Entered::Alone);
    });
    assert_eq!((lock.owner(), lock.asleep.load(Relaxed)), (0, 0));
}

/// The owner was a child of vfork that is gone, and had this thread's number, which lives on.
#[test]
fn who_sleeps_behind_a_forsaken_sleeper_goes_on() {
    let lock = Lock { owner: AtomicU32::new(0), asleep: AtomicU32::new(0) };
    let me = kernel::marked(kernel::thread_id());
    lock.enter(me);
    lock.fall_asleep();
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let answer = lock.sleep_behind(Some(clock::nanoseconds() + 20_000_000_000));
            (answer, lock.enter(1))
        });
        while lock.asleep.load(Acquire) & AWAITED == 0 {
            clock::nap(100);
        }
        lock.forsake(me);
        assert_eq!(other.join().unwrap(), (Ok(0), Entered::AfterDeath));
    });
}

#[test]
fn an_owner_that_wakes_waits_for_a_visitor() {
    let lock = Lock { owner: AtomicU32::new(0), asleep: AtomicU32::new(0) };
    let me = kernel::thread_id();
    lock.enter(me);
    lock.fall_asleep();
    assert!(lock.visit(me) && !lock.is_awaited());
    std::thread::scope(|scope| {
        let owner = scope.spawn(|| lock.wake(false));
        while !lock.is_awaited() {
            clock::nap(100);
        }
        clock::nap(20_000);
        assert!(!owner.is_finished() && !lock.visit(me));
        lock.end_visit();
    });
    assert_eq!(lock.asleep.load(Relaxed), 0);
}

#[test]
fn an_owner_that_may_wait_for_this_process_is_not_waited_for() {
    let lock = Lock { owner: AtomicU32::new(0), asleep: AtomicU32::new(0) };
    let (me, other) = (std::process::id(), 1);
    assert!(!lock.may_await_this_process(me));
    assert_eq!(lock.enter(other), Entered::Alone);
    let began = clock::nanoseconds();
    assert!(lock.may_await_this_process(me) && !lock.may_await_this_process(other));
    assert!(clock::nanoseconds() - began >= AWAITED_WITHIN_NS, "it may come out");
    lock.fall_asleep();
    assert!(!lock.may_await_this_process(me));
}
