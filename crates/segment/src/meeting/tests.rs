//! Forged offers: a process of the same user writes anything into the directory, before, between and while two ends
//! meet there. Whatever it writes, an end that joins has the channel that its own other end made, or is alone with its
//! own.
#![allow(unsafe_code, reason = "forks the forger, and keeps ends in memory of its own")]

use super::*;
use crate::channel::Shape;
use crate::directory::{Found, Holder, Key, Offer, holder};
use crate::sync::AtomicU32;
use core::sync::atomic::AtomicBool;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard};

/// A pool that another process made, as it does for an honest connection with this one.
struct Forger(Pool);

impl Forger {
    fn new(shape: Shape) -> Forger {
        let mut ends = [[0; 2]; 2];
        let mut id = 0i32;
        // SAFETY: the child of a threaded process makes system calls only; buffers of this frame.
        unsafe {
            ends.iter_mut().for_each(|it| assert_eq!(libc::pipe(it.as_mut_ptr()), 0));
            let child = libc::fork();
            if child == 0 {
                id = Pool::create(shape).map_or(-1, |pool| pool.id());
                libc::write(ends[0][1], (&raw const id).cast(), size_of_val(&id));
                libc::read(ends[1][0], (&raw mut id).cast(), 1);
                libc::_exit(0);
            }
            assert_eq!(libc::read(ends[0][0], (&raw mut id).cast(), size_of_val(&id)), 4);
            let pool = Pool::open(id, shape, kernel::user_id()).unwrap().0;
            libc::write(ends[1][1], (&raw const id).cast(), 1);
            assert_eq!(libc::waitpid(child, core::ptr::null_mut(), 0), child);
            ends.as_flattened().iter().for_each(|&end| assert_eq!(libc::close(end), 0));
            Forger(pool)
        }
    }
}

/// Both sockets of a connection.
struct Pair([TcpStream; 2]);

impl Pair {
    fn new() -> Pair {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Pair([client, listener.accept().unwrap().0])
    }

    fn fd(&self, side: usize) -> i32 {
        self.0[side].as_raw_fd()
    }

    fn cookies(&self) -> [u64; 2] {
        [0, 1].map(|side| kernel::cookie(self.fd(side)).unwrap())
    }

    fn key(&self) -> Key {
        let [one, other] = self.cookies();
        Key::of(one, other)
    }
}

const SHAPE: Shape = Shape { ring_bytes: 1 << 16, slots: 4 };

pub(super) fn end() -> Box<End> {
    // SAFETY: zeroed memory is an unused end.
    unsafe { Box::new(core::mem::zeroed()) }
}

/// What one process of each family has; both are this process.
fn meetings(directory: Directory) -> [Box<Meeting>; 2] {
    [100, 200].map(|family| {
        let mut meeting = Box::new(Meeting::new());
        meeting.set_up(family, SHAPE.ring_bytes, SocketPath::NONE, |_, _| true);
        meeting.directory = Some(directory);
        meeting
    })
}

/// Another process's pool, with a slot for each of `pairs`.
fn forger_of(pairs: &[Pair]) -> Pool {
    let forger = Forger::new(SHAPE).0;
    for (slot, pair) in pairs.iter().enumerate() {
        let [one, other] = pair.cookies();
        forger.slot(slot as u32, Side::Maker).unwrap().prepare([other, one]);
    }
    forger
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn of(&mut self, words: &[u32]) -> u32 {
        words[self.below(words.len())]
    }
}

/// What a forger knows.
struct Known {
    keys: Vec<Key>,
    words: Vec<u32>,
}

impl Known {
    fn new(pairs: &[Pair], pools: &[i32]) -> Known {
        let words = [0, 1, 2, 3, 4, 5, 100, 200, u32::MAX, 1 << 31, SHAPE.ring_bytes, SHAPE.slots, 64, 65, 1 << 24];
        let fds = pairs.iter().flat_map(|pair| [pair.fd(0) as u32, pair.fd(1) as u32]);
        let pools = pools.iter().map(|&id| id as u32);
        let me = [kernel::process_id() as u32];
        Known {
            keys: pairs.iter().map(Pair::key).collect(),
            words: words.into_iter().chain(fds).chain(pools).chain(me).collect(),
        }
    }

