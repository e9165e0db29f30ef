//! What the library asks of the kernel about a TCP socket.
#![allow(unsafe_code, reason = "issues system calls with buffers of its own")]

use crate::clock::nap_unless_signalled;
use crate::raw::{Answer, Errno, is_quiet, syscall};
use crate::sync::AtomicU32;
use core::cell::Cell;
use core::mem::MaybeUninit;

/// TCP states as the kernel numbers them (include/net/tcp_states.h).
pub const ESTABLISHED: u8 = 1;
/// This end has asked for a connection.
pub const SYN_SENT: u8 = 2;
/// It was asked for one (by both ends at once, or with TCP Fast Open).
pub const SYN_RECEIVED: u8 = 3;
/// This end has sent its FIN, and it may not have been acknowledged.
pub const FIN_WAIT1: u8 = 4;
/// This end's FIN has been acknowledged.
pub const FIN_WAIT2: u8 = 5;
/// No connection, or none any more.
pub const CLOSED: u8 = 7;
/// The other end has sent its FIN.
pub const CLOSE_WAIT: u8 = 8;
/// Both have, this end last.
pub const LAST_ACK: u8 = 9;
/// Both have, at once.
pub const CLOSING: u8 = 11;

/// Whether a connection in this TCP state still carries bytes, one way at least.
pub const fn carries(state: u8) -> bool {
    matches!(state, ESTABLISHED | FIN_WAIT1 | FIN_WAIT2 | CLOSE_WAIT)
}

/// Whether a socket in this TCP state carries bytes, or may once it is connected: not a listener.
pub const fn may_carry(state: u8) -> bool {
    carries(state) || matches!(state, SYN_SENT | SYN_RECEIVED | CLOSED)
}

fn option<T: Copy>(fd: i32, level: i32, name: i32) -> Result<T, Errno> {
    let mut value = MaybeUninit::<T>::zeroed();
    let mut len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes; callers name plain integers only.
    unsafe {
        syscall(
            libc::SYS_getsockopt,
            [fd as usize, level as usize, name as usize, value.as_mut_ptr() as usize, &raw mut len as usize, 0],
        )?;
        Ok(value.assume_init())
    }
}

/// An integer option of the socket.
///
/// # Errors
/// ENOTSOCK, EBADF, ENOPROTOOPT.
pub fn int_option(fd: i32, level: i32, name: i32) -> Result<i32, Errno> {
    option(fd, level, name)
}

/// An option of the socket that is no integer, and its length.
///
/// # Errors
/// ENOTSOCK, EBADF, ENOPROTOOPT and what the option has of its own.
pub fn bytes_option(fd: i32, level: i32, name: i32, value: &mut [u8]) -> Result<usize, Errno> {
    let mut len = value.len() as libc::socklen_t;
    let (to, len_at) = (value.as_mut_ptr() as usize, &raw mut len as usize);
    // SAFETY: the kernel writes at most `len` bytes.
    unsafe { syscall(libc::SYS_getsockopt, [fd as usize, level as usize, name as usize, to, len_at, 0]) }?;
    Ok(len as usize)
}

/// Whether a filter looks at what arrives at the socket.
pub fn has_filter(fd: i32) -> bool {
    match bytes_option(fd, libc::SOL_SOCKET, libc::SO_GET_FILTER, &mut []) {
        Ok(instructions) => instructions > 0,
        // An eBPF program cannot be shown.
        Err(e) => e.0 == libc::EACCES,
    }
}

/// Sets an integer option of the socket.
///
/// # Errors
/// ENOTSOCK, EBADF, ENOPROTOOPT.
pub fn set_int_option(fd: i32, level: i32, name: i32, value: i32) -> Result<(), Errno> {
    // SAFETY: the kernel reads four bytes.
    unsafe {
        syscall(
            libc::SYS_setsockopt,
            [fd as usize, level as usize, name as usize, &raw const value as usize, size_of::<i32>(), 0],
        )
    }
    .map(|_| ())
}

/// How long receives (SO_RCVTIMEO) or sends (SO_SNDTIMEO) on the socket wait, in nanoseconds; `None`: for ever.
pub fn timeout(fd: i32, name: i32) -> Option<u64> {
    let it: libc::timeval = option(fd, libc::SOL_SOCKET, name).ok()?;
    let nanoseconds = (it.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(it.tv_usec as u64 * 1000);
    (nanoseconds > 0).then_some(nanoseconds)
}

/// Whether `fd` is a TCP socket.
pub fn is_tcp(fd: i32) -> bool {
    int_option(fd, libc::SOL_SOCKET, libc::SO_PROTOCOL) == Ok(libc::IPPROTO_TCP)
}

/// The socket's cookie: unique on this host since it booted, the same in every process that has the socket.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn cookie(fd: i32) -> Result<u64, Errno> {
    option(fd, libc::SOL_SOCKET, libc::SO_COOKIE)
}

