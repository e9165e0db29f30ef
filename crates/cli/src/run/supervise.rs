//! Staying the program's parent: passing signals on, stopping and ending as the program does.
//!
//! Without statistics the command becomes the program, which then leads the command's process group if the command did:
//! a shell with job control makes it so. With statistics the program is a child, and gets a group of its own to lead in
//! that case. The shell knows only the command's group, so the terminal is handed on to the program's group and back.

use std::io;

use crate::sys::{self, Change, Child, HeldSignals, ProcessGroup};

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
/// A signal that a process sends us is meant for the program and goes on to it. A signal that the kernel sends comes
/// from the terminal, which sends it to the whole foreground group: the program has it already, unless it has a group
/// of its own.
pub fn run(body: impl FnOnce() -> i32) -> io::Result<End> {
    let signals = HeldSignals::hold();
    let foreground = sys::has_terminal();
    // The other programs of a pipeline are in our group and need the terminal as well.
    let leads = sys::leads_group() && !(foreground && sys::is_in_pipeline());
    let group = if leads { ProcessGroup::Own { foreground } } else { ProcessGroup::Shared };
    let child = Child::fork(&signals, group, body)?;
    sys::let_go_of_inherited_descriptors();
    loop {
        let taken = signals.next();
        match taken.signal {
            libc::SIGCHLD => {
                while let Some(change) = child.change() {
                    let end = match change {
                        Change::Exited(code) => End::Code(code),
                        Change::Killed(signal) => End::Signal(signal),
                        Change::Stopped(signal) => {
                            if leads {
                                stop_beside(&signals, &child, signal)
                            } else {
                                stop_with(signal)
                            }
                            continue;
                        }
                    };
                    sys::take_terminal_from(child.id());
                    return Ok(end);
                }
            }
            // `fg` or `bg`, of which the program's group has heard nothing.
            libc::SIGCONT if leads => go_on(&child),
            signal if leads && taken.from_kernel && is_of_terminal(signal) => child.signal_group(signal),
            // The caller may have set an alarm (alarm(2)) before it executed this command; without the command, the
            // program would have got it.
            libc::SIGALRM => child.signal(libc::SIGALRM),
            signal if !taken.from_kernel => child.signal(signal),
            _ => {}
        }
    }
}

/// The program, in our group, was stopped. For job control the shell waits for us to stop. SIGSTOP is not from there,
/// and its sender will continue the program and not us; but the shell would not get its terminal back.
fn stop_with(signal: i32) {
    if is_job_control(signal) || sys::has_terminal() {
        sys::stop_self();
    }
}

/// The program, in its own group, was stopped.
fn stop_beside(signals: &HeldSignals, child: &Child, signal: i32) {
    let wants_terminal = matches!(signal, libc::SIGTTIN | libc::SIGTTOU);
    if wants_terminal && sys::has_terminal() {
        // A shell has put our group into the foreground meanwhile.
        return go_on(child);
    }
    if !is_job_control(signal) {
        if sys::foreground_group() == Some(child.id()) {
            sys::take_terminal_from(child.id());
            sys::stop_self();
        }
        return;
    }
    sys::take_terminal_from(child.id());
    // The rest of a pipeline is in our group: a shell takes the job for stopped when all of it is.
    if !signals.stop() {
        // Our group is orphaned: the signal would not have stopped the program in it either.
        go_on(child);
    }
}

/// Continues the program's group, in the foreground if ours is there.
fn go_on(child: &Child) {
    if sys::has_terminal() {
        sys::give_terminal_to(child.id());
    }
    child.signal_group(libc::SIGCONT);
}

fn is_job_control(signal: i32) -> bool {
    matches!(signal, libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU)
}

/// Whether a terminal sends this signal to its foreground group.
fn is_of_terminal(signal: i32) -> bool {
    matches!(signal, libc::SIGINT | libc::SIGQUIT | libc::SIGTSTP | libc::SIGHUP | libc::SIGWINCH)
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
