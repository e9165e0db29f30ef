//! The figures of each process, added up from look to look.

use std::collections::{BTreeMap, HashMap};

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};
use underpass_segment::config::SocketPath;
use underpass_segment::kernel::{Process, process};

use super::super::counters::{Before, Counters};
use super::super::processes::NamedProcess;
use super::super::ss::ways;
use super::super::{Connection, Images, View};
use super::broker::Broker;

/// The labels of each figure of a process.
const OF_PROCESS: [&str; 2] = ["process", "pid"];

/// All processes under Underpass.
#[derive(Default)]
pub struct Totals {
    before: Before,
    images: Images,
    /// How many there are.
    running: usize,
    /// Processes that have had a connection, by number; under `None` the connections of processes that cannot be seen.
    processes: BTreeMap<Option<u32>, Account>,
    /// The daemon, beside them.
    broker: Broker,
}

/// One process.
#[derive(Debug, Default)]
struct Account {
    name: String,
    began: u64,
    /// Since the first look, and before that what its connections of then had carried. Never less than before.
    carried: Counters,
    /// Ends of connections: both ways by the ring, one, none.
    paths: [u64; 3],
    /// Why those are on kernel TCP that are, at least one way.
    reasons: BTreeMap<&'static str, u64>,
    /// Sent and not received yet, received and not read yet.
    unread: [u64; 2],
}

impl Totals {
    /// Nothing yet. The daemon is asked at this socket.
    pub fn beside(broker: SocketPath) -> Totals {
        Totals { broker: Broker::at(broker), ..Totals::default() }
    }

    /// Looks once.
    pub fn look(&mut self) -> anyhow::Result<()> {
        self.broker.look();
        let view = View::gather(&mut self.images)?;
        self.take(&view, |pid| match process(pid) {
            Process::Began(at) => at,
            Process::Gone | Process::Unknown => 0,
        });
        Ok(())
    }

    fn take(&mut self, view: &View, began: impl Fn(u32) -> u64) {
        let began: HashMap<u32, u64> = view.processes.keys().map(|&pid| (pid, began(pid))).collect();
        // A number may be another process's by now.
        self.processes.retain(|pid, it| pid.is_none_or(|pid| began.get(&pid) == Some(&it.began)));
        self.running = view.processes.len();
        for account in self.processes.values_mut() {
            (account.paths, account.unread) = ([0; 3], [0; 2]);
            account.reasons.clear();
        }
        let since = self.before.step(&view.connections);
        for it in &view.connections {
            // If several processes have the connection, the last one most often uses it: a server's child, a shell's
            // program.
            let age = |holder: &&NamedProcess| (began.get(&holder.pid), holder.pid);
            let pid = it.holders.iter().max_by_key(age).map(|holder| holder.pid);
            let account = self.processes.entry(pid).or_default();
            if let Some(pid) = pid {
                account.began = began.get(&pid).copied().unwrap_or(0);
                account.name = view.processes.get(&pid).cloned().unwrap_or_default();
            }
            account.add(it);
            account.carried = account.carried.plus(&since[&it.socket.cookie]);
        }
    }

    /// In the text format of Prometheus.
    pub fn text(&self) -> anyhow::Result<String> {
        let registry = Registry::new();
        let gauge = |name: &str, help: &str, labels: &[&str]| {
            let made = IntGaugeVec::new(Opts::new(name, help), &[&OF_PROCESS, labels].concat())?;
            registry.register(Box::new(made.clone())).map(|()| made)
        };
        let counter = |name: &str, what: &str, labels: &[&str]| {
            let help = format!("{what} {COUNTED}");
            let made = IntCounterVec::new(Opts::new(name, help), &[&OF_PROCESS, labels].concat())?;
            registry.register(Box::new(made.clone())).map(|()| made)
        };
        let processes = IntGaugeVec::new(Opts::new("underpass_processes", "Processes under Underpass."), &[])?;
        registry.register(Box::new(processes.clone()))?;
        let connections = gauge(
            "underpass_connections",
            "Ends of TCP connections, by path: ring is shared memory both ways, mixed one way, kernel neither. An end \
             that several processes have counts for the one that began last.",
            &["path"],
        )?;
        let reasons = gauge(
            "underpass_kernel_connections",
            "Ends of TCP connections that are on kernel TCP at least one way, by reason (see `man underpass-ss`).",
            &["reason"],
        )?;
        let unread = gauge(
            "underpass_unread_bytes",
            "Bytes of shared memory that were sent and not received yet, by direction as the process has it.",
            &["direction"],
        )?;
        let bytes = counter("underpass_bytes_total", "Bytes carried, by path and direction.", &["path", "direction"])?;
        let doorbells =
            counter("underpass_doorbells_total", "Doorbells sent, each of which may wake the other end.", &[])?;
        let sleeps = counter("underpass_sleeps_total", "Receives that slept until a doorbell came.", &[])?;

        let number = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        processes.with_label_values::<&str>(&[]).set(number(self.running as u64));
        for (pid, it) in &self.processes {
            let (name, pid) = match pid {
                Some(pid) => (it.name.as_str(), pid.to_string()),
                None => ("unknown", String::new()),
            };
            let pid = pid.as_str();
            for (path, &count) in ["ring", "mixed", "kernel"].iter().zip(&it.paths) {
                connections.with_label_values(&[name, pid, path]).set(number(count));
            }
            for (reason, &count) in &it.reasons {
                reasons.with_label_values(&[name, pid, reason]).set(number(count));
            }
            for (direction, &count) in ["sent", "received"].iter().zip(&it.unread) {
                unread.with_label_values(&[name, pid, direction]).set(number(count));
            }
            for (direction, carried) in [("sent", it.carried.sent), ("received", it.carried.received)] {
                for (path, count) in ["ring", "kernel"].into_iter().zip(carried) {
                    bytes.with_label_values(&[name, pid, path, direction]).inc_by(count);
                }
            }
            doorbells.with_label_values(&[name, pid]).inc_by(it.carried.bells);
            sleeps.with_label_values(&[name, pid]).inc_by(it.carried.sleeps);
        }
        self.broker.tell(&registry)?;
        Ok(TextEncoder::new().encode_to_string(&registry.gather())?)
    }
}

