//! Whether connections between two processes may be fast, in the order in which the library and the daemon decide it.

use std::path::Path;

use underpass_broker::{Refusal, State};
use underpass_policy::{DEFAULT_GROUP, End, Grounds, Network, Policy, Rule};
use underpass_segment::reason::Reason;

use super::process::Seen;
use crate::broker::Contact;

/// What two processes are judged by.
pub struct Here<'a> {
    /// What the daemon says of itself.
    pub contact: &'a Contact,
    /// Its socket.
    pub socket: &'a Path,
    pub policy: &'a Policy,
    /// Where the policy stands; `None`: it is the default.
    pub file: Option<&'a Path>,
    /// Cookie and inode of the network namespace of this command.
    pub network: Option<(u64, u64)>,
}

/// The answer.
#[derive(Debug, Default)]
pub struct Verdict {
    /// `None`: it depends on what was not told.
    pub may_be_fast: Option<bool>,
    /// Why not.
    pub reason: Option<&'static str>,
    /// What decides: `directory`, `same-user`, `group` or `rule`.
    pub by: Option<&'static str>,
    /// The rule that decides, or on which it depends.
    pub rule: Option<RuleText>,
    pub text: String,
    pub remedy: Option<String>,
    pub notes: Vec<String>,
}

/// A rule of the policy.
#[derive(Debug)]
pub struct RuleText {
    pub name: Option<String>,
    pub line: usize,
    pub text: String,
}

impl From<&Rule> for RuleText {
    fn from(rule: &Rule) -> RuleText {
        RuleText { name: rule.name.clone(), line: rule.line, text: rule.to_string() }
    }
}

fn fast(by: &'static str, text: impl Into<String>) -> Verdict {
    Verdict { may_be_fast: Some(true), by: Some(by), text: text.into(), ..Verdict::default() }
}

fn slow(reason: Reason, text: impl Into<String>, remedy: impl Into<String>) -> Verdict {
    Verdict {
        may_be_fast: Some(false),
        reason: Some(reason.key()),
        text: text.into(),
        remedy: Some(remedy.into()),
        ..Verdict::default()
    }
}

/// Whether both are the same; `None` where one of them is not known.
fn same(one: Option<u64>, other: Option<u64>) -> Option<bool> {
    Some(one? == other?)
}

