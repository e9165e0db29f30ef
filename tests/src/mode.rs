//! The ways in which the tests run the library.

use std::sync::OnceLock;

use crate::broker;
use crate::library::{self, AT_ONCE};

/// One way of running a program under Underpass.
pub struct Mode {
    /// What people call it.
    pub name: &'static str,
    /// Its settings.
    pub settings: &'static [(&'static str, &'static str)],
    /// How many messages go each way first; without them, the switch to the fast path falls into the scenario itself.
    pub warm: u32,
    /// Connections find their other ends. If not, all of them are on kernel TCP for good as soon as they look for
    /// those.
    pub meets: bool,
}

impl Mode {
    /// Whether a connection that carries a few messages more is sure to go fast.
    pub fn is_fast(&self) -> bool {
        self.warm > 0 && self.meets
    }
}

/// All of them, and the one in which connections meet through a broker.
pub fn all() -> impl Iterator<Item = &'static Mode> {
    let is_wanted = std::env::var("UNDERPASS_TEST_MODE").map_or(true, |only| only == BROKERED);
    own().chain(is_wanted.then(brokered))
}

/// The modes that `make test` plays. The mode with the broker needs a library that was built for it; `make brokered`
/// plays it.
pub fn tested() -> impl Iterator<Item = &'static Mode> {
    let asks_broker = std::env::var("UNDERPASS_TEST_MODE").is_ok_and(|only| only == BROKERED);
    own().chain(asks_broker.then(brokered))
}

/// The modes that need no broker, or the single mode that is asked for.
fn own() -> impl Iterator<Item = &'static Mode> {
    let only = std::env::var("UNDERPASS_TEST_MODE").ok();
    MODES.iter().filter(move |mode| only.as_ref().is_none_or(|only| only == mode.name))
}

const BROKERED: &str = "brokered";

/// A build of the library whose connections all meet through a broker, and a broker that ends with this process.
fn brokered() -> &'static Mode {
    static MODE: OnceLock<Mode> = OnceLock::new();
    MODE.get_or_init(|| {
        let (library, socket) = (library::always_brokered().display().to_string(), broker::of_this_process());
        let own = [("LD_PRELOAD", library.leak() as &str), ("UNDERPASS_BROKER", socket)];
        let settings = [AT_ONCE, &own].concat().leak();
        // Answers take a while, on a machine that is busy.
        Mode { name: BROKERED, settings, warm: 1000, meets: true }
    })
}

/// The modes that need no broker.
pub const MODES: &[Mode] = &[
    Mode { name: "default", settings: &[], warm: 40, meets: true },
    Mode { name: "at once", settings: AT_ONCE, warm: 40, meets: true },
    // Longer than the harness waits for a sleeper to be asleep.
    Mode {
        name: "dozing",
        settings: &[AT_ONCE[0], AT_ONCE[1], ("UNDERPASS_SPIN_US", "0"), ("UNDERPASS_DOZE_US", "100000")],
        warm: 40,
        meets: true,
    },
    Mode {
        name: "asleep",
        settings: &[AT_ONCE[0], AT_ONCE[1], ("UNDERPASS_SPIN_US", "0"), ("UNDERPASS_DOZE_US", "0")],
        warm: 40,
        meets: true,
    },
    Mode { name: "cold", settings: AT_ONCE, warm: 0, meets: true },
    Mode {
        name: "small ring",
        settings: &[AT_ONCE[0], AT_ONCE[1], ("UNDERPASS_RING_BYTES", "65536")],
        warm: 40,
        meets: true,
    },
    Mode { name: "unmet", settings: &[AT_ONCE[0], AT_ONCE[1], ("PARITY_UNMET", "1")], warm: 40, meets: false },
];
