//! The receive path: packets over a cable between two network namespaces, to a receiver that wants the sum of each, and sleeps
//! while there is none.

use std::collections::VecDeque;
use std::hint::black_box;
use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::packet::{self, BEGINNING, HEADER, Packets};
use super::sums::{Sums, Way};
use crate::processors::{Pair, Times, thread_time};
use crate::statistic::median;
use crate::suite::driver::stage::inside;
use underpass_checksum::batch::{Algorithm, Limits, Outcome};
use underpass_checksum::gpu::{Gpu, GpuError};
use underpass_checksum::internet::Sum;
use underpass_link::arena::{Arena, Geometry};
use underpass_link::filter::Filter;
use underpass_link::packet::Packet;
use underpass_link::rig::{Cable, INTERFACE};
use underpass_link::wait::Wait;
use underpass_link::xdp::{Config, Xdp};
use underpass_link::{Guarantees, Link};

/// Octets of the longest IP packet on the cable.
const MTU: usize = 9600;
/// How long a packet waits for the batch to be full.
const DEADLINE: Duration = Duration::from_millis(2);
/// Packets that are handed over and received together, and octets, which are to stay in the processor's cache until they are summed.
const BURST: usize = 64;
const BURST_OCTETS: usize = 128 << 10;
/// The batch of the GPU, as in the paper.
pub const BATCH: usize = 1024;
/// What may be under way, in packets and in octets: what a receiver's queue holds.
const WINDOW: (usize, usize) = (1024, 2 << 20);
/// A receiver that hears nothing for so long will hear nothing more.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long it sleeps at most.
const SLEEP: Duration = Duration::from_millis(10);

/// The kind of socket by which packets are sent and received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Socket {
    /// A packet socket: the paper's.
    Packet,
    /// AF_XDP, in whose frames a long packet lies in pieces.
    Xdp,
}

impl Socket {
    /// Both.
    pub const ALL: [Socket; 2] = [Socket::Packet, Socket::Xdp];

    /// As packet(7) and the kernel have it.
    pub const fn name(self) -> &'static str {
        match self {
            Socket::Packet => "AF_PACKET",
            Socket::Xdp => "AF_XDP",
        }
    }

    /// Frames that wait to be received into: for the kernel's copy into a burst, which are in the cache from the last, or for all that
    /// may be under way.
    fn room(self) -> usize {
        if self == Socket::Packet { BURST } else { 512 }
    }

    /// Packets that may be under way: what the kernel holds for a packet socket, or half of the room.
    fn window(self, size: usize, pieces: usize) -> u64 {
        let window = if self == Socket::Packet { WINDOW.0.min(WINDOW.1 / size) } else { self.room() / 2 / pieces };
        window as u64
    }

    fn geometry(self) -> Geometry {
        let frame_size = if self == Socket::Packet { 16 << 10 } else { 4 << 10 };
        Geometry { frames: 8192, frame_size, headroom: 64 }
    }

    fn open(self, arena: &Arena) -> Result<Box<dyn Link>> {
        let guarantees = Guarantees { delivery: false, integrity: false };
        Ok(match self {
            Socket::Packet => Box::new(Packet::open(INTERFACE, arena, Filter::Llc, guarantees)?),
            Socket::Xdp => Box::new(Xdp::open(INTERFACE, arena, &Config::default())?),
        })
    }
}

/// What is to be received, and how.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub socket: Socket,
    pub way: Way,
    /// Octets of which the sum is wanted.
    pub size: usize,
    /// How long packets are sent, and how many at least.
    pub seconds: f64,
    pub packets: u64,
    /// Octets that are sent in a second; without a rate, as many as go.
    pub rate: Option<f64>,
    /// Whether the time of each stage is measured, which takes time itself.
    pub stages: bool,
    /// Whether something else computes on the receiver's processor.
    pub beside: bool,
}

/// The work for a packet, as the paper's table 5 divides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Out of the socket, with the kernel's copy where there is one.
    Receive,
    /// The sum; or with a GPU the packet's place in a batch, and a copy there if it is staged.
    Sum,
    /// The GPU's driver, and its answers.
    Gpu,
    /// All else: addresses, buffers, sleeping.
    Rest,
}

impl Stage {
    /// How many there are.
    const COUNT: usize = 4;

