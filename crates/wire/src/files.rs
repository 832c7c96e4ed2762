//! Files that an operator names: small, and files. A pipe that nobody writes to would hang a server at its
//! start, and a device without an end would fill its memory.

use rustix::fs::{Mode, OFlags, open};
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

/// Reads a regular file of at most `most` bytes.
pub fn read_small(path: &Path, most: u64) -> io::Result<String> {
    // Without waiting for the other end of a pipe.
    let file =
        File::from(open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let mut text = String::new();
    // One more than may be: the length that was asked for may grow meanwhile.
    let count = file.take(most + 1).read_to_string(&mut text)? as u64;
    if count > most {
        let message = format!("it is larger than {most} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(text)
}

/// Whether a file keeps a secret from other users. Its owner alone may read it. A group may read it, too, where root
/// has put it there for this process: that is how container orchestrators hand a secret to a user that is not root.
pub(crate) fn is_private(about: &Metadata) -> bool {
    private_mode(about.mode() & 0o777, about.uid(), rustix::process::geteuid().as_raw())
}

fn private_mode(mode: u32, owner: u32, user: u32) -> bool {
    let from_root = owner == 0 && user != 0;
    mode & !0o700 == 0 || (from_root && mode & !0o740 == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn security_a_group_may_read_a_secret_only_where_root_put_it_for_another_user() {
        for mode in [0o400, 0o600] {
            assert!(
                [(0, 0), (0, 7), (7, 7)].iter().all(|(owner, us)| private_mode(mode, *owner, *us))
            );
        }
        for mode in [0o440, 0o640] {
            assert!(private_mode(mode, 0, 7));
            assert!(
                !private_mode(mode, 0, 0) && !private_mode(mode, 7, 7) && !private_mode(mode, 8, 7)
            );
        }
        for mode in [0o444, 0o644, 0o460, 0o620, 0o604] {
            assert!(!private_mode(mode, 0, 7), "{mode:o}");
        }
    }

    #[test]
    fn security_pipes_devices_and_large_files_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
        for path in [&pipe, Path::new("/dev/zero"), folder.path()] {
            let error = read_small(path, 10).unwrap_err();
            assert!(
                error.to_string().contains("not a regular file"),
                "{}: {error}",
                path.display()
            );
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "0123456789").unwrap();
        assert_eq!(read_small(&file, 10).unwrap(), "0123456789");
        assert!(read_small(&file, 9).unwrap_err().to_string().contains("larger than 9"));
        assert_eq!(
            read_small(&pipe.join("x"), 9).unwrap_err().kind(),
            io::ErrorKind::NotADirectory
        );
    }
}
