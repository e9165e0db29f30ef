//! A kernel that is older, was built without something, or keeps it for others: each refusal names its remedy, and with
//! a free choice the next driver comes, with the reason. The refusals are a seccomp filter's, in a thread of its own.

use super::support::{End, cable, frame, inside};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, apply_filter,
};
use std::net::UdpSocket;
use std::thread;
use underpass_link::Link;
use underpass_link::arena::{Arena, Geometry, Pages};
use underpass_link::driver::Driver;
use underpass_link::error::OpenError;
use underpass_link::filter::Filter;
use underpass_link::packet::Packet;
use underpass_link::rig::{Cable, INTERFACE, Namespace};
use underpass_link::xdp::{BusyPoll, Config, Xdp};

const GEOMETRY: Geometry = Geometry { frames: 64, frame_size: 2048, headroom: 128 };
/// Commands of bpf(2), and options of AF_XDP and of all sockets, by their numbers.
const MAP_CREATE: u64 = 0;
const PROG_LOAD: u64 = 5;
const LINK_CREATE: u64 = 28;
const UMEM_REG: u64 = 4;

/// A system call that is refused: its number, which of its arguments has to have which value, and the error.
#[derive(Clone, Copy)]
pub(super) struct Refusal {
    pub call: i64,
    pub argument: Option<(u8, u64)>,
    pub errno: i32,
}

impl Refusal {
    /// From here on, in this thread.
    pub fn apply(self) {
        let condition = |(index, value)| {
            SeccompCondition::new(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value).expect("an argument")
        };
        let rules = self.argument.map(condition).map(|it| SeccompRule::new(vec![it]).expect("a rule"));
        let action = SeccompAction::Errno(self.errno as u32);
        let arch = std::env::consts::ARCH.try_into().expect("an architecture that has seccomp filters");
        let rules = [(self.call, rules.into_iter().collect())].into();
        let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch).expect("a filter");
        let program: seccompiler::BpfProgram = filter.try_into().expect("a program");
        apply_filter(&program).expect("who is root may");
    }
}

/// Opens the interface while the kernel refuses this call.
fn open(
    namespace: &Namespace,
    driver: Driver,
    refusal: Option<Refusal>,
) -> Result<(String, Option<OpenError>), OpenError> {
    let config = Config { busy_poll: Some(BusyPoll { budget: 64 }), ..Config::default() };
    let (arena, _) = Arena::new(GEOMETRY);
    inside(namespace, || {
        if let Some(refusal) = refusal {
            refusal.apply();
        }
        driver.open(INTERFACE, &arena, &config).map(|opened| (opened.mode, opened.instead))
    })
}

