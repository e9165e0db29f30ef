//! Two hosts, a transport connection (X.224, class 4) between them, and a link that loses packets: every message
//! arrives all the same, once and in order. The engine has no clock of its own, so the time is a number that this
//! program counts up.
//!
//! `cargo run --package underpass-engine --example connection`

use underpass_engine::layer::Layer;
use underpass_engine::network::Inactive;
use underpass_engine::service::{Cep, Details, Indication, Peer, Request, Time};
use underpass_engine::stack::{self, Stack};
use underpass_engine::transport::Config;
use underpass_engine::wire::llc::Mac;
use underpass_engine::wire::tpdu::Reason;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::faults::{Faults, Odds};
use underpass_link::loopback::Loopback;

/// Packet memory: as many frames as two hosts need for what is under way, with room for all headers in front of the
/// data.
const GEOMETRY: Geometry = Geometry { frames: 256, frame_size: 2048, headroom: 128 };
/// Longest packet of the link, in octets.
const MTU: usize = 1500;
/// One packet in ten is lost, either way. The same seed loses the same ones.
const ODDS: Odds =
    Odds { loss: 0.1, duplication: 0.0, corruption: 0.0, reordering: 0.0, delay: std::time::Duration::ZERO };
const MESSAGES: u32 = 1_000;
/// Nanoseconds from one look at the links to the next.
const STEP: u64 = 10_000;

type Host = Stack<Faults<Loopback>>;

fn main() {
    let (arena, mut buffers) = Arena::new(GEOMETRY);
    let [link, other] = Loopback::passing(&arena, MTU);
    let [client, server] = [1, 2].map(|number| Mac([2, 0, 0, 0, 0, number]));
    let mut some = |count: usize| buffers.split_off(buffers.len() - count);
    let (mut sender, to) = host(link, &arena, [some(48), some(16)], client, server);
    let (mut receiver, _) = host(other, &arena, [some(48), some(16)], server, client);

    // A connection is asked for, and opened by the answer of the other end's user.
    let mut now = Time(0);
    let details = Details { called: b"example".to_vec(), ..Details::default() };
    sender.request(Request::Connect { tag: 1, to, details: Box::new(details) }, now);
    let (mut connection, mut sent, mut received, mut is_over) = (None, 0, 0, false);
    while !is_over {
        now = now.after(STEP);
        sender.poll(now);
        receiver.poll(now);
        while let Some(indication) = sender.indication() {
            match indication {
                Indication::Confirm { cep, most, .. } => {
                    println!("{} the connection is open, for parts of up to {most} octets", at(now));
                    connection = Some(cep);
                }
                // A buffer comes back when the other end has acknowledged what was in it.
                Indication::Complete { buffer, .. } => buffers.push(buffer),
                // Nothing was acknowledged for a while, since a packet was lost; and then again something.
                Indication::Stalled { .. } | Indication::Resumed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        if let Some(cep) = connection {
            while sent < MESSAGES
                && let Some(buffer) = buffers.pop()
            {
                sender.request(message(cep, buffer, &arena, sent), now);
                sent += 1;
            }
        }
        while let Some(indication) = receiver.indication() {
            match indication {
                Indication::Connect { cep, details, .. } => {
                    println!("{} asked for {:?}", at(now), String::from_utf8_lossy(&details.called));
                    receiver.request(Request::Accept { cep, user_data: Vec::new() }, now);
                }
                Indication::Data { buffer, .. } => {
                    assert_eq!(arena.octets(&buffer)[..4], u32::to_be_bytes(received), "once, and in order");
                    received += 1;
                    receiver.request(Request::Return { buffer }, now);
                }
                Indication::Disconnect { reason, .. } => {
                    println!("{} the connection is over: {reason}", at(now));
                    is_over = true;
                }
                other => panic!("{other:?}"),
            }
        }
        if received == MESSAGES
            && let Some(cep) = connection.take()
        {
            println!("{} {received} messages have arrived, each once and in order", at(now));
            sender.request(Request::Disconnect { cep, reason: Reason::NORMAL }, now);
        }
    }
    let lost = [&sender, &receiver].map(|it| it.link().happened().lost);
    assert!(lost.iter().all(|&it| it > 0), "{lost:?}");
    println!("the link has lost {} packets on the way there and {} on the way back", lost[1], lost[0]);
}

/// The layers of a host, the lowest first, and its name for the other host. Of its buffers the first are the transport
/// layer's, the second what its link copies into.
fn host(link: Loopback, arena: &Arena, [pool, frames]: [Vec<Buffer>; 2], own: Mac, other: Mac) -> (Host, Peer) {
    let mut network = Inactive::new(arena.clone(), own);
    let peer = network.peer(other);
    let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(network)];
    layers.append(&mut stack::transport(Config::default(), 0, arena, pool, Time(0)));
    (Stack::new(Faults::new(link, arena, frames, ODDS, 1), layers), peer)
}

/// A message of 1,000 octets that begins with its number.
fn message(cep: Cep, mut buffer: Buffer, arena: &Arena, number: u32) -> Request {
    arena.fill(&mut buffer, 1_000);
    arena.octets_mut(&mut buffer)[..4].copy_from_slice(&number.to_be_bytes());
    Request::Data { cep, buffer, end: true }
}

fn at(now: Time) -> String {
    format!("{:>6.2} ms", now.0 as f64 / 1e6)
}
