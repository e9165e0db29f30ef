//! Programs of several users that meet through `underpassd`.

use serde_json::Value;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};
use underpass_segment::reason::Reason;
use underpass_tests::apart::apart;
use underpass_tests::broker::{Broker, GROUP, User};
use underpass_tests::group::Group;
use underpass_tests::library::{self, AT_ONCE, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile, fixture, skip};

use crate::databases::redis_server;
use crate::faults::await_word_for;

const ONE: u32 = 61_001;
const OTHER: u32 = 61_002;

const DONE: &str = "every echo as sent\n";

/// Two users with a program of tests/fixtures, and a daemon.
struct Pair {
    stage: Stage,
    broker: Broker,
    program: String,
    users: [User; 2],
}

impl Pair {
    fn new(source: &str, arguments: &[&str], gids: [u32; 2]) -> Option<Pair> {
        let stage = Stage::with(&["cc"])?;
        let broker = Broker::start(&stage, arguments)?;
        let program = stage.path(source.trim_end_matches(".c"));
        compile(source, &program, &[]);
        let users = [User::new(ONE, gids[0]), User::new(OTHER, gids[1])];
        Some(Pair { stage, broker, program: program.display().to_string(), users })
    }

    fn members(source: &str, arguments: &[&str]) -> Option<Pair> {
        Pair::new(source, arguments, [1, 1])
    }

    fn command(&self, user: usize, words: &str) -> Command {
        let mut command = self.stage.plain(&self.program, words.split_whitespace());
        self.users[user].runs(&mut command, AT_ONCE);
        self.broker.serves(&mut command);
        command
    }

    fn start(&self, user: usize, words: &str) -> Group {
        self.stage.start(self.command(user, words))
    }

    fn serve(&self, user: usize, words: &str, port: u16) -> Group {
        self.stage.serve(self.command(user, words), port)
    }

    fn assert_fast(&self, name: &str) {
        self.users.iter().for_each(|user| user.run.assert_fast(name));
    }

    /// Every connection of both users has this reason, and there are some.
    fn assert_reason(&self, reason: Reason) {
        for user in &self.users {
            user.run.assert_not_fast();
            let all: Vec<_> = user.run.processes().into_iter().flat_map(|process| process.reasons).collect();
            let as_said = !all.is_empty() && all.iter().all(|(it, _)| *it == reason);
            assert!(is_kernel_only() || as_said, "not {reason:?} alone:\n{}\n{}", user.run.table(), self.broker.said());
        }
    }
}

fn echo(pair: &Pair, connections: u32, messages: u32) {
    let port = free_port();
    let server = pair.serve(0, &format!("serve {port}"), port);
    let client = pair.start(1, &format!("ask {port} {connections} {messages}"));
    assert_eq!(client.succeed(Duration::from_secs(60)), DONE);
    await_server(pair, connections);
    server.stop(libc::SIGTERM);
}

