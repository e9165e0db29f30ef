//! How often user data is copied on its way through the layers.

use crate::user::{User, serial};
use crate::watch::{Eye, Watch};
use std::collections::HashMap;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use underpass_engine::layer::Layer;
use underpass_engine::network::Inactive;
use underpass_engine::service::{Indication, Peer, Request, Time};
use underpass_engine::stack::{self, Stack};
use underpass_engine::transport::Config;
use underpass_engine::wire::llc::Mac;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::loopback::Loopback;

const GEOMETRY: Geometry = Geometry { frames: 600, frame_size: 2304, headroom: 128 };
const PARTS: u32 = 2_000;

/// The place at which the last octet of each part was seen last, and how often it was seen at another place. Headers go
/// in front, so that the last octet stays where it is unless the data is copied.
#[derive(Default)]
struct Seen {
    at: HashMap<u32, usize>,
    looks: u64,
    copies: u64,
}

struct Look {
    arena: Arena,
    seen: Arc<Mutex<Seen>>,
}

impl Look {
    fn at(&self, buffer: &Buffer) {
        let octets = self.arena.octets(buffer);
        let Some(serial) = serial(octets) else { return };
        let mut seen = self.seen.lock().unwrap();
        let end = octets.as_ptr_range().end.addr();
        seen.looks += 1;
        let before = seen.at.insert(serial, end);
        seen.copies += u64::from(before.is_some_and(|it| it != end));
    }
}

impl Eye for Look {
    fn request(&mut self, request: &Request) {
        if let Request::Data { buffer, .. } | Request::Unitdata { buffer, .. } = request {
            self.at(buffer);
        }
    }

    fn indication(&mut self, indication: &Indication) {
        if let Indication::Data { buffer, .. } | Indication::Unitdata { buffer, .. } = indication {
            self.at(buffer);
        }
    }
}

/// A stack of transports with a look between any two layers, and a user on top.
fn watched(
    link: Loopback,
    own: usize,
    layers: usize,
    arena: &Arena,
    all: &mut Vec<Buffer>,
    seen: &Arc<Mutex<Seen>>,
) -> (Stack<Loopback>, Arc<crate::user::Progress>) {
    let address = |of: usize| Mac([2, 0, 0, 0, 0, of as u8]);
    let mut network = Inactive::new(arena.clone(), address(own));
    let to = network.peer(address(1 - own));
    let mut stacked: Vec<Box<dyn Layer>> = vec![Box::new(network)];
    for level in 0..layers {
        let pool = all.split_off(all.len() - 32);
        stacked.append(&mut stack::transport(
            stack::config(Config::default(), level, layers),
            level,
            arena,
            pool,
            Time(0),
        ));
    }
    let (parts, to) = if own == 0 { (PARTS, Some(to)) } else { (0, None::<Peer>) };
    let free = all.split_off(all.len() - 100);
    let user = User::new(arena, free, parts, 1400, to, 7);
    let progress = user.progress();
    stacked.push(Box::new(user));
    let mut watched: Vec<Box<dyn Layer>> = Vec::new();
    for layer in stacked {
        watched.push(Box::new(Watch(Look { arena: arena.clone(), seen: Arc::clone(seen) })));
        watched.push(layer);
    }
    (Stack::new(link, watched), progress)
}

/// Sends all parts through so many layers; how often they were looked at, and how often copied.
fn copies(layers: usize, link_copies: bool) -> (u64, u64) {
    let (arena, mut all) = Arena::new(GEOMETRY);
    let mut links =
        if link_copies { Loopback::copying([&arena, &arena], 2048) } else { Loopback::passing(&arena, 2048) };
    if link_copies {
        use underpass_link::Link;
        links.iter_mut().for_each(|it| all.split_off(all.len() - 100).into_iter().for_each(|buffer| it.fill(buffer)));
    }
    let seen = Arc::default();
    let [a, b] = links;
    let (mut a, sender) = watched(a, 0, layers, &arena, &mut all, &seen);
    let (mut b, receiver) = watched(b, 1, layers, &arena, &mut all, &seen);
    let mut now = 0;
    while receiver.received.load(SeqCst) < PARTS || sender.completed.load(SeqCst) < PARTS {
        now += 1_000;
        a.poll(Time(now));
        b.poll(Time(now));
        assert!(now < 10_000_000_000, "{layers} layers: {receiver:?}, {sender:?}");
    }
    let seen = seen.lock().unwrap();
    (seen.looks, seen.copies)
}

#[test]
fn user_data_is_never_copied_between_layers() {
    for layers in 1..=4 {
        let (looks, copies) = copies(layers, false);
        // Below and above each transport, below the network and below each convergence, at either end.
        let boundaries = 2 * (2 * layers as u64 + 1);
        assert_eq!((looks, copies), (u64::from(PARTS) * boundaries, 0), "{layers} layers");
    }
}

/// Counts over a link that copies each packet once: the count sees what it is to see.
#[test]
fn a_copy_is_seen() {
    for layers in 1..=3 {
        assert_eq!(copies(layers, true).1, u64::from(PARTS), "{layers} layers");
    }
}
