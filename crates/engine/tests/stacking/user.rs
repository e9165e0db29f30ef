//! A user of the transport service that is a layer itself, the uppermost one: it sends, and checks what it gets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use underpass_engine::layer::{Layer, Outbox};
use underpass_engine::service::{Cep, Indication, Peer, Request, Time};
use underpass_link::arena::{Arena, Buffer};

/// The mark at the end of every TSDU part, before its serial number.
pub const MARK: [u8; 4] = *b"part";
/// Octets of the mark and the number.
pub const MARK_LEN: usize = 8;

/// The serial number of a part that is, or is in, these octets.
pub fn serial(octets: &[u8]) -> Option<u32> {
    let (mark, number) = octets.last_chunk::<MARK_LEN>()?.split_first_chunk()?;
    (*mark == MARK).then(|| u32::from_be_bytes(number.try_into().unwrap()))
}

/// How far users have come.
#[derive(Debug, Default)]
pub struct Progress {
    /// Parts that arrived, each in its turn and as it was sent.
    pub received: AtomicU32,
    /// Parts whose buffers came back.
    pub completed: AtomicU32,
}

/// Sends so many parts to the other end, or none; either end opens the connection.
pub struct User {
    arena: Arena,
    free: Vec<Buffer>,
    parts: u32,
    longest: usize,
    sent: u32,
    expected: u32,
    to: Option<Peer>,
    connection: Option<(Cep, usize)>,
    random: fastrand::Rng,
    progress: Arc<Progress>,
}

impl User {
    /// A user that sends `parts` of up to `longest` octets in `free`, and connects to the peer `to`, or waits for a
    /// connection.
    pub fn new(arena: &Arena, free: Vec<Buffer>, parts: u32, longest: usize, to: Option<Peer>, seed: u64) -> User {
        User {
            arena: arena.clone(),
            free,
            parts,
            longest,
            sent: 0,
            expected: 0,
            to,
            connection: None,
            random: fastrand::Rng::with_seed(seed),
            progress: Arc::default(),
        }
    }

    pub fn progress(&self) -> Arc<Progress> {
        Arc::clone(&self.progress)
    }

    fn send(&mut self, out: &mut Outbox) {
        let Some((cep, most)) = self.connection else { return };
        while self.sent < self.parts {
            let Some(mut buffer) = self.free.pop() else { return };
            let len = self.random.usize(MARK_LEN..=self.longest.min(most));
            let octets = &mut self.arena.room(&mut buffer)[..len];
            let (rest, mark) = octets.split_last_chunk_mut::<MARK_LEN>().unwrap();
            rest.fill(self.sent as u8);
            mark[..4].copy_from_slice(&MARK);
            mark[4..].copy_from_slice(&self.sent.to_be_bytes());
            self.arena.fill(&mut buffer, len);
            self.sent += 1;
            out.down(Request::Data { cep, buffer, end: self.sent.is_multiple_of(3) });
        }
    }
}

impl Layer for User {
    fn request(&mut self, _: Request, _: Time, _: &mut Outbox) {
        unreachable!("there is nobody above");
    }

    fn indication(&mut self, indication: Indication, _: Time, out: &mut Outbox) {
        match indication {
            Indication::Connect { cep, most, .. } => {
                self.connection = Some((cep, most as usize));
                out.down(Request::Accept { cep, user_data: Vec::new() });
            }
            Indication::Confirm { cep, most, .. } => self.connection = Some((cep, most as usize)),
            Indication::Data { buffer, end, .. } => {
                let octets = self.arena.octets(&buffer);
                assert_eq!(serial(octets), Some(self.expected), "each once, and in order");
                assert!(octets[..octets.len() - MARK_LEN].iter().all(|&it| it == self.expected as u8));
                self.expected += 1;
                assert_eq!(end, self.expected.is_multiple_of(3));
                self.progress.received.store(self.expected, SeqCst);
                out.down(Request::Return { buffer });
            }
            Indication::Complete { buffer, .. } => {
                assert_eq!(buffer.offset(), self.arena.geometry().headroom, "it comes back as it was lent");
                self.free.push(buffer);
                self.progress.completed.fetch_add(1, SeqCst);
            }
            Indication::Stalled { .. } | Indication::Resumed { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, _: Time, out: &mut Outbox) {
        self.send(out);
    }

    fn due(&self) -> Option<Time> {
        self.to.map(|_| Time(0))
    }

    fn expire(&mut self, _: Time, out: &mut Outbox) {
        if let Some(to) = self.to.take() {
            out.down(Request::Connect { tag: 1, to, details: Box::default() });
        }
    }
}
