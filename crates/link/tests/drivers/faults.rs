//! Faults of a link, before it is opened and later, are reported with their remedy.

use super::support::{End, PATIENCE, cable, ends, frame, inside, wait};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Instant;
use underpass_link::Link;
use underpass_link::arena::{Arena, Geometry};
use underpass_link::error::{Fault, OpenError};
use underpass_link::filter::Filter;
use underpass_link::rig::{Cable, INTERFACE};
use underpass_link::xdp::{Attach, Bind, Config, Xdp};

const GEOMETRY: Geometry = Geometry { frames: 64, frame_size: 2048, headroom: 128 };

/// Whether the one sends a frame that the other receives.
fn carries([from, to]: &mut [End<Xdp>; 2], number: u32) -> bool {
    let packet = frame(number, 100);
    assert!(from.send(&packet, 100), "buffers come back");
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        from.reclaim();
        // What was under way before may come too.
        if to.receive().is_some_and(|it| it == packet) {
            return true;
        }
    }
    false
}

fn open(cable: &Cable, interface: &str, config: &Config) -> Result<Xdp, OpenError> {
    let (arena, _) = Arena::new(GEOMETRY);
    inside(&cable.ends[0], || Xdp::open(interface, &arena, config))
}

#[test]
fn what_cannot_be_opened_says_why() {
    let Some(cable) = cable(1500) else { return };
    let Some(mut pair) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    pair[1].listen(16);
    let config = Config::default();
    let error = open(&cable, "up9", &config).unwrap_err();
    assert!(matches!(error, OpenError::NoInterface { .. }), "{error}");
    // Another process's program and this one's look alike.
    for attach in [Attach::Auto, Attach::Native, Attach::Generic] {
        let error = open(&cable, INTERFACE, &Config { attach, ..config.clone() }).unwrap_err();
        assert!(matches!(error, OpenError::ForeignProgram { .. }), "{error}");
    }
    let mut beside = |queue| {
        let (link, config) = (&mut pair[0].link, Config { queue, ..config.clone() });
        inside(&cable.ends[0], move || link.beside(&config)).unwrap_err()
    };
    let error = beside(0);
    assert!(matches!(error, OpenError::QueueTaken { queue: 0, .. }), "{error}");
    for queue in [77, 7777] {
        let error = beside(queue);
        assert!(matches!(error, OpenError::NoQueue { .. }), "{error}");
    }
    // The loopback interface's driver runs no XDP program.
    let error = open(&cable, "lo", &Config { attach: Attach::Native, ..config.clone() }).unwrap_err();
    assert!(matches!(error, OpenError::NoXdp { .. }), "{error}");
    let on_lo = open(&cable, "lo", &config).expect("auto takes what there is");
    assert_eq!(on_lo.mode(), "generic XDP, copy");
    drop(on_lo);
    let error = open(&cable, "lo", &Config { bind: Bind::ZeroCopy, ..config.clone() }).unwrap_err();
    assert!(matches!(error, OpenError::NoZeroCopy { .. }), "{error}");
    let (arena, _) = Arena::new(Geometry { frame_size: 2304, ..GEOMETRY });
    let error = inside(&cable.ends[0], || Xdp::open("lo", &arena, &config)).unwrap_err();
    assert!(matches!(error, OpenError::Frames { frame_size: 2304, .. }), "{error}");
    let (arena, _) = Arena::new(GEOMETRY);
    let error = inside(&cable.ends[0], || {
        let none = CapabilitySet::empty();
        set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none }).unwrap();
        Xdp::open("lo", &arena, &config)
    });
    let error = error.unwrap_err();
    assert!(matches!(error, OpenError::NoPermission { .. }), "{error}");
    assert!(carries(&mut pair, 1), "the link that there was has suffered");
}

#[test]
fn a_link_that_is_down_says_so_and_goes_on_afterwards() {
    let Some(cable) = cable(1500) else { return };
    let Some(mut pair) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    pair[1].listen(16);
    assert!(carries(&mut pair, 1));
    for end in [0, 1] {
        cable.ends[end].set_up(INTERFACE, false).unwrap();
        assert!(pair[0].send(&frame(2, 100), 100));
        let fault = pair[end].link.check().unwrap_err();
        assert!(matches!(fault, Fault::Down { .. }), "{fault}");
        // The other one is up, and has lost its carrier.
        let fault = wait("a fault", || pair[1 - end].link.check().err());
        assert!(matches!(fault, Fault::NoCarrier { .. }), "{fault}");
        cable.ends[end].set_up(INTERFACE, true).unwrap();
        assert!(carries(&mut pair, 3));
        // The kernel says a moment later that there is a carrier again.
        pair.iter_mut().for_each(|it| wait("the carrier", || it.link.check().ok()));
    }
}

#[test]
fn a_link_may_be_opened_before_its_interface_is_up() {
    let Some(cable) = cable(1500) else { return };
    cable.ends[0].set_up(INTERFACE, false).unwrap();
    let Some(mut pair) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    let raw = End::raw(&cable.ends[0], GEOMETRY, Filter::Llc).expect("root may open it");
    assert_eq!((pair[0].link.mtu(), raw.link.mtu()), (1514, 1514));
    pair[1].listen(16);
    cable.ends[0].set_up(INTERFACE, true).unwrap();
    assert!(carries(&mut pair, 1));
}

