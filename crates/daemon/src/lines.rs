//! The lines of the programs whose streams this daemon carries: sockets by which sleepers are rung, and ring.

use rustix::event::epoll;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::HashMap;
use std::io;
use underpass_broker::line::{GREETING, HELLO, REFUSED, RING};

/// Most lines of a user.
const MOST: usize = 4096;
/// Lines that are looked at after a wait.
const LOOKED_AT: usize = 64;

/// All lines.
#[derive(Debug)]
pub struct Lines {
    events: OwnedFd,
    lines: HashMap<u64, (u32, OwnedFd)>,
    of_user: HashMap<u32, usize>,
    greeting: [u8; GREETING],
}

impl Lines {
    /// None yet, of the daemon of this number.
    ///
    /// # Errors
    /// Those of epoll_create(2).
    pub fn new(daemon: u64) -> io::Result<Lines> {
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut greeting = [HELLO; GREETING];
        greeting[1..].copy_from_slice(&daemon.to_le_bytes());
        Ok(Lines { events, lines: HashMap::new(), of_user: HashMap::new(), greeting })
    }

    /// Readable while a program rings, or has ended.
    pub fn events(&self) -> BorrowedFd<'_> {
        self.events.as_fd()
    }

    /// A process of user `uid` gives a line. One too many is refused: its sleeper looks by itself.
    pub fn add(&mut self, uid: u32, number: u64, socket: OwnedFd) {
        let count = self.of_user.entry(uid).or_default();
        let data = epoll::EventData::new_u64(number);
        let is_refused = *count >= MOST
            || self.lines.contains_key(&number)
            || epoll::add(&self.events, &socket, data, epoll::EventFlags::IN).is_err();
        if is_refused {
            let _ = send(socket, &[REFUSED], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            return;
        }
        *count += 1;
        // It is a ring as well: a program may have been rung by the line before this came.
        let _ = send(&socket, &self.greeting, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        self.lines.insert(number, (uid, socket));
    }

    /// Rings the sleeper of this line, if there is one. If no more fits, it has been rung already.
    pub fn ring(&self, number: u64) {
        if let Some((_, socket)) = self.lines.get(&number) {
            let _ = send(socket, &[RING], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Takes rings of programs, and lets go of lines whose program has ended. All that is carried is to be looked at
    /// afterwards.
    pub fn hear(&mut self) {
        let mut events = Vec::with_capacity(LOOKED_AT);
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        if epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), Some(&now)).is_err() {
            return;
        }
        for event in events {
            let number = event.data.u64();
            let is_over = self.lines.get(&number).is_some_and(|(_, socket)| {
                let taken = recv(socket, &mut [0; 256], RecvFlags::DONTWAIT);
                !matches!(taken, Ok((_, 1..)) | Err(Errno::AGAIN | Errno::INTR))
            });
            if is_over {
                self.remove(number);
            }
        }
    }

    fn remove(&mut self, number: u64) {
        let Some((uid, _)) = self.lines.remove(&number) else { return };
        if let Some(count) = self.of_user.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                self.of_user.remove(&uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    fn is_readable(fd: impl AsFd) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now)) == Ok(1)
    }

    fn line(lines: &mut Lines, number: u64) -> UnixStream {
        let (own, given) = UnixStream::pair().unwrap();
        lines.add(1000, number, given.into());
        own
    }

    /// Fails if a ring goes to another sleeper, and if a line of a program that has ended is kept.
    #[test]
    fn each_line_rings_its_own_sleeper() {
        let mut lines = Lines::new(0x0102).unwrap();
        let mut programs: Vec<UnixStream> = (1..=3).map(|number| line(&mut lines, number)).collect();
        let mut octets = [0; 64];
        for program in &mut programs {
            assert_eq!(program.read(&mut octets).unwrap(), GREETING);
            assert_eq!(octets[..GREETING], [HELLO, 2, 1, 0, 0, 0, 0, 0, 0]);
        }
        lines.ring(2);
        lines.ring(9);
        assert_eq!(programs.iter().map(is_readable).collect::<Vec<_>>(), [false, true, false]);
        assert_eq!((programs[1].read(&mut octets).unwrap(), octets[0]), (1, RING));
        assert!(!is_readable(lines.events()));
        programs[0].write_all(&[RING, RING]).unwrap();
        assert!(is_readable(lines.events()));
        lines.hear();
        assert!(!is_readable(lines.events()));
        drop(programs.remove(1));
        lines.hear();
        assert_eq!(lines.lines.len(), 2);
        assert_eq!(lines.of_user.get(&1000), Some(&2));
    }

    /// A program that takes no ring delays nobody, and has been rung. Fails if a ring waits for room.
    #[test]
    fn a_full_line_delays_nobody() {
        let mut lines = Lines::new(0x0102).unwrap();
        let program = line(&mut lines, 7);
        (0..100_000).for_each(|_| lines.ring(7));
        assert!(is_readable(&program));
    }

    /// Fails if a number that is taken is given to another program, and if a refused line is closed without a word.
    #[test]
    fn a_line_too_many_is_refused() {
        let mut lines = Lines::new(0x0102).unwrap();
        let programs: Vec<UnixStream> = (1..=MOST as u64).map(|number| line(&mut lines, number)).collect();
        for number in [1, MOST as u64 + 1] {
            let mut octets = Vec::new();
            line(&mut lines, number).read_to_end(&mut octets).unwrap();
            assert_eq!(octets, [REFUSED], "{number}");
        }
        drop(programs);
        while !lines.lines.is_empty() {
            lines.hear();
        }
        assert!(lines.of_user.is_empty());
    }
}
