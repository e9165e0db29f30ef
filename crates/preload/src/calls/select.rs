//! select and pselect: a poll of the descriptors whose bits are set.

use crate::guest::access::{is_mask_readable, is_readable, is_writable};
use crate::guest::cancellation::{test_cancel, unless_left};
use crate::guest::deadline::{Deadline, after, invalid, left};
use crate::guest::memory::{release, reserve};
use crate::guest::{errno, kernel_table, real};
use crate::lifecycle::adopt;
use crate::watch::poll::{
    FEW, IN, NONE, OUT, answer_confined, at_rest, concerns_us, mind_room, port, unless_rests, wait,
};
use core::ffi::c_int;
use core::slice::from_raw_parts_mut;
use libc::{fd_set, pollfd, sigset_t, timespec, timeval};
use underpass_segment::clock;
use underpass_segment::sync::{AcqRel, AtomicPtr, Relaxed};

/// What has answered a select.
enum Served {
    /// The kernel's own call.
    Plainly(c_int),
    /// The library; the sets say what is ready.
    Here(c_int),
}

/// Descriptors of a select for which memory is kept from one call to the next.
const MANY: usize = libc::FD_SETSIZE;
/// That memory, while no call uses it.
static SPARE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());

/// How many bits of its sets the kernel looks at when a program names `count`: as many as its table of descriptors has
/// room for, and some programs rely on that. `None` where it looks at none or refuses the sets, and without /proc. Also
/// whether all sets can be written.
fn looked_at(count: c_int, sets: [*mut u64; 3]) -> Option<(usize, bool)> {
    let count = usize::try_from(count).ok().filter(|&count| count > 0)?;
    let count = if count <= libc::FD_SETSIZE { count } else { kernel_table::within(count)? };
    let words = count.div_ceil(Select::WORD);
    let mut are_writable = true;
    for set in sets.into_iter().filter(|set| !set.is_null()) {
        if !is_writable(set, words) {
            are_writable = false;
            if !is_readable(set, words) {
                return None;
            }
        }
    }
    Some((count, are_writable))
}

/// Memory for the descriptors of a select, for which the stack may have no room.
struct Room {
    at: *mut u8,
    count: usize,
}

impl Room {
    /// For `count` descriptors; `None` without address space.
    fn of(count: usize) -> Option<Room> {
        let count = count.max(MANY);
        let spare = if count == MANY { SPARE.swap(core::ptr::null_mut(), AcqRel) } else { core::ptr::null_mut() };
        let at = if spare.is_null() { reserve(Room::bytes(count)) } else { spare };
        (!at.is_null()).then_some(Room { at, count })
    }

    fn bytes(count: usize) -> usize {
        count * (size_of::<pollfd>() + size_of::<bool>())
    }

    fn release(&self) {
        let kept =
            self.count == MANY && SPARE.compare_exchange(core::ptr::null_mut(), self.at, AcqRel, Relaxed).is_ok();
        if !kept {
            // SAFETY: the memory is this value's, and used no more.
            unsafe { release(self.at, Room::bytes(self.count)) };
        }
    }
}

/// A select.
#[derive(Clone, Copy)]
struct Select {
    /// To read, to write, and for urgent data; null: none.
    sets: [*mut u64; 3],
    /// Descriptors below this number are looked at.
    count: usize,
    are_writable: bool,
    deadline: Deadline,
    mask: *const sigset_t,
}

impl Select {
    const WORD: usize = u64::BITS as usize;

    /// What is asked for of the descriptors of word `index`: a bit for each, by set.
    ///
    /// # Safety
    /// The sets must be null or valid for `count` bits.
    unsafe fn word(&self, index: usize) -> [u64; 3] {
        let left = self.count - index * Select::WORD;
        let looked_at = if left < Select::WORD { (1 << left) - 1 } else { u64::MAX };
        // SAFETY: passed on to the caller.
        self.sets.map(|set| if set.is_null() { 0 } else { looked_at & unsafe { *set.add(index) } })
    }

