//! Ctrl-C ends a run in order: the programs that were started are stopped and their folders removed.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// The user wants the run to end.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted;

/// From now on the first SIGINT or SIGTERM is remembered for [`check`]; a second one ends the process at once.
pub(crate) fn watch() -> io::Result<()> {
    let asked = ASKED.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM] {
        // In this order: the first handler acts only on what the second has noted before.
        flag::register_conditional_shutdown(signal, 128 + signal, asked.clone())?;
        flag::register(signal, asked.clone())?;
    }
    Ok(())
}

/// Fails once the user has asked for the end.
pub(crate) fn check() -> Result<(), Interrupted> {
    if ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed)) { Err(Interrupted) } else { Ok(()) }
}
