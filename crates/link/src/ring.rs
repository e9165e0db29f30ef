//! A bounded queue from one thread to one other, without locks: what layers that run in parallel talk through.
//!
//! Both ends work on positions of their own and tell the other one only now and then: the sender with [`Sender::publish`], behind
//! a batch; the receiver when it has taken all that it knew of. So an item costs a store and a load, and the line that both write
//! and read changes hands once for each batch.
//!
//! A receiver that is about to park says so ([`Receiver::watch`]), and is unparked by whoever publishes next.
#![allow(unsafe_code, reason = "slots that either end has to itself, as two positions say")]

use crate::Watch;
use crate::sync::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use crate::sync::{Arc, AtomicBool, AtomicUsize, Mutex, Thread, UnsafeCell, fence, thread};
use std::fmt::{self, Debug, Formatter};
use std::mem::MaybeUninit;

/// What one end alone writes, away from what the other writes. Two lines, since processors fetch them in pairs.
#[repr(align(128))]
struct Apart<T>(T);

/// What the sender says.
struct Published {
    /// Behind the last item that may be taken.
    tail: AtomicUsize,
    /// The receiver parks, or is about to. Here, since the sender looks at it whenever it has written to `tail`.
    watched: AtomicBool,
}

struct Shared<T> {
    /// As many as a power of two. Slot `position % len` is the receiver's from `head` to `tail`, and the sender's otherwise.
    slots: Box<[UnsafeCell<MaybeUninit<T>>]>,
    published: Apart<Published>,
    /// The first item that the receiver has not taken.
    head: Apart<AtomicUsize>,
    /// Whom to unpark.
    watcher: Mutex<Option<Thread>>,
}

// SAFETY: an item is reached by one end at a time, as the positions say, and goes from thread to thread.
unsafe impl<T: Send> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    #[inline]
    fn slot(&self, position: usize) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[position & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        let (head, tail) = (self.head.0.load(Relaxed), self.published.0.tail.load(Relaxed));
        let mut at = head;
        while at != tail {
            // SAFETY: both ends are gone, and there is an item in each slot from `head` to `tail`.
            self.slot(at).with_mut(|slot| unsafe { (*slot).assume_init_drop() });
            at = at.wrapping_add(1);
        }
    }
}

/// A ring for at least so many items.
pub fn ring<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let slots = (0..capacity.next_power_of_two()).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
    let published = Published { tail: AtomicUsize::new(0), watched: AtomicBool::new(false) };
    let (published, head) = (Apart(published), Apart(AtomicUsize::new(0)));
    let shared = Arc::new(Shared { slots, published, head, watcher: Mutex::new(None) });
    let sender = Sender { shared: Arc::clone(&shared), tail: 0, published: 0, head: 0 };
    (sender, Receiver { shared, head: 0, taken: 0, tail: 0 })
}

/// The end that puts items in.
pub struct Sender<T> {
    shared: Arc<Shared<T>>,
    /// Behind the last item that was put in, told or not.
    tail: usize,
    /// What the receiver was told.
    published: usize,
    /// What the receiver had taken when this end looked last.
    head: usize,
}

impl<T: Send> Sender<T> {
    /// Puts an item in, which the receiver does not see before [`Sender::publish`]; gives it back where the ring is full.
    ///
    /// # Errors
    /// The item, where the ring is full.
    #[inline]
    pub fn push(&mut self, item: T) -> Result<(), T> {
        let capacity = self.shared.slots.len();
        if self.tail.wrapping_sub(self.head) == capacity {
            self.head = self.shared.head.0.load(Acquire);
            if self.tail.wrapping_sub(self.head) == capacity {
                return Err(item);
            }
        }
        // SAFETY: the slot is this end's, since it is not between `head` and the published tail, and it is empty.
        self.shared.slot(self.tail).with_mut(|slot| unsafe {
            (*slot).write(item);
        });
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

    /// Lets the receiver see what was put in, and unparks it if it has asked for that.
    #[inline]
    pub fn publish(&mut self) {
        if self.published == self.tail {
            return;
        }
        self.published = self.tail;
        let Published { tail, watched } = &self.shared.published.0;
        tail.store(self.tail, Release);
        // Either this sees that it is watched, or the watcher sees the new tail: see `watch`.
        fence(SeqCst);
        if watched.load(Relaxed) {
            self.rouse();
        }
    }

    #[cold]
    fn rouse(&self) {
        if self.shared.published.0.watched.swap(false, AcqRel)
            && let Some(watcher) = lock(&self.shared.watcher).take()
        {
            watcher.unpark();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        // What nobody was told of is dropped with the rest.
        self.shared.published.0.tail.store(self.tail, Release);
    }
}

/// The end that takes items out.
pub struct Receiver<T> {
    shared: Arc<Shared<T>>,
    /// The next item to be taken.
    head: usize,
    /// What the sender was told.
    taken: usize,
    /// What the sender had published when this end looked last.
    tail: usize,
}

impl<T: Send> Receiver<T> {
    /// Takes the first item.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        if self.head == self.tail {
            self.release();
            self.tail = self.shared.published.0.tail.load(Acquire);
            if self.head == self.tail {
                return None;
            }
        }
        // SAFETY: there is an item in it, which is this end's, since it is between `head` and the published tail.
        let item = self.shared.slot(self.head).with(|slot| unsafe { (*slot).assume_init_read() });
        self.head = self.head.wrapping_add(1);
        Some(item)
    }

    /// Lets the sender use the slots of what was taken; [`Receiver::pop`] does so by itself when it finds no more.
    #[inline]
    pub fn release(&mut self) {
        if self.taken != self.head {
            self.taken = self.head;
            self.shared.head.0.store(self.head, Release);
        }
    }

    /// Whether there is nothing to be taken.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.head == self.tail && self.head == self.shared.published.0.tail.load(Acquire)
    }

    /// Asks that the thread that calls this be unparked when something comes; [`Watch::Ready`] if something is there already.
    pub fn watch(&mut self) -> Watch {
        self.release();
        let Published { tail, watched } = &self.shared.published.0;
        *lock(&self.shared.watcher) = Some(thread::current());
        // As one step with what `rouse` does, so that there is no doubt which of the two came last.
        watched.swap(true, AcqRel);
        // The other half is in `publish`.
        fence(SeqCst);
        if tail.load(Relaxed) == self.head {
            return Watch::Armed;
        }
        watched.store(false, Relaxed);
        Watch::Ready
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.shared.head.0.store(self.head, Release);
    }
}

impl<T> Debug for Sender<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "sender at {}, {} of them published", self.tail, self.published)
    }
}

impl<T> Debug for Receiver<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "receiver at {} of {}", self.head, self.tail)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> impl std::ops::DerefMut<Target = T> {
    // Nobody can leave it half done.
    mutex.lock().unwrap_or_else(|it| it.into_inner())
}

/// Every order of both threads' steps, as far as loom bounds them: `make loom`.
#[cfg(all(test, loom))]
mod models {
    use super::*;

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

    /// Who watches and parks is unparked: loom finds a thread that parks for ever.
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
                        if receiver.watch() == Watch::Armed {
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
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
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

    #[test]
    fn a_million_items_by_two_threads_that_park() {
        const ITEMS: u64 = 1_000_000;
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
                    None if receiver.watch() == Watch::Armed => thread::park(),
                    None => {}
                }
            };
            assert_eq!(item, expected);
        }
        other.join().unwrap();
    }
}
