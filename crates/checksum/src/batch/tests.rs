//! The engine's rules, and what the shipped kernels compute, with a double of the driver that executes them
//! (`gpu::double`).
#![allow(unsafe_code, reason = "gives packet memory away")]

use super::costs::Costs;
use super::*;
use crate::gpu::{double, driver};
use crate::tests::test_octets;

const PAGE: usize = 4096;
const LAUNCH_FAILED: i32 = 719;

/// Packet memory of whole pages.
#[repr(C, align(4096))]
struct Area([u8; LEN]);

const LEN: usize = 20 * PAGE;

fn area() -> Box<Area> {
    filled(&test_octets(LEN))
}

fn filled(octets: &[u8]) -> Box<Area> {
    let mut area = Box::new(Area([0; _]));
    area.0.copy_from_slice(octets);
    area
}

fn limits(packets: usize) -> Limits {
    Limits { packets, octets: 1500, ..Limits::default() }
}

/// Both ways of using a GPU, the packets lying in `area`.
fn engines(area: &Area, algorithm: Algorithm, limits: Limits) -> [Engine; 2] {
    let gpu = Gpu::with(double::table()).unwrap();
    // SAFETY: the area outlives them, and nobody writes to it.
    let umem = unsafe { Engine::gpu_umem(&gpu, algorithm, limits, NonNull::from(&area.0)) };
    [Engine::gpu_staged(&gpu, algorithm, limits).unwrap(), umem.unwrap()]
}

/// Packets of all lengths to 1,500, at odd places too.
fn packets(area: &Area, count: usize) -> Vec<Packet<'_>> {
    let packet = |at: usize| {
        let (start, len) = (at * 131 % 60_000, at * 37 % 1501);
        let before = internet::Sum::from_value(at as u16);
        Packet { octets: &area.0[start..start + len], before, tag: at as u64 }
    };
    (0..count).map(packet).collect()
}

/// As `auto` would with a GPU for which batches of so many octets pay.
fn use_gpu_from(engine: &mut Engine, octets: usize) {
    let Way::Gpu(pipeline) = &mut engine.way else { panic!("no GPU") };
    let (gpu, cpu) = (Duration::from_micros(1), Duration::from_micros(2));
    assert!(pipeline.costs.get_or_insert_with(Costs::new).calibrate(octets, gpu, Duration::ZERO, cpu));
}

