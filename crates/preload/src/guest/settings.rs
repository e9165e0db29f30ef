//! The settings of the library, from the environment that the process began with.

use core::cell::UnsafeCell;
use underpass_segment::config::{Config, KEYS};
use underpass_segment::kernel;
use underpass_segment::stats::Counters;
use underpass_segment::sync::{Acquire, AtomicBool, Release};

/// Set up once, by the constructor; read by every call.
struct Settings {
    config: Config,
    counters: Option<Counters>,
}

struct Shared(UnsafeCell<Option<Settings>>);

// SAFETY: written by the constructor before READY is set, only read afterwards.
unsafe impl Sync for Shared {}

/// Written by the constructor before [`READY`] is set, only read afterwards.
static SETTINGS: Shared = Shared(UnsafeCell::new(None));
static READY: AtomicBool = AtomicBool::new(false);

impl Settings {
    fn read() -> Settings {
        let mut config = Config::default();
        for key in KEYS {
            if let Some(text) = variable(key.name) {
                // The command has checked the values. Where the library was preloaded by hand, a bad value means the
                // default.
                let _ = config.set(key.name, text);
            }
        }
        let region = variable("stats").and_then(|text| text.parse().ok());
        let counters = region.and_then(|id| Counters::open(id, kernel::user_id()));
        Settings { config, counters }
    }
}

/// Value of `UNDERPASS_<NAME>`.
fn variable(name: &str) -> Option<&'static str> {
    let mut text = [0u8; 64];
    for (to, from) in text.iter_mut().zip("UNDERPASS_".bytes().chain(name.bytes())).take(63) {
        *to = from.to_ascii_uppercase();
    }
    // SAFETY: NUL-terminated; the environment is not changed while constructors run.
    unsafe {
        let value = libc::getenv(text.as_ptr().cast());
        if value.is_null() { None } else { core::ffi::CStr::from_ptr(value).to_str().ok() }
    }
}

/// Reads the settings. `set_up` does the constructor's other work before any thread can use them. Only the constructor
/// calls this.
pub fn read(set_up: impl FnOnce()) {
    let settings = Settings::read();
    set_up();
    // SAFETY: no other thread runs the constructor, and nobody reads before READY.
    unsafe { *SETTINGS.0.get() = Some(settings) };
    READY.store(true, Release);
}

/// Whether they have been read.
pub fn are_read() -> bool {
    READY.load(Acquire)
}

fn settings() -> Option<&'static Settings> {
    if !are_read() {
        return None;
    }
    // SAFETY: written before READY and not changed afterwards.
    unsafe { (*SETTINGS.0.get()).as_ref() }
}

/// The configuration; the default before the constructor has run.
#[inline]
pub fn config() -> &'static Config {
    settings().map_or(&Config::DEFAULT, |it| &it.config)
}

/// The memory in which this process counts, if the statistics are wanted and their memory can be attached.
pub fn counters() -> Option<Counters> {
    settings()?.counters
}
