//! The daemon is killed, stopped and replaced under busy connections: `make daemon-faults` does so for longer.

use std::time::Duration;
use underpass_tests::upheaval::{Ground, Plan, upheave};

fn goes_unnoticed(ground: Ground) {
    let (lasting, pace) = (Duration::from_secs(2), Duration::from_millis(250));
    let Some(outcome) = upheave(&Plan { ground, lasting, pace, connections: [40, 10, 2], seed: 1 }) else { return };
    println!("{outcome}");
    assert!(outcome.faults() > 0);
    let complaints = outcome.complaints();
    assert!(complaints.is_empty(), "{complaints:#?}\n{outcome}");
}

#[test]
fn faults_of_the_daemon_between_users() {
    goes_unnoticed(Ground::Users);
}

#[test]
fn faults_of_the_daemon_whose_socket_is_kept() {
    goes_unnoticed(Ground::Kept);
}

#[test]
fn faults_of_the_daemon_between_containers() {
    goes_unnoticed(Ground::Containers);
}
