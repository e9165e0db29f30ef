//! Boost.Asio's own tests of sockets, reads and writes: what a reactor takes for granted.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::{Verdict, Verdicts};
use anyhow::{Result, bail};
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

/// See above.
pub struct Asio;

impl Suite for Asio {
    fn name(&self) -> &'static str {
        "asio"
    }

    fn about(&self) -> &'static str {
        "what a reactor takes for granted: connects, accepts, reads until, writes, buffered streams"
    }

    fn parts(&self) -> &'static [&'static str] {
        &[
            "basic_stream_socket",
            "basic_socket_acceptor",
            "connect",
            "read",
            "read_at",
            "read_until",
            "write",
            "buffered_stream",
            "socket_base",
            "ip/tcp",
            "ip/basic_resolver",
        ]
    }

    fn prepare(&self, place: &Place, parts: &[&str]) -> Result<()> {
        place.need(&[("g++", "g++"), ("/usr/include/boost/asio.hpp", "libboost-dev")])?;
        let source = place.debian_source("boost1.74")?.join("libs/asio/test");
        fs::create_dir_all(place.path("bin/ip"))?;
        for part in parts {
            let program = program(place, part);
            if program.exists() {
                continue;
            }
            let file = source.join(format!("{part}.cpp"));
            if !file.exists() {
                bail!("the source has no {}", file.display());
            }
            let (file, program) = (file.to_string_lossy(), program.to_string_lossy());
            place.step(&source, "g++", ["-O1", "-pthread", "-I.", "-I..", "-o", &program, &file])?;
        }
        Ok(())
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let said = run.run(program(place, part), [""; 0], &place.fresh("work")?, &[], LIMIT)?;
        let mut verdicts = Verdicts::of_lines(&said.text, |line| {
            let (name, verdict) = line.rsplit_once(' ')?;
            match verdict {
                "passed" => Some((name, Verdict::Passed)),
                "failed" => Some((name, Verdict::Failed)),
                _ => None,
            }
        });
        verdicts.add(part, said.came_to_its_end());
        Ok(verdicts)
    }
}

fn program(place: &Place, part: &str) -> PathBuf {
    place.path("bin").join(part)
}
