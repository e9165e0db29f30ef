//! The calls of bpf(2) that an XDP program needs. What is made lives as long as its descriptor, and so no longer than
//! the process.
#![allow(unsafe_code, reason = "system calls that rustix does not have")]

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;

/// Commands (`enum bpf_cmd` of linux/bpf.h).
const MAP_CREATE: libc::c_long = 0;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const PROG_LOAD: libc::c_long = 5;
#[cfg(test)]
const PROG_TEST_RUN: libc::c_long = 10;
const LINK_CREATE: libc::c_long = 28;
const LINK_DETACH: libc::c_long = 34;
/// `BPF_MAP_TYPE_XSKMAP`, `BPF_PROG_TYPE_XDP` and `BPF_XDP`.
const XSKMAP: u32 = 17;
const XDP: u32 = 6;
const ATTACH_XDP: u32 = 37;
/// `BPF_F_XDP_HAS_FRAGS`: the program copes with packets in several pieces.
const HAS_FRAGS: u32 = 1 << 5;
/// `BPF_NOEXIST`
const NO_EXIST: u64 = 1;
/// The verifier's words, where it refuses a program.
const LOG: usize = 16 << 10;

/// The beginnings of `union bpf_attr`; the kernel takes what is left out for zero.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    _padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[repr(C)]
struct Load {
    kind: u32,
    instructions: u32,
    code: u64,
    licence: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
}

/// # Safety
/// Each member of `attribute` that is an address must be that of memory as `command` asks for, alive and, where it is
/// written to, lent to nobody else.
unsafe fn bpf<T>(command: libc::c_long, attribute: &mut T) -> io::Result<i32> {
    // SAFETY: an attribute of this size, which may be written to; what it refers to is the caller's promise.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_mut(attribute), size_of::<T>()) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

fn own(descriptor: i32) -> OwnedFd {
    // SAFETY: the kernel has just made it for us.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn number(descriptor: BorrowedFd<'_>) -> u32 {
    descriptor.as_raw_fd() as u32
}

/// Queues of an interface, each with its AF_XDP socket, for the program to look up.
#[derive(Debug)]
pub struct SocketMap(OwnedFd);

impl SocketMap {
    /// An empty map.
    pub fn new(queues: u32) -> io::Result<SocketMap> {
        let mut it = MapCreate { map_type: XSKMAP, key_size: 4, value_size: 4, max_entries: queues };
        // SAFETY: no addresses.
        unsafe { bpf(MAP_CREATE, &mut it) }.map(own).map(SocketMap)
    }

    /// The socket gets what comes on the queue, if no other does (EEXIST). The entry goes with the socket.
    pub fn set(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = number(socket);
        let (key, value) = ((&raw const queue) as u64, (&raw const value) as u64);
        let mut it = MapUpdate { map: number(self.0.as_fd()), _padding: 0, key, value, flags: NO_EXIST };
        // SAFETY: key and value are four octets each, as the map has them, and outlive the call.
        unsafe { bpf(MAP_UPDATE_ELEM, &mut it) }.map(drop)
    }

    /// Nothing that comes on the queue from now on goes to its socket.
    pub fn clear(&self, queue: u32) -> io::Result<()> {
        let mut it =
            MapUpdate { map: number(self.0.as_fd()), _padding: 0, key: (&raw const queue) as u64, value: 0, flags: 0 };
        // SAFETY: the key is four octets, as the map has it, and outlives the call.
        unsafe { bpf(MAP_DELETE_ELEM, &mut it) }.map(drop)
    }

    /// Its descriptor.
    pub fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// A program that the kernel has verified.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// Loads it; `pieces` if it may be shown packets in several.
    pub fn load(code: &[u64], pieces: bool) -> io::Result<Program> {
        let load = |log: &mut [u8]| {
            let mut it = Load {
                kind: XDP,
                instructions: code.len() as u32,
                code: code.as_ptr() as u64,
                licence: c"Dual MIT/GPL".as_ptr() as u64,
                log_level: u32::from(!log.is_empty()),
                log_size: log.len() as u32,
                log: if log.is_empty() { 0 } else { log.as_mut_ptr() as u64 },
                kernel_version: 0,
                flags: if pieces { HAS_FRAGS } else { 0 },
            };
            // SAFETY: so many instructions, a string that ends, and a log of this size, all alive until the call is
            // over.
            unsafe { bpf(PROG_LOAD, &mut it) }.map(own).map(Program)
        };
        load(&mut []).or_else(|error| {
            // Once more, for the verifier's words.
            let mut log = vec![0; LOG];
            load(&mut log).map_err(|_| refused(error, &log))
        })
    }

    /// Attaches it to an interface. EBUSY where another program is attached.
    pub fn attach(&self, interface: u32, flags: u32) -> io::Result<Attached> {
        let mut it = LinkCreate { program: number(self.0.as_fd()), interface, attach_type: ATTACH_XDP, flags };
        // SAFETY: no addresses.
        unsafe { bpf(LINK_CREATE, &mut it) }.map(own).map(Attached)
    }
}

/// A program on an interface, until this goes, or the process.
#[derive(Debug)]
pub struct Attached(OwnedFd);

impl Drop for Attached {
    fn drop(&mut self) {
        let mut it = [number(self.0.as_fd())];
        // Now, even if a child that has been forked and will execute another program has the descriptor for a moment
        // longer. If the interface is gone there is nothing to detach.
        // SAFETY: no addresses.
        let _ = unsafe { bpf(LINK_DETACH, &mut it) };
    }
}

/// The error, with the verifier's words where it has any.
fn refused(error: io::Error, log: &[u8]) -> io::Error {
    let words = log.split(|octet| *octet == 0).next().unwrap_or_default();
    let words = String::from_utf8_lossy(words);
    match (error.raw_os_error(), words.trim()) {
        (Some(libc::EINVAL | libc::EACCES), words) if !words.is_empty() => {
            io::Error::other(format!("{error}: {words}"))
        }
        _ => error,
    }
}

#[cfg(test)]
impl Program {
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// What the program says of a packet.
    pub fn verdict(&self, packet: &[u8]) -> io::Result<u32> {
        #[repr(C)]
        struct TestRun {
            program: u32,
            verdict: u32,
            len: u32,
            len_out: u32,
            packet: u64,
            packet_out: u64,
        }
        let (len, packet) = (packet.len() as u32, packet.as_ptr() as u64);
        let program = number(self.0.as_fd());
        let mut it = TestRun { program, verdict: 0, len, len_out: 0, packet, packet_out: 0 };
        // SAFETY: a packet of this length, which outlives the call; nothing is written but the attribute.
        unsafe { bpf(PROG_TEST_RUN, &mut it) }?;
        Ok(it.verdict)
    }
}
