//! The simulated disk through its public face. What survives a crash in detail is tested beside it.

use super::*;

const MIB: u64 = 1 << 20;

fn calm(seed: u64) -> SimDisk {
    SimDisk::new(seed, MIB, Rates::default())
}

fn create(disk: &SimDisk, path: &str) -> Arc<dyn File> {
    disk.open(Path::new(path), Open::Create).unwrap()
}

fn write(disk: &SimDisk, file: &Arc<dyn File>, offset: u64, bytes: &[u8]) -> io::Result<()> {
    let mut writes = [WriteAt { file, offset, pieces: &[bytes], result: Ok(()) }];
    disk.write(&mut writes);
    let [WriteAt { result, .. }] = writes;
    result
}

fn read(disk: &SimDisk, file: &Arc<dyn File>, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut into = vec![0xaa; len];
    let mut reads = [ReadAt { file, offset, into: &mut into, result: Ok(()) }];
    disk.read(&mut reads);
    let [ReadAt { result, .. }] = reads;
    result.map(|()| into)
}

/// A file with a durable name and durable bytes.
fn settled(disk: &SimDisk, path: &str, bytes: &[u8]) -> Arc<dyn File> {
    let file = create(disk, path);
    write(disk, &file, 0, bytes).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir(Path::new("")).unwrap();
    file
}

#[test]
fn it_is_a_disk() {
    for seed in 0..3 {
        crate::disk::suite::all(&SimDisk::new(seed, 64 * MIB, Rates::default()));
        let short = Rates { short: 200_000, slow: 1000, ..Rates::default() };
        crate::disk::suite::all(&SimDisk::new(seed, 64 * MIB, short));
    }
}

#[test]
fn a_copy_of_files_has_other_numbers_and_a_copy_of_blocks_has_not() {
    let disk = calm(1);
    let file = settled(&disk, "a", &[7; 3000]);
    let (files, blocks) = (disk.copy_of_files(), disk.copy_of_blocks());
    write(&disk, &file, 0, &[8; 3000]).unwrap();
    let number = |disk: &SimDisk| disk.list(Path::new("")).unwrap()[0].file;
    assert_eq!(number(&disk), number(&blocks));
    assert_ne!(number(&disk), number(&files));
    for copy in [files, blocks].map(|copy| copy.crash()) {
        let file = copy.open(Path::new("a"), Open::Read).unwrap();
        assert_eq!(read(&copy, &file, 0, 3000).unwrap(), [7; 3000]);
    }
    assert!(!disk.is_off());
}

#[test]
fn what_is_synced_is_found_after_a_crash_and_the_old_disk_is_off() {
    for seed in 0..50 {
        let disk = calm(seed);
        let file = settled(&disk, "a", &[7; 3000]);
        let next = disk.crash();
        assert!(disk.is_off() && read(&disk, &file, 0, 1).is_err() && file.len().is_err());
        assert!(disk.open(Path::new("a"), Open::Read).is_err());
        let again = next.open(Path::new("a"), Open::Read).unwrap();
        assert_eq!(read(&next, &again, 0, 3000).unwrap(), [7; 3000]);
        assert!(read(&next, &file, 0, 1).is_err(), "a file of another life");
        assert!(write(&next, &again, 0, b"x").is_err(), "opened for reading");
        assert!(read(&next, &again, 2999, 2).is_err(), "beyond the end");
    }
}

#[test]
fn a_name_needs_its_directory_synced() {
    let survives = |seed| {
        let disk = calm(seed);
        let file = create(&disk, "a");
        write(&disk, &file, 0, &[7; 100]).unwrap();
        file.sync_data().unwrap();
        disk.crash().open(Path::new("a"), Open::Read).is_ok()
    };
    let names = (0..100).filter(|seed| survives(*seed)).count();
    assert!((1..100).contains(&names), "{names}");
}

