//! Packet memory, and the links that packets go over. Knows no protocol.
//!
//! [`arena`] is the memory; a [`Link`] takes packets in it and gives packets in it. [`loopback`] is a link in memory.

pub mod arena;
pub mod loopback;

use arena::Buffer;

/// What a link promises of the packets that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// Each arrives, once, and in order.
    pub delivery: bool,
    /// What is corrupt does not arrive.
    pub integrity: bool,
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
}
