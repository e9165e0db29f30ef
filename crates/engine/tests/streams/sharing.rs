//! Class 4 beside a stream of the kernel's TCP (CUBIC), over a cable that is too slow for both: what each gets.

#![allow(unsafe_code, reason = "a system call that rustix does not have")]

use super::host::{End, Room, with};
use super::links::{Kind, address, open, until_up};
use rustix::event::{Timespec, poll};
use rustix::net::sockopt::set_tcp_congestion;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};
use underpass_engine::service::{Cep, Details, Indication, Request, Time};
use underpass_link::Link;
use underpass_link::faults::Odds;
use underpass_link::rig::{Bottleneck, Cable, INTERFACE, Namespace, RigError};

/// Room for more than the bottlenecks below hold of one connection.
const ROOM: Room = Room { frames: 4096, receive: 2048, credit: 1024 };
/// Data requests that a connection has waiting at least.
const BACKLOG: i64 = 4;
/// How long nothing may come or be due before a host is looked at all the same.
const LOOK: Duration = Duration::from_millis(1);

/// Octets in a second at so many megabits.
const fn megabits(rate: u32) -> u32 {
    rate * 125_000
}

/// What two streams have carried.
#[derive(Clone, Copy, Debug)]
struct Carried {
    ours: u64,
    tcp: u64,
    /// The share of the cable that both took. Where it is low, something else bounds them.
    used: f64,
}

impl Carried {
    /// Our part, as a multiple of a fair share.
    fn share(self) -> f64 {
        self.ours as f64 * 2.0 / (self.ours + self.tcp) as f64
    }

    fn is_fair(self) -> bool {
        self.used > 0.8 && (0.7..1.3).contains(&self.share())
    }
}

/// Two hosts, and between them a switch that sends slowly to the second. The bottleneck is on no host, for a sender's
/// kernel keeps what waits on its own interface short (TCP small queues) and hears of it when that is thrown away.
struct Path {
    ends: Cable,
    _switch: Namespace,
}

impl Path {
    fn new(bottleneck: Bottleneck) -> Result<Path, RigError> {
        let (switch, ends) = (Namespace::new()?, [Namespace::new()?, Namespace::new()?]);
        switch.bridge("br0")?;
        for (end, (number, port)) in ends.iter().zip([(1, "p0"), (2, "p1")]) {
            switch.lay(port, (end, INTERFACE), 1, 1500)?;
            switch.attach_to("br0", port)?;
            switch.set_up(port, true)?;
            end.equip(INTERFACE, Ipv4Addr::new(10, 9, 0, number))?;
        }
        switch.narrow("p1", bottleneck)?;
        Ok(Path { ends: Cable { ends }, _switch: switch })
    }
}

/// Does something at an end of a cable.
fn inside<R: Send>(cable: &Cable, end: usize, what: impl FnOnce() -> R + Send) -> R {
    let what = || {
        cable.ends[end].enter().expect("the namespace can be entered");
        what()
    };
    thread::scope(|scope| scope.spawn(what).join().expect("it does not panic"))
}

/// A stream of TCP from one end of a cable to the other, which goes on until it is ended.
struct Tcp {
    ends: [TcpStream; 2],
}

impl Tcp {
    /// `None`, said aloud, where the kernel has no CUBIC.
    fn connect(cable: &Cable) -> Option<Tcp> {
        let listen = || TcpListener::bind((address(1).ip(), 0)).expect("a port is free");
        let listener = inside(cable, 1, listen);
        let there = listener.local_addr().expect("it is bound");
        let from = inside(cable, 0, || TcpStream::connect(there)).expect("it listens");
        if let Err(error) = set_tcp_congestion(&from, "cubic") {
            println!("SKIPPED: the kernel has no CUBIC (CONFIG_TCP_CONG_CUBIC): {error}");
            return None;
        }
        let (to, _) = listener.accept().expect("it has connected");
        Some(Tcp { ends: [from, to] })
    }

    /// Sends, until it is ended.
    fn send(&self) {
        let octets = vec![7; 1 << 16];
        while (&self.ends[0]).write_all(&octets).is_ok() {}
    }

    /// Receives, and adds what has come.
    fn receive(&self, came: &AtomicU64) {
        let mut octets = vec![0; 1 << 16];
        loop {
            match (&self.ends[1]).read(&mut octets) {
                Ok(0) => return,
                Ok(len) => came.fetch_add(len as u64, Relaxed),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => return,
            };
        }
    }

    fn end(&self) {
        self.ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
    }
}

/// Connections from one end to the other that always have something to send.
struct Flow {
    from: End,
    to: End,
    open: Vec<(Cep, usize)>,
    came: u64,
    begin: Instant,
}

impl Flow {
    fn over(cable: &Cable, connections: u32) -> Flow {
        let end = |at| with(ROOM, Odds::default(), 0, |arena| open(cable, at, Kind::Socket, arena));
        let [mut from, mut to] = [end(0), end(1)];
        let (here, there) = (from.address, to.address);
        let peer = from.introduce(there);
        to.introduce(here);
        let connect = |tag| Request::Connect { tag, to: peer, details: Box::new(Details::default()) };
        from.host.requests((0..connections).map(connect), Time(0));
        Flow { from, to, open: Vec::new(), came: 0, begin: Instant::now() }
    }

    /// Goes on until then.
    fn run(&mut self, until: Instant) {
        while Instant::now() < until {
            if !self.step() {
                self.sleep(until);
            }
        }
    }

