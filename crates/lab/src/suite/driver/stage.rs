//! Where drivers are measured: two network namespaces, a cable between, and messages from the one to the other.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use super::message::{self, HEADER, WORD};
use crate::bench::{LIMIT, Lab};
use crate::launcher::Session;
use crate::process::Running;
use crate::processors::confine;
use crate::programs::Program;
use crate::statistic::median;
use crate::suite::arguments;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::bounce::{Bounce, Copying};
use underpass_link::completion::Completion;
use underpass_link::filter::Filter;
use underpass_link::packet::Packet;
use underpass_link::rig::{Cable, INTERFACE, Namespace};
use underpass_link::wait::Wait;
use underpass_link::xdp::{Config, Xdp};

/// Octets of user data in a piece, as the clusters of the paper have them, and of a message that lies in one piece.
pub const CLUSTER: usize = 2048;
/// Octets of the longest IP packet on the cable.
pub const MTU: usize = 65_535;
/// Messages that are handed over together, and octets, which are not to leave the processor's cache meanwhile.
const BATCH: usize = 64;
const BATCH_OCTETS: usize = 128 << 10;
/// Frames to receive into, of short and of long messages; to copy into; and all.
const ROOM_SHORT: usize = 8192;
const ROOM_LONG: usize = 2048;
const BOUNCE: usize = 1024;
const GEOMETRY: Geometry = Geometry { frames: 16_384, frame_size: 4096, headroom: 64 };
/// Seconds for which one way of several goes, before it is another's turn.
const TURN: f64 = 0.02;
/// A gap that is longer is slept away.
const LONG_GAP: Duration = Duration::from_micros(100);
/// How long a link may take to send what it has.
const PATIENCE: Duration = Duration::from_secs(1);
/// A receiver that hears nothing for so long has heard all.
const QUIET: Duration = Duration::from_millis(10);

/// How messages go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Kernel UDP: so many messages with a system call.
    Udp { batch: usize, gso: bool },
    /// A packet socket.
    Packet,
    /// AF_XDP.
    Xdp(Completion),
}

impl Way {
    /// AF_XDP, adaptive in all.
    pub const ADAPTIVE: Way = Way::Xdp(ADAPTIVE);
    /// UDP, a call for each message.
    pub const CALL: Way = Way::Udp { batch: 1, gso: false };
    /// UDP, many with a call.
    pub const SENDMMSG: Way = Way::Udp { batch: BATCH, gso: false };
    /// UDP, many as one.
    pub const GSO: Way = Way::Udp { batch: BATCH, gso: true };
}

/// As the driver has it where nothing is said.
pub const ADAPTIVE: Completion = Completion::Adaptive { low: GEOMETRY.frames / 8, high: GEOMETRY.frames / 4 };

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Messages that arrived, in a second.
    pub delivered_per_second: f64,
    /// Nanoseconds of the sender's and of the receiver's processor for each message that arrived.
    pub sender: f64,
    pub receiver: f64,
    /// Messages that were sent and did not arrive, in per cent.
    pub lost: f64,
}

/// What both ends have counted.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Counts {
    sent: u64,
    sender_ns: f64,
    delivered: u64,
    ns: f64,
    receiver_ns: f64,
}

impl Counts {
    fn run(self) -> Result<Run> {
        ensure!(self.delivered > 0 && self.ns > 0.0, "no message has arrived");
        ensure!(self.delivered <= self.sent, "more messages have arrived than were sent");
        let (sent, delivered) = (self.sent as f64, self.delivered as f64);
        Ok(Run {
            delivered_per_second: delivered * 1e9 / self.ns,
            sender: self.sender_ns / delivered,
            receiver: self.receiver_ns / delivered,
            lost: (sent - delivered) * 100.0 / sent,
        })
    }
}

/// The cable.
#[derive(Debug)]
pub struct Stage {
    cable: Cable,
}

impl Stage {
    /// A new one.
    pub fn new() -> Result<Stage> {
        Ok(Stage { cable: Cable::new(MTU)? })
    }

