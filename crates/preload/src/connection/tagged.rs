//! The tag of a connection's socket says what a program image has to know that comes for it when no process has its end
//! any more: whether something may be missing on the kernel path.

use super::Connection;
use crate::guest::{filter, thread};
use underpass_segment::channel::Channel;
use underpass_segment::end::Stage;
use underpass_segment::kernel;

impl Connection {
    /// An image is lent the connection: its socket is tagged if the ring may have something of the stream. If it joins
    /// later, it is tagged then.
    pub fn tag(&self) {
        kernel::set_tagged(self.fd, !self.end.is_plain_for_good());
    }

    /// An image has come for the connection.
    pub fn untag_unless_lent(&self) {
        kernel::set_tagged(self.fd, self.end.owners.is_lent() && !self.end.is_plain_for_good());
    }

    /// No process reads the ring until an image comes: takes the tag away if the kernel path has all of the stream. The
    /// end's channel is attached if it is not given.
    pub fn untag_if_complete(&self, channel: Option<Channel>) {
        if filter::is_confined() {
            return;
        }
        let port = || match channel {
            Some(channel) => Some(self.port_with(channel, thread::number())),
            None => self.port(),
        };
        let is_complete = match self.end.stage() {
            Stage::Joined => port().is_some_and(|port| port.leaves_all_to_kernel()),
            Stage::Plain | Stage::Waiting | Stage::Pinned => true,
            Stage::Broken => false,
        };
        if is_complete {
            kernel::set_tagged(self.fd, false);
            // An image may have come meanwhile, beside which another one is awaited.
            if self.end.owners.are_several() {
                self.tag();
            }
        }
    }
}
