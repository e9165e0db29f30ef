//! A layer that lets everything through and looks at it.

use underpass_engine::layer::{Layer, Outbox};
use underpass_engine::service::{Indication, Request, Time};

/// What looks.
pub trait Eye: Send {
    fn request(&mut self, request: &Request);
    fn indication(&mut self, indication: &Indication);
}

pub struct Watch<E>(pub E);

impl<E: Eye + 'static> Layer for Watch<E> {
    fn request(&mut self, request: Request, _: Time, out: &mut Outbox) {
        self.0.request(&request);
        out.down(request);
    }

    fn indication(&mut self, indication: Indication, _: Time, out: &mut Outbox) {
        self.0.indication(&indication);
        out.up(indication);
    }

    fn settle(&mut self, _: Time, _: &mut Outbox) {}

    fn due(&self) -> Option<Time> {
        None
    }

    fn expire(&mut self, _: Time, _: &mut Outbox) {}
}
