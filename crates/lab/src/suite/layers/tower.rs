//! Stacks of layers that are measured, and how they are run.

use std::fmt::{self, Display, Formatter};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::time::{ClockId, clock_gettime};

use super::HIGHEST;
use super::user::{Tally, User};
use super::work::{Work, Worked};
use underpass_engine::layer::Layer;
use underpass_engine::network::{HEADERS, Inactive};
use underpass_engine::pipeline::pipeline;
use underpass_engine::service::{Indication, Request, Time};
use underpass_engine::stack::{self, Stack};
use underpass_engine::threads::{self, Placement};
use underpass_engine::transport::{Config, Times, Transport};
use underpass_engine::wire::llc::Mac;
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::loopback::Loopback;

/// Octets of user data in a TPDU at most: as with HIPPI, a packet is as long as what is to be sent, within reason.
const PART: u64 = 1 << 16;
/// Octets of the longest header of a DT.
const DT_HEADER: u64 = 12;
/// Octets that may be under way.
const UNDER_WAY: u64 = 1 << 20;
/// Buffers of each transport for TPDUs of its own.
const OWN: usize = 64;
/// Primitives between two threads at most.
const QUEUE: usize = 256;
/// How long a measurement that does not get on is given.
const PATIENCE: Duration = Duration::from_secs(20);

/// How the layers are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheduler {
    /// One thread runs all layers, each message to its end.
    InLine,
    /// A thread for the link and for each layer.
    Threads,
}

impl Scheduler {
    /// Both.
    pub const ALL: [Scheduler; 2] = [Scheduler::InLine, Scheduler::Threads];

    /// What names of figures end with.
    pub fn suffix(self) -> &'static str {
        match self {
            Scheduler::InLine => "",
            Scheduler::Threads => ", threads",
        }
    }
}

impl Display for Scheduler {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Scheduler::InLine => "in line",
            Scheduler::Threads => "thread per layer",
        })
    }
}

/// Transport layers over a link that is a cable from its output to its input.
#[derive(Clone, Copy, Debug)]
pub struct Tower {
    /// How many layers; 0 for the link alone.
    pub layers: u32,
    /// Octets of a message.
    pub size: u64,
    /// The work that each layer does.
    pub work: Work,
    pub scheduler: Scheduler,
}

/// What a tower consists of.
struct Parts {
    link: Loopback,
    /// Layers as threads have them, the lowest first.
    groups: Vec<Vec<Box<dyn Layer>>>,
    /// What the user counts.
    tally: Arc<Tally>,
}

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub octets_per_second: f64,
    /// Processor time over time.
    pub processors: f64,
}

impl Tower {
    /// What is to be said of where its threads run.
    pub fn placement(&self) -> Option<String> {
        let threads = self.layers as usize + 1;
        let processors = threads::processors().unwrap_or_default();
        let has_threads = self.scheduler == Scheduler::Threads && self.layers > 0;
        has_threads.then(|| Placement::of(threads, &processors).to_string())
    }

    /// Messages as fast as they go, for so many seconds.
    pub fn run(&self, seconds: f64) -> Result<Run> {
        let (begin, before) = (Instant::now(), processor_time());
        let until = begin + Duration::from_secs_f64(seconds);
        let tally = self.drive(false, |tally| {
            ensure!(begin.elapsed() < PATIENCE, "{self:?} does not get on: {tally:?}");
            // Long messages are slow to come where every octet is touched six times. Where other work keeps the threads
            // waiting, messages come all at one time, late: what is counted has to be of some duration.
            let lasts = tally.duration().is_some_and(|it| it.as_secs_f64() >= seconds / 2.0);
            Ok(Instant::now() >= until && tally.messages.load(Relaxed) >= 4 && lasts)
        })?;
        let (took, used) = (begin.elapsed(), processor_time() - before);
        let octets_per_second = tally.octets_per_second().context("all messages came at one time")?;
        Ok(Run { octets_per_second, processors: used.as_secs_f64() / took.as_secs_f64() })
    }

