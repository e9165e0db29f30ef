//! Whether a program that is about to be executed loads libraries: static, foreign and privileged ones do not load this.

use core::ffi::{CStr, c_char, c_int};
use underpass_segment::raw::syscall;

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

/// A script's interpreter may be a script; the kernel follows so many.
const MOST_SCRIPTS: usize = 5;
/// Longest path that is looked at.
const MOST_PATH: usize = 4096;

impl Program {
    /// Whether the loader will load libraries into it. A program that cannot be looked at is taken for one that does.
    pub fn loads_libraries(self) -> bool {
        match self {
            Program::Path(path) => file(libc::AT_FDCWD, path, MOST_SCRIPTS),
            Program::At(folder, path) => {
                // SAFETY: the caller of execveat(2) vouches for the path.
                let itself = unsafe { *path } == 0;
                if itself { opened(folder, MOST_SCRIPTS) } else { file(folder, path, MOST_SCRIPTS) }
            }
            Program::Descriptor(fd) => opened(fd, MOST_SCRIPTS),
            Program::Name(name) => {
                // SAFETY: the caller of execvp(3) vouches for the name.
                let text = unsafe { CStr::from_ptr(name) }.to_bytes();
                if text.contains(&b'/') { file(libc::AT_FDCWD, name, MOST_SCRIPTS) } else { found(text) }
            }
        }
    }
}

/// As execvp(3) looks for it.
fn found(name: &[u8]) -> bool {
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
        if executable.is_ok() {
            return file(libc::AT_FDCWD, full, MOST_SCRIPTS);
        }
    }
    true
}

fn file(folder: c_int, path: *const c_char, scripts: usize) -> bool {
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK) as usize;
    // SAFETY: the path is a string, as whoever names it vouches for.
    let Ok(fd) = (unsafe { syscall(libc::SYS_openat, [folder as usize, path as usize, flags, 0, 0, 0]) }) else {
        return true;
    };
    let answer = opened(fd as c_int, scripts);
    // SAFETY: a descriptor of this function's own.
    let _ = unsafe { syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
    answer
}

fn opened(fd: c_int, scripts: usize) -> bool {
    // SAFETY: zeroed memory is a valid stat.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    let mut begin = [0u8; MOST_PATH];
    // SAFETY: both are written within their sizes.
    let (known, read) = unsafe {
        (
            syscall(libc::SYS_fstat, [fd as usize, &raw mut about as usize, 0, 0, 0, 0]),
            syscall(libc::SYS_pread64, [fd as usize, begin.as_mut_ptr() as usize, begin.len() - 1, 0, 0, 0]),
        )
    };
    let (Ok(_), Ok(len)) = (known, read) else { return true };
    let begin = &mut begin[..len.min(MOST_PATH - 1) + 1];
    if let Some(line) = begin.strip_prefix(b"#!") {
        // The kernel cuts the line at its end, or at a space behind the interpreter.
        let blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let from = 2 + line.iter().take_while(|it| blank(it)).count();
        let end = |byte: &u8| blank(byte) || matches!(byte, b'\n' | 0);
        let to = from + begin[from..].iter().position(end).unwrap_or(0);
        begin[to] = 0;
        return scripts == 0 || file(libc::AT_FDCWD, begin[from..].as_ptr().cast(), scripts - 1);
    }
    let privileged = about.st_mode & (libc::S_ISUID | libc::S_ISGID) != 0;
    !privileged && (!begin.starts_with(b"\x7fELF") || names_our_loader(begin))
}

/// Whether an ELF file is of this library's own kind and names the loader of this C library.
fn names_our_loader(file: &[u8]) -> bool {
    const CLASS_64: u8 = 2;
    const PT_INTERP: u32 = 3;
    const LOADER: &[u8] = b"/ld-linux";
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
    let path = word(at + 8).and_then(|from| file.get(from as usize..)).unwrap_or_default();
    let path = path.split(|&byte| byte == 0).next().unwrap_or_default();
    // Farther back than was read: this C library's, most likely.
    path.is_empty() || path.windows(LOADER.len()).any(|part| part == LOADER)
}
