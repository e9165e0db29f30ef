//! Arguments of the commands that look at running programs: `underpass ss`, `top`, `metrics`, `pin` and `unpin`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};

use super::settings::SettingsArguments;
use super::values::{descriptor, interval, process, seconds};

/// List the connections of programs that run under Underpass, and the path of each
///
/// Lists every TCP connection of this user's programs under Underpass, in this network and IPC namespace, as `ss -t`
/// does, with the path of each direction. Root sees the connections of all users in all namespaces. The programs are
/// not disturbed: their tables are read, for a moment and without a lock.
///
/// "ring" is shared memory, "kernel" is kernel TCP. "Out" is the direction from this process, "in" is the direction to
/// it. "Unread" is what was sent and not yet received, in the ring. Bytes count from the beginning of the connection;
/// where `run --stats` follows a process, that process subtracts what it has already reported. "Waits" are receives
/// that found nothing. A wait polls before it sleeps, unless the mean of the last waits is above spin_us. The reason
/// says why a connection is on kernel TCP: see docs/reasons.md. "-" means that a connection has carried too little to
/// have counters.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underpass ss
  underpass ss --stats
  underpass ss --json | jq '.connections[] | select(.out.path == \"kernel\") | .reason'")]
pub struct SsArguments {
    /// Show what `run --stats` has counted so far, by process, instead of the connections
    ///
    /// There is a table for each `underpass run --stats`, `diff` and `bench` of this user that runs now. It has the
    /// connections that have ended and those that are still open. The reasons are told when a connection ends.
    #[arg(long)]
    pub stats: bool,

    /// As JSON, with the sizes in bytes
    #[arg(long)]
    pub json: bool,
}

/// Watch the connections of programs that run under Underpass
///
/// What `underpass ss` lists, live and busiest first: bytes by path, doorbells and sleeps, all as rates per second.
/// Each connection is listed by its ends, so one between two programs under Underpass has two lines. The first lines
/// are the sums of what is shown and the share that went fast; below the list are the details of the chosen line.
///
/// The programs are not disturbed: their tables are read at each look, for a moment and without a lock.
#[derive(Debug, Args)]
#[command(
    after_help = "Examples:
  underpass top
  underpass top --interval 5
  underpass top --json | jq '.connections[0].rates'",
    after_long_help = "Keys:
  q, Ctrl-C    end
  s            sort by the next: traffic, bytes sent, bytes received, bytes by kernel TCP, unread,
               doorbells, sleeps, process
  r            reverse the order
  p            pause, or go on
  /            show only lines with this text: process, addresses or reason; Esc clears it
  arrows, PgUp, PgDn, Home, End
               choose a line

Examples:
  underpass top
  underpass top --interval 5
  underpass top --json | jq '.connections[0].rates'"
)]
pub struct TopArguments {
    /// Time from one look to the next, from 0.1 to 3600
    #[arg(
        long,
        short,
        value_name = "SECONDS",
        default_value = "1",
        value_parser = interval,
        allow_negative_numbers = true
    )]
    pub interval: Duration,

    /// Print the rates of one interval as a table, and end; needs no terminal
    #[arg(long)]
    pub once: bool,

    /// As JSON (implies --once)
    #[arg(long)]
    pub json: bool,
}

/// Tell Prometheus how the connections of programs under Underpass fare
///
/// Prints sums by process in the text format of Prometheus: connections by path and by reason, bytes by path and
/// direction, doorbells, sleeps, and what is unread. With --file or --listen it goes on until it is ended.
///
/// The programs are not disturbed: their tables are read at each look, for a moment and without a lock. What a
/// connection carried after the last look before its end is not counted.
///
/// The output also says whether underpassd answers. Only root, and the user that underpassd runs as, are told how much
/// it does (meetings, refusals by reason, clients, pools and their bytes).
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  underpass metrics
  sudo underpass metrics                  (with the figures of underpassd)
  underpass metrics --file /var/lib/node_exporter/underpass.prom --interval 15
  underpass metrics --listen 127.0.0.1:9464")]
pub struct MetricsArguments {
    /// Write them to this file again and again, for the textfile collector of node_exporter, which wants .prom at the
    /// end
    ///
    /// The file is replaced as a whole each time, and removed at the end.
    #[arg(long, value_name = "PATH", group = "goes_on", value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    /// Answer HTTP at this loopback address and port, under /metrics
    #[arg(long, value_name = "ADDRESS:PORT", group = "goes_on", value_parser = loopback)]
    pub listen: Option<SocketAddr>,

    /// Time from one look to the next, from 0.1 to 3600 (default: 5)
    #[arg(
        long,
        short,
        value_name = "SECONDS",
        requires = "goes_on",
        value_parser = interval,
        allow_negative_numbers = true
    )]
    pub interval: Option<Duration>,

    #[command(flatten)]
    pub settings: SettingsArguments,
}

fn loopback(text: &str) -> Result<SocketAddr, String> {
    let address: SocketAddr =
        text.parse().map_err(|_| "an address and a port are needed, such as 127.0.0.1:9464 or [::1]:9464")?;
    if !address.ip().is_loopback() {
        return Err(
            "only loopback addresses, such as 127.0.0.1 and [::1]: which programs you run is not for the network, and \
                    nobody is asked for a password"
                .into(),
        );
    }
    Ok(address)
}

/// Move a live connection to kernel TCP, and hold it there
///
/// Both directions go down at the next byte that is sent in each, whichever end sends it, and stay down until
/// `underpass unpin` or the end of the connection: the connection is held. A connection that is not fast yet is
/// kept from going up. No byte is lost, and neither program notices. `underpass ss` lists processes and descriptors,
/// and shows the reason `asked` for a connection that is held.
///
/// The connection is held in all processes that have it, whichever of its ends is named.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass pin 4711 8
  underpass pin --all $(pgrep -n redis-server)

Exit code: 0 if it is held, also where it goes down only with the next byte; 1 if it cannot be; 2 for a mistake in \
options, or if there is no such process or connection."
)]
pub struct PinArguments {
    #[command(flatten)]
    pub which: Which,

    /// Longest wait for both directions to go down
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds, allow_negative_numbers = true)]
    pub wait: f64,
}

/// Let a connection go up again that `underpass pin` has moved to kernel TCP
///
/// Each direction may go up with the next byte that is sent in it. A connection that Underpass itself keeps on kernel
/// TCP for good stays there; the reason is shown.
#[derive(Debug, Args)]
#[command(
    arg_required_else_help = true,
    after_help = "Examples:
  underpass unpin 4711 8
  underpass unpin --all $(pgrep -n redis-server)

Exit code: 0 if it may go up; 2 for a mistake in options, if there is no such process or connection, or if it stays on \
kernel TCP for another reason."
)]
pub struct UnpinArguments {
    #[command(flatten)]
    pub which: Which,

    /// Longest wait for both directions to go up
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = seconds, allow_negative_numbers = true)]
    pub wait: f64,
}

/// Which connections are meant.
#[derive(Debug, Args)]
pub struct Which {
    /// Number of a process that has it
    #[arg(value_name = "PID", value_parser = process, allow_negative_numbers = true)]
    pub pid: u32,

    /// Its descriptor there
    #[arg(
        value_name = "FD",
        required_unless_present = "all",
        conflicts_with = "all",
        value_parser = descriptor,
        allow_negative_numbers = true
    )]
    pub fd: Option<u32>,

    /// All connections of the process
    #[arg(long)]
    pub all: bool,

    /// As JSON
    #[arg(long)]
    pub json: bool,
}
