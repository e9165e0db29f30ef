//! What an image without the library finds in place of a connection that it would read with a gap.
//!
//! Where something unread cannot be put on the kernel path, and other processes go on reading the ring, the image would find in
//! the socket what comes behind that. It may have inherited the connection for no purpose, so that is not reset. The image gets
//! another socket under the same number, one that was never connected: receives and sends fail there. Its standard output and
//! standard error stay the connection, since programs write to these, and the kernel path takes that.
//!
//! A process that executes the image puts the socket into its own descriptors for that moment, and so does a child of vfork. A
//! process that spawns it must keep its descriptors, so file actions do it, behind those of the program. What libc spawns in
//! wordexp(3) has no file actions of ours: it does not inherit the connection.

use super::file_actions::{Action, FileActions, LongerList};
use super::{Execution, LEFT, Pages, inherited, stays_open};
use crate::connection::Connection;
use crate::memory::Reserved;
use libc::posix_spawn_file_actions_t;
use underpass_segment::kernel;

/// The lowest number for what is kept: not standard input, output or error, where these are closed.
const FIRST: i32 = 3;

fn is_output(fd: i32) -> bool {
    matches!(fd, libc::STDOUT_FILENO | libc::STDERR_FILENO)
}

/// What is done so that the image does not have the connections.
pub enum StandIns {
    /// Something is done to the descriptors of this process, until this is dropped.
    InPlace { _list: WithheldList },
    /// The image is spawned with these file actions, which duplicate the socket.
    Actions { list: LongerList, _socket: Option<Unconnected> },
}

impl StandIns {
    /// For what the image inherits and would read with a gap; `None` if there is no such connection, or it is reset.
    pub fn for_image(how: Execution) -> Option<StandIns> {
        StandIns::made(how, |count| match how {
            Execution::Spawned(actions) => StandIns::by_actions(how, actions, count),
            _ => StandIns::in_place(how, count, |_| true),
        })
    }

    /// The same for a program that libc spawns in a function of its own. Since this process goes on with its descriptors meanwhile,
    /// only standard input is replaced.
    pub fn for_spawn_of_libc() -> Option<StandIns> {
        let how = Execution::Spawned(FileActions::NONE);
        StandIns::made(how, |count| StandIns::in_place(how, count, |fd| fd == libc::STDIN_FILENO))
    }

    /// `make` is told how many descriptors there are, and resets the connections if it cannot.
    fn made(how: Execution, make: impl FnOnce(usize) -> Option<StandIns>) -> Option<StandIns> {
        let mut count = 0;
        for_each_out_of_reach(how, |_| count += 1);
        let made = if count > 0 { make(count) } else { None };
        if made.is_none() && count > 0 {
            for_each_out_of_reach(how, |it| it.reset());
        }
        made
    }

    fn in_place(how: Execution, count: usize, replaces: impl Fn(i32) -> bool) -> Option<StandIns> {
        WithheldList::of(how, count, replaces).map(|list| StandIns::InPlace { _list: list })
    }

    /// The file actions to spawn the image with, where they are others than the program's.
    pub fn actions(&self) -> Option<*const posix_spawn_file_actions_t> {
        match self {
            StandIns::Actions { list, .. } => Some(list.as_ptr()),
            StandIns::InPlace { .. } => None,
        }
    }

    /// So many descriptors at first; `None` without memory, where nothing can stand in for standard input, and where this libc
    /// keeps file actions in another way.
    fn by_actions(how: Execution, actions: FileActions, count: usize) -> Option<StandIns> {
        // An action that closes all from a number on would close the socket.
        let at = actions.all()?.take_while(|it| !matches!(it, Action::CloseFrom(_))).count();
        let is_used_later = actions.all()?.skip(at).any(|it| matches!(it, Action::Duplicate { .. }));
        let mut places = Places(Reserved::new(count + at)?);
        for_each_out_of_reach(how, |it| places.add(it.fd, stays_open(it.fd)));
        actions.all()?.take(at).for_each(|it| places.heed(it));
        let socket = Unconnected::apart_from(actions);
        let mut more = Reserved::new(places.0.items().len())?;
        for &Place { fd, is_inherited } in places.0.items() {
            if is_output(fd) || !is_inherited && !is_used_later {
                continue;
            }
            more.push(match &socket {
                Some(socket) => Action::Duplicate { from: socket.0, to: fd },
                // Another file that the image opens would become its standard input.
                None if fd == libc::STDIN_FILENO => return None,
                None => Action::Close(fd),
            });
        }
        let list = actions.with(at, more.items())?;
        Some(StandIns::Actions { list, _socket: socket })
    }
}

fn for_each_out_of_reach(how: Execution, mut what: impl FnMut(Connection)) {
    inherited(how, |it| {
        if it.has_unread_out_of_reach() {
            what(it);
        }
    });
}

