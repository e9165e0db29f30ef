//! Ends that ask, in every order, by a kernel whose word is a table.

use super::pools::GRACE_NS;
use super::*;
use std::cell::RefCell;
use std::net::SocketAddr;
use underpass_broker::{Freed, Side};
use underpass_policy::{Groups, Id};

const GROUP: u32 = 70;

/// One user, or members of the group.
fn members() -> Policy {
    Policy::of_members(Some(Id { name: None, number: GROUP }))
}

fn user(uid: u32, groups: &[u32]) -> Rc<User> {
    Rc::new(User { uid, is_known: true, gid: uid, groups: Groups::of(groups.to_vec()), cgroup: None })
}

/// The other end of the socket with each cookie.
#[derive(Default)]
struct Table(RefCell<HashMap<u64, Other>>);

impl Table {
    fn connect(&self, one: u64, other: u64) {
        self.say(one, Other::End(other));
        self.say(other, Other::End(one));
    }

    fn say(&self, cookie: u64, other: Other) {
        self.0.borrow_mut().insert(cookie, other);
    }
}

impl Evidence for Table {
    fn other_end(&self, of: &Facts) -> Other {
        self.0.borrow().get(&of.cookie).copied().unwrap_or(Other::Unknown)
    }
}

/// An exchange, and processes 1 to 4 of users 101 to 104, of which 1 to 3 are members of the group; 5 is another one of
/// user 101.
struct Stage {
    exchange: Exchange,
    kernel: Table,
}

const SMALL: Limits = Limits { descriptors: 8, pools: 4, memory: 1 << 40, asks: 3, unread: 4, packets: 1000 };

impl Stage {
    fn new() -> Stage {
        let mut exchange = Exchange::new(members(), Some(1), SMALL);
        for (process, uid) in [(1, 101), (2, 102), (3, 103), (4, 104), (5, 101)] {
            let groups = if uid < 104 { &[GROUP][..] } else { &[] };
            exchange.admit(ProcessId(process), user(uid, groups));
        }
        Stage { exchange, kernel: Table::default() }
    }

    fn ask_with(&mut self, process: u64, cookie: u64, ask: Ask) -> Vec<Reply> {
        let address: SocketAddr = "10.0.0.1:1".parse().unwrap();
        let facts = Facts { cookie, namespace: Some(1), local: address, remote: address };
        self.exchange.ask((ProcessId(process), ClientId(process)), ask, facts, &self.kernel, 0)
    }

    fn ask(&mut self, process: u64, cookie: u64) -> Vec<Reply> {
        self.ask_with(process, cookie, ASK)
    }

    /// The only reply, which is a refusal.
    fn refusal(&mut self, process: u64, cookie: u64) -> Refusal {
        match &self.ask(process, cookie)[..] {
            [Reply { answer: Answer { verdict: Verdict::Refused(it), .. }, memory: None, .. }] => *it,
            other => panic!("{other:?}"),
        }
    }

    fn waits(&mut self, process: u64, cookie: u64) {
        let replies = self.ask(process, cookie);
        assert!(matches!(&replies[..], [it] if it.answer.verdict == Verdict::Waiting), "{replies:?}");
    }

    fn meets(&mut self, process: u64, cookie: u64) -> Place {
        let replies = self.ask(process, cookie);
        let places: Vec<Place> = replies.iter().map(place).collect();
        if let [one, other] = &places[..] {
            assert_eq!((one.pool, one.slot, one.cookies), (other.pool, other.slot, other.cookies));
            assert_ne!(one.side, other.side);
            assert_eq!(one.memory, other.memory);
        }
        places[0]
    }
}

const ASK: Ask = Ask { token: 1, mark: 2, ring_bytes: 1 << 16, freed: None };

#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    pool: u64,
    slots: u32,
    slot: u16,
    side: Side,
    cookies: [u64; 2],
    memory: u64,
}

fn place(reply: &Reply) -> Place {
    let Verdict::Met { pool, shape, slot, side, cookies } = reply.answer.verdict else { panic!("{reply:?}") };
    let memory = rustix::fs::fstat(reply.memory.as_ref().unwrap()).unwrap();
    assert_eq!(memory.st_size as u64, shape.pool_bytes());
    Place { pool, slots: shape.slots(), slot, side, cookies, memory: memory.st_ino }
}

