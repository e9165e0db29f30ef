//! Memory for two processes: a memfd whose size can never change. The daemon does not map it.

use rustix::fd::OwnedFd;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::io;

/// Memory of `bytes` bytes, all zero, sealed against shrinking (a program that has it mapped would be killed), growing
/// and further seals (one against writing would stop both ends).
///
/// # Errors
/// What the kernel says: EMFILE, ENFILE, ENOMEM.
pub fn sealed(bytes: u64) -> io::Result<OwnedFd> {
    // NOEXEC_SEAL keeps it from being executed; before 6.3 there is no such flag.
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = match memfd_create("underpass", flags | MemfdFlags::NOEXEC_SEAL) {
        Err(rustix::io::Errno::INVAL) => memfd_create("underpass", flags)?,
        result => result?,
    };
    ftruncate(&memory, bytes)?;
    fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{fcntl_get_seals, fstat};

    #[test]
    fn its_size_never_changes() {
        let memory = sealed(1 << 20).unwrap();
        assert_eq!(fstat(&memory).unwrap().st_size, 1 << 20);
        assert!(ftruncate(&memory, 4096).is_err() && ftruncate(&memory, 2 << 20).is_err());
        assert!(fcntl_add_seals(&memory, SealFlags::WRITE).is_err());
        assert!(fcntl_get_seals(&memory).unwrap().contains(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL));
    }
}
