//! A line between a program and the daemon that carries its streams to other hosts: a pair of Unix sockets. Whoever of
//! the two has put something into a ring at which the other one sleeps rings by it. A sleeper, which is a thread or an
//! epoll set, has a line of its own, so no sleeper takes another one's ring.
//!
//! As the connection to the broker ([`crate::dial`]), it is a descriptor of the library's own in a program that may
//! close any number.
#![allow(unsafe_code, reason = "issues system calls with buffers of its own")]

use crate::channel::MARK;
use crate::config::SocketPath;
use crate::dial::Dial;
use crate::kernel;
use crate::raw::{Errno, syscall};
use underpass_broker as wire;

/// A line. Copies are the same line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    fd: i32,
    cookie: u64,
    number: u64,
}

/// What was heard on a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// Rings, or nothing.
    Rings,
    /// The daemon has said its number, and perhaps rung: see [`wire::line::HELLO`].
    Hello(u64),
    /// The broker has too many lines of this user. The line is of no use.
    Refused,
    /// The broker is gone, or the program has closed the line.
    Gone,
}

impl Line {
    /// Makes a line, and gives the other end to the broker at `path`. It may be rung at once.
    ///
    /// # Errors
    /// What [`Dial::connect`] says, or socketpair(2), or getrandom(2).
    pub fn open(path: &SocketPath) -> Result<Line, Errno> {
        let number = random()?;
        let dial = Dial::connect(path)?;
        let given = pair().and_then(|[own, others]| {
            let told = dial.give(&wire::Line { number, mark: MARK }, others);
            kernel::close(others);
            told.map(|()| own).inspect_err(|_| kernel::close(own))
        });
        dial.hang_up();
        let fd = kernel::moved_out_of_the_way(given?);
        let cookie = kernel::cookie(fd).inspect_err(|_| kernel::close(fd))?;
        Ok(Line { fd, cookie, number })
    }

    /// The line of this descriptor, cookie and number.
    pub fn of((fd, cookie, number): (i32, u64, u64)) -> Line {
        Line { fd, cookie, number }
    }

    /// Its descriptor, cookie and number.
    pub fn parts(&self) -> (i32, u64, u64) {
        (self.fd, self.cookie, self.number)
    }

    /// The number by which channels name it.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Whether its descriptor is still this line.
    pub fn is_there(&self) -> bool {
        kernel::cookie(self.fd) == Ok(self.cookie)
    }

    /// Its descriptor, if it is still there.
    pub fn fd(&self) -> Option<i32> {
        self.is_there().then_some(self.fd)
    }

    /// Rings the broker. If no more fits, it has been rung already.
    pub fn ring(&self) {
        if self.is_there() {
            let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
            // SAFETY: one octet of this frame, and no address.
            let _ = unsafe {
                syscall(libc::SYS_sendto, [self.fd as usize, (&raw const RING) as usize, 1, flags as usize, 0, 0])
            };
        }
    }

    /// Takes all rings that have come.
    pub fn hear(&self) -> Heard {
        let (mut octets, mut heard) = ([0u8; 64], Heard::Rings);
        while self.is_there() {
            // SAFETY: a buffer of this frame.
            let taken = unsafe { kernel::recv(self.fd, octets.as_mut_ptr(), octets.len(), libc::MSG_DONTWAIT) };
            let n = match taken {
                Ok(n @ 1..) => n.min(octets.len()),
                Err(Errno(libc::EAGAIN | libc::EINTR)) => return heard,
                Ok(_) | Err(_) => return Heard::Gone,
            };
            match octets[..n] {
                [wire::line::REFUSED, ..] => return Heard::Refused,
                // It comes first, and in one piece.
                [wire::line::HELLO, a, b, c, d, e, f, g, h, ..] => {
                    heard = Heard::Hello(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
                }
                _ => {}
            }
            if n < octets.len() {
                return heard;
            }
        }
        Heard::Gone
    }

    /// Closes it, if it is still there.
    pub fn close(&self) {
        if self.is_there() {
            kernel::close(self.fd);
        }
    }
}

static RING: u8 = wire::line::RING;

fn pair() -> Result<[i32; 2], Errno> {
    let mut both = [0i32; 2];
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: two numbers of this frame.
    unsafe {
        syscall(libc::SYS_socketpair, [libc::AF_UNIX as usize, kind as usize, 0, both.as_mut_ptr() as usize, 0, 0])
    }?;
    Ok(both)
}

/// A random number that is not 0.
fn random() -> Result<u64, Errno> {
    let mut number = 0u64;
    // SAFETY: one number of this frame.
    unsafe { syscall(libc::SYS_getrandom, [(&raw mut number) as usize, size_of::<u64>(), 0, 0, 0, 0]) }?;
    Ok(number.max(1))
}