    /// Nanoseconds of a message from the user to the user, over so many of them one by one.
    pub fn passage(&self, messages: u64) -> Result<f64> {
        let begin = Instant::now();
        let tally = self.drive(true, |tally| {
            let come = tally.messages.load(Relaxed);
            ensure!(begin.elapsed() < PATIENCE || come > 0, "{self:?} does not get on");
            let has_time = tally.duration().is_some();
            Ok(has_time && (come >= messages || begin.elapsed() > Duration::from_secs(1)))
        })?;
        let took = tally.duration().context("all messages came at one time")?;
        Ok(took.as_nanos() as f64 / tally.messages.load(Relaxed) as f64)
    }

    /// Runs the layers until `enough` says so.
    fn drive(&self, one_by_one: bool, mut enough: impl FnMut(&Tally) -> Result<bool>) -> Result<Arc<Tally>> {
        let Parts { link, groups, tally } = self.build(one_by_one);
        let begin = Instant::now();
        let clock = move || Time(begin.elapsed().as_nanos() as u64);
        if self.scheduler == Scheduler::InLine || self.layers == 0 {
            let mut stack = Stack::new(link, groups.into_iter().flatten().collect());
            while !enough(&tally)? {
                for _ in 0..64 {
                    stack.poll(clock());
                }
            }
        } else {
            let (workers, _) = pipeline(Box::new(link), groups, QUEUE);
            let running = threads::start(workers, &threads::processors()?, clock)?;
            let outcome = loop {
                sleep(Duration::from_millis(1));
                match enough(&tally) {
                    Ok(false) => {}
                    other => break other,
                }
            };
            running.stop();
            outcome?;
        }
        ensure!(!tally.wrong.load(Relaxed), "{self:?}: a message was lost, changed or came out of order");
        Ok(tally)
    }

