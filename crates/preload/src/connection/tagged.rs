//! The tag of a connection's socket says what a program image has to know that comes for it when no process has its end
//! any more: whether something may be missing on the kernel path. See [`kernel::set_tagged`].
//!
//! Another thread or process may join, lend or claim the connection at the same moment. It does that first and then
//! sets the tag; a function that takes the tag away looks afterwards whether it has to be set again.

use super::Connection;
use crate::guest::{filter, thread};
use underpass_segment::channel::Channel;
use underpass_segment::end::Stage;
use underpass_segment::kernel;
use underpass_segment::switch::Port;

impl Connection {
    /// An image is lent the connection: its socket is tagged if the ring may have something of the stream, and loses
    /// the tag of an earlier loan otherwise. If it joins later, it is tagged then.
    pub fn tag_for_loan(&self) {
        self.set_tag(!self.end.is_plain_for_good());
        self.tag_if_lent();
    }

    /// This process reads the ring, or may read it again: the socket is tagged if an image is awaited all the same.
    pub fn tag_if_lent(&self) {
        if self.end.owners.is_lent() && !self.end.is_plain_for_good() {
            self.set_tag(true);
        }
    }

    /// An image has come for the connection, or does not come: the tag goes, unless another one is awaited.
    pub fn untag_unless_lent(&self) {
        if !self.end.owners.is_lent() {
            self.set_tag(false);
        }
        self.tag_if_lent();
    }

    /// The last process lets go of the end, and an image that is not awaited any more finds the socket, and no end.
    pub fn leave_to_unawaited_image(&self, port: &Port<'_>) {
        port.go_away(|| true);
        self.leave_to_kernel_for_image(Some(port.channel));
    }

    /// The connection is plain TCP for good: an image misses nothing.
    pub fn untag_plain(&self) {
        if self.end.owners.is_lent() {
            self.set_tag(false);
        }
    }

    /// Not behind a filter, which may kill the process for the call.
    fn set_tag(&self, is_tagged: bool) {
        if !filter::is_confined() {
            kernel::set_tagged(self.fd, is_tagged);
        }
    }

    /// No process reads the ring until an image comes: takes the tag away if the kernel path has all of the stream, and
    /// puts there before what is unread, as far as that can be done at once. The end's channel is attached if it is not
    /// given.
    pub fn leave_to_kernel_for_image(&self, channel: Option<Channel>) {
        if filter::is_confined() {
            return;
        }
        let port = || match channel {
            Some(channel) => Some(self.port_with(channel, thread::number())),
            None => self.port(),
        };
        let is_left_to_kernel = || match self.end.stage() {
            Stage::Joined => port().is_some_and(|port| port.leaves_all_to_kernel()),
            Stage::Plain | Stage::Waiting | Stage::Pinned => true,
            Stage::Broken => false,
        };
        if self.end.stage() == Stage::Joined
            && let Some(port) = port()
        {
            port.give_for_image();
        }
        if is_left_to_kernel() {
            self.set_tag(false);
            // An image may have come back to the ring meanwhile, beside which another one is awaited.
            if !is_left_to_kernel() {
                self.tag_if_lent();
            }
        }
    }
}
