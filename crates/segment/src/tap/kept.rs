//! The tap that this process has attached, from one send to the next.
//!
//! No other process can make a process let go of a tap. So a process keeps a tap only while it sends: it lets go when
//! the capture is over, as its next send sees, when it ends a connection, and before it sleeps.

use super::{Name, len};
use crate::kernel::{self, Process};
use crate::sync::{AcqRel, Acquire, AtomicBool, AtomicU32, AtomicU64, Relaxed, Release};
use crate::sysv::{Attested, Mapping};

/// How often it is looked whether the capturing command lives, in nanoseconds.
const LOOK_EVERY: u64 = 100_000_000;
/// Value of [`Kept::users`] while a thread fills the others in.
const FILLING: u32 = u32::MAX;

static KEPT: Kept = Kept {
    users: AtomicU32::new(0),
    is_kept: AtomicBool::new(false),
    base: AtomicU64::new(0),
    name: AtomicU64::new(0),
    whose: AtomicU64::new(0),
    maker: AtomicU64::new(0),
    began: AtomicU64::new(0),
    looked: AtomicU64::new(0),
};

struct Kept {
    /// How many calls use it, and one more while it is kept. The call that takes away the last of these detaches it.
    users: AtomicU32,
    is_kept: AtomicBool,
    base: AtomicU64,
    name: AtomicU64,
    /// The process that has attached it, and its user.
    whose: AtomicU64,
    /// The capturing command: its number, and when it began.
    maker: AtomicU64,
    began: AtomicU64,
    /// When it was last known to live.
    looked: AtomicU64,
}

impl Kept {
    fn begin_use(&self) -> bool {
        let mut users = self.users.load(Relaxed);
        while users != 0 && users != FILLING {
            match self.users.compare_exchange(users, users + 1, Acquire, Relaxed) {
                Ok(_) => return true,
                Err(now) => users = now,
            }
        }
        false
    }

    fn end_use(&self) {
        let mapping = self.mapping();
        if self.users.fetch_sub(1, AcqRel) == 1
            && let Some(mapping) = mapping
        {
            // SAFETY: nobody uses it, and from 0 users on nobody comes in.
            unsafe { mapping.detach() };
        }
    }

    fn mapping(&self) -> Option<Mapping> {
        let name = Name::of(self.name.load(Relaxed))?;
        Mapping::again(self.base.load(Relaxed) as *mut u8, len(name.order), name.id)
    }

    fn is_maker_alive(&self) -> bool {
        let maker = self.maker.load(Relaxed) as u32;
        kernel::process(maker) == Process::Began(self.began.load(Relaxed))
    }
}

/// A call's use of what is kept, which stays attached as long as this lives.
#[derive(Debug)]
pub(super) struct Use(());

impl Drop for Use {
    fn drop(&mut self) {
        KEPT.end_use();
    }
}

fn whose(uid: u32) -> u64 {
    u64::from(kernel::process_id() as u32) << 32 | u64::from(uid)
}

/// The tap of this name, if it is kept; `Err`: the command that made it is gone.
pub(super) fn find(name: Name, uid: u32, now: u64) -> Result<Option<(Mapping, Use)>, ()> {
    if !KEPT.begin_use() {
        return Ok(None);
    }
    let used = Use(());
    // A child of vfork has its parent's memory, so it may find a tap that is not its own.
    if KEPT.whose.load(Relaxed) != whose(uid) {
        return Ok(None);
    }
    if KEPT.name.load(Relaxed) != name.word() {
        let_go();
        return Ok(None);
    }
    if now.wrapping_sub(KEPT.looked.load(Relaxed)) > LOOK_EVERY {
        KEPT.looked.store(now, Relaxed);
        if !KEPT.is_maker_alive() {
            let_go();
            return Err(());
        }
    }
    Ok(KEPT.mapping().map(|mapping| (mapping, used)))
}

/// Keeps the tap that thread `me` has just attached, if none is kept, and if the end of its maker can be noticed.
/// `Err`: the maker has ended.
pub(super) fn keep(name: Name, (uid, me): (u32, u32), now: u64, it: (Mapping, Attested)) -> Result<Option<Use>, ()> {
    let (mapping, maker) = (it.0, it.1.creator as u32);
    let began = match kernel::process(maker) {
        Process::Began(when) => when,
        Process::Gone => return Err(()),
        Process::Unknown => return Ok(None),
    };
    // In a child of vfork the thread's number is its parent's, and the parent would never let go of the child's tap.
    let is_own = kernel::own(me).is_some_and(kernel::is_thread_of_this_process);
    if !is_own || KEPT.users.compare_exchange(0, FILLING, Acquire, Relaxed).is_err() {
        return Ok(None);
    }
    KEPT.base.store(mapping.base().as_ptr() as u64, Relaxed);
    KEPT.name.store(name.word(), Relaxed);
    KEPT.whose.store(whose(uid), Relaxed);
    KEPT.maker.store(maker.into(), Relaxed);
    KEPT.began.store(began, Relaxed);
    KEPT.looked.store(now, Relaxed);
    KEPT.users.store(2, Release);
    KEPT.is_kept.store(true, Release);
    Ok(Some(Use(())))
}

