//! What each process says of its connections: its own, once, whoever has them as well.

use underpass_tests::library::{AT_ONCE, is_kernel_only};
use underpass_tests::stage::{Stage, compile, skip};

/// Bytes that both ends together send before and after the execution.
const BEFORE: u64 = 2 * 60 * 600;
const AFTER: u64 = 2 * 10 * 600;

/// Connections, those that went fast, bytes sent.
type Row = (u64, u64, u64);

#[test]
fn what_is_left_to_an_executed_program_is_counted_by_who_uses_it() {
    if is_kernel_only() {
        return skip("nothing is counted without the library");
    }
    let ways: [(&str, &[Row]); 5] = [
        ("child-idle", &[(2, 2, BEFORE)]),
        ("system-", &[(2, 2, BEFORE)]),
        ("child-use", &[(2, 2, BEFORE), (2, 2, AFTER)]),
        ("image-idle", &[(2, 2, BEFORE)]),
        ("image-use", &[(2, 2, BEFORE + AFTER)]),
    ];
    for (way, expected) in ways {
        for end in ["open", "close"] {
            let Some(stage) = Stage::with(&["cc"]) else { return };
            let program = stage.path("heirs");
            compile("heirs.c", &program, &[]);
            stage.output(stage.tuned(program.to_str().unwrap(), [way, end], AT_ONCE));
            let processes = stage.run.processes();
            let busy = processes.iter().filter(|it| it.connections + it.fast > 0);
            let rows: Vec<Row> = busy.map(|it| (it.connections, it.fast, it.fast_sent + it.kernel_sent)).collect();
            assert_eq!(rows, expected, "{way} {end}:\n{}", stage.run.table());
            assert_eq!(processes.len(), 1 + usize::from(!way.starts_with("image")), "{way}:\n{}", stage.run.table());
            stage.finish();
        }
    }
}
