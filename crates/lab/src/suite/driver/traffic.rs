//! Messages from one end of the cable to the other, as frames: the thread that sends them, and the thread that receives
//! and checks them.

use std::collections::VecDeque;
use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::mpsc::{Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};

use super::end::{BATCH, BATCH_OCTETS, End, Layout, Place, Way, room};
use super::message::{self, HEADER};
use crate::processors::thread_time;
use rustix::event::{Timespec, poll};
use underpass_link::Link;
use underpass_link::arena::Buffer;
use underpass_link::wait::Wait;

/// A gap that is longer is slept away.
const LONG_GAP: Duration = Duration::from_micros(100);
/// How long a link may take to send what it has.
const PATIENCE: Duration = Duration::from_secs(1);
/// A receiver that hears nothing for so long has heard all.
const QUIET: Duration = Duration::from_millis(10);

/// What is sent.
pub struct Sending {
    /// Octets of a message.
    pub size: usize,
    /// How long a turn takes, and how many there are. Between two of them all arrives.
    pub seconds: f64,
    pub turns: usize,
    /// Messages that may be under way.
    pub window: u64,
}

/// What was sent in a turn, and what it took of the processor.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sent {
    pub messages: u64,
    pub ns: f64,
}

impl Sent {
    pub fn add(&mut self, other: &Sent) {
        self.messages += other.messages;
        self.ns += other.ns;
    }
}

/// How a receiver waits for the next message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// By polling or sleeping, as earlier waits suggest.
    Adaptive,
    /// By polling alone.
    Polling,
    /// By sleeping alone.
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

/// What is received.
#[derive(Clone, Copy)]
pub struct Receiving {
    pub way: Way,
    pub size: usize,
    pub waiting: Waiting,
}

/// What was received, how long it came, what it took of the processor to listen and for how long that was, and how long
/// each message took that came by itself.
#[derive(Debug)]
pub struct Received {
    pub delivered: u64,
    pub ns: f64,
    pub receiver_ns: f64,
    pub listened_ns: f64,
    pub latencies: Vec<f64>,
}

/// What the two ends tell each other beside the link.
pub struct Progress {
    /// When it began.
    pub begin: Instant,
    /// Nanoseconds after that a message was handed over that goes by itself; 0 for others.
    pub handed_over: AtomicU64,
    /// Messages that have arrived.
    pub delivered: AtomicU64,
    /// Dummies are sent, which have a length and no contents.
    pub dummies: AtomicBool,
    /// All are sent.
    pub over: AtomicBool,
}

impl Default for Progress {
    fn default() -> Progress {
        let begin = Instant::now();
        let [handed_over, delivered] = Default::default();
        Progress { begin, handed_over, delivered, dummies: AtomicBool::default(), over: AtomicBool::default() }
    }
}

impl Progress {
    pub fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }
}

/// Messages that fill no more than half of a receiver's room.
pub fn window(size: usize) -> u64 {
    (room(size) / 2 / Layout::Clusters.pieces(size)) as u64
}

/// Sends turn after turn.
pub fn send<L: Link + ?Sized>(
    mut end: End<L>,
    sending: &Sending,
    mut turn: impl FnMut(&mut L, usize) -> bool,
    is_up: Receiver<()>,
    progress: &Progress,
) -> Result<Vec<Sent>> {
    is_up.recv().map_err(|_| anyhow!("the receiver is gone"))?;
    let &Sending { size, seconds, turns, window } = sending;
    let (pieces, mut out, mut sent) = (end.layout.pieces(size), VecDeque::new(), 0);
    // A batch takes at most half of the buffers, so that the next batch can be written while it is sent.
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
pub fn send_one_by_one(
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
            // A thread that sleeps wakes up late.
            if gap - LONG_GAP.min(gap) > begin.elapsed() { thread::sleep(gap - LONG_GAP) } else { spin_loop() }
        }
    }
    Ok(())
}

/// Nanoseconds from when a receiver asks for a message that is there already until it has it, one message after the
/// other.
pub fn notice([from, to]: [End; 2], size: usize, seconds: f64) -> Result<Vec<f64>> {
    let ([mut from, mut to], mut out, mut come, mut wait) = ([from, to], VecDeque::new(), Vec::new(), Wait::default());
    for buffer in to.free.drain(..room(size)) {
        to.link.fill(buffer);
    }
    let (begin, mut all, limit) = (Instant::now(), Vec::new(), Timespec { tv_sec: 1, tv_nsec: 0 });
    while begin.elapsed().as_secs_f64() < seconds {
        from.link.complete(&mut from.free);
        from.write(all.len() as u64, size, &mut out);
        from.link.transmit(&mut out);
        let readiness = to.link.readiness().context("nothing to sleep on")?;
        ensure!(poll(&mut [readiness.poll()], Some(&limit))? == 1, "a message was lost, though there was room for it");
        let begin = Instant::now();
        wait.wait(&mut *to.link, QUIET)?;
        let count = to.link.receive(&mut come, BATCH);
        all.push(begin.elapsed().as_nanos() as f64);
        ensure!(count == 1, "one message, and not {count}");
        for mut buffer in come.drain(..) {
            to.strip(&mut buffer);
            message::check([to.arena.octets(&buffer)].into_iter(), size)?;
            to.link.fill(buffer);
        }
    }
    Ok(all)
}

/// Receives until the sender is done.
pub fn receive(receiving: Receiving, up: Sender<()>, progress: &Progress) -> Result<Received> {
    let Receiving { way, size, waiting } = receiving;
    let mut end = End::open(way, Place::Receiver)?;
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
        come.iter_mut().for_each(|buffer| end.strip(buffer));
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
