//! The channel of a connection, and the port by which calls use it.

use super::Connection;
use super::handle::{Handle, handle};
use super::inside::WAITING;
use super::lines;
use super::state::Attachment;
use crate::guest::{family, settings, thread};
use underpass_segment::channel::Channel;
use underpass_segment::end::Stage;
use underpass_segment::switch::Port;
use underpass_segment::sync::{AcqRel, Acquire, Release};
use underpass_segment::{clock, kernel, of_each_thread};

of_each_thread! {
    /// 1 + the index of the connection whose channel this thread attaches in a child of vfork; 0: none.
    static ATTACHES_IN_CHILD: u32 = 0;
}

/// A child of vfork has executed a program, or ended. If it was killed while it attached a channel, other threads wait
/// for that no longer.
pub fn after_vfork() {
    if let index @ 1.. = ATTACHES_IN_CHILD.get()
        && let Some(handle) = handle(index - 1)
    {
        ATTACHES_IN_CHILD.set(0);
        let _ = handle.attachment.compare_exchange(Attachment::Working, Attachment::Absent, AcqRel, Acquire);
    }
}

impl Connection {
    /// The channel's port, for a joined end.
    #[inline(always)]
    pub fn port(&self) -> Option<Port<'static>> {
        let handle = handle(self.index)?;
        if !self.attached(handle) {
            return None;
        }
        // SAFETY: written before Untouched was stored; not written again while the handle is in use.
        let channel = unsafe { (*handle.channel.get()).assume_init() };
        Some(self.port_with(channel, thread::number()))
    }

    /// The port of a joined end whose channel this process has attached already.
    pub fn attached_port(&self) -> Option<Port<'static>> {
        if handle(self.index)?.is_attached() { self.joined_port() } else { None }
    }

    #[inline(always)]
    /// Whether the channel is there by now.
    pub fn attached(&self, handle: &Handle) -> bool {
        match handle.attachment.load(Acquire) {
            Attachment::Present | Attachment::Untouched => true,
            Attachment::Confined => false,
            // With signals held back: a signal handler that interrupted this and came here would wait for ever.
            _ => kernel::undisturbed(|| self.attach(handle)),
        }
    }

    #[cold]
    fn attach(&self, handle: &Handle) -> bool {
        if handle.attachment.compare_exchange(Attachment::Absent, Attachment::Working, AcqRel, Acquire).is_err() {
            while handle.attachment.load(Acquire) == Attachment::Working {
                clock::give_way();
            }
            return handle.is_attached();
        }
        if thread::is_vfork_child() {
            ATTACHES_IN_CHILD.set(1 + self.index);
        }
        let channel = family::with_meeting_surely(|meeting| meeting.channel(self.end, Some(self.fd))).flatten();
        if let Some(channel) = channel {
            // SAFETY: Working makes this thread the only writer, and nobody reads before Untouched.
            unsafe { (*handle.channel.get()).write(channel) };
        }
        handle.attachment.store(if channel.is_some() { Attachment::Untouched } else { Attachment::Absent }, Release);
        ATTACHES_IN_CHILD.set(0);
        if self.end.is_remote() {
            lines::note_remote();
        }
        channel.is_some()
    }

    #[inline(always)]
    pub fn port_with(&self, channel: Channel, me: u32) -> Port<'static> {
        Port {
            end: self.end,
            channel,
            fd: self.fd,
            keeps_socket: false,
            me,
            token: self.index,
            spin_us: settings::config().spin_us,
            doze_us: settings::config().doze_us,
            waiting: &WAITING,
        }
    }

    /// The port, if every read of the socket goes through it.
    #[inline]
    pub fn ready_port(&self) -> Option<Port<'static>> {
        if self.end.stage() != Stage::Joined || !self.end.read_gate.is_shut() {
            return None;
        }
        self.port()
    }

    pub fn joined_port(&self) -> Option<Port<'static>> {
        if self.end.stage() == Stage::Joined { self.port() } else { None }
    }

    /// The port of a joined end, even of a confined one. Its use makes system calls that the program did not make.
    pub fn port_even_confined(&self) -> Option<Port<'static>> {
        if self.end.stage() != Stage::Joined {
            return None;
        }
        self.port().or_else(|| Some(Port { me: thread::number(), ..self.confined_port()? }))
    }
}
