//! Layers on top of each other, run to completion: each primitive goes as far as it gets before the next one.

use crate::layer::{Layer, Outbox};
use crate::service::{Indication, Peer, Request, Time};
use std::collections::VecDeque;
use underpass_link::Link;
use underpass_link::arena::Buffer;

/// Packets that are taken from the link at a time.
const BATCH: usize = 32;

/// Layers from the link up to the user.
pub struct Stack<L> {
    link: L,
    /// The lowest first.
    layers: Vec<Box<dyn Layer>>,
    /// What each layer has to say.
    outboxes: Vec<Outbox>,
    packets: VecDeque<Buffer>,
    buffers: Vec<Buffer>,
}

impl<L: Link> Stack<L> {
    /// These layers, the lowest first, over `link`.
    pub fn new(link: L, layers: Vec<Box<dyn Layer>>) -> Stack<L> {
        let outboxes = layers.iter().map(|_| Outbox::with_capacity(256)).collect();
        Stack { link, layers, outboxes, packets: VecDeque::with_capacity(256), buffers: Vec::with_capacity(256) }
    }

    /// The link.
    pub fn link(&self) -> &L {
        &self.link
    }

    /// The layers, the lowest first.
    pub fn layers(&self) -> &[Box<dyn Layer>] {
        &self.layers
    }

    /// When a layer wants to be called even if nothing comes.
    pub fn due(&self) -> Option<Time> {
        self.layers.iter().filter_map(|it| it.due()).min()
    }

    /// The user says something.
    #[inline]
    pub fn request(&mut self, request: Request, now: Time) {
        let top = self.layers.len() - 1;
        self.layers[top].request(request, now, &mut self.outboxes[top]);
        self.carry(now);
    }

    /// What the layers say to the user, in order.
    #[inline]
    pub fn indication(&mut self) -> Option<Indication> {
        self.outboxes.last_mut()?.up.pop_front()
    }

    /// Takes what has come over the link and what has run out; whether there was anything.
    pub fn poll(&mut self, now: Time) -> bool {
        let mut any = false;
        self.link.complete(&mut self.buffers);
        for buffer in self.buffers.drain(..) {
            any = true;
            self.layers[0].indication(Indication::Complete { buffer }, now, &mut self.outboxes[0]);
        }
        self.link.receive(&mut self.buffers, BATCH);
        for buffer in self.buffers.drain(..) {
            any = true;
            let indication = Indication::Unitdata { from: Peer(0), buffer };
            self.layers[0].indication(indication, now, &mut self.outboxes[0]);
        }
        for (layer, out) in self.layers.iter_mut().zip(&mut self.outboxes) {
            if layer.due().is_some_and(|it| it <= now) {
                any = true;
                layer.expire(now, out);
            }
        }
        self.carry(now);
        any
    }

    /// Takes primitives to where they are meant for until none is left.
    fn carry(&mut self, now: Time) {
        let top = self.layers.len() - 1;
        loop {
            let mut any = false;
            for at in 0..=top {
                while at < top
                    && let Some(indication) = self.outboxes[at].up.pop_front()
                {
                    any = true;
                    self.layers[at + 1].indication(indication, now, &mut self.outboxes[at + 1]);
                }
            }
            for at in (0..=top).rev() {
                self.layers[at].settle(now, &mut self.outboxes[at]);
                while let Some(request) = self.outboxes[at].down.pop_front() {
                    any = true;
                    match at {
                        0 => self.transmit(request),
                        _ => self.layers[at - 1].request(request, now, &mut self.outboxes[at - 1]),
                    }
                }
            }
            if !self.packets.is_empty() {
                self.link.transmit(&mut self.packets);
            }
            if !any {
                return;
            }
        }
    }

    fn transmit(&mut self, request: Request) {
        match request {
            Request::Unitdata { buffer, .. } => self.packets.push_back(buffer),
            Request::Return { buffer } => self.link.fill(buffer),
            _ => {}
        }
    }
}
