//! The choice of the driver: AF_XDP if it can be had, else a packet socket, or the driver that is asked for.

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
    /// Opens an interface in this thread's network namespace. The configuration's filter and guarantees hold for any
    /// driver.
    ///
    /// # Errors
    /// See [`OpenError`]; with a free choice, the error of the last driver that was tried.
    pub fn open(self, interface: &str, arena: &Arena, config: &Config) -> Result<Opened, OpenError> {
        let (driven, instead) = self.choose(interface, arena, config)?;
        let (driver, mode) = (driven.driver(), driven.mode());
        Ok(Opened { driver, link: driven.into_link(), mode, instead })
    }

    /// Opens an interface as [`Driver::open`] does, and says why it is not on AF_XDP where the choice was free.
    pub(crate) fn choose(
        self,
        interface: &str,
        arena: &Arena,
        config: &Config,
    ) -> Result<(Driven, Option<OpenError>), OpenError> {
        let xdp = || Ok(Driven::Xdp(Xdp::open(interface, arena, config)?.into()));
        let packet = || Ok(Driven::Packet(Packet::open(interface, arena, config.filter, config.guarantees)?.into()));
        match self {
            Driver::Xdp => Ok((xdp()?, None)),
            Driver::Packet => Ok((packet()?, None)),
            Driver::Auto => match xdp() {
                Ok(xdp) => Ok((xdp, None)),
                Err(error) => Ok((packet()?, Some(error))),
            },
        }
    }
}

/// A link of one of the drivers.
#[derive(Debug)]
pub(crate) enum Driven {
    Xdp(Box<Xdp>),
    Packet(Box<Packet>),
}

impl Driven {
    /// Another link of this driver, over this queue of the same interface where it has several, with buffers of the
    /// same arena.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn beside(&self, interface: &str, arena: &Arena, config: &Config) -> Result<Driven, OpenError> {
        Ok(match self {
            Driven::Xdp(link) => Driven::Xdp(link.beside(config)?.into()),
            Driven::Packet(_) => {
                Driven::Packet(Packet::open(interface, arena, config.filter, config.guarantees)?.into())
            }
        })
    }

    pub fn driver(&self) -> Driver {
        match self {
            Driven::Xdp(_) => Driver::Xdp,
            Driven::Packet(_) => Driver::Packet,
        }
    }

    /// What it is, e.g. `native XDP, copy`.
    pub fn mode(&self) -> String {
        match self {
            Driven::Xdp(link) => link.mode(),
            Driven::Packet(_) => "packet socket".to_string(),
        }
    }

    pub fn link(&self) -> &dyn Link {
        match self {
            Driven::Xdp(link) => link,
            Driven::Packet(link) => link,
        }
    }

    pub fn link_mut(&mut self) -> &mut dyn Link {
        match self {
            Driven::Xdp(link) => link,
            Driven::Packet(link) => link,
        }
    }

    pub fn into_link(self) -> Box<dyn Link> {
        match self {
            Driven::Xdp(link) => link,
            Driven::Packet(link) => link,
        }
    }
}
