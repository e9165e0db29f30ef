//! Checksums: what they cost on the processor, and on the receive path of Tsubouchi, Hasegawa, Taniguchi, Nakano and
//! Matsuoka ("Offloading TCP/IP checksum to a GPU"): skipped, by the processor, or by a GPU.

mod cold;
mod kernels;
mod load;
mod offload;
mod packet;
mod path;
mod receive;
mod receiver;
mod sums;

use std::cell::RefCell;
use std::rc::Rc;

use crate::bench::{Chosen, Lab, skipped};
use crate::launcher::Side;
use crate::record::Skipped;
use crate::unit::thousands;
use cold::Cold;
use load::Socket;
use offload::{BreakEven, Offload, Rate};
use path::Path;
use receive::{Idle, Receive, Stages, Throughput};
use sums::Way;
use underpass_checksum::batch::Algorithm;
use underpass_checksum::gpu::Gpu;

/// The paper's, from a fragment's to a jumbo frame's.
const SIZES: [u64; 6] = [512, 1024, 1480, 4096, 9000, 9480];
/// Those of the paper's tables.
const TABLE_SIZES: [u64; 2] = [1480, 9480];
const QUICK_SIZES: [u64; 2] = TABLE_SIZES;
/// Octets of packets for the GPU, several times any cache.
const AREA: usize = 1 << 30;

/// What has nothing to do with the kernel's TCP has one side.
const ALONE: &[Side] = &[Side::Underpass];

/// Names the suite's experiments, where they can be had.
pub fn add(lab: &Lab, chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    kernels::add(lab, chosen);
    let gpu = gpu(lab, chosen, missing);
    add_path(lab, gpu.as_ref(), chosen, missing);
    if let Some(gpu) = gpu {
        add_offload(lab, &gpu, chosen);
    }
}

/// Sizes at which ways are compared.
#[derive(Debug, Default)]
pub struct Comparisons {
    /// Instructions with which the processor sums.
    pub instructions: Vec<u64>,
    /// Receivers, by their throughput.
    pub received: Vec<u64>,
    /// Receivers, by what each stage takes of the processor.
    pub stages: Vec<u64>,
}

/// Names experiments that compare instructions, and receivers that skip sums or have them computed, at these sizes.
pub fn add_comparisons(lab: &Lab, chosen: &mut Chosen, missing: &mut Vec<Skipped>, sizes: &Comparisons) {
    kernels::add_comparisons(lab, chosen, &sizes.instructions);
    if sizes.received.is_empty() && sizes.stages.is_empty() {
        return;
    }
    let gpu = gpu(lab, chosen, missing);
    let Some(path) = open_path(lab, missing) else { return };
    let gpu = if gpu.is_some() { &Way::GPU[..] } else { &[] };
    let receive =
        |socket, size| Receive { path: path.clone(), socket, size, ways: [&Way::PROCESSOR[..], gpu].concat() };
    for socket in Socket::ALL {
        for &size in &sizes.received {
            chosen.add("checksum", Throughput { receive: receive(socket, size), turn: 0, skip: None });
        }
        for (&size, beside) in sizes.stages.iter().flat_map(|size| [(size, false), (size, true)]) {
            chosen.add("checksum", Stages { receive: receive(socket, size), turn: 0, beside });
        }
    }
}

/// The GPU, if one is to be measured and sums as the reference does.
fn gpu(lab: &Lab, chosen: &mut Chosen, missing: &mut Vec<Skipped>) -> Option<Rc<Gpu>> {
    let mut missed = |why: String| missing.push(skipped("GPU", why));
    let Some(gpu) = &lab.gpu else {
        missed("that takes a GPU by NVIDIA, and --gpu".to_string());
        return None;
    };
    match cold::compare(gpu, lab.count(50_000) as usize) {
        Ok(packets) => {
            let ((major, minor), packets) = (gpu.driver(), thousands(packets));
            let sums = format!("{packets} packets had the reference's sums");
            chosen.versions.push(format!("{} (driver of CUDA {major}.{minor}), {sums}", gpu.name()));
            Some(gpu.clone())
        }
        Err(error) => {
            missed(format!("it does not sum as the reference does: {error:#}"));
            None
        }
    }
}

