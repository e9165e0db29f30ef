//! qperf (qperf(1)): latency without a distribution, where an endpoint has no sockperf.

use std::net::SocketAddr;
use std::process::Command;

use super::NotRead;
use crate::survey::record::Tool;

/// Arguments of a server. It listens at all addresses: qperf knows no other way.
pub fn serve(command: &mut Command, port: u16) {
    command.args(["--listen_port", &port.to_string()]);
}

/// Arguments of a client. Its figures are in the unit of the smallest, ns.
pub fn measure(command: &mut Command, to: SocketAddr, size: u64, seconds: u32) {
    command.args(["--listen_port", &to.port().to_string(), "--time", &seconds.to_string()]);
    command.args(["--msg_size", &size.to_string(), "-uu", &to.ip().to_string(), "tcp_lat"]);
}

/// Half the mean time there and back, in ns, from what a client printed.
///
/// # Errors
/// There is no latency in ns.
pub fn read(text: &str) -> Result<f64, NotRead> {
    let wrong =
        || NotRead::new(Tool::Qperf, format!("printed no latency: {:?}", text.chars().take(80).collect::<String>()));
    let mut lines = text.lines();
    if lines.next().map(str::trim) != Some("tcp_lat:") {
        return Err(wrong());
    }
    let (name, value) = lines.next().and_then(|line| line.split_once('=')).ok_or_else(wrong)?;
    // Thousands are set apart by commas.
    let value = value.trim().strip_suffix(" ns").map(|value| value.replace(',', ""));
    let value: f64 = value.and_then(|value| value.parse().ok()).ok_or_else(wrong)?;
    let whole = name.trim() == "latency" && lines.all(|line| line.trim().is_empty());
    if whole && value.is_finite() && value > 0.0 { Ok(value) } else { Err(wrong()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRINTED: &str = "tcp_lat:\n    latency  =  4260 ns\n";

    #[test]
    fn a_latency_in_ns_is_read_and_nothing_else() {
        assert_eq!(read(PRINTED), Ok(4260.0));
        assert_eq!(read(&PRINTED.replace("4260", "14,260")), Ok(14260.0));
        for (from, to) in
            [("4260", "-4260"), ("4260", "NaN"), ("4260", "0"), (" ns", " us"), ("tcp", "udp"), ("latency", "bw")]
        {
            assert!(read(&PRINTED.replacen(from, to, 1)).is_err(), "{from} → {to}");
        }
        assert!(read("").is_err());
        assert!(read("failed to connect").unwrap_err().to_string().contains("failed to connect"));
    }

    proptest! {
        #[test]
        fn no_text_gives_an_impossible_figure(text in ".{0,40}", value in ".{0,8}") {
            for text in [text, PRINTED.replace("4260", &value)] {
                if let Ok(latency) = read(&text) {
                    prop_assert!(latency > 0.0 && latency.is_finite());
                }
            }
        }
    }
}
