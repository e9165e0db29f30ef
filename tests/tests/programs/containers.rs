//! Programs in containers, which meet each other and the host's through `underpassd`.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use underpass_tests::broker::{Broker, GROUP, User};
use underpass_tests::container::{Bridge, Container, HOSTS, ROUTER};
use underpass_tests::library::is_kernel_only;
use underpass_tests::net::{await_listening_beside, free_port};
use underpass_tests::stage::{Stage, skip};
use underpass_tests::yard::{DONE, Place, Yard};

use crate::brokered::{assert_loaded, load};

const ONE: u32 = 61_001;
const OTHER: u32 = 61_002;

/// The network is the pod's, or the host's; System V memory is the pod's too, as Kubernetes has it, or each one's own,
/// as with podman and docker. The numbers of their processes are the same ones all the time.
#[test]
fn containers_of_one_pod() {
    let Some(yard) = Yard::new(&[]) else { return };
    for has_network in [false, true] {
        if has_network && !yard.broker.has_numbers() {
            continue;
        }
        let pod = has_network.then(|| Container::new(&yard.stage));
        if let Some(pod) = &pod {
            pod.must("ip link set lo up");
        }
        for own in [&["--ipc"][..], &[]] {
            let [one, other] = [(); 2].map(|()| Container::of_pod(&yard.stage, pod.as_ref(), own));
            let what = format!("network of its own: {has_network}; each has {own:?}");
            let [one, other] = [&one, &other].map(|it| Place::inside(it, ONE, ONE));
            yard.assert_fast_echo(&what, &one, &other);
            yard.assert_fast_echo(&what, &other, &one);
        }
    }
    yard.stage.finish();
}

/// The container has the host's network. If BPF is not allowed, addresses prove a connection.
#[test]
fn a_container_beside_its_host() {
    for arguments in [&[][..], &["--no-bpf"]] {
        let Some(yard) = Yard::new(arguments) else { return };
        for own in [&["--ipc"][..], &[]] {
            let container = Container::of_pod(&yard.stage, None, own);
            let (inside, host) = (Place::inside(&container, ONE, ONE), Place::host(User::new(ONE, ONE)));
            yard.assert_fast_echo(&format!("a server that has {own:?} {arguments:?}"), &inside, &host);
            yard.assert_fast_echo(&format!("a client that has {own:?} {arguments:?}"), &host, &inside);
        }
        yard.stage.finish();
    }
}

/// The other end comes to the same directory, before either asks the daemon.
#[test]
fn ends_of_one_container_need_no_daemon() {
    let Some(yard) = Yard::new(&[]) else { return };
    let container = Container::of_pod(&yard.stage, None, &["--ipc"]);
    let [server, client] = [(); 2].map(|()| Place::inside(&container, ONE, ONE));
    yard.assert_fast_echo("of one container", &server, &client);
    assert_eq!(yard.broker.met(), 0, "{}", yard.broker.said());
    yard.stage.finish();
}

/// A program whose peers are never under Underpass asks a few times, and then hardly ever.
#[test]
fn an_end_that_waits_in_vain_asks_rarely() {
    let Some(yard) = Yard::new(&[]) else { return };
    let (client, port) = (Place::host(User::new(ONE, ONE)), free_port());
    let mut server = yard.stage.plain(&yard.program, ["serve", &port.to_string()]);
    server.uid(ONE);
    let server = yard.stage.serve(server, port);
    let asking = yard.start(&client, &format!("ask {port} 100 100"));
    assert_eq!(asking.succeed(Duration::from_secs(60)), DONE);
    client.user.run.assert_not_fast();
    // To the knock and to the ask, if the daemon was at work while the connection was.
    let answers = yard.broker.said().matches("verdict=").count();
    assert!(is_kernel_only() || (1..=16).contains(&answers), "{answers} answers:\n{}", yard.broker.said());
    server.stop(libc::SIGTERM);
    yard.stage.finish();
}

/// Sandboxes as bubblewrap makes them, in a user namespace, with the daemon's socket where programs look for it.
#[test]
fn sandboxes_of_bubblewrap() {
    let Some(yard) = Yard::new(&[]) else { return };
    if !Stage::has("bwrap") {
        return;
    }
    let (user, port, socket) = (User::new(ONE, ONE), free_port(), yard.broker.socket().display().to_string());
    let sandbox = |words: &str| {
        let mut command = Command::new("bwrap");
        command.args(["--unshare-user", "--unshare-ipc", "--unshare-pid", "--die-with-parent", "--ro-bind", "/", "/"]);
        command.args(["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run", "--dir", "/run/underpass"]);
        command.args(["--bind", &socket, "/run/underpass/broker.sock"]).args(words.split_whitespace());
        command.current_dir(yard.stage.path(""));
        // The counters are in another IPC namespace: what has met is seen at the daemon.
        user.runs(&mut command, underpass_tests::library::AT_ONCE);
        command
    };
    if !sandbox("true").output().is_ok_and(|it| it.status.success()) {
        return skip("this system lets users make no namespaces");
    }
    let server = yard.stage.serve(sandbox(&format!("{} serve {port}", yard.program)), port);
    assert_eq!(yard.stage.output(sandbox(&format!("{} ask {port} 3 3000", yard.program))), DONE);
    assert!(is_kernel_only() || yard.broker.met() >= 6, "{}", yard.broker.said());
    drop(server);
    yard.stage.finish();
}

/// Namespaces of their own, and no address in common where translation is in between: two users, one user, and the
/// host, which has the bridge.
#[test]
fn containers_behind_a_bridge() {
    let Some(stage) = Stage::with(&["redis-server", "redis-benchmark", "unshare", "nsenter", "ip"]) else { return };
    let Some(broker) = Broker::start(&stage, &[]).filter(Broker::has_numbers) else { return };
    let (bridge, port) = (Bridge::new(&stage), free_port());
    let [client, server] = &bridge.ends;
    let serving = server.user(ONE, GROUP.1);
    let words = ["--port", &port.to_string(), "--bind", HOSTS[1], "--save", "", "--protected-mode", "no"];
    let mut command = server.command(&stage, &serving, "redis-server", &words, &[]);
    broker.serves(&mut command);
    let mut redis = stage.start(command);
    await_listening_beside(&server.process(), &mut redis, port);
    let asks = |user: &User, host: &str, is_inside: bool| {
        let words = load(port, host);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = if is_inside {
            client.command(&stage, user, "redis-benchmark", &words, &[])
        } else {
            bridge.router.command_on_network(&stage, user, "redis-benchmark", &words, &[])
        };
        broker.serves(&mut command);
        assert_loaded(&stage.output(command));
        let fast = user.run.fast(None).connections;
        assert!(is_kernel_only() || fast > 0, "{host}: {}\n{}", user.run.table(), broker.said());
    };
    for uid in [ONE, OTHER] {
        asks(&client.user(uid, GROUP.1), HOSTS[1], true);
        asks(&User::member(uid), HOSTS[1], false);
    }
    match bridge.translate(port) {
        Ok(()) => [ONE, OTHER].into_iter().for_each(|uid| asks(&client.user(uid, GROUP.1), ROUTER, true)),
        Err(error) => skip(&format!("no translation: {error}")),
    }
    redis.stop(libc::SIGTERM);
    serving.run.assert_fast("redis-server");
    drop(bridge);
    stage.finish();
}
