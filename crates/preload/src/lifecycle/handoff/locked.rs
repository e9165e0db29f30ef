//! Ends that an execution takes along are locked until the new image has them.

use crate::connection::Connection;
use crate::connection::look::Look;
use crate::guest::memory::Reserved;
use crate::guest::thread;
use core::mem::ManuallyDrop;
use underpass_segment::lock::Entered;

/// Ends that go into the parcel whole. This thread keeps other threads out of them until the new image has them,
/// because the image would not see what those threads do meanwhile. For each end: the locks, the reader's and the
/// sender's, that this thread has taken.
pub struct LockedEnds(Reserved<LockedEnd>);

type LockedEnd = (Connection, ManuallyDrop<Look>, [Option<Entered>; 2]);

impl LockedEnds {
    /// With room for so many; `None` without address space.
    pub fn new(room: usize) -> Option<LockedEnds> {
        Reserved::new(room).map(LockedEnds)
    }

    /// Locks an end, if there is room.
    pub fn lock(&mut self, connection: &Connection) {
        if !self.0.has_room() {
            return;
        }
        // The look keeps the connection from ending before the threads are let in again.
        let Some((connection, look)) = Look::begin(connection.fd) else { return };
        let end = connection.end;
        if let Some(port) = connection.ready_port() {
            // Counts what this thread itself is in the middle of; only bytes that a sleeping receive takes are not
            // counted.
            port.pass_due_marks();
        }
        let me = thread::number();
        self.0.push((
            connection,
            ManuallyDrop::new(look),
            [&end.reading.lock, &end.sending.lock].map(|lock| lock.keep_out(me)),
        ));
    }
}

impl Drop for LockedEnds {
    fn drop(&mut self) {
        for (connection, look, [reading, sending]) in self.0.items_mut() {
            reading.inspect(|&it| connection.end.reading.lock.let_in(it));
            sending.inspect(|&it| connection.end.sending.lock.let_in(it));
            // SAFETY: the list drops no elements, and this one is not used again.
            unsafe { ManuallyDrop::drop(look) };
        }
    }
}
