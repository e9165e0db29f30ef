//! HTTP: nginx with curl and wrk, Python's own server and client.

use std::fs;
use underpass_tests::library::AT_ONCE;
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, fixture};

/// Bytes without a period that a buffer's size could hide.
pub fn noise(size: usize) -> Vec<u8> {
    (0..size as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u8).collect()
}

#[test]
fn nginx() {
    let Some(stage) = Stage::with(&["nginx", "curl", "wrk"]) else { return };
    let port = free_port();
    let here = stage.path("").display().to_string();
    fs::create_dir(stage.path("files")).unwrap();
    stage.file("files/small", noise(1024));
    stage.file("files/large", noise(5 << 20));
    let configuration = format!(
        "user root; worker_processes 2; daemon off; pid nginx.pid; error_log stderr warn;
         events {{ worker_connections 256; }}
         http {{
             sendfile on; access_log off; keepalive_requests 1000000000;
             client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
             uwsgi_temp_path uwsgi; scgi_temp_path scgi;
             server {{ listen 127.0.0.1:{port}; root files; }}
         }}"
    );
    stage.file("nginx.conf", configuration);
    let server = stage.serve(stage.command("nginx", ["-p", &here, "-c", "nginx.conf"]), port);

    let url = |name: &str| format!("http://127.0.0.1:{port}/{name}");
    for (name, size) in [("small", 1024), ("large", 5 << 20)] {
        let one_connection = ["-sS", "--fail", &url(name), "-o", "first", &url(name), "-o", "second"];
        stage.output(stage.tuned("curl", one_connection, AT_ONCE));
        for copy in ["first", "second"] {
            assert!(fs::read(stage.path(copy)).unwrap() == noise(size), "{copy} copy of {name} differs");
        }
    }
    let part = stage.command("curl", ["-sS", "--fail", "-r", "1000000-1999999", &url("large"), "-o", "part"]);
    stage.output(part);
    assert!(fs::read(stage.path("part")).unwrap() == noise(5 << 20)[1_000_000..2_000_000], "a part differs");

    for (name, connections) in [("small", "10"), ("large", "4")] {
        let arguments = ["-t", "1", "-c", connections, "-d", "2s", "--timeout", "10s", &url(name)];
        let said = stage.output(stage.command("wrk", arguments));
        assert!(
            said.contains("Requests/sec") && !said.contains("Socket errors") && !said.contains("Non-2xx"),
            "{said}"
        );
    }
    // A curl of one or two requests may be over before it has met nginx.
    for program in ["nginx", "wrk"] {
        stage.run.assert_fast(program);
    }
    server.stop(libc::SIGQUIT);
    stage.finish();
}

#[test]
fn python_http() {
    let Some(stage) = Stage::with(&["python3", "curl", "sha256sum"]) else { return };
    let port = free_port();
    fs::create_dir(stage.path("files")).unwrap();
    stage.file("files/small", noise(1024));
    stage.file("files/large", noise(3 << 20));
    let port_text = port.to_string();
    let arguments = ["-m", "http.server", "--bind", "127.0.0.1", "--directory", "files", &port_text];
    let server = stage.serve(stage.command("python3", arguments), port);
    let urls = ["small", "large"].map(|name| format!("http://127.0.0.1:{port}/{name}"));
    let fetch = fixture("fetch.py").display().to_string();
    let said = stage.output(stage.command("python3", [&fetch, &urls[0], &urls[1]]));
    let sums = stage.output(stage.plain("sha256sum", ["files/small", "files/large"]));
    let sums: Vec<&str> = sums.lines().filter_map(|line| line.split(' ').next()).collect();
    let expected = format!("1024 {}\n3145728 {}\n", sums[0], sums[1]).repeat(5);
    assert_eq!(said, expected);
    stage.output(stage.command("curl", ["-sS", "--fail", &urls[1], "-o", "copy"]));
    assert!(fs::read(stage.path("copy")).unwrap() == noise(3 << 20));
    stage.run.assert_fast("python3");
    server.stop(libc::SIGINT);
    stage.finish();
}
