//! A set against a naive model: random lists of what a program and the library do with it, with signal handlers that
//! interrupt every look and come at every lock point. There is no kernel: the test notes what the kernel would be told.

use super::*;
use proptest::prelude::*;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};

/// Numbers of descriptors that no file has: more than a set has room for at first.
const FDS: core::ops::Range<i32> = 900_000..900_024;
/// Few values, so that several descriptors have the same.
const DATA: core::ops::Range<u64> = 1..4;
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;

/// What a signal handler does on top of a look at the set.
#[derive(Clone, Debug)]
enum Above {
    Activate(i32),
    Register {
        fd: i32,
        events: u32,
        data: u64,
        foreign: bool,
    },
    Unregister(i32),
    Forget(i32),
    MakeForeign(i32),
    Adopt {
        fd: i32,
        heir: i32,
    },
    /// The socket is about to be gone with its descriptor.
    End(i32),
    Close(i32),
}

thread_local! {
    /// What interrupts this thread at the lock points of a set, each by its number in this step.
    static AT_LOCKS: RefCell<Handlers> = const { RefCell::new(Vec::new()) };
    /// How many lock points there were in this step.
    static POINTS: Cell<usize> = const { Cell::new(0) };
    /// What has happened in this step, of which the model hears when the step ends.
    static LOG: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
    /// What a handler sees, since the look is over and something is deferred.
    static SEEN: RefCell<Option<Vec<Seen>>> = const { RefCell::new(None) };
}

/// What happens in a step, in its order.
#[derive(Clone, Debug)]
enum Event {
    /// A look at the set begins.
    Look,
    /// A signal handler has done this.
    Above(Above),
    /// What was deferred first is made.
    Made,
}

impl Event {
    /// Whether a handler has had the kernel change the registration of `fd`, which must not be told of an earlier
    /// change.
    fn changes_at(&self, fd: i32) -> bool {
        matches!(self, Event::Above(above) if above.changes() == Some(fd))
    }
}

/// What a handler finds registered under a number.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    ours: Option<(u32, u64)>,
    foreign: Option<(u32, u64)>,
    /// What it would tell the kernel.
    told: Option<Option<(u32, u64)>>,
}

fn seen(set: &Set) -> Vec<Seen> {
    let seen_at = |fd| {
        let mut told = None;
        set.tell(fd, |change| told = Some(change));
        Seen { ours: set.item(fd).map(|it| (it.events, it.data)), foreign: set.foreign(fd), told }
    };
    FDS.map(seen_at).collect()
}

/// The model hears of it.
fn log(event: Event) {
    LOG.with_borrow_mut(|it| it.push(event));
}

/// A lock point of `set`. What was deferred is no news to a handler when it is made.
pub(super) fn interrupt(set: &Set, point: Point) {
    match point {
        Point::Over => SEEN.set(set.deferred.is_any().then(|| seen(set))),
        Point::Made => log(Event::Made),
        Point::Taken | Point::Deferred | Point::Leaving => {}
    }
    SEEN.with_borrow(|it| it.iter().for_each(|it| assert_eq!(*it, seen(set), "{point:?}")));
    let number = POINTS.replace(POINTS.get() + 1);
    let (here, later) = AT_LOCKS.take().into_iter().partition(|(at, _)| *at == number);
    AT_LOCKS.set(later);
    let here: Handlers = here;
    for (_, above) in here {
        above.act_on(set);
        log(Event::Above(above));
        // Before the look, which may change it too, a handler foresees nothing.
        if point != Point::Taken {
            SEEN.set(Some(seen(set)));
        }
    }
    match point {
        Point::Taken => log(Event::Look),
        Point::Leaving if !set.deferred.is_any() => SEEN.set(None),
        _ => {}
    }
}

