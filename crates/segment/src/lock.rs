//! A lock for one side of a connection: shared by the processes that share the socket, free when nobody contends,
//! passable by a signal handler of its own thread, and survived by the others when its owner is killed.
//!
//! It lies in memory that the other end of the connection does not have. What it guards is built so that a signal
//! handler may run in the middle of it (every commit is one compare-and-swap), so entering twice by one thread is fine.
#![allow(unsafe_code, reason = "asks the kernel whether a thread lives")]

use crate::clock;
use crate::raw::{Errno, is_quiet, syscall};
use crate::sync::{Acquire, AtomicU32, Relaxed, Release, pause};

/// The lock. Zeroed memory is an open one.
#[repr(C)]
pub struct Lock {
    owner: AtomicU32,
    asleep: AtomicU32,
}

/// How a lock was entered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// Nobody was inside.
    Alone,
    /// This thread was inside already (a signal handler is running on top of it).
    Nested,
    /// The owner was killed inside; what it guards may need mending.
    AfterDeath,
    /// The owner sleeps inside until something arrives, and the caller would not wait for that.
    Asleep,
}

impl Lock {
    /// Enters as thread `me` (not 0). With `impatient`, comes back with [`Entered::Asleep`] rather than wait for an
    /// owner that sleeps.
    #[inline]
    pub fn enter(&self, me: u32, impatient: bool) -> Entered {
        match self.owner.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => Entered::Alone,
            Err(owner) if owner == me => Entered::Nested,
            Err(_) => self.contend(me, impatient),
        }
    }

    /// Leaves. Only for the outermost entry.
    #[inline]
    pub fn leave(&self) {
        self.owner.store(0, Release);
    }

    /// Says whether the owner is about to sleep inside; returns what was said before.
    #[inline]
    pub fn set_asleep(&self, asleep: bool) -> bool {
        let before = self.is_asleep();
        self.asleep.store(asleep.into(), Release);
        before
    }

    /// Whether the owner sleeps inside: for one who has entered, whether it runs on top of a sleep of its own thread.
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Acquire) != 0
    }

    /// Who is inside; 0: nobody.
    pub fn owner(&self) -> u32 {
        self.owner.load(Acquire)
    }

    #[cold]
    fn contend(&self, me: u32, impatient: bool) -> Entered {
        for round in 0u32.. {
            let owner = self.owner.load(Relaxed);
            if owner == 0 && self.owner.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
                return Entered::Alone;
            }
            if impatient && owner != 0 && self.asleep.load(Acquire) != 0 {
                // Nobody who waits may ever come to find it dead.
                return if self.inherit(owner, me) { Entered::AfterDeath } else { Entered::Asleep };
            }
            match round {
                0..200 => pause(),
                200..220 => clock::give_way(),
                _ => {
                    clock::nap(50);
                    if round.is_multiple_of(64) && owner != 0 && self.inherit(owner, me) {
                        return Entered::AfterDeath;
                    }
                }
            }
        }
        Entered::Asleep
    }

    /// Takes the lock over from an owner that does not live any more.
    fn inherit(&self, owner: u32, me: u32) -> bool {
        let inherited = !alive(owner) && self.owner.compare_exchange(owner, me, Acquire, Relaxed).is_ok();
        if inherited {
            self.asleep.store(0, Relaxed);
        }
        inherited
    }
}

/// Whether thread `tid` exists and is not merely waiting to be reaped.
pub fn alive(tid: u32) -> bool {
    if is_quiet() {
        return true;
    }
    // SAFETY: signal 0 is sent to nobody.
    if unsafe { syscall(libc::SYS_tkill, [tid as usize, 0, 0, 0, 0, 0]) } == Err(Errno(libc::ESRCH)) {
        return false;
    }
    let mut path = [0u8; 32];
    let len = write_path(&mut path, tid);
    let mut stat = [0u8; 128];
    // SAFETY: the path is NUL-terminated; the buffer is writable for its length.
    let read = unsafe {
        let Ok(fd) = syscall(
            libc::SYS_openat,
            [
                libc::AT_FDCWD as usize,
                path[..len].as_ptr() as usize,
                libc::O_RDONLY as usize | libc::O_CLOEXEC as usize,
                0,
                0,
                0,
            ],
        ) else {
            return true;
        };
        let read = syscall(libc::SYS_read, [fd, stat.as_mut_ptr() as usize, stat.len(), 0, 0, 0]);
        let _ = syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        read.unwrap_or(0)
    };
    // "pid (comm) state": the state follows the last closing parenthesis; comm is at most 15 bytes.
    let text = &stat[..read.min(stat.len())];
    let state = text.iter().rposition(|&b| b == b')').and_then(|at| text.get(at + 2));
    !matches!(state, Some(b'Z' | b'X'))
}

fn write_path(path: &mut [u8; 32], tid: u32) -> usize {
    use core::fmt::Write;
    struct Fill<'a>(&'a mut [u8], usize);
    impl Write for Fill<'_> {
        fn write_str(&mut self, s: &str) -> core::fmt::Result {
            let to = self.0.get_mut(self.1..self.1 + s.len()).ok_or(core::fmt::Error)?;
            to.copy_from_slice(s.as_bytes());
            self.1 += s.len();
            Ok(())
        }
    }
    let mut fill = Fill(path, 0);
    let _ = write!(fill, "/proc/{tid}/stat\0");
    fill.1
}

#[cfg(test)]
mod tests {
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
        assert_eq!(lock.enter(dead, false), Entered::Alone);
        assert_eq!(lock.enter(dead, false), Entered::Nested);
        assert_eq!(lock.enter(std::process::id(), false), Entered::AfterDeath);
        lock.leave();
        assert_eq!(lock.enter(dead, false), Entered::Alone);
        lock.set_asleep(true);
        assert_eq!(lock.enter(std::process::id(), true), Entered::AfterDeath);
        child.wait().unwrap();
        assert!(alive(std::process::id()));
    }

    #[test]
    fn an_impatient_one_does_not_wait_for_a_sleeper() {
        let lock = Lock { owner: AtomicU32::new(0), asleep: AtomicU32::new(0) };
        assert_eq!(lock.enter(std::process::id(), false), Entered::Alone);
        lock.set_asleep(true);
        assert_eq!(lock.enter(1, true), Entered::Asleep);
        lock.leave();
        assert_eq!(lock.enter(1, true), Entered::Alone);
    }
}
