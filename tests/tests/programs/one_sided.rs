//! Programs of which only one end is accelerated, or can be: they work, at the kernel's speed.

use std::path::PathBuf;
use std::process::Command;
use underpass_tests::library::{AT_ONCE, target};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, compile, find, fixture};

use crate::databases::redis_server;

#[test]
fn redis_server_alone() {
    one_end_of_redis(true);
}

#[test]
fn redis_benchmark_alone() {
    one_end_of_redis(false);
}

fn one_end_of_redis(server_is_accelerated: bool) {
    let Some(stage) = Stage::with(&["redis-server", "redis-benchmark"]) else { return };
    let port = free_port();
    let command = |accelerated: bool, program: &str, arguments: Vec<String>| match accelerated {
        true => stage.tuned(program, arguments, AT_ONCE),
        false => stage.plain(program, arguments),
    };
    let server = stage.serve(command(server_is_accelerated, "redis-server", redis_server(&stage, port).to_vec()), port);
    let load = ["-p", &port.to_string(), "-t", "set,get,lrange_600", "-n", "5000", "-c", "20", "-q"].map(String::from);
    let said = stage.output(command(!server_is_accelerated, "redis-benchmark", load.to_vec()));
    assert!(said.matches("requests per second").count() >= 3 && !said.contains("rror"), "{said}");
    stage.run.assert_not_fast();
    server.stop(libc::SIGTERM);
    stage.finish();
}

/// A static program never loads the library.
#[test]
fn static_program() {
    let Some(stage) = Stage::with(&["cc"]) else { return };
    let (fixed, ordinary) = (stage.path("fixed"), stage.path("ordinary"));
    compile("pump.c", &fixed, &["-static"]);
    compile("pump.c", &ordinary, &[]);
    for (server, client) in [(&fixed, &ordinary), (&ordinary, &fixed), (&fixed, &fixed)] {
        let port = free_port();
        let server = stage.tuned(server.to_str().unwrap(), ["reply".into(), port.to_string()], AT_ONCE);
        let server = stage.serve(server, port);
        let arguments = ["echo".into(), port.to_string(), "3000000".into()];
        let said = stage.output(stage.tuned(client.to_str().unwrap(), arguments, AT_ONCE));
        assert_eq!(said, "connected\n3000000 came back, then the end\n");
        server.succeed(std::time::Duration::from_secs(30));
    }
    stage.run.assert_not_fast();
    stage.finish();
}

/// A Go program makes its system calls itself.
#[test]
fn go_program() {
    let Some(stage) = Stage::with(&["go", "cc"]) else { return };
    let program = go_build(&stage, "echo.go");
    let pump = stage.path("pump");
    compile("pump.c", &pump, &[]);
    let port = free_port();
    let command = |mode: &str| stage.tuned(program.to_str().unwrap(), [mode, &port.to_string()], AT_ONCE);
    let server = stage.serve(command("serve"), port);
    assert_eq!(stage.output(command("ask")), "every echo as sent\n");
    let said = stage.output(stage.tuned(pump.to_str().unwrap(), ["echo", &port.to_string(), "3000000"], AT_ONCE));
    assert_eq!(said, "connected\n3000000 came back, then the end\n");
    stage.run.assert_not_fast();
    drop(server);
    stage.finish();
}

/// Builds a Go file without a network. Go's own library is compiled once and kept in the build folder.
fn go_build(stage: &Stage, file: &str) -> PathBuf {
    let program = stage.path("go-program");
    let mut build = Command::new(find("go").expect("go"));
    build.args(["build", "-o"]).arg(&program).arg(fixture(file)).current_dir(stage.path(""));
    build.envs([("CGO_ENABLED", "0"), ("GO111MODULE", "off"), ("GOTOOLCHAIN", "local"), ("GOPROXY", "off")]);
    build.env("GOCACHE", target().join("go-cache")).env("GOPATH", stage.path("go"));
    let output = build.output().expect("go");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    program
}
