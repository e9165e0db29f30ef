//! What is known of the ways to peers: how long packets may be, and how fast they may go.

use crate::arena::Buffer;
use crate::table::{MOST, Table};
use crate::udp::name::Name;
use crate::udp::pace::Pace;
use std::net::SocketAddr;

/// The way to a peer.
#[derive(Debug)]
pub struct Path {
    /// The peer at its end.
    pub peer: SocketAddr,
    /// The peer's address, as the kernel has it.
    pub name: Name,
    /// Octets of the longest packet, with its headers.
    pub mtu: usize,
    /// What it was when that was last told.
    pub told: usize,
    /// How fast packets may go, if there is a limit.
    pub pace: Option<Pace>,
}

/// The ways that were used or asked for.
#[derive(Debug, Default)]
pub struct Paths {
    all: Table<SocketAddr, Path>,
    /// The one whose turn it is to be asked for again.
    turn: u32,
}

impl Paths {
    /// The number of the way to a peer, if it is known.
    #[inline]
    pub fn find(&mut self, peer: SocketAddr) -> Option<u32> {
        self.all.find(peer)
    }

    /// A way that was not known; its number. Beyond [`MOST`] ways the one that was not used for longest is forgotten,
    /// but for ways with a pace.
    pub fn add(&mut self, peer: SocketAddr, name: Name, mtu: usize) -> u32 {
        self.all.add_or_replace(MOST, peer, Path { peer, name, mtu, told: mtu, pace: None }, |it| it.pace.is_some())
    }

    /// The way of this number.
    #[inline]
    pub fn get(&self, number: u32) -> &Path {
        self.all.get(number).expect("a number is that of a way")
    }

    /// The way of this number, to be changed.
    pub fn get_mut(&mut self, number: u32) -> &mut Path {
        self.all.get_mut(number).expect("a number is that of a way")
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.all.iter()
    }

    /// The number of a way in which packets are due.
    pub fn due(&self, now: u64) -> Option<u32> {
        let mut all = self.all.iter();
        let number = all.position(|it| it.pace.as_ref().and_then(Pace::due).is_some_and(|due| due <= now));
        number.map(|it| it as u32)
    }

    /// Takes away the paces that have ended; how many.
    pub fn end_paces(&mut self, now: u64) -> usize {
        let over = |it: &&mut Path| it.pace.as_ref().is_some_and(|pace| pace.is_over(now));
        self.all.iter_mut().filter(over).map(|it| it.pace = None).count()
    }

    /// When packets are due next, if any wait.
    pub fn next_due(&self) -> Option<u64> {
        self.all.iter().filter_map(|it| it.pace.as_ref()?.due()).min()
    }

    /// All packets that wait for their time.
    pub fn into_held(self) -> impl Iterator<Item = Buffer> {
        self.all.into_values().filter_map(|it| it.pace).flat_map(Pace::into_held)
    }

    /// The number of one whose turn it is, so that each has its turn.
    pub fn turn(&mut self) -> Option<u32> {
        let (number, count) = (self.turn, self.all.len() as u32);
        self.turn = (number + 1) % count.max(1);
        (number < count).then_some(number)
    }

    /// A path whose MTU has changed without a report: the peer at its end, and the MTU before and now. It counts as
    /// reported.
    pub fn changed(&mut self) -> Option<(SocketAddr, usize, usize)> {
        let path = self.all.iter_mut().find(|it| it.told != it.mtu)?;
        Some((path.peer, std::mem::replace(&mut path.told, path.mtu), path.mtu))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }
}
