//! HTTP: nginx with curl and wrk, Apache and haproxy with ab, Python's own server and client.

use std::fs;
use std::time::{Duration, Instant};
use underpass_tests::library::AT_ONCE;
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, find, fixture};

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

/// nginx's own way of upgrading: USR2 starts another master with its workers beside the old ones, which then finish
/// what they have begun. No request fails meanwhile, as none does on kernel TCP.
#[test]
fn nginx_is_upgraded() {
    for is_plain in [true, false] {
        let Some(stage) = Stage::with(&["nginx", "ab"]) else { return };
        let port = free_port();
        let here = stage.path("").display().to_string();
        fs::create_dir(stage.path("files")).unwrap();
        stage.file("files/some", noise(200_000));
        let configuration = format!(
            "user root; worker_processes 2; daemon off; pid nginx.pid; error_log stderr warn;
             events {{ worker_connections 256; }}
             http {{
                 sendfile on; access_log off; client_body_temp_path body; proxy_temp_path proxy;
                 fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
                 server {{ listen 127.0.0.1:{port}; root files; }}
             }}"
        );
        stage.file("nginx.conf", configuration);
        let command = |program: &str, words: &[&str]| match is_plain {
            true => stage.plain(program, words),
            false => stage.tuned(program, words, AT_ONCE),
        };
        // nginx takes no USR2 while the process lives that has started it, and executes the path by which that was
        // done.
        let nginx = find("nginx").expect("it is installed").display().to_string();
        let script = "(\"$1\" -p \"$0\" -c nginx.conf & until [ -s nginx.pid ]; do sleep 0.01; done); exec sleep 1000";
        let server = stage.serve(command("sh", &["-c", script, &here, &nginx]), port);
        let url = format!("http://127.0.0.1:{port}/some");
        // Connections of one request may be over before they are fast.
        stage.output(command("ab", &["-q", "-k", "-n", "2000", "-c", "4", &url]));
        let load = stage.start(command("ab", &["-q", "-t", "2", "-n", "1000000", "-c", "8", &url]));
        upgrade(&stage);
        let said = load.succeed(Duration::from_secs(60));
        assert!(said.contains("Failed requests:        0") && !said.contains("Non-2xx"), "{is_plain}: {said}");
        if !is_plain {
            for program in ["nginx", "ab"] {
                stage.run.assert_fast(program);
            }
        }
        signal(&stage, "QUIT", &pid(&stage, "nginx.pid").expect("the new master"));
        until("the new master ends", || pid(&stage, "nginx.pid").is_none());
        server.stop(libc::SIGTERM);
        stage.finish();
    }
}

/// Has the master of nginx start its successor, and ends it when that works.
fn upgrade(stage: &Stage) {
    let old = pid(stage, "nginx.pid").expect("a master");
    signal(stage, "USR2", &old);
    let successor = || pid(stage, "nginx.pid").filter(|it| *it != old);
    until("there is a new master", || pid(stage, "nginx.pid.oldbin").is_some() && successor().is_some());
    let new = successor().expect("the new master");
    let children = format!("/proc/{new}/task/{new}/children");
    until("it has its workers", || fs::read_to_string(&children).is_ok_and(|it| it.split_whitespace().count() == 2));
    signal(stage, "QUIT", &old);
    until("the old master ends", || pid(stage, "nginx.pid.oldbin").is_none());
}

fn signal(stage: &Stage, signal: &str, pid: &str) {
    stage.output(stage.plain("kill", [&format!("-{signal}"), pid]));
}

/// What the file says, if it is there and has been written.
fn pid(stage: &Stage, file: &str) -> Option<String> {
    fs::read_to_string(stage.path(file)).ok().map(|it| it.trim().to_owned()).filter(|it| !it.is_empty())
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "not so within 30 s: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Several threads share an epoll set, in which each socket is registered anew for every request; haproxy's threads
/// have one each.
#[test]
fn apache_behind_haproxy() {
    let Some(stage) = Stage::as_user("nobody", &["apache2", "ab", "haproxy"]) else { return };
    let (apache, haproxy) = (free_port(), free_port());
    let here = stage.path("").display().to_string();
    fs::create_dir(stage.path("files")).unwrap();
    stage.file("files/small", noise(1024));
    let modules = "/usr/lib/apache2/modules";
    stage.file(
        "apache.conf",
        format!(
            "ServerRoot {here}\nServerName test\nListen 127.0.0.1:{apache}\nPidFile {here}/apache.pid\n\
             LoadModule mpm_event_module {modules}/mod_mpm_event.so\n\
             LoadModule authz_core_module {modules}/mod_authz_core.so\n\
             DocumentRoot {here}/files\nErrorLog {here}/apache.log\n"
        ),
    );
    stage.file(
        "haproxy.cfg",
        format!(
            "defaults\n  mode http\n  timeout connect 10s\n  timeout client 10s\n  timeout server 10s\n\
             frontend in\n  bind 127.0.0.1:{haproxy}\n  default_backend out\n\
             backend out\n  server apache 127.0.0.1:{apache}\n"
        ),
    );
    let configuration = stage.path("apache.conf").display().to_string();
    let server = stage.serve(stage.command("apache2", ["-f", &configuration, "-DFOREGROUND"]), apache);
    let proxy = stage.serve(stage.command("haproxy", ["-db", "-f", "haproxy.cfg"]), haproxy);
    for port in [apache, haproxy] {
        // Apache ends each connection after 100 requests.
        let url = format!("http://127.0.0.1:{port}/small");
        let said = stage.output(stage.command("ab", ["-k", "-q", "-n", "20000", "-c", "8", &url]));
        assert!(said.contains("Complete requests:      20000") && !said.contains("Non-2xx"), "{said}");
        assert!(said.contains("Failed requests:        0"), "{said}");
    }
    for program in ["apache2", "ab", "haproxy"] {
        stage.run.assert_fast(program);
    }
    proxy.stop(libc::SIGTERM);
    server.stop(libc::SIGTERM);
    stage.finish();
}

#[test]
fn python_http() {
    let Some(stage) = Stage::with(&["python3", "curl", "sha256sum"]) else { return };
    let port = free_port();
    fs::create_dir(stage.path("files")).unwrap();
    stage.file("files/small", noise(1024));
    stage.file("files/large", noise(3 << 20));
    // More than the kernel's buffers hold: its reader has begun before the server has sent it all, whatever else runs.
    stage.file("files/huge", noise(32 << 20));
    let port_text = port.to_string();
    let arguments = ["-m", "http.server", "--bind", "127.0.0.1", "--directory", "files", &port_text];
    let server = stage.serve(stage.command("python3", arguments), port);
    let urls = ["small", "large", "huge"].map(|name| format!("http://127.0.0.1:{port}/{name}"));
    let fetch = fixture("fetch.py").display().to_string();
    let said = stage.output(stage.command("python3", [&fetch, &urls[0], &urls[1]]));
    let sums = stage.output(stage.plain("sha256sum", ["files/small", "files/large"]));
    let sums: Vec<&str> = sums.lines().filter_map(|line| line.split(' ').next()).collect();
    let expected = format!("1024 {}\n3145728 {}\n", sums[0], sums[1]).repeat(20);
    assert_eq!(said, expected);
    stage.output(stage.command("curl", ["-sS", "--fail", &urls[2], "-o", "copy"]));
    assert!(fs::read(stage.path("copy")).unwrap() == noise(32 << 20));
    stage.run.assert_fast("python3");
    server.stop(libc::SIGINT);
    stage.finish();
}
