//! Two transport entities, or stacks of them, in virtual time, with a wire between them that loses, repeats, reorders,
//! changes and delays.

mod grid;
mod sharing;
mod side;
mod snapshot;
mod wire;

use side::Side;
use underpass_engine::service::Time;
use underpass_engine::transport::{Config, Counters};
use wire::{Faults, Wire};

/// The settings of one run.
#[derive(Clone, Debug)]
pub struct Script {
    /// The seed of every random choice.
    pub seed: u64,
    /// What the wire does.
    pub faults: Faults,
    /// The configuration of both entities; of the uppermost ones if there are several transport layers.
    pub config: Config,
    /// Transport layers on each other.
    pub layers: usize,
    /// TSDUs in each direction.
    pub tsdus: u32,
    /// Octets of the longest.
    pub longest: usize,
    /// Every so often a reader does not read for up to so many nanoseconds.
    pub lazy: u64,
    /// Expedited data in each direction.
    pub expedited: u32,
    /// The ends take turns: each TSDU is sent when the one before it has come.
    pub turns: bool,
}

/// The result of one run.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Virtual nanoseconds from the first request to the last indication.
    pub took: u64,
    /// Octets that were delivered, both ways.
    pub octets: u64,
    /// The counters of both entities.
    pub counters: [Counters; 2],
    /// TPDUs on the wire.
    pub packets: u64,
    /// TSDUs that were not as they were sent.
    pub wrong: u64,
}

/// Runs a script to its end: every TSDU delivered, the connection released, and every buffer back.
///
/// # Panics
/// If nothing moves any more, or it takes longer than an hour of virtual time.
pub fn run(script: &Script) -> Outcome {
    let mut wire = Wire::new(script.seed, script.faults);
    let mut sides = [Side::new(script, 0, &wire), Side::new(script, 1, &wire)];
    let mut now = Time(1);
    sides[0].connect(now);
    let mut took = 0;
    loop {
        let mut moved = true;
        while moved {
            moved = false;
            for side in &mut sides {
                moved |= side.step(now, script);
            }
            wire.send(now);
        }
        if took == 0 && sides.iter().all(|it| it.has_all(script)) {
            took = now.0;
            sides[0].disconnect(now);
            continue;
        }
        if sides.iter().all(Side::is_released) {
            break;
        }
        let next = [wire.due(), sides[0].due(), sides[1].due()].into_iter().flatten().min();
        let next = next.unwrap_or_else(|| panic!("nothing moves any more at {now:?}: {script:?}\n{sides:?}"));
        assert!(next.0 < 3_600_000_000_000, "an hour has passed: {script:?}\n{sides:?}");
        now = Time(next.0.max(now.0 + 1));
        wire.deliver(now);
    }
    Outcome {
        took,
        octets: sides.iter().map(|it| it.octets).sum(),
        counters: [sides[0].counters(), sides[1].counters()],
        packets: wire.packets(),
        wrong: sides.iter().map(|it| it.wrong).sum(),
    }
}
