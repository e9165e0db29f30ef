//! Which processes of a family have which of its ends, so that the ends of a process come back that was killed, or has
//! ended without closing.
//!
//! Each process that has ends is a *member* of its family: a place in a table, with the process's number. Each end has
//! a bit for each member, which stands for one of the end's references. A bit is set before its reference is counted,
//! because a reference without a bit does not come back. Where a process was killed in between, too much is taken back,
//! but never below the number of members that live and have the end ([`crate::end::Owners`]). A bit is cleared before
//! its reference is counted off: afterwards the end may be another connection's. A child's references are counted, with
//! their bits, before it is forked. A process that executes a program stays the member that it was.

use super::members::{MEMBERS, TAKEN};
use super::{Family, MAX_ENDS};
use crate::clock;
use crate::end::{Owners, Stage};
use crate::kernel::{self, Process};
use crate::raw::is_quiet;
use crate::sync::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// The ends of members that are gone are looked for each time that this many more ends are in use.
const SWEEP_EVERY: u32 = 256;
/// How long no process looks again if no member was gone.
const PAUSE_NS: u64 = 100_000_000;

/// A set of members.
type Set = [u64; MEMBERS / 64];

/// How a process ceases to keep the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Departing {
    /// A program image takes its place and comes for its ends.
    ForAnImage,
    /// Nobody comes.
    ForGood,
}

impl Family {
    /// This process becomes a member; `None` where it cannot be told from other processes, or there are too many
    /// members. Then its ends do not come back if it is killed.
    pub fn join(&self) -> Option<u32> {
        if is_quiet() {
            return None;
        }
        self.join_as(kernel::process_id() as u32, kernel::namespaces()?)
    }

    fn join_as(&self, process: u32, namespaces: u64) -> Option<u32> {
        let at = self.reserve(namespaces)?;
        self.members().places[at as usize].process.store(process, Release);
        Some(at)
    }

    /// Takes a place for a process that is about to be forked; `None` as for [`Family::join`]. Both the child and its
    /// parent write the child's number there.
    pub fn expect(&self) -> Option<u32> {
        if is_quiet() {
            return None;
        }
        self.reserve(kernel::namespaces()?)
    }

    /// This process is `member`, which its parent has expected.
    pub fn begin(&self, member: u32) {
        let expected = self.members().places.get(member as usize).map(|it| it.namespaces.load(Relaxed));
        // In other namespaces its number says nothing to processes that know its parent's.
        if expected.is_some() && kernel::namespaces() == expected {
            self.forked(member, Some(kernel::process_id() as u32));
            // Another thread of its parent may have attached the rest meanwhile.
            self.members().places[member as usize].mappings.store(self.mappings(), Relaxed);
        }
    }

    /// `member`, which was expected, is `process`; `None`: no process.
    pub fn forked(&self, member: u32, process: Option<u32>) {
        if let Some(it) = self.members().places.get(member as usize) {
            let _ = it.process.compare_exchange(TAKEN, process.unwrap_or(0), AcqRel, Relaxed);
        }
    }

    fn reserve(&self, namespaces: u64) -> Option<u32> {
        let members = self.members();
        let first = members.next.load(Relaxed);
        let at = (0..MEMBERS as u32).map(|step| first.wrapping_add(step) % MEMBERS as u32).find(|&at| {
            let word = &members.places[at as usize].process;
            word.load(Relaxed) == 0 && word.compare_exchange(0, TAKEN, Acquire, Relaxed).is_ok()
        })?;
        let member = &members.places[at as usize];
        member.namespaces.store(namespaces, Relaxed);
        member.began.store(0, Relaxed);
        // A child that is forked now has the same mappings.
        member.mappings.store(self.mappings(), Relaxed);
        members.next.store(at + 1, Relaxed);
        Some(at)
    }

    /// Whether this process was `member` before it executed its program.
    pub fn was(&self, member: u32) -> bool {
        let me = (kernel::namespaces(), kernel::process_id() as u32);
        self.process(member).is_some_and(|(namespaces, process)| (Some(namespaces), process) == me)
    }

