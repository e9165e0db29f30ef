//! A descriptor is closed, or its socket leaves its connection. The last descriptor of a connection tells the other
//! end.

use super::duplicate::duplicate;
use crate::connection::handle::handle;
use crate::connection::inside::outlast;
use crate::connection::insiders::Kept;
use crate::connection::references::release;
use crate::connection::share::twin;
use crate::connection::short_lived;
use crate::connection::{Connection, known};
use crate::guest::table::{self, Known, Socket};
use crate::guest::{departure, family, forked, thread};
use crate::watch::{epoll, set};
use core::ffi::c_int;
use underpass_segment::end::Stage;
use underpass_segment::kernel;
use underpass_segment::raw::is_quiet;
use underpass_segment::reason::Reason;
use underpass_segment::switch::Told;
use underpass_segment::sync::Relaxed;

/// `fd` is about to be closed or replaced: forgets what it was. To be called before the number can be used again.
pub fn forget(fd: i32) {
    if thread::is_vfork_child() {
        return;
    }
    epoll::forget_set(fd);
    let in_set = epoll::may_watch(fd);
    if let Some(connection) = known(fd) {
        connection.count_settled();
        connection.keep_open();
        // Before the number's next generation, from which this connection cannot be found.
        let last = !connection.has_duplicates() && connection.is_last();
        if !last {
            epoll::freeze_registrations(connection, || twin(connection));
        }
        epoll::forget_socket(connection, last);
    } else {
        if let Some(origin) = table::given_to_libc(fd) {
            short_lived::left_one_ended(origin);
        }
        table::next_generation(fd);
    }
    set::forget_sets_of(fd);
    if let Known::Connection(index) = table::get(fd)
        && let Some(family) = family::existing()
    {
        forked::check();
        let connection = Connection::at(family, index, fd);
        let alone = handle(index).is_some_and(|h| h.descriptors.load(Relaxed) == 1);
        if alone {
            connection.prepare_to_close();
        }
        if table::replace(fd, Known::Connection(index), Known::Nothing) {
            // After the number is forgotten: a poll that begins later finds no connection there, and relies on nothing.
            let goes_on = in_set && connection.end.is_watched() || epoll::is_slept_on(fd);
            if goes_on && !alone {
                // Its registrations, and polls that sleep on it, go on in the kernel, so everything that arrives from
                // now on must come through the kernel. A thread that sleeps by another descriptor, here or in another
                // process, is woken by a doorbell as before.
                connection.pin(Reason::Unsupported);
            }
            connection.outlast_calls();
            if !set::defer_release(index) {
                release(index, Some(fd));
            }
        }
    } else {
        table::set(fd, Known::Nothing);
    }
}

/// `disconnect` is about to take the socket out of its connection (connect(2) to AF_UNSPEC). That resets the
/// connection, and the program may connect the socket again, which makes another connection.
pub fn dissolve(connection: Connection, disconnect: impl FnOnce() -> c_int) -> c_int {
    if thread::is_vfork_child() {
        return disconnect();
    }
    let Connection { end, index, fd } = connection;
    let alone = !connection.has_duplicates() && connection.is_last() && !connection.is_lent();
    let renew = alone && end.stage() != Stage::Pinned;
    if end.stage() == Stage::Joined {
        // Before the call: what another thread sends from now on, the kernel refuses.
        connection.attend();
        connection.pin(Reason::Closed);
        // The other end must not believe that an unread doorbell has caused the reset.
        if let Some(port) = connection.ready_port() {
            port.prepare_to_close(true);
        }
    }
    let answer = disconnect();
    if answer != 0 {
        return answer;
    }
    if !renew {
        // The other processes that have the socket cannot be told that it is another connection now: all keep to the
        // kernel path.
        connection.pin_and_become_plain();
    } else if table::replace(fd, Known::Connection(index), Known::Socket(Socket::default())) {
        connection.give_options_back();
        // The socket stays registered in its sets, which know nothing of the next connection yet.
        epoll::freeze_registrations(connection, || None);
        epoll::outlast_looks(fd);
        epoll::let_go(connection, table::generation(fd));
        // A look that this signal handler has interrupted does so when it lets go.
        set::sets_of(fd).for_each(|set| set.with_item(fd, |item| item.set_told(Told::default())));
        connection.outlast_calls();
        if !set::defer_release(index) {
            release(index, None);
        }
    }
    answer
}