impl Above {
    fn act_on(&self, set: &Set) {
        assert!(set.is_interrupted());
        match *self {
            Above::Activate(fd) => set.activate(fd),
            Above::Register { fd, events, data, foreign } => {
                let generation = table::generation(fd);
                set.change(Change::Registered { fd, generation, events, data, foreign });
                set.activate(fd);
            }
            Above::Unregister(fd) => set.change(Change::Removed { fd }),
            Above::Forget(fd) => set.change(Change::Forgotten { fd }),
            Above::MakeForeign(fd) => set.change(Change::Foreign { fd, generation: table::generation(fd) }),
            Above::Adopt { fd, heir } => set.adopt(fd, heir),
            Above::End(fd) => set.change(Change::Ended { fd, generation: table::generation(fd) }),
            Above::Close(fd) => table::next_generation(fd),
        };
    }

    /// The descriptor whose registration the kernel has changed for it.
    fn changes(&self) -> Option<i32> {
        match *self {
            Above::Register { fd, .. } | Above::Unregister(fd) => Some(fd),
            _ => None,
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// epoll_ctl, which the kernel may refuse.
    Register {
        fd: i32,
        events: u32,
        data: u64,
        works: bool,
    },
    Unregister {
        fd: i32,
        works: bool,
    },
    /// epoll_ctl of what is no socket of ours.
    RegisterForeign {
        fd: i32,
        events: u32,
        data: u64,
    },
    /// epoll_ctl that the kernel is told later, if possible.
    Change {
        fd: i32,
        events: u32,
        data: u64,
        add: bool,
    },
    Delete(i32),
    Tell(i32),
    TellAll,
    Activate(i32),
    Forget(i32),
    /// For good.
    MakeForeign(i32),
    /// The last descriptor of a socket is closed, or one of several.
    Close {
        fd: i32,
        last: bool,
    },
    Adopt {
        fd: i32,
        heir: i32,
    },
    ForgetClosed(u64),
    /// Is the set native?
    AskNative,
    /// A one-shot registration is used up; one is kicked.
    Mark {
        fd: i32,
        disarmed: bool,
        kicked: bool,
    },
    Scan {
        verdicts: Vec<Scan>,
        in_turn: bool,
    },
}

/// What the kernel knows of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Same,
    Older,
    Removed,
}

#[derive(Clone, Debug)]
struct Known {
    events: u32,
    data: u64,
    foreign: bool,
    generation: u64,
    kernel: Kernel,
    disarmed: bool,
    kicked: bool,
    adopted: bool,
    ended: bool,
}

/// What is to be done to the set, and the generations of the numbers when it was asked for.
#[derive(Clone, Debug)]
struct Pending {
    what: Above,
    then: BTreeMap<i32, u64>,
}

/// The set as one would write it without limits or care for speed. A handler is heard of when it comes, and what it has
/// deferred is done when the set does it.
#[derive(Clone, Debug)]
struct Model {
    known: BTreeMap<i32, Known>,
    active: Vec<i32>,
    turn: usize,
    /// How often each number was closed.
    generations: BTreeMap<i32, u64>,
    pending: VecDeque<Pending>,
}

impl Model {
    fn new() -> Model {
        let generations = FDS.map(|fd| (fd, table::generation(fd))).collect();
        Model { known: BTreeMap::new(), active: Vec::new(), turn: 0, generations, pending: VecDeque::new() }
    }

    fn is_current(&self, fd: i32, it: &Known) -> bool {
        it.generation == self.generations[&fd]
    }

    fn current(&self, fd: i32) -> Option<&Known> {
        self.known.get(&fd).filter(|it| self.is_current(fd, it))
    }

    fn ours(&self, fd: i32) -> Option<&Known> {
        self.current(fd).filter(|it| !it.foreign)
    }

    fn ours_mut(&mut self, fd: i32) -> Option<&mut Known> {
        let generation = self.generations[&fd];
        self.known.get_mut(&fd).filter(|it| it.generation == generation && !it.foreign)
    }

    fn put(&mut self, fd: i32, events: u32, data: u64, foreign: bool) {
        let (generation, kernel) = (self.generations[&fd], Kernel::Same);
        let (disarmed, kicked, adopted, ended) = (false, false, false, false);
        if foreign && self.ours(fd).is_some() {
            self.active.retain(|&it| it != fd);
        }
        self.known.insert(fd, Known { events, data, foreign, generation, kernel, disarmed, kicked, adopted, ended });
    }

