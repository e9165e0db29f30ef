//! The taps of a capture. For one user one is enough; root has one for each user in each IPC namespace, since senders
//! attach only what their own user has made where they are.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use rustix::process::Uid;
use rustix::thread::set_thread_res_uid;
use underpass_segment::raw::Errno;
use underpass_segment::tap::{Head, Tap};
use underpass_segment::watch::{NoTapping, Tapping};
use underpass_segment::{clock, kernel};

use crate::watch::{Place, Spaces, enter_ipc};

/// Records that are taken from one tap before it is the next one's turn.
const AT_A_TIME: usize = 1000;

/// All of them.
pub struct Taps {
    capacity: u64,
    all: Vec<One>,
    /// Records in the order in which they were sent, and those that others may still come before.
    ready: VecDeque<Record>,
    held: Vec<Record>,
    /// Users that cannot be captured, for which this command has said so.
    left_out: BTreeSet<Place>,
    is_over: bool,
}

type Record = (Head, Vec<u8>);

struct One {
    place: Place,
    /// Ended first.
    tapping: Option<Keeper>,
    tap: Tap,
}

/// What keeps senders at it.
enum Keeper {
    Here { _tapping: Tapping },
    Beside { _thread: Beside },
}

/// A thread that is in another namespace, or another user's, and ends it there.
struct Beside {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How far the senders of a [`Taps`] had got at some moment: the end of what was sent by then.
pub struct Mark(Vec<u64>);

impl Taps {
    /// This user's.
    ///
    /// # Errors
    /// See [`NoTapping`].
    pub fn begin(capacity: u64) -> Result<Taps, NoTapping> {
        let user = kernel::user_id();
        let (tap, tapping) = tap_of(user, capacity)?;
        let own = One { place: Place { ipc: None, user }, tapping: Some(Keeper::Here { _tapping: tapping }), tap };
        let (ready, held, left_out) = (VecDeque::new(), Vec::new(), BTreeSet::new());
        Ok(Taps { capacity, all: vec![own], ready, held, left_out, is_over: false })
    }

    /// Adds the users that have come in `spaces`. Returns a message for each that cannot be captured.
    pub fn follow(&mut self, spaces: &Spaces) -> Vec<String> {
        let mut said = Vec::new();
        for (place, process) in spaces.users() {
            if self.left_out.contains(&place) || self.all.iter().any(|it| it.place == place) {
                continue;
            }
            match beside(place, process, self.capacity) {
                Ok((tap, thread)) => {
                    self.all.push(One { place, tapping: Some(Keeper::Beside { _thread: thread }), tap });
                }
                Err(why) => {
                    self.left_out.insert(place);
                    said.push(complaint(place.user, why));
                }
            }
        }
        said
    }

    /// Tells senders to record no more; a sender that is just writing a record finishes it.
    pub fn end(&mut self) {
        self.is_over = true;
        self.all.iter_mut().for_each(|it| drop(it.tapping.take()));
    }

    /// The next record, whose bytes replace those in `bytes`; `None` if there is none yet.
    pub fn next(&mut self, bytes: &mut Vec<u8>) -> Option<Head> {
        if let ([only], true) = (&mut self.all[..], self.ready.is_empty() && self.held.is_empty()) {
            return only.tap.next(bytes);
        }
        if self.ready.is_empty() {
            self.gather();
        }
        let (head, its) = self.ready.pop_front()?;
        *bytes = its;
        Some(head)
    }

    /// Takes some of each, and puts them in order. What was sent after this began waits for what others have sent
    /// meanwhile.
    fn gather(&mut self) {
        let began = clock::nanoseconds();
        for it in &mut self.all {
            let mut bytes = Vec::new();
            for _ in 0..AT_A_TIME {
                let Some(mut head) = it.tap.next(&mut bytes) else { break };
                // A record cannot come from the future, but the sender's clock may be another one (time_namespaces(7)).
                head.when = head.when.min(clock::nanoseconds());
                self.held.push((head, std::mem::take(&mut bytes)));
            }
        }
        // Stable: of one sender the order is right.
        self.held.sort_by_key(|(head, _)| head.when);
        let sure = self.held.partition_point(|(head, _)| self.is_over || head.when <= began);
        self.ready.extend(self.held.drain(..sure));
    }

    /// See [`Mark`].
    pub fn mark(&self) -> Mark {
        Mark(self.all.iter().map(|it| it.tap.tail()).collect())
    }

    /// Whether there is something before this mark that was not taken yet.
    pub fn is_before(&self, Mark(mark): &Mark) -> bool {
        !self.ready.is_empty() || self.all.iter().zip(mark).any(|(it, &position)| it.tap.is_before(position))
    }

    /// Bytes that senders have left out for want of room.
    pub fn lost(&self) -> u64 {
        self.all.iter().map(|it| it.tap.lost()).sum()
    }

    /// How many records were found that no sender writes.
    pub fn damaged(&self) -> u64 {
        self.all.iter().map(|it| it.tap.damaged()).sum()
    }
}

fn complaint(user: u32, why: NoTapping) -> String {
    match why {
        NoTapping::Another => format!("user {user} is left out, since that user captures as well"),
        NoTapping::Memory(Errno(code)) => {
            format!("user {user} is left out: {}", io::Error::from_raw_os_error(code))
        }
    }
}

/// A tap of `user` in this thread's IPC namespace, which this thread makes as that user.
fn tap_of(user: u32, capacity: u64) -> Result<(Tap, Tapping), NoTapping> {
    let tap = Tap::create(capacity)?;
    let tapping = Tapping::begin(user, tap.name())?;
    Ok((tap, tapping))
}

/// A tap at another place, which `process` is in, made by a thread that has gone there.
fn beside(place: Place, process: Option<u32>, capacity: u64) -> Result<(Tap, Beside), NoTapping> {
    let ((tell, told), (end, ended)) = (channel(), channel());
    let go = move || -> io::Result<()> {
        if let Some(process) = process {
            enter_ipc(process)?;
        }
        // The others of this command's threads stay root's.
        let user = Some(Uid::from_raw(place.user));
        set_thread_res_uid(user, user, user)?;
        Ok(())
    };
    let run = move || {
        let gone = go().map_err(|error| NoTapping::Memory(Errno(error.raw_os_error().unwrap_or(0))));
        match gone.and_then(|()| tap_of(place.user, capacity)) {
            Ok((tap, tapping)) => {
                let _ = tell.send(Ok(tap));
                // Until the other side is dropped.
                let _: Result<(), _> = ended.recv();
                drop(tapping);
            }
            Err(why) => {
                let _ = tell.send(Err(why));
            }
        }
    };
    let thread = thread::Builder::new().spawn(run).map_err(|_| NoTapping::Memory(Errno(libc::EAGAIN)))?;
    let beside = Beside { end: Some(end), thread: Some(thread) };
    let tap = told.recv().unwrap_or(Err(NoTapping::Memory(Errno(libc::EAGAIN))))?;
    Ok((tap, beside))
}
