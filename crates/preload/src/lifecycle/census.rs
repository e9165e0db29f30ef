//! What an execution or an exit asks of many connections at once: which of them have both ends in this process, and how
//! many processes have their channels. It is found out once for all of them.

use super::handoff::by_cookie::ByCookie;
use crate::connection::{Connection, known};
use crate::guest::table;
use core::cell::{Cell, OnceCell};
use underpass_segment::clock;
use underpass_segment::sync::Relaxed;

/// How many pools are remembered.
const POOLS: usize = 64;
/// How long what was asked of a pool is believed.
const FRESH_NS: u64 = 1_000_000;

/// What was asked of a pool.
#[derive(Clone, Copy)]
struct Asked {
    pool: i32,
    at: u64,
    company: Option<u64>,
}

/// What was found out so far.
pub struct Census {
    /// The descriptors of all connections, by the cookies of their sockets; `None` without address space.
    by_cookie: OnceCell<Option<ByCookie>>,
    pools: [Cell<Asked>; POOLS],
}

impl Census {
    /// Nothing yet.
    pub const fn new() -> Census {
        let pools = [const { Cell::new(Asked { pool: 0, at: 0, company: None }) }; POOLS];
        Census { by_cookie: OnceCell::new(), pools }
    }

    /// The other end of the connection, if this process has it, or had it when this was first asked.
    pub fn other_end(&self, connection: &Connection) -> Option<Connection> {
        let all = || (0..table::highest()).filter_map(known);
        let cookie_of = |it: &Connection| it.end.cookie.load(Relaxed);
        let by_cookie = || ByCookie::of(table::highest() as usize, all().map(|it| (cookie_of(&it), it.fd as u32)));
        let cookie = connection.end.peer_cookie.load(Relaxed);
        let is_it = |it: &Connection| cookie_of(it) == cookie;
        match self.by_cookie.get_or_init(by_cookie) {
            // The descriptor that was found may be closed by now, and the end have another one.
            Some(list) => known(list.find(cookie)? as i32).filter(is_it).or_else(|| all().find(is_it)),
            None => all().find(is_it),
        }
    }

    /// How many processes have the channel of the connection, or had it a moment ago.
    pub fn company(&self, connection: &Connection) -> Option<u64> {
        let Some(pool) = connection.end.pool_id() else { return connection.company() };
        let (place, now) = (&self.pools[pool as usize % POOLS], clock::nanoseconds());
        let mut asked = place.get();
        if asked.pool != pool || now.wrapping_sub(asked.at) >= FRESH_NS {
            asked = Asked { pool, at: now, company: connection.company() };
            place.set(asked);
        }
        asked.company
    }
}
