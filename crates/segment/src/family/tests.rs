//! More ends than the beginning of the table has, in threads and in processes that come and go.
#![allow(unsafe_code, reason = "forks, and limits and ends what it forks")]

use super::*;
use crate::clock;
use crate::kernel;
use std::collections::HashSet;
use std::fs;
use std::thread;

impl Family {
    /// See [`Mapping::await_attached`].
    pub(crate) fn await_attached(&self, times: u64) {
        self.table.mapping().await_attached(times);
    }
}

/// Bytes of the mappings of the table in this process, one after the other.
fn mappings(family: &Family) -> Vec<usize> {
    let number = family.id().to_string();
    // Another test maps a file whose name is no UTF-8.
    let maps = fs::read("/proc/self/maps").unwrap();
    let maps = String::from_utf8_lossy(&maps);
    let mine = maps.lines().filter(|line| line.split_whitespace().nth(4) == Some(&number) && line.contains("/SYSV"));
    let bounds = mine.map(|line| line.split_whitespace().next().unwrap().split_once('-').unwrap());
    bounds
        .map(|(from, to)| [to, from].map(|it| usize::from_str_radix(it, 16).unwrap()))
        .map(|[to, from]| to - from)
        .collect()
}

/// What `what` does in a forked child, which has a copy of this thread alone.
fn fork(what: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child makes system calls and changes atomics, and returns from nothing.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            libc::_exit(if what() { 0 } else { 1 });
        }
        assert!(child > 0);
        child
    }
}

/// From now on this process gets no address space; false if that cannot be had.
fn forbid_mappings() -> bool {
    let none = libc::rlimit64 { rlim_cur: 0, rlim_max: u64::MAX };
    // SAFETY: reads a structure of this frame.
    unsafe { libc::setrlimit64(libc::RLIMIT_AS, &raw const none) == 0 }
}

fn succeeds(child: i32) -> bool {
    let mut status = 0;
    // SAFETY: a child of this process, and a word of this frame.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    status == 0
}

/// The ends in use, each with what its owner left in it.
fn taken(family: &Family) -> Vec<(u32, u64)> {
    let ends = (0..family.used()).map(|index| (index, family.end(index)));
    let used = ends.filter(|(_, end)| end.owners.are_any());
    used.map(|(index, end)| (index, end.cookie.load(Relaxed))).collect()
}

#[test]
fn a_process_maps_the_rest_when_it_needs_it() {
    let family = Family::create().unwrap();
    assert_eq!(mappings(&family), [REST.begin]);
    (0..FIRST_ENDS).for_each(|_| _ = family.take(None).unwrap());
    assert_eq!(mappings(&family), [REST.begin]);
    let first = family.take(None).unwrap();
    assert_eq!((first as usize, mappings(&family).len()), (FIRST_ENDS, 2));
    assert!(mappings(&family).iter().sum::<usize>() < Family::LEN + 8192);
    family.end(first).cookie.store(77, Relaxed);
    // A process that comes now needs the whole table.
    let other = Family::open(family.id(), kernel::user_id()).unwrap();
    assert_eq!((other.end(first).cookie.load(Relaxed), other.mappings()), (77, 1));
    let all = (0..MAX_ENDS as u32).filter(|&index| index > first).all(|index| other.take(None) == Some(index));
    assert!(all && family.take(None).is_none() && other.take(None).is_none());
    let distinct: HashSet<_> = (0..MAX_ENDS as u32).map(|index| &raw const *family.end(index)).collect();
    assert_eq!(distinct.len(), MAX_ENDS);
    assert_eq!(family.end(MAX_ENDS as u32).owners.count(), 0, "there is none");
    for index in [first, 3] {
        other.free(index);
        assert_eq!((family.take(None), family.take(None)), (Some(index), None));
    }
    // SAFETY: nothing of them is kept.
    unsafe {
        other.detach();
        family.detach();
    }
    assert!(mappings(&family).is_empty());
}

#[test]
fn threads_that_need_the_rest_at_once_have_it_once() {
    for _ in 0..100 {
        let family = Family::create().unwrap();
        family.header().fresh.store(FIRST_ENDS as u32 - 1, Relaxed);
        let take = || (0..20).map(|_| family.take(None).unwrap()).collect::<Vec<_>>();
        let indices: HashSet<u32> = thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(take)).collect();
            threads.into_iter().flat_map(|it| it.join().unwrap()).collect()
        });
        assert_eq!((indices.len(), mappings(&family).len(), family.mappings()), (160, 2, 2));
        // SAFETY: nothing of it is kept.
        unsafe { family.detach() };
    }
}

