//! An agent as its coordinator sees it: reached at an address, or started by a command.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::channel::{self, ChannelError, Receiver, Sender};
use super::message::{Facts, Reply, Request, Stopped};
use super::record::Tool;
use super::token::Token;
use crate::interrupt::{self, Interrupted};

/// How long a connection, and the greeting, may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a command may take until its agent answers: ssh may have to connect, and srun to wait for a node.
const START: Duration = Duration::from_secs(60);
/// Longest text of an agent that is kept, in bytes: a tool's last words are shorter.
const LONGEST_TEXT: usize = 2000;
/// Time from one look for Ctrl-C to the next.
const LOOK: Duration = Duration::from_millis(100);

/// Why an agent did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// It cannot be reached.
    #[error("cannot reach the agent at {at}: {error}; start it there with `underpass agent`")]
    Unreachable {
        /// Its address.
        at: SocketAddr,
        /// The system's words.
        error: std::io::Error,
    },
    /// Its command cannot be started.
    #[error("cannot start {command:?}: {error}")]
    Start {
        /// The program.
        command: String,
        /// The system's words.
        error: std::io::Error,
    },
    /// Its command ended before an agent spoke.
    #[error("the other end closed the connection: {command:?} {end} before an agent spoke; run it by hand to see why")]
    Ended {
        /// The program.
        command: String,
        /// What became of it.
        end: String,
    },
    /// Nothing can be said to it any more.
    #[error("{0}")]
    Lost(ChannelError),
    /// It does not answer.
    #[error("the agent did not answer within {0} s")]
    Silent(u64),
    /// It answers something else.
    #[error("the agent answered something else than what was asked")]
    Confused,
    /// The agent's description of itself is longer than any agent's.
    #[error("the agent describes itself by a text of more than {LONGEST_TEXT} bytes, or by more tools than there are")]
    Wordy,
    /// It could not.
    #[error("{0}")]
    Failed(String),
    /// The user wants the end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

impl AgentError {
    /// Whether nothing more can be asked of it.
    pub fn is_loss(&self) -> bool {
        !matches!(self, AgentError::Failed(_) | AgentError::Interrupted(_))
    }
}

/// A connected agent. On drop the connection ends, and with it what the agent has started.
pub struct Remote {
    say: Sender,
    replies: mpsc::Receiver<Result<Reply, ChannelError>>,
    stream: Option<TcpStream>,
    started: Option<Child>,
}

impl Remote {
    /// Connects to an agent.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn connect(at: SocketAddr, token: &Token) -> Result<Remote, AgentError> {
        let unreachable = |error| AgentError::Unreachable { at, error };
        let stream = TcpStream::connect_timeout(&at, CONNECT).map_err(unreachable)?;
        let ends = || -> std::io::Result<_> {
            stream.set_nodelay(true)?;
            stream.set_write_timeout(Some(CONNECT))?;
            Ok((stream.try_clone()?, stream.try_clone()?))
        };
        let (from, to) = ends().map_err(unreachable)?;
        // The limit is that of the whole greeting, of which each octet may come in time.
        let greeted = wait(&greet(from, to, token.clone()), CONNECT);
        let greeted = greeted.and_then(|greeted| greeted.map_err(AgentError::Lost));
        if greeted.is_err() {
            // The thread that greets ends with the connection.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let (say, hear) = greeted?;
        Ok(Remote { say, replies: listen(hear), stream: Some(stream), started: None })
    }

