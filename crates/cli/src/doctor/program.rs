//! What stands in the way of a program that is yet to be run.

use std::ffi::OsStr;
use std::path::Path;

use super::Finding;
use crate::run::inspect::{self, Obstacle};
use crate::run::program::{self, ProgramError};

/// The program that `underpass run` would run under this name.
pub fn look(name: &OsStr) -> Result<(String, Vec<Finding>), ProgramError> {
    let path = program::find(name)?;
    let image = program::image(name, &path)?;
    let mut findings = Vec::new();
    if image.path != path {
        findings.push(Finding::fine("script", format!("{} is run by {}", path.display(), image.path.display())));
    }
    findings.extend(file(&image.path, &image.path.display().to_string()));
    Ok((name.to_string_lossy().into_owned(), findings))
}

/// The program in the file at `path`, which is shown as `shown`.
pub fn file(path: &Path, shown: &str) -> Vec<Finding> {
    let mut findings = vec![match inspect::obstacle(path) {
        None if !inspect::is_elf(path) => Finding::mind(
            "program",
            format!(
                "{shown}: nothing can be told of it, as it cannot be read, is cut off, or is run by something else \
                 (binfmt_misc)"
            ),
            "ask about the program that runs it, by name",
        ),
        None => Finding::fine("program", format!("{shown} loads libraries and goes through the GNU C library")),
        Some(obstacle) => Finding::bars("program", format!("{shown}: {obstacle}"), remedy(&obstacle)),
    }];
    if inspect::libraries(path).iter().any(|name| name.starts_with("liburing.so")) {
        findings.push(Finding::mind(
            "io_uring",
            "the program is linked with liburing",
            "none needed if it can do without: it is told that the system has none, unless io_uring=allow is set",
        ));
    }
    if inspect::obstacle(path).is_none() && inspect::sets_up_io_uring_itself(path) == Some(true) {
        findings.push(Finding::mind(
            "io_uring",
            "the program sets up io_uring by system calls of its own",
            "none needed if it can do without: `underpass run` denies them by a seccomp filter, unless io_uring=allow \
             is set",
        ));
    }
    findings
}

fn remedy(obstacle: &Obstacle) -> &'static str {
    match obstacle {
        Obstacle::Static => "use a build that is linked dynamically",
        Obstacle::Go => "none: its other end may run under Underpass all the same, and loses nothing",
        Obstacle::Privileged => "start it as the user that it would become, from a copy of the file without those bits",
        Obstacle::Bits => "use a 64-bit build",
        Obstacle::Architecture => "use a build for this machine's processor",
        Obstacle::Libc(_) => "use a build for the GNU C library",
        Obstacle::Sanitizer => "set ASAN_OPTIONS=verify_asan_link_order=0, or use a build without it",
    }
}
