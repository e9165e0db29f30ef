//! A set against a naive model: random lists of what a program and the library do with it, with signal handlers that
//! interrupt every look and come at every lock point. There is no kernel: the test notes what the kernel would be told.

use super::*;
use proptest::prelude::*;
use std::cell::RefCell;
use std::collections::BTreeMap;

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
    Register { fd: i32, events: u32, data: u64, foreign: bool },
    Unregister(i32),
    Forget(i32),
    MakeForeign(i32),
    Close(i32),
}

thread_local! {
    /// What interrupts this thread at each lock point of a set.
    static AT_LOCKS: RefCell<Vec<Above>> = const { RefCell::new(Vec::new()) };
    /// What signal handlers have done in this step, of which the model hears when it ends.
    static DONE: RefCell<Vec<Above>> = const { RefCell::new(Vec::new()) };
}

/// A lock point of `set`: where a thread has just taken its lock, or is about to give it back.
pub(super) fn interrupt(set: &Set) {
    if let Some(above) = AT_LOCKS.with_borrow_mut(Vec::pop) {
        above.act_on(set);
        DONE.with_borrow_mut(|it| it.push(above));
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
            Above::Close(fd) => table::next_generation(fd),
        };
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

impl Known {
    fn is_current(&self, fd: i32) -> bool {
        self.generation == table::generation(fd)
    }
}

/// The set as one would write it without signal handlers, limits or care for speed.
#[derive(Clone, Debug, Default)]
struct Model {
    known: BTreeMap<i32, Known>,
    active: Vec<i32>,
    turn: usize,
}

impl Model {
    fn current(&self, fd: i32) -> Option<&Known> {
        self.known.get(&fd).filter(|it| it.is_current(fd))
    }

    fn ours(&self, fd: i32) -> Option<&Known> {
        self.current(fd).filter(|it| !it.foreign)
    }

    fn ours_mut(&mut self, fd: i32) -> Option<&mut Known> {
        self.known.get_mut(&fd).filter(|it| it.is_current(fd) && !it.foreign)
    }

    fn put(&mut self, fd: i32, events: u32, data: u64, foreign: bool) {
        let (generation, kernel) = (table::generation(fd), Kernel::Same);
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

    fn handle(&mut self, above: &Above) {
        match *above {
            Above::Activate(fd) => self.activate(fd),
            Above::Register { fd, events, data, foreign } => {
                self.put(fd, events, data, foreign);
                self.activate(fd);
            }
            Above::Unregister(fd) | Above::Forget(fd) => self.remove(fd),
            Above::MakeForeign(fd) => self.make_foreign(fd),
            // In the table of descriptors, at once.
            Above::Close(_) => {}
        }
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
            let later = closed.iter().find(|it| it.fd == fd && it.look >= shown.len());
            let generation = later.map_or_else(|| table::generation(fd), |it| it.generation);
            let Some(it) = self.known.get(&fd).filter(|it| it.generation == generation) else {
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

    fn with_data(&self, data: u64) -> WithData {
        let those = || self.known.iter().filter(|(_, it)| it.data == data);
        match those().filter(|(fd, it)| it.is_current(**fd)).count() {
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
    /// The number's generation before.
    generation: u64,
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
                self.closed.borrow_mut().push(Closed { fd, look, generation: table::generation(fd) });
            }
            above.act_on(self.set);
            DONE.with_borrow_mut(|done| {
                if let Above::Close(closed) = above {
                    // What was registered under the number before is gone.
                    done.retain(|it| !matches!(it, Above::Register { fd, .. } if *fd == closed));
                }
                done.push(above);
            });
        }
    }

    /// What handlers have done.
    fn model_hears(&mut self) {
        DONE.take().iter().for_each(|it| self.model.handle(it));
    }

    /// What a handler is told of the registrations is what they will be.
    fn assert_foreseen(&self) {
        let mut model = self.model.clone();
        DONE.with_borrow(|done| done.iter().for_each(|it| model.handle(it)));
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
            Step::Register { fd, events, data, works } => {
                let generation = table::generation(fd);
                let answer = set.follow(fd, events, data, || self.answer(works));
                assert_eq!(answer, Ok(if works { 0 } else { -1 }));
                // The kernel forgets a registration with its descriptor.
                if works && table::generation(fd) == generation {
                    self.model.put(fd, events, data, false);
                }
            }
            Step::Unregister { fd, works } => {
                set.follow_removal(fd, || self.answer(works));
                if works {
                    self.model.remove(fd);
                }
            }
            Step::RegisterForeign { fd, events, data } => {
                set.note_foreign(fd, events, data);
                self.model.put(fd, events, data, true);
            }
            Step::Change { fd, events, data, add } => {
                let wanted = Some((events, data));
                assert_eq!(set.change_later(fd, wanted, add), self.model.change(fd, wanted, add));
            }
            Step::Delete(fd) => assert_eq!(set.change_later(fd, None, false), self.model.change(fd, None, false)),
            Step::Tell(fd) => {
                let (expected, mut told) = (self.model.tell(fd), None);
                set.tell(fd, |change| {
                    told = Some((fd, change));
                    self.interrupted();
                });
                assert_eq!(told, expected);
            }
            Step::TellAll => self.tell_all(),
            Step::Activate(fd) => {
                set.activate(fd);
                self.model.activate(fd);
            }
            Step::Forget(fd) => {
                set.change(Change::Forgotten { fd });
                self.model.remove(fd);
            }
            Step::MakeForeign(fd) => {
                set.change(Change::Foreign { fd, generation: table::generation(fd) });
                self.model.make_foreign(fd);
            }
            Step::Close { fd, last } => self.close(fd, last),
            Step::Adopt { fd, heir } => self.adopt(fd, heir),
            Step::AskNative => {
                let native = set.native();
                self.model_hears();
                self.assert_used_up_by_library(native);
            }
            Step::ForgetClosed(data) => {
                set.forget_closed(data);
                let is_closed =
                    |fd: &i32| self.model.known.get(fd).is_some_and(|it| it.data == data && !it.is_current(*fd));
                FDS.filter(is_closed).collect::<Vec<_>>().into_iter().for_each(|fd| self.model.remove(fd));
            }
            Step::Mark { fd, disarmed, kicked } => {
                set.look_at(fd, |item| {
                    item.set_disarmed(disarmed);
                    item.set_kicked(kicked);
                    self.interrupted();
                    false
                });
                self.model.ours_mut(fd).into_iter().for_each(|it| (it.disarmed, it.kicked) = (disarmed, kicked));
            }
            Step::Scan { ref verdicts, in_turn } => self.scan(verdicts, in_turn),
        }
    }

    fn tell_all(&mut self) {
        let set = self.set;
        let mut told = Vec::new();
        set.tell_all(|fd, change| {
            told.push((fd, change));
            self.interrupted();
        });
        told.sort_unstable();
        // If a handler closes a descriptor meanwhile, the kernel need not be told of it.
        let closed: Vec<i32> = self.closed.borrow().iter().map(|it| it.fd).collect();
        let expected: Vec<_> = FDS.filter_map(|fd| self.model.tell(fd)).collect();
        assert!(expected.iter().all(|it| told.contains(it)), "{told:?} {expected:?}");
        assert!(told.iter().all(|it| expected.contains(it) || closed.contains(&it.0)), "{told:?} {expected:?}");
        for (fd, change) in told {
            match change {
                Some(_) => self.model.known.get_mut(&fd).into_iter().for_each(|it| it.kernel = Kernel::Same),
                None => self.model.remove(fd),
            }
        }
        assert!(!set.is_stale());
    }

    fn close(&mut self, fd: i32, last: bool) {
        let set = self.set;
        if last {
            self.model.ours_mut(fd).into_iter().for_each(|it| it.ended = true);
            set.with_item(fd, |item| {
                item.set_ended();
                self.interrupted();
            });
            // What handlers have put off is done as soon as nobody is inside.
            self.model_hears();
        }
        table::next_generation(fd);
    }

    fn adopt(&mut self, fd: i32, heir: i32) {
        let set = self.set;
        set.adopt(fd, heir);
        let from = self.model.current(fd).filter(|it| it.kernel != Kernel::Removed).cloned();
        if let Some(it) = from.filter(|_| self.model.current(heir).is_none()) {
            self.model.put(heir, it.events, it.data, it.foreign);
            let kept = self.model.known.get_mut(&heir).unwrap();
            (kept.adopted, kept.disarmed) = (true, it.disarmed);
            self.model.activate(heir);
        }
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
        assert_eq!(shown, self.model.scan(verdicts, in_turn, &self.closed.borrow()));
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
                let those = model.known.iter().filter(|(fd, it)| it.data == data && it.is_current(**fd));
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

fn fd() -> impl Strategy<Value = i32> {
    FDS
}

/// Level-triggered, or of a special kind.
fn events() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1_u32..8, 1 => (1_u32..8).prop_map(|it| it | EDGE), 1 => (1_u32..8).prop_map(|it| it | ONCE)]
}

fn above_a_lock() -> impl Strategy<Value = Above> {
    prop_oneof![
        2 => fd().prop_map(Above::Activate),
        2 => (fd(), events(), DATA, any::<bool>())
            .prop_map(|(fd, events, data, foreign)| Above::Register { fd, events, data, foreign }),
        1 => fd().prop_map(Above::Unregister),
        1 => fd().prop_map(Above::Forget),
        1 => fd().prop_map(Above::MakeForeign),
    ]
}

/// A close begins the number's next generation at once, so the model must know when.
fn above() -> impl Strategy<Value = Above> {
    prop_oneof![6 => above_a_lock(), 1 => fd().prop_map(Above::Close)]
}

/// What a handler does in a look, by the number of the look in its step.
type InLook = (usize, Above);

fn steps() -> impl Strategy<Value = Vec<(Step, Vec<InLook>, Vec<Above>)>> {
    let in_looks = prop::collection::vec((0_usize..4, above()), 0..4);
    prop::collection::vec((step(), in_looks, prop::collection::vec(above_a_lock(), 0..3)), 1..80)
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
        // SAFETY: a set, once made, is never unmapped.
        let set = unsafe { &*Set::make(FDS.end).expect("address space") };
        let mut bench = Bench {
            set,
            model: Model::default(),
            handlers: RefCell::default(),
            looks: RefCell::default(),
            closed: RefCell::default(),
        };
        for (step, in_looks, at_locks) in &steps {
            bench.handlers.replace(in_looks.clone());
            AT_LOCKS.replace(at_locks.clone());
            bench.looks.replace(0);
            bench.closed.take();
            bench.act(step);
            AT_LOCKS.take();
            bench.model_hears();
            bench.assert_alike();
        }
        Set::release(set);
    }
}
