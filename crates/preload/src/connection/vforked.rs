//! A child of vfork runs in its parent's memory, with the number of its parent's thread. If it is killed on its way to
//! another program, that memory and the channels are as it has left them, and nothing says that a thread was killed.
//! The parent's thread, which goes on then, says so of the ends that the child was inside of.

use super::look::{self, look_at_all};
use super::port;
use crate::guest::thread;
use underpass_segment::of_each_thread;

of_each_thread! {
    /// This thread was inside the lock of an end when it last made a child of vfork: a signal handler does that.
    static WAS_INSIDE: bool = false;
    /// See [`Done`].
    static IS_DONE: bool = false;
}

/// This thread is about to make a child of vfork. The child may execute a program with sockets that were not used yet,
/// and cannot enter them into the table itself.
pub fn before_vfork() {
    // The child finds this number. Its own number would stay in this thread's variables, and others would find that the
    // thread is gone.
    let me = thread::number();
    let mut is_inside = false;
    look_at_all(|it| {
        it.learn_cookie();
        is_inside |= it.locks().iter().any(|lock| lock.is_of(me));
    });
    WAS_INSIDE.set(is_inside);
}

/// The child has executed a program, or ended. If it was killed on its way, others go on with what it was in the middle
/// of.
pub fn after_vfork() {
    look::after_vfork();
    port::after_vfork();
    if !IS_DONE.get() && !WAS_INSIDE.get() {
        let me = thread::number();
        look_at_all(|it| {
            it.locks().iter().filter(|lock| lock.is_of(me)).for_each(|lock| lock.forsake(me));
            if let Some(port) = it.attached_port() {
                port.stop_giving();
            }
        });
    }
    IS_DONE.set(false);
}

/// This child of vfork executes a program, or ends, and is in the middle of nothing. Dropped, it has failed to.
pub struct Done(());

impl Done {
    /// Says so.
    pub fn note() -> Done {
        IS_DONE.set(true);
        Done(())
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        IS_DONE.set(false);
    }
}
