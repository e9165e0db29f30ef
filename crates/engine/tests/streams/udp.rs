//! Class 4 over UDP sockets: a stream of some megabytes arrives as it was sent, while packets are lost and while the
//! link is replaced under the connection.

use super::host::{Address, End, over, stream};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use underpass_link::Link;
use underpass_link::faults::Odds;
use underpass_link::udp::{self, Udp};

fn end(ip: IpAddr, loss: f64) -> End {
    over(Odds { loss, reordering: loss, ..Odds::default() }, 7, |arena| {
        let link = Udp::open(SocketAddr::new(ip, 0), arena, &udp::Config::default()).expect("every user may open it");
        (Address::Ip(link.local()), Box::new(link))
    })
}

const LOCAL: [IpAddr; 2] = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];

#[test]
fn a_stream_arrives_as_it_was_sent() {
    for ip in LOCAL {
        stream(end(ip, 0.0), end(ip, 0.0), 8 << 20, usize::MAX, |_, _, _| {});
    }
}

#[test]
fn a_stream_arrives_though_packets_are_lost_and_overtaken() {
    for ip in LOCAL {
        stream(end(ip, 0.02), end(ip, 0.02), 2 << 20, usize::MAX, |_, _, _| {});
    }
}

/// Another socket takes the place of the old one at the same port, whatever is on its way.
#[test]
fn a_link_is_replaced_under_a_living_connection() {
    let mut replaced = 0;
    stream(end(LOCAL[0], 0.0), end(LOCAL[0], 0.0), 4 << 20, usize::MAX, |from, to, now| {
        for end in [from, to] {
            // The port is free once the old link is closed, so that one in memory stands in for it meanwhile.
            let nothing: Box<dyn Link> = Box::new(underpass_link::loopback::Loopback::cable(&end.arena, 1500));
            end.host.replace(nothing, now);
            let Address::Ip(local) = end.address else { panic!("it speaks IP") };
            let again = Udp::open(local, &end.arena, &udp::Config::default()).expect("the port is free again");
            end.host.replace(Box::new(again), now);
            replaced += 1;
        }
    });
    assert!(replaced >= 16, "{replaced}");
}
