//! Finding the table, or making it: of several processes one at a time.

use super::{Directory, Header, LEN, MAGIC, MARK};
use crate::clock;
use crate::raw::{Errno, syscall};
use crate::sync::{Acquire, Relaxed, Release};
use crate::sysv::{self, Mapping};

impl Directory {
    /// Finds the table of user `uid`, or makes it.
    ///
    /// # Errors
    /// See [`Mapping::create`].
    pub fn open(uid: u32) -> Result<Directory, Errno> {
        if let Some(mapping) = existing(uid) {
            return Ok(Directory { mapping, uid });
        }
        // A table is rarely made. The abstract name of a socket, which vanishes with its process, lets one process do
        // it at a time. If that process holds the name for long, because it was stopped, another makes a table as well:
        // then the one with the lowest number counts.
        let turn = Turn::take(uid);
        if let Some(mapping) = existing(uid) {
            return Ok(Directory { mapping, uid });
        }
        let directory = Directory::make(uid)?;
        drop(turn);
        Ok(directory.unless_another_counts())
    }

    pub(super) fn make(uid: u32) -> Result<Directory, Errno> {
        let directory = Directory { mapping: Mapping::create(LEN)?, uid };
        directory.header().mark.store(MARK, Relaxed);
        directory.header().magic.store(MAGIC, Release);
        Ok(directory)
    }

    /// The table that counts, after this one was made. Two processes that have made tables at the same moment each see
    /// the other's: a table is there for all before its maker looks.
    pub(super) fn unless_another_counts(self) -> Directory {
        match existing(self.uid) {
            Some(mapping) if mapping.id() != self.mapping.id() => {
                // SAFETY: nothing refers into it yet.
                unsafe { self.mapping.detach() };
                Directory { mapping, ..self }
            }
            Some(again) => {
                // SAFETY: just attached a second time.
                unsafe { again.detach() };
                self
            }
            None => self,
        }
    }
}

/// The table with the lowest number, should there be several.
fn existing(uid: u32) -> Option<Mapping> {
    let mut ids = [0i32; 8];
    let found = sysv::find(LEN, uid, &mut ids);
    let ids = &mut ids[..found];
    ids.sort_unstable();
    for &id in ids.iter() {
        let Ok((mapping, _)) = Mapping::open(id, LEN, uid) else { continue };
        // SAFETY: the mapping begins with the header.
        let header = unsafe { &*(mapping.base().as_ptr() as *const Header) };
        for _ in 0..1000 {
            match header.magic.load(Acquire) {
                MAGIC if header.mark.load(Relaxed) == MARK => return Some(mapping),
                // The maker is about to write what the segment is.
                0 => clock::give_way(),
                _ => break,
            }
        }
        // SAFETY: nothing refers into it any more.
        unsafe { mapping.detach() };
    }
    None
}

/// A process that makes the table has done so within this time, if it is not stopped.
const TURN_WITHIN_US: u32 = 1_000_000;
const TRY_EVERY_US: u32 = 100;

/// The right to make the table, held by a bound abstract name.
struct Turn(Option<usize>);

impl Turn {
    fn take(uid: u32) -> Turn {
        let mut name = [0u8; 110];
        name[..2].copy_from_slice(&(libc::AF_UNIX as u16).to_ne_bytes());
        let text = {
            use std::io::Write;
            let room = name.len() - 3;
            let mut to = &mut name[3..];
            let _ = write!(to, "underpass.directory.{uid}");
            room - to.len()
        };
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let Ok(fd) = (unsafe { syscall(libc::SYS_socket, [libc::AF_UNIX as usize, kind as usize, 0, 0, 0, 0]) }) else {
            return Turn(None);
        };
        for _ in 0..TURN_WITHIN_US / TRY_EVERY_US {
            // SAFETY: the address is as long as said.
            match unsafe { syscall(libc::SYS_bind, [fd, name.as_ptr() as usize, 3 + text, 0, 0, 0]) } {
                Err(Errno(libc::EADDRINUSE)) => clock::nap(TRY_EVERY_US),
                _ => break,
            }
        }
        Turn(Some(fd))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(fd) = self.0 {
            // SAFETY: the descriptor is this value's own.
            let _ = unsafe { syscall(libc::SYS_close, [fd, 0, 0, 0, 0, 0]) };
        }
    }
}
