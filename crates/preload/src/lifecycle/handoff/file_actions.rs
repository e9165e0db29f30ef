//! The file actions of a spawn (posix_spawn_file_actions_t), as glibc keeps them: which descriptors the program will
//! have, and a list with further actions.
//!
//! The list is public, its entries are not. Their layout has been the same since glibc 2.2, and is checked before it is
//! relied on.

use crate::guest::memory::Reserved;
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
    /// dup2(2). A descriptor that is duplicated onto itself is inherited from then on.
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

    /// The numbers that the action needs, or gives to something else; not a number that it closes.
    fn numbers(self) -> [Option<i32>; 2] {
        match self {
            Action::Open(fd) => [Some(fd), None],
            Action::Duplicate { from, to } => [Some(from), Some(to)],
            Action::Close(_) | Action::CloseFrom(_) | Action::ChangeFolder | Action::Other => [None; 2],
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
pub struct FileActions {
    list: *const List,
    sources: Sources,
}

/// The numbers that are duplicated.
enum Sources {
    /// There are no actions.
    Nothing,
    /// These numbers, sorted.
    Known(Reserved<i32>),
    /// This libc keeps the list in another way, or there is no memory.
    Unknown,
}

impl FileActions {
    /// No list.
    pub const NONE: FileActions = FileActions { list: ptr::null(), sources: Sources::Nothing };

    /// The file actions of `list`.
    ///
    /// # Safety
    /// It must be null or a list that is valid as long as the value is used.
    pub unsafe fn of(list: *const posix_spawn_file_actions_t) -> FileActions {
        let mut actions = FileActions { list: list.cast(), sources: Sources::Nothing };
        if !actions.entries().is_empty() {
            actions.sources = actions.find_sources().map_or(Sources::Unknown, Sources::Known);
        }
        actions
    }

    fn find_sources(&self) -> Option<Reserved<i32>> {
        if !is_layout_known() {
            return None;
        }
        let mut sources = Reserved::even_confined(self.entries().len())?;
        for entry in self.entries() {
            if let Action::Duplicate { from, .. } = Action::of(entry)? {
                sources.push(from);
            }
        }
        sources.items_mut().sort_unstable();
        Some(sources)
    }

    fn entries(&self) -> &[Entry] {
        // SAFETY: null or a valid list, which the maker of this value has promised.
        match unsafe { self.list.as_ref() } {
            // SAFETY: so many entries are in it.
            Some(list) if list.used > 0 => unsafe { core::slice::from_raw_parts(list.entries, list.used as usize) },
            _ => &[],
        }
    }

    /// All of them in their order; `None` where they are not known.
    pub fn all(&self) -> Option<impl Iterator<Item = Action>> {
        let is_known = !matches!(self.sources, Sources::Unknown);
        is_known.then(|| self.entries().iter().filter_map(Action::of))
    }

    /// Whether the program may get `fd` under another number, or though it is closed on execution.
    pub fn may_give(&self, fd: i32) -> bool {
        match &self.sources {
            Sources::Nothing => false,
            Sources::Known(sources) => sources.items().binary_search(&fd).is_ok(),
            Sources::Unknown => true,
        }
    }

    /// Whether the program surely does not get `fd`: nothing duplicates it, and its number is closed or becomes
    /// something else's.
    pub fn take_away(&self, fd: i32) -> bool {
        let takes = |action| match action {
            Action::Close(it) | Action::Open(it) => it == fd,
            Action::Duplicate { to, .. } => to == fd,
            Action::CloseFrom(from) => from <= fd,
            Action::ChangeFolder | Action::Other => false,
        };
        !self.may_give(fd) && self.all().is_some_and(|mut all| all.any(takes))
    }

    /// Whether the program may begin in another working directory.
    pub fn may_change_folder(&self) -> bool {
        self.all().is_none_or(|mut all| all.any(|it| it == Action::ChangeFolder))
    }

    /// Above all numbers that the actions need or give to something else.
    pub fn above(&self) -> Option<i32> {
        let highest = self.all()?.flat_map(Action::numbers).flatten().max();
        Some(highest.map_or(0, |highest| highest + 1))
    }

    /// Whether the actions need a number, or give it to something else.
    pub fn use_number(&self, fd: i32) -> bool {
        self.all().is_none_or(|mut all| all.any(|it| it.numbers().contains(&Some(fd))))
    }

    /// A list with `more` actions behind the first `at`, those that close a descriptor or duplicate one, and without
    /// what closes `kept`. `None` without memory, and where this libc keeps them in another way.
    pub fn with(&self, at: usize, more: &[Action], kept: Option<i32>) -> Option<LongerList> {
        if !is_layout_known() {
            return None;
        }
        let (before, behind) = self.entries().split_at_checked(at)?;
        let mut entries = Reserved::even_confined(before.len() + more.len() + behind.len())?;
        let added = more.iter().filter_map(|it| it.entry());
        let goes_along = |it: &&Entry| kept.is_none_or(|kept| Action::of(it) != Some(Action::Close(kept)));
        let before = before.iter().filter(goes_along).copied();
        before.chain(added).chain(behind.iter().copied()).for_each(|it| {
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
    if KNOWN.load(Relaxed) == UNKNOWN
        && let Some(has) = has_layout()
    {
        KNOWN.store(if has { YES } else { NO }, Relaxed);
    }
    KNOWN.load(Relaxed) == YES
}

/// Whether this libc keeps entries as [`Entry`] says, found out by a list of known actions; `None` if no list can be
/// made.
fn has_layout() -> Option<bool> {
    let mut list = MaybeUninit::<List>::zeroed();
    let list = list.as_mut_ptr();
    let expected = [
        Action::Close(1),
        Action::Duplicate { from: 1, to: 2 },
        Action::Open(2),
        Action::Duplicate { from: 2, to: 0 },
        Action::Close(0),
    ];
    // SAFETY: a list of this libc's own, which is initialised before it is used, and long enough for any.
    unsafe {
        let actions = list.cast();
        if libc::posix_spawn_file_actions_init(actions) != 0 {
            return None;
        }
        let made = libc::posix_spawn_file_actions_addclose(actions, 1) == 0
            && libc::posix_spawn_file_actions_adddup2(actions, 1, 2) == 0
            && libc::posix_spawn_file_actions_addopen(actions, 2, c"/".as_ptr(), 0, 0) == 0
            && libc::posix_spawn_file_actions_adddup2(actions, 2, 0) == 0
            && libc::posix_spawn_file_actions_addclose(actions, 0) == 0;
        let is_as_long = made && (*list).used as usize == expected.len() && !(*list).entries.is_null();
        let entries = if is_as_long { core::slice::from_raw_parts((*list).entries, expected.len()) } else { &[] };
        let is_so = entries.iter().map(Action::of).eq(expected.into_iter().map(Some));
        libc::posix_spawn_file_actions_destroy(actions);
        made.then_some(is_so)
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
        assert!(actions.above() == Some(4) && actions.use_number(0) && !actions.use_number(4));
        // Number 3 is standard input by then, and what that was is gone.
        assert!(!actions.take_away(3) && actions.take_away(0) && actions.take_away(4) && !actions.take_away(2));
        let none = FileActions::NONE;
        assert!(!none.may_give(3) && !none.take_away(3) && !none.may_change_folder() && none.above() == Some(0));
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
        let more = [Action::Close(7), Action::Duplicate { from: 5, to: 6 }];
        let longer = actions.with(1, &more, None).expect("memory");
        // SAFETY: likewise.
        let all: Vec<Action> = unsafe { FileActions::of(longer.as_ptr()) }.all().expect("a known layout").collect();
        assert_eq!(all, [Action::Open(9), Action::Close(7), Action::Duplicate { from: 5, to: 6 }, Action::Close(4)]);
        assert!(actions.with(3, &[], None).is_none());
        let longer = actions.with(2, &more, Some(4)).expect("memory");
        // SAFETY: likewise.
        let all: Vec<Action> = unsafe { FileActions::of(longer.as_ptr()) }.all().expect("a known layout").collect();
        assert_eq!(all, [Action::Open(9), Action::Close(7), Action::Duplicate { from: 5, to: 6 }]);
    }
}
