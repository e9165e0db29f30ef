//! Many frames to a receiver that stalls at random: none comes changed, none twice, and all buffers come back.

use super::support::{cable, ends, frame};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};
use underpass_link::Link;
use underpass_link::arena::Geometry;
use underpass_link::wait::Wait;
use underpass_link::xdp::Config;

const GEOMETRY: Geometry = Geometry { frames: 1024, frame_size: 2048, headroom: 128 };
const LEN: usize = 64;
/// Frames, unless `UNDERPASS_TEST_FRAMES` says how many.
const FRAMES: u64 = 200_000;
/// One in so many batches is followed by a stall.
const STALLS: u32 = 500;
/// A receiver that hears nothing for so long has heard all.
const QUIET: Duration = Duration::from_secs(1);

#[test]
fn nothing_is_changed_or_repeated_while_the_receiver_stalls() {
    let frames = std::env::var("UNDERPASS_TEST_FRAMES").map_or(FRAMES, |it| it.parse().expect("a number of frames"));
    let Some(cable) = cable(1500) else { return };
    let Some([mut from, mut to]) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    to.listen(768);
    let sent = AtomicU64::new(0);
    let received = thread::scope(|scope| {
        scope.spawn(|| {
            let template = frame(0, LEN);
            let (mut number, mut out) = (0u64, std::collections::VecDeque::new());
            while number < frames {
                from.reclaim();
                for mut buffer in from.free.drain(..) {
                    from.arena.fill(&mut buffer, LEN);
                    let octets = from.arena.octets_mut(&mut buffer);
                    octets.copy_from_slice(&template);
                    octets[LEN - 16..LEN - 8].copy_from_slice(&number.to_be_bytes());
                    octets[LEN - 8..].copy_from_slice(&(!number).to_be_bytes());
                    out.push_back(buffer);
                    number += 1;
                }
                from.link.transmit(&mut out);
                sent.store(number, Relaxed);
            }
        });
        let template = frame(0, LEN);
        let (mut random, mut wait, mut come) = (fastrand::Rng::with_seed(1), Wait::default(), Vec::new());
        let (mut received, mut next, mut last) = (0u64, 0, Instant::now());
        while sent.load(Relaxed) < frames || last.elapsed() < QUIET {
            if to.link.receive(&mut come, 64) == 0 {
                wait.wait(&mut to.link, QUIET).unwrap();
                continue;
            }
            for buffer in come.drain(..) {
                let octets = to.arena.octets(&buffer);
                let word = |at: usize| octets[at..at + 8].try_into().map(u64::from_be_bytes).unwrap();
                let number = word(LEN - 16);
                assert!(octets[..LEN - 16] == template[..LEN - 16] && word(LEN - 8) == !number, "changed: {octets:x?}");
                assert!(number >= next, "{number} has come twice, or late");
                (next, received) = (number + 1, received + 1);
                to.link.fill(buffer);
            }
            last = Instant::now();
            if random.u32(..STALLS) == 0 {
                thread::sleep(Duration::from_micros(random.u64(..3000)));
            }
        }
        received
    });
    let sent = sent.load(Relaxed);
    let lost = to.link.counters().lost;
    println!("{sent} sent, {received} received, {lost} lost; {} changes of algorithm", from.link.counters().switches);
    assert_eq!(received + lost, sent, "what was lost is not counted");
    for end in [from, to] {
        assert_eq!(
            end.free.len() + Box::new(end.link).close().all().len(),
            GEOMETRY.frames as usize,
            "buffers are lost"
        );
    }
}
