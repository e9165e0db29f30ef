//! A program is about to install a filter for its system calls (seccomp(2)): its connections go to kernel TCP first.

use crate::connection::handle::handle;
use crate::connection::look::for_each;
use crate::connection::state::Attachment;
use crate::connection::{Connection, confined};
use crate::guest::{family, forked};
use crate::watch::epoll;
use core::cell::OnceCell;
use underpass_segment::end::Stage;
use underpass_segment::reason::Reason;
use underpass_segment::sync::{AcqRel, Acquire};
use underpass_segment::{clock, kernel};

/// All connections together wait at most this long for their other ends.
const PATIENCE_NS: u64 = 100_000_000;

/// Every connection stays on the kernel path for good, or goes there, while the library may still make system calls.
pub fn confine_all() {
    forked::check();
    let Some(family) = family::existing() else { return };
    let until = clock::nanoseconds() + PATIENCE_NS;
    let mut have_rests = confined::begin();
    let are_seen = OnceCell::new();
    let prepare = || *are_seen.get_or_init(epoll::prepare_rests);
    for_each(|index, fd| have_rests |= Connection::at(family, index, fd).confine(until, prepare));
    confined::end(have_rests);
    kernel::forget_holders();
}

impl Connection {
    /// Confines one connection. Whether something may be left in its ring, or in the list of registrations, which
    /// `prepare` makes once for all connections.
    fn confine(&self, until: u64, prepare: impl Fn() -> bool) -> bool {
        // Changes of registrations that were put off would need epoll_ctl later.
        self.descriptors().for_each(|fd| epoll::freeze_registrations(self.by(fd), || None));
        self.end.pin(Reason::Seccomp);
        if self.end.stage() != Stage::Joined {
            return false;
        }
        // The kernel's epoll does not know what is in the ring: without address space a thread that waits by a set is
        // not told of it. A poll that sleeps is woken by what the other end puts on the kernel path.
        let is_polled = self.descriptors().any(epoll::is_slept_on);
        let is_seen = (prepare() || !self.end.is_watched()) && !is_polled;
        let (Some(port), Some(handle)) = (self.port(), handle(self.index)) else { return false };
        if !port.confine(until, is_seen) {
            return false;
        }
        // At once, because from here on the ring is read in another way. In this order, because Untouched may become
        // Present.
        for present in [Attachment::Untouched, Attachment::Present] {
            let _ = handle.attachment.compare_exchange(present, Attachment::Confined, AcqRel, Acquire);
        }
        let has_rest = !port.is_plain();
        if !has_rest {
            // Behind the filter it cannot be taken away.
            kernel::set_tagged(self.fd, false);
        }
        let is_followed = epoll::enter_rests(*self, has_rest);
        epoll::make_registrations_foreign(*self);
        if has_rest {
            epoll::wake_for_rests(*self);
        }
        has_rest || is_followed
    }
}
