//! Whether there is anything to report of a connection that is looked at in user space.

use super::room::{Found, look};
use super::{EDGE, ONCE, OVER, UNASKED};
use crate::watch::set::Item;
use underpass_segment::kernel;
use underpass_segment::switch::{Port, Ready, Told};

/// Whether a fast connection is to be reported for its room: again and again, if it is level-triggered. A one-shot
/// registration is left to the kernel.
pub(super) fn writable(port: &Port<'_>, item: &Item) -> bool {
    look(port, item) == Found::Room
}

/// If the ring has data that was not reported for `item` yet (level-triggered: any data), what counts as reported from
/// now on.
#[inline]
pub(super) fn news(port: &Port<'_>, item: &Item) -> Option<Told> {
    match port.ready() {
        Ready::Yes if item.events & EDGE == 0 => Some(Told::default()),
        Ready::No if !port.is_deaf() => None,
        // After what is left in the kernel there may be more in the ring, which the kernel does not know of.
        _ if item.events & EDGE != 0 => port.newer(item.told),
        _ => None,
    }
}

/// What the kernel knows besides the ring's data: a one-shot event has to report everything at once, and an end that
/// has been announced is reported together with the data before it.
#[inline]
pub(super) fn ended(port: &Port<'_>, item: &Item) -> u32 {
    if item.events & ONCE == 0 && !port.may_have_ended() {
        return 0;
    }
    let asked = if item.events & libc::EPOLLRDHUP as u32 != 0 { libc::POLLRDHUP } else { 0 };
    over_now(port, asked)
}

/// What the kernel says of errors and ends. `asked` may ask for the end of the stream too ([`libc::POLLRDHUP`]).
pub(super) fn over_now(port: &Port<'_>, asked: i16) -> u32 {
    without_false_reset(port, kernel::poll_now(port.fd, asked) as u16 as u32 & OVER)
}

/// `mask` without a reset that only an unread doorbell has caused.
pub(super) fn without_false_reset(port: &Port<'_>, mask: u32) -> u32 {
    if mask & UNASKED != 0 && port.judge_reset() { mask & !UNASKED } else { mask }
}
