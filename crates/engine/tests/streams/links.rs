//! Class 4 over links of every kind, of which the ends may have different ones; and for long, while anything happens to
//! packets.

use super::host::{Address, End, PATIENCE, over, stream};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};
use underpass_engine::wire::llc::Mac;
use underpass_link::Link;
use underpass_link::arena::Arena;
use underpass_link::driver::Driver;
use underpass_link::ethernet::Ethernet;
use underpass_link::faults::Odds;
use underpass_link::interface::Interface;
use underpass_link::rig::{Cable, INTERFACE};
use underpass_link::udp::{self, Udp};
use underpass_link::xdp;

/// How an end of a cable speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// By a UDP socket.
    Socket,
    /// By IP in Ethernet, over this driver.
    Ip(Driver),
    /// By LLC in Ethernet, over this driver.
    Llc(Driver),
}

/// TPDUs that are sent over each kind of link, unless `UNDERPASS_TEST_TPDUS` says how many; and octets of one.
const TPDUS: usize = 20_000;
const PIECE: usize = 200;

/// Waits until a cable carries packets: for a while after it was laid the kernel throws them away.
pub fn until_up(cable: &Cable) {
    let socket = |at: usize| {
        let open = || {
            cable.ends[at].enter().expect("the namespace can be entered");
            UdpSocket::bind(SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1 + at as u8)), 701))
                .expect("it is free")
        };
        thread::scope(|scope| scope.spawn(open).join().expect("it does not panic"))
    };
    let [one, other] = [socket(0), socket(1)];
    other.set_read_timeout(Some(Duration::from_millis(10))).expect("it is a socket");
    let begin = Instant::now();
    loop {
        let _ = one.send_to(&[], other.local_addr().expect("it is bound"));
        if other.recv(&mut []).is_ok() {
            return;
        }
        assert!(begin.elapsed() < PATIENCE, "the cable carries nothing");
    }
}

/// Both ends over a cable of their own, or `None`, said aloud, where none can be had.
fn ends(kinds: [Kind; 2], odds: Odds) -> Option<(Cable, [End; 2])> {
    let cable = Cable::new(1500).inspect_err(|error| println!("SKIPPED: {error}")).ok()?;
    until_up(&cable);
    let ends = [0, 1].map(|at| over(odds, 7 + at as u64, |arena| open(&cable, at, kinds[at], arena)));
    Some((cable, ends))
}

pub fn address(at: usize) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, 9, 0, 1 + at as u8)), 700)
}

/// Opens an end of a cable.
pub fn open(cable: &Cable, at: usize, kind: Kind, arena: &Arena) -> (Address, Box<dyn Link>) {
    let open = || -> (Address, Box<dyn Link>) {
        cable.ends[at].enter().expect("the namespace can be entered");
        let config = xdp::Config::default();
        match kind {
            Kind::Socket => {
                let link = Udp::open(address(at), arena, &udp::Config::default()).expect("it is free");
                (Address::Ip(address(at)), Box::new(link))
            }
            Kind::Ip(driver) => {
                let link = Ethernet::open(driver, INTERFACE, address(at), arena, &config).expect("it is to be had");
                (Address::Ip(address(at)), Box::new(link))
            }
            Kind::Llc(driver) => {
                let link = driver.open(INTERFACE, arena, &config).expect("it is to be had").link;
                let own = Interface::named(INTERFACE).expect("it is there").address().expect("it has one");
                (Address::Mac(Mac(own)), link)
            }
        }
    };
    thread::scope(|scope| scope.spawn(open).join().expect("it does not panic"))
}

/// A host on its interface, past the kernel or not, and one on a socket: either sends, and packets are lost.
#[test]
fn hosts_of_different_links_understand_each_other() {
    let odds = Odds { loss: 0.01, reordering: 0.01, ..Odds::default() };
    let [xdp, packet] = [Driver::Auto, Driver::Packet].map(Kind::Ip);
    for kinds in
        [[xdp, Kind::Socket], [Kind::Socket, xdp], [packet, Kind::Socket], [Kind::Socket, packet], [xdp, packet]]
    {
        let Some((_cable, [from, to])) = ends(kinds, odds) else { return };
        let (_, took) = stream(from, to, 1 << 20, usize::MAX, |_, _, _| {});
        println!("{kinds:?}: {took:?}");
    }
}

/// Packets are lost, repeated, changed and overtaken: nothing of the stream is, no buffer is lost, and memory does not
/// grow.
#[test]
fn soak() {
    let wanted = std::env::var("UNDERPASS_TEST_TPDUS").ok();
    let tpdus = wanted.as_ref().map_or(TPDUS, |it| it.parse().expect("a number of TPDUs"));
    let odds = Odds { loss: 0.005, duplication: 0.005, corruption: 0.005, reordering: 0.005, ..Odds::default() };
    let kinds = [
        Kind::Socket,
        Kind::Ip(Driver::Auto),
        Kind::Ip(Driver::Packet),
        Kind::Llc(Driver::Auto),
        Kind::Llc(Driver::Packet),
    ];
    let only = std::env::var("UNDERPASS_TEST_LINK").unwrap_or_default();
    for kind in kinds.into_iter().filter(|kind| format!("{kind:?}").contains(&only)) {
        let Some((_cable, [from, to])) = ends([kind; 2], odds) else { return };
        let (mut first, mut last) = (None, 0);
        let (sent, took) = stream(from, to, tpdus * PIECE, PIECE, |_, _, _| {
            last = resident();
            first.get_or_insert(last);
        });
        let grown = last.saturating_sub(first.unwrap_or(last));
        println!("{kind:?}: {sent} DTs in {took:?}, {grown} KiB more than in the beginning");
        assert!(sent >= tpdus as u64);
        // Other tests of this process have memory too, unless this runs by itself and for long.
        assert!(wanted.is_none() || grown < 4096, "{grown} KiB");
    }
}

/// Memory of this process, in KiB.
fn resident() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs is there");
    let line = status.lines().find_map(|it| it.strip_prefix("VmRSS:")).expect("the kernel says so");
    line.trim().trim_end_matches(" kB").trim().parse().expect("a number")
}
