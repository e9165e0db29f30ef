//! A process is forked: its child has a reference to every end that it knows, and none of its parent's other threads.

use crate::connection::{self, Counted};
use crate::guest::{family, forked, statistics, thread, turn};
use crate::watch::{epoll, poll, set};
use core::ptr::NonNull;
use libc::pid_t;
use underpass_segment::of_each_thread;
use underpass_segment::{sysv, tap};

of_each_thread! {
    /// What this thread has counted for the child that it is forking; nothing when it is not, or could not.
    static COUNTED: Option<NonNull<Counted>> = None;
}

/// `call` makes a process with a copy of this one's memory, and returns in both, or in this one alone.
pub fn forked(call: impl FnOnce() -> pid_t) -> pid_t {
    forked::check();
    connection::recognise_all();
    // The child's references are counted before it exists: the parent may close its own before the child runs. Other
    // threads are not kept out meanwhile (a handler of pthread_atfork may wait for them): the child makes good.
    let counted = Counted::for_child();
    let outer = COUNTED.replace(counted.as_ref().map(NonNull::from));
    let pid = call();
    if pid == 0 {
        forked::check();
    } else if let Some(counted) = &counted {
        counted.settle(u32::try_from(pid).ok());
    }
    COUNTED.set(outer);
    pid
}

/// What a forked child does before anything else: see [`forked::check`].
pub fn become_child() {
    thread::after_fork();
    // A child locks nothing, whatever its parent does (mlockall(2)).
    sysv::set_locking(false);
    family::after_fork();
    tap::after_fork();
    set::after_fork();
    turn::after_fork();
    // SAFETY: a value in the frame of `forked`, which this thread is inside.
    connection::settle_child(COUNTED.get().map(|it| unsafe { it.as_ref() }));
    epoll::after_fork();
    poll::after_fork();
    statistics::identify();
}
