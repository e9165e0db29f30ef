//! Reads /proc and cgroup files without allocating memory.
#![allow(unsafe_code, reason = "issues system calls with buffers of its own")]

use super::close;
use crate::raw::{Errno, syscall};

pub(super) fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Longest path that is asked for: of a cgroup.
pub(super) const LONGEST: usize = 512;

/// Calls `what` with every line of the file `path`, which ends with a NUL.
pub(super) fn for_each_line(path: core::fmt::Arguments<'_>, what: impl FnMut(&str)) -> Result<(), Errno> {
    for_each_line_of::<48, 4096>(path, if_text(what))
}

/// Calls `what` with every line of a file whose path may be longer, and whose lines are shorter: a program's thread may
/// have 16 KiB of stack in all.
pub(super) fn for_each_short_line(path: core::fmt::Arguments<'_>, what: impl FnMut(&str)) -> Result<(), Errno> {
    for_each_line_of::<LONGEST, LONGEST>(path, if_text(what))
}

/// Passes over what is not UTF-8.
fn if_text(mut what: impl FnMut(&str)) -> impl FnMut(&[u8]) {
    move |line| {
        if let Ok(line) = core::str::from_utf8(line) {
            what(line);
        }
    }
}

/// A path of at most so many octets, and lines of at most so many.
pub(super) fn for_each_line_of<const PATH: usize, const LINE: usize>(
    path: core::fmt::Arguments<'_>,
    what: impl FnMut(&[u8]),
) -> Result<(), Errno> {
    for_each_piece::<PATH, LINE>(path, b'\n', what)
}

/// Calls `what` with every piece of a file, where the pieces end with another octet than a newline.
pub(super) fn for_each_piece<const PATH: usize, const PIECE: usize>(
    path: core::fmt::Arguments<'_>,
    end: u8,
    mut what: impl FnMut(&[u8]),
) -> Result<(), Errno> {
    let file = open_by::<PATH>(path)? as usize;
    let (mut text, mut len) = ([0u8; PIECE], 0);
    loop {
        let rest = &mut text[len..];
        // SAFETY: the kernel writes at most what the buffer has left.
        let got = unsafe { syscall(libc::SYS_read, [file, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0]) };
        let Ok(got @ 1..) = got else { break };
        len += got;
        // A line that is longer than the buffer is of no use to any caller here, and comes in pieces.
        let whole = text[..len].iter().rposition(|&byte| byte == end).map_or(len / text.len() * len, |at| at + 1);
        text[..whole].split(|&byte| byte == end).for_each(&mut what);
        text.copy_within(whole..len, 0);
        len -= whole;
    }
    close(file as i32);
    Ok(())
}

/// Opens the file `path`, which ends with a NUL, to be read.
pub(super) fn open(path: core::fmt::Arguments<'_>) -> Result<i32, Errno> {
    open_by::<1024>(path)
}

fn open_by<const PATH: usize>(path: core::fmt::Arguments<'_>) -> Result<i32, Errno> {
    let mut bytes = [0u8; PATH];
    write_path(&mut bytes, path)?;
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    let arguments = [libc::AT_FDCWD as usize, bytes.as_ptr() as usize, flags, 0, 0, 0];
    // SAFETY: a NUL-terminated path.
    unsafe { syscall(libc::SYS_openat, arguments) }.map(|fd| fd as i32)
}

/// Calls `what` with the number of each entry of the folder `path`, which ends with a NUL, and the descriptor of the
/// folder itself; false when it cannot be listed. Entries whose names are no numbers are passed over.
pub(super) fn for_each_number(path: core::fmt::Arguments<'_>, mut what: impl FnMut(i32, i32)) -> bool {
    let all = |number, folder| -> Option<()> {
        what(number, folder);
        None
    };
    find_number(path, all).is_ok()
}

/// As [`for_each_number`], up to the first entry for which `what` has an answer: that answer.
///
/// # Errors
/// Why the folder cannot be listed.
pub(super) fn find_number<T>(
    path: core::fmt::Arguments<'_>,
    mut what: impl FnMut(i32, i32) -> Option<T>,
) -> Result<Option<T>, Errno> {
    const NAME: usize = 19;
    let mut bytes = [0u8; 48];
    write_path(&mut bytes, path)?;
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    let at = [libc::AT_FDCWD as usize, bytes.as_ptr() as usize, flags, 0, 0, 0];
    // SAFETY: a NUL-terminated path.
    let folder = unsafe { syscall(libc::SYS_openat, at) }?;
    // An entry has 280 octets at most; a walk may be inside of another, on a small stack.
    let mut entries = [0u8; 1024];
    let mut answer = None;
    while answer.is_none() {
        // SAFETY: the kernel writes at most the buffer's length.
        let got =
            unsafe { syscall(libc::SYS_getdents64, [folder, entries.as_mut_ptr() as usize, entries.len(), 0, 0, 0]) };
        let Ok(len @ 1..) = got else { break };
        let mut rest = &entries[..len.min(entries.len())];
        // linux_dirent64: the record's length is at 16, its NUL-terminated name at 19.
        while answer.is_none()
            && let Some(size) = rest.get(16..18).map(|it| usize::from(u16::from_ne_bytes([it[0], it[1]])))
        {
            let Some(name) = rest.get(NAME..size) else { break };
            let digits = name.split(|&byte| byte == 0).next().unwrap_or_default();
            if let Some(number) = core::str::from_utf8(digits).ok().and_then(|it| it.parse().ok()) {
                answer = what(number, folder as i32);
            }
            rest = &rest[size..];
        }
    }
    close(folder as i32);
    Ok(answer)
}

pub(super) fn write_path(mut to: &mut [u8], path: core::fmt::Arguments<'_>) -> Result<(), Errno> {
    std::io::Write::write_fmt(&mut to, path).map_err(|_| Errno(libc::ENAMETOOLONG))
}

/// What the symbolic link `path`, which ends with a NUL, names.
pub(super) fn link_target<'a>(path: core::fmt::Arguments<'_>, target: &'a mut [u8]) -> Option<&'a [u8]> {
    link_target_in(libc::AT_FDCWD, path, target)
}

/// What a symbolic link names whose path begins in the folder with this descriptor.
pub(super) fn link_target_in<'a>(
    folder: i32,
    path: core::fmt::Arguments<'_>,
    target: &'a mut [u8],
) -> Option<&'a [u8]> {
    let mut bytes = [0u8; 48];
    write_path(&mut bytes, path).ok()?;
    // SAFETY: the path is NUL-terminated; the kernel writes at most `target.len()` bytes.
    let len = unsafe {
        syscall(
            libc::SYS_readlinkat,
            [folder as usize, bytes.as_ptr() as usize, target.as_mut_ptr() as usize, target.len(), 0, 0],
        )
    };
    target.get(..len.ok()?)
}
