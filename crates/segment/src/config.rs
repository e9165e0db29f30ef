//! Configuration: typed values from `UNDERPASS_*` variables, parsed once at the edge.

/// The variable in which a program hands its connections over to a program that it executes, which may be the command.
pub const HANDOFF_VARIABLE: &str = "UNDERPASS_HANDOFF";

/// One key of the configuration: `UNDERPASS_<NAME>` in the environment, `<name>` in the TOML file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// Name as in the TOML file; the variable is `UNDERPASS_` and this in capitals.
    pub name: &'static str,
    /// Shape and unit of the value, for people.
    pub shape: &'static str,
    /// Value when nothing is said.
    pub default: &'static str,
    /// What it does, in one sentence.
    pub help: &'static str,
}

/// Every key that the library understands.
pub const KEYS: &[Key] = &[
    Key { name: "mode", shape: "on | off", default: "on", help: "off leaves every connection on the kernel path." },
    Key {
        name: "go_up_messages",
        shape: "count, 0 to 1000000",
        default: "8",
        help: "Send and receive calls after which a connection goes up; 0 is at once.",
    },
    Key {
        name: "go_up_bytes",
        shape: "bytes, 0 to 1073741824",
        default: "16384",
        help: "Bytes after which a connection goes up, if sooner; 0 is at once.",
    },
    Key {
        name: "ring_bytes",
        shape: "bytes, a power of two, 65536 to 16777216",
        default: "1048576",
        help: "Size of each direction's ring.",
    },
    Key {
        name: "spin_us",
        shape: "microseconds, 0 to 10000",
        default: "100",
        help: "Longest time to poll before sleeping; 0 never polls.",
    },
    Key {
        name: "doze_us",
        shape: "microseconds, 0 to 1000000",
        default: "10000",
        help: "Longest sleep on the shared memory, before a sleep in the kernel, which costs twice as much; 0 is none.",
    },
    Key {
        name: "broker",
        shape: "path, 1 to 107 bytes, or empty",
        default: underpass_broker::DEFAULT_SOCKET,
        help: "Socket of underpassd, which is asked about other ends that this process cannot see; empty asks nobody.",
    },
    Key {
        name: "io_uring",
        shape: "auto | deny | allow",
        default: "auto",
        help: "io_uring bypasses the library: auto and deny let io_uring_setup fail with ENOSYS, deny always by a \
               seccomp filter.",
    },
];

/// The path of a Unix socket (unix(7)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketPath {
    bytes: [u8; Self::MOST],
    len: usize,
}

impl SocketPath {
    /// Bytes that a path has at most.
    const MOST: usize = 107;
    /// No socket.
    pub const NONE: SocketPath = SocketPath { bytes: [0; Self::MOST], len: 0 };

    /// The path `text`, of which an empty one is [`SocketPath::NONE`]; `None` if it is too long, or has a NUL.
    pub const fn of(text: &str) -> Option<SocketPath> {
        let (mut path, from, mut at) = (Self::NONE, text.as_bytes(), 0);
        if from.len() > Self::MOST {
            return None;
        }
        while at < from.len() {
            if from[at] == 0 {
                return None;
            }
            path.bytes[at] = from[at];
            at += 1;
        }
        path.len = from.len();
        Some(path)
    }

    /// Its bytes, without a NUL; none if there is no socket.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// What becomes of io_uring_setup(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoUring {
    /// It fails: by the library where the call goes through libc, by a filter where the program makes it past libc.
    Auto,
    /// It fails, also in programs that do not load the library.
    Deny,
    /// It is left alone, and pins connections.
    Allow,
}

/// The configuration that the library runs with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Whether connections may go up at all.
    pub enabled: bool,
    /// Calls after which a connection goes up.
    pub go_up_messages: u32,
    /// Bytes after which a connection goes up.
    pub go_up_bytes: u64,
    /// Bytes of each ring, a power of two.
    pub ring_bytes: u32,
    /// Longest spin before sleeping, in microseconds.
    pub spin_us: u32,
    /// Longest sleep on the shared memory before one in the kernel, in microseconds.
    pub doze_us: u32,
    /// Socket of the broker.
    pub broker: SocketPath,
    /// What becomes of io_uring_setup.
    pub io_uring: IoUring,
}

impl Default for Config {
    fn default() -> Self {
        Config::DEFAULT
    }
}

/// A value that does not fit its key: the key's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadValue(pub &'static Key);

impl Config {
    /// The values when nothing is said.
    pub const DEFAULT: Config = Config {
        enabled: true,
        go_up_messages: 8,
        go_up_bytes: 16384,
        ring_bytes: 1 << 20,
        spin_us: 100,
        doze_us: 10_000,
        broker: match SocketPath::of(underpass_broker::DEFAULT_SOCKET) {
            Some(path) => path,
            None => SocketPath::NONE,
        },
        io_uring: IoUring::Auto,
    };

    /// Whether a connection goes up as soon as both ends can.
    pub fn goes_up_at_once(&self) -> bool {
        self.go_up_messages == 0
    }

    /// Sets one key from its text.
    ///
    /// # Errors
    /// `None`: there is no such key. `Some(BadValue)`: the text does not fit the key's shape.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), Option<BadValue>> {
        let key = KEYS.iter().find(|k| k.name == name).ok_or(None)?;
        let bad = Some(BadValue(key));
        let number = |low: u64, high: u64| text.parse::<u64>().ok().filter(|n| (low..=high).contains(n)).ok_or(bad);
        let either = |yes: &str, no: &str| {
            if text == yes {
                Ok(true)
            } else if text == no {
                Ok(false)
            } else {
                Err(bad)
            }
        };
        match name {
            "mode" => self.enabled = either("on", "off")?,
            "go_up_messages" => self.go_up_messages = number(0, 1_000_000)? as u32,
            "go_up_bytes" => self.go_up_bytes = number(0, 1 << 30)?,
            "ring_bytes" => {
                let bytes = number(1 << 16, 1 << 24)?;
                if !bytes.is_power_of_two() {
                    return Err(bad);
                }
                self.ring_bytes = bytes as u32;
            }
            "spin_us" => self.spin_us = number(0, 10_000)? as u32,
            "doze_us" => self.doze_us = number(0, 1_000_000)? as u32,
            "broker" => self.broker = SocketPath::of(text).ok_or(bad)?,
            "io_uring" => {
                self.io_uring = match text {
                    "auto" => IoUring::Auto,
                    "deny" => IoUring::Deny,
                    "allow" => IoUring::Allow,
                    _ => return Err(bad),
                }
            }
            _ => return Err(None),
        }
        Ok(())
    }
}