#[test]
fn each_refusal_names_its_remedy_and_the_next_driver_comes() {
    let Some(cable) = cable(1500) else { return };
    let here = &cable.ends[0];
    match open(here, Driver::Xdp, None) {
        Ok((mode, _)) => assert_eq!(mode, "native XDP, copy, busy polling"),
        Err(error) => return println!("SKIPPED: {error}"),
    }
    let bpf = |command, errno| Refusal { call: libc::SYS_bpf, argument: Some((0, command)), errno };
    let socket = |errno| Refusal { call: libc::SYS_socket, argument: Some((0, libc::AF_XDP as u64)), errno };
    let option = |option, errno| Refusal { call: libc::SYS_setsockopt, argument: Some((2, option)), errno };
    let any = |call, errno| Refusal { call, argument: None, errno };
    for (refusal, remedy) in [
        (any(libc::SYS_bpf, libc::EPERM), "setcap cap_net_raw,cap_net_admin,cap_bpf+ep"),
        (any(libc::SYS_bpf, libc::ENOSYS), "this kernel has no bpf(2); Linux 5.9 has it"),
        (bpf(MAP_CREATE, libc::EINVAL), "no maps of AF_XDP sockets (CONFIG_XDP_SOCKETS); Linux 4.18 has it"),
        (bpf(PROG_LOAD, libc::EPERM), "loading an XDP program is not permitted; run as root"),
        (bpf(LINK_CREATE, libc::EINVAL), "no links of XDP programs; Linux 5.9 has it"),
        (bpf(LINK_CREATE, libc::EOPNOTSUPP), "another mode, or the driver af_packet, does without"),
        (bpf(LINK_CREATE, libc::EBUSY), "xdp off"),
        (socket(libc::EPERM), "opening an AF_XDP socket is not permitted; run as root"),
        (socket(libc::EAFNOSUPPORT), "no AF_XDP sockets (CONFIG_XDP_SOCKETS); Linux 4.18 has it"),
        (option(UMEM_REG, libc::ENOBUFS), "raise `ulimit -l`"),
        (option(libc::SO_PREFER_BUSY_POLL as u64, libc::ENOPROTOOPT), "Linux 5.11 has it"),
        (option(libc::SO_PREFER_BUSY_POLL as u64, libc::EPERM), "setting a socket to busy polling is not permitted"),
        (any(libc::SYS_bind, libc::EBUSY), "queue 0 of up0 is taken by another socket"),
    ] {
        let error = open(here, Driver::Xdp, Some(refusal)).expect_err(remedy).to_string();
        assert!(error.contains(remedy), "{error}\nand not: {remedy}");
        let (mode, instead) = match open(here, Driver::Auto, Some(refusal)) {
            Ok(opened) => opened,
            // Without bind(2) there is no packet socket either.
            Err(error) if refusal.call == libc::SYS_bind => {
                assert!(error.to_string().starts_with("binding a packet socket"), "{error}");
                continue;
            }
            Err(error) => panic!("{error}"),
        };
        assert_eq!((mode.as_str(), instead.expect("a reason").to_string()), ("packet socket", error));
    }
    let (mode, instead) = open(here, Driver::Auto, None).expect("a refusal holds for its thread alone");
    assert_eq!((mode.as_str(), instead.is_none()), ("native XDP, copy, busy polling", true));
}

/// Before Linux 4.20 a packet socket is shown what this host sends, whatever it asks for.
#[test]
fn what_this_host_sends_is_none_of_a_packet_sockets_on_any_kernel() {
    let Some(cable) = cable(1500) else { return };
    let [here, there] = &cable.ends;
    let (ignore, errno) = (libc::PACKET_IGNORE_OUTGOING as u64, libc::ENOPROTOOPT);
    let refusal = Refusal { call: libc::SYS_setsockopt, argument: Some((2, ignore)), errno };
    let ip = Filter::EtherType(libc::ETH_P_IP as u16);
    let (arena, free) = Arena::new(GEOMETRY);
    let opened = inside(here, || {
        refusal.apply();
        Packet::open(INTERFACE, &arena, ip, Config::default().guarantees)
    });
    let mut sender = End::new(arena, free, opened.expect("it does without"));
    let mut peer = End::raw(there, GEOMETRY, ip).expect("root may open it");
    sender.listen(32);
    peer.listen(32);
    // A socket listens, so that the kernel does not answer that the port is closed.
    let [from, _to] = [(here, "10.9.0.1:23004"), (there, "10.9.0.2:23004")]
        .map(|(end, address)| inside(end, || UdpSocket::bind(address)).expect("a namespace of our own"));
    for number in 0..100u8 {
        from.send_to(&[number; 64], "10.9.0.2:23004").expect("the cable is up");
        assert!(peer.expect().ends_with(&[number; 64]));
    }
    assert_eq!(sender.receive(), None);
    assert_eq!((sender.link.counters().received, peer.link.counters().received), (0, 100));
}

