//! Lazy completion alone deadlocks when frames run out; event-driven and adaptive never do.

use super::support::{End, cable, ends, frame};
use std::time::{Duration, Instant};
use underpass_link::Link;
use underpass_link::arena::Geometry;
use underpass_link::completion::Completion;
use underpass_link::rig::{Cable, INTERFACE};
use underpass_link::xdp::{Config, Xdp};

/// An arena that is soon used up.
const TINY: Geometry = Geometry { frames: 8, frame_size: 2048, headroom: 128 };
const PACKETS: u32 = 2_000;
/// And every 500 packets again.
const FIRST_CUT: u32 = 100;
/// For so long a sender that gets no buffer asks for one.
const STARVED: Duration = Duration::from_millis(200);

/// Sends packets over a wire that is cut now and then, so that what was sent is not done: how many it could.
fn send(cable: &Cable, end: &mut End<Xdp>, packets: u32) -> u32 {
    for number in 0..packets {
        if number % 500 == FIRST_CUT {
            cut(cable, end);
        }
        let (packet, begin) = (frame(number, 64), Instant::now());
        while !end.send(&packet, 64) {
            if begin.elapsed() > STARVED {
                return number;
            }
        }
    }
    packets
}

/// The interface is down until the sender has no frame left, or has been given time for that.
fn cut(cable: &Cable, end: &mut End<Xdp>) {
    cable.ends[0].set_up(INTERFACE, false).unwrap();
    while end.send(&frame(0, 64), 64) {}
    cable.ends[0].set_up(INTERFACE, true).unwrap();
}

#[test]
fn lazy_alone_starves_and_adaptive_does_not() {
    let Some(cable) = cable(1500) else { return };
    let adaptive = [Completion::adaptive(TINY.frames), Completion::Adaptive { low: 0, high: 0 }];
    for how in adaptive.into_iter().chain([Completion::EventDriven]) {
        let Some([mut from, _to]) = ends(&cable, TINY, &Config { completion: Some(how), ..Config::default() }) else {
            return;
        };
        assert_eq!(send(&cable, &mut from, PACKETS), PACKETS, "{how:?}");
    }
    let config = Config { completion: Some(Completion::Lazy), ..Config::default() };
    let Some([mut from, _to]) = ends(&cable, TINY, &config) else { return };
    assert_eq!(
        send(&cable, &mut from, PACKETS),
        FIRST_CUT,
        "all goes well until all frames are lent while the wire is cut"
    );
    assert!(
        from.free.is_empty() && Box::new(from.link).close().all().len() == TINY.frames as usize,
        "buffers are lost"
    );
}
