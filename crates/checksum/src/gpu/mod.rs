//! A GPU that computes the sums of packets: the driver, its memory, and the kernels of kernels.cu.
//!
//! It is found at run time. Open it after the last fork: a child cannot use its parent's.
//!
//! # Measured
//!
//! On 2026-11-22 on a virtual machine with one NVIDIA H100 80GB HBM3 (driver 580.159.04, PCIe 5.0 x16) and 16 Xeon
//! processors (family 6, model 207), all figures in `records/gpu-2026-11-22.json`, by a program that `underpass bench
//! checksum --gpu` has taken the place of, which has not yet been run on a GPU:
//!
//! - 906,354 packets of 0 to 65,537 octets, fresh random ones, zeros and 0xff, had the reference's sums, in both ways
//!   and of both algorithms. compute-sanitizer found no bad access, no race and no read of what was not written.
//! - The bus carries 53.6 GB/s into the GPU in copies of 256 MiB (43.4 in those of 9 MiB, 16.7 of 1 MiB). gpu-umem sums
//!   47.2 GB/s of packets of 9,000 octets in batches of 1,024: 88 % of it. Of 1,480 octets it sums 15.6 GB/s: what the
//!   processor does for each packet, about 45 ns and in that run twice the reading of the clock, is the bound there.
//! - gpu-staged sums 7.5 and 4.3 GB/s: the processor's copy out of cold memory is the bound, and costs it as much as
//!   the sums.
//! - One packet alone takes 11 µs in gpu-umem and 20 µs in gpu-staged, and the processor 5 and 10 µs.
//! - Against scalar sums of packets that are in no cache (7 GB/s), gpu-umem takes less of the processor from 4 packets
//!   of 9,000 octets or 64 of 1,480 on, and is sooner done from 16 or 256 on. gpu-staged takes less only from 1,024 of
//!   9,000 octets on, and is never sooner done.
//! - The measuring processor was idle for this share, while 1,024 packets at a time came at this rate (checksum alone,
//!   nothing else done with a packet):
//!
//! | Octets, Gbit/s | skip | scalar | AVX-512 | gpu-staged | gpu-umem |
//! |---|---|---|---|---|---|
//! | 9,000, 10 | 98 % | 79 % | 87 % | 78 % | 98 % |
//! | 9,000, 40 | 94 % | 21 % | 42 % | 30 % | 91 % |
//! | 9,000, 80 | 93 % | 0 %, 54 Gbit/s | 3 %, 75 Gbit/s | 0 %, 62 Gbit/s | 82 % |
//! | 1,480, 10 | 93 % | 76 % | 78 % | 48 % | 87 % |
//! | 1,480, 40 | 70 % | 5 %, 38 Gbit/s | 17 %, 39 Gbit/s | 0 %, 32 Gbit/s | 59 % |
//! | 1,480, 80 | 54 % | 0 %, 41 Gbit/s | 0 %, 50 Gbit/s | 0 %, 35 Gbit/s | 36 % |
//!
//! # Without a GPU
//!
//! Tests execute the shipped PTX, in a double of the driver. That shows what it computes, that it reads and writes
//! nothing else, and that its threads do not race; not what the hardware does: order in memory between the GPU and the
//! processor, and time.
#![allow(unsafe_code, reason = "calls the driver, and shares memory with the GPU")]

#[cfg(any(test, feature = "double"))]
#[cfg_attr(not(test), allow(dead_code, reason = "other crates' tests have it do nothing but what it is asked"))]
pub(crate) mod double;
pub(crate) mod driver;
mod error;
mod memory;

use std::ffi::{CStr, c_void};
use std::fmt::{self, Debug, Formatter};
use std::ptr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::algorithm::Algorithm;
use crate::{Variant, fletcher, internet};
use driver::{CANNOT_LOAD, Code, Handle, NO_COMPILER, NOT_READY, SCHEDULE_BLOCKING, SUCCESS, Table};
pub use error::GpuError;
pub(crate) use memory::{Device, Pinned, Registered, Stream};

/// Compiled from kernels.cu by packaging/ptx.
const KERNELS: &str = concat!(include_str!("kernels.ptx"), "\0");
/// Threads of the block that sums a packet: a power of two, at most the 256 of kernels.cu.
const THREADS: u32 = 128;
/// The GPU reads whole chunks of this many octets, on their natural boundaries.
pub(crate) const CHUNK: usize = 16;
/// Packets to a batch, at most.
pub const MOST_PACKETS: usize = 1 << 16;
/// Octets to a packet, at most.
pub const MOST_OCTETS: usize = 1 << 20;
/// How long the first use may take, which compiles the kernels.
const FIRST: Duration = Duration::from_secs(10);

