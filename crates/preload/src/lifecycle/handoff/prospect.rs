//! Whether a new program image is sure to go on with the connections of this one.
//!
//! It is sure if it loads this very file of the library, whatever root, working directory and users it begins with, and
//! can attach what this image has attached. If that is not sure, the connections are plain TCP before the image begins.

use super::Execution;
use super::program::{File, Identity, MOST_PATH, Outcome, Program};
use crate::guest::family;
use core::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use underpass_segment::family::Family;
use underpass_segment::kernel;
use underpass_segment::layout::{START, fold};
use underpass_segment::sysv;

/// What was found when this image began.
struct Ours {
    library: Identity,
    loader: Identity,
    /// A sum of LD_LIBRARY_PATH, which decides which C library the loader takes for this library.
    search: u64,
    /// The IPC namespace, in which numbers of System V segments are valid.
    namespace: Option<u64>,
}

/// Set by the constructor alone; nothing if it could not be found out.
static OURS: OnceLock<Ours> = OnceLock::new();

/// Called once, by the constructor.
pub fn set_up() {
    // SAFETY: AT_BASE is where the loader lies; without one it is 0.
    let loader = unsafe { libc::getauxval(libc::AT_BASE) } as *const c_void;
    let (Some(library), Some(loader)) = (file_of((&raw const crate::UNDERPASS_LIBRARY).cast()), file_of(loader)) else {
        return;
    };
    // SAFETY: the environment is not changed while constructors run.
    let search = unsafe { libc::getenv(c"LD_LIBRARY_PATH".as_ptr()) };
    // SAFETY: null or a string of the environment.
    let search = if search.is_null() { &[][..] } else { unsafe { CStr::from_ptr(search) }.to_bytes() };
    let namespace = kernel::ipc_namespace();
    let _ = OURS.set(Ours { library, loader, search: mark_of(search), namespace });
}

/// The file in which `address` lies, as the loader has found it.
fn file_of(address: *const c_void) -> Option<Identity> {
    // SAFETY: all-zero is a valid Dl_info, and what the loader names it keeps.
    unsafe {
        let mut about: libc::Dl_info = core::mem::zeroed();
        let known = libc::dladdr(address, &mut about) != 0 && !about.dli_fname.is_null();
        if known { Identity::of(about.dli_fname) } else { None }
    }
}

fn mark_of(text: &[u8]) -> u64 {
    text.iter().fold(START, |mark, &byte| fold(mark, byte.into()))
}

/// What is known of a new image before it begins.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Prospect {
    /// It may not go on with the connections of this one.
    Doubtful,
    /// It will, unless a security module has a rule against that, which no process can ask for.
    Likely,
    /// It will.
    Sure,
    /// There will be none, as far as can be seen: the execution fails.
    Never,
}

/// What is known of an image of `program` with environment `envp`, for connections whose ends are in `family`.
///
/// # Safety
/// `envp` must be null or an environment.
pub unsafe fn of(program: Program, envp: *const *const c_char, how: Execution<'_>, family: &Family) -> Prospect {
    let Some(ours) = OURS.get() else { return Prospect::Doubtful };
    let moves = matches!(how, Execution::Spawned(actions) if actions.may_change_folder());
    let outcome = program.outcome(ours.loader);
    if moves && program.may_be_relative() {
        return Prospect::Doubtful;
    }
    if outcome == Outcome::Fails {
        return Prospect::Never;
    }
    let goes_on = outcome == Outcome::Loads
        && kernel::has_one_identity()
        // SAFETY: passed on to the caller.
        && unsafe { is_preloaded(envp, ours, moves) }
        && can_attach(ours, how, family);
    match goes_on {
        false => Prospect::Doubtful,
        true if kernel::is_labelled() => Prospect::Likely,
        true => Prospect::Sure,
    }
}

/// Whether the loader will find this very file by the environment, and the image will use it.
///
/// # Safety
/// `envp` must be null or an environment.
unsafe fn is_preloaded(envp: *const *const c_char, ours: &Ours, moves: bool) -> bool {
    if envp.is_null() {
        return false;
    }
    let (mut at, mut preloads, mut search) = (envp, None, mark_of(&[]));
    // SAFETY: passed on to the caller.
    while let variable = unsafe { *at }
        && !variable.is_null()
    {
        // SAFETY: likewise.
        let text = unsafe { CStr::from_ptr(variable) }.to_bytes();
        if let Some(value) = text.strip_prefix(b"LD_PRELOAD=") {
            if preloads.replace(value).is_some() {
                return false;
            }
        } else if let Some(value) = text.strip_prefix(b"LD_LIBRARY_PATH=") {
            search = mark_of(value);
        } else if text.starts_with(b"LD_") && !text.starts_with(b"LD_BIND_") || text == b"UNDERPASS_MODE=off" {
            // LD_AUDIT, for example, changes what the loader does in ways that cannot be known here.
            return false;
        }
        // SAFETY: the list goes on to its null.
        at = unsafe { at.add(1) };
    }
    let mut entries = preloads.unwrap_or_default().split(|byte| matches!(byte, b' ' | b':'));
    search == ours.search && entries.any(|entry| is_ours(entry, ours, moves))
}

/// Whether this entry of LD_PRELOAD is this very file, and can be loaded.
fn is_ours(entry: &[u8], ours: &Ours, moves: bool) -> bool {
    let mut path = [0u8; MOST_PATH];
    // The loader searches folders for an entry without a slash, and replaces dollar signs (ld.so(8)).
    if entry.len() >= path.len() || !entry.contains(&b'/') || entry.contains(&b'$') || moves && entry[0] != b'/' {
        return false;
    }
    path[..entry.len()].copy_from_slice(entry);
    let file = File::open(libc::AT_FDCWD, path.as_ptr().cast());
    file.is_ok_and(|file| file.identity() == Some(ours.library) && file.is_mappable())
}

/// Whether what this image has attached can be attached again.
fn can_attach(ours: &Ours, how: Execution<'_>, family: &Family) -> bool {
    if kernel::ipc_namespace() != ours.namespace || !sysv::fits_again() {
        return false;
    }
    let again = Family::open(family.id(), kernel::user_id());
    // The new image makes a table of its own, unless another process keeps this one.
    let alone = how.is_alone() && !family.has_others(family::member());
    let another = if alone { Some(Family::create()) } else { None };
    let attached = again.is_ok() && another.as_ref().is_none_or(|it| it.is_ok());
    for table in [again.ok(), another.and_then(Result::ok)].into_iter().flatten() {
        // SAFETY: nobody has looked into it.
        unsafe { table.detach() };
    }
    attached && family::with_meeting_surely(|meeting| meeting.can_attach_again()) == Some(true)
}
