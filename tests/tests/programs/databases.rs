//! Redis, memcached and PostgreSQL with their own clients.

use std::fs;
use std::thread::sleep;
use std::time::Duration;
use underpass_tests::group::Group;
use underpass_tests::library::{AT_ONCE, is_kernel_only};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, fixture};

pub fn redis_server(stage: &Stage, port: u16) -> [String; 10] {
    let folder = stage.path("").display().to_string();
    ["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir", &folder, "--dbfilename", "dump.rdb"]
        .map(String::from)
}

fn redis_cli(stage: &Stage, port: u16, arguments: &[&str]) -> String {
    let port = port.to_string();
    let all = ["-p", &port].into_iter().chain(arguments.iter().copied());
    stage.output(stage.command("redis-cli", all)).trim_end().to_owned()
}

#[test]
fn redis() {
    let Some(stage) = Stage::with(&["redis-server", "redis-cli", "redis-benchmark"]) else { return };
    let port = free_port();
    let server = stage.serve(stage.command("redis-server", redis_server(&stage, port)), port);

    assert_eq!(redis_cli(&stage, port, &["set", "greeting", "hello"]), "OK");
    assert_eq!(redis_cli(&stage, port, &["get", "greeting"]), "hello");
    assert_eq!(redis_cli(&stage, port, &["-r", "50", "incr", "counter"]).lines().last(), Some("50"));
    let script =
        "for i = 1, 1000 do redis.call('rpush', 'list', string.rep(i, 50)) end return redis.call('llen', 'list')";
    assert_eq!(redis_cli(&stage, port, &["eval", script, "0"]), "1000");
    let list = redis_cli(&stage, port, &["lrange", "list", "0", "-1"]);
    assert!(list.lines().eq((1..=1000).map(|i: u32| i.to_string().repeat(50))), "a list of 1000 long strings");

    let port_text = port.to_string();
    for extra in
        [&["-c", "1", "-n", "3000"][..], &["-c", "30", "-n", "20000"], &["-c", "30", "-n", "60000", "-P", "16"]]
    {
        let mut arguments = vec!["-p", &port_text, "-t", "set,get,lrange_100", "-q", "-d", "100"];
        arguments.extend(extra);
        let said = stage.output(stage.command("redis-benchmark", arguments));
        assert!(said.matches("requests per second").count() >= 3 && !said.contains("rror"), "{said}");
    }
    stage.run.assert_fast("redis-server");
    stage.run.assert_fast("redis-benchmark");
    server.stop(libc::SIGTERM);
    stage.finish();
}

/// The server forks to write its data out while clients go on.
#[test]
fn redis_saves_in_the_background() {
    let Some(stage) = Stage::with(&["redis-server", "redis-cli", "redis-benchmark"]) else { return };
    let port = free_port();
    let server = stage.serve(stage.command("redis-server", redis_server(&stage, port)), port);
    let port_text = port.to_string();
    let set = ["-p", &port_text, "-t", "set", "-r", "100000", "-d", "200", "-q", "-n"];
    let filled = stage.command("redis-benchmark", set.into_iter().chain(["100000", "-P", "50"]));
    stage.output(filled);

    let mut load = stage.start(stage.command("redis-benchmark", set.into_iter().chain(["60000", "-c", "10"])));
    for _ in 0..3 {
        redis_cli(&stage, port, &["bgsave"]);
        while redis_cli(&stage, port, &["info", "persistence"]).contains("rdb_bgsave_in_progress:1") {
            sleep(Duration::from_millis(20));
        }
    }
    let limit = Duration::from_secs(60);
    assert!(load.wait(limit).is_some_and(|status| status.success()), "{}{}", load.said(), load.where_it_is());
    let state = redis_cli(&stage, port, &["info", "persistence"]);
    assert!(state.contains("rdb_last_bgsave_status:ok"), "{state}");
    assert!(fs::metadata(stage.path("dump.rdb")).unwrap().len() > 1_000_000);
    stage.run.assert_fast("redis-server");
    stage.run.assert_fast("redis-benchmark");
    server.stop(libc::SIGTERM);
    stage.finish();
}

