//! Packets that are in no cache, one after the other, for what sums them.

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::sums::{Sums, Way};
use underpass_checksum::batch::{Algorithm, Limits, Outcome};
use underpass_checksum::gpu::Gpu;
use underpass_checksum::internet::Sum;
use underpass_link::arena::{Arena, Buffer, Geometry};

/// What is in front of what is summed: Ethernet's and IPv4's header.
const HEADERS: u32 = 34;
const FRAME: u32 = 16 << 10;
/// Packets that come together: the clock is read once for them.
const BURST: usize = 64;

/// Memory of several times any cache, in frames that are taken in turn.
#[derive(Debug)]
pub struct Cold {
    arena: Arena,
    frames: VecDeque<Buffer>,
    /// Sums that were told.
    told: usize,
    done: Vec<(Buffer, Outcome)>,
}

impl Cold {
    /// Memory of so many octets, which are random.
    pub fn new(octets: usize) -> Cold {
        let geometry = Geometry { frames: octets as u32 / FRAME, frame_size: FRAME, headroom: HEADERS };
        let (arena, mut frames) = Arena::new(geometry);
        frames.iter_mut().for_each(|buffer| fastrand::fill(arena.room(buffer)));
        Cold { arena, frames: frames.into(), told: 0, done: Vec::new() }
    }

    /// What sums its packets in this way.
    ///
    /// # Errors
    /// The GPU fails.
    pub fn sums(&self, way: Way, algorithm: Algorithm, gpu: &Rc<Gpu>, packets: usize) -> Result<Sums> {
        // Batches are as large as they are made here, or full.
        let limits = Limits { packets, deadline: Duration::from_secs(1), ..Limits::default() };
        Sums::new(way, algorithm, Some(gpu), limits, &self.arena)
    }

    fn submit(&mut self, sums: &mut Sums, size: usize, now: Instant) -> Result<()> {
        let mut next = loop {
            match self.frames.pop_front() {
                Some(buffer) => break buffer,
                None => self.collect(sums)?,
            }
        };
        self.arena.fill(&mut next, size);
        while let Some(buffer) = sums.submit(next, 0, Sum::default(), now)? {
            next = buffer;
            self.collect(sums)?;
        }
        Ok(())
    }

    fn collect(&mut self, sums: &mut Sums) -> Result<()> {
        let outcome = sums.poll(Instant::now(), &mut self.done);
        self.told += self.done.len();
        self.frames.extend(self.done.drain(..).map(|(buffer, _)| buffer));
        outcome
    }

    /// Octets in a second, with as many batches on their way as there can be.
    ///
    /// # Errors
    /// The GPU fails.
    pub fn rate(&mut self, sums: &mut Sums, size: usize, seconds: f64) -> Result<f64> {
        let (begin, told, mut submitted) = (Instant::now(), self.told, 0);
        while begin.elapsed().as_secs_f64() < seconds {
            let now = Instant::now();
            (0..BURST).try_for_each(|_| self.submit(sums, size, now))?;
            submitted += BURST;
            self.collect(sums)?;
        }
        sums.flush(Instant::now());
        while self.told - told < submitted {
            self.collect(sums)?;
        }
        Ok((submitted * size) as f64 / begin.elapsed().as_secs_f64())
    }

    /// A batch by itself: how long it takes, and how much of that the processor hands it over and takes the verdicts,
    /// in ns.
    ///
    /// # Errors
    /// The GPU fails.
    pub fn alone(&mut self, sums: &mut Sums, size: usize, batch: usize) -> Result<[f64; 2]> {
        ensure!(batch <= self.frames.len(), "a batch of {batch} packets has no place");
        let (begin, told) = (Instant::now(), self.told);
        (0..batch).try_for_each(|_| self.submit(sums, size, begin))?;
        sums.flush(begin);
        let handed_over = begin.elapsed();
        loop {
            let look = Instant::now();
            self.collect(sums)?;
            if self.told - told == batch {
                let end = Instant::now();
                return Ok([end - begin, handed_over + (end - look)].map(|it| it.as_nanos() as f64));
            }
        }
    }
}

/// Compares sums of made-up packets with the reference; `random` of the packets have a random place and length. Returns
/// how many were compared. For some packets the GPU counts as late, so that the processor has to take over, and none
/// may be lost.
///
/// # Errors
/// They differ, or the GPU fails otherwise.
pub fn compare(gpu: &Rc<Gpu>, random: usize) -> Result<u64> {
    let lengths = (0..=257).chain([1472, 1480, 9000, 9480, 65_535, 65_536, 65_537]);
    let special = lengths.flat_map(|len| (0..33).map(move |offset| (offset, len)));
    let ends = (0..40).map(|len| (LONGEST - len, len));
    let anywhere = std::iter::repeat_with(|| (fastrand::usize(..64), fastrand::usize(..=9600))).take(random);
    compare_at(gpu, &special.chain(ends).chain(anywhere).collect::<Vec<_>>())
}