    /// Starts a command that speaks as an agent by its standard input and output.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn start(command: &mut Command) -> Result<Remote, AgentError> {
        let name = command.get_program().to_string_lossy().into_owned();
        // A group of its own: Ctrl-C is for the coordinator, which ends its agents in order.
        let started = command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0).spawn();
        let mut child = started.map_err(|error| AgentError::Start { command: name.clone(), error })?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(AgentError::Confused);
        };
        match wait(&greet(from, to, Token::none()), START) {
            Ok(Ok((say, hear))) => Ok(Remote { say, replies: listen(hear), stream: None, started: Some(child) }),
            other => {
                let is_closed = matches!(other, Ok(Err(ChannelError::Closed)));
                let end = ended(&mut child, Duration::from_secs(u64::from(is_closed)));
                Err(match other {
                    Ok(Err(ChannelError::Closed)) => AgentError::Ended { command: name, end },
                    Ok(Err(error)) => AgentError::Lost(error),
                    Err(error) => error,
                    Ok(Ok(_)) => AgentError::Confused,
                })
            }
        }
    }

    /// The process that was started, if one was.
    pub fn pid(&self) -> Option<u32> {
        self.started.as_ref().map(Child::id)
    }

    /// Asks, and waits so long at most.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn ask(&mut self, request: &Request, limit: Duration) -> Result<Reply, AgentError> {
        self.say.say(request).map_err(AgentError::Lost)?;
        match wait(&self.replies, limit)?.map_err(AgentError::Lost)? {
            Reply::Failed { reason } => Err(AgentError::Failed(start(reason))),
            reply => Ok(reply),
        }
    }

    /// What it says of itself.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn describe(&mut self, limit: Duration) -> Result<Facts, AgentError> {
        match self.ask(&Request::Describe, limit)? {
            Reply::Facts(facts) if is_wordy(&facts) => Err(AgentError::Wordy),
            Reply::Facts(facts) => Ok(*facts),
            _ => Err(AgentError::Confused),
        }
    }

    /// Its clock: ns since 1970, UTC.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn time(&mut self, limit: Duration) -> Result<i64, AgentError> {
        match self.ask(&Request::Time, limit)? {
            Reply::Time(time) => Ok(time),
            _ => Err(AgentError::Confused),
        }
    }

    /// Starts a server or a stream: its number and its port.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn begin(&mut self, request: &Request, limit: Duration) -> Result<(u32, u16), AgentError> {
        match self.ask(request, limit)? {
            Reply::Started { job, port } => Ok((job, port)),
            _ => Err(AgentError::Confused),
        }
    }

    /// Ends what was started.
    ///
    /// # Errors
    /// [`AgentError`].
    pub fn stop(&mut self, job: u32, limit: Duration) -> Result<Stopped, AgentError> {
        match self.ask(&Request::Stop { job }, limit)? {
            Reply::Stopped(stopped) => Ok(Stopped { complaint: stopped.complaint.map(start), ..stopped }),
            _ => Err(AgentError::Confused),
        }
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        if let Some(stream) = &self.stream {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let Some(child) = &mut self.started else { return };
        // A dead pipe ends an agent; what only holds its pipes, as ssh may, is not waited for without end.
        self.say.hang_up();
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(3) && matches!(child.try_wait(), Ok(None)) {
            thread::sleep(Duration::from_millis(10));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Ends a program, after waiting so long for its own end; what became of it.
fn ended(child: &mut Child, patience: Duration) -> String {
    let begun = Instant::now();
    while begun.elapsed() < patience {
        match child.try_wait() {
            Ok(Some(status)) => return format!("ended ({status})"),
            Ok(None) => thread::sleep(Duration::from_millis(10)),
            Err(_) => break,
        }
    }
    let _ = child.kill();
    let _ = child.wait();
    "closed its output".to_string()
}

/// The part of a text that is kept.
fn start(mut text: String) -> String {
    let end = (0..=LONGEST_TEXT.min(text.len())).rev().find(|end| text.is_char_boundary(*end));
    text.truncate(end.unwrap_or(0));
    text
}

fn is_wordy(facts: &Facts) -> bool {
    let Facts { version, revision, host, tools, unusable, network, .. } = facts;
    let own = [Some(version), revision.as_ref(), Some(network)].into_iter().flatten();
    let of_tools = tools.iter().map(|it| &it.version).chain(unusable.iter().map(|(_, reason)| reason));
    let has_more = tools.len() + unusable.len() > Tool::ALL.len();
    has_more || own.chain(host.texts()).chain(of_tools).any(|text| text.len() > LONGEST_TEXT)
}

/// What an agent's greeting comes to.
type Greeted = Result<(Sender, Receiver), ChannelError>;

/// Greets by a thread, for which nobody has to wait.
fn greet(from: impl Read + Send + 'static, to: impl Write + Send + 'static, token: Token) -> mpsc::Receiver<Greeted> {
    let (give, take) = mpsc::channel();
    thread::spawn(move || {
        let _ = give.send(channel::greet((Box::new(from), Box::new(to)), &token));
    });
    take
}

/// Hears by a thread, which ends with the connection.
fn listen(mut hear: Receiver) -> mpsc::Receiver<Result<Reply, ChannelError>> {
    // An agent that sends more than it was asked for has to wait, and so does not fill the memory.
    let (give, take) = mpsc::sync_channel(1);
    thread::spawn(move || {
        loop {
            let heard = hear.hear();
            let over = heard.is_err();
            if give.send(heard).is_err() || over {
                return;
            }
        }
    });
    take
}

fn wait<T>(from: &mpsc::Receiver<T>, limit: Duration) -> Result<T, AgentError> {
    let last = Instant::now() + limit;
    loop {
        interrupt::check()?;
        match from.recv_timeout(LOOK) {
            Ok(value) => return Ok(value),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Err(AgentError::Lost(ChannelError::Closed)),
            Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() > last => {
                return Err(AgentError::Silent(limit.as_secs()));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
        }
    }
}
