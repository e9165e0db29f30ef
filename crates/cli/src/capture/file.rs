//! A pcapng file (draft-ietf-opsawg-pcapng).

use std::borrow::Cow;
use std::io::{self, Write};
use std::time::{Duration, SystemTime};

use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{InterfaceDescriptionBlock, InterfaceDescriptionOption};
use pcap_file::pcapng::blocks::section_header::{SectionHeaderBlock, SectionHeaderOption};
use pcap_file::{DataLink, Endianness, PcapError};
use underpass_segment::clock;

use super::streams::Packet;

/// Times are nanoseconds: ten to the power of minus so many seconds.
const NANOSECONDS: u8 = 9;

/// The file, to which packets are added.
pub struct File<W: Write> {
    writer: PcapNgWriter<W>,
    /// From CLOCK_MONOTONIC to the time of day, in nanoseconds.
    offset: i128,
    began: u64,
}

impl<W: Write> File<W> {
    /// Begins it.
    ///
    /// # Errors
    /// What writing says, here and below.
    pub fn new(to: W) -> io::Result<File<W>> {
        let began = clock::nanoseconds();
        let day = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let application = concat!("underpass ", env!("CARGO_PKG_VERSION"));
        let section = SectionHeaderBlock {
            endianness: Endianness::native(),
            options: vec![SectionHeaderOption::UserApplication(application.into())],
            ..SectionHeaderBlock::default()
        };
        let mut writer = PcapNgWriter::with_section_header(to, section).map_err(said)?;
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::RAW,
            snaplen: 0,
            options: vec![
                InterfaceDescriptionOption::IfName("underpass".into()),
                InterfaceDescriptionOption::IfDescription("streams in the shared memory of Underpass".into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        writer.write_pcapng_block(interface).map_err(said)?;
        Ok(File { writer, offset: day.as_nanos() as i128 - i128::from(began), began })
    }

    /// Adds a packet. Its time is believed as far as it can be.
    pub fn add(&mut self, packet: &Packet) -> io::Result<()> {
        let when = packet.when.clamp(self.began, clock::nanoseconds().max(self.began));
        let nanoseconds = u64::try_from(i128::from(when) + self.offset).unwrap_or_default();
        let comment = packet.comment.as_ref().map(|it| EnhancedPacketOption::Comment(it.into()));
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: Duration::from_nanos(nanoseconds),
            original_len: packet.bytes.len() as u32,
            data: Cow::Borrowed(&packet.bytes),
            options: comment.into_iter().collect(),
        };
        self.writer.write_pcapng_block(block).map_err(said)?;
        Ok(())
    }

    /// Hands over what is held back.
    pub fn flush(&mut self) -> io::Result<()> {
        self.writer.get_mut().flush()
    }
}

fn said(error: PcapError) -> io::Error {
    match error {
        PcapError::IoError(error) => error,
        other => io::Error::other(other),
    }
}
