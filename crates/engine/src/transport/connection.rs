//! One transport connection: its variables, by the names that X.224 §12.2 gives them where there is one.

use super::Config;
use super::number::Space;
use super::recovery::Recovery;
use super::slots::List;
use super::timeout::Timeout;
use crate::service::{Details, Peer, Time};
use crate::wire::tpdu::{Class, Confirmation, Format, Parameters, Reason};

const MS: u64 = 1_000_000;
/// This end is silent for one part in this many of the time after which the other end gives up, so that some AKs may be
/// lost.
const SHARE: u32 = 4;

/// Where a connection stands (X.224 §A.5; RFC 905 Annex A).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// WFCC: a CR was sent.
    AwaitsConfirm,
    /// WFTRESP: a CR came, and the user has not answered.
    AwaitsResponse,
    /// AKWAIT: a CC was sent, and nothing has shown that it came.
    AwaitsAcknowledge,
    /// OPEN.
    Open,
    /// CLOSING: a DR was sent.
    Closing,
}

/// What holds for the life of a connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    pub class: Class,
    pub format: Format,
    /// TPDUs carry a checksum.
    pub checksum: bool,
    /// Longest TPDU, header counted.
    pub tpdu_size: u32,
    pub selective: bool,
    pub roa: bool,
    /// DTs may be marked, and AKs say how many were.
    pub marks: bool,
    pub expedited: bool,
    pub theirs: Theirs,
}

/// What the other end has said of its timers, in ms; 0 where it has not, or where that changes nothing here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Theirs {
    /// How long it may put an AK off.
    pub acknowledge: u16,
    /// W, where it is shorter than this end's: how long it may hear nothing, or it gives up.
    pub window: u16,
}

impl Theirs {
    /// The shortest W, in ms, whatever the other end says: it must not make this end send AKs all the time.
    const LEAST: u32 = 50;

    /// The other end's times as its CR or CC has them, where this end's W is `w` ns.
    pub fn of(parameters: &Parameters<'_>, w: u64) -> Theirs {
        let window = parameters.inactivity_time.map(|it| (it / SHARE).max(Theirs::LEAST));
        let window = window.filter(|it| u64::from(*it) * MS < w);
        Theirs {
            acknowledge: parameters.acknowledge_time.unwrap_or(0),
            window: window.map_or(0, |it| it.try_into().unwrap_or(u16::MAX)),
        }
    }
}

impl Terms {
    /// W: after how long the other end hears from here, in ns, where this end's own is `w`.
    pub fn window_time(&self, w: u64) -> u64 {
        if self.theirs.window == 0 { w } else { u64::from(self.theirs.window) * MS }
    }

    /// How long the other end may put an AK off, in ns; as long as this end where it has not said so.
    pub fn acknowledge_time(&self, al: u64) -> u64 {
        if self.theirs.acknowledge == 0 { al } else { u64::from(self.theirs.acknowledge) * MS }
    }

    /// DTs that may be under way towards an end that takes `credit` of them.
    pub fn credit(&self, credit: u16) -> u32 {
        match self.format {
            Format::Normal => credit.min(15).into(),
            Format::Extended => credit.into(),
        }
    }

    /// Whether an ED may be acknowledged, which lets the next one come, while the user keeps `held` of them.
    pub fn takes_expedited(&self, credit: u16, held: u32) -> bool {
        held <= self.credit(credit)
    }

    pub fn space(&self) -> Space {
        Space::of(self.format)
    }

    /// Octets of the header of a DT.
    pub fn header_len(&self) -> usize {
        5 + if self.format == Format::Extended { 3 } else { 0 } + if self.checksum { 4 } else { 0 }
    }

    /// Octets of user data in a DT at most.
    pub fn most(&self) -> u32 {
        self.tpdu_size - self.header_len() as u32
    }
}

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    pub state: State,
    pub terms: Terms,
    pub peer: Peer,
    /// What it shares with the others to this peer.
    pub way: u32,
    /// A number that tells this connection from the connection that had its index before, of any peer.
    pub serial: u16,
    /// This end's reference; the remote one's is 0 until it is known.
    pub src_ref: u16,
    pub dst_ref: u16,
    pub sending: Sending,
    pub receiving: Receiving,
    pub timers: Timers,
    /// What is only needed while a connection is made or released.
    pub setup: Option<Box<Setup>>,
}

