//! The processes of a connection's two ends take turns to execute programs: while one of them is between two images,
//! the other keeps the channel, and with it what no copy can hold.
//!
//! Each says that it executes, and then looks whether the other one said so: of two that do this at the same moment,
//! one finds the other at least, and takes back what it said.

use super::Port;
use crate::kernel;
use crate::sync::{Relaxed, Release, SeqCst};

impl Port<'_> {
    /// This process is about to execute a program that comes for the channel. False, and nothing is said, if the other
    /// end's process is between two images.
    pub fn begin_execution(&self) -> bool {
        self.insist_on_execution();
        let is_free = !self.other_executes();
        if !is_free {
            self.end_execution();
        }
        is_free
    }

    /// This process is about to execute a program that comes for the channel, whatever the other end's process does.
    pub fn insist_on_execution(&self) {
        self.channel.outgoing().sender.executing.swap(kernel::marked_process_id(), SeqCst);
    }

    /// The new image has the channel, or is not executed. Another process that has this end may execute a program as
    /// well.
    pub fn end_execution(&self) {
        let _ =
            self.channel.outgoing().sender.executing.compare_exchange(kernel::marked_process_id(), 0, Release, Relaxed);
    }

    /// Whether the other end's process is between two images, and relies on this process to keep the channel.
    pub fn other_executes(&self) -> bool {
        self.channel.other_executes()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::lies::Ends;
    use crate::kernel;
    use crate::sync::Relaxed;

    #[test]
    fn of_two_ends_one_executes_at_a_time() {
        let it = Ends::joined(true);
        let (one, other) = (it.port(0), it.port(1));
        assert!(one.begin_execution() && one.begin_execution(), "its own word is no hindrance");
        assert!(!other.begin_execution() && !one.other_executes());
        assert!(other.is_needed(true), "the image comes for the channel");
        one.end_execution();
        // Both ends are this process's here, so each names it.
        assert!(other.begin_execution() && !one.begin_execution());
        assert!(!one.channel.is_awaited_by_image(), "nobody awaits itself");
        // A process that was killed meanwhile is not awaited.
        let mut dead = std::process::Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        other.channel.outgoing().sender.executing.store(kernel::marked(dead.id()), Relaxed);
        assert!(!one.channel.is_awaited_by_image() && one.begin_execution());
        let mut alive = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        other.channel.outgoing().sender.executing.store(kernel::marked(alive.id()), Relaxed);
        assert!(one.channel.is_awaited_by_image());
        one.channel.forget_image();
        assert!(!one.channel.is_awaited_by_image());
        drop(alive.stdin.take());
        alive.wait().unwrap();
    }
}
