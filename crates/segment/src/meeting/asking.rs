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

/// Fails if `gets_through` waits for a descriptor: [`Meeting::fetch`] does, where another thread may close one.
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

/// What the second thread of a child does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Second {
    /// There is none.
    None,
    /// Nothing.
    Idles,
    /// It raises the limit of descriptors after a tenth of a second, as if it closed some.
    Helps,
}

/// The second thread. It makes system calls only.
extern "C" fn second(it: *mut libc::c_void) -> i32 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the process has a value for it; reads and writes values of this frame.
    unsafe {
        if *it.cast::<Second>() == Second::Helps {
            clock::nap(100_000);
            libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
        loop {
            libc::pause();
        }
    }
}

/// In the child of a fork: from now on it may have so many descriptors beside its own, of which `fd` is one.
///
/// # Safety
/// The child has one thread.
unsafe fn limit_descriptors(fd: i32, free: usize) {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: reads and writes values of this frame.
    unsafe {
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        // So many numbers below the limit are free.
        let mut numbers = [0; 4];
        let numbers = &mut numbers[..=free];
        numbers.iter_mut().for_each(|it| *it = libc::dup(fd));
        limit.rlim_cur = numbers[free] as u64;
        numbers.iter().for_each(|&it| kernel::close(it));
        libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
    }
}

/// It has waited, and there was nobody to wait for.
const IN_VAIN: i32 = 101;

/// What a child gets of the broker that may have this many descriptors beside its own: 100 for the pool of `end`, or
/// the reason of `end`.
///
/// # Safety
/// For the child of a fork.
unsafe fn fetch(meeting: &mut Meeting, (end, fd): (&End, i32), free: usize, mut it: Second) -> i32 {
    const STACK: usize = 1 << 16;
    let mut stack = [0u128; STACK / 16];
    // SAFETY: the child has this one thread; the other one has this stack until the process ends.
    unsafe {
        limit_descriptors(fd, free);
        if it != Second::None {
            let shared = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
            let top = stack.as_mut_ptr().cast::<u8>().add(STACK).cast();
            assert!(libc::clone(second, top, shared | libc::CLONE_SYSVSEM, (&raw mut it).cast()) > 0);
        }
    }
    let began = clock::nanoseconds();
    let patience = if it == Second::Idles { 100_000_000 } else { 20_000_000_000 };
    if meeting.fetch_until(end, fd, began + patience).is_some() {
        return 100;
    }
    if it == Second::Idles {
        assert!(meeting.fetch_until(end, fd, began + 20_000_000_000).is_none());
    }
    if clock::nanoseconds() - began > 10_000_000_000 { IN_VAIN } else { end.reason() as i32 }
}

/// An end that only the broker could lead to its other end has no descriptor to ask with. Fails if a broker that
/// answers is what it lacks.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn an_end_that_cannot_ask_for_lack_of_a_descriptor_says_so() {
    let (listener, socket) = (Listener::new("lack"), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let (mut meeting, fd, end) = (listener.meeting(), socket.as_raw_fd(), super::tests::end());
    let mut reason = |free| {
        let ask = || {
            // SAFETY: for the child.
            unsafe { limit_descriptors(fd, free) };
            meeting.seek_by_broker(&end, fd, Reason::Unproven);
            end.reason() as i32
        };
        answered(&listener, -1, ask).0
    };
    assert_eq!([0, 1].map(&mut reason), [Reason::NoDescriptor, Reason::NoBroker].map(|it| it as i32));
}

