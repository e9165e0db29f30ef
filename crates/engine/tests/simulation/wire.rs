//! A wire with faults, in virtual time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex};
use underpass_engine::network::HEADERS;
use underpass_engine::service::Time;
use underpass_link::arena::{Arena, Buffer};
use underpass_link::{Guarantees, Link, Returned};

/// What goes wrong, and how fast the wire is.
#[derive(Clone, Copy, Debug)]
pub struct Faults {
    /// How many of 1,000 packets are lost.
    pub lost: u32,
    /// How many of 1,000 packets come twice.
    pub repeated: u32,
    /// How many of 1,000 packets have one bit changed, from this octet of the TPDU on.
    pub changed: u32,
    pub changed_from: usize,
    /// How many of 1,000 packets are late by up to `late_by`.
    pub late: u32,
    /// In ns.
    pub late_by: u64,
    /// Nanoseconds from end to end.
    pub delay: u64,
    /// Nanoseconds of an octet on the wire; 0 for none.
    pub octet: u64,
    /// Octets that wait for the wire at most; what comes then is lost.
    pub queue: u64,
    /// Octets that wait beyond which a packet that may be marked is; 0 for none.
    pub mark: u64,
    /// Nothing arrives for so long, every `pause_every`.
    pub pause: u64,
    /// In ns.
    pub pause_every: u64,
}

impl Faults {
    /// Nothing goes wrong, and nothing takes time.
    pub const NONE: Faults = Faults {
        lost: 0,
        repeated: 0,
        changed: 0,
        changed_from: 0,
        late: 0,
        late_by: 0,
        delay: 0,
        octet: 0,
        queue: 0,
        mark: 0,
        pause: 0,
        pause_every: 0,
    };
}

#[derive(Debug, Default)]
struct Shared {
    /// From each end: octets, and whether they may be marked.
    out: [Vec<(Vec<u8>, bool)>; 2],
    /// To each end: octets, and whether they are marked.
    arrived: [VecDeque<(Vec<u8>, bool)>; 2],
}

/// When it arrives, its number in the order of sending, the end that it goes to, its octets, and whether it is marked.
type Packet = (u64, u64, usize, Vec<u8>, bool);

/// The wire.
#[derive(Debug)]
pub struct Wire {
    shared: Arc<Mutex<Shared>>,
    random: fastrand::Rng,
    faults: Faults,
    under_way: BinaryHeap<Reverse<Packet>>,
    /// Until when the wire is busy, from each end.
    busy: [u64; 2],
    packets: u64,
    overflowed: u64,
    order: u64,
}

impl Wire {
    pub fn new(seed: u64, faults: Faults) -> Wire {
        let random = fastrand::Rng::with_seed(seed);
        Wire {
            shared: Arc::default(),
            random,
            faults,
            under_way: BinaryHeap::new(),
            busy: [0; 2],
            packets: 0,
            overflowed: 0,
            order: 0,
        }
    }

    /// Goes on like this.
    pub fn change(&mut self, faults: Faults) {
        self.faults = faults;
    }

    pub fn end(&self, at: usize, arena: Arena) -> End {
        End { at, shared: Arc::clone(&self.shared), arena, free: Vec::new(), done: Vec::new() }
    }

    pub fn packets(&self) -> u64 {
        self.packets
    }

    /// How long a packet of the first end waits for the wire, in ns.
    pub fn wait(&self, now: Time) -> u64 {
        self.busy[0].saturating_sub(now.0)
    }

    /// Packets that there was no room for.
    pub fn overflowed(&self) -> u64 {
        self.overflowed
    }

    /// Puts another sender's packet of so many octets on the wire, on the first end's side. Returns when it arrives;
    /// `None` if it does not.
    pub fn inject(&mut self, octets: u64, now: Time) -> Option<Time> {
        let Faults { octet, queue, delay, .. } = self.faults;
        let begin = self.busy[0].max(now.0);
        if octet > 0 && queue > 0 && (begin - now.0) / octet > queue {
            return None;
        }
        self.busy[0] = begin + octets * octet;
        Some(Time(self.busy[0] + delay))
    }

