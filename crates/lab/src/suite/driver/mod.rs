//! Link drivers over a veth pair between two network namespaces: messages in one direction, as fast as they go, by
//! kernel UDP, a packet socket and AF_XDP, and by the link over UDP sockets against a plain pair of programs that send
//! the same segments. The experiments are those of "Adaptive device driver for over-Gbps links" (FreeBSD, OC-48c and
//! 10GbE): algorithms of completion, and how much is copied of a packet that lies in pieces, fixed and adaptive.
//!
//! What is counted is what arrives, and every message is looked at.

mod end;
pub(super) mod message;
pub(super) mod stage;
mod traffic;

use std::rc::Rc;
use std::time::Duration;

use anyhow::{Context, Result};

use crate::bench::{Chosen, Experiment, Lab, skipped};
use crate::launcher::{Reading, Session, Side};
use crate::plan::{Plan, Target};
use crate::record::Skipped;
use crate::statistic::median;
use crate::unit::{self, Unit};
use end::{ADAPTIVE, CLUSTER, Layout, Way};
use stage::{Run, Stage, Waited};
use traffic::Waiting;
use underpass_link::bounce::Copying;
use underpass_link::completion::Completion;

/// The longest is what fits a UDP datagram, in whole clusters.
const SIZES: [u64; 12] = [32, 64, 128, 256, 512, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 60 << 10];
const QUICK_SIZES: [u64; 3] = [64, 1 << 12, 60 << 10];
/// Segments of messages: short ones, a segment that fits an Ethernet's packet, and a segment that fills half a page.
const SEGMENTS: [u64; 3] = [64, 1400, 2048];
/// Where what each packet costs shows best.
const SHORT: u64 = 64;

/// Names the suite's experiments, where they can be had.
pub fn add(lab: &Lab, chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    let stage = match Stage::new() {
        Ok(stage) => Rc::new(stage),
        Err(error) => return missing.push(skipped("link drivers", format!("{error:#}"))),
    };
    let sizes = if lab.quick { &QUICK_SIZES[..] } else { &SIZES };
    for &size in sizes {
        chosen.add("driver", Kernel { stage: stage.clone(), size });
    }
    for &size in if lab.quick { &SEGMENTS[1..2] } else { &SEGMENTS } {
        chosen.add("driver", Sockets { stage: stage.clone(), size });
    }
    for &size in sizes {
        chosen.add("driver", Algorithms { stage: stage.clone(), size, fixed: Fixed::default() });
    }
    chosen.add("driver", Gain { stage: stage.clone(), event_driven: None });
    chosen.add("driver", Waits { stage: stage.clone() });
    chosen.add("driver", Notices { stage: stage.clone() });
    for &size in sizes.iter().filter(|size| **size > CLUSTER as u64) {
        chosen.add("driver", Copies { stage: stage.clone(), size, fixed: Fixed::default() });
    }
}

/// Sizes at which ways are compared.
#[derive(Debug, Default)]
pub struct Comparisons {
    /// Kernel UDP in three ways, and AF_XDP.
    pub link: Vec<u64>,
    /// Algorithms of completion.
    pub completion: Vec<u64>,
    /// Numbers of copied pieces.
    pub copies: Vec<u64>,
}

/// Names experiments that compare ways at these sizes.
pub fn add_comparisons(chosen: &mut Chosen, missing: &mut Vec<Skipped>, sizes: &Comparisons) {
    if sizes.link.is_empty() && sizes.completion.is_empty() && sizes.copies.is_empty() {
        return;
    }
    let stage = match Stage::new() {
        Ok(stage) => Rc::new(stage),
        Err(error) => return missing.push(skipped("link drivers", format!("{error:#}"))),
    };
    for &size in &sizes.link {
        chosen.add("driver", Kernel { stage: stage.clone(), size });
    }
    for &size in &sizes.completion {
        chosen.add("driver", Algorithms { stage: stage.clone(), size, fixed: Fixed::default() });
    }
    for &size in &sizes.copies {
        chosen.add("driver", Copies { stage: stage.clone(), size, fixed: Fixed::default() });
    }
}

