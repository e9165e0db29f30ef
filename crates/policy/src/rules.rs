//! The rules that say which two users may share memory.

use std::fmt;

use crate::process::User;

/// A user or a group: its number, and the name that the policy has for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Id {
    /// `None` where the policy has the number alone.
    pub name: Option<String>,
    /// Its number.
    pub number: u32,
}

impl fmt::Display for Id {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(to, "{name} ({})", self.number),
            None => write!(to, "{}", self.number),
        }
    }
}

/// A network namespace, as the policy tells them apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Network {
    /// The network that the daemon is in.
    Host,
    /// Another network: a container's.
    Other,
}

/// An end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct End<'a> {
    /// Its user.
    pub user: &'a User,
    /// Its network; `None` if that is not known.
    pub network: Option<Network>,
    /// Its own port; `None` where that is not known.
    pub port: Option<u16>,
}

/// Whether something is as a rule says. An order: of several conditions the lowest holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fit {
    No,
    /// What the rule asks for is not known.
    Open,
    Yes,
}

impl From<Option<bool>> for Fit {
    fn from(it: Option<bool>) -> Fit {
        match it {
            Some(true) => Fit::Yes,
            Some(false) => Fit::No,
            None => Fit::Open,
        }
    }
}

/// One side of a rule. An end matches if all of this is so.
#[derive(Clone, Debug, Default)]
pub(crate) struct Side {
    pub(crate) user: Option<Id>,
    pub(crate) group: Option<Id>,
    /// This control group, or one below it. The root's is empty.
    pub(crate) cgroup: Option<String>,
    pub(crate) network: Option<Network>,
    /// One of these ports; if there are none, any port.
    pub(crate) ports: Vec<u16>,
}

/// What a rule does where it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Allows,
    Denies,
}

impl Side {
    fn fit(&self, end: &End<'_>, effect: Effect) -> Fit {
        let User { uid, cgroup, .. } = end.user;
        let below = |path: &str, of: &str| path.strip_prefix(of).is_some_and(|it| it.is_empty() || it.starts_with('/'));
        let conditions = [
            self.user.as_ref().map(|it| Some(it.number == *uid)),
            self.group.as_ref().map(|it| match effect {
                Effect::Allows => Some(end.user.is_in(it.number)),
                Effect::Denies => Some(end.user.may_be_in(it.number)),
            }),
            self.cgroup.as_ref().map(|it| cgroup.as_ref().map(|path| below(path, it))),
            self.network.map(|it| end.network.map(|of| of == it)),
            (!self.ports.is_empty()).then(|| end.port.map(|port| self.ports.contains(&port))),
        ];
        conditions.into_iter().flatten().map(Fit::from).min().unwrap_or(Fit::Yes)
    }
}

impl fmt::Display for Side {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|it| format!("user {it}"));
        let group = self.group.as_ref().map(|it| format!("group {it}"));
        let who: Vec<String> = user.into_iter().chain(group).collect();
        let ports: Vec<String> = self.ports.iter().map(u16::to_string).collect();
        let network = self.network.map(|it| match it {
            Network::Host => "in the host's network".to_string(),
            Network::Other => "in another network".to_string(),
        });
        let conditions = [
            self.cgroup.as_ref().map(|it| format!("in cgroup {}", if it.is_empty() { "/" } else { it })),
            network,
            (!ports.is_empty()).then(|| format!("at port {}", ports.join(" or "))),
        ];
        to.write_str(&if who.is_empty() { "anyone".into() } else { who.join(", ") })?;
        conditions.into_iter().flatten().try_for_each(|it| write!(to, " {it}"))
    }
}

/// A rule that the administrator has written: two sides, which the two ends fit in either order.
#[derive(Clone, Debug)]
pub struct Rule {
    /// What the administrator calls it.
    pub name: Option<String>,
    /// The line of the file on which it begins, from 1 on.
    pub line: usize,
    pub(crate) sides: [Side; 2],
}

