//! The functions that this library stands in front of, as the next library in the search order has them.

use super::errno;
use core::ffi::{CStr, c_char, c_int, c_long, c_uint, c_void};
use libc::{
    aiocb, epoll_event, fd_set, iovec, mmsghdr, msghdr, nfds_t, off_t, pid_t, pollfd, posix_spawn_file_actions_t,
    posix_spawnattr_t, sigset_t, size_t, sockaddr, socklen_t, ssize_t, termios, timespec, timeval, winsize,
};
use underpass_segment::sync::{AtomicPtr, Relaxed};

/// A function that is looked up once: when the library is loaded, or before that by another library's constructor. The
/// loader looks it up behind a lock, which a thread that runs a plugin's constructors holds all the while. If that
/// thread waits for another thread, the other one must not wait for the lock.
pub struct Symbol {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
}

impl Symbol {
    /// The function of a name, which has a NUL at its end.
    pub const fn new(name: &'static str) -> Symbol {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { panic!("no NUL at the end") };
        Symbol { name, address: AtomicPtr::new(core::ptr::null_mut()) }
    }

    /// Its address.
    #[inline]
    pub fn get(&self) -> *mut c_void {
        let known = self.address.load(Relaxed);
        if known.is_null() { self.find() } else { known }
    }

    #[cold]
    fn find(&self) -> *mut c_void {
        // SAFETY: a NUL-terminated name.
        let mut address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if address.is_null() {
            address = missing as *mut c_void;
        }
        self.address.store(address, Relaxed);
        address
    }
}

/// Stands for a function that this libc does not have.
extern "C" fn missing() -> c_long {
    errno::set(libc::ENOSYS);
    -1
}

/// Functions whose arguments no function in Rust can pass on: the code in front of them jumps to them.
#[cfg(target_arch = "x86_64")]
#[allow(non_upper_case_globals, reason = "named as libc names them")]
pub mod variadic {
    use super::Symbol;

    macro_rules! variadic {
        ($($name:ident)+) => {
            $(pub static $name: Symbol = Symbol::new(concat!(stringify!($name), "\0"));)+
            /// All of them.
            pub static ALL: &[&Symbol] = &[$(&$name),+];
        };
    }

    variadic!(dprintf vdprintf __dprintf_chk __vdprintf_chk);
}

/// There are none.
#[cfg(not(target_arch = "x86_64"))]
mod variadic {
    pub static ALL: &[&super::Symbol] = &[];
}

macro_rules! real {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)+) => {
        #[allow(non_upper_case_globals, reason = "named as libc names them")]
        mod symbols {
            use super::Symbol;
            $(pub static $name: Symbol = Symbol::new(concat!(stringify!($name), "\0"));)+
        }

        /// Looks all of them up. Called by the constructor.
        pub fn find_all() {
            for symbol in [$(&symbols::$name),+].into_iter().chain(variadic::ALL.iter().copied()) {
                symbol.get();
            }
            // Clears the error of a function that this libc does not have: the program must not see it.
            // SAFETY: no arguments.
            unsafe { libc::dlerror() };
        }

        $(
            #[inline]
            #[allow(non_snake_case, reason = "named as libc names it")]
            pub unsafe fn $name($($arg: $ty),*) -> $ret {
                let address = symbols::$name.get();
                // SAFETY: the address is that of libc's function with this signature.
                let function: unsafe extern "C" fn($($ty),*) -> $ret = unsafe { core::mem::transmute(address) };
                // SAFETY: passed on to the caller.
                unsafe { function($($arg),*) }
            }
        )+
    };
}

