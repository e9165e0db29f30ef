//! What an experiment promises to yield, and by what it is judged.

use crate::unit::{Better, Unit, plain};

/// One figure that an experiment yields with every sample.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Which figures belong together, e.g. `blocking` or `Redis`.
    pub group: String,
    /// What is measured, in words that stand alone in a table.
    pub name: String,
    /// Bytes of a message or a write, where the experiment has such a size.
    pub size: Option<u64>,
    /// Unit of every sample.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
    /// How the two sides are set against each other.
    pub contrast: Contrast,
    /// What must be reached.
    pub targets: Vec<Target>,
    /// What a reader should know beside the figure.
    pub notes: Vec<String>,
}

/// How Underpass is set against the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contrast {
    /// As a factor: how many times better.
    Ratio,
    /// As a difference, where the kernel's figure says little about ours.
    Difference,
}

/// What must be reached, on medians.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// At least so many times better than the kernel.
    TimesBetter(f64),
    /// At most so many times the baseline; less is better.
    WithinBaseline(f64),
    /// At least this share of the baseline; more is better.
    ShareOfBaseline(f64),
    /// At least the baseline and this, in the plan's unit; more is better.
    BaselinePlus(f64),
    /// At most this, in the plan's unit.
    AtMost(f64),
    /// At most the kernel's figure and this, in the plan's unit.
    KernelPlus(f64),
}

/// The medians that a target is judged on.
#[derive(Clone, Copy, Debug)]
pub struct Medians {
    /// Kernel TCP, where there is such a side.
    pub kernel: Option<f64>,
    /// Underpass.
    pub underpass: f64,
    /// The baseline, where one was measured beside.
    pub baseline: Option<f64>,
}

impl Plan {
    /// A rate that is set against the kernel's as a factor.
    pub fn rate(group: &str, name: impl Into<String>, unit: Unit) -> Plan {
        Plan::new(group, name, unit, Better::Higher, Contrast::Ratio)
    }

    /// A duration that is set against the kernel's as a factor.
    pub fn duration(group: &str, name: impl Into<String>) -> Plan {
        Plan::new(group, name, Unit::Nanoseconds, Better::Lower, Contrast::Ratio)
    }

    /// A cost that is set against the kernel's as a difference.
    pub fn cost(group: &str, name: impl Into<String>, unit: Unit) -> Plan {
        Plan::new(group, name, unit, Better::Lower, Contrast::Difference)
    }

    fn new(group: &str, name: impl Into<String>, unit: Unit, better: Better, contrast: Contrast) -> Plan {
        let (group, name) = (group.to_string(), name.into());
        Plan { group, name, size: None, unit, better, contrast, targets: Vec::new(), notes: Vec::new() }
    }

    /// This plan for messages or writes of `bytes`.
    pub fn of_size(mut self, bytes: u64) -> Plan {
        self.size = Some(bytes);
        self
    }

    /// This plan with one more target.
    pub fn target(mut self, target: Target) -> Plan {
        self.targets.push(target);
        self
    }

    /// This plan with one more note.
    pub fn note(mut self, note: impl Into<String>) -> Plan {
        self.notes.push(note.into());
        self
    }
}

impl Medians {
    /// How many times better Underpass is than the kernel; more than 1 is better, whatever the unit. `None` if a figure
    /// is 0.
    pub fn ratio(&self, better: Better) -> Option<f64> {
        let kernel = self.kernel?;
        let ratio = match better {
            Better::Lower => kernel / self.underpass,
            Better::Higher => self.underpass / kernel,
        };
        (ratio.is_finite() && ratio > 0.0).then_some(ratio)
    }
}

impl Target {
    /// Whether the medians reach it; `None` if what it is judged by was not measured.
    pub fn met(self, medians: &Medians, better: Better) -> Option<bool> {
        let Medians { kernel, underpass, baseline } = *medians;
        match self {
            Target::TimesBetter(times) => medians.ratio(better).map(|ratio| ratio >= times),
            Target::WithinBaseline(times) => baseline.map(|baseline| underpass <= times * baseline),
            Target::ShareOfBaseline(share) => baseline.map(|baseline| underpass >= share * baseline),
            Target::BaselinePlus(more) => baseline.map(|baseline| underpass >= baseline + more),
            Target::AtMost(limit) => Some(underpass <= limit),
            Target::KernelPlus(more) => kernel.map(|kernel| underpass <= kernel + more),
        }
    }

