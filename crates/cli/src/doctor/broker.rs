//! Whether underpassd can be asked, for connections between users and namespaces, and with which users its policy lets
//! a process meet.

use std::path::Path;

use underpass_policy::User;
use underpass_segment::config::SocketPath;

use super::Finding;
use crate::broker::{Contact, place};

const SUBJECT: &str = "broker";

/// What came of asking the daemon at this path.
pub fn look(contact: &Contact, path: &SocketPath) -> Finding {
    let shown = place(path).display();
    match contact {
        Contact::Unasked => {
            Finding::fine(SUBJECT, "underpassd is not asked (broker is empty): users share no memory with one another")
        }
        Contact::Absent => {
            Finding::fine(SUBJECT, format!("no underpassd listens at {shown}: only ends of one user share memory"))
        }
        Contact::Barred(error) => Finding::mind(
            SUBJECT,
            format!("underpassd cannot be asked at {shown}: {error}"),
            "let all users connect: mode 0666 of the socket, and x of its folders",
        ),
        Contact::Silent => Finding::mind(
            SUBJECT,
            format!("underpassd does not answer at {shown}"),
            "continue it if it is stopped; start it anew if it is of another version",
        ),
        Contact::Refuses(refusal) => {
            Finding::mind(SUBJECT, format!("underpassd refuses at {shown}: {}", refusal.sentence()), refusal.remedy())
        }
        Contact::Answers(state) if state.abilities.numbers => Finding::fine(
            SUBJECT,
            format!("underpassd answers at {shown}; it proves connections also between network namespaces"),
        ),
        Contact::Answers(_) => Finding::mind(
            SUBJECT,
            format!("underpassd answers at {shown}; it proves connections of its own network namespace only"),
            "between containers: let underpassd have CAP_BPF and CAP_NET_ADMIN, on a system with cgroup2 (its log says \
             what it lacks)",
        ),
    }
}

/// The users with which the policy lets a process of this user meet, where there is a daemon that goes by a policy.
pub fn policy(contact: &Contact, user: &User) -> Option<Finding> {
    const SUBJECT: &str = "policy";
    let Contact::Answers(state) = contact else { return None };
    let (policy, file) = match underpass_policy::usual(&[0, rustix::process::geteuid().as_raw()]) {
        Ok(usual) => usual,
        Err(error) => {
            return Some(Finding::mind(SUBJECT, error.to_string(), "`underpassd --check` says when it is in order"));
        }
    };
    let shown = file.map_or_else(|| "the default policy".into(), |file: &Path| file.display().to_string());
    if state.policy != policy.mark() {
        return Some(Finding::mind(
            SUBJECT,
            format!("underpassd goes by another policy than {shown} says now"),
            "reload it (systemctl reload underpassd, or SIGHUP), unless it was started with a policy of its own \
             (--policy, --group)",
        ));
    }
    let [with, never] = policy.partners(user);
    let never = if never.is_empty() { String::new() } else { format!("; but never by {}", never.join("; nor by ")) };
    if with.is_empty() {
        let text = format!("{shown} lets user {} share memory with nobody{never}", user.uid);
        return Some(Finding::mind(SUBJECT, text, "make the user a member of its group, or write a rule"));
    }
    Some(Finding::fine(SUBJECT, format!("{shown} lets it share memory with {}{never}", with.join("; "))))
}
