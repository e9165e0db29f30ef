//! A call in a thread that has descriptors of its own.
//!
//! vfork makes a process that runs in the calling thread's place, with its memory, until it is done. This makes a thread in the
//! same way. It belongs to the process: what it spawns is the process's child, and what it executes takes the process's place.
//! But what it does to its descriptors nobody else sees. It needs nothing of libc, so it may be made in a signal handler, and in
//! a child that was forked while another thread was inside malloc.

use crate::{memory, real};
use core::cell::Cell;
use core::ffi::{c_int, c_void};
use underpass_segment::kernel;

/// Memory in which such a thread runs.
pub struct Stack {
    memory: *mut u8,
}

impl Stack {
    /// execvp(3) copies the arguments to its stack, of which there may be so many bytes at most (execve(2)).
    const LEN: usize = 8 << 20;

    /// `None` without address space.
    pub fn new() -> Option<Stack> {
        let memory = memory::reserve(Stack::LEN);
        (!memory.is_null()).then_some(Stack { memory })
    }

    fn top(&self) -> *mut c_void {
        // SAFETY: the end of the mapping, which is aligned to pages.
        unsafe { self.memory.add(Stack::LEN) }.cast()
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this value's own, and no thread runs in it: the call has come back.
        unsafe { memory::release(self.memory, Stack::LEN) };
    }
}

/// `prepare` and then `call`, the latter with the calling thread's signal mask. `None` if there can be no such thread.
pub fn apart<T>(stack: &Stack, prepare: impl Fn(), call: impl Fn() -> T) -> Option<T> {
    let answer = Cell::new(None);
    kernel::undisturbed_since(|mask| {
        // It is each thread's own, and stays with what the thread executes.
        let death_signal = kernel::death_signal();
        run(stack, &|| {
            kernel::set_death_signal(death_signal);
            prepare();
            kernel::set_signal_mask(mask);
            answer.set(Some(call()));
        });
    });
    answer.take()
}

/// Runs `body` in such a thread, unless there can be none.
fn run<F: Fn()>(stack: &Stack, body: &F) {
    extern "C" fn begin<F: Fn()>(body: *mut c_void) -> c_int {
        // SAFETY: what `run` has passed along, in the frame of a thread that sleeps.
        unsafe { (*body.cast_const().cast::<F>())() };
        0
    }
    // Without CLONE_FILES. Without CLONE_SETTLS: what is local to the calling thread, errno too, is this one's.
    let flags = libc::CLONE_VM
        | libc::CLONE_VFORK
        | libc::CLONE_THREAD
        | libc::CLONE_SIGHAND
        | libc::CLONE_FS
        | libc::CLONE_SYSVSEM
        | libc::CLONE_IO;
    let (body, null) = (core::ptr::from_ref(body).cast_mut().cast(), core::ptr::null_mut::<c_void>());
    // SAFETY: the stack is the thread's alone. This thread sleeps until that one has ended, so all it refers to stays.
    unsafe { real::clone(Some(begin::<F>), stack.top(), flags, body, null.cast(), null, null.cast()) };
}