    /// Takes what the ends have sent.
    pub fn send(&mut self, now: Time) {
        let mut shared = self.shared.lock().unwrap();
        for from in 0..2 {
            for (packet, may_be_marked) in std::mem::take(&mut shared.out[from]) {
                self.packets += 1;
                let Faults {
                    lost,
                    repeated,
                    changed,
                    changed_from,
                    late,
                    late_by,
                    delay,
                    octet,
                    queue,
                    mark,
                    pause,
                    pause_every,
                } = self.faults;
                let begin = self.busy[from].max(now.0);
                if octet > 0 && queue > 0 && (begin - now.0) / octet > queue {
                    self.overflowed += 1;
                    continue;
                }
                let marked = may_be_marked && octet > 0 && mark > 0 && (begin - now.0) / octet > mark;
                self.busy[from] = begin + packet.len() as u64 * octet;
                if self.random.u32(..1000) < lost {
                    continue;
                }
                let copies = if self.random.u32(..1000) < repeated { 2 } else { 1 };
                for _ in 0..copies {
                    let mut packet = packet.clone();
                    let first = HEADERS + changed_from;
                    if self.random.u32(..1000) < changed && packet.len() > first {
                        let at = self.random.usize(first..packet.len());
                        packet[at] ^= 1 << self.random.u32(..8);
                    }
                    let mut when = self.busy[from] + delay;
                    if self.random.u32(..1000) < late {
                        when += self.random.u64(..late_by.max(1));
                    }
                    if pause_every > 0 && when % pause_every < pause {
                        when += pause - when % pause_every;
                    }
                    self.order += 1;
                    self.under_way.push(Reverse((when, self.order, 1 - from, packet, marked)));
                }
            }
        }
    }

    pub fn due(&self) -> Option<Time> {
        self.under_way.peek().map(|it| Time(it.0.0))
    }

    /// What has arrived by now.
    pub fn deliver(&mut self, now: Time) {
        let mut shared = self.shared.lock().unwrap();
        while self.under_way.peek().is_some_and(|it| it.0.0 <= now.0) {
            let Some(Reverse((_, _, to, packet, marked))) = self.under_way.pop() else { break };
            shared.arrived[to].push_back((packet, marked));
        }
    }
}

/// One end: a link.
pub struct End {
    at: usize,
    shared: Arc<Mutex<Shared>>,
    arena: Arena,
    free: Vec<Buffer>,
    done: Vec<Buffer>,
}

impl End {
    /// Buffers that wait to be received into.
    pub fn free(&self) -> usize {
        self.free.len()
    }
}

impl Link for End {
    fn guarantees(&self) -> Guarantees {
        Guarantees { delivery: false, integrity: false }
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        let mut shared = self.shared.lock().unwrap();
        for packet in packets.drain(..) {
            shared.out[self.at].push((self.arena.octets(&packet).to_vec(), packet.may_be_marked()));
            self.done.push(packet);
        }
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        done.append(&mut self.done);
    }

    fn fill(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let mut shared = self.shared.lock().unwrap();
        let mut count = 0;
        while count < most {
            let Some((packet, marked)) = shared.arrived[self.at].pop_front() else { break };
            count += 1;
            // Without a buffer it is lost.
            let Some(mut buffer) = self.free.pop() else { continue };
            self.arena.room(&mut buffer)[..packet.len()].copy_from_slice(&packet);
            self.arena.fill(&mut buffer, packet.len());
            buffer.mark(marked);
            packets.push(buffer);
        }
        count
    }

    fn close(self: Box<Self>) -> Returned {
        Returned { lent: self.done, given: self.free, own: Vec::new() }
    }
}
