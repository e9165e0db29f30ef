//! What it costs to hand a primitive from one thread to another.

use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};

use super::{ALONE, tower};
use crate::bench::{Experiment, Lab};
use crate::launcher::{Reading, Session, Side};
use crate::plan::{Plan, Target};
use crate::processors::{Pair, confine, thread_time};
use crate::programs::Program;
use crate::statistic::median;
use crate::suite::arguments;
use crate::suite::pingpong::Durations;
use crate::unit::Unit;
use underpass_engine::service::{Cep, Indication};
use underpass_link::ring::{Receiver, Sender, ring};

/// Primitives that are published together.
const BATCH: usize = 32;
const QUEUE: usize = 256;
/// Looks at a queue between two occasions for another thread, and how often that is tried: some seconds in all.
const POLLS: u32 = 1 << 16;
const PATIENCE: u32 = 1 << 14;

fn primitives(count: u32) -> impl Iterator<Item = Indication> {
    tower::buffers(count).into_iter().map(|buffer| Indication::Data { cep: Cep(0), buffer, end: true })
}

/// Takes the next one as soon as it is there; an error where none comes, since the other thread is gone or never gets a
/// processor.
fn next(from: &mut Receiver<Indication>) -> Result<Indication> {
    for _ in 0..PATIENCE {
        for _ in 0..POLLS {
            if let Some(indication) = from.pop() {
                return Ok(indication);
            }
        }
        thread::yield_now();
    }
    anyhow::bail!("the other thread says nothing")
}

fn give(to: &mut Sender<Indication>, indication: Indication) -> bool {
    to.push(indication).is_ok()
}

/// The time from one thread's push to the other's pop: half of a round trip.
#[derive(Debug)]
pub struct Hop {
    pub pair: Option<Pair>,
}

impl Experiment for Hop {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let plan = Plan::duration("hop", "queue hop between two threads").target(Target::AtMost(150.0));
        vec![plan.note("median of each sample; half of there and back, a primitive with a buffer")]
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let Some(pair) = self.pair else { return Ok(vec![Err("this process may use one processor alone".into())]) };
        let count = lab.count(200_000);
        let ((mut there, mut at_other), (mut back, mut here)) = (ring(QUEUE), ring(QUEUE));
        let other = thread::spawn(move || -> Result<()> {
            let _confined = confine(&[pair.second])?;
            for _ in 0..count {
                ensure!(give(&mut back, next(&mut at_other)?), "the queue is full");
                back.publish();
            }
            Ok(())
        });
        let _confined = confine(&[pair.first])?;
        let Some(mut primitive) = primitives(1).next() else { return Ok(Vec::new()) };
        let mut hops = Vec::with_capacity(count as usize);
        for _ in 0..count {
            let begin = Instant::now();
            ensure!(give(&mut there, primitive), "the queue is full");
            there.publish();
            primitive = next(&mut here)?;
            hops.push(begin.elapsed().as_nanos() as f64 / 2.0);
        }
        other.join().map_err(|_| anyhow::anyhow!("the other thread failed"))??;
        Ok(vec![Ok(median(&hops).unwrap_or_default())])
    }

    /// What no hop can be faster than: a line of memory that goes there.
    fn baseline(&mut self, lab: &Lab) -> Result<Option<(&'static str, f64)>> {
        let Some(pair) = self.pair else { return Ok(None) };
        let mut arguments = arguments!["--size", 1, "--seconds", lab.clock()];
        arguments.extend(arguments!["--cpu", pair.second, "--peer-cpu", pair.first]);
        let round_trips: Durations = lab.alone(Program::LINE, &arguments)?.json()?;
        Ok(Some(("a cache line's way", round_trips.p50_ns / 2.0)))
    }
}

/// Processor time of both threads for each primitive, where many go at a time.
#[derive(Debug)]
pub struct Batched {
    pub pair: Option<Pair>,
}

impl Experiment for Batched {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let plan = Plan::cost("hop", "queue hop, batches of 32: CPU", Unit::Nanoseconds);
        vec![plan.target(Target::AtMost(10.0)).note("processor time of both threads together, for each primitive")]
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let Some(pair) = self.pair else { return Ok(vec![Err("this process may use one processor alone".into())]) };
        let count = lab.count(20_000_000);
        let ((mut there, mut at_other), (mut back, mut here)) = (ring(QUEUE), ring(QUEUE));
        // What was read comes back, as buffers do.
        let other = thread::spawn(move || -> Result<f64> {
            let _confined = confine(&[pair.second])?;
            let begin = thread_time();
            let mut taken = 0;
            while taken < count {
                let before = taken;
                while let Some(indication) = at_other.pop() {
                    taken += 1;
                    ensure!(give(&mut back, indication), "the queue is full");
                }
                if taken > before {
                    back.publish();
                }
            }
            Ok(thread_time() - begin)
        });
        let _confined = confine(&[pair.first])?;
        let mut free: Vec<Indication> = primitives(4 * BATCH as u32).collect();
        let begin = thread_time();
        let mut sent = 0;
        while sent < count {
            while let Some(indication) = here.pop() {
                free.push(indication);
            }
            let batch = free.len().min(BATCH).min((count - sent) as usize);
            for indication in free.drain(free.len() - batch..) {
                ensure!(give(&mut there, indication), "the queue is full");
            }
            there.publish();
            sent += batch as u64;
        }
        let own = thread_time() - begin;
        let others = other.join().map_err(|_| anyhow::anyhow!("the other thread failed"))??;
        // Each has gone there and back: two hops.
        Ok(vec![Ok((own + others) / (2 * count) as f64)])
    }
}
