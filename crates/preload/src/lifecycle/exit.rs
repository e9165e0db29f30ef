//! The process ends: it lets go of its connections, whose family may live on.

use super::census::Census;
use super::images::{
    await_arrivals, await_claims, await_other_ends, depart, images_awaited_until, take_back_beside_loans,
};
use crate::connection::Connection;
use crate::connection::count::report;
use crate::connection::look::for_each;
use crate::connection::references::{leave_to_image, relinquish};
use crate::guest::departure::Leaving;
use crate::guest::{family, forked, table, thread};
use crate::watch::{epoll, set};
use core::ffi::{c_int, c_void};
use underpass_segment::end::Stage;
use underpass_segment::family::Departing;
use underpass_segment::sync::{Acquire, AtomicBool, Relaxed};

/// The destructors of all libraries run in a function that libc registers for exit(3) once the constructors have run.
/// The destructors may still send, so what this constructor registers is called after them. quick_exit(3) has a list of
/// its own.
pub fn leave_at_exit() {
    unsafe extern "C" {
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        fn __cxa_at_quick_exit(function: extern "C" fn(*mut c_void), library: *mut c_void) -> c_int;
    }
    extern "C" fn at_exit(_status: c_int, _: *mut c_void) {
        leave();
    }
    extern "C" fn at_quick_exit(_: *mut c_void) {
        leave();
    }
    // SAFETY: this library is not unloaded.
    unsafe {
        on_exit(at_exit, core::ptr::null_mut());
        __cxa_at_quick_exit(at_quick_exit, core::ptr::null_mut());
    }
}

/// The process has let go of its connections, or is about to.
static HAS_LEFT: AtomicBool = AtomicBool::new(false);

/// In a child that a signal handler has forked, perhaps while its parent ended.
pub fn after_fork() {
    HAS_LEFT.store(false, Relaxed);
}

/// The process ends: lets go of its connections, whose family may live on.
pub fn leave() {
    forked::check();
    if thread::is_vfork_child() || HAS_LEFT.swap(true, Acquire) {
        return;
    }
    let leaving = Leaving::begin_exit();
    leave_all();
    set::release_all_groups();
    leaving.end();
}

/// At exit: counts what is still open and lets go of it, leaving no doorbell unread.
fn leave_all() {
    if let Some(family) = family::existing() {
        let deadline = images_awaited_until();
        await_claims(family, deadline);
        take_back_beside_loans(family);
        let census = Census::new();
        for_each(|index, fd| {
            let end = family.end(index);
            let connection = Connection { end, index, fd };
            connection.count_settled();
            connection.await_heir(deadline);
            if let Some(port) = connection.joined_port() {
                connection.await_images(&port, connection.is_last(), &census, deadline);
            }
            connection.prepare_to_close();
            epoll::let_go(connection, table::generation(fd));
            // Before the reference is dropped: see `prepare_to_close`.
            if connection.is_awaited() {
                // An image that comes does not share the end with a process that has ended.
                return leave_to_image(family, index, fd);
            }
            let last = relinquish(family, index) == Some(true);
            // Another process may have lent it since, and let go of it. In this order: an image counts its reference
            // before it takes up the loan.
            if last && (connection.is_awaited() || !connection.is_last()) {
                return leave_to_image(family, index, fd);
            }
            if last {
                // As where a descriptor is closed: see `drop_reference`.
                connection.leave_no_gap();
            }
            report(end, index, last);
            if last
                && end.stage() == Stage::Joined
                && let Some(port) = connection.port()
            {
                if connection.is_lent() {
                    connection.leave_to_unawaited_image(&port);
                    port.end_sending();
                } else {
                    // Again: the other processes may have let go of it since `prepare_to_close`.
                    connection.end_by(&port);
                }
                // Other processes of the family may live on and keep the channel: the sender would not find out that
                // its reader is gone.
                port.prepare_to_shut();
            }
        });
        await_other_ends();
        depart(family, Departing::ForGood);
        await_arrivals(family, deadline);
    }
}
