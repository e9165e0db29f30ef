//! The initial sequence numbers of connections, which a BPF program (`sock_ops`) notes when they are established.
//!
//! Two sockets are the ends of one connection if the numbers of one are those of the other mirrored, no third socket
//! has either, and both were established at about the same time. No translation of addresses changes the numbers.
//! Others cannot find them out so soon, although the kernel has one key for the numbers of all network namespaces, so
//! that a process on this host knows much of them (docs/internals/broker.md has what that is worth). A proxy has two
//! connections with numbers of their own. A middlebox that changes numbers, and data in the SYN (TCP Fast Open), leave
//! ends that are not mirrored, and so not proven. A container may forge a third socket with the numbers of another one
//! (TCP_REPAIR, in a user namespace of its own); then none of the three is proven.

mod bpf;
mod program;

use super::{Evidence, Other};
use crate::facts::Facts;
use bpf::{Attached, Map};
use rustix::fd::AsFd;
use std::fs::File;
use std::io;
use std::path::Path;

/// Connections of which the numbers are known; the least recently used are forgotten, and are then not proven.
const MOST: u32 = 1 << 16;
/// Stands in place of a cookie if several sockets have the same numbers.
const SEVERAL: u64 = 0;

/// The two ends of a connection are established within so many nanoseconds, unless the packet that establishes the
/// second one is lost or held back: then they are not proven. Somebody who guesses numbers has no more time for it.
const TOGETHER_NS: u64 = 1_000_000_000;

/// `snd_nxt` and `rcv_nxt` of a socket when it was established.
type Pair = [u32; 2];

/// What is noted of a socket: `snd_nxt` and `rcv_nxt` when it was established, and when that was (CLOCK_MONOTONIC, ns).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Note {
    pair: Pair,
    time: u64,
}

impl Note {
    /// As the BPF program writes it.
    fn of(noted: [u64; 2]) -> Note {
        let octets = noted[0].to_ne_bytes();
        let word = |at: usize| u32::from_ne_bytes(std::array::from_fn(|i| octets[at + i]));
        Note { pair: [word(0), word(4)], time: noted[1] }
    }
}

/// Notes the numbers of all connections that are established from now on in a cgroup and those below it.
#[derive(Debug)]
pub struct Numbers {
    /// By cookie, see [`Note`].
    numbers: Map<u64, [u64; 2]>,
    /// The cookie of the socket that has these numbers, or [`SEVERAL`].
    holders: Map<Pair, u64>,
    _attached: Attached,
}

impl Numbers {
    /// Attaches the program to the cgroup at this path, of a cgroup2 file system.
    ///
    /// # Errors
    /// EPERM without CAP_BPF and CAP_NET_ADMIN; otherwise what the kernel says.
    pub fn attach(cgroup: &Path) -> io::Result<Numbers> {
        let numbers = Map::new(MOST)?;
        let holders = Map::new(MOST)?;
        let program = bpf::Program::load(&program::program(numbers.descriptor(), holders.descriptor()))?;
        let attached = program.attach(File::open(cgroup)?.as_fd())?;
        Ok(Numbers { numbers, holders, _attached: attached })
    }
}

impl Evidence for Numbers {
    fn other_end(&self, of: &Facts) -> Other {
        let note = |cookie| self.numbers.get(&cookie).map(|it| it.map(Note::of));
        judge(of.cookie, note, |pair| self.holders.get(&pair)).unwrap_or_else(|error| {
            tracing::warn!(%error, "the kernel does not tell sequence numbers");
            Other::Unknown
        })
    }
}

/// The other end of the socket with cookie `me`, by what is noted under a cookie, and by the cookie under numbers.
fn judge(
    me: u64,
    note: impl Fn(u64) -> io::Result<Option<Note>>,
    holder: impl Fn(Pair) -> io::Result<Option<u64>>,
) -> io::Result<Other> {
    let Some(own) = note(me)? else { return Ok(Other::Unknown) };
    let mirrored = [own.pair[1], own.pair[0]];
    let other = match (holder(own.pair)?, holder(mirrored)?) {
        (Some(it), Some(other)) if it == me && other != SEVERAL => other,
        (Some(it), None) if it == me => return Ok(Other::Nowhere),
        // Forgotten, as so many connections have come since.
        (None, _) => return Ok(Other::Unknown),
        (Some(_), _) => return Ok(Other::Several),
    };
    let is_together = |it: Note| it.pair == mirrored && it.time.abs_diff(own.time) <= TOGETHER_NS;
    Ok(if note(other)?.is_some_and(is_together) { Other::End(other) } else { Other::Unknown })
}

/// Where the cgroup2 file system is mounted, as /proc/self/mounts says.
///
/// # Errors
/// The file cannot be read.
pub fn cgroup2() -> io::Result<Option<std::path::PathBuf>> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    let found = mounts.lines().find_map(|line| {
        let mut words = line.split(' ').skip(1);
        let (place, kind) = (words.next()?, words.next()?);
        (kind == "cgroup2").then(|| place.into())
    });
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Note = Note { pair: [7, 8], time: 5_000_000_000 };
    const B: Note = Note { pair: [8, 7], time: A.time + TOGETHER_NS };

    /// What is noted of sockets 1 and 2, and of the holders of the first one's numbers and the mirrored ones.
    fn other_end(notes: [Option<Note>; 2], holders: [Option<u64>; 2]) -> Other {
        let note = |cookie: u64| Ok(notes[cookie as usize - 1]);
        judge(1, note, |pair| Ok(holders[usize::from(pair != A.pair)])).unwrap()
    }

    #[test]
    fn two_sockets_with_mirrored_numbers_are_ends_of_one_connection() {
        let octets: [u8; 8] = A.pair.map(u32::to_ne_bytes).as_flattened().try_into().unwrap();
        assert_eq!(Note::of([u64::from_ne_bytes(octets), A.time]), A);
        assert_eq!(other_end([Some(A), Some(B)], [Some(1), Some(2)]), Other::End(2));
        assert_eq!(other_end([Some(A), None], [Some(1), None]), Other::Nowhere);
        for holders in [[Some(SEVERAL), Some(2)], [Some(3), Some(2)], [Some(1), Some(SEVERAL)], [Some(3), None]] {
            assert_eq!(other_end([Some(A), Some(B)], holders), Other::Several, "{holders:?}");
        }
    }

    /// Then addresses may prove the connection. Fails if what is not noted any more counts as several sockets'.
    #[test]
    fn forgotten_numbers_are_not_those_of_several_sockets() {
        for (notes, holders) in [
            ([None, Some(B)], [Some(1), Some(2)]),
            ([Some(A), Some(B)], [None, Some(2)]),
            ([Some(A), Some(B)], [None, None]),
            ([Some(A), Some(B)], [None, Some(SEVERAL)]),
            ([Some(A), None], [Some(1), Some(2)]),
        ] {
            assert_eq!(other_end(notes, holders), Other::Unknown, "{notes:?} {holders:?}");
        }
    }

    /// Somebody who has learnt or guessed the numbers makes a second end, where the true one is on another host or was
    /// forgotten.
    #[test]
    fn a_second_end_that_comes_later_is_not_the_other_end() {
        for other in [
            Note { time: B.time + 1, ..B },
            Note { time: A.time - TOGETHER_NS - 1, ..B },
            Note { pair: A.pair, ..B },
            Note { pair: [8, 6], ..B },
        ] {
            assert_eq!(other_end([Some(A), Some(other)], [Some(1), Some(2)]), Other::Unknown, "{other:?}");
        }
    }
}
