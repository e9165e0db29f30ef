//! A bounded queue from one thread to one other, without locks: what layers that run in parallel talk through.
//!
//! The sender makes items known in batches ([`Sender::publish`]), each by a line of the cache of its own: how far the
//! batch goes, and its first item. So an item that goes alone costs what a line's way costs, and of a batch the rest
//! comes in lines that are full. The receiver says what it has taken when it finds no more, or when it is told to
//! ([`Receiver::release`]).
//!
//! A receiver that is about to sleep says so ([`Receiver::watch`]), and the next publication wakes it. A sender that
//! has found the ring full does the same ([`Sender::watch`]), and is woken when there is room.
#![allow(unsafe_code, reason = "slots that either end has to itself, as two positions say")]

use crate::Watch;
use crate::bell::Waker;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, UnsafeCell, fence};
use std::fmt::{self, Debug, Formatter};
use std::mem::MaybeUninit;

/// What one end alone writes, away from what the other writes. Two lines, since processors fetch them in pairs.
#[repr(align(128))]
struct Apart<T>(T);

type Slot<T> = UnsafeCell<MaybeUninit<T>>;

/// A batch that was published.
#[repr(align(64))]
struct Batch<T> {
    /// The position behind its last item. The tail of an older batch that lay in this place is not ahead of the
    /// receiver any more, and so is not taken for a new one.
    tail: AtomicUsize,
    first: Slot<T>,
}

struct Shared<T> {
    /// The slots, a power of two of them. Slot `position % len` is the receiver's from its head to a published tail,
    /// and the sender's otherwise; it is empty at a position where a batch begins.
    slots: Box<[Slot<T>]>,
    /// As many batches as slots, since a batch has at least one item. Batch `number % len` is the receiver's as long as
    /// its first item is.
    batches: Box<[Batch<T>]>,
    /// The first item that the receiver has not taken.
    head: Apart<AtomicUsize>,
    /// The receiver sleeps, or is about to.
    watched: Apart<AtomicBool>,
    /// The sender does, since the ring was full.
    crowded: Apart<AtomicBool>,
    sleepers: Mutex<Sleepers>,
}

/// What either end leaves to the other.
#[derive(Default)]
struct Sleepers {
    /// The threads to wake.
    receiver: Option<Waker>,
    sender: Option<Waker>,
    /// The position at which the receiver has stopped for good.
    at: Cursor,
}

