use super::answer::{Decided, decide, reaches};
use super::placement::Placement;
use super::question::Choice;
use super::verdict::Verdict;
use super::*;
use crate::plan::Plan;
use crate::record::Record;
use crate::suite::layers::{Scheduler, Work, curve};
use crate::unit::Unit;

const SIZES: [u64; 4] = [1 << 10, 1 << 12, 1 << 14, 1 << 16];

/// One layer in line and by a thread: rates by size, each a sample.
fn run(name: &str, in_line: [&[f64]; 4], threads: [&[f64]; 4]) -> Run {
    let mut record = Record { complete: true, ..Record::begin(2, false) };
    for (scheduler, rates) in [(Scheduler::InLine, in_line), (Scheduler::Threads, threads)] {
        let group = curve(1, Work::Memcpy, scheduler);
        for (size, samples) in SIZES.into_iter().zip(rates) {
            let plan = Plan::rate(&group, format!("{group} of {size}"), Unit::BytesPerSecond).of_size(size);
            record.measurements.push(Measurement::conclude("layers", &plan, vec![], samples.to_vec(), None, None));
        }
    }
    Run::new(name.to_string(), record).unwrap()
}

const LEVEL: [&[f64]; 4] = [&[1e9, 1.01e9, 0.99e9, 1.005e9, 0.995e9]; 4];

fn advice<const N: usize>(runs: [Run; N]) -> Advice {
    of(&Evidence { runs: runs.into(), ..Evidence::default() })
}

fn layers(advice: &Advice) -> &Answer {
    &advice.answers.iter().find(|it| it.answer.stage == Stage::Layers).unwrap().answer
}

fn gain(decided: &Decided) -> f64 {
    decided.chosen().map_or(1.0, |way| way.times)
}

#[test]
fn what_is_surely_better_is_chosen_where_it_is() {
    let faster: &[f64] = &[2e9, 2.02e9, 1.98e9, 2.01e9, 1.99e9];
    let slower: &[f64] = &[0.5e9, 0.51e9, 0.49e9, 0.505e9, 0.495e9];
    let advice = advice([run("one", LEVEL, [slower, slower, faster, faster])]);
    let answer = layers(&advice);
    let ranges: Vec<(&str, Verdict)> =
        answer.ranges.iter().map(|it| (it.decided.choice.as_str(), it.decided.verdict)).collect();
    assert_eq!(ranges.first(), Some(&("in line", Verdict::NoOffload)));
    assert_eq!(ranges.last(), Some(&("thread", Verdict::Better)));
    let (first, last) = (&answer.ranges[0], &answer.ranges[ranges.len() - 1]);
    assert_eq!((first.from, last.to), (Some(SIZES[0]), Some(SIZES[3])));
    assert!((gain(&last.decided) - 2.0).abs() < 0.01, "{:?}", last.decided);
    let text = advice.to_string();
    assert!(text.contains("thread. 2.00 times the throughput (1."), "{text}");
    let [in_line, threads] = Scheduler::ALL.map(|scheduler| curve(1, Work::Memcpy, scheduler));
    assert!(text.contains(&format!("record one; rows {in_line:?}, {threads:?}\n")), "both were compared: {text}");
}

/// Samples that scatter about the default's say nothing; those whose middle is above it speak for the way, and no more.
#[test]
fn what_scatters_is_not_sure() {
    let verdict = |rates: &[f64]| {
        let advice = advice([run("one", LEVEL, [rates; 4])]);
        let [range] = &layers(&advice).ranges[..] else { panic!("{advice}") };
        (range.decided.verdict, range.decided.choice.clone(), advice.to_string())
    };
    let (wild, choice, _) = verdict(&[0.6e9, 0.98e9, 2e9]);
    assert_eq!((wild, choice.as_str()), (Verdict::NotDistinguishable, "in line"));
    let (promising, choice, text) = verdict(&[0.6e9, 1.3e9, 2e9]);
    assert_eq!((promising, choice.as_str()), (Verdict::LikelyBetter, "thread"));
    assert!(text.contains("thread, likely better, but not surely: 1.30 times the throughput (0.5"), "{text}");
}

/// A way that may be the best, and as well be worse, does not stand in the way of a way that surely gains.
#[test]
fn the_best_of_what_is_sure_is_chosen() {
    let way = |name: &str, costs: &[f64]| {
        let mut curve = cost::Curve::default();
        curve.add(64, costs.to_vec());
        Choice { name: name.to_string(), group: name.to_string(), curve, parts: Vec::new(), surveyed: None }
    };
    let ways = vec![
        way("default", &[100.0, 101.0, 99.0, 101.0, 99.0]),
        way("wild", &[60.0, 150.0, 50.0, 150.0, 50.0]),
        way("sure", &[70.0, 71.0, 69.0, 71.0, 69.0]),
    ];
    let (stage, route, objective) = (Stage::Link, "a link".to_string(), Objective::Latency);
    let question = Question { stage, route, objective, ways, unusable: Vec::new() };
    let answer = answer::of(&question).unwrap();
    let [range] = &answer.ranges[..] else { panic!("{answer:?}") };
    assert_eq!((range.decided.choice.as_str(), range.decided.verdict), ("sure", Verdict::Better));
    assert_eq!(range.decided.ways[0].name, "wild", "it is the best in the median");
    let (record, host) = ("one".to_string(), "a host".to_string());
    let sourced = Sourced { record, host, identity: None, is_one_of_several: false, answer };
    let advice = Advice { answers: vec![sourced], ..Advice::default() };
    let text = advice.to_string();
    assert!(text.contains("sure. 1.43 times as fast (1.39 to 1.46) at 64 B: 70.0 ns instead of 100 ns"), "{text}");
    assert_eq!(Placement::of(&advice).places[0].ranges[0].gain, 1.4286);
}

