//! Two ends on a real socket, and daemons that carry what goes by the rings, in random order, and are lost at any time.
#![allow(unsafe_code, reason = "names buffers of the tests' own")]

use crate::channel::{Channel, Pool, Shape, Side};
use crate::end::{End, Stage};
use crate::far::{Far, Read, Said};
use crate::raw::{Answer, Errno};
use crate::reason::Reason;
use crate::switch::lies::{Sent, WAITING, shared};
use crate::switch::{AGAIN, BROKEN, Port, Waiting};
use crate::sync::Relaxed;
use crate::vector::Cursor;
use std::collections::VecDeque;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixDatagram;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;

const SHAPE: Shape = Shape { ring_bytes: 1 << 14, slots: 1 };

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// What one daemon tells the other.
#[derive(Debug)]
enum Message {
    Ready,
    Up(u64),
    Octets(Vec<u8>),
    Plain,
    End,
    Read(Read),
}

/// A host: a program's end, and the daemon's.
struct Host {
    end: &'static End,
    socket: TcpStream,
    pool: Pool,
    far: Option<Far>,
    /// What the other daemon has told this one.
    told: VecDeque<Message>,
    /// What this one has told: that the program is ready, and how far it has read.
    tells: (bool, Read),
    sent: u64,
    received: u64,
    /// The program was killed; and the daemon has told so.
    killed: bool,
    end_told: bool,
}

fn octet(n: u64) -> u8 {
    (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8
}

impl Host {
    fn channel(&self, side: Side) -> Channel {
        self.pool.slot(0, side).unwrap()
    }

    fn port(&self) -> Port<'static> {
        Port {
            end: self.end,
            channel: self.channel(Side::Maker),
            fd: self.socket.as_raw_fd(),
            keeps_socket: false,
            me: 1,
            token: 0,
            spin_us: 0,
            doze_us: 0,
            waiting: &WAITING,
        }
    }

    fn send(&mut self, len: u64) -> Answer {
        let octets: Vec<u8> = (self.sent..self.sent + len).map(octet).collect();
        let vector = libc::iovec { iov_base: octets.as_ptr().cast_mut().cast(), iov_len: octets.len() };
        let port = self.port();
        // SAFETY: one buffer.
        let from = unsafe { Cursor::new(&vector, 1) };
        let plain = |sent: usize| crate::kernel::send(port.fd, &octets[sent..]);
        let answer = port.send(from, libc::MSG_DONTWAIT, plain);
        if let Ok(n) = answer {
            self.sent += n as u64;
        }
        answer
    }

    fn receive(&mut self, len: usize, peek: bool) -> Answer {
        let mut octets = vec![0u8; len];
        let vector = libc::iovec { iov_base: octets.as_mut_ptr().cast(), iov_len: octets.len() };
        // SAFETY: one buffer.
        let into = unsafe { Cursor::new(&vector, 1) };
        let flags = libc::MSG_DONTWAIT | if peek { libc::MSG_PEEK } else { 0 };
        let answer = self.port().receive(into, flags);
        if let Ok(n) = answer {
            for (at, &it) in octets[..n].iter().enumerate() {
                assert_eq!(
                    it,
                    octet(self.received + at as u64),
                    "octet {} of a receive of {n}",
                    self.received + at as u64
                );
            }
            if !peek {
                self.received += n as u64;
            }
        }
        answer
    }

    /// Daemons carry the stream anew, by a channel of which nothing was used.
    fn begin_in_new_channel(&self, key: [u64; 2]) {
        self.channel(Side::Maker).prepare([1, 2]);
        let (sending, reading) = (&self.end.sending, &self.end.reading);
        let [first, last] = &sending.hole;
        for word in [&sending.tail, &sending.seen_head, first, last, &sending.behind, &sending.mark, &reading.place] {
            word.store(0, Relaxed);
        }
        reading.armed.store(0, Relaxed);
        self.end.remote.begin(key, 1);
    }

    /// The daemon looks at the channel. What it tells the other one.
    fn look(&mut self, len: usize) -> Option<Message> {
        let far = self.far.as_mut()?;
        if !self.tells.0 && far.is_ready() {
            self.tells.0 = true;
            return Some(Message::Ready);
        }
        let mut octets = vec![0; len];
        match far.take(&mut octets).unwrap() {
            Some(Said::Up(number)) => return Some(Message::Up(number)),
            Some(Said::Octets(n)) => {
                octets.truncate(n);
                return Some(Message::Octets(octets));
            }
            Some(Said::Plain) => return Some(Message::Plain),
            None => {}
        }
        let read = far.progress().unwrap();
        if read != self.tells.1 {
            self.tells.1 = read;
            return Some(Message::Read(read));
        }
        if self.killed && !self.end_told {
            self.end_told = true;
            return Some(Message::End);
        }
        None
    }

    /// The daemon hears one message.
    fn hear(&mut self) {
        let Some(far) = self.far.as_mut() else { return };
        match self.told.pop_front() {
            Some(Message::Ready) => far.other_is_ready(),
            Some(Message::Up(number)) => far.put_up(number),
            Some(Message::Octets(mut octets)) => {
                let n = far.put(&octets).unwrap();
                if n < octets.len() {
                    octets.drain(..n);
                    self.told.push_front(Message::Octets(octets));
                }
            }
            Some(Message::Plain) | None => {}
            Some(Message::End) => far.put_end(),
            Some(Message::Read(read)) => far.has_read(read),
        }
    }

    /// Whether this end has come to where the other one has gone down, and both have lost their daemons.
    fn is_done_with_daemons(&self, other: &Host) -> bool {
        let (remote, others) = (&self.end.remote, &other.end.remote);
        let is_plain = !self.end.sending.is_fast() && !self.end.reading.is_fast() && remote.awaited.load(Relaxed) == 0;
        is_plain && remote.entered.load(Relaxed) == others.went_up.load(Relaxed) && self.far.is_none() && !self.killed
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: no port of it is used any more.
        unsafe { self.pool.detach() };
    }
}

