//! Writing octets where there may be too little room.

/// The octets do not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the PDU is longer than the room for it")]
pub struct NoRoom;

/// Octets that are being emitted, from the beginning of a slice on.
#[derive(Debug)]
pub struct Writer<'a> {
    to: &'a mut [u8],
    len: usize,
}

impl<'a> Writer<'a> {
    /// Writes into `to`.
    #[inline]
    pub fn new(to: &'a mut [u8]) -> Writer<'a> {
        Writer { to, len: 0 }
    }

    /// Octets that were written.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing was written.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What was written.
    #[inline]
    pub fn written(&mut self) -> &mut [u8] {
        &mut self.to[..self.len]
    }

    /// Appends octets.
    ///
    /// # Errors
    /// [`NoRoom`]; then nothing was appended.
    #[inline]
    pub fn put(&mut self, octets: &[u8]) -> Result<(), NoRoom> {
        self.to.get_mut(self.len..self.len + octets.len()).ok_or(NoRoom)?.copy_from_slice(octets);
        self.len += octets.len();
        Ok(())
    }

    /// Appends one octet.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn octet(&mut self, octet: u8) -> Result<(), NoRoom> {
        self.put(&[octet])
    }

    /// Appends a 16-bit number.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn u16(&mut self, number: u16) -> Result<(), NoRoom> {
        self.put(&number.to_be_bytes())
    }

    /// Appends a 32-bit number.
    ///
    /// # Errors
    /// [`NoRoom`].
    #[inline]
    pub fn u32(&mut self, number: u32) -> Result<(), NoRoom> {
        self.put(&number.to_be_bytes())
    }
}