    fn activate(&mut self, fd: i32) {
        if self.ours(fd).is_some() && !self.active.contains(&fd) {
            self.active.push(fd);
        }
    }

    fn remove(&mut self, fd: i32) {
        self.known.remove(&fd);
        self.active.retain(|&it| it != fd);
    }

    fn make_foreign(&mut self, fd: i32) {
        if let Some(it) = self.ours(fd).cloned() {
            self.remove(fd);
            self.put(fd, it.events, it.data, true);
        }
    }

    /// A handler has done this.
    fn hear(&mut self, above: &Above) {
        match *above {
            // In the table of descriptors, at once.
            Above::Close(fd) => self.close(fd),
            Above::Register { fd, .. } => {
                self.defer(above.clone());
                self.defer(Above::Activate(fd));
            }
            _ => self.defer(above.clone()),
        }
    }

    fn close(&mut self, fd: i32) {
        // Any other than before: the table has its own.
        self.generations.insert(fd, self.generations[&fd] + 1);
    }

    fn asked_now(&self, what: Above) -> Pending {
        Pending { what, then: self.generations.clone() }
    }

    fn defer(&mut self, above: Above) {
        self.pending.push_back(self.asked_now(above));
    }

    /// What was deferred first is made.
    fn make(&mut self) {
        if let Some(pending) = self.pending.pop_front() {
            self.apply(&pending);
        }
    }

    fn apply(&mut self, Pending { what, then }: &Pending) {
        let is_still = |model: &Model, fd| then[&fd] == model.generations[&fd];
        match *what {
            Above::Activate(fd) => self.activate(fd),
            Above::Register { fd, events, data, foreign } if is_still(self, fd) => self.put(fd, events, data, foreign),
            Above::Unregister(fd) | Above::Forget(fd) => self.remove(fd),
            Above::MakeForeign(fd) if is_still(self, fd) => self.make_foreign(fd),
            Above::Adopt { fd, heir } if is_still(self, heir) => self.adopt((fd, then[&fd]), heir),
            Above::End(fd) => {
                let item = self.known.get_mut(&fd).filter(|it| it.generation == then[&fd] && !it.foreign);
                item.into_iter().for_each(|it| it.ended = true);
            }
            _ => {}
        }
    }

    /// Hears of `log`, in which `look` is what the first look at the set does, if there is one.
    fn replay<T>(&mut self, log: &[Event], look: impl FnOnce(&mut Model) -> T) -> T {
        let mut look = Some(look);
        let mut answer = None;
        for event in log {
            match event {
                Event::Look => answer = look.take().map(|it| it(self)).or(answer),
                Event::Above(above) => self.hear(above),
                Event::Made => self.make(),
            }
        }
        answer.or_else(|| look.map(|it| it(self))).expect("it is done once")
    }

    fn change(&mut self, fd: i32, wanted: Option<(u32, u64)>, add: bool) -> Later {
        let Some(it) = self.ours_mut(fd).filter(|it| !it.disarmed && !it.kicked && !it.adopted) else {
            return Later::Now;
        };
        let (events, data) = wanted.unwrap_or((it.events, it.data));
        if (it.events | events) & (EDGE | ONCE) != 0 || data != it.data {
            return Later::Now;
        }
        match (it.kernel == Kernel::Removed, add) {
            (true, false) => return Later::Absent,
            (false, true) => return Later::Now,
            _ => {}
        }
        it.events = wanted.map_or(0, |(events, _)| events);
        it.kernel = if wanted.is_some() { Kernel::Older } else { Kernel::Removed };
        self.activate(fd);
        Later::Done
    }

    /// Whether a handler has had the kernel change the registration of `fd`.
    fn is_changed(&self, fd: i32) -> bool {
        self.pending.iter().any(|it| it.what.changes() == Some(fd))
    }

    /// What the kernel is told of `fd`.
    fn tell(&mut self, fd: i32) -> Option<(i32, Option<(u32, u64)>)> {
        let it = self.ours_mut(fd).filter(|it| it.kernel != Kernel::Same)?;
        let (events, data) = (it.events, it.data);
        if core::mem::replace(&mut it.kernel, Kernel::Same) == Kernel::Removed {
            self.remove(fd);
            return Some((fd, None));
        }
        Some((fd, Some((events, data))))
    }

