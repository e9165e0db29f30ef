//! Measures the GPU of this host against its processor: `cargo run --release -p underpass-checksum --example gpu -- --json FILE`.
//!
//! First every sum is compared with the reference, on fresh random octets: `--verify` does only that. Then: the bus, the
//! processor's variants, both ways to the GPU by size of packet and batch, from which size of batch on the GPU wins, and how
//! much of a processor each way takes at a given load.
#![allow(unsafe_code, reason = "gives packet memory to the engine")]

use std::error::Error;
use std::process::ExitCode;
use std::ptr::NonNull;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime};
use std::{env, fs, hint, thread};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};
use underpass_checksum::Variant;
use underpass_checksum::batch::{Algorithm, Engine, Limits, Outcome, Packet, Verdict};
use underpass_checksum::gpu::Gpu;
use underpass_checksum::internet::Sum;

const SIZES: [usize; 6] = [512, 1024, 1480, 4096, 9000, 9480];
const BATCHES: [usize; 7] = [1, 4, 16, 64, 256, 1024, 4096];
/// The batch of the targets and of the loads, as of the paper.
const BATCH: usize = 1024;
/// Several times any cache.
const AREA: usize = 1 << 30;
const PAGE: usize = 4096;
/// Ethernet's and IPv4's header, behind which is what is summed.
const HEADERS: usize = 34;
/// The processor that measures; the first has the interrupts.
const PROCESSOR: usize = 3;
/// Gbit/s.
const LOADS: [u32; 4] = [10, 40, 80, 160];

type Outcomes<T> = Result<T, Box<dyn Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("gpu: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Outcomes<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (verify_only, file) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (false, None),
        ["--verify"] => (true, None),
        ["--json", file] => (false, Some(file)),
        _ => return Err("usage: gpu [--verify | --json FILE]".into()),
    };
    let start = SystemTime::now();
    let gpu = Gpu::open()?;
    let verified = verify(&gpu, if verify_only { 2_000 } else { 200_000 })?;
    println!("bit-exact: {verified} packets");
    if verify_only {
        return Ok(());
    }
    let mut processor = CpuSet::new();
    processor.set(PROCESSOR);
    sched_setaffinity(None, &processor)?;
    let mut memory = vec![0; AREA + PAGE];
    fastrand::fill(&mut memory);
    let at = memory.as_ptr().align_offset(PAGE);
    let area = &memory[at..at + AREA];

    let bus = gpu.host_to_device_rate()? / 1e9;
    println!("host to device: {bus:.2} GB/s");
    let processor = processor_rates(area);
    let cells = cells(&gpu, area)?;
    let share = best(&cells, "gpu-umem", 9000, BATCH) / bus;
    println!("gpu-umem, 9,000 B in batches of 1,024: {:.1} % of the bus", 100. * share);
    let record = json!({
        "unix_time": start.duration_since(SystemTime::UNIX_EPOCH)?.as_secs(),
        "host": host(&gpu),
        "verified_packets": verified,
        "host_to_device_GB_s": bus,
        "gpu_umem_share_of_host_to_device": share,
        "processor": processor,
        "gpu": cells,
        "break_even": break_even(&cells, &processor, bus),
        "loads": loads(&gpu, area)?,
    });
    if let Some(file) = file {
        fs::write(file, serde_json::to_string_pretty(&record)? + "\n")?;
    }
    Ok(())
}

fn host(gpu: &Gpu) -> Value {
    let line = |file: &str, key: &str| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.lines().find(|line| line.starts_with(key)).unwrap_or_default().trim_start_matches(key).trim().to_string()
    };
    let (major, minor) = gpu.driver();
    let driver = line("/proc/driver/nvidia/version", "NVRM version:");
    json!({
        "processor": line("/proc/cpuinfo", "model name").trim_start_matches(": "),
        "processors": fs::read_to_string("/proc/cpuinfo").unwrap_or_default().matches("processor\t").count(),
        "memory": line("/proc/meminfo", "MemTotal:"),
        "virtualised": fs::read_to_string("/proc/cpuinfo").unwrap_or_default().contains(" hypervisor"),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "system": line("/etc/os-release", "PRETTY_NAME=").trim_matches('"'),
        "load": fs::read_to_string("/proc/loadavg").unwrap_or_default().trim(),
        "gpu": gpu.name(),
        "cuda_of_driver": format!("{major}.{minor}"),
        "driver": driver.split_whitespace().find(|word| word.starts_with(|it: char| it.is_ascii_digit())),
        "fastest_variant": Variant::fastest().to_string(),
    })
}

