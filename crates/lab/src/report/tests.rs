use super::*;
use crate::plan::{Plan, Target};
use crate::record::tests::example;
use crate::suite::apps::load;
use crate::survey::record::Tool;
use crate::unit::Unit;

fn page(record: Record) -> String {
    html(&Evidence::of("example".to_string(), record).unwrap()).unwrap()
}

/// What stands between the library and our own script is the same for every page.
fn without_library(page: &str) -> String {
    let scripts: Vec<&str> = page.split("<script>").collect();
    [scripts[0], scripts[scripts.len() - 1]].concat()
}

fn charts(page: &str) -> Vec<serde_json::Value> {
    let parts = page.split("<script type=\"application/json\">").skip(1);
    parts.map(|part| serde_json::from_str(part.split("</script>").next().unwrap()).unwrap()).collect()
}

fn names(chart: &serde_json::Value) -> Vec<&str> {
    chart["series"].as_array().unwrap().iter().map(|it| it["name"].as_str().unwrap()).collect()
}

fn points(chart: &serde_json::Value, name: &str) -> usize {
    let all = chart["series"].as_array().unwrap();
    all.iter().find(|it| it["name"] == name).unwrap()["points"].as_array().unwrap().len()
}

fn record_of(suite: &str, measured: &[(&Plan, &[f64], &[f64])]) -> Record {
    let mut record = example();
    record.measurements.clear();
    for (plan, kernel, underpass) in measured {
        let kernel = kernel.to_vec();
        record.measurements.push(Measurement::conclude(suite, plan, kernel, underpass.to_vec(), None, None));
    }
    record
}

#[test]
fn the_page_fetches_nothing() {
    let page = without_library(&page(example()));
    for external in ["http://", "https://", "src=", "url(", "@import"] {
        assert!(!page.contains(external), "{external}");
    }
}

#[test]
fn what_was_measured_is_shown_beside_the_paper() {
    let page = page(example());
    for figure in ["61.0 µs", "510 ns", "120×", "70.0 µs", "30.0 MB/s", "9.00×", "14.0 k/s", "+500 µs", "✗ missed"]
    {
        assert!(page.contains(figure), "{figure}");
    }
    let charts = charts(&page);
    let round_trip = &charts[0];
    assert_eq!((points(round_trip, "Underpass"), points(round_trip, "cache line")), (2, 1));
    assert_eq!(points(round_trip, "bypass, Myrinet (paper)"), 2);
    assert!(
        page.contains("<td class=\"published\"><data value=\"98000\" data-unit=\"ns\">98.0 µs</data></td>"),
        "{page}"
    );
}

#[test]
fn what_was_not_measured_is_not_shown() {
    let shown = page(example());
    for trace in ["777 ns", "\"777\"", "777.0"] {
        assert!(!without_library(&shown).contains(trace), "an invalid figure has no place");
    }
    assert!(shown.contains("nginx: not measured, not installed"));
    let mut nothing = example();
    nothing.measurements.clear();
    nothing.skipped.clear();
    let shown = page(nothing);
    for absent in ["<figure", "<table", "class=\"tile\"", "Not shown", "Licensed under the MIT license"] {
        assert!(!shown.contains(absent), "{absent}");
    }
}

/// The file that the page makes of a table has the intervals that a reader sees.
#[test]
fn intervals_stand_beside_their_numbers() {
    let plan = Plan::rate("connect", "it", Unit::PerSecond);
    let one = Measurement::conclude("setup", &plan, vec![10.0, 11.0], vec![20.0, 33.0], None, None);
    let ratio = suite_table("it", &[&one]).rows[0].cells[2].clone();
    let interval = ratio.interval.expect("of two samples each");
    assert!((interval.low - 20.0 / 11.0).abs() < 1e-9 && (interval.high - 3.3).abs() < 1e-9, "{interval:?}");
    assert_eq!(ratio.small, "1.82 – 3.30×");
    let plan = Plan::cost("wake", "it", Unit::Nanoseconds);
    let other = Measurement::conclude("setup", &plan, vec![10.0, 11.0], vec![20.0, 33.0], None, None);
    assert_eq!(suite_table("it", &[&other]).rows[0].cells[2].unit, "ns");
}

