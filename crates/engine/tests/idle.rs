//! A million connections that are open and idle: what each costs in memory, counted by the allocator, and that each is
//! found.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use underpass_engine::layer::{Layer, Outbox};
use underpass_engine::service::{Cep, Fate, Indication, Peer, Request, Time};
use underpass_engine::transport::{Config, Times, Transport};
use underpass_engine::wire::tpdu::Reason;
use underpass_link::arena::{Arena, Buffer, Geometry};

struct Counting;

static ALLOCATED: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all is the system's allocator's; the counter beside it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        ALLOCATED.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const CONNECTIONS: u32 = 1_000_000;
/// Pairs of NSAPs that two hosts need for so many: a reference has 16 bits.
const PEERS: u32 = 16;

struct End {
    transport: Transport,
    arena: Arena,
    free: Vec<Buffer>,
    out: Outbox,
    indications: Vec<Indication>,
}

impl End {
    fn new() -> End {
        const HOUR: u64 = 3_600_000_000_000;
        let times = Times { w: HOUR, i: 8 * HOUR, ..Times::default() };
        let (arena, mut free) = Arena::new(Geometry { frames: 64, frame_size: 512, headroom: 128 });
        let pool = free.split_off(32).into_iter().collect();
        let config = Config { tpdu_size: 256, times, ..Config::default() };
        let transport = Transport::new(config, arena.clone(), pool, Time(0));
        End { transport, arena, free, out: Outbox::default(), indications: Vec::new() }
    }

    /// Takes what it says: packets to `other`, and to its user.
    fn carry(&mut self, other: &mut End, now: Time) -> bool {
        let mut any = false;
        self.transport.settle(now, &mut self.out);
        while let Some(request) = self.out.down.pop_front() {
            any = true;
            match request {
                Request::Unitdata { to, buffer } => {
                    let mut copy = other.free.pop().unwrap();
                    let octets = self.arena.octets(&buffer);
                    other.arena.room(&mut copy)[..octets.len()].copy_from_slice(octets);
                    other.arena.fill(&mut copy, octets.len());
                    other.transport.indication(Indication::Unitdata { from: to, buffer: copy }, now, &mut other.out);
                    self.transport.indication(Indication::complete(buffer, Fate::Sent), now, &mut self.out);
                }
                Request::Return { buffer } => self.free.push(buffer),
                other => panic!("{other:?}"),
            }
        }
        while let Some(indication) = self.out.up.pop_front() {
            any = true;
            match indication {
                Indication::Connect { cep, .. } => {
                    let accept = Request::Accept { cep, user_data: Vec::new() };
                    self.transport.request(accept, now, &mut self.out);
                }
                Indication::Complete { buffer, .. } => self.free.push(buffer),
                other => self.indications.push(other),
            }
        }
        any
    }
}

fn settle([a, b]: &mut [End; 2], now: Time) {
    while a.carry(b, now) | b.carry(a, now) {}
}

#[test]
fn a_million_idle_connections() {
    let before = ALLOCATED.load(Relaxed);
    let mut ends = [End::new(), End::new()];
    let mut now = Time(0);
    let mut ceps: Vec<Cep> = Vec::new();
    for number in 0..CONNECTIONS {
        let connect = Request::Connect { tag: number, to: Peer(number % PEERS), details: Box::default() };
        let [a, _] = &mut ends;
        a.transport.request(connect, now, &mut a.out);
        settle(&mut ends, now);
        match ends[0].indications.pop() {
            Some(Indication::Confirm { tag, cep, .. }) if tag == number => ceps.push(cep),
            other => panic!("connection {number}: {other:?}"),
        }
        now = now.after(1000);
        if number % 1000 == 0 {
            ends.iter_mut().for_each(|it| it.transport.expire(now, &mut it.out));
        }
    }
    // Nothing is left of how they began.
    now = now.after(1_000_000_000);
    ends.iter_mut().for_each(|it| it.transport.expire(now, &mut it.out));
    settle(&mut ends, now);
    assert!(ends.iter().all(|it| it.transport.connections() == CONNECTIONS as usize && it.transport.pooled() == 32));
    let users = ceps.capacity() * size_of::<Cep>();
    let each = (ALLOCATED.load(Relaxed) - before - users) / 2 / CONNECTIONS as usize;
    println!("{each} octets for a connection");
    assert!(each <= 320, "{each} octets for a connection");

    // What goes in at one comes out at its other end, wherever that is among them.
    for number in (0..CONNECTIONS).step_by(9973) {
        let [a, _] = &mut ends;
        let mut buffer = a.free.pop().unwrap();
        a.arena.room(&mut buffer)[..4].copy_from_slice(&number.to_be_bytes());
        a.arena.fill(&mut buffer, 4);
        a.transport.request(Request::Data { cep: ceps[number as usize], buffer, end: true }, now, &mut a.out);
        settle(&mut ends, now);
        let [_, b] = &mut ends;
        let Some(Indication::Data { buffer, .. }) = b.indications.pop() else { panic!("nothing came of {number}") };
        assert_eq!(b.arena.octets(&buffer), number.to_be_bytes());
        b.transport.request(Request::Return { buffer }, now, &mut b.out);
        // Each AK goes at its own time.
        now = now.after(1_000_000);
        ends.iter_mut().for_each(|it| it.transport.expire(now, &mut it.out));
        settle(&mut ends, now);
    }

    // They end, and with them their references.
    for cep in ceps {
        let [a, _] = &mut ends;
        a.transport.request(Request::Disconnect { cep, reason: Reason::NORMAL }, now, &mut a.out);
        settle(&mut ends, now);
        assert!(matches!(ends[1].indications.pop(), Some(Indication::Disconnect { .. })));
    }
    assert!(ends.iter().all(|it| it.transport.connections() == 0 && it.free.len() == 32));
}
