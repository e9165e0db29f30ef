//! `underpass metrics`: sums for Prometheus, by process: on standard output once, or again and again in a file or by
//! HTTP.

mod broker;
mod totals;

use std::fs::Permissions;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use tiny_http::{Header, Method, Request, Response, Server};

use super::asked::Asked;
use crate::cli::MetricsArguments;
use crate::failure::Failure;
use crate::output::print;
use crate::say;
use crate::settings::Settings;
use totals::Totals;

/// How soon a signal is noticed.
const TICK: Duration = Duration::from_millis(100);
/// A scrape within this time of a look gets the result of that look: many scrapes at once do not delay each other.
const FRESH: Duration = Duration::from_millis(20);
/// Time from one look to the next, unless another is asked for.
const INTERVAL: Duration = Duration::from_secs(5);

/// What was asked for cannot be done.
#[derive(Debug, thiserror::Error)]
enum MetricsError {
    #[error("cannot write {} ({error}); --file needs a file in a folder that this user may write to", path.display())]
    File { path: PathBuf, error: io::Error },
    #[error("{} is {what}, which a file of metrics would replace; --file needs one of its own", path.display())]
    NoFile { path: PathBuf, what: &'static str },
    #[error("cannot listen at {address} ({error}); another port may be free: --listen {}:0 takes any", address.ip())]
    Listen { address: SocketAddr, error: io::Error },
}

impl From<MetricsError> for Failure {
    fn from(error: MetricsError) -> Failure {
        Failure::WrongUse(error.into())
    }
}

/// Prints the metrics, or keeps telling them until a signal comes.
///
/// # Errors
/// [`MetricsError`], wrong settings, or the kernel does not say what there is.
pub fn metrics(arguments: &MetricsArguments) -> Result<(), Failure> {
    let settings = Settings::gather(arguments.settings.config.as_deref(), &arguments.settings.set)?;
    let mut totals = Totals::beside(settings.typed.broker);
    totals.look()?;
    let interval = arguments.interval.unwrap_or(INTERVAL);
    match (&arguments.file, arguments.listen) {
        (Some(path), _) => keep(path, totals, interval),
        (None, Some(address)) => serve(address, totals, interval),
        (None, None) => Ok(print(totals.text()?)?),
    }
}

/// Writes a file at every look, for the textfile collector of node_exporter. The file is removed when this command
/// ends, so that figures that are no longer kept up are not taken for current ones.
fn keep(path: &Path, mut totals: Totals, interval: Duration) -> Result<(), Failure> {
    let path = &own_file(path)?;
    let asked = Asked::listen()?;
    let failed = |error| MetricsError::File { path: path.into(), error };
    replace(path, &totals.text()?).map_err(failed)?;
    let mut trouble = String::new();
    let mut looked = Instant::now();
    while asked.signal().is_none() {
        let left = interval.saturating_sub(looked.elapsed());
        if !left.is_zero() {
            thread::sleep(left.min(TICK));
            continue;
        }
        looked = Instant::now();
        let outcome = totals.look().and_then(|()| totals.text()).map_err(Failure::from);
        complain_once(&mut trouble, outcome.and_then(|text| Ok(replace(path, &text).map_err(failed)?)));
    }
    // The file may have been removed by another program.
    let _ = std::fs::remove_file(path);
    Ok(asked.end()?)
}

/// The file itself where a link was named. What is no file must neither be replaced nor removed at the end, as root
/// could do with /dev/null.
fn own_file(path: &Path) -> Result<PathBuf, MetricsError> {
    let path = std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
    let what = match std::fs::metadata(&path) {
        Ok(it) if it.is_dir() => "a directory",
        Ok(it) if !it.is_file() => "no regular file",
        _ => return Ok(path),
    };
    Err(MetricsError::NoFile { path, what })
}

/// Readers see the old file or the new one, and never a part.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // The temporary file has another ending, so that the collector does not read it.
    let mut file = tempfile::Builder::new()
        .prefix(".underpass-")
        .suffix(".tmp")
        .permissions(Permissions::from_mode(0o644))
        .tempfile_in(folder)
        .map_err(bare)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}

/// The system's error without the name of the temporary file, which the user does not know.
fn bare(error: io::Error) -> io::Error {
    let said = error.to_string();
    io::Error::other(said.split(" at path ").next().unwrap_or_default())
}

/// Answers at each scrape with what there is then. Between scrapes it looks too, since what a connection has carried
/// since the last look is lost with it.
fn serve(address: SocketAddr, mut totals: Totals, interval: Duration) -> Result<(), Failure> {
    let asked = Asked::listen()?;
    let server =
        Server::http(address).map_err(|error| MetricsError::Listen { address, error: io::Error::other(error) })?;
    if let Some(address) = server.server_addr().to_ip() {
        say(format_args!("metrics at http://{address}/metrics"));
    }
    let mut trouble = String::new();
    let mut looked = Instant::now();
    while asked.signal().is_none() {
        let left = interval.saturating_sub(looked.elapsed());
        if left.is_zero() {
            looked = Instant::now();
            complain_once(&mut trouble, totals.look().map_err(Failure::from));
        }
        if let Some(request) = server.recv_timeout(left.min(TICK))? {
            answer(request, &mut totals, &mut looked);
        }
    }
    Ok(asked.end()?)
}

fn answer(request: Request, totals: &mut Totals, looked: &mut Instant) {
    let path = request.url().split('?').next().unwrap_or_default();
    let (code, text) = match (request.method(), path) {
        (Method::Get | Method::Head, "/metrics") => match look(totals, looked).and_then(|()| totals.text()) {
            Ok(text) => (200, text),
            Err(error) => (500, format!("{error:#}\n")),
        },
        (Method::Get | Method::Head, _) => (404, "The metrics are at /metrics.\n".into()),
        _ => (405, "Only GET is answered.\n".into()),
    };
    let kind = if code == 200 { prometheus::TEXT_FORMAT } else { "text/plain; charset=utf-8" };
    let kind = Header::from_bytes("Content-Type", kind).expect("a header in ASCII");
    let response = Response::from_string(text).with_status_code(code).with_header(kind);
    // On a thread, so that a client that does not read delays no other client. A client that is gone needs no answer.
    let _ = thread::Builder::new().spawn(|| request.respond(response));
}

fn look(totals: &mut Totals, looked: &mut Instant) -> anyhow::Result<()> {
    if looked.elapsed() >= FRESH {
        totals.look()?;
        *looked = Instant::now();
    }
    Ok(())
}

/// Says what is wrong when it begins to be.
fn complain_once(trouble: &mut String, outcome: Result<(), Failure>) {
    let now = outcome.err().map_or(String::new(), |failure| failure.to_string());
    if !now.is_empty() && now != *trouble {
        say(format_args!("{now}"));
    }
    *trouble = now;
}
