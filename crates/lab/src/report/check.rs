//! Advice put to the test: how far off predictions were, how often the choice was right, and each case in which it was
//! not.

use super::page::Section;
use super::table::{Cell, Row, Table};
use crate::advise::case::{Case, Cases, Check, Outcome};
use crate::unit::{digits, size};

/// The best published error of a predicted gain, in the median of three cases; a share of 1.
const PUBLISHED: f64 = 0.037;

/// Adds what a check has.
pub fn add(section: &mut Section, check: &Check) {
    section.table(summary(&check.cases));
    let wrong: Vec<&Case> = check.cases.wrong().collect();
    section.table(cases("Cases in which the advice was wrong, by more than 5 %", &wrong));
    section.folded(cases("All cases", &check.cases.0.iter().collect::<Vec<_>>()));
}

fn percent(share: Option<f64>) -> Cell {
    share.map_or_else(Cell::default, |share| Cell::number(format!("{} %", digits(share * 100.0)), share))
}

fn count(number: usize) -> Cell {
    Cell::number(number.to_string(), number as f64)
}

fn summary(all: &Cases) -> Table {
    let row = |name: &str, cases: &Cases| Row {
        name: name.to_string(),
        notes: Vec::new(),
        cells: vec![
            count(cases.0.len()),
            count(cases.ties()),
            count(cases.unsure()),
            percent(cases.error()),
            percent(cases.right()),
            percent(cases.right_of_sure()),
            percent(cases.regret()),
        ],
    };
    let mut rows: Vec<Row> = all.by_stage().iter().map(|(stage, cases)| row(stage, cases)).collect();
    if !rows.is_empty() {
        rows.push(row("all", all));
        let published = Cell::published(format!("{} %", digits(PUBLISHED * 100.0)), PUBLISHED);
        let empty = Cell::default;
        rows.push(Row {
            name: "best published (Accelerometer, ASPLOS 2020)".to_string(),
            notes: vec![
                "gains of offloading within 3.7 %, in three cases; nobody has published a share of right choices"
                    .into(),
            ],
            cells: vec![Cell::published("3", 3.0), empty(), empty(), published, empty(), empty(), empty()],
        });
    }
    let heads = [
        "",
        "cases",
        "ties within 5 %",
        "not sure",
        "predicted gain off by (median)",
        "right outside ties",
        "right where sure",
        "mean regret",
    ];
    Table {
        caption: "Advice against measurements at sizes that no record has".to_string(),
        heads: heads.map(str::to_string).into(),
        rows,
    }
}

fn cases(caption: &str, cases: &[&Case]) -> Table {
    let gain = |way: Option<&Outcome>, of: fn(&Outcome) -> f64| {
        way.map_or_else(Cell::default, |way| Cell::number(format!("{}×", digits(of(way))), of(way)))
    };
    let row = |case: &&Case| {
        let (best, chosen) = (case.best(), case.chosen());
        let cells = vec![
            Cell::number(size(case.size), case.size as f64),
            Cell { small: case.verdict.clone(), ..Cell::text(case.choice.clone()) },
            gain(chosen, |way| way.predicted),
            gain(chosen, |way| way.measured),
            Cell::text(best.map(|way| way.name.clone()).unwrap_or_default()),
            gain(best, |way| way.predicted),
            gain(best, |way| way.measured),
            percent(Some(case.regret())),
        ];
        let notes = vec![format!("advice from {}", case.record)];
        Row { name: format!("{}: {}, {}", case.stage, case.route, case.objective), notes, cells }
    };
    let heads = ["", "size", "advised", "predicted", "measured", "best", "predicted", "measured", "regret"];
    Table {
        caption: caption.to_string(),
        heads: heads.map(str::to_string).into(),
        rows: cases.iter().map(row).collect(),
    }
}