/// An engine that reads packets in `area`, which outlives all engines of this program.
fn umem(gpu: &Rc<Gpu>, algorithm: Algorithm, limits: Limits, area: &[u8]) -> Outcomes<Engine> {
    // SAFETY: main drops its engines before the area, and nobody writes to it while they have packets.
    Ok(unsafe { Engine::gpu_umem(gpu, algorithm, limits, NonNull::from(area)) }?)
}

/// Compares both algorithms in both ways with the reference; how many packets were compared.
fn verify(gpu: &Rc<Gpu>, random: usize) -> Outcomes<usize> {
    const LEN: usize = 8 << 20;
    let mut compared = 0;
    let mut memory = vec![0; LEN + PAGE];
    let at = memory.as_ptr().align_offset(PAGE);
    let limits = Limits { packets: 512, octets: 65_600, timeout: Duration::from_secs(10), ..Limits::default() };
    for fill in [None, Some(0), Some(0xff)] {
        match fill {
            None => fastrand::fill(&mut memory),
            Some(octet) => memory.fill(octet),
        }
        let area = &memory[at..at + LEN];
        let lengths = (0..=257).chain([1472, 1480, 9000, 9480, 65_535, 65_536, 65_537]);
        let mut places: Vec<_> = lengths.flat_map(|len| (0..33).map(move |offset| (offset, len))).collect();
        // The ends of the area.
        places.extend((0..40).map(|len| (LEN - len, len)));
        if fill.is_none() {
            places.extend((0..random).map(|_| {
                let len = fastrand::usize(..=9600);
                (fastrand::usize(..=LEN - len), len)
            }));
        }
        for algorithm in [Algorithm::Internet, Algorithm::Fletcher] {
            for mut engine in [Engine::gpu_staged(gpu, algorithm, limits)?, umem(gpu, algorithm, limits, area)?] {
                let packets = places.iter().zip(0..).map(|(&(at, len), tag)| Packet {
                    octets: &area[at..at + len],
                    before: Sum::from_value(fastrand::u16(..)),
                    tag,
                });
                let packets: Vec<_> = packets.collect();
                let mut verdicts = Vec::with_capacity(packets.len());
                drive(&mut engine, &packets, &mut verdicts);
                if let Some(error) = engine.trouble() {
                    return Err(error.into());
                }
                for (packet, verdict) in packets.iter().zip(&verdicts) {
                    let outcome = algorithm.sums(Variant::Reference, packet.octets, packet.before);
                    if *verdict != (Verdict { tag: packet.tag, outcome }) {
                        let len = packet.octets.len();
                        return Err(format!("{engine}: {verdict:?} for {len} octets that sum to {outcome:?}").into());
                    }
                }
                compared += verdicts.len();
            }
        }
    }
    Ok(compared + given_up(gpu, limits)?)
}

/// A GPU that is too slow for its limit is given up, and nothing is lost. It may go on reading, hence the leak.
fn given_up(gpu: &Rc<Gpu>, limits: Limits) -> Outcomes<usize> {
    let memory = vec![0x5a; (4 << 20) + PAGE].leak();
    let area = &memory[memory.as_ptr().align_offset(PAGE)..][..4 << 20];
    let limits = Limits { timeout: Duration::ZERO, ..limits };
    let packets: Vec<_> = area.chunks(9000).zip(0..).map(|(octets, tag)| packet(octets, tag)).collect();
    let algorithm = Algorithm::Internet;
    for mut engine in [Engine::gpu_staged(gpu, algorithm, limits)?, umem(gpu, algorithm, limits, area)?] {
        let mut verdicts = Vec::new();
        drive(&mut engine, &packets, &mut verdicts);
        let right = packets.iter().map(|it| algorithm.sums(Variant::Reference, it.octets, it.before));
        if !verdicts.iter().map(|it| it.outcome).eq(right) {
            return Err(format!("{engine}: verdicts were lost when the GPU was given up").into());
        }
        // One whose batches are ready when they are first looked at is in time even so.
        if engine.uses_gpu() != engine.trouble().is_none() {
            return Err(format!("{engine}: the GPU was given up without a word, or kept in spite of it").into());
        }
    }
    Ok(2 * packets.len())
}

fn packet(octets: &[u8], tag: u64) -> Packet<'_> {
    Packet { octets, before: Sum::default(), tag }
}

