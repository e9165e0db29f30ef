//! What can be decided, from what was measured: the ways to do one piece of protocol work that stand to choose.

use std::collections::BTreeMap;

use super::cost::Curve;
use crate::record::{Figure, Measurement};
use crate::suite::apps::load;
use crate::suite::broker::{ALONE, BETWEEN_USERS};
use crate::suite::checksum::table::{self, Contestant, Socket, Stage as Part, Task, Way};
use crate::suite::driver::curve as driver;
use crate::suite::layers::{HIGHEST, Scheduler, Work, curve as layers};
use crate::survey::record::Key;
use crate::unit::{Better, Unit, counted};
use underpass_checksum::Variant;

/// Protocol work that can be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// The class of transport between two programs of one host: the kernel's TCP or shared memory.
    Transport,
    /// The class of transport between programs of two users, whom a daemon leads to each other.
    Broker,
    /// How the engine's layers are run.
    Layers,
    /// What packets go over.
    Link,
    /// How a driver learns that packets are sent.
    Completion,
    /// How much a driver copies of a packet in pieces.
    Copies,
    /// What sums received packets.
    Checksum,
    /// With which instructions the processor sums.
    Instructions,
    /// Where encryption is done.
    Encryption,
    /// On which endpoint the work is done.
    Endpoint,
}

impl Stage {
    /// All, in the order of the advice.
    pub const ALL: [Stage; 10] = [
        Stage::Transport,
        Stage::Broker,
        Stage::Layers,
        Stage::Link,
        Stage::Completion,
        Stage::Copies,
        Stage::Checksum,
        Stage::Instructions,
        Stage::Encryption,
        Stage::Endpoint,
    ];

    /// As the placement has it.
    pub const fn name(self) -> &'static str {
        match self {
            Stage::Transport => "transport",
            Stage::Broker => "broker",
            Stage::Layers => "layers",
            Stage::Link => "link",
            Stage::Completion => "completion",
            Stage::Copies => "copies",
            Stage::Checksum => "checksum",
            Stage::Instructions => "instructions",
            Stage::Encryption => "encryption",
            Stage::Endpoint => "endpoint",
        }
    }

    /// What has to be measured to decide it.
    pub const fn remedy(self) -> &'static str {
        match self {
            Stage::Transport => "underpass bench pingpong, stream or apps",
            Stage::Broker => "underpass bench broker, as root",
            Stage::Layers => "underpass bench layers",
            Stage::Link | Stage::Completion | Stage::Copies => "underpass bench driver, as root",
            Stage::Checksum => "underpass bench checksum, as root, on a host with a GPU with --gpu",
            Stage::Instructions => "underpass bench checksum",
            Stage::Encryption => "underpass survey, with a SmartNIC in the system of a host",
            Stage::Endpoint => "underpass survey",
        }
    }
}

/// One choice to be made.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// Of which work.
    pub stage: Stage,
    /// On what, e.g. a link or a kind of program.
    pub route: String,
    /// What is weighed.
    pub objective: Objective,
    /// The ways, the default first; none if what could be used leaves nothing to choose.
    pub ways: Vec<Choice>,
    /// Ways that were measured, but at no size that can be used.
    pub unusable: Vec<Choice>,
}

/// A way to do it.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// As the placement has it.
    pub name: String,
    /// The group of measurements that it rests on, as their record has it.
    pub group: String,
    /// What it costs.
    pub curve: Curve,
    /// The groups of its parts, if it is the sum of several.
    pub parts: Vec<String>,
    /// A figure of it, if it rests on a survey.
    pub surveyed: Option<Key>,
}

/// Questions with a default and at least one other way, without the ways that were not measured, and those with ways
/// that cannot be used.
pub(super) fn answerable(mut all: Vec<Question>) -> Vec<Question> {
    for question in &mut all {
        let has_default = question.ways.first().is_some_and(Choice::is_measured);
        let ways = std::mem::take(&mut question.ways).into_iter();
        (question.ways, question.unusable) = ways.partition(Choice::is_measured);
        question.unusable.retain(|way| !way.curve.refused().is_empty());
        // Of a single way, what is missing is another.
        if question.ways.len() + question.unusable.len() < 2 {
            question.unusable.clear();
        }
        // Without the default there is nothing that a gain would be a gain over.
        if !has_default || question.ways.len() < 2 {
            question.ways.clear();
        }
    }
    all.retain(|question| question.has_ways() || !question.unusable.is_empty());
    all
}