/// Between two measured sizes one way is predicted well, and the best way badly: its own measured sizes are off the
/// line between their neighbours. The samples tell the two apart. Fails if the error of the prediction decides between
/// them.
#[test]
fn the_best_way_is_chosen_however_well_it_is_predicted() {
    let sizes = [64, 128, 256, 512];
    let way = |name: &str, costs: [f64; 4]| {
        let mut curve = cost::Curve::default();
        for (size, cost) in sizes.into_iter().zip(costs) {
            curve.add(size, [1.0, 1.01, 0.99, 1.01, 0.99].map(|it| it * cost).to_vec());
        }
        Choice { name: name.to_string(), group: name.to_string(), curve, parts: Vec::new(), surveyed: None }
    };
    let ways = vec![
        way("scalar", [100.0, 200.0, 400.0, 800.0]),
        way("narrow", [80.0, 160.0, 320.0, 640.0]),
        way("wide", [60.0, 60.0, 200.0, 200.0]),
    ];
    let (stage, route, objective) = (Stage::Instructions, "data".to_string(), Objective::Throughput);
    let question = Question { stage, route, objective, ways, unusable: Vec::new() };
    let reaches = answer::reaches(&question, &sizes);
    let decided = answer::decide(&question, &reaches, 384).unwrap();
    assert_eq!((decided.choice.as_str(), decided.verdict), ("wide", Verdict::LikelyBetter), "{decided:?}");
    let measured = answer::decide(&question, &reaches, 512).unwrap();
    assert_eq!((measured.choice.as_str(), measured.verdict), ("wide", Verdict::Better), "{measured:?}");
    // A way that gains little more is not taken for one that is sure.
    let ways = vec![
        way("scalar", [100.0, 200.0, 400.0, 800.0]),
        way("narrow", [80.0, 160.0, 320.0, 640.0]),
        way("wide", [60.0, 200.0, 264.0, 744.0]),
    ];
    let question = Question { ways, ..question };
    let decided = answer::decide(&question, &answer::reaches(&question, &sizes), 320).unwrap();
    assert_eq!((decided.choice.as_str(), decided.verdict), ("narrow", Verdict::Better), "{decided:?}");
}

/// Of two sizes neither can be left out, so that nobody knows how far the prediction between them is off. Fails if that
/// is taken for no error.
#[test]
fn between_two_sizes_nothing_is_sure() {
    let way = |name: &str, cost: f64| {
        let mut curve = cost::Curve::default();
        for size in [64, 1024] {
            curve.add(size, [1.0, 1.01, 0.99, 1.01, 0.99].map(|it| it * cost).to_vec());
        }
        Choice { name: name.to_string(), group: name.to_string(), curve, parts: Vec::new(), surveyed: None }
    };
    let (stage, route, objective) = (Stage::Instructions, "data".to_string(), Objective::Throughput);
    for (cost, measured, between) in
        [(50.0, Verdict::Better, Verdict::LikelyBetter), (100.0, Verdict::NoOffload, Verdict::NotDistinguishable)]
    {
        let ways = vec![way("scalar", 100.0), way("wide", cost)];
        let question = Question { stage, route: route.clone(), objective, ways, unusable: Vec::new() };
        let reaches = answer::reaches(&question, &[64, 1024]);
        let verdict = |size| answer::decide(&question, &reaches, size).unwrap().verdict;
        assert_eq!((verdict(64), verdict(512)), (measured, between), "{cost}");
    }
}

#[test]
fn a_gain_within_the_tie_is_no_offload() {
    let little: &[f64] = &[1.02e9, 1.021e9, 1.019e9, 1.021e9, 1.019e9];
    let steady: &[f64] = &[1e9, 1.001e9, 0.999e9, 1.001e9, 0.999e9];
    let advice = advice([run("one", [steady; 4], [little; 4])]);
    let [range] = &layers(&advice).ranges[..] else { panic!("{advice}") };
    assert_eq!((range.decided.verdict, gain(&range.decided)), (Verdict::NoOffload, 1.0));
}

/// One sample is a figure and no certainty.
#[test]
fn one_sample_is_named_as_missing() {
    let advice = advice([run("one", LEVEL, [&[9e9]; 4])]);
    assert!(layers(&advice).ranges.iter().all(|it| it.decided.verdict == Verdict::NotDistinguishable));
    assert!(advice.missing.iter().any(|it| it.stage == Stage::Layers && it.what.ends_with("one has 1 sample")));
}

/// All of two samples, or of three, are often enough on one side of the truth: nothing is sure then, however far apart
/// the ways are.
#[test]
fn few_samples_are_not_sure() {
    let of = |count: usize| {
        let samples = |rate: f64| -> &'static [f64] { vec![rate; count].leak() };
        let advice = advice([run("one", [samples(1e9); 4], [samples(3e9); 4])]);
        let verdict = layers(&advice).ranges[0].decided.verdict;
        let is_missing = advice.missing.iter().any(|it| it.what.starts_with("5 samples, to be sure, of 1 layer"));
        let choice = layers(&advice).ranges[0].decided.choice.clone();
        (verdict, choice, is_missing)
    };
    for count in [2, 3, 4] {
        assert_eq!(of(count), (Verdict::LikelyBetter, "thread".to_string(), true), "{count} samples");
    }
    let told = advice([run("one", [&[1e9, 1e9]; 4], [&[3e9, 3e9]; 4])]).to_string();
    assert!(told.contains("(3.00 to 3.00 in 2 samples, too few to be sure) at"), "{told}");
    assert_eq!(of(5), (Verdict::Better, "thread".to_string(), false));
}

