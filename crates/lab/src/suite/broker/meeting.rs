//! What meeting through the daemon costs a program, and how many meet in a second.

use anyhow::{Result, anyhow};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;

use super::household::{AT_ONCE, Ends, without_daemon};
use super::{ALONE, House};
use crate::bench::{Chosen, Experiment, LIMIT, Lab};
use crate::launcher::{Reading, Session, Side};
use crate::plan::{Plan, Target};
use crate::process::Running;
use crate::programs::Program;
use crate::statistic::median;
use crate::suite::arguments;
use crate::unit::Unit;
use crate::witness::Rule;

/// Names the experiments.
pub fn add(house: &House, chosen: &mut Chosen) {
    for is_first in [true, false] {
        let usual = None;
        chosen.add("broker", Meeting { is_first, usual, house: house.clone() });
    }
    chosen.add("broker", Many { house: house.clone() });
    for at_once in [false, true] {
        chosen.add("broker", Alone { at_once, house: house.clone() });
    }
}

/// What `meet` prints.
#[derive(Debug, Deserialize)]
struct Met {
    seconds: f64,
    /// Of each connection, in nanoseconds.
    round_trips: Vec<Vec<f64>>,
}

/// How much longer than usual the first round trips of a connection take, until it is fast.
#[derive(Debug)]
struct Meeting {
    /// The two processes have not met before.
    is_first: bool,
    /// The median of a round trip on kernel TCP, in the sample that is being taken.
    usual: Option<f64>,
    house: House,
}

impl Experiment for Meeting {
    fn plans(&self) -> Vec<Plan> {
        let (name, limit) = if self.is_first {
            ("two processes meet for the first time", 500_000.0)
        } else {
            ("two processes meet again", 100_000.0)
        };
        let plan = Plan::cost("meeting", name, Unit::Nanoseconds).target(Target::KernelPlus(limit));
        vec![plan.note("median of what the round trips of a connection take longer than the median on kernel TCP")]
    }

    fn prepare(&mut self, lab: &Lab) -> Result<()> {
        self.house.get(lab).map(drop)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let house = self.house.get(lab)?;
        let session = house.session(session.side())?;
        let (runs, count) = if self.is_first { (lab.count(20), 1) } else { (1, lab.count(300)) };
        let (mut all, mut pid, arguments) = (Vec::new(), 0, arguments!["--count", count]);
        for _ in 0..runs {
            let mut ends = house.helpers(lab, &session, Program::MEET, Ends::TwoUsers)?;
            // The kernel side does not know these settings.
            for command in &mut ends {
                command.envs(AT_ONCE);
            }
            let client = house.converse(ends.each_mut(), &arguments, None)?;
            let met: Met = client.json()?;
            pid = client.pid;
            all.extend(met.round_trips.into_iter().skip(usize::from(!self.is_first)));
        }
        if session.side() == Side::Kernel {
            self.usual = median(&all.concat());
        }
        let usual = self.usual.ok_or_else(|| anyhow!("no round trip on kernel TCP to compare with"))?;
        let longer: Vec<f64> = all.iter().map(|it| it.iter().map(|ns| (ns - usual).max(0.0)).sum()).collect();
        let longer = median(&longer).unwrap_or_default();
        Ok(vec![session.proven(pid, Rule::Connections, longer)])
    }
}

/// Pairs of processes whose connections meet one after another.
const PAIRS: u64 = 4;

#[derive(Debug)]
struct Many {
    house: House,
}

impl Experiment for Many {
    fn plans(&self) -> Vec<Plan> {
        let name = format!("a meeting of {PAIRS} pairs at once");
        let plan = Plan::cost("meeting", name, Unit::Nanoseconds).target(Target::AtMost(1e6));
        vec![plan.note("with connecting, 128 messages there and back, and closing; 1 ms is 1,000 meetings a second")]
    }

