//! Which connections a new image inherits.

use super::by_cookie::ByCookie;
use super::{Execution, NEW};
use crate::connection::handle::HIGHEST;
use crate::connection::{self, Connection, look};
use crate::guest::memory::Reserved;
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

/// The descriptors that an image inherits that takes this one's place: they are asked for once, because there may be
/// thousands.
pub struct Staying(Reserved<i32>);

impl Staying {
    /// Those of the connections at this time; `None` without address space.
    pub fn look() -> Option<Staying> {
        let mut list = Reserved::new(known().count() + NEW)?;
        inherited(Execution::Alone, |it| {
            list.push(it.fd);
        });
        Some(Staying(list))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.items().len()
    }

    /// Whether `fd` was one of them.
    pub fn has(&self, fd: i32) -> bool {
        self.0.items().binary_search(&fd).is_ok()
    }

    /// [`inherited`] for that image, with connections that other threads have made since. Signals are held back unless
    /// `what` may wait for long.
    pub fn inherited(&self, waits: bool, mut what: impl FnMut(Connection)) {
        let look = |fd| {
            look::look_at(fd, |it| {
                if self.has(it.fd) || stays_open(it.fd) {
                    what(it);
                }
            });
        };
        if waits {
            (0..table::highest()).for_each(look)
        } else {
            kernel::undisturbed_in_turns(0..table::highest(), look)
        }
    }
}

/// Calls `what` for what the image inherits, once for each end: an end that is lent twice to an image is awaited when
/// that has come.
pub fn inherited_ends(how: Execution<'_>, mut what: impl FnMut(Connection)) {
    let mut seen = Seen::none(HIGHEST.load(Relaxed));
    inherited(how, |it| {
        if !it.has_duplicates() && !how.is_borrowed() || seen.add(it.index) {
            what(it);
        }
    });
}

/// The ends that were seen: a bit for each.
struct Seen(Option<Reserved<u64>>);

impl Seen {
    /// None yet of so many.
    fn none(ends: u32) -> Seen {
        let words = ends as usize / 64 + 1;
        let mut list = Reserved::even_confined(words);
        if let Some(list) = &mut list {
            (0..words).for_each(|_| _ = list.push(0));
        }
        Seen(list)
    }

    /// Adds an end, and says whether it is new.
    fn add(&mut self, index: u32) -> bool {
        let words = self.0.as_mut().map(Reserved::items_mut);
        let Some(word) = words.and_then(|words| words.get_mut(index as usize / 64)) else { return true };
        let before = *word;
        *word |= 1 << (index % 64);
        before != *word
    }
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
            && let Some(parents) = by_cookie.find(cookie)
        {
            look::look_at_parents(parents as i32, |it| {
                if it.end.cookie.load(Relaxed) == cookie {
                    what(it.by(fd));
                }
            });
        }
    };
    if !kernel::for_each_descriptor(&mut look) {
        (0..table::highest()).for_each(look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_end_is_new_once() {
        let mut seen = Seen::none(65);
        assert_eq!([0, 64, 0, 63, 64, 63].map(|index| seen.add(index)), [true, true, false, true, false, false]);
    }
}
