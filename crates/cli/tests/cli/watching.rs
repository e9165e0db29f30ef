//! What `underpass top` needs.

use crate::support::{output, stderr};

#[test]
fn top_needs_a_terminal_and_says_what_does_not() {
    let refused = output(&["top"]);
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(
        stderr(&refused),
        "underpass: top draws on a terminal, and standard input or output is none; `underpass top --once` (or --json) prints the \
         rates once\n"
    );
}

#[test]
fn an_interval_is_a_number_of_seconds() {
    for wrong in ["0", "0.01", "-1", "3601", "NaN", "inf", "soon"] {
        let refused = output(&["top", "--once", &format!("--interval={wrong}")]);
        assert_eq!(refused.status.code(), Some(2), "{wrong}");
        assert!(stderr(&refused).contains("a number of seconds from 0.1 to 3600 is needed"), "{wrong}");
    }
    let fine = output(&["top", "--once", "--json", "--interval=0.1"]);
    assert!(fine.status.success(), "{}", stderr(&fine));
    assert!(serde_json::from_slice::<serde_json::Value>(&fine.stdout).unwrap()["connections"].is_array());
}
