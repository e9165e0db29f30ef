//! Where drivers are measured: two network namespaces, a cable between, and messages from the one to the other.

use std::sync::atomic::Ordering::Release;
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde::Deserialize;

use super::end::{ADAPTIVE, BATCH_OCTETS, CLUSTER, End, Place, Way};
use super::traffic::{Progress, Received, Receiving, Sending, Sent, Waiting};
use super::traffic::{notice, receive, send, send_one_by_one, window};
use crate::bench::{LIMIT, Lab};
use crate::launcher::Session;
use crate::process::Running;
use crate::processors::confine;
use crate::programs::Program;
use crate::statistic::median;
use crate::suite::arguments;
use underpass_link::Link;
use underpass_link::bounce::{Bounce, Copying};
use underpass_link::completion::Completion;
use underpass_link::rig::{Cable, Namespace};
use underpass_link::xdp::Xdp;

/// Octets of the longest IP packet on the cable.
pub const MTU: usize = 65_535;
/// Seconds for which one way of several goes, before it is another's turn.
const TURN: f64 = 0.02;

/// What a run came to.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Messages that arrived, in a second.
    pub delivered_per_second: f64,
    /// Nanoseconds of the sender's and of the receiver's processor for each message that arrived.
    pub sender: f64,
    pub receiver: f64,
    /// Messages that were sent and did not arrive, in per cent.
    pub lost: f64,
}

/// What both ends have counted.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Counts {
    sent: u64,
    sender_ns: f64,
    delivered: u64,
    ns: f64,
    receiver_ns: f64,
}

impl Counts {
    fn run(self) -> Result<Run> {
        ensure!(self.delivered > 0 && self.ns > 0.0, "no message has arrived");
        ensure!(self.delivered <= self.sent, "more messages have arrived than were sent");
        let (sent, delivered) = (self.sent as f64, self.delivered as f64);
        Ok(Run {
            delivered_per_second: delivered * 1e9 / self.ns,
            sender: self.sender_ns / delivered,
            receiver: self.receiver_ns / delivered,
            lost: (sent - delivered) * 100.0 / sent,
        })
    }
}

/// The cable.
#[derive(Debug)]
pub struct Stage {
    cable: Cable,
}

impl Stage {
    /// A new one.
    pub fn new() -> Result<Stage> {
        Ok(Stage { cable: Cable::new(MTU)? })
    }

    /// How many messages of `size` octets the sender's processor sends in a second of its own over a packet socket. No
    /// more are under way than the receiver has room for.
    pub fn packet(&self, lab: &Lab, size: u64) -> Result<f64> {
        Ok(1e9 / self.frames(lab, Way::Packet, size as usize, lab.clock(), true)?.sender)
    }

    /// How many messages of `size` octets the sender's processor sends in a second of its own over AF_XDP, by each of
    /// these algorithms of completion.
    pub fn completions(&self, lab: &Lab, ways: &[Completion], size: u64) -> Result<Vec<f64>> {
        if size as usize <= CLUSTER {
            let turn = |link: &mut Xdp, way: usize| {
                link.complete_by(ways[way]);
                false
            };
            self.by_turns(lab, ways.len(), size, || End::xdp(ADAPTIVE), turn)
        } else {
            let turn = |link: &mut Bounce<Xdp>, way: usize| {
                link.link_mut().complete_by(ways[way]);
                false
            };
            self.by_turns(lab, ways.len(), size, || End::bounce(ADAPTIVE), turn)
        }
    }

    /// How many messages in several pieces the sender's processor sends in a second of its own over AF_XDP, where so
    /// much of each is copied.
    pub fn copies(&self, lab: &Lab, ways: &[Copying], size: u64) -> Result<Vec<f64>> {
        let turn = |link: &mut Bounce<Xdp>, way: usize| {
            link.copy(ways[way]);
            ways[way] == Copying::Dummy
        };
        self.by_turns(lab, ways.len(), size, || End::bounce(ADAPTIVE), turn)
    }

