//! What is special to real directories.

use super::*;
use crate::disk::suite;
use crate::disk::uring::Uring;
use crate::room::Room;
use rustix::mount::{MountFlags, MountPropagationFlags};
use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn does_what_a_disk_does() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Posix::open(directory.path()).unwrap();
    suite::all(&disk);
}

/// Neighbours in a batch are read by one call where they lie well, and hold the same bytes in any case (S10).
#[test]
fn neighbours_are_read_together() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Posix::open(directory.path()).unwrap();
    let file = disk.open(Path::new("file"), Open::Create).unwrap();
    let mut rng = mooncrate_core::rng::Rng::new(11);
    let bytes: Vec<u8> = (0..1 << 14).flat_map(|_| rng.next().to_le_bytes()).collect();
    suite::write(&file, &disk, 0, &[&bytes]).unwrap();
    let (mut head, mut value) = (Room::new(1 << 18), Room::new(1 << 18));
    // Where the first starts, their lengths, bytes that are left out between them, and by which the second
    // one is shifted in memory; and whether one call does it on a disk that takes direct I/O.
    let shapes = [
        (0, 4096, 65_536, 0, 0, true),
        (4096, 8192, 118_784, 0, 0, true),
        (0, 4096, 65_536, 4096, 0, false),
        (0, 4096, 65_536, 0, 8, false),
        (0, 4096, 65_535, 0, 0, false),
        (512, 4096, 65_536, 0, 0, false),
    ];
    for (offset, first, second, apart, shift, well) in shapes {
        let after = offset + first + apart;
        for by_batch in [false, true] {
            head.set_len(first);
            value.set_len(shift + second);
            head.fill(0x55);
            value.fill(0x55);
            let (into, next) = (&mut head[..], &mut value[shift..]);
            let mut reads = [
                ReadAt { file: &file, offset: offset as u64, into, result: Ok(()) },
                ReadAt { file: &file, offset: after as u64, into: next, result: Ok(()) },
            ];
            if by_batch {
                disk.read(&mut reads);
                assert!(reads.iter().all(|read| read.result.is_ok()), "{offset} {second} {shift}");
                assert!(*reads[0].into == bytes[offset..][..first]);
                assert!(*reads[1].into == bytes[after..][..second]);
            } else if disk.is_direct() {
                let [one, two] = &mut reads;
                assert_eq!(read_together(one, two, STRAIGHT), well, "{offset} {second} {shift}");
            }
        }
    }
    // The second one ends behind the file.
    head.set_len(4096);
    value.set_len(8192);
    let offset = bytes.len() as u64 - 8192;
    let mut reads = [
        ReadAt { file: &file, offset, into: &mut head, result: Ok(()) },
        ReadAt { file: &file, offset: offset + 4096, into: &mut value, result: Ok(()) },
    ];
    disk.read(&mut reads);
    assert!(reads[0].result.is_ok() && *reads[0].into == bytes[bytes.len() - 8192..][..4096]);
    let short = reads[1].result.as_ref().unwrap_err();
    assert_eq!(short.kind(), io::ErrorKind::UnexpectedEof);
}

#[test]
fn nobody_else_may_look() {
    let top = tempfile::tempdir().unwrap();
    let directory = top.path().join("new/disk");
    let disk = Posix::open(&directory).unwrap();
    disk.make_dir(Path::new("dir")).unwrap();
    disk.open(Path::new("dir/file"), Open::Create).unwrap();
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(&directory.join("dir")), 0o700);
    assert_eq!(mode(&directory.join("dir/file")), 0o600);
    assert_eq!(mode(&directory.join("lock")), 0o600);
}

#[test]
fn links_are_not_followed() {
    let top = tempfile::tempdir().unwrap();
    let (directory, outside) = (top.path().join("disk"), top.path().join("outside"));
    std::fs::create_dir(&outside).unwrap();
    std::fs::write(outside.join("file"), "secret").unwrap();
    let disk = Posix::open(&directory).unwrap();
    symlink(outside.join("file"), directory.join("file")).unwrap();
    symlink(&outside, directory.join("dir")).unwrap();
    for path in ["file", "dir/file"] {
        for how in [Open::Read, Open::Write] {
            let error = disk.open(Path::new(path), how).unwrap_err();
            assert!(
                matches!(
                    error.kind(),
                    io::ErrorKind::PermissionDenied | io::ErrorKind::NotADirectory
                ),
                "{error:?}"
            );
        }
        assert!(disk.open(Path::new(path), Open::Create).is_err());
    }
    assert!(disk.list(Path::new("dir")).is_err());
    assert!(disk.make_dir(Path::new("dir")).is_err(), "a link to a directory is none of ours");
    assert!(disk.remove(Path::new("dir/file")).is_err());
    assert_eq!(std::fs::read(outside.join("file")).unwrap(), b"secret");
}