impl Choice {
    /// A way that is not the sum of several, and rests on no survey.
    pub(super) fn new(name: &str, group: String, curve: Curve) -> Choice {
        Choice { name: name.to_string(), group, curve, parts: Vec::new(), surveyed: None }
    }

    fn is_measured(&self) -> bool {
        self.curve.sizes().next().is_some()
    }
}

/// What a cost is a cost of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Objective {
    /// Time, where messages follow each other as fast as they go: one divided by the throughput.
    Throughput,
    /// Time of one message by itself.
    Latency,
    /// Processor time.
    Processor,
}

impl Objective {
    /// As the placement has it.
    pub const fn name(self) -> &'static str {
        match self {
            Objective::Throughput => "throughput",
            Objective::Latency => "latency",
            Objective::Processor => "processor time",
        }
    }
}

/// What was measured, and how to find it.
pub(super) struct Source<'a>(pub(super) &'a [&'a Measurement]);

pub(super) type OneSide = fn(&Measurement) -> &Figure;
pub(super) const UNDERPASS: OneSide = |it| &it.underpass;
const KERNEL: OneSide = |it| &it.kernel;

/// All questions that these measurements, of one record, have at least two answers to.
pub fn of(measurements: &[&Measurement]) -> Vec<Question> {
    let source = Source(measurements);
    let hosts = [transport(&source), users(&source), protocol(&source)];
    let all = hosts.into_iter().chain([drivers(&source), receivers(&source), instructions(&source)]);
    answerable(all.flatten().collect())
}

impl Question {
    /// Sizes at which all ways were measured, in order.
    pub fn sizes(&self) -> Vec<u64> {
        let has = |way: &Choice, size: u64| way.curve.at(size).is_some();
        let first = self.ways.first().into_iter().flat_map(|way| way.curve.sizes());
        first.filter(|size| self.ways.iter().all(|way| has(way, *size))).collect()
    }

    /// Whether there is something to choose.
    pub fn has_ways(&self) -> bool {
        !self.ways.is_empty()
    }

    /// Whether it rests on a survey.
    pub fn is_surveyed(&self) -> bool {
        self.ways.iter().chain(&self.unusable).any(|way| way.surveyed.is_some())
    }

    /// The groups of all measurements that its ways rest on.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        fn of_way(way: &Choice) -> &[String] {
            if way.parts.is_empty() { std::slice::from_ref(&way.group) } else { &way.parts }
        }
        self.ways.iter().flat_map(of_way).map(String::as_str)
    }
}

impl Source<'_> {
    /// The curve of a suite's group.
    pub(super) fn choice(&self, suite: &str, name: &str, group: &str, side: OneSide) -> Choice {
        let mut curve = Curve::default();
        self.samples(suite, group, side).for_each(|(size, costs)| curve.add(size, costs));
        Choice::new(name, group.to_string(), curve)
    }

    /// The samples of a suite's group by size, in nanoseconds for each message.
    fn samples(&self, suite: &str, group: &str, side: OneSide) -> impl Iterator<Item = (u64, Vec<f64>)> {
        let those = self.0.iter().filter(move |it| it.suite == suite && it.group == group);
        those.filter_map(move |it| Some((it.size?, costs(it, side(it)))))
    }
}

/// Nanoseconds for each message.
fn costs(measurement: &Measurement, figure: &Figure) -> Vec<f64> {
    let bytes = measurement.size.unwrap_or(1) as f64;
    let cost = |sample: &f64| match measurement.unit {
        Unit::BytesPerSecond => bytes * 1e9 / sample,
        Unit::PerSecond => 1e9 / sample,
        _ => *sample,
    };
    figure.samples.iter().map(cost).collect()
}

/// A way of which there is one figure, for no size of messages.
fn without_size(name: &str, it: &Measurement, side: OneSide) -> Choice {
    let mut curve = Curve::default();
    curve.add(0, costs(it, side(it)));
    Choice::new(name, it.name.clone(), curve)
}

