//! The record as one HTML page: no script, nothing fetched, light or dark as the reader's system is.
//!
//! A figure that was not measured is not shown: a plot, a table or a row is there only if the record holds its samples.

mod bars;
mod checksum;
mod driver;
mod layers;
mod lines;
mod svg;

use std::fmt::{self, Display, Write};
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::record::{Figure, Measurement, Record, Verdict};
use crate::statistic::range;
use crate::suite::apps::load;
use crate::terminal::{contrast, targets};
use crate::unit::{Unit, digits};

const STYLE: &str = include_str!("style.css");

/// Suites in the order of the page, each with its title.
const SUITES: [(&str, &str); 7] = [
    ("apps", "Applications"),
    ("pingpong", "Round trips"),
    ("stream", "Streams"),
    ("setup", "What must not get worse"),
    ("layers", "Layers of transport"),
    ("driver", "Link drivers"),
    ("checksum", "Checksums"),
];

/// Writes the page.
///
/// # Errors
/// The file cannot be written.
pub fn write_html(record: &Record, path: &Path) -> Result<()> {
    fs::write(path, html(record)).with_context(|| format!("cannot write the report {}", path.display()))
}

/// The page.
pub fn html(record: &Record) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = Page(record).write(&mut page);
    page
}

struct Page<'a>(&'a Record);

impl Page<'_> {
    fn write(&self, out: &mut String) -> fmt::Result {
        let record = self.0;
        write!(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n")?;
        writeln!(out, "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>")?;
        writeln!(
            out,
            "<title>Underpass against kernel TCP</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main>"
        )?;
        writeln!(out, "<header>\n<h1>Underpass against kernel TCP</h1>")?;
        writeln!(
            out,
            "<p>The same unmodified programs, on kernel TCP and under Underpass, in one run on one host.</p>"
        )?;
        writeln!(out, "<p class=\"quiet\">{} · {}</p>", Text(&record.date), Text(&record.host.to_string()))?;
        if record.quick {
            writeln!(
                out,
                "<p class=\"notice\">A quick run: its clocks were too short for its figures to be quoted.</p>"
            )?;
        }
        writeln!(out, "</header>")?;
        self.tiles(out)?;
        for (suite, title) in SUITES {
            self.suite(out, suite, title)?;
        }
        self.gaps(out)?;
        self.method(out)?;
        writeln!(out, "</main>\n</body>\n</html>")
    }

    /// The first ratio of each group that promises to be better than kernel TCP: what a reader looks for first.
    fn tiles(&self, out: &mut String) -> fmt::Result {
        let mut groups: Vec<(&str, &str)> = Vec::new();
        let mut tiles = String::new();
        for measurement in self.valid().filter(|measurement| !measurement.targets.is_empty()) {
            let group = (measurement.suite.as_str(), measurement.group.as_str());
            let promises = |verdict: &Verdict| verdict.times.is_none_or(|times| times > 1.0);
            if let Some(ratio) = measurement.ratio
                && measurement.suite != "setup"
                && measurement.targets.iter().any(promises)
                && !groups.contains(&group)
            {
                groups.push(group);
                let [kernel, underpass] = medians(measurement);
                writeln!(tiles, "<div class=\"tile\"><strong>{}×</strong>", digits(ratio))?;
                let name = if measurement.suite == "apps" { "" } else { suite_word(&measurement.suite) };
                writeln!(tiles, "<span>{name}{}</span>", Text(&measurement.name))?;
                writeln!(tiles, "<span class=\"quiet\">{underpass} instead of {kernel}</span></div>")?;
            }
        }
        if !tiles.is_empty() {
            writeln!(out, "<section class=\"tiles\">\n{tiles}</section>")?;
        }
        Ok(())
    }

    fn suite(&self, out: &mut String, suite: &str, title: &str) -> fmt::Result {
        let valid: Vec<&Measurement> = self.valid().filter(|measurement| measurement.suite == suite).collect();
        if valid.is_empty() {
            return Ok(());
        }
        writeln!(out, "<section>\n<h2>{title}</h2>")?;
        let of = |group: &str| valid.iter().copied().filter(|m| m.group == group).collect::<Vec<_>>();
        match suite {
            "pingpong" => lines::figure(
                out,
                &of("blocking"),
                "Median round trip of one message, blocking calls, both ends pinned to different processors (both axes logarithmic)",
                "message size",
            )?,
            "stream" => lines::figure(
                out,
                &of("stream"),
                "Throughput in one direction, both ends pinned to different processors (both axes logarithmic)",
                "size of each write",
            )?,
            "layers" => layers::figures(out, &valid)?,
            "driver" => driver::figures(out, &valid)?,
            "checksum" => checksum::figures(out, &valid)?,
            "apps" => applications(out, &valid)?,
            _ => {}
        }
        table(out, &valid)?;
        writeln!(out, "</section>")
    }

    /// What is missing, and why.
    fn gaps(&self, out: &mut String) -> fmt::Result {
        let invalid = self.0.measurements.iter().filter_map(|m| Some((&m.suite, &m.name, m.invalid.as_ref()?)));
        let invalid =
            invalid.map(|(suite, name, why)| (format!("{}{name}", suite_word(suite)), "no valid figure", why));
        let skipped = self.0.skipped.iter().map(|skipped| (skipped.name.clone(), "not measured", &skipped.reason));
        let all: Vec<_> = invalid.chain(skipped).collect();
        if all.is_empty() {
            return Ok(());
        }
        writeln!(out, "<section>\n<h2>Not shown</h2>\n<ul>")?;
        for (name, what, reason) in all {
            writeln!(out, "<li>{}: {what}, {}</li>", Text(&name), Text(reason))?;
        }
        writeln!(out, "</ul>\n</section>")
    }

    fn method(&self, out: &mut String) -> fmt::Result {
        let Record { version, revision, samples, programs, host, .. } = self.0;
        writeln!(out, "<section>\n<h2>How it was measured</h2>")?;
        writeln!(
            out,
            "<p>Samples of each side: {samples}, kernel TCP and Underpass in turn. Shown are medians, and in small print the least and \
             the greatest sample. A ratio above 1 means that Underpass is better. Every figure comes from a run in which the \
             programs checked what they received and the library attested that the bytes went through shared memory, except \
             where connections are meant to stay on the kernel path. What has no figure on kernel TCP's side has nothing to do with \
             sockets.</p>"
        )?;
        writeln!(out, "<dl>")?;
        let mut fact = |name: &str, value: &str| writeln!(out, "<dt>{name}</dt><dd>{}</dd>", Text(value));
        fact("Underpass", &[version, revision.as_deref().unwrap_or_default()].join(" "))?;
        fact("Host", &host.to_string())?;
        if let Some(load) = host.load {
            fact("Load before the run", &digits(load))?;
        }
        for program in programs {
            fact("Program", program)?;
        }
        writeln!(out, "</dl>\n</section>")
    }

    fn valid(&self) -> impl Iterator<Item = &Measurement> {
        self.0.measurements.iter().filter(|m| m.invalid.is_none() && m.underpass.median.is_some())
    }
}

