//! Whatever is done to a ring, the reader finds what a queue of bytes and marks has: random lists of steps, which
//! shrink to the shortest list that fails (`PROPTEST_CASES=100000` tries more).

use super::sender::RESERVE;
use super::*;
use crate::vector::Cursor;
use proptest::prelude::*;
use proptest::test_runner::Config;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Send so many bytes, as far as there is room.
    Send(usize),
    /// Send so many bytes from a source that has so many fewer than it says.
    SendShort(usize, usize),
    /// Send so many bytes, with a signal handler in the middle that sends so many.
    SendInterrupted(usize, usize),
    /// The sender is killed in the middle of a record, after a handler has sent so many on top of it.
    Die(usize, usize),
    /// The sender is killed at another step of a record of so many bytes.
    DieAt(Moment, usize),
    /// Go down, or up again where the reader has passed the mark of going down.
    Switch,
    /// Receive at most so many bytes, into buffers of so many; or pass a mark.
    Receive(usize, usize),
    /// Look at so many bytes and leave them.
    Peek(usize),
    /// Pass so many bytes by (MSG_TRUNC).
    Discard(usize),
}

#[derive(Clone, Copy, Debug)]
enum Moment {
    /// Before room was reserved.
    Announced,
    /// Before the ring was ended behind the record: what lies there is from the lap before.
    Reserved,
    /// The record is out, but the sender still says that it is in the making.
    Published,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Item {
    Byte(u8),
    Mark(Record),
}

/// Bytes of the stream; `stop` is called when all but the last are written.
struct Bytes<'a> {
    says: usize,
    has: &'a [u8],
    midway: &'a mut dyn FnMut(),
}

impl Source for Bytes<'_> {
    fn left(&self) -> usize {
        self.says
    }

    unsafe fn fill(&mut self, to: *mut u8, len: usize) -> usize {
        let n = self.has.len().min(len);
        for (at, &byte) in self.has[..n].iter().enumerate() {
            if at == n / 2 {
                (self.midway)();
            }
            // SAFETY: at < len.
            unsafe { to.add(at).write(byte) };
        }
        self.has = &self.has[n..];
        self.says -= n;
        n
    }
}

/// A ring, what each side keeps, and the queue.
struct Bench {
    memory: Vec<u64>,
    tail: AtomicU64,
    seen_head: AtomicU64,
    hole: [AtomicU64; 2],
    behind: AtomicU64,
    head: AtomicU64,
    place: Place,
    in_turn: bool,
    fast: bool,
    queue: VecDeque<Item>,
    next: u8,
}

impl Bench {
    fn new(capacity: usize, start: u64, in_turn: bool) -> Bench {
        let at = || AtomicU64::new(start);
        let mut bench = Bench {
            // As if many laps had been written.
            memory: vec![header(DATA, 24); capacity / 8],
            tail: at(),
            seen_head: at(),
            hole: [at(), at()],
            behind: AtomicU64::new(0),
            head: at(),
            place: Place { head: start, consumed: 0 },
            in_turn,
            fast: true,
            queue: VecDeque::new(),
            next: 0,
        };
        bench.memory[start as usize % capacity / 8] = 0;
        bench
    }

