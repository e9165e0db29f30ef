//! A process hands its connections on to the program that it executes or spawns, or to a process that it passes them
//! to.
//!
//! Before an image begins, [`prospect`] finds out whether it is sure to load this very library and to attach what this
//! image has attached. If not, the connections are plain TCP before it begins: their reader lets go of its ring, and
//! the other end puts on the kernel path what is unread there.
//!
//! If it is sure, one variable in the new environment says where the connections are found. Even so, an end that nobody
//! else has is [away](underpass_segment::switch::Port::go_away) from its ring until the image is back there: should the
//! image not come back, for a cause that nobody has thought of, it finds plain TCP all the same. An image that takes
//! this one's place reads a [`parcel`]: a memfd with the ends themselves, since this process may be the last to have
//! their table. An image that begins in another process finds them in the family's table. Either looks a connection up
//! by the cookie of its socket, so the descriptor's number does not matter. An image that cannot attach what it depends
//! on ends the connection by a reset at once.

mod arrival;
pub mod by_cookie;
pub mod carried;
mod environment;
mod file_actions;
mod hand_over;
mod inherited;
mod lend;
mod loan;
mod locked;
mod parcel;
mod program;
mod prospect;
mod stand_in;

pub use arrival::{claim, unpack};
pub use environment::release_child_packed;
pub use file_actions::FileActions;
pub use hand_over::leave_to_spawned;
pub use lend::Receiver;
pub use program::Program;
pub use prospect::set_up;
pub use stand_in::Unconnected;

use super::census::Census;
use super::{images, relinquish};
use crate::connection::{Connection, count, look, unclaimed, vforked};
use crate::guest::access::are_strings_readable;
use crate::guest::cancellation::unless_left;
use crate::guest::departure::{self, Leaving, Lending};
use crate::guest::{family, filter, memory};
use crate::watch::epoll;
use core::ffi::c_char;
use core::fmt::Write;
use environment::note_child_packed;
use environment::{Environment, MOST, Pages, Text, variables_in};
use hand_over::hand_over_inherited;
use inherited::{Staying, has_any, inherited_ends, stays_open};
use libc::posix_spawn_file_actions_t;
use loan::{Loan, Offer};
use locked::LockedEnds;
use parcel::Parcel;
use prospect::Prospect;
use stand_in::StandIns;
use underpass_segment::config::HANDOFF_VARIABLE as VARIABLE;
use underpass_segment::end::Stage;
use underpass_segment::family::{Departing, Family};
use underpass_segment::kernel;
use underpass_segment::reason::Reason;

/// The variable's value is `parcel:DESCRIPTOR`, or `family:` and an [`Offer`].
const BY_PARCEL: &str = "parcel:";
const BY_FAMILY: &str = "family:";
/// Room for this many connections that other threads make meanwhile.
const NEW: usize = 64;
/// The name of this library's file contains this.
const LIBRARY: &str = "libunderpass";

/// How a program is executed.
#[derive(Clone, Copy)]
pub enum Execution<'a> {
    /// In place of this image.
    Alone,
    /// In place of a child of vfork, which runs in this image's memory.
    Borrowed,
    /// In a new process, beside this image, after these file actions.
    Spawned(&'a FileActions),
}

impl Execution<'_> {
    fn is_alone(self) -> bool {
        matches!(self, Execution::Alone)
    }

    fn is_borrowed(self) -> bool {
        matches!(self, Execution::Borrowed)
    }
}

/// An environment for a new program image, and what is kept for that until it begins.
pub struct Packed {
    envp: *const *const c_char,
    // Dropped first: the child is no longer done.
    _done: Option<vforked::Done>,
    // Dropped next: the fields below, which take the ends back, ask for the cookies of the descriptors.
    stand_ins: Option<StandIns>,
    loan: Option<Loan>,
    // Dropped before the ends come back: each takes back its mark of going down, for which it takes the lock.
    _locked: Option<LockedEnds>,
    _away: Option<Away>,
    _gone: Option<Gone>,
    _environment: Option<Environment>,
    _parcel: Option<Parcel>,
    // Dropped last: no connection joins before the ends are back.
    _leaving: Option<Leaving>,
}

