//! Units of the figures, and how a person reads them.

use serde::{Deserialize, Serialize};

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// A duration in nanoseconds.
    #[serde(rename = "ns")]
    Nanoseconds,
    /// A rate in bytes per second.
    #[serde(rename = "B/s")]
    BytesPerSecond,
    /// A rate in events (requests, connections, exchanges) per second.
    #[serde(rename = "1/s")]
    PerSecond,
    /// A share of one processor, in per cent.
    #[serde(rename = "%")]
    Percent,
    /// An amount of memory in bytes.
    #[serde(rename = "B")]
    Bytes,
    /// How many there are.
    #[serde(rename = "1")]
    Count,
}

/// Which way is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
}

impl Unit {
    /// The symbol used in records.
    pub const fn symbol(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::BytesPerSecond => "B/s",
            Unit::PerSecond => "1/s",
            Unit::Percent => "%",
            Unit::Bytes => "B",
            Unit::Count => "1",
        }
    }

    /// `value` with three significant digits and a unit of a size that suits it: `640 ns`, `60.3 µs`, `1.85 GB/s`.
    pub fn show(self, value: f64) -> String {
        let (value, unit) = self.scaled(value);
        format!("{} {unit}", digits(value)).trim_end().to_string()
    }

    /// A round value with its unit, as targets and the ticks of an axis have it: `5 µs`, `16 KiB`.
    pub fn round(self, value: f64) -> String {
        let (value, unit) = self.scaled(value);
        format!("{} {unit}", plain(value)).trim_end().to_string()
    }

    fn scaled(self, value: f64) -> (f64, &'static str) {
        let (step, units): (f64, &[&str]) = match self {
            Unit::Nanoseconds => (1e3, &["ns", "µs", "ms", "s"]),
            Unit::BytesPerSecond => (1e3, &["B/s", "kB/s", "MB/s", "GB/s"]),
            Unit::PerSecond => (1e3, &["/s", "k/s", "M/s", "G/s"]),
            Unit::Percent => (1e3, &["%"]),
            Unit::Bytes => (1024.0, &["B", "KiB", "MiB", "GiB"]),
            Unit::Count => (1e3, &["", "k", "M", "G"]),
        };
        let (mut value, mut unit) = (value, 0);
        while value.abs() >= 0.9995 * step && unit + 1 < units.len() {
            value /= step;
            unit += 1;
        }
        (value, units[unit])
    }
}

/// Greatest figure in any unit: three hundred years, in ns.
const GREATEST: f64 = 1e19;

/// Whether a figure of more than 0 can be one, in any unit. What is far beyond has no quotient.
pub fn is_possible(value: f64) -> bool {
    (1.0 / GREATEST..=GREATEST).contains(&value)
}

/// As [`digits`], but `25` rather than `25.0` and `1.3` rather than `1.30`: for numbers that were chosen, not measured.
pub fn plain(value: f64) -> String {
    let text = digits(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// A message or write size: `1 B`, `4 KiB`, `1 MiB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        n if n >= 1 << 20 && n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n > 1 << 10 && n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        1024 => "1,024 B".to_string(),
        n => format!("{n} B"),
    }
}

/// A whole number with its thousands set apart.
pub fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `1 client`, `50 clients`.
pub fn counted(n: u32, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

/// A figure as a program or a record told it, which may be one that cannot be: `-5`, `1e308`.
pub fn told(value: f64) -> String {
    let is_short = value == 0.0 || !value.is_finite() || (1e-6..1e16).contains(&value.abs());
    if is_short { value.to_string() } else { format!("{value:e}") }
}

/// Three significant digits, without an exponent.
pub fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 || v == 0.0 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 => 2,
        _ => 3,
    };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_with_three_digits_and_a_fitting_unit() {
        assert_eq!(Unit::Nanoseconds.show(640.0), "640 ns");
        assert_eq!(Unit::Nanoseconds.show(60_312.0), "60.3 µs");
        assert_eq!(Unit::Nanoseconds.show(-300.0), "-300 ns");
        assert_eq!(Unit::BytesPerSecond.show(1.846e9), "1.85 GB/s");
        assert_eq!(Unit::PerSecond.show(999_900.0), "1.00 M/s");
        assert_eq!(Unit::Percent.show(0.0042), "0.004 %");
        assert_eq!(Unit::Bytes.show(16384.0), "16.0 KiB");
        assert_eq!([16.0, 906_354.0].map(|count| Unit::Count.show(count)), ["16.0", "906 k"]);
        assert_eq!(Unit::Bytes.round(16384.0), "16 KiB");
        assert_eq!([0.95, 1.3, 25.0, 80.0, 100.0].map(plain), ["0.95", "1.3", "25", "80", "100"]);
    }

    #[test]
    fn what_cannot_be_is_told_in_few_characters() {
        let all = [0.0, -60_000.0, 0.25, 1e15, 1e308, -2.5e300, 7e-300, f64::NAN, f64::NEG_INFINITY].map(told);
        assert_eq!(all, ["0", "-60000", "0.25", "1000000000000000", "1e308", "-2.5e300", "7e-300", "NaN", "-inf"]);
    }

    #[test]
    fn sizes_and_counts_read_naturally() {
        assert_eq!([1, 64, 1024, 4096, 1 << 20].map(size), ["1 B", "64 B", "1,024 B", "4 KiB", "1 MiB"]);
        assert_eq!([1, 50].map(|n| counted(n, "client")), ["1 client", "50 clients"]);
        assert_eq!([7, 999, 1000, 10_000, 1_234_567].map(thousands), ["7", "999", "1,000", "10,000", "1,234,567"]);
    }
}