#[test]
fn memcached() {
    let Some(stage) = Stage::with(&["memcached", "python3"]) else { return };
    let port = free_port().to_string();
    let arguments = ["-u", "root", "-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", "2", "-m", "64"];
    let server = stage.serve(stage.command("memcached", arguments), port.parse().unwrap());
    let client = stage.command("python3", [fixture("memcached.py").display().to_string(), port]);
    assert_eq!(stage.output(client), "all values as stored\n");
    stage.run.assert_fast("memcached");
    stage.run.assert_fast("python3");
    server.stop(libc::SIGTERM);
    stage.finish();
}

/// One process for each connection.
#[test]
fn postgresql() {
    let Some(stage) = Stage::as_user("postgres", &["postgres", "initdb", "psql", "pgbench"]) else { return };
    let port = free_port().to_string();
    let data = stage.path("data").display().to_string();
    stage.output(stage.plain("initdb", ["-D", &data, "--auth=trust", "-U", "postgres", "--no-sync"]));
    let quiet = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "shared_buffers=16MB"];
    let settings = quiet.iter().flat_map(|setting| ["-c", setting]);
    let arguments = || ["-D", &data, "-p", &port].into_iter().chain(settings.clone());
    let server = stage.serve(stage.command("postgres", arguments()), port.parse().unwrap());

    let psql = |query: &str| {
        let database = format!("host=127.0.0.1 port={port} user=postgres dbname=postgres");
        stage.output(stage.command("psql", ["-X", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", &database, "-c", query]))
    };
    await_answer(&server, || psql_is_ready(&stage, &port));
    psql("create table numbers as select i, md5(i::text) as hash from generate_series(1, 200000) as i");
    assert_eq!(psql("select count(*), sum(i) from numbers"), "200000|20000100000\n");
    let rows = psql("select i, hash from numbers order by i");
    assert_eq!(rows.lines().count(), 200000);
    assert!(rows.starts_with("1|c4ca4238a0b923820dcc509a6f75849b\n"));
    let size = psql("select length(string_agg(repeat(hash, 3), '' order by i)) from numbers");
    assert_eq!(size, "19200000\n");

    let common = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
    let pgbench =
        |extra: &[&str]| stage.output(stage.command("pgbench", common.iter().chain(extra).chain(&["postgres"])));
    pgbench(&["-i", "-q", "-s", "1"]);
    for extra in [&["-S", "-c", "4", "-t", "300"][..], &["-c", "2", "-t", "50"], &["-S", "-C", "-t", "20"]] {
        let said = pgbench(extra);
        assert!(said.contains("number of failed transactions: 0"), "{said}");
    }
    stage.run.assert_fast("postgres");
    stage.run.assert_fast("psql");
    stage.run.assert_fast("pgbench");
    server.stop(libc::SIGINT);

    // The process that accepts does not serve: the other end must not be told that this process has the connection.
    let before = stage.run.fast(Some("postgres")).connections;
    let server = stage.serve(stage.tuned("postgres", arguments(), AT_ONCE), port.parse().unwrap());
    await_answer(&server, || psql_is_ready(&stage, &port));
    stage.output(stage.tuned("pgbench", common.iter().chain(&["-S", "-C", "-t", "20", "postgres"]), AT_ONCE));
    let fast = stage.run.fast(Some("postgres")).connections - before;
    assert!(is_kernel_only() || fast >= 20, "{fast} of 20 were fast at once:\n{}", stage.run.table());
    server.stop(libc::SIGINT);
    stage.finish();
}

pub fn psql_is_ready(stage: &Stage, port: &str) -> bool {
    let mut probe = stage.start(stage.plain("pg_isready", ["-q", "-h", "127.0.0.1", "-p", port]));
    probe.wait(Duration::from_secs(10)).is_some_and(|status| status.success())
}

pub fn await_answer(server: &Group, mut ready: impl FnMut() -> bool) {
    for _ in 0..100 {
        if ready() {
            return;
        }
        sleep(Duration::from_millis(50));
    }
    panic!("the server does not answer:\n{}", server.said());
}
