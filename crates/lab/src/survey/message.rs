//! What a coordinator asks of an agent, and what the agent answers.
//!
//! An agent knows these requests and no others: no request names a program, a file or an argument.

use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Serialize};

use super::record::{Percentiles, Tool, ToolVersion};
use crate::host::Host;
use crate::launcher::Side;
use crate::unit::{is_possible, told};

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Describe yourself.
    Describe,
    /// What time is it?
    Time,
    /// Start a server at this address.
    Serve {
        /// Which.
        server: Server,
        /// Address of the endpoint.
        at: IpAddr,
        /// With or without the library.
        path: Side,
    },
    /// Send to an iperf3 server until told to stop.
    Stream {
        /// Where it listens.
        to: SocketAddr,
        /// With or without the library.
        path: Side,
        /// After so many seconds it ends by itself.
        seconds: u32,
    },
    /// Take a sample as a client.
    Measure {
        /// Of what.
        client: Client,
        /// Where the server listens.
        to: SocketAddr,
        /// With or without the library.
        path: Side,
    },
    /// End what was started.
    Stop {
        /// Its number.
        job: u32,
    },
}

/// A server that an agent can start. Each serves one measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Server {
    /// iperf3.
    Iperf3,
    /// iperf3, for the stream beside a measurement: how much it got is told when it is stopped.
    Sink,
    /// sockperf, for messages of so many bytes.
    Sockperf {
        /// Bytes of a message.
        size: u64,
    },
    /// qperf.
    Qperf,
    /// `openssl s_server`, which confirms a file of so many bytes.
    Tls {
        /// Bytes of the file.
        size: u64,
    },
    /// Encrypts what comes by one TCP connection and sends it on, by `openssl s_client`.
    Relay {
        /// Where the TLS server listens.
        to: SocketAddr,
    },
}

/// What an agent can measure as a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Client {
    /// Throughput, by iperf3.
    Throughput {
        /// Bytes of a write.
        size: u64,
        /// TCP connections.
        flows: u32,
        /// How long.
        amount: Amount,
    },
    /// Latency.
    Latency {
        /// sockperf or qperf.
        tool: Tool,
        /// Bytes of a message.
        size: u64,
        /// How long.
        seconds: u32,
    },
    /// The transfer of a file.
    Tls {
        /// Bytes of the file.
        size: u64,
        /// Whether a relay encrypts.
        offloaded: bool,
    },
}

/// How long a throughput is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Amount {
    /// For so many seconds.
    Seconds(u32),
    /// Until so many bytes were sent.
    Bytes(u64),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// To [`Request::Describe`].
    Facts(Box<Facts>),
    /// To [`Request::Time`]: ns since 1970, UTC.
    Time(i64),
    /// To [`Request::Serve`] and [`Request::Stream`].
    Started {
        /// Number for [`Request::Stop`].
        job: u32,
        /// Port where a server listens; 0 of a stream.
        port: u16,
    },
    /// To [`Request::Measure`].
    Measured(Reading),
    /// To [`Request::Stop`].
    Stopped(Stopped),
    /// To any request: it did not work.
    Failed {
        /// Why, for people.
        reason: String,
    },
}

/// What an endpoint says of itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Version of Underpass.
    pub version: String,
    /// Revision of the checkout.
    pub revision: Option<String>,
    /// The host.
    pub host: Host,
    /// Tools that are there.
    pub tools: Vec<ToolVersion>,
    /// Tools that cannot be used, each with the reason.
    pub unusable: Vec<(Tool, String)>,
    /// Whether the library is there.
    pub library: bool,
    /// Identity of the network stack.
    pub network: String,
    /// Number of the user.
    pub user: u32,
}

/// What a client measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// Bytes per second or ns.
    pub value: f64,
    /// Distribution of the exchanges, in ns.
    pub percentiles: Option<Percentiles>,
    /// How long it was measured, in seconds.
    pub seconds: f64,
    /// Bytes that the receiver got.
    pub bytes: Option<u64>,
    /// Messages there and back.
    pub exchanges: Option<u64>,
    /// Processor time of the client, in ns.
    pub processor_time: u64,
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stopped {
    /// Its processor time, in ns.
    pub processor_time: u64,
    /// Why what was measured with it does not count, if it does not: it had ended before, or did not go fast.
    pub complaint: Option<String>,
    /// What a [`Server::Sink`] got; `None` of another job, or if it did not say.
    pub received: Option<Received>,
}

