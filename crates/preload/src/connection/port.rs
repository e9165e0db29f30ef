//! The channel of a connection, and the port by which calls use it.

use super::Connection;
use super::handle::{Handle, handle};
use super::inside::WAITING;
use super::state::Attachment;
use crate::guest::{family, settings, thread};
use underpass_segment::channel::Channel;
use underpass_segment::end::Stage;
use underpass_segment::switch::Port;
use underpass_segment::sync::{AcqRel, Acquire, Release};
use underpass_segment::{clock, kernel};

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
            return matches!(handle.attachment.load(Acquire), Attachment::Present | Attachment::Untouched);
        }
        let channel = family::with_meeting_surely(|meeting| meeting.channel(self.end, Some(self.fd))).flatten();
        if let Some(channel) = channel {
            // SAFETY: Working makes this thread the only writer, and nobody reads before Untouched.
            unsafe { (*handle.channel.get()).write(channel) };
        }
        handle.attachment.store(if channel.is_some() { Attachment::Untouched } else { Attachment::Absent }, Release);
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
