//! The kernel of a model: two connected sockets, each direction a queue, and which threads are dead.
//!
//! What was sent arrives whenever the model checker says so: a count of the bytes is all that the other end sees, and
//! it may see an old one.
#![allow(unsafe_code, reason = "writes answers to where system calls want them")]

use crate::kernel::{CLOSE_WAIT, ESTABLISHED, FIN_WAIT2, LAST_ACK};
use crate::raw::{Answer, Errno, MODEL};
use crate::sync::{Acquire, Relaxed, Release, checked};
use loom::sync::atomic::{AtomicU32, AtomicU64};
use std::cell::RefCell;
use std::rc::Rc;

/// The first of the two descriptors; the other follows.
pub const FD: i32 = 1_000_000;
/// Bit of the count that says that the direction has ended.
const FIN: u64 = 1 << 32;

/// One direction.
struct Queue {
    /// All that was ever sent.
    bytes: RefCell<Vec<u8>>,
    sent: AtomicU64,
    read: RefCell<usize>,
}

/// The kernel.
pub struct Kernel {
    /// A queue for each socket that sends.
    queues: [Queue; 2],
    /// A bit for each thread.
    dead: AtomicU32,
}

thread_local! {
    static KERNEL: RefCell<Option<Rc<Kernel>>> = const { RefCell::new(None) };
}

impl Kernel {
    /// As ppoll(2), without waiting.
    fn poll(&self, it: &mut libc::pollfd) {
        let (there, ended) = self.queues[1 - (it.fd - FD) as usize].arrived();
        let events = [(there > 0 || ended, libc::POLLIN), (ended, libc::POLLRDHUP), (true, libc::POLLOUT)];
        let told = events.iter().filter(|it| it.0).fold(0, |all, it| all | it.1);
        it.revents = told & (it.events | libc::POLLHUP | libc::POLLERR);
    }
}

fn kernel() -> Option<Rc<Kernel>> {
    KERNEL.with_borrow(Clone::clone)
}

/// Checks `body` with a kernel of its own.
pub fn check(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    MODEL.get_or_init(|| syscall);
    checked::model(preemptions, move || {
        let queue = || Queue { bytes: RefCell::default(), sent: AtomicU64::new(0), read: RefCell::default() };
        KERNEL.set(Some(Rc::new(Kernel { queues: [queue(), queue()], dead: AtomicU32::new(0) })));
        body();
        KERNEL.set(None);
    });
}

/// Thread `me`, below 32, is killed here and now.
pub fn die(me: u32) {
    kernel().expect("in a model").dead.fetch_or(1 << me, Release);
}

impl Queue {
    /// Bytes that have arrived and were not read, and whether the end has arrived.
    fn arrived(&self) -> (usize, bool) {
        let sent = self.sent.load(Acquire);
        ((sent & (FIN - 1)) as usize - *self.read.borrow(), sent & FIN != 0)
    }

    fn send(&self, bytes: &[u8]) -> Answer {
        if self.sent.fetch_add(bytes.len() as u64, Release) & FIN != 0 {
            return Err(Errno(libc::EPIPE));
        }
        self.bytes.borrow_mut().extend(bytes);
        Ok(bytes.len())
    }

    fn receive(&self, mut put: impl FnMut(usize, u8), most: usize, flags: i32) -> Answer {
        let (there, ended) = self.arrived();
        let n = there.min(most);
        match (there, ended) {
            (0, true) => return Ok(0),
            (0, false) => return Err(Errno(libc::EAGAIN)),
            _ => {}
        }
        let from = *self.read.borrow();
        self.bytes.borrow()[from..from + n].iter().enumerate().for_each(|(at, &byte)| put(at, byte));
        if flags & libc::MSG_PEEK == 0 {
            *self.read.borrow_mut() += n;
        }
        Ok(n)
    }
}

