//! A new image without the library inherits connections: they become plain TCP before it begins.

use super::Execution;
use super::file_actions::FileActions;
use super::inherited::{has_any, inherited};
use crate::connection::Connection;
use crate::guest::family;
use underpass_segment::kernel;
use underpass_segment::reason::Reason;
use underpass_segment::switch::Recipient;

/// libc is about to spawn programs by itself, without this library. False if they would read one of the connections
/// with a gap.
pub fn leave_to_spawned() -> bool {
    if !has_any() {
        return true;
    }
    hand_over_inherited(Execution::Spawned(&FileActions::NONE));
    let mut has_gap = false;
    inherited(Execution::Alone, |it| has_gap |= it.has_unread_out_of_reach());
    !has_gap
}

/// The new image will not have this library: makes the connections that it inherits plain TCP.
pub fn hand_over_inherited(how: Execution<'_>) {
    let recipient = |connection: &Connection| {
        let is_meant = match how {
            Execution::Spawned(actions) => actions.may_give(connection.fd),
            // Standard input and output are meant for the image, and so is a connection that no other process can read.
            _ => connection.fd <= libc::STDERR_FILENO || how.is_alone() && connection.is_last(),
        };
        if is_meant { Recipient::Alone } else { Recipient::Beside }
    };
    let mut leaves_to_sender = false;
    inherited(how, |it| leaves_to_sender |= it.leave_to(recipient(&it), Reason::Inherited));
    if leaves_to_sender {
        // After the last ring was left, and before any doorbell: the sender that a doorbell wakes gives back on all
        // connections.
        family::with_meeting_surely(|meeting| meeting.tell_of_departure());
    }
    inherited(how, |it| {
        let recipient = recipient(&it);
        let is_plain = it.hand_over_to(recipient, Reason::Inherited, leaves_to_sender);
        // A connection that the image is to read is reset: the image would miss the unread bytes. Where the image may
        // have inherited a connection without a purpose, other processes go on with it.
        let is_read = match how {
            Execution::Alone => it.is_made_input() || it.is_last(),
            Execution::Borrowed => it.is_made_input(),
            Execution::Spawned(_) => false,
        };
        if !is_plain && recipient == Recipient::Alone && is_read {
            it.reset();
        } else if is_plain {
            it.end_passing();
        }
    });
    kernel::forget_holders();
}
