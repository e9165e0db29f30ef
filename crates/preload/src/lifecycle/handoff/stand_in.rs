//! What an image without the library finds in place of a connection that it would read with a gap.
//!
//! Where unread bytes cannot be put on the kernel path, and other processes go on reading the ring, the image would
//! read from the socket what comes after those bytes. The image may have inherited the connection without a purpose, so
//! the connection is not reset. Instead the image gets another socket under the same number, which was never connected:
//! receives and sends fail there. Its standard output and standard error stay the connection, because programs write to
//! these, and the kernel path can take that.
//!
//! A process of one thread that executes the image puts the socket into its own descriptors for that moment, and so
//! does a child of vfork. Where other threads use the descriptors, the image does not inherit the connection. A process
//! that spawns the image goes on with its descriptors, so file actions replace them, behind those of the program.

use super::environment::{Pages, note_child_packed};
use super::file_actions::{Action, FileActions, LongerList};
use super::inherited::{inherited, stays_open};
use super::{Execution, NEW};
use crate::connection::Connection;
use crate::guest::memory::Reserved;
use libc::posix_spawn_file_actions_t;
use underpass_segment::kernel;

/// The lowest number for what is kept: not standard input, output or error, where these are closed.
const FIRST: i32 = 3;

/// What is done so that the image does not have the connections.
pub enum StandIns {
    /// This process's own descriptors are replaced until this is dropped.
    InPlace { _list: WithheldList },
    /// The image is spawned with these file actions, which duplicate the socket.
    Actions { list: LongerList, _socket: Option<Unconnected> },
}

impl StandIns {
    /// Stand-ins for the connections that the image inherits and would read with a gap; `None` if there are none, or
    /// all are reset.
    pub fn for_image(how: Execution<'_>) -> Option<StandIns> {
        let mut count = 0;
        for_each_out_of_reach(how, |_| count += 1);
        if count == 0 {
            return None;
        }
        // Other threads may make more of them meanwhile.
        let most = count + NEW;
        let made = match how {
            Execution::Spawned(actions) => StandIns::by_actions(how, actions, most),
            _ => WithheldList::of(how, most).map(|list| StandIns::InPlace { _list: list }),
        };
        if made.is_none() {
            for_each_out_of_reach(how, |it| it.reset());
        }
        made
    }

    /// The file actions to spawn the image with, where they differ from the program's.
    pub fn actions(&self) -> Option<*const posix_spawn_file_actions_t> {
        match self {
            StandIns::Actions { list, .. } => Some(list.as_ptr()),
            StandIns::InPlace { .. } => None,
        }
    }

    /// `None` without memory, where the actions are not known, and where an action duplicates a connection after an
    /// action that closes all descriptors from a number on, the stand-in's socket too.
    fn by_actions(how: Execution<'_>, actions: &FileActions, most: usize) -> Option<StandIns> {
        let at = actions.all()?.take_while(|it| !matches!(it, Action::CloseFrom(_))).count();
        let mut places = Places(Reserved::even_confined(most + at)?);
        let mut has_all = true;
        for_each_out_of_reach(how, |it| {
            has_all &= places.0.push(Place { fd: it.fd, is_inherited: stays_open(it.fd), whose: it });
        });
        if !has_all {
            return None;
        }
        actions.all()?.take(at).for_each(|it| places.heed(it));
        if places.are_duplicated(actions.all()?.skip(at)) {
            return None;
        }
        let socket = Unconnected::apart_from(actions);
        let limit = kernel::limit_of(libc::RLIMIT_NOFILE);
        let mut more = Reserved::even_confined(places.0.items().len())?;
        for Place { fd, whose, .. } in places.inherited().filter(|it| !is_output(it.fd)) {
            match &socket {
                Some(socket) if (*fd as u64) < limit => {
                    more.push(Action::Duplicate { from: socket.0, to: *fd });
                }
                // Another file that the image opens would become its standard input.
                _ if *fd == libc::STDIN_FILENO => whose.reset(),
                _ => {
                    more.push(Action::Close(*fd));
                }
            }
        }
        let list = actions.with(at, more.items(), socket.as_ref().map(|it| it.0))?;
        Some(StandIns::Actions { list, _socket: socket })
    }
}

