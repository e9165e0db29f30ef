//! A peer that overwrites the shared memory at any time: `make hostile` does so for longer, and in every mode.

use rustix::fd::AsFd;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::thread::{Gid, Uid, set_thread_gid, set_thread_uid};
use std::io::{IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};
use underpass_broker::{Answer, Ask, Verdict};
use underpass_segment::channel::MARK;
use underpass_segment::reason::Reason;
use underpass_tests::broker::{GROUP, User, dial};
use underpass_tests::compiler::cc;
use underpass_tests::library::{AT_ONCE, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::Stage;
use underpass_tests::yard::{Place, Yard};

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

/// The peer asks the daemon as the library does, gets memory, and does nothing with it.
#[test]
fn a_peer_that_never_joins_is_not_waited_for() {
    const MESSAGES: usize = 3000;
    const LATE: Duration = Duration::from_millis(10);
    let Some(yard) = Yard::new(&[]) else { return };
    let (server, port) = (Place::host(User::member(61_001)), free_port());
    let serving = yard.serve(&server, "mirror", port, &[]);
    let socket_of_broker = yard.broker.socket().to_path_buf();
    let peer = std::thread::spawn(move || {
        set_thread_gid(Gid::from_raw(GROUP.1)).unwrap();
        set_thread_uid(Uid::from_raw(61_002)).unwrap();
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let asking = dial(&socket_of_broker);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        let sockets = [stream.as_fd()];
        assert!(beside.push(SendAncillaryMessage::ScmRights(&sockets)));
        let ask = Ask { token: 1, mark: MARK, ring_bytes: 1 << 16, freed: None }.emit().unwrap();
        sendmsg(&asking, &[IoSlice::new(&ask)], &mut beside, SendFlags::empty()).unwrap();
        let mut late = 0;
        for number in 0..MESSAGES {
            let (sent, began) = ([number as u8; 100], Instant::now());
            stream.write_all(&sent).unwrap();
            let mut got = [0; 100];
            stream.read_exact(&mut got).unwrap();
            assert_eq!(sent, got);
            late += usize::from(began.elapsed() > LATE);
        }
        let verdicts = [(); 2].map(|()| {
            let mut octets = [0; 256];
            let len = rustix::io::read(&asking, &mut octets).unwrap();
            Answer::parse(&octets[..len]).unwrap().verdict
        });
        (late, verdicts)
    });
    if is_kernel_only() {
        return;
    }
    let (late, verdicts) = peer.join().unwrap();
    assert!(verdicts[0] == Verdict::Waiting && matches!(verdicts[1], Verdict::Met { .. }), "{verdicts:?}");
    assert!(late < MESSAGES / 100, "{late} of {MESSAGES} took longer than {LATE:?}");
    serving.succeed(Duration::from_secs(20));
    server.user.run.assert_not_fast();
    yard.stage.finish();
}