/// Awaits that the server has told of all its connections, `connections` with each client: it does so when it has
/// closed them.
fn await_server(pair: &Pair, connections: u32) {
    let told = || {
        let processes = pair.users[0].run.processes();
        let rows = processes.iter().map(|it| it.fast + it.reasons.iter().map(|it| it.1).sum::<u64>());
        rows.sum::<u64>()
    };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_kernel_only() && told() % u64::from(connections) != 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn members_of_the_group_go_fast() {
    for arguments in [&[][..], &["--no-bpf"]] {
        let Some(pair) = Pair::members("guest.c", arguments) else { return };
        echo(&pair, 5, 2000);
        pair.assert_fast("guest");
        for user in &pair.users {
            let (fast, all) = (user.run.fast(None), 5 * 2000 * 100);
            assert!(is_kernel_only() || fast.connections == 5, "{}", user.run.table());
            assert!(is_kernel_only() || fast.bytes > all, "most of both ways: {}", user.run.table());
        }
        pair.stage.finish();
    }
}

/// Both processes belong to one user, but the kernel hides the descriptors of one, as of a server that root has started
/// and that has changed its user. The end that comes first looks into the directory.
#[test]
fn a_process_that_hides_its_descriptors_is_proven_by_the_daemon() {
    let Some(pair) = Pair::members("guest.c", &[]) else { return };
    let command = |words: &str| {
        let mut command = pair.stage.plain(&pair.program, words.split_whitespace());
        pair.users[0].runs(&mut command, AT_ONCE);
        pair.broker.serves(&mut command);
        command
    };
    for (serve, ask) in [("hidden serve", "ask"), ("serve", "hidden ask"), ("hidden serve", "hidden ask")] {
        let port = free_port();
        let server = pair.stage.serve(command(&format!("{serve} {port}")), port);
        assert_eq!(pair.stage.output(command(&format!("{ask} {port} 3 3000"))), DONE);
        await_server(&pair, 3);
        server.stop(libc::SIGTERM);
    }
    let fast = pair.users[0].run.fast(None);
    assert!(is_kernel_only() || fast.connections == 2 * 9, "{}", pair.users[0].run.table());
    pair.stage.finish();
}

#[test]
fn strangers_stay_on_kernel_tcp() {
    let Some(pair) = Pair::new("guest.c", &[], [ONE, OTHER]) else { return };
    // The daemon may have to wait for a processor, and the ends do not wait for it.
    echo(&pair, 3, 5000);
    pair.assert_reason(Reason::Policy);
    pair.stage.finish();
}

/// What memory cgroups may use: little, and enough.
const LITTLE: &str = "1048576";
const ENOUGH: &str = "67108864";

/// Has all processes of these namespaces be in a control group with this limit, as files say that stand in the place of
/// the kernel's, for both versions of them. False, said aloud, where nothing can be mounted.
fn limit_memory(pair: &Pair, limit: &str) -> bool {
    let root = pair.stage.path("cgroups");
    fs::create_dir_all(root.join("memory")).unwrap();
    set_limit(pair, limit);
    for file in ["memory.current", "memory/memory.usage_in_bytes"] {
        fs::write(root.join(file), "4096\n").unwrap();
    }
    let script = "mount --make-rprivate / && mount --bind \"$0\" /sys/fs/cgroup";
    let is_mounted = Command::new("sh").args(["-c", script]).arg(&root).status().is_ok_and(|it| it.success());
    if !is_mounted {
        skip("nothing can be mounted");
    }
    is_mounted
}

fn set_limit(pair: &Pair, limit: &str) {
    for file in ["memory.max", "memory/memory.limit_in_bytes"] {
        fs::write(pair.stage.path("cgroups").join(file), format!("{limit}\n")).unwrap();
    }
}

/// The daemon decides how large its pools are, and what is left for a control group is asked nevertheless. Both users
/// are below the same one.
#[test]
fn memory_that_a_cgroup_needs_itself_is_left_to_it() {
    for (limit, is_enough) in [(ENOUGH, true), (LITTLE, false)] {
        apart(libc::CLONE_NEWNS, || {
            let Some(pair) = Pair::members("guest.c", &["--no-bpf"]) else { return };
            if !limit_memory(&pair, limit) {
                return;
            }
            // The daemon may have to wait for a processor.
            echo(&pair, 3, 5000);
            if is_enough {
                pair.assert_fast("guest");
            } else {
                pair.assert_reason(Reason::NoMemory);
            }
            pair.stage.finish();
        });
    }
}

/// Fails if connections that have met without memory for them stay on kernel TCP for good.
#[test]
fn memory_that_a_cgroup_gets_back_is_used() {
    apart(libc::CLONE_NEWNS, || {
        let Some(pair) = Pair::members("guest.c", &["--no-bpf"]) else { return };
        if !limit_memory(&pair, LITTLE) {
            return;
        }
        let port = free_port();
        let server = pair.serve(0, &format!("serve {port}"), port);
        // Long enough for a daemon that has to wait for a processor.
        let client = pair.start(1, &format!("hold {port} 5 1 5000"));
        await_word_for(Duration::from_secs(60), &client, "there");
        set_limit(&pair, ENOUGH);
        client.signal(libc::SIGUSR1);
        assert_eq!(client.succeed(Duration::from_secs(120)), format!("there\n{DONE}"));
        server.stop(libc::SIGTERM);
        for user in &pair.users {
            assert!(is_kernel_only() || user.run.fast(None).connections == 6, "{}", user.run.table());
        }
        pair.stage.finish();
    });
}

#[test]
fn without_a_daemon_users_stay_apart() {
    let Some(mut pair) = Pair::members("guest.c", &[]) else { return };
    pair.broker.signal(libc::SIGTERM);
    pair.broker.kill();
    echo(&pair, 3, 300);
    pair.assert_reason(Reason::OtherUser);
    pair.stage.finish();
}

/// A daemon that is stopped makes no call last, and no end of a stream: a copy of a socket lies in its queue.
#[test]
fn a_stopped_daemon_delays_nothing() {
    let Some(pair) = Pair::members("guest.c", &[]) else { return };
    pair.broker.signal(libc::SIGSTOP);
    let began = Instant::now();
    echo(&pair, 50, 40);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    pair.assert_reason(Reason::NoBroker);
    pair.broker.signal(libc::SIGCONT);
    echo(&pair, 5, 2000);
    pair.assert_fast("guest");
    pair.stage.finish();
}

#[test]
fn a_daemon_that_dies_costs_no_byte_and_its_successor_goes_on() {
    let Some(mut pair) = Pair::members("guest.c", &[]) else { return };
    let port = free_port();
    let server = pair.serve(0, &format!("serve {port}"), port);
    // Long enough for a daemon that has to wait for a processor.
    let client = pair.start(1, &format!("hold {port} 20 20 1000"));
    await_word_for(Duration::from_secs(30), &client, "there");
    pair.broker.replace(&pair.stage);
    client.signal(libc::SIGUSR1);
    assert_eq!(client.succeed(Duration::from_secs(60)), format!("there\n{DONE}"));
    server.stop(libc::SIGTERM);
    for user in &pair.users {
        assert!(is_kernel_only() || user.run.fast(None).connections == 40, "{}", user.run.table());
    }
    pair.stage.finish();
}

/// The surviving end sees what was sent, then an end, as on kernel TCP.
fn die(sender_dies: bool, expected: &str) {
    let Some(pair) = Pair::members("pump.c", &[]) else { return };
    for round in 1..=8 {
        let port = free_port();
        let sender = pair.serve(0, &format!("serve {port}"), port);
        let receiver = pair.start(1, &format!("drain {port}"));
        while !sender.said().contains("connected") || !receiver.said().contains("connected") {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Later in each round: at any point of the meeting, the switch and the stream.
        std::thread::sleep(Duration::from_millis(10 * round));
        let (victim, witness) = if sender_dies { (sender, receiver) } else { (receiver, sender) };
        victim.signal(libc::SIGKILL);
        let said = witness.succeed(Duration::from_secs(20));
        assert!(said.contains(expected), "round {round}:\n{said}");
    }
    // A killed process counts nothing.
    pair.users[usize::from(sender_dies)].run.assert_fast("pump");
    pair.stage.finish();
}

#[test]
fn the_sender_dies() {
    die(true, "some as sent, then the end");
}

#[test]
fn the_receiver_dies() {
    die(false, "sent some, then gone");
}

#[test]
fn a_stream_comes_back_whole() {
    let Some(pair) = Pair::members("pump.c", &[]) else { return };
    let port = free_port();
    let server = pair.serve(0, &format!("reply {port}"), port);
    let client = pair.start(1, &format!("echo {port} 30000000"));
    assert_eq!(client.succeed(Duration::from_secs(60)), "connected\n30000000 came back, then the end\n");
    server.succeed(Duration::from_secs(30));
    pair.assert_fast("pump");
    pair.stage.finish();
}

/// Redis under a load that checks nothing but errors; what it says.
pub fn load(port: u16, host: &str) -> [String; 12] {
    ["-h", host, "-p", &port.to_string(), "-t", "set,get,lrange_300", "-n", "5000", "-c", "10", "-q", "--csv"]
        .map(String::from)
}

pub fn assert_loaded(said: &str) {
    assert!(said.matches('\n').count() >= 4 && !said.contains("rror"), "{said}");
}

/// A process is passed a connection, and has no descriptor to fetch its memory with: the connection is lost, and the
/// reason is the true one.
#[test]
fn a_connection_that_is_lost_for_lack_of_a_descriptor_says_so() {
    let Some(pair) = Pair::members("guest.c", &[]) else { return };
    let port = free_port();
    let server = pair.serve(0, &format!("serve {port}"), port);
    let program = pair.stage.file("full.py", fs::read_to_string(fixture("full.py")).unwrap());
    let mut command = pair.stage.plain("python3", ["-S", "-E", &program.display().to_string(), &port.to_string()]);
    pair.users[1].runs(&mut command, AT_ONCE);
    pair.broker.serves(&mut command);
    let said = pair.stage.start(command).succeed(Duration::from_secs(60));
    let reasons: Vec<_> = pair.users[1].run.processes().into_iter().flat_map(|process| process.reasons).collect();
    let is_lost = said == "reset\n" && reasons.iter().any(|(it, _)| *it == Reason::NoDescriptor);
    let is_whole = said == "read\n" && is_kernel_only();
    assert!(is_lost || is_whole, "{said}{}{}", pair.users[1].run.table(), pair.broker.said());
    server.stop(libc::SIGTERM);
    pair.stage.finish();
}

/// The command says beforehand what the daemon then decides, and counts what it has decided.
#[test]
fn what_decides_is_told() {
    let Some(pair) = Pair::new("guest.c", &[], [1, OTHER]) else { return };
    let ports = [free_port(), free_port()];
    let serve = |user: usize| pair.serve(user, &format!("serve {}", ports[user]), ports[user]);
    let servers = [serve(0), serve(1)];
    let policy = pair.stage.file("policy.toml", format!("group = \"{}\"\n", GROUP.0)).display().to_string();
    let told = |words: &[&str]| {
        let mut command = Command::new(library::command());
        pair.broker.serves(command.args(words));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stdout).unwrap())
    };
    let pids = servers.each_ref().map(|server| server.pid().to_string());
    let explain = |one: &str, other: &str| {
        let (code, said) = told(&["policy", "explain", "--json", "--policy", &policy, one, other]);
        let value: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}"));
        assert_eq!(
            (&value["policy"]["in_force"], &value["notes"]),
            (&true.into(), &Value::Array(Vec::new())),
            "{said}"
        );
        (code, value)
    };
    if !is_kernel_only() {
        let (code, value) = explain(&pids[0], &pids[1]);
        assert_eq!((code, &value["reason"], &value["by"]), (Some(1), &"policy".into(), &Value::Null));
        let (code, value) = explain(&pids[0], &pids[0]);
        assert_eq!((code, &value["by"]), (Some(0), &"directory".into()));
    }
    // A stranger, who is refused.
    let words = format!("ask {} 1 2000", ports[0]);
    assert_eq!(pair.start(1, &words).succeed(Duration::from_secs(60)), DONE);
    // A member, who is not.
    let member = User::member(OTHER);
    let mut command = pair.stage.plain(&pair.program, words.split_whitespace());
    member.runs(&mut command, AT_ONCE);
    pair.broker.serves(&mut command);
    assert_eq!(pair.stage.start(command).succeed(Duration::from_secs(60)), DONE);
    if !is_kernel_only() {
        member.run.assert_fast("guest");
        let (code, text) = told(&["metrics"]);
        assert_eq!(code, Some(0));
        assert!(
            text.contains("\nunderpass_broker_up 1\n") && text.contains("\nunderpass_broker_meetings_total 1\n"),
            "{text}"
        );
        let refused =
            text.lines().find_map(|line| line.strip_prefix("underpass_broker_refusals_total{reason=\"policy\"} "));
        assert!(refused.is_some_and(|count| count.parse::<u64>().unwrap() >= 2), "{text}");
    }
    let (_, said) = told(&["doctor", "--json", &pids[0]]);
    assert!(said.contains("underpassd answers at") && said.contains("\"policy\""), "{said}");
    servers.into_iter().for_each(|server| drop(server.stop(libc::SIGTERM)));
    pair.stage.finish();
}

