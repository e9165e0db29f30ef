//! What sums cost the processor: every variant, alone and together with a copy, of packets that are in the first levels
//! of its cache and of such that are in none, beside other libraries and beside the copy alone.

use std::cell::RefCell;
use std::fmt::{self, Debug, Formatter};
use std::hint::black_box;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use etherparse::checksum::Sum16BitWords;

use super::{ALONE, table};
use crate::bench::{Chosen, Experiment, Lab};
use crate::launcher::{Reading, Session, Side};
use crate::plan::{Plan, Target};
use crate::statistic::median;
use crate::unit::{self, Unit};
use underpass_checksum::both::Both;
use underpass_checksum::fletcher::Sums;
use underpass_checksum::internet::Sum;
use underpass_checksum::{Variant, both, fletcher, internet};

const SIZES: [u64; 7] = [64, 256, 512, 1472, 4096, 9024, 65536];
const QUICK_SIZES: [u64; 2] = [64, 1472];
/// What a datagram of an Ethernet frame carries: the size of the targets.
const DATAGRAM: u64 = 1472;
/// Octets that are walked: some that stay in the first level of the cache, and several times any cache.
const HOT: usize = 16 << 10;
const COLD: usize = 192 << 20;
/// What is in front of what is summed: Ethernet's and IPv4's header.
const HEADERS: usize = 34;
const LINE: usize = 64;
/// Turns of one contestant in a sample, and how long each takes.
const TURNS: usize = 5;
const TURN: Duration = Duration::from_micros(1500);

/// What is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// RFC 1071's sum.
    Internet,
    /// ISO's sums.
    Fletcher,
    /// Both in one pass.
    Both,
    /// A copy, and RFC 1071's sum in the same pass.
    CopyInternet,
    /// A copy, and ISO's sums in the same pass.
    CopyFletcher,
    /// A copy, and both in the same pass.
    CopyBoth,
}

impl Task {
    /// All.
    pub const ALL: [Task; 6] =
        [Task::Internet, Task::Fletcher, Task::Both, Task::CopyInternet, Task::CopyFletcher, Task::CopyBoth];

    /// As tables have it.
    pub const fn name(self) -> &'static str {
        match self {
            Task::Internet => "Internet",
            Task::Fletcher => "Fletcher",
            Task::Both => "both",
            Task::CopyInternet => "copy and Internet",
            Task::CopyFletcher => "copy and Fletcher",
            Task::CopyBoth => "copy and both",
        }
    }

    /// As captions have it.
    pub const fn title(self) -> &'static str {
        match self {
            Task::Internet => "the Internet checksum",
            Task::Fletcher => "Fletcher's checksum",
            Task::Both => "both checksums in one pass",
            Task::CopyInternet => "a copy with the Internet checksum",
            Task::CopyFletcher => "a copy with Fletcher's checksum",
            Task::CopyBoth => "a copy with both checksums",
        }
    }

    const fn copies(self) -> bool {
        matches!(self, Task::CopyInternet | Task::CopyFletcher | Task::CopyBoth)
    }
}

/// The code that computes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contestant {
    /// The variant that is picked where nothing is said.
    Picked,
    /// One by name.
    Variant(Variant),
    /// The crate internet-checksum.
    InternetChecksum,
    /// The crate etherparse.
    Etherparse,
    /// No sum: the octets are only copied.
    Copy,
}

impl Contestant {
    /// The contestants that can do this task on this machine.
    pub fn of(task: Task) -> Vec<Contestant> {
        let variants = Variant::available().map(Contestant::Variant);
        let others: &[Contestant] = match task {
            Task::Internet => &[Contestant::InternetChecksum, Contestant::Etherparse],
            _ if task.copies() => &[Contestant::Copy],
            _ => &[],
        };
        std::iter::once(Contestant::Picked).chain(variants).chain(others.iter().copied()).collect()
    }

    /// As tables have it.
    pub fn name(self) -> String {
        match self {
            Contestant::Picked => "Underpass".to_string(),
            Contestant::Variant(variant) => variant.to_string(),
            Contestant::InternetChecksum => "internet-checksum".to_string(),
            Contestant::Etherparse => "etherparse".to_string(),
            Contestant::Copy => "copy alone".to_string(),
        }
    }
}

/// Memory with packets, one behind the other, and as much to copy them to, once there is something to be measured.
#[derive(Default)]
struct Area {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl Debug for Area {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{} octets", self.from.len())
    }
}

impl Area {
    fn grow(&mut self, octets: usize) {
        if self.from.len() < octets {
            self.from = vec![0; octets];
            fastrand::fill(&mut self.from);
            self.to = self.from.clone();
        }
    }
}

