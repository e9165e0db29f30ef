//! One registration of a set.

use crate::guest::table;
use underpass_segment::clock::ticks;
use underpass_segment::end::End;
use underpass_segment::switch::Told;

/// End of a chain.
pub(super) const NONE: u32 = 0;

/// What reports the room for which the program asks. Zeroed memory is the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Room {
    /// The kernel; or the set, where a level-triggered registration asks for room and the ring is not full.
    Kernel,
    /// The set, which looks for room in the ring: a send was refused, and no room was reported since.
    Set,
    /// The set looks for room in the ring, and the kernel's registration does not ask for the kernel's own room
    /// meanwhile.
    SetAlone,
}

/// What a place for a registration holds. Zeroed memory is nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Holds {
    /// No registration, or a registration that the program has removed.
    Nothing,
    /// The registration of a socket of ours.
    Socket,
    /// The registration of a descriptor that is no socket of ours. It is kept for its data, which a socket of ours may
    /// share.
    Foreign,
}

/// What the kernel knows of a registration. Zeroed memory is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum InKernel {
    /// What the program has registered.
    Same,
    /// An older registration.
    Older,
    /// A registration that the program has removed.
    Removed,
}

/// What else is true of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    /// The kernel's registration asks for more, to wake a sleeper.
    pub(super) const KICKED: Flags = Flags(1);
    /// The set is counted among those that rely on the connection's waiting flag.
    pub(super) const RESTING: Flags = Flags(1 << 1);
    /// A one-shot registration that is used up.
    pub(super) const DISARMED: Flags = Flags(1 << 2);
    /// The socket is gone with its descriptor.
    pub(super) const ENDED: Flags = Flags(1 << 3);
    /// Made for another descriptor of the socket, which has been closed: no call can change it any more.
    pub(super) const ADOPTED: Flags = Flags(1 << 4);
    /// The socket is in the list of those that are looked at in user space.
    pub(super) const ACTIVE: Flags = Flags(1 << 5);
    /// Edge-triggered: the program has asked to be told of room, or a send was refused, and it was not told since.
    pub(super) const OWES_ROOM: Flags = Flags(1 << 6);

    /// Whether any of `flags` is up.
    #[inline]
    pub(super) fn has(self, flags: Flags) -> bool {
        self.0 & flags.0 != 0
    }

    /// Puts `flags` up or down; returns whether any of them was up.
    #[inline]
    pub(super) fn set(&mut self, flags: Flags, up: bool) -> bool {
        let before = *self;
        self.0 = self.0 & !flags.0 | if up { flags.0 } else { 0 };
        before.has(flags)
    }

    pub(super) const fn or(self, flags: Flags) -> Flags {
        Flags(self.0 | flags.0)
    }

    /// The flags among `flags` that are up.
    pub(super) fn only(self, flags: Flags) -> Flags {
        Flags(self.0 & flags.0)
    }
}

/// One registration. Kept by descriptor number; zeroed memory is none.
#[derive(Clone, Copy)]
pub struct Item {
    /// Its descriptor plus 1; 0: a free place.
    pub(super) key: u32,
    /// As the program gave them.
    pub events: u32,
    /// As the program gave it.
    pub data: u64,
    /// What was reported (edge-triggered).
    pub told: Told,
    /// When there last were news, in ticks.
    pub last_news: u64,
    /// What reports room.
    pub room: Room,
    pub(super) holds: Holds,
    pub(super) in_kernel: InKernel,
    pub(super) flags: Flags,
    /// Next in the chain of those with the same data.
    pub(super) next: u32,
    /// The number's generation when it was registered.
    pub(super) generation: u64,
    /// Since when the kernel has had another registration, in ticks.
    pub(super) stale_since: u64,
}

impl Item {
    /// Whether any of `events` is to be reported now.
    pub fn wants(&self, events: u32) -> bool {
        self.is_live()
            && self.in_kernel != InKernel::Removed
            && !self.flags.has(Flags::DISARMED)
            && self.events & events != 0
    }

    /// Whether the program has removed it, and the kernel may not know.
    pub fn is_gone(&self) -> bool {
        self.in_kernel == InKernel::Removed
    }

    /// Whether the kernel has another registration than the program has made.
    pub fn is_stale(&self) -> bool {
        self.in_kernel != InKernel::Same
    }

    /// Whether the kernel has had an older registration for more than `ticks` at time `now`.
    pub fn is_stale_for(&self, ticks: u64, now: u64) -> bool {
        self.is_stale() && now.wrapping_sub(self.stale_since) > ticks
    }

