//! What a watcher sees, and what it asks for.

use super::*;
use crate::channel::Shape;

#[test]
fn what_is_in_use_is_seen_and_nothing_is_left() {
    let family = Family::create().unwrap();
    let member = family.join();
    let (kept, gone) = (family.take(member).unwrap(), family.take(member).unwrap());
    family.end(gone).owners.drop_reference();
    family.free(gone);
    let end = family.end(kept);
    end.cookie.store(0xfeed_0001, Relaxed);
    end.set_shape(Shape { ring_bytes: 1 << 16, slots: 4 });
    end.sending.fast.store(1, Relaxed);
    end.sending.tail.store(u64::MAX, Relaxed);
    end.sending.fast_bytes.store(77, Relaxed);
    let mine = || {
        let all = look(kernel::user_id()).unwrap();
        all.into_iter().filter(|it| it.cookie == 0xfeed_0001).collect::<Vec<_>>()
    };
    let seen = mine();
    assert_eq!((seen.len(), &seen[0].processes, seen[0].stage), (1, &vec![std::process::id()], Stage::Plain));
    assert!(!seen[0].sending.fast && seen[0].user == kernel::user_id(), "not joined");
    assert_eq!(seen[0].sending.position, (1 << POSITION_BITS) - 1);
    assert_eq!(unread(&seen[0].sending, &seen[0].receiving, 1 << 16), None);

    end.advance(Stage::Joined);
    end.sending.tail.store(4096, Relaxed);
    // A shape that is not sane is not believed.
    end.set_shape(Shape { ring_bytes: 12345, slots: 4 });
    let seen = mine();
    assert_eq!((seen[0].sending.fast, seen[0].sending.ring_bytes, seen[0].ring_size), (true, 77, None));
    assert_eq!(unread(&seen[0].sending, &seen[0].receiving, 1 << 16), Some(77));
    assert!(look(kernel::user_id() + 1).unwrap().iter().all(|it| it.cookie != 0xfeed_0001));
    family.await_attached(1);
}

#[test]
fn unread_is_what_was_sent_and_not_read() {
    let way = |ring_bytes, position| Way { fast: true, ring_bytes, kernel_bytes: 0, position };
    let size = 1 << 16;
    assert_eq!(unread(&way(1000, 9984), &way(900, 9872), size), Some(100), "without the header");
    assert_eq!(unread(&way(1000, size.into()), &way(900, 9872), size), Some(100), "behind a jump to the front");
    assert_eq!(unread(&way(1000, 9984), &way(100, 9984), size), Some(0), "the rest was put on kernel TCP");
    assert_eq!(unread(&way(0, 9984), &way(900, 9872), size), Some(112), "the sender's count has begun anew");
    assert_eq!(unread(&way(1000, 9872), &way(1100, 9984), size), None, "the reader was seen later");
}

#[test]
fn what_is_held_is_let_go_of_again() {
    let family = Family::create().unwrap();
    let (user, member) = (kernel::user_id(), family.join());
    let [known, young] = [0xfeed_0002, 0].map(|cookie| {
        let end = family.end(family.take(member).unwrap());
        end.cookie.store(cookie, Relaxed);
        end
    });
    let cookies = [0xfeed_0002, 0xfeed_0003, 0xfeed_0004];
    let subject = |cookie, process| Subject { cookie, processes: vec![process] };
    let me = std::process::id();
    let subjects = [subject(cookies[0], me), subject(cookies[1], me), subject(cookies[2], u32::MAX)];
    for _ in 0..2 {
        assert_eq!(
            hold(user, &subjects, |_| true),
            Ok(vec![Outcome::Held, Outcome::Ordered, Outcome::Unknown]),
            "and once more"
        );
    }
    assert_eq!((known.is_held(), young.is_held(), known.reason()), (true, false, Reason::Asked));
    assert_eq!(ordered(Whose::User(user), &cookies), Ok(vec![cookies[1]]));
    let seen = look(user).unwrap().into_iter().find(|it| it.cookie == cookies[0]).unwrap();
    assert_eq!((seen.held, seen.pinned, seen.reason), (true, false, Reason::Asked));

    // It learns its cookie.
    young.cookie.store(cookies[1], Relaxed);
    family.carry_out_order(young);
    assert!(young.is_held() && !family.has_orders());
    assert_eq!(let_go(user, &cookies), Ok(vec![true, true, false]));
    assert_eq!((known.is_held(), young.is_held(), known.reason()), (false, false, Reason::Unused));
    assert_eq!(let_go(user, &cookies), Ok(vec![false; 3]));

    // What is pinned for good says why.
    known.hold();
    known.pin(Reason::Urgent);
    assert_eq!((known.reason(), known.stage()), (Reason::Urgent, Stage::Pinned));
    family.await_attached(1);
}

#[test]
fn who_watches_is_no_relative() {
    let family = Family::create().unwrap();
    let me = family.join();
    assert!(!family.has_others(me));
    let watching = Table(Family::open_to_read(family.id(), kernel::user_id()).unwrap(), 0);
    family.await_attached(2);
    assert!(!family.has_others(me));
    let child = family.expect();
    assert!(family.has_others(me));
    family.forked(child.unwrap(), None);
    assert!(!family.has_others(me));
    drop(watching);
}
