//! Advice: from records to a placement of protocol work, with what it gains and how sure that is.
//!
//! [`question`] finds in runs of suites what there is to choose, [`surveyed`] in surveys; [`cost`] predicts what a
//! message costs between measured sizes, [`answer`] compares, and [`placement`] writes it down: as TOML for programs,
//! and as text that names the figures for people. [`check`] measures how far off that is, in [`case`]s. To leave a
//! piece of work where it is, and not to know, are answers. What was not measured is named, not guessed.

pub mod answer;
pub mod case;
pub mod check;
pub mod cost;
pub mod placement;
pub mod question;
pub mod surveyed;
pub mod verdict;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use crate::evidence::{Evidence, Run, Survey};
use crate::host::Host;
use crate::record::{Measurement, Record};
use crate::suite::checksum::table::Way;
use crate::survey::record::{Endpoint, Head};
use crate::unit::{counted, size};
use answer::{Answer, FEWEST};
use question::{Objective, Question, Stage};

/// All that records say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Advice {
    /// By stage, then by host.
    pub answers: Vec<Sourced>,
    /// What was not measured.
    pub missing: Vec<Missing>,
    /// Records all of whose questions another one of the same host answers, which is newer, more complete or of more
    /// samples.
    pub passed_over: Vec<String>,
    /// Records in which there is nothing to choose.
    pub silent: Vec<String>,
    /// Records of what was ended before all was measured.
    pub unfinished: Vec<String>,
    /// Records of quick runs, whose figures are not for quoting.
    pub quick: Vec<String>,
}

/// An answer, and where it comes from.
#[derive(Clone, Debug, PartialEq)]
pub struct Sourced {
    /// The record's name.
    pub record: String,
    /// The host that it is of.
    pub host: String,
    /// What tells its computer from others like it, or those of its endpoints, if the record says.
    pub identity: Option<String>,
    /// Whether the records know several computers like it.
    pub is_one_of_several: bool,
    /// The answer.
    pub answer: Answer,
}

/// A decision that cannot be taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Missing {
    /// Of which work.
    pub stage: Stage,
    /// What has not been measured.
    pub what: String,
    /// What measures it.
    pub remedy: String,
}

/// What a question is about, without the record that it comes from.
type Key = (String, Stage, String, Objective);

/// Advice from these records. Where two records of one host answer the same, the newer one counts; one that is not
/// complete, of a quick run or of too few samples to be sure, only where no other answers.
pub fn of(evidence: &Evidence) -> Advice {
    let newest = newest(evidence);
    let sourced = |it: &Asked| {
        let Origin { host, identity, is_one_of_several, .. } = it.origin.clone();
        let record = it.record.to_string();
        Some(Sourced { record, host, identity, is_one_of_several, answer: answer::of(&it.question)? })
    };
    let mut answers: Vec<Sourced> = newest.values().filter_map(sourced).collect();
    answers.sort_by_key(|it| it.answer.stage);
    let asking: BTreeSet<&str> = asked(evidence).iter().map(|it| it.record).collect();
    let heard: BTreeSet<&str> = newest.values().map(|it| it.record).collect();
    let named = |is_it: &dyn Fn(&str) -> bool| -> Vec<String> {
        evidence.names().filter(|name| is_it(name)).cloned().collect()
    };
    let silent = named(&|name| !asking.contains(name));
    let passed_over = named(&|name| asking.contains(name) && !heard.contains(name));
    let such = |is_run: fn(&Run) -> bool, is_survey: fn(&Survey) -> bool| -> Vec<String> {
        let runs = evidence.runs.iter().filter(|it| is_run(it)).map(|it| &it.name);
        runs.chain(evidence.surveys.iter().filter(|it| is_survey(it)).map(|it| &it.name)).cloned().collect()
    };
    let (gaps, ranked) = (missing(&newest), ranked(evidence));
    let missing = once(gaps.into_iter().chain(ranked.values().flat_map(|all| displaced(all))));
    let unfinished = such(|it| !it.record.complete, |it| !it.record.complete);
    let quick = such(|it| it.record.quick, |it| it.record.head.plan.quick);
    Advice { missing, answers, passed_over, silent, unfinished, quick }
}

