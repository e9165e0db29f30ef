//! This process is about to end, or another program image to take this one's place, while other threads go on. What
//! they begin then would be missed: a connection that joins is not joined in what goes along, and an end that is lent
//! to a new image, or counted for a child, may have been let go of.
//!
//! Each side says first, and then looks. A thread that leaves says so, and then awaits those that are lending. A thread
//! that lends says so, and then looks whether another one leaves; if so, it waits until that has failed. A connection
//! does not join while a thread leaves ([`is_under_way`]).

use super::thread;
use underpass_segment::clock;
use underpass_segment::of_each_thread;
use underpass_segment::sync::{AtomicBool, AtomicU32, Relaxed, SeqCst};

/// How many threads leave, and how many lend.
static LEAVING: AtomicU32 = AtomicU32::new(0);
static LENDING: AtomicU32 = AtomicU32::new(0);
/// The process has let go of its connections, and ends.
static IS_OVER: AtomicBool = AtomicBool::new(false);

of_each_thread! {
    /// How often this thread leaves: a signal handler may do so on top of the thread.
    static LEAVES: u32 = 0;
    /// How often this thread lends.
    static LENDS: u32 = 0;
}

/// How long a thread that leaves awaits those that lend: they make a few system calls for each connection. One that was
/// killed, as a child of vfork may be, does not come out.
const LENT_WITHIN_NS: u64 = 1_000_000_000;
/// How long a thread that would lend waits for one that leaves: longer than an execution awaits the images before it.
const GONE_WITHIN_NS: u64 = 21_000_000_000;
/// The same once the process ends, which may wait for a lock of the thread that would lend. And the same for a child
/// of vfork, whose parent may have executed a program meanwhile.
const ENDED_WITHIN_NS: u64 = 1_000_000_000;

/// A thread leaves: it executes a program, or ends the process. Dropped, it has failed to.
pub struct Leaving(());

impl Leaving {
    /// When this returns, no other thread lends, and none will.
    pub fn begin() -> Leaving {
        LEAVING.fetch_add(1, SeqCst);
        LEAVES.set(LEAVES.get() + 1);
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
    one_less(&LEAVING);
    LEAVES.set(LEAVES.get().saturating_sub(1));
}

/// Whether a thread leaves.
pub fn is_under_way() -> bool {
    LEAVING.load(SeqCst) != 0
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
            if LEAVING.load(SeqCst) <= LEAVES.get() {
                return lending;
            }
            let is_short = IS_OVER.load(SeqCst) || thread::is_vfork_child();
            if clock::nanoseconds() - began > if is_short { ENDED_WITHIN_NS } else { GONE_WITHIN_NS } {
                return lending;
            }
            drop(lending);
            clock::nap(200);
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
    LEAVING.store(0, Relaxed);
    LENDING.store(0, Relaxed);
    IS_OVER.store(false, Relaxed);
    LEAVES.set(0);
    LENDS.set(0);
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
        let leaving = Leaving::begin();
        drop(Lending::begin());
        let lending = Lending::begin();
        drop(Leaving::begin());
        drop(lending);
        assert!(is_under_way());

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
        let leaving = Leaving::begin();
        drop(tell);
        assert!(LENDING.load(SeqCst) == 0 && lends.join().unwrap(), "it leaves before it knows what is lent");
        drop(leaving);
    }
}
