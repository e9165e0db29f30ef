//! What the samples of a series come to: median, bootstrap interval, percentiles, processor time per byte and exchange.

use super::record::{Key, Metric, Percentiles, Sample, Series, Summary};
use crate::bootstrap;
use crate::statistic::median;

/// What these samples come to; `None` of none.
pub fn summarize(metric: Metric, samples: &[Sample]) -> Option<Summary> {
    let values: Vec<f64> = samples.iter().map(|sample| sample.value).collect();
    let middle = median(&values)?;
    let interval = bootstrap::of_median(&values);
    let cost = |time: fn(&Sample) -> Option<u64>| median(&costs(metric, samples, time)?);
    Some(Summary {
        median: middle,
        low: interval.map(|it| it.low),
        high: interval.map(|it| it.high),
        percentiles: percentiles(samples),
        sender_cost: cost(|sample| Some(sample.sender_time)),
        receiver_cost: cost(|sample| Some(sample.receiver_time)),
        via_cost: cost(|sample| sample.via_time),
    })
}

impl Series {
    /// Without a sample.
    pub fn of(key: Key) -> Series {
        let (unit, better) = (key.metric.unit(), key.metric.better());
        Series { key, unit, better, samples: Vec::new(), summary: None }
    }

    /// Says anew what the samples come to.
    pub fn summarize(&mut self) {
        self.summary = summarize(self.key.metric, &self.samples);
    }
}

impl Sample {
    /// Bytes, or exchanges, over which processor time is spread.
    pub fn pieces(&self, metric: Metric) -> Option<f64> {
        let pieces = match metric {
            Metric::Throughput | Metric::Tls => self.bytes,
            Metric::Latency => self.exchanges,
        };
        pieces.filter(|pieces| *pieces > 0).map(|pieces| pieces as f64)
    }
}

/// Processor time for each byte, of latency for each exchange, in ns; `None` if a sample does not tell one of them.
pub fn costs(metric: Metric, samples: &[Sample], time: fn(&Sample) -> Option<u64>) -> Option<Vec<f64>> {
    samples.iter().map(|sample| Some(time(sample)? as f64 / sample.pieces(metric)?)).collect()
}

/// The median of each percentile of the samples.
pub fn percentiles(samples: &[Sample]) -> Option<Percentiles> {
    let all: Vec<Percentiles> = samples.iter().map(|sample| sample.percentiles).collect::<Option<_>>()?;
    let of = |which: fn(&Percentiles) -> f64| median(&all.iter().map(which).collect::<Vec<_>>());
    Some(Percentiles { p50: of(|it| it.p50)?, p99: of(|it| it.p99)?, p999: of(|it| it.p999)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::record::tests::example;
    use proptest::prelude::*;

    fn sample(value: f64) -> Sample {
        Sample { value, ..example().series[0].samples[0].clone() }
    }

    #[test]
    fn the_interval_is_that_of_all_possible_resamples() {
        // With 5 values, a resample's median is the least value if 3 or more of 5 draws are: 181/3125 = 5.8 %. So both
        // ends of the 95 % interval are the outermost values; with 15 values they are not.
        let values = |count: u32| (1..=count).map(|value| sample(f64::from(value))).collect::<Vec<_>>();
        let few = summarize(Metric::Throughput, &values(5)).unwrap();
        assert_eq!((few.median, few.low, few.high), (3.0, Some(1.0), Some(5.0)));
        let many = summarize(Metric::Throughput, &values(11)).unwrap();
        // Exactly: the chance that 6 or more of 11 draws are at most 2 is 0.7 %, and at most 3 it is 5.1 %.
        assert_eq!((many.median, many.low, many.high), (6.0, Some(3.0), Some(9.0)));
        let one = summarize(Metric::Throughput, &values(1)).unwrap();
        assert_eq!((one.median, one.low, one.high), (1.0, None, None), "one sample says nothing of an interval");
        assert_eq!(summarize(Metric::Latency, &[]), None);
    }

    #[test]
    fn processor_time_is_told_by_byte_and_exchange() {
        let mut one = sample(1e9);
        (one.bytes, one.sender_time, one.receiver_time) = (Some(1_000_000), 2_000_000, 500_000);
        let summary = summarize(Metric::Throughput, &[one.clone()]).unwrap();
        assert_eq!((summary.sender_cost, summary.receiver_cost, summary.via_cost), (Some(2.0), Some(0.5), None));
        assert_eq!(summarize(Metric::Latency, &[one.clone()]).unwrap().sender_cost, None, "the tool did not count");
        one.exchanges = Some(1000);
        assert_eq!(summarize(Metric::Latency, &[one]).unwrap().sender_cost, Some(2000.0));
    }

    proptest! {
        #[test]
        fn the_interval_holds_the_median(values in proptest::collection::vec(1.0..1e12f64, 2..12)) {
            let samples: Vec<Sample> = values.into_iter().map(sample).collect();
            let Summary { median, low, high, .. } = summarize(Metric::Throughput, &samples).unwrap();
            prop_assert!(low.is_some_and(|low| low <= median) && high.is_some_and(|high| median <= high));
        }
    }
}
