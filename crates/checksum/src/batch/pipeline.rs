//! Three batches that take turns: one is filled while the GPU has the others.
//!
//! Free → filling → on its way → free. A batch is a piece of locked memory that is allocated once: the packets'
//! descriptors, the last first, and behind them, where they are staged, the packets. What is filled is therefore
//! contiguous, and goes over the bus in one transfer. A packet's answer carries its batch's number, so that a place
//! that was not written is not taken for an answer.
#![allow(unsafe_code, reason = "shares memory with the GPU")]

use std::collections::VecDeque;
use std::fmt::{self, Display, Formatter};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::slice;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::costs::Costs;
use super::{Algorithm, Limits, Outcome, Packet, SubmitError, Verdict};
use crate::gpu::{CHUNK, Descriptor, Device, Gpu, GpuError, MOST_OCTETS, MOST_PACKETS, Pinned, Registered, Stream};
use crate::{Variant, fletcher, internet};

const BATCHES: usize = 3;
const DESCRIPTOR: usize = size_of::<Descriptor>();
/// How often the driver is asked whether a batch that is not ready has failed.
const ASK: Duration = Duration::from_millis(1);

pub(super) struct Pipeline {
    gpu: Rc<Gpu>,
    algorithm: Algorithm,
    limits: Limits,
    /// The packets' own memory, where they are not staged.
    area: Option<Registered>,
    filling: Option<Batch>,
    /// The eldest first.
    on_their_way: VecDeque<Batch>,
    free: Vec<Batch>,
    /// The number of the batch sent last; never 0, which is what an answer holds before the GPU has written it.
    pub(super) number: u32,
    /// How long the last batch took, and when the next was looked at.
    took: Duration,
    looked: Instant,
    /// `auto`'s: which batches are the GPU's. Otherwise, all are.
    pub(super) costs: Option<Costs>,
}

struct Batch {
    stream: Stream,
    /// Descriptors, then staged packets.
    memory: Pinned,
    /// The GPU's copy of `memory`, where packets are staged there.
    device: Option<Device>,
    answers: Pinned,
    entries: Vec<Entry>,
    /// Octets of staged packets, in whole chunks.
    filled: usize,
    /// Octets of packets.
    octets: usize,
    /// When the first packet came; when it was sent; when the driver was asked last.
    since: Instant,
    sent: Instant,
    asked: Instant,
    /// The processor's time for sending it, where costs are learnt.
    sending: Duration,
    number: u32,
    /// Packets whose answers have been seen.
    seen: usize,
}

/// What the processor needs to know of a packet.
struct Entry {
    tag: u64,
    before: internet::Sum,
    octets: *const [u8],
}

impl Pipeline {
    pub(super) fn new(
        gpu: &Rc<Gpu>,
        algorithm: Algorithm,
        limits: Limits,
        area: Option<NonNull<[u8]>>,
    ) -> Result<Pipeline, GpuError> {
        if !(1..=MOST_PACKETS).contains(&limits.packets) || !(1..=MOST_OCTETS).contains(&limits.octets) {
            return Err(GpuError::Limits);
        }
        // SAFETY: the caller keeps the area as long as the engine.
        let area = area.map(|area| unsafe { Registered::new(gpu, area) }).transpose()?;
        let staged = if area.is_none() { limits.octets.next_multiple_of(CHUNK) } else { 0 };
        let octets = limits.packets * (DESCRIPTOR + staged);
        let now = Instant::now();
        let batch = || {
            let answers = limits.packets * size_of::<u64>();
            let device = if area.is_none() { Some(Device::new(gpu, octets + answers)?) } else { None };
            Ok(Batch {
                stream: Stream::new(gpu)?,
                memory: Pinned::new(gpu, octets)?,
                device,
                answers: Pinned::zeroed(gpu, answers)?,
                entries: Vec::with_capacity(limits.packets),
                filled: 0,
                octets: 0,
                since: now,
                sent: now,
                asked: now,
                sending: Duration::ZERO,
                number: 0,
                seen: 0,
            })
        };
        Ok(Pipeline {
            gpu: gpu.clone(),
            algorithm,
            limits,
            free: (0..BATCHES).map(|_| batch()).collect::<Result<_, GpuError>>()?,
            area,
            filling: None,
            on_their_way: VecDeque::new(),
            number: 0,
            took: Duration::ZERO,
            looked: now,
            costs: None,
        })
    }

    /// Where the GPU finds these octets, unless they are to be staged.
    pub(super) fn place(&self, octets: &[u8]) -> Result<Option<u64>, SubmitError> {
        let (len, most) = (octets.len(), self.limits.octets);
        if len > most {
            return Err(SubmitError::TooLong { len, most });
        }
        self.area.as_ref().map(|area| area.find(octets).ok_or(SubmitError::Outside)).transpose()
    }