#[test]
fn two_ends_meet_once_both_have_asked() {
    let mut stage = Stage::new();
    stage.kernel.connect(11, 12);
    stage.waits(1, 11);
    let replies = stage.ask(2, 12);
    let told: Vec<u64> = replies.iter().map(|it| it.to.0).collect();
    assert_eq!(told, [2, 1]);
    let [one, other] = [place(&replies[0]), place(&replies[1])];
    assert_eq!((one.side, other.side, one.cookies), (Side::Maker, Side::Joiner, [12, 11]));
    // Asking again changes nothing.
    assert_eq!(stage.meets(1, 11), other);
    assert_eq!(stage.meets(2, 12), one);
}

#[test]
fn ends_that_the_kernel_does_not_pair_do_not_meet() {
    let mut stage = Stage::new();
    // 13 says that it is at the other end of 11, as 12 is.
    stage.kernel.connect(11, 12);
    stage.kernel.say(13, Other::End(11));
    stage.waits(1, 11);
    let replies = stage.ask(3, 13);
    assert_eq!(replies.len(), 2);
    assert!(replies.iter().all(|it| it.answer.verdict == Verdict::Refused(Refusal::Unproven)));
    // The true ends meet nevertheless, when both ask again.
    stage.waits(2, 12);
    stage.meets(1, 11);
    for (cookie, other, refusal) in [
        (21, Other::Several, Refusal::Unproven),
        (22, Other::Unknown, Refusal::Unproven),
        (23, Other::End(23), Refusal::Unproven),
        (24, Other::Nowhere, Refusal::Elsewhere),
    ] {
        stage.kernel.say(cookie, other);
        assert_eq!(stage.refusal(1, cookie), refusal);
    }
}

/// A third socket with the same sequence numbers appears while the first end waits.
#[test]
fn a_third_socket_makes_it_unproven_for_all() {
    let mut stage = Stage::new();
    stage.kernel.connect(11, 12);
    stage.waits(1, 11);
    stage.kernel.say(11, Other::Several);
    let replies = stage.ask(2, 12);
    assert_eq!(replies.len(), 2);
    assert!(replies.iter().all(|it| it.answer.verdict == Verdict::Refused(Refusal::Unproven)));
    assert!(stage.exchange.waiting.is_empty() && stage.exchange.asks.is_empty());
}

#[test]
fn policy_and_layout_are_kept() {
    let mut stage = Stage::new();
    stage.kernel.connect(11, 12);
    stage.waits(1, 11);
    let replies = stage.ask(4, 12);
    assert!(replies.iter().all(|it| it.answer.verdict == Verdict::Refused(Refusal::Policy)) && replies.len() == 2);
    stage.waits(1, 11);
    let replies = stage.ask_with(2, 12, Ask { mark: 3, ..ASK });
    assert!(replies.iter().all(|it| it.answer.verdict == Verdict::Refused(Refusal::Layout)) && replies.len() == 2);
    // A user meets itself, member or not.
    stage.exchange.admit(ProcessId(6), user(104, &[]));
    stage.waits(4, 11);
    stage.meets(6, 12);
}

/// What has met stays together, and new ends meet by the new policy.
#[test]
fn a_new_policy_is_for_what_meets_from_then_on() {
    let mut stage = Stage::new();
    stage.kernel.connect(11, 12);
    stage.kernel.connect(13, 14);
    stage.waits(1, 11);
    let place = stage.meets(2, 12);
    stage.waits(1, 13);
    stage.exchange.set_policy(Policy::of_members(None));
    let again = stage.meets(1, 11);
    assert_eq!((again.pool, again.slot, again.memory), (place.pool, place.slot, place.memory));
    let replies = stage.ask(2, 14);
    assert!(replies.iter().all(|it| it.answer.verdict == Verdict::Refused(Refusal::Policy)) && replies.len() == 2);
    stage.exchange.set_policy(members());
    stage.waits(1, 13);
    assert_eq!(stage.meets(2, 14).memory, stage.meets(1, 13).memory);
    let extent = stage.exchange.extent();
    assert_eq!((extent.meetings, extent.waiting, extent.pools), (2, 0, 2));
}