    /// The stages of a way.
    pub fn of(way: Way) -> &'static [Stage] {
        if way.is_gpu() {
            &[Stage::Receive, Stage::Sum, Stage::Gpu, Stage::Rest]
        } else {
            &[Stage::Receive, Stage::Sum, Stage::Rest]
        }
    }

    /// What it is, over this socket in this way.
    pub fn name(self, socket: Socket, way: Way) -> &'static str {
        match (self, socket, way) {
            (Stage::Receive, Socket::Packet, _) => "receive, with the kernel's copy",
            (Stage::Receive, Socket::Xdp, _) => "receive",
            (Stage::Sum, _, Way::Skip) => "no checksum",
            (Stage::Sum, _, Way::Scalar | Way::Simd) => "checksum",
            (Stage::Sum, _, Way::GpuStaged) => "packet copy",
            (Stage::Sum, _, Way::GpuUmem) => "descriptors",
            (Stage::Gpu, ..) => "GPU calls",
            (Stage::Rest, ..) => "rest",
        }
    }
}

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Octets that are summed in a second, from the first packet to the last verdict.
    pub octets_per_second: f64,
    /// How much of the time the receiver's processor is idle, in per cent, as the kernel counts.
    pub idle: f64,
    /// Nanoseconds of the receiver's processor for a packet, by stage.
    pub stages: [f64; Stage::COUNT],
}

/// The cable.
#[derive(Debug)]
pub struct Path {
    cable: Cable,
    processors: Pair,
    gpu: OpenGpu,
}

/// What opens the GPU. The thread that uses it does; another handle keeps its context meanwhile, so that this is quick.
pub type OpenGpu = fn() -> Result<Rc<Gpu>, GpuError>;

/// What the two ends tell each other.
struct Progress {
    received: AtomicU64,
    /// How many packets there are, once that is known.
    all: AtomicU64,
    failed: AtomicBool,
}

const NOT_KNOWN: u64 = u64::MAX;

impl Path {
    /// A new one; packets are received on the pair's first processor.
    ///
    /// # Errors
    /// There can be no cable.
    pub fn new(processors: Pair, gpu: OpenGpu) -> Result<Path> {
        Ok(Path { cable: Cable::new(MTU)?, processors, gpu })
    }

    /// Sends and receives.
    ///
    /// # Errors
    /// A link or the GPU fails, or packets are not as they were sent.
    pub fn run(&self, load: Load) -> Result<Run> {
        let progress =
            Progress { received: AtomicU64::new(0), all: AtomicU64::new(NOT_KNOWN), failed: AtomicBool::new(false) };
        let ([here, there], (up, is_up)) = (&self.cable.ends, channel());
        let Pair { first, second } = self.processors;
        // A thread that fails, or panics, ends the other thread.
        let give_up = || progress.failed.store(true, Release);
        thread::scope(|scope| {
            let receive = || {
                if load.beside {
                    compute_beside(scope, &progress);
                }
                receive(load, self.gpu, first, up, &progress)
            };
            let receiver = scope.spawn(|| inside(there, Some(first), receive).inspect_err(|_| give_up()));
            let sent = inside(here, Some(second), || send(load, is_up, &progress)).inspect_err(|_| give_up());
            let run = receiver.join().unwrap_or_else(|_| Err(anyhow!("a thread failed")));
            match (run, sent) {
                (Err(receiver), Err(sender)) => Err(anyhow!("{receiver:#}; its sender: {sender:#}")),
                (run, sent) => run.and_then(|run| sent.map(|()| run)),
            }
        })
    }
}

/// Starts a thread that computes on this thread's processor until the packets have come.
fn compute_beside<'a>(scope: &'a thread::Scope<'a, '_>, progress: &'a Progress) {
    scope.spawn(|| {
        let mut number = 1u64;
        let all = || progress.received.load(Relaxed) == progress.all.load(Acquire);
        while !all() && !progress.failed.load(Acquire) {
            for _ in 0..10_000 {
                number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
        }
    });
}

