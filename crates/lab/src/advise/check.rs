//! Advice put to the test: all ways that can run here are measured at sizes that the records do not have, and what was
//! predicted is set against what is.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::Context;
use fastrand::Rng;

use super::answer::{self, Decided};
use super::case::{Case, Cases, Check, FORMAT, Outcome, SCHEMA};
use super::question::{self, Objective, Question, Stage};
use super::surveyed;
use crate::bench::{Chosen, Experiment, Lab, Options, skipped};
use crate::evidence::{Evidence, Run};
use crate::host::Host;
use crate::interrupt;
use crate::launcher::Side;
use crate::plan::Plan;
use crate::record::{Measurement, Record, Skipped, Surveyed};
use crate::run::measure;
use crate::suite::{broker, checksum, driver, layers, pingpong, stream};
use crate::survey::again::{Again, Samples};
use crate::unit::counted;

/// What is to be checked, and for how long.
#[derive(Default)]
pub struct Request {
    /// Seed of the order of the experiments.
    pub seed: u64,
    /// No experiment is begun later.
    pub limit: Option<Duration>,
    /// Endpoints that can be measured between again, and the name of their survey.
    pub again: Option<(String, Again)>,
    /// What cannot be checked, as is known before.
    pub skipped: Vec<Skipped>,
}

/// A check, and the record of what was measured for it.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The cases.
    pub check: Check,
    /// What was measured.
    pub record: Record,
}