fn is_output(fd: i32) -> bool {
    matches!(fd, libc::STDOUT_FILENO | libc::STDERR_FILENO)
}

fn for_each_out_of_reach(how: Execution<'_>, mut what: impl FnMut(Connection)) {
    // A spawn's file actions decide which of its numbers are standard output and error.
    let is_spawned = matches!(how, Execution::Spawned(_));
    inherited(how, |it| {
        if (is_spawned || !is_output(it.fd)) && it.has_unread_out_of_reach() {
            what(it);
        }
    });
}

/// The numbers under which a process that is being spawned has the connections.
struct Places<T>(Reserved<Place<T>>);

#[derive(Clone, Copy)]
struct Place<T> {
    fd: i32,
    is_inherited: bool,
    whose: T,
}

impl<T: Copy> Places<T> {
    fn remove(&mut self, fd: i32) {
        self.0.retain(|it| it.fd != fd);
    }

    /// What `action` does to them.
    fn heed(&mut self, action: Action) {
        match action {
            Action::Duplicate { from, to } => {
                let source = self.0.items().iter().find(|it| it.fd == from).copied();
                self.remove(to);
                if let Some(source) = source {
                    self.0.push(Place { fd: to, is_inherited: true, ..source });
                }
            }
            Action::Close(fd) | Action::Open(fd) => self.remove(fd),
            Action::CloseFrom(from) => self.0.retain(|it| it.fd < from),
            Action::ChangeFolder | Action::Other => {}
        }
    }

    /// Whether any of these actions, the first of which closes all descriptors from a number on, duplicates a
    /// connection.
    fn are_duplicated(&self, actions: impl Iterator<Item = Action>) -> bool {
        let mut closed_from = i32::MAX;
        for action in actions {
            match action {
                Action::CloseFrom(from) => closed_from = closed_from.min(from),
                Action::Duplicate { from, .. }
                    if self.0.items().iter().any(|it| it.fd == from && from < closed_from) =>
                {
                    return true;
                }
                _ => {}
            }
        }
        false
    }

    /// The connections that the program will have.
    fn inherited(&self) -> impl Iterator<Item = &Place<T>> {
        self.0.items().iter().filter(|it| it.is_inherited)
    }
}

/// A socket that was never connected, closed on execution.
pub struct Unconnected(i32);

impl Unconnected {
    /// `None` where no descriptor is free.
    fn new() -> Option<Unconnected> {
        kernel::unconnected_socket().map(Unconnected)
    }

    /// An unconnected socket under a high number, which other threads will hardly get for something else meanwhile, if
    /// one is free there.
    pub fn out_of_the_way() -> Option<Unconnected> {
        kernel::unconnected_socket().map(kernel::moved_out_of_the_way).map(Unconnected)
    }

    /// Its descriptor.
    pub fn fd(&self) -> i32 {
        self.0
    }

    /// An unconnected socket under a number that the actions do not use.
    fn apart_from(actions: &FileActions) -> Option<Unconnected> {
        let socket = Unconnected::new()?;
        if !actions.use_number(socket.0) {
            return Some(socket);
        }
        kernel::duplicate(socket.0, actions.above()?).map(Unconnected)
    }
}

impl Drop for Unconnected {
    fn drop(&mut self) {
        kernel::close(self.0);
    }
}

/// Descriptors of a process that executes the image, with the connections taken out. Dropped, it restores them: the
/// execution has failed.
pub struct WithheldList {
    list: Reserved<Withheld>,
    /// The stand-in's cookie, which tells it from sockets that have been opened since.
    stand_in: Option<u64>,
}

/// A descriptor of a connection that the image does not have.
enum Withheld {
    /// The descriptor is the stand-in's; `kept` is another descriptor of the connection, which the execution closes.
    Replaced { fd: i32, kept: i32 },
    /// The execution closes the descriptor. `cookie` tells whether it is still the connection's.
    Closed { fd: i32, cookie: Option<u64> },
}