    /// This process, which was `member` before it executed its program, has come for that member's ends and for their
    /// channels, and keeps the table from now on. False if it was not.
    pub fn stay(&self, member: u32) -> bool {
        let was = self.was(member);
        if was {
            self.end_departure(Some(member));
        }
        was
    }

    /// This process has one mapping more. If it departs, it keeps saying so.
    pub(crate) fn tell_mappings(&self) {
        let (me, namespaces) = (kernel::process_id() as u32, kernel::namespaces());
        let places = self.members().places.iter().filter(|it| it.process.load(Relaxed) == me);
        let mine = places.filter(|it| namespaces == Some(it.namespaces.load(Relaxed)));
        let more = |before| (before != 0).then(|| self.mappings());
        mine.for_each(|it| _ = it.mappings.fetch_update(SeqCst, Relaxed, more));
    }

    /// The process that is `member`: its number, and the [namespaces](kernel::namespaces) in which the number is valid.
    pub(crate) fn process(&self, member: u32) -> Option<(u64, u32)> {
        let it = self.members().places.get(member as usize)?;
        let process = it.process.load(Acquire);
        (!matches!(process, 0 | TAKEN)).then(|| (it.namespaces.load(Relaxed), process))
    }

    /// Whether process `number` of `namespaces` is a member.
    pub(crate) fn is_of(&self, number: u32, namespaces: u64) -> bool {
        (0..MEMBERS as u32).any(|member| self.process(member) == Some((namespaces, number)))
    }

    /// Whether another process than `me` has the table, as far as can be told. A process that only
    /// [watches](crate::watch) the table does not count.
    pub fn has_others(&self, me: Option<u32>) -> bool {
        if self.attached() == Some(self.mappings().into()) {
            return false;
        }
        let (Some(me), Some(namespaces)) = (me, kernel::namespaces()) else { return true };
        let others = self.members().places.iter().enumerate().filter(|&(at, _)| at != me as usize).map(|it| it.1);
        others.into_iter().any(|it| it.process.load(Acquire) != 0 && !it.is_gone(namespaces))
    }

    /// `member` is about to execute a program, or to end: from now on this process does not keep the table.
    /// Until the new image [stays](Family::stay), or the execution has failed.
    ///
    /// Says so first, and then looks whether another process is [between two images](Family::has_owner_between_images).
    /// If so, takes it back, and returns false: of two processes that do this at the same time, the process that says
    /// so last finds the other.
    pub fn begin_departure(&self, member: Option<u32>, how: Departing) -> bool {
        self.force_departure(member, how);
        let is_needed = self.has_owner_between_images(member);
        if is_needed {
            self.end_departure(member);
        }
        !is_needed
    }

    /// `member` begins its departure as in [`Family::begin_departure`], even if another process needs this one to keep
    /// the table.
    pub fn force_departure(&self, member: Option<u32>, how: Departing) {
        if let Some(place) = member.and_then(|member| self.members().places.get(member as usize)) {
            // This comes first: nobody waits for an image that does not come.
            place.returns.store((how == Departing::ForAnImage).into(), Release);
            place.mappings.store(0, SeqCst);
        }
    }

    /// The execution has failed.
    pub fn end_departure(&self, member: Option<u32>) {
        if let Some(place) = member.and_then(|member| self.members().places.get(member as usize)) {
            place.mappings.store(self.mappings(), SeqCst);
        }
    }

    /// Whether another process than `me` that lives is between two program images and has an end that has changed,
    /// perhaps, since the process took a [copy](crate::end::Owners::is_copied) of it along, while no other process
    /// keeps the table: the new image finds the end there only if this process keeps it.
    pub fn has_owner_between_images(&self, me: Option<u32>) -> bool {
        let Some(namespaces) = kernel::namespaces().filter(|_| !is_quiet()) else { return false };
        if !self.others(me).any(|it| self.is_to_return(it)) || !self.keeps_alone(me) {
            return false;
        }
        (0..self.used()).any(|index| {
            let end = self.end(index);
            let is_needed = end.stage() == Stage::Joined && end.owners.is_copied();
            is_needed && self.is_referred_to_by(index, namespaces, |it| self.is_other(it, me) && self.is_to_return(it))
        })
    }

