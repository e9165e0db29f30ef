//! Sends while `underpass capture` runs: what goes into the ring is copied to the tap before it is published.
#![allow(unsafe_code, reason = "copies what was put into the ring")]

use super::Port;
use super::send::Pushed;
use crate::clock::nanoseconds;
use crate::kernel::{self, HeldBack};
use crate::raw::is_quiet;
use crate::ring::{Fault, Source};
use crate::sync::Relaxed;
use crate::tap::{self, Head, Name, Writer};

impl Port<'_> {
    /// As [`Port::push_all`], with a copy to the tap of this name. `None`: the tap is gone, or cannot be had.
    #[cold]
    pub(super) fn push_tapped(
        &self,
        name: Name,
        from: &mut impl Source,
        sent: &mut usize,
    ) -> Option<Result<Pushed, Fault>> {
        // What a handler sends in the middle of another send would be copied before that.
        let _held_back = HeldBack::new();
        let (writer, head) = self.tap(name)?;
        Some(self.push_all(&mut Tapped { from, port: self, writer, head }, sent))
    }

    /// Says that the direction out ends here.
    pub(super) fn tap_end(&self) {
        if let Some(name) = self.end.tap() {
            let _held_back = HeldBack::new();
            if let Some((writer, head)) = self.tap(name) {
                let head = Head { ends: 1, when: nanoseconds(), positions: self.end.positions(), ..head };
                // SAFETY: no byte is read.
                unsafe { writer.put(self.me, &head, core::ptr::null()) };
            }
        }
        // The program may send nothing for long now.
        tap::let_go();
    }

    fn tap(&self, name: Name) -> Option<(Writer, Head)> {
        let hole = &self.end.sending.hole;
        let in_the_making = hole[0].load(Relaxed) != hole[1].load(Relaxed);
        if is_quiet() || in_the_making {
            return None;
        }
        let writer = match Writer::open(name, kernel::user_id(), self.me) {
            Ok(writer) => writer,
            Err(Some(_)) => return None,
            Err(None) => {
                self.end.forget_tap(Some(name));
                return None;
            }
        };
        let head = Head {
            len: 0,
            ends: 0,
            pid: kernel::process_id() as u32,
            space: tap::space(),
            when: 0,
            cookies: [self.end.cookie.load(Relaxed), self.end.peer_cookie.load(Relaxed)],
            positions: [0; 2],
            addresses: kernel::addresses(self.fd)?,
        };
        Some((writer, head))
    }
}

/// A source of which the tap gets a copy.
struct Tapped<'a, S> {
    from: &'a mut S,
    port: &'a Port<'a>,
    writer: Writer,
    head: Head,
}

impl<S: Source> Source for Tapped<'_, S> {
    fn left(&self) -> usize {
        self.from.left()
    }

    unsafe fn fill(&mut self, to: *mut u8, len: usize) -> usize {
        // SAFETY: passed on to the caller.
        let n = unsafe { self.from.fill(to, len) }.min(len);
        if n > 0 {
            self.head = Head { len: n as u32, when: nanoseconds(), positions: self.port.end.positions(), ..self.head };
            // SAFETY: `n` bytes were put there, which are not published yet.
            unsafe { self.writer.put(self.port.me, &self.head, to) };
        }
        n
    }
}