#[test]
fn a_foreign_or_open_directory_is_refused() {
    let top = tempfile::tempdir().unwrap();
    let path = top.path().join("disk");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o770)).unwrap();
    let error = Posix::open(&path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("chmod 700"), "{error}");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    drop(Posix::open(&path).unwrap());
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root can give a directory away");
        return;
    }
    std::os::unix::fs::chown(&path, Some(4242), None).unwrap();
    let error = Posix::open(&path).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
    assert!(error.to_string().contains("belongs to uid 4242"), "{error}");
    assert!(error.to_string().contains("chown 0 "), "{error}");
}

/// proves S12: one process per directory. This test is its own second process.
#[test]
fn a_directory_has_one_process() {
    const HOLD: &str = "MOONCRATE_TEST_HOLD";
    if let Some(path) = std::env::var_os(HOLD) {
        let _disk = Posix::open(Path::new(&path)).unwrap();
        println!("held");
        std::io::stdin().read_line(&mut String::new()).unwrap();
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", "disk::posix::tests::a_directory_has_one_process"])
        .env(HOLD, directory.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("held")), "the child came to its end");
    let error = Posix::open(directory.path()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
    let text = error.to_string();
    assert!(text.contains(&format!("process {}", child.id())), "{text}");
    assert!(text.contains(&directory.path().display().to_string()), "{text}");
    child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    assert!(child.wait().unwrap().success());
    let disk = Posix::open(directory.path()).unwrap();
    // The same process is no better.
    assert!(Uring::open(directory.path()).is_err());
    // A file that is still open holds the directory as well.
    let file = disk.open(Path::new("file"), Open::Create).unwrap();
    drop(disk);
    assert!(Posix::open(directory.path()).is_err());
    drop(file);
    Posix::open(directory.path()).unwrap();
}

/// proves S12: a failed sync is final, for every handle of the file, and for no other file.
#[test]
fn a_failed_sync_is_final() {
    let directory = tempfile::tempdir().unwrap();
    let disk = Posix::open(directory.path()).unwrap();
    let path = Path::new("file");
    let file = disk.open(path, Open::Create).unwrap();
    let other = disk.open(path, Open::Write).unwrap();
    suite::write(&file, &disk, 0, &[&[1; 4096]]).unwrap();
    file.sync_data().unwrap();
    let fails = || Err(io::Error::from_raw_os_error(5));
    assert!(PosixFile::of(&file).unwrap().sync_by(fails).is_err());
    let again = disk.open(path, Open::Write).unwrap();
    for file in [&file, &other, &again] {
        assert!(file.sync_data().is_err());
        assert!(file.set_len(8192).is_err());
        assert!(suite::write(file, &disk, 0, &[&[2; 4096]]).is_err());
        assert_eq!(suite::read(file, &disk, 0, 4096).unwrap(), [1; 4096]);
    }
    let sound = disk.open(Path::new("sound"), Open::Create).unwrap();
    suite::write(&sound, &disk, 0, &[&[3; 4096]]).unwrap();
    sound.sync_data().unwrap();
}

/// proves S7: a full disk says so when room is asked for, and what was asked for is given back.
#[test]
fn a_full_disk_says_so() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_owned();
    // The mount is seen by this thread alone, and goes with it.
    let test = std::thread::Builder::new().spawn(move || {
        if let Err(error) = mount_small(&path, 8 << 20) {
            eprintln!("skipped: a small file system cannot be mounted here ({error})");
            return;
        }
        let posix = Posix::open(&path).unwrap();
        full(&posix);
        full(&Uring::over(posix));
    });
    test.unwrap().join().unwrap();
}

fn mount_small(path: &Path, bytes: u64) -> rustix::io::Result<()> {
    // SAFETY: nothing of this thread depends on sharing mounts with others; it ends with the test.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNS) }?;
    let private = MountPropagationFlags::PRIVATE | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", private)?;
    let options = CString::new(format!("size={bytes},mode=700")).unwrap();
    rustix::mount::mount("tmpfs", path, "tmpfs", MountFlags::empty(), options.as_c_str())
}

fn full(disk: &dyn Disk) {
    let path = Path::new("file");
    let file = disk.open(path, Open::Create).unwrap();
    file.set_len(4 << 20).unwrap();
    let free = disk.free_bytes().unwrap();
    assert!(free <= 4 << 20, "{free}");
    let error = file.set_len(16 << 20).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    assert_eq!(file.len().unwrap(), 4 << 20);
    assert_eq!(disk.free_bytes().unwrap(), free, "what was not promised is free again");
    // What was promised is there.
    suite::write(&file, disk, 0, &[&vec![5; 4 << 20]]).unwrap();
    let more = vec![6; 8 << 20];
    let error = suite::write(&file, disk, 4 << 20, &[&more]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
    assert!(suite::read(&file, disk, 0, 4 << 20).unwrap() == vec![5; 4 << 20]);
    disk.remove(path).unwrap();
}