impl Connection {
    /// Format of its TPDUs, whether they have to carry a checksum, and octets of the longest. An answer to a CR may use
    /// what was not proposed.
    #[inline]
    pub fn checks(&self) -> (Format, bool, usize) {
        let Terms { format, checksum, tpdu_size, .. } = self.terms;
        (format, checksum && self.state != State::AwaitsConfirm, tpdu_size as usize)
    }

    /// Whether it shares a window with the others to its peer.
    #[inline]
    pub fn shares(&self, config: &Config) -> bool {
        config.congestion_control && self.terms.class == Class::Four
    }

    /// The other end has asked for it, and it is not open.
    pub fn is_pending(&self) -> bool {
        matches!(self.state, State::AwaitsResponse | State::AwaitsAcknowledge)
    }
}

/// What a CR, CC or DR says, so that it can be sent again.
#[derive(Debug)]
pub(super) struct Setup {
    /// The user's name for its request.
    pub tag: u32,
    pub details: Details,
    /// First credit that was given.
    pub credit: u8,
    pub size: SizeIn,
    /// Why it is released.
    pub reason: Reason,
    /// It was sent, which class 2 does once only.
    pub sent: bool,
}

/// The parameter that gives the longest TPDU: a CC uses the parameter of the CR, whose sender may not know the other
/// one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SizeIn {
    /// The parameter for units of 128 octets.
    Units,
    /// The parameter for powers of two.
    Powers,
    /// None: it is 128 octets.
    Nothing,
}

/// The direction away from here.
#[derive(Debug)]
pub(super) struct Sending {
    /// DTs of which none was sent, and how many.
    pub unsent: List,
    pub waiting: u32,
    /// The last DT that the user gave did not end its TSDU.
    pub begun: bool,
    /// DTs that were sent and not acknowledged, in order.
    pub retained: List,
    /// TPDU-NR of the next DT that is sent.
    pub next: u32,
    /// LWE: the first that is not acknowledged.
    pub lower_edge: u32,
    /// UWE: the first that may not be sent.
    pub upper_edge: u32,
    /// Subsequence of the AK that said so, and its credit.
    pub subsequence: u16,
    /// The last AK said that nothing may be sent.
    pub closed: bool,
    /// How often an AK has said nothing new while DTs were under way.
    pub duplicates: u8,
    pub timeout: Timeout,
    pub recovery: Recovery,
    /// Whether it waits for its turn; and how many octets it may send then.
    pub is_waiting: bool,
    pub deficit: u32,
    /// DTs that were marked, as the other end has said last.
    pub marks: u8,
    /// An ED that is not acknowledged: its frame.
    pub expedited: Option<u32>,
    /// EDs that wait for its acknowledgement, and how many.
    pub expedited_unsent: List,
    pub expedited_waiting: u32,
    /// ED-TPDU-NR of the next one.
    pub expedited_next: u32,
}

impl Sending {
    /// Nothing was sent, and no credit is given.
    pub const fn new() -> Sending {
        Sending {
            unsent: List::EMPTY,
            waiting: 0,
            begun: false,
            retained: List::EMPTY,
            next: 0,
            lower_edge: 0,
            upper_edge: 0,
            subsequence: 0,
            closed: false,
            duplicates: 0,
            timeout: Timeout::NEW,
            recovery: Recovery::NEW,
            is_waiting: false,
            deficit: 0,
            marks: 0,
            expedited: None,
            expedited_unsent: List::EMPTY,
            expedited_waiting: 0,
            expedited_next: 0,
        }
    }
}

