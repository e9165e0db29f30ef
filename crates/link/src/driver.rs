//! Which driver: AF_XDP where it can be had, a packet socket elsewhere, or one that is asked for.

use crate::Link;
use crate::arena::Arena;
use crate::error::OpenError;
use crate::packet::Packet;
use crate::xdp::{Config, Xdp};

/// A driver, or the choice of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Driver {
    /// AF_XDP, or else a packet socket.
    #[default]
    Auto,
    /// AF_XDP or nothing.
    Xdp,
    /// A packet socket.
    Packet,
}

/// A link, and how it came to be.
pub struct Opened {
    /// Which driver it is on.
    pub driver: Driver,
    /// The link.
    pub link: Box<dyn Link>,
    /// What it is, e.g. `native XDP, copy`.
    pub mode: String,
    /// Why it is not on AF_XDP, where the choice was free.
    pub instead: Option<OpenError>,
}

impl Driver {
    /// Opens an interface in this thread's network namespace. The configuration's filter and guarantees hold for any driver.
    ///
    /// # Errors
    /// See [`OpenError`]; with a free choice, that of the last driver.
    pub fn open(self, interface: &str, arena: &Arena, config: &Config) -> Result<Opened, OpenError> {
        let xdp = || {
            let link = Xdp::open(interface, arena, config)?;
            let mode = link.mode();
            Ok(Opened { driver: Driver::Xdp, link: Box::new(link), mode, instead: None })
        };
        let packet = |instead| {
            let link = Packet::open(interface, arena, config.filter, config.guarantees)?;
            let mode = "packet socket".to_string();
            Ok(Opened { driver: Driver::Packet, link: Box::new(link), mode, instead })
        };
        match self {
            Driver::Xdp => xdp(),
            Driver::Packet => packet(None),
            Driver::Auto => xdp().or_else(|error| packet(Some(error))),
        }
    }
}
