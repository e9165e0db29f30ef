//! The manual page, from the command line's own description.

use clap::CommandFactory;
use clap_mangen::roff::{Roff, italic, roman};
use underpass_manual::list;

use crate::options::Options;

/// underpassd(8).
pub fn page() -> String {
    let mut page = underpass_manual::render(&Options::command(), "8").into_bytes();
    files().to_writer(&mut page).expect("memory takes what is written");
    String::from_utf8_lossy(&page).into_owned()
}

/// What is not in the command line.
fn files() -> Roff {
    let mut roff = Roff::new();
    let files = [
        (underpass_policy::DEFAULT_FILE, "The policy, in TOML: see docs/broker.md. Nobody but root may write to it."),
        (underpass_broker::DEFAULT_SOCKET, "The socket. All users may connect: the policy decides what comes of that."),
    ];
    list(&mut roff, "FILES", |name| italic(name), &files);
    let signals =
        [("SIGHUP", "Reads the policy anew."), ("SIGTERM, SIGINT", "End the daemon. Connections that have met go on.")];
    list(&mut roff, "SIGNALS", |name| italic(name), &signals);
    roff.control("SH", ["SEE ALSO"]);
    roff.text([roman("underpass(1), underpass-policy(1), underpass-doctor(1), systemd.socket(5)")]);
    roff
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_that_is_installed_is_this_one() {
        let kept = include_str!("../../../packaging/man/underpassd.8");
        assert!(super::page() == kept, "packaging/man/underpassd.8 is out of date: run `make generate`");
    }
}
