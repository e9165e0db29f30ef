//! Why two ends share no memory.

use crate::error::WireError;

macro_rules! refusals {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $key:literal, $remedy:literal;)+) => {
        /// Why the daemon gives no memory for a connection, which stays on kernel TCP.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Refusal { $($(#[doc = $doc])+ $name = $number,)+ }

        impl Refusal {
            /// All of them.
            pub const ALL: &'static [Refusal] = &[$(Refusal::$name,)+];

            /// The word shown to users.
            pub const fn key(self) -> &'static str {
                match self { $(Refusal::$name => $key,)+ }
            }

            /// One sentence for a person.
            pub const fn sentence(self) -> &'static str {
                match self { $(Refusal::$name => concat!($($doc,)+).trim_ascii(),)+ }
            }

            /// What to do about it.
            pub const fn remedy(self) -> &'static str {
                match self { $(Refusal::$name => $remedy,)+ }
            }
        }
    };
}

refusals! {
    /// The policy does not let these two users share memory.
    Policy = 1, "policy",
        "make both users members of the group that the policy names, or give them a rule; `underpass policy explain \
         PID PID` says why";
    /// Nothing proves which socket is at the other end.
    Unproven = 2, "unproven",
        "let underpassd have CAP_BPF and CAP_NET_ADMIN, and connect after it has started; or use one network namespace";
    /// The other end is not on this host, as far as can be told.
    Elsewhere = 3, "remote", "none: only the ends of one host share memory";
    /// The two programs have different versions of the library.
    Layout = 4, "layout", "start both programs anew with the same version of Underpass";
    /// The user has as many of something as a user may have.
    Limit = 5, "limit", "close connections, or raise the limits of underpassd";
    /// The daemon could not make the memory.
    NoMemory = 6, "no-memory", "see the log of underpassd";
    /// What came with the question is not the socket of an established TCP connection.
    NotConnection = 7, "not-connection", "report this: the library asks for established connections only";
    /// The library and the daemon do not speak the same version of the wire.
    Version = 8, "version", "start the program, or underpassd, anew after an upgrade";
    /// The packet was no question.
    Malformed = 9, "malformed", "report this: the library and the daemon disagree";
}

impl Refusal {
    pub(crate) fn numbered(number: u32) -> Result<Refusal, WireError> {
        let of_this_number = |it: &&Refusal| **it as u32 == number;
        Self::ALL.iter().find(of_this_number).copied().ok_or(WireError::Value("refusal"))
    }
}