struct World {
    random: Random,
    hosts: [Host; 2],
    meetings: u64,
    lossy: bool,
}

impl World {
    fn new(seed: u64) -> World {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let hosts = [client, listener.accept().unwrap().0].map(|socket| {
            let (end, pool) = (shared::<End>(), Pool::create(SHAPE).unwrap());
            end.remote.begin([1, 1], 1);
            let (told, tells) = (VecDeque::new(), Default::default());
            let host = Host {
                end,
                socket,
                pool,
                far: None,
                told,
                tells,
                sent: 0,
                received: 0,
                killed: false,
                end_told: false,
            };
            host.channel(Side::Maker).prepare([1, 2]);
            end.advance(Stage::Joined);
            end.nonblocking.store(1, Relaxed);
            host
        });
        let mut it =
            World { random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1), hosts, meetings: 0, lossy: false };
        it.meet();
        it.hosts.iter().for_each(|host| assert!(host.port().become_ready()));
        it
    }

    fn meet(&mut self) {
        self.meetings += 1;
        let key = [self.random.0, self.meetings];
        for host in &mut self.hosts {
            host.begin_in_new_channel(key);
            host.tells = Default::default();
            host.told.clear();
            host.far = Some(Far::new(host.channel(Side::Joiner)));
            if host.end.read_gate.is_shut() {
                host.channel(Side::Maker).incoming().flags.ready.store(1, Relaxed);
            }
        }
    }

    fn lose(&mut self) {
        self.lossy = true;
        for host in &mut self.hosts {
            host.told.clear();
            if let Some(far) = host.far.take() {
                far.lose();
            }
        }
    }

    fn step(&mut self, with_losses: bool) {
        let it = self.random.below(2) as usize;
        let len = 1 + self.random.below([1, 10, 5000][self.random.0 as usize % 3]);
        let chance = self.random.below(100);
        let [mine, other] = match &mut self.hosts {
            [a, b] if it == 0 => [a, b],
            [a, b] => [b, a],
        };
        match chance {
            0..=24 if !mine.killed => match mine.send(len) {
                Ok(_) | Err(Errno(libc::EAGAIN)) => {}
                Err(error) => assert!(other.killed, "{error:?}"),
            },
            25..=49 if !mine.killed => _ = mine.receive(len as usize, chance == 25),
            50..=74 => other.told.extend(mine.look(len as usize)),
            75..=95 => mine.hear(),
            96 if with_losses && self.random.below(3) == 0 => self.lose(),
            97 | 98 if mine.is_done_with_daemons(other) && other.is_done_with_daemons(mine) => self.meet(),
            99 if !mine.killed && mine.end.sending.is_fast() && self.random.below(4) == 0 => {
                mine.port().go_down_for_now(Reason::Met, false);
            }
            _ => {}
        }
    }
}

