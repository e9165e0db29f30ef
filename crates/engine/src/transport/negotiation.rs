//! How a connection comes (X.224 §6.5, §6.6, §12.2.2), and what its ends agree on.

use super::connection::{Connection, Deadline, Receiving, Sending, Setup, SizeIn, State, Terms, Theirs, Timers};
use super::slots::{Is, grow};
use super::timeout::RoundTrip;
use super::{Config, Transport};
use crate::layer::Outbox;
use crate::service::{Cep, Details, Indication, Peer, Request, Time};
use crate::wire::Writer;
use crate::wire::tpdu::{
    AdditionalOptions, Class, Connect, DisconnectRequest, Format, Parameters, Reason, Tpdu, TpduSize,
};

/// Octets of a TSAP-ID that are taken; X.224 allows what fits into a CR.
const TSAP_MOST: usize = 32;
/// Octets of a CR at most (X.224 §13.3.1), and of a CC where no more than that was negotiated.
const CR_MOST: usize = 128;
const MS: u64 = 1_000_000;

impl Transport {
    pub(super) fn connect_request(&mut self, tag: u32, to: Peer, details: Details, now: Time, out: &mut Outbox) {
        let fits = details.calling.len() <= TSAP_MOST
            && details.called.len() <= TSAP_MOST
            && details.user_data.len() <= Connect::MOST;
        if !fits {
            return out.up(Indication::Refused { tag, reason: Reason::HEADER_LENGTH });
        }
        let terms = self.proposal(details.expedited);
        let Some(index) = self.open(to, terms, State::AwaitsConfirm, tag, details) else {
            return out.up(Indication::Refused { tag, reason: Reason::REFERENCE_OVERFLOW });
        };
        self.send_setup(index, now, out);
    }

    /// What this entity would like best.
    fn proposal(&self, expedited: bool) -> Terms {
        let config = &self.config;
        Terms {
            class: config.class,
            format: if config.extended { Format::Extended } else { Format::Normal },
            checksum: config.checksum && config.class == Class::Four,
            tpdu_size: config.tpdu_size,
            selective: config.selective && config.class == Class::Four,
            roa: config.roa && config.class == Class::Four,
            marks: config.marks && config.congestion_control && config.class == Class::Four,
            expedited,
            theirs: Theirs::default(),
        }
    }

    fn open(&mut self, peer: Peer, terms: Terms, state: State, tag: u32, details: Details) -> Option<u32> {
        let index = self.vacant.last().copied().unwrap_or(self.connections.len() as u32);
        let src_ref = self.references.take(peer, index)?;
        let wanted = self.config.credit.min(15);
        let credit = self.promises.give(wanted.into());
        self.serial = self.serial.wrapping_add(1);
        if credit < wanted.into() {
            self.promises.is_short((index, self.serial));
        }
        let connection = Connection {
            state,
            terms,
            peer,
            way: self.ways.to(peer),
            serial: self.serial,
            src_ref,
            dst_ref: 0,
            sending: Sending::new(),
            receiving: Receiving::new(credit, credit < wanted.into()),
            timers: Timers::NONE,
            setup: Some(Box::new(Setup {
                tag,
                details,
                credit: credit as u8,
                size: SizeIn::Units,
                reason: Reason::NORMAL,
                sent: false,
            })),
        };
        if self.vacant.pop().is_some() {
            self.connections[index as usize] = Some(connection);
        } else {
            grow(&mut self.connections);
            self.connections.push(Some(connection));
            self.wheel.reach(index);
        }
        Some(index)
    }

