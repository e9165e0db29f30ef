//! `underpass ss`, `top` and `metrics`: the connections of this user's accelerated programs, or for root of
//! everybody's, put together from what the library's tables, the kernel's list of sockets and /proc say. `underpass ss
//! --stats`, which shows what `run --stats` has counted so far. And `underpass pin`, which moves a connection.

mod asked;
mod counters;
#[cfg(test)]
mod example;
mod metrics;
mod pin;
mod processes;
mod runs;
mod sockets;
mod spaces;
mod ss;
mod top;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;

use underpass_segment::end::Stage;
use underpass_segment::kernel;
use underpass_segment::raw::Errno;
use underpass_segment::reason::Reason;
use underpass_segment::watch::{Seen, Whose};

pub use metrics::metrics;
pub use pin::{pin, unpin};
pub use processes::{Images, name_of};
pub use spaces::{Place, Spaces, enter_ipc};
pub use ss::ss;
pub use top::top;

use processes::{NamedProcess, Processes};
use sockets::Socket;

/// A connection, by its local end.
#[derive(Clone, Debug)]
struct Connection {
    socket: Socket,
    /// The processes that have it, by number and descriptor.
    holders: Vec<NamedProcess>,
    /// What the library knows of it; nothing before it was used.
    end: Option<Seen>,
    /// Why it is on kernel TCP, in at least one direction.
    reason: Option<Reason>,
    /// Whether `underpass pin` holds it.
    held: bool,
    /// Bytes of ring that were sent and not received yet, out and in.
    unread: [Option<u64>; 2],
}

/// The connections of all accelerated programs of this user, or of all users.
#[derive(Debug)]
struct View {
    connections: Vec<Connection>,
    /// The accelerated processes.
    processes: Names,
}

impl View {
    /// What one look finds: the connections of this user, or for root those of all users in all namespaces. What
    /// earlier looks have learnt about processes is not read again.
    fn gather(images: &mut Images) -> anyhow::Result<View> {
        View::of(spaces::whose(), images)
    }

    /// The connections of this user in this process's namespaces, even if the user is root.
    fn gather_own(images: &mut Images) -> anyhow::Result<View> {
        View::of(Whose::User(kernel::user_id()), images)
    }

    fn of(whose: Whose, images: &mut Images) -> anyhow::Result<View> {
        let accelerated = images.accelerated(whose)?;
        let spaces = Spaces::of(whose, accelerated.iter().copied());
        let mut ends = spaces.ends()?;
        let processes = Processes::of(accelerated.into_iter().chain(ends.iter().flat_map(|it| &it.processes).copied()));
        let sockets = spaces.sockets()?;
        leave_out_strangers(&mut ends, &sockets);
        let cookies: Vec<u64> = sockets.iter().map(|it| it.cookie).collect();
        let ordered = spaces.ordered(&cookies)?;
        Ok(View { connections: put_together(&ends, &ordered, &processes, sockets), processes: processes.names() })
    }
}

/// The kernel does not let the tables be looked at.
fn refused(Errno(code): Errno) -> anyhow::Error {
    anyhow::Error::from(io::Error::from_raw_os_error(code))
        .context("cannot attach the tables of the programs (shmat; is the address space limited, ulimit -v?)")
}

/// If tables have several ends for one socket, only those in tables of the socket's own user are believed: other users
/// may have made theirs up.
fn leave_out_strangers(ends: &mut Vec<Seen>, sockets: &[Socket]) {
    let users: HashMap<u64, u32> = sockets.iter().map(|it| (it.cookie, it.user)).collect();
    let is_owners = |end: &Seen| users.get(&end.cookie) == Some(&end.user);
    let known: HashSet<u64> = ends.iter().filter(|end| is_owners(end)).map(|end| end.cookie).collect();
    ends.retain(|end| is_owners(end) || !known.contains(&end.cookie));
}

