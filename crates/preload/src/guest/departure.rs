//! This process is about to end, or another program image to take this one's place, while other threads go on. What
//! they begin then would be missed: a connection that joins is not joined in what goes along, and an end that is lent
//! to a new image, or counted for a child, may have been let go of.
//!
//! Each side says first, and then looks. A thread that leaves says so, and then awaits those that are lending. A thread
//! that lends says so, and then looks whether another one leaves; if so, it waits until that has failed. A connection
//! does not join while a thread leaves ([`is_under_way`]).
//!
//! Threads that execute programs take turns, because each of them has all ends of the process in its hands. A thread
//! that begins lets those go first that wait already: otherwise a thread whose executions fail one after another would
//! keep them waiting.

use super::thread;
use underpass_segment::clock;
use underpass_segment::kernel;
use underpass_segment::of_each_thread;
use underpass_segment::switch;
use underpass_segment::sync::{AtomicBool, AtomicU32, AtomicU64, Relaxed, SeqCst};

/// How many threads lend. How many leave, [`switch::departing`] counts.
static LENDING: AtomicU32 = AtomicU32::new(0);
/// The thread whose turn it is to execute a program; 0: none.
static EXECUTING: AtomicU32 = AtomicU32::new(0);
/// When a thread last looked whether it may go on (CLOCK_MONOTONIC, ns).
static WAITED: AtomicU64 = AtomicU64::new(0);
/// The process ends.
static IS_EXIT: AtomicBool = AtomicBool::new(false);
/// The process has let go of its connections, and ends.
static IS_OVER: AtomicBool = AtomicBool::new(false);

of_each_thread! {
    /// How often this thread leaves: a signal handler may do so on top of the thread.
    static LEAVES: u32 = 0;
    /// How often this thread lends.
    static LENDS: u32 = 0;
    /// How often this thread had lent when it last made a child of vfork. By [`thread::vfork_level`].
    static LENDS_BEFORE_VFORK: [u32; 2] = [0, 0];
}

/// How long a thread that leaves awaits those that lend: they make a few system calls for each connection. A
/// child of vfork that was killed does not come out before its parent goes on.
const LENT_WITHIN_NS: u64 = 1_000_000_000;
/// How long a thread that would lend, or execute a program, waits for a thread that leaves: longer than an execution
/// awaits the images before it.
const GONE_WITHIN_NS: u64 = 21_000_000_000;
/// How long it waits once the process ends, which may wait for a lock of the thread that would lend. A child of vfork
/// waits no longer either, because its parent may have executed a program meanwhile.
const ENDED_WITHIN_NS: u64 = 1_000_000_000;
/// A thread waits if it has looked within this time.
const LOOKED_WITHIN_NS: u64 = 1_000_000;
/// How long a thread that begins to execute a program lets others go first.
const OTHERS_FIRST_NS: u64 = 20_000_000;

/// A thread leaves: it executes a program, or ends the process. Dropped, it has failed to.
pub struct Leaving(());

impl Leaving {
    /// This thread executes a program. When this returns, no other thread executes or lends, and none will. If other
    /// threads take too long, this thread goes on.
    pub fn begin_execution() -> Leaving {
        // A signal handler may execute a program on top of a thread that does.
        if LEAVES.get() == 0 {
            let_others_first();
            let me = kernel::thread_id();
            let began = clock::nanoseconds();
            // A signal handler may have interrupted this very place.
            while let Err(turn) = EXECUTING.compare_exchange(0, me, SeqCst, Relaxed)
                && turn != me
            {
                if has_waited_long(began) {
                    EXECUTING.store(me, SeqCst);
                    break;
                }
                pause();
            }
        }
        Leaving::begin()
    }

    /// This thread ends the process. When this returns, no other thread lends, and none will.
    pub fn begin_exit() -> Leaving {
        IS_EXIT.store(true, SeqCst);
        Leaving::begin()
    }

    fn begin() -> Leaving {
        // In this order: a signal handler that lends does not wait for its own thread.
        LEAVES.set(LEAVES.get() + 1);
        switch::begin_departing(thread::number());
        let deadline = clock::nanoseconds() + LENT_WITHIN_NS;
        while LENDING.load(SeqCst) > LENDS.get() && clock::nanoseconds() < deadline {
            clock::nap(50);
        }
        Leaving(())
    }

    /// The process has let go of its connections, and ends.
    pub fn end(self) {
        IS_OVER.store(true, SeqCst);
        core::mem::forget(self);
    }
}

impl Drop for Leaving {
    fn drop(&mut self) {
        give_up();
    }
}

/// This thread does not leave after all: as if its [`Leaving`] was dropped.
pub fn give_up() {
    switch::end_departing();
    LEAVES.set(LEAVES.get().saturating_sub(1));
    if LEAVES.get() == 0 {
        let _ = EXECUTING.compare_exchange(kernel::thread_id(), 0, SeqCst, Relaxed);
    }
}

/// Those that wait while other threads leave.
fn let_others_first() {
    let began = clock::nanoseconds();
    let passed_since = |time: u64| clock::nanoseconds().saturating_sub(time);
    while passed_since(WAITED.load(Relaxed)) < LOOKED_WITHIN_NS && passed_since(began) < OTHERS_FIRST_NS {
        clock::nap(50);
    }
}