/// A column is named for what it has.
#[test]
fn a_difference_is_not_called_a_ratio() {
    let head = |measured: &[&Measurement]| suite_table("it", measured).heads[3].clone();
    let plan = Plan::duration("wake", "it");
    let measured = |plan: &Plan| Measurement::conclude("setup", plan, vec![2.0; 2], vec![1.0; 2], None, None);
    let (ratio, difference) = (measured(&plan), measured(&Plan::cost("wake", "it", Unit::Nanoseconds)));
    assert_eq!(head(&[&ratio]), "ratio");
    assert_eq!(head(&[&difference]), "difference");
    assert_eq!(head(&[&ratio, &difference]), "ratio, or difference");
}

#[test]
fn a_run_that_is_not_complete_says_so() {
    let half = Record { complete: false, ..example() };
    assert!(page(half).contains("example: not complete, the run was ended before its end"));
    assert!(!without_library(&page(example())).contains("not complete"));
}

/// Whatever a record says is text: in the page, and in what the script reads.
#[test]
fn nothing_in_a_record_is_markup() {
    let attack = "</script><img src=x onerror=alert(1)>";
    let plan = Plan::rate("Redis", attack, Unit::PerSecond).target(Target::TimesBetter(2.0)).note(attack);
    let mut record = record_of("apps", &[(&plan, &[1.0, 2.0], &[3.0, 4.0])]);
    record.measurements[0].targets[0].text = attack.to_string();
    record.skipped[0].reason = attack.to_string();
    record.host.kernel = attack.to_string();
    record.programs.push(attack.to_string());
    let runs = [attack, "other"].map(|name| Run::new(name.to_string(), record.clone()).unwrap());
    let page = html(&Evidence { runs: runs.into(), ..Evidence::default() }).unwrap();
    assert!(!page.contains("<img"), "{}", without_library(&page));
    assert_eq!(charts(&page)[0]["rows"][0], attack, "and it is all there");
}

/// One rate that promises a factor and a rate that must not get worse, each with what a request costs.
#[test]
fn applications_are_drawn_by_rate_cost_and_slowest() {
    let mut plans = Vec::new();
    for (name, target) in [("Redis GET", Target::TimesBetter(3.0)), ("MariaDB, 8 threads", load::NOT_SLOWER)] {
        plans.extend(load::plans(Plan::rate(name, name, Unit::PerSecond).target(target), "request", true));
    }
    let measured: Vec<_> = plans.iter().map(|plan| (plan, &[4e3][..], &[5e3][..])).collect();
    let page = page(record_of("apps", &measured));
    let charts = charts(&page);
    assert_eq!(charts.len(), 3);
    for chart in &charts {
        assert_eq!(chart["rows"][1], "MariaDB, 8 threads", "a row is named as the rate is");
    }
    assert_eq!(page.matches("class=\"tile\"").count(), 1, "what must not get worse is no headline");
    assert!(page.contains("0.800×") && page.contains("MariaDB, 8 threads: p99"));
}

/// What has no side on kernel TCP: two curves and the link's over two sizes.
#[test]
fn layers_are_drawn_beside_the_link_alone() {
    use crate::suite::layers::{LINK_ALONE, Scheduler, Work, curve};
    let mut record = example();
    record.measurements.clear();
    for (layers, rate) in [(1, 9e9), (3, 8e9)] {
        for size in [1024, 65536] {
            let group = curve(layers, Work::None, Scheduler::InLine);
            let plan = Plan::rate(&group, format!("{layers} of {size}"), Unit::BytesPerSecond).of_size(size);
            let plan = plan.target(Target::ShareOfBaseline(0.9));
            let beside = Some((if layers == 1 { LINK_ALONE } else { "1 layer" }, vec![9e9]));
            record.measurements.push(Measurement::conclude("layers", &plan, vec![], vec![rate; 2], beside, None));
        }
    }
    let page = page(record);
    let charts = charts(&page);
    assert_eq!(names(&charts[0]), ["1 layer", "3 layers", LINK_ALONE, "1, 2, 3 layers, HIPPI alone (paper)"]);
    assert_eq!(names(&charts[1])[..2], ["no copy", LINK_ALONE]);
    assert_eq!(points(&charts[0], LINK_ALONE), 2);
    assert!(page.contains("88.9 %"), "three layers against one");
    assert!(page.contains("≥ 90 % of link alone (9.00 GB/s)") && page.contains("✗ missed"));
}

