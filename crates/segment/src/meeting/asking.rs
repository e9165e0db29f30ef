//! A broker that this process cannot reach at this moment.

use super::*;
use crate::clock;
use crate::raw::Errno;
use broker::Try;
use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use underpass_broker::{Answer as OfBroker, Knock, Verdict};

/// A broker of the test's own, at which one client may wait to be accepted.
struct Listener {
    path: PathBuf,
    socket: OwnedFd,
}

fn socket() -> OwnedFd {
    // SAFETY: no pointers; the descriptor is new.
    unsafe { OwnedFd::from_raw_fd(libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_NONBLOCK, 0)) }
}

impl Listener {
    fn new(name: &str) -> Listener {
        let path = std::env::temp_dir().join(format!("underpass-{name}-{}", std::process::id()));
        let text = path.to_str().unwrap();
        // SAFETY: zeroed memory is an address.
        let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
        address.sun_family = libc::AF_UNIX as u16;
        address.sun_path.iter_mut().zip(text.bytes()).for_each(|(to, from)| *to = from as libc::c_char);
        let (socket, len) = (socket(), size_of::<libc::sockaddr_un>() as u32);
        // SAFETY: an address of this length.
        unsafe {
            assert_eq!(libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len), 0);
            assert_eq!(libc::listen(socket.as_raw_fd(), 0), 0);
        }
        Listener { path, socket }
    }

    fn path(&self) -> SocketPath {
        SocketPath::of(self.path.to_str().unwrap()).unwrap()
    }

    fn meeting(&self) -> Box<Meeting> {
        let mut meeting = Box::new(Meeting::new());
        meeting.set_up(100, 1 << 16, self.path(), |_, _| true);
        meeting
    }

    fn accept(&self) -> Option<OwnedFd> {
        let null = core::ptr::null_mut();
        // SAFETY: nothing is written; a descriptor that is returned is new.
        let fd = unsafe { libc::accept(self.socket.as_raw_fd(), null, null.cast()) };
        // SAFETY: as above.
        (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers the knocks that have come from a client.
fn answer(client: &OwnedFd) {
    let mut octets = [0u8; 256];
    loop {
        // SAFETY: a buffer of this length.
        let len =
            unsafe { libc::recv(client.as_raw_fd(), octets.as_mut_ptr().cast(), octets.len(), libc::MSG_DONTWAIT) };
        let Ok(len @ 1..) = usize::try_from(len) else { return };
        let knock = Knock::parse(&octets[..len]).unwrap();
        let here = OfBroker { token: knock.token, mark: knock.mark, verdict: Verdict::Here { daemon: 9 } };
        let (record, len) = here.emit().unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { libc::send(client.as_raw_fd(), record.as_ptr().cast(), len, 0) }, len as isize);
    }
}

/// Others connect at this moment, so the kernel answers EAGAIN. Fails if `gets_through` gives up then: an executed
/// program would have lost its connections.
#[test]
#[cfg_attr(miri, ignore = "needs the kernel")]
fn a_broker_that_accepts_others_first_is_tried_again() {
    let listener = Listener::new("backlog");
    let others: Vec<_> = core::iter::from_fn(|| crate::dial::Dial::connect(&listener.path()).ok()).collect();
    assert_eq!(crate::dial::Dial::connect(&listener.path()).unwrap_err(), Errno(libc::EAGAIN));
    assert!(!others.is_empty());
    let (tries, clients, mut meeting) = (Cell::new(0), RefCell::new(Vec::new()), listener.meeting());
    // Beyond all delay by other programs.
    let until = clock::nanoseconds() + 60_000_000_000;
    let is_through = meeting.gets_through(until, |broker| {
        tries.set(tries.get() + 1);
        if tries.get() > 1 {
            clients.borrow_mut().extend(core::iter::from_fn(|| listener.accept()));
        }
        let tried = broker.greet();
        assert!(tries.get() > 1 || tried == Try::Later, "{tried:?}");
        clients.borrow_mut().extend(core::iter::from_fn(|| listener.accept()));
        clients.borrow().iter().for_each(answer);
        tried
    });
    assert!(is_through && tries.get() > 1 && meeting.broker.daemon == 9);
    meeting.broker.rest();
    others.into_iter().for_each(|it| it.hang_up());
}

/// No other process gives this one a descriptor. Fails if `gets_through` waits for one.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn without_a_descriptor_nobody_waits_for_the_broker() {
    let listener = Listener::new("descriptors");
    let mut meeting = listener.meeting();
    let until = clock::nanoseconds() + 60_000_000_000;
    let mut status = 0;
    // SAFETY: the child of a threaded process makes system calls only, on memory of its own.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const none);
            let tries = Cell::new(0);
            let is_through = meeting.gets_through(until, |broker| {
                tries.set(tries.get() + 1);
                // Enough to see that it goes on.
                if tries.get() > 2 { Try::Nobody } else { broker.greet() }
            });
            libc::_exit(if is_through { 100 } else { tries.get() });
        }
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 1, "times that it tried");
}
