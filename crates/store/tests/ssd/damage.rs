//! Files that somebody changed, cut or took away: a miss, never wrong bytes.

use crate::rig::{KIB, MIB, count, disk, embedded, offloaded, put, until};
use mooncrate_core::catalog::Offload;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

const VALUES: u32 = 120;

/// A directory with values, its store closed.
fn filled() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let store = embedded(vec![disk(folder.path(), 128)], 64 * MIB, Offload::Eager);
    for n in 0..VALUES {
        put(&store, n, 64 * KIB);
    }
    until("all are on the disk", || offloaded(&store) == u64::from(VALUES));
    folder
}

/// The files with values, largest first.
fn data_files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.join("ssd")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let about = entry.metadata().unwrap();
            if about.is_dir() {
                folders.push(entry.path());
            } else if about.len() >= 64 << 10 {
                found.push((about.len(), entry.path()));
            }
        }
    }
    found.sort_unstable();
    found.into_iter().rev().map(|(_, path)| path).collect()
}

fn reopened(folder: &Path) -> u32 {
    let store = embedded(vec![disk(folder, 128)], 64 * MIB, Offload::Eager);
    // Wrong bytes would end the test inside.
    let found = count(&store, VALUES);
    assert_eq!(count(&store, VALUES), found, "what is bad stays away, the rest stays");
    found
}

#[test]
fn flipped_bytes_are_a_miss() {
    let folder = filled();
    let files = data_files(folder.path());
    let mut bytes = fs::read(&files[0]).unwrap();
    // One byte in every so many: some records are hit in their heads, some in their values.
    for at in (70_000..bytes.len()).step_by(300_000) {
        bytes[at] ^= 0x40;
    }
    fs::write(&files[0], bytes).unwrap();
    let found = reopened(folder.path());
    assert!(found > 0 && found < VALUES, "{found} of {VALUES}");
}

#[test]
fn a_cut_file_loses_its_end() {
    let folder = filled();
    let files = data_files(folder.path());
    let len = fs::metadata(&files[0]).unwrap().len();
    fs::File::options().write(true).open(&files[0]).unwrap().set_len(len / 2).unwrap();
    let found = reopened(folder.path());
    assert!(found < VALUES, "{found} of {VALUES}");
}

#[test]
fn a_file_that_is_gone_takes_its_values_along() {
    let folder = filled();
    let files = data_files(folder.path());
    fs::remove_file(&files[0]).unwrap();
    let found = reopened(folder.path());
    assert!(found < VALUES, "{found} of {VALUES}");
}

/// A file that changes while the store serves: the reader finds out, and the value is not served again.
#[test]
fn damage_under_a_running_store_is_a_miss() {
    let folder = filled();
    let store = embedded(vec![disk(folder.path(), 128)], 64 * MIB, Offload::Eager);
    let files = data_files(folder.path());
    let file = fs::File::options().write(true).open(&files[0]).unwrap();
    let len = file.metadata().unwrap().len();
    for at in (100_000..len).step_by(150_000) {
        file.write_all_at(&[0xa5; 64], at).unwrap();
    }
    file.sync_all().unwrap();
    let mut found = 0;
    for n in 0..VALUES {
        // The first read says that it is corrupt, or is a miss; wrong bytes it never is.
        if let Ok(Some(value)) = store.get(&crate::rig::name(n)) {
            crate::rig::judge(n, &value);
            found += 1;
        }
    }
    assert!(found < VALUES, "{found} of {VALUES}");
    until("bad records are forgotten", || {
        (0..VALUES).all(|n| match store.get(&crate::rig::name(n)) {
            Ok(Some(value)) => {
                crate::rig::judge(n, &value);
                true
            }
            Ok(None) => true,
            Err(_) => false,
        })
    });
}
