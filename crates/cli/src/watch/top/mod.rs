//! `underpass top`: the list, live.

mod columns;
mod draw;
mod list;
mod screen;

use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::json;
use signal_hook::consts::SIGHUP;
use signal_hook::low_level::emulate_default_handler;

use super::asked::Asked;
use super::ss::{nothing, to_json};
use crate::cli::TopArguments;
use crate::failure::Failure;
use crate::output::{print, table};
use crate::say;
use list::List;
use screen::Screen;

/// How soon a signal is minded.
const TICK: Duration = Duration::from_millis(100);

/// Standard input or output is none.
#[derive(Debug, thiserror::Error)]
#[error(
    "top draws on a terminal, and standard input or output is none; `underpass top --once` (or --json) prints the \
     rates once"
)]
struct NoTerminal;

impl From<NoTerminal> for Failure {
    fn from(error: NoTerminal) -> Failure {
        Failure::WrongUse(error.into())
    }
}

/// Watches the connections until the user has seen enough.
///
/// # Errors
/// No terminal, or the kernel does not say what there is.
pub fn top(arguments: &TopArguments) -> Result<(), Failure> {
    if arguments.once || arguments.json {
        return once(arguments);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(NoTerminal.into());
    }
    // What can fail for good does so before the screen is taken.
    let mut list = List::new(arguments.interval)?;
    let asked = Asked::listen()?;
    on_screen(&mut list, &asked)?;
    Ok(asked.end()?)
}

fn on_screen(list: &mut List, asked: &Asked) -> anyhow::Result<()> {
    let mut screen = Screen::take()?;
    let outcome = until_asked(&mut screen, list, asked);
    if has_hung_up(Duration::ZERO) {
        emulate_default_handler(SIGHUP)?;
    }
    outcome
}

fn until_asked(screen: &mut Screen, list: &mut List, asked: &Asked) -> anyhow::Result<()> {
    let mut is_drawn = false;
    while asked.signal().is_none() {
        is_drawn &= !screen.mind_stops()?;
        is_drawn &= !list.look()?;
        if !is_drawn {
            screen.draw(|frame| draw::draw(list, frame))?;
            is_drawn = true;
        }
        if has_hung_up(TICK.min(list.until_look())) {
            return Ok(());
        }
        // All keys that were pressed meanwhile, before anything else.
        while event::poll(Duration::ZERO)? {
            is_drawn = false;
            let Event::Key(key) = event::read()? else { continue };
            match press(list, key) {
                Pressed::End => return Ok(()),
                Pressed::Stop => screen.stop_group()?,
                Pressed::Other => {}
            }
        }
    }
    Ok(())
}

/// Waits for a key, or so long; whether the terminal is gone. That is not left to the reader of keys, which reads an
/// end of file again and again.
fn has_hung_up(patience: Duration) -> bool {
    let stdin = io::stdin();
    let mut keys = [PollFd::new(&stdin, PollFlags::IN)];
    let patience = Timespec { tv_sec: 0, tv_nsec: i64::from(patience.subsec_nanos()) };
    // Interrupted, it was by a signal that is looked at next.
    poll(&mut keys, Some(&patience)).is_ok() && keys[0].revents().intersects(PollFlags::HUP | PollFlags::ERR)
}

enum Pressed {
    End,
    Stop,
    Other,
}

fn press(list: &mut List, key: KeyEvent) -> Pressed {
    if key.kind == KeyEventKind::Release {
        return Pressed::Other;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Pressed::End,
            KeyCode::Char('z') => Pressed::Stop,
            _ => Pressed::Other,
        };
    }
    if list.is_typing {
        match key.code {
            KeyCode::Char(letter) => list.filter.push(letter),
            KeyCode::Backspace => drop(list.filter.pop()),
            KeyCode::Enter => list.is_typing = false,
            KeyCode::Esc => {
                list.filter.clear();
                list.is_typing = false;
            }
            _ => {}
        }
        list.arrange();
        return Pressed::Other;
    }
    match key.code {
        KeyCode::Char('q') => return Pressed::End,
        KeyCode::Char('s') => list.sort_by_next(),
        KeyCode::Char('r') => list.reverse(),
        KeyCode::Char('p') => list.pause(),
        KeyCode::Char('/') => list.is_typing = true,
        KeyCode::Esc => {
            list.filter.clear();
            list.arrange();
        }
        KeyCode::Up => list.go(-1),
        KeyCode::Down => list.go(1),
        KeyCode::PageUp => list.go(-list.page()),
        KeyCode::PageDown => list.go(list.page()),
        KeyCode::Home => list.go(isize::MIN),
        KeyCode::End => list.go(isize::MAX),
        _ => {}
    }
    Pressed::Other
}

/// Prints the rates of one interval.
fn once(arguments: &TopArguments) -> Result<(), Failure> {
    let mut list = List::new(arguments.interval)?;
    thread::sleep(list.until_look());
    list.look()?;
    let shown = if arguments.json {
        let connections = list.rows().map(|(it, rates)| {
            let mut value = to_json(it);
            value["rates"] = rates.map_or(json!(null), |rates| {
                json!({
                    "out": { "ring_bytes": rates.sent[0], "kernel_bytes": rates.sent[1] },
                    "in": { "ring_bytes": rates.received[0], "kernel_bytes": rates.received[1] },
                    "doorbells": rates.bells,
                    "sleeps": rates.sleeps,
                })
            });
            value
        });
        let connections: Vec<_> = connections.collect();
        format!("{:#}\n", json!({ "interval": arguments.interval.as_secs_f64(), "connections": connections }))
    } else if list.view().connections.is_empty() {
        say(format_args!("{}", nothing(list.view())));
        return Ok(());
    } else {
        let heading = columns::ALL.iter().map(|it| it.title.to_string()).collect();
        let rows = list.rows().map(|(it, rates)| columns::ALL.iter().map(|column| (column.cell)(it, rates)).collect());
        let rows: Vec<_> = std::iter::once(heading).chain(rows).collect();
        let right: Vec<usize> = (0..columns::ALL.len()).filter(|&index| columns::ALL[index].is_number).collect();
        format!("{}\n{}\n\n{}", list.summary().join(", "), list.totals().join("; "), table(&rows, &right))
    };
    Ok(print(shown)?)
}