    /// The descriptors that a scan shows, in which handlers have closed some.
    fn scan(&mut self, verdicts: &[Scan], in_turn: bool, closed: &[Closed]) -> Vec<i32> {
        let count = self.active.len();
        let start = if in_turn { self.turn.checked_rem(count).unwrap_or(0) } else { 0 };
        let mut stopped = if count == 0 { 0 } else { start + 1 };
        let (mut shown, mut left) = (Vec::new(), Vec::new());
        for index in (start..count).chain(0..start) {
            let fd = self.active[index];
            // Shown before it was closed, or in the look in which it was.
            let is_closed = closed.iter().any(|it| it.fd == fd && it.look < shown.len());
            let Some(it) = self.current(fd).filter(|_| !is_closed) else {
                left.push(fd);
                continue;
            };
            let verdict = verdicts[shown.len() % verdicts.len()];
            let is_told = it.kernel == Kernel::Same;
            shown.push(fd);
            if verdict == Scan::Leave && is_told {
                left.push(fd);
            }
            if verdict == Scan::Enough {
                stopped = index;
                break;
            }
        }
        for fd in &left {
            // The kernel forgets a registration with its descriptor.
            self.known.get_mut(fd).into_iter().for_each(|it| it.kernel = Kernel::Same);
        }
        self.active.retain(|fd| !left.contains(fd));
        if in_turn {
            self.turn = stopped;
        }
        shown
    }

    fn adopt(&mut self, (fd, generation): (i32, u64), heir: i32) {
        let is_meant = |it: &&Known| it.generation == generation && it.kernel != Kernel::Removed;
        let from = self.known.get(&fd).filter(is_meant).cloned();
        if let Some(it) = from.filter(|_| self.current(heir).is_none()) {
            self.put(heir, it.events, it.data, it.foreign);
            let kept = self.known.get_mut(&heir).unwrap();
            (kept.adopted, kept.disarmed) = (true, it.disarmed);
            self.activate(heir);
        }
    }

    fn forget_closed(&mut self, data: u64) {
        let closed = FDS.filter(|fd| self.known.get(fd).is_some_and(|it| it.data == data && !self.is_current(*fd, it)));
        closed.collect::<Vec<_>>().into_iter().for_each(|fd| self.remove(fd));
    }

    fn with_data(&self, data: u64) -> WithData {
        let those = || self.known.iter().filter(|(_, it)| it.data == data);
        match those().filter(|(fd, it)| self.is_current(**fd, it)).count() {
            0 if those().any(|(_, it)| it.ended) => WithData::Closed,
            0 => WithData::Unknown,
            count => WithData::Some(count),
        }
    }
}

/// A descriptor that a handler has closed.
#[derive(Clone, Copy)]
struct Closed {
    fd: i32,
    /// In the look of this number in a step.
    look: usize,
}

/// The set, the model, and the handlers that have still to come.
struct Bench {
    set: &'static Set,
    model: Model,
    handlers: RefCell<Vec<(usize, Above)>>,
    looks: RefCell<usize>,
    closed: RefCell<Vec<Closed>>,
}

impl Bench {
    /// In the middle of a look at the set: the handlers whose turn it is.
    fn interrupted(&self) {
        assert!(self.set.is_interrupted());
        let look = self.looks.replace_with(|it| *it + 1);
        let (now, later): (Vec<_>, Vec<_>) = self.handlers.take().into_iter().partition(|(at, _)| *at == look);
        self.handlers.replace(later);
        for (_, above) in now {
            if let Above::Close(fd) = above {
                self.closed.borrow_mut().push(Closed { fd, look });
            }
            above.act_on(self.set);
            log(Event::Above(above));
        }
    }

    /// The model does what a step has done: `look`, and what handlers did.
    fn replay<T>(&mut self, look: impl FnOnce(&mut Model, &[Closed]) -> T) -> T {
        let closed = self.closed.take();
        let answer = self.model.replay(&LOG.take(), |model| look(model, &closed));
        // Another test's thread, which goes through all sets, may have made what was left.
        while !self.model.pending.is_empty() {
            self.model.make();
        }
        answer
    }

