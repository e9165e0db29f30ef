//! One area of memory for all packets, in frames of one size: the driver's own packet memory (AF_XDP's UMEM).
//!
//! A [`Buffer`] is the right to a frame, and which of its octets are meant. There is one for each frame, it cannot be
//! copied, and its owner may read and write the frame. It goes from layer to layer with the primitive that it is part
//! of. Headers are pushed in front of the data ([`Arena::push`]), so that data stays where it is from the user to the
//! link.
#![allow(unsafe_code, reason = "hands out parts of one memory area by tokens that are unique")]

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::fmt::{self, Debug, Formatter};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The right to one frame of an [`Arena`], and which of its octets are meant.
///
/// It is moved from queue to queue at every step, and is no larger than one register holds: with four octets more a
/// TPDU took a fifth more time.
pub struct Buffer {
    /// The number of its arena, so that no other arena takes the token; and [`MARKS`].
    arena: u32,
    frame: u32,
    offset: u32,
    len: u32,
}

const _: () = assert!(size_of::<Buffer>() == 16);

/// The packet goes on in the next buffer.
const GOES_ON: u32 = 1 << 31;
/// The buffer came back from a link that has not sent it.
const REFUSED: u32 = 1 << 30;
/// On a packet's way down: a router that is congested may mark it. On its way up: a router has marked it.
const MAY_BE_MARKED: u32 = 1 << 29;
const IS_MARKED: u32 = 1 << 28;
const MARKS: u32 = GOES_ON | REFUSED | MAY_BE_MARKED | IS_MARKED;

impl Buffer {
    /// Number of the frame in its arena.
    #[inline]
    pub fn frame(&self) -> u32 {
        self.frame
    }

    /// Where in the frame the octets begin.
    #[inline]
    pub fn offset(&self) -> u32 {
        self.offset
    }

    /// How many they are.
    #[inline]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    #[inline]
    fn set(&mut self, flag: u32, is_set: bool) {
        self.arena = self.arena & !flag | if is_set { flag } else { 0 };
    }

    /// Whether its packet goes on in the next buffer.
    #[inline]
    pub fn goes_on(&self) -> bool {
        self.arena & GOES_ON != 0
    }

    /// Says whether its packet goes on in the next buffer, over a link that takes packets in pieces
    /// ([`crate::Link::pieces`]).
    #[inline]
    pub fn go_on(&mut self, more: bool) {
        self.set(GOES_ON, more);
    }

    /// Whether a link that it was lent to has given it back without sending it, since it takes no such packet.
    #[inline]
    pub fn is_refused(&self) -> bool {
        self.arena & REFUSED != 0
    }

    /// Says so.
    #[inline]
    pub fn refuse(&mut self, refused: bool) {
        self.set(REFUSED, refused);
    }

    /// Whether a congested router may mark the packet instead of dropping it, because the sender reacts to marks.
    #[inline]
    pub fn may_be_marked(&self) -> bool {
        self.arena & MAY_BE_MARKED != 0
    }

    /// Says so.
    #[inline]
    pub fn let_be_marked(&mut self, may: bool) {
        self.set(MAY_BE_MARKED, may);
    }

    /// Whether a router has marked its packet, since it was congested (RFC 3168).
    #[inline]
    pub fn is_marked(&self) -> bool {
        self.arena & IS_MARKED != 0
    }

    /// Says so.
    #[inline]
    pub fn mark(&mut self, marked: bool) {
        self.set(IS_MARKED, marked);
    }

    /// Leaves out the first octets: a header that was read.
    ///
    /// # Panics
    /// If there are fewer.
    #[inline]
    pub fn pull(&mut self, octets: usize) {
        assert!(octets <= self.len());
        self.offset += octets as u32;
        self.len -= octets as u32;
    }

    /// Leaves out all but the first octets: padding, or another PDU.
    #[inline]
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len as u32);
    }
}

/// The buffer as one that a link has not sent.
pub(crate) fn refused(mut buffer: Buffer) -> Buffer {
    buffer.refuse(true);
    buffer
}

impl Debug for Buffer {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "frame {} {}+{}", self.frame, self.offset, self.len)
    }
}

