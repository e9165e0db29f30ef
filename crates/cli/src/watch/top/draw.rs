//! The screen.

use ratatui::Frame;
use ratatui::layout::Constraint::{Length, Min};
use ratatui::layout::{Alignment, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};

use super::super::Connection;
use super::super::ss::{holders, nothing, stage, ways};
use super::columns::{ALL, Column};
use super::list::List;

/// Less is too small for anything.
const LEAST: (u16, u16) = (40, 8);
const KEYS: [&str; 6] = ["q quit", "s sort", "r reverse", "p pause", "/ filter", "↑↓ choose"];
/// The longest reason in 80 columns, below the line that names the connection.
const DETAILS: u16 = 5;

pub fn draw(list: &List, frame: &mut Frame<'_>) {
    let area = frame.area();
    if area.width < LEAST.0 || area.height < LEAST.1 {
        let said = format!("too small: {} × {} is needed; q quits", LEAST.0, LEAST.1);
        return frame.render_widget(Paragraph::new(said).wrap(Wrap { trim: true }), area);
    }
    let [summary, totals, body, details, keys] =
        Layout::vertical([Length(1), Length(1), Min(0), Length(DETAILS.min(area.height / 4)), Length(1)]).areas(area);
    let quiet = Style::new().dim();
    let manner = list.manner();
    let said = that_fit(list.summary(), ", ", summary.width);
    let has_room = said.chars().count() + manner.chars().count() < summary.width.into();
    frame.render_widget(Line::from(said).style(Style::new().bold()), summary);
    if has_room {
        frame.render_widget(Line::from(manner).alignment(Alignment::Right), summary);
    }
    frame.render_widget(Line::from(that_fit(list.totals(), "; ", totals.width)), totals);
    if list.view().connections.is_empty() {
        frame.render_widget(Paragraph::new(nothing(list.view())).wrap(Wrap { trim: true }), body);
    } else {
        frame.render_widget(table(list, body.width, body.height), body);
    }
    let said = list.chosen_row().map(words).unwrap_or_default();
    frame.render_widget(Paragraph::new(said).wrap(Wrap { trim: true }), details);
    let filter = (!list.filter.is_empty()).then(|| format!("filter: {} (Esc clears)", list.filter));
    let last = if list.is_typing {
        Line::from(format!("filter: {}▏ Enter keeps, Esc clears", list.filter))
    } else {
        Line::from(that_fit(filter.into_iter().chain(KEYS.map(String::from)), "  ", keys.width)).style(quiet)
    };
    frame.render_widget(last, keys);
}

fn table(list: &List, width: u16, height: u16) -> Table<'static> {
    // One line is the heading.
    let room = usize::from(height.saturating_sub(1));
    list.room.set(room);
    let chosen = list.chosen();
    // Only as far as it must, so that the lines stay where they are.
    let above = list.above.get().clamp((chosen + 1).saturating_sub(room), chosen);
    let above = above.min(list.rows().len().saturating_sub(room));
    list.above.set(above);
    let columns = fitting(width);
    let widths = widths(&columns, list, width);
    let rows = list.rows().enumerate().skip(above).take(room).map(|(place, (it, rates))| {
        let cells = columns.iter().zip(&widths).map(|(column, &width)| {
            let text = cut((column.cell)(it, rates), width);
            let colour = match text.as_str() {
                "ring" => Style::new().fg(Color::Green),
                "kernel" => Style::new().fg(Color::Yellow),
                _ => Style::new(),
            };
            Cell::from(flush(column, text)).style(colour)
        });
        let row = Row::new(cells.collect::<Vec<_>>());
        if place == chosen { row.style(Style::new().reversed()) } else { row }
    });
    let heading = Row::new(columns.iter().map(|column| flush(column, column.title.into())).collect::<Vec<_>>());
    Table::new(rows.collect::<Vec<_>>(), widths.iter().copied().map(Length))
        .header(heading.style(Style::new().bold().underlined()))
        .column_spacing(1)
}

fn flush(column: &Column, text: String) -> Text<'static> {
    Text::from(text).alignment(if column.is_number { Alignment::Right } else { Alignment::Left })
}