/// The answer to a system call of a model, if it is a call that a model makes.
///
/// # Safety
/// As of the system call.
unsafe fn syscall(number: libc::c_long, args: [usize; 6]) -> Option<Answer> {
    let kernel = kernel()?;
    let done = Some(Ok(0));
    match number {
        libc::SYS_sched_yield | libc::SYS_nanosleep | libc::SYS_futex => {
            checked::give_way();
            return done;
        }
        libc::SYS_rt_sigprocmask | libc::SYS_rt_sigaction => return done,
        libc::SYS_tkill => {
            let dead = kernel.dead.load(Acquire) & 1 << args[0] != 0;
            return Some(if dead { Err(Errno(libc::ESRCH)) } else { Ok(0) });
        }
        libc::SYS_openat => return Some(Err(Errno(libc::ENOENT))),
        libc::SYS_ppoll => {
            let at = args[0] as *mut libc::pollfd;
            if at.is_null() {
                checked::give_way();
                return done;
            }
            // SAFETY: one pollfd.
            kernel.poll(unsafe { &mut *at });
            return done;
        }
        _ => {}
    }
    // SAFETY: passed on to the caller.
    unsafe { socket_call(&kernel, number, args) }
}

/// The answer to a call on one of the two sockets, if it is a call that a model makes.
///
/// # Safety
/// As of the system call.
unsafe fn socket_call(kernel: &Kernel, number: libc::c_long, args: [usize; 6]) -> Option<Answer> {
    let fd = args[0] as i32 - FD;
    if !(0..2).contains(&fd) {
        return None;
    }
    let side = (fd == 1) as usize;
    let (out, into) = (&kernel.queues[side], &kernel.queues[1 - side]);
    let done = Some(Ok(0));
    // SAFETY: the caller vouches for what the arguments point to.
    unsafe {
        match number {
            libc::SYS_sendto => Some(out.send(core::slice::from_raw_parts(args[1] as *const u8, args[2]))),
            libc::SYS_recvfrom => {
                let to = args[1] as *mut u8;
                let put = |at, byte| {
                    if !to.is_null() {
                        to.add(at).write(byte)
                    }
                };
                Some(into.receive(put, args[2], args[3] as i32))
            }
            libc::SYS_recvmsg => {
                let message = &*(args[1] as *const libc::msghdr);
                let buffers = core::slice::from_raw_parts(message.msg_iov, message.msg_iovlen);
                let places: Vec<_> = buffers
                    .iter()
                    .flat_map(|it| (0..it.iov_len.min(64)).map(|at| it.iov_base.cast::<u8>().add(at)))
                    .collect();
                Some(into.receive(|at, byte| places[at].write(byte), places.len(), args[2] as i32))
            }
            libc::SYS_shutdown => {
                out.sent.fetch_or(FIN, Release);
                done
            }
            libc::SYS_ioctl => {
                let to = args[2] as *mut i32;
                to.write(if args[1] == libc::FIONREAD as usize { into.arrived().0 as i32 } else { 0 });
                done
            }
            libc::SYS_getsockopt => {
                let (name, to) = (args[2] as i32, args[3] as *mut u8);
                match (args[1] as i32, name) {
                    (libc::IPPROTO_TCP, libc::TCP_INFO) => {
                        let (there, ended) = into.arrived();
                        let sent = out.bytes.borrow().len() as u64;
                        let closed = out.sent.load(Relaxed) & FIN != 0;
                        let info = to.cast::<u64>();
                        to.write(match (ended, closed) {
                            (false, false) => ESTABLISHED,
                            (true, false) => CLOSE_WAIT,
                            (false, true) => FIN_WAIT2,
                            (true, true) => LAST_ACK,
                        });
                        info.add(15).write(sent);
                        info.add(16).write((*into.read.borrow() + there) as u64 + u64::from(ended));
                        info.add(25).write(sent);
                    }
                    (libc::SOL_SOCKET, libc::SO_MEMINFO) => to.add(12).cast::<u32>().write_unaligned(1 << 20),
                    _ => {}
                }
                done
            }
            libc::SYS_setsockopt => done,
            _ => None,
        }
    }
}