/// The counters of TCP_INFO that fix positions in the kernel stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// TCP state.
    pub state: u8,
    /// Data was carried in the SYN, which the counters below treat specially.
    pub fast_open: bool,
    /// Bytes acknowledged by the other end (RFC 4898 tcpEStatsAppHCThruOctetsAcked; an active opener's SYN counts one).
    pub acked: u64,
    /// Bytes received in order.
    pub received: u64,
    /// Bytes sent, less those sent again.
    pub sent_once: u64,
    /// Bytes that wait to be sent for the first time.
    pub unsent: u32,
}

/// Reads the counters.
///
/// # Errors
/// ENOTSOCK, EBADF; ENOSYS when the kernel is older than 4.19 and has no such counters.
pub fn counters(fd: i32) -> Result<Counters, Errno> {
    const ENOUGH: usize = 216;
    let mut info = [0u64; 32];
    let mut len = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes into the array.
    unsafe {
        syscall(
            libc::SYS_getsockopt,
            [
                fd as usize,
                libc::IPPROTO_TCP as usize,
                libc::TCP_INFO as usize,
                info.as_mut_ptr() as usize,
                &raw mut len as usize,
                0,
            ],
        )?;
    }
    if (len as usize) < ENOUGH {
        return Err(Errno(libc::ENOSYS));
    }
    // Offsets of struct tcp_info (include/uapi/linux/tcp.h): options 5, bytes_acked 120, bytes_received 128,
    // notsent_bytes 144, bytes_sent 200, bytes_retrans 208.
    const SYN_DATA: u8 = 32;
    let first = info[0].to_ne_bytes();
    Ok(Counters {
        state: first[0],
        fast_open: first[5] & SYN_DATA != 0,
        acked: info[15],
        received: info[16],
        sent_once: info[25].wrapping_sub(info[26]),
        unsent: u32::from_ne_bytes(info[18].to_ne_bytes()[..4].try_into().unwrap_or_default()),
    })
}

fn queue(fd: i32, request: libc::c_ulong) -> Result<u32, Errno> {
    let mut bytes = 0i32;
    // SAFETY: FIONREAD and TIOCOUTQ write one int.
    unsafe { syscall(libc::SYS_ioctl, [fd as usize, request as usize, &raw mut bytes as usize, 0, 0, 0])? };
    Ok(bytes as u32)
}

/// Bytes that wait in the kernel to be read (SIOCINQ).
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn inq(fd: i32) -> Result<u32, Errno> {
    queue(fd, libc::FIONREAD)
}

/// Whether the next byte is the urgent one, at which a receive ends (sockatmark(3)).
pub fn is_at_mark(fd: i32) -> bool {
    const SIOCATMARK: libc::c_ulong = 0x8905;
    queue(fd, SIOCATMARK).is_ok_and(|it| it != 0)
}

/// Bytes that the other end's kernel has not acknowledged (SIOCOUTQ).
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn outq(fd: i32) -> Result<u32, Errno> {
    queue(fd, libc::TIOCOUTQ)
}

/// Whether a few single bytes can be sent without waiting, however long it takes until what was sent before, and may have
/// been read already, is acknowledged.
pub fn has_room_for_bells(fd: i32) -> bool {
    // SOCK_MIN_SNDBUF, which is room for two segments.
    const ROOM: u64 = 4608;
    send_buffer(fd).map_or_else(|| can_send(fd), |(size, queued)| queued == 0 || queued + ROOM <= size)
}

/// Whether so many bytes can be sent while the other end reads nothing, with what the kernel counts beside them.
pub fn has_room_for(fd: i32, bytes: u64) -> bool {
    bytes == 0 || send_buffer(fd).is_some_and(|(size, queued)| queued + 2 * bytes <= size)
}

fn can_send(fd: i32) -> bool {
    poll_now(fd, libc::POLLOUT) & libc::POLLOUT != 0
}

/// The size of the send buffer and what of it is used.
fn send_buffer(fd: i32) -> Option<(u64, u64)> {
    // SK_MEMINFO_SNDBUF and SK_MEMINFO_WMEM_QUEUED.
    const SNDBUF: usize = 3;
    const QUEUED: usize = 5;
    let mut info = [0; 36];
    bytes_option(fd, libc::SOL_SOCKET, libc::SO_MEMINFO, &mut info).ok()?;
    let word = |at: usize| u64::from(u32::from_ne_bytes(core::array::from_fn(|i| info[4 * at + i])));
    Some((word(SNDBUF), word(QUEUED)))
}

/// recv, straight into `len` bytes at `to` (null with MSG_TRUNC discards).
///
/// # Safety
/// `to` must be valid for writing `len` bytes, or null with MSG_TRUNC.
#[inline]
pub unsafe fn recv(fd: i32, to: *mut u8, len: usize, flags: i32) -> Answer {
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_recvfrom, [fd as usize, to as usize, len, flags as usize, 0, 0]) }
}

/// recvmsg.
///
/// # Safety
/// The message's buffers must be valid for writing.
pub unsafe fn recv_message(fd: i32, message: &mut libc::msghdr, flags: i32) -> Answer {
    // SAFETY: passed on to the caller.
    unsafe { syscall(libc::SYS_recvmsg, [fd as usize, &raw mut *message as usize, flags as usize, 0, 0, 0]) }
}