/// What a stream beside a measurement came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// Bytes that came.
    pub bytes: u64,
    /// For how many seconds none came.
    pub still: f64,
}

/// Why an answer is not believed.
#[derive(Debug, thiserror::Error, PartialEq)]
#[error("the agent gave {what} of {value}, which cannot be")]
pub struct Lie {
    what: &'static str,
    value: String,
}

/// Longest that anything is measured, in seconds.
const LONGEST: f64 = 3600.0;
/// Most bytes per second that any network of one computer carries, and more.
const FASTEST: f64 = 1e13;
/// How many times faster exchanges may be that are not in a sample's latency.
const FASTER: f64 = 10.0;
/// A reading that used more processors than this is not believed.
const PROCESSORS: f64 = 4096.0;

impl Reading {
    /// Whether the figures are possible, for a measurement that took `elapsed` seconds by the coordinator's own clock.
    ///
    /// # Errors
    /// They are not.
    pub fn check(&self, client: &Client, elapsed: f64) -> Result<(), Lie> {
        let positive = |what, value: f64, most: f64| {
            // What passes here can be read again, from the journal and from the record.
            let possible = is_possible(value) && value <= most;
            if possible { Ok(()) } else { Err(Lie { what, value: told(value) }) }
        };
        let fits = |what, value: u64, possible| {
            if possible { Ok(()) } else { Err(Lie { what, value: value.to_string() }) }
        };
        let waited = elapsed.clamp(0.0, LONGEST) * 1.01 + 0.01;
        positive("a duration in seconds", self.seconds, waited)?;
        let duration = self.seconds * 1e9;
        match client {
            Client::Throughput { .. } => {
                positive("a throughput in bytes per second", self.value, FASTEST)?;
                let bytes = self.bytes.unwrap_or(0);
                // Both are from the same tool; they differ by the rounding of the duration.
                let apart = (self.value * self.seconds - bytes as f64).abs();
                fits("a number of bytes", bytes, apart <= 0.05 * bytes as f64)?;
            }
            Client::Latency { .. } => {
                positive("a latency in ns", self.value, duration)?;
                if let Some(exchanges) = self.exchanges {
                    // Each takes twice the latency; those before and after what the latency is of may have been faster.
                    let most = FASTER * elapsed * 1e9 / (2.0 * self.value);
                    fits("a number of exchanges", exchanges, exchanges > 0 && exchanges as f64 <= most)?;
                }
            }
            Client::Tls { size, .. } => {
                positive("a time of transfer in ns", self.value, duration * 1.01 + 1e6)?;
                let bytes = self.bytes.unwrap_or(0);
                fits("a number of bytes", bytes, bytes == *size)?;
            }
        }
        if let Some(Percentiles { p50, p99, p999 }) = self.percentiles {
            for value in [p50, p99, p999] {
                positive("a percentile in ns", value, waited * 1e9)?;
            }
            if p50 > p99 || p99 > p999 {
                return Err(Lie { what: "percentiles in ns", value: [p50, p99, p999].map(told).join(", ") });
            }
        }
        check_processor_time(self.processor_time, elapsed)
    }
}

/// Whether a stream can have come to this in `elapsed` seconds.
///
/// # Errors
/// It cannot.
pub fn check_stream(Received { bytes, still }: Received, elapsed: f64) -> Result<(), Lie> {
    if bytes as f64 > elapsed.max(0.1) * FASTEST {
        return Err(Lie { what: "a number of bytes of a stream", value: bytes.to_string() });
    }
    let possible = (0.0..=elapsed.max(0.1) * 1.01).contains(&still);
    if possible { Ok(()) } else { Err(Lie { what: "a time without a stream in seconds", value: told(still) }) }
}

