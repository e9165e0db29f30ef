//! The channel between a coordinator and an agent: messages of JSON, each with its length and a code that proves its
//! origin.
//!
//! Both ends know a [`Token`]. Each sends a random number first. A key for this connection alone is made of both
//! numbers and the token (HMAC-SHA-256, RFC 2104). Every later message carries a code by that key over its direction,
//! its number and its text, so that no message can be made up, changed, repeated or left out. The text is not
//! encrypted; it has no secrets.
//!
//! A message is: length of the text (4 octets, the highest first), code (32 octets), text.

use std::io::{self, Read, Write};

use hmac::{Hmac, Mac};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::Sha256;

use super::token::{Token, random};

/// Version of the messages.
const PROTOCOL: u8 = 2;
/// How an agent, and a coordinator, begins.
const MAGIC: &[u8; 15] = b"underpass-agent";
/// Longest text of a message, in octets.
const LONGEST: usize = 1 << 20;
/// Longest reason why a message makes no sense, in characters: it may have all of the message in it.
const LONGEST_REASON: usize = 300;
const CODE: usize = 32;

/// Why nothing can be said or heard.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// The other end is gone, or does not answer in time.
    #[error("{0}")]
    Broken(#[from] io::Error),
    /// It closed the connection.
    #[error("the other end closed the connection")]
    Closed,
    /// It does not know the token.
    #[error("the other end has another token; copy the token file of the one to the other")]
    Token,
    /// It is something else.
    #[error(
        "the other end does not speak as an agent of Underpass; is the address right, or does its start print \
         something of its own?"
    )]
    Stranger,
    /// It is of another version.
    #[error(
        "the other end speaks version {0} of the protocol, this one version {PROTOCOL}; install the same version of \
             Underpass at both"
    )]
    Version(u8),
    /// An agent serves one coordinator at a time.
    #[error("another coordinator has the agent; wait until it is done, or end it")]
    Busy,
    /// More than any message needs.
    #[error("the other end announced a message of {0} bytes; the longest is {LONGEST}")]
    TooLong(usize),
    /// A message that makes no sense.
    #[error("the other end said something that makes no sense: \
             {}", .0.to_string().chars().take(LONGEST_REASON).collect::<String>())]
    Content(#[from] serde_json::Error),
}

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Coordinator = 1,
    Agent = 2,
}

/// What an agent sends first when the other end has proven to be a coordinator: whether it is free.
const FREE: u8 = 0;
const BUSY: u8 = 1;

/// Says.
pub struct Sender {
    to: Box<dyn Write + Send>,
    seal: Seal,
}

/// Hears.
pub struct Receiver {
    from: Box<dyn Read + Send>,
    seal: Seal,
}

/// Makes and checks the codes of one direction.
struct Seal {
    key: [u8; CODE],
    role: Role,
    number: u64,
}

type Ends = (Box<dyn Read + Send>, Box<dyn Write + Send>);

/// Greets an agent.
///
/// # Errors
/// [`ChannelError`].
pub fn greet((mut from, mut to): Ends, token: &Token) -> Result<(Sender, Receiver), ChannelError> {
    let theirs = hello(from.as_mut())?;
    let ours = random()?;
    to.write_all(MAGIC)?;
    to.write_all(&[PROTOCOL])?;
    to.write_all(&ours)?;
    to.write_all(&proof(token, Role::Coordinator, &theirs, &ours))?;
    to.flush()?;
    let mut code = [0; CODE];
    // An agent that is not convinced closes without a word.
    match from.read_exact(&mut code) {
        Err(error) if is_end(&error) => return Err(ChannelError::Token),
        other => other?,
    }
    check(token, Role::Agent, &theirs, &ours, &code)?;
    let mut state = [0];
    exact(from.as_mut(), &mut state)?;
    if state[0] != FREE {
        return Err(ChannelError::Busy);
    }
    Ok(ends((from, to), token, &theirs, &ours, Role::Coordinator))
}

/// Answers a coordinator, if `take` says that this agent is free.
///
/// # Errors
/// [`ChannelError`]; the caller closes the connection.
pub fn answer(
    (mut from, mut to): Ends,
    token: &Token,
    take: impl FnOnce() -> bool,
) -> Result<(Sender, Receiver), ChannelError> {
    let ours = random()?;
    to.write_all(MAGIC)?;
    to.write_all(&[PROTOCOL])?;
    to.write_all(&ours)?;
    to.flush()?;
    let theirs = hello(from.as_mut())?;
    let mut code = [0; CODE];
    exact(from.as_mut(), &mut code)?;
    check(token, Role::Coordinator, &ours, &theirs, &code)?;
    let free = take();
    to.write_all(&proof(token, Role::Agent, &ours, &theirs))?;
    to.write_all(&[if free { FREE } else { BUSY }])?;
    to.flush()?;
    if free { Ok(ends((from, to), token, &ours, &theirs, Role::Agent)) } else { Err(ChannelError::Busy) }
}

