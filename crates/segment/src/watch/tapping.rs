//! How `underpass capture` has senders copy what they send.

use super::{Whose, numbers};
use crate::directory::Directory;
use crate::end::End;
use crate::family::Family;
use crate::raw::Errno;
use crate::tap::Name;

/// While this lives, what the connections of a user's processes put into their rings is copied to a tap.
///
/// This is the other way in which a watcher changes a table: a word of each end, which its senders look at.
#[derive(Debug)]
pub struct Tapping {
    directory: Directory,
    name: Name,
}

/// Why there is no [`Tapping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoTapping {
    /// Another capture is under way.
    Another,
    /// What shmget or shmat says.
    Memory(Errno),
}

impl From<Errno> for NoTapping {
    fn from(error: Errno) -> NoTapping {
        NoTapping::Memory(error)
    }
}

impl Tapping {
    /// Names the tap to all processes of user `uid`, those to come as well.
    ///
    /// # Errors
    /// See [`NoTapping`].
    pub fn begin(uid: u32, name: Name) -> Result<Tapping, NoTapping> {
        let directory = Directory::open(uid)?;
        if !directory.set_tap(name) {
            return Err(NoTapping::Another);
        }
        let tapping = Tapping { directory, name };
        // An end that joins later finds the tap in the directory.
        tapping.for_each_end(|end| end.set_tap(name))?;
        Ok(tapping)
    }

    fn for_each_end(&self, what: impl Fn(&End)) -> Result<(), Errno> {
        for (id, uid) in numbers(Whose::User(self.directory.uid())) {
            match Family::open(id, uid) {
                Ok(family) => {
                    let ends = (0..family.used()).map(|index| family.end(index));
                    ends.filter(|end| end.owners.are_any()).for_each(&what);
                    // SAFETY: nothing of it is kept.
                    unsafe { family.detach() };
                }
                Err(Errno(libc::EINVAL | libc::EIDRM | libc::EACCES)) => {}
                Err(other) => return Err(other),
            }
        }
        Ok(())
    }
}

impl Drop for Tapping {
    fn drop(&mut self) {
        self.directory.forget_tap(self.name);
        // If that fails, the next sender sees that the tap is gone.
        let _ = self.for_each_end(|end| end.end_tap(self.name));
    }
}