impl Packed {
    /// The program's own environment, with nothing packed.
    fn nothing(envp: *const *const c_char) -> Packed {
        Packed {
            envp,
            _done: None,
            stand_ins: None,
            loan: None,
            _away: None,
            _gone: None,
            _environment: None,
            _parcel: None,
            _locked: None,
            _leaving: None,
        }
    }

    /// The environment to execute with.
    pub fn envp(&self) -> *const *const c_char {
        self.envp
    }

    /// The file actions to spawn with, where the program's are `actions`.
    pub fn actions(&self, actions: *const posix_spawn_file_actions_t) -> *const posix_spawn_file_actions_t {
        self.stand_ins.as_ref().and_then(StandIns::actions).unwrap_or(actions)
    }

    /// The image was spawned, in `process` if that is known.
    pub fn spawned(&mut self, process: Option<i32>) {
        if let Some(loan) = self.loan.take() {
            process.inspect(|&it| loan.note_process(it));
            loan.stay();
        }
    }
}

/// This process has let go of ends that the new image does not get. Dropped, it takes them back. So it is made only
/// where that is so (`then`, not `then_some`).
struct Gone;

impl Drop for Gone {
    fn drop(&mut self) {
        // Only reached if the execution has failed.
        relinquish::take_back_all();
    }
}

