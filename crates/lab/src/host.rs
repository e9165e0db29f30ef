//! The host that a run was made on.

use std::fmt;
use std::fs;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

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
        }
    }

    /// The computer, without its kernel and the rest of its software, which change while it stays the same.
    pub fn machine(&self) -> String {
        let Host { architecture, processors, virtualised, .. } = self;
        let processor = self.processor.as_deref().unwrap_or(architecture);
        let memory = self.memory.map(|memory| (memory as f64 / f64::from(1 << 30)).round());
        format!("{processor}, {processors}, {architecture}, {memory:?}, {virtualised:?}")
    }

    /// All texts.
    pub fn texts(&self) -> impl Iterator<Item = &String> {
        let optional = [&self.system, &self.processor, &self.governor].into_iter().flatten();
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
    fn this_host_can_be_described() {
        let host = Host::describe();
        assert!(host.kernel.starts_with("Linux "));
        assert!(host.processors >= 1);
        assert!(host.to_string().contains(&host.kernel));
    }
}
