//! What every disk must do. Each implementation calls [`all`]; what is special to one is tested beside it.

use super::{Disk, File, Open, ReadAt, WriteAt};
use crate::ALIGN;
use crate::room::Room;
use mooncrate_core::rng::Rng;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The whole suite, on a disk that is empty and has room for 64 MiB.
pub(crate) fn all(disk: &dyn Disk) {
    names(disk);
    names_stay_beneath(disk);
    lengths(disk);
    every_alignment(disk);
    large_operations(disk);
    beyond_the_end(disk);
    batches(disk);
    failures_stay_alone(disk);
    syncs(disk);
    many_threads(disk);
    like_a_vector(disk);
    let left = disk.list(Path::new("")).unwrap();
    assert!(left.iter().all(|entry| entry.is_dir), "tests clean up: {left:?}");
}

/// Reads one part.
pub(crate) fn read(
    file: &Arc<dyn File>,
    disk: &dyn Disk,
    offset: u64,
    len: usize,
) -> io::Result<Vec<u8>> {
    let mut into = vec![0xee; len];
    let mut reads = [ReadAt { file, offset, into: &mut into, result: Ok(()) }];
    disk.read(&mut reads);
    let [read] = reads;
    read.result.map(|()| into)
}

/// Writes one part.
pub(crate) fn write(
    file: &Arc<dyn File>,
    disk: &dyn Disk,
    offset: u64,
    pieces: &[&[u8]],
) -> io::Result<()> {
    let mut writes = [WriteAt { file, offset, pieces, result: Ok(()) }];
    disk.write(&mut writes);
    let [write] = writes;
    write.result
}

fn create(disk: &dyn Disk, name: &str) -> Arc<dyn File> {
    disk.open(Path::new(name), Open::Create).unwrap()
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    let words = (0..len.div_ceil(8)).flat_map(|_| rng.next().to_le_bytes());
    words.take(len).collect()
}