    /// Overwrites one word of an entry, or makes a whole entry that looks right.
    fn lie(&self, random: &mut Random, directory: &Directory) {
        let key = self.keys[random.below(self.keys.len())];
        let entries = directory.words(key);
        let named = key_words(key);
        let of_key = entries.iter().find(|it| (0..4).all(|at| it[2 + at].load(Relaxed) == named[at]));
        let most = if random.below(4) == 0 { entries.len() } else { 3 };
        let near = random.below(most);
        let entry = of_key.filter(|_| random.below(4) != 0).unwrap_or(&entries[near]);
        match random.below(8) {
            0 => entry[random.below(16)].store(random.0 as u32, Relaxed),
            1 => entry[0].store(random.below(5) as u32, Release),
            2 => {
                for at in 6..16 {
                    entry[at].store(random.of(&self.words), Relaxed);
                }
                (0..4).for_each(|at| entry[2 + at].store(named[at], Relaxed));
                entry[0].store(1 + random.below(4) as u32, Release);
            }
            3 if random.below(512) == 0 => directory.lock().store(random.of(&self.words), Relaxed),
            _ => entry[random.below(16)].store(random.of(&self.words), Relaxed),
        }
    }
}

fn key_words(key: Key) -> [u32; 4] {
    let (one, other) = key.cookies();
    [one as u32, (one >> 32) as u32, other as u32, (other >> 32) as u32]
}

/// What must hold for the ends after all steps.
fn check(pair: &Pair, ends: &[Box<End>; 2], meetings: &mut [Box<Meeting>; 2], foreign: &[i32]) -> bool {
    let joined = [0, 1].map(|side| ends[side].stage() == Stage::Joined);
    let place = |side: usize| (ends[side].pool.load(Relaxed), ends[side].slot.load(Relaxed));
    for side in [0, 1] {
        if !joined[side] {
            continue;
        }
        assert!(!foreign.contains(&place(side).0), "the channel of somebody else");
        let channel = meetings[side].channel(&ends[side], None).expect("its channel");
        let mine = ends[side].side();
        let cookies = pair.cookies();
        let [maker, joiner] = if mine == Side::Maker { [side, 1 - side] } else { [1 - side, side] };
        assert!(channel.is_for([cookies[maker], cookies[joiner]]), "the channel of another connection");
        // An end that joins has got the offer from the other end, which is there.
        assert!(mine == Side::Maker || joined[1 - side], "nobody is there");
    }
    if joined != [true, true] || [0, 1].map(|side| ends[side].side()) == [Side::Maker; 2] {
        // Where each end was told that the other waits, both have made an offer, neither comes, and both stay on kernel
        // TCP.
        return false;
    }
    assert_ne!(ends[0].side(), ends[1].side());
    assert_eq!(place(0), place(1), "each has a channel of its own");
    true
}

/// Both have closed: the slot may be used again.
fn clear(ends: &[Box<End>; 2], meetings: &mut [Box<Meeting>; 2]) {
    for side in [0, 1] {
        let end = &ends[side];
        if end.has_channel()
            && let Some(channel) = meetings[side].channel(end, None)
        {
            meetings[side].close(end, &channel);
            channel.outgoing().flags.closed.store(CLOSED, Release);
            meetings[side].release(end);
        } else {
            meetings[side].withdraw(end);
        }
    }
}

/// The ends of this process share its descriptors and its address space with all that the tests make.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn most() -> usize {
    std::env::var("UNDERPASS_TEST_LIES").map_or(1_000_000, |words| words.parse().unwrap())
}

