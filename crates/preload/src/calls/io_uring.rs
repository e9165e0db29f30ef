//! The setup of an io_uring, by liburing's functions or by the system call's number: it fails, or it takes the
//! process's connections to the kernel path.

use crate::connection::io_uring::pin_all;
use crate::guest::{errno, settings};
use core::ffi::{c_int, c_long, c_uint, c_void};
use libc::size_t;
use underpass_segment::config::IoUring;

/// io_uring_setup(2), made by `call`. It is refused, unless the user has allowed io_uring. Then no connection is fast
/// any more, because the library does not see what the program asks for through io_uring.
fn set_up<T: PartialOrd + From<i8>>(refuse: impl FnOnce() -> T, call: impl FnOnce() -> T) -> T {
    if settings::config().io_uring != IoUring::Allow {
        return refuse();
    }
    let answer = call();
    if answer >= T::from(0) {
        pin_all();
    }
    answer
}

/// The system call by its number.
pub fn io_uring_setup_by(call: impl FnOnce() -> c_long) -> c_long {
    let refuse = || {
        errno::set(libc::ENOSYS);
        -1
    };
    set_up(refuse, call)
}

/// The answer of liburing's functions.
const REFUSED: c_int = -libc::ENOSYS;

macro_rules! liburing {
    ($($name:ident($($arg:ident: $ty:ty),*);)+) => {$(
        /// # Safety
        /// As the function of liburing's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name($($arg: $ty),*) -> c_int {
            set_up(|| REFUSED, || {
                let address = of_liburing(concat!(stringify!($name), "\0"));
                if address.is_null() {
                    return REFUSED;
                }
                // SAFETY: the address is that of liburing's function with this signature.
                let function: unsafe extern "C" fn($($ty),*) -> c_int = unsafe { core::mem::transmute(address) };
                // SAFETY: passed on to the caller.
                unsafe { function($($arg),*) }
            })
        }
    )+};
}

liburing! {
    io_uring_setup(entries: c_uint, params: *mut c_void);
    io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint);
    io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, params: *mut c_void);
    io_uring_queue_init_mem(entries: c_uint, ring: *mut c_void, params: *mut c_void, buffer: *mut c_void, len: size_t);
}

/// The function of this name in liburing, which may have been loaded for one of the program's plugins alone.
fn of_liburing(name: &'static str) -> *mut c_void {
    // SAFETY: NUL-terminated names; what is found loaded stays so, as `dlopen` counts.
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, name.as_ptr().cast());
        if !next.is_null() {
            return next;
        }
        let library = libc::dlopen(c"liburing.so.2".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if library.is_null() { library } else { libc::dlsym(library, name.as_ptr().cast()) }
    }
}
