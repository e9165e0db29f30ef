//! From messages of the kernel's to packets: each segment of a message is a packet in a buffer of its own.
//!
//! Long segments the kernel writes where they stay, if they are as long as they were last; short ones, and what comes
//! unexpected, come one behind the other, and are copied once more. Behind its buffers each message has room for the
//! longest that there is, so that none is ever cut.

use super::calls::{Came, Incoming, Taken};
use super::control::Control;
use super::name::Name;
use super::socket::Socket;
use crate::arena::{Arena, Buffer};
use crate::ip::{self, Header, Template};
use rustix::fd::AsFd;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;

/// Messages of a call.
const BATCH: usize = 16;
/// Segments of a message that are prepared for at most (`UDP_GRO_CNT_MAX` of the kernel).
const SEGMENTS: usize = 64;
/// Octets behind the buffers of a message.
const SPILL: usize = 1 << 16;
/// Up to so many octets a segment is copied once more rather than received by itself, since the kernel's step from one
/// piece of memory to the next costs more than the copy. Measured by processor time, that is so for segments of 1,400
/// and 2,048 octets, and not for 3,840.
const SHORT: usize = 3 << 10;
/// How many messages are looked at to learn how many segments a message has at most.
const PERIOD: u32 = 64;

/// What the next message is expected to be like.
#[derive(Clone, Copy, Debug)]
struct Expected {
    /// Octets of a segment; of a message of one datagram as many as a buffer has room for.
    size: usize,
    segments: usize,
    /// Segments of the largest message of this period, and how many there were.
    most: usize,
    messages: u32,
}

/// What is known of a message.
#[derive(Clone, Copy, Debug)]
struct Message {
    octets: usize,
    /// Octets of each of its segments but the last.
    segment: usize,
    header: Header,
}

/// The receiving half.
#[derive(Debug)]
pub struct Receiving {
    arena: Arena,
    local: SocketAddr,
    /// To receive into, the next last: what was read a moment ago is in the processor's cache.
    room: Vec<Buffer>,
    /// The buffers that a call may write to, the first message's first.
    laid: VecDeque<Buffer>,
    /// Packets that have come and were not taken yet.
    come: VecDeque<Buffer>,
    calls: Incoming,
    expected: Expected,
    /// Buffers of the message that is looked at.
    mine: Vec<Buffer>,
    /// What did not fit the buffers of each message, and a message that is put together.
    spill: Vec<u8>,
    whole: Vec<u8>,
    /// Segments that there was no buffer for: octets of data and the header of each, and the data one behind the other,
    /// of which so many octets were copied on. Each gets the next buffer.
    behind: VecDeque<(usize, Template)>,
    behind_data: Vec<u8>,
    behind_done: usize,
    /// Packets that there was no buffer for, or none that is long enough, and what was no packet.
    pub lost: u64,
}

impl Receiving {
    /// Receives at `local` into buffers of this arena.
    pub fn new(arena: &Arena, local: SocketAddr) -> Receiving {
        let frames = arena.geometry().frames as usize;
        let mut receiving = Receiving {
            arena: arena.clone(),
            local,
            room: Vec::with_capacity(frames),
            laid: VecDeque::with_capacity(BATCH * SEGMENTS),
            come: VecDeque::with_capacity(frames),
            calls: Incoming::new(BATCH, BATCH * (SEGMENTS + 1)),
            expected: Expected { size: 0, segments: 1, most: 1, messages: 0 },
            mine: Vec::with_capacity(SEGMENTS),
            // Pages that are not written to take no memory.
            spill: vec![0; BATCH * SPILL],
            whole: Vec::with_capacity(SPILL),
            behind: VecDeque::new(),
            behind_data: Vec::new(),
            behind_done: 0,
            lost: 0,
        };
        receiving.expect_one();
        receiving
    }

    /// Octets of headers.
    fn headers(&self) -> usize {
        ip::headers(self.local)
    }

    /// Octets of data that a buffer has room for.
    fn data_room(&self) -> usize {
        self.arena.geometry().room().saturating_sub(self.headers())
    }

    fn expect_one(&mut self) {
        self.expected = Expected { size: self.data_room(), segments: 1, most: 1, messages: 0 };
    }

    /// A buffer to receive into.
    pub fn fill(&mut self, mut buffer: Buffer) {
        let Some((len, template)) = self.behind.pop_front() else { return self.room.push(buffer) };
        let data = &self.behind_data[self.behind_done..][..len];
        put(&self.arena, &mut buffer, &template, data);
        self.come.push_back(buffer);
        self.behind_done += len;
        if self.behind.is_empty() {
            self.behind_data.clear();
            self.behind_done = 0;
        }
    }

    /// Whether a packet that comes could be taken.
    pub fn has_room(&self) -> bool {
        !self.room.is_empty()
    }

    /// Whether packets have come that were not taken yet.
    pub fn has_come(&self) -> bool {
        !self.come.is_empty()
    }

    /// Packets that have come, at most so many; how many.
    pub fn take(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let count = most.min(self.come.len());
        packets.extend(self.come.drain(..count));
        count
    }

    /// All buffers.
    pub fn into_buffers(self) -> Vec<Buffer> {
        self.come.into_iter().chain(self.room).collect()
    }