#[test]
fn what_was_not_measured_is_named() {
    let advice = advice([run("one", LEVEL, LEVEL)]);
    let stages: Vec<Stage> = advice.missing.iter().map(|it| it.stage).collect();
    assert!(!stages.contains(&Stage::Layers) && stages.contains(&Stage::Encryption), "{stages:?}");
    let nothing = of(&Evidence::default());
    assert!(nothing.answers.is_empty() && nothing.missing.len() == Stage::ALL.len());
}

/// A record can have a hundred thousand rows, and a gap for each.
#[test]
fn many_gaps_are_told_once_each_in_little_time() {
    const GAPS: usize = 100_000;
    let gap = |number: usize| {
        let what = format!("gap {:06}", GAPS - number);
        Missing { stage: Stage::ALL[number % 2], what, remedy: "measure".to_string() }
    };
    let begun = std::time::Instant::now();
    let all = once((0..GAPS).flat_map(|number| [gap(number), gap(number / 2)]));
    assert!(begun.elapsed() < std::time::Duration::from_secs(15), "{:?}", begun.elapsed());
    assert!(all.len() == GAPS && all.iter().enumerate().all(|(number, it)| *it == gap(number)));
}

#[test]
fn the_newer_record_of_a_host_counts() {
    let (mut old, new) = (run("old", LEVEL, LEVEL), run("new", LEVEL, LEVEL));
    old.record.date = "2020-01-01T00:00:00Z".to_string();
    let advice = advice([new, old]);
    assert_eq!((advice.answers.len(), advice.answers[0].record.as_str()), (1, "new"));
    assert_eq!(advice.passed_over, ["old"]);
}

/// As a run with `--only` leaves it.
#[test]
fn what_a_newer_record_lacks_is_named() {
    let (mut old, mut new) = (run("old", LEVEL, LEVEL), run("new", LEVEL, LEVEL));
    old.record.date = "2020-01-01T00:00:00Z".to_string();
    let displaced = |runs: [Run; 2]| {
        let told = advice(runs);
        assert_eq!(told.answers[0].record, "new");
        told.missing.into_iter().filter(|it| it.what.contains("old has that")).collect::<Vec<_>>()
    };
    assert_eq!(displaced([old.clone(), new.clone()]), []);
    new.record.measurements.retain(|it| it.size.is_some_and(|size| size < SIZES[2]));
    let [only] = &displaced([old.clone(), new.clone()])[..] else { panic!("one is displaced") };
    let what = "16 KiB, 64 KiB of 1 layer over memory, memcpy in each: old has that, and new, which counts, does not";
    assert_eq!((only.stage, only.what.as_str()), (Stage::Layers, what));
    assert_eq!(only.remedy, "underpass bench layers, all of it; or leave new out");
    old.record.quick = true;
    assert_eq!(displaced([old, new]), [], "what is not for quoting is no loss");

    let way = |name: &str, sizes: &[u64]| {
        let mut curve = cost::Curve::default();
        sizes.iter().for_each(|size| curve.add(*size, vec![1.0; 5]));
        Choice::new(name, name.to_string(), curve)
    };
    let of = |ways: Vec<Choice>| {
        let (stage, route, objective) = (Stage::Link, "a link".to_string(), Objective::Latency);
        Question { stage, route, objective, ways, unusable: Vec::new() }
    };
    let wide = of(["default", "one", "other"].map(|name| way(name, &[64, 128, 256])).into());
    let narrow = |sizes: &[u64]| of(["default", "one"].map(|name| way(name, sizes)).into());
    assert_eq!(lacks(&narrow(&[64, 120, 256]), &wide), ["other"], "128 B is predicted");
    assert_eq!(lacks(&narrow(&[64, 256]), &wide), ["other", "128 B"]);
    assert_eq!(lacks(&wide, &narrow(&[64, 256])), [""; 0]);
}

/// A host that was given another kernel is no second host.
#[test]
fn two_kernels_of_one_host_count_once() {
    let (mut old, new) = (run("old", LEVEL, LEVEL), run("new", LEVEL, LEVEL));
    old.record.date = "2020-01-01T00:00:00Z".to_string();
    (old.record.host.kernel, old.record.host.system) = ("Linux 5.4".to_string(), Some("an older one".to_string()));
    let told = advice([old.clone(), new.clone()]);
    assert_eq!((told.answers.len(), told.answers[0].record.as_str()), (1, "new"), "{told}");
    old.record.host.processors += 1;
    assert_eq!(advice([old, new]).answers.len(), 2, "another number of processors is another host");
}

