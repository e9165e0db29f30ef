//! The ring against a queue, hostile headers, short sources, handlers' sends and killed writers.

use super::sender::{ALIGNED, LARGEST_SPAN, SMALLEST_SPAN};
use super::*;
use crate::sync::AtomicPtr;
use crate::vector::Cursor;
use std::collections::VecDeque;

/// A ring of its own, with the words that each side keeps.
struct Bench {
    memory: Vec<u64>,
    tail: AtomicU64,
    seen_head: AtomicU64,
    hole: [AtomicU64; 2],
    behind: AtomicU64,
    head: AtomicU64,
    place: Place,
}

impl Bench {
    fn new(capacity: usize) -> Bench {
        let zero = || AtomicU64::new(0);
        Bench {
            memory: vec![0; capacity / 8],
            tail: zero(),
            seen_head: zero(),
            hole: [zero(), zero()],
            behind: zero(),
            head: zero(),
            place: Place { head: 0, consumed: 0 },
        }
    }

    fn ring(&mut self) -> Ring {
        let capacity = self.memory.len() as u64 * 8;
        // SAFETY: the vector is 8-byte aligned, as long as said, and outlives the ring in each test.
        unsafe { Ring::new(self.memory.as_mut_ptr().cast(), capacity) }
    }

    fn sender(&self, ring: Ring) -> Sender<'_> {
        let Bench { tail, seen_head, hole, behind, head, .. } = self;
        Sender { ring, tail, seen_head, hole, behind, head, in_turn: true }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<usize, Fault> {
        let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: one buffer, only read.
        let mut from = unsafe { Cursor::new(&vector, 1) };
        let ring = self.ring();
        let sender = self.sender(ring);
        let mut sent = 0;
        while from.left() > 0 {
            match sender.push(&mut from)? {
                Push::Took(n) => sent += n,
                Push::Full(_) => break,
            }
        }
        Ok(sent)
    }

    fn receive(&mut self, most: usize) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0u8; most];
        let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: most };
        // SAFETY: one buffer, writable.
        let mut into = unsafe { Cursor::new(&vector, 1) };
        let ring = self.ring();
        let (place, n) = copy_out(&ring, self.place, &mut into)?;
        if n > 0 {
            self.place = Place::unpack(place.pack());
            self.head.store(place.head, Release);
        }
        bytes.truncate(n);
        Ok(bytes)
    }
}

/// How often or how much a test does: less in Miri (`make miri`), where each step takes a thousand times as long.
const fn rounds(all: usize, in_miri: usize) -> usize {
    if cfg!(miri) { in_miri } else { all }
}

/// A generator that needs no crate: xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

/// Where the data of each published record begins, with its length.
fn data_in(ring: &Ring, mut position: u64) -> Vec<(u64, usize)> {
    let mut found = Vec::new();
    loop {
        let record = ring.record(position).unwrap();
        match record {
            Record::Empty => return found,
            Record::Data(len) => found.push((ring.offset(position) + HEADER, len)),
            _ => {}
        }
        position = ring.behind(position, record);
    }
}

#[test]
fn the_bytes_of_larger_records_begin_a_line() {
    let mut bench = Bench::new(65536);
    let sizes = [1, 64, 3, 1000, 1024, 7, 63, 5000, 20_000, 256];
    sizes.iter().for_each(|&size| assert_eq!(bench.send(&vec![1; size]), Ok(size)));
    let found = data_in(&bench.ring(), 0);
    assert_eq!(found.iter().map(|it| it.1).collect::<Vec<_>>(), sizes);
    for (at, len) in found {
        assert!(len < ALIGNED as usize || at % LINE == 0, "{len} bytes at {at}");
    }
}

#[test]
fn an_empty_ring_goes_back_to_its_start() {
    for size in [1_usize, 100, 1024, 5000] {
        let mut bench = Bench::new(1 << 20);
        let span = (size * 16).next_power_of_two().clamp(SMALLEST_SPAN as usize, LARGEST_SPAN as usize);
        for _ in 0..rounds(1000, 40) {
            assert_eq!(bench.send(&vec![1; size]), Ok(size));
            let (at, len) = data_in(&bench.ring(), bench.place.head)[0];
            assert!(len == size && at as usize + size <= span, "{len} bytes at {at}");
            assert_eq!(bench.receive(size).map(|got| got.len()), Ok(size));
        }
    }
}

