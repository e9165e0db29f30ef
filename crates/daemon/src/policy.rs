//! Who may share memory with whom.

use crate::process::User;

/// The same user; and users who are both members of one group of the administrator's choice.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// The group; `None` where it does not exist.
    pub group: Option<u32>,
}

impl Policy {
    /// Whether both may map the same memory.
    pub fn allows(&self, one: &User, other: &User) -> bool {
        one.uid == other.uid || self.is_member(one) && self.is_member(other)
    }

    fn is_member(&self, user: &User) -> bool {
        self.group.is_some_and(|group| user.gid == group || user.groups.contains(&group))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, gid: u32, groups: &[u32]) -> User {
        User { uid, gid, groups: groups.to_vec() }
    }

    #[test]
    fn one_user_or_two_members() {
        let policy = Policy { group: Some(70) };
        let (member, other, stranger) = (user(1, 1, &[5, 70]), user(2, 70, &[]), user(3, 3, &[71]));
        assert!(policy.allows(&stranger, &user(3, 4, &[])));
        assert!(policy.allows(&member, &other) && policy.allows(&other, &member));
        assert!(!policy.allows(&member, &stranger) && !policy.allows(&stranger, &member));
        // Root is a user like others here.
        assert!(!policy.allows(&user(0, 0, &[]), &member));
        assert!(!Policy { group: None }.allows(&member, &other));
    }
}