    fn sender(&mut self) -> Sender<'_> {
        // SAFETY: the vector is aligned, as long as said, and outlives the sender.
        let ring = unsafe { Ring::new(self.memory.as_mut_ptr().cast(), self.memory.len() as u64 * 8) };
        let Bench { tail, seen_head, hole, behind, head, in_turn, .. } = self;
        Sender { ring, tail, seen_head, hole, behind, head, in_turn: *in_turn }
    }

    fn ring(&mut self) -> Ring {
        self.sender().ring
    }

    /// The next `n` bytes of the stream; none are sent yet.
    fn coming(&self, n: usize) -> Vec<u8> {
        (0..n).map(|at| self.next.wrapping_add((at % 251) as u8)).collect()
    }

    fn sent(&mut self, bytes: &[u8]) {
        self.next = self.next.wrapping_add(bytes.len() as u8).wrapping_add(3);
        self.queue.extend(bytes.iter().map(|&byte| Item::Byte(byte)));
    }

    fn send(&mut self, n: usize, short: usize, nested: usize, dies: bool) {
        if !self.fast || n == 0 {
            return;
        }
        let has = self.coming(n);
        let inner: Vec<u8> = (0..nested).map(|at| (at * 7 % 253) as u8).collect();
        let (mut taken, mut began, inner_taken) = (0, false, Cell::new(0));
        let sender = self.sender();
        let ended = catch_unwind(AssertUnwindSafe(|| {
            let mut midway = || {
                if began {
                    return;
                }
                began = true;
                let mut from = Bytes { says: inner.len(), has: &inner, midway: &mut || {} };
                while from.left() > 0 {
                    let Ok(Push::Took(n)) = sender.push(&mut from) else { break };
                    inner_taken.set(inner_taken.get() + n);
                }
                if dies {
                    resume_unwind(Box::new(()));
                }
            };
            let mut from = Bytes { says: n + short, has: &has, midway: &mut midway };
            while from.left() > 0 {
                match sender.push(&mut from).unwrap() {
                    Push::Took(0) => break,
                    Push::Took(n) => taken += n,
                    Push::Full(enough) => {
                        assert!(enough <= sender.ring.capacity() - RESERVE, "room that there never is: {enough}");
                        break;
                    }
                }
                // What a handler has sent stands behind the record that it interrupted.
                if inner_taken.get() > 0 {
                    break;
                }
            }
        }));
        if ended.is_err() {
            sender.close_hole();
            taken = 0;
        }
        let (has, inner) = (&has[..taken], &inner[..inner_taken.get()]);
        self.sent(has);
        self.sent(inner);
    }

    fn die(&mut self, moment: Moment, n: usize) {
        let (tail, size) = (self.tail.load(Relaxed), HEADER + round8(n as u64));
        let sender = self.sender();
        if size > sender.free(true).unwrap().min(sender.ring.lap(tail)) {
            return;
        }
        let next = step(tail, size);
        match moment {
            Moment::Announced | Moment::Reserved => {
                sender.hole[0].store(tail, Relaxed);
                sender.hole[1].store(next, Relaxed);
                if matches!(moment, Moment::Reserved) {
                    sender.tail.store(next, Relaxed);
                }
            }
            Moment::Published => sender.hole[1].store(tail, Relaxed),
        }
        sender.close_hole();
        assert_eq!(sender.hole[0].load(Relaxed), sender.hole[1].load(Relaxed));
    }

    fn switch(&mut self) {
        let unread_marks = self.queue.iter().any(|it| matches!(it, Item::Mark(_)));
        if !self.fast && unread_marks {
            return;
        }
        let mark = if self.fast { Record::Down(self.next.into()) } else { Record::Up(u64::MAX - u64::from(self.next)) };
        let sender = self.sender();
        sender.mark(mark);
        assert_eq!(sender.last(), Ok(mark));
        self.fast = !self.fast;
        self.queue.push_back(Item::Mark(mark));
    }

    /// Bytes before the next mark.
    fn readable(&self) -> usize {
        self.queue.iter().take_while(|it| matches!(it, Item::Byte(_))).count()
    }

    fn copy_out(&mut self, most: usize, pieces: usize) -> (Place, Vec<u8>) {
        let mut bytes = vec![0xee; most + 1];
        let buffers: Vec<libc::iovec> = bytes[..most]
            .chunks_mut(pieces.max(1))
            .map(|it| libc::iovec { iov_base: it.as_mut_ptr().cast(), iov_len: it.len() })
            .collect();
        // SAFETY: writable, and they do not overlap.
        let mut into = unsafe { Cursor::new(buffers.as_ptr(), buffers.len()) };
        let (place, n) = copy_out(&self.ring(), self.place, &mut into).unwrap();
        assert_eq!(n, self.readable().min(most), "all that is there, and no more");
        assert!(bytes[n..].iter().all(|&byte| byte == 0xee), "nothing is written behind what came");
        bytes.truncate(n);
        assert!(bytes.iter().eq(self.queue.iter().take(n).map(|it| match it {
            Item::Byte(byte) => byte,
            Item::Mark(_) => unreachable!(),
        })));
        (place, bytes)
    }

    fn commit(&mut self, place: Place) {
        assert_eq!(Place::unpack(place.pack()), place);
        self.place = place;
        self.head.store(place.head, Release);
    }

    fn receive(&mut self, most: usize, pieces: usize) {
        let (place, bytes) = self.copy_out(most, pieces);
        self.queue.drain(..bytes.len());
        self.commit(place);
        if bytes.len() < most
            && let Some(&Item::Mark(mark)) = self.queue.front()
        {
            let ring = self.ring();
            assert_eq!(ring.record(place.head), Ok(mark));
            self.commit(Place { head: ring.behind(place.head, mark), consumed: 0 });
            self.queue.pop_front();
        }
    }

    fn discard(&mut self, most: usize) {
        let (place, n) = copy_out(&self.ring(), self.place, &mut Cursor::discarding(most)).unwrap();
        assert_eq!(n, self.readable().min(most));
        self.queue.drain(..n);
        self.commit(place);
    }

    fn check(&mut self) {
        let place = self.place;
        let sender = self.sender();
        assert!(sender.used(true).unwrap() <= sender.ring.capacity());
        let ring = sender.ring;
        assert_eq!(unread(&ring, place), Ok(self.readable() as u64));
        assert!(self.queue.is_empty() || ring.published(place.head));
    }

    fn go(&mut self, it: Step) {
        match it {
            Step::Send(n) => self.send(n, 0, 0, false),
            Step::SendShort(n, short) => self.send(n, short, 0, false),
            Step::SendInterrupted(n, nested) => self.send(n, 0, nested, false),
            Step::Die(n, nested) => self.send(n, 0, nested, true),
            Step::DieAt(moment, n) => self.die(moment, n),
            Step::Switch => self.switch(),
            Step::Receive(most, pieces) => self.receive(most, pieces),
            Step::Peek(most) => {
                self.copy_out(most, most);
            }
            Step::Discard(most) => self.discard(most),
        }
        self.check();
    }
}

