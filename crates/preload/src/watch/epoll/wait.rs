//! Waits on a set (epoll_wait and its variants).

use super::events::{Events, ask, collect, tell_each, tell_twins};
use super::line;
use super::news::{news, writable as is_writable_now};
use super::register::tell_all;
use super::room::{any_waits, look_in};
use super::sleep::{any_news, arm, arm_inner, leave_to_sleepers};
use super::{IN, OVER, asleep, has_sleepers, port, rests, set_of};
use crate::connection::confined;
use crate::guest::access::is_writable;
use crate::guest::buffers::SURE;
use crate::guest::cancellation::test_cancel;
use crate::guest::deadline::{AT_ONCE, Deadline, left};
use crate::guest::{errno, real, settings, statistics, table};
use crate::watch::set::{Scan, Set};
use core::ffi::c_int;
use libc::{epoll_event, pollfd, sigset_t, timespec};
use underpass_segment::clock::{self, ticks, ticks_per_microsecond};
use underpass_segment::raw::is_quiet;
use underpass_segment::switch::Sleep;
use underpass_segment::sync::Relaxed;
use underpass_segment::wait::{Polled, Wait};

/// A set that is busy with fast connections asks the kernel for the others this often.
pub(super) const KERNEL_EVERY_US: u64 = 50;
/// A set that has nothing to report asks the kernel for the others this often.
const KERNEL_WHEN_IDLE_US: u64 = 4;
/// Where another thread may take the doorbell, a sleep lasts no longer.
const BRIEFLY_NS: u64 = 10_000_000;

/// The program's call.
#[derive(Clone, Copy)]
pub struct Call<'a> {
    /// The set.
    pub epfd: c_int,
    /// Makes the call, on a descriptor of the set, with what is left of the time.
    pub sleep: &'a dyn Fn(c_int, *mut epoll_event, c_int, Option<timespec>) -> c_int,
    /// The signals that the call blocks; null: unchanged.
    pub mask: *const sigset_t,
}

impl<'a> Call<'a> {
    /// The call by another descriptor of the set.
    fn by(self, epfd: c_int) -> Call<'a> {
        Call { epfd, ..self }
    }

    /// Makes the call with what is left of the time. Returns the kernel's events, which may have to be corrected.
    fn ask(&self, at: *mut epoll_event, most: c_int, left: Option<timespec>) -> c_int {
        (self.sleep)(self.epfd, at, most, left)
    }

    /// Asks without waiting, for events that may have to be corrected.
    fn ask_at_once(&self, at: *mut epoll_event, most: c_int) -> c_int {
        if is_quiet() {
            // The kernel is asked by the program's own call.
            return self.ask(at, most, Some(AT_ONCE));
        }
        // SAFETY: the kernel writes at most as many events as it is told.
        unsafe { real::epoll_wait(self.epfd, at, most, 0) }
    }

    /// Makes the call with what is left of the time, and corrects the events, where the kernel alone reports the set.
    fn sleep(&self, at: *mut epoll_event, most: c_int, left: Option<timespec>) -> c_int {
        let answer = self.ask(at, most, left);
        // SAFETY: the kernel has written so many.
        unsafe { rests::confirm(self.epfd, at, answer) }
    }

    /// Makes the call without waiting, and corrects the events.
    fn look(&self, at: *mut epoll_event, most: c_int) -> c_int {
        self.sleep(at, most, Some(AT_ONCE))
    }

    /// What is left in the rings of a confined process, and what the kernel says beside it; `None` if nothing is left.
    ///
    /// # Safety
    /// The array must be the program's, of `most` events, one at least.
    unsafe fn rests(&self, at: *mut epoll_event, most: usize) -> Option<c_int> {
        if !confined::has_rests() {
            return None;
        }
        let look = |at, most| match set_of(self.epfd).filter(|set| set.count() > 0 && !set.is_interrupted()) {
            // The filter was refused, and the set still has fast connections.
            Some(set) if !is_quiet() => wait_in(set, Events::new(at, most), Some(0), *self, false)
                .unwrap_or_else(|| self.look(at, most as c_int)),
            _ => self.look(at, most as c_int),
        };
        // SAFETY: passed on to the caller.
        unsafe { rests::tell(self.epfd, at, most, &look) }
    }

    /// Sleeps in the call for `ns` nanoseconds at most. Most calls count in milliseconds, which may be too long.
    fn sleep_briefly(&self, at: *mut epoll_event, most: c_int, deadline: Deadline, ns: u64) -> c_int {
        let mut set = pollfd { fd: self.epfd, events: libc::POLLIN, revents: 0 };
        let left = left(deadline, ns);
        let left = left.as_ref().map_or(core::ptr::null(), |left| left as *const timespec);
        // SAFETY: one element, a time of this frame, and the program's mask.
        let answer = unsafe { real::ppoll(&mut set, 1, left, self.mask) };
        if answer > 0 { self.ask(at, most, Some(AT_ONCE)) } else { answer }
    }
}