/// Gets the verdicts of all packets, waiting where it must.
fn drive(engine: &mut Engine, packets: &[Packet<'_>], verdicts: &mut Vec<Verdict>) {
    for packet in packets {
        while engine.submit(*packet, Instant::now()).is_err() {
            engine.poll(Instant::now(), verdicts);
        }
    }
    engine.flush(Instant::now());
    while verdicts.len() < packets.len() {
        engine.poll(Instant::now(), verdicts);
    }
}

/// Packets of this length in all of the area, one after the other, over and over.
fn packets(area: &[u8], len: usize) -> impl Iterator<Item = &[u8]> + Clone {
    let stride = (HEADERS + len).next_multiple_of(64);
    area.chunks_exact(stride).map(move |frame| &frame[HEADERS..HEADERS + len]).cycle()
}

/// GB/s of every variant, for packets in the cache and for packets out of it.
fn processor_rates(area: &[u8]) -> Vec<Value> {
    let mut rates = Vec::new();
    for algorithm in [Algorithm::Internet, Algorithm::Fletcher] {
        for variant in Variant::available() {
            for len in SIZES {
                let hot = median(5, || rate(algorithm, variant, packets(&area[..32 << 10], len), len));
                let mut all = packets(area, len);
                let cold = median(5, || rate(algorithm, variant, all.by_ref(), len));
                println!("{algorithm:?} {variant} {len} B: {hot:.1} GB/s, out of the cache {cold:.1}");
                rates
                    .push(json!({"algorithm": format!("{algorithm:?}"), "variant": variant.to_string(), "octets": len,
                    "hot_GB_s": hot, "cold_GB_s": cold}));
            }
        }
    }
    rates
}

fn rate<'a>(algorithm: Algorithm, variant: Variant, mut packets: impl Iterator<Item = &'a [u8]>, len: usize) -> f64 {
    let (start, mut octets) = (Instant::now(), 0);
    while start.elapsed() < Duration::from_millis(10) {
        for packet in packets.by_ref().take(64) {
            hint::black_box(algorithm.sums(variant, packet, Sum::default()));
        }
        octets += 64 * len;
    }
    octets as f64 / start.elapsed().as_nanos() as f64
}

/// Each way to the GPU, size and batch: throughput with batches on their way all the time; and of a batch alone, how long it
/// takes and how much of that the processor is needed for.
fn cells(gpu: &Rc<Gpu>, area: &[u8]) -> Outcomes<Vec<Value>> {
    let mut cells = Vec::new();
    for batch in BATCHES {
        let limits = Limits { packets: batch, ..Limits::default() };
        for algorithm in [Algorithm::Internet, Algorithm::Fletcher] {
            if algorithm == Algorithm::Fletcher && batch != BATCH {
                continue;
            }
            for mut engine in [Engine::gpu_staged(gpu, algorithm, limits)?, umem(gpu, algorithm, limits, area)?] {
                for len in SIZES {
                    let mut all = packets(area, len);
                    let mut alone = Vec::new();
                    for _ in 0..25 {
                        alone.push(batch_alone(&mut engine, &mut all, batch));
                    }
                    let micros = median_of(alone.iter().map(|it| it.0));
                    let busy = median_of(alone.iter().map(|it| it.1));
                    let mut runs: Vec<_> = (0..5).map(|_| throughput(&mut engine, &mut all, len)).collect();
                    runs.sort_by(f64::total_cmp);
                    if let Some(error) = engine.trouble() {
                        return Err(error.into());
                    }
                    println!(
                        "{algorithm:?} {engine} {len} B x {batch}: {:.2} GB/s; alone {micros:.1} us, processor {busy:.1} us",
                        runs[2]
                    );
                    cells.push(json!({"algorithm": format!("{algorithm:?}"), "way": engine.to_string(), "octets": len,
                        "batch": batch, "GB_s": runs[2], "GB_s_least": runs[0], "GB_s_most": runs[4],
                        "batch_us": micros, "processor_us": busy}));
                }
            }
        }
    }
    Ok(cells)
}