/// Fails if an end that no process can reach is counted as used, or used twice.
#[test]
fn processes_take_ends_beside_one_another_and_one_is_killed() {
    const EACH: u32 = 3000;
    let family = Family::create().unwrap();
    let me = family.join();
    let take = |by: u64, times: u32| {
        let member = family.join();
        let taken = (0..times).filter_map(|_| family.take(member));
        taken.inspect(|&index| family.end(index).cookie.store(by, Relaxed)).count() as u32
    };
    let children = [1, 2, 3].map(|by| fork(|| take(by, EACH) == EACH));
    // It asks again and again for what it cannot reach.
    let limited = fork(|| forbid_mappings() && take(4, 100_000) <= FIRST_ENDS as u32);
    let doomed = fork(|| {
        loop {
            take(5, EACH);
        }
    });
    while family.used() < FIRST_ENDS as u32 + 1000 {
        thread::yield_now();
    }
    // SAFETY: a child of this process.
    assert_eq!(unsafe { libc::kill(doomed, libc::SIGKILL) }, 0);
    assert!(!succeeds(doomed));
    assert_eq!(children.map(succeeds), [true; 3]);
    assert!(succeeds(limited));

    // All members but this one are gone: what they had comes back, whether this process has the rest already or not.
    assert_eq!(family.mappings(), 1);
    let mut taken_by = [0; 6];
    taken(&family).iter().for_each(|&(_, by)| taken_by[by as usize] += 1);
    assert_eq!(taken_by[1..4], [EACH; 3], "{taken_by:?}");
    assert!(taken_by[0] <= 1, "{taken_by:?}");
    for _ in 0..2 {
        let mut closed = HashSet::new();
        // Other tests look at all tables meanwhile, which puts it off.
        while closed.is_empty() {
            family.look_again();
            family.sweep(|index| assert!(closed.insert(index)));
            clock::nap(1000);
        }
        assert!(taken(&family).is_empty() && !family.has_others(me) && family.mappings() == 2);
        closed.into_iter().for_each(|index| family.free(index));
        assert!(succeeds(fork(|| take(1, 10) == 10)));
    }
}

/// Without address space there is no end beyond the beginning, and a look-up of one finds an end that nobody has.
#[test]
fn without_room_for_the_rest_the_beginning_is_all() {
    let family = Family::create().unwrap();
    let me = family.join();
    let child = fork(|| {
        let limited = forbid_mappings();
        let all = (0..FIRST_ENDS as u32).all(|index| family.take(me) == Some(index));
        let beyond = family.end(FIRST_ENDS as u32);
        limited && all && family.take(me).is_none() && family.take(me).is_none() && !beyond.owners.add()
    });
    assert!(succeeds(child));
    assert_eq!(family.used() as usize, FIRST_ENDS);
    // This process has room, and its ends are beside those.
    let beyond = family.take(me).unwrap();
    assert_eq!(beyond as usize, FIRST_ENDS);
    family.free(beyond);
    let child = fork(|| {
        let index = family.take(me);
        index == Some(FIRST_ENDS as u32) && family.mappings() == 2
    });
    assert!(succeeds(child), "a child has what its parent had");
}

/// The place of a member that is gone must not be another's while ends are still marked as its own. Fails if
/// `take_back` does not ask whether it reaches them all.
#[test]
fn who_cannot_reach_all_ends_takes_none_back() {
    const MANY: u32 = FIRST_ENDS as u32 + 10;
    let family = Family::create().unwrap();
    let me = family.join();
    assert!(succeeds(fork(|| {
        let member = family.join();
        (0..MANY).all(|_| family.take(member).is_some())
    })));
    let child = fork(|| {
        let mut closed = 0;
        let limited = forbid_mappings() && family.join().is_some();
        for _ in 0..20 {
            family.look_again();
            family.sweep(|_| closed += 1);
            clock::nap(1000);
        }
        limited && closed == 0
    });
    assert!(succeeds(child) && me.is_some());
    let mut closed = 0;
    while closed == 0 {
        family.look_again();
        family.sweep(|_| closed += 1);
        clock::nap(1000);
    }
    assert_eq!(closed, MANY);
}
