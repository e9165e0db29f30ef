//! The same input gives the same PDUs, and the same primitives between all layers, whichever scheduler runs them.

use crate::user::{Progress, User};
use crate::watch::{Eye, Watch};
use crate::wire::{End, Faults, Wire};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};
use underpass_engine::layer::Layer;
use underpass_engine::network::Inactive;
use underpass_engine::pipeline::{Worker, pipeline};
use underpass_engine::service::{Indication, Request, Time};
use underpass_engine::stack::{self, Stack};
use underpass_engine::threads;
use underpass_engine::transport::Config;
use underpass_engine::wire::llc::Mac;
use underpass_engine::wire::tpdu::{Format, Tpdu, separate};
use underpass_link::Link;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::loopback::Loopback;

const GEOMETRY: Geometry = Geometry { frames: 512, frame_size: 2304, headroom: 128 };
const US: u64 = 1000;

/// What passes between two layers, in words and octets.
type Log = Arc<Mutex<Vec<String>>>;

struct Scribe {
    arena: Arena,
    log: Log,
}

impl Scribe {
    fn note(&self, what: String, buffer: Option<&Buffer>) {
        let octets = buffer.map(|it| {
            self.arena.octets(it).iter().fold(7u64, |sum, &it| (sum ^ u64::from(it)).wrapping_mul(0x100_0000_01b3))
        });
        self.log.lock().unwrap().push(format!("{what} {octets:x?}"));
    }
}

impl Eye for Scribe {
    fn request(&mut self, request: &Request) {
        let buffer = match request {
            Request::Data { buffer, .. } | Request::Unitdata { buffer, .. } => Some(buffer),
            _ => None,
        };
        self.note(format!("{request:?}"), buffer);
    }

    fn indication(&mut self, indication: &Indication) {
        let buffer = match indication {
            Indication::Data { buffer, .. } | Indication::Unitdata { buffer, .. } => Some(buffer),
            _ => None,
        };
        self.note(format!("{indication:?}"), buffer);
    }
}

/// One end's layers in groups as workers have them: the network, then each transport, the uppermost with the user. A
/// log records what passes below each group.
struct Side {
    groups: Vec<Vec<Box<dyn Layer>>>,
    logs: Vec<Log>,
    progress: Arc<Progress>,
}

fn side(own: usize, layers: usize, parts: u32, arena: &Arena, all: &mut Vec<Buffer>, config: Config) -> Side {
    let address = |of: usize| Mac([2, 0, 0, 0, 0, of as u8]);
    let mut network = Inactive::new(arena.clone(), address(own));
    let to = network.peer(address(1 - own));
    let mut groups: Vec<Vec<Box<dyn Layer>>> = vec![vec![Box::new(network)]];
    for level in 0..layers {
        let pool = all.split_off(all.len() - 32);
        groups.push(stack::transport(stack::config(config, level, layers), level, arena, pool, Time(0)));
    }
    let free = all.split_off(all.len() - 60);
    let user = User::new(arena, free, parts, 1400, (own == 0).then_some(to), own as u64);
    let progress = user.progress();
    groups.last_mut().unwrap().push(Box::new(user));
    let mut logs = Vec::new();
    for group in &mut groups {
        let log = Log::default();
        group.insert(0, Box::new(Watch(Scribe { arena: arena.clone(), log: Arc::clone(&log) })));
        logs.push(log);
    }
    Side { groups, logs, progress }
}

/// A scheduler that runs the layers of one end in virtual time.
trait Runs {
    fn poll(&mut self, now: Time) -> bool;
    fn due(&self) -> Option<Time>;
}

impl Runs for Stack<End> {
    fn poll(&mut self, now: Time) -> bool {
        Stack::poll(self, now)
    }

    fn due(&self) -> Option<Time> {
        Stack::due(self)
    }
}

/// What a worker's thread is told to do.
#[derive(Clone, Copy)]
enum Turn {
    Poll,
    Rise,
    Expire,
    Fall,
}

/// A worker's thread.
struct Turns {
    tell: mpsc::Sender<(Turn, Time)>,
    /// Whether there was anything to do, whether timers may run out, and when something is due.
    answered: mpsc::Receiver<(bool, bool, Option<Time>)>,
    expires: bool,
    due: Option<Time>,
}