/// What holds of every counter.
const COUNTED: &str = "Counts from the beginning of the connections that were there at the first look of this command. \
                       What a connection has carried stays counted when it ends, as of the last look before, until its \
                       process ends.";

impl Account {
    fn add(&mut self, it: &Connection) {
        let fast = ways(it).iter().flatten().filter(|way| way.fast).count();
        self.paths[2 - fast] += 1;
        if fast < 2 {
            *self.reasons.entry(it.reason.map_or("unknown", |reason| reason.key())).or_default() += 1;
        }
        for (sum, unread) in self.unread.iter_mut().zip(it.unread) {
            *sum = sum.saturating_add(unread.unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use underpass_segment::reason::Reason;

    use super::super::super::example::{connection, view};

    fn value(totals: &Totals, series: &str) -> Option<f64> {
        let text = totals.text().unwrap();
        text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' ')?.parse().ok())
    }

    const SENT: &str = "underpass_bytes_total{direction=\"sent\",path=\"ring\",pid=\"7\",process=\"web\"}";

    #[test]
    fn counters_stay_when_connections_end_and_go_with_their_process() {
        let mut totals = Totals::default();
        let mut sent = |connections, began| {
            totals.take(&view(connections), |_| began);
            value(&totals, SENT)
        };
        assert_eq!(sent(vec![connection(3, 100, None), connection(4, 5, None)], 1), Some(105.0));
        assert_eq!(sent(vec![connection(3, 150, None)], 1), Some(155.0));
        // Missed once by the list, and there again.
        assert_eq!(sent(vec![], 1), Some(155.0));
        assert_eq!(sent(vec![connection(3, 160, None)], 1), Some(165.0));
        // Told of in --stats: the counter began anew.
        assert_eq!(sent(vec![connection(3, 10, None)], 1), Some(165.0));
        assert_eq!(sent(vec![connection(3, 30, None)], 1), Some(185.0));
        assert_eq!(sent(vec![connection(3, u64::MAX, None)], 1), Some(u64::MAX as f64));
        assert_eq!(sent(vec![connection(5, u64::MAX, None)], 1), Some(u64::MAX as f64));
        // Another process has the number now.
        assert_eq!(sent(vec![connection(6, 1, None)], 2), Some(1.0));
    }

    #[test]
    fn connections_are_counted_by_path_and_reason() {
        let mut totals = Totals::default();
        let peer_silent = Some(Reason::PeerSilent);
        let all = vec![connection(3, 1, None), connection(4, 1, peer_silent), connection(5, 1, peer_silent)];
        totals.take(&view(all), |_| 1);
        let of = |name: &str, label: &str| value(&totals, &format!("{name}{{{label},pid=\"7\",process=\"web\"}}"));
        assert_eq!(of("underpass_connections", "path=\"ring\""), Some(1.0));
        assert_eq!(of("underpass_connections", "path=\"mixed\""), Some(0.0));
        assert_eq!(of("underpass_connections", "path=\"kernel\""), Some(2.0));
        assert_eq!(
            value(&totals, "underpass_kernel_connections{pid=\"7\",process=\"web\",reason=\"peer-silent\"}"),
            Some(2.0)
        );
        assert_eq!(value(&totals, "underpass_processes"), Some(1.0));
        totals.take(&view(vec![]), |_| 1);
        assert_eq!(value(&totals, "underpass_connections{path=\"ring\",pid=\"7\",process=\"web\"}"), Some(0.0));
    }

    #[test]
    fn the_guide_has_every_family() {
        let mut totals = Totals { broker: Broker::example(), ..Totals::default() };
        totals.take(&view(vec![connection(3, 1, Some(Reason::Young))]), |_| 1);
        let text = totals.text().unwrap();
        let families: BTreeSet<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# HELP ")?.split(' ').next()).collect();
        let guide = include_str!("../../../../../docs/guide.md");
        let rows = guide.lines().filter_map(|line| line.strip_prefix("| `underpass_")?.split_once('`'));
        let documented: Vec<String> = rows.map(|(name, _)| format!("underpass_{name}")).collect();
        assert_eq!(families, documented.iter().map(String::as_str).collect());
    }

    #[test]
    fn every_family_says_what_it_is() {
        let mut totals = Totals { broker: Broker::example(), ..Totals::default() };
        totals.take(&view(vec![connection(3, 1, Some(Reason::Young))]), |_| 1);
        let text = totals.text().unwrap();
        let mut names: Vec<&str> =
            text.lines().filter(|it| !it.starts_with('#')).filter_map(|it| it.split(['{', ' ']).next()).collect();
        names.dedup();
        assert_eq!(names.len(), 19, "{text}");
        for name in names {
            let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
            assert!(
                text.contains(&format!("# TYPE {name} {kind}\n")) && text.contains(&format!("# HELP {name} ")),
                "{name}"
            );
        }
    }
}
