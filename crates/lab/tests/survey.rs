//! Surveys over loopback: with agents that do what they should, with the real tools, and with agents that do not.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use underpass_lab::Options;
use underpass_lab::bench::{Experiment, Lab};
use underpass_lab::host::Host;
use underpass_lab::launcher::Side;
use underpass_lab::survey::again::{Again, Samples};
use underpass_lab::survey::agent::{Agent, Event};
use underpass_lab::survey::channel::{self, ChannelError};
use underpass_lab::survey::coordinator::{Outcome, Survey, SurveyError, journal_of, run};
use underpass_lab::survey::endpoints::{Place, Reach};
use underpass_lab::survey::journal::JournalError;
use underpass_lab::survey::message::{Amount, Client, Facts, Reading, Received, Reply, Request, Server, Stopped};
use underpass_lab::survey::record::{
    Head, Key, Kind, Latency, Load, Metric, Percentiles, Plan, Throughput, Tool, ToolVersion, cells,
};
use underpass_lab::survey::remote::{AgentError, Remote};
use underpass_lab::survey::roster::Connect;
use underpass_lab::survey::token::Token;
use underpass_lab::survey::toolbox::Toolbox;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SAMPLES: usize = 3;

/// A token of its own for each call.
fn token() -> Token {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    Token::make(&path).unwrap();
    Token::read(&path).unwrap()
}

fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
    let at = listener.local_addr().unwrap();
    (listener, at)
}

fn place(name: &str, at: SocketAddr) -> Place {
    let (name, kind) = (name.to_string(), Kind::Host);
    Place { system: name.clone(), name, kind, emulation: None, address: LOOPBACK, agent: Reach::Address(at) }
}

fn plan() -> Plan {
    Plan {
        samples: SAMPLES,
        seconds: 1,
        brief: false,
        quick: false,
        throughput: vec![Throughput { size: 4096, flows: 1 }],
        latency: vec![Latency { size: 64, load: Load::Idle }],
        latency_tool: None,
        tls: Vec::new(),
        underpass: false,
    }
}

/// The answers of an agent that does what it should.
fn honest(request: &Request) -> Reply {
    let tool = |tool| ToolVersion { tool, version: "9.9".to_string() };
    match request {
        Request::Describe => Reply::Facts(Box::new(Facts {
            version: env!("CARGO_PKG_VERSION").to_string(),
            revision: None,
            host: Host::describe(),
            tools: vec![tool(Tool::Iperf3), tool(Tool::Sockperf)],
            unusable: vec![(Tool::Openssl, "openssl 1.0.2 is too old; 1.1.1 or later is needed".to_string())],
            library: false,
            network: "n".to_string(),
            user: 0,
        })),
        Request::Time => Reply::Time(0),
        Request::Serve { .. } => Reply::Started { job: 1, port: 4711 },
        Request::Stream { .. } => Reply::Started { job: 2, port: 0 },
        Request::Stop { .. } => {
            let received = Some(Received { bytes: 1_000_000, still: 0.0 });
            Reply::Stopped(Stopped { processor_time: 1000, complaint: None, received })
        }
        Request::Measure { client, .. } => {
            // As long as the coordinator's own clock can have seen.
            thread::sleep(Duration::from_millis(5));
            let latency = matches!(client, Client::Latency { .. });
            let percentiles = latency.then_some(Percentiles { p50: 9.0, p99: 20.0, p999: 30.0 });
            let (value, bytes) = if latency { (10.0, None) } else { (1e6, Some(5000)) };
            Reply::Measured(Reading { value, percentiles, seconds: 0.005, bytes, exchanges: None, processor_time: 500 })
        }
    }
}

