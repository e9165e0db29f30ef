//! A process's connection to the broker, and its asks that are under way.
//!
//! An ask hands a socket over for a moment. In the queue of a stopped daemon this copy would keep the socket open, even
//! after its program has closed it or was killed. So the library first asks the broker whether it is at work, and sends
//! the socket only if the broker has just answered.

use crate::channel::{MARK, Pool, Side};
use crate::clock;
use crate::config::SocketPath;
use crate::dial::{Beside, Dial};
use crate::raw::Errno;
use crate::reason::Reason;
use crate::sync::{AtomicBool, Relaxed};
use underpass_broker as wire;
use underpass_broker::{Freed, Knock, Refusal, Verdict};

/// Most asks of one process that are under way.
const ASKS: usize = 64;
/// An end whose other end the broker does not know yet gets an answer within this time, or asks again.
pub(super) const HEED_NS: u64 = 1_000_000_000;
/// How long an answer of the broker proves that it is at work.
const FRESH_NS: u64 = 10_000_000;
/// A call that comes too late for an answer to be fresh waits for one.
const WAIT_NS: i64 = 100_000;
/// A broker that has not answered for this long is left alone.
const SILENT_NS: u64 = 1_000_000_000;
/// How soon the library looks again for a broker that is not there; each time after twice as long.
const PAUSE_NS: u64 = 1_000_000_000;
const LONGEST_PAUSE_NS: u64 = 60_000_000_000;

/// In place of the number of the daemon that has to give a pool again: an image goes on without the pool.
pub(super) const NOBODY: u64 = 0;

/// A place in a pool: a slot, and the side of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub pool: Pool,
    pub slot: u32,
    pub side: Side,
    /// The cookies of the maker's and of the joiner's socket.
    pub cookies: [u64; 2],
    /// If the other end is on another host: the key of the stream, and the number of the daemon that carries it. The
    /// maker is the broker then, and the slot is ready.
    pub key: Option<([u64; 2], u64)>,
}

impl Place {
    /// Whether its end can join. The maker makes the slot ready itself, so it can always join.
    pub fn is_ready(&self) -> bool {
        self.side == Side::Maker || self.pool.slot(self.slot, self.side).is_some_and(|it| it.is_for(self.cookies))
    }

    /// The cookie of the other end's socket.
    pub fn other(&self) -> u64 {
        self.cookies[1 - self.side as usize]
    }

    /// Whether it was given to the end of the socket with this cookie.
    pub fn is_of(&self, cookie: u64) -> bool {
        self.cookies[self.side as usize] == cookie
    }
}

/// What has become of an ask.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outcome {
    /// There is no answer yet.
    None,
    /// The broker does not know the other end yet.
    Waiting,
    Met(Place),
    Refused(Refusal),
    /// The memory could not be mapped.
    NoMemory,
    /// The kernel has not given this process the memory, though it has descriptors: a security module forbids it, for
    /// example.
    Withheld,
    /// This process has no free descriptor to ask with, or for the memory.
    NoDescriptor,
    /// The connection to the broker has ended.
    Lost,
}

/// An ask for the socket with this cookie.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask {
    cookie: u64,
    /// When it was made (CLOCK_MONOTONIC, ns).
    pub since: u64,
    /// The process does not follow it any more; whether it was the last with the end.
    pub abandoned: Option<bool>,
    pub outcome: Outcome,
}

/// What a process has of the broker.
pub(super) struct Broker {
    path: SocketPath,
    dial: Option<Dial>,
    asks: [Option<Ask>; ASKS],
    /// When it was last asked whether it is at work, and has not answered (CLOCK_MONOTONIC, ns); 0: it has.
    knocked: u64,
    /// When it was last asked so, and has answered.
    answered: u64,
    /// The number of the daemon that has answered last: another one each time that it starts.
    pub daemon: u64,
    /// When it is looked for again, and how long that was put off the last time.
    not_before: u64,
    pause: u64,
    /// There was one once: if it is not there now, it will be back.
    was_there: bool,
}

/// Whether this process has a connection to the broker.
static IS_DIALED: AtomicBool = AtomicBool::new(false);

/// Whether this process awaits an answer of the broker.
pub fn is_asking() -> bool {
    IS_DIALED.load(Relaxed)
}

/// The result of an attempt to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Try {
    Asked,
    /// The broker has to show first that it is at work.
    Knocking,
    /// Not now.
    Later,
    /// Not now: the host has no descriptor or no memory for a socket at this moment.
    Scarce,
    /// Not now, and perhaps not soon: this process has no descriptor to ask with.
    NoDescriptor,
    /// There is no broker, and was none.
    Nobody,
}

