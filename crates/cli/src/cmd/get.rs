//! `get`: a value to stdout, raw, or to a file, whole or not at all.

use super::{connect, failed, typed_key};
use crate::args::Get;
use crate::config::Settings;
use crate::failure::Failure;
use crate::progress;
use crate::render::{self, Output, bytes};
use mooncrate_core::key;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

pub(super) fn run(args: &Get, settings: &Settings, out: Output) -> Result<(), Failure> {
    let key = typed_key(&args.key, args.keys)?;
    if out.json && args.output.is_none() {
        let message = "stdout cannot hold both JSON and the value";
        return Err(Failure::usage(message).hint("write the value to a file with -o FILE"));
    }
    let store = connect(settings)?;
    let found = store.get(&key).map_err(failed)?;
    let Some(value) = found else {
        return Err(Failure::no_such_key(format!("no such key: {}", key::show(&key))));
    };
    if let Some(path) = &args.output {
        write(path, &value).map_err(|error| {
            Failure::failed(format!("cannot write {}: {error}", path.display()))
        })?;
        return out.got(&key, value.len() as u64, path);
    }
    if render::to_terminal() && !args.force && !is_text(&value) {
        let size = bytes(value.len() as u64);
        let message = format!("the value, {size}, is not text and could upset the terminal");
        return Err(Failure::failed(message).hint("write it to a file with -o FILE, or --force it"));
    }
    render::print_raw(&value)
}

/// Whether a terminal shows it and does nothing else.
fn is_text(value: &[u8]) -> bool {
    str::from_utf8(value)
        .is_ok_and(|text| text.chars().all(|c| !c.is_control() || matches!(c, '\n' | '\r' | '\t')))
}

/// The file appears with all its bytes, or stays as it was. What is no plain file (a pipe, a
/// device) is written to as it is.
fn write(path: &Path, value: &[u8]) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return progress::write_all(&mut std::fs::File::create(path)?, value);
    }
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut file = tempfile::Builder::new()
        .prefix(".mooncrate-")
        // As any new file: what the user's mask leaves.
        .permissions(std::fs::Permissions::from_mode(0o666))
        .tempfile_in(folder)?;
    progress::write_all(&mut file, value)?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_told_from_what_upsets_a_terminal() {
        for text in ["", "plain", "two\nlines\t\r\n", "h\u{e9}"] {
            assert!(is_text(text.as_bytes()), "{text:?}");
        }
        for raw in [b"\x1b[2J".as_slice(), b"\xff", b"a\0b", b"\x07"] {
            assert!(!is_text(raw), "{raw:?}");
        }
    }

    #[test]
    fn a_file_is_replaced_whole_and_nothing_is_left_beside_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("value");
        write(&path, b"first").unwrap();
        write(&path, b"").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"");
        write(&path, b"second").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"second");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        assert!(write(&folder.path().join("no/such"), b"x").is_err());
        write(Path::new("/dev/null"), b"x").unwrap();
        assert!(!std::fs::metadata("/dev/null").unwrap().is_file(), "it is still a device");
    }
}
