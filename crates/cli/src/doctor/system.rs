//! What on this system, or in the settings, stands in the way of every program.

use std::fs;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use underpass_segment::config::IoUring;
use underpass_segment::kernel::{self, NoPeer};
use underpass_segment::raw::Errno;
use underpass_segment::sysv::{self, Refusal};

use super::Finding;
use crate::library;
use crate::settings::{Origin, Settings, variable};

/// Bytes of the System V segment that is tried out.
const TRIED: usize = 1 << 20;

/// All that is needed of this system.
pub fn look() -> Vec<Finding> {
    vec![library(), memory(), diagnosis()]
}

/// What the settings have to say that a program will be started with.
pub fn settings(settings: &Settings) -> Vec<Finding> {
    vec![mode(settings), io_uring(settings)]
}

fn mode(settings: &Settings) -> Finding {
    const SUBJECT: &str = "settings";
    match settings.values.iter().find(|it| it.key.name == "mode") {
        Some(it) if !settings.typed.enabled => {
            let remedy = match &it.origin {
                Origin::Flag => "leave --set mode=off out".into(),
                Origin::Environment => format!("unset {}, or say --set mode=on", variable(it.key)),
                Origin::File(path, line) => {
                    format!("take line {line} out of {}, or say --set mode=on", path.display())
                }
                Origin::Default => "say --set mode=on".into(),
            };
            let text = format!("Underpass is switched off: mode = \"{}\" ({})", it.text, it.origin);
            Finding::bars(SUBJECT, text, remedy)
        }
        _ => Finding::fine(SUBJECT, "Underpass is not switched off (`underpass config` shows all settings)"),
    }
}

fn library() -> Finding {
    const SUBJECT: &str = "library";
    match library::find() {
        Ok(path) => Finding::fine(SUBJECT, path.display().to_string()),
        Err(error) => {
            // Each of these messages ends with what to do, on a line or after a semicolon.
            let message = error.to_string();
            let (text, remedy) =
                message.rsplit_once('\n').or_else(|| message.rsplit_once("; ")).unwrap_or((&message, ""));
            Finding::bars(SUBJECT, text.replace("\n  ", " ").replace('\n', ""), remedy)
        }
    }
}

fn memory() -> Finding {
    const SUBJECT: &str = "memory";
    let words = |code| io::Error::from_raw_os_error(code);
    match sysv::try_out(TRIED) {
        Ok(()) => Finding::fine(SUBJECT, "System V shared memory can be had, and attached by its number"),
        Err(Refusal::Memory(Errno(code))) => {
            let remedy = match code {
                libc::ENOSPC => "raise kernel.shmmni or kernel.shmall, or end what `ipcs -m` shows",
                libc::EINVAL => "raise kernel.shmmax",
                libc::ENOMEM => "raise the limit of address space (ulimit -v) or of the control group's memory",
                _ => "let the sandbox allow shmget, shmat and shmctl",
            };
            Finding::bars(SUBJECT, format!("no System V shared memory can be had: {}", words(code)), remedy)
        }
        Err(Refusal::Number(Errno(code))) => {
            let text = format!("System V shared memory cannot be attached by its number: {}", words(code));
            Finding::bars(SUBJECT, text, "let the sandbox allow shmat and shmctl as Linux does")
        }
    }
}

fn diagnosis() -> Finding {
    const SUBJECT: &str = "sock_diag";
    let pair = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let one = TcpStream::connect(listener.local_addr()?)?;
        Ok::<_, io::Error>((one, listener.accept()?.0))
    };
    let (one, _other) = match pair() {
        Ok(pair) => pair,
        Err(error) => {
            let text = format!("no connection over the loopback interface: {error}");
            return Finding::bars(SUBJECT, text, "bring it up: ip link set lo up");
        }
    };
    match kernel::peer(one.as_raw_fd()) {
        Ok(_) => Finding::fine(SUBJECT, "the kernel says which socket is at the other end of a connection"),
        Err(NoPeer::Elsewhere) => Finding::bars(
            SUBJECT,
            "the kernel does not find the other end of a connection that is here",
            "leave the sandbox that has a TCP of its own (gVisor for one), or that hides it",
        ),
        Err(NoPeer::NoAnswer(Errno(code))) => Finding::bars(
            SUBJECT,
            format!("the kernel does not say what is at the other end: {}", io::Error::from_raw_os_error(code)),
            "load the module tcp_diag; let the sandbox allow netlink sockets",
        ),
    }
}

fn io_uring(settings: &Settings) -> Finding {
    const SUBJECT: &str = "io_uring";
    if settings.typed.io_uring != IoUring::Allow {
        return Finding::fine(SUBJECT, "programs are told that the system has none, and do without");
    }
    if fs::read("/proc/sys/kernel/io_uring_disabled").is_ok_and(|text| text.starts_with(b"2")) {
        return Finding::fine(SUBJECT, "it is switched off here for everybody");
    }
    Finding::mind(
        SUBJECT,
        "it is allowed, and programs that use it stay on kernel TCP",
        "say --set io_uring=deny, if the program can do without",
    )
}