    /// The factor over the kernel that it asks for, if that is what it asks for.
    pub fn times_better(self) -> Option<f64> {
        if let Target::TimesBetter(times) = self { Some(times) } else { None }
    }

    /// The target for a person, e.g. `≥ 25×` or `≤ 2× cache line`.
    pub fn text(self, unit: Unit, baseline: Option<&str>) -> String {
        let baseline = baseline.unwrap_or("baseline");
        match self {
            Target::TimesBetter(times) => format!("≥ {}×", plain(times)),
            Target::WithinBaseline(times) => format!("≤ {}× {baseline}", plain(times)),
            Target::ShareOfBaseline(times) if times >= 2.0 => format!("≥ {}× {baseline}", plain(times)),
            Target::ShareOfBaseline(share) => format!("≥ {} % of {baseline}", plain(share * 100.0)),
            Target::BaselinePlus(more) => format!("≥ {baseline} + {}", unit.round(more)),
            Target::AtMost(limit) => format!("≤ {}", unit.round(limit)),
            Target::KernelPlus(more) => format!("≤ kernel + {}", unit.round(more)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: Medians = Medians { kernel: Some(60_000.0), underpass: 600.0, baseline: Some(300.0) };

    #[test]
    fn a_ratio_above_one_is_better_either_way() {
        assert_eq!(LATENCY.ratio(Better::Lower), Some(100.0));
        let rate = Medians { kernel: Some(10.0), underpass: 30.0, baseline: None };
        assert_eq!(rate.ratio(Better::Higher), Some(3.0));
        let nothing = Medians { kernel: Some(0.0), underpass: 0.0, baseline: None };
        assert_eq!(nothing.ratio(Better::Lower), None);
    }

    #[test]
    fn targets_are_judged_on_medians() {
        let met = |target: Target| target.met(&LATENCY, Better::Lower);
        assert_eq!(met(Target::TimesBetter(100.0)), Some(true));
        assert_eq!(met(Target::TimesBetter(101.0)), Some(false));
        assert_eq!(met(Target::WithinBaseline(2.0)), Some(true));
        assert_eq!(met(Target::WithinBaseline(1.9)), Some(false));
        assert_eq!(met(Target::AtMost(599.0)), Some(false));
        assert_eq!(met(Target::KernelPlus(0.0)), Some(true));
        let share = Medians { underpass: 60.0, baseline: Some(39.0), ..LATENCY };
        assert_eq!(Target::BaselinePlus(20.0).met(&share, Better::Higher), Some(true));
        assert_eq!(Target::BaselinePlus(22.0).met(&share, Better::Higher), Some(false));
        let alone = Medians { baseline: None, ..LATENCY };
        assert_eq!(Target::ShareOfBaseline(0.8).met(&alone, Better::Higher), None, "nothing to judge by");
    }

    #[test]
    fn targets_read_as_in_the_promise() {
        assert_eq!(Target::TimesBetter(25.0).text(Unit::Nanoseconds, None), "≥ 25×");
        assert_eq!(Target::TimesBetter(1.3).text(Unit::PerSecond, None), "≥ 1.3×");
        assert_eq!(Target::TimesBetter(0.95).text(Unit::PerSecond, None), "≥ 0.95×");
        assert_eq!(Target::WithinBaseline(2.0).text(Unit::Nanoseconds, Some("cache line")), "≤ 2× cache line");
        assert_eq!(Target::ShareOfBaseline(0.8).text(Unit::BytesPerSecond, Some("bare ring")), "≥ 80 % of bare ring");
        assert_eq!(Target::KernelPlus(5_000.0).text(Unit::Nanoseconds, None), "≤ kernel + 5 µs");
    }
}
