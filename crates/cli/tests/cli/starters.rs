//! Agents that a survey starts by other programs: ssh, against an sshd of this test, and stand-ins for srun and
//! kubectl, which check what they are given and run the rest.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::support::{UNDERPASS, is_root, kill, skip, stderr, underpass, wait_for};

/// An endpoint whose agent a command starts.
fn endpoint(name: &str, start: &[&str]) -> String {
    format!("[[endpoint]]\nname = \"{name}\"\nkind = \"container\"\naddress = \"127.0.0.1\"\nstart = {start:?}\n")
}

/// A survey of these endpoints, in this folder, whose `bin` comes first in the search for programs.
fn begin(folder: &Path, endpoints: &[String]) -> Child {
    let plan = "[plan]\nsizes = [64]\nflows = [1]\ntls = []\nunderpass = false\n";
    fs::write(folder.join("endpoints.toml"), endpoints.concat() + plan).unwrap();
    let path = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());
    let mut command = underpass(&["survey", "endpoints.toml"]);
    command.current_dir(folder).env("PATH", path).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Ends a survey when it has taken a sample of each endpoint's agent: it has spoken with all of them by then.
fn until_a_sample(folder: &Path, mut survey: Child) -> Output {
    let journal = || fs::read_to_string(folder.join("survey.json.journal")).unwrap_or_default();
    wait_for("a sample", || {
        let ended = survey.try_wait().unwrap().is_some();
        (ended || journal().matches('\n').count() >= 2).then_some(())
    });
    let _ = Command::new("kill").args(["-s", "INT", &survey.id().to_string()]).stderr(Stdio::null()).status();
    survey.wait_with_output().unwrap()
}

fn tools() -> bool {
    let found = |tool: &&str| Command::new(tool).arg("--version").output().is_ok();
    ["iperf3", "sockperf"].iter().all(found)
}