// SAFETY: an item is reached by one end at a time, as the positions say, and goes from thread to thread.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    #[inline]
    fn slot(&self, position: usize) -> &Slot<T> {
        &self.slots[position & (self.slots.len() - 1)]
    }

    #[inline]
    fn batch(&self, number: usize) -> &Batch<T> {
        &self.batches[number & (self.batches.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // Both ends are gone, and what was not taken is here.
        let mut at = lock(&self.sleepers).at;
        while at.next(self).is_some() {}
    }
}

/// How far the receiver has come.
#[derive(Clone, Copy, Default)]
struct Cursor {
    /// The next item to be taken.
    head: usize,
    /// The position behind the last item of the current batch.
    tail: usize,
    /// Number of the batch that comes next.
    batch: usize,
}

impl Cursor {
    /// Takes the next item. Only the receiver calls this, or `drop` after it.
    #[inline]
    fn next<T>(&mut self, shared: &Shared<T>) -> Option<T> {
        let slot = if self.head == self.tail {
            self.tail = self.published(shared)?;
            self.batch = self.batch.wrapping_add(1);
            &shared.batch(self.batch.wrapping_sub(1)).first
        } else {
            shared.slot(self.head)
        };
        // SAFETY: there is an item in it, which is the receiver's, since it is between `head` and a published tail.
        let item = slot.with(|slot| unsafe { (*slot).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        Some(item)
    }

    /// Where the batch that comes next ends, if it has been published.
    #[inline]
    fn published<T>(&self, shared: &Shared<T>) -> Option<usize> {
        let tail = shared.batch(self.batch).tail.load(Acquire);
        (1..=shared.slots.len()).contains(&tail.wrapping_sub(self.head)).then_some(tail)
    }
}

/// A ring for at least so many items.
pub fn ring<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let slot = || UnsafeCell::new(MaybeUninit::uninit());
    let places = 0..capacity.next_power_of_two();
    let shared = Arc::new(Shared {
        slots: places.clone().map(|_| slot()).collect(),
        batches: places.map(|_| Batch { tail: AtomicUsize::new(0), first: slot() }).collect(),
        head: Apart(AtomicUsize::new(0)),
        watched: Apart(AtomicBool::new(false)),
        crowded: Apart(AtomicBool::new(false)),
        sleepers: Mutex::new(Sleepers::default()),
    });
    let sender = Sender { shared: Arc::clone(&shared), first: None, tail: 0, batch: 0, head: 0 };
    (sender, Receiver { shared, at: Cursor::default(), taken: 0 })
}

/// The end that puts items in.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
    /// The first item of the batch that is not published, away from a receiver that looks for it.
    first: Option<T>,
    /// The position behind the last item that was put in, published or not.
    tail: usize,
    /// Number of the batch that is not published.
    batch: usize,
    /// What the receiver had taken when this end looked last.
    head: usize,
}

impl<T> Sender<T> {
    /// Puts an item in, which the receiver does not see before [`Sender::publish`]; gives it back where the ring is
    /// full.
    ///
    /// # Errors
    /// The item, where the ring is full.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.is_full() {
            return Err(item);
        }
        if self.first.is_none() {
            self.first = Some(item);
        } else {
            // SAFETY: the slot is this end's, since it is not between `head` and a published tail, and it is empty.
            self.shared.slot(self.tail).with_mut(|slot| unsafe {
                (*slot).write(item);
            });
        }
        self.tail = self.tail.wrapping_add(1);
        Ok(())
    }

    /// Whether a push would fail.
    #[inline]
    pub fn is_full(&mut self) -> bool {
        let capacity = self.shared.slots.len();
        if self.tail.wrapping_sub(self.head) == capacity {
            self.head = self.shared.head.0.load(Acquire);
        }
        self.tail.wrapping_sub(self.head) == capacity
    }

    /// Has the caller woken when there is room; [`Watch::Ready`] if there is some already.
    pub fn watch(&mut self, waker: Waker) -> Watch {
        let crowded = &self.shared.crowded.0;
        lock(&self.shared.sleepers).sender = Some(waker);
        // As in `Receiver::watch`; the other half is in `release`.
        crowded.swap(true, AcqRel);
        fence(SeqCst);
        if self.is_full() {
            return Watch::Armed;
        }
        self.shared.crowded.0.store(false, Relaxed);
        Watch::Ready
    }

    /// Lets the receiver see what was put in, and wakes it if it has asked for that.
    #[inline]
    pub fn publish(&mut self) {
        if !self.put_batch() {
            return;
        }
        // Either this sees that it is watched, or the watcher sees the new batch: see `watch`.
        fence(SeqCst);
        if self.shared.watched.0.load(Relaxed) {
            self.rouse();
        }
    }

    /// Writes the batch, if there is one.
    #[inline]
    fn put_batch(&mut self) -> bool {
        let Some(item) = self.first.take() else { return false };
        let batch = self.shared.batch(self.batch);
        // SAFETY: the batch is this end's and its slot empty: of fewer items than there are batches, none is the first
        // one of the batch that was here before.
        batch.first.with_mut(|slot| unsafe {
            (*slot).write(item);
        });
        batch.tail.store(self.tail, Release);
        self.batch = self.batch.wrapping_add(1);
        true
    }

    #[cold]
    fn rouse(&self) {
        if self.shared.watched.0.swap(false, AcqRel)
            && let Some(waker) = lock(&self.shared.sleepers).receiver.take()
        {
            waker.wake();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // Items that were not published are put in too, and dropped with the rest.
        self.put_batch();
    }
}

/// The end that takes items out.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    at: Cursor,
    /// What the sender was told.
    taken: usize,
}

impl<T> Receiver<T> {
    /// Takes the first item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let item = self.at.next(&self.shared);
        if item.is_none() {
            self.release();
        }
        item
    }

    /// Lets the sender use the slots of what was taken, and wakes it if it has asked for that; [`Receiver::pop`] does
    /// so by itself when it finds no more.
    #[inline]
    pub fn release(&mut self) {
        if self.taken != self.at.head {
            self.taken = self.at.head;
            self.shared.head.0.store(self.taken, Release);
            // Either this sees that the sender sleeps, or the sender sees the new head.
            fence(SeqCst);
            if self.shared.crowded.0.load(Relaxed) {
                self.rouse();
            }
        }
    }

    #[cold]
    fn rouse(&self) {
        if self.shared.crowded.0.swap(false, AcqRel)
            && let Some(waker) = lock(&self.shared.sleepers).sender.take()
        {
            waker.wake();
        }
    }

    /// Whether there is nothing to be taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at.head == self.at.tail && self.at.published(&self.shared).is_none()
    }

    /// Has the caller woken when something comes; [`Watch::Ready`] if something is there already.
    pub fn watch(&mut self, waker: Waker) -> Watch {
        self.release();
        let watched = &self.shared.watched.0;
        lock(&self.shared.sleepers).receiver = Some(waker);
        // A swap, as in `rouse`: the two are ordered, so that the later one sees what the earlier one did.
        watched.swap(true, AcqRel);
        // The other half is in `publish`.
        fence(SeqCst);
        if self.is_empty() {
            return Watch::Armed;
        }
        watched.store(false, Relaxed);
        Watch::Ready
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.release();
        lock(&self.shared.sleepers).at = self.at;
    }
}

