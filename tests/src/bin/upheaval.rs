//! Kills, stops and replaces `underpassd` under busy connections, for as long as one likes, on every ground.

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;
use std::time::Duration;
use underpass_tests::group;
use underpass_tests::upheaval::{Ground, Plan, upheave};

#[derive(Parser)]
#[command(
    about = "Kill, stop and replace underpassd under busy connections: between users, with a kept socket, between \
             containers"
)]
struct Options {
    /// Minutes in all
    #[arg(long, default_value_t = 10.0)]
    minutes: f64,
    /// Seconds between two faults
    #[arg(long, default_value_t = 1.0)]
    pace: f64,
    /// Connections that are kept
    #[arg(long, default_value_t = 1000)]
    connections: u32,
    /// Connections that come and go
    #[arg(long, default_value_t = 50)]
    passing: u32,
    /// Only this ground (users, kept, containers)
    #[arg(long)]
    ground: Option<String>,
    /// The seed of what is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    group::end_with_a_panic();
    let is_chosen =
        |ground: &Ground| options.ground.as_ref().is_none_or(|name| format!("{ground:?}").eq_ignore_ascii_case(name));
    let grounds: Vec<Ground> = Ground::ALL.into_iter().filter(is_chosen).collect();
    anyhow::ensure!(!grounds.is_empty(), "no such ground; see --help");
    let lasting = Duration::from_secs_f64(options.minutes * 60.0 / grounds.len() as f64);
    let mut complaints = 0;
    for ground in grounds {
        let pace = Duration::from_secs_f64(options.pace);
        let connections = [options.connections, options.passing, 4];
        let Some(outcome) = upheave(&Plan { ground, lasting, pace, connections, seed: options.seed }) else { continue };
        println!("{outcome}");
        for complaint in outcome.complaints() {
            println!("  FAILED: {complaint}");
            complaints += 1;
        }
    }
    Ok(if complaints == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
