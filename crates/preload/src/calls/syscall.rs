//! syscall: a system call by number goes the same way as libc's function for it.

use super::{
    aio, descriptor, epoll, exec, fork, io_uring, memory, options, poll, receive, seccomp, select, send, sendfile,
};
use crate::guest::access::{is_readable, is_writable};
use crate::guest::cancellation::uncancelled;
use crate::guest::{deadline, real};
use crate::lifecycle::child;
use core::ffi::{c_int, c_long, c_uint};
use libc::{fd_set, iovec, nfds_t, pollfd, sigset_t, ssize_t, timespec, timeval};

/// An argument as it comes in a register.
trait Argument {
    fn of(word: usize) -> Self;
}

macro_rules! numbers {
    ($($number:ty)+) => {$(
        impl Argument for $number {
            fn of(word: usize) -> $number {
                word as $number
            }
        }
    )+};
}

numbers!(c_int c_uint i64 u64 usize);

impl<T> Argument for *const T {
    fn of(word: usize) -> *const T {
        word as *const T
    }
}

impl<T> Argument for *mut T {
    fn of(word: usize) -> *mut T {
        word as *mut T
    }
}

/// Calls the function that stands for the system call `$number`, with its arguments in their registers.
macro_rules! by_number {
    ($number:expr, $else:expr; $(
        $(#[$attribute:meta])*
        $name:ident $(if $guard:expr)? => $($function:ident)::+($($word:ident)*),
    )+) => {
        match $number {
            $(
                $(#[$attribute])*
                libc::$name $(if $guard)? => {
                    // SAFETY: passed on to the caller.
                    uncancelled(|| unsafe { $($function)::+($(Argument::of($word)),*) } as c_long)
                }
            )+
            _ => $else,
        }
    };
}

/// # Safety
/// As syscall(2).
#[allow(unused_unsafe, reason = "some of the functions in the table are safe")]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long {
    // SAFETY: passed on to the caller.
    let itself = || unsafe { real::syscall(number, a, b, c, d, e, f) };
    let controlled = |fd, command, argument| descriptor::controlled(fd, command, argument, || itself() as c_int);
    let submitted = |_: usize, count, requests| {
        // SAFETY: the program vouches for its requests.
        unsafe { aio::submitting(count, requests) };
        itself()
    };
    let set_up = || io_uring::io_uring_setup_by(itself);
    let forked = || child::forked(|| itself() as c_int);
    // Not all architectures have the older calls that newer calls have replaced.
    by_number! { number, itself();
        SYS_read => receive::read(a b c),
        SYS_readv => receive::readv(a b c),
        SYS_preadv2 => preadv2(a b c d e f),
        SYS_recvfrom => receive::recvfrom(a b c d e f),
        SYS_recvmsg => receive::recvmsg(a b c),
        SYS_recvmmsg => receive::recvmmsg(a b c d e),
        SYS_write => send::write(a b c),
        SYS_writev => send::writev(a b c),
        SYS_pwritev2 => pwritev2(a b c d e f),
        SYS_sendto => send::sendto(a b c d e f),
        SYS_sendmsg => send::sendmsg(a b c),
        SYS_sendmmsg => send::sendmmsg(a b c d),
        SYS_sendfile => sendfile::sendfile(a b c d),
        SYS_splice => sendfile::splice(a b c d e f),
        SYS_io_submit => submitted(a b c),
        SYS_socket => descriptor::socket(a b c),
        SYS_connect => descriptor::connect(a b c),
        SYS_accept => descriptor::accept(a b c),
        SYS_accept4 => descriptor::accept4(a b c d),
        SYS_shutdown => descriptor::shutdown(a b),
        SYS_close => descriptor::close(a),
        SYS_close_range => descriptor::close_range(a b c),
        SYS_dup => descriptor::dup(a),
        #[cfg(target_arch = "x86_64")]
        SYS_dup2 => descriptor::dup2(a b),
        SYS_dup3 => descriptor::dup3(a b c),
        SYS_fcntl => controlled(a b c),
        SYS_ioctl => options::ioctl(a b c),
        SYS_getsockopt => options::getsockopt(a b c d e),
        SYS_setsockopt => options::setsockopt(a b c d e),
        #[cfg(target_arch = "x86_64")]
        SYS_poll => poll::poll(a b c),
        SYS_ppoll if is_there::<timespec>(c) && is_mask(d, e) => ppoll(a b c d),
        #[cfg(target_arch = "x86_64")]
        SYS_select if is_there::<timeval>(e) => select(a b c d e),
        SYS_pselect6 if is_there::<timespec>(e) && is_mask_in(f) => pselect(a b c d e f),
        #[cfg(target_arch = "x86_64")]
        SYS_epoll_create => epoll::epoll_create(a),
        SYS_epoll_create1 => epoll::epoll_create1(a),
        SYS_epoll_ctl => epoll::epoll_ctl(a b c d),
        #[cfg(target_arch = "x86_64")]
        SYS_epoll_wait => epoll::epoll_wait(a b c d),
        SYS_epoll_pwait if is_mask(e, f) => epoll_pwait(a b c d e),
        SYS_epoll_pwait2 if is_mask(e, f) => epoll_pwait2(a b c d e),
        #[cfg(target_arch = "x86_64")]
        SYS_fork => forked(),
        SYS_clone if is_fork(a, b) => forked(),
        SYS_clone3 if is_fork3(a, b) => forked(),
        SYS_execve => exec::execve(a b c),
        SYS_execveat => exec::execveat(a b c d e),
        SYS_exit_group => exit_group(a),
        SYS_mlockall => memory::mlockall(a),
        SYS_munlockall => memory::munlockall(),
        SYS_prctl => seccomp::prctl(a b c d e),
        SYS_seccomp => seccomp::seccomp(a b c),
        SYS_io_uring_setup => set_up(),
    }
}

/// What the kernel has of a sigset_t.
const MASK_BYTES: usize = 8;

/// Whether the kernel takes such a mask.
fn is_mask(mask: usize, bytes: usize) -> bool {
    mask == 0 || bytes == MASK_BYTES && is_there::<u64>(mask)
}

/// Whether an argument that points to a `T` is null, or can be read. If not, the kernel finds that out by itself.
fn is_there<T>(argument: usize) -> bool {
    argument == 0 || is_readable(argument as *const T, 1)
}

/// pselect6(2) has no register left for the size: its last argument points to the mask and the size.
fn is_mask_in(pair: usize) -> bool {
    let pair = pair as *const usize;
    // SAFETY: there is something to read.
    pair.is_null() || is_readable(pair, 2) && unsafe { is_mask(*pair, *pair.add(1)) }
}

/// Calls with libc's form of a mask.
///
/// # Safety
/// `mask` must be null or point to the kernel's.
unsafe fn with_mask(mask: *const u64, call: impl FnOnce(*const sigset_t) -> c_int) -> c_int {
    if mask.is_null() {
        return call(core::ptr::null());
    }
    // SAFETY: zeroed memory is a set without signals, and longer than the kernel's.
    let whole = unsafe {
        let mut whole: sigset_t = core::mem::zeroed();
        (&raw mut whole).cast::<u64>().write(mask.read_unaligned());
        whole
    };
    call(&whole)
}

/// Calls with a copy of the time, and writes what `call` has made of it back where the kernel would: what cannot be
/// written to stays as it is.
///
/// # Safety
/// `time` must be null or valid for reading.
unsafe fn with_time<T: Copy>(time: *mut T, call: impl FnOnce(*mut T) -> c_int) -> c_int {
    if time.is_null() {
        return call(time);
    }
    // SAFETY: not null.
    let mut own = unsafe { time.read_unaligned() };
    let answer = call(&mut own);
    if is_writable(time, 1) {
        // SAFETY: it can be written.
        unsafe { time.write_unaligned(own) };
    }
    answer
}

/// Calls with a copy of the time, where libc's function leaves the time alone and the kernel counts it down.
///
/// # Safety
/// As for `with_time`.
unsafe fn counting_down(time: *mut timespec, call: impl FnOnce(*const timespec) -> c_int) -> c_int {
    let counted = |time: *mut timespec| {
        // SAFETY: null or valid.
        let (deadline, refused) = unsafe { (deadline::after(time), deadline::invalid(time)) };
        let answer = call(time);
        if let Some(left) = deadline::left(deadline, u64::MAX).filter(|_| !refused) {
            // SAFETY: there is a deadline, so there is a time.
            unsafe { *time = left };
        }
        answer
    };
    // SAFETY: passed on to the caller.
    unsafe { with_time(time, counted) }
}

unsafe fn ppoll(fds: *mut pollfd, count: nfds_t, timeout: *mut timespec, mask: *const u64) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe {
        let call = |timeout| with_mask(mask, |mask| poll::ppoll(fds, count, timeout, mask));
        counting_down(timeout, call)
    }
}