/// Ends agents, also where an assertion fails between them: the test would wait for them otherwise.
struct End<'a>(&'a AtomicBool);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Answers coordinators at a listener until `ended`, by `answer`; `None` closes the connection, as a killed agent's is
/// closed.
fn answer(
    listener: &TcpListener,
    token: &Token,
    ended: &AtomicBool,
    answer: &(dyn Fn(&Request) -> Option<Reply> + Sync),
) {
    listener.set_nonblocking(true).unwrap();
    while !ended.load(Ordering::Relaxed) {
        let Ok((stream, _)) = listener.accept() else {
            thread::sleep(Duration::from_millis(5));
            continue;
        };
        stream.set_nonblocking(false).unwrap();
        let ends = (Box::new(stream.try_clone().unwrap()) as _, Box::new(stream.try_clone().unwrap()) as _);
        let Ok((mut say, mut hear)) = channel::answer(ends, token, || true) else { continue };
        while let Ok(request) = hear.hear::<Request>() {
            let Some(reply) = answer(&request) else { break };
            if say.say(&reply).is_err() {
                break;
            }
        }
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

fn survey(places: &[Place], plan: &Plan, token: &Token, json: &Path) -> Result<Outcome, SurveyError> {
    let connect = |index: usize| match places[index].agent {
        Reach::Address(at) => Remote::connect(at, token),
        Reach::Command(_) => Err(AgentError::Confused),
    };
    let (seed, begun) = (Some(7), &|_, _, _| {});
    run(&Survey { places, plan, missing: &[], seed, json, progress: false, connect: &connect, begun })
}

/// A survey of two scripted agents. The first does what it should.
fn scripted(json: &Path, second: &(dyn Fn(&Request) -> Option<Reply> + Sync)) -> Result<Outcome, SurveyError> {
    scripted_with(json, &plan(), second)
}

fn scripted_with(
    json: &Path,
    plan: &Plan,
    second: &(dyn Fn(&Request) -> Option<Reply> + Sync),
) -> Result<Outcome, SurveyError> {
    let (token, ended) = (token(), AtomicBool::new(false));
    let ((a, at_a), (b, at_b)) = (listener(), listener());
    thread::scope(|scope| {
        scope.spawn(|| answer(&a, &token, &ended, &|request| Some(honest(request))));
        scope.spawn(|| answer(&b, &token, &ended, second));
        let _end = End(&ended);
        survey(&[place("a", at_a), place("b", at_b)], plan, &token, json)
    })
}

/// Changes what an agent measured.
type Lie = fn(&mut Reading);

/// An agent that lies about what it measured.
fn lying(change: Lie) -> impl Fn(&Request) -> Option<Reply> + Sync {
    move |request| match honest(request) {
        Reply::Measured(mut reading) => {
            change(&mut reading);
            Some(Reply::Measured(reading))
        }
        reply => Some(reply),
    }
}

#[test]
fn every_pair_has_every_sample_once() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("survey.json");
    let outcome = scripted(&json, &|request| Some(honest(request))).unwrap();
    assert!(outcome.record.complete && outcome.lost.is_empty() && !outcome.interrupted);
    assert_eq!(outcome.record.series.len(), 2 * 2);
    for series in &outcome.record.series {
        assert_eq!(series.samples.len(), SAMPLES);
        assert!(series.samples.iter().all(|sample| sample.stream_bytes.is_none()), "there is no stream beside it");
        let times: BTreeSet<&str> = series.samples.iter().map(|sample| sample.at.as_str()).collect();
        assert_eq!(times.len(), SAMPLES, "each was taken at another time");
        assert!(series.samples.iter().all(|sample| (sample.sender_time, sample.receiver_time) == (500, 1000)));
    }
    assert!(!journal_of(&json).exists());
    let again = scripted(&json, &|request| Some(honest(request))).unwrap_err();
    assert!(matches!(again, SurveyError::Complete(_)), "{again}");
    // The scripted clock stands at 1970: it is named, and no figure rests on it.
    assert!(outcome.record.head.endpoints[1].clock_offset < -1_000_000_000_000_000_000);
}

#[test]
fn a_survey_goes_on_where_an_agent_was_killed_and_measures_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("survey.json");
    let measured = AtomicUsize::new(0);
    // After four measurements it says nothing more to any coordinator.
    let mortal = |request: &Request| {
        let dies = matches!(request, Request::Measure { .. }) && measured.fetch_add(1, Ordering::Relaxed) >= 4;
        (!dies && measured.load(Ordering::Relaxed) <= 4).then(|| honest(request))
    };
    let first = scripted(&json, &mortal).unwrap();
    assert!(!first.record.complete);
    assert_eq!(first.lost[0].0, "b");
    let kept: Vec<_> = first.record.series.iter().flat_map(|series| series.samples.clone()).collect();
    assert!(kept.len() >= 4, "what was measured is kept: {}", kept.len());
    assert!(journal_of(&json).exists());

    let more = AtomicUsize::new(0);
    let counted = |request: &Request| {
        if matches!(request, Request::Measure { .. }) {
            more.fetch_add(1, Ordering::Relaxed);
        }
        Some(honest(request))
    };
    // The same agents at other ports: the way to an agent is no part of a survey.
    let second = scripted(&json, &counted).unwrap();
    assert!(second.record.complete && second.lost.is_empty());
    let all: Vec<_> = second.record.series.iter().flat_map(|series| series.samples.clone()).collect();
    assert_eq!(all.len(), 2 * 2 * SAMPLES);
    assert!(kept.iter().all(|sample| all.contains(sample)), "nothing is lost");
    let by_b = |outcome: &Outcome| {
        let series = outcome.record.series.iter().filter(|series| series.key.sender == "b");
        series.map(|series| series.samples.len()).sum::<usize>()
    };
    assert_eq!(more.load(Ordering::Relaxed), by_b(&second) - by_b(&first), "nothing is measured twice");
}

#[test]
fn what_an_agent_lies_about_is_left_out_and_named() {
    let lies: [(Lie, &str); 4] = [
        (|it| it.value = -5.0, "of -5"),
        (|it| it.seconds = 1e9, "a duration in seconds of 1000000000"),
        (|it| it.processor_time = u64::MAX, "a processor time in ns"),
        (|it| it.percentiles = Some(Percentiles { p50: 3.0, p99: 2.0, p999: 1.0 }), "percentiles in ns of 3, 2, 1"),
    ];
    for (lie, named) in lies {
        let folder = tempfile::tempdir().unwrap();
        let json = folder.path().join("survey.json");
        let record = scripted(&json, &lying(lie)).unwrap().record;
        assert!(record.complete);
        assert!(record.series.iter().all(|series| series.key.sender == "a"), "{named}");
        let reasons: Vec<&str> = record.skipped.iter().map(|it| it.reason.as_str()).collect();
        assert!(reasons.iter().any(|reason| reason.contains(named)), "{reasons:?}");
        assert!(record.skipped.iter().any(|it| it.name.starts_with("b → a: throughput")), "{:?}", record.skipped);
    }
}