    /// Sends by turns over one link, each way for half of a sample's time in all. `turn` sets the link's way for the
    /// next turn, and returns whether that way sends dummies. By taking turns, a disturbance of the machine meets all
    /// ways alike. The sums of all turns count, so that the time that a way needs to find its pace is in.
    fn by_turns<L: Link>(
        &self,
        lab: &Lab,
        ways: usize,
        size: u64,
        open: impl FnOnce() -> Result<End<L>> + Send,
        mut turn: impl FnMut(&mut L, usize) -> bool + Send,
    ) -> Result<Vec<f64>> {
        let (size, rounds) = (size as usize, (lab.clock() / 2.0 / TURN).ceil() as usize);
        let sending = Sending { size, seconds: TURN, turns: rounds * ways, window: window(size) };
        let receiving = Receiving { way: Way::ADAPTIVE, size, waiting: Waiting::Adaptive };
        let turn = |link: &mut L, number| turn(link, way_of(number, ways));
        let (sent, _) = self.both(lab, receiving, |is_up, it| send(open()?, &sending, turn, is_up, it))?;
        let mut sums = vec![Sent::default(); ways];
        sent.iter().enumerate().for_each(|(number, sent)| sums[way_of(number, ways)].add(sent));
        Ok(sums.iter().map(|sum| sum.messages as f64 * 1e9 / sum.ns).collect())
    }

    /// Messages of `size` octets one after the other, as fast as they go, for half of a sample's time.
    pub fn run(&self, lab: &Lab, session: &Session, way: Way, size: u64) -> Result<Run> {
        let (size, seconds) = (size as usize, lab.clock() / 2.0);
        match way {
            Way::Udp { batch, gso } => {
                let batch = batch.min(BATCH_OCTETS / size);
                let mut arguments = arguments!["--size", size, "--count", batch, "--seconds", seconds];
                arguments.extend(gso.then(|| "--gso".to_string()));
                self.datagrams(lab, session, &arguments)
            }
            Way::Packet | Way::Xdp { .. } | Way::Sockets => self.frames(lab, way, size, seconds, false),
        }
    }

    fn datagrams(&self, lab: &Lab, session: &Session, arguments: &[String]) -> Result<Run> {
        let program = || lab.command(session, Program::DATAGRAM);
        let ([here, there], [mut server, mut client]) = (&self.cable.ends, [program()?, program()?]);
        let pair = lab.processors;
        let (server, port) = inside(there, pair.map(|it| it.first), || Running::announced(server.args(arguments)))?;
        client.args(arguments).args(["--port", &port.to_string()]);
        let client = inside(here, pair.map(|it| it.second), || Running::start(&mut client))?;
        let counts: Counts = client.finish(LIMIT)?.json()?;
        server.finish(LIMIT)?;
        counts.run()
    }

    fn frames(&self, lab: &Lab, way: Way, size: usize, seconds: f64, heeds: bool) -> Result<Run> {
        let sending = Sending { size, seconds, turns: 1, window: if heeds { window(size) } else { u64::MAX } };
        let receiving = Receiving { way, size, waiting: Waiting::Adaptive };
        let (sent, received) = self.both(lab, receiving, |is_up, it| {
            send(End::open(way, Place::Sender)?, &sending, |_, _| false, is_up, it)
        })?;
        let mut sum = Sent::default();
        sent.iter().for_each(|it| sum.add(it));
        let Received { delivered, ns, receiver_ns, .. } = received;
        Counts { sent: sum.messages, sender_ns: sum.ns, delivered, ns, receiver_ns }.run()
    }

    /// Sends one message of `size` octets in each `gap` over AF_XDP, or as many as go without a gap, to a receiver that
    /// waits in this way.
    pub fn wait(&self, lab: &Lab, waiting: Waiting, gap: Option<Duration>, size: u64) -> Result<Waited> {
        let (way, size, seconds) = (Way::ADAPTIVE, size as usize, lab.clock() / 2.0);
        let received = self.both(lab, Receiving { way, size, waiting }, |is_up, progress| match gap {
            Some(gap) => send_one_by_one(End::open(way, Place::Sender)?, size, seconds, gap, is_up, progress),
            None => {
                let sending = Sending { size, seconds, turns: 1, window: window(size) };
                send(End::open(way, Place::Sender)?, &sending, |_, _| false, is_up, progress).map(drop)
            }
        });
        let Received { delivered, ns, receiver_ns, listened_ns, latencies } = received?.1;
        ensure!(delivered > 1 && ns > 0.0, "hardly a message has arrived");
        Ok(Waited {
            delivered_per_second: delivered as f64 * 1e9 / ns,
            share: receiver_ns * 100.0 / listened_ns,
            latency: median(&latencies),
        })
    }