    fn words(&self) -> usize {
        self.count.div_ceil(Select::WORD)
    }

    /// Calls `what` with every descriptor and the events that are asked for.
    ///
    /// # Safety
    /// As [`Select::word`].
    unsafe fn each(&self, mut what: impl FnMut(c_int, i16)) {
        for index in 0..self.words() {
            // SAFETY: passed on to the caller.
            let [read, write, except] = unsafe { self.word(index) };
            let mut any = read | write | except;
            while any != 0 {
                let bit = any & any.wrapping_neg();
                let events = [(read, IN), (write, OUT), (except, libc::POLLPRI)];
                let events =
                    events.iter().fold(0, |all, (set, events)| if set & bit != 0 { all | events } else { all });
                what((index * Select::WORD) as c_int + bit.trailing_zeros() as c_int, events);
                any ^= bit;
            }
        }
    }

    /// Selects, by `plain`, the kernel's own call, if there is nothing else to look at.
    ///
    /// # Safety
    /// As [`Select::word`].
    unsafe fn serve(self, plain: impl FnOnce() -> c_int) -> Served {
        let mut asked = 0;
        // SAFETY: passed on to the caller, here and below.
        unsafe { self.each(|_, _| asked += 1) };
        if asked == 0 {
            return Served::Plainly(plain());
        }
        if asked <= FEW {
            // SAFETY: as above.
            return unsafe { self.serve_on_stack::<FEW>(asked, plain) };
        }
        let Some(room) = Room::of(asked) else {
            if asked > MANY {
                return Served::Plainly(plain());
            }
            // SAFETY: as above.
            return unsafe { self.serve_on_stack::<MANY>(asked, plain) };
        };
        let call = || {
            // SAFETY: the memory has room for so many of both; zeroed memory is valid.
            let (fds, ours) = unsafe {
                let ours = room.at.add(room.count * size_of::<pollfd>());
                (from_raw_parts_mut(room.at.cast::<pollfd>(), asked), from_raw_parts_mut(ours.cast::<bool>(), asked))
            };
            // SAFETY: as above.
            unsafe { self.serve_with(fds, ours, plain) }
        };
        let served = unless_left(|| room.release(), call);
        room.release();
        served
    }

    /// # Safety
    /// As [`Select::word`].
    #[inline(never)]
    unsafe fn serve_on_stack<const MOST: usize>(self, asked: usize, plain: impl FnOnce() -> c_int) -> Served {
        let (mut fds, mut ours) = ([NONE; MOST], [false; MOST]);
        // SAFETY: passed on to the caller.
        unsafe { self.serve_with(&mut fds[..asked], &mut ours[..asked], plain) }
    }

    /// # Safety
    /// As [`Select::word`].
    unsafe fn serve_with(self, fds: &mut [pollfd], ours: &mut [bool], plain: impl FnOnce() -> c_int) -> Served {
        let mut found = 0;
        let hastens = adopt::hastens();
        // SAFETY: passed on to the caller, here and below.
        unsafe {
            self.each(|fd, events| {
                if hastens && events & IN != 0 {
                    adopt::hasten(fd);
                }
                // Another thread may add to the sets meanwhile.
                if let Some(it) = fds.get_mut(found) {
                    *it = pollfd { fd, events, revents: 0 };
                    found += 1;
                }
            });
        }
        // Or take from them: the rest is of another call.
        let fds = &mut fds[..found];
        mind_room(fds);
        fds.iter().zip(&mut *ours).for_each(|(it, ours)| *ours = port(it.fd).is_some());
        let mut plain = Some(plain);
        while answer_confined(fds, |_| 0).is_none() {
            if !concerns_us(fds) {
                let sleep = || unless_rests(fds, &mut plain);
                // SAFETY: nobody changes them meanwhile.
                let Some(answer) = (unsafe { at_rest(fds.as_ptr(), fds.len(), adopt::of, sleep) }) else { continue };
                if answer <= 0 || !concerns_us(fds) {
                    return Served::Plainly(answer);
                }
            }
            let answer = wait(fds, self.deadline, self.mask, adopt::of);
            if answer < 0 {
                return Served::Here(answer);
            }
            break;
        }
        // A descriptor that another thread has closed meanwhile counts as ready: the next call reports the error.
        if fds.iter().zip(ours).any(|(it, ours)| it.revents & libc::POLLNVAL != 0 && !*ours) {
            errno::set(libc::EBADF);
            return Served::Here(-1);
        }
        if !self.are_writable {
            errno::set(libc::EFAULT);
            return Served::Here(-1);
        }
        // SAFETY: as above.
        Served::Here(unsafe { self.write(fds) })
    }

