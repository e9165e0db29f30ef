//! A record of what goes over a link, for Wireshark and its kin (pcapng): each packet as it was sent or came, with its
//! direction.

use crate::arena::{Arena, Buffer};
use crate::error::Fault;
use crate::{Counters, Guarantees, Link, Readiness, Returned, Watch};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::{DataLink, PcapError};
use std::borrow::Cow;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

/// Times are nanoseconds: ten to the power of minus so many seconds.
const NANOSECONDS: u8 = 9;
/// Directions, as the option `epb_flags` has them.
const CAME: u32 = 1;
const SENT: u32 = 2;

/// A link that is recorded. If the record cannot be written any more, packets go on all the same.
pub struct Capture<L, W: Write> {
    link: L,
    arena: Arena,
    file: PcapNgWriter<W>,
    failure: Option<io::Error>,
    packet: Vec<u8>,
    /// Buffers, of whole packets, that were recorded, and that the link has not taken.
    recorded: usize,
}

impl<L: Link, W: Write> Capture<L, W> {
    /// Records a link of Ethernet frames from here on.
    ///
    /// # Errors
    /// The beginning of the record cannot be written.
    pub fn new(link: L, arena: &Arena, name: &str, to: W) -> io::Result<Capture<L, W>> {
        let mut file = PcapNgWriter::new(to).map_err(said)?;
        let (name, resolution) = (name.to_string().into(), NANOSECONDS);
        let options = vec![InterfaceDescriptionOption::IfName(name), InterfaceDescriptionOption::IfTsResol(resolution)];
        let interface = InterfaceDescriptionBlock { linktype: DataLink::ETHERNET, snaplen: 0, options };
        file.write_pcapng_block(interface).map_err(said)?;
        Ok(Capture { link, arena: arena.clone(), file, failure: None, packet: Vec::new(), recorded: 0 })
    }

    /// Why packets are recorded no more.
    pub fn failure(&self) -> Option<&io::Error> {
        self.failure.as_ref()
    }

    /// Ends the record, and gives back the link and where the record was written.
    ///
    /// # Errors
    /// What was written cannot be handed over, or could not be written before.
    pub fn take_apart(self) -> io::Result<(L, W)> {
        let mut to = self.file.into_inner();
        self.failure.map_or(Ok(()), Err)?;
        to.flush()?;
        Ok((self.link, to))
    }

    fn write<'a>(&mut self, buffers: impl Iterator<Item = &'a Buffer>, direction: u32) {
        if self.failure.is_some() {
            return;
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        self.packet.clear();
        for buffer in buffers {
            self.packet.extend_from_slice(self.arena.octets(buffer));
            if buffer.goes_on() {
                continue;
            }
            let block = EnhancedPacketBlock {
                interface_id: 0,
                timestamp: now,
                original_len: self.packet.len() as u32,
                data: Cow::Borrowed(&self.packet),
                options: vec![EnhancedPacketOption::Flags(direction)],
            };
            if let Err(error) = self.file.write_pcapng_block(block) {
                self.failure = Some(said(error));
                return;
            }
            self.packet.clear();
        }
    }
}

fn said(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}

impl<L: Link, W: Write + Send> Link for Capture<L, W> {
    fn guarantees(&self) -> Guarantees {
        self.link.guarantees()
    }

    fn mtu(&self) -> usize {
        self.link.mtu()
    }

    fn pieces(&self) -> usize {
        self.link.pieces()
    }

    fn whole(&self) -> usize {
        self.link.whole()
    }

    fn transmit(&mut self, packets: &mut VecDeque<Buffer>) {
        // Before they are lent. What the link does not take stays in front, and has been recorded when it is tried
        // again.
        let recorded = std::mem::take(&mut self.recorded).min(packets.len());
        self.write(packets.iter().skip(recorded), SENT);
        self.link.transmit(packets);
        // A packet that has not been given to its end is recorded when it has.
        self.recorded = packets.iter().rposition(|it| !it.goes_on()).map_or(0, |last| last + 1);
    }

    fn complete(&mut self, done: &mut Vec<Buffer>) {
        self.link.complete(done);
    }

    fn holds_back(&self) -> bool {
        self.link.holds_back()
    }

    fn fill(&mut self, buffer: Buffer) {
        self.link.fill(buffer);
    }

    fn receive(&mut self, packets: &mut Vec<Buffer>, most: usize) -> usize {
        let before = packets.len();
        let count = self.link.receive(packets, most);
        self.write(packets[before..].iter(), CAME);
        count
    }

