//! A child of vfork runs in its parent's memory, with the number of its parent's thread. If it is killed on its way to
//! another program, that memory and the channels are as it has left them, and nothing says that a thread was killed.
//! The parent's thread, which goes on then, says so of the ends that the child was inside of.

use super::look::{self, look_at_all};
use super::{Connection, inside, port};
use crate::guest::thread;
use underpass_segment::lock::Lock;
use underpass_segment::of_each_thread;

/// A thread is seldom inside of more locks than one.
const MOST: usize = 4;
/// Stands for all others where there are more.
const ALL: u32 = u32::MAX;

of_each_thread! {
    /// The locks that this thread was inside of when it last made a child of vfork (a signal handler does that), each
    /// as [`name`] says; 0: none. By [`thread::vfork_level`].
    static INSIDE: [[u32; MOST]; 2] = [[0, 0, 0, 0], [0, 0, 0, 0]];
    /// How many executions this child of vfork prepares: a signal handler may begin one on top of another.
    static PREPARES: u32 = 0;
    /// [`PREPARES`] when this thread last made a child of vfork. A killed child does not take back what it has counted.
    /// By [`thread::vfork_level`].
    static PREPARED_BEFORE: [u32; 2] = [0, 0];
    /// See [`Done`].
    static IS_DONE: bool = false;
}

/// The name of lock number `which` of [`Connection::locks`].
fn name(connection: &Connection, which: usize) -> u32 {
    1 + 2 * connection.index + which as u32
}

/// Calls `what` with the name of each lock that this thread is inside of.
fn for_each_inside(connection: &Connection, mut what: impl FnMut(u32, &Lock)) {
    let me = thread::number();
    for (which, lock) in connection.locks().into_iter().enumerate() {
        if lock.is_of(me) {
            what(name(connection, which), lock);
        }
    }
}

/// This thread is about to make a child of vfork. The child may execute a program with sockets that were not used yet,
/// and cannot enter them into the table itself.
pub fn before_vfork() {
    // The child finds this number. Its own number would stay in this thread's variables, and others would find that the
    // thread is gone.
    thread::number();
    let (mut inside, mut count) = ([0; MOST], 0);
    look_at_all(|it| {
        it.learn_cookie();
        for_each_inside(&it, |name, _| {
            inside[count.min(MOST - 1)] = if count < MOST { name } else { ALL };
            count += 1;
        });
    });
    let level = thread::vfork_level();
    let (mut insides, mut prepared) = (INSIDE.get(), PREPARED_BEFORE.get());
    (insides[level], prepared[level]) = (inside, PREPARES.get());
    INSIDE.set(insides);
    PREPARED_BEFORE.set(prepared);
}

/// The child has executed a program, or ended. If it was killed on its way, others go on with what it was in the middle
/// of.
pub fn after_vfork() {
    let level = thread::vfork_level();
    // A child of vfork that goes on, on top of which a signal handler made this one, is in the middle of what it was.
    let was_first = !thread::is_vfork_child();
    port::after_vfork();
    if was_first {
        look::after_vfork();
    }
    if !IS_DONE.get() {
        let inside = INSIDE.get()[level];
        let was_inside = |name| inside.contains(&name) || inside.contains(&ALL);
        let me = thread::number();
        look_at_all(|it| {
            for_each_inside(&it, |name, lock| {
                if !was_inside(name) {
                    lock.forsake(me);
                }
            });
            if let Some(port) = it.attached_port() {
                port.stop_giving();
            }
        });
    }
    if was_first {
        inside::after_vfork();
    }
    PREPARES.set(PREPARED_BEFORE.get()[level]);
    IS_DONE.set(false);
}

/// This child of vfork prepares an execution.
pub struct Preparing(());

impl Preparing {
    /// Begins to.
    pub fn begin() -> Preparing {
        PREPARES.set(PREPARES.get() + 1);
        Preparing(())
    }

    /// The preparation is over. `None` on top of another one, which goes on if the execution fails.
    pub fn end(self) -> Option<Done> {
        (PREPARES.get() == 1).then(|| {
            IS_DONE.set(true);
            Done(())
        })
    }
}

impl Drop for Preparing {
    fn drop(&mut self) {
        PREPARES.set(PREPARES.get().saturating_sub(1));
    }
}

/// This child of vfork executes a program, and is in the middle of nothing else. Dropped, it has failed to.
pub struct Done(());

impl Drop for Done {
    fn drop(&mut self) {
        IS_DONE.set(false);
    }
}
