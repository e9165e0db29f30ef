//! Two network namespaces with an interface each, and a cable between: for tests and measurements of drivers. All of it goes
//! with its value, or with the process, however that ends. Needs root, and `unshare` and `ip`.

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::thread;

/// The interface at either end of the cable.
pub const INTERFACE: &str = "up0";

/// Why there is no rig.
#[derive(Debug, thiserror::Error)]
pub enum RigError {
    /// A program is missing.
    #[error("{program} cannot be run ({source}); it comes with util-linux (unshare) or iproute2 (ip)")]
    Program {
        /// Its name.
        program: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// No namespace could be made.
    #[error("a network namespace cannot be made ({words}); run as root")]
    Namespace {
        /// What unshare(1) said.
        words: String,
    },
    /// A command failed.
    #[error("{command}: {words}")]
    Command {
        /// The command.
        command: String,
        /// What it said.
        words: String,
    },
}

/// A network namespace.
#[derive(Debug)]
pub struct Namespace {
    /// Holds it, and ends when it hears nothing any more, as when this process is gone.
    holder: Child,
    file: File,
}

impl Namespace {
    /// A new one, with nothing in it but a loopback interface.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new() -> Result<Namespace, RigError> {
        let program = "unshare";
        let failed = |source| RigError::Program { program, source };
        let mut command = Command::new(program);
        command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = command.spawn().map_err(failed)?;
        // It answers once it is where it should be.
        let (asked, mut answer) = (holder.stdin.as_mut().map(|it| it.write_all(b"?")), [0]);
        let answered = holder.stdout.as_mut().map(|it| it.read_exact(&mut answer));
        if !matches!((asked, answered), (Some(Ok(())), Some(Ok(())))) {
            let output = holder.wait_with_output().map_err(failed)?;
            return Err(RigError::Namespace { words: String::from_utf8_lossy(&output.stderr).trim().to_string() });
        }
        let file = File::open(format!("/proc/{}/ns/net", holder.id())).map_err(failed)?;
        Ok(Namespace { holder, file })
    }

    /// Moves the calling thread into it, with whatever that starts from then on.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enter(&self) -> io::Result<()> {
        Ok(move_into_link_name_space(self.file.as_fd(), Some(LinkNameSpaceType::Network))?)
    }

    /// Runs a command in it to its end: what it printed.
    ///
    /// # Errors
    /// It cannot be run, or fails.
    pub fn run(&self, program: &'static str, arguments: &[&str]) -> Result<String, RigError> {
        let output = thread::scope(|scope| {
            let run = || self.enter().and_then(|()| Command::new(program).args(arguments).output());
            scope.spawn(run).join().unwrap_or_else(|_| Err(io::Error::other("its thread failed")))
        });
        let output = output.map_err(|source| RigError::Program { program, source })?;
        let words = |octets: &[u8]| String::from_utf8_lossy(octets).trim().to_string();
        if !output.status.success() {
            let command = format!("{program} {}", arguments.join(" "));
            return Err(RigError::Command { command, words: words(&output.stderr) });
        }
        Ok(words(&output.stdout))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        // Its namespace goes with it.
        let _ = self.holder.wait();
    }
}

/// Two namespaces, in each an interface named [`INTERFACE`] that is up, and a cable between.
#[derive(Debug)]
pub struct Cable {
    /// The namespaces.
    pub ends: [Namespace; 2],
}

impl Cable {
    /// A new one, for IP packets of so many octets. The ends have the addresses 10.9.0.1 and 10.9.0.2, and IPv6 says nothing
    /// of its own accord.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn new(mtu: usize) -> Result<Cable, RigError> {
        let ends = [Namespace::new()?, Namespace::new()?];
        let (other, mtu) = (ends[1].holder.id().to_string(), mtu.to_string());
        let make = ["link", "add", INTERFACE, "mtu", &mtu, "type", "veth"];
        ends[0].run("ip", &[&make[..], &["peer", "name", INTERFACE, "mtu", &mtu, "netns", &other]].concat())?;
        for (end, address) in ends.iter().zip(["10.9.0.1/24", "10.9.0.2/24"]) {
            end.run("ip", &["link", "set", "lo", "up"])?;
            end.run("ip", &["link", "set", INTERFACE, "addrgenmode", "none"])?;
            end.run("ip", &["addr", "add", address, "dev", INTERFACE])?;
            end.run("ip", &["link", "set", INTERFACE, "up"])?;
        }
        Ok(Cable { ends })
    }
}