#[test]
fn what_goes_in_comes_out() {
    for (seed, capacity) in [(1, 4096), (2, 4096), (3, 65536), (4, 1 << 20)] {
        let mut random = Random(seed);
        let mut bench = Bench::new(capacity);
        let mut model = VecDeque::new();
        let mut next = 0u8;
        for _ in 0..rounds(20_000, 15) {
            let most = [1, 8, 64, 700, 5000, 40_000][random.below(rounds(6, 5))];
            if random.below(2) == 0 {
                let bytes: Vec<u8> = (0..1 + random.below(most)).map(|i| next.wrapping_add(i as u8)).collect();
                let sent = bench.send(&bytes).unwrap();
                next = next.wrapping_add(sent as u8);
                model.extend(&bytes[..sent]);
                assert!(sent > 0 || !model.is_empty(), "an empty ring has room");
            } else {
                let got = bench.receive(1 + random.below(most)).unwrap();
                assert!(!got.is_empty() || model.is_empty(), "what was published is there");
                assert!(got.iter().copied().eq(model.drain(..got.len())));
            }
            let (ring, place) = (bench.ring(), bench.place);
            assert_eq!(unread(&ring, place).unwrap(), model.len() as u64);
        }
    }
}

/// A source that says that it has more than it then has.
struct Boaster(usize, Vec<u8>);

impl Source for Boaster {
    fn left(&self) -> usize {
        self.0
    }

    unsafe fn fill(&mut self, to: *mut u8, len: usize) -> usize {
        let n = self.1.len().min(len);
        for (at, byte) in self.1.drain(..n).enumerate() {
            // SAFETY: at < len.
            unsafe { to.add(at).write(byte) };
        }
        self.0 -= n;
        n
    }
}

#[test]
fn a_short_source_leaves_no_trace() {
    let mut random = Random(7);
    let mut bench = Bench::new(4096);
    for round in 0..rounds(20_000, 60) {
        let bytes: Vec<u8> = (0..random.below(400)).map(|i| (round + i) as u8).collect();
        let mut boaster = Boaster(bytes.len() + 1 + random.below(600), bytes.clone());
        let ring = bench.ring();
        let sender = bench.sender(ring);
        let mut sent = 0;
        while let Ok(Push::Took(n @ 1..)) = sender.push(&mut boaster) {
            sent += n;
        }
        assert_eq!(bench.receive(4096), Ok(bytes[..sent].to_vec()));
        assert!(sent == bytes.len() || sent > 0);
    }
}

#[test]
fn small_messages_stay_in_one_page() {
    let mut bench = Bench::new(rounds(1 << 20, 1 << 14));
    for _ in 0..rounds(10_000, 200) {
        assert_eq!(bench.send(&[7; 100]), Ok(100));
        assert_eq!(bench.receive(100), Ok(vec![7; 100]));
    }
    assert!(bench.memory[1024..].iter().all(|&word| word == 0), "two pages are enough");
}

#[test]
fn a_mark_finds_room_behind_a_full_ring() {
    let mut bench = Bench::new(4096);
    while bench.send(&[1; 300]).unwrap() == 300 {}
    while bench.send(&[1]).unwrap() == 1 {}
    let ring = bench.ring();
    let sender = bench.sender(ring);
    sender.mark(Record::Down(5));
    assert!(sender.used(true).unwrap() <= ring.capacity());
    while !bench.receive(1000).unwrap().is_empty() {}
    let mut position = bench.place.head;
    while let Ok(skip @ (Record::Skip | Record::Pad(_))) = ring.record(position) {
        position = ring.behind(position, skip);
    }
    assert_eq!(ring.record(position), Ok(Record::Down(5)));
}

#[test]
fn a_hole_of_a_killed_writer_is_passed_over() {
    let mut bench = Bench::new(4096);
    assert_eq!(bench.send(b"before"), Ok(6));
    // Killed after the reservation, before the record was published.
    let from = bench.tail.load(Relaxed);
    bench.hole[0].store(from, Relaxed);
    bench.hole[1].store(step(from, 64), Relaxed);
    bench.tail.store(step(from, 64), Relaxed);
    bench.memory[(from + 64) as usize / 8] = 0;
    let ring = bench.ring();
    bench.sender(ring).close_hole();
    assert_eq!(bench.send(b"after"), Ok(5));
    assert_eq!(bench.receive(100), Ok(b"beforeafter".to_vec()));
}

