//! The sums of packets in buffers, each of which stays here until its sum is known, so that a GPU may read it where it
//! is.
#![allow(unsafe_code, reason = "has a GPU read an arena")]

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use anyhow::{Result, anyhow, bail, ensure};

use underpass_checksum::Variant;
use underpass_checksum::batch::{Algorithm, Engine, Limits, Outcome, Packet, SubmitError, Verdict};
use underpass_checksum::gpu::Gpu;
use underpass_checksum::internet::Sum;
use underpass_link::arena::{Arena, Buffer};

/// How sums are got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// No sums are computed.
    Skip,
    /// By the processor, a word at a time.
    Scalar,
    /// By the processor's fastest variant.
    Simd,
    /// By a GPU, in batches that are copied into locked memory.
    GpuStaged,
    /// By a GPU that reads packets where they are.
    GpuUmem,
}

impl Way {
    /// All, as tables have them.
    pub const ALL: [Way; 5] = [Way::Skip, Way::Scalar, Way::Simd, Way::GpuStaged, Way::GpuUmem];
    /// The ways of every host; the first is judged by the second.
    pub const PROCESSOR: [Way; 3] = [Way::Simd, Way::Skip, Way::Scalar];
    /// The ways of a host with a GPU; the first is judged by the scalar way.
    pub const GPU: [Way; 2] = [Way::GpuUmem, Way::GpuStaged];

    /// As tables and curves have it.
    pub const fn name(self) -> &'static str {
        match self {
            Way::Skip => "skip",
            Way::Scalar => "scalar",
            Way::Simd => "SIMD",
            Way::GpuStaged => "gpu-staged",
            Way::GpuUmem => "gpu-umem",
        }
    }

    /// Whether a GPU has part in it.
    pub fn is_gpu(self) -> bool {
        Way::GPU.contains(&self)
    }
}

/// A way, and the buffers of which it has not told yet.
pub struct Sums {
    // The engine goes first: until then, a GPU may be reading the arena.
    engine: Engine,
    arena: Arena,
    waiting: VecDeque<Buffer>,
    submitted: u64,
    told: u64,
    verdicts: Vec<Verdict>,
}

impl Sums {
    /// Sums for buffers of `arena`; the GPU is this thread's.
    ///
    /// # Errors
    /// There is no GPU for a way that needs one, or it does not take the memory.
    pub fn new(way: Way, algorithm: Algorithm, gpu: Option<&Rc<Gpu>>, limits: Limits, arena: &Arena) -> Result<Sums> {
        let gpu = || gpu.ok_or_else(|| anyhow!("{} needs a GPU", way.name()));
        let engine = match way {
            Way::Skip => Engine::skip(),
            Way::Scalar => Engine::cpu(algorithm, Variant::Scalar),
            Way::Simd => Engine::cpu(algorithm, Variant::fastest()),
            Way::GpuStaged => Engine::gpu_staged(gpu()?, algorithm, limits)?,
            // SAFETY: the arena's memory stays as long as a handle to it, which goes after the engine. A buffer is the
            // right to its octets, and stays in `waiting` until the engine has told of it.
            Way::GpuUmem => unsafe { Engine::gpu_umem(gpu()?, algorithm, limits, arena.memory()) }?,
        };
        let (arena, verdicts) = (arena.clone(), Vec::with_capacity(4 * limits.packets));
        Ok(Sums { engine, arena, waiting: VecDeque::new(), submitted: 0, told: 0, verdicts })
    }

    /// Asks for the sum of a buffer's octets from `from` on, added to `before`, the sum of what precedes them; gives
    /// the buffer back if there is no place for it now.
    ///
    /// # Errors
    /// The buffer can never be taken.
    pub fn submit(&mut self, buffer: Buffer, from: usize, before: Sum, now: Instant) -> Result<Option<Buffer>> {
        let octets = &self.arena.octets(&buffer)[from..];
        match self.engine.submit(Packet { octets, before, tag: self.submitted }, now) {
            Ok(()) => {
                self.submitted += 1;
                self.waiting.push_back(buffer);
                Ok(None)
            }
            Err(SubmitError::Full) => Ok(Some(buffer)),
            Err(refusal) => bail!(refusal),
        }
    }

    /// Sends what waits for more.
    pub fn flush(&mut self, now: Instant) {
        self.engine.flush(now);
    }

    /// The buffers whose sums are known by now, in the order in which they came, appended to `done`.
    ///
    /// # Errors
    /// The GPU has failed, so that the figures would be the processor's.
    pub fn poll(&mut self, now: Instant, done: &mut Vec<(Buffer, Outcome)>) -> Result<()> {
        self.engine.poll(now, &mut self.verdicts);
        for verdict in self.verdicts.drain(..) {
            ensure!(verdict.tag == self.told, "a verdict is missing");
            self.told += 1;
            let Some(buffer) = self.waiting.pop_front() else { bail!("a verdict too many") };
            done.push((buffer, verdict.outcome));
        }
        self.engine.trouble().map_or(Ok(()), |trouble| bail!(trouble))
    }

    /// When to look again, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.engine.next_deadline()
    }
}
