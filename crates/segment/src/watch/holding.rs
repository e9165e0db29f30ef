//! How `underpass pin` asks for the kernel path.

use super::{Table, Whose, each_table};
use crate::end::End;
use crate::family::Family;
use crate::kernel;
use crate::raw::Errno;
use crate::sync::{Acquire, SeqCst, fence};

/// The cookies among these for which orders wait, with errors as for [`look`](super::look).
///
/// # Errors
/// As for [`look`](super::look).
pub fn ordered(whose: Whose, cookies: &[u64]) -> Result<Vec<u64>, Errno> {
    let mut waits = vec![false; cookies.len()];
    each_table(whose, Family::open_to_read, |table| {
        cookies.iter().zip(&mut waits).for_each(|(&cookie, waits)| *waits |= table.0.is_ordered(cookie));
    })?;
    Ok(cookies.iter().zip(waits).filter(|it| it.1).map(|it| *it.0).collect())
}

/// A socket that is to be kept on the kernel path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Its cookie.
    pub cookie: u64,
    /// The processes that have it.
    pub processes: Vec<u32>,
}

/// The result of an attempt to hold a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Its end is held.
    Held,
    /// It will be held as soon as it is used.
    Ordered,
    /// Too many that were never used are held there already.
    Full,
    /// None of its processes has a table.
    Unknown,
}

/// Asks that the sockets of `subjects`, which are user `uid`'s, stay on the kernel path until [`let_go`]: each goes
/// down with its next send. `is_there` says of a cookie whether there is still such a socket.
///
/// # Errors
/// As for [`look`](super::look).
pub fn hold(uid: u32, subjects: &[Subject], is_there: impl Fn(u64) -> bool) -> Result<Vec<Outcome>, Errno> {
    let tables = tables(uid)?;
    let hold = |cookie| tables.iter().filter(|table| table.change(cookie, End::hold)).count() > 0;
    let one = |it: &Subject| {
        if hold(it.cookie) {
            return Outcome::Held;
        }
        let outcome = order(&tables, it, &is_there);
        // The end may have learnt its cookie meanwhile. The order is left before this look, and an end has its cookie
        // before it looks for orders.
        fence(SeqCst);
        if outcome == Outcome::Ordered && hold(it.cookie) {
            tables.iter().for_each(|table| _ = table.0.take_back_order(it.cookie));
            return Outcome::Held;
        }
        outcome
    };
    Ok(subjects.iter().map(one).collect())
}

fn order(tables: &[Table], subject: &Subject, is_there: impl Fn(u64) -> bool) -> Outcome {
    let Some(namespaces) = kernel::namespaces() else { return Outcome::Unknown };
    let of = |table: &&Table| subject.processes.iter().any(|&process| table.0.is_of(process, namespaces));
    let outcomes = tables.iter().filter(of).map(|Table(family, _)| {
        if family.order(subject.cookie) {
            return Outcome::Ordered;
        }
        family.forget_orders(&is_there);
        if family.order(subject.cookie) { Outcome::Ordered } else { Outcome::Full }
    });
    // Each end of the cookie: any of its processes may use the connection.
    outcomes.fold(Outcome::Unknown, |all, it| if all == Outcome::Ordered { all } else { it })
}

/// Takes back what was asked by [`hold`] of the sockets with these cookies: they may go up with their next send. Says
/// of each whether anything was asked.
///
/// # Errors
/// As for [`look`](super::look).
pub fn let_go(uid: u32, cookies: &[u64]) -> Result<Vec<bool>, Errno> {
    let tables = tables(uid)?;
    let one = |&cookie: &u64| {
        // Orders first: a thread that carries one out meanwhile holds the end before it looks whether the order still
        // stands.
        let ordered = tables.iter().filter(|table| table.0.take_back_order(cookie)).count() > 0;
        fence(SeqCst);
        let held = |end: &End| end.is_held() && (end.let_go_up(), true).1;
        let mut any = ordered;
        tables.iter().for_each(|table| _ = table.change(cookie, |end| any |= held(end)));
        any
    };
    Ok(cookies.iter().map(one).collect())
}

/// The tables of user `uid`, all of them attached, to be written.
fn tables(uid: u32) -> Result<Vec<Table>, Errno> {
    let mut all = Vec::new();
    each_table(Whose::User(uid), Family::open, |table| all.push(table))?;
    Ok(all)
}

impl Table {
    /// Does `what` to the ends with this cookie; false if there is none.
    fn change(&self, cookie: u64, mut what: impl FnMut(&End)) -> bool {
        let is_it = |end: &End| end.owners.are_any() && end.cookie.load(Acquire) == cookie;
        let mut any = false;
        for end in (0..self.0.used()).map(|index| self.0.end(index)).filter(|end| cookie != 0 && is_it(end)) {
            what(end);
            fence(SeqCst);
            if is_it(end) {
                any = true;
            } else {
                // The end is another connection's by now.
                end.let_go_up();
            }
        }
        any
    }
}
