//! Two ends in one memory.
//!
//! A *passing* loopback hands the sender's own buffer to the receiver, and back when the receiver has read it: the cheapest link
//! there can be. A *copying* one moves each packet into a buffer of the receiver's, as a device does.

use crate::arena::{Arena, Buffer};
use crate::{Guarantees, Link};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// What lies between the ends, in one direction.
#[derive(Debug, Default)]
struct Way {
    /// Packets on their way.
    packets: VecDeque<Buffer>,
    /// Buffers on their way back to who sent them.
    done: VecDeque<Buffer>,
}

/// One end.
#[derive(Debug)]
pub struct Loopback {
    out: Arc<Mutex<Way>>,
    back: Arc<Mutex<Way>>,
    /// Where the octets of a frame of the sender's began and how many they were, while it is lent.
    lent: Box<[(u32, u32)]>,
    arena: Arena,
    /// Where packets are copied to.
    copy: Option<Copying>,
    mtu: usize,
}

#[derive(Debug)]
struct Copying {
    from: Arena,
    free: Vec<Buffer>,
}

impl Loopback {
    /// Two ends that pass buffers of one arena.
    pub fn passing(arena: &Arena, mtu: usize) -> [Loopback; 2] {
        Loopback::pair([arena, arena], mtu, false)
    }

    /// Two ends that copy packets from either arena to the other.
    pub fn copying(arenas: [&Arena; 2], mtu: usize) -> [Loopback; 2] {
        Loopback::pair(arenas, mtu, true)
    }

    fn pair([a, b]: [&Arena; 2], mtu: usize, copies: bool) -> [Loopback; 2] {
        let (there, back) = (Arc::<Mutex<Way>>::default(), Arc::<Mutex<Way>>::default());
        let end = |out: &Arc<Mutex<Way>>, back: &Arc<Mutex<Way>>, arena: &Arena, from: &Arena| Loopback {
            out: Arc::clone(out),
            back: Arc::clone(back),
            lent: vec![(0, 0); arena.geometry().frames as usize].into_boxed_slice(),
            arena: arena.clone(),
            copy: copies.then(|| Copying { from: from.clone(), free: Vec::new() }),
            mtu,
        };
        [end(&there, &back, a, b), end(&back, &there, b, a)]
    }
}

fn lock(way: &Mutex<Way>) -> std::sync::MutexGuard<'_, Way> {
    // Nobody can leave it half done.
    way.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Link for Loopback {
    fn guarantees(&self) -> Guarantees {
        // A copying end without a buffer lets packets wait.
        Guarantees { delivery: true, integrity: true }
    }

    fn mtu(&self) -> usize {
        self.mtu
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        let mut way = lock(&self.out);
        for packet in packets.drain(..) {
            self.lent[packet.frame() as usize] = (packet.offset(), packet.len() as u32);
            way.packets.push_back(packet);
        }
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        let mut way = lock(&self.out);
        for mut buffer in way.done.drain(..) {
            let (offset, len) = self.lent[buffer.frame() as usize];
            self.arena.restore(&mut buffer, offset, len);
            done.push(buffer);
        }
    }

    fn fill(&mut self, buffer: Buffer) {
        match &mut self.copy {
            Some(copy) => copy.free.push(buffer),
            None => lock(&self.back).done.push_back(buffer),
        }
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let mut way = lock(&self.back);
        let mut count = 0;
        while count < most {
            let Some(packet) = way.packets.pop_front() else { break };
            match &mut self.copy {
                None => packets.push(packet),
                Some(copy) => {
                    let Some(mut buffer) = copy.free.pop() else {
                        way.packets.push_front(packet);
                        break;
                    };
                    let octets = copy.from.octets(&packet);
                    let len = octets.len();
                    self.arena.room(&mut buffer)[..len].copy_from_slice(octets);
                    self.arena.fill(&mut buffer, len);
                    packets.push(buffer);
                    way.done.push_back(packet);
                }
            }
            count += 1;
        }
        count
    }
}
