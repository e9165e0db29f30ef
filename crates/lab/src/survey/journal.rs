//! The journal of a survey that runs: a line of JSON for each sample, on the disk before the next sample is begun.
//!
//! The first line says what is measured between which endpoints. A survey that is begun again with the same journal
//! takes only the samples that are not in it. A last line without its end, as a crash leaves it, is cut off.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::record::{Endpoint, FORMAT, Head, Key, SCHEMA, Sample, Version, word};
use crate::input::{self, MOST_OF_RECORD};
use crate::unit::{is_possible, told};

/// A sample with its figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Which figure.
    pub key: Key,
    /// The sample.
    pub sample: Sample,
}

/// Why a journal cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// It cannot be read or written.
    #[error("cannot use the journal {}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's words.
        error: io::Error,
    },
    /// Another coordinator has it.
    #[error("another survey writes the journal {}; wait for its end, or name another file with --json", .0.display())]
    Taken(PathBuf),
    /// A line before the last makes no sense, or a file without a whole line does not begin as a journal.
    #[error("line {line} of the journal {} is damaged ({error}); move it away to begin anew", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Number of the line.
        line: usize,
        /// What is wrong.
        error: String,
    },
    /// What it began with is not what is to be measured.
    #[error("the journal {} is of another survey: {what}; samples of both must not be mixed: finish that one as it was \
             begun, with the same endpoints, users and networks, or name another file with --json", path.display())]
    Other {
        /// The file.
        path: PathBuf,
        /// What differs.
        what: String,
    },
}

/// An open journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    head: Option<Head>,
    entries: Vec<Entry>,
}

