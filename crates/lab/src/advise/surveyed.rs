//! What a survey lets one choose: the path and the endpoints of a route, and who encrypts.

use std::collections::BTreeMap;

use super::cost::Curve;
use super::question::{Choice, Objective, Question, Source, Stage, UNDERPASS, answerable};
use crate::evidence::Survey;
use crate::launcher::Side;
use crate::record::Measurement;
use crate::survey::record::{Endpoint, Key, Kind, Load, Metric, Series, SurveyRecord, word};
use crate::unit::Unit;

/// The suite of measurements between endpoints.
pub const SURVEY: &str = "survey";

/// The questions of a survey: from which and to which endpoint of a system a stream or a message best goes, and which
/// endpoint best encrypts.
pub fn of_survey(survey: &Survey) -> Vec<Question> {
    let survey = &survey.record;
    let all = [transports(survey), endpoints(survey), encryption(survey)];
    answerable(all.into_iter().flatten().collect())
}

/// Series of one path, of one flow and with nothing beside, by sender, receiver and metric.
type Plain<'a> = BTreeMap<(&'a str, &'a str, Metric), Vec<&'a Series>>;

fn plain(survey: &SurveyRecord, path: Side) -> Plain<'_> {
    let mut all = Plain::new();
    let is_plain = |key: &Key| key.path == path && key.flows == 1 && key.load == Load::Idle && key.via.is_none();
    for series in survey.series.iter().filter(|it| is_plain(&it.key)) {
        all.entry((&series.key.sender, &series.key.receiver, series.key.metric)).or_default().push(series);
    }
    all
}

/// Kernel TCP or shared memory, where both were measured.
fn transports(survey: &SurveyRecord) -> Vec<Question> {
    let [kernel, fast] = [Side::Kernel, Side::Underpass].map(|path| plain(survey, path));
    let question = |key: &(&str, &str, Metric)| {
        let way = |name: &str, all: &Plain| of_series(name, all.get(key).into_iter().flatten().copied());
        let (sender, receiver, metric) = *key;
        let pair = if sender == receiver { format!("within {sender}") } else { format!("from {sender} to {receiver}") };
        Question {
            stage: Stage::Transport,
            route: format!("{} {pair}", word(metric)),
            objective: if metric == Metric::Latency { Objective::Latency } else { Objective::Throughput },
            ways: vec![way("kernel TCP", &kernel), way("shared memory", &fast)],
            unusable: Vec::new(),
        }
    };
    fast.keys().map(question).collect()
}

fn endpoints(survey: &SurveyRecord) -> Vec<Question> {
    let mut all = Vec::new();
    let kernel = plain(survey, Side::Kernel);
    let mut systems: BTreeMap<&str, Vec<&Endpoint>> = BTreeMap::new();
    survey.head.endpoints.iter().for_each(|it| systems.entry(&it.system).or_default().push(it));
    // The processor of the computer is the default.
    systems.values_mut().for_each(|inside| inside.sort_by_key(|it| it.kind != Kind::Host));
    for other in &survey.head.endpoints {
        for (system, inside) in systems.iter().filter(|(system, _)| **system != other.system) {
            for (is_sent, metric) in
                [true, false].into_iter().flat_map(|sent| [Metric::Throughput, Metric::Latency].map(|it| (sent, it)))
            {
                let way = |endpoint: &&Endpoint| {
                    let [from, to] = if is_sent { [other, endpoint] } else { [endpoint, other] };
                    let those = kernel.get(&(from.name.as_str(), to.name.as_str(), metric));
                    of_series(&endpoint.name, those.into_iter().flatten().copied())
                };
                let (from, to) = if is_sent { (&*other.name, *system) } else { (*system, &*other.name) };
                let objective = if metric == Metric::Latency { Objective::Latency } else { Objective::Throughput };
                let route = format!("{} from {from} to {to}, kernel TCP", word(metric));
                let (stage, ways) = (Stage::Endpoint, inside.iter().map(way).collect());
                all.push(Question { stage, route, objective, ways, unusable: Vec::new() });
            }
        }
    }
    all
}

/// Series by the endpoint that encrypts; `None` is the sender.
type Vias<'a> = BTreeMap<Option<&'a str>, Vec<&'a Series>>;

/// The sender itself is the default, and each endpoint to which it offloads stands to choose.
fn encryption(survey: &SurveyRecord) -> Vec<Question> {
    let mut pairs: BTreeMap<(&str, &str), Vias> = BTreeMap::new();
    for series in survey.series.iter().filter(|it| it.key.metric == Metric::Tls) {
        let pair = pairs.entry((&series.key.sender, &series.key.receiver)).or_default();
        pair.entry(series.key.via.as_deref()).or_default().push(series);
    }
    // `None` sorts first.
    pairs.retain(|_, vias| vias.contains_key(&None));
    let question = |((sender, receiver), vias): ((&str, &str), Vias)| Question {
        stage: Stage::Encryption,
        route: format!("a file over TLS from {sender} to {receiver}"),
        objective: Objective::Latency,
        ways: vias.into_iter().map(|(via, all)| of_series(via.unwrap_or(sender), all.into_iter())).collect(),
        unusable: Vec::new(),
    };
    pairs.into_iter().map(question).collect()
}

fn of_series<'a>(name: &str, all: impl Iterator<Item = &'a Series>) -> Choice {
    let (mut curve, mut surveyed) = (Curve::default(), None);
    for series in all {
        let is_rate = series.unit == Unit::BytesPerSecond;
        let cost = |value: f64| if is_rate { series.key.size as f64 * 1e9 / value } else { value };
        curve.add(series.key.size, series.values().into_iter().map(cost).collect());
        surveyed.get_or_insert(&series.key);
    }
    let group = surveyed.map(Key::curve).unwrap_or_default();
    Choice { surveyed: surveyed.cloned(), ..Choice::new(name, group, curve) }
}

/// The questions among these that are about endpoints, with what these measurements say of their ways.
pub fn of_endpoints<'a>(asked: impl Iterator<Item = &'a Question>, measurements: &[&Measurement]) -> Vec<Question> {
    let source = Source(measurements);
    let again = |question: &Question| {
        let way = |way: &Choice| source.choice(SURVEY, &way.name, &way.group, UNDERPASS);
        Question { ways: question.ways.iter().map(way).collect(), ..question.clone() }
    };
    answerable(asked.filter(|it| it.is_surveyed()).map(again).collect())
}
