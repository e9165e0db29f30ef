//! What is known of the ways to peers: how long packets may be, and how fast they may go.

use crate::arena::Buffer;
use crate::udp::name::Name;
use crate::udp::pace::Pace;
use std::collections::HashMap;
use std::net::SocketAddr;

/// The way to a peer.
#[derive(Debug)]
pub struct Path {
    /// Who is at its end.
    pub peer: SocketAddr,
    /// The same, as the kernel has it.
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
    all: Vec<Path>,
    numbers: HashMap<SocketAddr, usize>,
    /// The one that was looked up last, and most likely is looked up next.
    last: usize,
    /// The one whose turn it is to be asked for again.
    turn: usize,
}

impl Paths {
    /// The number of the way to a peer, if it is known.
    #[inline]
    pub fn find(&mut self, peer: SocketAddr) -> Option<usize> {
        if self.all.get(self.last).is_none_or(|it| it.peer != peer) {
            self.last = *self.numbers.get(&peer)?;
        }
        Some(self.last)
    }

    /// A way that was not known; its number.
    pub fn add(&mut self, peer: SocketAddr, name: Name, mtu: usize) -> usize {
        let number = self.all.len();
        self.all.push(Path { peer, name, mtu, told: mtu, pace: None });
        self.numbers.insert(peer, number);
        number
    }

    /// The way of this number.
    #[inline]
    pub fn get(&self, number: usize) -> &Path {
        &self.all[number]
    }

    /// The same.
    pub fn get_mut(&mut self, number: usize) -> &mut Path {
        &mut self.all[number]
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Path> {
        self.all.iter()
    }

    /// The number of a way in which packets are due.
    pub fn due(&self, now: u64) -> Option<usize> {
        self.all.iter().position(|it| it.pace.as_ref().and_then(Pace::due).is_some_and(|due| due <= now))
    }

    /// When packets are due next, if any wait.
    pub fn next_due(&self) -> Option<u64> {
        self.all.iter().filter_map(|it| it.pace.as_ref()?.due()).min()
    }

    /// All packets that wait for their time.
    pub fn into_held(self) -> impl Iterator<Item = Buffer> {
        self.all.into_iter().filter_map(|it| it.pace).flat_map(Pace::into_held)
    }

    /// The number of one whose turn it is, so that each has its turn.
    pub fn turn(&mut self) -> Option<usize> {
        let number = self.turn;
        self.turn = (number + 1) % self.all.len().max(1);
        (number < self.all.len()).then_some(number)
    }

    /// One that has changed and was not told of: who is at its end, what it was and is. It counts as told.
    pub fn changed(&mut self) -> Option<(SocketAddr, usize, usize)> {
        let path = self.all.iter_mut().find(|it| it.told != it.mtu)?;
        Some((path.peer, std::mem::replace(&mut path.told, path.mtu), path.mtu))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.all.len()
    }
}