fn size() -> impl Strategy<Value = usize> {
    let longest = if cfg!(miri) { 2000 } else { 40_000 };
    prop_oneof![4 => 1_usize..20, 4 => 1_usize..300, 4 => 1_usize..longest / 8, 1 => 1_usize..longest]
}

fn a_step() -> impl Strategy<Value = Step> {
    let moment = prop_oneof![Just(Moment::Announced), Just(Moment::Reserved), Just(Moment::Published)];
    prop_oneof![
        8 => size().prop_map(Step::Send),
        1 => (size(), size()).prop_map(|(n, short)| Step::SendShort(n, short)),
        2 => (size(), size()).prop_map(|(n, nested)| Step::SendInterrupted(n, nested)),
        1 => (size(), 0_usize..700).prop_map(|(n, nested)| Step::Die(n, nested)),
        1 => (moment, 1_usize..2000).prop_map(|(moment, n)| Step::DieAt(moment, n)),
        2 => Just(Step::Switch),
        8 => (size(), size()).prop_map(|(most, pieces)| Step::Receive(most, pieces)),
        2 => size().prop_map(Step::Peek),
        1 => size().prop_map(Step::Discard),
    ]
}

/// The largest ring or list; Miri takes a second for a step.
const LARGER: usize = if cfg!(miri) { 8192 } else { 65_536 };
const MOST_STEPS: usize = if cfg!(miri) { 20 } else { 80 };

proptest! {
    #![proptest_config(Config { failure_persistence: None, ..Config::default() })]

    /// Fails if `Sender::put` leaves out `self.end_behind(next, self.tail.load(Relaxed))`, `RESERVE` is 8,
    /// `Sender::close_hole` leaves out `store(header(PAD, in_the_making), Release)`, `copy_out` leaves out `consumed =
    /// 0`, `distance` its mask, `Ring::data_header` its PAD, or `Sender::end_behind` leaves out
    /// `end.store(self.behind.load(Relaxed), Relaxed)`.
    #[test]
    fn a_ring_is_a_queue_of_bytes_and_marks(
        capacity in prop_oneof![Just(4096_usize), Just(LARGER)],
        // Also where positions begin anew.
        start in prop_oneof![Just(0_u64), (0_u64..1000).prop_map(|n| POSITION_MASK + 1 - 8 * (n + 1))],
        in_turn in any::<bool>(),
        steps in prop::collection::vec(a_step(), 1..MOST_STEPS),
    ) {
        let mut bench = Bench::new(capacity, start, in_turn);
        steps.into_iter().for_each(|it| bench.go(it));
    }
}