fn program(path: &Path, script: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    // By another process: what another test forks meanwhile would have it open for writing, and nobody could execute
    // it.
    let write = Command::new("sh").arg("-c").arg("printf '%s' \"$1\" > \"$0\"").arg(path).arg(script).status();
    assert!(write.unwrap().success());
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// An sshd at a port of loopback, with keys that were made for it.
struct Sshd {
    folder: tempfile::TempDir,
    port: u16,
    server: Child,
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

impl Sshd {
    /// `None` if it cannot run here; says why.
    fn start() -> Option<Sshd> {
        let sshd = ["/usr/sbin/sshd", "/usr/bin/sshd"].into_iter().find(|it| Path::new(it).exists());
        let Some(sshd) = sshd.filter(|_| Command::new("ssh").arg("-V").output().is_ok()) else {
            skip("openssh-server and openssh-client are needed");
            return None;
        };
        if is_root() {
            // The folder in which root's sshd confines connections that are not authenticated yet (sshd(8), FILES).
            fs::create_dir_all("/run/sshd").unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        for key in ["host", "user", "stranger"] {
            let mut keygen = Command::new("ssh-keygen");
            keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(folder.path().join(key));
            assert!(keygen.status().unwrap().success());
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let path = folder.path().display();
        let configuration = format!(
            "Port {port}\nListenAddress 127.0.0.1\nHostKey {path}/host\nAuthorizedKeysFile \
             {path}/user.pub\nStrictModes no\n\
             UsePAM no\nPidFile none\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nPermitRootLogin yes\n"
        );
        fs::write(folder.path().join("configuration"), configuration).unwrap();
        let host = fs::read_to_string(folder.path().join("host.pub")).unwrap();
        fs::write(folder.path().join("known"), format!("[127.0.0.1]:{port} {host}")).unwrap();
        let mut server = Command::new(sshd);
        server.args(["-D", "-e", "-f"]).arg(folder.path().join("configuration"));
        let log = fs::File::create(folder.path().join("log")).unwrap();
        let mut it = Sshd { port, server: server.stdin(Stdio::null()).stderr(log).spawn().unwrap(), folder };
        wait_for("sshd", || {
            assert!(it.server.try_wait().unwrap().is_none(), "sshd ended: {}", it.log());
            TcpStream::connect(("127.0.0.1", it.port)).ok()
        });
        Some(it)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    /// What starts an agent by this sshd, with one of the keys.
    fn agent(&self, key: &str) -> Vec<String> {
        let user = Command::new("id").arg("-un").output().unwrap().stdout;
        let user = String::from_utf8(user).unwrap().trim().to_string();
        let (port, key, known) = (self.port.to_string(), self.path(key), self.path("known"));
        let known = format!("UserKnownHostsFile={known}");
        let words = ["ssh", "-F", "none", "-i", &key, "-p", &port, "-o", &known, "-o", "StrictHostKeyChecking=yes"];
        let more = ["-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", &format!("{user}@127.0.0.1"), UNDERPASS];
        words.iter().chain(&more).chain(&["agent", "--stdio"]).map(|word| word.to_string()).collect()
    }

    /// Processes that serve a connection.
    fn sessions(&self) -> String {
        let pid = self.server.id();
        fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default()
    }
}

fn words(words: &[String]) -> Vec<&str> {
    words.iter().map(String::as_str).collect()
}

#[test]
fn agents_are_started_by_ssh_and_end_with_the_survey() {
    if !tools() {
        return skip("a survey needs iperf3 and sockperf");
    }
    let Some(sshd) = Sshd::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let agent = sshd.agent("user");
    let survey = begin(folder.path(), &[endpoint("a", &words(&agent)), endpoint("b", &words(&agent))]);
    let end = until_a_sample(folder.path(), survey);
    assert!(stderr(&end).contains("samples are kept"), "{}\n{}", stderr(&end), sshd.log());
    wait_for("the end of both sessions", || sshd.sessions().trim().is_empty().then_some(()));
}

#[test]
fn what_ssh_says_is_seen_where_it_is_refused() {
    let Some(sshd) = Sshd::start() else { return };
    let folder = tempfile::tempdir().unwrap();
    let (known, stranger) = (sshd.agent("user"), sshd.agent("stranger"));
    let survey = begin(folder.path(), &[endpoint("a", &words(&known)), endpoint("b", &words(&stranger))]);
    let end = survey.wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(1));
    let said = stderr(&end);
    assert!(said.contains("Permission denied (publickey)"), "{said}\n{}", sshd.log());
    assert!(said.contains("  b: the other end closed the connection") && !said.contains("  a: "), "{said}");
    wait_for("the end of all sessions", || sshd.sessions().trim().is_empty().then_some(()));
}

/// Slurm passes lines on unless it is told not to, and messages are no lines.
const SRUN: &str = r#"#!/bin/sh
[ "$1 $2 $3" = "--unbuffered --ntasks=1 --nodelist=node7" ] || { echo "srun: not understood: $*" >&2; exit 64; }
shift 3
exec "$@"
"#;
const KUBECTL: &str = r#"#!/bin/sh
[ "$1 $2 $3 $4" = "exec --stdin pod-b --" ] || { echo "kubectl: not understood: $*" >&2; exit 64; }
shift 4
exec "$@"
"#;

fn stand_ins(folder: &Path) -> [PathBuf; 2] {
    let [srun, kubectl] = ["srun", "kubectl"].map(|name| folder.join("bin").join(name));
    program(&srun, SRUN);
    program(&kubectl, KUBECTL);
    [srun, kubectl]
}

#[test]
fn agents_are_started_by_srun_and_kubectl() {
    if !tools() {
        return skip("a survey needs iperf3 and sockperf");
    }
    let folder = tempfile::tempdir().unwrap();
    stand_ins(folder.path());
    let srun = ["srun", "--unbuffered", "--ntasks=1", "--nodelist=node7", UNDERPASS, "agent", "--stdio"];
    let kubectl = ["kubectl", "exec", "--stdin", "pod-b", "--", UNDERPASS, "agent", "--stdio"];
    let survey = begin(folder.path(), &[endpoint("a", &srun), endpoint("b", &kubectl)]);
    let end = until_a_sample(folder.path(), survey);
    assert!(stderr(&end).contains("samples are kept"), "{}", stderr(&end));
}

#[test]
fn a_starter_that_fails_or_prints_something_else_is_named() {
    let folder = tempfile::tempdir().unwrap();
    stand_ins(folder.path());
    program(
        &folder.path().join("bin/motd"),
        "#!/bin/sh\necho 'Welcome to the cluster, have a nice day'\nexec \"$@\"\n",
    );
    let kubectl = ["kubectl", "exec", "pod-b", "--", UNDERPASS, "agent", "--stdio"];
    let motd = ["motd", UNDERPASS, "agent", "--stdio"];
    let end = begin(folder.path(), &[endpoint("a", &kubectl), endpoint("b", &motd)]).wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(1));
    let said = stderr(&end);
    assert!(said.contains("kubectl: not understood: exec pod-b"), "{said}");
    let ended = "  a: the other end closed the connection: \"kubectl\" ended (exit status: 64) before an agent spoke";
    assert!(said.contains(ended), "{said}");
    assert!(
        said.contains("  b: the other end does not speak as an agent") && said.contains("print something"),
        "{said}"
    );
}

/// An endpoint whose programs are those in `bin` alone.
fn bare(name: &str, folder: &Path) -> String {
    endpoint(name, &["env", &format!("PATH={}", folder.join("bin").display()), UNDERPASS, "agent", "--stdio"])
}

#[test]
fn tools_that_are_missing_or_too_old_are_named() {
    let folder = tempfile::tempdir().unwrap();
    program(&folder.path().join("bin/iperf3"), "#!/bin/sh\necho 'iperf 3.1.3'\n");
    let endpoints = [bare("a", folder.path()), bare("b", folder.path())];
    let end = begin(folder.path(), &endpoints).wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(1));
    let said = stderr(&end);
    for name in ["a", "b"] {
        assert!(
            said.contains(&format!("{name}: throughput: iperf3 3.1.3 is too old; 3.7 or later is needed")),
            "{said}"
        );
        assert!(
            said.contains(&format!("{name}: latency: sockperf is not installed (Debian: apt-get install")),
            "{said}"
        );
    }
    assert!(!folder.path().join("survey.json").exists() && !folder.path().join("survey.json.journal").exists());
}

/// As a server the tool does not listen, and as a client it does not end.
#[test]
fn a_tool_that_prints_without_end_is_named_and_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let yes = ["/usr/bin/yes", "/bin/yes"].into_iter().find(|it| Path::new(it).exists()).expect("coreutils");
    let liar = format!("#!/bin/sh\n[ \"$1\" != --version ] || {{ echo 'iperf 3.12'; exit; }}\nexec {yes}\n");
    program(&folder.path().join("bin/iperf3"), &liar);
    let endpoints = [bare("a", folder.path()), bare("b", folder.path())];
    let end = begin(folder.path(), &endpoints).wait_with_output().unwrap();
    assert_eq!(end.status.code(), Some(0), "all that can be measured is, which is nothing: {}", stderr(&end));
    let record: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(folder.path().join("survey.json")).unwrap()).unwrap();
    assert_eq!(record["series"].as_array().unwrap().len(), 0);
    let reasons: Vec<&str> =
        record["skipped"].as_array().unwrap().iter().map(|it| it["reason"].as_str().unwrap()).collect();
    let named = reasons.iter().filter(|it| it.contains("iperf3 printed more than") && it.ends_with("(3 times)"));
    assert_eq!(named.count(), 2, "{reasons:?}");
}

