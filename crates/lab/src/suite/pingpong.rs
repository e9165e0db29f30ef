//! Round trips of one message (the papers' system A, figure 5), and what the ways to wait cost.

use anyhow::Result;
use serde::Deserialize;

use super::arguments;
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session};
use crate::plan::{Plan, Target};
use crate::processors::Pair;
use crate::programs::Program;
use crate::unit;
use crate::witness::Rule;

const SIZES: [u64; 8] = [1, 16, 64, 256, 1024, 4096, 16384, 65536];
const QUICK_SIZES: [u64; 4] = [1, 64, 1024, 16384];
const WARM_UP: usize = 1000;
/// Name of the baseline: one cache line that two processors hand to each other.
const CACHE_LINE: &str = "cache line";
/// Name of the baseline of larger messages: the line, and the message copied in and out beside it.
const BARE_COPIES: &str = "bare copies";

/// Names the suite's experiments.
pub fn add(lab: &Lab, chosen: &mut Chosen) {
    let one = PingPong { mode: Mode::Blocking, size: 1, family: 4, pair: lab.processors };
    if lab.processors.is_some() {
        for size in if lab.quick { &QUICK_SIZES[..] } else { &SIZES } {
            chosen.add("pingpong", PingPong { size: *size, ..one });
        }
        for mode in [Mode::Poll, Mode::Epoll, Mode::EpollEdge] {
            chosen.add("pingpong", PingPong { mode, ..one });
        }
        chosen.add("pingpong", PingPong { family: 6, ..one });
    }
    for mode in [Mode::Blocking, Mode::Epoll] {
        if let Some(pair) = lab.processors {
            chosen.add("pingpong", PingPong { mode, pair: Some(pair.one()), ..one });
        }
        chosen.add("pingpong", PingPong { mode, pair: None, ..one });
    }
}

/// Names experiments of round trips at these sizes, as they are on the curve over size.
pub fn add_comparisons(lab: &Lab, chosen: &mut Chosen, sizes: &[u64]) {
    if lab.processors.is_some() {
        let one = |size| PingPong { mode: Mode::Blocking, size, family: 4, pair: lab.processors };
        sizes.iter().for_each(|size| chosen.add("pingpong", one(*size)));
    }
}

/// How both ends wait for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Blocking,
    Poll,
    Epoll,
    EpollEdge,
}

impl Mode {
    fn option(self) -> &'static str {
        match self {
            Mode::Blocking => "blocking",
            Mode::Poll => "poll",
            Mode::Epoll => "epoll",
            Mode::EpollEdge => "epoll-edge",
        }
    }

    fn words(self) -> &'static str {
        match self {
            Mode::Blocking => "blocking",
            Mode::Poll => "non-blocking and poll",
            Mode::Epoll => "epoll",
            Mode::EpollEdge => "epoll, edge-triggered",
        }
    }
}

/// Where both ends run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Each pinned to a processor of its own.
    Apart,
    /// Both pinned to one processor.
    Together,
    /// Where the kernel lets them.
    Anywhere,
}

#[derive(Clone, Copy, Debug)]
struct PingPong {
    mode: Mode,
    size: u64,
    family: u8,
    /// The processors that the ends are pinned to, if they are.
    pair: Option<Pair>,
}

/// What the clients of ping-pong and wake print, as far as it is used.
#[derive(Debug, Deserialize)]
pub(super) struct Durations {
    pub p50_ns: f64,
    pub p99_ns: f64,
    pub count: f64,
    pub seconds: f64,
}

impl PingPong {
    /// Whether the slow round trips are a figure of their own.
    fn tail(&self) -> bool {
        matches!((self.mode, self.size, self.family, self.place()), (Mode::Blocking, 1, 4, Place::Apart))
    }

    fn place(&self) -> Place {
        match self.pair {
            Some(pair) if pair.first == pair.second => Place::Together,
            Some(_) => Place::Apart,
            None => Place::Anywhere,
        }
    }

    fn targets(&self) -> &'static [Target] {
        if self.place() != Place::Apart {
            return &[];
        }
        match (self.mode, self.size, self.family) {
            (Mode::Blocking, 1, 4) => &[Target::TimesBetter(25.0), Target::WithinBaseline(2.0)],
            (Mode::Blocking, 1024, 4) | (Mode::Epoll, 1, 4) => &[Target::WithinBaseline(3.0)],
            _ => &[],
        }
    }
}

impl Experiment for PingPong {
    fn plans(&self) -> Vec<Plan> {
        let family = if self.family == 6 { ", IPv6" } else { "" };
        let place = match self.place() {
            Place::Apart => "",
            Place::Together => ", on one processor",
            Place::Anywhere => ", unpinned",
        };
        let name = format!("{}, {}{family}{place}", self.mode.words(), unit::size(self.size));
        // The curve over size is one group; what differs from it in another respect is not part of it.
        let group = if family.is_empty() && place.is_empty() { self.mode.option() } else { "variant" };
        let mut plan = Plan::duration(group, name).of_size(self.size);
        plan.targets = self.targets().to_vec();
        let slow = self.tail().then(|| Plan::duration("tail", format!("{}, 99th percentile", plan.name)));
        [plan].into_iter().chain(slow).collect()
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let Self { mode, size, family, pair } = *self;
        let mut arguments = arguments!["--mode", mode.option(), "--size", size, "--family", family];
        arguments.extend(arguments!["--warm-up", WARM_UP, "--seconds", lab.clock()]);
        let client = lab.converse(session, Program::PINGPONG, &arguments, pair)?;
        let durations: Durations = client.json()?;
        let figures = [durations.p50_ns, durations.p99_ns].map(|ns| session.proven(client.pid, Rule::Bytes, ns));
        Ok(figures.into_iter().take(1 + usize::from(self.tail())).collect())
    }

    fn baseline(&mut self, lab: &Lab) -> Result<Option<(&'static str, f64)>> {
        let judged = self.targets().iter().any(|target| matches!(target, Target::WithinBaseline(_)));
        let (name, size) = match (self.mode, self.family) {
            _ if judged => (CACHE_LINE, 1),
            (Mode::Blocking, 4) => (BARE_COPIES, self.size),
            _ => return Ok(None),
        };
        let Some(pair) = self.pair.filter(|_| self.place() == Place::Apart) else { return Ok(None) };
        let mut arguments = arguments!["--size", size, "--seconds", lab.clock()];
        arguments.extend(arguments!["--cpu", pair.second, "--peer-cpu", pair.first]);
        let durations: Durations = lab.alone(Program::LINE, &arguments)?.json()?;
        Ok(Some((name, durations.p50_ns)))
    }
}
