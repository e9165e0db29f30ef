//! A peer that overwrites the shared memory at any time: `make hostile` does so for longer, and in every mode.

use std::path::Path;
use std::time::Duration;
use underpass_segment::reason::Reason;
use underpass_tests::compiler::cc;
use underpass_tests::library::{AT_ONCE, is_kernel_only};
use underpass_tests::stage::Stage;

#[test]
fn a_liar_harms_its_own_connections_alone() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = stage.path("hostile");
    cc(&program, &["-O2"], &[Path::new(env!("CARGO_MANIFEST_DIR")).join("soak/hostile.c")]);
    let said =
        stage.start(stage.tuned(program.to_str().unwrap(), ["1", "3"], AT_ONCE)).succeed(Duration::from_secs(60));
    let overwritten: u64 = said.lines().last().and_then(|line| line.split(' ').next()?.parse().ok()).unwrap_or(0);
    let reasons = stage.run.processes().into_iter().flat_map(|process| process.reasons);
    let broken: u64 = reasons.filter(|(reason, _)| *reason == Reason::PeerFault).map(|(_, count)| count).sum();
    assert!(is_kernel_only() || overwritten > 10_000 && broken > 0, "{said}{}", stage.run.table());
    stage.finish();
}
