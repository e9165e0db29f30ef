//! Descriptors that messages carry over Unix sockets (SCM_RIGHTS).

use crate::guest::access::{are_bytes_readable, is_readable};
use crate::guest::memory::Reserved;
use crate::guest::{errno, real};
use crate::lifecycle::adopt::{self, CameBy};
use crate::lifecycle::handoff::{Receiver, Unconnected};
use crate::lifecycle::reuse;
use core::ffi::c_int;
use libc::{mmsghdr, msghdr, size_t, ssize_t};
use underpass_segment::reason::Reason;

/// A message has come, perhaps with descriptors, or was peeked at: then the descriptors come again, under other
/// numbers. A fast connection among them is taken over at once, because the first call on it may be a call that only
/// asks, such as poll.
///
/// # Safety
/// recvmsg(2) must have filled in the message.
pub unsafe fn received_control(message: *const msghdr, is_peek: bool) {
    // SAFETY: the caller vouches for the message; what is named by it can be read.
    unsafe {
        each_passed(message, |at| {
            let fd = at.read_unaligned();
            reuse::forget_closed(fd);
            adopt::claim(fd, if is_peek { CameBy::Peek } else { CameBy::Message });
        });
    }
}

/// Calls `what` with the place of every descriptor in the message's control data, up to a header that the kernel
/// refuses because its length is too short, or goes beyond the end.
///
/// # Safety
/// The message must be valid, but for such lengths.
unsafe fn each_passed(message: *const msghdr, mut what: impl FnMut(*const c_int)) {
    // SAFETY: the caller vouches for the message; the macros of cmsg(3) walk its control data.
    unsafe {
        let end = ((*message).msg_control as usize).saturating_add((*message).msg_controllen);
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let (len, left) = ((*header).cmsg_len as usize, end - header as usize);
            if !(size_of::<libc::cmsghdr>()..=left).contains(&len) {
                return;
            }
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let data = libc::CMSG_DATA(header) as *const c_int;
                let bytes = len.saturating_sub(data as usize - header as usize);
                (0..bytes / size_of::<c_int>()).for_each(|index| what(data.add(index)));
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
}

/// Control data that passes another socket in place of connections which the receiver would read with a gap.
struct OtherControl {
    bytes: Reserved<u8>,
    socket: Unconnected,
}

impl OtherControl {
    /// A copy of the control data of `message`, which can be read; `None` without memory, or without a free descriptor.
    fn of(message: &msghdr) -> Option<OtherControl> {
        let mut bytes = Reserved::even_confined(message.msg_controllen)?;
        // SAFETY: both are so long.
        unsafe {
            core::ptr::copy_nonoverlapping(message.msg_control.cast(), bytes.begin(), message.msg_controllen);
            bytes.assume(message.msg_controllen);
        }
        Some(OtherControl { bytes, socket: Unconnected::out_of_the_way()? })
    }

    /// Passes the socket in place of the descriptor at `offset`.
    fn replace(&mut self, offset: usize) {
        if let Some(place) = self.bytes.items_mut().get_mut(offset..offset + size_of::<c_int>()) {
            place.copy_from_slice(&self.socket.fd().to_ne_bytes());
        }
    }
}

/// What becomes of a message's control data.
enum Control {
    /// The kernel refuses it, because it cannot be read.
    Refused,
    AsItIs,
    /// There is no memory, or no free descriptor, to replace it.
    Impossible,
    Other(OtherControl),
}

/// A message is about to be sent to the receiver: descriptors that it gives away must not be fast any more.
///
/// # Safety
/// As sendmsg(2), where a bad pointer in the message is an error.
unsafe fn lend(receiver: &mut Receiver, message: &msghdr) -> Control {
    let mut control = Control::AsItIs;
    // SAFETY: passed on to the caller; control data is looked at only if it can be read.
    unsafe {
        if !are_bytes_readable(message.msg_control, message.msg_controllen) {
            return Control::Refused;
        }
        each_passed(message, |at| {
            let Some(connection) = adopt::recognise(at.read_unaligned()) else { return };
            if receiver.may_have(&connection) {
                return;
            }
            if matches!(control, Control::AsItIs) {
                control = OtherControl::of(message).map_or(Control::Impossible, Control::Other);
            }
            if let Control::Other(other) = &mut control {
                other.replace(at as usize - message.msg_control as usize);
            }
        });
    }
    control
}

/// A send with control data.
///
/// # Safety
/// As sendmsg(2).
pub unsafe fn send_control(fd: c_int, message: *const msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the program vouches for the message.
    unsafe {
        let mut receiver = Receiver::of(fd);
        let control = lend(&mut receiver, &*message);
        if !matches!(control, Control::Refused)
            && let Some(connection) = adopt::of(fd)
        {
            connection.pin_once_read(Reason::Unsupported);
        }
        let before = errno::get();
        let answer = match &control {
            Control::Other(other) => {
                let changed = msghdr { msg_control: other.bytes.items().as_ptr().cast_mut().cast(), ..*message };
                real::sendmsg(fd, &changed, flags)
            }
            Control::Impossible => {
                receiver.take_back();
                errno::set(libc::ENOBUFS);
                return -1;
            }
            _ => real::sendmsg(fd, message, flags),
        };
        if answer >= 0 {
            errno::set(before);
        } else {
            receiver.take_back();
        }
        answer
    }
}

/// Prepares messages that a process behind a seccomp filter is about to send, where nothing is lent. False if that has
/// to change any of them.
///
/// # Safety
/// As sendmmsg(2), where a bad pointer is an error.
pub unsafe fn lend_all(unix_socket: c_int, messages: *const mmsghdr, count: size_t) -> bool {
    let all = (0..count).map(|index| messages.wrapping_add(index));
    // SAFETY: passed on to the caller.
    unsafe {
        all.take_while(|&it| is_readable(it, 1)).filter(|&it| (*it).msg_hdr.msg_controllen != 0).all(|it| {
            matches!(lend(&mut Receiver::of(unix_socket), &(*it).msg_hdr), Control::AsItIs | Control::Refused)
        })
    }
}

/// Whether any of the messages passes descriptors.
///
/// # Safety
/// As sendmmsg(2), where a bad pointer is an error.
pub unsafe fn pass_any(messages: *const mmsghdr, count: size_t) -> bool {
    let passes = |message: &msghdr| {
        let mut any = false;
        // SAFETY: passed on to the caller; control data is looked at only if it can be read.
        unsafe {
            if message.msg_controllen != 0 && are_bytes_readable(message.msg_control, message.msg_controllen) {
                each_passed(message, |_| any = true);
            }
        }
        any
    };
    let all = (0..count).map(|index| messages.wrapping_add(index));
    // SAFETY: what can be read is looked at; the kernel says so of the first that cannot be.
    all.take_while(|&it| is_readable(it, 1)).any(|it| passes(unsafe { &(*it).msg_hdr }))
}