    /// Sends the CR, CC or DR that the connection's state asks for, and waits T1 for the answer.
    pub(super) fn send_setup(&mut self, index: u32, now: Time, out: &mut Outbox) {
        let Transport { connections, slots, config, arena, pool, counters, wheel, .. } = self;
        let Some(connection) = connections[index as usize].as_mut() else { return };
        let Some(setup) = connection.setup.as_deref() else { return };
        let deadline = now.after(connection.sending.timeout.for_setup(&config.times));
        connection.timers.retransmission = Deadline::at(deadline);
        wheel.set(index, deadline);
        if connection.terms.class == Class::Two && setup.sent {
            // The network delivers it.
            return;
        }
        let Some(mut buffer) = pool.take() else {
            counters.no_buffer += 1;
            return;
        };
        let Some(setup) = connection.setup.as_deref() else { return pool.put(buffer) };
        let format = connection.terms.format;
        let mut emit = |is_brief| {
            let mut to = Writer::new(arena.room(&mut buffer));
            setup_tpdu(connection, setup, config, is_brief).emit(format, &[], &mut to).map(|()| to.len())
        };
        let len = emit(false).ok().filter(|len| *len <= CR_MOST).map_or_else(|| emit(true), Ok);
        let Ok(len) = len else { return pool.put(buffer) };
        arena.fill(&mut buffer, len);
        slots.at(buffer.frame()).is = Is::Control;
        out.down(Request::Unitdata { to: connection.peer, buffer });
        if let Some(setup) = connection.setup.as_deref_mut() {
            setup.sent = true;
        }
        if connection.terms.class == Class::Two {
            // And nothing will show that it came but data, some time.
            self.opened(index, now, out);
        }
    }

    /// T1 while a connection is made or released.
    pub(super) fn setup_ran_out(&mut self, index: u32, now: Time, out: &mut Outbox) {
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        let timeout = &mut connection.sending.timeout;
        timeout.attempts += 1;
        if timeout.attempts < self.config.times.n {
            return self.send_setup(index, now, out);
        }
        self.give_up(index, now, out);
    }

    pub(super) fn connect_response(&mut self, cep: Cep, user_data: Vec<u8>, now: Time, out: &mut Outbox) {
        let Some(connection) = self.connection(cep) else { return };
        if connection.state != State::AwaitsResponse || user_data.len() > Connect::MOST {
            return;
        }
        connection.state = State::AwaitsAcknowledge;
        if let Some(setup) = connection.setup.as_deref_mut() {
            setup.details.user_data = user_data;
        }
        self.send_setup(cep.0, now, out);
    }

    /// Any TPDU but those of a connection that is open.
    pub(super) fn other(&mut self, from: Peer, tpdu: &Tpdu<'_>, index: Option<u32>, now: Time, out: &mut Outbox) {
        match (tpdu, index) {
            (Tpdu::Cr(cr), _) => self.connect_indication(from, cr, now, out),
            (Tpdu::Cc(cc), Some(index)) => self.connect_confirm(index, cc, now, out),
            (Tpdu::Cc(cc), None) => {
                self.counters.unknown_reference += 1;
                self.refuse(from, cc.src_ref, cc.dst_ref, Reason::MISMATCHED_REFERENCES, now, out);
            }
            (Tpdu::Dr(dr), index) => self.disconnect_indication(from, index, dr, now, out),
            (Tpdu::Dc(dc), Some(index)) => self.released(index, dc, now),
            (Tpdu::Er(_), Some(index)) => self.rejected(index, now, out),
            (_, None) => self.counters.unknown_reference += 1,
            _ => self.counters.unexpected += 1,
        }
    }