#[test]
fn two_computers_that_are_alike_are_two() {
    let of = |name: &str, identity: Option<&str>, date: &str| {
        let mut run = run(name, LEVEL, LEVEL);
        (run.record.host.identity, run.record.date) = (identity.map(str::to_string), date.to_string());
        run
    };
    let [first, second, third] = ["2026-11-01", "2026-11-02", "2026-11-03"].map(|day| format!("{day}T00:00:00Z"));
    let one = of("one", Some("1"), &second);
    assert_eq!(advice([one.clone(), of("other", Some("2"), &third)]).answers.len(), 2);
    assert_eq!(advice([one.clone(), of("again", Some("1"), &third)]).passed_over, ["one"]);
    // An older record does not tell, and there is but one computer that it can be of.
    let old = of("old", None, &first);
    assert_eq!(advice([old.clone(), one.clone()]).passed_over, ["old"]);
    let told = advice([old, one.clone(), of("other", Some("2"), &third)]);
    assert_eq!(told.answers.len(), 3);
    // Each says which one it is of.
    let places = Placement::of(&told).places;
    let identities: BTreeSet<Option<&str>> = places.iter().map(|it| it.identity.as_deref()).collect();
    assert_eq!(identities, BTreeSet::from([None, Some("1"), Some("2")]));
    let host = one.record.host.to_string();
    let computers = [("old", "of an identity that the record does not tell"), ("one", "1"), ("other", "2")];
    for (record, computer) in computers {
        assert!(told.to_string().contains(&format!("record {record}: {host}; computer {computer}\n")), "{told}");
    }
    assert!(advice([one]).to_string().contains(&format!("record one: {host}\n")), "there is no other");
}

/// What was ended early, or was only to show that all works, does not displace figures for quoting.
#[test]
fn a_full_record_counts_more_than_a_newer_one_that_is_not() {
    let changes: [fn(&mut Record); 2] = [|it| it.complete = false, |it| it.quick = true];
    for change in changes {
        let (mut full, mut other) = (run("full", LEVEL, LEVEL), run("other", LEVEL, LEVEL));
        full.record.date = "2020-01-01T00:00:00Z".to_string();
        change(&mut other.record);
        let told = advice([full, other.clone()]);
        assert_eq!((told.answers.len(), told.answers[0].record.as_str()), (1, "full"), "{told}");
        assert_eq!(told.passed_over, ["other"]);
        assert_eq!(advice([other]).answers.len(), 1, "it counts where there is no other");
    }
    // Nothing of three samples is sure.
    let (mut sure, mut other) = (run("sure", LEVEL, LEVEL), run("other", LEVEL, LEVEL));
    sure.record.date = "2020-01-01T00:00:00Z".to_string();
    (sure.record.samples, other.record.samples) = (5, 3);
    let told = advice([sure, other]);
    assert_eq!(told.answers[0].record, "sure");
    assert!(told.to_string().contains("a fuller one or one of more samples answers the same: other\n"), "{told}");
}

/// All surveys of one computer call their endpoints the same.
#[test]
fn endpoints_of_other_computers_are_others_though_their_names_are_the_same() {
    let surveys = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut older = crate::evidence::tests::survey();
        older["endpoints"][1]["system"] = "b".into();
        // Two receivers to choose between.
        let mut third = older["endpoints"][1].clone();
        third["name"] = "other".into();
        older["endpoints"].as_array_mut().unwrap().push(third);
        let mut more = older["series"][0].clone();
        more["receiver"] = "other".into();
        older["series"].as_array_mut().unwrap().push(more);
        let mut newer = older.clone();
        newer["date"] = "2026-11-28T00:00:00Z".into();
        change(&mut newer);
        let parse =
            |name: &str, text: serde_json::Value| Survey::parse(name.to_string(), text.to_string().as_bytes()).unwrap();
        let surveys = vec![parse("older", older), parse("newer", newer)];
        of(&Evidence { surveys, ..Evidence::default() })
    };
    assert_eq!(surveys(&|_| {}).passed_over, ["older"]);
    let other = surveys(&|it| it["endpoints"][0]["host"]["processor"] = "another processor".into());
    assert!(other.passed_over.is_empty() && other.to_string().contains("another processor"), "{other}");
    assert!(surveys(&|it| it["endpoints"][1]["emulation"] = "Arm builds".into()).passed_over.is_empty());
}

#[test]
fn a_record_that_is_not_complete_is_used_and_named() {
    let mut half = run("half", LEVEL, [&[2e9, 2.02e9, 1.98e9, 2.01e9, 1.99e9]; 4]);
    half.record.complete = false;
    let advice = advice([half]);
    assert_eq!((advice.answers.len(), &advice.unfinished[..]), (1, &["half".to_string()][..]));
    assert!(
        advice.to_string().contains("\nNot complete, as they were ended before all was measured: half\n"),
        "{advice}"
    );
}

#[test]
fn why_a_record_is_not_used_is_said_as_it_is() {
    let mut quick = run("quick", LEVEL, LEVEL);
    quick.record.quick = true;
    let nothing = Run::new("nothing".to_string(), Record { complete: true, ..Record::begin(2, false) }).unwrap();
    let checks = vec![crate::evidence::tests::checked()];
    let advice = of(&Evidence { runs: vec![quick, nothing], checks, ..Evidence::default() });
    assert_eq!(
        (&advice.quick[..], &advice.silent[..]),
        (&["quick".to_string()][..], &["nothing", "check"].map(str::to_string)[..])
    );
    assert!(advice.passed_over.is_empty());
    let text = advice.to_string();
    assert!(text.contains("\nQuick runs, whose figures are not for quoting: quick\n"), "{text}");
    assert!(text.ends_with("\nNot used, as there is nothing to choose in them: nothing, check\n"), "{text}");
}

