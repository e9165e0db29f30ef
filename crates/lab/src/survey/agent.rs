//! The agent: waits at an endpoint for one coordinator at a time, and does what it asks.

use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::net::sockopt;

use super::channel::{self, ChannelError, Receiver, Sender};
use super::child::readable;
use super::message::Request;
use super::token::Token;
use super::toolbox::Toolbox;
use super::work::Work;
use crate::interrupt;
use crate::launcher::Launcher;

/// How long a stranger may take for the greeting.
const GREETING: Duration = Duration::from_secs(10);
/// Strangers that are listened to at a time.
const STRANGERS: usize = 16;
/// Time until a silent coordinator's kernel is asked for a sign of life, and from one question to the next.
const SIGN_OF_LIFE: Duration = Duration::from_secs(10);
/// So many questions without an answer end the connection.
const SIGNS: u32 = 3;
/// A coordinator that says nothing for so long is gone, though its kernel is there.
const SILENCE: Duration = Duration::from_secs(900);
/// Requests that wait for their turn. A coordinator asks one thing at a time, and one more when it has lost patience; a
/// client that asks without end is none.
const WAITING: usize = 64;
/// Time from one look for Ctrl-C to the next.
const LOOK: Duration = Duration::from_millis(200);

/// What an agent needs.
#[derive(Debug)]
pub struct Agent {
    /// What a coordinator must know.
    pub token: Token,
    /// Starts programs with the library, if it is there.
    pub launcher: Option<Launcher>,
    /// Where the tools are.
    pub tools: Toolbox,
    /// Ports for the servers of measurements; `0..=0` for any.
    pub ports: RangeInclusive<u16>,
}

/// What happens to an agent, for the caller to show.
#[derive(Debug)]
pub enum Event {
    /// Coordinators may come, and Ctrl-C ends it in order.
    Ready,
    /// A coordinator has come.
    Coordinator(SocketAddr),
    /// That coordinator has gone.
    Gone(SocketAddr),
    /// A coordinator was turned away.
    Refused(SocketAddr, ChannelError),
}

impl Agent {
    /// Serves coordinators until Ctrl-C.
    ///
    /// # Errors
    /// The listener fails.
    pub fn serve(&self, listener: &TcpListener, told: &(dyn Fn(Event) + Sync)) -> Result<()> {
        interrupt::watch().context("cannot watch for Ctrl-C")?;
        told(Event::Ready);
        self.serve_until(listener, told, &|| interrupt::check().is_err())
    }

    /// Serves coordinators until `ended` says so; a coordinator that is there then is left.
    ///
    /// # Errors
    /// The listener fails.
    pub fn serve_until(
        &self,
        listener: &TcpListener,
        told: &(dyn Fn(Event) + Sync),
        ended: &(dyn Fn() -> bool + Sync),
    ) -> Result<()> {
        let taken = AtomicBool::new(false);
        thread::scope(|scope| {
            let mut strangers = Strangers(Vec::new());
            while !ended() {
                let is_there = readable(listener, LOOK)?;
                strangers.end(GREETING);
                if !is_there {
                    continue;
                }
                let Ok((stream, from)) = listener.accept() else { continue };
                let Some(is_greeted) = strangers.add(&stream) else { continue };
                let taken = &taken;
                scope.spawn(move || {
                    let seat = Seat { taken, is_ours: Cell::new(false) };
                    let greeted = greeted(&stream, &self.token, &seat);
                    is_greeted.store(true, Ordering::Relaxed);
                    let over = match greeted {
                        Ok((say, hear)) => {
                            told(Event::Coordinator(from));
                            self.work(say, hear, ended);
                            Event::Gone(from)
                        }
                        Err(error) => Event::Refused(from, error),
                    };
                    let _ = stream.shutdown(Shutdown::Both);
                    drop(seat);
                    told(over);
                });
            }
            Ok(())
        })
    }

    /// Serves the coordinator that started this program and holds the other ends of these. No token is needed: a user
    /// who can start a program here can do all that an agent does.
    ///
    /// # Errors
    /// There is no coordinator.
    pub fn serve_starter(&self, from: Box<dyn Read + Send>, to: Box<dyn Write + Send>) -> Result<(), ChannelError> {
        let (say, hear) = channel::answer((from, to), &Token::none(), || true)?;
        self.work(say, hear, &|| false);
        Ok(())
    }

