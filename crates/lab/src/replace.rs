//! Files that are written whole or not at all. The old file stays until the new content is on the disk, even if a
//! process is killed meanwhile.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

/// The rights of a new file.
const NEW: u32 = 0o666;

/// Gives a file the content that `write` writes. It is made in the same folder under another name, and renamed. A pipe
/// or a device is written to.
///
/// # Errors
/// The folder takes no new file, or the disk is full; the file is as it was then.
pub fn replace(path: &Path, write: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
    let Some(path) = replaceable(path) else {
        let mut device = BufWriter::new(File::options().write(true).open(path)?);
        write(&mut device)?;
        return device.flush();
    };
    let mut file = BufWriter::new(beside(&path, NEW)?);
    write(&mut file)?;
    let file = file.into_inner().map_err(|error| error.into_error())?;
    if let Ok(before) = fs::metadata(&path) {
        file.as_file().set_permissions(before.permissions())?;
    }
    file.as_file().sync_all()?;
    file.persist(&path).map_err(|error| error.error)?;
    Ok(())
}

/// Whether [`replace`] can be expected to succeed. Nothing is changed.
///
/// # Errors
/// It cannot.
pub fn check(path: &Path) -> io::Result<()> {
    let Some(target) = replaceable(path) else {
        // To open a pipe and close it is, for its reader, its end.
        if fs::metadata(path)?.file_type().is_fifo() {
            return Ok(rustix::fs::access(path, rustix::fs::Access::WRITE_OK)?);
        }
        return File::options().append(true).open(path).map(drop);
    };
    if target.exists() {
        // A file that its owner has made read-only is not to be replaced.
        File::options().append(true).open(&target)?;
    }
    beside(&target, NEW).map(drop)
}

/// The file behind any links, if it is one, or is not there yet.
fn replaceable(path: &Path) -> Option<PathBuf> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => None,
        Ok(_) => Some(fs::canonicalize(path).unwrap_or(path.into())),
        Err(_) => Some(path.into()),
    }
}

/// A new file in the same folder, with these rights as far as the umask leaves them.
pub(crate) fn beside(path: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    tempfile::Builder::new().prefix(".underpass-").permissions(PermissionsExt::from_mode(mode)).tempfile_in(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> =
            fs::read_dir(folder).unwrap().map(|it| it.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_file_is_replaced_whole_and_keeps_its_rights() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        replace(&path, |to| to.write_all(b"first")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
        let before = File::open(&path).unwrap();
        replace(&path, |to| to.write_all(b"second")).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(io::read_to_string(before).unwrap(), "first", "a reader that had it open has all of it");
        assert_eq!(names(folder.path()), ["record"]);
    }

    #[test]
    fn a_file_stays_as_it_was_where_writing_fails() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("record");
        fs::write(&path, "first").unwrap();
        let half = |to: &mut dyn Write| {
            to.write_all(&[b'x'; 1 << 16])?;
            Err(io::ErrorKind::StorageFull.into())
        };
        assert_eq!(replace(&path, half).unwrap_err().kind(), io::ErrorKind::StorageFull);
        assert_eq!(fs::read_to_string(&path).unwrap(), "first");
        assert_eq!(names(folder.path()), ["record"]);
    }

    #[test]
    fn links_and_devices_stay_what_they_are() {
        let folder = tempfile::tempdir().unwrap();
        let (path, link) = (folder.path().join("record"), folder.path().join("link"));
        fs::write(&path, "first").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        replace(&link, |to| to.write_all(b"second")).unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(fs::read_to_string(&path).unwrap(), "second");
        replace(Path::new("/dev/null"), |to| to.write_all(b"nothing")).unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    /// The reader of a pipe gets the content, and not an end before it.
    #[test]
    fn a_pipe_is_opened_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let (done, is_done) = std::sync::mpsc::channel();
        let (to, from) = (pipe.clone(), pipe);
        let writer = std::thread::spawn(move || {
            // Nobody reads yet: to open it would take until somebody does.
            done.send(check(&to)).unwrap();
            replace(&to, |to| to.write_all(b"all of it"))
        });
        is_done.recv_timeout(std::time::Duration::from_secs(20)).expect("it waits for a reader").unwrap();
        assert_eq!(fs::read_to_string(from).unwrap(), "all of it");
        writer.join().unwrap().unwrap();
        assert_eq!(names(folder.path()), ["pipe"]);
    }

    #[test]
    fn what_cannot_be_written_is_known_before_and_nothing_is_made() {
        let folder = tempfile::tempdir().unwrap();
        let new = folder.path().join("record");
        check(&new).unwrap();
        assert!(names(folder.path()).is_empty());
        fs::write(&new, "first").unwrap();
        check(&new).unwrap();
        assert_eq!(fs::read_to_string(&new).unwrap(), "first");
        assert!(check(Path::new("/no/folder/record")).is_err() && check(folder.path()).is_err());
        check(Path::new("/dev/null")).unwrap();
    }
}
