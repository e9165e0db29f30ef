//! Calls that make, copy, pass on and close descriptors: socket, accept, connect, close, dup, fcntl, shutdown,
//! SCM_RIGHTS.

use crate::connection::{self, inside, options, short_lived};
use crate::guest::access::are_bytes_readable;
use crate::guest::table::{self, Known, Nonblocking, Origin, Socket};
use crate::guest::{errno, real, thread};
use crate::lifecycle::{adopt, close, duplicate, reuse};
use crate::watch::epoll;
use core::ffi::{c_int, c_uint};
use libc::{sa_family_t, sockaddr, sockaddr_storage, socklen_t};
use underpass_segment::end::{SHUT_IN, SHUT_OUT};
use underpass_segment::raw::is_quiet;
use underpass_segment::sync::{AtomicU32, Relaxed};
use underpass_segment::{kernel, tap};

/// # Safety
/// As socket(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: no pointers.
    let fd = unsafe { real::socket(domain, kind, protocol) };
    if fd >= 0 && !thread::is_vfork_child() {
        reuse::forget_closed(fd);
        let stream = kind & 0xf == libc::SOCK_STREAM && matches!(domain, libc::AF_INET | libc::AF_INET6);
        let nonblocking = (kind & libc::SOCK_NONBLOCK != 0).into();
        let is_tcp = stream && makes_tcp(fd, domain, protocol);
        let made = Socket { is_tcp, nonblocking, ..Socket::default() };
        table::set(fd, if stream { Known::Socket(made) } else { Known::Other });
    }
    fd
}

/// Whether `fd`, which socket(2) has just made, has TCP as its protocol. The kernel is asked for the first socket of
/// each kind only.
fn makes_tcp(fd: c_int, domain: c_int, protocol: c_int) -> bool {
    /// A bit for each kind that was found to be TCP.
    static MAKES_TCP: AtomicU32 = AtomicU32::new(0);
    if !matches!(protocol, 0 | libc::IPPROTO_TCP) {
        return false;
    }
    let bit = 1 << (u32::from(domain == libc::AF_INET6) | u32::from(protocol != 0) << 1);
    if MAKES_TCP.load(Relaxed) & bit != 0 {
        return true;
    }
    let makes = !is_quiet() && kernel::is_tcp(fd);
    if makes {
        MAKES_TCP.fetch_or(bit, Relaxed);
    }
    makes
}

/// # Safety
/// As accept(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept(fd: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> c_int {
    tap::let_go();
    let listener = table::get(fd);
    // SAFETY: passed on to the caller.
    accepted(fd, listener, unsafe { real::accept(fd, address, address_len) }, 0)
}

/// # Safety
/// As accept4(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    address_len: *mut socklen_t,
    flags: c_int,
) -> c_int {
    tap::let_go();
    let listener = table::get(fd);
    // SAFETY: passed on to the caller.
    accepted(fd, listener, unsafe { real::accept4(fd, address, address_len, flags) }, flags)
}

fn accepted(from: c_int, listener: Known, fd: c_int, flags: c_int) -> c_int {
    if fd >= 0 && !thread::is_vfork_child() {
        reuse::forget_closed(fd);
        let mut is_tcp = false;
        if let Some(listener) = as_listener(from, listener) {
            is_tcp = listener.is_tcp;
            if !listener.listens {
                make_listener_foreign(from);
            }
        }
        let nonblocking = (flags & libc::SOCK_NONBLOCK != 0).into();
        let accepted = Socket { is_tcp, is_connected: true, nonblocking, listens: false, accepted: true };
        table::set(fd, Known::Socket(accepted));
        if is_tcp && short_lived::begin(Origin::Accepted) {
            adopt::give_to_libc(fd);
        }
    }
    fd
}

