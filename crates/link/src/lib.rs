//! Packet memory, and the links that packets go over. Knows no protocol.
//!
//! [`arena`] is the memory; a [`Link`] takes packets in it and gives packets in it. [`loopback`] is a link in memory, [`ring`] a
//! queue from one thread to another.

pub mod arena;
pub mod loopback;
pub mod ring;
mod sync;

use arena::Buffer;

/// What a link promises of the packets that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// Each arrives, once, and in order.
    pub delivery: bool,
    /// What is corrupt does not arrive.
    pub integrity: bool,
}

/// What comes of the wish to be unparked when something comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watch {
    /// Something has come already.
    Ready,
    /// The thread that has asked will be unparked, if only once.
    Armed,
    /// It will not: whoever waits has to look again.
    Unheard,
}

/// A way to the other end, in batches. Buffers are lent to it for transmission, and come back; buffers are given to it for
/// reception, and come back full.
pub trait Link: Send {
    /// What it promises.
    fn guarantees(&self) -> Guarantees;

    /// Octets of the longest packet.
    fn mtu(&self) -> usize;

    /// Takes packets to be sent from the front of `packets`, as many as it can.
    fn transmit(&mut self, packets: &mut std::collections::VecDeque<Buffer>);

    /// Buffers that were transmitted, as they were lent, appended to `done`.
    fn complete(&mut self, done: &mut Vec<Buffer>);

    /// Takes buffers to receive into. Over a link that passes buffers from end to end they are those that it gave.
    fn fill(&mut self, buffer: Buffer);

    /// Packets that have come, at most so many, appended to `packets`; how many.
    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize;

    /// The calling thread is about to park, and would be unparked when a packet or a buffer comes.
    fn watch(&mut self) -> Watch {
        Watch::Unheard
    }
}