/// Lets go of what is kept, as soon as the calls that use it are over.
#[inline]
pub fn let_go() {
    if KEPT.is_kept.load(Relaxed) {
        let_go_of_kept();
    }
}

#[cold]
fn let_go_of_kept() {
    let is_mine = (KEPT.whose.load(Relaxed) >> 32) as i32 == kernel::process_id();
    if is_mine && KEPT.is_kept.swap(false, AcqRel) {
        KEPT.end_use();
    }
}

/// In a forked child, which has none of it.
pub(super) fn after_fork() {
    KEPT.is_kept.store(false, Relaxed);
    if !matches!(KEPT.users.swap(0, Relaxed), 0 | FILLING) {
        KEPT.mapping().into_iter().for_each(Mapping::forget);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::ALONE;
    use super::super::{Tap, Writer};
    use super::*;
    use crate::kernel::{has_segment, process_id, thread_id, user_id};
    use crate::raw::syscall;

    fn open(name: Name) -> Writer {
        Writer::open(name, user_id(), thread_id()).unwrap()
    }

    fn has(id: i32) -> bool {
        has_segment(process_id(), id).unwrap()
    }

    /// A tap, its maker and another child, which both live until they are killed, and a pipe that they have.
    fn made_and_shared() -> (Name, [i32; 2], [i32; 2]) {
        let (mut end, mut pids) = ([0; 2], [0; 2]);
        // SAFETY: two descriptors are written, and the child calls nothing that needs other threads.
        let name = unsafe {
            assert_eq!(libc::pipe(end.as_mut_ptr()), 0);
            for (pid, is_maker) in pids.iter_mut().zip([true, false]) {
                *pid = libc::fork();
                if *pid == 0 {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    if is_maker {
                        let tap = Tap::create(1).unwrap();
                        let word = tap.name().word();
                        libc::write(end[1], (&raw const word).cast(), 8);
                        core::mem::forget(tap);
                    }
                    libc::pause();
                    libc::_exit(0);
                }
            }
            let mut word = 0u64;
            assert_eq!(libc::read(end[0], (&raw mut word).cast(), 8), 8);
            Name::of(word).unwrap()
        };
        (name, pids, end)
    }

    // The process keeps one tap for all its threads, so all of this is one test.
    #[test]
    fn it_is_kept_until_it_is_let_go_of_or_its_maker_is_gone() {
        let _alone = ALONE.lock();
        let_go();
        let (name, pids, end) = made_and_shared();
        assert!(!has(name.id));
        let kill = |pid| {
            // SAFETY: a child of this test's own.
            let ended = unsafe { libc::kill(pid, libc::SIGKILL) == 0 && libc::waitpid(pid, &mut 0, 0) == pid };
            assert!(ended);
        };
        // One call keeps it for the next, and a call that lasts keeps it while it is let go of.
        drop(open(name));
        assert!(has(name.id) && KEPT.users.load(Relaxed) == 1);
        let lasting = open(name);
        assert_eq!(KEPT.users.load(Relaxed), 2, "no other was attached");
        let_go();
        assert!(has(name.id) && KEPT.users.load(Relaxed) == 1);
        drop(lasting);
        assert!(!has(name.id) && KEPT.users.load(Relaxed) == 0);

        // A forked child has nothing of it, and makes its own beginning.
        drop(open(name));
        // SAFETY: the child makes system calls alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let before = has(name.id);
            after_fork();
            drop(Writer::open(name, user_id(), thread_id()));
            let code = i32::from(before) | i32::from(!has(name.id)) << 1;
            // SAFETY: as above.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: writes an int.
        assert_eq!(unsafe { (libc::waitpid(child, &mut status, 0), status) }, (child, 0));
        assert!(has(name.id));

        // A child of vfork has its parent's memory, not its thread: what it attaches goes with the call. This one is
        // neither, and the slot is another process's.
        KEPT.whose.store(1 << 32, Relaxed);
        drop(open(name));
        let_go();
        assert_eq!(KEPT.users.load(Relaxed), 1);
        KEPT.whose.store(whose(user_id()), Relaxed);
        let_go();
        assert!(!has(name.id));
        drop(Writer::open(name, user_id(), 1).unwrap());
        assert!(!has(name.id), "kept for a thread of another process");

        // The maker is killed: at the first send behind the time of a look.
        drop(open(name));
        kill(pids[0]);
        assert!(!name.is_there(user_id()));
        KEPT.looked.store(0, Relaxed);
        assert!(matches!(Writer::open(name, user_id(), thread_id()), Err(None)));
        assert!(!has(name.id));
        kill(pids[1]);
        // SAFETY: no pointers; the numbers are this test's.
        let _ = unsafe { end.map(|fd| syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0])) };
    }
}
