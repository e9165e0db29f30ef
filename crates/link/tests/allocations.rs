//! In the steady state a link allocates nothing. AF_XDP makes a system call for a batch of packets that it sends and
//! none for those that it receives, the link over UDP sockets one for many either way: the allocator counts, the link
//! does, and the kernel ends a thread that makes another call.
#![allow(unsafe_code, reason = "an allocator that counts")]

use seccompiler::{SeccompAction, SeccompFilter, apply_filter};
use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::VecDeque;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::{Duration, Instant};
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::bounce::{Bounce, Copying};
use underpass_link::driver::Driver;
use underpass_link::error::OpenError;
use underpass_link::ethernet::Ethernet;
use underpass_link::ip::{Header, Template};
use underpass_link::rig::{Cable, INTERFACE, Namespace};
use underpass_link::udp::{self, Udp};
use underpass_link::xdp::{Config, Xdp};

/// Allocations of all threads since the beginning.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

struct Counting;

// SAFETY: all is the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: as for this one.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as for this one.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, SeqCst);
        // SAFETY: as for this one.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const GEOMETRY: Geometry = Geometry { frames: 1024, frame_size: 2048, headroom: 128 };
const BATCH: usize = 64;
/// Batches until all that grows with use has grown, and the bounce buffer has made its choice; and those that are
/// measured.
const WARM: u64 = 200;
const MEASURED: u64 = 500;

/// LLC to all, CLNP, and nothing in particular.
const FRAME: [u8; 60] = {
    let mut frame = [0xff; 60];
    (frame[12], frame[13], frame[14], frame[15], frame[16], frame[17]) = (0, 46, 0xfe, 0xfe, 0x03, 0x00);
    frame
};

fn open(namespace: &Namespace) -> Result<(Arena, Vec<Buffer>, Xdp), OpenError> {
    thread::scope(|scope| {
        let opened = scope.spawn(|| {
            namespace.enter().expect("the namespace can be entered");
            let (arena, free) = Arena::new(GEOMETRY);
            let link = Xdp::open(INTERFACE, &arena, &Config::default())?;
            Ok((arena, free, link))
        });
        opened.join().expect("it does not panic")
    })
}

/// One after the other, since allocations of all threads count.
#[test]
fn nothing_is_allocated_and_a_call_serves_a_batch() {
    over_sockets();
    over_a_cable();
    past_the_kernel();
}

