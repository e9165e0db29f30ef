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
}

/// All of them.
pub const MODES: &[Mode] = &[
    Mode { name: "default", settings: &[], warm: true },
    Mode { name: "at once", settings: AT_ONCE, warm: true },
    // Longer than the harness waits for a sleeper to be asleep.
    Mode {
        name: "dozing",
        settings: &[AT_ONCE[0], AT_ONCE[1], ("UNDERPASS_SPIN_US", "0"), ("UNDERPASS_DOZE_US", "100000")],
        warm: true,
    },
    Mode {
        name: "asleep",
        settings: &[AT_ONCE[0], AT_ONCE[1], ("UNDERPASS_SPIN_US", "0"), ("UNDERPASS_DOZE_US", "0")],
        warm: true,
    },
    Mode { name: "cold", settings: AT_ONCE, warm: false },
    Mode { name: "small ring", settings: &[AT_ONCE[0], AT_ONCE[1], ("UNDERPASS_RING_BYTES", "65536")], warm: true },
];
