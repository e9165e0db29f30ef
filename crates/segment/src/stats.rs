//! The counters of `underpass run --stats`: one row for each process, written by the library and read by the command.
//!
//! A process takes a row when it first counts a connection, so that the many processes of a run that have none leave
//! room for those that do. Rows are taken in order and never given back, by one compare-and-swap each: any number of
//! threads and signal handlers of a process that look for its row at once find the same one.
#![allow(unsafe_code, reason = "lays records over shared memory")]

use crate::raw::Errno;
use crate::reason::Reason;
use crate::sync::{AcqRel, Acquire, AtomicU64, Relaxed};
use crate::sysv::{self, Mapping};

const RECORDS: usize = 1024;
const REASONS: usize = 40;
/// Regions that are found at most.
const MOST_REGIONS: usize = 1024;
/// The processes that find no row count in one more, which nobody reads. The length is also the layout's mark.
const LEN: usize = size_of::<Header>() + (RECORDS + 1) * size_of::<Record>();
const _: () = assert!(Reason::ALL.len() <= REASONS);

#[repr(C, align(64))]
struct Header {
    /// Program starts that loaded the library and reached the counters.
    programs: AtomicU64,
    /// Processes that found no row.
    uncounted: AtomicU64,
}

/// Counters of one process. All count up.
#[repr(C, align(64))]
pub struct Record {
    /// First word of the [`Process`]; 0: the row is free.
    owner: AtomicU64,
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
    /// Times that a poll, a select or an epoll set slept in the kernel with a connection of which the library knows.
    pub poll_sleeps: AtomicU64,
}

/// A process, as its row names it: number and beginning in one word, then the command name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(pub [u64; 3]);

impl Process {
    /// Process `pid`, which began at a time as /proc has it (0: not known) and has this command name.
    pub fn new(pid: u32, began: u64, command: [u8; 16]) -> Process {
        let owner = u64::from(pid) << BEGAN_BITS | began & ((1 << BEGAN_BITS) - 1);
        let word = |at: usize| u64::from_ne_bytes(core::array::from_fn(|i| command[at + i]));
        Process([owner, word(0), word(8)])
    }
}

/// A process number takes at most 22 bits (PID_MAX_LIMIT); the rest holds clock ticks of 1,394 years.
const BEGAN_BITS: u32 = 42;

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
    /// When it began, in clock ticks as /proc has it; 0: not known.
    pub began: u64,
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
    /// Times that a poll, a select or an epoll set slept in the kernel with a connection of which the library knows.
    pub poll_sleeps: u64,
    /// Connections of which the bytes are not counted.
    pub unfollowed: u64,
    /// For the connections that never were fast, or were ended because the other end broke the rules: why, and how
    /// many.
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

    /// The regions of user `uid` that are in use, each with the process that made it, as numbered in this PID namespace
    /// (0: it has no number here). They can be read only.
    ///
    /// # Errors
    /// What shmat says, except that a region was gone meanwhile.
    pub fn all(uid: u32) -> std::io::Result<Vec<(Region, u32)>> {
        let mut ids = [0; MOST_REGIONS];
        let found = sysv::find(LEN, uid, &mut ids);
        let open = |&id: &i32| match Mapping::open_to_read(id, LEN, uid) {
            Ok(mapping) => {
                let region = Region { mapping };
                Some(Mapping::creator_of(id, LEN, uid).map(|creator| (region, creator.max(0) as u32)))
            }
            // EACCES: the number is another segment's by now.
            Err(Errno(libc::EINVAL | libc::EIDRM | libc::EACCES)) => None,
            Err(other) => Some(Err(other)),
        };
        let all: Result<Vec<(Region, u32)>, Errno> = ids[..found].iter().filter_map(open).collect();
        all.map_err(|Errno(e)| std::io::Error::from_raw_os_error(e))
    }

    /// Number to hand on in `UNDERPASS_STATS`.
    pub fn id(&self) -> i32 {
        self.mapping.id()
    }

    /// The processes that have counted a connection, in the order in which they first did.
    pub fn processes(&self) -> Vec<ProcessStats> {
        (0..RECORDS).map_while(|index| read(record(&self.mapping, index))).collect()
    }

    /// Program starts that loaded the library and reached these counters. A process that executes another program
    /// starts two.
    pub fn programs(&self) -> u64 {
        header(&self.mapping).programs.load(Relaxed)
    }

    /// Processes that had a connection when no row was free any more.
    pub fn uncounted(&self) -> u64 {
        header(&self.mapping).uncounted.load(Relaxed)
    }

    /// Whether another process of this user can reach the counters by their number, as the library does.
    ///
    /// # Errors
    /// What the system says: some sandboxes let nobody attach a System V segment that is marked for removal.
    pub fn try_out(&self) -> std::io::Result<()> {
        let (again, _) = Mapping::open(self.id(), LEN, crate::kernel::user_id())
            .map_err(|Errno(e)| std::io::Error::from_raw_os_error(e))?;
        // SAFETY: nobody has looked into it.
        unsafe { again.detach() };
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `processes` hands out copies only.
        unsafe { self.mapping.detach() };
    }
}

