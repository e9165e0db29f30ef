//! Whether a program will load the library and go through libc, told from its file alone.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use object::elf::{DT_NEEDED, ET_DYN, FileHeader64, Machine, PF_X, PT_LOAD};
use object::read::StringTable;
use object::read::elf::{Dyn, FileHeader, ProgramHeader, SectionHeader};
use object::{Endian, Endianness, FileKind, ReadCache, ReadRef};
use underpass_segment::io_uring;

use crate::sys;

/// Set-user-ID and set-group-ID bits of a file's mode (inode(7)).
const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2010;

/// Why a program stays on kernel TCP whatever its connections do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    /// No dynamic loader is asked for.
    Static,
    /// Go does not go through libc.
    Go,
    /// The file changes the user, the group or the capabilities of the process that executes it.
    Privileged,
    /// A 32-bit program on a 64-bit system.
    Bits,
    /// A program for another processor.
    Architecture,
    /// Another C library than the GNU one: the file name of its loader.
    Libc(String),
    /// AddressSanitizer's runtime ends a program in which another library was loaded before it.
    Sanitizer,
}

impl Obstacle {
    /// Whether the loader would stumble over the library, so that it must not even be named.
    pub fn forbids_preload(&self) -> bool {
        matches!(self, Obstacle::Bits | Obstacle::Architecture | Obstacle::Libc(_) | Obstacle::Sanitizer)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::Static => f.write_str("it is statically linked and loads no libraries; a dynamic build would do"),
            Obstacle::Go => f.write_str("it is a Go program, and Go makes its system calls itself"),
            Obstacle::Privileged => {
                f.write_str(
                    "it takes other privileges when it starts (setuid, setgid or file capabilities), and the system ",
                )?;
                f.write_str("preloads nothing into such programs; start it as the user it would become")
            }
            Obstacle::Bits => f.write_str("it is a 32-bit program and the library is a 64-bit one"),
            Obstacle::Architecture => f.write_str("it is made for another kind of processor than the library"),
            Obstacle::Libc(loader) => write!(f, "it uses another C library than the GNU one (its loader is {loader})"),
            Obstacle::Sanitizer => {
                f.write_str("AddressSanitizer's runtime ends a program that loads another library before it; ")?;
                f.write_str("ASAN_OPTIONS=verify_asan_link_order=0 allows that")
            }
        }
    }
}

/// What stands in the way of the program in this file; `None` also if the file cannot be read or is no ELF file.
pub fn obstacle(path: &Path) -> Option<Obstacle> {
    // The kernel's answer first: what it refuses to preload needs no look inside.
    privileged(path).then_some(Obstacle::Privileged).or_else(|| {
        let file = ReadCache::new(File::open(path).ok()?);
        match FileKind::parse(&file).ok()? {
            FileKind::Elf64 => elf(&file, path),
            FileKind::Elf32 => Some(Obstacle::Bits),
            _ => None,
        }
    })
}

/// Whether this is a program in the machine's own language, and can be read as far as is needed here.
pub fn is_elf(path: &Path) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let file = ReadCache::new(file);
    let is_whole = || {
        let header = FileHeader64::<Endianness>::parse(&file).ok()?;
        header.program_headers(header.endian().ok()?, &file).ok()
    };
    match FileKind::parse(&file) {
        Ok(FileKind::Elf64) => is_whole().is_some_and(|it| !it.is_empty()),
        Ok(kind) => kind == FileKind::Elf32,
        Err(_) => false,
    }
}

/// Whether running the file starts the loader's secure mode (ld.so(8)): the real and the effective user or group will
/// differ, or there will be capabilities that a user other than root did not have.
fn privileged(path: &Path) -> bool {
    let Ok(meta) = fs::metadata(path) else { return false };
    let (user, group) = sys::real_ids();
    let other_user = meta.mode() & SETUID == SETUID && meta.uid() != user;
    let other_group = meta.mode() & SETGID == SETGID && meta.gid() != group;
    other_user || other_group || (user != 0 && sys::has_file_capabilities(path))
}

