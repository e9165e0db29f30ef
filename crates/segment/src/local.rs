//! Variables that each thread has for itself.
//!
//! std's `thread_local!` finds a library's variables by a function of the loader's. Once the program has opened many
//! libraries with such variables, that function allocates memory at a thread's next access, perhaps in a recv in a
//! signal handler that has interrupted malloc. But a library that is loaded at the program's start has its variables at
//! a fixed distance from the thread's control block (the initial-exec model of ELF). Compilers use that only if they
//! are told so for a whole library.
#![allow(unsafe_code, reason = "finds memory by an instruction of its own")]

/// Defines variables that each thread has for itself, with methods like a `Cell`'s. Their first value has to be all
/// zeros, and their names must be different in the whole library.
#[macro_export]
macro_rules! of_each_thread {
    ($($(#[$about:meta])* static $name:ident: $type:ty = $first:tt;)+) => {$(
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        core::arch::global_asm!(
            ".pushsection .tbss,\"awT\",@nobits",
            ".balign 16",
            concat!(".hidden underpass_", stringify!($name)),
            concat!(".globl underpass_", stringify!($name)),
            concat!(".type underpass_", stringify!($name), ", @object"),
            concat!("underpass_", stringify!($name), ":"),
            ".zero {size}",
            ".popsection",
            size = const size_of::<$type>(),
        );
        $(#[$about])*
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        static $name: $crate::local::Local<$type> = {
            const {
                assert!(align_of::<$type>() <= 16);
                // SAFETY: the compiler looks whether zeros are one of its values.
                let first: $type = unsafe { core::mem::zeroed() };
                let $first = first else { panic!("not all zeros") };
            }
            fn find() -> *mut $type {
                let at;
                // SAFETY: adds the distance to the address of the control block, which is at its beginning.
                unsafe {
                    core::arch::asm!(
                        concat!("mov {at}, qword ptr [rip + underpass_", stringify!($name), "@GOTTPOFF]"),
                        "add {at}, qword ptr fs:[0]",
                        at = out(reg) at,
                        options(pure, nomem, nostack),
                    );
                }
                at
            }
            // SAFETY: the memory has this size and alignment, is zeroed, and is this thread's alone.
            unsafe { $crate::local::Local::new(find) }
        };
        #[cfg(not(all(target_arch = "x86_64", not(loom))))]
        std::thread_local! {
            $(#[$about])*
            // SAFETY: the compiler looks whether zeros are one of its values.
            static $name: core::cell::Cell<$type> = const { unsafe { core::mem::zeroed() } };
        }
    )+};
}

/// One of these variables.
pub struct Local<T>(fn() -> *mut T);

impl<T: Copy> Local<T> {
    /// The variable at what `find` returns.
    ///
    /// # Safety
    /// That must be valid, another place in each thread, and used by nobody else.
    pub const unsafe fn new(find: fn() -> *mut T) -> Local<T> {
        Local(find)
    }

    /// The value in this thread.
    #[inline]
    pub fn get(&self) -> T {
        // SAFETY: as `new` was promised. A signal handler comes before or after.
        unsafe { (self.0)().read() }
    }

    /// Changes it.
    #[inline]
    pub fn set(&self, value: T) {
        // SAFETY: as in `get`.
        unsafe { (self.0)().write(value) }
    }

    /// Changes it, and returns the value before.
    #[inline]
    pub fn replace(&self, value: T) -> T {
        let before = self.get();
        self.set(value);
        before
    }

    /// Puts the default in its place, and returns the value before.
    #[inline]
    pub fn take(&self) -> T
    where
        T: Default,
    {
        self.replace(T::default())
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    crate::of_each_thread! {
        static PAIR: (u32, u64) = (0, 0);
        static BYTE: u8 = 0;
        static PERHAPS: Option<u64> = None;
    }

    #[test]
    fn each_thread_has_its_own() {
        let use_them = |number: u8| {
            for round in 0..1000 {
                let (number, round) = (number + 1, u64::from(round == 0));
                let before = (1 - round) * u64::from(number);
                assert_eq!((PAIR.get(), BYTE.get()), ((before as u32, before), before as u8));
                assert_eq!(PERHAPS.take(), (round == 0).then_some(before));
                PAIR.set((number.into(), number.into()));
                assert_eq!(u64::from(BYTE.replace(number)), before);
                PERHAPS.set(Some(number.into()));
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| [1, 2, 3].map(|it| scope.spawn(move || use_them(it))).map(|it| it.join().unwrap()));
    }
}