/// Whether the kernel refuses such buffers for a call on this socket before it looks at the stream (EFAULT, EINVAL): those
/// that no process can have.
///
/// # Safety
/// `vector` must point to `count` buffers; nothing is written to these.
#[cold]
pub unsafe fn refuses(fd: i32, vector: *const libc::iovec, count: usize) -> bool {
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vector.cast_mut(), count as _);
    // The queue of errors is empty: nobody has asked for any.
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: the message names the caller's buffers.
    !is_quiet() && unsafe { recv_message(fd, &mut message, flags) } != Err(Errno(libc::EAGAIN))
}

/// Whether there is memory of this process.
#[cold]
pub fn is_mapped<T>(address: *const T) -> bool {
    const PAGE: usize = 4096;
    let mut resident = 0u8;
    let page = address as usize & !(PAGE - 1);
    // SAFETY: the kernel writes one byte for one page.
    !is_quiet() && unsafe { syscall(libc::SYS_mincore, [page, 1, &raw mut resident as usize, 0, 0, 0]) }.is_ok()
}

/// Sends one doorbell without waiting.
///
/// # Errors
/// EAGAIN, EPIPE, ECONNRESET.
#[inline]
pub fn send_bell(fd: i32) -> Answer {
    send(fd, &[0u8])
}

/// Sends without waiting.
///
/// # Errors
/// EAGAIN, EPIPE, ECONNRESET.
#[inline]
pub fn send(fd: i32, bytes: &[u8]) -> Answer {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: the bytes are readable.
    unsafe { syscall(libc::SYS_sendto, [fd as usize, bytes.as_ptr() as usize, bytes.len(), flags as usize, 0, 0]) }
}

/// poll's answer for one socket, at once.
pub fn poll_now(fd: i32, events: i16) -> i16 {
    let mut it = libc::pollfd { fd, events, revents: 0 };
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: one pollfd and one timespec; no signal mask.
    let _ = unsafe { syscall(libc::SYS_ppoll, [&raw mut it as usize, 1, &raw const now as usize, 0, 0, 0]) };
    it.revents
}

/// Whether `flag` (O_NONBLOCK, O_ASYNC), or one of several, is set.
pub fn has_flag(fd: i32, flag: i32) -> bool {
    // SAFETY: F_GETFL takes no argument.
    let flags = unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFL as usize, 0, 0, 0, 0]) };
    flags.is_ok_and(|f| f as i32 & flag != 0)
}

/// Whether `fd` is the end of a pipe that can be written to.
pub fn is_pipe_to_write(fd: i32) -> bool {
    // SAFETY: zeroed memory is a valid stat.
    let mut about: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: the kernel writes one stat.
    let known = unsafe { syscall(libc::SYS_fstat, [fd as usize, &raw mut about as usize, 0, 0, 0, 0]) };
    known.is_ok() && about.st_mode & libc::S_IFMT == libc::S_IFIFO && has_flag(fd, libc::O_WRONLY | libc::O_RDWR)
}

/// Whether O_NONBLOCK is set.
pub fn is_nonblocking(fd: i32) -> bool {
    has_flag(fd, libc::O_NONBLOCK)
}

/// The descriptor's own flags (FD_CLOEXEC); `None` when it is not open.
pub fn descriptor_flags(fd: i32) -> Option<i32> {
    // SAFETY: F_GETFD takes no argument.
    unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_GETFD as usize, 0, 0, 0, 0]) }.ok().map(|f| f as i32)
}

/// A new descriptor that a poll always finds readable, by its number out of the way of those that the program gets.
pub fn always_readable() -> Option<i32> {
    const BEHIND: i32 = 1000;
    let flags = (libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) as usize;
    // SAFETY: no pointers.
    let low = unsafe { syscall(libc::SYS_eventfd2, [1, flags, 0, 0, 0, 0]) }.ok()? as i32;
    let high = duplicate(low, BEHIND);
    if high.is_some() {
        close(low);
    }
    high.or(Some(low))
}

/// Another descriptor of what `fd` is, numbered from `first` on and closed in an executed program.
pub fn duplicate(fd: i32, first: i32) -> Option<i32> {
    // SAFETY: no pointers.
    let copy =
        unsafe { syscall(libc::SYS_fcntl, [fd as usize, libc::F_DUPFD_CLOEXEC as usize, first as usize, 0, 0, 0]) };
    copy.ok().map(|fd| fd as i32)
}

/// Closes a descriptor of the library's own.
pub fn close(fd: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { syscall(libc::SYS_close, [fd as usize, 0, 0, 0, 0, 0]) };
}

/// Sleeps while `word` is `value`, until [`wake_all`] or `deadline` (CLOCK_MONOTONIC, ns). The word may lie in memory that
/// other processes have.
///
/// # Errors
/// EAGAIN when it is not; ETIMEDOUT; EINTR.
pub fn wait_for_change(word: &AtomicU32, value: u32, deadline: Option<u64>) -> Answer {
    const NS: u64 = 1_000_000_000;
    const ANY: usize = u32::MAX as usize;
    let at = deadline.map(|ns| libc::timespec { tv_sec: (ns / NS) as i64, tv_nsec: (ns % NS) as i64 });
    let at = at.as_ref().map_or(0, |at| at as *const libc::timespec as usize);
    let operation = libc::FUTEX_WAIT_BITSET as usize;
    // SAFETY: the kernel reads the word, and a time or none.
    unsafe { syscall(libc::SYS_futex, [word.as_ptr() as usize, operation, value as usize, at, 0, ANY]) }
}

