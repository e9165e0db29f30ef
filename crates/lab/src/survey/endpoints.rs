//! The file that names the endpoints.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::record::{
    Kind, LONGEST_NAME, LONGEST_TEXT, Latency, Load, MOST_ENDPOINTS, MOST_SIZES, Plan, Throughput, Tool,
};
use crate::input::{self, InputError};

/// Sizes of a message that are measured unless the file says otherwise, in bytes.
const SIZES: [u64; 11] = [64, 128, 256, 512, 1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Numbers of flows.
const FLOWS: [u32; 4] = [1, 2, 4, 8];
/// Bytes of the file that is sent over TLS.
const FILE: u64 = 256 << 20;
/// Largest file of endpoints, in bytes.
const MOST: u64 = 1 << 20;
/// Fewest samples of a figure.
pub const SAMPLES: usize = 5;

/// The endpoints and what is measured between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Endpoints {
    /// Token file, if an agent is to be reached at an address.
    pub token: Option<PathBuf>,
    /// What is measured.
    pub plan: Plan,
    /// The endpoints.
    pub endpoints: Vec<Place>,
}

/// One endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct Place {
    /// Its name.
    pub name: String,
    /// What it is.
    pub kind: Kind,
    /// What it is inside of.
    pub system: String,
    /// How it is emulated, if it is.
    pub emulation: Option<String>,
    /// Address of the measured connections.
    pub address: IpAddr,
    /// Where its agent is.
    pub agent: Reach,
}

