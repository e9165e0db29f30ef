//! What travels with a process into the program that it executes: a memfd, open in the new image until that has read
//! it.
//!
//! It begins with a head and a list that every version of the library can read: for each descriptor of a connection the
//! cookie of its socket, and whether the connection is over if the new image cannot go on with it. Then come the ends
//! themselves, which only the version that wrote them can read: the mark in the head names that version.

use crate::connection::Connection;
use crate::guest::memory::Reserved;
use underpass_segment::channel::{Channel, WORDS};
use underpass_segment::end::End;
use underpass_segment::family::Family;
use underpass_segment::kernel;
use underpass_segment::layout::{LaidOut, START, fold};
use underpass_segment::raw::syscall;
use underpass_segment::ring::step;
use underpass_segment::switch::Unread;
use underpass_segment::sync::Relaxed;

/// How the head and the list are laid out: never changes its meaning.
const FORMAT: u64 = u64::from_be_bytes(*b"UPhand01");
/// Which version of the library can read what follows the list.
const MARK: u64 = fold(fold(START, End::LAYOUT), size_of::<Contents>() as u64);

/// How many times the size of a copy the process's memory cgroups must have left.
const RESERVE: u64 = 4;

/// The head of a parcel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Head {
    format: u64,
    mark: u64,
    /// The family of the ends.
    family: i32,
    /// 1 + the process's member number in that family, which it keeps; 0: none.
    member: u32,
    count: u64,
}

/// One descriptor, in a form that every version can read.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Listed {
    /// Cookie of its socket.
    pub cookie: u64,
    /// The descriptor.
    pub fd: i32,
    /// 1: bytes of the connection are in memory that no other process with the library has. If the image cannot attach
    /// that memory, it has to reset the connection.
    pub depends: u32,
}

/// What this version says of one descriptor.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Contents {
    /// Index of its end in the family.
    pub index: u32,
    /// How this image counts it in the statistics.
    pub counted: u32,
    /// Not 0: other processes may change the end, so this copy of it may be out of date.
    pub shared: u64,
    /// What the kernel receives until what was unread in the ring is given back, after which its reader went away.
    pub left_behind: u64,
    /// The copy of what was unread: where it lies in the parcel, its length, 0 if there is none, and the position in
    /// the ring where it begins.
    copy: [u64; 3],
    /// The end itself: the old image may have been the last to have the table.
    pub end: [u8; size_of::<End>()],
}

/// A parcel that is being written. Dropped, it is closed: the execution has failed.
pub struct Parcel {
    fd: i32,
    /// Where the next copy goes.
    behind: u64,
    listed: Reserved<Listed>,
    contents: Reserved<Contents>,
}

impl Parcel {
    /// An empty parcel with room for so many connections; `None` without memory or a descriptor for it.
    pub fn new(room: usize) -> Option<Parcel> {
        const MFD_CLOEXEC: usize = 1;
        let bytes = size_of::<Head>() + room * (size_of::<Listed>() + size_of::<Contents>());
        // Beyond the limit the kernel would send SIGXFSZ.
        if kernel::limit_of(libc::RLIMIT_FSIZE) < bytes as u64 {
            return None;
        }
        let name = c"underpass-handoff".as_ptr() as usize;
        // SAFETY: the name is a string.
        let low = unsafe { syscall(libc::SYS_memfd_create, [name, MFD_CLOEXEC, 0, 0, 0, 0]) }.ok()? as i32;
        let fd = kernel::moved_out_of_the_way(low);
        let lists = Reserved::new(room).zip(Reserved::new(room));
        let parcel = lists.map(|(listed, contents)| Parcel { fd, behind: bytes as u64, listed, contents });
        let Some(parcel) = parcel else {
            kernel::close(fd);
            return None;
        };
        // The memory is there from now on: writing cannot fail.
        // SAFETY: no pointers.
        unsafe { syscall(libc::SYS_fallocate, [fd as usize, 0, 0, bytes, 0, 0]) }.ok()?;
        Some(parcel)
    }

    /// Whether there is room for another connection.
    pub fn has_room(&self) -> bool {
        self.listed.has_room()
    }

    /// Adds a connection, whose cookie is known, with a copy of what is `unread`. `shared`: see [`Contents`].
    pub fn add(
        &mut self,
        connection: &Connection,
        shared: bool,
        depends: bool,
        left_behind: u64,
        unread: Option<Unread>,
    ) {
        let mut end = [0; size_of::<End>()];
        end.iter_mut().zip(bytes_of(connection.end)).for_each(|(to, from)| *to = from);
        let cookie = connection.end.cookie.load(Relaxed);
        let copy = unread.and_then(|unread| self.copy(&connection.joined_port()?.channel, unread)).unwrap_or_default();
        self.listed.push(Listed { cookie, fd: connection.fd, depends: depends.into() });
        let (index, counted, shared) = (connection.index, connection.usage().into(), shared.into());
        self.contents.push(Contents { index, counted, shared, left_behind, copy, end });
    }