    /// What a handler is told of the registrations is what they will be.
    fn assert_foreseen(&self) {
        let mut model = self.model.clone();
        LOG.with_borrow(|it| model.replay(it, |_| ()));
        while !model.pending.is_empty() {
            model.make();
        }
        for fd in FDS {
            let expected = model.ours(fd).map(|it| (it.events, it.data));
            assert_eq!(self.set.item(fd).map(|it| (it.events, it.data)), expected, "{fd}");
        }
    }

    fn answer(&self, works: bool) -> i32 {
        self.interrupted();
        self.assert_foreseen();
        if works { 0 } else { -1 }
    }

    fn act(&mut self, step: &Step) {
        let set = self.set;
        match *step {
            Step::Register { fd, events, data, works } => self.register((fd, events, data), works),
            Step::Unregister { fd, works } => {
                set.follow_removal(fd, || self.answer(works));
                self.replay(|model, _| {
                    if works {
                        model.remove(fd)
                    }
                });
            }
            Step::RegisterForeign { fd, events, data } => {
                let what = Above::Register { fd, events, data, foreign: true };
                self.change(what, || set.note_foreign(fd, events, data));
            }
            Step::Change { fd, events, data, add } => {
                let wanted = Some((events, data));
                let later = set.change_later(fd, wanted, add);
                assert_eq!(later, self.replay(|model, _| model.change(fd, wanted, add)));
            }
            Step::Delete(fd) => {
                let later = set.change_later(fd, None, false);
                assert_eq!(later, self.replay(|model, _| model.change(fd, None, false)));
            }
            Step::Tell(fd) => {
                let mut told = None;
                set.tell(fd, |change| {
                    told = Some((fd, change));
                    self.interrupted();
                });
                assert_eq!(told, self.replay(|model, _| if model.is_changed(fd) { None } else { model.tell(fd) }));
            }
            Step::TellAll => self.tell_all(),
            Step::Activate(fd) => self.change(Above::Activate(fd), || set.activate(fd)),
            Step::Forget(fd) => self.change(Above::Forget(fd), || set.change(Change::Forgotten { fd })),
            Step::MakeForeign(fd) => {
                let change = Change::Foreign { fd, generation: table::generation(fd) };
                self.change(Above::MakeForeign(fd), || set.change(change));
            }
            Step::Close { fd, last } => self.close(fd, last),
            Step::Adopt { fd, heir } => self.change(Above::Adopt { fd, heir }, || set.adopt(fd, heir)),
            Step::AskNative => {
                let native = set.native();
                self.replay(|_, _| ());
                self.assert_used_up_by_library(native);
            }
            Step::ForgetClosed(data) => {
                set.forget_closed(data);
                self.replay(|model, _| model.forget_closed(data));
            }
            Step::Mark { fd, disarmed, kicked } => {
                let mark = |item: &mut Item| {
                    item.set_disarmed(disarmed);
                    item.set_kicked(kicked);
                    self.interrupted();
                };
                if kicked {
                    set.with_item(fd, mark);
                } else {
                    set.look_at(fd, |item| {
                        mark(item);
                        false
                    });
                }
                self.replay(|model, _| {
                    model.ours_mut(fd).into_iter().for_each(|it| (it.disarmed, it.kicked) = (disarmed, kicked));
                });
            }
            Step::Scan { ref verdicts, in_turn } => self.scan(verdicts, in_turn),
        }
    }

    /// A change of the set that a handler would defer.
    fn change(&mut self, what: Above, change: impl FnOnce()) {
        let pending = self.model.asked_now(what);
        change();
        self.replay(|model, _| model.apply(&pending));
    }

    fn register(&mut self, (fd, events, data): (i32, u32, u64), works: bool) {
        let before = self.model.generations[&fd];
        let answer = self.set.follow(fd, events, data, || self.answer(works));
        assert_eq!(answer, Ok(if works { 0 } else { -1 }));
        self.replay(|model, closed| {
            // The kernel forgets a registration with its descriptor.
            let is_still = model.generations[&fd] == before && closed.iter().all(|it| it.fd != fd);
            if works && is_still {
                model.put(fd, events, data, false);
            }
        });
    }

