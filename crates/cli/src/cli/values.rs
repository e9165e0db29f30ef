//! Values of arguments that several commands take.

use std::time::Duration;

/// A whole number from 1 to `MOST`.
pub fn whole<N: TryFrom<u64>, const MOST: u64>(text: &str) -> Result<N, String> {
    let number = text.parse().ok().filter(|n| (1..=MOST).contains(n)).and_then(|n| n.try_into().ok());
    number.ok_or_else(|| format!("a whole number from 1 to {MOST} is needed"))
}

/// The number of a process.
pub fn process(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "the number of a process is needed; `underpass ss` lists them".into())
}

/// The number of a descriptor.
pub fn descriptor(text: &str) -> Result<u32, String> {
    text.parse().map_err(|_| "the number of a descriptor is needed; `underpass ss` lists them, as in \"fd 8\"".into())
}

/// The time from one look to the next.
pub fn interval(text: &str) -> Result<Duration, String> {
    let seconds: Option<f64> = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "a number of seconds from 0.1 to 3600 is needed".into())
}

/// A number of seconds to wait.
pub fn seconds(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|n| (0.0..=3600.0).contains(n));
    number.ok_or_else(|| "a number of seconds from 0 to 3600 is needed".into())
}
