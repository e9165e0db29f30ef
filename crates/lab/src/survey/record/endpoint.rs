//! Between what a survey measures, and by which tools.

use serde::{Deserialize, Serialize};

use crate::host::Host;

/// One endpoint, as it described itself when the survey began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Endpoint {
    /// Name in the file of endpoints.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// The computer or other unit that it is inside of; endpoints with the same word belong together.
    pub system: String,
    /// Whether it only stands for what `kind` says.
    pub emulated: bool,
    /// How it is emulated.
    pub emulation: Option<String>,
    /// Address of the measured connections.
    pub address: String,
    /// Processor, kernel and the rest.
    pub host: Host,
    /// Tools with their versions, in the order of their names.
    pub tools: Vec<ToolVersion>,
    /// Whether it has the library of Underpass.
    pub library: bool,
    /// Identity of its network stack: endpoints with the same share a kernel and a network namespace.
    pub network: String,
    /// Number of the user whose programs are measured; absent in older records.
    #[serde(default)]
    pub user: Option<u32>,
    /// Revision of its checkout, if its executable lies in one.
    pub revision: Option<String>,
    /// Its clock less the coordinator's, in ns. All figures are differences of one clock, so this bears on none.
    pub clock_offset: i64,
    /// Time to the agent and back, in ns, by which `clock_offset` may be wrong.
    pub clock_round_trip: u64,
}

impl Endpoint {
    /// The endpoint's name, marked if the endpoint is emulated.
    pub fn label(&self) -> String {
        format!("{}{}", self.name, if self.emulated { " (emulated)" } else { "" })
    }
}

/// What an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The processor of a computer.
    Host,
    /// The own cores of a SmartNIC.
    Smartnic,
    /// A virtual machine.
    Vm,
    /// A container.
    Container,
    /// A network namespace.
    Namespace,
}

/// A tool that an endpoint has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolVersion {
    /// The tool.
    pub tool: Tool,
    /// Its version: `3.12`.
    pub version: String,
}

/// The tools. No series mixes two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tool {
    /// Throughput.
    Iperf3,
    /// TLS.
    Openssl,
    /// Latency, without percentiles.
    Qperf,
    /// Latency, with percentiles.
    Sockperf,
}

impl Tool {
    /// All of them.
    pub const ALL: [Tool; 4] = [Tool::Iperf3, Tool::Openssl, Tool::Qperf, Tool::Sockperf];

    /// The program.
    pub fn program(self) -> &'static str {
        match self {
            Tool::Iperf3 => "iperf3",
            Tool::Openssl => "openssl",
            Tool::Qperf => "qperf",
            Tool::Sockperf => "sockperf",
        }
    }
}
