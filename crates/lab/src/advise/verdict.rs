//! What can be said of a choice.

/// Gains below this factor are a tie: what they are worth is less than what they vary by from day to day.
pub const TIE: f64 = 1.05;

/// Why a way is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The way is surely better than the default, and in the median by more than a tie.
    Better,
    /// No way is better than the default by more than a tie.
    NoOffload,
    /// What was measured is not sure, but speaks for it: it was better in the median, and may be by more than a tie.
    LikelyBetter,
    /// What was measured does not tell; the default stays.
    NotDistinguishable,
}

impl Verdict {
    /// As the placement has it.
    pub const fn name(self) -> &'static str {
        match self {
            Verdict::Better => "better",
            Verdict::NoOffload => "no offload",
            Verdict::LikelyBetter => "likely better",
            Verdict::NotDistinguishable => "not distinguishable",
        }
    }
}
