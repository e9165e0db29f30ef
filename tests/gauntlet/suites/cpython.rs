//! CPython's own tests of sockets, polls, event loops, protocols and processes, as Debian packs them.

use super::Suite;
use crate::launch::Run;
use crate::place::Place;
use crate::verdict::{Verdict, Verdicts};
use anyhow::{Context, Result};
use std::fs;
use std::time::Duration;

const PYTHON: &str = "/usr/bin/python3.11";
const LIMIT: Duration = Duration::from_secs(900);

/// See above.
pub struct CPython;

impl Suite for CPython {
    fn name(&self) -> &'static str {
        "cpython"
    }

    fn about(&self) -> &'static str {
        "timeouts, fork, descriptors passed, files made of sockets, TLS, every call and flag"
    }

    fn parts(&self) -> &'static [&'static str] {
        &[
            "test_selectors",
            "test_select",
            "test_poll",
            "test_epoll",
            "test_socketserver",
            "test_httplib",
            "test_httpservers",
            "test_ftplib",
            "test_smtplib",
            "test_poplib",
            "test_imaplib",
            "test_asyncore",
            "test_asynchat",
            "test_urllib2_localnet",
            "test_xmlrpc",
            "test_signal",
            "test_os",
            "test_ssl",
            "test_logging",
            "test_subprocess",
            "test_socket",
            "test_asyncio",
            "test_multiprocessing_fork",
            "test_multiprocessing_spawn",
            "test_multiprocessing_forkserver",
            "test_concurrent_futures",
        ]
    }

    fn brief(&self) -> &'static [&'static str] {
        &["test_select", "test_epoll", "test_socketserver", "test_httplib", "test_httpservers", "test_asynchat"]
    }

    fn prepare(&self, place: &Place, _: &[&str]) -> Result<()> {
        place.need(&[(PYTHON, "python3.11"), ("/usr/lib/python3.11/test/test_socket.py", "libpython3.11-testsuite")])
    }

    fn run(&self, place: &Place, part: &str, run: &Run<'_>) -> Result<Verdicts> {
        let folder = place.fresh("work")?;
        let report = folder.join("report.xml");
        let report = report.to_str().context("a path that is text")?;
        let mut arguments = vec!["-m", "test", "-v", "-u", "all,-urlfetch,-largefile", "--junit-xml", report];
        // Those of VSOCK talk to the machine's host.
        arguments.extend(["--ignore", "*VSOCK*", part]);
        let said = run.run(PYTHON, arguments, &folder, &[], LIMIT)?;
        let text = fs::read_to_string(report).unwrap_or_default();
        let mut verdicts = if text.is_empty() { Verdicts::default() } else { junit(&text)? };
        verdicts.add(part, said.verdict());
        Ok(verdicts)
    }
}

/// Python's report of its tests.
fn junit(text: &str) -> Result<Verdicts> {
    let report = roxmltree::Document::parse(text).context("read Python's report")?;
    let mut verdicts = Verdicts::default();
    for test in report.descendants().filter(|node| node.has_tag_name("testcase")) {
        let has = |tag: &str| test.children().any(|child| child.has_tag_name(tag));
        let verdict = if has("error") || has("failure") {
            Verdict::Failed
        } else if has("skipped") {
            Verdict::Skipped
        } else {
            Verdict::Passed
        };
        verdicts.add(test.attribute("name").unwrap_or_default(), verdict);
    }
    Ok(verdicts)
}
