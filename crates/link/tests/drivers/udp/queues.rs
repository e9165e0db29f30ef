//! Several links at one address: what a peer sends from one port comes over one of them.

use super::super::support::{End, wait};
use super::GEOMETRY;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::Duration;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer};
use underpass_link::ip::{Header, Template};
use underpass_link::udp::{Config, Udp};

pub const PEERS: usize = 64;

/// The ends of two links over one arena, each with half of the buffers.
pub fn halves<L: Link>(arena: Arena, mut free: Vec<Buffer>, [first, second]: [L; 2]) -> [End<L>; 2] {
    let half = free.split_off(free.len() / 2);
    let mut queues = [End::new(arena.clone(), free, first), End::new(arena, half, second)];
    queues.iter_mut().for_each(|it| it.listen(128));
    queues
}

/// Each of the peers sends to the links' address and is answered, several times: over which link.
pub fn chosen<L: Link>(queues: &mut [End<L>; 2], at: SocketAddr, peers: &[UdpSocket]) -> Vec<usize> {
    let mut chosen = vec![None; peers.len()];
    for round in 0..4u8 {
        for (number, peer) in peers.iter().enumerate() {
            peer.send_to(&[number as u8, round], at).unwrap();
        }
        for _ in peers {
            let (queue, packet) = wait("a packet", || (0..2).find_map(|queue| Some((queue, queues[queue].receive()?))));
            let (header, data) = Header::parse(&packet).unwrap();
            let [number, came] = data.try_into().unwrap();
            assert_eq!((header.source, came), (peers[usize::from(number)].local_addr().unwrap(), round));
            assert_eq!(*chosen[usize::from(number)].get_or_insert(queue), queue, "peer {number}, round {round}");
            // The answer comes from where the peer has sent to.
            let back = Header { source: header.destination, destination: header.source, class: 0 };
            let template = Template::new(back).unwrap();
            let mut answer = vec![0; template.size()];
            template.write(&mut answer, data.len());
            answer.extend(data);
            queues[queue].send_all(&[answer]);
        }
        for (number, peer) in peers.iter().enumerate() {
            peer.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let mut answer = [0; 4];
            let (len, from) = peer.recv_from(&mut answer).unwrap();
            assert_eq!((&answer[..len], from), (&[number as u8, round][..], at));
        }
    }
    let chosen: Vec<_> = chosen.into_iter().map(|it| it.expect("each has sent")).collect();
    let shares = [0, 1].map(|queue| chosen.iter().filter(|it| **it == queue).count());
    println!("peers of each queue: {shares:?}");
    assert!(shares.iter().all(|share| *share > 0), "{shares:?}");
    chosen
}

#[test]
fn queues_share_an_address_and_each_peer_has_one() {
    let (arena, free) = Arena::new(GEOMETRY);
    let config = Config { shared: true, ..Config::default() };
    let local = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let first = Udp::open(local, &arena, &config).unwrap();
    let second = first.beside().unwrap();
    assert_eq!(first.local(), second.local());
    let at = first.local();
    let mut queues = halves(arena, free, [first, second]);
    let peers: Vec<_> = (0..PEERS).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
    chosen(&mut queues, at, &peers);
}
