//! The machine code that this process has mapped.
//!
//! The dynamic loader has a list of it (dl_iterate_phdr(3)), behind a lock. A process that is forked while another
//! thread of its parent has that lock never gets the lock, so the library does not use this list. The kernel's list
//! needs no lock.
#![allow(unsafe_code, reason = "issues a system call with a buffer of its own")]

use super::close;
use super::descriptor::status;
use super::proc::{for_each_line_of, open};
use crate::layout::{START, fold};
use crate::raw::{Errno, syscall};

/// Longest line of the list of mappings, in bytes. A path that makes it longer is cut off, so its file is not found.
const LONGEST_LINE: usize = 1024;

/// A part of a file that is mapped to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code<'a> {
    /// Where it begins.
    pub begin: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Where it begins in the file.
    offset: u64,
    /// Device (major, minor) and inode of the file.
    file: (u64, u64, u64),
    /// The file's path, perhaps with " (deleted)" behind it; cut off where it is very long or no UTF-8.
    pub path: &'a str,
}

/// Calls `what` with all code of this process that comes from files, in the order of addresses, as /proc/self/maps
/// lists it.
///
/// # Errors
/// Those of open(2).
pub fn for_each_code(mut what: impl FnMut(Code<'_>)) -> Result<(), Errno> {
    // A program's thread may have 16 KiB of stack in all.
    for_each_line_of::<24, LONGEST_LINE>(format_args!("/proc/self/maps\0"), |line| {
        if let Some(code) = code(text(line)) {
            what(code);
        }
    })
}

/// The line up to what is not UTF-8: a path may be anything, and what comes before it is never that.
fn text(line: &[u8]) -> &str {
    let valid = core::str::from_utf8(line).map_or_else(|error| error.valid_up_to(), str::len);
    core::str::from_utf8(&line[..valid]).unwrap_or_default()
}

/// A line like `7f04c045e000-7f04c05b3000 r-xp 00026000 fe:00 2105    /usr/lib/x86_64-linux-gnu/libc.so.6`, if it is
/// of code.
fn code(line: &str) -> Option<Code<'_>> {
    let mut words = line.splitn(6, ' ');
    let (begin, end) = words.next()?.split_once('-')?;
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let begin = hexadecimal(begin)?;
    let len = hexadecimal(end)?.checked_sub(begin)?;
    let is_code = words.next()?.as_bytes().get(2) == Some(&b'x');
    let offset = hexadecimal(words.next()?)?;
    let (major, minor) = words.next()?.split_once(':')?;
    let file = (hexadecimal(major)?, hexadecimal(minor)?, words.next()?.parse().ok()?);
    let path = words.next()?.trim_start();
    (is_code && path.starts_with('/')).then_some(Code { begin, len, offset, file, path })
}

impl Code<'_> {
    /// A number other than 0 that tells this code from any other on this host, and from what the file had before it was
    /// changed; `None` where the file is not at its path any more.
    pub fn mark(&self) -> Option<u64> {
        let mut path = [0; LONGEST_LINE];
        path.get_mut(..self.path.len())?.copy_from_slice(self.path.as_bytes());
        let status = status(libc::AT_FDCWD, &path, 0)?;
        let changed = [status.st_size, status.st_mtime, status.st_mtime_nsec, status.st_ctime, status.st_ctime_nsec];
        let (major, minor, inode) = self.file;
        let place = [major, minor, inode, self.offset, self.len];
        let mark = place.into_iter().chain(changed.map(|it| it as u64)).fold(START, fold).max(1);
        (file(&status) == self.file).then_some(mark)
    }

    /// Opens the code to be read: the file, or if that fails, this process's memory as the kernel shows it. Neither
    /// faults if another thread unmaps the code meanwhile. Reading the file is several times as fast, and makes no page
    /// resident.
    ///
    /// # Errors
    /// Those of open(2).
    pub fn open(&self) -> Result<OpenCode, Errno> {
        if let Ok(fd) = open(format_args!("{}\0", self.path)) {
            let code = OpenCode { fd, offset: self.offset };
            if status(code.fd, &[0], libc::AT_EMPTY_PATH).is_some_and(|it| file(&it) == self.file) {
                return Ok(code);
            }
        }
        Ok(OpenCode { fd: open(format_args!("/proc/self/mem\0"))?, offset: self.begin })
    }
}

/// Code that is read: see [`Code::open`].
pub struct OpenCode {
    fd: i32,
    /// Where it begins in what is open.
    offset: u64,
}

impl OpenCode {
    /// Fills `to` with the code from its byte `from` on; `None` if not all of it can be read. Behind the end of a file
    /// its last page has zeros.
    pub fn read(&self, from: u64, to: &mut [u8]) -> Option<()> {
        const PAGE: usize = 4096;
        let from = (self.offset + from) as usize;
        let mut done = 0;
        while done < to.len() {
            let rest = &mut to[done..];
            let arguments = [self.fd as usize, rest.as_mut_ptr() as usize, rest.len(), from + done, 0, 0];
            // SAFETY: the kernel writes at most what is left of the buffer.
            match unsafe { syscall(libc::SYS_pread64, arguments) } {
                Ok(got @ 1..) => done += got,
                Ok(_) if rest.len() < PAGE && !(from + done).is_multiple_of(PAGE) => {
                    rest.fill(0);
                    return Some(());
                }
                _ => return None,
            }
        }
        Some(())
    }
}

