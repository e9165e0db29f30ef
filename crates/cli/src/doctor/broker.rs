//! Whether underpassd can be asked, for connections between users and namespaces.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use underpass_broker::{Knock, Verdict};
use underpass_segment::channel::MARK;
use underpass_segment::config::SocketPath;
use underpass_segment::dial::Dial;
use underpass_segment::raw::Errno;

use super::Finding;

const SUBJECT: &str = "broker";
/// A daemon that does not answer within this time is stopped, or has more to do than it can.
const PATIENCE: Duration = Duration::from_secs(1);

/// Asks the daemon whether it is at work.
pub fn look(path: &SocketPath) -> Finding {
    let shown = Path::new(OsStr::from_bytes(path.bytes())).display();
    if path.bytes().is_empty() {
        return Finding::fine(
            SUBJECT,
            "underpassd is not asked (broker is empty): users share no memory with one another",
        );
    }
    let dial = match Dial::connect(path) {
        Ok(dial) => dial,
        Err(Errno(libc::ENOENT | libc::ECONNREFUSED)) => {
            return Finding::fine(
                SUBJECT,
                format!("no underpassd listens at {shown}: only ends of one user share memory"),
            );
        }
        Err(Errno(code)) => {
            let text = format!("underpassd cannot be asked at {shown}: {}", io::Error::from_raw_os_error(code));
            return Finding::mind(
                SUBJECT,
                text,
                "let all users connect: mode 0666 of the socket, and x of its folders",
            );
        }
    };
    let answer = knock(&dial);
    dial.hang_up();
    match answer {
        Some(Verdict::Here { .. }) => Finding::fine(
            SUBJECT,
            format!(
                "underpassd answers at {shown}; its log says by what it proves connections and which group it names"
            ),
        ),
        Some(Verdict::Refused(refusal)) => {
            Finding::mind(SUBJECT, format!("underpassd refuses at {shown}: {}", refusal.sentence()), refusal.remedy())
        }
        _ => Finding::mind(
            SUBJECT,
            format!("underpassd does not answer at {shown}"),
            "continue it if it is stopped; start it anew if it is of another version",
        ),
    }
}

fn knock(dial: &Dial) -> Option<Verdict> {
    let deadline = Instant::now() + PATIENCE;
    dial.knock(&Knock { token: 1, mark: MARK }).ok()?;
    while Instant::now() < deadline {
        dial.wait(10_000_000);
        match dial.hear() {
            Ok(Some((answer, _))) => return Some(answer.verdict),
            Ok(None) => {}
            Err(_) => return None,
        }
    }
    None
}
