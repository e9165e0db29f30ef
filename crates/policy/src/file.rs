//! The file in which the administrator writes the policy.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::PolicyError;
use crate::names::{Names, System};
use crate::rules::{Id, Policy};
use crate::text;

/// Where the policy is, unless another place is named.
pub const DEFAULT_FILE: &str = "/etc/underpass/policy.toml";
/// The longest file that is read, in octets.
const LONGEST: u64 = 1 << 20;

/// Reads the policy from a file. The file and the folders above it must belong to the users `trusted`, and no other
/// user may be able to change them. May wait, if the system asks a server for users and groups.
///
/// # Errors
/// See [`PolicyError`].
pub fn read(path: &Path, trusted: &[u32]) -> Result<Policy, PolicyError> {
    text::parse(&content(path, trusted)?, path, &System)
}

/// The policy of [`DEFAULT_FILE`] and that file; the default, if there is no such file.
///
/// # Errors
/// See [`PolicyError`].
pub fn usual(trusted: &[u32]) -> Result<(Policy, Option<&'static Path>), PolicyError> {
    let path = Path::new(DEFAULT_FILE);
    match read(path, trusted) {
        Err(PolicyError::Missing(_)) => Ok((text::default(path, &System)?, None)),
        result => Ok((result?, Some(path))),
    }
}

/// The policy that one user, and members of the group of this name, share memory. There need not be such a group.
///
/// # Errors
/// What the system says when it is asked for the group.
pub fn of_group(name: &str) -> io::Result<Policy> {
    let group = System.group(name)?.map(|number| Id { name: Some(name.into()), number });
    let no_group = group.is_none().then(|| name.into());
    Ok(Policy { no_group, ..Policy::of_members(group) })
}

fn content(path: &Path, trusted: &[u32]) -> Result<String, PolicyError> {
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => PolicyError::Missing(path.into()),
        io::ErrorKind::InvalidData => {
            PolicyError::Unreadable { path: path.into(), error: io::Error::other("it is not text in UTF-8") }
        }
        _ => PolicyError::Unreadable { path: path.into(), error },
    };
    let real = fs::canonicalize(path).map_err(unreadable)?;
    // What is no file, such as a FIFO, might have nothing to read for ever.
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&real).map_err(unreadable)?;
    let metadata = file.metadata().map_err(unreadable)?;
    if !metadata.is_file() {
        return Err(PolicyError::NoFile(path.into()));
    }
    check(&real, &metadata, trusted)?;
    for folder in real.ancestors().skip(1) {
        check(folder, &fs::metadata(folder).map_err(unreadable)?, trusted)?;
    }
    let mut text = String::new();
    let len = file.take(LONGEST + 1).read_to_string(&mut text).map_err(unreadable)?;
    if len as u64 > LONGEST { Err(PolicyError::TooLong(path.into())) } else { Ok(text) }
}

/// Whether only trusted users can change what is there.
fn check(path: &Path, metadata: &Metadata, trusted: &[u32]) -> Result<(), PolicyError> {
    if !trusted.contains(&metadata.uid()) {
        return Err(PolicyError::Owner { path: path.into(), owner: metadata.uid() });
    }
    let mode = metadata.mode() & 0o7777;
    // In a folder with the sticky bit, such as /tmp, no user can replace what another user owns.
    let is_sticky = metadata.is_dir() && mode & libc::S_ISVTX != 0;
    if mode & 0o022 != 0 && !is_sticky { Err(PolicyError::Writable { path: path.into(), mode }) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};
    use std::path::PathBuf;

    const TEXT: &str = "group = 70\n";

    struct Place {
        folder: tempfile::TempDir,
        trusted: [u32; 2],
    }

    impl Place {
        fn new() -> Place {
            let folder = tempfile::tempdir().unwrap();
            let me = fs::metadata(folder.path()).unwrap().uid();
            let it = Place { folder, trusted: [0, me] };
            it.write(TEXT);
            it
        }

        fn path(&self) -> PathBuf {
            self.folder.path().join("policy.toml")
        }

        fn write(&self, text: impl AsRef<[u8]>) {
            fs::write(self.path(), text).unwrap();
            self.mode(&self.path(), 0o644);
        }

        fn mode(&self, path: &Path, mode: u32) {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }

        fn refused(&self) -> PolicyError {
            read(&self.path(), &self.trusted).unwrap_err()
        }
    }

    #[test]
    fn a_file_is_read_also_by_a_link() {
        let place = Place::new();
        let link = place.folder.path().join("link");
        symlink(place.path(), &link).unwrap();
        for path in [place.path(), link] {
            assert!(read(&path, &place.trusted).unwrap().to_string().contains("group 70"));
        }
    }

    #[test]
    fn a_file_that_others_could_change_is_not_trusted() {
        let place = Place::new();
        for mode in [0o664, 0o646, 0o666] {
            place.mode(&place.path(), mode);
            let said = place.refused().to_string();
            assert!(said.contains(&format!("mode {mode:04o}")) && said.contains("chmod go-w "), "{said}");
        }
        place.write(TEXT);
        place.mode(place.folder.path(), 0o777);
        assert!(matches!(place.refused(), PolicyError::Writable { path, .. } if path == place.folder.path()));
        // As in /tmp, which is above it.
        place.mode(place.folder.path(), 0o1777);
        assert!(read(&place.path(), &place.trusted).is_ok());
        place.mode(place.folder.path(), 0o755);
        if place.trusted[1] != 0 {
            return println!("SKIPPED: only root can give files away");
        }
        chown(place.path(), Some(61_001), None).unwrap();
        assert!(matches!(place.refused(), PolicyError::Owner { owner: 61_001, .. }));
        assert!(read(&place.path(), &[0, 61_001]).is_ok());
        chown(place.path(), Some(0), None).unwrap();
        chown(place.folder.path(), Some(61_001), None).unwrap();
        assert!(matches!(place.refused(), PolicyError::Owner { owner: 61_001, .. }));
    }

    #[test]
    fn what_is_no_file_of_text_is_refused() {
        let place = Place::new();
        place.write(vec![b'#'; LONGEST as usize + 1]);
        assert!(matches!(place.refused(), PolicyError::TooLong(_)));
        place.write(b"\xff");
        assert!(place.refused().to_string().contains("UTF-8"));
        fs::remove_file(place.path()).unwrap();
        assert!(matches!(place.refused(), PolicyError::Missing(_)));
        fs::create_dir(place.path()).unwrap();
        assert!(matches!(place.refused(), PolicyError::NoFile(_)));
        fs::remove_dir(place.path()).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(place.path()).status().unwrap().success());
        assert!(matches!(place.refused(), PolicyError::NoFile(_)));
        let below = place.path().join("x");
        assert!(matches!(read(&below, &place.trusted), Err(PolicyError::Unreadable { .. })));
    }

    #[test]
    fn a_group_need_not_exist() {
        let policy = of_group("no-such-group-here").unwrap();
        assert_eq!(policy.missing_group(), Some("no-such-group-here"));
        assert!(policy.to_string().contains("members of the group no-such-group-here, which does not exist"));
        assert_eq!(of_group("root").unwrap().missing_group(), None);
    }
}
