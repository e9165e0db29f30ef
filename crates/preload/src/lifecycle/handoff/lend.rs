//! A socket that is passed to another process over a Unix socket (SCM_RIGHTS).

use super::LIBRARY;
use crate::connection::Connection;
use crate::guest::{family, filter};
use crate::lifecycle::images::images_awaited_until;
use underpass_segment::end::{IMAGE_WITHIN_NS, Stage};
use underpass_segment::meeting::Meeting;
use underpass_segment::raw::Errno;
use underpass_segment::reason::Reason;
use underpass_segment::{clock, kernel};

/// The most descriptors that a message carries (SCM_MAX_FD of the kernel).
const MOST: usize = 253;

/// The process that receives the sockets that one message passes over a Unix socket.
pub struct Receiver {
    unix_socket: i32,
    /// Whether it can come to the rings, once that was asked.
    comes_to_rings: Option<bool>,
    /// The ends that were lent to it, so many of them. The kernel refuses a message with more.
    lent: [u32; MOST],
    lent_count: usize,
}

impl Receiver {
    /// The process at the other end of `unix_socket`.
    pub fn of(unix_socket: i32) -> Receiver {
        Receiver { unix_socket, comes_to_rings: None, lent: [0; MOST], lent_count: 0 }
    }

    /// A socket is about to be passed: a process of the same family finds its end again, any other sees plain TCP.
    /// False if the receiver would read it with a gap: then it must not have that socket.
    pub fn may_have(&mut self, connection: &Connection) -> bool {
        connection.stop_asking();
        connection.end.pin(Reason::Passed);
        if connection.end.stage() != Stage::Joined {
            return true;
        }
        if filter::is_confined() {
            // An entry in the directory for the receiver would take further system calls.
            return connection.hand_over(Reason::Passed);
        }
        match self.guess(connection) {
            // A process of the same family reads the ring. A process that cannot would wait for the bytes in the ring,
            // or read those behind them.
            Guess::Relative if !connection.has_unread() || self.comes_to_rings() => connection.pin(Reason::Passed),
            Guess::Unknown => connection.offer(Reason::Passed),
            guess @ (Guess::Relative | Guess::Stranger) => {
                if !connection.hand_over(Reason::Passed) {
                    return false;
                }
                if matches!(guess, Guess::Stranger) && !connection.has_unread_out_of_reach() {
                    // It finds plain TCP, and never comes for the end: nothing shows when it closes the socket.
                    connection.end.owners.note_outsider();
                    return true;
                }
            }
        }
        if connection.has_unread_out_of_reach() && !self.comes_to_rings() {
            return false;
        }
        connection.end.owners.lend_passed(clock::nanoseconds() + IMAGE_WITHIN_NS);
        if let Some(place) = self.lent.get_mut(self.lent_count) {
            *place = connection.index;
            self.lent_count += 1;
        }
        let lend = |meeting: &mut Meeting| meeting.lend(connection.end, connection.index, connection.fd);
        // Without the entry the receiver cannot find the end.
        family::with_meeting_surely(lend) == Some(true) || connection.hand_over(Reason::Passed)
    }

    /// The message was not sent: nobody comes for what it was to pass.
    pub fn take_back(&self) {
        let Some(family) = family::existing() else { return };
        for &index in &self.lent[..self.lent_count] {
            family.end(index).owners.take_back_passed();
        }
    }

    /// Whether all processes that have the other end of the Unix socket by now [come to rings](comes_to_rings), as far
    /// as /proc tells. Which process will accept an end that no process has yet is not known.
    fn comes_to_rings(&mut self) -> bool {
        if let Some(known) = self.comes_to_rings {
            return known;
        }
        let (mut some, mut all) = (false, true);
        if let Some(inode) = kernel::unix_peer(self.unix_socket) {
            kernel::for_each_holder(inode, |pid| {
                if all && let Some(comes) = comes_to_rings(pid, inode) {
                    (some, all) = (true, comes);
                }
            });
        }
        *self.comes_to_rings.insert(some && all)
    }

    /// Guesses that the process that made the other end of the Unix socket receives what is sent over it. A process
    /// that is gone may have left the socket to its children, and this process may have left it to the programs that
    /// its children executed.
    fn guess(&self, connection: &Connection) -> Guess {
        let Some(family) = family::existing() else { return Guess::Stranger };
        let can_attach = || family::with_meeting_surely(|meeting| meeting.can_attach_again()) == Some(true);
        if connection.end.is_brokered() && !can_attach() {
            return Guess::Stranger;
        }
        let maker = maker_of_peer(self.unix_socket);
        let asked = maker.map_or(Ok(true), |pid| kernel::has_segment(pid, family.id()));
        match asked {
            Ok(true) | Err(Errno(libc::ENOENT)) if family.has_others(family::member()) => Guess::Relative,
            Ok(true)
                if maker == Some(kernel::process_id())
                    && kernel::unix_peer(self.unix_socket).is_some_and(kernel::has_alone) =>
            {
                Guess::Relative
            }
            Ok(true) | Err(Errno(libc::ENOENT)) => Guess::Unknown,
            _ if maker.is_some_and(|pid| kernel::has_file(pid, LIBRARY)) => Guess::Unknown,
            _ => Guess::Stranger,
        }
    }
}

/// The process that will receive what is passed, as far as can be told.
enum Guess {
    /// A process that has this family's ends; perhaps this process itself.
    Relative,
    /// A process that has none of them yet, and may know how to get them.
    Unknown,
    /// A process without the library.
    Stranger,
}

fn maker_of_peer(unix_socket: i32) -> Option<i32> {
    kernel::maker_of_peer(unix_socket).ok().filter(|&pid| pid > 0)
}

/// Whether process `pid` is of this user and this IPC namespace, uses this very library, and has no seccomp filter of
/// its own. `None` if it does not have the socket with this inode number any more: a process that ends lets go of its
/// memory first.
fn comes_to_rings(pid: i32, inode: u64) -> Option<bool> {
    /// So many times in a row a process must be found not to come: a process that ends, or executes a program, may be
    /// asked in the middle of that.
    const REFUSALS: u32 = 3;
    let until = images_awaited_until();
    let uses_library = || kernel::maps_same_file(pid, (&raw const crate::UNDERPASS_LIBRARY).addr(), until);
    let is_able = || {
        kernel::ipc_namespace_of(pid) == kernel::ipc_namespace()
            && kernel::user_of(pid) == Some(kernel::user_id())
            && kernel::began_with(pid, "UNDERPASS_MODE=off") == Some(false)
            && kernel::has_same_filters(pid)
    };
    let mut refusals = 0;
    loop {
        let uses = uses_library();
        if uses == Some(true) && is_able() {
            return Some(true);
        }
        if !kernel::is_holder(pid, inode) {
            return None;
        }
        refusals = if uses.is_some() { refusals + 1 } else { 0 };
        if refusals >= REFUSALS || clock::nanoseconds() > until {
            return Some(false);
        }
        clock::nap(100);
    }
}
