//! What layers say to each other: service primitives (X.210, X.214; X.213 below transport).
//!
//! A layer is the *provider* of a service to the layer above, its *user*. Requests and responses go down, indications
//! and confirms go up. The names are those of the transport service; between transport and network the same ones are
//! read with an N in place of the T, so that transport can stand on transport.
//!
//! Buffers change hands with the primitives:
//! - Down, a buffer is *lent*: it comes back in [`Indication::Complete`] when the provider does not need it any more,
//!   which in transport is when it was sent *and* acknowledged.
//! - Up, a buffer is *given*: the user hands it back with [`Request::Return`] when it has read it. How many a user
//!   keeps is what flow control goes by.

use crate::wire::tpdu::Reason;
use underpass_link::arena::Buffer;

/// Time in nanoseconds since any fixed moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub u64);

impl Time {
    /// The time so many nanoseconds later.
    #[inline]
    #[must_use]
    pub fn after(self, nanoseconds: u64) -> Time {
        Time(self.0.saturating_add(nanoseconds))
    }

    /// Nanoseconds from `earlier` to this; 0 if it was not earlier.
    #[inline]
    pub fn since(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Connection endpoint identifier (TCEP, NCEP): which connection at a boundary. The provider chooses it, and no other
/// connection has it before the user has had time to hear that the one before is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cep(pub u32);

/// A peer that a layer below reaches: an entry of its table of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Peer(pub u32);

/// What a user says to its provider.
#[derive(Debug)]
pub enum Request {
    /// T-CONNECT request. It is answered by a confirm or a disconnect with the same tag.
    Connect {
        /// Chosen by the user.
        tag: u32,
        /// The peer that it goes to.
        to: Peer,
        /// What is asked for.
        details: Box<Details>,
    },
    /// T-CONNECT response: an indication is accepted.
    Accept {
        /// From the indication.
        cep: Cep,
        /// Up to 32 octets for the user at the other end.
        user_data: Vec<u8>,
    },
    /// T-DATA request: a part of a TSDU.
    Data {
        /// On which connection.
        cep: Cep,
        /// At most as many octets as the connection's confirm or indication said; none only where it ends a TSDU that
        /// has begun.
        buffer: Buffer,
        /// Whether the TSDU ends with it.
        end: bool,
    },
    /// T-EXPEDITED-DATA request: 1 to 16 octets.
    Expedited {
        /// On which connection.
        cep: Cep,
        /// The octets.
        buffer: Buffer,
    },
    /// T-DISCONNECT request. What is under way may be lost.
    Disconnect {
        /// Which connection, or connection to be.
        cep: Cep,
        /// Why.
        reason: Reason,
    },
    /// N-UNITDATA request.
    Unitdata {
        /// The peer that it goes to.
        to: Peer,
        /// A packet.
        buffer: Buffer,
    },
    /// A buffer that was given is read.
    Return {
        /// It.
        buffer: Buffer,
    },
}

/// What a provider says to its user.
#[derive(Debug)]
pub enum Indication {
    /// T-CONNECT indication: answered by accepting or disconnecting.
    Connect {
        /// The connection to be.
        cep: Cep,
        /// The peer that asks.
        from: Peer,
        /// What is asked for.
        details: Box<Details>,
        /// Octets of one data request at most.
        most: u32,
    },
    /// T-CONNECT confirm: the connection is open.
    Confirm {
        /// From the request.
        tag: u32,
        /// The connection.
        cep: Cep,
        /// Octets of one data request at most.
        most: u32,
        /// User data from the user at the other end.
        user_data: Vec<u8>,
    },
    /// A connection request has failed, before there was a connection.
    Refused {
        /// From the request.
        tag: u32,
        /// Why.
        reason: Reason,
    },
    /// T-DATA indication.
    Data {
        /// On which connection.
        cep: Cep,
        /// The octets.
        buffer: Buffer,
        /// Whether the TSDU ends with it.
        end: bool,
    },
    /// T-EXPEDITED-DATA indication.
    Expedited {
        /// On which connection.
        cep: Cep,
        /// 1 to 16 octets.
        buffer: Buffer,
    },
    /// T-DISCONNECT indication: the connection is gone.
    Disconnect {
        /// Which.
        cep: Cep,
        /// Why.
        reason: Reason,
    },
    /// Nothing that was sent over a connection has been acknowledged for some 10 ms, or the network takes no packets of
    /// the length that was sent. The connection ends only when that lasts for the inactivity time I. Until then the
    /// user may send further data in another way.
    Stalled {
        /// Which.
        cep: Cep,
    },
    /// Something that was sent over a connection that was stalled is acknowledged.
    Resumed {
        /// Which.
        cep: Cep,
    },
    /// N-UNITDATA indication.
    Unitdata {
        /// The peer that sent it.
        from: Peer,
        /// A packet.
        buffer: Buffer,
    },
    /// A buffer that was lent comes back.
    Complete {
        /// It, as it was lent.
        buffer: Buffer,
        /// Over which connection it was to go, where there is one.
        cep: Option<Cep>,
        /// What has become of it.
        fate: Fate,
    },
}

impl Indication {
    /// A buffer that was lent over no connection comes back.
    #[inline]
    pub fn complete(buffer: Buffer, fate: Fate) -> Indication {
        Indication::Complete { buffer, cep: None, fate }
    }
}

/// What has become of a buffer that was lent. Over a connection, the acknowledged buffers are the first of those that
/// were not refused, in whichever order they come back: their octets say how far the other end has surely come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It was given to the network, and nothing tells whether it arrives: it went without a connection, or over a
    /// connection of class 2, whose network promises that it arrives.
    Sent,
    /// It was given to the user at the other end.
    Acknowledged,
    /// It was not taken: it was too long, or empty, or for no peer; or too much waits already; or the link takes no
    /// such packet.
    Refused,
    /// The connection, or its link, has ended: it may have arrived or not.
    Abandoned,
}

/// What is asked for with a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Details {
    /// TSAP-ID of the calling side.
    pub calling: Vec<u8>,
    /// TSAP-ID of the called side.
    pub called: Vec<u8>,
    /// Whether expedited data is wanted.
    pub expedited: bool,
    /// Up to 32 octets for the user at the other end.
    pub user_data: Vec<u8>,
}
