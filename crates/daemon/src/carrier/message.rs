//! What two daemons tell each other of a stream, over its transport connection: one message in each TSDU.
//!
//! | Octets | Field |
//! |---|---|
//! | 0 | kind |
//! | 1.. | *up*: the number, 8 octets; *read*: number and octets, 16; *octets*: at least one; else nothing |
//!
//! Numbers are little-endian. What parses is the only spelling of its meaning.

use underpass_segment::far::Read;

/// What a daemon tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message<'a> {
    /// Its program reads by the library alone, and looks for statements.
    Ready,
    /// Its program has gone up, for the time of this number.
    Up(u64),
    /// Its program has put these octets into the ring.
    Octets(&'a [u8]),
    /// Its program has gone down.
    Plain,
    /// Its program has ended, and all that it has put into the ring was told.
    End,
    /// Its program has read so far.
    Read(Read),
    /// Its program has come to the end of the kernel stream, and asks where the stream ends in the ring: the other
    /// program has been killed.
    Asks,
}

/// Octets in front of those of *octets*.
pub const HEADER: usize = 1;

const READY: u8 = 1;
const UP: u8 = 2;
const OCTETS: u8 = 3;
const PLAIN: u8 = 4;
const END: u8 = 5;
const READ: u8 = 6;
const ASKS: u8 = 7;

impl<'a> Message<'a> {
    /// Writes the message without the octets of *octets*, which the caller has put behind the header. Returns how many
    /// octets it has, without those.
    pub fn emit(&self, to: &mut [u8]) -> usize {
        let (kind, words) = match *self {
            Message::Ready => (READY, [0; 2]),
            Message::Up(number) => (UP, [number, 0]),
            Message::Octets(_) => (OCTETS, [0; 2]),
            Message::Plain => (PLAIN, [0; 2]),
            Message::End => (END, [0; 2]),
            Message::Asks => (ASKS, [0; 2]),
            Message::Read(Read { number, octets }) => (READ, [number, octets]),
        };
        let count = match kind {
            UP => 1,
            READ => 2,
            _ => 0,
        };
        to[0] = kind;
        for (to, word) in to[HEADER..].chunks_exact_mut(8).zip(&words[..count]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        HEADER + 8 * count
    }

    /// What a TSDU tells; `None` if it is no message.
    pub fn parse(octets: &'a [u8]) -> Option<Message<'a>> {
        let (kind, rest) = octets.split_first()?;
        let word = |at: usize| rest.get(at..at + 8).and_then(|it| it.try_into().ok()).map(u64::from_le_bytes);
        match (*kind, rest.len()) {
            (READY, 0) => Some(Message::Ready),
            (UP, 8) => Some(Message::Up(word(0)?)),
            (OCTETS, 1..) => Some(Message::Octets(rest)),
            (PLAIN, 0) => Some(Message::Plain),
            (END, 0) => Some(Message::End),
            (ASKS, 0) => Some(Message::Asks),
            (READ, 16) => Some(Message::Read(Read { number: word(0)?, octets: word(8)? })),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_parses_is_the_only_spelling_of_its_meaning() {
        let read = Message::Read(Read { number: 3, octets: u64::MAX });
        for message in [Message::Ready, Message::Up(1 << 60), Message::Plain, Message::End, Message::Asks, read] {
            let mut octets = [0xff; 18];
            let len = message.emit(&mut octets);
            assert_eq!(Message::parse(&octets[..len]), Some(message));
            assert_eq!(Message::parse(&octets[..len + 1]), None);
            assert!(len == 1 || Message::parse(&octets[..len - 1]).is_none());
        }
        assert_eq!(Message::parse(&[OCTETS, 7, 8]), Some(Message::Octets(&[7, 8])));
        assert!([&[][..], &[OCTETS], &[0], &[ASKS + 1]].into_iter().all(|it| Message::parse(it).is_none()));
    }
}