/// epoll_wait, sleeping by `call`.
pub fn wait(events: *mut epoll_event, most: c_int, deadline: Deadline, call: &Call<'_>) -> Option<c_int> {
    /// The kernel takes no more.
    const MOST: c_int = c_int::MAX / size_of::<epoll_event>() as c_int;
    if !(1..=MOST).contains(&most) {
        return None;
    }
    if confined::has_rests()
        && is_writable(events, 1)
        // SAFETY: the program vouches for its array.
        && let Some(count) = unsafe { call.rests(events, most as usize) }
    {
        return Some(count);
    }
    // In a confined process the kernel reports what its sets have.
    let set = set_of(call.epfd).filter(|set| set.count() > 0 || set.has_inner() && !is_quiet())?;
    if left_to_libc(set).is_some() {
        return None;
    }
    test_cancel();
    // Only the beginning is tested, and the program's word is taken for the rest: the array may be long, and little of
    // it is written to.
    if !is_writable(events, 1) {
        return wait_in_vain(set, events, most, deadline, call);
    }
    let most = most as usize;
    if set.is_interrupted() {
        return Some(wait_above(set, events, most, deadline, call));
    }
    if !set.is_mine() {
        tell_all(call.epfd, set);
    }
    wait_in(set, Events::new(events, most), deadline, *call, true)
}

/// Leaves the wait to libc if the set is [native](Set::native) and has no inner sets: the kernel's answers are right
/// then as they are.
#[inline]
fn left_to_libc(set: &Set) -> Option<u64> {
    let native = set.native().filter(|_| !set.is_stale() && !set.has_inner());
    if native.is_some() {
        // A change of a registration is put off only where one thread uses the set.
        set.is_mine();
    }
    native
}

/// Waits where no event can be written. As in the kernel, the first event ends the call with an error, and stays for
/// the next call.
#[cold]
fn wait_in_vain(
    set: &Set,
    events: *mut epoll_event,
    most: c_int,
    deadline: Deadline,
    call: &Call<'_>,
) -> Option<c_int> {
    // No process has memory there, and the kernel reports that before it looks at the set.
    if (events as usize).saturating_add(most as usize * size_of::<epoll_event>()) > SURE {
        return None;
    }
    loop {
        let expired = deadline.is_some_and(|at| clock::nanoseconds() >= at);
        let mut has_news = false;
        set.peek_active(|fd, item| {
            has_news |= port(fd)
                .is_some_and(|port| item.wants(IN) && news(&port, item).is_some() || is_writable_now(&port, item));
        });
        if has_news {
            errno::set(libc::EFAULT);
            return Some(-1);
        }
        if !set.is_interrupted() {
            tell_all(call.epfd, set);
        }
        // The kernel does the same with its own events.
        let answer = asleep(call.epfd, || call.sleep(events, most, left(deadline, BRIEFLY_NS)));
        if answer != 0 || expired {
            return Some(answer);
        }
    }
}