/// Rules see an end's own port, and whether it is in the daemon's network namespace.
#[test]
fn rules_are_asked_about_both_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("policy.toml");
    for (condition, meets) in
        [("ports = [1]", true), ("ports = [2]", false), ("network = \"host\"", true), ("network = \"other\"", false)]
    {
        let text = format!("[[allow]]\nbetween = [{{ user = 101, {condition} }}, {{ user = 104 }}]");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        let policy = underpass_policy::read(&path, &[0, rustix::process::geteuid().as_raw()]).unwrap();
        let mut stage = Stage::new();
        stage.exchange.set_policy(policy);
        stage.kernel.connect(11, 12);
        stage.waits(1, 11);
        let met = |it: &Reply| matches!(it.answer.verdict, Verdict::Met { .. });
        assert_eq!(stage.ask(4, 12).iter().all(met), meets, "{condition}");
    }
}

#[test]
fn the_pools_of_two_processes_grow_and_slots_are_used_again() {
    let mut stage = Stage::new();
    let mut places = Vec::new();
    for n in 0..9 {
        let (one, other) = (100 + 2 * n, 101 + 2 * n);
        stage.kernel.connect(one, other);
        // Whichever asks first.
        let [first, second] = if n % 2 == 0 { [(1, one), (2, other)] } else { [(2, other), (1, one)] };
        stage.waits(first.0, first.1);
        places.push(stage.meets(second.0, second.1));
        // A process is the same side of all slots of a pool, whichever end asks first.
        let place = places[n as usize];
        let of_pool = places.iter().filter(|it| it.pool == place.pool);
        assert!(of_pool.into_iter().all(|it| it.cookies[0] % 2 == place.cookies[0] % 2), "{places:?}");
    }
    let shapes: Vec<(u32, u16)> = places.iter().map(|it| (it.slots, it.slot)).collect();
    assert_eq!(shapes[..3], [(1, 0), (8, 0), (8, 1)]);
    assert_eq!(shapes[8], (8, 7));
    // Another process's slots cannot be freed.
    let (pool, freed) = (places[4].pool, places[4].slot);
    stage.kernel.connect(300, 301);
    let over = Freed { pool, slot: freed.into(), maker: places[4].cookies[0] };
    stage.ask_with(3, 300, Ask { freed: Some(over), ..ASK });
    assert_eq!(stage.meets(1, 108).slot, freed);
    // Nor can the slot of a connection that had it before.
    stage.ask_with(1, 108, Ask { freed: Some(Freed { maker: 77, ..over }), ..ASK });
    assert_eq!(stage.meets(1, 108).slot, freed);
    stage.kernel.connect(200, 201);
    let replies = stage.ask_with(1, 200, Ask { freed: Some(over), ..ASK });
    assert_eq!(replies[0].answer.verdict, Verdict::Waiting);
    let again = stage.meets(2, 201);
    assert_eq!((again.pool, again.slot), (pool, freed));
}

/// Fails if the end that asks second decides alone.
#[test]
fn rings_are_no_larger_than_either_end_wants_them() {
    for [first, second] in [[1 << 24, 1 << 17], [1 << 17, 1 << 24]] {
        let mut stage = Stage::new();
        stage.kernel.connect(11, 12);
        stage.ask_with(1, 11, Ask { ring_bytes: first, ..ASK });
        let replies = stage.ask_with(2, 12, Ask { ring_bytes: second, ..ASK });
        let is_smaller =
            |it: &Reply| matches!(it.answer.verdict, Verdict::Met { shape, .. } if shape.ring_bytes() == 1 << 17);
        assert!(replies.len() == 2 && replies.iter().all(is_smaller), "{replies:?}");
    }
}

#[test]
fn a_pool_is_never_a_third_users() {
    let mut stage = Stage::new();
    stage.kernel.connect(11, 12);
    stage.waits(1, 11);
    let place = stage.meets(2, 12);
    // Process 5, of the same user as 1, has got its socket; so has process 3, a member of the group.
    assert_eq!(stage.meets(5, 11).memory, place.memory);
    assert_eq!(stage.refusal(3, 11), Refusal::Policy);
    assert_eq!(stage.refusal(3, 12), Refusal::Policy);
}

