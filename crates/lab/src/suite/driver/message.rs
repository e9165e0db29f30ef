//! A message: words of which the first is its number, and each further one follows from the number and its place. What
//! is lost, repeated, displaced or changed shows. `programs/datagram.c` writes the same.

/// What one word has more than the last.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;
/// Octets of a word.
pub const WORD: usize = 8;

/// The destination (all stations) and a made-up source, LLC of ISO network protocols behind the EtherType of jumbo
/// frames, which fits any length, and CLNP's inactive subset.
pub const HEADER: [u8; 18] = {
    let mut header = [0xff; 18];
    header[6] = 0x02;
    (header[12], header[13]) = (0x88, 0x70);
    (header[14], header[15], header[16], header[17]) = (0xfe, 0xfe, 0x03, 0x00);
    header
};

/// Writes the words of message `number` from the `first` on.
pub fn write(octets: &mut [u8], first: usize, number: u64) {
    let mut value = number.wrapping_mul(STEP).wrapping_add(STEP.wrapping_mul(first as u64));
    let (words, _) = octets.as_chunks_mut();
    for word in words {
        *word = value.to_le_bytes();
        value = value.wrapping_add(STEP);
    }
    if first == 0
        && let Some(word) = octets.first_chunk_mut()
    {
        *word = number.to_le_bytes();
    }
}

/// A message is not as it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Wrong {
    /// In its contents.
    #[error("a frame is not as it was sent")]
    Contents,
    /// In its length.
    #[error("a frame has {0} octets")]
    Length(usize),
}

/// Looks at the frame of a message of `size` octets that lies in pieces: its number.
///
/// # Errors
/// It is another.
pub fn check<'a>(pieces: impl Iterator<Item = &'a [u8]>, size: usize) -> Result<u64, Wrong> {
    // The header and the number, wherever they are cut; then words, of which one may be cut too.
    const BEGINNING: usize = HEADER.len() + WORD;
    let (mut at, mut different) = (0, 0);
    let (mut beginning, mut torn) = ([0; BEGINNING], [0; WORD]);
    let (mut number, mut value) = (0, 0u64);
    for mut piece in pieces {
        if at < BEGINNING {
            let len = piece.len().min(BEGINNING - at);
            beginning[at..at + len].copy_from_slice(&piece[..len]);
            (at, piece) = (at + len, &piece[len..]);
            if at < BEGINNING {
                continue;
            }
            let (header, word) = beginning.split_at(HEADER.len());
            number = u64::from_le_bytes(std::array::from_fn(|octet| word[octet]));
            value = number.wrapping_mul(STEP);
            different |= u64::from(header != HEADER);
        }
        let begun = (at - BEGINNING) % WORD;
        if begun > 0 {
            let len = piece.len().min(WORD - begun);
            torn[begun..begun + len].copy_from_slice(&piece[..len]);
            (at, piece) = (at + len, &piece[len..]);
            if begun + len < WORD {
                continue;
            }
            value = value.wrapping_add(STEP);
            different |= u64::from_le_bytes(torn) ^ value;
        }
        let (words, rest) = piece.as_chunks();
        for word in words {
            value = value.wrapping_add(STEP);
            different |= u64::from_le_bytes(*word) ^ value;
        }
        torn[..rest.len()].copy_from_slice(rest);
        at += piece.len();
    }
    if at != HEADER.len() + size {
        return Err(Wrong::Length(at));
    }
    if different == 0 { Ok(number) } else { Err(Wrong::Contents) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: u64, size: usize) -> Vec<u8> {
        let mut frame = HEADER.to_vec();
        frame.resize(HEADER.len() + size, 0);
        let half = size / 2 / WORD;
        let (first, second) = frame[HEADER.len()..].split_at_mut(half * WORD);
        write(first, 0, number);
        write(second, half, number);
        frame
    }

    #[test]
    fn messages_are_known_however_they_are_cut() {
        for size in [32, 64, 1024] {
            let frame = frame(0x1234_5678_9abc, size);
            for piece in [1, 3, 7, 8, 13, 17, 64, 5000] {
                assert_eq!(check(frame.chunks(piece), size), Ok(0x1234_5678_9abc), "{size} in pieces of {piece}");
            }
        }
    }

    #[test]
    fn whatever_was_changed_is_found() {
        let good = frame(7, 256);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 0x40;
            assert_eq!(check(bad.chunks(100), 256), Err(Wrong::Contents), "octet {at}");
        }
        assert_eq!(check(good[..good.len() - 8].chunks(100), 256), Err(Wrong::Length(good.len() - 8)));
        // Half of one and half of the next.
        let mixed = [&good[..100], &frame(8, 256)[100..]].concat();
        assert_eq!(check(mixed.chunks(100), 256), Err(Wrong::Contents));
    }
}