fn elf<'data>(file: impl ReadRef<'data>, path: &Path) -> Option<Obstacle> {
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let other_machine = own_machine().is_some_and(|own| own != header.e_machine(endian));
    if other_machine || endian.is_big_endian() != cfg!(target_endian = "big") {
        return Some(Obstacle::Architecture);
    }
    if is_go(header, endian, file) == Some(true) {
        return Some(Obstacle::Go);
    }
    let segments = header.program_headers(endian, file).ok()?;
    let Some(loader) = segments.iter().find_map(|s| s.interpreter(endian, file).ok().flatten()) else {
        // The loader can be started as a program too, and then loads the program in its arguments.
        let is_loader = header.e_type(endian) == ET_DYN && is_gnu(path.file_name().unwrap_or_default());
        return (!is_loader).then_some(Obstacle::Static);
    };
    let loader = loader.rsplit(|&b| b == b'/').next().unwrap_or_default();
    if !is_gnu(OsStr::from_bytes(loader)) {
        return Some(Obstacle::Libc(String::from_utf8_lossy(loader).into_owned()));
    }
    // GCC's, and Clang's with -shared-libasan.
    let is_sanitizer = |name: &String| name.starts_with("libasan.so") || name.starts_with("libclang_rt.asan");
    let refuses = needed(file).is_some_and(|names| names.iter().any(is_sanitizer)) && !allows_other_order();
    refuses.then_some(Obstacle::Sanitizer)
}

fn allows_other_order() -> bool {
    lets_others_come_first(env::var_os("ASAN_OPTIONS").unwrap_or_default().as_bytes())
}

/// Whether these options tell AddressSanitizer not to look which library comes first. The last word counts; what
/// separates options and means "no" is what compiler-rt's parser takes (sanitizer_flag_parser.cpp).
fn lets_others_come_first(options: &[u8]) -> bool {
    let words = options.split(|byte| b" ,:\n\t\r".contains(byte));
    let mut values = words.filter_map(|word| word.strip_prefix(b"verify_asan_link_order="));
    values.next_back().is_some_and(|value| matches!(unquoted(value), b"0" | b"no" | b"false"))
}

/// What is between the quotes, if it is between some.
fn unquoted(value: &[u8]) -> &[u8] {
    match value {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        other => other,
    }
}

/// Names of the libraries that the file asks for by itself; none if it does not say.
pub fn libraries(path: &Path) -> Vec<String> {
    File::open(path).ok().and_then(|file| needed(&ReadCache::new(file))).unwrap_or_default()
}

fn needed<'data>(file: impl ReadRef<'data>) -> Option<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, file).ok()?;
    let (entries, link) = sections.dynamic(endian, file).ok()??;
    let strings = sections.strings(endian, file, link).ok()?;
    let names = entries.iter().filter(|it| it.tag(endian) == DT_NEEDED).filter_map(|it| {
        let name = strings.get(u32::try_from(it.d_val(endian)).ok()?).ok()?;
        Some(String::from_utf8_lossy(name).into_owned())
    });
    Some(names.collect())
}

/// Whether the program in this file, or a library that it is linked with, sets up an io_uring past libc and liburing;
/// true also if that cannot be told.
pub fn sets_up_io_uring(path: &Path) -> bool {
    loaded_with(path).is_none_or(|libraries| {
        let is_harmless = |file: &Path| {
            let name = file.file_name().unwrap_or_default().as_bytes();
            io_uring::HARMLESS.iter().any(|it| name.starts_with(it))
        };
        let linked = libraries.iter().map(PathBuf::as_path).filter(|it| !is_harmless(it));
        linked.chain([path]).any(|it| sets_up_io_uring_itself(it).unwrap_or(true))
    })
}

/// Whether the code in this file alone sets up an io_uring past libc and liburing; `None` if it cannot be read.
pub fn sets_up_io_uring_itself(path: &Path) -> Option<bool> {
    let file = File::open(path).ok()?;
    let cache = ReadCache::new(&file);
    let header = FileHeader64::<Endianness>::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &cache).ok()?.iter();
    let code = segments.filter(|it| it.p_type(endian) == PT_LOAD && it.p_flags(endian) & PF_X == PF_X);
    let found: Option<Vec<bool>> = code.map(|it| is_in(&file, it.file_range(endian))).collect();
    Some(found?.contains(&true))
}

/// Whether the code at `offset` of the file, `len` bytes, sets up an io_uring; `None` if it cannot be read.
fn is_in(file: &File, (offset, len): (u64, u64)) -> Option<bool> {
    io_uring::is_set_up_in(len, &mut vec![0; 256 << 10], |at, to| file.read_exact_at(to, offset + at).ok())
}

/// The libraries that are loaded with the program, as its own loader finds them (ld.so(8), `--list`), which runs none
/// of their code.
fn loaded_with(path: &Path) -> Option<Vec<PathBuf>> {
    let file = ReadCache::new(File::open(path).ok()?);
    let header = FileHeader64::<Endianness>::parse(&file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, &file).ok()?;
    let loader = segments.iter().find_map(|it| it.interpreter(endian, &file).ok().flatten())?;
    let mut list = Command::new(OsStr::from_bytes(loader));
    list.arg("--list").arg(fs::canonicalize(path).ok()?);
    let mut list = list.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let mut said = Vec::new();
    let read = list.stdout.take()?.read_to_end(&mut said);
    // The kernel does not say how the child ended if this process was started with SIGCHLD ignored. A list always has
    // the loader itself.
    let _ = list.wait();
    let libraries: Vec<_> = said.split(|&byte| byte == b'\n').filter_map(listed).collect();
    (read.is_ok() && !libraries.is_empty()).then_some(libraries)
}

