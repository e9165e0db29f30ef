//! iperf3 (iperf3(1)): throughput, read from its JSON.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use serde::Deserialize;

use super::NotRead;
use crate::survey::message::{Amount, Received};
use crate::survey::record::Tool;
use crate::unit::told;

/// What is read from a client's JSON.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Bytes per second that the receiver got.
    pub rate: f64,
    /// Bytes that it got.
    pub bytes: u64,
    /// For how long, in seconds.
    pub seconds: f64,
}

#[derive(Deserialize)]
struct Report {
    error: Option<String>,
    start: Option<Start>,
    end: Option<End>,
}

#[derive(Deserialize)]
struct Start {
    test_start: Option<Test>,
}

#[derive(Deserialize)]
struct Test {
    protocol: String,
    num_streams: u32,
    blksize: u64,
    reverse: u32,
}

#[derive(Deserialize)]
struct End {
    sum_received: Option<Sum>,
}

#[derive(Deserialize)]
struct Sum {
    seconds: f64,
    bytes: u64,
    bits_per_second: f64,
}

#[derive(Deserialize)]
struct Progress {
    intervals: Vec<Interval>,
}

#[derive(Deserialize)]
struct Interval {
    sum: Sum,
}

/// Arguments of a server for one client.
pub fn serve(command: &mut Command, at: IpAddr, port: u16) {
    command.args(["--server", "--one-off", "--bind", &at.to_string(), "--port", &port.to_string()]);
}

/// Arguments of a server for the stream beside a measurement, which says every half second what has come. Its client is
/// killed, after which no server has a sum.
pub fn sink(command: &mut Command, at: IpAddr, port: u16) {
    serve(command, at, port);
    command.args(["--json", "--interval", "0.5"]);
}

/// What a [`sink`] got, by what it printed; `None` if it does not say.
pub fn received(text: &str) -> Option<Received> {
    let Progress { intervals } = serde_json::from_str(text).ok()?;
    let bytes = intervals.iter().map(|it| it.sum.bytes).try_fold(0u64, u64::checked_add)?;
    let still = intervals.iter().map(|it| &it.sum).filter(|it| it.bytes == 0).map(|it| it.seconds).sum();
    Some(Received { bytes, still })
}

/// Arguments of a client.
pub fn measure(command: &mut Command, to: SocketAddr, size: u64, flows: u32, amount: Amount) {
    command.args(["--client", &to.ip().to_string(), "--port", &to.port().to_string(), "--json"]);
    command.args(["--length", &size.to_string(), "--parallel", &flows.to_string()]);
    match amount {
        Amount::Seconds(seconds) => command.args(["--time", &seconds.to_string()]),
        Amount::Bytes(bytes) => command.args(["--bytes", &bytes.to_string()]),
    };
}

