//! The endpoints of a survey while it runs: their agents, what they say of themselves, and which are lost.

use std::collections::BTreeMap;
use std::iter;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::channel::ChannelError;
use super::endpoints::Place;
use super::journal::{Difference, differing, host};
use super::message::Facts;
use super::record::{Endpoint, Key, Plan, Sample};
use super::remote::{AgentError, Remote};
use super::sample::{Agents, Trouble};
use crate::host::revision;
use crate::interrupt::{self, Interrupted};

/// How long an agent may take to describe itself: it asks each tool for its version.
const DESCRIBE: Duration = Duration::from_secs(90);
/// How often a lost agent is looked for, and how long apart.
const SEARCHES: u32 = 5;
const APART: Duration = Duration::from_secs(1);

/// How often a sample is tried.
const TRIES: u32 = 3;

/// What connects to the agent of an endpoint, by its place among all.
pub type Connect<'a> = Box<dyn Fn(usize) -> Result<Remote, AgentError> + 'a>;

/// The endpoints and their agents.
pub struct Roster<'a> {
    places: Vec<Place>,
    agents: Agents,
    /// As they have to be.
    before: Vec<Endpoint>,
    /// As they described themselves last.
    met: Vec<Endpoint>,
    /// Endpoints that are no longer there, with the reason.
    lost: BTreeMap<usize, String>,
    /// It may hold what the agents run in, and so is dropped after them.
    connect: Connect<'a>,
}

/// What came of a sample that was tried a few times.
#[derive(Debug)]
pub enum Taken {
    /// It was taken.
    Sample(Sample),
    /// It failed each time, the last time for this reason.
    Failed(String),
    /// An endpoint of its figure is lost.
    Lost,
    /// The user wants the end.
    Interrupted,
}

