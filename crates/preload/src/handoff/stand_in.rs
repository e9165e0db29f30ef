//! What an image without the library finds in place of a connection that it would read with a gap.
//!
//! Where something unread cannot be put on the kernel path, and other processes go on reading the ring, the image would find in
//! the socket what comes behind that. It may have inherited the connection for no purpose, so that is not reset. The image gets
//! another socket under the same number, one that was never connected: receives and sends fail there. Its standard output and
//! standard error stay the connection, since programs write to these, and the kernel path takes that.
//!
//! Nobody but the image is to see that. A child of vfork has descriptors of its own. Any other execution or spawn is done
//! [apart](super::apart) from the descriptors of this process.

use super::apart::{Stack, apart};
use super::{Execution, LEFT, Pages, inherited, learn_cookie, stays_open};
use crate::connection::{Connection, Given};
use crate::memory::Reserved;
use underpass_segment::kernel;
use underpass_segment::sync::Relaxed;

/// The lowest number for what is kept: not standard input, output or error, where these are closed.
const FIRST: i32 = 3;

/// Descriptors that the image gets without the connections behind them.
pub enum StandIns {
    /// They are replaced already, in a child of vfork.
    Borrowed { _list: Option<ReplacedList> },
    /// They will be, by a thread that has descriptors of its own.
    Apart { how: Execution, withheld: Reserved<Withheld>, stack: Stack },
}

impl StandIns {
    /// For what the image inherits and would read with a gap; `None` if there is no such connection.
    pub fn for_image(how: Execution) -> Option<StandIns> {
        let mut count = 0;
        for_each_out_of_reach(how, |_| count += 1);
        if count == 0 {
            return None;
        }
        if how == Execution::Borrowed {
            return Some(StandIns::Borrowed { _list: ReplacedList::of(count) });
        }
        let room = Reserved::new(count).zip(Stack::new());
        if room.is_none() {
            reset_out_of_reach(how);
        }
        let (mut withheld, stack) = room?;
        for_each_out_of_reach(how, |it| {
            learn_cookie(&it.connection);
            withheld.push(it);
        });
        Some(StandIns::Apart { how, withheld, stack })
    }

    /// Does `call`, which executes or spawns the image.
    pub fn run<T>(&self, call: impl Fn() -> T) -> T {
        let StandIns::Apart { how, withheld, stack } = self else { return call() };
        apart(stack, || withhold_all(withheld.items()), &call).unwrap_or_else(|| {
            reset_out_of_reach(*how);
            call()
        })
    }
}

/// A descriptor of a connection that the image is not to have.
pub struct Withheld {
    connection: Connection,
    way: Way,
}

/// How it is withheld.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Another socket stands in for it.
    Replaced,
    /// The image does not inherit it, and gets the connection as its standard output or standard error only.
    Closed,
}

/// In a thread that has descriptors of its own.
fn withhold_all(list: &[Withheld]) {
    // Other threads may have closed one, and opened something else.
    let is_there = |it: &&Withheld| kernel::cookie(it.connection.fd) == Ok(it.connection.end.cookie.load(Relaxed));
    let socket = kernel::unconnected_socket();
    for Withheld { connection, way } in list.iter().filter(is_there) {
        let fd = connection.fd;
        let is_inherited = stays_open(fd);
        let is_done = match (way, socket) {
            (Way::Closed, _) => kernel::set_inherited(fd, false),
            (Way::Replaced, Some(socket)) => kernel::duplicate_onto(socket, fd, is_inherited),
            (Way::Replaced, None) => false,
        };
        if !is_done && fd == libc::STDIN_FILENO {
            // Another file that the image opens would become its standard input.
            connection.reset();
        } else if !is_done {
            kernel::close(fd);
        }
    }
    if let Some(socket) = socket {
        kernel::close(socket);
    }
}

/// The sockets that stand in for connections in a child of vfork. The descriptors are the connections again when this is dropped,
/// since the execution has failed then.
pub struct ReplacedList(Reserved<Replaced>);

/// A descriptor of a connection that is another socket's for the image.
struct Replaced {
    fd: i32,
    /// Another descriptor of the connection, which the execution closes.
    kept: i32,
}

impl ReplacedList {
    /// So many at most.
    fn of(count: usize) -> Option<ReplacedList> {
        let mut replaced = Reserved::new(count);
        let socket = kernel::unconnected_socket();
        for_each_out_of_reach(Execution::Borrowed, |Withheld { connection, .. }| {
            let list = replaced.as_mut().filter(|list| list.has_room());
            match list.zip(socket.and_then(|socket| Replaced::by(connection.fd, socket))) {
                Some((list, it)) => {
                    list.push(it);
                }
                // The image does not inherit it. Another file that it opens would become its standard input.
                None if connection.fd == libc::STDIN_FILENO => connection.reset(),
                None => {
                    kernel::set_inherited(connection.fd, false);
                }
            }
        });
        if let Some(socket) = socket {
            kernel::close(socket);
        }
        let (memory, len) = replaced.as_ref()?.memory();
        LEFT.set(Some(Pages { memory, len }));
        replaced.map(ReplacedList)
    }
}

impl Drop for ReplacedList {
    fn drop(&mut self) {
        LEFT.set(None);
        self.0.items().iter().for_each(Replaced::put_back);
    }
}

impl Replaced {
    /// The connection's descriptor is `socket` from now on; `None` without room to keep the connection.
    fn by(fd: i32, socket: i32) -> Option<Replaced> {
        let kept = kernel::duplicate(fd, FIRST)?;
        let is_replaced = kernel::duplicate_onto(socket, fd, true);
        if !is_replaced {
            kernel::close(kept);
        }
        is_replaced.then_some(Replaced { fd, kept })
    }

    fn put_back(&self) {
        kernel::duplicate_onto(self.kept, self.fd, true);
        kernel::close(self.kept);
    }
}

/// There can be no stand-ins: better no connection than one with a gap.
fn reset_out_of_reach(how: Execution) {
    for_each_out_of_reach(how, |it| it.connection.reset());
}

fn for_each_out_of_reach(how: Execution, mut what: impl FnMut(Withheld)) {
    inherited(how, |connection| {
        let is_output = matches!(connection.fd, libc::STDOUT_FILENO | libc::STDERR_FILENO);
        let given = if how == Execution::Spawned { connection.given() } else { Given::Nowhere };
        let way = match given {
            Given::Nowhere | Given::AsOutput if is_output => return,
            Given::AsOutput => Way::Closed,
            Given::Nowhere | Given::Anywhere => Way::Replaced,
        };
        if connection.has_unread_out_of_reach() {
            what(Withheld { connection, way });
        }
    });
}