    fn connect_indication(&mut self, from: Peer, cr: &Connect<'_>, now: Time, out: &mut Outbox) {
        // A duplicate is the same remote reference of the same peer (§12.2.2.2).
        if let Some(&known) = self.requested.get(&(from, cr.src_ref)) {
            if self.connections[known as usize].as_ref().is_some_and(|it| it.state == State::AwaitsAcknowledge) {
                self.send_setup(known, now, out);
            }
            return;
        }
        // A CR that proposes class 4 must have a checksum, whatever it proposes about checksums (§6.17.3).
        if cr.dst_ref != 0 || cr.class == Class::Four && !cr.checksum {
            self.counters.unexpected += 1;
            return;
        }
        let mine = self.proposal(false);
        let options = cr.parameters.options();
        let most = self.config.tpdu_size;
        let asked = cr.parameters.longest_tpdu();
        let (size, size_in) = match (cr.parameters.preferred_size, cr.parameters.tpdu_size) {
            (Some(_), _) => (asked.min(most), SizeIn::Units),
            (None, Some(_)) => (1 << asked.min(most).ilog2(), SizeIn::Powers),
            (None, None) => (asked, SizeIn::Nothing),
        };
        // Valid answers to a preferred class are the same or a lower one (§6.5.3, table 3), which the network has to
        // allow. Class 3 may be answered with class 2.
        let class = mine.class;
        if cr.class < class || cr.src_ref == 0 || size < 128 {
            return self.refuse(from, cr.src_ref, 0, Reason::NEGOTIATION_FAILED, now, out);
        }
        // The CC says them again, and has no room for more.
        if [cr.parameters.calling, cr.parameters.called].iter().flatten().any(|it| it.len() > TSAP_MOST) {
            return self.refuse(from, cr.src_ref, 0, Reason::HEADER_LENGTH, now, out);
        }
        if self.pending >= self.config.pending || self.references.pending(from) >= self.config.pending.div_ceil(2) {
            return self.refuse(from, cr.src_ref, 0, Reason::REMOTE_CONGESTION, now, out);
        }
        let four = class == Class::Four;
        let terms = Terms {
            class,
            format: if cr.extended && self.config.extended { Format::Extended } else { Format::Normal },
            // Done without only if both want that.
            checksum: four && (mine.checksum || !options.has(AdditionalOptions::NO_CHECKSUM)),
            tpdu_size: size,
            selective: four && mine.selective && options.has(AdditionalOptions::SELECTIVE),
            roa: four && mine.roa && options.has(AdditionalOptions::ROA),
            marks: four && mine.marks && options.has(AdditionalOptions::MARKS),
            expedited: options.has(AdditionalOptions::EXPEDITED),
            theirs: Theirs::of(&cr.parameters, self.config.times.w),
        };
        let details = Details {
            calling: cr.parameters.calling.unwrap_or_default().to_vec(),
            called: cr.parameters.called.unwrap_or_default().to_vec(),
            expedited: terms.expedited,
            user_data: cr.user_data.to_vec(),
        };
        let indicated = Box::new(details.clone());
        let Some(index) = self.open(from, terms, State::AwaitsResponse, 0, details) else {
            return self.refuse(from, cr.src_ref, 0, Reason::REFERENCE_OVERFLOW, now, out);
        };
        self.pending += 1;
        self.references.asked(from);
        if let Some(connection) = self.connections[index as usize].as_mut() {
            connection.dst_ref = cr.src_ref;
            connection.sending.upper_edge = u32::from(cr.credit);
            connection.setup.iter_mut().for_each(|it| it.size = size_in);
        }
        self.requested.insert((from, cr.src_ref), index);
        out.up(Indication::Connect { cep: Cep(index), from, details: indicated, most: terms.most() });
    }

