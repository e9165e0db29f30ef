//! Orders to hold a connection on the kernel path, left by the socket's cookie where the end cannot be told from other
//! ends of its family yet: an end learns its cookie when it looks for its other end, and some sockets have no end
//! before they are used. The thread that next uses the socket finds the order and carries it out.
//!
//! What is in the table may be any value: another process of the user may write to it at any time.

use super::Family;
use crate::end::End;
use crate::sync::Relaxed;

impl Family {
    /// Whether there are orders, for which the ends need their cookies.
    #[inline]
    pub fn has_orders(&self) -> bool {
        self.orders().any()
    }

    /// Carries out the order for `end`, if there is one.
    pub fn carry_out_order(&self, end: &End) {
        let cookie = end.cookie.load(Relaxed);
        if self.orders().has(cookie) {
            end.hold();
            // `underpass unpin` takes an order back before it lets go of the end.
            if !self.orders().remove(cookie) {
                end.let_go_up();
            }
        }
    }

    /// Leaves an order for the socket with this cookie; false if there is no room.
    pub(crate) fn order(&self, cookie: u64) -> bool {
        cookie != 0 && self.orders().place(cookie)
    }

    /// Takes the order back; false if there was none.
    pub(crate) fn take_back_order(&self, cookie: u64) -> bool {
        self.orders().remove(cookie)
    }

    /// Whether there is one.
    pub(crate) fn is_ordered(&self, cookie: u64) -> bool {
        self.orders().has(cookie)
    }

    /// Takes back the orders for sockets that do not exist any more, as `is_there` says.
    pub(crate) fn forget_orders(&self, is_there: impl Fn(u64) -> bool) {
        let cookies = self.orders().cookies.iter().map(|it| it.load(Relaxed));
        cookies.filter(|&cookie| !is_there(cookie)).for_each(|cookie| _ = self.take_back_order(cookie));
    }
}

#[cfg(test)]
mod tests {
    use super::super::orders::MOST;
    use super::*;

    #[test]
    fn an_order_is_carried_out_once() {
        let family = Family::create().unwrap();
        let [end, other] = [1, 2].map(|cookie| {
            let end = family.end(family.take(None).unwrap());
            end.cookie.store(cookie, Relaxed);
            end
        });
        assert!(!family.has_orders() && !family.order(0));
        assert!(family.order(1) && family.order(1) && family.has_orders());
        family.carry_out_order(other);
        assert!(!other.is_held() && family.is_ordered(1));
        family.carry_out_order(end);
        assert!(end.is_held() && !family.has_orders() && !family.take_back_order(1));
        end.let_go_up();
        family.carry_out_order(end);
        assert!(!end.is_held());
    }

    #[test]
    fn there_is_room_for_many_and_room_is_made() {
        let family = Family::create().unwrap();
        let ordered = (1..).take_while(|&cookie| family.order(cookie)).count();
        assert_eq!(ordered, MOST);
        family.forget_orders(|cookie| cookie != 3);
        assert!(!family.is_ordered(3) && family.is_ordered(4) && family.order(1000));
    }
}
