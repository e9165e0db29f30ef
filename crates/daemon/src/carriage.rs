//! The thread that carries streams to other hosts and from them ([`crate::carrier`]), and gives programs their memory.

use crate::carrier::{Carrier, Event, Name};
use crate::lines::Lines;
use crate::memory;
use crate::record;
use crate::sys;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;
use underpass_broker::{Answer, Refusal, Shape, Verdict};
use underpass_engine::service::Time;
use underpass_link::arena::{Arena, Buffer, Geometry};
use underpass_link::error::OpenError;
use underpass_link::udp::{self, Udp};
use underpass_segment::channel::{self, Pool, Side};
use underpass_segment::far::Far;

const GEOMETRY: Geometry = Geometry { frames: 4096, frame_size: 2048, headroom: 128 };
/// Frames that the transport has for itself, and those that receive.
const POOL: usize = 256;
const RECEIVE: usize = 2048;
/// Octets of a ring: what a program sends again when it goes down has to find room in its kernel's buffer.
const RING_BYTES: u32 = 1 << 16;
/// The carrier looks for the next packet for so long before it sleeps.
const POLLS_NS: u64 = 50_000;
/// A program does not ring when it has read. The carrier looks after this time, in nanoseconds, and each time in vain
/// after twice as long, up to the longest.
const LOOK_NS: u64 = 1_000_000;
const LONGEST_LOOK_NS: u64 = 10_000_000;
/// How often the thread lets go of what nobody asks for any more, in nanoseconds.
const SWEEP_NS: u64 = 1_000_000_000;
/// A program whose other end has not asked asks again within less than this time, in nanoseconds.
const HEED_NS: u64 = 5_000_000_000;
/// Most streams of a user.
const MOST: usize = 4096;

/// A program's connection to another host.
#[derive(Debug)]
pub struct Passenger {
    pub name: Name,
    /// The other host's daemon.
    pub daemon: SocketAddr,
    /// Whose program it is.
    pub uid: u32,
    pub asker: Asker,
    /// The cookie of its socket.
    pub cookie: u64,
}

/// The client that has asked, and its ask.
#[derive(Debug)]
pub struct Asker {
    pub client: Arc<OwnedFd>,
    pub token: u64,
    pub mark: u64,
}

impl Asker {
    /// Answers the ask. A client that does not take the answer asks again.
    fn answer(&self, verdict: Verdict, memory: Option<BorrowedFd<'_>>) {
        if let Ok((record, len)) = (Answer { token: self.token, mark: self.mark, verdict }).emit() {
            let _ = record::send(self.client.as_fd(), &record[..len], memory);
        }
    }
}

/// Why no streams can be carried.
#[derive(Debug, thiserror::Error)]
pub enum CarriageError {
    /// The UDP socket cannot be opened.
    #[error("the UDP socket at {0}, by which daemons talk, cannot be opened: {1}")]
    Link(SocketAddr, OpenError),
    /// The kernel gives no descriptor or thread.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// What the loop of clients has for the thread.
#[derive(Debug)]
enum Order {
    /// A program has asked for a connection to another host.
    Board(Passenger),
    /// The program whose socket has this cookie asks again, about a connection that is ending.
    Again(u64, Asker),
    /// A process of this user gives a line of this number.
    Line(u32, u64, OwnedFd),
}

/// The thread, for the loop of clients.
#[derive(Debug)]
pub struct Carriage {
    orders: Sender<Order>,
    bell: Arc<OwnedFd>,
    /// The cookies of sockets whose streams have a place here.
    seated: Arc<Mutex<HashSet<u64>>>,
}

impl Carriage {
    /// Starts it, at a UDP socket of this address, for the daemon of this number.
    ///
    /// # Errors
    /// See [`CarriageError`].
    pub fn start(listen: SocketAddr, daemon: u64) -> Result<Carriage, CarriageError> {
        let (arena, free) = Arena::new(GEOMETRY);
        let link = Udp::open(listen, &arena, &udp::Config::default());
        let link = link.map_err(|error| CarriageError::Link(listen, error))?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?);
        let (orders, come) = channel();
        let (rings, lines, seated) = (bell.clone(), Lines::new(daemon)?, Arc::<Mutex<HashSet<u64>>>::default());
        let seats = Seats { seats: HashMap::new(), seated: seated.clone() };
        let run = move || Runner::new(link, arena, free, come, rings, lines, seats).run();
        thread::Builder::new().name("carriage".into()).spawn(run)?;
        Ok(Carriage { orders, bell, seated })
    }

    /// A program has asked for a connection to another host.
    pub fn board(&self, passenger: Passenger) {
        self.order(Order::Board(passenger));
    }