fn transport(source: &Source) -> Vec<Question> {
    let sized = [
        ("pingpong", "blocking", "round trips between programs of one host", Objective::Latency),
        ("stream", "stream", "streams between programs of one host", Objective::Throughput),
    ];
    let sized = sized.map(|(suite, group, route, objective)| Question {
        stage: Stage::Transport,
        route: route.to_string(),
        objective,
        ways: vec![
            source.choice(suite, "kernel TCP", group, KERNEL),
            source.choice(suite, "shared memory", group, UNDERPASS),
        ],
        unusable: Vec::new(),
    });
    let applications = source.0.iter().filter(|it| it.suite == "apps" && !it.name.ends_with(load::P99)).map(|it| {
        let choice = |name: &str, side: OneSide| without_size(name, it, side);
        let is_time = it.better == Better::Lower;
        Question {
            stage: Stage::Transport,
            route: it.name.strip_suffix(load::PROCESSOR_TIME).unwrap_or(&it.name).to_string(),
            objective: if is_time { Objective::Processor } else { Objective::Throughput },
            ways: vec![choice("kernel TCP", KERNEL), choice("shared memory", UNDERPASS)],
            unusable: Vec::new(),
        }
    });
    sized.into_iter().chain(applications).collect()
}

/// Programs of two users: kernel TCP, which it is without the daemon, or shared memory, to which the daemon leads them.
fn users(source: &Source) -> Vec<Question> {
    let of_group = |group| source.0.iter().copied().filter(move |it| it.suite == "broker" && it.group == group);
    let ways = |way: &dyn Fn(&str, OneSide) -> Choice| vec![way("kernel TCP", KERNEL), way("underpassd", UNDERPASS)];
    // Round trips and streams are one group, and differ by their unit.
    let sized = [
        (Unit::Nanoseconds, "round trips between two users", Objective::Latency),
        (Unit::BytesPerSecond, "streams between two users", Objective::Throughput),
    ];
    let sized = sized.map(|(unit, route, objective)| {
        let those: Vec<&Measurement> = of_group(BETWEEN_USERS).filter(|it| it.unit == unit).collect();
        let those = Source(&those);
        let way = |name: &str, side| those.choice("broker", name, BETWEEN_USERS, side);
        let (stage, route) = (Stage::Broker, route.to_string());
        Question { stage, route, objective, ways: ways(&way), unusable: Vec::new() }
    });
    let rates = [BETWEEN_USERS, ALONE].into_iter().flat_map(of_group).filter(|it| it.size.is_none()).map(|it| {
        let route =
            if it.group == ALONE { format!("{}: its server is not under Underpass", it.name) } else { it.name.clone() };
        let way = |name: &str, side| without_size(name, it, side);
        let (stage, objective) = (Stage::Broker, Objective::Throughput);
        Question { stage, route, objective, ways: ways(&way), unusable: Vec::new() }
    });
    sized.into_iter().chain(rates).collect()
}

fn protocol(source: &Source) -> Vec<Question> {
    let towers = Work::ALL.into_iter().flat_map(|work| (1..=HIGHEST).map(move |count| (work, count)));
    let question = |(work, count): (Work, u32)| {
        let way = |name: &str, scheduler| source.choice("layers", name, &layers(count, work, scheduler), UNDERPASS);
        Question {
            stage: Stage::Layers,
            route: format!("{} over memory, {work} in each", counted(count, "layer")),
            objective: Objective::Throughput,
            ways: vec![way("in line", Scheduler::InLine), way("thread", Scheduler::Threads)],
            unusable: Vec::new(),
        }
    };
    towers.map(question).collect()
}

fn drivers(source: &Source) -> Vec<Question> {
    let way = |name: &str, group: &str, side| source.choice("driver", name, group, side);
    let same = |group: &&str| way(group, group, UNDERPASS);
    let [adaptive, event_driven, lazy] = driver::COMPLETION;
    let [as_it_pays, none, fixed @ .., all, _dummies] = driver::COPIES;
    let copies: Vec<&str> = [none, as_it_pays].into_iter().chain(fixed).chain([all]).collect();
    let route = || "veth pair".to_string();
    let question = |stage, objective, ways| Question { stage, route: route(), objective, ways, unusable: Vec::new() };
    vec![
        question(
            Stage::Link,
            Objective::Throughput,
            vec![
                way("UDP, a call for each message", driver::CALL, KERNEL),
                way("UDP, sendmmsg", driver::SENDMMSG, KERNEL),
                way("UDP, GSO", driver::GSO, KERNEL),
                way("AF_XDP", driver::CALL, UNDERPASS),
            ],
        ),
        question(Stage::Completion, Objective::Processor, [event_driven, adaptive, lazy].iter().map(same).collect()),
        question(Stage::Copies, Objective::Processor, copies.iter().map(same).collect()),
    ]
}