/// One meeting of the ends of `pair`, with `between` before each step; whether they met.
fn meet(
    pair: &Pair,
    meetings: &mut [Box<Meeting>; 2],
    foreign: &[i32],
    first: usize,
    between: &mut dyn FnMut(),
) -> bool {
    let ends = [end(), end()];
    let mut go = |side: usize| {
        between();
        match ends[side].stage() {
            Stage::Plain => meetings[side].seek(&ends[side], pair.fd(side)),
            Stage::Waiting if meetings[side].answer(&ends[side]) == Answer::Offer => {
                between();
                meetings[side].take_offer(&ends[side], pair.fd(side));
            }
            _ => {}
        }
    };
    for side in [first, 1 - first, first, 1 - first] {
        go(side);
    }
    let met = check(pair, &ends, meetings, foreign);
    clear(&ends, meetings);
    met
}

/// Fails if `Meeting::prove` leaves out one of: `!holds(offer.maker, &peer)`, `attested.creator != offer.maker.pid` and
/// `it.creator == offer.maker.pid`, `!channel.is_for(cookies)`.
#[test]
fn a_forged_offer_is_not_accepted() {
    let _alone = alone();
    let directory = Directory::private(kernel::user_id());
    let pairs = [Pair::new(), Pair::new()];
    let [cookies, others] = [pairs[0].cookies(), pairs[1].cookies()];
    let forger = Forger::new(SHAPE).0;
    let honest = Pool::create(SHAPE).unwrap();
    let me = kernel::process_id();
    let (fd, wrong_fd) = (pairs[0].fd(1), pairs[1].fd(1));
    let maker = |pid: i32, fd: i32| Holder { pid, fd, family: 200 };
    let good = Offer { maker: maker(me, fd), pool: honest.id(), slot: 1, shape: SHAPE };
    let prepared = |pool: &Pool, slot: u32, cookies: [u64; 2]| pool.slot(slot, Side::Maker).unwrap().prepare(cookies);
    for slot in 0..SHAPE.slots {
        prepared(&forger, slot, [cookies[1], cookies[0]]);
    }
    prepared(&honest, 0, [others[1], others[0]]);
    prepared(&honest, 1, [cookies[1], cookies[0]]);
    prepared(&honest, 2, [cookies[0], cookies[1]]);
    let freed = Pool::create(SHAPE).unwrap();
    // SAFETY: nothing refers into it.
    unsafe { freed.detach() };
    let shape = |ring_bytes, slots| Shape { ring_bytes, slots };
    let lies = [
        ("another process's pool", Offer { pool: forger.id(), ..good }),
        ("nobody", Offer { maker: maker(0, fd), ..good }),
        ("another process", Offer { maker: maker(1, fd), ..good }),
        ("a number that is none", Offer { maker: maker(i32::MIN, fd), ..good }),
        ("another socket", Offer { maker: maker(me, wrong_fd), ..good }),
        ("its own socket", Offer { maker: maker(me, pairs[0].fd(0)), ..good }),
        ("no descriptor", Offer { maker: maker(me, -1), ..good }),
        ("another connection's slot", Offer { slot: 0, ..good }),
        ("the cookies the other way round", Offer { slot: 2, ..good }),
        ("an unused slot", Offer { slot: 3, ..good }),
        ("no slot", Offer { slot: SHAPE.slots, ..good }),
        ("no slot, far away", Offer { slot: u32::MAX, ..good }),
        ("another size", Offer { shape: shape(1 << 17, 4), ..good }),
        ("as many bytes in other slots", Offer { shape: shape(1 << 16, 5), ..good }),
        ("no power of two", Offer { shape: shape(100_000, 4), ..good }),
        ("more than there is", Offer { shape: shape(1 << 31, 64), ..good }),
        ("nothing", Offer { shape: shape(0, 0), ..good }),
        ("a pool that is no more", Offer { pool: freed.id(), ..good }),
        ("no pool", Offer { pool: -1, ..good }),
        ("the directory", Offer { pool: directory.id(), ..good }),
    ];
    let answer = |offer: Offer, knows: bool| {
        let mut meeting = meetings(directory).into_iter().next().unwrap();
        if knows {
            // From connections that are honest.
            meeting.remember(forger, -1, None).unwrap();
            meeting.remember(honest, me, None).unwrap();
        }
        let end = end();
        meeting.seek(&end, pairs[0].fd(0));
        let waits = end.entry.load(Relaxed) - 1;
        assert!(directory.offer(waits, pairs[0].key(), offer));
        meeting.take_offer(&end, pairs[0].fd(0));
        directory.clear(waits, pairs[0].key(), me);
        (end.stage(), end.reason())
    };
    for knows in [false, true] {
        for (what, offer) in lies {
            assert_eq!(answer(offer, knows), (Stage::Pinned, Reason::Unproven), "{what}, knows {knows}");
        }
        prepared(&honest, 1, [cookies[1], cookies[0]]);
        assert_eq!(answer(good, knows).0, Stage::Joined);
    }
    // An end that waits, as others say.
    for waiter in [maker(me, wrong_fd), maker(1, fd), maker(-1, fd), maker(me, -1), maker(me, 1_000_000)] {
        let [mut meeting, _] = meetings(directory);
        assert!(matches!(directory.ask(pairs[0].key(), waiter), Found::Nobody(_)));
        let end = end();
        meeting.seek(&end, pairs[0].fd(0));
        assert_eq!((end.stage(), end.reason()), (Stage::Pinned, Reason::Unproven), "{waiter:?}");
    }
}

