//! A buffer that was lent comes back when it was transmitted *and* acknowledged, in whichever order, in each layer.

use std::collections::VecDeque;
use underpass_engine::column::Column;
use underpass_engine::service::{Cep, Fate, Indication, Peer, Request, Time};
use underpass_engine::stack;
use underpass_engine::transport::Config;
use underpass_link::arena::{Arena, Buffer, Geometry};

/// One end, and the packets that it has lent to the network, whose part the test plays.
struct End {
    column: Column,
    arena: Arena,
    spare: Vec<Buffer>,
    lent: VecDeque<Buffer>,
    /// The octets of packets that nobody has taken to the other end.
    leaving: Vec<Vec<u8>>,
    connection: Option<Cep>,
    complete: usize,
    received: usize,
}

impl End {
    fn new(layers: usize) -> End {
        let (arena, mut spare) = Arena::new(Geometry { frames: 128, frame_size: 2048, headroom: 128 });
        let transports = (0..layers).flat_map(|level| {
            let pool = spare.split_off(spare.len() - 16);
            stack::transport(stack::config(Config::default(), level, layers), level, &arena, pool, Time(0))
        });
        let column = Column::new(transports.collect());
        End {
            column,
            arena,
            spare,
            lent: VecDeque::new(),
            leaving: Vec::new(),
            connection: None,
            complete: 0,
            received: 0,
        }
    }

    /// Does what there is to do. The buffers of packets that leave stay lent.
    fn settle(&mut self, now: Time) {
        self.column.expire(now);
        loop {
            self.column.settle(now);
            let Some(indication) = self.column.up().pop_front() else { break };
            match indication {
                Indication::Connect { cep, .. } => {
                    self.connection = Some(cep);
                    self.column.request(Request::Accept { cep, user_data: Vec::new() }, now);
                }
                Indication::Confirm { cep, .. } => self.connection = Some(cep),
                Indication::Data { buffer, .. } => {
                    self.received += 1;
                    self.column.request(Request::Return { buffer }, now);
                }
                Indication::Complete { .. } => self.complete += 1,
                other => panic!("{other:?}"),
            }
        }
        for request in self.column.down().drain(..) {
            match request {
                Request::Unitdata { buffer, .. } => {
                    self.leaving.push(self.arena.octets(&buffer).to_vec());
                    self.lent.push_back(buffer);
                }
                Request::Return { buffer } => self.spare.push(buffer),
                other => panic!("{other:?}"),
            }
        }
    }

    fn arrive(&mut self, packets: Vec<Vec<u8>>, now: Time) {
        for packet in packets {
            let mut buffer = self.spare.pop().unwrap();
            self.arena.room(&mut buffer)[..packet.len()].copy_from_slice(&packet);
            self.arena.fill(&mut buffer, packet.len());
            self.column.indication(Indication::Unitdata { from: Peer(0), buffer }, now);
        }
        self.settle(now);
    }

    fn transmitted(&mut self, now: Time) {
        for buffer in std::mem::take(&mut self.lent) {
            self.column.indication(Indication::complete(buffer, Fate::Sent), now);
        }
        self.settle(now);
    }
}

/// Lets both talk for so long, in steps of 0.1 ms; `transmits` says whether buffers come back from the network.
fn talk(ends: &mut [End; 2], now: &mut Time, steps: u32, transmits: bool) {
    for _ in 0..steps {
        *now = now.after(100_000);
        let [a, b] = ends;
        for end in [&mut *a, &mut *b] {
            end.settle(*now);
            if transmits {
                end.transmitted(*now);
            }
        }
        b.arrive(std::mem::take(&mut a.leaving), *now);
        a.arrive(std::mem::take(&mut b.leaving), *now);
    }
}

#[test]
fn transmitted_and_acknowledged() {
    for layers in 1..=3 {
        for acknowledged_first in [false, true] {
            let mut ends = [End::new(layers), End::new(layers)];
            let mut now = Time(0);
            ends[0].column.request(Request::Connect { tag: 0, to: Peer(0), details: Box::default() }, now);
            talk(&mut ends, &mut now, 200, true);
            let cep = ends[0].connection.unwrap();
            let mut buffer = ends[0].spare.pop().unwrap();
            ends[0].arena.fill(&mut buffer, 100);
            ends[0].column.request(Request::Data { cep, buffer, end: true }, now);
            if acknowledged_first {
                // Acknowledged in every layer, but the network still has it.
                talk(&mut ends, &mut now, 30, false);
                assert_eq!((ends[1].received, ends[0].complete), (1, 0), "{layers} layers");
                ends[0].transmitted(now);
            } else {
                ends[0].settle(now);
                ends[0].transmitted(now);
                assert_eq!(ends[0].complete, 0, "{layers} layers: nobody has acknowledged it");
                talk(&mut ends, &mut now, 30, true);
            }
            assert_eq!((ends[1].received, ends[0].complete), (1, 1), "{layers} layers");
        }
    }
}