/// Datagrams past the kernel take a call for each batch, and now and then one to look at what the kernel has.
fn past_the_kernel() {
    let cable = match Cable::new(1500) {
        Ok(cable) => cable,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let open = |at: usize| {
        thread::scope(|scope| {
            let opened = scope.spawn(|| {
                cable.ends[at].enter().expect("the namespace can be entered");
                let (arena, free) = Arena::new(GEOMETRY);
                let local = format!("10.9.0.{}:700", at + 1).parse().expect("an address");
                let link = Ethernet::open(Driver::Xdp, INTERFACE, local, &arena, &Config::default())?;
                Ok::<_, OpenError>((arena, free, link))
            });
            opened.join().expect("it does not panic")
        })
    };
    let ((arena, mut free, mut from), (_, room, mut to)) = match (open(0), open(1)) {
        (Ok(from), Ok(to)) => (from, to),
        (Err(error), _) | (_, Err(error)) => return println!("SKIPPED: {error}"),
    };
    room.into_iter().take(768).for_each(|buffer| to.fill(buffer));
    let header = Header { source: from.local(), destination: to.local(), class: 2 };
    let template = Template::new(header).expect("addresses of one version");
    let (mut out, mut come) = (VecDeque::with_capacity(1024), Vec::with_capacity(1024));
    let mut send = |from: &mut Ethernet, free: &mut Vec<Buffer>, packets: usize| {
        for mut buffer in free.drain(free.len() - packets..) {
            arena.fill(&mut buffer, 1000);
            template.write(&mut arena.octets_mut(&mut buffer)[..template.size()], 1000 - template.size());
            out.push_back(buffer);
        }
        from.transmit(&mut out);
        from.complete(free);
    };
    // Until the neighbour is known.
    let begin = Instant::now();
    while from.sides().direct.sent == 0 {
        send(&mut from, &mut free, 1);
        to.receive(&mut come, BATCH);
        come.drain(..).for_each(|buffer| to.fill(buffer));
        assert!(begin.elapsed() < Duration::from_secs(20), "nothing goes past the kernel");
    }
    let before = from.sides();
    thread::scope(|scope| {
        let (from, to) = (&mut from, &mut to);
        let steady = scope.spawn(move || {
            let mut batch = || {
                send(from, &mut free, BATCH);
                receive_all(to, &mut come);
            };
            (0..WARM).for_each(|_| batch());
            allow_alone(&[libc::SYS_sendto, libc::SYS_recvmmsg, libc::SYS_recvmsg, libc::SYS_recvfrom]);
            let before = ALLOCATIONS.load(SeqCst);
            (0..MEASURED).for_each(|_| batch());
            assert_eq!(ALLOCATIONS.load(SeqCst) - before, 0, "something was allocated");
        });
        steady.join().expect("it does not panic");
    });
    let (calls, packets) = (from.sides().direct.wakeups - before.direct.wakeups, (WARM + MEASURED) * BATCH as u64);
    assert!(from.sides().direct.sent - before.direct.sent == packets, "{:?}", from.sides());
    assert!(calls * 16 <= packets, "{calls} system calls for {packets} packets");
}

/// The link over UDP sockets makes a call for many packets either way.
fn over_sockets() {
    let open = || {
        let (arena, free) = Arena::new(GEOMETRY);
        let link = Udp::open("127.0.0.1:0".parse().expect("an address"), &arena, &udp::Config::default());
        (arena, free, link.expect("every user may open it"))
    };
    let ((arena, mut free, mut from), (_, room, mut to)) = (open(), open());
    room.into_iter().take(512).for_each(|buffer| to.fill(buffer));
    let header = Header { source: from.local(), destination: to.local(), class: 2 };
    let template = Template::new(header).expect("addresses of one version");
    thread::scope(|scope| {
        let (from, to) = (&mut from, &mut to);
        let steady = scope.spawn(move || {
            let (mut out, mut come) = (VecDeque::with_capacity(1024), Vec::with_capacity(1024));
            let mut batch = || {
                for mut buffer in free.drain(free.len() - BATCH..) {
                    arena.fill(&mut buffer, 1000);
                    let data = 1000 - template.size();
                    template.write(&mut arena.octets_mut(&mut buffer)[..template.size()], data);
                    out.push_back(buffer);
                }
                from.transmit(&mut out);
                receive_all(to, &mut come);
                from.complete(&mut free);
            };
            (0..WARM).for_each(|_| batch());
            allow_alone(&[libc::SYS_sendmmsg, libc::SYS_recvmmsg]);
            let before = ALLOCATIONS.load(SeqCst);
            (0..MEASURED).for_each(|_| batch());
            assert_eq!(ALLOCATIONS.load(SeqCst) - before, 0, "something was allocated");
        });
        steady.join().expect("it does not panic");
    });
    let (calls, packets) = (from.counters().wakeups, (WARM + MEASURED) * BATCH as u64);
    assert!(calls * 16 <= packets, "{calls} system calls for {packets} packets");
}

fn over_a_cable() {
    let cable = match Cable::new(1500) {
        Ok(cable) => cable,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let opened = || Ok::<_, OpenError>([open(&cable.ends[0])?, open(&cable.ends[1])?]);
    let [(arena, mut free, link), (_, room, mut to)] = match opened() {
        Ok(opened) => opened,
        Err(error) => return println!("SKIPPED: {error}"),
    };
    let mut from = Bounce::new(link, &arena, free.split_off(512), Copying::Adaptive, &FRAME);
    room.into_iter().take(512).for_each(|buffer| to.fill(buffer));
    thread::scope(|scope| {
        let (from, to) = (&mut from, &mut to);
        let steady = scope.spawn(move || {
            let (mut out, mut come) = (VecDeque::with_capacity(1024), Vec::with_capacity(1024));
            let mut batches = |count| (0..count).for_each(|_| batch(&arena, &mut free, from, to, &mut out, &mut come));
            batches(WARM);
            allow_alone(&[libc::SYS_sendto]);
            let before = ALLOCATIONS.load(SeqCst);
            batches(MEASURED);
            assert_eq!(ALLOCATIONS.load(SeqCst) - before, 0, "something was allocated");
        });
        steady.join().expect("it does not panic");
    });
    let (wakeups, packets) = (from.counters().wakeups, (WARM + MEASURED) * BATCH as u64);
    assert!(wakeups * 16 <= packets, "{wakeups} system calls for {packets} packets");
}

/// From here on this thread may make these system calls, and those that it needs to end, or to look at the clock where
/// that takes one. Any other is the process's last.
fn allow_alone(these: &[libc::c_long]) {
    let ends = [libc::SYS_munmap, libc::SYS_madvise, libc::SYS_futex, libc::SYS_exit, libc::SYS_exit_group];
    let calls = [libc::SYS_clock_gettime, libc::SYS_rt_sigprocmask, libc::SYS_sigaltstack]
        .into_iter()
        .chain(ends)
        .chain(these.iter().copied());
    let arch = std::env::consts::ARCH.try_into().expect("an architecture that has seccomp filters");
    let rules = calls.map(|call| (call, Vec::new())).collect();
    let filter = SeccompFilter::new(rules, SeccompAction::KillProcess, SeccompAction::Allow, arch).expect("a filter");
    let program: seccompiler::BpfProgram = filter.try_into().expect("a program");
    apply_filter(&program).expect("who is root may");
}

/// Sends a batch, half of its packets in two pieces, and receives it.
fn batch(
    arena: &Arena,
    free: &mut Vec<Buffer>,
    from: &mut Bounce<Xdp>,
    to: &mut Xdp,
    out: &mut VecDeque<Buffer>,
    come: &mut Vec<Buffer>,
) {
    for packet in 0..BATCH {
        let (first, second) = FRAME.split_at(if packet % 2 == 0 { 30 } else { FRAME.len() });
        for (octets, more) in [(first, !second.is_empty()), (second, false)] {
            if !octets.is_empty() {
                let mut buffer = free.pop().expect("buffers come back");
                arena.fill(&mut buffer, octets.len());
                arena.octets_mut(&mut buffer).copy_from_slice(octets);
                buffer.go_on(more);
                out.push_back(buffer);
            }
        }
    }
    from.transmit(out);
    receive_all(to, come);
    from.complete(free);
}

/// Receives a batch.
fn receive_all(to: &mut impl Link, come: &mut Vec<Buffer>) {
    let (mut received, begin) = (0, Instant::now());
    while received < BATCH {
        received += to.receive(come, BATCH);
        come.drain(..).for_each(|buffer| to.fill(buffer));
        assert!(begin.elapsed() < Duration::from_secs(20), "frames do not come");
    }
}
