//! Two ends in one memory.
//!
//! A *passing* loopback hands the sender's own buffer to the receiver, and back when the receiver has read it: the
//! cheapest link there can be. A *copying* one moves each packet into a buffer of the receiver's, as a device does.

use crate::arena::{Arena, Buffer};
use crate::bell::Waker;
use crate::ring::{Receiver, Sender, ring};
use crate::{Guarantees, Link, Returned, Watch};
use std::collections::VecDeque;

/// One end. The rings have room for every buffer that there is.
#[derive(Debug)]
pub struct Loopback {
    /// Packets to the other end, and their buffers on the way back.
    out: Sender<Buffer>,
    done: Receiver<Buffer>,
    /// Packets from the other end, and their buffers on the way back.
    come: Receiver<Buffer>,
    read: Sender<Buffer>,
    /// For each frame of the sender's that is lent: where its octets began, and how many they were.
    lent: Box<[(u32, u32)]>,
    arena: Arena,
    /// Where packets are copied to.
    copy: Option<Copying>,
    mtu: usize,
}

/// Out, done, come and read of an end.
type Rings = (Sender<Buffer>, Receiver<Buffer>, Receiver<Buffer>, Sender<Buffer>);

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

    /// A link whose packets come back to itself, copied: a cable from its output to its input.
    pub fn cable(arena: &Arena, mtu: usize) -> Loopback {
        let frames = arena.geometry().frames as usize;
        let ((out, come), (read, done)) = (ring(frames), ring(frames));
        Loopback::end((out, done, come, read), arena, arena, mtu, true)
    }

    fn pair([a, b]: [&Arena; 2], mtu: usize, copies: bool) -> [Loopback; 2] {
        let way = |from: &Arena| {
            let frames = from.geometry().frames as usize;
            (ring(frames), ring(frames))
        };
        let ((a_out, b_come), (b_read, a_done)) = way(a);
        let ((b_out, a_come), (a_read, b_done)) = way(b);
        [
            Loopback::end((a_out, a_done, a_come, a_read), a, b, mtu, copies),
            Loopback::end((b_out, b_done, b_come, b_read), b, a, mtu, copies),
        ]
    }

    fn end((out, done, come, read): Rings, arena: &Arena, from: &Arena, mtu: usize, copies: bool) -> Loopback {
        Loopback {
            out,
            done,
            come,
            read,
            lent: vec![(0, 0); arena.geometry().frames as usize].into_boxed_slice(),
            arena: arena.clone(),
            copy: copies.then(|| Copying { from: from.clone(), free: Vec::new() }),
            mtu,
        }
    }
}

/// Puts a buffer into a ring that has room for every one.
#[inline]
fn put(ring: &mut Sender<Buffer>, buffer: Buffer) {
    let Ok(()) = ring.push(buffer) else { unreachable!("there are not so many buffers") };
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
        for packet in packets.drain(..) {
            self.lent[packet.frame() as usize] = (packet.offset(), packet.len() as u32);
            put(&mut self.out, packet);
        }
        self.out.publish();
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        // What was read since this end looked last, if only to be given back as it came.
        self.read.publish();
        while let Some(mut buffer) = self.done.pop() {
            let (offset, len) = self.lent[buffer.frame() as usize];
            self.arena.restore(&mut buffer, offset, len);
            done.push(buffer);
        }
    }

    fn fill(&mut self, buffer: Buffer) {
        match &mut self.copy {
            Some(copy) => copy.free.push(buffer),
            None => put(&mut self.read, buffer),
        }
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let mut count = 0;
        while count < most && self.copy.as_ref().is_none_or(|it| !it.free.is_empty()) {
            let Some(packet) = self.come.pop() else { break };
            count += 1;
            let Some(copy) = &mut self.copy else {
                packets.push(packet);
                continue;
            };
            let Some(mut buffer) = copy.free.pop() else { unreachable!("one is left, as was seen above") };
            let octets = copy.from.octets(&packet);
            let len = octets.len();
            self.arena.room(&mut buffer)[..len].copy_from_slice(octets);
            self.arena.fill(&mut buffer, len);
            packets.push(buffer);
            put(&mut self.read, packet);
        }
        // This comes before the other end can send these buffers again; otherwise there would be no room for them.
        self.come.release();
        self.read.publish();
        count
    }

    fn watch(&mut self) -> Watch {
        self.read.publish();
        match (self.done.watch(Waker::here()), self.come.watch(Waker::here())) {
            (Watch::Armed, Watch::Armed) => Watch::Armed,
            _ => Watch::Ready,
        }
    }

    fn close(mut self: Box<Self>) -> Returned {
        let mut lent = Vec::new();
        self.complete(&mut lent);
        // Packets that the other end has sent and this end has not received go back to the other end.
        while let Some(packet) = self.come.pop() {
            put(&mut self.read, packet);
        }
        self.read.publish();
        Returned { lent, given: self.copy.map_or_else(Vec::new, |copy| copy.free), own: Vec::new() }
    }
}
