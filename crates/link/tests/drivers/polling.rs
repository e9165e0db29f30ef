//! The receiver does the device's work by busy polling, and nothing else does where the interface puts its interrupts
//! off.
#![allow(unsafe_code, reason = "options of a socket that nothing else shows")]

use super::support::{End, PATIENCE, cable, ends, frame};
use std::os::fd::AsRawFd;
use std::time::Instant;
use underpass_link::Link;
use underpass_link::arena::Geometry;
use underpass_link::rig::{Cable, INTERFACE};
use underpass_link::xdp::{BusyPoll, Config, Xdp};

const GEOMETRY: Geometry = Geometry { frames: 256, frame_size: 2048, headroom: 128 };
const BUDGET: u16 = 64;
/// Nanoseconds for which the interface leaves its interrupts off, which is longer than a test may take, and how often.
const OFF: &str = "60000000000";
const OFTEN: &str = "100000";

/// A number that a socket is set to.
fn option(link: &Xdp, option: i32) -> i32 {
    let socket = link.readiness().expect("it has a descriptor").descriptor.as_raw_fd();
    let (mut value, mut len) = (0i32, 4);
    // SAFETY: these options are a number each, and there is room for it.
    let result = unsafe { libc::getsockopt(socket, libc::SOL_SOCKET, option, (&raw mut value).cast(), &raw mut len) };
    assert_eq!((result, len), (0, 4));
    value
}

fn put_interrupts_off(cable: &Cable) {
    for (file, word) in [("napi_defer_hard_irqs", OFTEN), ("gro_flush_timeout", OFF)] {
        cable.ends[1].write(&format!("class/net/{INTERFACE}/{file}"), word).unwrap();
    }
}

/// Sends frames, and says how many have come until `PATIENCE` is over or all have.
fn carry([from, to]: &mut [End<Xdp>; 2], frames: u32, patience: std::time::Duration) -> u32 {
    let (mut come, mut begin) = (0, Instant::now());
    for number in 0..frames {
        let packet = frame(number, 100);
        assert!(from.send(&packet, 100), "buffers come back");
        while come <= number && begin.elapsed() < patience {
            from.reclaim();
            if let Some(it) = to.receive() {
                assert!(it == frame(come, 100), "frame {come} is not as it was sent");
                (come, begin) = (come + 1, Instant::now());
            }
        }
    }
    come
}

#[test]
fn frames_come_to_a_poller_even_while_interrupts_are_off() {
    let Some(cable) = cable(1500) else { return };
    let config = Config { busy_poll: Some(BusyPoll { budget: BUDGET }), ..Config::default() };
    let Some(mut pair) = ends(&cable, GEOMETRY, &config) else { return };
    // The kernel does not tell the budget.
    let set = [libc::SO_PREFER_BUSY_POLL, libc::SO_BUSY_POLL].map(|it| option(&pair[1].link, it));
    assert!(set[0] == 1 && set[1] > 0, "{set:?}");
    assert_eq!(pair[0].link.mode(), "native XDP, copy, busy polling");
    pair[1].listen(128);
    // With the first the kernel learns whose work it is.
    assert_eq!(carry(&mut pair, 1, PATIENCE), 1);
    if option(&pair[1].link, libc::SO_INCOMING_NAPI_ID) == 0 {
        assert_eq!(carry(&mut pair, 5000, PATIENCE), 5000);
        return println!("SKIPPED: this kernel polls no device for sockets that copy; interrupts stay on");
    }
    put_interrupts_off(&cable);
    assert_eq!(carry(&mut pair, 5000, PATIENCE), 5000);
    let polls = pair[1].link.counters().polls;
    assert!(polls >= 5000, "nobody else brings them: {polls} polls");
}