/// Curves over size: the group of their measurements.
pub mod curve {
    /// Against UDP with a call for each message.
    pub const CALL: &str = "against UDP, a call for each";
    /// Against UDP with many messages for each call.
    pub const SENDMMSG: &str = "against UDP, sendmmsg";
    /// Against UDP with segments of one large datagram.
    pub const GSO: &str = "against UDP, GSO";
    /// The link over UDP sockets against a plain pair.
    pub const SOCKETS: &str = "UDP link against plain UDP, GSO and GRO";
    /// Processor time of the sender.
    pub const SENDER: &str = "sender";
    /// Processor time of the receiver.
    pub const RECEIVER: &str = "receiver";
    /// The packet socket.
    pub const PACKET: &str = "AF_PACKET";
    /// Algorithms of completion.
    pub const COMPLETION: [&str; 3] = ["adaptive", "event-driven", "lazy"];
    /// How much is copied.
    pub const COPIES: [&str; 8] = [
        "copies as it pays",
        "copies no piece",
        "copies 1 piece",
        "copies 2 pieces",
        "copies 3 pieces",
        "copies 4 pieces",
        "copies all pieces",
        "dummies",
    ];
}

/// Frames of the kernel's longest packet.
const MOST_PIECES: usize = 17;
const ALONE: &[Side] = &[Side::Underpass];
const BETTER_FIXED: &str = "the better fixed algorithm";
const BEST_FIXED: &str = "the best fixed number";

/// Messages that arrive in a second.
fn rate(group: &str, what: &str, size: u64) -> Plan {
    Plan::rate(group, format!("{}, {what}", unit::size(size)), Unit::PerSecond).of_size(size)
}

/// What the fixed ways came to. The best is the one with the best median so far: the best of one sample is also the
/// luckiest.
#[derive(Debug, Default)]
struct Fixed {
    /// The rates by way, then by sample.
    rates: Vec<Vec<f64>>,
}

impl Fixed {
    fn note(&mut self, rates: &[f64]) {
        self.rates.resize(rates.len(), Vec::new());
        self.rates.iter_mut().zip(rates).for_each(|(all, rate)| all.push(*rate));
    }

    /// The last rate of the best.
    fn best(&self) -> Option<f64> {
        let best = self.rates.iter().max_by(|a, b| median(a).unwrap_or(0.0).total_cmp(&median(b).unwrap_or(0.0)));
        best.and_then(|rates| rates.last().copied())
    }
}

/// Kernel UDP in three ways, against AF_XDP that adapts.
#[derive(Debug)]
struct Kernel {
    stage: Rc<Stage>,
    size: u64,
}

impl Experiment for Kernel {
    fn plans(&self) -> Vec<Plan> {
        let Kernel { size, .. } = *self;
        let against = |group| rate(group, &format!("AF_XDP {group}"), size);
        let call = against(curve::CALL);
        let call = if size == SHORT { call.target(Target::TimesBetter(1.5)) } else { call };
        let name = |what: &str| format!("{}, AF_XDP {}: {what}", unit::size(size), curve::CALL);
        let time = |group, what: &str| {
            let plan = Plan::duration(group, name(what)).of_size(size);
            plan.note(
                "processor time for each message that arrives; the kernel's work for the receiver counts for the \
                       sender",
            )
        };
        let lost = Plan::cost("lost", name("lost messages"), Unit::Percent).of_size(size);
        vec![
            call,
            against(curve::SENDMMSG).target(Target::TimesBetter(1.0)),
            against(curve::GSO),
            time(curve::SENDER, "sender"),
            time(curve::RECEIVER, "receiver"),
            lost.note("nobody slows the sender down"),
        ]
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let run = |way| self.stage.run(lab, session, way, self.size);
        let (first, [second, third]) = match session.side() {
            Side::Kernel => (run(Way::CALL)?, [run(Way::SENDMMSG)?, run(Way::GSO)?]),
            Side::Underpass => {
                let run = run(Way::ADAPTIVE)?;
                (run, [run, run])
            }
        };
        let Run { delivered_per_second, sender, receiver, lost } = first;
        let rates = [delivered_per_second, second.delivered_per_second, third.delivered_per_second];
        Ok(rates.into_iter().chain([sender, receiver, lost]).map(Ok).collect())
    }
}

