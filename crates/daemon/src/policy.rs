//! Where the policy comes from, and how it is read anew while the daemon runs.

use crate::sys;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use underpass_policy::{Policy, PolicyError};

/// Where the policy comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// The usual file, or the default where there is no such file.
    Usual,
    /// This file.
    File(PathBuf),
    /// The same user, and members of the group of this name.
    Group(String),
}

/// Why there is no policy.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is wrong.
    #[error("{0}")]
    Policy(#[from] PolicyError),
    /// The system does not say which group it is.
    #[error("cannot find out which group {name} is ({error}); see to nsswitch.conf")]
    Group {
        /// Its name.
        name: String,
        /// The system's words.
        error: io::Error,
    },
}

impl LoadError {
    /// Whether it stays until somebody changes the policy.
    pub fn is_lasting(&self) -> bool {
        match self {
            LoadError::Policy(error) => error.is_lasting(),
            LoadError::Group { .. } => false,
        }
    }
}

impl Source {
    /// The policy, and the file that it stands in. May wait, where the system asks a server for users and groups. A
    /// usual file that was there once has to be there from then on: the default must not take the place of what it
    /// denies.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn load(&mut self) -> Result<(Policy, Option<PathBuf>), LoadError> {
        let trusted = [0, rustix::process::geteuid().as_raw()];
        match self {
            Source::Usual => {
                let (policy, file) = underpass_policy::usual(&trusted)?;
                let file = file.map(PathBuf::from);
                if let Some(file) = &file {
                    *self = Source::File(file.clone());
                }
                Ok((policy, file))
            }
            Source::File(path) => Ok((underpass_policy::read(path, &trusted)?, Some(path.clone()))),
            Source::Group(name) => match underpass_policy::of_group(name) {
                Ok(policy) => Ok((policy, None)),
                Err(error) => Err(LoadError::Group { name: name.clone(), error }),
            },
        }
    }
}

/// Says what a policy does not do that it seems to say.
pub fn warn_of_gaps(policy: &Policy) {
    if let Some(group) = policy.missing_group() {
        tracing::warn!(
            group,
            "there is no such group, so nobody shares memory as a member of it; groupadd --system makes it"
        );
    }
    // The first process is root's, or in a container perhaps another user's: not the daemon's own.
    if (policy.denies_groups() || policy.names_cgroups())
        && let Err(error) = std::fs::read("/proc/1/status")
    {
        tracing::warn!(
            %error,
            "/proc hides processes of other users (hidepid, proc(5)): a rule that denies a group or a control group \
             holds for each of them, and one that allows a control group for none; mount /proc with gid=GROUP, and \
             add SupplementaryGroups=GROUP to the service"
        );
    }
}

/// Reads the policy anew when asked to, in a thread of its own: the loop does not wait for the servers that know users.
#[derive(Debug)]
pub struct Reloads {
    bell: Arc<OwnedFd>,
    loaded: Receiver<Result<Policy, LoadError>>,
}

impl Reloads {
    /// Begins to read `source` anew whenever something comes on `asked`.
    ///
    /// # Errors
    /// No descriptor or no thread could be had.
    pub fn begin(source: Source, asked: UnixStream) -> io::Result<Reloads> {
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        let (done, loaded) = channel();
        let ring = bell.clone();
        thread::Builder::new().name("policy".into()).spawn(move || reload(source, asked, &done, &ring))?;
        Ok(Reloads { bell, loaded })
    }

    /// Becomes readable when a policy has been read.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// The next policy that has been read, or what was wrong with it; `None` if there is none.
    pub fn take(&mut self) -> Option<Result<Policy, LoadError>> {
        sys::quiet(&self.bell);
        self.loaded.try_recv().ok()
    }
}

fn reload(mut source: Source, mut asked: UnixStream, done: &Sender<Result<Policy, LoadError>>, bell: &OwnedFd) {
    loop {
        // What is asked for several times meanwhile is done once.
        match asked.read(&mut [0; 64]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if done.send(source.load().map(|(policy, _)| policy)).is_err() {
            return;
        }
        sys::ring(bell);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, poll};
    use std::io::Write;

    #[test]
    fn a_policy_is_read_anew_each_time_that_it_is_asked_for() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        std::fs::write(&path, "group = 70").unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
        let (asked, mut ask) = UnixStream::pair().unwrap();
        let mut reloads = Reloads::begin(Source::File(path.clone()), asked).unwrap();
        let mut next = || {
            ask.write_all(&[0]).unwrap();
            poll(&mut [PollFd::from_borrowed_fd(reloads.bell(), PollFlags::IN)], None).unwrap();
            reloads.take().unwrap()
        };
        assert!(next().unwrap().to_string().contains("group 70"));
        std::fs::write(&path, "group = ").unwrap();
        assert!(matches!(next(), Err(LoadError::Policy(PolicyError::Content { .. }))));
        std::fs::write(&path, "group = 71").unwrap();
        assert!(next().unwrap().to_string().contains("group 71"));
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(next(), Err(LoadError::Policy(PolicyError::Missing(_)))));
    }
}
