//! What the daemon answers.

use crate::error::WireError;
use crate::fields::Reader;
use crate::header::{self, Header};
use crate::refusal::Refusal;
use crate::shape::Shape;

const KIND_WAITING: u16 = 16;
const KIND_MET: u16 = 17;
const KIND_REFUSED: u16 = 18;
const KIND_HERE: u16 = 19;
const KIND_CARRIED: u16 = 21;
/// Octets of an answer that says to wait.
pub const WAITING: usize = header::LEN;
/// Octets of an answer to a knock.
pub const HERE: usize = header::LEN + 8;
/// Octets of an answer with memory.
pub const MET: usize = header::LEN + 40;
/// Octets of an answer with memory that the daemon shares.
pub const CARRIED: usize = header::LEN + 48;
/// Octets of an answer that refuses.
pub const REFUSED: usize = header::LEN + 8;

/// An answer to the ask with the same token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Number that the ask had.
    pub token: u64,
    /// Mark of the layout, as in the ask.
    pub mark: u64,
    /// What the daemon says.
    pub verdict: Verdict,
}

/// What the daemon says of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The other end has not asked yet. Another answer follows on the same connection once it has.
    Waiting,
    /// The ends are proven, and may share the memory whose descriptor comes with the record.
    ///
    /// | Octets | Field |
    /// |---|---|
    /// | 24..32 | number of the pool |
    /// | 32..36 | bytes of a ring |
    /// | 36..38 | slots of the pool |
    /// | 38..40 | slot of this connection; its highest bit is set for the joiner |
    /// | 40..56 | cookies of the maker's and the joiner's socket |
    /// | 56..64 | 0 |
    Met {
        /// Number of the pool, not 0: the same one for the same memory, as long as the daemon runs.
        pool: u64,
        /// Its shape.
        shape: Shape,
        /// The connection's slot, below [`Shape::slots`].
        slot: u16,
        /// Which side of the slot this end is.
        side: Side,
        /// SO_COOKIE of the maker's and of the joiner's socket; they differ.
        cookies: [u64; 2],
    },
    /// The other end is on another host, and the daemons carry what goes by the memory whose descriptor comes with the
    /// record: its first slot is ready, and this end joins it.
    ///
    /// | Octets | Field |
    /// |---|---|
    /// | 24..32 | number of the pool |
    /// | 32..36 | bytes of a ring |
    /// | 36..40 | 0 |
    /// | 40..56 | cookies of the daemon's end, which is none of a socket, and of this end's socket |
    /// | 56..72 | the key of the stream |
    Carried {
        /// Number of the pool, not 0.
        pool: u64,
        /// Its shape, with one slot.
        shape: Shape,
        /// The cookies; they differ.
        cookies: [u64; 2],
        /// The key of the stream, of which the first word is not 0.
        key: [u64; 2],
    },
    /// The connection stays on kernel TCP.
    Refused(Refusal),
    /// The daemon is at work: the answer to a knock.
    ///
    /// | Octets | Field |
    /// |---|---|
    /// | 24..32 | number of the daemon |
    Here {
        /// Another one each time that the daemon starts, not 0. It gives what it has given before again, and no other
        /// daemon does.
        daemon: u64,
    },
}

/// Which side of a slot an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It makes the slot ready.
    Maker,
    /// It joins once the slot is ready.
    Joiner,
}

const JOINER: u16 = 1 << 15;

impl Answer {
    /// The record in the first octets, and how many these are.
    ///
    /// # Errors
    /// [`WireError::Value`] where a field has a value that it never has.
    pub fn emit(&self) -> Result<([u8; CARRIED], usize), WireError> {
        let begin = |len, kind| Header::begin::<CARRIED>(len, kind, self.mark, self.token);
        match self.verdict {
            Verdict::Waiting => Ok(begin(WAITING, KIND_WAITING).finish()),
            Verdict::Here { daemon: 0 } => Err(WireError::Value("daemon")),
            Verdict::Here { daemon } => {
                let mut to = begin(HERE, KIND_HERE);
                to.u64(daemon);
                Ok(to.finish())
            }
            Verdict::Refused(refusal) => {
                let mut to = begin(REFUSED, KIND_REFUSED);
                to.u32(refusal as u32);
                to.u32(0);
                Ok(to.finish())
            }
            Verdict::Met { pool, shape, slot, side, cookies } => {
                check(pool, shape, slot, cookies)?;
                let mut to = begin(MET, KIND_MET);
                to.u64(pool);
                to.u32(shape.ring_bytes());
                to.u16(shape.slots() as u16);
                to.u16(slot | if side == Side::Joiner { JOINER } else { 0 });
                to.u64(cookies[0]);
                to.u64(cookies[1]);
                to.u64(0);
                Ok(to.finish())
            }
            Verdict::Carried { pool, shape, cookies, key } => {
                check_carried(pool, shape, cookies, key)?;
                let mut to = begin(CARRIED, KIND_CARRIED);
                to.u64(pool);
                to.u32(shape.ring_bytes());
                to.u32(0);
                for word in cookies.into_iter().chain(key) {
                    to.u64(word);
                }
                Ok(to.finish())
            }
        }
    }