    /// How many messages of `size` octets the sender's processor sends in a second of its own over a packet socket. No more are
    /// under way than the receiver has room for.
    pub fn packet(&self, lab: &Lab, size: u64) -> Result<f64> {
        Ok(1e9 / self.frames(lab, Way::Packet, size as usize, lab.clock(), true)?.sender)
    }

    /// The same over AF_XDP, by these algorithms of completion.
    pub fn completions(&self, lab: &Lab, ways: &[Completion], size: u64) -> Result<Vec<f64>> {
        if size as usize <= CLUSTER {
            let turn = |link: &mut Xdp, way: usize| {
                link.complete_by(ways[way]);
                false
            };
            self.by_turns(lab, ways.len(), size, || End::xdp(ADAPTIVE), turn)
        } else {
            let turn = |link: &mut Bounce<Xdp>, way: usize| {
                link.link_mut().complete_by(ways[way]);
                false
            };
            self.by_turns(lab, ways.len(), size, || End::bounce(ADAPTIVE), turn)
        }
    }

    /// The same of messages in several pieces, of which so much is copied.
    pub fn copies(&self, lab: &Lab, ways: &[Copying], size: u64) -> Result<Vec<f64>> {
        let turn = |link: &mut Bounce<Xdp>, way: usize| {
            link.copy(ways[way]);
            ways[way] == Copying::Dummy
        };
        self.by_turns(lab, ways.len(), size, || End::bounce(ADAPTIVE), turn)
    }

    /// By turns over one link, which `turn` tells in which way it goes on; that says whether this is with dummies. So whatever
    /// disturbs the machine disturbs all ways alike. Sums count, so that what a way needs to find its pace is in.
    fn by_turns<L: Link>(
        &self,
        lab: &Lab,
        ways: usize,
        size: u64,
        open: impl FnOnce() -> Result<End<L>> + Send,
        mut turn: impl FnMut(&mut L, usize) -> bool + Send,
    ) -> Result<Vec<f64>> {
        let (size, rounds) = (size as usize, (lab.clock() / TURN).ceil() as usize);
        let sending = Sending { size, seconds: TURN, turns: rounds * ways, window: window(size) };
        let receiving = Receiving { way: Way::ADAPTIVE, size, waiting: Waiting::Adaptive };
        let turn = |link: &mut L, number| turn(link, way_of(number, ways));
        let (sent, _) = self.both(lab, receiving, |is_up, it| send(open()?, &sending, turn, is_up, it))?;
        let mut sums = vec![Sent::default(); ways];
        sent.iter().enumerate().for_each(|(number, sent)| sums[way_of(number, ways)].add(sent));
        Ok(sums.iter().map(|sum| sum.messages as f64 * 1e9 / sum.ns).collect())
    }

    /// Messages of `size` octets one after the other, as fast as they go, for half of a sample's time.
    pub fn run(&self, lab: &Lab, session: &Session, way: Way, size: u64) -> Result<Run> {
        let (size, seconds) = (size as usize, lab.clock() / 2.0);
        match way {
            Way::Udp { batch, gso } => {
                let batch = batch.min(BATCH_OCTETS / size);
                let mut arguments = arguments!["--size", size, "--count", batch, "--seconds", seconds];
                arguments.extend(gso.then(|| "--gso".to_string()));
                self.datagrams(lab, session, &arguments)
            }
            Way::Packet | Way::Xdp { .. } => self.frames(lab, way, size, seconds, false),
        }
    }

    fn datagrams(&self, lab: &Lab, session: &Session, arguments: &[String]) -> Result<Run> {
        let program = || lab.command(session, Program::DATAGRAM);
        let ([here, there], [mut server, mut client]) = (&self.cable.ends, [program()?, program()?]);
        let pair = lab.processors;
        let (server, port) = inside(there, pair.map(|it| it.first), || Running::announced(server.args(arguments)))?;
        client.args(arguments).args(["--port", &port.to_string()]);
        let client = inside(here, pair.map(|it| it.second), || Running::start(&mut client))?;
        let counts: Counts = client.finish(LIMIT)?.json()?;
        server.finish(LIMIT)?;
        counts.run()
    }

