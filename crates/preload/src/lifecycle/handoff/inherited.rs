//! Which connections a new image inherits.

use super::Execution;
use super::by_cookie::ByCookie;
use crate::connection::{self, Connection, look};
use crate::guest::{family, table};
use crate::lifecycle::adopt;
use underpass_segment::end::Stage;
use underpass_segment::kernel;
use underpass_segment::sync::Relaxed;

/// Whether this process has anything to hand on.
pub fn has_any() -> bool {
    adopt::recognise_all();
    family::existing().is_some() && known().any(|it| it.end.stage() <= Stage::Joined)
}

/// The connections of all descriptors. The thread only looks at them.
fn known() -> impl Iterator<Item = Connection> {
    (0..table::highest()).filter_map(connection::known)
}

/// Whether a descriptor stays open over an execution.
pub fn stays_open(fd: i32) -> bool {
    kernel::descriptor_flags(fd).is_some_and(|flags| flags & libc::FD_CLOEXEC == 0)
}

/// Calls `what` for each connection that the new image inherits, for each of its descriptors there.
pub fn inherited(how: Execution<'_>, mut what: impl FnMut(Connection)) {
    if !how.is_borrowed() {
        let is_given = |it: &Connection| match how {
            Execution::Spawned(actions) => actions.may_give(it.fd) || stays_open(it.fd) && !actions.take_away(it.fd),
            _ => stays_open(it.fd),
        };
        return look::look_at_all(|it| {
            if is_given(&it) {
                what(it)
            }
        });
    }
    // A child of vfork has descriptors of its own and its parent's table, so the socket's cookie says which end it is.
    let all = known().map(|it| (it.end.cookie.load(Relaxed), it.fd as u32));
    let Some(by_cookie) = ByCookie::of(table::highest() as usize, all) else { return };
    let mut look = |fd| {
        if stays_open(fd)
            && kernel::is_tcp(fd)
            && let Ok(cookie) = kernel::cookie(fd)
            && let Some(connection) = by_cookie.find(cookie).and_then(|fd| connection::known(fd as i32))
        {
            what(connection.by(fd));
        }
    };
    if !kernel::for_each_descriptor(&mut look) {
        (0..table::highest()).for_each(look);
    }
}