/// Each in its place once: work that is weighed by two objectives lacks the same of both.
fn once(all: impl Iterator<Item = Missing>) -> Vec<Missing> {
    let mut seen = BTreeSet::new();
    all.filter(|it| seen.insert((it.stage, it.what.clone(), it.remedy.clone()))).collect()
}

/// Of each kind the newest question of a record that is complete, not of a quick run, and of enough samples to be sure;
/// the newest of the others only where there is none.
fn newest(evidence: &Evidence) -> BTreeMap<Key, Asked<'_>> {
    ranked(evidence).into_iter().filter_map(|(key, all)| Some((key, all.into_iter().next()?))).collect()
}

/// All questions of each kind, that which counts first.
fn ranked<'a>(evidence: &'a Evidence) -> BTreeMap<Key, Vec<Asked<'a>>> {
    let mut ranked: BTreeMap<Key, Vec<Asked>> = BTreeMap::new();
    for asked in asked(evidence) {
        let question = &asked.question;
        let key = (asked.origin.site.clone(), question.stage, question.route.clone(), question.objective);
        ranked.entry(key).or_default().push(asked);
    }
    // What cannot be answered takes no answer's place: there are no ways, or no size that all of them have.
    let order = |it: &Asked<'a>| Reverse((!it.question.sizes().is_empty(), it.question.has_ways(), it.rank));
    ranked.values_mut().for_each(|all| all.sort_by_cached_key(order));
    ranked
}

/// All questions that records have.
fn asked(evidence: &Evidence) -> Vec<Asked<'_>> {
    let computers = Computers::of(evidence);
    let runs = evidence.runs.iter().flat_map(|run| {
        let origin = Origin::of_run(run, &computers);
        let (record, rank) = (&*run.name, Rank::of_run(run));
        questions(run).into_iter().map(move |question| Asked { record, rank, origin: origin.clone(), question })
    });
    let surveys = evidence.surveys.iter().flat_map(|survey| {
        let origin = Origin::of_survey(survey, &computers);
        let (record, rank) = (&*survey.name, Rank::of_survey(survey));
        let questions = surveyed::of_survey(survey).into_iter();
        questions.map(move |question| Asked { record, rank, origin: origin.clone(), question })
    });
    runs.chain(surveys).collect()
}

/// The identities of computers that are alike.
struct Computers<'a>(BTreeMap<String, BTreeSet<&'a str>>);

impl<'a> Computers<'a> {
    /// Those that the records know.
    fn of(evidence: &'a Evidence) -> Computers<'a> {
        let of_surveys = evidence.surveys.iter().flat_map(|it| &it.record.head.endpoints).map(|it| &it.host);
        let mut computers = Computers(BTreeMap::new());
        for host in evidence.runs.iter().map(|it| &it.record.host).chain(of_surveys) {
            computers.0.entry(host.machine()).or_default().extend(host.identity.as_deref());
        }
        computers
    }

    /// What all descriptions of one computer have in common. One without an identity, as of an older record, is of the
    /// computer that is the only known one of its kind; if there are several, nobody knows of which.
    fn name(&self, host: &Host) -> String {
        let machine = host.machine();
        let only = self.0.get(&machine).filter(|known| known.len() == 1).and_then(|known| known.first().copied());
        format!("{machine}, {:?}", host.identity.as_deref().or(only))
    }

    /// Whether others like this one are known.
    fn has_several(&self, host: &Host) -> bool {
        self.0.get(&host.machine()).is_some_and(|known| known.len() > 1)
    }
}

/// Where a record was made.
#[derive(Clone)]
struct Origin {
    /// What another record must be of, too, to take this one's place.
    site: String,
    host: String,
    identity: Option<String>,
    is_one_of_several: bool,
}

impl Origin {
    fn of_run(run: &Run, computers: &Computers) -> Origin {
        let host = &run.record.host;
        let (site, identity, is_one_of_several) =
            (computers.name(host), host.identity.clone(), computers.has_several(host));
        Origin { site, host: host.to_string(), identity, is_one_of_several }
    }

