//! A survey on one computer: two hosts and two SmartNICs that are network namespaces, joined by a switch.
//!
//! The programs of a SmartNIC get a share of the processor's time alone (cgroups), which is all that they have of one. Packets are
//! processed by whoever sends them, so that a SmartNIC's share bounds its programs and not what the kernel does for them. Needs root.

use std::net::{IpAddr, Ipv4Addr};
use std::process::Command;
use std::thread;

use underpass_link::rig::{Namespace, RigError};

use super::endpoints::{Place, Reach};
use super::quota::{Quota, QuotaError};
use super::record::{Kind, Latency, Load, Plan, Throughput};
use super::remote::{AgentError, Remote};

/// Share of a processor that a SmartNIC's programs get, in per cent. A core of a BlueField-2 does about this share of a server's.
const SHARE: u32 = 30;
/// The interface of each endpoint.
const INTERFACE: &str = "up0";
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
    /// No slower processors.
    #[error(transparent)]
    Quota(#[from] QuotaError),
}

/// The endpoints. All of it goes with the value.
#[derive(Debug)]
pub struct Local {
    places: Vec<Place>,
    namespaces: Vec<Namespace>,
    quotas: Vec<Option<Quota>>,
    /// Holds the switch.
    _switch: Namespace,
}

impl Local {
    /// Makes them.
    ///
    /// # Errors
    /// [`LocalError`]; most often, this is not root.
    pub fn new() -> Result<Local, LocalError> {
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
            quotas.push(slow.then(|| Quota::new(name, SHARE)).transpose()?);
            let share = if slow { format!(", with {SHARE} % of a processor for its programs") } else { String::new() };
            places.push(Place {
                name: name.to_string(),
                kind,
                system: system.to_string(),
                emulation: Some(format!("a network namespace on the coordinator's computer{share}")),
                address: IpAddr::V4(address),
                agent: Reach::Command(Vec::new()),
            });
            namespaces.push(namespace);
        }
        Ok(Local { places, namespaces, quotas, _switch: switch })
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

/// What is measured between them: at most ten minutes' worth, or two if `quick`.
///
/// A sample of throughput takes 1.1 s, of latency 3.3 s, most of which sockperf waits.
pub fn plan(quick: bool) -> Plan {
    let throughput = |sizes: &[u64]| sizes.iter().map(|size| Throughput { size: *size, flows: 1 }).collect::<Vec<_>>();
    let idle = Latency { size: 64, load: Load::Idle };
    if quick {
        let throughput = throughput(&[64, 64 << 10]);
        return Plan {
            samples: 1,
            seconds: 1,
            quick,
            throughput,
            latency: vec![idle],
            tls: Vec::new(),
            underpass: false,
        };
    }
    let throughput = throughput(&[64, 2 << 10, 64 << 10]);
    Plan { samples: 5, seconds: 1, quick, throughput, latency: vec![idle], tls: vec![16 << 20], underpass: false }
}