/// Contestants by turns over the packets of one size.
struct Contest<'a> {
    task: Task,
    size: usize,
    area: &'a mut Area,
    /// How much of it is walked.
    len: usize,
    /// Where the next packet begins.
    at: usize,
}

impl Contest<'_> {
    /// Octets in a second.
    fn run(&mut self, contestant: Contestant) -> f64 {
        match (self.task, contestant) {
            (Task::Internet, Contestant::Picked) => self.time(|from, _| Sum::of(from)),
            (Task::Internet, Contestant::Variant(it)) => self.time(|from, _| Sum::by(it, from)),
            (Task::Fletcher, Contestant::Picked) => self.time(|from, _| Sums::of(from)),
            (Task::Fletcher, Contestant::Variant(it)) => self.time(|from, _| Sums::by(it, from)),
            (Task::Both, Contestant::Picked) => self.time(|from, _| Both::of(from)),
            (Task::Both, Contestant::Variant(it)) => self.time(|from, _| Both::by(it, from)),
            (Task::CopyInternet, Contestant::Picked) => self.time(internet::Sum::copying),
            (Task::CopyInternet, Contestant::Variant(it)) => self.time(|from, to| Sum::copying_by(it, from, to)),
            (Task::CopyFletcher, Contestant::Picked) => self.time(fletcher::Sums::copying),
            (Task::CopyFletcher, Contestant::Variant(it)) => self.time(|from, to| Sums::copying_by(it, from, to)),
            (Task::CopyBoth, Contestant::Picked) => self.time(both::Both::copying),
            (Task::CopyBoth, Contestant::Variant(it)) => self.time(|from, to| Both::copying_by(it, from, to)),
            (_, Contestant::InternetChecksum) => self.time(|from, _| internet_checksum::checksum(from)),
            (_, Contestant::Etherparse) => self.time(|from, _| etherparse(from)),
            (_, Contestant::Copy) => self.time(|from, to| to.copy_from_slice(from)),
        }
    }

    fn time<R>(&mut self, mut sum: impl FnMut(&[u8], &mut [u8]) -> R) -> f64 {
        let stride = stride(self.size);
        let (begin, mut octets) = (Instant::now(), 0);
        // The clock is read seldom enough to count for nothing.
        let burst = (1 << 16) / stride + 1;
        while begin.elapsed() < TURN {
            for _ in 0..burst {
                if self.at + stride > self.len {
                    self.at = 0;
                }
                let range = self.at + HEADERS..self.at + HEADERS + self.size;
                black_box(sum(&self.area.from[range.clone()], &mut self.area.to[range]));
                self.at += stride;
            }
            octets += burst * self.size;
        }
        octets as f64 / begin.elapsed().as_secs_f64()
    }
}

/// From one packet to the next.
fn stride(size: usize) -> usize {
    (HEADERS + size).next_multiple_of(LINE)
}

fn etherparse(octets: &[u8]) -> u16 {
    Sum16BitWords::new().add_slice(octets).ones_complement()
}

/// Everybody at one task, at one size.
#[derive(Debug)]
struct Kernel {
    task: Task,
    size: u64,
    is_hot: bool,
    contestants: Vec<Contestant>,
    /// The one by which the first is judged, and what it must reach of it.
    rival: Option<(Contestant, f64)>,
    area: Rc<RefCell<Area>>,
    octets: usize,
    /// The rival's, of the last sample.
    baseline: Option<f64>,
    turn: usize,
}

impl Kernel {
    fn of(task: Task, size: u64, is_hot: bool, area: &Rc<RefCell<Area>>, octets: usize) -> Kernel {
        let contestants = Contestant::of(task);
        Kernel { task, size, is_hot, contestants, rival: None, area: area.clone(), octets, baseline: None, turn: 0 }
    }

    fn name(&self, contestant: Contestant) -> String {
        let heat = if self.is_hot { "hot" } else { "cold" };
        format!("{}, {}, {heat}, {}", self.task.name(), unit::size(self.size), contestant.name())
    }
}

