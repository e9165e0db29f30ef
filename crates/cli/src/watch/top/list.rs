//! The connections with their rates, in order, and which of them the user looks at.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use underpass_lab::unit::{Unit, plain, thousands};

use super::super::counters::{Before, Counters};
use super::super::ss::{holders, ways};
use super::super::{Connection, Images, View};
use super::columns::Sort;
use crate::output::plural;

pub struct List {
    view: View,
    images: Images,
    /// Per second since the look before, by cookie; nothing at first.
    rates: HashMap<u64, Counters>,
    before: Before,
    looked: Instant,
    interval: Duration,
    sort: Sort,
    is_reversed: bool,
    is_paused: bool,
    /// Lines are shown that have this text in them, whatever its case.
    pub filter: String,
    /// Letters go to the filter.
    pub is_typing: bool,
    /// What is shown: places in the view, in order.
    order: Vec<usize>,
    /// The cookie of the connection that the user has chosen, and where it was shown last; otherwise it is the first
    /// line, whatever stands there.
    chosen: (Option<u64>, usize),
    /// How many lines the screen has for them, and how many are above it.
    pub room: Cell<usize>,
    pub above: Cell<usize>,
}

impl List {
    /// Looks for the first time: there are no rates yet.
    pub fn new(interval: Duration) -> anyhow::Result<List> {
        let looked = Instant::now();
        let mut images = Images::default();
        let view = View::gather(&mut images)?;
        Ok(List { images, ..List::of(view, looked, interval) })
    }

    pub fn of(view: View, looked: Instant, interval: Duration) -> List {
        let mut before = Before::default();
        before.step(&view.connections);
        let mut list = List {
            view,
            images: Images::default(),
            rates: HashMap::new(),
            before,
            looked,
            interval,
            sort: Sort::Traffic,
            is_reversed: false,
            is_paused: false,
            filter: String::new(),
            is_typing: false,
            order: Vec::new(),
            chosen: (None, 0),
            room: Cell::new(1),
            above: Cell::new(0),
        };
        list.arrange();
        list
    }

    /// Looks again if it is time to. Whether it was.
    pub fn look(&mut self) -> anyhow::Result<bool> {
        if self.is_paused || !self.until_look().is_zero() {
            return Ok(false);
        }
        let looked = Instant::now();
        let view = View::gather(&mut self.images)?;
        self.take(view, looked);
        Ok(true)
    }

    pub fn take(&mut self, view: View, looked: Instant) {
        let seconds = (looked - self.looked).as_secs_f64().max(0.001);
        let since = self.before.step(&view.connections);
        self.rates = since.into_iter().map(|(cookie, counters)| (cookie, counters.per(seconds))).collect();
        (self.view, self.looked) = (view, looked);
        self.arrange();
    }

    pub fn until_look(&self) -> Duration {
        if self.is_paused { Duration::MAX } else { self.interval.saturating_sub(self.looked.elapsed()) }
    }

    pub fn view(&self) -> &View {
        &self.view
    }

    /// The lines that are shown, in order.
    pub fn rows(&self) -> impl ExactSizeIterator<Item = (&Connection, Option<&Counters>)> {
        self.order.iter().map(|&index| {
            let it = &self.view.connections[index];
            (it, self.rates.get(&it.socket.cookie))
        })
    }

    /// Chooses and sorts the lines that are shown.
    pub fn arrange(&mut self) {
        let List { view, rates, sort, filter, .. } = self;
        let wanted = filter.to_lowercase();
        let mut order: Vec<usize> =
            (0..view.connections.len()).filter(|&index| is_wanted(&view.connections[index], &wanted)).collect();
        order.sort_by_key(|&index| {
            let it = &view.connections[index];
            Reverse(sort.key(it, rates.get(&it.socket.cookie)))
        });
        if self.is_reversed {
            order.reverse();
        }
        self.order = order;
        // The chosen line stays chosen wherever it moves; if it is gone, the line at its place is chosen.
        let (cookie, place) = self.chosen;
        let place = match cookie {
            Some(cookie) => self.rows().position(|(it, _)| it.socket.cookie == cookie).unwrap_or(place),
            None => 0,
        };
        self.chosen.1 = place.min(self.order.len().saturating_sub(1));
    }

    /// Where the line is that is looked at.
    pub fn chosen(&self) -> usize {
        self.chosen.1
    }

    pub fn chosen_row(&self) -> Option<&Connection> {
        self.rows().nth(self.chosen.1).map(|(it, _)| it)
    }

    pub fn go(&mut self, lines: isize) {
        let place = self.chosen.1.saturating_add_signed(lines).min(self.order.len().saturating_sub(1));
        let cookie = self.rows().nth(place).map(|(it, _)| it.socket.cookie);
        self.chosen = (cookie.filter(|_| place > 0), place);
    }

    pub fn page(&self) -> isize {
        self.room.get().max(1) as isize
    }

    pub fn sort_by_next(&mut self) {
        self.sort = self.sort.next();
        self.is_reversed = false;
        self.restart();
    }

    pub fn reverse(&mut self) {
        self.is_reversed = !self.is_reversed;
        self.restart();
    }

    fn restart(&mut self) {
        self.chosen = (None, 0);
        self.arrange();
    }

    /// Or goes on, with the rates of the whole time since.
    pub fn pause(&mut self) {
        self.is_paused = !self.is_paused;
    }

    /// What there is, in parts of a sentence.
    pub fn summary(&self) -> Vec<String> {
        let all = &self.view.connections;
        let fast = all.iter().filter(|it| ways(it).iter().flatten().any(|way| way.fast)).count();
        let processes = plural(self.view.processes.len() as u64, "process", "processes");
        let mut parts = vec![
            format!("{}{processes}", if self.is_paused { "PAUSED: " } else { "" }),
            plural(all.len() as u64, "connection end", "connection ends"),
            format!("{} fast", thousands(fast as u64)),
        ];
        if self.order.len() < all.len() {
            parts.push(format!("{} shown", thousands(self.order.len() as u64)));
        }
        parts
    }

    /// How the lines are in order, and how often they come.
    pub fn manner(&self) -> String {
        let direction = if self.is_reversed { ", least first" } else { "" };
        format!("by {}{direction}; every {} s", self.sort.name(), plain(self.interval.as_secs_f64()))
    }

    /// What all of the shown carry, in parts of a sentence.
    pub fn totals(&self) -> Vec<String> {
        if self.rates.is_empty() && !self.view.connections.is_empty() {
            return vec!["rates come with the second look".into()];
        }
        let sum = self.rows().filter_map(|(_, rates)| rates).fold(Counters::default(), |sum, it| sum.plus(it));
        let way = |name: &str, [ring, kernel]: [u64; 2]| {
            let all = ring as f64 + kernel as f64;
            let share = if all > 0.0 {
                format!(" ({} fast)", Unit::Percent.show(100.0 * ring as f64 / all))
            } else {
                String::new()
            };
            format!("{name} {}{share}", Unit::BytesPerSecond.show(all))
        };
        let count = |name: &str, n: u64| format!("{name} {}", Unit::PerSecond.show(n as f64));
        vec![
            way("sent", sum.sent),
            way("received", sum.received),
            count("doorbells", sum.bells),
            count("sleeps", sum.sleeps),
        ]
    }
}

fn is_wanted(it: &Connection, wanted: &str) -> bool {
    let reason = it.reason.map_or("", |reason| reason.key());
    let text = format!("{} {} {} {reason}", holders(it), it.socket.local, it.socket.peer);
    text.to_lowercase().contains(wanted)
}
