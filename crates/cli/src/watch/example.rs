//! Connections for unit tests.

use underpass_segment::end::Stage;
use underpass_segment::reason::Reason;
use underpass_segment::watch::{Seen, Way};

use super::processes::NamedProcess;
use super::sockets::Socket;
use super::{Connection, Names, View};

/// A connection of process 7, which has carried so many bytes each way by the ring.
pub fn connection(fd: u32, bytes: u64, reason: Option<Reason>) -> Connection {
    let socket = Socket {
        local: format!("127.0.0.1:{}", 1000 + fd).parse().unwrap(),
        peer: "127.0.0.1:80".parse().unwrap(),
        state: "ESTAB",
        cookie: fd.into(),
        inode: fd.into(),
        user: 1000,
        queues: [0; 2],
        carried: [0; 2],
    };
    let holders = vec![NamedProcess { pid: 7, name: "web".into(), fd: Some(fd) }];
    Connection { socket, holders, end: Some(end(fd, bytes, reason)), reason, held: false, unread: [None; 2] }
}

/// The end of such a connection.
pub fn end(fd: u32, bytes: u64, reason: Option<Reason>) -> Seen {
    let fast = reason.is_none();
    let way = Way { fast, ring_bytes: bytes, kernel_bytes: 0, position: 0 };
    Seen {
        user: 1000,
        cookie: fd.into(),
        other_cookie: 0,
        stage: if fast { Stage::Joined } else { Stage::Pinned },
        reason: reason.unwrap_or(Reason::Young),
        processes: vec![7],
        held: false,
        pinned: !fast,
        ring_size: None,
        sending: way,
        receiving: way,
        bells: 0,
        waits: 0,
        sleeps: 0,
        mean_wait_ns: 0,
    }
}

/// A view in which process 7 has these connections.
pub fn view(connections: Vec<Connection>) -> View {
    View { connections, processes: Names::from([(7, "web".into())]) }
}
