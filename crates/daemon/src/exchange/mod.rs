//! Which ends wait, which have met, and which memory they share. This module has no sockets and no clock.
//!
//! An end asks. The kernel's evidence ([`Evidence`]) names the socket at its other end. If that end has asked as well,
//! and the evidence names the first one as its other end, the two have met, provided that their users may share memory.
//! They get a slot of a pool that only the two processes have. An end that asks again gets the same answer: it may have
//! executed a program, or have missed the answer.

mod pools;
#[cfg(test)]
mod tests;

use crate::evidence::{Evidence, Other};
use crate::facts::Facts;
use crate::limits::Limits;
use pools::Pools;
use rustix::fd::OwnedFd;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use underpass_broker::{Answer, Ask, Refusal, Verdict};
use underpass_policy::{End, Network, Policy, User};

/// An ask is forgotten after so long without its other end, in nanoseconds. The library asks again before.
const ASK_NS: u64 = 600_000_000_000;

/// Number of a process that asks, which is never given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProcessId(pub u64);

/// Number of a connection of a client, by which it gets its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClientId(pub u64);

/// An answer, its client, and the memory that goes with it.
#[derive(Debug)]
pub struct Reply {
    /// The client that asked.
    pub to: ClientId,
    /// The answer to that client.
    pub answer: Answer,
    /// What it is given.
    pub memory: Option<Rc<OwnedFd>>,
}

/// An end that has asked and waits.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    process: ProcessId,
    client: ClientId,
    ask: Ask,
    facts: Facts,
    since: u64,
}

impl Waiting {
    fn reply(&self, verdict: Verdict, memory: Option<Rc<OwnedFd>>) -> Reply {
        let answer = Answer { token: self.ask.token, mark: self.ask.mark, verdict };
        Reply { to: self.client, answer, memory }
    }

    fn refuse(&self, refusal: Refusal) -> Reply {
        self.reply(Verdict::Refused(refusal), None)
    }
}

#[derive(Debug)]
struct Party {
    user: Rc<User>,
    /// Cookies of its ends that wait.
    waiting: HashSet<u64>,
}

/// All that the daemon knows of ends and memory.
#[derive(Debug)]
pub struct Exchange {
    policy: Policy,
    /// The mark of the policy, kept because it takes long to compute for a long policy, and any client may ask for it.
    mark: u64,
    /// Cookie of the network namespace that the policy calls the host's.
    network: Option<u64>,
    limits: Limits,
    parties: HashMap<ProcessId, Party>,
    /// By cookie.
    waiting: HashMap<u64, Waiting>,
    /// How many ends of each user wait.
    asks: HashMap<u32, usize>,
    /// Pairs of ends that have met so far.
    meetings: u64,
    pools: Pools,
}

/// How much there is of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Pairs of ends that have met so far.
    pub meetings: u64,
    /// Ends that wait.
    pub waiting: usize,
    /// Pools.
    pub pools: usize,
    /// Bytes of these.
    pub memory: u64,
}

impl Exchange {
    /// An exchange that no end has asked yet. `network` is the cookie of the network namespace that the policy calls
    /// the host's.
    pub fn new(policy: Policy, network: Option<u64>, limits: Limits) -> Exchange {
        Exchange {
            mark: policy.mark(),
            policy,
            network,
            limits,
            parties: HashMap::new(),
            waiting: HashMap::new(),
            asks: HashMap::new(),
            meetings: 0,
            pools: Pools::new(limits),
        }
    }

    /// The policy by which ends meet.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// From now on ends meet by this policy. Ends that have met already stay together.
    pub fn set_policy(&mut self, policy: Policy) {
        (self.mark, self.policy) = (policy.mark(), policy);
    }

    /// The mark of the policy.
    pub fn mark(&self) -> u64 {
        self.mark
    }

    /// How much there is now.
    pub fn extent(&self) -> Extent {
        let (pools, memory) = self.pools.extent();
        Extent { meetings: self.meetings, waiting: self.waiting.len(), pools, memory }
    }

    /// A process may ask from now on.
    pub fn admit(&mut self, process: ProcessId, user: Rc<User>) {
        self.parties.insert(process, Party { user, waiting: HashSet::new() });
    }

    /// More is known of the user of a process, or less.
    pub fn know(&mut self, process: ProcessId, user: Rc<User>) {
        if let Some(party) = self.parties.get_mut(&process) {
            party.user = user;
        }
    }

    /// A process has ended at the time `now`, in nanoseconds.
    pub fn dismiss(&mut self, process: ProcessId, now: u64) {
        let cookies = self.parties.get(&process).map_or_else(Vec::new, |it| it.waiting.iter().copied().collect());
        for cookie in cookies {
            self.forget(cookie);
        }
        self.parties.remove(&process);
        self.pools.leave(process, now);
    }

    /// Whether nothing is known of a process but that it exists.
    pub fn is_unused(&self, process: ProcessId) -> bool {
        self.parties.get(&process).is_none_or(|it| it.waiting.is_empty()) && !self.pools.has(process)
    }

    /// Forgets the ends that have waited too long at the time `now`, in nanoseconds, and pools of which one side has
    /// ended.
    pub fn expire(&mut self, now: u64) {
        let old = |it: &&Waiting| now.saturating_sub(it.since) > ASK_NS;
        let cookies: Vec<u64> = self.waiting.values().filter(old).map(|it| it.facts.cookie).collect();
        for cookie in cookies {
            self.forget(cookie);
        }
        self.pools.expire(now);
    }