/// Wakes all who sleep on `word`.
pub fn wake_all(word: &AtomicU32) {
    let (operation, all) = (libc::FUTEX_WAKE as usize, i32::MAX as usize);
    // SAFETY: the kernel takes the word's address for a name alone.
    let _ = unsafe { syscall(libc::SYS_futex, [word.as_ptr() as usize, operation, all, 0, 0, 0]) };
}

/// Calls `what` for every open descriptor of this process, as /proc/self/fd lists them; false when it does not.
pub fn for_each_descriptor(mut what: impl FnMut(i32)) -> bool {
    const NAME: usize = 19;
    let path = c"/proc/self/fd".as_ptr() as usize;
    let flags = (libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC) as usize;
    // SAFETY: a NUL-terminated path.
    let Ok(folder) = (unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, path, flags, 0, 0, 0]) }) else {
        return false;
    };
    let mut entries = [0u8; 4096];
    loop {
        // SAFETY: the kernel writes at most the buffer's length.
        let got =
            unsafe { syscall(libc::SYS_getdents64, [folder, entries.as_mut_ptr() as usize, entries.len(), 0, 0, 0]) };
        let Ok(len @ 1..) = got else { break };
        let mut rest = &entries[..len.min(entries.len())];
        // linux_dirent64: the record's length is at 16, its NUL-terminated name at 19.
        while let Some(size) = rest.get(16..18).map(|it| usize::from(u16::from_ne_bytes([it[0], it[1]]))) {
            let Some(name) = rest.get(NAME..size) else { break };
            let digits = name.split(|&byte| byte == 0).next().unwrap_or_default();
            if let Some(fd) = core::str::from_utf8(digits).ok().and_then(|it| it.parse().ok())
                && fd != folder as i32
            {
                what(fd);
            }
            rest = &rest[size..];
        }
    }
    close(folder as i32);
    true
}

/// Ends the connection in both directions.
pub fn shut_down(fd: i32) {
    // SAFETY: no pointers.
    let _ = unsafe { syscall(libc::SYS_shutdown, [fd as usize, libc::SHUT_RDWR as usize, 0, 0, 0, 0]) };
}

/// Makes the last close of the socket a reset, as unread data does.
pub fn reset_at_close(fd: i32) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let value = (&raw const linger).cast::<u8>() as usize;
    // SAFETY: the kernel reads the structure.
    let _ = unsafe {
        syscall(
            libc::SYS_setsockopt,
            [fd as usize, libc::SOL_SOCKET as usize, libc::SO_LINGER as usize, value, size_of_val(&linger), 0],
        )
    };
}

/// Does `what` with all signals held back from this thread that a handler may hear of.
pub fn undisturbed<T>(what: impl FnOnce() -> T) -> T {
    undisturbed_since(|_| what())
}

/// The same for one who is told which signals were held back before.
pub fn undisturbed_since<T>(what: impl FnOnce(u64) -> T) -> T {
    if is_quiet() {
        return what(0);
    }
    let before = change_signal_mask(libc::SIG_BLOCK, worth_holding_back());
    let result = what(before.unwrap_or(0));
    if let Ok(before) = before {
        let _ = change_signal_mask(libc::SIG_SETMASK, before);
    }
    result
}

/// Changes which signals are held back from this thread; returns which were before.
fn change_signal_mask(how: i32, mask: u64) -> Result<u64, Errno> {
    let mut before = 0u64;
    let (new, old) = (&raw const mask as usize, &raw mut before as usize);
    // SAFETY: the kernel reads one mask of eight bytes and writes another.
    unsafe { syscall(libc::SYS_rt_sigprocmask, [how as usize, new, old, size_of::<u64>(), 0, 0]) }?;
    Ok(before)
}

/// All signals, but for the end of a child of which no handler hears: held back here, it would end a sleep of another thread
/// that does not hold it back; a thread that does not either loses it.
fn worth_holding_back() -> u64 {
    // What the kernel calls a sigaction: the handler, flags, restorer and mask.
    let mut action = [0usize; 4];
    let arguments = [libc::SIGCHLD as usize, 0, action.as_mut_ptr() as usize, size_of::<u64>(), 0, 0];
    // SAFETY: the kernel writes a sigaction, which has that size.
    let asked = unsafe { syscall(libc::SYS_rt_sigaction, arguments) };
    let is_heard = asked.is_err() || !matches!(action[0], libc::SIG_DFL | libc::SIG_IGN);
    if is_heard { u64::MAX } else { !(1 << (libc::SIGCHLD - 1)) }
}