/// How an agent is reached.
#[derive(Clone, Debug, PartialEq)]
pub enum Reach {
    /// The user has started the agent, and it listens there.
    Address(SocketAddr),
    /// This command starts the agent, which speaks by standard input and output.
    Command(Vec<String>),
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum EndpointsError {
    /// It cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: InputError,
    },
    /// It says something else than it should.
    #[error("{}: {what}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    token: Option<PathBuf>,
    #[serde(default)]
    plan: PlanText,
    endpoint: Vec<EndpointText>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PlanText {
    samples: Option<usize>,
    seconds: Option<u32>,
    sizes: Option<Vec<u64>>,
    flows: Option<Vec<u32>>,
    tls: Option<Vec<u64>>,
    latency_tool: Option<Tool>,
    underpass: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EndpointText {
    name: String,
    kind: Kind,
    system: Option<String>,
    emulation: Option<String>,
    address: IpAddr,
    agent: Option<SocketAddr>,
    start: Option<Vec<String>>,
}

impl Endpoints {
    /// Reads the file. A token file is found beside it, unless its path is absolute.
    ///
    /// # Errors
    /// [`EndpointsError`].
    pub fn read(path: &Path) -> Result<Endpoints, EndpointsError> {
        let text = input::read(path, MOST).map_err(|error| EndpointsError::File { path: path.into(), error })?;
        let content = |what| EndpointsError::Content { path: path.into(), what };
        let text = String::from_utf8(text).map_err(|error| content(format!("it is no text ({error})")))?;
        let mut it = Endpoints::parse(&text).map_err(content)?;
        if let (Some(token), Some(folder)) = (&mut it.token, path.parent()) {
            *token = folder.join(&*token);
        }
        Ok(it)
    }

    fn parse(text: &str) -> Result<Endpoints, String> {
        let text: Text = toml::from_str(text).map_err(|error| error.to_string().trim_end().to_string())?;
        let plan = plan(text.plan)?;
        let endpoints = text.endpoint.into_iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let mut names = BTreeSet::new();
        if let Some(twice) = endpoints.iter().find(|it| !names.insert(it.name.as_str())) {
            return Err(format!("two endpoints have the name {:?}", twice.name));
        }
        for (at, one) in endpoints.iter().enumerate() {
            let is_same = |it: &&Place| matches!(it.agent, Reach::Address(_)) && it.agent == one.agent;
            if let Some(other) = endpoints[..at].iter().find(is_same) {
                let (one, other) = (&one.name, &other.name);
                return Err(format!(
                    "endpoints {other:?} and {one:?} have the same agent; each endpoint needs its own"
                ));
            }
        }
        // No report could read the record.
        if endpoints.len() > MOST_ENDPOINTS {
            let count = endpoints.len();
            return Err(format!(
                "{count} endpoints are more than the {MOST_ENDPOINTS} of one survey; survey some by \
                                themselves"
            ));
        }
        if endpoints.len() < 2 {
            return Err("at least two [[endpoint]] are needed: pairs are measured".to_string());
        }
        let needs_token = endpoints.iter().find(|it| matches!(it.agent, Reach::Address(_)));
        if let (Some(endpoint), None) = (needs_token, &text.token) {
            let name = &endpoint.name;
            return Err(format!("endpoint {name:?} has an agent at an address, which takes a token: token = \"FILE\""));
        }
        Ok(Endpoints { token: text.token, plan, endpoints })
    }
}

fn plan(text: PlanText) -> Result<Plan, String> {
    let sizes = text.sizes.unwrap_or(SIZES.to_vec());
    let flows = text.flows.unwrap_or(FLOWS.to_vec());
    let within = |name: &str, value: u64, least: u64, most: u64| {
        let whole = (least..=most).contains(&value);
        if whole { Ok(()) } else { Err(format!("plan.{name}: {value} is not from {least} to {most}")) }
    };
    sizes.iter().try_for_each(|size| within("sizes", *size, 14, 1 << 20))?;
    flows.iter().try_for_each(|flows| within("flows", (*flows).into(), 1, 128))?;
    let tls = text.tls.unwrap_or(vec![FILE]);
    tls.iter().try_for_each(|size| within("tls", *size, 1 << 10, 16 << 30))?;
    let (samples, seconds) = (text.samples.unwrap_or(SAMPLES), text.seconds.unwrap_or(1));
    within("samples", samples as u64, SAMPLES as u64, 1000)?;
    within("seconds", seconds.into(), 1, 600)?;
    let throughput: Vec<Throughput> =
        flows.iter().flat_map(|flows| sizes.iter().map(|size| Throughput { size: *size, flows: *flows })).collect();
    let loads = [Load::Idle, Load::Stream];
    let latency: Vec<Latency> =
        loads.iter().flat_map(|load| sizes.iter().map(|size| Latency { size: *size, load: *load })).collect();
    let few = |name: &str, count: usize| {
        if count <= MOST_SIZES { Ok(()) } else { Err(format!("plan.{name}: {count} sizes, more than {MOST_SIZES}")) }
    };
    few("sizes", sizes.len()).and_then(|()| few("tls", tls.len()))?;
    let distinct =
        |count: usize, all: usize| if count == all { Ok(()) } else { Err("plan: a value comes twice".to_string()) };
    distinct(sizes.iter().collect::<BTreeSet<_>>().len(), sizes.len())?;
    distinct(flows.iter().collect::<BTreeSet<_>>().len(), flows.len())?;
    distinct(tls.iter().collect::<BTreeSet<_>>().len(), tls.len())?;
    if throughput.is_empty() && latency.is_empty() && tls.is_empty() {
        return Err("plan: nothing is left to measure; name sizes and flows, or sizes of files with tls".to_string());
    }
    let underpass = text.underpass.unwrap_or(true);
    let latency_tool = text.latency_tool;
    if latency_tool.is_some_and(|tool| !matches!(tool, Tool::Sockperf | Tool::Qperf)) {
        return Err("plan.latency_tool: sockperf or qperf is needed".to_string());
    }
    Ok(Plan { samples, seconds, brief: false, quick: false, throughput, latency, latency_tool, tls, underpass })
}

fn place(text: EndpointText) -> Result<Place, String> {
    let EndpointText { name, kind, system, emulation, address, agent, start } = text;
    let system = system.unwrap_or_else(|| name.clone());
    for word in [&name, &system] {
        let fits = !word.is_empty()
            && word.len() <= LONGEST_NAME
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
        if !fits {
            return Err(format!("{word:?} cannot be a name: up to {LONGEST_NAME} letters, digits, '-', '_' and '.'"));
        }
    }
    if emulation.as_ref().is_some_and(|how| how.len() > LONGEST_TEXT) {
        return Err(format!("endpoint {name:?}: emulation has more than {LONGEST_TEXT} bytes"));
    }
    if address.is_unspecified() || address.is_multicast() {
        return Err(format!("endpoint {name:?}: {address} is no address to connect to"));
    }
    let agent = match (agent, start) {
        (Some(at), None) => Reach::Address(at),
        (None, Some(command)) if !command.is_empty() => Reach::Command(command),
        (None, Some(_)) => return Err(format!("endpoint {name:?}: start is empty")),
        (Some(_), Some(_)) => return Err(format!("endpoint {name:?} has both agent and start; one is needed")),
        (None, None) => {
            return Err(format!(
                "endpoint {name:?} needs agent = \"ADDRESS:PORT\", where `underpass agent` listens, or start = \
                 [\"ssh\", \"HOST\", \"underpass\", \"agent\", \"--stdio\"]"
            ));
        }
    };
    Ok(Place { name, kind, system, emulation, address, agent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = r#"
        token = "underpass.token"

        [[endpoint]]
        name = "host-a"
        kind = "host"
        system = "a"
        address = "10.0.0.1"
        agent = "10.0.0.1:7471"

        [[endpoint]]
        name = "nic-a"
        kind = "smartnic"
        system = "a"
        address = "10.0.0.2"
        start = ["ssh", "nic-a", "underpass", "agent", "--stdio"]
    "#;

    fn refused(from: &str, to: &str) -> String {
        let text = TEXT.replacen(from, to, 1);
        assert_ne!(text, TEXT);
        Endpoints::parse(&text).unwrap_err()
    }

    #[test]
    fn a_file_without_a_plan_has_the_whole_plan() {
        let it = Endpoints::parse(TEXT).unwrap();
        assert_eq!((it.plan.throughput.len(), it.plan.latency.len(), it.plan.samples), (11 * 4, 11 * 2, 5));
        assert_eq!(it.endpoints[0].agent, Reach::Address("10.0.0.1:7471".parse().unwrap()));
        assert_eq!(it.endpoints[1].kind, Kind::Smartnic);
        let shorter = format!("{TEXT}\n[plan]\nsizes = [64]\nflows = [1, 4]\nsamples = 7\ntls = []\nunderpass = false");
        let plan = Endpoints::parse(&shorter).unwrap().plan;
        assert_eq!((plan.throughput.len(), plan.latency.len(), plan.samples, plan.tls.len()), (2, 2, 7, 0));
    }

    #[test]
    fn the_token_lies_beside_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("endpoints.toml");
        std::fs::write(&path, TEXT).unwrap();
        assert_eq!(Endpoints::read(&path).unwrap().token, Some(folder.path().join("underpass.token")));
        let missing = Endpoints::read(&folder.path().join("other.toml")).unwrap_err().to_string();
        assert!(missing.contains("other.toml"), "{missing}");
    }

    #[test]
    fn what_is_no_file_of_endpoints_is_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        for (path, what) in crate::input::tests::endless(folder.path()) {
            let error = Endpoints::read(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("it is {what} and no regular file")), "{error}");
        }
        let path = folder.path().join("file");
        std::fs::File::create(&path).unwrap().set_len(10 << 30).unwrap();
        assert!(Endpoints::read(&path).unwrap_err().to_string().ends_with("it has more than 1 MiB"));
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(Endpoints::read(&path).unwrap_err().to_string().contains("it is no text"));
    }

    #[test]
    fn mistakes_are_named() {
        assert!(refused("kind = \"host\"", "kind = \"toaster\"").contains("toaster"));
        assert!(refused("system", "sytem").contains("sytem"));
        assert!(refused("nic-a", "host-a").contains("two endpoints have the name \"host-a\""));
        assert!(refused("host-a", "host,a").contains("cannot be a name"));
        assert!(refused("address = \"10.0.0.1\"", "address = \"0.0.0.0\"").contains("no address to connect to"));
        assert!(refused("agent = \"10.0.0.1:7471\"", "").contains("`underpass agent` listens"));
        assert!(refused("token = \"underpass.token\"", "").contains("takes a token"));
        assert!(refused("start = [", "agent = \"10.0.0.2:1\"\nstart = [").contains("both agent and start"));
        let same =
            refused("start = [\"ssh\", \"nic-a\", \"underpass\", \"agent\", \"--stdio\"]", "agent = \"10.0.0.1:7471\"");
        assert!(same.contains("\"host-a\" and \"nic-a\" have the same agent"), "{same}");
        assert!(Endpoints::parse("").is_err());
        let plan = |line: &str| Endpoints::parse(&format!("{TEXT}\n[plan]\n{line}")).unwrap_err();
        assert!(plan("samples = 4").contains("plan.samples: 4 is not from 5"));
        assert!(plan("sizes = [1]").contains("plan.sizes"));
        assert!(plan("sizes = [64, 64]").contains("twice"));
        assert!(plan("flows = [0]").contains("plan.flows"));
        assert!(plan("sizes = []\ntls = []").contains("nothing is left to measure"));
        assert!(plan("tls = [1]").contains("plan.tls"));
        assert!(plan("latency_tool = \"iperf3\"").contains("sockperf or qperf"));
    }

    /// What no report could read is not measured.
    #[test]
    fn more_than_a_record_may_have_is_refused_before_the_first_sample() {
        let endpoint = |number: usize| {
            format!("[[endpoint]]\nname = \"e{number}\"\nkind = \"host\"\naddress = \"10.0.0.1\"\nstart = [\"ssh\"]\n")
        };
        let endpoints = |count| Endpoints::parse(&(0..count).map(endpoint).collect::<String>());
        assert_eq!(endpoints(100).unwrap().endpoints.len(), 100);
        assert_eq!(
            endpoints(101).unwrap_err(),
            "101 endpoints are more than the 100 of one survey; survey some by themselves"
        );
        let sizes = |count: u64| (64..64 + count).map(|it| it.to_string()).collect::<Vec<_>>().join(", ");
        let plan = |line: String| Endpoints::parse(&format!("{TEXT}\n[plan]\n{line}"));
        assert!(plan(format!("sizes = [{}]", sizes(1000))).is_ok());
        let error = plan(format!("sizes = [{}]", sizes(1001))).unwrap_err();
        assert_eq!(error, "plan.sizes: 1001 sizes, more than 1000");
        let emulation = |count: usize| {
            TEXT.replacen("[[endpoint]]", &format!("[[endpoint]]\nemulation = \"{}\"", "x".repeat(count)), 1)
        };
        assert!(Endpoints::parse(&emulation(4096)).is_ok());
        assert!(Endpoints::parse(&emulation(4097)).unwrap_err().contains("emulation has more than 4096 bytes"));
    }

    proptest! {
        #[test]
        fn no_text_is_too_much(text in "\\PC{0,200}") {
            let _ = Endpoints::parse(&text);
        }
    }
}
