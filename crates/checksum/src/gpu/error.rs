//! What can go wrong with a GPU, and what helps.

use std::time::Duration;

/// Why a GPU is not used, or no longer. Whatever was on its way is computed by the processor then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GpuError {
    /// The driver's library could not be loaded.
    #[error("there is no driver for GPUs by NVIDIA ({0}): install one of CUDA 13.0 (580) or later")]
    NoDriver(String),
    /// The driver lacks a function.
    #[error("the GPU's driver has no {0}: install one of CUDA 13.0 (580) or later")]
    NoFunction(&'static str),
    /// A driver without anything to drive.
    #[error("the driver finds no GPU: see what `nvidia-smi` lists, and CUDA_VISIBLE_DEVICES")]
    NoGpu,
    /// The kernels' PTX is newer than the driver, or their target newer than the GPU.
    #[error(
        "the driver (CUDA {}.{}) cannot compile the kernels for this GPU ({name}): install a driver of CUDA 13.0 (580) \
         or later; the GPU has to be of compute capability 8.0 or later", driver / 1000, driver % 1000 / 10
    )]
    TooOld {
        /// As `cuDriverGetVersion` says it: 1000 · major + 10 · minor.
        driver: i32,
        /// The driver's name for the error.
        name: String,
    },
    /// The driver lacks its compiler, a library of its own.
    #[error(
        "the GPU's driver has no libnvidia-ptxjitcompiler.so.1: install all of the driver's libraries, in a container \
         too"
    )]
    NoCompiler,
    /// No more memory of the GPU, or none that may be locked.
    #[error(
        "no memory is left for {octets} octets ({call}): ask for fewer packets to a batch, or end what else uses the \
         GPU"
    )]
    NoMemory {
        /// The driver's function.
        call: &'static str,
        /// How many octets were asked for.
        octets: usize,
    },
    /// The packet memory cannot be made known to the driver.
    #[error("{octets} octets of packet memory cannot be locked ({name}): raise RLIMIT_MEMLOCK (`ulimit -l`)")]
    NotRegistered {
        /// Its length.
        octets: usize,
        /// The driver's name for the error.
        name: String,
    },
    /// The packet memory is known to the driver already.
    #[error(
        "the packet memory is registered with the GPU's driver already: use the engine that has it; if that one gave \
         its GPU up, take other memory"
    )]
    AlreadyRegistered,
    /// The packet memory does not begin and end on a page.
    #[error("packet memory for the GPU has to be whole pages of {page} octets")]
    NotWholePages {
        /// A page's length.
        page: usize,
    },
    /// Limits that make no batch.
    #[error("a batch has to have 1 to {} packets of 1 to {} octets", super::MOST_PACKETS, super::MOST_OCTETS)]
    Limits,
    /// Any other answer of the driver.
    #[error("the GPU failed: {call} says {name} ({code}); its driver's messages are in `dmesg`")]
    Call {
        /// The driver's function.
        call: &'static str,
        /// Its answer, a CUresult.
        code: i32,
        /// The driver's name for it.
        name: String,
    },
    /// A batch was not ready in time.
    #[error("the GPU did not answer within {0:?}: see `nvidia-smi` and `dmesg`")]
    Timeout(Duration),
    /// The GPU says that it is done, but not every packet has its answer.
    #[error("the GPU left packets without an answer")]
    Incomplete,
    /// What it computes is not what the processor computes of the same octets.
    #[error("the GPU computes wrong sums")]
    Wrong,
}
