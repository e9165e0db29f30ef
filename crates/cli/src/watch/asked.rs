//! The signals that ask for an end, for commands that go on until one comes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::low_level::emulate_default_handler;

/// The last of them that has come, by number; 0: none has.
pub struct Asked(Arc<AtomicUsize>);

impl Asked {
    /// Catches the signals: from now on they no longer end this process by themselves.
    pub fn listen() -> io::Result<Asked> {
        let asked = Asked(Arc::default());
        for signal in [SIGTERM, SIGHUP, SIGINT] {
            signal_hook::flag::register_usize(signal, Arc::clone(&asked.0), signal as usize)?;
        }
        Ok(asked)
    }

    pub fn signal(&self) -> Option<i32> {
        Some(self.0.load(Ordering::Relaxed) as i32).filter(|&signal| signal != 0)
    }

    /// Ends this process as the signal would have, if one has come.
    pub fn end(&self) -> anyhow::Result<()> {
        Ok(self.signal().map_or(Ok(()), emulate_default_handler)?)
    }
}