/// An offer that was taken, or that its maker has withdrawn, is made anew in its name: nobody joins it. Fails if
/// `Meeting::take_offer` or `Meeting::close` does not claim the slot. Where `Meeting::seek` does not, as it cannot make
/// the offer, the two tests below fail.
#[test]
fn what_is_no_offer_any_more_is_not_joined() {
    let _alone = alone();
    let directory = Directory::private(kernel::user_id());
    let pair = Pair::new();
    let (me, key) = (kernel::process_id(), pair.key());
    let [mut waiter, mut maker] = meetings(directory);
    let maker_of = |pool: Pool| Offer { maker: holder(pair.fd(1), 200), pool: pool.id(), slot: 0, shape: SHAPE };
    let mut joins = |offer: Offer| {
        let end = end();
        waiter.seek(&end, pair.fd(0));
        let waits = end.entry.load(Relaxed) - 1;
        assert!(directory.offer(waits, key, offer));
        waiter.take_offer(&end, pair.fd(0));
        waiter.withdraw(&end);
        directory.clear(waits, key, me);
        end.stage() == Stage::Joined
    };
    let prepared = |pool: Pool| {
        let channel = pool.slot(0, Side::Maker).unwrap();
        channel.prepare([pair.cookies()[1], pair.cookies()[0]]);
        channel
    };
    let taken = Pool::create(SHAPE).unwrap();
    prepared(taken);
    assert!(joins(maker_of(taken)));
    assert!(!joins(maker_of(taken)), "it was taken");

    let withdrawn = end();
    assert!(matches!(directory.ask(key, holder(pair.fd(0), 100)), Found::Nobody(_)));
    maker.seek(&withdrawn, pair.fd(1));
    let channel = maker.channel(&withdrawn, None).unwrap();
    let pool = maker.pools[0].unwrap().pool;
    maker.close(&withdrawn, &channel);
    assert!(channel.is_over() && !joins(maker_of(pool)), "it was withdrawn");
}

/// A forger can keep two ends from meeting, and no more: told that the other waits, each makes an offer that nobody
/// takes, so that nobody is ready to read from its channel, which is what a sender waits for.
#[test]
fn two_that_are_told_that_the_other_waits_stay_apart() {
    let _alone = alone();
    let directory = Directory::private(kernel::user_id());
    let pair = Pair::new();
    let (key, me) = (pair.key(), kernel::process_id());
    let (mut meetings, ends) = (meetings(directory), [end(), end()]);
    for side in [0, 1] {
        let Found::Nobody(index) = directory.ask(key, holder(pair.fd(1 - side), 100)) else { panic!("it is there") };
        meetings[side].seek(&ends[side], pair.fd(side));
        assert_eq!((ends[side].stage(), ends[side].side()), (Stage::Joined, Side::Maker));
        assert!(directory.clear(index, key, me));
    }
    assert!(!check(&pair, &ends, &mut meetings, &[]));
    let channels = [0, 1].map(|side| meetings[side].channel(&ends[side], None).unwrap());
    for (side, channel) in channels.iter().enumerate() {
        assert_eq!(channel.incoming().flags.ready.load(Relaxed) + channel.outgoing().flags.ready.load(Relaxed), 0);
        meetings[side].close(&ends[side], channel);
        assert!(channel.is_over(), "the slot may be used again");
    }
}