impl WithheldList {
    /// A list of at most so many; `None` without memory.
    fn of(how: Execution<'_>, most: usize) -> Option<WithheldList> {
        let mut list = Reserved::even_confined(most)?;
        let may_replace = how.is_borrowed() || kernel::has_one_thread();
        let socket = if may_replace { Unconnected::new() } else { None };
        let stand_in = socket.as_ref().and_then(|socket| kernel::cookie(socket.0).ok());
        for_each_out_of_reach(how, |it| {
            let socket = socket.as_ref().filter(|_| list.has_room());
            match socket.and_then(|socket| Withheld::by(it.fd, socket)) {
                Some(replaced) => {
                    list.push(replaced);
                }
                // Another file that the image opens would become its standard input.
                None if it.fd == libc::STDIN_FILENO => it.reset(),
                None => {
                    list.push(Withheld::Closed { fd: it.fd, cookie: kernel::cookie(it.fd).ok() });
                    kernel::set_inherited(it.fd, false);
                }
            }
        });
        if how.is_borrowed() {
            let (memory, len) = list.memory();
            note_child_packed(Some(Pages { memory, len }));
        }
        Some(WithheldList { list, stand_in })
    }
}

impl Drop for WithheldList {
    fn drop(&mut self) {
        note_child_packed(None);
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
                    if is(fd, cookie) {
                        kernel::set_inherited(fd, true);
                    }
                }
            }
        }
    }
}

impl Withheld {
    /// Makes the connection's descriptor one of `socket`; `None` without room to keep the connection.
    fn by(fd: i32, socket: &Unconnected) -> Option<Withheld> {
        let kept = kernel::duplicate(fd, FIRST)?;
        let is_replaced = kernel::duplicate_onto(socket.0, fd);
        if !is_replaced {
            kernel::close(kept);
        }
        is_replaced.then_some(Withheld::Replaced { fd, kept })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The numbers under which a program has what was number 5, after these actions.
    fn inherited_of_5(is_inherited: bool, actions: &[Action]) -> Vec<i32> {
        let mut places = Places(Reserved::new(16).expect("memory"));
        places.0.push(Place { fd: 5, is_inherited, whose: () });
        actions.iter().for_each(|&it| places.heed(it));
        let mut all: Vec<i32> = places.inherited().map(|it| it.fd).collect();
        all.sort_unstable();
        all
    }

    const fn dup2(from: i32, to: i32) -> Action {
        Action::Duplicate { from, to }
    }

    #[test]
    fn a_connection_is_found_under_every_number_that_it_gets() {
        assert_eq!(inherited_of_5(true, &[]), [5]);
        assert_eq!(inherited_of_5(false, &[]), []);
        assert_eq!(inherited_of_5(false, &[dup2(5, 0), dup2(0, 1), dup2(1, 20)]), [0, 1, 20]);
        assert_eq!(inherited_of_5(false, &[dup2(5, 5)]), [5]);
        // A cycle, in which 5 and 6 change their places.
        assert_eq!(inherited_of_5(true, &[dup2(5, 9), dup2(6, 5), dup2(9, 6), Action::Close(9)]), [6]);
    }

    #[test]
    fn what_is_duplicated_behind_a_closing_of_all_is_seen() {
        let are_duplicated = |actions: &[Action]| {
            let mut places = Places(Reserved::new(16).expect("memory"));
            places.0.push(Place { fd: 1, is_inherited: true, whose: () });
            places.0.push(Place { fd: 5, is_inherited: true, whose: () });
            places.are_duplicated(actions.iter().copied())
        };
        assert!(are_duplicated(&[Action::CloseFrom(3), dup2(1, 0)]));
        assert!(!are_duplicated(&[Action::CloseFrom(3), dup2(0, 2)]));
        assert!(!are_duplicated(&[Action::CloseFrom(3), dup2(5, 0)]));
        assert!(!are_duplicated(&[]));
    }

    #[test]
    fn a_number_that_becomes_something_else_is_the_connection_no_more() {
        assert_eq!(inherited_of_5(true, &[dup2(3, 5)]), []);
        assert_eq!(inherited_of_5(true, &[Action::Open(5)]), []);
        assert_eq!(inherited_of_5(true, &[dup2(5, 0), Action::Close(5)]), [0]);
        assert_eq!(inherited_of_5(true, &[dup2(5, 0), Action::CloseFrom(3)]), [0]);
        assert_eq!(inherited_of_5(true, &[Action::ChangeFolder, Action::Other]), [5]);
    }
}
