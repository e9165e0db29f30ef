//! Tables and words for people.

use std::fmt::Write;
use std::io::{self, Write as _, stdout};
use std::path::PathBuf;

use underpass_lab::unit::thousands;

use crate::failure::Failure;

/// What a command has to say could not be said.
#[derive(Debug, thiserror::Error)]
#[error("cannot write all of it to standard output ({0}); what is there is not whole")]
pub struct NotPrinted(io::Error);

impl From<NotPrinted> for Failure {
    fn from(error: NotPrinted) -> Failure {
        Failure::Failed(error.into())
    }
}

/// Writes to standard output.
///
/// # Errors
/// [`NotPrinted`].
pub fn print(text: impl AsRef<[u8]>) -> Result<(), NotPrinted> {
    let mut to = stdout().lock();
    to.write_all(text.as_ref()).and_then(|()| to.flush()).map_err(NotPrinted)
}

/// Lines of cells, padded to columns. The first line is the heading; columns named in `right` are flush right.
pub fn table(rows: &[Vec<String>], right: &[usize]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| rows.iter().filter_map(|r| r.get(column)).map(|c| c.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = widths[column];
            let _ = if right.contains(&column) {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// The text without the numbers that std puts behind the system's words, as in "No such file or directory (os error
/// 2)".
pub fn without_codes(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_string();
    parts.fold(first, |text, part| {
        let rest = part.trim_start_matches(|c: char| c.is_ascii_digit());
        text + rest.strip_prefix(')').unwrap_or(rest)
    })
}

/// The text without what would do something to a terminal.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// The text, which may have several lines, without what would do something to a terminal.
pub fn printable_lines(text: &str) -> String {
    text.split('\n').map(printable).collect::<Vec<_>>().join("\n")
}

/// Says which files there are now.
pub fn written<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> String {
    files.into_iter().map(|file| format!("Written: {}\n", printable(&file.to_string_lossy()))).collect()
}

/// A number and its noun.
pub fn plural(number: u64, one: &str, many: &str) -> String {
    format!("{} {}", thousands(number), if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nouns_follow_their_number() {
        assert_eq!([1, 1000].map(|n| plural(n, "process", "processes")), ["1 process", "1,000 processes"]);
    }

    #[test]
    fn errors_are_told_in_words() {
        let error = |code| std::io::Error::from_raw_os_error(code);
        assert_eq!(without_codes(&format!("cannot ({})", error(2))), "cannot (No such file or directory)");
        assert_eq!(
            without_codes(&format!("a: {}; b: {}", error(13), error(2))),
            "a: Permission denied; b: No such file or directory"
        );
        assert_eq!(without_codes("nothing"), "nothing");
    }

    #[test]
    fn a_terminal_is_not_told_what_to_do() {
        assert_eq!(printable("a\u{1b}[2J\nb \u{e9}"), "a\\u{1b}[2J\\nb \u{e9}");
    }

    #[test]
    fn columns_are_padded() {
        let rows = [vec!["A".into(), "N".into()], vec!["long".into(), "7".into()]];
        assert_eq!(table(&rows, &[1]), "A     N\nlong  7\n");
    }
}
