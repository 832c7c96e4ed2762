//! Fuzz targets as plain functions: `fuzz/` drives them with coverage, a stable test drives them with mutated
//! seeds. Each takes any bytes and may only return; a panic is a find. Hostile content of a disk counts as
//! much as a hostile peer.

use crate::backend::{Load, LoadError, Record};
use crate::bucket::{meta, removed};
use crate::config::{Config, open};
use crate::disk::sim::{Rates, SimDisk};
use crate::disk::{Disk, Open, WriteAt};
use crate::identity::Text;
use crate::record::{self, Head, Kind, Site};
use std::path::Path;
use std::sync::Arc;

/// The token of directories here. Real ones are secret; a fuzzer may know it.
const TOKEN: u64 = 1;
/// Values are loaded up to this length: a head may claim more than there is memory for.
const VALUE_BYTES: u64 = 1 << 20;

/// A head. What is accepted is as long as it says, and lies where it says.
pub fn head(bytes: &[u8]) {
    for kind in Kind::ALL {
        let Some(offset) = record::offset_in(bytes) else { return };
        let site = Site { kind, token: TOKEN, serial: 1, offset };
        let Some(head) = Head::decode_any_serial(bytes, site) else { continue };
        let shape = head.shape();
        assert!(shape.is_valid() && shape.head() <= bytes.len());
        assert!(head.table().len() <= bytes.len() / 8);
        assert_eq!(shape.bytes() % 8, 0);
    }
}

/// The metadata of a bucket, a block of the log of removed records, and the text of an identity.
pub fn books(bytes: &[u8]) {
    if let Some(meta) = meta::Meta::decode(bytes, TOKEN, 1) {
        assert!(meta.len() <= bytes.len() / record::FIXED_BYTES);
    }
    let mut places = Vec::new();
    if removed::decode_block(bytes, TOKEN, 1, 0, &mut places).is_none() {
        assert!(places.is_empty(), "a bad block says nothing");
    }
    if let Ok(text) = Text::decode(bytes) {
        assert_eq!(Text::decode(text.encode().as_bytes()), Ok(text));
    }
}

/// A whole start: the first byte says in which file the rest stands. Whatever is found loads or is refused.
pub fn recovery(bytes: &[u8]) {
    let Some((&which, content)) = bytes.split_first() else { return };
    let (kind, name) = match which % 5 {
        0 => (Kind::Bucket, "0000000000000001.bucket"),
        1 => (Kind::Bucket, "0000000000000001.meta"),
        2 => (Kind::Bucket, "removed-0000000000000001"),
        3 => (Kind::Offset, "kv_cache.data"),
        _ => (Kind::PerKey, "format"),
    };
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1, 64 << 20, Rates::default()));
    let mut config = Config::new(kind, 1 << 20);
    config.token = Some(TOKEN);
    let start = |found: &mut dyn FnMut(Record)| {
        open(Arc::clone(&disk), &config, found, &mut |_| {}).map(|(backend, _)| backend)
    };
    drop(start(&mut |_| {}));
    if which % 5 == 1 {
        // Metadata need data to be about.
        put(disk.as_ref(), "0000000000000001.bucket", &vec![0; 64 << 10]);
    }
    put(disk.as_ref(), name, content);
    let mut found = Vec::new();
    let Ok(backend) = start(&mut |record| found.push(record)) else { return };
    for record in found.iter().filter(|record| record.len <= VALUE_BYTES) {
        let Record { id, label, len, seal } = record;
        let mut into = vec![0; *len as usize];
        let (id, len, seal) = (*id, *len, *seal);
        let (start, want, into, sums) = (0, len, &mut into[..], None);
        let mut load = [Load { id, label, len, seal, start, want, into, sums, result: Ok(()) }];
        backend.load(&mut load);
        let [Load { result, .. }] = load;
        let refused = matches!(result, Err(LoadError::Corrupt | LoadError::Missing));
        assert!(refused || result.is_ok(), "{result:?}");
    }
}

