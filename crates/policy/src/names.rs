//! The numbers of users and groups, as this system names them (nsswitch.conf(5)). May wait for a server.
#![allow(unsafe_code, reason = "getpwnam_r and getgrnam_r with buffers of our own")]

use std::ffi::{CString, c_char, c_int};
use std::io;
use std::mem::MaybeUninit;

/// The longest entry that is read, in octets: a group names all its members.
const LONGEST: usize = 1 << 24;

/// A source of the numbers of users and groups.
pub trait Names {
    /// The number of the user of this name; `None` where there is none.
    fn user(&self, name: &str) -> io::Result<Option<u32>>;
    /// The number of the group of this name; `None` where there is none.
    fn group(&self, name: &str) -> io::Result<Option<u32>>;
}

/// This system.
pub struct System;

impl Names for System {
    fn user(&self, name: &str) -> io::Result<Option<u32>> {
        // SAFETY: the function is the one for this structure.
        Ok(unsafe { look_up::<libc::passwd>(name, libc::getpwnam_r) }?.map(|it| it.pw_uid))
    }

    fn group(&self, name: &str) -> io::Result<Option<u32>> {
        // SAFETY: the function is the one for this structure.
        Ok(unsafe { look_up::<libc::group>(name, libc::getgrnam_r) }?.map(|it| it.gr_gid))
    }
}

/// getpwnam_r(3) or getgrnam_r(3).
type LookUp<T> = unsafe extern "C" fn(*const c_char, *mut T, *mut c_char, usize, *mut *mut T) -> c_int;

/// The entry of this name. Only its numbers may be read: its pointers lead to a buffer that is gone.
///
/// # Safety
/// `call` fills a `T` and a buffer of the given length, as getpwnam_r(3) does.
unsafe fn look_up<T>(name: &str, call: LookUp<T>) -> io::Result<Option<T>> {
    let name = CString::new(name).map_err(io::Error::other)?;
    let mut buffer = vec![0; 1 << 14];
    loop {
        let mut entry = MaybeUninit::<T>::zeroed();
        let mut found = std::ptr::null_mut();
        // SAFETY: a string that ends, a structure to fill, and a buffer of the length said; all outlive the call.
        let error =
            unsafe { call(name.as_ptr(), entry.as_mut_ptr(), buffer.as_mut_ptr(), buffer.len(), &raw mut found) };
        match error {
            libc::ERANGE if buffer.len() < LONGEST => buffer.resize(4 * buffer.len(), 0),
            0 | libc::ENOENT | libc::ESRCH if found.is_null() => return Ok(None),
            // SAFETY: found, so the structure has been filled.
            0 => return Ok(Some(unsafe { entry.assume_init() })),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_known_and_no_other_user_by_that_name() {
        assert_eq!(System.user("root").unwrap(), Some(0));
        assert_eq!(System.group("root").unwrap(), Some(0));
        assert_eq!(System.user("no-such-user-here").unwrap(), None);
        assert_eq!(System.group("no-such-group-here").unwrap(), None);
        assert!(System.user("a\0b").is_err());
    }
}