fn names(disk: &dyn Disk) {
    let kind = |result: io::Result<Arc<dyn File>>| result.map(drop).unwrap_err().kind();
    let (a, b) = (Path::new("a"), Path::new("dir/b"));
    assert_eq!(kind(disk.open(a, Open::Read)), io::ErrorKind::NotFound);
    assert_eq!(kind(disk.open(a, Open::Write)), io::ErrorKind::NotFound);
    assert_eq!(disk.remove(a).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(disk.rename(a, b).unwrap_err().kind(), io::ErrorKind::NotFound);
    let file = create(disk, "a");
    assert_eq!(kind(disk.open(a, Open::Create)), io::ErrorKind::AlreadyExists);
    assert!(file.is_empty().unwrap());
    write(&file, disk, 0, &[b"hello"]).unwrap();
    file.sync_data().unwrap();
    assert_eq!(kind(disk.open(b, Open::Create)), io::ErrorKind::NotFound);
    disk.make_dir(Path::new("dir")).unwrap();
    disk.make_dir(Path::new("dir")).unwrap();
    // A rename takes the place of what has the name; the handle follows the file.
    write(&create(disk, "dir/b"), disk, 0, &[b"old"]).unwrap();
    disk.rename(a, b).unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    disk.sync_dir(Path::new("dir")).unwrap();
    let renamed = disk.open(b, Open::Read).unwrap();
    assert_eq!(read(&renamed, disk, 0, 5).unwrap(), b"hello");
    write(&file, disk, 5, &[b", ", b"", b"world"]).unwrap();
    assert_eq!(read(&renamed, disk, 3, 9).unwrap(), b"lo, world");
    let top = disk.list(Path::new("")).unwrap();
    assert_eq!(top.len(), 1, "{top:?}");
    assert!(top[0].is_dir && top[0].name == "dir");
    let below = disk.list(Path::new("dir")).unwrap();
    assert_eq!(below.len(), 1, "{below:?}");
    assert_eq!((below[0].name.as_str(), below[0].len, below[0].is_dir), ("b", 12, false));
    assert_eq!(disk.list(Path::new("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    // What is removed can still be read by who has it open.
    disk.remove(b).unwrap();
    assert_eq!(kind(disk.open(b, Open::Read)), io::ErrorKind::NotFound);
    assert_eq!(read(&renamed, disk, 0, 5).unwrap(), b"hello");
    assert_eq!(disk.list(Path::new("dir")).unwrap(), []);
}

fn names_stay_beneath(disk: &dyn Disk) {
    for path in ["..", "../a", "/a", "a/../b", "dir/../../a", "", "."] {
        let path = Path::new(path);
        assert!(disk.open(path, Open::Create).is_err(), "{}", path.display());
        assert!(disk.open(path, Open::Read).is_err(), "{}", path.display());
        assert!(disk.remove(path).is_err(), "{}", path.display());
        assert!(disk.rename(path, Path::new("c")).is_err(), "{}", path.display());
        assert!(disk.make_dir(path).is_err(), "{}", path.display());
    }
    assert!(disk.list(Path::new("..")).is_err());
    assert!(disk.open(Path::new("dir"), Open::Read).is_err(), "a directory is no file");
}

fn lengths(disk: &dyn Disk) {
    let file = create(disk, "lengths");
    file.set_len(10_000).unwrap();
    assert_eq!(file.len().unwrap(), 10_000);
    assert_eq!(read(&file, disk, 0, 10_000).unwrap(), vec![0; 10_000]);
    write(&file, disk, 0, &[&[7; 10_000]]).unwrap();
    file.set_len(5_000).unwrap();
    assert_eq!(read(&file, disk, 4_990, 10).unwrap(), [7; 10]);
    // What was cut off does not come back.
    file.set_len(12_288).unwrap();
    assert_eq!(read(&file, disk, 5_000, 7_288).unwrap(), vec![0; 7_288]);
    // Writing behind the end extends a file, and leaves zeros in between.
    write(&file, disk, 20_480, &[&[9; 4096]]).unwrap();
    assert_eq!(file.len().unwrap(), 24_576);
    assert_eq!(read(&file, disk, 12_288, 8_192).unwrap(), vec![0; 8_192]);
    write(&file, disk, 0, &[]).unwrap();
    // More pieces than one system call takes.
    let letters = noise(4, 3000);
    let pieces: Vec<&[u8]> = letters.chunks(1).collect();
    write(&file, disk, 100, &pieces).unwrap();
    assert_eq!(read(&file, disk, 100, 3000).unwrap(), letters);
    let blocks = noise(6, 200 * ALIGN);
    let mut room = Room::new(blocks.len());
    room.push(&blocks);
    let pieces: Vec<&[u8]> = room.chunks(ALIGN).collect();
    write(&file, disk, 0, &pieces).unwrap();
    assert!(read(&file, disk, 0, blocks.len()).unwrap() == blocks);
    assert_eq!(read(&file, disk, 3, 0).unwrap(), []);
    assert!(disk.free_bytes().unwrap() > 0);
    file.sync_data().unwrap();
    disk.remove(Path::new("lengths")).unwrap();
}

/// Offsets, lengths and addresses around the edges of blocks, in all combinations.
fn every_alignment(disk: &dyn Disk) {
    const EDGES: [usize; 8] = [0, 1, 511, 512, 4095, 4096, 4097, 6000];
    let lens = EDGES.map(|edge| edge + 65_536).into_iter().chain(EDGES);
    let name = Path::new("alignment");
    let file = create(disk, "alignment");
    let mut model = noise(1, 96 << 10);
    write(&file, disk, 0, &[&model]).unwrap();
    let mut memory = Room::new(128 << 10);
    memory.set_len(128 << 10);
    for (turn, len) in lens.enumerate() {
        for offset in EDGES {
            for shift in [0, 1, 512, 4095] {
                let what = format!("{len} bytes at {offset}, in memory at {shift}");
                memory.fill(0xee);
                let into = &mut memory[shift..][..len];
                let mut reads =
                    [ReadAt { file: &file, offset: offset as u64, into, result: Ok(()) }];
                disk.read(&mut reads);
                assert!(reads[0].result.is_ok(), "{what}: {:?}", reads[0].result);
                assert!(memory[shift..][..len] == model[offset..][..len], "{what}");
                assert!(memory[..shift].iter().all(|&byte| byte == 0xee), "before: {what}");
                assert!(memory[shift + len..].iter().all(|&byte| byte == 0xee), "behind: {what}");

                let fresh = noise((turn * 64 + offset * 8 + shift) as u64, len);
                memory[shift..][..len].copy_from_slice(&fresh);
                write(&file, disk, offset as u64, &[&memory[shift..][..len]]).expect(&what);
                model[offset..][..len].copy_from_slice(&fresh);
                let around = offset.saturating_sub(1)..(offset + len + 1).min(model.len());
                let got = read(&file, disk, around.start as u64, around.len()).unwrap();
                assert!(got == model[around], "{what}");
            }
        }
    }
    assert!(read(&file, disk, 0, model.len()).unwrap() == model);
    assert_eq!(file.len().unwrap(), model.len() as u64);
    disk.remove(name).unwrap();
}

/// Operations that are cut, whole and crooked, in pieces.
fn large_operations(disk: &dyn Disk) {
    for (turn, len) in
        [1 << 20, (1 << 20) + 1, (1 << 20) + (60 << 10), (3 << 20) - 1, 3 << 20, (5 << 20) + 4096]
            .into_iter()
            .enumerate()
    {
        let file = create(disk, "large");
        let bytes = noise(turn as u64, len);
        let mut memory = Room::new(len);
        memory.push(&bytes);
        let rest = vec![0; memory.left()];
        // A header, the value as it lies in aligned memory, and zeros up to a whole block.
        let header = noise(77, ALIGN);
        write(&file, disk, 0, &[&header, &memory, &rest]).unwrap();
        assert!(read(&file, disk, 0, ALIGN).unwrap() == header);
        assert!(read(&file, disk, ALIGN as u64, len).unwrap() == bytes);
        let end = len.next_multiple_of(ALIGN) + ALIGN;
        assert_eq!(file.len().unwrap(), end as u64);
        let mut whole = Room::new(end);
        whole.set_len(end);
        let mut reads = [ReadAt { file: &file, offset: 0, into: &mut whole, result: Ok(()) }];
        disk.read(&mut reads);
        assert!(reads[0].result.is_ok());
        assert!(whole[ALIGN..][..len] == bytes);
        // Whole blocks from memory that is not aligned: all of it goes through rooms.
        let crooked = noise(turn as u64 + 50, end + 1);
        write(&file, disk, 0, &[&crooked[1..]]).unwrap();
        assert!(read(&file, disk, 0, end).unwrap() == crooked[1..]);
        // The same from memory that is not aligned, to a place that is not.
        write(&file, disk, 3, &[&bytes[..5], &bytes[5..]]).unwrap();
        assert!(read(&file, disk, 3, len).unwrap() == bytes);
        disk.remove(Path::new("large")).unwrap();
    }
}

fn beyond_the_end(disk: &dyn Disk) {
    let file = create(disk, "end");
    write(&file, disk, 0, &[&noise(3, 10_001)]).unwrap();
    assert_eq!(read(&file, disk, 10_000, 1).unwrap().len(), 1);
    assert_eq!(read(&file, disk, 8192, 1809).unwrap().len(), 1809);
    let beyond = [
        (10_001, 1),
        (10_000, 2),
        (8192, 1810),
        (0, 10_002),
        (0, 12_288),
        (4096, 8192),
        (1 << 40, 1),
    ];
    for (offset, len) in beyond {
        let mut memory = Room::new(len);
        memory.set_len(len);
        let mut reads = [ReadAt { file: &file, offset, into: &mut memory, result: Ok(()) }];
        disk.read(&mut reads);
        let kind = reads[0].result.as_ref().unwrap_err().kind();
        assert_eq!(kind, io::ErrorKind::UnexpectedEof, "{len} bytes at {offset}");
    }
    assert!(read(&file, disk, u64::MAX, 1).is_err());
    assert!(write(&file, disk, u64::MAX - 1, &[b"abc"]).is_err());
    disk.remove(Path::new("end")).unwrap();
}

/// Batches of every size over several files; each operation has bytes and a result of its own.
fn batches(disk: &dyn Disk) {
    let names = ["batch0", "batch1", "batch2"];
    let files: Vec<_> = names.iter().map(|name| create(disk, name)).collect();
    for count in [1, 2, 31, 32, 33, 64, 65, 200] {
        let mut rng = Rng::new(count as u64);
        let values: Vec<Vec<u8>> = (0..count)
            .map(|i| noise(i as u64 + 1000 * count as u64, rng.below(40_000) as usize))
            .collect();
        let pieces: Vec<[&[u8]; 2]> =
            values.iter().map(|value| value.split_at(value.len() / 3).into()).collect();
        // Crooked ones leave holes between them, whole blocks follow each other.
        let offset = |i: usize| (i / files.len() * 40_960) as u64;
        let mut writes: Vec<_> = (0..count)
            .map(|i| WriteAt {
                file: &files[i % files.len()],
                offset: offset(i),
                pieces: &pieces[i],
                result: Ok(()),
            })
            .collect();
        disk.write(&mut writes);
        assert!(writes.iter().all(|write| write.result.is_ok()));
        let mut back: Vec<_> = values.iter().map(|value| vec![0xee; value.len()]).collect();
        let mut reads: Vec<_> = back
            .iter_mut()
            .enumerate()
            .map(|(i, into)| ReadAt {
                file: &files[i % files.len()],
                offset: offset(i),
                into,
                result: Ok(()),
            })
            .collect();
        disk.read(&mut reads);
        assert!(reads.iter().all(|read| read.result.is_ok()));
        assert!(back == values, "a batch of {count}");
    }
    for name in names {
        disk.remove(Path::new(name)).unwrap();
    }
}

/// A failed operation fails alone, at its own place, in the midst of a large batch.
fn failures_stay_alone(disk: &dyn Disk) {
    let file = create(disk, "alone");
    let bytes = noise(5, 1 << 20);
    write(&file, disk, 0, &[&bytes]).unwrap();
    let mut back = vec![vec![0; 8192]; 100];
    let bad = |i: usize| i % 7 == 3;
    let at = |i: usize| if bad(i) { (1 << 20) - 4096 } else { i as u64 * 8192 };
    let mut reads: Vec<_> = back
        .iter_mut()
        .enumerate()
        .map(|(i, into)| ReadAt { file: &file, offset: at(i), into, result: Ok(()) })
        .collect();
    disk.read(&mut reads);
    for (i, read) in reads.iter().enumerate() {
        assert_eq!(read.result.is_err(), bad(i), "{i}: {:?}", read.result);
        assert!(bad(i) || *read.into == bytes[i * 8192..][..8192], "{i}");
    }
    let reader = disk.open(Path::new("alone"), Open::Read).unwrap();
    assert!(write(&reader, disk, 0, &[&bytes[..4096]]).is_err(), "it is open for reading");
    assert!(reader.set_len(0).is_err(), "it is open for reading");
    assert!(read(&reader, disk, 0, 1 << 20).unwrap() == bytes);
    disk.remove(Path::new("alone")).unwrap();
}

/// Threads that share a file do not see each other's bytes.
/// More at once than a ring takes; those that cannot be synced spoil no other.
fn syncs(disk: &dyn Disk) {
    let files: Vec<_> = (0..100).map(|i| create(disk, &format!("sync-{i}"))).collect();
    for (i, file) in files.iter().enumerate() {
        write(file, disk, 0, &[&noise(i as u64, ALIGN)]).unwrap();
    }
    assert!(disk.sync_files(&files.iter().collect::<Vec<_>>()).iter().all(io::Result::is_ok));
    assert!(disk.sync_files(&[]).is_empty());
    let dirs: Vec<PathBuf> = (0..50).map(|i| format!("sync-dir-{i}").into()).collect();
    for dir in dirs.iter().step_by(2) {
        disk.make_dir(dir).unwrap();
    }
    let synced = disk.sync_dirs(&dirs.iter().map(PathBuf::as_path).collect::<Vec<_>>());
    for (i, synced) in synced.into_iter().enumerate() {
        let missing = synced.is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        assert_eq!(missing, i % 2 == 1, "directory {i}");
    }
    for i in 0..100 {
        disk.remove(&PathBuf::from(format!("sync-{i}"))).unwrap();
    }
}

fn many_threads(disk: &dyn Disk) {
    let file = &create(disk, "threads");
    std::thread::scope(|scope| {
        for thread in 0..4_u64 {
            std::thread::Builder::new()
                .spawn_scoped(scope, move || {
                    for turn in 0..8 {
                        let bytes = noise(thread * 100 + turn, 256 << 10);
                        let offset = thread * (256 << 10);
                        write(file, disk, offset, &[&bytes]).unwrap();
                        assert!(read(file, disk, offset, bytes.len()).unwrap() == bytes);
                    }
                })
                .unwrap();
        }
    });
    disk.remove(Path::new("threads")).unwrap();
}

#[derive(Clone, Debug)]
enum Step {
    Write { offset: usize, cuts: Vec<usize>, seed: u64 },
    WholeBlocks { block: usize, cuts: Vec<usize>, seed: u64 },
    Read { offset: usize, len: usize, shift: usize },
    SetLen(usize),
    Sync,
}

fn any_step() -> impl Strategy<Value = Step> {
    let cuts = || vec(prop_oneof![0..9000_usize, Just(4096), Just(65_536)], 1..5);
    prop_oneof![
        (0..60_000_usize, cuts(), any::<u64>()).prop_map(|(offset, cuts, seed)| Step::Write {
            offset,
            cuts,
            seed
        }),
        (0..15_usize, cuts(), any::<u64>()).prop_map(|(block, cuts, seed)| Step::WholeBlocks {
            block,
            cuts,
            seed
        }),
        (0..100_000_usize, 0..100_000_usize, 0..4096_usize)
            .prop_map(|(offset, len, shift)| Step::Read { offset, len, shift }),
        (0..100_000_usize).prop_map(Step::SetLen),
        Just(Step::Sync),
    ]
}

/// In any order of calls a file holds what a vector would.
fn like_a_vector(disk: &dyn Disk) {
    static FILES: AtomicU32 = AtomicU32::new(0);
    let config = Config { cases: 64, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&vec(any_step(), 1..24), |steps| {
        let path = PathBuf::from(format!("model{}", FILES.fetch_add(1, Ordering::Relaxed)));
        let file = disk.open(&path, Open::Create).unwrap();
        let mut model = Vec::new();
        for step in &steps {
            take_step(disk, &file, &mut model, step)?;
        }
        prop_assert_eq!(file.len().unwrap(), model.len() as u64);
        prop_assert!(read(&file, disk, 0, model.len()).unwrap() == model);
        disk.remove(&path).unwrap();
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("{} is no vector of bytes: {error}", disk.name());
    }
}

fn take_step(
    disk: &dyn Disk,
    file: &Arc<dyn File>,
    model: &mut Vec<u8>,
    step: &Step,
) -> Result<(), TestCaseError> {
    let (offset, cuts, seed) = match step {
        Step::Write { offset, cuts, seed } => (*offset, cuts.clone(), *seed),
        Step::WholeBlocks { block, cuts, seed } => {
            let mut cuts = cuts.clone();
            let total: usize = cuts.iter().sum();
            cuts.push(total.next_multiple_of(ALIGN) - total);
            (block * ALIGN, cuts, *seed)
        }
        Step::Read { offset, len, shift } => {
            let mut memory = Room::new(shift + len);
            memory.set_len(shift + len);
            let into = &mut memory[*shift..];
            let mut reads = [ReadAt { file, offset: *offset as u64, into, result: Ok(()) }];
            disk.read(&mut reads);
            let fits = *len == 0 || offset + len <= model.len();
            prop_assert_eq!(reads[0].result.is_ok(), fits, "{:?}: {:?}", step, reads[0].result);
            prop_assert!(!fits || *len == 0 || memory[*shift..] == model[*offset..][..*len]);
            return Ok(());
        }
        Step::SetLen(len) => {
            file.set_len(*len as u64).unwrap();
            model.resize(*len, 0);
            return Ok(());
        }
        Step::Sync => {
            file.sync_data().unwrap();
            return Ok(());
        }
    };
    let total: usize = cuts.iter().sum();
    let bytes = noise(seed, total);
    // Every other piece lies in aligned memory, as a value does.
    let mut rest = &bytes[..];
    let mut rooms = Vec::new();
    for cut in cuts {
        let (piece, tail) = rest.split_at(cut);
        rest = tail;
        let mut room = Room::new(piece.len() + 1);
        let shift = usize::from(rooms.len() % 2 == 1 && !piece.is_empty());
        room.push(&[0][..shift]);
        room.push(piece);
        rooms.push((room, shift));
    }
    let pieces: Vec<&[u8]> = rooms.iter().map(|(room, shift)| &room[*shift..]).collect();
    write(file, disk, offset as u64, &pieces).unwrap();
    if total > 0 {
        model.resize(model.len().max(offset + total), 0);
        model[offset..][..total].copy_from_slice(&bytes);
    }
    Ok(())
}
