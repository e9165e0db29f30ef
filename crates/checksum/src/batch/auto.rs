//! `auto`: the GPU where that costs the processor less, as measured on this host, at first here and then of every
//! batch.

use std::time::{Duration, Instant};

use super::costs::Costs;
use super::{Engine, Packet, SubmitError, Way};
use crate::internet;

/// Times that each figure is taken.
const ROUNDS: usize = 5;

impl Engine {
    /// Has an engine with a GPU use it only for batches of sizes at which it costs the processor less time than the
    /// sums themselves; if there is none, never again. These are packets such as will come, hot or cold in the cache as
    /// they will be, and with [`gpu_umem`](Self::gpu_umem) in its memory. Takes some tens of milliseconds, and waits
    /// for what was submitted before. Sizes change hands later, as their costs do.
    ///
    /// # Errors
    /// One of the packets cannot be taken. The engine stays as it was.
    pub fn auto(&mut self, packets: &[&[u8]]) -> Result<(), SubmitError> {
        let Way::Gpu(pipeline) = &mut self.way else { return Ok(()) };
        packets.iter().try_for_each(|octets| pipeline.place(octets).map(drop))?;
        let most = pipeline.most_packets();
        let octets = packets.iter().map(|packet| packet.len()).sum::<usize>();
        // What lies in a batch goes to the GPU, as all does that is measured.
        pipeline.costs = None;
        self.flush(Instant::now());
        let mut before = Vec::new();
        self.poll_all(&mut before);

        let mut costs = Costs::new();
        let mut turn = packets.iter().copied().cycle();
        let mut size = most;
        while size > 0 && octets > 0 {
            let mut least = [Duration::MAX; 3];
            for _ in 0..ROUNDS {
                let (gpu, submission) = self.gpu_time(&mut turn, size);
                let times = [gpu, submission, self.cpu_time(&mut turn, size)];
                least = std::array::from_fn(|at| least[at].min(times[at]));
            }
            let [gpu, submission, cpu] = least;
            if !costs.calibrate(size * octets / packets.len(), gpu, submission, cpu) {
                break;
            }
            size /= 2;
        }
        match &mut self.way {
            Way::Gpu(pipeline) if costs.least().is_some() => pipeline.costs = Some(costs),
            way => *way = Way::Cpu,
        }
        self.done.extend(before);
        Ok(())
    }

    /// The processor's time for a batch that goes to the GPU, without that in which it may do something else; and how
    /// much of it went by until the batch was sent.
    fn gpu_time<'a>(&mut self, packets: &mut impl Iterator<Item = &'a [u8]>, size: usize) -> (Duration, Duration) {
        let start = Instant::now();
        for octets in packets.take(size) {
            // Nothing is on its way, and every packet was looked at: none is refused.
            let _ = self.submit(Packet { octets, before: internet::Sum::default(), tag: 0 }, start);
        }
        // For the largest batch this includes sending it; the figure that is kept is that of the smallest batch.
        let submission = start.elapsed();
        self.flush(start);
        let sending = start.elapsed();
        (sending + self.poll_all(&mut Vec::with_capacity(size)), submission)
    }

    /// Takes all verdicts, and says how long the look took that found the last of them.
    fn poll_all(&mut self, verdicts: &mut Vec<super::Verdict>) -> Duration {
        loop {
            let start = Instant::now();
            self.poll(start, verdicts);
            if self.next_deadline().is_none() {
                return start.elapsed();
            }
            std::hint::spin_loop();
        }
    }

    fn cpu_time<'a>(&self, packets: &mut impl Iterator<Item = &'a [u8]>, size: usize) -> Duration {
        let start = Instant::now();
        for octets in packets.take(size) {
            std::hint::black_box(self.algorithm.sums(self.variant, octets, internet::Sum::default()));
        }
        start.elapsed()
    }
}