/// What has come of many worlds.
#[derive(Debug, Default)]
struct Outcome {
    meetings: u64,
    octets: u64,
    fast: u64,
    killed: u64,
    resets: u64,
}

impl World {
    /// The programs end their directions, and receive all. `kills`: a program may have been killed before.
    fn end(mut self, outcome: &mut Outcome) {
        for host in self.hosts.iter().filter(|host| !host.killed) {
            host.port().end_sending();
            host.socket.shutdown(Shutdown::Write).unwrap();
        }
        for (mine, other) in [(0, 1), (1, 0)] {
            if !self.hosts[mine].killed {
                self.receive_all(mine, other, outcome);
            }
            outcome.fast += self.hosts[other].end.sending.fast_bytes.load(Relaxed);
            outcome.octets += self.hosts[other].sent;
            outcome.killed += u64::from(self.hosts[other].killed);
        }
        outcome.meetings += self.meetings;
    }

    fn receive_all(&mut self, mine: usize, other: usize, outcome: &mut Outcome) {
        for _ in 0..1_000_000 {
            let [sent, received] = [self.hosts[other].sent, self.hosts[mine].received];
            match self.hosts[mine].receive(5000, false) {
                Ok(0) => return assert_eq!(received, sent, "the stream ends too early"),
                Err(BROKEN) => {
                    outcome.resets += 1;
                    return assert!(self.hosts[other].killed && self.lossy && received < sent, "a reset");
                }
                Ok(_) | Err(Errno(libc::EAGAIN)) => {}
                Err(error) => panic!("{error:?}"),
            }
            let message = self.hosts[other].look(5000);
            self.hosts[mine].told.extend(message);
            self.hosts[mine].hear();
            let message = self.hosts[mine].look(5000);
            self.hosts[other].told.extend(message);
            self.hosts[other].hear();
        }
        panic!("a hang");
    }

    /// A program is killed: its kernel ends the stream.
    fn kill(&mut self) {
        let host = &mut self.hosts[self.random.below(2) as usize];
        host.killed = true;
        host.socket.shutdown(Shutdown::Write).unwrap();
    }
}

/// Runs worlds in which daemons are lost, and programs killed, or not.
fn run(worlds: u64, kills: bool) -> Outcome {
    let named = |name| std::env::var(name).ok().map(|it| it.parse::<u64>().unwrap());
    let (first, worlds) =
        (named("UNDERPASS_TEST_WORLD").unwrap_or(1), named("UNDERPASS_TEST_WORLDS").unwrap_or(worlds));
    let mut outcome = Outcome::default();
    for seed in first..first + worlds {
        let mut world = World::new(seed);
        let steps = 500 + world.random.below(6000);
        (0..steps).for_each(|_| world.step(!seed.is_multiple_of(3)));
        if kills {
            world.kill();
            if seed.is_multiple_of(2) {
                world.lose();
            }
            let more = world.random.below(100);
            (0..more).for_each(|_| world.step(!seed.is_multiple_of(3)));
        }
        world.end(&mut outcome);
    }
    println!("{worlds} worlds: {outcome:?}");
    outcome
}

/// All that a program sends arrives, once and in order, whatever becomes of the daemons.
#[test]
fn nothing_is_lost_with_the_daemons() {
    let Outcome { octets, fast, resets, .. } = run(40, false);
    assert!(fast * 8 > octets && resets == 0);
}

/// What a killed program has sent arrives while the daemons live. If they are lost as well, its other end is told.
#[test]
fn the_end_of_a_killed_program_is_told_as_it_is() {
    let Outcome { octets, fast, killed, .. } = run(40, true);
    assert!(fast * 8 > octets && killed > 0);
}

/// What wakes the program of each host, and the daemons.
static BELLS: [OnceLock<UnixDatagram>; 3] = [const { OnceLock::new() }; 3];
const DAEMONS: usize = 2;

fn ring(number: usize) {
    // Its queue may be full of bells.
    let _ = BELLS[number].get().map(|it| it.send(&[0]));
}

/// Sleeps until the bell rings, or something is to be read at `fd`.
fn sleep_on(number: usize, fd: Option<i32>, milliseconds: i32) {
    let bell = BELLS[number].get().unwrap();
    let poll = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    let mut both = [poll(bell.as_raw_fd()), poll(fd.unwrap_or(-1))];
    // SAFETY: two entries.
    unsafe { libc::poll(both.as_mut_ptr(), 2, milliseconds) };
    while both[0].revents != 0 && bell.recv(&mut [0]).is_ok() {}
}

