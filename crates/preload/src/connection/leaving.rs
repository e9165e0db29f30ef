//! A connection leaves its ring: for good, for a program image that reads the kernel path, or by a reset.

use super::Connection;
use super::count::count_reason;
use crate::guest::family;
use underpass_segment::end::Asked;
use underpass_segment::kernel;
use underpass_segment::meeting::is_asking;
use underpass_segment::reason::Reason;
use underpass_segment::switch::{Departure, LeftRing, Port, Recipient, Unread};

/// The bytes that were in the channel of the connection `fd` are out of reach: ends it by a reset, so that neither end
/// waits for them.
pub fn end_lost(fd: i32) {
    end_lost_for(fd, Reason::HandOver);
}

/// The same, where it is known that the process lacks something for the channel.
pub fn end_lost_for(fd: i32, reason: Reason) {
    kernel::reset(fd);
    count_reason(reason);
}

impl Connection {
    /// Keeps the connection on the kernel path for good, whatever it is on now.
    pub fn pin(&self, reason: Reason) {
        if let Some(port) = self.pinned_port(reason) {
            port.pin(reason);
        }
    }

    /// As [`Connection::pin`], where the program's receives may go on in the ring: see [`Port::pin_once_read`].
    pub fn pin_once_read(&self, reason: Reason) {
        if let Some(port) = self.pinned_port(reason) {
            port.pin_once_read(reason);
        }
    }

    /// Keeps the connection on the kernel path for good, for a socket that goes to a process that does not know the
    /// ring. False if bytes in the ring are lost to that process.
    pub fn hand_over(&self, reason: Reason) -> bool {
        self.hand_over_to(Recipient::Alone, reason, false)
    }

    /// Keeps the connection on the kernel path for good, for a socket that goes to any recipient: see
    /// [`Port::hand_over`].
    pub fn hand_over_to(&self, recipient: Recipient, reason: Reason, wakes: bool) -> bool {
        let is_whole =
            self.port_for(recipient, reason).is_none_or(|(port, recipient)| port.hand_over(reason, recipient, wakes));
        if is_whole && self.end.owners.is_lent() {
            // An image that is awaited misses nothing either.
            self.leave_to_kernel_for_image(None);
        }
        is_whole
    }

    /// Pins the end, and returns the port by which it is left to the recipient. A confined end is on kernel TCP
    /// already, and may not be able to wake a sender to which it leaves something: it is left as if the recipient were
    /// unsure.
    fn port_for(&self, recipient: Recipient, reason: Reason) -> Option<(Port<'static>, Recipient)> {
        self.pin_end(reason);
        let recipient = if self.is_confined() { Recipient::Unsure } else { recipient };
        Some((self.port_even_confined()?, recipient))
    }

    /// Hands it over to a process that is to read it, or resets the connection.
    pub fn hand_over_or_reset(&self, reason: Reason) {
        if !self.hand_over(reason) {
            self.reset();
        }
        // The other end does not await an image for the channel.
        if let Some(port) = self.attached_port() {
            port.end_execution();
        }
    }

    /// Hands it over to a process that may know the ring, if the other end can put the unread bytes on the kernel path.
    pub fn hand_over_if_possible(&self, reason: Reason) {
        self.hand_over_to(Recipient::Unsure, reason, false);
    }

    /// Leaves the ring before a hand-over. Whether something unread is left for the sender to give back.
    pub fn leave_to(&self, recipient: Recipient, reason: Reason) -> bool {
        self.port_for(recipient, reason).is_some_and(|(port, recipient)| port.leave_to(recipient) == LeftRing::Unread)
    }

    /// A program is about to be executed in this image's place: if no other process has the connection, it is plain TCP
    /// until the new image comes back to the ring. Returns how much the kernel receives until what is left in the ring
    /// is given back; `None` if the end has not gone away.
    pub fn go_away(&self) -> Option<u64> {
        let port = self.joined_port().filter(|_| self.end.read_gate.is_shut())?;
        let is_gone = port.go_away(|| self.is_last()) == Departure::Gone;
        is_gone.then(|| if self.end.is_away() { port.until_given() } else { 0 })
    }

    /// No other process has the connection, and something is unread. What an image reads that finds the channel gone.
    pub fn unread_for_image(&self) -> Option<Unread> {
        if self.end.is_brokered() || self.end.is_remote() { None } else { self.joined_port()?.unread_for_image() }
    }

    /// The image was not executed.
    pub fn come_back(&self) {
        if let Some(port) = self.joined_port() {
            if self.end.is_away() {
                port.come_back_beside_polls();
            } else if self.is_last() {
                port.go_up_again();
            }
            // This comes last: the other end awaits that the mark of going down is taken back.
            port.end_execution();
        }
    }

    /// Ends the connection by a reset, because the processes that have the socket from now on would miss some of its
    /// bytes.
    pub fn reset(&self) {
        self.reset_by(self.port_even_confined().as_ref());
    }

    pub fn reset_by(&self, port: Option<&Port<'_>>) {
        kernel::reset_at_close(self.fd);
        // The other end must not believe that an unread doorbell has caused the reset.
        if let Some(port) = port {
            port.channel.tell_of_close(self.fd);
        }
        end_lost(self.fd);
    }

    /// The last descriptor that any process has is about to be closed: the connection ends as it would on kernel TCP.
    pub fn end_by(&self, port: &Port<'_>) {
        port.end_sending();
        port.prepare_to_close(true);
        self.reset_if_unread(port);
    }

    /// Has the kernel end the connection by a reset at its close if something is unread in the ring. The kernel does so
    /// by itself where it has what is unread, once nobody has the socket any more: a process of which the library knows
    /// nothing may have it, and end the connection in order.
    pub fn reset_if_unread(&self, port: &Port<'_>) {
        if port.has_unread_past_kernel() {
            kernel::reset_at_close(self.fd);
        }
    }

    /// Offers it to a process that may have the library: see [`Port::offer`].
    pub fn offer(&self, reason: Reason) {
        if let Some(port) = self.pinned_port(reason) {
            port.offer(reason);
        }
    }

    /// Pins a connection that is stdin, stdout or stderr: libc uses these past the library.
    pub fn mind_stdio(&self) {
        if self.fd <= libc::STDERR_FILENO {
            self.hand_over_if_possible(Reason::Stdio);
        }
    }

    pub fn pinned_port(&self, reason: Reason) -> Option<Port<'static>> {
        self.pin_end(reason);
        self.joined_port()
    }

    /// Gives up an ask of the broker, if there is one. Whether a copy of the socket may lie with the broker.
    pub fn stop_asking(&self) -> bool {
        (self.end.asked() != Asked::Nothing || is_asking())
            && family::with_meeting_surely(|meeting| meeting.leave_broker(self.end, self.is_last())) == Some(true)
    }

    fn pin_end(&self, reason: Reason) {
        self.stop_asking();
        if reason == Reason::Inherited {
            // A caller that pins a connection for this reason gives the socket to a program without the library, or may
            // do so.
            self.end.owners.note_outsider();
        }
        self.end.pin(reason);
    }
}