#[test]
fn another_mtu_is_told_once() {
    let Some(cable) = cable(1500) else { return };
    let Some(mut pair) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    pair[1].listen(16);
    cable.ends[0].set_mtu(INTERFACE, 1000).unwrap();
    let fault = pair[0].link.check().unwrap_err();
    assert!(matches!(fault, Fault::Mtu { was: 1514, is: 1014, .. }), "{fault}");
    pair[0].link.check().unwrap();
    assert_eq!(pair[0].link.mtu(), 1014);
    assert!(pair[0].send(&frame(1, 1100), 1100));
    assert_eq!(pair[0].link.counters().refused, 1);
    assert!(carries(&mut pair, 2));
}

/// Packets to the interface's new address do not arrive.
#[test]
fn another_address_is_told() {
    let Some(cable) = cable(1500) else { return };
    let Some(mut pair) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    let mut raw = End::raw(&cable.ends[0], GEOMETRY, Filter::Llc).expect("root may open it");
    pair[0].link.check().unwrap();
    cable.ends[0].set_link_address(INTERFACE, [2, 0, 0, 0, 0, 9]).unwrap();
    for fault in [pair[0].link.check().unwrap_err(), raw.link.check().unwrap_err()] {
        assert!(matches!(fault, Fault::Address { .. }), "{fault}");
    }
    pair[1].link.check().unwrap();
}

#[test]
fn a_link_that_is_gone_says_so_and_is_opened_anew() {
    let Some(mut cable) = cable(1500) else { return };
    let Some(mut pair) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    pair[1].listen(16);
    assert!(carries(&mut pair, 1));
    cable.ends[0].remove(INTERFACE).unwrap();
    for end in &mut pair {
        // A packet that is not sent is no reason to fail.
        end.send(&frame(2, 100), 100);
        let fault = end.link.check().unwrap_err();
        assert!(matches!(fault, Fault::Gone { .. }), "{fault}");
        // A second word, not another story.
        assert!(matches!(end.link.check().unwrap_err(), Fault::Gone { .. }));
    }
    for end in pair {
        let all = end.free.len() + Box::new(end.link).close().all().len();
        assert_eq!(all, GEOMETRY.frames as usize, "buffers are lost");
    }
    cable = Cable::new(1500).unwrap();
    let Some(mut pair) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    pair[1].listen(16);
    assert!(carries(&mut pair, 3));
}

/// The process of the next tests, with a child or without.
#[test]
#[ignore = "a_killed_process_leaves_no_program runs it"]
fn holds_an_interface_until_it_is_killed() {
    let (arena, _) = Arena::new(GEOMETRY);
    let link = Xdp::open(INTERFACE, &arena, &Config::default()).unwrap();
    let child = match std::env::var_os(FORKS) {
        Some(_) => fork(),
        None => 0,
    };
    println!("\nheld by {}, child {child}", link.mode());
    std::thread::sleep(PATIENCE);
}

/// With this variable, the process has a child that lives on and executes nothing.
const FORKS: &str = "UNDERPASS_TEST_FORKS";

#[allow(unsafe_code, reason = "a child that executes nothing")]
fn fork() -> i32 {
    // SAFETY: the child makes no call but these two, which a child of several threads may make too.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            // The alarm ends this child in any case, even if the test fails.
            libc::alarm(PATIENCE.as_secs() as u32);
            loop {
                libc::pause();
            }
        }
        child
    }
}

/// A process that has the interface, and the number of its child, if it has one.
fn holder(cable: &Cable, forks: bool) -> (Child, i32) {
    let mut holder = inside(&cable.ends[0], || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        let test = "faults::holds_an_interface_until_it_is_killed";
        command.args([test, "--exact", "--ignored", "--nocapture"]).stdout(Stdio::piped());
        command.envs(forks.then_some((FORKS, "1"))).spawn().unwrap()
    });
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines().map(Result::unwrap);
    let held = lines.find(|line| line.starts_with("held by")).expect("it holds it");
    let error = open(cable, INTERFACE, &Config::default()).unwrap_err();
    assert!(matches!(error, OpenError::ForeignProgram { .. }), "{error}");
    (holder, held.rsplit_once(' ').unwrap().1.parse().unwrap())
}

#[test]
fn a_killed_process_leaves_no_program() {
    let Some(cable) = cable(1500) else { return };
    if ends(&cable, GEOMETRY, &Config::default()).is_none() {
        return;
    }
    let (mut holder, _) = holder(&cable, false);
    holder.kill().unwrap();
    holder.wait().unwrap();
    // The kernel takes it off a moment later.
    wait("the interface", || open(&cable, INTERFACE, &Config::default()).ok());
}

/// Descriptors are a child's too, until it executes another program or ends: the interface is free after the last of
/// them.
#[test]
fn a_child_that_was_forked_keeps_the_program_of_a_killed_process() {
    let Some(cable) = cable(1500) else { return };
    if ends(&cable, GEOMETRY, &Config::default()).is_none() {
        return;
    }
    let (mut holder, child) = holder(&cable, true);
    assert!(child > 0);
    holder.kill().unwrap();
    holder.wait().unwrap();
    let error = open(&cable, INTERFACE, &Config::default()).unwrap_err();
    assert!(matches!(error, OpenError::ForeignProgram { .. }), "{error}");
    kill_process(Pid::from_raw(child).unwrap(), Signal::KILL).unwrap();
    wait("the interface", || open(&cable, INTERFACE, &Config::default()).ok());
}
