//! A survey on one computer: two hosts and two SmartNICs that are network namespaces, joined by a switch.
//!
//! The programs of a SmartNIC get only a share of the processor's time (cgroups), which is all that makes them
//! SmartNICs. The sender of a packet processes it, so a SmartNIC's share bounds its programs and not the kernel's work
//! for them. Where control groups cannot be made, SmartNICs are as fast as hosts, and the survey says so. With a folder
//! of Arm builds of the tools, a SmartNIC's programs run under qemu-user too. Needs root.

use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use underpass_link::rig::{Namespace, RigError};

use super::endpoints::{Place, Reach, SAMPLES};
use super::quota::Quota;
use super::record::{Endpoint, Kind, Latency, Load, Plan, Throughput, Tool};
use super::remote::{AgentError, Remote};
use super::toolbox::{ArmError, Toolbox};
use crate::record::Skipped;

/// Share of a processor that a SmartNIC's programs get, in per cent. A core of a BlueField-2 does about this share of a
/// server's.
const SHARE: u32 = 30;
/// The interface of each endpoint.
const INTERFACE: &str = "up0";
/// Bytes of the greatest write.
const LARGEST: u64 = 64 << 10;
/// IP packets have so many octets, as on Ethernet.
const MTU: usize = 1500;

/// Name, kind, system.
const ENDPOINTS: [(&str, Kind, &str); 4] = [
    ("host-a", Kind::Host, "a"),
    ("nic-a", Kind::Smartnic, "a"),
    ("host-b", Kind::Host, "b"),
    ("nic-b", Kind::Smartnic, "b"),
];

/// Why there are no such endpoints.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// No network namespaces.
    #[error(transparent)]
    Rig(#[from] RigError),
    /// Arm builds were asked for that are not there.
    #[error(transparent)]
    Arm(#[from] ArmError),
}

/// The endpoints. All of it goes with the value.
#[derive(Debug)]
pub struct Local {
    places: Vec<Place>,
    namespaces: Vec<Namespace>,
    quotas: Vec<Option<Quota>>,
    arm: Option<PathBuf>,
    missing: Vec<Skipped>,
    /// Holds the switch.
    _switch: Namespace,
}

impl Local {
    /// Makes them; the SmartNICs' tools are the Arm builds in `arm`, if it is given.
    ///
    /// # Errors
    /// [`LocalError`]; most often, this is not root.
    pub fn new(arm: Option<&Path>) -> Result<Local, LocalError> {
        arm.map(Toolbox::arm).transpose()?;
        let mut missing = Vec::new();
        let switch = Namespace::new()?;
        switch.bridge("switch")?;
        let (mut places, mut namespaces, mut quotas) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (name, kind, system)) in ENDPOINTS.into_iter().enumerate() {
            let namespace = Namespace::new()?;
            let (port, address) = (format!("port{number}"), Ipv4Addr::new(10, 9, 0, number as u8 + 1));
            namespace.set_up("lo", true)?;
            switch.lay(&port, (&namespace, INTERFACE), 1, MTU)?;
            switch.attach_to("switch", &port)?;
            switch.set_up(&port, true)?;
            namespace.equip(INTERFACE, address)?;
            let slow = kind == Kind::Smartnic;
            let quota = slow.then(|| Quota::new(name, SHARE)).transpose().unwrap_or_else(|error| {
                missing.push(Skipped { name: format!("{name}: a slower processor"), reason: error.to_string() });
                None
            });
            let share = match &quota {
                Some(_) => format!(", with {SHARE} % of a processor for its programs"),
                None if slow => ", with a processor as fast as a host's".to_string(),
                None => String::new(),
            };
            let builds = if slow && arm.is_some() { ", which are Arm builds under qemu-user" } else { "" };
            quotas.push(quota);
            places.push(Place {
                name: name.to_string(),
                kind,
                system: system.to_string(),
                emulation: Some(format!("a network namespace on the coordinator's computer{share}{builds}")),
                address: IpAddr::V4(address),
                agent: Reach::Command(Vec::new()),
            });
            namespaces.push(namespace);
        }
        if arm.is_none() {
            let reason =
                "they were not asked for; packaging/arm-tools unpacks them into a directory, for --arm".to_string();
            missing.push(Skipped { name: "SmartNICs: Arm builds of the tools under qemu-user".to_string(), reason });
        }
        let arm = arm.map(Path::to_path_buf);
        Ok(Local { places, namespaces, quotas, arm, missing, _switch: switch })
    }

    /// What of an emulation could not be had.
    pub fn missing(&self) -> &[Skipped] {
        &self.missing
    }

    /// The folder with the Arm builds, if these are used and this endpoint is emulated with them.
    pub fn arm(&self, index: usize) -> Option<&Path> {
        self.arm.as_deref().filter(|_| self.places[index].kind == Kind::Smartnic)
    }

    /// Whether these are endpoints as they are made here.
    pub fn are(endpoints: &[Endpoint]) -> bool {
        let names = endpoints.iter().map(|it| (&*it.name, it.kind, &*it.system, it.emulated));
        names.eq(ENDPOINTS.iter().map(|(name, kind, system)| (*name, *kind, *system, true)))
    }

    /// The endpoints.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Starts the agent of an endpoint, which `command` starts.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn connect(&self, index: usize, mut command: Command) -> Result<Remote, AgentError> {
        let name = command.get_program().to_string_lossy().into_owned();
        let failed = |error| AgentError::Start { command: name.clone(), error };
        // A thread of its own enters the namespace, and what it starts stays there.
        thread::scope(|scope| {
            let started = scope.spawn(|| {
                self.namespaces[index].enter().map_err(failed)?;
                if let Some(quota) = &self.quotas[index] {
                    quota.limit(&mut command);
                }
                Remote::start(&mut command)
            });
            started.join().unwrap_or_else(|_| Err(failed(std::io::Error::other("its thread failed"))))
        })
    }
}