    pub(super) fn is_live(&self) -> bool {
        self.holds != Holds::Nothing
    }

    pub(super) fn is_current(&self, fd: i32) -> bool {
        self.is_live() && self.generation == table::generation(fd)
    }

    pub(super) fn is_ours(&self, fd: i32) -> bool {
        self.is_ours_of(table::generation(fd))
    }

    pub(super) fn is_ours_of(&self, generation: u64) -> bool {
        self.holds == Holds::Socket && self.generation == generation
    }

    /// Its descriptor is about to be closed, and the socket with it.
    pub(super) fn set_ended(&mut self) {
        self.flags.set(Flags::ENDED, true);
    }

    /// See [`Item::told`].
    pub fn set_told(&mut self, told: Told) {
        self.told = told;
    }

    /// See [`Item::last_news`].
    pub fn set_last_news(&mut self, ticks: u64) {
        self.last_news = ticks;
    }

    /// Whether the set is counted among those that rely on the connection's waiting flag.
    pub fn is_resting(&self) -> bool {
        self.flags.has(Flags::RESTING)
    }

    /// See [`Item::is_resting`]; returns what it was.
    pub fn set_resting(&mut self, resting: bool) -> bool {
        self.flags.set(Flags::RESTING, resting)
    }

    /// The set does not rely on the waiting flag of `end`, the socket's, any more: it looks at the socket in user space
    /// again, or follows it no more.
    pub fn wake_up(&mut self, end: &End) {
        if self.set_resting(false) {
            end.reading.resting.remove();
        }
    }

    /// Whether the kernel's registration asks for more, to wake a sleeper.
    pub fn is_kicked(&self) -> bool {
        self.flags.has(Flags::KICKED)
    }

    /// See [`Item::is_kicked`].
    pub fn set_kicked(&mut self, kicked: bool) {
        self.flags.set(Flags::KICKED, kicked);
    }

    /// See [`Item::room`].
    pub fn set_room(&mut self, room: Room) {
        self.room = room;
    }

    /// Whether the program has still to be told that there is room, by an edge.
    pub fn owes_room(&self) -> bool {
        self.flags.has(Flags::OWES_ROOM)
    }

    /// See [`Item::owes_room`].
    pub fn set_owes_room(&mut self, owes: bool) {
        self.flags.set(Flags::OWES_ROOM, owes);
    }

    /// Made for another descriptor of the socket, which has been closed: the kernel does not let it be changed.
    pub fn is_adopted(&self) -> bool {
        self.flags.has(Flags::ADOPTED)
    }

    /// One-shot, and used up.
    pub fn is_disarmed(&self) -> bool {
        self.flags.has(Flags::DISARMED)
    }

    /// One-shot: used up, or armed again.
    pub fn set_disarmed(&mut self, disarmed: bool) {
        self.flags.set(Flags::DISARMED, disarmed);
    }

    /// The kernel is told of a change later. Whether it knew all before.
    pub(super) fn put_off(&mut self, now: InKernel) -> bool {
        let is_first = core::mem::replace(&mut self.in_kernel, now) == InKernel::Same;
        if is_first {
            self.stale_since = ticks();
        }
        is_first
    }

    /// A registration that has just been made.
    pub(super) fn of(fd: i32, events: u32, data: u64, foreign: bool) -> Item {
        Item {
            key: fd as u32 + 1,
            events,
            data,
            told: Told::default(),
            last_news: 0,
            room: Room::Kernel,
            holds: if foreign { Holds::Foreign } else { Holds::Socket },
            in_kernel: InKernel::Same,
            flags: Flags::OWES_ROOM,
            next: NONE,
            generation: table::generation(fd),
            stale_since: 0,
        }
    }

    /// The same registration under `heir`, another descriptor of the same socket.
    pub(super) fn kept_by(&self, heir: i32) -> Item {
        let disarmed = self.flags.only(Flags::DISARMED);
        let kept = Item::of(heir, self.events, self.data, self.holds == Holds::Foreign);
        Item { told: self.told, flags: kept.flags.or(Flags::ADOPTED).or(disarmed), ..kept }
    }

    /// There is no registration any more. The place stays the descriptor's.
    pub(super) fn empty(&mut self) {
        self.holds = Holds::Nothing;
        self.flags.set(Flags::ACTIVE, false);
    }
}