/// A packet as the kernels find it.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Descriptor {
    /// Where its first octet is, as the GPU sees it.
    pub(crate) address: u64,
    /// Its length.
    pub(crate) length: u32,
    /// The Internet checksum's sum of what is not in it.
    pub(crate) before: u32,
}

/// The first GPU of this host, with the kernels loaded and tried out.
pub struct Gpu {
    table: Table,
    device: i32,
    module: Handle,
    internet: Handle,
    fletcher: Handle,
    name: String,
    version: i32,
}

impl Gpu {
    /// Finds the GPU, loads the kernels and compares what they compute with the processor's sums.
    pub fn open() -> Result<Rc<Gpu>, GpuError> {
        Gpu::with(Table::load("libcuda.so.1")?)
    }

    /// A double that executes the kernels on this thread, for tests.
    ///
    /// # Errors
    /// None, but it has the type of [`open`](Gpu::open).
    #[cfg(feature = "double")]
    pub fn double() -> Result<Rc<Gpu>, GpuError> {
        Gpu::with(double::table())
    }

    pub(crate) fn with(table: Table) -> Result<Rc<Gpu>, GpuError> {
        let (mut device, mut version, mut count, mut name) = (0, 0, 0, [0; 128]);
        let mut context = ptr::null_mut();
        // SAFETY: each writes what it is given a place for, and the name ends in a zero.
        let name = unsafe {
            table.check("cuInit", (table.init)(0))?;
            table.check("cuDriverGetVersion", (table.version)(&mut version))?;
            table.check("cuDeviceGetCount", (table.device_count)(&mut count))?;
            if count == 0 {
                return Err(GpuError::NoGpu);
            }
            table.check("cuDeviceGet", (table.device)(&mut device, 0))?;
            table.check("cuDeviceGetName", (table.device_name)(name.as_mut_ptr(), name.len() as i32 - 1, device))?;
            // Refused where a context is in use already, which then keeps its own way to wait.
            (table.set_context_flags)(device, SCHEDULE_BLOCKING);
            table.check("cuDevicePrimaryCtxRetain", (table.retain_context)(&mut context, device))?;
            CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned()
        };
        let null = ptr::null_mut();
        let mut gpu = Gpu { table, device, module: null, internet: null, fletcher: null, name, version };
        gpu.load(context)?;
        let gpu = Rc::new(gpu);
        gpu.try_out()?;
        Ok(gpu)
    }

    fn load(&mut self, context: Handle) -> Result<(), GpuError> {
        let table = &self.table;
        // SAFETY: the PTX and the names end in a zero; the handles are the driver's own.
        unsafe {
            table.check("cuCtxSetCurrent", (table.set_context)(context))?;
            let code = (table.load_module)(&mut self.module, KERNELS.as_ptr().cast());
            if CANNOT_LOAD.contains(&code) {
                return Err(GpuError::TooOld { driver: self.version, name: table.name(code) });
            }
            if code == NO_COMPILER {
                return Err(GpuError::NoCompiler);
            }
            table.check("cuModuleLoadData", code)?;
            for (function, name) in [(&mut self.internet, c"internet"), (&mut self.fletcher, c"fletcher")] {
                table.check("cuModuleGetFunction", (table.function)(function, self.module, name.as_ptr()))?;
            }
        }
        Ok(())
    }

    /// What the driver calls it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The newest CUDA of the driver, as major and minor.
    pub fn driver(&self) -> (i32, i32) {
        (self.version / 1000, self.version % 1000 / 10)
    }

    /// Octets per second from locked memory of the host into the GPU's, in the largest copies: what no batch can
    /// exceed.
    pub fn host_to_device_rate(self: &Rc<Gpu>) -> Result<f64, GpuError> {
        const OCTETS: usize = 256 << 20;
        let (from, to) = (Pinned::new(self, OCTETS)?, Device::new(self, OCTETS)?);
        // SAFETY: the memory is ours, and as long.
        unsafe { ptr::write_bytes(from.start(), 0x5a, OCTETS) };
        let stream = Stream::new(self)?;
        let mut best = 0f64;
        for _ in 0..12 {
            let start = Instant::now();
            // SAFETY: both are as long, and live until the stream has been waited for.
            unsafe { self.copy_in(&stream, to.address(), from.start(), OCTETS)? };
            stream.synchronize()?;
            best = best.max(OCTETS as f64 / start.elapsed().as_secs_f64());
        }
        Ok(best)
    }

    /// Copies host memory into the GPU's, some time.
    ///
    /// # Safety
    /// Both places have to be as long, and stay until the stream is through.
    pub(crate) unsafe fn copy_in(&self, stream: &Stream, to: u64, from: *const u8, len: usize) -> Result<(), GpuError> {
        // SAFETY: see above.
        self.check("cuMemcpyHtoDAsync", unsafe { (self.table.copy_in)(to, from.cast(), len, stream.handle()) })
    }

