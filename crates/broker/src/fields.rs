//! Fields of a record, one behind the other.

use crate::error::WireError;

/// Takes fields from the body of a record.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(WireError::Length)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn u16(&mut self) -> Result<u16, WireError> {
        self.take().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, WireError> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, WireError> {
        self.take().map(u64::from_le_bytes)
    }
}

/// Appends fields to a record of `N` octets.
pub(crate) struct Writer<const N: usize> {
    octets: [u8; N],
    len: usize,
}

impl<const N: usize> Writer<N> {
    pub(crate) fn new() -> Writer<N> {
        Writer { octets: [0; N], len: 0 }
    }

    fn put(&mut self, octets: &[u8]) {
        self.octets[self.len..self.len + octets.len()].copy_from_slice(octets);
        self.len += octets.len();
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    /// The record and its length.
    pub(crate) fn finish(self) -> ([u8; N], usize) {
        (self.octets, self.len)
    }
}
