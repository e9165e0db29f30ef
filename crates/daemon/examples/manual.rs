//! Prints the manual page of `underpassd`, for `make generate`.

#[path = "../src/manual.rs"]
mod manual;
#[allow(dead_code, reason = "the page tells of the options, and nothing here goes by them")]
#[path = "../src/options.rs"]
mod options;

fn main() {
    print!("{}", manual::page());
}