/// Waits for events of the set and of the kernel; with `rests` also for what is left in the rings of a confined
/// process. `None`: the descriptor was closed before the call had anything, and before it slept. Its number may be
/// another set's: the call begins anew, as if it came only now.
fn wait_in(set: &Set, mut events: Events, deadline: Deadline, mut call: Call<'_>, rests: bool) -> Option<c_int> {
    let generation = set.generation();
    let mut began: Option<Wait> = None;
    let mut slept = false;
    let mut polled_enough = false;
    let answer = loop {
        let epfd = call.epfd;
        if events.count == 0 && !is_named(set, generation, epfd) {
            return None;
        }
        // SAFETY: the program's array, of which nothing is used yet.
        let rests_now = |events: &Events| unsafe { call.rests(events.at, events.most) };
        // The filter may have come while this thread slept.
        if rests
            && events.count == 0
            && let Some(count) = rests_now(&events)
        {
            break count;
        }
        let expired = deadline.is_some_and(|at| clock::nanoseconds() >= at);
        events.last_look = expired;
        let idle_for = ticks().wrapping_sub(set.asked().load(Relaxed));
        // The kernel's own descriptors must not starve, nor starve the others.
        let overdue = idle_for > KERNEL_EVERY_US * ticks_per_microsecond() && !set.others_first().swap(false, Relaxed);
        if !overdue {
            collect(epfd, set, &mut events);
        }
        let idle = idle_for > KERNEL_WHEN_IDLE_US * ticks_per_microsecond();
        // A call that goes to sleep at once asks the kernel by that.
        let sleeps = began.is_none() && events.count == 0 && idle && !expired && !(overdue && any_news(set)) && {
            polled_enough = !began.insert(begin(set)).polls() || any_waits(set);
            polled_enough || !set.is_active()
        };
        // A call that does not wait is told everything that is there.
        let in_doubt = (core::mem::take(&mut events.in_doubt) || set.has_quiet()) && events.count < events.most;
        let asks = overdue || (expired && in_doubt) || (events.count == 0 && (idle || expired));
        if asks && !sleeps && look(set, &mut events, &call, overdue) < 0 {
            break -1;
        }
        if events.count > 0 || expired {
            break end_wait(epfd, set, &mut events, began, slept);
        }
        let wait = began.get_or_insert_with(|| begin(set));
        let slice = KERNEL_WHEN_IDLE_US * ticks_per_microsecond();
        if !polled_enough && set.is_active() {
            polled_enough = wait.poll_for(slice, || any_news(set)) == Polled::Enough;
            continue;
        }
        match sleep(set, &mut events, deadline, &mut call, &mut slept) {
            Slept::Awake => {}
            Slept::Asked => set.asked().store(ticks(), Relaxed),
            Slept::Failed(answer) => break answer,
            Slept::Ended(answer) => return Some(end_early(answer, deadline)),
        }
    };
    leave_to_sleepers(call.epfd, set);
    Some(answer)
}

/// Whether `epfd` is a descriptor of the set, which had this generation.
fn is_named(set: &Set, generation: u32, epfd: c_int) -> bool {
    has_name(set, epfd) && set.generation() == generation
}

fn has_name(set: &Set, epfd: c_int) -> bool {
    set_of(epfd).is_some_and(|it| core::ptr::eq(it, set))
}

/// A call whose set has ended says `answer`: there is nothing left by which its thread could sleep on the set. Before
/// the deadline it does not say that its time is over.
fn end_early(answer: c_int, deadline: Deadline) -> c_int {
    if answer != 0 || deadline.is_some_and(|at| clock::nanoseconds() >= at) {
        return answer;
    }
    errno::set(libc::EINTR);
    -1
}

/// Asks the kernel without waiting. -1 with errno set, or 0.
fn look(set: &Set, events: &mut Events, call: &Call<'_>, overdue: bool) -> c_int {
    set.asked().store(ticks(), Relaxed);
    if events.last_look {
        // This call does not sleep, so it arms the inner sets here.
        arm_inner(set, 0);
    }
    if ask(call.epfd, set, events, |at, most| call.ask_at_once(at, most)) < 0 {
        return -1;
    }
    if events.count == events.most {
        set.others_first().store(true, Relaxed);
    } else if overdue || core::mem::take(&mut events.put_off) {
        collect(call.epfd, set, events);
    }
    0
}

/// The call has events, or its time is over.
fn end_wait(epfd: c_int, set: &Set, events: &mut Events, began: Option<Wait>, slept: bool) -> c_int {
    if events.count > 0 && set.has_twins() {
        tell_twins(epfd, set, events);
    }
    if let Some(wait) = began {
        wait.end(set.memory(), slept);
    }
    events.count as c_int
}

/// What became of a sleep.
enum Slept {
    /// There is something without a sleep.
    Awake,
    /// The kernel was asked, and its events are corrected.
    Asked,
    /// The call has failed.
    Failed(c_int),
    /// The set has ended, and so does the call.
    Ended(c_int),
}