/// `fd`, so far `known` as that, is a listener. That a listener from another image is a TCP socket is found out here.
fn as_listener(fd: c_int, known: Known) -> Option<Socket> {
    match known {
        Known::Socket(listener) => Some(listener),
        Known::Nothing if !is_quiet() && kernel::is_tcp(fd) => {
            let listener = Socket { is_tcp: true, nonblocking: Nonblocking::Shared, ..Socket::default() };
            table::replace(fd, known, Known::Socket(listener)).then_some(listener)
        }
        _ => None,
    }
}

/// `fd` listens, so its registrations become foreign: a set that has no other socket costs nothing.
#[cold]
fn make_listener_foreign(fd: c_int) {
    let generation = table::generation(fd);
    if !epoll::is_looked_at(fd) && table::note_listening(fd) {
        epoll::make_foreign(fd, generation);
    }
}

/// # Safety
/// As connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // A listener that may become a connection after all, though its registrations are not followed any more.
    if let listener @ Known::Socket(Socket { listens: true, .. }) = table::get(fd) {
        table::replace(fd, listener, Known::Other);
    }
    // SAFETY: passed on to the caller.
    let call = || unsafe { real::connect(fd, address, len) };
    // SAFETY: it can be read, and begins with the family.
    let family = || unsafe { (*address).sa_family };
    let disconnects = matches!(table::get(fd), Known::Connection(_) | Known::Nothing)
        && (size_of::<sa_family_t>()..=size_of::<sockaddr_storage>()).contains(&(len as usize))
        && are_bytes_readable(address.cast(), len as usize)
        && family() == libc::AF_UNSPEC as sa_family_t;
    if !disconnects {
        let answer = call();
        if (answer == 0 || errno::get() == libc::EINPROGRESS) && !thread::is_vfork_child() {
            // The kernel has just read the address, so it can be read.
            let connects = family() != libc::AF_UNSPEC as sa_family_t;
            if answer == 0 {
                table::note(fd, |socket| Socket { is_connected: connects, ..socket });
            }
            let is_tcp = || matches!(table::get(fd), Known::Socket(Socket { is_tcp: true, .. }));
            if connects && is_tcp() && short_lived::begin(Origin::Connected) {
                adopt::give_to_libc(fd);
            }
        }
        return answer;
    }
    match adopt::of(fd) {
        Some(connection) => close::dissolve(connection, call),
        None => call(),
    }
}

/// # Safety
/// As connect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { connect(fd, address, len) }
}

/// Refuses a call on a number at which the library has a descriptor of its own, as the kernel would for a free number.
fn refuses_kept(fd: c_int) -> bool {
    // The descriptors of a child of vfork are its own.
    let kept = !thread::is_vfork_child() && inside::is_kept(fd);
    if kept {
        errno::set(libc::EBADF);
    }
    kept
}

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close(fd: c_int) -> c_int {
    if refuses_kept(fd) {
        return -1;
    }
    close::forget(fd);
    // SAFETY: passed on to the caller.
    unsafe { real::close(fd) }
}

/// # Safety
/// As close(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __close(fd: c_int) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { close(fd) }
}

/// # Safety
/// As close_range(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOSE_RANGE_UNSHARE: c_int = 2;
    // SAFETY: passed on to the caller.
    let call = |first, last| unsafe { real::close_range(first, last, flags) };
    // Calls with other flags close nothing, or are refused.
    if flags & !CLOSE_RANGE_UNSHARE != 0 || first > last {
        return call(first, last);
    }
    let known = || (first..=last).take_while(|&fd| fd < table::highest() as u32);
    let is_kept = |&fd: &u32| inside::is_kept(fd as c_int);
    known().filter(|fd| !is_kept(fd)).for_each(|fd| close::forget(fd as c_int));
    // Closes around the library's own descriptors, some of which may just have been made.
    let mut first = first;
    for kept in known().filter(is_kept) {
        if first < kept && call(first, kept - 1) != 0 {
            return -1;
        }
        first = kept + 1;
    }
    if first <= last { call(first, last) } else { 0 }
}

/// # Safety
/// As closefrom(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn closefrom(first: c_int) {
    // SAFETY: passed on to the caller.
    unsafe {
        if close_range(first.max(0) as u32, u32::MAX, 0) != 0 {
            real::closefrom(first);
        }
    }
}