/// Two drivers, on both sides, and algorithms alone: packets, octets, and what algorithms gain beside the paper.
#[test]
fn drivers_are_drawn_by_packets_and_by_octets() {
    use crate::suite::driver::curve;
    let plans: Vec<Plan> = [curve::CALL, curve::COMPLETION[0], curve::COMPLETION[1]]
        .into_iter()
        .flat_map(|group| {
            let plan = |size| Plan::rate(group, format!("{group} of {size}"), Unit::PerSecond).of_size(size);
            [64, 1024].map(plan)
        })
        .collect();
    let rates = [[2e5; 2], [2e5; 2], [3e5; 2], [3e5; 2], [2e5; 2], [2e5; 2]];
    let measured: Vec<_> = plans.iter().zip(&rates).map(|(plan, rate)| (plan, &[1e5][..], &rate[..])).collect();
    let page = page(record_of("driver", &measured));
    let charts = charts(&page);
    assert_eq!(charts.len(), 4, "messages and octets, by driver and by algorithm");
    assert_eq!(names(&charts[0]), ["AF_XDP", "UDP, a call each"]);
    assert_eq!(charts[1]["series"][0]["points"][1]["y"], 2e5 * 1024.0);
    assert!(page.contains(">+50.0 %</data>") && page.contains(">+70 %</data>"), "here, and the paper's");
    assert!(page.contains("<data value=\"0.5\" data-low=\"0.5\" data-high=\"0.5\">+50.0 %</data>"));
}

/// One sample of each says how much it is, and nothing of how sure that is.
#[test]
fn a_change_of_one_sample_has_no_interval() {
    use crate::suite::driver::curve;
    let plan = |group: &str, size| Plan::rate(group, format!("{group} of {size}"), Unit::PerSecond).of_size(size);
    let [as_it_pays, none, ..] = curve::COPIES;
    let plans: Vec<Plan> =
        [1 << 12, 60 << 10].into_iter().flat_map(|it| [plan(as_it_pays, it), plan(none, it)]).collect();
    let page_of = |[over, under]: [&[f64]; 2]| {
        let rates = [over, under, over, under];
        let measured: Vec<_> = plans.iter().zip(rates).map(|(plan, rate)| (plan, &[][..], rate)).collect();
        page(record_of("driver", &measured))
    };
    let interval = |page: &str| {
        let charts = charts(page);
        let of_changes = charts.iter().find(|it| it["y"]["title"] == "change of throughput").expect("figure 9");
        of_changes["series"][0]["points"][0]["low"].clone()
    };
    let one = page_of([&[3.0], &[2.0]]);
    assert_eq!(interval(&one), serde_json::Value::Null);
    assert!(one.contains("+50.0 % (one sample)") && one.contains(">+50.0 %</data></td>"), "{}", without_library(&one));
    assert!(interval(&page_of([&[3.0, 3.1], &[2.0, 2.1]])).is_f64());
}

/// Figure 5 and tables 4 and 5 of the paper, as far as there are ways.
#[test]
fn receive_paths_are_drawn_and_tabulated() {
    use crate::suite::checksum::table::{self, Socket, Stage, Way};
    let mut plans = Vec::new();
    let mut measured = |group: String, size: u64, unit: Unit, samples: &[f64]| {
        let name = format!("{group} of {size}");
        let is_time = unit == Unit::Nanoseconds;
        let plan = if is_time { Plan::duration(&group, name) } else { Plan::rate(&group, name, unit) };
        plans.push((plan.of_size(size), samples.to_vec()));
    };
    for way in [Way::Skip, Way::Scalar, Way::GpuUmem] {
        for size in [1480, 9480] {
            let rate = if way == Way::GpuUmem { 2.2e9 } else { 2e9 };
            measured(table::throughput(Socket::Xdp, way), size, Unit::BytesPerSecond, &[rate, rate, 4e9]);
        }
        measured(table::idle(Socket::Packet, way), 1480, Unit::Percent, &[10.0, 20.0, 30.0]);
        for (stage, ns) in Stage::of(way).iter().zip([300.0, 90.0, 10.0, 10.0]) {
            measured(table::stage(Socket::Packet, way, *stage, false), 9480, Unit::Nanoseconds, &[ns; 3]);
        }
    }
    let measured: Vec<_> = plans.iter().map(|(plan, samples)| (plan, &[][..], &samples[..])).collect();
    let page = page(record_of("checksum", &measured));
    let charts = charts(&page);
    assert_eq!((charts[0]["kind"].as_str(), names(&charts[0]).len()), (Some("lines"), 3));
    assert_eq!(charts[1]["kind"], "stack");
    assert!(page.contains(">+10.0 %</data>") && page.contains(">+13 %</data>"), "the GPU's gain, and the paper's");
    assert!(
        page.contains(">21.2 %</data>")
            && page.contains("<data value=\"20\" data-unit=\"%\">20.0 %</data><small>± 10.0 %")
    );
    assert!(page.contains("75.0 %</data><small>300 ns ± 0 ns"));
    assert!(!page.contains("9480 B, gpu-staged"), "no way that was not measured");
}