    /// What a packet answers.
    ///
    /// # Errors
    /// See [`WireError`].
    pub fn parse(packet: &[u8]) -> Result<Answer, WireError> {
        let (header, from) = Header::parse(packet)?;
        let len = match header.kind {
            KIND_WAITING => WAITING,
            KIND_MET => MET,
            KIND_REFUSED => REFUSED,
            KIND_HERE => HERE,
            KIND_CARRIED => CARRIED,
            other => return Err(WireError::Kind(other)),
        };
        if packet.len() != len {
            return Err(WireError::Length);
        }
        let verdict = match header.kind {
            KIND_MET => met(from)?,
            KIND_REFUSED => refused(from)?,
            KIND_HERE => here(from)?,
            KIND_CARRIED => carried(from)?,
            _ => Verdict::Waiting,
        };
        Ok(Answer { token: header.token, mark: header.mark, verdict })
    }
}

fn refused(mut from: Reader<'_>) -> Result<Verdict, WireError> {
    let refusal = Refusal::numbered(from.u32()?)?;
    if from.u32()? != 0 {
        return Err(WireError::Value("reserved"));
    }
    Ok(Verdict::Refused(refusal))
}

fn here(mut from: Reader<'_>) -> Result<Verdict, WireError> {
    match from.u64()? {
        0 => Err(WireError::Value("daemon")),
        daemon => Ok(Verdict::Here { daemon }),
    }
}

fn met(mut from: Reader<'_>) -> Result<Verdict, WireError> {
    let pool = from.u64()?;
    let (ring_bytes, slots, word) = (from.u32()?, from.u16()?, from.u16()?);
    let cookies = [from.u64()?, from.u64()?];
    if from.u64()? != 0 {
        return Err(WireError::Value("reserved"));
    }
    let shape = Shape::new(ring_bytes, slots.into())?;
    let (slot, side) = (word & !JOINER, if word & JOINER == 0 { Side::Maker } else { Side::Joiner });
    check(pool, shape, slot, cookies)?;
    Ok(Verdict::Met { pool, shape, slot, side, cookies })
}

fn carried(mut from: Reader<'_>) -> Result<Verdict, WireError> {
    let (pool, ring_bytes) = (from.u64()?, from.u32()?);
    if from.u32()? != 0 {
        return Err(WireError::Value("reserved"));
    }
    let (cookies, key) = ([from.u64()?, from.u64()?], [from.u64()?, from.u64()?]);
    let shape = Shape::new(ring_bytes, 1)?;
    check_carried(pool, shape, cookies, key)?;
    Ok(Verdict::Carried { pool, shape, cookies, key })
}

fn check_carried(pool: u64, shape: Shape, cookies: [u64; 2], key: [u64; 2]) -> Result<(), WireError> {
    check(pool, shape, 0, cookies)?;
    if shape.slots() != 1 {
        return Err(WireError::Value("slots"));
    }
    if key[0] == 0 {
        return Err(WireError::Value("key"));
    }
    Ok(())
}

fn check(pool: u64, shape: Shape, slot: u16, cookies: [u64; 2]) -> Result<(), WireError> {
    if pool == 0 {
        return Err(WireError::Value("pool"));
    }
    if u32::from(slot) >= shape.slots() {
        return Err(WireError::Value("slot"));
    }
    if cookies[0] == cookies[1] || cookies.contains(&0) {
        return Err(WireError::Value("cookies"));
    }
    Ok(())
}
