use std::fs;

use super::*;
use crate::plan::Plan;
use crate::record::Measurement;
use crate::record::tests::example;

fn read(text: &str) -> Result<Evidence, EvidenceError> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("record.json");
    fs::write(&file, text).unwrap();
    Evidence::read(&[file])
}

fn whole() -> String {
    serde_json::to_string(&example()).unwrap()
}

#[test]
fn a_record_is_read_under_its_name() {
    // Two of them may have been made in two seconds.
    let example = example();
    let evidence = read(&serde_json::to_string(&example).unwrap()).unwrap();
    assert_eq!((evidence.runs[0].name.as_str(), &evidence.runs[0].record), ("record", &example));
}

/// Only a run that came to its end left a record, before records said so.
#[test]
fn a_record_says_whether_it_is_complete() {
    let text = whole();
    assert!(text.contains("\"complete\":true,"), "{text}");
    let complete = |text: &str| read(text).unwrap().runs[0].record.complete;
    assert!(complete(&text.replacen("\"complete\":true,", "", 1)));
    assert!(!complete(&text.replacen("\"complete\":true,", "\"complete\":false,", 1)));
}

#[test]
fn what_is_no_record_is_named_with_a_remedy() {
    let text = whole();
    for (damaged, expected) in [
        (&text[..text.len() / 2], "ends in the middle (EOF"),
        (&text[..text.len() - 1], "Copy it again"),
        ("{}", "missing field"),
        ("", "is no record"),
        ("[1, 2]", "is no record"),
        (r#"{"format": "underpass-of-tomorrow"}"#, "not known here"),
        (&text.replace("60000.0", "1e999"), "is no record"),
    ] {
        let error = read(damaged).unwrap_err().to_string();
        assert!(error.contains("record.json: ") && error.contains(expected), "{error}");
    }
    let missing = Evidence::read(&[PathBuf::from("/nowhere/record.json")]).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/record.json: cannot be read (No such file"), "{missing}");
}

#[test]
fn figures_that_cannot_be_true_are_found() {
    let text = whole();
    for (from, to, expected) in [
        ("60000.0", "-60000.0", "-60000 ns is no duration"),
        ("\"median\":61000.0", "\"median\":1.0", "its median is said to be 1, and that of its samples is 61000"),
        ("\"median\":61000.0", "\"median\":null", "its median is said to be none, and"),
    ] {
        assert!(text.contains(from), "{text}");
        let error = read(&text.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains("\"blocking, 1 B\": kernel: ") && error.contains(expected), "{error}");
    }
    let refused = |change: fn(&mut Record)| {
        let mut record = example();
        change(&mut record);
        Evidence::of("record".to_string(), record).unwrap_err().to_string()
    };
    assert!(refused(|it| it.measurements[1].kernel = vec![7e300].into()).contains(": 7e300 ns is no duration"));
    assert!(refused(|it| it.measurements[1].kernel = vec![7e-300].into()).contains(": 7e-300 ns is no duration"));
    assert!(refused(|it| it.measurements[1].ratio = Some(1000.0)).contains("its ratio is said to be 1000, and"));
    assert!(refused(|it| it.measurements[2].ratio = Some(2.0)).contains("and that of its medians is none"));
    assert!(refused(|it| it.measurements[5].difference = Some(-1.0)).contains("its difference is said to be -1, and"));
    assert!(refused(|it| it.measurements.push(it.measurements[0].clone())).contains("it is there twice"));
    let long = text.replace("not installed", &"x".repeat(5000));
    assert!(read(&long).unwrap_err().to_string().contains("more than 4096 bytes"));
}

/// What says that its numbers are of another unit says that other numbers were measured.
#[test]
fn a_row_in_another_unit_than_its_own_is_named() {
    let text = whole();
    for (from, to, expected) in [
        ("\"unit\":\"ns\",\"better\":\"lower\"", "\"unit\":\"us\",\"better\":\"lower\"", "unknown variant `us`"),
        (
            "\"unit\":\"ns\",\"better\":\"lower\"",
            "\"unit\":\"1/s\",\"better\":\"higher\"",
            "\"blocking, 1 B\": it is in 1/s, where higher is better, and what is so called is in ns, where lower is \
             better",
        ),
        (
            "\"unit\":\"B/s\"",
            "\"unit\":\"1/s\"",
            "\"64 B writes, \\\"pinned\\\"\": it is in 1/s, where higher is better, and what is so called is in B/s",
        ),
    ] {
        assert!(text.contains(from), "{text}");
        let error = read(&text.replacen(from, to, 1)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// A survey of two endpoints with one series each way.
pub fn survey() -> serde_json::Value {
    let host = serde_json::to_value(example().host).unwrap();
    let endpoint = |name: &str, kind: &str| {
        serde_json::json!({ "name": name, "kind": kind, "system": "a", "emulated": true, "emulation": "a quota",
            "address": "10.9.0.1", "host": host, "tools": [], "library": false, "network": "n", "revision": null,
            "clock_offset": 0, "clock_round_trip": 100 })
    };
    let series = |sender: &str, receiver: &str, size: u64, value: f64| {
        let sample = |value: f64| {
            serde_json::json!({ "at": "2026-11-27T00:00:01.000Z", "value": value, "percentiles": null, "seconds": 1.0,
                "bytes": 1000, "exchanges": null, "sender_time": 5000, "receiver_time": 7000, "via_time": null })
        };
        serde_json::json!({ "sender": sender, "receiver": receiver, "via": null, "tool": "iperf3",
            "metric": "throughput", "size": size, "flows": 1, "load": "idle", "path": "kernel", "unit": "B/s",
            "better": "higher", "samples": [sample(value), sample(value * 1.01)], "summary": null })
    };
    serde_json::json!({ "format": "underpass-survey", "schema": 1, "date": "2026-11-27T00:00:00Z", "version": "0.1.0",
        "revision": null, "seed": 7, "complete": true, "plan": { "samples": 2, "seconds": 1, "quick": false,
        "throughput": [], "latency": [], "tls": [], "underpass": false },
        "endpoints": [endpoint("host", "host"), endpoint("card", "smartnic")],
        "series": [series("host", "card", 64, 1e8), series("host", "card", 4096, 1e9), series("card", "host", 64, 2e8),
            series("card", "host", 4096, 2e9)],
        "skipped": [], "observations": [{ "name": "maximum-follows-receiver", "verdict": "confirmed", "text": "as <it> \
                                                                                                               is",
            "model": null }] })
}

#[test]
fn a_survey_is_checked_as_well() {
    let whole = survey();
    assert_eq!(read(&whole.to_string()).unwrap().surveys[0].record.series.len(), 4);
    for other in [0, 2] {
        let mut text = whole.clone();
        text["schema"] = other.into();
        // Its fields need not be those of this version.
        text.as_object_mut().unwrap().remove("series");
        let error = read(&text.to_string()).unwrap_err().to_string();
        assert!(
            error.contains(&format!("version {other} of the format")) && error.contains("measure again"),
            "{error}"
        );
    }
    let mut stranger = whole.clone();
    stranger["series"][0]["sender"] = "nobody".into();
    assert!(read(&stranger.to_string()).unwrap_err().to_string().contains("\"nobody\" is none of its endpoints"));
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut liar = whole.clone();
        change(&mut liar);
        read(&liar.to_string()).unwrap_err().to_string()
    };
    let sample = |it: &mut serde_json::Value, of: &str, is: f64| it["series"][0]["samples"][0][of] = is.into();
    assert!(refused(&|it| sample(it, "value", -1.0)).contains("-1 B/s is no such figure"));
    assert!(refused(&|it| sample(it, "value", 1e300)).contains(": 1e300 B/s is no such figure"));
    assert!(refused(&|it| sample(it, "seconds", 0.0)).contains("0 is no time"));
    assert!(
        refused(&|it| it["series"][0]["flows"] = 0.into()).contains("it is of messages of 64 B over 0 connections")
    );
    assert!(refused(&|it| it["series"][0]["size"] = 0.into()).contains("it is of messages of 0 B"));
    let disordered = serde_json::json!({ "p50": 9.0, "p99": 2.0, "p999": 10.0 });
    assert!(
        refused(&|it| it["series"][0]["samples"][0]["percentiles"] = disordered.clone())
            .contains("percentiles of 9, 2 and 10 ns are not in order")
    );
    assert!(
        refused(&|it| it["series"][0]["samples"][0]["receiver_time"] = u64::MAX.into())
            .contains("18446744073709551615 ns are no processor time of one sample")
    );
    assert!(refused(&|it| it["series"][0]["unit"] = "ns".into()).contains("it is in ns, where higher is better"));
    assert!(refused(&|it| it["series"][1] = it["series"][0].clone()).contains("it is there twice"));
    assert!(refused(&|it| it["series"][1]["tool"] = "qperf".into()).contains("it is by qperf and others by iperf3"));
    assert!(refused(&|it| it["endpoints"][1]["name"] = "host".into()).contains("two endpoints of one name"));
    assert!(refused(&|it| it["endpoints"][1]["emulation"] = "x".repeat(5000).into()).contains("more than 4096 bytes"));
    assert!(refused(&|it| it["endpoints"][1]["name"] = "x".repeat(65).into()).contains("name has more than 64 bytes"));
    let summary = serde_json::json!({ "median": 1.0, "low": 1.0, "high": 1.0, "percentiles": null, "sender_cost": null,
        "receiver_cost": null, "via_cost": null });
    assert!(
        refused(&|it| it["series"][0]["summary"] = summary.clone())
            .contains("its median is said to be 1, and that of its samples is 1005")
    );
}

/// A check of two cases: of one the advice is right, of the other wrong.
pub fn check() -> serde_json::Value {
    let case = |stage: &str, route: &str, choice: &str, measured: f64| {
        serde_json::json!({ "stage": stage, "route": route, "objective": "throughput", "record": "one", "size": 2048,
            "choice": choice, "verdict": "better", "ways": [
                { "name": "default", "predicted": 1.0, "measured": 1.0 },
                { "name": "other", "predicted": 2.0, "measured": measured }] })
    };
    serde_json::json!({ "format": "underpass-check", "schema": 1, "date": "2026-11-27T00:00:00Z", "version": "0.1.0",
        "revision": null, "host": serde_json::to_value(example().host).unwrap(), "samples": 5, "quick": false,
        "complete": true, "seed": 1, "records": ["one"],
        "cases": [case("layers", "1 layer", "other", 0.8), case("copies", "veth pair", "other", 1.9)],
        "skipped": [{ "name": "link", "reason": "no root" }] })
}

pub fn checked() -> Checked {
    Checked::parse("check".to_string(), check().to_string().as_bytes()).unwrap()
}

#[test]
fn a_check_is_checked_as_well() {
    let whole = check();
    let read_check = &read(&whole.to_string()).unwrap().checks[0];
    assert_eq!((read_check.name.as_str(), read_check.check.cases.0.len()), ("record", 2));
    assert_eq!(serde_json::to_value(&read_check.check).unwrap(), whole, "nothing of it is lost");
    let refused = |change: &dyn Fn(&mut serde_json::Value)| {
        let mut other = whole.clone();
        change(&mut other);
        read(&other.to_string()).unwrap_err().to_string()
    };
    assert!(refused(&|it| it["schema"] = 2.into()).contains("check of advice in version 2 of the format"));
    assert!(refused(&|it| it["cases"][0]["ways"][1]["measured"] = (-1.0).into()).contains("2 and -1 are no gains"));
    assert!(refused(&|it| it["cases"][1]["choice"] = "third".into()).contains("\"third\" is none of its ways"));
    assert!(refused(&|it| it["cases"] = 7.into()).contains("is no record"));
}

/// Of two records of a host the newer one counts, so that any other text would make a record the newest of all.
#[test]
fn a_date_is_one() {
    for date in ["", "yesterday", "zzzz-11-27T00:00:00Z", "2026-11-27T00:00:00+01:00", "2026-11-27"] {
        let mut run = example();
        run.date = date.to_string();
        let error = Evidence::of("run".to_string(), run).unwrap_err().to_string();
        assert!(error.contains(&format!("has the date {date:?}")), "{error}");
        for mut other in [survey(), check()] {
            other["date"] = date.into();
            assert!(read(&other.to_string()).unwrap_err().to_string().contains("has the date"));
        }
    }
}

/// What a report or advice would compute for hours.
#[test]
fn more_than_can_be_computed_with_is_refused() {
    let many = |sizes: u64, samples: usize| {
        let mut record = example();
        let plan = |size| Plan::duration("blocking", format!("{size} B")).of_size(size);
        let measured = |size| Measurement::conclude("pingpong", &plan(size), vec![2.0; samples], vec![1.0], None, None);
        record.measurements = (1..=sizes).map(measured).collect();
        Evidence::of("many".to_string(), record).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(many(1000, 900), Ok(()));
    assert_eq!(many(1001, 1).unwrap_err(), "has more than 1000 sizes of one curve");
    assert_eq!(many(1, 10_001).unwrap_err(), "has more than 10000 samples of one figure");
    assert_eq!(many(1000, 1000).unwrap_err(), "has more than 1000000 samples");
}

/// A figure for each of a hundred pairs, all apart, has a table of ten thousand cells, and a file of 20 MiB hundreds of
/// such figures.
#[test]
fn a_survey_whose_report_would_be_mostly_empty_is_refused() {
    let of = |figures: u32, is_apart: bool| {
        let mut it = survey();
        let (endpoint, series) = (it["endpoints"][0].clone(), it["series"][0].clone());
        let name = |number: u32| format!("e{number}");
        let called = |number| {
            let mut endpoint = endpoint.clone();
            endpoint["name"] = name(number).into();
            endpoint
        };
        it["endpoints"] = (0..100).map(called).collect();
        let pair = |flows: u32, number: u32| {
            let mut series = series.clone();
            series["flows"] = flows.into();
            series["sender"] = name(if is_apart { number } else { 0 }).into();
            series["receiver"] = name((number + 1) % 100).into();
            series
        };
        it["series"] = (1..=figures)
            .flat_map(|flows| (0..100).map(move |number| (flows, number)))
            .map(|(flows, number)| pair(flows, number))
            .collect();
        read(&it.to_string()).map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(of(9, true), Ok(()));
    let error = of(10, true).unwrap_err();
    assert!(error.ends_with("few pairs of each figure that its tables would have more than 100000 cells"), "{error}");
    assert_eq!(of(10, false), Ok(()), "one row of as many figures");
}

/// Advice names the record that it rests on, and a survey is called survey.json unless the user names it otherwise.
#[test]
fn records_of_one_name_are_told_apart() {
    let folder = tempfile::tempdir().unwrap();
    let files = ["a", "b"].map(|name| folder.path().join(name).join("survey.json"));
    for file in &files {
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(file, survey().to_string()).unwrap();
    }
    let evidence = Evidence::read(&files).unwrap();
    assert_eq!(evidence.names().collect::<Vec<_>>(), ["survey", files[1].to_str().unwrap()]);
    let [one, other] = files;
    let link = folder.path().join("link.json");
    std::os::unix::fs::symlink(&one, &link).unwrap();
    for again in [&one, &link] {
        let error = Evidence::read(&[one.clone(), other.clone(), again.clone()]).unwrap_err().to_string();
        assert!(error.ends_with(": is named twice"), "{error}");
    }
}

/// 10 GB, of which nothing is on the disk.
#[test]
fn a_file_without_end_is_not_read_into_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("record.json");
    fs::File::create(&file).unwrap().set_len(10 << 30).unwrap();
    let error = Evidence::read(&[file]).unwrap_err().to_string();
    assert!(error.contains("has more than 64 MiB") && error.contains("name each by itself"), "{error}");
}

#[test]
fn a_file_that_nobody_ends_is_refused_at_once() {
    let folder = tempfile::tempdir().unwrap();
    for (file, what) in crate::input::tests::endless(folder.path()) {
        let error = Evidence::read(&[file]).unwrap_err().to_string();
        assert!(error.contains(&format!("it is {what} and no regular file")), "{error}");
    }
}
