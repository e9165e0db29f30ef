//! Two programs on a real TCP connection, and two carriers over UDP sockets between them.
#![allow(unsafe_code, reason = "lays ends and buffers out as the library has them")]

use super::*;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use underpass_link::arena::Geometry;
use underpass_link::udp;
use underpass_segment::channel::{Pool, Shape, Side};
use underpass_segment::end::{End, Stage};
use underpass_segment::kernel;
use underpass_segment::raw::Errno;
use underpass_segment::switch::{Port, Waiting};
use underpass_segment::vector::Cursor;

const GEOMETRY: Geometry = Geometry { frames: 640, frame_size: 2048, headroom: 128 };
const SHAPE: Shape = Shape { ring_bytes: 1 << 16, slots: 1 };

/// A carrier at an address of its own.
fn carrier() -> (Carrier, SocketAddr) {
    let (arena, free) = Arena::new(GEOMETRY);
    let link = Udp::open(SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0), &arena, &udp::Config::default()).unwrap();
    let local = link.local();
    (Carrier::over(link, arena, free, 64, 256), local)
}

/// What wakes the programs, and the carriers.
static BELLS: [OnceLock<UnixDatagram>; 3] = [const { OnceLock::new() }; 3];
const CARRIERS: usize = 2;

fn ring(number: usize) {
    // Its queue may be full of bells.
    let _ = BELLS[number].get().map(|it| it.send(&[0]));
}

fn sleep_on(number: usize, fd: Option<i32>, milliseconds: i32) {
    let bell = BELLS[number].get().unwrap();
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut both = [poll(bell.as_raw_fd()), poll(fd.unwrap_or(-1))];
    // SAFETY: two entries.
    unsafe { libc::poll(both.as_mut_ptr(), 2, milliseconds) };
    while both[0].revents != 0 && bell.recv(&mut [0]).is_ok() {}
}

static WAITING: Waiting = Waiting {
    keep_socket: |_| {},
    recv: |port, to, len, flags, _| {
        sleep_on(port.token as usize, Some(port.fd), 10_000);
        // SAFETY: passed on to the caller.
        match unsafe { kernel::recv(port.fd, to, len, flags | libc::MSG_DONTWAIT) } {
            // The bell has rung.
            Err(Errno(libc::EAGAIN)) => Ok(1),
            answer => answer,
        }
    },
    call: |_, call| call(),
    give_back_everywhere: || true,
    looks: |_| false,
    ring: |_| ring(CARRIERS),
    refused: |_| {},
};

/// The end of a program, and its pool.
struct Program {
    end: &'static End,
    socket: TcpStream,
    pool: Pool,
}

