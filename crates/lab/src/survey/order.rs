//! The figures that a plan asks for between the endpoints, and the order in which their samples are taken.

use fastrand::Rng;

use super::message::Facts;
use super::record::{Endpoint, Key, Kind, Load, Metric, Plan, Tool};
use crate::launcher::Side;
use crate::record::Skipped;

/// The figures that can be measured, and those that cannot.
#[derive(Debug, Default, PartialEq)]
pub struct Figures {
    /// In the order of endpoints and plan.
    pub keys: Vec<Key>,
    /// What is left out before anything is measured.
    pub skipped: Vec<Skipped>,
}

/// The figures of a plan. `facts` are those of the endpoints, in the same order, and say why a tool cannot be used.
pub fn figures(plan: &Plan, endpoints: &[Endpoint], facts: &[Facts]) -> Figures {
    let mut figures = Figures::default();
    let latency = plan.latency_tool.unwrap_or_else(|| latency_tool(endpoints));
    if !plan.throughput.is_empty() {
        figures.miss("throughput", Tool::Iperf3, endpoints, facts);
    }
    if !plan.latency.is_empty() {
        figures.miss("latency", latency, endpoints, facts);
        if plan.latency.iter().any(|it| it.load == Load::Stream) && plan.throughput.is_empty() {
            figures.miss("latency beside a stream", Tool::Iperf3, endpoints, facts);
        }
    }
    if !plan.tls.is_empty() {
        figures.miss("transfer over TLS", Tool::Openssl, endpoints, facts);
    }
    for (sender, receiver) in pairs(endpoints) {
        figures.pair(plan, latency, sender, receiver);
        figures.tls(plan, endpoints, sender, receiver);
    }
    if plan.underpass {
        figures.own(plan, latency, endpoints);
    }
    figures
}

/// Every ordered pair of different endpoints.
fn pairs(endpoints: &[Endpoint]) -> impl Iterator<Item = (&Endpoint, &Endpoint)> {
    endpoints
        .iter()
        .flat_map(move |sender| endpoints.iter().map(move |receiver| (sender, receiver)))
        .filter(|(sender, receiver)| sender.name != receiver.name)
}

/// One tool for all latencies: sockperf, which knows percentiles, unless more endpoints have qperf.
fn latency_tool(endpoints: &[Endpoint]) -> Tool {
    let with = |tool| endpoints.iter().filter(|endpoint| has(endpoint, tool)).count();
    if with(Tool::Sockperf) >= with(Tool::Qperf) { Tool::Sockperf } else { Tool::Qperf }
}

/// Why Underpass has no fast path between two endpoints.
fn obstacle(one: &Endpoint, other: &Endpoint) -> Option<String> {
    let without = [one, other].into_iter().find(|endpoint| !endpoint.library);
    let boot = |endpoint: &Endpoint| endpoint.network.split(' ').next().map(str::to_string);
    if let Some(without) = without {
        return Some(format!("{} does not have the library", without.name));
    }
    let reason = match () {
        () if boot(one) != boot(other) => "they are on different hosts, and the fast path is shared memory",
        () if one.network != other.network => {
            "they are in different network namespaces, between which there is no fast path"
        }
        () if one.user != other.user => {
            "their programs are those of different users, between which there is no fast path"
        }
        () => return None,
    };
    Some(reason.to_string())
}

fn has(endpoint: &Endpoint, tool: Tool) -> bool {
    endpoint.tools.iter().any(|it| it.tool == tool)
}

impl Figures {
    fn skip(&mut self, name: impl Into<String>, reason: impl Into<String>) {
        self.skipped.push(Skipped { name: name.into(), reason: reason.into() });
    }

    /// Names the endpoints without a tool.
    fn miss(&mut self, what: &str, tool: Tool, endpoints: &[Endpoint], facts: &[Facts]) {
        for (endpoint, facts) in endpoints.iter().zip(facts) {
            if !has(endpoint, tool) {
                let reason = facts.unusable.iter().find(|(it, _)| *it == tool).map(|(_, reason)| reason.as_str());
                self.skip(format!("{}: {what}", endpoint.name), reason.unwrap_or("the agent does not say why"));
            }
        }
    }

