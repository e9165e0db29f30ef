//! The state of the daemon, for `underpass metrics`, `doctor` and `policy explain`. The library does not ask for it.

use crate::error::WireError;
use crate::fields::{Reader, Writer};
use crate::header::{self, Header};
use crate::refusal::Refusal;

/// Kind of an [`Inquiry`].
const INQUIRY: u16 = 3;
/// Kind of a [`State`].
const STATE: u16 = 20;
/// Octets of an [`Inquiry`].
pub const INQUIRY_LEN: usize = header::LEN;
/// Octets of a [`State`].
pub const LEN: usize = header::LEN + 8 * (FIELDS + FIGURES + Counts::REFUSALS);

/// Fields before the counts.
const FIELDS: usize = 4;
/// Counts that are not refusals.
const FIGURES: usize = 10;
/// What the bits of the first field say.
const BY_NUMBERS: u64 = 1;
const BY_ADDRESSES: u64 = 1 << 1;
const BY_PIDFD: u64 = 1 << 2;
const HAS_COUNTS: u64 = 1 << 63;

/// How does the daemon fare? Everybody may ask, and is answered a [`State`]. A header alone, with nothing beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// Number by which the asking process knows the answer.
    pub token: u64,
    /// Mark of its layout, as in an ask; the daemon repeats it and makes nothing of it.
    pub mark: u64,
}

/// What the daemon can do, and how much it has done.
///
/// | Octets | Field |
/// |---|---|
/// | 24..32 | what the daemon can, a bit each: [`Abilities`] from the lowest on; the highest bit: counts follow |
/// | 32..40 | mark of the policy that is in force |
/// | 40..48 | cookie of the daemon's network namespace; 0: not known |
/// | 48..56 | seconds since the daemon began |
/// | 56..136 | [`Counts`] in the order of their definition, without the refusals; 0 where none follow |
/// | 136..264 | refusals, by number |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// Number that the inquiry had.
    pub token: u64,
    /// Mark that the inquiry had.
    pub mark: u64,
    /// What the system lets the daemon do.
    pub abilities: Abilities,
    /// Mark of the policy that is in force: another policy has another one.
    pub policy: u64,
    /// Cookie of the network namespace that the daemon is in.
    pub network: Option<u64>,
    /// How long the daemon has run, in seconds.
    pub seconds: u64,
    /// Sums over all users, for root and the daemon's own user alone.
    pub counts: Option<Counts>,
}

/// What the system lets the daemon do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// It proves connections by their sequence numbers, also between network namespaces.
    pub numbers: bool,
    /// It proves connections of its own network namespace by their addresses.
    pub addresses: bool,
    /// It learns which process asks without a race.
    pub pidfd: bool,
}

/// Sums since the daemon began, and what it has now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Asks for a connection.
    pub asks: u64,
    /// Pairs of ends that have met.
    pub meetings: u64,
    /// Connections to the daemon that were closed at once, because their user made too many.
    pub turned_away: u64,
    /// Policies that were read anew and taken.
    pub policies_taken: u64,
    /// Policies that were read anew and were wrong, so that the old one stayed.
    pub policies_wrong: u64,
    /// Ends that have asked and wait, now.
    pub waiting: u64,
    /// Connections to the daemon, now.
    pub clients: u64,
    /// Processes that the daemon knows, now.
    pub processes: u64,
    /// Pools of memory, now.
    pub pools: u64,
    /// Bytes of these. They are used, and charged to the users, as far as these touch them.
    pub memory: u64,
    /// Answers that refused, by the number of the [`Refusal`].
    pub refused: [u64; Counts::REFUSALS],
}

impl Counts {
    /// Numbers of refusals that there is room for.
    pub const REFUSALS: usize = 16;

    /// Counts a refusal.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.refused[refusal as usize] += 1;
    }

    /// How often this was the reason.
    pub fn refused(&self, refusal: Refusal) -> u64 {
        self.refused[refusal as usize]
    }
}

const _: () = {
    let mut at = 0;
    while at < Refusal::ALL.len() {
        assert!((Refusal::ALL[at] as usize) < Counts::REFUSALS);
        at += 1;
    }
};

impl Inquiry {
    /// The record.
    pub fn emit(&self) -> [u8; INQUIRY_LEN] {
        Header::begin::<INQUIRY_LEN>(INQUIRY_LEN, INQUIRY, self.mark, self.token).finish().0
    }

    /// What a packet asks.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn parse(packet: &[u8]) -> Result<Inquiry, WireError> {
        let (header, _) = Header::parse_as(packet, INQUIRY, INQUIRY_LEN)?;
        Ok(Inquiry { token: header.token, mark: header.mark })
    }
}

impl State {
    /// The record.
    pub fn emit(&self) -> [u8; LEN] {
        let mut to = Header::begin::<LEN>(LEN, STATE, self.mark, self.token);
        let bit = |is_set: bool, bit: u64| if is_set { bit } else { 0 };
        to.u64(
            bit(self.abilities.numbers, BY_NUMBERS)
                | bit(self.abilities.addresses, BY_ADDRESSES)
                | bit(self.abilities.pidfd, BY_PIDFD)
                | bit(self.counts.is_some(), HAS_COUNTS),
        );
        to.u64(self.policy);
        to.u64(self.network.unwrap_or(0));
        to.u64(self.seconds);
        self.counts.unwrap_or_default().emit(&mut to);
        to.finish().0
    }

    /// What a packet says.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn parse(packet: &[u8]) -> Result<State, WireError> {
        let (header, mut from) = Header::parse_as(packet, STATE, LEN)?;
        let bits = from.u64()?;
        if bits & !(BY_NUMBERS | BY_ADDRESSES | BY_PIDFD | HAS_COUNTS) != 0 {
            return Err(WireError::Value("abilities"));
        }
        let has = |bit: u64| bits & bit != 0;
        let abilities = Abilities { numbers: has(BY_NUMBERS), addresses: has(BY_ADDRESSES), pidfd: has(BY_PIDFD) };
        let (policy, network, seconds) = (from.u64()?, from.u64()?, from.u64()?);
        let counts = Counts::parse(&mut from)?;
        if !has(HAS_COUNTS) && counts != Counts::default() {
            return Err(WireError::Value("counts"));
        }
        Ok(State {
            token: header.token,
            mark: header.mark,
            abilities,
            policy,
            network: (network != 0).then_some(network),
            seconds,
            counts: has(HAS_COUNTS).then_some(counts),
        })
    }
}

impl Counts {
    fn emit(&self, to: &mut Writer<LEN>) {
        let figures = [self.asks, self.meetings, self.turned_away, self.policies_taken, self.policies_wrong];
        let present = [self.waiting, self.clients, self.processes, self.pools, self.memory];
        figures.into_iter().chain(present).chain(self.refused).for_each(|it| to.u64(it));
    }

    fn parse(from: &mut Reader<'_>) -> Result<Counts, WireError> {
        let mut it = Counts {
            asks: from.u64()?,
            meetings: from.u64()?,
            turned_away: from.u64()?,
            policies_taken: from.u64()?,
            policies_wrong: from.u64()?,
            waiting: from.u64()?,
            clients: from.u64()?,
            processes: from.u64()?,
            pools: from.u64()?,
            memory: from.u64()?,
            refused: [0; Counts::REFUSALS],
        };
        for refused in &mut it.refused {
            *refused = from.u64()?;
        }
        Ok(it)
    }
}