impl Turns {
    fn new(mut worker: Worker) -> Turns {
        let (tell, told) = mpsc::channel();
        let (answer, answered) = mpsc::channel();
        let due = worker.due();
        thread::spawn(move || {
            for (turn, now) in told {
                let (any, expires) = match turn {
                    Turn::Poll => worker.poll(now),
                    Turn::Rise => (worker.rise(now), true),
                    Turn::Expire => (worker.expire(now), true),
                    Turn::Fall => (worker.fall(now), true),
                };
                if answer.send((any, expires, worker.due())).is_err() {
                    return;
                }
            }
        });
        Turns { tell, answered, expires: true, due }
    }

    fn take(&mut self, turn: Turn, now: Time) -> bool {
        self.tell.send((turn, now)).unwrap();
        let any;
        (any, self.expires, self.due) = self.answered.recv().unwrap();
        any
    }
}

/// Workers in threads of their own that take turns, the lowest first.
struct InTurns(Vec<Turns>);

impl Runs for InTurns {
    fn poll(&mut self, now: Time) -> bool {
        let mut any = self.0.iter_mut().fold(false, |any, it| it.take(Turn::Poll, now) | any);
        if self.0.iter().all(|it| it.expires) {
            any |= self.0.iter_mut().fold(false, |any, it| it.take(Turn::Rise, now) | any);
            any |= self.0.iter_mut().fold(false, |any, it| it.take(Turn::Expire, now) | any);
        }
        loop {
            let rose = self.0.iter_mut().fold(false, |any, it| it.take(Turn::Rise, now) | any);
            let fell = self.0.iter_mut().rev().fold(false, |any, it| it.take(Turn::Fall, now) | any);
            if !rose && !fell {
                return any;
            }
            any = true;
        }
    }

    fn due(&self) -> Option<Time> {
        self.0.iter().filter_map(|it| it.due).min()
    }
}

/// All that passes between the layers of both ends.
fn script(seed: u64, layers: usize, threads: bool) -> Vec<Vec<String>> {
    const PARTS: u32 = 150;
    let faults = match seed % 4 {
        0 => Faults { delay: 20 * US, octet: 1, ..Faults::NONE },
        1 => Faults { lost: 20, delay: 20 * US, ..Faults::NONE },
        2 => Faults { late: 100, late_by: 400 * US, repeated: 30, delay: 5 * US, octet: 1, ..Faults::NONE },
        _ => Faults { changed: 20, lost: 5, delay: 50 * US, ..Faults::NONE },
    };
    let config = Config { credit: [64, 8][seed as usize / 4 % 2], ..Config::default() };
    let mut wire = Wire::new(seed, faults);
    let mut logs = Vec::new();
    let mut progress = Vec::new();
    let mut ends: Vec<Box<dyn Runs>> = (0..2)
        .map(|own| -> Box<dyn Runs> {
            let (arena, mut all) = Arena::new(GEOMETRY);
            let mut end = wire.end(own, arena.clone());
            all.split_off(all.len() - 200).into_iter().for_each(|buffer| end.fill(buffer));
            let side = side(own, layers, PARTS, &arena, &mut all, config);
            logs.extend(side.logs);
            progress.push(side.progress);
            if threads {
                let (workers, _) = pipeline(Box::new(end), side.groups, 1024);
                Box::new(InTurns(workers.into_iter().map(Turns::new).collect()))
            } else {
                Box::new(Stack::new(end, side.groups.into_iter().flatten().collect()))
            }
        })
        .collect();
    let mut now = Time(1);
    while progress.iter().any(|it| it.received.load(SeqCst) < PARTS || it.completed.load(SeqCst) < PARTS) {
        loop {
            let moved = ends.iter_mut().fold(false, |moved, it| it.poll(now) | moved);
            wire.send(now);
            if !moved {
                break;
            }
        }
        let next = [wire.due(), ends[0].due(), ends[1].due()].into_iter().flatten().min().expect("something is due");
        now = Time(next.0.max(now.0 + 1));
        assert!(now.0 < 60_000_000 * US, "a minute has passed: {progress:?}");
        wire.deliver(now);
    }
    logs.iter().map(|log| log.lock().unwrap().clone()).collect()
}

