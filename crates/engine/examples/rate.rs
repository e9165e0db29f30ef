//! Nanoseconds per TPDU over a passing loopback, send to acknowledgement: `cargo run --release --example rate [sum]`.
use std::time::Instant;
use underpass_engine::network::Inactive;
use underpass_engine::service::*;
use underpass_engine::stack::Stack;
use underpass_engine::transport::{Config, Transport};
use underpass_engine::wire::llc::Mac;
use underpass_link::arena::{Arena, Buffer, Geometry, Pool};
use underpass_link::loopback::Loopback;

fn main() {
    let checksum = std::env::args().nth(1).is_some_and(|it| it == "sum");
    let (arena, mut all) = Arena::new(Geometry { frames: 1024, frame_size: 2048, headroom: 128 });
    let [a, b] = Loopback::passing(&arena, 1500);
    let config = Config { checksum, ..Config::default() };
    let make = |link, own: u8, other: u8, all: &mut Vec<Buffer>| {
        let mut network = Inactive::new(arena.clone(), Mac([2, 0, 0, 0, 0, own]));
        let peer = network.peer(Mac([2, 0, 0, 0, 0, other]));
        let pool = Pool::new(all.split_off(all.len() - 64));
        let transport = Transport::new(config, arena.clone(), pool, Time(0));
        (Stack::new(link, vec![Box::new(network), Box::new(transport)]), peer)
    };
    let (mut a, to) = make(a, 1, 2, &mut all);
    let (mut b, _) = make(b, 2, 1, &mut all);
    let begin = Instant::now();
    let now = || Time(begin.elapsed().as_nanos() as u64);
    a.request(Request::Connect { tag: 1, to, details: Box::default() }, now());
    let mut open = None;
    while open.is_none() {
        b.poll(now());
        while let Some(it) = b.indication() {
            if let Indication::Connect { cep, .. } = it {
                b.request(Request::Accept { cep, user_data: vec![] }, now());
            }
        }
        a.poll(now());
        while let Some(it) = a.indication() {
            println!("{it:?}");
            if let Indication::Confirm { cep, most, .. } = it {
                open = Some((cep, most));
            }
        }
    }
    let (cep, most) = open.unwrap();
    let most = most as usize;
    for _ in 0..5 {
        let begin = Instant::now();
        let (mut received, mut polls) = (0u64, 0u64);
        const N: u64 = 1_000_000;
        let mut sent = 0;
        while received < N {
            let t = now();
            for _ in 0..32 {
                if sent == N {
                    break;
                }
                let Some(mut buffer) = all.pop() else { break };
                arena.fill(&mut buffer, most);
                a.request(Request::Data { cep, buffer, end: true }, t);
                sent += 1;
            }
            b.poll(t);
            while let Some(it) = b.indication() {
                if let Indication::Data { buffer, .. } = it {
                    received += 1;
                    b.request(Request::Return { buffer }, t);
                }
            }
            a.poll(t);
            while let Some(it) = a.indication() {
                if let Indication::Complete { buffer } = it {
                    all.push(buffer);
                }
            }
            polls += 1;
        }
        let ns = begin.elapsed().as_nanos() as f64 / N as f64;
        println!("{ns:.1} ns a TPDU, {:.1} TPDUs a poll", N as f64 / polls as f64);
    }
}