/// The library's side of a [`Region`]. It stays attached to the end of the process and of those that it forks.
#[derive(Clone, Copy, Debug)]
pub struct Counters {
    mapping: Mapping,
}

impl Counters {
    /// The counters in region `id` of user `uid`, for a program that has just started. `None` if they cannot be
    /// reached.
    pub fn open(id: i32, uid: u32) -> Option<Counters> {
        let (mapping, _) = Mapping::open(id, LEN, uid).ok()?;
        header(&mapping).programs.fetch_add(1, Relaxed);
        Some(Counters { mapping })
    }

    /// The row of a process, which it takes with the first call. A program that another executes goes on in that one's.
    /// Signal handlers may interrupt it.
    pub fn row(&self, Process([me, command @ ..]): Process) -> &'static Record {
        // Free before, this process's before, or taken for it by another thread meanwhile.
        let is_mine = |row: &&Record| {
            let owner = match row.owner.load(Acquire) {
                0 => row.owner.compare_exchange(0, me, AcqRel, Acquire).err().unwrap_or(me),
                owner => owner,
            };
            owner == me
        };
        let row = (0..RECORDS).map(|index| record(&self.mapping, index)).find(is_mine).unwrap_or_else(|| {
            header(&self.mapping).uncounted.fetch_add(1, Relaxed);
            record(&self.mapping, RECORDS)
        });
        for (to, word) in row.command.iter().zip(command) {
            to.store(word, Relaxed);
        }
        row
    }
}

fn header(mapping: &Mapping) -> &'static Header {
    // SAFETY: the region begins with it; the library never detaches it, `Region` hands out no reference.
    unsafe { &*(mapping.base().as_ptr() as *const Header) }
}

fn record(mapping: &Mapping, index: usize) -> &'static Record {
    // SAFETY: index <= RECORDS; zeroed memory is a free row; everything in it is atomic. For how long, see `header`.
    unsafe { &*(mapping.base().as_ptr().add(size_of::<Header>() + index * size_of::<Record>()) as *const Record) }
}

