//! Several connections to one peer, which always have something to send, over a wire that is too slow for them: what
//! they share.

use crate::wire::{End, Faults, Wire};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use underpass_engine::layer::Layer;
use underpass_engine::network::Inactive;
use underpass_engine::service::{Cep, Details, Indication, Peer, Request, Time};
use underpass_engine::stack::{self, Stack};
use underpass_engine::transport::{Config, Counters, Times, Transport};
use underpass_engine::wire::llc::Mac;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};

const US: u64 = 1000;
const MS: u64 = 1000 * US;
const FRAMES: u32 = 8192;
const RECEIVE: usize = 4096;
const OWN: usize = 64;
/// Worlds of few promises that are tried.
const WORLDS: u64 = 40;
/// Data requests that a connection has waiting at least, while it sends.
const BACKLOG: i64 = 4;

/// 100 Mbit/s, 5 ms from end to end: 125 kB are under way at a time. As many again may wait.
const WIRE: Faults = Faults { delay: 5 * MS, octet: 80, queue: 125_000, ..Faults::NONE };

struct Host {
    stack: Stack<End>,
    arena: Arena,
    peer: Peer,
    free: Vec<Buffer>,
    connections: Vec<Cep>,
    most: usize,
    /// Octets that have come over each connection.
    came: Vec<u64>,
    /// Connections of odd numbers send short TSDUs.
    mixes: bool,
}

impl Host {
    fn new(at: usize, wire: &Wire, config: Config) -> Host {
        let (arena, mut all) = Arena::new(Geometry { frames: FRAMES, frame_size: 2048, headroom: 128 });
        let own = |number: usize| Mac([2, 0, 0, 0, 0, number as u8]);
        let mut network = Inactive::new(arena.clone(), own(at));
        let peer = network.peer(own(1 - at));
        let mut layers: Vec<Box<dyn Layer>> = vec![Box::new(network)];
        layers.append(&mut stack::transport(config, 0, &arena, all.split_off(all.len() - OWN), Time(0)));
        let mut end = wire.end(at, arena.clone());
        all.split_off(all.len() - RECEIVE).into_iter().for_each(|buffer| end.fill(buffer));
        let (connections, came) = (Vec::new(), Vec::new());
        Host { stack: Stack::new(end, layers), arena, peer, free: all, connections, most: 0, came, mixes: true }
    }

    fn transport(&self) -> &Transport {
        let top: &dyn Any = &**self.stack.layers().last().expect("two layers");
        top.downcast_ref().expect("transport is the upper one")
    }

    fn counters(&self) -> Counters {
        self.transport().counters()
    }

    fn connect(&mut self, count: usize, now: Time) {
        for tag in 0..count {
            let details = Box::new(Details::default());
            self.stack.request(Request::Connect { tag: tag as u32, to: self.peer, details }, now);
        }
    }

