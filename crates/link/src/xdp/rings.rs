//! The four rings that an AF_XDP socket shares with the kernel (Documentation/networking/af_xdp.rst).
//!
//! Positions count on for ever and are taken modulo the ring's size, a power of two. Either side writes one of the two.
//! What the kernel writes is believed as far as it says what is done, and masked where it says where: a wrong one reads
//! an old descriptor.
#![allow(unsafe_code, reason = "memory that is shared with the kernel")]

use rustix::fd::AsFd;
use rustix::io;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::xdp::{XdpDesc, XdpRingFlags, XdpRingOffset};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicU32, fence};

/// What lies in a ring: plain numbers, of which any octets are one.
pub trait Descriptor: Copy {}
impl Descriptor for u64 {}
impl Descriptor for XdpDesc {}

/// A ring's memory and where in it things are.
#[derive(Debug)]
struct Shared<T> {
    memory: NonNull<c_void>,
    len: usize,
    offsets: XdpRingOffset,
    size: u32,
    descriptors: PhantomData<T>,
}

// SAFETY: the memory is mapped for as long as this value lives, in whichever thread, and only atomics or the owner
// reach it.
unsafe impl<T: Send> Send for Shared<T> {}

impl<T: Descriptor> Shared<T> {
    fn map(socket: impl AsFd, which: u64, offsets: XdpRingOffset, size: u32) -> io::Result<Shared<T>> {
        assert!(size.is_power_of_two());
        let len = offsets.desc as usize + size as usize * size_of::<T>();
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let memory = unsafe { mmap(null_mut(), len, access, flags, socket, which) }?;
        let memory = NonNull::new(memory).ok_or(io::Errno::NOMEM)?;
        Ok(Shared { memory, len, offsets, size, descriptors: PhantomData })
    }

    fn word(&self, offset: u64) -> &AtomicU32 {
        // SAFETY: the kernel has said that a word that both sides change lies here, in front of the descriptors and so
        // within the mapping, which lives as long as this.
        unsafe { self.memory.byte_add(offset as usize).cast().as_ref() }
    }

    fn descriptor(&self, position: u32) -> NonNull<T> {
        let at = self.offsets.desc as usize + (position & (self.size - 1)) as usize * size_of::<T>();
        // SAFETY: one of `size` descriptors, for which the mapping was made long enough.
        unsafe { self.memory.byte_add(at).cast() }
    }
}

