//! The thread that carries streams to other hosts and from them ([`crate::carrier`]), and gives programs their memory.

use crate::carrier::{Carrier, Event, Name};
use crate::memory;
use crate::record;
use crate::sys;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Instant;
use underpass_broker::{Answer, Shape, Verdict};
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
/// How often the carrier looks what programs have read, while it carries streams, in nanoseconds.
const LOOKS_NS: u64 = 1_000_000;

/// A program's connection to another host.
#[derive(Debug)]
pub struct Passenger {
    pub name: Name,
    /// The other host's daemon.
    pub daemon: SocketAddr,
    /// The client that has asked, and its ask.
    pub client: Arc<OwnedFd>,
    pub token: u64,
    pub mark: u64,
    /// The cookie of its socket.
    pub cookie: u64,
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

/// The thread, for the loop of clients.
#[derive(Debug)]
pub struct Carriage {
    passengers: Sender<Passenger>,
    bell: Arc<OwnedFd>,
}

impl Carriage {
    /// Starts it, at a UDP socket of this address.
    ///
    /// # Errors
    /// See [`CarriageError`].
    pub fn start(listen: SocketAddr) -> Result<Carriage, CarriageError> {
        let (arena, free) = Arena::new(GEOMETRY);
        let link = Udp::open(listen, &arena, &udp::Config::default());
        let link = link.map_err(|error| CarriageError::Link(listen, error))?;
        let bell = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(io::Error::from)?);
        let (passengers, come) = channel();
        let rings = bell.clone();
        let run = move || Runner::new(link, arena, free, come, rings).run();
        thread::Builder::new().name("carriage".into()).spawn(run)?;
        Ok(Carriage { passengers, bell })
    }

    /// A program has asked for a connection to another host.
    pub fn board(&self, passenger: Passenger) {
        // The thread ends with the daemon.
        let _ = self.passengers.send(passenger);
        self.ring();
    }

    /// A program has put something into its ring.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }
}

/// The memory of a stream, and its client.
struct Seat {
    pool: Pool,
    shape: Shape,
    memory: OwnedFd,
    client: Arc<OwnedFd>,
    token: u64,
    mark: u64,
    cookies: [u64; 2],
    number: u64,
}

struct Runner {
    carrier: Carrier,
    come: Receiver<Passenger>,
    bell: Arc<OwnedFd>,
    seats: HashMap<Name, Seat>,
    secret: RandomState,
    last: u64,
    began: Instant,
}

impl Runner {
    fn new(link: Udp, arena: Arena, free: Vec<Buffer>, come: Receiver<Passenger>, bell: Arc<OwnedFd>) -> Runner {
        let carrier = Carrier::over(link, arena, free, POOL, RECEIVE);
        let (seats, secret) = (HashMap::new(), RandomState::new());
        Runner { carrier, come, bell, seats, secret, last: 0, began: Instant::now() }
    }

    fn now(&self) -> Time {
        Time(self.began.elapsed().as_nanos() as u64)
    }

    fn run(mut self) {
        let mut idle_since = self.now();
        loop {
            let mut any = false;
            while let Ok(passenger) = self.come.try_recv() {
                any = true;
                self.seat(passenger);
            }
            any |= self.carrier.poll(self.now());
            while let Some(event) = self.carrier.event() {
                any = true;
                self.tell(event);
            }
            if any {
                idle_since = self.now();
            } else if self.now().since(idle_since) > POLLS_NS {
                self.sleep();
            }
        }
    }

    fn sleep(&mut self) {
        self.carrier.raise_flags();
        if self.carrier.poll(self.now()) {
            return;
        }
        let look = if self.seats.is_empty() { None } else { Some(LOOKS_NS) };
        let patience = self.carrier.patience(self.now()).into_iter().chain(look).min();
        let time = patience.map(sys::timespec);
        if let Some(readiness) = self.carrier.readiness() {
            let bell = PollFd::from_borrowed_fd(self.bell.as_fd(), PollFlags::IN);
            // Whatever it says, the loop looks at everything.
            let _ = poll(&mut [readiness.poll(), bell], time.as_ref());
        }
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
    }

    /// A random number that is not 0.
    fn random(&mut self) -> u64 {
        self.last += 1;
        self.secret.hash_one(self.last).max(1)
    }

    fn seat(&mut self, passenger: Passenger) {
        let Passenger { name, daemon, client, token, mark, cookie } = passenger;
        // It has asked before, and waits, or was given its memory.
        if self.seats.contains_key(&name) {
            return;
        }
        let Ok(shape) = Shape::new(RING_BYTES, 1) else { return };
        let Ok(memory) = memory::sealed(shape.pool_bytes()) else { return };
        let Ok((pool, _)) = Pool::of_memfd(memory.as_raw_fd(), channel::Shape::of_broker(shape)) else { return };
        let (number, own) = (self.random(), self.random());
        let cookies = [if own == cookie { own ^ 1 } else { own }, cookie];
        pool.lay();
        let Some(slot) = pool.slot(0, Side::Maker) else { return };
        slot.prepare(cookies);
        let (key, now) = ([self.random(), self.random()], self.now());
        if self.carrier.offer(name, daemon, Far::new(slot), key, now) {
            self.seats.insert(name, Seat { pool, shape, memory, client, token, mark, cookies, number });
        }
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::Met(name, key) => {
                let Some(seat) = self.seats.get(&name) else { return };
                let verdict = Verdict::Carried { pool: seat.number, shape: seat.shape, cookies: seat.cookies, key };
                tracing::info!(local = %name.local, remote = %name.remote, "a stream is carried");
                send(seat, verdict, Some(seat.memory.as_fd()));
            }
            Event::Rings(name) => {
                if let Some(seat) = self.seats.get(&name) {
                    send(seat, Verdict::Rings, None);
                }
            }
            Event::Lost(name) => {
                tracing::info!(local = %name.local, remote = %name.remote, "a stream is carried no more");
                if let Some(seat) = self.seats.remove(&name) {
                    send(&seat, Verdict::Rings, None);
                    #[allow(unsafe_code, reason = "unmaps the memory")]
                    // SAFETY: the far end, which was the only user here, is gone.
                    unsafe {
                        seat.pool.detach();
                    }
                }
            }
        }
    }
}

/// A client that does not take it looks by itself.
fn send(seat: &Seat, verdict: Verdict, memory: Option<BorrowedFd<'_>>) {
    if let Ok((record, len)) = (Answer { token: seat.token, mark: seat.mark, verdict }).emit() {
        let _ = record::send(seat.client.as_fd(), &record[..len], memory);
    }
}