    fn step(&mut self, now: Time) -> bool {
        let mut moved = self.stack.poll(now);
        while let Some(indication) = self.stack.indication() {
            moved = true;
            match indication {
                Indication::Connect { cep, .. } => {
                    self.came.resize(self.came.len().max(cep.0 as usize + 1), 0);
                    self.stack.request(Request::Accept { cep, user_data: Vec::new() }, now);
                }
                Indication::Confirm { cep, most, .. } => {
                    self.most = most as usize;
                    self.connections.push(cep);
                }
                Indication::Data { cep, buffer, .. } => {
                    self.came[cep.0 as usize] += buffer.len() as u64;
                    self.stack.request(Request::Return { buffer }, now);
                }
                Indication::Complete { buffer, .. } => self.free.push(buffer),
                Indication::Stalled { .. } | Indication::Resumed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        moved
    }

    /// Each connection of these has something waiting.
    fn send(&mut self, which: impl Iterator<Item = usize>, now: Time) -> bool {
        let mut moved = false;
        for at in which {
            let Some(&cep) = self.connections.get(at) else { continue };
            while self.transport().room(cep) > -BACKLOG
                && let Some(mut buffer) = self.free.pop()
            {
                let is_short = self.mixes && at % 2 == 1;
                self.arena.fill(&mut buffer, if is_short { self.most / 3 } else { self.most });
                self.stack.request(Request::Data { cep, buffer, end: true }, now);
                moved = true;
            }
        }
        moved
    }
}

/// Two hosts, the first of which sends.
struct World {
    wire: Wire,
    hosts: [Host; 2],
    now: Time,
    count: usize,
    /// A TCP sender on the same wire, if there is one.
    beside: Option<Tcp>,
    /// DTs that were sent within a millisecond at most.
    burst: u64,
    window: (Time, u64),
}

impl World {
    /// A world with so many open connections.
    fn open(count: usize, faults: Faults, config: Config) -> World {
        World::between([config; 2], count, faults)
    }

    /// A world with so many open connections between hosts that are configured each by itself.
    fn between(configs: [Config; 2], count: usize, faults: Faults) -> World {
        let wire = Wire::new(1, faults);
        // More than the wire and its queue take of one connection, also in short DTs, and no more than there are
        // buffers for.
        let configs = configs.map(|it| Config { credit: (3000 / count).min(400) as u16, ..it });
        let hosts = [Host::new(0, &wire, configs[0]), Host::new(1, &wire, configs[1])];
        let mut world = World { wire, hosts, now: Time(1), count, beside: None, burst: 0, window: (Time(0), 0) };
        world.hosts[0].connect(count, world.now);
        world.run(100 * MS, 0..0);
        assert_eq!(world.hosts[0].connections.len(), count);
        world
    }

    /// Lets so much time pass, while these of the connections send.
    fn run(&mut self, nanoseconds: u64, which: std::ops::Range<usize>) {
        let until = self.now.after(nanoseconds);
        loop {
            let before = self.hosts[0].counters().data_sent;
            let mut moved = true;
            while moved {
                let [a, b] = &mut self.hosts;
                moved = a.step(self.now) | a.send(which.clone(), self.now) | b.step(self.now);
                self.wire.send(self.now);
            }
            if let Some(tcp) = &mut self.beside {
                tcp.step(self.now, &mut self.wire);
            }
            let sent = self.hosts[0].counters().data_sent;
            if self.now.since(self.window.0) > MS {
                self.window = (self.now, before);
            }
            self.burst = self.burst.max(sent - self.window.1);
            let [a, b] = &self.hosts;
            let beside = self.beside.as_ref().and_then(Tcp::due);
            let next = [self.wire.due(), a.stack.due(), b.stack.due(), beside].into_iter().flatten().min();
            let Some(next) = next.filter(|it| *it <= until) else { break };
            self.now = Time(next.0.max(self.now.0 + 1));
            self.wire.deliver(self.now);
        }
        self.now = until;
    }

    /// Octets over each connection, in its time.
    fn measured(&mut self, nanoseconds: u64, which: std::ops::Range<usize>) -> Vec<u64> {
        let before = self.hosts[1].came.clone();
        self.run(nanoseconds, which);
        self.hosts[1].came.iter().zip(before).map(|(now, before)| now - before).take(self.count).collect()
    }
}

fn config(marks: bool) -> Config {
    // T1 until a round trip was measured is for a network as wide as this.
    let times = Times { t1: 50 * MS, ..Times::default() };
    Config { marks, receive: RECEIVE as u32, times, ..Config::default() }
}

/// Octets of user data that the wire carries in so long, if it does nothing else.
fn carried(nanoseconds: u64) -> u64 {
    nanoseconds / WIRE.octet
}

/// Short TSDUs and long ones, few connections and many: each gets its part of the wire, which is not idle.
#[test]
fn connections_to_a_peer_have_equal_parts_of_the_wire() {
    for count in [4, 8, 30] {
        let mut world = World::open(count, WIRE, config(false));
        world.run(1000 * MS, 0..count);
        let came = world.measured(2000 * MS, 0..count);
        let all: u64 = came.iter().sum();
        let mean = all / count as u64;
        println!(
            "{count}: {} % of the wire, {:?}, {} too many",
            all * 100 / carried(2000 * MS),
            came,
            world.wire.overflowed()
        );
        assert!(all * 100 >= carried(2000 * MS) * 70, "{all} of {}", carried(2000 * MS));
        assert!(came.iter().all(|it| it.abs_diff(mean) * 10 <= mean), "{came:?}");
    }
}

/// However many begin at once, they begin with one window.
#[test]
fn many_connections_begin_with_one_window() {
    let mut world = World::open(50, WIRE, config(false));
    // Nothing has come back after half a round trip.
    world.run(4 * MS, 0..50);
    let sent = world.hosts[0].counters().data_sent;
    assert!((1..=16).contains(&sent), "{sent} DTs");
}

/// A connection that comes late soon gets as much as the others.
#[test]
fn a_connection_that_begins_later_gets_its_part() {
    let mut world = World::open(4, WIRE, config(false));
    world.run(1000 * MS, 0..3);
    world.run(100 * MS, 0..4);
    let came = world.measured(1000 * MS, 0..4);
    let mean = came.iter().sum::<u64>() / 4;
    assert!(came.iter().all(|it| it.abs_diff(mean) * 10 <= mean), "{came:?}");
}

/// Where there are few buffers to receive into, those of connections over which nothing comes go to one that is busy;
/// and when these begin, they get theirs back.
#[test]
fn a_busy_connection_gets_the_buffers_of_idle_ones() {
    let mut world = World::open(4, WIRE, Config { receive: 64, ..config(false) });
    let before = world.measured(800 * MS, 0..1)[0];
    world.run(2000 * MS, 0..1);
    let after = world.measured(800 * MS, 0..1)[0];
    println!("{before} octets while the others keep theirs, {after} behind that");
    assert!(after > 2 * before, "{after} of {before}");
    let came = world.measured(1000 * MS, 0..4);
    assert!(came.iter().all(|it| *it > 0), "{came:?}");
}

/// More connections than there are buffers to promise, over a wire that loses and delays: whatever is sent over some of
/// them for a while arrives, though all others keep what they have.
#[test]
fn where_promises_are_few_each_connection_gets_its_turn() {
    let all = (FRAMES as usize) - RECEIVE - OWN;
    for seed in 0..WORLDS {
        let mut random = fastrand::Rng::with_seed(seed);
        let count = random.usize(8..12);
        let (delay, octet) = if random.bool() { (5 * MS, 80) } else { (50 * US, 8) };
        let faults =
            Faults { delay, octet, lost: random.u32(..60), late: random.u32(..50), late_by: 2 * delay, ..WIRE };
        let config = Config { receive: random.u32(8..12), selective: random.bool(), ..config(false) };
        let mut world = World::open(count, Faults { lost: 0, ..faults }, config);
        for _ in 0..random.usize(2..8) {
            let first = random.usize(..count);
            let last = random.usize(first..count);
            world.wire.change(faults);
            world.run(random.u64(MS..40 * MS), first..last + 1);
            world.run(random.u64(MS..4000 * MS), 0..0);
        }
        world.wire.change(Faults { lost: 0, ..faults });
        // Each takes its turn in four seconds at most.
        world.run(4000 * MS * count as u64, 0..0);
        assert_eq!(world.hosts[0].free.len(), all, "world {seed}: {count} connections, {:?}", config.receive);
    }
}

/// A window of some hundred leaves spread over its round trip of 10 ms, also where nothing comes back that it could go
/// by.
#[test]
fn dts_are_spread_over_the_round_trip() {
    let mut world = World::open(1, WIRE, config(false));
    world.run(1000 * MS, 0..1);
    // All is acknowledged, and the window empty.
    world.run(100 * MS, 0..0);
    world.burst = 0;
    let before = world.hosts[0].counters().data_sent;
    world.run(10 * MS, 0..1);
    let sent = world.hosts[0].counters().data_sent - before;
    println!("{sent} DTs in a round trip, {} in a millisecond at most", world.burst);
    assert!(sent > 60 && world.burst * 3 < sent, "{sent}, {}", world.burst);
}

/// T1 of a local network, and a round trip of six times as much, from the beginning or from some time on: nothing would
/// be measured ever after if each DT was sent again before it can be acknowledged. A connection that comes later knows
/// from the first one.
#[test]
fn a_round_trip_that_is_longer_than_t1_is_measured() {
    let far = Faults { delay: 15 * MS, queue: 1_000_000, ..WIRE };
    for near in [None, Some(Faults { delay: 100 * US, ..far })] {
        let mut world = World::open(1, near.unwrap_or(far), Config { times: Times::default(), ..config(false) });
        if near.is_some() {
            world.run(1000 * MS, 0..1);
            world.wire.change(far);
        }
        world.run(3000 * MS, 0..1);
        let before = world.hosts[0].counters().data_sent_again;
        let came = world.measured(2000 * MS, 0..1)[0];
        println!("{} % of the wire, {:?}", came * 100 / carried(2000 * MS), world.hosts[0].counters());
        // A window that was large enough for a short way grows as TCP's does.
        let least = if near.is_some() { 30 } else { 70 };
        assert!(came * 100 >= carried(2000 * MS) * least, "{came} of {}", carried(2000 * MS));
        world.hosts[0].connect(1, world.now);
        world.run(1000 * MS, 0..2);
        assert_eq!(world.hosts[1].came.len(), 2);
        assert!(world.hosts[1].came[1] > 0, "it is open");
        assert_eq!(world.hosts[0].counters().data_sent_again, before, "by either");
    }
}

/// If routers mark packets, none is lost: the window shrinks before the queue is full.
#[test]
fn marks_keep_the_queue_short() {
    let faults = Faults { mark: 40_000, queue: 1_000_000, ..WIRE };
    let both = [false, true].map(|marks| {
        let mut world = World::open(4, faults, Config { times: patient(), ..config(marks) });
        world.run(1000 * MS, 0..4);
        let all: u64 = world.measured(2000 * MS, 0..4).iter().sum();
        let counters = world.hosts[0].counters();
        println!("marks {marks}: {} % of the wire, {counters:?}", all * 100 / carried(2000 * MS));
        (all, counters.marks, counters.data_sent_again + world.wire.overflowed(), world.wire.wait(world.now))
    });
    let [without, with] = &both;
    assert_eq!((without.1, with.2), (0, 0), "{both:?}");
    assert!(with.1 > 0 && with.0 * 100 >= carried(2000 * MS) * 70, "{both:?}");
    assert!(with.3 < without.3, "the queue is shorter: {both:?}");
}

/// If one end does not know of marks, no packet may be marked, and routers drop packets instead.
#[test]
fn marks_take_both_ends() {
    let faults = Faults { mark: 1, ..WIRE };
    for knows in [[true, false], [false, true], [true, true]] {
        let mut world = World::between(knows.map(config), 2, faults);
        world.run(500 * MS, 0..2);
        assert_eq!(world.hosts[0].counters().marks > 0, knows == [true; 2], "{knows:?}");
    }
}

/// A flow of TCP over the same wire gets no more than a third above its part, and no less than a third below, whatever
/// the queue and however many connections there are here: they are one flow to it.
#[test]
fn a_flow_of_tcp_beside_gets_its_part() {
    for (queue, count) in [(60_000, 1), (125_000, 1), (125_000, 8), (375_000, 4)] {
        let mut world = World::open(count, Faults { queue, ..WIRE }, config(false));
        world.beside = Some(Tcp::new(world.now));
        // A window counts TPDUs, whatever their length.
        world.hosts[0].mixes = false;
        world.run(5_000 * MS, 0..count);
        let before = world.beside.as_ref().map_or(0, |it| it.came);
        let ours: u64 = world.measured(20_000 * MS, 0..count).iter().sum();
        let tcp = world.beside.as_ref().map_or(0, |it| it.came) - before;
        let share = ours as f64 * 2.0 / (ours + tcp) as f64;
        println!(
            "queue {queue}, {count} connections: {share:.2} of a fair share, {} % of the wire",
            (ours + tcp) * 100 / carried(20_000 * MS)
        );
        assert!((0.7..1.3).contains(&share), "{share:.2} with a queue of {queue} and {count} connections");
    }
}

/// Times by which a delay means nothing, so that it is marks, or their absence, that shows.
fn patient() -> Times {
    Times { slack: 200 * MS, t1: 500 * MS, t1_least: 500 * MS, ..Times::default() }
}

/// A TCP connection (CUBIC, RFC 9438, as Linux has it) that always has something to send: when its packets go, and how
/// many come.
struct Tcp {
    /// In packets; and where it does not double any more.
    window: f64,
    threshold: f64,
    /// The window before it was cut last, and what Reno's would be.
    most: f64,
    reno: f64,
    /// When it began to grow from there, and after how many seconds it is back.
    origin: Option<(Time, f64)>,
    /// Numbers of packets under way, and when they were sent.
    under_way: BTreeMap<u64, Time>,
    next: u64,
    /// When which of them is acknowledged.
    acknowledged: VecDeque<(Time, u64)>,
    shortest: u64,
    cut: Time,
    heard: Time,
    /// Octets that have come.
    came: u64,
}

impl Tcp {
    /// Octets of a packet.
    const LEN: u64 = 1500;

    fn new(now: Time) -> Tcp {
        Tcp {
            window: 10.0,
            threshold: f64::INFINITY,
            most: 0.0,
            reno: 0.0,
            origin: None,
            under_way: BTreeMap::new(),
            next: 0,
            acknowledged: VecDeque::new(),
            shortest: u64::MAX,
            cut: Time(0),
            heard: now,
            came: 0,
        }
    }

    fn due(&self) -> Option<Time> {
        self.acknowledged.front().map(|it| it.0)
    }

    fn step(&mut self, now: Time, wire: &mut Wire) {
        while let Some((at, number)) = self.acknowledged.pop_front_if(|it| it.0 <= now) {
            self.came += Tcp::LEN;
            self.heard = now;
            if let Some(sent) = self.under_way.remove(&number) {
                self.grow(at.since(sent), now);
            }
            // Three behind it have come.
            while let Some((&first, &sent)) = self.under_way.first_key_value()
                && first + 3 <= number
            {
                self.under_way.remove(&first);
                if sent >= self.cut {
                    self.most = if self.window < self.most { self.window * 0.85 } else { self.window };
                    self.window = (self.window * 0.7).max(2.0);
                    (self.threshold, self.origin, self.cut) = (self.window, None, now);
                }
            }
        }
        if now.since(self.heard) > 300 * MS {
            self.under_way.clear();
            (self.threshold, self.window, self.origin, self.heard) = (self.window / 2.0, 1.0, None, now);
        }
        while (self.under_way.len() as f64) < self.window.floor() {
            self.under_way.insert(self.next, now);
            if let Some(arrives) = wire.inject(Tcp::LEN, now) {
                self.acknowledged.push_back((arrives.after(WIRE.delay), self.next));
            }
            self.next += 1;
        }
    }

    fn grow(&mut self, round_trip: u64, now: Time) {
        self.shortest = self.shortest.min(round_trip);
        if self.window < self.threshold {
            // As Linux leaves its slow start (HyStart).
            if round_trip > self.shortest + (self.shortest / 8).clamp(4 * MS, 16 * MS) {
                self.threshold = self.window;
            }
            return self.window += 1.0;
        }
        let (window, most) = (self.window, self.most);
        let (origin, k) = *self.origin.get_or_insert_with(|| {
            self.reno = window;
            (now, ((most - window).max(0.0) / 0.4).cbrt())
        });
        let t = (now.since(origin) + round_trip) as f64 / 1e9 - k;
        let wanted = (0.4 * t.powi(3) + most).clamp(window, window * 1.5);
        self.reno += 0.53 / self.reno;
        self.window = (window + (wanted - window) / window).max(self.reno);
    }
}