    /// Throughput and latency of a pair.
    fn pair(&mut self, plan: &Plan, latency: Tool, sender: &Endpoint, receiver: &Endpoint) {
        let both = |tool| has(sender, tool) && has(receiver, tool);
        let obstacle = obstacle(sender, receiver);
        let sides: &[Side] = if plan.underpass && obstacle.is_none() { &Side::BOTH } else { &[Side::Kernel] };
        if let Some(reason) = obstacle.filter(|_| plan.underpass && (sender.library || receiver.library)) {
            let name = format!("{} → {}: under Underpass", sender.name, receiver.name);
            self.skip(name, format!("not available: {reason}"));
        }
        let key = |tool, metric, size, flows, load, path| Key {
            sender: sender.name.clone(),
            receiver: receiver.name.clone(),
            via: None,
            tool,
            metric,
            size,
            flows,
            load,
            path,
        };
        for path in sides {
            if both(Tool::Iperf3) {
                let throughput = plan.throughput.iter();
                self.keys.extend(
                    throughput.map(|it| key(Tool::Iperf3, Metric::Throughput, it.size, it.flows, Load::Idle, *path)),
                );
            }
            for it in plan.latency.iter().filter(|it| both(latency) && (it.load == Load::Idle || both(Tool::Iperf3))) {
                self.keys.push(key(latency, Metric::Latency, it.size, 1, it.load, *path));
            }
        }
    }

    /// Each endpoint with itself, on both paths: two programs of one endpoint, of one flow, with nothing beside.
    fn own(&mut self, plan: &Plan, latency: Tool, endpoints: &[Endpoint]) {
        if endpoints.iter().all(|endpoint| !endpoint.library) {
            return self.skip("all figures under Underpass", "not available: no endpoint has the library");
        }
        let mut plan = plan.clone();
        plan.throughput.retain(|it| it.flows == 1);
        plan.latency.retain(|it| it.load == Load::Idle);
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.library) {
            self.pair(&plan, latency, endpoint, endpoint);
        }
    }

    /// A file over TLS, encrypted by the sender, and by each SmartNIC inside of the sender's system.
    fn tls(&mut self, plan: &Plan, endpoints: &[Endpoint], sender: &Endpoint, receiver: &Endpoint) {
        if !has(sender, Tool::Openssl) || !has(receiver, Tool::Openssl) {
            return;
        }
        let helps = |it: &&Endpoint| {
            let beside = it.system == sender.system && it.name != sender.name && it.name != receiver.name;
            beside && it.kind == Kind::Smartnic && sender.kind != Kind::Smartnic && has(it, Tool::Openssl)
        };
        let helpers = endpoints.iter().filter(helps).map(|it| Some(it.name.clone()));
        for via in [None].into_iter().chain(helpers) {
            for size in &plan.tls {
                self.keys.push(Key {
                    sender: sender.name.clone(),
                    receiver: receiver.name.clone(),
                    via: via.clone(),
                    tool: Tool::Openssl,
                    metric: Metric::Tls,
                    size: *size,
                    flows: 1,
                    load: Load::Idle,
                    path: Side::Kernel,
                });
            }
        }
    }
}

