//! The library's own system calls, which bypass libc: libc's calls belong to the program.

mod code;
mod copies;
mod descriptor;
mod diag;
mod memory;
mod numbers;
mod proc;
mod process;
mod signals;
mod socket;
mod tag;

pub use code::*;
pub use copies::*;
pub use descriptor::*;
pub use diag::*;
pub use memory::*;
pub use numbers::*;
pub use process::*;
pub use signals::*;
pub use socket::*;
pub use tag::*;

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn pair(host: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    #[test]
    fn the_peer_is_found_by_the_mirrored_addresses() {
        for host in ["127.0.0.1", "::1"] {
            let (client, server) = pair(host);
            let found = peer(client.as_raw_fd()).unwrap();
            assert_eq!(found.cookie, cookie(server.as_raw_fd()).unwrap());
            assert_eq!(found.uid, user_id());
            assert_eq!(socket_inode(process_id(), server.as_raw_fd()), Some(found.inode.into()));
            assert_eq!(peer(server.as_raw_fd()).unwrap().cookie, cookie(client.as_raw_fd()).unwrap());
        }
    }

    #[test]
    fn open_descriptors_are_listed() {
        let files: Vec<_> = (0..300).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
        let mut listed = std::collections::BTreeSet::new();
        assert!(for_each_descriptor(|fd| assert!(listed.insert(fd), "{fd} twice")));
        assert!(files.iter().all(|file| listed.contains(&file.as_raw_fd())));
    }

    #[test]
    fn a_mapped_address_finds_its_plain_peer() {
        let listener = TcpListener::bind(("::", 0)).unwrap();
        let client = TcpStream::connect(("127.0.0.1", listener.local_addr().unwrap().port())).unwrap();
        let server = listener.accept().unwrap().0;
        assert_eq!(peer(server.as_raw_fd()).unwrap().cookie, cookie(client.as_raw_fd()).unwrap());
        assert_eq!(peer(client.as_raw_fd()).unwrap().cookie, cookie(server.as_raw_fd()).unwrap());
    }

    #[test]
    fn both_ends_agree_on_positions() {
        let (mut client, server) = pair("127.0.0.1");
        let mut sent = 0;
        for n in [1usize, 700, 65_000, 3] {
            client.write_all(&vec![1; n]).unwrap();
            sent += n as u64;
            while outq(client.as_raw_fd()).unwrap() != 0 {
                std::thread::yield_now();
            }
            let sender = counters(client.as_raw_fd()).unwrap();
            let reader = counters(server.as_raw_fd()).unwrap();
            assert_eq!(sender.sent_once, sent);
            assert_eq!(sender.acked, sent + 1, "the active opener's SYN counts one");
            assert_eq!(reader.received, sent);
            assert_eq!(u64::from(inq(server.as_raw_fd()).unwrap()), sent);
        }
        assert_eq!(sender_acked_when_passive(&server), 0);
    }

    /// As much as any socket may have, and not less than it had: `SO_SNDBUFFORCE` may have given it more.
    #[test]
    fn a_send_buffer_only_grows() {
        let size = |fd| send_buffer(fd).unwrap().0;
        let (small, _others) = pair("127.0.0.1");
        let small = small.as_raw_fd();
        set_int_option(small, libc::SOL_SOCKET, libc::SO_SNDBUF, 8192).unwrap();
        enlarge_send_buffer(small);
        let most = size(small);
        assert!(most >= 2 * 16384, "{most}");
        let (large, _others) = pair("127.0.0.1");
        let large = large.as_raw_fd();
        set_int_option(large, libc::SOL_SOCKET, libc::SO_SNDBUF, i32::MAX / 2).unwrap();
        assert_eq!(size(large), most, "no program gets more");
        // Where this process may not force it, there is no larger buffer to keep.
        let _ = set_int_option(large, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, i32::MAX / 4);
        let before = size(large);
        enlarge_send_buffer(large);
        assert_eq!(size(large), before);
    }

    #[test]
    fn a_tag_goes_with_the_socket() {
        for host in ["127.0.0.1", "::1"] {
            let (client, server) = pair(host);
            let again = client.try_clone().unwrap();
            assert!(!is_tagged(client.as_raw_fd()) && !is_tagged(server.as_raw_fd()));
            set_tagged(client.as_raw_fd(), true);
            assert!(is_tagged(again.as_raw_fd()) && !is_tagged(server.as_raw_fd()));
            set_tagged(again.as_raw_fd(), false);
            assert!(!is_tagged(client.as_raw_fd()));
        }
    }

    fn sender_acked_when_passive(server: &TcpStream) -> u64 {
        counters(server.as_raw_fd()).unwrap().acked
    }
}
