//! Which socket is at the other end of a connection, TCP or Unix (sock_diag(7)), and which process has it.
#![allow(unsafe_code, reason = "issues system calls with buffers of its own")]

use super::proc::{find_number, for_each_number, link_target, link_target_in, number};
use super::{SYN_RECEIVED, carries};
use crate::raw::{Errno, syscall};

/// Inode number of the socket that process `pid` holds as descriptor `fd`, if this process may look.
pub fn socket_inode(pid: i32, fd: i32) -> Option<u64> {
    let mut target = [0u8; 64];
    inode_in(link_target(format_args!("/proc/{pid}/fd/{fd}\0"), &mut target)?)
}

/// Inode number of the socket that the process has as descriptor `fd` whose folder /proc/PID/fd is open as `folder`.
pub(super) fn inode_of(folder: i32, fd: i32) -> Option<u64> {
    let mut target = [0u8; 64];
    inode_in(link_target_in(folder, format_args!("{fd}\0"), &mut target)?)
}

/// Inode number of the socket that a link in /proc/PID/fd names.
fn inode_in(target: &[u8]) -> Option<u64> {
    number(target.strip_prefix(b"socket:[")?.strip_suffix(b"]")?)
}

/// Inode number of the socket that the Unix socket `fd` is connected with, if the kernel says so (UNIX_DIAG_PEER).
pub fn unix_peer(fd: i32) -> Option<u64> {
    const UDIAG_SHOW_PEER: u32 = 4;
    const UNIX_DIAG_PEER: u16 = 2;
    const HEADERS: usize = 16 + 16;
    let inode = socket_inode(super::process_id(), fd)? as u32;
    // struct unix_diag_req (include/uapi/linux/unix_diag.h).
    let mut about = [0u8; 24];
    about[0] = libc::AF_UNIX as u8;
    about[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    about[8..12].copy_from_slice(&inode.to_ne_bytes());
    about[12..16].copy_from_slice(&UDIAG_SHOW_PEER.to_ne_bytes());
    about[16..24].copy_from_slice(&[0xff; 8]);
    let mut reply = [0u8; 512];
    let len = ask(&about, &mut reply).ok()?;
    // The one attribute asked for, behind struct nlmsghdr and struct unix_diag_msg.
    let attribute = reply[..len].get(HEADERS..HEADERS + 8)?;
    let word = |at: usize| u32::from_ne_bytes([attribute[at], attribute[at + 1], attribute[at + 2], attribute[at + 3]]);
    (word(0) == 8 | u32::from(UNIX_DIAG_PEER) << 16).then(|| u64::from(word(4)))
}

/// Whether this process, and as far as /proc tells no other, has the socket with this inode number.
pub fn has_alone(inode: u64) -> bool {
    let me = super::process_id();
    let (mut mine, mut others) = (false, false);
    for_each_holder(inode, |pid| *(if pid == me { &mut mine } else { &mut others }) = true);
    mine && !others
}

/// Calls `what` with each process that has the socket with this inode number, as far as /proc tells.
pub fn for_each_holder(inode: u64, mut what: impl FnMut(i32)) {
    for_each_number(format_args!("/proc\0"), |pid, _| {
        if descriptor_of(pid, inode).is_some() {
            what(pid);
        }
    });
}

/// Whether process `pid` has the socket with this inode number, as far as /proc tells.
pub fn is_holder(pid: i32, inode: u64) -> bool {
    descriptor_of(pid, inode).is_some()
}

/// The number under which process `pid` has the socket with this inode number.
pub(super) fn descriptor_of(pid: i32, inode: u64) -> Option<i32> {
    let is_it = |fd, folder| (inode_of(folder, fd) == Some(inode)).then_some(fd);
    find_number(format_args!("/proc/{pid}/fd\0"), is_it).ok()?
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
    // struct inet_diag_req_v2 (include/uapi/linux/inet_diag.h).
    let mut about = [0u8; 56];
    about[0] = family;
    about[1] = libc::IPPROTO_TCP as u8;
    about[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    about[8..10].copy_from_slice(&local.port);
    about[10..12].copy_from_slice(&remote.port);
    about[12..28].copy_from_slice(&local.host);
    about[28..44].copy_from_slice(&remote.host);
    about[48..56].copy_from_slice(&[0xff; 8]);
    let mut reply = [0u8; 512];
    let len = ask(&about, &mut reply)?;
    if len < 16 + 72 {
        return Err(Errno(libc::EPROTO));
    }
    // If there is no such connection any more, the listener or a remnant of the connection answers. If there is none
    // yet, because the listener has no room or waits for data (TCP_DEFER_ACCEPT), the request for the connection
    // answers.
    if !carries(reply[17]) && reply[17] != SYN_RECEIVED {
        return Err(Errno(libc::ENOENT));
    }
    let word = |at: usize| u32::from_ne_bytes([reply[at], reply[at + 1], reply[at + 2], reply[at + 3]]);
    let cookie = u64::from(word(16 + 44)) | u64::from(word(16 + 48)) << 32;
    Ok(Peer { cookie, uid: word(16 + 64), inode: word(16 + 68) })
}

/// Asks the kernel `about` one socket; the length of its reply.
///
/// # Errors
/// The errors of the calls, and the error that the kernel answers.
fn ask(about: &[u8], reply: &mut [u8; 512]) -> Result<usize, Errno> {
    const SOCK_DIAG_BY_FAMILY: u16 = 20;
    const NLMSG_ERROR: u16 = 2;
    const HEADER: usize = 16;
    // struct nlmsghdr.
    let mut request = [0u8; HEADER + 56];
    let size = HEADER + about.len();
    request[0..4].copy_from_slice(&(size as u32).to_ne_bytes());
    request[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    request[6..8].copy_from_slice(&(libc::NLM_F_REQUEST as u16).to_ne_bytes());
    request[HEADER..size].copy_from_slice(about);
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    // SAFETY: the buffers are as long as said; the descriptor is closed again at once.
    let len = unsafe {
        let fd = syscall(
            libc::SYS_socket,
            [libc::AF_NETLINK as usize, kind as usize, libc::NETLINK_SOCK_DIAG as usize, 0, 0, 0],
        )?;
        let answer =
            syscall(libc::SYS_sendto, [fd, request.as_ptr() as usize, size, libc::MSG_DONTWAIT as usize, 0, 0])
                .and_then(|_| {
                    syscall(
                        libc::SYS_recvfrom,
                        [fd, reply.as_mut_ptr() as usize, reply.len(), libc::MSG_DONTWAIT as usize, 0, 0],
                    )
                });
        let _ = syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]);
        answer?
    };
    match u16::from_ne_bytes([reply[4], reply[5]]) {
        NLMSG_ERROR if len >= 20 => {
            let number = i32::from_ne_bytes([reply[16], reply[17], reply[18], reply[19]]);
            Err(Errno(number.wrapping_neg()))
        }
        SOCK_DIAG_BY_FAMILY => Ok(len.min(reply.len())),
        _ => Err(Errno(libc::EPROTO)),
    }
}