/// A source in the middle of which a signal handler sends, as `nested` does.
struct Interrupted<'a>(&'a mut dyn FnMut(), usize, u8);

impl Source for Interrupted<'_> {
    fn left(&self) -> usize {
        self.1
    }

    unsafe fn fill(&mut self, to: *mut u8, len: usize) -> usize {
        (self.0)();
        // SAFETY: the caller vouches for `len` bytes.
        unsafe { to.write_bytes(self.2, len) };
        self.1 -= len;
        len
    }
}

#[test]
fn a_handlers_sends_stand_behind_the_one_below() {
    let mut random = Random(11);
    let mut bench = Bench::new(1 << 14);
    for round in 0..rounds(20_000, 100) {
        let (outer, count) = (1 + random.below(100), random.below(3));
        let mut expected = vec![round as u8; outer];
        let ring = bench.ring();
        let sender = bench.sender(ring);
        let mut inner = vec![];
        let mut nested = || {
            for at in 0..count {
                let bytes = vec![!(round as u8) ^ at as u8; 1 + (round * 7 + at * 31) % 900];
                let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
                // SAFETY: one buffer, only read.
                let mut from = unsafe { Cursor::new(&vector, 1) };
                while from.left() > 0 {
                    assert!(matches!(sender.push(&mut from), Ok(Push::Took(1..))));
                }
                inner.extend(bytes);
            }
        };
        let mut from = Interrupted(&mut nested, outer, round as u8);
        assert_eq!(sender.push(&mut from), Ok(Push::Took(outer)));
        expected.extend(inner);
        assert_eq!(bench.receive(1 << 14), Ok(expected), "round {round}");
    }
}

/// Fails if a sender is told to wait for too little room: it would find the ring full again, and again.
#[test]
#[cfg_attr(miri, ignore = "more than 200,000 sends, for the sake of numbers alone")]
fn a_full_ring_has_use_for_as_much_room_as_it_asks_for() {
    let mut full = 0;
    for want in (1..600).chain([1000, 1500, 4000, 9000]) {
        for capacity in [4096, 65536] {
            let mut bench = Bench::new(capacity);
            bench.send(&vec![1; want % 61 + 1]).unwrap();
            for _ in 0..200 {
                let bytes = vec![2; want];
                let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: want };
                let ring = bench.ring();
                let push = |sender: Sender<'_>| {
                    // SAFETY: one buffer, only read.
                    let mut from = unsafe { Cursor::new(&vector, 1) };
                    sender.push(&mut from).unwrap()
                };
                // For the end of a lap, perhaps, and for what it asks behind that.
                let mut waits = 0;
                while let Push::Full(enough) = push(bench.sender(ring)) {
                    (full, waits) = (full + 1, waits + 1);
                    assert!(waits <= 3, "{want} bytes, {enough} free");
                    while bench.sender(ring).free(true).unwrap() < enough {
                        assert_ne!(bench.receive(17).unwrap(), [], "{want} bytes need {enough} free");
                    }
                }
            }
        }
    }
    assert!(full > 10_000);
}

/// Fails if a killed process's hole is closed without a look at what its handler had put behind it.
#[test]
fn a_handlers_record_outlives_the_process_below() {
    for whole in [true, false] {
        let mut bench = Bench::new(4096);
        // What the lap before has left.
        bench.memory.fill(u64::MAX);
        bench.memory[0] = 0;
        assert_eq!(bench.send(b"before"), Ok(6));
        let from = bench.tail.load(Relaxed);
        let to = step(from, 64);
        bench.hole[0].store(from, Relaxed);
        bench.hole[1].store(to, Relaxed);
        bench.tail.store(to, Relaxed);
        if whole {
            assert_eq!(bench.send(b"handler"), Ok(7));
            bench.memory[to as usize / 8] = 0;
        }
        let ring = bench.ring();
        bench.sender(ring).close_hole();
        assert_eq!(bench.send(b"after"), Ok(5));
        let expected: &[u8] = if whole { b"beforehandlerafter" } else { b"beforeafter" };
        assert_eq!(bench.receive(100), Ok(expected.to_vec()));
    }
}

