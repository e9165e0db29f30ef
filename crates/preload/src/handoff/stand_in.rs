//! What an image without the library finds in place of a connection that it would read with a gap.
//!
//! Where something unread cannot be put on the kernel path, and other processes go on reading the ring, the image would find in
//! the socket what comes behind that. It may have inherited the connection for no purpose, so that is not reset. The image gets
//! another socket under the same number, one that was never connected: receives and sends fail there. Its standard output and
//! standard error stay the connection, since programs write to these, and the kernel path takes that.
//!
//! It is done where no other thread uses the descriptors meanwhile: in a child of vfork, which has its own, and in a process of
//! one thread.

use super::{Execution, LEFT, inherited};
use crate::connection::Connection;
use crate::memory::Reserved;
use underpass_segment::kernel;

/// The lowest number for what is kept: not standard input, output or error, where these are closed.
const FIRST: i32 = 3;

/// The sockets that stand in for connections. The descriptors are the connections again when this is dropped, since the execution
/// has failed then.
pub struct StandIns {
    replaced: Reserved<Replaced>,
}

/// A descriptor of a connection that is another socket's for the image.
struct Replaced {
    fd: i32,
    /// Another descriptor of the connection, which the execution closes.
    kept: i32,
}

impl StandIns {
    /// For what the image inherits and would read with a gap; `None` if there is no such connection.
    pub fn for_image(how: Execution) -> Option<StandIns> {
        match how {
            Execution::Borrowed => {}
            Execution::Alone if kernel::has_one_thread() => {}
            _ => return None,
        }
        let mut count = 0;
        for_each_out_of_reach(how, |_| count += 1);
        if count == 0 {
            return None;
        }
        let mut replaced = Reserved::new(count);
        let socket = kernel::unconnected_socket();
        for_each_out_of_reach(how, |it| {
            let list = replaced.as_mut().filter(|list| list.has_room());
            match list.zip(socket.and_then(|socket| Replaced::by(it.fd, socket))) {
                Some((list, it)) => {
                    list.push(it);
                }
                None => withhold(&it),
            }
        });
        if let Some(socket) = socket {
            kernel::close(socket);
        }
        Some(StandIns { replaced: replaced? })
    }

    /// The memory of the list.
    pub fn memory(&self) -> (*mut u8, usize) {
        self.replaced.memory()
    }
}

impl Drop for StandIns {
    fn drop(&mut self) {
        LEFT.set(None);
        self.replaced.items().iter().for_each(Replaced::put_back);
    }
}

impl Replaced {
    /// The connection's descriptor is `socket` from now on; `None` without room to keep the connection.
    fn by(fd: i32, socket: i32) -> Option<Replaced> {
        let kept = kernel::duplicate(fd, FIRST)?;
        let is_replaced = kernel::duplicate_onto(socket, fd);
        if !is_replaced {
            kernel::close(kept);
        }
        is_replaced.then_some(Replaced { fd, kept })
    }

    fn put_back(&self) {
        kernel::duplicate_onto(self.kept, self.fd);
        kernel::close(self.kept);
    }
}

/// There is no memory or descriptor for a stand-in: the image does not inherit the connection. Another file that it opens would
/// become its standard input.
fn withhold(connection: &Connection) {
    if connection.fd == libc::STDIN_FILENO {
        connection.reset();
    } else {
        kernel::set_inherited(connection.fd, false);
    }
}

fn for_each_out_of_reach(how: Execution, mut what: impl FnMut(Connection)) {
    let is_output = |fd| matches!(fd, libc::STDOUT_FILENO | libc::STDERR_FILENO);
    inherited(how, |it| {
        if !is_output(it.fd) && it.has_unread_out_of_reach() {
            what(it);
        }
    });
}
