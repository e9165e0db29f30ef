//! What this process says of its connections in the statistics of `underpass run --stats`.
//!
//! Each process counts the connections that it uses, and reports each when it closes its last descriptor of it: how it
//! fared, and what was carried while the process used it. The end's counters, which all processes that have the end
//! share, hold what no process has reported yet. A process that has a connection without using it does not report it,
//! unless it is the last one.

use super::Connection;
use super::handle::{COUNTERS, Handle, handle};
use super::look::for_each;
use super::state::Usage;
use crate::guest::{family, statistics};
use underpass_segment::end::{End, Stage};
use underpass_segment::reason::Reason;
use underpass_segment::sync::{AtomicU64, Relaxed};

fn counters(end: &End) -> [&AtomicU64; COUNTERS] {
    let (out, back) = (&end.sending, &end.reading);
    [&out.fast_bytes, &back.fast_bytes, &out.kernel_bytes, &back.kernel_bytes, &end.bells_sent, &end.sleeps]
}

impl Handle {
    /// From now on this process counts what the connection carries.
    fn count_from_here(&self, end: &End) {
        for (before, counter) in self.before.iter().zip(counters(end)) {
            before.store(counter.load(Relaxed), Relaxed);
        }
    }
}

impl Connection {
    /// Counts the connection where it is first used: a server may leave it to what it forks.
    pub fn count_use(&self) {
        let Some(handle) = handle(self.index) else { return };
        let now = handle.usage.load(Relaxed);
        if matches!(now, Usage::Unused | Usage::Brought)
            && handle.usage.compare_exchange(now, Usage::Counted, Relaxed, Relaxed).is_ok()
            && let Some(record) = statistics::record()
        {
            self.end.counted.store(1, Relaxed);
            handle.count_from_here(self.end);
            record.connections.fetch_add(1, Relaxed);
        }
    }

    /// How this process counts the connection, for a program image that gets it: see [`after_execution`].
    pub fn usage(&self) -> Usage {
        handle(self.index).map_or(Usage::Unused, |handle| handle.usage.load(Relaxed))
    }
}

/// Another process reports what was carried so far.
pub fn forget_carried(end: &End) {
    counters(end).iter().for_each(|counter| counter.store(0, Relaxed));
}

/// Counts a reason of a connection that has no end here, or has lost it.
pub fn count_reason(reason: Reason) {
    if let Some(record) = statistics::record() {
        record.count_reason(reason);
    }
}

/// The connection came from a program image that had it as `counted`, if that is known, and was this very process
/// (`same`) or another.
pub fn after_execution(handle: &Handle, end: &End, counted: Option<Usage>, same: bool) {
    let unused = || if end.counted.load(Relaxed) == 0 { Usage::Unused } else { Usage::Brought };
    let counted = match counted.unwrap_or_else(unused) {
        counted @ (Usage::Counted | Usage::Reported) if same => counted,
        Usage::Unused => Usage::Unused,
        _ => Usage::Brought,
    };
    handle.usage.store(counted, Relaxed);
    handle.count_from_here(end);
}

/// Another program image is about to take this one's place. Reports what this image has carried, and how its
/// connections fared, except those that the next image `goes_on` with.
pub fn count_before_execution(goes_on: impl Fn(&Connection) -> bool) {
    if let Some(family) = family::existing() {
        for_each(|index, fd| {
            let connection = Connection::at(family, index, fd);
            connection.count_settled();
            if !goes_on(&connection) {
                report(connection.end, index, connection.is_last());
            } else if connection.usage() == Usage::Counted {
                report_carried(connection.end, index, false);
            }
        });
    }
}

/// This process is about to let go of the connection, perhaps as the `last`.
pub fn report(end: &End, index: u32, last: bool) {
    let (Some(record), Some(handle)) = (statistics::record(), handle(index)) else { return };
    let counted = handle.usage.load(Relaxed);
    let untold = || counters(end).iter().any(|counter| counter.load(Relaxed) > 0);
    let tells = match counted {
        Usage::Counted | Usage::Reported => true,
        Usage::Unused => last,
        _ => last && untold(),
    };
    if !tells {
        return;
    }
    if !matches!(counted, Usage::Counted | Usage::Reported) {
        record.connections.fetch_add(1, Relaxed);
    }
    if handle.usage.swap(Usage::Reported, Relaxed) == Usage::Reported {
        // Reported already, except for what has been carried since.
    } else if end.stage() == Stage::Broken {
        // Even if the connection was fast: nothing else reports the fault.
        record.count_reason(Reason::PeerFault);
    } else if end.was_fast() {
        record.fast.fetch_add(1, Relaxed);
    } else {
        record.count_reason(end.reason());
    }
    report_carried(end, index, last);
}

/// Reports what was carried; the last process also reports what no process has reported.
fn report_carried(end: &End, index: u32, last: bool) {
    let (Some(record), Some(handle)) = (statistics::record(), handle(index)) else { return };
    let told = [
        &record.fast_sent,
        &record.fast_received,
        &record.kernel_sent,
        &record.kernel_received,
        &record.bells,
        &record.sleeps,
    ];
    for ((counter, before), told) in counters(end).into_iter().zip(&handle.before).zip(told) {
        let before = if last { 0 } else { before.load(Relaxed) };
        // Another process has reported all of it, and the counter has begun anew.
        let carried = |now: u64| if now < before { now } else { now - before };
        // Another process may report the same at this moment.
        let now = counter.fetch_update(Relaxed, Relaxed, |now| Some(now - carried(now)));
        told.fetch_add(now.map_or(0, carried), Relaxed);
    }
}
