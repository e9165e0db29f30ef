//! Layers on top of each other, run by one thread: what they say goes through them in waves, up and then down.

use crate::layer::{Layer, Outbox};
use crate::service::{Indication, Request, Time};
use std::any::Any;
use std::collections::VecDeque;

/// How many primitives, packets or buffers a list has room for at first. With no more frames in use, no list ever
/// grows.
pub(crate) const ROOM: usize = 1024;

/// Layers that stand on each other, with both ends open.
///
/// A wave takes all that a layer has to say at once, so that a batch from below goes through a layer's code before the
/// next layer's code is fetched.
pub struct Column {
    /// The lowest first; there is one at least.
    layers: Vec<Box<dyn Layer>>,
    /// What each layer has to say.
    outboxes: Vec<Outbox>,
}

impl Column {
    /// These layers, the lowest first.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(layers: Vec<Box<dyn Layer>>) -> Column {
        assert!(!layers.is_empty(), "a column of no layers");
        let outboxes = layers.iter().map(|_| Outbox::with_capacity(ROOM)).collect();
        Column { layers, outboxes }
    }

    /// The layers, the lowest first.
    pub fn layers(&self) -> &[Box<dyn Layer>] {
        &self.layers
    }

    /// The lowest layer of this kind, to be asked or told something that no primitive says: of a network, to take
    /// another peer.
    pub fn layer<T: Layer>(&mut self) -> Option<&mut T> {
        self.layers.iter_mut().find_map(|layer| {
            let layer: &mut dyn Any = &mut **layer;
            layer.downcast_mut()
        })
    }

    /// The layers, the lowest first, for another column. Primitives that no layer has taken yet are lost.
    pub fn into_layers(self) -> Vec<Box<dyn Layer>> {
        self.layers
    }

    /// When a layer wants to be called even if nothing comes.
    pub fn due(&self) -> Option<Time> {
        self.layers.iter().filter_map(|it| it.due()).min()
    }

    /// The provider below says something.
    #[inline]
    pub fn indication(&mut self, indication: Indication, now: Time) {
        self.layers[0].indication(indication, now, &mut self.outboxes[0]);
    }

    /// The user above says something.
    #[inline]
    pub fn request(&mut self, request: Request, now: Time) {
        let top = self.layers.len() - 1;
        self.layers[top].request(request, now, &mut self.outboxes[top]);
    }

    /// What is to be said to the user above, in order.
    #[inline]
    pub fn up(&mut self) -> &mut VecDeque<Indication> {
        let top = self.layers.len() - 1;
        &mut self.outboxes[top].up
    }

    /// What is to be said to the provider below, in order.
    #[inline]
    pub fn down(&mut self) -> &mut VecDeque<Request> {
        &mut self.outboxes[0].down
    }

    /// Timers that are over run out, from the lowest layer up; whether there were any.
    pub fn expire(&mut self, now: Time) -> bool {
        let mut any = false;
        for (layer, out) in self.layers.iter_mut().zip(&mut self.outboxes) {
            if layer.due().is_some_and(|it| it <= now) {
                any = true;
                layer.expire(now, out);
            }
        }
        any
    }

    /// A wave up: what each layer has to say to the one above; whether there was anything.
    pub fn rise(&mut self, now: Time) -> bool {
        let mut any = false;
        for at in 1..self.layers.len() {
            let [below, own] = &mut self.outboxes[at - 1..=at] else { unreachable!("two of them") };
            let layer = &mut self.layers[at];
            for indication in below.up.drain(..) {
                any = true;
                layer.indication(indication, now, own);
            }
        }
        any
    }

    /// A wave down: each layer settles, and what it has to say goes to the one below; whether there was anything.
    pub fn fall(&mut self, now: Time) -> bool {
        let mut any = false;
        for at in (1..self.layers.len()).rev() {
            let [below, own] = &mut self.outboxes[at - 1..=at] else { unreachable!("two of them") };
            self.layers[at].settle(now, own);
            let layer = &mut self.layers[at - 1];
            for request in own.down.drain(..) {
                any = true;
                layer.request(request, now, below);
            }
        }
        self.layers[0].settle(now, &mut self.outboxes[0]);
        any
    }

    /// Waves until the layers have nothing more to say to each other.
    #[inline]
    pub fn settle(&mut self, now: Time) {
        loop {
            self.rise(now);
            self.fall(now);
            // A wave down leaves nothing that goes down, but it may have caused primitives that go up.
            let (_, between) = self.outboxes.split_last().expect("a layer at least");
            if between.iter().all(|it| it.up.is_empty()) {
                return;
            }
        }
    }
}