/// Latency beside a stream that stands still is that of an idle network.
#[test]
fn a_stream_that_stood_still_makes_its_latency_no_figure() {
    let beside = Plan { latency: vec![Latency { size: 64, load: Load::Stream }], ..plan() };
    let of = |bytes, still| Some(Received { bytes, still });
    for (received, named) in [
        (of(0, 0.0), Some("the stream beside it carried nothing (3 times)")),
        // Of 5 ms that were measured; it flowed long before and after.
        (of(5000, 0.004), Some("the stream beside it stood still for 0.004 s, and 0.005 s were measured (3 times)")),
        (of(5000, 0.0025), Some("the stream beside it stood still for 0.003 s, and 0.005 s were measured")),
        (None, Some("the stream beside it did not say what it carried (3 times)")),
        (of(u64::MAX, 0.0), Some("the agent gave a number of bytes of a stream of 18446744073709551615")),
        (of(5000, -1.0), Some("the agent gave a time without a stream in seconds of -1, which cannot be")),
        (of(5000, 3600.0), Some("the agent gave a time without a stream in seconds of 3600, which cannot be")),
        (of(5000, 0.0024), None),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let receiving = |request: &Request| match honest(request) {
            Reply::Stopped(stopped) => Some(Reply::Stopped(Stopped { received, ..stopped })),
            reply => Some(reply),
        };
        let record = scripted_with(&folder.path().join("survey.json"), &beside, &receiving).unwrap().record;
        let to_b = record.series.iter().find(|it| it.key.receiver == "b" && it.key.metric == Metric::Latency);
        let carried = to_b.map(|series| series.samples.iter().map(|it| it.stream_bytes).collect::<Vec<_>>());
        assert_eq!(carried, named.is_none().then(|| vec![received.map(|it| it.bytes); SAMPLES]));
        let skipped: Vec<_> = record.skipped.iter().filter(|it| it.name.starts_with("a → b: latency")).collect();
        assert_eq!(skipped.len(), usize::from(named.is_some()), "{skipped:?}");
        assert!(named.is_none_or(|named| skipped[0].reason.contains(named)), "{skipped:?}");
    }
}

#[test]
fn a_number_that_is_none_ends_the_connection_and_the_figure_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let outcome = scripted(&folder.path().join("survey.json"), &lying(|it| it.value = f64::NAN)).unwrap();
    let record = outcome.record;
    assert!(record.complete && record.series.iter().all(|series| series.key.sender == "a"));
    // NaN cannot be said in JSON.
    let named: Vec<_> = record.skipped.iter().filter(|it| it.reason.contains("b was lost (3 times)")).collect();
    assert_eq!(named.len(), 2, "{:?}", record.skipped);
    assert!(named.iter().all(|it| it.reason.contains("makes no sense")), "{named:?}");
}

/// Each octet of its greeting comes in time, and all of it would take minutes.
#[test]
fn an_agent_that_dribbles_its_greeting_does_not_hold_the_coordinator() {
    let (slow, at) = listener();
    let begun = Instant::now();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut stream, _) = slow.accept().unwrap();
            // It begins as an agent does, and goes on until nobody hears it.
            for octet in b"underpass-agent\x02".iter().chain(&[0; 32]) {
                if stream.write_all(&[*octet]).is_err() || begun.elapsed() > Duration::from_secs(60) {
                    return;
                }
                thread::sleep(Duration::from_secs(1));
            }
        });
        let error = Remote::connect(at, &token()).err().expect("it has not greeted").to_string();
        assert_eq!(error, "the agent did not answer within 10 s");
    });
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

/// A coordinator neither keeps what it has not asked for, nor all of what an agent gives as a reason.
#[test]
fn an_agent_that_never_stops_talking_fills_no_memory() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("survey.json");
    let (token, ended) = (token(), AtomicBool::new(false));
    let ((a, at_a), (b, at_b)) = (listener(), listener());
    let said = AtomicUsize::new(0);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| answer(&a, &token, &ended, &|request| Some(honest(request))));
        scope.spawn(|| {
            let ends = |stream: TcpStream| (Box::new(stream.try_clone().unwrap()) as _, Box::new(stream) as _);
            let (mut say, mut hear) = channel::answer(ends(b.accept().unwrap().0), &token, || true).unwrap();
            while let Ok(request) = hear.hear::<Request>() {
                if !matches!(request, Request::Describe | Request::Time) {
                    break;
                }
                say.say(&honest(&request)).unwrap();
            }
            let reason = "x".repeat(1_000_000);
            while say.say(&Reply::Failed { reason: reason.clone() }).is_ok() {
                said.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _end = End(&ended);
        survey(&[place("a", at_a), place("b", at_b)], &plan(), &token, &json).unwrap()
    });
    let record = outcome.record;
    assert!(record.complete && record.series.is_empty(), "each pair has it at an end: {:?}", record.series);
    assert_eq!(record.skipped.iter().filter(|it| it.reason.starts_with("xxx") && it.reason.len() < 3000).count(), 4);
    // Each figure was tried three times, with a request or two each; the rest waited in the connection.
    assert!(said.load(Ordering::Relaxed) < 100, "{said:?}");
}

/// All that an agent may say in its own words.
#[test]
fn no_word_of_an_agent_is_longer_than_a_reason() {
    let long = || "x".repeat(500_000);
    let folder = tempfile::tempdir().unwrap();
    let complaining = |request: &Request| match honest(request) {
        Reply::Stopped(stopped) => Some(Reply::Stopped(Stopped { complaint: Some(long()), ..stopped })),
        reply => Some(reply),
    };
    let record = scripted(&folder.path().join("survey.json"), &complaining).unwrap().record;
    let of_b: Vec<_> = record.skipped.iter().filter(|it| it.name.starts_with("a → b")).collect();
    assert!(!of_b.is_empty() && of_b.iter().all(|it| it.reason.len() < 3000), "{:?}", of_b[0].reason.len());

    let describing = |change: &(dyn Fn(&mut Facts) + Sync)| {
        let wordy = |request: &Request| match honest(request) {
            Reply::Facts(mut facts) => {
                change(&mut facts);
                Some(Reply::Facts(facts))
            }
            reply => Some(reply),
        };
        scripted(&folder.path().join("other.json"), &wordy).unwrap_err().to_string()
    };
    let told = describing(&|it| it.version = long());
    assert!(told.len() < 3000 && told.contains("b: the agent describes itself by a text of more"), "{}", told.len());
    assert!(describing(&|it| it.host.kernel = long()).contains("b: the agent describes itself"));
    assert!(describing(&|it| it.unusable = vec![(Tool::Qperf, long())]).contains("b: the agent describes itself"));
}

