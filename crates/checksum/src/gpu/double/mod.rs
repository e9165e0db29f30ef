//! A driver without a GPU: its functions do what the real ones do to the host's memory, in order and when told to, and
//! fail when told to. The kernels that it is given are executed ([`ptx`]).

mod ptx;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::{alloc, ptr};

use ptx::Kernel;

use super::driver::{ALREADY_REGISTERED, Address, Code, Handle, NOT_READY, SUCCESS, Table};

/// What a test asks of the driver, and what it has seen.
#[derive(Default)]
struct Double {
    /// Calls that are still answered well, and the answer from then on, by the function's name.
    failing: HashMap<&'static str, (usize, Code)>,
    /// The GPU does nothing until the test lets it.
    held: bool,
    /// The number of the packet that gets no answer.
    left_out: Option<u32>,
    /// The kernels compute something else.
    wrong: bool,
    kernels: HashMap<String, Kernel>,
    queue: VecDeque<Work>,
    /// Memory by its start, with its length and whether it is ours to free.
    memory: BTreeMap<u64, (usize, bool)>,
    launches: usize,
}

#[derive(Clone, Copy)]
enum Work {
    Copy { to: u64, from: u64, len: usize },
    Run { kernel: &'static str, blocks: u32, threads: u32, parameters: [u64; 3] },
}

/// Handles are their places, counted from 1.
const KERNELS: [&str; 2] = ["internet", "fletcher"];

thread_local! {
    static DOUBLE: RefCell<Double> = RefCell::default();
}

/// A driver that has been asked nothing yet.
pub(crate) fn table() -> Table {
    DOUBLE.take();
    Table {
        init,
        version,
        error_name,
        device_count,
        device,
        device_name,
        set_context_flags,
        retain_context,
        release_context,
        set_context,
        load_module,
        unload_module,
        function,
        allocate,
        free,
        allocate_host,
        free_host,
        register,
        unregister,
        address_of,
        copy_in,
        copy_out,
        stream,
        free_stream,
        query,
        synchronize,
        launch,
    }
}

/// This function fails so after as many calls.
pub(crate) fn fail(function: &'static str, after: usize, code: Code) {
    DOUBLE.with_borrow_mut(|it| it.failing.insert(function, (after, code)));
}

/// The GPU does nothing, until [`release`].
pub(crate) fn hold() {
    DOUBLE.with_borrow_mut(|it| it.held = true);
}

/// The GPU does what it was asked, and all else at once.
pub(crate) fn release() {
    DOUBLE.with_borrow_mut(|it| {
        it.held = false;
        it.work();
    });
}

/// The packet of this number is left without an answer in every batch.
pub(crate) fn leave_out(number: u32) {
    DOUBLE.with_borrow_mut(|it| it.left_out = Some(number));
}

/// The kernels compute something else.
pub(crate) fn be_wrong() {
    DOUBLE.with_borrow_mut(|it| it.wrong = true);
}

/// Batches that were launched.
pub(crate) fn launches() -> usize {
    DOUBLE.with_borrow(|it| it.launches)
}

/// Pieces of memory that were neither freed nor unregistered.
pub(crate) fn pieces() -> usize {
    DOUBLE.with_borrow(|it| it.memory.len())
}

impl Double {
    fn add(&mut self, work: Work) {
        self.queue.push_back(work);
        if !self.held {
            self.work();
        }
    }

    fn work(&mut self) {
        while let Some(work) = self.queue.pop_front() {
            match work {
                Work::Copy { to, from, len } => {
                    self.check(to, len);
                    self.check(from, len);
                    // SAFETY: both were checked.
                    unsafe { ptr::copy(from as *const u8, to as *mut u8, len) };
                }
                Work::Run { kernel, blocks, threads, parameters } => {
                    for block in (0..blocks).filter(|&block| Some(block) != self.left_out) {
                        self.kernels[kernel].run(block, threads, &parameters, |start, len| self.check(start, len));
                    }
                    if self.wrong {
                        let answers = parameters[1] as *mut u64;
                        // SAFETY: the first block has just written there.
                        unsafe { answers.write(answers.read() ^ 1) };
                    }
                }
            }
        }
    }

