//! Descriptors of this process, whatever they are.
#![allow(unsafe_code, reason = "issues system calls with buffers of its own")]

use super::proc::{for_each_line, for_each_number, link_target};
use crate::raw::{Errno, syscall};

/// Whether `flag` (O_NONBLOCK, O_ASYNC), or one of several, is set.
pub fn has_flag(fd: i32, flag: i32) -> bool {
    // SAFETY: F_GETFL takes no argument.
    let flags = unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    flags.is_ok_and(|f| f as i32 & flag != 0)
}

/// Whether `fd` is the end of a pipe that can be written to.
pub fn is_pipe_to_write(fd: i32) -> bool {
    file_type(fd) == Some(libc::S_IFIFO) && has_flag(fd, libc::O_WRONLY | libc::O_RDWR)
}

/// What kind of file `fd` is (S_IFSOCK, ...; inode(7)), 0 being one of the kernel's own; `None` when it is not open.
fn file_type(fd: i32) -> Option<libc::mode_t> {
    status(fd, &[0], libc::AT_EMPTY_PATH).map(|status| status.st_mode & libc::S_IFMT)
}

/// What fstatat(2) says of a file. The path ends with a NUL.
pub(super) fn status(folder: i32, path: &[u8], flags: i32) -> Option<libc::stat> {
    // SAFETY: zeroed memory is a valid `stat`.
    let mut status: libc::stat = unsafe { core::mem::zeroed() };
    let arguments = [folder as usize, path.as_ptr() as usize, &raw mut status as usize, flags as usize, 0, 0];
    // SAFETY: the kernel reads the path and writes the structure.
    unsafe { syscall(libc::SYS_newfstatat, arguments) }.ok()?;
    Some(status)
}

/// What a file is, whatever name it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileIdentity {
    /// Its number in its file system.
    pub inode: u64,
    /// Bytes.
    pub size: u64,
    /// The kind of its file system (statfs(2), `f_type`).
    pub system: u64,
}

/// What `fd` is; `None` when it is not open, or the kernel does not say.
pub fn identify(fd: i32) -> Option<FileIdentity> {
    let status = status(fd, &[0], libc::AT_EMPTY_PATH)?;
    // SAFETY: zeroed memory is a valid `statfs`.
    let mut system: libc::statfs = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes the structure.
    unsafe { syscall(libc::SYS_fstatfs, [fd as usize, &raw mut system as usize, 0, 0, 0, 0]) }.ok()?;
    Some(FileIdentity { inode: status.st_ino, size: status.st_size as u64, system: system.f_type as u64 })
}

/// Whether O_NONBLOCK is set.
pub fn is_nonblocking(fd: i32) -> bool {
    has_flag(fd, libc::O_NONBLOCK)
}

/// The descriptor's own flags (FD_CLOEXEC); `None` when it is not open.
pub fn descriptor_flags(fd: i32) -> Option<i32> {
    // SAFETY: F_GETFD takes no argument.
    unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) }.ok().map(|f| f as i32)
}

/// A new descriptor that a poll always finds readable, out of the way of the program's.
pub fn always_readable() -> Option<i32> {
    let flags = (libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as usize;
    // SAFETY: no pointers.
    let fd = unsafe { syscall(libc::SYS_eventfd2, [1, flags, 0, 0, 0, 0]) }.ok()?;
    Some(moved_out_of_the_way(fd as i32))
}

/// Another descriptor of the file of `fd`, with a number that the program will hardly get, and closed in an executed
/// program.
///
/// A process has room for 64 descriptors from its beginning (NR_OPEN_DEFAULT). Where a number is beyond what there is
/// room for, the kernel makes more, and in a process of several threads waits for a grace period of RCU before it
/// returns: some 10 ms, and seconds on a busy host (expand_fdtable in fs/file.c). Few programs get as far as the last
/// of the 64.
pub fn duplicate_out_of_the_way(fd: i32) -> Option<i32> {
    const FIRST: i32 = 48;
    // Under a low limit (RLIMIT_NOFILE).
    const FIRST_AMONG_FEW: i32 = 3;
    duplicate(fd, FIRST).or_else(|| duplicate(fd, FIRST_AMONG_FEW))
}

/// Another descriptor of the file of `fd`, with a number that the program will hardly get, in place of `fd`, which is
/// closed; `fd` itself where no other number is free.
pub fn moved_out_of_the_way(fd: i32) -> i32 {
    duplicate_out_of_the_way(fd).inspect(|_| close(fd)).unwrap_or(fd)
}

/// Another descriptor of the file of `fd`, numbered from `first` on and closed in an executed program.
pub fn duplicate(fd: i32, first: i32) -> Option<i32> {
    // SAFETY: no pointers.
    let copy =
        unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_DUPFD_CLOEXEC as usize, first as usize, 0, 0, 0]) };
    copy.ok().map(|fd| fd as i32)
}

