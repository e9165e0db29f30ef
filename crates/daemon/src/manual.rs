//! The manual page, from the command line's own description.

use clap::CommandFactory;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, italic, roman};

use crate::options::Options;

/// underpassd(8).
pub fn page() -> String {
    let mut text = Vec::new();
    let source = concat!("underpass ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(Options::command()).section("8").manual("Underpass").source(source);
    man.render(&mut text).expect("memory takes what is written");
    // clap_mangen has one title for whatever help says at its end, which here is examples; the version is in the footer.
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA", ".SH EXAMPLES").replace("\nExamples:\n", "\n");
    let mut page = with_values(text.split(".SH VERSION").next().unwrap_or_default()).into_bytes();
    files().to_writer(&mut page).expect("memory takes what is written");
    String::from_utf8_lossy(&page).into_owned()
}

/// The page with the name of each option's value in the synopsis too, where clap_mangen leaves it out.
fn with_values(text: &str) -> String {
    let options = Options::command();
    let with_value = options.get_arguments().filter(|it| it.get_action().takes_values());
    with_value.fold(text.to_string(), |text, option| match (option.get_long(), option.get_value_names()) {
        (Some(long), Some(names)) => {
            let long = long.replace('-', "\\-");
            let with_value = format!("[\\fB\\-\\-{long}\\fR \\fI{}\\fR]", names.join(" "));
            text.replace(&format!("[\\fB\\-\\-{long}\\fR]"), &with_value)
        }
        _ => text,
    })
}

fn files() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["FILES"]);
    for (name, help) in [
        (underpass_policy::DEFAULT_FILE, "The policy, in TOML: see docs/broker.md. Nobody but root may write to it."),
        (underpass_broker::DEFAULT_SOCKET, "The socket. All users may connect: the policy decides what comes of that."),
    ] {
        roff.control("TP", []);
        roff.text([italic(name)]);
        roff.text([roman(help)]);
    }
    roff.control("SH", ["SIGNALS"]);
    for (name, help) in
        [("SIGHUP", "Reads the policy anew."), ("SIGTERM, SIGINT", "End the daemon. Connections that have met go on.")]
    {
        roff.control("TP", []);
        roff.text([italic(name)]);
        roff.text([roman(help)]);
    }
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
