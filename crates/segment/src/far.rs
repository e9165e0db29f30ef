//! The other end of a channel, as a daemon plays it for a program whose other end is on another host.
//!
//! The daemon takes what the program puts into its ring, and puts into the program's other ring what comes from the
//! other host. A record stays in the program's ring until its reader, on the other host, has read it: so the program
//! can send it again by the kernel whatever becomes of the daemons. How the programs agree on the path is
//! [`crate::switch`]'s.

use crate::channel::Channel;
use crate::kernel;
use crate::ring::{self, Fault, Place, Push, Record, Sender};
use crate::sync::{Acquire, AtomicU64, Relaxed, Release, SeqCst, fence};
use crate::vector::Cursor;
use crate::words::{self, ALONE, Flag, Raised};
use std::collections::VecDeque;

/// What a program says to the other host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    /// It has gone up, for the time of this number.
    Up(u64),
    /// It sends so many octets.
    Octets(usize),
    /// It has gone down: all that it has sent goes by the kernel.
    Plain,
}

/// How far a reader has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Read {
    /// How often the sender had gone up.
    pub number: u64,
    /// Octets that it has read from the ring since.
    pub octets: u64,
}

/// Words of a sender of the daemon's own.
#[derive(Debug, Default)]
struct Sending {
    tail: AtomicU64,
    seen_head: AtomicU64,
    hole: [AtomicU64; 2],
    behind: AtomicU64,
}

/// The other end of a program's channel.
#[derive(Debug)]
pub struct Far {
    /// As this end sees it.
    channel: Channel,
    /// Where in the program's ring what was not taken begins.
    taken: Place,
    /// How often the program has gone up, and how many octets were taken since.
    sent: Read,
    /// Records that were taken and not read on the other host: where each ends, in octets and in the ring.
    unread: VecDeque<(u64, u64)>,
    sending: Sending,
    /// How often the other program has gone up, and how many octets were put here since.
    put: Read,
    /// Records that were put there and not read: where each ends in the ring, and in octets.
    ahead: VecDeque<(u64, Read)>,
    /// How far the program has read.
    read: Read,
}

impl Far {
    /// The other end of a channel of which nothing was used yet.
    pub fn new(channel: Channel) -> Far {
        let none = Read::default();
        Far {
            channel,
            taken: Place { head: 0, consumed: 0 },
            sent: none,
            unread: VecDeque::new(),
            sending: Sending::default(),
            put: none,
            ahead: VecDeque::new(),
            read: none,
        }
    }

    /// Takes what the program says next, octets into `into`. `None`: nothing.
    ///
    /// # Errors
    /// The program has broken the rules of the ring.
    pub fn take(&mut self, into: &mut [u8]) -> Result<Option<Said>, Fault> {
        /// An honest program puts few fillers in a row.
        const MOST_FILLERS: u32 = 8;
        let ring = self.channel.incoming_ring();
        for _ in 0..=MOST_FILLERS {
            let record = ring.record(self.taken.head)?;
            let behind = ring.behind(self.taken.head, record);
            match record {
                Record::Empty => return Ok(None),
                Record::Data(len) => return self.copy(len, into).map(|n| Some(Said::Octets(n))),
                Record::Skip | Record::Pad(_) => self.taken.head = behind,
                Record::Up(number) => {
                    self.taken.head = behind;
                    self.sent = Read { number, octets: 0 };
                    self.let_go_of_all();
                    return Ok(Some(Said::Up(number)));
                }
                Record::Down(_) => {
                    self.taken.head = behind;
                    self.let_go_of_all();
                    return Ok(Some(Said::Plain));
                }
            }
        }
        Err(Fault)
    }

