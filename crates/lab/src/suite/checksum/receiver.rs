//! The receiver of the receive path, which has the sum of each packet computed and compares the verdict with what was
//! sent.

use std::rc::Rc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::load::{BATCH, BURST, Load, Run, Stage};
use super::packet::{self, BEGINNING, HEADER};
use super::sums::{Sums, Way};
use crate::processors::{Times, thread_time};
use crate::statistic::median;
use underpass_checksum::batch::{Algorithm, Limits, Outcome};
use underpass_checksum::gpu::{Gpu, GpuError};
use underpass_checksum::internet::Sum;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer};
use underpass_link::wait::Wait;

/// How long a packet waits for the batch to be full.
const DEADLINE: Duration = Duration::from_millis(2);
/// Octets that are received together, which are to stay in the processor's cache until they are summed.
const BURST_OCTETS: usize = 128 << 10;
/// How long the receiver sleeps at most.
const SLEEP: Duration = Duration::from_millis(10);

/// An end that hears nothing of the other for so long will hear nothing more.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// What opens the GPU. The thread that uses it does; another handle keeps its context meanwhile, so that this is quick.
pub type OpenGpu = fn() -> Result<Rc<Gpu>, GpuError>;

/// What the two ends tell each other.
pub(super) struct Progress {
    pub received: AtomicU64,
    /// How many packets there are, once that is known.
    pub all: AtomicU64,
    pub failed: AtomicBool,
}

impl Progress {
    const NOT_KNOWN: u64 = u64::MAX;

    /// Nothing was sent.
    pub fn new() -> Progress {
        Progress {
            received: AtomicU64::new(0),
            all: AtomicU64::new(Progress::NOT_KNOWN),
            failed: AtomicBool::new(false),
        }
    }
}

/// Receives until all have come, and their sums are known.
pub(super) fn receive(load: Load, gpu: OpenGpu, processor: usize, up: Sender<()>, progress: &Progress) -> Result<Run> {
    let gpu = load.way.is_gpu().then(gpu).transpose()?;
    let (arena, mut spare) = Arena::new(load.socket.geometry());
    // A batch is sent when the packet socket's burst has gone into it, so that sending is not taken for copying.
    let limits = Limits { packets: BATCH + 4 * BURST, deadline: DEADLINE, timeout: PATIENCE, ..Limits::default() };
    let sums = Sums::new(load.way, Algorithm::Internet, gpu.as_ref(), limits, &arena)?;
    let mut link = load.socket.open(&arena)?;
    spare.drain(..load.socket.room()).for_each(|buffer| link.fill(buffer));
    up.send(()).context("the sender is gone")?;

    let mut receiver = Receiver {
        link,
        sums,
        burst: BURST.min(BURST_OCTETS / load.size),
        spare,
        come: Vec::new(),
        is_first: true,
        received: 0,
        batch: 0,
        done: Vec::new(),
        packets: Verdicts { way: load.way, size: load.size, number: 0, at: 0, sum: Sum::default() },
        started: None,
        last: Instant::now(),
        laps: Laps::new(load.stages),
        arena,
    };
    let mut wait = Wait::polling(Duration::ZERO);
    while receiver.packets.number < progress.all.load(Acquire) {
        let count = receiver.take_burst(processor);
        receiver.submit()?;
        progress.received.store(receiver.received, Release);
        receiver.laps.lap(Stage::Sum);
        let now = Instant::now();
        receiver.compute(now)?;
        receiver.laps.lap(if load.way.is_gpu() { Stage::Gpu } else { Stage::Rest });
        let idle = count == 0 && receiver.done.is_empty();
        receiver.compare()?;
        if idle {
            receiver.sleep(&mut wait, now, progress)?;
        }
        receiver.laps.lap(Stage::Rest);
    }
    receiver.run(load.size, processor)
}