/// Between any two steps of two ends that meet, words of the directory are overwritten.
#[test]
fn lies_between_the_steps_of_a_meeting_confuse_nobody() {
    let _alone = alone();
    let directory = Directory::private(kernel::user_id());
    let pairs = [Pair::new(), Pair::new(), Pair::new()];
    let mut meetings = meetings(directory);
    let forger = forger_of(&pairs);
    // One of them has it already, from an honest connection.
    meetings[0].remember(forger, -1, None).unwrap();
    let foreign = [forger.id(), directory.id()];
    let (mut random, mut told, mut met, mut rounds) = (Random(0x0ffe_12ed), 0, 0, 0);
    while told < most() {
        let pair = &pairs[random.below(pairs.len())];
        let mut pools = vec![foreign[0], foreign[1]];
        pools.extend(meetings.iter().flat_map(|it| it.pools.iter().flatten().map(|it| it.pool.id())));
        let known = Known::new(&pairs, &pools);
        let many = random.below(3) * random.below(40);
        let mut between = || {
            (0..many).for_each(|_| known.lie(&mut random, &directory));
            told += many;
        };
        let first = rounds % 2;
        // A lock with the number of a live process would keep all ends from meeting for good.
        directory.lock().store(0, Relaxed);
        met += usize::from(meet(pair, &mut meetings, &foreign, first, &mut between));
        rounds += 1;
    }
    assert!(met > 100 && rounds > met, "{met} of {rounds}");
    directory.lock().store(0, Relaxed);
}

/// A thread overwrites words of the directory at any time.
#[test]
fn lies_at_any_time_confuse_nobody() {
    let _alone = alone();
    let directory = Directory::private(kernel::user_id());
    let pairs = [Pair::new(), Pair::new(), Pair::new()];
    let mut meetings = meetings(directory);
    let forger = forger_of(&pairs);
    meetings[1].remember(forger, -1, None).unwrap();
    let foreign = [forger.id(), directory.id()];
    // So that both have attached a pool of the other's, whose number is known then.
    assert!(meet(&pairs[0], &mut meetings, &foreign, 0, &mut || {}));
    assert!(meet(&pairs[0], &mut meetings, &foreign, 1, &mut || {}));
    let pools = meetings.iter().flat_map(|it| it.pools.iter().flatten().map(|it| it.pool.id()));
    let known = Known::new(&pairs, &pools.chain(foreign).collect::<Vec<_>>());
    let (told, rests) = (AtomicU32::new(0), AtomicBool::new(false));
    let (mut met, mut rounds) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(0x0bad_0ffe);
            while (told.load(Relaxed) as usize) < most() {
                if !rests.load(Relaxed) {
                    known.lie(&mut random, &directory);
                    told.fetch_add(1, Relaxed);
                }
            }
        });
        while (told.load(Relaxed) as usize) < most() {
            // Now and then they are let alone, so that something is met about.
            rests.store(rounds % 4 == 0, Relaxed);
            directory.lock().store(0, Relaxed);
            met += u32::from(meet(&pairs[rounds % 3], &mut meetings, &foreign, rounds / 3 % 2, &mut || {}));
            rounds += 1;
        }
    });
    assert!(met > 10 && rounds > met as usize, "{met} of {rounds}");
}

