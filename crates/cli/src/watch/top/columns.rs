//! What a line shows, and by what lines are put in order.

use underpass_lab::unit::Unit;

use super::super::counters::Counters;
use super::super::ss::{holders, mean_wait, reason, ways};
use super::super::{Connection, path};

/// A column. `rates` are per second.
pub struct Column {
    pub title: &'static str,
    /// What it takes on a screen.
    pub width: u16,
    /// Flush right.
    pub is_number: bool,
    /// Where columns do not fit the screen, the one with the highest rank is left out first.
    pub rank: u8,
    pub cell: fn(&Connection, Option<&Counters>) -> String,
}

const fn text(title: &'static str, width: u16, rank: u8, cell: fn(&Connection, Option<&Counters>) -> String) -> Column {
    Column { title, width, is_number: false, rank, cell }
}

const fn number(
    title: &'static str,
    width: u16,
    rank: u8,
    cell: fn(&Connection, Option<&Counters>) -> String,
) -> Column {
    Column { title, width, is_number: true, rank, cell }
}

/// All of them, in order.
pub const ALL: [Column; 14] = [
    text("PROCESS", 24, 0, |it, _| holders(it)),
    text("LOCAL", 21, 8, |it, _| it.socket.local.to_string()),
    text("PEER", 21, 5, |it, _| it.socket.peer.to_string()),
    text("OUT", 6, 3, |it, _| way(it, 0)),
    text("IN", 6, 4, |it, _| way(it, 1)),
    number("SENT RING", 11, 1, |it, rates| bytes(it, rates, |it| it.sent[0])),
    number("SENT KERNEL", 11, 7, |it, rates| bytes(it, rates, |it| it.sent[1])),
    number("RECV RING", 11, 2, |it, rates| bytes(it, rates, |it| it.received[0])),
    number("RECV KERNEL", 11, 9, |it, rates| bytes(it, rates, |it| it.received[1])),
    number("UNREAD", 9, 11, |it, _| unread(it).map_or("-".into(), |n| Unit::Bytes.show(n as f64))),
    number("DOORBELLS", 9, 10, |it, rates| events(it, rates, |it| it.bells)),
    number("SLEEPS", 8, 12, |it, rates| events(it, rates, |it| it.sleeps)),
    number("MEAN WAIT", 9, 13, |it, _| mean_wait(it)),
    text("REASON", 13, 6, |it, _| reason(it)),
];

fn way(it: &Connection, index: usize) -> String {
    path(ways(it)[index].is_some_and(|way| way.fast)).into()
}

/// What lies in the rings of both directions.
fn unread(it: &Connection) -> Option<u64> {
    it.unread.iter().flatten().copied().reduce(u64::saturating_add)
}

fn bytes(it: &Connection, rates: Option<&Counters>, which: fn(&Counters) -> u64) -> String {
    shown(it, rates, which, Unit::BytesPerSecond)
}

fn events(it: &Connection, rates: Option<&Counters>, which: fn(&Counters) -> u64) -> String {
    shown(it, rates, which, Unit::PerSecond)
}

/// Nothing is known of a connection that the program has not used.
fn shown(it: &Connection, rates: Option<&Counters>, which: fn(&Counters) -> u64, unit: Unit) -> String {
    rates.filter(|_| it.end.is_some()).map_or("-".into(), |rates| unit.show(which(rates) as f64))
}

/// What the lines are ordered by: figures with the largest first, processes and peers ascending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sort {
    Traffic,
    Sent,
    Received,
    Kernel,
    Unread,
    Doorbells,
    Sleeps,
    Process,
}

impl Sort {
    pub const fn next(self) -> Sort {
        match self {
            Sort::Traffic => Sort::Sent,
            Sort::Sent => Sort::Received,
            Sort::Received => Sort::Kernel,
            Sort::Kernel => Sort::Unread,
            Sort::Unread => Sort::Doorbells,
            Sort::Doorbells => Sort::Sleeps,
            Sort::Sleeps => Sort::Process,
            Sort::Process => Sort::Traffic,
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Sort::Traffic => "traffic",
            Sort::Sent => "bytes sent",
            Sort::Received => "bytes received",
            Sort::Kernel => "bytes by kernel TCP",
            Sort::Unread => "unread",
            Sort::Doorbells => "doorbells",
            Sort::Sleeps => "sleeps",
            Sort::Process => "process",
        }
    }

    /// The larger, the sooner. By process all are alike: so they are in order anyway.
    pub fn key(self, it: &Connection, rates: Option<&Counters>) -> u64 {
        let sum = |bytes: [u64; 2]| bytes[0].saturating_add(bytes[1]);
        let rate = |which: &dyn Fn(&Counters) -> u64| rates.map_or(0, which);
        match self {
            Sort::Traffic => rate(&|it| sum(it.sent).saturating_add(sum(it.received))),
            Sort::Sent => rate(&|it| sum(it.sent)),
            Sort::Received => rate(&|it| sum(it.received)),
            Sort::Kernel => rate(&|it| it.sent[1].saturating_add(it.received[1])),
            Sort::Unread => unread(it).unwrap_or(0),
            Sort::Doorbells => rate(&|it| it.bells),
            Sort::Sleeps => rate(&|it| it.sleeps),
            Sort::Process => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_goes_through_all_orders() {
        let mut seen = vec![Sort::Traffic];
        while seen.last().unwrap().next() != Sort::Traffic {
            seen.push(seen.last().unwrap().next());
        }
        assert_eq!(seen.len(), Sort::Process as usize + 1);
    }
}