/// The ends by the cookies of their sockets.
fn by_cookie(ends: &[Seen]) -> HashMap<u64, &Seen> {
    let mut by_cookie: HashMap<u64, &Seen> = HashMap::new();
    for end in ends.iter().filter(|it| it.cookie != 0) {
        // A connection that was handed to another family leaves a plain end behind in the first family's table.
        let is_better = |other: &mut &Seen| end.stage == Stage::Joined && other.stage != Stage::Joined;
        by_cookie
            .entry(end.cookie)
            .and_modify(|it| {
                if is_better(it) {
                    *it = end
                }
            })
            .or_insert(end);
    }
    by_cookie
}

fn put_together(ends: &[Seen], ordered: &[u64], processes: &Processes, sockets: Vec<Socket>) -> Vec<Connection> {
    let by_cookie = by_cookie(ends);
    let mut connections: Vec<Connection> = (sockets.into_iter())
        .filter_map(|socket| {
            let end = by_cookie.get(&socket.cookie).copied();
            let mut holders = processes.holders(socket.inode);
            for &pid in end.into_iter().flat_map(|it| &it.processes) {
                if !holders.iter().any(|it| it.pid == pid) {
                    // The process does not show its descriptors to this command, or has just closed this one.
                    holders.extend(processes.without_descriptor(pid));
                }
            }
            if holders.is_empty() && end.is_none() {
                return None;
            }
            let is_ordered = ordered.contains(&socket.cookie);
            let held = is_ordered || end.is_some_and(|end| end.held);
            let reason = match end {
                // A connection that is to go down to kernel TCP has its reason already.
                Some(end) => Some(end.reason).filter(|_| end.held || !(end.sending.fast && end.receiving.fast)),
                None if is_ordered => Some(Reason::Asked),
                None => common_reason(ends, &holders),
            };
            let other = end.and_then(|it| by_cookie.get(&it.other_cookie).copied());
            let unread = end.map_or([None; 2], |end| unread(end, other));
            let end = end.map(|end| as_the_kernel_counts(end, &socket));
            Some(Connection { socket, holders, end, reason, held, unread })
        })
        .collect();
    let order = |it: &Connection| {
        let first = it.holders.first();
        (first.map(|holder| (holder.pid, holder.fd)), it.socket.local, it.socket.peer)
    };
    connections.sort_by_key(order);
    connections
}

/// What kernel TCP has carried of a connection that was pinned before it went anywhere else. Its process may count no
/// more of it.
fn as_the_kernel_counts(end: &Seen, socket: &Socket) -> Seen {
    let mut end = end.clone();
    if end.stage == Stage::Pinned && end.ring_size.is_none() {
        for (way, carried) in [&mut end.sending, &mut end.receiving].into_iter().zip(socket.carried) {
            way.kernel_bytes = way.kernel_bytes.max(carried);
        }
    }
    end
}

/// Why a connection whose end cannot be told from others of its processes is on kernel TCP, if all of those are for one
/// reason.
fn common_reason(ends: &[Seen], holders: &[NamedProcess]) -> Option<Reason> {
    let is_listed = |end: &&Seen| end.processes.iter().any(|&pid| holders.iter().any(|it| it.pid == pid));
    let mut reasons = ends.iter().filter(|it| it.cookie == 0).filter(is_listed).map(|it| it.reason);
    let first = reasons.next()?;
    reasons.all(|it| it == first).then_some(first)
}

/// What lies in the rings of a connection, out and in, if its other end is known.
fn unread(end: &Seen, other: Option<&Seen>) -> [Option<u64>; 2] {
    let (Some(other), Some(ring_size)) = (other, end.ring_size) else { return [None; 2] };
    let ways = [(&end.sending, &other.receiving), (&other.sending, &end.receiving)];
    ways.map(|(sender, reader)| {
        underpass_segment::watch::unread(sender, reader, ring_size).filter(|_| sender.fast || reader.fast)
    })
}

/// Names of paths as people and scripts read them.
fn path(fast: bool) -> &'static str {
    if fast { "ring" } else { "kernel" }
}

/// Processes by number, each with what it is called.
pub type Names = BTreeMap<u32, String>;
