//! The events that a wait reports to the program.

use core::ffi::c_int;
use libc::epoll_event;

/// The program's array of events, as far as it is filled.
pub(super) struct Answer {
    at: *mut epoll_event,
    most: usize,
    count: usize,
}

impl Answer {
    /// None of the `most` events of the program's array are filled.
    ///
    /// # Safety
    /// The array must be the program's, of so many events.
    pub(super) unsafe fn new(at: *mut epoll_event, most: usize) -> Answer {
        Answer { at, most, count: 0 }
    }

    pub(super) fn count(&self) -> usize {
        self.count
    }

    pub(super) fn is_full(&self) -> bool {
        self.count == self.most
    }

    /// Adds the kernel's events, which `look` gets, also to the rests that are there.
    pub(super) fn ask(&mut self, look: &dyn Fn(*mut epoll_event, usize) -> c_int) {
        let rests = self.count;
        if self.is_full() {
            return;
        }
        // SAFETY: the room behind what is there.
        let by_kernel = look(unsafe { self.at.add(rests) }, self.most - rests).max(0) as usize;
        for index in rests..rests + by_kernel {
            let event = self.event(index);
            self.push(event.events, event.u64, rests);
        }
    }

    /// Adds an event; to the event with the same data, if there is one among the first `told`.
    pub(super) fn push(&mut self, events: u32, data: u64, told: usize) {
        if let Some(index) = (0..told).find(|&index| self.event(index).u64 == data) {
            let events = self.event(index).events | events;
            self.write(index, epoll_event { events, u64: data });
        } else {
            self.write(self.count, epoll_event { events, u64: data });
            self.count += 1;
        }
    }

    pub(super) fn event(&self, index: usize) -> epoll_event {
        debug_assert!(index < self.most);
        // SAFETY: within the program's array; the kernel or `write` has written it.
        unsafe { self.at.add(index).read_unaligned() }
    }

    fn write(&self, index: usize, event: epoll_event) {
        debug_assert!(index < self.most);
        // SAFETY: as above.
        unsafe { self.at.add(index).write_unaligned(event) };
    }
}