    /// A program asks again about a socket with this cookie, whose connection is ending. Gives the asker back if no
    /// stream of that socket has a place here.
    pub fn again(&self, cookie: u64, asker: Asker) -> Option<Asker> {
        if !lock(&self.seated).contains(&cookie) {
            return Some(asker);
        }
        self.order(Order::Again(cookie, asker));
        None
    }

    /// A process of user `uid` gives a line of this number.
    pub fn give(&self, uid: u32, number: u64, socket: OwnedFd) {
        self.order(Order::Line(uid, number, socket));
    }

    fn order(&self, order: Order) {
        // The thread ends with the daemon.
        let _ = self.orders.send(order);
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// The memory that a program shares with the daemon for a stream.
struct Shared {
    pool: Pool,
    shape: Shape,
    memory: OwnedFd,
    /// Of the daemon's end, which has no socket, and of the program's socket.
    cookies: [u64; 2],
    number: u64,
}

/// A stream's place with the daemon.
struct Seat {
    shared: Shared,
    uid: u32,
    asker: Asker,
    /// The key of the stream, once it is carried.
    key: Option<[u64; 2]>,
    /// When the program has asked last.
    asked: Time,
}

/// The places of all streams.
struct Seats {
    seats: HashMap<Name, Seat>,
    /// The cookies of their sockets, for the loop of clients.
    seated: Arc<Mutex<HashSet<u64>>>,
}

impl Seats {
    fn insert(&mut self, name: Name, seat: Seat) {
        lock(&self.seated).insert(seat.shared.cookies[1]);
        self.seats.insert(name, seat);
    }

    fn remove(&mut self, name: Name) {
        if let Some(seat) = self.seats.remove(&name) {
            lock(&self.seated).remove(&seat.shared.cookies[1]);
            seat.leave();
        }
    }
}

fn lock<T>(it: &Mutex<T>) -> MutexGuard<'_, T> {
    it.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Runner {
    carrier: Carrier,
    come: Receiver<Order>,
    bell: Arc<OwnedFd>,
    lines: Lines,
    seats: Seats,
    /// After how many nanoseconds the carrier looks next what programs have read.
    look: u64,
    swept: Time,
    secret: RandomState,
    last: u64,
    began: Instant,
}

impl Runner {
    fn new(
        link: Udp,
        arena: Arena,
        free: Vec<Buffer>,
        come: Receiver<Order>,
        bell: Arc<OwnedFd>,
        lines: Lines,
        seats: Seats,
    ) -> Runner {
        let carrier = Carrier::over(link, arena, free, POOL, RECEIVE);
        let (secret, began) = (RandomState::new(), Instant::now());
        Runner { carrier, come, bell, lines, seats, look: LOOK_NS, swept: Time(0), secret, last: 0, began }
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }

    fn run(mut self) {
        let mut idle_since = self.now();
        loop {
            let mut any = false;
            while let Ok(order) = self.come.try_recv() {
                any = true;
                match order {
                    Order::Board(passenger) => self.seat(passenger),
                    Order::Again(cookie, asker) => self.seat_again(cookie, asker),
                    Order::Line(uid, number, socket) => self.lines.add(uid, number, socket),
                }
            }
            any |= self.carry();
            if any {
                (idle_since, self.look) = (self.now(), LOOK_NS);
            } else if self.now().since(idle_since) > POLLS_NS {
                self.sleep();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Carries what there is, and tells what has happened, before an order may change whose a name is. Whether there
    /// was anything.
    fn carry(&mut self) -> bool {
        let mut any = self.carrier.poll(self.now());
        while let Some(event) = self.carrier.event() {
            any = true;
            self.tell(event);
        }
        any
    }

    fn sleep(&mut self) {
        self.carrier.raise_flags();
        if self.carry() {
            return;
        }
        let look = self.carrier.awaits_programs().then_some(self.look);
        let sweep = (!self.seats.seats.is_empty()).then(|| self.sweep());
        let patience = self.carrier.patience(self.now()).into_iter().chain(look).chain(sweep).min();
        self.look = (self.look * 2).min(LONGEST_LOOK_NS);
        let time = patience.map(sys::timespec);
        if let Some(readiness) = self.carrier.readiness() {
            let bell = PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN);
            let lines = PollFd::from_borrowed_fd(self.lines.events(), PollFlags::IN);
            let mut all = [readiness.poll(), bell, lines];
            // The loop looks at everything, but at what costs a call.
            let is_woken = poll(&mut all, time.as_ref()).is_ok_and(|count| count > 0);
            let [_, is_ordered, is_rung] = all.map(|it| is_woken && !it.revents().is_empty());
            if is_ordered {
                let _ = rustix::io::read(&self.bell, &mut [0; 8]);
            }
            if is_rung {
                self.lines.hear();
            }
        }
    }

    /// A random number that is not 0.
    fn random(&mut self) -> u64 {
        self.last += 1;
        self.secret.hash_one(self.last).max(1)
    }

    fn seat(&mut self, passenger: Passenger) {
        let (Passenger { name, daemon, uid, asker, cookie }, now) = (passenger, self.now());
        if let Some(seat) = self.seats.seats.get_mut(&name).filter(|it| it.shared.cookies[1] == cookie) {
            (seat.asker, seat.asked) = (asker, now);
            // The answer may not have come.
            return seat.tell();
        }
        // An older connection between the same addresses is over.
        self.forget(name);
        if self.seats.seats.values().filter(|it| it.uid == uid).count() >= MOST {
            return asker.answer(Verdict::Refused(Refusal::Limit), None);
        }
        let Some((shared, far)) = self.share(cookie) else {
            return asker.answer(Verdict::Refused(Refusal::NoMemory), None);
        };
        let key = [self.random(), self.random()];
        let has_way = self.carrier.offer(name, daemon, far, key, now);
        let seat = Seat { shared, uid, asker, key: None, asked: now };
        if has_way {
            seat.tell();
            self.seats.insert(name, seat);
        } else {
            seat.asker.answer(Verdict::Refused(Refusal::Elsewhere), None);
            seat.leave();
        }
    }

    /// The program whose socket has this cookie asks again, about a connection that is ending.
    fn seat_again(&mut self, cookie: u64, asker: Asker) {
        match self.seats.seats.values_mut().find(|it| it.shared.cookies[1] == cookie) {
            Some(seat) => {
                seat.asker = asker;
                seat.tell();
            }
            None => asker.answer(Verdict::Refused(Refusal::NotConnection), None),
        }
    }

    /// Memory for a stream to the program whose socket has this cookie, and the daemon's end of it.
    fn share(&mut self, cookie: u64) -> Option<(Shared, Far)> {
        let (number, own) = (self.random(), self.random());
        let cookies = [if own == cookie { own ^ 1 } else { own }, cookie];
        let shape = Shape::new(RING_BYTES, 1).ok()?;
        let memory = memory::sealed(shape.pool_bytes()).ok()?;
        let (pool, _) = Pool::of_memfd(memory.as_raw_fd(), channel::Shape::of_broker(shape)).ok()?;
        pool.lay();
        let slot = pool.slot(0, Side::Maker)?;
        slot.prepare(cookies);
        Some((Shared { pool, shape, memory, cookies, number }, Far::new(slot)))
    }

    /// Lets go of connections whose program does not ask any more. In how many nanoseconds that is done again.
    fn sweep(&mut self) -> u64 {
        let now = self.now();
        let left = SWEEP_NS.saturating_sub(now.since(self.swept));
        if left > 0 {
            return left;
        }
        self.swept = now;
        let is_old = |it: &Seat| it.key.is_none() && now.since(it.asked) > HEED_NS;
        let old: Vec<Name> = self.seats.seats.iter().filter(|(_, it)| is_old(it)).map(|(name, _)| *name).collect();
        old.into_iter().for_each(|name| self.forget(name));
        SWEEP_NS
    }

    /// Lets go of the connection of this name, if there is one.
    fn forget(&mut self, name: Name) {
        self.carrier.forget(name, self.now());
        self.seats.remove(name);
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::Met(name, key) => {
                let Some(seat) = self.seats.seats.get_mut(&name) else { return };
                tracing::info!(local = %name.local, remote = %name.remote, "a stream is carried");
                seat.key = Some(key);
                seat.tell();
            }
            Event::Rings(line) => self.lines.ring(line),
            Event::Lost(name, line) => {
                self.lines.ring(line);
                tracing::info!(local = %name.local, remote = %name.remote, "a stream is carried no more");
                self.seats.remove(name);
            }
        }
    }
}

impl Seat {
    /// Gives the program its memory, if the stream is carried, or has it wait.
    fn tell(&self) {
        let Shared { shape, cookies, number: pool, .. } = self.shared;
        match self.key {
            Some(key) => {
                let verdict = Verdict::Carried { pool, shape, cookies, key };
                self.asker.answer(verdict, Some(self.shared.memory.as_fd()));
            }
            None => self.asker.answer(Verdict::Waiting, None),
        }
    }

    /// The carrier has let go of the stream.
    fn leave(self) {
        #[allow(unsafe_code, reason = "unmaps the memory")]
        // SAFETY: the far end, which was the only user here, is gone.
        unsafe {
            self.shared.pool.detach();
        }
    }
}