    /// Whether another process than `me` that refers to the end, and lives, has departed.
    pub fn is_referred_to_by_departed(&self, index: u32, me: Option<u32>) -> bool {
        let namespaces = kernel::namespaces().filter(|_| !is_quiet());
        let has_departed = |it| self.is_other(it, me) && self.is_departed(it);
        namespaces.is_some_and(|namespaces| self.is_referred_to_by(index, namespaces, has_departed))
    }

    /// Whether a process that lives refers to the end, and is as `what` says.
    fn is_referred_to_by(&self, index: u32, namespaces: u64, what: impl Fn(u32) -> bool) -> bool {
        let lives = |member: u32| !self.members().places[member as usize].is_gone(namespaces);
        self.holders(index).iter().any(|member| what(member) && lives(member))
    }

    /// Whether no other process than `me` keeps the table, as far as can be told.
    pub fn keeps_alone(&self, me: Option<u32>) -> bool {
        let Some(namespaces) = kernel::namespaces().filter(|_| !is_quiet()) else { return false };
        let keeps_table = |it| !self.is_departed(it) && !self.members().places[it as usize].is_gone(namespaces);
        !self.others(me).any(keeps_table)
    }

    /// The members that are another process than `me`.
    fn others(&self, me: Option<u32>) -> impl Iterator<Item = u32> {
        (0..MEMBERS as u32).filter(move |&member| self.is_other(member, me))
    }

    /// Whether `member` is another process than `me`.
    fn is_other(&self, member: u32, me: Option<u32>) -> bool {
        let place = &self.members().places[member as usize];
        Some(member) != me && !matches!(place.process.load(Acquire), 0 | TAKEN)
    }

    /// Whether `member` does not keep the table.
    fn is_departed(&self, member: u32) -> bool {
        self.members().places[member as usize].mappings.load(SeqCst) == 0
    }

    /// Whether `member` is between two images.
    fn is_to_return(&self, member: u32) -> bool {
        self.is_departed(member) && self.members().places[member as usize].returns.load(Acquire) != 0
    }

    /// Whether `member` has counted a reference to the end.
    pub fn has_reference(&self, index: u32, member: Option<u32>) -> bool {
        member.is_some_and(|member| self.holders(index).has(member))
    }

    /// Whether a process is gone that has counted a reference to the end.
    pub fn has_reference_of_gone(&self, index: u32) -> bool {
        let is_gone = |member: u32, namespaces| self.members().places[member as usize].is_gone(namespaces);
        !is_quiet()
            && kernel::namespaces().is_some_and(|it| self.holders(index).iter().any(|member| is_gone(member, it)))
    }

    /// Whether another process than `me` that lives refers to the end, and has not the segment `id`, as far as it can
    /// be asked.
    pub fn is_referred_to_by_process_without(&self, index: u32, me: Option<u32>, id: i32) -> bool {
        let Some(namespaces) = kernel::namespaces().filter(|_| !is_quiet()) else { return true };
        let has = |number| kernel::has_segment(number as i32, id) == Ok(true);
        let lacks = |it| !self.process(it).is_some_and(|(its, number)| its == namespaces && has(number));
        self.is_referred_to_by(index, namespaces, |it| self.is_other(it, me) && lacks(it))
    }

    /// Whether another process than `me` is about to be gone: it was killed a moment ago.
    pub fn has_dying(&self, me: Option<u32>) -> bool {
        let namespaces = kernel::namespaces().filter(|_| !is_quiet());
        let is_dying = |(its, number)| Some(its) == namespaces && kernel::is_dying(number);
        namespaces.is_some() && self.others(me).any(|member| self.process(member).is_some_and(is_dying))
    }

    /// Counts a reference of `member`, which comes for the end and has yet to attach its channel: see
    /// [`crate::end::Owners::arrive`].
    pub fn arrive(&self, index: u32, member: Option<u32>) -> bool {
        self.count_reference(index, member, |owners| owners.arrive())
    }

    /// Counts a reference of `member`; false if no process has the end any more.
    pub fn add_reference(&self, index: u32, member: Option<u32>) -> bool {
        self.count_reference(index, member, |owners| owners.add_if_used())
    }

