//! What programs leave on the machine.

use std::collections::BTreeSet;
use std::fs;

/// Names in /dev/shm now. PostgreSQL's own come and go with any server on the machine.
pub fn shared_files() -> BTreeSet<String> {
    let entries = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with("PostgreSQL.")).collect()
}

/// Lines of /proc/sysvipc/shm for the segments that one of `pids` made and that still exist.
pub fn segments_of(pids: &[u32]) -> Vec<String> {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap_or_default();
    // Columns: key, id, permissions, size, creator's process number, ...
    let made_by = |line: &&str| line.split_whitespace().nth(4).and_then(|pid| pid.parse().ok());
    table.lines().skip(1).filter(|line| made_by(line).is_some_and(|pid| pids.contains(&pid))).map(String::from).collect()
}
