//! What is not asked of the kernel: once a connection is fast, being told of its data and of its room costs no system
//! call. Whatever forgets that is right and slow, which no other test would find.

use underpass_tests::library::{AT_ONCE, is_kernel_only, path};
use underpass_tests::stage::{Stage, compile, skip};

/// A busy set asks the kernel every 50 µs; even where a message takes as long, that is once.
const ONCE_IN: u64 = 2;

#[test]
fn readiness_is_told_without_the_kernel() {
    if is_kernel_only() {
        return skip("nothing is saved without the library");
    }
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let (counter, program) = (stage.path("counter.so"), stage.path("frugal"));
    compile("counter.c", &counter, &["-shared", "-fPIC"]);
    compile("frugal.c", &program, &["-pthread"]);
    for way in ["epoll", "epoll-room", "epoll-changes", "poll", "select"] {
        let mut command = stage.tuned(program.to_str().unwrap(), [way], AT_ONCE);
        command.env("LD_PRELOAD", format!("{}:{}", path().display(), counter.display()));
        let said = stage.output(command);
        let numbers: Vec<u64> = said.split_whitespace().map(|it| it.parse().expect("a number")).collect();
        let [messages, calls] = numbers[..] else { panic!("{way} said {said:?}") };
        assert!(calls < messages / ONCE_IN, "{way}: {messages} messages took {calls} calls of the kernel");
    }
    stage.finish();
}

#[test]
fn only_sleepers_are_rung() {
    if is_kernel_only() {
        return skip("nothing is saved without the library");
    }
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let program = stage.path("frugal");
    compile("frugal.c", &program, &["-pthread"]);
    let said = stage.output(stage.tuned(program.to_str().unwrap(), ["receives"], AT_ONCE));
    let messages: u64 = said.trim().parse().expect("a number");
    let (bells, sleeps) =
        stage.run.processes().iter().fold((0, 0), |sum, process| (sum.0 + process.bells, sum.1 + process.sleeps));
    assert!(bells < sleeps + messages / 10, "{messages} messages, {sleeps} sleeps, {bells} doorbells");
    assert!(stage.run.fast(None).bytes > messages, "{messages} messages:\n{}", stage.run.table());
    stage.finish();
}