#[track_caller]
fn assert_all(verdicts: &[Verdict], packets: &[Packet<'_>], algorithm: Algorithm) {
    let expected = packets.iter().map(|packet| Verdict {
        tag: packet.tag,
        outcome: algorithm.sums(Variant::Reference, packet.octets, packet.before),
    });
    assert_eq!(verdicts, expected.collect::<Vec<_>>());
}

/// The kernels' own suite, as that of the processor's variants.
#[test]
fn the_kernels_agree_with_the_reference() {
    let places = |lengths: &[usize], offsets: &[usize]| {
        let places = lengths.iter().flat_map(|&len| offsets.iter().map(move |&at| (at, len)));
        places.chain([(LEN - 1, 1), (LEN - 17, 17), (LEN, 0)]).collect::<Vec<_>>()
    };
    let short: Vec<_> = (0..=257).collect();
    let long = [1480, 2047, 2048, 2049, 9000, 65_535, 65_536, 65_537];
    let some = [1, 15, 16, 17, 33, 1500, 65_535, 65_536, 65_537];
    let mut random = fastrand::Rng::with_seed(6);
    let anywhere = (0..300).map(|_| {
        let len = random.usize(..3000);
        (random.usize(..LEN - len), len)
    });
    let runs = [
        (test_octets(LEN), places(&short, &[0, 1, 2, 3, 7, 8, 15, 33])),
        (test_octets(LEN), places(&long, &[0, 1, 14, 34])),
        (test_octets(LEN), anywhere.collect()),
        (vec![0; LEN], places(&some, &[0, 1, 15])),
        (vec![0xff; LEN], places(&some, &[0, 1, 15])),
    ];
    for algorithm in [Algorithm::Internet, Algorithm::Fletcher] {
        for (octets, places) in &runs {
            let area = filled(octets);
            let limits = Limits { octets: 65_600, ..limits(64) };
            let [_, mut engine] = engines(&area, algorithm, limits);
            let packets = places.iter().zip(0..).map(|(&(at, len), tag)| {
                let before = internet::Sum::from_value((tag * 31) as u16);
                Packet { octets: &area.0[at..at + len], before, tag }
            });
            let packets: Vec<_> = packets.collect();
            let (now, mut verdicts) = (Instant::now(), Vec::new());
            for packet in &packets {
                engine.submit(*packet, now).unwrap();
                engine.poll(now, &mut verdicts);
            }
            engine.flush(now);
            engine.poll(now, &mut verdicts);
            assert_eq!(engine.trouble(), None);
            assert_all(&verdicts, &packets, algorithm);
        }
    }
}

#[test]
fn every_packet_gets_its_sums_in_order() {
    let area = area();
    for algorithm in [Algorithm::Internet, Algorithm::Fletcher] {
        for mut engine in engines(&area, algorithm, limits(8)) {
            let packets = packets(&area, 100);
            let mut verdicts = Vec::new();
            let now = Instant::now();
            for packet in &packets {
                engine.submit(*packet, now).unwrap();
                engine.poll(now, &mut verdicts);
            }
            assert_eq!(verdicts.len(), 96, "{engine}: the last batch is not full");
            engine.flush(now);
            engine.poll(now, &mut verdicts);
            assert_all(&verdicts, &packets, algorithm);
            assert!(engine.uses_gpu() && engine.next_deadline().is_none());
        }
    }
}

#[test]
fn a_packet_waits_no_longer_than_the_deadline() {
    let area = area();
    for mut engine in engines(&area, Algorithm::Internet, limits(8)) {
        let packets = packets(&area, 3);
        let (start, mut verdicts) = (Instant::now(), Vec::new());
        packets.iter().for_each(|packet| engine.submit(*packet, start).unwrap());
        let due = engine.next_deadline().unwrap();
        assert_eq!(due, start + Limits::default().deadline);
        engine.poll(due - Duration::from_nanos(1), &mut verdicts);
        assert_eq!(verdicts, []);
        engine.poll(due, &mut verdicts);
        assert_all(&verdicts, &packets, Algorithm::Internet);
    }
}

#[test]
fn a_full_engine_refuses_and_loses_nothing() {
    let area = area();
    for mut engine in engines(&area, Algorithm::Internet, limits(4)) {
        let packets = packets(&area, 13);
        let (now, mut verdicts) = (Instant::now(), Vec::new());
        double::hold();
        packets[..12].iter().for_each(|packet| engine.submit(*packet, now).unwrap());
        assert_eq!(engine.submit(packets[12], now), Err(SubmitError::Full), "{engine}");
        engine.poll(now, &mut verdicts);
        assert_eq!(verdicts, []);
        double::release();
        engine.poll(now, &mut verdicts);
        engine.submit(packets[12], now).unwrap();
        engine.flush(now);
        engine.poll(now, &mut verdicts);
        assert_all(&verdicts, &packets, Algorithm::Internet);
    }
}

#[test]
fn what_cannot_be_taken_is_refused() {
    let area = area();
    let elsewhere = [0; 100];
    let packet = |octets| Packet { octets, before: internet::Sum::default(), tag: 0 };
    let [mut staged, mut umem] = engines(&area, Algorithm::Internet, limits(4));
    let now = Instant::now();
    let too_long = Err(SubmitError::TooLong { len: 1501, most: 1500 });
    assert_eq!(staged.submit(packet(&area.0[..1501]), now), too_long);
    assert_eq!(umem.submit(packet(&area.0[..1501]), now), too_long);
    assert_eq!(umem.submit(packet(&elsewhere), now), Err(SubmitError::Outside));
    assert_eq!(staged.submit(packet(&elsewhere), now), Ok(()));
    // A batch of nothing is none.
    let launches = double::launches();
    umem.flush(now);
    assert_eq!(double::launches(), launches);
}

#[test]
fn whatever_fails_the_processor_does_the_work() {
    let area = area();
    for function in ["cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuLaunchKernel", "cuStreamQuery"] {
        for after in 0..4 {
            for mut engine in engines(&area, Algorithm::Internet, limits(4)) {
                let packets = packets(&area, 50);
                let (mut now, mut verdicts) = (Instant::now(), Vec::new());
                double::fail(function, after, LAUNCH_FAILED);
                if function == "cuStreamQuery" {
                    double::hold();
                }
                let mut troubles = Vec::new();
                for packet in &packets {
                    while engine.submit(*packet, now) == Err(SubmitError::Full) {
                        now += Duration::from_millis(1);
                        engine.poll(now, &mut verdicts);
                    }
                    troubles.extend(engine.trouble());
                }
                engine.flush(now);
                engine.poll(now, &mut verdicts);
                assert_all(&verdicts, &packets, Algorithm::Internet);
                let was_called = function.starts_with("cuL") || function.starts_with("cuS") || troubles.len() == 1;
                if was_called {
                    assert!(
                        matches!(&troubles[..], [GpuError::Call { call, code: LAUNCH_FAILED, .. }] if *call == function)
                    );
                    assert!(!engine.uses_gpu());
                }
            }
        }
    }
}

#[test]
fn a_gpu_that_does_not_answer_is_given_up() {
    let area = area();
    for mut engine in engines(&area, Algorithm::Fletcher, limits(4)) {
        let packets = packets(&area, 10);
        let (start, mut verdicts) = (Instant::now(), Vec::new());
        double::hold();
        packets.iter().for_each(|packet| engine.submit(*packet, start).unwrap());
        let timeout = Limits::default().timeout;
        engine.poll(start + timeout - Duration::from_nanos(1), &mut verdicts);
        assert_eq!(verdicts, []);
        assert!(engine.trouble().is_none());
        engine.poll(start + timeout, &mut verdicts);
        assert_all(&verdicts, &packets, Algorithm::Fletcher);
        assert_eq!(engine.trouble(), Some(GpuError::Timeout(timeout)));
        assert_eq!(engine.trouble(), None, "it is told once");
        // What the GPU does late goes where nobody looks, and nobody has freed.
        double::release();
    }
}

#[test]
fn a_packet_without_an_answer_is_noticed() {
    let area = area();
    for mut engine in engines(&area, Algorithm::Internet, limits(4)) {
        let packets = packets(&area, 8);
        let (start, mut verdicts) = (Instant::now(), Vec::new());
        double::leave_out(2);
        packets.iter().for_each(|packet| engine.submit(*packet, start).unwrap());
        engine.poll(start + Duration::from_millis(2), &mut verdicts);
        assert_all(&verdicts, &packets, Algorithm::Internet);
        assert_eq!(engine.trouble(), Some(GpuError::Incomplete));
    }
}

#[test]
fn a_gpu_that_computes_wrong_sums_is_not_used() {
    let table = double::table();
    double::be_wrong();
    assert_eq!(Gpu::with(table).err(), Some(GpuError::Wrong));
    assert_eq!(double::pieces(), 0);
}

#[test]
fn what_hinders_the_gpu_is_said() {
    let opened = |function, code| {
        let table = double::table();
        double::fail(function, 0, code);
        Gpu::with(table).err().unwrap()
    };
    assert_eq!(opened("cuInit", 100), GpuError::NoGpu);
    assert!(opened("cuModuleLoadData", 222).to_string().contains("driver (CUDA 13.0) cannot compile"));
    assert_eq!(opened("cuModuleLoadData", 221), GpuError::NoCompiler);
    assert!(matches!(opened("cuMemHostAlloc", 2), GpuError::NoMemory { octets: 4096, .. }));
    assert!(matches!(opened("cuLaunchKernel", 700), GpuError::Call { code: 700, .. }));
    assert!(matches!(driver::Table::load("libnot-there.so.1").err(), Some(GpuError::NoDriver(_))));
    assert!(matches!(driver::Table::load("libc.so.6").err(), Some(GpuError::NoFunction("cuInit"))));

    let area = area();
    let gpu = Gpu::with(double::table()).unwrap();
    let made = |limits, octets: &[u8]| {
        // SAFETY: the area outlives the engine.
        unsafe { Engine::gpu_umem(&gpu, Algorithm::Internet, limits, NonNull::from(octets)) }.err().unwrap()
    };
    assert_eq!(made(limits(4), &area.0[1..PAGE + 1]), GpuError::NotWholePages { page: PAGE });
    assert_eq!(made(limits(0), &area.0), GpuError::Limits);
    // SAFETY: as above.
    let first = unsafe { Engine::gpu_umem(&gpu, Algorithm::Internet, limits(4), NonNull::from(&area.0)) };
    assert_eq!(made(limits(4), &area.0), GpuError::AlreadyRegistered);
    drop(first);
    double::fail("cuMemHostRegister", 0, 304);
    assert!(made(limits(4), &area.0).to_string().contains("RLIMIT_MEMLOCK"));
    double::fail("cuMemAlloc", 2, 2);
    assert!(matches!(Engine::gpu_staged(&gpu, Algorithm::Internet, limits(4)).err(), Some(GpuError::NoMemory { .. })));
    assert_eq!(double::pieces(), 0, "what there was is given back");
}

#[test]
fn memory_is_freed_unless_the_gpu_may_still_use_it() {
    let area = area();
    let packets = packets(&area, 4);
    for late in [false, true] {
        for mut engine in engines(&area, Algorithm::Internet, Limits { timeout: Duration::ZERO, ..limits(4) }) {
            if late {
                double::hold();
            }
            packets.iter().for_each(|packet| engine.submit(*packet, Instant::now()).unwrap());
            drop(engine);
        }
        assert_eq!(double::pieces() > 0, late);
    }
}

/// A batch's number comes again some day, and the answers of that time are still there.
#[test]
fn answers_from_before_the_numbers_came_round_are_none() {
    let area = area();
    for mut engine in engines(&area, Algorithm::Internet, limits(4)) {
        let packets = packets(&area, 8);
        let (now, mut verdicts) = (Instant::now(), Vec::new());
        let (before, after) = packets.split_at(4);
        before.iter().for_each(|packet| engine.submit(*packet, now).unwrap());
        engine.poll(now, &mut verdicts);
        verdicts.clear();
        let Way::Gpu(pipeline) = &mut engine.way else { panic!("no GPU") };
        pipeline.number = u32::MAX;
        double::hold();
        after.iter().for_each(|packet| engine.submit(*packet, now).unwrap());
        engine.poll(now, &mut verdicts);
        assert_eq!(verdicts, [], "{engine}: the GPU has done nothing yet");
        double::release();
        engine.poll(now, &mut verdicts);
        assert_all(&verdicts, after, Algorithm::Internet);
    }
}

#[test]
fn a_deadline_may_be_never() {
    let area = area();
    let never = Limits { deadline: Duration::MAX, timeout: Duration::MAX, ..limits(4) };
    for mut engine in engines(&area, Algorithm::Internet, never) {
        let packets = packets(&area, 4);
        let (now, mut verdicts) = (Instant::now(), Vec::new());
        packets[..3].iter().for_each(|packet| engine.submit(*packet, now).unwrap());
        engine.poll(now + Duration::from_secs(1 << 30), &mut verdicts);
        assert_eq!((verdicts.len(), engine.next_deadline()), (0, None));
        engine.submit(packets[3], now).unwrap();
        engine.poll(now, &mut verdicts);
        assert_all(&verdicts, &packets, Algorithm::Internet);
    }
}

/// A caller that sleeps until the next deadline does not sleep while verdicts are there.
#[test]
fn verdicts_that_are_there_are_due() {
    let area = area();
    let packets = packets(&area, 4);
    let (now, mut verdicts) = (Instant::now(), Vec::new());
    let [mut staged, mut umem] = engines(&area, Algorithm::Internet, limits(4));
    double::fail("cuLaunchKernel", 0, LAUNCH_FAILED);
    for engine in [&mut Engine::cpu(Algorithm::Internet, Variant::fastest()), &mut staged, &mut umem] {
        assert_eq!(engine.next_deadline(), None);
        packets.iter().for_each(|packet| engine.submit(*packet, now).unwrap());
        assert!(engine.next_deadline().is_some_and(|at| at <= now), "{engine}");
        engine.poll(now, &mut verdicts);
        assert_all(&std::mem::take(&mut verdicts), &packets, Algorithm::Internet);
        assert_eq!(engine.next_deadline(), None);
    }
}

#[test]
fn auto_keeps_what_was_submitted_before_and_leaves_nothing_behind() {
    let area = area();
    let packets = packets(&area, 8);
    let (now, mut verdicts) = (Instant::now(), Vec::new());
    let octets: Vec<_> = packets.iter().map(|packet| packet.octets).collect();
    for mut engine in engines(&area, Algorithm::Internet, limits(8)) {
        packets[..3].iter().for_each(|packet| engine.submit(*packet, now).unwrap());
        engine.auto(&octets).unwrap();
        engine.poll(now, &mut verdicts);
        assert_all(&std::mem::take(&mut verdicts), &packets[..3], Algorithm::Internet);
    }
    let too_long = [octets[1], &area.0[..1501]];
    for mut engine in engines(&area, Algorithm::Internet, limits(8)) {
        assert_eq!(engine.auto(&too_long), Err(SubmitError::TooLong { len: 1501, most: 1500 }));
        assert!(!engine.to_string().starts_with("auto"), "{engine}");
        engine.flush(now);
        engine.poll(now, &mut verdicts);
        assert_eq!(verdicts, []);
    }
}

#[test]
fn auto_survives_a_gpu_that_fails_meanwhile() {
    let area = area();
    let packets = packets(&area, 8);
    let (now, mut verdicts) = (Instant::now(), Vec::new());
    let octets: Vec<_> = packets.iter().map(|packet| packet.octets).collect();
    for after in [0, 1, 3] {
        for mut engine in engines(&area, Algorithm::Internet, limits(8)) {
            packets[..3].iter().for_each(|packet| engine.submit(*packet, now).unwrap());
            double::fail("cuLaunchKernel", after, LAUNCH_FAILED);
            engine.auto(&octets).unwrap();
            assert!(!engine.uses_gpu());
            assert!(matches!(engine.trouble(), Some(GpuError::Call { call: "cuLaunchKernel", .. })));
            engine.poll(now, &mut verdicts);
            assert_all(&std::mem::take(&mut verdicts), &packets[..3], Algorithm::Internet);
        }
    }
}

/// The double is slower than any processor. Nothing is known of these batches at first but that smaller ones are the
/// GPU's.
#[test]
fn auto_takes_back_what_does_not_pay() {
    let area = area();
    let packet = packets(&area, 22)[21];
    for mut engine in engines(&area, Algorithm::Internet, limits(8)) {
        use_gpu_from(&mut engine, packet.octets.len() / 2);
        let (now, mut verdicts) = (Instant::now(), Vec::new());
        // The first try shows it, unless that was interrupted.
        let most_tries = 100;
        let mut batches = |engine: &mut Engine| {
            let before = double::launches();
            for _ in 0..64 {
                engine.submit(packet, now).unwrap();
                engine.flush(now);
                engine.poll(now, &mut verdicts);
                assert_all(&std::mem::take(&mut verdicts), &[packet], Algorithm::Internet);
            }
            double::launches() - before
        };
        assert_eq!(batches(&mut engine), 63, "{engine}");
        assert!((0..most_tries).any(|_| batches(&mut engine) == 1), "{engine}");
    }
}

#[test]
fn auto_leaves_small_batches_to_the_processor() {
    let area = area();
    let packets = packets(&area, 8);
    for mut engine in engines(&area, Algorithm::Internet, limits(9)) {
        use_gpu_from(&mut engine, packets.iter().map(|packet| packet.octets.len()).sum());
        let (start, mut verdicts) = (Instant::now(), Vec::new());
        let launches = double::launches();
        packets[..7].iter().for_each(|packet| engine.submit(*packet, start).unwrap());
        engine.poll(engine.next_deadline().unwrap(), &mut verdicts);
        assert_all(&verdicts, &packets[..7], Algorithm::Internet);
        verdicts.clear();
        packets[..3].iter().for_each(|packet| engine.submit(*packet, start).unwrap());
        engine.flush(start);
        engine.poll(start, &mut verdicts);
        assert_all(&verdicts, &packets[..3], Algorithm::Internet);
        assert_eq!(double::launches(), launches, "{engine}");
        verdicts.clear();
        packets.iter().for_each(|packet| engine.submit(*packet, start).unwrap());
        engine.poll(start, &mut verdicts);
        assert_all(&verdicts, &packets, Algorithm::Internet);
        assert_eq!(double::launches(), launches + 1, "{engine}");
        assert!(engine.to_string().starts_with("auto"));
    }
}

/// The double computes by the reference, so that whatever is measured, it never wins.
#[test]
fn auto_uses_no_gpu_that_does_not_pay() {
    let area = area();
    let packets = packets(&area, 64);
    let octets: Vec<_> = packets.iter().map(|packet| packet.octets).collect();
    for mut engine in engines(&area, Algorithm::Internet, limits(64)) {
        engine.auto(&octets).unwrap();
        assert!(!engine.uses_gpu(), "{engine}");
    }
}

#[test]
fn without_a_gpu_all_is_the_same() {
    let area = area();
    let packets = packets(&area, 20);
    for algorithm in [Algorithm::Internet, Algorithm::Fletcher] {
        let mut engine = Engine::cpu(algorithm, Variant::fastest());
        let (now, mut verdicts) = (Instant::now(), Vec::new());
        packets.iter().for_each(|packet| engine.submit(*packet, now).unwrap());
        engine.flush(now);
        engine.poll(now, &mut verdicts);
        assert_all(&verdicts, &packets, algorithm);
    }
    let mut engine = Engine::skip();
    let mut verdicts = Vec::new();
    engine.submit(packets[1], Instant::now()).unwrap();
    engine.poll(Instant::now(), &mut verdicts);
    assert_eq!(verdicts, [Verdict { tag: 1, outcome: Outcome::Skipped }]);
}