#[test]
fn what_failed_once_is_tried_again() {
    let folder = tempfile::tempdir().unwrap();
    let failed = AtomicBool::new(false);
    let outcome = scripted(&folder.path().join("survey.json"), &|request| {
        let fails = matches!(request, Request::Measure { .. }) && !failed.swap(true, Ordering::Relaxed);
        Some(if fails { Reply::Failed { reason: "the port was taken".to_string() } } else { honest(request) })
    });
    let record = outcome.unwrap().record;
    assert!(record.complete && record.series.iter().all(|series| series.samples.len() == SAMPLES));
}

#[test]
fn a_tool_that_is_too_old_is_named_and_the_rest_is_measured() {
    let folder = tempfile::tempdir().unwrap();
    let with_tls = Plan { tls: vec![1 << 20], ..plan() };
    let record =
        scripted_with(&folder.path().join("s.json"), &with_tls, &|request| Some(honest(request))).unwrap().record;
    assert!(record.complete && record.series.len() == 4);
    let old: Vec<_> = record.skipped.iter().filter(|it| it.reason.contains("1.0.2 is too old")).collect();
    assert_eq!(old.len(), 2, "at both endpoints: {:?}", record.skipped);
}

#[test]
fn another_version_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let older = |request: &Request| match honest(request) {
        Reply::Facts(mut facts) => {
            facts.version = "0.0.1".to_string();
            Some(Reply::Facts(facts))
        }
        reply => Some(reply),
    };
    let error = scripted(&folder.path().join("survey.json"), &older).unwrap_err().to_string();
    assert!(error.contains("b runs Underpass 0.0.1") && error.contains("must not be mixed"), "{error}");
}

/// Changes what an agent says of itself.
type Change = fn(&mut Facts);

/// Somebody installs another iperf3 while an agent is gone: its figures are of another tool, of the same version of
/// Underpass.
#[test]
fn an_agent_that_comes_back_as_another_ends_the_survey() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("survey.json");
    let changes: [(Change, &str); 3] = [
        (
            |it| it.tools[0].version = "9.10".to_string(),
            "the tools of b were iperf3 9.9, sockperf 9.9 and are iperf3 9.10",
        ),
        (|it| it.user = 1000, "the user number of b was 0 and is 1000"),
        (|it| it.network = "other".to_string(), "the set of endpoints on the host of b was a, b and is b"),
    ];
    for (change, named) in changes {
        let was_lost = AtomicBool::new(false);
        let other = |request: &Request| {
            if matches!(request, Request::Measure { .. }) && !was_lost.swap(true, Ordering::Relaxed) {
                return None;
            }
            match honest(request) {
                Reply::Facts(mut facts) if was_lost.load(Ordering::Relaxed) => {
                    change(&mut facts);
                    Some(Reply::Facts(facts))
                }
                reply => Some(reply),
            }
        };
        let error = scripted(&json, &other).unwrap_err();
        assert!(matches!(&error, SurveyError::Changed(_)), "{error}");
        let error = error.to_string();
        assert!(error.contains(named) && error.contains("the same command goes on"), "{error}");
        assert!(journal_of(&json).exists(), "what was measured before is kept");
        // As it was, it goes on.
        assert!(scripted(&json, &|request| Some(honest(request))).unwrap().record.complete);
        std::fs::remove_file(&json).unwrap();
    }
}

/// Two agents of one host, which is started anew: each is known by the host's earlier identity until it is met again.
#[test]
fn agents_that_are_lost_together_come_back_together() {
    let folder = tempfile::tempdir().unwrap();
    for b_returns in [true, false] {
        let json = folder.path().join(format!("{b_returns}.json"));
        let (token, ended, is_anew) = (token(), AtomicBool::new(false), AtomicBool::new(false));
        let ((a, at_a), (b, at_b)) = (listener(), listener());
        let anew = |request: &Request, is_back: &AtomicBool| {
            if matches!(request, Request::Measure { .. }) {
                is_anew.store(true, Ordering::Relaxed);
            }
            // Connections from before are dead.
            if is_anew.load(Ordering::Relaxed) && !is_back.swap(true, Ordering::Relaxed) {
                return None;
            }
            match honest(request) {
                Reply::Facts(mut facts) if is_anew.load(Ordering::Relaxed) => {
                    facts.network = "started-anew".to_string();
                    Some(Reply::Facts(facts))
                }
                reply => Some(reply),
            }
        };
        let is_back = [AtomicBool::new(false), AtomicBool::new(false)];
        let is_gone = || !b_returns && is_anew.load(Ordering::Relaxed);
        let outcome = thread::scope(|scope| {
            scope.spawn(|| answer(&a, &token, &ended, &|request| anew(request, &is_back[0])));
            scope.spawn(|| {
                answer(&b, &token, &ended, &|request| anew(request, &is_back[1]).filter(|_| !is_gone()));
            });
            let _end = End(&ended);
            survey(&[place("a", at_a), place("b", at_b)], &plan(), &token, &json).unwrap()
        });
        let lost: Vec<&str> = outcome.lost.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(lost, if b_returns { vec![] } else { vec!["b"] });
        assert_eq!(outcome.record.complete, b_returns);
        let samples: usize = outcome.record.series.iter().map(|series| series.samples.len()).sum();
        assert_eq!(samples, if b_returns { 2 * 2 * SAMPLES } else { 0 });
    }
}

/// Days of measurements, of which no report could read the record.
#[test]
fn more_samples_than_a_record_can_have_are_refused_before_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("survey.json");
    let plan = Plan { samples: 20_001, ..plan() };
    let honest = |request: &Request| (!matches!(request, Request::Serve { .. })).then(|| honest(request));
    let error = scripted_with(&json, &plan, &honest).unwrap_err().to_string();
    assert!(
        error.starts_with("80004 samples are asked for, and at most 80000 fit into one record; name fewer"),
        "{error}"
    );
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

