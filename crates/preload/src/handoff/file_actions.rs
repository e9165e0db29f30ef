//! The file actions of a spawn (posix_spawn_file_actions_t), as glibc keeps them: what the program will have under which number,
//! and a longer list.
//!
//! The list is public, its entries are not. They have been the same since glibc 2.2, and are looked at before that is relied on.

use crate::memory::Reserved;
use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use libc::posix_spawn_file_actions_t;
use underpass_segment::sync::{AtomicU32, Relaxed};

/// posix_spawn_file_actions_t, as <spawn.h> has it.
#[repr(C)]
struct List {
    room: c_int,
    used: c_int,
    entries: *const Entry,
    unused: [c_int; 16],
}

const _: () = assert!(size_of::<List>() == size_of::<posix_spawn_file_actions_t>());

/// One action. What follows the numbers differs from kind to kind.
#[derive(Clone, Copy)]
#[repr(C)]
struct Entry {
    kind: c_int,
    // The rest is as aligned as a pointer.
    unused: c_int,
    numbers: [c_int; 2],
    rest: [MaybeUninit<u64>; 2],
}

const CLOSE: c_int = 0;
const DUPLICATE: c_int = 1;
const OPEN: c_int = 2;
const CHANGE_FOLDER: [c_int; 2] = [3, 4];
const CLOSE_FROM: c_int = 5;
const SET_TERMINAL: c_int = 6;

/// What is done to descriptors before the program begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// close(2).
    Close(i32),
    /// dup2(2). One that is duplicated onto itself is inherited from then on.
    Duplicate { from: i32, to: i32 },
    /// The number becomes another file's.
    Open(i32),
    /// This number and all above are closed.
    CloseFrom(i32),
    /// Another working directory.
    ChangeFolder,
    /// Nothing that concerns descriptors.
    Other,
}

impl Action {
    fn of(entry: &Entry) -> Option<Action> {
        let [first, second] = entry.numbers;
        match entry.kind {
            CLOSE => Some(Action::Close(first)),
            DUPLICATE => Some(Action::Duplicate { from: first, to: second }),
            OPEN => Some(Action::Open(first)),
            CLOSE_FROM => Some(Action::CloseFrom(first)),
            SET_TERMINAL => Some(Action::Other),
            kind if CHANGE_FOLDER.contains(&kind) => Some(Action::ChangeFolder),
            _ => None,
        }
    }

    /// The highest number that it names.
    pub fn highest(self) -> Option<i32> {
        match self {
            Action::Close(fd) | Action::Open(fd) => Some(fd),
            Action::Duplicate { from, to } => Some(from.max(to)),
            Action::CloseFrom(_) | Action::ChangeFolder | Action::Other => None,
        }
    }

    fn entry(self) -> Option<Entry> {
        let (kind, numbers) = match self {
            Action::Close(fd) => (CLOSE, [fd, 0]),
            Action::Duplicate { from, to } => (DUPLICATE, [from, to]),
            _ => return None,
        };
        Some(Entry { kind, unused: 0, numbers, rest: [MaybeUninit::new(0); 2] })
    }
}

/// The file actions of a spawn, perhaps none.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct FileActions(*const List);

impl FileActions {
    /// No list.
    pub const NONE: FileActions = FileActions(ptr::null());

    /// Those of `list`.
    ///
    /// # Safety
    /// It must be null or a list that is valid as long as the value is used.
    pub unsafe fn of(list: *const posix_spawn_file_actions_t) -> FileActions {
        FileActions(list.cast())
    }

    fn entries(&self) -> &[Entry] {
        // SAFETY: null or a valid list, as whoever made this value vouches for.
        match unsafe { self.0.as_ref() } {
            // SAFETY: so many entries are in it.
            Some(list) if list.used > 0 => unsafe { core::slice::from_raw_parts(list.entries, list.used as usize) },
            _ => &[],
        }
    }

    /// All of them in their order; `None` where this libc keeps them in another way.
    pub fn all(&self) -> Option<impl Iterator<Item = Action>> {
        let is_known =
            self.0.is_null() || is_layout_known() && self.entries().iter().all(|it| Action::of(it).is_some());
        is_known.then(|| self.entries().iter().filter_map(Action::of))
    }

    /// Whether the program may get `fd` under another number, or though it is closed on execution.
    pub fn may_give(&self, fd: i32) -> bool {
        self.all().is_none_or(|mut all| all.any(|it| matches!(it, Action::Duplicate { from, .. } if from == fd)))
    }

    /// Whether the program may begin in another working directory.
    pub fn may_change_folder(&self) -> bool {
        self.all().is_none_or(|mut all| all.any(|it| it == Action::ChangeFolder))
    }

    /// A list with `more` actions behind the first `at`: those that close a descriptor or duplicate one. `None` without memory,
    /// and where this libc keeps them in another way.
    pub fn with(&self, at: usize, more: &[Action]) -> Option<LongerList> {
        if !is_layout_known() {
            return None;
        }
        let (before, behind) = self.entries().split_at_checked(at)?;
        let mut entries = Reserved::new(before.len() + more.len() + behind.len())?;
        let added = more.iter().filter_map(|it| it.entry());
        before.iter().copied().chain(added).chain(behind.iter().copied()).for_each(|it| {
            entries.push(it);
        });
        let used = c_int::try_from(entries.items().len()).ok()?;
        let list = List { room: used, used, entries: entries.items().as_ptr(), unused: [0; 16] };
        Some(LongerList { list, _entries: entries })
    }
}

