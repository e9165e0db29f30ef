//! The unit in which each row of a run is measured. It belongs to the row: what is in another was changed.

use crate::suite::apps::load::{P99, PROCESSOR_TIME};
use crate::suite::broker::{ALONE, BETWEEN_USERS};
use crate::unit::{Better, Unit};

const TIME: (Unit, Better) = (Unit::Nanoseconds, Better::Lower);
const BYTES: (Unit, Better) = (Unit::BytesPerSecond, Better::Higher);
const RATE: (Unit, Better) = (Unit::PerSecond, Better::Higher);
const SHARE: (Unit, Better) = (Unit::Percent, Better::Lower);
const MEMORY: (Unit, Better) = (Unit::Bytes, Better::Lower);

/// The unit, and which way is better; `None` of a suite that is not known here.
pub fn of(suite: &str, group: &str, name: &str) -> Option<(Unit, Better)> {
    let is = |what: &str| name.ends_with(what);
    let of_load = is(PROCESSOR_TIME) || is(P99);
    Some(match suite {
        "pingpong" => TIME,
        "stream" | "apps" if of_load => TIME,
        "stream" => BYTES,
        "apps" if ["iperf3", "rsync"].contains(&group) => BYTES,
        "apps" => RATE,
        "setup" | "broker" if is(": CPU use") => SHARE,
        "setup" | "broker" if is(": memory each") || is(": memory") => MEMORY,
        "setup" if ["connect", "pairs"].contains(&group) => RATE,
        "setup" => TIME,
        "broker" if group == BETWEEN_USERS && name.contains(": blocking, ") => TIME,
        "broker" if group == BETWEEN_USERS && is(" writes") => BYTES,
        "broker" if [BETWEEN_USERS, ALONE].contains(&group) => RATE,
        "broker" => TIME,
        "layers" if group == "use" => SHARE,
        "layers" if ["hop", "passage", "tpdu"].contains(&group) => TIME,
        "layers" => BYTES,
        "driver" => driver(group, is),
        "checksum" if group == "break-even" => (Unit::Count, Better::Lower),
        "checksum" if group.ends_with(": idle") => (Unit::Percent, Better::Higher),
        "checksum" if group.contains(": ") => TIME,
        "checksum" => BYTES,
        "survey" if group.contains(": throughput") => BYTES,
        "survey" => TIME,
        _ => return None,
    })
}

fn driver(group: &str, is: impl Fn(&str) -> bool) -> (Unit, Better) {
    let times = [": sender", ": receiver", ": both ends", ": latency"];
    match group {
        _ if is(": lost messages") => SHARE,
        "waits" if is(": receiver") => SHARE,
        "notices" => TIME,
        _ if times.iter().any(|end| is(end)) => TIME,
        _ => RATE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::{Lab, Options};
    use crate::suite::Suite;

    /// All that can be measured here; the records have what cannot.
    #[test]
    fn each_row_that_is_measured_has_its_unit() {
        let lab = Lab::new(&Options::new("/proc/self/exe")).unwrap();
        let (chosen, _) = Suite::All.experiments(&lab);
        let rows =
            chosen.experiments.iter().flat_map(|(suite, it)| it.plans().into_iter().map(move |plan| (suite, plan)));
        let mut count = 0;
        for (suite, plan) in rows {
            let is = of(suite, &plan.group, &plan.name);
            assert_eq!(is, Some((plan.unit, plan.better)), "{suite}, {}, {}", plan.group, plan.name);
            count += 1;
        }
        assert!(count > 100, "{count}");
    }

    #[test]
    fn each_row_of_the_records_has_its_unit() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../records");
        let mut suites = std::collections::BTreeSet::new();
        for name in
            ["2026-11-23", "apps-2026-11-26", "checksum-gpu-2026-11-27", "driver-2026-11-27", "layers-2026-11-27"]
        {
            let record = crate::record::Record::read_json(&folder.join(format!("{name}.json"))).unwrap();
            for it in record.measurements {
                let is = of(&it.suite, &it.group, &it.name);
                assert_eq!(is, Some((it.unit, it.better)), "{}, {}, {}", it.suite, it.group, it.name);
                suites.insert(it.suite);
            }
        }
        assert!(suites.len() >= 7, "{suites:?}");
    }
}
