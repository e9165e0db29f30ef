//! Options of sockets that rustix does not have.
#![allow(unsafe_code, reason = "options of sockets that rustix does not have")]

use rustix::fd::{AsFd, AsRawFd};
use std::io;

/// Sets an option whose value is a plain number, or an address of what lives until this returns.
pub(crate) fn set<T>(socket: impl AsFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let (socket, value, len) = (socket.as_fd().as_raw_fd(), std::ptr::from_ref(value).cast(), size_of::<T>() as u32);
    // SAFETY: a value of this length, which outlives the call.
    match unsafe { libc::setsockopt(socket, level, option, value, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// A number, or numbers, that are an option's value. Those that the kernel does not know stay 0.
pub(crate) fn get<const WORDS: usize>(socket: impl AsFd, level: i32, option: i32) -> io::Result<[u32; WORDS]> {
    let (mut value, mut len) = ([0u32; WORDS], size_of::<[u32; WORDS]>() as u32);
    let (socket, to) = (socket.as_fd().as_raw_fd(), value.as_mut_ptr().cast());
    // SAFETY: room of this length, which outlives the call; any octets are numbers.
    match unsafe { libc::getsockopt(socket, level, option, to, &raw mut len) } {
        0 => Ok(value),
        _ => Err(io::Error::last_os_error()),
    }
}
