//! A file over TLS: the receiver that confirms it, the sender that measures, and the relay to which the sender offloads
//! encryption.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use super::child::{Child, ChildError, Ended, readable};
use super::message::Reading;
use super::tool::openssl::{self, CONFIRMED, READY};
use crate::processors::thread_time;

/// How long a file may take.
const LIMIT: Duration = Duration::from_secs(120);
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(20);
/// Octets that are written at a time.
const PIECE: usize = 64 << 10;
/// Time from one look to the next.
const LOOK: Duration = Duration::from_millis(20);

/// Has a TLS server say that it is ready, and confirm a file of `size` bytes.
///
/// # Errors
/// It has no pipes, or is gone.
pub fn confirm(server: &mut Child, size: u64) -> Result<()> {
    let (Some(mut input), Some(mut output)) = (server.stdin.take(), server.stdout.take()) else {
        bail!("openssl has no pipes");
    };
    // These bytes wait in the pipe until the handshake is done.
    input.write_all(READY)?;
    thread::spawn(move || {
        let mut piece = vec![0; PIECE];
        let mut left = size;
        while left > 0 {
            match output.read(&mut piece) {
                Ok(0) | Err(_) => return,
                Ok(got) => left = left.saturating_sub(got as u64),
            }
        }
        // If it is gone, the sender hears nothing, and says so.
        let _ = input.write_all(CONFIRMED);
        // An end of its input would end the server before it has sent that.
        let _ = output.read(&mut piece);
    });
    Ok(())
}

/// Waits for one connection, and has `openssl s_client`, which `command` starts, encrypt what comes by it; until its
/// end, or until `stop` is true.
///
/// # Errors
/// The client cannot be started.
pub fn relay(mut command: Command, listener: &TcpListener, to: SocketAddr, stop: &AtomicBool) -> Result<Option<Ended>> {
    while !readable(listener, LOOK)? {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
    }
    let (stream, _) = listener.accept()?;
    openssl::connect(&mut command, to);
    command.stdin(OwnedFd::from(stream.try_clone()?));
    let mut child = Child::between(&mut command, Stdio::from(OwnedFd::from(stream)))?;
    loop {
        if let Some(ended) = child.ended()? {
            return Ok(Some(ended));
        }
        if stop.load(Ordering::Relaxed) {
            return Ok(Some(child.kill()?));
        }
        thread::sleep(LOOK);
    }
}

/// Sends a file by `openssl s_client`, which `command` starts.
///
/// # Errors
/// It does not get there, or not in time.
pub fn encrypted(command: &mut Command, to: SocketAddr, size: u64, gone: &AtomicBool) -> Result<Reading> {
    openssl::connect(command, to);
    let mut child = Child::piped(command)?;
    let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else { bail!("openssl has no pipes") };
    let (time, own) = transfer(input, output, &mut child, size, gone)?;
    let ended = child.kill()?;
    Ok(reading(size, time, own + ended.processor_time))
}

/// Sends a file to a relay.
///
/// # Errors
/// It does not get there, or not in time.
pub fn plain(to: SocketAddr, size: u64, gone: &AtomicBool) -> Result<Reading> {
    let stream =
        TcpStream::connect_timeout(&to, CONNECT).with_context(|| format!("cannot connect to the relay {to}"))?;
    let (output, mut way) = (stream.try_clone()?, stream.try_clone()?);
    let done = transfer(stream, output, &mut way, size, gone);
    way.abort();
    let (time, own) = done?;
    Ok(reading(size, time, own))
}

fn reading(size: u64, time: Duration, processor_time: Duration) -> Reading {
    let (value, seconds) = (time.as_nanos() as f64, time.as_secs_f64());
    let processor_time = processor_time.as_nanos() as u64;
    Reading { value, percentiles: None, seconds, bytes: Some(size), exchanges: None, processor_time }
}

/// What a file goes through.
trait Way {
    /// Whether it is still there.
    fn check(&mut self, gone: &AtomicBool) -> Result<()>;
    /// Ends the transfer, so that no wait for it lasts on.
    fn abort(&mut self);
}

impl Way for Child {
    fn check(&mut self, gone: &AtomicBool) -> Result<()> {
        match self.ended()? {
            Some(ended) => Err(self.failure(ended.status).into()),
            None => Ok(Child::check(self, gone)?),
        }
    }

    fn abort(&mut self) {
        let _ = self.kill();
    }
}

impl Way for TcpStream {
    fn check(&mut self, gone: &AtomicBool) -> Result<()> {
        if gone.load(Ordering::Relaxed) { Err(ChildError::Gone.into()) } else { Ok(()) }
    }

    fn abort(&mut self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

/// Writes a file and awaits its receipt: the time, and the processor time of the writer.
fn transfer(
    mut input: impl Write + Send,
    mut output: impl Read + AsFd,
    way: &mut impl Way,
    size: u64,
    gone: &AtomicBool,
) -> Result<(Duration, Duration)> {
    await_word(READY, &mut output, way, gone)?;
    let piece: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(PIECE).collect();
    let begun = Instant::now();
    thread::scope(|scope| {
        let writer = scope.spawn(move || -> io::Result<_> {
            let mut left = size;
            while left > 0 {
                let now = left.min(PIECE as u64);
                input.write_all(&piece[..now as usize])?;
                left -= now;
            }
            input.flush()?;
            // Open until the receipt, which comes by the same connection.
            Ok((input, Duration::from_nanos(thread_time() as u64)))
        });
        let received = await_word(CONFIRMED, &mut output, way, gone);
        let time = begun.elapsed();
        if received.is_err() {
            way.abort();
        }
        let written = writer.join().map_err(|_| anyhow!("the writer failed"))?;
        received?;
        Ok((time, written?.1))
    })
}

fn await_word(word: &[u8], output: &mut (impl Read + AsFd), way: &mut impl Way, gone: &AtomicBool) -> Result<()> {
    let last = Instant::now() + LIMIT;
    let mut heard = Vec::new();
    while heard.len() < word.len() {
        if Instant::now() > last {
            bail!("the file was not confirmed within {} s", LIMIT.as_secs());
        }
        if !readable(output, LOOK)? {
            way.check(gone)?;
            continue;
        }
        let mut octet = [0];
        if output.read(&mut octet)? == 0 {
            // A program that failed says why once it has ended.
            thread::sleep(LOOK);
            way.check(gone)?;
            bail!("the connection ended before the receiver had confirmed the file");
        }
        heard.push(octet[0]);
    }
    if heard == word { Ok(()) } else { bail!("the receiver said {:?}", String::from_utf8_lossy(&heard)) }
}
