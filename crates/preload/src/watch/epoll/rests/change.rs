//! Changes of the list: each is one value, whether it is made at once, or later by the thread that has the list.

use super::entry::{Entry, Key};
use core::ffi::c_int;

/// A change of the list.
#[derive(Clone, Copy)]
pub(super) enum Change {
    /// Adds an entry, unless the list has one of that key.
    Entered(Entry),
    /// The kernel has made a registration in this generation of the number, or changed it (`None`: removed it).
    Registered { key: Key, generation: u64, wanted: Option<(u32, u64)>, may_have_rest: bool },
    /// `fd` was closed, and begins another generation; whether its socket `goes_on`.
    Closed { fd: c_int, generation: u64, goes_on: bool },
    /// A set that has another descriptor, `heir`, has lost `closed`; `name` is what the list calls it.
    Renamed { name: c_int, closed: c_int, heir: c_int },
}