/// The order in which the samples of a round are taken: all figures once, mixed by the seed, so that a change over time
/// affects all figures alike.
pub fn round(keys: &[Key], seed: u64, round: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..keys.len()).collect();
    Rng::with_seed(seed.wrapping_add(round as u64)).shuffle(&mut order);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::record::tests::example;
    use crate::survey::record::{Latency, Throughput, ToolVersion};

    fn endpoint(name: &str, kind: Kind, system: &str, tools: &[Tool]) -> Endpoint {
        let tools = tools.iter().map(|tool| ToolVersion { tool: *tool, version: "1".to_string() }).collect();
        let (name, system) = (name.to_string(), system.to_string());
        Endpoint { name, kind, system, tools, ..example().head.endpoints[0].clone() }
    }

    fn facts(unusable: &[Tool]) -> Facts {
        let unusable = unusable.iter().map(|tool| (*tool, format!("{} is too old", tool.program()))).collect();
        let Endpoint { host, .. } = example().head.endpoints[0].clone();
        let (version, tools) = ("0".to_string(), Vec::new());
        Facts { version, revision: None, host, tools, unusable, library: false, network: String::new(), user: 0 }
    }

    fn plan() -> Plan {
        Plan {
            throughput: vec![Throughput { size: 64, flows: 1 }, Throughput { size: 64, flows: 8 }],
            latency: vec![Latency { size: 64, load: Load::Idle }, Latency { size: 64, load: Load::Stream }],
            tls: vec![1 << 20],
            ..example().head.plan
        }
    }

    #[test]
    fn every_ordered_pair_has_every_figure() {
        let all = Tool::ALL;
        let four = [
            endpoint("host-a", Kind::Host, "a", &all),
            endpoint("nic-a", Kind::Smartnic, "a", &all),
            endpoint("host-b", Kind::Host, "b", &all),
            endpoint("nic-b", Kind::Smartnic, "b", &all),
        ];
        let figures = figures(&plan(), &four, &[facts(&[]), facts(&[]), facts(&[]), facts(&[])]);
        let count = |metric| figures.keys.iter().filter(|key| key.metric == metric).count();
        assert_eq!((count(Metric::Throughput), count(Metric::Latency)), (12 * 2, 12 * 2));
        let offloaded: Vec<_> = figures.keys.iter().filter(|key| key.via.is_some()).collect();
        assert_eq!((count(Metric::Tls), offloaded.len()), (12 + 4, 4), "each host to both ends of the other system");
        assert!(
            offloaded
                .iter()
                .all(|key| key.via.as_deref() == Some(if key.sender == "host-a" { "nic-a" } else { "nic-b" }))
        );
        let [skipped] = &figures.skipped[..] else { panic!("{:?}", figures.skipped) };
        assert_eq!(skipped.reason, "not available: no endpoint has the library");
    }

    #[test]
    fn both_paths_where_there_is_a_fast_path() {
        let mut two = [endpoint("a", Kind::Host, "a", &Tool::ALL), endpoint("b", Kind::Container, "a", &Tool::ALL)];
        two.iter_mut().for_each(|it| (it.library, it.network) = (true, "boot net:[1]".to_string()));
        let measured = |two: &[Endpoint]| {
            let figures = figures(&plan(), two, &[facts(&[]), facts(&[])]);
            let count = |own: bool| {
                let is_it = |key: &&Key| key.path == Side::Underpass && (key.sender == key.receiver) == own;
                figures.keys.iter().filter(is_it).count()
            };
            let reasons: Vec<String> = figures.skipped.iter().map(|it| it.reason.clone()).collect();
            (count(false), count(true), reasons)
        };
        // A plan of one flow and no load asks for one throughput and one latency.
        assert_eq!(measured(&two), (2 * 4, 2 * 2, vec![]));
        let between = |change: fn(&mut Endpoint)| {
            let mut two = two.clone();
            change(&mut two[1]);
            let (pairs, own, reasons) = measured(&two);
            assert_eq!((pairs, reasons.len()), (0, 2), "both ways: {reasons:?}");
            (own, reasons[0].clone())
        };
        let (own, reason) = between(|it| it.network = "boot net:[2]".to_string());
        assert!(own == 4 && reason.starts_with("not available: they are in different network namespaces"), "{reason}");
        assert!(between(|it| it.network = "other net:[1]".to_string()).1.contains("different hosts"));
        assert!(between(|it| it.user = Some(7)).1.contains("different users"));
        let (own, reason) = between(|it| it.library = false);
        assert!(own == 2 && reason.contains("b does not have the library"), "{reason}");
    }

    #[test]
    fn what_an_endpoint_lacks_is_named_and_no_tool_is_mixed_with_another() {
        let none = endpoint("a", Kind::Host, "a", &[]);
        let some = endpoint("b", Kind::Host, "b", &[Tool::Qperf, Tool::Iperf3]);
        let other = endpoint("c", Kind::Host, "c", &[Tool::Qperf, Tool::Iperf3]);
        let figures = figures(&plan(), &[none, some, other], &[facts(&Tool::ALL), facts(&[]), facts(&[])]);
        assert!(figures.keys.iter().all(|key| key.sender != "a" && key.receiver != "a"));
        assert!(figures.keys.iter().all(|key| key.metric != Metric::Latency || key.tool == Tool::Qperf));
        let named: Vec<&str> = figures.skipped.iter().map(|it| it.name.as_str()).collect();
        assert!(named.starts_with(&["a: throughput", "a: latency", "a: transfer over TLS"]), "{named:?}");
        assert_eq!(figures.skipped[0].reason, "iperf3 is too old");
    }

    #[test]
    fn a_seed_repeats_its_order_and_each_round_has_another() {
        let four = [
            endpoint("a", Kind::Host, "a", &Tool::ALL),
            endpoint("b", Kind::Host, "b", &Tool::ALL),
            endpoint("c", Kind::Host, "c", &Tool::ALL),
        ];
        let keys = figures(&plan(), &four, &[facts(&[]), facts(&[]), facts(&[])]).keys;
        assert_eq!(round(&keys, 7, 0), round(&keys, 7, 0));
        assert_ne!(round(&keys, 7, 0), round(&keys, 7, 1));
        assert_ne!(round(&keys, 7, 0), round(&keys, 70, 0));
        let mut all = round(&keys, 7, 3);
        all.sort_unstable();
        assert!(all.into_iter().eq(0..keys.len()));
    }
}