/// What a line has left over goes to words that do not fit their column, the most important first.
fn widths(columns: &[&Column], list: &List, width: u16) -> Vec<u16> {
    let mut widths: Vec<u16> = columns.iter().map(|column| column.width).collect();
    let mut spare = (width + 1).saturating_sub(widths.iter().map(|width| width + 1).sum());
    let mut places: Vec<usize> = (0..columns.len()).filter(|&place| !columns[place].is_number).collect();
    places.sort_by_key(|&place| columns[place].rank);
    for place in places {
        let longest = list.rows().map(|(it, rates)| (columns[place].cell)(it, rates).chars().count()).max();
        let wanted = u16::try_from(longest.unwrap_or(0)).unwrap_or(u16::MAX);
        let more = wanted.saturating_sub(widths[place]).min(spare);
        widths[place] += more;
        spare -= more;
    }
    widths
}

/// Cuts a text and marks the cut: a number without its last digit would be another number.
fn cut(text: String, width: u16) -> String {
    let width = usize::from(width);
    if text.chars().count() <= width {
        return text;
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// As many as a line has room for.
fn that_fit(parts: impl IntoIterator<Item = String>, between: &str, width: u16) -> String {
    let mut line = String::new();
    for part in parts {
        let between = if line.is_empty() { "" } else { between };
        if line.chars().count() + between.len() + part.chars().count() > width.into() && !line.is_empty() {
            break;
        }
        line = line + between + &part;
    }
    line
}

/// The columns that a line has room for, the most important first.
fn fitting(width: u16) -> Vec<&'static Column> {
    let mut ranks: Vec<&Column> = ALL.iter().collect();
    ranks.sort_by_key(|column| column.rank);
    let mut left = width + 1;
    let mut last = None;
    for column in ranks {
        if column.width >= left {
            break;
        }
        left -= column.width + 1;
        last = Some(column.rank);
    }
    ALL.iter().filter(|column| Some(column.rank) <= last).collect()
}

/// The connection in words: what it is, how it goes, and why.
fn words(it: &Connection) -> String {
    let [out, back] = ways(it).map(|way| way.is_some_and(|way| way.fast));
    let goes = match (out, back, &it.end) {
        (_, _, None) => "The program has not used it under Underpass yet.".into(),
        (true, true, _) => "Both directions go through shared memory.".into(),
        (out, back, Some(end)) => {
            let where_ = match (out, back) {
                (true, _) => "What comes in is on kernel TCP",
                (_, true) => "What goes out is on kernel TCP",
                _ => "It is on kernel TCP",
            };
            format!("{where_} ({}).", stage(end.stage))
        }
    };
    let why = it.reason.map_or(String::new(), |reason| format!(" {}: {}", reason.key(), reason.sentence()));
    format!("{}: {} to {}, {}\n{goes}{why}", holders(it), it.socket.local, it.socket.peer, it.socket.state)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::time::{Duration, Instant};
    use underpass_segment::reason::Reason;

    use super::super::super::example::{connection, view};

    /// Descriptor 3 is idle, 4 has no reason to be slow and the most traffic, 5 has little and is kept on kernel TCP.
    fn list() -> List {
        let of = |bytes: [u64; 3]| {
            let reasons = [None, None, Some(Reason::PeerSilent)];
            view((0..3).map(|n| connection(n as u32 + 3, bytes[n], reasons[n])).collect())
        };
        let start = Instant::now();
        let mut list = List::of(of([500, 0, 100]), start, Duration::from_secs(2));
        list.take(of([500, 4_000_000, 300]), start + Duration::from_secs(2));
        list
    }

    fn screen(list: &List, width: u16, height: u16) -> Vec<String> {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(list, frame)).unwrap();
        let text = terminal.backend().to_string();
        text.lines().map(|line| line.trim_matches('"').trim_end().to_string()).collect()
    }

    #[test]
    fn the_busiest_comes_first_with_rates_per_second() {
        let shown = screen(&list(), 80, 20);
        assert!(
            shown[0].starts_with("1 process, 3 connection ends, 2 fast") && shown[0].ends_with("by traffic; every 2 s")
        );
        assert!(shown[1].starts_with("sent 2.00 MB/s (100 % fast); received 2.00 MB/s"), "{shown:#?}");
        let order: Vec<&str> = shown[3..6].iter().map(|line| line.split("  ").next().unwrap()).collect();
        assert_eq!(order, ["web 7 fd 4", "web 7 fd 5", "web 7 fd 3"]);
        assert!(shown[3].contains("2.00 MB/s") && shown[4].contains("100 B/s") && shown[4].contains("kernel"));
    }

    #[test]
    fn the_chosen_line_is_told_of_in_words_and_stays_chosen() {
        let mut list = list();
        list.go(1);
        let told = |list: &List| screen(list, 80, 24)[18..].join(" ");
        assert!(told(&list).starts_with(
            "web 7 fd 5: 127.0.0.1:1005 to 127.0.0.1:80, ESTAB It is on kernel TCP (pinned). peer-silent: "
        ));
        // The busiest of all now, so it is first.
        let busy = view(vec![connection(5, 9_000_000, Some(Reason::PeerSilent)), connection(4, 4_000_000, None)]);
        list.take(busy, Instant::now());
        assert_eq!((list.chosen(), told(&list).starts_with("web 7 fd 5")), (0, true));
        list.take(view(Vec::new()), Instant::now());
        assert!(list.chosen_row().is_none());
        assert!(screen(&list, 80, 24)[2].contains("1 process under Underpass, without a TCP connection"));
    }

    #[test]
    fn any_size_is_drawn() {
        let mut list = list();
        list.go(isize::MAX);
        for width in (1..=200).step_by(13) {
            for height in (1..=30).step_by(3) {
                let shown = screen(&list, width, height);
                assert!(
                    width < 40 || height < 8 || shown.iter().any(|line| line.starts_with("web 7 fd 3")),
                    "{shown:#?}"
                );
            }
        }
        assert!(screen(&list, 30, 5)[0].starts_with("too small: 40 × 8 is needed"));
        let all = screen(&list, 220, 20)[2].clone();
        assert!(ALL.iter().all(|column| all.contains(column.title)), "{all}");
    }

    #[test]
    fn what_does_not_fit_is_not_half_shown() {
        let mut all = view((0..1200).map(|n| connection(n + 1003, 0, None)).collect());
        for it in &mut all.connections {
            it.holders[0].name = "redis-benchmark".into();
            it.holders[0].pid = 4_194_303;
        }
        all.connections[0].socket.peer = "[::ffff:192.168.100.100]:40000".parse().unwrap();
        let mut list = List::of(all, Instant::now(), Duration::from_secs(1));
        let shown = screen(&list, 40, 8);
        assert_eq!(shown[0], "1 process, 1,200 connection ends");
        assert_eq!((&*shown[1], &*shown[7]), ("rates come with the second look", "q quit  s sort  r reverse  p pause"));
        assert!(shown[3].starts_with("redis-benchmark 4194303 fd …"), "{shown:#?}");
        assert!(screen(&list, 80, 20)[3].starts_with("redis-benchmark 4194303 fd 1003 "), "{shown:#?}");
        assert!(screen(&list, 80, 20)[0].starts_with("1 process, 1,200 connection ends, 1,200 fast "));
        for width in 100..=220 {
            let line = &screen(&list, width, 20)[3];
            let is_whole = line.contains(" [::ffff:192.168.100.100]:40000 ");
            assert!(is_whole || line.contains("… "), "{width}: {line}");
            assert!(is_whole || width < 220, "{line}");
        }
        list.take(view(vec![connection(3, 9_000_000, None)]), Instant::now());
        assert!(screen(&list, 60, 20)[1].ends_with(" fast)") && screen(&list, 40, 20)[1].ends_with(" fast)"));
    }

    #[test]
    fn the_filter_looks_everywhere() {
        let mut list = list();
        let mut shown = |filter: &str| {
            list.filter = filter.into();
            list.arrange();
            list.rows().map(|(it, _)| it.socket.cookie).collect::<Vec<_>>()
        };
        assert_eq!(shown("PEER-si"), [5]);
        assert_eq!(shown(":1003"), [3]);
        assert_eq!(shown("web 7 FD 4"), [4]);
        assert!(shown("nobody").is_empty());
        assert_eq!(shown(""), [4, 5, 3]);
    }
}