impl Journal {
    /// Opens a journal, or makes an empty one, and keeps others from it.
    ///
    /// # Errors
    /// [`JournalError`].
    pub fn open(path: &Path) -> Result<Journal, JournalError> {
        let broken = |error| JournalError::File { path: path.into(), error };
        let file = File::options().read(true).append(true).create(true).open(path).map_err(broken)?;
        if !file.metadata().map_err(broken)?.is_file() {
            return Err(broken(io::Error::other("it is not a file")));
        }
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => return Err(JournalError::Taken(path.into())),
            Err(TryLockError::Error(error)) => return Err(broken(error)),
            Ok(()) => {}
        }
        let text = input::read_from(&file, MOST_OF_RECORD).map_err(|error| broken(io::Error::other(error)))?;
        let mut journal = Journal { path: path.into(), file, head: None, entries: Vec::new() };
        let whole = text.iter().rposition(|octet| *octet == b'\n').map_or(0, |end| end + 1);
        for (number, line) in text[..whole].split_inclusive(|octet| *octet == b'\n').enumerate() {
            journal.read(number + 1, line)?;
        }
        journal.cut(whole, &text[whole..])?;
        Ok(journal)
    }

    /// Cuts off what a crash has left of a line, which is not a sample. A file of something else stays as it is.
    fn cut(&mut self, whole: usize, rest: &[u8]) -> Result<(), JournalError> {
        if rest.is_empty() {
            return Ok(());
        }
        let begin = format!("{{\"format\":\"{FORMAT}\"");
        if whole == 0 && !rest.starts_with(begin.as_bytes()) && !begin.as_bytes().starts_with(rest) {
            let error = "it does not begin as a journal".to_string();
            return Err(JournalError::Damaged { path: self.path.clone(), line: 1, error });
        }
        let cut = self.file.set_len(whole as u64).and_then(|()| self.file.seek(SeekFrom::End(0)));
        cut.map(drop).map_err(|error| JournalError::File { path: self.path.clone(), error })
    }

    fn read(&mut self, number: usize, line: &[u8]) -> Result<(), JournalError> {
        let damage = |error: String| JournalError::Damaged { path: self.path.clone(), line: number, error };
        let damaged = |error: serde_json::Error| damage(error.to_string());
        if number > 1 {
            let entry: Entry = serde_json::from_slice(line).map_err(damaged)?;
            let percentiles = entry.sample.percentiles.map(|it| [it.p50, it.p99, it.p999]).into_iter().flatten();
            let mut figures = percentiles.chain([entry.sample.value, entry.sample.seconds]);
            if let Some(figure) = figures.find(|it| !is_possible(*it)) {
                return Err(damage(format!("{} is no figure", told(figure))));
            }
            self.entries.push(entry);
            return Ok(());
        }
        let Version { format, schema } = serde_json::from_slice(line).map_err(damaged)?;
        if (format.as_str(), schema) != (FORMAT, SCHEMA) {
            let what = format!("its format is {format} {schema}, and this software writes {FORMAT} {SCHEMA}");
            return Err(JournalError::Other { path: self.path.clone(), what });
        }
        self.head = Some(serde_json::from_slice(line).map_err(damaged)?);
        Ok(())
    }

    /// What it began with, if it is not new.
    pub fn head(&self) -> Option<&Head> {
        self.head.as_ref()
    }

    /// The samples that it has.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Begins it, or goes on with it, if it is of the same survey: what it began with.
    ///
    /// # Errors
    /// It is of another survey, or cannot be written.
    pub fn begin(&mut self, head: Head) -> Result<Head, JournalError> {
        let Some(before) = &self.head else {
            self.write(&head)?;
            self.head = Some(head.clone());
            return Ok(head);
        };
        match difference(before, &head) {
            Some(what) => Err(JournalError::Other { path: self.path.clone(), what }),
            None => Ok(before.clone()),
        }
    }

    /// Keeps a sample: it is on the disk when this returns.
    ///
    /// # Errors
    /// The disk is full, or broken.
    pub fn keep(&mut self, entry: Entry) -> Result<(), JournalError> {
        self.write(&entry)?;
        self.entries.push(entry);
        Ok(())
    }

    /// Removes it if nothing is in it.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove_if_new(self) -> Result<(), JournalError> {
        if self.head.is_none() { self.remove() } else { Ok(()) }
    }

    /// Removes it, when the record has been written.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(self) -> Result<(), JournalError> {
        std::fs::remove_file(&self.path).map_err(|error| JournalError::File { path: self.path.clone(), error })
    }

    fn write(&mut self, line: &impl Serialize) -> Result<(), JournalError> {
        let mut write = || -> io::Result<()> {
            let mut text = serde_json::to_vec(line)?;
            text.push(b'\n');
            self.file.write_all(&text)?;
            self.file.sync_data()
        };
        write().map_err(|error| JournalError::File { path: self.path.clone(), error })
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        // A program that is being started holds a copy of the descriptor, and with it the lock, until it is executed.
        let _ = self.file.unlock();
    }
}

/// What keeps two surveys from being one.
fn difference(before: &Head, now: &Head) -> Option<String> {
    let version = |head: &Head| {
        let revision = head.revision.as_deref().map(|revision| format!(" ({revision})")).unwrap_or_default();
        format!("{}{revision}", head.version)
    };
    if (&before.version, &before.revision) != (&now.version, &now.revision) {
        return Some(format!("it was begun by Underpass {}, and this is {}", version(before), version(now)));
    }
    if before.seed != now.seed {
        return Some(format!("it was begun with --seed {}, not {}", before.seed, now.seed));
    }
    if before.plan != now.plan {
        return Some("it measures other figures".to_string());
    }
    let names = |head: &Head| head.endpoints.iter().map(|it| it.name.clone()).collect::<Vec<_>>();
    if names(before) != names(now) {
        return Some(format!("it is between {}, not {}", names(before).join(", "), names(now).join(", ")));
    }
    differing(&before.endpoints, &now.endpoints).map(|it| it.what)
}

/// An endpoint that is not as it was.
#[derive(Debug, PartialEq)]
pub(super) struct Difference {
    /// Its place among the endpoints.
    pub(super) at: usize,
    /// What differs.
    pub(super) what: String,
}

impl Difference {
    fn of(at: usize, what: Option<String>) -> Option<Difference> {
        what.map(|what| Difference { at, what })
    }
}