/// Not even what user nobody has met is told to a user that the kernel shows as nobody because it has no number here.
#[test]
fn a_user_without_a_number_is_told_nothing() {
    let mut stage = Stage::new();
    let unknown = User { is_known: false, ..(*user(101, &[GROUP])).clone() };
    stage.exchange.admit(ProcessId(6), Rc::new(unknown));
    stage.kernel.connect(11, 12);
    assert_eq!(stage.refusal(6, 11), Refusal::Policy);
    stage.waits(1, 11);
    stage.meets(2, 12);
    assert_eq!(stage.refusal(6, 11), Refusal::Policy);
    let over = stage.exchange.again((ProcessId(6), ClientId(6)), ASK, 11);
    assert!(matches!(over.answer.verdict, Verdict::Refused(_)) && over.memory.is_none());
    assert!(stage.exchange.again((ProcessId(5), ClientId(5)), ASK, 11).memory.is_some());
}

#[test]
fn what_a_process_had_goes_with_it() {
    let mut stage = Stage::new();
    stage.kernel.connect(11, 12);
    stage.kernel.connect(13, 14);
    stage.waits(1, 11);
    stage.meets(2, 12);
    stage.waits(1, 13);
    assert!(!stage.exchange.is_unused(ProcessId(1)));
    stage.exchange.dismiss(ProcessId(1), 0);
    assert!(stage.exchange.is_unused(ProcessId(1)) && !stage.exchange.is_unused(ProcessId(2)));
    stage.exchange.expire(GRACE_NS);
    assert!(stage.exchange.is_unused(ProcessId(2)));
    // An end that asks too late waits for an other end that never asks, and is forgotten.
    stage.waits(2, 14);
    stage.exchange.expire(ASK_NS);
    assert!(stage.exchange.is_waited());
    stage.exchange.expire(ASK_NS + 1);
    assert!(!stage.exchange.is_waited() && stage.exchange.is_unused(ProcessId(2)) && stage.exchange.asks.is_empty());
    // A pool stays while a process of each side has it.
    stage.exchange.admit(ProcessId(1), user(101, &[GROUP]));
    stage.kernel.connect(15, 16);
    stage.waits(1, 15);
    let place = stage.meets(2, 16);
    stage.meets(5, 15);
    stage.exchange.dismiss(ProcessId(1), 0);
    assert_eq!(stage.meets(5, 15).memory, place.memory);
    stage.exchange.dismiss(ProcessId(5), 0);
    // A program that process 2 executes may come for what the dead have left.
    assert_eq!(stage.meets(2, 16).memory, place.memory);
    // It stays where a process comes for them in time.
    stage.exchange.admit(ProcessId(5), user(101, &[GROUP]));
    stage.meets(5, 15);
    stage.exchange.expire(GRACE_NS);
    assert_eq!(stage.meets(2, 16).memory, place.memory);
    stage.exchange.dismiss(ProcessId(5), GRACE_NS);
    stage.exchange.expire(2 * GRACE_NS);
    assert!(stage.exchange.is_unused(ProcessId(2)));
}

#[test]
fn a_user_has_limits_and_others_have_their_own() {
    let mut stage = Stage::new();
    for cookie in [50, 52, 54, 56] {
        stage.kernel.connect(cookie, cookie + 1);
    }
    for cookie in [50, 52, 54] {
        stage.waits(1, cookie);
        // Not counted twice.
        stage.waits(1, cookie);
    }
    assert_eq!(stage.refusal(1, 56), Refusal::Limit);
    assert_eq!(stage.refusal(5, 56), Refusal::Limit);
    stage.waits(2, 57);
    // Pools: user 101 may have four.
    for n in 0..5 {
        let (process, one, other) = (10 + n, 60 + 2 * n, 61 + 2 * n);
        stage.exchange.admit(ProcessId(process), user(102, &[GROUP]));
        stage.kernel.connect(one, other);
        stage.waits(process, one);
        let refused = stage.ask(3, other).iter().any(|it| it.answer.verdict == Verdict::Refused(Refusal::Limit));
        assert_eq!(refused, n == 4);
        if n == 4 {
            stage.exchange.dismiss(ProcessId(10), 0);
            stage.exchange.expire(GRACE_NS);
            stage.waits(process, one);
            stage.meets(3, other);
        }
    }
}