    /// Puts a packet into the batch that is being filled.
    pub(super) fn submit(&mut self, packet: Packet<'_>, now: Instant) -> Result<(), SubmitError> {
        let (len, address) = (packet.octets.len(), self.place(packet.octets)?);
        if self.filling.is_none() {
            self.filling = Some(self.free.pop().ok_or(SubmitError::Full)?);
        }
        let batch = self.filling.as_mut().ok_or(SubmitError::Full)?;
        if batch.entries.is_empty() {
            batch.since = now;
        }
        let slots = self.limits.packets;
        let slot = slots - 1 - batch.entries.len();
        let staged = slots * DESCRIPTOR + batch.filled;
        // SAFETY: the slot is one of the memory's, and behind all of them lie as many places for packets, of which one
        // per packet is taken at most. The GPU does not have this batch.
        let octets = unsafe {
            let start = batch.memory.start();
            let (address, octets) = match (address, &batch.device) {
                (None, Some(device)) => {
                    ptr::copy_nonoverlapping(packet.octets.as_ptr(), start.add(staged), len);
                    (device.address() + staged as u64, ptr::slice_from_raw_parts(start.add(staged).cast_const(), len))
                }
                (address, _) => (address.unwrap_or_default(), ptr::from_ref(packet.octets)),
            };
            let before = u32::from(packet.before.value());
            start.cast::<Descriptor>().add(slot).write(Descriptor { address, length: len as u32, before });
            octets
        };
        batch.entries.push(Entry { tag: packet.tag, before: packet.before, octets });
        batch.filled += len.next_multiple_of(CHUNK);
        batch.octets += len;
        Ok(())
    }

    /// Sends the batch that is being filled if it is full or its first packet has waited long enough; `auto` also if it
    /// pays already, and the GPU has nothing to do.
    pub(super) fn send_due(
        &mut self,
        now: Instant,
        variant: Variant,
        done: &mut VecDeque<Verdict>,
    ) -> Result<(), GpuError> {
        let Some(batch) = &self.filling else { return Ok(()) };
        let full = batch.entries.len() == self.limits.packets;
        let pays = self.costs.as_ref().is_some_and(|costs| costs.is_gpus(batch.octets));
        let old = now.saturating_duration_since(batch.since) >= self.limits.deadline;
        let due = full || old || pays && self.on_their_way.is_empty();
        if due { self.send(now, variant, done) } else { Ok(()) }
    }

    /// Sends the batch that is being filled, if there is one. `auto` has the processor do one for which the GPU does
    /// not pay.
    pub(super) fn send(
        &mut self,
        now: Instant,
        variant: Variant,
        done: &mut VecDeque<Verdict>,
    ) -> Result<(), GpuError> {
        let Some(mut batch) = self.filling.take() else { return Ok(()) };
        let Some(costs) = &mut self.costs else { return self.launch(batch, now) };
        let (start, octets) = (Instant::now(), batch.octets);
        if !costs.choose(octets) {
            batch.compute(self.algorithm, variant, done);
            costs.learn_processor(octets, start.elapsed());
            self.free.push(batch);
            return Ok(());
        }
        self.launch(batch, now)?;
        if let Some(batch) = self.on_their_way.back_mut() {
            batch.sending = start.elapsed();
        }
        Ok(())
    }

    /// Has the GPU begin a batch.
    fn launch(&mut self, mut batch: Batch, now: Instant) -> Result<(), GpuError> {
        self.number = self.number.checked_add(1).unwrap_or(1);
        if self.number <= batch.number {
            batch.forget_answers(self.limits.packets);
        }
        (batch.number, batch.sent, batch.asked, batch.seen) = (self.number, now, now, 0);
        let packets = batch.entries.len();
        let slots = self.limits.packets;
        let first = (slots - packets) * DESCRIPTOR;
        let answers = packets * size_of::<u64>();
        // The batch counts as on its way before anything can fail: a failure then leaves it among the batches that are
        // computed in any case.
        self.on_their_way.push_back(batch);
        let Some(batch) = self.on_their_way.back() else { return Ok(()) };
        // SAFETY: what is copied lies in memory as long on both sides; descriptors and answers are as many as packets,
        // and all of it is touched again only once every answer was seen, or never.
        unsafe {
            let Some(device) = &batch.device else {
                let (descriptors, answers) = (batch.memory.address() + first as u64, batch.answers.address());
                return self.gpu.sum(&batch.stream, self.algorithm, descriptors, packets, answers, batch.number);
            };
            let descriptors = device.address() + first as u64;
            let len = packets * DESCRIPTOR + batch.filled;
            let answers_there = device.address() + self.answers_at() as u64;
            self.gpu.copy_in(&batch.stream, descriptors, batch.memory.start().add(first), len)?;
            self.gpu.sum(&batch.stream, self.algorithm, descriptors, packets, answers_there, batch.number)?;
            self.gpu.copy_out(&batch.stream, batch.answers.start(), answers_there, answers)
        }
    }

