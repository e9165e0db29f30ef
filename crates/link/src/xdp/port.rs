//! The XDP program on an interface, which all links on it share.

use super::bpf::{Attached, Program, SocketMap};
use crate::error::OpenError;
use crate::filter::Filter;
use crate::interface::Interface;
use crate::packet;
use rustix::thread::{MembarrierCommand, membarrier};

/// Where the XDP program runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Attach {
    /// In the device's driver if that can, otherwise in the kernel.
    #[default]
    Auto,
    /// Only in the device's driver.
    Native,
    /// In the kernel, behind the driver: for any interface, and slower.
    Generic,
}

/// Queues that an interface may have.
const QUEUES: u32 = 1024;
/// `XDP_FLAGS_SKB_MODE` and `XDP_FLAGS_DRV_MODE`.
const GENERIC: u32 = 1 << 1;
const NATIVE: u32 = 1 << 2;

/// The program on an interface, for all of this process's links on it.
#[derive(Debug)]
pub(super) struct Port {
    pub interface: Interface,
    /// Its address, which the program knows.
    pub address: [u8; 6],
    pub sockets: SocketMap,
    pub native: bool,
    pub pieces: bool,
    _attached: Attached,
}

impl Port {
    /// Attaches the program to an interface, in the first of the modes that are wanted and can be had.
    pub fn open(interface: Interface, filter: Filter, wanted: Attach) -> Result<Port, OpenError> {
        let doing = "loading an XDP program";
        let system = |error: std::io::Error| match error.raw_os_error() {
            Some(libc::EPERM) => OpenError::NoPermission { doing },
            Some(libc::ENOSYS) => OpenError::NotInKernel { what: "bpf(2)", since: "5.9" },
            _ => OpenError::System { doing, error },
        };
        let sockets = SocketMap::new(QUEUES).map_err(|error| match error.raw_os_error() {
            Some(libc::EINVAL) => {
                OpenError::NotInKernel { what: "maps of AF_XDP sockets (CONFIG_XDP_SOCKETS)", since: "4.18" }
            }
            _ => system(error),
        })?;
        let gone = |_| OpenError::NoInterface { interface: interface.name().to_string() };
        let address = interface.address().map_err(gone)?;
        let code = filter.program(address, sockets.descriptor());
        let modes: &[u32] = match wanted {
            Attach::Auto => &[NATIVE, GENERIC],
            Attach::Native => &[NATIVE],
            Attach::Generic => &[GENERIC],
        };
        let mut refusal = None;
        // Before Linux 5.18 no program may be shown packets in pieces, and not all devices' drivers do today.
        for (mode, pieces) in modes.iter().flat_map(|mode| [(*mode, true), (*mode, false)]) {
            let program = match Program::load(&code, pieces) {
                Ok(program) => program,
                Err(_) if pieces => continue,
                Err(error) => return Err(system(error)),
            };
            match program.attach(interface.index(), mode) {
                Ok(attached) => {
                    let native = mode == NATIVE;
                    return Ok(Port { interface, address, sockets, native, pieces, _attached: attached });
                }
                // Another mode would not help: an interface has one program, whatever its mode.
                Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST)) => {
                    return Err(OpenError::ForeignProgram { interface: interface.name().to_string() });
                }
                Err(error) => refusal = Some(error),
            }
        }
        let interface = interface.name().to_string();
        Err(match refusal {
            Some(error) if error.raw_os_error() == Some(libc::EPERM) => OpenError::NoPermission { doing },
            Some(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                OpenError::NotInKernel { what: "links of XDP programs", since: "5.9" }
            }
            Some(error) if error.raw_os_error() == Some(libc::ENODEV) => OpenError::NoInterface { interface },
            Some(_) | None => OpenError::NoXdp { interface },
        })
    }
}

/// Waits until all that the kernel's network code was about to do with what it had found is done; whether it could.
pub(super) fn barrier() -> bool {
    // If processors are kept from interrupts (`nohz_full`), the kernel refuses membarrier(2). Binding a packet socket
    // to another protocol while it runs waits for the same.
    membarrier(MembarrierCommand::Global).is_ok() || packet::rebind().is_ok()
}
