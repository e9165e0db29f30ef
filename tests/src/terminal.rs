//! A terminal for a program that draws on one.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

const LIMIT: Duration = Duration::from_secs(30);

/// A program in a session of its own, and the screen that it draws on. It is killed when dropped.
pub struct Terminal {
    child: Program,
    keys: File,
    program_side: File,
    screen: Arc<Mutex<vt100::Parser>>,
    /// Draws what comes until it is told to end.
    eyes: (JoinHandle<()>, Arc<AtomicBool>),
    /// How the terminal was set before.
    before: String,
}

impl Terminal {
    /// Starts `command` on a terminal of this many columns and lines.
    pub fn start(command: Command, columns: u16, lines: u16) -> Terminal {
        Terminal::of(command, columns, lines, &["--ctty"])
    }

    /// Starts `command` on a terminal from which no signal comes.
    pub fn start_without_signals(command: Command, columns: u16, lines: u16) -> Terminal {
        Terminal::of(command, columns, lines, &[])
    }

    fn of(command: Command, columns: u16, lines: u16, session_options: &[&str]) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&ours).expect("a terminal of our own");
        unlockpt(&ours).expect("an open terminal");
        let name = ptsname(&ours, Vec::new()).expect("the terminal's name").into_string().expect("a path");
        let program_side = fs::OpenOptions::new().read(true).write(true).open(name).expect("the terminal");
        tcsetwinsize(&program_side, size(columns, lines)).expect("a size");
        let before = settings(&program_side);
        let mut session = Command::new("setsid");
        session.args(session_options).arg(command.get_program()).args(command.get_args());
        let end = || program_side.try_clone().expect("a descriptor");
        let child = session.stdin(end()).stdout(end()).stderr(end()).spawn().expect("setsid");
        let keys = File::from(ours);
        // Only this part of the screen is kept: all of the largest possible terminal would take gigabytes.
        let (lines, columns) = (lines.min(512), columns.min(1024));
        let screen = Arc::new(Mutex::new(vt100::Parser::new(lines, columns, 0)));
        let (mut from, to) = (keys.try_clone().expect("a descriptor"), Arc::clone(&screen));
        let is_over = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&is_over);
        let look = move || {
            let mut buffer = [0; 4096];
            while !until.load(Ordering::Relaxed) {
                let a_moment = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
                if poll(&mut [PollFd::new(&from, PollFlags::IN)], Some(&a_moment)) == Ok(0) {
                    continue;
                }
                let Ok(n @ 1..) = from.read(&mut buffer) else { return };
                to.lock().expect("the screen").process(&buffer[..n]);
            }
        };
        Terminal { child: Program(child), keys, program_side, screen, eyes: (thread::spawn(look), is_over), before }
    }

    /// Presses these keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("keys");
    }

    /// Presses these keys now and then until the screen is as wanted.
    pub fn press_until(&mut self, keys: &str, what: &str, wanted: impl Fn(&str) -> bool) {
        let deadline = Instant::now() + LIMIT;
        loop {
            self.press(keys);
            match self.shown_by(Instant::now() + Duration::from_secs(1), &wanted) {
                Ok(_) => return,
                Err(shown) => assert!(Instant::now() < deadline, "waited in vain for {what}:\n{shown}"),
            }
        }
    }

    /// Gives the terminal another size.
    pub fn resize(&self, columns: u16, lines: u16) {
        self.screen.lock().expect("the screen").set_size(lines, columns);
        tcsetwinsize(&self.program_side, size(columns, lines)).expect("a size");
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: i32) {
        let pid = Pid::from_child(&self.child.0);
        kill_process(pid, Signal::from_named_raw(signal).expect("a signal")).expect("a process");
    }

    /// The number of the program.
    pub fn pid(&self) -> u32 {
        self.child.0.id()
    }

    /// Waits until no program has the screen to itself, or until one has.
    pub fn await_taken(&self, is_taken: bool) {
        let deadline = Instant::now() + LIMIT;
        let is_so = || {
            let screen = self.screen.lock().expect("the screen");
            [screen.screen().alternate_screen(), screen.screen().hide_cursor()] == [is_taken; 2]
        };
        while !is_so() {
            let shown = self.await_screen("anything", |_| true);
            assert!(Instant::now() < deadline, "screen and cursor are to be taken: {is_taken}\n{shown}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Takes the terminal away, as a connection does that breaks, and waits for the program's end.
    pub fn hang_up(self) -> ExitStatus {
        let Terminal { mut child, keys, eyes, .. } = self;
        eyes.1.store(true, Ordering::Relaxed);
        eyes.0.join().expect("the reader of the screen");
        drop(keys);
        await_end(&mut child.0).expect("it ends with its terminal")
    }

    /// Waits until the screen is as wanted, and returns it.
    pub fn await_screen(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let shown = self.shown_by(Instant::now() + LIMIT, wanted);
        shown.unwrap_or_else(|shown| panic!("waited in vain for {what}:\n{shown}"))
    }

    /// The screen, once it is as wanted; as it is at the `deadline` otherwise.
    fn shown_by(&self, deadline: Instant, wanted: impl Fn(&str) -> bool) -> Result<String, String> {
        loop {
            let shown = self.screen.lock().expect("the screen").screen().contents();
            if wanted(&shown) {
                return Ok(shown);
            }
            if Instant::now() >= deadline {
                return Err(shown);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the program's end. Fails unless the terminal is as it was before.
    pub fn end(mut self) -> ExitStatus {
        let Some(status) = await_end(&mut self.child.0) else {
            panic!("it does not end:\n{}", self.await_screen("anything", |_| true))
        };
        assert_eq!(settings(&self.program_side), self.before, "after {status:?}");
        // What it wrote last may not have been read yet.
        self.await_taken(false);
        status
    }
}

fn await_end(child: &mut Child) -> Option<ExitStatus> {
    let deadline = Instant::now() + LIMIT;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait().expect("wait for a child") {
            return Some(status);
        }
        thread::sleep(Duration::from_millis(20));
    }
    None
}

/// Killed when dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn size(columns: u16, lines: u16) -> Winsize {
    Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn settings(terminal: &File) -> String {
    format!("{:?}", tcgetattr(terminal).expect("the terminal's settings"))
}
