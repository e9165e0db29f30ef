//! What several samples say together.

/// The middle value, or the mean of the middle two; `None` of nothing.
pub fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

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