/// Packets on their way through the receiver.
struct Receiver {
    link: Box<dyn Link>,
    sums: Sums,
    /// Packets that are received together at most.
    burst: usize,
    /// Buffers to receive into.
    spare: Vec<Buffer>,
    /// What has come and was not submitted, and whether the next buffer begins a packet.
    come: Vec<Buffer>,
    is_first: bool,
    /// Packets that came, and buffers since the batch was sent last.
    received: u64,
    batch: usize,
    /// Buffers whose sums are known.
    done: Vec<(Buffer, Outcome)>,
    packets: Verdicts,
    /// When the first packet came, and the processor's times then.
    started: Option<(Instant, Option<Times>)>,
    /// When the last one came.
    last: Instant,
    laps: Laps,
    arena: Arena,
}

impl Receiver {
    /// Takes what has come: how many buffers.
    fn take_burst(&mut self, processor: usize) -> usize {
        let count = self.link.receive(&mut self.come, self.burst);
        if count > 0 {
            if self.started.is_none() {
                self.laps.begin();
                self.started = Some((Instant::now(), Times::of(processor)));
            }
            self.last = Instant::now();
        }
        self.laps.lap(Stage::Receive);
        count
    }

    /// Asks for the sums of what has come, and gives the link other buffers for it.
    fn submit(&mut self) -> Result<()> {
        for buffer in self.come.drain(..) {
            let (from, goes_on) = (if self.is_first { HEADER.len() } else { 0 }, buffer.goes_on());
            ensure!(buffer.len() > from + BEGINNING || !self.is_first, "a frame is too short");
            let mut buffer = Some(buffer);
            while let Some(it) = buffer.take() {
                buffer = self.sums.submit(it, from, Sum::default(), self.last)?;
                if buffer.is_some() {
                    // All batches are with the GPU.
                    thread::sleep(Duration::from_micros(20));
                    self.sums.poll(Instant::now(), &mut self.done)?;
                }
            }
            self.received += u64::from(!goes_on);
            self.batch += 1;
            self.is_first = !goes_on;
            self.spare.pop().into_iter().for_each(|buffer| self.link.fill(buffer));
        }
        Ok(())
    }

    /// Sends a batch that is full, and takes the sums that are known by now.
    fn compute(&mut self, now: Instant) -> Result<()> {
        if self.batch >= BATCH {
            self.sums.flush(now);
            self.batch = 0;
        }
        self.sums.poll(now, &mut self.done)
    }

    /// Compares verdicts with what was sent.
    fn compare(&mut self) -> Result<()> {
        for (buffer, outcome) in self.done.drain(..) {
            self.packets.note(self.arena.octets(&buffer), buffer.goes_on(), outcome)?;
            self.spare.push(buffer);
        }
        Ok(())
    }

    /// Sleeps until something comes or a batch is due.
    fn sleep(&mut self, wait: &mut Wait, now: Instant, progress: &Progress) -> Result<()> {
        let hears = self.started.is_none() || self.last.elapsed() < PATIENCE;
        ensure!(hears || progress.all.load(Acquire) == Progress::NOT_KNOWN, "packets were lost");
        ensure!(!progress.failed.load(Acquire), "the sender has failed");
        let limit = self.sums.next_deadline().map_or(SLEEP, |at| at.saturating_duration_since(now).min(SLEEP));
        wait.wait(&mut *self.link, limit)?;
        Ok(())
    }

    /// What it all came to.
    fn run(self, size: usize, processor: usize) -> Result<Run> {
        let (begin, before) = self.started.context("no packet has come")?;
        let (seconds, count) = (begin.elapsed().as_secs_f64(), self.packets.number as f64);
        Ok(Run {
            octets_per_second: count * size as f64 / seconds,
            idle: before
                .zip(Times::of(processor))
                .map(|(before, after)| after.idle_since(&before))
                .context("no /proc/stat")?,
            stages: self.laps.stages.map(|ns| ns / count),
        })
    }
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

    /// Forgets what was before.
    fn begin(&mut self) {
        (self.last, self.stages) = (thread_time(), [0.0; Stage::COUNT]);
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
