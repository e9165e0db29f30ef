//! What is left in the directory about a socket that is passed to another process.

use super::Meeting;
use crate::directory::{Key, Lent, holder};
use crate::end::{End, Stage};
use crate::kernel;
use crate::raw::is_quiet;
use crate::sync::Relaxed;

impl Meeting {
    /// Makes an entry in the directory for a joined end whose socket is being passed to another process; false if that
    /// fails.
    pub fn lend(&mut self, end: &End, index: u32, fd: i32) -> bool {
        let me = holder(fd, self.family);
        let directory = self.directory(kernel::user_id());
        let depends = end.stage() == Stage::Joined && !end.needs_no_channel();
        let entry = directory.and_then(|directory| directory.lend(end.cookie.load(Relaxed), me, index, depends));
        if let Some(entry) = entry {
            end.passed_entry.store(entry + 1, Relaxed);
        }
        entry.is_some()
    }

    /// Takes that entry back: a process that is passed the socket from now on finds plain TCP.
    pub fn end_lending(&mut self, end: &End) {
        if !is_quiet()
            && let Some(entry) = end.passed_entry.load(Relaxed).checked_sub(1)
            && let Some(directory) = self.directory(kernel::user_id())
            && directory.clear(entry, Key::lent(end.cookie.load(Relaxed)), kernel::process_id())
        {
            end.passed_entry.store(0, Relaxed);
        }
    }

    /// What was left about a socket that was passed to this process.
    pub fn borrow(&mut self, cookie: u64) -> Option<Lent> {
        self.directory(kernel::user_id())?.borrow(cookie, kernel::process_id())
    }

    /// Takes back what was left about the socket with this cookie, because the table that it names is gone.
    pub fn forget_lent(&mut self, lent: Lent, cookie: u64) {
        if let Some(directory) = self.directory(kernel::user_id()) {
            directory.end_lending(lent, cookie, kernel::process_id());
        }
    }
}