/// Rates, then what their requests cost, then their slowest: the bars of each have the names of the rates.
fn applications(out: &mut String, valid: &[&Measurement]) -> fmt::Result {
    let suffixes = [load::PROCESSOR_TIME, load::P99];
    let rates: Vec<&Measurement> =
        valid.iter().copied().filter(|m| !suffixes.iter().any(|suffix| m.name.ends_with(suffix))).collect();
    bars::figure(out, &rates, "", "Throughput under Underpass, as a multiple of kernel TCP's")?;
    let captions = [
        "Processor time of each request on kernel TCP, as a multiple of Underpass's",
        "99th percentile of a request's duration on kernel TCP, as a multiple of Underpass's",
    ];
    for (suffix, caption) in suffixes.into_iter().zip(captions) {
        let those: Vec<&Measurement> = valid.iter().copied().filter(|m| m.name.ends_with(suffix)).collect();
        bars::figure(out, &those, suffix, caption)?;
    }
    Ok(())
}

fn table(out: &mut String, measurements: &[&Measurement]) -> fmt::Result {
    writeln!(out, "<div class=\"scroll\">\n<table>\n<thead><tr><th></th><th>kernel TCP</th><th>Underpass</th>")?;
    writeln!(out, "<th>ratio</th><th class=\"text\">target</th><th class=\"text\"></th></tr></thead>\n<tbody>")?;
    for measurement in measurements {
        let [kernel, underpass] =
            [&measurement.kernel, &measurement.underpass].map(|figure| cell(measurement.unit, figure));
        let (class, verdict) = match measurement.met {
            Some(true) => ("met", "✓ met"),
            Some(false) => ("missed", "✗ missed"),
            None => ("", ""),
        };
        write!(out, "<tr><th scope=\"row\">{}", Text(&measurement.name))?;
        for note in &measurement.notes {
            write!(out, "<small>{}</small>", Text(note))?;
        }
        writeln!(out, "</th><td>{kernel}</td><td>{underpass}</td><td>{}</td>", contrast(measurement))?;
        writeln!(out, "<td class=\"text\">{}</td>", Text(&targets(measurement)))?;
        writeln!(out, "<td class=\"text {class}\">{verdict}</td></tr>")?;
    }
    writeln!(out, "</tbody>\n</table>\n</div>")
}

