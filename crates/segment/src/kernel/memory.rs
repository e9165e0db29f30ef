//! Whether the program's pointers are valid, and how much memory is left.
#![allow(unsafe_code, reason = "has the kernel look at addresses")]

use super::proc::{LONGEST, for_each_short_line};
use crate::raw::{Errno, is_quiet, syscall};

/// Whether this process has memory there.
#[cold]
pub fn is_mapped<T>(address: *const T) -> bool {
    const PAGE: usize = 4096;
    let mut resident = 0u8;
    let page = address as usize & !(PAGE - 1);
    // SAFETY: the kernel writes one byte for one page.
    !is_quiet() && unsafe { syscall(libc::SYS_mincore, [page, 1, &raw mut resident as usize, 0, 0, 0]) }.is_ok()
}

/// Whether the word at `at`, which is not null, can be read, as far as the kernel says.
#[cold]
pub fn is_readable(at: *const u64) -> bool {
    /// An operation that rt_sigprocmask(2) does not know: the kernel reads the mask, and then refuses.
    const NO_CHANGE: usize = usize::MAX;
    let arguments = [NO_CHANGE, at as usize, 0, size_of::<u64>(), 0, 0];
    // SAFETY: the kernel checks what it reads, and changes nothing.
    unsafe { syscall(libc::SYS_rt_sigprocmask, arguments) != Err(Errno(libc::EFAULT)) }
}

/// Whether the word at `at`, which is not null, can be written, as far as the kernel says.
#[cold]
pub fn is_writable(at: *const u64) -> bool {
    /// See FUTEX_WAKE_OP in futex(2): adds 0 to the word, in one step, and wakes nobody unless that was below -2048.
    const ADD_NOTHING: usize = (libc::FUTEX_OP_ADD as usize) << 28 | (libc::FUTEX_OP_CMP_LT as usize) << 24 | 0x800;
    let nobody = 0u32;
    let operation = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG) as usize;
    // SAFETY: the kernel checks what it writes to, and the word stays what it is; nobody waits for one of this frame.
    let answer =
        unsafe { syscall(libc::SYS_futex, [&raw const nobody as usize, operation, 0, 0, at as usize, ADD_NOTHING]) };
    answer != Err(Errno(libc::EFAULT))
}

/// Where the kernel tells of memory cgroups.
struct Cgroups<'a> {
    mount: &'a str,
    /// The files with limits, of which the lowest counts. Above a limit the kernel kills a process or, above
    /// `memory.high`, slows all processes of the cgroup down.
    limits: &'static [&'static str],
    used: &'static str,
    /// The used memory that the kernel frees before it kills a process: pages of files.
    reclaimable: [&'static str; 2],
}

const UNIFIED: Cgroups<'static> = Cgroups {
    mount: "/sys/fs/cgroup",
    limits: &["memory.max", "memory.high"],
    used: "memory.current",
    reclaimable: ["inactive_file ", "active_file "],
};
const BY_CONTROLLER: Cgroups<'static> = Cgroups {
    mount: "/sys/fs/cgroup/memory",
    limits: &["memory.limit_in_bytes"],
    used: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file ", "total_active_file "],
};

impl Cgroups<'_> {
    /// Whether the cgroup `path` and all cgroups above it have `bytes` left over. A file that cannot be read is no
    /// limit: in a container, `path` may be a path of the host, and the mounted folder the container's own.
    fn have_left_over(&self, path: &str, bytes: u64) -> bool {
        let mut rest = Some(path.trim_end_matches('/'));
        while let Some(at) = rest {
            if !self.has_left_over(at, bytes) {
                return false;
            }
            rest = at.rfind('/').map(|end| &at[..end]);
        }
        true
    }

    fn has_left_over(&self, path: &str, bytes: u64) -> bool {
        let number = |file: &str| {
            let mut number = None;
            let take = |line: &str| number = number.or(line.parse::<u64>().ok());
            let _ = for_each_short_line(format_args!("{}{path}/{file}\0", self.mount), take);
            number
        };
        let Some(limit) = self.limits.iter().filter_map(|file| number(file)).min() else { return true };
        let Some(used) = number(self.used) else { return true };
        if limit.saturating_sub(used) >= bytes {
            return true;
        }
        let mut back = 0u64;
        let _ = for_each_short_line(format_args!("{}{path}/memory.stat\0", self.mount), |line| {
            let amount = self.reclaimable.iter().find_map(|name| line.strip_prefix(name)?.parse().ok());
            back = back.saturating_add(amount.unwrap_or(0));
        });
        limit.saturating_sub(used.saturating_sub(back)) >= bytes
    }
}