#[test]
fn redis_under_its_own_user() {
    let Some(stage) = Stage::with(&["redis-server", "redis-benchmark"]) else { return };
    let Some(broker) = Broker::start(&stage, &[]) else { return };
    let (Some(redis), client, port) = (User::named("redis"), User::member(OTHER), free_port()) else { return };
    let mut server = stage.plain("redis-server", redis_server(&stage, port));
    redis.runs(&mut server, &[]);
    broker.serves(&mut server);
    let server = stage.serve(server, port);
    let mut command = stage.plain("redis-benchmark", load(port, "127.0.0.1"));
    client.runs(&mut command, &[]);
    broker.serves(&mut command);
    assert_loaded(&stage.output(command));
    server.stop(libc::SIGTERM);
    redis.run.assert_fast("redis-server");
    client.run.assert_fast("redis-benchmark");
    stage.finish();
}

/// The workers of an nginx that root has started are hidden from their own user.
#[test]
fn nginx_started_by_root() {
    let Some(stage) = Stage::with(&["nginx", "wrk"]) else { return };
    let Some(broker) = Broker::start(&stage, &[]) else { return };
    let port = free_port();
    let here = stage.path("").display().to_string();
    stage.file("index.html", "x".repeat(1024));
    let configuration = format!(
        "user www-data {}; worker_processes 2; daemon off; pid nginx.pid; error_log stderr warn;
         events {{ worker_connections 256; }}
         http {{
             access_log off; keepalive_requests 1000000000; client_body_temp_path body; proxy_temp_path proxy;
             fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
             server {{ listen 127.0.0.1:{port}; root .; }}
         }}",
        GROUP.0
    );
    stage.file("nginx.conf", configuration);
    let mut command = stage.command("nginx", ["-p", &here, "-c", "nginx.conf"]);
    broker.serves(&mut command);
    let server = stage.serve(command, port);
    let www_data = User::named("www-data");
    for client in [Some(User::member(OTHER)), www_data].into_iter().flatten() {
        let url = format!("http://127.0.0.1:{port}/index.html");
        let mut command = stage.plain("wrk", ["-t", "1", "-c", "8", "-d", "2s", "--timeout", "10s", &url]);
        client.runs(&mut command, &[]);
        broker.serves(&mut command);
        let said = stage.output(command);
        assert!(
            said.contains("Requests/sec") && !said.contains("Socket errors") && !said.contains("Non-2xx"),
            "{said}"
        );
        client.run.assert_fast("wrk");
    }
    server.stop(libc::SIGQUIT);
    stage.run.assert_fast("nginx");
    stage.finish();
}