impl Here<'_> {
    /// Whether connections between these two may be fast.
    pub fn judge(&self, ends: [&Seen; 2]) -> Verdict {
        let [one, other] = ends;
        let same_network = same(one.namespaces.net, other.namespaces.net);
        let in_one = [
            same_network,
            same(one.namespaces.ipc, other.namespaces.ipc),
            same(one.namespaces.pid, other.namespaces.pid),
        ];
        let is_one_user = one.user.uid == other.user.uid;
        let by_themselves = is_one_user && !one.hides && !other.hides && !in_one.contains(&Some(false));
        let mut verdict = if by_themselves { by_directory(one) } else { self.by_daemon(ends, same_network) };
        verdict.notes.extend(notes(ends));
        verdict
    }

    fn by_daemon(&self, ends: [&Seen; 2], same_network: Option<bool>) -> Verdict {
        let state = match self.state() {
            Ok(state) => state,
            Err((text, remedy)) => {
                let text = format!("only underpassd could say who is at the other end, and {text}");
                return slow(Reason::NoBroker, text, remedy);
            }
        };
        let networks = ends.map(|end| self.network_of(end, state));
        let is_provable = state.abilities.numbers || networks == [Some(Network::Host); 2];
        let mut verdict = if !is_provable && (same_network == Some(false) || networks.contains(&Some(Network::Other))) {
            slow(
                Reason::Unproven,
                "they are in other network namespaces than underpassd, and it proves connections of its own alone",
                Refusal::Unproven.remedy(),
            )
        } else {
            self.by_policy(ends, networks)
        };
        if state.policy != self.policy.mark() {
            verdict.notes.push(format!(
                "underpassd goes by another policy than {} says now: reload it (systemctl reload underpassd, or \
                 SIGHUP), or name by --policy what it was started with",
                self.shown()
            ));
        }
        verdict
    }

    fn shown(&self) -> String {
        self.file.map_or_else(|| "the default".into(), |it| it.display().to_string())
    }

    /// The daemon's state, or why it says none, and what to do about it.
    fn state(&self) -> Result<&State, (String, &'static str)> {
        let at = self.socket.display();
        Err(match self.contact {
            Contact::Answers(state) => return Ok(state.as_ref()),
            Contact::Unasked => {
                ("underpassd is not asked: the setting broker is empty".into(), "name its socket by broker")
            }
            Contact::Absent => {
                (format!("no underpassd listens at {at}"), "start it: systemctl enable --now underpassd.service")
            }
            Contact::Barred(error) => (
                format!("underpassd cannot be asked at {at}: {error}"),
                "let all users connect: mode 0666 of the socket, and x of its folders",
            ),
            Contact::Silent => (
                format!("underpassd does not answer at {at}"),
                "continue it if it is stopped; start it anew if it is of another version",
            ),
            Contact::Refuses(refusal) => {
                (format!("underpassd refuses at {at}: {}", refusal.sentence()), refusal.remedy())
            }
        })
    }

    /// Which network the policy takes it for.
    fn network_of(&self, end: &Seen, state: &State) -> Option<Network> {
        let ((cookie, inode), host) = (self.network?, state.network?);
        match (end.namespaces.net? == inode, cookie == host) {
            (true, true) => Some(Network::Host),
            (true, false) | (false, true) => Some(Network::Other),
            (false, false) => None,
        }
    }

    fn by_policy(&self, [one, other]: [&Seen; 2], networks: [Option<Network>; 2]) -> Verdict {
        let ends = [(one, networks[0]), (other, networks[1])];
        let ends = ends.map(|(seen, network)| End { user: &seen.user, network, port: seen.port });
        let (decision, open) = self.policy.consider([&ends[0], &ends[1]]);
        if let [rule, ..] = open[..] {
            let otherwise = if decision.allowed { "otherwise they may" } else { "otherwise they stay on kernel TCP" };
            let all: Vec<String> = open.iter().map(|rule| rule.to_string()).collect();
            return Verdict {
                may_be_fast: None,
                by: Some("rule"),
                rule: Some(rule.into()),
                text: format!(
                    "it depends on what is not known here: {}; {otherwise}, because {}",
                    all.join("; "),
                    decision.grounds
                ),
                remedy: Some("name the ports (PID:PORT), and ask as root, to whom namespaces are shown".into()),
                ..Verdict::default()
            };
        }
        let because = decision.grounds.to_string();
        match (decision.allowed, decision.grounds) {
            (true, Grounds::SameUser) => fast("same-user", because),
            (true, Grounds::Group(_)) => fast("group", because),
            (true, Grounds::Rule(rule)) => Verdict { rule: Some(rule.into()), ..fast("rule", because) },
            (true, Grounds::NoRule) | (false, Grounds::NoRule | Grounds::SameUser | Grounds::Group(_)) => {
                let [one, other] = [&one.user, &other.user].map(|it| it.uid);
                let remedy = format!(
                    "make both users members of its group ({DEFAULT_GROUP} by default; usermod -aG GROUP USER) and \
                     start the programs anew, or write a rule: between = [{{ user = {one} }}, {{ user = {other} }}]"
                );
                slow(
                    Reason::Policy,
                    format!("{} lets user {one} and user {other} share no memory: {because}", self.shown()),
                    remedy,
                )
            }
            (_, Grounds::Unknown) => slow(
                Reason::Policy,
                because,
                "run underpassd, and this command, in the user namespace of the host, where each user has a number",
            ),
            (false, Grounds::Rule(rule)) => Verdict {
                by: Some("rule"),
                rule: Some(rule.into()),
                ..slow(
                    Reason::Policy,
                    format!("{} forbids it: {because}", self.shown()),
                    format!("none if that is meant; otherwise change line {} and reload underpassd", rule.line),
                )
            },
        }
    }
}