/// The ends of this process may be away from their rings until the new image comes back to them. Made as [`Gone`].
struct Away(&'static Family);

impl Drop for Away {
    fn drop(&mut self) {
        look::look_at_all(|it| {
            it.come_back();
            // See `leave_to_late_images`.
            it.tag_if_lent();
        });
        self.0.end_departure(family::member());
    }
}

/// Packs for the execution of `program` with environment `envp`.
///
/// # Safety
/// `envp` must be null or an environment, where a bad pointer is an error.
pub unsafe fn pack(program: Program, envp: *const *const c_char, how: Execution<'_>) -> Packed {
    if !how.is_alone() {
        let preparing = how.is_borrowed().then(vforked::Preparing::begin);
        // SAFETY: passed on to the caller.
        let packed = unsafe { pack_for(program, envp, how) };
        return Packed { _done: preparing.and_then(vforked::Preparing::end), ..packed };
    }
    let leaving = Leaving::begin_execution();
    // A connection that another thread is just joining has joined when this returns. A signal handler may jump away.
    // SAFETY: passed on to the caller.
    let packed = unless_left(departure::give_up, || unsafe {
        family::with_meeting_surely(|_| ());
        pack_for(program, envp, how)
    });
    Packed { _leaving: Some(leaving), ..packed }
}

/// # Safety
/// As [`pack`].
unsafe fn pack_for(program: Program, envp: *const *const c_char, how: Execution<'_>) -> Packed {
    let alone = how.is_alone();
    // This comes first: it recognises what this image was handed, and may make the table for that.
    let has_something = has_any() || alone && unclaimed::are_any();
    let Some(family) = family::existing() else {
        return Packed::nothing(envp);
    };
    // SAFETY: passed on to the caller.
    if !program.is_readable() || !unsafe { are_strings_readable(envp) } {
        // The execution will fail.
        return Packed::nothing(envp);
    }
    if !has_something {
        return if alone { depart_with_nothing(family, envp) } else { Packed::nothing(envp) };
    }
    if alone {
        epoll::leave_to_image()
    } else if !how.is_borrowed() {
        epoll::tell_kernel()
    }
    // SAFETY: passed on to the caller.
    let prospect = unsafe { prospect::of(program, envp, how, family) };
    if prospect == Prospect::Never {
        return Packed::nothing(envp);
    }
    let deadline = images::images_awaited_until();
    if alone {
        outlast_heirs(family, deadline);
        look::for_each(|index, fd| Connection::at(family, index, fd).leave_sets());
        let census = Census::new();
        look::look_at_all(|it| {
            if it.is_lost_to_image(&census) && stays_open(it.fd) {
                it.outlast_image(&census, deadline);
            }
        });
    }
    // Behind a seccomp filter an image may be killed for attaching a System V segment.
    let goes_on = prospect != Prospect::Doubtful && !filter::is_confined();
    // SAFETY: passed on to the caller.
    let room = if goes_on { unsafe { Room::new(envp, how) } } else { None };
    if alone {
        let stays = |fd| room.as_ref().and_then(|it| it.parcel.as_ref()).is_some_and(|it| it.2.has(fd));
        count::count_before_execution(|it| it.end.stage() <= Stage::Joined && it.descriptors().any(stays));
        leave_behind(family, deadline);
    }
    let packed = match room {
        Some(room) => {
            if let Some((_, _, staying)) = &room.parcel {
                images::take_turns(|it| staying.has(it.fd));
            }
            room.fill(family, how, prospect == Prospect::Sure)
        }
        None => {
            if alone {
                family.force_departure(family::member(), Departing::ForGood);
            }
            hand_over_inherited(how);
            if alone {
                relinquish::relinquish_all();
            }
            Packed {
                stand_ins: StandIns::for_image(how),
                _away: alone.then(|| Away(family)),
                _gone: alone.then(|| Gone),
                ..Packed::nothing(envp)
            }
        }
    };
    if alone {
        leave_to_late_images(packed.envp != envp);
    }
    packed
}

/// The execution is about to begin. Images are still awaited for some connections: leaves to the kernel those whose
/// rings the new image does not read, if it `goes_on` with any.
fn leave_to_late_images(goes_on: bool) {
    look::look_at_all(|it| {
        let is_read = goes_on && !it.end.is_pinned() && it.descriptors().any(stays_open);
        if it.is_last() && it.is_awaited() && !is_read {
            it.leave_to_kernel_for_image(None);
        }
    });
}

/// This process has no connection any more, but the family's table, in which the image of another process may be about
/// to look for its ends.
fn depart_with_nothing(family: &'static Family, envp: *const *const c_char) -> Packed {
    count::count_before_execution(|_| false);
    images::await_other_ends();
    images::depart(family, Departing::ForGood);
    images::await_arrivals(family, images::images_awaited_until());
    Packed { _away: Some(Away(family)), ..Packed::nothing(envp) }
}

/// Images that this process has spawned may not have come for their ends yet: the execution waits for them.
fn outlast_heirs(family: &'static Family, deadline: u64) {
    images::await_claims(family, deadline);
    images::await_other_ends();
    images::take_back_beside_loans(family);
    look::for_each(|index, fd| {
        let connection = Connection::at(family, index, fd);
        if connection.is_awaited() {
            connection.outlast_heir(connection.descriptors().any(stays_open), deadline);
        }
    });
    // An image may have been killed after it came.
    images::take_back_from_dead_images(family);
    // This comes before the departure: a process that finds that this one departs also finds what it takes along.
    look::look_at_all(|it| {
        if is_shared(&it) && stays_open(it.fd) {
            it.end.owners.note_copied();
        }
    });
    images::depart(family, Departing::ForAnImage);
    images::await_arrivals(family, deadline);
}

/// The execution is about to close the connections that the new image does not inherit.
fn leave_behind(family: &'static Family, deadline: u64) {
    look::for_each(|index, fd| {
        let connection = Connection::at(family, index, fd);
        if connection.is_lent() && !connection.descriptors().any(stays_open) {
            connection.leave_behind(deadline);
        }
    });
}

/// The memory and the descriptor for the parcel. With these, packing cannot fail any more.
struct Room {
    environment: Environment,
    variables: usize,
    parcel: Option<(Parcel, LockedEnds, Staying)>,
}

impl Room {
    /// # Safety
    /// `envp` must be null or an environment.
    unsafe fn new(envp: *const *const c_char, how: Execution<'_>) -> Option<Room> {
        let parcel = if how.is_alone() {
            let staying = Staying::look()?;
            let count = staying.count() + NEW;
            Some((Parcel::new(count)?, LockedEnds::new(count)?, staying))
        } else {
            None
        };
        // SAFETY: passed on to the caller.
        let variables = unsafe { variables_in(envp) };
        let len = (variables + 2) * size_of::<*const c_char>() + MOST;
        let memory = memory::reserve(len);
        if memory.is_null() {
            return None;
        }
        let pointers = memory as *mut *const c_char;
        // SAFETY: the memory holds so many pointers, and one more for the null behind ours, which is there.
        unsafe {
            core::ptr::copy_nonoverlapping(envp, pointers, variables);
            *pointers.add(variables) = memory.add((variables + 2) * size_of::<*const c_char>()).cast();
        }
        Some(Room { environment: Environment(Pages { memory, len }), variables, parcel })
    }

    fn fill(self, family: &'static Family, how: Execution<'_>, is_sure: bool) -> Packed {
        let Room { environment, variables, parcel } = self;
        let Pages { memory, .. } = environment.0;
        // SAFETY: the text lies behind the pointers.
        let text = unsafe { memory.add((variables + 2) * size_of::<*const c_char>()) };
        // SAFETY: so long is the rest of the memory, which is zeroed.
        let mut text = Text(unsafe { core::slice::from_raw_parts_mut(text, MOST) }, 0);
        let _ = write!(text, "{VARIABLE}=");
        let lending = Lending::begin();
        let mut loan = Loan::new(family);
        let (parcel, locked) = match parcel {
            Some((mut parcel, mut locked, staying)) => {
                let descriptor = fill_parcel(&mut parcel, &mut locked, family, &mut loan, &staying, is_sure);
                let _ = write!(text, "{BY_PARCEL}{descriptor}");
                (Some(parcel), Some(locked))
            }
            None => {
                if how.is_borrowed() {
                    loan.note_process(kernel::process_id());
                }
                inherited_ends(how, |connection| loan.add(&connection));
                let _ = write!(text, "{BY_FAMILY}{}", Offer::of(&loan));
                (None, None)
            }
        };
        drop(lending);
        if how.is_borrowed() {
            note_child_packed(Some(environment.0));
        }
        Packed {
            _done: None,
            envp: memory.cast(),
            stand_ins: None,
            loan: Some(loan),
            _away: parcel.is_some().then(|| Away(family)),
            _gone: parcel.is_some().then(|| Gone),
            _environment: Some(environment),
            _parcel: parcel,
            _locked: locked,
            _leaving: None,
        }
    }
}

/// Whether other processes have the connection, or may come for it, and go on with it while this one executes a
/// program.
fn is_shared(connection: &Connection) -> bool {
    !connection.is_last() || connection.end.owners.is_lent()
}

/// Puts all connections that the image inherits into the parcel, and returns the parcel's descriptor. Connections that
/// would be lost if the image did not come are handed over instead, unless the image `is_sure`.
fn fill_parcel(
    parcel: &mut Parcel,
    locked: &mut LockedEnds,
    family: &'static Family,
    loan: &mut Loan,
    staying: &Staying,
    is_sure: bool,
) -> i32 {
    // Otherwise other processes keep the family's table, and the new image finds the ends there, unless those are
    // killed.
    let holds = !family.has_others(family::member());
    if holds {
        // Another reference is that of a process which has died since this execution began.
        images::take_back_from_dead_images(family);
    }
    let (member, census) = (family::member(), Census::new());
    // A connection that may be lost with a doubtful image is handed over, which may take long.
    staying.inherited(!is_sure, |connection| {
        if connection.end.stage() > Stage::Joined {
            return;
        }
        if !parcel.has_room() {
            connection.hand_over_or_reset(Reason::Inherited);
            return;
        }
        // This comes before the end is copied.
        let shared = is_shared(&connection) && !(holds && connection.is_last());
        if shared {
            connection.await_hand_over(family);
        }
        let left_behind = connection.go_away();
        let is_joined = connection.end.stage() == Stage::Joined;
        if left_behind.is_none() && !is_sure && is_joined && connection.is_last() {
            // The other end is this process's own, and away until the image is there: waiting for it here would last
            // for ever.
            if census.other_end(&connection).is_some_and(|it| it.end.is_away()) {
                connection.reset();
            } else {
                connection.hand_over_or_reset(Reason::Inherited);
            }
            return;
        }
        let uses = is_joined && connection.is_last() && !connection.end.needs_no_channel();
        let depends = uses && left_behind != Some(0);
        let unread = if depends { connection.unread_for_image() } else { None };
        // Otherwise the image finds the end in the family's table, or resets the connection.
        if !shared {
            locked.lock(&connection);
        }
        let depends = depends || shared && !connection.end.is_plain_for_good();
        if member.is_none() {
            // The image of a member takes over the old image's reference.
            loan.add(&connection);
        }
        connection.learn_cookie();
        parcel.add(&connection, shared, depends, left_behind.unwrap_or(u64::MAX), unread);
    });
    parcel.seal(family, member).unwrap_or(-1)
}
