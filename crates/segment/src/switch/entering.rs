//! A thread enters the lock of a direction, and repairs what its last owner left.

use super::Port;
use crate::clock::give_way;
use crate::kernel;
use crate::lock::Entered;
use crate::sync::AcqRel;

impl Port<'_> {
    /// Enters the lock. Whoever does so first after its owner was killed mends the ring.
    #[inline]
    pub(super) fn enter_sending(&self) -> Entered {
        let entered = self.end.sending.lock.enter(self.me);
        if entered == Entered::AfterDeath {
            kernel::undisturbed(|| self.mend_sending());
        }
        entered
    }

    /// Leaves the lock, for a kernel send or not.
    #[inline]
    pub(super) fn leave_for(&self, entered: Entered, kernel_send: bool) {
        let sending = &self.end.sending;
        if kernel_send {
            sending.in_kernel.fetch_add(1, AcqRel);
        }
        sending.lock.leave(entered);
    }

    /// Enters the lock. Whoever does so first after its owner was killed mends what that was in the middle of; a signal
    /// handler counts what its own thread was about to count.
    #[inline]
    pub(super) fn enter_reading(&self) -> Entered {
        let entered = self.end.reading.lock.enter(self.me);
        self.mend_after(entered);
        entered
    }

    /// Does `what` as the only reader; or, with `false`, while another thread sleeps in a receive.
    pub(super) fn with_reading<T>(&self, what: impl FnOnce(bool) -> T) -> T {
        let lock = &self.end.reading.lock;
        let entered = self.enter_reading();
        let done = what(entered != Entered::Asleep);
        lock.leave(entered);
        done
    }

    /// Does `what` as the only reader; or, with `true`, beside another thread that sleeps in a receive, and comes back to
    /// the ring only afterwards.
    pub(super) fn with_all_reading<T>(&self, what: impl Fn(bool) -> T) -> T {
        let lock = &self.end.reading.lock;
        let visit = || {
            lock.visit(self.me).then(|| {
                let done = what(true);
                lock.end_visit();
                done
            })
        };
        loop {
            let entered = self.enter_reading();
            if entered != Entered::Asleep {
                let done = what(false);
                lock.leave(entered);
                return done;
            }
            if let Some(done) = kernel::undisturbed(visit) {
                return done;
            }
            give_way();
        }
    }

    /// Whether this thread may take from the kernel's queue: not beside another that is about to do so.
    pub(super) fn may_take(&self, beside: bool) -> bool {
        !beside || self.end.reading.lock.is_awaited()
    }
}
