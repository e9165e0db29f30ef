//! A thread enters the lock of a direction, and repairs what the lock's last owner left half done.

use super::Port;
use crate::clock::give_way;
use crate::kernel;
use crate::lock::Entered;
use crate::sync::AcqRel;

/// The other thread inside the lock of the incoming direction, where this thread is too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    /// There is none: this thread is the only reader.
    Nobody,
    /// Another thread sleeps in a receive.
    Sleeper,
}

impl Beside {
    fn of(entered: Entered) -> Beside {
        if entered == Entered::Asleep { Beside::Sleeper } else { Beside::Nobody }
    }
}

impl Port<'_> {
    /// Enters the lock. The first thread that enters after its owner was killed repairs the ring.
    #[inline]
    pub(super) fn enter_sending(&self) -> Entered {
        let entered = self.end.sending.lock.enter(self.me);
        self.repair_sending_after(entered);
        entered
    }

    /// Enters the lock, unless another thread that lives is inside.
    pub(super) fn try_enter_sending(&self) -> Option<Entered> {
        let entered = self.end.sending.lock.try_enter(self.me)?;
        self.repair_sending_after(entered);
        Some(entered)
    }

    #[inline]
    fn repair_sending_after(&self, entered: Entered) {
        if entered == Entered::AfterDeath {
            kernel::undisturbed(|| self.repair_sending());
        }
    }

    /// Exits the lock, for a kernel send or not.
    #[inline]
    pub(super) fn exit_sending(&self, entered: Entered, kernel_send: bool) {
        let sending = &self.end.sending;
        if kernel_send {
            sending.kernel_sends.fetch_add(1, AcqRel);
        }
        sending.lock.exit(entered);
    }

    /// Enters the lock. The first thread that enters after its owner was killed repairs what that owner was in the
    /// middle of. A signal handler counts what its own thread was about to count.
    #[inline]
    pub(super) fn enter_reading(&self) -> Entered {
        let entered = self.end.reading.lock.enter(self.me);
        self.repair_after(entered);
        entered
    }

    /// Does `what` inside the lock. The sleeper, if there is one, may wake meanwhile and read.
    pub(super) fn with_reading<T>(&self, what: impl FnOnce(Beside) -> T) -> T {
        let lock = &self.end.reading.lock;
        let entered = self.enter_reading();
        let done = what(Beside::of(entered));
        lock.exit(entered);
        done
    }

    /// Does `what` inside the lock. The sleeper, if there is one, comes back to the ring only afterwards.
    pub(super) fn with_all_reading<T>(&self, what: impl Fn(Beside) -> T) -> T {
        self.with_all_entered(|| self.enter_reading(), |entered| what(Beside::of(entered)))
    }

    /// As [`Port::with_all_reading`], for `what` that repairs by itself what the lock's last owner left half done.
    pub(super) fn with_all_unrepaired<T>(&self, what: impl Fn(Entered) -> T) -> T {
        self.with_all_entered(|| self.end.reading.lock.enter(self.me), what)
    }

    fn with_all_entered<T>(&self, enter: impl Fn() -> Entered, what: impl Fn(Entered) -> T) -> T {
        let lock = &self.end.reading.lock;
        let visit = || {
            lock.visit(self.me).then(|| {
                let done = what(Entered::Asleep);
                lock.end_visit();
                done
            })
        };
        loop {
            let entered = enter();
            if entered != Entered::Asleep {
                let done = what(entered);
                lock.exit(entered);
                return done;
            }
            if let Some(done) = kernel::undisturbed(visit) {
                return done;
            }
            give_way();
        }
    }

    /// Whether this thread may take from the kernel's queue. It may not beside a sleeper that is about to take
    /// something there.
    pub(super) fn may_take(&self, beside: Beside) -> bool {
        beside == Beside::Nobody || self.end.reading.lock.is_awaited()
    }
}
