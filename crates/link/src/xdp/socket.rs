//! An AF_XDP socket: packet memory registered, four rings, bound to a queue of an interface.
#![allow(unsafe_code, reason = "advice on memory")]

use super::rings::{Consumer, Producer};
use crate::arena::Arena;
use crate::error::OpenError;
use crate::interface::Interface;
use crate::option::set;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{self, Errno};
use rustix::mm::{Advice, madvise};
use rustix::net::addr::SocketAddrArg;
use rustix::net::sockopt::{
    set_xdp_rx_ring_size, set_xdp_tx_ring_size, set_xdp_umem_completion_ring_size, set_xdp_umem_fill_ring_size,
    set_xdp_umem_reg, xdp_mmap_offsets, xdp_options,
};
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags as Flags, SocketAddrXdpWithSharedUmem, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING,
    XDP_UMEM_PGOFF_COMPLETION_RING, XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpOptionsFlags, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Whether packets are copied between the device's memory and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Bind {
    /// Without a copy where the device's driver can, otherwise with.
    #[default]
    Auto,
    /// Only without.
    ZeroCopy,
    /// With.
    Copy,
}

/// The receiver has the kernel do the device's work there and then (NAPI), on the receiver's processor, instead of
/// wherever an interrupt comes. Where the interface puts its interrupts off (`napi_defer_hard_irqs` and
/// `gro_flush_timeout` of `/sys/class/net/NAME`), it does without any as long as the receiver polls. Linux 6.18 does so
/// only for a socket without copies: the packets of other sockets come as ever, and the interrupts of their interfaces
/// had better stay on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BusyPoll {
    /// Most packets for each call; more than 64 need CAP_NET_ADMIN.
    pub budget: u16,
}

/// Octets that the kernel keeps free in front of a packet that it receives (`XDP_PACKET_HEADROOM`).
pub const KERNEL_HEADROOM: u32 = 256;
/// `XDP_MAX_TX_SKB_BUDGET` of linux/if_xdp.h: how many frames a call sends; Linux 6.18 has it.
const MAX_TX_SKB_BUDGET: i32 = 9;
/// Microseconds that a call may poll which may wait. Ours never wait, and look once.
const BUSY_POLL: u32 = 20;
/// The sizes of frames that the kernel takes (`XDP_UMEM_MIN_CHUNK_SIZE`, and a page).
const LEAST_FRAME: u32 = 2048;

/// The socket, and its rings. Each has room for every frame of the arena.
#[derive(Debug)]
pub struct Socket {
    /// Twice as many: the kernel says what has come before it says that it has taken the frames for it from here, so
    /// that they may be back while they still take room.
    pub fill: Producer<u64>,
    pub completion: Consumer<u64>,
    pub transmit: Producer<XdpDesc>,
    pub receive: Consumer<XdpDesc>,
    /// Whether the device reads and writes the packet memory itself.
    pub zero_copy: bool,
    /// Whether packets may lie in several frames.
    pub pieces: bool,
    descriptor: OwnedFd,
}