    fn count_reference(&self, index: u32, member: Option<u32>, count: impl FnOnce(&Owners) -> bool) -> bool {
        let had = self.has_reference(index, member);
        self.note_reference(index, member);
        let is_counted = count(&self.end(index).owners);
        if !is_counted && !had {
            self.forget_reference(index, member);
        }
        is_counted
    }

    /// `member` has a reference to the end.
    pub fn note_reference(&self, index: u32, member: Option<u32>) {
        if let Some(member) = member {
            let (word, bit) = self.holders(index).place(member);
            word.fetch_or(bit, AcqRel);
        }
    }

    /// `member` is about to count its reference off.
    pub fn forget_reference(&self, index: u32, member: Option<u32>) {
        if let Some(member) = member {
            let (word, bit) = self.holders(index).place(member);
            word.fetch_and(!bit, AcqRel);
        }
    }

    /// Whether it is time to take back what members have left that are gone, before another end is taken.
    pub fn is_short(&self) -> bool {
        let fresh = self.without_free();
        fresh.is_some_and(|fresh| fresh > 0 && (fresh.is_multiple_of(SWEEP_EVERY) || fresh as usize >= MAX_ENDS))
    }

    /// Takes back the references of `member` to ends that it has no more, as `has` says. Calls `close` as
    /// [`Family::sweep`] does.
    pub fn keep_only(&self, member: u32, has: impl Fn(u32) -> bool, close: impl FnMut(u32)) {
        let mut alone = Set::default();
        alone[member as usize / 64] = 1 << (member % 64);
        self.take_back(alone, has, close);
    }

    /// Takes back the references of members that are gone, and frees their places. Calls `close` for each end that no
    /// process has any more; `close` has to give it back.
    pub fn sweep(&self, close: impl FnMut(u32)) {
        if is_quiet() {
            return;
        }
        let Some(namespaces) = kernel::namespaces() else { return };
        let members = self.members();
        let now = clock::nanoseconds();
        if now.wrapping_sub(members.swept.load(Relaxed)) < PAUSE_NS {
            return;
        }
        // A process is noted by namespace and number, because this one may not be able to ask the kernel about it.
        let me = namespaces & !u64::from(u32::MAX) | kernel::process_id() as u64;
        let before = members.sweeper.load(Relaxed);
        let is_free = before == 0 || (before ^ me) >> 32 == 0 && kernel::process(before as u32) == Process::Gone;
        if !is_free || members.sweeper.compare_exchange(before, me, Acquire, Relaxed).is_err() {
            return;
        }
        match self.gone(namespaces) {
            Some(gone) => self.take_back(gone, |_| false, close),
            None => members.swept.store(now, Relaxed),
        }
        members.sweeper.store(0, Release);
    }

    /// Has the next sweep look at once, because its result must not depend on when the last one was.
    pub fn look_again(&self) {
        self.members().swept.store(0, Relaxed);
    }

    /// The members that are gone; `None` if none is.
    fn gone(&self, namespaces: u64) -> Option<Set> {
        let mut gone = Set::default();
        // This process may have departed, and has its mappings all the same.
        let me = (namespaces, kernel::process_id() as u32);
        let mut living = 0;
        for (at, member) in self.members().places.iter().enumerate() {
            if member.is_gone(namespaces) {
                gone[at / 64] |= 1 << (at % 64);
            } else if !matches!(member.process.load(Relaxed), 0 | TAKEN) {
                let is_me = self.process(at as u32) == Some(me);
                let mappings = if is_me { self.mappings() } else { member.mappings.load(Relaxed) };
                living += u64::from(mappings);
            }
        }
        // A process that was forked without the library's knowledge has its parent's ends, and may not have counted
        // itself yet.
        let all_known = || self.attached().is_some_and(|attached| attached <= living);
        (gone != Set::default() && all_known()).then_some(gone)
    }

