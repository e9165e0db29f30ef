//! The loop: one thread that waits for clients, for their packets and for the end of their processes. It makes no call
//! that a client can make last; [`crate::lanes`] and [`crate::closer`] do.

mod clients;

use crate::abilities::Abilities;
use crate::carriage::{Asker, Carriage, Passenger};
use crate::carrier::Name;
use crate::closer::{Closer, Gone};
use crate::exchange::{ClientId, Exchange, ProcessId, Reply};
use crate::facts::Facts;
use crate::lanes::{Lanes, Taken};
use crate::limits::Limits;
use crate::listener::Listener;
use crate::packet::Packet;
use crate::policy::{Reloads, warn_of_gaps};
use crate::process::Process;
use crate::record::send;
use crate::routes::Routes;
use crate::sys;
use clients::{Clients, Entered};
use rustix::event::{Timespec, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use rustix::process::geteuid;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use underpass_broker::{self as wire, Answer, Ask, Counts, Inquiry, Refusal, State, Verdict};
use underpass_policy::Policy;

/// Connections that are accepted at a time, before others have their turn.
const AT_ONCE: usize = 256;
/// Events at a time.
const EVENTS: usize = 256;
/// A client that says nothing for so long is disconnected. Its asks stay, and it may come back.
const SILENCE: Duration = Duration::from_secs(60);
/// How often the daemon looks for connections and waits that are over, while there are clients.
const TIDY: Duration = Duration::from_secs(1);
/// How often connections are let go of, unless there are many.
const FLUSH: Duration = Duration::from_millis(10);
/// What the events of the epoll set say.
const LISTENER: u64 = 0;
const SIGNAL: u64 = 1;
const BELL: u64 = 2;
const RELOAD: u64 = 3;
const CLOSER: u64 = 4;
/// Marks an event's number as a process's, whose end is reported; without the mark it is a client's, whose packet is.
const PROCESS: u64 = 1 << 63;
/// Numbers of clients and processes begin here.
const FIRST: u64 = 5;

/// What a daemon is made of.
#[derive(Debug)]
pub struct Parts {
    /// Where clients come from.
    pub listener: Listener,
    /// Something comes on it when the daemon is to end.
    pub signals: UnixStream,
    /// What lets go of connections.
    pub closer: Closer,
    /// What the system lets it do.
    pub abilities: Abilities,
    /// The policy at the start.
    pub policy: Policy,
    /// Policies that take its place.
    pub reloads: Reloads,
    /// What a user may cost.
    pub limits: Limits,
    /// The routes to other hosts, and what carries streams there.
    pub away: Option<(Routes, Carriage)>,
    /// Another one each time that the daemon starts, not 0.
    pub number: u64,
}

/// Why the daemon does not go on.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The kernel does not let it wait.
    #[error("{0}")]
    System(#[from] io::Error),
    /// A process of its own is gone.
    #[error("{0}")]
    Closer(#[from] Gone),
}

/// The daemon.
#[derive(Debug)]
pub struct Server {
    events: OwnedFd,
    listener: Listener,
    /// A descriptor that is given up when there is no other, so that a connection can be accepted in its place, and
    /// closed.
    spare: Option<OwnedFd>,
    _signals: UnixStream,
    lanes: Lanes,
    closer: Closer,
    clients: Clients,
    exchange: Exchange,
    reloads: Reloads,
    abilities: Abilities,
    away: Option<(Routes, Carriage)>,
    /// What is counted here, and not looked up when it is asked for.
    counts: Counts,
    began: Instant,
    /// See [`Verdict::Here`].
    number: u64,
    tidied: u64,
    flushed: u64,
    /// Clients that have sent faster than they may, and when they are read again.
    later: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Server {
    /// A daemon that listens.
    ///
    /// # Errors
    /// No descriptors could be had.
    pub fn new(parts: Parts) -> io::Result<Server> {
        let Parts { listener, signals, closer, abilities, policy, reloads, limits, away, number } = parts;
        let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let lanes = Lanes::new()?;
        let sources = [listener.socket.as_fd(), signals.as_fd(), lanes.bell(), reloads.bell(), closer.end()];
        for (source, number) in sources.into_iter().zip([LISTENER, SIGNAL, BELL, RELOAD, CLOSER]) {
            epoll::add(&events, source, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
        }
        Ok(Server {
            events,
            listener,
            spare: Some(File::open("/dev/null")?.into()),
            _signals: signals,
            lanes,
            closer,
            clients: Clients::new(limits, FIRST),
            exchange: Exchange::new(policy, abilities.network, limits),
            reloads,
            abilities,
            away,
            counts: Counts::default(),
            began: Instant::now(),
            number,
            tidied: 0,
            flushed: 0,
            later: BinaryHeap::new(),
        })
    }

    /// Serves until a signal asks it to end.
    ///
    /// # Errors
    /// See [`RunError`].
    pub fn run(mut self) -> Result<(), RunError> {
        let mut events = Vec::with_capacity(EVENTS);
        loop {
            match epoll::wait(&self.events, rustix::buffer::spare_capacity(&mut events), self.patience().as_ref()) {
                Err(Errno::INTR) => continue,
                result => result.map_err(io::Error::from)?,
            };
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    SIGNAL => return Ok(()),
                    CLOSER => return Err(Gone.into()),
                    RELOAD => self.reload(),
                    BELL => self.lanes.finished().into_iter().for_each(|(uid, taken)| self.taken(uid, taken)),
                    number if number & PROCESS != 0 => self.ended(ProcessId(number & !PROCESS)),
                    client => self.take_from(client),
                }
            }
            self.resume();
            self.tidy();
            self.flush_closer()?;
        }
    }

    /// Nanoseconds since the daemon began.
    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// How long nothing has to be done; `None`: for ever.
    fn patience(&self) -> Option<Timespec> {
        let now = self.now();
        let held = self.later.peek().map(|Reverse((when, _))| when.saturating_sub(now));
        let next_flush = || (self.flushed + FLUSH.as_nanos() as u64).saturating_sub(now).max(1_000_000);
        let flush = self.closer.is_due().then(next_flush);
        let is_used = !self.clients.is_empty() || self.exchange.is_waited();
        let tidy = is_used.then(|| (self.tidied + TIDY.as_nanos() as u64).saturating_sub(now));
        held.into_iter().chain(flush).chain(tidy).min().map(sys::timespec)
    }

    fn accept(&mut self) {
        for _ in 0..AT_ONCE {
            match accept_with(&self.listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => self.enter(socket),
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE) => return self.refuse_for_lack_of_descriptors(),
                // That client has gone.
                Err(_) => {}
            }
        }
    }

    /// The policy has been read anew. A policy that is wrong changes nothing.
    fn reload(&mut self) {
        while let Some(result) = self.reloads.take() {
            match result {
                Ok(policy) => {
                    warn_of_gaps(&policy);
                    let [allowing, denying] = policy.rules();
                    let asks_for = |it: &Policy| [it.denies_groups(), it.names_cgroups()];
                    let asks_for_else = asks_for(&policy) != asks_for(self.exchange.policy());
                    self.exchange.set_policy(policy);
                    if asks_for_else {
                        let users = self.clients.look(self.exchange.policy(), &self.abilities.users);
                        users.into_iter().for_each(|(id, user)| self.exchange.know(id, user));
                    }
                    self.counts.policies_taken += 1;
                    tracing::info!(
                        allowing,
                        denying,
                        "the policy is read anew, and in force for what meets from now on"
                    );
                }
                Err(error) => {
                    self.counts.policies_wrong += 1;
                    tracing::error!("the policy is wrong, and the old one stays in force: {error}");
                }
            }
        }
    }

    /// Turns away a client for which there is no descriptor; otherwise the loop would find it waiting again and again.
    fn refuse_for_lack_of_descriptors(&mut self) {
        self.counts.turned_away += 1;
        tracing::warn!("no descriptor is left for another client: raise LimitNOFILE");
        self.spare = None;
        if let Ok(socket) = accept_with(&self.listener.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            self.closer.close(user_of(&socket), Arc::new(socket));
        }
        // Handed over at once, since the next client needs the same descriptor. If the closer's process is gone,
        // the loop sees it.
        let _ = self.closer.flush();
        self.spare = File::open("/dev/null").ok().map(OwnedFd::from);
    }

    fn enter(&mut self, socket: OwnedFd) {
        let (uid, socket, now) = (user_of(&socket), Arc::new(socket), self.now());
        // First of all, so that a flood costs little.
        if !self.clients.may_enter(uid, now) {
            self.counts.turned_away += 1;
            return self.closer.close(uid, socket);
        }
        let process = match Process::at(&socket, self.exchange.policy(), &self.abilities.users) {
            Ok(process) => process,
            Err(error) => {
                tracing::debug!(%error, "a client cannot be identified");
                return self.closer.close(uid, socket);
            }
        };
        match self.clients.enter(socket, process, now) {
            Entered::TooMany(socket) => {
                self.counts.refuse(Refusal::Limit);
                let answer = Answer { token: 0, mark: 0, verdict: Verdict::Refused(Refusal::Limit) };
                let _ = answer.emit().map(|(record, len)| send(socket.as_fd(), &record[..len], None));
                self.closer.close(uid, socket);
            }
            Entered::Client(client) => self.watch(client),
            Entered::First(client, id, user) => {
                self.exchange.admit(id, user);
                let process = self.clients.process(id).map(|it| it.process.descriptor.as_fd());
                let number = epoll::EventData::new_u64(id.0 | PROCESS);
                if let Some(Err(error)) = process.map(|it| epoll::add(&self.events, it, number, epoll::EventFlags::IN))
                {
                    tracing::warn!(%error, "the end of a process would not be seen");
                    self.ended(id);
                    return self.disconnect(client);
                }
                self.watch(client);
            }
        }
    }

    /// Reads the client's next packet when it comes, or later if its user has sent too many.
    fn await_packet(&mut self, client: u64) {
        let now = self.now();
        match self.clients.hear(client, now) {
            0 => self.watch(client),
            wait => self.later.push(Reverse((now + wait, client))),
        }
    }

    /// Reads the client's next packet when it comes.
    fn watch(&mut self, client: u64) {
        let Some(it) = self.clients.get(client) else { return };
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ONESHOT;
        let number = epoll::EventData::new_u64(client);
        let watched = match epoll::modify(&self.events, &it.socket, number, flags) {
            Err(Errno::NOENT) => epoll::add(&self.events, &it.socket, number, flags),
            result => result,
        };
        if watched.is_err() {
            self.disconnect(client);
        }
    }

    fn take_from(&mut self, client: u64) {
        if let Some(it) = self.clients.get(client) {
            let (uid, socket) = (it.uid, it.socket.clone());
            self.lanes.take(uid, client, socket);
        }
    }

    /// A packet has been taken.
    fn taken(&mut self, uid: u32, Taken { client, packet }: Taken) {
        let Some(process) = self.clients.get(client).map(|it| it.process) else {
            if let Ok(Packet::Line(_, socket)) = packet {
                self.closer.close(uid, Arc::new(socket));
            }
            return;
        };
        let now = self.now();
        match packet {
            Ok(Packet::Nothing) => {}
            Ok(Packet::End) => return self.disconnect(client),
            Ok(Packet::Knock(knock)) => {
                let answer =
                    Answer { token: knock.token, mark: knock.mark, verdict: Verdict::Here { daemon: self.number } };
                self.reply(&Reply { to: ClientId(client), answer, memory: None });
            }
            Ok(Packet::Inquiry(inquiry)) => self.tell(uid, client, inquiry),
            Ok(Packet::Line(number, socket)) => match &self.away {
                Some((_, carriage)) => carriage.give(uid, number, socket),
                // The close may last: see `crate::closer`.
                None => self.closer.close(uid, Arc::new(socket)),
            },
            Ok(Packet::Ask(ask, facts)) if self.leads_away(&facts) => {
                self.counts.asks += 1;
                self.board(uid, client, ask, facts);
            }
            Ok(Packet::Ask(ask, facts)) => {
                self.counts.asks += 1;
                let asker = (process, ClientId(client));
                let replies = self.exchange.ask(asker, ask, facts, &self.abilities.evidence, now);
                replies.into_iter().for_each(|reply| self.reply(&reply));
            }
            Ok(Packet::Over(ask, cookie)) => {
                self.counts.asks += 1;
                if !self.is_seated(client, &ask, cookie) {
                    let reply = self.exchange.again((process, ClientId(client)), ask, cookie);
                    self.reply(&reply);
                }
            }
            Ok(Packet::Fault { fault, token, mark }) => {
                tracing::debug!(uid, client, %fault, "a packet is refused");
                let verdict = Verdict::Refused(fault.refusal());
                self.reply(&Reply { to: ClientId(client), answer: Answer { token, mark, verdict }, memory: None });
                if !fault.is_honest() {
                    return self.disconnect(client);
                }
            }
            Err(error) => {
                tracing::debug!(uid, client, %error, "a packet cannot be taken");
                return self.disconnect(client);
            }
        }
        self.await_packet(client);
    }

    /// Whether a route leads to the other end, from this daemon's network namespace.
    fn leads_away(&self, facts: &Facts) -> bool {
        let is_here = facts.namespace.is_some() && facts.namespace == self.abilities.network;
        is_here && self.away.as_ref().is_some_and(|(routes, _)| routes.daemon_of(facts.remote.ip()).is_some())
    }

    /// A client asks for a connection to another host.
    fn board(&self, uid: u32, client: u64, ask: Ask, facts: Facts) {
        let Some((routes, carriage)) = &self.away else { return };
        let Some(daemon) = routes.daemon_of(facts.remote.ip()) else { return };
        let Some(asker) = self.asker(client, &ask) else { return };
        let name = Name { local: facts.local, remote: facts.remote };
        carriage.board(Passenger { name, daemon, uid, asker, cookie: facts.cookie });
    }

    /// Whether the socket with this cookie has a stream to another host, of which the client is told again.
    fn is_seated(&self, client: u64, ask: &Ask, cookie: u64) -> bool {
        let Some((_, carriage)) = &self.away else { return false };
        self.asker(client, ask).is_some_and(|asker| carriage.again(cookie, asker).is_none())
    }

    /// The client and its ask, for the carriage, which answers it.
    fn asker(&self, client: u64, ask: &Ask) -> Option<Asker> {
        let socket = self.clients.get(client)?.socket.clone();
        Some(Asker { client: socket, token: ask.token, mark: ask.mark })
    }

    /// Reads clients again that had to wait.
    fn resume(&mut self) {
        let now = self.now();
        while let Some(Reverse((when, client))) = self.later.peek().copied()
            && when <= now
        {
            self.later.pop();
            self.watch(client);
        }
    }

    fn reply(&mut self, reply: &Reply) {
        let ClientId(client) = reply.to;
        // If the client has gone, it asks again if it still needs the answer.
        let Some(uid) = self.clients.get(client).map(|it| it.uid) else { return };
        let (mut answer, mut memory) = (reply.answer, reply.memory.as_deref().map(|it| it.as_fd()));
        if memory.is_some() && !self.clients.may_get_memory(uid, self.now()) {
            (answer.verdict, memory) = (Verdict::Refused(Refusal::Limit), None);
        }
        if let Verdict::Refused(refusal) = answer.verdict {
            self.counts.refuse(refusal);
        }
        let Some(it) = self.clients.get(client) else { return };
        tracing::debug!(uid, client, verdict = ?answer.verdict, "answer");
        let sent = answer.emit().map_err(io::Error::other);
        // A client that does not read its answers is not waited for.
        if sent.and_then(|(record, len)| send(it.socket.as_fd(), &record[..len], memory)).is_err() {
            self.disconnect(client);
        }
    }

    /// Tells a client how the daemon fares.
    fn tell(&mut self, uid: u32, client: u64, inquiry: Inquiry) {
        let Some(it) = self.clients.get(client) else { return };
        let abilities = wire::Abilities {
            numbers: self.abilities.evidence.numbers.is_some(),
            addresses: self.abilities.evidence.addresses.is_some(),
            pidfd: self.abilities.pidfd,
        };
        // How much others do is not every user's business.
        let is_trusted = uid == 0 || uid == geteuid().as_raw();
        let state = State {
            token: inquiry.token,
            mark: inquiry.mark,
            abilities,
            policy: self.exchange.mark(),
            network: self.abilities.network,
            seconds: self.began.elapsed().as_secs(),
            counts: is_trusted.then(|| self.counts()),
        };
        if send(it.socket.as_fd(), &state.emit(), None).is_err() {
            self.disconnect(client);
        }
    }

    fn counts(&self) -> Counts {
        let extent = self.exchange.extent();
        Counts {
            meetings: extent.meetings,
            waiting: extent.waiting as u64,
            pools: extent.pools as u64,
            memory: extent.memory,
            clients: self.clients.connected() as u64,
            processes: self.clients.known() as u64,
            ..self.counts
        }
    }

    fn disconnect(&mut self, client: u64) {
        if let Some(it) = self.clients.leave(client) {
            let _ = epoll::delete(&self.events, &it.socket);
            self.lanes.cancel(it.uid, client);
            self.closer.close(it.uid, it.socket);
        }
    }

    /// Lets go of connections, many at a time, because each time takes a process.
    fn flush_closer(&mut self) -> Result<(), Gone> {
        let now = self.now();
        if now < self.flushed + FLUSH.as_nanos() as u64 && !self.closer.is_crowded() {
            return Ok(());
        }
        self.flushed = now;
        self.closer.flush()
    }

    fn ended(&mut self, id: ProcessId) {
        self.exchange.dismiss(id, self.now());
        if let Some(it) = self.clients.remove(id) {
            let _ = epoll::delete(&self.events, &it.process.descriptor);
        }
    }

    /// Lets go of what is over.
    fn tidy(&mut self) {
        let now = self.now();
        if now < self.tidied + TIDY.as_nanos() as u64 {
            return;
        }
        self.tidied = now;
        self.exchange.expire(now);
        let silent = self.clients.silent_since(now.saturating_sub(SILENCE.as_nanos() as u64));
        silent.into_iter().for_each(|client| self.disconnect(client));
        for id in self.clients.unconnected() {
            if self.exchange.is_unused(id) {
                self.ended(id);
            }
        }
        self.clients.forget_users(now);
    }
}

/// The user who has connected this socket: the kernel says it of each socket that was accepted.
fn user_of(socket: &OwnedFd) -> u32 {
    sys::peer_credentials(socket).map_or(u32::MAX, |[_, uid, _]| uid)
}
