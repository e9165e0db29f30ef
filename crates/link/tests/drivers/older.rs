//! Kernels that know no packets in several frames: of programs before Linux 5.18, of sockets before 6.6. By what word
//! one asks for them stands in memory, where no seccomp filter looks; this one asks a thread of the same process
//! (seccomp_unotify(2)).
#![allow(unsafe_code, reason = "system calls that nothing else makes")]

use super::support::{End, cable, ends, frame, inside};
use rustix::event::{PollFd, PollFlags, poll};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;
use std::sync::mpsc::channel;
use std::thread;
use underpass_link::Link;
use underpass_link::arena::{Arena, Geometry};
use underpass_link::rig::{Cable, INTERFACE, Namespace};
use underpass_link::xdp::{Config, Xdp};

const GEOMETRY: Geometry = Geometry { frames: 64, frame_size: 2048, headroom: 128 };
/// Octets of a packet that a frame has room for: the kernel keeps 256.
const ROOM: usize = 2048 - 128 - 256;

/// What the kernel does not know.
#[derive(Clone, Copy, Debug)]
enum Unknown {
    /// `BPF_F_XDP_HAS_FRAGS`.
    Programs,
    /// `XDP_USE_SG`.
    Sockets,
}

impl Unknown {
    /// Whether it is asked for.
    fn is_in(self, call: &libc::seccomp_data) -> bool {
        const PROG_LOAD: u64 = 5;
        const HAS_FRAGS: u32 = 1 << 5;
        const USE_SG: u32 = 1 << 4;
        match (self, i64::from(call.nr)) {
            (Unknown::Programs, libc::SYS_bpf) => call.args[0] == PROG_LOAD && word(call.args[1], 44) & HAS_FRAGS != 0,
            // A family, and flags, in half a word each.
            (Unknown::Sockets, libc::SYS_bind) => {
                let [a, b, c, d] = word(call.args[1], 0).to_ne_bytes();
                let [family, flags] = [[a, b], [c, d]].map(|it| u32::from(u16::from_ne_bytes(it)));
                family == libc::AF_XDP as u32 && flags & USE_SG != 0
            }
            _ => false,
        }
    }
}

/// A word of what an argument of a call points to.
fn word(argument: u64, offset: usize) -> u32 {
    // SAFETY: the thread that makes the call has longer memory there, and waits for an answer.
    unsafe { ptr::with_exposed_provenance::<u8>(argument as usize).add(offset).cast::<u32>().read_unaligned() }
}

/// From here on, this thread's calls of bpf(2) and bind(2) wait for an answer through the returned descriptor.
fn ask_first() -> io::Result<OwnedFd> {
    const LOAD_NUMBER: u16 = 0x20;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let make = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut code = [
        make(LOAD_NUMBER, 0, 0, 0),
        make(JUMP_EQUAL, 2, 0, libc::SYS_bpf as u32),
        make(JUMP_EQUAL, 1, 0, libc::SYS_bind as u32),
        make(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        make(RETURN, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
    ];
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    let (mode, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: a program of this length, which outlives the call.
    match unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const program) } {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the kernel has just made it for us.
        descriptor => Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) }),
    }
}

/// Answers until no thread is left that asks: how many calls were refused.
fn answer(asked: &OwnedFd, unknown: Unknown) -> u32 {
    // `SECCOMP_IOCTL_NOTIF_RECV` and `SECCOMP_IOCTL_NOTIF_SEND`.
    const RECEIVE: libc::Ioctl = 0xc050_2100;
    const SEND: libc::Ioctl = 0xc018_2101;
    let mut refused = 0;
    loop {
        let mut events = [PollFd::new(asked, PollFlags::IN)];
        poll(&mut events, None).expect("it can be polled");
        if !events[0].revents().contains(PollFlags::IN) {
            return refused;
        }
        // SAFETY: all of it may be zero, and the kernel wants it so.
        let mut question: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the request writes one of these.
        if unsafe { libc::ioctl(asked.as_raw_fd(), RECEIVE, &raw mut question) } < 0 {
            // A signal has come first.
            continue;
        }
        let refuses = unknown.is_in(&question.data);
        refused += u32::from(refuses);
        let (error, flags) =
            if refuses { (-libc::EINVAL, 0) } else { (0, libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32) };
        let mut answer = libc::seccomp_notif_resp { id: question.id, val: 0, error, flags };
        // SAFETY: the request reads one of these. If it fails, the call was given up.
        let _ = unsafe { libc::ioctl(asked.as_raw_fd(), SEND, &raw mut answer) };
    }
}

/// Opens the interface of a namespace on such a kernel.
fn open(namespace: &Namespace, unknown: Unknown) -> End<Xdp> {
    let (arena, free) = Arena::new(GEOMETRY);
    let (asks, is_asked) = channel();
    let (link, refused) = thread::scope(|scope| {
        let arena = &arena;
        let opens = scope.spawn(move || {
            inside(namespace, || {
                asks.send(ask_first().expect("who is root may")).expect("somebody answers");
                Xdp::open(INTERFACE, arena, &Config::default())
            })
        });
        let refused = is_asked.recv().map(|asked| answer(&asked, unknown));
        (opens.join().expect("it does not panic").expect("it does without"), refused.expect("it has asked"))
    });
    assert!(refused > 0, "nobody has asked for what is unknown");
    End::new(arena, free, link)
}

fn both(cable: &Cable, unknown: Unknown) -> [End<Xdp>; 2] {
    let mut pair = cable.ends.each_ref().map(|end| open(end, unknown));
    pair[1].listen(32);
    assert!(pair.iter().all(|end| end.link.pieces() == 1));
    pair
}

#[test]
fn packets_go_in_a_frame_each_where_the_kernel_knows_no_more() {
    let (Some(short), Some(long)) = (cable(1500), cable(60_000)) else { return };
    for cable in [&short, &long] {
        match ends(cable, GEOMETRY, &Config::default()) {
            Some([end, _]) if end.link.pieces() > 1 => {}
            Some(_) => return println!("SKIPPED: this kernel has no packets in several frames (Linux 6.6)"),
            None => return,
        }
    }
    for (cable, unknown, mode, mtu) in [
        (&short, Unknown::Programs, "native XDP, copy", 1514),
        (&short, Unknown::Sockets, "native XDP, copy", 1514),
        // No device's driver shows a program the beginning of a packet.
        (&long, Unknown::Programs, "generic XDP, copy", ROOM),
        (&long, Unknown::Sockets, "native XDP, copy", ROOM),
    ] {
        let [mut from, mut to] = both(cable, unknown);
        assert_eq!((from.link.mode().as_str(), from.link.mtu()), (mode, mtu), "{unknown:?}");
        for number in 0..200 {
            let packet = frame(number, 21 + number as usize * 7);
            assert!(from.send(&packet, packet.len()), "buffers come back");
            assert_eq!(to.expect(), packet, "{number}, {unknown:?}");
        }
        assert!(from.send(&frame(200, 1000), 500) && from.send(&frame(201, 1000), 1000));
        assert_eq!(from.link.counters().refused, 1, "{unknown:?}");
        assert_eq!(to.expect(), frame(201, 1000), "what lies in two frames is refused, and nothing of it sent");
    }
}