impl Rule {
    fn fit(&self, [one, other]: [&End<'_>; 2], effect: Effect) -> Fit {
        let [first, second] = &self.sides;
        let in_order = |one, other| first.fit(one, effect).min(second.fit(other, effect));
        in_order(one, other).max(in_order(other, one))
    }

    /// Whether it may speak of this user, at one of its sides.
    fn speaks_of(&self, user: &User, effect: Effect) -> bool {
        let end = End { user, network: None, port: None };
        self.sides.iter().any(|side| side.fit(&end, effect) > Fit::No)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [one, other] = &self.sides;
        match &self.name {
            Some(name) => write!(to, "rule \"{name}\" (line {}): {one} with {other}", self.line),
            None => write!(to, "rule of line {}: {one} with {other}", self.line),
        }
    }
}

/// What a decision rests on.
#[derive(Clone, Copy, Debug)]
pub enum Grounds<'a> {
    /// Both ends are of one user.
    SameUser,
    /// Both users are members of this group.
    Group(&'a Id),
    /// This rule.
    Rule(&'a Rule),
    /// No rule allows it.
    NoRule,
    /// One of the users is not known.
    Unknown,
}

impl fmt::Display for Grounds<'_> {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Grounds::SameUser => to.write_str("both are of one user"),
            Grounds::Group(group) => write!(to, "both users are members of the group {group}"),
            Grounds::Rule(rule) => write!(to, "{rule}"),
            Grounds::NoRule => to.write_str("no rule allows it"),
            Grounds::Unknown => to.write_str("one of the users has no number in the user namespace of underpassd"),
        }
    }
}

/// Whether two ends may share memory, and why.
#[derive(Clone, Copy, Debug)]
pub struct Decision<'a> {
    /// Whether they may.
    pub allowed: bool,
    /// Why, or why not.
    pub grounds: Grounds<'a>,
}

/// Which two users may share memory: a user with itself, the members of a group, and the users that an allowing rule
/// names; but never the users that a denying rule names.
#[derive(Clone, Debug)]
pub struct Policy {
    pub(crate) same_user: bool,
    pub(crate) group: Option<Id>,
    /// The name of the group that is named where there is no such group.
    pub(crate) no_group: Option<String>,
    pub(crate) allow: Vec<Rule>,
    pub(crate) deny: Vec<Rule>,
}

impl Policy {
    /// The same user, and members of this group.
    pub fn of_members(group: Option<Id>) -> Policy {
        Policy { same_user: true, group, no_group: None, allow: Vec::new(), deny: Vec::new() }
    }

