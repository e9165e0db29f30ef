//! Layers in parallel: each worker has some of them, and queues to the workers above and below; the lowest has the
//! link.
//!
//! A worker belongs to one thread at a time, and nothing is shared but the queues: what passes is primitives, which own
//! what they carry. [`crate::threads`] runs each worker in a thread of its own. What a worker does depends on what its
//! queues hold when it looks at them, and on nothing else: workers that take turns in one thread do what a
//! [`crate::stack::Stack`] of the same layers does.

use crate::column::{Column, ROOM};
use crate::layer::Layer;
use crate::service::{Indication, Request, Time};
use crate::stack::{Backlog, Taken, give, take};
use std::collections::VecDeque;
use underpass_link::arena::Buffer;
use underpass_link::bell::Waker;
use underpass_link::ring::{Receiver, Sender, ring};
use underpass_link::{Link, Readiness, Watch};

/// Primitives that are taken from a queue, and packets from a link, before the layers settle.
const BATCH: usize = 32;

/// Some layers, and the queues to their neighbours.
pub struct Worker {
    below: Below,
    column: Column,
    above: Above,
    counters: Counters,
    backlog: Backlog,
}

/// How often a worker has done what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps in which there was something to do.
    pub steps: u64,
    /// Primitives, packets and buffers that were taken in.
    pub taken: u64,
    /// Packets that came in pieces and were thrown away.
    pub in_pieces: u64,
    /// Times that its thread gave way to others.
    pub yields: u64,
    /// Times that its thread slept.
    pub parks: u64,
}

enum Below {
    Link { link: Box<dyn Link>, packets: VecDeque<Buffer>, buffers: Vec<Buffer> },
    Worker { indications: Receiver<Indication>, requests: Sender<Request> },
}

struct Above {
    requests: Receiver<Request>,
    indications: Sender<Indication>,
}

/// The user's end of the uppermost worker's queues. Where the user is a layer itself, the uppermost one, nothing passes
/// here.
pub struct User {
    requests: Sender<Request>,
    indications: Receiver<Indication>,
}

impl User {
    /// Says something, which is heard after [`User::publish`]; gives it back where the queue is full.
    ///
    /// # Errors
    /// The request, where the queue is full.
    #[inline]
    pub fn request(&mut self, request: Request) -> Result<(), Request> {
        self.requests.push(request)
    }

    /// Lets the layers hear what was said.
    #[inline]
    pub fn publish(&mut self) {
        self.requests.publish();
    }

    /// What the layers say, in order.
    #[inline]
    pub fn indication(&mut self) -> Option<Indication> {
        self.indications.pop()
    }

    /// For a caller that is about to sleep: it is woken when the layers say something.
    pub fn watch(&mut self, waker: Waker) -> Watch {
        self.indications.watch(waker)
    }
}

/// A worker for each group of layers, the lowest first, over `link`, with queues of `capacity` primitives between them.
///
/// # Panics
/// If there is no group, or a group of no layers.
pub fn pipeline(link: Box<dyn Link>, groups: Vec<Vec<Box<dyn Layer>>>, capacity: usize) -> (Vec<Worker>, User) {
    assert!(!groups.is_empty(), "a pipeline of no workers");
    let mut workers = Vec::with_capacity(groups.len());
    let mut below = Below::Link { link, packets: VecDeque::with_capacity(ROOM), buffers: Vec::with_capacity(ROOM) };
    for layers in groups {
        let (to_above, indications) = ring(capacity);
        let (requests, from_above) = ring(capacity);
        let above = Above { requests: from_above, indications: to_above };
        let (column, counters, backlog) = (Column::new(layers), Counters::default(), Backlog::default());
        workers.push(Worker { below, column, above, counters, backlog });
        below = Below::Worker { indications, requests };
    }
    let Below::Worker { indications, requests } = below else { unreachable!("there is a worker") };
    (workers, User { requests, indications })
}

impl Worker {
    /// Its layers, the lowest first.
    pub fn layers(&self) -> &[Box<dyn Layer>] {
        self.column.layers()
    }

    /// How often it has done what.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    pub(crate) fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// When one of its layers wants to be called even if nothing comes.
    pub fn due(&self) -> Option<Time> {
        self.column.due()
    }

    /// Does all that there is to do, up and down; whether there was anything.
    pub fn step(&mut self, now: Time) -> bool {
        let Taken { any: came, packets, .. } = self.take_packets(now);
        let indications = self.take_indications(BATCH, now);
        let mut any = came || indications > 0;
        if self.backlog.is_over(packets.max(indications), BATCH) {
            self.column.rise(now);
            any |= self.column.expire(now);
        }
        any |= self.take_requests(BATCH, now);
        if any {
            self.counters.steps += 1;
            self.column.settle(now);
        }
        self.publish();
        any
    }