/// Sleeps in the kernel, and corrects its events: as [`ask`], and says whether it `slept`. The descriptor of the call
/// may be closed meanwhile: the call goes on by another descriptor of the set.
fn sleep(set: &Set, events: &mut Events, deadline: Deadline, call: &mut Call<'_>, slept: &mut bool) -> Slept {
    let epfd = call.epfd;
    let slept_on = SleptOn::of(epfd);
    if !slept_on.set.is_some_and(|(it, _)| core::ptr::eq(it, set)) {
        return Slept::Awake;
    }
    // The kernel's answer, if the set has ended: there is nothing left to correct it by.
    let mut last = None;
    let answer = asleep(epfd, || {
        // A thread that closes the set from now on finds this one asleep.
        if rests::keeps_awake(epfd) || slept_on.still().is_none() {
            return None;
        }
        tell_all(epfd, set);
        let brief = match arm(set, false, 0) {
            Sleep::Yes => u64::MAX,
            Sleep::No => return None,
            Sleep::Briefly => BRIEFLY_NS,
        };
        let room_in = look_in(epfd, set);
        let brief = brief.min(room_in).min(line::listen(epfd, set));
        if brief == 0 {
            return None;
        }
        *slept = true;
        let sleep = |at, most| {
            let answer = match room_in {
                0..1_000_000 if !is_quiet() => call.sleep_briefly(at, most, deadline, room_in),
                _ => call.ask(at, most, left(deadline, brief)),
            };
            if slept_on.still().is_some() {
                return answer;
            }
            last = Some(answer);
            0
        };
        if !set.fall_asleep(brief != u64::MAX) {
            return Some(0);
        }
        statistics::count_poll_sleep();
        Some(ask(epfd, set, events, sleep))
    });
    let still = slept_on.still();
    if let Some((_, epfd)) = still {
        // Other threads that sleep on the same set still need the next doorbell.
        set.set_asleep(|| has_sleepers(epfd));
        *call = call.by(epfd);
    }
    match (still, answer) {
        (None, _) => last.map_or(Slept::Awake, Slept::Ended),
        (_, None) => Slept::Awake,
        (_, Some(0..)) => Slept::Asked,
        (_, Some(failed)) => Slept::Failed(failed),
    }
}

/// Waits in a signal handler that has interrupted a look at the set: it cannot change the set, so every look is at all
/// of it.
#[cold]
fn wait_above(set: &Set, at: *mut epoll_event, most: usize, deadline: Deadline, call: &Call<'_>) -> c_int {
    loop {
        let expired = deadline.is_some_and(|at| clock::nanoseconds() >= at);
        let mut events = Events::new(at, most);
        set.peek_active(|fd, item| {
            if item.wants(IN) && port(fd).is_some_and(|port| news(&port, item).is_some()) {
                events.push(fd, item.events & IN, item.data);
            }
        });
        if events.count > 0 {
            return events.count as c_int;
        }
        let answer = call.sleep(at, most.min(c_int::MAX as usize) as c_int, left(deadline, BRIEFLY_NS));
        if answer < 0 {
            return answer;
        }
        for index in 0..answer as usize {
            // SAFETY: the kernel has written so many; `push` writes none that is not read.
            let mut event = unsafe { at.add(index).read_unaligned() };
            let of_data = |fd: &c_int| set.item(*fd).is_some_and(|it| it.data == event.u64);
            let port = (0..table::highest()).find(of_data).and_then(port);
            if event.events & OVER == 0 && port.is_some_and(|port| !port.readable()) {
                event.events &= !IN;
            }
            if event.events != 0 {
                events.push(-1, event.events, event.u64);
            }
        }
        if events.count > 0 || expired {
            return events.count as c_int;
        }
    }
}

/// Begins a wait: meets the other ends of the active connections.
fn begin(set: &Set) -> Wait {
    let mut wait = Wait::begin(set.memory(), 0, settings::config().spin_us);
    let (mut ports, mut together) = (0, 0);
    set.scan(|fd, _, _| {
        if let Some(port) = port(fd) {
            together += u32::from(port.exchange_cpu(wait.cpu()) == wait.cpu());
            ports += 1;
        }
        Scan::Keep
    });
    wait.share(ports > 0 && together == ports);
    wait
}

/// What a thread is about to sleep on. Meanwhile the descriptor may be closed, and its number given to another set.
struct SleptOn {
    epfd: c_int,
    descriptor: u64,
    /// The library's set, if it has one, and that set's generation.
    set: Option<(&'static Set, u32)>,
}

impl SleptOn {
    fn of(epfd: c_int) -> SleptOn {
        let descriptor = table::generation(epfd);
        SleptOn { epfd, descriptor, set: set_of(epfd).map(|set| (set, set.generation())) }
    }

