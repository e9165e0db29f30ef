//! Ports of servers.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, TcpListener};
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

use crate::group::Group;

/// Ports that the kernel does not choose by itself, unless its range was changed (ip_local_port_range).
const PORTS: Range<u16> = 20_000..32_000;

/// A port that is free on all addresses, and that no other test of this process gets.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // The ports of another test process begin elsewhere.
    let begin = std::process::id().wrapping_mul(97);
    for _ in PORTS {
        let number = begin.wrapping_add(NEXT.fetch_add(1, Relaxed));
        let port = PORTS.start + (number % u32::from(PORTS.end - PORTS.start)) as u16;
        let is_free = |address: IpAddr| match TcpListener::bind((address, port)) {
            Ok(_) => true,
            // There may be no IPv6.
            Err(error) => error.kind() != ErrorKind::AddrInUse,
        };
        if is_free(Ipv4Addr::UNSPECIFIED.into()) && is_free(Ipv6Addr::UNSPECIFIED.into()) {
            return port;
        }
    }
    panic!("no port is free");
}

/// Waits until something listens on `port`, without connecting to it; fails when `server` ends first.
pub fn await_listening(server: &mut Group, port: u16) {
    await_listening_beside("self", server, port);
}

/// Waits until something listens on `port` in the network namespace of the process that /proc has by this name.
pub fn await_listening_beside(process: &str, server: &mut Group, port: u16) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_listening(process, port) {
        if let Some(status) = server.wait(Duration::from_millis(10)) {
            panic!("the server ended with {status}:\n{}", server.said());
        }
        assert!(Instant::now() < deadline, "no server on port {port}:\n{}{}", server.said(), server.where_it_is());
    }
}

fn is_listening(process: &str, port: u16) -> bool {
    // Columns: number, local address:port, remote address:port, state; 0A is LISTEN (proc_net_tcp.txt).
    let wanted = format!(":{port:04X}");
    let table = |name: &str| fs::read_to_string(format!("/proc/{process}/net/{name}")).unwrap_or_default();
    let tables = ["tcp", "tcp6"].map(table);
    tables.iter().flat_map(|table| table.lines()).any(|line| {
        let columns: Vec<&str> = line.split_whitespace().take(4).collect();
        columns.len() == 4 && columns[1].ends_with(&wanted) && columns[3] == "0A"
    })
}