    /// A turn's first part: takes what has come over the link. Whether there was anything, and whether timers may run
    /// out after that has gone up.
    pub fn poll(&mut self, now: Time) -> (bool, bool) {
        let Taken { any, packets, .. } = self.take_packets(now);
        (any, self.backlog.is_over(packets, BATCH))
    }

    /// Between a turn's second part and its third, if the timers of all workers may run out: handles timers whose time
    /// has come.
    pub fn expire(&mut self, now: Time) -> bool {
        let any = self.column.expire(now);
        self.publish();
        any
    }

    fn take_packets(&mut self, now: Time) -> Taken {
        let Worker { below, column, counters, .. } = self;
        let Below::Link { link, buffers, .. } = below else { return Taken::default() };
        let taken = take(&mut **link, buffers, BATCH, |indication| {
            counters.taken += 1;
            column.indication(indication, now);
        });
        counters.in_pieces += taken.in_pieces;
        taken
    }

    /// A turn's second part: a wave up, of what has come from the worker below and what the layers have to say to each
    /// other.
    pub fn rise(&mut self, now: Time) -> bool {
        let mut any = self.take_indications(usize::MAX, now) > 0;
        any |= self.column.rise(now) || !self.column.up().is_empty();
        self.publish();
        any
    }

    /// A turn's third part: a wave down.
    pub fn fall(&mut self, now: Time) -> bool {
        let mut any = self.take_requests(usize::MAX, now);
        any |= self.column.fall(now) || !self.column.down().is_empty();
        self.publish();
        any
    }

    fn take_indications(&mut self, most: usize, now: Time) -> usize {
        let Below::Worker { indications, .. } = &mut self.below else { return 0 };
        let mut count = 0;
        while count < most
            && let Some(indication) = indications.pop()
        {
            count += 1;
            self.column.indication(indication, now);
        }
        indications.release();
        self.counters.taken += count as u64;
        count
    }

    fn take_requests(&mut self, most: usize, now: Time) -> bool {
        let mut count = 0;
        while count < most
            && let Some(request) = self.above.requests.pop()
        {
            count += 1;
            self.column.request(request, now);
        }
        self.above.requests.release();
        self.counters.taken += count as u64;
        count > 0
    }

    /// Lets the neighbours see what is meant for them, as far as there is room.
    fn publish(&mut self) {
        match &mut self.below {
            Below::Link { link, packets, .. } => give(&mut **link, self.column.down().drain(..), packets),
            Below::Worker { requests, .. } => pass(self.column.down(), requests),
        }
        pass(self.column.up(), &mut self.above.indications);
    }

    /// Whether a queue holds something. What a link holds is not known before it is asked.
    #[inline]
    pub(crate) fn may_step(&self) -> bool {
        let from_below = match &self.below {
            Below::Link { .. } => true,
            Below::Worker { indications, .. } => !indications.is_empty(),
        };
        from_below || !self.above.requests.is_empty()
    }

    /// Whether a thread can sleep on its link by a descriptor.
    pub(crate) fn has_descriptor(&self) -> bool {
        matches!(&self.below, Below::Link { link, .. } if link.readiness().is_some())
    }

    /// The descriptor by which a thread sleeps on its link, if the link has one.
    pub(crate) fn readiness(&self) -> Option<Readiness<'_>> {
        match &self.below {
            Below::Link { link, .. } => link.readiness(),
            Below::Worker { .. } => None,
        }
    }

    /// For a caller that is about to sleep: it is woken when anything comes from a neighbour, or when a neighbour has
    /// room again for what it had no room for. `waker` is for neighbours; a link in memory unparks the calling thread.
    pub(crate) fn watch(&mut self, waker: &Waker) -> Watch {
        let Worker { below, column, above, .. } = self;
        let mut all = above.requests.watch(waker.clone());
        let mut and = |watch: Watch| {
            all = match (all, watch) {
                (Watch::Ready, _) | (_, Watch::Ready) => Watch::Ready,
                (Watch::Armed, Watch::Armed) => Watch::Armed,
                _ => Watch::Unheard,
            }
        };
        if !column.up().is_empty() {
            and(above.indications.watch(waker.clone()));
        }
        match below {
            Below::Link { link, packets, .. } => {
                and(link.watch());
                // A link does not report when it takes more packets; a link with a descriptor says when to look.
                if !packets.is_empty() {
                    and(Watch::Unheard);
                }
            }
            Below::Worker { indications, requests } => {
                and(indications.watch(waker.clone()));
                if !column.down().is_empty() {
                    and(requests.watch(waker.clone()));
                }
            }
        }
        all
    }
}

/// Puts as much into a ring as there is room for, and lets the receiver see it.
#[inline]
fn pass<T: Send>(queue: &mut VecDeque<T>, to: &mut Sender<T>) {
    while let Some(item) = queue.pop_front() {
        if let Err(item) = to.push(item) {
            queue.push_front(item);
            break;
        }
    }
    to.publish();
}
