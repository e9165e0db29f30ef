//! The user on top: it sends to itself as fast as it may, or one message at a time, and counts what it gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use underpass_engine::layer::{Layer, Outbox};
use underpass_engine::service::{Cep, Indication, Peer, Request, Time};
use underpass_link::arena::{Arena, Buffer};

/// What the receiving end has seen, for the measuring thread.
#[derive(Debug, Default)]
pub struct Tally {
    /// Octets since the first message.
    pub octets: AtomicU64,
    /// Messages since the first one.
    pub messages: AtomicU64,
    /// When the first message was there, in ns; 0 before.
    pub began: AtomicU64,
    /// When the last one was there.
    pub ended: AtomicU64,
    /// A part came that was not the next one, or a connection was refused or lost.
    pub wrong: AtomicBool,
}

impl Tally {
    /// The time from the first message to the last; `None` if there was none between them.
    pub fn duration(&self) -> Option<Duration> {
        let (began, ended) = (self.began.load(Relaxed), self.ended.load(Relaxed));
        (began > 0 && ended > began).then(|| Duration::from_nanos(ended - began))
    }

    /// What came after the first message, by the time that it took; `None` if it took none.
    pub fn octets_per_second(&self) -> Option<f64> {
        Some(self.octets.load(Relaxed) as f64 / self.duration()?.as_secs_f64())
    }
}

/// What it speaks to.
#[derive(Debug)]
enum Below {
    /// Transport: the end that sends, once it is open.
    Transport(Option<Cep>),
    /// The network itself.
    Network,
}

/// A user of transport, or of the network alone.
#[derive(Debug)]
pub struct User {
    arena: Arena,
    free: Vec<Buffer>,
    below: Below,
    peer: Peer,
    asked: bool,
    /// Octets of a part, and parts of a message.
    part: usize,
    parts: u64,
    /// The next message leaves only when the one before has arrived.
    one_by_one: bool,
    sent: u64,
    received: u64,
    tally: Arc<Tally>,
}

/// Octets of a part's number, at its beginning.
const NUMBER: usize = 8;

impl User {
    /// A user that sends messages of `parts` times `part` octets to `peer`, which is itself, in the buffers `free`.
    pub fn new(arena: &Arena, free: Vec<Buffer>, transport: bool, peer: Peer, part: usize, parts: u64) -> User {
        User {
            arena: arena.clone(),
            free,
            below: if transport { Below::Transport(None) } else { Below::Network },
            peer,
            asked: false,
            part,
            parts,
            one_by_one: false,
            sent: 0,
            received: 0,
            tally: Arc::default(),
        }
    }

    /// This user, which sends one message at a time.
    pub fn one_by_one(self) -> User {
        User { one_by_one: true, ..self }
    }

    /// What it counts.
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    fn send(&mut self, out: &mut Outbox) {
        if let Below::Transport(None) = self.below {
            return;
        }
        while !self.one_by_one || self.sent / self.parts == self.received / self.parts {
            let Some(mut buffer) = self.free.pop() else { return };
            // User data is where it is; only its number is written.
            self.arena.fill(&mut buffer, self.part);
            self.arena.octets_mut(&mut buffer)[..NUMBER].copy_from_slice(&self.sent.to_ne_bytes());
            self.sent += 1;
            let end = self.sent.is_multiple_of(self.parts);
            match self.below {
                Below::Transport(None) => return,
                Below::Transport(Some(cep)) => out.down(Request::Data { cep, buffer, end }),
                Below::Network => out.down(Request::Unitdata { to: self.peer, buffer }),
            }
        }
    }

    fn receive(&mut self, buffer: Buffer, now: Time, out: &mut Outbox) {
        let octets = self.arena.octets(&buffer);
        if octets.len() != self.part || octets[..NUMBER] != self.received.to_ne_bytes() {
            self.tally.wrong.store(true, Relaxed);
        }
        self.received += 1;
        out.down(Request::Return { buffer });
        if !self.received.is_multiple_of(self.parts) {
            return;
        }
        let tally = &*self.tally;
        if self.received == self.parts {
            return tally.began.store(now.0.max(1), Relaxed);
        }
        let messages = self.received / self.parts - 1;
        tally.messages.store(messages, Relaxed);
        tally.octets.store(messages * self.parts * self.part as u64, Relaxed);
        tally.ended.store(now.0, Relaxed);
    }
}

impl Layer for User {
    fn request(&mut self, _: Request, _: Time, _: &mut Outbox) {
        // No layer is above this one.
    }

    fn indication(&mut self, indication: Indication, now: Time, out: &mut Outbox) {
        match indication {
            Indication::Data { buffer, .. } | Indication::Unitdata { buffer, .. } => self.receive(buffer, now, out),
            Indication::Complete { buffer, .. } => self.free.push(buffer),
            Indication::Connect { cep, .. } => out.down(Request::Accept { cep, user_data: Vec::new() }),
            Indication::Confirm { cep, most, .. } => {
                self.tally.wrong.fetch_or(self.part > most as usize, Relaxed);
                self.below = Below::Transport(Some(cep));
            }
            // A machine that is busy with something else.
            Indication::Stalled { .. } | Indication::Resumed { .. } => {}
            Indication::Refused { .. } | Indication::Disconnect { .. } | Indication::Expedited { .. } => {
                self.tally.wrong.store(true, Relaxed);
            }
        }
    }

    fn settle(&mut self, _: Time, out: &mut Outbox) {
        self.send(out);
    }

    fn due(&self) -> Option<Time> {
        (!self.asked).then_some(Time(0))
    }

    fn expire(&mut self, _: Time, out: &mut Outbox) {
        if !std::mem::replace(&mut self.asked, true)
            && let Below::Transport(None) = self.below
        {
            out.down(Request::Connect { tag: 0, to: self.peer, details: Box::default() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_come_at_one_time_have_no_rate() {
        let tally = Tally::default();
        assert_eq!((tally.duration(), tally.octets_per_second()), (None, None), "nothing has come");
        tally.began.store(7_000, Relaxed);
        assert_eq!(tally.octets_per_second(), None, "one has");
        tally.octets.store(4096, Relaxed);
        tally.ended.store(7_000, Relaxed);
        assert_eq!(tally.octets_per_second(), None, "and more at the same time");
        tally.ended.store(9_000, Relaxed);
        assert_eq!(
            (tally.duration(), tally.octets_per_second()),
            (Some(Duration::from_micros(2)), Some(4096.0 / 2e-6))
        );
    }
}