    fn watch(&mut self) -> Watch {
        self.link.watch()
    }

    fn readiness(&self) -> Option<Readiness<'_>> {
        self.link.readiness()
    }

    fn counters(&self) -> Counters {
        self.link.counters()
    }

    fn check(&mut self) -> Result<(), Fault> {
        self.link.check()
    }

    fn close(self: Box<Self>) -> Returned {
        let Capture { link, file, .. } = *self;
        // A caller that wants to know whether this succeeded takes the capture apart by itself.
        let _ = file.into_inner().flush();
        Box::new(link).close()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::arena::Geometry;
    use crate::loopback::Loopback;
    use crate::shape::{Shape, Wire};
    use pcap_file::pcapng::{Block, PcapNgReader};

    /// Direction and octets of each packet in a record.
    fn read(record: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut reader = PcapNgReader::new(record).unwrap();
        let mut packets = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                let direction = packet.options.iter().find_map(|it| match it {
                    EnhancedPacketOption::Flags(direction) => Some(*direction),
                    _ => None,
                });
                packets.push((direction.unwrap(), packet.data.to_vec()));
            }
        }
        packets
    }

    #[test]
    fn each_packet_is_recorded_once_with_its_direction() {
        let (arena, mut free) = Arena::new(Geometry { frames: 8, frame_size: 64, headroom: 0 });
        let [one, mut two] = Loopback::passing(&arena, 64);
        // The link takes one packet at a time, so that the other packets are tried again.
        let slow = Shape::new(one, Wire { rate: None, latency: Duration::ZERO, room: 1 });
        let mut link = Capture::new(slow, &arena, "test", Vec::new()).unwrap();
        let mut packets = VecDeque::new();
        for number in 0..3 {
            let mut buffer = free.pop().unwrap();
            arena.fill(&mut buffer, 20);
            arena.octets_mut(&mut buffer).fill(number);
            packets.push_back(buffer);
        }
        // The last two are one packet.
        packets[1].go_on(true);
        while !packets.is_empty() {
            link.transmit(&mut packets);
        }
        let mut back = free.pop().unwrap();
        arena.fill(&mut back, 5);
        arena.octets_mut(&mut back).fill(9);
        two.transmit(&mut [back].into());
        assert_eq!(link.receive(&mut Vec::new(), 8), 1);
        let (_, record) = link.take_apart().unwrap();
        let second = [[1; 20], [2; 20]].concat();
        assert_eq!(read(&record), [(SENT, vec![0; 20]), (SENT, second), (CAME, vec![9; 5])]);
    }

    /// A packet's last piece may be given with another call than its first.
    #[test]
    fn a_packet_that_is_given_in_two_calls_is_recorded_whole() {
        let (arena, mut free) = Arena::new(Geometry { frames: 8, frame_size: 64, headroom: 0 });
        let [one, _two] = Loopback::passing(&arena, 64);
        let slow = Shape::new(one, Wire { rate: None, latency: Duration::ZERO, room: 1 });
        let mut link = Capture::new(slow, &arena, "test", Vec::new()).unwrap();
        let mut piece = |octet: u8, goes_on| {
            let mut buffer = free.pop().unwrap();
            arena.fill(&mut buffer, 20);
            arena.octets_mut(&mut buffer).fill(octet);
            buffer.go_on(goes_on);
            buffer
        };
        let mut packets = VecDeque::from([piece(0, false), piece(1, true)]);
        link.transmit(&mut packets);
        link.transmit(&mut packets);
        packets.push_back(piece(2, false));
        while !packets.is_empty() {
            link.transmit(&mut packets);
        }
        let (_, record) = link.take_apart().unwrap();
        assert_eq!(read(&record), [(SENT, vec![0; 20]), (SENT, [[1; 20], [2; 20]].concat())]);
    }

    #[test]
    fn packets_go_on_when_the_record_does_not() {
        let (arena, mut free) = Arena::new(Geometry { frames: 8, frame_size: 64, headroom: 0 });
        let [one, mut two] = Loopback::passing(&arena, 64);
        let full = io::Cursor::new([0u8; 100]);
        let mut link = Capture::new(one, &arena, "test", full).unwrap();
        free.iter_mut().for_each(|buffer| arena.fill(buffer, 30));
        link.transmit(&mut free.into());
        assert_eq!(two.receive(&mut Vec::new(), 8), 8);
        assert!(link.failure().is_some() && link.take_apart().is_err());
    }
}
