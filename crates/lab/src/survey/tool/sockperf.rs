//! sockperf (github.com/mellanox/sockperf): latency with its distribution, read from what it prints for people.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use super::NotRead;
use crate::survey::record::{Percentiles, Tool};

/// Fewest bytes of a message.
pub const LEAST: u64 = 14;

/// What is read from a client.
#[derive(Debug, PartialEq)]
pub struct Figures {
    /// Half the mean time there and back, in ns.
    pub latency: f64,
    /// Percentiles of half the round-trip time, in ns.
    pub percentiles: Percentiles,
    /// Messages there and back in all, also before and after what the latency is of: the processor time is of all.
    pub exchanges: u64,
    /// For how long, in seconds, without the beginning and the end.
    pub seconds: f64,
}

/// Arguments of a server for messages of `size` bytes.
pub fn serve(command: &mut Command, at: IpAddr, port: u16, size: u64) {
    command.args(["server", "--tcp", "--ip", &at.to_string(), "--port", &port.to_string()]);
    command.args(["--msg-size", &size.max(LEAST).to_string()]);
}

/// Arguments of a client.
pub fn measure(command: &mut Command, to: SocketAddr, size: u64, seconds: u32) {
    command.args(["ping-pong", "--tcp", "--ip", &to.ip().to_string(), "--port", &to.port().to_string()]);
    command.args(["--msg-size", &size.to_string(), "--time", &seconds.to_string()]);
}

/// Reads what a client printed.
///
/// # Errors
/// A line is missing or messages were lost.
pub fn read(text: &str) -> Result<Figures, NotRead> {
    let lines: Vec<String> = text.lines().map(plain).collect();
    let wrong = |what: String| NotRead::new(Tool::Sockperf, what);
    if let Some(error) = lines.iter().find(|line| line.contains("ERROR")) {
        return Err(wrong(format!("failed: {}", error.trim())));
    }
    // The last one counts: there is one for each server, and there is one server.
    let after = |start: &str| lines.iter().rev().find_map(|line| line.strip_prefix(start));
    let missing = |what: &str| wrong(format!("did not print its {what}"));
    let number = |text: Option<&str>, what: &str| -> Result<f64, NotRead> {
        let value: Option<f64> = text.and_then(|text| text.trim().parse().ok());
        value.filter(|value| value.is_finite() && *value > 0.0).ok_or_else(|| missing(what))
    };
    let duration = after("sockperf: [Valid Duration] RunTime=").ok_or_else(|| missing("duration"))?;
    let (seconds, counts) = duration.split_once(" sec; SentMessages=").ok_or_else(|| missing("messages"))?;
    let (sent, received) = counts.split_once("; ReceivedMessages=").ok_or_else(|| missing("messages"))?;
    let counted: u64 = received.trim().parse().map_err(|_| missing("messages"))?;
    let all = after("sockperf: [Total Run] ").and_then(|line| line.rsplit_once("; ReceivedMessages="));
    let exchanges: u64 = all.and_then(|(_, all)| all.trim().parse().ok()).ok_or_else(|| missing("messages in all"))?;
    let lost = after("sockperf: # dropped messages = ").ok_or_else(|| missing("lost messages"))?;
    if sent != received || lost != "0; # duplicated messages = 0; # out-of-order messages = 0" {
        return Err(wrong(format!("sent {sent} messages and received {received}, dropped {lost}")));
    }
    let latency = after("sockperf: Summary: Latency is ").and_then(|rest| rest.strip_suffix(" usec"));
    let percentile = |p: &str| {
        let line = after(&format!("sockperf: ---> percentile {p} ="));
        Ok(number(line, &format!("percentile {p}"))? * 1e3)
    };
    let figures = Figures {
        latency: number(latency, "latency")? * 1e3,
        percentiles: Percentiles {
            p50: percentile("50.000")?,
            p99: percentile("99.000")?,
            p999: percentile("99.900")?,
        },
        exchanges,
        seconds: number(Some(seconds), "duration")?,
    };
    if counted < 1000 {
        // The percentile 99.9 of fewer is no more than their greatest.
        return Err(wrong(format!("measured {counted} exchanges; at least 1,000 are needed for a percentile of 99.9")));
    }
    if exchanges < counted {
        return Err(wrong(format!("measured {counted} exchanges of {exchanges}")));
    }
    Ok(figures)
}