    fn of_survey(survey: &Survey, computers: &Computers) -> Origin {
        let hosts = || survey.record.head.endpoints.iter().map(|it| &it.host);
        let identities: BTreeSet<&str> = hosts().filter_map(|it| it.identity.as_deref()).collect();
        Origin {
            site: site(survey, computers),
            host: endpoints(survey),
            identity: (!identities.is_empty()).then(|| identities.into_iter().collect::<Vec<_>>().join(", ")),
            is_one_of_several: hosts().any(|host| computers.has_several(host)),
        }
    }
}

/// A question, and the record that it comes from.
struct Asked<'a> {
    record: &'a str,
    rank: Rank<'a>,
    origin: Origin,
    question: Question,
}

/// Which of several records counts: the highest. The first that differs decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank<'a> {
    /// It is complete, and its figures are for quoting.
    is_full: bool,
    /// It has enough samples to be sure of anything.
    is_sure: bool,
    date: &'a str,
}

impl Rank<'_> {
    /// That of a run.
    pub fn of_run(run: &Run) -> Rank<'_> {
        let Record { complete, quick, samples, date, .. } = &run.record;
        Rank { is_full: *complete && !quick, is_sure: *samples >= FEWEST, date }
    }

    /// That of a survey.
    pub fn of_survey(survey: &Survey) -> Rank<'_> {
        let Head { plan, date, .. } = &survey.record.head;
        Rank { is_full: survey.record.complete && !plan.quick, is_sure: plan.samples >= FEWEST, date }
    }
}

/// What there is to choose in a record.
pub fn questions(run: &Run) -> Vec<Question> {
    let valid: Vec<&Measurement> = run.record.measurements.iter().filter(|it| it.invalid.is_none()).collect();
    question::of(&valid)
}

fn endpoints(survey: &Survey) -> String {
    let all = &survey.record.head.endpoints;
    let names: Vec<String> = all.iter().map(Endpoint::label).collect();
    let processors = all.iter().map(|it| it.host.processor.as_deref().unwrap_or(&it.host.architecture));
    let processors: BTreeSet<&str> = processors.collect();
    format!("endpoints {} on {}", names.join(", "), processors.into_iter().collect::<Vec<_>>().join(" and "))
}

/// Endpoints of one name may be those of another place, as those of every `survey --local`, or be emulated in another
/// way.
fn site(survey: &Survey, computers: &Computers) -> String {
    let one = |it: &Endpoint| format!("{:?}", (&it.name, it.kind, &it.system, &it.emulation, computers.name(&it.host)));
    format!("endpoints {}", survey.record.head.endpoints.iter().map(one).collect::<Vec<_>>().join(", "))
}

/// What the record that counts for a question lacks and another has, as after a run with `--only`: figures of two
/// records are not compared with each other.
fn displaced(all: &[Asked]) -> Vec<Missing> {
    let Some((counts, others)) = all.split_first() else { return Vec::new() };
    let question = &counts.question;
    let (mut seen, mut displaced) = (BTreeSet::new(), Vec::new());
    for other in others.iter().filter(|it| it.rank.is_full) {
        let mut more = lacks(question, &other.question);
        more.retain(|it| seen.insert(it.clone()));
        if !more.is_empty() {
            let Question { stage, route, .. } = question;
            let (more, has, lacks) = (more.join(", "), other.record, counts.record);
            displaced.push(Missing {
                stage: *stage,
                what: format!("{more} of {route}: {has} has that, and {lacks}, which counts, does not"),
                remedy: format!("{}, all of it; or leave {lacks} out", stage.remedy()),
            });
        }
    }
    displaced
}