/// Reads what a client printed that wrote `size` bytes at a time to so many flows.
///
/// # Errors
/// It reports an error, did something else, or did not come to its end.
pub fn read(text: &str, size: u64, flows: u32) -> Result<Figures, NotRead> {
    let wrong = |what: String| NotRead::new(Tool::Iperf3, what);
    let report: Report = serde_json::from_str(text).map_err(|error| wrong(format!("printed no JSON: {error}")))?;
    if let Some(error) = report.error {
        return Err(wrong(format!("failed: {error}")));
    }
    let test = report.start.and_then(|start| start.test_start);
    let test = test.ok_or_else(|| wrong("did not say what it did".to_string()))?;
    if (test.protocol.as_str(), test.num_streams, test.blksize, test.reverse) != ("TCP", flows, size, 0) {
        let Test { protocol, num_streams, blksize, .. } = test;
        return Err(wrong(format!(
            "sent {num_streams} flows of {blksize} bytes by {protocol}, not what was asked for"
        )));
    }
    let sum = report.end.and_then(|end| end.sum_received);
    let Sum { seconds, bytes, bits_per_second } =
        sum.ok_or_else(|| wrong("did not say what was received".to_string()))?;
    let possible = |value: f64| value.is_finite() && value > 0.0;
    if bytes == 0 || !possible(seconds) || !possible(bits_per_second) {
        let (seconds, rate) = (told(seconds), told(bits_per_second));
        let what = format!("reports {bytes} bytes in {seconds} s, {rate} bit/s: that is no figure");
        return Err(wrong(what));
    }
    Ok(Figures { rate: bits_per_second / 8.0, bytes, seconds })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRINTED: &str = r#"{
        "start": {
            "version": "iperf 3.12", "sock_bufsize": 0, "sndbuf_actual": 16384, "sock_bufsize": 0,
            "test_start": { "protocol": "TCP", "num_streams": 2, "blksize": 64, "omit": 0, "duration": 1, "reverse": 0 }
        },
        "intervals": [],
        "end": {
            "sum_sent": { "seconds": 1.010857, "bytes": 17998080, "bits_per_second": 142438188.5, "sender": true },
            "sum_received": { "seconds": 1.01702, "bytes": 12176448, "bits_per_second": 95781384.8, "sender": true }
        }
    }"#;

    fn refused(text: &str) -> String {
        read(text, 64, 2).unwrap_err().to_string()
    }

    #[test]
    fn what_the_receiver_got_is_read() {
        let figures = read(PRINTED, 64, 2).unwrap();
        assert_eq!(figures, Figures { rate: 95781384.8 / 8.0, bytes: 12176448, seconds: 1.01702 });
    }

    #[test]
    fn anything_else_is_refused() {
        let error = r#"{"start":{"connected":[]},"end":{},"error":"unable to connect to server: Connection refused"}"#;
        assert_eq!(refused(error), "iperf3 failed: unable to connect to server: Connection refused");
        assert!(refused("").contains("no JSON"));
        assert!(refused(&PRINTED[..PRINTED.len() / 2]).contains("no JSON"), "half of it");
        assert!(refused("{}").contains("did not say what it did"));
        assert!(read(PRINTED, 128, 2).unwrap_err().to_string().contains("not what was asked for"));
        assert!(read(PRINTED, 64, 1).is_err());
        assert!(refused(&PRINTED.replace("sum_received", "sum")).contains("what was received"));
        assert!(refused(&PRINTED.replace("12176448", "0")).contains("no figure"));
        assert!(refused(&PRINTED.replace("95781384.8", "-95781384.8")).contains("no figure"));
        assert!(refused(&PRINTED.replace("12176448", "-1")).contains("no JSON"));
        assert!(refused(&PRINTED.replace("1.01702", "NaN")).contains("no JSON"));
    }

    #[test]
    fn what_came_before_the_end_of_a_stream_is_added_up() {
        let sum = |bytes: &str| {
            format!(r#"{{ "streams": [], "sum": {{ "seconds": 0.5, "bytes": {bytes}, "bits_per_second": 8 }} }}"#)
        };
        let printed = |sums: &[String]| {
            format!(r#"{{ "intervals": [{}], "end": {{}}, "error": "the client has closed" }}"#, sums.join(","))
        };
        let got = |sums: &[&str]| received(&printed(&sums.iter().map(|bytes| sum(bytes)).collect::<Vec<_>>()));
        assert_eq!(got(&["5000", "7000"]), Some(Received { bytes: 12_000, still: 0.0 }));
        assert_eq!(got(&["0", "7000", "0", "0"]), Some(Received { bytes: 7000, still: 1.5 }));
        assert_eq!(got(&[]), Some(Received { bytes: 0, still: 0.0 }));
        assert_eq!(received(&printed(&[sum("-1")])), None);
        assert_eq!(received(&printed(&[sum("18446744073709551615"), sum("1")])), None);
        assert_eq!(received("{}"), None);
        assert_eq!(received(""), None);
    }

    proptest! {
        #[test]
        fn whatever_is_cut_or_changed_is_no_impossible_figure(at in 0..PRINTED.len(), with: char) {
            let changed: String = PRINTED.char_indices().map(|(i, c)| if i == at { with } else { c }).collect();
            for text in [&PRINTED[..at], changed.as_str()] {
                if let Ok(figures) = read(text, 64, 2) {
                    prop_assert!(figures.rate > 0.0 && figures.rate.is_finite() && figures.bytes > 0);
                }
            }
        }
    }
}