/// Why there are no agents to work with.
#[derive(Debug, thiserror::Error)]
pub enum MeetError {
    /// Not all endpoints are there.
    #[error("not all endpoints can be reached; nothing was measured:\n{}", list(.0))]
    Unreachable(Vec<(String, AgentError)>),
    /// An agent is of another version.
    #[error("{0}; figures of different versions must not be mixed: install the same at all endpoints")]
    Version(#[from] OtherVersion),
    /// The user wants the end.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Something is of another version than this.
#[derive(Debug, thiserror::Error)]
#[error("{what} Underpass {theirs}, and this is {ours}")]
pub struct OtherVersion {
    what: String,
    theirs: String,
    ours: String,
}

fn list(unreachable: &[(String, AgentError)]) -> String {
    unreachable.iter().map(|(name, error)| format!("  {name}: {error}")).collect::<Vec<_>>().join("\n")
}

/// Whether this is the version of Underpass that is of `what`, as in `host-a runs`.
///
/// # Errors
/// It is another.
pub fn check_version(what: &str, version: &str, revised: Option<&str>) -> Result<(), OtherVersion> {
    let name = |version: &str, revision: Option<&str>| match revision {
        Some(revision) => format!("{version} ({revision})"),
        None => version.to_string(),
    };
    let (ours, own) = (env!("CARGO_PKG_VERSION"), revision());
    // What is installed lies in no checkout, and has no revision to compare.
    let is_other = matches!((&own, revised), (Some(own), Some(theirs)) if own != theirs);
    if version == ours && !is_other {
        return Ok(());
    }
    let (theirs, ours) = (name(version, revised), name(ours, own.as_deref()));
    Err(OtherVersion { what: what.to_string(), theirs, ours })
}

impl<'a> Roster<'a> {
    /// Connects to all agents and asks for their descriptions, which are returned too.
    ///
    /// # Errors
    /// Not all can be reached, or one runs another version.
    pub fn meet(places: &[Place], plan: &Plan, connect: Connect<'a>) -> Result<(Roster<'a>, Vec<Facts>), MeetError> {
        let mut unreachable = Vec::new();
        let (mut remotes, mut met, mut facts) = (Vec::new(), Vec::new(), Vec::new());
        for (index, place) in places.iter().enumerate() {
            match described(place, || connect(index)) {
                Ok((remote, endpoint, of)) => {
                    runs_this(place, &of)?;
                    remotes.push(Some(remote));
                    met.push(endpoint);
                    facts.push(of);
                }
                Err(AgentError::Interrupted(interrupted)) => return Err(interrupted.into()),
                Err(error) => unreachable.push((place.name.clone(), error)),
            }
        }
        if !unreachable.is_empty() {
            return Err(MeetError::Unreachable(unreachable));
        }
        let agents = Agents { remotes, seconds: plan.seconds, brief: plan.brief };
        let (places, before, lost) = (places.to_vec(), met.clone(), BTreeMap::new());
        Ok((Roster { places, agents, before, met, lost, connect }, facts))
    }

    /// The endpoints as they described themselves last.
    pub fn endpoints(&self) -> &[Endpoint] {
        &self.met
    }

    /// The endpoints have to stay as they were when their survey was begun, which is as they are now.
    pub fn began_with(&mut self, before: &[Endpoint]) {
        self.before = before.to_vec();
    }

    /// The name of an endpoint.
    fn name(&self, index: usize) -> &str {
        &self.places[index].name
    }

    /// Takes a sample, tried a few times.
    ///
    /// # Errors
    /// An endpoint is not as it was, and this is how.
    pub fn take(&mut self, key: &Key) -> Result<Taken, String> {
        let mut failed = String::new();
        for _ in 0..TRIES {
            if interrupt::check().is_err() {
                return Ok(Taken::Interrupted);
            }
            match self.agents.sample(key, &self.places) {
                Ok(sample) => return Ok(Taken::Sample(sample)),
                Err(Trouble::Interrupted) => return Ok(Taken::Interrupted),
                Err(Trouble::Failed(reason)) => failed = format!("{reason} ({TRIES} times)"),
                Err(Trouble::Lost(index, error)) => {
                    if !self.find_again(index, &error)? {
                        let is_ended = interrupt::check().is_err();
                        return Ok(if is_ended { Taken::Interrupted } else { Taken::Lost });
                    }
                    // The agent is there again, but measuring this figure may be what makes it end.
                    failed = format!("{} was lost ({TRIES} times): {error}", self.name(index));
                }
            }
        }
        Ok(Taken::Failed(failed))
    }

    /// That an endpoint of this figure was lost, and why; `None` if none is.
    pub fn loss(&self, key: &Key) -> Option<String> {
        let index = |name: &String| self.places.iter().position(|place| place.name == *name);
        let reason = |name: &String| Some(format!("{name} was lost: {}", self.lost.get(&index(name)?)?));
        [Some(&key.sender), Some(&key.receiver), key.via.as_ref()].into_iter().flatten().find_map(reason)
    }

    /// Endpoints that are lost, with the reason.
    pub fn lost(&self) -> Vec<(String, String)> {
        self.lost.iter().map(|(index, reason)| (self.name(*index).to_string(), reason.clone())).collect()
    }

    /// Connects anew to an agent that was lost by this error; whether it is there again. It is not if the user wants
    /// the end.
    ///
    /// # Errors
    /// An endpoint, this one or one of its host, is not as it was, and this is how. It counts as lost then, and the
    /// others do not.
    fn find_again(&mut self, index: usize, error: &AgentError) -> Result<bool, String> {
        self.agents.remotes[index] = None;
        if !self.ask_anew(index, error)? {
            return Ok(false);
        }
        let mut changed = None;
        if self.differing(index).is_some() {
            // A host that was started anew has another identity, and the agents that were lost with this one are still
            // known by the earlier one.
            for other in self.beside(index) {
                changed = changed.or(self.ask_anew(other, &AgentError::Lost(ChannelError::Closed)).err());
            }
            if interrupt::check().is_err() {
                return Ok(false);
            }
        }
        while let Some(Difference { at, what }) = self.differing(index) {
            self.give_up(at, what.clone());
            changed = changed.or(Some(what));
        }
        changed.map_or(Ok(true), Err)
    }

    /// From now on an endpoint is lost.
    fn give_up(&mut self, index: usize, reason: String) {
        self.agents.remotes[index] = None;
        self.lost.insert(index, reason);
    }

    /// Asks an agent for its description once more, by another connection if there is none or it is dead; whether it
    /// answers. One that does not, or is of another version, is lost.
    fn ask_anew(&mut self, index: usize, error: &AgentError) -> Result<bool, String> {
        if self.lost.contains_key(&index) {
            return Ok(false);
        }
        for search in 0..SEARCHES {
            if interrupt::check().is_err() {
                return Ok(false);
            }
            let (place, known) = (&self.places[index], self.agents.remotes[index].take());
            match described(place, || known.map_or_else(|| (self.connect)(index), Ok)) {
                Ok((remote, endpoint, facts)) => {
                    if let Err(other) = runs_this(place, &facts) {
                        self.give_up(index, other.to_string());
                        return Err(other.to_string());
                    }
                    self.met[index] = endpoint;
                    self.agents.remotes[index] = Some(remote);
                    return Ok(true);
                }
                Err(AgentError::Interrupted(_)) => return Ok(false),
                Err(_) if search + 1 < SEARCHES => thread::sleep(APART),
                Err(_) => {}
            }
        }
        self.give_up(index, error.to_string());
        Ok(false)
    }

    /// The other endpoints that are, or have to be, on the host of this one.
    fn beside(&self, index: usize) -> Vec<usize> {
        let shares = |all: &[Endpoint], other: usize| host(&all[other]) == host(&all[index]);
        let is_beside = |other: &usize| shares(&self.before, *other) || shares(&self.met, *other);
        (0..self.places.len()).filter(|other| *other != index).filter(is_beside).collect()
    }

    /// The first endpoint that is not as it has to be, looked at from `first` on. Of those that are lost nobody knows
    /// how they are.
    fn differing(&self, first: usize) -> Option<Difference> {
        let others = (0..self.places.len()).filter(|index| *index != first);
        let there: Vec<usize> = iter::once(first).chain(others).filter(|it| !self.lost.contains_key(it)).collect();
        let of = |all: &[Endpoint]| there.iter().map(|index| all[*index].clone()).collect::<Vec<Endpoint>>();
        let found = differing(&of(&self.before), &of(&self.met))?;
        Some(Difference { at: there[found.at], ..found })
    }
}

fn runs_this(place: &Place, facts: &Facts) -> Result<(), OtherVersion> {
    check_version(&format!("{} runs", place.name), &facts.version, facts.revision.as_deref())
}

fn described(
    place: &Place,
    connect: impl FnOnce() -> Result<Remote, AgentError>,
) -> Result<(Remote, Endpoint, Facts), AgentError> {
    let mut remote = connect()?;
    let facts = remote.describe(DESCRIBE)?;
    // The second answer comes at once, so that it tells the time better.
    let (clock_offset, clock_round_trip) = clock(&mut remote)?;
    let endpoint = Endpoint {
        name: place.name.clone(),
        kind: place.kind,
        system: place.system.clone(),
        emulated: place.emulation.is_some(),
        emulation: place.emulation.clone(),
        address: place.address.to_string(),
        host: facts.host.clone(),
        tools: facts.tools.clone(),
        library: facts.library,
        network: facts.network.clone(),
        user: Some(facts.user),
        revision: facts.revision.clone(),
        clock_offset,
        clock_round_trip,
    };
    Ok((remote, endpoint, facts))
}

/// The agent's clock less this host's, in ns, and the round-trip time.
fn clock(agent: &mut Remote) -> Result<(i64, u64), AgentError> {
    let here = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64);
    let (before, begun) = (here(), Instant::now());
    let there = agent.time(Duration::from_secs(20))?;
    let round_trip = begun.elapsed().as_nanos() as u64;
    Ok((there.saturating_sub(before).saturating_sub((round_trip / 2) as i64), round_trip))
}