/// The longest packet that is compared, with the octets in front of it.
const LONGEST: usize = 65_600;

fn compare_at(gpu: &Rc<Gpu>, places: &[(usize, usize)]) -> Result<u64> {
    let in_time = Limits { packets: 256, octets: LONGEST, timeout: Duration::from_secs(10), ..Limits::default() };
    let late = Limits { timeout: Duration::ZERO, ..in_time };
    let mut count = 0;
    for algorithm in [Algorithm::Internet, Algorithm::Fletcher] {
        for (way, limits) in Way::GPU.iter().flat_map(|way| [(*way, in_time), (*way, late)]) {
            let name = || format!("{} of {algorithm:?} sums", way.name());
            count += compare_one(gpu, algorithm, way, limits, places).with_context(name)?;
        }
    }
    Ok(count)
}

fn compare_one(
    gpu: &Rc<Gpu>,
    algorithm: Algorithm,
    way: Way,
    limits: Limits,
    places: &[(usize, usize)],
) -> Result<u64> {
    let geometry = Geometry { frames: 512, frame_size: LONGEST as u32, headroom: 0 };
    let (arena, mut free) = Arena::new(geometry);
    // A GPU that is late may go on reading.
    let is_late = limits.timeout.is_zero();
    if is_late {
        std::mem::forget(arena.clone());
    }
    let mut sums = Sums::new(way, algorithm, Some(gpu), limits, &arena)?;
    let (mut expected, mut done, mut count) = (VecDeque::new(), Vec::new(), 0u64);
    let mut take = |sums: &mut Sums, free: &mut Vec<Buffer>, expected: &mut VecDeque<Outcome>| -> Result<()> {
        sums.poll(Instant::now(), &mut done).or_else(|error| if is_late { Ok(()) } else { Err(error) })?;
        for (buffer, outcome) in done.drain(..) {
            let right = expected.pop_front().context("a verdict too many")?;
            ensure!(outcome == right, "{outcome:?} for {buffer:?}, which the reference sums to {right:?}");
            free.push(buffer);
        }
        Ok(())
    };
    for (number, &(offset, len)) in places.iter().enumerate() {
        let mut buffer = loop {
            if let Some(buffer) = free.pop() {
                break buffer;
            }
            sums.flush(Instant::now());
            take(&mut sums, &mut free, &mut expected)?;
        };
        arena.restore(&mut buffer, offset as u32, len as u32);
        let octets = arena.octets_mut(&mut buffer);
        match number % 8 {
            0 => octets.fill(0),
            1 => octets.fill(0xff),
            _ => fastrand::fill(octets),
        }
        let before = Sum::from_value(fastrand::u16(..));
        expected.push_back(algorithm.sums(underpass_checksum::Variant::Reference, octets, before));
        while let Some(back) = sums.submit(buffer, 0, before, Instant::now())? {
            buffer = back;
            take(&mut sums, &mut free, &mut expected)?;
        }
        count += 1;
    }
    sums.flush(Instant::now());
    while !expected.is_empty() {
        take(&mut sums, &mut free, &mut expected)?;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_is_compared_with_the_reference() {
        let gpu = Gpu::double().unwrap();
        let places: Vec<_> = (0..70).map(|len| (len % 5, 3 * len)).chain([(LONGEST - 7, 7), (1, 1480)]).collect();
        assert_eq!(compare_at(&gpu, &places).unwrap(), 8 * places.len() as u64);
    }

    #[test]
    fn packets_are_summed_in_batches() {
        let (gpu, mut cold) = (Gpu::double().unwrap(), Cold::new(1 << 20));
        for way in [Way::Skip, Way::Simd, Way::GpuStaged, Way::GpuUmem] {
            let mut sums = cold.sums(way, Algorithm::Internet, &gpu, 16).unwrap();
            assert!(cold.rate(&mut sums, 64, 1e-3).unwrap() > 0.0);
            for batch in [1, 5, 16, 40] {
                let [all, processor] = cold.alone(&mut sums, 64, batch).unwrap();
                assert!(0.0 < processor && processor <= all, "{processor} of {all}");
            }
            assert_eq!(cold.frames.len(), 64, "all frames come back");
        }
        assert!(cold.alone(&mut cold.sums(Way::Simd, Algorithm::Internet, &gpu, 1).unwrap(), 64, 65).is_err());
    }
}
