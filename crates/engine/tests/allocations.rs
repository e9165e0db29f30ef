//! In the steady state nothing is allocated, whichever scheduler runs the layers: the allocator itself counts.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};
use underpass_engine::layer::{Layer, Outbox};
use underpass_engine::network::Inactive;
use underpass_engine::pipeline::pipeline;
use underpass_engine::service::{Cep, Indication, Peer, Request, Time};
use underpass_engine::stack::{self, Stack};
use underpass_engine::threads;
use underpass_engine::transport::Config;
use underpass_engine::wire::llc::Mac;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::loopback::Loopback;

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

const LAYERS: usize = 3;
/// Parts until all that grows with use has grown.
const WARM: u64 = 20_000;
const MEASURED: u64 = 50_000;

/// Sends for ever, or takes what comes.
struct User {
    arena: Arena,
    free: Vec<Buffer>,
    to: Option<Peer>,
    connection: Option<(Cep, usize)>,
    sends: bool,
    received: Arc<AtomicU64>,
}

impl Layer for User {
    fn request(&mut self, _: Request, _: Time, _: &mut Outbox) {}

    fn indication(&mut self, indication: Indication, _: Time, out: &mut Outbox) {
        match indication {
            Indication::Connect { cep, .. } => out.down(Request::Accept { cep, user_data: Vec::new() }),
            Indication::Confirm { cep, most, .. } => self.connection = Some((cep, most as usize)),
            Indication::Data { buffer, .. } => {
                self.received.fetch_add(1, SeqCst);
                out.down(Request::Return { buffer });
            }
            Indication::Complete { buffer, .. } => self.free.push(buffer),
            Indication::Stalled { .. } | Indication::Resumed { .. } => {}
            other => panic!("{other:?}"),
        }
    }

    fn settle(&mut self, _: Time, out: &mut Outbox) {
        let Some((cep, most)) = self.connection.filter(|_| self.sends) else { return };
        while let Some(mut buffer) = self.free.pop() {
            self.arena.fill(&mut buffer, most);
            out.down(Request::Data { cep, buffer, end: true });
        }
    }

    fn due(&self) -> Option<Time> {
        self.to.map(|_| Time(0))
    }

    fn expire(&mut self, _: Time, out: &mut Outbox) {
        if let Some(to) = self.to.take() {
            out.down(Request::Connect { tag: 1, to, details: Box::default() });
        }
    }
}

/// One end: its link, and its layers as threads have them.
type End = (Loopback, Vec<Vec<Box<dyn Layer>>>);

/// Both ends, and how many parts have arrived.
fn ends() -> ([End; 2], Arc<AtomicU64>) {
    let (arena, mut all) = Arena::new(Geometry { frames: 1024, frame_size: 2304, headroom: 128 });
    let received = Arc::<AtomicU64>::default();
    let address = |of: usize| Mac([2, 0, 0, 0, 0, of as u8]);
    let mut own = 0;
    let ends = Loopback::passing(&arena, 2304).map(|link| {
        let mut network = Inactive::new(arena.clone(), address(own));
        let to = network.peer(address(1 - own));
        let mut groups: Vec<Vec<Box<dyn Layer>>> = vec![vec![Box::new(network)]];
        for level in 0..LAYERS {
            let pool = all.split_off(all.len() - 64);
            let config = stack::config(Config::default(), level, LAYERS);
            groups.push(stack::transport(config, level, &arena, pool, Time(0)));
        }
        let sends = own == 0;
        let (free, to) = (all.split_off(all.len() - 200), sends.then_some(to));
        let (arena, received) = (arena.clone(), Arc::clone(&received));
        groups[LAYERS].push(Box::new(User { arena, free, to, connection: None, sends, received }));
        own += 1;
        (link, groups)
    });
    (ends, received)
}

/// Runs `step` until so many more parts have arrived; how many allocations there were.
fn until(received: &AtomicU64, parts: u64, mut step: impl FnMut()) -> u64 {
    let (begin, before) = (Instant::now(), ALLOCATIONS.load(SeqCst));
    let goal = received.load(SeqCst) + parts;
    while received.load(SeqCst) < goal {
        step();
        assert!(begin.elapsed() < Duration::from_secs(60), "{} of {goal} parts", received.load(SeqCst));
    }
    ALLOCATIONS.load(SeqCst) - before
}

/// One test, since the count is of all threads.
#[test]
fn nothing_is_allocated_once_a_connection_is_warm() {
    let begin = Instant::now();
    let clock = move || Time(begin.elapsed().as_nanos() as u64);

    let (ends, received) = ends();
    let mut stacks = ends.map(|(link, groups)| Stack::new(link, groups.into_iter().flatten().collect()));
    let mut step = || {
        for stack in &mut stacks {
            stack.poll(clock());
        }
    };
    until(&received, WARM, &mut step);
    assert_eq!(until(&received, MEASURED, &mut step), 0, "in line");

    let (ends, received) = self::ends();
    let workers = ends.into_iter().flat_map(|(link, groups)| pipeline(Box::new(link), groups, 256).0).collect();
    let running = threads::start(workers, &threads::processors().unwrap(), clock).unwrap();
    let nap = || thread::sleep(Duration::from_millis(1));
    until(&received, WARM, nap);
    assert_eq!(until(&received, MEASURED, nap), 0, "{}", running.placement());
    running.stop();
}
