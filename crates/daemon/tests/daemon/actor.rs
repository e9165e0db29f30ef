//! Another process, of another user perhaps or in another namespace, that does as it is told.

use super::client::{ASK, Client};
use super::daemon::Daemon;
use super::forging::forge_here;
use rustix::fd::OwnedFd;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use underpass_broker::{Ask, Refusal, Side, Verdict};

const VARIABLE: &str = "UNDERPASS_TEST_ACTOR";
/// The beginning of an actor's answers, which tells them from output of the test harness.
const SAYS: &str = "= ";

/// What an actor is run by, and with which arguments before its own.
pub struct Actor {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Actor {
    /// Runs one by these words, e.g. `setpriv --reuid=1`.
    pub fn start(daemon: &Daemon, by: &[&str]) -> Actor {
        // Where every user can execute it.
        let program = daemon.folder.path().join("actor");
        if !program.exists() {
            // By another process: a program cannot be executed while a child of this one has it open to be written.
            let copied = Command::new("cp").arg(std::env::current_exe().unwrap()).arg(&program).status().unwrap();
            assert!(copied.success());
        }
        let words = [by, &[program.to_str().unwrap(), "--exact", "actor::actor", "--nocapture"]].concat();
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).current_dir("/").env(VARIABLE, daemon.path());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (to, from) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Actor { child, to, from }
    }

    /// One of user and group `uid`, a member of `group` alone.
    pub fn of_user(daemon: &Daemon, uid: u32, group: u32) -> Actor {
        let (uid, group) = (format!("--reuid={uid}"), format!("--regid={group}"));
        Actor::start(daemon, &["setpriv", &uid, &group, "--clear-groups"])
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to do something; what it says.
    pub fn tell(&mut self, what: &str) -> String {
        writeln!(self.to, "{what}").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.from.read_line(&mut line).unwrap(), 0, "the actor ended at '{what}'");
            // The harness may have said something on the same line.
            if let Some((_, said)) = line.trim_end_matches('\n').split_once(SAYS) {
                return said.to_string();
            }
        }
    }

    /// Asks for its connection; what it is answered at first.
    pub fn ask(&mut self) -> String {
        self.tell("ask");
        self.tell("answer")
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection between two actors, at an address that the server has.
pub fn join(server: &mut Actor, client: &mut Actor, host: &str) {
    let address = server.tell(&format!("listen {host}:0"));
    client.tell(&format!("connect {address}"));
    server.tell("accept");
}

/// Both ask, the client first. What each was told: the pool, its memory and the cookies agree, and the sides do not.
pub fn meet(server: &mut Actor, client: &mut Actor) -> [String; 2] {
    assert_eq!(client.ask(), "waiting");
    let told = [server.ask(), client.tell("answer")];
    let words = told.each_ref().map(|it| it.split(' ').collect::<Vec<_>>());
    assert!(words.iter().all(|it| it[0] == "met" && it.len() == 8), "{told:?}");
    assert_eq!(words[0][1..7], words[1][1..7]);
    assert_ne!(words[0][7], words[1][7]);
    // It is the same memory.
    server.tell("write 4096 42");
    assert_eq!(client.tell("read 4096"), "42");
    told
}

/// Not a test: what an actor does. Nothing, unless it is one.
#[test]
fn actor() {
    let Some(path) = std::env::var_os(VARIABLE) else { return };
    let mut it = State { path: path.into(), ..State::default() };
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        println!("{SAYS}{}", it.carry_out(&line.split(' ').collect::<Vec<_>>()));
    }
}

#[derive(Default)]
struct State {
    path: std::path::PathBuf,
    listener: Option<TcpListener>,
    /// The last one is meant.
    streams: Vec<TcpStream>,
    client: Option<Client>,
    memory: Option<File>,
}

impl State {
    fn carry_out(&mut self, words: &[&str]) -> String {
        match words {
            ["listen", address] => {
                let listener = TcpListener::bind(address).unwrap();
                let address = listener.local_addr().unwrap();
                self.listener = Some(listener);
                address.to_string()
            }
            ["connect", address] => {
                self.streams.push(TcpStream::connect(address).unwrap());
                String::new()
            }
            ["accept"] => {
                self.streams.push(self.listener.as_ref().unwrap().accept().unwrap().0);
                String::new()
            }
            ["forge", remote, local, sent, received] => {
                let numbers = [sent, received].map(|it| it.parse().unwrap());
                self.streams.push(forge_here(remote.parse().unwrap(), local.parse().unwrap(), numbers));
                String::new()
            }
            ["ready"] => String::new(),
            ["addresses"] => {
                let it = self.streams.last().unwrap();
                format!("{} {}", it.local_addr().unwrap(), it.peer_addr().unwrap())
            }
            ["ask"] => self.ask(ASK),
            ["ask", "as-version", mark] => self.ask(Ask { mark: mark.parse().unwrap(), ..ASK }),
            ["answer"] => self.answer(),
            ["state"] => {
                let client = self.client.get_or_insert_with(|| Client::connect(&self.path).unwrap());
                match client.state().counts {
                    Some(counts) => format!("counts {} {}", counts.meetings, counts.refused(Refusal::Policy)),
                    None => "no counts".into(),
                }
            }
            ["leave"] => {
                self.client = None;
                String::new()
            }
            ["write", at, octet] => {
                let octet: u8 = octet.parse().unwrap();
                self.memory.as_ref().unwrap().write_all_at(&[octet], at.parse().unwrap()).unwrap();
                String::new()
            }
            ["read", at] => {
                let mut octet = [0];
                self.memory.as_ref().unwrap().read_exact_at(&mut octet, at.parse().unwrap()).unwrap();
                octet[0].to_string()
            }
            other => panic!("{other:?}"),
        }
    }

    fn ask(&mut self, ask: Ask) -> String {
        let client = self.client.get_or_insert_with(|| Client::connect(&self.path).unwrap());
        client.ask(ask, self.streams.last().unwrap());
        String::new()
    }

    fn answer(&mut self) -> String {
        let Some((answer, memory)) = self.client.as_ref().unwrap().answer() else {
            self.client = None;
            return "closed".into();
        };
        match answer.verdict {
            Verdict::Waiting => "waiting".into(),
            Verdict::Here { .. } => "here".into(),
            Verdict::Carried { .. } => "away".into(),
            Verdict::Refused(refusal) => format!("refused {}", refusal.key()),
            Verdict::Met { pool, shape, slot, side, cookies } => {
                let memory: OwnedFd = memory.expect("memory comes with it");
                let of_memory = fstat(&memory).unwrap();
                assert_eq!(of_memory.st_size as u64, shape.pool_bytes());
                assert!(
                    fcntl_get_seals(&memory).unwrap().contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
                );
                self.memory = Some(memory.into());
                let side = if side == Side::Maker { "maker" } else { "joiner" };
                let [maker, joiner] = cookies;
                let (inode, slots) = (of_memory.st_ino, shape.slots());
                format!("met {pool} {inode} {slots} {slot} {maker} {joiner} {side}")
            }
        }
    }
}
