//! `underpassd`: tells the ends of TCP connections on one host who is at the other end, and which memory they may
//! share, where they cannot tell themselves: because they are of different users, or in different namespaces. It
//! carries no bytes.
//!
//! [`server`] is the loop. A client's packet is taken by [`lanes`] ([`packet`], [`facts`]), whatever it is, and its
//! connection is closed by the [`closer`]. [`exchange`] decides who meets whom, by what the kernel attests
//! ([`evidence`], [`process`]) and what the administrator allows ([`policy`], [`limits`]), and gives out [`memory`].
//! [`abilities`] are what this system lets it do. The wire is the crate `underpass-broker`, the policy itself the crate
//! `underpass-policy`.

mod abilities;
mod carriage;
mod carrier;
mod closer;
mod evidence;
mod exchange;
mod facts;
mod lanes;
mod limits;
mod lines;
mod listener;
#[cfg(test)]
mod manual;
mod memory;
mod options;
mod packet;
mod policy;
mod process;
mod record;
mod routes;
mod server;
mod sys;

use abilities::{Abilities, Proof};
use carriage::Carriage;
use clap::Parser;
use closer::Closer;
use limits::Limits;
use listener::Listener;
use options::Options;
use policy::{Reloads, Source};
use routes::Routes;
use sd_notify::NotifyState;
use server::{Parts, Server};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use tracing::{error, info};
use underpass_policy::Policy;

/// Why the daemon does not start, or ends by itself.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{0}")]
    Listen(#[from] listener::ListenError),
    #[error("{0}")]
    Useless(#[from] abilities::Useless),
    /// The policy cannot be read. The default does not stand in for it: the policy may deny what the default allows.
    #[error("{0}\nWithout a policy underpassd does not start; underpassd --check says whether it is in order")]
    Policy(#[from] policy::LoadError),
    #[error("{0}")]
    Routes(#[from] routes::RoutesError),
    #[error("{0}")]
    Carriage(#[from] carriage::CarriageError),
    #[error("{0}")]
    System(#[from] io::Error),
    #[error("{0}")]
    Run(#[from] server::RunError),
}

/// The exit code where the daemon would not start later either, unless somebody changes something: a service manager is
/// not to try again.
const LASTING: u8 = 3;

impl Failure {
    /// Whether it stays until somebody changes something.
    fn is_lasting(&self) -> bool {
        match self {
            Failure::Listen(error) => error.is_lasting(),
            Failure::Useless(_) | Failure::Routes(_) => true,
            Failure::Policy(error) => error.is_lasting(),
            Failure::System(_) | Failure::Run(_) | Failure::Carriage(_) => false,
        }
    }
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.check {
        return check(source(&options));
    }
    log(&options);
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            error!("{}", error.to_string().replace('\n', ". "));
            if error.is_lasting() { LASTING.into() } else { ExitCode::FAILURE }
        }
    }
}

/// Logs to standard error, without the time where the journal adds it (systemd.exec(5)).
fn log(options: &Options) {
    let level = options.log.parse().unwrap_or(tracing::Level::INFO);
    let log = tracing_subscriber::fmt().with_max_level(level).with_writer(io::stderr).with_ansi(false);
    if std::env::var_os("JOURNAL_STREAM").is_some() { log.without_time().init() } else { log.init() }
}

fn source(options: &Options) -> Source {
    match (&options.policy, &options.group) {
        (Some(path), _) => Source::File(path.clone()),
        (None, Some(group)) => Source::Group(group.clone()),
        (None, None) => Source::Usual,
    }
}

/// Says what the policy allows.
fn check(mut source: Source) -> ExitCode {
    let (policy, file) = match source.load() {
        Ok(loaded) => loaded,
        Err(error) => {
            let _ = writeln!(io::stderr(), "underpassd: {error}");
            return ExitCode::FAILURE;
        }
    };
    let heading = match (file, source) {
        (Some(file), _) => format!("{} is in order", file.display()),
        (None, Source::Group(_)) => "no policy file is read".to_string(),
        (None, _) => format!("there is no {}, so the default holds", underpass_policy::DEFAULT_FILE),
    };
    match write!(io::stdout(), "{heading}\n{policy}") {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn serve(options: &Options) -> Result<(), Failure> {
    let handed = sys::handed_over()?;
    let closer = start_closer()?;
    let (signals, reloading) = (on(&[SIGTERM, SIGINT])?, on(&[SIGHUP])?);
    let mut source = source(options);
    let (policy, file) = source.load()?;
    policy::warn_of_gaps(&policy);
    let proof = match &options.cgroup {
        _ if options.no_bpf => Proof::Never,
        Some(path) => Proof::Of(path.clone()),
        None => Proof::All,
    };
    let abilities = Abilities::find(&proof)?;
    let listener = match Listener::handed(handed)? {
        Some(listener) => listener,
        None => Listener::at(&options.socket)?,
    };
    let socket = listener.path.clone();
    let limits = Limits::within(abilities.descriptors);
    let [allowing, denying] = policy.rules();
    let file = file.map_or("none".into(), |it| it.display().to_string());
    let status = status(&abilities, &policy);
    let reloads = Reloads::begin(source, reloading)?;
    let routes = options.routes.as_deref().map(Routes::read).transpose()?;
    let number = RandomState::new().build_hasher().finish().max(1);
    let carriage = routes.as_ref().map(|it| Carriage::start(it.listen, number)).transpose()?;
    let away = routes.zip(carriage);
    let server = Server::new(Parts { listener, signals, closer, abilities, policy, reloads, limits, away, number })?;
    info!(file, allowing, denying, "the policy is in force");
    info!(socket = %socket.display(), "underpassd listens");
    notify(&[NotifyState::Ready, NotifyState::Status(&status)]);
    let ended = server.run();
    notify(&[NotifyState::Stopping]);
    ended?;
    info!("underpassd ends; connections that have met go on");
    Ok(())
}

/// What the service manager shows of it.
fn status(abilities: &Abilities, policy: &Policy) -> String {
    let by = match (&abilities.evidence.numbers, &abilities.evidence.addresses) {
        (Some(_), Some(_)) => "sequence numbers and addresses",
        (Some(_), None) => "sequence numbers",
        (None, _) => "addresses, within one network namespace only",
    };
    let [allowing, denying] = policy.rules();
    format!("proves connections by {by}; {allowing} rules that allow, {denying} that deny")
}

/// Tells the service manager, if there is one. A manager that does not listen knows nothing of it, and the daemon goes
/// on.
fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "the service manager cannot be told");
    }
}

/// A socket that becomes readable with each of these signals.
fn on(signals: &[i32]) -> io::Result<UnixStream> {
    let (comes, sender) = UnixStream::pair()?;
    for signal in signals {
        signal_hook::low_level::pipe::register(*signal, sender.try_clone()?)?;
    }
    Ok(comes)
}

#[allow(unsafe_code, reason = "forks")]
fn start_closer() -> io::Result<Closer> {
    // SAFETY: no thread has been started yet.
    unsafe { Closer::start() }
}
