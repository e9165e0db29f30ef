//! A connection that the administrator forbids later is not carried on by shared memory; if it is allowed again, it
//! goes on.

use std::time::{Duration, Instant};

use underpass_tests::broker::GROUP;
use underpass_tests::container::Container;
use underpass_tests::library::is_kernel_only;
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, skip};
use underpass_tests::yard::{Beats, Place, Yard};

/// However busy both ends are.
#[test]
fn a_rule_that_comes_later_stops_a_fast_connection() {
    let Some(yard) = Yard::new(&[]).filter(|it| it.broker.has_numbers()) else { return };
    if !Stage::has("nft") {
        return;
    }
    let (container, port) = (Container::new(&yard.stage), free_port());
    container.must("ip link set lo up");
    let rules = format!(
        "nft -f - <<'END'
add table inet t
add chain inet t c {{ type filter hook input priority 0 ; }}
add rule inet t c tcp dport {port} drop
add rule inet t c tcp sport {port} drop
END"
    );
    let forbid = || container.run(&rules);
    let allow = || container.must("nft delete table inet t");
    if let Err(error) = forbid() {
        return skip(&format!("no firewall: {error}"));
    }
    allow();

    let [server, client] = [61_001, 61_002].map(|uid| Place::inside(&container, uid, GROUP.1));
    // Neither end sleeps in the kernel, so that no doorbell is needed: memory alone would carry on.
    let dozes = &[("UNDERPASS_DOZE_US", "1000000")];
    let serving = yard.serve(&server, "mirror", port, dozes);
    let beats = Beats::begin(&yard, &client, port, dozes);
    beats.await_more(20_000, "at first");

    // Less than the time between two probes.
    forbid().expect("the same rules");
    std::thread::sleep(Duration::from_secs(1));
    allow();
    beats.await_more(20_000, "after a moment");

    forbid().expect("the same rules");
    if !is_kernel_only() {
        assert_stops(&beats);
    }
    allow();
    beats.await_more(20_000, "allowed again");

    let (all, fast) = (beats.end(), client.user.run.fast(None).bytes / 200);
    assert!(is_kernel_only() || all - fast < 10_000, "{fast} of {all} went fast: {}", client.user.run.table());
    drop(serving);
    yard.stage.finish();
}

/// Within two probes and a little, and nothing goes past the rule from then on.
fn assert_stops(beats: &Beats) {
    const STILL: Duration = Duration::from_secs(3);
    let began = Instant::now();
    let (mut last, mut since) = (beats.count(), Instant::now());
    while since.elapsed() < STILL {
        let now = beats.count();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        assert!(began.elapsed() < Duration::from_secs(20), "memory carries on what is forbidden");
        std::thread::sleep(Duration::from_millis(20));
    }
}
