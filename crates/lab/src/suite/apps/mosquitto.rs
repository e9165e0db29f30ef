//! mosquitto, a broker of MQTT messages: one publisher that reads lines from a file, one subscriber, nothing
//! acknowledged (QoS 0). Started by root the broker becomes a user of its own, as packages have it: then its
//! connections stay on kernel TCP.

use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rustix::process::{Signal, geteuid};

use super::load::{self, NOT_SLOWER, Told};
use super::{all_installed, folder, version};
use crate::bench::{Chosen, Experiment, LIMIT, Lab, skipped};
use crate::launcher::{Reading, Session};
use crate::plan::Plan;
use crate::process::{Running, free_port};
use crate::record::Skipped;
use crate::suite::arguments;
use crate::unit::Unit;
use crate::usage::Meter;
use crate::witness::Rule;

const NAME: &str = "mosquitto";
/// Messages of a sample: about two seconds on kernel TCP.
const MESSAGES: u64 = 150_000;
const TOPIC: &str = "bench";

/// Names the experiment.
pub fn add(chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    let programs = ["mosquitto", "mosquitto_pub", "mosquitto_sub"];
    match all_installed(NAME, programs, "mosquitto mosquitto-clients") {
        Ok([broker, publisher, subscriber]) => {
            chosen.versions.extend(version(&publisher, "--version"));
            let under = |user| Mosquitto {
                broker: broker.clone(),
                publisher: publisher.clone(),
                subscriber: subscriber.clone(),
                user,
            };
            chosen.add("apps", under(BrokerUser::Same));
            if geteuid().is_root() {
                chosen.add("apps", under(BrokerUser::Own));
            } else {
                missing.push(skipped(NAME, "only root can start a broker that becomes another user"));
            }
        }
        Err(skipped) => missing.push(skipped),
    }
}

/// The user as which the broker runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BrokerUser {
    /// The user of its clients.
    Same,
    /// A user of its own.
    Own,
}

#[derive(Debug)]
struct Mosquitto {
    broker: PathBuf,
    publisher: PathBuf,
    subscriber: PathBuf,
    user: BrokerUser,
}

impl Experiment for Mosquitto {
    fn plans(&self) -> Vec<Plan> {
        const NOTE: &str = "mosquitto_pub -l to mosquitto_sub, messages of 48 B";
        let (name, note) = match self.user {
            BrokerUser::Same => ("mosquitto QoS 0, 1 to 1", load::IN_PART),
            BrokerUser::Own => ("mosquitto QoS 0, 1 to 1, other user", "all connections stay on kernel TCP"),
        };
        let rate = Plan::rate(NAME, name, Unit::PerSecond).target(NOT_SLOWER).note(NOTE).note(note);
        load::plans(rate, "message", false)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let (folder, count) = (folder()?, lab.count(MESSAGES));
        let lines = folder.path().join("lines");
        fs::write(&lines, messages(count))?;
        let (mut broker, port) = self.serve(session, folder.path())?;
        let mut command = session.command(&self.subscriber);
        command.args(arguments!["-h", "127.0.0.1", "-p", port, "-t", TOPIC, "-C", count]);
        let subscriber = Running::start(&mut command)?;
        broker.wait_until(|| fs::read_to_string(folder.path().join("log")).is_ok_and(|log| log.contains(TOPIC)))?;

        let servers = [&broker];
        let (meter, begin) = (Meter::begin(&servers), Instant::now());
        let mut command = session.command(&self.publisher);
        command.args(arguments!["-h", "127.0.0.1", "-p", port, "-t", TOPIC, "-l"]);
        let publisher = Running::fed(&mut command, File::open(&lines)?)?.finish(LIMIT)?;
        let subscriber = subscriber.finish(LIMIT)?;
        let seconds = begin.elapsed().as_secs_f64();
        let time = meter.end() + publisher.processor_time + subscriber.processor_time;
        ensure!(subscriber.stdout == messages(count), "the subscriber did not get what was published");

        let told = Told { count: count as f64, per_second: count as f64 / seconds, p99_ns: None };
        let rule = if self.user == BrokerUser::Same { Rule::Connections } else { Rule::Loaded };
        let [first, second] = [&publisher, &subscriber].map(|end| told.readings(session, end.pid, rule, time));
        Ok(first.into_iter().zip(second).map(|(first, second)| first.and(second)).collect())
    }
}

impl Mosquitto {
    /// A broker that forgets nothing, and logs subscriptions.
    fn serve(&self, session: &Session, folder: &Path) -> Result<(Running, u16)> {
        let (port, here) = (free_port()?, folder.display());
        // Otherwise root's broker becomes another user, and users do not share memory.
        let user = if geteuid().is_root() && self.user == BrokerUser::Same { "user root\n" } else { "" };
        let text = format!(
            "listener {port} 127.0.0.1\nallow_anonymous true\n{user}max_queued_messages 0\nmax_inflight_messages 0\n\
             log_dest file {here}/log\nlog_type subscribe\n"
        );
        if self.user == BrokerUser::Own {
            // The other user logs here.
            fs::set_permissions(folder, Permissions::from_mode(0o755))?;
            fs::write(folder.join("log"), "")?;
            fs::set_permissions(folder.join("log"), Permissions::from_mode(0o666))?;
        }
        let configuration = folder.join("mosquitto.conf");
        fs::write(&configuration, text)?;
        let mut command = session.command(&self.broker);
        let server = Running::serving(command.arg("-c").arg(configuration), port, Signal::TERM);
        Ok((server.context("starting the broker")?, port))
    }
}

/// Lines that can be told apart.
fn messages(count: u64) -> String {
    (0..count).fold(String::new(), |mut text, number| {
        let _ = writeln!(text, "message {number:09} of a stream of short messages.");
        text
    })
}
