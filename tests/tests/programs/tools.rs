//! The field's own measuring tools, here for their results' correctness.

use std::fs;
use underpass_tests::net::free_port;
use underpass_tests::stage::Stage;

use crate::web::noise;

#[test]
fn iperf3() {
    let Some(stage) = Stage::with(&["iperf3"]) else { return };
    for extra in [&[][..], &["-R"], &["-P", "4", "-l", "8K"], &["--bidir"], &["-Z"]] {
        let port = free_port().to_string();
        let server = stage.command("iperf3", ["-s", "-1", "-B", "127.0.0.1", "-p", &port]);
        let server = stage.serve(server, port.parse().unwrap());
        let arguments = ["-c", "127.0.0.1", "-p", &port, "-t", "1", "-J"].into_iter().chain(extra.iter().copied());
        let said = stage.output(stage.command("iperf3", arguments));
        let result: serde_json::Value = serde_json::from_str(&said).unwrap_or_else(|e| panic!("{e}:\n{said}"));
        assert!(result["end"]["sum_received"]["bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{said}");
        server.succeed(std::time::Duration::from_secs(30));
    }
    stage.run.assert_fast("iperf3");
    stage.finish();
}

/// A file through iperf3 is the same file.
#[test]
fn iperf3_file() {
    let Some(stage) = Stage::with(&["iperf3"]) else { return };
    let port = free_port().to_string();
    stage.file("sent", noise(20 << 20));
    let server = ["-s", "-1", "-B", "127.0.0.1", "-p", &port, "-F", "received"];
    let server = stage.serve(stage.command("iperf3", server), port.parse().unwrap());
    stage.output(stage.command("iperf3", ["-c", "127.0.0.1", "-p", &port, "-F", "sent", "-n", "20M", "-l", "100K"]));
    server.succeed(std::time::Duration::from_secs(30));
    let (sent, received) = (fs::read(stage.path("sent")).unwrap(), fs::read(stage.path("received")).unwrap());
    assert!(!received.is_empty() && sent.starts_with(&received), "{} bytes, not as sent", received.len());
    stage.run.assert_fast("iperf3");
    stage.finish();
}

/// iperf 2 sets SO_TIMESTAMP on every socket, and asks none of TCP for the time.
#[test]
fn iperf2() {
    let Some(stage) = Stage::with(&["iperf"]) else { return };
    for extra in [&[][..], &["--full-duplex"]] {
        let port = free_port().to_string();
        let server = stage.command("iperf", ["-s", "-B", "127.0.0.1", "-p", &port]);
        let server = stage.serve(server, port.parse().unwrap());
        let arguments =
            ["-c", "127.0.0.1", "-p", &port, "-n", "40M", "-y", "C"].into_iter().chain(extra.iter().copied());
        let said = stage.output(stage.command("iperf", arguments));
        assert!(!said.is_empty() && said.lines().all(|line| line.contains(",41943040,")), "{said}");
        server.stop(libc::SIGTERM);
    }
    stage.run.assert_fast("iperf");
    stage.finish();
}

#[test]
fn sockperf() {
    let Some(stage) = Stage::with(&["sockperf"]) else { return };
    let port = free_port();
    let address = ["--tcp", "-i", "127.0.0.1", "-p", &port.to_string()].map(String::from);
    let server = stage.serve(stage.command("sockperf", [&["sr".to_owned()], &address[..]].concat()), port);
    for extra in [&["-m", "14"][..], &["-m", "1000"], &["-m", "14", "--nonblocked"]] {
        // sockperf has room for 600,000 messages a second; a round trip below 1.7 µs is too fast for it.
        let extra: Vec<String> = ["-t", "1", "--mps=200000"].iter().chain(extra).map(|word| word.to_string()).collect();
        let said = stage.output(stage.command("sockperf", [&["pp".to_owned()], &address[..], &extra].concat()));
        let count = |name: &str| -> u64 {
            let (_, rest) = said.split_once("[Valid Duration]").unwrap_or_else(|| panic!("{said}"));
            let (_, rest) = rest.split_once(name).unwrap_or_else(|| panic!("{said}"));
            rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse().ok()).unwrap()
        };
        assert!(count("SentMessages=") > 100 && count("SentMessages=") == count("ReceivedMessages="), "{said}");
    }
    stage.run.assert_fast("sockperf");
    server.stop(libc::SIGINT);
    stage.finish();
}
