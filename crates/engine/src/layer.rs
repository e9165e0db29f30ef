//! What every layer does, and how layers are run.
//!
//! A layer is called with one primitive, or with nothing but the time, and says what it has to say to both neighbours
//! into an [`Outbox`]. The order of calls is free but for this: [`Layer::settle`] follows any number of primitives,
//! before the caller waits for anything.

use crate::service::{Fate, Indication, Request, Time};
use std::any::Any;
use std::collections::VecDeque;

/// A provider to the layer above and a user of the layer below.
pub trait Layer: Send + Any {
    /// The user above says something.
    fn request(&mut self, request: Request, now: Time, out: &mut Outbox);

    /// The provider below says something.
    fn indication(&mut self, indication: Indication, now: Time, out: &mut Outbox);

    /// There is no further primitive for the moment: acknowledgements that were put off, to go with other TPDUs, go
    /// now.
    fn settle(&mut self, now: Time, out: &mut Outbox);

    /// When it wants to be called even without a primitive.
    fn due(&self) -> Option<Time>;

    /// Handles the timers whose time has come.
    fn expire(&mut self, now: Time, out: &mut Outbox);
}

/// What a network without connections does with a request that is no packet.
#[inline]
pub(crate) fn no_packet(request: Request, out: &mut Outbox) {
    match request {
        Request::Return { .. } => out.down(request),
        Request::Data { buffer, .. } | Request::Expedited { buffer, .. } | Request::Unitdata { buffer, .. } => {
            out.up(Indication::complete(buffer, Fate::Refused));
        }
        Request::Connect { .. } | Request::Accept { .. } | Request::Disconnect { .. } => {}
    }
}

/// What a layer has to say.
#[derive(Debug, Default)]
pub struct Outbox {
    /// To the user above, in order.
    pub up: VecDeque<Indication>,
    /// To the provider below, in order.
    pub down: VecDeque<Request>,
}

impl Outbox {
    /// Room for so many either way without an allocation.
    pub fn with_capacity(primitives: usize) -> Outbox {
        Outbox { up: VecDeque::with_capacity(primitives), down: VecDeque::with_capacity(primitives) }
    }

    /// Says something to the user above.
    #[inline]
    pub fn up(&mut self, indication: Indication) {
        self.up.push_back(indication);
    }

    /// Says something to the provider below.
    #[inline]
    pub fn down(&mut self, request: Request) {
        self.down.push_back(request);
    }
}