    fn frames(&self, lab: &Lab, way: Way, size: usize, seconds: f64, heeds: bool) -> Result<Run> {
        let sending = Sending { size, seconds, turns: 1, window: if heeds { window(size) } else { u64::MAX } };
        let receiving = Receiving { way, size, waiting: Waiting::Adaptive };
        let (sent, received) =
            self.both(lab, receiving, |is_up, it| send(End::open(way, size)?, &sending, |_, _| false, is_up, it))?;
        let mut sum = Sent::default();
        sent.iter().for_each(|it| sum.add(it));
        let Received { delivered, ns, receiver_ns, .. } = received;
        Counts { sent: sum.messages, sender_ns: sum.ns, delivered, ns, receiver_ns }.run()
    }

    /// One message of `size` octets in each `gap` over AF_XDP, or as many as go where there is none, to a receiver that waits in
    /// this way.
    pub fn wait(&self, lab: &Lab, waiting: Waiting, gap: Option<Duration>, size: u64) -> Result<Waited> {
        let (way, size, seconds) = (Way::ADAPTIVE, size as usize, lab.clock() / 2.0);
        let received = self.both(lab, Receiving { way, size, waiting }, |is_up, progress| match gap {
            Some(gap) => send_one_by_one(End::open(way, size)?, size, seconds, gap, is_up, progress),
            None => {
                let sending = Sending { size, seconds, turns: 1, window: window(size) };
                send(End::open(way, size)?, &sending, |_, _| false, is_up, progress).map(drop)
            }
        });
        let Received { delivered, ns, receiver_ns, listened_ns, latencies } = received?.1;
        ensure!(delivered > 1 && ns > 0.0, "hardly a message has arrived");
        Ok(Waited {
            delivered_per_second: delivered as f64 * 1e9 / ns,
            share: receiver_ns * 100.0 / listened_ns,
            latency: median(&latencies),
        })
    }

    /// Sends as `send` does, once the receiver is there.
    fn both<R: Send>(
        &self,
        lab: &Lab,
        receiving: Receiving,
        send: impl FnOnce(Receiver<()>, &Progress) -> Result<R> + Send,
    ) -> Result<(R, Received)> {
        let (progress, (up, is_up)) = (Progress::default(), channel());
        let ([here, there], pair) = (&self.cable.ends, lab.processors);
        let (sent, received) = thread::scope(|scope| {
            let receive = || receive(receiving, up, &progress);
            let receiver = scope.spawn(|| inside(there, pair.map(|it| it.first), receive));
            let sent = inside(here, pair.map(|it| it.second), || send(is_up, &progress));
            progress.over.store(true, Release);
            (sent, receiver.join().unwrap_or_else(|_| Err(anyhow!("a thread failed"))))
        });
        // Where both fail, what the receiver found is often why the sender failed.
        let (received, sent) = (received?, sent?);
        Ok((sent, received))
    }
}

/// Which way's turn it is: each has one in every round, and follows another than in the round before, which may leave it more or
/// less in the processor's cache.
fn way_of(turn: usize, ways: usize) -> usize {
    let coprime = |step: &usize| (2..=*step).all(|it| !step.is_multiple_of(it) || !ways.is_multiple_of(it));
    let steps: Vec<usize> = (1..ways.max(2)).filter(coprime).collect();
    let round = turn / ways;
    (turn * steps[round % steps.len()] + round) % ways
}

/// What is sent.
struct Sending {
    /// Octets of a message.
    size: usize,
    /// How long a turn takes, and how many there are. Between two of them all arrives.
    seconds: f64,
    turns: usize,
    /// Messages that may be under way.
    window: u64,
}

/// What was sent in a turn, and what it took of the processor.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    messages: u64,
    ns: f64,
}

