//! A link that gives packets in pieces: no layer takes one for the whole.

use std::collections::VecDeque;
use underpass_engine::layer::Layer;
use underpass_engine::network::Inactive;
use underpass_engine::service::{Indication, Request, Time};
use underpass_engine::stack::Stack;
use underpass_engine::transport::{Config, Transport};
use underpass_engine::wire::llc::Mac;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::loopback::Loopback;
use underpass_link::{Guarantees, Link, Returned};

const MS: u64 = 1_000_000;
/// Octets of the longest piece.
const PIECE: usize = 1600;
const TSDUS: usize = 3;

/// A link that hands packets up in short pieces, as an interface with jumbo frames does.
struct Pieces {
    link: Loopback,
    arena: Arena,
    spare: Vec<Buffer>,
    come: Vec<Buffer>,
}

impl Link for Pieces {
    fn guarantees(&self) -> Guarantees {
        self.link.guarantees()
    }

    fn mtu(&self) -> usize {
        self.link.mtu()
    }

    fn pieces(&self) -> usize {
        2
    }

    fn whole(&self) -> usize {
        PIECE
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        self.link.transmit(packets);
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        self.link.complete(done);
    }

    fn fill(&mut self, buffer: Buffer) {
        if self.spare.len() < 8 { self.spare.push(buffer) } else { self.link.fill(buffer) }
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let count = self.link.receive(&mut self.come, most);
        for mut buffer in self.come.drain(..) {
            let octets = self.arena.octets(&buffer).to_vec();
            if octets.len() <= PIECE {
                packets.push(buffer);
                continue;
            }
            let mut rest = self.spare.pop().expect("a buffer for the second piece");
            let len = octets.len() - PIECE;
            self.arena.room(&mut rest)[..len].copy_from_slice(&octets[PIECE..]);
            self.arena.fill(&mut rest, len);
            buffer.truncate(PIECE);
            buffer.go_on(true);
            packets.extend([buffer, rest]);
        }
        count
    }

    fn close(self: Box<Self>) -> Returned {
        let mut returned = Box::new(self.link).close();
        returned.given.extend(self.spare);
        returned
    }
}

fn stack<L: Link>(own: u8, arena: &Arena, all: &mut Vec<Buffer>, mut link: L, config: Config) -> Stack<L> {
    let mut network = Inactive::new(arena.clone(), Mac([2, 0, 0, 0, 0, own]));
    network.peer(Mac([2, 0, 0, 0, 0, 1 - own]));
    all.split_off(all.len() - 32).into_iter().for_each(|it| link.fill(it));
    let pool = all.split_off(all.len() - 16).into_iter().collect();
    let transport = Transport::new(config, arena.clone(), pool, Time(0));
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(network), Box::new(transport)];
    Stack::new(link, layers)
}

/// What the user at the far end gets of three long TSDUs, and how many buffers of them come back.
fn carry(config: Config, len: usize) -> (Vec<usize>, usize, u64) {
    let geometry = Geometry { frames: 128, frame_size: 4096, headroom: 128 };
    let [(one, mut free), (two, mut others)] = [(); 2].map(|()| Arena::new(geometry));
    let [near, far] = Loopback::copying([&one, &two], 9000);
    let far = Pieces { link: far, arena: two.clone(), spare: Vec::new(), come: Vec::new() };
    let mut near = stack(0, &one, &mut free, near, config);
    let mut far = stack(1, &two, &mut others, far, config);
    let to = underpass_engine::service::Peer(0);
    near.request(Request::Connect { tag: 0, to, details: Box::default() }, Time(0));
    let (mut came, mut back) = (Vec::new(), 0);
    for now in (0..40 * MS).step_by(100_000).map(Time) {
        while near.poll(now) | far.poll(now) {}
        while let Some(indication) = far.indication() {
            match indication {
                Indication::Connect { cep, .. } => far.request(Request::Accept { cep, user_data: Vec::new() }, now),
                Indication::Data { buffer, end, .. } => {
                    assert!(end);
                    came.push(buffer.len());
                    far.request(Request::Return { buffer }, now);
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(indication) = near.indication() {
            match indication {
                Indication::Confirm { cep, most, .. } => (0..TSDUS).for_each(|_| {
                    let mut buffer = free.pop().unwrap();
                    one.fill(&mut buffer, len.min(most as usize));
                    near.request(Request::Data { cep, buffer, end: true }, now);
                }),
                Indication::Complete { .. } => back += 1,
                Indication::Stalled { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    (came, back, far.in_pieces())
}

#[test]
fn a_piece_does_not_pass_for_the_whole() {
    let config = Config { checksum: false, tpdu_size: 3072, ..Config::default() };
    let (came, back, thrown_away) = carry(config, 3064);
    assert!(came.is_empty() && back == 0, "{came:?}");
    assert!(thrown_away >= TSDUS as u64);
}

/// A transport that is configured by what the link takes in one buffer.
#[test]
fn what_the_link_takes_whole_arrives() {
    let (arena, _) = Arena::new(Geometry { frames: 1, frame_size: 4096, headroom: 128 });
    let [link, _] = Loopback::passing(&arena, 9000);
    let link = Pieces { link, arena, spare: Vec::new(), come: Vec::new() };
    let over = Config::over(Guarantees { delivery: false, integrity: true }, link.whole() - 18);
    let (came, back, thrown_away) = carry(over, 3064);
    assert_eq!((came.len(), back, thrown_away), (TSDUS, TSDUS, 0));
}
