//! What is attached, by whom, and what a killed process leaves.

use super::*;

#[test]
fn findable_after_removal_and_gone_after_the_last_detach() {
    const LEN: usize = (1 << 20) - 4242;
    // SAFETY: geteuid has no failure.
    let uid = unsafe { libc::geteuid() };
    let made = Mapping::create(LEN).unwrap();
    // SAFETY: in bounds of the fresh mapping.
    unsafe { made.base().as_ptr().write(7) };
    let mut ids = [0; 8];
    assert_eq!(find(LEN, uid, &mut ids), 1);
    let (again, attested) = Mapping::open(ids[0], LEN, uid).unwrap();
    assert_eq!(attested.creator as u32, std::process::id());
    // SAFETY: in bounds of the second mapping of the same segment.
    assert_eq!(unsafe { again.base().as_ptr().read() }, 7);
    assert_eq!(Mapping::open(ids[0], LEN - PAGE, uid).unwrap_err(), Errno(libc::EACCES));
    assert_eq!(Mapping::open(ids[0], LEN, uid + 1).unwrap_err(), Errno(libc::EACCES));
    // SAFETY: nothing refers into either mapping any more.
    unsafe {
        made.detach();
        again.detach();
    }
    // A child that another test has forked meanwhile has it until it ends.
    let deadline = crate::clock::nanoseconds() + 60_000_000_000;
    while find(LEN, uid, &mut ids) != 0 {
        assert!(crate::clock::nanoseconds() < deadline, "it is never gone");
        crate::clock::nap(1000);
    }
}

/// Fails if `attest_private` leaves out one of `attested.len == size(len)`, `attested.users == (uid, uid)` and
/// `attested.private`.
#[test]
fn what_is_not_private_or_not_as_long_is_not_attached() {
    const LEN: usize = 1 << 16;
    // SAFETY: geteuid has no failure.
    let uid = unsafe { libc::geteuid() };
    let open = |size: usize, mode: i32, marked: bool, uid: u32| {
        // SAFETY: no pointers but the address of the mapping that is made here.
        unsafe {
            let id = libc::shmget(libc::IPC_PRIVATE, size, libc::IPC_CREAT | mode);
            let at = libc::shmat(id, core::ptr::null(), 0);
            if marked {
                libc::shmctl(id, libc::IPC_RMID, core::ptr::null_mut());
            }
            let opened = Mapping::open(id, LEN, uid);
            libc::shmctl(id, libc::IPC_RMID, core::ptr::null_mut());
            libc::shmdt(at);
            opened.map(|(mapping, _)| mapping.detach())
        }
    };
    let refused = Err(Errno(libc::EACCES));
    assert_eq!(open(size(LEN), 0o600, true, uid), Ok(()));
    assert_eq!(open(size(LEN), 0o600, true, uid + 1), refused, "another user's");
    assert_eq!(open(size(LEN), 0o600, false, uid), refused, "it could be found, and stay, for ever");
    for mode in [0o660, 0o640, 0o606, 0o604] {
        assert_eq!(open(size(LEN), mode, true, uid), refused, "{mode:o}");
    }
    for length in [1, LEN, size(LEN) - 1, size(LEN) + 1, size(LEN) - PAGE, size(LEN) + PAGE] {
        assert_eq!(open(length, 0o600, true, uid), refused, "{length} bytes");
    }
    let gone = Mapping::create(LEN).unwrap();
    // SAFETY: nobody has looked into it.
    unsafe { gone.detach() };
    assert!(matches!(Mapping::open(gone.id, LEN, uid), Err(Errno(libc::EINVAL | libc::EIDRM))), "freed");
}

#[test]
fn what_a_killed_process_leaves_is_removed() {
    const LEN: usize = 3 << 20;
    /// A segment as a killed process leaves it, which this test removes.
    struct Left(i32);
    impl Left {
        fn is_there(&self) -> bool {
            attest(self.0, libc::IPC_STAT as usize).is_ok()
        }
    }
    impl Drop for Left {
        fn drop(&mut self) {
            let _ = remove(self.0);
        }
    }
    let leave = |size: usize| {
        let mut ends = [0; 2];
        let mut id = 0i32;
        // SAFETY: a child that makes three system calls, as a fork of a threaded process may; buffers of this frame.
        unsafe {
            assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
            let child = libc::fork();
            if child == 0 {
                id = libc::shmget(libc::IPC_PRIVATE, size, libc::IPC_CREAT | OWNER_ONLY as i32);
                libc::write(ends[1], (&raw const id).cast(), size_of_val(&id));
                libc::_exit(0);
            }
            assert_eq!(libc::read(ends[0], (&raw mut id).cast(), size_of_val(&id)), 4);
            libc::waitpid(child, core::ptr::null_mut(), 0);
            ends.iter().for_each(|&end| assert_eq!(libc::close(end), 0));
        }
        Left(id)
    };
    // SAFETY: geteuid has no failure.
    let uid = unsafe { libc::geteuid() };
    let (ours, foreign) = (leave(size(LEN)), leave(size(LEN) + 1));
    // Another process of this user may have looked already.
    find(1, uid, &mut [0; 1]);
    assert!(!ours.is_there());
    assert!(foreign.is_there());
}
