//! A thread for each worker of a [`crate::pipeline`], each on a processor of its own where there are enough.
//!
//! A thread that has nothing to do spins for a while, then gives way, then sleeps until something comes, a timer runs
//! out, or a neighbour has room for what the thread has for it. With more threads than processors no thread spins,
//! because the thread that could bring something may be waiting for the processor. The thread with the link sleeps in
//! poll(2), on the link and a bell that its neighbour rings; over a link in memory it parks as the others do.

use crate::pipeline::Worker;
use crate::service::Time;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fmt::{self, Display, Formatter};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::{self, JoinHandle};
use std::time::Duration;
use underpass_link::Watch;
use underpass_link::bell::{Bell, Waker};

/// How long a thread leaves a link alone that reports neither that it has something nor when to look: at first, and
/// after looks in vain for some time.
const LOOK: Duration = Duration::from_micros(50);
const LONGEST_LOOK: Duration = Duration::from_millis(1);

/// Where threads run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// Each on one of these processors, alone.
    Own(Vec<usize>),
    /// Wherever the system puts them.
    Shared {
        /// How many threads there are.
        threads: usize,
        /// And on how many processors.
        processors: usize,
    },
}

impl Placement {
    /// A placement of so many threads on these processors.
    pub fn of(threads: usize, processors: &[usize]) -> Placement {
        match processors.get(..threads) {
            Some(own) => Placement::Own(own.to_vec()),
            None => Placement::Shared { threads, processors: processors.len() },
        }
    }

    fn patience(&self) -> Patience {
        match self {
            // About 50 µs: several times what a neighbour takes to be woken.
            Placement::Own(_) => Patience { spins: 20_000, yields: 16 },
            Placement::Shared { .. } => Patience { spins: 0, yields: 64 },
        }
    }
}

impl Display for Placement {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Own(processors) => write!(f, "{} threads, each on a processor of its own", processors.len()),
            Placement::Shared { threads, processors } => {
                write!(f, "{threads} threads on {processors} processors: they give way and sleep instead of spinning")
            }
        }
    }
}

/// The processors that this process may use.
///
/// # Errors
/// The kernel does not tell.
pub fn processors() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect())
}

/// Threads that run workers.
#[derive(Debug)]
pub struct Running {
    placement: Placement,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<Worker>>,
    /// The bells of threads that sleep on descriptors.
    bells: Vec<Arc<Bell>>,
}

/// Starts a thread for each worker, on `processors` where they are enough. `clock` says what time it is for them.
///
/// # Errors
/// A thread could not be started, or there is no descriptor for what wakes it; those before it are stopped.
pub fn start(
    workers: Vec<Worker>,
    processors: &[usize],
    clock: impl Fn() -> Time + Clone + Send + 'static,
) -> io::Result<Running> {
    let placement = Placement::of(workers.len(), processors);
    let threads = Vec::with_capacity(workers.len());
    let mut running = Running { placement, stop: Arc::default(), threads, bells: Vec::new() };
    for (number, mut worker) in workers.into_iter().enumerate() {
        let bell = match worker.has_descriptor().then(Bell::new).transpose() {
            Ok(bell) => bell,
            Err(errno) => {
                running.stop();
                return Err(errno.into());
            }
        };
        running.bells.extend(bell.clone());
        let own = match &running.placement {
            Placement::Own(processors) => processors.get(number).copied(),
            Placement::Shared { .. } => None,
        };
        let (clock, stop, patience) = (clock.clone(), Arc::clone(&running.stop), running.placement.patience());
        let run = move || {
            if let Some(processor) = own {
                let mut set = CpuSet::new();
                set.set(processor);
                // If that is not allowed any more, the thread runs elsewhere, as it would without this.
                let _ = sched_setaffinity(None, &set);
            }
            run(&mut worker, bell, &clock, &stop, patience);
            worker
        };
        match thread::Builder::new().name(format!("layer {number}")).spawn(run) {
            Ok(thread) => running.threads.push(thread),
            Err(error) => {
                running.stop();
                return Err(error);
            }
        }
    }
    Ok(running)
}

