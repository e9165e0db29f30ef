//! Kernels that are older, or that keep something for others: the daemon names what it cannot do and goes on without,
//! or does not start. The refusals are a seccomp filter's, in a thread of their own.

use super::actor::{Actor, join, meet};
use super::client::Client;
use super::daemon::{Daemon, GROUP, UNDERPASSD, is_root};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
    apply_filter,
};
use std::fs;
use std::process::Command;
use std::thread;
use underpass_broker::State;

/// A system call that the kernel refuses.
#[derive(Clone, Copy)]
struct Refusal {
    call: i64,
    /// The value that one of its arguments has, by the argument's index.
    argument: Option<(u8, u64)>,
    errno: i32,
}

/// Linux 5.13 and older have no SO_NETNS_COOKIE, 6.4 and older no SO_PEERPIDFD.
const NO_NAMESPACE_COOKIE: Refusal =
    Refusal { call: libc::SYS_getsockopt, argument: Some((2, 71)), errno: libc::ENOPROTOOPT };
const NO_PEER_PIDFD: Refusal =
    Refusal { call: libc::SYS_getsockopt, argument: Some((2, 77)), errno: libc::ENOPROTOOPT };
const NO_BPF: Refusal = Refusal { call: libc::SYS_bpf, argument: None, errno: libc::EPERM };
const NO_MEMFD: Refusal = Refusal { call: libc::SYS_memfd_create, argument: None, errno: libc::ENOSYS };
const NO_SEALS: Refusal =
    Refusal { call: libc::SYS_fcntl, argument: Some((1, libc::F_ADD_SEALS as u64)), errno: libc::EINVAL };

/// Does that in a thread whose system calls, and those of the processes that it starts, are refused so.
fn refusing<T: Send>(refusals: &[Refusal], act: impl FnOnce() -> T + Send) -> T {
    let apply = |refusal: &Refusal| {
        let condition =
            |(index, value)| SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value).unwrap();
        let rules = refusal.argument.map(condition).map(|it| SeccompRule::new(vec![it]).unwrap());
        let (arch, action) = (std::env::consts::ARCH.try_into().unwrap(), SeccompAction::Errno(refusal.errno as u32));
        let rules = [(refusal.call, rules.into_iter().collect())].into();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).unwrap();
        apply_filter(&BpfProgram::try_from(filter).unwrap()).unwrap();
    };
    thread::scope(|scope| {
        let thread = scope.spawn(|| {
            refusals.iter().for_each(apply);
            act()
        });
        thread.join().unwrap()
    })
}

/// Two members of the group meet through a daemon that is refused this; what it said at its start, and says of itself.
fn goes_on(refusals: &[Refusal]) -> (String, State) {
    goes_on_with(refusals, &[])
}

fn goes_on_with(refusals: &[Refusal], arguments: &[&str]) -> (String, State) {
    refusing(refusals, || {
        let daemon = Daemon::start(arguments);
        let (log, state) = (daemon.log(), Client::connect(&daemon.path()).unwrap().state());
        let [mut server, mut client] = [61_001, 61_002].map(|uid| Actor::of_user(&daemon, uid, GROUP.1));
        join(&mut server, &mut client, "127.0.0.1");
        meet(&mut server, &mut client);
        drop((server, client));
        daemon.finish();
        (log, state)
    })
}

/// What a daemon says that is refused this and does not start.
fn does_not_start(refusals: &[Refusal], arguments: &[&str]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let mut command = Command::new(UNDERPASSD);
    command.args(["--foreground", "--group", GROUP.0]).args(arguments).arg("--socket").arg(&socket);
    let output = refusing(refusals, || command.output().unwrap());
    // It would not start later either.
    assert_eq!(output.status.code(), Some(3));
    assert!(!socket.exists(), "its socket is left");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn without_cookies_of_namespaces_sequence_numbers_prove() {
    if !is_root() || !Daemon::start(&[]).has_numbers() {
        return;
    }
    let (log, state) = goes_on(&[NO_NAMESPACE_COOKIE]);
    assert!(log.contains("network namespaces cannot be told apart (SO_NETNS_COOKIE of Linux 5.14)"), "{log}");
    assert!(log.contains("connections that are older than the daemon are not proven"), "{log}");
    assert!(state.abilities.numbers && !state.abilities.addresses);
}

#[test]
fn without_descriptors_of_processes_ends_meet() {
    if is_root() {
        let (log, _) = goes_on(&[NO_PEER_PIDFD]);
        assert!(log.contains("a process that asks is known by its number alone (SO_PEERPIDFD of Linux 6.5)"), "{log}");
        // Of a process that is what its number says, the groups are known.
        let folder = tempfile::tempdir().unwrap();
        let policy = folder.path().join("policy.toml");
        fs::write(&policy, "group = 1\n[[deny]]\nbetween = [{ group = 61005 }, {}]\n").unwrap();
        goes_on_with(&[NO_PEER_PIDFD], &["--policy", policy.to_str().unwrap()]);
    }
}

#[test]
fn without_bpf_addresses_prove() {
    if is_root() {
        let (log, state) = goes_on(&[NO_BPF]);
        assert!(log.contains("no BPF program (CAP_BPF and CAP_NET_ADMIN are needed, before Linux 5.11 also"), "{log}");
        assert!(!state.abilities.numbers && state.abilities.addresses);
    }
}

#[test]
fn where_nothing_can_be_proven_it_does_not_start() {
    let log = does_not_start(&[NO_NAMESPACE_COOKIE], &["--no-bpf"]);
    assert!(log.contains("nothing can be proven here"), "{log}");
    let log = does_not_start(&[NO_NAMESPACE_COOKIE, NO_BPF], &[]);
    assert!(log.contains("nothing can be proven here"), "{log}");
}

#[test]
fn without_sealed_memory_it_does_not_start() {
    for refusal in [NO_MEMFD, NO_SEALS] {
        let log = does_not_start(&[refusal], &[]);
        assert!(log.contains("let underpassd use memfd_create(2) and fcntl(2) with F_ADD_SEALS"), "{log}");
    }
}
