//! What programs leave on the machine.

use std::collections::BTreeSet;
use std::fs;

use underpass_segment::sysv;

/// Names in /dev/shm now, but for those of PostgreSQL and of semaphores (sem_overview(7)): they come and go with other
/// programs on the machine, and Underpass opens no semaphore.
pub fn shared_files() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with("PostgreSQL.") && !name.starts_with("sem.")).collect()
}

/// Lines of /proc/sysvipc/shm for Underpass's segments that one of `pids` made and that outlive them. A segment that a
/// process of another run has attached by now is in use, not left.
pub fn segments_of(pids: &[u32]) -> Vec<String> {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    let is_ours = |line: &&str| column(line, 3).is_some_and(|size| sysv::is_ours(size as usize));
    let is_theirs = |line: &&str| column(line, 4).is_some_and(|pid| pids.contains(&pid));
    let left = table.lines().filter(is_ours).filter(is_theirs).filter(|line| {
        let users = column(line, 1).map(users_of).unwrap_or_default();
        users.is_empty() || users.iter().any(|pid| pids.contains(pid))
    });
    left.map(String::from).collect()
}

/// Whether there is a capture buffer that `pid` has made, even if only other processes have it attached. The process
/// may have made the directory too, which is for all and much smaller.
pub fn has_buffer_of(pid: u32) -> bool {
    const LEAST: u32 = 32 << 20;
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    table.lines().any(|line| column(line, 3) >= Some(LEAST) && column(line, 4) == Some(pid))
}

/// A number in a line of /proc/sysvipc/shm, whose columns are: key, id, permissions, size, creator's process number,
/// ...
fn column(line: &str, index: usize) -> Option<u32> {
    line.split_whitespace().nth(index).and_then(|text| text.parse().ok())
}

/// Processes that have the System V segment `id` attached.
fn users_of(id: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    // Columns: addresses, permissions, offset, device, inode (here the id), name.
    let is_it = |line: &str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns.len() > 5 && columns[4].parse() == Ok(id) && columns[5].starts_with("/SYSV")
    };
    pids.filter(|pid| fs::read_to_string(format!("/proc/{pid}/maps")).is_ok_and(|maps| maps.lines().any(is_it)))
        .collect()
}