/// Why nothing was checked.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The record is of a check that was begun otherwise.
    #[error(
        "{} has figures of another check ({what}), and those of two must not be mixed: go on as that was begun, or \
         name another file with --record",
        path.display()
    )]
    OtherCheck {
        /// The record.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// There is no library or no C compiler, or a record cannot be read or written.
    #[error(transparent)]
    Failed(#[from] anyhow::Error),
}

/// A question with the name of its record.
type Asked = (String, Question);

/// Measures what the records' questions can be asked about here, in an order that comes from the seed, and compares.
/// What [`Options::keep`] has of an earlier run of the same check is not measured again.
///
/// # Errors
/// There is no library, no C compiler, or the file to keep the record in has something else.
pub fn run(evidence: &Evidence, options: &Options, request: Request) -> Result<Checked, CheckError> {
    interrupt::watch().context("cannot watch for Ctrl-C")?;
    let Request { seed, limit, again, skipped } = request;
    let until = limit.map(|limit| Instant::now() + limit);
    let lab = Lab::new(options)?;
    let name = again.as_ref().map(|(name, _)| name.as_str());
    let survey = evidence.surveys.iter().find(|it| Some(it.name.as_str()) == name).map(|it| it.record.head.surveyed());
    let asked = asked(evidence, name);
    let questions: Vec<&Question> = asked.iter().map(|(_, question)| question).collect();
    let mut chosen = Chosen::default();
    let mut missing = skipped;
    missing.extend(unasked(&questions));
    add(&questions, &lab, &mut chosen, &mut missing);
    let again = again.map(|(_, again)| Rc::new(RefCell::new(again)));
    if let Some(again) = &again {
        add_endpoints(&questions, again, &mut chosen, &mut missing);
    }
    Rng::with_seed(seed).shuffle(&mut chosen.experiments);
    let before = options.keep.as_deref().map(|path| kept(path, options, survey.as_ref())).transpose()?.flatten();
    let mut record = before.unwrap_or_else(|| Record::begin(options.samples, options.quick));
    record.survey = survey.or(record.survey);
    (record.programs, record.skipped) = (chosen.versions, missing);
    measure_rest(&lab, chosen.experiments, until, options, &mut record)?;
    let lost = again.map(|again| again.borrow().lost()).unwrap_or_default();
    if !lost.is_empty() {
        note_lost(&mut record, lost, options.keep.is_some());
        options.keep.as_deref().map_or(Ok(()), |path| record.write_json(path))?;
    }
    let check = check(&asked, &record, seed);
    Ok(Checked { check, record })
}

fn check(asked: &[Asked], record: &Record, seed: u64) -> Check {
    let valid: Vec<&Measurement> = record.measurements.iter().filter(|it| it.invalid.is_none()).collect();
    let mut measured = question::of(&valid);
    measured.extend(surveyed::of_endpoints(asked.iter().map(|(_, question)| question), &valid));
    let records: BTreeSet<&String> = asked.iter().map(|(record, _)| record).collect();
    Check {
        format: FORMAT.to_string(),
        schema: SCHEMA,
        date: record.date.clone(),
        version: record.version.clone(),
        revision: record.revision.clone(),
        host: record.host.clone(),
        samples: record.samples,
        quick: record.quick,
        complete: record.complete,
        seed,
        records: records.into_iter().cloned().collect(),
        cases: compare(asked, &measured),
        skipped: record.skipped.clone(),
    }
}

/// The newest questions of each kind that can be measured here: those of hosts with the same processors that are not
/// known to be others, and those of the survey whose endpoints are there.
fn asked(evidence: &Evidence, survey: Option<&str>) -> Vec<Asked> {
    let here = Host::describe();
    let is_same =
        |host: &Host| host.processor == here.processor && host.processors == here.processors && host.can_be(&here);
    // All count as of this host, also those that do not know its identity: an older one's question would be asked
    // beside the same of a newer one otherwise.
    let of_here = |run: &Run| Run { record: Record { host: here.clone(), ..run.record.clone() }, ..run.clone() };
    let here = Evidence {
        runs: evidence.runs.iter().filter(|run| is_same(&run.record.host)).map(of_here).collect(),
        surveys: evidence.surveys.iter().filter(|it| Some(it.name.as_str()) == survey).cloned().collect(),
        checks: Vec::new(),
    };
    let newest = super::newest(&here).into_values().filter(|asked| asked.question.has_ways());
    newest.map(|asked| (asked.record.to_string(), asked.question)).collect()
}

/// What a record of an earlier run of this check has, if there is one; `survey` is that whose endpoints are there.
fn kept(path: &Path, options: &Options, survey: Option<&Surveyed>) -> Result<Option<Record>, CheckError> {
    if std::fs::metadata(path).map_or(true, |found| !found.is_file() || found.len() == 0) {
        return Ok(None);
    }
    let (before, now) = (Record::read_json(path)?, Record::begin(options.samples, options.quick));
    let what = another_check(&before, &now).or_else(|| another_survey(&before, survey?));
    what.map_or(Ok(Some(before)), |what| Err(CheckError::OtherCheck { path: path.into(), what }))
}

fn another_check(before: &Record, now: &Record) -> Option<String> {
    if !before.host.can_be(&now.host) {
        return Some("of another computer like this one".to_string());
    }
    let host = |host: &Host| {
        let processor = host.processor.as_deref().unwrap_or(&host.architecture);
        format!("{processor}, {}, {}", counted(host.processors as u32, "processor"), host.kernel)
    };
    let version = |it: &Record| format!("{} {}", it.version, it.revision.as_deref().unwrap_or_default());
    let aspects = [
        ("version", version(before), version(now)),
        ("number of samples", before.samples.to_string(), now.samples.to_string()),
        ("--quick", before.quick.to_string(), now.quick.to_string()),
        ("host", host(&before.host), host(&now.host)),
    ];
    let other = aspects.into_iter().find(|(_, before, now)| before != now);
    other.map(|(what, before, now)| format!("its {what} is {before}, not {now}"))
}

/// Figures between endpoints have the names and sizes of those between other endpoints that are called the same.
fn another_survey(before: &Record, now: &Surveyed) -> Option<String> {
    let has_any = before.measurements.iter().any(|it| it.suite == surveyed::SURVEY);
    if !has_any || before.survey.as_ref() == Some(now) {
        return None;
    }
    let of = before.survey.as_ref().map_or("one that it does not name".to_string(), Surveyed::to_string);
    Some(format!("its survey is {of}, not {now}"))
}

/// Measures what a record does not have yet.
fn measure_rest(
    lab: &Lab,
    mut experiments: Vec<(&'static str, Box<dyn Experiment>)>,
    until: Option<Instant>,
    options: &Options,
    record: &mut Record,
) -> anyhow::Result<()> {
    experiments.retain(|(suite, it)| !has(record, suite, it.as_ref()));
    measure(lab, experiments, &|_| true, until, options, record)
}

/// Whether a record has all figures of an experiment. One that is invalid says only why there is none, as when an
/// agent was lost.
fn has(record: &Record, suite: &str, experiment: &dyn Experiment) -> bool {
    let is_of = |it: &Measurement, plan: &Plan| {
        (&*it.suite, &it.group, &it.name, it.size) == (suite, &plan.group, &plan.name, plan.size)
    };
    let is_there = |plan: &Plan| record.measurements.iter().any(|it| it.invalid.is_none() && is_of(it, plan));
    experiment.plans().iter().all(is_there)
}

/// Says that agents were lost: their figures are invalid, and the same command measures them again if it keeps the
/// others.
fn note_lost(record: &mut Record, lost: Vec<(String, String)>, is_kept: bool) {
    record.complete = false;
    let rest = if is_kept { "the same command measures the rest" } else { "only a check with --record can go on" };
    record.skipped.extend(lost.into_iter().map(|(name, error)| {
        let reason = format!("its agent was lost ({error}); {rest}");
        skipped(&format!("endpoint {name}"), reason)
    }));
}

/// Stages of which no size can be held out, with the number of their routes.
fn unasked(questions: &[&Question]) -> Vec<Skipped> {
    let mut routes: BTreeMap<Stage, u32> = BTreeMap::new();
    for question in questions.iter().filter(|it| held_out(&it.sizes()).is_empty()) {
        *routes.entry(question.stage).or_default() += 1;
    }
    let why = "their records have no two sizes, between which one could be held out";
    routes
        .into_iter()
        .map(|(stage, count)| skipped(&format!("{}, {}", stage.name(), counted(count, "route")), why))
        .collect()
}

/// Adds experiments that measure, in turn, all ways of these questions at sizes between theirs.
fn add(questions: &[&Question], lab: &Lab, chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    let between = |stage: Stage, objective: Option<Objective>| {
        let of_stage = |it: &&&Question| {
            it.stage == stage && !it.is_surveyed() && objective.is_none_or(|objective| it.objective == objective)
        };
        let sizes: BTreeSet<u64> = questions.iter().filter(of_stage).flat_map(|it| held_out(&it.sizes())).collect();
        sizes.into_iter().collect::<Vec<u64>>()
    };
    pingpong::add_comparisons(lab, chosen, &between(Stage::Transport, Some(Objective::Latency)));
    stream::add_comparisons(lab, chosen, &between(Stage::Transport, Some(Objective::Throughput)));
    let sizes = broker::Comparisons {
        round_trips: between(Stage::Broker, Some(Objective::Latency)),
        streams: between(Stage::Broker, Some(Objective::Throughput)),
    };
    broker::add_comparisons(lab, chosen, missing, &sizes);
    layers::add_comparisons(chosen, &between(Stage::Layers, None));
    let sizes = driver::Comparisons {
        link: between(Stage::Link, None),
        completion: between(Stage::Completion, None),
        copies: between(Stage::Copies, None),
    };
    driver::add_comparisons(chosen, missing, &sizes);
    let sizes = checksum::Comparisons {
        instructions: between(Stage::Instructions, None),
        received: between(Stage::Checksum, Some(Objective::Throughput)),
        stages: between(Stage::Checksum, Some(Objective::Processor)),
    };
    checksum::add_comparisons(lab, chosen, missing, &sizes);
    // Suites compare all that they can; what nothing was predicted of is left out.
    let groups: BTreeSet<&str> = questions.iter().flat_map(|it| it.groups()).collect();
    let is_asked = |it: &dyn Experiment| it.plans().iter().any(|plan| groups.contains(plan.group.as_str()));
    chosen.experiments.retain(|(_, it)| is_asked(it.as_ref()));
}

/// Adds experiments between the endpoints of a survey: all pairs of a metric at a size take their samples in turn.
fn add_endpoints(questions: &[&Question], again: &Rc<RefCell<Again>>, chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    let mut keys = BTreeMap::new();
    let is_fast = |it: &&&Question| {
        let mut keys = it.ways.iter().filter_map(|way| way.surveyed.as_ref());
        keys.any(|key| key.path == Side::Underpass)
    };
    // What the library of another version does was not predicted.
    let other = again.borrow().other_version();
    let is_left_out = |it: &&&Question| other.is_some() && is_fast(it);
    for question in questions.iter().filter(|it| it.is_surveyed() && !is_left_out(it)) {
        for (size, way) in
            held_out(&question.sizes()).into_iter().flat_map(|size| question.ways.iter().map(move |way| (size, way)))
        {
            if let Some(key) = &way.surveyed {
                let key = crate::survey::record::Key { size, ..key.clone() };
                keys.entry((key.metric, size)).or_insert_with(BTreeSet::new).insert(key);
            }
        }
    }
    if let Some(why) = other.filter(|_| questions.iter().any(|it| is_fast(&it))) {
        missing.push(skipped("figures of the survey under Underpass", why));
    }
    for keys in keys.into_values() {
        chosen.add(surveyed::SURVEY, Samples::new(again, keys.into_iter().collect()));
    }
}

/// A size between each two neighbours, the same factor from both, in multiples of 8.
pub(super) fn held_out(sizes: &[u64]) -> Vec<u64> {
    let middle = |pair: &[u64]| (((pair[0] as f64 * pair[1] as f64).sqrt() / 8.0).round() * 8.0) as u64;
    let between = sizes.windows(2).map(|pair| (middle(pair), pair[0], pair[1]));
    between.filter(|(size, low, high)| (low + 1..*high).contains(size)).map(|(size, ..)| size).collect()
}

/// Sets what `asked` predicts against what `measured` says, at sizes that `asked` does not have.
pub fn compare(asked: &[Asked], measured: &[Question]) -> Cases {
    let key = |it: &Question| (it.stage, it.route.clone(), it.objective);
    let mut cases = Vec::new();
    for (record, question) in asked {
        let Some(found) = measured.iter().find(|it| key(it) == key(question)) else { continue };
        let reaches = answer::reaches(question, &question.sizes());
        for size in found.sizes().into_iter().filter(|size| !question.sizes().contains(size)) {
            let decided = answer::decide(question, &reaches, size);
            cases.extend(decided.and_then(|decided| case(record, question, found, &decided)));
        }
    }
    Cases(cases)
}

fn case(record: &str, question: &Question, found: &Question, decided: &Decided) -> Option<Case> {
    let cost = |name: &str| {
        let way = found.ways.iter().find(|way| way.name == name)?;
        way.curve.predict(decided.size)
    };
    let default = &question.ways.first()?.name;
    let base = cost(default)?;
    let others = decided.ways.iter().filter_map(|way| {
        Some(Outcome { name: way.name.clone(), predicted: way.times, measured: base / cost(&way.name)? })
    });
    let first = Outcome { name: default.clone(), predicted: 1.0, measured: 1.0 };
    let ways: Vec<Outcome> = std::iter::once(first).chain(others).collect();
    // A way that cannot run here cannot be judged here.
    let is_there = ways.len() > 1 && ways.iter().any(|way| way.name == decided.choice);
    is_there.then(|| Case {
        stage: question.stage.name().to_string(),
        route: question.route.clone(),
        objective: question.objective.name().to_string(),
        record: record.to_string(),
        size: decided.size,
        choice: decided.choice.clone(),
        verdict: decided.verdict.name().to_string(),
        ways,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::Survey;
    use crate::launcher::{Reading, Session};
    use crate::survey::record::Head;
    use crate::survey::remote::AgentError;

    /// Two figures, with what a sample of them comes to; `None` if it fails as a whole.
    struct Two(Option<[Reading; 2]>);

    impl Experiment for Two {
        fn sides(&self) -> &'static [Side] {
            &[Side::Underpass]
        }

        fn plans(&self) -> Vec<Plan> {
            ["a", "b"].map(|name| Plan::duration("group", name).of_size(64)).into()
        }

        fn sample(&mut self, _: &Lab, _: &Session) -> anyhow::Result<Vec<Reading>> {
            self.0.clone().map(Vec::from).context("an agent was lost")
        }
    }

    fn record(of_b: Option<&str>) -> Record {
        let mut record = Record { complete: true, ..Record::begin(1, false) };
        for (plan, invalid) in Two(None).plans().iter().zip([None, of_b]) {
            let invalid = invalid.map(str::to_string);
            record.measurements.push(Measurement::conclude("survey", plan, vec![], vec![1.0], None, invalid));
        }
        record
    }

    #[test]
    fn what_is_invalid_is_measured_again() {
        let two = Two(None);
        assert!(has(&record(None), "survey", &two) && !has(&record(None), "layers", &two));
        assert!(!has(&record(Some("b was lost")), "survey", &two), "an invalid figure is none");
    }

    /// A figure of an experiment that has to be measured again may be valid, and all that there ever will be of it.
    #[test]
    fn what_is_valid_stays_until_it_is_measured_again() {
        let options = Options { samples: 1, ..Options::new("/proc/self/exe") };
        let lab = Lab::new(&options).unwrap();
        let after = |readings: Option<[Reading; 2]>, until: Option<Instant>| {
            let (mut record, mut chosen) = (record(Some("b was lost")), Chosen::default());
            chosen.add("survey", Two(readings));
            measure_rest(&lab, chosen.experiments, until, &options, &mut record).unwrap();
            assert_eq!(record.measurements.len(), 2, "none is there twice");
            let figures = record.measurements.iter().map(|it| (it.name.clone(), it.underpass.median));
            figures.collect::<BTreeMap<_, _>>()
        };
        let is = |a: f64, b: Option<f64>| BTreeMap::from([("a".to_string(), Some(a)), ("b".to_string(), b)]);
        assert_eq!(after(Some([Ok(7.0), Ok(8.0)]), Some(Instant::now())), is(1.0, None), "there was no time");
        assert_eq!(after(None, None), is(1.0, None), "it failed");
        assert_eq!(after(Some([Err("not fast".to_string()), Ok(8.0)]), None), is(1.0, Some(8.0)));
        assert_eq!(after(Some([Ok(7.0), Err("not fast".to_string())]), None), is(7.0, None));
        assert_eq!(after(Some([Ok(7.0), Ok(8.0)]), None), is(7.0, Some(8.0)));
    }

    /// The library of another version may do something else than what was surveyed.
    #[test]
    fn a_survey_under_another_version_is_not_measured_again() {
        let mut survey = crate::evidence::tests::survey();
        for at in [0, 1] {
            let mut fast = survey["series"][at].clone();
            fast["path"] = "underpass".into();
            survey["series"].as_array_mut().unwrap().push(fast);
        }
        let survey = Survey::parse("s".to_string(), survey.to_string().as_bytes()).unwrap();
        let questions = surveyed::of_survey(&survey);
        let questions: Vec<&Question> = questions.iter().collect();
        let added = |version: &str| {
            let (version, head) = (version.to_string(), survey.record.head.clone());
            let head = Head { version, revision: None, endpoints: Vec::new(), ..head };
            let again = Again::meet(&head, &[], Box::new(|_| Err(AgentError::Confused))).unwrap();
            let (mut chosen, mut missing) = (Chosen::default(), Vec::new());
            add_endpoints(&questions, &Rc::new(RefCell::new(again)), &mut chosen, &mut missing);
            (chosen.experiments.iter().map(|(_, it)| it.plans().len()).sum::<usize>(), missing)
        };
        assert_eq!(added(env!("CARGO_PKG_VERSION")), (2, vec![]), "on both paths, at one size");
        let (count, missing) = added("0.0.9");
        assert_eq!((count, missing.len()), (0, 1), "{missing:?}");
        let reason = &missing[0].reason;
        assert!(reason.starts_with("it is by Underpass 0.0.9, and this is "), "{missing:?}");
        assert!(reason.ends_with("; survey again"), "{missing:?}");
    }

    /// There are two computers like this one, of which a survey knows the other, so that nobody knows of which an older
    /// run is.
    #[test]
    fn of_the_runs_of_this_host_the_newest_is_asked_alone() {
        let here = Host::describe();
        let run = |name: &str, date: &str, identity: Option<String>| {
            let mut run = Run::new(name.to_string(), Record::begin(5, false)).unwrap();
            (run.record.date, run.record.host.identity) = (date.to_string(), identity);
            let group = layers::curve(1, layers::Work::Memcpy, layers::Scheduler::InLine);
            let other = layers::curve(1, layers::Work::Memcpy, layers::Scheduler::Threads);
            for group in [group, other] {
                let plan = Plan::duration(&group, group.clone()).of_size(64);
                let measurement = Measurement::conclude("layers", &plan, vec![], vec![1.0; 5], None, None);
                run.record.measurements.push(measurement);
            }
            run
        };
        let old = run("old", "2026-11-01T00:00:00Z", None);
        let new = run("new", "2026-11-02T00:00:00Z", here.identity.clone().or(Some("one".to_string())));
        let mut survey = crate::evidence::tests::survey();
        survey["endpoints"][0]["host"]["identity"] = "other".into();
        let survey = Survey::parse("s".to_string(), survey.to_string().as_bytes()).unwrap();
        let evidence = Evidence { runs: vec![old, new], surveys: vec![survey], checks: Vec::new() };
        let asked: Vec<String> = asked(&evidence, Some("s")).into_iter().map(|(record, _)| record).collect();
        assert_eq!(asked, ["new"]);
    }

    #[test]
    fn a_check_does_not_go_on_with_figures_of_another_computer_like_this_one() {
        let folder = tempfile::tempdir().unwrap();
        let (path, options) = (folder.path().join("checked.json"), Options::new("/proc/self/exe"));
        let mut record = Record::begin(options.samples, options.quick);
        record.write_json(&path).unwrap();
        assert!(kept(&path, &options, None).unwrap().is_some());
        // A host without a machine-id can be any.
        if record.host.identity.is_some() {
            record.host.identity = Some("another".to_string());
            record.write_json(&path).unwrap();
            let error = kept(&path, &options, None).unwrap_err().to_string();
            assert!(error.contains("another check (of another computer like this one)"), "{error}");
        }
    }

    /// All surveys of one computer call their endpoints the same, and so are the figures between these called.
    #[test]
    fn a_check_does_not_go_on_with_figures_of_another_survey() {
        let folder = tempfile::tempdir().unwrap();
        let (path, options) = (folder.path().join("checked.json"), Options::new("/proc/self/exe"));
        let survey = Survey::parse("s".to_string(), crate::evidence::tests::survey().to_string().as_bytes()).unwrap();
        let later = Head { date: "2026-11-28T00:00:00Z".to_string(), ..survey.record.head.clone() };
        let [first, other] = [survey.record.head, later].map(|head| head.surveyed());
        let with = |figures: Vec<Measurement>, survey: Option<&Surveyed>| {
            let mut it = Record::begin(options.samples, options.quick);
            (it.measurements, it.survey) = (figures, survey.cloned());
            it.write_json(&path).unwrap();
        };
        let figures = record(None).measurements;
        with(figures.clone(), Some(&first));
        assert_eq!(kept(&path, &options, Some(&first)).unwrap().unwrap().survey.as_ref(), Some(&first));
        assert!(kept(&path, &options, None).unwrap().is_some(), "none of them is asked for");
        let refused = || kept(&path, &options, Some(&other)).unwrap_err().to_string();
        let error = refused();
        assert!(
            error.contains("(its survey is of 2026-11-27T00:00:00Z between 2 endpoints, the first host on "),
            "{error}"
        );
        assert!(error.contains(", not of 2026-11-28T00:00:00Z between ") && error.contains("with --record"), "{error}");
        with(figures, None);
        assert!(refused().contains("(its survey is one that it does not name, not of "), "{}", refused());
        with(Vec::new(), Some(&first));
        assert!(kept(&path, &options, Some(&other)).unwrap().is_some(), "nothing is there to be mixed with");
    }

    #[test]
    fn a_check_that_lost_an_agent_is_not_complete() {
        let told = [(true, "the same command measures the rest"), (false, "only a check with --record can go on")];
        for (is_kept, rest) in told {
            let mut record = record(None);
            let lost = vec![("b".to_string(), "the other end closed the connection".to_string())];
            note_lost(&mut record, lost, is_kept);
            assert!(!record.complete && record.skipped[0].name == "endpoint b", "{:?}", record.skipped);
            assert!(record.skipped[0].reason.contains(rest), "{:?}", record.skipped);
        }
    }
}
