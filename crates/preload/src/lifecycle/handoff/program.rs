//! The kind of a program that is about to be executed, as far as its file says: static, foreign and privileged programs
//! do not load this library.

use crate::guest::access::is_string_readable;
use core::ffi::{CStr, c_char, c_int};
use core::mem::MaybeUninit;
use underpass_segment::kernel;
use underpass_segment::raw::{Errno, syscall};

/// How a call names the program.
#[derive(Clone, Copy)]
pub enum Program {
    /// As execve(2) does.
    Path(*const c_char),
    /// As execvp(3) does: looked for in PATH if it has no slash.
    Name(*const c_char),
    /// As fexecve(3) does.
    Descriptor(c_int),
    /// As execveat(2) does.
    At(c_int, *const c_char),
}

/// What will become of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The loader of this C library runs it and heeds LD_PRELOAD.
    Loads,
    /// The call fails: there is no such file.
    Fails,
    /// Anything else, or it cannot be told.
    Unknown,
}

/// What tells a file from every other file, and from later versions of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
    bytes: i64,
    changed: (i64, i64),
}

/// The kernel follows so many interpreters that are scripts themselves.
const MOST_SCRIPTS: usize = 5;
/// Longest path that is looked at.
pub const MOST_PATH: usize = 4096;

impl Identity {
    /// The identity of the file `path`, if it can be read.
    pub fn of(path: *const c_char) -> Option<Identity> {
        File::open(libc::AT_FDCWD, path).ok()?.identity()
    }
}

/// A file that is open while this value lives.
pub struct File(c_int);

impl File {
    /// Opens it for reading.
    ///
    /// # Errors
    /// As open(2).
    pub fn open(folder: c_int, path: *const c_char) -> Result<File, Errno> {
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
        // SAFETY: the caller passes a path that is a string.
        let fd = unsafe { syscall(libc::SYS_openat, [folder as usize, path as usize, flags, 0, 0, 0]) }?;
        Ok(File(fd as c_int))
    }

    /// Which file it is.
    pub fn identity(&self) -> Option<Identity> {
        status(self.0).as_ref().map(identity)
    }

    /// Whether the loader could map its code: not from a file system that is mounted noexec.
    pub fn is_mappable(&self) -> bool {
        const PAGE: usize = 4096;
        let how = (libc::PROT_READ | libc::PROT_EXEC) as usize;
        let kind = libc::MAP_PRIVATE as usize;
        // SAFETY: a new mapping, which nobody looks into.
        unsafe {
            let mapped = syscall(libc::SYS_mmap, [0, PAGE, how, kind, self.0 as usize, 0]);
            mapped.map(|at| syscall(libc::SYS_munmap, [at, PAGE, 0, 0, 0, 0])).is_ok()
        }
    }
}

impl Drop for File {
    fn drop(&mut self) {
        kernel::close(self.0);
    }
}

fn status(fd: c_int) -> Option<libc::stat> {
    let mut about = MaybeUninit::<libc::stat>::zeroed();
    // SAFETY: the kernel writes one stat; zeroed memory is one too.
    unsafe {
        syscall(libc::SYS_fstat, [fd as usize, about.as_mut_ptr() as usize, 0, 0, 0, 0]).ok()?;
        Some(about.assume_init())
    }
}

fn identity(it: &libc::stat) -> Identity {
    Identity { device: it.st_dev, inode: it.st_ino, bytes: it.st_size, changed: (it.st_mtime, it.st_mtime_nsec) }
}

impl Program {
    /// Whether its name can be read.
    pub fn is_readable(self) -> bool {
        match self {
            Program::Path(name) | Program::Name(name) | Program::At(_, name) => is_string_readable(name),
            Program::Descriptor(_) => true,
        }
    }