/// The kernel closes the memory that the broker has sent, though there are descriptors, as it does where a security
/// module forbids that a process receives it. Fails if the end is said to lack descriptors, if it asks for ever, or if
/// it gives up at the first time.
#[test]
#[cfg_attr(miri, ignore = "needs the kernel")]
fn memory_that_the_kernel_withholds_is_not_asked_for_for_ever() {
    let (listener, socket) = (Listener::new("withheld"), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let (mut meeting, fd, end) = (listener.meeting(), socket.as_raw_fd(), super::tests::end());
    let cookie = kernel::cookie(fd).unwrap();
    end.cookie.store(cookie, Relaxed);
    let (shape, mut clients) = (wire::Shape::new(SHAPE.ring_bytes, SHAPE.slots).unwrap(), Vec::new());
    for time in 1..=3 {
        assert_eq!(end.stage(), Stage::Plain, "{time}");
        end.set_reason(Reason::Young);
        // The broker shows that it is at work, and has not taken the ask yet.
        while meeting.broker.ask(cookie, fd, SHAPE.ring_bytes, None) != Try::Asked {
            clients.extend(listener.accept());
            clients.iter().for_each(|client| answer(client, -1));
            assert!(meeting.broker.hear().is_none());
        }
        end.set_asked(Asked::Pending);
        let verdict = Verdict::Met { pool: 7, shape, slot: 0, side: wire::Side::Maker, cookies: [cookie, OTHER] };
        meeting.note(OfBroker { token: cookie, mark: MARK, verdict }, crate::dial::Beside::Lost);
        meeting.follow_broker(&end, fd);
        assert_eq!((end.reason(), end.asked()), (Reason::NoMemory, Asked::Nothing));
    }
    assert_eq!(end.stage(), Stage::Pinned);
}

/// The broker answers what a child asks that does `what`: what the child returns, and how often it has connected.
fn answered(listener: &Listener, memory: i32, what: impl FnOnce() -> i32) -> (i32, usize) {
    let mut status = 0;
    // SAFETY: the child of a threaded process makes system calls only, on memory of its own.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::_exit(what()) };
    }
    let mut clients = Vec::new();
    // SAFETY: no other process waits for it.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        clients.extend(core::iter::from_fn(|| listener.accept()));
        clients.iter().for_each(|client| answer(client, memory));
        std::thread::yield_now();
    }
    assert!(libc::WIFEXITED(status), "{status}");
    (libc::WEXITSTATUS(status), clients.len())
}

fn memory() -> OwnedFd {
    let seals = libc::F_SEAL_SEAL | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW;
    // SAFETY: the descriptor is new.
    unsafe { OwnedFd::from_raw_fd(memfd(SHAPE.pool_bytes().next_multiple_of(4096), seals)) }
}

/// An executed program, or the receiver of a socket, is at its limit of descriptors. Fails if its connection is lost
/// at once though another thread may close one, or has another reason; if it waits where nobody closes one, or once
/// more where nobody has; and if it asks the broker all the time meanwhile.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn memory_is_fetched_once_a_descriptor_is_free() {
    let (listener, socket) = (Listener::new("fetch"), std::net::TcpListener::bind("127.0.0.1:0").unwrap());
    let (mut meeting, fd, end, memory) = (listener.meeting(), socket.as_raw_fd(), super::tests::end(), memory());
    let pool = Pool::of_memfd(memory.as_raw_fd(), SHAPE).unwrap().0;
    end.cookie.store(kernel::cookie(fd).unwrap(), Relaxed);
    end.pool.store(pool.id(), Relaxed);
    end.set_shape(SHAPE);
    // SAFETY: nothing refers into it.
    unsafe { pool.detach() };
    let mut told = |free, second| {
        // SAFETY: for the child.
        answered(&listener, memory.as_raw_fd(), || unsafe { fetch(&mut meeting, (&*end, fd), free, second) })
    };
    // None to ask with, none for the memory, and enough.
    for free in [0, 1] {
        assert_eq!(told(free, Second::None).0, Reason::NoDescriptor as i32, "{free} free, one thread");
        assert_eq!(told(free, Second::Idles).0, Reason::NoDescriptor as i32, "{free} free, another thread idles");
        let (result, asks) = told(free, Second::Helps);
        assert!(result == 100 && asks <= 3, "{free} free, another thread helps: {result}, {asks} connections");
    }
    assert_eq!(told(2, Second::None).0, 100);
}

/// A process with a connection in memory of the broker is about to execute a program. Fails if that counts as sure
/// where the program has a descriptor to ask with, and none for the memory.
#[test]
#[cfg_attr(miri, ignore = "forks")]
fn an_image_fetches_memory_only_with_descriptors_for_it() {
    let (listener, memory) = (Listener::new("image"), memory());
    let mut meeting = listener.meeting();
    let pool = Pool::of_memfd(memory.as_raw_fd(), SHAPE).unwrap().0;
    meeting.remember(pool, 0, None).unwrap();
    let attached = meeting.attached(pool.id()).unwrap();
    (attached.users, attached.daemon) = (1, 9);
    let mut is_sure = |free| {
        let mut ask = || {
            meeting.broker.begin_anew();
            meeting.would_be_given_again()
        };
        // The broker may be late for one answer.
        let mut asks_often = || (0..20).any(|_| ask());
        answered(&listener, memory.as_raw_fd(), || {
            // SAFETY: for the child.
            unsafe { limit_descriptors(memory.as_raw_fd(), free) };
            asks_often().into()
        })
        .0
    };
    assert_eq!([0, 1, 2].map(&mut is_sure), [0, 0, 1]);
}
