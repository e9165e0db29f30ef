//! When a driver looks for what was transmitted: the adaptive algorithm of "Adaptive device driver for over-Gbps
//! links".
//!
//! *Event-driven*, each frame is dealt with by itself: the kernel is woken to send it, and it is reclaimed there and
//! then, as a driver does whose device interrupts for each finished transfer. *Lazy*, frames are sent together, and
//! what was sent before is reclaimed when the next are sent, and never otherwise. That is faster, and starves a sender
//! that has no frame left: nothing is sent, so nothing is reclaimed. *Adaptive* sends frames together as long as they
//! are plenty, and looks once more behind each transmission: over AF_XDP that costs a load, and a frame that was just
//! sent and can be used again is still in the processor's cache.

/// Which algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Completion {
    /// Each frame by itself.
    EventDriven,
    /// Only at the next transmission. For comparison: senders that wait for frames starve.
    Lazy,
    /// Together, but event-driven from when fewer than `low` frames are free until `high` are. Both numbers are given
    /// for the case that no frame is lent for reception, and shrink in proportion to the frames that are: frames that
    /// wait for packets are no sign that sending is slow.
    Adaptive {
        /// Frames.
        low: u32,
        /// Frames; not fewer.
        high: u32,
    },
}

impl Completion {
    /// Adaptive, with marks at an eighth and a quarter of so many frames.
    pub fn adaptive(frames: u32) -> Completion {
        Completion::Adaptive { low: frames / 8, high: frames / 4 }
    }
}

/// Frames of an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frames {
    /// How many there are.
    pub all: u32,
    /// Lent to the driver to receive into.
    pub receiving: u32,
    /// Lent to it to be sent.
    pub transmitting: u32,
}

/// The algorithm in its course.
#[derive(Debug)]
pub struct Pace {
    how: Completion,
    event_driven: bool,
    /// The caller has asked for what is done, and sent nothing since: if it asks again, it waits for a frame.
    asked: bool,
    switches: u64,
}

impl Pace {
    /// The pace before the first transmission.
    pub fn new(how: Completion) -> Pace {
        Pace { how, event_driven: how == Completion::EventDriven, asked: false, switches: 0 }
    }

    /// Another algorithm from here on.
    pub fn change(&mut self, how: Completion) {
        *self = Pace { switches: self.switches, ..Pace::new(how) };
    }

    /// Packets are about to be sent.
    pub fn sending(&mut self, frames: Frames) {
        self.asked = false;
        self.mark(frames);
    }

    /// Whether each frame is to be dealt with by itself.
    pub fn event_driven(&self) -> bool {
        self.event_driven
    }

    /// Whether to look for what is done behind a transmission.
    pub fn looks(&self) -> bool {
        self.how != Completion::Lazy
    }

    /// The caller asks for what is done: whether to look. Free frames may be kept elsewhere, by a protocol that retains
    /// them for example, so a caller that asks twice without sending counts as having none.
    pub fn asked(&mut self, frames: Frames) -> bool {
        self.mark(frames);
        let again = std::mem::replace(&mut self.asked, true);
        self.event_driven || (again && self.how != Completion::Lazy)
    }

    /// How often the algorithm was changed.
    pub fn switches(&self) -> u64 {
        self.switches
    }

    fn mark(&mut self, Frames { all, receiving, transmitting }: Frames) {
        let Completion::Adaptive { low, high } = self.how else { return };
        let mark = if self.event_driven { high } else { low };
        let to_send = all - receiving;
        // The free part of those to send is less than the mark's part of all.
        let event_driven = u64::from(to_send - transmitting) * u64::from(all) < u64::from(mark) * u64::from(to_send);
        self.switches += u64::from(event_driven != self.event_driven);
        self.event_driven = event_driven;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of a hundred frames, none of which is for reception.
    fn free(free: u32) -> Frames {
        Frames { all: 100, receiving: 0, transmitting: 100 - free }
    }

    /// However many frames receive, only the share of the other frames counts.
    #[test]
    fn frames_that_wait_for_packets_make_nothing_event_driven() {
        let adaptive = Completion::adaptive(1024);
        for receiving in [0, 512, 900, 1000] {
            let to_send = 1024 - receiving;
            let mut pace = Pace::new(adaptive);
            let ways = [0, to_send * 6 / 8, to_send * 15 / 16, to_send * 5 / 6, to_send / 2].map(|transmitting| {
                pace.sending(Frames { all: 1024, receiving, transmitting });
                pace.event_driven()
            });
            assert_eq!(ways, [false, false, true, true, false], "{receiving} receive");
        }
    }

    #[test]
    fn adaptive_goes_event_driven_below_the_low_mark_and_back_at_the_high_one() {
        let mut pace = Pace::new(Completion::Adaptive { low: 4, high: 8 });
        let ways: Vec<bool> = [10, 4, 3, 4, 7, 8, 7, 4, 0]
            .map(|free_now| {
                pace.sending(free(free_now));
                pace.event_driven()
            })
            .into();
        assert_eq!(ways, [false, false, true, true, true, false, false, false, true]);
        assert_eq!(pace.switches(), 3);
    }

    #[test]
    fn asking_again_without_sending_is_waiting() {
        let asks = |how| {
            let mut pace = Pace::new(how);
            pace.sending(free(100));
            [pace.asked(free(100)), pace.asked(free(100)), pace.asked(free(100))]
        };
        assert_eq!(asks(Completion::Adaptive { low: 4, high: 8 }), [false, true, true]);
        assert_eq!(asks(Completion::Lazy), [false, false, false]);
        assert_eq!(asks(Completion::EventDriven), [true, true, true]);
    }

    /// A device with so few frames, and a peer that stalls for any time: each algorithm against every pattern of stalls
    /// of this length. Lazy alone gets stuck in each in which a frame is not done by the time that the next is sent;
    /// the others never.
    #[test]
    fn lazy_alone_starves_and_adaptive_never_does() {
        const FRAMES: u32 = 3;
        const STEPS: u32 = 12;
        // A bit of `stalls` is a step at which the peer takes no frame; after the last step it takes all. Whether as
        // many frames went through as were given.
        let runs = |how, stalls: u32| {
            let (mut pace, mut free, mut sent, mut done, mut through) = (Pace::new(how), FRAMES, 0, 0, 0);
            let frames = |free| Frames { all: FRAMES, receiving: 0, transmitting: FRAMES - free };
            for step in 0..STEPS + 4 * FRAMES {
                if free > 0 {
                    // What `transmit` does: what is done comes back, one more goes.
                    (free, done) = (free + done, 0);
                    pace.sending(frames(free));
                    (free, sent) = (free - 1, sent + 1);
                }
                if stalls >> step & 1 == 0 || step >= STEPS {
                    (done, through, sent) = (done + sent, through + sent, 0);
                }
                if pace.asked(frames(free)) {
                    (free, done) = (free + done, 0);
                }
            }
            (through, free)
        };
        let adaptive = Completion::Adaptive { low: 1, high: 2 };
        let mut starved = 0;
        for stalls in 0..1 << STEPS {
            for how in [Completion::EventDriven, adaptive] {
                let (through, _) = runs(how, stalls);
                assert!(through >= 4 * FRAMES, "{how:?} with stalls {stalls:b}: {through}");
            }
            starved += u32::from(runs(Completion::Lazy, stalls) == (FRAMES, 0));
        }
        assert!(starved > 0);
        assert_eq!(
            runs(Completion::Lazy, 0b111),
            (FRAMES, 0),
            "all frames sent while the peer stalls, and none comes back"
        );
    }
}
