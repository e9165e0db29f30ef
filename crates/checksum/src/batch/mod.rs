//! Sums of packets, a batch at a time: by the processor at once, or by a GPU some time later, and never blocking.
//!
//! A packet is given to [`Engine::submit`], its verdict comes out of [`Engine::poll`]. A GPU pays by the batch: one is
//! sent when it is full, when its first packet has waited for [`Limits::deadline`], or at [`Engine::flush`].
//!
//! Whatever goes wrong with the GPU, no verdict is lost or guessed: the processor computes what was on its way, and
//! everything from then on, and [`Engine::trouble`] says why.
//!
//! ```
//! use std::time::Instant;
//! use underpass_checksum::Variant;
//! use underpass_checksum::batch::{Algorithm, Engine, Packet};
//! use underpass_checksum::internet::Sum;
//!
//! let mut engine = Engine::cpu(Algorithm::Internet, Variant::fastest());
//! // UDP from port 1 to 2 of the loopback, without data: its pseudo-header, then its header.
//! let before = Sum::of(&[127, 0, 0, 1, 127, 0, 0, 1, 0, 17, 0, 8]);
//! let packet = Packet { octets: &[0, 1, 0, 2, 0, 8, 0x01, 0xd9], before, tag: 7 };
//! engine.submit(packet, Instant::now()).unwrap();
//! let mut verdicts = Vec::new();
//! engine.poll(Instant::now(), &mut verdicts);
//! assert_eq!(verdicts[0].tag, 7);
//! assert!(verdicts[0].outcome.is_intact());
//! ```

mod auto;
mod costs;
mod pipeline;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant};

pub use crate::algorithm::{Algorithm, Outcome};
use crate::gpu::{Gpu, GpuError};
use crate::{Variant, internet};
use pipeline::Pipeline;

/// A packet whose sums are wanted.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// What is summed.
    pub octets: &'a [u8],
    /// For [`Algorithm::Internet`]: the sum of what is not in it, such as a pseudo-header.
    pub before: internet::Sum,
    /// Comes back with the verdict.
    pub tag: u64,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The packet's.
    pub tag: u64,
    /// Its sums.
    pub outcome: Outcome,
}

/// How much goes into a batch for the GPU, and how long is waited.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Packets to a batch, at most.
    pub packets: usize,
    /// Octets to a packet, at most. A staged batch takes `packets` · `octets` of locked memory, three times.
    pub octets: usize,
    /// How long a packet waits for its batch to be full.
    pub deadline: Duration,
    /// How long a batch may take, until the GPU is given up.
    pub timeout: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            packets: 1024,
            octets: 9600,
            deadline: Duration::from_micros(500),
            timeout: Duration::from_millis(100),
        }
    }
}

/// Why a packet was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// All batches are on their way, or nobody takes the verdicts.
    #[error("no place is left for a packet: take verdicts by poll, then submit it again")]
    Full,
    /// Longer than [`Limits::octets`].
    #[error("a packet of {len} octets is longer than the {most} that the engine was made for")]
    TooLong {
        /// The packet's length.
        len: usize,
        /// [`Limits::octets`].
        most: usize,
    },
    /// Not in the memory that the GPU knows.
    #[error("a packet lies outside of the packet memory that the engine was made for")]
    Outside,
}

/// Verdicts that wait to be taken, at most.
const MOST_VERDICTS: usize = 1 << 16;

/// One way of getting packets' sums.
pub struct Engine {
    algorithm: Algorithm,
    way: Way,
    /// The variant for sums that the processor computes.
    variant: Variant,
    done: VecDeque<Verdict>,
    /// When something was asked of it last.
    last: Option<Instant>,
    trouble: Option<GpuError>,
}

enum Way {
    Skip,
    Cpu,
    Gpu(Box<Pipeline>),
}

impl Engine {
    /// Says of every packet that it was skipped.
    pub fn skip() -> Engine {
        Engine::new(Algorithm::Internet, Variant::Scalar, Way::Skip)
    }

    /// Sums packets on the processor when they are submitted.
    pub fn cpu(algorithm: Algorithm, variant: Variant) -> Engine {
        Engine::new(algorithm, variant, Way::Cpu)
    }

    /// Copies packets into locked memory, and batches from there to the GPU, each in one transfer.
    pub fn gpu_staged(gpu: &Rc<Gpu>, algorithm: Algorithm, limits: Limits) -> Result<Engine, GpuError> {
        let pipeline = Pipeline::new(gpu, algorithm, limits, None)?;
        Ok(Engine::new(algorithm, Variant::fastest(), Way::Gpu(Box::new(pipeline))))
    }

