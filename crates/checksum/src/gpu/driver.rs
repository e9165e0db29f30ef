//! The driver's functions, found at run time: nothing of CUDA is linked, or needed to build.
//!
//! A test fills the table with functions of its own.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::ptr;

use super::GpuError;

/// A CUresult.
pub(crate) type Code = c_int;
/// A CUdeviceptr: an address as the GPU sees it.
pub(crate) type Address = u64;
/// A CUcontext, CUmodule, CUfunction or CUstream.
pub(crate) type Handle = *mut c_void;

pub(crate) const SUCCESS: Code = 0;
pub(crate) const OUT_OF_MEMORY: Code = 2;
pub(crate) const NO_DEVICE: Code = 100;
/// The kernels are for another kind of GPU, not understood, or of a later version than the driver.
pub(crate) const CANNOT_LOAD: [Code; 3] = [209, 218, 222];
/// The driver's own library for that is missing.
pub(crate) const NO_COMPILER: Code = 221;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const ALREADY_REGISTERED: Code = 712;

/// A context's waits sleep instead of spinning.
pub(crate) const SCHEDULE_BLOCKING: c_uint = 4;
/// Host memory that the GPU may read and write; cached, since the processor reads it too.
pub(crate) const MAPPED: c_uint = 2;
/// A stream that does not wait for the default one.
pub(crate) const NON_BLOCKING: c_uint = 1;

/// What the loader says, rather than that it said something.
fn reason(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), |source| source.to_string())
}

macro_rules! table {
    ($($name:ident = $symbol:ident($($argument:ty),*);)*) => {
        /// The driver's functions, as cuda.h of CUDA 13.0 declares them.
        pub(crate) struct Table {
            $(pub(crate) $name: unsafe extern "C" fn($($argument),*) -> Code,)*
        }

        impl Table {
            /// All of them, or the first that is missing.
            pub(crate) fn load(file: &str) -> Result<Table, GpuError> {
                // SAFETY: the driver's library has no conditions on when it is loaded.
                let library = unsafe { libloading::Library::new(file) };
                let library = library.map_err(|error| GpuError::NoDriver(reason(&error)))?;
                let table = Table {
                    // SAFETY: the types are those of cuda.h.
                    $($name: *unsafe { library.get(stringify!($symbol)) }
                        .map_err(|_| GpuError::NoFunction(stringify!($symbol)))?,)*
                };
                // The driver has threads of its own, which outlive its use.
                std::mem::forget(library);
                Ok(table)
            }
        }
    };
}

table! {
    init = cuInit(c_uint);
    version = cuDriverGetVersion(*mut c_int);
    error_name = cuGetErrorName(Code, *mut *const c_char);
    device_count = cuDeviceGetCount(*mut c_int);
    device = cuDeviceGet(*mut c_int, c_int);
    device_name = cuDeviceGetName(*mut c_char, c_int, c_int);
    set_context_flags = cuDevicePrimaryCtxSetFlags_v2(c_int, c_uint);
    retain_context = cuDevicePrimaryCtxRetain(*mut Handle, c_int);
    release_context = cuDevicePrimaryCtxRelease_v2(c_int);
    set_context = cuCtxSetCurrent(Handle);
    load_module = cuModuleLoadData(*mut Handle, *const c_void);
    unload_module = cuModuleUnload(Handle);
    function = cuModuleGetFunction(*mut Handle, Handle, *const c_char);
    allocate = cuMemAlloc_v2(*mut Address, usize);
    free = cuMemFree_v2(Address);
    allocate_host = cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
    free_host = cuMemFreeHost(*mut c_void);
    register = cuMemHostRegister_v2(*mut c_void, usize, c_uint);
    unregister = cuMemHostUnregister(*mut c_void);
    address_of = cuMemHostGetDevicePointer_v2(*mut Address, *mut c_void, c_uint);
    copy_in = cuMemcpyHtoDAsync_v2(Address, *const c_void, usize, Handle);
    copy_out = cuMemcpyDtoHAsync_v2(*mut c_void, Address, usize, Handle);
    stream = cuStreamCreate(*mut Handle, c_uint);
    free_stream = cuStreamDestroy_v2(Handle);
    query = cuStreamQuery(Handle);
    synchronize = cuStreamSynchronize(Handle);
    launch = cuLaunchKernel(
        Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
    );
}

impl Table {
    /// The driver's name for an error.
    pub(crate) fn name(&self, code: Code) -> String {
        let mut name = ptr::null();
        // SAFETY: it writes one pointer, to a text that is never freed, or null where it knows no name.
        unsafe {
            (self.error_name)(code, &mut name);
            if name.is_null() { "an unknown error".into() } else { CStr::from_ptr(name).to_string_lossy().into_owned() }
        }
    }

    /// An answer of the driver as an error of ours.
    pub(crate) fn check(&self, call: &'static str, code: Code) -> Result<(), GpuError> {
        match code {
            SUCCESS => Ok(()),
            NO_DEVICE => Err(GpuError::NoGpu),
            _ => Err(GpuError::Call { call, code, name: self.name(code) }),
        }
    }
}