/// How large frames are, and what is kept free in them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Number of frames.
    pub frames: u32,
    /// Octets of a frame.
    pub frame_size: u32,
    /// Octets kept free at the beginning of a frame for headers.
    pub headroom: u32,
}

impl Geometry {
    /// Octets behind the headroom of a frame.
    #[inline]
    pub const fn room(self) -> usize {
        (self.frame_size - self.headroom) as usize
    }
}

/// A mapping of its own: a driver registers whole pages, and a device may still write to them after it was told to
/// stop. By then they must not belong to another part of the program, as memory could that goes back to an allocator.
struct Memory {
    octets: NonNull<[u8]>,
    pages: Pages,
}

/// Pages of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pages {
    /// The system's; a driver asks to have them joined.
    Ordinary,
    /// Of 2 MiB each, which the administrator has reserved (`vm.nr_hugepages`): the processor has fewer pages to look
    /// up.
    Huge,
}

/// Octets of a huge page.
const HUGE: usize = 2 << 20;

impl Memory {
    /// Zeroed pages for so many octets.
    fn new(octets: usize) -> Memory {
        let map = |pages, page, flags| {
            let len = octets.max(1).next_multiple_of(page);
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let memory = unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
            let memory = NonNull::new(memory.ok()?.cast::<u8>())?;
            Some(Memory { octets: NonNull::slice_from_raw_parts(memory, len), pages })
        };
        // Shared: of private ones that a device may write to, a fork takes copies, for which none may be left. They are
        // reserved with the mapping, but a control group may have less than that: what it lacks would show by SIGBUS
        // when it is first used, and shows here (Linux 5.14) if they are asked for now.
        let huge = || {
            map(Pages::Huge, HUGE, MapFlags::SHARED | MapFlags::HUGETLB | MapFlags::HUGE_2MB).filter(|memory| {
                // SAFETY: of this mapping, of which all stays as it is.
                unsafe { madvise(memory.octets.as_ptr().cast(), memory.octets.len(), Advice::LinuxPopulateWrite) }
                    .is_ok()
            })
        };
        let memory = if octets >= HUGE { huge() } else { None };
        memory
            .or_else(|| map(Pages::Ordinary, rustix::param::page_size(), MapFlags::PRIVATE))
            .unwrap_or_else(|| panic!("no memory for an arena of {octets} octets"))
    }
}

