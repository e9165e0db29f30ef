//! A terminal for a program that draws on one.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcgetattr, tcsetwinsize};

const LIMIT: Duration = Duration::from_secs(30);

/// A program in a session of its own, and the screen that it draws on. It is killed when dropped.
pub struct Terminal {
    child: Child,
    keys: File,
    program_side: File,
    screen: Arc<Mutex<vt100::Parser>>,
    /// How the terminal was set before.
    before: String,
}

impl Terminal {
    /// Starts `command` on a terminal of this many columns and lines.
    pub fn start(command: Command, columns: u16, lines: u16) -> Terminal {
        let ours = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&ours).expect("a terminal of our own");
        unlockpt(&ours).expect("an open terminal");
        let name = ptsname(&ours, Vec::new()).expect("the terminal's name").into_string().expect("a path");
        let program_side = fs::OpenOptions::new().read(true).write(true).open(name).expect("the terminal");
        tcsetwinsize(&program_side, size(columns, lines)).expect("a size");
        let before = settings(&program_side);
        let mut session = Command::new("setsid");
        session.arg("--ctty").arg(command.get_program()).args(command.get_args());
        let end = || program_side.try_clone().expect("a descriptor");
        let child = session.stdin(end()).stdout(end()).stderr(end()).spawn().expect("setsid");
        let keys = File::from(ours);
        let screen = Arc::new(Mutex::new(vt100::Parser::new(lines, columns, 0)));
        let (mut from, to) = (keys.try_clone().expect("a descriptor"), Arc::clone(&screen));
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = from.read(&mut buffer) {
                to.lock().expect("the screen").process(&buffer[..n]);
            }
        });
        Terminal { child, keys, program_side, screen, before }
    }

    /// Presses these keys.
    pub fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).expect("keys");
    }

    /// Gives the terminal another size.
    pub fn resize(&self, columns: u16, lines: u16) {
        self.screen.lock().expect("the screen").set_size(lines, columns);
        tcsetwinsize(&self.program_side, size(columns, lines)).expect("a size");
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: i32) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::from_named_raw(signal).expect("a signal")).expect("a process");
    }

    /// Waits until the screen is as wanted, and returns it.
    pub fn await_screen(&self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let deadline = Instant::now() + LIMIT;
        loop {
            let shown = self.screen.lock().expect("the screen").screen().contents();
            if wanted(&shown) {
                return shown;
            }
            assert!(Instant::now() < deadline, "waited in vain for {what}:\n{shown}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits for the program's end. Fails unless the terminal is as it was before.
    pub fn end(mut self) -> ExitStatus {
        let deadline = Instant::now() + LIMIT;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("wait for a child") {
                break status;
            }
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.await_screen("anything", |_| true));
            thread::sleep(Duration::from_millis(20));
        };
        assert_eq!(settings(&self.program_side), self.before, "after {status:?}");
        // What it wrote last may not have been read yet.
        let is_as_before = || {
            let screen = self.screen.lock().expect("the screen");
            !screen.screen().alternate_screen() && !screen.screen().hide_cursor()
        };
        while !is_as_before() {
            assert!(Instant::now() < deadline, "the screen is not given back, or the cursor is hidden");
            thread::sleep(Duration::from_millis(20));
        }
        status
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn size(columns: u16, lines: u16) -> Winsize {
    Winsize { ws_row: lines, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }
}

fn settings(terminal: &File) -> String {
    format!("{:?}", tcgetattr(terminal).expect("the terminal's settings"))
}
