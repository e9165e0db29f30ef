//! The experiments, one file per suite.

pub mod apps;
pub mod broker;
pub mod checksum;
pub mod demo;
pub mod driver;
pub mod idle;
pub mod layers;
pub mod overhead;
pub mod pingpong;
pub mod setup;
pub mod stream;

use crate::bench::{Chosen, Lab, skipped};
use crate::record::Skipped;

/// What is measured together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suite {
    /// Round trips of one message, over message size and over the ways to wait.
    Pingpong,
    /// Throughput in one direction, over write size.
    Stream,
    /// Connecting, many pairs at once, idle connections, waking, start-up and the cost of other calls.
    Setup,
    /// Real servers with their load generators, from Redis to MariaDB, those that are installed.
    Apps,
    /// What goes through `underpassd`: two users against one, meetings, the daemon at rest.
    Broker,
    /// The protocol engine: layers of transport over a looped-back link.
    Layers,
    /// Link drivers: AF_XDP and its algorithms, packet sockets and kernel UDP over a veth pair.
    Driver,
    /// Checksums, and the receive path that wants them of each packet: skipped, by the processor, by a GPU.
    Checksum,
    /// A few figures of the first two and of four servers, within three minutes.
    Demo,
    /// All of these.
    All,
}

impl Suite {
    /// How many samples are taken by default: 5; fewer in a demonstration; and as many as the paper took, if it reports
    /// means.
    pub fn samples(self) -> usize {
        match self {
            Suite::Checksum => 10,
            Suite::Demo => 3,
            _ => 5,
        }
    }

    /// Whether a GPU has part in it.
    pub fn can_use_gpu(self) -> bool {
        matches!(self, Suite::Checksum | Suite::All)
    }

    /// Its experiments on this host, and what cannot be measured here.
    pub fn experiments(self, lab: &Lab) -> (Chosen, Vec<Skipped>) {
        let (mut chosen, mut missing) = (Chosen::default(), Vec::new());
        if lab.processors.is_none() {
            missing.push(skipped("whatever is pinned to two processors", "this process may use one alone"));
        }
        if self == Suite::Demo {
            demo::add(lab, &mut chosen, &mut missing);
        }
        let all = self == Suite::All;
        if all || self == Suite::Pingpong {
            pingpong::add(lab, &mut chosen);
        }
        if all || self == Suite::Stream {
            stream::add(lab, &mut chosen);
        }
        if all || self == Suite::Apps {
            apps::add(&mut chosen, &mut missing);
        }
        if all || self == Suite::Setup {
            setup::add(&mut chosen);
            idle::add(lab, &mut chosen);
            overhead::add(&mut chosen);
        }
        if all || self == Suite::Broker {
            broker::add(lab, &mut chosen, &mut missing);
        }
        if all || self == Suite::Layers {
            layers::add(lab, &mut chosen);
        }
        if all || self == Suite::Driver {
            driver::add(lab, &mut chosen, &mut missing);
        }
        if all || self == Suite::Checksum {
            checksum::add(lab, &mut chosen, &mut missing);
        }
        (chosen, missing)
    }
}

/// Arguments for a helper program.
macro_rules! arguments {
    ($($argument:expr),* $(,)?) => { vec![$($argument.to_string()),*] };
}
pub(crate) use arguments;
