//! A broker that this process cannot reach at this moment.

use super::*;
use crate::channel::{MARK, Shape};
use crate::clock;
use crate::raw::Errno;
use crate::sysv::memfd::tests::memfd;
use broker::Try;
use std::cell::{Cell, RefCell};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use underpass_broker::{self as wire, Answer as OfBroker, Ask, Knock, Verdict};

/// Of the pools that the broker gives.
const SHAPE: Shape = Shape { ring_bytes: 1 << 16, slots: 1 };
/// The cookie of the socket at the other end.
const OTHER: u64 = 12;

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

/// Answers the knocks that have come from a client, and asks: it has met a process to which it gives this memory.
fn answer(client: &OwnedFd, memory: i32) {
    let mut octets = [0u8; 256];
    loop {
        // SAFETY: a buffer of this length.
        let len =
            unsafe { libc::recv(client.as_raw_fd(), octets.as_mut_ptr().cast(), octets.len(), libc::MSG_DONTWAIT) };
        let Ok(len @ 1..) = usize::try_from(len) else { return };
        let (token, verdict) = match (Knock::parse(&octets[..len]), Ask::parse(&octets[..len])) {
            (Ok(knock), _) => (knock.token, Verdict::Here { daemon: 9 }),
            (_, ask) => {
                let (shape, token) = (wire::Shape::new(SHAPE.ring_bytes, SHAPE.slots).unwrap(), ask.unwrap().token);
                (token, Verdict::Met { pool: 7, shape, slot: 0, side: wire::Side::Maker, cookies: [token, OTHER] })
            }
        };
        let (record, len) = OfBroker { token, mark: MARK, verdict }.emit().unwrap();
        let memory = matches!(verdict, Verdict::Met { .. }).then_some(memory);
        // A client whose patience is over has gone.
        let _ = send(client, &record[..len], memory);
    }
}

/// Sends a record, with a descriptor beside it.
fn send(client: &OwnedFd, record: &[u8], beside: Option<i32>) -> isize {
    let mut vector = libc::iovec { iov_base: record.as_ptr().cast_mut().cast(), iov_len: record.len() };
    let mut control = [0u64; 3];
    // SAFETY: an all-zero message is valid. Its buffers are of this frame, and there is room for a header and a
    // descriptor.
    unsafe {
        let mut message: libc::msghdr = core::mem::zeroed();
        (message.msg_iov, message.msg_iovlen) = (&raw mut vector, 1);
        if let Some(fd) = beside {
            (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            ((*header).cmsg_level, (*header).cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
            (*header).cmsg_len = libc::CMSG_LEN(4) as _;
            libc::CMSG_DATA(header).cast::<i32>().write_unaligned(fd);
        }
        libc::sendmsg(client.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL)
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
        clients.borrow().iter().for_each(|client| answer(client, -1));
        tried
    });
    assert!(is_through.is_ok() && tries.get() > 1 && meeting.broker.daemon == 9);
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
            libc::_exit(if is_through.is_ok() { 100 } else { tries.get() });
        }
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
    assert!(libc::WIFEXITED(status));
    assert_eq!(libc::WEXITSTATUS(status), 1, "times that it tried");
}

/// Raises the limit of descriptors, as another thread would close one.
extern "C" fn raise(_signal: i32) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and writes a value of this frame.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}

/// What a child gets of the broker that may have this many descriptors beside its own, and many after a tenth of a
/// second if there is `relief`: whether the pool of `end`, and the reason of `end`.
///
/// # Safety
/// For the child of a fork.
unsafe fn fetch(meeting: &mut Meeting, (end, fd): (&End, i32), free: usize, relief: bool) -> i32 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: as above; the child has this one thread.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        // So many numbers below the limit are free.
        let mut numbers = [0; 4];
        let numbers = &mut numbers[..=free];
        numbers.iter_mut().for_each(|it| *it = libc::dup(fd));
        limit.rlim_cur = numbers[free] as u64;
        numbers.iter().for_each(|&it| kernel::close(it));
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        if relief {
            libc::signal(libc::SIGALRM, raise as *const () as usize);
            let soon = libc::timeval { tv_sec: 0, tv_usec: 100_000 };
            let timer = libc::itimerval { it_interval: libc::timeval { tv_sec: 0, tv_usec: 0 }, it_value: soon };
            libc::setitimer(libc::ITIMER_REAL, &raw const timer, core::ptr::null_mut());
        }
    }
    let patience = if relief { 60_000_000_000 } else { 200_000_000 };
    let pool = meeting.fetch_until(end, fd, clock::nanoseconds() + patience);
    if pool.is_some() { 100 } else { end.reason() as i32 }
}

/// An executed program, or the receiver of a socket, is at its limit of descriptors. Fails if its connection is lost
/// then at once, or has another reason.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn memory_is_fetched_once_a_descriptor_is_free() {
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    let (listener, socket) = (Listener::new("fetch"), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let (mut meeting, fd, end) = (listener.meeting(), socket.as_raw_fd(), super::tests::end());
    // SAFETY: the descriptor is new.
    let memory = unsafe { OwnedFd::from_raw_fd(memfd(SHAPE.pool_bytes().next_multiple_of(4096), seals)) };
    let pool = Pool::of_memfd(memory.as_raw_fd(), SHAPE).unwrap().0;
    end.cookie.store(kernel::cookie(fd).unwrap(), Relaxed);
    end.pool.store(pool.id(), Relaxed);
    end.set_shape(SHAPE);
    // SAFETY: nothing refers into it.
    unsafe { pool.detach() };
    let mut told = |free, relief| {
        let mut status = 0;
        // SAFETY: the child of a threaded process makes system calls only, on memory of its own.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe { libc::_exit(fetch(&mut meeting, (&*end, fd), free, relief)) };
        }
        let mut clients = Vec::new();
        // SAFETY: no other process waits for it.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
            clients.extend(core::iter::from_fn(|| listener.accept()));
            clients.iter().for_each(|client| answer(client, memory.as_raw_fd()));
            std::thread::yield_now();
        }
        assert!(libc::WIFEXITED(status), "{status}");
        libc::WEXITSTATUS(status)
    };
    // None to ask with, none for the memory, and enough.
    assert_eq!(told(0, false), Reason::NoDescriptor as i32);
    assert_eq!([0, 1].map(|free| told(free, true)), [100; 2]);
    assert_eq!(told(2, false), 100);
}