    fn connect_confirm(&mut self, index: u32, cc: &Connect<'_>, now: Time, out: &mut Outbox) {
        let config = self.config;
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        if connection.state == State::Closing && connection.dst_ref == 0 && cc.src_ref != 0 {
            // It has crossed the DR, which could not name the other end's reference. The next one does: the other end
            // of class 2 is open by now, and finds its connection by that alone.
            connection.dst_ref = cc.src_ref;
            connection.setup.iter_mut().for_each(|it| it.sent = false);
            return self.send_setup(index, now, out);
        }
        if connection.state != State::AwaitsConfirm {
            if cc.src_ref != connection.dst_ref {
                self.counters.unexpected += 1;
                return;
            }
            // It comes again since nothing has shown that it came.
            return self.owe(index);
        }
        let (mine, options) = (connection.terms, cc.parameters.options());
        if cc.class == Class::Four && !options.has(AdditionalOptions::NO_CHECKSUM) && !cc.checksum {
            self.counters.corrupt += 1;
            return;
        }
        let size = cc.parameters.longest_tpdu();
        let is_allowed = cc.class == mine.class
            && !cc.no_flow_control
            && cc.src_ref != 0
            && (128..=config.tpdu_size).contains(&size)
            && (!cc.extended || config.extended)
            // Done without only if both want that.
            && !(mine.checksum && options.has(AdditionalOptions::NO_CHECKSUM));
        connection.dst_ref = cc.src_ref;
        let four = cc.class == Class::Four;
        if !is_allowed {
            let tag = connection.setup.as_deref().map_or(0, |it| it.tag);
            // Only if neither wants a checksum the DR goes without.
            connection.terms.checksum = four && (mine.checksum || !options.has(AdditionalOptions::NO_CHECKSUM));
            self.counters.refused += 1;
            // Until it is confirmed: the other end of class 2 is open, and would not ask again.
            self.disconnect_request(Cep(index), Reason::NEGOTIATION_FAILED, now, out);
            return out.up(Indication::Refused { tag, reason: Reason::NEGOTIATION_FAILED });
        }
        connection.terms = Terms {
            class: cc.class,
            format: if cc.extended { Format::Extended } else { Format::Normal },
            checksum: four && !options.has(AdditionalOptions::NO_CHECKSUM),
            tpdu_size: size,
            selective: four && mine.selective && options.has(AdditionalOptions::SELECTIVE),
            roa: four && mine.roa && options.has(AdditionalOptions::ROA),
            marks: four && mine.marks && options.has(AdditionalOptions::MARKS),
            expedited: mine.expedited && options.has(AdditionalOptions::EXPEDITED),
            theirs: Theirs::of(&cc.parameters, config.times.w),
        };
        connection.state = State::Open;
        connection.sending.upper_edge = u32::from(cc.credit);
        connection.timers.retransmission = Deadline::NONE;
        let most = connection.terms.most();
        let tag = connection.setup.take().map_or(0, |it| it.tag);
        self.begin(index, now);
        out.up(Indication::Confirm { tag, cep: Cep(index), most, user_data: cc.user_data.to_vec() });
        // At once: the other end is open only then.
        self.owe(index);
    }

    /// The connection is open from now on.
    fn begin(&mut self, index: u32, now: Time) {
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        connection.sending.timeout.open();
        if connection.terms.class == Class::Four {
            let Transport { config, wheel, ways, .. } = self;
            if connection.shares(config) {
                let others = ways.get(connection.way).round_trip();
                connection.sending.timeout.round_trip = RoundTrip::as_others(others);
            }
            let window = now.after(connection.terms.window_time(config.times.w));
            connection.timers.window = Deadline::at(window);
            connection.timers.inactivity = Deadline::at(now.after(config.times.i));
            wheel.set(index, window);
        }
    }

    /// A DT, AK, ED or EA has come: the CC has arrived.
    pub(super) fn opened(&mut self, index: u32, now: Time, out: &mut Outbox) {
        let Some(connection) = self.connections[index as usize].as_mut() else { return };
        if connection.state != State::AwaitsAcknowledge {
            return;
        }
        connection.state = State::Open;
        connection.timers.retransmission = Deadline::NONE;
        connection.setup = None;
        let peer = connection.peer;
        self.settled(peer);
        self.begin(index, now);
        // A larger window than four bits can say.
        self.owe(index);
        self.send_expedited(index, now, out);
        self.send_data(index, now, out);
    }

    pub(super) fn refuse(&mut self, to: Peer, dst_ref: u16, src_ref: u16, reason: Reason, now: Time, out: &mut Outbox) {
        self.counters.refused += 1;
        let checksum = self.config.checksum;
        let dr = DisconnectRequest { dst_ref, src_ref, reason, checksum, additional: None, user_data: &[] };
        self.answer(to, &Tpdu::Dr(dr), now, out);
    }

