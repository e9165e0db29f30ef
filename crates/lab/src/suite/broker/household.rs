//! Two users, what they run, and the daemon that their programs ask.

use std::ffi::OsStr;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Signal, geteuid};
use tempfile::TempDir;

use crate::bench::{LIMIT, Lab};
use crate::launcher::{Launcher, Session, Side};
use crate::process::{Finished, Running, finish};
use crate::processors::{Pair, confine};
use crate::programs::Program;
use crate::suite::apps::{folder, installed};
use crate::witness::User;

/// Accounts that Debian and most others have. The first one's group is the one whose members may share memory.
const ACCOUNTS: [&str; 3] = ["daemon", "www-data", "nobody"];
const NAME: &str = "underpassd";

/// What makes a connection look for its other end at once.
pub const AT_ONCE: [(&str, &str); 2] = [("UNDERPASS_GO_UP_MESSAGES", "0"), ("UNDERPASS_GO_UP_BYTES", "0")];
const BROKER: &str = "UNDERPASS_BROKER";

/// What a household is made of.
#[derive(Clone, Debug)]
pub struct Means {
    daemon: PathBuf,
    group: String,
    /// Two users, both members of the group.
    users: [User; 2],
}

impl Means {
    /// Finds it, or why there is none.
    ///
    /// # Errors
    /// This process is not root's, an account is missing, or the daemon is.
    pub fn find() -> Result<Means, String> {
        if !geteuid().is_root() {
            return Err("only root can be several users".into());
        }
        let command = std::env::current_exe().unwrap_or_default();
        let beside = [command.with_file_name(NAME), command.with_file_name("../sbin").join(NAME)];
        let daemon = beside.into_iter().find(|it| it.is_file()).or_else(|| installed(NAME));
        let daemon = daemon.ok_or("underpassd lies neither beside the command nor in PATH: cargo build --release")?;
        let number = |option: &str, account: &str| {
            let id = finish(Command::new("id").args([option, account]), LIMIT).ok()?;
            id.stdout.trim().parse::<u32>().ok()
        };
        let [group, one, other] = ACCOUNTS;
        let all = number("-g", group).zip(number("-u", one)).zip(number("-u", other));
        let ((gid, one), other) = all.ok_or_else(|| format!("there are no users {}", ACCOUNTS.join(", ")))?;
        let users = [one, other].map(|id| User { id, group: gid });
        Ok(Means { daemon, group: group.into(), users })
    }

    /// A daemon that listens at this path.
    ///
    /// # Errors
    /// It does not start.
    pub fn daemon(&self, socket: &Path) -> Result<Running> {
        let mut command = Command::new(&self.daemon);
        command.args(["--foreground", "--log", "warn", "--group", &self.group, "--socket"]).arg(socket);
        let mut daemon = Running::stopped_by(&mut command, Signal::TERM)?;
        daemon.wait_until(|| listens(socket))?;
        Ok(daemon)
    }
}

fn listens(socket: &Path) -> bool {
    let client = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let address = SocketAddrUnix::new(socket);
    matches!((client, address), (Ok(client), Ok(address)) if connect(&client, &address).is_ok())
}

/// Whose programs talk to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The ends belong to two users, and meet through the daemon.
    TwoUsers,
    /// The ends belong to one user, and find each other.
    OneUser,
}

/// A folder that all users may enter, with the library and the programs, and a daemon.
#[derive(Debug)]
pub struct Household {
    means: Means,
    launcher: Launcher,
    /// It ends before its folder goes.
    _daemon: Running,
    folder: TempDir,
}

impl Household {
    /// Makes it.
    ///
    /// # Errors
    /// There is no place for it, or the daemon does not start.
    pub fn new(means: &Means, lab: &Lab) -> Result<Household> {
        let folder = folder()?;
        fs::set_permissions(folder.path(), Permissions::from_mode(0o755))?;
        let library = folder.path().join("libunderpass.so");
        fs::copy(lab.launcher.library(), &library).context("copying the library for other users")?;
        let daemon = means.daemon(&socket_in(folder.path())).context("starting underpassd")?;
        let launcher = lab.launcher.with_library(library);
        Ok(Household { means: means.clone(), launcher, _daemon: daemon, folder })
    }

    /// A folder for servers.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The users of a server and of its client.
    pub fn users(&self, ends: Ends) -> [User; 2] {
        let [server, client] = self.means.users;
        if ends == Ends::TwoUsers { [server, client] } else { [client; 2] }
    }

    /// Name of the group whose members may share memory.
    pub fn group(&self) -> &str {
        &self.means.group
    }

    /// What one sample on `side` is started in: the client's processes are counted.
    ///
    /// # Errors
    /// There is no shared memory for the counters.
    pub fn session(&self, side: Side) -> Result<Session<'_>> {
        self.launcher.session_of(side, Some(self.means.users[1]))
    }

    /// `program` as `user`, who asks the daemon.
    pub fn command(&self, session: &Session, program: impl AsRef<OsStr>, user: User) -> Command {
        let mut command = session.command(program);
        command.uid(user.id).gid(user.group).current_dir(self.path());
        if session.side() == Side::Underpass {
            command.env(BROKER, socket_in(self.path()));
        }
        command
    }

    /// The helper program `program` as `user`, who asks the daemon.
    ///
    /// # Errors
    /// It cannot be compiled, or copied to where others may execute it.
    pub fn helper(&self, lab: &Lab, session: &Session, program: Program, user: User) -> Result<Command> {
        let own = lab.path(program)?;
        let copy = self.path().join(own.file_name().unwrap_or_default());
        if !copy.exists() {
            fs::copy(&own, &copy).context("copying a helper program for other users")?;
        }
        Ok(self.command(session, copy, user))
    }

    /// The helper program `program` as a server and as its client, of the users of `ends`.
    ///
    /// # Errors
    /// As for [`Household::helper`].
    pub fn helpers(&self, lab: &Lab, session: &Session, program: Program, ends: Ends) -> Result<[Command; 2]> {
        let [server, client] = self.users(ends);
        Ok([self.helper(lab, session, program, server)?, self.helper(lab, session, program, client)?])
    }

    /// A server and a client of one helper program, pinned to the processors of `pair` if there is one, both to their
    /// end.
    ///
    /// # Errors
    /// Either of them cannot be started, fails, finds a wrong byte, or hangs.
    pub fn converse(
        &self,
        [server, client]: [&mut Command; 2],
        arguments: &[String],
        pair: Option<Pair>,
    ) -> Result<Finished> {
        let pinned = pair.map(|pair| confine(&[pair.first])).transpose()?;
        let (server, port) = Running::announced(server.args(arguments))?;
        drop(pinned);
        let pinned = pair.map(|pair| confine(&[pair.second])).transpose()?;
        let client = Running::start(client.args(arguments).args(["--port", &port.to_string()]));
        drop(pinned);
        let client = client?.finish(LIMIT)?;
        server.finish(LIMIT)?;
        Ok(client)
    }
}

/// Has the programs of a command look for no daemon.
pub fn without_daemon(command: &mut Command) -> &mut Command {
    command.env(BROKER, "")
}

fn socket_in(folder: &Path) -> PathBuf {
    folder.join("broker.sock")
}