impl Try {
    /// Why an end that may only meet by the broker has not met, after this attempt.
    pub(super) fn reason(self) -> Reason {
        match self {
            Try::Scarce | Try::NoDescriptor => Reason::NoDescriptor,
            Try::Asked | Try::Knocking | Try::Later | Try::Nobody => Reason::NoBroker,
        }
    }
}

impl Broker {
    pub(super) const fn new(path: SocketPath) -> Broker {
        let asks = [None; ASKS];
        Broker { path, dial: None, asks, knocked: 0, answered: 0, daemon: 0, not_before: 0, pause: 0, was_there: false }
    }

    /// Where it listens.
    pub(super) fn path(&self) -> &SocketPath {
        &self.path
    }

    /// Whether there may be one.
    pub(super) fn may_be_there(&self, now: u64) -> bool {
        !self.path.bytes().is_empty() && (self.was_there || now >= self.not_before)
    }

    /// Whether this process tries to reach it at present.
    pub(super) fn is_sought(&self, now: u64) -> bool {
        !self.path.bytes().is_empty() && now >= self.not_before
    }

    pub(super) fn find(&mut self, cookie: u64) -> Option<&mut Ask> {
        self.asks.iter_mut().flatten().find(|it| it.cookie == cookie)
    }

    /// Forgets the ask for this socket. The connection is kept only while an answer is awaited.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.asks.iter_mut().filter(|it| it.is_some_and(|it| it.cookie == cookie)).for_each(|it| *it = None);
        self.rest();
    }

    /// In a forked child: the asks are its parent's.
    pub(super) fn after_fork(&mut self) {
        self.hang_up();
        self.asks.fill(None);
    }

    /// In a forked child whose parent was changing it in another thread. The descriptor, if there is one, is not known.
    pub(super) fn begin_anew(&mut self) {
        *self = Broker::new(self.path);
        IS_DIALED.store(false, Relaxed);
    }

    /// Asks for the connection of socket `fd`, which has this cookie.
    pub(super) fn ask(&mut self, cookie: u64, fd: i32, ring_bytes: u32, freed: Option<Freed>) -> Try {
        let now = clock::nanoseconds();
        let Some(place) = self.place_for(cookie, now) else { return Try::Later };
        let dial = match self.dial(now) {
            Ok(dial) => dial,
            Err(why) => return why,
        };
        if !self.is_at_work(now) {
            return self.knock(dial, now);
        }
        let ask = wire::Ask { token: cookie, mark: MARK, ring_bytes, freed };
        match dial.ask(&ask, fd) {
            Ok(()) => {
                self.asks[place] = Some(Ask { cookie, since: now, abandoned: None, outcome: Outcome::None });
                Try::Asked
            }
            Err(error) => self.not_sent(error, now),
        }
    }

    /// The place in which an ask is noted. If none is free, it replaces an old ask, whose end asks again.
    fn place_for(&self, cookie: u64, now: u64) -> Option<usize> {
        let place = |is: &dyn Fn(&Option<Ask>) -> bool| self.asks.iter().position(is);
        let is_old = |it: &Option<Ask>| it.is_some_and(|it| now.saturating_sub(it.since) > HEED_NS);
        let is_same = |it: &Option<Ask>| it.is_some_and(|it| it.cookie == cookie);
        place(&is_same).or_else(|| place(&Option::is_none)).or_else(|| place(&is_old))
    }

    /// The connection to the broker.
    fn dial(&mut self, now: u64) -> Result<Dial, Try> {
        if let Some(dial) = self.dial {
            return Ok(dial);
        }
        let nobody = if self.was_there { Try::Later } else { Try::Nobody };
        if self.path.bytes().is_empty() || now < self.not_before {
            return Err(nobody);
        }
        match Dial::connect(&self.path) {
            Ok(dial) => {
                (self.knocked, self.answered, self.was_there) = (0, 0, true);
                self.dial = Some(dial);
                IS_DIALED.store(true, Relaxed);
                Ok(dial)
            }
            // ENFILE: the table is the host's, and others give descriptors back all the time.
            Err(Errno(libc::ENOBUFS | libc::ENOMEM | libc::ENFILE)) => Err(Try::Scarce),
            Err(Errno(libc::EAGAIN)) => Err(Try::Later),
            Err(Errno(libc::EMFILE)) => Err(Try::NoDescriptor),
            Err(_) => {
                self.leave_alone(now);
                Err(nobody)
            }
        }
    }

    fn is_at_work(&self, now: u64) -> bool {
        self.answered != 0 && now.saturating_sub(self.answered) < FRESH_NS
    }

    /// Asks whether the broker is at work. A call whose last answer had become too old waits a moment for this one.
    fn knock(&mut self, dial: Dial, now: u64) -> Try {
        let is_under_way = self.knocked != 0;
        if is_under_way && now.saturating_sub(self.knocked) > SILENT_NS {
            self.leave_alone(now);
            self.lose();
            return Try::Later;
        }
        if !is_under_way {
            if let Err(error) = dial.knock(&Knock { token: now, mark: MARK }) {
                return self.not_sent(error, now);
            }
            self.knocked = now;
            if self.answered != 0 {
                dial.wait(WAIT_NS);
            }
        }
        Try::Knocking
    }

    /// Finds out whether the broker is at work: [`Try::Asked`] if it is.
    pub(super) fn greet(&mut self) -> Try {
        let now = clock::nanoseconds();
        match self.dial(now) {
            Ok(_) if self.is_at_work(now) => Try::Asked,
            Ok(dial) => self.knock(dial, now),
            Err(why) => why,
        }
    }

    /// Whether this process, which is connected to it, has a free descriptor for memory too.
    pub(super) fn has_room_for_memory(&self) -> bool {
        self.dial.is_some_and(|dial| dial.has_room_for_gift())
    }

    /// Waits so many nanoseconds for an answer.
    pub(super) fn look(&self, nanoseconds: i64) {
        if let Some(dial) = self.dial {
            dial.wait(nanoseconds);
        }
    }

    fn not_sent(&mut self, error: Errno, now: u64) -> Try {
        if !matches!(error, Errno(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::ETOOMANYREFS)) {
            self.leave_alone(now);
            self.lose();
        }
        Try::Later
    }

    /// This process does not look for the broker for a while.
    fn leave_alone(&mut self, now: u64) {
        self.pause = (self.pause * 2).clamp(PAUSE_NS, LONGEST_PAUSE_NS);
        self.not_before = now + self.pause;
    }

    /// The next answer to an ask, and what comes beside it.
    pub(super) fn hear(&mut self) -> Option<(wire::Answer, Beside)> {
        while let Some(dial) = self.dial {
            match dial.hear() {
                Ok(Some((wire::Answer { token, verdict: Verdict::Here { daemon }, .. }, _))) => {
                    if token == self.knocked {
                        (self.answered, self.knocked, self.pause) = (token, 0, 0);
                    }
                    self.daemon = daemon;
                }
                Ok(Some(answer)) => return Some(answer),
                Ok(None) => break,
                Err(_) => {
                    self.leave_alone(clock::nanoseconds());
                    self.lose();
                }
            }
        }
        None
    }

    /// Waits for an answer until `until` (CLOCK_MONOTONIC, ns). False if that is over: then this process does not look
    /// for the broker for a while.
    pub(super) fn wait(&mut self, until: u64) -> bool {
        let now = clock::nanoseconds();
        match self.dial.filter(|_| now < until) {
            Some(dial) => dial.wait((until - now).min(999_999_999) as i64),
            None => {
                self.leave_alone(now);
                self.lose();
            }
        }
        self.dial.is_some()
    }

    /// Asks that are under way get no answers any more.
    fn lose(&mut self) {
        self.hang_up();
        for ask in self.asks.iter_mut() {
            match ask {
                Some(Ask { outcome: Outcome::None | Outcome::Waiting, abandoned: Some(_), .. }) => *ask = None,
                Some(Ask { outcome: outcome @ (Outcome::None | Outcome::Waiting), .. }) => *outcome = Outcome::Lost,
                _ => {}
            }
        }
    }

    fn hang_up(&mut self) {
        if let Some(dial) = self.dial.take() {
            dial.hang_up();
        }
        IS_DIALED.store(false, Relaxed);
    }

    /// Keeps the connection only while an answer is awaited.
    pub(super) fn rest(&mut self) {
        if self.dial.is_none() {
            return;
        }
        let now = clock::nanoseconds();
        let is_awaited = |it: &Ask| match it.outcome {
            // No end would look for the answer.
            Outcome::None => it.abandoned.is_none(),
            Outcome::Waiting => now.saturating_sub(it.since) <= HEED_NS,
            _ => false,
        };
        if !self.asks.iter().flatten().any(is_awaited) {
            self.lose();
        }
    }
}