/// The link over UDP sockets against a plain pair of programs, with segments both ways.
#[derive(Debug)]
struct Sockets {
    stage: Rc<Stage>,
    size: u64,
}

impl Experiment for Sockets {
    fn plans(&self) -> Vec<Plan> {
        let Sockets { size, .. } = *self;
        let name = |what: &str| format!("{}, {}: {what}", unit::size(size), curve::SOCKETS);
        let time = |what: &str| Plan::duration(curve::SOCKETS, name(what)).of_size(size);
        let delivered = Plan::rate(curve::SOCKETS, name("delivered"), Unit::PerSecond).of_size(size);
        // Packets are judged that fit an Ethernet's, since those are what a network has.
        let judged = |plan: Plan| if size == SEGMENTS[1] { plan.target(Target::TimesBetter(0.8)) } else { plan };
        let both = "processor time of sending one and of receiving one; the target is at most 1.25 times as much as \
                    the plain pair's";
        vec![
            judged(delivered),
            judged(time("both ends")).note(both),
            time("sender").note("for each message that is sent; it has the kernel's work for the receiver"),
            time("receiver").note("for each message that arrives"),
            Plan::cost(curve::SOCKETS, name("lost messages"), Unit::Percent)
                .of_size(size)
                .note("nobody slows the sender down"),
        ]
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let way = if session.side() == Side::Kernel { Way::GSO } else { Way::Sockets };
        let Run { delivered_per_second, sender, receiver, lost } = self.stage.run(lab, session, way, self.size)?;
        // What is lost has cost the sender as much as what arrives.
        let sender = sender * (1.0 - lost / 100.0);
        Ok([delivered_per_second, sender + receiver, sender, receiver, lost].map(Ok).into())
    }
}

/// How soon a message that is there is noticed, over each link.
#[derive(Debug)]
struct Notices {
    stage: Rc<Stage>,
}

impl Notices {
    const WAYS: [(Way, &str); 3] =
        [(Way::ADAPTIVE, "AF_XDP"), (Way::Packet, curve::PACKET), (Way::Sockets, "UDP link")];
    const MOST: f64 = 5_000.0;
}

impl Experiment for Notices {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let plan = |(_, name): &(Way, &str)| {
            let plan =
                Plan::duration("notices", format!("{}, {name}: a message that is there is noticed", unit::size(SHORT)));
            plan.of_size(SHORT).target(Target::AtMost(Notices::MOST)).note("from asking to having it, the median")
        };
        Notices::WAYS.iter().map(plan).collect()
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        Notices::WAYS.iter().map(|(way, _)| self.stage.notice(lab, *way, SHORT).map(Ok)).collect()
    }
}

/// The algorithms of completion, and the packet socket.
#[derive(Debug)]
struct Algorithms {
    stage: Rc<Stage>,
    size: u64,
    fixed: Fixed,
}

impl Experiment for Algorithms {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let plan = |group: &'static str| rate(group, &format!("AF_XDP, {group}"), self.size);
        let [adaptive, event_driven, lazy] = curve::COMPLETION.map(plan);
        let adaptive = adaptive.target(Target::ShareOfBaseline(0.97));
        vec![adaptive, event_driven, lazy, rate(curve::PACKET, curve::PACKET, self.size)]
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let ways = [ADAPTIVE, Completion::EventDriven, Completion::Lazy];
        let mut rates = self.stage.completions(lab, &ways, self.size)?;
        self.fixed.note(&rates[1..]);
        rates.push(self.stage.packet(lab, self.size)?);
        Ok(rates.into_iter().map(Ok).collect())
    }

    fn baseline(&mut self, _: &Lab) -> Result<Option<(&'static str, f64)>> {
        Ok(self.fixed.best().map(|fixed| (BETTER_FIXED, fixed)))
    }
}

/// What adaptive completion gains with short packets.
#[derive(Debug)]
struct Gain {
    stage: Rc<Stage>,
    /// The event-driven rate of the last sample, measured by turns with the adaptive one.
    event_driven: Option<f64>,
}