    /// Puts a copy of what is unread into the parcel, and says where: see [`Contents::copy`]. `None` without memory for
    /// it.
    fn copy(&mut self, channel: &Channel, unread: Unread) -> Option<[u64; 3]> {
        let [first, second] = channel.incoming_ring().pieces(unread.from, unread.to);
        let pieces = [channel.words(), first, second];
        let (begin, len) = (self.behind, pieces.iter().map(|piece| piece.1 as u64).sum::<u64>());
        // Beyond the limit the kernel would send SIGXFSZ.
        if kernel::limit_of(libc::RLIMIT_FSIZE) < begin + len || !kernel::is_left_by_cgroups(RESERVE * len) {
            return None;
        }
        for (at, len) in pieces {
            // SAFETY: the piece is in memory, which the kernel alone looks at. Its end moves on with each piece.
            write_at(self.fd, self.behind, unsafe { core::slice::from_raw_parts(at, len) })?;
            self.behind += len as u64;
        }
        Some([begin, len, unread.from])
    }

    /// Writes it for an image of `member` of `family`, and returns its descriptor, which the image inherits from now
    /// on.
    pub fn seal(&mut self, family: &Family, member: Option<u32>) -> Option<i32> {
        let head = Head {
            format: FORMAT,
            mark: MARK,
            family: family.id(),
            member: member.map_or(0, |member| member + 1),
            count: self.listed.items().len() as u64,
        };
        let written =
            write(self.fd, &[head]) && write(self.fd, self.listed.items()) && write(self.fd, self.contents.items());
        (kernel::set_inherited(self.fd, true) && written).then_some(self.fd)
    }
}

impl Drop for Parcel {
    fn drop(&mut self) {
        kernel::close(self.fd);
    }
}

/// The bytes of `end`. A byte that changes meanwhile is either the old one or the new one.
pub fn bytes_of(end: &End) -> impl Iterator<Item = u8> {
    // SAFETY: within the end.
    (0..size_of::<End>()).map(move |at| unsafe { (end as *const End as *const u8).add(at).read_volatile() })
}

/// Writes at offset `to` of a file.
fn write_at(fd: i32, mut to: u64, mut bytes: &[u8]) -> Option<()> {
    while !bytes.is_empty() {
        let (at, len) = (bytes.as_ptr() as usize, bytes.len());
        // SAFETY: the bytes are readable.
        match unsafe { syscall(libc::SYS_pwrite64, [fd as usize, at, len, to as usize, 0, 0]) } {
            Ok(n @ 1..) => (to, bytes) = (to + n as u64, bytes.get(n..)?),
            _ => return None,
        }
    }
    Some(())
}

fn write<T: Copy>(fd: i32, items: &[T]) -> bool {
    let (mut at, mut left) = (items.as_ptr() as usize, size_of_val(items));
    while left > 0 {
        // SAFETY: within the slice; what its padding says does not matter.
        match unsafe { syscall(libc::SYS_write, [fd as usize, at, left, 0, 0, 0]) } {
            Ok(n @ 1..) => (at, left) = (at + n, left.saturating_sub(n)),
            _ => return false,
        }
    }
    true
}

/// A parcel that has arrived. Dropped, it is closed.
pub struct Arrived {
    fd: i32,
    /// The family, and this process's member number in it, if the process is the same.
    pub origin: (i32, Option<u32>),
    /// The descriptors.
    pub listed: Reserved<Listed>,
    /// The contents for each descriptor; empty if another version of the library wrote the parcel.
    pub contents: Reserved<Contents>,
}

impl Arrived {
    /// Reads the parcel that is open as `fd`; `None` if `fd` is not a parcel, but a file that belongs to the program.
    pub fn read(fd: i32) -> Option<Arrived> {
        const MOST: u64 = 1 << 20;
        let mut from = 0;
        let head: Reserved<Head> = read(fd, &mut from, 1)?;
        let head = head.items().first().filter(|it| it.format == FORMAT && it.count <= MOST)?;
        let listed = read(fd, &mut from, head.count as usize)?;
        let contents = if head.mark == MARK { read(fd, &mut from, head.count as usize)? } else { Reserved::new(0)? };
        Some(Arrived { fd, origin: (head.family, head.member.checked_sub(1)), listed, contents })
    }

    /// Makes `channel` the copy that came along, and says what was unread; `None` if no copy came along.
    pub fn fill(&self, contents: &Contents, channel: &Channel) -> Option<Unread> {
        let [begin, len, from] = contents.copy;
        let bytes: Reserved<u8> = read(self.fd, &mut (begin as usize), usize::try_from(len).ok()?)?;
        let (words, ring) = bytes.items().split_at_checked(WORDS)?;
        channel.copy_from(words, from, ring).then_some(Unread { from, to: step(from, ring.len() as u64) })
    }
}

impl Contents {
    /// Whether a copy of what was unread came along.
    pub fn has_copy(&self) -> bool {
        self.copy[1] > 0
    }
}

impl Drop for Arrived {
    fn drop(&mut self) {
        kernel::close(self.fd);
    }
}

/// Reads so many elements from offset `from` of a file on; `None` if it has fewer. Any bytes must be a valid `T`.
fn read<T: Copy>(fd: i32, from: &mut usize, count: usize) -> Option<Reserved<T>> {
    let mut list = Reserved::<T>::new(count)?;
    let bytes = count * size_of::<T>();
    let mut done = 0;
    while done < bytes {
        let at = list.begin() as usize + done;
        // SAFETY: the list has room for so many bytes.
        match unsafe { syscall(libc::SYS_pread64, [fd as usize, at, bytes - done, *from + done, 0, 0]) } {
            Ok(n @ 1..) => done += n,
            _ => return None,
        }
    }
    *from += bytes;
    // SAFETY: all elements were written, and any bytes are valid ones.
    unsafe { list.assume(count) };
    Some(list)
}