    /// Takes the verdicts of batches that are ready.
    pub(super) fn collect(&mut self, now: Instant, done: &mut VecDeque<Verdict>) -> Result<(), GpuError> {
        while let Some(batch) = self.on_their_way.front_mut() {
            self.looked = now;
            if !batch.is_ready(now, self.limits.timeout)? {
                break;
            }
            self.took = now.saturating_duration_since(batch.sent);
            match &mut self.costs {
                None => batch.read(self.algorithm, done),
                Some(costs) => {
                    let (start, octets) = (Instant::now(), batch.octets);
                    batch.read(self.algorithm, done);
                    costs.learn_gpu(octets, batch.sending + start.elapsed());
                }
            }
            self.free.extend(self.on_their_way.pop_front());
        }
        Ok(())
    }

    /// A batch that is on its way is looked at when it has taken as long as the last, and then at intervals of an
    /// eighth.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let filled = self.filling.as_ref().and_then(|batch| batch.since.checked_add(self.limits.deadline));
        let ready = self.on_their_way.front().map(|batch| (batch.sent + self.took).max(self.looked + self.took / 8));
        filled.into_iter().chain(ready).min()
    }

    /// Has the processor compute all that is here. The GPU may still write what is not freed for that reason.
    pub(super) fn abandon(mut self: Box<Self>, variant: Variant, done: &mut VecDeque<Verdict>) {
        for batch in self.on_their_way.iter_mut().chain(&mut self.filling) {
            batch.compute(self.algorithm, variant, done);
        }
        std::mem::forget(self);
    }

    pub(super) fn most_packets(&self) -> usize {
        self.limits.packets
    }

    fn answers_at(&self) -> usize {
        self.limits.packets * (DESCRIPTOR + self.limits.octets.next_multiple_of(CHUNK))
    }
}

impl Batch {
    /// Whether all answers are here; an error if none will come.
    fn is_ready(&mut self, now: Instant, timeout: Duration) -> Result<bool, GpuError> {
        if self.has_all() {
            return Ok(true);
        }
        if now.saturating_duration_since(self.sent) >= timeout {
            return Err(GpuError::Timeout(timeout));
        }
        if now.saturating_duration_since(self.asked) < ASK {
            return Ok(false);
        }
        self.asked = now;
        if !self.stream.is_through()? {
            return Ok(false);
        }
        if self.has_all() { Ok(true) } else { Err(GpuError::Incomplete) }
    }

    fn has_all(&mut self) -> bool {
        while self.seen < self.entries.len() && self.answer(self.seen) >> 32 == u64::from(self.number) {
            self.seen += 1;
        }
        self.seen == self.entries.len()
    }

    fn answer(&self, at: usize) -> u64 {
        // SAFETY: there is a word for each packet.
        unsafe { self.answers.word(at * size_of::<u64>()) }.load(Ordering::Acquire)
    }

    /// The verdicts, all answers being here.
    fn read(&mut self, algorithm: Algorithm, done: &mut VecDeque<Verdict>) {
        let last = self.entries.len() - 1;
        for (at, entry) in self.entries.iter().enumerate() {
            let answer = self.answer(last - at) as u32;
            let outcome = match algorithm {
                Algorithm::Internet => Outcome::Internet(internet::Sum::from_value(answer as u16)),
                Algorithm::Fletcher => Outcome::Fletcher(fletcher::Sums { c0: answer as u8, c1: (answer >> 8) as u8 }),
            };
            done.push_back(Verdict { tag: entry.tag, outcome });
        }
        self.clear();
    }

    /// The verdicts, by the processor.
    fn compute(&mut self, algorithm: Algorithm, variant: Variant, done: &mut VecDeque<Verdict>) {
        for entry in &self.entries {
            // SAFETY: a staged packet is in our memory, which the GPU only reads; any other is in the caller's, who
            // keeps it.
            let octets = unsafe { slice::from_raw_parts(entry.octets.cast::<u8>(), entry.octets.len()) };
            let outcome = algorithm.sums(variant, octets, entry.before);
            done.push_back(Verdict { tag: entry.tag, outcome });
        }
        self.clear();
    }

    /// Numbers have come round: what is left of the last round may have the number that the batch is about to get.
    fn forget_answers(&mut self, slots: usize) {
        // SAFETY: there is a word for each packet, and the GPU does not have this batch.
        unsafe { ptr::write_bytes(self.answers.start(), 0, slots * size_of::<u64>()) };
    }

    fn clear(&mut self) {
        self.entries.clear();
        (self.filled, self.octets) = (0, 0);
    }
}

impl Drop for Pipeline {
    fn drop(&mut self) {
        // Memory is freed only once the GPU is through with it, and otherwise not at all.
        // Freeing any would wait for the GPU.
        if self.on_their_way.iter().any(|batch| batch.stream.wait(self.limits.timeout).is_err()) {
            let batches = (std::mem::take(&mut self.on_their_way), std::mem::take(&mut self.free), self.filling.take());
            std::mem::forget((batches, self.area.take()));
        }
    }
}

impl Display for Pipeline {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match (&self.costs, &self.area) {
            (None, None) => f.write_str("gpu-staged"),
            (None, Some(_)) => f.write_str("gpu-umem"),
            (Some(costs), _) => match costs.least() {
                Some(least) => write!(f, "auto (GPU from {least} octets)"),
                None => f.write_str("auto (no GPU for now)"),
            },
        }
    }
}