#[test]
fn one_size_makes_no_curve() {
    let mut record = example();
    record.measurements.retain(|measurement| measurement.size != Some(4096));
    assert!(charts(&page(record)).iter().all(|chart| chart["kind"] != "lines"));
}

/// Every pair: a map for each size, and curves from each sender.
#[test]
fn endpoints_are_drawn_by_pair() {
    let mut text = crate::evidence::tests::survey();
    text["endpoints"][0]["emulation"] = "as <it> is".into();
    let survey = Survey::parse("survey".to_string(), text.to_string().as_bytes()).unwrap();
    let page = html(&Evidence { surveys: vec![survey], ..Evidence::default() }).unwrap();
    let charts = charts(&page);
    let kinds: Vec<&str> = charts.iter().map(|it| it["kind"].as_str().unwrap()).collect();
    let of_figure = ["heat", "heat", "lines", "lines"];
    assert_eq!(kinds, [of_figure; 3].concat(), "throughput, and what it costs the sender and the receiver");
    assert_eq!(charts[0]["values"], serde_json::json!([[null, 1.005e8], [2.01e8, null]]));
    assert_eq!(charts[0]["rows"][1], "card (emulated)", "what is emulated is labelled");
    assert_eq!(charts[0]["hovers"][0][0], "host (emulated) to host (emulated): not measured");
    // 5 µs of the sender and 7 µs of the receiver for 1,000 bytes.
    let [sender, receiver] = [&charts[4], &charts[8]];
    assert_eq!(sender["values"], serde_json::json!([[null, 5.0], [5.0, null]]));
    assert_eq!(receiver["texts"], serde_json::json!([["", "7.00 ns"], ["7.00 ns", ""]]));
    let captions = ["sender", "receiver"]
        .map(|end| format!("Processor time of the {end} for each byte: throughput, kernel TCP, 64 B: sender by row"));
    assert!(captions.iter().all(|it| page.contains(it)), "{}", without_library(&page));
    assert!(page.contains("as &#60;it&#62; is") && page.contains("7.00 ns"), "{}", without_library(&page));
}

/// The record says that an observation is confirmed, and has two pairs, of which nothing can be said.
#[test]
fn observations_are_tested_on_the_samples_that_are_shown() {
    let text = crate::evidence::tests::survey();
    assert_eq!(text["observations"][0]["verdict"], "confirmed");
    let survey = Survey::parse("survey".to_string(), text.to_string().as_bytes()).unwrap();
    let page = without_library(&html(&Evidence { surveys: vec![survey], ..Evidence::default() }).unwrap());
    assert!(page.contains("Maximum follows receiver") && page.contains("Latency follows receiver"), "{page}");
    assert!(!page.contains(">confirmed<") && page.matches(">undecided<").count() == 3, "{page}");
}

