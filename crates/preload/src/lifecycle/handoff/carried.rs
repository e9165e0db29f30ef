//! An end that was handed to this process: by the image before it, by the process that spawned it, or by a process that
//! passed the socket.

use super::parcel::{Arrived, Contents, bytes_of};
use crate::connection::state::Usage;
use crate::guest::thread;
use underpass_segment::channel::Channel;
use underpass_segment::end::{End, Stage};
use underpass_segment::family::Family;
use underpass_segment::kernel;
use underpass_segment::reason::Reason;
use underpass_segment::switch::Unread;
use underpass_segment::sync::Relaxed;

/// A connection that was handed to this image.
#[derive(Clone, Copy)]
pub struct Carried<'a> {
    /// The family of its end.
    pub family: i32,
    /// The process's member number in that family, if the same process has executed this image.
    pub member: Option<u32>,
    /// Index of its end in that family.
    pub index: u32,
    /// How the old image counts it, if the process is the same.
    pub counted: Option<Usage>,
    /// This image's number among those that were lent ends of that family; 0: it has none.
    pub image: u32,
    /// What the kernel receives until what was unread in the ring, when its reader went away, is given back.
    pub left_behind: u64,
    /// A message has passed it that was only peeked at.
    pub is_peeked: bool,
    /// No other descriptor of its socket can have come before it.
    pub is_first: bool,
    /// The end itself, if a parcel has it, and that parcel.
    pub end: Option<(&'a Contents, &'a Arrived)>,
}

impl Carried<'_> {
    /// An end that another process has passed to this one: it is in the family of that process.
    pub fn lent(family: i32, index: u32) -> Carried<'static> {
        Carried { counted: Some(Usage::Brought), ..Carried::spawned(family, index, 0) }
    }

    /// An end that another process has passed to this one by a message that was only peeked at: it is still to be
    /// received.
    pub fn peeked(family: i32, index: u32) -> Carried<'static> {
        Carried { is_peeked: true, ..Carried::lent(family, index) }
    }

    /// An end of the family of the process that has spawned this one, to which this image is number `image`.
    pub fn spawned(family: i32, index: u32, image: u32) -> Carried<'static> {
        Carried {
            family,
            member: None,
            index,
            counted: None,
            image,
            left_behind: u64::MAX,
            is_first: false,
            is_peeked: false,
            end: None,
        }
    }

    /// Whether a message has passed the socket, and not the execution of this image.
    pub fn is_passed(&self) -> bool {
        self.counted == Some(Usage::Brought) && !self.is_whole()
    }

    /// Whether the end itself came along.
    pub fn is_whole(&self) -> bool {
        self.end.is_some()
    }

    /// Whether a copy of what was unread came along.
    pub fn has_copy(&self) -> bool {
        self.end.is_some_and(|(contents, _)| contents.has_copy())
    }

    /// Makes `channel` that copy, and says what was unread.
    pub fn fill(&self, channel: &Channel) -> Option<Unread> {
        let (contents, parcel) = self.end?;
        parcel.fill(contents, channel)
    }

    /// Fills `end` with the end that came along; false when that is not an end of a connection that goes on, or may be
    /// out of date.
    pub fn restore(&self, end: &End) -> bool {
        let Some((contents, _)) = self.end else { return false };
        fill(end, contents.end.iter().copied());
        // No thread is in a send of the kernel's any more, on this end or on another copy of it, so the direction may
        // go up again. (Where another family gives an end away, a thread of that family may be in such a send.)
        end.sending.kernel_sends.store(0, Relaxed);
        end.stage() <= Stage::Joined && (contents.shared == 0 || end.is_plain_for_good())
    }
}

/// Makes `end`, which this process has just taken for itself, a copy of the end in `bytes`, with no thread inside.
fn fill(end: &End, bytes: impl Iterator<Item = u8>) {
    let mine = end.owners.count();
    for (index, byte) in bytes.take(size_of::<End>()).enumerate() {
        // SAFETY: below the size of an end, which nobody else looks at yet; any bytes are a valid end.
        unsafe { (end as *const End as *mut u8).add(index).write(byte) };
    }
    if end.owners.replace(mine) > 1 {
        // The other processes that have it have ends of their own for it by now.
        end.pin(Reason::Shared);
    }
    // A thread that was inside is gone with the old image, or goes on with the old end. What it left half done is
    // mended.
    end.reading.lock.forsake_all();
    end.reading.receiver.store(0, Relaxed);
    end.reading.taking.store(0, Relaxed);
    end.sending.lock.forsake_all();
    // No other image or process can come for the end.
    end.owners.end_loans();
}

/// Fills `end` from end number `index` of family `id`, which is another than this process's and has passed the socket
/// here: to that family the connection is plain TCP from then on. False if that cannot be.
pub fn take_over(end: &End, id: i32, index: u32, cookie: u64) -> bool {
    let Ok(lender) = Family::open(id, kernel::user_id()) else { return false };
    let old = lender.end(index);
    let is_there = old.cookie.load(Relaxed) == cookie && !old.needs_no_channel() && old.owners.add();
    let copy = || {
        fill(end, bytes_of(old));
        // Only this thread was inside.
        end.reading.lock.open();
        end.sending.lock.open();
    };
    let taken = is_there && kernel::undisturbed(|| old.transfer(thread::number(), copy));
    if taken {
        end.forget_watchers();
    }
    if is_there && old.owners.drop_reference() && taken && old.owners.end_if_unused() {
        lender.free(index);
    }
    // SAFETY: the reference to the end was the only one, and is not used any more.
    unsafe { lender.detach() };
    taken
}