impl Experiment for Gain {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let plan = rate("gain", "AF_XDP, adaptive over event-driven", SHORT);
        vec![plan.target(Target::ShareOfBaseline(1.3))]
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let rates = self.stage.completions(lab, &[ADAPTIVE, Completion::EventDriven], SHORT)?;
        self.event_driven = rates.get(1).copied();
        Ok(rates.into_iter().take(1).map(Ok).collect())
    }

    fn baseline(&mut self, _: &Lab) -> Result<Option<(&'static str, f64)>> {
        Ok(self.event_driven.map(|rate| ("event-driven", rate)))
    }
}

/// How much is copied of a packet that lies in pieces.
#[derive(Debug)]
struct Copies {
    stage: Rc<Stage>,
    size: u64,
    fixed: Fixed,
}

impl Copies {
    const WAYS: [Copying; 8] = [
        Copying::Adaptive,
        Copying::First(0),
        Copying::First(1),
        Copying::First(2),
        Copying::First(3),
        Copying::First(4),
        Copying::All,
        Copying::Dummy,
    ];
}

impl Experiment for Copies {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let mut plans = Vec::from(curve::COPIES.map(|group| rate(group, &format!("AF_XDP, {group}"), self.size)));
        let pieces = Layout::Clusters.pieces(self.size as usize);
        let note = format!("a message lies in {pieces} pieces, of which the kernel takes {MOST_PIECES}");
        let note = if pieces > MOST_PIECES { note + "; at least so many are copied as that asks for" } else { note };
        plans[0] = plans[0].clone().target(Target::ShareOfBaseline(0.97)).note(note);
        plans
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let rates = self.stage.copies(lab, &Copies::WAYS, self.size)?;
        // Neither the adaptive way nor the dummies.
        self.fixed.note(&rates[1..rates.len() - 1]);
        Ok(rates.into_iter().map(Ok).collect())
    }

    fn baseline(&mut self, _: &Lab) -> Result<Option<(&'static str, f64)>> {
        Ok(self.fixed.best().map(|fixed| (BEST_FIXED, fixed)))
    }
}

/// How the receiver waits: with messages that come seldom, often, and as fast as they go.
#[derive(Debug)]
struct Waits {
    stage: Rc<Stage>,
}

impl Waits {
    const WAYS: [(Waiting, &str); 3] =
        [(Waiting::Adaptive, "as experience has it"), (Waiting::Polling, "polling"), (Waiting::Asleep, "asleep")];
    const GAPS: [(Duration, &str); 2] =
        [(Duration::from_millis(1), "one each ms"), (Duration::from_micros(20), "one each 20 µs")];
}

impl Experiment for Waits {
    fn sides(&self) -> &'static [Side] {
        ALONE
    }

    fn plans(&self) -> Vec<Plan> {
        let name = |rate: &str, how: &str, what: &str| format!("{}, {rate}, waits {how}: {what}", unit::size(SHORT));
        let share = |rate: &str, how: &str| {
            let plan = Plan::cost("waits", name(rate, how, "receiver"), Unit::Percent).of_size(SHORT);
            plan.note("of the receiver's processor")
        };
        let paced = Waits::GAPS.iter().flat_map(|(_, rate)| {
            Waits::WAYS.iter().flat_map(move |(_, how)| {
                let latency = Plan::duration("waits", name(rate, how, "latency")).of_size(SHORT);
                [share(rate, how), latency.note("from the sender's hands into the receiver's, the median")]
            })
        });
        let rate = "as fast as they go";
        let fast = Waits::WAYS.iter().flat_map(|(_, how)| {
            let delivered = Plan::rate("waits", name(rate, how, "delivered"), Unit::PerSecond).of_size(SHORT);
            [share(rate, how), delivered]
        });
        paced.chain(fast).collect()
    }

    fn sample(&mut self, lab: &Lab, _: &Session) -> Result<Vec<Reading>> {
        let mut readings = Vec::new();
        for gap in Waits::GAPS.iter().map(|(gap, _)| Some(*gap)).chain([None]) {
            for (waiting, _) in Waits::WAYS {
                let Waited { delivered_per_second, share, latency } = self.stage.wait(lab, waiting, gap, SHORT)?;
                let second = if gap.is_some() { latency.context("no latency")? } else { delivered_per_second };
                readings.extend([Ok(share), Ok(second)]);
            }
        }
        Ok(readings)
    }
}