/// What a SmartNIC does to a transfer, and how exchanges were distributed where the tool tells.
#[test]
fn a_file_is_drawn_with_and_without_offloading() {
    let mut survey = crate::evidence::tests::survey();
    let mut far = survey["endpoints"][0].clone();
    (far["name"], far["emulated"]) = ("far".into(), false.into());
    survey["endpoints"].as_array_mut().unwrap().push(far);
    for (via, times) in [(serde_json::Value::Null, [1e9, 1.1e9]), ("card".into(), [2e9, 2.2e9])] {
        let mut series = survey["series"][0].clone();
        for (of, is) in
            [("receiver", "far"), ("tool", "openssl"), ("metric", "tls"), ("unit", "ns"), ("better", "lower")]
        {
            series[of] = is.into();
        }
        series["via"] = via;
        for (sample, time) in times.into_iter().enumerate() {
            series["samples"][sample]["value"] = time.into();
        }
        series["samples"][0]["via_time"] = 3000.into();
        series["samples"][1]["via_time"] = 3000.into();
        survey["series"].as_array_mut().unwrap().push(series);
    }
    let survey = Survey::parse("survey".to_string(), survey.to_string().as_bytes()).unwrap();
    let page = html(&Evidence { surveys: vec![survey.clone()], ..Evidence::default() }).unwrap();
    let charts = charts(&page);
    let [.., dots] = &charts[..] else { panic!("no chart") };
    assert_eq!((&dots["kind"], names(dots)), (&"dots".into(), vec!["encrypted by the sender", "offloaded"]));
    assert_eq!(dots["rows"], serde_json::json!(["host (emulated) → far, 64 B, offloaded to card (emulated)"]));
    assert_eq!(dots["series"][1]["points"][0]["x"], 2.1e9);
    assert!(page.contains(">2.00×</data><small>1.82 – 2.20×"), "{}", without_library(&page));
    let shown = without_library(&page);
    assert!(shown.contains("3.00 ns") && !shown.contains("p99.9"), "who encrypts takes time: {shown}");

    let mut told = survey;
    let percentiles = crate::survey::record::Percentiles { p50: 1e3, p99: 2e3, p999: 345e3 };
    let pairs = told.record.series.iter_mut().filter(|it| it.key.size == 64 && it.key.tool == Tool::Iperf3);
    pairs.flat_map(|it| &mut it.samples).for_each(|it| it.percentiles = Some(percentiles));
    let page = html(&Evidence { surveys: vec![told], ..Evidence::default() }).unwrap();
    for (name, shown) in [("P50", "1.00 µs"), ("P99", "2.00 µs"), ("P99.9", "345 µs")] {
        let caption = format!("{name} of throughput, kernel TCP, 64 B: sender by row, receiver by column");
        let (_, figure) = page.split_once(&caption).unwrap_or_else(|| panic!("{caption}: {}", without_library(&page)));
        assert!(figure.split_once("</figure>").unwrap().0.contains(shown), "{name}");
    }
    assert!(
        page.contains("<th scope=\"col\">p99.9</th>")
            && page.contains("<data value=\"345000\" data-unit=\"ns\">345 µs</data>")
    );
}

/// How a survey is measured differs from how a suite is.
#[test]
fn the_page_says_how_what_it_shows_was_measured() {
    let text = crate::evidence::tests::survey().to_string();
    let surveys = vec![Survey::parse("survey".to_string(), text.as_bytes()).unwrap()];
    let checks = vec![crate::evidence::tests::checked()];
    let words = ["Kernel TCP and Underpass were measured in turn", "In surveys existing tools", "In checks of advice"];
    let told = |evidence: Evidence| {
        let page = without_library(&html(&evidence).unwrap());
        words.map(|it| page.contains(it))
    };
    let runs = Evidence::of("example".to_string(), example()).unwrap().runs;
    assert_eq!(told(Evidence { runs, ..Evidence::default() }), [true, false, false]);
    assert_eq!(told(Evidence { surveys, ..Evidence::default() }), [false, true, false]);
    assert_eq!(told(Evidence { checks, ..Evidence::default() }), [false, false, true]);
}

/// Two cases, one of them wrong: what they come to, and the wrong one by itself.
#[test]
fn a_check_is_shown_with_each_wrong_case() {
    let checked = crate::evidence::tests::checked();
    let page = html(&Evidence { checks: vec![checked], ..Evidence::default() }).unwrap();
    let page = without_library(&page);
    assert!(page.contains("Advice put to the test"), "{page}");
    let (wrong, all) =
        page.split_once("Cases in which the advice was wrong").unwrap().1.split_once("All cases").unwrap();
    assert!(wrong.contains("layers: 1 layer, throughput") && wrong.contains("20.0 %"), "{wrong}");
    assert!(!wrong.contains("copies: veth pair") && all.contains("copies: veth pair"), "{wrong}");
    assert!(page.contains("50.0 %") && page.contains(">3.70 %<"), "right outside ties, and what is published: {page}");
    assert!(page.contains("link: not checked, no root"), "{page}");
}