struct Sent(Port<'static>);

// SAFETY: the pool stays attached, and the end is never freed; both are made for several threads.
unsafe impl Send for Sent {}

impl Program {
    fn new(socket: TcpStream) -> Program {
        // SAFETY: zeroed memory is an unused end.
        let end: &End = Box::leak(unsafe { Box::new_zeroed().assume_init() });
        let pool = Pool::create(SHAPE).unwrap();
        pool.slot(0, Side::Maker).unwrap().prepare([1, 2]);
        Program { end, socket, pool }
    }

    fn name(&self) -> Name {
        Name { local: self.socket.local_addr().unwrap(), remote: self.socket.peer_addr().unwrap() }
    }

    fn far(&self) -> Far {
        Far::new(self.pool.slot(0, Side::Joiner).unwrap())
    }

    /// The program is given its channel.
    fn join(&self, number: u32, key: [u64; 2]) -> Sent {
        self.end.remote.begin(key, 1);
        self.end.advance(Stage::Joined);
        let port = Port {
            end: self.end,
            channel: self.pool.slot(0, Side::Maker).unwrap(),
            fd: self.socket.as_raw_fd(),
            keeps_socket: false,
            me: 1 + number,
            token: number,
            spin_us: 0,
            doze_us: 0,
            waiting: &WAITING,
        };
        assert!(port.become_ready());
        Sent(port)
    }
}

/// Sends and receives all of these octets, which blocks.
fn talk(port: &mut Port<'static>, sends: bool, octets: &mut [u8]) {
    let mut done = 0;
    while done < octets.len() {
        let rest = &mut octets[done..];
        let vector = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        // SAFETY: one buffer.
        let cursor = unsafe { Cursor::new(&vector, 1) };
        let fd = port.fd;
        let answer = match sends {
            true => port.send(cursor, 0, |sent| kernel::send(fd, &rest[sent..])),
            false => port.receive(cursor, 0),
        };
        match answer {
            Ok(n @ 1..) => done += n,
            Err(Errno(libc::EAGAIN)) => std::thread::yield_now(),
            other => panic!("{other:?}"),
        }
    }
}

fn octet(n: u64) -> u8 {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

/// What a program asks and is answered, round after round: octets there and back.
fn play(port: Sent, asks: bool, rounds: u64, done: &AtomicU64) {
    let Sent(mut port) = port;
    for round in 0..rounds {
        let len = 1 + round * 7919 % if round % 7 == 0 { 60_000 } else { 300 };
        let mut octets: Vec<u8> = (0..len).map(|at| if asks { octet(at + round) } else { 0 }).collect();
        talk(&mut port, asks, &mut octets);
        if asks {
            octets.fill(0);
        }
        talk(&mut port, !asks, &mut octets);
        assert!(!asks || (0..len).all(|at| octets[at as usize] == octet(at + round)), "round {round}");
        done.fetch_add(1, Relaxed);
    }
}

/// The programs are met by the carriers, talk by them, and go on by the kernel when the carriers lose the stream.
#[test]
fn programs_talk_by_carriers_and_go_on_without() {
    const ROUNDS: u64 = 2000;
    for bell in &BELLS {
        let path = std::env::temp_dir().join(format!("underpass-{bell:p}-{}", std::process::id()));
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        bell.set(socket).unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let programs = [client, listener.accept().unwrap().0].map(Program::new);
    let ((one, its), (other, others)) = (carrier(), carrier());
    let (mut carriers, began) = ([one, other], Instant::now());
    let now = || Time(began.elapsed().as_nanos() as u64);
    assert!(carriers[0].offer(programs[0].name(), others, programs[0].far(), [3, 4], now()));
    assert!(carriers[1].offer(programs[1].name(), its, programs[1].far(), [5, 6], now()));
    let mut keys = [None; 2];
    while keys.contains(&None) {
        assert!(began.elapsed() < Duration::from_secs(60));
        for (carrier, key) in carriers.iter_mut().zip(&mut keys) {
            carrier.poll(now());
            while let Some(Event::Met(_, its)) = carrier.event() {
                *key = Some(its);
            }
        }
    }
    assert_eq!(keys[0], keys[1]);
    let done = &AtomicU64::new(0);
    let ports = [0, 1].map(|at| programs[at].join(at as u32, keys[at].unwrap()));
    let [asks, answers] = ports;
    let mut lost = 0;
    std::thread::scope(|scope| {
        let asking = scope.spawn(move || play(asks, true, ROUNDS, done));
        scope.spawn(move || play(answers, false, ROUNDS, &AtomicU64::new(0)));
        let mut last = (0, Instant::now());
        while !asking.is_finished() {
            if done.load(Relaxed) != last.0 {
                last = (done.load(Relaxed), Instant::now());
            }
            assert!(last.1.elapsed() < Duration::from_secs(60), "round {}", last.0);
            if last.0 > ROUNDS / 2 && lost == 0 {
                let cep = *carriers[0].streams.keys().next().unwrap();
                carriers[0].stack.request(Request::Disconnect { cep, reason: Reason::NORMAL }, now());
                carriers[0].lose(cep);
            }
            let mut any = false;
            for (number, carrier) in carriers.iter_mut().enumerate() {
                any |= carrier.poll(now());
                while let Some(event) = carrier.event() {
                    lost += usize::from(matches!(event, Event::Lost(..)));
                    ring(number);
                }
            }
            if !any {
                carriers.iter().for_each(Carrier::raise_flags);
                sleep_on(CARRIERS, None, 1);
            }
        }
    });
    let fast = programs.each_ref().map(|it| it.end.sending.fast_bytes.load(underpass_segment::sync::Relaxed));
    println!("{:?}, octets by the carriers: {fast:?}", began.elapsed());
    assert!(lost == 2 && fast.iter().all(|it| *it > 1_000_000), "{lost} lost");
}
