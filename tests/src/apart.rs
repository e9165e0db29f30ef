//! Namespaces for one test alone.
#![allow(unsafe_code, reason = "moves a thread into namespaces of its own")]

use crate::stage::skip;

/// Runs `test` in new namespaces (CLONE_NEW… of unshare(2)), in which the programs that it starts are too. Skipped
/// without the privilege.
pub fn apart(namespaces: i32, test: impl FnOnce() + Send) {
    let run = || {
        // SAFETY: no pointers. Namespaces, and the folder that CLONE_NEWNS unshares with them, are this thread's own.
        if unsafe { libc::unshare(namespaces) } != 0 {
            return skip(&format!("no namespaces of our own: {}", std::io::Error::last_os_error()));
        }
        test();
    };
    std::thread::scope(|scope| {
        if let Err(panic) = scope.spawn(run).join() {
            std::panic::resume_unwind(panic);
        }
    });
}