impl Socket {
    /// A socket over the arena's memory, which is bound to nothing yet. With `registered`, another one has registered
    /// the memory.
    pub fn new(arena: &Arena, registered: bool) -> Result<Socket, OpenError> {
        check(arena)?;
        let descriptor = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None);
        let descriptor = descriptor.map_err(|errno| match errno {
            Errno::AFNOSUPPORT => OpenError::NotInKernel { what: "AF_XDP sockets (CONFIG_XDP_SOCKETS)", since: "4.18" },
            errno => OpenError::system("opening an AF_XDP socket")(errno),
        })?;
        if !registered {
            register(&descriptor, arena)?;
        }
        let size = arena.geometry().frames.next_power_of_two();
        let rings = || -> io::Result<_> {
            set_xdp_umem_fill_ring_size(&descriptor, 2 * size)?;
            set_xdp_umem_completion_ring_size(&descriptor, size)?;
            set_xdp_tx_ring_size(&descriptor, size)?;
            set_xdp_rx_ring_size(&descriptor, size)?;
            let at = xdp_mmap_offsets(&descriptor)?;
            Ok((
                Producer::map(&descriptor, XDP_UMEM_PGOFF_FILL_RING, at.fr, 2 * size)?,
                Consumer::map(&descriptor, XDP_UMEM_PGOFF_COMPLETION_RING, at.cr, size)?,
                Producer::map(&descriptor, XDP_PGOFF_TX_RING, at.tx, size)?,
                Consumer::map(&descriptor, XDP_PGOFF_RX_RING, at.rx, size)?,
            ))
        };
        let (fill, completion, transmit, receive) =
            rings().map_err(OpenError::system("making the rings of a socket"))?;
        // An older kernel, or one with a ring that is smaller still, sends 32 with a call and is called again.
        let _ = set(&descriptor, libc::SOL_XDP, MAX_TX_SKB_BUDGET, &size);
        Ok(Socket { fill, completion, transmit, receive, zero_copy: false, pieces: false, descriptor })
    }

    /// Binds the socket to a queue of an interface. `beside` is the socket that has registered the memory, if it is
    /// another; all else is then as with that socket. With `pieces`, packets may lie in several frames if kernel and
    /// device support that.
    pub fn bind(
        &mut self,
        interface: &Interface,
        queue: u32,
        how: Bind,
        pieces: bool,
        beside: Option<&Socket>,
    ) -> Result<(), OpenError> {
        let name = || interface.name().to_string();
        let address = |flags| SocketAddrXdp::new(flags, interface.index(), queue);
        let (result, pieces) = match beside {
            Some(first) => {
                let (addr, shared_umem_fd) = (address(Flags::XDP_SHARED_UMEM), first.as_fd());
                (self.bind_when_free(&SocketAddrXdpWithSharedUmem { addr, shared_umem_fd }), first.pieces)
            }
            None => first_of(how, pieces, |flags| self.bind_when_free(&address(flags))),
        };
        result.map_err(|errno| match errno {
            Errno::BUSY => OpenError::QueueTaken { interface: name(), queue },
            Errno::INVAL => OpenError::NoQueue { interface: name(), queue },
            Errno::NODEV | Errno::NXIO => OpenError::NoInterface { interface: name() },
            Errno::OPNOTSUPP if how == Bind::ZeroCopy => OpenError::NoZeroCopy { interface: name(), queue },
            errno => OpenError::system("binding an AF_XDP socket")(errno),
        })?;
        self.pieces = pieces;
        // Before Linux 5.3 there was no word on it; then it is not known, and counts as not.
        self.zero_copy =
            xdp_options(&self.descriptor).is_ok_and(|it| it.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY));
        Ok(())
    }

    /// Has the kernel poll the device when the socket is read, and leave it alone otherwise where the interface allows
    /// that.
    pub fn busy_poll(&self, how: BusyPoll) -> Result<(), OpenError> {
        let set = |option, value: u32| set(&self.descriptor, libc::SOL_SOCKET, option, &value);
        set(libc::SO_PREFER_BUSY_POLL, 1)
            .and_then(|()| set(libc::SO_BUSY_POLL, BUSY_POLL))
            .and_then(|()| set(libc::SO_BUSY_POLL_BUDGET, how.budget.into()))
            .map_err(|error| match Errno::from_io_error(&error).unwrap_or(Errno::INVAL) {
                Errno::NOPROTOOPT => OpenError::NotInKernel {
                    what: "busy polling for who prefers it (SO_PREFER_BUSY_POLL)",
                    since: "5.11",
                },
                errno => OpenError::system("setting a socket to busy polling")(errno),
            })
    }

    /// The kernel takes a queue from a socket that was closed a moment later, by a work of its own, which beside heavy
    /// load waits for a processor.
    fn bind_when_free(&self, address: &impl SocketAddrArg) -> io::Result<()> {
        const PATIENCE: Duration = Duration::from_secs(2);
        let began = Instant::now();
        loop {
            match bind(&self.descriptor, address) {
                Err(Errno::BUSY) if began.elapsed() < PATIENCE => sleep(Duration::from_millis(1)),
                result => return result,
            }
        }
    }
}