fn add_offload(lab: &Lab, gpu: &Rc<Gpu>, chosen: &mut Chosen) {
    let cold = Rc::new(RefCell::new(Cold::new(if lab.quick { AREA / 8 } else { AREA })));
    let offload = |size| Offload { gpu: gpu.clone(), cold: cold.clone(), size };
    for &size in if lab.quick { &QUICK_SIZES[..] } else { &SIZES } {
        chosen.add("checksum", Rate { offload: offload(size), algorithm: Algorithm::Internet });
    }
    for size in QUICK_SIZES {
        chosen.add("checksum", Rate { offload: offload(size), algorithm: Algorithm::Fletcher });
        chosen.add("checksum", BreakEven { offload: offload(size) });
    }
}

fn add_path(lab: &Lab, gpu: Option<&Rc<Gpu>>, chosen: &mut Chosen, missing: &mut Vec<Skipped>) {
    let Some(path) = open_path(lab, missing) else { return };
    let gpu = if gpu.is_some() { &Way::GPU[..] } else { &[] };
    let receive = |socket, size, ways: [&[Way]; 2]| Receive { path: path.clone(), socket, size, ways: ways.concat() };
    // The first is judged: by its throughput against none, and by what it leaves of the processor against the scalar
    // way.
    let (simd_first, gpu_first) = ([&Way::PROCESSOR[..], gpu], [gpu, &Way::PROCESSOR[..]]);
    for socket in Socket::ALL {
        for &size in if lab.quick { &QUICK_SIZES[..] } else { &SIZES } {
            chosen.add("checksum", Throughput { receive: receive(socket, size, simd_first), turn: 0, skip: None });
        }
    }
    for socket in Socket::ALL {
        for size in TABLE_SIZES {
            chosen
                .add("checksum", Idle { receive: receive(socket, size, gpu_first), turn: 0, rate: 0.0, scalar: None });
        }
    }
    for beside in [false, true] {
        for socket in Socket::ALL {
            for size in TABLE_SIZES {
                chosen.add("checksum", Stages { receive: receive(socket, size, simd_first), turn: 0, beside });
            }
        }
    }
}

/// A cable for packets, if there can be one.
fn open_path(lab: &Lab, missing: &mut Vec<Skipped>) -> Option<Rc<Path>> {
    let mut missed = |why: String| missing.push(skipped("receive path", why));
    let Some(processors) = lab.processors else {
        missed("the idle share is the receiver's processor's, and there is but one".to_string());
        return None;
    };
    match Path::new(processors, Gpu::open) {
        Ok(path) => Some(Rc::new(path)),
        Err(error) => {
            missed(format!("{error:#}"));
            None
        }
    }
}

/// Curves and cells: the groups of their measurements.
pub mod table {
    pub use super::kernels::{Contestant, Task};
    pub use super::load::{Socket, Stage};
    pub use super::sums::Way;

    /// Throughput over the size.
    pub fn throughput(socket: Socket, way: Way) -> String {
        format!("{}, {}", socket.name(), way.name())
    }

    /// What the processor sums, or copies and sums, in a second.
    pub fn kernel(task: Task, contestant: Contestant, is_hot: bool) -> String {
        format!("{}, {}, {}", task.name(), if is_hot { "hot" } else { "cold" }, contestant.name())
    }

    /// Octets out of no cache that are summed in a second by RFC 1071, in large batches.
    pub fn cold(way: Way) -> String {
        format!("cold, {}", way.name())
    }

    /// The idle share of the receiver's processor.
    pub fn idle(socket: Socket, way: Way) -> String {
        format!("{}: idle", throughput(socket, way))
    }

    /// What a stage takes of the receiver's processor.
    pub fn stage(socket: Socket, way: Way, stage: Stage, beside: bool) -> String {
        format!("{}{}: {}", throughput(socket, way), if beside { ", beside" } else { "" }, stage.name(socket, way))
    }
}
