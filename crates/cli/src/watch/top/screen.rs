//! The terminal: taken, given back in whatever way this process ends, and lent to others while it is stopped.

use std::io::{self, Stdout, stdout};
use std::panic;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use ratatui::backend::{Backend, CrosstermBackend};
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode};
use ratatui::layout::{Rect, Size};
use ratatui::{Frame, Terminal, TerminalOptions, Viewport};
use rustix::process::{Signal, kill_current_process_group};
use signal_hook::consts::SIGCONT;

use crate::sys::HeldStop;

pub struct Screen {
    /// Never dropped: where the terminal is gone, and standard error with it, that panics.
    terminal: &'static mut Terminal<CrosstermBackend<Stdout>>,
    /// The terminal's, when it was last drawn on.
    size: Size,
    stop: HeldStop,
    /// This process was stopped and continued. What happened to the terminal meanwhile is not known.
    is_continued: Arc<AtomicBool>,
}

impl Screen {
    pub fn take() -> io::Result<Screen> {
        let stop = HeldStop::hold();
        let is_continued = Arc::default();
        signal_hook::flag::register(SIGCONT, Arc::clone(&is_continued))?;
        let backend = CrosstermBackend::new(stdout());
        let size = backend.size()?;
        let options = TerminalOptions { viewport: Viewport::Fixed(drawn_of(size)) };
        let terminal = Box::leak(Box::new(Terminal::with_options(backend, options)?));
        let say = panic::take_hook();
        panic::set_hook(Box::new(move |panic| {
            give_back();
            say(panic);
        }));
        let mut screen = Screen { terminal, size, stop, is_continued };
        screen.take_again().inspect_err(|_| give_back())?;
        Ok(screen)
    }

    /// Draws what `list` puts on a frame of the terminal's size as it is now.
    pub fn draw(&mut self, list: impl FnOnce(&mut Frame)) -> io::Result<()> {
        let size = self.terminal.size()?;
        if size != self.size {
            self.terminal.resize(drawn_of(size))?;
            self.size = size;
        }
        self.terminal.draw(list).map(drop)
    }

    /// Stops if SIGTSTP has come, and takes the terminal anew after a stop. Whether everything has to be drawn again.
    pub fn mind_stops(&mut self) -> io::Result<bool> {
        if self.stop.is_wanted() {
            give_back();
            self.stop()?;
            return Ok(true);
        }
        let is_continued = self.is_continued.swap(false, Ordering::Relaxed);
        if is_continued {
            give_back();
            self.take_again()?;
        }
        Ok(is_continued)
    }

    /// Stops the whole group, as the terminal does when it handles the key itself: the shell may wait for another
    /// process of the group, and would not learn of the stop. If there is no shell to continue this process, nothing is
    /// stopped.
    pub fn stop_group(&mut self) -> io::Result<()> {
        // First of all: the terminal is the shell's as soon as another has stopped.
        give_back();
        kill_current_process_group(Signal::TSTP)?;
        self.stop()
    }

    fn stop(&mut self) -> io::Result<()> {
        self.stop.let_through();
        self.is_continued.store(false, Ordering::Relaxed);
        self.take_again()
    }

    fn take_again(&mut self) -> io::Result<()> {
        enable_raw_mode()?;
        execute!(stdout(), EnterAlternateScreen)?;
        self.terminal.clear()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// The part of a terminal of this size that is drawn on: all of it, for every size that can be seen. The program behind
/// a terminal may say that it has 65,535 by 65,535 cells, each of which would take memory twice.
fn drawn_of(terminal: Size) -> Rect {
    const MOST: Size = Size { width: 1024, height: 512 };
    Rect::new(0, 0, terminal.width.min(MOST.width), terminal.height.min(MOST.height))
}

/// Errors are passed over: if the terminal is gone, there is nothing to give back, and no place for a message.
fn give_back() {
    let _ = disable_raw_mode();
    let _ = execute!(stdout(), LeaveAlternateScreen, Show);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    /// What [`a_panic_gives_the_terminal_back`] runs on a terminal.
    #[test]
    #[ignore = "takes the terminal, and panics"]
    fn panic_on_a_screen() {
        let screen = Screen::take().unwrap();
        screen.terminal.hide_cursor().unwrap();
        panic!("for a test");
    }

    #[test]
    fn a_panic_gives_the_terminal_back() {
        let me = std::env::current_exe().unwrap();
        let run = format!(
            "stty -g; '{}' --ignored --exact --nocapture watch::top::screen::tests::panic_on_a_screen; stty -g",
            me.display()
        );
        let Ok(said) = Command::new("script").args(["-qec", &run, "/dev/null"]).output() else {
            return eprintln!("SKIPPED: script is not installed");
        };
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        let (taken, rest) =
            said.split_once("\u{1b}[?1049h").unwrap_or_else(|| panic!("the screen was not taken: {said}"));
        let (_, rest) =
            rest.split_once("\u{1b}[?1049l").unwrap_or_else(|| panic!("the screen is not given back: {said}"));
        assert!(rest.contains("for a test"), "{said}");
        assert!(rest.rfind("\u{1b}[?25h") > rest.rfind("\u{1b}[?25l"), "the cursor is hidden: {said}");
        assert_eq!(taken.lines().next(), rest.trim_end().lines().next_back(), "{said}");
    }
}