/// What a reader copies lies in the ring, whatever stands in the header. Fails if `Ring::record` leaves out
/// `HEADER + round8(len) <= lap`, `len <= MAX_RECORD as u64`, `len <= lap` or `lap >= 16`.
#[test]
#[cfg_attr(miri, ignore = "looks at 200,000 headers, for the sake of numbers alone")]
fn no_record_reaches_beyond_the_ring() {
    const CAPACITY: u64 = 65536;
    let mut bench = Bench::new(CAPACITY as usize);
    let lengths = |lap: u64| {
        let near = [0, lap, CAPACITY, MAX_RECORD as u64, u64::from(u32::MAX), (1 << 56) - 64].into_iter();
        near.flat_map(|at| at.saturating_sub(24)..at + 24).map(|it| it & ((1 << 56) - 1))
    };
    for at in (0..CAPACITY).step_by(8).filter(|at| at % 1024 == 0 || *at > CAPACITY - 2048) {
        let lap = CAPACITY - at;
        for word in lengths(lap).flat_map(|len| (0..8).map(move |kind| header(kind, len))) {
            bench.memory[at as usize / 8] = word;
            let ring = bench.ring();
            let inside = match ring.record(at) {
                Ok(Record::Data(len)) => (1..=MAX_RECORD).contains(&len) && HEADER + len as u64 <= lap,
                Ok(Record::Pad(len)) => len >= HEADER && len <= lap,
                Ok(Record::Up(_) | Record::Down(_)) => 2 * HEADER <= lap,
                Ok(Record::Empty) => word == 0,
                Ok(Record::Skip) | Err(Fault) => true,
            };
            assert!(inside, "{word:#x} at {at}: {:?}", ring.record(at));
        }
        bench.memory[at as usize / 8] = 0;
    }
}

#[test]
fn lies_are_found_out() {
    let mut random = Random(9);
    for round in 0..rounds(20_000, 100) {
        let mut bench = Bench::new(4096);
        bench.send(&vec![3; 1 + random.below(3000)]).unwrap();
        for _ in 0..1 + random.below(4) {
            let at = random.below(bench.memory.len());
            let kind = (random.below(8) as u64) << 56;
            bench.memory[at] = if round % 2 == 0 { kind | random.below(9000) as u64 } else { random.0 };
        }
        // Whatever it finds, it stays inside the ring and comes to an end.
        for _ in 0..50 {
            match bench.receive(1 + random.below(500)) {
                Ok(bytes) if !bytes.is_empty() => {}
                _ => break,
            }
        }
        let (ring, place) = (bench.ring(), bench.place);
        let _ = unread(&ring, place);
        // A head that moves back, or beyond what was sent.
        bench.head.store(random.0 & POSITION_MASK, Relaxed);
        let _ = bench.send(&[1; 100]);
    }
    let mut bench = Bench::new(4096);
    bench.send(&[1; 100]).unwrap();
    bench.head.store(step(bench.tail.load(Relaxed), 8), Relaxed);
    let ring = bench.ring();
    let sender = bench.sender(ring);
    assert_eq!(sender.used(true), Err(Fault));
}

/// Two threads, one at each end. Miri finds an access of one that no ordering keeps apart from an access of the other:
/// it fails there if `Sender::put` publishes by Relaxed, or `Sender::used` or `Ring::record` loads by Relaxed.
#[test]
fn bytes_go_from_thread_to_thread() {
    const CAPACITY: usize = 4096;
    let all: Vec<u8> = (0..rounds(1000, 6) * CAPACITY).map(|at| (at % 251) as u8).collect();
    let mut bench = Bench::new(CAPACITY);
    let base = AtomicPtr::new(bench.memory.as_mut_ptr().cast());
    // SAFETY: the vector is 8-byte aligned, as long as that, and outlives both threads.
    let ring = || unsafe { Ring::new(base.load(Relaxed), CAPACITY as u64) };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let (mut random, mut sent) = (Random(5), 0);
            while sent < all.len() {
                let bytes = &all[sent..(sent + 1 + random.below(700)).min(all.len())];
                let vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
                // SAFETY: one buffer, only read.
                let mut from = unsafe { Cursor::new(&vector, 1) };
                match bench.sender(ring()).push(&mut from).unwrap() {
                    Push::Took(n) => sent += n,
                    Push::Full(_) => std::thread::yield_now(),
                }
            }
        });
        let (mut random, mut place, mut got) = (Random(6), bench.place, 0);
        while got < all.len() {
            let mut bytes = vec![0; 1 + random.below(900)];
            let vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
            // SAFETY: one buffer, writable.
            let mut into = unsafe { Cursor::new(&vector, 1) };
            let (next, n) = copy_out(&ring(), place, &mut into).unwrap();
            place = next;
            bench.head.store(place.head, Release);
            assert!(bytes[..n] == all[got..got + n]);
            got += n;
            if n == 0 {
                std::thread::yield_now();
            }
        }
    });
}

