//! The ways in which the tests run the library.

use crate::library::AT_ONCE;

/// One way of running a program under Underpass.
pub struct Mode {
    /// What people call it.
    pub name: &'static str,
    /// Its settings.
    pub settings: &'static [(&'static str, &'static str)],
    /// Forty messages go each way first; without them a scenario itself goes through the switch to the fast path.
    pub warm: bool,
    /// Connections find their other ends. If not, all of them are on kernel TCP for good as soon as they look for those.
    pub meets: bool,
}

impl Mode {
    /// Whether a connection that carries a few messages more is sure to go fast.
    pub fn is_fast(&self) -> bool {
        self.warm && self.meets
    }
}

/// All of them.
pub const MODES: &[Mode] = &[
    Mode { name: "default", settings: &[], warm: true, meets: true },
    Mode { name: "at once", settings: AT_ONCE, warm: true, meets: true },
    // Longer than the harness waits for a sleeper to be asleep.
    Mode {
        name: "dozing",
        settings: &[AT_ONCE[0], AT_ONCE[1], ("UNDERPASS_SPIN_US", "0"), ("UNDERPASS_DOZE_US", "100000")],
        warm: true,
        meets: true,
    },
    Mode {
        name: "asleep",
        settings: &[AT_ONCE[0], AT_ONCE[1], ("UNDERPASS_SPIN_US", "0"), ("UNDERPASS_DOZE_US", "0")],
        warm: true,
        meets: true,
    },
    Mode { name: "cold", settings: AT_ONCE, warm: false, meets: true },
    Mode {
        name: "small ring",
        settings: &[AT_ONCE[0], AT_ONCE[1], ("UNDERPASS_RING_BYTES", "65536")],
        warm: true,
        meets: true,
    },
    Mode { name: "unmet", settings: &[AT_ONCE[0], AT_ONCE[1], ("PARITY_UNMET", "1")], warm: true, meets: false },
];