    /// Copies octets of the record of `len` octets that lies next.
    fn copy(&mut self, len: usize, into: &mut [u8]) -> Result<usize, Fault> {
        let ring = self.channel.incoming_ring();
        let n = into.len().min(len.checked_sub(self.taken.consumed).ok_or(Fault)?);
        let vector = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: n };
        let mut cursor = cursor(&vector);
        let (place, copied) = ring::copy_out(&ring, self.taken, &mut cursor)?;
        self.taken = place;
        self.sent.octets += copied as u64;
        if place.consumed == 0 {
            self.unread.push_back((self.sent.octets, place.head));
        }
        Ok(copied)
    }

    /// What was taken is the program's no more.
    fn let_go_of_all(&mut self) {
        self.unread.clear();
        self.publish(self.taken.head);
    }

    fn publish(&self, head: u64) {
        self.channel.incoming().head.head.store(head, Release);
    }

    /// The reader on the other host has come so far.
    pub fn has_read(&mut self, read: Read) {
        if read.number != self.sent.number {
            return;
        }
        let mut head = None;
        while let Some(&(octets, behind)) = self.unread.front()
            && octets <= read.octets
        {
            self.unread.pop_front();
            head = Some(behind);
        }
        if let Some(head) = head {
            self.publish(head);
        }
    }

    /// The reader on the other host reads by its library alone.
    pub fn other_is_ready(&self) {
        self.channel.incoming().flags.ready.store(1, Release);
    }

    /// Whether the program reads by its library alone.
    pub fn is_ready(&self) -> bool {
        self.channel.outgoing().flags.ready.load(Acquire) != 0
    }

    fn sender(&self) -> Sender<'_> {
        let sending = &self.sending;
        Sender {
            ring: self.channel.outgoing_ring(),
            tail: &sending.tail,
            seen_head: &sending.seen_head,
            hole: &sending.hole,
            behind: &sending.behind,
            head: &self.channel.outgoing().head.head,
            in_turn: false,
        }
    }

    /// The other program has gone up.
    pub fn put_up(&mut self, number: u64) {
        self.sender().mark(Record::Up(number));
        self.put = Read { number, octets: 0 };
    }

    /// Puts octets of the other program's into the program's ring. Returns how many it has taken.
    ///
    /// # Errors
    /// The program has broken the rules of the ring.
    pub fn put(&mut self, octets: &[u8]) -> Result<usize, Fault> {
        let vector = libc::iovec { iov_base: octets.as_ptr().cast_mut().cast(), iov_len: octets.len() };
        let mut from = cursor(&vector);
        while from.left() > 0 {
            match self.sender().push(&mut from)? {
                Push::Took(n) => {
                    self.put.octets += n as u64;
                    self.ahead.push_back((self.sending.tail.load(Relaxed), self.put));
                }
                Push::Full(_) => break,
            }
        }
        Ok(from.taken())
    }

    /// The other program has ended in its ring, and all that it put there was put here.
    pub fn put_end(&self) {
        let words = &self.channel.outgoing().sender;
        words.ended_in.store(self.put.number, Relaxed);
        words.ended_at.store(self.put.octets + 1, Release);
    }

    /// Whether the program sleeps and has to be woken, because something was put into its ring.
    pub fn takes_flag(&self) -> bool {
        let waiting = &self.channel.outgoing().flags.waiting;
        fence(SeqCst);
        let word = waiting.load(SeqCst);
        if word == 0 || waiting.swap(0, SeqCst) == 0 {
            return false;
        }
        if Flag(word).raised() == Raised::Dozing {
            kernel::wake_all(waiting);
            return false;
        }
        true
    }

    /// The number of the line by which the program is rung. To be asked once the flag is [taken](Far::takes_flag).
    pub fn line(&self) -> u64 {
        // The program says its line, then looks whether its flag is still up.
        fence(SeqCst);
        self.channel.outgoing().flags.line.load(Acquire)
    }

    /// The daemon is about to sleep: the program rings from now on when it says something. The daemon looks once more
    /// before it sleeps.
    pub fn raise_flag(&self) {
        self.channel.incoming().flags.waiting.store(ALONE, SeqCst);
        fence(SeqCst);
    }

    /// How far the program has read.
    ///
    /// # Errors
    /// The program has broken the rules of the ring.
    pub fn progress(&mut self) -> Result<Read, Fault> {
        self.sender().used(true)?;
        let (head, tail) = (self.sending.seen_head.load(Relaxed), self.sending.tail.load(Relaxed));
        // What ends at the head or before it was read.
        while let Some(&(behind, read)) = self.ahead.front()
            && ring::distance(behind, tail) >= ring::distance(head, tail)
        {
            self.ahead.pop_front();
            self.read = read;
        }
        Ok(self.read)
    }

    /// Whether the program asks where the other program's stream ends.
    pub fn asks_end(&self) -> bool {
        self.channel.outgoing().flags.asks_end.load(Acquire) != 0
    }

    /// Whether the program has closed its end. All that it has sent goes by the kernel then.
    pub fn is_closed(&self) -> bool {
        words::is_closed(self.channel.outgoing().flags.closed.load(Acquire))
    }

    /// Whether the program has not read all that was put here, as far as is known.
    pub fn awaits_reader(&self) -> bool {
        !self.ahead.is_empty()
    }

    /// The way to the other host is lost: the program goes down.
    pub fn lose(&self) {
        for flags in [&self.channel.incoming().flags, &self.channel.outgoing().flags] {
            flags.want_down.store(crate::words::WANTS_DOWN, Release);
        }
    }
}

#[allow(unsafe_code, reason = "names a buffer of the caller's")]
fn cursor(vector: &libc::iovec) -> Cursor {
    // SAFETY: the callers name a slice that they have borrowed.
    unsafe { Cursor::new(vector, 1) }
}