/// # Safety
/// As shutdown(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn shutdown(fd: c_int, how: c_int) -> c_int {
    let directions = match how {
        libc::SHUT_RD => SHUT_IN,
        libc::SHUT_WR => SHUT_OUT,
        libc::SHUT_RDWR => SHUT_IN | SHUT_OUT,
        _ => 0,
    };
    // SAFETY: no pointers.
    let shut = || unsafe { real::shutdown(fd, how) };
    // Also for a connection that was not used yet: both ends have to know of the shutdown, should the connection go up.
    let answer = match adopt::of(fd) {
        Some(connection) => connection.shut_down(directions, shut),
        None => shut(),
    };
    if answer == 0
        && let Some(connection) = connection::named(fd)
    {
        // The next send or receive finds out from the kernel.
        if directions & SHUT_OUT != 0 {
            connection.end.pin_sending();
        }
        if directions & SHUT_IN != 0
            && let Some(port) = connection.ready_port()
        {
            port.ask_kernel_next();
        }
        epoll::tell_anew(connection);
    }
    answer
}

/// # Safety
/// As dup(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup(fd: c_int) -> c_int {
    if refuses_kept(fd) {
        return -1;
    }
    // SAFETY: no pointers.
    let copy = unsafe { real::dup(fd) };
    duplicate::duplicate(fd, copy);
    copy
}

/// # Safety
/// As dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: no pointers.
    replaced(fd, to, || unsafe { real::dup2(fd, to) })
}

/// # Safety
/// As dup2(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __dup2(fd: c_int, to: c_int) -> c_int {
    // SAFETY: no pointers.
    unsafe { dup2(fd, to) }
}

/// # Safety
/// As dup3(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dup3(fd: c_int, to: c_int, flags: c_int) -> c_int {
    // SAFETY: no pointers.
    let call = || unsafe { real::dup3(fd, to, flags) };
    if flags & !libc::O_CLOEXEC == 0 { replaced(fd, to, call) } else { call() }
}

fn replaced(fd: c_int, to: c_int, call: impl FnOnce() -> c_int) -> c_int {
    if refuses_kept(fd) {
        return -1;
    }
    if fd == to || thread::is_vfork_child() {
        return call();
    }
    // Behind a seccomp filter the library does not ask the kernel whether there is something to duplicate. To forget
    // the old descriptor after the program's call takes no system call, unless a program without the library has the
    // connection.
    let is_asked = !is_quiet() || connection::known(to).is_some_and(|it| it.has_outsider());
    if is_asked {
        if kernel::descriptor_flags(fd).is_none() {
            // Nothing is replaced; dup2 still has an error to report.
            return call();
        }
        close::forget(to);
    }
    let copy = call();
    if !is_asked && copy >= 0 {
        close::forget(to);
    }
    duplicate::duplicate(fd, copy);
    copy
}

/// # Safety
/// As fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: passed on to the caller.
    controlled(fd, command, argument, || unsafe { real::fcntl(fd, command, argument) })
}

/// # Safety
/// As fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: passed on to the caller.
    controlled(fd, command, argument, || unsafe { real::fcntl64(fd, command, argument) })
}

/// # Safety
/// As fcntl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __fcntl(fd: c_int, command: c_int, argument: usize) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { fcntl(fd, command, argument) }
}

/// fcntl(2), made by `call`.
pub fn controlled(fd: c_int, command: c_int, argument: usize, call: impl FnOnce() -> c_int) -> c_int {
    if refuses_kept(fd) {
        return -1;
    }
    if command == libc::F_SETFL && argument as c_int & libc::O_ASYNC != 0 {
        crate::calls::options::expect_signals(fd);
    }
    let answer = call();
    if answer < 0 {
        return answer;
    }
    match command {
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => duplicate::duplicate(fd, answer),
        libc::F_SETFL => options::set_nonblocking(fd, argument as c_int & libc::O_NONBLOCK != 0),
        _ => {}
    }
    answer
}