#[test]
fn with_a_right_to_packet_sockets_alone_one_is_opened_and_without_any_it_is_said() {
    let Some(cable) = cable(1500) else { return };
    let (arena, _) = Arena::new(GEOMETRY);
    let open = |capabilities| {
        inside(&cable.ends[0], || {
            let none = CapabilitySet::empty();
            let sets = CapabilitySets { effective: capabilities, permitted: capabilities, inheritable: none };
            set_capabilities(None, sets).expect("they become fewer");
            Driver::Auto.open(INTERFACE, &arena, &Config::default())
        })
    };
    let opened = open(CapabilitySet::NET_RAW).expect("a packet socket needs no more");
    assert_eq!(opened.mode, "packet socket");
    let reason = opened.instead.expect("a reason").to_string();
    assert!(reason.starts_with("loading an XDP program is not permitted; run as root, or"), "{reason}");
    let error = open(CapabilitySet::empty()).err().expect("nothing is left").to_string();
    assert!(error.starts_with("opening a packet socket is not permitted; run as root, or"), "{error}");
    let lay = |capabilities| {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: capabilities, permitted: capabilities, inheritable: none };
        let lay = || set_capabilities(None, sets).map(|()| Cable::new(1500).unwrap_err().to_string());
        thread::scope(|scope| scope.spawn(lay).join()).expect("it does not panic").expect("they become fewer")
    };
    let refusals = [CapabilitySet::NET_ADMIN, CapabilitySet::SYS_ADMIN].map(lay);
    let remedy = "run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN";
    assert_eq!(
        refusals[0],
        format!("a network namespace cannot be made (Operation not permitted (os error 1)); {remedy}")
    );
    assert_eq!(refusals[1], format!("making up0 is not permitted; {remedy}"));
}

/// A packet that the kernel refuses for an unknown reason is refused, and does not delay those behind it; a packet for
/// which the kernel has no room is kept.
#[test]
fn a_packet_that_the_kernel_does_not_take_keeps_no_other() {
    let Some(cable) = cable(1500) else { return };
    for (errno, refused) in [(libc::EIO, 2), (libc::EPERM, 2), (libc::ENOBUFS, 0)] {
        let (refusals, back, fault) = inside(&cable.ends[0], || {
            let (arena, free) = Arena::new(GEOMETRY);
            let guarantees = Config::default().guarantees;
            let link = Packet::open(INTERFACE, &arena, Filter::Llc, guarantees).expect("root may open it");
            let (mut end, all) = (End::new(arena, free, link), GEOMETRY.frames as usize);
            Refusal { call: libc::SYS_sendmmsg, argument: None, errno }.apply();
            assert!(end.send(&frame(1, 100), 100) && end.send(&frame(2, 100), 50));
            end.reclaim();
            (end.link.counters().refused, all - end.free.len(), end.link.check().is_err())
        });
        let kept = if refused == 0 { 3 } else { 0 };
        assert_eq!((refusals, back, fault), (refused, kept, refused > 0), "error {errno}");
    }
}

/// Huge pages that are reserved, and that a control group may not have all the same.
#[test]
fn an_arena_lies_in_ordinary_pages_where_huge_ones_may_not_be_used() {
    const POPULATE_WRITE: u64 = 23;
    let large = || Arena::new(Geometry { frames: 1024, frame_size: 2048, headroom: 0 }).0.pages();
    if large() == Pages::Ordinary {
        return println!("SKIPPED: no huge pages are reserved here; as root, `sysctl vm.nr_hugepages=16`");
    }
    let pages = thread::spawn(move || {
        Refusal { call: libc::SYS_madvise, argument: Some((2, POPULATE_WRITE)), errno: libc::EFAULT }.apply();
        large()
    });
    assert_eq!(pages.join().expect("no signal ends it"), Pages::Ordinary);
}

/// With `nohz_full` the kernel has no barrier of its own for it.
#[test]
fn a_link_gives_all_buffers_back_without_membarrier() {
    let Some(cable) = cable(1500) else { return };
    let back = inside(&cable.ends[0], || {
        let (arena, free) = Arena::new(GEOMETRY);
        let mut link = match Xdp::open(INTERFACE, &arena, &Config::default()) {
            Ok(link) => link,
            Err(error) => {
                println!("SKIPPED: {error}");
                return GEOMETRY.frames as usize;
            }
        };
        free.into_iter().for_each(|buffer| link.fill(buffer));
        Refusal { call: libc::SYS_membarrier, argument: None, errno: libc::EINVAL }.apply();
        Box::new(link).close().all().len()
    });
    assert_eq!(back, GEOMETRY.frames as usize);
}
