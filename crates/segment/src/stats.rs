//! What each process under `underpass run --stats` did: written by the library, read by the command.
#![allow(unsafe_code, reason = "lays records over shared memory")]

use crate::raw::Errno;
use crate::reason::Reason;
use crate::sync::{Acquire, AtomicU32, AtomicU64, Relaxed, Release};
use crate::sysv::Mapping;

const RECORDS: usize = 1024;
const REASONS: usize = 32;
const LEN: usize = 64 + RECORDS * size_of::<Record>();
const _: () = assert!(Reason::ALL.len() <= REASONS);

/// Counters of one process. All count up.
#[repr(C, align(64))]
pub struct Record {
    pid: AtomicU32,
    command: [AtomicU64; 2],
    /// Connections seen.
    pub connections: AtomicU64,
    /// Connections that were on the fast path in at least one direction.
    pub fast: AtomicU64,
    /// Bytes sent on the fast path.
    pub fast_sent: AtomicU64,
    /// Bytes received on the fast path.
    pub fast_received: AtomicU64,
    /// Bytes sent on the kernel path.
    pub kernel_sent: AtomicU64,
    /// Bytes received on the kernel path.
    pub kernel_received: AtomicU64,
    /// Doorbells sent.
    pub bells: AtomicU64,
    /// Times a receive slept in the kernel for the fast path.
    pub sleeps: AtomicU64,
    /// Connections of which the bytes are not counted: the library does not follow them.
    pub unfollowed: AtomicU64,
    reasons: [AtomicU64; REASONS],
    /// When the process began, as /proc has it; 0: it is not known.
    began: AtomicU64,
}

impl Record {
    /// Counts a connection that never was fast, or was ended because the other end broke the rules.
    pub fn count_reason(&self, reason: Reason) {
        self.reasons[reason as usize].fetch_add(1, Relaxed);
    }
}

/// What one process did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessStats {
    /// Process number.
    pub pid: u32,
    /// Its command name, as in /proc/PID/comm.
    pub command: String,
    /// Connections seen.
    pub connections: u64,
    /// Connections that were on the fast path in at least one direction.
    pub fast: u64,
    /// Bytes sent on the fast path.
    pub fast_sent: u64,
    /// Bytes received on the fast path.
    pub fast_received: u64,
    /// Bytes sent on the kernel path.
    pub kernel_sent: u64,
    /// Bytes received on the kernel path.
    pub kernel_received: u64,
    /// Doorbells sent.
    pub bells: u64,
    /// Times a receive slept in the kernel for the fast path.
    pub sleeps: u64,
    /// Connections of which the bytes are not counted.
    pub unfollowed: u64,
    /// For the connections that never were fast, or were ended because the other end broke the rules: why, and how many.
    pub reasons: Vec<(Reason, u64)>,
}

/// The memory in which the processes of one run keep their counters.
#[derive(Debug)]
pub struct Region {
    mapping: Mapping,
}

impl Region {
    /// Makes an empty region. It lasts as long as a process has it.
    ///
    /// # Errors
    /// See [`Mapping::create`].
    pub fn create() -> std::io::Result<Region> {
        let mapping = Mapping::create(LEN).map_err(|Errno(e)| std::io::Error::from_raw_os_error(e))?;
        Ok(Region { mapping })
    }

    /// Number to hand on in `UNDERPASS_STATS`.
    pub fn id(&self) -> i32 {
        self.mapping.id()
    }

    /// The processes so far, in the order in which they began.
    pub fn processes(&self) -> Vec<ProcessStats> {
        let claimed = (claims(&self.mapping).load(Acquire) as usize).min(RECORDS);
        (0..claimed).map(|index| record(&self.mapping, index)).filter_map(read).collect()
    }

    /// Processes that came when there was no room for their counters any more.
    pub fn uncounted(&self) -> u64 {
        u64::from(claims(&self.mapping).load(Acquire)).saturating_sub(RECORDS as u64)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `processes` hands out copies only.
        unsafe { self.mapping.detach() };
    }
}

fn claims(mapping: &Mapping) -> &'static AtomicU32 {
    // SAFETY: the region begins with the count; the library never detaches it, `Region` hands out no reference.
    unsafe { &*(mapping.base().as_ptr() as *const AtomicU32) }
}

fn record(mapping: &Mapping, index: usize) -> &'static Record {
    // SAFETY: index < RECORDS; zeroed memory is an unused record; everything in it is atomic.
    unsafe { &*(mapping.base().as_ptr().add(64 + index * size_of::<Record>()) as *const Record) }
}