impl Sent {
    fn add(&mut self, other: &Sent) {
        self.messages += other.messages;
        self.ns += other.ns;
    }
}

/// How a receiver waits for the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// As experience has it.
    Adaptive,
    /// It polls.
    Polling,
    /// It sleeps.
    Asleep,
}

impl Waiting {
    fn wait(self) -> Wait {
        match self {
            Waiting::Adaptive => Wait::default(),
            Waiting::Polling => Wait::polling(100 * QUIET),
            Waiting::Asleep => Wait::polling(Duration::ZERO),
        }
    }
}

/// What a way of waiting came to.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    pub delivered_per_second: f64,
    /// Of the receiver's processor, in per cent.
    pub share: f64,
    /// Nanoseconds from when a message is handed over until it is received, the median, where they come one by one.
    pub latency: Option<f64>,
}

/// What is received.
#[derive(Clone, Copy)]
struct Receiving {
    way: Way,
    size: usize,
    waiting: Waiting,
}

/// What was received, how long it came, what it took of the processor to listen and for how long that was, and how long each
/// message took that came by itself.
#[derive(Debug)]
struct Received {
    delivered: u64,
    ns: f64,
    receiver_ns: f64,
    listened_ns: f64,
    latencies: Vec<f64>,
}

/// What the two ends tell each other beside the link.
struct Progress {
    /// When it began.
    begin: Instant,
    /// Nanoseconds after that a message was handed over that goes by itself; 0 for others.
    handed_over: AtomicU64,
    /// Messages that have arrived.
    delivered: AtomicU64,
    /// Dummies are sent, which have a length and no contents.
    dummies: AtomicBool,
    /// All are sent.
    over: AtomicBool,
}

impl Default for Progress {
    fn default() -> Progress {
        let begin = Instant::now();
        let [handed_over, delivered] = Default::default();
        Progress { begin, handed_over, delivered, dummies: AtomicBool::default(), over: AtomicBool::default() }
    }
}

impl Progress {
    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}

/// Does something in a namespace, on a processor.
fn inside<R: Send>(
    namespace: &Namespace,
    processor: Option<usize>,
    what: impl FnOnce() -> Result<R> + Send,
) -> Result<R> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _confined = processor.map(|it| confine(&[it])).transpose()?;
            namespace.enter()?;
            what()
        });
        thread.join().unwrap_or_else(|_| Err(anyhow!("a thread failed")))
    })
}

/// The link of one end, its memory, and frames that nobody uses.
struct End<L: ?Sized = dyn Link> {
    arena: Arena,
    link: Box<L>,
    free: Vec<Buffer>,
}

impl End {
    fn open(way: Way, size: usize) -> Result<End> {
        match way {
            Way::Udp { .. } => bail!("UDP is the kernel's"),
            Way::Packet => {
                let (arena, free) = Arena::new(GEOMETRY);
                let link = Packet::open(INTERFACE, &arena, Filter::Llc, Config::default().guarantees)?;
                Ok(End { arena, link: Box::new(link), free })
            }
            // What lies in one piece is not copied, whatever is asked for.
            Way::Xdp(completion) if size <= CLUSTER => {
                let End { arena, link, free } = End::xdp(completion)?;
                Ok(End { arena, link, free })
            }
            Way::Xdp(completion) => {
                let End { arena, link, free } = End::bounce(completion)?;
                Ok(End { arena, link, free })
            }
        }
    }
}

impl End<Xdp> {
    fn xdp(completion: Completion) -> Result<End<Xdp>> {
        let (arena, free) = Arena::new(GEOMETRY);
        let config = Config { completion: Some(completion), ..Config::default() };
        let link = Box::new(Xdp::open(INTERFACE, &arena, &config)?);
        Ok(End { arena, link, free })
    }
}

impl End<Bounce<Xdp>> {
    fn bounce(completion: Completion) -> Result<End<Bounce<Xdp>>> {
        let End { arena, link, mut free } = End::xdp(completion)?;
        let own = free.split_off(free.len() - BOUNCE);
        let link = Box::new(Bounce::new(*link, &arena, own, Copying::Adaptive, &HEADER));
        Ok(End { arena, link, free })
    }
}