thread_local! {
    /// What the program itself holds back, while a call of this thread holds back all signals: see [`HeldBack`].
    static OWN_MASK: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Holds signals back from this thread as long as it lives, as the kernel does in a call until that would wait: one that
/// comes while the library moves bytes then ends the wait. Those that an instruction causes are not held back.
#[derive(Debug)]
pub struct HeldBack {
    is_outermost: bool,
}

impl HeldBack {
    /// From now on.
    pub fn new() -> Self {
        let is_outermost = !is_quiet() && OWN_MASK.get().is_none() && hold_back();
        Self { is_outermost }
    }
}

impl Default for HeldBack {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        if self.is_outermost
            && let Some(mask) = OWN_MASK.take()
        {
            let _ = change_signal_mask(libc::SIG_SETMASK, mask);
        }
    }
}

fn hold_back() -> bool {
    const BY_INSTRUCTIONS: [i32; 6] =
        [libc::SIGSEGV, libc::SIGBUS, libc::SIGILL, libc::SIGFPE, libc::SIGTRAP, libc::SIGSYS];
    let mask = BY_INSTRUCTIONS.iter().fold(worth_holding_back(), |mask, number| mask & !(1 << (number - 1)));
    let before = change_signal_mask(libc::SIG_BLOCK, mask);
    OWN_MASK.set(before.ok());
    before.is_ok()
}

/// Does `wait`, which is told the program's own mask if signals are held back: that is to hold in it, and does for the calls of
/// a handler that comes, or leaves for good by a jump.
pub fn with_own_mask<T>(wait: impl FnOnce(Option<u64>) -> T) -> T {
    let mask = OWN_MASK.take();
    let result = wait(mask);
    OWN_MASK.set(mask);
    result
}

/// Does `call`, a system call that may wait, without holding signals back.
pub fn letting_signals_in<T>(call: impl FnOnce() -> T) -> T {
    let Some(mask) = OWN_MASK.take() else { return call() };
    let _ = change_signal_mask(libc::SIG_SETMASK, mask);
    let result = call();
    hold_back();
    result
}

/// Whether a signal that was held back has come and was handled, now.
pub fn is_signalled() -> bool {
    with_own_mask(|mask| mask.is_some_and(|mask| !nap_unless_signalled(0, mask)))
}

/// This process.
pub fn process_id() -> i32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_getpid, [0; 6]) }.unwrap_or(0) as i32
}

/// A copy of what lies at `from` in the program's memory.
///
/// # Errors
/// EFAULT where nothing lies that can be read, EPERM or ENOSYS where a sandbox does not allow to ask.
pub fn copy_of<T: Copy>(from: *const T) -> Result<T, Errno> {
    let mut copy = MaybeUninit::<T>::uninit();
    let piece = |at: *mut T| libc::iovec { iov_base: at.cast(), iov_len: size_of::<T>() };
    let (to, from) = (piece(copy.as_mut_ptr()), piece(from.cast_mut()));
    let (to, from) = (&raw const to as usize, &raw const from as usize);
    // SAFETY: the kernel writes to our own memory, and checks what it reads.
    match unsafe { syscall(libc::SYS_process_vm_readv, [process_id() as usize, to, 1, from, 1, 0]) }? {
        // SAFETY: all of it was written, and is a copy of a `T`.
        all if all == size_of::<T>() => Ok(unsafe { copy.assume_init() }),
        _ => Err(Errno(libc::EFAULT)),
    }
}

/// This thread.
pub fn thread_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_gettid, [0; 6]) }.unwrap_or(0) as u32
}

/// Whether thread `tid` is one of this process.
pub fn is_thread_of_this_process(tid: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    unsafe { syscall(libc::SYS_tgkill, [process_id() as usize, tid as usize, 0, 0, 0, 0]) }.is_ok()
}

/// What the kernel says of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// It is no more, or is merely waiting to be reaped.
    Gone,
    /// It lives, and began at this time.
    Began(u64),
    /// It may live.
    Unknown,
}

/// What there is of process `pid`. Its first thread may end before the others, and then waits for them.
pub fn process(pid: u32) -> Process {
    if !exists(pid) {
        return Process::Gone;
    }
    match stat(pid) {
        None => Process::Unknown,
        Some(it) if it.has_ended && it.threads <= 1 => Process::Gone,
        Some(it) => Process::Began(it.began),
    }
}

/// Whether thread `tid`, of any process, exists and is not merely waiting to be reaped.
pub fn thread_lives(tid: u32) -> bool {
    exists(tid) && stat(tid).is_none_or(|it| !it.has_ended)
}

/// Whether thread `tid` sleeps in the kernel, or cannot be seen.
pub fn thread_sleeps(tid: u32) -> bool {
    stat(tid).is_none_or(|it| !it.runs)
}

fn exists(tid: u32) -> bool {
    // SAFETY: signal 0 is sent to nobody.
    let answer = unsafe { syscall(libc::SYS_tkill, [tid as usize, 0, 0, 0, 0, 0]) };
    answer != Err(Errno(libc::ESRCH))
}

/// Of a thread, and of the process that it is of.
struct Stat {
    has_ended: bool,
    runs: bool,
    threads: u64,
    began: u64,
}

