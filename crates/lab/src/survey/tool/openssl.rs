//! OpenSSL (openssl-s_server(1), openssl-s_client(1)): a connection over TLS, and the certificate for it.
//!
//! The receiver's s_server says [`READY`] when the handshake is done, and [`CONFIRMED`] when it has the whole file; so
//! the sender measures with one clock, and without the start of two programs.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the receiver says when the connection is there.
pub const READY: &[u8] = b"go\n";
/// What it says when it has the whole file.
pub const CONFIRMED: &[u8] = b"ok\n";

/// A key and a certificate for it.
#[derive(Clone, Debug)]
pub struct Certificate {
    key: PathBuf,
    certificate: PathBuf,
}

/// The places of key and certificate in a folder; adds the arguments that make them to `command`.
pub fn certificate(command: &mut Command, folder: &Path) -> Certificate {
    let it = Certificate { key: folder.join("key.pem"), certificate: folder.join("certificate.pem") };
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]);
    command.args(["-subj", "/CN=underpass-survey", "-keyout"]).arg(&it.key).arg("-out").arg(&it.certificate);
    it
}

/// Arguments of a server for one connection.
pub fn serve(command: &mut Command, at: IpAddr, port: u16, with: &Certificate) {
    let address = SocketAddr::new(at, port).to_string();
    command.args(["s_server", "-quiet", "-accept", &address, "-naccept", "1", "-key"]);
    command.arg(&with.key).arg("-cert").arg(&with.certificate);
}

/// Arguments of a client. It asks for no certificate: what is measured is the work, between agents that know each
/// other.
pub fn connect(command: &mut Command, to: SocketAddr) {
    command.args(["s_client", "-quiet", "-connect", &to.to_string()]);
}
