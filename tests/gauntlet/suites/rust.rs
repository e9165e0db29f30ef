//! The tests of Rust's crates for sockets and event loops, from crates.io.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::{Verdict, Verdicts};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use underpass_tests::library;

/// Of one test program.
const LIMIT: Duration = Duration::from_secs(300);

/// A crate, its version, its features, and which of its test programs concern sockets (all without any).
const CRATES: &[(&str, &str, &str, &[&str])] = &[
    // Later versions keep their tests out of what they publish, as mio does.
    ("socket2", "0.3.19", "pair,reuseport,unix", &[]),
    ("polling", "3.8.0", "", &[]),
    ("async-io", "2.4.1", "", &[]),
    ("async-std", "1.13.2", "unstable,attributes", &["async_std", "addr", "io_", "tcp", "timeout", "uds"]),
    ("tokio", "1.45.1", "full,test-util", &["buffered", "tcp_", "io_", "rt_", "net_", "uds_", "time_timeout", "task_"]),
];

/// See above.
pub struct Rust;

impl Suite for Rust {
    fn name(&self) -> &'static str {
        "rust"
    }

    fn about(&self) -> &'static str {
        "edge-triggered readiness (mio through tokio), half closes, peeks, options"
    }

    fn parts(&self) -> &'static [&'static str] {
        &["socket2", "polling", "async-io", "async-std", "tokio"]
    }

    fn brief(&self) -> &'static [&'static str] {
        &["socket2", "polling", "async-std"]
    }

    fn prepare(&self, place: &Place, parts: &[&str]) -> Result<()> {
        for &(name, version, features, wanted) in CRATES.iter().filter(|(name, ..)| parts.contains(name)) {
            place.once(&format!("built-{name}-{version}"), || {
                let source = fetch(place, name, version)?;
                let programs = build(place, &source, features)?;
                let chosen = |program: &&PathBuf| {
                    let file = program.file_name().unwrap_or_default().to_string_lossy().into_owned();
                    wanted.is_empty() || wanted.iter().any(|prefix| file.starts_with(prefix))
                };
                let list: Vec<String> =
                    programs.iter().filter(chosen).map(|program| program.display().to_string()).collect();
                fs::write(place.path(&format!("{name}.programs")), list.join("\n"))?;
                Ok(())
            })?;
        }
        Ok(())
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let list = fs::read_to_string(place.path(&format!("{part}.programs")))?;
        let folder = place.path(&format!("source-{part}"));
        let mut verdicts = Verdicts::default();
        for program in list.lines() {
            let file = Path::new(program).file_name().unwrap_or_default().to_string_lossy().into_owned();
            // Without what Cargo puts behind it.
            let name = file.rsplit_once('-').map_or(&*file, |(name, _)| name);
            let said = run.run(program, ["--test-threads", "2"], &folder, &[], LIMIT)?;
            for line in said.text.lines() {
                if let Some((test, verdict)) = read(line) {
                    verdicts.add(&format!("{name}::{test}"), verdict);
                }
            }
            verdicts.add(name, said.came_to_its_end());
        }
        Ok(verdicts)
    }
}

/// "test name ... ok"; a test that says something itself may break the line, but not its end.
fn read(line: &str) -> Option<(&str, Verdict)> {
    let (name, said) = line.strip_prefix("test ")?.split_once(" ... ")?;
    let verdict = match said.trim() {
        "ok" => Verdict::Passed,
        it if it.starts_with("ignored") => Verdict::Skipped,
        it if it.ends_with("FAILED") => Verdict::Failed,
        _ => return None,
    };
    Some((name.trim_end_matches(" - should panic"), verdict))
}

/// The source of a crate, by way of a package that depends on it.
fn fetch(place: &Place, name: &str, version: &str) -> Result<PathBuf> {
    let package = place.fresh(&format!("fetch-{name}"))?;
    fs::create_dir_all(package.join("src"))?;
    fs::write(package.join("src/lib.rs"), "")?;
    let manifest = format!(
        "[package]\nname = \"fetch\"\nedition = \"2021\"\n[dependencies]\n{name} = \"={version}\"\n[workspace]\n"
    );
    fs::write(package.join("Cargo.toml"), manifest)?;
    place.step(&package, &cargo(), ["vendor", "--quiet", "--versioned-dirs"])?;
    let source = place.path(&format!("source-{name}"));
    if source.exists() {
        fs::remove_dir_all(&source)?;
    }
    fs::rename(package.join("vendor").join(format!("{name}-{version}")), &source)
        .with_context(|| format!("take the source of {name} {version}"))?;
    fs::remove_dir_all(&package)?;
    // As a package of its own: what is checked of vendored files is of no use here.
    let _ = fs::remove_file(source.join(".cargo-checksum.json"));
    let manifest = source.join("Cargo.toml");
    let mut table: toml::Table = fs::read_to_string(&manifest)?.parse()?;
    // An example of async-std's, and what it alone needs, which needs async-std in turn.
    table.remove("example");
    table.get_mut("dependencies").and_then(|it| it.as_table_mut()).map(|it| it.remove("surf"));
    // What its tests depend on depends on the crate itself: on this one.
    let text = format!("{table}\n[workspace]\n\n[patch.crates-io]\n{name} = {{ path = \".\" }}\n");
    fs::write(&manifest, text)?;
    // The lock file that it comes with would keep to the published one.
    let lock = fs::read_to_string(source.join("Cargo.lock")).unwrap_or_default();
    let locked = lock.split("[[package]]").filter(|package| package.contains(&format!("\nname = \"{name}\"\n")));
    let versions = locked.filter_map(|package| package.split("\nversion = \"").nth(1)?.split('"').next());
    for other in versions.filter(|other| *other != version) {
        place.step(&source, &cargo(), ["update", "--quiet", &format!("{name}@{other}"), "--precise", version])?;
    }
    Ok(source)
}

/// Builds the test programs of a crate.
fn build(place: &Place, source: &Path, features: &str) -> Result<Vec<PathBuf>> {
    let mut command = Command::new(cargo());
    command.args(["test", "--no-run", "--tests", "--lib", "--message-format=json", "--quiet", "--features", features]);
    // Debug information would take gigabytes.
    command.current_dir(source).env("CARGO_TARGET_DIR", place.path("target")).env("CARGO_PROFILE_DEV_DEBUG", "0");
    command.env("CARGO_INCREMENTAL", "0").env("RUSTFLAGS", "--cap-lints=warn");
    library::plain(&mut command);
    let output = command.output().context("run cargo")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("{} does not build\n{said}", source.display());
    }
    let lines = String::from_utf8_lossy(&output.stdout).into_owned();
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    let executable = |message: serde_json::Value| message["executable"].as_str().map(PathBuf::from);
    Ok(messages.filter(|message| message["profile"]["test"] == true).filter_map(executable).collect())
}

fn cargo() -> String {
    std::env::var("CARGO").unwrap_or_else(|_| "cargo".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_test_harness_are_read() {
        assert_eq!(read("test echo ... ok"), Some(("echo", Verdict::Passed)));
        assert_eq!(read("test net::peek - should panic ... FAILED"), Some(("net::peek", Verdict::Failed)));
        assert_eq!(read("test slow ... ignored, takes long"), Some(("slow", Verdict::Skipped)));
        assert_eq!(read("test result: ok. 3 passed"), None);
    }
}
