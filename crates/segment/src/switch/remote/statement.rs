//! What the library says in the kernel stream of a connection to another host.
//!
//! A statement is 40 octets, little-endian:
//!
//! | Octets | Field |
//! |---|---|
//! | 0..16 | the key of the stream, which the programs do not know |
//! | 16..24 | how often the sender has gone up |
//! | 24..32 | *plain*: how many octets came by the ring since and are not sent again; *fast*: 2^64 - 1 |
//! | 32..40 | *plain*: how many octets were put into the ring since; *fast*: 0 |

/// Octets of a statement.
pub(super) const LEN: usize = 40;
/// Octets of the key.
pub(super) const KEY: usize = 16;
const FAST: u64 = u64::MAX;

/// A statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Statement {
    /// The stream goes on in the ring, for the time of this number.
    Fast { number: u64 },
    /// The stream goes on in the kernel, from octet `from` of what was put into the ring since then, which is `sent`
    /// octets.
    Plain { number: u64, from: u64, sent: u64 },
}

/// What octets of the kernel stream are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// A whole statement.
    Statement(Statement),
    /// The beginning of a statement, as far as it has come.
    Beginning,
    /// Something else.
    Other,
}

impl Statement {
    pub fn emit(self, key: [u64; 2]) -> [u8; LEN] {
        let words = match self {
            Statement::Fast { number } => [key[0], key[1], number, FAST, 0],
            Statement::Plain { number, from, sent } => [key[0], key[1], number, from, sent],
        };
        let mut octets = [0; LEN];
        octets.chunks_exact_mut(8).zip(words).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
        octets
    }

    /// How many octets come before the first key, whose octets arrive together.
    pub fn find(key: [u64; 2], octets: &[u8]) -> usize {
        let key = [key[0].to_le_bytes(), key[1].to_le_bytes()];
        octets.windows(KEY).position(|it| it == key.as_flattened()).unwrap_or(octets.len())
    }

    /// What the octets say that lie next in the kernel stream.
    pub fn parse(key: [u64; 2], octets: &[u8]) -> Heard {
        let word = |at: usize| octets.get(8 * at..8 * at + 8).and_then(|it| it.try_into().ok()).map(u64::from_le_bytes);
        let key = [key[0].to_le_bytes(), key[1].to_le_bytes()];
        if octets.get(..KEY) != Some(key.as_flattened()) {
            return Heard::Other;
        }
        match (word(2), word(3), word(4)) {
            (Some(number), Some(FAST), Some(0)) => Heard::Statement(Statement::Fast { number }),
            (Some(number), Some(from), Some(sent)) if from <= sent => {
                Heard::Statement(Statement::Plain { number, from, sent })
            }
            (_, _, Some(_)) => Heard::Other,
            _ => Heard::Beginning,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_emitted_is_heard_once_it_has_all_come() {
        let key = [0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210];
        for said in [Statement::Fast { number: 7 }, Statement::Plain { number: 1 << 40, from: 3, sent: 5 }] {
            let octets = said.emit(key);
            assert_eq!(Statement::parse(key, &octets), Heard::Statement(said));
            for len in KEY..LEN {
                assert_eq!(Statement::parse(key, &octets[..len]), Heard::Beginning);
            }
            assert_eq!(Statement::parse([key[0], 1], &octets), Heard::Other);
        }
        assert_eq!(Statement::parse(key, b""), Heard::Other);
        let octets = [&[key[0] as u8; 5], &Statement::Fast { number: 3 }.emit(key)[..], b"behind"].concat();
        for len in 0..=octets.len() {
            assert_eq!(Statement::find(key, &octets[..len]), if len < 5 + KEY { len } else { 5 });
        }
        let lie = Statement::Plain { number: 1, from: 6, sent: 5 };
        assert_eq!(Statement::parse(key, &lie.emit(key)), Heard::Other);
    }
}
