//! Sends and receives that are libc's own calls, with what they carry counted.

use super::Connection;
use crate::guest::errno::to_c;
use underpass_segment::sync::Relaxed;

impl Connection {
    /// One plain receive, counted; `None` when the connection has a channel by now and none may be begun.
    #[inline]
    pub fn receive_plainly(&self, flags: i32, plain: impl FnOnce() -> isize) -> Option<isize> {
        let inside = self.inside();
        inside.enter();
        let gate = &self.end.read_gate;
        if !gate.enter() {
            return None;
        }
        let answer = inside.during(|| gate.exit(), plain);
        gate.exit();
        if answer == 0
            && let Some(error) = self.end.take_kept_error()
        {
            return Some(to_c(Err(error)));
        }
        self.count_received(answer, flags);
        Some(answer)
    }

    /// One plain receive, counted, once this end has left the ring of its channel for good.
    #[cold]
    pub fn receive_past(&self, flags: i32, plain: impl FnOnce() -> isize) -> isize {
        let answer = self.by_kernel(plain);
        self.count_received(answer, flags);
        answer
    }

    /// As [`Connection::receive_plainly`], for a send.
    #[inline]
    pub fn send_plainly(&self, plain: impl FnOnce() -> isize) -> Option<isize> {
        let inside = self.inside();
        inside.enter();
        let gate = &self.end.write_gate;
        if !gate.enter() {
            return None;
        }
        if let Some(error) = self.end.take_kept_error() {
            gate.exit();
            return Some(to_c(Err(error)));
        }
        let answer = inside.during(|| gate.exit(), plain);
        gate.exit();
        if answer > 0 {
            self.end.sending.kernel_bytes.fetch_add(answer as u64, Relaxed);
            self.end.bytes.fetch_add(answer as u64, Relaxed);
        }
        Some(answer)
    }

    fn count_received(&self, answer: isize, flags: i32) {
        if answer > 0 && flags & libc::MSG_PEEK == 0 {
            self.end.reading.kernel_bytes.fetch_add(answer as u64, Relaxed);
            self.end.bytes.fetch_add(answer as u64, Relaxed);
        }
    }
}