    /// Nanoseconds until a receiver that asks has a message of `size` octets that is there already, the median.
    pub fn notice(&self, lab: &Lab, way: Way, size: u64) -> Result<f64> {
        let [here, there] = &self.cable.ends;
        let from = inside(here, None, || End::open(way, Place::Sender))?;
        let to = inside(there, None, || End::open(way, Place::Receiver))?;
        let (first, seconds) = (lab.processors.map(|it| it.first), lab.clock() / 4.0);
        let all = inside(here, first, || notice([from, to], size as usize, seconds))?;
        median(&all).ok_or_else(|| anyhow!("no message"))
    }

    /// Sends as `send` does, once the receiver is there.
    fn both<R: Send>(
        &self,
        lab: &Lab,
        receiving: Receiving,
        send: impl FnOnce(Receiver<()>, &Progress) -> Result<R> + Send,
    ) -> Result<(R, Received)> {
        let (progress, (up, is_up)) = (Progress::default(), channel());
        let ([here, there], pair) = (&self.cable.ends, lab.processors);
        let (sent, received) = thread::scope(|scope| {
            let receive = || receive(receiving, up, &progress);
            let receiver = scope.spawn(|| inside(there, pair.map(|it| it.first), receive));
            let sent = inside(here, pair.map(|it| it.second), || send(is_up, &progress));
            progress.over.store(true, Release);
            (sent, receiver.join().unwrap_or_else(|_| Err(anyhow!("a thread failed"))))
        });
        // Where both fail, what the receiver found is often why the sender failed.
        let (received, sent) = (received?, sent?);
        Ok((sent, received))
    }
}

/// Which way's turn it is. Each way has one turn in every round, and follows another way than in the round before,
/// since different ways leave it more or less of the processor's cache.
fn way_of(turn: usize, ways: usize) -> usize {
    let coprime = |step: &usize| (2..=*step).all(|it| !step.is_multiple_of(it) || !ways.is_multiple_of(it));
    let steps: Vec<usize> = (1..ways.max(2)).filter(coprime).collect();
    let round = turn / ways;
    (turn * steps[round % steps.len()] + round) % ways
}

/// What a way of waiting came to.
#[derive(Clone, Copy, Debug)]
pub struct Waited {
    pub delivered_per_second: f64,
    /// Of the receiver's processor, in per cent.
    pub share: f64,
    /// Nanoseconds from when a message is handed over until it is received, the median, where they come one by one.
    pub latency: Option<f64>,
}

/// Does something in a namespace, on a processor.
pub fn inside<R: Send>(
    namespace: &Namespace,
    processor: Option<usize>,
    what: impl FnOnce() -> Result<R> + Send,
) -> Result<R> {
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let _confined = processor.map(|it| confine(&[it])).transpose()?;
            namespace.enter()?;
            what()
        });
        thread.join().unwrap_or_else(|_| Err(anyhow!("a thread failed")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_has_a_turn_in_every_round_and_follows_several_others_alike() {
        for (ways, follows) in [(1, 1), (2, 1), (3, 2), (6, 2), (8, 4)] {
            for round in 0..8 {
                let order: HashSet<usize> = (0..ways).map(|turn| way_of(ways * round + turn, ways)).collect();
                assert_eq!(order.len(), ways, "round {round}");
            }
            let before = |way| {
                let behind = (1..100 * ways).filter(|turn| turn % ways > 0 && way_of(*turn, ways) == way);
                behind.map(|turn| way_of(turn - 1, ways)).collect::<HashSet<usize>>()
            };
            assert!(ways == 1 || (0..ways).all(|way| before(way).len() == follows), "{ways} ways");
        }
    }
}