impl<T> Debug for Sender<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "sender at {}, {} batches published", self.tail, self.batch)
    }
}

impl<T> Debug for Receiver<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "receiver at {} of {}", self.at.head, self.at.tail)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> {
    // The data is whole even if a thread has panicked with the lock.
    mutex.lock().unwrap_or_else(|it| it.into_inner())
}

/// Every order of both threads' steps, as far as loom bounds them: `make loom`.
#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::thread;

    /// Each item once and in order, through a ring that is shorter than what goes through it.
    #[test]
    fn items_arrive_once_and_in_order() {
        loom::model(|| {
            let (mut sender, mut receiver) = ring(2);
            let other = thread::spawn(move || {
                for item in 0..3 {
                    let mut item = Box::new(item);
                    while let Err(back) = sender.push(item) {
                        item = back;
                        sender.publish();
                        thread::yield_now();
                    }
                }
                sender.publish();
            });
            for expected in 0..3 {
                loop {
                    match receiver.pop() {
                        Some(item) => break assert_eq!(*item, expected),
                        None => thread::yield_now(),
                    }
                }
            }
            other.join().unwrap();
            assert!(receiver.pop().is_none());
        });
    }

    /// A thread that watches and parks is unparked: loom finds a thread that parks for ever.
    #[test]
    fn a_watcher_is_unparked() {
        loom::model(|| {
            let (mut sender, mut receiver) = ring(2);
            let watcher = thread::spawn(move || {
                for expected in 0..2 {
                    loop {
                        if let Some(item) = receiver.pop() {
                            break assert_eq!(item, expected);
                        }
                        if receiver.watch(Waker::here()) == Watch::Armed {
                            thread::park();
                        }
                    }
                }
            });
            for item in 0..2 {
                sender.push(item).unwrap();
                sender.publish();
            }
            watcher.join().unwrap();
        });
    }

    /// And so is a sender that has found the ring full.
    #[test]
    fn a_sender_without_room_is_unparked() {
        loom::model(|| {
            let (mut sender, mut receiver) = ring(1);
            let other = thread::spawn(move || {
                for item in 0..2 {
                    while sender.push(item).is_err() {
                        if sender.watch(Waker::here()) == Watch::Armed {
                            thread::park();
                        }
                    }
                    sender.publish();
                }
            });
            for expected in 0..2 {
                loop {
                    match receiver.pop() {
                        Some(item) => break assert_eq!(item, expected),
                        None => thread::yield_now(),
                    }
                }
            }
            receiver.release();
            other.join().unwrap();
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::bell::Bell;
    use crate::sync::thread;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::sync::Arc as Counted;

    #[test]
    fn nothing_is_seen_before_it_is_published() {
        let (mut sender, mut receiver) = ring(4);
        assert_eq!((sender.push(1), sender.push(2), receiver.pop()), (Ok(()), Ok(()), None));
        sender.publish();
        assert_eq!((receiver.pop(), receiver.pop(), receiver.pop()), (Some(1), Some(2), None));
    }

    #[test]
    fn a_full_ring_gives_the_item_back() {
        let (mut sender, mut receiver) = ring(3);
        assert_eq!((0..5).map(|it| sender.push(it)).collect::<Vec<_>>(), [Ok(()), Ok(()), Ok(()), Ok(()), Err(4)]);
        sender.publish();
        assert_eq!((receiver.pop(), sender.is_full()), (Some(0), true));
        receiver.release();
        assert_eq!((sender.is_full(), sender.push(4)), (false, Ok(())));
    }

    /// Either end may sleep on a descriptor instead of parking.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no ppoll(2)")]
    fn both_ends_are_woken_by_bells() {
        let (mut sender, mut receiver) = ring(1);
        let bells = [(); 2].map(|()| Bell::new().unwrap());
        let is_rung = |bell: &Bell| {
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            let rung = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&now)).unwrap() == 1;
            bell.silence();
            rung
        };
        for item in 0..3 {
            assert_eq!(receiver.watch(Waker::Bell(Counted::clone(&bells[0]))), Watch::Armed);
            sender.push(item).unwrap();
            assert!(!is_rung(&bells[0]));
            sender.publish();
            assert!(is_rung(&bells[0]) && !is_rung(&bells[0]));
            assert_eq!(receiver.watch(Waker::here()), Watch::Ready);
            assert_eq!(sender.watch(Waker::Bell(Counted::clone(&bells[1]))), Watch::Armed);
            assert_eq!((receiver.pop(), is_rung(&bells[1])), (Some(item), false));
            receiver.release();
            assert!(is_rung(&bells[1]));
            assert_eq!(sender.watch(Waker::here()), Watch::Ready);
        }
    }

    #[test]
    fn what_was_not_taken_is_dropped() {
        let item = Counted::new(());
        let (mut sender, mut receiver) = ring(8);
        for published in [true, true, false] {
            sender.push(Counted::clone(&item)).unwrap();
            if published {
                sender.publish();
            }
        }
        drop(receiver.pop());
        assert_eq!(Counted::strong_count(&item), 3);
        drop((sender, receiver));
        assert_eq!(Counted::strong_count(&item), 1);
    }

    /// The first item of a batch lies elsewhere in each batch. Every item that is left is found, whichever end is
    /// dropped first and wherever it stands.
    #[test]
    fn what_was_not_taken_is_dropped_whichever_end_goes_first() {
        for (taken, sender_first) in (0..=8).flat_map(|taken| [(taken, true), (taken, false)]) {
            let item = Counted::new(());
            let (mut sender, mut receiver) = ring(8);
            for batch in [3, 1, 4] {
                (0..batch).for_each(|_| sender.push(Counted::clone(&item)).unwrap());
                sender.publish();
            }
            (0..taken).for_each(|_| drop(receiver.pop().unwrap()));
            assert_eq!(Counted::strong_count(&item), 9 - taken);
            if sender_first {
                drop(sender);
                drop(receiver);
            } else {
                drop(receiver);
                let _ = sender.push(Counted::clone(&item));
                drop(sender);
            }
            assert_eq!(Counted::strong_count(&item), 1, "{taken} taken, the sender first: {sender_first}");
        }
    }

    /// Batches of every length, round and round: none is taken for a batch that was in its place before.
    #[test]
    fn batches_of_every_length_in_order() {
        // Miri takes a thousand times as long.
        const TURNS: usize = if cfg!(miri) { 300 } else { 10_000 };
        let (mut sender, mut receiver) = ring(8);
        let (mut sent, mut taken) = (0, 0);
        for turn in 0..TURNS {
            for _ in 0..turn % 11 {
                sent += usize::from(sender.push(sent).is_ok());
            }
            sender.publish();
            for _ in 0..turn % 7 {
                match receiver.pop() {
                    Some(item) => {
                        assert_eq!(item, taken);
                        taken += 1;
                    }
                    None => assert_eq!(taken, sent),
                }
            }
            assert_eq!(receiver.is_empty(), taken == sent);
        }
        assert!(taken > 2 * TURNS);
    }

    #[test]
    fn a_million_items_by_two_threads_that_park() {
        const ITEMS: u64 = if cfg!(miri) { 1000 } else { 1_000_000 };
        let (mut sender, mut receiver) = ring(64);
        let other = thread::spawn(move || {
            let mut random = 1u64;
            for mut item in 0..ITEMS {
                while let Err(back) = sender.push(item) {
                    item = back;
                    sender.publish();
                    thread::yield_now();
                }
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if random >> 61 == 0 {
                    sender.publish();
                }
                if random >> 50 == 0 {
                    // Long enough for the other end to park.
                    thread::sleep(std::time::Duration::from_micros(200));
                }
            }
            sender.publish();
        });
        for expected in 0..ITEMS {
            let item = loop {
                match receiver.pop() {
                    Some(item) => break item,
                    None if receiver.watch(Waker::here()) == Watch::Armed => thread::park(),
                    None => {}
                }
            };
            assert_eq!(item, expected);
        }
        other.join().unwrap();
    }
}