/// The line without the colours of a terminal.
fn plain(line: &str) -> String {
    let mut parts = line.split('\u{1b}');
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| text + part.split_once('m').map_or("", |(_, rest)| rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRINTED: &str = "sockperf: \u{1b}[2;35m== version #3.7-no.git == \u{1b}[0m
sockperf[CLIENT] send on:sockperf: using recvfrom() to block on socket(s)

[ 0] IP = 127.0.0.1       PORT =  5998 # TCP
sockperf: Warmup stage (sending a few dummy messages)...
sockperf: Starting test...
sockperf: Test end (interrupted by timer)
sockperf: Test ended
sockperf: [Total Run] RunTime=1.000 sec; Warm up time=400 msec; SentMessages=75540; ReceivedMessages=75539
sockperf: ========= Printing statistics for Server No: 0
sockperf: [Valid Duration] RunTime=0.550 sec; SentMessages=61699; ReceivedMessages=61699
sockperf: \u{1b}[2;35m====> avg-latency=4.427 (std-dev=21.910)\u{1b}[0m
sockperf: # dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0
sockperf: Summary: Latency is 4.427 usec
sockperf: \u{1b}[2;35mTotal 61699 observations\u{1b}[0m; each percentile contains 616.99 observations
sockperf: ---> <MAX> observation = 2857.061
sockperf: ---> percentile 99.999 = 2069.346
sockperf: ---> percentile 99.990 = 1344.058
sockperf: ---> percentile 99.900 =   14.990
sockperf: ---> percentile 99.000 =    8.357
sockperf: ---> percentile 90.000 =    5.318
sockperf: ---> percentile 75.000 =    4.804
sockperf: ---> percentile 50.000 =    3.679
sockperf: ---> percentile 25.000 =    3.546
sockperf: ---> <MIN> observation =    3.105
";

    fn refused(text: &str) -> String {
        read(text).unwrap_err().to_string()
    }

    #[test]
    fn latency_and_its_distribution_are_read() {
        let figures = read(PRINTED).unwrap();
        let percentiles = Percentiles { p50: 3.679 * 1e3, p99: 8.357 * 1e3, p999: 14.990 * 1e3 };
        assert_eq!(figures, Figures { latency: 4.427 * 1e3, percentiles, exchanges: 75539, seconds: 0.55 });
    }

    #[test]
    fn anything_else_is_refused() {
        let error = "sockperf: ERROR: Can`t connect socket (errno=111 Connection refused)";
        assert!(refused(error).contains("Connection refused"));
        assert!(refused("").contains("duration"));
        assert!(refused(&PRINTED.replace("dropped messages = 0", "dropped messages = 3")).contains("dropped 3"));
        assert!(refused(&PRINTED.replace("SentMessages=61699", "SentMessages=61700")).contains("61700"));
        assert!(refused(&PRINTED.replace("4.427 usec", "-4.427 usec")).contains("latency"));
        assert!(refused(&PRINTED.replace("4.427 usec", "NaN usec")).contains("latency"));
        assert!(refused(&PRINTED.replace("4.427 usec", "4.427 msec")).contains("latency"));
        assert!(refused(&PRINTED.replace("99.900 =", "99.950 =")).contains("percentile 99.900"));
        assert!(refused(&PRINTED.replace("61699", "616")).contains("1,000 are needed"));
        assert!(
            refused(&PRINTED.replace("ReceivedMessages=75539", "ReceivedMessages=5")).contains("61699 exchanges of 5")
        );
        assert!(refused(&PRINTED.replace("[Total Run]", "[Run]")).contains("messages in all"));
        assert!(refused(&PRINTED.replace("RunTime=0.550", "RunTime=inf")).contains("duration"));
    }

    proptest! {
        #[test]
        fn nothing_that_is_cut_or_changed_gives_an_impossible_figure(at in 0..PRINTED.len(), with: char) {
            let changed: String = PRINTED.char_indices().map(|(i, c)| if i == at { with } else { c }).collect();
            let cut = PRINTED.get(..at).unwrap_or_default();
            for text in [cut, changed.as_str()] {
                if let Ok(figures) = read(text) {
                    prop_assert!(figures.latency > 0.0 && figures.latency.is_finite() && figures.exchanges > 0);
                }
            }
        }
    }
}