/// Makes `to` another descriptor of the file of `fd`, which an executed program inherits. Whether that succeeded.
pub fn duplicate_onto(fd: i32, to: i32) -> bool {
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_dup3, [fd as usize, to as usize, 0, 0, 0, 0]) }.is_ok()
}

/// Has an executed program inherit `fd`, or not. Whether that was possible.
pub fn set_inherited(fd: i32, inherited: bool) -> bool {
    let flags = if inherited { 0 } else { libc::FD_CLOEXEC };
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_SETFD as usize, flags as usize, 0, 0, 0]) }.is_ok()
}

/// Closes a descriptor of the library's own.
pub fn close(fd: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Calls `what` for every open descriptor of this process, as /proc/self/fd lists them; false when it does not.
pub fn for_each_descriptor(mut what: impl FnMut(i32)) -> bool {
    for_each_number(format_args!("/proc/self/fd\0"), |fd, folder| {
        if fd != folder {
            what(fd);
        }
    })
}

/// Whether `fd` is an epoll set.
pub fn is_epoll(fd: i32) -> bool {
    let mut target = [0u8; 64];
    link_target(format_args!("/proc/self/fd/{fd}\0"), &mut target) == Some(b"anon_inode:[eventpoll]")
}

/// Whether one of this process's descriptors is an io_uring.
pub fn has_io_uring() -> bool {
    let mut target = [0u8; 64];
    let mut has = false;
    for_each_descriptor(|fd| {
        // There may be thousands of sockets, and asking for a name takes five times as long as asking for a type.
        has = has
            || file_type(fd).is_some_and(|it| it != libc::S_IFSOCK)
                && link_target(format_args!("/proc/self/fd/{fd}\0"), &mut target) == Some(b"anon_inode:[io_uring]");
    });
    has
}

/// Calls `what` with descriptor, events and data of each registration in the epoll set `epfd`, as /proc tells them.
///
/// # Errors
/// Those of open(2): without /proc none is known.
pub fn for_each_registration(epfd: i32, mut what: impl FnMut(i32, u32, u64)) -> Result<(), Errno> {
    for_each_line(format_args!("/proc/self/fdinfo/{epfd}\0"), |line| {
        if let Some((fd, events, data)) = registration(line) {
            what(fd, events, data);
        }
    })
}

/// Whether anything is registered with `data` in the epoll set `epfd`, as far as /proc can be asked.
pub fn is_registered(epfd: i32, data: u64) -> bool {
    let mut found = false;
    for_each_registration(epfd, |_, _, it| found |= it == data).is_err() || found
}

/// For how many descriptors the kernel has room in the table of this process; `None` if /proc cannot be asked.
pub fn descriptor_table_size() -> Option<usize> {
    let mut size = None;
    for_each_line(format_args!("/proc/thread-self/status\0"), |line| {
        if let Some(number) = line.strip_prefix("FDSize:") {
            size = number.trim().parse().ok();
        }
    })
    .ok()?;
    size
}

/// A line like `tfd: 5 events: 19 data: 5 ...`, the last two in hexadecimal.
fn registration(line: &str) -> Option<(i32, u32, u64)> {
    let mut words = line.split_ascii_whitespace();
    let mut behind = |name: &str| words.next().filter(|&word| word == name).and_then(|_| words.next());
    let fd = behind("tfd:")?.parse().ok()?;
    let events = u32::from_str_radix(behind("events:")?, 16).ok()?;
    Some((fd, events, u64::from_str_radix(behind("data:")?, 16).ok()?))
}
