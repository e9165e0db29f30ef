//! The connection of a process to the broker: a Unix socket of type SOCK_SEQPACKET (unix(7)). No call waits.
//!
//! It is a descriptor of the library's own in a program that does not know of it and may close any number. So before
//! each use the library checks by the cookie that the number is still this socket.
#![allow(unsafe_code, reason = "issues system calls with buffers of its own")]

use crate::config::SocketPath;
use crate::kernel;
use crate::raw::{Errno, syscall};
use underpass_broker::{Answer, Ask, Knock, LONGEST, Line};

/// Octets of a control message with one descriptor (cmsg(3)): header, number, padding.
const CONTROL: usize = 24;
/// Octets of such a control message without the padding.
const CONTROL_LEN: usize = 20;

/// A connection to the broker.
#[derive(Clone, Copy, Debug)]
pub struct Dial {
    fd: i32,
    cookie: u64,
}

/// What comes beside an answer.
#[derive(Debug)]
pub enum Beside {
    /// No descriptor.
    Nothing,
    /// A descriptor.
    Gift(Gift),
    /// A descriptor for which this process has no free number: the kernel has closed it.
    Lost,
}

/// A descriptor that came with an answer. It is closed when dropped.
#[derive(Debug)]
pub struct Gift(i32);

impl Gift {
    /// Its number.
    pub fn fd(&self) -> i32 {
        self.0
    }
}

#[cfg(all(test, not(loom)))]
impl Gift {
    /// This descriptor, as if it had come with an answer.
    pub(crate) fn of(fd: i32) -> Gift {
        Gift(fd)
    }
}

impl Drop for Gift {
    fn drop(&mut self) {
        kernel::close(self.0);
    }
}

#[repr(C, align(8))]
struct Control([u8; CONTROL]);

impl Control {
    /// The descriptor in a control message of `len` octets. There is room for two; an honest broker sends one.
    fn gift(&self, len: usize) -> Option<Gift> {
        let word = |at: usize| i32::from_ne_bytes(core::array::from_fn(|i| self.0[at + i]));
        let ends = |at: usize| len.min(word(0) as usize) >= at + 4;
        let is_right = ends(12) && (word(8), word(12)) == (libc::SOL_SOCKET, libc::SCM_RIGHTS);
        let [first, second] = [16, 20].map(|at| (is_right && ends(at)).then(|| Gift(word(at))));
        drop(second);
        first
    }

    fn with(fd: i32) -> Control {
        let mut octets = [0; CONTROL];
        octets[..8].copy_from_slice(&CONTROL_LEN.to_ne_bytes());
        octets[8..12].copy_from_slice(&libc::SOL_SOCKET.to_ne_bytes());
        octets[12..16].copy_from_slice(&libc::SCM_RIGHTS.to_ne_bytes());
        octets[16..20].copy_from_slice(&fd.to_ne_bytes());
        Control(octets)
    }
}

impl Dial {
    /// Connects to the broker.
    ///
    /// # Errors
    /// ENOENT, ECONNREFUSED: there is none. EACCES: this process may not ask it. EAGAIN: too many are being accepted.
    /// EMFILE, ENFILE: no descriptor is free.
    pub fn connect(path: &SocketPath) -> Result<Dial, Errno> {
        const AT: usize = core::mem::offset_of!(libc::sockaddr_un, sun_path);
        let (mut address, path) = ([0u8; size_of::<libc::sockaddr_un>()], path.bytes());
        address[..AT].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        address[AT..AT + path.len()].copy_from_slice(path);
        let low = socket()?;
        let connect = |fd: i32| {
            let (at, len) = (address.as_ptr() as usize, AT + path.len() + 1);
            // SAFETY: the path ends with a NUL, within the buffer.
            unsafe { syscall(libc::SYS_connect, [fd as usize, at, len, 0, 0, 0]) }?;
            kernel::cookie(fd)
        };
        let cookie = connect(low).inspect_err(|_| kernel::close(low))?;
        Ok(Dial { fd: kernel::moved_out_of_the_way(low), cookie })
    }

    /// Whether this process has free descriptors for a connection and for the memory that comes by it.
    pub fn has_room() -> bool {
        // Not by copies of a socket of the program's, which a child that is forked meanwhile would keep open.
        let Ok(first) = socket() else { return false };
        let second = kernel::duplicate(first, 0);
        second.into_iter().chain([first]).for_each(kernel::close);
        second.is_some()
    }