    /// Writes the answer; returns how many bits are set.
    ///
    /// # Safety
    /// As [`Select::word`].
    unsafe fn write(&self, fds: &[pollfd]) -> c_int {
        const READABLE: i16 = IN | libc::POLLHUP | libc::POLLERR | libc::POLLNVAL;
        const WRITABLE: i16 = OUT | libc::POLLERR | libc::POLLNVAL;
        let mut bits = 0;
        let answers = [(IN, READABLE), (OUT, WRITABLE), (libc::POLLPRI, libc::POLLPRI)];
        for (&set, (asked, answers)) in self.sets.iter().zip(answers).filter(|(set, _)| !set.is_null()) {
            // SAFETY: the caller vouches for so many bits; each descriptor is below.
            unsafe {
                set.write_bytes(0, self.words());
                for it in fds.iter().filter(|it| it.events & asked != 0 && it.revents & answers != 0) {
                    *set.add(it.fd as usize / Select::WORD) |= 1 << (it.fd as usize % Select::WORD);
                    bits += 1;
                }
            }
        }
        bits
    }
}

/// # Safety
/// As select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { select_by(count, read, write, except, timeout, || real::select(count, read, write, except, timeout)) }
}

/// select(2), by `plain`, the kernel's own call, if there is nothing else to look at.
///
/// # Safety
/// As select(2).
pub unsafe fn select_by(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
    plain: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the program vouches for its arguments.
    unsafe {
        let invalid = |t: timeval| t.tv_sec < 0 || t.tv_usec < 0;
        let sets = [read.cast(), write.cast(), except.cast()];
        let Some((looked_at, are_writable)) = looked_at(count, sets) else { return plain() };
        let is_time_fixed = !timeout.is_null() && !is_writable(timeout, 1);
        if is_time_fixed && !is_readable(timeout, 1) || !timeout.is_null() && invalid(*timeout) {
            return plain();
        }
        let deadline = (!timeout.is_null()).then(|| {
            let t = *timeout;
            clock::nanoseconds()
                .saturating_add((t.tv_sec as u64).saturating_mul(1_000_000_000))
                .saturating_add(t.tv_usec as u64 * 1000)
        });
        test_cancel();
        let select = Select { sets, count: looked_at, are_writable, deadline, mask: core::ptr::null() };
        match select.serve(plain) {
            Served::Plainly(answer) => answer,
            Served::Here(answer) => {
                // Like the kernel, this does not write a time that cannot be written.
                if let Some(left) = left(deadline, u64::MAX).filter(|_| !is_time_fixed) {
                    *timeout = timeval { tv_sec: left.tv_sec, tv_usec: left.tv_nsec / 1000 };
                }
                answer
            }
        }
    }
}

/// # Safety
/// As select(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: passed on to the caller.
    unsafe { select(count, read, write, except, timeout) }
}

/// # Safety
/// As pselect(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the program vouches for its arguments.
    unsafe {
        let plain = || real::pselect(count, read, write, except, timeout, mask);
        let sets = [read.cast(), write.cast(), except.cast()];
        let is_good = !invalid(timeout) && is_mask_readable(mask);
        let Some((count, are_writable)) = looked_at(count, sets).filter(|_| is_good) else { return plain() };
        test_cancel();
        match (Select { sets, count, are_writable, deadline: after(timeout), mask }).serve(plain) {
            Served::Plainly(answer) | Served::Here(answer) => answer,
        }
    }
}
