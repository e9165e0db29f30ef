//! The `underpass` command.
fn main() {}
