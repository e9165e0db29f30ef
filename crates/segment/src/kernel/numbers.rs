//! Numbers of processes and threads in memory that several processes have.
//!
//! These processes may be in different PID namespaces: a process forks a child into another namespace (unshare(2)), or
//! two containers share System V memory. Every namespace counts from 1. So a number carries a mark of its namespace,
//! and a number with another mark says nothing here: a thread with that number is another thread.

use super::proc::{link_target, number};
use super::process::process_id;
use crate::raw::is_quiet;
use crate::sync::{AtomicU64, Relaxed};

/// Every number is below 1 << `BITS` (PID_MAX_LIMIT).
const BITS: u32 = 22;
/// Marks are 1 to this; 0 means no mark. So every marked number is below 2^29 - 1.
const MARKS: u32 = 126;

/// This process's PID namespace by its inode number, and its mark in the upper half; 0: not asked yet.
static SPACE: AtomicU64 = AtomicU64::new(0);

/// This process, as it names itself in shared memory: see [`marked`].
pub fn marked_process_id() -> u32 {
    marked(process_id() as u32)
}

/// A number of this PID namespace, with its mark.
pub fn marked(number: u32) -> u32 {
    number | mark() << BITS
}

/// A marked number as it is in this PID namespace; `None` if it is of another namespace. A number without a mark counts
/// as of this one.
pub fn own(marked: u32) -> Option<u32> {
    let its = marked >> BITS;
    (its == 0 || its == mark()).then_some(marked & ((1 << BITS) - 1))
}

/// In a forked child, which may be in another PID namespace than its parent. No two namespaces have the same mark.
pub fn renew_mark() {
    let before = SPACE.load(Relaxed);
    if before == 0 || is_quiet() {
        return;
    }
    let mut now = ask();
    if now as u32 != before as u32 && now >> 32 == before >> 32 {
        now = u64::from((now >> 32) as u32 % MARKS + 1) << 32 | u64::from(now as u32);
    }
    SPACE.store(now, Relaxed);
}

fn mark() -> u32 {
    let known = SPACE.load(Relaxed);
    if known != 0 || is_quiet() {
        return (known >> 32) as u32;
    }
    let asked = ask();
    SPACE.store(asked, Relaxed);
    (asked >> 32) as u32
}

/// Asks /proc for the namespace. Where /proc does not say, the process counts as being in a namespace of its own.
fn ask() -> u64 {
    let mut target = [0u8; 64];
    let inode = link_target(format_args!("/proc/self/ns/pid\0"), &mut target)
        .and_then(|text| number(text.strip_prefix(b"pid:[")?.strip_suffix(b"]")?))
        .unwrap_or(0) as u32;
    u64::from(inode % MARKS + 1) << 32 | u64::from(inode)
}

#[cfg(test)]
#[allow(unsafe_code, reason = "forks a child into another namespace")]
mod tests {
    use super::*;
    use crate::kernel::thread_lives;
    use crate::lock::alive;

    #[test]
    fn a_number_is_known_again() {
        let me = process_id() as u32;
        assert_eq!((own(marked(me)), own(me), own(marked(marked(me)))), (Some(me), Some(me), Some(me)));
        assert_ne!(marked(me), me);
        let another = (marked(me) >> BITS) % MARKS + 1;
        assert_eq!(own(me | another << BITS), None);
        assert!(marked((1 << BITS) - 1) < (1 << 29) - 1);
    }

    /// What a child in a PID namespace of its own finds: whether a thread of its parent's lives, and is another than
    /// its own.
    #[test]
    fn a_thread_of_another_namespace_is_neither_dead_nor_ones_own() {
        let parent = marked_process_id();
        // SAFETY: the children of a threaded process make system calls only.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                if libc::unshare(libc::CLONE_NEWPID) != 0 {
                    libc::_exit(2);
                }
                let inner = libc::fork();
                if inner == 0 {
                    renew_mark();
                    // There is no such number, or it is another process's.
                    let as_it_is = alive(parent) && own(parent).is_none();
                    let own_lives = own(marked_process_id()).is_some_and(thread_lives);
                    let is_another = marked_process_id() != parent;
                    libc::_exit(i32::from(!(as_it_is && own_lives && is_another)));
                }
                let mut status = 0;
                libc::waitpid(inner, &raw mut status, 0);
                libc::_exit(if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { 3 });
            }
            let mut status = 0;
            libc::waitpid(child, &raw mut status, 0);
            libc::WEXITSTATUS(status)
        };
        match status {
            2 => eprintln!("SKIPPED: no PID namespace without CAP_SYS_ADMIN"),
            status => assert_eq!(status, 0),
        }
    }
}