    /// Copies the GPU's memory into the host's, some time.
    ///
    /// # Safety
    /// As [`copy_in`](Self::copy_in).
    pub(crate) unsafe fn copy_out(&self, stream: &Stream, to: *mut u8, from: u64, len: usize) -> Result<(), GpuError> {
        // SAFETY: see above.
        self.check("cuMemcpyDtoHAsync", unsafe { (self.table.copy_out)(to.cast(), from, len, stream.handle()) })
    }

    /// Has the packets' answers written, some time, each with the batch's number in its high half.
    ///
    /// # Safety
    /// There have to be as many descriptors and places for answers, and all of these and the packets' memory, in whole
    /// chunks, have to stay until the stream is through.
    pub(crate) unsafe fn sum(
        &self,
        stream: &Stream,
        algorithm: Algorithm,
        mut descriptors: u64,
        packets: usize,
        mut answers: u64,
        mut batch: u32,
    ) -> Result<(), GpuError> {
        let function = match algorithm {
            Algorithm::Internet => self.internet,
            Algorithm::Fletcher => self.fletcher,
        };
        let mut arguments: [*mut c_void; 3] =
            [(&raw mut descriptors).cast(), (&raw mut answers).cast(), (&raw mut batch).cast()];
        // SAFETY: the arguments are those of kernels.cu; see above for what they point to.
        let code = unsafe {
            (self.table.launch)(
                function,
                packets as u32,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream.handle(),
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.check("cuLaunchKernel", code)
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), GpuError> {
        self.table.check(call, code)
    }

    /// Both kernels on octets that a faulty one would get wrong, in memory that the GPU reads over the bus.
    fn try_out(self: &Rc<Gpu>) -> Result<(), GpuError> {
        const LEN: usize = 1500;
        let memory = Pinned::new(self, 4096)?;
        let stream = Stream::new(self)?;
        let octets: [u8; LEN] = std::array::from_fn(|at| if at < 300 { 0xff } else { (at * at / 8) as u8 });
        // The packet lies behind the descriptor and the answer, at an odd address.
        let (answer, packet) = (CHUNK, 2 * CHUNK + 1);
        let descriptor = Descriptor { address: memory.address() + packet as u64, length: LEN as u32, before: 0x1234 };
        let sum = internet::Sum::from_value(0x1234).then(internet::Sum::by(Variant::Reference, &octets), 0);
        let sums = fletcher::Sums::by(Variant::Reference, &octets);
        let expected = [u32::from(sum.value()), u32::from(sums.c0) | u32::from(sums.c1) << 8];
        // SAFETY: all of it lies in the page, aligned.
        let answer_word = unsafe {
            memory.start().cast::<Descriptor>().write(descriptor);
            ptr::copy_nonoverlapping(octets.as_ptr(), memory.start().add(packet), LEN);
            memory.word(answer)
        };
        for (at, algorithm) in [Algorithm::Internet, Algorithm::Fletcher].into_iter().enumerate() {
            let batch = at as u32 + 1;
            let (descriptors, answers) = (memory.address(), memory.address() + answer as u64);
            // SAFETY: one descriptor, one answer; the memory outlives the stream, which is waited for or leaked.
            let outcome = unsafe { self.sum(&stream, algorithm, descriptors, 1, answers, batch) };
            if let Err(error) = outcome.and_then(|()| stream.wait(FIRST)) {
                std::mem::forget((memory, stream));
                return Err(error);
            }
            if answer_word.load(std::sync::atomic::Ordering::Acquire)
                != u64::from(batch) << 32 | u64::from(expected[at])
            {
                return Err(GpuError::Wrong);
            }
        }
        Ok(())
    }
}

impl Debug for Gpu {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpu").field("name", &self.name).field("driver", &self.driver()).finish_non_exhaustive()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: all that used them held this alive.
        unsafe {
            if !self.module.is_null() {
                (self.table.unload_module)(self.module);
            }
            (self.table.release_context)(self.device);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha256};

    /// Fails if only one of the two was changed: the GPU would run something other than the source that is read.
    #[test]
    fn the_ptx_was_compiled_from_this_source() {
        let digest = Sha256::digest(include_bytes!("kernels.cu"));
        let digest: String = digest.iter().map(|octet| format!("{octet:02x}")).collect();
        let line = KERNELS.lines().next().unwrap();
        assert_eq!(line, format!("// kernels.cu, SHA-256 {digest}"), "kernels.ptx is of another source: make ptx");
    }
}
