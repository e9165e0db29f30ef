//! Calls that the fast path does not carry pin the connection, in the middle of a stream.

use underpass_tests::library::AT_ONCE;
use underpass_tests::stage::assert_says;

/// As a server that begins an answer by dprintf and leaves the rest to a program of its own. Fails, by a reset, if the
/// call has the other end go down behind what is unread, which could then not be put on the kernel path.
#[test]
fn what_is_unread_at_a_call_that_pins_is_left_to_the_next_program() {
    for how in ["none", "dprintf", "oobinline", "urgent"] {
        assert_says("pinned", &[(&[how], AT_ONCE, "3")]);
    }
}

/// The sender has filled the ring, and waits for room by an edge-triggered set. Fails, by its time, if the doorbell of
/// the pin uses up the edge that tells of room.
#[test]
fn a_sender_that_waits_for_room_goes_on_when_its_reader_is_pinned() {
    for how in ["none", "dprintf", "oobinline", "lowat"] {
        for arguments in [&[how, "20"][..], &[how, "20", "anew"]] {
            assert_says("edge_room", &[(arguments, &[], "20"), (arguments, AT_ONCE, "20")]);
        }
    }
}
