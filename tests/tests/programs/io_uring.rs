//! io_uring: what sets one up past the library has none of its connections on the fast path, and what can be refused
//! is.

use std::path::PathBuf;
use underpass_segment::reason::Reason;
use underpass_tests::library::is_kernel_only;
use underpass_tests::stage::{Stage, compile, skip};

/// A program's output; how many of its ends were fast; how many stayed on kernel TCP since it may have a ring; and how
/// many ends it had in all.
type Outcome = (String, u64, u64, u64);

struct Rings {
    program: PathBuf,
    library: PathBuf,
}

impl Rings {
    /// Compiles the program by `flags`, beside a library that passes for liburing or for a plugin by its `name`; `None`
    /// if there is no io_uring here.
    fn of(stage: &Stage, name: &str, flags: &[&str]) -> Option<Rings> {
        let (program, library) = (stage.path("uring"), stage.path(name));
        compile("uring.c", &library, &["-DRING_LIBRARY", "-shared", "-fPIC"]);
        let linked = library.display().to_string();
        let link = ["-DLINKED", "-Wl,--no-as-needed", &linked];
        let flags = if flags == ["-DLINKED"] { &link } else { flags };
        compile("uring.c", &program, flags);
        let rings = Rings { program, library };
        let there = stage.output(stage.plain(&rings.program.display().to_string(), rings.words("syscall")));
        if there != "set up\n" {
            skip("there is no io_uring here");
            return None;
        }
        Some(rings)
    }

    fn words<'a>(&'a self, way: &'a str) -> [&'a str; 2] {
        [way, self.library.to_str().expect("a plain path")]
    }

    fn run(&self, stage: &Stage, way: &str, io_uring: &str) -> Outcome {
        let settings = [("UNDERPASS_IO_URING", io_uring)];
        let said = stage.output(stage.tuned(&self.program.display().to_string(), self.words(way), &settings));
        let process = stage.run.processes().into_iter().last().expect("it was counted");
        let reason = process.reasons.iter().find(|(it, _)| *it == Reason::Asynchronous);
        (said, process.fast, reason.map_or(0, |(_, count)| *count), process.connections)
    }
}

/// Ends of a program's connections: both are its own.
const ENDS: u64 = 18;

#[test]
fn a_ring_that_comes_past_the_library_is_refused() {
    if is_kernel_only() {
        return;
    }
    for (way, flags) in [("syscall", &[][..]), ("liburing", &["-DLINKED"])] {
        let Some(stage) = Stage::with(&["cc"]) else { return };
        let Some(rings) = Rings::of(&stage, "liburing.so.2", flags) else { return };
        for setting in ["auto", "deny"] {
            assert_eq!(rings.run(&stage, way, setting), ("refused\n".into(), ENDS, 0, ENDS), "{way} {setting}");
        }
        // The two ends that were fast before count as fast.
        let allowed = rings.run(&stage, way, "allow");
        assert_eq!(allowed, ("set up\n".into(), 2, ENDS - 2, ENDS), "{way} allow");
        stage.finish();
    }
}

/// The program has no filter, since the command did not start it itself: it is a shell's child, say.
#[test]
fn a_program_that_can_set_up_a_ring_by_itself_stays_on_kernel_tcp() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let Some(rings) = Rings::of(&stage, "plugin.so", &["-DOWN"]) else { return };
    for way in ["none", "own"] {
        let said = rings.run(&stage, way, "auto");
        assert!(is_kernel_only() || said == ("set up\n".into(), 0, ENDS, ENDS), "{way}: {said:?}");
    }
    stage.finish();
}

/// Both by its code and by its ring: a library that passes for liburing is not looked into.
#[test]
fn a_library_that_is_opened_later_and_sets_up_a_ring_is_noticed() {
    for name in ["plugin.so", "liburing-plugin.so"] {
        let Some(stage) = Stage::with(&["cc"]) else { return };
        let Some(rings) = Rings::of(&stage, name, &[]) else { return };
        let said = rings.run(&stage, "plugin", "auto");
        assert!(is_kernel_only() || said == ("set up\n".into(), 2, ENDS - 2, ENDS), "{name}: {said:?}");
        stage.finish();
    }
}