/// The names of one directory are written in order, also those that came from another one.
#[test]
fn a_deleted_name_does_not_come_back_with_the_directory_it_came_from() {
    for (seed, order) in (0..50).flat_map(|seed| [(seed, ["to", "from"]), (seed, ["from", "to"])]) {
        let disk = calm(seed);
        for dir in ["from", "to"] {
            disk.make_dir(Path::new(dir)).unwrap();
        }
        settled(&disk, "from/a", &[7; 100]);
        disk.sync_dir(Path::new("from")).unwrap();
        disk.rename(Path::new("from/a"), Path::new("to/a")).unwrap();
        disk.remove(Path::new("to/a")).unwrap();
        for dir in order {
            disk.sync_dir(Path::new(dir)).unwrap();
        }
        let next = disk.crash();
        for dir in ["from", "to"] {
            assert_eq!(next.list(Path::new(dir)).unwrap(), [], "{seed}, {order:?}, {dir}");
        }
    }
}

#[test]
fn room_is_counted_in_blocks_and_comes_back_with_the_last_handle() {
    let disk = SimDisk::new(1, 8 * BLOCK, Rates::default());
    let file = create(&disk, "a");
    write(&disk, &file, 0, &[1; 100]).unwrap();
    assert_eq!((disk.free_bytes().unwrap(), disk.file_bytes()), (7 * BLOCK, 100));
    let full = write(&disk, &file, 0, &vec![1; 9 * BLOCK as usize]).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::StorageFull);
    assert_eq!(disk.free_bytes().unwrap(), 0, "what fitted was written");
    assert_eq!(file.set_len(9 * BLOCK).unwrap_err().kind(), io::ErrorKind::StorageFull);
    file.set_len(BLOCK).unwrap();
    assert_eq!(disk.free_bytes().unwrap(), 7 * BLOCK);
    disk.remove(Path::new("a")).unwrap();
    assert_eq!((disk.free_bytes().unwrap(), disk.file_bytes()), (7 * BLOCK, 0));
    drop(file);
    assert_eq!(disk.free_bytes().unwrap(), 8 * BLOCK);
    assert_eq!(disk.counts()[Fault::NoSpace as usize], 2);
    let quota = SimDisk::new(2, BLOCK, Rates::default());
    let full = create(&quota, "a").set_len(2 * BLOCK).unwrap_err();
    assert_eq!(full.kind(), io::ErrorKind::QuotaExceeded);
}

#[test]
fn the_power_fails_in_the_middle() {
    let mut torn = 0;
    for seed in 0..100 {
        let disk = calm(seed);
        let file = settled(&disk, "a", &[1; 4096]);
        disk.cut_after(1);
        read(&disk, &file, 0, 10).unwrap();
        write(&disk, &file, 0, &[2; 4096]).unwrap_err();
        assert!(write(&disk, &file, 0, b"x").is_err() && disk.is_off());
        assert!(disk.list(Path::new("")).is_err() && disk.free_bytes().is_err());
        let next = disk.crash();
        let file = next.open(Path::new("a"), Open::Read).unwrap();
        let found = read(&next, &file, 0, 4096).unwrap();
        assert!(found.chunks(512).all(|sector| sector == [1; 512] || sector == [2; 512]));
        torn += u32::from(found.contains(&1) && found.contains(&2));
    }
    assert!(torn > 10, "{torn} of 100 writes were torn");
}

#[test]
fn short_results_are_resumed_and_errors_reach_the_caller() {
    let disk = SimDisk::new(3, MIB, Rates { short: 700_000, ..Rates::default() });
    let file = create(&disk, "a");
    let bytes: Vec<u8> = (0..20_000_u32).map(|n| n as u8).collect();
    for _ in 0..20 {
        write(&disk, &file, 5, &bytes).unwrap();
        assert_eq!(read(&disk, &file, 5, 20_000).unwrap(), bytes);
    }
    let counts = disk.counts();
    for fault in [Fault::ShortRead, Fault::ShortWrite, Fault::Interrupted] {
        assert!(counts[fault as usize] > 0, "{}", fault.name());
    }
    let always = 1_000_000;
    disk.set_rates(Rates {
        read_error: always,
        write_error: always,
        sync_error: always,
        ..Rates::default()
    });
    assert!(read(&disk, &file, 0, 1).is_err() && write(&disk, &file, 0, b"x").is_err());
    assert!(file.sync_data().is_err() && disk.sync_dir(Path::new("")).is_err());
    assert!(file.set_len(9).is_err());
}

