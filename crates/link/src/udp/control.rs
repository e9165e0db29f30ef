//! What goes beside the octets of a message: control messages, as cmsg(3) lays them out, without a pointer.

/// Octets of the head of a control message: its length, then its level and its kind.
const HEAD: usize = 16;
/// Octets to whose multiples a control message is filled up.
const WORD: usize = 8;

// The layout of `struct cmsghdr` where a `size_t` has eight octets.
const _: () = assert!(size_of::<libc::cmsghdr>() == HEAD && size_of::<usize>() == WORD);

/// Room for control messages of so many words.
#[derive(Clone, Copy, Debug)]
pub struct Control<const WORDS: usize> {
    /// What the kernel reads or writes.
    pub words: [u64; WORDS],
    /// Octets of it that are used.
    pub len: usize,
}

impl<const WORDS: usize> Control<WORDS> {
    /// Without any.
    pub const NONE: Control<WORDS> = Control { words: [0; WORDS], len: 0 };

    /// Room for the kernel to write to.
    pub const ROOM: Control<WORDS> = Control { words: [0; WORDS], len: WORDS * WORD };

    /// Adds one whose data are so many octets of a word.
    ///
    /// # Panics
    /// If there is no room for it.
    pub fn put<const OCTETS: usize>(&mut self, level: i32, kind: i32, data: [u8; OCTETS]) {
        let mut word = [0; WORD];
        word[..OCTETS].copy_from_slice(&data);
        let [a, b, c, d] = level.to_ne_bytes();
        let [e, f, g, h] = kind.to_ne_bytes();
        let head = [(HEAD + OCTETS) as u64, u64::from_ne_bytes([a, b, c, d, e, f, g, h]), u64::from_ne_bytes(word)];
        self.words[self.len / WORD..][..3].copy_from_slice(&head);
        self.len += HEAD + WORD;
    }

    /// The control messages, up to the first that is malformed.
    pub fn entries(&self) -> Entries<'_> {
        Entries { words: &self.words[..self.len.min(WORDS * WORD).div_ceil(WORD)], octets: self.len.min(WORDS * WORD) }
    }
}

/// Control messages one after the other.
#[derive(Clone, Debug)]
pub struct Entries<'a> {
    words: &'a [u64],
    octets: usize,
}

/// A control message.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Of which protocol it is.
    pub level: i32,
    /// What it is, to that.
    pub kind: i32,
    words: &'a [u64],
    octets: usize,
}

impl<'a> Iterator for Entries<'a> {
    type Item = Entry<'a>;

    fn next(&mut self) -> Option<Entry<'a>> {
        let (&[len, kinds], rest) = self.words.split_first_chunk()?;
        let len = usize::try_from(len).ok().filter(|len| (HEAD..=self.octets).contains(len))?;
        let [a, b, c, d, e, f, g, h] = kinds.to_ne_bytes();
        let [level, kind] = [[a, b, c, d], [e, f, g, h]].map(i32::from_ne_bytes);
        let words = (len - HEAD).div_ceil(WORD);
        let (data, rest) = rest.split_at_checked(words)?;
        self.words = rest;
        self.octets = self.octets.saturating_sub(HEAD + words * WORD);
        Some(Entry { level, kind, words: data, octets: len - HEAD })
    }
}

impl Entry<'_> {
    /// An octet of its data.
    pub fn octet(&self, at: usize) -> Option<u8> {
        (at < self.octets).then(|| self.words[at / WORD].to_ne_bytes()[at % WORD])
    }

    /// A number of four octets of its data.
    pub fn number(&self, at: usize) -> Option<u32> {
        let octet = |it: usize| self.octet(at + it);
        Some(u32::from_ne_bytes([octet(0)?, octet(1)?, octet(2)?, octet(3)?]))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_put_is_read() {
        let mut control = Control::<9>::NONE;
        control.put(17, 103, 1448u16.to_ne_bytes());
        control.put(0, 1, 2i32.to_ne_bytes());
        control.put(1, 61, 77u64.to_ne_bytes());
        let read: Vec<_> = control.entries().map(|it| (it.level, it.kind, it.octets, it.octet(0))).collect();
        assert_eq!(read, [(17, 103, 2, Some(168)), (0, 1, 4, Some(2)), (1, 61, 8, Some(77))]);
        let second = control.entries().nth(1).unwrap();
        assert_eq!((second.number(0), second.number(1), second.octet(4)), (Some(2), None, None));
    }

    proptest! {
        #[test]
        fn any_words_are_read_without_a_panic(words in any::<[u64; 8]>(), len in 0..100usize, small in any::<bool>()) {
            let words = if small { words.map(|it| it % 40) } else { words };
            let control = Control { words, len };
            for entry in control.entries() {
                prop_assert!(entry.octets <= 48 && entry.octet(entry.octets).is_none());
                let _ = (entry.number(0), entry.number(entry.octets));
            }
            prop_assert!(control.entries().count() <= 4);
        }
    }
}