fn cell(unit: Unit, figure: &Figure) -> String {
    let Some((median, (least, greatest))) = figure.median.zip(range(&figure.samples)) else { return String::new() };
    format!("{}<small>{} – {}</small>", unit.show(median), unit.show(least), unit.show(greatest))
}

fn medians(measurement: &Measurement) -> [String; 2] {
    [&measurement.kernel, &measurement.underpass]
        .map(|figure| figure.median.map(|median| measurement.unit.show(median)).unwrap_or_default())
}

/// What a name needs before it, away from its own table.
fn suite_word(suite: &str) -> &'static str {
    match suite {
        "pingpong" => "round trip, ",
        "stream" => "stream, ",
        _ => "",
    }
}

/// Text in which nothing is markup.
struct Text<'a>(&'a str);

impl Display for Text<'_> {
    fn fmt(&self, out: &mut fmt::Formatter) -> fmt::Result {
        for character in self.0.chars() {
            match character {
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '&' => out.write_str("&amp;")?,
                '"' => out.write_str("&quot;")?,
                other => out.write_char(other)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{Plan, Target};
    use crate::record::tests::example;

    /// Fails unless every element is closed in the order in which it was opened.
    fn assert_well_formed(html: &str) {
        let body = html.strip_prefix("<!DOCTYPE html>").unwrap();
        let mut open = Vec::new();
        for tag in body.split('<').skip(1) {
            let (tag, text) = tag.split_once('>').unwrap_or_else(|| panic!("a tag is not closed: {tag}"));
            assert!(!text.contains('>'), "a stray > after <{tag}>");
            match tag.strip_prefix('/') {
                Some(name) => assert_eq!(open.pop(), Some(name), "closed out of order"),
                None if tag.ends_with('/') => {}
                None => open.push(tag.split_whitespace().next().unwrap()),
            }
        }
        assert_eq!(open, [""; 0], "left open");
    }

    #[test]
    fn the_page_is_well_formed_and_fetches_nothing() {
        let page = html(&example());
        assert_well_formed(&page);
        for external in ["http://", "https://", "src=", "<link", "<script", "url(", "@import"] {
            assert!(!page.contains(external), "{external}");
        }
    }

    #[test]
    fn what_was_measured_is_shown() {
        let page = html(&example());
        for figure in ["61.0 µs", "510 ns", "120×", "70.0 µs", "30.0 MB/s", "9.00×", "14.0 k/s", "+500 µs", "✗ missed"]
        {
            assert!(page.contains(figure), "{figure}");
        }
        // Two valid sizes on either side, and the baseline at one of them.
        assert_eq!(page.matches("<circle").count(), 2 + 2 + 1);
        assert!(page.contains("64 B writes, &quot;pinned&quot;"));
    }

    #[test]
    fn what_was_not_measured_is_not_shown() {
        let page = html(&example());
        assert!(!page.contains("777") && !page.contains("64 KiB</text>"), "an invalid figure has no place in a plot");
        assert!(page.contains("not fast: peer-silent &lt;3&gt;"), "but its reason is told");
        assert!(page.contains("nginx: not measured, not installed"));

        let mut nothing = example();
        nothing.measurements.clear();
        nothing.skipped.clear();
        let page = html(&nothing);
        assert_well_formed(&page);
        for absent in ["<svg", "<table", "class=\"tile\"", "Not shown"] {
            assert!(!page.contains(absent), "{absent}");
        }
    }

    /// One rate that promises a factor and one that must not get worse, each with what a request costs.
    #[test]
    fn applications_are_drawn_by_rate_cost_and_slowest() {
        let mut record = example();
        record.measurements.clear();
        for (name, target) in [("Redis GET", Target::TimesBetter(3.0)), ("MariaDB, 8 threads", load::NOT_SLOWER)] {
            for plan in load::plans(Plan::rate(name, name, Unit::PerSecond).target(target), "request", true) {
                record.measurements.push(Measurement::conclude("apps", &plan, vec![4e3], vec![5e3], None, None));
            }
        }
        let page = html(&record);
        assert_well_formed(&page);
        assert_eq!(page.matches("<figure>").count(), 3);
        assert_eq!(page.matches(">MariaDB, 8 threads</text>").count(), 3, "a bar is named as the rate is");
        assert_eq!(page.matches("class=\"tile\"").count(), 1, "what must not get worse is no headline");
        assert!(page.contains("0.800×") && page.contains("MariaDB, 8 threads: p99"), "{page}");
    }

    /// What has no side on kernel TCP: two curves and the link's over two sizes.
    #[test]
    fn layers_are_drawn_beside_the_link_alone() {
        use crate::suite::layers::{LINK_ALONE, Scheduler, Work, curve};
        let mut record = example();
        record.measurements.clear();
        for (layers, rate) in [(1, 9e9), (3, 8e9)] {
            for size in [1024, 65536] {
                let group = curve(layers, Work::None, Scheduler::InLine);
                let plan = Plan::rate(&group, format!("{layers} of {size}"), Unit::BytesPerSecond).of_size(size);
                let plan = plan.target(Target::ShareOfBaseline(0.9));
                let beside = Some((if layers == 1 { LINK_ALONE } else { "1 layer" }, vec![9e9]));
                record.measurements.push(Measurement::conclude("layers", &plan, vec![], vec![rate], beside, None));
            }
        }
        let page = html(&record);
        assert_well_formed(&page);
        // One and three layers and the link; then three layers alone, by their work.
        assert_eq!(page.matches("<circle").count(), 6 + 2);
        assert!(page.contains("≥ 90 % of link alone (9.00 GB/s)") && page.contains("✗ missed"), "{page}");
    }

    /// Two drivers, on both sides, and algorithms alone: packets, octets, and the cost of a message.
    #[test]
    fn drivers_are_drawn_by_packets_and_by_octets() {
        use crate::suite::driver::curve;
        let mut record = example();
        record.measurements.clear();
        let mut measured = |group: &str, size: u64, kernel: &[f64], underpass: f64| {
            let plan = Plan::rate(group, format!("{group} of {size}"), Unit::PerSecond).of_size(size);
            record.measurements.push(Measurement::conclude(
                "driver",
                &plan,
                kernel.to_vec(),
                vec![underpass],
                None,
                None,
            ));
        };
        for size in [64, 1024] {
            measured(curve::CALL, size, &[1e5], 2e5);
            measured(curve::COMPLETION[0], size, &[], 3e5);
        }
        let page = html(&record);
        assert_well_formed(&page);
        // Kernel and AF_XDP, then one algorithm, each at two sizes and as packets and octets.
        assert_eq!(page.matches("<circle").count(), 2 * (4 + 2));
        assert!(page.contains("AF_XDP, 1,024 B: 205 MB/s"), "{page}");
    }

    /// Figure 5 and tables 4 and 5 of the paper, as far as there are ways.
    #[test]
    fn receive_paths_are_drawn_and_tabulated() {
        use crate::suite::checksum::table::{self, Socket, Stage, Way};
        let mut record = example();
        record.measurements.clear();
        let mut measured = |group: String, size: u64, unit: Unit, samples: &[f64]| {
            let plan = Plan::rate(&group, format!("{group} of {size}"), unit).of_size(size);
            record.measurements.push(Measurement::conclude("checksum", &plan, vec![], samples.to_vec(), None, None));
        };
        for way in [Way::Skip, Way::Simd] {
            for size in [1480, 9480] {
                measured(table::throughput(Socket::Xdp, way), size, Unit::BytesPerSecond, &[1e9, 2e9, 4e9]);
            }
            measured(table::idle(Socket::Packet, way), 1480, Unit::Percent, &[10.0, 20.0, 30.0]);
            for (stage, ns) in Stage::of(way).iter().zip([300.0, 90.0, 10.0]) {
                measured(table::stage(Socket::Packet, way, *stage, false), 9480, Unit::Nanoseconds, &[ns; 3]);
            }
        }
        let page = html(&record);
        assert_well_formed(&page);
        assert_eq!(page.matches("<circle").count(), 4);
        assert!(page.contains("AF_PACKET, 1480 B</th><td>20.0 % ± 10.0 %</td><td>20.0 % ± 10.0 %</td></tr>"), "{page}");
        assert!(page.contains("<td>75.0 %<small>300 ns ± 0 ns</small></td>") && page.contains("<td>400 ns</td>"));
        assert!(
            page.contains("<td>2.50 %<small>10.0 ns") && !page.contains("gpu-umem</td>"),
            "no way that was not measured"
        );
    }

    #[test]
    fn one_size_makes_no_curve() {
        let mut record = example();
        record.measurements.retain(|measurement| measurement.size != Some(4096));
        assert!(!html(&record).contains("<circle"));
    }
}
