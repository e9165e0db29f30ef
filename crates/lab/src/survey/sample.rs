//! One sample: the requests to each agent, their order, and the checks of the answers.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::endpoints::Place;
use super::message::{
    Amount, Client, Reading, Received, Reply, Request, Server, Stopped, check_processor_time, check_stream,
};
use super::record::{Key, Load, Metric, Sample, Tool};
use super::remote::{AgentError, Remote};
use crate::record::now_with_milliseconds;
use crate::unit::digits;

/// How long a server may take to be started, or stopped.
const SERVER: Duration = Duration::from_secs(45);
/// How much longer than asked for a measurement may take until its answer.
const SLACK: Duration = Duration::from_secs(60);
/// How long a file may take.
const TRANSFER: Duration = Duration::from_secs(180);
/// How much longer than a measurement the stream beside it is to last, in seconds.
const STREAM: u32 = 120;
/// A stream that carries nothing for this share of the measured time, or longer, may have carried nothing while it was
/// measured.
const STILL: f64 = 0.5;

/// Bytes in writes of `size` that take about a third of a second on one computer, where a write takes 5 µs and each
/// byte 0.8 ns.
fn brief(size: u64) -> u64 {
    size * (333_000_000 / (5_000 + size * 4 / 5))
}

/// The agents of a survey.
pub struct Agents {
    /// The agents in the order of the endpoints; `None` if an agent is lost.
    pub remotes: Vec<Option<Remote>>,
    /// Seconds of each measurement.
    pub seconds: u32,
    /// Whether throughput is of as many bytes as take less than that.
    pub brief: bool,
}

/// Why there is no sample.
#[derive(Debug)]
pub enum Trouble {
    /// The agent of this endpoint is gone.
    Lost(usize, AgentError),
    /// The measurement failed, or the answer cannot be believed.
    Failed(String),
    /// The user wants the end.
    Interrupted,
}

/// What was started for a sample.
#[derive(Clone, Copy, Debug)]
struct Job {
    at: usize,
    number: u32,
    part: Part,
}

/// What a job does for a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// The measured server.
    Receiver,
    /// The endpoint that encrypts.
    Via,
    /// The stream beside.
    Stream,
    /// Its receiver, which fails when the stream is ended.
    Sink,
}

/// What a stream has carried beside a measurement of so many seconds, which was over after `elapsed`. Beside a stream
/// that stands still, a latency would be that of an idle network.
fn carried(received: Option<Received>, measured: f64, elapsed: f64) -> Result<u64, Trouble> {
    let failed = |what: String| Trouble::Failed(format!("the stream beside it {what}"));
    let received = received.ok_or_else(|| failed("did not say what it carried".to_string()))?;
    check_stream(received, elapsed).map_err(|lie| Trouble::Failed(lie.to_string()))?;
    match received {
        Received { bytes: 0, .. } => Err(failed("carried nothing".to_string())),
        Received { still, .. } if still >= STILL * measured => {
            let [still, measured] = [still, measured].map(digits);
            Err(failed(format!("stood still for {still} s, and {measured} s were measured")))
        }
        Received { bytes, .. } => Ok(bytes),
    }
}

impl Agents {
    /// Takes a sample. Whatever was started for it is ended.
    ///
    /// # Errors
    /// [`Trouble`].
    pub fn sample(&mut self, key: &Key, places: &[Place]) -> Result<Sample, Trouble> {
        let index = |name: &str| {
            let place = places.iter().position(|place| place.name == *name);
            place.ok_or_else(|| Trouble::Failed(format!("there is no endpoint {name}")))
        };
        let (sender, receiver) = (index(&key.sender)?, index(&key.receiver)?);
        let via = key.via.as_deref().map(index).transpose()?;
        let mut jobs = Vec::new();
        let begun = Instant::now();
        let at = now_with_milliseconds();
        let measured = self.measured(key, places, (sender, receiver, via), &mut jobs);
        let stopped = self.stop(&jobs);
        let reading = measured?;
        let mut sample = Sample {
            at,
            value: reading.value,
            percentiles: reading.percentiles,
            seconds: reading.seconds,
            bytes: reading.bytes,
            exchanges: reading.exchanges,
            sender_time: reading.processor_time,
            receiver_time: 0,
            via_time: None,
            stream_bytes: None,
        };
        let elapsed = begun.elapsed().as_secs_f64();
        for (part, stopped) in stopped? {
            check_processor_time(stopped.processor_time, elapsed).map_err(|lie| Trouble::Failed(lie.to_string()))?;
            match (part, stopped.complaint) {
                (Part::Receiver | Part::Stream, Some(complaint)) if key.metric != Metric::Tls => {
                    return Err(Trouble::Failed(complaint));
                }
                (Part::Receiver, _) => sample.receiver_time = stopped.processor_time,
                (Part::Via, _) => sample.via_time = Some(stopped.processor_time),
                (Part::Sink, _) => sample.stream_bytes = Some(carried(stopped.received, sample.seconds, elapsed)?),
                (Part::Stream, _) => {}
            }
        }
        Ok(sample)
    }

