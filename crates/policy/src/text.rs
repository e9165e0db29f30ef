//! The policy's text (TOML) as rules.

use std::io;
use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use toml::Spanned;

use crate::error::PolicyError;
use crate::names::Names;
use crate::rules::{Id, Network, Policy, Rule, Side};

/// The group whose members may share memory, unless the policy names another.
pub const DEFAULT_GROUP: &str = "underpass";

/// What the file may say.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyText {
    #[serde(default = "yes")]
    same_user: bool,
    group: Option<Spanned<Written>>,
    #[serde(default)]
    allow: Vec<Spanned<RuleText>>,
    #[serde(default)]
    deny: Vec<Spanned<RuleText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    name: Option<Spanned<String>>,
    between: Spanned<Vec<SideText>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SideText {
    user: Option<Spanned<Written>>,
    group: Option<Spanned<Written>>,
    cgroup: Option<Spanned<String>>,
    network: Option<NetworkText>,
    ports: Option<Spanned<Vec<u16>>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum NetworkText {
    Host,
    Other,
}

/// A user or a group.
#[derive(Deserialize)]
#[serde(untagged, expecting = "a name in quotes or a number is needed")]
enum Written {
    Name(String),
    Number(u32),
}

fn yes() -> bool {
    true
}

/// What `text` says, which stands in the file `path`.
pub fn parse(text: &str, path: &Path, names: &dyn Names) -> Result<Policy, PolicyError> {
    let reader = Reader { text, path, names };
    let written: PolicyText = toml::from_str(text).map_err(|error| {
        reader.wrong(error.span().unwrap_or_default(), error.message().trim_end().replace('\n', ", "))
    })?;
    let policy = Policy { same_user: written.same_user, ..default(path, names)? };
    let policy = match written.group {
        None => policy,
        Some(it) if matches!(it.get_ref(), Written::Name(name) if name.is_empty()) => {
            Policy { group: None, no_group: None, ..policy }
        }
        Some(it) => Policy { group: Some(reader.id(&it, Kind::Group)?), no_group: None, ..policy },
    };
    let rules = |rules: Vec<Spanned<RuleText>>| -> Result<Vec<Rule>, PolicyError> {
        rules.into_iter().map(|it| reader.rule(it)).collect()
    };
    Ok(Policy { allow: rules(written.allow)?, deny: rules(written.deny)?, ..policy })
}

/// What holds where nothing is said.
pub fn default(path: &Path, names: &dyn Names) -> Result<Policy, PolicyError> {
    let number = names.group(DEFAULT_GROUP).map_err(|error| PolicyError::LookUp {
        place: path.display().to_string(),
        what: Kind::Group.word(),
        name: DEFAULT_GROUP.into(),
        error,
    })?;
    let group = number.map(|number| Id { name: Some(DEFAULT_GROUP.into()), number });
    let no_group = group.is_none().then(|| DEFAULT_GROUP.into());
    Ok(Policy { no_group, ..Policy::of_members(group) })
}

#[derive(Clone, Copy)]
enum Kind {
    User,
    Group,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::User => "user",
            Kind::Group => "group",
        }
    }

    fn find(self, names: &dyn Names, name: &str) -> io::Result<Option<u32>> {
        match self {
            Kind::User => names.user(name),
            Kind::Group => names.group(name),
        }
    }
}

struct Reader<'a> {
    text: &'a str,
    path: &'a Path,
    names: &'a dyn Names,
}