// SAFETY: the memory is reached by tokens alone, of which there is one for each frame.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it was mapped in `Memory::new`, as long as this, and the last handle to it is gone.
        let unmapped = unsafe { munmap(self.octets.as_ptr().cast(), self.octets.len()) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// A handle to the memory; every layer has one.
#[derive(Clone)]
pub struct Arena {
    memory: Arc<Memory>,
    id: u32,
    geometry: Geometry,
}

impl Arena {
    /// New memory, and the right to each of its frames. It lies in huge pages where it fills one and enough are
    /// reserved.
    ///
    /// # Panics
    /// If the headroom is larger than a frame, or there is no memory.
    pub fn new(geometry: Geometry) -> (Arena, Vec<Buffer>) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        assert!(geometry.headroom <= geometry.frame_size);
        let next = |id: u32| (id < IS_MARKED - 1).then_some(id + 1);
        let id = NEXT.fetch_update(Relaxed, Relaxed, next).expect("fewer than 2^28 arenas");
        let memory = Memory::new(geometry.frames as usize * geometry.frame_size as usize);
        let arena = Arena { memory: Arc::new(memory), id, geometry };
        let begin = Buffer { arena: id, frame: 0, offset: geometry.headroom, len: 0 };
        let all = (0..geometry.frames).map(|frame| Buffer { frame, ..begin });
        (arena, all.collect())
    }

    /// How it is divided.
    #[inline]
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The pages that it lies in.
    pub fn pages(&self) -> Pages {
        self.memory.pages
    }

    /// The octets of a buffer.
    #[inline]
    pub fn octets<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        // SAFETY: within the frame (see `at`), which nobody else can reach while the only token for it is borrowed.
        unsafe { std::slice::from_raw_parts(self.at(buffer), buffer.len()) }
    }

    /// The octets of a buffer, to be written.
    #[inline]
    pub fn octets_mut<'a>(&'a self, buffer: &'a mut Buffer) -> &'a mut [u8] {
        // SAFETY: as in `octets`, and the token is borrowed for this alone.
        unsafe { std::slice::from_raw_parts_mut(self.at(buffer), buffer.len()) }
    }

    /// The whole room behind the headroom, to be written; [`Arena::fill`] says how much of it was.
    #[inline]
    pub fn room<'a>(&'a self, buffer: &'a mut Buffer) -> &'a mut [u8] {
        self.fill(buffer, self.geometry.room());
        self.octets_mut(buffer)
    }

    /// Makes the buffer so many octets behind the headroom, a packet by itself of which nothing is known.
    ///
    /// # Panics
    /// If a frame has no room for so many, or the buffer is another arena's.
    #[inline]
    pub fn fill(&self, buffer: &mut Buffer, len: usize) {
        self.check(buffer);
        assert!(len <= self.geometry.room());
        (buffer.offset, buffer.len) = (self.geometry.headroom, len as u32);
        buffer.arena &= !MARKS;
    }

    /// Makes the buffer what it was before: `len` octets from `offset` of the frame on.
    ///
    /// # Panics
    /// If a frame has no such octets, or the buffer is another arena's.
    #[inline]
    pub fn restore(&self, buffer: &mut Buffer, offset: u32, len: u32) {
        self.check(buffer);
        assert!(u64::from(offset) + u64::from(len) <= u64::from(self.geometry.frame_size));
        (buffer.offset, buffer.len) = (offset, len);
    }

    /// Puts so many octets in front of the buffer, and hands them out to be written: a header.
    ///
    /// # Panics
    /// If the headroom is used up.
    #[inline]
    pub fn push<'a>(&'a self, buffer: &'a mut Buffer, octets: usize) -> &'a mut [u8] {
        assert!(octets <= buffer.offset as usize, "the headroom of a frame is too small for its headers");
        buffer.offset -= octets as u32;
        buffer.len += octets as u32;
        &mut self.octets_mut(buffer)[..octets]
    }

    /// Whether it is one of this arena's buffers.
    #[inline]
    pub fn owns(&self, buffer: &Buffer) -> bool {
        buffer.arena & !MARKS == self.id
    }

    /// # Panics
    /// If it is another arena's buffer.
    #[inline]
    pub(crate) fn check(&self, buffer: &Buffer) {
        assert!(self.owns(buffer), "a buffer of another arena");
    }

    /// The whole memory, for a driver that registers it, in whole pages; the frames lie at its beginning.
    pub fn memory(&self) -> NonNull<[u8]> {
        self.memory.octets
    }

    #[inline]
    fn at(&self, buffer: &Buffer) -> *mut u8 {
        let Geometry { frames, frame_size, .. } = self.geometry;
        self.check(buffer);
        debug_assert!(buffer.frame < frames && buffer.offset + buffer.len <= frame_size);
        let begin = buffer.frame as usize * frame_size as usize + buffer.offset as usize;
        // SAFETY: a token of this arena names one of its frames, and octets within it: the memory is `frames` times
        // `frame_size` long.
        unsafe { self.memory.octets.as_ptr().cast::<u8>().add(begin) }
    }
}

impl Debug for Arena {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.geometry.fmt(f)
    }
}

/// Buffers that nobody uses.
#[derive(Debug, Default)]
pub struct Pool {
    free: Vec<Buffer>,
}

impl Pool {
    /// A pool of these.
    pub fn new(free: Vec<Buffer>) -> Pool {
        Pool { free }
    }

    /// How many there are.
    #[inline]
    pub fn len(&self) -> usize {
        self.free.len()
    }

    /// Whether there is none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.free.is_empty()
    }

    /// Takes one out.
    #[inline]
    pub fn take(&mut self) -> Option<Buffer> {
        self.free.pop()
    }

    /// Puts one back.
    #[inline]
    pub fn put(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }
}