/// Whether programs can have taken so many ns of processors in `elapsed` seconds.
///
/// # Errors
/// They cannot.
pub fn check_processor_time(time: u64, elapsed: f64) -> Result<(), Lie> {
    let possible = time as f64 <= elapsed.max(0.1) * 1e9 * PROCESSORS;
    if possible { Ok(()) } else { Err(Lie { what: "a processor time in ns", value: time.to_string() }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LATENCY: Client = Client::Latency { tool: Tool::Sockperf, size: 64, seconds: 1 };
    const THROUGHPUT: Client = Client::Throughput { size: 64, flows: 1, amount: Amount::Seconds(1) };

    fn reading(value: f64) -> Reading {
        let percentiles = Some(Percentiles { p50: 9e3, p99: 2e4, p999: 5e4 });
        let (seconds, bytes) = (0.5, Some((value * 0.5) as u64));
        Reading { value, percentiles, seconds, bytes, exchanges: Some(5), processor_time: 10 }
    }

    #[test]
    fn possible_figures_pass() {
        assert_eq!(reading(1e4).check(&LATENCY, 1.0), Ok(()));
        assert_eq!(reading(1e9).check(&THROUGHPUT, 1.0), Ok(()));
    }

    #[test]
    fn lies_are_named() {
        let refused = |change: fn(&mut Reading)| {
            let mut reading = reading(1e4);
            change(&mut reading);
            reading.check(&LATENCY, 1.0).unwrap_err().to_string()
        };
        assert!(refused(|it| it.value = -5.0).contains("a latency in ns of -5"));
        assert!(refused(|it| it.value = f64::NAN).contains("NaN"));
        assert!(refused(|it| it.value = f64::INFINITY).contains("inf"));
        assert!(refused(|it| it.value = 2e9).contains("latency"), "longer than it was measured");
        assert!(refused(|it| it.seconds = 30.0).contains("a duration"), "longer than the coordinator waited");
        assert!(refused(|it| it.seconds = -1.0).contains("a duration"));
        assert!(refused(|it| it.percentiles.as_mut().unwrap().p99 = 1.0).contains("percentiles"));
        assert!(refused(|it| it.percentiles.as_mut().unwrap().p999 = f64::NAN).contains("NaN"));
        assert!(refused(|it| it.processor_time = u64::MAX).contains("processor time"));
        assert!(refused(|it| it.exchanges = Some(u64::MAX)).contains("a number of exchanges of 18446744073709551615"));
        assert!(refused(|it| it.exchanges = Some(0)).contains("a number of exchanges of 0"));
        let file = Reading { bytes: Some(1), ..reading(1e8) };
        let sent = |size| file.check(&Client::Tls { size, offloaded: false }, 1.0);
        assert_eq!(sent(1), Ok(()));
        assert_eq!(sent(1 << 20).unwrap_err().to_string(), "the agent gave a number of bytes of 1, which cannot be");
        let mut other = reading(1e9);
        other.bytes = Some(7);
        assert!(other.check(&THROUGHPUT, 1.0).unwrap_err().to_string().contains("a number of bytes"));
        other.bytes = None;
        assert!(other.check(&THROUGHPUT, 1.0).is_err());
    }

    #[test]
    fn a_number_that_is_none_is_not_read() {
        let text = serde_json::to_string(&Reply::Measured(reading(f64::NAN))).unwrap();
        assert!(serde_json::from_str::<Reply>(&text).is_err(), "{text}");
    }

    #[test]
    fn what_passes_can_be_read_again_and_was_waited_for() {
        let lie = |it: Reading| it.check(&LATENCY, 1.0).unwrap_err().what;
        assert_eq!(lie(reading(1e-30)), "a latency in ns");
        let percentiles = |p999| Some(Percentiles { p50: 1e4, p99: 2e4, p999 });
        assert_eq!(Reading { percentiles: percentiles(9e8), ..reading(1e4) }.check(&LATENCY, 1.0), Ok(()));
        assert_eq!(lie(Reading { percentiles: percentiles(3.5e12), ..reading(1e4) }), "a percentile in ns");
    }

    #[test]
    fn nothing_but_the_list_is_understood() {
        for text in [r#"{"Run":{"program":"sh"}}"#, r#"{"Serve":{"server":"Shell","at":"127.0.0.1","path":"kernel"}}"#]
        {
            assert!(serde_json::from_str::<Request>(text).is_err());
        }
    }

    proptest! {
        #[test]
        fn what_passes_is_possible(value: f64, seconds: f64, p: [f64; 3], processor_time: u64) {
            let percentiles = Some(Percentiles { p50: p[0], p99: p[1], p999: p[2] });
            let reading = Reading { value, percentiles, seconds, bytes: None, exchanges: None, processor_time };
            if reading.check(&LATENCY, 2.0).is_ok() {
                prop_assert!(value > 0.0 && value.is_finite() && seconds > 0.0 && seconds < 2.1);
                prop_assert!(0.0 < p[0] && p[0] <= p[1] && p[1] <= p[2] && p[2].is_finite());
            }
        }
    }
}