fn put(disk: &dyn Disk, name: &str, content: &[u8]) {
    let path = Path::new(name);
    let file = disk.open(path, Open::Write).or_else(|_| disk.open(path, Open::Create));
    let Ok(file) = file else { return };
    let pieces = [content];
    disk.write(&mut [WriteAt { file: &file, offset: 0, pieces: &pieces, result: Ok(()) }]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::laying::{self, Sealed};
    use crate::{NewRecord, RecordId};
    use mooncrate_core::rng::Rng;
    use mooncrate_core::{LeaderEpoch, ObjectId};
    use mooncrate_mem::crc::Crc;
    use mooncrate_mem::sums::seal_of;

    const RUNS: u64 = 4000;

    /// The blocks of a few records, and their heads.
    fn records(kind: Kind) -> (Vec<u8>, Vec<u8>) {
        let values = [vec![1; 100], vec![2; 40_000], vec![], vec![3; 5000]];
        let sealed: Vec<Sealed<'_>> = (values.iter().enumerate())
            .map(|(number, value)| {
                let object = ObjectId { epoch: LeaderEpoch(1), sequence: number as u64 };
                let id = RecordId { object, stripe: 0 };
                let record = NewRecord { id, label: b"\0\0\0\0\0key", seal: seal_of(value), value };
                Sealed::check(&record, number).unwrap()
            })
            .collect();
        let laid = laying::lay(&sealed, Site { kind, token: TOKEN, serial: 1, offset: 0 });
        (laid.pieces().concat(), laid.heads.clone())
    }

    /// Makes the checksum of the head at `at` right, if its lengths can be believed.
    fn mend(bytes: &mut [u8], at: usize) {
        let Some(bytes) = bytes.get_mut(at..) else { return };
        let Some(offset) = record::offset_in(bytes) else { return };
        for kind in Kind::ALL {
            let site = Site { kind, token: TOKEN, serial: 1, offset };
            let Some(shape) = Head::peek(bytes, site) else { continue };
            let Some(rest) = bytes.get(record::FIXED_BYTES..shape.head()) else { continue };
            let sum = Crc::new().update(&bytes[..72]).update(rest).value();
            bytes[72..80].copy_from_slice(&sum.to_le_bytes());
        }
    }

    fn damage(input: &mut Vec<u8>, rng: &mut Rng) {
        for _ in 0..rng.below(4) {
            // Mostly near the start, where the heads are.
            let len = input.len() as u64 + 1;
            let at =
                if rng.chance(700) { rng.below(len.min(200)) } else { rng.below(len) } as usize;
            match rng.below(5) {
                0 => input.truncate(at.max(1)),
                1 => input.insert(at, rng.next() as u8),
                2 if at < input.len() => input[at] ^= 1 << rng.below(8),
                3 if at < input.len() => input[at] = [0, 1, 0x7f, 0xff][rng.below(4) as usize],
                _ if at + 8 <= input.len() => {
                    let number = [0, 1, 4096, 32_768, 3 << 30, 1 << 40, u64::MAX];
                    let number = number[rng.below(7) as usize];
                    input[at..at + 8].copy_from_slice(&number.to_le_bytes());
                }
                _ => {}
            }
        }
    }

    fn drive(name: &str, seeds: &[Vec<u8>], runs: u64, mended: usize, target: fn(&[u8])) {
        for seed in 0..runs {
            let mut rng = Rng::new(seed);
            let mut input = seeds[rng.below(seeds.len() as u64) as usize].clone();
            damage(&mut input, &mut rng);
            if rng.chance(800) {
                mend(&mut input, mended);
            }
            let outcome = std::panic::catch_unwind(|| target(&input));
            assert!(outcome.is_ok(), "{name} fails for seed {seed}");
        }
    }

    #[test]
    fn damaged_heads_and_books_are_refused() {
        let heads: Vec<Vec<u8>> = Kind::ALL.map(|kind| records(kind).0).into();
        drive("head", &heads, RUNS, 0, head);
        let (_, heads) = records(Kind::Bucket);
        let meta = meta::encode(TOKEN, 1, 64 << 10, 4, &heads).to_vec();
        let text = Text { kind: Kind::Bucket, token: TOKEN, ids: 5 }.encode().into_bytes();
        drive("books", &[meta, text], RUNS, 56, books);
    }

    #[test]
    fn a_damaged_directory_is_opened_or_refused() {
        let with = |which: u8, content: &[u8]| [&[which][..], content].concat();
        let (blocks, heads) = records(Kind::Bucket);
        let meta = meta::encode(TOKEN, 1, 52 << 10, 4, &heads);
        let text = Text { kind: Kind::PerKey, token: TOKEN, ids: 5 }.encode().into_bytes();
        let seeds = [
            with(0, &blocks),
            with(1, &meta),
            with(2, &blocks),
            with(3, &records(Kind::Offset).0),
            with(4, &text),
        ];
        for seed in &seeds {
            recovery(seed);
        }
        drive("recovery", &seeds, 400, 1, recovery);
    }
}