/// What about endpoints, which have the same names in the same order, has changed since the survey was begun.
pub(super) fn differing(before: &[Endpoint], now: &[Endpoint]) -> Option<Difference> {
    let version = before.iter().zip(now).enumerate().find_map(|(at, (before, now))| {
        let aspects = [
            ("version", or("not known", &before.revision), or("not known", &now.revision)),
            ("user number", user(before), user(now)),
        ];
        Difference::of(at, differs(&now.name, aspects))
    });
    version.or_else(|| changed(before, now))
}

/// What about endpoints, which have the same names in the same order, has changed that bears on figures, whatever
/// version of Underpass takes them. A user that is not known is any.
pub(super) fn changed(before: &[Endpoint], now: &[Endpoint]) -> Option<Difference> {
    let of_one = before.iter().zip(now).enumerate().find_map(|(at, (before, now))| {
        let known = |it: &Endpoint| before.user.map_or_else(String::new, |_| user(it));
        let aspects = [("library", library(before), library(now)), ("user number", known(before), known(now))];
        Difference::of(at, differs(&now.name, aspects).or_else(|| altered(before, now)))
    });
    let is_elsewhere = |identity| {
        let at = moved(before, now, identity)?;
        Some((at, beside(before, &before[at], identity), beside(now, &now[at], identity)))
    };
    of_one.or_else(|| {
        let on_host = is_elsewhere(host).map(|it| ("set of endpoints on the host", it));
        let in_network = || is_elsewhere(|it| &it.network).map(|it| ("set of endpoints in the network namespace", it));
        let (what, (at, before, now_beside)) = on_host.or_else(in_network)?;
        Difference::of(at, differs(&now[at].name, [(what, before, now_beside)]))
    })
}

/// The endpoint that shares its identity with others than before: that of which most others say so, as it is the one
/// that moved; the first of several.
fn moved(before: &[Endpoint], now: &[Endpoint], identity: fn(&Endpoint) -> &str) -> Option<usize> {
    let shares = |all: &[Endpoint], one: usize, other: usize| identity(&all[one]) == identity(&all[other]);
    let others =
        |at: usize| (0..now.len()).filter(|other| shares(before, at, *other) != shares(now, at, *other)).count();
    (0..now.len()).filter(|at| others(*at) > 0).min_by_key(|at| Reverse(others(*at)))
}

fn or(none: &str, text: &Option<String>) -> String {
    text.clone().unwrap_or_else(|| none.to_string())
}

fn library(endpoint: &Endpoint) -> String {
    if endpoint.library { "there" } else { "not there" }.to_string()
}

fn user(endpoint: &Endpoint) -> String {
    endpoint.user.map_or("not known".to_string(), |user| user.to_string())
}

/// The identity of the running kernel. It is another one after each start of the host, and so is that of a namespace
/// that was made anew: what is compared is who shares them.
pub(super) fn host(endpoint: &Endpoint) -> &str {
    endpoint.network.split(' ').next().unwrap_or_default()
}

