//! A floor does not import from a floor above it. Where it needs something done above, the upper floor gives it a table
//! of functions, once, when the library begins.

use underpass_segment::sync::{Acquire, AtomicPtr, Release};

/// Such a table. Its functions do nothing until another table is given.
pub struct Given<T: 'static>(AtomicPtr<T>);

impl<T: 'static> Given<T> {
    /// It is `nothing` at first.
    pub const fn new(nothing: &'static T) -> Given<T> {
        Given(AtomicPtr::new(core::ptr::from_ref(nothing).cast_mut()))
    }

    /// Called once, by the constructor.
    pub fn give(&self, table: &'static T) {
        self.0.store(core::ptr::from_ref(table).cast_mut(), Release);
    }

    /// The table.
    pub fn get(&self) -> &'static T {
        // SAFETY: one of the two references, which are never changed through.
        unsafe { &*self.0.load(Acquire) }
    }
}