#[test]
fn an_agent_that_is_killed_is_started_again() {
    if !tools() {
        return skip("a survey needs iperf3 and sockperf");
    }
    let folder = tempfile::tempdir().unwrap();
    // Each start leaves a line with the number of the process that becomes the agent.
    program(&folder.path().join("bin/noted"), "#!/bin/sh\necho $$ >> starts\nexec \"$@\"\n");
    let noted = ["noted", UNDERPASS, "agent", "--stdio"];
    let survey = begin(folder.path(), &[endpoint("a", &noted), endpoint("b", &noted)]);
    let starts = || fs::read_to_string(folder.path().join("starts")).unwrap_or_default();
    let samples = || {
        let journal = fs::read_to_string(folder.path().join("survey.json.journal")).unwrap_or_default();
        journal.matches('\n').count().saturating_sub(1)
    };
    wait_for("a sample", || (samples() >= 1).then_some(()));
    let first: u32 = starts().lines().next().unwrap().parse().unwrap();
    kill("KILL", first);
    wait_for("another start", || (starts().lines().count() >= 3).then_some(()));
    let before = samples();
    wait_for("a sample by the new agent", || (samples() > before).then_some(()));
    kill("INT", survey.id());
    let end = survey.wait_with_output().unwrap();
    assert!(stderr(&end).contains("interrupted") && !stderr(&end).contains("was lost"), "{}", stderr(&end));
}