/// Microseconds that a batch takes, and those in which the processor hands it over and takes the verdicts.
fn batch_alone<'a>(engine: &mut Engine, packets: &mut impl Iterator<Item = &'a [u8]>, batch: usize) -> (f64, f64) {
    let mut verdicts = Vec::with_capacity(batch);
    let start = Instant::now();
    for (octets, tag) in packets.take(batch).zip(0..) {
        let _ = engine.submit(packet(octets, tag), start);
    }
    engine.flush(start);
    let sent = start.elapsed();
    loop {
        let poll = Instant::now();
        engine.poll(poll, &mut verdicts);
        if verdicts.len() >= batch {
            return (start.elapsed().as_nanos() as f64 / 1e3, (sent + poll.elapsed()).as_nanos() as f64 / 1e3);
        }
        hint::spin_loop();
    }
}

/// GB/s with as many batches on their way as there can be.
fn throughput<'a>(engine: &mut Engine, packets: &mut impl Iterator<Item = &'a [u8]>, len: usize) -> f64 {
    let mut verdicts = Vec::with_capacity(1 << 16);
    let (start, mut submitted, mut known) = (Instant::now(), 0, 0);
    while start.elapsed() < Duration::from_millis(40) {
        // The clock is read once for packets that come together.
        let mut now = Instant::now();
        for octets in packets.by_ref().take(64) {
            while engine.submit(packet(octets, 0), now).is_err() {
                now = Instant::now();
                engine.poll(now, &mut verdicts);
            }
            submitted += 1;
        }
        known += verdicts.len();
        verdicts.clear();
    }
    engine.flush(Instant::now());
    while known < submitted {
        engine.poll(Instant::now(), &mut verdicts);
        known += verdicts.len();
        verdicts.clear();
    }
    (submitted * len) as f64 / start.elapsed().as_nanos() as f64
}

/// The smallest batch from which on the GPU is sooner done than the processor, and from which on it takes less of the
/// processor's time: of those measured, and as a line through the smallest and the paper's batch predicts. Absent where there is none.
fn break_even(cells: &[Value], rates: &[Value], bus: f64) -> Vec<Value> {
    let mut rows = Vec::new();
    for way in ["gpu-staged", "gpu-umem"] {
        for len in SIZES {
            for variant in Variant::available().filter(|it| [Variant::Scalar, Variant::fastest()].contains(it)) {
                let found = rates.iter().find(|it| {
                    it["algorithm"] == "Internet" && it["variant"] == variant.to_string() && it["octets"] == len
                });
                let Some(cold) = found.and_then(|it| it["cold_GB_s"].as_f64()) else { continue };
                let packet = len as f64 / cold / 1e3;
                let of = |batch: usize, key: &str| {
                    let mut of_this = cells.iter().filter(|it| is_cell(it, way, len, batch));
                    of_this.next().and_then(|it| it[key].as_f64()).unwrap_or(f64::INFINITY)
                };
                let measured = |key: &str| {
                    let loses = BATCHES.iter().rposition(|&batch| of(batch, key) >= packet * batch as f64);
                    BATCHES.get(loses.map_or(0, |at| at + 1)).copied()
                };
                let per_packet = |key: &str| (of(BATCH, key) - of(1, key)).max(0.) / (BATCH - 1) as f64;
                let predicted =
                    |fixed: f64, each: f64| (packet > each).then(|| (fixed / (packet - each)).ceil().max(1.));
                let (fixed, each) = (of(1, "processor_us"), per_packet("processor_us"));
                rows.push(json!({"way": way, "octets": len, "variant": variant.to_string(), "cold_GB_s": cold,
                    "sooner_measured": measured("batch_us"),
                    "sooner_predicted": predicted(of(1, "batch_us"), len as f64 / bus / 1e3),
                    "less_processor_measured": measured("processor_us"),
                    "less_processor_predicted": predicted(fixed, each)}));
            }
        }
    }
    rows
}

fn is_cell(cell: &Value, way: &str, len: usize, batch: usize) -> bool {
    cell["algorithm"] == "Internet" && cell["way"] == way && cell["octets"] == len && cell["batch"] == batch
}

fn best(cells: &[Value], way: &str, len: usize, batch: usize) -> f64 {
    cells.iter().find(|it| is_cell(it, way, len, batch)).and_then(|it| it["GB_s"].as_f64()).unwrap_or_default()
}