    /// What will become of its execution, where `loader` is the loader that has loaded this library.
    pub fn outcome(self, loader: Identity) -> Outcome {
        let judged = match self {
            Program::Path(path) => file(libc::AT_FDCWD, path, loader, MOST_SCRIPTS),
            Program::At(folder, path) => {
                // SAFETY: the caller of execveat(2) vouches for the path.
                let itself = unsafe { *path } == 0;
                if itself { opened(folder, loader, MOST_SCRIPTS) } else { file(folder, path, loader, MOST_SCRIPTS) }
            }
            Program::Descriptor(fd) => opened(fd, loader, MOST_SCRIPTS),
            Program::Name(name) => {
                // SAFETY: the caller of execvp(3) vouches for the name.
                let text = unsafe { CStr::from_ptr(name) }.to_bytes();
                let has_slash = text.contains(&b'/');
                let judged =
                    if has_slash { file(libc::AT_FDCWD, name, loader, MOST_SCRIPTS) } else { found(text, loader) };
                // execvp(3) has the shell run a text that the kernel does not know.
                judged.or_else(|| file(libc::AT_FDCWD, c"/bin/sh".as_ptr(), loader, 0))
            }
        };
        judged.unwrap_or(Outcome::Unknown)
    }

    /// Whether the file may be looked for from the working directory, which the file actions of a spawn may change.
    pub fn may_be_relative(self) -> bool {
        match self {
            // SAFETY: the caller of the execution vouches for the path.
            Program::Path(path) | Program::Name(path) => !unsafe { CStr::from_ptr(path) }.to_bytes().starts_with(b"/"),
            Program::Descriptor(_) | Program::At(..) => false,
        }
    }
}

/// An [`Outcome`]; `None` for a text that names no interpreter.
type Judged = Option<Outcome>;

/// As execvp(3) looks for it.
fn found(name: &[u8], loader: Identity) -> Judged {
    // SAFETY: execvp reads the environment as well.
    let path = unsafe { libc::getenv(c"PATH".as_ptr()) };
    // SAFETY: a string of the environment.
    let path = if path.is_null() { c"/bin:/usr/bin" } else { unsafe { CStr::from_ptr(path) } };
    for folder in path.to_bytes().split(|&byte| byte == b':') {
        let mut full = [0u8; MOST_PATH];
        let folder = if folder.is_empty() { b"." } else { folder };
        if folder.len() + 1 + name.len() >= full.len() {
            continue;
        }
        full[..folder.len()].copy_from_slice(folder);
        full[folder.len()] = b'/';
        full[folder.len() + 1..][..name.len()].copy_from_slice(name);
        let full = full.as_ptr().cast();
        // SAFETY: NUL-terminated, as the array is longer than the path.
        let executable = unsafe {
            syscall(libc::SYS_faccessat, [libc::AT_FDCWD as usize, full as usize, libc::X_OK as usize, 0, 0, 0])
        };
        match executable {
            Ok(_) => {}
            // This was asked for the real identity. The kernel executes for the effective one.
            Err(Errno(libc::EACCES)) if !kernel::has_one_identity() => return Some(Outcome::Unknown),
            Err(_) => continue,
        }
        // execvp passes over a folder of that name, for example.
        match file(libc::AT_FDCWD, full, loader, MOST_SCRIPTS) {
            Some(Outcome::Fails) => {}
            judged => return judged,
        }
    }
    Some(Outcome::Fails)
}

fn file(folder: c_int, path: *const c_char, loader: Identity, scripts: usize) -> Judged {
    match File::open(folder, path) {
        Ok(file) => opened(file.0, loader, scripts),
        Err(Errno(libc::ENOENT | libc::ENOTDIR | libc::ELOOP | libc::ENAMETOOLONG)) => Some(Outcome::Fails),
        // It may be executable and not readable.
        Err(_) => Some(Outcome::Unknown),
    }
}

