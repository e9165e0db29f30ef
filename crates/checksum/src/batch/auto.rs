//! `auto`: the GPU where that costs the processor less, as measured on this host.

use std::time::{Duration, Instant};

use super::{Engine, Packet, Way};
use crate::internet;

/// Times that each figure is taken.
const ROUNDS: usize = 5;
/// What the GPU must save of the processor's time, so that noise does not decide: a fifth.
const MARGIN: (u32, u32) = (4, 5);

impl Engine {
    /// Makes of an engine with a GPU one that uses it only for batches from that size on at which it costs the processor less
    /// time than the sums themselves; if there is none, never. These are packets such as will come, hot or cold in the
    /// cache as they will be, and with [`gpu_umem`](Self::gpu_umem) in its memory. Takes some tens of milliseconds.
    #[must_use]
    pub fn auto(mut self, packets: &[&[u8]]) -> Engine {
        let Way::Gpu(pipeline) = &self.way else { return self };
        let most = pipeline.most_packets();
        let octets = packets.iter().map(|packet| packet.len()).sum::<usize>();
        let mut least = None;
        let mut turn = packets.iter().copied().cycle();
        let mut size = most;
        while size > 0 && octets > 0 {
            let (mut gpu, mut cpu) = (Duration::MAX, Duration::MAX);
            for _ in 0..ROUNDS {
                let Some(time) = self.gpu_time(&mut turn, size) else { return self };
                gpu = gpu.min(time);
                cpu = cpu.min(self.cpu_time(&mut turn, size));
            }
            if gpu * MARGIN.1 > cpu * MARGIN.0 {
                break;
            }
            least = Some((size * octets / packets.len()).max(1));
            size /= 2;
        }
        match (&mut self.way, least) {
            (Way::Gpu(pipeline), Some(least)) => pipeline.least = least,
            (way, _) => *way = Way::Cpu,
        }
        self
    }

    /// The processor's time for a batch that goes to the GPU, without that in which it may do something else.
    fn gpu_time<'a>(&mut self, packets: &mut impl Iterator<Item = &'a [u8]>, size: usize) -> Option<Duration> {
        let mut verdicts = Vec::with_capacity(size);
        let start = Instant::now();
        for octets in packets.take(size) {
            self.submit(Packet { octets, before: internet::Sum::default(), tag: 0 }, start).ok()?;
        }
        self.flush(start);
        let sending = start.elapsed();
        loop {
            let start = Instant::now();
            self.poll(start, &mut verdicts);
            if self.trouble.is_some() {
                return None;
            }
            if verdicts.len() == size {
                return Some(sending + start.elapsed());
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