/// While both sides work, another thread overwrites the ring and the head: whatever lies there, each call comes back,
/// and with no more bytes than it was given room for. The ring lies between words that nobody may touch.
#[test]
#[cfg_attr(miri, ignore = "the liar writes to bytes while they are copied, which Rust defines for no copy")]
fn lies_at_any_time_harm_nobody() {
    const CAPACITY: usize = 4096;
    const GUARD: usize = 512;
    let most: u64 = std::env::var("UNDERPASS_TEST_LIES").map_or(100_000, |words| words.parse().unwrap());
    let mut memory = vec![0x5a5a_5a5a_5a5a_5a5a_u64; CAPACITY / 8 + 2 * GUARD];
    memory[GUARD..GUARD + CAPACITY / 8].fill(0);
    // SAFETY: within the vector, which outlives the ring and is looked at through it alone until the threads have
    // ended.
    let base = unsafe { memory.as_mut_ptr().add(GUARD) };
    let words = base as usize;
    let bench = Bench::new(CAPACITY);
    let lies = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(0x1234_5678);
            while lies.load(Relaxed) < most {
                let at = random.below(CAPACITY / 8);
                let length = [0, 1, 8, CAPACITY, MAX_RECORD + 1, random.below(1 << 16)][random.below(6)] as u64;
                let value = match random.below(4) {
                    0 => 0,
                    1 => u64::MAX >> random.below(64),
                    _ => header(random.below(7) as u64, length),
                };
                if random.below(16) == 0 {
                    bench.head.store([0, u64::MAX, value, 8 * at as u64][random.below(4)], Relaxed);
                }
                // SAFETY: an aligned word of the ring.
                unsafe { &*(words as *const AtomicU64).add(at) }.store(value, Relaxed);
                lies.fetch_add(1, Relaxed);
            }
        });
        let mut random = Random(0x8765_4321);
        let mut place = Place { head: 0, consumed: 0 };
        // SAFETY: so many bytes, aligned; shared with the other thread as atomics and by copies.
        let ring = unsafe { Ring::new(words as *mut u8, CAPACITY as u64) };
        let mut bytes = vec![0u8; 3000];
        while lies.load(Relaxed) < most {
            let one = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: 1 + random.below(3000) };
            // SAFETY: one writable buffer, used by one cursor at a time.
            let cursor = || unsafe { Cursor::new(&one, 1) };
            let sender = bench.sender(ring);
            match sender.push(&mut cursor()) {
                Ok(Push::Took(n)) => assert!(n <= one.iov_len),
                Ok(Push::Full(_)) => {}
                // The connection would end here: the next one begins with a clean channel.
                Err(Fault) => {
                    let tail = sender.tail.load(Relaxed);
                    sender.seen_head.store(tail, Relaxed);
                    sender.head.store(tail, Relaxed);
                }
            }
            let _ = unread(&ring, place);
            match copy_out(&ring, place, &mut cursor()) {
                Ok((next, n)) => {
                    assert!(n <= one.iov_len && next.head < 1 << POSITION_BITS && next.consumed < MAX_RECORD);
                    place = next;
                }
                Err(Fault) => place = Place { head: 8 * random.below(CAPACITY / 8) as u64, consumed: 0 },
            }
        }
    });
    let guards = memory[..GUARD].iter().chain(&memory[GUARD + CAPACITY / 8..]);
    assert!(guards.copied().all(|word| word == 0x5a5a_5a5a_5a5a_5a5a));
}
