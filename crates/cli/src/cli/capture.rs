//! Arguments of `underpass capture`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::values::whole;

/// Write what fast connections carry to a file for Wireshark, as tcpdump does for kernel TCP
///
/// The bytes of a connection that goes through shared memory are on no network interface, so tcpdump does not see them.
/// While this command runs, your programs under Underpass (for root, the programs of all users in all namespaces) copy
/// what they send through shared memory to a buffer of this command, which writes it as TCP packets with real addresses
/// and ports, the position in the stream as sequence number, and the time of sending. The handshake is made up when a
/// connection is first seen; its comment names the processes. What goes by kernel TCP, as the beginning of each
/// connection does, is left to tcpdump; where it lies between captured bytes, Wireshark says that they were not
/// captured.
///
/// The programs may have been started before this command, or may start later. Until the capture ends, each of their
/// sends takes one or two microseconds longer, and some 15 after a sleep. If they send more than can be written, they
/// do not wait: the rest is dropped, and the command says so. If this command is killed, its buffer goes with it, and
/// the programs go on as before.
///
/// Filter: conditions joined by "and": port NUMBER, host ADDRESS, pid NUMBER. A condition selects both directions of a
/// connection if either end matches.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass capture -w redis.pcapng port 7000
  underpass capture -w - --duration 10 | tshark -r - -z follow,tcp,ascii,0

Exit code: 0; 1 if another capture is under way, there is no shared memory, or the disk is full; 2 for a mistake in \
options or the filter, or a file that this user cannot write to."
)]
pub struct CaptureArguments {
    /// The file to write (pcapng); "-" for standard output
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub write: PathBuf,

    /// End after so many packets
    #[arg(long, short, value_name = "N", value_parser = whole::<u64, { u64::MAX }>, allow_negative_numbers = true)]
    pub count: Option<u64>,

    /// End after so many seconds
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = whole::<u32, { u32::MAX as u64 }>,
        allow_negative_numbers = true
    )]
    pub duration: Option<u32>,

    /// Size of the buffer, in MiB, rounded up to a power of two
    #[arg(
        long,
        value_name = "MIB",
        default_value_t = 64,
        value_parser = whole::<u32, 1024>,
        allow_negative_numbers = true
    )]
    pub buffer: u32,

    /// Print the totals as JSON at the end, on standard error
    #[arg(long)]
    pub json: bool,

    /// Which connections, as in: port 7000 and host 127.0.0.1
    #[arg(value_name = "FILTER", allow_negative_numbers = true)]
    pub filter: Vec<String>,
}
