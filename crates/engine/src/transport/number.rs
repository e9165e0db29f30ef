//! Sequence numbers of a connection: modulo 2⁷ or 2³¹, compared by their place in a window (X.224 §6.10.3, §12.2.3.4).

use crate::wire::tpdu::Format;

/// The sequence space of a format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Space {
    mask: u32,
}

impl Space {
    pub fn of(format: Format) -> Space {
        Space { mask: format.mask() }
    }

    /// The number `by` further on.
    #[inline]
    pub fn add(self, number: u32, by: u32) -> u32 {
        number.wrapping_add(by) & self.mask
    }

    /// The number before.
    pub fn before(self, number: u32) -> u32 {
        number.wrapping_sub(1) & self.mask
    }

    /// How far `to` is behind `from`: below half the space where it is not before it.
    #[inline]
    pub fn distance(self, from: u32, to: u32) -> u32 {
        to.wrapping_sub(from) & self.mask
    }

    /// Whether `a` comes before `b`, where they are less than half the space apart.
    #[inline]
    pub fn is_before(self, a: u32, b: u32) -> bool {
        let distance = self.distance(a, b);
        distance != 0 && distance <= self.mask / 2
    }

    /// Largest window in which numbers cannot be confused: half the space.
    #[inline]
    pub fn window(self) -> u32 {
        self.mask / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_wrap() {
        for format in [Format::Normal, Format::Extended] {
            let space = Space::of(format);
            let last = format.mask();
            assert_eq!(space.add(last, 1), 0);
            assert_eq!(space.distance(last, 2), 3);
            assert!(space.is_before(last, 0) && !space.is_before(0, last) && !space.is_before(last, last));
        }
    }
}
