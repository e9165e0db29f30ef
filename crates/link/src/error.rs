//! What can keep a driver from an interface, and what can happen to one that has it.

use std::io;
use std::net::{IpAddr, SocketAddr};

/// Why a link could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// This network namespace has no interface of that name.
    #[error("there is no interface {interface} here; `ip link` lists those that there are")]
    NoInterface {
        /// Its name.
        interface: String,
    },
    /// What the driver needs is kept for others.
    #[error(
        "{doing} is not permitted; run as root, or give the program what it needs: \
         setcap cap_net_raw,cap_net_admin,cap_bpf+ep PROGRAM"
    )]
    NoPermission {
        /// What was tried.
        doing: &'static str,
    },
    /// The kernel is too old, or was built without it.
    #[error("this kernel has no {what}; Linux {since} has it, and the driver af_packet does without")]
    NotInKernel {
        /// What it lacks.
        what: &'static str,
        /// The version that brought it.
        since: &'static str,
    },
    /// Another socket has the queue.
    #[error(
        "queue {queue} of {interface} is taken by another socket; end the program that has it, or choose another queue"
    )]
    QueueTaken {
        /// The interface.
        interface: String,
        /// Its queue.
        queue: u32,
    },
    /// The interface has fewer.
    #[error(
        "{interface} has no queue {queue}, or one of these options is none of its; `ls \
         /sys/class/net/{interface}/queues`"
    )]
    NoQueue {
        /// The interface.
        interface: String,
        /// The queue that it does not have.
        queue: u32,
    },
    /// A program that is not ours, or another process's.
    #[error(
        "{interface} has an XDP program already, which is not replaced; end the program that attached it, \
         or `ip link set dev {interface} xdp off`"
    )]
    ForeignProgram {
        /// The interface.
        interface: String,
    },
    /// Neither the device's driver nor the kernel for it.
    #[error("{interface} cannot run an XDP program in this mode; another mode, or the driver af_packet, does without")]
    NoXdp {
        /// The interface.
        interface: String,
    },
    /// The device reads no packet memory of ours.
    #[error(
        "queue {queue} of {interface} cannot do without a copy; bind it with copies, or leave the choice to the driver"
    )]
    NoZeroCopy {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// Packet memory is not to be swapped out.
    #[error("{octets} octets of packet memory cannot be locked; raise `ulimit -l`, or use fewer or smaller frames")]
    Locked {
        /// Octets of the arena.
        octets: usize,
    },
    /// The arena's frames are none that the driver can use.
    #[error("frames of {frame_size} octets with a headroom of {headroom}: {remedy}")]
    Frames {
        /// Octets of a frame.
        frame_size: u32,
        /// Octets of its headroom.
        headroom: u32,
        /// What would do.
        remedy: &'static str,
    },
    /// This host, or this network namespace, does not have it.
    #[error("this host has no address {address}, or has not made sure of it yet; `ip address` lists those that it has")]
    NoAddress {
        /// The address.
        address: IpAddr,
    },
    /// The address stands for several interfaces, and packets must name one.
    #[error("{address} is not the address of one interface; name one of those that `ip address` lists")]
    Unspecific {
        /// The address.
        address: IpAddr,
    },
    /// Another socket has it.
    #[error("{address} is taken by another socket; end the program that has it (`ss -lunp`), or choose another port")]
    PortTaken {
        /// The address and the port.
        address: SocketAddr,
    },
    /// It is kept for privileged programs.
    #[error("port {port} is reserved; choose one from 1024 on, or lower net.ipv4.ip_unprivileged_port_start")]
    Reserved {
        /// The port.
        port: u16,
    },
    /// Anything else.
    #[error("{doing}: {error}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}

impl OpenError {
    /// What the kernel said where nothing more is known.
    pub(crate) fn system(doing: &'static str) -> impl Fn(rustix::io::Errno) -> OpenError {
        move |errno| match errno {
            rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => OpenError::NoPermission { doing },
            errno => OpenError::System { doing, error: errno.into() },
        }
    }
}

/// What has become of a link that was open. Those that pass leave it usable: what was lent goes out, or comes back,
/// later.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// It carries nothing until it is brought up again.
    #[error("{interface} is down; `ip link set dev {interface} up`")]
    Down {
        /// The interface.
        interface: String,
    },
    /// Nothing comes over it, since it looks for what is sent to the old one: the link has to be opened anew.
    #[error("{interface} has another address than when it was opened; open it anew")]
    Address {
        /// The interface.
        interface: String,
    },
    /// It is up, and nothing is at the other end: what is sent is lost until there is.
    #[error("{interface} has no carrier; look at its cable, and at what is at the other end")]
    NoCarrier {
        /// The interface.
        interface: String,
    },
    /// It comes back under another number, if at all: the link has to be opened anew.
    #[error("{interface} is gone; when it is there again, open it anew")]
    Gone {
        /// The interface.
        interface: String,
    },
    /// [`crate::Link::mtu`] says the new one; longer packets are lost. Told once.
    #[error("the longest packet of {interface} is now of {is} octets, and was of {was}")]
    Mtu {
        /// The interface.
        interface: String,
        /// Octets of the longest packet before.
        was: usize,
        /// And now.
        is: usize,
    },
    /// The way to one peer takes longer packets than before, or only shorter ones; longer ones are refused. Told once.
    #[error("the longest packet to {peer} is now of {is} octets, and was of {was}")]
    Path {
        /// The peer at its end.
        peer: SocketAddr,
        /// Octets of the longest packet before.
        was: usize,
        /// And now.
        is: usize,
    },
    /// What was sent to one peer did not get there, or did not leave; it is lost.
    #[error("{peer} cannot be reached ({error}); `ip route get {}` shows the way, and `ss -lun` there who \
             listens", peer.ip())]
    Unreachable {
        /// The peer.
        peer: SocketAddr,
        /// What the kernel, or a router, said.
        error: io::Error,
    },
    /// Nothing is sent from, and nothing comes to, an address that this host no longer has.
    #[error("this host has no address {address} any more; when it has it again, open the link anew")]
    NoAddress {
        /// The address.
        address: IpAddr,
    },
    /// Anything else.
    #[error("{doing}: {error}")]
    System {
        /// What was tried.
        doing: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
}
