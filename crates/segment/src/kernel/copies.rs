//! A copy of the socket at the other end of a connection: a process that may trace another may copy its descriptors
//! (pidfd_getfd(2), Linux 5.6).
//!
//! /proc tells which process has the socket. A hand-over may ask for thousands of sockets, most of them of the same few
//! processes. So the first few are searched for one by one, and the others in a list that one walk through /proc has
//! made. The list may be out of date, so a copy is checked by the socket's cookie, and a socket that is not found is
//! looked up in a new list. If new lists did not help for a while, a list has to be a little older before the next one
//! is made.
#![allow(unsafe_code, reason = "issues system calls; keeps a list in memory of its own")]

use super::diag::{descriptor_of, inode_of, peer};
use super::proc::{find_number, for_each_number, link_target};
use crate::clock::nanoseconds;
use crate::raw::{Errno, syscall};
use crate::sync::{AcqRel, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Relaxed};
use core::ptr::NonNull;

/// Sockets that are searched for one by one within [`WHILE_NS`].
const FEW: u32 = 4;
const WHILE_NS: u64 = 1_000_000_000;
/// After this many lists in a row that did not help, the next ones would not either: all sockets may be another user's.
const MOST_IN_VAIN: u32 = 16;
/// A list is young for this long, and for a multiple of the time that it took to make it.
const YOUNG_NS: u64 = 10_000_000;
const YOUNG_TIMES: u64 = 4;

/// A descriptor of the socket at the other end of the connection of `fd`, if the kernel lets this process have one.
/// `None` for a process of another PID namespace, where a thread's number does not tell whether the thread lives.
pub fn copy_of_peer(fd: i32) -> Option<i32> {
    // A socket without an inode number was closed by all its processes.
    let peer = peer(fd).ok().filter(|it| it.inode != 0)?;
    if !are_few()
        && let Some(mut list) = Holders::last().or_else(Holders::list)
    {
        let copy = list.copy(peer.inode, peer.cookie);
        list.keep();
        return copy;
    }
    search(peer.inode, peer.cookie)
}

/// Whether so few sockets were asked for in the last second that each is worth a search.
fn are_few() -> bool {
    static SINCE: AtomicU64 = AtomicU64::new(0);
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let now = nanoseconds();
    if now.saturating_sub(SINCE.load(Relaxed)) > WHILE_NS {
        SINCE.store(now, Relaxed);
        COUNT.store(0, Relaxed);
    }
    COUNT.fetch_add(1, Relaxed) < FEW
}

/// Looks for the socket in one process after the other.
fn search(inode: u32, cookie: u64) -> Option<i32> {
    /// The process that had the last one: it may have the next one as well.
    static LAST: AtomicI32 = AtomicI32::new(0);
    let copy_of = |pid| {
        let number = descriptor_of(pid, inode.into())?;
        Holder { inode, pid, number }.copy(cookie).ok().inspect(|_| LAST.store(pid, Relaxed))
    };
    let last = LAST.load(Relaxed);
    let copy = if last == 0 { None } else { copy_of(last) };
    copy.or_else(|| find_number(format_args!("/proc\0"), |pid, _| copy_of(pid)).ok()?)
}

/// A process that has a socket, and under which number.
#[derive(Clone, Copy)]
struct Holder {
    inode: u32,
    pid: i32,
    number: i32,
}

/// Why there is no copy.
enum NoCopy {
    /// The process may not be asked.
    Refused,
    /// The process is gone, or has something else there; or this one has no descriptor free.
    Gone,
}

impl Holder {
    /// A copy of the socket, if it has this cookie, which programs that are executed do not inherit.
    fn copy(&self, cookie: u64) -> Result<i32, NoCopy> {
        if !shares_pid_namespace(self.pid) {
            return Err(NoCopy::Refused);
        }
        // SAFETY: no pointers.
        let process = unsafe { syscall(libc::SYS_pidfd_open, [self.pid as usize, 0, 0, 0, 0, 0]) }.map_err(why)?;
        // SAFETY: no pointers.
        let copy = unsafe { syscall(libc::SYS_pidfd_getfd, [process, self.number as usize, 0, 0, 0, 0]) };
        super::close(process as i32);
        let copy = copy.map_err(why)? as i32;
        if super::cookie(copy) == Ok(cookie) {
            return Ok(copy);
        }
        super::close(copy);
        Err(NoCopy::Gone)
    }
}

fn why(error: Errno) -> NoCopy {
    match error.0 {
        libc::EPERM | libc::EACCES | libc::ENOSYS => NoCopy::Refused,
        _ => NoCopy::Gone,
    }
}

/// Whether process `pid` is in this process's PID namespace, as far as this one may know.
fn shares_pid_namespace(pid: i32) -> bool {
    let [mut mine, mut others] = [[0u8; 64]; 2];
    let mine = link_target(format_args!("/proc/self/ns/pid\0"), &mut mine);
    mine.is_some() && mine == link_target(format_args!("/proc/{pid}/ns/pid\0"), &mut others)
}