/// What /proc says of thread `tid`, if it does.
fn stat(tid: u32) -> Option<Stat> {
    let mut found = None;
    // A name with a newline makes several lines of it: the last is the one with the figures.
    let _ = for_each_line(format_args!("/proc/{tid}/stat\0"), |line| {
        if let Some((_, figures)) = line.rsplit_once(')') {
            found = figures_of(figures);
        }
    });
    found
}

/// What follows the name in /proc/PID/stat: the state first, then numbers.
fn figures_of(text: &str) -> Option<Stat> {
    let mut words = text.split_ascii_whitespace();
    let state = words.next()?;
    let has_ended = matches!(state, "Z" | "X");
    let threads = words.nth(16)?.parse().ok()?;
    Some(Stat { has_ended, runs: state == "R", threads, began: words.nth(1)?.parse().ok()? })
}

/// The namespaces in which numbers of processes and times are told here: that of the numbers in the upper half. `None`
/// where /proc does not tell of the same ones.
pub fn namespaces() -> Option<u64> {
    let mut target = [0u8; 64];
    let me = number(link_target(format_args!("/proc/self\0"), &mut target)?)?;
    if me != process_id() as u64 {
        return None;
    }
    let mut inode = |name| {
        let text = link_target(format_args!("/proc/self/ns/{name}\0"), &mut target)?;
        number(text.strip_suffix(b"]")?.rsplit(|&byte| byte == b'[').next()?)
    };
    // Before 5.6 there was one time for all.
    Some(inode("pid")? << 32 | inode("time").unwrap_or(0) & u64::from(u32::MAX))
}

fn number(digits: &[u8]) -> Option<u64> {
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Effective user.
pub fn user_id() -> u32 {
    // SAFETY: no arguments.
    unsafe { syscall(libc::SYS_geteuid, [0; 6]) }.unwrap_or(u32::MAX as usize) as u32
}

/// Whether `fd` is an epoll set.
pub fn is_epoll(fd: i32) -> bool {
    let mut target = [0u8; 64];
    link_target(format_args!("/proc/self/fd/{fd}\0"), &mut target) == Some(b"anon_inode:[eventpoll]")
}

/// Calls `what` with descriptor, events and data of each registration in the epoll set `epfd`, as /proc tells them.
///
/// # Errors
/// Those of open(2): without /proc none is known.
pub fn for_each_registration(epfd: i32, mut what: impl FnMut(i32, u32, u64)) -> Result<(), Errno> {
    for_each_line(format_args!("/proc/self/fdinfo/{epfd}\0"), |line| {
        if let Some((fd, events, data)) = registration(line) {
            what(fd, events, data);
        }
    })
}

/// Whether anything is registered with `data` in the epoll set `epfd`, as far as /proc can be asked.
pub fn is_registered(epfd: i32, data: u64) -> bool {
    let mut found = false;
    for_each_registration(epfd, |_, _, it| found |= it == data).is_err() || found
}

/// For how many descriptors the kernel has room in the table of this process; `None` if /proc cannot be asked.
pub fn descriptor_table_size() -> Option<usize> {
    let mut size = None;
    for_each_line(format_args!("/proc/thread-self/status\0"), |line| {
        if let Some(number) = line.strip_prefix("FDSize:") {
            size = number.trim().parse().ok();
        }
    })
    .ok()?;
    size
}

/// Number of the process that connected the other end of a Unix socket, listened there, or made the pair; 0 if none did.
///
/// # Errors
/// ENOTSOCK, EBADF.
pub fn maker_of_peer(fd: i32) -> Result<i32, Errno> {
    Ok(option::<libc::ucred>(fd, libc::SOL_SOCKET, libc::SO_PEERCRED)?.pid)
}

/// Whether process `pid` has the System V segment `id` attached.
///
/// # Errors
/// ENOENT if there is no such process, EACCES if it is another user's.
pub fn has_segment(pid: i32, id: i32) -> Result<bool, Errno> {
    let mut has = false;
    for_each_line(format_args!("/proc/{pid}/maps\0"), |line| has |= segment(line) == Some(id))?;
    Ok(has)
}

/// Whether process `pid` has a file mapped whose name has `part` in it.
pub fn has_file(pid: i32, part: &str) -> bool {
    let mut has = false;
    let asked = for_each_line(format_args!("/proc/{pid}/maps\0"), |line| has |= line.contains(part));
    asked.is_ok() && has
}

/// Calls `what` with every line of the file `path`, which ends with a NUL.
fn for_each_line(path: core::fmt::Arguments<'_>, mut what: impl FnMut(&str)) -> Result<(), Errno> {
    let mut bytes = [0u8; 48];
    write_path(&mut bytes, path);
    let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as usize;
    // SAFETY: a NUL-terminated path.
    let file =
        unsafe { syscall(libc::SYS_openat, [libc::AT_FDCWD as usize, bytes.as_ptr() as usize, flags, 0, 0, 0]) }?;
    let (mut text, mut len) = ([0u8; 4096], 0);
    loop {
        let rest = &mut text[len..];
        // SAFETY: the kernel writes at most what the buffer has left.
        let got = unsafe { syscall(libc::SYS_read, [file, rest.as_mut_ptr() as usize, rest.len(), 0, 0, 0]) };
        let Ok(got @ 1..) = got else { break };
        len += got;
        // A line that is longer than the buffer is of no interest to anybody here, and comes in pieces.
        let whole = text[..len].iter().rposition(|&byte| byte == b'\n').map_or(len / text.len() * len, |at| at + 1);
        text[..whole]
            .split(|&byte| byte == b'\n')
            .filter_map(|line| core::str::from_utf8(line).ok())
            .for_each(&mut what);
        text.copy_within(whole..len, 0);
        len -= whole;
    }
    close(file as i32);
    Ok(())
}

/// A line like `7f0c6a1b2000-7f0c6a3b2000 rw-s 00000000 00:01 98327    /SYSV00000000 (deleted)`: the number is the segment's.
fn segment(line: &str) -> Option<i32> {
    let mut words = line.split_ascii_whitespace().skip(4);
    let number = words.next()?;
    words.next()?.starts_with("/SYSV").then(|| number.parse().ok())?
}

/// A line like `tfd: 5 events: 19 data: 5 ...`, the last two in hexadecimal.
fn registration(line: &str) -> Option<(i32, u32, u64)> {
    let mut words = line.split_ascii_whitespace();
    let mut behind = |name: &str| words.next().filter(|&word| word == name).and_then(|_| words.next());
    let fd = behind("tfd:")?.parse().ok()?;
    let events = u32::from_str_radix(behind("events:")?, 16).ok()?;
    Some((fd, events, u64::from_str_radix(behind("data:")?, 16).ok()?))
}

fn write_path(to: &mut [u8], path: core::fmt::Arguments<'_>) {
    let mut to = to;
    // The buffers are as long as any such path.
    let _ = std::io::Write::write_fmt(&mut to, path);
}

/// What the symbolic link `path`, which ends with a NUL, names.
fn link_target<'a>(path: core::fmt::Arguments<'_>, target: &'a mut [u8]) -> Option<&'a [u8]> {
    let mut bytes = [0u8; 48];
    write_path(&mut bytes, path);
    // SAFETY: the path is NUL-terminated; the kernel writes at most `target.len()` bytes.
    let len = unsafe {
        syscall(
            libc::SYS_readlinkat,
            [libc::AT_FDCWD as usize, bytes.as_ptr() as usize, target.as_mut_ptr() as usize, target.len(), 0, 0],
        )
    };
    target.get(..len.ok()?)
}

/// Inode number of the socket that process `pid` holds as descriptor `fd`, if this process may look.
pub fn socket_inode(pid: i32, fd: i32) -> Option<u64> {
    let mut target = [0u8; 64];
    let text = link_target(format_args!("/proc/{pid}/fd/{fd}\0"), &mut target)?;
    let text = text.strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    number(text)
}

/// What the kernel says of the socket at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its cookie.
    pub cookie: u64,
    /// The user it belongs to.
    pub uid: u32,
    /// Its inode number, as in /proc/PID/fd.
    pub inode: u32,
}

