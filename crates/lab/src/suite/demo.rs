//! A few figures that show within three minutes what to expect: echoes, streams, and four servers.

use super::{apps, pingpong, stream};
use crate::bench::{Chosen, Lab};
use crate::record::Skipped;

/// The first figure of each experiment that takes part. One of them is known to gain nothing: a connection for each request.
const FIGURES: [&str; 11] = [
    "blocking, 1 B",
    "epoll, 1 B",
    "64 B writes",
    "64 KiB writes",
    "Redis GET, 1 client",
    "Redis GET, 50 clients",
    "memcached get and set, 1 client",
    "nginx 1 KiB keep-alive, 1 worker",
    "nginx ab, 8 clients",
    "PostgreSQL pgbench -S, 1 client",
    "PostgreSQL pgbench -S, 8 clients",
];

/// Names the suite's experiments.
pub fn add(lab: &Lab, chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    pingpong::add(lab, chosen);
    stream::add(lab, chosen);
    apps::add_popular(chosen, missing);
    chosen.experiments.retain(|(_, it)| it.plans().first().is_some_and(|plan| FIGURES.contains(&plan.name.as_str())));
}