    /// Answers until the coordinator is gone.
    fn work(&self, mut say: Sender, mut hear: Receiver, ended: &dyn Fn() -> bool) {
        let gone = Arc::new(AtomicBool::new(false));
        let (give, requests) = mpsc::sync_channel(WAITING);
        let over = gone.clone();
        // Hears also while a measurement runs that a coordinator no longer waits for. It ends with the connection.
        thread::spawn(move || {
            while let Ok(request) = hear.hear::<Request>() {
                // It must go on hearing to learn of the end, so nothing waits for room.
                if give.try_send(request).is_err() {
                    break;
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        let mut work = Work::new(self.launcher.as_ref(), &self.tools, self.ports.clone(), &gone);
        // What a coordinator asked that is gone needs no answer.
        while !ended() && !gone.load(Ordering::Relaxed) {
            match requests.recv_timeout(LOOK) {
                Ok(request) => {
                    if say.say(&work.answer(request)).is_err() {
                        break;
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
        }
        gone.store(true, Ordering::Relaxed);
    }
}

/// Clients that are being greeted. Each word of a greeting may come in time, and the whole greeting never. On drop none
/// is awaited.
struct Strangers(Vec<(Instant, TcpStream, Arc<AtomicBool>)>);

impl Strangers {
    /// What to set when the stranger is none any more; `None` if there are too many.
    fn add(&mut self, stream: &TcpStream) -> Option<Arc<AtomicBool>> {
        let own = stream.try_clone().ok().filter(|_| self.0.len() < STRANGERS)?;
        let is_greeted = Arc::new(AtomicBool::new(false));
        self.0.push((Instant::now(), own, is_greeted.clone()));
        Some(is_greeted)
    }

    /// Disconnects the clients that came this long ago and are not greeted yet.
    fn end(&mut self, after: Duration) {
        self.0.retain(|(since, stream, is_greeted)| {
            let is_stranger = !is_greeted.load(Ordering::Relaxed);
            if is_stranger && since.elapsed() >= after {
                let _ = stream.shutdown(Shutdown::Both);
            }
            is_stranger
        });
    }
}

impl Drop for Strangers {
    fn drop(&mut self) {
        self.end(Duration::ZERO);
    }
}

/// The seat of the one coordinator. The thread that took it leaves it on drop, also if the greeting broke off after
/// that.
struct Seat<'a> {
    taken: &'a AtomicBool,
    is_ours: Cell<bool>,
}

impl Seat<'_> {
    fn take(&self) -> bool {
        self.is_ours.set(!self.taken.swap(true, Ordering::Acquire));
        self.is_ours.get()
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if self.is_ours.get() {
            self.taken.store(false, Ordering::Release);
        }
    }
}

/// Has the kernel ask for a sign of life where nothing is said, and end the connection without one: the coordinator's
/// host, or the way to it, may be gone, of which nothing tells (tcp(7)).
fn notice_silence(stream: &TcpStream) -> std::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, SIGN_OF_LIFE)?;
    sockopt::set_tcp_keepintvl(stream, SIGN_OF_LIFE)?;
    sockopt::set_tcp_keepcnt(stream, SIGNS)?;
    // The same where an answer is on its way.
    Ok(sockopt::set_tcp_user_timeout(stream, (SIGN_OF_LIFE * (SIGNS + 1)).as_millis() as u32)?)
}

fn greeted(stream: &TcpStream, token: &Token, seat: &Seat) -> Result<(Sender, Receiver), ChannelError> {
    stream.set_read_timeout(Some(GREETING))?;
    stream.set_write_timeout(Some(GREETING))?;
    stream.set_nodelay(true)?;
    notice_silence(stream)?;
    let ends = (Box::new(stream.try_clone()?) as _, Box::new(stream.try_clone()?) as _);
    let greeted = channel::answer(ends, token, || seat.take())?;
    stream.set_read_timeout(Some(SILENCE))?;
    Ok(greeted)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An agent answers that it is busy until it has learnt that its coordinator is gone.
    #[test]
    fn a_coordinator_whose_host_is_gone_is_missed_within_a_minute() {
        let agent = TcpListener::bind("127.0.0.1:0").unwrap();
        let _coordinator = TcpStream::connect(agent.local_addr().unwrap()).unwrap();
        let (stream, _) = agent.accept().unwrap();
        let seat = Seat { taken: &AtomicBool::new(false), is_ours: Cell::new(false) };
        // The greeting does not come, which does not matter here.
        stream.shutdown(Shutdown::Read).unwrap();
        greeted(&stream, &Token::none(), &seat).unwrap_err();
        assert!(sockopt::socket_keepalive(&stream).unwrap());
        let asked = sockopt::tcp_keepintvl(&stream).unwrap() * sockopt::tcp_keepcnt(&stream).unwrap();
        assert!(sockopt::tcp_keepidle(&stream).unwrap() + asked < Duration::from_secs(60));
        assert!((1..60_000).contains(&sockopt::tcp_user_timeout(&stream).unwrap()));
    }
}
