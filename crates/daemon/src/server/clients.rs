//! The clients that are connected, and the processes that they are.

use crate::exchange::ProcessId;
use crate::limits::{Bucket, Limits};
use crate::process::Process;
use crate::sys;
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use underpass_policy::{Namespace, Policy, User};

/// A connection of a client.
#[derive(Debug)]
pub struct Client {
    /// The client's socket, which [`crate::closer`] closes: packets may lie unread in it.
    pub socket: Arc<OwnedFd>,
    /// The process that has connected it.
    pub process: ProcessId,
    /// Its user.
    pub uid: u32,
    /// When it was last heard of, in nanoseconds.
    pub heard: u64,
}

/// A process that has connected.
#[derive(Debug)]
pub struct Known {
    /// The process, and a descriptor that shows its end.
    pub process: Process,
    /// Its connections.
    pub clients: usize,
}

/// What a user has of the daemon.
#[derive(Debug)]
struct Share {
    descriptors: usize,
    bucket: Bucket,
    /// Answers with memory that its clients have not read, as far as that was counted.
    unread: usize,
    /// When it was counted.
    counted: u64,
}

/// Nanoseconds between two counts of what a user's clients have not read, for each client that there is.
const COUNT_EVERY: u64 = 10_000;

/// All of them.
#[derive(Debug)]
pub struct Clients {
    limits: Limits,
    last: u64,
    clients: HashMap<u64, Client>,
    processes: HashMap<ProcessId, Known>,
    /// By number and user: threads of a process may be different users.
    by_pid: HashMap<(u32, u32), ProcessId>,
    /// By user.
    shares: HashMap<u32, Share>,
}

/// What came of a connection.
#[derive(Debug)]
pub enum Entered {
    /// A client of a process that is known.
    Client(u64),
    /// The first client of this process.
    First(u64, ProcessId, Rc<User>),
    /// The user has too many.
    TooMany(Arc<OwnedFd>),
}

impl Clients {
    pub fn new(limits: Limits, first: u64) -> Clients {
        let (clients, processes) = (HashMap::new(), HashMap::new());
        Clients { limits, last: first, clients, processes, by_pid: HashMap::new(), shares: HashMap::new() }
    }

    /// Whether a connection of this user may be looked at, and is not one of a flood. It counts as a packet.
    pub fn may_enter(&mut self, uid: u32, now: u64) -> bool {
        let packets = self.limits.packets;
        let bucket = &mut self.share(uid, now).bucket;
        bucket.take(now, packets);
        !bucket.is_overdrawn(now)
    }

    fn share(&mut self, uid: u32, now: u64) -> &mut Share {
        self.shares.entry(uid).or_insert_with(|| Share {
            descriptors: 0,
            bucket: Bucket::new(now),
            unread: 0,
            counted: 0,
        })
    }

    /// A process has connected this socket at the time `now`, in nanoseconds.
    pub fn enter(&mut self, socket: Arc<OwnedFd>, process: Process, now: u64) -> Entered {
        let (uid, pid) = (process.user.uid, process.pid);
        // The number may be another process's by now, or the process may have other groups.
        let same = |it: &&ProcessId| {
            self.processes.get(it).is_some_and(|it| it.process.user == process.user && !it.process.has_ended())
        };
        let known = self.by_pid.get(&(pid, uid)).filter(same).copied();
        let (descriptors, most) = (1 + usize::from(known.is_none()), self.limits.descriptors);
        let share = self.share(uid, now);
        if share.descriptors + descriptors > most {
            return Entered::TooMany(socket);
        }
        share.descriptors += descriptors;
        self.last += 1;
        let client = self.last;
        let id = known.unwrap_or(ProcessId(client));
        self.clients.insert(client, Client { socket, process: id, uid, heard: now });
        if let Some(it) = self.processes.get_mut(&id) {
            it.clients += 1;
            return Entered::Client(client);
        }
        let user = process.user.clone();
        self.by_pid.insert((pid, uid), id);
        self.processes.insert(id, Known { process, clients: 1 });
        Entered::First(client, id, user)
    }

    pub fn get(&self, client: u64) -> Option<&Client> {
        self.clients.get(&client)
    }

    pub fn process(&self, id: ProcessId) -> Option<&Known> {
        self.processes.get(&id)
    }

    /// Looks at all processes once more, because another policy asks for something else of them: what is known of each.
    pub fn look(&mut self, policy: &Policy, namespace: &Namespace) -> Vec<(ProcessId, Rc<User>)> {
        let processes = self.processes.iter_mut();
        let look = |(id, it): (&ProcessId, &mut Known)| {
            it.process.look(policy, namespace);
            (*id, it.process.user.clone())
        };
        processes.map(look).collect()
    }

    /// A client has sent something. How many nanoseconds it has to wait before the next.
    pub fn hear(&mut self, client: u64, now: u64) -> u64 {
        let Some(it) = self.clients.get_mut(&client) else { return 0 };
        it.heard = now;
        self.shares.get_mut(&it.uid).map_or(0, |share| share.bucket.take(now, self.limits.packets))
    }

    /// Whether one of this user's clients may be sent memory, which counts. Other users would get none if one left too
    /// much unread.
    pub fn may_get_memory(&mut self, uid: u32, now: u64) -> bool {
        let most = self.limits.unread;
        let Some(share) = self.shares.get_mut(&uid) else { return false };
        if share.unread >= most && now >= share.counted + self.clients.len() as u64 * COUNT_EVERY {
            share.counted = now;
            let of_user = self.clients.values().filter(|it| it.uid == uid);
            share.unread = of_user.map(|it| sys::unread_packets(&it.socket)).sum();
        }
        let may = share.unread < most;
        share.unread += usize::from(may);
        may
    }

    /// A client goes.
    pub fn leave(&mut self, client: u64) -> Option<Client> {
        let it = self.clients.remove(&client)?;
        if let Some(process) = self.processes.get_mut(&it.process) {
            process.clients -= 1;
        }
        self.give_back(it.uid);
        Some(it)
    }

    /// Nothing is to be known of a process any more. Its clients are to leave for themselves.
    pub fn remove(&mut self, id: ProcessId) -> Option<Known> {
        let it = self.processes.remove(&id)?;
        let key = (it.process.pid, it.process.user.uid);
        if self.by_pid.get(&key) == Some(&id) {
            self.by_pid.remove(&key);
        }
        self.give_back(it.process.user.uid);
        Some(it)
    }

    /// Clients that were not heard of since this time.
    pub fn silent_since(&self, time: u64) -> Vec<u64> {
        self.clients.iter().filter(|(_, it)| it.heard < time).map(|(client, _)| *client).collect()
    }

    /// Processes without a connection.
    pub fn unconnected(&self) -> Vec<ProcessId> {
        self.processes.iter().filter(|(_, it)| it.clients == 0).map(|(id, _)| *id).collect()
    }

    /// How many clients are connected.
    pub fn connected(&self) -> usize {
        self.clients.len()
    }

    /// How many processes are known.
    pub fn known(&self) -> usize {
        self.processes.len()
    }

    /// Whether there is no client.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty() && self.processes.is_empty()
    }

    fn give_back(&mut self, uid: u32) {
        if let Some(share) = self.shares.get_mut(&uid) {
            share.descriptors -= 1;
        }
    }

    /// Forgets users that have nothing and have been silent for long enough to have their full rate again.
    pub fn forget_users(&mut self, now: u64) {
        self.shares.retain(|_, share| share.descriptors > 0 || !share.bucket.is_full(now));
    }
}