    /// Whether both ends may map the same memory. What is not known of an end fits every rule that denies, and none
    /// that allows.
    pub fn decide(&self, ends: [&End<'_>; 2]) -> Decision<'_> {
        self.weigh(ends, Fit::Open)
    }

    /// The decision where no rule fits of which that is not known; and the rules that decide otherwise if they do fit.
    pub fn consider(&self, ends: [&End<'_>; 2]) -> (Decision<'_>, Vec<&Rule>) {
        let decision = self.weigh(ends, Fit::Yes);
        let (others, effect) = match decision {
            Decision { allowed: true, .. } => (&self.deny[..], Effect::Denies),
            Decision { grounds: Grounds::NoRule, .. } => (&self.allow[..], Effect::Allows),
            Decision { .. } => (&[][..], Effect::Denies),
        };
        (decision, others.iter().filter(|rule| rule.fit(ends, effect) == Fit::Open).collect())
    }

    /// A rule denies if it fits at least so.
    fn weigh(&self, ends: [&End<'_>; 2], denies: Fit) -> Decision<'_> {
        let [one, other] = ends.map(|end| end.user);
        // It may be anybody, and two of them need not be one user.
        if !one.is_known || !other.is_known {
            return Decision { allowed: false, grounds: Grounds::Unknown };
        }
        if let Some(rule) = self.deny.iter().find(|rule| rule.fit(ends, Effect::Denies) >= denies) {
            return Decision { allowed: false, grounds: Grounds::Rule(rule) };
        }
        let group = self.group.as_ref().filter(|it| one.is_in(it.number) && other.is_in(it.number));
        let rule = || self.allow.iter().find(|rule| rule.fit(ends, Effect::Allows) == Fit::Yes);
        let grounds = if self.same_user && one.uid == other.uid {
            Grounds::SameUser
        } else if let Some(group) = group {
            Grounds::Group(group)
        } else if let Some(rule) = rule() {
            Grounds::Rule(rule)
        } else {
            return Decision { allowed: false, grounds: Grounds::NoRule };
        };
        Decision { allowed: true, grounds }
    }

    /// Whether any rule speaks of control groups, so that those of processes have to be known.
    pub fn names_cgroups(&self) -> bool {
        self.allow.iter().chain(&self.deny).flat_map(|rule| &rule.sides).any(|side| side.cgroup.is_some())
    }

    /// Whether any rule denies a group, so that it has to be known whether a process may have given up groups.
    pub fn denies_groups(&self) -> bool {
        self.deny.iter().flat_map(|rule| &rule.sides).any(|side| side.group.is_some())
    }

    /// The group that is named, where there is no such group.
    pub fn missing_group(&self) -> Option<&str> {
        self.no_group.as_deref()
    }

    /// How many rules allow, and how many deny.
    pub fn rules(&self) -> [usize; 2] {
        [self.allow.len(), self.deny.len()]
    }

    /// Describes the users with which this user may share memory, and those with which it never may.
    pub fn partners(&self, user: &User) -> [Vec<String>; 2] {
        let rules = |rules: &[Rule], effect| -> Vec<String> {
            rules.iter().filter(|rule| rule.speaks_of(user, effect)).map(Rule::to_string).collect()
        };
        let own = self.same_user.then(|| "its own user".to_string());
        let group = self.group.as_ref().filter(|it| user.is_in(it.number));
        let group = group.map(|it| format!("members of the group {it}"));
        let allowing = rules(&self.allow, Effect::Allows);
        [own.into_iter().chain(group).chain(allowing).collect(), rules(&self.deny, Effect::Denies)]
    }

    /// A number that tells this policy from others that say something else (FNV-1a of its text).
    pub fn mark(&self) -> u64 {
        let step = |hash: u64, octet: u8| (hash ^ u64::from(octet)).wrapping_mul(0x0000_0100_0000_01b3);
        self.to_string().bytes().fold(0xcbf2_9ce4_8422_2325, step)
    }
}

/// All that it says, in lines.
impl fmt::Display for Policy {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "may share memory:")?;
        if self.same_user {
            writeln!(to, "  processes of one user with one another")?;
        }
        if let Some(group) = &self.group {
            writeln!(to, "  members of the group {group} with one another")?;
        }
        if let Some(name) = &self.no_group {
            writeln!(to, "  members of the group {name}, which does not exist")?;
        }
        self.allow.iter().try_for_each(|rule| writeln!(to, "  {rule}"))?;
        if !self.same_user && self.group.is_none() && self.no_group.is_none() && self.allow.is_empty() {
            writeln!(to, "  nobody")?;
        }
        if !self.deny.is_empty() {
            writeln!(to, "never share memory, whatever else is said:")?;
            self.deny.iter().try_for_each(|rule| writeln!(to, "  {rule}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::Groups;

    fn user(uid: u32, groups: &[u32]) -> User {
        User { uid, is_known: true, gid: uid, groups: Groups::of(groups.to_vec()), cgroup: Some(format!("/s/{uid}")) }
    }

    fn id(number: u32) -> Option<Id> {
        Some(Id { name: None, number })
    }

    fn rule(one: Side, other: Side) -> Rule {
        Rule { name: None, line: 1, sides: [one, other] }
    }

    fn of_user(number: u32) -> Side {
        Side { user: id(number), ..Side::default() }
    }

    fn end(user: &User, port: u16) -> End<'_> {
        End { user, network: Some(Network::Host), port: Some(port) }
    }

    fn allows(policy: &Policy, one: &User, other: &User) -> bool {
        let ends = [end(one, 1), end(other, 2)];
        let ways = [[&ends[0], &ends[1]], [&ends[1], &ends[0]]].map(|ends| policy.decide(ends).allowed);
        assert_eq!(ways[0], ways[1], "in either order");
        ways[0]
    }

    #[test]
    fn one_user_or_two_members() {
        let policy = Policy::of_members(id(70));
        let (member, other, stranger) = (user(1, &[5, 70]), User { gid: 70, ..user(2, &[]) }, user(3, &[71]));
        assert!(allows(&policy, &stranger, &User { gid: 4, ..user(3, &[]) }));
        assert!(allows(&policy, &member, &other));
        assert!(!allows(&policy, &member, &stranger));
        // Root is a user like others here.
        assert!(!allows(&policy, &user(0, &[0]), &member));
        assert!(!allows(&Policy::of_members(None), &member, &other));
        let strict = Policy { same_user: false, ..policy };
        assert!(!allows(&strict, &stranger, &stranger) && allows(&strict, &member, &member));
    }

    #[test]
    fn rules_name_two_ends_and_deny_wins() {
        let policy = Policy { allow: vec![rule(of_user(1), of_user(2))], ..Policy::of_members(id(70)) };
        let [one, other, third] = [1, 2, 3].map(|uid| user(uid, &[]));
        assert!(allows(&policy, &one, &other) && !allows(&policy, &one, &third));
        assert!(!allows(&Policy { same_user: false, ..policy.clone() }, &one, &one), "a rule's sides are two");
        let denied = Policy { deny: vec![rule(of_user(2), Side::default())], ..policy };
        assert!(!allows(&denied, &one, &other) && !allows(&denied, &other, &other) && allows(&denied, &one, &one));
        let members = [user(2, &[70]), user(3, &[70])];
        assert!(!allows(&denied, &members[0], &members[1]));
    }

    /// A process may be in a group that is not kept of it: it is denied what the group is denied, and not allowed what
    /// the group is.
    #[test]
    fn groups_that_are_not_known_are_never_to_advantage() {
        let of_group = |number| Side { group: id(number), ..Side::default() };
        let many: Vec<u32> = (0..).take(Groups::MOST + 1).collect();
        let [known, unknown, stranger] = [user(1, &[70]), user(1, &many), user(2, &[])];
        let denying = Policy { deny: vec![rule(of_group(9999), Side::default())], ..Policy::of_members(None) };
        assert!(allows(&denying, &known, &known) && !allows(&denying, &known, &unknown));
        assert!(denying.denies_groups() && !denying.names_cgroups());
        let allowing = |group| Policy { allow: vec![rule(of_group(group), of_user(2))], ..Policy::of_members(None) };
        assert!(!allowing(70).denies_groups());
        assert!(!allows(&allowing(70), &unknown, &stranger) && !allows(&allowing(9999), &unknown, &stranger));
        let fled = User { groups: Groups::of(vec![]).and_perhaps_others(), ..known.clone() };
        assert!(!allows(&denying, &known, &fled) && allows(&Policy::of_members(None), &known, &fled));
        assert!(!allows(&Policy::of_members(id(9999)), &unknown, &User { uid: 3, ..unknown.clone() }));
    }

    /// The kernel shows all users without a number in this namespace by the number of user nobody.
    #[test]
    fn a_user_that_is_not_known_shares_nothing() {
        let nobody = user(65_534, &[70]);
        let unknown = User { is_known: false, ..nobody.clone() };
        let policy = Policy { allow: vec![rule(of_user(65_534), Side::default())], ..Policy::of_members(id(70)) };
        assert!(allows(&policy, &nobody, &nobody));
        assert!(!allows(&policy, &unknown, &nobody) && !allows(&policy, &unknown, &unknown));
    }

    #[test]
    fn a_port_is_that_of_its_own_end() {
        let server = Side { ports: vec![5432, 5433], ..of_user(2) };
        let policy = Policy { allow: vec![rule(of_user(1), server)], ..Policy::of_members(None) };
        let [client, server] = [1, 2].map(|uid| user(uid, &[]));
        let at = |own, port| policy.decide([&end(&client, own), &end(&server, port)]).allowed;
        assert!(at(40_000, 5432) && at(40_000, 5433));
        // A client may choose its own port.
        assert!(!at(5432, 40_000));
    }

    #[test]
    fn cgroups_hold_what_is_below_them() {
        let side = |path: &str| Side { cgroup: Some(path.into()), ..Side::default() };
        let allows = |path: &str, of: Option<&str>| {
            let policy =
                Policy { same_user: false, allow: vec![rule(side(path), side(path))], ..Policy::of_members(None) };
            let user = User { cgroup: of.map(String::from), ..user(1, &[]) };
            allows(&policy, &user, &user)
        };
        assert!(allows("/a/b", Some("/a/b")) && allows("/a/b", Some("/a/b/c")) && allows("", Some("/x")));
        assert!(!allows("/a/b", Some("/a/bc")) && !allows("/a/b", Some("/a")) && !allows("/a/b", Some("/")));
        assert!(!allows("/a/b", None));
    }

    /// What is not known fits all that denies and nothing that allows.
    #[test]
    fn the_unknown_is_never_to_advantage() {
        let other = Side { network: Some(Network::Other), ..Side::default() };
        let allowing = Policy { allow: vec![rule(other.clone(), Side::default())], ..Policy::of_members(None) };
        let denying = Policy { deny: vec![rule(other, Side::default())], ..Policy::of_members(None) };
        let [one, two] = [1, 2].map(|uid| user(uid, &[]));
        let at = |user, network| End { user, network, port: None };
        for (network, allows, denies) in
            [(Some(Network::Other), true, true), (Some(Network::Host), false, false), (None, false, true)]
        {
            assert_eq!(allowing.decide([&end(&one, 1), &at(&two, network)]).allowed, allows, "{network:?}");
            assert_eq!(!denying.decide([&end(&one, 1), &at(&one, network)]).allowed, denies, "{network:?}");
        }
        // An explanation says on what it depends.
        let unknown = at(&two, None);
        let (decision, open) = allowing.consider([&end(&one, 1), &unknown]);
        assert!(!decision.allowed && open.len() == 1);
        let (decision, open) = denying.consider([&at(&one, None), &at(&one, Some(Network::Host))]);
        assert!(decision.allowed && open.len() == 1);
        let (decision, open) = denying.consider([&at(&one, Some(Network::Other)), &at(&one, None)]);
        assert!(!decision.allowed && open.is_empty());
    }

    #[test]
    fn it_is_told_in_words() {
        let server = Side { ports: vec![80, 81], network: Some(Network::Host), ..of_user(2) };
        let allow = Rule { name: Some("web".into()), line: 7, sides: [of_user(1), server] };
        let deny = vec![rule(Side { cgroup: Some(String::new()), ..Side::default() }, Side::default())];
        let group = Some(Id { name: Some("g".into()), number: 70 });
        let policy = Policy { allow: vec![allow], deny, ..Policy::of_members(group) };
        assert_eq!(
            policy.to_string(),
            "may share memory:\n  processes of one user with one another\n  members of the group g (70) with one \
             another\n  rule \"web\" (line 7): user 1 with user 2 in the host's network at port 80 or 81\nnever share \
             memory, whatever else is said:\n  rule of line 1: anyone in cgroup / with anyone\n"
        );
        let [with, never] = policy.partners(&user(1, &[]));
        assert_eq!((with.len(), never.len()), (2, 1), "{with:?} {never:?}");
        assert_eq!(policy.partners(&user(3, &[70]))[0], ["its own user", "members of the group g (70)"]);
        let nobody = Policy { same_user: false, ..Policy::of_members(None) };
        assert_eq!(nobody.to_string(), "may share memory:\n  nobody\n");
        assert_ne!(policy.mark(), nobody.mark());
        assert_eq!(policy.mark(), policy.clone().mark());
        assert!(policy.names_cgroups() && !nobody.names_cgroups());
    }
}