fn opened(fd: c_int, loader: Identity, scripts: usize) -> Judged {
    let mut begin = [0u8; MOST_PATH];
    let (Some(about), Some(len)) = (status(fd), read_at(fd, 0, &mut begin[..MOST_PATH - 1])) else {
        return Some(Outcome::Unknown);
    };
    if about.st_mode & libc::S_IFMT != libc::S_IFREG || about.st_mode & 0o111 == 0 {
        return Some(Outcome::Fails);
    }
    let begin = &mut begin[..len + 1];
    if let Some(line) = begin.strip_prefix(b"#!") {
        // The kernel cuts the line at its end, or at a space behind the interpreter.
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let from = 2 + line.iter().take_while(|it| blank(it)).count();
        let end = |byte: &u8| blank(byte) || matches!(byte, b'\n' | 0);
        let to = from + begin[from..].iter().position(end).unwrap_or(0);
        begin[to] = 0;
        // The kernel reads this much of the line. An interpreter that is named relative to the working directory may be
        // another file by then.
        const MOST_LINE: usize = 255;
        if scripts == 0 || to >= MOST_LINE || begin[from] != b'/' {
            return if to == from { None } else { Some(Outcome::Unknown) };
        }
        return match file(libc::AT_FDCWD, begin[from..].as_ptr().cast(), loader, scripts - 1) {
            Some(Outcome::Loads) => Some(Outcome::Loads),
            // execvp(3) goes on looking where the interpreter is missing.
            _ => Some(Outcome::Unknown),
        };
    }
    if !begin.starts_with(b"\x7fELF") {
        // The kernel may know what it is (binfmt_misc), unless it is a text.
        return begin[..len].contains(&0).then_some(Outcome::Unknown);
    }
    let loads = !is_privileged(fd, &about) && names_loader(fd, begin, loader);
    Some(if loads { Outcome::Loads } else { Outcome::Unknown })
}

/// Whether its execution may change the credentials (credentials(7), capabilities(7)): then the loader heeds no
/// LD_PRELOAD.
fn is_privileged(fd: c_int, about: &libc::stat) -> bool {
    let name = c"security.capability".as_ptr() as usize;
    // SAFETY: the name is a string; nothing is written to a buffer of no length.
    let capabilities = unsafe { syscall(libc::SYS_fgetxattr, [fd as usize, name, 0, 0, 0, 0]) };
    about.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0
        || !matches!(capabilities, Err(Errno(libc::ENODATA | libc::EOPNOTSUPP)))
}

fn read_at(fd: c_int, from: u64, to: &mut [u8]) -> Option<usize> {
    // SAFETY: the kernel writes at most the length of the buffer.
    let read =
        unsafe { syscall(libc::SYS_pread64, [fd as usize, to.as_mut_ptr() as usize, to.len(), from as usize, 0, 0]) };
    read.ok()
}

/// Whether the ELF file that begins so is of this library's own kind and is loaded by `loader`.
fn names_loader(fd: c_int, file: &[u8], loader: Identity) -> bool {
    const CLASS_64: u8 = 2;
    const PT_INTERP: u32 = 3;
    #[cfg(target_arch = "x86_64")]
    const MACHINE: u16 = 62;
    #[cfg(target_arch = "aarch64")]
    const MACHINE: u16 = 183;
    let half = |at: usize| file.get(at..at + 2).map(|it| u16::from_ne_bytes([it[0], it[1]]));
    let word = |at: usize| file.get(at..at + 4).map(|it| u32::from_ne_bytes([it[0], it[1], it[2], it[3]]));
    if file.get(4) != Some(&CLASS_64) || half(18) != Some(MACHINE) {
        return false;
    }
    // Elf64_Ehdr: e_phoff, of which the low half is enough, e_phentsize and e_phnum.
    let (Some(table), Some(size), Some(count)) = (word(32), half(54), half(56)) else { return false };
    // Elf64_Phdr: p_type, and p_offset at 8.
    let entry = |index: u16| table as usize + usize::from(index) * usize::from(size);
    let Some(at) = (0..count).map(entry).find(|&at| word(at) == Some(PT_INTERP)) else { return false };
    let Some(from) = word(at + 8) else { return false };
    let mut path = [0u8; 256];
    let read = read_at(fd, from.into(), &mut path[..255]);
    read.is_some() && Identity::of(path.as_ptr().cast()) == Some(loader)
}