/// The ways of another question about the same that a question lacks, and the sizes of which it says nothing.
fn lacks(question: &Question, other: &Question) -> Vec<String> {
    let has = |way: &&question::Choice| question.ways.iter().any(|it| it.name == way.name);
    let ways = other.ways.iter().filter(|way| !has(way)).map(|way| way.name.clone());
    // Between three sizes or more the others are predicted.
    let own = question.sizes();
    let range = own.first().zip(own.last()).filter(|_| own.len() > 2);
    let is_told = |size: &u64| own.contains(size) || range.is_some_and(|(low, high)| (low..=high).contains(&size));
    let sizes = other.sizes().into_iter().filter(|bytes| *bytes > 0 && !is_told(bytes)).map(size);
    ways.chain(sizes).collect()
}

fn missing(asked: &BTreeMap<Key, Asked>) -> Vec<Missing> {
    let of_stage = |stage| asked.values().map(|it| &it.question).filter(move |it| it.stage == stage);
    let mut missing: Vec<Missing> = Vec::new();
    for stage in Stage::ALL {
        if of_stage(stage).next().is_none() {
            let what = "two ways to do it, measured in one record".to_string();
            missing.push(Missing { stage, what, remedy: stage.remedy().to_string() });
        }
    }
    let has_gpu = |it: &Question| it.ways.iter().chain(&it.unusable).any(|way| way.name.starts_with("GPU"));
    let mut receivers = of_stage(Stage::Checksum).peekable();
    if receivers.peek().is_some() && !receivers.any(has_gpu) {
        let [one, other] = Way::GPU.map(Way::name);
        missing.push(Missing {
            stage: Stage::Checksum,
            what: format!("a GPU ({one}, {other})"),
            remedy: "underpass bench checksum --gpu, as root, on a host with a GPU by NVIDIA".to_string(),
        });
    }
    for Asked { record, question, .. } in asked.values() {
        let sizes = question.sizes();
        let samples = |way: &question::Choice| sizes.iter().filter_map(|size| way.curve.fewest(*size)).min();
        let fewest = question.ways.iter().filter_map(samples).min();
        if question.has_ways() && sizes.is_empty() {
            let ways: Vec<&str> = question.ways.iter().map(|way| way.name.as_str()).collect();
            missing.push(Missing {
                stage: question.stage,
                what: format!("a size of {} at which {record} has all of {}", question.route, ways.join(", ")),
                remedy: question.stage.remedy().to_string(),
            });
        }
        let unusable = question.unusable.iter().map(|way| (way, "; no size of it can be used, so it is no way"));
        let refused = question.ways.iter().filter(|way| !way.curve.refused().is_empty()).map(|way| (way, ""));
        for (way, and) in refused.chain(unusable) {
            let all = way.curve.refused().iter().filter(|bytes| **bytes > 0).map(|bytes| size(*bytes));
            let all = all.collect::<Vec<_>>().join(", ");
            let at = if all.is_empty() { all } else { format!(", at {all}") };
            let Question { stage, route, .. } = question;
            let what = format!("costs above 0 of {route}, {}{at}: {record} has a sample that is none{and}", way.name);
            missing.push(Missing { stage: *stage, what, remedy: stage.remedy().to_string() });
        }
        if let Some(fewest) = fewest.filter(|fewest| *fewest < FEWEST) {
            let have = counted(fewest as u32, "sample");
            missing.push(Missing {
                stage: question.stage,
                what: format!("{FEWEST} samples, to be sure, of {}; {record} has {have}", question.route),
                remedy: if question.is_surveyed() {
                    let words = "underpass survey, with samples = 5 or more under [plan]; with --local without --quick";
                    words.to_string()
                } else {
                    // Each suite takes as many by itself, or more.
                    format!("{}, without --quick and --samples", question.stage.remedy())
                },
            });
        }
    }
    missing
}

#[cfg(test)]
mod tests;
