//! fdopen, freopen and dprintf. libc's stdio reads, writes and closes descriptors by calls of its own, which this
//! library does not see. So a stream over a connection is made by fopencookie(3), and its calls are the library's. A
//! call that prints to a descriptor without a stream pins the connection first.

use crate::guest::table::{self, Known};
use crate::guest::{errno, real};
use crate::lifecycle::adopt;
use core::ffi::{c_char, c_int, c_void};
use libc::{FILE, off64_t, size_t, ssize_t};
use underpass_segment::reason::Reason;
use underpass_segment::sync::AtomicU64;

/// cookie_io_functions_t; the cookie is the descriptor.
#[repr(C)]
struct Functions {
    read: unsafe extern "C" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C" fn(*mut c_void) -> c_int,
}

unsafe extern "C" {
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: Functions) -> *mut FILE;
}

/// The beginning of a FILE, which glibc's binary interface fixes (bits/types/struct_FILE.h).
#[repr(C)]
struct Stream {
    flags: c_int,
    pointers: [*mut c_void; 13],
    descriptor: c_int,
    flags2: c_int,
    old_offset: libc::c_long,
    column: u16,
    vtable_offset: i8,
    short_buffer: c_char,
    lock: *mut c_void,
    offset: off64_t,
    codecvt: *mut c_void,
    wide: *mut c_void,
}

/// What a stream of ours has for wide characters: larger than any _IO_wide_data, and never written to.
static NO_WIDE: [AtomicU64; 128] = [const { AtomicU64::new(0) }; 128];

/// [`Stream::descriptor`] of a stream that has none.
const COOKIE: c_int = -2;

/// # Safety
/// As fdopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    if adopt::of(fd).is_none() && !matches!(table::get(fd), Known::Socket(_)) {
        // SAFETY: passed on to the caller.
        return unsafe { real::fdopen(fd, mode) };
    }
    let functions = Functions { read, write, seek, close };
    // SAFETY: the program vouches for the mode; the stream, if there is one, is nobody else's yet.
    unsafe {
        let stream = fopencookie(fd as usize as *mut c_void, mode, functions);
        if let Some(known) = stream.cast::<Stream>().as_mut().filter(|it| it.descriptor == COOKIE) {
            // For fileno(3).
            known.descriptor = fd;
            // libc's wide functions read this before they find that the stream is one of bytes.
            known.wide = NO_WIDE.as_ptr().cast_mut().cast();
        }
        stream
    }
}

/// # Safety
/// As fdopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _IO_fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
    // SAFETY: passed on to the caller.
    unsafe { fdopen(fd, mode) }
}

/// # Safety
/// As freopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    // SAFETY: passed on to the caller.
    unsafe {
        part_from_connection(stream);
        real::freopen(path, mode, stream)
    }
}

/// # Safety
/// As freopen(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
    // SAFETY: passed on to the caller.
    unsafe { freopen(path, mode, stream) }
}

/// A stream over a connection is about to be an ordinary one: its descriptor becomes another socket, which libc
/// replaces or closes by calls of its own, and it gets memory for wide characters.
///
/// # Safety
/// `stream` must be null or a stream.
unsafe fn part_from_connection(stream: *mut FILE) {
    // SAFETY: the caller vouches for the stream, whose beginning is as in `Stream`.
    unsafe {
        let is_ours = |it: &&mut Stream| it.wide.cast_const().cast() == NO_WIDE.as_ptr();
        let Some(known) = stream.cast::<Stream>().as_mut().filter(is_ours) else { return };
        let fd = known.descriptor;
        libc::fflush(stream);
        let other = real::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        if other < 0 || crate::calls::descriptor::dup3(other, fd, libc::O_CLOEXEC) < 0 {
            crate::calls::descriptor::close(fd);
        }
        if other >= 0 {
            crate::calls::descriptor::close(other);
        }
        known.wide = libc::calloc(1, size_of_val(&NO_WIDE));
    }
}

unsafe extern "C" fn read(cookie: *mut c_void, buffer: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: stdio vouches for its buffer.
    unsafe { crate::calls::receive::read(cookie as usize as c_int, buffer.cast(), len) }
}

unsafe extern "C" fn write(cookie: *mut c_void, buffer: *const c_char, len: size_t) -> ssize_t {
    let mut done = 0;
    while done < len {
        // SAFETY: stdio vouches for `len` bytes.
        match unsafe { crate::calls::send::write(cookie as usize as c_int, buffer.add(done).cast(), len - done) } {
            written @ 0.. => done += written as usize,
            _ => break,
        }
    }
    done as ssize_t
}

unsafe extern "C" fn seek(_cookie: *mut c_void, _offset: *mut off64_t, _whence: c_int) -> c_int {
    errno::set(libc::ESPIPE);
    -1
}

unsafe extern "C" fn close(cookie: *mut c_void) -> c_int {
    // SAFETY: the stream owns its descriptor.
    unsafe { crate::calls::descriptor::close(cookie as usize as c_int) }
}

// A function with `...` cannot be written in stable Rust. These keep all registers that arguments may come in, and go
// on in libc's function, which finds the stack as the caller left it.
#[cfg(target_arch = "x86_64")]
macro_rules! print_plainly {
    ($($name:ident)+) => {
        $(
        /// # Safety
        /// As dprintf(3).
        #[unsafe(naked)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name() {
            extern "C" fn pin_first(fd: c_int) -> *mut c_void {
                adopt::give_up_sends(fd, Reason::Stdio);
                crate::guest::real::variadic::$name.get()
            }
            core::arch::naked_asm!(
                "push rbp",
                "mov rbp, rsp",
                "push rdi", "push rsi", "push rdx", "push rcx", "push r8", "push r9",
                "push rax", // al: how many of the vector registers are in use
                "sub rsp, 136",
                "movups [rsp], xmm0", "movups [rsp + 16], xmm1", "movups [rsp + 32], xmm2", "movups [rsp + 48], xmm3",
                "movups [rsp + 64], xmm4", "movups [rsp + 80], xmm5", "movups [rsp + 96], xmm6",
                "movups [rsp + 112], xmm7",
                "call {pin_first}",
                "mov r11, rax",
                "movups xmm0, [rsp]", "movups xmm1, [rsp + 16]", "movups xmm2, [rsp + 32]", "movups xmm3, [rsp + 48]",
                "movups xmm4, [rsp + 64]", "movups xmm5, [rsp + 80]", "movups xmm6, [rsp + 96]",
                "movups xmm7, [rsp + 112]",
                "add rsp, 136",
                "pop rax",
                "pop r9", "pop r8", "pop rcx", "pop rdx", "pop rsi", "pop rdi",
                "pop rbp",
                "jmp r11",
                pin_first = sym pin_first,
            )
        }
    )+};
}

#[cfg(target_arch = "x86_64")]
print_plainly!(dprintf vdprintf __dprintf_chk __vdprintf_chk);