fn read(record: &Record) -> Option<ProcessStats> {
    let owner = record.owner.load(Acquire);
    if owner == 0 {
        return None;
    }
    let name: Vec<u8> =
        record.command.iter().flat_map(|w| w.load(Relaxed).to_ne_bytes()).take_while(|&b| b != 0).collect();
    let reasons = Reason::ALL.iter().map(|&r| (r, record.reasons[r as usize].load(Relaxed))).filter(|&(_, n)| n > 0);
    Some(ProcessStats {
        pid: (owner >> BEGAN_BITS) as u32,
        began: owner & ((1 << BEGAN_BITS) - 1),
        command: String::from_utf8_lossy(&name).into_owned(),
        connections: record.connections.load(Relaxed),
        fast: record.fast.load(Relaxed),
        fast_sent: record.fast_sent.load(Relaxed),
        fast_received: record.fast_received.load(Relaxed),
        kernel_sent: record.kernel_sent.load(Relaxed),
        kernel_received: record.kernel_received.load(Relaxed),
        bells: record.bells.load(Relaxed),
        sleeps: record.sleeps.load(Relaxed),
        poll_sleeps: record.poll_sleeps.load(Relaxed),
        unfollowed: record.unfollowed.load(Relaxed),
        reasons: reasons.collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(region: &Region) -> Counters {
        Counters::open(region.id(), crate::kernel::user_id()).unwrap()
    }

    fn process(pid: u32, began: u64, name: &str) -> Process {
        let mut command = [0; 16];
        command[..name.len()].copy_from_slice(name.as_bytes());
        Process::new(pid, began, command)
    }

    #[test]
    fn what_a_process_counts_is_read() {
        let region = Region::create().unwrap();
        let record = counters(&region).row(process(4_194_303, 1 << 41, "redis-benchmark"));
        record.connections.fetch_add(3, Relaxed);
        record.count_reason(Reason::Remote);
        let all = region.processes();
        assert_eq!((all.len(), all[0].pid, all[0].connections), (1, 4_194_303, 3));
        assert_eq!(all[0].command, "redis-benchmark");
        assert_eq!(all[0].reasons, [(Reason::Remote, 1)]);
    }

    #[test]
    fn a_region_is_found_while_somebody_has_it() {
        let region = Region::create().unwrap();
        counters(&region).row(process(77, 5, "found")).poll_sleeps.fetch_add(2, Relaxed);
        let user = crate::kernel::user_id();
        let mine = |id: i32| {
            let all = Region::all(user).unwrap();
            all.into_iter().find(|(it, _)| it.id() == id).map(|(it, creator)| (creator, it.processes()))
        };
        let id = region.id();
        let Some((creator, processes)) = mine(id) else { panic!("it is in use") };
        assert_eq!((creator, processes), (std::process::id(), region.processes()));
        assert_eq!((region.processes()[0].began, region.processes()[0].poll_sleeps), (5, 2));
        assert!(Region::all(user + 1).unwrap().iter().all(|(it, _)| it.id() != id));
    }

    /// Fails if `Counters::open` takes a row.
    #[test]
    fn a_process_that_counts_nothing_takes_no_row() {
        let region = Region::create().unwrap();
        assert_eq!(region.programs(), 0);
        for _ in 0..3 {
            counters(&region);
        }
        assert_eq!((region.programs(), region.processes().len()), (3, 0));
    }

    #[test]
    fn a_program_that_another_executes_goes_on_in_that_ones_row() {
        let region = Region::create().unwrap();
        let count = |pid, began, name| {
            counters(&region).row(process(pid, began, name)).connections.fetch_add(1, Relaxed);
        };
        count(77, 5, "sh");
        count(78, 5, "ls");
        count(77, 5, "nc");
        count(77, 6, "ps");
        let all: Vec<_> = region.processes().into_iter().map(|it| (it.command, it.connections)).collect();
        let expected = [("nc", 2), ("ls", 1), ("ps", 1)];
        assert_eq!(all, expected.map(|(name, connections)| (name.to_string(), connections)));
    }

    /// Fails if `Counters::row` stores the owner instead of comparing and swapping.
    #[test]
    fn threads_that_take_the_row_of_their_process_at_once_share_it() {
        let region = Region::create().unwrap();
        let counters = counters(&region);
        let begin = std::sync::Barrier::new(4);
        let take = |pid: u32| {
            for began in 1..=200 {
                begin.wait();
                counters.row(process(pid, began, "threads")).connections.fetch_add(1, Relaxed);
            }
        };
        std::thread::scope(|scope| [7, 7, 8, 8].map(|pid| scope.spawn(move || take(pid))).map(|it| it.join().unwrap()));
        let all = region.processes();
        assert_eq!((all.len(), region.uncounted()), (400, 0));
        assert!(all.iter().all(|it| it.connections == 2), "{all:?}");
    }

    #[test]
    fn processes_beyond_the_room_are_counted_as_such() {
        let region = Region::create().unwrap();
        for pid in 1..=RECORDS as u32 + 3 {
            counters(&region).row(process(pid, 5, "many")).connections.fetch_add(1, Relaxed);
        }
        let all = region.processes();
        assert_eq!((all.len(), region.uncounted()), (RECORDS, 3));
        assert!(all.iter().all(|it| it.connections == 1));
    }

    #[test]
    fn the_counters_of_another_layout_are_not_opened() {
        let before = Mapping::create(LEN - 4096).unwrap();
        assert!(Counters::open(before.id(), crate::kernel::user_id()).is_none());
        // SAFETY: nobody has looked into it.
        unsafe { before.detach() };
    }
}
