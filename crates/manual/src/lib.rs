//! Manual pages of `underpass` and `underpassd`, from the descriptions of their command lines. A crate because both
//! have some.

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, roman};

/// The page of `command` in `section` of the manual, but for what is not in the command line.
pub fn render(command: &Command, section: &str) -> String {
    let mut text = Vec::new();
    let source = concat!("underpass ", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).section(section).manual("Underpass").source(source);
    man.render(&mut text).expect("memory takes what is written");
    // clap_mangen has one title for whatever help says at its end, which for us is examples; the version is in the
    // footer.
    let text = String::from_utf8_lossy(&text).replace(".SH EXTRA", ".SH EXAMPLES").replace("\nExamples:\n", "\n");
    with_values(text.split(".SH VERSION").next().unwrap_or_default(), command)
}

/// The page with the name of each option's value behind the option in the synopsis too, where clap_mangen leaves it
/// out.
fn with_values(text: &str, command: &Command) -> String {
    let options = command.get_arguments().filter(|it| it.get_action().takes_values());
    options.fold(text.to_string(), |text, option| match (option.get_long(), option.get_value_names()) {
        (Some(long), Some(names)) => {
            let long = long.replace('-', "\\-");
            let with_value = format!("[\\fB\\-\\-{long}\\fR \\fI{}\\fR]", names.join(" "));
            text.replace(&format!("[\\fB\\-\\-{long}\\fR]"), &with_value)
        }
        _ => text,
    })
}

/// Adds a part of things that have a name each, and what is said of them.
pub fn part(roff: &mut Roff, title: &str, entries: &[(Vec<Inline>, Vec<Inline>)]) {
    roff.control("SH", [title]);
    for (name, help) in entries {
        roff.control("TP", []);
        roff.text(name.clone());
        roff.text(help.clone());
    }
}

/// Adds a part of names in one style, each with a sentence.
pub fn list(roff: &mut Roff, title: &str, style: fn(&str) -> Inline, entries: &[(&str, &str)]) {
    let entries: Vec<_> = entries.iter().map(|(name, help)| (vec![style(name)], vec![roman(*help)])).collect();
    part(roff, title, &entries);
}