/// The endpoints with the same identity as this one.
fn beside(all: &[Endpoint], one: &Endpoint, identity: fn(&Endpoint) -> &str) -> String {
    let those = all.iter().filter(|it| identity(it) == identity(one)).map(|it| it.name.as_str());
    those.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

/// What about an endpoint has changed that bears on figures of kernel TCP.
fn altered(before: &Endpoint, now: &Endpoint) -> Option<String> {
    let tools = |endpoint: &Endpoint| {
        let tools = endpoint.tools.iter().map(|it| format!("{} {}", it.tool.program(), it.version));
        let tools = tools.collect::<Vec<_>>().join(", ");
        if tools.is_empty() { "none".to_string() } else { tools }
    };
    // Older journals do not know it.
    let is_known = before.host.identity.is_some() && now.host.identity.is_some();
    let computer = |it: &Endpoint| it.host.identity.clone().filter(|_| is_known).unwrap_or_default();
    let aspects = [
        ("computer", computer(before), computer(now)),
        ("kind", word(before.kind), word(now.kind)),
        ("system", before.system.clone(), now.system.clone()),
        ("emulation", or("none", &before.emulation), or("none", &now.emulation)),
        ("address", before.address.clone(), now.address.clone()),
        ("kernel", before.host.kernel.clone(), now.host.kernel.clone()),
        ("processor", or("not known", &before.host.processor), or("not known", &now.host.processor)),
        ("number of processors", before.host.processors.to_string(), now.host.processors.to_string()),
        ("tools", tools(before), tools(now)),
    ];
    differs(&now.name, aspects)
}

/// The first aspect that is not as it was.
fn differs<const N: usize>(name: &str, aspects: [(&str, String, String); N]) -> Option<String> {
    let other = aspects.into_iter().find(|(_, before, now)| before != now);
    other.map(|(what, before, now)| {
        let [was, is] = if what == "tools" { ["were", "are"] } else { ["was", "is"] };
        format!("the {what} of {name} {was} {before} and {is} {now}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::survey::record::Kind;
    use crate::survey::record::tests::example;
    use proptest::prelude::*;

    fn head() -> Head {
        let mut head = Head { revision: Some("abc".to_string()), ..example().head };
        head.endpoints.iter_mut().for_each(|it| it.host.identity = Some("one".to_string()));
        head
    }

    fn entry(value: f64) -> Entry {
        let series = example().series[0].clone();
        Entry { key: series.key, sample: Sample { value, ..series.samples[0].clone() } }
    }

    /// A journal of three samples, closed, in a folder.
    fn three() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("journal");
        let mut journal = Journal::open(&path).unwrap();
        journal.begin(head()).unwrap();
        [1.0, 2.0, 3.0].into_iter().for_each(|value| journal.keep(entry(value)).unwrap());
        (folder, path)
    }

    #[test]
    fn what_was_kept_is_there_again() {
        let (_folder, path) = three();
        let mut journal = Journal::open(&path).unwrap();
        assert_eq!(journal.entries(), [entry(1.0), entry(2.0), entry(3.0)]);
        let later = Head { date: "2026-11-28T00:00:00Z".to_string(), ..head() };
        assert_eq!(journal.begin(later).unwrap(), head(), "the survey began when it began");
        journal.keep(entry(4.0)).unwrap();
        drop(journal);
        assert_eq!(Journal::open(&path).unwrap().entries().len(), 4);
    }

    #[test]
    fn half_a_sample_is_cut_off_and_the_next_is_whole() {
        let (_folder, path) = three();
        let text = std::fs::read(&path).unwrap();
        let third = text[..text.len() - 1].iter().rposition(|octet| *octet == b'\n').unwrap() + 1;
        for end in [third + 1, text.len() - 20, text.len() - 1] {
            std::fs::write(&path, &text[..end]).unwrap();
            let mut journal = Journal::open(&path).unwrap();
            assert_eq!(journal.entries(), [entry(1.0), entry(2.0)]);
            journal.keep(entry(9.0)).unwrap();
            drop(journal);
            assert_eq!(Journal::open(&path).unwrap().entries(), [entry(1.0), entry(2.0), entry(9.0)]);
        }
    }

    #[test]
    fn a_damaged_line_and_an_older_format_are_named() {
        let (_folder, path) = three();
        let text = std::fs::read_to_string(&path).unwrap();
        let message = |text: String| {
            std::fs::write(&path, text).unwrap();
            Journal::open(&path).unwrap_err().to_string()
        };
        assert!(message(text.replacen("\"value\":2.0", "\"value\":NaN", 1)).starts_with("line 3 of the journal"));
        assert!(message(text.replacen("\"value\":2.0", "\"value\":-2.0", 1)).contains("is damaged (-2 is no figure)"));
        assert!(message(text.replacen("\"value\":2.0", "\"value\":2e300", 1)).contains("(2e300 is no figure)"));
        assert!(message(text.replacen("\"seconds\":1.0", "\"seconds\":-1.0", 1)).contains("(-1 is no figure)"));
        assert!(message(text.replacen("\"schema\":1", "\"schema\":0", 1)).contains("underpass-survey 0"));
    }

    /// A survey is given the name of its record, and may find anything under that of its journal.
    #[test]
    fn what_is_no_journal_stays_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("survey.json.journal");
        for text in ["my diary", "my diary\nand more", "{\"format\":\"mine"] {
            std::fs::write(&path, text).unwrap();
            let error = Journal::open(&path).unwrap_err();
            assert!(matches!(&error, JournalError::Damaged { line: 1, .. }), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert!(Journal::open(&path).unwrap_err().to_string().contains("it is not a file"));
    }

    #[test]
    fn another_survey_is_refused_by_what_differs() {
        let (_folder, path) = three();
        let refused = |change: fn(&mut Head)| {
            let mut head = head();
            change(&mut head);
            Journal::open(&path).unwrap().begin(head).unwrap_err().to_string()
        };
        assert!(
            refused(|it| it.version = "0.2.0".to_string())
                .contains("begun by Underpass 0.1.0 (abc), and this is 0.2.0 (abc)")
        );
        assert!(refused(|it| it.revision = None).contains("begun by Underpass"));
        assert!(refused(|it| it.seed = 8).contains("--seed 7, not 8"));
        assert!(refused(|it| it.plan.samples = 9).contains("other figures"));
        assert!(refused(|it| it.endpoints[1].name = "nic-b".to_string()).contains("host-a, nic-a, not host-a, nic-b"));
        let tools = refused(|it| it.endpoints[0].tools[0].version = "3.16".to_string());
        assert!(tools.contains("the tools of host-a were iperf3 3.12 and are iperf3 3.16"), "{tools}");
        let revision = refused(|it| it.endpoints[0].revision = Some("def".to_string()));
        assert!(revision.contains("the version of host-a was not known and is def"), "{revision}");
        let kind = refused(|it| it.endpoints[1].kind = Kind::Vm);
        assert!(kind.contains("the kind of nic-a was smartnic and is vm"), "{kind}");
        assert!(refused(|it| it.endpoints[1].host.kernel = "Linux 7".to_string()).contains("kernel of nic-a"));
        let computer = refused(|it| it.endpoints[1].host.identity = Some("other".to_string()));
        assert!(computer.contains("the computer of nic-a was one and is other"), "{computer}");
        // Between programs of one user in one network namespace there is a fast path, and between others there is none.
        let user = refused(|it| it.endpoints[1].user = Some(1000));
        assert!(user.contains("the user number of nic-a was 0 and is 1000"), "{user}");
        assert!(user.contains("with the same endpoints, users and networks, or name another file"), "{user}");
        let apart = refused(|it| it.endpoints[1].network = "n net:[2]".to_string());
        let expected = "the set of endpoints in the network namespace of host-a was host-a, nic-a and is host-a;";
        assert!(apart.contains(expected), "{apart}");
        let hosts = refused(|it| it.endpoints[1].network = "other net:[1]".to_string());
        assert!(
            hosts.contains("the set of endpoints on the host of host-a was host-a, nic-a and is host-a;"),
            "{hosts}"
        );
    }

    /// A host that was started anew has another identity, and so have the namespaces that a survey makes for itself.
    #[test]
    fn networks_that_are_shared_as_before_are_the_same() {
        let (_folder, path) = three();
        let mut head = head();
        head.endpoints.iter_mut().for_each(|it| it.network = "started-anew net:[9]".to_string());
        Journal::open(&path).unwrap().begin(head).unwrap();
    }

    #[test]
    fn two_coordinators_do_not_share_a_journal() {
        let (_folder, path) = three();
        let first = Journal::open(&path).unwrap();
        assert!(matches!(Journal::open(&path), Err(JournalError::Taken(_))));
        drop(first);
        Journal::open(&path).unwrap().remove().unwrap();
        assert!(!path.exists());
    }

    proptest! {
        #[test]
        fn however_much_of_it_is_left_nothing_is_made_up(end in 0..1usize << 12) {
            let (_folder, path) = three();
            let text = std::fs::read(&path).unwrap();
            std::fs::write(&path, &text[..end.min(text.len())]).unwrap();
            let journal = Journal::open(&path).unwrap();
            let all = [entry(1.0), entry(2.0), entry(3.0)];
            prop_assert!(all.starts_with(journal.entries()));
        }
    }
}