impl Experiment for Kernel {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let shown = if self.rival.is_some() { &self.contestants[..1] } else { &self.contestants[..] };
        let plan = |contestant: &Contestant| {
            let (group, name) = (table::kernel(self.task, *contestant, self.is_hot), self.name(*contestant));
            match self.rival {
                Some((rival, share)) => {
                    let plan = Plan::rate("targets", format!("{name} against {}", rival.name()), Unit::BytesPerSecond);
                    plan.target(Target::ShareOfBaseline(share))
                }
                None => Plan::rate(&group, name, Unit::BytesPerSecond),
            }
        };
        shown.iter().map(|contestant| plan(contestant).of_size(self.size)).collect()
    }

    /// What is fast and wrong is out.
    fn prepare(&mut self, _: &Lab) -> Result<()> {
        self.area.borrow_mut().grow(self.octets);
        let octets: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(self.size as usize).collect();
        let right = Sum::by(Variant::Reference, &octets).checksum();
        ensure!(internet_checksum::checksum(&octets) == right.to_be_bytes(), "internet-checksum has another sum");
        ensure!(etherparse(&octets) == right.to_be(), "etherparse has another sum");
        let (both, mut copy) = (Both::by(Variant::Reference, &octets), vec![0; octets.len()]);
        for variant in Variant::available() {
            let sums = Both { internet: Sum::by(variant, &octets), fletcher: Sums::by(variant, &octets) };
            ensure!(sums == both && Both::by(variant, &octets) == both, "{variant} has another sum");
            copy.fill(0);
            ensure!(
                Both::copying_by(variant, &octets, &mut copy) == both && copy == octets,
                "{variant} copies otherwise"
            );
        }
        Ok(())
    }

    fn sample(&mut self, _: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let mut area = self.area.borrow_mut();
        let size = self.size as usize;
        let len = if self.is_hot { HOT.max(stride(size)) } else { area.from.len() };
        let all: Vec<Contestant> = self.contestants.iter().copied().chain(self.rival.map(|(rival, _)| rival)).collect();
        let mut rates = vec![Vec::new(); all.len()];
        let mut contest = Contest { task: self.task, size, area: &mut area, len, at: 0 };
        for _ in 0..TURNS {
            self.turn += 1;
            for at in (0..all.len()).map(|at| (at + self.turn) % all.len()) {
                rates[at].push(contest.run(all[at]));
            }
        }
        let medians: Vec<f64> = rates.iter().map(|rates| median(rates).context("no turn")).collect::<Result<_>>()?;
        self.baseline = self.rival.and_then(|_| medians.last().copied());
        Ok(medians.into_iter().take(self.contestants.len()).map(Ok).collect())
    }

    fn baseline(&mut self, _: &Lab) -> Result<Option<(&'static str, f64)>> {
        let name = |rival| match rival {
            Contestant::InternetChecksum => "internet-checksum",
            Contestant::Etherparse => "etherparse",
            Contestant::Copy => "copy alone",
            _ => "scalar",
        };
        Ok(self.rival.map(|(rival, _)| name(rival)).zip(self.baseline))
    }
}

/// Names experiments that compare all contestants at these sizes.
pub fn add_comparisons(lab: &Lab, chosen: &mut Chosen, sizes: &[u64]) {
    let (area, octets) = (Rc::<RefCell<Area>>::default(), if lab.quick { COLD / 8 } else { COLD });
    for (task, is_hot) in Task::ALL.into_iter().flat_map(|task| [(task, true), (task, false)]) {
        sizes.iter().for_each(|&size| chosen.add("checksum", Kernel::of(task, size, is_hot, &area, octets)));
    }
}

/// Names the experiments.
pub fn add(lab: &Lab, chosen: &mut Chosen) {
    let (area, octets) = (Rc::<RefCell<Area>>::default(), if lab.quick { COLD / 8 } else { COLD });
    let kernel = |task, size, is_hot| Kernel::of(task, size, is_hot, &area, octets);
    let target = |task, size, is_hot, rival, share| Kernel {
        contestants: vec![Contestant::Picked],
        rival: Some((rival, share)),
        ..kernel(task, size, is_hot)
    };
    let (theirs, others) = (Contestant::InternetChecksum, Contestant::Etherparse);
    for (size, rival, times) in [(64, theirs, 1.0), (64, others, 1.0), (DATAGRAM, theirs, 3.0), (DATAGRAM, others, 2.5)]
    {
        chosen.add("checksum", target(Task::Internet, size, true, rival, times));
    }
    chosen.add("checksum", target(Task::Fletcher, DATAGRAM, true, Contestant::Variant(Variant::Scalar), 10.0));
    let sizes = if lab.quick { &QUICK_SIZES[..] } else { &SIZES };
    for task in [Task::CopyInternet, Task::CopyFletcher] {
        for &size in sizes.iter().filter(|size| **size >= DATAGRAM) {
            chosen.add("checksum", target(task, size, false, Contestant::Copy, 1.0 / 1.1));
        }
    }
    for (task, is_hot) in Task::ALL.into_iter().flat_map(|task| [(task, true), (task, false)]) {
        sizes.iter().for_each(|&size| chosen.add("checksum", kernel(task, size, is_hot)));
    }
}