    /// All of it lies in one piece of memory that the driver knows.
    fn check(&self, start: u64, len: usize) {
        let found = self.memory.range(..=start).next_back();
        let end = found.map_or(0, |(at, (len, _))| at + *len as u64);
        assert!(len == 0 || start + len as u64 <= end, "{len} octets at {start:#x} are not the driver's");
    }
}

/// The answer of this function, which is done unless it fails.
fn answer(function: &'static str, done: impl FnOnce(&mut Double)) -> Code {
    DOUBLE.with_borrow_mut(|it| {
        if let Some((after, code)) = it.failing.get_mut(function) {
            if *after == 0 {
                return *code;
            }
            *after -= 1;
        }
        done(it);
        SUCCESS
    })
}

fn layout(octets: usize) -> alloc::Layout {
    alloc::Layout::from_size_align(octets, 4096).unwrap()
}

fn allocated(octets: usize, it: &mut Double) -> u64 {
    // SAFETY: nobody asks for nothing.
    let start = unsafe { alloc::alloc(layout(octets)) }.addr() as u64;
    // What is read before it is written is no zero.
    // SAFETY: it was allocated above.
    unsafe { ptr::write_bytes(start as *mut u8, 0xa5, octets) };
    it.memory.insert(start, (octets, true));
    start
}

fn freed(start: u64, it: &mut Double) {
    assert!(it.queue.is_empty(), "the driver would wait for the GPU here");
    if let Some((octets, true)) = it.memory.remove(&start) {
        // SAFETY: it was allocated so.
        unsafe { alloc::dealloc(start as *mut u8, layout(octets)) };
    }
}

/// Writes to a place that the caller gives.
fn put<T>(place: *mut T, value: T) {
    // SAFETY: the callers are those of this crate, which give places of their own.
    unsafe { place.write(value) };
}

unsafe extern "C" fn init(_: c_uint) -> Code {
    answer("cuInit", |_| ())
}

unsafe extern "C" fn version(place: *mut c_int) -> Code {
    answer("cuDriverGetVersion", |_| put(place, 13_000))
}

unsafe extern "C" fn error_name(_: Code, place: *mut *const c_char) -> Code {
    put(place, c"CUDA_ERROR_OF_A_TEST".as_ptr());
    SUCCESS
}

unsafe extern "C" fn device_count(place: *mut c_int) -> Code {
    answer("cuDeviceGetCount", |_| put(place, 1))
}

unsafe extern "C" fn device(place: *mut c_int, _: c_int) -> Code {
    answer("cuDeviceGet", |_| put(place, 0))
}

unsafe extern "C" fn device_name(place: *mut c_char, _: c_int, _: c_int) -> Code {
    answer("cuDeviceGetName", |_| put(place.cast(), *b"a double\0"))
}

unsafe extern "C" fn set_context_flags(_: c_int, _: c_uint) -> Code {
    SUCCESS
}

unsafe extern "C" fn retain_context(place: *mut Handle, _: c_int) -> Code {
    answer("cuDevicePrimaryCtxRetain", |_| put(place, ptr::without_provenance_mut(8)))
}

unsafe extern "C" fn release_context(_: c_int) -> Code {
    SUCCESS
}

unsafe extern "C" fn set_context(_: Handle) -> Code {
    answer("cuCtxSetCurrent", |_| ())
}

unsafe extern "C" fn load_module(place: *mut Handle, text: *const c_void) -> Code {
    // SAFETY: a text with a zero at its end.
    let text = unsafe { CStr::from_ptr(text.cast()) };
    answer("cuModuleLoadData", |it| {
        it.kernels = ptx::parse(text.to_str().unwrap());
        put(place, ptr::without_provenance_mut(8));
    })
}

unsafe extern "C" fn unload_module(_: Handle) -> Code {
    SUCCESS
}

unsafe extern "C" fn function(place: *mut Handle, _: Handle, name: *const c_char) -> Code {
    // SAFETY: a text with a zero at its end.
    let at = KERNELS.iter().position(|kernel| kernel.as_bytes() == unsafe { CStr::from_ptr(name) }.to_bytes());
    answer("cuModuleGetFunction", |_| put(place, ptr::without_provenance_mut(1 + at.unwrap())))
}

unsafe extern "C" fn allocate(place: *mut Address, octets: usize) -> Code {
    answer("cuMemAlloc", |it| put(place, allocated(octets, it)))
}

unsafe extern "C" fn free(start: Address) -> Code {
    answer("cuMemFree", |it| freed(start, it))
}

unsafe extern "C" fn allocate_host(place: *mut *mut c_void, octets: usize, _: c_uint) -> Code {
    answer("cuMemHostAlloc", |it| put(place, allocated(octets, it) as *mut c_void))
}

unsafe extern "C" fn free_host(start: *mut c_void) -> Code {
    answer("cuMemFreeHost", |it| freed(start as u64, it))
}

unsafe extern "C" fn register(start: *mut c_void, octets: usize, _: c_uint) -> Code {
    if DOUBLE.with_borrow(|it| it.memory.contains_key(&(start as u64))) {
        return ALREADY_REGISTERED;
    }
    answer("cuMemHostRegister", |it| {
        it.memory.insert(start as u64, (octets, false));
    })
}

unsafe extern "C" fn unregister(start: *mut c_void) -> Code {
    answer("cuMemHostUnregister", |it| freed(start as u64, it))
}

unsafe extern "C" fn address_of(place: *mut Address, start: *mut c_void, _: c_uint) -> Code {
    answer("cuMemHostGetDevicePointer", |_| put(place, start as u64))
}

unsafe extern "C" fn copy_in(to: Address, from: *const c_void, len: usize, _: Handle) -> Code {
    answer("cuMemcpyHtoDAsync", |it| it.add(Work::Copy { to, from: from as u64, len }))
}

unsafe extern "C" fn copy_out(to: *mut c_void, from: Address, len: usize, _: Handle) -> Code {
    answer("cuMemcpyDtoHAsync", |it| it.add(Work::Copy { to: to as u64, from, len }))
}

unsafe extern "C" fn stream(place: *mut Handle, _: c_uint) -> Code {
    answer("cuStreamCreate", |_| put(place, ptr::without_provenance_mut(8)))
}

unsafe extern "C" fn free_stream(_: Handle) -> Code {
    SUCCESS
}

unsafe extern "C" fn query(_: Handle) -> Code {
    let code = answer("cuStreamQuery", |_| ());
    let is_through = DOUBLE.with_borrow(|it| it.queue.is_empty());
    if code == SUCCESS && !is_through { NOT_READY } else { code }
}

unsafe extern "C" fn synchronize(_: Handle) -> Code {
    answer("cuStreamSynchronize", Double::work)
}

unsafe extern "C" fn launch(
    function: Handle,
    blocks: c_uint,
    _: c_uint,
    _: c_uint,
    threads: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: Handle,
    arguments: *mut *mut c_void,
    _: *mut *mut c_void,
) -> Code {
    answer("cuLaunchKernel", |it| {
        it.launches += 1;
        // SAFETY: the arguments are those of the kernels.
        let parameters = unsafe {
            let batch = (*arguments.add(2)).cast::<u32>().read();
            [(*arguments).cast::<u64>().read(), (*arguments.add(1)).cast::<u64>().read(), batch.into()]
        };
        it.add(Work::Run { kernel: KERNELS[function.addr() - 1], blocks, threads, parameters });
    })
}
