//! A signal handler may interrupt its own thread inside a set. It defers its changes of the set, and the interrupted
//! look makes them when it ends.

use super::{Change, Point, Set, State, lock_point, made};
use crate::connection::references;
use crate::guest::memory::PIECE;
use crate::watch::deferrals::{self, FIRST};

/// What is done when no thread is inside the set any more.
#[derive(Clone, Copy, Debug)]
pub enum Deferred {
    Change(Change),
    /// The last descriptor of the end with this index was closed.
    End {
        index: u32,
    },
    /// The set has been registered in another one: see [`Set::set_inner`].
    Inner,
    /// This process is a child that was forked: see [`super::after_fork`].
    Forked,
    /// The last descriptor of the set was closed.
    Closed,
}

/// More changes than these in one handler (without address space, more than [`FIRST`]) have no effect: events are then
/// reported as the kernel has them.
const MOST: usize = 1 << 15;

/// The deferred changes of a set.
pub(super) type Deferrals = deferrals::Deferrals<Deferred, { MOST / PIECE }>;

/// What has to wait until no thread is inside the set.
pub(super) struct Ends {
    indices: [Option<u32>; FIRST],
    closed: bool,
}

impl Ends {
    #[cold]
    pub(super) fn let_go(&self, set: &Set) {
        for &index in self.indices.iter().flatten() {
            // The look that has ended may have come in a signal handler, on top of a look at another set.
            if !defer_release(index) {
                references::release(index, None);
            }
        }
        if self.closed {
            Set::release(set);
        }
    }
}

/// Whether this is a signal handler that has interrupted its thread inside any set.
pub fn is_any_interrupted() -> bool {
    made().any(Set::is_interrupted)
}

/// Defers the release of the end with this index, whose last descriptor was closed, if this thread is inside a set: the
/// interrupted look may be using the end's channel. Whether it was deferred.
pub fn defer_release(index: u32) -> bool {
    let below = made().find(|set| set.is_interrupted());
    below.inspect(|set| set.defer(Deferred::End { index })).is_some()
}

impl Set {
    /// Defers `what` to the look at the set that this signal handler has interrupted.
    pub fn defer(&self, what: Deferred) {
        self.deferred.push(what);
    }

    /// Makes the deferred changes.
    #[cold]
    pub(super) fn catch_up(&self, state: &mut State) -> Ends {
        let mut ends = Ends { indices: [None; FIRST], closed: false };
        let mut free = ends.indices.iter_mut();
        let (mut done, mut all) = (0, true);
        // A handler may add to them meanwhile.
        while done < self.deferred.count() {
            let what = self.deferred.at(done);
            lock_point(self, Point::Deferred);
            let mut is_made = true;
            match what {
                Some(Deferred::Change(change)) => {
                    // Without address space the events of a registration are reported as the kernel has them.
                    let _ = self.apply(state, change);
                }
                Some(Deferred::End { index }) => match free.next() {
                    Some(place) => *place = Some(index),
                    // No room for more: this one waits until the others have been released.
                    None => (is_made, all) = (false, false),
                },
                Some(Deferred::Inner) => state.wake_one_by_one(),
                Some(Deferred::Forked) => state.begin_in_child(),
                Some(Deferred::Closed) => ends.closed = true,
                None => {}
            }
            if is_made {
                // Afterwards: until it is made, another handler foresees it here.
                self.deferred.done(done);
            }
            lock_point(self, Point::Made);
            done += 1;
            if all && self.deferred.clear_if_no_more(done) {
                break;
            }
        }
        ends
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Later, Scan};
    use super::*;
    use crate::guest::thread;

    /// Fails if an end is let go of while a look at another set, which was interrupted first, may be using its channel.
    #[test]
    fn an_end_stays_until_the_first_of_two_interrupted_looks_is_over() {
        // SAFETY: just made, and never unmapped.
        let [below, above] = [900_400, 900_401].map(|epfd| unsafe { &*Set::make(epfd).unwrap() });
        below.locked(|_| {
            // No connection has this index.
            above.locked(|_| assert!(defer_release(u32::MAX)));
            assert!(below.deferred.is_any());
        });
        assert!(!below.deferred.is_any() && !above.deferred.is_any());
        Set::release(above);
        Set::release(below);
    }

    /// Fails if a set that a handler registers in another is not known there when the handler returns.
    #[test]
    fn a_handler_registers_a_set_in_a_set_that_is_looked_at() {
        // SAFETY: just made, and never unmapped.
        let set = unsafe { &*Set::make(900_402).unwrap() };
        set.locked(|_| {
            set.add_inner(900_403);
            set.add_inner(900_404);
            set.add_inner(900_403);
            assert_eq!(set.inner().collect::<Vec<_>>(), [900_403, 900_404]);
            set.change(Change::Removed { fd: 900_404 });
        });
        assert_eq!(set.inner().collect::<Vec<_>>(), [900_403]);
        Set::release(set);
    }

    /// Fails if a process that a handler forks, or a set in which it registers this one, has the registrations of
    /// before.
    #[test]
    fn a_handler_tells_the_kernel_what_was_put_off() {
        const FDS: [i32; 2] = [900_405, 900_406];
        // SAFETY: just made, and never unmapped.
        let set = unsafe { &*Set::make(900_407).unwrap() };
        for fd in FDS {
            assert_eq!(set.follow(fd, 1, 1, || 0), Ok(0));
        }
        assert_eq!(set.change_later(FDS[0], Some((5, 1)), false), Later::Done);
        assert_eq!(set.change_later(FDS[1], None, false), Later::Done);
        set.locked(|_| {
            let mut told = Vec::new();
            set.tell_all(|fd, change| told.push((fd, change)));
            assert_eq!(told, [(FDS[0], Some((5, 1))), (FDS[1], None)]);
        });
        Set::release(set);
    }

    /// Fails if a child that a handler forks takes the lock of the look that it has interrupted, or if the child
    /// tells the kernel what its parent is to tell it.
    #[test]
    fn a_look_goes_on_in_a_child_that_a_handler_forks() {
        const FDS: [i32; 2] = [900_408, 900_409];
        // SAFETY: just made, and never unmapped.
        let set = unsafe { &*Set::make(900_410).unwrap() };
        for fd in FDS {
            assert_eq!(set.follow(fd, 1, 1, || 0), Ok(0));
        }
        assert_eq!(set.change_later(FDS[0], Some((5, 1)), false), Later::Done);
        set.locked(|_| {
            set.begin_in_child(Some(thread::number()));
            assert!(set.is_interrupted());
            set.activate_if(|fd, _| fd == FDS[1]);
        });
        assert!(!set.is_stale() && !set.is_interrupted());
        let mut active = Vec::new();
        set.scan(|fd, _, _| {
            active.push(fd);
            Scan::Keep
        });
        assert_eq!(active, FDS);
        Set::release(set);
    }
}
