//! What every layer does with user data, besides its protocol.

use std::fmt::{self, Display, Formatter};
use std::hint::black_box;

use underpass_checksum::Variant;
use underpass_checksum::fletcher::Sums;
use underpass_engine::layer::{Layer, Outbox};
use underpass_engine::service::{Indication, Request, Time};
use underpass_link::arena::{Arena, Buffer};

/// A kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// User data stays where it is.
    None,
    /// User data is copied in the fastest way.
    Memcpy,
    /// User data is copied octet by octet.
    Octets,
    /// Fletcher's sums over user data, without vector instructions.
    Scalar,
    /// Fletcher's sums over user data, in the fastest way that the processor has.
    Simd,
}

impl Work {
    /// All kinds, in the order of the plots.
    pub const ALL: [Work; 5] = [Work::None, Work::Memcpy, Work::Octets, Work::Scalar, Work::Simd];
}

impl Display for Work {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Work::None => "no copy",
            Work::Memcpy => "memcpy",
            Work::Octets => "octet copy",
            Work::Scalar => "scalar sum",
            Work::Simd => "SIMD sum",
        })
    }
}

/// A layer that does it to what goes down and to what comes up, and lets everything through.
#[derive(Debug)]
pub struct Worked {
    work: Work,
    arena: Arena,
    /// Where it is copied to.
    area: Vec<u8>,
}

impl Worked {
    /// Work on buffers of this arena.
    pub fn new(work: Work, arena: &Arena) -> Worked {
        Worked { work, arena: arena.clone(), area: vec![0; arena.geometry().frame_size as usize] }
    }

    fn work(&mut self, buffer: &Buffer) {
        let octets = self.arena.octets(buffer);
        let area = &mut self.area[..octets.len()];
        match self.work {
            Work::None => {}
            Work::Memcpy => {
                area.copy_from_slice(octets);
                black_box(area);
            }
            Work::Octets => {
                // Each one by itself, as far as the compiler can tell.
                area.iter_mut().zip(octets).for_each(|(to, from)| *to = black_box(*from));
            }
            Work::Scalar => {
                black_box(Sums::by(Variant::Scalar, octets));
            }
            Work::Simd => {
                black_box(Sums::of(octets));
            }
        }
    }
}

impl Layer for Worked {
    fn request(&mut self, request: Request, _: Time, out: &mut Outbox) {
        if let Request::Data { buffer, .. } = &request {
            self.work(buffer);
        }
        out.down(request);
    }

    fn indication(&mut self, indication: Indication, _: Time, out: &mut Outbox) {
        if let Indication::Data { buffer, .. } = &indication {
            self.work(buffer);
        }
        out.up(indication);
    }

    fn settle(&mut self, _: Time, _: &mut Outbox) {}

    fn due(&self) -> Option<Time> {
        None
    }

    fn expire(&mut self, _: Time, _: &mut Outbox) {}
}