    /// Answers what belongs to no connection, if that was not done too often.
    pub(super) fn answer(&mut self, to: Peer, tpdu: &Tpdu<'_>, now: Time, out: &mut Outbox) {
        if self.answers.take(now) {
            self.counters.answers += 1;
            self.send_control(to, tpdu, Format::Normal, out);
        } else {
            self.counters.answers_left_out += 1;
        }
    }

    /// Whether there was a buffer for it.
    pub(super) fn send_control(&mut self, to: Peer, tpdu: &Tpdu<'_>, format: Format, out: &mut Outbox) -> bool {
        let Some(mut buffer) = self.pool.take() else {
            self.counters.no_buffer += 1;
            return false;
        };
        let mut writer = Writer::new(self.arena.room(&mut buffer));
        let len = tpdu.emit(format, &[], &mut writer).map(|()| writer.len());
        let Ok(len) = len else { unreachable!("a frame has room for any header") };
        self.arena.fill(&mut buffer, len);
        self.slots.at(buffer.frame()).is = Is::Control;
        out.down(Request::Unitdata { to, buffer });
        true
    }
}

/// The CR, CC or DR that the connection's state asks for; a brief one leaves out what the other end can do without.
fn setup_tpdu<'a>(connection: &Connection, setup: &'a Setup, config: &Config, is_brief: bool) -> Tpdu<'a> {
    let Connection { terms, dst_ref, src_ref, state, .. } = *connection;
    if state == State::Closing {
        let (reason, checksum) = (setup.reason, terms.checksum);
        let dr = DisconnectRequest { dst_ref, src_ref, reason, checksum, additional: None, user_data: &[] };
        return Tpdu::Dr(dr);
    }
    let is_request = state == State::AwaitsConfirm;
    let options = AdditionalOptions(
        if terms.expedited { AdditionalOptions::EXPEDITED } else { 0 }
            | if terms.checksum { 0 } else { AdditionalOptions::NO_CHECKSUM }
            | if terms.selective { AdditionalOptions::SELECTIVE } else { 0 }
            | if terms.roa { AdditionalOptions::ROA } else { 0 }
            | if terms.marks { AdditionalOptions::MARKS } else { 0 },
    );
    // A CR says it in powers of two as well: an entity that does not know F0 would take it for 128 octets (X.224
    // §13.3.4).
    let power = 1 << terms.tpdu_size.min(8192).ilog2();
    let says_power = setup.size == SizeIn::Powers || is_request && !is_brief;
    let parameters = Parameters {
        tpdu_size: TpduSize::new(power).filter(|_| says_power),
        preferred_size: Some(terms.tpdu_size / 128).filter(|_| setup.size == SizeIn::Units),
        calling: Some(&setup.details.calling[..]).filter(|it| !it.is_empty()),
        called: Some(&setup.details.called[..]).filter(|it| !it.is_empty()),
        version: is_request.then_some(1),
        options: Some(options),
        // 0 is less than half a millisecond.
        acknowledge_time: Some(((config.times.al + MS / 2) / MS).try_into().unwrap_or(u16::MAX)).filter(|_| !is_brief),
        inactivity_time: Some(u32::try_from(config.times.i / MS).unwrap_or(u32::MAX)),
        ..Parameters::default()
    };
    let connect = Connect {
        credit: setup.credit,
        dst_ref,
        src_ref,
        class: terms.class,
        extended: terms.format == Format::Extended,
        no_flow_control: false,
        // A CR that proposes class 4 has one even where it proposes to do without (X.224 §6.17.3).
        checksum: if is_request { terms.class == Class::Four } else { terms.checksum },
        parameters,
        user_data: &setup.details.user_data,
    };
    if is_request { Tpdu::Cr(connect) } else { Tpdu::Cc(connect) }
}