    fn step(&mut self) -> bool {
        let now = Time(self.begin.elapsed().as_nanos() as u64);
        let mut moved = self.from.host.poll(now) | self.to.host.poll(now);
        while let Some(indication) = self.to.host.indication() {
            match indication {
                Indication::Connect { cep, .. } => {
                    self.to.host.request(Request::Accept { cep, user_data: Vec::new() }, now);
                }
                Indication::Data { buffer, .. } => {
                    self.came += buffer.len() as u64;
                    self.to.host.request(Request::Return { buffer }, now);
                }
                Indication::Stalled { .. } | Indication::Resumed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        while let Some(indication) = self.from.host.indication() {
            match indication {
                Indication::Confirm { cep, most, .. } => self.open.push((cep, most as usize)),
                Indication::Complete { buffer, .. } => self.from.free.push(buffer),
                Indication::Stalled { .. } | Indication::Resumed { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        for &(cep, most) in &self.open {
            while self.from.room(cep) > -BACKLOG
                && let Some(mut buffer) = self.from.free.pop()
            {
                self.from.arena.fill(&mut buffer, most);
                self.from.host.request(Request::Data { cep, buffer, end: true }, now);
                moved = true;
            }
        }
        moved
    }

    /// Until something comes, or is due.
    fn sleep(&self, until: Instant) {
        let hosts = [&self.from.host, &self.to.host];
        let due = hosts.iter().filter_map(|host| host.due()).min();
        let due = due.map(|due| Duration::from_nanos(due.0).saturating_sub(self.begin.elapsed()));
        let links = hosts.map(|host| host.link().readiness().expect("a socket to sleep on"));
        let left = until.saturating_duration_since(Instant::now()).min(LOOK);
        let left = links.iter().filter_map(|it| it.look).chain(due).fold(left, Duration::min);
        let left = Timespec::try_from(left).expect("a millisecond at most");
        let _ = poll(&mut links.map(|it| it.poll()), Some(&left));
    }
}

/// The kernel's TCP does not wait until other programs leave the processor: neither does this thread, with those that
/// it makes.
fn do_not_wait_for_others() {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: of this thread, with a parameter that outlives the call.
    let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest) };
    if set != 0 {
        println!("may fail beside other load, since it gets no priority: {}", std::io::Error::last_os_error());
    }
}

/// What a flow of ours and a stream of TCP carry in the time `measured`, after both had the time `settle`. If that
/// cannot be tried here, prints so and returns `None`.
fn share(bottleneck: Bottleneck, connections: u32, settle: Duration, measured: Duration) -> Option<Carried> {
    let path = Path::new(bottleneck).inspect_err(|error| println!("SKIPPED: {error}")).ok()?;
    let cable = &path.ends;
    until_up(cable);
    let (tcp, came) = (Tcp::connect(cable)?, AtomicU64::new(0));
    let mut flow = Flow::over(cable, connections);
    do_not_wait_for_others();
    let carried = thread::scope(|scope| {
        scope.spawn(|| tcp.send());
        scope.spawn(|| tcp.receive(&came));
        let mut run = |time| {
            let before = (flow.came, came.load(Relaxed));
            flow.run(Instant::now() + time);
            let (ours, tcp) = (flow.came - before.0, came.load(Relaxed) - before.1);
            let used = (ours + tcp) as f64 / time.as_secs_f64() / f64::from(bottleneck.rate);
            Carried { ours, tcp, used }
        };
        run(settle);
        let carried = run(measured);
        tcp.end();
        carried
    });
    assert_eq!(flow.open.len(), connections as usize, "they are open");
    println!(
        "{} Mbit/s, {} kB wait, {connections} connections: {:.2} of a fair share, both {:.0} % of the cable; {:?}",
        bottleneck.rate / megabits(1),
        bottleneck.queue / 1000,
        carried.share(),
        carried.used * 100.0,
        flow.from.counters(),
    );
    Some(carried)
}

/// A queue of 30 ms, which both fill. Beside heavy load a try may be outside: the processors bound both
/// then.
#[test]
fn a_stream_of_tcp_beside_gets_its_part() {
    let bottleneck = Bottleneck { rate: megabits(20), queue: 75_000 };
    let mut unfair = Vec::new();
    for _ in 0..3 {
        let Some(carried) = share(bottleneck, 1, Duration::from_secs(3), Duration::from_secs(12)) else { return };
        if carried.is_fair() {
            return;
        }
        unfair.push((carried.share(), carried.used));
    }
    panic!("of a fair share, and of the cable: {unfair:?}");
}

/// Other rates and queues, and several connections, which are one flow to TCP.
#[test]
#[ignore = "takes a quarter of an hour: make sharing"]
fn a_stream_of_tcp_beside_gets_its_part_for_long() {
    let mut unfair = Vec::new();
    for (rate, milliseconds) in [(10, 30), (20, 10), (20, 30), (20, 100), (50, 10), (50, 30), (50, 100), (100, 30)] {
        for connections in [1, 8] {
            let bottleneck = Bottleneck { rate: megabits(rate), queue: megabits(rate) / 1000 * milliseconds };
            let carried = share(bottleneck, connections, Duration::from_secs(10), Duration::from_secs(40));
            let Some(carried) = carried else { return };
            if !carried.is_fair() {
                unfair.push((bottleneck, connections, carried.share(), carried.used));
            }
        }
    }
    assert!(unfair.is_empty(), "{unfair:?}");
}