/// Under which numbers a process that is being spawned has the connections.
struct Places(Reserved<Place>);

#[derive(Clone, Copy)]
struct Place {
    fd: i32,
    is_inherited: bool,
}

impl Places {
    fn add(&mut self, fd: i32, is_inherited: bool) {
        self.0.push(Place { fd, is_inherited });
    }

    fn remove(&mut self, fd: i32) {
        self.0.retain(|it| it.fd != fd);
    }

    /// What `action` does to them.
    fn heed(&mut self, action: Action) {
        match action {
            Action::Duplicate { from, to } => {
                let is_connection = self.0.items().iter().any(|it| it.fd == from);
                self.remove(to);
                if is_connection {
                    self.add(to, true);
                }
            }
            Action::Close(fd) | Action::Open(fd) => self.remove(fd),
            Action::CloseFrom(from) => self.0.retain(|it| it.fd < from),
            Action::ChangeFolder | Action::Other => {}
        }
    }
}

/// A socket that was never connected, closed in an executed program.
pub struct Unconnected(i32);

impl Unconnected {
    /// `None` where no descriptor is free.
    fn new() -> Option<Unconnected> {
        kernel::unconnected_socket().map(Unconnected)
    }

    /// The same under a number that the actions leave alone.
    fn apart_from(actions: FileActions) -> Option<Unconnected> {
        let socket = Unconnected::new()?;
        let highest = actions.all()?.filter_map(Action::highest).max();
        match highest {
            Some(highest) if socket.0 <= highest => kernel::duplicate(socket.0, highest + 1).map(Unconnected),
            _ => Some(socket),
        }
    }
}

impl Drop for Unconnected {
    fn drop(&mut self) {
        kernel::close(self.0);
    }
}

/// Descriptors of this process without the connections behind them. They are as they were when this is dropped: since the execution
/// has failed then, or libc has spawned what it wanted.
pub struct WithheldList {
    list: Reserved<Withheld>,
    /// By which the socket in their place is told from what another thread has opened since.
    stand_in: Option<u64>,
}

/// A descriptor of a connection that the image does not have.
enum Withheld {
    /// It is another socket's; `kept` is another descriptor of the connection, which the execution closes.
    Replaced { fd: i32, kept: i32 },
    /// It is closed in the image. `cookie` says whether it is the connection's still.
    Closed { fd: i32, cookie: u64 },
}

impl WithheldList {
    /// So many at most; `None` without memory. Those that `replaces` names are replaced, if a descriptor is free, the others closed
    /// in the image.
    fn of(how: Execution, count: usize, replaces: impl Fn(i32) -> bool) -> Option<WithheldList> {
        let mut list = Reserved::new(count)?;
        let socket = Unconnected::new();
        let stand_in = socket.as_ref().and_then(|socket| kernel::cookie(socket.0).ok());
        for_each_out_of_reach(how, |it| {
            if is_output(it.fd) {
                return;
            }
            let socket = socket.as_ref().filter(|_| replaces(it.fd) && list.has_room());
            match socket.and_then(|socket| Withheld::by(it.fd, socket)) {
                Some(it) => {
                    list.push(it);
                }
                // Another file that the image opens would become its standard input.
                None if it.fd == libc::STDIN_FILENO => it.reset(),
                None => {
                    kernel::set_inherited(it.fd, false);
                    list.push(Withheld::Closed { fd: it.fd, cookie: kernel::cookie(it.fd).unwrap_or(0) });
                }
            }
        });
        if how == Execution::Borrowed {
            let (memory, len) = list.memory();
            LEFT.set(Some(Pages { memory, len }));
        }
        Some(WithheldList { list, stand_in })
    }
}

impl Drop for WithheldList {
    fn drop(&mut self) {
        LEFT.set(None);
        let is = |fd: i32, cookie: Option<u64>| cookie.is_some() && kernel::cookie(fd).ok() == cookie;
        for it in self.list.items() {
            match *it {
                Withheld::Replaced { fd, kept } => {
                    if is(fd, self.stand_in) {
                        kernel::duplicate_onto(kept, fd);
                    }
                    kernel::close(kept);
                }
                Withheld::Closed { fd, cookie } => {
                    if is(fd, Some(cookie)) {
                        kernel::set_inherited(fd, true);
                    }
                }
            }
        }
    }
}

impl Withheld {
    /// The connection's descriptor is the socket's from now on; `None` without room to keep the connection.
    fn by(fd: i32, socket: &Unconnected) -> Option<Withheld> {
        let kept = kernel::duplicate(fd, FIRST)?;
        let is_replaced = kernel::duplicate_onto(socket.0, fd);
        if !is_replaced {
            kernel::close(kept);
        }
        is_replaced.then_some(Withheld::Replaced { fd, kept })
    }
}