    /// Takes messages from the kernel, for some `most` packets.
    ///
    /// # Errors
    /// None has come, or the socket has an error to tell.
    pub fn receive(&mut self, socket: &Socket, most: usize) -> io::Result<()> {
        let (headers, Expected { size, segments, .. }) = (self.headers(), self.expected);
        let each = segments.min(self.room.len());
        if each == 0 {
            return Ok(());
        }
        let count = most.div_ceil(each).min(BATCH).min(self.room.len() / each);
        let each = if segments > 1 && size < SHORT { 0 } else { each };
        let room = self.room.len() - count * each;
        self.laid.extend(self.room.drain(room..).rev());
        let (mut messages, mut laid) = (self.calls.lay(), self.laid.iter_mut());
        for spill in self.spill.chunks_exact_mut(SPILL).take(count) {
            messages.add(Name::ROOM, Control::ROOM);
            for buffer in laid.by_ref().take(each) {
                messages.write_to(&mut self.arena.room(buffer)[headers..][..size]);
            }
            messages.write_to(spill);
        }
        let came = messages.receive(socket.as_fd());
        let messages = *came.as_ref().unwrap_or(&0);
        // Buffers without contents may be needed for messages that did not come as expected.
        self.room.extend(self.laid.drain(messages * each..).rev());
        for number in 0..messages {
            self.mine.extend(self.laid.drain(..each));
            match self.read(self.calls.came(number)) {
                Some(message) => self.land(number, message, size),
                None => self.lost += 1,
            }
            while let Some(buffer) = self.mine.pop() {
                self.fill(buffer);
            }
        }
        came.map(drop)
    }

    /// Reads a message; `None` if a part of it is missing, or if it has no sender that could be answered.
    fn read(&self, came: Came<'_>) -> Option<Message> {
        let Came { octets, flags, name, control } = came;
        let source = name.address().filter(|it| it.port() != 0)?;
        if flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 || octets > ip::LONGEST {
            return None;
        }
        let (class, segment) = described(control);
        let header = Header { source, destination: self.local, class };
        Some(Message { octets, segment: segment.unwrap_or(octets).max(1), header })
    }

    /// Makes packets of a message, whose segments were expected to be of `size` octets.
    fn land(&mut self, number: usize, message: Message, size: usize) {
        let Message { octets, segment, header } = message;
        let count = octets.div_ceil(segment).max(1);
        let template = Template::new(header).filter(|_| segment <= self.data_room());
        let Some(template) = template else { return self.lost += count as u64 };
        let fits = if count == 1 { octets <= size } else { segment == size };
        let as_expected = fits && count <= self.mine.len() && self.behind.is_empty();
        if as_expected {
            let mut left = octets;
            for mut buffer in self.mine.drain(..count) {
                let len = left.min(segment);
                left -= len;
                finish(&self.arena, &mut buffer, &template, len);
                self.come.push_back(buffer);
            }
        } else {
            self.scatter(number, message, size, &template);
        }
        self.learn(segment, count, octets);
    }

    /// Copies a message that lies in its buffers and behind them into buffers, a segment into each; segments for which
    /// there are none wait for some. The kernel does not say beforehand how many segments it has joined.
    fn scatter(&mut self, number: usize, message: Message, size: usize, template: &Template) {
        let Receiving { whole, mine, room, arena, come, spill, behind, behind_data, .. } = self;
        let spill = &spill[number * SPILL..][..SPILL];
        let message_octets = if mine.is_empty() {
            &spill[..message.octets]
        } else {
            whole.clear();
            for buffer in &*mine {
                let len = size.min(message.octets - whole.len());
                whole.extend_from_slice(&arena.octets(buffer)[template.size()..][..len]);
            }
            whole.extend_from_slice(&spill[..message.octets - whole.len()]);
            &whole[..]
        };
        let mut segments = message_octets.chunks(message.segment);
        let first = segments.next().unwrap_or_default();
        for data in std::iter::once(first).chain(segments) {
            let free = if behind.is_empty() { mine.pop().or_else(|| room.pop()) } else { None };
            if let Some(mut buffer) = free {
                put(arena, &mut buffer, template, data);
                come.push_back(buffer);
            } else {
                behind.push_back((data.len(), *template));
                behind_data.extend_from_slice(data);
            }
        }
    }

    /// More segments are expected at once, fewer when no message of some had as many: what is prepared for too many
    /// costs little.
    fn learn(&mut self, segment: usize, count: usize, octets: usize) {
        let Expected { size, segments, most, messages } = &mut self.expected;
        if count > 1 {
            *size = segment;
        } else if *segments > 1 && octets > *size {
            return self.expect_one();
        }
        (*most, *messages) = ((*most).max(count).min(SEGMENTS), *messages + 1);
        *segments = (*segments).max(*most);
        if *messages == PERIOD {
            (*segments, *most, *messages) = (*most, 1, 0);
            if *segments == 1 {
                self.expect_one();
            }
        }
    }
}

/// What came beside a message: its traffic class, and octets of a segment if it has several.
fn described(control: &Taken) -> (u8, Option<usize>) {
    let (mut class, mut segment) = (0, None);
    for entry in control.entries() {
        match (entry.level, entry.kind) {
            // An octet with IPv4, and a number with IPv6.
            (libc::IPPROTO_IP, libc::IP_TOS) => class = entry.octet(0).unwrap_or(0),
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => class = entry.number(0).unwrap_or(0) as u8,
            (libc::SOL_UDP, libc::UDP_GRO) => segment = entry.number(0).map(|it| it as usize),
            _ => {}
        }
    }
    (class, segment)
}

/// Makes a buffer a packet with these data.
fn put(arena: &Arena, buffer: &mut Buffer, template: &Template, data: &[u8]) {
    arena.room(buffer)[template.size()..][..data.len()].copy_from_slice(data);
    finish(arena, buffer, template, data.len());
}

/// Makes a buffer a packet with so many octets of data, which are there.
fn finish(arena: &Arena, buffer: &mut Buffer, template: &Template, data: usize) {
    arena.fill(buffer, template.size() + data);
    template.write(&mut arena.octets_mut(buffer)[..template.size()], data);
}
