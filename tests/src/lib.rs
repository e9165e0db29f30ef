//! What the tests of whole programs share.
//!
//! A test starts real programs, each as a [`group::Group`] that ends with the test. A [`library::Run`] loads the
//! library into them and afterwards tells what went fast. [`stage::Stage`] joins the two for real programs and checks
//! that nothing is left behind; a [`broker::Broker`] is an `underpassd` of the test's own; a [`yard::Yard`] has both
//! for an echo between users and containers, and [`upheaval`] what happens to the daemon meanwhile; [`terminal`] is
//! what a program draws on; [`parity`] runs the C programs of `tests/parity` on the kernel and under Underpass.
//!
//! | Variable | Meaning |
//! |---|---|
//! | `UNDERPASS_TEST_LIBRARY` | path of the library to test; without it, it is built |
//! | `UNDERPASS_TEST_DAEMON` | path of the `underpassd` to test; without it, it is built |
//! | `UNDERPASS_TEST_PATH=kernel` | leave the library out, to check the tests themselves |
//! | `UNDERPASS_TEST_SCENARIO` | run only the parity scenario of this name |
//! | `UNDERPASS_TEST_REQUIRE=1` | a program that is not installed is a failure, not a skip |

pub mod apart;
pub mod broker;
pub mod compiler;
pub mod container;
pub mod fuzz;
pub mod group;
pub mod library;
pub mod mode;
pub mod net;
pub mod parity;
pub mod stage;
pub mod terminal;
pub mod traces;
pub mod upheaval;
pub mod yard;
