//! What underpassd says of itself.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with};
use underpass_broker::{Answer, Inquiry, Refusal, State, Verdict, state};
use underpass_segment::config::SocketPath;

/// What came of asking it how it fares.
#[derive(Debug)]
pub enum Contact {
    /// The setting `broker` names no socket.
    Unasked,
    /// No daemon listens.
    Absent,
    /// This user may not ask.
    Barred(io::Error),
    /// It does not answer in time, or not as one of this version does.
    Silent,
    /// It refuses to say.
    Refuses(Refusal),
    /// It answers.
    Answers(Box<State>),
}

/// Number of the only question of a connection.
const TOKEN: u64 = 1;

/// Asks the daemon that listens at `path`. A daemon that does not answer within `patience` is stopped, or has more to
/// do than it can.
pub fn ask(path: &SocketPath, patience: Duration) -> Contact {
    if path.bytes().is_empty() {
        return Contact::Unasked;
    }
    match inquire(place(path), patience) {
        Ok(contact) => contact,
        Err(Errno::NOENT | Errno::CONNREFUSED) => Contact::Absent,
        Err(Errno::AGAIN | Errno::CONNRESET | Errno::PIPE) => Contact::Silent,
        Err(error) => Contact::Barred(error.into()),
    }
}

/// The path of the socket.
pub fn place(path: &SocketPath) -> &Path {
    Path::new(OsStr::from_bytes(path.bytes()))
}

fn inquire(path: &Path, patience: Duration) -> Result<Contact, Errno> {
    let deadline = Instant::now() + patience;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    send(&socket, &Inquiry { token: TOKEN, mark: 0 }.emit(), SendFlags::NOSIGNAL)?;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(Contact::Silent);
        }
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&left)) {
            Ok(0) | Err(Errno::INTR) => continue,
            result => result?,
        };
        // With room for one octet more, a packet that is too long is seen to be.
        let mut octets = [0; state::LEN + 1];
        let len = match rustix::io::read(&socket, &mut octets[..]) {
            Err(Errno::AGAIN | Errno::INTR) => continue,
            result => result?,
        };
        return Ok(heard(&octets[..len]));
    }
}

fn heard(packet: &[u8]) -> Contact {
    match (State::parse(packet), Answer::parse(packet)) {
        (Ok(state), _) if state.token == TOKEN => Contact::Answers(Box::new(state)),
        (_, Ok(Answer { verdict: Verdict::Refused(refusal), .. })) => Contact::Refuses(refusal),
        _ => Contact::Silent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_daemon_says_is_taken_for_an_answer() {
        let (mark, policy, network, seconds, counts) = (0, 1, None, 2, None);
        let state = State { token: TOKEN, mark, abilities: Default::default(), policy, network, seconds, counts };
        assert!(matches!(heard(&state.emit()), Contact::Answers(it) if *it == state));
        assert!(matches!(heard(&State { token: 2, ..state }.emit()), Contact::Silent));
        let refusal = Answer { token: 0, mark: 0, verdict: Verdict::Refused(Refusal::Limit) };
        let (record, len) = refusal.emit().unwrap();
        assert!(matches!(heard(&record[..len]), Contact::Refuses(Refusal::Limit)));
        assert!(matches!(heard(&[]), Contact::Silent) && matches!(heard(&[1; 265]), Contact::Silent));
    }

    #[test]
    fn no_daemon_is_asked_where_none_is_named() {
        assert!(matches!(ask(&SocketPath::NONE, Duration::ZERO), Contact::Unasked));
        let nowhere = SocketPath::of("/no/such/folder/socket").unwrap();
        assert!(matches!(ask(&nowhere, Duration::ZERO), Contact::Absent));
    }
}