/// The direction towards here.
#[derive(Debug)]
pub(super) struct Receiving {
    /// TPDU-NR that is expected next.
    pub expected: u32,
    /// The first that the other end may not send: what the last AK has said.
    pub granted: u32,
    /// The last AK would have granted more if there had been buffers.
    pub is_short: bool,
    /// It waited for buffers, and one is promised that its next AK grants.
    pub has_turn: bool,
    /// No DT has come for W: until one does, it asks for no more buffers than it was promised.
    pub is_idle: bool,
    /// It was idle while others waited, and the one DT that may come is promised no buffer.
    pub is_unpromised: bool,
    /// Which of the AKs with the same number the last one was, of those that say something else; 0 is the first.
    pub subsequence: u16,
    /// DTs that came too early, in order.
    pub early: List,
    /// Buffers that the user has not given back, and those of expedited data.
    pub held: u32,
    pub held_expedited: u32,
    /// DTs since the last AK.
    pub unacknowledged: u32,
    /// When one was last sent with a DT.
    pub carried: Time,
    /// An AK, and an EA for the last ED that was taken, are sent as soon as nothing else is to be done.
    pub owes: bool,
    pub owes_expedited: bool,
    /// Whether it is in the list of connections that owe an AK; it stays there when the AK has gone with a DT.
    pub is_owing: bool,
    /// The last AK said that nothing may be sent: the AK that opens the window again must not get lost.
    pub opening: Opening,
    /// What the next AK confirms: the AK that has opened this end's window.
    pub confirms: Option<Confirmation>,
    /// ED-TPDU-NR that is expected next.
    pub expected_expedited: u32,
    /// How many DTs were marked, if any was.
    pub marks: Option<u8>,
}

impl Receiving {
    /// Nothing has come, and so many DTs may; fewer than this end would take, if there are too few buffers.
    pub const fn new(credit: u32, is_short: bool) -> Receiving {
        Receiving {
            expected: 0,
            granted: credit,
            is_short,
            has_turn: false,
            is_idle: false,
            is_unpromised: false,
            subsequence: 0,
            early: List::EMPTY,
            held: 0,
            held_expedited: 0,
            unacknowledged: 0,
            carried: Time(0),
            owes: false,
            owes_expedited: false,
            is_owing: false,
            opening: Opening::None,
            confirms: None,
            expected_expedited: 0,
            marks: None,
        }
    }
}

/// An AK that opens a closed window, until it has shown to have come (X.224 §12.2.3.8.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    /// The window is open, or was never closed.
    None,
    /// It is closed.
    Closed,
    /// It was opened, and the AK that says so was sent so many times.
    Opened(u8),
}

/// When timers run out.
#[derive(Debug)]
pub(super) struct Timers {
    /// T1: something that was sent is not acknowledged.
    pub retransmission: Deadline,
    /// AL: an AK was put off.
    pub acknowledge: Deadline,
    /// W: the other end is to hear from here.
    pub window: Deadline,
    /// I: the other end was last heard of so long ago that it is given up.
    pub inactivity: Deadline,
}

impl Timers {
    pub const NONE: Timers = Timers {
        retransmission: Deadline::NONE,
        acknowledge: Deadline::NONE,
        window: Deadline::NONE,
        inactivity: Deadline::NONE,
    };

    pub fn earliest(&self) -> Deadline {
        self.retransmission.min(self.acknowledge).min(self.window).min(self.inactivity)
    }
}

/// When a timer runs out, if it runs; in 8 octets, of which a connection has four.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Deadline(Time);

impl Deadline {
    pub const NONE: Deadline = Deadline(Time(u64::MAX));

    #[inline]
    pub fn at(time: Time) -> Deadline {
        Deadline(time)
    }

    #[inline]
    pub fn is_none(self) -> bool {
        self == Deadline::NONE
    }

    pub fn time(self) -> Option<Time> {
        (!self.is_none()).then_some(self.0)
    }

    /// Whether it is over; then it does not run any more.
    pub fn take(&mut self, now: Time) -> bool {
        let over = !self.is_none() && self.0 <= now;
        if over {
            *self = Deadline::NONE;
        }
        over
    }

    /// Moves it, if it runs.
    #[inline]
    pub fn postpone(&mut self, to: Time) {
        if !self.is_none() {
            self.0 = to;
        }
    }
}