/// Fails if `Meeting::seek` pins an end for which the directory has no place.
#[test]
fn ends_without_a_place_in_the_directory_meet_later() {
    let _alone = alone();
    let directory = Directory::private(kernel::user_id());
    let (pair, ends, mut meetings) = (Pair::new(), [end(), end()], meetings(directory));
    let places = directory.words(pair.key());
    // A waiter that lives: state, and the waiter's process.
    places.iter().for_each(|place| {
        [(0, 1), (6, kernel::process_id() as u32)].into_iter().for_each(|(at, word)| place[at].store(word, Relaxed))
    });
    for side in [0, 1] {
        meetings[side].seek(&ends[side], pair.fd(side));
        assert_eq!((ends[side].stage(), ends[side].reason()), (Stage::Plain, Reason::NoMemory));
    }
    places[17][0].store(0, Relaxed);
    [0, 1].into_iter().for_each(|side| meetings[side].seek(&ends[side], pair.fd(side)));
    assert_eq!(meetings[0].answer(&ends[0]), Answer::Offer);
    meetings[0].take_offer(&ends[0], pair.fd(0));
    assert!(check(&pair, &ends, &mut meetings, &[]));
    clear(&ends, &mut meetings);
}

#[test]
fn an_end_that_is_not_accepted_is_asked_again() {
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (end, [mut meeting, _]) = (end(), meetings(Directory::private(kernel::user_id())));
    end.bytes.store(1, Relaxed);
    meeting.seek(&end, client.as_raw_fd());
    assert_eq!((end.stage(), end.reason()), (Stage::Plain, Reason::NotAccepted));
    let _accepted = listener.accept().unwrap();
    meeting.seek(&end, client.as_raw_fd());
    assert_eq!((end.stage(), end.reason()), (Stage::Waiting, Reason::PeerSilent));
    meeting.withdraw(&end);
}

/// One connection must not take much of a program's address space, and many should share pools: see `FIRST_SLOTS` and
/// `GROWTH`.
#[test]
fn pools_grow_with_the_connections_between_two_families() {
    let _alone = alone();
    let mut meeting = Meeting::new();
    meeting.set_up(100, SHAPE.ring_bytes, SocketPath::NONE, |_, _| true);
    let pools: Vec<Pool> = (0..1 + 8 + 64 + 1).map(|_| meeting.make(200, SHAPE.ring_bytes).unwrap().0).collect();
    let first_of_each = [0, 1, 9, 73].map(|at| pools[at]);
    assert_eq!(first_of_each.map(|pool| pool.shape().slots), [1, 8, 64, 64]);
    assert!(pools.iter().all(|pool| first_of_each.iter().any(|it| it.id() == pool.id())), "each is filled first");
    // Another family's connections begin anew.
    assert_eq!(meeting.make(300, SHAPE.ring_bytes).unwrap().0.shape().slots, 1);
}

/// A third process that has the channel may have asked for images just before, and be about to end as well.
#[test]
fn a_channel_is_kept_for_an_image_whoever_else_has_it() {
    let _alone = alone();
    let mut meeting = Meeting::new();
    meeting.set_up(100, SHAPE.ring_bytes, SocketPath::NONE, |_, _| true);
    let (pool, slot) = meeting.make(200, SHAPE.ring_bytes).unwrap();
    let others: Vec<Pool> = (0..3).map(|_| Pool::open(pool.id(), pool.shape(), kernel::user_id()).unwrap().0).collect();
    let mut executing = std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
    let channel = pool.slot(slot, Side::Maker).unwrap();
    channel.prepare([1, 2]);
    let word = &channel.incoming().sender.executing;
    assert!(!meeting.keeps_for_images());
    word.store(kernel::marked(executing.id()), Relaxed);
    assert!(meeting.keeps_for_images());
    meeting.forget_images();
    assert!(!meeting.keeps_for_images());
    word.store(kernel::marked(executing.id()), Relaxed);
    drop(executing.stdin.take());
    executing.wait().unwrap();
    assert!(!meeting.keeps_for_images(), "no image comes of a process that has ended");
    // SAFETY: nothing of them is used any more.
    others.into_iter().for_each(|it| unsafe { it.detach() });
}
