//! The program shuts a direction down, or sets how the socket is closed.

use super::Connection;
use underpass_segment::end::{SHUT_IN, SHUT_OUT};
use underpass_segment::reason::Reason;
use underpass_segment::sync::AcqRel;

impl Connection {
    /// The direction out is about to end. Gives back what the reader has left in the ring, which could not follow after
    /// the FIN. False if the kernel has no room for all of it yet.
    pub fn attend(&self) -> bool {
        self.joined_port().is_none_or(|port| port.give_back_if_due())
    }

    /// The program has set how the socket is closed: the other end is told whether it is with a reset.
    pub fn tell_of_close(&self) {
        if let Some(port) = self.joined_port() {
            port.channel.tell_of_close(self.fd);
        }
    }

    /// The program shuts down `directions` ([`SHUT_IN`], [`SHUT_OUT`]), by `shut`, and the other end is to know why
    /// before the kernel tells it.
    pub fn shut_down(&self, directions: u8, shut: impl FnOnce() -> i32) -> i32 {
        let before = self.end.shut.fetch_or(directions, AcqRel);
        if directions == SHUT_OUT {
            // Before the kernel's shutdown: a thread that it wakes must find the count.
            self.end.shutdowns.fetch_add(1, AcqRel);
        }
        let both = before | directions == SHUT_IN | SHUT_OUT;
        if both {
            // A connection that ends is not worth a channel.
            self.end.pin(Reason::Closed);
        }
        if let Some(port) = self.joined_port() {
            if directions & SHUT_OUT != 0 {
                port.end_sending();
            }
            if both {
                port.prepare_to_shut();
            }
            if directions & SHUT_IN != 0 {
                port.rouse();
            }
            if directions & SHUT_OUT != 0 {
                return port.between_sends(shut);
            }
        }
        shut()
    }
}