/// Sends until the time is over. A frame has one place in packets and keeps what is the same in all of them there.
fn send(load: Load, is_up: Receiver<()>, progress: &Progress) -> Result<()> {
    let (arena, frames) = Arena::new(load.socket.geometry());
    let (mut link, packets) = (load.socket.open(&arena)?, Packets::of(load.size));
    let pieces: Vec<&[u8]> = packets.frame().chunks(arena.geometry().room()).collect();
    let mut free: Vec<Vec<_>> = pieces.iter().map(|_| Vec::new()).collect();
    for mut buffer in frames {
        let place = buffer.frame() as usize % pieces.len();
        arena.fill(&mut buffer, pieces[place].len());
        arena.octets_mut(&mut buffer).copy_from_slice(pieces[place]);
        buffer.go_on(place + 1 < pieces.len());
        free[place].push(buffer);
    }
    is_up.recv().map_err(|_| anyhow!("the receiver is gone"))?;
    let window = load.socket.window(load.size, pieces.len());
    let (begin, mut sent, mut out, mut done) = (Instant::now(), 0, VecDeque::new(), Vec::new());
    let mut heard = (0, begin);
    while begin.elapsed().as_secs_f64() < load.seconds || sent < load.packets || !out.is_empty() {
        link.complete(&mut done);
        done.drain(..).for_each(|buffer| free[buffer.frame() as usize % pieces.len()].push(buffer));
        let due = load.rate.map_or(u64::MAX, |rate| (begin.elapsed().as_secs_f64() * rate / load.size as f64) as u64);
        let received = progress.received.load(Acquire);
        let room = (free.iter().map(Vec::len).min().unwrap_or(0) as u64).min(window.saturating_sub(sent - received));
        let burst = (BURST as u64).min(room);
        if burst < BURST as u64 || due < sent + burst {
            if out.is_empty() {
                // The next burst is not due, or has no room.
                thread::sleep(Duration::from_micros(20));
            }
            if received > heard.0 {
                heard = (received, Instant::now());
            }
            ensure!(heard.1.elapsed() < PATIENCE || due <= sent, "packets were lost, though there was room for them");
            ensure!(!progress.failed.load(Acquire), "the receiver has failed");
        } else {
            for number in sent..sent + burst {
                for (place, free) in free.iter_mut().enumerate() {
                    let Some(mut buffer) = free.pop() else { unreachable!("they were counted") };
                    if place == 0 {
                        let octets = arena.octets_mut(&mut buffer);
                        octets[HEADER.len()..][..BEGINNING].copy_from_slice(&packets.beginning(number));
                    }
                    out.push_back(buffer);
                }
            }
            sent += burst;
        }
        link.transmit(&mut out);
    }
    progress.all.store(sent, Release);
    // The link carries what it has until it is gone.
    while progress.received.load(Acquire) < sent && !progress.failed.load(Acquire) {
        link.transmit(&mut out);
        link.complete(&mut done);
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// Processor time by stage, if it is counted.
struct Laps {
    /// What it takes to ask for the time, in ns.
    asking: Option<f64>,
    last: f64,
    stages: [f64; Stage::COUNT],
}

impl Laps {
    fn new(counts: bool) -> Laps {
        let ask = || -(thread_time() - thread_time());
        let asking = || median(&[(); 1000].map(|()| ask()));
        Laps { asking: if counts { asking() } else { None }, last: thread_time(), stages: [0.0; Stage::COUNT] }
    }

    /// What was since the last lap belongs to this stage.
    fn lap(&mut self, stage: Stage) {
        if let Some(asking) = self.asking {
            let now = thread_time();
            self.stages[stage as usize] += now - self.last - asking;
            self.last = now;
        }
    }
}

/// Receives until all have come, and their sums are known.
fn receive(load: Load, gpu: OpenGpu, processor: usize, up: Sender<()>, progress: &Progress) -> Result<Run> {
    let Load { socket, way, size, .. } = load;
    let (arena, mut spare) = Arena::new(socket.geometry());
    let gpu = way.is_gpu().then(gpu).transpose()?;
    // A batch is sent when the packet socket's burst has gone into it, so that sending is not taken for copying.
    let limits = Limits { packets: BATCH + 4 * BURST, deadline: DEADLINE, timeout: PATIENCE, ..Limits::default() };
    let mut sums = Sums::new(way, Algorithm::Internet, gpu.as_ref(), limits, &arena)?;
    let mut link = socket.open(&arena)?;
    spare.drain(..socket.room()).for_each(|buffer| link.fill(buffer));
    up.send(()).context("the sender is gone")?;

    let mut wait = Wait::polling(Duration::ZERO);
    let (mut come, mut done) = (Vec::new(), Vec::new());
    let burst = BURST.min(BURST_OCTETS / size);
    let mut packets = Verdicts { way, size, number: 0, at: 0, sum: Sum::default() };
    let (mut received, mut batch, mut last) = (0, 0, Instant::now());
    let mut start = None;
    let mut laps = Laps::new(load.stages);
    let mut is_first = true;
    while packets.number < progress.all.load(Acquire) {
        let count = link.receive(&mut come, burst);
        if count > 0 {
            start.get_or_insert_with(|| {
                laps = Laps { last: thread_time(), stages: [0.0; Stage::COUNT], ..laps };
                (Instant::now(), Times::of(processor))
            });
            last = Instant::now();
        }
        laps.lap(Stage::Receive);
        for buffer in come.drain(..) {
            let (from, goes_on) = (if is_first { HEADER.len() } else { 0 }, buffer.goes_on());
            ensure!(buffer.len() > from + BEGINNING || !is_first, "a frame is too short");
            let mut buffer = Some(buffer);
            while let Some(it) = buffer.take() {
                buffer = sums.submit(it, from, Sum::default(), last)?;
                if buffer.is_some() {
                    // All batches are with the GPU.
                    thread::sleep(Duration::from_micros(20));
                    sums.poll(Instant::now(), &mut done)?;
                }
            }
            received += u64::from(!goes_on);
            batch += 1;
            is_first = !goes_on;
            spare.pop().into_iter().for_each(|buffer| link.fill(buffer));
        }
        progress.received.store(received, Release);
        laps.lap(Stage::Sum);
        let now = Instant::now();
        if batch >= BATCH {
            sums.flush(now);
            batch = 0;
        }
        sums.poll(now, &mut done)?;
        laps.lap(if way.is_gpu() { Stage::Gpu } else { Stage::Rest });
        let idle = count == 0 && done.is_empty();
        for (buffer, outcome) in done.drain(..) {
            packets.note(arena.octets(&buffer), buffer.goes_on(), outcome)?;
            spare.push(buffer);
        }
        if idle {
            ensure!(
                start.is_none() || last.elapsed() < PATIENCE || progress.all.load(Acquire) == NOT_KNOWN,
                "packets were lost"
            );
            ensure!(!progress.failed.load(Acquire), "the sender has failed");
            let limit = sums.next_deadline().map_or(SLEEP, |at| at.saturating_duration_since(now).min(SLEEP));
            wait.wait(&mut *link, limit)?;
        }
        laps.lap(Stage::Rest);
    }
    let (begin, before) = start.context("no packet has come")?;
    let (seconds, count) = (begin.elapsed().as_secs_f64(), packets.number as f64);
    Ok(Run {
        octets_per_second: count * size as f64 / seconds,
        idle: before
            .zip(Times::of(processor))
            .map(|(before, after)| after.idle_since(&before))
            .context("no /proc/stat")?,
        stages: laps.stages.map(|ns| ns / count),
    })
}

/// The verdicts on packets, piece by piece, against what was sent.
struct Verdicts {
    way: Way,
    size: usize,
    /// The number of the next packet.
    number: u64,
    /// Octets of it so far, and their sum.
    at: usize,
    sum: Sum,
}

impl Verdicts {
    fn note(&mut self, octets: &[u8], goes_on: bool, outcome: Outcome) -> Result<()> {
        let mut len = octets.len();
        if self.at == 0 {
            ensure!(packet::number(octets) == Some(self.number), "a packet is missing, or came twice, or late");
            len -= HEADER.len();
        }
        match outcome {
            Outcome::Internet(sum) => self.sum = self.sum.then(sum, self.at),
            Outcome::Skipped => ensure!(self.way == Way::Skip, "a packet was skipped"),
            Outcome::Fletcher(_) => unreachable!("nobody asked for it"),
        }
        self.at += len;
        if !goes_on {
            ensure!(self.at == self.size, "a packet has {} octets", self.at);
            let intact = !packet::is_spoiled(self.number) || self.way == Way::Skip;
            let found = self.sum.is_intact() || self.way == Way::Skip;
            ensure!(
                intact == found,
                "packet {} is {}",
                self.number,
                if intact { "not as it was sent" } else { "spoiled, which was not found" }
            );
            *self = Verdicts { number: self.number + 1, at: 0, sum: Sum::default(), ..*self };
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With a double of the GPU, which is slow: few packets, but all ways and both sockets, whole packets and such in pieces.
    #[test]
    fn every_way_finds_the_packets_that_are_spoiled() {
        let Some(processors) = Pair::pick() else { return println!("SKIPPED: it takes two processors") };
        let path = match Path::new(processors, Gpu::double) {
            Ok(path) => path,
            Err(error) => return println!("SKIPPED: {error:#}"),
        };
        for (socket, way) in Socket::ALL.into_iter().flat_map(|socket| Way::ALL.map(|way| (socket, way))) {
            for size in [64, 9480] {
                let rate = Some(size as f64 * 20_000.0);
                let load =
                    Load { socket, way, size, seconds: 0.0, packets: 128, rate, stages: true, beside: size == 64 };
                let run = path.run(load).unwrap_or_else(|error| panic!("{load:?}: {error:#}"));
                assert!(run.octets_per_second > 0.0, "{run:?}");
            }
        }
    }
}