fn receivers(source: &Source) -> Vec<Question> {
    // What is the default where nothing is said, then what may be better.
    let ways = [Way::Simd, Way::Scalar, Way::GpuStaged, Way::GpuUmem, Way::Skip];
    let mut all = Vec::new();
    for socket in Socket::ALL {
        for is_sure in [false, true] {
            let allowed = || ways.into_iter().filter(move |way| is_sure || *way != Way::Skip);
            let link = if is_sure { "a link that guarantees integrity" } else { "any other link" };
            let route = |load: &str| format!("receiving over {}, {link}{load}", socket.name());
            let throughput =
                |way: Way| source.choice("checksum", place(way), &table::throughput(socket, way), UNDERPASS);
            all.push(Question {
                stage: Stage::Checksum,
                route: route(""),
                objective: Objective::Throughput,
                ways: allowed().map(throughput).collect(),
                unusable: Vec::new(),
            });
            for beside in [false, true] {
                let load = if beside { ", beside other load" } else { "" };
                all.push(Question {
                    stage: Stage::Checksum,
                    route: route(load),
                    objective: Objective::Processor,
                    ways: allowed().map(|way| processor_time(source, socket, way, beside)).collect(),
                    unusable: Vec::new(),
                });
            }
        }
    }
    all
}

/// The placement's word for a way to sum.
fn place(way: Way) -> &'static str {
    match way {
        Way::Skip => "skip",
        Way::Scalar => "in line",
        Way::Simd => "SIMD",
        Way::GpuStaged => "GPU, staged",
        Way::GpuUmem => "GPU, in place",
    }
}

/// All parts of a packet's processor time together, sample by sample, as each sample of them is of one run. A part is
/// the difference of two readings, so a small one may be below 0 in a sample; only the sum has to be a cost.
fn processor_time(source: &Source, socket: Socket, way: Way, beside: bool) -> Choice {
    let parts: Vec<String> = Part::of(way).iter().map(|part| table::stage(socket, way, *part, beside)).collect();
    let samples = |group: &String| source.samples("checksum", group, UNDERPASS).collect::<BTreeMap<_, _>>();
    let measured: Vec<BTreeMap<u64, Vec<f64>>> = parts.iter().map(samples).collect();
    let mut curve = Curve::default();
    for size in measured[0].keys() {
        let all: Option<Vec<&Vec<f64>>> = measured.iter().map(|it| it.get(size)).collect();
        if let Some(all) = all
            && all.iter().all(|costs| costs.len() == all[0].len())
        {
            curve.add(*size, (0..all[0].len()).map(|sample| all.iter().map(|costs| costs[sample]).sum()).collect());
        }
    }
    let group = format!("{}{}: all parts", table::throughput(socket, way), if beside { ", beside" } else { "" });
    Choice { parts, ..Choice::new(place(way), group, curve) }
}

fn instructions(source: &Source) -> Vec<Question> {
    let tasks = Task::ALL.into_iter().flat_map(|task| [true, false].map(|is_hot| (task, is_hot)));
    let question = |(task, is_hot): (Task, bool)| {
        let variants = Variant::ALL.into_iter().filter(|it| *it != Variant::Reference);
        let way = |variant: Variant| {
            let group = table::kernel(task, Contestant::Variant(variant), is_hot);
            source.choice("checksum", &variant.to_string(), &group, UNDERPASS)
        };
        Question {
            stage: Stage::Instructions,
            route: format!("{}, {}", task.title(), if is_hot { "data in the cache" } else { "data in no cache" }),
            objective: Objective::Throughput,
            ways: variants.map(way).collect(),
            unusable: Vec::new(),
        }
    };
    tasks.map(question).collect()
}
