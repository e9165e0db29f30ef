//! The host that a run was made on.

use std::fmt;
use std::fs;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// What about a host bears on the figures. What cannot be found out is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Host {
    /// Kernel name and release.
    pub kernel: String,
    /// Distribution, in its own words.
    pub system: Option<String>,
    /// Machine architecture.
    pub architecture: String,
    /// Model of the processor.
    pub processor: Option<String>,
    /// Processors that this process may use.
    pub processors: usize,
    /// Memory in bytes.
    pub memory: Option<u64>,
    /// Frequency governor of the first processor.
    pub governor: Option<String>,
    /// Whether this is a virtual machine.
    pub virtualised: Option<bool>,
    /// Mean number of runnable threads over the minute before the run: figures from a busy host are worth less.
    pub load: Option<f64>,
    /// What tells the computer from others like it; absent in older records.
    #[serde(default)]
    pub identity: Option<String>,
}

impl Host {
    /// Looks at this host.
    pub fn describe() -> Host {
        let uname = rustix::system::uname();
        let words = |text: &std::ffi::CStr| text.to_string_lossy().into_owned();
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let os_release = fs::read_to_string("/etc/os-release").unwrap_or_default();
        let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        Host {
            kernel: format!("{} {}", words(uname.sysname()), words(uname.release())),
            system: value(&os_release, "PRETTY_NAME", '=').map(|name| name.trim_matches('"').to_string()),
            architecture: words(uname.machine()),
            processor: value(&cpuinfo, "model name", ':').map(str::to_string),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            memory: value(&meminfo, "MemTotal", ':').and_then(kibibytes),
            governor: line_of("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtualised: value(&cpuinfo, "flags", ':').map(|flags| flags.split(' ').any(|flag| flag == "hypervisor")),
            load: line_of("/proc/loadavg").and_then(|line| line.split(' ').next()?.parse().ok()),
            identity: line_of("/etc/machine-id").and_then(|id| identity(&id)),
        }
    }

    /// Whether it can be this computer that the other describes, as far as records tell computers apart that are alike.
    pub fn can_be(&self, other: &Host) -> bool {
        self.identity.as_ref().zip(other.identity.as_ref()).is_none_or(|(one, other)| one == other)
    }

    /// What computer it is, without its kernel and the rest of its software, which change while it stays the same.
    /// Another one may be just like it; see [`Host::can_be`].
    pub fn machine(&self) -> String {
        let Host { architecture, processors, virtualised, .. } = self;
        let processor = self.processor.as_deref().unwrap_or(architecture);
        let memory = self.memory.map(|memory| (memory as f64 / f64::from(1 << 30)).round());
        format!("{processor}, {processors}, {architecture}, {memory:?}, {virtualised:?}")
    }

    /// All texts.
    pub fn texts(&self) -> impl Iterator<Item = &String> {
        let optional = [&self.system, &self.processor, &self.governor, &self.identity].into_iter().flatten();
        [&self.kernel, &self.architecture].into_iter().chain(optional)
    }
}

impl fmt::Display for Host {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        let processor = self.processor.as_deref().unwrap_or(&self.architecture);
        let plural = if self.processors == 1 { "" } else { "s" };
        write!(out, "{processor}, {} processor{plural}", self.processors)?;
        if let Some(memory) = self.memory {
            write!(out, ", {:.0} GiB", memory as f64 / f64::from(1 << 30))?;
        }
        if self.virtualised == Some(true) {
            write!(out, ", virtual machine")?;
        }
        if let Some(governor) = &self.governor {
            write!(out, ", governor {governor}")?;
        }
        write!(out, "; {}", self.kernel)?;
        if let Some(system) = &self.system {
            write!(out, ", {system}")?;
        }
        Ok(())
    }
}

/// What stands for a machine-id, which is not to be told itself (machine-id(5)); `None` of what is none.
fn identity(id: &str) -> Option<String> {
    let is_one = id.len() == 32 && id.bytes().all(|octet| octet.is_ascii_hexdigit());
    let hash = Sha256::digest(format!("the computer of a record of underpass: {id}"));
    is_one.then(|| hash.iter().take(8).map(|octet| format!("{octet:02x}")).collect())
}

/// Revision of the checkout in which the running executable lies, `-dirty` if files differ from it.
pub fn revision() -> Option<String> {
    let executable = std::env::current_exe().ok()?;
    let output = Command::new("git")
        .arg("-C")
        .arg(executable.parent()?)
        .args(["describe", "--always", "--dirty", "--tags"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let revision = String::from_utf8(output.stdout).ok()?.trim().to_string();
    (output.status.success() && !revision.is_empty()).then_some(revision)
}

fn value<'a>(text: &'a str, key: &str, separator: char) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(separator)?;
        (name.trim() == key).then(|| value.trim())
    })
}

fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix(" kB")?.parse::<u64>().ok().map(|kib| kib * 1024)
}

fn line_of(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_name() {
        let text = "model\t\t: 207\nmodel name\t: A Processor\nflags\t: fpu hypervisor\n";
        assert_eq!(value(text, "model name", ':'), Some("A Processor"));
        assert_eq!(value(text, "absent", ':'), None);
        assert_eq!(kibibytes("2048 kB"), Some(2 << 20));
    }

    #[test]
    fn a_computer_has_an_identity_that_does_not_tell_its_machine_id() {
        let ids = ["0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdee"];
        let [one, other] = ids.map(|id| identity(id).unwrap());
        assert!(one != other && one.len() == 16 && !ids[0].contains(&one), "{one}");
        assert_eq!([identity(""), identity("uninitialized")], [None, None]);
        let like = |identity: Option<&str>| Host { identity: identity.map(str::to_string), ..Host::describe() };
        assert!(like(Some("one")).can_be(&like(Some("one"))) && !like(Some("one")).can_be(&like(Some("other"))));
        assert!(like(Some("one")).can_be(&like(None)) && like(None).can_be(&like(Some("one"))));
    }

    #[test]
    fn this_host_can_be_described() {
        let host = Host::describe();
        assert!(host.kernel.starts_with("Linux "));
        assert!(host.processors >= 1);
        assert!(host.to_string().contains(&host.kernel));
    }
}