/// The path in a line such as `libm.so.6 => /lib/libm.so.6 (0x00007f...)`; the kernel's own object has none.
fn listed(line: &[u8]) -> Option<PathBuf> {
    let begin = line.iter().position(|&byte| byte == b'/')?;
    let end = line.windows(4).rposition(|it| it == b" (0x")?;
    // A loader is named as the program asks for it, and by its path.
    let path = line.get(begin..end)?;
    let path = path.windows(4).position(|it| it == b" => ").map_or(path, |at| &path[at + 4..]);
    Some(OsStr::from_bytes(path).into())
}

/// `None` if the file does not say, for instance because it has no section headers.
fn is_go<'data>(header: &FileHeader64<Endianness>, endian: Endianness, file: impl ReadRef<'data>) -> Option<bool> {
    let sections = header.section_headers(endian, file).ok()?;
    // The names are read in one piece and not one by one from the file.
    let names = sections.get(header.section_strings_index(endian, file).ok()?.0)?.data(endian, file).ok()?;
    let strings = StringTable::new(names, 0, names.len() as u64);
    let mut names = sections.iter().filter_map(|s| s.name(endian, strings).ok());
    Some(names.any(|name| name == b".go.buildinfo" || name == b".gopclntab"))
}

/// The GNU loader is `ld-linux*.so.2` on most processors, `ld64.so.1` or `ld.so.1` on the others.
fn is_gnu(loader: &OsStr) -> bool {
    let name = loader.to_string_lossy();
    name.starts_with("ld-linux") || name.starts_with("ld64.so") || name.starts_with("ld.so")
}

fn own_machine() -> Option<Machine> {
    use object::elf;
    Some(match std::env::consts::ARCH {
        "x86_64" => elf::EM_X86_64,
        "aarch64" => elf::EM_AARCH64,
        "riscv64" => elf::EM_RISCV,
        "powerpc64" => elf::EM_PPC64,
        "s390x" => elf::EM_S390,
        "loongarch64" => elf::EM_LOONGARCH,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn options_of_address_sanitizer_are_read_as_it_reads_them() {
        let lets = |options: &str| lets_others_come_first(options.as_bytes());
        for options in
            ["=0", "=no", "=false", "='0'", "=1:verify_asan_link_order=0", "=0,verbosity=1", "=0 detect_leaks=1"]
        {
            assert!(lets(&format!("abort_on_error=1:verify_asan_link_order{options}")), "{options}");
        }
        for options in ["", "verify_asan_link_order", "verify_asan_link_order=1", "verify_asan_link_order=00"] {
            assert!(!lets(options), "{options}");
        }
        assert!(!lets("verify_asan_link_order=0:verify_asan_link_order=1"));
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn code_is_found_in_its_part_of_the_file() {
        let call = b"\xb8\xa9\x01\x00\x00\x0f\x05";
        for before in [0, 1, 300 << 10] {
            let mut file = tempfile::tempfile().unwrap();
            file.write_all(&[&vec![0x90; before], call.as_slice(), &[0x90; 7]].concat()).unwrap();
            let (begin, len) = (before as u64 / 2, before.div_ceil(2) as u64 + 7);
            assert_eq!(is_in(&file, (begin, len)), Some(true), "{before}");
            assert_eq!(is_in(&file, (begin, len - 1)), Some(false), "{before}, cut off");
            assert_eq!(is_in(&file, (begin + 1, len)), Some(before > 0), "{before}, begun late");
            assert_eq!(is_in(&file, (begin + len + 8, 1)), None, "{before}, beyond the end");
        }
    }

    #[test]
    fn the_loaders_list_is_understood() {
        assert_eq!(listed(b"\tlibm.so.6 => /lib/a b/libm.so.6 (0x00007f)"), Some("/lib/a b/libm.so.6".into()));
        assert_eq!(listed(b"\t/lib64/ld-linux-x86-64.so.2 (0x00007f)"), Some("/lib64/ld-linux-x86-64.so.2".into()));
        assert_eq!(listed(b"\t/lib64/ld.so.2 => /lib/ld.so.2 (0x00007f)"), Some("/lib/ld.so.2".into()));
        assert_eq!(listed(b"\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(listed(b"\tlibx.so => not found"), None);
        assert_eq!(listed(b"\tstatically linked"), None);
    }
}