/// Both ways were measured, and at no size both: that is an answer that is missing, too.
#[test]
fn ways_without_a_common_size_are_named() {
    let without_common_size = |name: &str| {
        let mut run = run(name, LEVEL, LEVEL);
        let measurements = &mut run.record.measurements;
        let threads = curve(1, Work::Memcpy, Scheduler::Threads);
        measurements.iter_mut().filter(|it| it.group == threads).for_each(|it| it.size = it.size.map(|size| size + 8));
        run
    };
    let told = advice([without_common_size("one")]);
    assert!(told.answers.is_empty() && told.silent.is_empty() && told.passed_over.is_empty());
    let missing: Vec<&str> =
        told.missing.iter().filter(|it| it.stage == Stage::Layers).map(|it| it.what.as_str()).collect();
    assert_eq!(missing, ["a size of 1 layer over memory, memcpy in each at which one has all of in line, thread"]);
    // It takes no older one's place.
    let (mut old, new) = (run("old", LEVEL, LEVEL), without_common_size("new"));
    old.record.date = "2020-01-01T00:00:00Z".to_string();
    let told = advice([old, new]);
    assert_eq!((told.answers.len(), told.answers[0].record.as_str()), (1, "old"), "{told}");
}

/// A part is the difference of two readings, so that a small one is below 0 now and then. Only all parts together are
/// what a packet costs.
#[test]
fn a_part_below_zero_leaves_the_size_in_the_advice() {
    use crate::suite::checksum::table::{self, Socket, Stage as Part, Way};
    let advice = |rest: [f64; 2]| {
        let mut record = Record { complete: true, ..Record::begin(2, false) };
        for way in [Way::Simd, Way::Scalar] {
            for part in Part::of(way) {
                let group = table::stage(Socket::Xdp, way, *part, false);
                let samples = if *part == Part::Rest { rest.to_vec() } else { vec![100.0, 101.0] };
                let plan = Plan::duration(&group, format!("{group} of 64")).of_size(64);
                record.measurements.push(Measurement::conclude("checksum", &plan, vec![], samples, None, None));
            }
        }
        advice([Run::new("parts".to_string(), record).unwrap()])
    };
    let told = advice([-3.0, 2.0]);
    let processor = told.answers.iter().find(|it| it.answer.objective == Objective::Processor).expect("an answer");
    assert_eq!(processor.answer.ranges[0].from, Some(64), "{told}");
    // What is no cost even together is not used, and that is said.
    let nothing = advice([-300.0, 2.0]);
    assert!(nothing.answers.iter().all(|it| it.answer.objective != Objective::Processor), "{nothing}");
}

/// Each suite takes enough samples by itself, that of checksums more than enough.
#[test]
fn few_samples_are_named_once() {
    use crate::suite::checksum::table::{self, Socket, Stage as Part, Way};
    let mut record = Record { complete: true, ..Record::begin(2, false) };
    let mut add = |plan: Plan, value: f64| {
        let plan = plan.of_size(64);
        record.measurements.push(Measurement::conclude("checksum", &plan, vec![], vec![value; 2], None, None));
    };
    for way in [Way::Simd, Way::Scalar] {
        let group = table::throughput(Socket::Xdp, way);
        add(Plan::rate(&group, format!("{group} of 64"), Unit::BytesPerSecond), 1e9);
        for part in Part::of(way) {
            let group = table::stage(Socket::Xdp, way, *part, false);
            add(Plan::duration(&group, format!("{group} of 64")), 100.0);
        }
    }
    let told = advice([Run::new("few".to_string(), record).unwrap()]);
    let few: Vec<&Missing> = told.missing.iter().filter(|it| it.what.starts_with("5 samples")).collect();
    assert_eq!(few.len(), 2, "of either link: {few:?}");
    let remedy = format!("{}, without --quick and --samples", Stage::Checksum.remedy());
    assert!(few.iter().all(|it| it.remedy == remedy), "{few:?}");
}

/// A size that cannot be used is named with its way and its record.
#[test]
fn a_size_without_a_cost_is_named() {
    let mut one = run("one", LEVEL, LEVEL);
    let of_threads = curve(1, Work::Memcpy, Scheduler::Threads);
    let is_it = |it: &&mut Measurement| it.group == of_threads && it.size == Some(SIZES[1]);
    one.record.measurements.iter_mut().find(is_it).unwrap().underpass = vec![0.0, 1e9].into();
    let told = advice([one]);
    let what = "costs above 0 of 1 layer over memory, memcpy in each, thread, at 4 KiB: one has a sample that is none";
    assert!(told.missing.iter().any(|it| it.what == what), "{:?}", told.missing);
}

