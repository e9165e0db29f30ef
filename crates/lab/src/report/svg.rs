//! What the plots share: logarithmic scales and their ticks.

/// Places values on a line of pixels by their logarithm.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    values: (f64, f64),
    pixels: (f64, f64),
}

impl Scale {
    /// Puts the first of `values` at the first of `pixels`, the second at the second. Values are above 0.
    pub fn new(values: (f64, f64), pixels: (f64, f64)) -> Scale {
        Scale { values: (values.0.ln(), values.1.ln()), pixels }
    }

    /// Where `value` lies.
    pub fn at(&self, value: f64) -> f64 {
        let span = self.values.1 - self.values.0;
        let part = if span == 0.0 { 0.5 } else { (value.ln() - self.values.0) / span };
        self.pixels.0 + part * (self.pixels.1 - self.pixels.0)
    }
}

/// The values 1, 2 and 5 times a power of ten, as far as `digits` has them, within `low` and `high`.
pub fn ticks(low: f64, high: f64, digits: &[f64]) -> Vec<f64> {
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let all = (first..=last).flat_map(|power| digits.iter().map(move |digit| digit * 10f64.powi(power)));
    all.filter(|tick| (low * 0.999..=high * 1.001).contains(tick)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_factors_take_equal_room() {
        let scale = Scale::new((1.0, 100.0), (0.0, 200.0));
        assert_eq!([1.0, 10.0, 100.0].map(|value| scale.at(value).round()), [0.0, 100.0, 200.0]);
    }

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(ticks(0.5, 20.0, &[1.0, 2.0, 5.0]), [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(ticks(300.0, 90_000.0, &[1.0]), [1e3, 1e4]);
    }
}