#[test]
fn the_same_pdus_and_primitives_in_line_and_by_threads() {
    for layers in 1..=3 {
        for seed in 0..8 {
            let (in_line, by_threads) = (script(seed, layers, false), script(seed, layers, true));
            assert!(in_line.iter().all(|it| it.len() > 300), "seed {seed}: much has passed");
            for (boundary, (one, other)) in in_line.iter().zip(&by_threads).enumerate() {
                let differs = one.iter().zip(other).position(|(one, other)| one != other);
                let at = differs.unwrap_or(one.len().min(other.len()));
                assert_eq!(
                    one.get(at),
                    other.get(at),
                    "{layers} layers, seed {seed}, boundary {boundary}, number {at}"
                );
            }
        }
    }
}

/// Logs the DTs that pass, as far as they do not depend on when what else comes.
struct DataOnly {
    arena: Arena,
    log: Log,
}

impl Eye for DataOnly {
    fn request(&mut self, request: &Request) {
        let Request::Unitdata { buffer, .. } = request else { return };
        // An AK may go ahead of it.
        for octets in separate(self.arena.octets(buffer)) {
            if let Ok((Tpdu::Dt(it), user_data)) = Tpdu::parse(octets, Format::Extended) {
                self.log.lock().unwrap().push(format!("{} {} {user_data:x?}", it.number, it.eot));
            }
        }
    }

    fn indication(&mut self, _: &Indication) {}
}

/// Both ends over a loopback link as they run in earnest, with so much room in the queues: the DTs of the uppermost
/// transport.
fn in_earnest(layers: usize, capacity: Option<usize>) -> Vec<String> {
    const PARTS: u32 = 3_000;
    let (arena, mut all) = Arena::new(GEOMETRY);
    // Nothing is lost, and nothing is to be sent twice because the machine is busy with something else.
    let mut config = Config { checksum: false, ..Config::default() };
    config.times.t1_least = 10_000_000 * US;
    config.times.t1 = 10_000_000 * US;
    let log = Log::default();
    let links = Loopback::passing(&arena, 2048);
    let mut sides = [0, 1].map(|own| side(own, layers, if own == 0 { PARTS } else { 0 }, &arena, &mut all, config));
    // Below the uppermost transport: what is watched already, and then the convergence below it, if any.
    let at = if layers == 1 { 1 } else { 2 };
    sides[0].groups[layers].insert(at, Box::new(Watch(DataOnly { arena: arena.clone(), log: Arc::clone(&log) })));
    let progress = sides.each_ref().map(|it| Arc::clone(&it.progress));
    let done = || progress[1].received.load(SeqCst) == PARTS && progress[0].completed.load(SeqCst) == PARTS;
    let begin = Instant::now();
    let clock = move || Time(begin.elapsed().as_nanos() as u64);
    let limit = Duration::from_secs(60);
    match capacity {
        None => {
            let mut stacks: Vec<_> = sides
                .into_iter()
                .zip(links)
                .map(|(side, link)| Stack::new(link, side.groups.into_iter().flatten().collect()))
                .collect();
            while !done() {
                for stack in &mut stacks {
                    stack.poll(clock());
                }
                assert!(begin.elapsed() < limit, "{progress:?}");
            }
        }
        Some(capacity) => {
            let both = sides.into_iter().zip(links);
            let workers = both.flat_map(|(side, link)| pipeline(Box::new(link), side.groups, capacity).0).collect();
            let running = threads::start(workers, &threads::processors().unwrap(), clock).unwrap();
            while !done() {
                thread::sleep(Duration::from_millis(1));
                assert!(begin.elapsed() < limit, "{progress:?}, {}", running.placement());
            }
            assert_eq!(running.stop().len(), 2 * (layers + 1));
        }
    }
    std::mem::take(&mut log.lock().unwrap())
}

#[test]
fn in_earnest_every_thread_at_its_own_pace() {
    for layers in 1..=3 {
        let in_line = in_earnest(layers, None);
        assert_eq!(in_line.len(), 3_000);
        // Queues that are always full, and queues that never are.
        for capacity in [2, 1024] {
            assert!(in_earnest(layers, Some(capacity)) == in_line, "{layers} layers, queues of {capacity}");
        }
    }
}
