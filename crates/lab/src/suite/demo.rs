//! A few figures that show within three minutes what to expect: echoes, streams, and four servers.

use super::{apps, pingpong, stream};
use crate::bench::{Chosen, Lab};
use crate::record::Skipped;

/// The first figure of each experiment that takes part. One of them is known to gain nothing: a connection for each
/// request.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::Options;

    /// Fails if a suite gives a figure another name and the list above does not.
    #[test]
    fn each_figure_is_one_of_a_suite() {
        // Nothing is run, so that any file will do for the library.
        let lab = Lab::new(&Options::new("/proc/self/exe")).unwrap();
        let (mut chosen, mut missing) = (Chosen::default(), Vec::new());
        add(&lab, &mut chosen, &mut missing);
        let first = |experiment: &dyn crate::bench::Experiment| experiment.plans().into_iter().next();
        let names: Vec<String> =
            chosen.experiments.iter().filter_map(|(_, it)| first(it.as_ref())).map(|it| it.name).collect();
        for figure in FIGURES {
            let program = |name: &str| name.split(' ').next().map(str::to_string);
            let absent = missing.iter().find(|it| program(&it.name) == program(figure));
            let is_pinned = figure.ends_with(" B") || figure.ends_with(" writes");
            match names.iter().filter(|name| *name == figure).count() {
                1 => {}
                0 if absent.is_some() => println!("SKIPPED: {figure}, because {}", absent.unwrap().reason),
                0 if is_pinned && lab.processors.is_none() => println!("SKIPPED: {figure} needs two processors"),
                count => panic!("{count} figures are called {figure:?}; there are {names:#?}"),
            }
        }
        assert!(names.iter().all(|name| FIGURES.contains(&name.as_str())));
    }
}