    /// The set that it is still, perhaps made only since, and a descriptor of that.
    fn still(&self) -> Option<(&'static Set, c_int)> {
        match self.set {
            Some((set, generation)) if set.generation() != generation => None,
            Some((set, _)) => Some((set, if has_name(set, self.epfd) { self.epfd } else { set.epfd() })),
            None if table::generation(self.epfd) != self.descriptor => None,
            None => set_of(self.epfd).map(|set| (set, self.epfd)),
        }
    }
}

/// Sleeps by `libc_call` on a set that has no sockets of ours, or only such as the kernel alone knows of. That may have
/// changed when this thread wakes: then a doorbell may have woken the thread, or something that another thread was told
/// already.
pub fn sleep_natively(
    events: *mut epoll_event,
    most: c_int,
    deadline: Deadline,
    call: &Call<'_>,
    libc_call: impl FnOnce() -> c_int,
) -> c_int {
    if confined::has_rests() {
        return sleep_beside_rests(events, most, deadline, call);
    }
    let (mut libc_call, mut library_may_wait, mut call) = (Some(libc_call), true, *call);
    loop {
        let epfd = call.epfd;
        let slept_on = SleptOn::of(epfd);
        let set = slept_on.set.map(|(set, _)| set);
        let (changes_before, has_sockets) = (set.map(Set::changes), set.is_some_and(|set| set.count() > 0));
        let slept = asleep(epfd, || {
            // A thread that changes that from now on finds this one asleep, and wakes it if need be.
            let native_since = set.and_then(left_to_libc);
            if library_may_wait && has_sockets && native_since.is_none() {
                return None;
            }
            if has_sockets && deadline.is_none_or(|at| at > clock::nanoseconds()) {
                statistics::count_poll_sleep();
            }
            let answer = match libc_call.take() {
                Some(libc_call) => libc_call(),
                None => call.ask(events, most, left(deadline, u64::MAX)),
            };
            Some((answer, native_since))
        });
        let Some((answer, native_since)) = slept else {
            if let Some(answer) = wait(events, most, deadline, &call) {
                return answer;
            }
            // The kernel refuses the call, or the set is native again.
            library_may_wait = set.is_some_and(|set| left_to_libc(set).is_some());
            continue;
        };
        library_may_wait = true;
        // A registration for which the library had something to do may have come and gone meanwhile.
        let is_as_before =
            |set: &Set| native_since.is_some() && set.native() == native_since && changes_before == Some(set.changes());
        let needs_telling = |(set, _): &(&Set, _)| answer > 0 && !is_as_before(set) && !set.is_interrupted();
        // A set that has ended meanwhile goes on in the kernel alone, as long as a thread sleeps on it.
        let Some((set, name)) = slept_on.still().filter(needs_telling) else {
            // SAFETY: the kernel has written so many.
            return unsafe { rests::confirm(epfd, events, answer) };
        };
        call = call.by(name);
        let mut told = Events::new(events, most as usize);
        tell_each(name, set, &mut told, changes_before, answer as usize);
        if told.count > 0 {
            leave_to_sleepers(name, set);
            return told.count as c_int;
        }
        if slept_on.still().is_none() {
            return end_early(0, deadline);
        }
        // Another thread may have taken its last socket out of the set meanwhile.
        if let Some(answer) = wait(events, most, deadline, &call) {
            return answer;
        }
    }
}

/// Sleeps in a confined process, where another thread may register a connection that has something left in its ring.
fn sleep_beside_rests(events: *mut epoll_event, most: c_int, deadline: Deadline, call: &Call<'_>) -> c_int {
    loop {
        let answer = asleep(call.epfd, || {
            let longest = if rests::keeps_awake(call.epfd) { 0 } else { u64::MAX };
            call.sleep(events, most, left(deadline, longest))
        });
        // SAFETY: the program's array; the kernel has looked at it by now.
        let rests = || unsafe { call.rests(events, most as usize) };
        if answer == 0
            && is_writable(events, 1)
            && let Some(count) = rests()
        {
            return count;
        }
        if answer != 0 || deadline.is_some_and(|at| clock::nanoseconds() >= at) {
            return answer;
        }
    }
}

/// Milliseconds of a remaining time, rounded up, for calls that count in them; -1: forever.
pub fn whole_ms(left: Option<timespec>) -> c_int {
    left.map_or(-1, |t| (t.tv_sec * 1000 + (t.tv_nsec + 999_999) / 1_000_000).min(c_int::MAX.into()) as c_int)
}
