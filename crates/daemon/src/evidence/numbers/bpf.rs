//! The calls of bpf(2) that this takes. What is made lives as long as its descriptor, and so no longer than the daemon.
#![allow(unsafe_code, reason = "system calls that rustix does not have")]

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::io;
use std::marker::PhantomData;

/// Commands (`enum bpf_cmd` of include/uapi/linux/bpf.h).
const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
/// `BPF_MAP_TYPE_LRU_HASH`, `BPF_PROG_TYPE_SOCK_OPS` and `BPF_CGROUP_SOCK_OPS`.
const LRU_HASH: u32 = 9;
const SOCK_OPS: u32 = 13;
const ATTACH_SOCK_OPS: u32 = 3;

/// The beginnings of `union bpf_attr`; the kernel takes what is left out for zero.
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
}

#[repr(C)]
struct MapLookup {
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
    target: u32,
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

/// Plain integers, or arrays of them, which take any value.
pub trait Plain: Copy + Default {}
impl Plain for u64 {}
impl Plain for [u32; 2] {}
impl Plain for [u64; 2] {}

/// A hash table in the kernel, which forgets what was used least recently when it is full.
#[derive(Debug)]
pub struct Map<K, V>(OwnedFd, PhantomData<(K, V)>);

impl<K: Plain, V: Plain> Map<K, V> {
    /// An empty one with room for so many entries.
    pub fn new(most: u32) -> io::Result<Map<K, V>> {
        let (key_size, value_size) = (size_of::<K>() as u32, size_of::<V>() as u32);
        let mut it = MapCreate { map_type: LRU_HASH, key_size, value_size, max_entries: most };
        // SAFETY: no addresses.
        unsafe { bpf(MAP_CREATE, &mut it) }.map(|descriptor| Map(own(descriptor), PhantomData))
    }

    /// What is under this key.
    pub fn get(&self, key: &K) -> io::Result<Option<V>> {
        let mut value = V::default();
        let (map, key_at, value_at) = (self.descriptor() as u32, (&raw const *key) as u64, (&raw mut value) as u64);
        let mut it = MapLookup { map, _padding: 0, key: key_at, value: value_at, flags: 0 };
        // SAFETY: key and value are as long as the map was made for, outlive the call, and take any value.
        match unsafe { bpf(MAP_LOOKUP_ELEM, &mut it) } {
            Ok(_) => Ok(Some(value)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error),
        }
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
    /// Loads it.
    pub fn load(code: &[u64]) -> io::Result<Program> {
        let mut it = Load {
            kind: SOCK_OPS,
            instructions: code.len() as u32,
            code: code.as_ptr() as u64,
            licence: c"Dual MIT/GPL".as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log: 0,
            kernel_version: 0,
            flags: 0,
        };
        // SAFETY: so many instructions and a string that ends, all alive until the call is over.
        unsafe { bpf(PROG_LOAD, &mut it) }.map(own).map(Program)
    }

    /// Attaches it to a cgroup, beside what is attached there.
    pub fn attach(&self, cgroup: BorrowedFd<'_>) -> io::Result<Attached> {
        let (program, target) = (self.0.as_raw_fd() as u32, cgroup.as_fd().as_raw_fd() as u32);
        let mut it = LinkCreate { program, target, attach_type: ATTACH_SOCK_OPS, flags: 0 };
        // SAFETY: no addresses.
        unsafe { bpf(LINK_CREATE, &mut it) }.map(own).map(Attached)
    }
}

/// A program on a cgroup, until this goes, or the process.
#[derive(Debug)]
pub struct Attached(#[expect(dead_code, reason = "closing it detaches the program")] OwnedFd);
