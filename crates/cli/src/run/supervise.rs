//! Staying the program's parent: passing signals on, stopping and ending as the program does.

use std::io;

use crate::sys::{self, Change, Child, HeldSignals};

/// How the program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With this code.
    Code(i32),
    /// Killed by this signal.
    Signal(i32),
}

/// Runs `body` in a child and returns how that ended.
///
/// A signal that a process sends us is meant for the program and goes on to it. One that the kernel sends comes from the
/// terminal, which sends it to the whole foreground group: the program has it already.
pub fn run(body: impl FnOnce() -> i32) -> io::Result<End> {
    let signals = HeldSignals::hold();
    let child = Child::fork(&signals, body)?;
    sys::let_go_of_inherited_descriptors();
    loop {
        let taken = signals.next();
        if taken.signal == libc::SIGCHLD {
            while let Some(change) = child.change() {
                match change {
                    Change::Exited(code) => return Ok(End::Code(code)),
                    Change::Killed(signal) => return Ok(End::Signal(signal)),
                    // Job control: the shell waits for us to stop. SIGSTOP alone is not from there, and whoever sent it
                    // will continue the program and not us; but the shell would not get its terminal back.
                    Change::Stopped(signal) if is_job_control(signal) || sys::has_terminal() => sys::stop_self(),
                    Change::Stopped(_) => {}
                }
            }
        } else if !taken.from_kernel {
            child.signal(taken.signal);
        }
    }
}

fn is_job_control(signal: i32) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

impl End {
    /// Ends this process in the same way.
    pub fn follow(self) -> ! {
        match self {
            End::Code(code) => std::process::exit(code),
            End::Signal(signal) => sys::die_of(signal),
        }
    }
}