/// Binds in the first of the ways that there are, and whether packets may lie in several frames then.
///
/// Without a copy is asked for by name, before anything else: with a free choice, a kernel that cannot do what else is
/// asked for without a copy, as packets in several frames on a device that takes one, does it with one and says that
/// all is well.
fn first_of(how: Bind, pieces: bool, mut bind: impl FnMut(Flags) -> io::Result<()>) -> (io::Result<()>, bool) {
    let copies: &[Flags] = match how {
        Bind::Auto => &[Flags::XDP_ZEROCOPY, Flags::XDP_COPY],
        Bind::ZeroCopy => &[Flags::XDP_ZEROCOPY],
        Bind::Copy => &[Flags::XDP_COPY],
    };
    let mut last = (Err(Errno::OPNOTSUPP), false);
    for (copies, pieces) in copies.iter().flat_map(|it| [(*it, pieces), (*it, false)]) {
        let plain = Flags::XDP_USE_NEED_WAKEUP | copies;
        last = (bind(if pieces { plain | Flags::XDP_USE_SG } else { plain }), pieces);
        // Before Linux 6.6, or a driver that cannot.
        if !matches!(last.0, Err(Errno::INVAL | Errno::OPNOTSUPP)) {
            break;
        }
    }
    last
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

fn check(arena: &Arena) -> Result<(), OpenError> {
    let geometry = arena.geometry();
    let (frame_size, headroom) = (geometry.frame_size, geometry.headroom);
    let remedy = if !frame_size.is_power_of_two() {
        "their size has to be a power of two"
    } else if frame_size < LEAST_FRAME || frame_size as usize > rustix::param::page_size() {
        "AF_XDP takes frames of 2048 octets to a page"
    } else if headroom + KERNEL_HEADROOM + LEAST_FRAME / 2 > frame_size {
        "the kernel keeps 256 octets more; leave at least 1024 for a packet"
    } else {
        return Ok(());
    };
    Err(OpenError::Frames { frame_size, headroom, remedy })
}

/// Its pages are locked from here on; large ones, where the system gives any, cost the processor less.
fn register(socket: &OwnedFd, arena: &Arena) -> Result<(), OpenError> {
    let geometry = arena.geometry();
    let memory = arena.memory();
    // SAFETY: of this mapping, of which all stays as it is.
    let _ = unsafe { madvise(memory.as_ptr().cast(), memory.len(), Advice::LinuxHugepage) };
    let umem = XdpUmemReg {
        addr: memory.as_ptr().cast::<u8>() as u64,
        len: u64::from(geometry.frames) * u64::from(geometry.frame_size),
        chunk_size: geometry.frame_size,
        headroom: geometry.headroom,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    set_xdp_umem_reg(socket, umem).map_err(|errno| match errno {
        Errno::NOBUFS | Errno::NOMEM => OpenError::Locked { octets: umem.len as usize },
        errno => OpenError::system("registering packet memory")(errno),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of so many pieces without a copy, on a kernel that knows of these, as `xp_assign_dev` of Linux 6.18
    /// binds it: with a copy or without one, in pieces or not. No test has such a device.
    fn bound(segments: u32, knows_pieces: bool, how: Bind, pieces: bool) -> (io::Result<()>, Option<(bool, bool)>) {
        let mut bound = None;
        let (result, in_pieces) = first_of(how, pieces, |flags| {
            let [zero_copy, copy, sg] =
                [Flags::XDP_ZEROCOPY, Flags::XDP_COPY, Flags::XDP_USE_SG].map(|it| flags.contains(it));
            if sg && !knows_pieces || zero_copy && copy {
                return Err(Errno::INVAL);
            }
            let can = segments > 1 || segments == 1 && !sg;
            if zero_copy && !can {
                return Err(Errno::OPNOTSUPP);
            }
            bound = Some((can && !copy, sg));
            Ok(())
        });
        assert!(result.is_err() || bound.is_some_and(|it| it.1 == in_pieces));
        (result, bound)
    }

    #[test]
    fn without_a_copy_comes_before_pieces() {
        let [zero_copy, copy] = [true, false].map(|zero_copy| move |pieces| (Ok(()), Some((zero_copy, pieces))));
        assert_eq!(bound(17, true, Bind::Auto, true), zero_copy(true));
        assert_eq!(bound(1, true, Bind::Auto, true), zero_copy(false));
        assert_eq!(bound(1, false, Bind::Auto, true), zero_copy(false));
        assert_eq!(bound(0, true, Bind::Auto, true), copy(true));
        assert_eq!(bound(0, false, Bind::Auto, true), copy(false));
        assert_eq!(bound(17, true, Bind::Auto, false), zero_copy(false));
        assert_eq!(bound(17, true, Bind::Copy, true), copy(true));
        assert_eq!(bound(1, true, Bind::ZeroCopy, true), zero_copy(false));
        assert_eq!(bound(0, true, Bind::ZeroCopy, true), (Err(Errno::OPNOTSUPP), None));
    }
}