/// Whether the memory cgroups of this process have `bytes` left over, as far as can be read.
#[cold]
pub fn is_left_by_cgroups(bytes: u64) -> bool {
    is_left("/proc/self/cgroup", [&UNIFIED, &BY_CONTROLLER], bytes)
}

/// Whether the memory cgroups in `listing`, which is like that of proc_pid_cgroup(5), have `bytes` left over.
#[inline(always)]
fn is_left(listing: &str, [unified, by_controller]: [&Cgroups<'_>; 2], bytes: u64) -> bool {
    let (mut path, mut len, mut kind) = ([0u8; LONGEST], 0, unified);
    let _ = for_each_short_line(format_args!("{listing}\0"), |line| {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(at)) = (parts.next(), parts.next(), parts.next()) else { return };
        let has_memory = controllers.split(',').any(|it| it == "memory");
        if (has_memory || number == "0" && len == 0)
            && let Some(to) = path.get_mut(..at.len())
        {
            to.copy_from_slice(at.as_bytes());
            (len, kind) = (at.len(), if has_memory { by_controller } else { unified });
        }
    });
    core::str::from_utf8(&path[..len]).map_or(true, |path| kind.have_left_over(path, bytes))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::process_id;
    use super::*;
    use std::fs;

    #[test]
    fn memory_is_asked_about_without_a_change() {
        let map = |protection| {
            let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as usize;
            // SAFETY: a mapping of our own.
            unsafe { syscall(libc::SYS_mmap, [0, 4096, protection as usize, kind, usize::MAX, 0]) }.unwrap()
                as *const u64
        };
        let ways = |at| (is_readable(at), is_writable(at));
        let page = map(libc::PROT_READ | libc::PROT_WRITE).cast_mut();
        // SAFETY: it can be written.
        unsafe { page.write(0x0123_4567_89ab_cdef) };
        assert_eq!(ways(page), (true, true));
        // SAFETY: as above.
        assert_eq!(unsafe { page.read() }, 0x0123_4567_89ab_cdef);
        assert_eq!(ways(map(libc::PROT_READ)), (true, false));
        assert_eq!(ways(map(libc::PROT_NONE)), (false, false));
        assert_eq!(ways((usize::MAX & !7) as *const u64), (false, false), "the kernel's own");
    }

    #[test]
    fn the_tightest_cgroup_decides() {
        let mount = std::env::temp_dir().join(format!("underpass-cgroups-{}", process_id()));
        let set = |folder: &str, files: &[(&str, &str)]| {
            let folder = mount.join(folder);
            fs::create_dir_all(&folder).unwrap();
            files.iter().for_each(|(file, text)| fs::write(folder.join(file), format!("{text}\n")).unwrap());
        };
        let cgroups = Cgroups { mount: mount.to_str().unwrap(), ..UNIFIED };
        let left =
            |path: &str, bytes: u64| cgroups.have_left_over(path, bytes) && !cgroups.have_left_over(path, bytes + 1);
        assert!(cgroups.have_left_over("/none/here", u64::MAX), "nothing can be read");
        set("slice/inner", &[("memory.max", "max"), ("memory.current", "5000")]);
        assert!(cgroups.have_left_over("/slice/inner", u64::MAX), "no limit");
        set("slice", &[("memory.max", "9000"), ("memory.current", "7000")]);
        assert!(left("/slice/inner", 2000) && left("/slice", 2000) && left("/slice/gone/", 2000));
        set("slice", &[("memory.stat", "anon 9\ninactive_file 400\nactive_file 70\nslab 9")]);
        assert!(left("/slice/inner", 2470), "pages of files come back");
        set("slice/inner", &[("memory.max", "5100")]);
        assert!(left("/slice/inner", 100) && left("/slice", 2470));
        set("slice/inner", &[("memory.high", "5030")]);
        assert!(left("/slice/inner", 30), "above it, the process is slowed down");
        set("slice/inner", &[("memory.max", "max")]);
        assert!(left("/slice/inner", 30), "the only limit");
        set("slice/inner", &[("memory.max", "5010")]);
        assert!(left("/slice/inner", 10), "the lower one");
        set("slice/inner", &[("memory.max", "4000"), ("memory.high", "max")]);
        assert!(left("/slice/inner", 0), "above its limit");
        set("", &[("memory.max", "50"), ("memory.current", "10")]);
        assert!(left("/slice", 40) && left("/", 40) && left("", 40), "a container's own");
        assert!(
            cgroups.have_left_over(&"/x".repeat(LONGEST), 40) && !cgroups.have_left_over(&"/x".repeat(LONGEST), 41),
            "too long a name"
        );
        fs::remove_dir_all(mount).unwrap();
    }

    /// Listings as the kernel, a container and a hybrid of both versions show them, and listings that none of them
    /// should show.
    #[test]
    fn the_cgroup_is_found_in_every_layout() {
        let root = std::env::temp_dir().join(format!("underpass-cgroup-layouts-{}", process_id()));
        let (listing, mounts) = (root.join("cgroup"), ["unified", "memory"].map(|it| root.join(it)));
        let set = |folder: &str, files: &[(&str, &str)]| {
            fs::create_dir_all(root.join(folder)).unwrap();
            files.iter().for_each(|(file, text)| fs::write(root.join(folder).join(file), format!("{text}\n")).unwrap());
        };
        let left = |text: &str, bytes: u64| {
            fs::write(&listing, format!("{text}\n")).unwrap();
            let [unified, memory] = mounts.each_ref().map(|it| it.to_str().unwrap());
            let kinds = [&Cgroups { mount: unified, ..UNIFIED }, &Cgroups { mount: memory, ..BY_CONTROLLER }];
            is_left(listing.to_str().unwrap(), kinds, bytes)
        };
        let leaves = |text: &str, bytes: u64| left(text, bytes) && !left(text, bytes + 1);
        let service = "unified/system.slice/web.service";
        set(service, &[("memory.max", "1000"), ("memory.current", "400")]);
        set("unified/system.slice", &[("memory.max", "max"), ("memory.current", "400")]);
        set("memory/a", &[("memory.limit_in_bytes", "70"), ("memory.usage_in_bytes", "20")]);
        assert!(leaves("0::/system.slice/web.service", 600), "the one of version 2");
        assert!(leaves("0::/system.slice/web.service/gone (deleted)", 600), "removed meanwhile, with a process in it");
        assert!(left("0::/", u64::MAX) && left("0::/../../elsewhere", u64::MAX), "a namespace's own root has no limit");
        for text in ["4:memory:/a\n0::/system.slice/web.service", "0::/system.slice/web.service\n4:cpu,memory:/a"] {
            assert!(leaves(text, 50), "of a hybrid, the one of version 1: {text}");
        }
        assert!(leaves("1:name=systemd:/b\n3:cpu:/b\n0::/system.slice/web.service", 600));
        for text in ["", "0", "0::", ":::::", "memory", "4:memory", "x:y:z", "0:\n\0::", "\u{fffd}:memory:"] {
            assert!(left(text, u64::MAX), "{text:?} says nothing");
        }
        assert!(leaves(&format!("{}\n0::/system.slice/web.service", "9:x:/y".repeat(LONGEST)), 600), "a line too long");

        // Contents of the files: a limit that is not a number is no limit.
        for (limit, used, left_over) in [
            ("max", "0", None),
            ("18446744073709551615", "18446744073709551615", Some(0)),
            ("18446744073709551615", "0", None),
            ("18446744073709551616", "0", None),
            ("99999999999999999999999999999999999999", "7", None),
            ("9223372036854771712", "0", Some(9_223_372_036_854_771_712)),
            ("0", "0", Some(0)),
            ("0", "18446744073709551615", Some(0)),
            ("-1", "5", None),
            ("", "", None),
            ("0x100", "1", None),
            ("100 ", "1", None),
            ("100", "garbage", None),
            ("1e9", "1", None),
            ("\0\0\0", "1", None),
            ("garbage\n80\n90", "1", Some(79)),
        ] {
            set(service, &[("memory.max", limit), ("memory.current", used)]);
            let said = "0::/system.slice/web.service";
            let is_so = left_over.map_or_else(|| left(said, u64::MAX), |bytes| leaves(said, bytes));
            assert!(is_so, "{limit:?} {used:?}");
        }
        fs::remove_file(root.join(service).join("memory.current")).unwrap();
        set(service, &[("memory.max", "1")]);
        assert!(left("0::/system.slice/web.service", u64::MAX), "nobody knows what is used");
        set(service, &[("memory.max", "100"), ("memory.current", "100")]);
        for (stat, back) in [
            ("inactive_file 18446744073709551615\nactive_file 18446744073709551615", 100),
            ("inactive_file\nactive_file 3 4\ninactive_file x\nfile 50", 0),
            ("total_inactive_file 40\ninactive_file 30", 30),
        ] {
            set(service, &[("memory.stat", stat)]);
            assert!(leaves("0::/system.slice/web.service", back), "{stat}");
        }
        fs::remove_dir_all(root).unwrap();
    }
}