impl FromIterator<Buffer> for Pool {
    fn from_iter<I: IntoIterator<Item = Buffer>>(buffers: I) -> Pool {
        Pool::new(buffers.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry { frames: 3, frame_size: 128, headroom: 32 };

    #[test]
    fn headers_go_in_front_of_data_that_stays() {
        let (arena, mut all) = Arena::new(GEOMETRY);
        let mut buffer = all.pop().unwrap();
        arena.room(&mut buffer)[..4].copy_from_slice(b"data");
        arena.fill(&mut buffer, 4);
        let before = arena.octets(&buffer).as_ptr();
        arena.push(&mut buffer, 3).copy_from_slice(b"TP4");
        assert_eq!(arena.octets(&buffer), b"TP4data");
        buffer.pull(3);
        assert_eq!((arena.octets(&buffer), arena.octets(&buffer).as_ptr()), (&b"data"[..], before));
        buffer.truncate(2);
        assert_eq!(arena.octets(&buffer), b"da");
    }

    #[test]
    fn frames_do_not_overlap() {
        let (arena, mut all) = Arena::new(GEOMETRY);
        for (number, buffer) in all.iter_mut().enumerate() {
            arena.room(buffer).fill(number as u8);
            let headroom = GEOMETRY.headroom as usize;
            arena.push(buffer, headroom).fill(number as u8);
        }
        for (number, buffer) in all.iter().enumerate() {
            assert_eq!(arena.octets(buffer), [number as u8; 128]);
        }
    }

    /// Where no huge pages are reserved, an arena gets ordinary ones; an arena smaller than a huge page always does.
    #[test]
    #[cfg_attr(miri, ignore = "reads /proc/self/smaps")]
    fn an_arena_lies_in_huge_pages_where_some_are_reserved() {
        assert_eq!(Arena::new(GEOMETRY).0.pages(), Pages::Ordinary);
        let (arena, mut all) = Arena::new(Geometry { frames: 1024, frame_size: 2560, headroom: 0 });
        for (number, buffer) in all.iter_mut().enumerate() {
            arena.room(buffer).fill(number as u8);
        }
        assert!(all.iter().enumerate().all(|(number, buffer)| arena.octets(buffer) == [number as u8; 2560]));
        // What the kernel says of the mapping that this address is in, which may have grown together with another: `ht`
        // is for huge pages.
        let mappings = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let at = arena.memory().as_ptr().cast::<u8>() as usize;
        let number = |hex: &str| usize::from_str_radix(hex, 16).ok();
        let is_in = |line: &&str| {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            let range = range.and_then(|(begin, end)| Some(number(begin)?..number(end)?));
            range.is_some_and(|range| range.contains(&at))
        };
        let flags = mappings.lines().skip_while(|line| !is_in(line)).find(|line| line.starts_with("VmFlags:"));
        let huge = flags.unwrap().split_whitespace().any(|flag| flag == "ht");
        assert_eq!(huge, arena.pages() == Pages::Huge);
        if !huge {
            println!("SKIPPED: no huge pages are reserved here; as root, `sysctl vm.nr_hugepages=16`");
        }
    }

    #[test]
    #[should_panic(expected = "another arena")]
    fn a_buffer_of_another_arena() {
        let (arena, _) = Arena::new(GEOMETRY);
        let (_, others) = Arena::new(GEOMETRY);
        arena.octets(&others[0]);
    }

    #[test]
    #[should_panic(expected = "another arena")]
    fn a_buffer_of_another_arena_is_not_filled() {
        let (arena, _) = Arena::new(Geometry { frame_size: 4096, ..GEOMETRY });
        let (_, mut others) = Arena::new(GEOMETRY);
        arena.fill(&mut others[0], 1000);
    }

    #[test]
    #[should_panic(expected = "another arena")]
    fn a_buffer_of_another_arena_is_not_restored() {
        let (arena, _) = Arena::new(Geometry { frame_size: 4096, ..GEOMETRY });
        let (_, mut others) = Arena::new(GEOMETRY);
        arena.restore(&mut others[0], 0, 4096);
    }

    #[test]
    #[should_panic(expected = "headroom")]
    fn too_many_headers() {
        let (arena, mut all) = Arena::new(GEOMETRY);
        arena.push(&mut all[0], 33);
    }
}