/// Two ends of one user in the same namespaces look for each other by themselves.
fn by_directory(one: &Seen) -> Verdict {
    fast("directory", format!("both are of user {}, and find each other without underpassd", one.user.uid))
}

fn notes(ends: [&Seen; 2]) -> Vec<String> {
    let mut notes = Vec::new();
    for end in ends {
        if end.accelerated == Some(false) {
            notes.push(format!("{} runs without Underpass: start it by `underpass run`", end.pid));
        }
        if end.namespaces.net.is_none() {
            notes.push(format!("the namespaces of {} are not shown to this user: as root this says more", end.pid));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::super::process::Namespaces;
    use super::*;
    use underpass_broker::Abilities;
    use underpass_policy::{Groups, Id, User};

    const GROUP: u32 = 70;

    fn seen(uid: u32, groups: &[u32]) -> Seen {
        let user = User { uid, is_known: true, gid: uid, groups: Groups::of(groups.to_vec()), cgroup: None };
        let namespaces = Namespaces { net: Some(1), ipc: Some(2), pid: Some(3) };
        let (name, accelerated) = ("web".into(), Some(true));
        Seen { pid: uid, name, user, port: None, namespaces, hides: false, accelerated, broker: None }
    }

    fn policy() -> Policy {
        Policy::of_members(Some(Id { name: None, number: GROUP }))
    }

    /// A daemon in the network namespace of this command, that goes by `policy`.
    fn daemon(policy: &Policy, numbers: bool) -> Contact {
        let abilities = Abilities { numbers, addresses: true, pidfd: true };
        let (token, mark, seconds, counts) = (1, 0, 0, None);
        let state = State { token, mark, abilities, policy: policy.mark(), network: Some(9), seconds, counts };
        Contact::Answers(Box::new(state))
    }

    fn judge(contact: &Contact, policy: &Policy, ends: [&Seen; 2]) -> Verdict {
        let here = Here { contact, socket: Path::new("/s"), policy, file: None, network: Some((9, 1)) };
        let [verdict, reverse] = [here.judge(ends), here.judge([ends[1], ends[0]])];
        assert_eq!(
            (verdict.may_be_fast, verdict.reason, verdict.by),
            (reverse.may_be_fast, reverse.reason, reverse.by)
        );
        assert_eq!(verdict.may_be_fast == Some(false), verdict.reason.is_some());
        assert!(verdict.may_be_fast != Some(false) || verdict.remedy.is_some());
        verdict
    }

    #[test]
    fn one_user_needs_no_daemon() {
        let policy = policy();
        let plain = seen(1, &[]);
        let verdict = judge(&Contact::Absent, &policy, [&plain, &seen(1, &[])]);
        assert_eq!((verdict.may_be_fast, verdict.by, verdict.notes.len()), (Some(true), Some("directory"), 0));
        // If an end has a directory of its own, or process numbers that mean nothing to the other end, each asks the
        // daemon.
        for change in [|it: &mut Seen| it.namespaces.ipc = Some(7), |it: &mut Seen| it.namespaces.pid = Some(7)] {
            let mut apart = seen(1, &[]);
            change(&mut apart);
            assert_eq!(judge(&Contact::Absent, &policy, [&plain, &apart]).reason, Some("no-broker"));
            assert_eq!(judge(&daemon(&policy, false), &policy, [&plain, &apart]).by, Some("same-user"));
        }
        // A server that has changed its user cannot prove what it holds.
        let hides = Seen { hides: true, ..seen(1, &[]) };
        assert_eq!(judge(&Contact::Absent, &policy, [&plain, &hides]).reason, Some("no-broker"));
        assert_eq!(judge(&daemon(&policy, false), &policy, [&plain, &hides]).by, Some("same-user"));
        let mut apart = seen(1, &[]);
        apart.namespaces.net = Some(8);
        assert_eq!(judge(&daemon(&policy, true), &policy, [&plain, &apart]).by, Some("same-user"));
    }

    #[test]
    fn users_need_a_daemon_and_a_policy() {
        let policy = policy();
        let (member, other, stranger) = (seen(1, &[GROUP]), seen(2, &[GROUP]), seen(3, &[]));
        for contact in [Contact::Absent, Contact::Silent, Contact::Unasked, Contact::Refuses(Refusal::Limit)] {
            assert_eq!(judge(&contact, &policy, [&member, &other]).reason, Some("no-broker"), "{contact:?}");
        }
        let daemon = daemon(&policy, true);
        assert_eq!(judge(&daemon, &policy, [&member, &other]).by, Some("group"));
        let refused = judge(&daemon, &policy, [&member, &stranger]);
        assert_eq!((refused.reason, refused.rule.is_none()), (Some("policy"), true));
        assert!(refused.text.contains("no rule allows it"), "{}", refused.text);
    }

    #[test]
    fn containers_need_sequence_numbers() {
        let policy = policy();
        let (member, mut other) = (seen(1, &[GROUP]), seen(2, &[GROUP]));
        other.namespaces.net = Some(8);
        assert_eq!(judge(&daemon(&policy, false), &policy, [&member, &other]).reason, Some("unproven"));
        assert_eq!(judge(&daemon(&policy, true), &policy, [&member, &other]).by, Some("group"));
        // Both in one other network.
        let both = [seen(1, &[GROUP]), seen(2, &[GROUP])].map(|mut it| {
            it.namespaces.net = Some(8);
            it
        });
        assert_eq!(judge(&daemon(&policy, false), &policy, [&both[0], &both[1]]).reason, Some("unproven"));
    }

    #[test]
    fn rules_are_named_and_may_depend_on_ports() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("policy.toml");
        let text = "group = \"\"\n[[allow]]\nname = \"db\"\nbetween = [{ user = 1 }, { user = 2, ports = [5432] }]\n\
                    [[deny]]\nbetween = [{ user = 1 }, { user = 4 }]\n";
        std::fs::write(&file, text).unwrap();
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        let policy = underpass_policy::read(&file, &[0, rustix::process::geteuid().as_raw()]).unwrap();
        let daemon = daemon(&policy, true);
        let (client, server) = (seen(1, &[]), seen(2, &[]));
        let verdict = judge(&daemon, &policy, [&client, &server]);
        assert_eq!((verdict.may_be_fast, verdict.rule.as_ref().unwrap().line), (None, 2));
        assert!(
            verdict.text.contains("rule \"db\"") && verdict.text.contains("otherwise they stay"),
            "{}",
            verdict.text
        );
        let at = |port| Seen { port: Some(port), ..seen(2, &[]) };
        let client_at = Seen { port: Some(40_000), ..seen(1, &[]) };
        assert_eq!(judge(&daemon, &policy, [&client_at, &at(5432)]).rule.unwrap().name, Some("db".into()));
        assert_eq!(judge(&daemon, &policy, [&client_at, &at(5431)]).reason, Some("policy"));
        let denied = judge(&daemon, &policy, [&client, &seen(4, &[])]);
        assert_eq!((denied.reason, denied.rule.unwrap().line), (Some("policy"), 5));
        assert!(denied.remedy.unwrap().contains("line 5"));
    }

    #[test]
    fn another_policy_in_force_and_programs_without_the_library_are_noted() {
        let policy = policy();
        let other_policy = Policy::of_members(None);
        let stranger = Seen { accelerated: Some(false), ..seen(3, &[]) };
        let verdict = judge(&daemon(&other_policy, true), &policy, [&seen(1, &[]), &stranger]);
        assert_eq!(verdict.notes.len(), 2, "{:?}", verdict.notes);
        assert!(verdict.notes[0].contains("another policy") && verdict.notes[1].contains("underpass run"));
        let hidden = Seen { namespaces: Namespaces::default(), ..seen(3, &[]) };
        let verdict = judge(&daemon(&policy, true), &policy, [&seen(1, &[]), &hidden]);
        assert!(verdict.notes[0].contains("as root"), "{:?}", verdict.notes);
    }
}