/// Each silent fault changes bytes, and says which.
#[test]
fn harm_is_told() {
    let always = 1_000_000;
    let cases = [
        (Fault::Lost, Rates { lost: always, ..Rates::default() }),
        (Fault::Misdirected, Rates { misdirected: always, ..Rates::default() }),
        (Fault::Flip, Rates { flip: always, ..Rates::default() }),
        (Fault::Stale, Rates { stale: always, ..Rates::default() }),
    ];
    for (fault, rates) in cases {
        let (mut changed, mut told) = (0, 0);
        for seed in 0..20 {
            let disk = calm(seed);
            settled(&disk, "a", &[1; 4096]);
            let file = settled(&disk, "b", &[2; 4096]);
            disk.set_rates(rates);
            write(&disk, &file, 0, &[3; 4096]).unwrap();
            changed += u32::from(read(&disk, &file, 0, 4096).unwrap() != [3; 4096]);
            told += u32::from(disk.take_harm().iter().any(|harm| harm.fault == fault));
        }
        assert!(changed > 0 && told > 0, "{}: {changed} changed, {told} told", fault.name());
    }
    let disk = calm(1);
    settled(&disk, "a", &[0; 10]);
    disk.flip(Path::new("a"), 9, 3).unwrap();
    let file = disk.open(Path::new("a"), Open::Read).unwrap();
    assert_eq!(read(&disk, &file, 9, 1).unwrap(), [8]);
    assert!(disk.flip(Path::new("a"), 10, 3).is_err());
}

#[test]
fn one_seed_is_one_disk() {
    let run = |seed| {
        let rates = Rates {
            read_error: 50_000,
            write_error: 50_000,
            sync_error: 50_000,
            short: 100_000,
            flip: 20_000,
            lost: 50_000,
            misdirected: 50_000,
            stale: 50_000,
            slow: 50_000,
        };
        let mut disk = SimDisk::new(seed, 4 * BLOCK, rates);
        let mut seen = Vec::new();
        for round in 0..300_u64 {
            let path = format!("f{}", round % 7);
            let how = if round % 3 == 0 { Open::Create } else { Open::Write };
            if let Ok(file) = disk.open(Path::new(&path), how) {
                seen.push(write(&disk, &file, round % 900, &[round as u8; 700]).is_ok());
                seen.push(read(&disk, &file, 0, 600).is_ok_and(|bytes| bytes[0] == 1));
                seen.push(round % 4 == 0 && file.sync_data().is_ok());
            }
            if round % 6 == 0 {
                seen.push(disk.sync_dir(Path::new("")).is_ok());
            }
            if round % 10 == 9 {
                seen.push(disk.remove(Path::new(&path)).is_ok());
            }
            if round % 50 == 49 {
                disk = disk.crash();
            }
        }
        let harm = format!("{:?} {:?}", disk.take_harm(), disk.list(Path::new("")));
        (seen, harm, disk.counts(), disk.operations(), disk.busy_nanos(), disk.file_bytes())
    };
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
    let mut counts = Counts::default();
    for seed in 1..10 {
        counts.iter_mut().zip(run(seed).2).for_each(|(sum, count)| *sum += count);
    }
    for fault in Fault::ALL.into_iter().filter(|fault| *fault != Fault::Cut) {
        assert!(counts[fault as usize] > 0, "{} never happened", fault.name());
    }
}
