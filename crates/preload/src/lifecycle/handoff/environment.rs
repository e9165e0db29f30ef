//! The environment that a new image gets, and the memory that it lies in.

use crate::guest::memory;
use core::ffi::c_char;
use core::fmt::Write;
use underpass_segment::of_each_thread;

/// Longest value of the variable, with its name.
pub const MOST: usize = 96;

/// Memory with what is packed.
#[derive(Clone, Copy)]
pub struct Pages {
    /// Where it begins.
    pub memory: *mut u8,
    /// Its length in bytes.
    pub len: usize,
}

/// An environment in memory of its own.
pub struct Environment(pub Pages);

impl Drop for Environment {
    fn drop(&mut self) {
        CHILD_PACKED.set(None);
        // SAFETY: the mapping is this value's own.
        unsafe { memory::release(self.0.memory, self.0.len) };
    }
}

of_each_thread! {
    /// What a child of this thread's vfork has packed: this process has to release it, because the child's execution
    /// does not.
    static CHILD_PACKED: Option<Pages> = None;
}

/// This thread is a child of vfork: notes what it has packed, or `None`.
pub fn note_child_packed(pages: Option<Pages>) {
    CHILD_PACKED.set(pages);
}

/// A child of vfork has executed a program, or is gone.
pub fn release_child_packed() {
    drop(CHILD_PACKED.get().map(Environment));
}

/// Number of variables.
///
/// # Safety
/// `envp` must be null or an environment.
pub unsafe fn variables_in(envp: *const *const c_char) -> usize {
    // SAFETY: passed on to the caller.
    if envp.is_null() { 0 } else { (0..).take_while(|&at| unsafe { !(*envp.add(at)).is_null() }).count() }
}

/// A text that is written into memory, with a NUL behind it: the memory, and how much is written.
pub struct Text<'a>(pub &'a mut [u8], pub usize);

impl Write for Text<'_> {
    fn write_str(&mut self, s: &str) -> core::fmt::Result {
        let end = self.1 + s.len();
        // One byte stays for the NUL.
        if end >= self.0.len() {
            return Err(core::fmt::Error);
        }
        self.0[self.1..end].copy_from_slice(s.as_bytes());
        self.1 = end;
        Ok(())
    }
}
