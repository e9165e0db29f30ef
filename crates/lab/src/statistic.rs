//! What several samples say together.

use std::f64::consts::FRAC_PI_2;

/// The middle value, or the mean of the middle two; `None` of nothing.
pub fn median(samples: &[f64]) -> Option<f64> {
    median_in_place(&mut samples.to_vec())
}

/// As [`median`], of samples that may be put into another order.
pub fn median_in_place(samples: &mut [f64]) -> Option<f64> {
    let (count, middle) = (samples.len(), samples.len() / 2);
    if count == 0 {
        return None;
    }
    let (below, above, _) = samples.select_nth_unstable_by(middle, f64::total_cmp);
    if count % 2 == 1 {
        return Some(*above);
    }
    let below = below.iter().copied().max_by(f64::total_cmp)?;
    Some((below + *above) / 2.0)
}

/// The least and the greatest value; `None` of nothing.
pub fn range(samples: &[f64]) -> Option<(f64, f64)> {
    let least = samples.iter().copied().min_by(f64::total_cmp)?;
    let greatest = samples.iter().copied().max_by(f64::total_cmp)?;
    Some((least, greatest))
}

/// The arithmetic mean; `None` of nothing.
pub fn mean(samples: &[f64]) -> Option<f64> {
    (!samples.is_empty()).then(|| samples.iter().sum::<f64>() / samples.len() as f64)
}

/// The standard deviation of that from which the samples were taken; of one sample, 0. `None` of nothing.
pub fn deviation(samples: &[f64]) -> Option<f64> {
    let mean = mean(samples)?;
    let squares: f64 = samples.iter().map(|sample| (sample - mean).powi(2)).sum();
    Some((squares / (samples.len() - 1).max(1) as f64).sqrt())
}

/// How many standard deviations, which were estimated with so many degrees of freedom (1 or more), reach from the
/// middle of a normal distribution to either end of its middle `share` (Student, "The probable error of a mean", 1908).
pub fn student(freedom: f64, share: f64) -> f64 {
    const STEPS: u32 = 4000;
    let step = FRAC_PI_2 / f64::from(STEPS);
    // The density over an angle whose tangent is t divided by the root of the degrees of freedom, but for a factor.
    let density = |at: u32| ((f64::from(at) + 0.5) * step).cos().powf(freedom - 1.0);
    let mut left = share * (0..STEPS).map(density).sum::<f64>();
    for at in 0..STEPS {
        let here = density(at);
        if left <= here {
            return freedom.sqrt() * ((f64::from(at) + left / here) * step).tan();
        }
        left -= here;
    }
    f64::INFINITY
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `scipy.stats.t.ppf(0.975, freedom)`; 1.96 is that of the normal distribution.
    #[test]
    fn few_degrees_of_freedom_reach_far() {
        for (freedom, expected) in [
            (1.0, 12.7062),
            (2.0, 4.30265),
            (3.0, 3.18245),
            (5.0, 2.57058),
            (10.0, 2.22814),
            (100.0, 1.98397),
            (500.0, 1.96472),
        ] {
            let is = student(freedom, 0.95);
            assert!((is / expected - 1.0).abs() < 1e-3, "{freedom}: {is} and not {expected}");
        }
        assert!(student(1.5, 0.95) < 7.0 && student(1.5, 0.95) > 5.0);
    }

    #[test]
    fn the_mean_has_its_deviation() {
        assert_eq!((mean(&[]), deviation(&[])), (None, None));
        assert_eq!((mean(&[3.0]), deviation(&[3.0])), (Some(3.0), Some(0.0)));
        assert_eq!((mean(&[1.0, 2.0, 3.0]), deviation(&[1.0, 2.0, 3.0])), (Some(2.0), Some(1.0)));
    }

    #[test]
    fn median_is_the_middle_whatever_the_order() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&[1e9, 1.0, 1.0, 1.0, 1.0]), Some(1.0), "one disturbed sample does not count");
    }

    #[test]
    fn range_spans_all_samples() {
        assert_eq!(range(&[]), None);
        assert_eq!(range(&[2.0, -1.0, 7.0]), Some((-1.0, 7.0)));
    }
}
