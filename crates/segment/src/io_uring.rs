//! Finds machine code that makes the system call io_uring_setup(2) by itself, past libc's `syscall`.
//!
//! The call's number is moved into the register for it before the instruction that enters the kernel. Nothing else
//! looks like that: of 677 MB of code in programs and libraries of a Debian system, only liburing's does.
#![allow(unsafe_code, reason = "searches by libc's memchr, which is several times as fast as a loop")]

/// How far after its number the system call's instruction is searched for, in bytes. Compilers prepare the arguments in
/// between.
const NEAR: usize = 2048;
/// The longest piece of code that is looked at for one call, in bytes: pieces to search have to overlap by as much.
const LONGEST: usize = 3 + NUMBER.len() + NEAR;
/// The number as it stands in the instruction that moves it into a register.
#[cfg(target_arch = "x86_64")]
const NUMBER: [u8; 4] = (libc::SYS_io_uring_setup as u32).to_le_bytes();
/// The whole instruction: `mov w8, #number`.
#[cfg(target_arch = "aarch64")]
const NUMBER: [u8; 4] = (0x5280_0008 | (libc::SYS_io_uring_setup as u32) << 5).to_le_bytes();
/// `syscall`, or `svc #0`.
#[cfg(target_arch = "x86_64")]
const CALL: &[u8] = &[0x0f, 0x05];
#[cfg(target_arch = "aarch64")]
const CALL: &[u8] = &[0x01, 0x00, 0x00, 0xd4];

/// Beginnings of the file names of libraries whose code need not be searched: liburing, whose functions this library
/// replaces, and libc, which has no function for it.
pub const HARMLESS: [&[u8]; 4] = [b"liburing", b"libunderpass", b"libc.so", b"ld-linux"];

/// Whether `len` bytes of code make the call. `read` fills its buffer, a part of `piece`, with the code from an offset
/// on; `None` as soon as it cannot. `piece` has several KiB: programs may have 100 MB of code, so it is searched piece
/// by piece.
pub fn is_set_up_in(len: u64, piece: &mut [u8], mut read: impl FnMut(u64, &mut [u8]) -> Option<()>) -> Option<bool> {
    let mut at = 0;
    while at < len {
        let wanted = piece.len().min(usize::try_from(len - at).unwrap_or(usize::MAX));
        read(at, &mut piece[..wanted])?;
        if is_set_up_by(&piece[..wanted]) {
            return Some(true);
        }
        at += if at + wanted as u64 == len { wanted } else { wanted - LONGEST } as u64;
    }
    Some(false)
}

/// Whether `code` makes the call.
fn is_set_up_by(code: &[u8]) -> bool {
    let mut from = 0;
    while let Some(at) = find(NUMBER[0], &code[from..]).map(|at| from + at) {
        from = at + 1;
        let Some(behind) = code[at..].strip_prefix(&NUMBER) else { continue };
        if is_loaded(&code[..at]) && behind[..behind.len().min(NEAR)].windows(CALL.len()).any(|it| it == CALL) {
            return true;
        }
    }
    false
}

/// Whether what follows `before` is moved into the register for the number: `mov eax, …`, `mov rax, …` or `push …`.
#[cfg(target_arch = "x86_64")]
fn is_loaded(before: &[u8]) -> bool {
    before.ends_with(&[0xb8]) || before.ends_with(&[0xc7, 0xc0]) || before.ends_with(&[0x68])
}

#[cfg(target_arch = "aarch64")]
fn is_loaded(_: &[u8]) -> bool {
    true
}

fn find(byte: u8, code: &[u8]) -> Option<usize> {
    // SAFETY: memchr reads `code` alone.
    let found = unsafe { libc::memchr(code.as_ptr().cast(), byte.into(), code.len()) };
    (!found.is_null()).then(|| found as usize - code.as_ptr() as usize)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// The call as GCC compiles it in liburing, with the arguments moved in between, and as one writes it by hand.
    #[test]
    fn the_call_is_found_wherever_it_stands() {
        let calls: [&[u8]; 4] = [
            b"\xb8\xa9\x01\x00\x00\x0f\x05",
            b"\xb8\xa9\x01\x00\x00\x48\x89\xd6\x89\xcf\x0f\x05",
            b"\x48\xc7\xc0\xa9\x01\x00\x00\x0f\x05",
            b"\x68\xa9\x01\x00\x00\x58\x0f\x05",
        ];
        for call in calls {
            for before in [0, 1, 63, 4096] {
                let code = [&vec![0xa9; before], call, &[0x90; 7]].concat();
                assert!(is_set_up_by(&code), "{call:x?} behind {before}");
                assert!(!is_set_up_by(&code[..before + call.len() - 1]), "{call:x?} cut off");
            }
        }
    }

    #[test]
    fn the_call_is_found_where_two_pieces_meet() {
        let call = b"\xb8\xa9\x01\x00\x00\x0f\x05";
        for before in (0..2 * 4096).step_by(3) {
            let code = [&vec![0x90; before], call.as_slice(), &[0x90; 4096]].concat();
            let read = |at: u64, to: &mut [u8]| {
                to.copy_from_slice(code.get(at as usize..at as usize + to.len())?);
                Some(())
            };
            assert_eq!(is_set_up_in(code.len() as u64, &mut [0; 4096], read), Some(true), "behind {before}");
            assert_eq!(is_set_up_in(before as u64 + 6, &mut [0; 4096], read), Some(false), "cut off behind {before}");
            let more = code.len() as u64 + 1;
            assert_ne!(is_set_up_in(more, &mut [0; 4096], read), Some(false), "one byte cannot be read");
        }
    }

    #[test]
    fn what_only_looks_like_it_is_passed_over() {
        // The number as a line's, say, in another register; in libc's `syscall`; too far from a system call; another
        // number.
        assert!(!is_set_up_by(b"\xba\xa9\x01\x00\x00\x0f\x05"));
        assert!(!is_set_up_by(b"\xbf\xa9\x01\x00\x00\xe8\x00\x00\x00\x00\xc3"));
        assert!(!is_set_up_by(&[b"\xb8\xa9\x01\x00\x00".as_slice(), &[0x90; NEAR], b"\x0f\x05"].concat()));
        assert!(!is_set_up_by(b"\xb8\xa9\x01\x00\x01\x0f\x05"));
        assert!(!is_set_up_by(b"\xb8\xa9\x01"));
        assert!(!is_set_up_by(b""));
    }
}