/// A list in memory of its own.
pub struct LongerList {
    list: List,
    _entries: Reserved<Entry>,
}

impl LongerList {
    /// For posix_spawn(3), while this value lives.
    pub fn as_ptr(&self) -> *const posix_spawn_file_actions_t {
        (&raw const self.list).cast()
    }
}

/// Whether this libc keeps entries as [`Entry`] says.
fn is_layout_known() -> bool {
    const UNKNOWN: u32 = 0;
    const YES: u32 = 1;
    const NO: u32 = 2;
    static KNOWN: AtomicU32 = AtomicU32::new(UNKNOWN);
    if KNOWN.load(Relaxed) == UNKNOWN {
        KNOWN.store(if has_layout() { YES } else { NO }, Relaxed);
    }
    KNOWN.load(Relaxed) == YES
}

/// The same, found out by a list of known actions.
fn has_layout() -> bool {
    let mut list = MaybeUninit::<List>::zeroed();
    let list = list.as_mut_ptr();
    let expected = [
        Action::Close(5),
        Action::Duplicate { from: 6, to: 7 },
        Action::Open(8),
        Action::ChangeFolder,
        Action::Duplicate { from: 9, to: 10 },
    ];
    // SAFETY: a list of this libc's own, which is initialised before it is used, and long enough for any.
    unsafe {
        let actions = list.cast();
        let made = libc::posix_spawn_file_actions_init(actions) == 0
            && libc::posix_spawn_file_actions_addclose(actions, 5) == 0
            && libc::posix_spawn_file_actions_adddup2(actions, 6, 7) == 0
            && libc::posix_spawn_file_actions_addopen(actions, 8, c"/".as_ptr(), 0, 0) == 0
            && libc::posix_spawn_file_actions_addchdir_np(actions, c"/".as_ptr()) == 0
            && libc::posix_spawn_file_actions_adddup2(actions, 9, 10) == 0;
        let is_as_long = made && (*list).used as usize == expected.len() && !(*list).entries.is_null();
        let entries = FileActions(list);
        let is_so = is_as_long && entries.entries().iter().map(Action::of).eq(expected.into_iter().map(Some));
        libc::posix_spawn_file_actions_destroy(actions);
        is_so
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(make: impl FnOnce(*mut posix_spawn_file_actions_t)) -> posix_spawn_file_actions_t {
        let mut list = MaybeUninit::uninit();
        // SAFETY: it is initialised before it is used.
        unsafe {
            assert_eq!(libc::posix_spawn_file_actions_init(list.as_mut_ptr()), 0);
            make(list.as_mut_ptr());
            list.assume_init()
        }
    }

    #[test]
    fn actions_are_read_as_they_were_made() {
        unsafe extern "C" {
            fn posix_spawn_file_actions_addclosefrom_np(list: *mut posix_spawn_file_actions_t, from: c_int) -> c_int;
        }
        // SAFETY: valid lists and strings.
        let made = list(|it| unsafe {
            assert_eq!(libc::posix_spawn_file_actions_adddup2(it, 3, 0), 0);
            assert_eq!(libc::posix_spawn_file_actions_addfchdir_np(it, 4), 0);
            assert_eq!(posix_spawn_file_actions_addclosefrom_np(it, 3), 0);
        });
        // SAFETY: it lives on.
        let actions = unsafe { FileActions::of(&made) };
        let all: Vec<Action> = actions.all().expect("a known layout").collect();
        assert_eq!(all, [Action::Duplicate { from: 3, to: 0 }, Action::ChangeFolder, Action::CloseFrom(3)]);
        assert!(actions.may_give(3) && !actions.may_give(0) && actions.may_change_folder());
        assert!(!FileActions::NONE.may_give(3) && !FileActions::NONE.may_change_folder());
    }

    #[test]
    fn a_longer_list_does_what_was_added_in_its_place() {
        // SAFETY: valid lists and strings.
        let made = list(|it| unsafe {
            assert_eq!(libc::posix_spawn_file_actions_addopen(it, 9, c"/dev/null".as_ptr(), libc::O_RDONLY, 0), 0);
            assert_eq!(libc::posix_spawn_file_actions_addclose(it, 4), 0);
        });
        // SAFETY: it lives on.
        let actions = unsafe { FileActions::of(&made) };
        let longer = actions.with(1, &[Action::Close(7), Action::Duplicate { from: 5, to: 6 }]).expect("memory");
        // SAFETY: likewise.
        let all: Vec<Action> = unsafe { FileActions::of(longer.as_ptr()) }.all().expect("a known layout").collect();
        assert_eq!(all, [Action::Open(9), Action::Close(7), Action::Duplicate { from: 5, to: 6 }, Action::Close(4)]);
        assert!(actions.with(3, &[]).is_none());
    }
}