/// How much of a processor each way takes at a load: 1,024 packets are there at once, then the program sleeps until the next
/// are. Nothing else is done with them, so that these are shares of the checksum alone.
fn loads(gpu: &Rc<Gpu>, area: &[u8]) -> Outcomes<Vec<Value>> {
    const RUNS: usize = 3;
    let limits = Limits { packets: BATCH, ..Limits::default() };
    let mut rows = Vec::new();
    for len in [1480, 9000] {
        let sample: Vec<_> = packets(area, len).take(8 * BATCH).collect();
        for way in ["skip", "scalar", "simd", "gpu-staged", "gpu-umem", "auto"] {
            let mut engine = match way {
                "skip" => Engine::skip(),
                "scalar" => Engine::cpu(Algorithm::Internet, Variant::Scalar),
                "simd" => Engine::cpu(Algorithm::Internet, Variant::fastest()),
                "gpu-staged" => Engine::gpu_staged(gpu, Algorithm::Internet, limits)?,
                "gpu-umem" => umem(gpu, Algorithm::Internet, limits, area)?,
                _ => umem(gpu, Algorithm::Internet, limits, area)?.auto(&sample),
            };
            for load in LOADS {
                let mut runs = Vec::new();
                let mut all = packets(area, len);
                for _ in 0..RUNS {
                    runs.push(at_load(&mut engine, &mut all, len, load)?);
                }
                let of = |key: usize| runs.iter().map(|run| run[key]).collect::<Vec<_>>();
                let mean = |key: usize| of(key).iter().sum::<f64>() / RUNS as f64;
                println!(
                    "{way} ({engine}) {len} B at {load} Gbit/s: {:.1} Gbit/s, idle {:.1} % ({:.1} %), {:.1} ns a packet",
                    mean(0),
                    100. * mean(1),
                    100. * mean(2),
                    mean(3)
                );
                rows.push(json!({"way": way, "engine": engine.to_string(), "octets": len, "Gbit_s_offered": load,
                    "Gbit_s": of(0), "idle_of_the_processor": of(1), "idle_of_the_program": of(2), "ns_a_packet": of(3)}));
            }
        }
    }
    Ok(rows)
}

/// Gbit/s, the idle share of the processor (/proc/stat) and of the program (its processor time), and that per packet.
fn at_load<'a>(
    engine: &mut Engine,
    packets: &mut impl Iterator<Item = &'a [u8]>,
    len: usize,
    load: u32,
) -> Outcomes<[f64; 4]> {
    let interval = Duration::from_nanos((BATCH * len * 8) as u64 / u64::from(load));
    let mut verdicts = Vec::with_capacity(4 * BATCH);
    let (before, used, start) = (processor_times()?, processor_time(), Instant::now());
    let (mut submitted, mut known, mut next) = (0, 0, start);
    while start.elapsed() < Duration::from_millis(400) {
        let now = Instant::now();
        if now < next {
            thread::sleep(next - now);
        }
        next += interval;
        let mut now = Instant::now();
        engine.poll(now, &mut verdicts);
        for octets in packets.by_ref().take(BATCH) {
            while engine.submit(packet(octets, 0), now).is_err() {
                now = Instant::now();
                engine.poll(now, &mut verdicts);
            }
        }
        submitted += BATCH;
        engine.flush(Instant::now());
        known += hint::black_box(&verdicts).iter().filter(|it| matches!(it.outcome, Outcome::Skipped)).count();
        known += verdicts.iter().filter(|it| !matches!(it.outcome, Outcome::Skipped)).count();
        verdicts.clear();
    }
    let (wall, used, after) = (start.elapsed(), processor_time() - used, processor_times()?);
    while known < submitted {
        engine.poll(Instant::now(), &mut verdicts);
        known += verdicts.len();
        verdicts.clear();
    }
    if let Some(error) = engine.trouble() {
        return Err(error.into());
    }
    let idle = (after.0 - before.0) as f64 / (after.1 - before.1).max(1) as f64;
    Ok([
        (submitted * len * 8) as f64 / wall.as_nanos() as f64,
        idle,
        1. - used.as_secs_f64() / wall.as_secs_f64(),
        used.as_nanos() as f64 / submitted as f64,
    ])
}

/// Idle and all ticks of the measuring processor, of a hundredth of a second each.
fn processor_times() -> Outcomes<(u64, u64)> {
    let stat = fs::read_to_string("/proc/stat")?;
    let name = format!("cpu{PROCESSOR} ");
    let line = stat.lines().find_map(|line| line.strip_prefix(&name)).ok_or("the processor is not in /proc/stat")?;
    let ticks = line.split_whitespace().map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    Ok((ticks[3] + ticks[4], ticks[..8].iter().sum()))
}

/// Of all threads of this program.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn median(times: usize, mut run: impl FnMut() -> f64) -> f64 {
    median_of((0..times).map(|_| run()))
}

fn median_of(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
