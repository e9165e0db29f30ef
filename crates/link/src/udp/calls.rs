//! Many messages with a system call: sendmmsg(2), recvmmsg(2), and what the socket's error queue has (recvmsg(2)).
#![allow(unsafe_code, reason = "system calls that rustix does not have")]

use super::control::Control;
use super::name::Name;
use rustix::fd::{AsRawFd, BorrowedFd};
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::ptr;

/// Words for control messages: of a message that is sent, three control messages of a word each; of a message that is
/// received; and of an error, whose description has the address of the host that reports it.
const GIVEN: usize = 9;
const TAKEN: usize = 12;
const DESCRIBED: usize = 32;

/// What goes beside a message that is sent.
pub type Given = Control<GIVEN>;
/// The control messages of a message that is received.
pub type Taken = Control<TAKEN>;
/// The control messages that describe an error.
pub type Described = Control<DESCRIBED>;
/// Messages to send.
pub type Outgoing = Calls<GIVEN>;
/// Messages to receive.
pub type Incoming = Calls<TAKEN>;

/// What the system calls read and write, laid out anew for each.
#[derive(Debug)]
pub struct Calls<const WORDS: usize> {
    pieces: Vec<libc::iovec>,
    /// For each message, the range of its pieces.
    parts: Vec<Range<usize>>,
    names: Vec<Name>,
    controls: Vec<Control<WORDS>>,
    headers: Vec<libc::mmsghdr>,
}

// SAFETY: the addresses in it are those of a call that is over; the next one writes them anew.
unsafe impl<const WORDS: usize> Send for Calls<WORDS> {}

/// Messages whose octets are borrowed until the call is over.
#[derive(Debug)]
pub struct Messages<'a, const WORDS: usize> {
    calls: &'a mut Calls<WORDS>,
    octets: PhantomData<&'a mut [u8]>,
}

/// A message that has come.
#[derive(Clone, Copy, Debug)]
pub struct Came<'a> {
    /// Octets that were written to its pieces.
    pub octets: usize,
    /// `MSG_TRUNC`, `MSG_CTRUNC`.
    pub flags: i32,
    /// From where.
    pub name: &'a Name,
    /// What came beside it.
    pub control: &'a Taken,
}

impl<const WORDS: usize> Calls<WORDS> {
    /// Room for so many messages in so many pieces, beyond which lists grow.
    pub fn new(messages: usize, pieces: usize) -> Calls<WORDS> {
        Calls {
            pieces: Vec::with_capacity(pieces),
            parts: Vec::with_capacity(messages),
            names: Vec::with_capacity(messages),
            controls: Vec::with_capacity(messages),
            headers: Vec::with_capacity(messages),
        }
    }

    /// Begins a call.
    pub fn lay(&mut self) -> Messages<'_, WORDS> {
        self.pieces.clear();
        self.parts.clear();
        self.names.clear();
        self.controls.clear();
        self.headers.clear();
        Messages { calls: self, octets: PhantomData }
    }
}

impl Calls<TAKEN> {
    /// A message of the last call, of those that came.
    pub fn came(&self, message: usize) -> Came<'_> {
        let octets = self.headers[message].msg_len as usize;
        let flags = self.headers[message].msg_hdr.msg_flags;
        Came { octets, flags, name: &self.names[message], control: &self.controls[message] }
    }
}

impl<'a, const WORDS: usize> Messages<'a, WORDS> {
    /// Another message.
    pub fn add(&mut self, name: Name, control: Control<WORDS>) {
        let at = self.calls.pieces.len();
        self.calls.parts.push(at..at);
        self.calls.names.push(name);
        self.calls.controls.push(control);
    }

    fn piece(&mut self, octets: *mut u8, len: usize) {
        self.calls.pieces.push(libc::iovec { iov_base: octets.cast(), iov_len: len });
        if let Some(parts) = self.calls.parts.last_mut() {
            parts.end += 1;
        }
    }

    /// Writes what the kernel is given, when the lists do not change any more; how many messages.
    fn write_headers(&mut self) -> u32 {
        let Calls { pieces, parts, names, controls, headers } = &mut *self.calls;
        for ((part, name), control) in parts.iter().zip(names).zip(controls) {
            // SAFETY: all of it may be zero.
            let mut header: libc::mmsghdr = unsafe { std::mem::zeroed() };
            header.msg_hdr.msg_iov = pieces[part.clone()].as_mut_ptr();
            header.msg_hdr.msg_iovlen = part.len() as _;
            (header.msg_hdr.msg_name, header.msg_hdr.msg_namelen) = (name.octets.as_mut_ptr().cast(), name.len as u32);
            if control.len > 0 {
                header.msg_hdr.msg_control = control.words.as_mut_ptr().cast();
                header.msg_hdr.msg_controllen = control.len as _;
            }
            headers.push(header);
        }
        headers.len() as u32
    }
}

impl<'a> Messages<'a, GIVEN> {
    /// Says what goes beside the last message.
    pub fn control(&mut self) -> Option<&mut Given> {
        self.calls.controls.last_mut()
    }

    /// More octets of the last message.
    pub fn read_from(&mut self, octets: &'a [u8]) {
        // Only read from: see `send`.
        self.piece(octets.as_ptr().cast_mut(), octets.len());
    }

    /// Sends them, as many as go: how many.
    ///
    /// # Errors
    /// The first one was not sent.
    pub fn send(mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let (count, messages) = (self.write_headers(), self.calls.headers.as_mut_ptr());
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
        // SAFETY: `count` messages, whose pieces are borrowed for `'a`, and read.
        answer(unsafe { libc::sendmmsg(socket.as_raw_fd(), messages, count, flags as _) })
    }
}

impl<'a> Messages<'a, TAKEN> {
    /// More room of the last message.
    pub fn write_to(&mut self, octets: &'a mut [u8]) {
        self.piece(octets.as_mut_ptr(), octets.len());
    }

    /// Receives into them, as many as have come: how many.
    ///
    /// # Errors
    /// None has come, or the socket has an error to tell.
    pub fn receive(mut self, socket: BorrowedFd<'_>) -> io::Result<usize> {
        let (count, messages) = (self.write_headers(), self.calls.headers.as_mut_ptr());
        let (flags, no_time) = (libc::MSG_DONTWAIT, ptr::null_mut());
        // SAFETY: `count` messages, whose pieces are borrowed for `'a`, as room to write to.
        let came = answer(unsafe { libc::recvmmsg(socket.as_raw_fd(), messages, count, flags as _, no_time) })?;
        let Calls { names, controls, headers, .. } = &mut *self.calls;
        for ((header, name), control) in headers.iter().zip(names).zip(controls).take(came) {
            name.len = header.msg_hdr.msg_namelen as usize;
            control.len = header.msg_hdr.msg_controllen;
        }
        Ok(came)
    }
}

/// Takes an error from the socket's queue: the receiver of the packet, and what is said about it. None where there is
/// no error.
pub fn take_error(socket: BorrowedFd<'_>) -> Option<(Name, Described)> {
    let (mut name, mut control) = (Name::ROOM, Described::ROOM);
    // SAFETY: all of it may be zero.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    (header.msg_name, header.msg_namelen) = (name.octets.as_mut_ptr().cast(), name.len as u32);
    (header.msg_control, header.msg_controllen) = (control.words.as_mut_ptr().cast(), control.len as _);
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: a message without pieces, whose name and control messages have as much room as is said.
    let taken = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    (name.len, control.len) = (header.msg_namelen as usize, header.msg_controllen);
    (taken >= 0).then_some((name, control))
}

fn answer(count: i32) -> io::Result<usize> {
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}