impl<T> Drop for Shared<T> {
    fn drop(&mut self) {
        // SAFETY: it was mapped in `map`, as long as this, and nobody else knows of it.
        let unmapped = unsafe { munmap(self.memory.as_ptr(), self.len) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// A ring that we put descriptors into: fill, or transmit.
#[derive(Debug)]
pub struct Producer<T> {
    ring: Shared<T>,
    /// The position behind the last descriptor that was put in, published or not.
    next: u32,
    /// What the kernel had taken when this side looked last.
    taken: u32,
}

impl<T: Descriptor> Producer<T> {
    /// The ring of `size` descriptors that `socket` has at `which`.
    pub fn map(socket: impl AsFd, which: u64, offsets: XdpRingOffset, size: u32) -> io::Result<Producer<T>> {
        Ok(Producer { ring: Shared::map(socket, which, offsets, size)?, next: 0, taken: 0 })
    }

    /// How many more it takes, if that is known to be at least `wanted`; else as many as the kernel says now.
    pub fn room(&mut self, wanted: u32) -> u32 {
        if self.ring.size - self.under_way() < wanted {
            self.look();
        }
        self.ring.size - self.under_way()
    }

    /// Puts one in, which the kernel does not see before [`Producer::publish`].
    ///
    /// # Panics
    /// If there is no room.
    pub fn push(&mut self, descriptor: T) {
        assert!(self.room(1) > 0, "a ring that has room for all frames is full");
        // SAFETY: the descriptor is this side's, since the kernel has taken what was in it and does not know of the
        // next.
        unsafe { self.ring.descriptor(self.next).write(descriptor) };
        self.next = self.next.wrapping_add(1);
    }

    /// Lets the kernel see what was put in.
    pub fn publish(&self) {
        // What the descriptors say, and the frames that they name, come first.
        self.ring.word(self.ring.offsets.producer).store(self.next, Release);
    }

    /// How many the kernel has not taken, now.
    pub fn waiting(&mut self) -> u32 {
        self.look();
        self.under_way()
    }

    /// Whether the kernel looks only when it is told to.
    pub fn needs_wakeup(&self) -> bool {
        // The fence puts the look at the flag behind the publication, since a processor may put a load before a store.
        // So either this side sees the flag, or the kernel, which looks at the ring once more after it has set the
        // flag, sees what was published.
        fence(SeqCst);
        self.ring
            .offsets
            .flags
            .is_none_or(|flags| self.ring.word(flags).load(Relaxed) & XdpRingFlags::XDP_RING_NEED_WAKEUP.bits() != 0)
    }

    /// Sets the flag that a kernel sets which looks only when it is woken.
    #[cfg(test)]
    pub fn want_wakeup(&self) {
        let flags = self.ring.offsets.flags.expect("Linux 5.4 has flags");
        self.ring.word(flags).store(XdpRingFlags::XDP_RING_NEED_WAKEUP.bits(), Relaxed);
    }

    fn look(&mut self) {
        // It has read the descriptors before it says so.
        self.taken = self.ring.word(self.ring.offsets.consumer).load(Acquire);
    }

    fn under_way(&self) -> u32 {
        self.next.wrapping_sub(self.taken).min(self.ring.size)
    }
}

/// A ring that we take descriptors out of: completion, or receive.
#[derive(Debug)]
pub struct Consumer<T> {
    ring: Shared<T>,
    /// The next descriptor to be taken.
    next: u32,
    /// What the kernel was told.
    told: u32,
    /// What the kernel had put in when this side looked last.
    filled: u32,
}

impl<T: Descriptor> Consumer<T> {
    /// The ring of `size` descriptors that `socket` has at `which`.
    pub fn map(socket: impl AsFd, which: u64, offsets: XdpRingOffset, size: u32) -> io::Result<Consumer<T>> {
        Ok(Consumer { ring: Shared::map(socket, which, offsets, size)?, next: 0, told: 0, filled: 0 })
    }

    /// Takes the first one.
    pub fn pop(&mut self) -> Option<T> {
        if self.next == self.filled {
            self.release();
            self.filled = self.ring.word(self.ring.offsets.producer).load(Acquire);
            if self.next == self.filled {
                return None;
            }
        }
        // SAFETY: the kernel has written it before it published it, and does not write again before it is told that it
        // was taken; any octets are a `Descriptor`.
        let descriptor = unsafe { self.ring.descriptor(self.next).read() };
        self.next = self.next.wrapping_add(1);
        Some(descriptor)
    }

    /// Lets the kernel use the places of what was taken; [`Consumer::pop`] does so by itself when it finds no more.
    pub fn release(&mut self) {
        if self.told != self.next {
            self.told = self.next;
            self.ring.word(self.ring.offsets.consumer).store(self.next, Release);
        }
    }

    /// Whether there is nothing to be taken.
    pub fn is_empty(&self) -> bool {
        self.next == self.filled && self.next == self.ring.word(self.ring.offsets.producer).load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::mmap_anonymous;
    use std::hint::spin_loop;
    use std::thread;
    use std::time::{Duration, Instant};

    const NEEDED: u32 = XdpRingFlags::XDP_RING_NEED_WAKEUP.bits();

    impl Producer<u64> {
        /// A ring whose other side the test is.
        fn in_memory(size: u32) -> Producer<u64> {
            let offsets = XdpRingOffset { producer: 0, consumer: 128, desc: 384, flags: Some(256) };
            let len = offsets.desc as usize + size as usize * size_of::<u64>();
            // SAFETY: a new mapping, at an address that the kernel chooses.
            let memory =
                unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) };
            let memory = NonNull::new(memory.unwrap()).unwrap();
            let ring = Shared { memory, len, offsets, size, descriptors: PhantomData };
            Producer { ring, next: 0, taken: 0 }
        }
    }

    /// The kernel sets the flag and looks at the ring once more, while a descriptor is published: the kernel is woken,
    /// or has seen the descriptor. Only a fence keeps a processor from swapping the two steps, and without it the test
    /// soon fails.
    #[test]
    fn no_wakeup_is_missed() {
        const OVER: u32 = u32::MAX;
        let mut ring = Producer::in_memory(64);
        let memory = ring.ring.memory;
        // SAFETY: the words live as long as the ring, which outlives the thread.
        let [published, taken, flags] =
            [0, 128, 256].map(|it| unsafe { memory.byte_add(it).cast::<AtomicU32>().as_ref() });
        let (round, seen) = (AtomicU32::new(0), AtomicU32::new(0));
        let kernel = || {
            let mut last = 0;
            loop {
                match round.load(Acquire) {
                    OVER => return,
                    now if now == last => spin_loop(),
                    now => {
                        last = now;
                        flags.store(NEEDED, Relaxed);
                        fence(SeqCst);
                        let sees = published.load(Acquire) == now;
                        seen.store(now << 1 | u32::from(sees), Release);
                    }
                }
            }
        };
        let (begin, mut missed) = (Instant::now(), 0);
        thread::scope(|scope| {
            scope.spawn(kernel);
            // With one processor, or beside others, a round takes as long as a turn.
            for number in (1..=200_000).take_while(|_| begin.elapsed() < Duration::from_millis(500)) {
                flags.store(0, Relaxed);
                round.store(number, Release);
                ring.push(u64::from(number));
                ring.publish();
                let tells = ring.needs_wakeup();
                while seen.load(Acquire) >> 1 != number {
                    spin_loop();
                }
                missed += u32::from(!tells && seen.load(Acquire) & 1 == 0);
                taken.store(number, Release);
            }
            round.store(OVER, Release);
        });
        assert_eq!(missed, 0);
    }
}
