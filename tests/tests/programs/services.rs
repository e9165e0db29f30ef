//! Servers as they are deployed, under users of their own, and clients of other users: they meet through `underpassd`.

use underpass_tests::broker::{Broker, GROUP, User};
use underpass_tests::net::free_port;
use underpass_tests::stage::{Stage, fixture};

use crate::databases::{await_answer, psql_is_ready};

const ONE: u32 = 61_001;
const OTHER: u32 = 61_002;

/// A client that is brief runs so often at most until it goes fast.
const MOST_RUNS: u32 = 10;

/// One process for each connection, forked by a process that has accepted it.
#[test]
fn postgresql_as_its_own_user() {
    let Some(stage) = Stage::as_user("postgres", &["postgres", "initdb", "pgbench", "pg_isready"]) else { return };
    let Some(broker) = Broker::start(&stage, &[]) else { return };
    let (Some(postgres), client) = (User::named("postgres"), User::member(OTHER)) else { return };
    let (port, data) = (free_port().to_string(), stage.path("data").display().to_string());
    stage.output(stage.plain("initdb", ["-D", &data, "--auth=trust", "-U", "postgres", "--no-sync"]));
    let quiet = ["listen_addresses=127.0.0.1", "unix_socket_directories=", "fsync=off", "shared_buffers=16MB"];
    let settings = quiet.iter().flat_map(|setting| ["-c", setting]);
    let mut command = stage.plain("postgres", ["-D", &data, "-p", &port].into_iter().chain(settings));
    postgres.runs(&mut command, &[]);
    broker.serves(&mut command);
    let server = stage.serve(command, port.parse().unwrap());
    await_answer(&server, || psql_is_ready(&stage, &port));

    let common = ["-h", "127.0.0.1", "-p", &port, "-U", "postgres"];
    for (extra, said) in [
        (&["-i", "-q", "-s", "1"][..], "done in"),
        (&["-S", "-c", "4", "-t", "500"], "number of failed transactions: 0"),
        (&["-c", "2", "-t", "200"], "number of failed transactions: 0"),
    ] {
        let mut command = stage.plain("pgbench", common.iter().chain(extra).chain(&["postgres"]));
        client.runs(&mut command, &[]);
        broker.serves(&mut command);
        let all = stage.output(command);
        assert!(all.contains(said), "{all}");
    }
    server.stop(libc::SIGINT);
    postgres.run.assert_fast("postgres");
    client.run.assert_fast("pgbench");
    stage.finish();
}

/// memcached gives up its privileges before it listens, so that the kernel hides its descriptors.
#[test]
fn memcached_started_by_root() {
    let Some(stage) = Stage::with(&["memcached", "python3"]) else { return };
    let Some(broker) = Broker::start(&stage, &[]) else { return };
    let port = free_port().to_string();
    // A user whose group is the group that may share memory.
    let arguments = ["-u", GROUP.0, "-l", "127.0.0.1", "-p", &port, "-U", "0", "-t", "2", "-m", "64"];
    let mut command = stage.command("memcached", arguments);
    broker.serves(&mut command);
    let server = stage.serve(command, port.parse().unwrap());
    let program = stage.file("memcached.py", std::fs::read(fixture("memcached.py")).unwrap()).display().to_string();
    let own = User::named("daemon");
    for client in [Some(User::member(OTHER)), own].into_iter().flatten() {
        // Beside other load the daemon may answer later than so brief a client asks.
        for _ in 0..MOST_RUNS {
            let mut command = stage.plain("python3", [&program, &port]);
            client.runs(&mut command, &[]);
            broker.serves(&mut command);
            assert_eq!(stage.output(command), "all values as stored\n");
            if client.run.fast(Some("python3")).bytes > 0 {
                break;
            }
        }
        client.run.assert_fast("python3");
    }
    stage.run.assert_fast("memcached");
    server.stop(libc::SIGTERM);
    stage.finish();
}

/// Both are started by root, and each has workers of a user of its own.
#[test]
fn php_behind_nginx() {
    let Some(stage) = Stage::with(&["nginx", "php-fpm8.2", "wrk"]) else { return };
    let Some(broker) = Broker::start(&stage, &[]) else { return };
    let [pool, port] = [(); 2].map(|()| free_port());
    let here = stage.path("").display().to_string();
    let page = stage.file("page.php", "<?php header('Content-Length: 1024'); echo str_repeat('u', 1024);");
    let configuration = format!(
        "[global]\nerror_log = /proc/self/fd/2\ndaemonize = no\n[www]\nuser = {ONE}\ngroup = {}\nlisten = \
         127.0.0.1:{pool}\n\
         pm = static\npm.max_children = 4\n",
        GROUP.1
    );
    let configuration = stage.file("fpm.conf", configuration).display().to_string();
    let mut command = stage.command("php-fpm8.2", ["--no-php-ini", "--fpm-config", &configuration]);
    broker.serves(&mut command);
    let fpm = stage.serve(command, pool);

    let configuration = format!(
        "user www-data {}; worker_processes 1; daemon off; pid nginx.pid; error_log stderr warn;
         events {{ worker_connections 256; }}
         http {{
             access_log off; keepalive_requests 1000000000; client_body_temp_path body; proxy_temp_path proxy;
             fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
             upstream php {{ server 127.0.0.1:{pool}; keepalive 4; keepalive_requests 1000000000; }}
             server {{
                 listen 127.0.0.1:{port};
                 location / {{
                     fastcgi_pass php; fastcgi_keep_conn on; fastcgi_param SCRIPT_FILENAME {};
                     fastcgi_param REQUEST_METHOD $request_method; fastcgi_param SERVER_PROTOCOL $server_protocol;
                 }}
             }}
         }}",
        GROUP.0,
        page.display()
    );
    stage.file("nginx.conf", configuration);
    let mut command = stage.command("nginx", ["-p", &here, "-c", "nginx.conf"]);
    broker.serves(&mut command);
    let nginx = stage.serve(command, port);

    // Without Underpass: what goes fast is what nginx says to PHP.
    let url = format!("http://127.0.0.1:{port}/page.php");
    let said = stage.output(stage.plain("wrk", ["-t", "1", "-c", "4", "-d", "3s", "--timeout", "10s", &url]));
    assert!(
        said.contains("Requests/sec") && !said.contains("Socket errors") && !said.contains("Non-2xx"),
        "{said}\n{}{}",
        nginx.said(),
        fpm.said()
    );
    nginx.stop(libc::SIGQUIT);
    fpm.stop(libc::SIGTERM);
    for program in ["nginx", "php-fpm"] {
        stage.run.assert_fast(program);
    }
    stage.finish();
}