/// Why the other end's socket is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPeer {
    /// It is not in this network namespace.
    Elsewhere,
    /// The kernel does not answer.
    NoAnswer(Errno),
}

/// Finds the socket at the other end of the connection of `fd`, by the mirrored addresses (sock_diag(7)).
///
/// # Errors
/// See [`NoPeer`].
pub fn peer(fd: i32) -> Result<Peer, NoPeer> {
    let (local, remote) = (address(fd, libc::SYS_getsockname), address(fd, libc::SYS_getpeername));
    let (Some(local), Some(remote)) = (local, remote) else { return Err(NoPeer::Elsewhere) };
    if local.family != remote.family {
        return Err(NoPeer::Elsewhere);
    }
    diagnose(local.family, &remote, &local)
        .map_err(|e| if e.0 == libc::ENOENT { NoPeer::Elsewhere } else { NoPeer::NoAnswer(e) })
}

#[derive(Clone, Copy)]
struct Address {
    family: u8,
    port: [u8; 2],
    host: [u8; 16],
}

fn address(fd: i32, call: libc::c_long) -> Option<Address> {
    let mut storage = [0u8; 128];
    let mut len = storage.len() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes.
    unsafe { syscall(call, [fd as usize, storage.as_mut_ptr() as usize, &raw mut len as usize, 0, 0, 0]) }.ok()?;
    let mut host = [0u8; 16];
    let port = [storage[2], storage[3]];
    match i32::from(u16::from_ne_bytes([storage[0], storage[1]])) {
        libc::AF_INET => {
            host[..4].copy_from_slice(&storage[4..8]);
            Some(Address { family: libc::AF_INET as u8, port, host })
        }
        libc::AF_INET6 => {
            const MAPPED: [u8; 12] = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff];
            if storage[8..20] == MAPPED {
                host[..4].copy_from_slice(&storage[20..24]);
                return Some(Address { family: libc::AF_INET as u8, port, host });
            }
            host.copy_from_slice(&storage[8..24]);
            Some(Address { family: libc::AF_INET6 as u8, port, host })
        }
        _ => None,
    }
}

