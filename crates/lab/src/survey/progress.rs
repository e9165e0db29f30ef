//! What a person sees while a survey runs: on a terminal alone, what is measured and how long the rest will take.

use std::time::{Duration, Instant};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::record::Key;

/// Shows how far a survey has come.
#[derive(Debug)]
pub struct Progress {
    bar: ProgressBar,
    begun: Instant,
    /// Samples taken since then.
    taken: u32,
    left: u32,
}

impl Progress {
    /// Shows it, if asked, for a survey that has so many samples of all.
    pub fn new(shown: bool, have: usize, all: usize) -> Progress {
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(all as u64), target);
        let style = ProgressStyle::with_template("{elapsed_precise} {bar:24} {pos}/{len}  {wide_msg}");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_position(have as u64);
        if shown {
            bar.enable_steady_tick(Duration::from_millis(500));
        }
        Progress { bar, begun: Instant::now(), taken: 0, left: (all - have) as u32 }
    }

    /// This is being measured.
    pub fn begin(&self, key: &Key) {
        let remaining = remaining(self.begun.elapsed(), self.taken, self.left);
        let remaining = remaining.map(|time| format!("{} left; ", HumanDuration(time))).unwrap_or_default();
        self.bar.set_message(format!("{remaining}{key}"));
    }

    /// The sample has been measured, or has failed.
    pub fn end(&mut self) {
        self.taken += 1;
        self.pass();
    }

    /// The sample will not be measured.
    pub fn pass(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.bar.inc(1);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// How long the rest will take, if it goes on as until now.
fn remaining(elapsed: Duration, taken: u32, left: u32) -> Option<Duration> {
    (taken > 0).then(|| elapsed.div_f64(taken.into()).mul_f64(left.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rest_takes_as_long_as_what_was() {
        assert_eq!(remaining(Duration::from_secs(10), 0, 5), None);
        assert_eq!(remaining(Duration::from_secs(10), 5, 50), Some(Duration::from_secs(100)));
        assert_eq!(remaining(Duration::from_secs(10), 5, 0), Some(Duration::ZERO));
    }
}
