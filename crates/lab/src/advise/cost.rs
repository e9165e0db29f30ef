//! What a message costs in one way, as a function of its size, from the sizes that were measured.
//!
//! Between two measured sizes the cost is a fixed part and a part for each byte: a straight line, for each pair of
//! neighbours another one. One line for all sizes would be simpler and is worse: it does not know of caches.
//! `docs/placement.md` has the errors of both, measured on sizes that were left out of the records of November 2026.

use fastrand::Rng;

use crate::bootstrap::redrawn_median;
use crate::statistic::median;

/// The cost of a message in one way, over its size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Curve {
    /// By size, the smallest first.
    points: Vec<Measured>,
    /// Sizes that were measured with a sample that is no cost, in order.
    refused: Vec<u64>,
}

/// What was measured at one size.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Bytes of a message; 0 where there is no such size.
    pub size: u64,
    /// Nanoseconds of a message (or of a byte, where there is no message), each above 0.
    pub costs: Vec<f64>,
}

impl Curve {
    /// Adds a size, unless it is there already. A size with a sample that is no cost is only remembered as
    /// [refused](Curve::refused).
    pub fn add(&mut self, size: u64, costs: Vec<f64>) {
        let is_cost = |cost: &f64| cost.is_finite() && *cost > 0.0;
        if costs.is_empty() || self.at(size).is_some() {
            return;
        }
        if costs.iter().all(is_cost) {
            self.points.push(Measured { size, costs });
            self.points.sort_by_key(|point| point.size);
        } else {
            self.refused.push(size);
            self.refused.sort_unstable();
        }
    }

    /// Sizes that cannot be used, because a sample of them is no cost, in order.
    pub fn refused(&self) -> &[u64] {
        &self.refused
    }

    /// What was measured at this size.
    pub fn at(&self, size: u64) -> Option<&Measured> {
        self.points.iter().find(|point| point.size == size)
    }

    /// Sizes that were measured, in order.
    pub fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        self.points.iter().map(|point| point.size)
    }

    /// The fewest samples that the cost at this size rests on; of all sizes, where it was not measured. `None` of no
    /// size.
    pub fn fewest(&self, size: u64) -> Option<usize> {
        let here = self.at(size).map(|point| point.costs.len());
        here.or_else(|| self.points.iter().map(|point| point.costs.len()).min())
    }

    /// The curve without this size.
    pub fn without(&self, size: u64) -> Curve {
        let points = self.points.iter().filter(|point| point.size != size).cloned().collect();
        Curve { points, refused: self.refused.clone() }
    }

    /// The cost at this size; `None` outside of the measured sizes, of which nothing is known.
    pub fn predict(&self, size: u64) -> Option<f64> {
        self.between(size, |point| median(&point.costs))
    }

    /// The cost at this size, from samples that are drawn anew, with repetition.
    pub fn redraw(&self, size: u64, rng: &mut Rng) -> Option<f64> {
        let mut drawn = Vec::new();
        self.between(size, |point| redrawn_median(rng, &point.costs, &mut drawn))
    }

    fn between(&self, size: u64, mut cost: impl FnMut(&Measured) -> Option<f64>) -> Option<f64> {
        let above = self.points.iter().position(|point| point.size >= size)?;
        if self.points[above].size == size {
            return cost(&self.points[above]);
        }
        let (low, high) = (&self.points[above.checked_sub(1)?], &self.points[above]);
        let share = (size - low.size) as f64 / (high.size - low.size) as f64;
        let (from, to) = (cost(low)?, cost(high)?);
        Some(from + (to - from) * share)
    }
}
