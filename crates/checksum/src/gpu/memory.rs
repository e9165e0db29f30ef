//! Memory and streams of the driver, given back when they are dropped.

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::thread;
use std::time::{Duration, Instant};

use super::driver::{ALREADY_REGISTERED, Address, Code, Handle, MAPPED, NON_BLOCKING, OUT_OF_MEMORY};
use super::{Gpu, GpuError, NOT_READY, SUCCESS};

/// Memory of the host that stays where it is and is the GPU's as well.
pub(crate) struct Pinned {
    gpu: Rc<Gpu>,
    start: NonNull<u8>,
    address: Address,
}

impl Pinned {
    pub(crate) fn new(gpu: &Rc<Gpu>, octets: usize) -> Result<Pinned, GpuError> {
        let mut start = ptr::null_mut();
        // SAFETY: it writes a pointer.
        let code = unsafe { (gpu.table.allocate_host)(&mut start, octets, MAPPED) };
        allocated(gpu, "cuMemHostAlloc", octets, code)?;
        let start = NonNull::new(start.cast()).ok_or(GpuError::NoMemory { call: "cuMemHostAlloc", octets })?;
        let mut memory = Pinned { gpu: gpu.clone(), start, address: 0 };
        memory.address = address_of(gpu, start.as_ptr())?;
        Ok(memory)
    }

    pub(crate) fn zeroed(gpu: &Rc<Gpu>, octets: usize) -> Result<Pinned, GpuError> {
        let memory = Pinned::new(gpu, octets)?;
        // SAFETY: it is that long, and nobody else's yet.
        unsafe { ptr::write_bytes(memory.start(), 0, octets) };
        Ok(memory)
    }

    pub(crate) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }

    /// A word that the GPU may write at any time.
    ///
    /// # Safety
    /// It has to lie in this memory, aligned.
    pub(crate) unsafe fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: see above; nobody writes it but in whole words.
        unsafe { AtomicU64::from_ptr(self.start().add(at).cast()) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: it was allocated so.
        unsafe { (self.gpu.table.free_host)(self.start().cast()) };
    }
}

/// Memory that the caller owns and the GPU may read.
pub(crate) struct Registered {
    gpu: Rc<Gpu>,
    area: NonNull<[u8]>,
    address: Address,
}

impl Registered {
    /// # Safety
    /// The memory has to stay until this is dropped.
    pub(crate) unsafe fn new(gpu: &Rc<Gpu>, area: NonNull<[u8]>) -> Result<Registered, GpuError> {
        const PAGE: usize = 4096;
        let (start, octets) = (area.cast::<u8>().as_ptr(), area.len());
        if !start.addr().is_multiple_of(PAGE) || !octets.is_multiple_of(PAGE) || octets == 0 {
            return Err(GpuError::NotWholePages { page: PAGE });
        }
        // SAFETY: the caller's memory.
        let code = unsafe { (gpu.table.register)(start.cast(), octets, MAPPED) };
        match code {
            SUCCESS => {}
            ALREADY_REGISTERED => return Err(GpuError::AlreadyRegistered),
            _ => return Err(GpuError::NotRegistered { octets, name: gpu.table.name(code) }),
        }
        let mut registered = Registered { gpu: gpu.clone(), area, address: 0 };
        registered.address = address_of(gpu, start)?;
        Ok(registered)
    }

    /// Where the GPU sees these octets, if all of them are here.
    pub(crate) fn find(&self, octets: &[u8]) -> Option<Address> {
        let at = octets.as_ptr().addr().checked_sub(self.area.cast::<u8>().as_ptr().addr())?;
        let end = at.checked_add(octets.len())?;
        (end <= self.area.len()).then(|| self.address + at as Address)
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: it was registered so.
        unsafe { (self.gpu.table.unregister)(self.area.cast::<c_void>().as_ptr()) };
    }
}

/// Memory of the GPU.
pub(crate) struct Device {
    gpu: Rc<Gpu>,
    address: Address,
}

impl Device {
    pub(crate) fn new(gpu: &Rc<Gpu>, octets: usize) -> Result<Device, GpuError> {
        let mut address = 0;
        // SAFETY: it writes an address.
        let code = unsafe { (gpu.table.allocate)(&mut address, octets) };
        allocated(gpu, "cuMemAlloc", octets, code)?;
        Ok(Device { gpu: gpu.clone(), address })
    }

    pub(crate) fn address(&self) -> Address {
        self.address
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: it was allocated so.
        unsafe { (self.gpu.table.free)(self.address) };
    }
}

/// What the GPU does in order.
pub(crate) struct Stream {
    gpu: Rc<Gpu>,
    handle: Handle,
}

impl Stream {
    pub(crate) fn new(gpu: &Rc<Gpu>) -> Result<Stream, GpuError> {
        let mut handle = ptr::null_mut();
        // SAFETY: it writes a handle.
        gpu.check("cuStreamCreate", unsafe { (gpu.table.stream)(&mut handle, NON_BLOCKING) })?;
        Ok(Stream { gpu: gpu.clone(), handle })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle
    }

    /// Whether all is done.
    pub(crate) fn is_through(&self) -> Result<bool, GpuError> {
        // SAFETY: a stream of ours.
        match unsafe { (self.gpu.table.query)(self.handle) } {
            NOT_READY => Ok(false),
            code => self.gpu.check("cuStreamQuery", code).map(|()| true),
        }
    }

    /// Waits until all is done, as long as it takes.
    pub(crate) fn synchronize(&self) -> Result<(), GpuError> {
        // SAFETY: a stream of ours.
        self.gpu.check("cuStreamSynchronize", unsafe { (self.gpu.table.synchronize)(self.handle) })
    }

    /// Waits until all is done, but not longer than this.
    pub(crate) fn wait(&self, limit: Duration) -> Result<(), GpuError> {
        let start = Instant::now();
        while !self.is_through()? {
            if start.elapsed() > limit {
                return Err(GpuError::Timeout(limit));
            }
            thread::sleep(Duration::from_micros(50));
        }
        Ok(())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: it was made so.
        unsafe { (self.gpu.table.free_stream)(self.handle) };
    }
}

fn address_of(gpu: &Gpu, start: *mut u8) -> Result<Address, GpuError> {
    let mut address = 0;
    // SAFETY: it writes an address.
    let code = unsafe { (gpu.table.address_of)(&mut address, start.cast(), 0) };
    gpu.check("cuMemHostGetDevicePointer", code).map(|()| address)
}

fn allocated(gpu: &Gpu, call: &'static str, octets: usize, code: Code) -> Result<(), GpuError> {
    if code == OUT_OF_MEMORY { Err(GpuError::NoMemory { call, octets }) } else { gpu.check(call, code) }
}