impl<L: Link + ?Sized> End<L> {
    /// Writes a message into as many buffers as it takes: those for its data, behind one for the header if there are several.
    fn write(&mut self, number: u64, size: usize, out: &mut VecDeque<Buffer>) {
        let mut header = HEADER.len();
        for begin in (0..size).step_by(CLUSTER) {
            let Some(mut buffer) = self.free.pop() else { unreachable!("they were counted") };
            if header > 0 && size > CLUSTER {
                self.arena.fill(&mut buffer, header);
                self.arena.octets_mut(&mut buffer).copy_from_slice(&HEADER);
                buffer.go_on(true);
                out.push_back(buffer);
                header = 0;
                let Some(next) = self.free.pop() else { unreachable!("they were counted") };
                buffer = next;
            }
            let len = CLUSTER.min(size - begin);
            self.arena.fill(&mut buffer, header + len);
            let octets = self.arena.octets_mut(&mut buffer);
            octets[..header].copy_from_slice(&HEADER[..header]);
            message::write(&mut octets[header..], begin / WORD, number);
            header = 0;
            buffer.go_on(begin + len < size);
            out.push_back(buffer);
        }
    }
}

/// Frames to receive into.
fn room(size: usize) -> usize {
    if size <= CLUSTER { ROOM_SHORT } else { ROOM_LONG }
}

/// Buffers of a message.
pub fn pieces(size: usize) -> usize {
    if size <= CLUSTER { 1 } else { 1 + size.div_ceil(CLUSTER) }
}

/// Messages that fill half of a receiver's room.
fn window(size: usize) -> u64 {
    (room(size) / 2 / pieces(size)) as u64
}

/// Sends turn after turn.
fn send<L: Link + ?Sized>(
    mut end: End<L>,
    sending: &Sending,
    mut turn: impl FnMut(&mut L, usize) -> bool,
    is_up: Receiver<()>,
    progress: &Progress,
) -> Result<Vec<Sent>> {
    is_up.recv().map_err(|_| anyhow!("the receiver is gone"))?;
    let &Sending { size, seconds, turns, window } = sending;
    let (pieces, mut out, mut sent) = (pieces(size), VecDeque::new(), 0);
    // So much at a time that there is as much again to be written meanwhile.
    let batch = BATCH.min(BATCH_OCTETS / size).min(end.free.len() / 2 / pieces);
    let mut all = Vec::with_capacity(turns);
    for number in 0..turns {
        progress.dummies.store(turn(&mut end.link, number), Release);
        let (first, begin, mut before) = (sent, Instant::now(), thread_time());
        while begin.elapsed().as_secs_f64() < seconds {
            end.link.complete(&mut end.free);
            let under_way = sent - progress.delivered.load(Relaxed);
            let now = batch.min(end.free.len() / pieces).min(window.saturating_sub(under_way) as usize);
            if now == 0 && out.is_empty() {
                // Waiting is no work.
                let begin = thread_time();
                thread::sleep(Duration::from_micros(20));
                before += thread_time() - begin;
                continue;
            }
            for number in sent..sent + now as u64 {
                end.write(number, size, &mut out);
            }
            sent += now as u64;
            end.link.transmit(&mut out);
        }
        all.push(Sent { messages: sent - first, ns: thread_time() - before });
        // What is still here goes too, as far as it goes at all.
        let (begin, arrives) = (Instant::now(), |sent| turns == 1 || progress.delivered.load(Relaxed) == sent);
        while !(out.is_empty() && arrives(sent)) && begin.elapsed() < PATIENCE {
            end.link.transmit(&mut out);
            end.link.complete(&mut end.free);
        }
        ensure!(arrives(sent), "messages were lost, though there was room for them");
    }
    Ok(all)
}

