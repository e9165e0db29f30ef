//! Threads that have nothing to do sleep, whatever keeps them from going on, and wake when that is over.

use std::thread;
use std::time::{Duration, Instant};
use underpass_engine::layer::Layer;
use underpass_engine::network::Inactive;
use underpass_engine::pipeline::{Counters, User, Worker, pipeline};
use underpass_engine::service::{Indication, Peer, Request, Time};
use underpass_engine::threads::{self, Running};
use underpass_engine::wire::llc::Mac;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::bell::Waker;
use underpass_link::driver::Driver;
use underpass_link::loopback::Loopback;
use underpass_link::rig::{Cable, INTERFACE};
use underpass_link::xdp::Config;

const GEOMETRY: Geometry = Geometry { frames: 256, frame_size: 2048, headroom: 128 };
/// How long a thread is watched.
const WATCHED: Duration = Duration::from_millis(300);
const PATIENCE: Duration = Duration::from_secs(20);

fn address(own: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, own])
}

/// A network over a link, of which `room` buffers are to receive into.
fn start(
    arena: &Arena,
    own: Mac,
    other: Mac,
    mut link: Box<dyn Link>,
    room: Vec<Buffer>,
    queue: usize,
) -> (Running, User) {
    let mut network = Inactive::new(arena.clone(), own);
    network.peer(other);
    room.into_iter().for_each(|buffer| link.fill(buffer));
    let layers: Vec<Box<dyn Layer>> = vec![Box::new(network)];
    let (workers, user) = pipeline(link, vec![layers], queue);
    let begin = Instant::now();
    let clock = move || Time(begin.elapsed().as_nanos() as u64);
    (threads::start(workers, &[], clock).expect("a thread"), user)
}

/// What a worker has done, once it was stopped.
fn counters(workers: &[Worker]) -> Counters {
    workers[0].counters()
}

fn send(user: &mut User, arena: &Arena, mut buffer: Buffer) {
    arena.fill(&mut buffer, 100);
    user.request(Request::Unitdata { to: Peer(0), buffer }).expect("there is room in the queue");
    user.publish();
}

/// What the user is told next.
fn told(user: &mut User) -> Indication {
    let begin = Instant::now();
    loop {
        if let Some(indication) = user.indication() {
            return indication;
        }
        user.watch(Waker::here());
        thread::park_timeout(Duration::from_millis(10));
        assert!(begin.elapsed() < PATIENCE, "nothing comes");
    }
}

/// An end of a cable: its arena, the buffers of that, the link, and its address.
type End = (Arena, Vec<Buffer>, Box<dyn Link>, Mac);

/// A link over either end of a cable, or `None`, said aloud.
fn cable(driver: Driver) -> Option<(Cable, [End; 2])> {
    let cable = Cable::new(1500).inspect_err(|error| println!("SKIPPED: {error}")).ok()?;
    let open = |at: usize| {
        let opened = thread::scope(|scope| {
            let open = || {
                cable.ends[at].enter().expect("it can be entered");
                let (arena, free) = Arena::new(GEOMETRY);
                let own = underpass_link::interface::Interface::named(INTERFACE).expect("it is there").address();
                let opened = driver.open(INTERFACE, &arena, &Config::default());
                opened.map(|opened| (arena, free, opened.link, Mac(own.expect("it has one"))))
            };
            scope.spawn(open).join().expect("it does not panic")
        });
        opened.inspect_err(|error| println!("SKIPPED: {error}")).ok()
    };
    let ends = [open(0)?, open(1)?];
    Some((cable, ends))
}

#[test]
fn an_idle_link_is_slept_on_and_wakes_its_thread() {
    for driver in [Driver::Packet, Driver::Xdp] {
        let Some((_cable, [near, far])) = cable(driver) else { continue };
        let addresses = [near.3, far.3];
        let [(mut near, mut free, one), (mut far, _, two)] = [(near, 0), (far, 1)].map(|(end, at)| {
            let (arena, mut free, link, own) = end;
            let room = free.split_off(128);
            let started = start(&arena, own, addresses[1 - at], link, room, 64);
            (started, free, arena)
        });
        for _ in 0..20 {
            send(&mut near.1, &one, free.pop().expect("it comes back"));
            let Indication::Unitdata { buffer, .. } = told(&mut far.1) else { panic!("a packet") };
            assert_eq!(two.octets(&buffer).len(), 100);
            far.1.request(Request::Return { buffer }).expect("there is room");
            far.1.publish();
            let Indication::Complete { buffer, .. } = told(&mut near.1) else { panic!("it comes back") };
            free.push(buffer);
        }
        thread::sleep(WATCHED);
        for running in [near.0, far.0] {
            let Counters { parks, yields, .. } = counters(&running.stop());
            // With each packet, and little more.
            assert!(parks < 300 && yields < 20_000, "{parks} sleeps, {yields} yields, {driver:?}");
        }
    }
}

#[test]
fn a_worker_whose_user_takes_nothing_sleeps_until_it_does() {
    let [(one, mut free), (two, room)] = [Arena::new(GEOMETRY), Arena::new(GEOMETRY)];
    let [near, far] = Loopback::copying([&one, &two], 1500);
    let (near, mut sends) = start(&one, address(0), address(1), Box::new(near), Vec::new(), 256);
    let (far, mut takes) = start(&two, address(1), address(0), Box::new(far), room, 4);
    const PACKETS: usize = 64;
    (0..PACKETS).for_each(|_| send(&mut sends, &one, free.pop().expect("there are enough")));
    thread::sleep(WATCHED);
    for _ in 0..PACKETS {
        let Indication::Unitdata { buffer, .. } = told(&mut takes) else { panic!("a packet") };
        assert_eq!(two.octets(&buffer).len(), 100);
    }
    near.stop();
    let Counters { yields, .. } = counters(&far.stop());
    assert!(yields < 20_000, "{yields} yields");
}

#[test]
fn a_worker_whose_link_takes_nothing_sleeps_until_it_does() {
    let Some((cable, [near, far])) = cable(Driver::Packet) else { return };
    let (one, mut free, link, own) = near;
    let (_, _, _other, address) = far;
    let (running, mut user) = start(&one, own, address, link, Vec::new(), 64);
    cable.ends[0].set_up(INTERFACE, false).expect("root may");
    send(&mut user, &one, free.pop().expect("one"));
    thread::sleep(WATCHED);
    cable.ends[0].set_up(INTERFACE, true).expect("root may");
    let Indication::Complete { .. } = told(&mut user) else { panic!("it was sent") };
    let Counters { yields, parks, .. } = counters(&running.stop());
    assert!(yields < 20_000 && parks < 300, "{yields} yields, {parks} sleeps");
}