    fn measured(
        &mut self,
        key: &Key,
        places: &[Place],
        (sender, receiver, via): (usize, usize, Option<usize>),
        jobs: &mut Vec<Job>,
    ) -> Result<Reading, Trouble> {
        let (seconds, path) = (self.seconds, key.path);
        let address = places[receiver].address;
        if key.load == Load::Stream {
            let serve = Request::Serve { server: Server::Sink, at: address, path };
            let to = SocketAddr::new(address, self.begin(receiver, &serve, Part::Sink, jobs)?);
            let seconds = seconds.saturating_add(STREAM);
            self.begin(sender, &Request::Stream { to, path, seconds }, Part::Stream, jobs)?;
        }
        let (server, client) = match (key.metric, key.tool) {
            (Metric::Throughput, _) => {
                let amount = if self.brief { Amount::Bytes(brief(key.size)) } else { Amount::Seconds(seconds) };
                (Server::Iperf3, Client::Throughput { size: key.size, flows: key.flows, amount })
            }
            (Metric::Latency, Tool::Qperf) => {
                (Server::Qperf, Client::Latency { tool: Tool::Qperf, size: key.size, seconds })
            }
            (Metric::Latency, tool) => {
                (Server::Sockperf { size: key.size }, Client::Latency { tool, size: key.size, seconds })
            }
            (Metric::Tls, _) => {
                (Server::Tls { size: key.size }, Client::Tls { size: key.size, offloaded: via.is_some() })
            }
        };
        let serve = Request::Serve { server, at: address, path };
        let mut to = SocketAddr::new(address, self.begin(receiver, &serve, Part::Receiver, jobs)?);
        if let Some(via) = via {
            let at = places[via].address;
            let relay = Request::Serve { server: Server::Relay { to }, at, path };
            to = SocketAddr::new(at, self.begin(via, &relay, Part::Via, jobs)?);
        }
        let limit = if key.metric == Metric::Tls { TRANSFER } else { Duration::from_secs(seconds.into()) + SLACK };
        let begun = Instant::now();
        match self.ask(sender, |agent| agent.ask(&Request::Measure { client, to, path }, limit))? {
            Reply::Measured(reading) => {
                let checked = reading.check(&client, begun.elapsed().as_secs_f64());
                checked.map(|()| reading).map_err(|lie| Trouble::Failed(lie.to_string()))
            }
            _ => Err(Trouble::Lost(sender, AgentError::Confused)),
        }
    }

    /// Starts something; its port.
    fn begin(&mut self, at: usize, request: &Request, part: Part, jobs: &mut Vec<Job>) -> Result<u16, Trouble> {
        let (number, port) = self.ask(at, |agent| agent.begin(request, SERVER))?;
        jobs.push(Job { at, number, part });
        Ok(port)
    }

    /// Ends what was started, the last first: a server that a stream still sends to would be missed by it.
    fn stop(&mut self, jobs: &[Job]) -> Result<Vec<(Part, Stopped)>, Trouble> {
        let mut stopped = Vec::new();
        let mut trouble = None;
        for job in jobs.iter().rev() {
            match self.ask(job.at, |agent| agent.stop(job.number, SERVER)) {
                Ok(it) => stopped.push((job.part, it)),
                Err(error) => trouble = trouble.or(Some(error)),
            }
        }
        trouble.map_or(Ok(stopped), Err)
    }

    fn ask<T>(&mut self, at: usize, what: impl FnOnce(&mut Remote) -> Result<T, AgentError>) -> Result<T, Trouble> {
        let gone = || Trouble::Lost(at, AgentError::Lost(super::channel::ChannelError::Closed));
        let agent = self.remotes.get_mut(at).and_then(Option::as_mut).ok_or_else(gone)?;
        what(agent).map_err(|error| match error {
            AgentError::Interrupted(_) => Trouble::Interrupted,
            error if error.is_loss() => {
                self.remotes[at] = None;
                Trouble::Lost(at, error)
            }
            error => Trouble::Failed(error.to_string()),
        })
    }
}