    /// Whether this process has a free descriptor for memory that comes by this connection.
    pub fn has_room_for_gift(&self) -> bool {
        self.is_there() && kernel::duplicate(self.fd, 0).inspect(|&copy| kernel::close(copy)).is_some()
    }

    fn is_there(&self) -> bool {
        kernel::cookie(self.fd) == Ok(self.cookie)
    }

    /// Sends an ask, with `socket` beside it.
    ///
    /// # Errors
    /// EAGAIN: the broker has not taken earlier ones. Anything else: there is no connection any more.
    pub fn ask(&self, ask: &Ask, socket: i32) -> Result<(), Errno> {
        self.send(&ask.emit().map_err(|_| Errno(libc::EINVAL))?, Some(socket))
    }

    /// Asks whether the broker is at work.
    ///
    /// # Errors
    /// As for [`Dial::ask`].
    pub fn knock(&self, knock: &Knock) -> Result<(), Errno> {
        self.send(&knock.emit(), None)
    }

    /// Gives the broker a line, of which it gets the end `socket`.
    ///
    /// # Errors
    /// As for [`Dial::ask`].
    pub fn give(&self, line: &Line, socket: i32) -> Result<(), Errno> {
        self.send(&line.emit(), Some(socket))
    }

    fn send(&self, record: &[u8], beside: Option<i32>) -> Result<(), Errno> {
        if !self.is_there() {
            return Err(Errno(libc::EBADF));
        }
        let mut control = Control::with(beside.unwrap_or(-1));
        let mut vector = libc::iovec { iov_base: record.as_ptr().cast_mut().cast(), iov_len: record.len() };
        let mut message = message(&mut vector, &mut control);
        if beside.is_none() {
            message.msg_controllen = 0;
        }
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as usize;
        // SAFETY: the message names buffers of this frame.
        unsafe { syscall(libc::SYS_sendmsg, [self.fd as usize, &raw const message as usize, flags, 0, 0, 0]) }?;
        Ok(())
    }

    /// Waits at most `nanoseconds`, less than a second, until an answer comes or the connection ends.
    pub fn wait(&self, nanoseconds: i64) {
        let mut it = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
        let for_so_long = libc::timespec { tv_sec: 0, tv_nsec: nanoseconds };
        // SAFETY: one pollfd and one timespec; no signal mask.
        let _ =
            unsafe { syscall(libc::SYS_ppoll, [&raw mut it as usize, 1, &raw const for_so_long as usize, 0, 0, 0]) };
    }

    /// The next answer, and what comes beside it; `None` if there is none yet.
    ///
    /// # Errors
    /// There is no connection any more, or not with a broker that speaks this version of the wire.
    pub fn hear(&self) -> Result<Option<(Answer, Beside)>, Errno> {
        if !self.is_there() {
            return Err(Errno(libc::EBADF));
        }
        let mut octets = [0u8; LONGEST + 1];
        let mut control = Control([0; CONTROL]);
        let mut vector = libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
        let mut message = message(&mut vector, &mut control);
        // SAFETY: the message names buffers of this frame.
        let len =
            match unsafe { kernel::recv_message(self.fd, &mut message, libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC) } {
                Ok(len) => len,
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return Ok(None),
                Err(e) => return Err(e),
            };
        let is_lost = message.msg_flags & libc::MSG_CTRUNC != 0;
        let gift = control.gift(message.msg_controllen).map(Beside::Gift);
        let beside = gift.unwrap_or(if is_lost { Beside::Lost } else { Beside::Nothing });
        let answer = Answer::parse(octets.get(..len).unwrap_or_default()).map_err(|_| Errno(libc::EPROTO))?;
        Ok(Some((answer, beside)))
    }

    /// Closes it, if it is still there.
    pub fn hang_up(self) {
        if self.is_there() {
            kernel::close(self.fd);
        }
    }
}

fn socket() -> Result<i32, Errno> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers.
    unsafe { syscall(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]) }.map(|fd| fd as i32)
}

fn message(vector: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: all-zero is a valid msghdr.
    let mut message: libc::msghdr = unsafe { core::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (vector, 1);
    (message.msg_control, message.msg_controllen) = ((&raw mut *control).cast(), CONTROL as _);
    message
}