/// Which processes have which sockets, as /proc has told, by inode number. It lies in memory of its own, behind the
/// [`Head`].
struct Holders(NonNull<Head>);

struct Head {
    /// How many entries there is room for.
    room: usize,
    count: usize,
    /// When the list was made (CLOCK_MONOTONIC, ns), and how long that took.
    made: u64,
    took: u64,
    /// How many lists in a row did not help.
    in_vain: u32,
}

/// The last list, while no thread uses it. A thread that does not come back keeps it.
static LAST: AtomicPtr<Head> = AtomicPtr::new(core::ptr::null_mut());

/// Drops the list of which process has which sockets.
pub fn forget_holders() {
    drop(Holders::last());
}

impl Holders {
    const PAGE: usize = 4096;

    /// The last list, which is this thread's from now on.
    fn last() -> Option<Holders> {
        NonNull::new(LAST.swap(core::ptr::null_mut(), AcqRel)).map(Holders)
    }

    /// Keeps this list for the next thread.
    fn keep(self) {
        let list = LAST.swap(self.0.as_ptr(), AcqRel);
        core::mem::forget(self);
        drop(NonNull::new(list).map(Holders));
    }

    /// A new list; `None` without address space.
    fn list() -> Option<Holders> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let arguments = [0, Self::PAGE, protection as usize, kind as usize, usize::MAX, 0];
        // SAFETY: a private anonymous mapping of this list's own.
        let at = unsafe { syscall(libc::SYS_mmap, arguments) }.ok()?;
        let mut list = Holders(NonNull::new(at as *mut Head)?);
        // SAFETY: the mapping begins at a page, and is larger than this.
        unsafe { list.0.write(Head { room: Self::room_of(Self::PAGE), count: 0, made: 0, took: 0, in_vain: 0 }) };
        list.list_anew();
        Some(list)
    }

    fn list_anew(&mut self) {
        let begin = nanoseconds();
        self.head().count = 0;
        for_each_number(format_args!("/proc\0"), |pid, _| {
            for_each_number(format_args!("/proc/{pid}/fd\0"), |number, folder| {
                if let Some(inode) = inode_of(folder, number).and_then(|it| u32::try_from(it).ok()) {
                    self.push(Holder { inode, pid, number });
                }
            });
        });
        self.all().sort_unstable_by_key(|it| (it.inode, it.pid));
        let made = nanoseconds();
        let head = self.head();
        (head.made, head.took) = (made, made.saturating_sub(begin));
    }

    /// Whether a new list would find no more than this one.
    fn is_good(&mut self) -> bool {
        let &mut Head { made, took, in_vain, .. } = self.head();
        in_vain >= MOST_IN_VAIN && nanoseconds().saturating_sub(made) < YOUNG_NS + YOUNG_TIMES * took
    }

    /// A copy of the socket, by this list or a new one.
    fn copy(&mut self, inode: u32, cookie: u64) -> Option<i32> {
        let mut copy = self.copy_listed(inode, cookie);
        if copy.is_none() && !self.is_good() {
            self.list_anew();
            copy = self.copy_listed(inode, cookie);
            let in_vain = &mut self.head().in_vain;
            *in_vain = if copy.is_some() { 0 } else { *in_vain + 1 };
        }
        copy
    }

    fn copy_listed(&mut self, inode: u32, cookie: u64) -> Option<i32> {
        let mut at = self.all().partition_point(|it| it.inode < inode);
        while let Some(holder) = self.all().get(at).copied().filter(|it| it.inode == inode) {
            match holder.copy(cookie) {
                Ok(copy) => return Some(copy),
                Err(NoCopy::Gone) => at += 1,
                Err(NoCopy::Refused) => {
                    self.remove(holder.pid);
                    at = self.all().partition_point(|it| (it.inode, it.pid) < (inode, holder.pid));
                }
            }
        }
        None
    }

    /// Removes a process, which is not asked again.
    fn remove(&mut self, pid: i32) {
        let all = self.all();
        let mut kept = 0;
        for at in 0..all.len() {
            if all[at].pid != pid {
                all.swap(kept, at);
                kept += 1;
            }
        }
        self.head().count = kept;
    }

    fn head(&mut self) -> &mut Head {
        // SAFETY: written when it was made, and this list's alone.
        unsafe { self.0.as_mut() }
    }

    fn room_of(bytes: usize) -> usize {
        (bytes - size_of::<Head>()) / size_of::<Holder>()
    }

    fn bytes(&mut self) -> usize {
        (size_of::<Head>() + self.head().room * size_of::<Holder>()).next_multiple_of(Self::PAGE)
    }

    fn all(&mut self) -> &mut [Holder] {
        let count = self.head().count;
        // SAFETY: so many were written, behind the head, which is aligned to more.
        unsafe { core::slice::from_raw_parts_mut(self.0.add(1).cast().as_ptr(), count) }
    }

    /// Adds one; without address space it is left out.
    fn push(&mut self, holder: Holder) {
        let &mut Head { count, room, .. } = self.head();
        if count == room && !self.grow() {
            return;
        }
        // SAFETY: there is room for it.
        unsafe { self.0.add(1).cast::<Holder>().add(count).write(holder) };
        self.head().count = count + 1;
    }

    fn grow(&mut self) -> bool {
        let (old, new) = (self.bytes(), self.bytes() * 2);
        let arguments = [self.0.as_ptr() as usize, old, new, libc::MREMAP_MAYMOVE as usize, 0, 0];
        // SAFETY: the mapping is this list's own, and nothing refers to it.
        let Ok(at) = (unsafe { syscall(libc::SYS_mremap, arguments) }) else { return false };
        let Some(at) = NonNull::new(at as *mut Head) else { return false };
        self.0 = at;
        self.head().room = Self::room_of(new);
        true
    }
}

