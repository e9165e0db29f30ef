//! A thread that waits for packets is woken by them, soon, and by nothing else.

use super::support::{End, inside};
use super::support::{PATIENCE, cable, ends, frame, wait};
use std::time::{Duration, Instant};
use underpass_link::Link;
use underpass_link::arena::Geometry;
use underpass_link::filter::Filter;
use underpass_link::rig::INTERFACE;
use underpass_link::wait::Wait;
use underpass_link::xdp::Config;

const GEOMETRY: Geometry = Geometry { frames: 64, frame_size: 2048, headroom: 128 };
/// How long a thread that nothing wakes is left asleep.
const ASLEEP: Duration = Duration::from_millis(200);

/// How often a thread is woken within a time in which nothing comes that it could take.
fn woken(link: &mut impl Link) -> u32 {
    let (begin, mut wait, mut woken) = (Instant::now(), Wait::polling(Duration::ZERO), 0);
    while begin.elapsed() < ASLEEP {
        woken += u32::from(wait.wait(link, ASLEEP.saturating_sub(begin.elapsed())).unwrap());
        assert_eq!(link.receive(&mut Vec::new(), 8), 0);
    }
    woken
}

#[test]
fn a_packet_that_is_there_is_noticed_without_a_sleep() {
    let Some(cable) = cable(1500) else { return };
    let [mut from, mut to] = cable.ends.each_ref().map(|it| End::raw(it, GEOMETRY, Filter::Llc).expect("root may"));
    to.listen(32);
    for number in 0..20 {
        assert!(from.send(&frame(number, 100), 100));
        // The packet counts as come when the kernel says so, whatever the link has noted.
        assert!(Wait::polling(Duration::ZERO).wait(&mut to.link, PATIENCE).unwrap());
        let mut wait = Wait::default();
        assert!(wait.wait(&mut to.link, PATIENCE).unwrap());
        assert_eq!((wait.sleeps(), to.receive()), (0, Some(frame(number, 100))));
    }
}

#[test]
fn a_packet_that_cannot_be_taken_wakes_no_thread() {
    let Some(cable) = cable(1500) else { return };
    let [mut from, mut to] = cable.ends.each_ref().map(|it| End::raw(it, GEOMETRY, Filter::Llc).expect("root may"));
    (0..10).for_each(|number| assert!(from.send(&frame(number, 100), 100)));
    assert!(woken(&mut to.link) <= 1);
    // Nor does the error that the interface was down, once it was taken.
    cable.ends[1].set_up(INTERFACE, false).unwrap();
    assert!(woken(&mut to.link) <= 2);
    cable.ends[1].set_up(INTERFACE, true).unwrap();
    to.listen(32);
    assert_eq!(to.expect(), frame(0, 100), "what came before is kept");
}

#[test]
fn a_wait_is_not_ended_while_nothing_comes() {
    let Some(cable) = cable(1500) else { return };
    let Some([mut from, mut to]) = ends(&cable, GEOMETRY, &Config::default()) else { return };
    let mut raw =
        inside(&cable.ends[0], || End::raw(&cable.ends[0], GEOMETRY, Filter::EtherType(0x88b5)).expect("root may"));
    raw.listen(32);
    to.listen(32);
    // A link that has sent something knows of it when it is asked.
    assert!(from.send(&frame(0, 100), 100));
    wait("the buffer", || {
        from.reclaim();
        (from.free.len() == GEOMETRY.frames as usize).then_some(())
    });
    assert_eq!(to.expect(), frame(0, 100));
    assert_eq!([woken(&mut from.link), woken(&mut to.link), woken(&mut raw.link)], [0; 3]);
}