/// This thread waits until another one has failed to leave.
fn pause() {
    WAITED.store(clock::nanoseconds(), Relaxed);
    clock::nap(100);
}

/// Whether a thread has waited long enough that began at this time to wait for a thread that leaves.
fn has_waited_long(began: u64) -> bool {
    let is_short = IS_OVER.load(SeqCst) || thread::is_vfork_child();
    clock::nanoseconds() - began > if is_short { ENDED_WITHIN_NS } else { GONE_WITHIN_NS }
}

/// Whether a thread leaves.
pub fn is_under_way() -> bool {
    switch::departing() != 0
}

/// Whether a thread ends the process.
pub fn is_exit() -> bool {
    IS_EXIT.load(SeqCst)
}

/// A thread lends ends to an image, or counts them for a child, and no other thread leaves before this is dropped.
pub struct Lending(());

impl Lending {
    /// Waits while another thread leaves. If that lasts too long, this thread goes on: what comes for the ends then may
    /// find them gone.
    pub fn begin() -> Lending {
        let began = clock::nanoseconds();
        loop {
            LENDING.fetch_add(1, SeqCst);
            LENDS.set(LENDS.get() + 1);
            let lending = Lending(());
            if switch::departing() <= LEAVES.get() {
                return lending;
            }
            if has_waited_long(began) {
                return lending;
            }
            drop(lending);
            pause();
        }
    }
}

impl Drop for Lending {
    fn drop(&mut self) {
        one_less(&LENDING);
        LENDS.set(LENDS.get().saturating_sub(1));
    }
}

/// A child that was forked meanwhile counts none.
fn one_less(count: &AtomicU32) {
    let _ = count.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
}

/// In a forked child, which has none of the threads that left or lent.
pub fn after_fork() {
    switch::forget_departing();
    LENDING.store(0, Relaxed);
    EXECUTING.store(0, Relaxed);
    IS_EXIT.store(false, Relaxed);
    IS_OVER.store(false, Relaxed);
    LEAVES.set(0);
    LENDS.set(0);
}

/// This thread is about to make a child of vfork, which runs in its place.
pub fn before_vfork() {
    let mut lends = LENDS_BEFORE_VFORK.get();
    lends[thread::vfork_level()] = LENDS.get();
    LENDS_BEFORE_VFORK.set(lends);
}

/// The child has executed a program, or ended. If it was killed while it lent, it lends no more.
pub fn after_vfork() {
    let before = LENDS_BEFORE_VFORK.get()[thread::vfork_level()];
    (before..LENDS.get()).for_each(|_| one_less(&LENDING));
    LENDS.set(before);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    const SOON: Duration = Duration::from_millis(50);
    const PATIENCE: Duration = Duration::from_secs(10);

    /// One test, because the counts are this process's.
    #[test]
    fn nobody_lends_while_another_thread_leaves() {
        // On top of what the thread itself is in the middle of.
        let leaving = Leaving::begin_execution();
        drop(Lending::begin());
        let lending = Lending::begin();
        drop(Leaving::begin_execution());
        drop(lending);
        assert!(is_under_way());
        // A child of vfork that was killed while it lent.
        before_vfork();
        core::mem::forget(Lending::begin());
        after_vfork();
        assert!(LENDING.load(SeqCst) == 0 && LENDS.get() == 0);

        let (tell, told) = channel();
        let lends = std::thread::spawn(move || {
            let lending = Lending::begin();
            tell.send(()).unwrap();
            lending
        });
        assert!(told.recv_timeout(SOON).is_err(), "it lends what may be gone");
        drop(leaving);
        told.recv_timeout(PATIENCE).expect("it goes on once the execution has failed");
        drop(lends.join().unwrap());
        assert!(!is_under_way());

        let (lent, is_lent) = channel();
        let (tell, told) = channel::<()>();
        let lends = std::thread::spawn(move || {
            let lending = Lending::begin();
            lent.send(()).unwrap();
            let _ = told.recv_timeout(SOON);
            let was_awaited = is_under_way();
            drop(lending);
            was_awaited
        });
        is_lent.recv_timeout(PATIENCE).unwrap();
        let leaving = Leaving::begin_exit();
        drop(tell);
        assert!(LENDING.load(SeqCst) == 0 && lends.join().unwrap(), "it leaves before it knows what is lent");
        drop(leaving);
        executions_take_turns();
    }

    fn executions_take_turns() {
        let executes = AtomicBool::new(false);
        let execute = |rounds| {
            for _ in 0..rounds {
                let leaving = Leaving::begin_execution();
                assert!(!executes.swap(true, SeqCst), "two threads execute programs at the same time");
                // As a thread does that puts its ends into a parcel.
                drop(Lending::begin());
                assert!(executes.swap(false, SeqCst));
                drop(leaving);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| execute(100));
            }
        });
        // Executions that fail one after another let a thread lend that waits for that.
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(SeqCst) {
                    execute(1);
                }
            });
            let began = clock::nanoseconds();
            (0..20).for_each(|_| drop(Lending::begin()));
            stop.store(true, SeqCst);
            assert!(clock::nanoseconds() - began < PATIENCE.as_nanos() as u64);
        });
        assert!(!is_under_way() && EXECUTING.load(SeqCst) == 0);
    }
}