    fn sides(&self) -> &'static [Side] {
        &[Side::Underpass]
    }

    fn prepare(&mut self, lab: &Lab) -> Result<()> {
        self.house.get(lab).map(drop)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        let house = self.house.get(lab)?;
        let session = house.session(session.side())?;
        let [of_server, of_client] = house.users(Ends::TwoUsers);
        let count = lab.count(500);
        let command = |user| -> Result<_> {
            let mut command = house.helper(lab, &session, Program::MEET, user)?;
            command.envs(AT_ONCE).args(arguments!["--count", count]);
            Ok(command)
        };
        let (mut servers, mut clients) = (Vec::new(), Vec::new());
        for _ in 0..PAIRS {
            servers.push(Running::announced(&mut command(of_server)?)?);
        }
        let now = clock_gettime(ClockId::Monotonic);
        let start = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64 + 500_000_000;
        for (_, port) in &servers {
            clients.push(Running::start(command(of_client)?.args(arguments!["--port", port, "--start-at", start]))?);
        }
        let mut longest = Ok(0.0f64);
        for client in clients {
            let client = client.finish(LIMIT)?;
            let met: Met = client.json()?;
            let seconds = session.proven(client.pid, Rule::Connections, met.seconds);
            longest = longest.and_then(|longest: f64| seconds.map(|seconds| longest.max(seconds)));
        }
        for (server, _) in servers {
            server.finish(LIMIT)?;
        }
        Ok(vec![longest.map(|seconds| seconds * 1e9 / (PAIRS * count) as f64)])
    }
}

/// Connect, one exchange, close, of a client whose server is another user's and never under Underpass.
#[derive(Debug)]
struct Alone {
    /// The client looks for its other end at once, though there is none to find.
    at_once: bool,
    house: House,
}

#[derive(Debug, Deserialize)]
struct Rate {
    per_second: f64,
}

impl Experiment for Alone {
    fn plans(&self) -> Vec<Plan> {
        let how = if self.at_once { ", at once" } else { "" };
        let name = format!("connect, exchange, close, alone{how}");
        let plan = Plan::rate(ALONE, name, Unit::PerSecond);
        let plan = plan.note(
            "the server runs without Underpass, as another user; the baseline is the same where there is no daemon",
        );
        // No target for `at_once`, which is not the usual setting.
        vec![if self.at_once { plan } else { plan.target(Target::ShareOfBaseline(0.99)) }]
    }

    fn prepare(&mut self, lab: &Lab) -> Result<()> {
        self.house.get(lab).map(drop)
    }

    fn sample(&mut self, lab: &Lab, session: &Session) -> Result<Vec<Reading>> {
        Ok(vec![self.run(lab, session.side(), true)?])
    }

    fn baseline(&mut self, lab: &Lab) -> Result<Option<(&'static str, f64)>> {
        let reading = self.run(lab, Side::Underpass, false)?;
        Ok(Some(("no daemon", reading.map_err(|why| anyhow!(why))?)))
    }
}

impl Alone {
    fn run(&self, lab: &Lab, side: Side, has_daemon: bool) -> Result<Reading> {
        let house = self.house.get(lab)?;
        let (session, plain) = (house.session(side)?, house.session(Side::Kernel)?);
        let [of_server, of_client] = house.users(Ends::TwoUsers);
        let mut server = house.helper(lab, &plain, Program::CHURN, of_server)?;
        let mut client = house.helper(lab, &session, Program::CHURN, of_client)?;
        if self.at_once {
            client.envs(AT_ONCE);
        }
        if !has_daemon {
            without_daemon(&mut client);
        }
        let arguments = arguments!["--size", 64, "--count", lab.count(20_000), "--warm-up", lab.count(2000)];
        let client = house.converse([&mut server, &mut client], &arguments, None)?;
        let rate: Rate = client.json()?;
        Ok(session.proven(client.pid, Rule::Loaded, rate.per_second))
    }
}
