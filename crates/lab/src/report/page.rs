//! What the page consists of; `templates/report.html` says how it looks in HTML. Everything from a record passes
//! through the template's escaping.

use askama::Template;

use super::chart::Chart;
use super::published::Paper;
use super::table::Table;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// The charting library, as its package has it.
const LIBRARY: &str = include_str!(concat!(env!("OUT_DIR"), "/plotly.min.js"));

/// The page.
#[derive(Template)]
#[template(path = "report.html")]
pub struct Page {
    /// What it is called.
    pub title: String,
    /// Runs that it shows.
    pub runs: Vec<About>,
    /// Headlines.
    pub tiles: Vec<Tile>,
    /// Its parts.
    pub sections: Vec<Section>,
    /// What is missing, and why.
    pub gaps: Vec<Gap>,
}

/// A run, for the head and the foot of the page.
pub struct About {
    /// What its record is of, by which the page says how it was measured.
    pub kind: Kind,
    /// The name of its record.
    pub name: String,
    /// When it began.
    pub date: String,
    /// Where it ran.
    pub host: String,
    /// Whether its figures may not be quoted.
    pub quick: bool,
    /// Further facts, by name.
    pub facts: Vec<(&'static str, String)>,
}

/// What a record is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A run of suites.
    Run,
    /// A survey of endpoints.
    Survey,
    /// A check of advice.
    Check,
}

/// A headline.
pub struct Tile {
    /// How many times better.
    pub ratio: String,
    /// What.
    pub name: String,
    /// The two figures.
    pub figures: String,
}

/// What was not measured.
pub struct Gap {
    /// What.
    pub name: String,
    /// Whether it was not measured, or has no valid figure.
    pub what: &'static str,
    /// Why.
    pub reason: String,
}

/// A part of the page.
pub struct Section {
    /// Its anchor.
    pub id: &'static str,
    /// Its head.
    pub title: &'static str,
    /// The paper whose figures it redraws.
    pub paper: Option<Paper>,
    /// What it shows.
    pub blocks: Vec<Block>,
}

/// A piece of a part.
pub enum Block {
    /// What follows comes from this record.
    Run(String),
    /// A chart with its table.
    Figure(Box<Figure>),
    /// A table that is shown.
    Table(Table),
    /// A table that is shown when asked for.
    Folded(Table),
}

/// A chart, and the same in numbers.
pub struct Figure {
    /// What it shows.
    pub caption: String,
    /// The chart.
    pub chart: Chart,
    /// The numbers.
    pub table: Table,
}

impl Section {
    /// A part without anything in it yet.
    pub fn new(id: &'static str, title: &'static str, paper: Option<Paper>) -> Section {
        Section { id, title, paper, blocks: Vec::new() }
    }

    /// Adds what there is of figures.
    pub fn figures(&mut self, figures: impl IntoIterator<Item = Option<Figure>>) {
        self.blocks.extend(figures.into_iter().flatten().map(|figure| Block::Figure(Box::new(figure))));
    }

    /// Adds a table, if it has rows.
    pub fn table(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.blocks.push(Block::Table(table));
        }
    }

    /// Adds a table that is shown when asked for, if it has rows.
    pub fn folded(&mut self, table: Table) {
        if !table.rows.is_empty() {
            self.blocks.push(Block::Folded(table));
        }
    }

    /// Adds what a run has to say, under its name, if it has anything to say.
    pub fn run(&mut self, name: &str, write: impl FnOnce(&mut Section)) {
        let before = self.blocks.len();
        self.blocks.push(Block::Run(name.to_string()));
        write(self);
        if self.blocks.len() == before + 1 {
            self.blocks.pop();
        }
    }
}

impl Page {
    fn style(&self) -> &'static str {
        STYLE
    }

    fn script(&self) -> &'static str {
        SCRIPT
    }

    fn library(&self) -> &'static str {
        LIBRARY
    }

    fn has_charts(&self) -> bool {
        let mut blocks = self.sections.iter().flat_map(|section| &section.blocks);
        blocks.any(|block| matches!(block, Block::Figure(_)))
    }

    fn has(&self, kind: Kind) -> bool {
        self.runs.iter().any(|run| run.kind == kind)
    }

    fn is_quick(&self) -> bool {
        self.runs.iter().any(|run| run.quick)
    }
}