    fn tell_all(&mut self) {
        let set = self.set;
        let mut told = Vec::new();
        set.tell_all(|fd, change| {
            let is_changed = LOG.with_borrow(|it| it.iter().any(|it| it.changes_at(fd)));
            assert!(!is_changed, "a handler has had the kernel change {fd}");
            told.push((fd, change));
            self.interrupted();
        });
        let changed: Vec<i32> = LOG.with_borrow(|it| FDS.filter(|&fd| it.iter().any(|it| it.changes_at(fd))).collect());
        self.replay(|model, closed| {
            for fd in FDS {
                let is_told = told.iter().any(|it| it.0 == fd);
                // If a handler closes a descriptor meanwhile, or changes its registration, the kernel need not be told.
                let may_lack = changed.contains(&fd) || closed.iter().any(|it| it.fd == fd);
                if is_told || !may_lack {
                    let told = told.iter().find(|it| it.0 == fd).copied();
                    assert_eq!(told, model.tell(fd));
                }
            }
        });
    }

    fn close(&mut self, fd: i32, last: bool) {
        if last {
            let ended = Change::Ended { fd, generation: table::generation(fd) };
            self.change(Above::End(fd), || self.set.change(ended));
        }
        table::next_generation(fd);
        self.model.close(fd);
    }

    fn scan(&mut self, verdicts: &[Scan], in_turn: bool) {
        let set = self.set;
        let mut shown = Vec::new();
        let look = |fd: i32, _: &mut Item, _: &mut Joining<'_>| {
            shown.push(fd);
            self.interrupted();
            self.assert_foreseen();
            verdicts[(shown.len() - 1) % verdicts.len()]
        };
        if in_turn {
            set.scan_in_turn(look)
        } else {
            set.scan(look)
        }
        assert_eq!(shown, self.replay(|model, closed| model.scan(verdicts, in_turn, closed)));
    }

    fn assert_alike(&self) {
        let (set, model) = (self.set, &self.model);
        for fd in FDS {
            let told = |it: &Known| (it.events, it.data, it.kernel == Kernel::Removed, it.disarmed, it.kicked);
            let item = set.item(fd);
            let found = item.as_ref().map(|it| (it.events, it.data, it.is_gone(), it.is_disarmed(), it.is_kicked()));
            assert_eq!(found, model.ours(fd).map(told), "{fd}");
            let foreign = model.current(fd).filter(|it| it.foreign);
            assert_eq!(set.foreign(fd), foreign.map(|it| (it.events, it.data)), "{fd}");
        }
        for data in DATA {
            let mut found = [Registered::default(); FDS.end as usize - FDS.start as usize];
            let answer = set.with_data(data, 0, &mut found);
            assert_eq!(answer, model.with_data(data), "{data}");
            if let WithData::Some(count) = answer {
                let mut fds: Vec<i32> = found[..count].iter().map(|it| it.fd).collect();
                fds.sort_unstable();
                let those = model.known.iter().filter(|(fd, it)| it.data == data && model.is_current(**fd, it));
                assert_eq!(fds, those.map(|(&fd, _)| fd).collect::<Vec<_>>());
            }
        }
        assert_eq!(set.count() as usize, model.known.values().filter(|it| !it.foreign).count());
        assert_eq!(set.is_active(), !model.active.is_empty());
        let is_stale = |fd| model.ours(fd).is_some_and(|it| it.kernel != Kernel::Same);
        assert!(set.is_stale() || !FDS.into_iter().any(is_stale), "the kernel is told of what it does not know");
        self.assert_used_up_by_library(set.native());
    }

    /// A set with a one-shot registration is not native.
    fn assert_used_up_by_library(&self, native: Option<u64>) {
        let is_one_shot = |fd| self.model.ours(fd).is_some_and(|it| it.events & ONCE != 0);
        assert!(native.is_none() || !FDS.into_iter().any(is_one_shot));
    }
}