impl Running {
    /// Where they run.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// Ends the threads: the workers, with whatever is under way between them.
    ///
    /// # Panics
    /// As a worker has.
    pub fn stop(self) -> Vec<Worker> {
        self.stop.store(true, Relaxed);
        for thread in &self.threads {
            thread.thread().unpark();
        }
        self.bells.iter().for_each(|bell| bell.ring());
        let join = |thread: JoinHandle<Worker>| thread.join().unwrap_or_else(|it| std::panic::resume_unwind(it));
        self.threads.into_iter().map(join).collect()
    }
}

/// How often to look in vain before the next remedy.
#[derive(Clone, Copy, Debug)]
struct Patience {
    spins: u32,
    yields: u32,
}

fn run(worker: &mut Worker, bell: Option<Arc<Bell>>, clock: &impl Fn() -> Time, stop: &AtomicBool, patience: Patience) {
    let mut sleep = Sleep { bell, look: LOOK };
    let (mut spun, mut yielded) = (0, 0);
    while !stop.load(Relaxed) {
        let now = clock();
        if worker.step(now) {
            (spun, yielded) = (0, 0);
            sleep.look = LOOK;
        } else if spun < patience.spins {
            spun += spin(worker, patience.spins - spun);
        } else if yielded < patience.yields {
            yielded += 1;
            worker.counters_mut().yields += 1;
            thread::yield_now();
        } else {
            // The thread that stops this one says so, and then wakes it.
            sleep.until_something_comes(worker, now);
            yielded = 0;
        }
    }
}

/// Looks at the queues for a short while, without a look at the clock; how often.
fn spin(worker: &Worker, most: u32) -> u32 {
    let most = most.min(64);
    (1..=most).find(|_| worker.may_step()).unwrap_or(most)
}

/// How a thread sleeps.
struct Sleep {
    /// What its neighbours wake it by, if it sleeps on a descriptor.
    bell: Option<Arc<Bell>>,
    /// How long a link that has to be looked at is left alone next.
    look: Duration,
}

impl Sleep {
    fn until_something_comes(&mut self, worker: &mut Worker, now: Time) {
        let due = worker.due().map(|it| Duration::from_nanos(it.since(now)));
        match self.bell.clone() {
            Some(bell) => self.poll(worker, bell, due),
            None => self.park(worker, due),
        }
    }

    fn park(&mut self, worker: &mut Worker, due: Option<Duration>) {
        let look = match worker.watch(&Waker::here()) {
            Watch::Ready => return,
            Watch::Armed => None,
            Watch::Unheard => Some(self.next_look(LOOK)),
        };
        worker.counters_mut().parks += 1;
        match [look, due].into_iter().flatten().min() {
            Some(time) => thread::park_timeout(time),
            None => thread::park(),
        }
    }

    fn poll(&mut self, worker: &mut Worker, bell: Arc<Bell>, due: Option<Duration>) {
        if worker.watch(&Waker::Bell(Arc::clone(&bell))) == Watch::Ready {
            return;
        }
        worker.counters_mut().parks += 1;
        let readiness = worker.readiness();
        // Without it, it had one before.
        let look = readiness.map_or(Some(LOOK), |it| it.look).map(|look| self.next_look(look));
        let time = [look, due].into_iter().flatten().min();
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        let heard = PollFd::new(&*bell, PollFlags::IN);
        // Whatever ends the sleep early, such as a signal, is only a reason to look.
        let _ = match readiness {
            Some(readiness) => poll(&mut [heard, readiness.poll()], time.as_ref()),
            None => poll(&mut [heard], time.as_ref()),
        };
        bell.silence();
    }

    /// When to look next. Soon means twice as late with each time in a row; a certain time means that time.
    fn next_look(&mut self, wanted: Duration) -> Duration {
        if wanted > LOOK {
            return wanted;
        }
        let look = self.look;
        self.look = (2 * look).min(LONGEST_LOOK);
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_its_own_processor_where_there_are_enough() {
        assert_eq!(Placement::of(2, &[3, 5, 7]), Placement::Own(vec![3, 5]));
        let shared = Placement::of(4, &[3, 5, 7]);
        assert_eq!(shared, Placement::Shared { threads: 4, processors: 3 });
        assert!(shared.to_string().contains("4 threads on 3 processors"), "{shared}");
    }
}
