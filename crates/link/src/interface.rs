//! What the kernel says of a network interface, by ioctls (netdevice(7)), since sysfs may show another namespace's.
#![allow(unsafe_code, reason = "ioctls that rustix does not have")]

use crate::error::{Fault, OpenError};
use crate::option::get;
use rustix::fd::{AsFd, AsRawFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, netdevice, socket_with};
use std::ffi::c_char;
use std::io;

/// Octets of an Ethernet header, which an interface's MTU does not count.
const ETHERNET: usize = 14;

/// An interface, as it was when it was looked up.
#[derive(Debug)]
pub struct Interface {
    name: String,
    index: u32,
    /// Any socket does for questions.
    ask: OwnedFd,
}

impl Interface {
    /// The interface of that name in this thread's network namespace.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<Interface, OpenError> {
        let doing = "asking for interfaces";
        let flags = SocketFlags::CLOEXEC;
        let ask = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None).map_err(OpenError::system(doing))?;
        let name = name.to_string();
        match netdevice::name_to_index(&ask, &name) {
            Ok(index) => Ok(Interface { name, index, ask }),
            Err(Errno::NODEV | Errno::INVAL | Errno::NAMETOOLONG) => Err(OpenError::NoInterface { interface: name }),
            Err(errno) => Err(OpenError::system(doing)(errno)),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its number.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Its address.
    ///
    /// # Errors
    /// It is gone.
    pub fn address(&self) -> Result<[u8; 6], Fault> {
        let answer = self.ask(libc::SIOCGIFHWADDR)?;
        // SAFETY: SIOCGIFHWADDR has written this member; any octets are a `sockaddr`.
        let octets = unsafe { answer.ifr_ifru.ifru_hwaddr.sa_data };
        Ok(std::array::from_fn(|at| octets[at] as u8))
    }

    /// Whether its address is this one still.
    ///
    /// # Errors
    /// It has another, or is gone.
    pub fn has_still(&self, address: [u8; 6]) -> Result<(), Fault> {
        if self.address()? == address { Ok(()) } else { Err(Fault::Address { interface: self.name.clone() }) }
    }

    /// Octets of its longest packet, with the Ethernet header, be it up or not.
    ///
    /// # Errors
    /// It is gone.
    pub fn longest(&self) -> Result<usize, Fault> {
        let answer = self.ask(libc::SIOCGIFMTU)?;
        // SAFETY: SIOCGIFMTU has written this member.
        let mtu = unsafe { answer.ifr_ifru.ifru_mtu };
        Ok(mtu.max(0) as usize + ETHERNET)
    }

    /// Whether it carries packets.
    ///
    /// # Errors
    /// It does not: it is down, without a carrier, or gone.
    pub fn check(&self) -> Result<(), Fault> {
        let answer = self.ask(libc::SIOCGIFFLAGS)?;
        // SAFETY: SIOCGIFFLAGS has written this member.
        let flags = unsafe { answer.ifr_ifru.ifru_flags };
        let interface = || self.name.clone();
        match i32::from(flags) {
            flags if flags & libc::IFF_UP == 0 => Err(Fault::Down { interface: interface() }),
            // This is the device's state as the kernel sees it (RFC 2863): a device whose driver knows no state counts
            // as running.
            flags if flags & libc::IFF_RUNNING == 0 => Err(Fault::NoCarrier { interface: interface() }),
            _ => Ok(()),
        }
    }

    /// Whether a socket is in the network namespace in which this was looked up: elsewhere its number is another's. The
    /// kernel tells since Linux 5.14.
    ///
    /// # Errors
    /// It does not tell.
    pub fn is_seen_by(&self, socket: impl AsFd) -> io::Result<bool> {
        Ok(namespace(&self.ask)? == namespace(socket)?)
    }

    fn ask(&self, what: libc::Ioctl) -> Result<libc::ifreq, Fault> {
        // The interface is looked up by number: it may have been renamed, or another may have its name by now.
        let gone = || Fault::Gone { interface: self.name.clone() };
        let name = netdevice::index_to_name(&self.ask, self.index).map_err(|_| gone())?;
        // SAFETY: all of it may be zero.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = from as c_char;
        }
        // SAFETY: these requests read a name from, and write an answer to, an `ifreq`, which this is.
        match unsafe { libc::ioctl(self.ask.as_raw_fd(), what, &raw mut request) } {
            0 => Ok(request),
            _ => match io::Error::last_os_error() {
                error if error.raw_os_error() == Some(libc::ENODEV) => Err(gone()),
                error => Err(Fault::System { doing: "asking for an interface", error }),
            },
        }
    }
}

/// The cookie of a socket's network namespace.
fn namespace(socket: impl AsFd) -> io::Result<[u32; 2]> {
    get(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE)
}