#[cfg(target_arch = "x86_64")]
unsafe fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // libc's function makes another system call, which a filter may not allow.
    let plain = |timeout: *mut timeval| {
        let [read, write, except] = [read, write, except].map(|set| set as usize);
        // SAFETY: passed on to the caller.
        unsafe { real::syscall(libc::SYS_select, count as usize, read, write, except, timeout as usize, 0) as c_int }
    };
    // SAFETY: passed on to the caller.
    unsafe { with_time(timeout, |time| select::select_by(count, read, write, except, time, || plain(time))) }
}

unsafe fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timespec,
    mask: *const *const u64,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe {
        let mask = if mask.is_null() { core::ptr::null() } else { *mask };
        let call = |timeout| with_mask(mask, |mask| select::pselect(count, read, write, except, timeout, mask));
        counting_down(timeout, call)
    }
}

unsafe fn epoll_pwait(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const u64,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { with_mask(mask, |mask| epoll::epoll_pwait(epfd, events, most, timeout, mask)) }
}

unsafe fn epoll_pwait2(
    epfd: c_int,
    events: *mut libc::epoll_event,
    most: c_int,
    timeout: *const timespec,
    mask: *const u64,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { with_mask(mask, |mask| epoll::epoll_pwait2(epfd, events, most, timeout, mask)) }
}

// The position has two registers, of which 64-bit systems leave the second alone.
unsafe fn preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: i64, _: usize, flags: c_int) -> ssize_t {
    // SAFETY: passed on to the caller.
    unsafe { receive::preadv2(fd, vector, count, offset, flags) }
}

unsafe fn pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: i64, _: usize, flags: c_int) -> ssize_t {
    // SAFETY: passed on to the caller.
    unsafe { send::pwritev2(fd, vector, count, offset, flags) }
}

/// Whether clone(2) makes a process with memory of its own that goes on where this one is.
fn is_fork(flags: usize, stack: usize) -> bool {
    flags & libc::CLONE_VM as usize == 0 && stack == 0
}

/// Whether clone3(2) makes a process with memory of its own that goes on where this one is.
fn is_fork3(arguments: usize, bytes: usize) -> bool {
    const STACK: usize = 5;
    let words = arguments as *const usize;
    // SAFETY: so many can be read.
    let word = |at| unsafe { *words.add(at) };
    bytes > STACK * size_of::<usize>() && is_readable(words, STACK + 1) && is_fork(word(0), word(STACK))
}

unsafe fn exit_group(status: c_int) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { fork::_exit(status) }
}