impl Reader<'_> {
    fn line(&self, at: &Range<usize>) -> usize {
        self.text.get(..at.start).unwrap_or(self.text).matches('\n').count() + 1
    }

    fn place(&self, at: &Range<usize>) -> String {
        format!("{}:{}", self.path.display(), self.line(at))
    }

    fn wrong(&self, at: Range<usize>, message: impl Into<String>) -> PolicyError {
        PolicyError::Content { place: self.place(&at), message: message.into() }
    }

    fn rule(&self, rule: Spanned<RuleText>) -> Result<Rule, PolicyError> {
        let line = self.line(&rule.span());
        let RuleText { name, between } = rule.into_inner();
        if let Some(name) = &name
            && (name.get_ref().is_empty() || name.get_ref().chars().any(char::is_control))
        {
            return Err(self.wrong(name.span(), "the name of a rule is a line of text"));
        }
        let at = between.span();
        let Ok([one, other]) = <[SideText; 2]>::try_from(between.into_inner()) else {
            return Err(
                self.wrong(at, "a rule is between two ends, such as [{ user = \"web\" }, { user = \"postgres\" }]")
            );
        };
        let sides = [self.side(one)?, self.side(other)?];
        Ok(Rule { name: name.map(Spanned::into_inner), line, sides })
    }

    fn side(&self, side: SideText) -> Result<Side, PolicyError> {
        let id = |it: Option<Spanned<Written>>, kind| it.map(|it| self.id(&it, kind)).transpose();
        if let Some(ports) = side.ports.as_ref().filter(|it| it.get_ref().is_empty() || it.get_ref().contains(&0)) {
            return Err(self.wrong(ports.span(), "ports are a list of numbers from 1 to 65535, such as [5432]"));
        }
        let network = side.network.map(|it| match it {
            NetworkText::Host => Network::Host,
            NetworkText::Other => Network::Other,
        });
        Ok(Side {
            user: id(side.user, Kind::User)?,
            group: id(side.group, Kind::Group)?,
            cgroup: side.cgroup.map(|it| self.cgroup(&it)).transpose()?,
            network,
            ports: side.ports.map(Spanned::into_inner).unwrap_or_default(),
        })
    }

    fn id(&self, written: &Spanned<Written>, kind: Kind) -> Result<Id, PolicyError> {
        let what = kind.word();
        let name = match written.get_ref() {
            // What the kernel has for "none".
            Written::Number(u32::MAX) => return Err(self.wrong(written.span(), format!("{} is no {what}", u32::MAX))),
            Written::Number(number) => return Ok(Id { name: None, number: *number }),
            Written::Name(name) => name,
        };
        let (place, name) = (self.place(&written.span()), name.clone());
        match kind.find(self.names, &name) {
            Ok(Some(number)) => Ok(Id { name: Some(name), number }),
            Ok(None) if name.parse::<u32>().is_ok() => {
                Err(PolicyError::Content { place, message: format!("a {what}'s number stands without quotes: {name}") })
            }
            Ok(None) => Err(PolicyError::Nobody { place, what, name }),
            Err(error) => Err(PolicyError::LookUp { place, what, name, error }),
        }
    }

    /// A control group as the kernel writes it, without the slash of the root.
    fn cgroup(&self, written: &Spanned<String>) -> Result<String, PolicyError> {
        let path = written.get_ref();
        let is_plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.contains(char::is_control);
        let rest = path.strip_prefix('/').map(|rest| rest.strip_suffix('/').unwrap_or(rest));
        match rest {
            Some("") => Ok(String::new()),
            Some(rest) if rest.split('/').all(is_plain) => Ok(format!("/{rest}")),
            _ => Err(self.wrong(
                written.span(),
                "a control group is written as in /proc/PID/cgroup behind \"0::\", such as \
                 /system.slice/redis-server.service",
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::groups::Groups;
    use crate::process::User;
    use crate::rules::End;

    /// Users and groups whose numbers are the lengths of their names; none begin with "no-".
    struct Fake;

    impl Names for Fake {
        fn user(&self, name: &str) -> io::Result<Option<u32>> {
            if name == "slow" {
                return Err(io::Error::other("the server does not answer"));
            }
            Ok((!name.starts_with("no-") && name.parse::<u32>().is_err()).then_some(name.len() as u32))
        }

        fn group(&self, name: &str) -> io::Result<Option<u32>> {
            self.user(name)
        }
    }

    fn parsed(text: &str) -> Policy {
        parse(text, Path::new("p"), &Fake).unwrap()
    }

    fn refused(text: &str) -> String {
        parse(text, Path::new("p"), &Fake).unwrap_err().to_string()
    }

    #[test]
    fn nothing_said_is_the_default() {
        let default = "may share memory:\n  processes of one user with one another\n  members of the group underpass \
                       (9) with one another\n";
        assert_eq!(parsed("").to_string(), default);
        assert_eq!(parsed("# nothing\nsame_user = true\ngroup = \"underpass\"\n").to_string(), default);
        assert_eq!(parsed("same_user = false\ngroup = \"\"").to_string(), "may share memory:\n  nobody\n");
        assert!(parsed("group = 7").to_string().contains("members of the group 7 with"));
    }

    #[test]
    fn rules_are_read_with_their_lines() {
        let text = "group = \"\"\n\n[[allow]]\nname = \"database\"\nbetween = [{ user = \"web\" }, { user = 70, ports \
                    = [5432] }]\n\n\
                    [[deny]]\nbetween = [\n  { group = \"guests\", cgroup = \"/user.slice/\" },\n  { network = \
                    \"other\" },\n]\n";
        let policy = parsed(text);
        assert_eq!(
            policy.to_string(),
            "may share memory:\n  processes of one user with one another\n  rule \"database\" (line 3): user web (3) \
             with user 70 at port 5432\nnever share memory, whatever else is said:\n  rule of line 7: group guests (6) \
             in cgroup /user.slice with anyone in another network\n"
        );
        let user = |uid| User { uid, is_known: true, gid: uid, groups: Groups::of(vec![]), cgroup: Some("/".into()) };
        let [web, database] = [user(3), user(70)];
        let end = |user, port| End { user, network: Some(Network::Host), port: Some(port) };
        assert!(policy.decide([&end(&web, 1), &end(&database, 5432)]).allowed);
        assert!(!policy.decide([&end(&web, 1), &end(&database, 5431)]).allowed);
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        let side = |side: &str| refused(&format!("\n[[allow]]\nbetween = [{{}}, {{ {side} }}]"));
        assert!(refused("\nsame_usr = true").starts_with("p:2: unknown field `same_usr`, expected one of `same_user`"));
        assert!(refused("group = true").contains("p:1: a name in quotes or a number is needed"));
        assert!(refused("group = 1\ngroup = 2").starts_with("p:2: "));
        assert!(refused("same_user = \"yes\"").starts_with("p:1: "));
        assert!(refused("[[allow]]\nname = \"x\"").contains("missing field `between`"));
        for wrong in ["[]", "[{}]", "[{}, {}, {}]"] {
            assert!(refused(&format!("[[allow]]\nbetween = {wrong}")).starts_with("p:2: a rule is between two ends"));
        }
        assert!(refused("[[allow]]\nbetween = [{}, {}]\nname = \"a\\u001b[2J\"").contains("p:3: the name of a rule"));
        assert_eq!(side("user = \"no-one\""), "p:3: there is no user no-one; make it (useradd), or correct the name");
        assert!(side("group = \"no-one\"").contains("make it (groupadd)"));
        assert!(side("user = \"1000\"").contains("p:3: a user's number stands without quotes: 1000"));
        assert!(side("user = -1").starts_with("p:3: ") && side("user = 4294967295").contains("is no user"));
        assert!(side("user = \"slow\"").contains("cannot find out which user slow is (the server does not answer)"));
        assert!(side("ports = []").contains("ports are a list") && side("ports = [0]").contains("ports are a list"));
        assert!(side("ports = [65536]").starts_with("p:3: ") && side("ports = 5432").starts_with("p:3: "));
        assert!(side("network = \"hots\"").contains("expected `host` or `other`"));
        for wrong in ["", "user.slice", "//a", "/a//b", "/../a", "/a/.", "/a\\nb"] {
            assert!(side(&format!("cgroup = \"{wrong}\"")).contains("p:3: a control group is written"), "{wrong}");
        }
        assert!(refused("[allow]\nbetween = [{}, {}]").starts_with("p:1: "));
        assert!(refused("group = ").starts_with("p:1: "));
    }

    /// Any text is read without harm, and what is refused is refused in one line.
    #[test]
    fn damaged_text_is_refused_in_one_line() {
        let text = "group = \"g\"\n[[allow]]\nname = \"n\"\nbetween = [{ user = \"web\", ports = [1, 2] }, { cgroup = \
                    \"/a\" }]\n";
        for at in 0..text.len() {
            for octet in [b'"', b'[', b'{', b'\n', b'=', b'0', b' ', b'\\'] {
                let mut damaged = text.as_bytes().to_vec();
                damaged[at] = octet;
                let damaged = String::from_utf8(damaged).unwrap();
                if let Err(error) = parse(&damaged, Path::new("p"), &Fake) {
                    let said = error.to_string();
                    assert!(said.starts_with("p:") && !said.contains('\n'), "{said:?} of {damaged}");
                }
            }
        }
    }
}
