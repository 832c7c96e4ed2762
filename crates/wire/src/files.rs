//! Files that an operator names: small, and files. A pipe that nobody writes to would hang a server at its
//! start, and a device without an end would fill its memory.

use rustix::fs::{Mode, OFlags, open};
use std::fs::File;
use std::io::{self, Read};
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

#[cfg(test)]
mod tests {
    use super::*;

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
