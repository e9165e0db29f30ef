//! Why a connection is not on the fast path.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $key:literal,)+) => {
        /// Why a connection is (still) on the kernel path. Every connection that is not fast has exactly one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Reason { $($(#[doc = $doc])+ $name,)+ }

        impl Reason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [Reason] = &[$(Reason::$name,)+];

            /// The word shown to users and written to records.
            pub const fn key(self) -> &'static str {
                match self { $(Reason::$name => $key,)+ }
            }

            /// One sentence for a person.
            pub const fn sentence(self) -> &'static str {
                match self { $(Reason::$name => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

reasons! {
    /// It has not carried enough yet to be worth a channel.
    Young = "young",
    /// The other end has not answered: it runs without Underpass, stays on kernel TCP for a reason of its own (see its
    /// --stats), or has not used the connection since.
    PeerSilent = "peer-silent",
    /// It was closed before its two ends had met.
    Closed = "closed",
    /// The other end is on another host or in another network namespace.
    Remote = "remote",
    /// The other end belongs to another user, and there is no underpassd that could let both share memory.
    OtherUser = "other-user",
    /// The other end could not be proven to hold this connection.
    Unproven = "unproven",
    /// The kernel does not answer sock_diag queries here (inet_diag missing or forbidden).
    NoSockDiag = "no-sock-diag",
    /// No shared memory could be had (limit of shmget, memory, memory cgroup or address space).
    NoMemory = "no-memory",
    /// The descriptor came from another program (exec or SCM_RIGHTS), which may still use the connection.
    Inherited = "inherited",
    /// Several processes have had the descriptor since before its two ends met. It goes up when only one of them has
    /// it.
    Shared = "shared",
    /// The program prints to it by dprintf, or it is stdin, stdout or stderr.
    Stdio = "stdio",
    /// The program moves its bytes inside the kernel (splice).
    Splice = "splice",
    /// The program uses urgent data (MSG_OOB, SO_OOBINLINE).
    Urgent = "urgent-data",
    /// The program uses a socket option that only the kernel path can honour.
    SocketOption = "socket-option",
    /// The program uses zero-copy sends and waits for the kernel's notifications.
    ZeroCopy = "zerocopy",
    /// The program gave the descriptor away over a Unix socket.
    Passed = "passed",
    /// The connection was opened with TCP Fast Open.
    FastOpen = "fast-open",
    /// The kernel's counters did not agree, so no position could be fixed.
    Counters = "counters",
    /// Acceleration is switched off by configuration.
    Disabled = "disabled",
    /// The other end broke the rules of the channel; the connection was ended.
    PeerFault = "peer-fault",
    /// The reader was slower than the ring is large; the kernel buffers the rest.
    RingFull = "ring-full",
    /// A seccomp filter stands between the program and shared memory.
    Seccomp = "seccomp",
    /// The program moved the connection with a call that the library leaves to the kernel.
    Unsupported = "unsupported",
    /// The program uses asynchronous calls on it (aio_read, aio_write, io_submit, io_uring).
    Asynchronous = "asynchronous",
    /// The program asks for a signal when something comes (O_ASYNC).
    Signals = "signals",
    /// `underpass pin` holds it on kernel TCP; `underpass unpin` lets it go up again.
    Asked = "asked",
    /// Nothing has been sent or received on it.
    Unused = "unused",
    /// It was handed to a program that could not reach what lay unread in shared memory, and was ended by a reset.
    HandOver = "hand-over",
    /// The process has so many short connections, one after another, that it follows only a few of them.
    ShortLived = "short-lived",
    /// underpassd does not let the users of the two ends share memory.
    Policy = "policy",
    /// Only underpassd could say who is at the other end, and it has not answered.
    NoBroker = "no-broker",
    /// The kernel path of this connection between users or namespaces does not answer, so memory does not carry it
    /// either.
    PathSilent = "path-silent",
    /// Its two ends have met. A direction goes up with its sender's next send.
    Met = "met",
    /// The process had no free descriptor or buffer to ask who is at the other end, or no descriptor for shared memory.
    NoDescriptor = "no-descriptor",
    /// The other end could not be asked yet: its program has not accepted the connection. It is asked again after some
    /// more calls.
    NotAccepted = "not-accepted",
}
