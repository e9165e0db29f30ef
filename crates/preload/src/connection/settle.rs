//! Connections that were always on kernel TCP and stay there for good: the other end is on another host, or another
//! user's.
//!
//! Such a connection is *settled*: calls that send, receive or wait find in the table that the library has nothing to
//! do, and make libc's call. The kernel counts what such a connection carries.

use super::Connection;
use super::handle::handle;
use super::watchers::watchers;
use crate::guest::{statistics, table};
use underpass_segment::kernel;
use underpass_segment::reason::Reason;
use underpass_segment::sync::{AtomicU64, Relaxed};

impl Connection {
    /// The connection has just been pinned. Whether it is settled now: not if the pin may end, or if the library has to
    /// follow it further.
    #[cold]
    pub fn settle(&self) -> bool {
        let is_for_good =
            matches!(self.end.reason(), Reason::Remote | Reason::OtherUser | Reason::NoSockDiag | Reason::Policy);
        let was_never_met = !self.end.has_channel() && self.end.entry.load(Relaxed) == 0;
        if !is_for_good || !was_never_met || self.has_duplicates() || (watchers().is_looked_at)(self.fd) {
            return false;
        }
        if let Some((noted, now)) = self.carried() {
            let unread = kernel::inq(self.fd).unwrap_or(0);
            noted[0].store(now[0], Relaxed);
            noted[1].store(now[1].saturating_sub(unread.into()), Relaxed);
        }
        let generation = table::generation(self.fd);
        let is_settled = table::settle(self.fd, self.index);
        if is_settled {
            (watchers().make_foreign)(self.fd, generation);
        }
        is_settled
    }

    /// This process is about to let go of the connection. The process that has it last counts what was carried since it
    /// was settled.
    pub fn count_settled(&self) {
        if table::is_settled(self.fd)
            && self.is_last()
            && let Some((noted, now)) = self.carried()
        {
            let counters = [&self.end.sending.kernel_bytes, &self.end.reading.kernel_bytes];
            for ((counter, noted), now) in counters.into_iter().zip(noted).zip(now) {
                counter.fetch_add(now.saturating_sub(noted.swap(now, Relaxed)), Relaxed);
            }
        }
    }

    /// The noted numbers of bytes that the kernel had sent and received, and the numbers now; `None` without
    /// statistics.
    fn carried(&self) -> Option<(&'static [AtomicU64; 2], [u64; 2])> {
        statistics::record()?;
        let (noted, now) = (&handle(self.index)?.settled, kernel::counters(self.fd).ok()?);
        // The kernel counts the other end's FIN as a byte.
        let fin = kernel::has_fin(now.state);
        Some((noted, [now.sent_once + u64::from(now.unsent), now.received.saturating_sub(fin.into())]))
    }
}