/// What the tool of each endpoint leaves of the pairs is known only when all have described themselves.
#[test]
fn a_survey_whose_report_would_be_too_large_is_refused_before_the_first_sample() {
    let keys = |pairs: u32, flows: u32| -> Vec<Key> {
        let key = |flows: u32, pair: u32| Key {
            sender: format!("s{pair}"),
            receiver: format!("r{pair}"),
            via: None,
            tool: Tool::Iperf3,
            metric: Metric::Throughput,
            size: 64,
            flows,
            load: Load::Idle,
            path: Side::Kernel,
        };
        (1..=flows).flat_map(|flows| (0..pairs).map(move |pair| key(flows, pair))).collect()
    };
    // Each pair by itself is a cell of a map and one of a curve; all pairs of a figure share its map.
    assert_eq!(cells(keys(1, 1).iter()), 2);
    assert_eq!(cells(keys(100, 3).iter()), 3 * (100 * 100 + 100));
    let error = SurveyError::TooSparse(200_000).to_string();
    assert!(error.contains("200000 cells, and at most 100000") && error.contains("name fewer endpoints"), "{error}");
}

#[test]
fn a_survey_does_not_go_on_without_its_journal_or_with_that_of_another_plan() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("survey.json");
    let gone = AtomicBool::new(false);
    let mortal = |request: &Request| {
        let dies = matches!(request, Request::Measure { .. }) || gone.load(Ordering::Relaxed);
        gone.fetch_or(dies, Ordering::Relaxed);
        (!dies).then(|| honest(request))
    };
    assert!(!scripted(&json, &mortal).unwrap().record.complete);
    // Without its journal nothing of it could be gone on with, and the next record would take its place.
    let (record, journal) = (std::fs::read(&json).unwrap(), std::fs::read(journal_of(&json)).unwrap());
    for left in [None, Some(&b""[..]), Some(&journal[..9])] {
        std::fs::remove_file(journal_of(&json)).unwrap();
        left.map_or(Ok(()), |left| std::fs::write(journal_of(&json), left)).unwrap();
        let lost = scripted(&json, &|request| Some(honest(request))).unwrap_err();
        assert!(matches!(lost, SurveyError::NoJournal { .. }), "{lost}");
        assert_eq!(std::fs::read(&json).unwrap(), record);
        std::fs::write(journal_of(&json), b"").unwrap();
    }
    std::fs::write(journal_of(&json), journal).unwrap();
    let other = Plan { samples: SAMPLES + 1, ..plan() };
    let error = scripted_with(&json, &other, &|request| Some(honest(request))).unwrap_err();
    assert!(matches!(error, SurveyError::Journal(JournalError::Other { .. })), "{error}");
}

#[test]
fn an_endpoint_that_cannot_be_reached_is_named_and_so_is_one_with_another_token() {
    let folder = tempfile::tempdir().unwrap();
    let (ours, theirs, ended) = (token(), token(), AtomicBool::new(false));
    let ((a, at_a), (gone, at_gone)) = (listener(), listener());
    drop(gone);
    let error = thread::scope(|scope| {
        scope.spawn(|| answer(&a, &theirs, &ended, &|request| Some(honest(request))));
        let places = [place("a", at_a), place("b", at_gone)];
        let _end = End(&ended);
        survey(&places, &plan(), &ours, &folder.path().join("survey.json")).unwrap_err().to_string()
    });
    assert!(error.contains("a: the other end has another token"), "{error}");
    assert!(
        error.contains(&format!("b: cannot reach the agent at {at_gone}")) && error.contains("underpass agent"),
        "{error}"
    );
}

/// Real agents at loopback, until `work` is done.
fn with_agents<T>(count: usize, work: impl FnOnce(&Token, &[SocketAddr]) -> T) -> T {
    let ended = AtomicBool::new(false);
    let agent = Agent { token: token(), launcher: None, tools: Toolbox::system(), ports: 0..=0 };
    let listeners: Vec<_> = (0..count).map(|_| listener()).collect();
    thread::scope(|scope| {
        for (listener, _) in &listeners {
            scope.spawn(|| agent.serve_until(listener, &|_: Event| {}, &|| ended.load(Ordering::Relaxed)).unwrap());
        }
        let addresses: Vec<SocketAddr> = listeners.iter().map(|(_, at)| *at).collect();
        let _end = End(&ended);
        work(&agent.token, &addresses)
    })
}