fn hello(from: &mut dyn Read) -> Result<[u8; 32], ChannelError> {
    let mut magic = [0; MAGIC.len() + 1];
    exact(from, &mut magic)?;
    if !magic.starts_with(MAGIC) {
        return Err(ChannelError::Stranger);
    }
    if magic[MAGIC.len()] != PROTOCOL {
        return Err(ChannelError::Version(magic[MAGIC.len()]));
    }
    let mut nonce = [0; 32];
    exact(from, &mut nonce)?;
    Ok(nonce)
}

fn hmac(key: &[u8], parts: &[&[u8]]) -> Hmac<Sha256> {
    // HMAC takes a key of any length; a failure would be one of the library.
    let mut mac = <Hmac<Sha256> as Mac>::new_from_slice(key).expect("HMAC takes any key");
    parts.iter().for_each(|part| mac.update(part));
    mac
}

fn proof(token: &Token, role: Role, agent: &[u8; 32], coordinator: &[u8; 32]) -> [u8; CODE] {
    hmac(token.octets(), &[b"proof", &[role as u8], agent, coordinator]).finalize().into_bytes().into()
}

/// Compares the codes in a time that does not depend on where they differ (`verify_slice`).
fn check(token: &Token, role: Role, agent: &[u8; 32], coordinator: &[u8; 32], code: &[u8]) -> Result<(), ChannelError> {
    let expected = hmac(token.octets(), &[b"proof", &[role as u8], agent, coordinator]);
    expected.verify_slice(code).map_err(|_| ChannelError::Token)
}

fn ends((from, to): Ends, token: &Token, agent: &[u8; 32], coordinator: &[u8; 32], own: Role) -> (Sender, Receiver) {
    let key = hmac(token.octets(), &[b"key", agent, coordinator]).finalize().into_bytes().into();
    let other = if own == Role::Agent { Role::Coordinator } else { Role::Agent };
    let seal = |role| Seal { key, role, number: 0 };
    (Sender { to, seal: seal(own) }, Receiver { from, seal: seal(other) })
}

impl Seal {
    fn next(&mut self, text: &[u8]) -> Hmac<Sha256> {
        let mac = hmac(&self.key, &[&[self.role as u8], &self.number.to_be_bytes(), text]);
        self.number += 1;
        mac
    }
}

impl Sender {
    /// Closes this direction. Messages that are sent afterwards are lost.
    pub fn hang_up(&mut self) {
        self.to = Box::new(io::sink());
    }

    /// Says a message.
    ///
    /// # Errors
    /// The connection is broken, or the message is longer than any may be.
    pub fn say(&mut self, message: &impl Serialize) -> Result<(), ChannelError> {
        let text = serde_json::to_vec(message)?;
        if text.len() > LONGEST {
            return Err(ChannelError::TooLong(text.len()));
        }
        let code = self.seal.next(&text).finalize().into_bytes();
        let mut whole = Vec::with_capacity(4 + CODE + text.len());
        whole.extend_from_slice(&(text.len() as u32).to_be_bytes());
        whole.extend_from_slice(&code);
        whole.extend_from_slice(&text);
        self.to.write_all(&whole)?;
        Ok(self.to.flush()?)
    }
}

impl Receiver {
    /// Waits for a message.
    ///
    /// # Errors
    /// The connection is broken, or what came is no message of the other end.
    pub fn hear<T: DeserializeOwned>(&mut self) -> Result<T, ChannelError> {
        let mut length = [0; 4];
        exact(self.from.as_mut(), &mut length)?;
        let length = u32::from_be_bytes(length) as usize;
        if length > LONGEST {
            return Err(ChannelError::TooLong(length));
        }
        let mut code = [0; CODE];
        exact(self.from.as_mut(), &mut code)?;
        let mut text = Vec::new();
        // Memory grows with what really came.
        if self.from.as_mut().take(length as u64).read_to_end(&mut text)? < length {
            return Err(ChannelError::Closed);
        }
        self.seal.next(&text).verify_slice(&code).map_err(|_| ChannelError::Token)?;
        Ok(serde_json::from_slice(&text)?)
    }
}

