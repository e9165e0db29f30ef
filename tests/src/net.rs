//! Ports of servers.

use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use crate::group::Group;

/// A port of 127.0.0.1 that was free a moment ago.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    listener.local_addr().expect("its address").port()
}

/// Waits until something listens on `port`, without connecting to it; fails when `server` ends first.
pub fn await_listening(server: &mut Group, port: u16) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_listening(port) {
        if let Some(status) = server.wait(Duration::from_millis(10)) {
            panic!("the server ended with {status}:\n{}", server.said());
        }
        assert!(Instant::now() < deadline, "no server on port {port}:\n{}{}", server.said(), server.where_it_is());
    }
}

fn is_listening(port: u16) -> bool {
    // Columns: number, local address:port, remote address:port, state; 0A is LISTEN (proc_net_tcp.txt).
    let wanted = format!(":{port:04X}");
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(|table| fs::read_to_string(table).unwrap_or_default());
    tables.iter().flat_map(|table| table.lines()).any(|line| {
        let columns: Vec<&str> = line.split_whitespace().take(4).collect();
        columns.len() == 4 && columns[1].ends_with(&wanted) && columns[3] == "0A"
    })
}
