//! A host that was kept from running for a while: its timers are over, and what they wait for is in the link.

use std::any::Any;
use underpass_engine::layer::Layer;
use underpass_engine::network::Inactive;
use underpass_engine::pipeline::{User, Worker, pipeline};
use underpass_engine::service::{Cep, Indication, Peer, Request, Time};
use underpass_engine::stack::Stack;
use underpass_engine::transport::{Config, Counters, Transport};
use underpass_engine::wire::llc::Mac;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::loopback::Loopback;

const GEOMETRY: Geometry = Geometry { frames: 512, frame_size: 2048, headroom: 128 };
const MS: u64 = 1_000_000;
/// More than a batch of packets from the link.
const CONNECTIONS: u32 = 100;

/// Layers that are run in line, or by a worker.
enum Host {
    Stack(Box<Stack<Loopback>>),
    Worker(Box<Worker>, User),
}

impl Host {
    fn request(&mut self, request: Request, now: Time) {
        match self {
            Host::Stack(stack) => stack.request(request, now),
            Host::Worker(worker, user) => {
                user.request(request).expect("there is room");
                user.publish();
                worker.step(now);
            }
        }
    }

    fn poll(&mut self, now: Time) -> bool {
        match self {
            Host::Stack(stack) => stack.poll(now),
            Host::Worker(worker, _) => worker.step(now),
        }
    }

    fn indication(&mut self) -> Option<Indication> {
        match self {
            Host::Stack(stack) => stack.indication(),
            Host::Worker(_, user) => user.indication(),
        }
    }

    fn counters(&self) -> Counters {
        let layers = match self {
            Host::Stack(stack) => stack.layers(),
            Host::Worker(worker, _) => worker.layers(),
        };
        let top: &dyn Any = &**layers.last().unwrap();
        top.downcast_ref::<Transport>().unwrap().counters()
    }
}

/// One end, and buffers that nobody uses.
fn host(own: u8, arena: &Arena, mut all: Vec<Buffer>, mut link: Loopback, works: bool) -> (Host, Vec<Buffer>, Peer) {
    let mut network = Inactive::new(arena.clone(), Mac([2, 0, 0, 0, 0, own]));
    let peer = network.peer(Mac([2, 0, 0, 0, 0, 1 - own]));
    all.split_off(all.len() - 128).into_iter().for_each(|it| link.fill(it));
    let pool = all.split_off(all.len() - 200).into_iter().collect();
    // All connections are to send at once, whatever the network takes.
    let config = Config { congestion_control: false, ..Config::default() };
    let transport = Transport::new(config, arena.clone(), pool, Time(0));
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(network), Box::new(transport)];
    let host = match works {
        false => Host::Stack(Box::new(Stack::new(link, layers))),
        true => {
            let (mut workers, user) = pipeline(Box::new(link), vec![layers], 1024);
            Host::Worker(Box::new(workers.remove(0)), user)
        }
    };
    (host, all, peer)
}

/// Polls both until nothing comes; the connections of the host that asked for them.
fn settle(ends: &mut [Host; 2], free: &mut Vec<Buffer>, now: Time) -> Vec<Cep> {
    let mut open = Vec::new();
    let mut moved = true;
    while moved {
        moved = ends[0].poll(now) | ends[1].poll(now);
        while let Some(indication) = ends[0].indication() {
            match indication {
                Indication::Confirm { cep, .. } => open.push(cep),
                Indication::Complete { buffer, .. } => free.push(buffer),
                other => panic!("{other:?}"),
            }
        }
        while let Some(indication) = ends[1].indication() {
            let answer = match indication {
                Indication::Connect { cep, .. } => Request::Accept { cep, user_data: Vec::new() },
                Indication::Data { buffer, .. } => Request::Return { buffer },
                other => panic!("{other:?}"),
            };
            ends[1].request(answer, now);
            moved = true;
        }
    }
    open
}

#[test]
fn acknowledgements_that_have_come_are_taken_before_timers_run_out() {
    for works in [false, true] {
        let [(one, all), (two, others)] = [(); 2].map(|()| Arena::new(GEOMETRY));
        let [near, far] = Loopback::copying([&one, &two], 1500);
        let (near, mut free, peer) = host(0, &one, all, near, works);
        let (far, _, _) = host(1, &two, others, far, works);
        let mut ends = [near, far];
        let mut now = Time(MS);
        let mut open = Vec::new();
        for tag in 0..CONNECTIONS {
            ends[0].request(Request::Connect { tag, to: peer, details: Box::default() }, now);
            open.extend(settle(&mut ends, &mut free, now));
        }
        assert_eq!(open.len(), CONNECTIONS as usize);
        // Twice, so that round trips are known, and T1 is as short as it gets.
        for late in [0, 6 * MS] {
            for &cep in &open {
                let mut buffer = free.pop().unwrap();
                one.fill(&mut buffer, 100);
                ends[0].request(Request::Data { cep, buffer, end: true }, now);
            }
            // The other end has them and, after AL, says so. This one has their buffers back by then, and could send
            // them again.
            for step in 0..10 {
                now = now.after(MS / 20);
                while ends[1].poll(now) {}
                while step == 0 && ends[0].poll(now) {}
                while let Some(Indication::Data { buffer, .. }) = ends[1].indication() {
                    ends[1].request(Request::Return { buffer }, now);
                }
            }
            now = now.after(late);
            settle(&mut ends, &mut free, now);
            assert_eq!(ends[0].counters().data_sent_again, 0, "late by {late} ns, by a worker: {works}");
        }
    }
}