fn await_condition(what: &str, mut condition: impl FnMut() -> bool) {
    let last = Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(Instant::now() < last, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Whether all of these are installed; says which is not.
fn installed(tools: &[&str]) -> bool {
    let missing = tools.iter().find(|tool| std::process::Command::new(tool).arg("--version").output().is_err());
    missing.inspect(|tool| eprintln!("skipped: {tool} is not installed")).is_none()
}

#[test]
fn an_agent_has_one_coordinator_and_ends_what_it_started_when_that_is_gone() {
    if !installed(&["iperf3"]) {
        return;
    }
    with_agents(1, |token, at| {
        let mut first = Remote::connect(at[0], token).unwrap();
        let busy = Remote::connect(at[0], token).err().expect("it has a coordinator");
        assert!(matches!(busy, AgentError::Lost(ChannelError::Busy)), "{busy}");
        let serve = Request::Serve { server: Server::Iperf3, at: LOOPBACK, path: Side::Kernel };
        let (_, port) = first.begin(&serve, Duration::from_secs(60)).unwrap();
        assert!(TcpListener::bind((LOOPBACK, port)).is_err(), "it listens");
        drop(first);
        await_condition("the server outlives its coordinator", || TcpListener::bind((LOOPBACK, port)).is_ok());
        await_condition("the agent takes no other coordinator", || Remote::connect(at[0], token).is_ok());
    });
}

/// It asks on while the agent is at work, and reads no answer.
#[test]
fn a_coordinator_that_asks_without_end_is_left() {
    with_agents(1, |token, at| {
        let stream = TcpStream::connect(at[0]).unwrap();
        let ends = (Box::new(stream.try_clone().unwrap()) as _, Box::new(stream.try_clone().unwrap()) as _);
        let (mut say, _hear) = channel::greet(ends, token).unwrap();
        // What is asked first takes until all tools have said their versions.
        let asked = (0..1_000_000).take_while(|_| say.say(&Request::Describe).is_ok()).count();
        assert!(asked < 1_000_000, "all of it was taken");
        await_condition("the agent takes no other coordinator", || Remote::connect(at[0], token).is_ok());
    });
}

#[test]
fn an_agent_ends_without_waiting_for_a_stranger() {
    let begun = Instant::now();
    let _silent = with_agents(1, |token, at| {
        let stranger = TcpStream::connect(at[0]).unwrap();
        // The agent takes connections in their order.
        await_condition("the agent serves nobody", || Remote::connect(at[0], token).is_ok());
        stranger
    });
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}: a greeting may take ten seconds", begun.elapsed());
}

/// Says all at once, when the greeting has gone wrong, and closes.
struct Late(TcpStream, Vec<u8>);

impl Write for Late {
    fn write(&mut self, octets: &[u8]) -> io::Result<usize> {
        self.1.extend_from_slice(octets);
        Ok(octets.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Late {
    fn drop(&mut self) {
        let _ = self.0.write_all(&self.1);
    }
}

#[test]
fn a_coordinator_that_ends_in_its_greeting_leaves_the_agent_to_the_next() {
    with_agents(1, |token, at| {
        for _ in 0..10 {
            let stream = TcpStream::connect(at[0]).unwrap();
            // It hears the agent's greeting (magic, version, random number), proves who it is, and is gone before the
            // answer.
            let from = stream.try_clone().unwrap().take(15 + 1 + 32);
            let gone = channel::greet((Box::new(from), Box::new(Late(stream, Vec::new()))), token);
            assert!(matches!(gone, Err(ChannelError::Token)), "no answer was read");
        }
        await_condition("the agent takes no other coordinator", || Remote::connect(at[0], token).is_ok());
    });
}

#[test]
fn a_measurement_without_a_server_fails_by_its_tools_words() {
    if !installed(&["iperf3", "sockperf"]) {
        return;
    }
    with_agents(1, |token, at| {
        let (free, to) = listener();
        drop(free);
        let mut agent = Remote::connect(at[0], token).unwrap();
        let mut refused = |client| {
            let request = Request::Measure { client, to, path: Side::Kernel };
            agent.ask(&request, Duration::from_secs(90)).unwrap_err().to_string()
        };
        let iperf3 = refused(Client::Throughput { size: 64, flows: 1, amount: Amount::Seconds(1) });
        assert!(iperf3.to_lowercase().contains("refused"), "{iperf3}");
        let sockperf = refused(Client::Latency { tool: Tool::Sockperf, size: 64, seconds: 1 });
        assert!(sockperf.to_lowercase().contains("refused"), "{sockperf}");
    });
}

#[test]
fn the_real_tools_measure_throughput_latency_beside_a_stream_and_tls() {
    if !installed(&["iperf3", "sockperf"]) || std::process::Command::new("openssl").arg("version").output().is_err() {
        return eprintln!("skipped: iperf3, sockperf and openssl are needed");
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("survey.json");
    let plan = Plan {
        samples: 1,
        latency: vec![Latency { size: 64 << 10, load: Load::Stream }],
        throughput: vec![Throughput { size: 4096, flows: 2 }],
        tls: vec![4 << 20],
        ..plan()
    };
    let outcome = with_agents(3, |token, at| {
        let mut places = [place("host", at[0]), place("nic", at[1]), place("other", at[2])];
        (places[1].kind, places[1].system) = (Kind::Smartnic, "host".to_string());
        survey(&places, &plan, token, &json).unwrap()
    });
    let record = outcome.record;
    assert!(record.complete, "{:?}", outcome.lost);
    let failed: Vec<_> = record.skipped.iter().filter(|it| it.name.contains('→')).collect();
    assert!(failed.is_empty(), "{failed:?}");
    let count = |metric| record.series.iter().filter(|series| series.key.metric == metric).count();
    assert_eq!((count(Metric::Throughput), count(Metric::Latency), count(Metric::Tls)), (6, 6, 6 + 1));
    for series in &record.series {
        let sample = &series.samples[0];
        assert!(sample.sender_time > 0 && sample.receiver_time > 0, "{}: {sample:?}", series.key);
        assert_eq!(sample.percentiles.is_some(), series.key.metric == Metric::Latency);
        let is_beside = series.key.load == Load::Stream;
        assert_eq!(sample.stream_bytes.is_some_and(|bytes| bytes > 1 << 20), is_beside, "{}: {sample:?}", series.key);
        assert_eq!(sample.via_time.is_some_and(|time| time > 0), series.key.via.is_some(), "{}", series.key);
    }
}

fn connect_to(addresses: [SocketAddr; 2], token: &Token) -> Connect<'static> {
    let token = token.clone();
    Box::new(move |index| Remote::connect(addresses[index], &token))
}

/// Two agents that do what they should, between which a survey was made, and again.
fn meet_again(change: impl Fn(&mut Head), with: impl FnOnce(anyhow::Result<Again>, &Head)) {
    let folder = tempfile::tempdir().unwrap();
    let (token, ended) = (token(), AtomicBool::new(false));
    let ((a, at_a), (b, at_b)) = (listener(), listener());
    thread::scope(|scope| {
        for listener in [&a, &b] {
            scope.spawn(|| answer(listener, &token, &ended, &|request| Some(honest(request))));
        }
        let _end = End(&ended);
        let places = [place("a", at_a), place("b", at_b)];
        let mut head = survey(&places, &plan(), &token, &folder.path().join("survey.json")).unwrap().record.head;
        change(&mut head);
        with(Again::meet(&head, &places, connect_to([at_a, at_b], &token)), &head);
    });
}

#[test]
fn endpoints_are_measured_between_again_at_sizes_that_the_survey_does_not_have() {
    meet_again(
        |_| {},
        |again, head| {
            let again = Rc::new(RefCell::new(again.unwrap()));
            let key = |sender: &str, receiver: &str| Key {
                sender: sender.to_string(),
                receiver: receiver.to_string(),
                via: None,
                tool: head.endpoints[0].tools[0].tool,
                metric: Metric::Throughput,
                size: 512,
                flows: 1,
                load: Load::Idle,
                path: Side::Kernel,
            };
            let mut samples = Samples::new(&again, vec![key("a", "b"), key("b", "a")]);
            let plans = samples.plans();
            assert_eq!((plans[1].group.as_str(), plans[1].size), ("b → a: throughput", Some(512)));
            // Nothing is started, so that any file will do for the library.
            let lab = Lab::new(&Options::new("/proc/self/exe")).unwrap();
            let session = lab.launcher.session(Side::Kernel).unwrap();
            assert_eq!(samples.sample(&lab, &session).unwrap(), [Ok(1e6), Ok(1e6)]);
        },
    );
}

/// The first reason says why; afterwards the agent is merely gone.
#[test]
fn an_agent_that_is_lost_while_it_is_measured_again_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let (token, ended, dies) = (token(), AtomicBool::new(false), AtomicBool::new(false));
    let ((a, at_a), (b, at_b)) = (listener(), listener());
    thread::scope(|scope| {
        scope.spawn(|| answer(&a, &token, &ended, &|request| Some(honest(request))));
        scope.spawn(|| answer(&b, &token, &ended, &|request| (!dies.load(Ordering::Relaxed)).then(|| honest(request))));
        let _end = End(&ended);
        let places = [place("a", at_a), place("b", at_b)];
        let record = survey(&places, &plan(), &token, &folder.path().join("survey.json")).unwrap().record;
        let again = Again::meet(&record.head, &places, connect_to([at_a, at_b], &token)).unwrap();
        let again = Rc::new(RefCell::new(again));
        assert_eq!(again.borrow().lost(), []);
        dies.store(true, Ordering::Relaxed);
        let lab = Lab::new(&Options::new("/proc/self/exe")).unwrap();
        let session = lab.launcher.session(Side::Kernel).unwrap();
        let key = record.series.iter().find(|it| it.key.metric == Metric::Throughput).unwrap().key.clone();
        // What a lost agent has no part in goes on.
        let within = Key { sender: "a".to_string(), receiver: "a".to_string(), ..key.clone() };
        let mut samples = Samples::new(&again, vec![key, within]);
        for _ in 0..2 {
            let readings = samples.sample(&lab, &session).unwrap();
            let [Err(error), Ok(_)] = &readings[..] else { panic!("{readings:?}") };
            assert!(error.starts_with("b was lost: "), "{error}");
        }
        let lost = again.borrow().lost();
        assert_eq!(lost.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["b"], "{lost:?}");
    });
}

/// It is there again each time and dies of the same measurement, which makes its figure invalid once and for all.
#[test]
fn what_an_agent_dies_of_is_not_measured_again_in_each_sample() {
    let folder = tempfile::tempdir().unwrap();
    let (token, ended, dies, deaths) = (token(), AtomicBool::new(false), AtomicBool::new(false), AtomicUsize::new(0));
    let ((a, at_a), (b, at_b)) = (listener(), listener());
    let mortal = |request: &Request| {
        let is_dead = matches!(request, Request::Serve { .. }) && dies.load(Ordering::Relaxed);
        deaths.fetch_add(is_dead.into(), Ordering::Relaxed);
        (!is_dead).then(|| honest(request))
    };
    thread::scope(|scope| {
        scope.spawn(|| answer(&a, &token, &ended, &|request| Some(honest(request))));
        scope.spawn(|| answer(&b, &token, &ended, &mortal));
        let _end = End(&ended);
        let places = [place("a", at_a), place("b", at_b)];
        let record = survey(&places, &plan(), &token, &folder.path().join("survey.json")).unwrap().record;
        let again = Again::meet(&record.head, &places, connect_to([at_a, at_b], &token)).unwrap();
        let again = Rc::new(RefCell::new(again));
        let lab = Lab::new(&Options::new("/proc/self/exe")).unwrap();
        let session = lab.launcher.session(Side::Kernel).unwrap();
        let to_b = record.series.iter().find(|it| it.key.receiver == "b" && it.key.metric == Metric::Throughput);
        let mut samples = Samples::new(&again, vec![to_b.unwrap().key.clone()]);
        dies.store(true, Ordering::Relaxed);
        for _ in 0..2 {
            let readings = samples.sample(&lab, &session).unwrap();
            assert!(readings[0].as_ref().unwrap_err().starts_with("b was lost (3 times)"), "{readings:?}");
            assert_eq!(deaths.load(Ordering::Relaxed), 3);
        }
        assert_eq!(again.borrow().lost(), []);
    });
}

/// As a survey does, a check goes on with an agent that is there again as it was, and only with such a one.
#[test]
fn an_agent_that_is_there_again_is_measured_on_with() {
    let folder = tempfile::tempdir().unwrap();
    let (token, ended) = (token(), AtomicBool::new(false));
    let (dies, is_other) = (AtomicBool::new(false), AtomicBool::new(false));
    let ((a, at_a), (b, at_b)) = (listener(), listener());
    let mortal = |request: &Request| {
        if matches!(request, Request::Serve { .. }) && dies.swap(false, Ordering::Relaxed) {
            return None;
        }
        match honest(request) {
            Reply::Facts(facts) if is_other.load(Ordering::Relaxed) => {
                Some(Reply::Facts(Box::new(Facts { user: 1000, ..*facts })))
            }
            reply => Some(reply),
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| answer(&a, &token, &ended, &|request| Some(honest(request))));
        scope.spawn(|| answer(&b, &token, &ended, &mortal));
        let _end = End(&ended);
        let places = [place("a", at_a), place("b", at_b)];
        let record = survey(&places, &plan(), &token, &folder.path().join("survey.json")).unwrap().record;
        let again = Again::meet(&record.head, &places, connect_to([at_a, at_b], &token)).unwrap();
        let again = Rc::new(RefCell::new(again));
        let lab = Lab::new(&Options::new("/proc/self/exe")).unwrap();
        let session = lab.launcher.session(Side::Kernel).unwrap();
        let to_b = record.series.iter().find(|it| it.key.receiver == "b" && it.key.metric == Metric::Throughput);
        let mut samples = Samples::new(&again, vec![to_b.unwrap().key.clone()]);
        dies.store(true, Ordering::Relaxed);
        assert_eq!(samples.sample(&lab, &session).unwrap(), [Ok(1e6)]);
        assert_eq!(again.borrow().lost(), []);
        dies.store(true, Ordering::Relaxed);
        is_other.store(true, Ordering::Relaxed);
        let readings = samples.sample(&lab, &session).unwrap();
        let [Err(error)] = &readings[..] else { panic!("{readings:?}") };
        assert!(error.contains("the user number of b was 0 and is 1000"), "{error}");
        assert_eq!(again.borrow().lost().len(), 1, "nothing more is measured at it");
    });
}

/// Two agents of one host, which is started anew, and one of them is another then: its figures are lost, and those of
/// the one that was missed first are not.
#[test]
fn only_the_agent_that_is_another_is_given_up() {
    let folder = tempfile::tempdir().unwrap();
    let (token, ended, is_anew) = (token(), AtomicBool::new(false), AtomicBool::new(false));
    let is_back = [AtomicBool::new(false), AtomicBool::new(false)];
    let ((a, at_a), (b, at_b)) = (listener(), listener());
    let anew = |request: &Request, is_back: &AtomicBool, user: u32| {
        // Connections from before are dead.
        if is_anew.load(Ordering::Relaxed) && !is_back.swap(true, Ordering::Relaxed) {
            return None;
        }
        match honest(request) {
            Reply::Facts(facts) if is_anew.load(Ordering::Relaxed) => {
                Some(Reply::Facts(Box::new(Facts { network: "started-anew".to_string(), user, ..*facts })))
            }
            reply => Some(reply),
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| answer(&a, &token, &ended, &|request| anew(request, &is_back[0], 0)));
        scope.spawn(|| answer(&b, &token, &ended, &|request| anew(request, &is_back[1], 1000)));
        let _end = End(&ended);
        let places = [place("a", at_a), place("b", at_b)];
        let record = survey(&places, &plan(), &token, &folder.path().join("survey.json")).unwrap().record;
        let again = Again::meet(&record.head, &places, connect_to([at_a, at_b], &token)).unwrap();
        let again = Rc::new(RefCell::new(again));
        let lab = Lab::new(&Options::new("/proc/self/exe")).unwrap();
        let session = lab.launcher.session(Side::Kernel).unwrap();
        let key = record.series.iter().find(|it| it.key.metric == Metric::Throughput).unwrap().key.clone();
        let within = Key { sender: "a".to_string(), receiver: "a".to_string(), ..key };
        is_anew.store(true, Ordering::Relaxed);
        assert_eq!(Samples::new(&again, vec![within]).sample(&lab, &session).unwrap(), [Ok(1e6)]);
        let why = "the user number of b was 0 and is 1000".to_string();
        assert_eq!(again.borrow().lost(), [("b".to_string(), why)]);
    });
}

#[test]
fn endpoints_that_have_changed_since_the_survey_are_not_measured_again() {
    let refused = |change: fn(&mut Head), what: &str| {
        meet_again(change, |again, _| {
            let error = again.err().expect("it has changed").to_string();
            assert!(error.contains(what) && error.contains("say nothing of them: survey them again"), "{error}");
        });
    };
    refused(|head| head.endpoints[0].tools[0].version = "9.8".to_string(), "the tools of a were iperf3 9.8");
    refused(|head| head.endpoints[1].host.kernel = "Linux 1".to_string(), "the kernel of b was Linux 1");
    refused(|head| head.endpoints[1].name = "c".to_string(), "c is not there");
    refused(|head| head.endpoints[1].user = Some(1000), "the user number of b was 1000 and is 0");
    refused(|head| head.endpoints[0].library = true, "the library of a was there and is not there");
    let apart = "the set of endpoints on the host of a was a and is a, b";
    refused(|head| head.endpoints[1].network = "other".to_string(), apart);
    // An older record does not say whose programs were measured, and a record may be by another version.
    meet_again(|head| head.endpoints[1].user = None, |again, _| assert_eq!(again.unwrap().other_version(), None));
    meet_again(
        |head| head.version = "0.0.9".to_string(),
        |again, _| assert!(again.unwrap().other_version().unwrap().starts_with("it is by Underpass 0.0.9")),
    );
}