/// Some more often than others, so that much happens to one of them.
fn fd() -> impl Strategy<Value = i32> {
    prop_oneof![FDS.start..FDS.start + 3, FDS]
}

/// Level-triggered, or of a special kind.
fn events() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1_u32..8, 1 => (1_u32..8).prop_map(|it| it | EDGE), 1 => (1_u32..8).prop_map(|it| it | ONCE)]
}

fn above() -> impl Strategy<Value = Above> {
    prop_oneof![
        2 => fd().prop_map(Above::Activate),
        2 => (fd(), events(), DATA, any::<bool>())
            .prop_map(|(fd, events, data, foreign)| Above::Register { fd, events, data, foreign }),
        1 => fd().prop_map(Above::Unregister),
        1 => fd().prop_map(Above::Forget),
        1 => fd().prop_map(Above::MakeForeign),
        2 => (fd(), fd()).prop_map(|(fd, heir)| Above::Adopt { fd, heir }),
        1 => fd().prop_map(Above::End),
        1 => fd().prop_map(Above::Close),
    ]
}

/// What a handler does, by the number of the look, or of the lock point, in its step.
type Handlers = Vec<(usize, Above)>;

fn steps() -> impl Strategy<Value = Vec<(Step, Handlers, Handlers)>> {
    let in_looks = prop::collection::vec((0_usize..4, above()), 0..4);
    let at_locks = prop::collection::vec((0_usize..10, above()), 0..4);
    prop::collection::vec((step(), in_looks, at_locks), 1..80)
}

fn verdict() -> impl Strategy<Value = Scan> {
    prop_oneof![3 => Just(Scan::Keep), 2 => Just(Scan::Leave), 1 => Just(Scan::Enough)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (fd(), events(), DATA, prop::bool::weighted(0.9))
            .prop_map(|(fd, events, data, works)| Step::Register { fd, events, data, works }),
        2 => (fd(), any::<bool>()).prop_map(|(fd, works)| Step::Unregister { fd, works }),
        1 => (fd(), events(), DATA).prop_map(|(fd, events, data)| Step::RegisterForeign { fd, events, data }),
        6 => (fd(), events(), DATA, any::<bool>())
            .prop_map(|(fd, events, data, add)| Step::Change { fd, events, data, add }),
        3 => fd().prop_map(Step::Delete),
        2 => fd().prop_map(Step::Tell),
        2 => Just(Step::TellAll),
        4 => fd().prop_map(Step::Activate),
        1 => fd().prop_map(Step::Forget),
        1 => fd().prop_map(Step::MakeForeign),
        2 => (fd(), any::<bool>()).prop_map(|(fd, last)| Step::Close { fd, last }),
        1 => (fd(), fd()).prop_map(|(fd, heir)| Step::Adopt { fd, heir }),
        1 => DATA.prop_map(Step::ForgetClosed),
        2 => Just(Step::AskNative),
        1 => (fd(), any::<bool>(), any::<bool>())
            .prop_map(|(fd, disarmed, kicked)| Step::Mark { fd, disarmed, kicked }),
        6 => (prop::collection::vec(verdict(), 1..5), any::<bool>())
            .prop_map(|(verdicts, in_turn)| Step::Scan { verdicts, in_turn }),
    ]
}

proptest! {
    #[test]
    fn a_set_is_as_the_model_says(steps in steps()) {
        // A case that has failed may have left some.
        AT_LOCKS.take();
        SEEN.take();
        // SAFETY: a set, once made, is never unmapped.
        let set = unsafe { &*Set::make(FDS.end).expect("address space") };
        let mut bench = Bench {
            set,
            model: Model::new(),
            handlers: RefCell::default(),
            looks: RefCell::default(),
            closed: RefCell::default(),
        };
        for (step, in_looks, at_locks) in &steps {
            bench.handlers.replace(in_looks.clone());
            AT_LOCKS.replace(at_locks.clone());
            bench.looks.replace(0);
            POINTS.set(0);
            LOG.take();
            bench.act(step);
            AT_LOCKS.take();
            bench.assert_alike();
        }
        Set::release(set);
    }
}