fn diagnose(family: u8, local: &Address, remote: &Address) -> Result<Peer, Errno> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLMSG_ERROR: u16 = 2;
    const REQUEST: usize = 16 + 56;
    // struct nlmsghdr and struct inet_diag_req_v2 (include/uapi/linux/inet_diag.h).
    let mut request = [0u8; REQUEST];
    request[0..4].copy_from_slice(&(REQUEST as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request[16] = family;
    request[17] = libc::IPPROTO_TCP as u8;
    request[20..24].copy_from_slice(&u32::MAX.to_ne_bytes());
    request[24..26].copy_from_slice(&local.port);
    request[26..28].copy_from_slice(&remote.port);
    request[28..44].copy_from_slice(&local.host);
    request[44..60].copy_from_slice(&remote.host);
    request[64..72].copy_from_slice(&[0xff; 8]);
    let mut reply = [0u8; 512];
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: the buffers are as long as said; the descriptor is closed again at once.
    let len = unsafe {
        let fd = syscall(
            libc::SYS_socket,
            [libc::AF_NETLINK as usize, kind as usize, libc::NETLINK_SOCK_DIAG as usize, 0, 0, 0],
        )?;
        let answer =
            syscall(libc::SYS_sendto, [fd, request.as_ptr() as usize, REQUEST, libc::MSG_DONTWAIT as usize, 0, 0])
                .and_then(|_| {
                    syscall(
                        libc::SYS_recvfrom,
                        [fd, reply.as_mut_ptr() as usize, reply.len(), libc::MSG_DONTWAIT as usize, 0, 0],
                    )
                });
        let _ = syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        answer?
    };
    let word = |at: usize| u32::from_ne_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]]);
    match u16::from_ne_bytes([reply[4], reply[5]]) {
        NLMSG_ERROR if len >= 20 => Err(Errno((word(16) as i32).wrapping_neg())),
        SOCK_DIAG_BY_FAMILY if len >= 16 + 72 => {
            // Where there is no such connection (any more), the listener or a remnant of the connection answers; where there
            // is none yet, since a listener that has no room waits, or for data (TCP_DEFER_ACCEPT), the request for one.
            if !carries(reply[17]) && reply[17] != SYN_RECEIVED {
                return Err(Errno(libc::ENOENT));
            }
            let cookie = u64::from(word(16 + 44)) | u64::from(word(16 + 48)) << 32;
            Ok(Peer { cookie, uid: word(16 + 64), inode: word(16 + 68) })
        }
        _ => Err(Errno(libc::EPROTO)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn pair(host: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_peer_is_found_by_the_mirrored_addresses() {
        for host in ["127.0.0.1", "::1"] {
            let (client, server) = pair(host);
            let found = peer(client.as_raw_fd()).unwrap();
            assert_eq!(found.cookie, cookie(server.as_raw_fd()).unwrap());
            assert_eq!(found.uid, user_id());
            assert_eq!(socket_inode(process_id(), server.as_raw_fd()), Some(found.inode.into()));
            assert_eq!(peer(server.as_raw_fd()).unwrap().cookie, cookie(client.as_raw_fd()).unwrap());
        }
    }

    #[test]
    fn open_descriptors_are_listed() {
        let files: Vec<_> = (0..300).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let mut listed = std::collections::BTreeSet::new();
        assert!(for_each_descriptor(|fd| assert!(listed.insert(fd), "{fd} twice")));
        assert!(files.iter().all(|file| listed.contains(&file.as_raw_fd())));
    }

    #[test]
    fn a_mapped_address_finds_its_plain_peer() {
        let listener = TcpListener::bind(("::", 0)).unwrap();
        let client = TcpStream::connect(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
        let server = listener.accept().unwrap().0;
        assert_eq!(peer(server.as_raw_fd()).unwrap().cookie, cookie(client.as_raw_fd()).unwrap());
        assert_eq!(peer(client.as_raw_fd()).unwrap().cookie, cookie(server.as_raw_fd()).unwrap());
    }

    #[test]
    fn both_ends_agree_on_positions() {
        let (mut client, server) = pair("127.0.0.1");
        let mut sent = 0;
        for n in [1usize, 700, 65_000, 3] {
            client.write_all(&vec![1; n]).unwrap();
            sent += n as u64;
            while outq(client.as_raw_fd()).unwrap() != 0 {
                std::thread::yield_now();
            }
            let sender = counters(client.as_raw_fd()).unwrap();
            let reader = counters(server.as_raw_fd()).unwrap();
            assert_eq!(sender.sent_once, sent);
            assert_eq!(sender.acked, sent + 1, "the active opener's SYN counts one");
            assert_eq!(reader.received, sent);
            assert_eq!(u64::from(inq(server.as_raw_fd()).unwrap()), sent);
        }
        assert_eq!(sender_acked_when_passive(&server), 0);
    }

    fn sender_acked_when_passive(server: &TcpStream) -> u64 {
        counters(server.as_raw_fd()).unwrap().acked
    }
}
