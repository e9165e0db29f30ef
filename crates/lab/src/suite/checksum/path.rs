//! The receive path: packets over a cable between two network namespaces, to a receiver that wants the sum of each, and
//! sleeps while there is none.

use std::collections::VecDeque;
use std::hint::black_box;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, ensure};

use super::load::{BURST, Load, Run};
use super::packet::{BEGINNING, HEADER, Packets};
use super::receiver::{OpenGpu, PATIENCE, Progress, receive};
use crate::processors::Pair;
use crate::suite::driver::stage::inside;
use underpass_link::arena::Arena;
use underpass_link::rig::Cable;

/// Octets of the longest IP packet on the cable.
const MTU: usize = 9600;

/// The cable.
#[derive(Debug)]
pub struct Path {
    cable: Cable,
    processors: Pair,
    gpu: OpenGpu,
}

impl Path {
    /// A new one; packets are received on the pair's first processor.
    ///
    /// # Errors
    /// There can be no cable.
    pub fn new(processors: Pair, gpu: OpenGpu) -> Result<Path> {
        Ok(Path { cable: Cable::new(MTU)?, processors, gpu })
    }

    /// Sends and receives.
    ///
    /// # Errors
    /// A link or the GPU fails, or packets are not as they were sent.
    pub fn run(&self, load: Load) -> Result<Run> {
        let progress = Progress::new();
        let ([here, there], (up, is_up)) = (&self.cable.ends, channel());
        let Pair { first, second } = self.processors;
        // A thread that fails, or panics, ends the other thread.
        let give_up = || progress.failed.store(true, Release);
        thread::scope(|scope| {
            let receive = || {
                if load.beside {
                    compute_beside(scope, &progress);
                }
                receive(load, self.gpu, first, up, &progress)
            };
            let receiver = scope.spawn(|| inside(there, Some(first), receive).inspect_err(|_| give_up()));
            let sent = inside(here, Some(second), || send(load, is_up, &progress)).inspect_err(|_| give_up());
            let run = receiver.join().unwrap_or_else(|_| Err(anyhow!("a thread failed")));
            match (run, sent) {
                (Err(receiver), Err(sender)) => Err(anyhow!("{receiver:#}; its sender: {sender:#}")),
                (run, sent) => run.and_then(|run| sent.map(|()| run)),
            }
        })
    }
}

/// Starts a thread that computes on this thread's processor until the packets have come.
fn compute_beside<'a>(scope: &'a thread::Scope<'a, '_>, progress: &'a Progress) {
    scope.spawn(|| {
        let mut number = 1u64;
        let all = || progress.received.load(Relaxed) == progress.all.load(Acquire);
        while !all() && !progress.failed.load(Acquire) {
            for _ in 0..10_000 {
                number = black_box(number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
            }
        }
    });
}

/// Sends until the time is over. A frame has one place in packets and keeps what is the same in all of them there.
fn send(load: Load, is_up: Receiver<()>, progress: &Progress) -> Result<()> {
    let (arena, frames) = Arena::new(load.socket.geometry());
    let (mut link, packets) = (load.socket.open(&arena)?, Packets::of(load.size));
    let pieces: Vec<&[u8]> = packets.frame().chunks(arena.geometry().room()).collect();
    let mut free: Vec<Vec<_>> = pieces.iter().map(|_| Vec::new()).collect();
    for mut buffer in frames {
        let place = buffer.frame() as usize % pieces.len();
        arena.fill(&mut buffer, pieces[place].len());
        arena.octets_mut(&mut buffer).copy_from_slice(pieces[place]);
        buffer.go_on(place + 1 < pieces.len());
        free[place].push(buffer);
    }
    is_up.recv().map_err(|_| anyhow!("the receiver is gone"))?;
    let window = load.socket.window(load.size, pieces.len());
    let (begin, mut sent, mut out, mut done) = (Instant::now(), 0, VecDeque::new(), Vec::new());
    let mut heard = (0, begin);
    while begin.elapsed().as_secs_f64() < load.seconds || sent < load.packets || !out.is_empty() {
        link.complete(&mut done);
        done.drain(..).for_each(|buffer| free[buffer.frame() as usize % pieces.len()].push(buffer));
        let due = load.rate.map_or(u64::MAX, |rate| (begin.elapsed().as_secs_f64() * rate / load.size as f64) as u64);
        let received = progress.received.load(Acquire);
        let room = (free.iter().map(Vec::len).min().unwrap_or(0) as u64).min(window.saturating_sub(sent - received));
        let burst = (BURST as u64).min(room);
        if burst < BURST as u64 || due < sent + burst {
            if out.is_empty() {
                // The next burst is not due, or has no room.
                thread::sleep(Duration::from_micros(20));
            }
            if received > heard.0 {
                heard = (received, Instant::now());
            }
            ensure!(heard.1.elapsed() < PATIENCE || due <= sent, "packets were lost, though there was room for them");
            ensure!(!progress.failed.load(Acquire), "the receiver has failed");
        } else {
            for number in sent..sent + burst {
                for (place, free) in free.iter_mut().enumerate() {
                    let Some(mut buffer) = free.pop() else { unreachable!("they were counted") };
                    if place == 0 {
                        let octets = arena.octets_mut(&mut buffer);
                        octets[HEADER.len()..][..BEGINNING].copy_from_slice(&packets.beginning(number));
                    }
                    out.push_back(buffer);
                }
            }
            sent += burst;
        }
        link.transmit(&mut out);
    }
    progress.all.store(sent, Release);
    // The link carries what it has until it is gone.
    while progress.received.load(Acquire) < sent && !progress.failed.load(Acquire) {
        link.transmit(&mut out);
        link.complete(&mut done);
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use underpass_checksum::gpu::Gpu;

    use super::*;
    use crate::suite::checksum::load::Socket;
    use crate::suite::checksum::sums::Way;

    /// With a double of the GPU, which is slow: few packets, but all ways and both sockets, whole packets and such in
    /// pieces.
    #[test]
    fn every_way_finds_the_packets_that_are_spoiled() {
        let Some(processors) = Pair::pick() else { return println!("SKIPPED: it takes two processors") };
        let path = match Path::new(processors, Gpu::double) {
            Ok(path) => path,
            Err(error) => return println!("SKIPPED: {error:#}"),
        };
        for (socket, way) in Socket::ALL.into_iter().flat_map(|socket| Way::ALL.map(|way| (socket, way))) {
            for size in [64, 9480] {
                let rate = Some(size as f64 * 20_000.0);
                let load =
                    Load { socket, way, size, seconds: 0.0, packets: 128, rate, stages: true, beside: size == 64 };
                let run = path.run(load).unwrap_or_else(|error| panic!("{load:?}: {error:#}"));
                assert!(run.octets_per_second > 0.0, "{run:?}");
            }
        }
    }
}
