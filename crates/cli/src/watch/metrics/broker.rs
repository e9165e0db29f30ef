//! The metrics of underpassd.

use std::time::Duration;

use prometheus::{IntCounterVec, IntGaugeVec, Opts, Registry};
use underpass_broker::{Counts, Refusal};
use underpass_segment::config::SocketPath;

use crate::broker::{Contact, ask};

/// A look at the programs does not wait longer for the daemon.
const PATIENCE: Duration = Duration::from_millis(250);

/// The daemon, as of the last look.
#[derive(Debug)]
pub struct Broker {
    socket: SocketPath,
    contact: Contact,
}

impl Default for Broker {
    fn default() -> Broker {
        Broker::at(SocketPath::NONE)
    }
}

/// A sum or a size: its name, what it is for people, and its value.
type Figure = (&'static str, &'static str, u64);

impl Broker {
    /// The daemon that listens at `socket`; without a socket, no daemon is looked for.
    pub fn at(socket: SocketPath) -> Broker {
        Broker { socket, contact: Contact::Unasked }
    }

    /// Looks once.
    pub fn look(&mut self) {
        self.contact = ask(&self.socket, PATIENCE);
    }

    /// Adds to the registry what is known.
    pub fn tell(&self, registry: &Registry) -> anyhow::Result<()> {
        let state = match &self.contact {
            Contact::Unasked => return Ok(()),
            Contact::Answers(state) => Some(state),
            _ => None,
        };
        gauge(registry, ("underpass_broker_up", "Whether underpassd answers.", u64::from(state.is_some())))?;
        let Some(state) = state else { return Ok(()) };
        let (by_numbers, help) =
            (u64::from(state.abilities.numbers), "Whether underpassd proves connections by sequence numbers.");
        gauge(registry, ("underpass_broker_sequence_numbers", help, by_numbers))?;
        match &state.counts {
            Some(counts) => tell(counts, registry),
            // For root alone.
            None => Ok(()),
        }
    }
}

fn tell(counts: &Counts, registry: &Registry) -> anyhow::Result<()> {
    let sums: [Figure; 3] = [
        (
            "underpass_broker_asks_total",
            "Asks for a connection, by ends of any user; an end may ask again.",
            counts.asks,
        ),
        ("underpass_broker_meetings_total", "Pairs of ends that were proven and got memory.", counts.meetings),
        (
            "underpass_broker_turned_away_total",
            "Connections to underpassd that were closed at once, because their user made too many, or no descriptor \
             was left.",
            counts.turned_away,
        ),
    ];
    let sizes: [Figure; 5] = [
        ("underpass_broker_waiting_ends", "Ends that have asked and whose other end has not.", counts.waiting),
        ("underpass_broker_clients", "Connections to underpassd.", counts.clients),
        ("underpass_broker_processes", "Processes that underpassd knows.", counts.processes),
        ("underpass_broker_pools", "Pools of memory that pairs of processes have.", counts.pools),
        ("underpass_broker_pool_bytes", "Bytes of these pools. Only what was touched takes memory.", counts.memory),
    ];
    sums.into_iter().try_for_each(|(name, help, value)| by_label(registry, (name, help), "", &[("", value)]))?;
    sizes.into_iter().try_for_each(|it| gauge(registry, it))?;
    let reasons: Vec<(&str, u64)> = Refusal::ALL.iter().map(|it| (it.key(), counts.refused(*it))).collect();
    let help = "Answers that leave an end on kernel TCP, by reason.";
    by_label(registry, ("underpass_broker_refusals_total", help), "reason", &reasons)?;
    let outcomes = [("taken", counts.policies_taken), ("wrong", counts.policies_wrong)];
    let help = "Times that the policy was read anew, by outcome: after a wrong one the old one stays.";
    by_label(registry, ("underpass_broker_policy_reloads_total", help), "outcome", &outcomes)
}

fn gauge(registry: &Registry, (name, help, value): Figure) -> anyhow::Result<()> {
    let made = IntGaugeVec::new(Opts::new(name, help), &[])?;
    registry.register(Box::new(made.clone()))?;
    made.with_label_values::<&str>(&[]).set(i64::try_from(value).unwrap_or(i64::MAX));
    Ok(())
}

/// A counter, for each value of its label, or the one without.
fn by_label(
    registry: &Registry,
    (name, help): (&str, &str),
    label: &str,
    values: &[(&str, u64)],
) -> anyhow::Result<()> {
    let labels = [label];
    let labels = if label.is_empty() { &labels[..0] } else { &labels[..] };
    let made = IntCounterVec::new(Opts::new(name, format!("{help} Counts from the start of underpassd.")), labels)?;
    registry.register(Box::new(made.clone()))?;
    for (of, value) in values {
        made.with_label_values(&[*of][..labels.len()]).inc_by(*value);
    }
    Ok(())
}

#[cfg(test)]
impl Broker {
    /// A daemon that reports all it can.
    pub fn example() -> Broker {
        let mut counts = Counts { meetings: 7, memory: 1 << 20, ..Counts::default() };
        counts.refuse(Refusal::Policy);
        let abilities = underpass_broker::Abilities { numbers: true, addresses: true, pidfd: true };
        let (token, mark, policy, network, seconds) = (1, 0, 0, None, 0);
        let state = underpass_broker::State { token, mark, abilities, policy, network, seconds, counts: Some(counts) };
        Broker { socket: SocketPath::NONE, contact: Contact::Answers(Box::new(state)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus::TextEncoder;

    fn text(broker: &Broker) -> String {
        let registry = Registry::new();
        broker.tell(&registry).unwrap();
        TextEncoder::new().encode_to_string(&registry.gather()).unwrap()
    }

    #[test]
    fn a_daemon_is_told_of_as_far_as_it_tells() {
        let mut broker = Broker::example();
        let told = text(&broker);
        for line in [
            "underpass_broker_up 1",
            "underpass_broker_meetings_total 7",
            "underpass_broker_pool_bytes 1048576",
            "underpass_broker_refusals_total{reason=\"policy\"} 1",
            "underpass_broker_refusals_total{reason=\"limit\"} 0",
            "underpass_broker_policy_reloads_total{outcome=\"taken\"} 0",
        ] {
            assert!(told.lines().any(|it| it == line), "{line}\n{told}");
        }
        if let Contact::Answers(state) = &mut broker.contact {
            state.counts = None;
        }
        let told = text(&broker);
        assert!(told.contains("underpass_broker_up 1") && !told.contains("meetings"), "{told}");
        broker.contact = Contact::Silent;
        assert!(text(&broker).contains("underpass_broker_up 0"));
        broker.contact = Contact::Unasked;
        assert_eq!(text(&broker), "");
    }
}