/// A way that cannot be used at any size is none, and is named, also where nothing is left to choose.
#[test]
fn a_way_without_a_cost_is_named() {
    let without_threads = |name: &str| {
        let mut run = run(name, LEVEL, LEVEL);
        let of_threads = curve(1, Work::Memcpy, Scheduler::Threads);
        let those = run.record.measurements.iter_mut().filter(|it| it.group == of_threads);
        those.for_each(|it| it.underpass = vec![0.0, 1e9].into());
        run
    };
    let told = advice([without_threads("one")]);
    let what = "costs above 0 of 1 layer over memory, memcpy in each, thread, at 1,024 B, 4 KiB, 16 KiB, 64 KiB: one \
                has a sample that is none; no size of it can be used, so it is no way";
    assert!(told.missing.iter().any(|it| it.what == what), "{:?}", told.missing);
    assert!(told.answers.is_empty() && told.silent.is_empty(), "{told}");
    // Where it is the only way, another one is what is missing.
    let mut single = without_threads("single");
    single.record.measurements.retain(|it| it.group == curve(1, Work::Memcpy, Scheduler::Threads));
    let told = advice([single]);
    let layers: Vec<&str> = told.missing.iter().filter(|it| it.stage == Stage::Layers).map(|it| &*it.what).collect();
    assert_eq!(
        (layers, &told.silent[..]),
        (vec!["two ways to do it, measured in one record"], &["single".to_string()][..])
    );
    // A newer record of which nothing can be used takes no older one's place.
    let mut old = run("old", LEVEL, LEVEL);
    old.record.date = "2020-01-01T00:00:00Z".to_string();
    assert_eq!(advice([old, without_threads("new")]).answers[0].record, "old");

    let way = |name: &str, cost: f64| {
        let mut curve = cost::Curve::default();
        curve.add(64, vec![cost; 5]);
        Choice::new(name, name.to_string(), curve)
    };
    let of = |costs: [f64; 3]| {
        let ways = costs.iter().zip(["default", "one", "other"]).map(|(cost, name)| way(name, *cost)).collect();
        let (stage, route, objective) = (Stage::Link, "a link".to_string(), Objective::Latency);
        let question = Question { stage, route, objective, ways, unusable: Vec::new() };
        let all = super::question::answerable(vec![question]);
        let names = |ways: &[Choice]| ways.iter().map(|way| way.name.clone()).collect::<Vec<_>>().join(" ");
        all.iter().map(|it| (names(&it.ways), names(&it.unusable))).collect::<Vec<_>>()
    };
    assert_eq!(of([9.0, 0.0, 8.0]), [("default other".to_string(), "one".to_string())]);
    assert_eq!(of([0.0, 7.0, 8.0]), [(String::new(), "default".to_string())], "nothing is a gain over nothing");
}

/// A fixed part and a part for each byte, which changes once, as at the end of a cache.
#[test]
fn a_size_between_others_is_predicted_by_their_line() {
    let cost = |size: f64| if size <= 4096.0 { 100.0 + size / 10.0 } else { size / 8.0 - 2.4 };
    let rate = |times: f64| SIZES.map(|size| vec![size as f64 * 1e9 / (cost(size as f64) * times); 5]);
    let [slow, fast] = [rate(1.0), rate(0.5)];
    let slices = |rates: &[Vec<f64>; 4]| -> Vec<Vec<f64>> { rates.to_vec() };
    let (slow, fast) = (slices(&slow), slices(&fast));
    let array = |rates: &'static [Vec<f64>]| -> [&'static [f64]; 4] { std::array::from_fn(|at| &rates[at][..]) };
    let run = run("one", array(slow.leak()), array(fast.leak()));
    let question = &questions(&run)[0];
    let curve = &question.ways[0].curve;
    for (size, expected) in [(2048, cost(2048.0)), (4096, cost(4096.0)), (40_000, cost(40_000.0))] {
        let predicted = curve.predict(size).unwrap();
        assert!((predicted - expected).abs() < 1e-6 * expected, "{size}: {predicted} and not {expected}");
    }
    assert_eq!((curve.predict(1000), curve.predict(70_000)), (None, None), "nothing is known beyond");
    let reaches = reaches(question, &question.sizes());
    assert!(reaches[0].is_some_and(|reach| reach < 1e-9), "both ways are off alike: {reaches:?}");
    let decided = decide(question, &reaches, 2048).unwrap();
    assert_eq!((decided.verdict, decided.is_measured), (Verdict::Better, false));
}