    fn build(&self, one_by_one: bool) -> Parts {
        let layers = self.layers as usize;
        let (part, parts) = (self.size.min(PART), self.size.div_ceil(PART));
        let credit = (UNDER_WAY / part).clamp(8, 64);
        let top = Config {
            checksum: false,
            tpdu_size: (part + DT_HEADER).next_multiple_of(128) as u32,
            credit: credit as u16,
            // Nothing is lost on the way, and nothing to be sent again because a thread waits for a processor.
            congestion_control: false,
            times: Times { t1: 4_000_000_000, t1_least: 4_000_000_000, ..Times::default() },
            ..Config::default()
        };
        let bottom = if layers == 0 { top } else { stack::config(top, 0, layers) };
        let headroom = (HEADERS + (layers + 1) * DT_HEADER as usize).next_multiple_of(64) as u32;
        let frame_size = (headroom + bottom.tpdu_size + HEADERS as u32).next_multiple_of(64);
        // The lowest layer has not acknowledged yet what the uppermost one has. Every tower has as many buffers as the
        // highest: how fast the link copies depends on how much memory goes round.
        let lowest = usize::from(stack::config(top, 0, HIGHEST as usize).credit);
        let (sent, received) = (credit as usize + lowest, lowest + OWN);
        let frames = (sent + received + layers * OWN) as u32;
        let (arena, mut all) = Arena::new(Geometry { frames, frame_size, headroom });
        let mut some = |count: usize| all.split_off(all.len() - count);

        let mut link = Loopback::cable(&arena, frame_size as usize);
        some(received).into_iter().for_each(|buffer| link.fill(buffer));
        let address = Mac([2, 0, 0, 0, 0, 1]);
        let mut network = Inactive::new(arena.clone(), address);
        let peer = network.peer(address);
        let mut groups: Vec<Vec<Box<dyn Layer>>> = vec![vec![Box::new(network)]];
        for level in 0..layers {
            let mut group = stack::transport(stack::config(top, level, layers), level, &arena, some(OWN), Time(0));
            if self.work != Work::None {
                group.push(Box::new(Worked::new(self.work, &arena)));
            }
            groups.push(group);
        }
        let user = User::new(&arena, some(sent), layers > 0, peer, part as usize, parts);
        let user = if one_by_one { user.one_by_one() } else { user };
        let tally = user.tally();
        if let Some(group) = groups.last_mut() {
            group.push(Box::new(user));
        }
        Parts { link, groups, tally }
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Nanoseconds of processor time of a TPDU of 1,408 octets from one stack to another and its share of an
/// acknowledgement, over so many of them, `batch` at a time.
pub fn per_tpdu(checksum: bool, batch: usize, tpdus: u64) -> Result<f64> {
    let (arena, mut all) = Arena::new(Geometry { frames: 1024, frame_size: 2048, headroom: 128 });
    let links = Loopback::passing(&arena, 1500);
    let config = Config { checksum, ..Config::default() };
    let address = |of: u8| Mac([2, 0, 0, 0, 0, of]);
    let mut number = 0;
    let [(mut from, peer), (mut to, _)] = links.map(|link| {
        let mut network = Inactive::new(arena.clone(), address(number));
        let peer = network.peer(address(1 - number));
        number += 1;
        let pool = all.split_off(all.len() - OWN).into_iter().collect();
        let transport = Transport::new(config, arena.clone(), pool, Time(0));
        (Stack::new(link, vec![Box::new(network), Box::new(transport)]).in_batches_of(batch), peer)
    });
    let begin = Instant::now();
    let clock = || Time(begin.elapsed().as_nanos() as u64);
    from.request(Request::Connect { tag: 0, to: peer, details: Box::default() }, clock());
    let (mut open, mut free, mut read, mut received) = (None, all, Vec::with_capacity(batch), 0);
    let mut start = processor_time();
    // The first tenth is to get warm.
    let warm = tpdus / 10;
    while received < tpdus + warm {
        let now = clock();
        if let Some((cep, most)) = open {
            let unused = free.len().saturating_sub(batch);
            let fill = |mut buffer| {
                arena.fill(&mut buffer, most);
                Request::Data { cep, buffer, end: true }
            };
            from.requests(free.drain(unused..).map(fill), now);
        }
        to.poll(now);
        while let Some(indication) = to.indication() {
            match indication {
                Indication::Connect { cep, .. } => to.request(Request::Accept { cep, user_data: Vec::new() }, now),
                Indication::Data { buffer, .. } => {
                    received += 1;
                    if received == warm {
                        start = processor_time();
                    }
                    read.push(Request::Return { buffer });
                }
                _ => {}
            }
        }
        to.requests(read.drain(..), now);
        from.poll(now);
        while let Some(indication) = from.indication() {
            match indication {
                Indication::Confirm { cep, most, .. } => open = Some((cep, most as usize)),
                Indication::Complete { buffer, .. } => free.push(buffer),
                Indication::Stalled { .. } | Indication::Resumed { .. } => {}
                other => anyhow::bail!("unexpected: {other:?}"),
            }
        }
        ensure!(begin.elapsed() < PATIENCE, "{received} TPDUs have arrived, and no more come");
    }
    Ok((processor_time() - start).as_nanos() as f64 / tpdus as f64)
}

/// All buffers of an arena for measurements of queues.
pub fn buffers(frames: u32) -> Vec<Buffer> {
    Arena::new(Geometry { frames, frame_size: 64, headroom: 0 }).1
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However short the time, it is counted until there is something to divide by.
    #[test]
    fn no_run_has_an_infinite_rate() {
        for (scheduler, layers) in [(Scheduler::InLine, 0), (Scheduler::InLine, 1), (Scheduler::Threads, 1)] {
            let tower = Tower { layers, size: 1024, work: Work::None, scheduler };
            for _ in 0..20 {
                let run = tower.run(0.0).unwrap();
                assert!(run.octets_per_second.is_finite() && run.octets_per_second > 0.0, "{tower:?}: {run:?}");
            }
            assert!(tower.passage(1).unwrap() > 0.0);
        }
    }
}