fn exact(from: &mut dyn Read, octets: &mut [u8]) -> Result<(), ChannelError> {
    from.read_exact(octets).map_err(|error| if is_end(&error) { ChannelError::Closed } else { error.into() })
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

impl std::fmt::Debug for Sender {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Sender")
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Receiver")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::net::UnixStream;
    use std::thread;
    use std::time::Duration;

    fn split(stream: UnixStream) -> Ends {
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        (Box::new(stream.try_clone().unwrap()), Box::new(stream))
    }

    fn token(text: &str) -> Token {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        Token::make(&path).unwrap();
        std::fs::write(&path, text).unwrap();
        Token::read(&path).unwrap()
    }

    type Outcome = Result<(Sender, Receiver), ChannelError>;

    fn meet(ours: &str, theirs: &str, free: bool) -> (Outcome, Outcome) {
        let (here, there) = UnixStream::pair().unwrap();
        let (ours, theirs) = (token(ours), token(theirs));
        thread::scope(|scope| {
            let agent = scope.spawn(|| answer(split(there), &theirs, || free));
            (greet(split(here), &ours), agent.join().unwrap())
        })
    }

    const SECRET: &str = "a secret of more than sixteen";

    #[test]
    fn both_prove_that_they_know_the_token() {
        let (here, there) = meet(SECRET, SECRET, true);
        let ((mut say, _), (_, mut hear)) = (here.unwrap(), there.unwrap());
        say.say(&"first").unwrap();
        say.say(&vec![1, 2]).unwrap();
        assert_eq!(hear.hear::<String>().unwrap(), "first");
        assert_eq!(hear.hear::<Vec<u8>>().unwrap(), [1, 2]);
        drop(say);
    }

    #[test]
    fn another_token_is_named_at_both_ends_and_learns_nothing() {
        let (here, there) = meet(SECRET, "another secret of the same kind", true);
        assert!(matches!(there.unwrap_err(), ChannelError::Token));
        assert!(here.unwrap_err().to_string().contains("another token"));
    }

    #[test]
    fn a_second_coordinator_is_told_that_the_agent_has_one() {
        let (here, there) = meet(SECRET, SECRET, false);
        assert!(matches!((here.unwrap_err(), there.unwrap_err()), (ChannelError::Busy, ChannelError::Busy)));
    }

    #[test]
    fn a_stranger_and_another_version_are_told_apart() {
        let greeted = |octets: &[u8]| {
            let (here, mut there) = UnixStream::pair().unwrap();
            there.write_all(octets).unwrap();
            drop(there);
            greet(split(here), &token(SECRET)).unwrap_err()
        };
        assert!(matches!(greeted(b"HTTP/1.1 400 Bad Request\r\n"), ChannelError::Stranger));
        let newer = [MAGIC.as_slice(), &[9]].concat();
        assert!(matches!(greeted(&newer), ChannelError::Version(9)));
        assert!(matches!(greeted(b"under"), ChannelError::Closed));
    }

    /// An agent's end as a coordinator hears it, and the raw end that says what it likes.
    fn heard(octets: &[u8]) -> ChannelError {
        let (here, mut there) = UnixStream::pair().unwrap();
        let (_, mut hear) = ends(split(here), &Token::none(), &[1; 32], &[2; 32], Role::Coordinator);
        let octets = octets.to_vec();
        thread::scope(|scope| {
            scope.spawn(move || drop(there.write_all(&octets)));
            hear.hear::<serde_json::Value>().unwrap_err()
        })
    }

    #[test]
    fn ten_gigabytes_are_refused_by_their_length() {
        assert!(matches!(heard(&[0x7f, 0xff, 0xff, 0xff, 0, 0]), ChannelError::TooLong(0x7fff_ffff)));
    }

    #[test]
    fn a_message_cannot_be_said_twice_or_by_another() {
        let (here, there) = UnixStream::pair().unwrap();
        let written = {
            let (mut say, _) = ends(split(there), &Token::none(), &[1; 32], &[2; 32], Role::Agent);
            say.say(&"stop").unwrap();
            drop(say);
            let mut octets = Vec::new();
            (&here).read_to_end(&mut octets).unwrap();
            octets
        };
        let twice = [written.clone(), written.clone()].concat();
        let (again, mut there) = UnixStream::pair().unwrap();
        there.write_all(&twice).unwrap();
        let (_, mut hear) = ends(split(again), &Token::none(), &[1; 32], &[2; 32], Role::Coordinator);
        assert_eq!(hear.hear::<String>().unwrap(), "stop");
        assert!(matches!(hear.hear::<String>().unwrap_err(), ChannelError::Token));
        let mut changed = written;
        *changed.last_mut().unwrap() ^= 1;
        assert!(matches!(heard(&changed), ChannelError::Token));
    }

    proptest! {
        #[test]
        fn no_octets_are_taken_for_a_message(octets in proptest::collection::vec(any::<u8>(), 0..200)) {
            heard(&octets);
        }
    }
}