impl Drop for Holders {
    fn drop(&mut self) {
        let bytes = self.bytes();
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { syscall(libc::SYS_munmap, [self.0.as_ptr() as usize, bytes, 0, 0, 0, 0]) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::cookie;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn assert_copied(copy: Option<i32>, socket: &TcpStream) {
        let copy = copy.expect("a copy");
        // SAFETY: it was made just now.
        let _closed = unsafe { OwnedFd::from_raw_fd(copy) };
        assert_ne!(copy, socket.as_raw_fd());
        assert_eq!(cookie(copy), cookie(socket.as_raw_fd()));
    }

    fn copy_by(list: &mut Holders, (end, other): &(TcpStream, TcpStream)) -> Option<i32> {
        let peer = peer(end.as_raw_fd()).unwrap();
        assert_eq!(Ok(peer.cookie), cookie(other.as_raw_fd()));
        list.copy(peer.inode, peer.cookie)
    }

    #[test]
    fn a_socket_is_copied_however_many_were_before() {
        let (client, server) = pair();
        for _ in 0..3 * FEW {
            assert_copied(copy_of_peer(client.as_raw_fd()), &server);
        }
        forget_holders();
        assert_copied(copy_of_peer(server.as_raw_fd()), &client);
    }

    /// 500 need more than a page.
    #[test]
    fn one_walk_finds_all_sockets() {
        let pairs: Vec<_> = (0..500).map(|_| pair()).collect();
        let mut list = Holders::list().unwrap();
        let (made, count) = (list.head().made, list.head().count);
        assert!(count >= 2 * pairs.len());
        for (client, server) in pairs {
            let pair = (client, server);
            assert_copied(copy_by(&mut list, &pair), &pair.1);
        }
        assert_eq!((list.head().made, list.head().count), (made, count));
    }

    /// Says that a new list would find no more.
    fn is_good(list: &mut Holders) {
        let head = list.head();
        (head.made, head.in_vain) = (u64::MAX, MOST_IN_VAIN);
    }

    #[test]
    fn what_a_list_does_not_have_yet_a_new_one_has() {
        let before = pair();
        let mut list = Holders::list().unwrap();
        let (one, another) = (pair(), pair());
        assert_copied(copy_by(&mut list, &one), &one.1);
        assert_copied(copy_by(&mut list, &before), &before.1);
        assert_copied(copy_by(&mut list, &another), &another.1);
    }

    #[test]
    fn no_list_is_made_in_vain_again_and_again() {
        let mut list = Holders::list().unwrap();
        for count in 1..=MOST_IN_VAIN {
            assert!(list.copy(0, 0).is_none());
            assert_eq!(list.head().in_vain, count);
        }
        list.head().made = u64::MAX;
        assert!(list.copy(0, 0).is_none());
        assert_eq!(list.head().made, u64::MAX);
        list.head().made = 0;
        let pair = pair();
        assert_copied(copy_by(&mut list, &pair), &pair.1);
        assert_eq!(list.head().in_vain, 0);
    }

    /// The descriptor that the list names was closed, and its number given to another socket.
    #[test]
    fn another_socket_is_not_taken_for_the_one_that_is_listed() {
        let before = pair();
        let mut list = Holders::list().unwrap();
        is_good(&mut list);
        let peer = peer(before.0.as_raw_fd()).unwrap();
        let moved = before.1.try_clone().unwrap();
        let (other, _others) = pair();
        // SAFETY: both are open.
        assert!(unsafe { libc::dup2(other.as_raw_fd(), before.1.as_raw_fd()) } >= 0);
        assert!(list.copy(peer.inode, peer.cookie).is_none());
        list.head().in_vain = 0;
        assert_copied(list.copy(peer.inode, peer.cookie), &moved);
    }

    #[test]
    fn a_process_that_refuses_is_not_asked_again() {
        let (one, another) = (pair(), pair());
        let mut list = Holders::list().unwrap();
        let me = crate::kernel::process_id();
        let others = list.all().iter().filter(|it| it.pid != me).count();
        list.remove(me);
        assert_eq!(list.all().len(), others);
        assert!(list.all().is_sorted_by_key(|it| it.inode));
        is_good(&mut list);
        assert!(copy_by(&mut list, &one).is_none() && copy_by(&mut list, &another).is_none());
    }
}
