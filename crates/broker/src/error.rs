//! What is wrong with a record.

use core::fmt;

/// Why octets are no record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// There are fewer octets than a header has.
    Short,
    /// The other side speaks this version of the wire.
    Version(u16),
    /// No record of this kind goes this way.
    Kind(u16),
    /// The packet, or the length that its header names, is not that of its kind.
    Length,
    /// A field has a value that it never has.
    Value(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WireError::Short => write!(to, "the packet is shorter than a header"),
            WireError::Version(it) => write!(to, "the other side speaks version {it} of the wire"),
            WireError::Kind(it) => write!(to, "no record of kind {it} goes this way"),
            WireError::Length => write!(to, "the packet is not as long as a record of its kind"),
            WireError::Value(field) => write!(to, "the field '{field}' has a value that it never has"),
        }
    }
}

impl core::error::Error for WireError {}