    /// Has the GPU read the packets where they are: `area` is made known to the driver, whole pages that hold all
    /// packets.
    ///
    /// # Safety
    /// The area has to stay where it is as long as the engine, and a packet in it unchanged until its verdict is out.
    #[allow(unsafe_code, reason = "keeps a place in the caller's memory beyond the call")]
    pub unsafe fn gpu_umem(
        gpu: &Rc<Gpu>,
        algorithm: Algorithm,
        limits: Limits,
        area: NonNull<[u8]>,
    ) -> Result<Engine, GpuError> {
        let pipeline = Pipeline::new(gpu, algorithm, limits, Some(area))?;
        Ok(Engine::new(algorithm, Variant::fastest(), Way::Gpu(Box::new(pipeline))))
    }

    fn new(algorithm: Algorithm, variant: Variant, way: Way) -> Engine {
        Engine { algorithm, way, variant, done: VecDeque::new(), last: None, trouble: None }
    }

    /// Takes a packet. With [`gpu_umem`](Self::gpu_umem) it is read later; all others are through with it.
    pub fn submit(&mut self, packet: Packet<'_>, now: Instant) -> Result<(), SubmitError> {
        if self.done.len() >= MOST_VERDICTS {
            return Err(SubmitError::Full);
        }
        self.last = Some(now);
        let outcome = match &mut self.way {
            Way::Skip => Outcome::Skipped,
            Way::Cpu => self.algorithm.sums(self.variant, packet.octets, packet.before),
            Way::Gpu(pipeline) => match pipeline.submit(packet, now) {
                Err(SubmitError::Full) if pipeline.costs.is_some() => {
                    self.algorithm.sums(self.variant, packet.octets, packet.before)
                }
                Err(refusal) => return Err(refusal),
                Ok(()) => return self.send_due(now),
            },
        };
        self.done.push_back(Verdict { tag: packet.tag, outcome });
        Ok(())
    }

    /// Appends the verdicts that are known by now, and sends what has waited long enough. They are in the order of the
    /// packets, except those of [`auto`](Self::auto), where the processor overtakes the GPU.
    pub fn poll(&mut self, now: Instant, verdicts: &mut Vec<Verdict>) {
        let _ = self.send_due(now);
        if let Way::Gpu(pipeline) = &mut self.way
            && let Err(error) = pipeline.collect(now, &mut self.done)
        {
            self.give_up(error);
        }
        verdicts.extend(self.done.drain(..));
    }

    /// When [`poll`](Self::poll) has something to do, as far as is known: a time gone by where verdicts are there
    /// already, never where there is no packet, or a packet that waits for others without a deadline.
    pub fn next_deadline(&self) -> Option<Instant> {
        match &self.way {
            _ if !self.done.is_empty() => self.last,
            Way::Gpu(pipeline) => pipeline.next_deadline(),
            _ => None,
        }
    }

    /// Sends a part-full batch now.
    pub fn flush(&mut self, now: Instant) {
        self.last = Some(now);
        if let Way::Gpu(pipeline) = &mut self.way
            && let Err(error) = pipeline.send(now, self.variant, &mut self.done)
        {
            self.give_up(error);
        }
    }

    /// Why the GPU is no longer used, once.
    pub fn trouble(&mut self) -> Option<GpuError> {
        self.trouble.take()
    }

    /// Whether a GPU is used, at least at times.
    pub fn uses_gpu(&self) -> bool {
        matches!(self.way, Way::Gpu(_))
    }

    fn send_due(&mut self, now: Instant) -> Result<(), SubmitError> {
        if let Way::Gpu(pipeline) = &mut self.way
            && let Err(error) = pipeline.send_due(now, self.variant, &mut self.done)
        {
            self.give_up(error);
        }
        Ok(())
    }

    /// The processor does what was on its way, and the rest from now on.
    fn give_up(&mut self, error: GpuError) {
        if let Way::Gpu(pipeline) = std::mem::replace(&mut self.way, Way::Cpu) {
            pipeline.abandon(self.variant, &mut self.done);
        }
        self.trouble = Some(error);
    }
}

impl Display for Engine {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.way {
            Way::Skip => f.write_str("skip"),
            Way::Cpu => write!(f, "cpu ({})", self.variant),
            Way::Gpu(pipeline) => pipeline.fmt(f),
        }
    }
}