    /// Whether there is anything that may have to be forgotten.
    pub fn is_waited(&self) -> bool {
        !self.waiting.is_empty() || self.pools.are_dying()
    }

    /// A process asks for the connection whose socket the kernel describes so.
    pub fn ask(
        &mut self,
        (process, client): (ProcessId, ClientId),
        ask: Ask,
        facts: Facts,
        evidence: &impl Evidence,
        now: u64,
    ) -> Vec<Reply> {
        let me = Waiting { process, client, ask, facts, since: now };
        let Some(user) = self.parties.get(&process).map(|it| it.user.clone()) else { return Vec::new() };
        // What a user has met, or waits for, it is told by its number.
        if !user.is_known {
            return vec![me.refuse(Refusal::Policy)];
        }
        if let Some(freed) = ask.freed {
            self.pools.free(process, freed);
        }
        self.forget(facts.cookie);
        if let Some(again) = self.pools.again(facts.cookie, process, user.uid, ask.mark) {
            return vec![match again {
                Ok((verdict, memory)) => me.reply(verdict, Some(memory)),
                Err(refusal) => me.refuse(refusal),
            }];
        }
        let other = match evidence.other_end(&facts) {
            Other::End(other) if other != facts.cookie => other,
            Other::Nowhere => return vec![me.refuse(Refusal::Elsewhere)],
            Other::End(_) | Other::Several | Other::Unknown => return vec![me.refuse(Refusal::Unproven)],
        };
        match self.forget(other) {
            Some(it) => self.meet(it, me, evidence),
            None => vec![match self.remember(me, user.uid) {
                Ok(()) => me.reply(Verdict::Waiting, None),
                Err(refusal) => me.refuse(refusal),
            }],
        }
    }

    /// A process asks for a socket that is no established connection: what it has met it is given again.
    pub fn again(&mut self, (process, client): (ProcessId, ClientId), ask: Ask, cookie: u64) -> Reply {
        let uid = self.parties.get(&process).filter(|it| it.user.is_known).map(|it| it.user.uid);
        let met = uid.and_then(|uid| self.pools.again(cookie, process, uid, ask.mark));
        let (verdict, memory) = match met {
            Some(Ok((verdict, memory))) => (verdict, Some(memory)),
            Some(Err(refusal)) => (Verdict::Refused(refusal), None),
            None => (Verdict::Refused(Refusal::NotConnection), None),
        };
        Reply { to: client, answer: Answer { token: ask.token, mark: ask.mark, verdict }, memory }
    }

    /// `me` says that `other`, which has asked before, is its other end.
    fn meet(&mut self, other: Waiting, me: Waiting, evidence: &impl Evidence) -> Vec<Reply> {
        match self.join(&other, &me, evidence) {
            Ok([(first, memory), (second, again)]) => {
                vec![me.reply(first, Some(memory)), other.reply(second, Some(again))]
            }
            Err(refusal) => vec![me.refuse(refusal), other.refuse(refusal)],
        }
    }

    fn join(
        &mut self,
        other: &Waiting,
        me: &Waiting,
        evidence: &impl Evidence,
    ) -> Result<[(Verdict, Rc<OwnedFd>); 2], Refusal> {
        // Once more: a third socket may have been made since it asked.
        if evidence.other_end(&other.facts) != Other::End(me.facts.cookie) {
            return Err(Refusal::Unproven);
        }
        if other.ask.mark != me.ask.mark {
            return Err(Refusal::Layout);
        }
        let user = |it: &Waiting| self.parties.get(&it.process).map(|it| it.user.clone()).ok_or(Refusal::Unproven);
        let (mine, others) = (user(me)?, user(other)?);
        let decision = self.policy.decide([&self.end(&mine, me), &self.end(&others, other)]);
        if !decision.allowed {
            tracing::debug!(users = ?[mine.uid, others.uid], because = %decision.grounds, "the policy refuses");
            return Err(Refusal::Policy);
        }
        let ends = [(me.process, mine.uid, me.facts.cookie), (other.process, others.uid, other.facts.cookie)];
        // Both ends are charged for rings, so neither decides alone how large they are.
        let ring_bytes = me.ask.ring_bytes.min(other.ask.ring_bytes);
        let placed = self.pools.place(ends, me.ask.mark, ring_bytes)?;
        self.meetings += 1;
        Ok(placed)
    }

    /// An end as the policy sees it.
    fn end<'a>(&self, user: &'a User, it: &Waiting) -> End<'a> {
        let network = it.facts.namespace.zip(self.network);
        let network = network.map(|(its, ours)| if its == ours { Network::Host } else { Network::Other });
        End { user, network, port: Some(it.facts.local.port()) }
    }

    fn remember(&mut self, it: Waiting, uid: u32) -> Result<(), Refusal> {
        let asks = self.asks.entry(uid).or_default();
        if *asks >= self.limits.asks {
            return Err(Refusal::Limit);
        }
        *asks += 1;
        self.waiting.insert(it.facts.cookie, it);
        if let Some(party) = self.parties.get_mut(&it.process) {
            party.waiting.insert(it.facts.cookie);
        }
        Ok(())
    }

    /// The end with this cookie waits no more.
    fn forget(&mut self, cookie: u64) -> Option<Waiting> {
        let it = self.waiting.remove(&cookie)?;
        if let Some(party) = self.parties.get_mut(&it.process) {
            party.waiting.remove(&cookie);
            if let Some(asks) = self.asks.get_mut(&party.user.uid) {
                *asks -= 1;
                if *asks == 0 {
                    self.asks.remove(&party.user.uid);
                }
            }
        }
        Some(it)
    }
}