real! {
    read(fd: c_int, buffer: *mut c_void, len: size_t) -> ssize_t;
    readv(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    preadv2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    recv(fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int) -> ssize_t;
    recvfrom(
        fd: c_int, buffer: *mut c_void, len: size_t, flags: c_int, address: *mut sockaddr, address_len: *mut socklen_t
    ) -> ssize_t;
    recvmsg(fd: c_int, message: *mut msghdr, flags: c_int) -> ssize_t;
    recvmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec) -> c_int;
    write(fd: c_int, buffer: *const c_void, len: size_t) -> ssize_t;
    writev(fd: c_int, vector: *const iovec, count: c_int) -> ssize_t;
    pwritev2(fd: c_int, vector: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t;
    send(fd: c_int, buffer: *const c_void, len: size_t, flags: c_int) -> ssize_t;
    sendto(
        fd: c_int, buffer: *const c_void, len: size_t, flags: c_int, address: *const sockaddr, address_len: socklen_t
    ) -> ssize_t;
    sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t;
    sendmmsg(fd: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int;
    sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t;
    aio_read(block: *mut aiocb) -> c_int;
    aio_write(block: *mut aiocb) -> c_int;
    lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut libc::sigevent) -> c_int;
    splice(
        input: c_int, input_offset: *mut off_t, out: c_int, out_offset: *mut off_t, len: size_t, flags: c_uint
    ) -> ssize_t;
    socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int;
    accept(fd: c_int, address: *mut sockaddr, address_len: *mut socklen_t) -> c_int;
    accept4(fd: c_int, address: *mut sockaddr, address_len: *mut socklen_t, flags: c_int) -> c_int;
    connect(fd: c_int, address: *const sockaddr, len: socklen_t) -> c_int;
    close(fd: c_int) -> c_int;
    close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int;
    closefrom(first: c_int) -> ();
    shutdown(fd: c_int, how: c_int) -> c_int;
    dup(fd: c_int) -> c_int;
    dup2(fd: c_int, to: c_int) -> c_int;
    dup3(fd: c_int, to: c_int, flags: c_int) -> c_int;
    fcntl(fd: c_int, command: c_int, argument: usize) -> c_int;
    fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int;
    ioctl(fd: c_int, request: libc::c_ulong, argument: usize) -> c_int;
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, len: socklen_t) -> c_int;
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, len: *mut socklen_t) -> c_int;
    fdopen(fd: c_int, mode: *const c_char) -> *mut libc::FILE;
    freopen(path: *const c_char, mode: *const c_char, stream: *mut libc::FILE) -> *mut libc::FILE;
    poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int;
    ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int;
    select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int;
    pselect(
        count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t
    ) -> c_int;
    epoll_create(size: c_int) -> c_int;
    epoll_create1(flags: c_int) -> c_int;
    epoll_ctl(epfd: c_int, operation: c_int, fd: c_int, event: *mut epoll_event) -> c_int;
    epoll_wait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int;
    epoll_pwait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int;
    epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, most: c_int, timeout: *const timespec, mask: *const sigset_t
    ) -> c_int;
    execve(path: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    execvpe(file: *const c_char, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    execveat(
        folder: c_int, path: *const c_char, argv: *const *const c_char, envp: *const *const c_char, flags: c_int
    ) -> c_int;
    fexecve(fd: c_int, argv: *const *const c_char, envp: *const *const c_char) -> c_int;
    posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    pidfd_spawn(
        pidfd: *mut c_int, path: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    pidfd_spawnp(
        pidfd: *mut c_int, file: *const c_char, actions: *const posix_spawn_file_actions_t,
        attributes: *const posix_spawnattr_t, argv: *const *const c_char, envp: *const *const c_char
    ) -> c_int;
    system(command: *const c_char) -> c_int;
    wordexp(words: *const c_char, result: *mut c_void, flags: c_int) -> c_int;
    pclose(stream: *mut libc::FILE) -> c_int;
    fclose(stream: *mut libc::FILE) -> c_int;
    prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int;
    mlockall(flags: c_int) -> c_int;
    munlockall() -> c_int;
    fork() -> pid_t;
    _Fork() -> pid_t;
    clone(
        body: Option<extern "C" fn(*mut c_void) -> c_int>, stack: *mut c_void, flags: c_int, argument: *mut c_void,
        parent_tid: *mut pid_t, tls: *mut c_void, child_tid: *mut pid_t
    ) -> c_int;
    openpty(
        master: *mut c_int, terminal: *mut c_int, name: *mut c_char, attributes: *const termios, size: *const winsize
    ) -> c_int;
    syscall(number: c_long, a: usize, b: usize, c: usize, d: usize, e: usize, f: usize) -> c_long;
}