/// Whether the interval of a gain that is predicted between two of so many sizes has the gain there. At each size a
/// cost is off its line by as much as `off` says, and a sample is off that cost by as much as `scatter` says (standard
/// deviations of logarithms).
fn is_within(rng: &mut fastrand::Rng, sizes: u32, off: f64, scatter: f64) -> bool {
    let mut normal = |deviation: f64| {
        let (one, other) = (1.0 - rng.f64(), rng.f64());
        (deviation * (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()).exp()
    };
    let middle = 90 << ((sizes - 2) / 2);
    let mut truth = Vec::new();
    let mut way = |name: &str| {
        let mut cost = |size: u64| (1000.0 + size as f64) * normal(off);
        truth.push(cost(middle));
        let costs: Vec<(u64, f64)> = (0..sizes).map(|step| 64 << step).map(|size| (size, cost(size))).collect();
        let mut curve = cost::Curve::default();
        for (size, cost) in costs {
            curve.add(size, (0..5).map(|_| cost * normal(scatter)).collect());
        }
        Choice::new(name, name.to_string(), curve)
    };
    let ways = vec![way("default"), way("other")];
    let (stage, route, objective) = (Stage::Link, "a link".to_string(), Objective::Latency);
    let question = Question { stage, route, objective, ways, unusable: Vec::new() };
    let decided = decide(&question, &reaches(&question, &question.sizes()), middle).unwrap();
    assert!(!decided.is_measured);
    decided.ways[0].interval.unwrap().contains(truth[0] / truth[1])
}

#[test]
fn an_interval_between_sizes_has_the_gain_in_95_of_100_cases() {
    const CASES: u32 = 600;
    let mut rng = fastrand::Rng::with_seed(1);
    // Where samples scatter and no cost is off its line, an interval is too wide.
    for (off, scatter, most) in [(0.1, 0.01, 0.98), (0.0, 0.1, 1.0)] {
        for sizes in [3, 4, 6, 11] {
            let within = (0..CASES).filter(|_| is_within(&mut rng, sizes, off, scatter)).count();
            let share = within as f64 / f64::from(CASES);
            assert!((0.93..=most).contains(&share), "{sizes} sizes, off {off}, scatter {scatter}: {share}");
        }
    }
}

#[test]
fn a_placement_survives_its_file() {
    let advice = advice([run("one", LEVEL, [&[2e9, 2.02e9, 1.98e9, 2.01e9, 1.99e9]; 4])]);
    let placement = Placement::of(&advice);
    let text = placement.to_toml().unwrap();
    assert_eq!(toml::from_str::<Placement>(&text).unwrap(), placement);
    assert!(text.contains("choice = \"thread\"") && text.contains("verdict = \"better\""), "{text}");
    assert!(toml::from_str::<Placement>(&text.replace("choice", "choise")).is_err(), "a misspelt entry is an error");
}

#[test]
fn the_documented_placement_is_one() {
    let text = include_str!("../../../../docs/placement.md");
    let example = text.split("```toml").nth(1).unwrap().split("```").next().unwrap();
    let placement: Placement = toml::from_str(example).unwrap();
    assert_eq!((placement.version, placement.places.len(), placement.missing.len()), (super::placement::VERSION, 1, 1));
}

#[test]
fn a_survey_says_which_endpoint_of_a_system_is_best() {
    let mut survey = crate::evidence::tests::survey();
    for (at, system) in [(0, "a"), (1, "b")] {
        survey["endpoints"][at]["system"] = system.into();
    }
    let mut third = survey["endpoints"][1].clone();
    third["name"] = "host b".into();
    third["kind"] = "host".into();
    survey["endpoints"].as_array_mut().unwrap().push(third);
    for at in [0, 1] {
        let mut faster = survey["series"][at].clone();
        faster["receiver"] = "host b".into();
        for sample in [0, 1] {
            let value = faster["samples"][sample]["value"].as_f64().unwrap();
            faster["samples"][sample]["value"] = (value / 2.0).into();
        }
        survey["series"].as_array_mut().unwrap().push(faster);
    }
    for series in survey["series"].as_array_mut().unwrap() {
        let samples = series["samples"].as_array_mut().unwrap();
        *samples = samples.iter().cycle().take(6).cloned().collect();
    }
    let survey = Survey::parse("s".to_string(), survey.to_string().as_bytes()).unwrap();
    let advice = of(&Evidence { surveys: vec![survey], ..Evidence::default() });
    let [only] = &advice.answers[..] else { panic!("{advice}") };
    assert_eq!(
        (only.answer.route.as_str(), only.answer.default.as_str()),
        ("throughput from host to b, kernel TCP", "host b")
    );
    assert!(only.answer.ranges.iter().all(|it| it.decided.choice == "card" && it.decided.verdict == Verdict::Better));
}

/// A survey has no option for the number of its samples, and no suite measures between its endpoints.
#[test]
fn what_is_missing_of_a_survey_is_measured_by_a_survey() {
    let mut survey = crate::evidence::tests::survey();
    let mut fast = survey["series"][0].clone();
    fast["path"] = "underpass".into();
    survey["series"].as_array_mut().unwrap().push(fast);
    let survey = Survey::parse("s".to_string(), survey.to_string().as_bytes()).unwrap();
    let told = of(&Evidence { surveys: vec![survey], ..Evidence::default() });
    let few = told.missing.iter().find(|it| it.what.contains("s has 2 samples")).expect("two samples are few");
    assert_eq!(few.stage, Stage::Transport);
    assert_eq!(few.remedy, "underpass survey, with samples = 5 or more under [plan]; with --local without --quick");
}

/// What `bench broker` measures, with daemon and without, of which round trips and streams have one size in common.
#[test]
fn programs_of_two_users_are_led_to_each_other_where_that_pays() {
    use crate::suite::broker::{ALONE, BETWEEN_USERS};
    let (ns, bytes, rate) = (Unit::Nanoseconds, Unit::BytesPerSecond, Unit::PerSecond);
    let plan = |unit, group: &str, name: &str, size: Option<u64>| {
        let plan = if unit == ns { Plan::duration(group, name) } else { Plan::rate(group, name, unit) };
        Plan { size, ..plan }
    };
    let near = |middle: f64| vec![middle, middle * 1.01, middle * 0.99, middle * 1.01, middle * 0.99];
    let mut record = Record { complete: true, ..Record::begin(3, false) };
    for (unit, group, name, size, kernel, underpass) in [
        (ns, BETWEEN_USERS, "two users: blocking, 1 B", Some(1), 30e3, 1e3),
        (ns, BETWEEN_USERS, "two users: blocking, 4 KiB", Some(4096), 31e3, 2e3),
        (bytes, BETWEEN_USERS, "two users: 4 KiB writes", Some(4096), 1e9, 3e9),
        (bytes, BETWEEN_USERS, "two users: 64 KiB writes", Some(65536), 4e9, 3.9e9),
        (rate, BETWEEN_USERS, "two users: Redis GET, 50 clients", None, 5e4, 1e5),
        (rate, ALONE, "connect, exchange, close, alone", None, 2e4, 1.99e4),
    ] {
        let plan = plan(unit, group, name, size);
        record.measurements.push(Measurement::conclude("broker", &plan, near(kernel), near(underpass), None, None));
    }
    let cost = Plan::cost("meeting", "two processes meet again", ns);
    record.measurements.push(Measurement::conclude("broker", &cost, near(10.0), near(8e4), None, None));
    let advice = advice([Run::new("users".to_string(), record).unwrap()]);
    let told = advice.answers.iter().map(|it| &it.answer).map(|answer| {
        let ranges = answer.ranges.iter().map(|it| (it.from, it.decided.choice.as_str(), it.decided.verdict));
        (answer.stage, answer.route.as_str(), answer.objective, ranges.collect::<Vec<_>>())
    });
    let expected = [
        ("Redis GET, 50 clients", Objective::Throughput, vec![(None, "underpassd", Verdict::Better)]),
        (
            "round trips between two users",
            Objective::Latency,
            vec![(Some(1), "underpassd", Verdict::Better), (Some(4096), "underpassd", Verdict::Better)],
        ),
        (
            "streams between two users",
            Objective::Throughput,
            vec![(Some(4096), "underpassd", Verdict::Better), (Some(65536), "kernel TCP", Verdict::NoOffload)],
        ),
    ];
    let told: Vec<_> = told.collect();
    assert_eq!(told.len(), 4, "what a meeting takes is no choice: {advice}");
    for (route, objective, ranges) in expected {
        let of_route = told.iter().find(|it| it.1.contains(route)).unwrap();
        assert_eq!((of_route.0, of_route.2, &of_route.3), (Stage::Broker, objective, &ranges), "{advice}");
    }
    let alone = told.iter().find(|it| it.1.contains("its server is not under Underpass")).unwrap();
    assert_eq!(alone.3, [(None, "kernel TCP", Verdict::NoOffload)]);
    assert!(!advice.missing.iter().any(|it| it.stage == Stage::Broker) && !advice.to_string().contains("bench broker"));
    let text = advice.to_string();
    assert!(text.contains("BROKER\n") && text.contains("underpassd. 30.0 times as fast (2"), "{text}");
    assert!(text.contains("record users; rows \"between users\"\n"), "{text}");
    let places = Placement::of(&advice).places;
    assert!(places.iter().all(|it| (it.stage.as_str(), it.default.as_str()) == ("broker", "kernel TCP")));
    assert!(of(&Evidence::default()).to_string().contains("underpass bench broker, as root"));
}

/// Rates of one layer in line and by a thread, at one size that no record has.
fn measured_at(size: u64, rates: [f64; 2]) -> Run {
    let mut record = Record { complete: true, ..Record::begin(2, false) };
    for (scheduler, rate) in Scheduler::ALL.into_iter().zip(rates) {
        let group = curve(1, Work::Memcpy, scheduler);
        let plan = Plan::rate(&group, "it", Unit::BytesPerSecond).of_size(size);
        record.measurements.push(Measurement::conclude("layers", &plan, vec![], vec![rate; 2], None, None));
    }
    Run::new("measured".to_string(), record).unwrap()
}

#[test]
fn a_check_counts_what_was_right_and_what_it_cost() {
    let faster: &[f64] = &[2e9, 2.02e9, 1.98e9, 2.01e9, 1.99e9];
    let asked = questions(&run("one", LEVEL, [faster; 4]));
    let asked: Vec<_> = asked.into_iter().map(|question| ("one".to_string(), question)).collect();
    let check = |size, rates| check::compare(&asked, &questions(&measured_at(size, rates)));
    // Nearly as predicted, and right; then a fifth slower than the default, and wrong.
    let right = check(2048, [1e9, 2.1e9]);
    assert_eq!((right.0.len(), right.right(), right.regret()), (1, Some(1.0), Some(0.0)));
    assert!((right.error().unwrap() - 0.1 / 2.1).abs() < 1e-3, "{right:?}");
    let wrong = check(2048, [1e9, 0.8e9]);
    assert_eq!(wrong.right(), Some(0.0));
    assert!((wrong.regret().unwrap() - 0.2).abs() < 1e-9 && wrong.to_string().contains("wrong: layers, "), "{wrong}");
    let tie = check(2048, [1e9, 0.98e9]);
    assert!(tie.0[0].is_tie() && tie.0[0].is_right() && tie.right().is_none(), "{tie:?}");
    assert!(check(SIZES[1], [1e9, 2e9]).0.is_empty(), "a size of the record is not held out");
    assert!(check(1 << 20, [1e9, 2e9]).0.is_empty(), "beyond the sizes nothing is predicted");
}

/// The records that are kept here leave sizes out between which advice can be put to the test, for each kind of work.
#[test]
fn the_records_have_cases_for_each_kind_of_work() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
    let names = ["2026-11-23", "checksum-2026-11-23", "driver-2026-11-23", "layers-2026-11-23"];
    let files: Vec<_> = names.iter().map(|name| folder.join(format!("{name}.json"))).collect();
    let evidence = Evidence::read(&files).unwrap();
    let mut cases: BTreeMap<(Stage, Objective), usize> = BTreeMap::new();
    for asked in newest(&evidence).into_values() {
        let question = &asked.question;
        *cases.entry((question.stage, question.objective)).or_default() += check::held_out(&question.sizes()).len();
    }
    let of = |stage, objective| cases.get(&(stage, objective)).copied().unwrap_or(0);
    use {Objective as O, Stage as S};
    assert!(of(S::Transport, O::Latency) >= 6 && of(S::Transport, O::Throughput) >= 6, "{cases:?}");
    assert!(of(S::Layers, O::Throughput) >= 30 && of(S::Instructions, O::Throughput) >= 60, "{cases:?}");
    assert!(of(S::Link, O::Throughput) >= 10 && of(S::Completion, O::Processor) >= 10, "{cases:?}");
    assert!(of(S::Copies, O::Processor) >= 3, "{cases:?}");
    assert!(of(S::Checksum, O::Throughput) >= 18 && of(S::Checksum, O::Processor) >= 7, "by size and load: {cases:?}");
}