/// What is asked of a survey on one computer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Only to see that all works.
    pub quick: bool,
    /// How the exchanges of latency were distributed, which takes longer.
    pub percentiles: bool,
    /// The tools of SmartNICs are Arm builds.
    pub has_arm: bool,
}

/// The plan between local endpoints: at most ten minutes' worth, or two if `quick`; with `percentiles` half as much
/// again.
///
/// All combinations of sizes and numbers of flows would take hours. So throughput is measured for each size with one
/// flow, and for each number of flows with the greatest size, a third of a second each. Latency is measured for the
/// least size, by qperf, since sockperf, which also reports percentiles, waits for two seconds before each measurement;
/// it measures if percentiles are wanted. A processor that is emulated, as for Arm builds, takes seconds to encrypt 16
/// MiB, so that the file is smaller then.
pub fn plan(wanted: Wanted) -> Plan {
    let Wanted { quick, percentiles, has_arm } = wanted;
    let throughput = |size, flows| Throughput { size, flows };
    let (sizes, flows): (&[u64], &[u32]) =
        if quick { (&[64, LARGEST], &[8]) } else { (&[64, 1 << 10, 8 << 10, LARGEST], &[2, 4, 8]) };
    let over_size = sizes.iter().map(|size| throughput(*size, 1));
    Plan {
        samples: if quick { 1 } else { SAMPLES },
        seconds: 1,
        brief: true,
        quick,
        throughput: over_size.chain(flows.iter().map(|flows| throughput(LARGEST, *flows))).collect(),
        latency: [Load::Idle, Load::Stream].map(|load| Latency { size: 64, load }).into(),
        latency_tool: Some(if percentiles { Tool::Sockperf } else { Tool::Qperf }),
        tls: vec![if has_arm { 1 << 20 } else { 16 << 20 }],
        underpass: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seconds that samples take where nothing else runs, measured on two processors of 2.4 GHz; the limits are
    /// those of the command's help.
    #[test]
    fn a_plan_ends_in_time_and_has_what_it_should() {
        let all = [(false, false, 600.0), (true, false, 120.0), (false, true, 900.0), (true, true, 150.0)];
        for (quick, percentiles, limit) in all {
            let plan = plan(Wanted { quick, percentiles, has_arm: false });
            assert_eq!(plan.latency_tool, Some(if percentiles { Tool::Sockperf } else { Tool::Qperf }));
            let (pairs, offloads, own) = (12.0, 4.0, 2.0 * 4.0);
            let (throughput, latency, tls) = (0.45, if percentiles { 3.25 } else { 1.15 }, 0.75);
            let alone = plan.throughput.iter().filter(|it| it.flows == 1).count() as f64;
            let of_pairs = pairs * (plan.throughput.len() as f64 * throughput + plan.latency.len() as f64 * latency);
            let of_endpoints = own * (alone * throughput + latency);
            let all = plan.samples as f64 * (of_pairs + of_endpoints + (pairs + offloads) * tls);
            assert!(all < 0.95 * limit, "{all} s");
            assert!(plan.throughput.iter().any(|it| it.size == 64) && plan.throughput.iter().any(|it| it.flows == 8));
            assert!(plan.latency.iter().any(|it| it.load == Load::Stream) && !plan.tls.is_empty() && plan.underpass);
        }
        let full = plan(Wanted::default());
        assert!(
            full.samples >= 5 && [1, 2, 4, 8].iter().all(|flows| full.throughput.iter().any(|it| it.flows == *flows))
        );
    }
}