/// Closes a descriptor of the library's own.
pub fn close_kept(kept: i32) {
    forget(kept);
    kernel::close(kept);
}

impl Connection {
    /// The descriptor is about to be closed. If it is the last one, the library keeps another one for receives that
    /// sleep, which make several system calls.
    pub fn keep_open(&self) {
        let Some(handle) = handle(self.index) else { return };
        if is_quiet() || self.has_duplicates() || self.end.stage() > Stage::Joined {
            return;
        }
        let (reading, sending) = (&self.end.reading.lock, &self.end.sending.lock);
        // A receive that polls the ring soon has something, or sleeps.
        outlast(reading, || handle.inside.any());
        outlast(sending, || handle.inside.any());
        // Where this is a signal handler that has interrupted a receive of its own thread, the kernel's call has
        // returned.
        if !handle.inside.any() || reading.owner() == thread::number() {
            return;
        }
        if let Some(kept) = kernel::duplicate_out_of_the_way(self.fd) {
            duplicate(self.fd, kept);
            if !handle.inside.keep(Kept::Descriptor(kept)) {
                close_kept(kept);
            }
        }
    }

    /// The last descriptor is about to be closed. A copy of the socket lies with the broker, which may be stopped, so
    /// the kernel would not end the connection yet. This does what the kernel would do.
    #[cold]
    fn end_before_broker(&self) {
        if kernel::resets_at_close(self.fd) || kernel::inq(self.fd).is_ok_and(|unread| unread > 0) {
            kernel::reset(self.fd);
        } else {
            kernel::shut_down(self.fd);
        }
    }

    /// Sets TCP_NODELAY and TCP_CORK in the kernel as the program has set them.
    fn give_options_back(&self) {
        if self.end.was_sent_fast() {
            for (name, kept) in [(libc::TCP_NODELAY, &self.end.no_delay), (libc::TCP_CORK, &self.end.cork)] {
                let _ = kernel::set_int_option(self.fd, libc::IPPROTO_TCP, name, kept.load(Relaxed).into());
            }
        }
    }

    /// Pins the connection, and makes it plain: the socket, whatever it is connected to from now on, uses the kernel
    /// path in every process.
    fn pin_and_become_plain(&self) {
        self.end.pin(Reason::Closed);
        self.end.become_plain();
        self.untag_plain();
    }

    /// This process's last descriptor is about to be closed. Has the kernel treat data that is unread in the ring as it
    /// would treat data that is unread in the kernel.
    pub fn prepare_to_close(&self) {
        self.take_back_from_dead_images();
        // In this order: a process that comes for the end counts its reference before it takes up the loan.
        let is_lent = self.is_lent();
        let is_awaited = self.is_awaited();
        // Likewise, another thread of this process may have come for it, and have another descriptor by now. All
        // descriptors go with the process.
        let is_only = || self.is_last() && (departure::is_exit() || !self.has_duplicates());
        let last = is_only();
        // Again: another process may have lent it since, and let go of it. From now on only this process can lend it,
        // and a process that has come for it meanwhile is counted.
        let (is_lent, is_awaited) = (is_lent || self.is_lent(), is_awaited || self.is_awaited());
        let last = last && is_only();
        if last && !is_awaited && (self.leave_no_gap() || is_lent && self.reset_if_lost()) {
            return;
        }
        if last && is_awaited {
            // A program image that was given the connection is on its way: until it is there, no process reads the
            // ring.
            self.go_away();
        }
        // A program that was given the socket closes it later, and perhaps in another way.
        let ends = last && !is_lent;
        // A pinned connection may have gone to a process of which nothing is known.
        let is_alone = ends && self.end.stage() == Stage::Waiting;
        if self.stop_asking() && is_alone {
            self.end_before_broker();
        }
        match self.joined_port() {
            // Tells a reader that is just leaving its ring that no sender will give back what it leaves.
            Some(port) if ends => port.end_sending(),
            _ => {
                self.attend();
            }
        }
        if let Some(port) = self.ready_port() {
            port.prepare_to_close(last);
            if ends {
                self.reset_if_unread(&port);
            }
        }
    }
}