static SLEEPING: Waiting = Waiting {
    keep_socket: |_| {},
    recv: |port, to, len, flags, _| {
        sleep_on(port.token as usize, Some(port.fd), 5000);
        // SAFETY: passed on to the caller.
        match unsafe { crate::kernel::recv(port.fd, to, len, flags | libc::MSG_DONTWAIT) } {
            // The bell has rung.
            Err(AGAIN) => Ok(1),
            answer => answer,
        }
    },
    call: |_, call| call(),
    give_back_everywhere: || true,
    looks: |_| false,
    ring: |_| ring(DAEMONS),
    refused: |_| {},
};

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
            true => port.send(cursor, 0, |sent| crate::kernel::send(fd, &rest[sent..])),
            false => port.receive(cursor, 0),
        };
        match answer {
            Ok(n @ 1..) => done += n,
            Err(AGAIN) => std::thread::yield_now(),
            other => panic!("{other:?}"),
        }
    }
}

/// Both programs block in each receive. The daemon is lost in the middle.
#[test]
fn sleepers_are_woken_whatever_becomes_of_the_daemons() {
    const ROUNDS: u64 = 3000;
    // A thread that sleeps lets go of the process's tap.
    let _alone = crate::tap::tests::ALONE.lock();
    for bell in &BELLS {
        let path = std::env::temp_dir().join(format!("underpass-{:p}-{}", bell, std::process::id()));
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.connect(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        socket.set_nonblocking(true).unwrap();
        bell.set(socket).unwrap();
    }
    let mut world = World::new(77);
    let ports = [0, 1].map(|number| {
        world.hosts[number].end.nonblocking.store(0, Relaxed);
        Sent(Port { token: number as u32, waiting: &SLEEPING, me: 1 + number as u32, ..world.hosts[number].port() })
    });
    let [asks, answers] = ports;
    let rounds = &AtomicU64::new(0);
    std::thread::scope(|scope| {
        let asking = scope.spawn(move || {
            let (Sent(mut port), mut random) = ({ asks }, Random(7));
            for round in 0..ROUNDS {
                let len = 1 + random.below(if round % 7 == 0 { 40_000 } else { 300 });
                let mut octets: Vec<u8> = (0..len).map(|at| octet(at + round)).collect();
                talk(&mut port, true, &mut octets);
                octets.fill(0);
                talk(&mut port, false, &mut octets);
                assert!((0..len).all(|at| octets[at as usize] == octet(at + round)), "round {round}");
                rounds.store(round + 1, Relaxed);
            }
        });
        scope.spawn(move || {
            let (Sent(mut port), mut random) = ({ answers }, Random(7));
            for round in 0..ROUNDS {
                let len = 1 + random.below(if round % 7 == 0 { 40_000 } else { 300 });
                let mut octets = vec![0; len as usize];
                talk(&mut port, false, &mut octets);
                talk(&mut port, true, &mut octets);
            }
        });
        while !asking.is_finished() {
            if rounds.load(Relaxed) > ROUNDS / 2 && world.hosts[0].far.is_some() {
                world.lose();
                (0..2).for_each(ring);
            }
            if !world.carry() {
                world.hosts.iter().filter_map(|host| host.far.as_ref()).for_each(Far::raise_flag);
                if !world.carry() {
                    sleep_on(DAEMONS, None, 1);
                }
            }
        }
    });
    let fast = world.hosts.each_ref().map(|host| host.end.sending.fast_bytes.load(Relaxed));
    println!("octets by the rings: {fast:?}");
    assert!(fast.iter().all(|it| *it > 100_000));
}

impl World {
    /// The daemons carry what there is. Whether there was anything.
    fn carry(&mut self) -> bool {
        let mut any = false;
        for (mine, other) in [(0, 1), (1, 0)] {
            let message = self.hosts[mine].look(32 << 10);
            any |= message.is_some();
            self.hosts[other].told.extend(message);
            let before = self.hosts[other].told.len();
            self.hosts[other].hear();
            any |= self.hosts[other].told.len() < before;
            if self.hosts[other].far.as_ref().is_some_and(Far::takes_flag) {
                ring(other);
            }
        }
        any
    }
}
