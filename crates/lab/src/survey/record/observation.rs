//! What published observations come to on the data of a survey.

use serde::{Deserialize, Serialize};

/// A published observation, and what these data say to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Observation {
    /// Which.
    pub name: ObservationName,
    /// What these data say.
    pub verdict: Verdict,
    /// The reason, with figures, for people.
    pub text: String,
    /// The two-way model: `None` if it could not be fitted.
    pub model: Option<TwoWay>,
}

/// The published observations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObservationName {
    /// How throughput grows with size follows the kind of the sender.
    GrowthFollowsSender,
    /// The greatest throughput follows the kind of the receiver.
    MaximumFollowsReceiver,
    /// Latency follows the kind of the receiver.
    LatencyFollowsReceiver,
}

/// What the data say of an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The named end decides more than the other, beyond chance.
    Confirmed,
    /// The named end does not.
    NotConfirmed,
    /// The data do not tell.
    Undecided,
}

/// `ln(figure) = mean + sender + receiver + residual`, fitted by least squares over all measured pairs.
///
/// An effect is the natural logarithm of a factor, SmartNIC against host: 0 is no effect, -0.69 is half.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TwoWay {
    /// Effect of a SmartNIC as the sender.
    pub sender: Effect,
    /// Effect of a SmartNIC as the receiver.
    pub receiver: Effect,
    /// Standard deviation of what the model leaves, as a natural logarithm.
    pub residual: f64,
    /// Share of the variance that the model explains, 0 to 1.
    pub explained: f64,
    /// Pairs in it.
    pub pairs: usize,
}

/// An effect with its 95 % bootstrap interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Effect {
    /// From all samples.
    pub value: f64,
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}