/// Which file that is, as [`Code::file`] has it.
fn file(status: &libc::stat) -> (u64, u64, u64) {
    (libc::major(status.st_dev).into(), libc::minor(status.st_dev).into(), status.st_ino)
}

impl Drop for OpenCode {
    fn drop(&mut self) {
        close(self.fd);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn own_code_is_listed_and_read() {
        let here = own_code_is_listed_and_read as *const u8;
        // SAFETY: the code of this function and of what follows it in this file's text.
        let expected = unsafe { *here.cast::<[u8; 64]>() };
        let mut found = 0;
        for_each_code(|code| {
            let Some(at) = (here as u64).checked_sub(code.begin).filter(|&at| at < code.len) else { return };
            found += 1;
            let read = |code: &Code<'_>| {
                let code = code.open().unwrap();
                let mut read = [0; 64];
                assert_eq!(code.read(1 << 40, &mut read), None, "there is no such code");
                code.read(at, &mut read).map(|()| (code.offset, read))
            };
            assert_eq!(read(&code), Some((code.offset, expected)), "by its file");
            for other in ["/none", "/", "/proc/self/mem"] {
                assert_eq!(read(&Code { path: other, ..code }), Some((code.begin, expected)), "by the memory: {other}");
            }
        })
        .unwrap();
        assert_eq!(found, 1);
    }

    /// Code of a file that ends within a page, in a folder whose name is not UTF-8; the file may also be gone.
    #[test]
    fn code_at_the_end_of_a_file_of_any_name_is_read() {
        const BYTES: usize = 5000;
        let map = |file: &fs::File| {
            let [how, kind] = [libc::PROT_READ | libc::PROT_EXEC, libc::MAP_PRIVATE].map(|it| it as usize);
            // SAFETY: a mapping of our own.
            unsafe { syscall(libc::SYS_mmap, [0, BYTES, how, kind, file.as_raw_fd() as usize, 0]) }.unwrap() as u64
        };
        let folder = std::env::temp_dir().join(format!("underpass-code-{}", super::super::process_id()));
        for (name, removed) in [(b"plain".as_slice(), false), (b"m\xf6gen", false), (b"gone", true)] {
            let path = folder.join(OsStr::from_bytes(name)).join("code");
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, [0x90; BYTES]).unwrap();
            let file = fs::File::open(&path).unwrap();
            let begin = map(&file);
            if removed {
                fs::remove_file(&path).unwrap();
            }
            let mut pages = [1; 8192];
            let mut found = 0;
            for_each_code(|code| {
                if code.begin == begin {
                    found += 1;
                    assert_eq!(code.open().unwrap().read(0, &mut pages), Some(()), "{name:?}");
                }
            })
            .unwrap();
            assert_eq!(found, 1, "{name:?}");
            assert!(pages[..BYTES].iter().all(|&it| it == 0x90) && pages[BYTES..].iter().all(|&it| it == 0));
        }
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_mark_is_of_one_piece_of_one_file_as_it_is() {
        let folder = std::env::temp_dir().join(format!("underpass-mark-{}", super::super::process_id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("code");
        let path = path.to_str().unwrap();
        fs::write(path, [0x90; 8192]).unwrap();
        let code = Code {
            begin: 0x1000,
            len: 4096,
            offset: 0,
            file: file(&status(libc::AT_FDCWD, &name(path), 0).unwrap()),
            path,
        };
        let first = code.mark();
        assert!(first.is_some_and(|it| it != 0));
        assert_eq!(Code { begin: 0x7000, ..code }.mark(), first, "wherever it is mapped");
        assert_ne!(Code { offset: 4096, ..code }.mark(), first);
        assert_ne!(Code { len: 8192, ..code }.mark(), first);
        assert_eq!(Code { path: "/none", ..code }.mark(), None);
        assert_eq!(Code { path: "/", ..code }.mark(), None, "another file");
        fs::write(path, [0x91; 8191]).unwrap();
        assert!(code.mark().is_some_and(|it| Some(it) != first), "it was changed");
        fs::remove_dir_all(folder).unwrap();
    }

    fn name(path: &str) -> Vec<u8> {
        [path.as_bytes(), &[0]].concat()
    }

    #[test]
    fn only_code_of_files_counts() {
        let line = |rest| format!("7f04c045e000-7f04c045f000 {rest}");
        let path = |rest| code(&line(rest)).map(|it| it.path.to_owned());
        let whole = line("r-xp 00026000 fe:01 2105        /usr/lib/a b.so (deleted)");
        let (begin, file) = (0x7f04_c045_e000, (0xfe, 1, 2105));
        let expected = Code { begin, len: 4096, offset: 0x26000, file, path: "/usr/lib/a b.so (deleted)" };
        assert_eq!(code(&whole), Some(expected));
        assert_eq!(path("--xs 00000000 00:01 9 /memfd:x").as_deref(), Some("/memfd:x"));
        for other in ["r--p 00026000 fe:00 2105 /usr/lib/a.so", "rwxp 00000000 00:00 0", "r-xp 0 00:00 0  [vdso]", ""] {
            assert_eq!(path(other), None, "{other}");
        }
        for broken in ["", "-", "x-y r-xp 0 0:0 0 /a", "2000-1000 r-xp 0 0:0 0 /a", "ort/of/a/long-name r-xp /a"] {
            assert_eq!(code(broken), None, "{broken}");
        }
    }
}
