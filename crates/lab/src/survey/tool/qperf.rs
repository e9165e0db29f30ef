//! qperf (qperf(1)): latency without a distribution, where an endpoint has no sockperf.

use std::net::SocketAddr;
use std::process::Command;

use super::NotRead;
use crate::survey::record::Tool;

/// Ports that qperf needs behind the one that its server listens at: the next is that of the data. Without being told,
/// the server takes any port for these.
pub const MORE_PORTS: u16 = 1;

/// Arguments of a server. It listens at all addresses: qperf knows no other way.
pub fn serve(command: &mut Command, port: u16) {
    command.args(["--listen_port", &port.to_string()]);
}

/// Arguments of a client. Its figures are in the unit of the smallest, ns, and it counts messages.
pub fn measure(command: &mut Command, to: SocketAddr, size: u64, seconds: u32) {
    command.args(["--listen_port", &to.port().to_string(), "--time", &seconds.to_string()]);
    command.args(["--ip_port", &to.port().saturating_add(MORE_PORTS).to_string()]);
    command.args(["--msg_size", &size.to_string(), "-uu", "-vvs", &to.ip().to_string(), "tcp_lat"]);
}

/// What a client printed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Half the mean time there and back, in ns.
    pub latency: f64,
    /// Messages that the client has sent, each of which was answered.
    pub exchanges: u64,
}

/// The figures in what a client printed.
///
/// # Errors
/// There is no latency in ns, or no number of messages above 0; something is there twice.
pub fn read(text: &str) -> Result<Figures, NotRead> {
    let wrong =
        |what| NotRead::new(Tool::Qperf, format!("printed no {what}: {:?}", text.chars().take(80).collect::<String>()));
    let mut lines = text.lines();
    if lines.next().map(str::trim) != Some("tcp_lat:") {
        return Err(wrong("latency"));
    }
    let (mut latency, mut exchanges) = (None, None);
    for line in lines.filter(|line| !line.trim().is_empty()) {
        let (name, value) = line.split_once('=').ok_or_else(|| wrong("table"))?;
        // Thousands are set apart by commas.
        let value = value.trim().replace(',', "");
        let before = match name.trim() {
            "latency" => {
                latency.replace(value.strip_suffix(" ns").and_then(|value| value.parse::<f64>().ok())).is_some()
            }
            "loc_send_msgs" => exchanges.replace(value.parse::<u64>().ok()).is_some(),
            _ => false,
        };
        if before {
            return Err(wrong("table of different names"));
        }
    }
    let latency = latency.flatten().filter(|&it| it.is_finite() && it > 0.0).ok_or_else(|| wrong("latency"))?;
    let exchanges = exchanges.flatten().filter(|&it| it > 0).ok_or_else(|| wrong("number of messages"))?;
    Ok(Figures { latency, exchanges })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PRINTED: &str = "tcp_lat:\n    latency         =    4260 ns\n    msg_rate        =  234742 /sec\n    \
                           loc_send_bytes  =     117 KB\n    loc_send_msgs   =  117371 \n    \
                           rem_send_msgs   =  117370 \n";

    #[test]
    fn latency_and_number_of_messages_are_read_and_nothing_else() {
        let figures = |latency, exchanges| Ok(Figures { latency, exchanges });
        assert_eq!(read(PRINTED), figures(4260.0, 117_371));
        assert_eq!(read(&PRINTED.replace("4260", "14,260").replace("117371", "117,371")), figures(14260.0, 117_371));
        for (from, to) in [
            ("4260", "-4260"),
            ("4260", "NaN"),
            ("4260", "0"),
            (" ns", " us"),
            ("tcp", "udp"),
            ("latency", "bw"),
            ("117371", "0"),
            ("117371", "-1"),
            ("117371", "1.5"),
            ("loc_send_msgs", "loc_recv_msgs"),
            ("rem_send_msgs", "loc_send_msgs"),
            ("msg_rate", "latency"),
            ("=", ":"),
        ] {
            assert!(read(&PRINTED.replacen(from, to, 1)).is_err(), "{from} → {to}");
        }
        assert!(read("").is_err());
        assert!(read("failed to connect").unwrap_err().to_string().contains("failed to connect"));
    }

    proptest! {
        #[test]
        fn no_text_gives_an_impossible_figure(text in ".{0,40}", value in ".{0,8}") {
            for text in [text, PRINTED.replace("4260", &value), PRINTED.replace("117371", &value)] {
                if let Ok(figures) = read(&text) {
                    prop_assert!(figures.latency > 0.0 && figures.latency.is_finite() && figures.exchanges > 0);
                }
            }
        }
    }
}
