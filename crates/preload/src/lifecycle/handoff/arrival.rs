//! A new program image takes over what it was handed, before the program begins.

use super::by_cookie::ByCookie;
use super::carried::Carried;
use super::loan::Offer;
use super::parcel::Arrived;
use super::{BY_FAMILY, BY_PARCEL, VARIABLE};
use crate::connection::{self, leaving};
use crate::guest::table;
use crate::lifecycle::adopt::{self, CameBy};
use crate::watch::epoll;
use core::ffi::{CStr, c_char};
use underpass_segment::end::{End, Stage};
use underpass_segment::family::Family;
use underpass_segment::kernel;
use underpass_segment::reason::Reason;
use underpass_segment::sync::{AcqRel, AtomicPtr, Relaxed, Release};

/// The variable's value in this image's own first environment.
static BROUGHT: AtomicPtr<c_char> = AtomicPtr::new(core::ptr::null_mut());

/// Without /proc, descriptors are looked for up to here at most.
const MOST_DESCRIPTORS: u64 = 1 << 20;

/// Takes the variable out of the environment, so that it is not handed on again by itself.
pub fn unpack() {
    let mut name = [0u8; VARIABLE.len() + 1];
    name[..VARIABLE.len()].copy_from_slice(VARIABLE.as_bytes());
    // SAFETY: NUL-terminated. Called once, by the constructor; the string itself stays where the kernel put it.
    unsafe {
        let value = libc::getenv(name.as_ptr().cast());
        if !value.is_null() {
            BROUGHT.store(value, Release);
            libc::unsetenv(name.as_ptr().cast());
        }
    }
}

/// Takes over what was handed to this image, before the program begins: its first call on a connection may be a poll,
/// which only asks. It may hand the connection on unused, and then the processes that get it must share one end. And it
/// may use stdin, stdout and stderr without a call to this library.
pub fn claim() {
    let brought = BROUGHT.swap(core::ptr::null_mut(), AcqRel);
    if brought.is_null() {
        return;
    }
    // SAFETY: a string of the initial environment, which is never unmapped.
    let Ok(text) = unsafe { CStr::from_ptr(brought) }.to_str() else { return };
    let number = |prefix| text.strip_prefix(prefix).and_then(|number| number.parse().ok());
    if let Some(arrived) = number(BY_PARCEL).and_then(Arrived::read) {
        kernel::undisturbed(|| claim_parcel(&arrived));
    } else if let Some(offer) = text.strip_prefix(BY_FAMILY).and_then(Offer::read) {
        kernel::undisturbed(|| claim_from(offer));
    }
    if (0..table::highest()).any(|fd| connection::known(fd).is_some()) {
        kernel::for_each_descriptor(|fd| {
            // There may be thousands of these.
            if connection::known(fd).is_none() {
                epoll::claim(fd, |fd| adopt::give_up(fd, Reason::NoMemory));
            }
        });
    }
}

fn claim_parcel(arrived: &Arrived) {
    let (family, member) = arrived.origin;
    let listed = arrived.listed.items().iter().zip(0..);
    let by_cookie = ByCookie::of(arrived.listed.items().len(), listed.map(|(it, at)| (it.cookie, at)));
    for (at, listed) in arrived.listed.items().iter().enumerate() {
        let end = arrived.contents.items().get(at);
        let is_first = by_cookie.as_ref().is_some_and(|it| it.find(listed.cookie) == Some(at as u32));
        let carried = end.map(|it| Carried {
            family,
            member,
            index: it.index,
            counted: Some(it.counted.into()),
            image: 0,
            left_behind: it.left_behind,
            is_peeked: false,
            is_first,
            end: Some((it, arrived)),
        });
        let claimed = carried.is_some_and(|it| adopt::claim(listed.fd, CameBy::Execution(&it)));
        // The number may be something else by now, if the parcel was another image's.
        if !claimed && listed.depends != 0 && kernel::cookie(listed.fd) == Ok(listed.cookie) {
            leaving::end_lost(listed.fd);
        }
    }
    if let Some(member) = member {
        adopt::keep_claimed(family, member);
    }
}

/// Set in the index of an end for which this image has come too late: the bytes in its channel are gone. Such an end is
/// sorted behind any other end of the same socket.
const LOST: u32 = 1 << 31;
/// In place of the index of an end that is plain TCP for good.
const PLAIN: u32 = LOST - 1;

/// The family's table has the ends of those descriptors that are connections of it, which were lent to this image.
fn claim_from(offer: Offer) {
    let Ok(family) = Family::open(offer.family, kernel::user_id()) else {
        // The last process was killed, or did not see all of the stream come to the kernel path, or was confined.
        return each_connection(|fd, _| {
            if kernel::is_tagged(fd) {
                leaving::end_lost(fd);
            }
        });
    };
    // An end that is free again keeps its cookie until it is taken anew.
    let is_had = |end: &End| end.owners.are_any() || end.owners.is_lent();
    let listed = (0..family.used()).filter_map(|index| {
        let end = family.end(index);
        let index = match end.stage() {
            Stage::Plain | Stage::Waiting | Stage::Joined if is_had(end) => index,
            Stage::Pinned if is_had(end) => PLAIN,
            Stage::Broken if !is_had(end) => index | LOST,
            _ => return None,
        };
        Some((end.cookie.load(Relaxed), index))
    });
    if let Some(by_cookie) = ByCookie::of(family.used() as usize, listed) {
        each_connection(|fd, cookie| match by_cookie.find(cookie) {
            Some(LOST..) => leaving::end_lost(fd),
            Some(PLAIN) => {}
            Some(index) => {
                adopt::claim(fd, CameBy::Execution(&Carried::spawned(offer.family, index, offer.image)));
            }
            // Its end was given up for an image that does not come any more.
            None if kernel::is_tagged(fd) => leaving::end_lost(fd),
            None => {}
        });
    }
    // SAFETY: what was claimed has a mapping of its own.
    unsafe { family.detach() };
}

/// Calls `what` for each descriptor that is a TCP socket, and its cookie.
fn each_connection(mut what: impl FnMut(i32, u64)) {
    let mut look = |fd| {
        if kernel::is_tcp(fd)
            && let Ok(cookie) = kernel::cookie(fd)
        {
            what(fd, cookie);
        }
    };
    if !kernel::for_each_descriptor(&mut look) {
        (0..kernel::limit_of(libc::RLIMIT_NOFILE).min(MOST_DESCRIPTORS) as i32).for_each(look);
    }
}