    fn take_back(&self, gone: Set, has: impl Fn(u32) -> bool, mut close: impl FnMut(u32)) {
        let used = self.used();
        if !self.reaches(used.saturating_sub(1)) {
            // The gone processes stay members, so that no other process takes their places and ends. Another sweep
            // takes the ends back.
            return;
        }
        let mut kept = Set::default();
        for index in 0..used {
            let holders = self.holders(index);
            if holders.words().iter().zip(gone).all(|(word, gone)| word.load(Relaxed) & gone == 0) {
                continue;
            }
            let end = self.end(index);
            // A program image to come may still claim it, or a process that the socket was passed to. It is kept for
            // that, by the references of the gone if no process has others.
            let is_awaited = end.owners.is_awaited(clock::nanoseconds());
            let is_kept = || holders.words().iter().zip(gone).any(|(word, gone)| word.load(Relaxed) & !gone != 0);
            if has(index) || is_awaited && (!is_kept() || end.owners.are_any_arriving()) {
                let held = holders.words().iter().zip(gone).map(|(word, gone)| word.load(Relaxed) & gone);
                kept.iter_mut().zip(held).for_each(|(kept, held)| *kept |= held);
                continue;
            }
            let left: u32 = (holders.words().iter().zip(gone))
                .map(|(word, gone)| (word.fetch_and(!gone, AcqRel) & gone).count_ones())
                .sum();
            if is_awaited {
                end.owners.take_back_beside(left, || holders.count());
            } else if end.owners.take_back(left, || holders.count()) {
                close(index);
            }
        }
        for (at, member) in self.members().places.iter().enumerate() {
            if gone[at / 64] & !kept[at / 64] & 1 << (at % 64) != 0 {
                member.process.store(0, Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_process_left_that_is_gone_comes_back() {
        let family = Family::create().unwrap();
        let me = family.join();
        assert!(me.is_some());
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while kernel::process(child.id()) != Process::Gone {
            clock::nap(1000);
        }
        let dead = family.join_as(child.id(), kernel::namespaces().unwrap());
        assert_ne!(me, dead);
        let alone = family.take(dead).unwrap();
        let shared = family.take(dead).unwrap();
        assert!(family.add_reference(shared, me));
        let mine = family.take(me).unwrap();
        // It was killed before it counted.
        family.note_reference(mine, dead);
        let lent = family.take(dead).unwrap();
        family.end(lent).owners.lend_passed(u64::MAX);
        let beside = family.take(dead).unwrap();
        assert!(family.add_reference(beside, me));
        family.end(beside).owners.lend_to_image(u64::MAX, 7);
        let arriving = family.take(dead).unwrap();
        family.end(arriving).owners.lend_to_image(u64::MAX, 7);
        assert!(family.arrive(arriving, me));
        let references = |index| family.end(index).owners.count();

        let mut ended = vec![];
        // Other tests look at all tables meanwhile, which puts it off.
        while ended.is_empty() {
            family.sweep(|index| ended.push(index));
            clock::nap(1000);
        }
        assert_eq!(ended, [alone]);
        assert_eq!([references(alone), references(shared), references(mine), references(lent)], [0, 1, 1, 1]);
        assert_eq!([references(beside), references(arriving)], [1, 2], "whose image is awaited");

        family.end(lent).owners.end_loans();
        family.end(arriving).owners.end_loans();
        while ended.len() < 2 {
            family.sweep(|index| ended.push(index));
            clock::nap(1000);
        }
        assert_eq!(ended, [alone, lent]);
        ended.iter().for_each(|&index| family.free(index));
        assert_eq!(family.join_as(1, 1), Some(dead.unwrap() + 1));
        assert!((0..MEMBERS as u32 - 3).all(|_| family.join_as(1, 1).is_some()));
        assert_eq!(family.join_as(1, 1), dead);
        assert_eq!(family.join_as(1, 1), None);
        child.wait().unwrap();
    }

    /// Fails if `Family::gone` counts this process as one without mappings.
    #[test]
    fn a_process_that_has_departed_takes_back_what_the_dead_had() {
        let family = Family::create().unwrap();
        let me = family.join();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        while kernel::process(child.id()) != Process::Gone {
            clock::nap(1000);
        }
        let dead = family.join_as(child.id(), kernel::namespaces().unwrap());
        let shared = family.take(me).unwrap();
        assert!(family.add_reference(shared, dead));
        family.force_departure(me, Departing::ForAnImage);
        let deadline = clock::nanoseconds() + 20_000_000_000;
        // Other tests look at all tables meanwhile, which puts it off.
        while family.end(shared).owners.count() != 1 {
            assert!(clock::nanoseconds() < deadline, "{} references", family.end(shared).owners.count());
            family.look_again();
            family.sweep(|_| panic!("it is this process's"));
            clock::nap(1000);
        }
        child.wait().unwrap();
    }

    #[test]
    fn who_does_not_get_an_end_leaves_no_mark_there() {
        let family = Family::create().unwrap();
        let (me, other) = (family.join(), family.expect());
        let index = family.take(other).unwrap();
        assert!(family.arrive(index, me) && family.has_reference(index, me));
        family.end(index).owners.has_arrived();
        // By another descriptor.
        assert!(family.add_reference(index, me) && family.end(index).owners.count() == 3);
        (0..3).for_each(|_| _ = family.end(index).owners.drop_reference());
        assert!(!family.add_reference(index, me) && family.has_reference(index, me), "one that it had");
        family.forget_reference(index, me);
        assert!(!family.add_reference(index, me) && !family.arrive(index, me) && !family.has_reference(index, me));
    }

    #[test]
    fn an_executed_program_keeps_what_it_claims() {
        let family = Family::create().unwrap();
        let me = family.expect();
        let member = me.unwrap();
        let (kept, closed) = (family.take(me).unwrap(), family.take(me).unwrap());
        let shared = family.take(me).unwrap();
        assert!(family.end(shared).owners.add());
        assert!(!family.stay(member));
        family.begin(member);
        family.force_departure(me, Departing::ForAnImage);
        assert!(family.was(member) && family.is_departed(member), "others still have to keep what it comes for");
        assert!(family.stay(member) && !family.is_departed(member));
        family.forked(member, None);
        assert_eq!([family.stay(member), family.stay(member + 1), family.stay(u32::MAX)], [true, false, false]);

        let mut ended = vec![];
        family.keep_only(member, |index| index == kept, |index| ended.push(index));
        assert_eq!(ended, [closed]);
        assert_eq!([kept, closed, shared].map(|index| family.end(index).owners.count()), [1, 0, 1]);
        assert_eq!([kept, closed, shared].map(|index| family.has_reference(index, me)), [true, false, false]);
        assert!(family.stay(member));
        family.keep_only(member, |_| false, |index| ended.push(index));
        assert_eq!((ended, family.stay(member)), (vec![closed, kept], false));
    }

    #[test]
    fn a_member_that_executes_needs_one_that_keeps_the_table() {
        let family = Family::create().unwrap();
        let me = family.join();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = family.join_as(child.id(), kernel::namespaces().unwrap());
        let index = family.take(other).unwrap();
        let end = family.end(index);
        end.advance(Stage::Joined);
        assert!(!family.has_owner_between_images(me), "it keeps the table itself");
        family.force_departure(other, Departing::ForAnImage);
        assert!(!family.has_owner_between_images(me), "nobody else can have changed the end");
        end.owners.note_copied();
        assert!(family.has_owner_between_images(me) && !family.has_owner_between_images(other));
        let third = family.join_as(child.id(), kernel::namespaces().unwrap());
        assert!(!family.has_owner_between_images(me), "a third one keeps it");
        family.force_departure(third, Departing::ForGood);
        assert!(family.has_owner_between_images(me) && family.is_referred_to_by_departed(index, me));
        family.force_departure(other, Departing::ForGood);
        assert!(!family.has_owner_between_images(me) && family.is_referred_to_by_departed(index, me), "no image comes");
        let depart = |member| family.begin_departure(member, Departing::ForAnImage);
        assert!(depart(other) && !depart(me) && depart(other), "one of them keeps the table");
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!family.has_owner_between_images(me) && depart(me), "it does not come");
    }

    #[test]
    fn a_process_that_nobody_knows_may_have_everything() {
        let family = Family::create().unwrap();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        child.wait().unwrap();
        // This process has the table, and is no member.
        let dead = family.join_as(child.id(), kernel::namespaces().unwrap());
        family.take(dead).unwrap();
        family.sweep(|index| panic!("end {index} is given away"));
    }
}
