//! What the system lets the daemon do. Each ability that is missing is reported once, at the start, with the remedy;
//! the daemon goes on without it where it can.

use crate::evidence::Kernel;
use crate::evidence::addresses::Addresses;
use crate::evidence::numbers::{self, Numbers};
use crate::{memory, sys};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::{Path, PathBuf};
use tracing::{info, warn};
use underpass_policy::Namespace;

/// Fewer descriptors than these are said to be few: about a thousand processes of a user.
const MANY_DESCRIPTORS: u64 = 1 << 14;

/// What the daemon can do here.
#[derive(Debug)]
pub struct Abilities {
    /// What proves connections.
    pub evidence: Kernel,
    /// Cookie of the network namespace that the daemon is in (Linux 5.14).
    pub network: Option<u64>,
    /// The user namespace that the daemon is in.
    pub users: Namespace,
    /// It learns which process asks without a race (Linux 6.5).
    pub pidfd: bool,
    /// Descriptors that it may have.
    pub descriptors: u64,
}

/// Whether connections are proven by their sequence numbers, and of which.
#[derive(Clone, Debug)]
pub enum Proof {
    /// The connections of the processes in this cgroup.
    Of(PathBuf),
    /// All connections.
    All,
    /// No connection.
    Never,
}

/// What makes a daemon useless here.
#[derive(Debug, thiserror::Error)]
pub enum Useless {
    /// The daemon could prove no connection.
    #[error(
        "nothing can be proven here: neither does a BPF program load, nor does the kernel answer questions about \
         sockets (sock_diag); see the warnings above"
    )]
    NoEvidence,
    /// The daemon could give ends no shared memory.
    #[error("no memory can be made and sealed ({0}); let underpassd use memfd_create(2) and fcntl(2) with F_ADD_SEALS")]
    NoMemory(io::Error),
}

impl Abilities {
    /// Finds out.
    ///
    /// # Errors
    /// [`Useless`].
    pub fn find(proof: &Proof) -> Result<Abilities, Useless> {
        memory::sealed(1 << 12).map_err(Useless::NoMemory)?;
        // Before Linux 5.11, tables of BPF programs count as locked memory.
        raise(Resource::Memlock);
        let evidence = Kernel { numbers: sequence_numbers(proof), addresses: addresses() };
        if evidence.numbers.is_none() && evidence.addresses.is_none() {
            return Err(Useless::NoEvidence);
        }
        // Any socket of this process has it.
        let network = UnixDatagram::unbound().and_then(sys::network_namespace);
        if let Err(error) = &network {
            warn!(%error, "network namespaces cannot be told apart (SO_NETNS_COOKIE of Linux 5.14): rules that name \
                           one allow nobody");
        }
        let descriptors = raise(Resource::Nofile);
        if descriptors < MANY_DESCRIPTORS {
            warn!(descriptors, "that is few for many programs: raise LimitNOFILE, or ulimit -Hn");
        }
        let (users, pidfd) = (Namespace::own(), has_peer_pidfd());
        Ok(Abilities { evidence, network: network.ok(), users, pidfd, descriptors })
    }
}

fn sequence_numbers(proof: &Proof) -> Option<Numbers> {
    const REMEDY: &str = "only connections within the daemon's network namespace are proven";
    let found;
    let cgroup: &Path = match proof {
        Proof::Never => return None,
        Proof::Of(path) => path,
        Proof::All => match numbers::cgroup2() {
            Ok(Some(path)) => {
                found = path;
                &found
            }
            Ok(None) => {
                warn!("no cgroup2 file system is mounted (mount -t cgroup2 none FOLDER): {REMEDY}");
                return None;
            }
            Err(error) => {
                warn!(%error, "/proc/self/mounts cannot be read: {REMEDY}");
                return None;
            }
        },
    };
    match Numbers::attach(cgroup) {
        Ok(numbers) => {
            info!(cgroup = %cgroup.display(), "connections that begin from now on are proven by their sequence \
                                               numbers");
            Some(numbers)
        }
        Err(error) => {
            warn!(%error, cgroup = %cgroup.display(), "no BPF program (CAP_BPF and CAP_NET_ADMIN are needed, before \
                                                       Linux 5.11 also 16 MiB of locked memory: LimitMEMLOCK, or \
                                                       ulimit -Hl): {REMEDY}");
            None
        }
    }
}

fn addresses() -> Option<Addresses> {
    let addresses = Addresses::open();
    if let Err(error) = &addresses {
        warn!(%error, "the kernel does not answer questions about sockets (sock_diag, SO_NETNS_COOKIE of Linux 5.14): \
                       connections that are older than the daemon are not proven");
    }
    addresses.ok()
}

fn has_peer_pidfd() -> bool {
    let tried = UnixStream::pair().and_then(|(one, _other)| sys::peer_process(&one));
    if let Err(error) = &tried {
        warn!(%error, "a process that asks is known by its number alone (SO_PEERPIDFD of Linux 6.5), which may be \
                       another's by then");
    }
    tried.is_ok()
}

/// Allows as much as the hard limit does; returns how much.
fn raise(resource: Resource) -> u64 {
    let limit = getrlimit(resource);
    let highest = Rlimit { current: limit.maximum, ..limit };
    let limit = if setrlimit(resource, highest).is_ok() { highest } else { limit };
    limit.current.unwrap_or(u64::MAX)
}
