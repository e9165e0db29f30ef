//! A process of the same user that forges offers for the connections of others.

use std::time::{Duration, Instant};
use underpass_segment::reason::Reason;
use underpass_tests::apart::apart;
use underpass_tests::library::{AT_ONCE, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile, skip};

const DONE: &str = "every echo as sent\n";

/// No process takes a forged offer or takes one connection for another, and all connections go on by kernel TCP. Fails
/// if `Meeting::prove` leaves out `attested.creator != offer.maker.pid` and `!holds(offer.maker, &peer)`.
#[test]
fn forged_offers_are_refused() {
    if is_kernel_only() {
        return skip("there is nothing to forge without the library");
    }
    apart(libc::CLONE_NEWIPC, || {
        let Some(stage) = Stage::with(&["cc"]) else { return };
        let [program, forger] = ["guest", "forger"].map(|name| {
            compile(&format!("{name}.c"), &stage.path(name), &[]);
            stage.path(name).display().to_string()
        });
        let port = free_port();
        let server = stage.serve(stage.tuned(&program, ["serve", &port.to_string()], AT_ONCE), port);
        let ask = || stage.tuned(&program, ["ask", &port.to_string(), "20", "60"], AT_ONCE);
        assert_eq!(stage.output(ask()), DONE, "{}", server.said());
        let before = stage.run.fast(None).connections;
        assert!(before > 0, "{}", stage.run.table());
        let liar = stage.start(stage.plain(&forger, ["60", &server.pid().to_string()]));
        let limit = Instant::now() + Duration::from_secs(20);
        while !liar.said().contains("there") {
            assert!(
                !liar.said().contains("forged") && Instant::now() < limit,
                "no directory is found: {}",
                liar.said()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        let unproven = || {
            let reasons = stage.run.processes().into_iter().flat_map(|it| it.reasons);
            reasons.filter(|(it, _)| *it == Reason::Unproven).map(|(_, count)| count).sum::<u64>()
        };
        let enough = Instant::now() + Duration::from_secs(3);
        while !liar.said().contains("forged") {
            let client = stage.start(ask());
            assert_eq!(client.succeed(Duration::from_secs(60)), DONE, "{}", server.said());
            if unproven() > 0 && Instant::now() > enough {
                liar.signal(libc::SIGTERM);
            }
        }
        let said = liar.succeed(Duration::from_secs(20));
        let forged: u64 = said.split("forged ").nth(1).and_then(|it| it.split(',').next()?.parse().ok()).unwrap();
        assert!(forged > 0 && said.contains("untouched"), "{said}{}", stage.run.table());
        assert!(unproven() > 0, "nobody has looked at what was forged: {said}{}", stage.run.table());
        // Once it is gone, all goes well again.
        let before = stage.run.fast(None).connections;
        assert_eq!(stage.output(ask()), DONE, "{}", server.said());
        assert!(stage.run.fast(None).connections > before, "{}", stage.run.table());
        server.stop(libc::SIGTERM);
        stage.finish();
    });
}
