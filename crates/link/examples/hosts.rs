//! Two hosts over the loopback link: each has packet memory of its own, and the link copies packets from one to the
//! other as a network interface does. Shows when a buffer belongs to the host and when to the link.
//!
//! `cargo run --package underpass-link --example hosts`

use std::collections::VecDeque;

use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::loopback::Loopback;

/// Eight packets of up to 192 octets, with room in front of each for headers.
const GEOMETRY: Geometry = Geometry { frames: 8, frame_size: 256, headroom: 64 };
/// Longest packet of the link.
const MTU: usize = 192;
/// Most packets that are taken from the link at a time.
const BATCH: usize = 32;

struct Host {
    name: &'static str,
    arena: Arena,
    link: Loopback,
    /// The buffers that this host may write to.
    free: Vec<Buffer>,
    sent: u32,
}

fn main() {
    let [(ours, free), (theirs, their_free)] = [Arena::new(GEOMETRY), Arena::new(GEOMETRY)];
    let [link, their_link] = Loopback::copying([&ours, &theirs], MTU);
    let mut client = Host::new("client", ours, link, free);
    let mut server = Host::new("server", theirs, their_link, their_free);

    // A batch of packets costs little more than one.
    client.send(&["red", "green", "blue"]);
    let asked = server.receive();
    let answers: Vec<String> = asked.iter().map(|word| format!("{word} has {} letters", word.len())).collect();
    server.send(&answers.iter().map(String::as_str).collect::<Vec<_>>());
    let answered = client.receive();
    assert_eq!(answered, ["red has 3 letters", "green has 5 letters", "blue has 4 letters"]);

    // Lent buffers come back once the link does not need them any more.
    for host in [&mut client, &mut server] {
        host.reclaim();
        assert_eq!(host.free.len(), 4);
    }
}

impl Host {
    /// Half of its buffers are for packets that come, half for packets that it sends.
    fn new(name: &'static str, arena: Arena, mut link: Loopback, mut free: Vec<Buffer>) -> Host {
        free.drain(4..).for_each(|buffer| link.fill(buffer));
        Host { name, arena, link, free, sent: 0 }
    }

    /// Writes each text into a buffer, puts a header in front of it, and lends all buffers to the link.
    fn send(&mut self, texts: &[&str]) {
        let mut packets = VecDeque::new();
        for text in texts {
            let mut buffer = self.free.pop().expect("four packets at most");
            self.arena.fill(&mut buffer, text.len());
            self.arena.octets_mut(&mut buffer).copy_from_slice(text.as_bytes());
            self.arena.push(&mut buffer, 4).copy_from_slice(&self.sent.to_be_bytes());
            self.sent += 1;
            println!("{} sends     {buffer:?}: {text:?} behind a header of 4 octets", self.name);
            packets.push_back(buffer);
        }
        self.link.transmit(&mut packets);
        assert!(packets.is_empty(), "the link has room for as many packets as there are buffers");
    }

    /// Reads all packets that have come, and gives their buffers back to the link for the next ones.
    fn receive(&mut self) -> Vec<String> {
        let (mut packets, mut texts) = (Vec::new(), Vec::new());
        self.link.receive(&mut packets, BATCH);
        for (expected, mut buffer) in packets.into_iter().enumerate() {
            let (header, _) = self.arena.octets(&buffer).split_first_chunk().expect("a header");
            assert_eq!(u32::from_be_bytes(*header), expected as u32, "the link promises to deliver in order");
            buffer.pull(4);
            let text = String::from_utf8_lossy(self.arena.octets(&buffer)).into_owned();
            println!("{} receives  {buffer:?}: {text:?}", self.name);
            texts.push(text);
            self.link.fill(buffer);
        }
        texts
    }

    /// Takes back what was lent and is transmitted.
    fn reclaim(&mut self) {
        let before = self.free.len();
        self.link.complete(&mut self.free);
        println!("{} has {} of its buffers back", self.name, self.free.len() - before);
    }
}
