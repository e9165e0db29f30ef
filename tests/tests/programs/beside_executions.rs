//! Threads, signal handlers and children of vfork that use a connection beside an execution of their process.

use underpass_tests::library::AT_ONCE;
use underpass_tests::stage::assert_says;

/// The lock of the receive belongs to a thread that waits for the child. Fails, by its time, if the child or its image
/// waits for the lock.
#[test]
fn a_handler_that_forks_on_top_of_a_receive_waits_for_its_child() {
    assert_says("handler", &[(&["ends"], AT_ONCE, "100"), (&["executes"], AT_ONCE, "20")]);
}

/// A child of vfork asks for its thread's number first, and its parent's thread goes on with that. Fails, by a lost
/// byte, if the number is the child's: the process beside finds that the thread is gone, and takes over its receive.
#[test]
fn a_thread_keeps_its_own_number_beside_a_child_of_vfork() {
    assert_says("fresh", &[(&[], AT_ONCE, "12345 (4)")]);
}

/// Fails, by a doorbell among the data, if a receive goes past the library while the end is away for the execution, if
/// an end comes back beside a thread that wakes, or if a doorbell is left to a thread that dozes.
#[test]
fn a_thread_receives_beside_executions_that_fail() {
    assert_says("vain", &[(&["1000"], &[], "1000"), (&["1000"], AT_ONCE, "1000")]);
}

/// Fails, by its time, if what a killed child has begun is left as it is: the locks of ends, and rings that it has left
/// and whose bytes it was about to give back (in a third of all rounds).
#[test]
fn a_child_of_vfork_that_is_killed_on_its_way_takes_nothing_along() {
    assert_says("killed_child", &[(&["1000"], &[], "1000"), (&["1000"], AT_ONCE, "1000")]);
}

/// Fails, by its time, if the child counts as one that is still inside of the connection, which then gets no FIN. A
/// large send is inside twice.
#[test]
fn a_child_of_vfork_that_is_killed_in_a_call_is_not_inside_any_more() {
    for call in ["receive", "send"] {
        assert_says("sleeping_child", &[(&[call], &[], "the end"), (&[call], AT_ONCE, "the end")]);
    }
}

/// Fails, by a reset, if a thread sends on the kernel path while another one executes a program in vain, or if the
/// other end has asked for that path meanwhile (in a third of all streams).
#[test]
fn a_thread_sends_beside_executions_that_fail() {
    assert_says("vain_sends", &[(&["100"], &[], "100"), (&["100"], AT_ONCE, "100")]);
}

/// A child of vfork has descriptors of its own beside its parent's table.
#[test]
fn a_failed_execution_of_a_child_of_vfork_changes_no_socket_of_the_childs() {
    assert_says("vforked", &[(&[], AT_ONCE, "Argument list too long, option 0")]);
}
