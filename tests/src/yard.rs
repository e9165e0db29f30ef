//! An echo between users and containers, by the program `guest.c` of `tests/fixtures`.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::broker::{Broker, User};
use crate::container::Container;
use crate::group::Group;
use crate::library::{AT_ONCE, is_kernel_only};
use crate::net::{await_listening_beside, free_port};
use crate::stage::{Stage, compile};

/// What `guest` says when every message has come back.
pub const DONE: &str = "every echo as sent\n";
/// Connections of one echo.
const CONNECTIONS: u64 = 5;

/// Where a program runs, and as whom.
pub struct Place<'a> {
    container: Option<&'a Container>,
    /// As whom.
    pub user: User,
}

impl<'a> Place<'a> {
    /// On the host.
    pub fn host(user: User) -> Place<'a> {
        Place { container: None, user }
    }

    /// In a container.
    pub fn inside(container: &'a Container, uid: u32, gid: u32) -> Place<'a> {
        Place { container: Some(container), user: container.user(uid, gid) }
    }

    /// A process there as /proc has it.
    pub fn process(&self) -> String {
        self.container.map_or("self".into(), Container::process)
    }
}

/// A daemon, and the program.
pub struct Yard {
    /// The daemon. It ends before the stage, which has its socket.
    pub broker: Broker,
    /// Path of the program.
    pub program: String,
    /// Where they are.
    pub stage: Stage,
}

impl Yard {
    /// A daemon with these arguments, if all is there that containers need; otherwise says so, and the test is skipped.
    pub fn new(arguments: &[&str]) -> Option<Yard> {
        let stage = Stage::with(&["cc", "unshare", "nsenter", "ip"])?;
        let broker = Broker::start(&stage, arguments)?;
        let program = stage.path("guest");
        compile("guest.c", &program, &[]);
        Some(Yard { broker, program: program.display().to_string(), stage })
    }

    /// A command of the program there, under Underpass.
    pub fn command(&self, place: &Place<'_>, words: &str, settings: &[(&str, &str)]) -> Command {
        let words: Vec<&str> = words.split_whitespace().collect();
        let mut command = match place.container {
            Some(container) => container.command(&self.stage, &place.user, &self.program, &words, settings),
            None => {
                let mut command = self.stage.plain(&self.program, words);
                place.user.runs(&mut command, settings);
                command
            }
        };
        self.broker.serves(&mut command);
        command
    }

    /// Starts the program there, whose connections go up at once.
    pub fn start(&self, place: &Place<'_>, words: &str) -> Group {
        self.stage.start(self.command(place, words, AT_ONCE))
    }

    /// Starts it as a server, `serve` or `mirror`, and waits until it listens.
    pub fn serve(&self, place: &Place<'_>, how: &str, port: u16, settings: &[(&str, &str)]) -> Group {
        let command = self.command(place, &format!("{how} {port}"), &[AT_ONCE, settings].concat());
        let mut server = self.stage.start(command);
        await_listening_beside(&place.process(), &mut server, port);
        server
    }

    /// All that `client` sends comes back from `server`, and goes fast once the two have met.
    pub fn assert_fast_echo(&self, what: &str, server: &Place<'_>, client: &Place<'_>) {
        let ends = [server, client];
        let fast = || ends.map(|it| it.user.run.fast(None).connections);
        let port = free_port();
        let _serving = self.serve(server, "serve", port, &[]);
        let is_fast = || {
            let all = fast().map(|it| it + CONNECTIONS);
            let asking = self.start(client, &format!("ask {port} {CONNECTIONS} 3000"));
            assert_eq!(asking.succeed(Duration::from_secs(60)), DONE, "{what}");
            // The server tells of a connection when it has closed it.
            let deadline = Instant::now() + Duration::from_secs(20);
            while !is_kernel_only() && fast() != all && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            is_kernel_only() || fast() == all
        };
        // Beside heavy load a conversation may be over before the broker has answered both ends.
        let was_fast = (0..3).any(|_| is_fast());
        let tables = ends.map(|it| it.user.run.table());
        assert!(was_fast, "{what}: {tables:#?}\n{}", self.broker.said());
    }
}

/// The process of the program, as the host numbers it: in a container it is a child of the process that was started.
pub fn guest_of(group: &Group) -> u32 {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", group.pid())).unwrap_or_default();
    children.split_whitespace().next().map_or(group.pid(), |it| it.parse().expect("a number"))
}

/// Messages that are echoed one after another, until they are stopped.
pub struct Beats {
    file: PathBuf,
    client: Group,
}

impl Beats {
    /// Begins, towards a server on `port`.
    pub fn begin(yard: &Yard, client: &Place<'_>, port: u16, settings: &[(&str, &str)]) -> Beats {
        let file = yard.stage.file("beats", [0; 16]);
        fs::set_permissions(&file, Permissions::from_mode(0o666)).expect("a file for all users");
        let words = format!("beat {port} {}", file.display());
        let client = yard.stage.start(yard.command(client, &words, &[AT_ONCE, settings].concat()));
        Beats { file, client }
    }

    /// The program that has them echoed.
    pub fn client(&self) -> &Group {
        &self.client
    }

    /// How many have come back.
    pub fn count(&self) -> u64 {
        count_in(&self.file)
    }

    /// Waits for so many more; fails if they do not come.
    pub fn await_more(&self, more: u64, what: &str) {
        let (from, deadline) = (self.count(), Instant::now() + Duration::from_secs(90));
        while self.count() < from + more {
            let so_far = self.count() - from;
            assert!(Instant::now() < deadline, "{what}: {so_far} of {more} beats\n{}", self.client.said());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends them. How many there were.
    pub fn end(self) -> u64 {
        // The count before it is left alone: the program may be about to change it.
        let file = File::options().write(true).open(&self.file).expect("the beats");
        file.write_all_at(&1u64.to_ne_bytes(), 8).expect("write to the beats");
        self.client.succeed(Duration::from_secs(60));
        count_in(&self.file)
    }
}

fn count_in(file: &Path) -> u64 {
    u64::from_ne_bytes(fs::read(file).expect("the beats")[..8].try_into().expect("eight bytes"))
}