/// Sends one message in each `gap`, or once the last has arrived if that takes longer.
fn send_one_by_one(
    mut end: End,
    size: usize,
    seconds: f64,
    gap: Duration,
    is_up: Receiver<()>,
    progress: &Progress,
) -> Result<()> {
    is_up.recv().map_err(|_| anyhow!("the receiver is gone"))?;
    let (begin, mut out, mut sent) = (Instant::now(), VecDeque::new(), 0);
    while begin.elapsed().as_secs_f64() < seconds {
        let begin = Instant::now();
        end.link.complete(&mut end.free);
        end.write(sent, size, &mut out);
        sent += 1;
        progress.handed_over.store(progress.now(), Release);
        end.link.transmit(&mut out);
        while begin.elapsed() < gap || progress.delivered.load(Acquire) < sent {
            ensure!(begin.elapsed() < PATIENCE, "a message was lost, though there was room for it");
            // Who sleeps wakes up late.
            if gap - LONG_GAP.min(gap) > begin.elapsed() { thread::sleep(gap - LONG_GAP) } else { spin_loop() }
        }
    }
    Ok(())
}

/// Receives until the sender is done.
fn receive(receiving: Receiving, up: Sender<()>, progress: &Progress) -> Result<Received> {
    let Receiving { way, size, waiting } = receiving;
    let mut end = End::open(way, size)?;
    for buffer in end.free.drain(..room(size)) {
        end.link.fill(buffer);
    }
    up.send(()).context("the sender is gone")?;
    let (mut delivered, mut next, mut come, mut wait) = (0, 0, Vec::new(), waiting.wait());
    let mut latencies = Vec::new();
    let (mut first, mut last, mut before, mut used) = (None, Instant::now(), 0.0, None);
    loop {
        if end.link.receive(&mut come, BATCH) == 0 {
            if progress.over.load(Acquire) {
                // What it takes to hear nothing is not counted.
                used.get_or_insert_with(|| (thread_time() - before, Instant::now()));
                if last.elapsed() > QUIET {
                    break;
                }
            }
            wait.wait(&mut *end.link, QUIET)?;
            continue;
        }
        if first.is_none() {
            (first, before) = (Some(Instant::now()), thread_time());
        }
        for message in come.chunk_by(|piece, _| piece.goes_on()) {
            if progress.dummies.load(Acquire) {
                let octets = message.iter().map(Buffer::len).sum::<usize>();
                ensure!(octets == HEADER.len() + size, "a frame has {octets} octets");
            } else {
                let number = message::check(message.iter().map(|piece| end.arena.octets(piece)), size)?;
                ensure!(number >= next, "a message has come twice, or late");
                next = number + 1;
            }
            delivered += 1;
        }
        match progress.handed_over.load(Acquire) {
            0 => {}
            then => latencies.push((progress.now() - then) as f64),
        }
        progress.delivered.store(delivered, Release);
        come.drain(..).for_each(|buffer| end.link.fill(buffer));
        last = Instant::now();
    }
    let since = |end: Instant| first.map_or(0.0, |first| (end - first).as_nanos() as f64);
    let (receiver_ns, end) = used.unwrap_or((0.0, last));
    Ok(Received { delivered, ns: since(last), receiver_ns, listened_ns: since(end), latencies })
}

/// Processor time of this thread, in ns.
fn thread_time() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_has_a_turn_in_every_round_and_follows_several_others_alike() {
        for (ways, follows) in [(1, 1), (2, 1), (3, 2), (6, 2), (8, 4)] {
            for round in 0..8 {
                let order: HashSet<usize> = (0..ways).map(|turn| way_of(ways * round + turn, ways)).collect();
                assert_eq!(order.len(), ways, "round {round}");
            }
            let before = |way| {
                let behind = (1..100 * ways).filter(|turn| turn % ways > 0 && way_of(*turn, ways) == way);
                behind.map(|turn| way_of(turn - 1, ways)).collect::<HashSet<usize>>()
            };
            assert!(ways == 1 || (0..ways).all(|way| before(way).len() == follows), "{ways} ways");
        }
    }
}