/// The library's side: takes the record of a process, which began at a time (0: not known), in region `id` of user `uid`. A
/// program that another executes goes on in that one's.
pub fn claim(id: i32, uid: u32, process: (u32, u64), command: [u8; 16]) -> Option<&'static Record> {
    let (mapping, _) = Mapping::open(id, LEN, uid).ok()?;
    claim_again(&mapping, process, command)
}

fn claim_again(mapping: &Mapping, (pid, began): (u32, u64), command: [u8; 16]) -> Option<&'static Record> {
    let is_mine = |it: &&Record| it.pid.load(Acquire) == pid && it.began.load(Relaxed) == began;
    let claimed = (claims(mapping).load(Acquire) as usize).min(RECORDS);
    let mine = || (0..claimed).rev().map(|index| record(mapping, index)).find(is_mine).filter(|_| began != 0);
    let fresh = || {
        let index = claims(mapping).fetch_add(1, Relaxed) as usize;
        (index < RECORDS).then(|| record(mapping, index))
    };
    let record = mine().or_else(fresh)?;
    let (front, back) = command.split_at(8);
    record.command[0].store(u64::from_ne_bytes(front.try_into().ok()?), Relaxed);
    record.command[1].store(u64::from_ne_bytes(back.try_into().ok()?), Relaxed);
    record.began.store(began, Relaxed);
    record.pid.store(pid, Release);
    Some(record)
}

fn read(record: &Record) -> Option<ProcessStats> {
    let pid = record.pid.load(Acquire);
    if pid == 0 {
        return None;
    }
    let name: Vec<u8> =
        record.command.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes()).take_while(|&b| b != 0).collect();
    let reasons = Reason::ALL.iter().map(|&r| (r, record.reasons[r as usize].load(Relaxed))).filter(|&(_, n)| n > 0);
    Some(ProcessStats {
        pid,
        command: String::from_utf8_lossy(&name).into_owned(),
        connections: record.connections.load(Relaxed),
        fast: record.fast.load(Relaxed),
        fast_sent: record.fast_sent.load(Relaxed),
        fast_received: record.fast_received.load(Relaxed),
        kernel_sent: record.kernel_sent.load(Relaxed),
        kernel_received: record.kernel_received.load(Relaxed),
        bells: record.bells.load(Relaxed),
        sleeps: record.sleeps.load(Relaxed),
        unfollowed: record.unfollowed.load(Relaxed),
        reasons: reasons.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_counts_is_read() {
        let region = Region::create().unwrap();
        let mut name = [0; 16];
        name[..5].copy_from_slice(b"redis");
        let record = claim(region.id(), crate::kernel::user_id(), (77, 0), name).unwrap();
        record.connections.fetch_add(3, Relaxed);
        record.count_reason(Reason::Remote);
        let all = region.processes();
        assert_eq!((all.len(), all[0].pid, all[0].command.as_str(), all[0].connections), (1, 77, "redis", 3));
        assert_eq!(all[0].reasons, [(Reason::Remote, 1)]);
    }

    #[test]
    fn a_program_that_another_executes_goes_on_in_that_ones_record() {
        let region = Region::create().unwrap();
        let claim = |process, name: &[u8; 2]| {
            let mut command = [0; 16];
            command[..2].copy_from_slice(name);
            claim_again(&region.mapping, process, command).unwrap().connections.fetch_add(1, Relaxed);
        };
        claim((77, 5), b"sh");
        claim((78, 5), b"ls");
        claim((77, 5), b"nc");
        claim((77, 6), b"ps");
        claim((79, 0), b"vi");
        claim((79, 0), b"ed");
        let all: Vec<_> = region.processes().into_iter().map(|it| (it.command, it.connections)).collect();
        let expected = [("nc", 2), ("ls", 1), ("ps", 1), ("vi", 1), ("ed", 1)];
        assert_eq!(all, expected.map(|(name, connections)| (name.to_string(), connections)));
    }

    #[test]
    fn processes_beyond_the_room_are_counted_as_such() {
        let region = Region::create().unwrap();
        let room = (0..RECORDS + 3).filter(|_| claim_again(&region.mapping, (77, 0), [0; 16]).is_some()).count();
        assert_eq!((room, region.processes().len(), region.uncounted()), (RECORDS, RECORDS, 3));
    }
}
