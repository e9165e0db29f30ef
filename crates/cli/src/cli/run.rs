//! Arguments of `underpass run`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::program::ProgramArguments;

/// Run a program, its TCP connections on the fast path where possible
///
/// The program is started as if it had been run directly: its exit code, its signals and the terminal are its own.
/// Programs that it starts are run under Underpass too. Both ends of a connection have to be, or it stays on kernel
/// TCP.
///
/// A program that cannot be accelerated (statically linked, written in Go, setuid, 32-bit, of another C library) is run
/// all the same, after one line on standard error that says why; its connections are ordinary ones.
///
/// io_uring bypasses the library, so setting one up fails with ENOSYS ("not implemented") and programs fall back to
/// epoll, unless io_uring=allow is set. The library does that where the program uses liburing or libc. Where the
/// program, or a library that it is linked with, makes the system call itself, `underpass run` installs a seccomp
/// filter instead, and for a user without CAP_SYS_ADMIN it sets the no_new_privs bit (prctl(2)): sudo and other setuid
/// programs started from within then do not get their privileges. io_uring=deny installs that filter for every program.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    override_usage = "underpass run [OPTIONS] [--] PROGRAM [ARGUMENT]...",
    after_help = "Examples:
  underpass run -- redis-server --port 7000
  underpass run --stats -- curl -O http://localhost/file
  underpass run --set go_up_messages=0 --set spin_us=0 -- ./server",
    after_long_help = "Examples:
  underpass run -- redis-server --port 7000
  underpass run --stats -- curl -O http://localhost/file
  underpass run --set go_up_messages=0 --set spin_us=0 -- ./server

Exit code: that of the program (or its signal); 127 if there is no such program or interpreter, 126 if it \
cannot be executed, 125 if Underpass itself fails, 2 for a mistake in options or settings."
)]
pub struct RunArguments {
    /// At the end, say for each process how its connections fared and why some stayed on kernel TCP
    ///
    /// Written to standard error, or to FILE, when the program itself ends: a daemon that it leaves behind is not
    /// waited for.
    ///
    /// The program gets a parent process that waits for it and passes signals on. If that process is killed, the kernel
    /// kills the program too (PR_SET_PDEATHSIG). The program also gets a process group of its own where the command
    /// leads one, and the variable `UNDERPASS_STATS` in its environment.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, value_hint = ValueHint::FilePath)]
    pub stats: Option<Option<PathBuf>>,

    /// Write these statistics as JSON (implies --stats)
    #[arg(long)]
    pub json: bool,

    /// Do not say when a program cannot be accelerated
    #[arg(long, short)]
    pub quiet: bool,

    #[command(flatten)]
    pub program: ProgramArguments,
}

impl RunArguments {
    /// Whether statistics are asked for.
    pub fn wants_stats(&self) -> bool {
        self.json || self.stats.is_some()
    }
}
